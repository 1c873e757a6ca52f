"""How often `learn_policy` hands out a policy as better than what ran when it is not: worlds in which no policy is better.

    python benchmarks/safe_learning.py                # 40 logs a world, one process
    python benchmarks/safe_learning.py --runs 200 --processes 16
    python benchmarks/safe_learning.py --quick --runs 200   # coins only, 1,000 rows, two or five actions: the hardest worlds, in minutes

What an action earns does not depend on the action, so every policy earns the same, and each one that is handed out as learned is a false
alarm. Rewards are rare, or have heavy tails; logging explores well, or takes its own action in 99 % of the rows; rows are independent, or
belong to users of very unequal sizes whose rewards are alike. Contenders are few and short, which changes who wins, and not whether the
winner is safe. Exits with 1 if the share of false alarms is above 5 % by more than three standard errors, in a world or over all.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import product

import numpy as np
import torch

import counterpoise as cp
from counterpoise.errors import TrainingError
from counterpoise.learn.contenders import PROMISED, Network
from counterpoise.learn.forest import ForestLearner

ROWS, ACTIONS = 3_000, 10
REWARDS = {
    "clicks 0.02": lambda random, mood: random.random(len(mood)) < 0.02 * np.exp(mood - 0.5),
    "coins": lambda random, mood: random.random(len(mood)) < 0.5,
    "clicks 0.4": lambda random, mood: random.random(len(mood)) < 1 / (1 + np.exp(0.4 - mood)),
    "revenue": lambda random, mood: (
        (random.random(len(mood)) < 0.1) * np.exp(1.5 * random.normal(size=len(mood)) + mood)
    ),
}
EXPLORING = {"softmax": None, "99 % greedy": 0.01, "uniform": 1.0}
USERS = ("independent", "unequal users")
CONTENDERS = [
    Network("softmax", "beta_ips", hidden=(16,), epochs=3, imitation=0.03),
    Network("direct", "predicted_reward", hidden=(), epochs=3, rate=0.02, temperatures=PROMISED),
    Network("log smoothing", "log_smoothing", hidden=(16,), epochs=3),
    ForestLearner(trees=20),
]
QUICK = [("coins", exploring, "independent", actions) for exploring in ("uniform", "softmax") for actions in (2, 5)]
QUICK_ROWS = 1_000
World = tuple[str, str, str, int]


def log_of(
    reward: str, exploring: str, users: str, actions: int, rows: int, random: np.random.Generator
) -> dict[str, np.ndarray]:
    """A log in which the action does not matter; with users, it is their mood that does, and the few largest have most rows."""
    user = np.arange(rows)
    if users == "unequal users":
        user = random.choice(200, size=rows, p=(share := 1 / np.arange(1, 201)) / share.sum())
    mood = random.normal(size=user.max() + 1)[user]
    context = random.normal(size=(rows, 4))
    scores = context @ random.normal(size=(4, actions))
    logging = np.exp(scores - scores.max(axis=1, keepdims=True))
    logging /= logging.sum(axis=1, keepdims=True)
    if EXPLORING[exploring] is not None:
        logging = EXPLORING[exploring] / actions + (1 - EXPLORING[exploring]) * np.eye(actions)[scores.argmax(axis=1)]
    action = (logging.cumsum(axis=1) > random.random((rows, 1))).argmax(axis=1)
    found = {"context": context, "action": action, "reward": np.asarray(REWARDS[reward](random, mood), dtype=float)}
    found["propensity"] = logging[np.arange(rows), action]
    return found | ({} if users == "independent" else {"cluster": user})


def measure(job: tuple[World, int, int]) -> tuple[World, bool]:
    """Whether something is handed out as better."""
    world, rows, seed = job
    torch.set_num_threads(1)
    log = log_of(*world, rows, np.random.default_rng([seed, *map(len, world[:3]), world[3]]))
    try:
        cp.learn_policy(**log, contenders=CONTENDERS, minutes=None, fallback="raise", progress=False)
    except TrainingError:
        return world, False
    return world, True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40, help="logs of every world")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="only coins, with few rows and actions")
    given = parser.parse_args()
    worlds = QUICK if given.quick else list(product(REWARDS, EXPLORING, USERS, [ACTIONS]))
    alarms = dict.fromkeys(worlds, 0)
    rows = QUICK_ROWS if given.quick else ROWS
    jobs = [(world, rows, seed) for world in worlds for seed in range(given.runs)]
    with ProcessPoolExecutor(given.processes) as pool:
        for done, (world, alarm) in enumerate(pool.map(measure, jobs), start=1):
            alarms[world] += alarm
            if done % 50 == 0:
                print(f"{done:,} of {len(jobs):,} logs, {sum(alarms.values())} handed out as better", file=sys.stderr)
    broken = False
    for world, count in [*alarms.items(), (("all",), sum(alarms.values()))]:
        runs = given.runs if len(world) > 1 else len(jobs)
        error = (0.05 * 0.95 / runs) ** 0.5
        above = count / runs > 0.05 + 3 * error
        broken |= above
        print(
            f"{', '.join(map(str, world)):<48} {count:>4} of {runs:>5} handed out as better: {count / runs:.1%}, where 5 % are promised "
            f"and ± {error:.1%} is Monte Carlo error{'  TOO MANY' if above else ''}"
        )
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
