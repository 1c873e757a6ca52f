"""How often intervals of list values cover the simulated truth, by click model, number of positions and verdict.

Run ``python benchmarks/list_coverage.py [runs] [lists]``: it prints a table of every weight under every click model, the right ones and
the wrong ones, with bias, standard error and coverage.
"""

from __future__ import annotations

import sys

import numpy as np

import counterpoise as cp
from counterpoise.environments import SyntheticRanking

WEIGHTS = {
    "independent": (cp.weights.Independent(), "at", "item_at_position"),
    "cascade": (cp.weights.Cascade(), "given", "item_given_above"),
    "standard": (cp.weights.Standard(), "given", "item_given_above"),
    "pseudo_inverse": (cp.weights.PseudoInverse(), "at", "item_at_position"),
}


def main(runs: int, lists: int) -> None:
    """Print the table."""
    print("positions clicks logging weight truth bias bias/error stderr covered ok covered_ok")
    for positions in (3, 10):
        for clicks, logging in (
            ("position", "plackett_luce"), ("cascade", "plackett_luce"), ("dependent", "plackett_luce"), ("position", "independent"),
        ):  # fmt: skip
            world = SyntheticRanking(positions, clicks=clicks, logging=logging, sharper=1.0 if positions == 3 else 0.5)
            truth, _ = world.value(draws=1_000_000)
            found: dict[str, list[tuple[float, float, bool, bool]]] = {name: [] for name in WEIGHTS}
            for _ in range(runs):
                log = world.draw(lists)
                for name, (weight, kind, said) in WEIGHTS.items():
                    result = cp.evaluate(
                        log, reward="click", propensity=f"p_{kind}", target=f"new_{kind}", slate="list", position="position",
                        propensity_of=said, weight=weight,
                    )  # fmt: skip
                    one = result[f"new_{kind}", "beta_ips"]
                    found[name].append((one.value, one.stderr, truth in one.interval, result.verdict().verdict == "ok"))
            for name, rows in found.items():
                value, stderr, covered, ok = (np.array(column) for column in zip(*rows, strict=True))
                bias, error = value.mean() - truth, value.std() / np.sqrt(runs)
                inside = covered[ok].mean() if ok.any() else np.nan
                print(
                    f"{positions} {clicks} {logging} {name} {truth:.4f} {bias:+.4f} {bias / error:+.1f} {stderr.mean():.4f} "
                    f"{covered.mean():.3f} {ok.mean():.2f} {inside:.3f}",
                    flush=True,
                )


if __name__ == "__main__":
    main(*(int(text) for text in sys.argv[1:])) if len(sys.argv) > 1 else main(400, 2000)
