"""How near `evaluate` on a Parquet file comes to the cost of reading it, as ratios of one run.

python benchmarks/evaluate_files.py --rows 1e8  # as in RESULTS.md: 2.4 GB of disk, about 5 minutes
python benchmarks/evaluate_files.py --rows 1e6  # what the gate runs: the overhead of a call shows in the ratios
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import counterpoise as cp

PIECE = 1_000_000
ROW_GROUP = 122_880  # DuckDB's default; polars writes twice, pyarrow eight times as many rows
QUESTION = {"reward": "reward", "propensity": "propensity"}
LIMITS = {"hand-written": 1.25, "plain sums": 1.6, "50 columns": 12.0, "50 expressions": 12.0}


def generate(path: Path, rows: int, targets: int = 1, seed: int = 0, row_group: int = ROW_GROUP) -> Path:
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


def evaluated(path: Path, targets: int = 1) -> object:
    return cp.evaluate(path, **QUESTION, target=[f"target_{k}" for k in range(targets)], progress=False)


def blended(path: Path, targets: int) -> object:
    blends = {f"blend {k}": f"{k / 50}*target_0 + {1 - k / 50}*target_1" for k in range(targets)}
    return cp.evaluate(path, **QUESTION, target=blends, progress=False)


def best_of(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, tuple[float, float]]:
    """The least seconds, by the clock and of processors, of several runs of each, taken in turns.

    In turns, so that a busy moment of the machine hits all alike; processor seconds hardly feel what else the machine does.
    """
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            start, used = time.perf_counter(), time.process_time()
            function()
            times[name].append((time.perf_counter() - start, time.process_time() - used))
    return {name: (min(t for t, _ in taken), min(u for _, u in taken)) for name, taken in times.items()}


def peak_memory(path: Path) -> float:
    """Peak resident megabytes of a fresh process that evaluates the file."""
    done = subprocess.run([sys.executable, __file__, "--peak", path], capture_output=True, text=True, check=True)
    return float(done.stdout)


def print_peak(path: Path) -> None:
    evaluated(path)
    status = Path("/proc/self/status").read_text()
    kilobytes = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    print(int(kilobytes) / 1000)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--rows", type=float, default=1e7)
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--folder", type=Path)
    arguments.add_argument("--peak", type=Path, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.peak is not None:
        return print_peak(given.peak)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        measure(Path(folder), int(given.rows), given.repeats)
    return None


def measure(folder: Path, rows: int, repeats: int) -> None:
    log = generate(folder / "log.parquet", rows)
    ways = {
        "plain sums": lambda: plain_sums(log),
        "hand-written": lambda: hand_written(log),
        "evaluate": lambda: evaluated(log),
    }
    times = best_of(ways, repeats)
    print(f"{rows:,} rows, {log.stat().st_size / 1e6:,.0f} MB of Parquet")
    for name, (seconds, used) in times.items():
        print(
            f"  {name:14} {seconds:8.3f} s, {used:8.3f} processor seconds, {seconds / rows * 1e9:6.2f} ns a row",
            flush=True,
        )
    found = {name: ratios(times["evaluate"], times[name]) for name in ("hand-written", "plain sums")}
    sizes = sorted({min(rows, 10**k) for k in (6, 7, 8)})
    peaks = [peak_memory(generate(folder / f"{n}.parquet", n)) for n in sizes]
    coarse = peak_memory(generate(log, rows, row_group=PIECE))
    log.unlink()
    wide_rows = max(rows // 50, 1)
    wide = generate(folder / "wide.parquet", wide_rows, 50)
    many = best_of(
        {
            "plain sums of 3 columns": lambda: plain_sums(wide),
            "plain sums of the 52 columns": lambda: pl.scan_parquet(wide).sum().collect(engine="streaming"),
            "1 target, a column": lambda: evaluated(wide),
            "50 targets, columns": lambda: evaluated(wide, 50),
            "1 target, an expression of two columns": lambda: blended(wide, 1),
            "50 targets, expressions of two columns": lambda: blended(wide, 50),
        },
        max(3, repeats // 2),
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


if __name__ == "__main__":
    main()
