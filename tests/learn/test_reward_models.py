"""DR with reward models that are fitted here: against models fitted by hand, and never on rows that they may not have seen."""

import numpy as np
import pytest
from learning import torch
from messages import refuses

from counterpoise.environments import SyntheticBandit
from counterpoise.errors import LogError, OptionError, PolicyFileError
from counterpoise.learn import PolicyLearner
from counterpoise.learn import source as sources
from counterpoise.learn.rows import Split
from counterpoise.learn.source import RewardModels, Source, inspect
from counterpoise.log.log import Log
from counterpoise.models import Reward

linear = pytest.importorskip("sklearn.linear_model")
LOG = SyntheticBandit(n_actions=4, inverse_temperature=-2, seed=1).draw(900)
ARRAYS = {"context": LOG.context, "action": LOG.action, "reward": LOG.reward, "propensity": LOG.propensity}
NAMES = {
    "context": [f"context_{k}" for k in range(5)],
    "action": "action",
    "reward": "reward",
    "propensity": "propensity",
}
RIDGE = Reward(linear.Ridge(alpha=1e-6), per_action=True)
OPTIONS = {"epochs": 2, "batch_size": 100, "learning_rate": 0.05}


def opened(log, model=RIDGE):
    source = Source(log)
    found = inspect(source, None, Split(0.0, 0))
    source.number(found.ids)
    source.models = RewardModels(source, found.rows, found.n_actions, model, 3, 0)
    return source


def by_hand(kept):
    """Least squares for every action on some rows, and what they predict for all."""
    x = np.column_stack([np.ones(900), LOG.context])
    maps = [np.linalg.lstsq(x[kept & (LOG.action == a)], LOG.reward[kept & (LOG.action == a)])[0] for a in range(4)]
    return x @ np.column_stack(maps)


@pytest.mark.parametrize("without", [None, 0, 2])
def test_a_row_is_predicted_by_models_of_other_folds_and_not_of_the_one_that_judges(without):
    source = opened(Log(**ARRAYS))
    source.without = without
    folds, found = source.folds(0, source.logged(0), 3), source.chunk(0).model_rewards
    for fold in range(3):
        expected = by_hand((folds != fold) & (folds != without))
        np.testing.assert_allclose(found[folds == fold], expected[folds == fold], atol=1e-3)


def test_a_sample_is_spread_over_the_log():
    source = opened(Log(**ARRAYS), Reward("ridge", sample=90))
    rows, _ = source.models._sampled()
    np.testing.assert_array_equal(rows.context[:, 0], LOG.context[::10, 0].astype(np.float32))


def test_files_are_predicted_chunk_by_chunk_and_give_the_same_policy(tmp_path, monkeypatch):
    LOG.frame().write_parquet(tmp_path / "log.parquet")
    monkeypatch.setattr(sources, "CHUNK", 250)
    files = opened(Log(tmp_path / "log.parquet", **NAMES))
    memory = opened(Log(**ARRAYS)).chunk(0).model_rewards
    assert files.starts == [0, 250, 500, 750]
    parts = torch.cat([files.chunk(start).model_rewards for start in files.starts])
    np.testing.assert_allclose(parts, memory, atol=1e-5)
    monkeypatch.undo()
    tables = {}
    for name, given in (("files", {"log": tmp_path / "log.parquet", **NAMES}), ("memory", ARRAYS)):
        learner = PolicyLearner("dr", **OPTIONS, folds=None).fit(**given, model=RIDGE)
        tables[name] = learner.predict_proba(LOG.context)
    np.testing.assert_allclose(tables["files"], tables["memory"], atol=1e-4)


def test_a_fitted_model_gives_what_its_predictions_give():
    table = opened(Log(**ARRAYS)).chunk(0).model_rewards.numpy()
    given = PolicyLearner("dr", **OPTIONS, folds=None).fit(**ARRAYS, model_rewards=table)
    fitted = PolicyLearner("dr", **OPTIONS, folds=None).fit(**ARRAYS, model=RIDGE)
    np.testing.assert_allclose(given.predict_proba(LOG.context), fitted.predict_proba(LOG.context), atol=1e-6)
    assert LOG.value(fitted.predict_proba) > LOG.reward.mean()


@pytest.mark.filterwarnings("ignore::counterpoise.learn.LearningWarning")
def test_folds_are_judged_by_rows_that_no_model_of_theirs_has_seen(monkeypatch):
    asked = []
    predict = RewardModels._without
    monkeypatch.setattr(RewardModels, "_without", lambda self, folds: asked.append(folds) or predict(self, folds))
    learner = PolicyLearner("dr", **OPTIONS).fit(**ARRAYS, model="ridge")
    assert learner.result_.n == 900
    assert asked[:9] == [frozenset({fold, without}) for without in range(3) for fold in range(3)]
    assert set(asked[9:]) == {frozenset({fold}) for fold in range(3)}


def test_what_does_not_go_together_is_refused():
    with refuses(OptionError):
        PolicyLearner("dr").fit(**ARRAYS)
    with refuses(OptionError):
        PolicyLearner("ips").fit(**ARRAYS, model="ridge")
    with refuses(OptionError):
        PolicyLearner("dr").fit(**ARRAYS, model="ridge", model_rewards=np.zeros((900, 4)))
    with refuses(OptionError):
        PolicyLearner("dr", folds=2, **OPTIONS).fit(**ARRAYS, model="ridge")
    few = {name: part[:3] for name, part in ARRAYS.items()} | {"reward": np.array([0.0, 1.0, 1.0])}
    with pytest.raises((LogError, OptionError)):
        PolicyLearner("dr", epochs=1, batch_size=1, holdout=0).fit(**few, model="ridge")


def test_a_run_resumes_with_its_own_model_only(tmp_path):
    options = OPTIONS | {"folds": None, "checkpoint": tmp_path / "run.safetensors"}
    first = PolicyLearner("dr", **options).fit(**ARRAYS, model=Reward("ridge"))
    again = PolicyLearner("dr", **options).fit(**ARRAYS, model="ridge")
    np.testing.assert_array_equal(first.predict_proba(LOG.context), again.predict_proba(LOG.context))
    with refuses(PolicyFileError):
        PolicyLearner("dr", **options).fit(**ARRAYS, model=RIDGE)
