"""scikit-learn's own tools, around a learner: pipelines, searches, cross-validation, pickles and its checks."""

import inspect
import pickle
from functools import partial

import numpy as np
import polars as pl
import pytest
from learning import torch
from messages import refuses
from scipy.sparse import csr_array

import counterpoise as cp
from counterpoise.environments import SyntheticBandit
from counterpoise.errors import ColumnError, LogError, OptionError
from counterpoise.learn import MLP, PolicyLearner, Schedule

sklearn = pytest.importorskip("sklearn", reason="needs scikit-learn: pip install 'counterpoise[models]'")

from sklearn.base import clone  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, cross_val_score  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402
from sklearn.utils.validation import check_is_fitted  # noqa: E402

BANDIT = SyntheticBandit(n_actions=6, inverse_temperature=-3, seed=2)
LOG = BANDIT.draw(2400)
X = LOG.context
Y = cp.logged(LOG.action, LOG.reward, LOG.propensity)
FRAME = pl.DataFrame({f"context_{k}": X[:, k] for k in range(5)})
NAMES = {"context": FRAME.columns, "action": "action", "reward": "reward", "propensity": "propensity"}
ARRAYS = {"action": LOG.action, "reward": LOG.reward, "propensity": LOG.propensity}


def learner(**options):
    return PolicyLearner(**({"epochs": 2, "folds": None, "batch_size": 256, "learning_rate": 0.05} | options))


def by_hand(policy, rows, estimator="beta_ips"):
    """The scorer's value, from the definition of β-IPS or IPS."""
    known = np.searchsorted(policy.classes_, LOG.action[rows])
    target = policy.predict_proba(X[rows])[np.arange(len(rows)), known]
    w, r = target / LOG.propensity[rows], LOG.reward[rows]
    if estimator == "ips":
        return (w * r).mean()
    beta = np.cov(w * r, w)[0, 1] / w.var(ddof=1)
    return (w * r).mean() - beta * (w.mean() - 1)


def test_a_table_and_what_was_logged_are_a_log():
    expected = learner().fit(context=X, **ARRAYS)
    frames = {"polars": FRAME, "pandas": FRAME.to_pandas()[::-1][::-1]}
    for x in (X, X.tolist(), torch.as_tensor(X)):
        found = learner().fit(x, Y)
        np.testing.assert_array_equal(found.predict_proba(X), expected.predict_proba(X))
        assert not hasattr(found, "feature_names_in_")
    for x in frames.values():
        for y in (Y, pl.DataFrame(ARRAYS), pl.DataFrame(ARRAYS).to_pandas(), ARRAYS):
            found = learner().fit(x, y)
            np.testing.assert_array_equal(found.predict_proba(X), expected.predict_proba(X))
            assert found.feature_names_in_.tolist() == FRAME.columns


def test_rows_of_a_pandas_frame_go_by_their_place_and_not_by_their_index():
    order = np.random.default_rng(0).permutation(len(X))
    shuffled = FRAME.to_pandas().iloc[order]
    np.testing.assert_array_equal(
        learner().fit(shuffled, Y[order]).predict_proba(X), learner().fit(X[order], Y[order]).predict_proba(X)
    )


def test_further_parts_of_the_log_go_with_them():
    bad = Y.copy()
    bad["propensity"][:3] = 0
    with refuses(LogError):
        learner().fit(X, bad)
    assert learner().fit(X, bad, drop_bad_rows=True).dropped_rows_ == 3
    assert learner().fit(FRAME, bad, drop_bad_rows=True).dropped_rows_ == 3
    with refuses(OptionError):
        learner().fit(X, Y, action=LOG.action)


def test_what_is_no_log_is_refused():
    with refuses(OptionError):
        learner().fit(X, pl.DataFrame(ARRAYS).drop("propensity"))
    with refuses(OptionError):
        learner().fit(X, LOG.action)
    with refuses(OptionError):
        learner().fit(X[:, 0], Y)
    with refuses(OptionError):
        learner().fit(csr_array(X), Y)
    with refuses(OptionError):
        learner().fit(FRAME.rename({"context_0": "logged reward"}), Y)
    with refuses(ColumnError):
        cp.logged([1, 2, 3], [1, 0], [0.5, 0.5])


@pytest.mark.parametrize("estimator", ["beta_ips", "ips"])
def test_the_scorer_is_the_off_policy_value_on_other_rows(estimator):
    rows = np.arange(1600, 2400)
    fitted = learner().fit(X[:1600], Y[:1600])
    score = cp.value_scorer(fitted, X[rows], Y[rows], estimator=estimator)
    assert score == pytest.approx(by_hand(fitted, rows, estimator), abs=1e-9)
    if estimator == "beta_ips":
        assert fitted.score(X[rows], Y[rows]) == score
    found = cp.evaluate(LOG.frame()[rows], **NAMES, target={"new": fitted})["new", estimator]
    for bound in ("lower", "upper"):
        assert cp.value_scorer(fitted, X[rows], Y[rows], estimator=estimator, bound=bound) == pytest.approx(
            getattr(found.interval, bound)
        )
    with refuses(OptionError):
        cp.value_scorer(fitted, X, Y, bound="middle")


def test_the_scorer_judges_any_classifier():
    """Actions that it never saw have probability 0."""
    seen = LOG.action < 5
    classifier = LogisticRegression().fit(X[seen], LOG.action[seen])
    target = np.zeros(len(X))
    target[seen] = classifier.predict_proba(X[seen])[np.arange(seen.sum()), LOG.action[seen]]
    expected = cp.evaluate(target=target, reward=LOG.reward, propensity=LOG.propensity)["target", "beta_ips"].value
    assert cp.value_scorer(classifier, X, Y) == pytest.approx(expected)


