"""Reward models, propensity models and baselines from columns: what they buy, what they cost, and what is left when they are wrong.

python benchmarks/models.py --quick
python benchmarks/models.py auto --seeds 20 --cells grid
python benchmarks/models.py size --peer /path/to/obp/bin/python
"""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from bench import Suite, head, in_processes, row, share, slack
from peer.obp import DIMENSION, LinearPolicy, clicks_of_many, estimator, peak
from scipy import special
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsRegressor
from sklearn.tree import DecisionTreeRegressor
from worlds import Floats, softmax

import counterpoise as cp
from counterpoise.environments import ClassificationBandit, Feedback, SyntheticBandit
from counterpoise.estimators import beta_ips, context_ips, lift
from counterpoise.evaluation.sensitivity import Sensitivity
from counterpoise.models.fits import Joint
from counterpoise.moments import Moments
from paper.ope import published
from paper.regressions import fit_reward_model, fit_target

SUITE = Suite(__file__, __doc__)


# -- what cross-fitting buys ------------------------------------------------------------------------------------------------


SIX = 6
SLOPES = np.stack([np.arange(SIX) / 3, np.cos(np.arange(SIX))])
MODEL_PARTS = {"reward": "r", "propensity": "p", "action": "a"}


class SlopePolicy:
    """A softmax of two numbers."""

    classes_ = np.arange(SIX)

    def __init__(self, slope):
        self.slope = slope

    def predict_proba(self, table):
        scores = np.exp(self.slope * (np.asarray(table)[:, :2].astype(float) @ SLOPES))
        return scores / scores.sum(axis=1, keepdims=True)


