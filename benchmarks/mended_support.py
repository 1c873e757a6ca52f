"""Are logs that lack some of a target's actions, or dropped rows that matter, doubted, and right ones left alone? Simulated worlds.

    python benchmarks/mended_support.py --runs 1000 --processes 16     # all of it
    python benchmarks/mended_support.py --runs 40 --part missing       # a glance

Every run draws a world of its own. `right` logs can take whatever their target takes; rare actions among them may not have come up. Of
`wrong` ones, only those count whose bias exceeds two standard errors. For each kind it prints how many right logs are doubted that
would not have been before, how many wrong ones are `ok`, and how often the bounds cover the truth. Exits with 1 if a promise is broken;
`column` targets are shown only, because they know no actions: there the mean weight is all that can tell.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import polars as pl

import counterpoise as cp
from counterpoise.estimators import beta_ips

NEW = {"missing-actions", "dropped-rows"}  # the doubts that were not there before
WORLDS = ("few actions", "rare actions", "thin overlap", "epsilon-greedy", "many actions", "rare clicks")
GAPS = ("an action", "an action in a segment", "an action in a region", "several actions")
KINDS = ("Chosen", "Probabilities", "predict_proba", "column")
MOST_NEW, MOST_OK, LEAST_COVERED = 0.02, 0.10, 0.93


@dataclass(frozen=True)
class Run:
    """One log: whether it counts, is ok, is doubted anew, has bounds, and whether those cover."""

    counts: bool
    ok: bool
    anew: bool
    has_bounds: bool
    covered: bool


class Table:
    """A policy as a table: a row of probabilities for each context."""

    def __init__(self, table: np.ndarray) -> None:
        self.table, self.classes_ = table, np.arange(table.shape[1])

    def predict_proba(self, contexts: np.ndarray) -> np.ndarray:
        return self.table[contexts[:, 0].astype(int)]


@dataclass(frozen=True)
class World:
    """What is logged and what the target does in each of some contexts, and what every action earns there."""

    logging: np.ndarray
    target: np.ndarray
    rate: np.ndarray


def a_world(name: str, g: np.random.Generator, contexts: int = 12) -> World:
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
    return World(logging, target, rate)


def lacking(world: World, gap: str, g: np.random.Generator) -> World:
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
    return World(logging, target, rate)


def draw(world: World, n: int, g: np.random.Generator) -> pl.DataFrame:
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


def missing_run(name: str, gap: str, kind: str, n: int, seed: tuple[int, ...]) -> Run:
    """A log of a world with its whole target; of a gap, if there is one."""
    g = np.random.default_rng(seed)
    world = a_world(name, g)
    if gap:
        world = lacking(world, gap, g)
    log = draw(world, n, g)
    target = {
        "Chosen": cp.Chosen("chosen"),
        "Probabilities": cp.Probabilities("pi"),
        "predict_proba": Table(world.target),
        "column": "t",
    }[kind]
    context = ["context"] if kind == "predict_proba" else ["country", "age"]
    found = cp.evaluate(log, reward="r", propensity="p", action="a", context=context, target={"new": target})
    plain = beta_ips(found.moments["new"])
    seen = world.logging > 0
    truth = float((world.target * world.rate).sum(axis=1).mean())
    lost = float(np.where(seen, 0.0, world.target).sum(axis=1).mean())
    expected = float(np.where(seen, world.target * world.rate, 0.0).sum(axis=1).mean()) + lost * float(plain.baseline)
    return judged(found, truth, abs(expected - truth) > 2 * plain.stderr if gap else True)


def dropped_run(lost: float, rate: float, n: int, seed: tuple[int, ...]) -> Run:
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
    return judged(found, truth, bias > 2 * beta_ips(found.moments["new"]).stderr if lost else True)


def judged(found: cp.Result, truth: float, counts: bool) -> Run:
    verdict, estimate = found.verdict(), found["new", "beta_ips"]
    new = {str(one.text) for one in verdict.caveats if one.code in NEW and one.severity != "note"}
    codes = {one.code for one in verdict.caveats}
    anew = bool(new) and set(map(str, verdict.reasons)) <= new
    # bounds are about actions: rewards that were lost may lie outside of them
    has_bounds = {one.code for one in verdict.caveats if "lower" in one.numbers} and "dropped-rows" not in codes
    return Run(counts, verdict.verdict == "ok", anew, bool(has_bounds), truth in estimate.interval)


def questions(part: str, n: int) -> Iterator[tuple[str, str, bool, partial[Run]]]:
    """(kind of log, of target, whether it is right, a run of it)."""
    if part in ("all", "missing"):
        for name in WORLDS:
            for kind in KINDS:
                yield name, kind, True, partial(missing_run, name, "", kind, n)
                for gap in GAPS:
                    yield f"{name}, lacks {gap}", kind, False, partial(missing_run, name, gap, kind, n)
    if part in ("all", "dropped"):
        for rate in (0.01, 0.06, 0.4):
            yield f"{rate:.0%} clicks, none lost", "dropped", True, partial(dropped_run, 0.0, rate, n)
            for lost in (0.05, 0.1, 0.3):
                what = f"{rate:.0%} clicks, {lost:.0%} of them lost"
                yield what, "dropped", False, partial(dropped_run, lost, rate, n)


def some(ask: partial[Run], seeds: list[tuple[int, ...]]) -> list[Run]:
    return [ask(seed) for seed in seeds]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--part", choices=["all", "missing", "dropped"], default="all")
    given = parser.parse_args()
    asked = list(questions(given.part, given.rows))
    print(f"{'log':<48}{'target':<15}{'logs':>6}{'ok':>8}{'anew':>8}{'bounds':>8}{'covered':>9}")
    broken, totals = 0, {True: [], False: []}
    with ProcessPoolExecutor(given.processes) as pool:
        jobs = [
            pool.submit(some, ask, [(given.seed, k, run) for run in range(given.runs)])
            for k, (_, _, _, ask) in enumerate(asked)
        ]
        for (name, kind, right, _), job in zip(asked, jobs, strict=True):
            runs = [one for one in job.result() if one.counts]
            bounds = [one.covered for one in runs if one.has_bounds]
            if kind != "column":
                totals[right] += runs
            shares = [np.mean([getattr(one, what) for one in runs] or [np.nan]) for what in ("ok", "anew")]
            covered = f"{np.mean(bounds):9.1%}" if bounds else f"{'–':>9}"
            share = len(bounds) / max(len(runs), 1)
            print(
                f"{name:<48}{kind:<15}{len(runs):>6}{shares[0]:>8.1%}{shares[1]:>8.1%}{share:>8.1%}{covered}",
                flush=True,
            )
    for right, what, most in ((True, "anew", MOST_NEW), (False, "ok", MOST_OK)):
        if totals[right]:
            share = np.mean([getattr(one, what) for one in totals[right]])
            is_kept = share <= most
            broken += not is_kept
            said = "right logs doubted anew" if right else "wrong logs that are ok"
            print(
                f"{said}: {share:.2%} of {len(totals[right]):,} (at most {most:.0%}): {'kept' if is_kept else 'BROKEN'}"
            )
    bounds = [one.covered for one in totals[False] if one.has_bounds]
    if bounds:
        is_kept = np.mean(bounds) >= LEAST_COVERED
        broken += not is_kept
        print(f"bounds that cover: {np.mean(bounds):.2%} of {len(bounds):,}: {'kept' if is_kept else 'BROKEN'}")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
