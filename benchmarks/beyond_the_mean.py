"""Do the intervals of quantiles and of the CVaR cover the truth? Simulated logs with good overlap, whose truth is known.

    python benchmarks/beyond_the_mean.py                       # 500 logs a cell
    python benchmarks/beyond_the_mean.py --runs 50 --size 2000

Two worlds with good overlap (ten actions in forty contexts: uniform logging with a mild softmax target, and a target near the logging
policy), and one in which few rows carry the tails (a sharper softmax: weights up to 7, kurtosis 10) × seven rewards × two sizes of log.
Exits with 1 if coverage is below 93 % by more than three standard errors, or, with good overlap and for rewards without steps, above 97 %
by as much.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial

import numpy as np
from scipy.special import expit, ndtri

import counterpoise as cp

Floats = np.ndarray
CONTEXTS, ACTIONS = 40, 10
SIZES = (2_000, 10_000)
QUANTILES, WORST = (0.1, 0.5, 0.9), (0.1, 0.25)


def spend(effect: Floats, z: Floats) -> Floats:
    """Three of ten buy, for a lognormal amount."""
    buys = expit(effect / 2 - 0.85)
    return np.where(z > 1 - buys, np.exp(ndtri(np.clip((z - 1 + buys) / buys, 1e-12, 1 - 1e-12))), 0.0)


# each a function of a row's effect and of a uniform number, growing in both: the quantile function of the reward
REWARDS: dict[str, Callable[[Floats, Floats], Floats]] = {
    "normal": lambda effect, z: 5 + effect / 2 + ndtri(z),
    "exponential": lambda effect, z: -np.exp(0.3 * effect) * np.log1p(-z),
    "lognormal": lambda effect, z: np.exp(0.3 * effect + ndtri(z)),
    "costs": lambda effect, z: -np.exp(ndtri(1 - z) - 0.3 * effect),
    "clicks": lambda effect, z: (z > 1 - expit(effect / 2 - 1)).astype(float),
    "stars": lambda effect, z: 1.0 + np.searchsorted([-1.2, -0.5, 0.2, 0.9], effect / 2 + ndtri(z)),
    "spend": spend,
}
SHARP = "sharp softmax"
STEPS = ("clicks", "stars", "spend")  # rewards that are discrete, or partly so


@cache
def worlds() -> dict[str, tuple[Floats, Floats, Floats]]:
    """The logging policy, the target, and the effect of every action."""
    random = np.random.default_rng(12)
    effects = random.normal(size=(CONTEXTS, ACTIONS))
    uniform = np.full((CONTEXTS, ACTIONS), 1 / ACTIONS)
    return {
        "mild softmax": (uniform, softmax(effects / 2), effects),
        "near on-policy": (softmax(effects / 2), softmax(effects * 0.8), effects),
        SHARP: (uniform, softmax(effects), effects),
    }


def softmax(x: Floats) -> Floats:
    raised = np.exp(x)
    return raised / raised.sum(axis=1, keepdims=True)


@cache
def truth(world: str, reward: str) -> dict[tuple[str, float], float]:
    """The statistics under the target, from two thousand quantiles of every context and action."""
    _, target, effects = worlds()[world]
    z = (np.arange(2_000) + 0.5) / 2_000
    values = REWARDS[reward](effects[..., None], z)
    weight = np.broadcast_to(target[..., None] / (CONTEXTS * len(z)), values.shape).ravel()
    order = np.argsort(values, axis=None)
    r, share = values.ravel()[order], np.cumsum(weight[order])
    found = {("quantile", q): float(r[np.searchsorted(share, q)]) for q in QUANTILES}
    for q in WORST:
        k = int(np.searchsorted(share, q))
        below = float((r[:k] * weight[order][:k]).sum())
        found["cvar", q] = (below + (q - (share[k - 1] if k else 0.0)) * float(r[k])) / q
    return found


def draw(world: str, reward: str, n: int, random: np.random.Generator) -> dict[str, Floats]:
    logging, target, effects = worlds()[world]
    context = random.integers(CONTEXTS, size=n)
    action = (random.random(n)[:, None] > logging.cumsum(axis=1)[context]).sum(axis=1).clip(max=ACTIONS - 1)
    at = context, action
    return {"reward": REWARDS[reward](effects[at], random.random(n)), "propensity": logging[at], "target": target[at]}


def covered(world: str, reward: str, n: int, seed: int) -> list[tuple[bool, bool]]:
    """For every statistic of one log: whether its interval covers, and whether its verdict is ok."""
    cell = [list(worlds()).index(world), list(REWARDS).index(reward), n]
    found = cp.distribution(**draw(world, reward, n, np.random.default_rng([*cell, seed])))
    known, answers = truth(world, reward), []
    for (name, q), value in known.items():
        one = found.quantile(q) if name == "quantile" else found.cvar(q)
        slack = 1e-9 * max(abs(value), 1.0)  # rounding, for steps
        is_in = one.interval.lower - slack <= value <= one.interval.upper + slack
        answers.append((is_in, one.verdict.verdict == "ok"))
    return answers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--size", type=int, action="append", help="rows of a log; may be repeated")
    parser.add_argument("--world", action="append", choices=list(worlds()), help="may be repeated")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    heads = [f"Q {q:g}" for q in QUANTILES] + [f"CVaR {q:g}" for q in WORST]
    print("| world | reward | n | " + " | ".join(heads) + " | ok |")
    print("|---|---|---" + "|---" * (len(heads) + 1) + "|")
    missed = []
    with ProcessPoolExecutor(given.processes) as pool:
        for n in given.size or SIZES:
            for world in given.world or worlds():
                for reward in REWARDS:
                    ran = list(pool.map(partial(covered, world, reward, n), range(given.runs), chunksize=5))
                    rate, ok = np.array(ran, dtype=float).mean(axis=0).T
                    print(
                        f"| {world} | {reward} | {n:,} | {' | '.join(f'{100 * x:.1f}' for x in rate)} | {ok.mean():.2f} |",
                        flush=True,
                    )
                    error = 3 * np.sqrt(0.05 * 0.95 / given.runs)
                    high = 1.0 if reward in STEPS or world == SHARP else 0.97 + error
                    missed += [
                        (world, reward, n, head)
                        for head, x in zip(heads, rate, strict=True)
                        if not 0.93 - error <= x <= high
                    ]
    for one in missed:
        print("outside what is promised:", *one)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
