"""Odd input: what is valid is read as it is meant, and what is not is refused in words."""

import decimal
import json
import os
import resource
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import planted
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import COMMAND, invoke, shop
from conftest import sampled
from messages import refuses

import counterpoise as cp
from counterpoise.evaluation.doctor import doctor as examine
from counterpoise.evaluation.plan import plan
from counterpoise.evaluation.ranking import heaviest

QUESTION = {"reward": "reward", "propensity": "propensity", "target": "new"}

WRITERS = {
    "parquet": pl.DataFrame.write_parquet,
    "csv": pl.DataFrame.write_csv,
    "arrow": pl.DataFrame.write_ipc,
    "jsonl": pl.DataFrame.write_ndjson,
}


@pytest.fixture
def log():
    return planted.a_log(600, bad=False)


def same(found, expected):
    found, expected = planted.numbers("", found), planted.numbers("", expected)
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert found[key] == pytest.approx(values, rel=1e-9, abs=1e-12, nan_ok=True), key


# -- Links -----------------------------------------------------------------------------------------------------------------


def test_rows_behind_a_linked_folder_count(tmp_path, log):
    store, logs = tmp_path / "store", tmp_path / "logs"
    for place, rows in ((store / "older", log[:100]), (store, log[100:300]), (logs / "day=2", log[300:])):
        place.mkdir(parents=True, exist_ok=True)
        rows.write_parquet(place / "part.parquet")
    (logs / "day=1").symlink_to(store)
    log[:50].write_parquet(tmp_path / "elsewhere.parquet")
    (logs / "day=2" / "link.parquet").symlink_to(tmp_path / "elsewhere.parquet")
    result = cp.evaluate(logs, **QUESTION, segment="day")
    assert [result["new", "ips", day].n for day in (1, 2)] == [300, 350]
    assert cp.evaluate(f"{logs}/**", **QUESTION).n == 650
    assert cp.evaluate(f"{logs}/**/*.parquet", **QUESTION).n == 650


def test_a_folder_that_links_lead_back_to_is_read_once(tmp_path, log):
    (tmp_path / "logs" / "a").mkdir(parents=True)
    (tmp_path / "logs" / "z").mkdir()
    log[:100].write_parquet(tmp_path / "logs" / "a" / "part.parquet")
    log[100:300].write_parquet(tmp_path / "logs" / "z" / "part.parquet")
    (tmp_path / "logs" / "a" / "back").symlink_to("..")
    (tmp_path / "logs" / "a" / "across").symlink_to("../z")
    (tmp_path / "logs" / "z" / "across").symlink_to("../a")
    (tmp_path / "logs" / "latest").symlink_to("z")
    for name in ("logs", "logs/**", "logs/**/*.parquet", "logs/latest/across/back"):
        assert cp.evaluate(tmp_path / name, **QUESTION).n == 300, name


@pytest.mark.parametrize("log_name", ["logs", "logs/*", "logs/**/*.parquet", "logs/day 2.parquet"])
def test_a_link_that_leads_nowhere_is_named(tmp_path, log, log_name):
    (tmp_path / "logs").mkdir()
    log.write_parquet(tmp_path / "logs" / "day 1.parquet")
    (tmp_path / "logs" / "day 2.parquet").symlink_to(tmp_path / "gone")
    with refuses(cp.LogError):
        cp.evaluate(tmp_path / log_name, **QUESTION)


def test_a_link_to_itself_is_named_and_hidden_ones_are_not_looked_at(tmp_path, log):
    log.write_parquet(tmp_path / "log.parquet")
    (tmp_path / ".#lock").symlink_to("nowhere")
    assert cp.evaluate(tmp_path, **QUESTION).n == 600
    (tmp_path / "loop").symlink_to("loop")
    with refuses(cp.LogError):
        cp.evaluate(tmp_path, **QUESTION)


# -- Names given twice -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ending", "sign"), [("csv", ","), ("tsv", "\t")])
def test_a_header_with_a_name_twice_is_refused(tmp_path, ending, sign):
    rows = ["reward,propensity,new,reward", "1,0.5,0.5,0", "0,0.5,0.5,1"]
    (tmp_path / f"log.{ending}").write_text("\n".join(rows).replace(",", sign))
    for ask in (lambda path: cp.evaluate(path, **QUESTION), examine):
        with refuses(cp.ColumnError):
            ask(tmp_path / f"log.{ending}")


