"""What cross-fitting buys, on simulated logs whose truth is known.

    python benchmarks/model_simulation.py                # 1,000 logs of each kind, about ten minutes
    python benchmarks/model_simulation.py --runs 100

Three questions: is DR unbiased at n = 500 with a model that remembers its rows (z is the mean error over its Monte Carlo error); how often
do 95 % intervals cover at n = 2,000; and what does a useless model cost `optimal_dr`.
"""

from __future__ import annotations

import argparse

import numpy as np
import polars as pl
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsRegressor
from sklearn.tree import DecisionTreeRegressor

import counterpoise as cp
from counterpoise.models.fits import Joint

ACTIONS = 6
SLOPES = np.stack([np.arange(ACTIONS) / 3, np.cos(np.arange(ACTIONS))])
PARTS = {"reward": "r", "propensity": "p", "action": "a"}


class Policy:
    """A softmax of two numbers."""

    classes_ = np.arange(ACTIONS)

    def __init__(self, slope):
        self.slope = slope

    def predict_proba(self, table):
        scores = np.exp(self.slope * (np.asarray(table)[:, :2].astype(float) @ SLOPES))
        return scores / scores.sum(axis=1, keepdims=True)


def world(n, seed):
    """A log of clicks, and the expected value of the target over all contexts like these."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 2))
    propensities = Policy(0.3).predict_proba(x)
    action = (propensities.cumsum(axis=1) > random.random(n)[:, None]).argmax(axis=1)
    reward = random.random(n) < chances(x)[np.arange(n), action]
    noise = random.normal(size=n)
    at = propensities[np.arange(n), action]
    return pl.DataFrame({"x": x[:, 0], "y": x[:, 1], "noise": noise, "a": action, "r": reward, "p": at})


def chances(x):
    return 1 / (1 + np.exp(0.5 - 0.8 * x[:, :1] * np.sin(np.arange(ACTIONS)) - 0.5 * x[:, 1:]))


def truth():
    x = np.random.default_rng(10**6).normal(size=(2_000_000, 2))
    return float((Policy(1.0).predict_proba(x) * chances(x)).sum(axis=1).mean())


def in_sample(log, step, model):
    """DR with a model that was fitted on the rows it predicts."""
    x, codes = step.context.numbers(log, is_native=step.design.is_native), step.design.actions.codes(log["a"])
    r = log["r"].cast(pl.Float64).to_numpy()
    fit = Joint(model.fit(step.design.pairs(x, codes), r), step.design)
    table = Policy(1.0).predict_proba(log.select("x", "y").to_numpy())
    v = (table * fit.table(x, step.design.actions.codes(pl.Series(range(ACTIONS))))).sum(axis=1)
    w = table[np.arange(len(r)), log["a"].to_numpy()] / log["p"].to_numpy()
    return float((v + w * (r - fit.pairs(x, codes))).mean())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1_000)
    runs = parser.parse_args().runs
    value, context = truth(), ["x", "y"]
    errors = {"dr": [], "optimal_dr": [], "dr in sample": []}
    for seed in range(runs):
        log, model = world(500, seed), DecisionTreeRegressor(min_samples_leaf=2, random_state=0)
        result = cp.evaluate(log, **PARTS, context=context, target={"new": Policy(1.0)}, model=model)
        for name in ("dr", "optimal_dr"):
            errors[name].append(result["new", name].value - value)
        errors["dr in sample"].append(in_sample(log, result.question.model, model) - value)
    print(f"n = 500, {runs} logs, value {value:.4f}")
    for name, found in errors.items():
        z = np.mean(found) / (np.std(found) / np.sqrt(runs))
        print(f"  {name}: mean error {np.mean(found):+.5f}, z {z:+.1f}, standard deviation {np.std(found):.4f}")
    covered, useless = {"dr": 0, "optimal_dr": 0, "sndr": 0}, {"optimal_dr": [], "beta_ips": []}
    for seed in range(runs):
        log = world(2_000, 10**7 + seed)
        good = cp.evaluate(log, **PARTS, context=context, target={"new": Policy(1.0)}, model=LogisticRegression())
        for name in covered:
            covered[name] += value in good["new", name].interval
        # a model that is given the context, but fitted to nothing but noise
        bad = cp.evaluate(
            log, **PARTS, context=["x", "y", "noise"], target={"new": Policy(1.0)}, model=Noise(KNeighborsRegressor(3))
        )
        for name in useless:
            useless[name].append(bad["new", name].value - value)
    print(f"n = 2,000, {runs} logs: 95 % intervals cover")
    for name, count in covered.items():
        share = count / runs
        print(f"  {name}: {share:.1%} (Monte Carlo error {np.sqrt(share * (1 - share) / runs):.1%})")
    square = {name: np.square(found) for name, found in useless.items()}
    ratio = np.sqrt(square["optimal_dr"].mean() / square["beta_ips"].mean())
    spread = (
        np.std(square["optimal_dr"] - square["beta_ips"] * ratio**2) / np.sqrt(runs) / square["beta_ips"].mean() / 2
    )
    print(f"useless model: error of optimal_dr over that of beta_ips {ratio:.4f} (Monte Carlo error {spread:.4f})")


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


if __name__ == "__main__":
    main()
