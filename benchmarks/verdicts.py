"""Right logs and wrong ones by the thousand: how often the former are doubted, and how often the latter are `ok` all the same.

python benchmarks/verdicts.py --quick
python benchmarks/verdicts.py support --runs 1000 --processes 16
"""

from __future__ import annotations

import math
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import permutations, product
from typing import Any

import numpy as np
import polars as pl
from bench import Suite, head, in_processes, row, share, slack, split
from numpy.typing import NDArray
from scipy.special import bdtr
from worlds import CONTEXTS, REWARDS, Clicks, Floats, Table, draw_actions, fixed, greedy, pairs, softmax, worlds

import counterpoise as cp
from counterpoise.diagnostics.diagnose import FEW_WEIGHTS, MeanWeight
from counterpoise.environments import SyntheticRanking
from counterpoise.errors import CounterpoiseError
from counterpoise.estimators import ESTIMATORS, beta_ips
from counterpoise.evaluation import wording
from counterpoise.evaluation.changes import SETTLED, WIDEST, alarm_limit
from counterpoise.evaluation.estimates import IntervalOptions, Quantities
from counterpoise.evaluation.reading import read
from counterpoise.evaluation.view import View
from counterpoise.log.sketches import Keys, Sketch, row_keys
from counterpoise.moments import Powers

SUITE = Suite(__file__, __doc__)


# -- missing actions and dropped rows ---------------------------------------------------------------------------------------


NEW_DOUBTS = {"missing-actions", "dropped-rows"}  # the doubts that were not there before
SUPPORT_WORLDS = ("few actions", "rare actions", "thin overlap", "epsilon-greedy", "many actions", "rare clicks")
GAPS = ("an action", "an action in a segment", "an action in a region", "several actions")
TARGET_KINDS = ("Chosen", "Probabilities", "predict_proba", "column")
MOST_NEW, MOST_OK, LEAST_COVERED = 0.02, 0.10, 0.93


@dataclass(frozen=True)
class SupportRun:
    """One log: whether it counts, is ok, is doubted anew, has bounds, and whether those cover."""

    counts: bool
    ok: bool
    anew: bool
    has_bounds: bool
    covered: bool


class TablePolicy:
    """A policy as a table: a row of probabilities for each context."""

    def __init__(self, table: np.ndarray) -> None:
        self.table, self.classes_ = table, np.arange(table.shape[1])

    def predict_proba(self, contexts: np.ndarray) -> np.ndarray:
        return self.table[contexts[:, 0].astype(int)]


@dataclass(frozen=True)
class SupportWorld:
    """What is logged and what the target does in each of run_several contexts, and what every action earns there."""

    logging: np.ndarray
    target: np.ndarray
    rate: np.ndarray


def support_world(name: str, g: np.random.Generator, contexts: int = 12) -> SupportWorld:
    """A world in which the log can take every action; every context has its own popular ones."""
    actions = {"rare actions": 40, "epsilon-greedy": 20, "many actions": 300}.get(name, 5)
    rate = g.beta(2, 5, (contexts, actions)) * (0.1 if name == "rare clicks" else 1.0)
    if name == "epsilon-greedy":
        logging = np.full((contexts, actions), 0.1 / actions)
        logging[np.arange(contexts), g.integers(actions, size=contexts)] += 0.9
    elif name in ("rare actions", "many actions"):
        common = 1.0 / np.arange(1, actions + 1) ** 1.1
        logging = np.array([g.permutation(common[:10]).tolist() + common[10:].tolist() for _ in range(contexts)])
    else:
        spread = 2.0 if name == "thin overlap" else 0.5
        logging = np.exp(g.normal(0, spread, (contexts, actions)))
    logging /= logging.sum(axis=1, keepdims=True)
    tilt = np.exp(g.normal(0, 0.7, logging.shape) + (2.0 if name == "rare clicks" else 4.0) * rate)
    target = logging * tilt / (logging * tilt).sum(axis=1, keepdims=True)
    if name in ("epsilon-greedy", "few actions"):  # it explores elsewhere
        target = 0.5 * target + 0.5 * g.dirichlet(np.full(actions, 0.3), contexts)
    return SupportWorld(logging, target, rate)


