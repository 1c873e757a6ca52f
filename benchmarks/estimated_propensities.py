"""Propensities that were not logged: how often intervals cover where the model is right, and what a confounder does.

    python benchmarks/estimated_propensities.py                    # 400 logs of 2,000 rows and 200 of 10,000, at 2, 5 and 20 actions
    python benchmarks/estimated_propensities.py --actions 20 --scale 0.2   # policies of 20 actions that overlap as well as those of 5
    python benchmarks/estimated_propensities.py --runs 50          # fewer
    python benchmarks/estimated_propensities.py --model boosted    # trees, whose errors take the propensities as known
    python benchmarks/estimated_propensities.py --model shallow --error refit --actions 5 --rows 2000 --runs 40   # … or refit them
    python benchmarks/estimated_propensities.py --confounded       # a confounder left out, and the Γ that contains the truth

The logging policy is a softmax of three context features, and so is the target. Every log is evaluated with the logged propensities,
with estimated ones, and with both by the normal interval: Student's, the default, is wider where few rows carry the variance, whoever
says what the propensities are.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
import polars as pl

import counterpoise as cp

ESTIMATORS = ("beta_ips", "ips", "snips", "lift")
CONTEXT = ("x0", "x1", "x2")


def softmax(scores):
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


class World:
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
        return columns | {"new": t[rows, action]} | {name: x[:, k + 1] for k, name in enumerate(CONTEXT)}


def asked_model(name, error):
    """The propensity model that a name stands for; "shallow" are a few small trees, which are quickly fitted again."""
    if name != "shallow":
        return cp.models.Propensity(name, error=error)
    from sklearn.ensemble import HistGradientBoostingClassifier

    return cp.models.Propensity(HistGradientBoostingClassifier(max_iter=20, max_leaf_nodes=6), error=error)


def coverage(world, n, runs, model, first=0):
    """Bias, spread, mean error and coverage of every estimator, by how propensities are known."""
    found = {}
    for run in range(first, first + runs):
        log = world.log(n, 1_000 + run)
        estimated = cp.evaluate(log, reward="click", propensity=model, action="item", context=CONTEXT, target="new")
        logged = cp.evaluate(log, reward="click", propensity="p", target="new")
        plain = [cp.evaluate(one.moments, interval="normal") for one in (estimated, logged)]
        carrying = logged.diagnostics().carrying_rows
        for name in ESTIMATORS:
            truth = world.lift if name == "lift" else world.value
            one, other = estimated["new", name], logged["new", name]
            row = [one.value - truth, one.stderr, truth in one.interval, other.value - truth, truth in other.interval]
            found.setdefault(name, []).append(
                [*row, *(truth in each["new", name].interval for each in plain), carrying]
            )
    return {name: np.array(rows, dtype=float) for name, rows in found.items()}


def show(actions, n, found):
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


def show_confounded():
    for strength in (0.0, 0.5, 1.0, 2.0):
        log, truth, gamma = confounded(strength=strength)
        result = cp.evaluate(log, reward="click", propensity="model", action="item", context="x", target="new")
        one = result["new", "snips"]
        step = result.question.propensity_model
        p = (
            step.complete(pl.DataFrame(log), result.question, "the log", 0)
            .get_column("counterpoise propensity")
            .to_numpy()
        )
        low, high = 1.0, 20.0
        for _ in range(40):
            middle = math.sqrt(low * high)
            least, most = bounds(log, p, middle)
            low, high = (low, middle) if least <= truth <= most else (middle, high)
        print(
            f"confounder of strength {strength}: truth {truth:.4f}, estimate {one.value:.4f} ({one.interval.lower:.4f} to "
            f"{one.interval.upper:.4f}); the bounds contain the truth from Γ = {high:.2f}; the true odds are off by up to {gamma:.2f}",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--first", type=int, default=0, help="the first log, to go on where another run ended")
    parser.add_argument("--actions", type=int, nargs="*", default=[2, 5, 20])
    parser.add_argument("--rows", type=int, nargs="*", default=[2_000, 10_000])
    parser.add_argument("--scale", type=float, default=0.4, help="how sharp the policies are")
    parser.add_argument("--model", default="logistic")
    parser.add_argument("--error", default="scores", help="scores or refit")
    parser.add_argument("--confounded", action="store_true")
    options = parser.parse_args()
    if options.confounded:
        show_confounded()
        return
    for actions in options.actions:
        world = World(actions, options.scale)
        for n in options.rows:
            runs = options.runs if n < 5_000 else max(options.runs // 2, 1)
            model = asked_model(options.model, options.error)
            show(actions, n, coverage(world, n, runs, model, options.first))


if __name__ == "__main__":
    main()
