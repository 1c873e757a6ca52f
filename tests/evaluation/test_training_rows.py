"""A learned policy is known to have seen the rows it is judged by, wherever they come from, and fresh rows are not taken for them."""

import pickle

import numpy as np
import polars as pl
import pytest
from command_line import invoke

import counterpoise as cp
from counterpoise.log.sketches import SIZE, Lesson, Sketch, row_keys

torch = pytest.importorskip("torch")

from counterpoise.learn import PolicyLearner, RankingLearner, load_policy, save_policy  # noqa: E402
from counterpoise.learn.contenders import portfolio  # noqa: E402

PARTS = {"context": ["x", "kind"], "action": "action", "reward": "reward", "propensity": "propensity"}
CODE = "own-training-rows"


def world(n, seed):
    random = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "x": random.normal(size=n).astype(np.float32).astype(np.float64),
            "kind": pl.Series([("a", "b", None)[k] for k in random.integers(0, 3, n)]),
            "action": random.choice(["tea", "jam", "milk"], n),
            "reward": (random.random(n) < 0.3).astype(float),
            "propensity": np.full(n, 1 / 3),
            "day": np.arange(n) % 7,
        }
    )


def codes(result, target="new"):
    return [caveat.code for caveat in result.verdict(target).caveats if caveat.code == CODE]


def caveat(result, target="new"):
    return next(one for one in result.verdict(target).caveats if one.code == CODE)


@pytest.fixture(scope="module")
def log():
    return world(2000, 0)


@pytest.fixture(scope="module")
def learner(log):
    with pytest.warns(UserWarning, match="policy"):
        return PolicyLearner(epochs=1, batch_size=500).fit(log, **PARTS)


@pytest.fixture(scope="module")
def saved(learner, tmp_path_factory):
    path = tmp_path_factory.mktemp("policies") / "new.safetensors"
    learner.save(path)
    return path


def test_noise_that_was_learned_is_doubted_and_the_honest_estimate_is_named(learner, log):
    result = cp.evaluate(log, **PARTS, target={"new": learner})
    found, honest = caveat(result), learner.result_["fold policies", "beta_ips"]
    assert result.verdict("new").verdict == "caution"
    assert (found.severity, found.numbers["share"], found.numbers["share_of_training"]) == ("caution", 1.0, 1.0)
    assert learner.lesson_.estimate["value"] == honest.value
    assert f"{honest.value:.4g}" in found.text


@pytest.mark.filterwarnings("ignore:fetch_arrow_table")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    "source", ["arrays", "lazy", "pandas", "arrow", "parquet", "csv", "jsonl", "duckdb", "shuffled", "float32"]
)
def test_the_same_rows_are_known_in_any_source(source, log, saved, tmp_path):
    data, more, path = log, {}, tmp_path / f"log.{source}"
    if source == "arrays":
        data = {name: log[name].to_list() if name == "kind" else log[name].to_numpy() for name in log.columns}
    elif source == "lazy":
        data = log.lazy().select(reversed(log.columns))
    elif source == "pandas":
        data = pytest.importorskip("pandas").DataFrame(log.to_dict(as_series=False))
    elif source == "arrow":
        data = log.with_columns(pl.col("kind", "action").cast(pl.Categorical)).to_arrow()
    elif source in ("parquet", "csv", "jsonl"):
        write = {"parquet": "write_parquet", "csv": "write_csv", "jsonl": "write_ndjson"}[source]
        getattr(log.with_columns(pl.col("reward").cast(pl.Int64)), write)(path)
        data = path
    elif source == "duckdb":
        data = pytest.importorskip("duckdb").connect()
        data.register("rows", log.to_arrow())
        data.execute("create table log as select * from rows")
        more = {"table": "log"}
    elif source == "shuffled":
        data = log.sample(fraction=1.0, shuffle=True, seed=1)
    else:
        data = log.with_columns(pl.col("x", "reward").cast(pl.Float32))
    result = cp.evaluate(data, **PARTS, **more, target={"new": load_policy(saved)})
    assert caveat(result).numbers["share"] == 1.0
    assert not codes(cp.evaluate(world(3000, 1), **PARTS, target={"new": load_policy(saved)}))


