"""How often `learn_policy` hands out a policy as better than what ran when it is not: worlds in which no policy is better.

    python benchmarks/safe_learning.py                # 40 logs a world, one process
    python benchmarks/safe_learning.py --runs 200 --processes 16

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
from counterpoise.learn.search import ForestLearner, Network
from counterpoise.learn.search.networks import Direct, LogSmoothing, Softmax

ROWS, ACTIONS = 3_000, 10
REWARDS = {
    "clicks 0.02": lambda random, mood: random.random(len(mood)) < 0.02 * np.exp(mood - 0.5),
    "clicks 0.4": lambda random, mood: random.random(len(mood)) < 1 / (1 + np.exp(0.4 - mood)),
    "revenue": lambda random, mood: (
        (random.random(len(mood)) < 0.1) * np.exp(1.5 * random.normal(size=len(mood)) + mood)
    ),
}
EXPLORING = {"softmax": None, "99 % greedy": 0.01}
USERS = ("independent", "unequal users")
CONTENDERS = [
    Network("softmax", Softmax(imitation=0.03), hidden=(16,), epochs=3),
    Network("direct", Direct(), hidden=(), epochs=3, rate=0.02),
    Network("log smoothing", LogSmoothing(), hidden=(16,), epochs=3),
    ForestLearner(trees=20),
]


def log_of(reward: str, exploring: str, users: str, random: np.random.Generator) -> dict[str, np.ndarray]:
    """A log in which the action does not matter; with users, it is their mood that does, and the few largest have most rows."""
    user = np.arange(ROWS)
    if users == "unequal users":
        user = random.choice(200, size=ROWS, p=(share := 1 / np.arange(1, 201)) / share.sum())
    mood = random.normal(size=user.max() + 1)[user]
    context = random.normal(size=(ROWS, 4))
    scores = context @ random.normal(size=(4, ACTIONS))
    logging = np.exp(scores - scores.max(axis=1, keepdims=True))
    logging /= logging.sum(axis=1, keepdims=True)
    if EXPLORING[exploring] is not None:
        logging = EXPLORING[exploring] / ACTIONS + (1 - EXPLORING[exploring]) * np.eye(ACTIONS)[scores.argmax(axis=1)]
    action = (logging.cumsum(axis=1) > random.random((ROWS, 1))).argmax(axis=1)
    found = {"context": context, "action": action, "reward": np.asarray(REWARDS[reward](random, mood), dtype=float)}
    found["propensity"] = logging[np.arange(ROWS), action]
    return found | ({} if users == "independent" else {"cluster": user})


def measure(job: tuple[tuple[str, str, str], int]) -> tuple[tuple[str, str, str], bool]:
    """Whether something is handed out as better."""
    world, seed = job
    torch.set_num_threads(1)
    log = log_of(*world, np.random.default_rng([seed, *map(len, world)]))
    try:
        cp.learn_policy(**log, contenders=CONTENDERS, minutes=None, fallback="raise", progress=False)
    except TrainingError:
        return world, False
    return world, True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40, help="logs of every world")
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    worlds = list(product(REWARDS, EXPLORING, USERS))
    alarms = dict.fromkeys(worlds, 0)
    jobs = [(world, seed) for world in worlds for seed in range(given.runs)]
    with ProcessPoolExecutor(given.processes) as pool:
        for world, alarm in pool.map(measure, jobs):
            alarms[world] += alarm
    broken = False
    for world, count in [*alarms.items(), (("all",), sum(alarms.values()))]:
        runs = given.runs if len(world) > 1 else len(jobs)
        above = count / runs > 0.05 + 3 * (0.05 * 0.95 / runs) ** 0.5
        broken |= above
        print(f"{', '.join(world):<40} {count:>4} of {runs:>5} handed out as better{'  TOO MANY' if above else ''}")
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
