"""Python policies: the same numbers as the column of their probabilities, and errors that name the batch."""

import numpy as np
import planted
import polars as pl
import pytest
from messages import refuses
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

import counterpoise as cp
from counterpoise.readers import frames

QUESTION = {k: v for k, v in planted.POLICY.items() if k != "key"}


def softmax(batch):
    """A policy of its own: actions 0, 1, 2 with weights 1, e^x0 and e^x1."""
    x0, x1, action = (batch.column(name).to_numpy() for name in ("x0", "x1", "action"))
    scores = np.exp(np.stack([np.zeros(len(x0)), x0, x1], axis=1))
    return scores[np.arange(len(x0)), action] / scores.sum(axis=1)


@pytest.fixture(scope="module")
def log():
    return planted.a_log()


def with_column(log, policy):
    x = log.select("x0", "x1").to_numpy()
    table = policy.predict_proba(x)
    place = {action: k for k, action in enumerate(policy.classes_.tolist())}
    chosen = [row[place[action]] if action in place else 0.0 for row, action in zip(table, log["action"], strict=True)]
    return log.with_columns(clf=pl.Series(chosen))


@pytest.mark.parametrize("batch", [10_000, 700])
@pytest.mark.parametrize("source", ["frame", "lazy", "pandas", "parquet", "duckdb"])
def test_a_classifier_is_the_column_of_its_probabilities(log, tmp_path, monkeypatch, source, batch):
    monkeypatch.setattr(frames, "BATCH", batch)
    policy = planted.a_policy(log)
    expected = cp.evaluate(with_column(log, policy), **QUESTION | {"context": None, "action": None}, target="clf")
    if source == "parquet":
        log.write_parquet(tmp_path / "log.parquet")
    if source == "duckdb":
        duckdb = pytest.importorskip("duckdb")
    place = {
        "frame": lambda: log,
        "lazy": log.lazy,
        "pandas": log.to_pandas,
        "parquet": lambda: tmp_path / "log.parquet",
        "duckdb": lambda: duckdb.from_arrow(log.to_arrow()),
    }[source]()
    found = cp.evaluate(place, **QUESTION, target={"clf": policy})
    for key, values in planted.numbers("", expected).items():
        assert planted.numbers("", found)[key] == pytest.approx(values, rel=1e-9, abs=1e-12, nan_ok=True), key


def test_callables_and_columns_together(log):
    result = cp.evaluate(log, **planted.BASE, context=["x0", "x1"], action="action", target=[softmax, "old"])
    assert result.targets == ("softmax", "old")
    column = pl.Series(softmax(log.select("x0", "x1", "action").to_arrow().combine_chunks().to_batches()[0]))
    expected = cp.evaluate(log.with_columns(softmax=column), **planted.BASE, target=["softmax", "old"])
    for target in ("softmax", "old"):
        assert result[target, "ips"].value == pytest.approx(expected[target, "ips"].value, rel=1e-12)


def test_a_policy_against_a_column(log):
    question = {key: QUESTION[key] for key in ("reward", "propensity", "drop_bad_rows", "context", "action")}
    found = cp.compare(log, **question, target={"soft": softmax}, against="old")
    column = pl.Series(softmax(log.select("x0", "x1", "action").to_arrow().combine_chunks().to_batches()[0]))
    expected = cp.compare(log.with_columns(soft=column), **planted.BASE, target="soft", against="old")
    assert found.value == pytest.approx(expected.value, rel=1e-12)


def test_classifiers_with_named_features_and_unknown_actions(log):
    frame = log.drop_nulls().to_pandas()
    named = LogisticRegression().fit(frame[["x0", "x1"]], frame["action"])
    plain = LogisticRegression().fit(frame[["x0", "x1"]].to_numpy(), frame["action"])
    one, other = (cp.evaluate(log, **QUESTION, target={"t": policy})["t", "ips"].value for policy in (named, plain))
    assert one == pytest.approx(other, rel=1e-9)
    few = frame[frame["action"] > 0]
    tree = DecisionTreeClassifier(max_depth=2).fit(few[["x0", "x1"]].to_numpy(), few["action"])
    result = cp.evaluate(log, **QUESTION, target={"t": tree})
    share = (log.filter(pl.col("propensity").is_not_null())["action"] == 0).mean()
    assert result.diagnostics("t").zero_weight_share == pytest.approx(share, abs=0.02)


