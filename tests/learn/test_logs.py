"""What a policy is trained on: a `Log`, its condition, and the rows that are good for `evaluate` too."""

import numpy as np
import planted
import polars as pl
import pytest
from learning import torch
from messages import refuses

import counterpoise as cp
import counterpoise.learn.source as sources
from counterpoise.environments import SyntheticBandit
from counterpoise.errors import ColumnError, LogError, OptionError
from counterpoise.learn import PolicyLearner
from counterpoise.learn.rows import Split
from counterpoise.log.log import Log

LOG = SyntheticBandit(n_actions=8, inverse_temperature=-3, seed=2).draw(3000)
FRAME = LOG.frame().with_columns(day=pl.int_range(3000) // 500, user=pl.int_range(3000) % 7)
CONTEXT = [f"context_{k}" for k in range(5)]
NAMES = {"context": CONTEXT, "action": "action", "reward": "reward", "propensity": "propensity"}
ARRAYS = {"context": LOG.context, "action": LOG.action, "reward": LOG.reward, "propensity": LOG.propensity}
ROW = 20  # where a bad value is put


def learner(**options):
    return PolicyLearner(**{"epochs": 2, "batch_size": 256, "learning_rate": 0.05, "folds": None} | options)


def same(first, second):
    for name, tensor in first.policy_.state_dict().items():
        torch.testing.assert_close(tensor, second.policy_.state_dict()[name], rtol=0, atol=0)
    assert first.history_ == second.history_


def test_a_log_says_it_all(tmp_path):
    FRAME.write_parquet(tmp_path / "log.parquet")
    expected = learner().fit(FRAME, **NAMES)
    for data in (FRAME, FRAME.lazy(), FRAME.to_pandas(), FRAME.to_dict(), tmp_path / "log.parquet"):
        same(learner().fit(Log(data, **NAMES, cluster="user", key="day")), expected)
    same(learner().fit(Log(**ARRAYS)), expected)
    with refuses(OptionError):
        learner().fit(Log(FRAME, **NAMES), reward="reward")


def test_only_rows_that_meet_the_condition_are_trained_on(tmp_path):
    FRAME.write_parquet(tmp_path / "log.parquet")
    expected = learner().fit(FRAME.filter(pl.col("day") >= 2), **NAMES)
    for data in (FRAME, FRAME.lazy(), FRAME.to_pandas(), FRAME.to_dict(), tmp_path / "log.parquet"):
        found = learner().fit(data, **NAMES, where="day >= 2")
        same(found, expected)
        assert found.mean_reward_ == expected.mean_reward_
    same(learner().fit(**ARRAYS, where="reward >= 0"), learner().fit(**ARRAYS))
    with refuses(ColumnError):
        learner().fit(FRAME, **NAMES, where="days >= 2")


def test_a_condition_and_bad_rows_count_alike_however_files_are_read(tmp_path, monkeypatch):
    bad = FRAME.with_columns(
        propensity=pl.when(pl.int_range(3000) % 100 == 7).then(0.0).otherwise(pl.col("propensity"))
    )
    bad.write_parquet(tmp_path / "log.parquet")
    kept = bad.filter((pl.col("day") >= 2) & (pl.col("propensity") > 0))
    monkeypatch.setattr(sources, "CHUNK", 700)
    log = Log(tmp_path / "log.parquet", **NAMES, where="day >= 2", drop_bad_rows=True)
    source = sources.Source(log)
    for start in source.starts:
        source.look(start)
    assert (source.rows, source.dropped) == (len(kept), 20)
    rows = np.concatenate([source.chunk(start).context.numpy() for start in source.starts])
    np.testing.assert_array_equal(rows, kept.select(CONTEXT).to_numpy().astype(np.float32))
    found = learner().fit(log)
    assert found.dropped_rows_ == 20
    assert found.mean_reward_ == pytest.approx(kept["reward"].mean(), rel=1e-6)
    with refuses(LogError):
        learner().fit(log.but(drop_bad_rows=False))


def test_rows_have_one_number_however_files_are_read(tmp_path, monkeypatch):
    """Which is what decides the rows that are held out, and what errors call a row by."""
    odd = pl.int_range(3000) % 3 == 0
    bad = FRAME.with_columns(propensity=pl.when(odd).then(0.0).otherwise(pl.col("propensity")))
    bad.write_parquet(tmp_path / "log.parquet")
    held = []
    for data, chunk in ((bad, 2**18), (tmp_path / "log.parquet", 700)):
        monkeypatch.setattr(sources, "CHUNK", chunk)
        source = sources.Source(Log(data, **NAMES, where="day >= 2", drop_bad_rows=True))
        for start in source.starts:
            source.look(start)
        held.append(torch.cat([rows.context for rows in Split(0.1, 0).held_out_rows(source)]))
    torch.testing.assert_close(held[0], held[1], rtol=0, atol=0)
    late = FRAME.with_columns(reward=pl.when(pl.int_range(3000) == 2500).then(None).otherwise(pl.col("reward")))
    late.write_parquet(tmp_path / "log.parquet")
    with refuses(LogError):
        learner().fit(tmp_path / "log.parquet", **NAMES, where="day >= 2")


def test_model_rewards_follow_the_rows_that_are_kept():
    model = LOG.expected(slice(0, 3000))
    rows = np.flatnonzero(FRAME["day"] >= 2)
    expected = learner(objective="dr").fit(FRAME[rows], **NAMES, model_rewards=model[rows])
    same(learner(objective="dr").fit(FRAME, **NAMES, where="day >= 2", model_rewards=model), expected)


def test_a_column_may_be_an_expression_of_others(tmp_path):
    FRAME.write_parquet(tmp_path / "log.parquet")
    expected = learner().fit(FRAME.with_columns(twice=pl.col("reward") * 2), **NAMES | {"reward": "twice"})
    for data in (FRAME, FRAME.to_dict(), tmp_path / "log.parquet"):
        same(learner().fit(data, **NAMES | {"reward": "reward * 2"}), expected)
    with refuses(ColumnError):
        learner().fit(FRAME, **NAMES | {"reward": "rewards * 2"})


BAD = [
    *[("propensity", value) for value in (0.0, -0.1, 1.5, 1 + 1e-9, float("nan"), None, 1e-300)],
    *[("reward", value) for value in (float("nan"), float("inf"), None, 1e200)],
]


@pytest.mark.parametrize(("column", "value"), BAD)
def test_bad_rows_are_those_that_are_bad_for_evaluate(column, value):
    at = pl.int_range(3000) == ROW
    bad = FRAME.with_columns(pl.when(at).then(pl.lit(value)).otherwise(pl.col(column)).alias(column))
    question = {"reward": "reward", "propensity": "propensity", "target": "fair", "drop_bad_rows": True}
    assert cp.evaluate(bad.with_columns(fair=pl.lit(0.5)), **question).dropped_rows == 1
    with refuses(LogError):
        learner().fit(bad, **NAMES)
    found = learner().fit(bad, **NAMES, drop_bad_rows=True)
    assert found.dropped_rows_ == 1
    same(found, learner().fit(FRAME.filter(~at), **NAMES))


@pytest.mark.parametrize("kind", ["frame", "dict", "file"])
@pytest.mark.parametrize("text", [False, True])
def test_of_one_log_with_every_kind_of_bad_row_learning_uses_the_rows_that_evaluate_uses(kind, text, tmp_path):
    log, parts = planted.every_kind(), planted.PARTS | {"model_value": None}
    log = log.with_columns(pl.col("user").cast(pl.String)) if text else log
    log.write_parquet(tmp_path / "log.parquet")
    data = {"frame": log, "dict": {name: log[name].to_list() for name in log.columns}, "file": tmp_path / "log.parquet"}
    bad = [row for row, (column, _) in planted.KINDS.items() if column not in planted.TARGETS]
    fair = log.with_columns(fair=pl.col("old"), fair_value=pl.lit(100.0))
    evaluated = cp.evaluate(fair, **parts | {"model_value": "fair_value"}, target="fair")
    found = learner().fit(cp.Log(data[kind], **parts))
    assert found.dropped_rows_ == evaluated.dropped_rows == len(bad)
    expected = learner().fit(log.filter(~pl.col("row").is_in(bad)), **parts | {"drop_bad_rows": False})
    same(found, expected)
    with refuses(LogError):
        learner().fit(data[kind], **parts | {"drop_bad_rows": False})


def test_numbers_that_single_precision_cannot_hold_are_no_bad_rows_but_cannot_be_trained_on():
    for column, value in (("reward", 1e45), ("propensity", 1e-48), ("context_1", 1e40)):
        at = pl.int_range(3000) == ROW
        odd = FRAME.with_columns(pl.when(at).then(pl.lit(value)).otherwise(pl.col(column)).alias(column))
        with refuses(LogError):
            learner().fit(odd, **NAMES, drop_bad_rows=True)


def test_rows_without_a_context_or_an_action_can_be_dropped_too():
    at = pl.int_range(3000) == ROW
    for column, value in (("context_3", float("inf")), ("action", None)):
        bad = FRAME.with_columns(pl.when(at).then(value).otherwise(pl.col(column)).alias(column))
        with refuses(LogError):
            learner().fit(bad, **NAMES)
        same(learner().fit(bad, **NAMES, drop_bad_rows=True), learner().fit(FRAME.filter(~at), **NAMES))


def test_a_log_of_bad_rows_alone_has_nothing_to_learn_from():
    with refuses(LogError):
        learner().fit(FRAME.with_columns(propensity=0.0), **NAMES, drop_bad_rows=True)


def test_several_files_are_one_log(tmp_path):
    paths = [tmp_path / f"{k}.parquet" for k in range(3)]
    for k, path in enumerate(paths):
        FRAME[1000 * k : 1000 * (k + 1)].write_parquet(path)
    expected = learner().fit(FRAME, **NAMES)
    for data in (paths, [str(path) for path in paths], tmp_path / "*.parquet", tmp_path):
        same(learner().fit(data, **NAMES), expected)


def test_logs_that_cannot_be_trained_on_are_refused(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    with refuses(OptionError):
        learner().fit(duckdb.connect(), **NAMES)
    with refuses(OptionError):
        learner().fit(3, **NAMES)
    for data in (tmp_path / "log.parquet", FRAME, FRAME.to_dict()):
        with refuses(OptionError):
            learner().fit(data, **NAMES, table="logs")
    with refuses(OptionError):
        learner().fit(FRAME, **NAMES | {"reward": ["reward", "day"]})
    FRAME.write_csv(tmp_path / "log.pq")
    with refuses(LogError):
        learner().fit(tmp_path / "log.pq", **NAMES)


def test_amounts_are_numbers_and_not_text_or_times():
    for column, dtype in (("reward", pl.String), ("propensity", pl.String), ("reward", pl.Datetime)):
        odd = FRAME.with_columns(pl.col(column).cast(pl.Int64).cast(dtype))
        for verb in (learner().fit, cp.learn_policy):
            with refuses(ColumnError):
                verb(odd, **NAMES)
    names = FRAME.with_columns(reward=pl.format("reward {}", "reward"))
    with refuses(ColumnError):
        cp.learn_policy(names, **NAMES)


def test_digits_that_single_precision_loses_are_missed_in_files_too(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "CHUNK", 700)
    FRAME.with_columns(reward=pl.col("reward") + 1e9, context_0=pl.col("context_0")).write_parquet(
        tmp_path / "log.parquet"
    )
    with refuses(LogError):
        learner().fit(tmp_path / "log.parquet", **NAMES)
    source = sources.Source(Log(tmp_path / "log.parquet", **NAMES), centers_rewards=True)
    expected = sources.Source(Log(pl.read_parquet(tmp_path / "log.parquet"), **NAMES), centers_rewards=True)
    for each in (source, expected):
        for start in each.starts:
            each.look(start)
        each.check_digits()
    assert source.lowest == expected.lowest >= 1e9
    rewards = torch.cat([source.chunk(start).reward for start in source.starts])
    torch.testing.assert_close(rewards, expected.chunk(0).reward, rtol=0, atol=0)
    assert rewards.unique().tolist() == [0.0, 1.0]


def test_tensors_are_arrays_too():
    tensors = {name: torch.as_tensor(column) for name, column in ARRAYS.items()}
    tensors["reward"] = tensors["reward"].double().requires_grad_()
    same(learner().fit(**tensors), learner().fit(**ARRAYS))


def test_rows_of_a_log_in_memory_are_read_once(monkeypatch):
    calls = []
    read = sources.Source._fetched
    monkeypatch.setattr(sources.Source, "_fetched", lambda *args: calls.append(1) or read(*args))
    log = Log(FRAME.drop("user").with_columns(user_id=pl.int_range(3000) // 3), **NAMES, where="day >= 2")
    source = sources.Source(log)
    source.look(0)
    assert source.frame(0, ["reward"])["reward"].to_list() == FRAME.filter(pl.col("day") >= 2)["reward"].to_list()
    assert [one.name for one in source.ids(0)] == ["user_id"]
    assert source.ids(0)[0].len() == source.rows == 2000
    assert len(calls) == 1
