"""Reward models that are fitted from the log: every number against one computed by hand."""

import json
import pickle
import re
import warnings
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from messages import refuses
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
)
from sklearn.linear_model import (
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    RidgeClassifier,
    SGDClassifier,
    SGDRegressor,
)
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeRegressor
from typer.testing import CliRunner

import counterpoise as cp
from counterpoise.cli import app
from counterpoise.display import as_text
from counterpoise.engines.rows import over_good_rows
from counterpoise.evaluation.showing import evaluation, schema
from counterpoise.log.groups import STEP, folds_of, row_ids, uniform
from counterpoise.models.fits import BoostedTrees, Joint, Linear, StackedLinear
from counterpoise.models.reward import draw_actions

ACTIONS = 6
TREES = {"max_iter": 8, "min_samples_leaf": 5}
PARTS = {"reward": "r", "propensity": "p", "action": "a", "context": ["x", "y", "country"]}


def softmax(scores):
    e = np.exp(scores - scores.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


class Policy:
    """A softmax of the context's two numbers."""

    classes_ = np.arange(ACTIONS)

    def __init__(self, slope):
        self.slope = slope

    def predict_proba(self, table):
        x = np.asarray(table)[:, :2].astype(float)
        return softmax(self.slope * (x @ np.stack([np.arange(ACTIONS) / 3, np.cos(np.arange(ACTIONS))])))


def world(n, seed=0, *, numeric=False):
    random = np.random.default_rng(seed)
    x, y, country = random.normal(size=n), random.normal(size=n), random.choice(["DE", "FR", "IT"], n)
    table = np.column_stack([x, y])
    propensities = Policy(0.3).predict_proba(table)
    action = (propensities.cumsum(axis=1) > random.random(n)[:, None]).argmax(axis=1)
    scores = 0.8 * x[:, None] * np.sin(np.arange(ACTIONS)) + 0.5 * y[:, None] + (country == "DE")[:, None] - 0.5
    mean = scores if numeric else 1 / (1 + np.exp(-scores))
    got = mean[np.arange(n), action]
    reward = got + random.normal(size=n) if numeric else (random.random(n) < got).astype(float)
    new = Policy(1.0).predict_proba(table)
    frame = pl.DataFrame(
        {"x": x, "y": y, "country": country, "a": action, "r": reward, "p": propensities[np.arange(n), action]}
    ).with_columns(
        pl.Series("lists", new.tolist()),
        pl.Series("best", new.argmax(axis=1)),
        pl.Series("pi", new[np.arange(n), action]),
        pl.Series("user", np.arange(n) // 3),
    )
    return frame, float((new * mean).sum(axis=1).mean())


LOG, _ = world(1_500)
NUMERIC, _ = world(1_500, numeric=True)


def columns_of(result):
    """What the model said of every row: its reward of the logged action, and its value of each target."""
    question = result.question
    names = {"q": "q"} | {name: f"v{k}" for k, name in enumerate(question.target_names)}
    rows = over_good_rows(question, lambda batches: pl.concat(list(batches)))
    return {name: rows.get_column(column).to_numpy() for name, column in names.items()}


@pytest.mark.parametrize(
    ("model", "log", "form"),
    [
        (LogisticRegression(), LOG, Linear),
        (Ridge(), NUMERIC, Linear),
        (PoissonRegressor(), LOG, Linear),
        (HistGradientBoostingClassifier(**TREES), LOG, BoostedTrees),
        (HistGradientBoostingRegressor(**TREES), NUMERIC, BoostedTrees),
        (RandomForestRegressor(5, max_depth=3, random_state=0), NUMERIC, Joint),
        (cp.models.Reward(Ridge(), per_action=True), NUMERIC, StackedLinear),
        (cp.models.Reward(LogisticRegression(), per_action=True), LOG, StackedLinear),
    ],
    ids=lambda one: type(getattr(one, "estimator", one)).__name__ if not isinstance(one, type | pl.DataFrame) else "",
)
def test_values_are_sums_over_all_actions(model, log, form):
    """Whatever is taken apart for speed: v is Σ π(a|x) r̂(a, x), one prediction at a time, by the model of the row's fold."""
    result = cp.evaluate(
        log,
        **PARTS,
        target={"new": Policy(1.0), "lists": cp.Probabilities("lists"), "best": cp.Chosen("best")},
        model=model,
    )
    step = result.question.model
    assert {type(fit) for fit in step.fits} == {form}
    found = columns_of(result)
    folds = folds_of(row_ids(log, (), 0), 5)
    for row in np.random.default_rng(0).integers(0, log.height, 20):
        one = log[int(row)]
        fit, x = step.fits[folds[row]], step.context.numbers(one, is_native=step.design.is_native)
        each = [float(fit.pairs(x, step.design.actions.codes(pl.Series([a])))[0]) for a in range(ACTIONS)]
        value = float(np.dot(one["lists"][0].to_list(), each))
        assert found["q"][row] == pytest.approx(each[one["a"][0]], abs=1e-9)
        assert found["new"][row] == pytest.approx(value, abs=2e-6)
        assert found["lists"][row] == pytest.approx(value, abs=2e-6)
        assert found["best"][row] == pytest.approx(each[one["best"][0]], abs=1e-9)


def test_a_row_is_predicted_by_a_model_that_has_not_seen_it():
    """By hand: folds by the hash of the row's number, an encoding of context and action, one fit per fold."""
    result = cp.evaluate(NUMERIC, **PARTS, target=Policy(1.0), model=Ridge(alpha=2.0))
    folds, r = folds_of(row_ids(NUMERIC, (), 0), 5), NUMERIC["r"].to_numpy()
    numbers = NUMERIC.select("x", "y").to_numpy()
    numbers = (numbers - numbers.mean(axis=0)) / numbers.std(axis=0)
    countries = NUMERIC["country"].to_numpy()[:, None] == np.array(["DE", "FR", "IT"])
    actions = NUMERIC["a"].to_numpy()[:, None] == np.arange(ACTIONS)
    table = np.column_stack([numbers, countries, actions]).astype(float)
    expected = np.empty(len(r))
    for fold in range(5):
        own = folds == fold
        expected[own] = Ridge(alpha=2.0).fit(table[~own], r[~own]).predict(table[own])
    np.testing.assert_allclose(columns_of(result)["q"], expected, atol=1e-9)
    r2 = 1 - np.square(r - expected).sum() / np.square(r - r.mean()).sum()
    assert result.model.r2 == pytest.approx(r2, abs=1e-9)
    assert result.worth() == pytest.approx(
        (result["Policy", "beta_ips"].stderr / result["Policy", "optimal_dr"].stderr) ** 2 - 1
    )


def test_the_worth_of_a_model_needs_one():
    with refuses(cp.OptionError):
        cp.evaluate(LOG, **PARTS, target="pi").worth()
    with refuses(cp.OptionError):
        cp.evaluate(LOG, **PARTS, target="pi", estimator="ips").worth()
    with refuses(cp.OptionError):
        cp.evaluate(LOG, **PARTS, target="pi").worth("other")


def test_folds_follow_users_and_never_the_content_of_rows():
    result = cp.evaluate(LOG, **PARTS, cluster="user", target=Policy(1.0), model="logistic")
    alike = pl.DataFrame({"user": [5, 5, 5], "r": [1, 0, 1]})
    assert len(set(folds_of(row_ids(alike, result.question.model.identity, 0), 5))) == 1
    same = pl.DataFrame({"x": [1.0] * 4_000, "r": [1.0] * 4_000})
    counts = np.bincount(folds_of(row_ids(same, (), 0), 5))
    assert len(counts) == 5
    assert counts.min() > 700


def test_the_columns_of_a_model_give_the_same_estimates_when_they_are_brought(tmp_path):
    """The whole machinery behind a model: what it adds are columns, in memory, in batches of a file, in DuckDB."""
    duckdb = pytest.importorskip("duckdb")
    fitted = cp.evaluate(LOG, **PARTS, target=Policy(1.0), model="logistic", cluster="user", segment="country")
    said = columns_of(fitted)
    brought = LOG.with_columns(q=pl.Series(said["q"]), v=pl.Series(said["Policy"]))
    parts = {"reward": "r", "propensity": "p", "cluster": "user"}
    plain = cp.evaluate(brought, **parts, target={"Policy": "pi"}, model_reward="q", model_value="v", segment="country")
    LOG.drop("lists").write_parquet(tmp_path / "log.parquet")
    connection = duckdb.connect()
    relation = connection.from_arrow(LOG.drop("lists").to_arrow())
    for data in (LOG.lazy(), str(tmp_path / "log.parquet"), LOG.to_pandas(), LOG.to_dict(), relation):
        again = cp.evaluate(data, **PARTS, target=Policy(1.0), model="logistic", cluster="user", segment="country")
        for key, one in plain.estimates.items():
            assert fitted.estimates[key].value == pytest.approx(one.value, abs=1e-9)
            assert again.estimates[key].value == pytest.approx(one.value, rel=1e-6, abs=1e-8)
            assert again.estimates[key].stderr == pytest.approx(one.stderr, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("against", ["logging", "best"])
def test_a_difference_uses_the_model(against):
    """By hand: the least-squares fit of u·r on u and on u·q − d, around the means that are known to be 0."""
    targets = {"new": Policy(1.0), "best": cp.Chosen("best")}
    result = cp.compare(LOG, **PARTS, target=targets, against=against, model="logistic")
    said, r, p = columns_of(result), LOG["r"].to_numpy(), LOG["p"].to_numpy()
    w = {"new": LOG["pi"].to_numpy() / p, "best": (LOG["best"] == LOG["a"]).to_numpy() / p, "logging": np.ones(len(r))}
    u, d = w["new"] - w[against], said["new"] - said.get(against, said["q"])
    controls = np.column_stack([u, u * said["q"] - d])
    moved = controls - controls.mean(axis=0)
    b = np.linalg.lstsq(moved, u * r - (u * r).mean(), rcond=None)[0]
    rows = u * r - controls @ b
    found = result["new", "optimal_dr"]
    assert found.value == pytest.approx(rows.mean(), abs=1e-9)
    assert found.stderr == pytest.approx(rows.std() / np.sqrt(len(r)), rel=3e-3)
    assert result.best == "optimal_dr"
    assert found.stderr <= result["new", "beta_ips"].stderr * 1.001
    ranked = {one.target: one.value for one in cp.rank(result)}
    assert ranked["new"] == found.value


def test_a_plan_counts_on_the_model_for_value_and_difference():
    """The rows of ± 0.05 are (1.96 σ/0.05)², with the errors that evaluate and compare have; clusters and exploring work as without one."""
    asked = PARTS | {"target": Policy(1.0)}
    value = cp.evaluate(LOG, **asked, model="logistic")["Policy", "optimal_dr"].stderr
    difference = cp.compare(LOG, **asked, model="logistic").stderr
    found = cp.plan(LOG, **asked, model="logistic", difference=0.05, actions=ACTIONS, interval="normal")
    assert (found.value_stderr, found.difference_stderr) == pytest.approx((value, difference), rel=1e-9)
    assert found.needs.difference_rows == np.ceil(LOG.height * (1.959964 * difference / 0.05) ** 2)
    without = cp.plan(LOG, **asked, difference=0.05, actions=ACTIONS, interval="normal")
    assert found.needs.difference_rows < without.needs.difference_rows
    assert found.exploration[0].needs.difference_rows == without.exploration[0].needs.difference_rows
    clustered = cp.plan(LOG, **asked, model="logistic", difference=0.05, cluster="user")
    expected = cp.compare(LOG, **asked, model="logistic", cluster="user").stderr
    assert clustered.difference_stderr == pytest.approx(expected, rel=1e-9)


def test_values_from_drawn_actions_have_the_right_mean():
    table = softmax(np.random.default_rng(1).normal(size=(40_000, 5)))
    for samples in (1, 3):
        taken = draw_actions(table, np.arange(len(table)), samples)
        share = np.stack([(taken == a).mean(axis=1) for a in range(5)], axis=1)
        error = (share - table).std(axis=0) / np.sqrt(len(table))
        assert (np.abs((share - table).mean(axis=0)) < 4.5 * error).all()
    # one point after the other, by plain sums
    wide = softmax(3 * np.random.default_rng(2).normal(size=(300, 77)))
    points = (uniform(np.arange(1, 301, dtype=np.uint64) * STEP)[:, None] + np.arange(4)) / 4
    expected = [np.searchsorted(row.cumsum(), at, side="right") for row, at in zip(wide, points, strict=True)]
    np.testing.assert_array_equal(draw_actions(wide, np.arange(300), 4), np.array(expected))
    result = cp.evaluate(LOG, **PARTS, target=Policy(1.0), model="logistic", value_samples=2)
    exact = cp.evaluate(LOG, **PARTS, target=Policy(1.0), model="logistic")
    drawn_values, values = columns_of(result)["Policy"], columns_of(exact)["Policy"]
    assert np.abs((drawn_values - values).mean()) < 4.5 * (drawn_values - values).std() / np.sqrt(len(values))
    assert not np.allclose(drawn_values, values)
    more = cp.evaluate(LOG, **PARTS, target=Policy(1.0), model="logistic", value_samples=ACTIONS)
    np.testing.assert_array_equal(columns_of(more)["Policy"], values)
    # the draws do not depend on which action was logged
    other = LOG.with_columns(a=(pl.col("a") + 1) % ACTIONS)
    step = result.question.model
    question = replace(result.question, log=result.question.log.of(other))
    again = step.complete(other, question, "a batch", 0)["counterpoise model value of Policy"].to_numpy()
    np.testing.assert_allclose(again, drawn_values)


def test_contexts_that_repeat_are_predicted_once():
    class Counting(Policy):
        rows = 0

        def predict_proba(self, table):
            Counting.rows += len(table)
            return super().predict_proba(table)

    few = LOG.with_columns(x=pl.col("x").round(0), y=pl.col("y").round(0))
    result = cp.evaluate(few, **PARTS, target=Counting(1.0), model="logistic", cluster=False)
    contexts = few.select("x", "y", "country").n_unique()
    assert (
        Counting.rows < 5 * contexts + 1 + 2 * 100 + contexts + 1
    )  # in every fold, those asked twice, and by the check of its actions
    plain = cp.evaluate(few.with_columns(pl.Series("lists", Policy(1.0).predict_proba(few.select("x", "y").to_numpy()).tolist())),
                        **PARTS, target={"Counting": cp.Probabilities("lists")}, model="logistic")  # fmt: skip
    for key, one in plain.estimates.items():
        assert result.estimates[key].value == pytest.approx(one.value, abs=1e-7)


def test_items_stand_for_actions():
    items = pl.DataFrame({"a": range(ACTIONS), "sine": np.sin(np.arange(ACTIONS)), "kind": ["s", "t"] * 3})
    log = LOG.with_columns(x=pl.lit(1.0))
    result = cp.evaluate(log, **PARTS, target={"l": cp.Probabilities("lists")}, model="ridge", items=items)
    assert result.question.model.design.features.shape == (ACTIONS + 1, 3)
    turned = cp.evaluate(
        log.with_columns(lists=pl.col("lists").list.reverse()), **PARTS, target={"l": cp.Probabilities("lists")}, model="ridge",
        items=items.reverse().to_pandas(),
    )  # fmt: skip
    assert turned["l", "dr"].value == pytest.approx(result["l", "dr"].value, abs=1e-7)


def test_items_give_no_warning():
    items = pl.DataFrame({"a": range(ACTIONS), "sine": np.sin(np.arange(ACTIONS))})
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")  # an error would be lost in polars, which warns from its own threads
        cp.evaluate(LOG, **PARTS, target=cp.Probabilities("lists"), model="ridge", items=items)
    assert [str(one.message) for one in given] == []


def test_a_list_of_numbers_is_as_many_columns():
    listed = NUMERIC.with_columns(xy=pl.concat_list("x", "y"))
    asked = {"target": {"l": cp.Probabilities("lists")}, "model": HistGradientBoostingRegressor(**TREES)}
    expected = cp.evaluate(NUMERIC, **PARTS, **asked)["l", "dr"]
    found = cp.evaluate(listed, **PARTS | {"context": ["xy", "country"]}, **asked)["l", "dr"]
    assert (found.value, found.stderr) == pytest.approx((expected.value, expected.stderr), abs=1e-12)
    uneven = listed.with_columns(xy=pl.when(pl.int_range(1_500) == 7).then(pl.lit([1.0])).otherwise("xy"))
    with refuses(cp.ColumnError):
        cp.evaluate(uneven, **PARTS | {"context": ["xy"]}, **asked)


def test_mrdr_weighs_the_fit():
    plain = cp.evaluate(NUMERIC, **PARTS, target=Policy(1.0), model=Ridge())
    result = cp.evaluate(NUMERIC, **PARTS, target=Policy(1.0), model=cp.models.Reward(Ridge(), mrdr=True))
    w, r = (NUMERIC["pi"] / NUMERIC["p"]).to_numpy(), NUMERIC["r"].to_numpy()
    weight = w**2 * (1 - NUMERIC["p"].to_numpy())

    def loss(one):
        return (weight * np.square(r - columns_of(one)["q"])).mean()

    assert loss(result) < loss(plain)


def test_switch_is_the_model_alone_where_weights_are_large():
    plain = cp.evaluate(LOG, **PARTS, target=Policy(1.0), model="logistic")
    said, w, r = columns_of(plain), (LOG["pi"] / LOG["p"]).to_numpy(), LOG["r"].to_numpy()
    expected = said["Policy"] + np.where(w <= 2.0, w, 0.0) * (r - said["q"])
    found = cp.evaluate(LOG, **PARTS, target=Policy(1.0), model="logistic", weight=cp.weights.Switch(2.0))
    assert found["Policy", "dr"].value == pytest.approx(expected.mean(), abs=1e-7)


def test_models_are_fitted_on_a_sample_and_predict_all_rows():
    result = cp.evaluate(LOG, **PARTS, target=Policy(1.0), model=cp.models.Reward("logistic", sample=400))
    assert (result.model.rows, result.n) == (400, LOG.height)
    assert np.isfinite(columns_of(result)["q"]).all()
    assert pickle.loads(pickle.dumps(result)).model == result.model
    pickle.loads(pickle.dumps(result.question.model))


class RunningMean(RegressorMixin, BaseEstimator):
    """Predicts the mean of all rewards that it was given, in whatever batches."""

    def fit(self, table, rewards):
        raise AssertionError("all rows at once")

    def partial_fit(self, table, rewards, sample_weight=None):
        weights = np.ones(len(rewards)) if sample_weight is None else sample_weight
        self.sum_ = getattr(self, "sum_", 0.0) + weights @ rewards
        self.count_ = getattr(self, "count_", 0.0) + weights.sum()
        return self

    def predict(self, table):
        return np.full(table.shape[0], self.sum_ / self.count_)


@pytest.mark.parametrize("mrdr", [False, True])
def test_a_model_that_learns_in_batches_sees_every_row_of_the_other_folds_of_a_file(tmp_path, mrdr):
    """By hand: the mean over the other folds of all rows, though the sample is small, and the file is read in pieces."""
    LOG.drop("lists").write_parquet(tmp_path / "log.parquet", row_group_size=100)
    model = cp.models.Reward(RunningMean(), sample=200, stream=True, mrdr=mrdr)
    result = cp.evaluate(tmp_path / "log.parquet", **PARTS, target=Policy(1.0), model=model, cluster="user")
    folds, r = folds_of(LOG["user"], 5), LOG["r"].to_numpy()
    p, t = LOG["p"].to_numpy(), LOG["pi"].to_numpy()
    weights = (t / p) ** 2 * (1 - p) if mrdr else np.ones(len(r))
    expected = [np.average(r[folds != fold], weights=weights[folds != fold]) for fold in range(5)]
    assert columns_of(result)["q"] == pytest.approx(np.array(expected)[folds], rel=1e-6)
    assert result.model.rows == LOG.height


def test_learning_in_batches_is_as_good_as_all_at_once():
    asked = PARTS | {"target": Policy(1.0)}
    learner = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.05, average=True, random_state=0)
    large = world(20_000, seed=3)[0]
    whole = cp.evaluate(large, **asked, model=cp.models.Reward(learner, sample=500, stream=True))
    few = cp.evaluate(large, **asked, model=cp.models.Reward(learner, sample=500))
    best = columns_of(cp.evaluate(large, **asked, model="logistic"))["q"]  # on all rows at once
    off = [np.sqrt(np.square(columns_of(one)["q"] - best).mean()) for one in (whole, few)]
    assert off[0] < 0.2 * off[1]
    for wrong in ({"estimator": Ridge()}, {"estimator": SGDRegressor(), "per_action": True}, {}):
        with refuses(cp.OptionError):
            cp.models.Reward(**wrong, stream=True)


def test_a_log_takes_the_parts_it_has_not_got(tmp_path):
    log = cp.Log(LOG, **PARTS)
    assert cp.evaluate(log, target=Policy(1.0), model="logistic").model is not None
    with refuses(cp.OptionError):
        cp.evaluate(log, target=Policy(1.0), reward="x")
    state = tmp_path / "state.json"
    one = cp.evaluate(log, target=Policy(1.0), model="logistic", state=state, batch="1")
    two = cp.evaluate(log.of(world(900, 5)[0]), target=Policy(1.0), model="logistic", state=state, batch="2")
    assert two.n == one.n + 900
    with refuses(cp.MomentsError):
        cp.evaluate(log, target=Policy(1.0), model=Ridge(), state=state, batch="3")


class Gaps:
    """A model that predicts NaN at times."""

    def fit(self, table, rewards):
        return self

    def predict(self, table):
        return np.where(np.arange(table.shape[0]) % 7 == 0, np.nan, 0.0)

    def get_params(self, deep=True):
        return {}


def test_the_doctor_finds_context_that_leaks_the_reward():
    log = LOG.with_columns(paid=pl.when(pl.col("r") == 1).then(pl.lit("yes")).otherwise(pl.lit("no")))
    found = cp.doctor(log, **PARTS | {"context": ["x", "country", "paid"]}, target=["pi"])
    said = [one for one in found.findings if "explains 100% of the reward" in one.message]
    assert [one.about for one in said] == ["paid"]
    assert not any("variance" in one.message for one in cp.doctor(LOG, **PARTS, target=["pi"]).findings)


def test_the_report_and_the_command_line_tell_of_the_model(tmp_path):
    result = cp.evaluate(LOG, **PARTS, target=Policy(1.0), model="logistic")
    page = result.report(tmp_path / "report.html").read_text()
    assert "The reward model" in page
    assert "If the propensities were wrong" in page
    assert f"worth {result.worth():.0%} more rows" in page
    assert "Calibration" in page
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(json.loads(as_text(evaluation(result))), schema())
    LOG.drop("lists", "pi").write_parquet(tmp_path / "log.parquet")
    pl.DataFrame({"a": range(ACTIONS), "sine": np.sin(np.arange(ACTIONS))}).write_csv(tmp_path / "items.csv")
    asked = ["evaluate", str(tmp_path / "log.parquet"), "--reward", "r", "--propensity", "p", "--target-action", "best"]
    asked += ["--action", "a", "--context", "x", "--context", "country", "--model", "logistic", "--json"]
    said = CliRunner().invoke(app, [*asked, "--items", str(tmp_path / "items.csv")])
    assert said.exit_code == 0, said.output
    assert json.loads(said.stdout)["model"]["model"] == "LogisticRegression"


LEAKY = LOG.with_columns(pl.Series("rare", np.arange(LOG.height) == 7).cast(pl.Float64))
BAD = [
    ({"model": Gaps()}, "must predict finite numbers: for"),
    ({"model": LogisticRegression(), "reward": "rare"}, "the reward 1 occurs only in fold"),
    ({"model": "auto", "reward": "r * 0"}, "every reward that the model could learn from is 0"),
    ({"model": LogisticRegression(), "reward": "x", "context": ["y"]}, "is a classifier, and the rewards have 1,500"),
    ({"model": "logistic", "reward": "x", "context": ["y"]}, "is for rewards of two values"),
    ({"model": "forest"}, "Choose one of auto, logistic, ridge, boosted"),
    ({"model": LogisticRegression}, "Pass an instance"),
    ({"model": 3}, "must have the methods fit and predict"),
    ({"model": "auto", "target": "pi"}, "only has the probability of the logged one.*baseline="),
    ({"model": "auto", "reward": ["r", "x"], "context": ["y"]}, "one reward at a time"),
    ({"model": "auto", "model_reward": "x", "model_value": "y"}, "leave out either"),
    ({"model": "auto", "context": ["x", "STRING_TO_ARRAY(country, 'E')"]}, r"has List\(String\); models and policies take numbers"),
    ({"model": "auto", "value_samples": 0}, "must be a whole number"),
    ({"model": "auto", "items": {"a": [0, 1]}}, "must be a frame"),
    ({"model": "auto", "items": pl.DataFrame({"a": [0, 1], "z": [1, 2]})}, "lacks 4 of the logged actions"),
    ({"model": "auto", "items": pl.DataFrame({"a": [0, 0], "z": [1, 2]})}, "the id '0' more than once"),
    ({"model": "auto", "items": pl.DataFrame({"a": [0, None], "z": [1, 2]})}, "1 rows without an id"),
    ({"model": "auto", "items": pl.DataFrame({"a": range(ACTIONS)})}, "nothing else"),
    ({"items": pl.DataFrame({"a": range(ACTIONS)})}, "Pass model='auto', too"),
    ({"model": cp.models.Reward("ridge", mrdr=True), "target": {"n": Policy(1.0), "b": cp.Chosen("best")}}, "one target"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "said"), BAD, ids=[said for _, said in BAD])
def test_what_cannot_be_is_said(given, said):
    asked = PARTS | {"target": Policy(1.0)} | given
    with pytest.raises(cp.CounterpoiseError, match=said):
        cp.evaluate(LEAKY, **asked)


def test_the_lift_uses_the_model_as_a_comparison_does():
    asked = PARTS | {"target": {"new": Policy(1.0)}, "model": "logistic"}
    lift, difference = cp.evaluate(LOG, **asked)["new", "lift"], cp.compare(LOG, **asked)["new", "optimal_dr"]
    assert (lift.value, lift.stderr) == pytest.approx((difference.value, difference.stderr), rel=1e-9)


def test_what_a_model_fills_in_is_not_undone():
    """The mean of switched weights is far from 1, and only `dr` and `sndr` leave the rest to the model."""
    found = cp.evaluate(LOG, **PARTS, target={"new": Policy(1.0)}, model="logistic", weight=cp.weights.Switch(1.2))
    names = {name for _, name, _ in found.estimates}
    assert "dr" in names
    assert not names & {"optimal_dr", "auto", "lift"}
    assert f" to {100 * found['new', 'dr'].value:.2f} per 100 rows" in str(found)  # and its change is that of `dr`, too


def test_a_model_alone_says_that_it_is_alone():
    said = str(cp.evaluate(LOG, **PARTS, target={"new": Policy(1.0)}, model="logistic", estimator="dm"))
    assert "if the reward model is right: this rests on the model alone" in said
    assert "change" not in said
    assert re.search(r"^new .* model only$", said, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("model", "do"),
    [
        (SGDClassifier(), r"Pass SGDClassifier\(loss='log_loss'\)"),
        (RidgeClassifier(), "Pass a classifier with predict_proba"),
        (SVC(), "Pass a classifier with predict_proba"),
        (make_pipeline(StandardScaler(), RidgeClassifier()), "Pass a classifier with predict_proba"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_classifier_must_say_how_likely_its_classes_are(model, do):
    with refuses(cp.OptionError):
        cp.evaluate(LOG, **PARTS, target=Policy(1.0), model=model)
    if hasattr(model, "partial_fit"):
        with pytest.raises(cp.OptionError, match=do):
            cp.models.Reward(model, stream=True)
    cp.models.Reward(make_pipeline(StandardScaler(), LogisticRegression()))
    cp.models.Reward(SGDClassifier(loss="log_loss"), stream=True)


def test_a_policy_must_add_up_to_one():
    class Half(Policy):
        def predict_proba(self, table):
            return super().predict_proba(table) / 2

    with refuses(cp.LogError):
        cp.evaluate(LOG, **PARTS, target=Half(1.0), model="logistic")


def test_values_that_no_fit_has_seen_do_no_harm():
    some = LOG.with_columns(country=pl.when(pl.int_range(pl.len()) == 3).then(pl.lit("XX")).otherwise("country"))
    odd = some.with_columns(x=pl.when(pl.int_range(pl.len()) % 50 == 0).then(None).otherwise("x"))
    for model in ("logistic", HistGradientBoostingClassifier(**TREES)):

        class Sure(Policy):
            def predict_proba(self, table):
                return np.full((len(table), ACTIONS), 1 / ACTIONS)

        result = cp.evaluate(odd, **PARTS, target=Sure(1.0), model=model)
        assert np.isfinite(result["Sure", "dr"].value)


def test_folds_without_rows_and_numbers_without_squares_do_no_harm():
    log = world(300)[0]
    target, model = {"new": Policy(1.0)}, make_pipeline(StandardScaler(), Ridge())
    found = cp.evaluate(log.head(12), **PARTS, cluster="user", target=target, model=model)  # four users, three folds
    assert np.isfinite(found["new", "dm"].value)
    few = cp.models.Reward("ridge", sample=10, folds=20, per_action=True)  # ten rows are in no more than ten folds
    assert np.isfinite(cp.evaluate(log, **PARTS, target=target, model=few)["new", "dm"].value)
    with refuses(cp.LogError):
        cp.evaluate(log.head(3), **PARTS, cluster="user", target=target, model=model)
    huge = log.with_columns(y=pl.when(pl.int_range(pl.len()) == 7).then(1e200).otherwise("y"))
    missing = log.with_columns(y=pl.when(pl.int_range(pl.len()) == 7).then(None).otherwise("y"))
    found, same = (cp.evaluate(one, **PARTS, target=cp.Probabilities("lists"), model=model) for one in (huge, missing))
    assert found["lists", "dr"].value == pytest.approx(same["lists", "dr"].value, rel=1e-12)


@pytest.mark.parametrize("where", ["x > 1000", "rows"])
@pytest.mark.parametrize("kind", ["frame", "parquet", "duckdb"])
def test_a_log_without_rows_is_said_to_have_none(tmp_path, kind, where):
    log, asked = (LOG, {"where": where}) if where != "rows" else (LOG.head(0), {})
    log = log.with_row_index("id")
    asked |= PARTS | {"key": "id"}
    if kind == "parquet":
        log.write_parquet(tmp_path / "log.parquet")
        log = tmp_path / "log.parquet"
    elif kind == "duckdb":
        duckdb = pytest.importorskip("duckdb")
        connection = duckdb.connect()
        connection.register("log", log.to_arrow())
        log = connection.table("log")
    with refuses(cp.LogError):
        cp.evaluate(log, **asked, target={"new": Policy(1.0)}, model="auto")
    with refuses(cp.LogError):
        cp.evaluate(log, **asked | {"propensity": "model"}, target="pi")


def test_times_are_no_numbers_for_a_policy_that_takes_an_array():
    log = world(100)[0].with_columns(y=pl.date(2026, 11, 1) + pl.duration(days=pl.int_range(pl.len())))
    with refuses(cp.ColumnError):
        cp.evaluate(log, **PARTS, target={"new": Policy(1.0)})


def test_unordered_rows_need_an_identity():
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()  # with it goes the relation
    relation = connection.from_arrow(LOG.drop("lists").with_row_index("id").to_arrow())
    with refuses(cp.OptionError):
        cp.evaluate(relation, **PARTS, target=Policy(1.0), model="logistic")
    found = cp.evaluate(relation, **PARTS, key="id", target=Policy(1.0), model="logistic")
    assert found["Policy", "dr"].value == pytest.approx(
        cp.evaluate(LOG.with_row_index("id"), **PARTS, target=Policy(1.0), model="logistic")["Policy", "dr"].value,
        abs=1e-7,
    )


@pytest.mark.thorough
@pytest.mark.once
def test_a_cross_fitted_model_is_unbiased_where_one_fitted_in_sample_is_not():
    """n = 500, a model that remembers its rows: the mean of DR over many logs against the truth, by the same bound for all.

    In sample the bias is 0.4 to 0.5 standard deviations of the estimate, so that 160 logs put it 5 to 7 Monte Carlo errors from 0.
    """
    runs, model = 160, DecisionTreeRegressor(min_samples_leaf=2, random_state=0)
    random = np.random.default_rng(3)
    seen = {"dr": [], "optimal_dr": [], "in-sample": []}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in random.integers(0, 2**31, runs):
            log, truth = world(500, int(seed))
            result = cp.evaluate(log, **PARTS, target=Policy(1.0), model=model)
            step, whole = result.question.model, model.__class__(**model.get_params())
            x, codes = step.context.numbers(log, is_native=step.design.is_native), step.design.actions.codes(log["a"])
            whole.fit(step.design.pairs(x, codes), log["r"].to_numpy())
            fit = Joint(whole, step.design)
            order = step.design.actions.codes(pl.Series(range(ACTIONS)))
            v = (Policy(1.0).predict_proba(log.select("x", "y").to_numpy()) * fit.table(x, order)).sum(axis=1)
            w = (log["pi"] / log["p"]).to_numpy()
            seen["in-sample"].append((v + w * (log["r"].to_numpy() - fit.pairs(x, codes))).mean() - truth)
            for name in ("dr", "optimal_dr"):
                seen[name].append(result["Policy", name].value - truth)
    z = {name: np.mean(one) / (np.std(one) / np.sqrt(runs)) for name, one in seen.items()}
    assert abs(z["dr"]) < 3.5
    assert abs(z["optimal_dr"]) < 3.5
    assert abs(z["in-sample"]) > 4


def many_actions(actions, n, *, binary, seed=0):
    """A log of so many actions, chosen evenly; the reward depends on a number and on the action."""
    random = np.random.default_rng(seed)
    x, action = random.normal(size=n), random.integers(0, actions, n)
    score = 0.7 * x + np.cos(action)
    reward = random.random(n) < 1 / (1 + np.exp(-score)) if binary else score + random.normal(size=n) / 2
    return pl.DataFrame({"x": x, "a": action, "r": reward.astype(float), "p": np.full(n, 1 / actions)})


class Tilted:
    """A softmax over any number of actions."""

    def __init__(self, actions):
        self.classes_ = np.arange(actions)

    def predict_proba(self, table):
        return softmax(np.asarray(table)[:, :1].astype(float) * np.sin(self.classes_))


def kinds_of_models(*, binary):
    """Every kind of model that `model=` takes, by what it is called in a test."""
    kinds = {
        "auto": "auto", "ridge": "ridge", "boosted": "boosted", "Ridge": Ridge(), "PoissonRegressor": PoissonRegressor(),
        "HistGradientBoosting": HistGradientBoostingRegressor(**TREES),
        "RandomForest": RandomForestRegressor(3, max_depth=3, random_state=0),
        "DecisionTree": DecisionTreeRegressor(max_depth=4, random_state=0),
        "scaled, then Ridge": make_pipeline(StandardScaler(), Ridge()),  # centers, and so takes no sparse table
        "boosted in a pipeline": make_pipeline(HistGradientBoostingRegressor(**TREES)),  # takes no sparse table, either
        "one of your own": Shares(),
        "ridge per action": cp.models.Reward("ridge", folds=2, per_action=True),
        "boosted per action": cp.models.Reward(HistGradientBoostingRegressor(**TREES), folds=2, per_action=True),
        "mrdr": cp.models.Reward("ridge", folds=2, mrdr=True),
        "streamed": cp.models.Reward(SGDRegressor(random_state=0), folds=2, stream=True),
    }  # fmt: skip
    if binary:
        kinds |= {
            "logistic": "logistic", "LogisticRegression": LogisticRegression(),
            "HistGradientBoostingClassifier": HistGradientBoostingClassifier(**TREES),
            "GaussianNB": GaussianNB(),
            "logistic per action": cp.models.Reward("logistic", folds=2, per_action=True),
            "streamed classifier": cp.models.Reward(GaussianNB(), folds=2, stream=True),
        }  # fmt: skip
    else:
        kinds.pop("PoissonRegressor")
    return kinds


class Shares(BaseEstimator, RegressorMixin):
    """Half the mean of all rewards, and half that of the rows whose last column is 1; dense tables only."""

    def fit(self, table, rewards):
        table = np.asarray(table, dtype=float)
        self.mean_, last = rewards.mean(), table[:, -1] == 1
        self.last_ = rewards[last].mean() if last.any() else self.mean_
        return self

    def predict(self, table):
        return (self.mean_ + np.where(np.asarray(table, dtype=float)[:, -1] == 1, self.last_, self.mean_)) / 2


KINDS = [(kind, binary) for binary in (True, False) for kind in kinds_of_models(binary=binary)]


@pytest.mark.parametrize(
    "actions",
    [2, 31, *(pytest.param(count, marks=[pytest.mark.once, pytest.mark.thorough]) for count in (30, 100, 1_000))],
)
@pytest.mark.parametrize(
    ("kind", "binary"), KINDS, ids=[f"{kind}, {'0 or 1' if b else 'numbers'}" for kind, b in KINDS]
)
def test_every_kind_of_model_answers_for_any_number_of_actions(kind, binary, actions):
    log = many_actions(actions, 300, binary=binary)
    model = kinds_of_models(binary=binary)[kind]
    model = model if isinstance(model, cp.models.Reward) else cp.models.Reward(model, folds=2)
    policy = Tilted(actions)
    result = cp.evaluate(log, reward="r", propensity="p", action="a", context="x", target={"new": policy}, model=model)
    found, step = columns_of(result), result.question.model
    folds = folds_of(row_ids(log, (), 0), 2)
    for row in range(0, log.height, log.height // 3):
        fit, context = step.fits[folds[row]], step.context.numbers(log[row], is_native=step.design.is_native)
        codes = step.design.actions.codes(pl.Series(policy.classes_))
        some = range(0, actions, max(actions // 4, 1))
        each = [float(fit.pairs(context, codes[a : a + 1])[0]) for a in some]
        all_at_once = fit.pairs(np.repeat(context, actions, axis=0), codes)
        np.testing.assert_allclose(all_at_once[list(some)], each, atol=1e-9)
        assert found["q"][row] == pytest.approx(all_at_once[log["a"][row]], abs=1e-6)
        assert found["new"][row] == pytest.approx(policy.predict_proba(log[[row], ["x"]])[0] @ all_at_once, abs=1e-4)


@pytest.mark.parametrize("binary", [True, False], ids=["0 or 1", "numbers"])
@pytest.mark.parametrize("actions", [30, 31])
@pytest.mark.parametrize("wrapped", [False, True], ids=["sparse", "dense"])
def test_a_linear_model_of_many_actions_is_that_of_their_columns(binary, actions, wrapped):
    """Context and a column per action, made by hand; sparse or not, for a model that centers what it gets."""
    log = many_actions(actions, 400, binary=binary)
    estimator = LogisticRegression(tol=1e-8, max_iter=2_000) if binary else Ridge(tol=1e-10)
    model = make_pipeline(StandardScaler(with_std=False), estimator) if wrapped else estimator
    result = cp.evaluate(
        log,
        reward="r",
        propensity="p",
        action="a",
        context="x",
        target={"new": Tilted(actions)},
        model=cp.models.Reward(model, folds=2),
    )
    x, r = log["x"].to_numpy(), log["r"].to_numpy()
    x = (x - x.mean()) / x.std()
    folds, pi = folds_of(row_ids(log, (), 0), 2), Tilted(actions).predict_proba(log.select("x").to_numpy())
    eye = np.eye(actions)
    q, v = np.empty(len(r)), np.empty(len(r))
    for row_fold in range(2):
        others = folds != row_fold
        fitted = estimator.fit(np.column_stack([x, eye[log["a"]]])[others], r[others])
        for row in np.flatnonzero(~others):
            table = np.column_stack([np.full(actions, x[row]), eye])
            rewards = fitted.predict_proba(table)[:, 1] if binary else fitted.predict(table)
            q[row], v[row] = rewards[log["a"][int(row)]], pi[row] @ rewards
    np.testing.assert_allclose(columns_of(result)["q"], q, atol=1e-4)
    np.testing.assert_allclose(columns_of(result)["new"], v, atol=1e-4)


class AmongCandidates:
    """Prefers high actions among the candidates of a row, more so for a high x."""

    classes_, candidates_ = np.arange(ACTIONS), "pool"

    def predict_proba(self, table, candidates=None):
        scores = np.asarray(table)[:, :1].astype(float) * self.classes_ / 2
        there = np.array([[one in pool for one in self.classes_] for pool in candidates.to_list()])
        return softmax(np.where(there, scores, -np.inf))


def candidates_log(n=600, seed=0):
    """Few contexts, so that rows share them, and candidates that differ from row to row."""
    random = np.random.default_rng(seed)
    x, country = random.integers(0, 3, n), random.choice(["DE", "FR"], n)
    pools = [sorted(random.choice(ACTIONS, 3, replace=False).tolist()) for _ in range(n)]
    action = np.array([random.choice(pool) for pool in pools])
    reward = (random.random(n) < 0.1 + 0.12 * action * (x > 0)).astype(float)
    table = AmongCandidates().predict_proba(x[:, None], pl.Series(pools))
    return pl.DataFrame(
        {"x": x, "country": country, "a": action, "r": reward, "p": np.full(n, 1 / 3), "pool": pools}
    ).with_columns(pi=table[np.arange(n), action], lists=pl.Series(table.tolist()))


@pytest.mark.parametrize("kind", list(kinds_of_models(binary=True)))
def test_a_policy_is_asked_about_the_candidates_of_every_row(kind):
    log = candidates_log(400)
    model = kinds_of_models(binary=True)[kind]
    model = model if isinstance(model, cp.models.Reward) else cp.models.Reward(model, folds=2)
    parts = {"reward": "r", "propensity": "p", "action": "a", "context": ["x", "country"]}
    result = cp.evaluate(log, **parts, candidates="pool", model=model, target={"new": AmongCandidates()})
    plain = cp.evaluate(log, **parts, target={"new": "pi"})
    assert result["new", "ips"].value == pytest.approx(plain["new", "ips"].value, abs=1e-9)
    listed = cp.evaluate(log, **parts, model=model, target={"new": cp.Probabilities("lists")})
    for name in ("q", "new"):
        np.testing.assert_allclose(columns_of(result)[name], columns_of(listed)[name], atol=1e-5)
    step, folds = result.question.model, folds_of(row_ids(log, (), 0), 2)
    value = columns_of(result)["new"]
    codes = step.design.actions.codes(pl.Series(np.arange(ACTIONS)))
    for row in range(0, log.height, 80):  # a plain loop
        x = step.context.numbers(log[row], is_native=step.design.is_native)
        each = [float(step.fits[folds[row]].pairs(x, codes[a : a + 1])[0]) for a in range(ACTIONS)]
        assert value[row] == pytest.approx(np.dot(log["lists"][row].to_list(), each), abs=1e-4)


class DrawsLots:
    """Takes one action at random, whatever the context: rows that look the same get different answers."""

    classes_ = np.arange(ACTIONS)

    def __init__(self):
        self.random = np.random.default_rng(0)

    def predict_proba(self, table):
        return np.eye(ACTIONS)[self.random.integers(0, ACTIONS, len(table))]


def test_a_policy_that_draws_lots_draws_for_every_row():
    log = candidates_log(2_000)
    parts = {"reward": "r", "propensity": "p", "action": "a", "context": ["x", "country"]}
    result = cp.evaluate(log, **parts, model="ridge", target={"new": DrawsLots()})
    t = over_good_rows(result.question, lambda batches: pl.concat(list(batches)))["t0"]
    alike = log.with_columns(t, fold=pl.Series(folds_of(row_ids(log, (), 0), 5))).group_by("x", "country", "a", "fold")
    several = alike.agg(pl.col("t0").mean(), n=pl.len()).filter(pl.col("n") >= 15)["t0"]
    assert (
        several.is_between(0.0, 1.0, closed="none").mean() > 0.8
    )  # one draw per context would make each of them 0 or 1


def test_a_policy_of_few_contexts_is_asked_few_times():
    """What makes models fast on logs whose contexts repeat: the policy sees every context about once in every fold."""
    rows = []

    class Counts(Policy):
        def predict_proba(self, table):
            rows.append(len(table))
            return super().predict_proba(table)

    log = candidates_log(2_000)
    parts = {"reward": "r", "propensity": "p", "action": "a", "context": ["x", "x * 2"]}
    cp.evaluate(log, **parts, model="ridge", target={"new": Counts(1.0)})
    # contexts × folds, and those asked twice; once more because weights are off, and by the check of its actions
    assert sum(rows) <= 2 * (3 * 5 + 200) + 4


def test_candidates_that_nobody_looks_at_are_refused():
    """A policy that cannot be shown them, with a model or without, and a model of propensities."""
    log = candidates_log(300)
    parts = {"reward": "r", "propensity": "p", "action": "a", "context": ["x", "y"]}
    log = log.with_columns(y=0.5)
    for extra in ({}, {"model": "ridge"}):
        with refuses(cp.OptionError):
            cp.evaluate(log, **parts, **extra, candidates="pool", target={"new": Policy(1.0)})
    with refuses(cp.OptionError):
        cp.evaluate(log, **(parts | {"propensity": "model"}), candidates="pool", target={"new": AmongCandidates()})
    cp.evaluate(log, **parts, candidates="pool", target={"new": "pi"})  # a column knows


@pytest.mark.parametrize("mrdr", [False, True])
@pytest.mark.parametrize("folds", [2, 5])
def test_ridges_from_the_folds_scatter_are_scikit_learns(folds, mrdr):
    """An estimator of one's own is fitted as it comes, fold by fold; `"ridge"` is solved from sums."""
    given, named = (cp.models.Reward(each, folds=folds, mrdr=mrdr) for each in (Ridge(), "ridge"))
    expected = cp.evaluate(LOG, **PARTS, target={"new": Policy(1.0)}, model=given)
    made = cp.evaluate(LOG, **PARTS, target={"new": Policy(1.0)}, model=named)
    for key, estimate in expected.estimates.items():
        assert made[key].value == pytest.approx(estimate.value, rel=1e-12), key
        assert made[key].stderr == pytest.approx(estimate.stderr, rel=1e-11), key