def test_columns_without_a_name_and_a_suffix_of_polars_are_no_duplicates(tmp_path):
    text = "reward,propensity,new,reward_duplicated_0,,\n1,0.5,0.5,7,,\n0,0.5,0.5,8,,\n"
    (tmp_path / "log.csv").write_text(text)
    assert cp.evaluate(tmp_path / "log.csv", **QUESTION).n == 2


@pytest.mark.parametrize("place", [0, 15_000])
def test_a_key_of_json_twice_is_refused(tmp_path, place):
    rows = ['{"reward": 1.0, "propensity": 0.5, "new": 0.5}'] * 20_000
    rows[place] = '{"reward": 1.0, "propensity": 0.5, "new": 0.5, "reward" : 0.0}'
    (tmp_path / "log.jsonl").write_text("\n".join(rows))
    with refuses(cp.ColumnError):
        cp.evaluate(tmp_path / "log.jsonl", **QUESTION)


def test_keys_of_inner_objects_and_text_like_keys_are_no_duplicates(tmp_path):
    row = {
        "reward": 1.0,
        "propensity": 0.5,
        "new": 0.5,
        "note": 'a "reward": twice, "reward": once',
        "in": {"reward": 1},
    }
    (tmp_path / "log.jsonl").write_text("\n".join([json.dumps(row)] * 50))
    assert cp.evaluate(tmp_path / "log.jsonl", **QUESTION).n == 50


def test_names_twice_in_parquet_and_frames_are_refused(tmp_path):
    table = pa.table([[0.5] * 3] * 4, names=["reward", "propensity", "new", "reward"])
    pq.write_table(table, tmp_path / "log.parquet")
    frame = pd.DataFrame([[0.5] * 4] * 3, columns=table.column_names)
    for one in (tmp_path / "log.parquet", table, frame):
        for ask in (lambda log: cp.evaluate(log, **QUESTION), examine):
            with refuses(cp.ColumnError):
                ask(one)


# -- Numbers ---------------------------------------------------------------------------------------------------------------


def with_row(log, **values):
    """The log with other values in row 7."""
    at = pl.int_range(pl.len()) == 7
    return log.with_columns(pl.when(at).then(pl.lit(v)).otherwise(pl.col(k)).alias(k) for k, v in values.items())


def places(log, folder):
    """One log in memory, in files and in a database."""
    duckdb = pytest.importorskip("duckdb")
    for ending, write in WRITERS.items():
        write(log, folder / f"log.{ending}")
    files = {ending: folder / f"log.{ending}" for ending in WRITERS}
    arrays = {name: log[name].to_numpy() for name in log.columns}
    return files | {"frame": log, "lazy": log.lazy(), "arrays": arrays, "duckdb": duckdb.from_arrow(log.to_arrow())}


@pytest.mark.parametrize(("p", "t"), [(1e-60, 0.0), (1e-60, 1e-61), (1e-300, 1e-301), (5e-324, 0.0)])
def test_a_tiny_propensity_counts_where_the_weight_does_not_explode(tmp_path, log, p, t):
    odd = with_row(log, propensity=p, new=t).select("reward", "propensity", "new")
    expected = cp.evaluate(with_row(log, propensity=0.5, new=0.5 * t / p), **QUESTION)
    for name, place in places(odd, tmp_path).items():
        found = cp.evaluate(place, **QUESTION)
        assert found["new", "ips"].value == pytest.approx(expected["new", "ips"].value, rel=1e-9), name
        assert found["new", "snips"].stderr == pytest.approx(expected["new", "snips"].stderr, rel=1e-6), name


def test_a_tiny_propensity_is_refused_in_the_same_words_everywhere(tmp_path, log):
    odd = with_row(log, propensity=1e-60, new=0.5).select("reward", "propensity", "new")
    for name, place in places(odd, tmp_path).items():
        where = "one has" if name == "duckdb" else "the first is row 7 with"
        rule = r"of 600 rows: target 'new' must be below 1e\+50 times the propensity: in 1 row it is not; "
        with pytest.raises(cp.LogError, match=f"{rule}{where} a propensity of 1e-60"):
            cp.evaluate(place, **QUESTION)
        assert cp.evaluate(place, **QUESTION, drop_bad_rows=True).dropped_rows == 1