def draw_clicks(n, seed):
    """A log of clicks, and the expected value of the target over all contexts like these."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 2))
    propensities = SlopePolicy(0.3).predict_proba(x)
    action = (propensities.cumsum(axis=1) > random.random(n)[:, None]).argmax(axis=1)
    reward = random.random(n) < chances(x)[np.arange(n), action]
    noise = random.normal(size=n)
    at = propensities[np.arange(n), action]
    return pl.DataFrame({"x": x[:, 0], "y": x[:, 1], "noise": noise, "a": action, "r": reward, "p": at})


def chances(x):
    return 1 / (1 + np.exp(0.5 - 0.8 * x[:, :1] * np.sin(np.arange(SIX)) - 0.5 * x[:, 1:]))


def true_value():
    x = np.random.default_rng(10**6).normal(size=(2_000_000, 2))
    return float((SlopePolicy(1.0).predict_proba(x) * chances(x)).sum(axis=1).mean())


def in_sample(log, step, model):
    """DR with a model that was fitted on the rows it predicts."""
    x, codes = step.context.numbers(log, is_native=step.design.is_native), step.design.actions.codes(log["a"])
    r = log["r"].cast(pl.Float64).to_numpy()
    fit = Joint(model.fit(step.design.pairs(x, codes), r), step.design)
    table = SlopePolicy(1.0).predict_proba(log.select("x", "y").to_numpy())
    v = (table * fit.table(x, step.design.actions.codes(pl.Series(range(SIX))))).sum(axis=1)
    w = table[np.arange(len(r)), log["a"].to_numpy()] / log["p"].to_numpy()
    return float((v + w * (r - fit.pairs(x, codes))).mean())


class Noise:
    """A model of the third column of the context alone, which has nothing to do with the reward."""

    def __init__(self, inner):
        self.inner = inner

    def get_params(self, deep=True):
        return {"inner": self.inner}

    def set_params(self, **given):
        self.inner = given.get("inner", self.inner)
        return self

    def fit(self, table, rewards):
        self.inner.fit(np.asarray(table)[:, 2:], rewards)
        return self

    def predict(self, table):
        return self.inner.predict(np.asarray(table)[:, 2:])


@SUITE.experiment("cross-fitting", runs=4)
def check_cross_fitting(*, runs: int = 1_000) -> None:
    """What cross-fitting buys, on simulated logs whose truth is known.

    Is DR unbiased at n = 500 with a model that remembers its rows (z is the mean error over its Monte Carlo error); how often do 95 %
    intervals cover at n = 2,000; and what does a useless model cost `optimal_dr`.
    """
    value, context = true_value(), ["x", "y"]
    errors: dict[str, list[float]] = {"dr": [], "optimal_dr": [], "dr in sample": []}
    for seed in range(runs):
        log, model = draw_clicks(500, seed), DecisionTreeRegressor(min_samples_leaf=2, random_state=0)
        result = cp.evaluate(log, **MODEL_PARTS, context=context, target={"new": SlopePolicy(1.0)}, model=model)
        for name in ("dr", "optimal_dr"):
            errors[name].append(result["new", name].value - value)
        errors["dr in sample"].append(in_sample(log, result.question.model, model) - value)
    head("n = 500", "mean error", "z", "standard deviation")
    for name, off in errors.items():
        z = np.mean(off) / (np.std(off) / np.sqrt(runs))
        row(f"`{name}`", f"{np.mean(off):+.5f}", f"{z:+.1f}", f"{np.std(off):.4f}")
    covered = dict.fromkeys(("dr", "optimal_dr", "sndr"), 0)
    useless: dict[str, list[float]] = {"optimal_dr": [], "beta_ips": []}
    for seed in range(runs):
        log = draw_clicks(2_000, 10**7 + seed)
        good = cp.evaluate(
            log, **MODEL_PARTS, context=context, target={"new": SlopePolicy(1.0)}, model=LogisticRegression()
        )
        for name in covered:
            covered[name] += value in good["new", name].interval
        # a model that is given the context, but fitted to nothing but noise
        bad = cp.evaluate(
            log,
            **MODEL_PARTS,
            context=["x", "y", "noise"],
            target={"new": SlopePolicy(1.0)},
            model=Noise(KNeighborsRegressor(3)),
        )
        for name, off in useless.items():
            off.append(bad["new", name].value - value)
    print()
    head("n = 2,000", "95 % intervals that cover")
    for name, count in covered.items():
        row(f"`{name}`", f"{share(count, runs)} ± {slack(count / runs, runs, 1):.1%}")
    square = {name: np.square(off) for name, off in useless.items()}
    ratio = np.sqrt(square["optimal_dr"].mean() / square["beta_ips"].mean())
    spread = (
        np.std(square["optimal_dr"] - square["beta_ips"] * ratio**2) / np.sqrt(runs) / square["beta_ips"].mean() / 2
    )
    print(f"\nA useless model: the error of `optimal_dr` is {ratio:.4f} ± {spread:.4f} times that of `beta_ips`.")


# -- reward models at size --------------------------------------------------------------------------------------------------


def evaluate_with(name, rows, actions, samples):
    import counterpoise as cp

    x, action, propensity, reward, new = clicks_of_many(rows, actions)
    log = {f"x{k}": x[:, k] for k in range(DIMENSION)} | {"a": action, "p": propensity, "r": reward}
    before, start, cpu = peak(), time.perf_counter(), time.process_time()
    result = cp.evaluate(
        log, reward="r", propensity="p", action="a", context=[f"x{k}" for k in range(DIMENSION)],
        target={"new": LinearPolicy(new)}, model=estimator(name), value_samples=samples,
    )  # fmt: skip
    found = {name: result["new", name].value for name in ("ips", "dm", "dr", "optimal_dr")}
    return {
        "seconds": time.perf_counter() - start,
        "cpu": time.process_time() - cpu,
        "peak_gb": peak(),
        "log_gb": before,
        **found,
        "r2": result.model.r2,
    }


@SUITE.experiment("size", rows=5000, models=["logistic"])
def time_models(
    *,
    rows: int = 1_000_000,
    peer: Path | None = None,
    models: list[str] = ("logistic", "boosted"),
    peer_models: list[str] = ("logistic",),
) -> None:
    """Reward models at size: fit, predict and estimate a log with 100 actions (1,000 by sampling), beside the Open Bandit Pipeline.

    `--peer` is a Python that has the Pipeline. Every case runs in a process of its own, which reports its seconds, those of the processor,
    and the most memory it held. On a machine that others use, set OMP_NUM_THREADS=1 and compare the processor's. The log is made in that
    process, and its own memory and time are not counted.
    """
    for name in models:
        for actions, samples in ((100, 0), (100, 10), (1_000, 10)):
            words = ("--name", name, "--rows", int(rows), "--actions", actions, "--samples", samples)
            _print_case("ours", name, int(rows), actions, samples, json.loads(SUITE.run_apart("_size", *words)))
        if peer and name in peer_models:
            python = Path(shutil.which(peer) or peer).absolute()  # it runs in another folder
            words = list(map(str, (python, "-m", "peer.obp", "model", name, int(rows), 100)))
            done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
            answer = {"error": done.stderr.strip().splitlines()[-1]} if done.returncode else json.loads(done.stdout)
            _print_case("theirs", name, int(rows), 100, 0, answer)


def _print_case(who: str, name: str, rows: int, actions: int, samples: int, answer: dict[str, Any]) -> None:
    numbers = ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in answer.items()
    )
    print(f"{who}, {name}, {rows:,} rows, {actions:,} actions, {samples or 'no'} samples: {numbers}", flush=True)


@SUITE.experiment("_size", is_hidden=True)
def print_size(*, name: str, rows: int, actions: int, samples: int) -> None:
    """One case."""
    print(json.dumps(evaluate_with(name, rows, actions, samples or None)))


# -- propensities that were not logged --------------------------------------------------------------------------------------


PROPENSITY_ESTIMATORS = ("beta_ips", "ips", "snips", "lift")
NUMBERS = ("x0", "x1", "x2")


class PropensityWorld:
    """Softmax policies of three features and a constant, and clicks that depend on context and action."""

    def __init__(self, actions, scale=0.4, seed=1):
        random = np.random.default_rng(seed)
        self.old, self.new, self.clicks = (random.normal(0, scale, (4, actions)) for _ in range(3))
        x = self.contexts(np.random.default_rng(0), 400_000)
        rates = 1 / (1 + np.exp(-x @ self.clicks))
        self.value = float((softmax(x @ self.new) * rates).sum(axis=1).mean())
        self.lift = self.value - float((softmax(x @ self.old) * rates).sum(axis=1).mean())

    @staticmethod
    def contexts(random, n):
        return np.column_stack([np.ones(n), random.normal(size=(n, 3))])

    def log(self, n, seed):
        """A log of so many rows, with the true propensities in it."""
        random = np.random.default_rng(seed)
        x = self.contexts(random, n)
        p, t = softmax(x @ self.old), softmax(x @ self.new)
        action = np.minimum((p.cumsum(axis=1) < random.random(n)[:, None]).sum(axis=1), p.shape[1] - 1)
        rate = 1 / (1 + np.exp(-(x * self.clicks[:, action].T).sum(axis=1)))
        rows = np.arange(n)
        columns = {"click": (random.random(n) < rate).astype(float), "item": action, "p": p[rows, action]}
        return columns | {"new": t[rows, action]} | {name: x[:, k + 1] for k, name in enumerate(NUMBERS)}


def propensity_model(name, error):
    """The propensity model that a name stands for; "shallow" are a few small trees, which are quickly fitted again."""
    if name != "shallow":
        return cp.models.Propensity(name, error=error)
    from sklearn.ensemble import HistGradientBoostingClassifier

    return cp.models.Propensity(HistGradientBoostingClassifier(max_iter=20, max_leaf_nodes=6), error=error)


def propensity_runs(world, n, runs, model, first=0):
    """Bias, spread, mean error and coverage of every estimator, by how propensities are known."""
    found = {}
    for run in range(first, first + runs):
        log = world.log(n, 1_000 + run)
        estimated = cp.evaluate(log, reward="click", propensity=model, action="item", context=NUMBERS, target="new")
        logged = cp.evaluate(log, reward="click", propensity="p", target="new")
        plain = [cp.evaluate(one.moments, interval="normal") for one in (estimated, logged)]
        carrying = logged.diagnostics().carrying_rows
        for name in PROPENSITY_ESTIMATORS:
            truth = world.lift if name == "lift" else world.value
            one, other = estimated["new", name], logged["new", name]
            row = [one.value - truth, one.stderr, truth in one.interval, other.value - truth, truth in other.interval]
            found.setdefault(name, []).append(
                [*row, *(truth in each["new", name].interval for each in plain), carrying]
            )
    return {name: np.array(rows, dtype=float) for name, rows in found.items()}


def show_runs(actions, n, found):
    for name, rows in found.items():
        bias, error, covers, other, other_covers, plain, other_plain, carrying = rows.T
        noise = 100 * math.sqrt(0.05 * 0.95 / len(rows))
        print(
            f"{actions:>3} actions {n:>6,} rows {name:>9}: bias {bias.mean():+.4f}  spread {bias.std():.4f}  "
            f"mean error {error.mean():.4f}  covers {100 * covers.mean():.1f} % (± {noise:.1f}), normal {100 * plain.mean():.1f} %; "
            f"logged: spread {other.std():.4f}, covers {100 * other_covers.mean():.1f} %, normal {100 * other_plain.mean():.1f} %; "
            f"{np.median(carrying):.0f} rows carry the variance",
            flush=True,
        )


def confounded(n=200_000, strength=1.0, seed=0):
    """A log whose policy saw something that the log did not keep; the truth, and the odds ratio that it stands for."""
    random = np.random.default_rng(seed)
    hidden, x = random.random(n) < 0.5, random.normal(size=n)
    p = 1 / (1 + np.exp(-(0.5 * x + strength * (hidden - 0.5))))  # of action 1
    action = (random.random(n) < p).astype(int)
    rate = 1 / (1 + np.exp(-(-1 + 0.5 * x + 0.5 * action + 1.5 * (hidden - 0.5))))
    click = (random.random(n) < rate).astype(float)
    best = 1 / (1 + np.exp(-(-0.5 + 0.5 * x + 1.5 * (hidden - 0.5))))
    log = {"click": click, "item": action, "x": x, "new": np.where(action == 1, 1.0, 0.0)}
    chances = np.stack([1 / (1 + np.exp(-(0.5 * x + strength * (h - 0.5)))) for h in (0, 1)])
    odds = chances / (1 - chances)
    mean = chances.mean(axis=0)
    gamma = float(np.maximum(odds / (mean / (1 - mean)), (mean / (1 - mean)) / odds).max())
    return log, float(best.mean()), gamma


def bounds(log, propensity, gamma):
    """The least and the largest self-normalized value if odds are off by up to Γ, for clicks of 0 and 1."""
    t, w, click = log["new"], log["new"] / propensity, log["click"] == 1
    ends = []
    for ours, others in ((1 / gamma, gamma), (gamma, 1 / gamma)):
        weight = t + np.where(click, ours, others) * (w - t)
        ends.append(float(weight[click].sum() / weight.sum()))
    return ends


@SUITE.experiment("propensities", runs=3, actions=[2], rows=[2000])
def check_propensities(
    *,
    runs: int = 400,
    first: int = 0,
    actions: list[int] = (2, 5, 20),
    rows: list[int] = (2_000, 10_000),
    scale: float = 0.4,
    model: str = "logistic",
    error: str = "scores",
) -> None:
    """Propensities that were not logged: how often intervals cover where the model is right.

    The logging policy is a softmax of three context features, and so is the target; `--scale` says how sharp both are. Every log is
    evaluated with the logged propensities, with estimated ones, and with both by the normal interval: Student's, the default, is wider
    where few rows carry the variance, whoever says what the propensities are. `--model` is logistic, boosted or shallow (a few small
    trees), `--error` scores or refit, and `--first` the first log, to go on where another run ended. Above 5,000 rows, half of the runs.
    """
    for count in actions:
        world = PropensityWorld(count, scale)
        for n in rows:
            logs = runs if n < 5_000 else max(runs // 2, 1)
            show_runs(count, n, propensity_runs(world, n, logs, propensity_model(model, error), first))


# -- propensities of Thompson sampling: how long they take, and how far off they are ---------------------------------------


@SUITE.experiment("thompson", rows=2000)
def thompson(*, rows: int = 100_000, arms: int = 10) -> bool:
    """Propensities of Thompson sampling for rows that all differ and for 100 different rows, and their error where it is known."""
    random = np.random.default_rng(0)
    views = random.integers(10, 2000, (rows, arms))
    clicks = random.binomial(views, random.uniform(0.02, 0.08, arms))
    means, sds = clicks / views, np.sqrt((clicks + 1.0) / views**2)
    head("rows", "arms", "what", "seconds", "least", "largest error of the sum")
    is_kept = True
    batches = np.arange(rows) % 100
    kinds = {
        "thompson_beta": (cp.propensities.thompson_beta, 1.0 + clicks, 1.0 + views - clicks),
        "thompson_normal": (cp.propensities.thompson_normal, means, sds),
    }
    for name, (work, first, second) in kinds.items():
        for top, which, said in (
            (1, slice(None), ""),
            (3, slice(None), ", top=3"),
            (1, batches, ", 100 different rows"),
        ):
            start = time.perf_counter()
            chances = work(first[which], second[which], top)
            seconds = time.perf_counter() - start
            error = float(np.abs(chances.sum(axis=1) - top).max())
            row(f"{rows:,}", arms, name + said, f"{seconds:.1f}", f"{chances.min():.1e}", f"{error:.1e}")
            is_kept &= error < 1e-7
    distance = np.linspace(0.0, 50.0, 501)
    pairs = cp.propensities.thompson_normal(np.stack([0 * distance, distance], axis=1), np.ones((501, 2)))
    off = float(np.max(np.abs(pairs[:, 0] / special.ndtr(-distance / math.sqrt(2.0)) - 1.0)))
    a, b = 10.0 ** random.uniform(-2, 6, (2, 1000))
    ones = np.ones(1000)
    uniform = cp.propensities.thompson_beta(np.stack([a, ones], axis=1), np.stack([b, ones], axis=1))[:, 0]
    off_beta = float(np.max(np.abs(uniform / (a / (a + b)) - 1.0)))
    print(f"Largest relative error: two normal arms, down to {pairs[:, 0].min():.0e}: {off:.1e};", end=" ")
    print(f"Beta(α, β) against a uniform draw, α and β from 0.01 to 10⁶: {off_beta:.1e}.")
    return is_kept and max(off, off_beta) < 1e-6


@SUITE.experiment("confounder", rows=5000)
def check_confounder(*, rows: int = 200_000) -> None:
    """What a confounder that was left out does to estimated propensities, and the Γ whose bounds contain the truth."""
    head("strength", "truth", "estimate", "interval", "Γ that contains the truth", "true odds are off by up to")
    for strength in (0.0, 0.5, 1.0, 2.0):
        log, truth, gamma = confounded(int(rows), strength)
        result = cp.evaluate(log, reward="click", propensity="model", action="item", context="x", target="new")
        estimate = result["new", "snips"]
        frame = result.question.propensity_model.complete(pl.DataFrame(log), result.question, "the log", 0)
        p = frame.get_column("counterpoise propensity").to_numpy()
        low, high = 1.0, 20.0
        for _ in range(40):
            middle = math.sqrt(low * high)
            least, most = bounds(log, p, middle)
            low, high = (low, middle) if least <= truth <= most else (middle, high)
        interval = f"{estimate.interval.lower:.4f} to {estimate.interval.upper:.4f}"
        row(strength, f"{truth:.4f}", f"{estimate.value:.4f}", interval, f"{high:.2f}", f"{gamma:.2f}")


# -- bounds on what was left out --------------------------------------------------------------------------------------------


TRAIT_ROWS, TRAIT_LOGS, TRUTH = 20_000, 20, 0.5
TRAIT_EFFECTS = {1.0: "the reward is the trait", 0.6: "it has 60 % of it", 0.3: "it has 30 % of it"}


def log_of_a_trait(gamma: float, effect: float, seed: int) -> dict[str, np.ndarray]:
    """A log of two actions whose policy saw a trait that was not logged: with it the odds of action 1 are Γ, without it 1/Γ.

    Half of the rows have the trait, so that both actions have a propensity of 1/2 as far as the log knows. Rewards come of the trait,
    and not of the action: always taking action 1 would earn 1/2.
    """
    random = np.random.default_rng(seed)
    trait = random.random(TRAIT_ROWS) < 0.5
    action = random.random(TRAIT_ROWS) < np.where(trait, gamma / (1 + gamma), 1 / (1 + gamma))
    reward = random.random(TRAIT_ROWS) < 0.5 + effect * (trait - 0.5)
    return {"reward": reward.astype(float), "propensity": np.full(TRAIT_ROWS, 0.5), "target": action.astype(float)}


def gamma_needed(found: Sensitivity) -> float:
    """The least Γ whose bounds contain the truth."""
    low, high = 1.0, 100.0
    while high / low > 1.0001:
        middle = math.sqrt(low * high)
        lower, upper = found.bounds(middle).value
        low, high = (low, middle) if lower <= TRUTH <= upper else (middle, high)
    return high


@SUITE.experiment("sensitivity", logs=1)
def draw_sensitivity(*, logs: int = TRAIT_LOGS, picture: Path | None = None) -> None:
    """How wrong odds must be assumed to be for the bounds to contain the truth, with a trait left out.

    `--picture docs/figures/sensitivity.png` draws the figure of the documentation.
    """
    worlds = np.array([1.2, 1.5, 2.0, 2.5, 3.0])
    needed = {
        effect: np.array(
            [
                [gamma_needed(cp.sensitivity(**log_of_a_trait(gamma, effect, seed))) for seed in range(logs)]
                for gamma in map(float, worlds)
            ]
        )
        for effect in TRAIT_EFFECTS
    }
    head("least Γ whose bounds contain the truth, at Γ =", *map(str, worlds))
    for effect, each in needed.items():
        row(TRAIT_EFFECTS[effect], *(f"{gammas.mean():.3f} ± {gammas.std():.3f}" for gammas in each))
    if picture:
        _draw_sensitivity(worlds, needed, logs, picture)


def _draw_sensitivity(worlds: Floats, needed: dict[float, Floats], logs: int, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    sensitivity = cp.sensitivity(**log_of_a_trait(2.0, 0.6, 0))
    at = np.geomspace(1, 3, 40)
    bounds_at = [sensitivity.bounds(float(gamma)) for gamma in at]
    ends = [list(end) for end in zip(*(each.value_interval for each in bounds_at), strict=True)]
    left.fill_between(at, ends[0], ends[1], alpha=0.2, linewidth=0, label="with sampling, 95 %")
    for side in (0, 1):
        left.plot(at, [each.value[side] for each in bounds_at], color="C0", label=None if side else "bounds")
    left.axhline(TRUTH, color="black", linestyle="--", linewidth=1, label="truth")
    left.axvline(2.0, color="gray", linestyle=":", linewidth=1, label="Γ of the trait left out")
    left.set(xlabel="Γ", ylabel="value of always taking action 1", title="one log; the reward has 60 % of the trait")
    left.legend(frameon=False, fontsize="small")
    for effect, each in needed.items():
        mean, spread = each.mean(axis=1), 2 * each.std(axis=1)
        right.errorbar(worlds, mean, spread, fmt="o-", markersize=4, linewidth=1, label=TRAIT_EFFECTS[effect])
    right.plot([1, 3], [1, 3], color="black", linestyle="--", linewidth=1)
    right.set(
        xlabel="Γ of the trait left out",
        ylabel="least Γ whose bounds contain the truth",
        title=f"{logs} logs each of {TRAIT_ROWS:,} rows",
    )
    right.legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=110)


# -- `auto` against the best of IPS, SNIPS, DR and β-IPS --------------------------------------------------------------------


PAPER_SIZES = (100, 278, 774, 2154, 5994, 16681, 46415)
OTHER_SIZES = (100, 278, 774, 2154, 5994)
MANY = 5994  # rows, above which a fifth of the seeds is run
RIVALS = ("DR", "IPS", "SNIPS", "beta-IPS")
OURS = ("auto", "optimal_dr", "beta_ips", "dm")
SETS = ("iris", "wine", "breast_cancer", "digits", "generated")
WEAK = 60  # rows that the logging policy of a classification set has learnt from


class AutoCell(NamedTuple):
    """Which kind of world, its parameters, and how many rows."""

    kind: str
    temperature: float
    n_actions: int
    n: int

    def __str__(self) -> str:
        logging = f"T = {self.temperature:g}, " if self.kind != "uniform logging" else ""
        return f"{self.kind}, {logging}{self.n_actions} actions, n = {self.n:,}"


class AutoRun(NamedTuple):
    """What one seed of a cell gave."""

    cell: AutoCell
    seed: int
    truth: float
    rivals: tuple[float, ...]
    ours: tuple[float, ...]
    verdict: str
    covered: bool
    plain_covered: bool
    width: float


def auto_cells(which: str) -> list[AutoCell]:
    """The paper's cells up to n = 46,415, or those outside its grid."""
    temperatures = (-5.0, -1.0, 1.0, 5.0)
    if which == "grid":
        return [AutoCell("paper", *rest) for rest in product(temperatures, (25, 50, 75, 100), PAPER_SIZES)]
    found = [AutoCell("paper", *rest) for rest in product(temperatures, (10, 500), OTHER_SIZES)]
    found += [AutoCell("continuous", *rest) for rest in product((-1.0, 1.0), (25, 100), OTHER_SIZES)]
    found += [AutoCell("uniform logging", 0.0, *rest) for rest in product((25, 100), OTHER_SIZES)]
    return found + [
        AutoCell(name, temperature, len(np.unique(data_set(name)[1])), n)
        for name, temperature, n in product(SETS, (0.0, 0.5), OTHER_SIZES)
    ]


