"""Propensities that were not logged: the model's numbers by hand, its effect on the errors, and what the answers say of it."""

import itertools
import json
import pickle
from dataclasses import replace

import jsonschema
import numpy as np
import polars as pl
import pytest
from doubts import codes
from messages import refuses
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.tree import DecisionTreeClassifier
from typer.testing import CliRunner

import counterpoise as cp
from counterpoise.cli import app
from counterpoise.display import as_text
from counterpoise.engines.rows import over_good_rows
from counterpoise.estimators import ESTIMATORS, gradient
from counterpoise.evaluation.showing import evaluation, schema
from counterpoise.log.columns import PROPENSITY
from counterpoise.log.groups import folds_of
from counterpoise.models.propensity import sharpen, sharpness_of
from counterpoise.moments import Moments
from counterpoise.moments.weighed import Estimated

pytestmark = pytest.mark.once

ACTIONS = 4
PARTS = {"reward": "r", "action": "a", "context": ["x", "y"]}
PLAIN = cp.models.Propensity(LogisticRegression(), calibrate=False, floor=1e-6)


def softmax(scores):
    e = np.exp(scores - scores.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def world(n, seed=0, level=0.0):
    """A log whose logging policy is a softmax of its context; its rewards are around a level."""
    random = np.random.default_rng(seed)
    x, y = random.normal(size=n), random.normal(size=n)
    p = softmax(0.5 * np.outer(x, np.arange(ACTIONS)) - 0.4 * np.outer(y, np.arange(ACTIONS) % 2))
    t = softmax(0.3 * np.outer(y, np.arange(ACTIONS)))
    action = np.minimum((p.cumsum(axis=1) < random.random(n)[:, None]).sum(axis=1), ACTIONS - 1)
    rows = np.arange(n)
    reward = level + 0.5 * x + 0.2 * action + random.normal(size=n)
    return pl.DataFrame(
        {"x": x, "y": y, "a": action, "r": reward, "p": p[rows, action], "pi": t[rows, action], "user": rows // 3}
    )


LOG = world(1_200)


def propensities_of(result):
    """The propensities behind a result, row by row."""
    question = result.asked()
    return over_good_rows(question, lambda batches: pl.concat(list(batches)).get_column(PROPENSITY).to_numpy())


def by_hand(log, ids, folds=5):
    """A plain loop over folds."""
    x, a = log.select("x", "y").to_numpy(), log.get_column("a").to_numpy()
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    fold = folds_of(pl.Series(ids), folds)
    table = np.empty((len(a), ACTIONS))
    for k in range(folds):
        table[fold == k] = LogisticRegression().fit(x[fold != k], a[fold != k]).predict_proba(x[fold == k])
    return table, a


def test_every_row_is_predicted_by_a_model_of_other_folds():
    result = cp.evaluate(LOG, **PARTS, propensity=PLAIN, target="pi")
    table, a = by_hand(LOG, np.arange(LOG.height))
    expected = table[np.arange(len(a)), a]
    # actions are numbered by how often they occur, which moves where the solver stops
    np.testing.assert_allclose(propensities_of(result), expected, rtol=2e-3)
    w = LOG["pi"].to_numpy() / propensities_of(result)
    assert result["pi", "ips"].value == pytest.approx((w * LOG["r"].to_numpy()).mean(), rel=1e-12)


def test_folds_are_of_clusters():
    result = cp.evaluate(LOG, **PARTS, propensity=PLAIN, target="pi", cluster="user")
    table, a = by_hand(LOG, LOG["user"].to_numpy())
    np.testing.assert_allclose(propensities_of(result), table[np.arange(len(a)), a], rtol=2e-3)


def factor_by_hand(log, result, name, *, inside, cluster, logged):
    """The error of what the scores leave of an estimate's rows, over that of the rows themselves: in plain loops, cluster by cluster."""
    a, n = log.get_column("a").to_numpy(), log.height
    x = log.select("x", "y").to_numpy()
    x = (x - x[~logged].mean(axis=0)) / x[~logged].std(axis=0)
    fold = folds_of(pl.Series(log.get_column(cluster) if cluster else np.arange(n)), 5)
    table = np.empty((n, ACTIONS))
    for k in range(5):
        rest = (fold != k) & ~logged
        table[fold == k] = LogisticRegression().fit(x[rest], a[rest]).predict_proba(x[fold == k])
    p, r = propensities_of(result), log.get_column("r").to_numpy()
    w = log.get_column("pi").to_numpy() / p
    estimate = result["pi", name, "in"] if not inside.all() else result["pi", name]
    z, g = (w * r, w * r) if name == "ips" else ((w - 1) * (r - estimate.baseline), w * (r - estimate.baseline))
    z = np.where(inside, z - z[inside].mean(), 0.0) / inside.mean()
    follows = ~logged & (p > result.asked().propensity_model.floor)
    g = np.where(inside & follows, g, 0.0) / inside.mean()
    scores = np.array(
        [np.outer((np.arange(ACTIONS) == a[i]) - table[i], [1, *x[i]])[1:].ravel() * (not logged[i]) for i in range(n)]
    )
    unit = log.get_column(cluster).to_numpy() if cluster else np.arange(n)
    half = np.random.default_rng(0).permutation(len(np.unique(unit)))[unit] % 5
    taken = np.empty(n)
    for k in range(5):
        square = sum(np.outer(s, s) for s in scores[half != k])
        taken[half == k] = scores[half == k] @ np.linalg.solve(square, scores[half != k].T @ g[half != k])
    left = z - (taken - taken.mean())
    sums = np.array([(z[unit == c].sum(), left[unit == c].sum()) for c in np.unique(unit)])
    before, after = np.square(sums).sum(axis=0)
    return np.sqrt(after / before)


@pytest.mark.parametrize("case", ["plain", "cluster", "segment", "partly", "floor"])
def test_the_error_is_that_of_what_the_scores_leave(case):
    """The stacked influence function of ips and lift, row by row."""
    log = LOG.with_columns(pl.when(pl.col("x") > 0.5).then(pl.lit("in")).otherwise(pl.lit("out")).alias("s"))
    # rows of a user are alike, so that errors by row and by user differ
    log = log.with_columns(pl.col("r") + 2 * (pl.col("user") % 7))
    logged = log.get_column("y").to_numpy() > 0.5 if case == "partly" else np.zeros(log.height, dtype=bool)
    log = log.with_columns(pl.when(pl.Series(logged)).then(pl.col("p")).alias("logged"))
    cluster = "user" if case == "cluster" else None
    segment = "s" if case == "segment" else None
    model = cp.models.Propensity(
        LogisticRegression(),
        calibrate=False,
        floor=0.15 if case == "floor" else 1e-6,
        column="logged" if case == "partly" else None,
    )
    asked = {"target": "pi", "estimator": ["ips", "lift"], "segment": segment, "cluster": cluster}
    result = cp.evaluate(log, **PARTS, propensity=model, **asked)
    known = cp.evaluate(log.with_columns(pl.Series("p", propensities_of(result))), reward="r", propensity="p", **asked)
    inside = log.get_column("s").to_numpy() == "in" if case == "segment" else np.ones(log.height, dtype=bool)
    place = ("in",) if case == "segment" else ()
    for name in ("ips", "lift"):
        expected = factor_by_hand(log, result, name, inside=inside, cluster=cluster, logged=logged)
        found = result["pi", name, *place].stderr / known["pi", name, *place].stderr
        assert found == pytest.approx(expected, rel=5e-3), name


@pytest.mark.thorough
def test_errors_are_those_seen_over_many_logs():
    """Rewards far from 0: with logged propensities ips is noisy, and estimated ones take most of that noise away."""
    found, known = [], []
    for seed in range(40):
        log = world(600, seed, level=5.0)
        one = cp.evaluate(log, **PARTS, propensity="model", target="pi", estimator="ips")["pi", "ips"]
        found.append((one.value, one.stderr))
        known.append(cp.evaluate(log, reward="r", propensity="p", target="pi", estimator="ips")["pi", "ips"].stderr)
    values, errors = np.array(found).T
    noise = 1 / np.sqrt(2 * len(found))  # of a spread
    assert abs(np.log(errors.mean() / values.std())) < 3 * noise
    assert np.mean(known) > 1.5 * errors.mean()


@pytest.mark.parametrize("name", [name for name, one in ESTIMATORS.items() if one.needs != "context"])
def test_slopes_give_the_error_of_every_estimator(name):
    random = np.random.default_rng(0)
    w, r = random.exponential(size=(2, 3, 200))
    q, v = 0.5 * r + random.normal(size=(2, 3, 200))
    groups = Moments.stack([Moments.of(w[k], r[k], model_reward=q[k], model_value=v[k]) for k in range(3)])
    moments = groups if ESTIMATORS[name].needs == "groups" else groups.merge(axis=0)
    a, whole = gradient(ESTIMATORS[name], moments), groups.merge(axis=0)
    if name in ("cross_fit", "auto"):  # groups with baselines of their own, and an error with a bias in it
        assert np.sqrt(a @ whole.scatter @ a) / whole.n == pytest.approx(ESTIMATORS[name](moments).stderr, rel=0.02)
    else:
        assert np.sqrt(a @ whole.scatter @ a) / whole.n == pytest.approx(ESTIMATORS[name](moments).stderr, rel=1e-6)


def test_calibration_is_the_likeliestsharpness_of():
    random = np.random.default_rng(0)
    truth = softmax(random.normal(size=(4_000, 3)))
    codes = (truth.cumsum(axis=1) > random.random(4_000)[:, None]).argmax(axis=1)
    shares = np.bincount(codes) / 4_000
    too_sure = sharpen(truth, shares, 2.0)
    found = sharpness_of(too_sure, codes, shares)
    likelihood = [
        np.log(sharpen(too_sure, shares, c)[np.arange(4_000), codes]).sum() for c in (found - 0.02, found, found + 0.02)
    ]
    assert max(likelihood) == likelihood[1]
    assert abs(found - 0.5) < 0.1


def test_doors_agree(tmp_path):
    LOG.with_row_index("id").write_parquet(tmp_path / "log.parquet")
    asked = {**PARTS, "propensity": "model", "target": "pi", "cluster": "user"}
    expected = cp.evaluate(LOG, **asked)
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    path = tmp_path / "log.parquet"
    for data in (
        LOG.lazy(),
        LOG.to_pandas(),
        {name: LOG[name].to_numpy() for name in LOG.columns},
        str(path),
        connection.sql(f"SELECT * FROM '{path}' ORDER BY id"),
    ):
        found = cp.evaluate(data, **asked)
        for name in ("ips", "beta_ips", "lift"):
            assert found["pi", name].value == pytest.approx(expected["pi", name].value, abs=1e-6)
            assert found["pi", name].stderr == pytest.approx(expected["pi", name].stderr, rel=1e-3)


def test_arrays_without_a_log():
    parts = {"reward": LOG["r"].to_numpy(), "action": LOG["a"].to_numpy(), "context": LOG.select("x", "y").to_numpy()}
    half = np.where(np.arange(LOG.height) % 2, LOG["p"].to_numpy(), np.nan)
    for propensity in ("model", cp.models.Propensity(column=half)):
        found = cp.evaluate(**parts, propensity=propensity, target=LOG["pi"].to_numpy())
        assert found.verdict().verdict == "caution"
    np.testing.assert_array_equal(propensities_of(found)[1::2], LOG["p"].to_numpy()[1::2])


def test_logged_propensities_stay_and_the_model_learns_from_the_other_rows():
    half = LOG.with_columns(pl.when(pl.col("y") > 0).then(pl.col("p")).alias("logged"))
    model = cp.models.Propensity(LogisticRegression(), column="logged")
    result = cp.evaluate(half, **PARTS, propensity=model, target="pi")
    found, logged = propensities_of(result), half["y"].to_numpy() > 0
    np.testing.assert_array_equal(found[logged], LOG["p"].to_numpy()[logged])
    assert result.propensity_model.rows == (~logged).sum()
    assert result.propensity_model.logged == logged.sum()
    # what the other rows did changes nothing
    odd = half.with_columns(pl.when(pl.col("y") > 0).then(3 - pl.col("a")).otherwise(pl.col("a")).alias("a"))
    np.testing.assert_allclose(
        propensities_of(cp.evaluate(odd, **PARTS, propensity=model, target="pi"))[~logged], found[~logged], rtol=1e-9
    )
    with refuses(cp.LogError):
        cp.evaluate(LOG, **PARTS, propensity=cp.models.Propensity(column="p"), target="pi")
    wrong = half.with_columns(pl.when(pl.col("y") > 0).then(2.0).alias("logged"))
    with refuses(cp.LogError):
        cp.evaluate(wrong, **PARTS, propensity=model, target="pi")


def test_the_verdict_rests_on_the_model():
    result = cp.evaluate(LOG, **PARTS, propensity="model", target="pi", segment="a")
    assert result.verdict().verdict == "caution"
    assert "estimated-propensities" in codes(result.verdict())
    assert {one.verdict for one in result.verdicts.values()} <= {"caution", "not identified"}
    comparison = cp.compare(LOG, **PARTS, propensity="model", target="pi")
    assert comparison.verdict().verdict == "caution"
    assert cp.rank(comparison)[0].decision == "undecided"
    again = cp.evaluate(cp.LogMoments.from_json(result.moments.to_json()))
    assert str(again.verdict()) == str(result.verdict())
    assert again["pi", "snips", 1].stderr == result["pi", "snips", 1].stderr
    assert pickle.loads(pickle.dumps(result)).propensity_model == result.propensity_model


def test_a_segment_of_all_rows_has_the_error_of_the_whole():
    result = cp.evaluate(
        LOG.with_columns(pl.lit("all").alias("s")), **PARTS, propensity="model", target="pi", segment="s"
    )
    for name in ("ips", "lift"):
        assert result["pi", name, "all"].stderr == pytest.approx(result["pi", name].stderr, rel=1e-9)


def test_a_sample_has_the_error_of_its_size():
    """A model of few rows adds the error that few rows leave."""
    whole = world(20_000, level=5.0)
    all_rows, few = (
        cp.evaluate(whole, **PARTS, propensity=cp.models.Propensity(sample=n), target="pi", estimator="ips")[
            "pi", "ips"
        ]
        for n in (20_000, 1_000)
    )
    logged = cp.evaluate(whole, reward="r", propensity="p", target="pi", estimator="ips")["pi", "ips"]
    assert all_rows.stderr < logged.stderr < few.stderr


def test_moments_of_days_add_up():
    days = [cp.evaluate(world(800, seed, level=seed), **PARTS, propensity="model", target="pi") for seed in (0, 3)]
    both = cp.evaluate(days[0].moments + days[1].moments)["pi", "ips"]
    assert both.stderr < max(day["pi", "ips"].stderr for day in days)
    logged = cp.evaluate(LOG, reward="r", propensity="p", target="pi")
    with refuses(cp.MomentsError):
        days[0].moments + logged.moments


def test_another_center_changes_no_factor():
    random = np.random.default_rng(0)
    half = random.normal(size=(50, 6))
    one = Estimated("m", 50, 100, 2.0, {("t", ""): {None: half.T @ half}})
    a = np.array([0.7, 1.0, 1.0])  # u, s, us around 2
    around = np.array([0.7 - 1.5, 1.0, 1.0])  # the same rows around 0.5: u·s has grown by 1.5·u
    assert one.recenter(0.5).factor(("t", ""), None, around) == pytest.approx(one.factor(("t", ""), None, a), rel=1e-12)


def test_a_state_knows_its_model(tmp_path):
    state = tmp_path / "state.json"
    for seed in (0, 1):
        cp.evaluate(world(600, seed), **PARTS, propensity="model", target="pi", state=state, batch=str(seed))
    stored = cp.evaluate(state=state)
    assert stored.n == 1_200
    assert stored.verdict().verdict == "caution"
    for other in (cp.models.Propensity(LogisticRegression(C=2.0)), "p"):
        with refuses(cp.MomentsError):
            cp.evaluate(world(600, 2), **PARTS, propensity=other, target="pi", state=state, batch="2")


def test_a_reward_model_beside_it():
    class Policy:
        classes_ = np.arange(ACTIONS)

        def predict_proba(self, table):
            return softmax(0.3 * np.outer(table[:, 1], np.arange(ACTIONS)))

    for target in (Policy(), cp.Chosen("a")):
        result = cp.evaluate(LOG, **PARTS, propensity="model", target={"new": target}, model="ridge")
        logged = cp.evaluate(LOG, **PARTS, propensity="p", target={"new": target}, model="ridge")
        assert abs(result["new", "dr"].value - logged["new", "dr"].value) < 3 * logged["new", "dr"].stderr
        assert result["new", "dr"].stderr < 1.2 * logged["new", "dr"].stderr
        assert result["new", "dm"].stderr == pytest.approx(logged["new", "dm"].stderr)
    compared = cp.compare(LOG, **PARTS, propensity="model", target={"new": Policy()}, model="ridge")
    assert compared.verdict().verdict == "caution"


def test_a_confounder_left_out_puts_the_answer_off():
    random = np.random.default_rng(0)
    n = 20_000
    x, hidden = random.normal(size=n), random.normal(size=n)
    action = (random.random(n) < 1 / (1 + np.exp(-x - hidden))).astype(int)
    log = {"x": x, "y": hidden, "a": action, "r": hidden + action + random.normal(size=n), "pi": action * 1.0}
    parts = {"reward": "r", "action": "a", "propensity": "model", "target": "pi"}
    right, wrong = (cp.evaluate(log, **parts, context=context)["pi", "snips"] for context in (["x", "y"], ["x"]))
    assert abs(right.value - 1.0) < 4 * right.stderr
    assert wrong.value - 1.0 > 10 * wrong.stderr


def test_quality_tells_calibration_and_overlap():
    quality = cp.evaluate(world(4_000), **PARTS, propensity="model", target="pi").propensity_model
    assert quality.log_loss < quality.log_loss_of_shares
    assert sum(one.rows for one in quality.calibration) == 4_000 * ACTIONS
    for one in quality.calibration:
        assert abs(one.predicted - one.observed) < 4 * np.sqrt(one.predicted / one.rows) + 0.01
    assert quality.quantiles[0][1] >= quality.floor
    assert 0 < quality.effective_rows < quality.rows
    assert "LogisticRegression of x, y" in str(quality)


def test_the_report_and_the_document_show_the_model(tmp_path):
    result = cp.evaluate(LOG, **PARTS, propensity="model", target="pi")
    page = result.report(tmp_path / "report.html").read_text()
    assert "The propensity model" in page
    assert "Calibration" in page
    assert "counterpoise propensity" not in page
    jsonschema.validate(json.loads(as_text(evaluation(result))), schema())


def test_the_command_line(tmp_path):
    path = tmp_path / "log.parquet"
    LOG.drop("p").with_columns(pl.when(pl.col("y") > 0).then(0.25).alias("partly")).write_parquet(path)
    command = [str(path), "--reward", "r", "--action", "a", "--context", "x", "--context", "y", "--target", "pi"]
    run = CliRunner().invoke
    found = run(app, ["evaluate", *command, "--propensity-model", "logistic", "--json"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["propensity_model"]["model"] == "LogisticRegression"
    partly = run(app, ["compare", *command, "--propensity", "partly", "--propensity-model", "logistic"])
    assert partly.exit_code == 0, partly.output
    assert "rests on" in " ".join(partly.output.split())
    wrong = run(app, ["evaluate", *command, "--propensity-model", "forest"])
    assert wrong.exit_code == 2


class Gaps(LogisticRegression):
    """A model that does not know."""

    def predict_proba(self, X):  # noqa: N803 - scikit-learn's name
        return np.full((len(X), len(self.classes_)), np.nan)


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"context": None}, cp.OptionError, "context"),
        ({"action": None}, cp.OptionError, "action"),
        ({"propensity": cp.models.Propensity(Gaps())}, cp.LogError, "must predict probabilities"),
        ({"weight": "pi", "target": None}, cp.OptionError, "leave out the propensity model"),
        ({"weight": cp.weights.Slope(cp.weights.Clip)}, cp.OptionError, "ladder"),
        ({"interval": "log_smoothing"}, cp.OptionError, "propensity model"),
        ({"action": "same"}, cp.LogError, "no choice to model"),
        ({"action": "rare"}, cp.LogError, "occurs only in fold"),
        ({"cluster": "same"}, cp.LogError, "fold"),
        ({"context": "nested"}, cp.ColumnError, "models and policies take numbers"),
    ],
)
def test_bad_input_is_an_error(changed, error, said):
    log = LOG.with_columns(
        pl.col("r").abs(),
        pl.lit(1).alias("same"),
        pl.when(pl.int_range(pl.len()) == 7).then(99).otherwise(pl.col("a")).alias("rare"),
        pl.struct("x", "y").alias("nested"),
    )
    with pytest.raises(error, match=said):
        cp.evaluate(log, **{**PARTS, "propensity": "model", "target": "pi"} | changed)


