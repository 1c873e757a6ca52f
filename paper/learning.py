"""The learning experiments (Figures 1–3 and section 2.1): which runs, and their curves as a CSV file.

Beyond the core it needs PyTorch alone, so you can run it on a bare machine with a GPU:
``python -m paper.learning --device cuda --scale paper --out results``.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Literal

import numpy as np

from counterpoise.environments import Feedback, SyntheticBandit
from counterpoise.errors import OptionError
from paper.result_file import Recipe, ResultFile, write_atomically

if TYPE_CHECKING:
    from paper.many import GreedyValue, LoggedRows, Objective

Mode = Literal["full_batch", "mini_batch", "on_policy"]
QUANTITIES = ("policy_value", "gradient_variance")
KEYS = (("mode", str), ("quantity", str), ("learning_rate", float), ("method", str))
VALUES = (("epoch", int), ("mean", float), ("sd", float), ("runs", int))
LEARNING_RATES = (0.1, 0.01, 0.001)
N_ACTIONS = 100
BATCH = 1024  # rows
LAMBDAS = tuple(round(0.6 + 0.05 * k, 2) for k in range(8))  # those that BanditNet was tuned over

# method → (objective, λ). "BanditNet" is at 0.6 as in the published curves; 0.95 is what its tuning chose.
METHODS: dict[Mode, dict[str, tuple[Objective, float]]] = {
    "full_batch": {"IPS": ("ips", 0.0), "SNIPS": ("snips", 0.0), "beta-IPS": ("published_value_beta_ips", 0.0)},
    "mini_batch": {
        "IPS": ("ips", 0.0),
        "BanditNet": ("lambda_ips", 0.6),
        "BanditNet-0.95": ("lambda_ips", 0.95),
        "beta-IPS": ("beta_ips", 0.0),
        "beta-IPS-running": ("running_beta_ips", 0.0),
    },
    "on_policy": {"REINFORCE": ("none", 0.0), "REINFORCE-mean": ("mean", 0.0), "REINFORCE-optimal": ("optimal", 0.0)},
}
FLAGS = {
    "ips": "IPS",
    "snips": "SNIPS",
    "banditnet": "BanditNet",
    "banditnet_0.95": "BanditNet-0.95",
    "beta_ips": "beta-IPS",
    "running_beta_ips": "beta-IPS-running",
    "none": "REINFORCE",
    "mean": "REINFORCE-mean",
    "optimal": "REINFORCE-optimal",
}


@dataclass(frozen=True)
class RunScale:
    """How much of an experiment to run."""

    rows: int
    runs: int
    epochs: dict[Mode, int]


SCALES = {
    "smoke": RunScale(20_000, 2, {"full_batch": 3, "mini_batch": 3, "on_policy": 2}),
    "paper": RunScale(250_000, 32, {"full_batch": 500, "mini_batch": 100, "on_policy": 25}),
}


@dataclass(frozen=True)
class LearningCurve:
    """The mean and sd of one quantity over runs, epoch by epoch."""

    mode: str
    quantity: str
    learning_rate: float
    method: str
    mean: np.ndarray
    sd: np.ndarray
    runs: int


class World:
    """The paper's logged rows and test contexts, on a device."""

    def __init__(self, rows: int, device: str) -> None:
        from paper.many import GreedyValue, LoggedRows

        bandit = SyntheticBandit(N_ACTIONS, inverse_temperature=-5, seed=12345)
        train, test = bandit.draw(rows), bandit.draw(rows)
        self.train: LoggedRows = LoggedRows(train.context, train.action, train.reward, train.propensity, device=device)
        self.truth: GreedyValue = GreedyValue(train.context, _expected_rewards(train), device=device)
        self.test: GreedyValue = GreedyValue(test.context, _expected_rewards(test), device=device)


def _expected_rewards(feedback: Feedback) -> np.ndarray:
    """All expected rewards in float32, computed in parts."""
    table = np.empty((len(feedback), N_ACTIONS), dtype=np.float32)
    for start in range(0, len(feedback), 20_000):
        rows = slice(start, min(start + 20_000, len(feedback)))
        table[rows] = feedback.expected(rows)
    return table


def run_curves(
    world: World, mode: Mode, method: str, learning_rates: Sequence[float], *, runs: int, epochs: int
) -> list[LearningCurve]:
    """The curves of one method at some learning rates; all runs go through one program."""
    from paper.many import Run, train_many, train_on_policy

    _check_method(mode, method)
    if runs < 1 or epochs < 1:
        raise OptionError(f"runs and epochs must be at least 1; found {runs} and {epochs}.")
    objective, banditnet_lambda = METHODS[mode][method]
    size = min(BATCH, len(world.train))
    all_runs = [Run(objective, rate, seed, banditnet_lambda) for rate in learning_rates for seed in range(runs)]
    if mode == "on_policy":
        trained = train_on_policy(world.truth, all_runs, epochs=epochs, batch_size=size, value=world.test)
    else:
        batch = None if mode == "full_batch" else size
        trained = train_many(world.train, N_ACTIONS, all_runs, epochs=epochs, batch_size=batch, value=world.test)
    curves = []
    for k, rate in enumerate(learning_rates):
        of = slice(k * runs, (k + 1) * runs)
        for quantity, table in (("policy_value", trained.value), ("gradient_variance", trained.gradient_variance)):
            sd = table[of].std(axis=0, ddof=1) if runs > 1 else np.full(epochs, math.nan)
            curves.append(LearningCurve(mode, quantity, rate, method, table[of].mean(axis=0), sd, runs))
    return curves


