"""Whether `learn_policy` keeps to `minutes=`, and what it makes of them, on logs whose truth is known.

    python benchmarks/learning_minutes.py                                        # 10⁴ and 10⁵ rows, 5 and 50 actions, 0.3 minutes
    python benchmarks/learning_minutes.py --rows 1e4 1e5 2e6 --actions 5 50 1000 --minutes 0.3 1 5
    PYTHONPATH=/another/checkout/src python benchmarks/learning_minutes.py …      # the same for another version

One process learns from one log after another, and from a small one first, so that imports do not count. Every line has the seconds that
were used and those that are allowed (1.2 × minutes + 3 s), the true value of the policy that was handed out, that of the policy that wrote
the log, and that of the best action everywhere. Exits with 1 if a search took longer than it may.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from dataclasses import dataclass

import numpy as np

import counterpoise as cp

JUDGES = 20_000  # contexts on which true values are computed
CHUNK = 10_000_000  # probabilities that are drawn from at a time
WIDTH = 8


@dataclass(frozen=True, eq=False)
class Log:
    """Clicks whose odds are quadratic in the context, logged by a policy that prefers bad actions a little."""

    context: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    propensity: np.ndarray
    linear: np.ndarray
    squared: np.ndarray

    def expected(self, rows: slice) -> np.ndarray:
        """What every action earns."""
        return chances(self.context[rows], self.linear, self.squared)


def chances(context: np.ndarray, linear: np.ndarray, squared: np.ndarray) -> np.ndarray:
    """The chance of a click by context and action."""
    return 1 / (1 + np.exp(-(context @ linear + (context**2 - 1) @ squared)))


def draw(actions: int, rows: int, seed: int) -> Log:
    """A log, a part at a time."""
    random = np.random.default_rng([seed, actions])
    linear, squared = 0.5 * random.normal(size=(WIDTH, actions)), 0.2 * random.normal(size=(WIDTH, actions))
    context = random.normal(size=(rows, WIDTH)).astype(np.float32)
    action, propensity, reward = np.empty(rows, dtype=np.int64), np.empty(rows), np.empty(rows)
    size = max(1, CHUNK // actions)
    for start in range(0, rows, size):
        part = slice(start, start + size)
        clicks = chances(context[part], linear, squared)
        weights = np.exp(-clicks)
        below = np.cumsum(weights, axis=1)
        drawn = (below < random.random((len(below), 1)) * below[:, -1:]).sum(axis=1)
        places = np.arange(len(drawn))
        action[part], propensity[part] = drawn, weights[places, drawn] / below[:, -1]
        reward[part] = random.random(len(drawn)) < clicks[places, drawn]
    return Log(context, action, reward, propensity, linear, squared)


def search(log: Log, minutes: float) -> tuple[float, object]:
    """The seconds that a search took, and what it found."""
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = cp.learn_policy(
            context=log.context, action=log.action, reward=log.reward, propensity=log.propensity,
            minutes=minutes, progress=False,
        )  # fmt: skip
    return time.perf_counter() - began, found


def true_value(log: Log, rows: slice, table: np.ndarray) -> float:
    """The value of a policy on some contexts."""
    return float((log.expected(rows) * table).sum(axis=1).mean())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, nargs="+", default=[1e4, 1e5])
    parser.add_argument("--actions", type=int, nargs="+", default=[5, 50])
    parser.add_argument("--minutes", type=float, nargs="+", default=[0.3])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"counterpoise {cp.__version__} from {cp.__path__[0]}")
    search(draw(3, 500, 0), 0.05)
    print(
        f"{'rows':>9} {'actions':>7} {'minutes':>7} {'seconds':>8} {'allowed':>8} {'logging':>8} {'learned':>8} {'best':>8}  contender"
    )
    late = False
    for rows in map(int, options.rows):
        for actions in options.actions:
            log = draw(actions, rows, options.seed)
            for minutes in options.minutes:
                seconds, found = search(log, minutes)
                allowed = 1.2 * 60 * minutes + 3
                late |= seconds > allowed
                part = slice(0, min(rows, max(1000, JUDGES * 50 // max(actions, 50))))
                learned = true_value(log, part, _table(found, log.context[part], actions))
                logging = float(log.reward.mean())
                best = float(log.expected(part).max(axis=1).mean())
                print(
                    f"{rows:>9,} {actions:>7,} {minutes:>7g} {seconds:>8.1f} {allowed:>8.1f} {logging:>8.4f} {learned:>8.4f} "
                    f"{best:>8.4f}  {found.name} ({len(found.leaderboard)} tried, {len(found.skipped)} left out)"
                    f"{'  LATE' if seconds > allowed else ''}",
                    flush=True,
                )
    return int(late)


def _table(found: object, context: np.ndarray, actions: int) -> np.ndarray:
    """The policy's probabilities, with a column for every action of the world, also for those that the log lacks."""
    table = np.zeros((len(context), actions))
    table[:, np.asarray(found.classes_)] = found.predict_proba(context)
    return table


if __name__ == "__main__":
    sys.exit(main())