@pytest.mark.parametrize("ending", ["csv", "jsonl", "lists"])
@pytest.mark.parametrize("first", [2**63, 2**64, 2**100])
@pytest.mark.parametrize("sign", [1, -1])
def test_ids_too_long_for_64_bits_are_told_apart(tmp_path, log, ending, first, sign):
    ids = [first + k % 50 if k % 3 else sign * (k % 20) for k in range(600)]
    rows = [{**row, "id": one} for row, one in zip(log.select(*QUESTION.values()).to_dicts(), ids, strict=True)]
    place = tmp_path / f"log.{ending}"
    if ending == "csv":
        place.write_text("\n".join(",".join(map(str, row)) for row in ([*rows[0]], *map(dict.values, rows))))
    elif ending == "jsonl":
        place.write_text("\n".join(map(json.dumps, rows)))
    else:
        place = {name: [row[name] for row in rows] for name in rows[0]}
    distinct = len(set(ids))
    assert set(cp.evaluate(place, **QUESTION, segment="id").moments.segments) == {(one,) for one in ids}
    assert cp.evaluate(place, **QUESTION, key="id").moments.duplicates == 600 - distinct
    remainders = pl.Series([one % (2**26 - 5) for one in ids])  # which is all that the groups depend on
    same(
        cp.evaluate(place, **QUESTION, cluster="id"),
        cp.evaluate(log.with_columns(id=remainders), **QUESTION, cluster="id"),
    )


def test_ids_too_long_for_any_integer_are_text(tmp_path, log):
    text = log.with_columns(id=pl.format("1{}{}", pl.lit("0" * 45), pl.int_range(pl.len()) % 50 + 10))
    text.write_csv(tmp_path / "log.csv")
    same(cp.evaluate(tmp_path / "log.csv", **QUESTION, cluster="id"), cp.evaluate(text, **QUESTION, cluster="id"))
    row = '{"reward": 1.0, "propensity": 0.5, "new": 0.5, "id": 1' + "0" * 45 + "}\n"
    (tmp_path / "log.jsonl").write_text(20 * row)
    with refuses(cp.LogError):
        cp.evaluate(tmp_path / "log.jsonl", **QUESTION, cluster="id")


@pytest.mark.parametrize(("ending", "write"), WRITERS.items(), ids=list(WRITERS))
def test_folders_named_by_long_ids_are_told_apart(tmp_path, log, ending, write):
    for k in range(2):
        (tmp_path / f"member={2**63 + k}").mkdir()
        write(log[k * 200 : (k + 1) * 300], tmp_path / f"member={2**63 + k}" / f"log.{ending}")
    result = cp.evaluate(tmp_path, **QUESTION, segment="member")
    assert [result["new", "ips", 2**63 + k].n for k in range(2)] == [300, 400]


