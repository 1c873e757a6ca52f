"""Right and wrong logs by the thousand: how often the checks of single rows doubt the former, and say nothing of the latter.

    python benchmarks/mended_checks.py --runs 1000 --seed 0 --processes 8

A kind is a way to make logs of 5,000 rows. Of the right ones it prints the share that these checks doubt, which should be at most 2 %. Of
the wrong ones it prints the share that is still `ok`, which should be at most 10 % wherever the interval is wrong: where the estimate's
deviation exceeds 1.3 times its reported error (rows that move together), or its bias exceeds two of them (all others).
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
import polars as pl

import counterpoise as cp
from counterpoise.errors import CounterpoiseError

ROWS = 5_000
CODES = {"rows-move-together", "lists-as-rows", "propensity-meaning", "propensities-not-probabilities"}
OLD, NEW = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.2, 0.2, 0.3, 0.3])
Random = np.random.Generator
Case = tuple[Any, float]  # a result (or the error instead of one), and the truth


def users_of(random: Random, activity: str) -> np.ndarray:
    """Who wrote each row: a few users are busy, and many are not."""
    if activity == "pairs":
        return np.repeat(np.arange(ROWS // 2), 2)
    weights = {
        "zipf": lambda: 1.0 / np.arange(1, 701),
        "lognormal": lambda: np.exp(1.3 * random.normal(size=900)),
        "even": lambda: np.ones(300),
    }[activity]()
    return random.choice(len(weights), ROWS, p=weights / weights.sum())


def rewards_of(random: Random, kind: str, lift: np.ndarray, mood: np.ndarray) -> np.ndarray:
    """Clicks, rare purchases, spend with a heavy tail or a measurement; `mood` is what the rows of a user share."""
    noise = random.random(len(mood))
    if kind == "click":
        return (noise < 1 / (1 + np.exp(0.8 - mood - lift))).astype(float)
    if kind == "rare":
        return (noise < 0.012 * np.exp(1.4 * mood - 0.98 * mood.var() + lift)).astype(float)
    if kind == "spend":
        buys = noise < 1 / (1 + np.exp(1.9 - mood - lift))
        return buys * np.exp(1.2 * random.normal(size=len(mood)) + 0.5 * mood)
    if kind == "heavy":
        return random.pareto(2.2, len(mood)) * np.exp(0.7 * mood) + lift
    return mood + lift + random.standard_t(4, len(mood))


def rows_world(
    random: Random, reward: str, activity: str, taste: float, session: float = 0.0, shared_choice: bool = False
) -> Case:
    """Single decisions of users and their sessions; `taste` and `session` say how much their rows share."""
    user = users_of(random, activity)
    visit = user * 50 + random.integers(0, 1 + np.bincount(user)[user] // 4)
    mood = taste * random.normal(size=user.max() + 1)[user] + session * random.normal(size=visit.max() + 1)[visit]
    action = random.choice(4, ROWS, p=OLD)
    if shared_choice:  # one choice a user, for all of their rows
        action = random.choice(4, user.max() + 1, p=OLD)[user]
    frame = pl.DataFrame(
        {
            "user_id": np.array([f"u{k}" for k in user]),
            "session_id": visit,
            "item": action,
            "p": OLD[action],
            "pi_new": NEW[action],
            "r": rewards_of(random, reward, 0.3 * (action - 1), mood),
        }
    ).sample(fraction=1.0, shuffle=True, seed=int(random.integers(2**31)))
    return cp.evaluate(frame, reward="r", propensity="p", target="pi_new"), math.nan


def arms_world(random: Random, reward: str, activity: str, taste: float) -> Case:
    """A test whose arms are constant for each user."""
    user = users_of(random, activity)
    arm = random.integers(0, 2, user.max() + 1)[user]
    mood = taste * random.normal(size=user.max() + 1)[user]
    frame = pl.DataFrame(
        {"visitor": user, "arm": np.array(["A", "B"])[arm], "r": rewards_of(random, reward, np.zeros(ROWS), mood)}
    )
    return cp.ab_test(frame, arm="arm", reward="r"), 0.0


ITEMS, PLACES = 6, 3
LISTS = np.array(list(permutations(range(ITEMS), PLACES)))


def _given_above(scores: np.ndarray) -> np.ndarray:
    """Of every list, the probability of each item given those above it."""
    weight = np.exp(scores)
    left = weight.sum() - np.cumsum(np.c_[np.zeros(len(LISTS)), weight[LISTS[:, :-1]]], axis=1)
    return weight[LISTS] / left


def _at_position(given: np.ndarray) -> np.ndarray:
    """Of every list, the probability of each item at its position."""
    chance, found = given.prod(axis=1), np.empty((len(LISTS), PLACES))
    for k in range(PLACES):
        found[:, k] = np.bincount(LISTS[:, k], chance, ITEMS)[LISTS[:, k]]
    return found


def lists_world(random: Random, written: str, read: str | None, sharp: float = 1.0) -> Case:
    """Lists whose propensities are written in one meaning, and read in another; None reads them as rows."""
    scores, others = sharp * np.linspace(1, -1, ITEMS), sharp * np.linspace(-0.6, 0.8, ITEMS)
    old, new = _given_above(scores), _given_above(others)
    count = ROWS // PLACES
    shown = random.choice(len(LISTS), count, p=old.prod(axis=1))
    gain = np.linspace(0.1, 0.6, ITEMS)[LISTS] * np.array([1.0, 0.8, 0.6])
    gain[:, 1:] *= 1.0 - 0.8 * gain[:, :-1]  # whoever found something above looks less below
    truth = float((new.prod(axis=1)[:, None] * gain).sum()) / (PLACES if read is None else 1)
    p, t = (old, new) if written == "item_given_above" else (_at_position(old), _at_position(new))
    frame = pl.DataFrame(
        {
            "impression_id": np.repeat(random.permutation(count), PLACES),
            "slot": np.tile(np.arange(1, PLACES + 1), count),
            "item_id": LISTS[shown].ravel(),
            "p": p[shown].ravel(),
            "pi_new": t[shown].ravel(),
            "r": (random.random((count, PLACES)) < gain[shown]).ravel().astype(float),
        }
    ).sample(fraction=1.0, shuffle=True, seed=int(random.integers(2**31)))
    parts = {} if read is None else {"slate": "impression_id", "position": "slot", "propensity_of": read}
    return cp.evaluate(frame, reward="r", propensity="p", target="pi_new", **parts), truth


def written_world(random: Random, written: str, drop: bool = False) -> Case:
    """Propensities that are written as something else."""
    action = random.choice(4, ROWS, p=OLD)
    how: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "p": lambda p: p,
        "100 p": lambda p: 100 * p,
        "log p": np.log,
        "1 - p": lambda p: 1 - p,
    }
    means = np.array([0.1, 0.2, 0.3, 0.35])
    frame = pl.DataFrame(
        {
            "rank": random.integers(1, 6, ROWS),
            "request_id": random.integers(0, ROWS // 3, ROWS),
            "p": how[written](OLD[action]),
            "pi_new": NEW[action],
            "r": (random.random(ROWS) < means[action]).astype(float),
        }
    )
    return _tried(
        lambda: cp.evaluate(frame, reward="r", propensity="p", target="pi_new", drop_bad_rows=drop), float(NEW @ means)
    )


def table_world(random: Random, total: float, share: float = 1.0) -> Case:
    """A policy whose probabilities of all actions add up to `total` in a share of the rows."""
    action, means = random.choice(4, ROWS, p=OLD), np.array([0.1, 0.2, 0.3, 0.35])
    table = np.tile(NEW, (ROWS, 1)) * np.where(random.random(ROWS) < share, total, 1.0)[:, None]
    frame = pl.DataFrame(
        {
            "item": action,
            "p": OLD[action],
            "pi": table,
            "r": (random.random(ROWS) < means[action]).astype(float),
        }
    )
    target = cp.Probabilities("pi")
    return _tried(
        lambda: cp.evaluate(frame, reward="r", propensity="p", action="item", target=target), float(NEW @ means)
    )


def _tried(ask: Callable[[], Any], truth: float) -> Case:
    try:
        return ask(), truth
    except CounterpoiseError as error:
        return error, truth


RIGHT: dict[str, Callable[[Random], Case]] = {
    f"{reward}, {activity} users, rows independent": partial(rows_world, reward=reward, activity=activity, taste=0.0)
    for reward in ("click", "rare", "spend", "heavy", "measured")
    for activity in ("zipf", "lognormal", "even", "pairs")
}
RIGHT |= {
    f"test of {reward}, {activity} users, rows independent": partial(
        arms_world, reward=reward, activity=activity, taste=0.0
    )
    for reward, activity in (("click", "lognormal"), ("rare", "zipf"), ("spend", "even"), ("heavy", "zipf"))
}
RIGHT |= {
    "lists, given above": partial(lists_world, written="item_given_above", read="item_given_above"),
    "lists, given above, sharp": partial(lists_world, written="item_given_above", read="item_given_above", sharp=1.6),
    "lists, at position": partial(lists_world, written="item_at_position", read="item_at_position"),
    "lists, at position, sharp": partial(lists_world, written="item_at_position", read="item_at_position", sharp=1.6),
    "propensities, and a rank that is none": partial(written_world, written="p"),
    "a table that adds up": partial(table_world, total=1.0),
}
TOGETHER: dict[str, Callable[[Random], Case]] = {
    f"{reward}, {activity} users, taste {taste:g}": partial(rows_world, reward=reward, activity=activity, taste=taste)
    for reward, activity, taste in (
        ("click", "zipf", 0.8), ("click", "lognormal", 1.2), ("click", "even", 0.8), ("click", "pairs", 4.0),
        ("rare", "lognormal", 1.2), ("rare", "even", 1.2), ("spend", "zipf", 1.0), ("spend", "even", 1.2),
        ("heavy", "lognormal", 1.0), ("measured", "even", 0.7), ("measured", "zipf", 0.5),
    )
}  # fmt: skip
TOGETHER |= {
    "click, sessions alike": partial(rows_world, reward="click", activity="even", taste=0.0, session=1.5),
    "click, one choice a user": partial(rows_world, reward="click", activity="even", taste=1.0, shared_choice=True),
    "measured, one choice a user": partial(
        rows_world, reward="measured", activity="zipf", taste=0.6, shared_choice=True
    ),
    "test of click, even": partial(arms_world, reward="click", activity="even", taste=0.8),
    "test of click, lognormal": partial(arms_world, reward="click", activity="lognormal", taste=1.0),
    "test of spend, zipf": partial(arms_world, reward="spend", activity="zipf", taste=1.0),
    "test of rare, even": partial(arms_world, reward="rare", activity="even", taste=1.2),
}
BIASED: dict[str, Callable[[Random], Case]] = {
    "lists as rows, given above": partial(lists_world, written="item_given_above", read=None),
    "lists as rows, given above, sharp": partial(lists_world, written="item_given_above", read=None, sharp=1.6),
    "given above read as at position": partial(lists_world, written="item_given_above", read="item_at_position"),
    "at position read as given above": partial(lists_world, written="item_at_position", read="item_given_above"),
    "percentages": partial(written_world, written="100 p"),
    "percentages, bad rows dropped": partial(written_world, written="100 p", drop=True),
    "logarithms": partial(written_world, written="log p"),
    "of not taking the action": partial(written_world, written="1 - p"),
    "a table that adds up to 2": partial(table_world, total=2.0),
    "a table that adds up to 2 in a tenth of the rows": partial(table_world, total=2.0, share=0.1),
}
KINDS = RIGHT | TOGETHER | BIASED


def run(kind: str, seed: int) -> tuple[bool, bool, float, float]:
    """Whether the checks doubt a log, whether it is ok, its estimate less the truth, and the reported error."""
    found, truth = KINDS[kind](np.random.default_rng([sum(map(ord, kind)), seed]))
    if isinstance(found, CounterpoiseError):
        return True, False, math.nan, math.nan
    if isinstance(found, cp.Result):
        verdict, one = found.verdict(), found[found.targets[0], "beta_ips"]
    else:
        verdict, one = found["B"].verdict, found["B"]
    is_doubted = any(caveat.code in CODES for caveat in verdict.caveats)
    return is_doubted, verdict.verdict == "ok", one.value - (0.0 if math.isnan(truth) else truth), one.stderr


def main() -> int:
    """Print every kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", default="", help="a part of the kinds' names")
    asked = parser.parse_args()
    seeds = range(asked.seed * 1_000_000, asked.seed * 1_000_000 + asked.runs)
    failed = []
    with ProcessPoolExecutor(asked.processes) as pool:
        for group, kinds in (("right", RIGHT), ("together", TOGETHER), ("biased", BIASED)):
            for kind in (one for one in kinds if asked.only in one):
                done = list(pool.map(partial(run, kind), seeds, chunksize=max(1, asked.runs // 50)))
                doubted, ok = np.mean([one[0] for one in done]), np.mean([one[1] for one in done])
                off, error = np.array([one[2] for one in done]), np.array([one[3] for one in done])
                if group == "right":
                    said, fails = f"doubted {doubted:6.1%}", doubted > 0.02
                else:
                    known = np.isfinite(off + error)
                    if group == "together":
                        ratio, most = (off[known].std() / np.median(error[known]) if known.any() else math.inf), 1.3
                    else:
                        ratio, most = (
                            (abs(off[known].mean()) / np.median(error[known]) if known.any() else math.inf),
                            2.0,
                        )
                    what = "deviation" if group == "together" else "bias"
                    said = f"ok {ok:6.1%}  doubted {doubted:6.1%}  {what} {ratio:5.2f} errors"
                    fails = ratio > most and ok > 0.1
                failed += [kind] if fails else []
                print(f"{group:9}{kind:52}{said}{'  FAILS' if fails else ''}", flush=True)
    print("all as it should be" if not failed else f"fails: {'; '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
