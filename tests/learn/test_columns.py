"""Columns as they are: text and lists as contexts, actions with names, items from a frame, and logs of every kind."""

import json
import uuid

import numpy as np
import polars as pl
import pytest
from learning import torch
from messages import refuses

import counterpoise as cp
import counterpoise.learn.source as sources
from counterpoise.errors import ColumnError, LogError, OptionError, PolicyFileError
from counterpoise.features import Encoder
from counterpoise.learn import (
    MLP,
    LinearSoftmax,
    PolicyLearner,
    TwoTower,
    export_onnx,
    item_features,
    load_policy,
    save_policy,
)
from counterpoise.learn.tensor_files import read_tensors, write_tensors

ITEMS = ["bread", "jam", "milk", "tea"]
BEST = {"DE": "tea", "FR": "jam", "IT": "milk", None: "bread"}


def drawn(rows=1200, seed=0):
    """A log of a policy that chooses at random; what is best depends on the country."""
    random = np.random.default_rng(seed)
    country = random.choice(np.array(["DE", "FR", "IT", None], dtype=object), rows)
    item = random.choice(ITEMS, rows)
    good = np.array([BEST[one] for one in country]) == item
    return pl.DataFrame(
        {
            "country": pl.Series(country.tolist(), dtype=pl.String),
            "age": random.integers(18, 80, rows),
            "member": random.random(rows) < 0.5,
            "item": item,
            "reward": (random.random(rows) < np.where(good, 0.8, 0.2)).astype(float),
            "propensity": np.full(rows, 0.25),
        }
    )


LOG = drawn()
TASTE = LOG.with_columns(taste=pl.concat_list(pl.col("age") / 80, pl.col("reward") * 0 + 0.5))
PARTS = {"action": "item", "reward": "reward", "propensity": "propensity"}
NAMES = PARTS | {"context": ["country", "age", "member"]}
LISTS = PARTS | {"context": ["country", "age", "member", "taste"]}


def learner(**options):
    return PolicyLearner(**{"epochs": 2, "folds": None, "batch_size": 256, "learning_rate": 0.05} | options)


def same(first, second):
    for name, tensor in first.policy_.state_dict().items():
        torch.testing.assert_close(tensor, second.policy_.state_dict()[name], rtol=0, atol=0)
    assert first.history_ == second.history_
    assert first.encoding_ == second.encoding_
    assert first.classes_.tolist() == second.classes_.tolist()


def ips_of(log, target, parts):
    """IPS of a target, as evaluate has it."""
    return cp.evaluate(log, **parts, target={"new": target})["new", "ips"].value


def by_hand(table):
    """IPS of a table of probabilities on the log."""
    chosen = table[np.arange(len(LOG)), [ITEMS.index(one) for one in LOG["item"]]]
    return np.mean(chosen / 0.25 * LOG["reward"].to_numpy())


def plain_table(rows, levels, missing):
    """The inputs, row by row."""
    found = []
    for row in rows.iter_rows(named=True):
        hot = [float(row["country"] == level) for level in levels]
        gap = [float(row["country"] is None)] if missing else []
        found.append([*hot, *gap, float(row["age"]), float(row["member"]), *row["taste"]])
    return np.array(found)


def test_a_policy_sees_levels_numbers_and_lists():
    found = learner().fit(TASTE, **LISTS)
    assert found.encoding_.features[:5] == (
        "country = 'DE'",
        "country = 'FR'",
        "country = 'IT'",
        "country is missing",
        "age",
    )
    expected = plain_table(TASTE, ["DE", "FR", "IT"], missing=True)
    np.testing.assert_allclose(found.encoding_.table(TASTE), expected)
    np.testing.assert_array_equal(found.predict_proba(TASTE), found.policy_.predict_proba(expected))
    assert found.n_features_in_ == 4
    assert found.feature_names_in_.tolist() == LISTS["context"]
    scale, mean = found.policy_.body.scale, found.policy_.body.mean
    assert scale[:4].tolist() == [1.0] * 4
    assert mean[:4].tolist() == [0.0] * 4
    assert float(mean[4]) == pytest.approx(LOG["age"].mean(), rel=0.02)


