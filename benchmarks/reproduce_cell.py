"""One evaluation cell with 100 actions: ours against the dense way of the paper's code, side by side, as ratios.

The dense way is written here from the recipe: every batch expands the one-hot actions into all C(104, 4) monomials (a
100 × 4,598,126 matrix), keeps n × 100 matrices of rewards and probabilities, and fits scikit-learn's regressions on dense
arrays. Both report the same five squared errors, which are compared first. Each measurement is a process of its own with
one thread; the dense one gets malloc settings that spare it page faults. Seconds are of the processor: with one thread on
a quiet machine that is the time on the clock, and on a shared one it still means something.

    python benchmarks/reproduce_cell.py             # n = 100 both ways, n = 1,000,000 ours with its profile
    python benchmarks/reproduce_cell.py --million   # the dense way at n = 1,000,000 as well: 12 GB
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from math import comb

import numpy as np

ACTIONS, TEMPERATURE, SEED = 100, 5.0, 0
TUNED = {"MALLOC_MMAP_THRESHOLD_": "17179869184", "MALLOC_TRIM_THRESHOLD_": "17179869184"}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def ours(n: int) -> dict[str, float]:
    from counterpoise.experiments.ope import Cell, run_cell

    runs = run_cell(Cell(TEMPERATURE, ACTIONS, n, SEED))
    return {run.estimator: run.squared_error for run in runs[:5]}


def profiled(n: int) -> dict[str, float]:
    """Seconds of the parts of a cell, and of the same regressions in scikit-learn."""
    from counterpoise.environments import SyntheticBandit
    from counterpoise.environments.synthetic import polynomial
    from counterpoise.experiments.ope import ours as our_estimators
    from counterpoise.experiments.ope import published
    from counterpoise.experiments.regressions import fit_reward_model, fit_target

    seconds, clock = {}, time.process_time()

    def lap(name):
        nonlocal clock
        seconds[name], clock = time.process_time() - clock, time.process_time()

    polynomial(SEED, ACTIONS, 5, 4, 0.1)
    lap("coefficients")
    world = SyntheticBandit(ACTIONS, inverse_temperature=TEMPERATURE, seed=SEED)
    training, test = world.draw(n), world.draw(n)
    lap("two batches")
    policy = fit_target(training)
    lap("regression of the target policy")
    model = fit_reward_model(training)
    lap("regression of the rewards")
    action = policy(test.context)
    lap("the target's actions")
    test.value(action)
    lap("truth")
    columns = ((action == test.action) / test.propensity, test.reward)
    columns += (model(test.context, test.action), model(test.context, action))
    published(*columns), our_estimators(*columns)
    lap("eight estimators")
    return seconds


def scikit_learn(n: int) -> dict[str, float]:
    """The two regressions alone, as the paper's code runs them."""
    from sklearn.linear_model import LogisticRegression

    from counterpoise.environments import SyntheticBandit

    log = SyntheticBandit(ACTIONS, inverse_temperature=TEMPERATURE, seed=SEED).draw(n)
    design = np.zeros((n, 5 + ACTIONS))
    design[:, :5], design[np.arange(n), 5 + log.action] = log.context, 1.0
    started = time.process_time()
    LogisticRegression().fit(log.context, log.action, sample_weight=log.reward / log.propensity)
    LogisticRegression().fit(design, log.reward)
    return {"two regressions": time.process_time() - started}