class AutoRows(NamedTuple):
    """A log of the test batch, what the model says of it, and the truth."""

    log: Feedback
    target: Any
    model_reward: Any
    model_value: Any
    truth: float


def draw_batches(cell: AutoCell, seed: int) -> AutoRows:
    """Draw a training and a test batch, fit the target and the model on the first, and look at the second."""
    training, test = batches(cell, seed)
    learnt = training
    if cell.kind == "continuous":
        learnt = replace(training, reward=np.maximum(training.reward - np.median(training.reward), 0.0))
    policy = fit_target(learnt)
    model = fit_ridge(training) if cell.kind == "continuous" else fit_reward_model(training)
    action = policy(test.context)
    return AutoRows(
        test,
        (action == test.action).astype(float),
        model(test.context, test.action),
        model(test.context, action),
        test.value(action),
    )


def batches(cell: AutoCell, seed: int) -> tuple[Feedback, Feedback]:
    """The two batches of a cell; those of a classification set have different rows of it."""
    if cell.kind in SETS:
        context, label = data_set(cell.kind)
        halves = [ClassificationBandit(context[k::2], label[k::2], seed=2 * seed + k) for k in (0, 1)]
        logging = weak_logging(halves[0], cell.temperature) if cell.temperature else None
        first, second = (half.draw(cell.n, logging=logging) for half in halves)
        return first, second
    options: dict[str, Any] = {"continuous": {"reward": "continuous"}, "uniform logging": {"logging": "uniform"}}
    world = SyntheticBandit(
        cell.n_actions, inverse_temperature=cell.temperature, seed=seed, **options.get(cell.kind, {})
    )
    return world.draw(cell.n), world.draw(cell.n)


