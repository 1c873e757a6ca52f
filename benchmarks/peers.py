"""counterpoise and its peers: the same tasks on the same data, every library in an environment of its own, in one run.

    make peers                                        # everything, into PEERS.md: hours; a run that was stopped goes on where it was
    make peers QUICK=1                                # smaller and only printed: minutes
    python benchmarks/peers.py arrays --fresh         # one task again
    python benchmarks/peers.py truth --only obp       # some of the libraries, beside ours

Environments are built under `.peers/`, where results are kept as well, cell by cell. A library that cannot be installed, fails, needs more
than 120 s or more than 8 GB is shown as such, and never stops the run.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from bench import Suite, head, row
from peer.data import FEATURES, MISTAKES, WORLDS, draw_log
from peer.runs import (
    FOLDER,
    LIMIT,
    PEERS,
    PLACE,
    Race,
    Record,
    Spec,
    Store,
    build,
    built,
    has_task,
    lineup,
    source_of,
    workers,
)

PAGE = FOLDER / "PEERS.md"
SUITE = Suite(__file__, __doc__, PAGE)


# -- tables -----------------------------------------------------------------------------------------------------------------


def ratio(theirs: Record, ours: Record) -> str:
    """How many times our time, and the range of the rounds; or why there is no figure."""
    if "error" in theirs:
        return short(theirs["error"])
    if "error" in ours:
        return f"{statistics.median(theirs['seconds']):.3g} s"
    middle = statistics.median(theirs["seconds"]) / statistics.median(ours["seconds"])
    pairs = [mine / other for mine, other in zip(theirs["seconds"], ours["seconds"], strict=False)]
    few = "" if len(theirs["seconds"]) >= 5 or len(ours["seconds"]) < 5 else f", {len(theirs['seconds'])} of 5 runs"
    return f"{in_digits(middle)} ({in_digits(min(pairs))}–{in_digits(max(pairs))}{few})"


def in_digits(value: float) -> str:
    """Two digits, or all of a large whole number."""
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.2g}"


def short(error: str) -> str:
    """An error that fits into a cell."""
    text = error.replace("|", "/").replace("\n", " ")
    return text if len(text) <= 90 else text[:87] + "…"


def in_seconds(record: Record) -> str:
    if "error" in record:
        return short(record["error"])
    seconds = statistics.median(record["seconds"])
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def by_size(cells: list[tuple[Spec, Record]], names: list[str], label: Callable[[Spec], str]) -> None:
    """Two tables: times as ratios to ours, and the memory that the process held."""
    others = names[1:]
    head("size", f"{PEERS[names[0]].title}", *(PEERS[name].title for name in others), "first")
    for spec, cell in cells:
        times = [ratio(cell[name], cell[names[0]]) for name in others]
        done = {name: statistics.median(cell[name]["seconds"]) for name in names if "seconds" in cell[name]}
        first = min(done, key=done.get) if done else ""
        row(label(spec), f"1 ({in_seconds(cell[names[0]])})", *times, PEERS[first].title if first else "–")
    print("\nPeak memory of the whole process, libraries and inputs included, ours = 1:\n")
    head("size", f"{PEERS[names[0]].title}", *(PEERS[name].title for name in others))
    for spec, cell in cells:
        ours = cell[names[0]].get("peak_mb", math.nan)
        shown = [
            short(cell[name]["error"]) if "error" in cell[name] else f"{cell[name]['peak_mb'] / ours:.2g}"
            for name in others
        ]
        row(label(spec), f"1 ({ours:,.0f} MB)", *shown)
    print()


def growth(cells: list[tuple[Spec, Record]], names: list[str], key: str, fixed: Spec, least: int) -> dict[str, str]:
    """The exponents of time and of memory beyond the smallest size, over the sizes from `least` on, all else fixed."""
    found = {}
    for name in names:
        rows = [
            (spec[key], statistics.median(cell[name]["seconds"]), cell[name]["peak_mb"])
            for spec, cell in cells
            if "seconds" in cell[name] and all(spec[each] == value for each, value in fixed.items())
        ]
        if not rows:
            found[name] = "–"
            continue
        base = min(peak for _, _, peak in rows)
        sizes = [size for size, _, _ in rows if size >= least]
        if len(sizes) < 2:
            found[name] = "–"
            continue
        time_slope = slope(sizes, [seconds for size, seconds, _ in rows if size >= least])
        more = [(size, peak - base) for size, _, peak in rows if size >= least and peak - base > 20]
        memory = f"{slope(*zip(*more, strict=True)):.2f}" if len(more) > 1 else "flat" if not more else "–"
        found[name] = f"{time_slope:.2f}, {memory}"
    return found


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


OTHERWISE = {  # the same name for something else
    ("skdr_eval", "rips"): "weighs each rank alone, which others call `iips`",
    ("pybandits", "dr"): "corrects the model's value of the target, not its prediction for the logged action",
    ("doubleml", "dr"): "takes propensities below 0.01 for 0.01",
}
DRAWING = ("jurity", "contextualbandits")  # which take one action of a target for each row


def agreement(cells: list[tuple[Spec, Record]], names: list[str]) -> bool:
    """Say which numbers agree with ours to nine digits where they should, and how far the others are off."""
    far: dict[tuple[str, str], float] = {}
    same: dict[str, set[str]] = {}
    for _, cell in cells:
        ours = cell[names[0]].get("answer") or {}
        for name in set(names[1:]) - set(DRAWING):
            for estimator, numbers in (cell[name].get("answer") or {}).items():
                if estimator in ours and estimator != "says" and (name, estimator) not in OTHERWISE:
                    apart = abs(numbers[0] - ours[estimator][0]) / max(abs(ours[estimator][0]), 1e-12)
                    if not apart < 1e-9:
                        far[name, estimator] = max(apart, far.get((name, estimator), 0.0))
                    else:
                        same.setdefault(name, set()).add(estimator)
    for name, estimators in sorted(same.items(), key=lambda one: names.index(one[0])):
        print(f"- The same to nine digits: {PEERS[name].title}, {', '.join(sorted(estimators))}.")
    for (name, estimator), why in OTHERWISE.items():
        if any(estimator in (cell.get(name, {}).get("answer") or {}) for _, cell in cells):
            print(f"- Not comparable: {PEERS[name].title}, {estimator}, {why}.")
    for name in [name for name in DRAWING if name in names]:
        print(f"- Not comparable: {PEERS[name].title} takes one action a row, drawn from the target.")
    for (name, estimator), apart in far.items():
        print(f"- Not the same: {PEERS[name].title}, {estimator}, by {apart:.1e} of the value at most.")
    print()
    return not far


def power(n: int) -> str:
    """10⁶ for 1000000."""
    digits = math.log10(n)
    return (
        "10" + str(int(digits)).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
        if digits == int(digits)
        else f"{n:,}"
    )


# -- 1: installing ----------------------------------------------------------------------------------------------------------


@SUITE.experiment("install", small=True, repeats=2)
def install(*, only: list[str] = (), fresh: bool = False, small: bool = False, repeats: int = 5) -> None:
    """What it takes to have each library: seconds of pip without a cache, size, packages, and seconds to import it."""
    names = [name for name, peer in PEERS.items() if peer.imports and (not only or name in only)]
    if small and not only:
        names = [name for name in names if PEERS[name].is_quick]
    facts = {}
    for name in names:
        place = PLACE / name
        if fresh:
            shutil.rmtree(place, ignore_errors=True)
        if (
            name == "ours"
        ):  # an environment of its own, to be measured like the others; the tasks run in the one with all extras
            note = place / "built.json"
            found = json.loads(note.read_text("utf-8")) if note.exists() else build(place, (str(FOLDER.parent),))
        else:
            found = built(name)
        facts[name] = found
    able = [name for name in names if "error" not in facts[name]]
    taken: dict[str, list[float]] = {name: [] for name in able}
    for k in range(repeats + 1):
        for name in able:
            seconds = import_seconds(name)
            if k:  # the first compiles
                taken[name].append(seconds)
    head(
        "library", "version", "pip, seconds", "over ours", "MB", "over ours", "packages", "import, seconds", "over ours"
    )
    mine: dict[str, float] = {}
    for name in names:
        title = PEERS[name].title
        if name not in able:
            row(title, "–", f"cannot be installed: {short(facts[name]['error'])}", *[""] * 6)
            continue
        place = PLACE / name
        packages, size = packages_of(place), megabytes(place)
        median = statistics.median(taken[name])
        numbers = {"pip": facts[name]["seconds"], "size": size, "import": median}
        mine = mine or numbers
        over = {key: in_digits(value / mine[key]) for key, value in numbers.items()}
        fails = "" if not math.isnan(median) else "fails"
        row(title, version_of(name, packages), f"{numbers['pip']:.0f}", over["pip"], f"{size:,.0f}", over["size"], len(packages),
            fails or f"{median:.2f} ({min(taken[name]):.2f}–{max(taken[name]):.2f})", fails or over["import"])  # fmt: skip


def import_seconds(name: str) -> float:
    """Of a new process, by the clock, less what an empty one takes."""
    python = PLACE / name / "bin" / "python"
    seconds = []
    for code in ("pass", f"import {PEERS[name].imports}"):
        began = time.perf_counter()
        done = subprocess.run([python, "-c", code], capture_output=True, cwd=PLACE, env=clean())
        seconds.append(time.perf_counter() - began if done.returncode == 0 else math.nan)
    return seconds[1] - seconds[0]


def clean() -> dict[str, str]:
    """The environment's variables, with compiled modules kept as anyone's Python keeps them."""
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")}


def packages_of(place: Path) -> dict[str, str]:
    """What is installed, without what every environment has."""
    done = subprocess.run([place / "bin" / "python", "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    return {
        each["name"]: each["version"] for each in json.loads(done.stdout) if each["name"] not in ("pip", "setuptools")
    }


def version_of(name: str, packages: dict[str, str]) -> str:
    """Of the package that its module names."""
    wanted = re.search(r'^VERSION = \("([^"]+)"', source_of(name), re.MULTILINE)
    known = {key.lower().replace("_", "-"): value for key, value in packages.items()}
    return known.get(wanted[1].lower(), "?") if wanted else "?"


def megabytes(place: Path) -> float:
    """The size of what pip brought, without pip and bytecode."""
    packages = next((place / "lib").glob("python*/site-packages"))
    sizes = (path.stat().st_size for path in packages.rglob("*") if path.is_file() and path.suffix != ".pyc"
             and path.relative_to(packages).parts[0].split("-")[0] not in ("pip", "setuptools"))  # fmt: skip
    return sum(sizes) / 1e6


# -- 2 to 7: what is timed --------------------------------------------------------------------------------------------------


def race(task: str, only: Sequence[str], *, small: bool, fresh: bool, repeats: int) -> Race:
    """Everyone who has the task; ours is always there, to be 1."""
    names = lineup(["ours", *(only or PEERS)], task, quick=small and not only)
    return Race(task, names, Store(quick=small), repeats, fresh, LIMIT / 6 if small else LIMIT)


def who_cannot(task: str, names: Sequence[str], *, small: bool) -> None:
    """Say who is not in a table, and why."""
    for name, peer in PEERS.items():
        if peer.packages and name not in names and (peer.is_quick or not small):
            note, is_able = built(name), has_task(name, task)
            why = f"cannot be installed: {short(note['error'])}" if "error" in note else "has nothing for this task"
            why = "not in this run" if is_able and "error" not in note else why
            print(f"- {peer.title}: {why}.")
    print()


MOST_CELLS = (
    10**9
)  # of a table, beyond which nobody who takes tables gets by with 8 GB, and nobody else sees a difference


@SUITE.experiment("arrays", small=True, rows=[1e3, 1e5], actions=[10], repeats=3)
def time_arrays(
    *,
    rows: list[int] = (10**3, 10**4, 10**5, 10**6, 10**7),
    actions: list[int] = (10, 100, 1000),
    repeats: int = 5,
    only: list[str] = (),
    fresh: bool = False,
    small: bool = False,
) -> bool:
    """IPS, SNIPS, β-IPS and DR with 95 % intervals from arrays.

    Each library gets the policy as it asks for it: ours and most others the target's probability of the logged action, one number a row;
    the Open Bandit Pipeline the probabilities and predictions of all actions, a table. `counterpoise, from tables` begins with the same
    two tables.
    """
    contest = race("evaluate", only, small=small, fresh=fresh, repeats=repeats)
    specs = [{"rows": int(n), "actions": int(k)} for k in actions for n in rows if n * k <= MOST_CELLS]
    cells = contest.run(specs, {"rows": 500})
    by_size(cells, contest.names, lambda spec: f"{power(spec['rows'])} × {spec['actions']:,}")
    fewest, most = int(min(actions)), int(max(rows))
    print("Exponents of time and memory: 1 means that twice the size takes twice as much.\n")
    head("", *(PEERS[name].title for name in contest.names))
    in_rows = growth(cells, contest.names, "rows", {"actions": fewest}, min(10**5, most))
    row(f"in rows, {fewest} actions, from 10⁵ rows on (time, memory)", *in_rows.values())
    across = min(10**5, most)
    in_actions = growth(cells, contest.names, "actions", {"rows": across}, 0)
    row(f"in actions, {power(across)} rows (time, memory)", *in_actions.values())
    for k in actions:
        done = [max((s["rows"] for s, cell in cells if s["actions"] == k and "seconds" in cell[name]), default=0)
                for name in contest.names]  # fmt: skip
        row(f"largest in 8 GB and 120 s, {int(k):,} actions", *(power(n) if n else "none" for n in done))
    print()
    is_same = agreement(cells, list(contest.names))
    who_cannot("evaluate", contest.names, small=small)
    wanted = next((cell for spec, cell in cells if spec == {"rows": 10**6, "actions": 100}), None)
    return is_same and (wanted is None or keeps_promise(wanted))


def keeps_promise(cell: Record) -> bool:
    """At 10⁶ rows × 100 actions, 100 times faster than the Open Bandit Pipeline's bootstrap, in an eighth of its memory."""
    ours, theirs = cell["ours"], cell.get("obp", {})
    if "seconds" not in theirs:
        return True
    faster = statistics.median(theirs["seconds"]) / statistics.median(ours["seconds"])
    smaller = theirs["peak_mb"] / ours["peak_mb"]
    print(
        f"At 10⁶ × 100, {faster:,.0f} times faster than the Open Bandit Pipeline (100 wanted), in 1/{smaller:.1f} of its memory (1/8)."
    )
    return faster >= 100 and smaller >= 8