def test_actions_by_name(log):
    named = log.with_columns(pl.format("show {}", "action").alias("action"))
    good = log.drop_nulls()
    policy = LogisticRegression().fit(good.select("x0", "x1").to_numpy(), [f"show {a}" for a in good["action"]])
    found = cp.evaluate(named, **QUESTION, target={"t": policy})["t", "ips"].value
    assert found == pytest.approx(
        cp.evaluate(log, **QUESTION, target={"t": planted.a_policy(log)})["t", "ips"].value, rel=1e-6
    )


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (lambda batch: np.ones(batch.num_rows - 1), "one probability per row.*rows 0 to 999 of 1,000 rows.*shape"),
        (lambda batch: np.ones((batch.num_rows, 2)), "one probability per row"),
        (lambda batch: 0.5, "one probability per row"),
        (lambda batch: ["high"] * batch.num_rows, "must return numbers"),
        (
            lambda batch: np.full(batch.num_rows, np.nan),
            "rows 0 to 999 1,000 of 1,000 are not; the first is row 0.*nan",
        ),
        (lambda batch: np.full(batch.num_rows, 1.01), "policy 'mine' must return probabilities.*1.01"),
        (
            lambda batch: np.where(batch.column("x0").to_numpy() == 42.0, -0.1, 0.5),
            "the batch of rows 2,000 to 2,999 1 of 1,000 are not; the first is row 5 of the batch with -0.1",
        ),
    ],
)
def test_what_a_policy_does_wrong_is_said_with_the_batch(monkeypatch, policy, message):
    monkeypatch.setattr(frames, "BATCH", 1000)
    log = planted.a_log(bad=False).with_columns(
        x0=pl.when(pl.int_range(4000) == 2005).then(42.0).otherwise(pl.col("x0"))
    )
    for one in (log, log.lazy()):
        with pytest.raises(cp.LogError, match=message):
            cp.evaluate(one, **QUESTION, target={"mine": policy})


class Named:
    """Knows its columns, as learned policies do."""

    context_ = ("x0", "x1")
    classes_ = np.arange(3)

    def predict_proba(self, context):
        return np.full((len(context), 3), 1 / 3)


@pytest.mark.parametrize(
    ("context", "message"),
    [
        (["x1", "x0"], "learned from the columns 'x0', 'x1'; context names 'x1', 'x0'. Pass them in that order"),
        (["x0"], "context names 'x0'. Pass those, or rename"),
        (["x0", "old"], "context names 'x0', 'old'. Pass those, or rename"),
    ],
)
def test_a_policy_that_knows_its_columns_takes_no_others(log, context, message):
    cp.evaluate(log, **QUESTION, target={"named": Named()})
    for source in (log, log.lazy()):
        with pytest.raises(cp.OptionError, match=message):
            cp.evaluate(source, **QUESTION | {"context": context}, target={"named": Named()})


def test_what_a_policy_needs_is_asked_for(log):
    with refuses(cp.OptionError):
        cp.evaluate(log, **planted.BASE, target=softmax, action="action")
    with refuses(cp.OptionError):
        cp.evaluate(log, **planted.BASE, target=softmax, context=["x0"])
    with refuses(cp.OptionError):
        cp.evaluate(reward=[1.0], propensity=[1.0], target=softmax)
    with refuses(cp.ColumnError):
        cp.evaluate(log, **planted.BASE, target=softmax, context=["x9"], action="action")


def test_a_deterministic_target_is_its_indicator(log):
    indicator = log.with_columns(same=(pl.col("chosen") == pl.col("action")).cast(pl.Int8))
    found = cp.evaluate(log, **planted.BASE, target={"old": "old", "greedy": cp.Chosen("chosen")}, action="action")
    expected = cp.evaluate(indicator, **planted.BASE, target=["old", "same"])
    assert found.targets == ("old", "greedy")
    assert found["greedy", "snips"].value == pytest.approx(expected["same", "snips"].value, rel=1e-12)