ONE = (pl.col("a") == 2) & ((pl.col("a") == 2).cum_sum() == 1)  # the first row with this action


@pytest.mark.parametrize(
    ("logged", "said"),
    [
        (pl.when(pl.col("a") != 2).then("p"), "every row without a propensity in 'p' has the action '2' in 'a': there is no"),
        (pl.when((pl.col("a") > 1) & ~ONE).then("p"), "among the rows without a propensity in 'p', the action '2' occurs only in"),
        (pl.when(pl.int_range(pl.len()) > 1).then("p"), "no row without a propensity in 'p' is in fold"),
        (pl.when(pl.col("y") > 0).then("p").otherwise(0.0), r"value that is no probability.*first is 0.*nullif\(p, 0\)"),
    ],
)  # fmt: skip
def test_errors_are_about_the_rows_without_a_propensity(logged, said):
    model = cp.models.Propensity(column="p")
    with pytest.raises(cp.LogError, match=said):
        cp.evaluate(LOG.with_columns(p=logged), **PARTS, propensity=model, target="pi")


def test_a_value_for_unknown_is_made_null_by_an_expression():
    known = pl.when(pl.col("y") > 0).then("p")
    found, expected = (
        cp.evaluate(LOG.with_columns(p=p), **PARTS, propensity=cp.models.Propensity(column=column), target="pi")
        for p, column in ((known.otherwise(0.0), "nullif(p, 0)"), (known, "p"))
    )
    assert found["pi", "ips"].value == expected["pi", "ips"].value


