"""One log with bad rows of every kind is refused in the same words, with the same counts, by all who read it, wherever it lives."""

import re
import uuid

import numpy as np
import polars as pl
import pytest
from learning import torch  # noqa: F401
from sklearn.linear_model import Ridge
from sklearn.tree import DecisionTreeClassifier

import counterpoise as cp
from counterpoise.environments import SyntheticRanking
from counterpoise.learn import PolicyLearner, RankingLearner

NAN, INF = float("nan"), float("inf")
# by row; the last propensity is possible, but its weight could not be squared
BAD = {
    7 * k + 5: cell
    for k, cell in enumerate(
        [
            *(("p", value) for value in (0.0, -0.1, 1.5, NAN, None, 1e-60)),
            *(("r", value) for value in (NAN, INF, -INF, None)),
            ("user", None),
            *(("x0", value) for value in (NAN, INF, None)),
        ]
    )
}
PARTS = {
    "reward": "r",
    "propensity": "p",
    "cluster": "user",
    "control": {"x0": 0.0},
    "context": ["x1"],
    "action": "action",
}
SOURCES = ["arrays", "polars", "parquet", "duckdb", "postgresql"]
UNORDERED = ("duckdb", "postgresql")


def planted(log, bad):
    for row, (column, value) in bad.items():
        here = pl.int_range(pl.len()) == row
        log = log.with_columns(pl.when(here).then(pl.lit(value)).otherwise(pl.col(column)).alias(column))
    return log


def drawn(n=300, seed=0):
    random = np.random.default_rng(seed)
    action = random.integers(0, 2, n)
    log = pl.DataFrame(
        {
            "r": random.normal(action, 1.0),
            "p": np.full(n, 0.5),
            "user": np.arange(n) // 2,
            "x0": random.normal(size=n),
            "x1": random.normal(size=n),
            "action": action,
            "learned": np.full(n, 0.5),  # what the learner calls its own policy, so that the words can be the same
        }
    )
    return planted(log, BAD)


class Even:
    """A policy that says of each action what the column says."""

    classes_ = np.array([0, 1])

    def predict_proba(self, context):
        return np.full((len(context), 2), 0.5)


def opened(source, log, tmp_path, request):
    """The log in one of its places, as the arguments of a verb."""
    if source == "arrays":
        return {"log": {name: log[name].to_list() for name in log.columns}}
    if source == "polars":
        return {"log": log}
    if source == "parquet":
        log.write_parquet(tmp_path / "log.parquet")
        return {"log": tmp_path / "log.parquet"}
    if source == "duckdb":
        duckdb = pytest.importorskip("duckdb")
        with duckdb.connect(str(tmp_path / "log.duckdb")) as base:
            base.execute("CREATE TABLE logs AS SELECT * FROM log")
        return {"log": tmp_path / "log.duckdb", "table": "logs"}
    url, ibis = request.getfixturevalue("postgres"), pytest.importorskip("ibis")
    connection, name = ibis.connect(url), f"words_{uuid.uuid4().hex[:12]}"
    connection.create_table(name, log.to_arrow())

    def remove():
        connection.drop_table(name)
        connection.disconnect()

    request.addfinalizer(remove)
    return {"log": url, "table": name}


@pytest.fixture(params=SOURCES)
def source(request, tmp_path):
    return request.param, opened(request.param, drawn(), tmp_path, request)


def learner(**options):
    return PolicyLearner(**{"epochs": 1, "batch_size": 64, "folds": None} | options)


def told(verb, *args, **parts):
    """What a verb says about a log that it refuses."""
    with pytest.raises(cp.LogError) as refused:
        verb(*args, **parts)
    return str(refused.value)


def wherever(words):
    """The words without the row and its value, which depend on the order of rows."""
    return re.sub(r"(one has|the first is row [\d,]+ with|one is ranking) (a propensity of )?[^ ]+\. ", "… ", words)


def sentences(words):
    """The sentences about the rules, one by one."""
    return words.split(" rows: ", 1)[1].split(" Also: ")


DROP = r"Fix the logger, or drop such rows with drop_bad_rows=True\."
EXPECTED = " Also: ".join(
    [
        r"of 300 rows: propensity 'p' must lie in \(0, 1\]: 5 rows do not; the first is row 5 with 0.0\. .*",
        rf"reward 'r' must be a finite number: in 4 rows it is not; the first is row 47 with nan\. {DROP} If .* proxy=, .*",
        r"target 'learned' must be below 1e\+50 times the propensity: in 1 row it is not; the first is row 40 with a propensity of "
        rf"1e-60\. {DROP}",
        rf"control 'x0' must be a finite number: in 3 rows it is not; the first is row 82 with nan\. {DROP}",
        rf"cluster 'user' must be given: in 1 row it is not; the first is row 75 with null\. {DROP}",
    ]
)
WHOLE = told(cp.evaluate, drawn(), **PARTS, target="learned")


