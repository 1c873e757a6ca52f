"""Does a plan have the power it promises, do anytime intervals answer on spends, and are tail means without a variance doubted?

    python benchmarks/mended_stats.py --processes 16                   # all of it
    python benchmarks/mended_stats.py --only tails --runs 100          # a glance

Plans: logs of the planned size, by a plan from 400,000 rows, and by plans from pilot logs of that size, one plan a log. Anytime: spends on
logs that grow to 20,000 rows. Tails: tail means of rewards without a variance, and of some with one. Exits with 1 if a promise is broken.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from anytime_misses import LOOKS, Spend
from coverage_grid import CONTEXTS, Clicks, Floats, Table, fixed, greedy, softmax

import counterpoise as cp

PILOT = 400_000
KEPT_BACK = ("thin: one of five arms is new", "spends: two new arms, largest weight 18")  # looked at once, at the end


# -- plans ------------------------------------------------------------------------------------------------------------------


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
        KEPT_BACK[0]: (
            Table(fixed(0.96, *[0.01] * 4), (fixed(0.1, 0.6, 0.1, 0.1, 0.1),), five),
            Clicks(0.02),
        ),
    }


def a_log(place: Table, clicks: Clicks, random: np.random.Generator, n: int) -> dict[str, Floats]:
    columns, effect = place.draw(random, n)
    return {"reward": clicks.draw(random, effect), "propensity": columns["p"], "target": columns["t0"]}


def planned_size(world: str, seed: int) -> cp.Plan:
    """The plan from a pilot log that is as good as the truth, at a difference that is the truth."""
    place, clicks = plan_worlds()[world]
    return cp.plan(**a_log(place, clicks, np.random.default_rng([seed, 1]), PILOT), difference=gain(world))


def gain(world: str) -> float:
    place, clicks = plan_worlds()[world]
    logged, target = place.expect(clicks.mean)
    return target - logged


def see(job: tuple[str, int, int, int]) -> tuple[int, int, int, int]:
    """How many logs of the planned size show the difference, how many that small pilots planned do, and whose range has that size."""
    world, rows, runs, seed = job
    place, clicks = plan_worlds()[world]
    random = np.random.default_rng([seed, 2])
    shown = ok = by_pilot = within = 0
    for _ in range(runs):
        found = cp.evaluate(**a_log(place, clicks, random, rows), estimator="lift", progress=False)
        shown += found["target", "lift"].interval.lower > 0
        ok += found.verdict().verdict == "ok"
        needs = cp.plan(**a_log(place, clicks, random, rows), difference=gain(world)).needs
        within += needs.power_range[0] <= rows <= needs.power_range[1]
        if needs.power_rows < 50 * rows:
            again = cp.evaluate(**a_log(place, clicks, random, int(needs.power_rows)), estimator="lift", progress=False)
            by_pilot += again["target", "lift"].interval.lower > 0
        else:
            by_pilot += 1
    return shown, ok, by_pilot, within


def plans(pool: ProcessPoolExecutor, runs: int, seed: int, parts: int) -> bool:
    print(
        "| world | gain | rows | ok from | shows it | by plans from pilots of that size | their range has it | verdict ok |"
    )
    print("|---|---|---|---|---|---|---|---|")
    kept = True
    worlds = list(plan_worlds())
    for world, plan in zip(worlds, pool.map(planned_size, worlds, [seed] * len(worlds)), strict=True):
        rows = int(plan.needs.power_rows)
        jobs = [(world, rows, size, seed * 1000 + k) for k, size in enumerate(split(runs, parts))]
        total = sum(split(runs, parts))
        shown, ok, by_pilot, within = (x / total for x in map(sum, zip(*pool.map(see, jobs), strict=True)))
        print(
            f"| {world} | {gain(world):.4f} | {rows:,} | {plan.ok_rows:,.0f} | {shown:.1%} | {by_pilot:.1%} | {within:.1%} | {ok:.1%} |",
            flush=True,
        )
        error = 3 * math.sqrt(0.8 * 0.2 / total)
        kept &= 0.75 - error <= shown <= 0.87 + error
    return kept


# -- anytime ----------------------------------------------------------------------------------------------------------------


def spend_worlds() -> dict[str, Table]:
    random = np.random.default_rng(2032)
    logging, target = np.full((CONTEXTS, 5), 0.05), np.full((CONTEXTS, 5), 0.025)
    for context in range(CONTEXTS):
        usual, wanted = random.choice(5, 2, replace=False)
        logging[context, usual], target[context, wanted] = 0.8, 0.9
    effects = random.normal(size=(CONTEXTS, 5))
    part = np.where(np.arange(CONTEXTS)[:, None] < CONTEXTS // 4, fixed(0.1, 0.9), fixed(0.95, 0.05))
    return {
        "spends: largest weight 18": Table(logging, (target,), effects),
        "spends: largest weight 18, in a quarter of contexts": Table(fixed(0.95, 0.05), (part,), effects[:, :2]),
        KEPT_BACK[1]: Table(fixed(0.9, 0.05, 0.05), (fixed(0.05, 0.9, 0.05),), 0.5 * effects[:, :3]),
    }


def watch(job: tuple[str, int, int]) -> tuple[int, int, float]:
    """How many growing logs are missed at any look, how many answer at the last one, and the sum of widths there over the normal one's."""
    world, runs, seed = job
    place, spend = spend_worlds()[world], Spend(0.15)
    random = np.random.default_rng([seed, 3])
    truth = place.expect(spend.mean)[1]
    missed, answered, width = 0, 0, 0.0
    for _ in range(runs):
        columns, effect = place.draw(random, int(LOOKS[-1]))
        log = {"reward": spend.draw(random, effect), "propensity": columns["p"], "target": columns["t0"]}
        is_missed = False
        for n in LOOKS.tolist():
            part = {name: column[:n] for name, column in log.items()}
            found = cp.evaluate(**part, estimator="beta_ips", interval="anytime", progress=False)["target", "beta_ips"]
            is_missed |= truth not in found.interval
        missed += is_missed
        if math.isfinite(found.interval.width):
            answered, width = answered + 1, width + found.interval.width / (2 * 1.96 * found.stderr)
    return missed, answered, width