def write_file(path: Path, rows: int, actions: int = 10, piece: int = 10**6) -> Path:
    """The log of the timed tasks as Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.exists():
        return path
    PLACE.mkdir(exist_ok=True)
    part, writer = path.with_suffix(".part"), None
    for k, start in enumerate(range(0, rows, piece)):
        log = draw_log(min(piece, rows - start), actions, seed=k)
        table = pa.table({
            "group": log.group.astype(np.int32), "action": log.action.astype(np.int32), "reward": log.reward,
            "propensity": log.propensity, "target": log.target(), "model_reward": log.model_reward,
            "model_value": log.model_value(),
        })  # fmt: skip
        writer = writer or pq.ParquetWriter(part, table.schema, compression="zstd")
        writer.write_table(table, row_group_size=122_880)
    writer.close()
    return part.rename(path)


@SUITE.experiment("files", small=True, rows=[1e5], repeats=3)
def time_files(
    *,
    rows: list[int] = (10**6, 10**7, 10**8),
    repeats: int = 5,
    only: list[str] = (),
    fresh: bool = False,
    small: bool = False,
) -> bool:
    """The same from a Parquet file of ten actions, read within the time."""
    contest = race("files", only, small=small, fresh=fresh, repeats=repeats)
    specs = []
    for n in map(int, rows):
        path = write_file(PLACE / f"{n}.parquet", n)
        specs.append({"rows": n, "actions": 10, "path": str(path)})
    cells = contest.run(specs)
    by_size(cells, contest.names, lambda spec: f"{power(spec['rows'])} rows")
    slopes = growth(cells, contest.names, "rows", {}, 0)
    head("", *(PEERS[name].title for name in contest.names))
    row("exponents in rows (time, memory)", *slopes.values())
    print()
    is_same = agreement(cells, contest.names)
    who_cannot("files", contest.names, small=small)
    return is_same


@SUITE.experiment("targets", small=True, rows=[1e4], repeats=3)
def time_targets(
    *,
    rows: list[int] = (10**5, 10**6),
    repeats: int = 5,
    only: list[str] = (),
    fresh: bool = False,
    small: bool = False,
) -> bool:
    """Ten targets at once, 100 actions."""
    contest = race("targets", only, small=small, fresh=fresh, repeats=repeats)
    specs = [{"rows": int(n), "actions": 100, "targets": 10} for n in rows]
    cells = contest.run(specs, {"rows": 500})
    by_size(cells, contest.names, lambda spec: f"{power(spec['rows'])} rows")
    is_same = agreement(cells, contest.names)
    who_cannot("targets", contest.names, small=small)
    return is_same


@SUITE.experiment("model", small=True, rows=[2e3], repeats=1)
def time_model(
    *,
    rows: list[int] = (10**4, 10**5, 10**6),
    repeats: int = 5,
    only: list[str] = (),
    fresh: bool = False,
    small: bool = False,
) -> None:
    """A reward model fitted to the log, and doubly robust estimates with it, end to end; ten actions.

    A logistic regression where a library lets one choose, and its own model where not, so estimates may differ.
    """
    contest = race("model", only, small=small, fresh=fresh, repeats=repeats)
    cells = contest.run([{"rows": int(n), "actions": 10} for n in rows], {"rows": 500})
    by_size(cells, contest.names, lambda spec: f"{power(spec['rows'])} rows")
    head("estimates", *(PEERS[name].title for name in contest.names), "truth")
    for spec, cell in cells:
        truth = draw_log(100, 10).truths[0]
        row(f"{power(spec['rows'])} rows", *(shown_estimates(cell[name]) for name in contest.names), f"{truth:.4f}")
    print()
    who_cannot("model", contest.names, small=small)


def shown_estimates(record: Record) -> str:
    """Values and intervals in a cell."""
    if "error" in record:
        return short(record["error"])
    shown = []
    for name, numbers in record["answer"].items():
        if name != "says":
            value, lower, upper = (math.nan if number is None else number for number in numbers)
            shown.append(f"{name} {value:.4f}" + ("" if math.isnan(lower) else f" ({lower:.4f} to {upper:.4f})"))
    return ", ".join(shown)


@SUITE.experiment("lists", small=True, rows=[1e4], repeats=3)
def time_lists(
    *,
    rows: list[int] = (10**5, 10**6),
    repeats: int = 5,
    only: list[str] = (),
    fresh: bool = False,
    small: bool = False,
) -> bool:
    """Lists of ten items: the sum of a list's rewards, with intervals."""
    contest = race("lists", only, small=small, fresh=fresh, repeats=repeats)
    cells = contest.run([{"rows": int(n)} for n in rows], {"rows": 1000})
    by_size(cells, contest.names, lambda spec: f"{power(spec['rows'])} rows")
    is_same = agreement(cells, contest.names)
    who_cannot("lists", contest.names, small=small)
    return is_same