def test_decimals_of_256_bits_in_frames_are_numbers(log):
    wide = pa.decimal256(60, 10)
    columns = {
        name: pa.array([decimal.Decimal(f"{x:.6f}") for x in log[name]], type=wide)
        for name in ("reward", "propensity", "new")
    }
    table = pa.table(columns | {"size": pa.array([decimal.Decimal(k % 3) for k in range(600)], type=wide)})
    expected = cp.evaluate(log, **QUESTION)
    for frame in (table, table.to_pandas(types_mapper=pd.ArrowDtype), table.to_pandas()):
        same(cp.evaluate(frame, **QUESTION), expected)
        assert len(cp.evaluate(frame, **QUESTION, segment="size").moments.segments) == 3
        assert cp.evaluate(frame, **QUESTION, cluster="size").n == 600
    assert examine(table).reward.mean == pytest.approx(log["reward"].mean())


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_decimals_of_256_bits_in_files_are_refused_by_name(tmp_path, ending):
    wide = pa.array([decimal.Decimal("0.5")] * 9, type=pa.decimal256(60, 10))
    table = pa.table({"reward": wide, "propensity": [0.5] * 9, "new": [0.5] * 9})
    place = tmp_path / f"log.{ending}"
    if ending == "parquet":
        pq.write_table(table, place)
    else:
        with pa.OSFile(str(place), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    lazy = pl.scan_parquet(place) if ending == "parquet" else pl.scan_ipc(place)
    for one in (place, lazy):
        for ask in (lambda log: cp.evaluate(log, **QUESTION), examine):
            with refuses(cp.ColumnError):
                ask(one)
    assert cp.evaluate(place, **QUESTION | {"reward": "new"}).n == 9  # what is not read does not matter


# -- Names of columns ------------------------------------------------------------------------------------------------------


PARTS = {
    "reward": "reward",
    "propensity": "propensity",
    "new": "target",
    "country": "segment",
    "user": "cluster",
    "id": "key",
}
ODD = ["^a$", "*", "", "''", "^.*$", "^reward|new$"]


@pytest.mark.parametrize("source", ["frame", "lazy", "arrays", "pandas", "parquet", "csv"])
@pytest.mark.parametrize("shift", [0, 1, 2])
def test_a_column_is_taken_by_its_exact_name(tmp_path, log, shift, source):
    names = dict(zip(PARTS, ODD[shift:] + ODD[:shift], strict=True))
    question = {part: column for column, part in PARTS.items()}
    odd = log.rename(names).with_columns(a=pl.lit(0.25))  # which '^a$' as a pattern finds
    place = {"frame": odd, "lazy": odd.lazy(), "arrays": odd.to_dict(), "pandas": odd.to_pandas()}.get(source)
    if place is None:
        place = tmp_path / f"log.{source}"
        WRITERS[source](odd, place)
    found = cp.evaluate(place, **{part: names[column] for part, column in question.items()})
    expected = cp.evaluate(log, **question)
    assert found.moments.duplicates == expected.moments.duplicates
    for (_, estimator, segment), one in expected.estimates.items():
        other = found[names["new"], estimator, segment] if segment else found[names["new"], estimator]
        assert (other.value, other.stderr) == pytest.approx((one.value, one.stderr), rel=1e-9), (estimator, segment)


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("kind", [pl.Int64, pl.Float64, pl.String])
def test_a_column_that_nobody_named_may_have_any_name(name, kind):
    """Checks look at such columns: this one tells which shop a row is of, and its rows are alike."""
    random = np.random.default_rng(0)
    shop, n = random.integers(0, 150, 3000), 3000
    log = pl.DataFrame(
        {
            "click": (random.random(n) < random.random(150)[shop]).astype(int),
            "p": np.full(n, 0.5),
            "t": random.choice([0.3, 0.7], n),
            "judge": random.random(n),
            "seen": random.integers(0, 2, n),
        }
    ).with_columns(pl.Series(name, shop).cast(kind))
    asked = {"reward": "click", "propensity": "p", "target": "t"}
    for more in ({}, {"proxy": "judge", "observed": "seen"}, {"propensity": "1 - p"}):
        codes = {caveat.code for caveat in cp.evaluate(log, **(asked | more)).verdict().caveats}
        assert "rows-move-together" in codes


@pytest.mark.parametrize("name", ["^a$", "*", ""])
@pytest.mark.parametrize("source", ["frame", "lazy", "parquet"])
def test_expressions_and_conditions_quote_any_name(tmp_path, log, name, source):
    odd = log.rename({"new": name, "device": "^b$"}).with_columns(a=pl.lit(0.25))
    odd.write_parquet(tmp_path / "log.parquet")
    place = {"frame": odd, "lazy": odd.lazy(), "parquet": tmp_path / "log.parquet"}[source]
    where = '"^b$" = 1 and country <> \'"^b$"\''
    found = cp.evaluate(place, **QUESTION | {"target": {"half": f'0.5*"{name}"'}}, where=where)
    plain = "device = 1 and country <> '\"^b$\"'"
    same(found, cp.evaluate(log, **QUESTION | {"target": {"half": "0.5*new"}}, where=plain))
    assert examine(place, **QUESTION | {"target": [name]}, where=where).rows == found.n


@pytest.mark.parametrize("name", ["^a$", "*"])
def test_every_command_takes_a_column_by_its_exact_name(tmp_path, name):
    log = shop().rename({"pi_new": name}).with_columns(a=pl.lit(0.25))
    question = {"reward": "click", "propensity": "p", "target": name}
    assert plan(log, **question, difference=0.01, actions=2).target == name
    asked = cp.compare(log, **question).asked()
    assert heaviest(asked, target=name, baseline=0.0, count=1).n == 2000
    found = examine(log, reward="click", propensity="p", target=[name], action="action", key=["user_id"])
    assert found.overlap[0].target == name


def test_policies_and_chosen_actions_take_columns_by_their_exact_names(log):
    odd = log.rename({"x0": "^a$", "action": "*", "chosen": "^b$"}).with_columns(a=pl.lit(1.0))

    class Policy:
        classes_ = np.arange(3)

        def predict_proba(self, x):
            scores = np.exp(np.stack([np.zeros(len(x)), x[:, 0], x[:, 1]], axis=1))
            return scores / scores.sum(axis=1, keepdims=True)

    question = {"reward": "reward", "propensity": "propensity", "target": {"t": Policy()}}
    for one in (odd, odd.lazy()):
        found = cp.evaluate(
            one, **question | {"target": {"t": Policy(), "c": cp.Chosen("^b$")}}, context=["^a$", "x1"], action="*"
        )
        both = {"t": Policy(), "c": cp.Chosen("chosen")}
        expected = cp.evaluate(log, **question | {"target": both}, context=["x0", "x1"], action="action")
        same(found, expected)
        called = cp.evaluate(
            one, **question | {"target": {"t": lambda batch: 0.5 + 0.0 * batch.column("^a$").to_numpy()}},
            context=["^a$"], action="*",
        )  # fmt: skip
        assert called.n == 600


# -- Policies and a core install -------------------------------------------------------------------------------------------


class Unnamed:
    """Probabilities of three actions, which it does not name."""

    def predict_proba(self, x):
        scores = np.exp(np.stack([np.zeros(len(x)), x[:, 0], x[:, 1]], axis=1))
        return scores / scores.sum(axis=1, keepdims=True)


class Named(Unnamed):
    classes_ = np.arange(3)


def test_the_columns_of_a_policy_without_classes_are_the_actions_from_0(log):
    question = {"reward": "reward", "propensity": "propensity", "context": ["x0", "x1"], "action": "action"}
    same(cp.evaluate(log, **question, target={"t": Unnamed()}), cp.evaluate(log, **question, target={"t": Named()}))
    shifted, named = (log.with_columns(action=one) for one in (pl.col("action") + 1, pl.format("show {}", "action")))
    for one in (shifted, named):
        with refuses(cp.OptionError):
            cp.evaluate(one, **question, target={"t": Unnamed()})


def without_pyarrow(code, *paths):
    """What a program prints in an environment that has pandas but no pyarrow."""
    blocked = """
import sys
from importlib.machinery import PathFinder

class Blind(PathFinder):
    @classmethod
    def find_spec(cls, name, *rest):
        return None if name.partition(".")[0] == "pyarrow" else PathFinder.find_spec(name, *rest)

sys.meta_path = [Blind if one is PathFinder else one for one in sys.meta_path]
"""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", blocked + code, *map(str, paths)], capture_output=True, text=True
    )


