"""What a context baseline costs, and what it buys: ratios of one run, and a table of 30 worlds.

python benchmarks/context_baselines.py --rows 1e7 --runs 500  # 4 GB of memory, 2 GB of disk, about 15 minutes
python benchmarks/context_baselines.py --rows 1e6 --runs 100  # about 2 minutes
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

import counterpoise as cp
from counterpoise.estimators import beta_ips, context_ips, lift
from counterpoise.moments import Moments

Floats = NDArray[np.float64]
FEATURES = 20
QUESTION = {"reward": "reward", "propensity": "propensity", "target": "target", "estimator": ["context_ips", "lift"]}
LIMITS = {"arrays": 3.0, "files": 2.0}
ACTIONS = 6


def a_log(rows: int, seed: int = 0) -> dict[str, Floats]:
    """A log of 20 numbers of context, on two of which the reward depends."""
    random = np.random.default_rng(seed)
    p = 0.05 + 0.95 * random.random(rows)
    log = {f"x{k}": random.normal(size=rows) for k in range(FEATURES)}
    reward = log["x0"] + 0.5 * log["x1"] + random.normal(size=rows)
    return log | {"reward": reward, "propensity": p, "target": np.minimum(p * random.exponential(1.0, rows), 1.0)}


def fastest(work: Callable[[], object], times: int = 5) -> float:
    """The seconds that the fastest of some runs takes."""
    seen = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        seen.append(time.perf_counter() - start)
    return min(seen)


def _scatter(table: Floats) -> float:
    return fastest(lambda: table.T @ table)


def costs(rows: int) -> dict[str, float]:
    """What `evaluate` takes with 20 features, over a BLAS scatter on arrays and over plain sums on files."""
    log, names = a_log(rows), [f"x{k}" for k in range(FEATURES)]
    blas = _scatter(np.stack([log[name] for name in names], axis=1))
    arrays = fastest(lambda: cp.evaluate(log, **QUESTION, baseline=names))
    print(f"arrays: X.T @ X {blas:.3f} s, evaluate {arrays:.3f} s")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.parquet"
        pl.DataFrame(log).write_parquet(path)
        columns = [*names, "reward", "propensity", "target"]
        scan = pl.scan_parquet(path)
        sums = fastest(lambda: scan.select(pl.col(columns).sum()).collect(engine="streaming"))
        files = fastest(lambda: cp.evaluate(path, **QUESTION, baseline=names, progress=False))
    print(f"files: plain sums {sums:.3f} s, evaluate {files:.3f} s")
    return {"arrays": arrays / blas, "files": files / sums}


@dataclass(frozen=True)
class World:
    """Contexts, softmax policies of any sharpness, and rewards of which the context explains a share."""

    rows: int
    features: int
    share: float
    sharpness: float
    kind: str

    def draw(self, random: np.random.Generator, rows: int) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        """Contexts, weights and rewards, and the expected rewards of the target and of what it adds."""
        fixed = np.random.default_rng(7)
        logging, target = fixed.normal(size=(2, self.features, ACTIONS)) / np.sqrt(self.features)
        slope, effect = np.ones(self.features) / np.sqrt(self.features), 0.15 * fixed.normal(size=ACTIONS)
        x = random.normal(size=(rows, self.features))
        old, new = _softmax(self.sharpness * x @ logging), _softmax(self.sharpness * x @ target)
        action = np.minimum((old.cumsum(axis=1) < random.random((rows, 1))).sum(axis=1), ACTIONS - 1)
        middle = np.sqrt(self.share) * (x @ slope)[:, None] + effect
        noise = np.sqrt(1 - self.share)
        at = np.arange(rows), action
        if self.kind == "binary":
            expected = 1 / (1 + np.exp(1.5 - 2 * middle))
            reward = (random.random(rows) < expected[at]).astype(float)
        else:
            expected, reward = middle, middle[at] + noise * random.normal(size=rows)
        if self.kind == "skewed":
            expected, reward = np.exp(middle + noise**2 / 2), np.exp(reward)
        return x, new[at] / old[at], reward, (new * expected).sum(axis=1), ((new - old) * expected).sum(axis=1)


def _softmax(score: Floats) -> Floats:
    raised = np.exp(score - score.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


WORLDS = [
    World(*size, share, sharpness, kind)
    for size, share, (sharpness, kind) in product(
        ((300, 5), (2000, 20), (10_000, 20)),
        (0.0, 0.3),
        ((0.2, "normal"), (0.5, "binary"), (1.0, "skewed"), (1.5, "normal"), (3.0, "binary")),
    )
]


def compare(world: World, runs: int) -> dict[str, Floats]:
    """Errors and standard errors by run: with a constant and with the context, of the value and of the lift."""
    _, _, _, value, more = world.draw(np.random.default_rng(99), 300_000)
    found = []
    for k in range(runs):
        x, w, r, _, _ = world.draw(np.random.default_rng([k, 1]), world.rows)
        log, plain = Moments.of(w, r, features={str(j): one for j, one in enumerate(x.T)}), Moments.of(w, r)
        found.append([beta_ips(plain), context_ips(log), lift(plain), lift(log)])
    truth = np.array([value.mean(), value.mean(), more.mean(), more.mean()])
    values = np.array([[one.value for one in row] for row in found])
    return {"error": values - truth, "stderr": np.array([[one.stderr for one in row] for row in found])}


def show(world: World, runs: int) -> tuple[float, float]:
    """One line of the table; returns the largest ratio of widths and of squared errors."""
    found = compare(world, runs)
    square, stderr = np.square(found["error"]), found["stderr"]
    widths = [stderr[:, k + 1] / stderr[:, k] for k in (0, 2)]
    errors = [square[:, k + 1].mean() / square[:, k].mean() for k in (0, 2)]
    noise = [(square[:, k + 1] - square[:, k]).std() / np.sqrt(runs) / square[:, k].mean() for k in (0, 2)]
    covered = [(square[:, k] <= np.square(1.96 * stderr[:, k])).mean() for k in range(4)]
    name = f"{world.rows:>6,} {world.features:>3} {world.share:.1f} {world.sharpness:.1f} {world.kind:<7}"
    parts = (
        f"{width.mean():.3f} (≤ {width.max():.3f}) {error:.3f} ± {mc:.3f} {before:.3f} → {after:.3f}"
        for width, error, mc, before, after in zip(widths, errors, noise, covered[::2], covered[1::2], strict=True)
    )
    print(name, "|", " | ".join(parts), flush=True)
    return float(max(width.max() for width in widths)), max(errors)


def explained(share: float, runs: int, rows: int = 5_000) -> float:
    """How the interval of lift shrinks if the context explains a share of rewards, whatever the weights."""
    found = []
    for seed in range(runs):
        random = np.random.default_rng([seed, 2])
        x, w = random.normal(size=(rows, FEATURES)), random.choice([0.5, 1.5], rows)
        r = np.sqrt(share / FEATURES) * x.sum(axis=1) + np.sqrt(1 - share) * random.normal(size=rows)
        log = Moments.of(w, r, features={str(j): one for j, one in enumerate(x.T)})
        found.append(lift(log).stderr / lift(Moments.of(w, r)).stderr)
    return float(np.mean(found))


def main() -> None:
    """Print the ratios and the table; exit 1 if a limit is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, default=1e6, help="of the log whose cost is measured")
    parser.add_argument("--runs", type=int, default=100, help="logs that are drawn from each world")
    given = parser.parse_args()
    ratios = costs(int(given.rows))
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f} times, at most {LIMITS[name]:.0f}")
    print("width, squared error and coverage (with a constant → with the context) of the value | of the lift")
    worst = np.array([show(world, given.runs) for world in WORLDS]).max(axis=0)
    print(f"largest ratio of widths in any run {worst[0]:.3f}, at most 1.03; of squared errors {worst[1]:.3f}")
    ratio = explained(0.3, given.runs)
    print(
        f"the interval of lift where the context explains 0.3 of the reward: {ratio:.3f} of a constant's; √0.7 = 0.837"
    )
    if any(ratio > LIMITS[name] for name, ratio in ratios.items()) or worst[0] > 1.03:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
