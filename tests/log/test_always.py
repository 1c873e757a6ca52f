"""`Always("action")`: the same answer as a column that holds that action in every row, everywhere; and offered where it was meant."""

import numpy as np
import polars as pl
import pytest
from messages import refuses

import counterpoise as cp

pytestmark = pytest.mark.filterwarnings("ignore:The 'future.infer_string' option")  # ibis sets it, pandas 3 regrets it

PARTS = {"reward": "click", "propensity": "p", "action": "banner"}


@pytest.fixture(scope="module")
def log():
    """Three banners by chance, of which green earns 0.5 and the others 0.2."""
    random = np.random.default_rng(0)
    n = 3000
    banner = random.choice(["red", "green", "it's \\ blue"], n)
    frame = pl.DataFrame(
        {
            "click": (random.random(n) < np.where(banner == "green", 0.5, 0.2)).astype(float),
            "cost": random.random(n),
            "p": 1 / 3,
            "banner": banner,
            "number": random.integers(0, 3, n),
            "flag": random.random(n) < 0.5,
            "x": random.normal(size=n),
            "day": np.repeat(["mon", "tue"], n // 2),
            "id": np.arange(n),
            "pi_new": random.random(n),
        }
    )
    return frame.with_columns(
        green=pl.lit("green"), blue=pl.lit("it's \\ blue"), two=pl.lit(2), yes=pl.lit(True), pool=pl.lit("red|green")
    )


def same(one, other):
    assert one == pytest.approx(other, rel=1e-12, nan_ok=True)


def test_it_is_a_column_that_holds_the_action(log):
    found = cp.evaluate(log, **PARTS, target=cp.Always("green"), segment="day")
    expected = cp.evaluate(log, **PARTS, target={"green": cp.Chosen("green")}, segment="day")
    assert found.targets == ("green",)
    assert found.verdict().verdict == "ok"
    assert 0.5 in found["green", "beta_ips"].interval  # the truth
    for key, estimate in expected.estimates.items():
        same(found.estimates[key].value, estimate.value)
        same(found.estimates[key].stderr, estimate.stderr)


ACTIONS = {
    "text": ("banner", "it's \\ blue", "blue"),
    "number": ("number", 2, "two"),
    "NumPy's number": ("number", np.int64(2), "two"),
    "the text of a number": ("number", "2", "two"),
    "boolean": ("flag", True, "yes"),
    "the text of a boolean": ("flag", "TRUE", "yes"),
}


@pytest.mark.parametrize(
    "source", ["arrays", "pandas", "lazy", "pyarrow", "parquet", "csv", "json lines", "duckdb", "sqlite"]
)
def test_every_source_and_type_of_action(log, source, tmp_path, request):
    data = source_of(log, source, tmp_path)
    if source == "sqlite":
        request.addfinalizer(data.get_backend().disconnect)
    for column, action, chosen in ACTIONS.values():
        if source == "sqlite" and column == "flag":
            continue  # which has no booleans
        asked = PARTS | {"action": column}
        found = cp.evaluate(data, **asked, target={"t": cp.Always(action)})["t", "beta_ips"]
        same(found.value, cp.evaluate(log, **asked, target={"t": cp.Chosen(chosen)})["t", "beta_ips"].value)
    for column, action in (("number", "green"), ("banner", 2), ("number", True), ("banner", True), ("flag", "maybe")):
        if source == "sqlite" and column == "flag":
            continue
        with refuses(cp.ColumnError):
            cp.evaluate(data, **PARTS | {"action": column}, target=cp.Always(action))


def source_of(log, source, folder):
    if source == "duckdb":
        return pytest.importorskip("duckdb").sql("select * from log")
    if source == "sqlite":
        connection = pytest.importorskip("ibis").sqlite.connect(folder / "log.sqlite")
        connection.create_table("log", log.to_arrow())
        return connection.table("log")
    write = {"parquet": "write_parquet", "csv": "write_csv", "json lines": "write_ndjson"}
    if source in write:
        path = folder / ("log.jsonl" if source == "json lines" else f"log.{source}")
        getattr(log, write[source])(path)
        return path
    made = {"arrays": log.to_dict, "pandas": log.to_pandas, "lazy": log.lazy, "pyarrow": log.to_arrow}[source]()
    return {name: column.to_numpy() for name, column in made.items()} if source == "arrays" else made


def test_every_verb_takes_it(log):
    always, chosen = cp.Always("green"), {"green": cp.Chosen("green")}
    red = cp.compare(log, **PARTS, target=always, against=cp.Always("red"))
    assert red.against == "red"
    same(
        red.value,
        cp.compare(log.with_columns(red=pl.lit("red")), **PARTS, target=chosen, against=cp.Chosen("red")).value,
    )
    assert next(one.target for one in cp.rank(log, **PARTS, target=[cp.Always("red"), always])) == "green"
    same(
        cp.plan(log, **PARTS, target=always, difference=0.1).value_stderr,
        cp.plan(log, **PARTS, target=chosen, difference=0.1).value_stderr,
    )
    found, expected = (cp.sensitivity(log, **PARTS, target=target).bounds(1.5).value for target in (always, chosen))
    same(found, expected)
    found, expected = (cp.distribution(log, **PARTS, target=target).cvar(0.5).value for target in (always, chosen))
    same(found, expected)
    both = cp.evaluate(log, **PARTS | {"reward": ["click", "cost"]}, target=always, cluster="id")
    same(
        both.of("cost")["green", "ips"].value,
        cp.evaluate(log, **PARTS | {"reward": "cost"}, target=chosen)["green", "ips"].value,
    )


def test_it_goes_with_models_and_candidates(log):
    pytest.importorskip("sklearn")
    for more in ({"model": "ridge"}, {"propensity": cp.models.Propensity("logistic")}, {"candidates": "pool"}):
        asked = PARTS | {"context": ["x"]} | more
        found = cp.evaluate(log, **asked, target=cp.Always("green"))
        expected = cp.evaluate(log, **asked, target={"green": cp.Chosen("green")})
        same(found["green", found.best].value, expected["green", expected.best].value)
        same(found["green", found.best].stderr, expected["green", expected.best].stderr)
    asked = PARTS | {"context": ["x"], "model": "ridge", "key": "id"}
    there = cp.evaluate(pytest.importorskip("duckdb").sql("select * from log"), **asked, target=cp.Always("green"))
    same(
        there["green", "optimal_dr"].value,
        cp.evaluate(log, **asked, target=cp.Always("green"))["green", "optimal_dr"].value,
    )


def test_arrays_take_it_next_to_others(log):
    arrays = {part: log[column].to_numpy() for part, column in PARTS.items()}
    expected = cp.evaluate(log, **PARTS, target={"green": cp.Chosen("green"), "new": "pi_new"})
    found = cp.evaluate(**arrays, target={"new": log["pi_new"].to_numpy(), "green": cp.Always("green")})
    assert found.targets == ("new", "green")
    for target in found.targets:
        same(found[target, "snips"].value, expected[target, "snips"].value)
    alone = cp.evaluate(**arrays, target=[cp.Always("green"), cp.Always("red")])
    same(alone["green", "snips"].value, expected["green", "snips"].value)
    rival = cp.compare(**arrays, target=cp.Always("green"), against=cp.Always("red"))
    assert (rival.targets, rival.against) == (("green",), "red")
    with refuses(cp.OptionError):
        cp.evaluate(reward=arrays["reward"], propensity=arrays["propensity"], target=cp.Always("green"))


def test_an_action_that_the_log_lacks_in_some_rows_is_missed(log):
    """On one of two days green was never shown: bounds, as for a column of chosen actions."""
    lacking = log.filter((pl.col("day") == "mon") | (pl.col("banner") != "green"))
    lacking = lacking.with_columns(p=pl.when(pl.col("day") == "mon").then(1 / 3).otherwise(1 / 2))
    there = pytest.importorskip("duckdb").sql("select * from lacking")
    for rows, target in ((lacking, cp.Always("green")), (lacking, cp.Chosen("green")), (there, cp.Always("green"))):
        verdict = cp.evaluate(rows, **PARTS, context=["day"], target={"green": target}).verdict()
        assert "missing-actions" in [caveat.code for caveat in verdict.caveats]


def test_a_log_that_never_takes_it_cannot_say(log):
    result = cp.evaluate(log, **PARTS, target=cp.Always("purple"))
    assert result.verdict().verdict == "not identified"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"target": "green"}, "no column 'grin' for target, but 'banner' has the action 'grin'"),
        ({"target": "green"}, "For a policy that always takes it, pass target=Always(action='grin')."),
        ({"target": "green", "action": None}, "pass target=Always(action='grin') and action='banner'."),
        ({"target": "pi_new", "against": "green"}, "pass against=Always(action='grin')."),
        (
            {"target": ["pi_new", "green"], "where": "day = 'mon'", "segment": "day"},
            "pass target=Always(action='grin').",
        ),
    ],
)
def test_it_is_offered_for_a_target_that_is_an_action(log, asked, said, tmp_path):
    path = tmp_path / "log.parquet"
    other = log.drop("green").with_columns(pl.col("banner").replace("green", "grin"))
    other.write_parquet(path)
    asked = {
        part: [text.replace("green", "grin") for text in ([value] if isinstance(value, str) else value or [])]
        for part, value in asked.items()
    }
    asked = {part: (values[0] if len(values) == 1 else values or None) for part, values in asked.items()}
    verb = cp.compare if "against" in asked else cp.evaluate
    for data in (other, path, pytest.importorskip("duckdb").sql("select * from other")):
        with pytest.raises(cp.ColumnError) as error:
            verb(data, **PARTS | asked)
        assert said in str(error.value)


