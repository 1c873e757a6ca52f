"""Table 1: how far each estimator is from the truth on the logs of a fashion shop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from counterpoise.environments import OpenBanditLog, from_priors_file, thompson_probabilities
from counterpoise.errors import OptionError
from paper.claims import columns
from paper.ope import OURS, Scale, ours, published
from paper.regressions import RewardModel, fit_rewards
from paper.result_file import Key, Recipe, ResultFile, Row, run_tasks

Floats = NDArray[np.float64]

CAMPAIGNS = ("men", "women", "all")
SAMPLES: dict[Scale, int] = {"smoke": 5, "small": 100, "paper": 1000}
PAPER = {"IPS": (0.1277, 0.0142), "SNIPS": (0.1113, 0.0372), "DR": (0.1144, 0.0366), "beta-IPS": (0.1078, 0.0383)}
ESTIMATORS = (*PAPER, *OURS)
RECIPE = Recipe(
    name="table1",
    version=1,
    keys=(("campaign", str), ("sample", int)),
    values=(("estimator", str), ("value", float)),
    complete=len(ESTIMATORS),
)
FOLDS = 3
DRAWS = 1_000_000


@dataclass(frozen=True)
class TableLine:
    """One row of the table: the mean and standard deviation of the relative absolute error over bootstrap samples."""

    campaign: str
    estimator: str
    error: float
    deviation: float
    samples: int
    n: int
    truth: float
    truth_stderr: float


def run_table(
    data: str | Path,
    priors: str | Path,
    path: str | Path,
    *,
    samples: int,
    campaigns: Sequence[str],
    jobs: int | None = None,
) -> list[TableLine]:
    """Bootstrap the random policy's log of each campaign, and estimate the Thompson sampling policy's click rate."""
    if samples < 2:
        raise OptionError(f"a standard deviation needs at least 2 bootstrap samples; found {samples}.")
    logs = {campaign: load(str(data), str(priors), campaign) for campaign in campaigns}
    file = ResultFile.open(path, RECIPE)
    tasks: list[list[Key]] = []
    for campaign in campaigns:
        missing = file.missing((campaign, b) for b in range(samples))
        tasks += [missing[k : k + 5] for k in range(0, len(missing), 5)]
    run_tasks(partial(work, str(data), str(priors)), tasks, file, jobs=jobs, title="bootstrap samples")
    lines = []
    for (campaign, log), name in product(logs.items(), ESTIMATORS):
        values = [float(row[1]) for b in range(samples) for row in file.rows[campaign, b] if row[0] == name]
        errors = np.abs(np.array(values) - log.truth) / log.truth
        mean, deviation = float(errors.mean()), float(errors.std(ddof=1))
        lines.append(TableLine(campaign, name, mean, deviation, samples, len(log.reward), log.truth, log.truth_stderr))
    return lines


@dataclass(frozen=True, eq=False)
class CampaignLog:
    """A random log as arrays, and the truth from the log of the target policy itself."""

    features: Floats
    position: NDArray[np.int64]
    action: NDArray[np.int64]
    reward: Floats
    weight: Floats
    slate: Floats  # the target's probabilities, a row per action and a column per position
    truth: float
    truth_stderr: float


@lru_cache(maxsize=3)
def load(data: str, priors: str, campaign: str) -> CampaignLog:
    """Read a campaign; the click rate of the target's own log is the truth, which is noisy on a sample."""
    name = cast(Literal["all", "men", "women"], campaign)  # which `OpenBanditLog` checks
    log = OpenBanditLog(data, policy="random", campaign=name)
    frame = log.read("action", "position", "reward", "propensity", *(f"user_feature_{j}" for j in range(4)))
    slate = thompson_probabilities(*from_priors_file(priors, campaign), draws=DRAWS)
    clicks = OpenBanditLog(data, policy="bts", campaign=name).read("reward")["reward"].to_numpy()
    truth = float(clicks.mean())
    if truth == 0:
        raise OptionError(f"the target's log of campaign {campaign!r} has no click: no relative error can be taken.")
    position = frame["position"].to_numpy() - 1
    return CampaignLog(
        features=np.hstack([log.features(frame), np.eye(slate.probability.shape[1])[position][:, 1:]]),
        position=position,
        action=frame["action"].to_numpy(),
        reward=frame["reward"].to_numpy(),
        weight=log.target(slate, frame) / frame["propensity"].to_numpy(),
        slate=slate.probability,
        truth=truth,
        truth_stderr=math.sqrt(truth * (1 - truth) / len(clicks)),
    )


def work(data: str, priors: str, keys: Sequence[Key]) -> dict[Key, list[Row]]:
    """What a process does with some bootstrap samples."""
    by_key: dict[Key, list[Row]] = {}
    for key in keys:
        log = load(data, priors, str(key[0]))
        random = np.random.default_rng([CAMPAIGNS.index(str(key[0])), int(key[1])])
        rows = random.integers(len(log.reward), size=len(log.reward))
        model_reward, model_value = cross_fit_model(log, rows, random.permutation(len(rows)) % FOLDS)
        inputs = (log.weight[rows], log.reward[rows], model_reward, model_value)
        values = {name: value for name, (value, _) in (published(*inputs) | ours(*inputs)).items()}
        by_key[key] = [(name, values[name]) for name in ESTIMATORS]
    return by_key


def cross_fit_model(log: CampaignLog, rows: NDArray[np.int64], fold: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """The reward model of the other folds: its reward for the logged action, and its value of the target policy."""
    x, a, r = log.features[rows], log.action[rows], log.reward[rows]
    share = log.slate.T[log.position[rows]]  # the target's probabilities at each row's position
    model_reward, model_value = np.empty(len(rows)), np.empty(len(rows))
    for k in range(FOLDS):
        here, others = fold == k, fold != k
        if r[others].any():
            model = fit_rewards(x[others], a[others], r[others], len(log.slate))
        else:  # nobody has clicked
            model = RewardModel(np.zeros(x.shape[1]), np.full(len(log.slate), -np.inf), 0)
        model_reward[here] = model(x[here], a[here])
        model_value[here] = (share[here] * model.all_actions(x[here])).sum(axis=1)
    return model_reward, model_value


def as_text(lines: Sequence[TableLine]) -> str:
    """The table, one block per campaign, with the paper's numbers beside ours and how well the truth itself is known."""
    blocks = []
    for campaign in dict.fromkeys(line.campaign for line in lines):
        mine = [line for line in lines if line.campaign == campaign]
        first = mine[0]
        rows = [("estimator", "error (sd)", "published (sd)")]
        for line in mine:
            paper = PAPER.get(line.estimator) if campaign == "men" else None
            said = f"{paper[0]} ({paper[1]})" if paper else "–"
            rows.append((line.estimator, f"{line.error:.4f} ({line.deviation:.4f})", said))
        noise = first.truth_stderr / first.truth
        blocks.append(
            f"campaign {campaign}: relative absolute error, {first.samples:,} bootstrap samples of {first.n:,} rows\n"
            f"{columns(rows)}\n"
            f"The truth itself, {first.truth:.5f}, is known to ±{noise:.0%} (one standard error of the target's own "
            "log): differences smaller than that mean nothing."
        )
    return "\n\n".join([*blocks, "Published: the full data, 452,949 rows of campaign men."])