def weak_logging(world: ClassificationBandit, temperature: float) -> Callable[[Any], Any]:
    """A policy that learnt from few rows, softened, and that takes one label in five at random."""
    weak = fit_target(world.draw(WEAK))

    def probabilities(context: Any) -> Any:
        score = np.full((len(context), world.n_actions), -30.0)
        score[:, weak.actions] = context @ weak.coefficients[:, :-1].T + weak.coefficients[:, -1]
        mass = np.exp(temperature * (score - score.max(axis=1, keepdims=True)))
        return 0.8 * mass / mass.sum(axis=1, keepdims=True) + 0.2 / world.n_actions

    return probabilities


@cache
def data_set(name: str) -> tuple[Any, Any]:
    """Standardized contexts and labels, in a fixed random order so that both halves have every label."""
    from sklearn import datasets

    if name == "generated":
        context, label = datasets.make_classification(3000, 12, n_informative=8, n_classes=6, random_state=0)
    else:
        context, label = getattr(datasets, f"load_{name}")(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(label))
    spread = context.std(axis=0)
    return ((context - context.mean(axis=0)) / np.where(spread > 0, spread, 1.0))[order], label[order]


def fit_ridge(log: Feedback) -> Callable[[Any, Any], Any]:
    """Least squares of the reward on [context, one-hot action], with a penalty of 1 on all but the intercept."""
    d, k = log.context.shape[1], log.n_actions
    x = np.hstack([log.context, np.eye(k)[log.action], np.ones((len(log), 1))])
    penalty = np.diag([1.0] * (d + k) + [0.0])
    solved = np.linalg.solve(x.T @ x + penalty, x.T @ log.reward)
    return lambda context, action: context @ solved[:d] + solved[d:-1][action] + solved[-1]


