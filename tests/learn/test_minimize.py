"""Learning where less is better: what is learned makes the reward small, and every number is in the reward's own units."""

import learning  # noqa: F401  (skips without torch)
import numpy as np
import polars as pl
import pytest
from messages import refuses

import counterpoise as cp
from counterpoise.errors import OptionError
from counterpoise.learn import PolicyLearner, RankingLearner, learn_policy
from counterpoise.learn.hand_out import is_surely_better

PARTS = {"context": ["x"], "action": "a", "propensity": "p"}


def waits(n=3000, seed=1):
    random = np.random.default_rng(seed)
    x, a = random.normal(size=n), random.integers(0, 2, n)
    cost = 5 + np.where(a == 1, x, -x) + 0.3 * random.normal(size=n)
    return pl.DataFrame({"cost": cost, "gain": -cost, "x": x, "a": a, "p": np.full(n, 0.5)})


LOG = waits()
COST, GAIN = {"reward": "cost", "minimize": "cost"}, {"reward": "gain"}


def test_a_learner_makes_a_cost_small_and_says_so_in_its_units():
    cost, gain = (PolicyLearner(epochs=3, folds=2, seed=3).fit(LOG, **PARTS, **how) for how in (COST, GAIN))
    assert cost.kind_ == gain.kind_ == "learned"
    assert is_surely_better(cost.result_)
    assert cost.result_.value < cost.mean_reward_ < 5.1
    assert cost.mean_reward_ == pytest.approx(LOG["cost"].mean(), rel=1e-6)
    np.testing.assert_allclose(cost.predict_proba([[2.0], [-2.0]]), gain.predict_proba([[2.0], [-2.0]]))
    for own, other in zip(cost.history_, gain.history_, strict=True):
        assert (own.value, own.lower, own.upper, own.score) == (-other.value, -other.upper, -other.lower, other.score)


def test_a_search_mirrors_that_of_the_negated_reward():
    how = PARTS | {
        "contenders": [cp.learn.Direct("ridge"), cp.learn.Reduction(tree())],
        "minutes": None,
        "progress": False,
    }
    cost, gain = (learn_policy(LOG, **how, **reward) for reward in (COST, GAIN))
    assert (cost.kind, cost.name) == (gain.kind, gain.name)
    assert cost.result.value < cost.mean_reward
    assert cost.result.value == pytest.approx(-gain.result.value)
    assert cost.reward_range == (-gain.reward_range[1], -gain.reward_range[0])
    for own, other in zip(cost.leaderboard, gain.leaderboard, strict=True):
        assert (own.name, own.value, own.lower, own.upper) == (other.name, -other.value, -other.upper, -other.lower)
    assert cost.outside() == ""
    assert "less is better" in cost.summary()


def tree():
    from sklearn.tree import DecisionTreeClassifier

    return DecisionTreeClassifier(max_depth=3, random_state=0)


def test_predictions_of_a_cost_are_taken_as_costs():
    predicted = 5 + np.stack([-LOG["x"], LOG["x"]], axis=1)
    cost, gain = (
        PolicyLearner("dr", epochs=2, folds=2, seed=3).fit(LOG, **PARTS, **how, model_rewards=sign * predicted)
        for how, sign in ((COST, 1), (GAIN, -1))
    )
    assert cost.result_.value == -gain.result_.value < LOG["cost"].mean()


def test_a_ranking_that_is_learned_makes_the_cost_of_lists_small():
    random = np.random.default_rng(0)
    n = 1500
    x, order = random.normal(size=n), np.stack([random.permutation(2) for _ in range(n)])
    rows = pl.DataFrame(
        {
            "list": np.repeat(np.arange(n), 2), "place": np.tile([0, 1], n), "x": np.repeat(x, 2), "item": order.ravel(),
            "p": np.tile([0.5, 1.0], n),
        }
    ).with_columns(cost=pl.when(pl.col("place") == 0).then((pl.col("item") * 2 - 1) * pl.col("x") + 5).otherwise(0.0))  # fmt: skip
    parts = {
        "slate": "list",
        "position": "place",
        "propensity_of": "item_given_above",
        "context": ["x"],
        "action": "item",
    }
    learned = RankingLearner(epochs=5, seed=1).fit(rows, **parts, propensity="p", reward="cost", minimize=True)
    assert learned.result_.minimize is True
    assert learned.result_.value < rows["cost"].sum() / n


@pytest.mark.parametrize(
    "learn", [PolicyLearner().fit, lambda *log, **parts: learn_policy(*log, **parts, minutes=0.05)]
)
def test_nothing_is_learned_until_it_is_known_which_way(learn):
    with refuses(OptionError):
        learn(LOG, **PARTS, reward="cost")


def test_what_needs_rewards_of_which_more_is_better_is_refused_and_its_advice_works():
    with refuses(OptionError):
        PolicyLearner("log_smoothing", epochs=1).fit(LOG, **PARTS, **COST)
    learned = PolicyLearner("log_smoothing", epochs=5, folds=2).fit(LOG, **PARTS, reward="10 - cost")
    assert is_surely_better(learned.result_)
