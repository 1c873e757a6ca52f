"""Guardrails: honest values of what was learned, and policies that may do harm are not handed out in silence."""

import warnings

import numpy as np
import polars as pl
import pytest
from learning import torch
from messages import refuses

import counterpoise as cp
from counterpoise.environments import SyntheticBandit
from counterpoise.errors import OptionError, TrainingError
from counterpoise.learn import MLP, LinearSoftmax, ModulePolicy, PolicyLearner
from counterpoise.learn.criterion import DELTA, FACTORS, pessimistic_value
from counterpoise.learn.hand_out import LearningWarning, remarks
from counterpoise.learn.options import LOOKS, STEPS, WAIT, options_of
from counterpoise.learn.rows import Split
from counterpoise.learn.source import Source, inspect
from counterpoise.learn.training import copy_of, fold_policies
from counterpoise.log.groups import folds_of
from counterpoise.log.log import Log

ROWS = 3000
LOG = SyntheticBandit(n_actions=6, inverse_temperature=-2, seed=2).draw(ROWS)
ARRAYS = {"context": LOG.context, "action": LOG.action, "reward": LOG.reward, "propensity": LOG.propensity}
OPTIONS = {"epochs": 3, "batch_size": 256, "learning_rate": 0.05}


def noise(seed, rows=1200, actions=8):
    """A log whose rewards depend on nothing: every policy earns 0.3."""
    random = np.random.default_rng(seed)
    return {
        "context": random.normal(size=(rows, 3)),
        "action": random.integers(actions, size=rows),
        "reward": (random.random(rows) < 0.3).astype(float),
        "propensity": np.full(rows, 1 / actions),
    }


def same(first, second):
    for name, tensor in first.state_dict().items():
        torch.testing.assert_close(tensor, second.state_dict()[name], rtol=0, atol=0)


def _dropping():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 6))
    return ModulePolicy(module, n_actions=6)


@pytest.mark.filterwarnings("ignore::counterpoise.learn.LearningWarning")
def test_the_result_is_of_the_folds_and_the_policy_of_all_rows():
    found = PolicyLearner(**OPTIONS).fit(**ARRAYS)
    same(found.policy_, PolicyLearner(**OPTIONS, folds=None).fit(**ARRAYS).policy_)
    dropping = {"policy": _dropping()} | OPTIONS | {"epochs": 1}
    same(*(PolicyLearner(**dropping, folds=folds).fit(**ARRAYS).policy_ for folds in (2, None)))
    assert found.result_.targets == ("fold policies",)
    assert found.result_.n == ROWS
    assert found.result_.verdict().verdict == "ok"
    assert found.kind_ == "learned"
    value = found.result_["fold policies", "beta_ips"]
    assert (
        value.interval.lower < LOG.value(found.predict_proba) < value.interval.upper + 0.05
    )  # of more rows than the folds had
    assert found.result_["fold policies", "lift"].interval.lower > 0
    assert not hasattr(found.set_params(folds=None).fit(**ARRAYS), "result_")


def fold_policies_of(arrays, **options):
    source = Source(Log(**arrays))
    options = options_of(PolicyLearner(**OPTIONS | options).get_params())
    inspection = inspect(source, None, options.split)
    return fold_policies(options, source, inspection, lambda others: LinearSoftmax(5, 6, bias=True))


@pytest.mark.parametrize("objective", ["beta_ips", "log_smoothing"])
def test_the_rows_of_a_fold_neither_train_nor_choose_its_policy(objective):
    fold = folds_of(pl.Series(np.arange(ROWS)), 3)
    turned = ARRAYS | {"reward": np.where(fold == 1, 1 - LOG.reward, LOG.reward)}
    before, after = (fold_policies_of(arrays, objective=objective) for arrays in (ARRAYS, turned))
    same(before[1], after[1])
    assert not torch.equal(before[0].scores.weight, after[0].scores.weight)


def test_rows_of_a_cluster_are_all_left_alone():
    user = np.arange(ROWS) // 50
    fold = folds_of(pl.Series(user), 3)
    turned = ARRAYS | {"reward": np.where(fold == 1, 1 - LOG.reward, LOG.reward)}
    before, after = (fold_policies_of(arrays | {"cluster": user}) for arrays in (ARRAYS, turned))
    same(before[1], after[1])
    assert not torch.equal(before[0].scores.weight, after[0].scores.weight)


@pytest.mark.thorough
def test_where_there_is_nothing_to_learn_the_result_is_honest():
    results, lifts = [], []
    for seed in range(12):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LearningWarning)
            found = PolicyLearner(epochs=3, batch_size=128, learning_rate=0.1).fit(**noise(seed))
        results.append(found.result_["fold policies", "beta_ips"].value)
        lifts.append(found.result_["fold policies", "lift"].interval.lower)
    assert abs(np.mean(results) - 0.3) < 3 * np.std(results, ddof=1) / np.sqrt(12)
    assert sum(lower > 0 for lower in lifts) <= 2  # of 12 intervals at 95 %, whose lower ends miss one time in 40