def test_other_mistakes_stay_what_they_are(log):
    with refuses(cp.ColumnError):
        cp.evaluate(log, **PARTS, target="pi_nwe")
    with refuses(cp.ColumnError):
        cp.evaluate(log.drop("green"), **PARTS | {"reward": "clik"}, target="green")


@pytest.mark.parametrize("action", [None, ["red"], float("nan"), np.array([1, 2]), object])
def test_what_is_no_action_is_refused(action):
    with refuses(cp.OptionError):
        cp.Always(action)


def test_lists_and_the_doctor_refuse_it_in_words(log):
    lists = log.with_columns(slate=pl.col("id") // 3, position=pl.col("id") % 3)
    with refuses(cp.OptionError):
        cp.evaluate(
            lists,
            **PARTS,
            slate="slate",
            position="position",
            propensity_of="item_at_position",
            target=cp.Always("red"),
        )
    with refuses(cp.OptionError):
        cp.doctor(log, target=cp.Always("red"))
    with refuses(cp.OptionError):
        cp.evaluate(log, reward="click", propensity="p", target=cp.Always("red"))


def test_a_state_knows_it_again(log, tmp_path):
    asked = PARTS | {"target": {"t": cp.Always("green")}, "state": tmp_path / "state.json"}
    cp.evaluate(log[:1500], **asked, batch="mon")
    both = cp.evaluate(log[1500:], **asked, batch="tue")
    same(both["t", "ips"].value, cp.evaluate(log, **PARTS, target=cp.Always("green"))["green", "ips"].value)
    with refuses(cp.MomentsError):
        cp.evaluate(log, **asked | {"target": {"t": cp.Always("red")}}, batch="wed")


def test_statements_for_other_databases_have_it(log):
    duckdb, _ = pytest.importorskip("duckdb"), pytest.importorskip("ibis")
    asked = PARTS | {"target": {"t": cp.Always("it's \\ blue")}}
    text = cp.sql(**asked, table="log", dialect="duckdb")
    moments = cp.from_sums(duckdb.sql(text).pl(), **asked)
    same(cp.evaluate(moments)["t", "ips"].value, cp.evaluate(log, **asked)["t", "ips"].value)
    assert "'it\\'s \\\\ blue'" in cp.sql(**asked, table="log", dialect="bigquery")
