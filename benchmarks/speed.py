"""Speed and memory of an evaluation, as ratios of what was measured in the same run.

python benchmarks/speed.py                         # all of it
python benchmarks/speed.py arrays --scaling        # 10⁵ to 10⁸ rows of arrays, against np.sum
python benchmarks/speed.py files --rows 1e8        # a Parquet file, against reading it
python benchmarks/speed.py growing --folder DISK   # 10⁹ rows, a piece at a time
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from bench import Suite, fastest, fastest_of, head, resident, row
from worlds import Floats

import counterpoise as cp
from counterpoise.engines import compiled

SUITE = Suite(__file__, __doc__)


# -- arrays in memory -------------------------------------------------------------------------------------------------------


def arrays(rows: int, dtype: type = np.float64) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    log = {name: random.random(rows, dtype=np.float32).astype(dtype) for name in ("reward", "target")}
    return log | {"propensity": (0.05 + 0.9 * random.random(rows, dtype=np.float32)).astype(dtype)}


@SUITE.experiment("arrays", rows=[1e6])
def time_arrays(*, rows: list[int] = (10**7,), scaling: bool = False, times: int = 9) -> None:
    """How near `evaluate` on arrays comes to the limit: the time to read the three of them once, as `np.sum` does.

    `--scaling` takes 10⁵ to 10⁸ rows, and 6 GB.
    """
    head("rows", "`np.sum`", "`evaluate`", "ratio", "without the compiled loop", "ratio", "ns a row")
    sizes = (10**5, 10**6, 10**7, 10**8) if scaling else tuple(map(int, rows))
    for n in sizes:
        log = arrays(n)
        limit = fastest(lambda log=log: [column.sum() for column in log.values()], times)
        whole = fastest(lambda log=log: cp.evaluate(**log), times)
        suits, compiled.suits = compiled.suits, lambda *_: False
        embedded = fastest(lambda log=log: cp.evaluate(**log), times)
        compiled.suits = suits
        seconds = (f"{1e3 * each:.2f} ms" for each in (limit, whole, embedded))
        first, second, third = seconds
        row(f"{n:,}", first, second, f"{whole / limit:.2f}", third, f"{embedded / limit:.2f}", f"{whole / n * 1e9:.2f}")
    print()
    for kind in ("float64", "float32"):
        print(SUITE.run_apart("_memory", "--rows", max(sizes[0], compiled.SHORTEST), "--kind", kind), end="")


@SUITE.experiment("_memory", is_hidden=True)
def print_memory(*, rows: int, kind: str) -> None:
    """Peak resident memory of this process beyond what it held with the arrays in place; run in a fresh one."""
    cp.evaluate(**arrays(compiled.SHORTEST))  # libraries loaded, code compiled
    log = arrays(rows, np.dtype(kind).type)
    Path("/proc/self/clear_refs").write_text("5")  # Linux: forget the peak so far
    before = resident("VmRSS")
    cp.evaluate(**log)
    inputs = sum(column.nbytes for column in log.values()) / 1e6
    print(f"{rows:,} rows of {kind}: inputs {inputs:.0f} MB, evaluate adds at most {resident('VmHWM') - before:.0f} MB")


KEPT_LIMITS = {"compiled": 1.2, "polars": 1.2}  # of a plain log's processor time, by what adds up so many rows


@SUITE.experiment("keep", rows=[1e5], files=1e5, times=3)
def time_keep(*, rows: list[int] = (10**6, 10**7), files: int = 10**7, times: int = 9) -> bool:
    """What `keep=` costs beside a plain log, on arrays and on a Parquet file, taking turns."""
    head("", "rows", "plain", "`keep=`", "ratio", "of processor seconds", "at most")
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.parquet"
        pq.write_table(pa.table(with_keep(int(files))), path, compression="zstd", row_group_size=ROW_GROUP)
        places: list[tuple[str, int, Any]] = [("arrays", int(n), with_keep(int(n))) for n in rows]
        for name, n, log in [*places, ("Parquet", int(files), path)]:
            question: dict[str, Any] = {**QUESTION, "target": "target", "progress": False}
            works = {keep: partial(cp.evaluate, log, keep=keep or None, **question) for keep in ("", "keep")}
            taken = fastest_of(works, times)
            plain, kept = taken[""], taken["keep"]
            clock, used = (after / before for before, after in zip(plain, kept, strict=True))
            limit = KEPT_LIMITS["compiled" if name == "arrays" and n >= compiled.SHORTEST else "polars"]
            worst = max(worst, used / limit)
            row(
                name,
                f"{n:,}",
                *(f"{1e3 * each:.1f} ms" for each in (plain[0], kept[0])),
                f"{clock:.2f}",
                f"{used:.2f}",
                limit,
            )
    return worst <= 1.0


def with_keep(rows: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return arrays(rows) | {"keep": np.where(random.random(rows) < 0.3, 1.0, 0.1)}


@SUITE.experiment("start", times=2)
def time_start(*, times: int = 9) -> None:
    """What starting costs beyond starting Python: `import counterpoise` and `counterpoise --help`, over `import numpy`."""

    def seconds(*words: str) -> float:
        return fastest(lambda: subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL), times)

    nothing = seconds("-c", "pass")
    numpy = seconds("-c", "import numpy") - nothing
    head("", "seconds", "over `import numpy`")
    row("`import numpy`", f"{numpy:.3f}", 1)
    for name, words in {
        "`import counterpoise`": ("-c", "import counterpoise"),
        "`counterpoise --help`": ("-m", "counterpoise", "--help"),
    }.items():
        took = seconds(*words) - nothing
        row(name, f"{took:.3f}", f"{took / numpy:.2f}")


# -- files ------------------------------------------------------------------------------------------------------------------


PIECE = 1_000_000
ROW_GROUP = 122_880  # DuckDB's default; polars writes twice, pyarrow eight times as many rows
QUESTION = {"reward": "reward", "propensity": "propensity"}


def write_log(path: Path, rows: int, targets: int = 1, seed: int = 0, row_group: int = ROW_GROUP) -> Path:
    """A log whose columns do not compress to nothing: float64 propensities and targets, rewards of 0 and 1."""
    random = np.random.default_rng(seed)
    writer = None
    for start in range(0, rows, PIECE):
        n = min(PIECE, rows - start)
        p = 0.05 + 0.95 * random.random(n)
        columns = {"reward": (random.random(n) < 0.1).astype(float), "propensity": p}
        columns |= {f"target_{k}": np.minimum(p * random.exponential(1.0, n), 1.0) for k in range(targets)}
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
        writer.write_table(table, row_group_size=row_group)
    if writer is not None:
        writer.close()
    return path


def plain_sums(path: Path) -> object:
    """The cost of decoding the file."""
    return pl.scan_parquet(path).select(pl.col("reward", "propensity", "target_0").sum()).collect(engine="streaming")


def hand_written(path: Path) -> object:
    """The sums that every estimator and its error need, as one would write them in the engine's own language."""
    r, p, t = pl.col("reward"), pl.col("propensity"), pl.col("target_0")
    rows = pl.scan_parquet(path).select(u=(t - p) / p, s=r - 0.1).with_columns(us=pl.col("u") * pl.col("s"))
    u, s, us = pl.col("u"), pl.col("s"), pl.col("us")
    products = {"uu": u * u, "ss": s * s, "uus": u * us, "sus": s * us, "usus": us * us}
    sums = [column.sum().alias(name) for name, column in products.items()]
    return rows.select(pl.len(), u.sum(), s.sum(), us.sum(), *sums).collect(engine="streaming")


