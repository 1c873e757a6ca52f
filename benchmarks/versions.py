"""Two versions side by side: how long each takes, and whether both give the same answers.

python benchmarks/versions.py speed --old ../counterpoise-0.2/src      # medians of 20 repeats, taken in turns
python benchmarks/versions.py page --old ../counterpoise-0.2/src       # from a Parquet file to a page, as one command
python benchmarks/versions.py answers --old ../counterpoise-0.2/src    # estimates, errors, intervals and verdicts, to 1e-12
python benchmarks/versions.py freeze --out golden.json.gz              # what this version answers, documents and words
python benchmarks/versions.py frozen --of golden.json.gz               # whether this version still answers so

Each version runs in a process of its own, which stays alive: imports are not timed, and a busy moment hits both alike. Without `--old`,
this version is compared with itself, which shows what luck alone does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from bench import Suite, head, in_processes, row

SUITE = Suite(__file__, __doc__)
HERE = Path(__file__).parents[1] / "src"


# -- a version that answers -------------------------------------------------------------------------------------------------


class Version:
    """A process that has one version of the library, and calls the functions of this script with it."""

    def __init__(self, source: Path) -> None:
        others = filter(None, [os.environ.get("PYTHONPATH")])  # where the libraries may be
        self.environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(source.resolve()), *others])}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "_work"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self.environment,
        )

    def call(self, function: Callable[..., Any], *arguments: object) -> Any:
        """What a function of this script returns there."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([function.__name__, *arguments]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the other process has ended")
        return json.loads(line)

    def run(self, cache: str, *words: str) -> float:
        """How many seconds a command takes with this version, whose compiled files are in a folder of their own."""
        began = time.perf_counter()
        self.processor_seconds(cache, *words)
        return time.perf_counter() - began

    def processor_seconds(self, cache: str, *words: str) -> float:
        """How many seconds of all processors it takes, those of the system included."""
        environment = self.environment | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": cache}
        command = [sys.executable, *words]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
        return used.ru_utime + used.ru_stime

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextlib.contextmanager
def versions(old: Path | None) -> Iterator[tuple[Version, Version]]:
    """The old version and this one."""
    both = Version(old or HERE), Version(HERE)
    try:
        yield both
    finally:
        for version in both:
            version.close()


@SUITE.experiment("_work", is_hidden=True)
def work() -> None:
    """Answer calls, line by line, for as long as there are any."""
    answers, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(globals()[name](*arguments)), file=answers, flush=True)


# -- speed ------------------------------------------------------------------------------------------------------------------


QUESTION = {"reward": "reward", "propensity": "propensity", "target": "target"}
LONG = 1.0  # seconds that a repeat of a short call may take


def draw_log(rows: int, seed: int = 0, targets: int = 1) -> dict[str, np.ndarray]:
    """A log of two actions, whose weights have a mean of 1 as those of a right log do; further targets have numbers."""
    random = np.random.default_rng(seed)
    logged, target = 0.05 + 0.9 * random.random(rows), random.random(rows)
    first = random.random(rows) < logged
    return {
        "reward": (random.random(rows) < 0.1 + 0.1 * first).astype(np.float64),
        "propensity": np.where(first, logged, 1.0 - logged),
        "target": np.where(first, target, 1.0 - target),
    } | {f"target {k}": np.where(first, t := random.random(rows), 1.0 - t) for k in range(1, targets)}


def write_file(rows: int, path: Path, targets: int = 1, countries: int = 0) -> None:
    """The log as Parquet, in row groups as DuckDB writes them."""
    log = pl.DataFrame(draw_log(rows, targets=targets))
    if countries:
        log = log.with_columns(country=pl.format("country {}", pl.int_range(rows) * 7919 % countries))
    log.write_parquet(path, compression="zstd", row_group_size=122_880)


@cache
def calls_of(kind: str, rows: int, path: str) -> dict[str, Callable[[], object]]:
    """What is timed: an evaluation, and the least that anybody could do with the same rows."""
    import counterpoise as cp

    if kind == "Parquet":
        scan = pl.scan_parquet(path)
        return {
            "evaluate": lambda: cp.evaluate(path, **QUESTION, progress=False),
            "sums": lambda: scan.select(pl.col(*QUESTION.values()).sum()).collect(engine="streaming"),
        }
    log, many = draw_log(rows), 50 if kind.startswith("50") else 1
    frame, wide = pl.DataFrame(log), pl.DataFrame(draw_log(rows, targets=many))
    names = [name for name in wide.columns if name.startswith("target")]
    evaluations: dict[str, Callable[[], object]] = {
        "arrays": lambda: cp.evaluate(**log),
        "arrays, printed": lambda: str(cp.evaluate(**log)),
        "polars": lambda: cp.evaluate(frame, **QUESTION),
        "50 targets, printed": lambda: str(cp.evaluate(wide, **QUESTION | {"target": names})),
    }
    return {"evaluate": evaluations[kind], "sums": lambda: [np.sum(column) for column in log.values()]}