def test_a_part_a_superset_and_another_reward_of_the_same_rows_are_known(log, saved):
    target = {"new": load_policy(saved)}
    assert caveat(cp.evaluate(log, **PARTS, target=target, where="day < 2")).numbers["share"] == 1.0
    more = pl.concat([log, world(1000, 5)])
    assert caveat(cp.evaluate(more, **PARTS, target=target)).numbers["share"] == pytest.approx(2 / 3, abs=0.05)
    twice = log.with_columns(spend=pl.col("reward") * 3)
    found = cp.evaluate(twice, **PARTS | {"reward": ["spend", "reward"]}, target=target)
    assert codes(found["spend"] if isinstance(found, dict) else found)


def test_every_verb_that_scores_policies_says_so(log, saved):
    target = {"new": load_policy(saved), "other": LinearSoftmaxOf(log)}
    assert codes(cp.compare(log, **PARTS, target={"new": target["new"]}, against={"other": target["other"]}))
    result = cp.evaluate(log, **PARTS, target=target)
    assert codes(result, "new")
    assert not codes(result, "other")
    assert {one.decision for one in cp.rank(log, **PARTS, target=target) if one.target == "new"} == {"undecided"}


class LinearSoftmaxOf:
    """A policy that nobody learned."""

    def __init__(self, log):
        self.classes_ = np.array(sorted(log["action"].unique()))

    def predict_proba(self, context):
        return np.full((len(context), len(self.classes_)), 1 / len(self.classes_))


def test_with_a_reward_model_it_is_said_too(log, saved):
    pytest.importorskip("sklearn")
    assert codes(cp.evaluate(log, **PARTS, target={"new": load_policy(saved)}, model="ridge"))


def test_found_policies_and_rankers_remember_their_rows(log):
    numbers = log.with_columns(action=pl.col("x").rank("ordinal").cast(pl.Int64) % 3)
    parts = PARTS | {"context": ["x"]}
    found = cp.learn_policy(numbers[:400], **parts, contenders=portfolio(3)[:1])
    assert codes(cp.evaluate(numbers[:400], **parts, target={"new": found}))
    random = np.random.default_rng(0)
    lists = pl.DataFrame(
        {
            "list": np.arange(600) // 2,
            "place": np.arange(600) % 2,
            "x": np.repeat(random.normal(size=300), 2),
            "item": np.concatenate([random.permutation(4)[:2] for _ in range(300)]),
            "reward": random.integers(0, 2, 600),
            "propensity": np.tile([1 / 4, 1 / 3], 300),
        }
    )
    asked = {
        "slate": "list",
        "position": "place",
        "propensity_of": "item_given_above",
        "context": "x",
        "action": "item",
    }
    asked |= {"reward": "reward", "propensity": "propensity"}
    with pytest.warns(UserWarning, match="policy"):
        ranker = RankingLearner(epochs=1).fit(lists, **asked)
    assert caveat(cp.evaluate(lists, **asked, target={"new": ranker})).numbers["share"] > 0.8


def test_learning_from_arrays_is_known_in_frames(log):
    arrays = {"context": log["x"].to_numpy()[:, None], "action": log["day"].to_numpy() % 3}
    arrays |= {"reward": log["reward"].to_numpy(), "propensity": log["propensity"].to_numpy()}
    learner = PolicyLearner(epochs=1, folds=None).fit(**arrays)
    frame = log.with_columns(action=pl.col("day") % 3)
    result = cp.evaluate(frame, **PARTS | {"context": ["x"]}, target={"new": learner})
    assert caveat(result).do == "Evaluate it on other rows."


def test_going_on_with_other_rows_forgets_none(log):
    parts = PARTS | {"context": ["x"]}
    first = PolicyLearner(epochs=1, folds=None).fit(log, **parts)
    again = PolicyLearner(epochs=1, folds=None, policy=first.policy_).fit(world(3000, 7), **parts)
    for rows in (log, world(3000, 7)):
        assert caveat(cp.evaluate(rows, **parts, target={"new": again})).numbers["share"] == 1.0


