"""Rankers learned from simulated logs of lists: what lists that they have not seen say of them, and the truth.

    python benchmarks/ranking_learning.py                       # 5 worlds of each click model, two to four minutes on one core
    python benchmarks/ranking_learning.py --clicks cascade --lists 100000 --seeds 10

Every world has its own items and logging policy. A log is learned from with the weight that is right for its clicks; `result_` judges the
ranker on lists that it has not seen. Prints its verdict, the lift with its interval, and the true lift, for the lists that the ranker draws
and for its greedy ones. Where clicks depend on the whole list, there is little to gain, and weights of whole lists can hardly show it.

Exits with 1 if a ranker that is surely better (verdict `ok`, and a lift above 0 in all of its interval) is not better in truth; if in
the other two click models a ranker does not earn more than the logging policy in truth, or fewer than 80 % of them are surely better; or
if fewer than 80 % of all intervals cover the truth.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch

import counterpoise as cp
from counterpoise.environments import SyntheticRanking
from counterpoise.learn import RankingLearner

WORLDS = {
    "position": (cp.weights.Independent(), "item_at_position", "p_at"),
    "cascade": (cp.weights.Cascade(), "item_given_above", "p_given"),
    "dependent": (cp.weights.Standard(), "item_given_above", "p_given"),
}
CONTEXTS = 3


@dataclass(frozen=True)
class Found:
    """How learning went in one world."""

    clicks: str
    is_better: bool  # in truth
    is_surely_better: bool  # by the verdict
    is_covered: bool

    @property
    def is_easy(self) -> bool:
        """Whether there is something to gain that a log can show."""
        return self.clicks != "dependent"


def learned(clicks: str, seed: int, lists: int, epochs: int) -> Found:
    """Learn in one world, and print how that went."""
    world = SyntheticRanking(positions=3, clicks=clicks, seed=seed, contexts=CONTEXTS)
    one_hot = [(pl.col("context") == k).cast(pl.Float64).alias(f"x{k}") for k in range(CONTEXTS)]
    log = world.draw(lists).with_columns(*one_hot)
    weight, kind, propensity = WORLDS[clicks]
    started = time.perf_counter()
    ranker = RankingLearner(epochs=epochs, batch_size=256, holdout=0.25, progress=False)
    ranker.fit(
        log, weight=weight, slate="list", position="position", propensity_of=kind, propensity=propensity, reward="click",
        action="item", context=[f"x{k}" for k in range(CONTEXTS)],
    )  # fmt: skip
    took = time.perf_counter() - started
    with torch.no_grad():
        scores = ranker.policy_(torch.eye(CONTEXTS)).double().numpy()
    (old, a), (new, b), (greedy, _) = (world.value(policy) for policy in ("logging", scores, 1e6 * scores))
    found, verdict = ranker.result_["learned", "lift"].interval, ranker.result_.verdict().verdict
    print(
        f"| {clicks} | {seed} | {old:.3f} | {verdict} | {found.lower:+.3f} to {found.upper:+.3f} | {new - old:+.3f} | "
        f"{greedy - old:+.3f} | {took:.1f} |",
        flush=True,
    )
    is_better, is_sure = new - old > 3 * np.hypot(a, b), verdict == "ok" and found.lower > 0
    return Found(clicks, is_better, is_sure, found.lower <= new - old <= found.upper)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lists", type=int, default=50_000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--clicks", choices=WORLDS, action="append")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| clicks | seed | logging | verdict | lift | true lift | greedy | seconds |\n|---|---|---|---|---|---|---|---|"
    )
    worlds = [(clicks, seed) for clicks in given.clicks or WORLDS for seed in range(given.seeds)]
    found = [learned(clicks, seed, given.lists, given.epochs) for clicks, seed in worlds]
    easy = [one for one in found if one.is_easy]
    better, sure = sum(one.is_better for one in found), sum(one.is_surely_better for one in found)
    covered = sum(one.is_covered for one in found)
    print(
        f"{better} of {len(found)} earn more than logging in truth, {sure} surely; {covered} intervals cover the truth."
    )
    keeps = all(one.is_better for one in found if one.is_easy or one.is_surely_better)
    keeps &= sum(one.is_surely_better for one in easy) >= 0.8 * len(easy)
    return 0 if keeps and covered >= 0.8 * len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