def seconds_of(kind: str, rows: int, path: str, what: str, times: int) -> float:
    """The seconds of a call, on average over so many: of the processor for a short one, which a busy machine would lengthen."""
    call, clock = calls_of(kind, rows, path)[what], time.process_time if rows <= 10**4 else time.perf_counter
    began = clock()
    for _ in range(times):
        call()
    return (clock() - began) / times


@SUITE.experiment("speed", repeats=2, arrays=[1000], parquet=[1000], starts=2)
def time_versions(
    *,
    old: Path | None = None,
    repeats: int = 20,
    arrays: list[int] = (1000, 10**7),
    parquet: list[int] = (1000, 10**7),
    starts: int = 20,
    folder: Path | None = None,
) -> None:
    """Calls of both versions in turns, and the sums of the same columns: medians, and quartiles in brackets.

    `--parquet 1000 1e8` needs 8 GB of memory and 2 GB of disk.
    """
    has_numba = "with" if find_spec("numba") else "without"
    print(f"{repeats} repeats in turns, {os.cpu_count()} cores, {len(os.sched_getaffinity(0))} used, {has_numba} numba")
    print(f"load {os.getloadavg()[0]:.1f}\n")
    head("", "old", "new", "new / old", "by minima", "sums", "old / sums", "new / sums")
    kinds = [("arrays", n) for n in arrays] + [("arrays, printed", n) for n in arrays[:1]]
    kinds += [("50 targets, printed", n) for n in arrays[:1]]
    kinds += [("polars", n) for n in arrays] + [("Parquet", n) for n in parquet]
    with versions(old) as (before, now), tempfile.TemporaryDirectory(dir=folder) as place:
        for kind, rows in kinds:
            path = Path(place, f"{rows}.parquet")
            if kind == "Parquet":
                write_file(rows, path)
            asked = kind, rows, str(path)
            least = min(version.call(seconds_of, *asked, "evaluate", 3) for version in (before, now))
            times = max(1, min(50, int(LONG / 4 / least)))
            taken = in_turns(
                {
                    "old": lambda asked=asked, times=times: before.call(seconds_of, *asked, "evaluate", times),
                    "new": lambda asked=asked, times=times: now.call(seconds_of, *asked, "evaluate", times),
                    "sums": lambda asked=asked, times=times: now.call(seconds_of, *asked, "sums", times),
                },
                repeats,
            )
            show_line(f"{kind}, {rows:,} rows", taken)
            path.unlink(missing_ok=True)
        show_starts(before, now, starts, place)
    print(f"\nload {os.getloadavg()[0]:.1f}")


def show_starts(before: Version, now: Version, repeats: int, cache: str) -> None:
    """What starting costs beyond starting Python, over `import numpy`."""
    print()
    head(
        "beyond starting Python", "old", "new", "new / old", "by minima", "`import numpy`", "old / numpy", "new / numpy"
    )
    words = {"import counterpoise": ("-c", "import counterpoise"), "--help": ("-m", "counterpoise", "--help")}
    works = {"nothing": lambda: now.run(cache, "-c", "pass"), "numpy": lambda: now.run(cache, "-c", "import numpy")}
    for name, command in words.items():
        works |= {f"old {name}": lambda command=command: before.run(cache, *command)}
        works |= {f"new {name}": lambda command=command: now.run(cache, *command)}
    in_turns(works, 1)  # files are read and compiled
    taken = in_turns(works, repeats)
    nothing = statistics.median(taken["nothing"])
    for name in words:
        parts = {"old": taken[f"old {name}"], "new": taken[f"new {name}"], "sums": taken["numpy"]}
        show_line(f"`{name}`", {what: [each - nothing for each in seconds] for what, seconds in parts.items()})
    show_command(before, now, repeats, cache)


def show_command(before: Version, now: Version, repeats: int, cache: str) -> None:
    """What `counterpoise evaluate` takes on 10,000 rows, over `import numpy, polars`; the promise is twice as long."""
    path = Path(cache, "log.parquet")
    write_file(10_000, path)
    named = [word for name, column in QUESTION.items() for word in (f"--{name}", column)]
    words = ("-m", "counterpoise", "evaluate", str(path), *named)
    works = {
        "old": lambda: before.processor_seconds(cache, *words),
        "new": lambda: now.processor_seconds(cache, *words),
        "sums": lambda: now.processor_seconds(cache, "-c", "import numpy, polars"),
    }
    in_turns(works, 1)  # files are read and compiled
    print()
    head("processor time", "old", "new", "new / old", "by minima", "`import numpy, polars`", "old / it", "new / it")
    show_line("`counterpoise evaluate`, 10,000 rows", in_turns(works, repeats))


