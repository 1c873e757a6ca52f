"""The report's plots rest on the rows that its estimates rest on, whatever was asked, and show the best of however many targets."""

import json
import pickle
import re

import duckdb
import numpy as np
import polars as pl
import pytest
from command_line import invoke, shop
from conftest import sampled
from messages import refuses

import counterpoise as cp
from counterpoise.evaluation.plan import plan
from counterpoise.evaluation.reading import read
from counterpoise.report import render, write_report
from counterpoise.report.page import profile

pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'future.infer_string' option"),  # ibis sets it, pandas 3 regrets it
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
ASKED = {"reward": "click", "propensity": "p"}


def awkward(rows=900):
    """A log with every kind of bad row that an estimate drops, and some rows that a condition leaves out."""
    frame = shop(rows)
    bad = {
        "pi_new": [1.5, 0.5, 0.5, 0.5, -0.1, None],
        "p": [0.5, 0.0, 0.5, 1e-60, 0.5, 0.5],
        "click": [1.0, 1.0, None, 1.0, 1e60, 0.0],
    }
    rest = frame.head(6).with_columns(pl.Series(name, values) for name, values in bad.items())
    no_user = frame.slice(6, 1).with_columns(user_id=pl.lit(None, frame.schema["user_id"]))
    return pl.concat([frame.head(rows // 2), rest, no_user, frame.tail(rows - rows // 2)]).with_columns(
        best=pl.when(pl.col("pi_new") > 0.5).then("action").otherwise(1 - pl.col("action"))
    )


def follows(batch):
    """A policy: 0.8 for banner 1."""
    return np.where(np.asarray(batch.column("action")) == 1, 0.8, 0.2)


class Classifier:
    """A policy with the face of scikit-learn."""

    classes_ = np.array([0, 1])

    def predict_proba(self, context):
        return np.tile([0.3, 0.7], (len(context), 1))


QUESTIONS = {
    "a column": {"target": "pi_new"},
    "two columns": {"target": ["pi_new", "pi_old"]},
    "a named column": {"target": {"new": "pi_new"}},
    "a condition": {"target": "pi_new", "where": "country = 'DE'"},
    "expressions": {"target": {"mixed": "(pi_new + pi_old) / 2"}, "reward": "click * 2"},
    "clusters": {"target": "pi_new", "cluster": "user_id"},
    "segments and keys": {"target": "pi_new", "segment": "country", "key": "user_id"},
    "a policy": {"target": follows, "context": ["pi_old"], "action": "action"},
    "a named classifier": {"target": {"rf": Classifier()}, "context": ["pi_old"], "action": "action"},
    "an action": {"target": cp.Chosen("best"), "action": "action", "where": "country IS NOT NULL"},
    "an awkward name": {"target": {"<b>": "pi_new"}},
}
PLACES = ["arrays", "polars", "lazy", "pandas", "arrow", "parquet", "csv", "duckdb file", "relation"]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """The same log in every place: (log, how to find it there)."""
    folder, frame = tmp_path_factory.mktemp("logs"), awkward()
    frame.write_parquet(folder / "log.parquet")
    frame.write_csv(folder / "log.csv")
    with duckdb.connect(folder / "log.duckdb") as connection:
        connection.execute("CREATE TABLE logs AS SELECT * FROM frame")
    return {
        "arrays": ({name: frame[name].to_list() for name in frame.columns}, {}),
        "polars": (frame, {}),
        "lazy": (frame.lazy(), {}),
        "pandas": (frame.to_pandas(), {}),
        "arrow": (frame.to_arrow(), {}),
        "parquet": (str(folder / "log.parquet"), {}),
        "csv": (folder / "log.csv", {}),
        "duckdb file": (str(folder / "log.duckdb"), {"table": "logs"}),
        "relation": (duckdb.sql("SELECT * FROM frame"), {}),
    }


# what the others ask of a library, these do, too
OWN = ("a column", "two columns", "a named column", "clusters", "a named classifier", "an awkward name")


@pytest.mark.parametrize("place", sampled(PLACES, "relation", "csv"))
@pytest.mark.parametrize("question", [pytest.param(one, marks=[pytest.mark.once] * (one in OWN)) for one in QUESTIONS])
def test_plots_rest_on_the_rows_of_the_estimates(places, question, place):
    log, where = places[place]
    check_rows(log, QUESTIONS[question], **where)


def check_rows(log, question, **where):
    result = cp.evaluate(log, **(ASKED | question), **where, drop_bad_rows=True)
    assert result.dropped_rows > 0
    found = profile(result.asked(), result.targets, rows=result.n, level=0.95)
    for target in result.targets:
        last = found[target].steps[-1]
        assert last.n == found[target].counts.sum() + found[target].zeros == result.n
        assert last.value == pytest.approx(result[target, "beta_ips"].value, rel=1e-9)
    page = render(result)
    assert "As rows come in" in page
    assert "usable rows, but the estimates rest on" not in page


def test_plots_rest_on_the_rows_of_the_estimates_in_postgresql(postgres):
    ibis = pytest.importorskip("ibis")
    connection = ibis.connect(postgres)
    connection.create_table("report_rows", awkward().to_arrow(), overwrite=True)
    try:
        for question in QUESTIONS.values():
            check_rows(postgres, question, table="report_rows")
        uuids = "SELECT *, md5(CAST(user_id AS text))::uuid AS id FROM report_rows"
        check_rows(postgres, {"target": "pi_new", "cluster": "id"}, query=uuids)
    finally:
        connection.drop_table("report_rows")
        connection.disconnect()


def test_a_comparison_has_plots_of_both_policies():
    log = awkward()
    result = cp.compare(
        log, **ASKED, target={"<new>": "pi_new"}, against="pi_old", where="action = 1", drop_bad_rows=True
    )
    page = render(result)
    assert "Weights of <bdi>&lt;new&gt;</bdi>" in page
    assert "Weights of <bdi>pi_old</bdi>" in page
    assert "usable rows" not in page


def test_a_text_file_whose_later_rows_are_unlike_the_first_has_plots(tmp_path):
    frame = shop(12_000).with_columns(session=pl.Series(["1"] * 11_999 + ["x1"]))
    frame.write_csv(tmp_path / "log.csv")
    asked = {"target": "pi_new", "cluster": "session"}
    result = cp.evaluate(tmp_path / "log.csv", **ASKED, **asked)
    assert "As rows come in" in render(result)


def test_stored_moments_have_forgotten_their_log():
    log = awkward()
    result = cp.evaluate(log, **ASKED, target="pi_new", drop_bad_rows=True)
    stored = cp.evaluate(result.moments)
    assert stored.question is None
    assert "As rows come in" in render(result)
    assert "As rows come in" not in render(stored)
    with refuses(cp.OptionError):
        stored.asked()


@pytest.mark.parametrize("ask", [cp.evaluate, cp.compare])
def test_rows_of_earlier_logs_are_not_passed_over_in_silence(tmp_path, ask):
    log, asked = awkward(), ASKED | {"target": "pi_new", "drop_bad_rows": True}
    first = ask(log[:60], **asked, state=tmp_path / "state.json", batch="a")
    assert first.earlier_rows == 0
    assert "As rows come in" in render(first)  # all of them are at hand
    second = ask(log[60:], **asked, state=tmp_path / "state.json", batch="b")
    assert second.earlier_rows == first.n
    page = second.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "As rows come in" not in page
    assert "Histogram" not in page
    assert f"{first.n:,} of the {second.n:,} rows come from earlier logs" in page
    again = ask(log[60:], **asked, state=tmp_path / "state.json", batch="b", replace=True)
    assert again.earlier_rows == first.n


def test_a_result_travels_without_its_policies():
    result = cp.evaluate(awkward(), **ASKED, target={"x": lambda batch: follows(batch)}, context=["pi_old"], action="action",
                         drop_bad_rows=True)  # fmt: skip
    back = pickle.loads(pickle.dumps(result))
    assert back["x", "beta_ips"] == result["x", "beta_ips"]
    assert "Weights of <bdi>x</bdi>" in render(back)


def many(targets, best, rows=400, segments=1):
    """Targets one slightly better than the other, the best of them at a place of its own."""
    random = np.random.default_rng(1)
    reward, mood = random.integers(0, 2, rows).astype(float), random.uniform(-0.1, 0.1, rows)
    log = {"r": reward, "p": np.full(rows, 0.5), "s": np.arange(rows) % segments}
    for k in range(targets):
        good = 0.6 if k == best else 0.5 + 0.0001 * k
        log[f"pi_{k}"] = np.where(reward == 1, good, 1 - good) + mood
    return log, [f"pi_{k}" for k in range(targets)]


@pytest.mark.thorough
@pytest.mark.once
@pytest.mark.parametrize("ask", [cp.evaluate, cp.compare])
def test_the_best_of_many_targets_is_plotted_and_listed(ask):
    log, targets = many(300, best=299)
    result = ask(log, reward="r", propensity="p", target=targets)
    ranked = sorted(targets, key=lambda name: -result[name, "beta_ips"].value)
    assert ranked[0] == read(result).best_target == "pi_299"
    page = render(result)
    assert re.findall(r"<h3>Weights of <bdi>(\w+)</bdi>", page) == ranked[:8]
    assert "Histogram of the weights of pi_299" in page
    assert "Estimate of pi_299 by rows read" in page
    for caption in ("Estimates of every target", "Checks on the weights"):
        table = re.search(f"<caption>{caption}</caption>.*?</table>", page, flags=re.S)[0]
        assert "<bdi>pi_299</bdi>" in table
        assert list(dict.fromkeys(re.findall(r"<bdi>(pi_\d+)</bdi>", table))) == ranked[:200]
    assert "Of 300 targets, only the 200 with the highest estimates are shown here" in page
    assert page.count('<span class="badge is-ok">✓ ok</span> <b><bdi>pi_') == 200  # of the checks
    assert "Of 300 policies, only the 20 with the highest estimates" in page  # of the picture
    assert "and 250 more" in page


@pytest.mark.thorough
@pytest.mark.once
def test_the_other_policy_of_a_comparison_keeps_its_plot():
    log, targets = many(30, best=20)
    page = render(cp.compare(log, reward="r", propensity="p", target=targets, against="pi_0"))
    drawn = re.findall(r"<h3>Weights of <bdi>(\w+)</bdi>", page)
    assert {"pi_0", "pi_20"} <= set(drawn)
    assert len(drawn) == 8


@pytest.mark.once
def test_every_segment_of_the_best_target_is_listed():
    log, targets = many(40, best=17, rows=1500, segments=500)
    result = cp.evaluate(log, reward="r", propensity="p", target=targets, segment="s")
    page = render(result)
    rows = re.findall(r'<tr class="\w+" data-verdict="[^"]*"><td><bdi>(\w+)</bdi>', page)
    assert rows.count("pi_17") == 500
    assert len(rows) == 1000
    assert "Of 40 targets, only the 2 with the highest estimates" in page


def test_a_report_is_written_for_every_question_of_the_command_line(tmp_path):
    frame, path = awkward(), tmp_path / "report.html"
    frame.write_parquet(tmp_path / "log.parquet")
    options = ["--target", "pi_new", "--where", "action = 1", "--cluster", "user_id", "--drop-bad-rows", "--html", path]
    found = invoke("evaluate", tmp_path / "log.parquet", "--json", *options)
    assert found.exit_code == 0, found.stderr
    page = path.read_text(encoding="utf-8")
    assert "As rows come in" in page
    assert "usable rows" not in page


def test_conditions_of_a_database_are_its_own(tmp_path):
    """A condition that polars does not know: the plots ask the database that answered before."""
    with duckdb.connect(tmp_path / "log.duckdb") as connection:
        connection.register("frame", awkward())
        connection.execute("CREATE TABLE logs AS SELECT * FROM frame")
    condition = "list_contains(['DE', 'FR'], country)"
    options = ["--table", "logs", "--target", "pi_new", "--where", condition, "--drop-bad-rows"]
    path = tmp_path / "report.html"
    found = invoke("evaluate", tmp_path / "log.duckdb", *options, "--html", path)
    assert found.exit_code == 0, found.stderr
    assert "usable rows" not in path.read_text(encoding="utf-8")
    found = invoke("compare", tmp_path / "log.duckdb", *options, "--rows", "2", "--json")
    assert found.exit_code == 0, found.stderr


@pytest.mark.parametrize("more", [[], ["--segment", "country", "--action", "action", "--target", "pi_old"]])
def test_a_report_opens_its_log_once_and_asks_once(tmp_path, monkeypatch, more):
    """Opening looks at the file's columns, and then scans its rows; sections look at rows through the same scan."""
    from counterpoise.evaluation import asking
    from counterpoise.readers import files

    path = tmp_path / "log.parquet"
    shop(900).write_parquet(path)
    calls = []
    for module, name in ((files, "_open"), (asking, "ask")):
        made = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, made=made, name=name, **k: (calls.append(name), made(*a, **k))[1])
    command = ("evaluate", path, "--target", "pi_new", "--html", tmp_path / "report.html", *more)
    assert invoke(*command).exit_code == 0
    assert (calls.count("_open"), calls.count("ask")) == (2, 1)
    shop(500, seed=4).write_parquet(path)  # and a file that has changed is opened again
    assert invoke(*command).exit_code == 0
    assert calls.count("_open") == 4


def test_the_heaviest_rows_are_among_those_of_the_comparison(tmp_path):
    awkward().write_parquet(tmp_path / "log.parquet")
    options = ["--target", "pi_new", "--target", "pi_old", "--cluster", "user_id", "--drop-bad-rows", "--rows", "3"]
    document = json.loads(invoke("compare", tmp_path / "log.parquet", *options, "--json").stdout)
    assert document["heaviest"]["n"] == document["n"] == 900


def test_planning_rests_on_the_rows_of_the_evaluation():
    log = awkward(4000)
    good = log.filter(
        pl.col("p").is_between(1e-20, 1), pl.col("pi_new").is_between(0, 1), pl.col("click").is_between(0, 1)
    )
    asked = {**ASKED, "target": "pi_new", "difference": 0.01, "actions": 2, "drop_bad_rows": True}
    assert plan(log, **asked).exploration == plan(good, **asked).exploration


def test_writing_takes_a_table_of_a_database(places, tmp_path):
    log, where = places["duckdb file"]
    result = cp.evaluate(log, **ASKED, target="pi_new", drop_bad_rows=True, **where)
    assert "As rows come in" in write_report(result, tmp_path / "r.html").read_text(encoding="utf-8")