@pytest.mark.parametrize(
    "made",
    [
        lambda: cp.models.Propensity(Ridge()),
        lambda: cp.models.Propensity(LogisticRegression),
        lambda: cp.models.Propensity("forest"),
        lambda: cp.models.Propensity(folds=1),
        lambda: cp.models.Propensity(floor=0.0),
    ],
)
def test_what_is_no_model_is_an_error(made):
    with pytest.raises(cp.OptionError):
        made()


def test_what_cannot_take_a_model_says_so():
    with refuses(cp.OptionError):
        cp.distribution(LOG, **PARTS, propensity="model", target="pi")
    with refuses(cp.OptionError):
        cp.sql("log", **PARTS, propensity="model", target="pi", dialect="duckdb")


def test_sensitivity_at_one_holds_the_interval_of_evaluate():
    """Wrong by no factor leaves the error of the estimated propensities, which the interval of `evaluate` has in it."""
    for seed, cluster in ((0, None), (1, "user"), (2, None)):
        log = world(1_200, seed).with_columns((0.5 * pl.col("pi") + 0.5 / ACTIONS).alias("other"))
        asked = PARTS | {"propensity": "model", "target": "pi", "cluster": cluster}
        result, pair = cp.evaluate(log, **asked), cp.compare(log, **asked, against="other")
        found, both = cp.sensitivity(log, **asked), pair.sensitivity()
        bounds = found.bounds(1.0)
        for inner, outer in (
            (result["pi", "lift"].interval, bounds.lift_interval),
            (result["pi", "snips"].interval, bounds.value_interval),
            (pair.interval, both.bounds(1.0).lift_interval),
        ):
            assert outer.lower <= inner.lower + 1e-12
            assert outer.upper >= inner.upper - 1e-12
            assert outer.width < 1.2 * inner.width
        assert result.sensitivity().bounds(1.0).lift_interval.lower == pytest.approx(bounds.lift_interval.lower)
        assert found.verdict().verdict == result.verdict().verdict == "caution"