def test_policies_without_a_memory_are_judged_as_before(log, learner, tmp_path):
    policy = pickle.loads(pickle.dumps(learner.policy_))
    policy.lesson_ = None
    save_policy(policy, tmp_path / "old")
    assert load_policy(tmp_path / "old").lesson_ is None
    assert cp.evaluate(log, **PARTS, target={"new": load_policy(tmp_path / "old")}).verdict("new").verdict == "ok"


def test_the_command_line_says_so(log, saved, tmp_path):
    log.write_parquet(tmp_path / "log.parquet")
    columns = ["--context", "x", "--context", "kind", "--action", "action"]
    done = invoke("evaluate", tmp_path / "log.parquet", *columns, "--target", saved)
    assert done.exit_code == 0, done.output
    assert "learned from these rows" in " ".join(done.stdout.split())


# -- sketches ----------------------------------------------------------------------------------------------------------------


def overlap(training, log):
    sketch = Sketch()
    for part in np.array_split(training, 3):
        sketch.add(part)
    watch = Sketch.from_plain(sketch.to_plain()).watch()
    for part in np.array_split(log, 2):
        watch.add(part)
    return watch.overlap()


def rows(kind, n, random):
    action, click = random.integers(0, 2, n), random.random(n) < 0.3
    users = np.random.default_rng(9).normal(size=4000)
    context = {
        "numbers": lambda: random.normal(size=n),
        "three contexts": lambda: random.integers(0, 3, n),
        "two hundred contexts": lambda: random.integers(0, 200, n),
        "thousands of contexts": lambda: random.integers(0, 3000, n),
        "a long tail": lambda: np.minimum(random.zipf(1.4, n), 10**7),
        "users who come back": lambda: users[random.permutation(4000)[:n]],
    }[kind]()
    return row_keys([context], action, click)


KINDS = [
    "numbers",
    "three contexts",
    "two hundred contexts",
    "thousands of contexts",
    "a long tail",
    "users who come back",
]


@pytest.mark.parametrize("kind", KINDS)
def test_fresh_rows_of_the_same_world_are_not_taken_for_those_of_the_training(kind):
    random = np.random.default_rng(1)
    for n in (800, 3000):
        assert not any(overlap(rows(kind, 3000, random), rows(kind, n, random)).is_same for _ in range(25))


@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_training_log_is_known_in_any_order(kind):
    random = np.random.default_rng(2)
    training = rows(kind, 3000, random)
    found = overlap(training, random.permutation(training))
    assert (found.is_same, found.share) == (True, 1.0)


@pytest.mark.parametrize("kind", ["numbers", "thousands of contexts", "users who come back"])
def test_parts_and_supersets_are_known_where_rows_differ_enough(kind):
    random = np.random.default_rng(3)
    training = rows(kind, 3000, random)
    assert overlap(training, random.permutation(training)[:600]).is_same
    assert overlap(training, np.concatenate([training, rows(kind, 1000, random)])).is_same


def test_a_sketch_is_small_and_does_not_depend_on_how_rows_come():
    keys = rows("numbers", 50_000, np.random.default_rng(4))
    whole, parts = Sketch(), Sketch()
    whole.add(keys)
    for part in np.array_split(keys[::-1], 7):
        parts.add(part)
    np.testing.assert_array_equal(whole.keys, np.sort(keys)[:SIZE])
    np.testing.assert_array_equal(whole.keys, parts.keys)
    np.testing.assert_array_equal(whole.counts, parts.counts)
    assert len(str(whole.to_plain())) < 40_000


@pytest.mark.parametrize(
    "change",
    [{"keys": "%"}, {"keys": ""}, {"rows": -1}, {"rows": "7"}, {"counts": "AAAA"}, {"estimate": [1]}, {"estimate": {}}],
)
def test_a_memory_that_makes_no_sense_is_refused(change):
    sketch = Sketch()
    sketch.add(rows("numbers", 10, np.random.default_rng(5)))
    plain = Lesson(sketch, {"value": 1.0, "lower": 0.0, "upper": 2.0, "verdict": "ok"}).to_plain()
    assert Lesson.from_plain(plain).estimate["value"] == 1.0
    with pytest.raises(ValueError, match=r"makes no sense|cannot be read"):
        Lesson.from_plain(plain | change)
