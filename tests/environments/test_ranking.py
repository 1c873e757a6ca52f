"""The ranking simulator: its probabilities and its truth, and that every right estimator finds that truth."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from messages import refuses

import counterpoise as cp
from counterpoise.environments import SyntheticRanking
from counterpoise.errors import OptionError
from counterpoise.estimators import beta_ips, snips
from counterpoise.moments import Moments

MEANING = {"at": "item_at_position", "given": "item_given_above"}
RIGHT = [
    ("position", "plackett_luce", "Independent", "at"),
    ("position", "plackett_luce", "Cascade", "given"),
    ("position", "plackett_luce", "Standard", "given"),
    ("cascade", "plackett_luce", "Cascade", "given"),
    ("cascade", "plackett_luce", "Standard", "given"),
    ("dependent", "plackett_luce", "Standard", "given"),
    ("position", "independent", "PseudoInverse", "at"),
    ("cascade", "independent", "Cascade", "given"),
]


def orders(world: SyntheticRanking, policy: str, context: int) -> list[tuple[tuple[int, ...], float]]:
    """Every list and its probability, by enumeration."""
    odds = np.exp(world.scores[policy][context])
    found = []
    for shown in permutations(range(world.items), world.positions):
        left, chance = odds.sum(), 1.0
        for item in shown:
            chance *= odds[item] / left
            left -= odds[item]
        found.append((shown, chance))
    return found


def evaluate(world: SyntheticRanking, lists: int, weight: str, kind: str) -> Any:
    log = world.draw(lists)
    return cp.evaluate(
        log, reward="click", propensity=f"p_{kind}", target=f"new_{kind}", slate="list", position="position",
        propensity_of=MEANING[kind], weight=getattr(cp.weights, weight)(),
    )  # fmt: skip


def test_propensities_are_those_of_an_enumeration() -> None:
    world = SyntheticRanking(3, items=5, contexts=2)
    log = world.draw(50)
    for row in log.iter_rows(named=True):
        k, item, every = row["position"] - 1, row["item"], orders(world, "logging", row["context"])
        at = sum(chance for shown, chance in every if shown[k] == item)
        assert row["p_at"] == pytest.approx(at, rel=1e-9)
        above = tuple(log.filter((log["list"] == row["list"]) & (log["position"] <= k)).sort("position")["item"])
        same = [(shown[k], chance) for shown, chance in every if shown[:k] == above]
        given = sum(c for i, c in same if i == item) / sum(c for _, c in same)
        assert row["p_given"] == pytest.approx(given, rel=1e-9)


@pytest.mark.parametrize("clicks", ["position", "cascade", "dependent"])
def test_the_truth_is_that_of_an_enumeration(clicks: Any) -> None:
    world = SyntheticRanking(3, items=5, contexts=2, clicks=clicks)
    exact = 0.0
    for context in range(2):
        for shown, chance in orders(world, "new", context):
            exact += chance * world._expected_clicks(np.array([context]), np.array([shown])).sum() / 2
    value, error = world.value(draws=50_000)
    assert abs(value - exact) <= 4 * error + 1e-9


@pytest.mark.parametrize("clicks", ["position", "cascade", "dependent"])
def test_logged_clicks_are_worth_the_logging_policy(clicks: Any) -> None:
    world = SyntheticRanking(20, clicks=clicks)
    by_list = world.draw(20_000).group_by("list").sum()["click"].to_numpy()
    value, error = world.value("logging", draws=50_000)
    assert abs(by_list.mean() - value) <= 4 * (by_list.std() / np.sqrt(len(by_list)) + error)


@pytest.mark.parametrize(("positions", "sharper"), [(3, 1.0), (10, 0.5)])
@pytest.mark.parametrize(("clicks", "logging", "weight", "kind"), RIGHT)
def test_the_right_weight_finds_the_truth(
    clicks: Any, logging: Any, weight: str, kind: str, positions: int, sharper: float
) -> None:
    world = SyntheticRanking(positions, clicks=clicks, logging=logging, sharper=sharper, seed=1)
    truth, error = world.value(draws=100_000)
    result = evaluate(world, 20_000, weight, kind)
    for name in ("ips", "snips", "beta_ips"):
        found = result[f"new_{kind}", name]
        assert abs(found.value - truth) <= 4 * (found.stderr + error), name
    assert result.verdict().verdict == "ok"


def test_the_wrong_weight_is_off() -> None:
    world = SyntheticRanking(3, clicks="cascade")
    truth, _ = world.value()
    found = evaluate(world, 20_000, "Independent", "at")["new_at", "beta_ips"]
    assert abs(found.value - truth) > 4 * found.stderr


@pytest.mark.parametrize("seed", range(5))
def test_joint_baselines_never_lose_to_self_normalization(seed: int) -> None:
    """At any rank the best baseline has no larger variance than the rank's own value as baseline; for the list, the joint ones have not."""
    world = SyntheticRanking(4, clicks="cascade", sharper=1.5, seed=seed)
    moments: Moments = evaluate(world, 3_000, "Cascade", "given").moments["new_given"]
    at = moments.columns.index
    alone = []
    for k in range(1, 5):
        y, u, scatter = at(f"y@{k}"), at(f"u@{k}"), moments.scatter
        mean = moments.mean[y] / (1.0 + moments.mean[u])
        normalized = scatter[y, y] - 2 * mean * scatter[y, u] + mean**2 * scatter[u, u]
        alone.append(scatter[y, u] / scatter[u, u])
        assert scatter[y, y] - scatter[y, u] ** 2 / scatter[u, u] <= normalized * (1 + 1e-12)
    together = np.zeros(len(moments.columns))
    for k, beta in enumerate(alone, start=1):
        together[at(f"y@{k}")], together[at(f"u@{k}")] = 1.0, -beta
    each_its_own = np.sqrt(together @ moments.scatter @ together) / moments.n
    joint = beta_ips(moments).stderr
    assert joint <= each_its_own * (1 + 1e-9)
    own_values = np.zeros(len(moments.columns))
    for k in range(1, 5):
        own_values[at(f"y@{k}")] = 1.0
        own_values[at(f"u@{k}")] = -moments.mean[at(f"y@{k}")] / (1.0 + moments.mean[at(f"u@{k}")])
    assert joint <= np.sqrt(own_values @ moments.scatter @ own_values) / moments.n * (1 + 1e-9)
    assert joint <= snips(moments).stderr * 1.1  # which divides by a mean weight that is near 1, but not 1


def test_what_cannot_be_is_refused() -> None:
    with refuses(OptionError):
        SyntheticRanking(3, items=2)
    with refuses(OptionError):
        SyntheticRanking(3, clicks="random")  # type: ignore[arg-type]


def test_the_value_of_a_policy_of_ones_own_is_that_of_its_scores() -> None:
    world = SyntheticRanking(3, clicks="position", seed=2)
    found, error = world.value(world.scores["new"], draws=20_000)
    assert abs(found - world.value()[0]) < 4 * error
    with refuses(OptionError):
        world.value(world.scores["new"].T)