def test_what_was_not_there_before_is_other_and_rare_levels_are_too(monkeypatch):
    rows = pl.DataFrame({"x": ["a"] * 5 + ["b"] * 3 + ["c"]})
    monkeypatch.setattr("counterpoise.features.encoder.LEVELS", 2)
    encoding = Encoder.learned([rows[:4], rows[4:]], ["x"])
    assert encoding.features == ("x = 'a'", "x = 'b'")
    assert encoding.table({"x": ["b", "c", "never", None]}).tolist() == [[0, 1], [0, 0], [0, 0], [0, 0]]


def test_it_learns_from_text():
    found = learner(epochs=15).fit(drawn(6000), **NAMES)
    greedy = found.predict({"country": list(BEST), "age": [40] * 4, "member": [True] * 4})
    assert greedy.tolist() == list(BEST.values())


def test_every_kind_of_log_gives_the_same_policy(tmp_path, monkeypatch):
    duckdb = pytest.importorskip("duckdb")
    expected = learner().fit(LOG, **NAMES)
    LOG.write_csv(tmp_path / "log.csv")
    LOG.write_ndjson(tmp_path / "log.jsonl")
    LOG.write_ipc(tmp_path / "log.arrow")
    LOG.write_parquet(tmp_path / "log.parquet")
    base = duckdb.connect(str(tmp_path / "log.duckdb"))
    base.execute("CREATE TABLE logs AS SELECT * FROM LOG")
    same(learner().fit(base, **NAMES, table="logs"), expected)
    same(learner().fit(base.table("logs"), **NAMES), expected)
    base.close()
    same(learner().fit(tmp_path / "log.duckdb", **NAMES, table="logs"), expected)
    columns = {name: LOG[name].to_list() for name in LOG.columns}
    for data in (
        LOG.to_pandas(),
        LOG.to_arrow(),
        LOG.lazy(),
        columns,
        LOG.with_columns(pl.col("country", "item").cast(pl.Categorical)),
    ):
        same(learner().fit(data, **NAMES), expected)
    for ending in ("csv", "jsonl", "arrow", "parquet"):
        same(learner().fit(tmp_path / f"log.{ending}", **NAMES), expected)
    monkeypatch.setattr(sources, "CHUNK", 500)
    same(learner(batch_size=None).fit(LOG, **NAMES), learner(batch_size=None).fit(LOG.lazy(), **NAMES))
    chunked = learner().fit(tmp_path / "log.parquet", **NAMES)
    assert chunked.encoding_ == expected.encoding_
    assert chunked.mean_reward_ == pytest.approx(expected.mean_reward_)


def test_a_log_on_a_postgresql_server_gives_the_same_policy(postgres):
    ibis = pytest.importorskip("ibis")
    name = f"learning_{uuid.uuid4().hex[:12]}"
    connection = ibis.connect(postgres)
    connection.create_table(name, LOG.with_columns(number=pl.int_range(len(LOG))).to_arrow())
    try:
        ordered = f"SELECT * FROM {name} ORDER BY number"  # the rows that are held out depend on their order
        same(learner().fit(postgres, **NAMES, query=ordered), learner().fit(LOG, **NAMES))
    finally:
        connection.drop_table(name)
        connection.disconnect()