def run_seed(cell: AutoCell, seed: int) -> AutoRun:
    """One seed of one cell."""
    rows = draw_batches(cell, seed)
    log = rows.log
    found = cp.evaluate(
        reward=log.reward,
        propensity=log.propensity,
        target=rows.target,
        model_reward=rows.model_reward,
        model_value=rows.model_value,
        estimator=list(OURS),
    )
    values = published(rows.target / log.propensity, log.reward, rows.model_reward, rows.model_value)
    interval, plain = (found["target", name].interval for name in ("auto", "optimal_dr"))
    return AutoRun(
        cell,
        seed,
        rows.truth,
        tuple(values[name][0] for name in RIVALS),
        tuple(found["target", name].value for name in OURS),
        found.verdict().verdict,
        rows.truth in interval,
        rows.truth in plain,
        interval.width,
    )


@dataclass(frozen=True)
class Ratio:
    """A cell's mean squared error over the oracle's, with its paired Monte Carlo error."""

    cell: AutoCell
    value: float
    stderr: float

    @property
    def low(self) -> float:
        """What is left of it at 95 %."""
        return self.value - 1.96 * self.stderr


def error_ratios(runs: Iterable[AutoRun], name: str = "auto") -> list[Ratio]:
    """The ratio of every cell; cells in which the oracle makes no error at all have none."""
    by_cell: dict[AutoCell, list[AutoRun]] = {}
    for one in runs:
        by_cell.setdefault(one.cell, []).append(one)
    found = []
    for cell, members in by_cell.items():
        truth = np.array([one.truth for one in members])
        rivals = np.square(np.array([one.rivals for one in members]) - truth[:, None])
        values = np.array([one.ours[OURS.index(name)] for one in members])
        mine = np.square(np.nan_to_num(values) - truth)  # without overlap the published estimators answer 0
        odd = np.array([one.seed % 2 == 1 for one in members])
        best = {half: rivals[odd != half].mean(axis=0).argmin() for half in (False, True)}
        oracle = np.where(odd, rivals[:, best[True]], rivals[:, best[False]])
        if oracle.mean() > 0:
            ratio = float(mine.mean() / oracle.mean())
            spread = float(np.sqrt(np.square(mine - ratio * oracle).sum()) / oracle.sum())
            found.append(Ratio(cell, ratio, spread))
    return found