def test_clusters_widen_the_bounds():
    fitted = learner(epochs=1).fit(X, Y)
    twice = np.tile(np.arange(len(X)), 2)
    y = cp.logged(LOG.action[twice], LOG.reward[twice], LOG.propensity[twice], cluster=twice)
    together = cp.value_scorer(fitted, X[twice], y, bound="lower")
    apart = cp.value_scorer(fitted, X[twice], y[["action", "reward", "propensity"]], bound="lower")
    assert together < apart


def test_a_pipeline_learns_and_serves():
    pipeline = make_pipeline(StandardScaler(), learner(policy=MLP(5, 6)))
    assert not hasattr(pipeline[-1], "classes_")
    pipeline.fit(X * 100 + 7, Y)
    check_is_fitted(pipeline)
    np.testing.assert_array_equal(pipeline.classes_, np.arange(6))
    assert BANDIT.draw(2000).value(lambda x: pipeline.predict_proba(x * 100 + 7)) > LOG.reward.mean()
    assert pipeline.predict(X[:3] * 100 + 7).shape == (3,)
    result = cp.evaluate(LOG.frame(), **NAMES, target={"pipeline": pipeline})
    assert result["pipeline", "beta_ips"].value == pytest.approx(pipeline.score(X, Y), rel=1e-6)
    assert "PolicyLearner" in repr(pipeline)


def test_a_pipeline_of_frames_keeps_the_names():
    pipeline = make_pipeline(StandardScaler(), learner()).set_output(transform="pandas")
    pipeline.fit(FRAME.to_pandas(), Y)
    assert pipeline[-1].feature_names_in_.tolist() == FRAME.columns
    assert np.isfinite(cp.value_scorer(pipeline, FRAME.to_pandas(), Y))


def test_a_grid_is_searched_by_value():
    pipeline = make_pipeline(StandardScaler(), learner(epochs=3))
    grid = {"policylearner__optimization__learning_rate": [1e-6, 0.1]}
    folds = KFold(3)
    found = GridSearchCV(pipeline, grid, scoring=cp.value_scorer, cv=folds, error_score="raise").fit(X, Y)
    assert found.best_params_ == {"policylearner__optimization__learning_rate": 0.1}
    np.testing.assert_array_equal(found.best_estimator_.predict_proba(X), found.predict_proba(X))
    candidate = clone(pipeline).set_params(policylearner__learning_rate=0.1)
    for k, (train, test) in enumerate(folds.split(X)):
        score = by_hand(candidate.fit(X[train], Y[train]), test)
        assert found.cv_results_[f"split{k}_test_score"][1] == pytest.approx(score, abs=1e-9)


def test_a_clone_has_groups_of_its_own():
    shared = Schedule(epochs=2, callbacks=[print])
    first = PolicyLearner(schedule=shared)
    twin = clone(first).set_params(schedule__epochs=5, learning_rate=0.5)
    assert (twin.schedule, first.schedule) == (Schedule(epochs=5, callbacks=[print]), shared)
    assert (shared.epochs, first.learning_rate, twin.learning_rate) == (2, 0.01, 0.5)
    assert pickle.loads(pickle.dumps(twin)).get_params() == twin.get_params()


def test_cross_validation_scores_every_fold():
    users = np.arange(len(X)) // 3
    scoring = partial(cp.value_scorer, estimator="snips", bound="lower")
    for x in (X, FRAME, FRAME.to_pandas()):
        scores = cross_val_score(learner(), x, Y, groups=users, cv=GroupKFold(3), scoring=scoring, error_score="raise")
        assert scores.shape == (3,)
        assert np.isfinite(scores).all()
    default = cross_val_score(learner(), X, Y, cv=3, error_score="raise")
    assert (default > scores).all()


def test_a_pickled_learner_predicts_the_same():
    torch.manual_seed(0)
    fitted = learner(policy=MLP(5, 6), objective="lambda_ips", banditnet_lambda=[0.2, 0.4]).fit(FRAME, Y)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(FRAME), fitted.predict_proba(FRAME))
    assert again.history_ == fitted.history_
    assert again.feature_names_in_.tolist() == FRAME.columns
    assert again.fit(FRAME, Y).history_ == fitted.history_
    pipeline = make_pipeline(StandardScaler(), learner()).fit(X, Y)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(pipeline)).predict_proba(X), pipeline.predict_proba(X))


def test_a_learner_knows_whether_it_is_fitted():
    fresh = learner()
    with pytest.raises(sklearn.exceptions.NotFittedError):
        check_is_fitted(fresh)
    assert not hasattr(fresh, "classes_")
    with refuses(OptionError):
        fresh.predict_proba(X)
    check_is_fitted(fresh.fit(X, Y))


@pytest.mark.parametrize(
    "check",
    [
        "check_do_not_raise_errors_in_init_or_set_params",
        "check_estimator_cloneable",
        "check_estimator_repr",
        "check_estimator_tags_renamed",
        "check_get_params_invariance",
        "check_mixin_order",
        "check_no_attributes_set_in_init",
        "check_parameters_default_constructible",
        "check_set_params",
        "check_valid_tag_types",
    ],
)
def test_scikit_learns_checks_of_parameters_pass(check):
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    if not hasattr(checks, check):
        pytest.skip(f"scikit-learn {sklearn.__version__} has no {check}")
    made = getattr(checks, check)
    given = PolicyLearner if "estimator_cls" in inspect.signature(made).parameters else PolicyLearner()
    made("PolicyLearner", given)