def dense(n: int) -> dict[str, float]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import PolynomialFeatures

    stream = np.random.RandomState(SEED)

    def batch():
        x = stream.normal(size=(n, 5))
        expand = PolynomialFeatures(degree=4)
        phi, psi = expand.fit_transform(x), expand.fit_transform(np.eye(ACTIONS))
        random, size = np.random.RandomState(SEED), int(0.1 * comb(ACTIONS + 4, 4))
        phi = phi[:, random.choice(126, 12, replace=False)]
        psi = psi[:, random.choice(psi.shape[1], size, replace=False)]
        theta_x, theta_a = random.uniform(-1, 1, size=12), random.uniform(-1, 1, size=size)
        matrix = random.uniform(-1, 1, size=(12, size))
        v = (phi @ theta_x)[:, None] + psi @ theta_a + phi @ (matrix @ psi.T)
        v = 4 * (v - v.mean() / v.std())
        q = 1 / (1 + np.exp(-v))
        score = TEMPERATURE * q
        policy = np.exp(score - score.max(axis=1, keepdims=True))
        policy = policy / policy.sum(axis=1, keepdims=True)
        uniform = np.random.RandomState(SEED).uniform(size=n)
        action = (policy.cumsum(axis=1) > uniform[:, None]).argmax(axis=1)
        rows = np.arange(n)
        return x, q, action, stream.binomial(1, q[rows, action]), policy[rows, action]

    (x, _, a, r, p), (xt, qt, at, rt, pt) = batch(), batch()
    target = LogisticRegression().fit(x, a, sample_weight=r / p)
    one_hot = np.eye(ACTIONS)
    model = LogisticRegression().fit(np.hstack([x, one_hot[a]]), r)
    choice = np.zeros((n, ACTIONS))
    taken = target.predict(xt)
    rows = np.arange(n)
    choice[rows, taken] = 1.0
    predicted = np.zeros((n, ACTIONS))
    for k in range(ACTIONS):  # every action's reward for every row, whichever the policy takes
        predicted[:, k] = model.predict_proba(np.hstack([xt, np.tile(one_hot[k], (n, 1))]))[:, 1]
    truth = (qt * choice).sum(axis=1).mean()
    w = choice[rows, at] / pt
    value = (predicted * choice).sum(axis=1)
    beta = (rt * (w * w - w)).mean() / max((w * w - w).mean(), 1e-11)
    values = {
        "DM": value.mean(),
        "DR": (value + w * (rt - predicted[rows, at])).mean(),
        "IPS": (w * rt).mean(),
        "SNIPS": (w * rt).mean() / max(w.mean(), 1e-10),
        "beta-IPS": (beta + w * (rt - beta)).mean(),
    }
    return {name: float((found - truth) ** 2) for name, found in values.items()}


def measure(what: str, n: int, repeats: int) -> dict:
    """Best time of a few runs in a fresh process, and its peak resident memory."""
    command = [sys.executable, __file__, "--one", what, "--n", str(n), "--repeats", str(repeats)]
    settings = {**os.environ, **ONE_THREAD, **(TUNED if what in ("dense", "scikit_learn") else {})}
    return json.loads(subprocess.run(command, env=settings, capture_output=True, text=True, check=True).stdout)


def one(what: str, n: int, repeats: int) -> None:
    from counterpoise.environments.synthetic import polynomial

    warnings.simplefilter("ignore")
    import sklearn.linear_model  # noqa: F401  imports are not what is measured

    import counterpoise.experiments.ope  # noqa: F401

    best, found = float("inf"), {}
    for _ in range(repeats):
        polynomial.cache_clear()
        started = time.process_time()
        found = globals()[what](n)
        best = min(best, time.process_time() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": best, "peak_mb": peak, "found": found}))


def compare(n: int, repeats: int) -> None:
    mine, theirs = measure("ours", n, repeats), measure("dense", n, max(1, repeats // 2))
    for name, error in theirs["found"].items():
        np.testing.assert_allclose(mine["found"][name], error, rtol=1e-8)
    faster, lighter = theirs["seconds"] / mine["seconds"], theirs["peak_mb"] / mine["peak_mb"]
    print(f"n = {n:,}, {ACTIONS} actions: ours {mine['seconds']:.3f} s, {mine['peak_mb']:.0f} MB; ", end="")
    print(
        f"dense {theirs['seconds']:.2f} s, {theirs['peak_mb']:,.0f} MB; {faster:.1f} times faster, {lighter:.1f} times lighter"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--million", action="store_true", help="run the dense way at n = 1,000,000 as well")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--n", type=int, default=100, help=argparse.SUPPRESS)
    parser.add_argument("--repeats", type=int, default=1, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        one(arguments.one, arguments.n, arguments.repeats)
        return
    print(f"load average at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    compare(100, repeats=5)
    if arguments.million:
        compare(1_000_000, repeats=1)
    else:
        mine = measure("ours", 1_000_000, 1)
        print(f"n = 1,000,000, {ACTIONS} actions: ours {mine['seconds']:.2f} s, {mine['peak_mb']:.0f} MB")
    parts = measure("profiled", 1_000_000, 1)["found"]
    total = sum(parts.values())
    for name, seconds in parts.items():
        print(f"  {name:34}{seconds:7.2f} s  {seconds / total:5.0%}")
    theirs = measure("scikit_learn", 1_000_000, 1)
    regressions = parts["regression of the target policy"] + parts["regression of the rewards"]
    print(f"  the two regressions in scikit-learn, one thread: {theirs['found']['two regressions']:.2f} s", end="")
    print(f" ({theirs['found']['two regressions'] / regressions:.1f} times ours), {theirs['peak_mb']:,.0f} MB")


if __name__ == "__main__":
    main()