def print_figures(title: str, runs: list[AutoRun], worst: int) -> None:
    """Print the three figures, the worst cells, and the coverage."""
    print(f"\n## {title}: {len({one.cell for one in runs})} cells, {len(runs):,} logs\n")
    print("| estimator | geometric mean | at most 1.15 | … beyond Monte Carlo error | largest | above 1.5 beyond it |")
    print("|---|---|---|---|---|---|")
    for name in ("auto", "beta_ips", "optimal_dr", "dm"):
        found = error_ratios(runs, name)
        mean = math.exp(np.mean([math.log(max(one.value, 1e-300)) for one in found]))
        within = [np.mean([getattr(one, part) <= 1.15 for one in found]) for part in ("value", "low")]
        print(
            f"| `{name}` | {mean:.3f} | {within[0]:.1%} | {within[1]:.1%} | {max(one.value for one in found):.2f} | "
            f"{sum(one.low > 1.5 for one in found)} |"
        )
    print("\nThe largest ratios of `auto`:\n")
    for one in sorted(error_ratios(runs), key=lambda one: -one.value)[:worst]:
        print(f"- {one.cell}: {one.value:.2f} ± {one.stderr:.2f}")
    print("\nMean ratios of `auto` by n:\n")
    for n in sorted({one.cell.n for one in runs}):
        values = [one.value for one in error_ratios(runs) if one.cell.n == n]
        print(f"- n = {n:,}: {math.exp(np.mean(np.log(values))):.2f} (from {min(values):.2f} to {max(values):.2f})")
    print_coverage(runs)