@SUITE.experiment("cell", small=True, rows=[100], repeats=1)
def time_cell(
    *,
    rows: list[int] = (10**3, 10**4),
    repeats: int = 5,
    only: list[str] = (),
    fresh: bool = False,
    small: bool = False,
) -> bool:
    """One evaluation cell of the paper (100 actions, temperature 5): data, two regressions, truth and estimators.

    The paper's recipe is its published code's way, on the dense tables of all rows and actions; the answers are squared errors.
    """
    contest = race("cell", only, small=small, fresh=fresh, repeats=repeats)
    cells = contest.run([{"rows": int(n)} for n in rows], {"rows": 100})
    by_size(cells, contest.names, lambda spec: f"n = {power(spec['rows'])}")
    return agreement(cells, contest.names)


# -- 8: learning ------------------------------------------------------------------------------------------------------------


LEARNERS: dict[str, tuple[str, ...]] = {
    "ours": ("",),
    "obp": ("ipw_logistic", "ipw_forest", "network"),
    "scikit_learn": ("",),
    "paper_recipe": ("",),
    "coba": ("mtr",),
    "contextualbandits": ("dr", "dm"),
    "econml": ("forest",),
    "pybandits": ("", "normal prior"),
}
SLOW = ("econml", "pybandits")  # whose defaults take longer than the others' tuning: they are not tuned
ALIKE = ("ours_from_tables", "polars_by_hand", "duckdb_by_hand")  # whose numbers are another's
LESSONS = ("obp10", "digits", "satimage", "cp20")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"), "1")