def test_odd_contexts_are_no_problem():
    odd = LOG.with_columns(
        pl.lit(3.0).alias("constant"),
        pl.when(pl.col("x") > 0).then(pl.col("x")).alias("x"),
        pl.when(pl.col("y") > 1).then(pl.lit("high")).otherwise(pl.lit("low")).alias("y"),
    )
    result = cp.evaluate(odd, **PARTS | {"context": ["x", "y", "constant"]}, propensity="model", target="pi")
    assert np.isfinite(result["pi", "beta_ips"].stderr)
    alone = cp.evaluate(odd, **PARTS | {"context": "constant"}, propensity="model", target="pi")
    shares = LOG["a"].value_counts(normalize=True).sort("a")["proportion"].to_numpy()
    np.testing.assert_allclose(propensities_of(alone), shares[LOG["a"].to_numpy()], rtol=0.02)


def test_rows_without_an_action_are_bad_rows():
    gaps = LOG.with_columns(pl.when(pl.int_range(pl.len()) != 5).then(pl.col("a")).alias("a"))
    with refuses(cp.LogError):
        cp.evaluate(gaps, **PARTS, propensity="model", target="pi")
    result = cp.evaluate(gaps, **PARTS, propensity="model", target="pi", drop_bad_rows=True)
    assert result.n == LOG.height - 1