def lacking(world: SupportWorld, gap: str, g: np.random.Generator) -> SupportWorld:
    """The same world, in which the log never takes something that the target takes, and that earns otherwise."""
    logging, target, rate = world.logging.copy(), world.target.copy(), world.rate.copy()
    contexts, actions = logging.shape
    share = g.uniform(0.03, 0.35)
    rows = slice(None)
    if gap == "an action in a segment":
        rows = slice(0, contexts // 4)
        share = min(3 * share, 0.9)
    elif gap == "an action in a region":
        rows = slice(0, contexts // 2)
        share = min(2 * share, 0.9)
    lost = g.choice(actions - 1, 3 if gap == "several actions" and actions > 5 else 1, replace=False)
    logging[rows, lost[:, None]] = 0.0
    logging /= logging.sum(axis=1, keepdims=True)
    target[rows] *= 1 - share
    for one in lost:
        target[rows, one] += share / len(lost)
        rate[rows, one] = np.clip(rate.mean() * g.choice([0.0, 3.0]), 0, 1)
    return SupportWorld(logging, target, rate)


def draw_support(world: SupportWorld, n: int, g: np.random.Generator) -> pl.DataFrame:
    contexts, actions = world.logging.shape
    at = g.integers(contexts, size=n)

    def pick(table: np.ndarray) -> np.ndarray:
        return (g.random(n)[:, None] > table.cumsum(axis=1)[at]).sum(axis=1).clip(max=actions - 1)

    action = pick(world.logging)
    return pl.DataFrame(
        {
            "r": (g.random(n) < world.rate[at, action]) * 1.0,
            "p": np.maximum(world.logging[at, action], 1e-12),
            "a": action,
            "chosen": pick(world.target),
            "t": world.target[at, action],
            "pi": pl.Series(world.target[at]).cast(pl.List(pl.Float64)),
            "context": at * 1.0,
            "country": np.array(["DE", "FR", "US", "GB"])[at * 4 // contexts],
            "age": at * 5.0 + g.uniform(18, 23, n),
        }
    )


def missing_actions(name: str, gap: str, kind: str, n: int, seed: tuple[int, ...]) -> SupportRun:
    """A log of a world with its whole target; of a gap, if there is one."""
    g = np.random.default_rng(seed)
    world = support_world(name, g)
    if gap:
        world = lacking(world, gap, g)
    log = draw_support(world, n, g)
    target = {
        "Chosen": cp.Chosen("chosen"),
        "Probabilities": cp.Probabilities("pi"),
        "predict_proba": TablePolicy(world.target),
        "column": "t",
    }[kind]
    context = ["context"] if kind == "predict_proba" else ["country", "age"]
    found = cp.evaluate(log, reward="r", propensity="p", action="a", context=context, target={"new": target})
    plain = beta_ips(found.moments["new"])
    seen = world.logging > 0
    truth = float((world.target * world.rate).sum(axis=1).mean())
    lost = float(np.where(seen, 0.0, world.target).sum(axis=1).mean())
    expected = float(np.where(seen, world.target * world.rate, 0.0).sum(axis=1).mean()) + lost * float(plain.baseline)
    return judge(found, truth, abs(expected - truth) > 2 * plain.stderr if gap else True)


def dropped_rows(lost: float, rate: float, n: int, seed: tuple[int, ...]) -> SupportRun:
    """A log in which a share of the clicks has no reward."""
    g = np.random.default_rng(seed)
    hit = g.random(n) < 0.5
    rates = np.where(hit, 1.3, 0.7) * rate
    click = g.random(n) < rates
    bad = click & (g.random(n) < lost)
    log = {"r": np.where(bad, np.nan, click), "p": np.full(n, 0.5), "new": np.where(hit, 0.8, 0.2)}
    found = cp.evaluate(log, reward="r", propensity="p", target="new", drop_bad_rows=True)
    truth = rate * (0.8 * 1.3 + 0.2 * 0.7)
    bias = truth - truth * (1 - lost) / (1 - truth * lost)
    return judge(found, truth, bias > 2 * beta_ips(found.moments["new"]).stderr if lost else True)


def judge(found: cp.Result, truth: float, counts: bool) -> SupportRun:
    verdict, estimate = found.verdict(), found["new", "beta_ips"]
    new = {str(one.text) for one in verdict.caveats if one.code in NEW_DOUBTS and one.severity != "note"}
    codes = {one.code for one in verdict.caveats}
    anew = bool(new) and set(map(str, verdict.reasons)) <= new
    # bounds are about actions: rewards that were lost may lie outside of them
    has_bounds = {one.code for one in verdict.caveats if "lower" in one.numbers} and "dropped-rows" not in codes
    return SupportRun(counts, verdict.verdict == "ok", anew, bool(has_bounds), truth in estimate.interval)


def support_questions(part: str, n: int) -> Iterator[tuple[str, str, bool, partial[SupportRun]]]:
    """(kind of log, of target, whether it is right, a run of it)."""
    if part in ("all", "missing"):
        for name in SUPPORT_WORLDS:
            for kind in TARGET_KINDS:
                yield name, kind, True, partial(missing_actions, name, "", kind, n)
                for gap in GAPS:
                    yield f"{name}, lacks {gap}", kind, False, partial(missing_actions, name, gap, kind, n)
    if part in ("all", "dropped"):
        for rate in (0.01, 0.06, 0.4):
            yield f"{rate:.0%} clicks, none lost", "dropped", True, partial(dropped_rows, 0.0, rate, n)
            for lost in (0.05, 0.1, 0.3):
                what = f"{rate:.0%} clicks, {lost:.0%} of them lost"
                yield what, "dropped", False, partial(dropped_rows, lost, rate, n)


def run_several(job: tuple[partial[SupportRun], list[tuple[int, ...]]]) -> list[SupportRun]:
    """One kind of log, with every seed."""
    ask, seeds = job
    return [ask(seed) for seed in seeds]


@SUITE.experiment("support", runs=1, part="dropped")
def check_support(*, runs: int = 1000, rows: int = 5000, seed: int = 0, part: str = "all", processes: int = 2) -> bool:
    """Are logs that lack some of a target's actions, or dropped rows that matter, doubted, and right ones left alone?

    Every run draws a world of its own. Right logs can take whatever their target takes; rare actions among them may not have come up. Of
    the wrong ones, only those count whose bias exceeds two standard errors. Prints how many are `ok`, how many are doubted only because of
    these checks, and how often the bounds cover the truth. Targets that are a column are shown only, because they know no actions: there
    the mean weight is all that can tell. `--part` is all, missing or dropped.
    """
    kinds = list(support_questions(part, rows))
    totals: dict[bool, list[SupportRun]] = {True: [], False: []}
    head("log", "target", "logs", "ok", "doubted anew", "with bounds", "that cover")
    jobs = [(ask, [(seed, k, run) for run in range(runs)]) for k, (_, _, _, ask) in enumerate(kinds)]
    for (name, kind, is_right, _), several in zip(kinds, in_processes(run_several, jobs, processes), strict=True):
        counted = [each for each in several if each.counts]
        bounds = [each.covered for each in counted if each.has_bounds]
        if kind != "column":
            totals[is_right] += counted
        shares = (share(sum(getattr(each, what) for each in counted), len(counted)) for what in ("ok", "anew"))
        row(name, kind, len(counted), *shares, share(len(bounds), len(counted)), share(sum(bounds), len(bounds)))
    is_kept = True
    for is_right, what, most in ((True, "anew", MOST_NEW), (False, "ok", MOST_OK)):
        if totals[is_right]:
            part_of = float(np.mean([getattr(each, what) for each in totals[is_right]]))
            words = "right logs doubted anew" if is_right else "wrong logs that are ok"
            print(f"\n{words}: {part_of:.2%} of {len(totals[is_right]):,} (at most {most:.0%})")
            is_kept &= part_of <= most
    bounds = [each.covered for each in totals[False] if each.has_bounds]
    if bounds:
        print(f"\nbounds that cover: {np.mean(bounds):.2%} of {len(bounds):,} (at least {LEAST_COVERED:.0%})")
        is_kept &= bool(np.mean(bounds) >= LEAST_COVERED)
    return is_kept


# -- rows that move together, and what the doctor knows ---------------------------------------------------------------------


CHECKED_ROWS = 5_000
CHECKED_CODES = {"rows-move-together", "lists-as-rows", "propensity-meaning", "propensities-not-probabilities"}
OLD, NEW = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.2, 0.2, 0.3, 0.3])
Random = np.random.Generator
Case = tuple[Any, float]  # a result (or the error instead of one), and the truth


def users_of(random: Random, activity: str) -> np.ndarray:
    """Who wrote each row: a few users are busy, and many are not."""
    if activity == "pairs":
        return np.repeat(np.arange(CHECKED_ROWS // 2), 2)
    weights = {
        "zipf": lambda: 1.0 / np.arange(1, 701),
        "lognormal": lambda: np.exp(1.3 * random.normal(size=900)),
        "even": lambda: np.ones(300),
    }[activity]()
    return random.choice(len(weights), CHECKED_ROWS, p=weights / weights.sum())


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
    action = random.choice(4, CHECKED_ROWS, p=OLD)
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
        {
            "visitor": user,
            "arm": np.array(["A", "B"])[arm],
            "r": rewards_of(random, reward, np.zeros(CHECKED_ROWS), mood),
        }
    )
    return cp.ab_test(frame, arm="arm", reward="r"), 0.0


ITEMS, PLACES = 6, 3
ALL_LISTS = np.array(list(permutations(range(ITEMS), PLACES)))


def _given_above(scores: np.ndarray) -> np.ndarray:
    """Of every list, the probability of each item given those above it."""
    weight = np.exp(scores)
    left = weight.sum() - np.cumsum(np.c_[np.zeros(len(ALL_LISTS)), weight[ALL_LISTS[:, :-1]]], axis=1)
    return weight[ALL_LISTS] / left


def _at_position(given: np.ndarray) -> np.ndarray:
    """Of every list, the probability of each item at its position."""
    chance, found = given.prod(axis=1), np.empty((len(ALL_LISTS), PLACES))
    for k in range(PLACES):
        found[:, k] = np.bincount(ALL_LISTS[:, k], chance, ITEMS)[ALL_LISTS[:, k]]
    return found


def lists_world(random: Random, written: str, read: str | None, sharp: float = 1.0) -> Case:
    """Lists whose propensities are written in one meaning, and read in another; None reads them as rows."""
    scores, others = sharp * np.linspace(1, -1, ITEMS), sharp * np.linspace(-0.6, 0.8, ITEMS)
    old, new = _given_above(scores), _given_above(others)
    count = CHECKED_ROWS // PLACES
    shown = random.choice(len(ALL_LISTS), count, p=old.prod(axis=1))
    gain = np.linspace(0.1, 0.6, ITEMS)[ALL_LISTS] * np.array([1.0, 0.8, 0.6])
    gain[:, 1:] *= 1.0 - 0.8 * gain[:, :-1]  # whoever found something above looks less below
    truth = float((new.prod(axis=1)[:, None] * gain).sum()) / (PLACES if read is None else 1)
    p, t = (old, new) if written == "item_given_above" else (_at_position(old), _at_position(new))
    frame = pl.DataFrame(
        {
            "impression_id": np.repeat(random.permutation(count), PLACES),
            "slot": np.tile(np.arange(1, PLACES + 1), count),
            "item_id": ALL_LISTS[shown].ravel(),
            "p": p[shown].ravel(),
            "pi_new": t[shown].ravel(),
            "r": (random.random((count, PLACES)) < gain[shown]).ravel().astype(float),
        }
    ).sample(fraction=1.0, shuffle=True, seed=int(random.integers(2**31)))
    parts = {} if read is None else {"slate": "impression_id", "position": "slot", "propensity_of": read}
    return cp.evaluate(frame, reward="r", propensity="p", target="pi_new", **parts), truth


def written_world(random: Random, written: str, drop: bool = False) -> Case:
    """Propensities that are written as something else."""
    action = random.choice(4, CHECKED_ROWS, p=OLD)
    how: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "p": lambda p: p,
        "100 p": lambda p: 100 * p,
        "log p": np.log,
        "1 - p": lambda p: 1 - p,
    }
    means = np.array([0.1, 0.2, 0.3, 0.35])
    frame = pl.DataFrame(
        {
            "rank": random.integers(1, 6, CHECKED_ROWS),
            "request_id": random.integers(0, CHECKED_ROWS // 3, CHECKED_ROWS),
            "p": how[written](OLD[action]),
            "pi_new": NEW[action],
            "r": (random.random(CHECKED_ROWS) < means[action]).astype(float),
        }
    )
    return _tried(
        lambda: cp.evaluate(frame, reward="r", propensity="p", target="pi_new", drop_bad_rows=drop), float(NEW @ means)
    )


def table_world(random: Random, total: float, share: float = 1.0) -> Case:
    """A policy whose probabilities of all actions add up to `total` in a share of the rows."""
    action, means = random.choice(4, CHECKED_ROWS, p=OLD), np.array([0.1, 0.2, 0.3, 0.35])
    table = np.tile(NEW, (CHECKED_ROWS, 1)) * np.where(random.random(CHECKED_ROWS) < share, total, 1.0)[:, None]
    frame = pl.DataFrame(
        {
            "item": action,
            "p": OLD[action],
            "pi": table,
            "r": (random.random(CHECKED_ROWS) < means[action]).astype(float),
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


RIGHT_LOGS: dict[str, Callable[[Random], Case]] = {
    f"{reward}, {activity} users, rows independent": partial(rows_world, reward=reward, activity=activity, taste=0.0)
    for reward in ("click", "rare", "spend", "heavy", "measured")
    for activity in ("zipf", "lognormal", "even", "pairs")
}
RIGHT_LOGS |= {
    f"test of {reward}, {activity} users, rows independent": partial(
        arms_world, reward=reward, activity=activity, taste=0.0
    )
    for reward, activity in (("click", "lognormal"), ("rare", "zipf"), ("spend", "even"), ("heavy", "zipf"))
}
RIGHT_LOGS |= {
    "lists, given above": partial(lists_world, written="item_given_above", read="item_given_above"),
    "lists, given above, sharp": partial(lists_world, written="item_given_above", read="item_given_above", sharp=1.6),
    "lists, at position": partial(lists_world, written="item_at_position", read="item_at_position"),
    "lists, at position, sharp": partial(lists_world, written="item_at_position", read="item_at_position", sharp=1.6),
    "propensities, and a rank that is none": partial(written_world, written="p"),
    "a table that adds up": partial(table_world, total=1.0),
}
MOVING_TOGETHER: dict[str, Callable[[Random], Case]] = {
    f"{reward}, {activity} users, taste {taste:g}": partial(rows_world, reward=reward, activity=activity, taste=taste)
    for reward, activity, taste in (
        ("click", "zipf", 0.8), ("click", "lognormal", 1.2), ("click", "even", 0.8), ("click", "pairs", 4.0),
        ("rare", "lognormal", 1.2), ("rare", "even", 1.2), ("spend", "zipf", 1.0), ("spend", "even", 1.2),
        ("heavy", "lognormal", 1.0), ("measured", "even", 0.7), ("measured", "zipf", 0.5),
    )
}  # fmt: skip
MOVING_TOGETHER |= {
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
BIASED_LOGS: dict[str, Callable[[Random], Case]] = {
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
CHECKED_KINDS = RIGHT_LOGS | MOVING_TOGETHER | BIASED_LOGS


def check_log(kind: str, seed: int) -> tuple[bool, bool, float, float]:
    """Whether the checks doubt a log, whether it is ok, its estimate less the truth, and the reported error."""
    found, truth = CHECKED_KINDS[kind](np.random.default_rng([sum(map(ord, kind)), seed]))
    if isinstance(found, CounterpoiseError):
        return True, False, math.nan, math.nan
    if isinstance(found, cp.Result):
        verdict, one = found.verdict(), found[found.targets[0], "beta_ips"]
    else:
        verdict, one = found["B"].verdict, found["B"]
    is_doubted = any(caveat.code in CHECKED_CODES for caveat in verdict.caveats)
    return is_doubted, verdict.verdict == "ok", one.value - (0.0 if math.isnan(truth) else truth), one.stderr


@SUITE.experiment("rows", runs=3, only="measured")
def check_rows(*, runs: int = 1000, seed: int = 0, only: str = "", processes: int = 2) -> bool:
    """Right and wrong logs of 5,000 rows: how often the checks of single rows doubt the former, and say nothing of the latter.

    At most 2 % of the right ones should be doubted. Of the wrong ones, at most 10 % should still be `ok` wherever the interval is wrong:
    where the estimate's deviation exceeds 1.3 times its reported error (rows that move together), or its bias exceeds two of them (all
    others). `--only` takes a part of the kinds' names.
    """
    seeds = range(seed * 1_000_000, seed * 1_000_000 + runs)
    failed = []
    head("", "kind", "ok", "doubted", "deviation or bias, in errors", "")
    for group, kinds in (("right", RIGHT_LOGS), ("together", MOVING_TOGETHER), ("biased", BIASED_LOGS)):
        for kind in (name for name in kinds if only in name):
            done = list(in_processes(partial(check_log, kind), seeds, processes, chunk=max(1, runs // 50)))
            doubted, ok = np.mean([each[0] for each in done]), np.mean([each[1] for each in done])
            off, error = (np.array([each[k] for each in done]) for k in (2, 3))
            known = np.isfinite(off + error)
            ratio = math.inf
            if known.any():
                wrong = off[known].std() if group == "together" else abs(off[known].mean())
                ratio = float(wrong / np.median(error[known]))
            fails = doubted > 0.02 if group == "right" else ratio > (1.3 if group == "together" else 2.0) and ok > 0.1
            failed += [kind] if fails else []
            ratio_shown = "" if group == "right" else f"{ratio:.2f}"
            row(group, kind, f"{ok:.1%}", f"{doubted:.1%}", ratio_shown, "FAILS" if fails else "")
    print(f"\nfails: {'; '.join(failed)}" if failed else "\nall as it should be")
    return not failed


# -- rows that a policy was trained on --------------------------------------------------------------------------------------


USERS = np.random.default_rng(9).normal(size=20_000)
PAIR_SIZES = ((5000, 5000), (5000, 1500), (1500, 5000), (20_000, 8000))  # rows of the training and of the other log
CONTEXT_KINDS: dict[str, Callable[[int, Random], NDArray[np.float64]]] = {
    "numbers": lambda n, random: random.normal(size=n),
    "rounded numbers": lambda n, random: random.normal(size=n).round(3),
    "a long tail": lambda n, random: np.minimum(random.zipf(1.4, n), 10**7).astype(float),
    "users who come back": lambda n, random: USERS[random.permutation(len(USERS))[:n]],
    "3,000 contexts": lambda n, random: random.integers(0, 3000, n).astype(float),
    "200 contexts": lambda n, random: random.integers(0, 200, n).astype(float),
    "3 contexts": lambda n, random: random.integers(0, 3, n).astype(float),
}


def keys_of(kind: str, n: int, random: Random) -> Keys:
    """The keys of a log with three actions and clicks."""
    return row_keys([CONTEXT_KINDS[kind](n, random)], random.integers(0, 3, n), random.random(n) < 0.3)


def is_known(training: Keys, log: Keys) -> bool:
    """Whether the log is taken for rows of the training."""
    sketch = Sketch()
    sketch.add(training)
    watch = sketch.watch()
    watch.add(log)
    return watch.overlap().is_same


@SUITE.experiment("training", runs=4)
def check_training(*, runs: int = 200, seed: int = 0) -> None:
    """How often a policy's training rows are known again, and how often fresh rows are taken for them: the share that is doubted.

    Every line is a kind of context. `fresh` are two logs drawn apart, which must not be doubted; the others have rows in common.
    """
    names = ["fresh", "same", "shuffled", "60 %", "10 %", "superset"]
    head("context", *names)
    for number, kind in enumerate(CONTEXT_KINDS):
        known: dict[str, list[bool]] = {name: [] for name in names}
        random = np.random.default_rng([seed, number])
        for run in range(runs):
            n, other = PAIR_SIZES[run % len(PAIR_SIZES)]
            training, fresh = keys_of(kind, n, random), keys_of(kind, other, random)
            shuffled = random.permutation(training)
            logs = [fresh, training, shuffled, shuffled[: n * 6 // 10], shuffled[: n // 10]]
            for name, log in zip(names, [*logs, np.concatenate([training, fresh])], strict=True):
                known[name].append(is_known(training, log))
        row(kind, *(f"{np.mean(known[name]):.3f}" for name in names))


# -- policies that were fitted elsewhere on this very log -------------------------------------------------------------------


OWN_KINDS = ("coin flips", "linear", "one for all", "steps", "segments", "amounts", "classes")
OWN_SIZES = (1000, 3000, 10_000)
BANDS = ((0.5, 3.0), (3.0, 5.0), (5.0, math.inf))  # what flattery adds to a value, in its standard errors
MEMORIES = {
    "boosted": ("one", "HistGradientBoostingRegressor", {}),
    "boosted, by action": ("each", "HistGradientBoostingRegressor", {"max_iter": 50}),
    "boosted, soft": ("soft", "HistGradientBoostingClassifier", {"max_iter": 50}),
    "forest": ("one", "RandomForestRegressor", {"n_estimators": 30}),
    "forest, by action": ("each", "RandomForestRegressor", {"n_estimators": 30}),
    "forest, soft": ("soft", "RandomForestClassifier", {"n_estimators": 30}),
    "pruned forest": ("each", "RandomForestRegressor", {"n_estimators": 30, "min_samples_leaf": 10}),
    "extra trees": ("each", "ExtraTreesRegressor", {"n_estimators": 30}),
    "a tree": ("each", "DecisionTreeRegressor", {"max_depth": 7}),
    "1 neighbor": ("each", "KNeighborsRegressor", {"n_neighbors": 1}),
    "5 neighbors": ("each", "KNeighborsRegressor", {"n_neighbors": 5}),
    "10 neighbors": ("each", "KNeighborsRegressor", {"n_neighbors": 10}),
    "ridge": ("each", "Ridge", {}),
    "logistic, soft": ("soft", "LogisticRegression", {"max_iter": 300}),
}
SMOOTH = ("ridge", "logistic, soft")  # which remember no single row


class OwnWorld:
    """Contexts of normal numbers, with what every action earns there and how often it is logged."""

    def __init__(self, kind: str, random: Random) -> None:
        self.kind, self.width, self.actions = kind, int(random.choice([3, 6, 15])), int(random.choice([2, 3, 6]))
        shape = (self.width, self.actions)
        self.slopes, self.tilt = (random.normal(size=shape) / math.sqrt(self.width) for _ in range(2))
        self.main, self.by_segment = random.normal(size=self.actions), random.normal(size=(8, self.actions))
        self.rate, self.strength = random.choice([0.05, 0.2, 0.5]), random.choice([0.3, 1.0])
        self.leaning = random.choice([0.0, 1.0])

    def contexts(self, n: int, random: Random) -> Floats:
        return random.normal(size=(n, self.width))

    def means(self, x: Floats) -> Floats:
        scores = x @ self.slopes
        if self.kind == "classes":
            return np.where(scores == scores.max(axis=1, keepdims=True), 0.9, 0.05)
        if self.kind in ("steps", "segments"):
            columns = (
                x[:, :3] > np.array([-0.3, 0.2, 0.5])
                if self.kind == "steps"
                else x[:, :1] > [-1.5, -0.5, 0.0, 0.4, 0.8, 1.2]
            )
            scores = self.by_segment[columns @ 2 ** np.arange(3) if self.kind == "steps" else columns.sum(axis=1)]
        elif self.kind == "one for all":
            scores = np.abs(x[:, :1]) + self.main
        elif self.kind == "coin flips":
            scores = np.zeros_like(scores)
        return 1 / (1 + np.exp(-math.log(self.rate / (1 - self.rate)) - self.strength * scores))

    @property
    def amount(self) -> float:
        return math.exp(0.5) if self.kind == "amounts" else 1.0

    def draw(self, n: int, random: Random) -> tuple[Floats, Floats, Floats, Floats]:
        x = self.contexts(n, random)
        logging = 0.8 * softmax(self.leaning * x @ self.tilt) + 0.2 / self.actions
        action = draw_actions(random, logging)
        at = np.arange(n), action
        reward = (random.random(n) < self.means(x)[at]).astype(float)
        return x, action, reward * np.exp(random.normal(size=n)) if self.kind == "amounts" else reward, logging[at]


class Remembering:
    """A policy of scikit-learn, as somebody fits it elsewhere; or any function of contexts."""

    def __init__(self, table: Callable[[Floats], Floats], actions: int) -> None:
        self.predict_proba, self.classes_ = table, np.arange(actions)

    @classmethod
    def fitted(cls, name: str, world: OwnWorld, log: tuple[Floats, Floats, Floats, Floats]) -> Remembering:
        from sklearn.utils import all_estimators

        form, model, options = MEMORIES[name]
        make = partial(dict(all_estimators())[model], **options)
        (x, action, reward, p), every = log, range(world.actions)
        if form == "soft":
            known = reward > 0
            fit = make().fit(x[known], action[known], sample_weight=(reward / p)[known])

            def table(z: Floats) -> Floats:
                wide = np.zeros((len(z), world.actions))
                wide[:, fit.classes_] = fit.predict_proba(z)
                return wide

            return cls(table, world.actions)
        eye = np.eye(world.actions)
        if form == "one":
            fits = [make().fit(np.hstack([x, eye[action]]), reward)]
        else:
            fits = [make().fit(x[action == a], reward[action == a]) for a in every]

        def predicted(z: Floats, a: int) -> Floats:
            return (
                fits[0].predict(np.hstack([z, np.tile(eye[a], (len(z), 1))])) if form == "one" else fits[a].predict(z)
            )

        return cls(lambda z: eye[np.stack([predicted(z, a) for a in every], axis=1).argmax(axis=1)], world.actions)


def own_rows_run(seed: int) -> list[tuple[str, str, bool, bool, float]]:
    """How a policy came about, its name, whether it is doubted and `ok`, and what it gains by luck, in standard errors."""
    random = np.random.default_rng([seed, 33])
    world = OwnWorld(OWN_KINDS[seed % len(OWN_KINDS)], random)
    n = OWN_SIZES[seed // len(OWN_KINDS) % len(OWN_SIZES)]
    log, other, x = (
        world.draw(n, random),
        world.draw(int(random.choice(OWN_SIZES)), random),
        world.contexts(20_000, random),
    )
    half = tuple(np.concatenate([mine[: n // 2], its[: n // 2]]) for mine, its in zip(log, other, strict=True))
    eye, edge = np.eye(world.actions), random.normal()
    rule = eye[random.permutation(world.actions)[:2]]
    policies = {
        ("honest", "a rule"): Remembering(lambda z: rule[(z[:, 0] > edge).astype(int)], world.actions),
        ("honest", "the best"): Remembering(lambda z: eye[world.means(z).argmax(axis=1)], world.actions),
    }
    for name in random.choice(list(MEMORIES), 2, replace=False):
        for tag, rows in (("honest", other), ("own", log), ("half", half)):
            policies[tag, str(name)] = Remembering.fitted(str(name), world, rows)
    contexts = [f"x{k}" for k in range(world.width)]
    frame = pl.DataFrame(dict(zip(contexts, log[0].T, strict=True)) | {"a": log[1], "r": log[2], "p": log[3]})
    targets = {" ".join(name): policy for name, policy in policies.items()}
    result = cp.evaluate(
        frame, reward="r", propensity="p", action="a", context=contexts, target=targets, cluster=False, progress=False
    )
    found = []
    for (tag, name), policy in policies.items():
        truth = float((policy.predict_proba(x) * world.means(x)).sum(axis=1).mean()) * world.amount
        estimate, verdict = result[f"{tag} {name}", "beta_ips"], result.verdict(f"{tag} {name}")
        doubted = any(caveat.code == "own-training-rows" for caveat in verdict.caveats)
        luck = (
            (estimate.value - truth) / estimate.stderr
            if estimate.stderr > 0 and math.isfinite(estimate.stderr)
            else math.nan
        )
        found.append((tag, name, doubted, verdict.verdict == "ok", luck))
    return found


@SUITE.experiment("own-rows", runs=42)
def check_own_rows(*, runs: int = 420, seed: int = 0, processes: int = 2) -> bool:
    """Is a policy doubted if it was fitted elsewhere on this very log (or half of it on others), and only then?

    Seven kinds of worlds, 1,000 to 10,000 rows, four honest policies each: a rule, the best there is, and two fitted on another log.
    At most 2 % of the honest ones may be doubted. Where flattery exceeds five standard errors, at most 5 % of the policies that remember
    single rows may be `ok`; what smaller flattery does, and what linear models do, is shown.
    """
    found = [one for each in in_processes(own_rows_run, range(seed, seed + runs), processes) for one in each]
    honest = [one for one in found if one[0] == "honest"]
    head("honest", "policies", "doubted", "ok")
    for name in dict.fromkeys(one[1] for one in sorted(honest, key=lambda one: one[1] in MEMORIES)):
        mine = [one for one in honest if one[1] == name]
        row(
            name,
            len(mine),
            share(sum(one[2] for one in mine), len(mine)),
            share(sum(one[3] for one in mine), len(mine)),
        )
    doubted = sum(one[2] for one in honest)
    row("all", len(honest), share(doubted, len(honest)), share(sum(one[3] for one in honest), len(honest)))
    kept = doubted / len(honest) <= 0.02 + slack(0.02, len(honest))
    print()
    head("fitted on these rows", *(f"{low} to {high} errors: ok" for low, high in BANDS))
    for tag in ("own", "half"):
        for name in (*MEMORIES, "all but linear"):
            mine = [
                one
                for one in found
                if one[0] == tag and (one[1] == name or (name not in MEMORIES and one[1] not in SMOOTH))
            ]
            bands = [[one[3] for one in mine if low <= one[4] < high] for low, high in BANDS]
            row(f"{tag}: {name}", *(f"{sum(band)} of {len(band)}" for band in bands))
            if name not in MEMORIES:
                kept &= sum(bands[-1]) <= (0.05 + slack(0.05, len(bands[-1]))) * len(bands[-1])
    return bool(kept)


# -- the test of the mean weight --------------------------------------------------------------------------------------------


WEIGHT_SIZES = (200, 1_000, 5_000, 20_000)
ALARM = 0.001
LEVELS = (0.05, 0.01, ALARM)


def weight_tests(cell: tuple[str, int], runs: int, seed: int) -> list[tuple[float, float, float]]:
    """The rows that carry the weights' variance, the p-value and the largest weight, of every log of a cell."""
    world, n = cell
    random = np.random.default_rng([seed, n, 200 + sorted(worlds()).index(world)])
    found = []
    for _ in range(runs):
        columns, _ = worlds()[world].draw(random, n)
        u = columns["t0"] / columns["p"] - 1.0
        excess = Powers.of(u)
        p = MeanWeight(excess, float(u.std(ddof=1)) / math.sqrt(n)).p_value
        found.append((n / excess.kurtosis, p, 1.0 + float(u.max())))
    return found


def heaviest(world: str) -> float:
    """The largest weight of a world; of those without one, 0."""
    place = worlds()[world]
    return float((place.targets[0] / place.logging).max()) if isinstance(place, Table) else 0.0


def are_few(p: np.ndarray, logs: int) -> bool:
    """Whether alarms are at most twice as frequent as they should be, but for the luck of so many logs."""
    return bool(np.sum(p < ALARM) <= 2 * ALARM * logs + 3 * math.sqrt(2 * ALARM * logs))


@SUITE.experiment("mean-weight", runs=5)
def check_mean_weight(*, runs: int = 4_000, seed: int = 0, processes: int = 2) -> bool:
    """How often does the test of the mean weight raise a false alarm? Worlds of the grid, whose propensities are all right.

    Only where at least 30 rows carry the weights' variance does the test speak; elsewhere the verdict says that it cannot tell. A log
    whose largest weight is less than half of its world's lacks actions that the target takes, as the alarm then says: such logs are
    counted apart. Alarms at p < 0.001 must not be more than twice as frequent as that, over all logs on which the test speaks, or in any
    cell.
    """
    cells = [(world, n) for n in WEIGHT_SIZES for world in worlds()]
    head("cell", "tested", *(f"p < {level:g}" for level in LEVELS), "alarms", "logs that lack rows")
    every, lacked, is_kept = [], 0, True

    def show(name: str, logs: int, p: np.ndarray, lacking: int) -> None:
        rates = (share(int(np.sum(p < level)), len(p), 2) for level in LEVELS)
        row(name, share(len(p), logs), *rates, f"{int(np.sum(p < ALARM))} of {logs:,}", lacking)

    answers = in_processes(partial(weight_tests, runs=runs, seed=seed), cells, processes)
    for (world, n), ran in zip(cells, answers, strict=True):
        rows, p, largest = np.array(ran).T
        speaks, lacks = rows >= FEW_WEIGHTS, largest < heaviest(world) / 2
        tested = p[speaks & ~lacks]
        every.append(tested)
        lacked += int((speaks & lacks).sum())
        is_kept &= are_few(tested, runs)
        if len(tested):
            show(f"{world}, n = {n:,}", runs, tested, int((speaks & lacks).sum()))
    whole = np.concatenate(every)
    show("all", runs * len(cells), whole, lacked)
    return is_kept and are_few(whole, len(whole))


# -- what answers state: possible intervals, one estimator behind a change, and weights of one's own ---------------------------


STATED_RATES, STATED_SIZES = (0.03, 0.5, 0.97), (150, 600, 3_000)
BY = ("snips", "ips", "cross_fit")
OWN = "weights of one's own"


def stated(cell: tuple[str, float, int], runs: int, seed: int) -> list[tuple[str, bool, bool, bool]]:
    """Of every log of a cell: what is stated, whether it is ok, and whether its interval covers, and would if it could be impossible."""
    world, rate, n = cell
    place, clicks = worlds()[world], Clicks(rate)
    logged, truth = place.expect(clicks.mean)[:2]
    random = np.random.default_rng([seed, n, int(100 * rate), sorted(worlds()).index(world)])
    found = []

    def count(what: str, verdict: str, interval: Any, free: Any, value: float) -> None:
        if verdict != "not identified":
            found.append(
                (what, verdict == "ok", interval.lower <= value <= interval.upper, free[0] <= value <= free[1])
            )

    for _ in range(runs):
        columns, effect = place.draw(random, n)
        scale = random.uniform(0.5, 1.5)
        log = {"r": clicks.draw(random, effect), "p": columns["p"], "t": columns["t0"]}
        log["w"] = scale * log["t"] / log["p"]
        made = cp.evaluate(log, reward="r", propensity="p", target="t", estimator=["beta_ips", "lift"])
        verdict, how = made.verdict().verdict, IntervalOptions(0.95, made.interval_method)
        free = Quantities(View(made.moments, ("t", "")), {name: ESTIMATORS[name] for name in made.estimators}, how)
        for name, value in (("beta_ips", truth), ("lift", truth - logged)):
            count(name, verdict, made["t", name].interval, tuple(free.at(name).endless.interval()), value)
        relative = read(made).best.relative
        if relative is not None:
            count("relative", verdict, relative.interval, (-math.inf, math.inf), truth / logged - 1)
        own = cp.evaluate(log, reward="r", weight="w")
        count(
            OWN,
            "ok" if verdict == "ok" else "caution",
            own.interval,
            tuple(own["w", "beta_ips"].interval),
            scale * truth,
        )
        for name in BY:
            one = cp.evaluate(log, reward="r", propensity="p", target="t", estimator=name, groups=20)
            lift = read(one).best.lift
            count(
                f"change by {name}",
                one.verdict().verdict,
                lift.interval,
                tuple(made["t", "lift"].interval),
                truth - logged,
            )
    return found


@SUITE.experiment("stated", runs=2)
def check_stated(*, runs: int = 100, seed: int = 0, processes: int = 2) -> bool:
    """Does what an answer states cover? Clicks that are rare, even and usual; the worlds of the grid, thin ones among them.

    Intervals that end where clicks do, against those that may be impossible: no fewer may cover. The change by estimators that have no
    difference of their own, against `lift`. And weights of one's own with a mean from 0.5 to 1.5, whose answer is the mean of wr, against
    `beta_ips`.
    """
    cells = list(product(worlds(), STATED_RATES, STATED_SIZES))
    every = [
        one for several in in_processes(partial(stated, runs=runs, seed=seed), cells, processes) for one in several
    ]
    head("", "ok", "covered, given ok", "covered, given caution", "before, given ok", "before, given caution")
    is_kept = True
    for what in dict.fromkeys(name for name, *_ in every):
        ok, held, before = np.array([one[1:] for one in every if one[0] == what]).T
        row(what, share(ok.sum(), len(ok)), *(share((x & y).sum(), y.sum()) for x in (held, before) for y in (ok, ~ok)))
        is_kept &= bool((held & ok).sum() >= (0.93 - slack(0.93, int(ok.sum()))) * ok.sum())
        if what in ("beta_ips", "lift"):
            is_kept &= bool(held.sum() >= before.sum() - 1e-4 * len(ok))
    return is_kept


# -- plans and tails --------------------------------------------------------------------------------------------------------


PILOT = 400_000


def plan_worlds() -> dict[str, tuple[Table, Clicks]]:
    """Overlap that is thin, fair and good, with the clicks that make the difference."""
    random = np.random.default_rng(2031)
    e = random.normal(size=(CONTEXTS, 10))
    lean = 0.5 * random.normal(size=(CONTEXTS, 4))
    wanted = random.normal(size=(CONTEXTS, 4))
    two, five = np.tile([0.0, 4.0], (CONTEXTS, 1)), np.tile([0.0, 4.5, 2.0, 0.0, 3.0], (CONTEXTS, 1))
    return {
        "thin: a treatment that 2 % got": (Table(fixed(0.98, 0.02), (fixed(0.5, 0.5),), two), Clicks(0.05)),
        "fair: ε-greedy logging": (Table(greedy(-e, 0.3), (greedy(e),), 1.6 * e), Clicks(0.1)),
        "good: near what was logged": (Table(softmax(lean), (softmax(lean + 0.5 * wanted),), wanted), Clicks(0.3)),
        "thin: one of five arms is new": (
            Table(fixed(0.96, *[0.01] * 4), (fixed(0.1, 0.6, 0.1, 0.1, 0.1),), five),
            Clicks(0.02),
        ),
    }


def log_of_clicks(place: Table, clicks: Clicks, random: np.random.Generator, n: int) -> dict[str, Floats]:
    columns, effect = place.draw(random, n)
    return {"reward": clicks.draw(random, effect), "propensity": columns["p"], "target": columns["t0"]}


def planned_size(world: str, seed: int) -> cp.Plan:
    """The plan from a pilot log that is as good as the truth, at a difference that is the truth."""
    place, clicks = plan_worlds()[world]
    return cp.plan(**log_of_clicks(place, clicks, np.random.default_rng([seed, 1]), PILOT), difference=gain(world))


def gain(world: str) -> float:
    place, clicks = plan_worlds()[world]
    logged, target = place.expect(clicks.mean)
    return target - logged


def see_plans(job: tuple[str, int, int, int]) -> tuple[int, int, int, int]:
    """How many logs of the planned size show the difference, how many that small pilots planned do, and whose range has that size."""
    world, rows, runs, seed = job
    place, clicks = plan_worlds()[world]
    random = np.random.default_rng([seed, 2])
    shown = ok = by_pilot = within = 0
    for _ in range(runs):
        found = cp.evaluate(**log_of_clicks(place, clicks, random, rows), estimator="lift", progress=False)
        shown += found["target", "lift"].interval.lower > 0
        ok += found.verdict().verdict == "ok"
        needs = cp.plan(**log_of_clicks(place, clicks, random, rows), difference=gain(world)).needs
        within += needs.power_range[0] <= rows <= needs.power_range[1]
        if needs.power_rows < 50 * rows:
            again = cp.evaluate(
                **log_of_clicks(place, clicks, random, int(needs.power_rows)), estimator="lift", progress=False
            )
            by_pilot += again["target", "lift"].interval.lower > 0
        else:
            by_pilot += 1
    return shown, ok, by_pilot, within


Draw = Callable[[np.random.Generator, int], Floats]


def pareto(alpha: float) -> Draw:
    return lambda random, n: random.random(n) ** (-1 / alpha)


TAIL_REWARDS: dict[str, tuple[Draw, float, Callable[[float], float] | None]] = {
    # the draw, its mean, and the CVaR at q < 1 where it is of a tail without a variance
    "Pareto 1.8": (pareto(1.8), 2.25, None),
    "losses of Pareto 1.8": (lambda g, n: -pareto(1.8)(g, n), -2.25, lambda q: -2.25 * q ** (-1 / 1.8)),
    "losses of Pareto 1.4": (lambda g, n: -pareto(1.4)(g, n), -3.5, lambda q: -3.5 * q ** (-1 / 1.4)),
    "losses of 15 %, Pareto 1.6": (
        lambda g, n: -1.0 * (g.random(n) < 0.15) * pareto(1.6)(g, n),
        -0.15 * 1.6 / 0.6,
        lambda q: -0.15 * 1.6 / 0.6 / q,
    ),
}
TAMED: dict[str, tuple[Draw, float]] = {
    "normal": (lambda g, n: g.normal(size=n), 0.0),
    "exponential losses": (lambda g, n: -g.exponential(size=n), -1.0),
    "lognormal, σ = 1": (lambda g, n: np.exp(g.normal(size=n)), math.exp(0.5)),
}
TAIL_SIZES = (1000, 5000, 20_000)


def tail_counts(job: tuple[str, int, int, int]) -> dict[float, tuple[int, int, int, int]]:
    """By q: how many tail means are ok, how many of these cover, how many of the others, and how many of those have two ends."""
    name, n, runs, seed = job
    draw, mean, lower = TAIL_REWARDS[name] if name in TAIL_REWARDS else (*TAMED[name], None)
    random = np.random.default_rng([seed, 4, n])
    truths = {1.0: mean} | ({0.25: lower(0.25)} if lower else {})
    found = {q: np.zeros(4, dtype=int) for q in truths}
    for _ in range(runs):
        new = random.random(n) < 0.5
        log = {"reward": draw(random, n), "propensity": np.full(n, 0.5), "target": np.where(new, 0.8, 0.2)}
        made = cp.distribution(**log, progress=False)
        for q, truth in truths.items():
            one = made.cvar(q)
            ok, held = one.verdict.verdict == "ok", truth in one.interval
            found[q] += [ok, ok and held, not ok and held, not ok and math.isfinite(one.interval.width)]
    return {q: tuple(counts.tolist()) for q, counts in found.items()}


@SUITE.experiment("plans", runs=2)
def check_plans(*, runs: int = 500, seed: int = 0, processes: int = 2) -> bool:
    """Does a plan have the power of 80 % that it promises?

    Logs of the planned size, by a plan from 400,000 rows, and by plans from pilot logs of that size, one plan a log. The last world was
    looked at once, at the end.
    """
    head(
        "world",
        "gain",
        "rows",
        "ok from",
        "shows it",
        "by plans from pilots of that size",
        "their range has it",
        "verdict ok",
    )
    is_kept = True
    for world in plan_worlds():
        plan = planned_size(world, seed)
        rows = int(plan.needs.power_rows)
        jobs = [(world, rows, size, seed * 1000 + k) for k, size in enumerate(split(runs, processes))]
        shown, ok, by_pilot, within = map(sum, zip(*in_processes(see_plans, jobs, processes), strict=True))
        shares = (share(part, runs) for part in (shown, by_pilot, within, ok))
        row(world, f"{gain(world):.4f}", f"{rows:,}", f"{plan.ok_rows:,.0f}", *shares)
        is_kept &= 0.75 - slack(0.8, runs) <= shown / runs <= 0.87 + slack(0.8, runs)
    return is_kept


@SUITE.experiment("tails", runs=4)
def check_tails(*, runs: int = 1000, seed: int = 0, processes: int = 2) -> bool:
    """Are tail means of rewards without a variance doubted, and those with one left alone?"""
    head("rewards", "n", "CVaR", "ok", "covered, given ok", "covered, given caution", "of these with two ends")
    is_kept = True
    for name, n in product((*TAIL_REWARDS, *TAMED), TAIL_SIZES):
        jobs = [(name, n, size, seed * 1000 + k) for k, size in enumerate(split(runs, processes))]
        done = list(in_processes(tail_counts, jobs, processes))
        for q in done[0]:
            ok, ok_held, held, two = map(sum, zip(*(counts[q] for counts in done), strict=True))
            rest = runs - ok
            row(name, f"{n:,}", f"{q:g}", share(ok, runs), share(ok_held, ok), share(held, rest), share(two, rest))
            is_kept &= ok == 0 or name in TAMED
    return is_kept


# -- baselines, models, lists, loggers and A/B tests ------------------------------------------------------------------------


Seen = tuple[str, str, str, bool]  # kind, cell, verdict, whether the interval covers
HARD_WORLDS = (
    "2 actions, greedy",
    "10 actions, softmax",
    "100 actions, greedy",
    "new arm",
    "lognormal 1.5, +0.6",
    "own: greedy logging",
)
HARD_REWARDS = ("clicks 0.02", "clicks 0.3", "revenue", "normal 5")


def model_case(world: str, reward: str, n: int, random: np.random.Generator) -> Iterator[Seen]:
    """A baseline of five columns, one of which moves the reward as much as the action does; a useless model, and `auto` with it."""
    place, pays = worlds()[world], REWARDS[reward]
    columns, effect = place.draw(random, n)
    features = {f"x{k}": random.normal(size=n) for k in range(5)}
    q, v = random.normal(size=(2, n))
    log = columns | features | {"r": pays.draw(random, effect + features["x0"]), "q": q, "v": v}
    logged, truth = place.expect(partial(_averaged, pays.mean))
    cell = f"{world}, {reward}, {n:,}"
    asked = {"reward": "r", "propensity": "p", "target": "t0", "progress": False}
    found = cp.evaluate(log, **asked, baseline=list(features), estimator=["context_ips", "lift"])
    for name, true in (("context_ips", truth), ("lift", truth - logged)):
        yield f"{name}, baseline", cell, found.verdict().verdict, true in found["t0", name].interval
    found = cp.evaluate(log, **asked, model_reward="q", model_value="v", estimator=["optimal_dr", "auto"])
    for name in ("optimal_dr", "auto"):
        yield f"{name}, useless model", cell, found.verdict().verdict, truth in found["t0", name].interval


def _averaged(mean: Callable[[np.ndarray], np.ndarray], effect: np.ndarray) -> np.ndarray:
    """The mean reward of an effect over a standard normal feature that is added to it."""
    points, weights = np.polynomial.hermite_e.hermegauss(30)
    return sum(weight * mean(effect + point) for point, weight in zip(points, weights / weights.sum(), strict=True))


def test_case(rate: float, n: int, clusters: str, random: np.random.Generator) -> Iterator[Seen]:
    """An A/B test of two policies over three actions, by rows or by users of very unequal activity."""
    users = n if clusters == "rows" else n // 10
    size = np.ones(users) if clusters == "rows" else random.lognormal(0.0, 1.5, users)
    user = np.sort(random.choice(users, n, p=size / size.sum())) if clusters != "rows" else np.arange(n)
    arm = (random.random(users) < 0.5)[user]
    x, mood = random.normal(size=n), (0.0 if clusters == "rows" else 0.7) * random.normal(size=users)[user]
    policies = [_choice(x, shift) for shift in (0.0, 0.6)]
    mine = np.where(arm[:, None], policies[1], policies[0])
    action = (mine.cumsum(axis=1) > random.random(n)[:, None]).argmax(axis=1)
    rates = _rate(rate, x[:, None] / 2 + 0.4 * np.arange(3) + mood[:, None])
    r = (random.random(n) < rates[np.arange(n), action]).astype(float)
    log = {"arm": np.where(arm, "B", "A"), "r": r, "x": x, "user": user}
    log |= {f"p_{name}": policies[k][np.arange(n), action] for k, name in enumerate("AB")}
    cluster = {} if clusters == "rows" else {"cluster": "user"}
    test = cp.ab_test(log, arm="arm", reward="r", baseline=["x"], propensity={"A": "p_A", "B": "p_B"}, **cluster)
    truth = _true_effect(rate, 0.0 if clusters == "rows" else 0.7)
    for effect in test.effects:
        yield f"A/B, {effect.method}", f"{rate}, {clusters}, {n:,}", effect.verdict.verdict, truth in effect.interval


def _choice(x: np.ndarray, shift: float) -> np.ndarray:
    scores = np.exp(np.column_stack([np.zeros_like(x), x / 2, x + shift]))
    return scores / scores.sum(axis=1, keepdims=True)


def _rate(rate: float, moved: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.log(rate / (1 - rate)) - moved))


def _true_effect(rate: float, spread: float) -> float:
    """The difference between the arms, by Gauss–Hermite quadrature over the context and the mood."""
    points, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    x, mood = (grid.ravel() for grid in np.meshgrid(points, points))
    density = np.outer(weights, weights).ravel()
    rates = _rate(rate, x[:, None] / 2 + 0.4 * np.arange(3) + spread * mood[:, None])
    return float(density @ ((_choice(x, 0.6) - _choice(x, 0.0)) * rates).sum(axis=1))


def logger_case(sharp: float, rate: float, n: int, random: np.random.Generator) -> Iterator[Seen]:
    """Two loggers, the second of which may be nearly deterministic."""
    effects = np.linspace(-1.0, 1.0, 4)
    a, b = np.full(4, 0.25), (1 - sharp) / 4 + sharp * np.eye(4)[0]
    t = np.array([0.1, 0.2, 0.3, 0.4])
    first = random.random(n) < 0.3
    action = np.where(first, random.choice(4, n, p=a), random.choice(4, n, p=b))
    rates = _rate(rate, effects)
    log = {"who": np.where(first, "a", "b"), "p_a": a[action], "p_b": b[action], "t": t[action]}
    log["r"] = (random.random(n) < rates[action]).astype(float)
    found = cp.evaluate(log, reward="r", propensity={"a": "p_a", "b": "p_b"}, logger="who", target="t", progress=False)
    verdict, one = found.verdict().verdict, found["t", "beta_ips"]
    yield "two loggers", f"sharp {sharp}, rate {rate}, {n:,}", verdict, float(t @ rates) in one.interval


LIST_KINDS = {
    "independent": ("at", "item_at_position", "position"),
    "cascade": ("given", "item_given_above", "cascade"),
}


def list_case(weight: str, sharper: float, lists: int, random: np.random.Generator) -> Iterator[Seen]:
    """Lists of five whose new policy is near the logging one, or far from it."""
    kind, said, clicks = LIST_KINDS[weight]
    world, truth = _ranking(sharper, clicks, int(random.bit_generator.seed_seq.entropy[0]))  # type: ignore[attr-defined]
    asked = {"slate": "list", "position": "position", "propensity_of": said, "progress": False}
    found = cp.evaluate(world.draw(lists), reward="click", propensity=f"p_{kind}", target=f"new_{kind}", **asked)
    covers = truth in found[f"new_{kind}", "beta_ips"].interval
    yield f"lists, {weight}", f"sharper {sharper}, {lists:,} lists", found.verdict().verdict, covers


@cache
def _ranking(sharper: float, clicks: str, seed: int) -> tuple[SyntheticRanking, float]:
    world = SyntheticRanking(5, clicks=clicks, sharper=sharper, seed=seed)  # type: ignore[arg-type]
    return world, world.value(draws=1_000_000)[0]


HARD_CASES: list[tuple[Callable[..., Iterator[Seen]], tuple[object, ...]]] = [
    *((model_case, cell) for cell in product(HARD_WORLDS, HARD_REWARDS, (200, 1_000, 5_000))),
    *((test_case, cell) for cell in product((0.02, 0.3), (400, 4_000), ("rows", "users"))),
    *((logger_case, cell) for cell in product((0.5, 0.98), (0.02, 0.3), (400, 4_000))),
    *((list_case, cell) for cell in product(LIST_KINDS, (1.0, 3.0), (200, 2_000))),
]


def run_case(place: int, runs: int, seed: int) -> list[Seen]:
    """All logs of one cell."""
    work, cell = HARD_CASES[place]
    random = np.random.default_rng([seed, place])
    return [each for _ in range(runs) for each in work(*cell, random)]


@SUITE.experiment("hard", runs=1, every=8)
def check_hard(*, runs: int = 300, seed: int = 0, every: int = 1, processes: int = 2) -> bool:
    """Does `ok` keep its promise for baselines, models, lists, loggers and A/B tests, too?

    Rare rewards, heavy tails, thin overlap, clusters.
    For every kind of answer: how often the verdict is ok, how often intervals cover given ok and given caution, and its worst cell. Broken
    if coverage given ok is below 93 % by more than three standard errors, pooled or in a cell.
    """
    counts: dict[str, dict[str, dict[str, list[bool]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    work = partial(run_case, runs=runs, seed=seed)
    for several in in_processes(work, range(0, len(HARD_CASES), every), processes):
        for kind, cell, verdict, covers in several:
            counts[kind][verdict][cell].append(covers)
    head("", "ok", "covered, given ok", "covered, given caution", "worst cell, given ok")
    broken = []
    for kind, verdicts in counts.items():
        ok, caution = verdicts["ok"], verdicts["caution"]
        total = sum(len(cell) for cells in verdicts.values() for cell in cells.values())
        pooled, doubtful = ([covers for cell in part.values() for covers in cell] for part in (ok, caution))
        chances = {cell: bdtr(sum(hits), len(hits), 0.93) for cell, hits in ok.items()}
        worst = min(chances, key=lambda cell: chances[cell], default="none")
        words = f"{worst}: {np.mean(ok[worst]):.1%} of {len(ok[worst]):,}" if ok else "none"
        covered = (share(sum(part), len(part)) for part in (pooled, doubtful))
        row(kind, share(len(pooled), total, 0), *covered, words)
        if pooled and (bdtr(sum(pooled), len(pooled), 0.93) < 0.00135 or chances[worst] < 0.00135 / len(HARD_CASES)):
            broken.append(kind)
    print(f"\n{runs:,} logs a cell. " + (f"Broken: {'; '.join(broken)}." if broken else "Every promise is kept."))
    return not broken


# -- looking every day --------------------------------------------------------------------------------------------------------

MORNINGS = 30
LOOKED_AT = {
    "2 actions, softmax": ("clicks 0.3", 300),
    "10 actions, softmax": ("clicks 0.02", 3_000),
    "10 actions, greedy": ("normal 5", 400),
    "new arm": ("clicks 0.3", 1_500),
    "lognormal 0.5, +0.6": ("revenue", 2_000),
    "own: near on-policy": ("clicks 0.3", 300),
    "own: greedy logging": ("clicks 0.9", 1_000),
    "own: rare treatment": ("normal 5", 800),
}


@dataclass(frozen=True)
class MonthOfLooks:
    """On which morning a policy was first called better or worse with `ok` (0: never), by one look's intervals, too; and the last word."""

    called: int
    by_student: int
    is_better: bool


def look_daily(place: Table | Any, pays: Any, rows: int, is_equal: bool, random: np.random.Generator) -> MonthOfLooks:
    """Thirty mornings of one month; a policy is equal if no action does anything."""
    called = by_student = 0
    total, decision = None, ""
    for morning in range(1, MORNINGS + 1):
        columns, effect = place.draw(random, rows)
        log = columns | {"r": pays.draw(random, 0.0 * effect if is_equal else effect)}
        today = cp.evaluate(pl.DataFrame(log), reward="r", propensity="p", target="t0", progress=False).moments
        total = today if total is None else total + today
        decision = decided(cp.evaluate(total))
        called = called or morning * bool(decision)
        by_student = by_student or morning * bool(decided(cp.evaluate(total, interval="student"), aside="many-looks"))
    return MonthOfLooks(called, by_student, decision == "better")


def decided(result: Any, aside: str = "") -> str:
    """Better, worse, or nothing where the answer is not `ok`, one caveat set aside."""
    lift = result["t0", "lift"].interval
    is_ok = all(caveat.severity == "note" or caveat.code == aside for caveat in result.verdict().caveats)
    return "" if not is_ok or 0 in lift else "better" if lift.lower > 0 else "worse"


def look_for_months(job: tuple[str, bool, int, int]) -> list[MonthOfLooks]:
    name, is_equal, runs, seed = job
    pays, rows = LOOKED_AT[name]
    dice = (np.random.default_rng([sum(map(ord, name)), is_equal, seed, k]) for k in range(runs))
    return [look_daily(worlds()[name], REWARDS[pays], rows, is_equal, random) for random in dice]


@SUITE.experiment("looks", runs=1, world=["2 actions, softmax"])
def check_looks(*, runs: int = 200, seed: int = 0, world: list[str] = (), processes: int = 2) -> bool:
    """Is a policy that is no better rarely called better or worse in thirty mornings, and one that is better called so in time?

    Rows of a new day are added every morning, and the answer is read. In half of the months no action does anything, so that the target
    earns what the logging policy earns; in the others it is as good as its world has it. The first answer holds for one look and the
    later ones for all of them, so at most 5 % of first answers are wrong, and 5 % of months have a wrong one later.
    """
    head(
        "world",
        "rows a day",
        "equal: called on the first morning",
        "ever",
        "ever, by one look's intervals",
        "better: called so on day 30",
        "first called on morning (median)",
        "by one look's intervals",
    )
    first = later = months = 0
    for name in world or LOOKED_AT:
        found = {}
        for is_equal in (True, False):
            pieces = split(runs, 4 * processes if processes > 1 else 1)
            jobs = [(name, is_equal, size, 1000 * seed + k) for k, size in enumerate(pieces)]
            found[is_equal] = [month for part in in_processes(look_for_months, jobs, processes) for month in part]
        equal, better = found[True], found[False]
        at_first, ever = sum(month.called == 1 for month in equal), sum(month.called > 0 for month in equal)
        by_student = sum(month.by_student > 0 for month in equal)
        median, of_student = (
            f"{np.median(list(filter(None, mornings))):.0f}" if any(mornings) else "–"
            for mornings in ([month.called for month in better], [month.by_student for month in better])
        )
        shares = (share(part, runs) for part in (at_first, ever, by_student, sum(month.is_better for month in better)))
        row(name, f"{LOOKED_AT[name][1]:,}", *shares, median, of_student)
        first, later, months = first + at_first, later + ever - at_first, months + runs
    print(f"\nOver all worlds: {share(first, months)} on the first morning, {share(later, months)} later.")
    return first / months <= 0.05 + slack(0.05, months) and later / months <= 0.05 + slack(0.05, months)


# -- a daily job --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Month:
    """Thirty days of a log: so many rows a day, what they earn, and how much weekdays differ in it, in traffic and in what is logged."""

    rows: int = 1_000
    rate: float = 0.25
    revenue: bool = False
    season: float = 0.2  # of the rate and of the traffic
    turn: float = 0.0  # of the logging policy
    sharp: float = 0.7  # of the two policies
    targets: int = 1
    purchases: float = 0.0  # the spread of the logarithm of what a click is worth, if that differs
    busy: float = 0.15  # the spread of the logarithm of a day's traffic, beside its weekday


CONTEXTS_OF_DAYS, ACTIONS_OF_DAYS, DAYS = 6, 4, 30
MONTHS = {
    "clicks": Month(),
    "clicks, no season": Month(season=0.0),
    "clicks, strong season": Month(season=0.5),
    "clicks, policy with a season": Month(turn=0.4),
    "rare clicks": Month(rows=4_000, rate=0.02),
    "revenue": Month(rows=2_000, revenue=True),
    "thin overlap": Month(rows=2_000, sharp=1.5),
    "a few large purchases": Month(rows=2_000, rate=0.05, purchases=1.5),
    # looked at once, at the end
    "own: small days": Month(rows=300, rate=0.4, season=0.3),
    "own: three targets, revenue": Month(rows=1_500, revenue=True, season=0.3, targets=3),
    "own: many rows": Month(rows=20_000, rate=0.1, season=0.1, turn=0.2),
    "own: traffic that comes and goes": Month(rows=1_000, season=0.5, busy=0.3),
}
SHIFTS = ("quiet", "reward", "value", "lift", "weight", "propensities")
# what is missing: 95 % of the rows of a week, from day 20 on; day 21; the last three days
GAPS_OF_DAYS = {"a week's rows": range(19, 26), "a day": (20,), "the last days": (27, 28, 29)}
KEPT_OF_WEEK = 0.05


@dataclass(frozen=True)
class Stage:
    """What a month is drawn from: policies and rates by context, on every weekday."""

    logging: np.ndarray  # weekday, context, action
    targets: np.ndarray  # target, context, action
    rates: np.ndarray  # weekday, context, action
    traffic: np.ndarray  # weekday


def stage_of(month: Month, random: Random) -> Stage:
    shape = CONTEXTS_OF_DAYS, ACTIONS_OF_DAYS
    scores = month.sharp * random.normal(size=shape)
    tilt = month.turn * random.normal(size=(7, *shape))
    logging = _softened(scores + tilt)
    targets = _softened(scores + month.sharp * random.normal(size=(month.targets, *shape)))
    rates = month.rate * (0.6 + 0.8 * random.random(shape)) * (1 + month.season * _week(random))[:, None, None]
    return Stage(logging, targets, rates, month.rows * (1 + month.season * _week(random)))


def _week(random: Random) -> np.ndarray:
    """A pattern of the week between −1 and 1."""
    return random.uniform(-1, 1, 7)


def _softened(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores)
    return powers / powers.sum(axis=-1, keepdims=True)


def draw_month(month: Month, stage: Stage, shift: str, size: float, random: Random) -> pl.DataFrame:
    """A month in which something shifts by `size` from day 20 on."""
    parts = []
    for day in range(DAYS):
        week = day % 7
        logging, rates, is_shifted = stage.logging[week], stage.rates[week], shift in SHIFTS[1:] and day >= 19
        if is_shifted and shift == "propensities":
            logging = (1 - size) * logging + size / ACTIONS_OF_DAYS
        share_kept = (
            1.0 if day not in GAPS_OF_DAYS.get(shift, ()) else KEPT_OF_WEEK if shift == "a week's rows" else 0.0
        )
        n = int(random.poisson(share_kept * stage.traffic[week] * np.exp(month.busy * random.normal())))
        context = random.integers(CONTEXTS_OF_DAYS, size=n)
        cumulative = logging.cumsum(axis=1)[context]
        action = np.minimum((random.random(n)[:, None] > cumulative).sum(axis=1), ACTIONS_OF_DAYS - 1)
        p, pi = logging[context, action], stage.targets[:, context, action]
        rate = rates[context, action]
        if is_shifted and shift == "reward":
            rate = rate + size
        if is_shifted and shift in ("value", "lift"):
            rate = rate + size * (pi[0] / p - 1)
        if is_shifted and shift == "weight":
            p = p / (1 + size)  # which is wrong
        reward = (random.random(n) < rate) * 1.0
        if month.purchases:
            reward *= np.exp(random.normal(-(month.purchases**2) / 2, month.purchases, n))
        if month.revenue:
            reward = rate + (random.gamma(0.5, 2.0, n) - 1) * 0.5 * rates[context, action]
        logged = {"day": np.full(n, day), "reward": reward, "p": p} | {f"t{k}": pi[k] for k in range(len(pi))}
        parts.append(pl.DataFrame(logged))
    start = pl.lit("2026-06-01").str.to_date()
    return pl.concat(parts).with_columns((start + pl.duration(days="day")).dt.to_string().alias("day"))


def watched(frame: pl.DataFrame) -> Any:
    targets = [name for name in frame.columns if name.startswith("t")]
    return cp.watch(
        frame, reward="reward", propensity="p", target=targets, day="day", as_of="2026-07-01", progress=False
    )


def shift_size(month: Month, stage: Stage, shift: str, errors: dict[str, float]) -> float:
    """What makes a shift of three daily standard errors of its own series."""
    if shift == "quiet":
        return 0.0
    wanted, logging = 3 * errors[shift], stage.logging.mean(axis=0)
    weights = stage.targets[0] / logging
    square = float((logging * weights**2).sum(axis=1).mean())
    if shift in ("value", "lift"):
        return wanted / (square - 1)
    if shift != "propensities":
        return wanted
    sizes = np.linspace(0.0, 1.0, 2001)
    mixed = [(1 - size) * logging + size / ACTIONS_OF_DAYS for size in sizes]
    moved = np.array([1 / (stage.targets[0] ** 2 / each).sum(axis=1).mean() for each in mixed]) - 1 / square
    return float(sizes[np.abs(moved) >= wanted][0]) if (np.abs(moved) >= wanted).any() else 1.0


def watch_months(job: tuple[str, str, int, int]) -> tuple[int, int, int]:
    """How many months had any alarm in them; how many an alarm of any series, and of the one that shifted, from day 20 to 23."""
    name, shift, runs, seed = job
    month, any_alarm, found, found_own = MONTHS[name], 0, 0, 0
    for k in range(runs):
        random = np.random.default_rng([sum(map(ord, name)), [*SHIFTS, *GAPS_OF_DAYS].index(shift), seed, k])
        stage = stage_of(month, random)
        if shift in GAPS_OF_DAYS:
            alarms = watched(draw_month(month, stage, shift, 0.0, random)).alarms
            days = {f"2026-06-{day + 1:02}" for day in GAPS_OF_DAYS[shift]}
            any_alarm += bool(alarms)
            found += any(alarm.series == "rows" and alarm.noticed in days for alarm in alarms)
            continue
        quiet = watched(draw_month(month, stage, "quiet", 0.0, random))
        if shift == "quiet":
            any_alarm += bool(quiet.alarms)
            continue
        errors = {series.kind: float(np.mean(series.errors)) for series in quiet.series if series.target in ("", "t0")}
        alarms = watched(draw_month(month, stage, shift, shift_size(month, stage, shift, errors), random)).alarms
        soon = [alarm for alarm in alarms if "2026-06-20" <= alarm.noticed <= "2026-06-23"]
        any_alarm, found = any_alarm + bool(alarms), found + bool(soon)
        found_own += any(alarm.series == shift and alarm.target in ("", "t0") for alarm in soon)
    return any_alarm, found, found_own


@SUITE.experiment("watch", runs=1, world=["clicks"])
def check_watch(*, runs: int = 1000, seed: int = 0, world: list[str] = (), processes: int = 2) -> bool:
    """Is `watch` quiet in quiet months, and does it find a lasting shift of three daily standard errors within four days?

    Months of 30 days with a pattern of the week in rewards, traffic and policies, drawn anew for every month. A shift begins on day 20
    and is of one series: the logging policy's mean reward, the target's value or lift, wrong propensities, or a policy that explores more.
    Or rows are missing: 95 % of those of a week, a whole day, or the last three days; that is found while it lasts. Where a few large
    purchases carry a day's mean, nothing is promised about how soon a shift is found.
    """
    missing = (f"{gap} found missing" for gap in GAPS_OF_DAYS)
    head("world", "any alarm in a quiet month", *(f"{shift} found by day 23" for shift in SHIFTS[1:]), *missing)
    is_kept = True
    for name in world or MONTHS:
        shown = []
        for shift in (*SHIFTS, *GAPS_OF_DAYS):
            pieces = split(runs, 4 * processes if processes > 1 else 1)
            jobs = [(name, shift, size, 1000 * seed + k) for k, size in enumerate(pieces)]
            alarmed, found, own = map(sum, zip(*in_processes(watch_months, jobs, processes), strict=True))
            if shift == "quiet":
                shown.append(share(alarmed, runs))
                is_kept &= alarmed / runs <= 0.05 + slack(0.05, runs)
            elif shift in GAPS_OF_DAYS:
                shown.append(share(found, runs))
                is_kept &= found / runs >= 0.95 - slack(0.95, runs)
            else:
                shown.append(f"{share(found, runs)} ({share(own, runs)} in its own series)")
                is_kept &= MONTHS[name].purchases > 0 or found / runs >= 0.9 - slack(0.9, runs)
        row(name, *shown)
    return is_kept


def scan_weights(errors: Floats, weekdays: np.ndarray, spread: float, first: int) -> Floats:
    """What `watch` compares with its limit on all days, for all beginnings of a change, as weights of the days, by least squares."""
    days = np.arange(len(errors))
    covariance = np.diag(errors**2) + spread * (np.asarray(weekdays)[:, None] == np.asarray(weekdays))
    rows = []
    for last in range(first, len(errors)):
        inverse = np.linalg.inv(covariance[: last + 1, : last + 1])
        total = inverse.sum(axis=1)
        projected = inverse - np.outer(total, total) / total.sum()
        for start in range(max(SETTLED, last + 1 - WIDEST), last + 1):
            shift = days[: last + 1] >= start
            weights = projected @ shift
            rows.append(np.pad(weights / math.sqrt(float(weights @ shift)), (0, len(errors) - last - 1)))
    return np.array(rows)


@SUITE.experiment("watch-limits", runs=200)
def check_watch_limits(*, runs: int = 50_000, seed: int = 0) -> bool:
    """How often do normal numbers pass the limit of an alarm, with effects of weekdays and after references of any size?

    The effects of weekdays are known to have the variance that they have; each cell is one series that may alarm in 5 %, 1 % or 0.2 %.
    """
    head("weekdays", "reference", "days", *(f"allowed {alpha:.1%}" for alpha in (0.05, 0.01, 0.002)))
    is_kept, random = True, np.random.default_rng(seed)
    for spread, (first, last) in product((0.1, 1.0, 30.0), ((14, 30), (14, 21), (10, 30), (28, 44), (30, 60))):
        weekdays = np.arange(last) % 7
        weights = scan_weights(np.ones(last), weekdays, spread**2, first)
        most = []
        for size in split(runs, max(runs // 5_000, 1)):
            y = random.normal(size=(size, last)) + spread * random.normal(size=(size, 7))[:, weekdays]
            most.append(np.abs(y @ weights.T).max(axis=1))
        found = np.concatenate(most)
        shares = {alpha: float(np.mean(found > alarm_limit(first, last, 1, alpha))) for alpha in (0.05, 0.01, 0.002)}
        row(f"± {spread:g}", first, last, *(f"{part:.2%}" for part in shares.values()))
        is_kept &= all(part <= 1.25 * alpha + slack(alpha, runs) for alpha, part in shares.items())
    return is_kept


# -- propensities that mean something else, and advice that is followed -----------------------------------------------------


READ_DOUBTS = {"propensities-not-probabilities", "propensities-reread"}
WRITTEN: dict[str, tuple[Callable[[Floats], Floats], str]] = {
    "percentages": (lambda p: 100 * p, "p / 100"),
    "logarithms": (np.log, "exp(p)"),
    "complements": (lambda p: 1 - p, "1 - p"),
    "odds": (lambda p: p / (1 - p), "p / (1 + p)"),
    "inverses": (lambda p: 1 / p, "1 / p"),
}
EXPLORED = ("ε for ε/K", "ε for ε/K, ε·K = 1", "ε by branch")
READ_RIGHT = ("as it is", "percentages, read", "logarithms, read")


@dataclass(frozen=True)
class ReadLog:
    """A log whose propensities are to be read, what is asked of it, the right way to read them, and the target's value."""

    frame: pl.DataFrame
    asked: dict[str, Any]
    right: str
    truth: float


def read_log(kind: str, random: np.random.Generator) -> ReadLog:
    """A log of an ε-greedy or a softmax policy, whose logger wrote something else for the propensity."""
    is_explored = kind in EXPLORED
    actions, contexts, n = int(random.integers(3, 16)), int(random.integers(2, 13)), int(random.integers(3000, 12_000))
    epsilon = 1 / actions if "= 1" in kind else float(random.uniform(0.05, 0.4))
    rate = random.beta(2, 5, (contexts, actions))
    best = rate.argmax(axis=1) if random.random() < 0.5 else random.integers(actions, size=contexts)
    logging = np.full((contexts, actions), epsilon / actions)
    logging[np.arange(contexts), best] += 1 - epsilon
    if not is_explored and random.random() < 0.7:
        logging = softmax(random.uniform(0.3, 1.5) * random.normal(size=(contexts, actions)))
    x = random.integers(contexts, size=n)
    a = (random.random((n, 1)) > logging.cumsum(axis=1)[x]).sum(axis=1).clip(max=actions - 1)
    p = right = logging[x, a]
    expression, more = "p", {}
    if kind in WRITTEN or kind.removesuffix(", read") in WRITTEN:
        write, expression = WRITTEN[kind.removesuffix(", read")]
        p = write(right)
    elif kind == "ε by branch":  # a random choice of the best action is logged as any other
        p = np.where(
            (a == best[x]) & (random.random(n) < (1 - epsilon) / (1 - epsilon + epsilon / actions)),
            1 - epsilon,
            epsilon,
        )
        expression = ""
    elif is_explored:
        has_share = random.random() < 0.5
        p = np.where(a == best[x], 1 - epsilon + has_share * epsilon / actions, epsilon)
        end = "p END" if has_share else f"p + (1 - p) / {actions} END"
        expression = f"CASE WHEN p < 0.5 THEN p / {actions} ELSE {end}"
    elif kind == "another column":
        p, expression = logging.max(axis=1)[x], "logged"
        more = {"logged": right}
    uniform = np.full((contexts, actions), 1 / actions)
    target = [uniform, softmax(4 * rate), greedy(rate, 0.2)][int(random.integers(3))]
    frame = {"r": (random.random(n) < rate[x, a]) * 1.0, "p": p, "t": target[x, a], **more}
    asked: dict[str, Any] = {"reward": "r", "target": "t"}
    if random.random() < 0.3:
        chosen = rate.argmax(axis=1)
        target = np.eye(actions)[chosen]
        frame["chosen"], asked["target"] = chosen[x], {"new": cp.Chosen("chosen")}
    if random.random() < 0.6 or "new" in asked["target"]:
        frame["a"], asked["action"] = a, "a"
    if random.random() < 0.4:
        frame["x"], asked["segment"] = x.astype(str), "x"
    return ReadLog(pl.DataFrame(frame), asked, expression, float((target * rate).sum(axis=1)[x].mean()))


ADVISED = re.compile(r"propensity='([^']*)'")


def follow(log: ReadLog, start: str) -> tuple[list[str], str, bool, set[str]]:
    """The readings that were named and followed, the last verdict, whether its value is right, and the caveats of the first answer."""
    named: list[str] = []
    first: set[str] | None = None
    reading = start
    while True:
        try:
            result = cp.evaluate(log.frame, **log.asked, propensity=reading)
        except CounterpoiseError as error:
            said, verdict, is_right, codes = str(error), "refused", False, {"refused"}
        else:
            estimate = result[result.targets[0], "beta_ips"]
            caveats = result.verdict().caveats
            said, verdict = " ".join(result.verdict().reasons), result.verdict().verdict
            is_right = abs(estimate.value - log.truth) <= 3.5 * estimate.stderr
            codes = {caveat.code for caveat in caveats}
        first = codes if first is None else first
        advice = [each for each in ADVISED.findall(said) if each not in (*named, start)]
        if verdict == "ok" or not advice or len(named) > 3:
            return named, verdict, is_right, first
        reading = advice[0]
        named.append(reading)


def reading_counts(job: tuple[str, int, int]) -> tuple[int, ...]:
    """Of some logs: doubted, advised, rightly advised, ok in the end, ok with a wrong answer, and the same of 1 - p, typed anyway."""
    kind, runs, seed = job
    counts = np.zeros(6, int)
    for k in range(runs):
        log = read_log(kind, np.random.default_rng([seed, k, *map(ord, kind)]))
        named, verdict, is_right, first = follow(log, log.right if kind in READ_RIGHT else "p")
        _, typed, typed_right, _ = follow(log, "1 - p")
        counts += [
            bool(first & {*READ_DOUBTS, "refused"}),
            bool(named),
            log.right in named,
            verdict == "ok",
            verdict == "ok" and not is_right,
            typed == "ok" and not typed_right,
        ]
    return tuple(int(count) for count in counts)


@SUITE.experiment("readings", runs=4)
def check_readings(*, runs: int = 100, seed: int = 0, processes: int = 2) -> bool:
    """Where propensities mean something else, is the right reading named, and does following it make a wrong answer `ok`?

    Of right logs, twice as many. The last column follows no advice: it is how often 1 - p is `ok` and wrong.
    """
    head("logged", "logs", "doubted", "advised", "rightly", "ok", "ok and wrong", "1 - p: ok and wrong")
    is_kept = True
    for kind in (*READ_RIGHT, *WRITTEN, *EXPLORED, "another column"):
        logs = 2 * runs if kind in READ_RIGHT else runs
        jobs = [(kind, size, seed * 1000 + k) for k, size in enumerate(split(logs, processes))]
        counts = np.sum(list(in_processes(reading_counts, jobs, processes)), axis=0)
        row(kind, logs, *(share(count, logs) for count in counts))
        doubted, _, _, _, wrong, _ = counts / logs
        is_kept &= wrong <= 0.05 + slack(0.05, logs)
        is_kept &= kind not in READ_RIGHT or doubted <= 0.01 + slack(0.01, logs)
    return is_kept


# -- policies that saw the rows of the log ----------------------------------------------------------------------------------


# -- labels that depend on the action ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Doubts:
    """What the verdicts of one kind of log say: how many are `ok`, doubted for these codes alone, and cover the truth."""

    ok: bool
    anew: bool
    covered: bool | None  # None where the truth is unknown


def doubts_of(found: cp.Result, truth: float, codes: frozenset[str]) -> Doubts:
    """Of one log, by its headline."""
    caveats = {caveat.code for caveat in found.verdict().caveats if caveat.severity != "note"}
    covered = None if math.isnan(truth) else truth in found[found.targets[0], "beta_ips"].interval
    return Doubts(not caveats, bool(caveats) and caveats <= codes, covered)


def show_doubts(
    right: dict[str, Callable[[Random], Doubts]],
    wrong: dict[str, Callable[[Random], Doubts]],
    runs: int,
    seed: int,
    processes: int,
    most: tuple[float, float],
) -> bool:
    """A line for every kind of log, and whether right ones are doubted anew, and wrong ones `ok`, in at most these shares of them."""
    head("", "kind", "logs", "ok", "doubted anew", "covered")
    is_kept = True
    for group, kinds, logs in (("right", right, runs), ("wrong", wrong, max(runs // 2, 1))):
        total = 0
        for name, draw in kinds.items():
            jobs = [(draw, [sum(map(ord, name)), seed, run]) for run in range(logs)]
            done = list(in_processes(drawn_doubts, jobs, processes, chunk=max(1, logs // 20)))
            ok, anew = (sum(getattr(each, part) for each in done) for part in ("ok", "anew"))
            covered = [each.covered for each in done if each.covered is not None]
            row(group, name, logs, share(ok, logs), share(anew, logs), share(sum(covered), len(covered)))
            total += anew if group == "right" else ok
        count, allowed = logs * len(kinds), most[group == "wrong"]
        what = "right logs doubted anew" if group == "right" else "wrong logs that are ok"
        print(f"\n{what}: {share(total, count, 2)} of {count:,} (at most {allowed:.0%})\n")
        is_kept &= total / max(count, 1) <= allowed
    return is_kept


def drawn_doubts(job: tuple[Callable[[Random], Doubts], list[int]]) -> Doubts:
    draw, seed = job
    return draw(np.random.default_rng(seed))


LABELS_OF_ALL = 0.06


def rated_log(random: Random, how: str, *, actions: int = 2, passed: str = "", n: int = 12_000, **parts: str) -> Doubts:
    """Answers of several models that a judge scored, and people rated at random or by something."""
    kind, user = random.integers(0, 4, n), random.integers(0, 1500, n)
    logging, new = random.dirichlet(np.full(actions, 8.0), 4), random.dirichlet(np.full(actions, 2.0), 4)
    rate = random.uniform(0.2, 0.8, (4, actions))
    model = (random.random(n)[:, None] > logging.cumsum(axis=1)[kind]).sum(axis=1).clip(max=actions - 1)
    good = random.random(n) < rate[kind, model]
    score = np.clip(0.3 * random.random(n) + 0.4 * good + 0.3 * (model == 0) * random.random(n), 0, 1)
    more = {
        "at random": lambda: np.ones(n),
        "by the model": lambda: np.linspace(0.4, 1.6, actions)[model],
        "by the model, four to one": lambda: np.where(model == 0, 1.6, 0.4),
        "by the judge": lambda: np.where(np.abs(score - 0.5) < 0.2, 1.5, 0.5),
        "by the kind of question": lambda: np.array([0.4, 0.8, 1.2, 1.6])[kind],
        "by what the target likes": lambda: np.clip(new[kind, model] / logging[kind, model], 0.3, 3.0),
        "by the user": lambda: random.choice([0.2, 1.8], 1500)[user],
    }[how]()
    chance = LABELS_OF_ALL * more
    rated = random.random(n) < chance
    frame = pl.DataFrame(
        {
            "good": np.where(rated, good, np.nan), "score": score, "rated": rated, "model": model, "kind": kind, "user": user,
            "p": logging[kind, model], "pi_new": new[kind, model], "chance": chance,
        }
    )  # fmt: skip
    asked: dict[str, Any] = {
        "reward": "good",
        "proxy": "score",
        "observed": "rated",
        "propensity": "p",
        "target": "pi_new",
        **parts,
    }
    if passed:
        asked["label_propensity"] = 0.06 if passed == "a constant" else passed
    truth = float((new * rate).sum(axis=1).mean())
    return doubts_of(cp.evaluate(frame, **asked), truth, frozenset({"labels-depend-on-action"}))


NAMED, SEGMENTED = {"action": "model"}, {"segment": "kind"}
RIGHT_LABELS: dict[str, Callable[[Random], Doubts]] = {
    f"{how}{', known' * bool(passed)}, {actions} models{''.join(f', {part}' for part in parts)}": partial(
        rated_log, how=how, actions=actions, passed=passed, **parts
    )
    for how, passed in (
        ("at random", ""), ("at random", "a constant"), ("by the model", "chance"), ("by the judge", "chance"),
        ("by the kind of question", "chance"), ("by what the target likes", "chance"), ("by the user", ""), ("by the user", "chance"),
    )
    for actions, parts in ((2, NAMED), (5, {"action": "model", "cluster": "user"}), (12, NAMED | SEGMENTED), (3, {}))
    if how != "by the user" or "cluster" in parts or passed == ""
}  # fmt: skip
WRONG_LABELS: dict[str, Callable[[Random], Doubts]] = {
    f"{how}, {passed or 'nothing'} passed{''.join(f', {part}' for part in parts)}": partial(
        rated_log, how=how, actions=actions, passed=passed, **parts
    )
    for how, actions, parts in (
        ("by the model", 2, NAMED), ("by the model", 5, NAMED), ("by the model, four to one", 2, {}),
        ("by the model, four to one", 3, SEGMENTED), ("by the model", 3, {"action": "model", "cluster": "user"}),
        ("by the kind of question", 2, SEGMENTED), ("by what the target likes", 4, {}),
    )
    for passed in ("", "a constant")
}  # fmt: skip


@SUITE.experiment("labels", runs=2)
def check_labels(*, runs: int = 200, seed: int = 0, processes: int = 2) -> bool:
    """Are labels that depend on the action, a segment or the weights doubted, and those at random or of known probability left alone?"""
    return show_doubts(RIGHT_LABELS, WRONG_LABELS, runs, seed, processes, (0.01, 0.05))


# -- looks at a state, day after day ----------------------------------------------------------------------------------------


# -- clusters under any name ------------------------------------------------------------------------------------------------


OTHERS: dict[
    str, Callable[[Random, int], tuple[Any, Floats]]
] = {  # of columns that describe a decision: values, and their effects
    "country": lambda g, n: _of_levels(g, g.choice(40, n, p=1 / np.arange(1, 41) / np.sum(1 / np.arange(1, 41)))),
    "age": lambda g, n: _of_number(np.clip(g.normal(40, 12, n), 18, 80).astype(int), lambda x: (x - 40) / 15),
    "hr": lambda g, n: _of_number(g.integers(0, 24, n), lambda x: np.sin(x / 24 * 2 * np.pi)),
    "visits": lambda g, n: _of_number(g.poisson(60, n), lambda x: (x - 60) / 9),
    "cents": lambda g, n: _of_number(g.choice(g.integers(5, 90, 60) * 100 - 1, n), lambda x: 1 - x / 4000),
    "campaign": lambda g, n: _of_levels(g, g.integers(0, 50, n)),
    "zip": lambda g, n: _of_levels(g, g.integers(0, 300, n)),
    "context": lambda g, n: _of_levels(g, g.integers(0, 40, n)),
    "x": lambda g, n: _of_number(g.normal(size=n), lambda x: x),
}


def _of_levels(random: Random, level: NDArray[np.int64]) -> tuple[Any, Floats]:
    return [f"v{k}" for k in level], 0.6 * random.normal(size=int(level.max()) + 1)[level]


def _of_number(x: Floats, effect: Callable[[Floats], Floats]) -> tuple[Any, Floats]:
    return x, effect(x)


def clusters_log(
    random: Random,
    name: str,
    taste: float,
    *,
    kind: str = "click",
    per: int = 20,
    how: str = "even",
    other: str = "",
    n: int = 5000,
) -> Doubts:
    """Single decisions in clusters under some name, with a column that describes them."""
    count = n // per
    shares = random.dirichlet(np.full(count, 4.0)) if how == "uneven" else np.full(count, 1 / count)
    who = random.choice(count, n, p=shares) if how != "in order" else np.repeat(np.arange(count), per)
    action = random.choice(4, n, p=OLD)
    if how == "one choice each":
        action = random.choice(4, count, p=OLD)[who]
    values, effect = OTHERS[other](random, n) if other else (random.integers(0, 3, n), np.zeros(n))
    mood = taste * random.normal(size=count)[who] + 0.7 * effect
    names = random.permutation(10 * count)[:count]
    ids = names[who] if name.endswith(("id", "no")) else [f"{name[0]}{k}@x" for k in names[who]]
    columns = {name: ids, other or "region": values, "p": OLD[action], "pi_new": NEW[action]}
    frame = pl.DataFrame(columns | {"r": rewards_of(random, kind, 0.3 * (action - 1), mood)})
    if how != "in order":
        frame = frame.sample(fraction=1.0, shuffle=True, seed=int(random.integers(2**31)))
    found = cp.evaluate(frame, reward="r", propensity="p", target="pi_new")
    return doubts_of(found, math.nan, frozenset({"rows-move-together"}))


RIGHT_CLUSTERS: dict[str, Callable[[Random], Doubts]] = {
    f"{name}, {kind}, {how}, {per} rows each, independent": partial(
        clusters_log, name=name, taste=0.0, kind=kind, how=how, per=per
    )
    for name, kind, how, per in (
        ("store", "click", "even", 20), ("sid", "rare", "uneven", 5), ("email", "spend", "even", 3), ("shop_id", "heavy", "in order", 20),
        ("clinic", "measured", "uneven", 100), ("branch_no", "click", "one choice each", 20),
    )
} | {
    f"rewards depend on {other}, {kind}": partial(clusters_log, name="store", taste=0.0, kind=kind, other=other)
    for other in OTHERS for kind in ("click", "measured")
}  # fmt: skip
WRONG_CLUSTERS: dict[str, Callable[[Random], Doubts]] = {
    f"{name}, {kind}, {how}, taste {taste:g}{', ' * bool(other)}{other}": partial(
        clusters_log, name=name, taste=taste, kind=kind, how=how, other=other
    )
    for name, kind, how, taste, other in (
        ("shop_id", "click", "even", 0.8, ""), ("store", "click", "uneven", 0.8, "age"), ("sid", "measured", "in order", 0.7, ""),
        ("email", "spend", "even", 1.2, "context"), ("clinic", "rare", "uneven", 1.2, ""),
        ("whoever", "click", "one choice each", 0.8, "country"),
        ("shop_id", "measured", "one choice each", 0.6, ""), ("store", "heavy", "even", 1.0, "hr"),
    )
}  # fmt: skip


@SUITE.experiment("clusters", runs=2)
def check_clusters(*, runs: int = 200, seed: int = 0, processes: int = 2) -> bool:
    """Are clusters noticed whatever their column is called, and independent rows left alone, whatever else their rewards depend on?

    Clusters of 20 rows, 5,000 in all; the right logs have more and fewer rows each. No log can tell whether the levels of a category are
    all there are or a draw from many: one that rewards depend on, with many levels, none of them common, and a name that says nothing, is
    taken for clusters. The last lines show how often; they are not counted.
    """
    unknown = {
        f"{kind}, a category with a name that says nothing": partial(
            clusters_log, name="abc", taste=0.5, kind=kind, per=100
        )
        for kind in ("click", "measured")
    }
    is_kept = show_doubts(RIGHT_CLUSTERS, WRONG_CLUSTERS, runs, seed, processes, (0.01, 0.10))
    show_doubts(unknown, {}, max(runs // 10, 1), seed, processes, (1.0, 1.0))
    return is_kept


# -- costs ------------------------------------------------------------------------------------------------------------------


GAINS = (
    "clicked", "booked", "order_value", "minutesWatched", "tips", "upvotes", "signup", "installs", "add_to_cart", "lifetime_value",
    "nps", "accuracy", "savings", "quality_score", "downloads", "resolved_by_bot", "fraud_caught", "costEffectiveness", "streams",
    "errors_fixed", "open_rate", "distance_run", "yield", "throughput", "units_sold", "lossless_share", "on_time", "no_refund",
)  # fmt: skip
COST_NAMES = (
    "cost", "unit_cost", "shippingCosts", "p95_latency", "churned_30d", "refund_amount", "num_errors", "bounced", "complaints", "loss",
    "time_to_resolution", "wait_time", "is_fraud", "cancellations", "unsubscribed", "delay_minutes", "failureRate", "crash",
)  # fmt: skip


@dataclass(frozen=True)
class CostRun:
    """A log: whether a gain was taken for a cost, whether answers mirror, and what was said of a policy that costs more."""

    asked: bool  # about the reward with a gain's name
    unasked: bool  # about that with a cost's
    mirrored: bool
    costs_more: bool  # by the truth
    better: bool  # said of it, whether or not `minimize=` was
    advised: bool  # to be tested live


def all_said(log: pl.DataFrame, reward: str, minimize: bool | None) -> tuple[object, ...]:
    """What every verb decides: each target's decision and verdict, the order, the best, the ranking and the plan."""
    asked: dict[str, Any] = {"reward": reward, "propensity": "p", "minimize": minimize}
    names = [name for name in log.columns if re.fullmatch(r"t\d", name)]
    reading = read(cp.evaluate(log, **asked, target=names))
    plan = cp.plan(log, **asked, target=names[0], difference=0.1)
    return (
        [(change.target, change.decision, change.verdict.verdict) for change in reading.changes],
        reading.best.target,
        [(one.target, one.decision) for one in cp.rank(log, **asked, target=names)],
        plan.needs,
        plan.ok_rows,
        [str(step)[:10] for step in wording.next_steps(reading)],
    )


def cost_runs(job: tuple[int, int], sizes: tuple[int, ...] = (300, 3_000, 20_000)) -> list[CostRun]:
    """Logs of worlds in turn, whose reward is once a gain and once a cost."""
    runs, seed = job
    random, made = np.random.default_rng([seed, 606]), []
    places, rewards = [*worlds().values(), *pairs().values()], list(REWARDS.values())
    for _ in range(runs):
        place, reward = places[random.integers(len(places))], rewards[random.integers(len(rewards))]
        columns, effect = place.draw(random, int(random.choice(sizes)))
        gain, cost = str(random.choice(GAINS)), str(random.choice(COST_NAMES))
        r = reward.draw(random, effect)
        log = pl.DataFrame(columns | {gain: r, cost: r, "mirror": -r})
        logged, *values = place.expect(reward.mean)
        target = f"t{int(np.argmax(values))}"
        of_gain, of_cost, of_cost_said = (
            cp.evaluate(log, reward=name, propensity="p", target=target, minimize=minimize)
            for name, minimize in ((gain, None), (cost, None), (cost, True))
        )
        readings = [read(result) for result in (of_cost, of_cost_said)]
        made.append(
            CostRun(
                asked=of_gain.minimize is None or of_gain.verdict() != of_cost_said.verdict(),
                unasked=of_cost.minimize is not None,
                mirrored=all_said(log, cost, True) == all_said(log, "mirror", None),
                costs_more=max(values) > logged,
                better=any(reading.best.decision == "better" for reading in readings),
                advised=any(
                    str(step).startswith("Test it") for reading in readings for step in wording.next_steps(reading)
                ),
            )
        )
    return made


@SUITE.experiment("costs", runs=40)
def check_costs(*, runs: int = 300, seed: int = 0, processes: int = 2) -> bool:
    """Is a policy that costs more ever called better, are gains taken for costs, and do a cost and its negative get mirrored answers?

    The target is the one that raises the reward most, by the truth. Under the name of a gain, nobody may be asked which way is better.
    Under the name of a cost it may not be called better, nor be advised to be tested live, more often than an interval misses; neither
    with `minimize=`, nor before anybody said. A log with a cost to be minimized and one with its negative get the same decisions,
    verdicts, order, ranking, plan and next steps.
    """
    jobs = [(size, 1000 * seed + k) for k, size in enumerate(split(runs, 4 * processes if processes > 1 else 1))]
    found = [run for part in in_processes(cost_runs, jobs, processes) for run in part]
    wrong = [run for run in found if run.costs_more]
    head(
        "logs",
        "gains asked about",
        "costs not asked about",
        "mirrored",
        "cost more",
        "called better",
        "to be tested live",
    )
    asked, unasked, mirrored = (sum(getattr(run, name) for run in found) for name in ("asked", "unasked", "mirrored"))
    better, advised = (sum(getattr(run, name) for run in wrong) for name in ("better", "advised"))
    shares = (share(better, len(wrong)), share(advised, len(wrong)))
    row(len(found), share(asked, runs), share(unasked, runs), share(mirrored, runs), len(wrong), *shares)
    rare = max(better, advised) / max(len(wrong), 1) <= 0.05
    return asked <= 0.01 * runs and not unasked and mirrored == len(found) and rare


# -- rows that are missing from days ----------------------------------------------------------------------------------------


# -- rows that repeat by chance ---------------------------------------------------------------------------------------------


USUAL_VALUES: dict[str, Callable[[Random, Floats, Floats], dict[str, Any]]] = {  # of a log with scores and actions
    "clipped reward": lambda g, score, action: {"r": score.clip(0, 1)},
    "clipped column": lambda g, score, action: {"score": score.clip(0, 0.9)},
    "a usual price": lambda g, score, action: {"price": np.where(g.random(len(score)) < 0.3, 9.99, np.exp(score))},
    "prices of a list": lambda g, score, action: {
        "price": np.where(g.random(len(score)) < 0.3, g.choice(g.gamma(2, 9, 25), len(score)), np.exp(score))
    },
    "price of the action": lambda g, score, action: {
        "price": np.where(g.random(len(score)) < 0.4, 5.0 + action, np.exp(score))
    },
    "mostly no amount": lambda g, score, action: {"r": np.where(score > 0.8, np.exp(score), 0.0)},
    "an exact time": lambda g, score, action: {"time": np.sort(g.uniform(0, 1e6, len(score)))},
    "seconds": lambda g, score, action: {"second": np.sort(g.integers(0, 100_000, len(score)))},
}


def repeats_log(random: Random, kind: str, again: str = "") -> Doubts:
    """Rows with a column that has a usual value; `again` says how some of them were logged more than once."""
    n = 4000
    action, country = random.integers(0, 3, n), random.choice(12, n, p=random.dirichlet(np.ones(12)))
    click = (random.random(n) < 0.1 + 0.1 * action).astype(float)
    score = 0.4 + 0.1 * action + 0.5 * random.normal(size=n)
    columns = {"p": np.full(n, 1 / 3), "pi_new": np.array([0.2, 0.3, 0.5])[action], "country": country, "r": click}
    frame = pl.DataFrame(columns | USUAL_VALUES[kind](random, score, action))
    if again == "read twice":
        frame = pl.concat([frame, frame])
    elif again == "sent again":  # some of them several times
        times = np.where(random.random(n) < 0.1, 1 + random.geometric(0.6, n), 1)
        frame = frame[np.repeat(np.arange(n), times)]
    found = cp.evaluate(frame, reward="r", propensity="p", target="pi_new")
    return doubts_of(found, math.nan, frozenset({"repeated-rows"}))


@SUITE.experiment("repeats", runs=4)
def check_repeats(*, runs: int = 200, seed: int = 0, processes: int = 2) -> bool:
    """Are rows that repeat by chance, as where many have the same price, left alone, and rows that were logged again found?"""
    right = {kind: partial(repeats_log, kind=kind) for kind in USUAL_VALUES}
    wrong = {
        f"{kind}, {how}": partial(repeats_log, kind=kind, again=how)
        for kind in USUAL_VALUES
        for how in ("read twice", "sent again")
    }
    return show_doubts(right, wrong, runs, seed, processes, (0.01, 0.05))


if __name__ == "__main__":
    sys.exit(SUITE.main())
