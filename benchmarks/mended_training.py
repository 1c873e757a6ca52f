"""How often a policy's training rows are known again, and how often fresh rows are taken for them.

python benchmarks/mended_training.py                        # 200 pairs of logs of each kind, about a minute
python benchmarks/mended_training.py --runs 1000 --seed 7

Every line is a kind of world. `fresh` are two logs drawn apart, which must not be doubted; the others have rows in common.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from counterpoise.log.sketches import Keys, Sketch, row_keys

Random = np.random.Generator
USERS = np.random.default_rng(9).normal(size=20_000)
SIZES = ((5000, 5000), (5000, 1500), (1500, 5000), (20_000, 8000))  # rows of the training and of the other log

CONTEXTS: dict[str, Callable[[int, Random], NDArray[np.float64]]] = {
    "numbers": lambda n, random: random.normal(size=n),
    "rounded numbers": lambda n, random: random.normal(size=n).round(3),
    "a long tail": lambda n, random: np.minimum(random.zipf(1.4, n), 10**7).astype(float),
    "users who come back": lambda n, random: USERS[random.permutation(len(USERS))[:n]],
    "3,000 contexts": lambda n, random: random.integers(0, 3000, n).astype(float),
    "200 contexts": lambda n, random: random.integers(0, 200, n).astype(float),
    "3 contexts": lambda n, random: random.integers(0, 3, n).astype(float),
}


def rows(kind: str, n: int, random: Random) -> Keys:
    """The keys of a log with three actions and clicks."""
    return row_keys([CONTEXTS[kind](n, random)], random.integers(0, 3, n), random.random(n) < 0.3)


def is_known(training: Keys, log: Keys) -> bool:
    """Whether the log is taken for rows of the training."""
    sketch = Sketch()
    sketch.add(training)
    watch = sketch.watch()
    watch.add(log)
    return watch.overlap().is_same


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="of each kind and size")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    names = ["fresh", "same", "shuffled", "60 %", "10 %", "superset"]
    print(f"{'share that is doubted':<24}" + "".join(f"{name:>10}" for name in names))
    for kind in CONTEXTS:
        found: dict[str, list[bool]] = {name: [] for name in names}
        random = np.random.default_rng([options.seed, list(CONTEXTS).index(kind)])
        for number in range(options.runs):
            n, other = SIZES[number % len(SIZES)]
            training, fresh = rows(kind, n, random), rows(kind, other, random)
            shuffled = random.permutation(training)
            logs = [fresh, training, shuffled, shuffled[: n * 6 // 10], shuffled[: n // 10]]
            for name, log in zip(names, [*logs, np.concatenate([training, fresh])], strict=True):
                found[name].append(is_known(training, log))
        print(f"{kind:<24}" + "".join(f"{np.mean(found[name]):>10.3f}" for name in names))


if __name__ == "__main__":
    main()