def test_pandas_columns_of_any_type_are_read_without_pyarrow(tmp_path, log):
    log.write_csv(tmp_path / "log.csv")
    code = """
import pandas as pd, counterpoise as cp
from counterpoise.evaluation.doctor import doctor as examine
log = pd.read_csv(sys.argv[1], keep_default_na=False, na_values={"country": [""]})
log["kind"], log["device"] = log["country"].astype("category"), log["device"].astype("Int64")
log["day"] = pd.Timestamp("2026-01-01", tz="Europe/Berlin")
question = {"reward": "reward", "propensity": "propensity", "target": "new"}
for segment in ("country", "kind", "device", "day"):
    found = cp.evaluate(log, **question, segment=segment)
    print([found["new", "ips", label].n for label in found.moments.segments], *found.moments.segments)
print(cp.evaluate(log.dropna(), **question, cluster="country")["new", "snips"].stderr)
print(examine(log).rows)
"""
    found = without_pyarrow(code, tmp_path / "log.csv")
    assert found.returncode == 0, found.stderr
    countries, kinds, devices, days, error, rows = found.stdout.splitlines()
    expected = cp.evaluate(log, **QUESTION, segment="country")
    assert countries == kinds == " ".join(
        [str([expected["new", "ips", one].n for one in expected.moments.segments]), *map(str, expected.moments.segments)]
    )  # fmt: skip
    assert devices.endswith("] (0,) (1,)")
    assert days == "[600] ('2025-12-31 23:00:00+00:00',)"
    complete = log.drop_nulls()
    assert float(error) == pytest.approx(cp.evaluate(complete, **QUESTION, cluster="country")["new", "snips"].stderr)
    assert rows == "600"


