"""Right logs and wrong ones by the thousand: how often the former are doubted, and how often the latter are `ok` all the same.

    python benchmarks/mended.py --processes 16             # 1,000 logs of every kind
    python benchmarks/mended.py --runs 40 --only lists     # a glance at one part

Five parts, each a script of its own with more options: a policy's own training rows, missing actions and dropped rows, rows that move
together and whatever the doctor knows, lists that end early, and plans, tails and anytime intervals. Exits with 1 if a promise is broken.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

PARTS = ("training", "support", "checks", "lists", "stats")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", choices=PARTS, action="append")
    given = parser.parse_args()
    broken = 0
    for part in given.only or PARTS:
        print(f"\n## {part}\n", flush=True)
        script = Path(__file__).with_name(f"mended_{part}.py")
        command = [sys.executable, str(script), "--runs", str(given.runs), "--seed", str(given.seed)]
        if part != "training":
            command += ["--processes", str(given.processes)]
        broken += subprocess.run(command, check=False).returncode != 0
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