@SUITE.experiment("learning", small=True, logs=["digits"], seeds=1, tuning=5.0)
def compare_learning(
    *,
    logs: list[str] = LESSONS,
    seeds: int = 2,
    first_seed: int = 71,
    tuning: float = 10.0,
    only: list[str] = (),
    fresh: bool = False,
    small: bool = False,
) -> None:
    """What policies learned from the same logs really earn when they act greedily, with defaults and with an equal time for tuning.

    Every learner has one thread. Ours takes up to a minute by default; with tuning, everyone has the same seconds.
    """
    from logs import draw

    store = Store(quick=small)
    names = [
        name for name in lineup(["ours", *(only or LEARNERS)], "learn", quick=small and not only) if name in LEARNERS
    ]
    pupils = [(name, each) for name in names for each in LEARNERS[name]]
    budgets = (tuning,) if small else (0.0, tuning)
    jobs = [(log, seed, name, each, seconds) for log in logs for seed in range(first_seed, first_seed + seeds)
            for seconds in budgets for name, each in pupils if not (seconds and name in SLOW)]  # fmt: skip
    records: dict[tuple[str, int, str, str, float], Record] = {}
    todo = []
    for job in jobs:
        spec = dict(zip(("log", "seed", "library", "learner", "tuning"), job, strict=True))
        kept = {} if fresh else store.get("learn", spec)
        records[job] = kept
        if not kept:
            todo.append((job, spec))
    os.environ.update(ONE_THREAD)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for (job, spec), record in zip(todo, pool.map(lambda each: learn_once(*each[0], draw), todo), strict=True):
            records[job] = record
            store.put("learn", spec, record)
    for seconds in budgets:
        pupils = [pupil for pupil in pupils if not (seconds and pupil[0] in SLOW)]
        print("With defaults:\n" if not seconds else f"With {seconds:g} s of tuning each:\n")
        show_learning(logs, range(first_seed, first_seed + seeds), pupils, seconds, records)


