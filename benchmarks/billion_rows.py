"""The 10⁹-row plan: a log that grows by a piece at a time is evaluated a piece at a time, and never read again.

python benchmarks/billion_rows.py --rows 1e9 --piece 1e8 --folder /some/disk  # about 1.5 GB of disk at a time

Each piece is written as Parquet, added to the state, and deleted, as a job would treat each day of a log; the answer after the
last piece is about all rows. Prints the seconds for evaluating alone, and the peak memory of the process that evaluates.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from evaluate_files import generate

import counterpoise as cp


def add(path: Path, state: Path) -> None:
    """Add one piece to the state, in a process of its own, and say what it took."""
    start = time.perf_counter()
    question = {"reward": "reward", "propensity": "propensity", "target": "target_0"}
    result = cp.evaluate(path, **question, state=state, batch=path.name, progress=False)
    seconds = time.perf_counter() - start
    status = Path("/proc/self/status").read_text()
    kilobytes = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    one = result["target_0", "beta_ips"]
    print(
        json.dumps(
            {"seconds": seconds, "peak": int(kilobytes) / 1000, "n": one.n, "value": one.value, "stderr": one.stderr}
        )
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--rows", type=float, default=1e9)
    arguments.add_argument("--piece", type=float, default=1e8)
    arguments.add_argument("--folder", type=Path)
    arguments.add_argument("--add", type=Path, nargs=2, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.add is not None:
        return add(*given.add)
    total = peak = 0.0
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for k in range(int(given.rows // given.piece)):
            path = generate(Path(folder, f"piece {k}.parquet"), int(given.piece), seed=k)
            command = [sys.executable, __file__, "--add", path, Path(folder, "state.json")]
            found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            path.unlink()
            total, peak = total + found["seconds"], max(peak, found["peak"])
            print(
                f"{found['n']:>13,} rows | {found['seconds']:6.2f} s for this piece, {total:7.2f} s in all | peak {peak:4.0f} MB | "
                f"beta_ips {found['value']:.7f} ± {found['stderr']:.7f}",
                flush=True,
            )
    return None


if __name__ == "__main__":
    main()