def print_coverage(runs: list[AutoRun], fewest: int = 30) -> None:
    """Print how often the interval covers where the verdict is `ok`, together and by cell."""
    ok = [one for one in runs if one.verdict == "ok"]
    if not ok:
        return
    together = np.mean([(one.covered, one.plain_covered) for one in ok], axis=0)
    print(
        f"\nVerdict `ok` on {len(ok):,} of {len(runs):,} logs. Of these, the 95 % interval of `auto` covers {together[0]:.1%} and that of "
        f"`optimal_dr` {together[1]:.1%}."
    )
    by_cell: dict[AutoCell, list[tuple[bool, bool]]] = {}
    for one in ok:
        by_cell.setdefault(one.cell, []).append((one.covered, one.plain_covered))
    found = sorted((*np.mean(hits, axis=0), len(hits), cell) for cell, hits in by_cell.items() if len(hits) >= fewest)
    if not found:
        return
    errors = [math.sqrt(0.93 * 0.07 / count) for _, _, count, _ in found]
    beyond = sum(mine + 1.96 * error < 0.93 for (mine, *_), error in zip(found, errors, strict=True))
    print(
        f"Of {len(found)} cells with {fewest} such logs or more, {sum(one[0] < 0.93 for one in found)} are below 93 %, {beyond} of them by "
        "more than Monte Carlo error. The lowest:\n"
    )
    for (mine, plain, count, cell), error in list(zip(found, errors, strict=True))[:8]:
        print(f"- {cell}: {mine:.1%} ± {error:.1%} of {count} (`optimal_dr`: {plain:.1%})")


def run_task(task: list[tuple[AutoCell, int]]) -> list[AutoRun]:
    """The cells that share a world."""
    return [run_seed(cell, seed) for cell, seed in task]