def test_a_function_as_policy_says_that_it_needs_pyarrow():
    code = """
import counterpoise as cp
log = {"r": [1.0, 0.0], "p": [0.5, 0.5], "x": [1.0, 2.0], "a": [0, 1]}
try:
    cp.evaluate(log, reward="r", propensity="p", target=lambda batch: [0.5, 0.5], context=["x"], action="a")
except cp.OptionError as error:
    print(error)
"""
    found = without_pyarrow(code)
    assert "pip install pyarrow" in found.stdout, found.stderr


# -- The command line's surroundings ---------------------------------------------------------------------------------------

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def run(*arguments, **options):
    options = {"capture_output": True, "encoding": "utf-8", "errors": "replace"} | options
    return subprocess.run([*COMMAND, *map(str, arguments)], **options)


@pytest.mark.once
@pytest.mark.thorough
@pytest.mark.parametrize("ending", WRITERS)
def test_names_beyond_ascii_are_read_and_written_under_the_c_locale(tmp_path, ending):
    folder = tmp_path / "dépôt" / "日本"
    folder.mkdir(parents=True)
    place = folder / f"lög.{ending}"
    environment = os.environ | ASCII
    made = run("simulate", place, "--rows", 200, env=environment)
    assert (made.returncode, made.stderr) == (0, "")
    assert place.exists()
    for log in (place, folder, f"{folder}/l*.{ending}"):
        assert run("evaluate", log, env=environment).returncode == 0
    report, state = folder / "bérlin.html", folder / "état.json"
    done = run("evaluate", place, "--html", report, "--state", state, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert report.exists()
    assert state.exists()
    gone = run("evaluate", folder / "ñ.csv", env=environment)
    assert (gone.returncode, gone.stderr.startswith("LogError: no file")) == (2, True)


@pytest.mark.thorough
@pytest.mark.once
def test_columns_beyond_ascii_are_named_under_the_c_locale(tmp_path):
    shop().rename({"click": "čas", "country": "país"}).write_parquet(tmp_path / "log.parquet")
    options = ["--reward", "čas", "--segment", "país", "--where", "\"país\" <> 'España'", "--json"]
    found = run("evaluate", tmp_path / "log.parquet", *options, env=os.environ | ASCII)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["n"] == json.loads(run("evaluate", tmp_path / "log.parquet", *options).stdout)["n"]


@pytest.mark.once
def test_a_name_that_is_no_utf8_is_said_to_be_none(tmp_path):
    place = os.fsencode(tmp_path) + b"/l\xf6g.csv"
    with open(place, "w") as file:
        file.write("reward,propensity,new\n1,0.5,0.5\n")
    with refuses(cp.OptionError):
        cp.evaluate(os.fsdecode(place), **QUESTION)


@pytest.mark.once
@pytest.mark.parametrize("closed", sampled([[1], [2], [1, 2], [0, 1, 2]], [0, 1, 2]))
@pytest.mark.parametrize("name", sampled(["evaluate", "doctor", "simulate"], "evaluate"))
def test_closed_streams_are_no_reason_to_fail(tmp_path, closed, name):
    shop(200).write_parquet(tmp_path / "log.parquet")
    place = tmp_path / ("new.csv" if name == "simulate" else "log.parquet")
    before = (tmp_path / "log.parquet").read_bytes()

    def close():
        for stream in closed:
            os.close(stream)

    asked = [*COMMAND, name, str(place), *(["--json"] if name == "evaluate" else [])]
    shown = {stream: subprocess.PIPE for number, stream in ((1, "stdout"), (2, "stderr")) if number not in closed}
    found = subprocess.run(asked, preexec_fn=close, **shown)
    assert found.returncode == 0, found.stderr
    assert "Traceback" not in str(found.stderr)
    assert (tmp_path / "log.parquet").read_bytes() == before
    if name == "simulate":
        assert pl.read_csv(place).height == 10_000
    refused = subprocess.run([*COMMAND, "evaluate", "nowhere.csv"], preexec_fn=close, **shown)
    assert (refused.returncode, refused.stdout or b"") == (2, b"")


@pytest.mark.once
@pytest.mark.parametrize("ending", sampled(WRITERS, "csv"))
def test_a_disk_that_fills_up_while_a_log_is_simulated_is_told(tmp_path, ending):
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    whole = os.environ | {
        "PYTHONDONTWRITEBYTECODE": "1"
    }  # a module compiled under the limit would be cut off for everybody after
    found = run("simulate", tmp_path / f"log.{ending}", "--rows", 100_000, preexec_fn=limit, env=whole)
    said = rf"OptionError: cannot write '{tmp_path}/log.{ending}': File too large. Make room, or name a file elsewhere."
    assert (found.returncode, found.stderr.strip()) == (2, said)
    assert list(tmp_path.iterdir()) == []


class Panic(BaseException):
    """As polars' panics are: no ordinary exception."""


@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), Panic("index out of bounds\nat somewhere")])
def test_a_crash_of_ours_exits_70_and_asks_for_a_report(tmp_path, monkeypatch, error):
    def crash(*arguments, **options):
        raise error

    shop(200).write_parquet(tmp_path / "log.parquet")
    monkeypatch.setattr("counterpoise.engines.rows.engine_of", crash)
    found = invoke("doctor", tmp_path / "log.parquet")
    assert found.exit_code == 70
    first = str(error).partition("\n")[0]
    assert found.stderr.splitlines() == [
        f"counterpoise crashed ({type(error).__name__}: {first}). This is a bug in counterpoise: please report it with the "
        "traceback, which COUNTERPOISE_TRACEBACK=1 shows."
    ]
    monkeypatch.setenv("COUNTERPOISE_TRACEBACK", "1")
    shown = invoke("doctor", tmp_path / "log.parquet")
    assert (shown.exit_code, "Traceback (most recent call last)" in shown.stderr) == (70, True)
    assert "in crash" in shown.stderr