def test_conditions_and_expressions_work_on_files_in_memory(tmp_path):
    LOG.write_csv(tmp_path / "log.csv")
    expected = learner().fit(LOG.filter(pl.col("age") > 30), **NAMES)
    same(learner().fit(tmp_path / "log.csv", **NAMES, where="age > 30"), expected)
    decade = learner().fit(tmp_path / "log.csv", **PARTS, context=["CAST(age // 10 AS VARCHAR)", "country"])
    assert "CAST(age // 10 AS VARCHAR) = '7'" in decade.encoding_.features
    table = decade.predict_proba(LOG.with_columns((pl.col("age") // 10).cast(pl.String).alias(decade.context_[0])))
    assert ips_of(tmp_path / "log.csv", decade, PARTS | {"context": decade.context_}) == pytest.approx(by_hand(table))
    bad = LOG.with_columns(propensity=pl.when(pl.int_range(1200) < 7).then(0.0).otherwise("propensity"))
    bad.write_csv(tmp_path / "bad.csv")
    assert learner().fit(tmp_path / "bad.csv", **NAMES, drop_bad_rows=True).dropped_rows_ == 7
    with refuses(ColumnError):
        learner().fit(tmp_path / "log.csv", **NAMES | {"reward": "rewards"})
    with refuses(OptionError):
        learner(objective="dr").fit(tmp_path / "log.csv", **NAMES, model_rewards=np.zeros((1200, 4)))


def test_names_and_encoding_stay_with_a_saved_policy(tmp_path):
    found = learner().fit(TASTE, **LISTS)
    found.save(tmp_path / "policy.safetensors")
    policy = load_policy(tmp_path / "policy.safetensors")
    assert policy.classes_.tolist() == ITEMS
    assert policy.encoding_ == found.encoding_
    np.testing.assert_array_equal(policy.predict_proba(TASTE), found.predict_proba(TASTE))
    question = LISTS | {"target": tmp_path / "policy.safetensors"}
    value = by_hand(found.predict_proba(TASTE))
    for target in (tmp_path / "policy.safetensors", found, policy):
        assert ips_of(TASTE, target, LISTS) == pytest.approx(value, rel=1e-9)
    with refuses(OptionError):
        cp.evaluate(TASTE, **question | {"context": ["age"]})


def test_a_policy_that_is_trained_on_keeps_its_encoding_and_actions(tmp_path):
    learner().fit(LOG, **NAMES).save(tmp_path / "policy.safetensors")
    policy = load_policy(tmp_path / "policy.safetensors")
    italy = LOG.filter(pl.col("country") == "IT", pl.col("item") != "jam")
    found = learner(policy=policy, batch_size=100).fit(italy, **NAMES)
    assert found.encoding_.names == tuple(NAMES["context"])
    assert found.encoding_.features[:3] == ("country = 'DE'", "country = 'FR'", "country = 'IT'")
    assert found.classes_.tolist() == ITEMS
    with refuses(OptionError):
        learner(policy=policy).fit(italy, **NAMES | {"context": "age"})
    with refuses(LogError):
        learner(policy=policy).fit(italy.with_columns(item=pl.lit("soap")), **NAMES)


def test_actions_have_names_wherever_a_policy_answers():
    policy = learner().fit(LOG, **NAMES).policy_
    torch.manual_seed(0)
    action, propensity = policy.sample(LOG)
    table = policy.predict_proba(LOG)
    places = [ITEMS.index(one) for one in action]
    np.testing.assert_allclose(propensity, table[np.arange(1200), places], rtol=1e-5)
    assert policy.greedy(LOG).tolist() == [ITEMS[k] for k in table.argmax(1)]
    one = policy.predict_proba({"country": "FR", "age": 33, "member": False})
    rows = policy.predict_proba([["FR", 33, False]])
    np.testing.assert_array_equal(one, rows)
    unseen = LOG.with_columns(item=pl.when(pl.int_range(1200) % 2 == 0).then(pl.lit("soap")).otherwise("item"))
    halved = unseen.filter(pl.col("item") != "soap")
    whole, half = (ips_of(log, policy, NAMES) for log in (unseen, halved))
    assert whole == pytest.approx(half / 2)  # a policy never takes an action that it does not know


def test_a_policy_of_ones_own_is_made_once_its_width_is_known():
    found = learner(policy=lambda width, actions: MLP(width, actions, hidden=(3,))).fit(LOG, **NAMES)
    assert found.policy_.context_dimension == 6
    assert type(learner(policy=LinearSoftmax).fit(LOG, **NAMES).policy_) is LinearSoftmax
    ready = LinearSoftmax(6, 4)
    assert learner(policy=ready).fit(LOG, **NAMES).policy_.classes_.tolist() == ITEMS
    for odd, says in (
        (
            lambda width, actions: MLP(width, actions + 1),
            r"must make a Policy with 4 actions; it made one with 5 actions",
        ),
        (lambda width, actions: None, r"it made NoneType"),
        (LinearSoftmax(7, 4), r"takes contexts of 7 numbers; found 6"),
        (LinearSoftmax(6, 5), r"the policy has 5 actions, but 4 names of actions were found"),
        (torch.nn.Linear(3, 2), r"policy must be a Policy; found Linear"),
    ):
        with pytest.raises(OptionError, match=says):
            learner(policy=odd).fit(LOG, **NAMES)
    with refuses(OptionError):
        learner(n_actions=9).fit(LOG, **NAMES)


FRAME = pl.DataFrame(
    {
        "item": ["tea", "bread", "soap", "milk", "jam"],
        "price": [3.0, 1.0, 9.0, 2.0, 4.0],
        "kind": ["drink", "food", "house", "drink", "food"],
    }
)


def test_items_of_a_frame_are_the_actions_in_their_order():
    found = learner().fit(LOG, **NAMES, items=FRAME)
    assert isinstance(found.policy_, TwoTower)
    assert found.classes_.tolist() == sorted(FRAME["item"])
    ordered = FRAME.sort("item")
    price = (ordered["price"] - ordered["price"].mean()) / ordered["price"].std(ddof=0)
    kinds = [[float(one == kind) for kind in ("drink", "food", "house")] for one in ordered["kind"]]
    expected = np.column_stack([price, kinds])
    np.testing.assert_allclose(found.policy_.scores.features, expected, rtol=1e-6)
    again = learner().fit(LOG, **NAMES, items=FRAME[::-1].to_pandas())
    same(again, found)
    small = learner(
        policy=lambda width, actions, item_features: TwoTower(width, actions, dimension=2, item_features=item_features)
    )
    assert small.fit(LOG, **NAMES, items=FRAME).policy_.scores.map.shape == (2, 4)


@pytest.mark.parametrize(
    ("items", "error", "says"),
    [
        (FRAME[:2], LogError, r"2 of the logged actions are not among the 2 .*; one is 'jam'"),
        (pl.concat([FRAME, FRAME[:1]]), OptionError, r"has the id 'tea' more than once in 'item'"),
        (
            FRAME.with_columns(item=pl.when(pl.col("price") < 2).then(None).otherwise("item")),
            OptionError,
            r"1 rows without an id",
        ),
        (FRAME.select("item"), OptionError, r"has ids and nothing else"),
        (
            FRAME.with_columns(item=pl.int_range(5)),
            OptionError,
            r"'item' are text, and those of the policy or the items are whole",
        ),
        (FRAME.with_columns(item=pl.int_range(5) - 1), OptionError, r"has the id -1"),
        (FRAME.with_columns(item="price"), OptionError, r"ids of type Float64"),
    ],
)
def test_items_that_do_not_fit_are_refused(items, error, says):
    with pytest.raises(error, match=says):
        learner().fit(LOG, **NAMES, items=items)


def test_a_policy_that_is_made_takes_no_items_but_their_features_can_be_had():
    with refuses(OptionError):
        learner(policy=LinearSoftmax(6, 4)).fit(LOG, **NAMES, items=FRAME)
    with refuses(OptionError):
        learner(policy=MLP).fit(LOG, **NAMES, items=FRAME)
    with refuses(OptionError):
        learner(policy=lambda width, actions: LinearSoftmax(width, actions)).fit(LOG, **NAMES, items=FRAME)
    items = item_features(FRAME, action="item")
    policy = TwoTower(6, 5, item_features=items.features)
    policy.actions_ = items.classes
    assert learner(policy=policy).fit(LOG, **NAMES).classes_.tolist() == sorted(FRAME["item"])


def test_gaps_in_ids_are_mapped_or_refused():
    ids = LOG.with_columns(item=pl.col("item").replace_strict(ITEMS, [5, 9, 1000, 7], return_dtype=pl.Int64))
    assert learner().fit(ids, **NAMES).classes_.tolist() == [5, 7, 9, 1000]
    with refuses(LogError):
        learner(n_actions=10).fit(ids, **NAMES)
    items = pl.DataFrame({"item": [1000, 3, 5, 7, 9], "price": [1.0, 2.0, 3.0, 4.0, 5.0]})
    found = learner().fit(ids, **NAMES, items=items)
    assert found.classes_.tolist() == [3, 5, 7, 9, 1000]
    np.testing.assert_allclose(found.policy_.scores.features[:, 0].argsort(), [4, 0, 1, 2, 3])


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (
            {"taste": pl.when(pl.int_range(1200) == 5).then(pl.lit([1.0])).otherwise("taste")},
            ColumnError,
            r"lists of the same length",
        ),
        (
            {"taste": pl.concat_list("item")},
            ColumnError,
            r"column 'taste' has List\(String\); models and policies take numbers, text, ",
        ),
        (
            {"country": pl.format("user {}", pl.int_range(1200) * 7)},
            ColumnError,
            r"has 1,200 different texts, and the 100 most",
        ),
        (
            {"item": pl.when(pl.int_range(1200) == 5).then(None).otherwise("item")},
            LogError,
            r"of 1,200 rows: action 'item' must be given: in 1 row",
        ),
        (
            {"age": pl.when(pl.int_range(1200) == 5).then(float("inf")).otherwise("age")},
            LogError,
            r"context 'age' must be a finite number: in 1",
        ),
        (
            {"taste": pl.when(pl.int_range(1200) == 5).then(None).otherwise("taste")},
            LogError,
            r"context 'taste' must be finite numbers: in 1",
        ),
        ({"item": pl.concat_list("item")}, ColumnError, r"action 'item' must be whole numbers or text"),
    ],
)
def test_columns_that_cannot_be_used_are_refused(change, error, says, monkeypatch):
    monkeypatch.setattr("counterpoise.features.encoder.LEVELS", 100)
    with pytest.raises(error, match=says):
        learner().fit(TASTE.with_columns(**change), **LISTS)


def test_contexts_that_do_not_fit_are_refused():
    policy = learner().fit(TASTE, **LISTS).policy_
    few = TASTE[:3]
    for context, error, says in (
        (few.drop("age"), ColumnError, r"lacks 'age'"),
        (
            few.with_columns(age=pl.lit("old")),
            ColumnError,
            r"learned from numbers in the context 'age', and now it has String",
        ),
        (few.with_columns(age=pl.lit(None)), LogError, r"context 'age' must be finite numbers: 3 of 3"),
        (
            few.with_columns(taste=pl.lit([1.0])),
            ColumnError,
            r"must all have the same length: that of row 0 has 1 numbers, and others have 2",
        ),
        ([["DE", 3]], OptionError, r"a context has 4 columns .* found a row with 2 values"),
        (3, OptionError, r"a context is a frame, a mapping of columns, or rows of values; found int"),
        (np.zeros((1, 3)), OptionError, r"takes contexts of 8 numbers; found 3"),
    ):
        with pytest.raises(error, match=says):
            policy.predict_proba(context)


def test_a_file_that_says_something_else_is_refused(tmp_path):
    path = tmp_path / "policy.safetensors"
    learner().fit(LOG, **NAMES).save(path)
    whole = path.read_bytes()
    for spoil, says in (
        (lambda config: config.update(encoding="text"), "not a list of columns"),
        (lambda config: config["encoding"].pop(), "other columns than its context"),
        (lambda config: config["encoding"][0].update(kind="mystery"), "does not describe how a column"),
        (lambda config: config["encoding"][0].update(levels=["DE", "DE"]), "does not describe how a column"),
        (lambda config: config["encoding"][0].update(levels=["DE"]), "takes contexts of 6 numbers; found 4"),
        (lambda config: config.update(candidates=3), "name of its candidates is not text"),
    ):
        path.write_bytes(whole)
        tensors, description = read_tensors(path)
        spoil(description["config"])
        write_tensors(path, tensors, description)
        with pytest.raises(PolicyFileError, match=says):
            load_policy(path)
    tensors, description = read_tensors(path)
    for names in (["a"], ["tea", "bread", "jam", "milk"], "tea", [1, 2, 3, 4]):
        tensors["action names"] = torch.tensor(list(json.dumps(names).encode()), dtype=torch.uint8)
        write_tensors(path, tensors, description)
        with refuses(PolicyFileError):
            load_policy(path)


def test_plain_policies_are_written_as_before(tmp_path):
    save_policy(LinearSoftmax(2, 3), tmp_path / "policy")
    assert read_tensors(tmp_path / "policy")[1]["format"] == "counterpoise policy 2"


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_onnx_takes_the_columns_and_names_them_and_the_actions(precision, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    policy = learner().fit(TASTE, **LISTS).policy_.to(precision)
    export_onnx(policy, tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"))
    assert [one.name for one in session.get_inputs()] == LISTS["context"]
    told = {name: json.loads(text) for name, text in session.get_modelmeta().custom_metadata_map.items()}
    assert told["counterpoise.classes"] == ITEMS
    assert told["counterpoise.context"] == policy.encoding_.described()
    number = np.float32 if precision == torch.float32 else np.float64
    rows = TASTE.with_columns(country=pl.when(pl.int_range(1200) % 5 == 0).then(pl.lit("XX")).otherwise("country"))
    columns = {
        "country": rows["country"].fill_null("").to_numpy(),
        "age": rows["age"].to_numpy().astype(number),
        "member": rows["member"].to_numpy().astype(number),
        "taste": np.array(rows["taste"].to_list(), dtype=number),
    }
    found = session.run(["probabilities"], columns)[0]
    np.testing.assert_allclose(found, policy.predict_proba(rows), atol=1e-6)
    odd = learner(epochs=1).fit(LOG.rename({"country": "candidates"}), **PARTS, context="candidates").policy_
    with refuses(OptionError):
        export_onnx(odd, tmp_path / "policy.onnx")


GAPS = LOG.with_columns(
    age=pl.when(pl.int_range(len(LOG)) % 3 == 0).then(None).otherwise(pl.col("age").cast(pl.Float64))
)


@pytest.mark.parametrize("context", [["age"], ["age", "country", "member"]])
def test_missing_numbers_are_marked_as_missing_text_is(context, tmp_path, monkeypatch):
    names = NAMES | {"context": context}
    found = learner().fit(GAPS, **names)
    known, mean = GAPS["age"], GAPS["age"].mean()
    assert found.encoding_.features[:2] == ("age", "age is missing")
    table = found.encoding_.table(GAPS)
    np.testing.assert_allclose(table[:, 0], known.fill_null(mean))
    np.testing.assert_array_equal(table[:, 1], known.is_null())
    assert found.policy_.body.scale[1] == 1.0
    nan = GAPS.with_columns(pl.col("age").fill_null(float("nan")))
    same(learner().fit(nan, **names), found)
    same(learner().fit(GAPS.to_pandas(), **names), found)
    GAPS.write_parquet(tmp_path / "log.parquet")
    same(learner().fit(tmp_path / "log.parquet", **names), found)
    monkeypatch.setattr(sources, "CHUNK", 500)
    assert learner().fit(tmp_path / "log.parquet", **names).encoding_.features == found.encoding_.features
    loaded = saved(found.policy_, tmp_path / "policy")
    np.testing.assert_array_equal(loaded.predict_proba(nan), found.predict_proba(GAPS))
    assert ips_of(GAPS, loaded, names) == pytest.approx(by_hand(found.predict_proba(GAPS)), rel=1e-6)
    alone = {"age": None, "country": "DE", "member": True}
    np.testing.assert_allclose(
        loaded.predict_proba({name: alone[name] for name in context}),
        found.predict_proba(
            pl.DataFrame([alone], schema=GAPS.select("age", "country", "member").schema).select(context)
        ),
    )


def saved(policy, path):
    policy.save(path)
    return load_policy(path)


@pytest.mark.filterwarnings("ignore::counterpoise.learn.LearningWarning")
def test_missing_numbers_in_arrays_are_marked_too():
    x = np.column_stack([GAPS["age"].to_numpy(), np.arange(len(GAPS)) % 7.0])
    parts = {
        "action": np.arange(len(GAPS)) % 2,
        "reward": GAPS["reward"].to_numpy(),
        "propensity": np.full(len(GAPS), 0.5),
    }
    found = learner(epochs=1).fit(context=x, **parts)
    table = found.predict_proba(x)
    assert np.isfinite(table).all()
    frame = pl.DataFrame({"context_0": x[:, 0], "context_1": x[:, 1], **parts})
    names = {name: name for name in parts} | {"context": ["context_0", "context_1"]}
    result = cp.evaluate(frame, **names, target=found.policy_)
    by_rows = np.mean(table[np.arange(len(x)), parts["action"]] / 0.5 * parts["reward"])
    assert result[result.targets[0], "ips"].value == pytest.approx(by_rows, rel=1e-6)


def test_onnx_fills_what_is_missing_as_the_policy_does(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    policy = learner(epochs=1).fit(GAPS, **NAMES | {"context": ["age", "member"]}).policy_
    export_onnx(policy, tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"))
    columns = {name: GAPS[name].cast(pl.Float32).to_numpy() for name in ("age", "member")}
    found = session.run(["probabilities"], columns)[0]
    np.testing.assert_allclose(found, policy.predict_proba(GAPS), atol=1e-6)


@pytest.mark.filterwarnings("ignore::counterpoise.learn.LearningWarning")
def test_the_unit_of_times_is_told_and_numbers_are_not_taken_for_them(tmp_path):
    onnx = pytest.importorskip("onnx")
    log = LOG.with_columns(t=pl.date(2026, 1, 1) + pl.duration(days=pl.int_range(len(LOG)) % 300))
    policy = learner(epochs=1).fit(log, **NAMES | {"context": ["t", "member"]}).policy_
    export_onnx(policy, tmp_path / "policy.onnx")
    told = {one.key: json.loads(one.value) for one in onnx.load(tmp_path / "policy.onnx").metadata_props}
    assert told["counterpoise.context"][0] == {"name": "t", "kind": "number", "unit": "microseconds since 1970-01-01"}
    loaded = saved(policy, tmp_path / "policy")
    np.testing.assert_array_equal(loaded.predict_proba(log), policy.predict_proba(log))
    seconds = log.with_columns(pl.col("t").cast(pl.Datetime("us")).dt.epoch("s"))
    with refuses(ColumnError):
        loaded.predict_proba(seconds)


def test_one_context_may_have_a_list():
    policy = learner(epochs=1).fit(TASTE, **LISTS).policy_
    first = TASTE.select(LISTS["context"]).row(0, named=True)
    np.testing.assert_array_equal(policy.predict_proba(first), policy.predict_proba(TASTE[:1]))
    lists = learner(epochs=1).fit(TASTE, **PARTS, context="taste").policy_
    np.testing.assert_array_equal(lists.predict_proba({"taste": first["taste"]}), lists.predict_proba(TASTE[:1]))
    both = {"taste": TASTE["taste"].to_list()[:2]}
    np.testing.assert_array_equal(lists.predict_proba(both), lists.predict_proba(TASTE[:2]))


def test_onnx_of_plain_numbers_tells_their_names(tmp_path):
    onnx = pytest.importorskip("onnx")
    policy = learner(epochs=1).fit(LOG, **NAMES | {"context": ["age", "member"]}).policy_
    export_onnx(policy, tmp_path / "policy.onnx")
    told = {one.key: json.loads(one.value) for one in onnx.load(tmp_path / "policy.onnx").metadata_props}
    assert told["counterpoise.context"] == [{"name": "age", "kind": "number"}, {"name": "member", "kind": "number"}]
    assert told["counterpoise.classes"] == ITEMS


@pytest.mark.filterwarnings("ignore::counterpoise.learn.LearningWarning")
@pytest.mark.parametrize("context", [["t"], ["country", "t"]])
def test_a_time_is_the_same_in_every_unit(context):
    days = pl.int_range(len(LOG)) % 300
    log = LOG.with_columns(t=pl.date(2026, 1, 1) + pl.duration(days=days))
    names = PARTS | {"context": context}
    found = learner().fit(log, **names)
    for unit in ("ms", "us", "ns"):
        other = log.with_columns(t=pl.col("t").cast(pl.Datetime(unit)))
        np.testing.assert_array_equal(
            found.predict_proba(other.select(context)), found.predict_proba(log.select(context))
        )
        same(learner().fit(other, **names), found)
    same(learner().fit(log.to_pandas(), **names), found)
    value = cp.evaluate(log.with_columns(t=pl.col("t").cast(pl.Datetime("ns"))), **names, target={"new": found})
    assert value["new", "ips"].value == cp.evaluate(log, **names, target={"new": found})["new", "ips"].value


def test_items_do_not_leave_contexts_as_they_are():
    items = pl.DataFrame({"item": ITEMS, "sweet": [0.1, 0.9, 0.2, 0.3]})
    names = PARTS | {"context": ["age", "member"]}
    far = LOG.with_columns(age=pl.col("age") * 1e3 + 1e5)
    found = [learner().fit(log, **names, items=items).predict_proba(log.select("age", "member")) for log in (LOG, far)]
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)


def test_digits_that_single_precision_loses_are_missed():
    log = LOG.with_columns(age=pl.col("age") + 1e9)
    with refuses(LogError):
        learner().fit(log, **NAMES)
    learner().fit(LOG.with_columns(age=pl.lit(1e9 + 1)), **NAMES)  # it does not vary, and nothing is lost


def test_chunks_of_a_log_in_order_may_be_nearly_constant(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "CHUNK", 100)
    log = LOG.with_columns(age=1e9 + pl.int_range(len(LOG)) * 10.0)  # 1,000 within a chunk, 12,000 in all
    log.write_parquet(tmp_path / "log.parquet")
    assert learner().fit(tmp_path / "log.parquet", **NAMES).n_features_in_ == 3  # and not refused


def test_contexts_may_be_a_mapping_each():
    found = learner().fit(LOG, **NAMES)
    rows = LOG.select(NAMES["context"]).head(3)
    np.testing.assert_array_equal(found.predict_proba(rows.to_dicts()), found.predict_proba(rows))
    with refuses(ColumnError):
        found.predict_proba([{"country": "DE", "member": True}])
