"""The paper's experiments: what one of its evaluation cells and one of its learning curves cost.

python benchmarks/cells.py cell --n 100 1000000    # the dense way at n = 1,000,000 as well: 12 GB
python benchmarks/cells.py curve                   # on a GPU
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import warnings
from math import comb
from typing import Any

import numpy as np
from bench import Suite, head, row

SUITE = Suite(__file__, __doc__)


# -- one evaluation cell ----------------------------------------------------------------------------------------------------


ACTIONS, TEMPERATURE, SEED = 100, 5.0, 0
TUNED = {"MALLOC_MMAP_THRESHOLD_": "17179869184", "MALLOC_TRIM_THRESHOLD_": "17179869184"}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def our_cell(n: int) -> dict[str, float]:
    from paper.ope import Cell, run_cell

    runs = run_cell(Cell(TEMPERATURE, ACTIONS, n, SEED))
    return {run.estimator: run.squared_error for run in runs[:5]}


def profile_cell(n: int) -> dict[str, float]:
    """Seconds of the parts of a cell, and of the same regressions in scikit-learn."""
    from counterpoise.environments import SyntheticBandit
    from counterpoise.environments.synthetic import polynomial
    from paper.ope import ours as our_estimators
    from paper.ope import published
    from paper.regressions import fit_reward_model, fit_target

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


def regressions(n: int) -> dict[str, float]:
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


def dense_cell(n: int) -> dict[str, float]:
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


WAYS = {"ours": our_cell, "profiled": profile_cell, "scikit_learn": regressions, "dense": dense_cell}


def measure(way: str, n: int, times: int) -> dict[str, Any]:
    """Best time of a few runs in a fresh process with one thread, and its peak resident memory."""
    settings = {**os.environ, **ONE_THREAD, **(TUNED if way in ("dense", "scikit_learn") else {})}
    return json.loads(SUITE.run_apart("_cell", "--way", way, "--n", n, "--times", times, env=settings))


@SUITE.experiment("_cell", is_hidden=True)
def print_cell(*, way: str, n: int, times: int) -> None:
    """One way, in this process."""
    from counterpoise.environments.synthetic import polynomial

    warnings.simplefilter("ignore")
    import sklearn.linear_model  # noqa: F401  imports are not what is measured

    import paper.ope  # noqa: F401

    best, answer = float("inf"), {}
    for _ in range(times):
        polynomial.cache_clear()
        began = time.process_time()
        answer = WAYS[way](n)
        best = min(best, time.process_time() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": best, "peak_mb": peak, "answer": answer}))


@SUITE.experiment("cell", n=[100], profile=1000, times=1)
def time_cell(*, n: list[int] = (100,), profile: int = 1_000_000, times: int = 5) -> None:
    """One evaluation cell with 100 actions: ours against the dense way of the paper's code, side by side.

    The dense way is written here from the recipe: every batch expands the one-hot actions into all C(104, 4) monomials (a
    100 × 4,598,126 matrix), keeps n × 100 matrices of rewards and probabilities, and fits scikit-learn's regressions on dense arrays. Both
    report the same five squared errors, which are compared first. Each measurement is a process of its own with one thread; the dense one
    gets malloc settings that spare it page faults. Seconds are of the processor: with one thread on a quiet machine that is the time on
    the clock, and on a shared one it still means something. `--n 100 1000000` takes 12 GB; `--profile` rows are taken apart, ours only.
    """
    print(f"load average at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    head(f"{ACTIONS} actions", "ours", "dense", "ratio")
    for rows in n:
        repeats = times if rows < 10_000 else 1
        mine, theirs = measure("ours", rows, repeats), measure("dense", rows, max(1, repeats // 2))
        for name, error in theirs["answer"].items():
            np.testing.assert_allclose(mine["answer"][name], error, rtol=1e-8)
        faster, lighter = theirs["seconds"] / mine["seconds"], theirs["peak_mb"] / mine["peak_mb"]
        ours, dense = (f"{way['seconds']:.3f} s, {way['peak_mb']:,.0f} MB" for way in (mine, theirs))
        row(f"n = {rows:,}", ours, dense, f"{faster:.1f} times faster, {lighter:.1f} times lighter")
    whole = measure("ours", profile, 1)
    print(f"\nn = {profile:,}: ours {whole['seconds']:.2f} s, {whole['peak_mb']:.0f} MB, of which\n")
    parts = measure("profiled", profile, 1)["answer"]
    head("part", "seconds", "share")
    for name, seconds in parts.items():
        row(name, f"{seconds:.2f}", f"{seconds / sum(parts.values()):.0%}")
    theirs = measure("scikit_learn", profile, 1)
    own = parts["regression of the target policy"] + parts["regression of the rewards"]
    took = theirs["answer"]["two regressions"]
    print(
        f"\nThe two regressions in scikit-learn: {took:.2f} s ({took / own:.1f} times ours), {theirs['peak_mb']:,.0f} MB."
    )


# -- learning curves --------------------------------------------------------------------------------------------------------


@SUITE.experiment("curve", seeds=2, epochs=2)
def time_curve(*, seeds: int = 32, epochs: int = 100) -> None:
    """All seeds of one mini-batch curve (250,000 rows) on the GPU, as a CUDA graph and without it; the two must agree.

    The first figure includes capturing the graph and the test value after every epoch: everything but drawing the log.
    """
    import torch

    from paper.learning import N_ACTIONS, World
    from paper.many import Run, train_many

    if not torch.cuda.is_available():
        print("There is no GPU here.")
        return
    world = World(250_000, "cuda")
    head("objective", "how", "seeds × epochs", "seconds", "peak GiB", "value")
    for objective in ("beta_ips", "ips", "running_beta_ips"):
        runs = [Run(objective, 0.01, seed) for seed in range(seeds)]
        train_many(world.train, N_ACTIONS, runs, epochs=1, value=world.test)  # sets up the libraries
        for count, is_graph in ((epochs, True), (max(epochs // 20, 1), False)):
            torch.cuda.reset_peak_memory_stats()
            curves = train_many(world.train, N_ACTIONS, runs, epochs=count, value=world.test, graph=is_graph)
            peak = torch.cuda.max_memory_allocated() / 2**30
            value = f"{curves.value[:, -1].mean():.4f}"
            how = "graph" if is_graph else "eager"
            row(objective, how, f"{seeds} × {count}", f"{curves.seconds:.2f}", f"{peak:.1f}", value)
        graph, eager = (
            train_many(world.train, N_ACTIONS, runs[:4], epochs=2, value=world.test, graph=is_graph)
            for is_graph in (True, False)
        )
        apart = (graph.weights - eager.weights).abs().max().item()
        row(objective, f"weights differ by at most {apart:.2g} after 2 epochs", "", "", "", "")


if __name__ == "__main__":
    sys.exit(SUITE.main())