PAGES = {"one target": (1, False), "four targets, 20 segments": (4, True)}


@SUITE.experiment("page", repeats=2, rows=1000)
def time_pages(*, old: Path | None = None, repeats: int = 9, rows: int = 10**6) -> bool:
    """From a Parquet file to a page in one command: processor seconds of both versions in turns, imports included.

    Medians, and quartiles of single repeats in brackets. The promise is 0.7 of 0.2's.
    """
    print(f"{repeats} repeats in turns, {rows:,} rows, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    head("", "old", "new", "new / old", "by minima")
    is_kept = True
    with versions(old) as (before, now), tempfile.TemporaryDirectory() as place:
        path = Path(place, "log.parquet")
        write_file(rows, path, targets=4, countries=20)
        for name, (count, has_segments) in PAGES.items():
            words = ["-m", "counterpoise", "evaluate", str(path), "--reward", "reward", "--propensity", "propensity"]
            words += [word for k in range(count) for word in ("--target", f"target {k}" if k else "target")]
            words += ["--segment", "country"] if has_segments else []
            words += ["--html", str(Path(place, "page.html"))]
            works = {
                "old": lambda words=words: before.processor_seconds(place, *words),
                "new": lambda words=words: now.processor_seconds(place, *words),
            }
            in_turns(works, 1)  # files are read and compiled
            taken = in_turns(works, repeats)
            single = np.quantile(np.divide(taken["new"], taken["old"]), [0.25, 0.75])
            middle = {what: statistics.median(seconds) for what, seconds in taken.items()}
            ratio, minima = middle["new"] / middle["old"], min(taken["new"]) / min(taken["old"])
            spread = f"{ratio:.2f} [{single[0]:.2f}, {single[1]:.2f}]"
            row(name, f"{middle['old']:.2f} s", f"{middle['new']:.2f} s", spread, f"{minima:.2f}")
            is_kept &= ratio <= 0.7
    return is_kept or old is None


def in_turns(works: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """The seconds of every work, one after the other, so many times."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, each in works.items():
            taken[name].append(each())
    return taken


def show_line(name: str, taken: Mapping[str, Sequence[float]]) -> None:
    """A line of the table: times, and ratios of medians with the quartiles of single repeats."""
    middle = {what: statistics.median(seconds) for what, seconds in taken.items()}

    def ratio(these: str, those: str) -> str:
        single = [a / b for a, b in zip(taken[these], taken[those], strict=True)]
        low, high = np.quantile(single, [0.25, 0.75])
        return f"{middle[these] / middle[those]:.2f} [{low:.2f}, {high:.2f}]"

    times = [f"{1e3 * middle[what]:,.2f} ms" for what in ("old", "new", "sums")]
    by_minima = f"{min(taken['new']) / min(taken['old']):.2f}"
    row(name, *times[:2], ratio("new", "old"), by_minima, times[2], ratio("old", "sums"), ratio("new", "sums"))


# -- answers ----------------------------------------------------------------------------------------------------------------


SAME = 1e-12
ROWS = 3000
BASE = {"reward": "reward", "propensity": "propensity", "drop_bad_rows": True}
BOTH = BASE | {"target": ["new", "old"]}
PARTS = {  # of what is not compared: where an answer came from, and what it was made of
    "moments", "question", "log", "options", "earlier_rows", "bins", "model", "propensity_model", "interval_method",
    "note", "reasons", "text", "message", "do", "tails", "sketch", "checks",
}  # fmt: skip


def draw_world(name: str) -> pl.DataFrame:
    """A log with everything that a question may name, and a few bad rows: rewards of clicks, spends, far from 0, or rare."""
    random = np.random.default_rng(sum(map(ord, name)))
    n, actions = ROWS, 4
    logged, new, old = (random.dirichlet(np.full(actions, 2.0), n) * 0.9 + 0.1 / actions for _ in range(3))
    other = random.dirichlet(np.full(actions, 2.0), n) * 0.9 + 0.1 / actions
    who = random.random(n) < 0.4
    behind = np.where(who[:, None], logged, other)
    action = (random.random(n)[:, None] > behind.cumsum(axis=1)).sum(axis=1).clip(max=actions - 1)
    at, x0, user = (np.arange(n), action), random.normal(size=n), random.integers(0, 300, n)
    chance = 1 / (1 + np.exp(2.0 - 0.4 * action - 0.5 * x0 - 0.3 * (user % 5)))
    click = (random.random(n) < chance).astype(np.float64)
    rewards = {
        "clicks": click,
        "spends": click * np.exp(random.normal(size=n)),
        "far": 1e8 + 10 * chance + random.normal(size=n),
        "rare": (random.random(n) < 0.01 * chance).astype(np.float64),
    }
    expected = chance if name != "far" else 1e8 + 10 * chance  # as a model would have it
    rest = {"new group": new[at] + new[:, 0] * 0.1, "propensity group": behind[at] + behind[:, 0] * 0.1}
    columns = {
        "id": np.where(np.arange(n) < 10, 5, np.arange(n)), "reward": rewards[name], "cost": random.exponential(1.0, n),
        "propensity": behind[at], "new": new[at] * (random.random(n) > 0.02), "old": old[at], "own": new[at] / behind[at],
        "model": expected, "value": expected + 0.1 * random.random(n), "other value": expected,
        "pa": logged[at], "pb": other[at], "who": np.where(who, "a", "b"),
        "country": random.choice(["DE", "FR", "日本", "O'Brien"], n), "device": random.integers(0, 2, n),
        "account": user, "arm": np.where(action < 2, "control", np.where(action == 2, "b", "c")), "share": np.full(n, 0.5),
        "action": action, "chosen": np.where(x0 > 0, 3, 1), "x0": x0, "x1": random.normal(size=n),
    } | rest  # fmt: skip
    columns |= {  # drawn last, so that everything else stays what it was
        "kept with": np.where(rewards[name] > 0, 0.9, 0.4), "visits": random.integers(0, 4, n),
        "judge": expected + 0.2 * random.normal(size=n), "labeled": (random.random(n) < 0.3).astype(int),
        "labeled with": np.full(n, 0.3), "day": [f"2026-03-{1 + k % 20:02d}" for k in range(n)],
    }  # fmt: skip
    log = pl.DataFrame(columns).with_columns(country=pl.when(pl.int_range(n) % 11 > 0).then("country"))
    bad = {"propensity": [0.0, None, math.nan], "new": [-0.1], "reward": [None, math.nan, math.inf], "account": [None]}
    places = iter(range(20, n, 37))
    for column, values in bad.items():
        for value in values:
            is_here = pl.int_range(n) == next(places)
            log = log.with_columns(pl.when(is_here).then(value).otherwise(column).alias(column))
    return log.with_columns(pl.col("account").cast(pl.Int64))


def draw_lists() -> pl.DataFrame:
    """Lists of up to four items, with both kinds of propensities."""
    random = np.random.default_rng(5)
    lists, depth = 800, 4
    n = lists * depth
    at, given = random.uniform(0.1, 0.6, n), random.uniform(0.1, 0.9, n)
    log = pl.DataFrame(
        {
            "query": np.repeat(np.arange(lists), depth),
            "rank": np.tile(np.arange(1, depth + 1), lists),
            "at": at,
            "given": given,
            "new at": np.clip(at * random.uniform(0.6, 1.4, n), 0, 1),
            "new given": np.clip(given * random.uniform(0.8, 1.2, n), 0, 1),
            "reward": (random.random(n) < 0.2).astype(np.float64),
            "account": np.repeat(random.integers(0, 200, lists), depth),
            "device": np.repeat(random.integers(0, 2, lists), depth),
        }
    )
    return log.filter((pl.col("rank") <= 2) | (pl.col("query") % 3 > 0))


@cache
def questions() -> dict[str, tuple[str, dict[str, Any]]]:
    """What is asked about every world: name → verb and arguments."""
    import counterpoise as cp
    from counterpoise import intervals, weights

    modeled = {"model_reward": "model", "model_value": ["value", "other value"]}
    baseline = {"x0": None, "country": ["DE", "FR"], "device": [0, 1]}
    fitted = {"context": ["x0", "x1", "device"], "action": "action"}
    ways = {
        "plain": {},
        "one target": {"target": "new"},
        "an expression": {"target": "0.7*new + 0.3*old", "where": "device = 1 and country <> 'FR'"},
        "blends": {"target": {f"blend {k}": f"(new * {k} + old * {12 - k}) / 12.0" for k in range(12)}},
        "two rewards": {"reward": ["reward", "cost"]},
        "segments": {"segment": "country"},
        "two segments": {"segment": ["country", "device"]},
        "clusters": {"cluster": "account"},
        "clusters by segment": {"cluster": "account", "segment": "country", "groups": 40},
        "keys": {"key": "id"},
        "models": modeled,
        "models by segment, clusters, keys, controls": modeled
        | {"segment": ["country", "device"], "cluster": "account", "key": "id", "control": {"x0": 0.0}},
        "controls": {"control": {"x0": 0.0, "x1": 0.0}},
        "baseline": {"baseline": baseline},
        "baseline by segment, clusters": {"baseline": baseline, "segment": "device", "cluster": "account"},
        "chosen": {"target": cp.Chosen("chosen"), "action": "action"},
        "action groups": {"target": {"groups": cp.ActionGroup("new group", "propensity group")}},
        "loggers": {"propensity": {"a": "pa", "b": "pb"}, "logger": "who"},
        "loggers by segment": {"propensity": {"a": "pa", "b": "pb"}, "logger": "who", "segment": "device"},
        "own": {"target": None, "weight": "own"},
        "bounds": {"reward_bounds": (-1e9, 1e9)},
        "level": {"level": 0.8, "estimator": ["snips", "beta_ips", "lift"]},
        "fitted model": fitted | {"model": "ridge"},
        "fitted propensities": fitted | {"propensity": "model"},
        "always": {"target": cp.Always(3), "action": "action"},
        "minimized": {"reward": "cost", "minimize": True},
        "a cost": {"reward": "cost"},
    }
    of_kinds: dict[str, dict[str, Any]] = {
        "keep": {"keep": "kept with"},
        "keep and rows before": {"keep": "kept with", "rows_before": 6000},
        "ratio": {"reward": "cost", "per": "visits"},
        "labels": {"proxy": "judge", "observed": "labeled"},
        "labels of known probability": {"proxy": "judge", "observed": "labeled", "label_propensity": "labeled with"},
        "keep, ratio": {"reward": "cost", "per": "visits", "keep": "kept with"},
        "keep, baseline": {"keep": "kept with", "baseline": baseline},
        "keep, models": modeled | {"keep": "kept with"},
    }
    for name, way in tuple(of_kinds.items()):
        more = {"segment": "device", "cluster": "account"}
        of_kinds |= {f"{name}, segments, clusters": way | more, f"{name}, anytime": way | {"interval": "anytime"}}
    ways |= of_kinds
    for interval in ("normal", "jackknife", "anytime"):
        ways |= {
            interval: {"interval": interval},
            f"{interval}, clusters": {"interval": interval, "cluster": "account"},
        }
        ways |= {f"{interval}, segments": {"interval": interval, "segment": "device"}}
    ways["anytime, tuned"] = {"interval": intervals.Anytime(tuned_for=1e6)}
    ways["log smoothing"] = {"interval": "log_smoothing", "estimator": "ips"}
    ways["Bernstein"] = {"interval": intervals.Bernstein(reward_bounds=(0, 1), max_weight=100), "estimator": "ips"}
    kinds = {
        "clip": weights.Clip(3), "shrink": weights.Shrink(2), "switch": weights.Switch(3), "harmonic": weights.Harmonic(0.5),
        "smoothing": weights.ExponentialSmoothing(0.8), "implicit": weights.ImplicitExploration(0.05),
        "slope": weights.Slope(weights.Clip), "slope of shrinking": weights.Slope(weights.Shrink, [1, 10, 100]),
    }  # fmt: skip
    ways |= {name: {"weight": weight} for name, weight in kinds.items()}
    ways |= {
        f"{name}, segments, clusters": {"weight": kinds[name], "segment": "device", "cluster": "account"}
        for name in kinds
    }
    asked = {name: ("evaluate", BOTH | way) for name, way in ways.items()}
    differences = (
        "plain",
        "segments",
        "clusters by segment",
        "models",
        "baseline",
        "loggers",
        "clip",
        "slope",
        "normal",
        *of_kinds,
    )
    for name in differences:
        asked[f"compare, {name}"] = ("compare", BOTH | ways[name])
        asked[f"compare with old, {name}"] = (
            "compare",
            BOTH | {"target": "new", "against": "old"} | ways[name] | _single(ways[name]),
        )
    alone = BASE | {"target": "new"}
    return asked | {
        "rank": ("rank", BOTH | {"target": {f"blend {k}": f"(new * {k} + old * {4 - k}) / 4.0" for k in range(5)}}),
        "rank, clusters": ("rank", BOTH | {"cluster": "account"}),
        "rank, clipped": ("rank", BOTH | {"weight": kinds["clip"]}),
        "rank, keep": ("rank", BOTH | {"keep": "kept with"}),
        "rank, labels": ("rank", BOTH | of_kinds["labels"]),
        "plan, keep": ("plan", alone | {"difference": 0.05, "keep": "kept with"}),
        "watch": ("watch", alone | {"day": "day"}),
        "watch, clusters": ("watch", alone | {"day": "day", "cluster": "account"}),
        "plan": ("plan", alone | {"difference": 0.05, "actions": 4}),
        "plan, anytime": ("plan", alone | {"difference": 0.05, "interval": "anytime", "power": 0.9}),
        "plan, clusters": ("plan", alone | {"difference": 0.05, "cluster": "account"}),
        "A/B test": ("ab_test", {"arm": "arm", "reward": "reward", "drop_bad_rows": True}),
        "A/B test, clusters": ("ab_test", {"arm": "arm", "reward": "reward", "cluster": "account", "drop_bad_rows": True}),
        "A/B test, baseline": ("ab_test", {"arm": "arm", "reward": "reward", "baseline": baseline, "drop_bad_rows": True}),
        "sensitivity": ("sensitivity", BOTH),
        "sensitivity with old": ("sensitivity", alone | {"against": "old"}),
        "sensitivity, clusters": ("sensitivity", alone | {"cluster": "account"}),
        "distribution": ("distribution", BOTH),
        "distribution, clusters": ("distribution", alone | {"cluster": "account", "thresholds": [0.0, 0.5, 1.0, 3.0]}),
        "doctor": ("doctor", BASE | {"target": "new"}),
    }  # fmt: skip


def _single(way: Mapping[str, Any]) -> dict[str, Any]:
    """The model's values of the target and of its rival alone."""
    return {"model_value": {"new": "value", "old": "other value"}} if "model_value" in way else {}


def list_questions() -> dict[str, tuple[str, dict[str, Any]]]:
    """What is asked about lists."""
    from counterpoise import weights
    from counterpoise.log.parts import PARTS

    factor = "discount_factor" if "discount_factor" in PARTS else "gamma"  # until 0.3
    lists = {"reward": "reward", "slate": "query", "position": "rank"}
    at = lists | {"propensity": "at", "target": "new at", "propensity_of": "item_at_position"}
    given = lists | {"propensity": "given", "target": "new given", "propensity_of": "item_given_above"}
    kinds = {
        "independent": at | {"weight": weights.Independent()},
        "pseudo-inverse": at | {"weight": weights.PseudoInverse()},
        "cascade": given | {"weight": weights.Cascade()},
        "standard": given | {"weight": weights.Standard()},
    }
    more = {
        "": {},
        ", clusters": {"cluster": "account"},
        ", segments": {"segment": "device"},
        ", discount": {"discount": "dcg"},
    }
    asked = {f"{name}{how}": ("evaluate", way | parts) for name, way in kinds.items() for how, parts in more.items()}
    steps = {"reward": "reward", "propensity": "given", "target": "new given", "episode": "query", "step": "rank"}
    kinds |= {"episodes": steps, "episodes, discounted": steps | {factor: 0.9}}
    kinds |= {"episodes by trajectory": steps | {"weight": weights.Trajectory()}}
    asked |= {
        f"{name}{how}": ("evaluate", kinds[name] | more[how]) for name in list(kinds)[-3:] for how in list(more)[:3]
    }
    return asked | {f"compare, {name}": ("compare", way) for name, way in kinds.items()}


def names_of_questions() -> tuple[list[str], list[str]]:
    """What is asked about rows, and about lists."""
    return list(questions()), list(list_questions())


SOURCES = (
    "polars",
    "lazy",
    "arrays",
    "pandas",
    "pyarrow",
    "parquet",
    "folder",
    "csv",
    "jsonl",
    "arrow",
    "duckdb",
    "ibis",
    "sqlite",
)
ASKED_OF_SOURCES = (
    "plain", "an expression", "two segments", "clusters by segment", "models by segment, clusters, keys, controls", "baseline",
    "chosen", "loggers", "clip", "slope", "own", "log smoothing", "two rewards", "fitted model", "compare with old, plain", "rank",
    "A/B test", "sensitivity", "distribution", "plan",
)  # fmt: skip


@contextlib.contextmanager
def stored(log: pl.DataFrame, source: str, folder: Path) -> Iterator[Any]:
    """The log as one of the sources."""
    files = {"parquet": "write_parquet", "csv": "write_csv", "jsonl": "write_ndjson", "arrow": "write_ipc"}
    if source in files:
        getattr(log, files[source])(folder / f"log.{source}")
        yield folder / f"log.{source}"
    elif source == "folder":
        for k in range(3):
            (folder / f"day={k}").mkdir(exist_ok=True)
            log[k::3].write_parquet(folder / f"day={k}" / "log.parquet")
        yield folder
    elif source == "duckdb":
        import duckdb

        with duckdb.connect() as connection:
            rows = log.to_arrow()  # noqa: F841 (which DuckDB finds by its name)
            yield connection.sql("select * from rows")
    elif source in ("ibis", "sqlite"):
        import ibis

        connection = ibis.duckdb.connect() if source == "ibis" else ibis.sqlite.connect(folder / "log.sqlite")
        connection.create_table("log", log.to_arrow(), overwrite=True)
        yield connection.table("log")
        connection.disconnect()
    else:
        made = {"polars": lambda: log, "lazy": log.lazy, "pandas": log.to_pandas, "pyarrow": log.to_arrow}
        yield made[source]() if source in made else {name: log[name].to_numpy() for name in log.columns}


def answer(group: str, name: str, source: str, is_whole: bool = False) -> Any:
    """An answer in plain values, or as its document and its words; an error is its class."""
    import counterpoise as cp

    log, asked = (draw_lists(), list_questions()) if group == "lists" else (draw_world(group), questions())
    verb, arguments = asked[name]
    with tempfile.TemporaryDirectory() as folder:
        try:
            with stored(log, source, Path(folder)) as data:
                made = getattr(cp, verb)(data, **arguments)
                if is_whole:
                    return {"document": made.document(), "words": str(made)}
                return plain(made.findings if verb == "doctor" else made)
        except cp.CounterpoiseError as error:
            return {"error": type(error).__name__, "text": str(error)}
        except Exception:
            return {"crash": traceback.format_exc(limit=-3)}


def state_of(folder: str, days: Sequence[int], name: str) -> Any:
    """What a state says after so many days of a log were added to it; of none, what is in it."""
    import counterpoise as cp

    log, path = draw_world("clicks"), Path(folder, "state.json")
    if not days:
        return plain(cp.evaluate(state=path))
    for day in days:
        verb, arguments = questions()[name]
        made = getattr(cp, verb)(log[day::3], **arguments, state=path, batch=f"day {day}")
    return plain(made)


def plain(value: Any) -> Any:
    """What an answer says, in values that JSON has: numbers, verdicts, and the codes of their caveats."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if hasattr(value, "verdict") and hasattr(value, "caveats") and isinstance(value.verdict, str):
        return {"verdict": value.verdict, "codes": sorted({caveat.code for caveat in value.caveats})}
    if isinstance(value, pl.DataFrame):
        return plain(value.to_dict(as_series=False))
    if hasattr(value, "statistics") and hasattr(value, "thresholds"):  # a distribution
        return plain([value.n, list(value.thresholds), value.statistics([0.1, 0.5, 0.99], [0.1, 1.0])])
    if hasattr(value, "tipping") and hasattr(value, "bounds"):  # a sensitivity
        bounds = [value.bounds(gamma, target) for gamma in value.gammas for target in value.targets]
        return plain([bounds, [(value.tipping(target), value.verdict(target)) for target in value.targets]])
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if field.name not in PARTS and field.name[0] != "_"]
        return {name: plain(getattr(value, name)) for name in names}
    return type(value).__name__


def differences(old: Any, new: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two answers differ by more than rounding; what only one of them has is no difference."""
    if place.endswith(" codes"):
        # not every reason had a code in 0.2
        if not set(old) <= set(new):
            yield place, old, new
    elif isinstance(old, dict) and "crash" in old | new:
        yield place, old, new
    elif isinstance(old, dict) and isinstance(new, dict):
        for key in [key for key in old if key in new and key != "text"]:
            yield from differences(old[key], new[key], f"{place} {key}")
        if not old.keys() & new.keys() and old.keys() | new.keys():
            yield place, old, new
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for k, (before, now) in enumerate(zip(old, new, strict=True)):
            yield from differences(before, now, f"{place} {k}")
    elif not is_same(old, new):
        yield place, old, new


NEW_NAMES = {"Ratio()": "Importance()"}  # of what 0.3 called otherwise


def is_same(old: Any, new: Any) -> bool:
    """Whether two values are equal, or as near as rounding leaves them."""
    if isinstance(old, float | int) and isinstance(new, float | int) and not isinstance(old, bool):
        return old == new or (old != old and new != new) or math.isclose(old, new, rel_tol=SAME, abs_tol=SAME / 100)
    return bool(old == new) or (isinstance(old, str) and NEW_NAMES.get(old) == new)


@SUITE.experiment("answers", worlds=["clicks"], sources=["parquet"], only="plain")
def compare_answers(
    *,
    old: Path | None = None,
    worlds: list[str] = ("clicks", "spends", "far", "rare"),
    sources: list[str] = SOURCES,
    only: str = "",
    shown: int = 3,
) -> bool:
    """The same questions to both versions: worlds, estimators, intervals, weights, segments, clusters, models, verbs, sources and states.

    `--only` takes the questions whose names have a text in them.
    """
    different, refused = 0, list[str]()
    with versions(old) as (before, now):
        about_rows, about_lists = now.call(names_of_questions)
        cases = [(world, name, "polars") for world in worlds for name in about_rows]
        cases += [("lists", name, source) for name in about_lists for source in ("polars", "parquet")]
        there = [source for source in sources if is_there(source)]
        cases += [("clicks", name, source) for source in there if source != "polars" for name in ASKED_OF_SOURCES]
        cases = [case for case in cases if only in case[1]]
        for case in cases:
            found = before.call(answer, *case), now.call(answer, *case)
            if "error" in found[0]:
                refused.append(f"{' · '.join(case)}: {found[0]['text']}")
            different += show_differences(" · ".join(case), *found, shown)
        different += sum(compare_states(before, now, name, shown) for name in STORED if only in name)
    print(
        f"{len(cases):,} questions ({len(refused)} refused by the old version) and {len(STORED)} states; {different} answers differ"
    )
    return not different


def frozen_cases(worlds: Sequence[str], sources: Sequence[str]) -> list[tuple[str, str, str]]:
    """What is asked of a single version: world, question, source."""
    about_rows, about_lists = names_of_questions()
    cases = [(world, name, "polars") for world in worlds for name in about_rows]
    cases += [("lists", name, source) for name in about_lists for source in ("polars", "parquet")]
    there = [source for source in sources if is_there(source) and source != "polars"]
    return cases + [("clicks", name, source) for source in there for name in (*ASKED_OF_SOURCES, *ASKED_TOO)]


ASKED_TOO = ("keep", "ratio", "labels", "keep, segments, clusters", "labels, segments, clusters")
WORDS = (
    "text",
    "do",
    "words",
    "answer",
    "next_steps",
    "message",
    "known_part",
)  # keys of documents that hold sentences


def _frozen(case: tuple[str, str, str]) -> Any:
    warnings.simplefilter("ignore")
    return json.loads(json.dumps(answer(*case, is_whole=True), default=str))


@SUITE.experiment("freeze", is_hidden=True, worlds=["clicks"], sources=["arrays"])
def freeze(
    *,
    out: Path | None = None,
    worlds: list[str] = ("clicks", "spends", "rare"),
    sources: list[str] = SOURCES,
    processes: int = 2,
) -> None:
    """Write what this version answers, documents and words, to compare later versions with."""
    cases = frozen_cases(list(worlds), list(sources))
    answers = dict(zip(map(" · ".join, cases), in_processes(_frozen, cases, processes, chunk=8), strict=True))
    if out:
        out.write_bytes(gzip.compress(json.dumps(answers).encode()))
    print(f"{len(answers):,} answers, {sum('crash' in each for each in answers.values())} of them crashes")


@SUITE.experiment("frozen", is_hidden=True, every=50)
def compare_frozen(
    *,
    of: Path = Path("golden.json.gz"),
    only: str = "",
    words: bool = False,
    shown: int = 3,
    processes: int = 2,
    every: int = 1,
) -> bool:
    """Whether this version answers as one did whose answers were frozen: numbers to 1e-12, and with `--words` every sentence."""
    known = json.loads(gzip.decompress(of.read_bytes()))
    names = [name for name in known if only in name][::every]
    cases = [tuple(name.split(" · ")) for name in names]
    different = 0
    for name, now in zip(names, in_processes(_frozen, cases, processes, chunk=4), strict=True):
        old, new = known[name], now
        if not words:
            old, new = _without_words(old), _without_words(new)
        different += show_differences(name, old, new, shown)
    print(f"{len(names):,} answers; {different} differ")
    return not different


def _without_words(document: Any) -> Any:
    if isinstance(document, dict):
        return {key: _without_words(part) for key, part in document.items() if key not in WORDS}
    return [_without_words(part) for part in document] if isinstance(document, list) else document


STORED = (
    "plain",
    "segments",
    "clusters by segment",
    "models",
    "baseline",
    "clip",
    "slope",
    "loggers",
    "compare with old, plain",
)


def compare_states(before: Version, now: Version, name: str, shown: int) -> bool:
    """Whether a state that the old version wrote says the same to the new one, which then adds a day to it."""
    with tempfile.TemporaryDirectory() as folder:
        before.call(state_of, folder, [0, 1], name)
        text = Path(folder, "state.json").read_bytes()
        found = (
            []
            if name.startswith("compare")
            else [[version.call(state_of, folder, [], name) for version in (before, now)]]
        )
        third = []
        for version in (before, now):
            Path(folder, "state.json").write_bytes(text)
            third.append(version.call(state_of, folder, [2], name))
    return sum(show_differences(f"state · {name}", *pair, shown) for pair in (*found, third)) > 0


def show_differences(case: str, old: Any, new: Any, shown: int) -> bool:
    """Print where two answers differ; whether they do."""
    found = list(differences(old, new))
    if found:
        print(f"{case}: {len(found)} differences", flush=True)
    for place, before, now in found[:shown]:
        print(f"    {place.strip()}: {before} → {now}", flush=True)
    return bool(found)


def is_there(source: str) -> bool:
    """Whether a source can be tried on this machine."""
    needed = {"sqlite": "ibis", "csv": "polars", "jsonl": "polars", "arrow": "polars"}.get(source, source)
    return find_spec(needed) is not None if needed in ("pandas", "pyarrow", "duckdb", "ibis") else True


if __name__ == "__main__":
    sys.exit(SUITE.main())