def test_other_classifiers_have_errors_as_if_known():
    result = cp.evaluate(LOG, **PARTS, propensity=cp.models.Propensity(DummyClassifier()), target="pi")
    assert not result.moments.estimated.covariances
    p = propensities_of(result)
    known = cp.evaluate(LOG.with_columns(pl.Series("p", p)), reward="r", propensity="p", target="pi")
    assert result["pi", "ips"].stderr == pytest.approx(known["pi", "ips"].stderr)


def test_the_doctor_takes_a_log_without_propensities():
    found = cp.doctor(LOG.drop("p"), **PARTS, propensity="model", target=["pi"])
    assert found.rows == LOG.height


def refitted_by_hand(log, result, name, *, logged):
    """The jackknife's error with models that are fitted again, over the one with the propensities as they are: in plain loops."""
    x, a = log.select("x", "y").to_numpy(), log.get_column("a").to_numpy()
    x = (x - x[~logged].mean(axis=0)) / x[~logged].std(axis=0)
    n, fold, p = log.height, folds_of(pl.Series(np.arange(log.height)), 5), propensities_of(result)
    group = np.random.default_rng(0).permutation(n) % 20
    t, r, estimate = log.get_column("pi").to_numpy(), log.get_column("r").to_numpy(), result["pi", name]
    means = []
    for g in range(20):
        own, kept = p.copy(), group != g
        for k in range(5):
            rest, mine = (fold != k) & kept & ~logged, (fold == k) & ~logged
            table = LogisticRegression().fit(x[rest], a[rest]).predict_proba(x[mine])
            own[mine] = table[np.arange(mine.sum()), a[mine]]
        z = [w * r if name == "ips" else (w - 1) * (r - estimate.baseline) for w in (t / p, t / own)]
        means.append([one[kept].mean() for one in z])
    plain, again = np.var(means, axis=0)
    return np.sqrt(again / plain)