def test_a_missing_package_is_no_crash(tmp_path, monkeypatch):
    def crash(*arguments, **options):
        raise ModuleNotFoundError("No module named 'duckdb'", name="duckdb")

    monkeypatch.setattr("counterpoise.engines.rows.engine_of", crash)
    found = invoke("doctor", tmp_path / "log.parquet")
    assert (found.exit_code, "pip install" in found.stderr) == (2, True)


# -- What fails while it runs ------------------------------------------------------------------------------------------------

FAILING = {
    "cast": lambda rows: rows.with_columns(reward=pl.lit("seven").cast(pl.Float64)),
    "filter": lambda rows: rows.filter(pl.lit("seven").cast(pl.Float64) > 0),
    "no column": lambda rows: rows.with_columns(more=pl.col("nowhere")),
    "no file": lambda rows: pl.scan_parquet("nowhere.parquet"),
}


@pytest.mark.parametrize("kind", FAILING)
def test_a_lazy_frame_that_cannot_run_is_refused_in_words(log, kind):
    rows = FAILING[kind](log.lazy())
    chosen = {"reward": "reward", "propensity": "propensity"}
    for ask in (
        lambda: cp.evaluate(rows, **QUESTION),
        lambda: cp.evaluate(rows, **QUESTION, cluster="new", segment="new"),
        lambda: cp.compare(rows, **QUESTION, against="propensity"),
        lambda: cp.rank(rows, **chosen, target=["new", "propensity"]),
        lambda: plan(rows, **QUESTION, difference=0.1),
        lambda: examine(rows, **QUESTION),
    ):
        with pytest.raises(cp.LogError, match=r"seven|nowhere"):
            ask()


def test_the_error_of_a_policy_is_not_blamed_on_the_lazy_frame_that_it_sees(log):
    class Wrong:
        classes_ = np.array([0, 1])

        def predict_proba(self, context):
            raise pl.exceptions.ComputeError("mine")

    rows = log.lazy().with_columns(action=pl.lit(1))
    with refuses(pl.exceptions.ComputeError):
        cp.evaluate(rows, **QUESTION | {"target": Wrong()}, action="action", context=["new"])