def test_every_kind_is_counted_and_the_first_row_is_named():
    assert re.fullmatch(EXPECTED, WHOLE)


def test_everyone_says_the_same(source):
    name, log = source
    policy = {"learned": Even()}
    said = {
        "evaluate": told(cp.evaluate, **log, **PARTS, target="learned"),
        "policy": told(cp.evaluate, **log, **PARTS, target=policy),
        "reward model": told(cp.evaluate, **log, **PARTS, target=policy, model=Ridge()),
        "fit": told(learner().fit, **log, **PARTS),
        "learn_policy": told(cp.learn_policy, **log, **PARTS),
    }
    for who, words in said.items():
        assert wherever(words) == wherever(WHOLE), who
        assert ("one has" in words) == (name in UNORDERED), who
        assert ("the first is row" in words) != (name in UNORDERED), who
        assert name in UNORDERED or words == WHOLE, who
    findings = [finding.message for finding in cp.doctor(**log, **PARTS, target="learned").findings]
    for sentence in sentences(WHOLE):
        assert any(wherever(message).startswith(wherever(sentence)) for message in findings), sentence
        assert name in UNORDERED or any(message.startswith(sentence) for message in findings), sentence


@pytest.mark.filterwarnings("ignore::counterpoise.learn.LearningWarning")
def test_everyone_drops_the_same(source):
    _, log = source
    parts = PARTS | {"drop_bad_rows": True}
    result = cp.evaluate(**log, **parts, target="learned")
    assert (result.n, result.dropped_rows) == (300 - len(BAD), len(BAD))
    assert cp.evaluate(**log, **parts, target={"learned": Even()}, model=Ridge()).dropped_rows == len(BAD)
    assert learner().fit(**log, **parts).dropped_rows_ == len(BAD)
    reduction = {"objective": "reduction", "model": DecisionTreeClassifier(max_depth=2), "folds": 2}
    assert cp.learn_policy(**log, **parts, **reduction).dropped_rows == len(BAD)


LISTS = {
    "slate": "list",
    "position": "position",
    "reward": "click",
    "action": "item",
    "context": "context",
    "propensity": "p_given",
    "propensity_of": "item_given_above",
    "cluster": "user",
}
BAD_LISTS = {
    4: ("p_given", 0.0),
    7: ("p_given", 1e-60),
    10: ("click", NAN),
    13: ("click", None),
    16: ("position", None),
    19: ("user", None),
    22: ("list", None),
}


def lists():
    log = SyntheticRanking(positions=3, seed=0).draw(400)
    log = log.with_columns(
        user=pl.col("list") // 2,
        learned=pl.lit(0.5),
        **{name: pl.col(name).cast(pl.Float64) for name in ("click", "position")},
    )
    return planted(log.select("list", "position", "item", "context", "click", "p_given", "user", "learned"), BAD_LISTS)


@pytest.mark.filterwarnings("ignore::counterpoise.learn.LearningWarning")
@pytest.mark.parametrize("name", SOURCES)
def test_lists_are_refused_and_dropped_alike(name, tmp_path, request):
    log = opened(name, lists(), tmp_path, request)
    ranker = RankingLearner(epochs=1, batch_size=64, progress=False)
    words, ranked = told(cp.evaluate, **log, **LISTS, target="learned"), told(ranker.fit, **log, **LISTS)
    assert wherever(ranked) == wherever(words)
    for expected in (
        "of 401 rankings: propensity 'p_given' must lie in (0, 1]: 1 ranking does not",
        "reward 'click' must be a finite number: 2 rankings do not",
        "target 'learned' must be below 1e+50 times the propensity: 1 ranking does not",
        "slate 'list' must be given: 1 ranking does not; one is ranking None",
        "position 'position' must be a whole number: 1 ranking does not",
    ):
        assert expected in ranked
    assert ranker.fit(**log, **LISTS, drop_bad_rows=True).dropped_rows_ == 8
    if name not in UNORDERED:  # whose queries take a while
        assert cp.evaluate(**log, **LISTS, target="learned", drop_bad_rows=True).dropped_rows == 8
