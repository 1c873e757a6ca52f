"""Draws docs/figures/sensitivity.png: how wrong odds must be assumed to be for the bounds to contain the truth, with a confounder left out.

Usage: python benchmarks/sensitivity.py [docs/figures/sensitivity.png]
"""

import math
import sys

import matplotlib
import numpy as np

import counterpoise as cp
from counterpoise.evaluation.sensitivity import Sensitivity

matplotlib.use("Agg")
from matplotlib import pyplot

ROWS, LOGS, TRUTH = 20_000, 20, 0.5
EFFECTS = {1.0: "the reward is the trait", 0.6: "it has 60 % of it", 0.3: "it has 30 % of it"}


def confounded(gamma: float, effect: float, seed: int) -> dict[str, np.ndarray]:
    """A log of two actions whose policy saw a trait that was not logged: with it the odds of action 1 are Γ, without it 1/Γ.

    Half of the rows have the trait, so that both actions have a propensity of 1/2 as far as the log knows. Rewards come of the trait,
    and not of the action: always taking action 1 would earn 1/2.
    """
    random = np.random.default_rng(seed)
    trait = random.random(ROWS) < 0.5
    action = random.random(ROWS) < np.where(trait, gamma / (1 + gamma), 1 / (1 + gamma))
    reward = random.random(ROWS) < 0.5 + effect * (trait - 0.5)
    return {"reward": reward.astype(float), "propensity": np.full(ROWS, 0.5), "target": action.astype(float)}


def needed(found: Sensitivity) -> float:
    """The least Γ whose bounds contain the truth."""
    low, high = 1.0, 100.0
    while high / low > 1.0001:
        middle = math.sqrt(low * high)
        lower, upper = found.bounds(middle).value
        low, high = (low, middle) if lower <= TRUTH <= upper else (middle, high)
    return high


def main() -> None:
    """Draw both panels, and print what the right one shows."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    found = cp.sensitivity(**confounded(2.0, 0.6, 0))
    at = np.geomspace(1, 3, 40)
    bounds = [found.bounds(float(gamma)) for gamma in at]
    ends = [list(end) for end in zip(*(one.value_interval for one in bounds), strict=True)]
    left.fill_between(at, ends[0], ends[1], alpha=0.2, linewidth=0, label="with sampling, 95 %")
    for side in (0, 1):
        left.plot(at, [one.value[side] for one in bounds], color="C0", label=None if side else "bounds")
    left.axhline(TRUTH, color="black", linestyle="--", linewidth=1, label="truth")
    left.axvline(2.0, color="gray", linestyle=":", linewidth=1, label="Γ of the trait left out")
    left.set(xlabel="Γ", ylabel="value of always taking action 1", title="one log; the reward has 60 % of the trait")
    left.legend(frameon=False, fontsize="small")
    worlds = np.array([1.2, 1.5, 2.0, 2.5, 3.0])
    for effect, name in EFFECTS.items():
        each = np.array(
            [
                [needed(cp.sensitivity(**confounded(gamma, effect, seed))) for seed in range(LOGS)]
                for gamma in map(float, worlds)
            ]
        )
        right.errorbar(worlds, each.mean(axis=1), 2 * each.std(axis=1), fmt="o-", markersize=4, linewidth=1, label=name)
        shown = ", ".join(
            f"{gamma:g}: {row.mean():.3f} ± {row.std():.3f}" for gamma, row in zip(worlds, each, strict=True)
        )
        print(f"{name}: {shown}")
    right.plot([1, 3], [1, 3], color="black", linestyle="--", linewidth=1)
    right.set(
        xlabel="Γ of the trait left out",
        ylabel="least Γ whose bounds contain the truth",
        title=f"{LOGS} logs each of {ROWS:,} rows",
    )
    right.legend(frameon=False, fontsize="small")
    figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "docs/figures/sensitivity.png", dpi=110)


if __name__ == "__main__":
    main()