def test_a_policy_that_is_not_surely_better_is_not_handed_out_in_silence():
    with pytest.warns(
        LearningWarning, match=r"The learned policy is not reliably better than .* the lift is between"
    ) as said:
        found = PolicyLearner(**OPTIONS).fit(**noise(0))
    assert said[0].filename == __file__
    assert found.kind_ == "learned"
    with refuses(TrainingError):
        PolicyLearner(**OPTIONS, fallback="raise").fit(**noise(0))


def test_a_policy_that_was_trained_on_this_very_log_is_no_witness_of_its_folds():
    log = ARRAYS | {"action": LOG.action * 10}  # ids, which the policy keeps
    learned = PolicyLearner(**OPTIONS, folds=None).fit(**log).policy_
    with pytest.warns(LearningWarning, match="trained on this very log.*result_ will flatter it") as said:
        PolicyLearner(policy=learned, **OPTIONS).fit(**log)
    assert said[0].filename == __file__
    other = log | {"reward": np.roll(LOG.reward, 1)}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The learned policy is not reliably better")
        PolicyLearner(policy=learned, **OPTIONS).fit(**other)
        PolicyLearner(policy=learned, **OPTIONS, folds=None).fit(**log)


@pytest.mark.parametrize("fallback", ["imitate", "raise"])
def test_a_fallback_needs_folds(fallback):
    with refuses(OptionError):
        PolicyLearner(**OPTIONS, fallback=fallback, folds=None).fit(**ARRAYS)


def test_the_imitation_is_called_that_and_judged_itself():
    log = noise(0)
    found = PolicyLearner(**OPTIONS, fallback="imitate").fit(**log)
    assert found.kind_ == "imitation"
    assert found.result_.targets == ("imitating fold policies",)
    assert found.rejected_.targets == ("fold policies",)
    assert np.abs(found.predict_proba(log["context"]) - 1 / 8).mean() < 0.03
    assert found.result_["imitating fold policies", "lift"].stderr < found.rejected_["fold policies", "lift"].stderr
    sure = PolicyLearner(**OPTIONS, fallback="imitate").fit(**ARRAYS)
    assert sure.kind_ == "learned"
    assert not hasattr(sure, "rejected_")


def test_every_epoch_has_its_effective_sample_and_verdict():
    found = PolicyLearner(**OPTIONS, folds=None, holdout=0.3).fit(**ARRAYS)
    last = PolicyLearner(**OPTIONS | {"epochs": found.best_epoch_}, folds=None, holdout=0.3).fit(**ARRAYS)
    held = Split(0.3, 0).held_out(0, ROWS)
    weight = last.predict_proba(LOG.context)[np.arange(ROWS), LOG.action][held] / LOG.propensity[held]
    epoch = found.history_[found.best_epoch_ - 1]
    assert epoch.effective_sample_size == pytest.approx(weight.sum() ** 2 / (weight**2).sum(), rel=1e-4)
    result = cp.evaluate(reward=LOG.reward[held], propensity=LOG.propensity[held], target=weight * LOG.propensity[held])
    assert epoch.verdict == result.verdict().verdict
    few = PolicyLearner(**OPTIONS | {"batch_size": 50}, folds=None).fit(**{k: v[:100] for k, v in ARRAYS.items()})
    assert few.history_[0].verdict == "caution"


def test_epochs_are_scored_by_their_value_if_the_held_out_rows_measure_it_and_else_by_a_lower_bound():
    found = PolicyLearner(**OPTIONS, folds=None, holdout=0.3, seed=1).fit(**ARRAYS)
    assert all(epoch.score == epoch.value - epoch.stderr for epoch in found.history_)
    few = {name: part[:250] for name, part in ARRAYS.items()}
    options = OPTIONS | {"epochs": 1, "batch_size": 50}
    found = PolicyLearner(**options, folds=None).fit(**few)
    held = Split(0.1, 0).held_out(0, 250)
    weight = found.predict_proba(few["context"])[np.arange(250), few["action"]][held] / few["propensity"][held]
    assert not pessimistic_value(weight, few["reward"][held]).is_measured
    bounds = []
    for factor in FACTORS:  # the least reward is 0, and the size that of all rows
        one = factor / np.sqrt(held.sum() * (few["reward"] ** 2).mean())
        product = np.log(1 + one * weight * few["reward"][held]).sum() - np.log(len(FACTORS) / DELTA)
        bounds.append((np.exp(product / held.sum()) - 1) / one)
    assert found.history_[0].score == pytest.approx(max(bounds), rel=1e-5)
    assert 0 < found.history_[0].score < found.history_[0].value


