"""What 200 targets in a database cost beside ten: the cost should grow as their number does, not as its square.

python benchmarks/many_targets.py  # as in RESULTS.md; PostgreSQL where COUNTERPOISE_POSTGRES says, Spark where Java is
python benchmarks/many_targets.py --rows 200 --engine duckdb  # a few seconds
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


def generate(rows: int, *, bad: bool, seed: int = 0) -> pl.DataFrame:
    """A log of many targets; of its bad rows, each is bad for all of them, as where a policy was not scored."""
    random = np.random.default_rng(seed)
    p = random.uniform(0.05, 1.0, rows)
    columns = {"reward": random.normal(1.0, 1.0, rows), "propensity": p}
    columns |= {f"target_{k}": np.minimum(p * random.exponential(1.0, rows), 1.0) for k in range(MANY)}
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


def main() -> int:
    """Print the table; 1 if many targets cost more than they should."""
    warnings.simplefilter("ignore")  # the libraries', of one another
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=lambda text: int(float(text)), default=2000)
    options.add_argument("--engine", action="append", choices=list(ENGINES), help="may be repeated; all without it")
    given = options.parse_args()
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