def test_the_error_of_a_jackknife_is_that_of_models_fitted_again():
    few = LOG.head(500)
    logged = few.get_column("y").to_numpy() > 0.8
    log = few.with_columns(pl.when(pl.Series(logged)).then(pl.col("p")).alias("logged"))
    model = replace(PLAIN, error="refit", column="logged")
    asked = {"target": "pi", "estimator": ["ips", "lift"]}
    result = cp.evaluate(log, **PARTS, propensity=model, **asked)
    known = cp.evaluate(log.with_columns(pl.Series("p", propensities_of(result))), reward="r", propensity="p", **asked)
    for name in ("ips", "lift"):
        expected = refitted_by_hand(log, result, name, logged=logged)
        assert result["pi", name].stderr / known["pi", name].stderr == pytest.approx(expected, rel=1e-3)


def test_refitting_says_what_the_scores_say_and_works_for_trees_clusters_and_segments():
    log = world(1_200, seed=2, level=3.0).with_columns(pl.when(pl.col("x") > 0).then(pl.lit("in")).alias("s"))
    names = ["ips", "snips", "lift"]
    asked = PARTS | {"target": "pi", "estimator": names, "segment": "s"}
    scores, again = (
        cp.evaluate(log, **asked, propensity=cp.models.Propensity(error=error)) for error in ("scores", "refit")
    )
    for name, place in itertools.product(names, [(), ("in",)]):
        ratio = again["pi", name, *place].stderr / scores["pi", name, *place].stderr
        assert abs(np.log(ratio)) < 3 / np.sqrt(2 * 19), (name, place)  # what 20 groups know of a variance
    log = log.head(600)
    model = cp.models.Propensity(DecisionTreeClassifier(min_samples_leaf=30), error="refit")
    result = cp.evaluate(log, **PARTS, propensity=model, target="pi", cluster="user")
    known = cp.evaluate(log, **PARTS, propensity=replace(model, error="scores"), target="pi", cluster="user")
    assert result["pi", "ips"].stderr != known["pi", "ips"].stderr
    assert result["pi", "ips"].value == known["pi", "ips"].value
    with refuses(cp.OptionError):
        cp.models.Propensity(error="bootstrap")