def learn_once(log: str, seed: int, name: str, learner: str, seconds: float, draw: Callable[[str, int], Any]) -> Record:
    """One policy's true value, and what it took."""
    print(f"learn {log} {seed} {name} {learner} {seconds:g}", file=sys.stderr, flush=True)
    world = draw(log, seed)
    PLACE.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile(suffix=".npz", dir=PLACE) as file:
        np.savez(file, context=world.context, action=world.action, reward=world.reward, propensity=world.propensity,
                 actions=world.n_actions, test_context=world.test_context)  # fmt: skip
        file.flush()
        options = {"seconds": seconds, "seed": seed, "learner": learner}
        with workers([name]) as team:
            worker = team[name]
            ready = worker.ask(LIMIT, do="prepare", task="learn", spec={"path": file.name, "options": options})
            answer = ready if "error" in ready else worker.ask(LIMIT, do="run")
    if "error" in answer:
        return answer
    chosen = np.asarray(answer["answer"], dtype=int)
    value = float(world.test_reward[np.arange(len(chosen)), chosen].mean(dtype=np.float64))
    return {"value": value, "logging": world.logging_value, "best": world.best_value, "seconds": answer["seconds"],
            "peak_mb": answer["peak_mb"]}  # fmt: skip


def show_learning(
    logs: Sequence[str], seeds: range, pupils: list[tuple[str, str]], seconds: float, records: Record
) -> None:
    """True values by log, means over seeds; then how often ours is ahead."""
    titles = [PEERS[name].title + (f", {each}" if each else "") for name, each in pupils]
    head("log", "logging", "best possible", *titles)
    wins = {pupil: [0, 0] for pupil in pupils}
    totals: dict[tuple[str, str], list[Record]] = {pupil: [] for pupil in pupils}
    for log in logs:
        cells = []
        known: Record = {}
        for pupil in pupils:
            found = [records[log, seed, *pupil, seconds] for seed in seeds]
            values = [each["value"] for each in found if "value" in each]
            known = next((each for each in found if "value" in each), known)
            error = next((each["error"] for each in found if "error" in each), "")
            cells.append(f"{statistics.mean(values):.3f}" if values and not error else short(error))
            totals[pupil] += [each for each in found if "value" in each]
            for seed in seeds:
                mine, theirs = records[log, seed, *pupils[0], seconds], records[log, seed, *pupil, seconds]
                if "value" in mine and "value" in theirs:
                    wins[pupil][0] += mine["value"] > theirs["value"]
                    wins[pupil][1] += 1
        row(log, f"{known.get('logging', math.nan):.3f}", f"{known.get('best', math.nan):.3f}", *cells)
    mine = totals[pupils[0]]
    middle = {
        key: statistics.median(each[key] for each in mine) if mine else math.nan for key in ("seconds", "peak_mb")
    }
    row("ours is ahead in", "", "", "–", *(f"{won} of {of}" for won, of in list(wins.values())[1:]))
    for key, unit in (("seconds", "median time"), ("peak_mb", "median memory")):
        cells = [
            f"{statistics.median(each[key] for each in totals[pupil]) / middle[key]:.2g}" if totals[pupil] else "–"
            for pupil in pupils
        ]
        row(f"{unit}, ours = 1" + (f" ({middle[key]:.0f} {'s' if key == 'seconds' else 'MB'})"), "", "", *cells)
    print()


# -- 9: truth ---------------------------------------------------------------------------------------------------------------


@SUITE.experiment("truth", small=True, logs=20, limit=5.0)
def compare_truth(
    *,
    logs: int = 500,
    seed: int = 26_000,
    limit: float = 20.0,
    only: list[str] = (),
    fresh: bool = False,
    small: bool = False,
) -> bool:
    """Bias, RMSE and coverage of every library's own 95 % interval, on the same logs of 2,000 rows (1,000 lists of 5) with a known truth.

    A library that does not come through all logs within the limit is judged on those that it did. In `users`, whoever can, as ours,
    is told whose row is whose.
    """
    store = Store(quick=small)
    names, ranked = (
        [name for name in lineup(["ours", *(only or PEERS)], task, quick=small and not only) if name not in ALIKE]
        for task in ("evaluate", "lists")
    )
    asked = {"first": int(seed), "logs": int(logs), "limit": float(limit)}
    worlds = {
        name: [world for world in WORLDS if name in (ranked if world == "lists" else names)]
        for name in [*names, *ranked]
    }
    os.environ.update(ONE_THREAD)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        tell = partial(tell_truth, store=store, asked=asked, fresh=fresh)
        told = {key: record for records in pool.map(tell, worlds, worlds.values()) for key, record in records.items()}
    failures = {key: record["error"] for key, record in told.items() if "error" in record}
    found = {key: record["answer"] for key, record in told.items() if "error" not in record}
    show_truth(found, names, [world for world in WORLDS if world != "lists"], "beta_ips")
    print("Lists of five, 1,000 a log:\n")
    show_truth(found, ranked, ["lists"], "beta iips")
    for (name, world), why in failures.items():
        print(f"- {PEERS[name].title}, {world}: {short(why)}.")
    return all(
        keeps_coverage(found.get(("ours", world)), estimator)
        for world in WORLDS
        for estimator in estimators_of("ours", found)
    )


