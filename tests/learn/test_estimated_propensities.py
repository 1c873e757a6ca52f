"""Learning where no propensities were logged: a cross-fitted model estimates them, and nothing then counts as reliably better."""

import json
import math
import warnings

import numpy as np
import polars as pl
import pytest
from command_line import invoke
from learning import torch
from messages import refuses

import counterpoise as cp
import counterpoise.learn.source as sources
from counterpoise.errors import CounterpoiseError, OptionError
from counterpoise.learn import LearningWarning, PolicyLearner, RankingLearner, evaluate_folds, portfolio
from counterpoise.log.log import Log

pytest.importorskip("sklearn")

N = 2_000


def world(seed=3):
    """Three actions, logged by a softmax that is linear in the context; the best one depends on the sign of x."""
    random = np.random.default_rng(seed)
    x, y = random.normal(size=(2, N))
    scores = np.column_stack([0.6 * x, np.zeros(N), -0.6 * x + 0.3 * y])
    policy = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    action = (policy.cumsum(axis=1) > random.random(N)[:, None]).argmax(axis=1)
    rates = rates_of(x)
    frame = pl.DataFrame({"x": x, "y": y, "action": action, "propensity": policy[np.arange(N), action]})
    return frame.with_columns(
        reward=pl.Series((random.random(N) < rates[np.arange(N), action]) * 1.0),
        user=pl.int_range(N) // 5,
        odd=pl.int_range(N) % 3,
    )


def rates_of(x):
    return np.column_stack([np.where(x > 0, 0.2, 0.6), np.full(len(x), 0.4), np.where(x > 0, 0.7, 0.3)])


FRAME = world()
PARTS = {"context": ["x", "y"], "action": "action", "reward": "reward"}
MODEL = cp.models.Propensity(folds=3)


def source_of(data, **parts):
    """The rows that learning sees, in their order."""
    source = sources.Source(Log(data, **PARTS, **parts))
    for start in source.starts:
        source.look(start)
    return source


def propensities_of(source):
    return torch.cat([source.logged(start).propensity for start in source.starts]).numpy()


def learner(**options):
    return PolicyLearner(**{"epochs": 4, "batch_size": 200, "learning_rate": 0.1} | options)


def codes(verdict):
    return [caveat.code for caveat in verdict.caveats]


@pytest.mark.parametrize("parts", [{}, {"cluster": "user"}, {"where": "odd > 0"}])
def test_rows_are_learned_from_with_the_propensities_that_evaluate_estimates(parts, tmp_path, monkeypatch):
    seen = propensities_of(source_of(FRAME, propensity=MODEL, **parts))
    result = cp.evaluate(FRAME, **PARTS, **parts, propensity=MODEL, target={"one": cp.Always(1)}, estimator="ips")
    kept = FRAME.filter(pl.sql_expr(parts["where"])) if "where" in parts else FRAME
    value = np.mean((kept["action"].to_numpy() == 1) / seen * kept["reward"].to_numpy())
    assert result["one", "ips"].value == pytest.approx(value, rel=1e-5)
    FRAME.write_parquet(tmp_path / "log.parquet")
    monkeypatch.setattr(sources, "CHUNK", 400)  # each row keeps its fold however files are read
    chunked = source_of(tmp_path / "log.parquet", propensity=MODEL, **parts)
    assert len(chunked.starts) > 1
    np.testing.assert_allclose(propensities_of(chunked), seen, rtol=1e-5)


def test_what_is_learned_is_judged_with_caution_and_handed_out_only_if_asked():
    with pytest.warns(LearningWarning, match="no policy counts as reliably better"):
        made = learner().fit(FRAME, **PARTS, propensity=MODEL)
    verdict = made.result_.verdict()
    assert (verdict.verdict, made.kind_) == ("caution", "learned")
    assert "estimated-propensities" in codes(verdict)
    logged = made.result_.propensity_model
    assert (logged.rows, logged.folds) == (N, 3)
    known = learner(fallback="raise").fit(FRAME, **PARTS, propensity="propensity")
    assert made.result_["fold policies", "lift"].value == pytest.approx(
        known.result_["fold policies", "lift"].value, abs=0.02
    )
    assert learner(fallback="imitate").fit(FRAME, **PARTS, propensity="model").kind_ == "imitation"
    chosen = made.predict_proba(FRAME.select("x", "y"))
    assert (chosen * rates_of(FRAME["x"].to_numpy())).sum(axis=1).mean() > FRAME["reward"].mean() + 0.05


@pytest.mark.parametrize("fallback", ["imitate", "warn"])
def test_a_search_hands_out_what_it_learned_only_if_asked(fallback):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = cp.learn_policy(
            FRAME, **PARTS, propensity="model", fallback=fallback, minutes=None, contenders=portfolio(3)[:1]
        )
    assert (found.kind == "learned") == (fallback == "warn")
    assert [each.category for each in caught] == [LearningWarning] * (fallback == "warn")
    assert found.result.verdict().verdict == "caution"
    assert "estimated-propensities" in codes(found.result.verdict())
    assert ("pass fallback='warn'" in found.summary()) == (fallback == "imitate")