def _check_method(mode: Mode, method: str) -> None:
    if method not in METHODS[mode]:
        raise OptionError(f"there is no method {method!r} in mode {mode!r}; choose from {', '.join(METHODS[mode])}.")


def tune_lambda(world: World, learning_rate: float, *, runs: int, epochs: int) -> list[tuple[float, float]]:
    """Tune BanditNet's λ by SNIPS on the training data: (λ, mean SNIPS over runs) for 0.6, 0.65, …, 0.95."""
    from paper.many import Run, SnipsValue, train_many

    all_runs = [
        Run("lambda_ips", learning_rate, seed, banditnet_lambda) for banditnet_lambda in LAMBDAS for seed in range(runs)
    ]
    size = min(BATCH, len(world.train))
    curves = train_many(world.train, N_ACTIONS, all_runs, epochs=epochs, batch_size=size)
    values = SnipsValue(world.train)(curves.weights).reshape(len(LAMBDAS), runs).mean(1).tolist()
    return list(zip(LAMBDAS, values, strict=True))


def run_mode(
    mode: Mode,
    path: Path,
    *,
    scale: str = "smoke",
    device: str = "cpu",
    methods: Sequence[str] | None = None,
    learning_rates: Sequence[float] = LEARNING_RATES,
    runs: int | None = None,
    epochs: int | None = None,
) -> ResultFile:
    """Write all curves of a mode to one CSV file, with the columns of the published one; after an interruption, it continues."""
    if scale not in SCALES:
        raise OptionError(f"there is no scale {scale!r}; choose from {', '.join(SCALES)}.")
    if mode not in METHODS:
        raise OptionError(f"there is no mode {mode!r}; choose from {', '.join(METHODS)}.")
    for method in methods or ():
        _check_method(mode, method)
    size = SCALES[scale]
    count, length = runs or size.runs, epochs or size.epochs[mode]
    kept = [epoch for epoch in range(length) if mode != "full_batch" or epoch < 50 or epoch % 10 == 9]
    recipe = Recipe(f"learning curves, {size.rows} rows, {count} runs, {length} epochs", 1, KEYS, VALUES, len(kept))
    file = ResultFile.open(path, recipe)
    world: World | None = None
    for method in methods or METHODS[mode]:
        for rate in learning_rates:
            if all((mode, quantity, rate, method) in file.rows for quantity in QUANTITIES):
                continue
            world = world or World(size.rows, device)
            began = perf_counter()
            curves = run_curves(world, mode, method, [rate], runs=count, epochs=length)
            for curve in curves:
                rows = [(k, float(curve.mean[k]), float(curve.sd[k]), curve.runs) for k in kept]
                file.add({(mode, curve.quantity, rate, method): rows})
            file.save()
            print(
                f"{mode} {method} {rate:g}: value {curves[0].mean[-1]:.4f}, {count} runs of {length} epochs in "
                f"{perf_counter() - began:.1f} s",
                flush=True,
            )
    return file


def read_curves(path: str | Path) -> dict[tuple[str, str, float, str, int], tuple[float, float, int]]:
    """(mode, quantity, learning rate, method, epoch) → (mean, sd, runs)."""
    try:
        with Path(path).open(newline="", encoding="utf-8") as stream:
            return {
                (row["mode"], row["quantity"], float(row["learning_rate"]), row["method"], int(row["epoch"])): (
                    float(row["mean"]),
                    float(row["sd"]),
                    int(row["runs"]),
                )
                for row in csv.DictReader(stream)
            }
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise OptionError(
            f"{str(path)!r} is not a file of learning curves: {error!r}.", do="Name another one."
        ) from error


def main() -> None:
    """Run the curves of all figures, or those of some modes, and BanditNet's tuning."""
    parser = argparse.ArgumentParser(description="The paper's learning experiments, on a machine with PyTorch.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", choices=SCALES, default="smoke")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--mode", choices=METHODS, action="append")
    arguments = parser.parse_args()
    modes = arguments.mode or list(METHODS)
    for mode in modes:
        run_mode(mode, arguments.out / f"{mode}_{arguments.scale}.csv", scale=arguments.scale, device=arguments.device)
    if "mini_batch" in modes:
        scale = SCALES[arguments.scale]
        world = World(scale.rows, arguments.device)
        lines = ["learning_rate,lambda,snips"]
        for rate in LEARNING_RATES:
            tuned = tune_lambda(world, rate, runs=min(4, scale.runs), epochs=scale.epochs["mini_batch"])
            lines += [f"{rate:g},{banditnet_lambda:g},{snips:.6g}" for banditnet_lambda, snips in tuned]
            print(f"BanditNet at {rate:g}: SNIPS is largest at {max(tuned, key=lambda pair: pair[1])[0]:g}", flush=True)
        write_atomically(arguments.out / f"banditnet_tuning_{arguments.scale}.csv", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