def test_a_list_is_as_many_columns():
    log = LOG.with_columns(pl.concat_list("x", "y").alias("nested"))
    asked = PARTS | {"propensity": "model", "target": "pi"}
    listed, apart = (cp.evaluate(log, **asked | {"context": one}) for one in ("nested", ["x", "y"]))
    # lists are not standardized, which a classifier without much of a penalty hardly notices
    assert listed["pi", "beta_ips"].value == pytest.approx(apart["pi", "beta_ips"].value, rel=1e-2)
    assert listed["pi", "beta_ips"].stderr == pytest.approx(apart["pi", "beta_ips"].stderr, rel=1e-2)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"target": "pi", "baseline": ["x"]}, "baseline= takes propensities as logged.*model='auto' instead"),
        ({"target": cp.ActionGroup("pi", "p")}, "ActionGroup takes propensities as logged"),
        ({"target": {"new": cp.ActionGroup("pi", "p")}}, "ActionGroup takes propensities as logged"),
    ],
)
def test_what_needs_logged_propensities_is_refused(more, said):
    log = pl.DataFrame({"r": [1.0, 0.0], "a": [0, 1], "x": [0.1, 0.2], "p": [0.5, 0.5], "pi": [0.5, 0.5]})
    for model in ("model", cp.models.Propensity()):
        with pytest.raises(cp.OptionError, match=said):
            cp.evaluate(log, reward="r", action="a", context=["x"], propensity=model, **more)