@pytest.mark.filterwarnings("ignore:fetch_arrow_table")
@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option")  # ibis sets it, pandas 3 regrets it
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("source", ["polars", "lazy", "pandas", "arrow", "arrays", "parquet", "duckdb", "sqlite"])
def test_chosen_actions_of_another_type_than_the_logged_are_refused(source, tmp_path):
    rows = shop(200).with_columns(item=pl.lit("tea"))
    data, place = rows, {}
    if source == "lazy":
        data = rows.lazy()
    elif source == "pandas":
        data = rows.to_pandas()
    elif source == "arrow":
        data = rows.to_arrow()
    elif source == "arrays":
        data = rows.to_dict(as_series=False)
    elif source == "parquet":
        rows.write_parquet(tmp_path / "log.parquet")
        data = tmp_path / "log.parquet"
    elif source in ("duckdb", "sqlite"):
        ibis = pytest.importorskip("ibis")
        pytest.importorskip("duckdb")
        made = getattr(ibis, source).connect(tmp_path / f"log.{source}")
        made.create_table("log", rows.select("click", "p", "action", "item").to_arrow())
        made.disconnect()
        data, place = f"{source}://{tmp_path / f'log.{source}'}", {"table": "log"}
    for action, chosen in (("action", "item"), ("item", "action")):
        with refuses(cp.ColumnError):
            cp.evaluate(data, **place, reward="click", propensity="p", action=action, target=cp.Chosen(chosen))


class Even:
    classes_ = np.array([0, 1])

    def predict_proba(self, context):
        return np.full((len(context), 2), 0.5)


@pytest.mark.parametrize("how", [{}, {"model": "ridge"}])
def test_actions_and_contexts_of_128_bits_are_those_of_64(log, how):
    pytest.importorskip("sklearn")
    rows = log.with_columns(action=pl.int_range(pl.len()) % 2, x=pl.int_range(pl.len()) % 7)
    wide = rows.with_columns(pl.col("action", "x").cast(pl.Int128))
    asked = QUESTION | {"target": {"even": Even()}, "action": "action", "context": ["x"]} | how
    for data in (wide, wide.lazy()):
        same(cp.evaluate(data, **asked), cp.evaluate(rows, **asked))
    huge = wide.with_columns(action=pl.col("action") + 2**70)
    with refuses(cp.ColumnError):
        cp.evaluate(huge, **asked)


# -- Names like ours ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["reward", "propensity", "target", "action", "context", "segment", "cluster"])
@pytest.mark.parametrize("name", ["counterpoise expression 0", "counterpoise model reward", "counterpoise row"])
def test_a_column_called_like_our_own_is_refused(log, part, name):
    rows = log.with_columns(action=pl.int_range(pl.len()) % 2, x=pl.col("new"), user=pl.int_range(pl.len()))
    parts = {"action": "action", "context": "x", "cluster": "user", "segment": "action"} | QUESTION
    rows = rows.rename({parts[part]: name}) if part != "segment" else rows.with_columns(pl.col("action").alias(name))
    with refuses(cp.ColumnError):
        cp.evaluate(rows, **parts | {part: [name] if part == "context" else name})


def test_a_column_may_be_called_count(log):
    pytest.importorskip("sklearn")
    rows = log.with_columns(count=pl.Series(["tea", "jam"] * (log.height // 2)), x=pl.col("new"))
    asked = QUESTION | {"target": cp.Chosen("count"), "context": ["x"], "model": "ridge"}
    expected = cp.evaluate(rows.rename({"count": "item"}), **asked | {"target": cp.Chosen("item")}, action="item")
    found = cp.evaluate(rows, **asked, action="count")
    assert found["count", "dr"].value == pytest.approx(expected["item", "dr"].value, rel=1e-9)


# -- Children of a fork --------------------------------------------------------------------------------------------------------

FORKS = """
import os, sys
import polars as pl
import counterpoise as cp
from counterpoise.evaluation.doctor import doctor
rows = pl.DataFrame({"r": [0.0, 1.0] * 500, "p": [0.5] * 1000, "t": [0.6, 0.4] * 500})
parts = {"reward": "r", "propensity": "p", "target": "t"}
if sys.argv[1] == "after":
    rows.lazy().group_by("r").agg(pl.col("t").sum()).collect()
child = os.fork()
if child == 0:
    try:
        print("answered", cp.evaluate(rows.lazy(), **parts).n, flush=True)
    except cp.OptionError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print("the parent answers", cp.evaluate(rows, **parts).n)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, polars' threads have no names")
@pytest.mark.parametrize(("when", "says"), [("after", "get_context('spawn')"), ("before", "answered 1000")])
def test_a_child_forked_after_polars_ran_is_told_to_spawn(when, says):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, when], capture_output=True, text=True, timeout=120, check=False
    )
    assert says in done.stdout, done.stderr
    assert "the parent answers 1000" in done.stdout