def show_truth(found: dict[tuple[str, str], list[Record]], names: list[str], worlds: list[str], primary: str) -> None:
    """Coverage, accuracy, and what was said."""
    rows = [(name, each) for name in names for each in estimators_of(name, found, worlds)]
    print(
        "Coverage of 95 % intervals, ± its Monte Carlo error. *Given ok* counts the logs whose verdict was `ok`, and says how many:\n"
    )
    head("library, estimator", *worlds)
    for name, estimator in rows:
        title = f"{PEERS[name].title}, {estimator}"
        cells = [found.get((name, world)) for world in worlds]
        if name == "ours":
            row(f"**{title}, given ok**", *(coverage(cell, estimator, given="ok") for cell in cells))
        row(title, *(coverage(cell, estimator) for cell in cells))
    print(
        f"\nRMSE and median width of the interval, over those of our `{primary}`; and the bias in standard errors of its mean:\n"
    )
    head("library, estimator", *worlds)
    for name, estimator in rows:
        cells = [(found.get((name, world)), found.get(("ours", world))) for world in worlds]
        row(
            f"{PEERS[name].title}, {estimator}", *(accuracy(theirs, estimator, ours, primary) for theirs, ours in cells)
        )
    print("\nLogs of which the library said anything but a number: a verdict other than ok, a warning, an error:\n")
    head("library", *worlds)
    for name in names:
        row(PEERS[name].title, *(spoken(found.get((name, world))) for world in worlds))
    print()


def tell_truth(
    name: str, worlds: list[str], store: Store, asked: Spec, *, fresh: bool
) -> dict[tuple[str, str], Record]:
    """What a library says of the logs of every world."""
    told = {}
    with workers([name]) as team:
        for world in worlds:
            spec = asked | {"library": name, "world": world}
            record = {} if fresh else store.get("truth", spec)
            if not record:
                print(f"truth {world} {name}", file=sys.stderr, flush=True)
                team[name].ask(LIMIT, do="prepare", task="truth", spec=asked | {"world": world})
                record = team[name].ask(
                    5 * asked["limit"] + LIMIT, do="run"
                )  # by the clock, of a machine that may be busy
                store.put("truth", spec, record)
            told[name, world] = record
    return told


def estimators_of(name: str, found: dict[tuple[str, str], list[Record]], worlds: Sequence[str] = WORLDS) -> list[str]:
    names = (key for world in worlds for each in found.get((name, world), ()) for key in (each.get("answer") or {}))
    return [key for key in dict.fromkeys(names) if not key.startswith("says")]


def intervals(answers: list[Record] | None, estimator: str, given: str = "") -> list[tuple[float, float, float, float]]:
    """(truth, value, lower, upper) of the logs with an answer."""
    found = []
    for each in answers or []:
        answer = each.get("answer") or {}
        if estimator not in answer or (given and not said(answer, estimator).startswith(given)):
            continue
        value, lower, upper = (math.nan if number is None else float(number) for number in answer[estimator])
        found.append((each["truth"], value, lower, upper))
    return found


def said(answer: Record, estimator: str) -> str:
    """What was said of an estimate: of lists, each view has words of its own."""
    return str(answer.get(f"says {estimator.split()[-1]}", answer.get("says", "")))


def coverage(answers: list[Record] | None, estimator: str, given: str = "") -> str:
    rows = intervals(answers, estimator, given)
    if not rows:
        return "–" if not given or answers is None or estimator not in str(answers[:1]) else "never ok"
    if all(math.isnan(lower) for _, _, lower, _ in rows):
        return "no interval"
    share = statistics.mean(lower <= truth <= upper for truth, _, lower, upper in rows)
    error = math.sqrt(max(share * (1 - share), 1 / len(rows)) / len(rows))
    few = f" of {len(rows)}" if given or len(rows) < 500 else ""
    return f"{share:.1%} ± {error:.1%}{few}"


def keeps_coverage(answers: list[Record] | None, estimator: str) -> bool:
    """At least 93 % given ok, but for three Monte Carlo errors."""
    rows = intervals(answers, estimator, "ok")
    if not rows:
        return True
    share = statistics.mean(lower <= truth <= upper for truth, _, lower, upper in rows)
    return share >= 0.93 - 3 * math.sqrt(0.93 * 0.07 / len(rows))


def accuracy(answers: list[Record] | None, estimator: str, ours: list[Record] | None, primary: str) -> str:
    """RMSE and width over ours, on the logs that both have an answer for; and the bias."""
    theirs, mine = intervals(answers, estimator), intervals(ours, primary)
    pairs = [(a, b) for a, b in zip(theirs, mine, strict=False) if math.isfinite(a[1]) and math.isfinite(b[1])]
    if len(pairs) < 2:
        return "–"
    errors = [value - truth for (truth, value, _, _), _ in pairs]
    squares = (statistics.mean((one[side][1] - one[side][0]) ** 2 for one in pairs) for side in (0, 1))
    rmse = math.sqrt(next(squares) / next(squares))
    widths = [statistics.median(one[side][3] - one[side][2] for one in pairs) for side in (0, 1)]
    wide = f", {widths[0] / widths[1]:.2f}" if math.isfinite(widths[0] / widths[1]) else ""
    spread = statistics.stdev(errors) / math.sqrt(len(errors))
    return f"{rmse:.2f}{wide}; {statistics.mean(errors) / spread if spread else 0:+.1f}"


def spoken(answers: list[Record] | None) -> str:
    if not answers:
        return "–"
    doubts = ["error" in each or each["warnings"] or doubts_in(each["answer"]) for each in answers]
    return f"{sum(map(bool, doubts)) / len(answers):.0%}"


