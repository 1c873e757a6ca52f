"""A demonstration: a log with a known truth, and what each estimator makes of it."""

from __future__ import annotations

import sys

import numpy as np

from counterpoise.display import signed
from counterpoise.evaluation.evaluate import compare, evaluate
from counterpoise.models.propensities import softmax
from counterpoise.moments import Floats

ROWS = 20_000
ACTIONS = 10


def simulate(rows: int = ROWS, seed: int = 2024) -> tuple[dict[str, Floats], float, float]:
    """The log of a shop that shows one of ten banners, and the true values of its new and its old policy.

    Visitors have tastes, banners have an appeal, and a click is more likely if the two match. The old policy leans toward each
    visitor's taste a little, the new one a lot.
    """
    random = np.random.default_rng(seed)
    taste = random.normal(size=(rows, 3))
    appeal = random.normal(size=(ACTIONS, 3))
    score = taste @ appeal.T / np.sqrt(3)
    click = 1.0 / (1.0 + np.exp(1.5 - score))  # the probability of a click, on every banner
    old, new = softmax(0.5 * score), softmax(1.5 * score)
    action = (random.random((rows, 1)) > old.cumsum(axis=1)).sum(axis=1).clip(max=ACTIONS - 1)
    row = np.arange(rows)
    log = {
        "click": (random.random(rows) < click[row, action]).astype(float),
        "propensity": old[row, action],
        "new": new[row, action],
    }
    return log, float((new * click).sum(axis=1).mean()), float((old * click).sum(axis=1).mean())


def report(path: str) -> None:
    """Write the demonstration as a report, with the visitors' devices as segments."""
    log, truth, _ = simulate()
    device = np.array(["phone", "tablet", "desktop"])[np.random.default_rng(1).integers(0, 3, ROWS)]
    shop = {**log, "device": device}
    targets = {"new": "new", "half way": "(new + propensity) / 2", "at random": f"0 * new + {1 / ACTIONS}"}
    result = evaluate(shop, reward="click", propensity="propensity", target=targets, segment="device")
    written = result.report(
        path,
        command=f"python -m counterpoise.demo {path}",
        title=f"A simulated shop, where the new policy truly earns {100 * truth:.2f} clicks per 100 banners",
        unit="banner",
    )
    print(f"Wrote {written}. Open it in a browser.")


def main() -> None:
    """Simulate a log, evaluate and compare its policies, and show the truth next to the estimates; given a file name, write a report."""
    if len(sys.argv) > 1:
        report(sys.argv[1])
        return
    log, truth, old_truth = simulate()
    result = evaluate(log, reward="click", propensity="propensity", target="new")
    print(f"A simulated shop logged {ROWS:,} banners and clicks. What would the new policy have earned?\n")
    print(result)
    print(f"\nThe truth, which we know because the shop is simulated: {truth:.6f} clicks per banner.\n")
    for name in ("ips", "snips", "beta_ips"):
        estimate = result["new", name]
        covers = "covers the truth" if truth in estimate.interval else "misses the truth"
        print(f"  {estimate}: {covers}")
    change = compare(log, reward="click", propensity="propensity", target="new", against="logging")
    gain, lower, upper = (signed(x, change.stderr) for x in (change.value, *change.interval))
    print(f"\nNew against old: {gain} clicks per banner (95 % interval: {lower} to {upper}); ", end="")
    print(f"the truth is {truth - old_truth:+.6f}.")


if __name__ == "__main__":
    main()
