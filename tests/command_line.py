"""What the tests of the command line share: logs on disk, and a way to run a command."""

import sys

import numpy as np
import polars as pl
from typer.testing import CliRunner

from counterpoise.cli import app

COMMAND = [sys.executable, "-m", "counterpoise"]


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def shop(n=2000, seed=0):
    """Two banners, a coin that chooses, a target that knows better; the truth of pi_new is 0.28, of pi_old 0.20."""
    random = np.random.default_rng(seed)
    taste, shown = random.integers(0, 2, n), random.integers(0, 2, n)
    return pl.DataFrame(
        {
            "click": (random.random(n) < np.where(shown == taste, 0.30, 0.10)).astype(float),
            "p": np.full(n, 0.5),
            "pi_new": np.where(shown == taste, 0.9, 0.1),
            "pi_old": np.full(n, 0.5),
            "country": pl.Series(random.integers(0, 3, n)).replace_strict({0: "DE", 1: "FR", 2: None}),
            "user_id": np.arange(n) // 4,
            "action": shown,
        }
    )


def degenerate(seed):
    """A log of any size from 1 row, whose rewards, propensities, targets and segments may each be degenerate."""
    random = np.random.default_rng(seed)
    n = int(random.choice([1, 2, 3, 10, 50, 300]))
    reward = random.choice(["zero", "constant", "binary", "huge", "normal", "tiny"])
    rewards = {
        "zero": np.zeros(n),
        "constant": np.full(n, 7.0),
        "binary": random.integers(0, 2, n).astype(float),
        "huge": random.normal(size=n) * 1e40,
        "normal": random.normal(size=n),
        "tiny": random.normal(size=n) * 1e-300,
    }
    propensity = random.choice(["one", "half", "tiny", "spread", "mixed"])
    propensities = {
        "one": np.ones(n),
        "half": np.full(n, 0.5),
        "tiny": np.full(n, 1e-12),
        "spread": random.uniform(0.01, 1.0, n),
        "mixed": np.where(random.random(n) < 0.1, 1e-9, 1.0),
    }
    names = ("zero", "one", "same", "deterministic", "spread")
    targets = {
        "zero": np.zeros(n),
        "one": np.ones(n),
        "same": propensities[propensity],
        "deterministic": random.integers(0, 2, n).astype(float),
        "spread": random.uniform(0.0, 1.0, n),
    }
    chosen = random.choice(names, size=2, replace=False)
    segments = random.choice(["none", "one each", "few", "missing"])
    labels = {
        "none": [None] * n,
        "one each": [f"<b>{k}" for k in range(n)],
        "few": [str(k) for k in random.integers(0, 3, n)],
        "missing": [None if k else '"quoted"\x1b[31m' for k in random.integers(0, 2, n)],
    }
    frame = pl.DataFrame(
        {
            "reward": rewards[reward],
            "propensity": propensities[propensity],
            "pi_a": targets[chosen[0]],
            "pi_b": targets[chosen[1]],
            "segment": pl.Series(labels[segments], dtype=pl.String),
            "user": random.integers(0, 5, n),
        }
    )
    options = []
    if segments != "none":
        options += ["--segment", "segment"]
    if random.random() < 0.3:
        options += ["--cluster", "user"]
    if random.random() < 0.2:
        options += ["--interval", "anytime"]
    return frame, options
