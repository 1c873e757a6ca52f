"""What lists cost: the rows of a Parquet file evaluated on their own, and as lists of ten, by every weight.

Run ``python benchmarks/lists.py [rows]``; by default 10 million rows. It prints seconds, and times the cost of single rows.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

import counterpoise as cp

DEPTH = 10


def write(rows: int, path: Path) -> None:
    """Lists of ten, in the order in which they were shown."""
    random = np.random.default_rng(0)
    p = random.uniform(0.2, 0.9, rows)
    pl.DataFrame(
        {
            "list": np.arange(rows) // DEPTH,
            "position": np.arange(rows) % DEPTH + 1,
            "p": p,
            "new": np.minimum(p * random.uniform(0.7, 1.3, rows), 1.0),
            "click": (random.random(rows) < 0.1).astype(np.float64),
        }
    ).write_parquet(path)


def main(rows: int) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lists.parquet"
        write(rows, path)
        parts = {"reward": "click", "propensity": "p", "target": "new"}
        lists = parts | {"slate": "list", "position": "position"}
        kinds = {
            "single rows": parts,
            "independent": lists | {"propensity_of": "item_at_position"},
            "pseudo_inverse": lists | {"propensity_of": "item_at_position", "weight": cp.weights.PseudoInverse()},
            "cascade": lists | {"propensity_of": "item_given_above"},
            "standard": lists | {"propensity_of": "item_given_above", "weight": cp.weights.Standard()},
        }
        first = 0.0
        for name, asked in kinds.items():
            times = []
            for _ in range(3):
                start = time.perf_counter()
                cp.evaluate(str(path), **asked)
                times.append(time.perf_counter() - start)
            best = min(times)
            first = first or best
            print(f"{name:15} {best:8.3f} s {best / first:6.1f} times")


if __name__ == "__main__":
    main(int(float(sys.argv[1])) if len(sys.argv) > 1 else 10_000_000)