def doubts_in(answer: Record) -> list[str]:
    """What was said of an answer, other than that it is all right."""
    words = [str(value) for name, value in answer.items() if name.startswith("says")]
    return [text for text in words if not re.match(r"\s*$|ok\b|support ok\b", text)]


# -- 10: mistakes -----------------------------------------------------------------------------------------------------------


@SUITE.experiment("mistakes", small=True)
def compare_mistakes(*, only: list[str] = (), fresh: bool = False, small: bool = False) -> bool:
    """Twelve logs with something wrong: who explains, who crashes, and who answers wrongly without a word.

    An error or a word counts as an explanation if it speaks of what is wrong.
    """
    store = Store(quick=small)
    names = [
        name
        for name in lineup(["ours", *(only or PEERS)], "evaluate", quick=small and not only)
        if name != "ours_from_tables"
    ]
    silent = dict.fromkeys(names, 0)
    words: list[str] = []
    head("mistake", *(PEERS[name].title for name in names))
    with workers(names) as team:
        for case in MISTAKES:
            cells = []
            for name in names:
                spec = {"library": name, "case": case}
                record = {} if fresh else store.get("mistakes", spec)
                if not record:
                    team[name].ask(LIMIT, do="prepare", task="mistakes", spec={"case": case})
                    record = team[name].ask(LIMIT, do="run")
                    store.put("mistakes", spec, record)
                outcome, text = judge(case, record, name)
                silent[name] += outcome.startswith("**")
                cells.append(outcome)
                if text:
                    words.append(f"- {case}, {PEERS[name].title}: {text}")
            row(case, *cells)
    row("wrong in silence, of 12", *silent.values())
    print("\nWhat was said:\n")
    print("\n".join(words))
    return silent["ours"] == 0


def judge(case: str, record: Record, name: str = "") -> tuple[str, str]:
    """What became of a mistake, and the words; a wrong answer in silence is in bold."""
    if "error" in record:  # the process itself
        return "crashes", short(record["error"])
    found = record["answer"]
    answer = found.get("answer") or {}
    words = " ".join([found.get("error", ""), *found["warnings"], *doubts_in(answer)]).strip()
    text = " ".join(words.split())[:160].replace("|", "/")
    if words and re.search(MISTAKES[case], words, re.IGNORECASE):
        return ("refuses, and says why" if "error" in found else "answers, and warns"), text
    if "error" in found:
        return "crashes", text
    # `dm` is the word of the model that was handed over
    values = [
        numbers for estimator, numbers in answer.items() if estimator != "dm" and not estimator.startswith("says")
    ]
    error = ERROR * (6 if name in DRAWING else 1)
    checked = [is_right(case, found["truth"], numbers, error) for numbers in values]
    if not checked:
        return "no answer", text
    if None in checked:
        return "**NaN, without a word**", text
    return ("right, without a word" if all(checked) else "**wrong, without a word**"), text


TOO_NARROW = ("duplicated rows", "repeated users", "lists read as rows")


ERROR = 0.0075  # of IPS on such a log; ten rows that are one make it √10 times as large, an action drawn for each row up to six times


def is_right(case: str, truth: float, numbers: Sequence[float | None], error: float) -> bool | None:
    """Whether an estimate is near the truth, or its interval as wide as it must be; None if it is no number."""
    value, lower, upper = (math.nan if number is None else float(number) for number in numbers)
    if not math.isfinite(value):
        return None
    if case in TOO_NARROW:
        return math.isnan(lower) or (upper - lower) / 3.92 > 1.6 * error
    return abs(value - truth) < 4 * error or (not math.isnan(lower) and lower <= truth <= upper)


# -- 11: features -----------------------------------------------------------------------------------------------------------


@SUITE.experiment("features", small=True)
def compare_features(*, only: list[str] = (), fresh: bool = False, small: bool = False) -> None:
    """What each library can do.

    Every yes is a call that ran. Every dash is a search of the library's public names and parameters that found no call to make.
    """
    store = Store(quick=small)
    able = [name for name, peer in PEERS.items() if peer.imports and source_of(name) and (not only or name in only)]
    names = [name for name in able if "error" not in built(name)] if not small else lineup(able, "evaluate", quick=True)
    notes: list[str] = []
    head("", *(PEERS[name].title for name in names))
    with workers(names) as team:
        for feature, words in FEATURES.items():
            cells = []
            for name in names:
                spec = {"library": name, "feature": feature}
                record = {} if fresh else store.get("features", spec)
                if not record:
                    team[name].ask(LIMIT, do="prepare", task="features", spec={"feature": feature, "words": words})
                    record = team[name].ask(LIMIT, do="run")
                    store.put("features", spec, record)
                mark, note = feature_mark(record)
                cells.append(mark)
                if note:
                    notes.append(f"- {feature}, {PEERS[name].title}: {note}")
            row(feature, *cells)
    print("\n" + "\n".join(notes))


def feature_mark(record: Record) -> tuple[str, str]:
    if "error" in record:
        return "fails", short(record["error"])
    found = record["answer"]
    if not found["has"]:
        names = ", ".join(f"`{name}`" for name in found["found"])
        return "–", f"names that come near, among {found['searched']:,}: {names}" if names else ""
    return ("fails", short(found["error"])) if "error" in found else ("yes", "")


# -- in short ---------------------------------------------------------------------------------------------------------------


FIGURE = FOLDER.parent / "docs" / "figures" / "peers.png"
COLORS = {
    "ours": "#1b6ca8", "obp": "#c8553d", "skdr_eval": "#5b8e7d", "vw_estimators": "#bc9c22", "pybandits": "#8d5a97", "coba": "#777777",
    "contextualbandits": "#3d3d3d", "scope_rl": "#d98cb3", "doubleml": "#7fb069", "econml": "#4cb5ae", "jurity": "#a44a3f",
    "numpy_by_hand": "#bbbbbb", "polars_by_hand": "#cccccc", "duckdb_by_hand": "#dddddd",
}  # fmt: skip