def evaluate_file(path: Path, targets: int = 1) -> object:
    return cp.evaluate(path, **QUESTION, target=[f"target_{k}" for k in range(targets)], progress=False)


def evaluate_blends(path: Path, targets: int) -> object:
    blends = {f"blend {k}": f"{k / 50}*target_0 + {1 - k / 50}*target_1" for k in range(targets)}
    return cp.evaluate(path, **QUESTION, target=blends, progress=False)


def measure_files(folder: Path, rows: int, times: int) -> None:
    log = write_log(folder / "log.parquet", rows)
    ways = {
        "plain sums": lambda: plain_sums(log),
        "hand-written": lambda: hand_written(log),
        "evaluate": lambda: evaluate_file(log),
    }
    taken = fastest_of(ways, times)
    print(f"{rows:,} rows, {log.stat().st_size / 1e6:,.0f} MB of Parquet")
    for name, (seconds, used) in taken.items():
        print(
            f"  {name:14} {seconds:8.3f} s, {used:8.3f} processor seconds, {seconds / rows * 1e9:6.2f} ns a row",
            flush=True,
        )
    found = {name: ratios(taken["evaluate"], taken[name]) for name in ("hand-written", "plain sums")}
    sizes = sorted({min(rows, 10**k) for k in (6, 7, 8)})
    peaks = [peak_memory(write_log(folder / f"{n}.parquet", n)) for n in sizes]
    coarse = peak_memory(write_log(log, rows, row_group=PIECE))
    log.unlink()
    wide_rows = max(rows // 50, 1)
    wide = write_log(folder / "wide.parquet", wide_rows, 50)
    many = fastest_of(
        {
            "plain sums of 3 columns": lambda: plain_sums(wide),
            "plain sums of the 52 columns": lambda: pl.scan_parquet(wide).sum().collect(engine="streaming"),
            "1 target, a column": lambda: evaluate_file(wide),
            "50 targets, columns": lambda: evaluate_file(wide, 50),
            "1 target, an expression of two columns": lambda: evaluate_blends(wide, 1),
            "50 targets, expressions of two columns": lambda: evaluate_blends(wide, 50),
        },
        max(3, times // 2),
    )
    print(f"{wide_rows:,} rows of 52 columns")
    for name, (seconds, used) in many.items():
        print(f"  {name:40} {seconds:8.3f} s, {used:8.3f} processor seconds")
    plain, floor, one, fifty, blend, blends = many.values()
    found |= {
        "50 columns": ratios(fifty, one),
        "50 expressions": ratios(blends, blend),
        "50 columns, decoded": ratios(fifty, floor),
        "52 plain sums / 3": ratios(floor, plain),
    }
    shown = ", ".join(f"{peak:,.0f} MB at {n:,} rows" for n, peak in zip(sizes, peaks, strict=True))
    print(f"  peak memory {shown}; {coarse:,.0f} MB in row groups of {PIECE:,} (limit 600)")
    for name, (seconds, used) in found.items():
        limit = f", limit {LIMITS[name]:g}" if name in LIMITS else ""
        print(f"  {name:20} {seconds:6.2f} times by the clock, {used:6.2f} in processor seconds{limit}")


def ratios(these: tuple[float, float], those: tuple[float, float]) -> tuple[float, float]:
    return these[0] / those[0], these[1] / those[1]


LIMITS = {"hand-written": 1.25, "plain sums": 1.6, "50 columns": 12.0, "50 expressions": 12.0}


@SUITE.experiment("files", rows=1e6, times=3)
def time_files(*, rows: int = 10**7, times: int = 5, folder: Path | None = None) -> None:
    """How near `evaluate` on a Parquet file comes to the cost of reading it, as ratios of one run.

    10⁸ rows take 2.4 GB of disk and about 5 minutes; at 10⁶, what the gate runs, the overhead of a call shows in the ratios.
    """
    with tempfile.TemporaryDirectory(dir=folder) as place:
        measure_files(Path(place), int(rows), times)


def peak_memory(path: Path) -> float:
    """Peak resident megabytes of a fresh process that evaluates the file."""
    return float(SUITE.run_apart("_peak", "--path", path))


@SUITE.experiment("_peak", is_hidden=True)
def print_peak(*, path: Path) -> None:
    """Peak resident megabytes of this process."""
    evaluate_file(path)
    print(resident("VmHWM"))


# -- other tools' logs ------------------------------------------------------------------------------------------------------


def write_dsjson(path: Path, rows: int, actions: int = 5) -> Path:
    """Records of a contextual bandit, as Vowpal Wabbit's decision service writes them: about 650 bytes each."""
    random = np.random.default_rng(0)
    with path.open("w") as file:
        for k in range(rows):
            p = 0.8 * random.dirichlet(np.ones(actions)) + 0.2 / actions
            chosen, hour = int(random.integers(actions)), int(random.integers(24))
            order = [chosen, *(j for j in range(actions) if j != chosen)]
            record = {
                "_label_cost": float(-(random.random() < 0.1)),
                "_label_probability": p[chosen],
                "_label_Action": chosen + 1,
                "_labelIndex": chosen,
                "Timestamp": f"2026-01-{1 + k * 28 // rows:02}T{hour:02}:00:15.5160000Z",
                "EventId": f"event {k}",
                "a": [j + 1 for j in order],
                "c": {
                    "GUser": {"id": f"u{random.integers(1000)}", "age": int(random.integers(18, 80))},
                    "hour": hour,
                    "_multi": [{"TAction": {"topic": f"t{j}", "price": float(j)}} for j in range(actions)],
                },
                "p": [p[j] for j in order],
                "VWState": {"m": "ff0744c1aa494e1ab39ba0c78d048146/550c12cbd3aa47f09fbed3387fb9c6ec"},
            }
            file.write(json.dumps(record, separators=(",", ":")) + "\n")
    return path


@SUITE.experiment("dsjson", rows=2e4)
def time_dsjson(*, rows: int = 10**5, folder: Path | None = None) -> None:
    """Reading Vowpal Wabbit's JSON lines, beside polars' own reader of JSON lines writing the same file as Parquet.

    1.6 · 10⁶ rows are a file of about 1 GB.
    """
    head("reader", "seconds", "rows/s", "MB/s", "peak MB of memory")
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path = write_dsjson(Path(place, "log.dsjson"), int(rows))
        size = path.stat().st_size / 1e6
        for reader in ("`cp.read.vowpal_wabbit`", "`polars.scan_ndjson`"):
            seconds, peak = map(float, SUITE.run_apart("_dsjson", "--path", path, "--reader", reader).split())
            row(reader, f"{seconds:.2f}", f"{rows / seconds:,.0f}", f"{size / seconds:.0f}", f"{peak:,.0f}")


@SUITE.experiment("_dsjson", is_hidden=True)
def read_dsjson(*, path: Path, reader: str) -> None:
    """Seconds and peak megabytes of one reading in this process."""
    began = time.perf_counter()
    if "polars" in reader:
        pl.scan_ndjson(path).sink_parquet(path.with_suffix(".parquet"))
    else:
        cp.read.vowpal_wabbit(path)
    print(time.perf_counter() - began, resident("VmHWM"))


# -- a log that grows -------------------------------------------------------------------------------------------------------


@SUITE.experiment("growing", rows=4e5, piece=1e5)
def time_growing(*, rows: int = 10**9, piece: int = 10**8, folder: Path | None = None) -> None:
    """The 10⁹-row plan: a log that grows by a piece at a time is evaluated a piece at a time, and never read again.

    Each piece is written as Parquet, added to the state, and deleted, as a job would treat each day of a log; the answer after the
    last piece is about all rows. Prints the seconds for evaluating alone, and the peak memory of the process that evaluates. Takes
    about 1.5 GB of disk at a time.
    """
    total = peak = 0.0
    head("rows", "this piece", "in all", "peak memory", "`beta_ips`")
    with tempfile.TemporaryDirectory(dir=folder) as place:
        for k in range(int(rows // piece)):
            path = write_log(Path(place, f"piece {k}.parquet"), int(piece), seed=k)
            added = json.loads(SUITE.run_apart("_add", "--path", path, "--state", Path(place, "state.json")))
            path.unlink()
            total, peak = total + added["seconds"], max(peak, added["peak"])
            estimate = f"{added['value']:.7f} ± {added['stderr']:.7f}"
            row(f"{added['n']:,}", f"{added['seconds']:.2f} s", f"{total:.2f} s", f"{peak:.0f} MB", estimate)


@SUITE.experiment("_add", is_hidden=True)
def add_piece(*, path: Path, state: Path) -> None:
    """Add one piece to the state, in a process of its own, and say what it took."""
    began = time.perf_counter()
    result = cp.evaluate(path, **QUESTION, target="target_0", state=state, batch=path.name, progress=False)
    seconds = time.perf_counter() - began
    best = result["target_0", "beta_ips"]
    answer = {"seconds": seconds, "peak": resident("VmHWM"), "n": best.n, "value": best.value, "stderr": best.stderr}
    print(json.dumps(answer))


# -- many targets, many segments --------------------------------------------------------------------------------------------


FEW, MANY, LIMIT = 10, 200, 25.0
Ask = tuple[
    Callable[[int], Any], Callable[[str], Any]
]  # evaluates so many targets, and runs a statement about the table "log"


def log_of_many(rows: int, *, bad: bool, seed: int = 0, targets: int = MANY) -> pl.DataFrame:
    """A log of many targets; of its bad rows, each is bad for all of them, as where a policy was not scored."""
    random = np.random.default_rng(seed)
    p = random.uniform(0.05, 1.0, rows)
    columns = {"reward": random.normal(1.0, 1.0, rows), "propensity": p}
    columns |= {f"target_{k}": np.minimum(p * random.exponential(1.0, rows), 1.0) for k in range(targets)}
    log = pl.DataFrame(columns)
    scored = pl.int_range(pl.len()) % 100 > 0
    return log.with_columns(pl.when(scored).then(pl.col("^target_.*$"))) if bad else log


def target_names(targets: int) -> list[str]:
    return [f"target_{k}" for k in range(targets)]


def question_about(targets: int) -> dict[str, Any]:
    """The columns, named."""
    return {"reward": "reward", "propensity": "propensity", "target": target_names(targets), "drop_bad_rows": True}


@contextmanager
def duckdb(log: pl.DataFrame) -> Iterator[Ask]:
    """The log in a DuckDB table in memory."""
    import duckdb

    with duckdb.connect() as connection:
        connection.register("given", log.to_arrow())
        connection.execute("create table log as select * from given")
        ask = lambda targets: cp.evaluate(connection, table="log", **question_about(targets))  # noqa: E731
        yield ask, lambda statement: connection.execute(statement).fetchall()


@contextmanager
def postgresql(log: pl.DataFrame) -> Iterator[Ask]:
    """The log in a PostgreSQL table, dropped afterwards."""
    import ibis
    import psycopg

    address, table = os.environ["COUNTERPOISE_POSTGRES"], f"counterpoise_many_targets_{os.getpid()}"
    connection = ibis.connect(address)
    connection.create_table(table, log.to_arrow())
    try:
        ask = lambda targets: cp.evaluate(address, table=table, **question_about(targets))  # noqa: E731

        def by_hand(statement: str) -> Any:
            with psycopg.connect(address) as own:
                return own.execute(statement.replace("FROM log", f"FROM {table}")).fetchall()

        yield ask, by_hand
    finally:
        connection.drop_table(table)
        connection.disconnect()


@contextmanager
def spark(log: pl.DataFrame) -> Iterator[Ask]:
    """The log in a Parquet file that a local Spark reads."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    session = builder.config("spark.log.level", "OFF").getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        log.write_parquet(Path(folder, "log.parquet"))
        frame = session.read.parquet(str(Path(folder, "log.parquet")))
        frame.createOrReplaceTempView("log")
        ask = lambda targets: cp.evaluate(frame, **question_about(targets))  # noqa: E731
        yield ask, lambda statement: session.sql(statement).collect()


ENGINES = {"postgresql": postgresql, "duckdb": duckdb, "spark": spark}


def sums_by_hand(targets: int) -> str:
    """The sums that every estimator and its error need, as one would write them in SQL."""
    made = ", ".join(f"({t} - propensity) / propensity AS u{k}" for k, t in enumerate(target_names(targets)))
    wanted = "sum({u}), sum({u} * s), sum({u} * {u}), sum({u} * {u} * s), sum(s * {u} * s), sum({u} * s * {u} * s)"
    sums = ", ".join(wanted.format(u=f"u{k}") for k in range(targets))
    return f"SELECT count(*), sum(s), sum(s * s), {sums} FROM (SELECT reward - 1.0 AS s, {made} FROM log) AS rows"


@SUITE.experiment("elsewhere", rows=2000, few=2000, times=1, engine=["duckdb"])
def time_elsewhere(
    *, rows: int = 10**6, few: int = 300_000, targets: list[int] = (1, 10), times: int = 5, engine: list[str] = ()
) -> bool:
    """What an evaluation costs where the log lives, beside the same sums written by hand in SQL, taking turns.

    PostgreSQL, which has the `few` rows, is where COUNTERPOISE_POSTGRES says, and Spark where Java is; `--engine` takes some of
    postgresql, duckdb and spark. Queries, or jobs of Spark, are those that the sums took.
    """
    warnings.simplefilter("ignore")  # the libraries', of one another
    head("", "rows", "targets", "by hand", "`evaluate`", "ratio", "at most", "queries")
    worst = 0.0
    for name in engine or ENGINES:
        if not is_there(name):
            row(name, "not on this machine", "", "", "", "", "", "")
            continue
        n = int(few if name == "postgresql" else rows)
        with ENGINES[name](log_of_many(n, bad=False, targets=max(targets))) as (ask, by_hand):
            for k in targets:
                works = {"by hand": partial(by_hand, sums_by_hand(k)), "evaluate": partial(ask, k)}
                for work in works.values():
                    work()  # the libraries' first use
                taken = fastest_of(works, times)
                ratio, limit = taken["evaluate"][0] / taken["by hand"][0], OVER_BY_HAND[name][k > 1]
                worst = max(worst, ratio / limit)
                clock = (f"{1e3 * each[0]:.0f} ms" for each in taken.values())
                row(name, f"{n:,}", k, *clock, f"{ratio:.1f}", f"{limit:g}", ask(k).queries)
    return worst <= 1.0


OVER_BY_HAND = {"postgresql": (4.0, 4.0), "duckdb": (3.0, 3.0), "spark": (2.5, 3.0)}  # for one target, for several


def is_there(engine: str) -> bool:
    """Whether an engine can be asked on this machine."""
    if engine == "postgresql":
        return "COUNTERPOISE_POSTGRES" in os.environ
    return engine != "spark" or shutil.which("java") is not None


def seconds(ask: Callable[[int], Any], targets: int) -> float:
    """How long an answer takes, by the clock: servers do the work, whose processor seconds are not ours to count."""
    start = time.perf_counter()
    ask(targets)
    return time.perf_counter() - start


def measure_targets(engine: str, rows: int) -> Iterator[tuple[str, float, float]]:
    """The time of few targets and of many, without bad rows and with some."""
    for what, bad in (("every row good", False), ("1 % of the rows bad", True)):
        with ENGINES[engine](log_of_many(rows, bad=bad)) as (ask, _):
            ask(1)  # connections, the libraries' first use
            ask(FEW)
            # the mean of few before and after many, not the best: a busy machine slows all of them
            before = [seconds(ask, FEW) for _ in range(3)]
            many = seconds(ask, MANY)
            after = [seconds(ask, FEW) for _ in range(3)]
            yield what, sum(before + after) / 6, many


# rows, segments, whether rows have clusters, and the seconds that evaluate may take
SEGMENTED = (
    (30_000, 15_000, False, 1.0),
    (1_000_000, 100_000, False, 5.0),
    (100_000, 4_000, True, 5.0),
)


def seconds_by(log: pl.DataFrame, asked: dict[str, Any]) -> list[float]:
    """Seconds of processor time: of evaluate, of what is printed, of its table, and of compare."""
    found: list[Any] = []
    works: list[Callable[[], Any]] = [
        lambda: found.append(cp.evaluate(log, **asked)),
        lambda: str(found[0]),
        lambda: found[0].table(),
        lambda: cp.compare(log, **asked),
    ]
    taken = []
    for work in works:
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return taken


@SUITE.experiment("targets", rows=200, engine=["duckdb"])
def time_targets(*, rows: int = 2000, engine: list[str] = ()) -> bool:
    """What 200 targets in a database cost beside ten: the cost should grow as their number does.

    PostgreSQL is where COUNTERPOISE_POSTGRES says, and Spark where Java is; `--engine` takes some of postgresql, duckdb and spark.
    """
    warnings.simplefilter("ignore")  # the libraries', of one another
    print(f"{int(rows):,} rows\n")
    head("", f"{FEW} targets", f"{MANY} targets", "ratio", "at most")
    worst = 0.0
    for name in engine or ENGINES:
        if not is_there(name):
            row(name, "not on this machine", "", "", "")
            continue
        for what, few, many in measure_targets(name, int(rows)):
            worst = max(worst, many / few)
            row(f"{name}, {what}", f"{few:.2f} s", f"{many:.2f} s", f"{many / few:.1f}", f"{LIMIT:g}")
    return worst <= LIMIT


@SUITE.experiment("segments", largest=30_000)
def time_segments(*, largest: int = 1_000_000) -> bool:
    """What many segments cost, in seconds of processor time: up to 10⁶ rows in 10⁵ segments."""
    head("rows", "segments", "clusters", "evaluate", "at most", "print", "table", "compare")
    worst = 0.0
    for rows, segments, has_clusters, limit in SEGMENTED:
        if rows > largest:
            continue
        random = np.random.default_rng(rows)
        log = log_of_many(rows, bad=False, targets=1)
        log = log.with_columns(segment=random.integers(0, segments, rows), user=random.integers(0, rows // 5, rows))
        question: dict[str, Any] = {**QUESTION, "target": "target_0", "segment": "segment", "max_segments": segments}
        question |= {"cluster": "user"} if has_clusters else {}
        cp.evaluate(log.head(1000), **question)  # the libraries' first use
        taken = seconds_by(log, question)
        worst = max(worst, taken[0] / limit)
        clusters = "by user" if has_clusters else "none"
        row(
            f"{rows:,}",
            f"{segments:,}",
            clusters,
            f"{taken[0]:.2f} s",
            f"{limit:g} s",
            *(f"{t:.2f} s" for t in taken[1:]),
        )
    return worst <= 1.0


# -- what each kind of question costs beside the work that cannot be avoided ------------------------------------------------

# what → beside what, and at most so many times its processor time; the first are beside what one would write by hand
CELLS = {
    "arrays": ("np.sum", 8.0),
    "Parquet": ("hand-written", 2.5),
    "10 targets": ("Parquet", 5.0),
    "`keep=`": ("Parquet", 1.3),
    "20 segments": ("Parquet", 2.2),
    "100,000 segments": ("Parquet", 90.0),
    "clusters, numbers": ("Parquet", 3.0),
    "clusters, text": ("Parquet", 6.0),
    "lists in order": ("lists by hand", 35.0),
    "lists out of order": ("lists in order", 3.0),
    "lists of 40 out of order": ("lists out of order", 4.0),
}


def lists_of(rows: int, length: int, *, is_mixed: bool) -> pl.DataFrame:
    """Lists in long form, whose propensities are those of the items at each position."""
    count, random = rows // length, np.random.default_rng(3)
    p = 0.05 + 0.9 * random.random(count * length)
    log = {"list": np.repeat(np.arange(count), length), "position": np.tile(np.arange(1, length + 1), count)}
    log |= {"reward": (random.random(len(p)) < 0.1).astype(float), "propensity": p}
    frame = pl.DataFrame(log | {"target": np.minimum(p * random.exponential(1.0, len(p)), 1.0)})
    return frame.sample(fraction=1.0, shuffle=True, seed=1) if is_mixed else frame


@SUITE.experiment("cells", rows=2e5, times=2)
def time_cells(*, rows: int = 10**6, times: int = 5, is_new: bool = False) -> bool:
    """What segments, clusters, lists and so on cost, in processor time, beside a plain log or what one would write by hand.

    The compiled loop has started, as in the second call of a process, if numba is there; `--is-new` leaves that to the first long log.
    """
    rows, random = int(rows), np.random.default_rng(2)
    ways: dict[str, Callable[[], object]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = write_log(Path(folder, "log.parquet"), rows, 10)
        users = pl.Series("user", random.integers(0, max(rows // 5, 1), rows))
        more = {"keep": np.where(random.random(rows) < 0.3, 1.0, 0.1), "few": random.integers(0, 20, rows)}
        more |= {"many": random.integers(0, min(10**5, rows // 10), rows)}
        log = pl.read_parquet(path).with_columns(users, pl.format("user {}", users).alias("name"), **more)

        def ask(parts: dict[str, Any], targets: int = 1) -> partial[Any]:
            """A question about a file that has no columns but those it is about."""
            names = [f"target_{k}" for k in range(targets)]
            columns = [*QUESTION.values(), *names, *(name for name in parts.values() if isinstance(name, str))]
            file = Path(folder, f"{' '.join(columns)}.parquet")
            log.select(columns).write_parquet(file, compression="zstd", row_group_size=ROW_GROUP)
            return partial(cp.evaluate, file, **QUESTION, target=names, progress=False, **parts)

        arrays_ = {"reward": log["reward"].to_numpy(), "propensity": log["propensity"].to_numpy()}
        arrays_ |= {"target": log["target_0"].to_numpy()}
        ways["np.sum"] = lambda: [column.sum() for column in arrays_.values()]
        ways["arrays"] = lambda: cp.evaluate(**arrays_)
        plain = ask({})
        ways["hand-written"], ways["Parquet"] = partial(hand_written, plain.args[0]), plain
        ways["10 targets"] = ask({}, 10)
        ways["`keep=`"], ways["20 segments"] = ask({"keep": "keep"}), ask({"segment": "few"})
        ways["100,000 segments"] = ask({"segment": "many", "max_segments": 10**5})
        ways["clusters, numbers"], ways["clusters, text"] = ask({"cluster": "user"}), ask({"cluster": "name"})
        asked = {
            "slate": "list",
            "position": "position",
            "propensity_of": "item_at_position",
            **QUESTION,
            "target": "target",
        }
        lists = {(n, mixed): lists_of(rows, n, is_mixed=mixed) for n, mixed in ((10, False), (10, True), (40, True))}
        by_hand = [lists[10, False][name].to_numpy().reshape(-1, 10) for name in ("target", "propensity", "reward")]
        ways["lists by hand"] = lambda: (by_hand[0] / by_hand[1] * by_hand[2]).sum(axis=1).std()
        ways["lists in order"] = lambda: cp.evaluate(lists[10, False], **asked)
        ways["lists out of order"] = lambda: cp.evaluate(lists[10, True], **asked)
        ways["lists of 40 out of order"] = lambda: cp.evaluate(lists[40, True], **asked)
        if not is_new:
            compiled.start()
        taken = fastest_of(ways, times)
    head("", "processor time", "beside", "ratio", "at most")
    worst = 0.0
    for name, (beside, limit) in CELLS.items():
        ratio = taken[name][1] / taken[beside][1]
        worst = max(worst, ratio / limit)
        row(name, f"{1e3 * taken[name][1]:.1f} ms", beside, f"{ratio:.2f}", f"{limit:g}")
    return worst <= 1.0


# -- context baselines ------------------------------------------------------------------------------------------------------


FEATURES = 20


def log_with_context(rows: int, seed: int = 0) -> dict[str, Floats]:
    """A log of 20 numbers of context, on two of which the reward depends."""
    random = np.random.default_rng(seed)
    p = 0.05 + 0.95 * random.random(rows)
    log = {f"x{k}": random.normal(size=rows) for k in range(FEATURES)}
    reward = log["x0"] + 0.5 * log["x1"] + random.normal(size=rows)
    return log | {"reward": reward, "propensity": p, "target": np.minimum(p * random.exponential(1.0, rows), 1.0)}


def context_costs(rows: int) -> dict[str, float]:
    """What `evaluate` takes with 20 features, over a BLAS scatter on arrays and over plain sums on files."""
    log, names = log_with_context(rows), [f"x{k}" for k in range(FEATURES)]
    blas = fastest(partial(_scatter, np.stack([log[name] for name in names], axis=1)))
    arrays = fastest(lambda: cp.evaluate(log, **CONTEXT_QUESTION, baseline=names))
    print(f"arrays: X.T @ X {blas:.3f} s, evaluate {arrays:.3f} s")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.parquet"
        pl.DataFrame(log).write_parquet(path)
        columns = [*names, "reward", "propensity", "target"]
        scan = pl.scan_parquet(path)
        sums = fastest(lambda: scan.select(pl.col(columns).sum()).collect(engine="streaming"))
        files = fastest(lambda: cp.evaluate(path, **CONTEXT_QUESTION, baseline=names, progress=False))
    print(f"files: plain sums {sums:.3f} s, evaluate {files:.3f} s")
    return {"arrays": arrays / blas, "files": files / sums}


CONTEXT_QUESTION = QUESTION | {"target": "target", "estimator": ["context_ips", "lift"]}
CONTEXT_LIMITS = {"arrays": 3.0, "files": 2.0}


def _scatter(table: Floats) -> Floats:
    return table.T @ table


@SUITE.experiment("context", rows=1e5)
def time_context(*, rows: int = 10**6) -> bool:
    """What a context baseline of 20 columns costs: over a BLAS scatter of the same columns on arrays, over plain sums on files."""
    ratios = context_costs(int(rows))
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f} times, at most {CONTEXT_LIMITS[name]:.0f}")
    return all(ratio <= CONTEXT_LIMITS[name] for name, ratio in ratios.items())


if __name__ == "__main__":
    sys.exit(SUITE.main())