@pytest.mark.filterwarnings("ignore::counterpoise.learn.LearningWarning")
@pytest.mark.parametrize("named", [True, False])
def test_folds_see_text_names_and_candidates_as_they_are(named):
    """Judged by a target of `evaluate`: the policy of every fold, as it says itself what its probabilities are."""
    random = np.random.default_rng(0)
    pools = [sorted(random.permutation(6)[:4]) for _ in range(ROWS)]
    action = np.array([random.choice(pool) for pool in pools])
    country = random.choice(["de", "fr", "it"], size=ROWS)
    frame = pl.DataFrame(
        {
            "country": country,
            "age": LOG.context[:, 0],
            "item": [f"item {a}" for a in action] if named else action,
            "pool": [[f"item {a}" for a in pool] for pool in pools] if named else [list(map(int, p)) for p in pools],
            "reward": (random.random(ROWS) < np.where(action == (country == "fr"), 0.8, 0.3)).astype(float),
            "p": np.full(ROWS, 0.25),
        }
    )
    parts = {"context": ["country", "age"], "action": "item", "reward": "reward", "propensity": "p"}
    found = PolicyLearner(**OPTIONS, folds=2).fit(frame, **parts, candidates="pool")
    lift = found.result_["fold policies", "lift"]
    truth = cp.evaluate(frame, **parts, candidates="pool", target={"refitted": found.policy_})["refitted", "lift"]
    assert lift.interval.lower > 0
    assert lift.value == pytest.approx(
        truth.value, abs=0.1
    )  # of a policy that saw twice as many rows, these among them
    assert found.result_.diagnostics().mean_weight == pytest.approx(1, abs=0.1)
    assert found.remarks_ == ()


def test_folds_resume_from_their_own_checkpoints(tmp_path):
    whole = PolicyLearner(**OPTIONS, checkpoint=tmp_path / "run.safetensors").fit(**ARRAYS)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["run.fold-1.safetensors", "run.fold-2.safetensors", "run.fold-3.safetensors", "run.safetensors"]
    (tmp_path / "run.safetensors").unlink()
    (tmp_path / "run.fold-2.safetensors").unlink()
    again = PolicyLearner(**OPTIONS, checkpoint=tmp_path / "run.safetensors").fit(**ARRAYS)
    same(again.policy_, whole.policy_)
    assert again.result_["fold policies", "lift"].value == whole.result_["fold policies", "lift"].value


def odd(change):
    source, policy = Source(Log(**ARRAYS)), LinearSoftmax(5, 6, bias=True)
    inspect(source, None, Split(0.1, 0))
    start = copy_of(policy)
    with torch.no_grad():
        change(policy.scores)
    return remarks(policy, source, start)


def test_saturated_and_dead_policies_are_called_that():
    (said,) = odd(lambda layer: layer.bias.__setitem__(3, 100.0))
    assert "action 3 in nearly every context: one action for everyone" in said
    (said,) = odd(lambda layer: layer.weight.mul_(1e6))
    assert "one action for sure in nearly every context" in said
    (said,) = odd(lambda layer: (layer.weight.zero_(), layer.bias.zero_()))
    assert "the uniform policy" in said
    (said,) = odd(lambda layer: None)
    assert "never moved" in said
    assert PolicyLearner(**OPTIONS, folds=None).fit(**ARRAYS).remarks_ == ()


def test_passed_policies_that_standardize_take_mean_and_scale_from_the_rows_they_train_on():
    torch.manual_seed(0)
    log = ARRAYS | {"context": 1000 + 50 * LOG.context}
    policy = MLP(5, 6, hidden=(8,), standardize=True)
    found = PolicyLearner(policy=policy, **OPTIONS).fit(**log)
    training = log["context"].astype(np.float32)[~Split(0.1, 0).held_out(0, ROWS)]
    np.testing.assert_allclose(found.policy_.body[0].mean, training.mean(0), rtol=1e-5)
    np.testing.assert_allclose(found.policy_.body[0].scale, training.std(0), rtol=1e-3)
    assert LOG.value(lambda context: found.predict_proba(1000 + 50 * context)) > LOG.reward.mean() + 0.03
    own = LinearSoftmax(5, 6, standardize=True)
    own.body.load_state_dict({"mean": torch.full((5,), 7.0), "scale": torch.full((5,), 3.0)})
    found = PolicyLearner(policy=own, **OPTIONS | {"epochs": 1}, folds=None).fit(**ARRAYS)
    assert found.policy_.body.mean.tolist() == [7.0] * 5


def test_without_epochs_training_goes_on_until_it_no_longer_helps():
    found = PolicyLearner(batch_size=256, learning_rate=0.3, folds=None, patience=5).fit(**ARRAYS)
    assert len(found.history_) == found.best_epoch_ + 5
    assert len(PolicyLearner(batch_size=256, epochs=3, folds=None).fit(**ARRAYS).history_) == 3
    assert PolicyLearner(batch_size=None, holdout=0, epochs=None, folds=None).get_params()["epochs"] is None


def test_budgets_are_in_steps():
    options = options_of(PolicyLearner().get_params())
    assert options.limits(steps=1) == (STEPS, WAIT)
    assert options.limits(steps=STEPS) == (1, LOOKS)
    assert options_of(PolicyLearner(epochs=20).get_params()).limits(steps=7) == (20, None)
