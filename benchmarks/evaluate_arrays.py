"""How near `evaluate` comes to the limit: the time to read three arrays once, as `np.sum` does, in the same run.

python benchmarks/evaluate_arrays.py            # 10⁷ rows, about 20 s
python benchmarks/evaluate_arrays.py --scaling  # 10⁵ to 10⁸ rows, needs 6 GB
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import counterpoise as cp
from counterpoise.engines import compiled

REPEATS = 9


def best_of(function: Callable[[], object]) -> float:
    """The shortest of several runs: what the machine can do when nothing else interferes."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def arrays(rows: int, dtype: type = np.float64) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    log = {name: random.random(rows, dtype=np.float32).astype(dtype) for name in ("reward", "target")}
    return log | {"propensity": (0.05 + 0.9 * random.random(rows, dtype=np.float32)).astype(dtype)}


def measure(rows: int) -> None:
    """Time of the sums, of `evaluate` with and without the compiled loop, and their ratios."""
    log = arrays(rows)
    limit = best_of(lambda: [column.sum() for column in log.values()])
    print(f"{rows:>11,} rows | np.sum of the three arrays {limit * 1e3:8.2f} ms |", end=" ", flush=True)
    whole = best_of(lambda: cp.evaluate(**log))
    print(f"evaluate {whole * 1e3:8.2f} ms, {whole / limit:5.2f} times |", end=" ", flush=True)
    suits, compiled.suits = compiled.suits, lambda *_: False
    embedded = best_of(lambda: cp.evaluate(**log))
    compiled.suits = suits
    print(
        f"without the compiled loop {embedded * 1e3:8.2f} ms, {embedded / limit:5.2f} times | {whole / rows * 1e9:.2f} ns a row"
    )


def memory(rows: int, dtype: str) -> None:
    """Peak resident memory of this process beyond what it held with the arrays in place; run in a fresh one."""
    cp.evaluate(**arrays(compiled.SHORTEST))  # libraries loaded, code compiled
    log = arrays(rows, np.dtype(dtype).type)
    Path("/proc/self/clear_refs").write_text("5")  # Linux: forget the peak so far
    before = resident("VmRSS")
    cp.evaluate(**log)
    after = resident("VmHWM")
    inputs = sum(column.nbytes for column in log.values())
    print(
        f"{rows:>11,} rows of {dtype}: inputs {inputs / 2**20:.0f} MB, evaluate adds at most {(after - before) / 1024:.0f} MB"
    )


def resident(what: str) -> int:
    """Resident memory now (VmRSS) or at most since the last reset (VmHWM), in kB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what))


def import_time() -> None:
    """Seconds that `import counterpoise` takes in a fresh interpreter, beyond starting Python."""

    def run(code: str) -> float:
        return best_of(lambda: subprocess.run([sys.executable, "-c", code], check=True))

    print(
        f"import counterpoise: {run('import counterpoise') - run('pass'):.3f} s, of which NumPy {run('import numpy') - run('pass'):.3f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=lambda text: int(float(text)), default=10**7)
    parser.add_argument("--scaling", action="store_true")
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        memory(options.rows, options.memory)
        return
    import_time()
    for rows in (10**5, 10**6, 10**7, 10**8) if options.scaling else (options.rows,):
        measure(rows)
    for dtype in ("float64", "float32"):
        subprocess.run([sys.executable, __file__, "--rows", str(options.rows), "--memory", dtype], check=True)


if __name__ == "__main__":
    main()