def auto_tasks(cells: list[AutoCell], first: int, seeds: int) -> list[list[tuple[AutoCell, int]]]:
    """Cells that share their coefficients together, the large ones alone and first."""
    tasks: dict[Any, list[tuple[AutoCell, int]]] = {}
    for cell in cells:
        large = cell.n > MANY
        for seed in range(first, first + (max(seeds // 5, 2) if large else seeds)):
            tasks.setdefault((-cell.n if large else 0, seed, cell.kind, cell.n_actions), []).append((cell, seed))
    return [tasks[key] for key in sorted(tasks, key=lambda key: key[0])]


def save_runs(path: Path, runs: list[AutoRun]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(
            [*AutoCell._fields, "seed", "truth", *RIVALS, *OURS, "verdict", "covered", "optimal_dr_covered", "width"]
        )
        for one in sorted(runs):
            table.writerow([*one.cell, one.seed, one.truth, *one.rivals, *one.ours, *one[5:]])


@SUITE.experiment("auto", seeds=2, cells="outside", most=278)
def check_auto(
    *,
    seeds: int = 200,
    first_seed: int = 0,
    cells: str = "all",
    worst: int = 10,
    most: int = 10**9,
    csv_path: Path | None = None,
    processes: int = os.cpu_count() or 1,
) -> None:
    """`auto` against the best of IPS, SNIPS, DR and β-IPS: the paper's grid, and cells outside it.

    In every cell, the squared error of `auto` is divided by that of the best of the four published estimators, which is chosen on the
    other half of the seeds (even seeds judge it for odd ones, and the other way round). Every seed is a world of its own. Reward model and
    target policy are the paper's: logistic regressions on a training batch of the same size. Where rewards are continuous, the model is a
    ridge regression on the same inputs, and the target learns from rewards above their median.

    Three figures: the geometric mean of the ratios, the share of cells with a ratio of at most 1.15, and the largest ratio; the last two
    as they are and beyond their paired Monte Carlo error. And one more: how often the interval of `auto` covers the truth where the
    verdict is `ok`. Above n = 5,994, a fifth of the seeds. `--cells` is grid, outside or all, `--most` the largest n, and `--csv-path`
    writes every run to PATH-grid.csv and PATH-outside.csv.
    """
    for which in ("grid", "outside") if cells == "all" else (cells,):
        tasks = auto_tasks([cell for cell in auto_cells(which) if cell.n <= most], first_seed, seeds)
        runs = [run for several in in_processes(run_task, tasks, processes) for run in several]
        print_figures("The paper's grid" if which == "grid" else "Outside the grid", runs, worst)
        if csv_path:
            save_runs(csv_path.with_name(f"{csv_path.name}-{which}.csv"), runs)


# -- context baselines ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BaselineWorld:
    """Contexts, softmax policies of any sharpness, and rewards of which the context explains a share."""

    rows: int
    features: int
    share: float
    sharpness: float
    kind: str

    def draw(self, random: np.random.Generator, rows: int) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        """Contexts, weights and rewards, and the expected rewards of the target and of what it adds."""
        fixed = np.random.default_rng(7)
        logging, target = fixed.normal(size=(2, self.features, SIX)) / np.sqrt(self.features)
        slope, effect = np.ones(self.features) / np.sqrt(self.features), 0.15 * fixed.normal(size=SIX)
        x = random.normal(size=(rows, self.features))
        old, new = softmax(self.sharpness * x @ logging), softmax(self.sharpness * x @ target)
        action = np.minimum((old.cumsum(axis=1) < random.random((rows, 1))).sum(axis=1), SIX - 1)
        middle = np.sqrt(self.share) * (x @ slope)[:, None] + effect
        noise = np.sqrt(1 - self.share)
        at = np.arange(rows), action
        if self.kind == "binary":
            expected = 1 / (1 + np.exp(1.5 - 2 * middle))
            reward = (random.random(rows) < expected[at]).astype(float)
        else:
            expected, reward = middle, middle[at] + noise * random.normal(size=rows)
        if self.kind == "skewed":
            expected, reward = np.exp(middle + noise**2 / 2), np.exp(reward)
        return x, new[at] / old[at], reward, (new * expected).sum(axis=1), ((new - old) * expected).sum(axis=1)


BASELINE_WORLDS = [
    BaselineWorld(*size, share, sharpness, kind)
    for size, share, (sharpness, kind) in product(
        ((300, 5), (2000, 20), (10_000, 20)),
        (0.0, 0.3),
        ((0.2, "normal"), (0.5, "binary"), (1.0, "skewed"), (1.5, "normal"), (3.0, "binary")),
    )
]


def compare_baselines(world: BaselineWorld, runs: int) -> dict[str, Floats]:
    """Errors and standard errors by run: with a constant and with the context, of the value and of the lift."""
    _, _, _, value, more = world.draw(np.random.default_rng(99), 300_000)
    found = []
    for k in range(runs):
        x, w, r, _, _ = world.draw(np.random.default_rng([k, 1]), world.rows)
        log, plain = Moments.of(w, r, features={str(j): one for j, one in enumerate(x.T)}), Moments.of(w, r)
        found.append([beta_ips(plain), context_ips(log), lift(plain), lift(log)])
    truth = np.array([value.mean(), value.mean(), more.mean(), more.mean()])
    values = np.array([[one.value for one in row] for row in found])
    return {"error": values - truth, "stderr": np.array([[one.stderr for one in row] for row in found])}


def show_world(world: BaselineWorld, runs: int) -> tuple[float, float]:
    """One line of the table; returns the largest ratio of widths and of squared errors."""
    found = compare_baselines(world, runs)
    square, stderr = np.square(found["error"]), found["stderr"]
    widths = [stderr[:, k + 1] / stderr[:, k] for k in (0, 2)]
    errors = [square[:, k + 1].mean() / square[:, k].mean() for k in (0, 2)]
    noise = [(square[:, k + 1] - square[:, k]).std() / np.sqrt(runs) / square[:, k].mean() for k in (0, 2)]
    covered = [(square[:, k] <= np.square(1.96 * stderr[:, k])).mean() for k in range(4)]
    cells = [
        (f"{width.mean():.3f} (≤ {width.max():.3f})", f"{error:.3f} ± {mc:.3f}", f"{before:.3f} → {after:.3f}")
        for width, error, mc, before, after in zip(widths, errors, noise, covered[::2], covered[1::2], strict=True)
    ]
    name = f"{world.rows:,}, {world.features}, {world.share:.1f}, {world.sharpness:.1f}, {world.kind}"
    row(name, *(cell for several in cells for cell in several))
    return float(max(width.max() for width in widths)), max(errors)


def explained(share: float, runs: int, rows: int = 5_000) -> float:
    """How the interval of lift shrinks if the context explains a share of rewards, whatever the weights."""
    found = []
    for seed in range(runs):
        random = np.random.default_rng([seed, 2])
        x, w = random.normal(size=(rows, TWENTY)), random.choice([0.5, 1.5], rows)
        r = np.sqrt(share / TWENTY) * x.sum(axis=1) + np.sqrt(1 - share) * random.normal(size=rows)
        log = Moments.of(w, r, features={str(j): one for j, one in enumerate(x.T)})
        found.append(lift(log).stderr / lift(Moments.of(w, r)).stderr)
    return float(np.mean(found))


TWENTY = 20  # features


@SUITE.experiment("context", runs=3)
def check_context(*, runs: int = 100) -> bool:
    """What a context baseline buys, over 30 worlds: width, squared error and coverage, with a constant and with the context.

    No interval may be more than 1.03 times as wide as with a constant. What a baseline costs is in `speed.py context`.
    """
    parts = ("width", "squared error", "covered")
    head(
        "rows, features, share explained, sharpness, kind",
        *(f"{part}, {what}" for what in ("value", "lift") for part in parts),
    )
    worst = np.array([show_world(world, runs) for world in BASELINE_WORLDS]).max(axis=0)
    print(f"\nLargest ratio of widths in any run {worst[0]:.3f}, at most 1.03; of squared errors {worst[1]:.3f}.")
    ratio = explained(0.3, runs)
    print(
        f"\nWhere the context explains 0.3 of the reward, the interval of lift is {ratio:.3f} of a constant's; √0.7 = 0.837."
    )
    return bool(worst[0] <= 1.03)


if __name__ == "__main__":
    sys.exit(SUITE.main())