def test_a_lower_bound_that_takes_propensities_as_known_does_not_make_a_policy_safe():
    from counterpoise.learn.hand_out import is_surely_better

    parts = {**PARTS, "target": {"one": cp.Always(1)}}
    known = cp.evaluate(FRAME, **parts, propensity="propensity")
    estimated = cp.evaluate(FRAME, **parts, propensity=MODEL)
    assert is_surely_better(known, lift_bound=0.1)
    assert not is_surely_better(estimated, lift_bound=0.1)


def test_clusters_gaps_and_arrays_are_learned_from_too():
    gaps = FRAME.with_columns(
        p=pl.when(pl.col("odd") > 0).then(pl.col("propensity")), label=pl.col("action").replace_strict(dict(enumerate("abc")))
    )  # fmt: skip
    partly = cp.models.Propensity(folds=3, column="p")
    seen = propensities_of(source_of(gaps, propensity=partly))
    there = gaps["p"].is_not_null().to_numpy()
    np.testing.assert_allclose(seen[there], gaps["p"].drop_nulls(), rtol=1e-6)
    for parts in (
        {"propensity": partly, "cluster": "user"},
        {"propensity": partly, "action": "label"},
        {"propensity": "model", "reward": "reward * 2", "context": ["x", "y + 1", "label_of"]},
    ):
        data = gaps.with_columns(label_of=pl.when(pl.col("y") > 0).then(pl.lit("x")).otherwise(pl.lit("y")))
        made = learner(fallback="imitate").fit(data, **PARTS | parts)
        assert codes(made.result_.verdict()).count("estimated-propensities") == 1
    arrays = {
        "context": FRAME.select("x", "y").to_numpy(),
        **{name: FRAME[name].to_numpy() for name in ("action", "reward")},
    }
    made = learner(fallback="imitate").fit(**arrays, propensity="model")
    assert "estimated-propensities" in codes(made.result_.verdict())
    judged = evaluate_folds(Log(FRAME, **PARTS, propensity=MODEL), [made.policy_, made.policy_])
    assert "estimated-propensities" in codes(judged.verdict())
    with refuses(OptionError):  # scikit-learn's y has no room for a model
        learner().fit(FRAME.select("x", "y"), FRAME.select("action", "reward"), propensity="model")


def test_a_result_of_chunks_says_that_propensities_were_estimated(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "CHUNK", 600)
    FRAME.write_parquet(tmp_path / "log.parquet")
    made = learner(fallback="imitate").fit(tmp_path / "log.parquet", **PARTS, propensity=MODEL)
    assert "estimated-propensities" in codes(made.result_.verdict())


def test_a_database_needs_what_identifies_a_row(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(str(tmp_path / "log.duckdb")) as connection:
        rows = FRAME.with_row_index("id").to_arrow()  # noqa: F841
        connection.execute("CREATE TABLE log AS SELECT * FROM rows")
    path = tmp_path / "log.duckdb"
    with refuses(OptionError):
        learner().fit(path, **PARTS, propensity="model", table="log")
    for parts in ({"key": "id"}, {"cluster": "user"}):
        made = learner(fallback="imitate").fit(path, **PARTS, propensity="model", table="log", **parts)
        assert "estimated-propensities" in codes(made.result_.verdict())


def test_lists_and_candidates_are_refused_in_words():
    lists = FRAME.with_columns(list=pl.int_range(N) // 3, place=pl.int_range(N) % 3 + 1, allowed=[[0, 1, 2]] * N)
    of_lists = {"slate": "list", "position": "place", "propensity_of": "item_given_above"}
    for propensity in ("model", MODEL):
        with refuses(OptionError):
            RankingLearner(epochs=1).fit(lists, **PARTS | {"context": "odd"}, **of_lists, propensity=propensity)
        for verb in (learner().fit, cp.learn_policy):
            with refuses(OptionError):
                verb(lists, **PARTS, candidates="allowed", propensity=propensity)
            with refuses(CounterpoiseError):
                verb(lists, **PARTS, **of_lists, propensity=propensity)


@pytest.mark.parametrize("minutes", [math.inf, None])
def test_a_search_without_a_limit_ends(minutes):
    found = cp.learn_policy(FRAME, **PARTS, propensity="propensity", minutes=minutes, contenders=portfolio(3)[:1])
    assert (found.kind, found.skipped, found.cut) == ("learned", {}, "")


def test_the_command_estimates_propensities(tmp_path):
    FRAME.drop("propensity").write_parquet(tmp_path / "log.parquet")
    context = [word for name in PARTS["context"] for word in ("--context", name)]
    learn = [
        "learn",
        tmp_path / "log.parquet",
        *context,
        "--action",
        "action",
        "--objective",
        "beta_ips",
        "--epochs",
        2,
    ]
    for k, model in enumerate((["--propensity", "model"], ["--propensity-model", "logistic"])):
        answer = invoke(*learn, *model, "--fallback", "warn", "--out", tmp_path / f"policy{k}", "--json")
        assert answer.exit_code == 0, answer.stderr
        assert json.loads(answer.stdout)["verdict"] == "caution"
        assert "no policy counts as reliably better" in answer.stderr
    forgotten = invoke(*learn, "--out", tmp_path / "none")
    assert forgotten.exit_code == 2
    assert "--propensity-model logistic" in forgotten.stderr
