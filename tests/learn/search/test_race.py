"""The race between contenders: its sums against direct computations, and who may choose what."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from learning import torch
from messages import refuses

from counterpoise.environments import SyntheticBandit
from counterpoise.errors import LogError, TrainingError
from counterpoise.evaluation.evaluate import evaluate
from counterpoise.learn import race
from counterpoise.learn.contenders import Network
from counterpoise.learn.criterion import pessimistic_value
from counterpoise.learn.hand_out import TWICE, is_surely_better, lift_interval
from counterpoise.learn.race import Race, by_bound, by_score
from counterpoise.learn.rows import Rows

LOG = SyntheticBandit(n_actions=4, inverse_temperature=-2, seed=1).draw(900)
FOLDS = np.random.default_rng(0).integers(3, size=900)


class Fixed:
    """A contender that never learns anything."""

    def __init__(self, name, scores, temperatures=(1.0,), seconds=0.0, clock=None):
        self.name, self.temperatures, self.scores = name, temperatures, scores
        self.seconds, self.clock = seconds, clock

    def fit(self, rest, seed):
        if self.clock is not None:
            self.clock[0] += self.seconds
        return self

    def predict_proba(self, context):
        scores = np.exp(self.scores(np.asarray(context, dtype=float)))
        return scores / scores.sum(1, keepdims=True)


def always(action, actions=2):
    return lambda context: np.where(np.arange(actions) == action, 0.0, -50.0) + 0 * context[:, :1]


def raced(contenders, rows, folds=FOLDS, n_actions=4):
    found = Race(rows, folds, 3, n_actions, 0)
    found.run(contenders, None, None)
    return found


def rows_of(context, action, reward, propensity):
    return Rows(
        torch.as_tensor(context).float(),
        torch.as_tensor(action),
        torch.as_tensor(reward).float(),
        torch.as_tensor(propensity).float(),
    )


ROWS = rows_of(LOG.context, LOG.action, LOG.reward, LOG.propensity)
MAPS = np.random.default_rng(1).normal(size=(5, 4))


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_scores_are_those_of_the_rows_themselves(temperature):
    found = raced([Fixed("fixed", lambda x: x @ MAPS, (0.0, 0.5, 1.0))], ROWS)
    logits = ROWS.context.double().numpy() @ MAPS
    table = np.eye(4)[logits.argmax(1)] if temperature == 0 else np.exp(logits / temperature)
    target = (table / table.sum(1, keepdims=True))[np.arange(900), LOG.action]
    weight, reward = target / ROWS.propensity.double().numpy(), ROWS.reward.double().numpy()
    sums = found.sums["fixed", temperature]
    whole = pessimistic_value(weight, reward)
    assert vars(found._total(sums, None).score(found.lowest)) == pytest.approx(vars(whole), rel=1e-9)
    for fold in range(3):
        rest = fold != FOLDS
        score = found._total(sums, fold).score(found.lowest)
        by_hand = pessimistic_value(weight[rest], reward[rest])
        for part in ("value", "stderr", "effective_sample_size", "is_measured"):
            assert getattr(score, part) == pytest.approx(getattr(by_hand, part), rel=1e-9)
    index, probability = found.certify([("fixed", temperature)] * 3, None)
    np.testing.assert_array_equal(index, np.arange(900))
    np.testing.assert_allclose(probability, target, rtol=1e-9)
    price, size = 2 * math.log(8 / 0.05), math.sqrt(900) * np.sqrt(np.mean(reward**2))  # twice: folds share rows
    lambdas = [2.0**k / size for k in range(2, -6, -1)]
    bounds = [math.expm1((np.log1p(one * weight * reward).sum() - price) / 900) / one for one in lambdas]
    assert 0 < found.bound(index, probability) == pytest.approx(max(bounds), rel=1e-6)
    assert found.bound(index, probability) < whole.lower


def test_networks_are_judged_by_rows_outside_their_training():
    quick = Network("linear", "beta_ips", hidden=(), epochs=1)
    found = raced([quick], ROWS)
    for fold in range(3):
        alone = quick.fit(race.Rest(ROWS.take(torch.as_tensor(fold != FOLDS)), 4), 0)
        table = alone.predict_proba(LOG.context)[np.arange(900), LOG.action]
        own = fold == FOLDS
        expected = pessimistic_value((table / LOG.propensity)[own], LOG.reward[own])
        assert found.sums["linear", 1.0][fold].score(0.0).value == pytest.approx(expected.value, rel=1e-4)
        np.testing.assert_array_equal(
            found.serve(("linear", 1.0), fold).predict_proba(LOG.context)[:, 0], alone.predict_proba(LOG.context)[:, 0]
        )
    assert found.leaderboard(0.95)[0].seconds == found.seconds["linear"]


def coins(rewarded_in_fold_0, order=None):
    """Two actions at random; action 0 earns a little more in folds 1 and 2."""
    random = np.random.default_rng(3)
    action = random.integers(2, size=900)
    reward = (random.random(900) < np.where(action == 0, 0.55, 0.45)).astype(float)
    first = FOLDS == 0
    reward[first] = action[first] == rewarded_in_fold_0
    if order is not None:
        reward[first] = order.permutation(reward[first])
    return rows_of(np.zeros((900, 1)), action, reward, np.full(900, 0.5))


CANDIDATES = [Fixed("zero", always(0)), Fixed("one", always(1))]


def test_what_is_chosen_for_a_fold_is_not_chosen_by_its_rewards():
    found = {rewarded: raced(CANDIDATES, coins(rewarded), n_actions=2) for rewarded in (0, 1)}
    assert {one.best(by_score, without=0) for one in found.values()} == {("zero", 1.0)}
    assert [found[k].best(by_score, without=1)[0] for k in (0, 1)] == ["zero", "one"]  # which fold 0 has a say in
    assert [found[k].best(by_score)[0] for k in (0, 1)] == ["zero", "one"]
    scores = []
    for seed in range(3):
        one = raced(CANDIDATES, coins(0, np.random.default_rng(seed)), n_actions=2)
        scores.append([one._total(one.sums[name, 1.0], 0).score(one.lowest) for name in ("zero", "one")])
        assert one.best(by_bound, without=0) == ("zero", 1.0)
    assert scores[0] == scores[1] == scores[2]


def test_the_leaderboard_has_each_contender_at_its_best_temperature():
    contenders = [Fixed("mild", lambda x: x @ MAPS, (1.0, 0.0)), Fixed("even", lambda x: 0 * x[:, :4])]
    found = raced(contenders, ROWS)
    board = found.leaderboard(0.9)
    assert sorted(one.name for one in board) == ["even", "mild"]
    assert [one.score for one in board] == sorted((one.score for one in board), reverse=True)
    for one in board:
        score = found._total(found.sums[one.name, one.temperature], None).score(found.lowest)
        assert one.score == max(
            found._total(sums, None).score(found.lowest).criterion
            for (name, _), sums in found.sums.items()
            if name == one.name
        )
        assert (one.value, one.effective_sample_size) == (score.value, score.effective_sample_size)
        assert one.upper - one.lower == pytest.approx(2 * 1.6448536 * score.stderr)
    assert found.best(by_score) == (board[0].name, board[0].temperature)


def test_who_is_late_or_too_slow_is_left_out(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(race, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    even = lambda x: 0 * x[:, :4]  # noqa: E731
    contenders = [
        Fixed("first", even, seconds=30, clock=clock),
        Fixed("quick", even, seconds=1, clock=clock),
        Fixed("slow", even, seconds=50, clock=clock),
        Fixed("late", even, seconds=1, clock=clock),
    ]
    found = Race(ROWS, FOLDS, 3, 4, 0)
    said = []
    found.run(contenders, 143.0, said.append)
    assert list(found.policies) == ["first", "quick"]
    assert found.skipped == {
        "slow": "it takes 50.0 s to learn from 613 rows, and there is no time for that.",
        "late": "there was no time left to try it.",
    }
    assert said[:3] == [f"first (1 of 4), fold {fold} of 3" for fold in (1, 2, 3)]


def test_who_cannot_be_learned_is_left_out_and_said_so():
    class Failing(Fixed):
        def fit(self, rest, seed):
            raise LogError("too few rows.")

    found = raced([Fixed("even", lambda x: 0 * x[:, :4]), Failing("failing", None)], ROWS)
    assert found.skipped == {"failing": "too few rows."}
    with refuses(TrainingError):
        raced([Failing("failing", None)], ROWS)
    with refuses(TrainingError):
        raced([Fixed("zero", lambda x: 0 * x[:, :4])] * 2, ROWS)


def test_there_is_no_bound_where_rows_are_not_independent():
    contenders = [Fixed("even", lambda x: 0 * x[:, :4])]
    alone = raced(contenders, ROWS)
    certified = alone.certify([alone.best(by_score)] * alone.n_folds, None)
    assert alone.bound(*certified) > -math.inf
    assert raced(contenders, replace(ROWS, unit=torch.arange(len(ROWS)) // 2)).bound(*certified) == -math.inf


def test_what_folds_share_widens_the_interval_that_decides():
    """Where nothing is better, rows that train each other's judges share their luck: the plain interval claims too much too often."""
    random = np.random.default_rng(0)
    luck = random.normal(size=(20_000, 3, 5))  # by log, fold and context: how much better the second action looks
    mean = (luck * np.sign(luck.sum(axis=1, keepdims=True) - luck)).sum(axis=(1, 2)) / math.sqrt(15)  # of z
    plain, wider = (float((mean > factor * 1.96).mean()) for factor in (1.0, TWICE))
    error = math.sqrt(0.025 * 0.975 / 20_000)
    assert plain > 0.05 + 3 * error
    assert wider < 0.025 + 3 * error
    weight, reward = np.tile([1.5, 0.5], 500), np.tile([1.0, 0.0, 0.0, 0.0], 250)
    for name, factor in (("fold policies", TWICE), ("imitating fold policies", TWICE), ("another", 1.0)):
        result = evaluate(reward=reward, propensity=np.full(1000, 0.5), target={name: weight / 2})
        lift = result[name, "lift"]
        lower, upper = lift_interval(result, name)
        assert lower == pytest.approx(lift.value - factor * (lift.value - lift.interval.lower))
        assert upper - lower == pytest.approx(factor * (lift.interval.upper - lift.interval.lower))
        assert is_surely_better(result) == (lower > 0 and result.verdict(name).verdict == "ok")