@SUITE.experiment("short", small=True)
def in_short(*, small: bool = False) -> None:
    """The figures that matter most, from the tasks that have run, and the picture of them."""
    store = Store(quick=small)
    size = {"rows": 10**6, "actions": 100} if not small else {"rows": 10**5, "actions": 10}
    timed = store.get("evaluate", size)
    found = truths(store)
    print(
        f"Time and memory at {power(size['rows'])} rows × {size['actions']} actions, ours = 1. Coverage from the worst world to the best,"
    )
    print("by the estimator that covers most. Mistakes that were answered wrongly without a word.\n")
    head(
        "library",
        "time",
        "memory",
        "95 % intervals cover",
        "silent on mistakes, of 12",
        "MB",
    )
    for name, peer in PEERS.items():
        if not peer.imports or not (name in timed or any(who == name for who, _ in found)):
            continue
        record, ours = timed.get(name, {}), timed.get("ours", {})
        has_both = "seconds" in record and "seconds" in ours
        seconds = ratio(record, ours).split(" (")[0] if has_both else short(record.get("error", "–"))
        memory = f"{record['peak_mb'] / ours['peak_mb']:.2g}" if has_both else "–"
        silent = mistakes_of(name, store)
        place = PLACE / name
        row(
            peer.title,
            seconds,
            memory,
            covers(name, found),
            silent,
            f"{megabytes(place):,.0f}" if place.exists() else "–",
        )
    draw_picture(store, found, FIGURE if not small else PLACE / "peers.png")


FEWEST_LOGS = 20  # by which coverage can be judged


def truths(store: Store) -> dict[tuple[str, str], list[Record]]:
    """The answers of the task on truth: the last run's, by library and world."""
    found = {}
    for key, record in store.cells.items():
        if key.startswith("truth "):
            spec = json.loads(key.removeprefix("truth "))
            if "error" not in record:
                found[spec["library"], spec["world"]] = record["answer"]
    return found


def best_estimator(name: str, found: dict[tuple[str, str], list[Record]], given: str = "") -> dict[str, float]:
    """Coverage by world of the estimator that covers most on average: a library is judged by the best that it has."""
    by_estimator = {}
    for estimator in ["beta_ips"] if name == "ours" else estimators_of(name, found):  # ours answers with one of them
        shares = {}
        for world in WORLDS:
            rows = intervals(found.get((name, world)), estimator, given)
            if len(rows) >= FEWEST_LOGS and not all(math.isnan(lower) for _, _, lower, _ in rows):
                shares[world] = statistics.mean(lower <= truth <= upper for truth, _, lower, upper in rows)
        if len(shares) > 1:  # of those for lists alone, there is one world
            by_estimator[estimator] = shares
    return max(by_estimator.values(), key=lambda shares: statistics.mean(shares.values()), default={})


def covers(name: str, found: dict[tuple[str, str], list[Record]]) -> str:
    shares = best_estimator(name, found, "ok" if name == "ours" else "")
    text = f"{min(shares.values()):.0%} to {max(shares.values()):.0%}" if shares else "no intervals"
    logs = max(
        (sum("answer" in each for each in answers) for (who, _), answers in found.items() if who == name), default=0
    )
    if not shares and logs < FEWEST_LOGS:
        text = f"too slow to tell: {logs} logs"
    return f"{text} where it says `ok`" if name == "ours" and shares else text


def mistakes_of(name: str, store: Store) -> str:
    records = [(case, store.get("mistakes", {"library": name, "case": case})) for case in MISTAKES]
    known = [judge(case, record, name)[0] for case, record in records if record]
    return str(sum(outcome.startswith("**") for outcome in known)) if known else "–"


def draw_picture(store: Store, found: dict[tuple[str, str], list[Record]], path: Path) -> None:
    """Left: seconds by rows. Right: how often intervals cover, a point for every world."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), width_ratios=(1, 1.1))
    sizes = [10**k for k in range(3, 8)]
    for name, color in COLORS.items():
        cells = [(n, store.get("evaluate", {"rows": n, "actions": 10}).get(name, {})) for n in sizes]
        points = [(n, statistics.median(cell["seconds"])) for n, cell in cells if "seconds" in cell]
        if points:
            is_ours = name == "ours"
            left.loglog(*zip(*points, strict=True), "o-", color=color, lw=2.5 if is_ours else 1.2, ms=5 if is_ours else 3,
                        zorder=3 if is_ours else 2, label=PEERS[name].title)  # fmt: skip
    left.set(xlabel="rows (10 actions)", ylabel="seconds, with 95 % intervals", title="How long it takes")
    left.set_ylim(1e-4, 1e5)
    left.legend(fontsize=7, frameon=False, ncol=2, loc="upper left")
    left.grid(alpha=0.3)
    shown = [name for name in COLORS if best_estimator(name, found)]
    for k, name in enumerate(reversed(shown)):
        shares = best_estimator(name, found, "ok" if name == "ours" else "")
        right.plot(list(shares.values()), [k] * len(shares), "o", color=COLORS[name], ms=6, alpha=0.8)
    right.axvline(0.95, color="black", lw=0.8, ls="--")
    titles = [PEERS[name].title + (", where it says ok" if name == "ours" else "") for name in reversed(shown)]
    right.set_yticks(range(len(shown)), titles, fontsize=8)
    right.set(xlabel="how often its 95 % intervals cover the truth, a point per world", title="Whether to believe it")
    right.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    right.grid(axis="x", alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=140)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(SUITE.main())