def anytime(pool: ProcessPoolExecutor, runs: int, seed: int, parts: int) -> bool:
    print(
        "| world | logs missed at any look | answer at 20,000 rows | its width, in normal intervals |\n|---|---|---|---|"
    )
    kept = True
    for world in spend_worlds():
        jobs = [(world, size, seed * 1000 + k) for k, size in enumerate(split(runs, parts))]
        total = sum(split(runs, parts))
        missed, answered, width = map(sum, zip(*pool.map(watch, jobs), strict=True))
        print(
            f"| {world} | {missed / total:.1%} | {answered / total:.1%} | {width / max(answered, 1):.2f} |", flush=True
        )
        kept &= missed / total <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / total) and answered / total >= 0.95
    return kept


# -- tails ------------------------------------------------------------------------------------------------------------------

Draw = Callable[[np.random.Generator, int], Floats]


def pareto(alpha: float) -> Draw:
    return lambda random, n: random.random(n) ** (-1 / alpha)


REWARDS: dict[str, tuple[Draw, float, Callable[[float], float] | None]] = {
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
RIGHT: dict[str, tuple[Draw, float]] = {
    "normal": (lambda g, n: g.normal(size=n), 0.0),
    "exponential losses": (lambda g, n: -g.exponential(size=n), -1.0),
    "lognormal, σ = 1": (lambda g, n: np.exp(g.normal(size=n)), math.exp(0.5)),
}
SIZES = (1000, 5000, 20_000)


def tail(job: tuple[str, int, int, int]) -> dict[float, tuple[int, int, int, int]]:
    """By q: how many tail means are ok, how many of these cover, how many of the others, and how many of those have two ends."""
    name, n, runs, seed = job
    draw, mean, lower = REWARDS[name] if name in REWARDS else (*RIGHT[name], None)
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


def tails(pool: ProcessPoolExecutor, runs: int, seed: int, parts: int) -> bool:
    print(
        "| rewards | n | CVaR | ok | covered, given ok | covered, given caution | of these with two ends |\n|---|---|---|---|---|---|---|"
    )
    kept = True
    for name in (*REWARDS, *RIGHT):
        for n in SIZES:
            jobs = [(name, n, size, seed * 1000 + k) for k, size in enumerate(split(runs, parts))]
            total = sum(split(runs, parts))
            done = list(pool.map(tail, jobs))
            for q in done[0]:
                ok, ok_held, held, two = map(sum, zip(*(one[q] for one in done), strict=True))
                rest = total - ok
                print(
                    f"| {name} | {n:,} | {q:g} | {ok / total:.1%} | {share(ok_held, ok)} | {share(held, rest)} | {share(two, rest)} |",
                    flush=True,
                )
                kept &= ok == 0 or name in RIGHT
    return kept


def share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "–"


def split(runs: int, parts: int) -> list[int]:
    """So many runs in so many jobs."""
    size = -(-runs // parts)
    return [min(size, runs - start) for start in range(0, runs, size)]


PARTS = {"plan": plans, "anytime": anytime, "tails": tails}
RUNS = {"plan": 500, "anytime": 400, "tails": 1000}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--runs", type=int, help="logs a world; by default 500 for plans, 400 for anytime and 1,000 for tails"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", choices=PARTS)
    given = parser.parse_args()
    broken = []
    with ProcessPoolExecutor(given.processes) as pool:
        for name in [given.only] if given.only else PARTS:
            start, runs = time.time(), given.runs or RUNS[name]
            print(f"\n## {name}, {runs:,} logs a world\n")
            if not PARTS[name](pool, runs, given.seed, max(given.processes, 1)):
                broken.append(name)
            print(f"\n{time.time() - start:.0f} s")
    print(f"\nPromises: {'kept' if not broken else 'NOT kept: ' + ', '.join(broken)}.")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
