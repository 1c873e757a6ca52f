"""What 200 targets in a database cost beside ten, and many segments beside few: the cost should grow as their number does.

python benchmarks/many_targets.py  # as in RESULTS.md; PostgreSQL where COUNTERPOISE_POSTGRES says, Spark where Java is
python benchmarks/many_targets.py --rows 200 --engine duckdb  # a few seconds
python benchmarks/many_targets.py --segments  # up to 10⁶ rows in 10⁵ segments, half a minute
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import counterpoise as cp

FEW, MANY, LIMIT = 10, 200, 25.0
Ask = Callable[[int], Any]


def generate(rows: int, *, bad: bool, seed: int = 0, targets: int = MANY) -> pl.DataFrame:
    """A log of many targets; of its bad rows, each is bad for all of them, as where a policy was not scored."""
    random = np.random.default_rng(seed)
    p = random.uniform(0.05, 1.0, rows)
    columns = {"reward": random.normal(1.0, 1.0, rows), "propensity": p}
    columns |= {f"target_{k}": np.minimum(p * random.exponential(1.0, rows), 1.0) for k in range(targets)}
    log = pl.DataFrame(columns)
    scored = pl.int_range(pl.len()) % 100 > 0
    return log.with_columns(pl.when(scored).then(pl.col("^target_.*$"))) if bad else log


def question(targets: int) -> dict[str, Any]:
    """The columns, named."""
    names = [f"target_{k}" for k in range(targets)]
    return {"reward": "reward", "propensity": "propensity", "target": names, "drop_bad_rows": True}


@contextmanager
def duckdb(log: pl.DataFrame) -> Iterator[Ask]:
    """The log in a DuckDB table in memory."""
    import duckdb

    with duckdb.connect() as connection:
        connection.register("given", log.to_arrow())
        connection.execute("create table log as select * from given")
        yield lambda targets: cp.evaluate(connection, table="log", **question(targets))


@contextmanager
def postgresql(log: pl.DataFrame) -> Iterator[Ask]:
    """The log in a PostgreSQL table, dropped afterwards."""
    import ibis

    address, table = os.environ["COUNTERPOISE_POSTGRES"], f"counterpoise_many_targets_{os.getpid()}"
    connection = ibis.connect(address)
    connection.create_table(table, log.to_arrow())
    try:
        yield lambda targets: cp.evaluate(address, table=table, **question(targets))
    finally:
        connection.drop_table(table)
        connection.disconnect()


@contextmanager
def spark(log: pl.DataFrame) -> Iterator[Ask]:
    """The log in a Parquet file that a local Spark reads."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    session = builder.config("spark.log.level", "OFF").getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        log.write_parquet(Path(folder, "log.parquet"))
        frame = session.read.parquet(str(Path(folder, "log.parquet")))
        yield lambda targets: cp.evaluate(frame, **question(targets))


ENGINES = {"postgresql": postgresql, "duckdb": duckdb, "spark": spark}


def is_there(engine: str) -> bool:
    """Whether an engine can be asked on this machine."""
    if engine == "postgresql":
        return "COUNTERPOISE_POSTGRES" in os.environ
    return engine != "spark" or shutil.which("java") is not None


def seconds(ask: Ask, targets: int) -> float:
    """How long an answer takes, by the clock: servers do the work, whose processor seconds are not ours to count."""
    start = time.perf_counter()
    ask(targets)
    return time.perf_counter() - start


def measure(engine: str, rows: int) -> Iterator[tuple[str, float, float]]:
    """The time of few targets and of many, without bad rows and with some."""
    for what, bad in (("every row good", False), ("1 % of the rows bad", True)):
        with ENGINES[engine](generate(rows, bad=bad)) as ask:
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


def taken_by(log: pl.DataFrame, asked: dict[str, Any]) -> list[float]:
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


def segmented() -> int:
    """Print what many segments cost, in seconds of processor time; 1 if `evaluate` takes longer than it may."""
    print(
        "| rows | segments | clusters | evaluate | at most | print | table | compare |\n|---|---|---|---|---|---|---|---|"
    )
    worst = 0.0
    for rows, segments, has_clusters, limit in SEGMENTED:
        random = np.random.default_rng(rows)
        log = generate(rows, bad=False, targets=1)
        log = log.with_columns(segment=random.integers(0, segments, rows), user=random.integers(0, rows // 5, rows))
        asked: dict[str, Any] = {"reward": "reward", "propensity": "propensity", "target": "target_0"}
        asked |= {"segment": "segment", "max_segments": segments, **({"cluster": "user"} if has_clusters else {})}
        cp.evaluate(log.head(1000), **asked)  # the libraries' first use
        taken = taken_by(log, asked)
        worst = max(worst, taken[0] / limit)
        said = " | ".join(f"{one:.2f} s" for one in taken[1:])
        clusters = "by user" if has_clusters else "none"
        print(f"| {rows:,} | {segments:,} | {clusters} | {taken[0]:.2f} s | {limit:g} s | {said} |", flush=True)
    return int(worst > 1.0)


def main() -> int:
    """Print the table; 1 if many targets or segments cost more than they should."""
    warnings.simplefilter("ignore")  # the libraries', of one another
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=lambda text: int(float(text)), default=2000)
    options.add_argument("--engine", action="append", choices=list(ENGINES), help="may be repeated; all without it")
    options.add_argument("--segments", action="store_true", help="what many segments cost, instead of many targets")
    given = options.parse_args()
    if given.segments:
        return segmented()
    print(f"{given.rows:,} rows\n\n| | {FEW} targets | {MANY} targets | ratio | at most |\n|---|---|---|---|---|")
    worst = 0.0
    for engine in given.engine or ENGINES:
        if not is_there(engine):
            print(f"| {engine} | not on this machine | | | |")
            continue
        for what, few, many in measure(engine, given.rows):
            worst = max(worst, many / few)
            print(f"| {engine}, {what} | {few:.2f} s | {many:.2f} s | {many / few:.1f} | {LIMIT:g} |", flush=True)
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
