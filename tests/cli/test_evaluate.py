"""`counterpoise evaluate`: what it prints for people and machines, and how it refuses."""

import json
import re
import subprocess
import urllib.parse

import duckdb
import jsonschema
import polars as pl
import pytest
from command_line import COMMAND, degenerate, invoke, shop
from conftest import sampled

import counterpoise as cp
from counterpoise.display import number
from counterpoise.evaluation.showing import schema


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.parquet"
    shop().write_parquet(path)
    return path


def test_the_schema_itself_is_valid():
    jsonschema.Draft202012Validator.check_schema(schema())


@pytest.mark.once
@pytest.mark.parametrize("first", [0, *(pytest.param(k, marks=pytest.mark.thorough) for k in (50, 100, 150))])
def test_json_of_200_logs_keeps_to_the_schema(first, tmp_path):
    validator = jsonschema.Draft202012Validator(schema())
    unidentified = 0
    for seed in range(first, first + 50):
        frame, options = degenerate(seed)
        path = tmp_path / f"{seed}.parquet"
        frame.write_parquet(path)
        found = invoke("evaluate", path, "--json", *options)
        assert found.exit_code == 0, (seed, found.output)
        document = json.loads(found.stdout, parse_constant=pytest.fail)  # NaN and Infinity are no JSON
        validator.validate(document)
        assert document["n"] == len(frame)
        unidentified += any(one["value"] is None for one in document["estimates"])
    assert unidentified > 5  # degenerate logs were among them


def test_json_holds_the_numbers_of_the_library(log):
    found = json.loads(invoke("evaluate", log, "--segment", "country", "--cluster", "user_id", "--json").stdout)
    result = cp.evaluate(
        pl.read_parquet(log),
        reward="click",
        propensity="p",
        target=["pi_new", "pi_old"],
        segment="country",
        cluster="user_id",
    )
    assert len(found["estimates"]) == len(result.estimates)
    names = {None: None, "DE": "DE", "FR": "FR", "(missing)": (None,)}
    for one in found["estimates"]:
        expected = result[one["target"], one["estimator"], names[one["segment"]]]
        for part, value in (
            ("value", expected.value),
            ("stderr", expected.stderr),
            ("lower", expected.interval.lower),
        ):
            # another engine reads files than frames
            assert one[part] == pytest.approx(value, rel=1e-9, abs=1e-12), (one, part)
        assert one["level"] == 0.95
    assert [one["verdict"] for one in found["verdicts"] if one["segment"] is None] == ["ok", "ok"]


@pytest.mark.parametrize(
    ("names", "guessed"),
    [
        ({}, "reward 'click', propensity 'p', target 'pi_new', target 'pi_old'"),
        ({"click": "Reward", "p": "pscore"}, "reward 'Reward', propensity 'pscore', target 'pi_new', target 'pi_old'"),
        ({"click": "r", "p": "action_prob"}, "reward 'r', propensity 'action_prob'"),
        ({"pi_new": "target", "pi_old": "rest"}, "reward 'click', propensity 'p', target 'target'."),
    ],
)
def test_usual_names_are_guessed_and_said(tmp_path, names, guessed):
    path = tmp_path / "log.csv"
    shop(200).rename(names).write_csv(path)
    found = invoke("evaluate", path)
    assert found.exit_code == 0
    assert guessed in found.stdout
    silent = invoke("evaluate", path, "--json")
    assert guessed in silent.stderr
    json.loads(silent.stdout)


def test_nothing_is_guessed_where_all_is_named(log):
    found = invoke("evaluate", log, "--reward", "click", "--propensity", "p", "--target", "pi_new")
    assert "Guessed" not in found.output
    assert "pi_old" not in found.output


def test_unusual_names_are_asked_for(tmp_path):
    path = tmp_path / "log.csv"
    shop(20).rename({"click": "bought"}).write_csv(path)
    found = invoke("evaluate", path)
    assert found.exit_code == 2
    assert found.stderr.startswith("ColumnError: which column is the reward? None has a usual name (reward, click")
    assert "'bought'" in found.stderr
    assert found.stderr.endswith("Pass --reward COLUMN.\n")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--reward", "clik"], "ColumnError: no column 'clik' for reward; the log has 'click'"),
        (
            ["--level", "95"],
            "--level 95.0 does not lie strictly between 0 and 1. For a 95 % interval, pass --level 0.95.",
        ),
        (["--interval", "bernstein"], "needs --reward-bounds and --max-weight, both known"),
        (
            ["--estimator", "dr"],
            "OptionError: dr needs --model auto, or a model's columns in --model-reward and --model-value.",
        ),
        (["--where", "action = 'x'"], "--where \"action = 'x'\" does not fit the types of this log: "),
        (["--reward", "click + 'x'"], "ColumnError: cannot compute "),
        (["--estimator", "magic"], "OptionError: no estimator 'magic'"),
        (
            ["--interval", "wide"],
            "OptionError: --interval wide is not an interval; choose from student, normal, jackknife, anytime, bernstein, log_smoothing.\n",
        ),
        (["--where", "country = "], "ColumnError: "),
        (["--html", "/nowhere/report.html"], "OptionError: "),
        (["--table", "logs"], "only work with a database"),
    ],
)
def test_bad_input_exits_2_in_one_line(log, change, words):
    found = invoke("evaluate", log, *change)
    assert found.exit_code == 2
    assert words in found.stderr
    assert found.stderr.count("\n") == 1
    assert "Traceback" not in found.output
    assert "=True" not in found.output


def test_every_option_that_an_error_names_is_there(log):
    options = ["--interval", "bernstein", "--reward-bounds", 0, 1, "--max-weight", 2]
    (found,) = json.loads(invoke("evaluate", log, "--target", "pi_new", *options, "--json").stdout)["estimates"]
    same = cp.evaluate(
        pl.read_parquet(log), reward="click", propensity="p", target="pi_new",
        interval=cp.intervals.Bernstein((0, 1), max_weight=2),
    )["pi_new", "ips"]  # fmt: skip
    assert found["upper"] == pytest.approx(same.interval.upper)
    columns = ["--estimator", "dr", "--model-reward", "pi_old", "--model-value", "pi_old", "--target", "pi_new"]
    assert invoke("evaluate", log, *columns).exit_code == 0
    for command in ("evaluate", "compare"):
        wide, narrow = (
            invoke(command, log, "--target", "pi_new", "--interval", "anytime", "--tuned-for", rows, "--json").stdout
            for rows in (10, 2000)
        )
        assert wide != narrow
        assert invoke(command, log, "--interval", "jackknife", "--groups", 20, "--target", "pi_new").exit_code == 0


def test_a_log_without_rows_is_said_to_have_none(tmp_path):
    path = tmp_path / "log.csv"
    shop(0).write_csv(path)
    for command in (["evaluate"], ["compare"], ["plan", "--difference", "0.1"]):
        found = invoke(*command, path, "--target", "pi_new")
        assert (found.exit_code, found.stderr) == (2, "LogError: the log has no rows.\n")


def test_missing_and_damaged_files_exit_2(tmp_path):
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 this is no Parquet")
    for path in (tmp_path / "absent.parquet", broken, tmp_path / "log.docx"):
        found = invoke("evaluate", path)
        assert found.exit_code == 2
        assert "Traceback" not in found.output
        assert str(path) in found.stderr


def test_bad_rows_are_named_and_dropped_on_request(tmp_path):
    path = tmp_path / "log.parquet"
    frame = shop(500)
    frame.with_columns(p=pl.when(pl.int_range(pl.len()) < 3).then(0.0).otherwise("p")).write_parquet(path)
    found = invoke("evaluate", path)
    assert found.exit_code == 2
    assert "3 rows do not" in found.stderr
    assert "--drop-bad-rows" in found.stderr
    kept = invoke("evaluate", path, "--drop-bad-rows", "--json")
    assert kept.exit_code == 0
    assert (json.loads(kept.stdout)["n"], json.loads(kept.stdout)["dropped_rows"]) == (497, 3)


def test_strict_exits_1_only_where_the_log_does_not_tell(tmp_path, log):
    assert invoke("evaluate", log, "--strict").exit_code == 0
    path = tmp_path / "blind.parquet"
    shop(200).with_columns(pi_new=0.0).write_parquet(path)
    assert invoke("evaluate", path).exit_code == 0
    for extra in ([], ["--json"]):
        found = invoke("evaluate", path, "--strict", *extra)
        assert found.exit_code == 1
        assert "not identified" in found.stdout


def test_the_headline_states_no_value_that_the_verdict_does_not_stand_for(tmp_path):
    path = tmp_path / "log.parquet"
    shop(1000).with_columns(pi_new=pl.col("pi_new") / 10, pi_old=pl.col("pi_old") * 0.9).write_parquet(path)
    for command in ("evaluate", "compare"):
        found = invoke(command, path, "--target", "pi_new")
        assert "pi_new: not identified" in found.stdout
        assert "This log of 1,000 rows cannot tell how pi_new compares with the logging policy." in found.stdout
        assert "%" not in found.stdout.split("cannot tell how")[1].split("intervals")[0].replace("95 %", "")
        doubtful = invoke(command, path, "--target", "pi_old").stdout
        assert "pi_old: caution" in doubtful
        assert "Verdict: ok" not in doubtful
        assert "caution" not in invoke(command, path, "--target", "p").stdout


def test_segments_made_of_what_was_chosen_are_said_to_be_none(tmp_path):
    path = tmp_path / "log.parquet"
    frame = shop(4000).with_columns(good=pl.col("pi_new") > 0.5)  # whether the choice was the target's, too
    frame.write_parquet(path)
    for command in ("evaluate", "compare"):
        asked = [command, path, "--target", "pi_new", "--segment"]
        assert "a segment must be known before the choice" in invoke(*asked, "good").stdout
        assert "known before the choice" not in invoke(*asked, "country").stdout


def test_a_condition_leaves_rows_out(log):
    found = json.loads(invoke("evaluate", log, "--where", "country = 'DE' AND user_id < 300", "--json").stdout)
    assert found["n"] == len(pl.read_parquet(log).filter(pl.col("country") == "DE", pl.col("user_id") < 300))


def test_a_state_adds_up_over_days_and_refuses_a_day_twice(tmp_path):
    frame, state = shop(1000), tmp_path / "state.json"
    shop(100).write_parquet(tmp_path / "2.parquet")
    for day in range(2):
        frame[day * 500 : (day + 1) * 500].write_parquet(tmp_path / f"{day}.parquet")
    first = invoke("evaluate", tmp_path / "0.parquet", "--state", state, "--json")
    both = invoke("evaluate", tmp_path / "1.parquet", "--state", state, "--json")
    again = invoke("evaluate", tmp_path / "1.parquet", "--state", state)
    assert (json.loads(first.stdout)["n"], json.loads(both.stdout)["n"]) == (500, 1000)
    assert again.exit_code == 4  # of its own, so that a job can tell
    assert "already" in again.stderr
    other = invoke("evaluate", tmp_path / "2.parquet", "--state", state, "--segment", "country")
    assert "was made with no --segment, and this call has --segment country:" in other.stderr


def test_the_sentence_comes_first_and_every_number_is_there(log):
    lines = invoke("evaluate", log, "--target", "pi_new", "--all").stdout.splitlines()
    assert lines[:5] == invoke("evaluate", log, "--target", "pi_new").stdout.splitlines()[:5]
    result = cp.evaluate(pl.read_parquet(log), reward="click", propensity="p", target="pi_new")
    best = result["pi_new", "beta_ips"]
    assert lines[1] == "Estimated click per row: pi_new against the logging policy · log.parquet · 2,000 rows"
    assert re.match(r"pi_new: \+\d+ % click \(\+\d+ to \+\d+ %\), from ", lines[3])
    assert f" to {number(100 * best.value, 100 * best.stderr)} per 100 rows. Better than the logging policy" in lines[3]
    for name in ("ips", "snips", "beta_ips"):
        row = next(line for line in lines if line.split()[:2] == ["pi_new", name])
        estimate = result["pi_new", name]
        assert row.split()[2:4] == [number(x, estimate.stderr) for x in (estimate.value, estimate.stderr)]


@pytest.mark.parametrize(
    "command", [["evaluate"], ["compare"], ["doctor"], ["plan", "--difference", "0.01", "--actions", "2"]]
)
def test_a_table_of_a_database_is_a_log(tmp_path, log, command):
    path = tmp_path / "logs.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(f"CREATE TABLE shop AS SELECT * FROM '{log}'")
    options = [*command[1:], "--target", "pi_new", "--where", "country = 'DE'", "--json"]
    stored, filed = invoke(command[0], path, "--table", "shop", *options), invoke(command[0], log, *options)
    assert (stored.exit_code, filed.exit_code) == (0, 0), stored.output
    numbers = r"-?\d+\.\d+(?:e[+-]?\d+)?"  # of any length: 120.9999999999996 may be 121.0
    assert [round(float(x), 9) for x in re.findall(numbers, stored.stdout)] == pytest.approx(
        [round(float(x), 9) for x in re.findall(numbers, filed.stdout)], rel=1e-6, abs=1e-9
    )
    asked = invoke(command[0], path, *options)
    assert asked.exit_code == 2
    assert "--table" in asked.stderr


@pytest.mark.parametrize(
    "command", sampled([["evaluate"], ["compare"], ["doctor"], ["plan", "--difference", "0.01"]], ["evaluate"])
)
def test_a_table_is_found_in_its_schema_and_a_quoted_name_may_hold_a_dot(tmp_path, log, command):
    path = tmp_path / "logs.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE SCHEMA shop")
        for name in ("shop.logs", '"odd.name"', 'shop."odd.name"'):
            connection.execute(f"CREATE TABLE {name} AS SELECT * FROM '{log}'")
    for name in ("shop.logs", '"odd.name"', 'shop."odd.name"'):
        found = invoke(*command, path, "--table", name, "--target", "pi_new", "--reward", "click", "--propensity", "p")
        assert found.exit_code == 0, found.output
    for name in ("shop.lags", "lags"):
        found = invoke(*command, path, "--table", name, "--target", "pi_new")
        assert found.exit_code == 2
        assert found.stderr.startswith("LogError: no table ")
        assert "lags in this database. It has --table " in found.stderr.replace('"', "")
        assert "Check its name" in found.stderr
    for name in ("shop..logs", '"odd', ""):
        assert "is not a valid table name" in invoke(*command, path, "--table", name).stderr


def test_the_report_is_written_whole_and_said(tmp_path, log):
    pytest.importorskip("counterpoise.report")
    path = tmp_path / "report.html"
    found = invoke("evaluate", log, "--html", path, "--segment", "country")
    assert found.exit_code == 0
    assert f"Report: {path}" in found.stdout
    assert "pi_new" in path.read_text(encoding="utf-8")
    silent = invoke("evaluate", log, "--html", path, "--json", "--reward", "click / 2")
    json.loads(silent.stdout)
    assert f"Report: {path}" in silent.stderr
    assert sorted(file.name for file in tmp_path.iterdir()) == ["log.parquet", "report.html"]


def test_a_report_has_the_unit_and_the_title_that_are_typed(tmp_path, log):
    path = tmp_path / "report.html"
    found = invoke(
        "evaluate", log, "--html", path, "--unit", "visit", "--title", "Banners <in> March", "--segment", "country"
    )
    assert found.exit_code == 0, found.stderr
    page = path.read_text(encoding="utf-8")
    assert "<title>Banners &lt;in&gt; March</title>" in page
    assert "per 100 visits" in page
    assert "per 100 visits. Better than the logging policy" in found.stdout
    assert " · 2,000 visits\n" in found.stdout
    refused = invoke("evaluate", log, "--title", "March")
    assert refused.exit_code == 2
    assert "--title is the title of a report. Write one with --html report.html." in refused.stderr


@pytest.mark.parametrize("verb", ["evaluate", "compare"])
def test_the_unit_is_that_of_the_terminal_and_of_json_whoever_says_it(tmp_path, log, verb, monkeypatch):
    printed = invoke(verb, log, "--target", "pi_new", "--unit", "visit")
    assert " per visit: pi_new against the logging policy · log.parquet · 2,000 visits\n" in printed.stdout
    assert not re.search(r"\brows?\b", printed.stdout)
    assert json.loads(invoke(verb, log, "--target", "pi_new", "--unit", "visit", "--json").stdout)["unit"] == "visit"
    assert "such as 'visit'" in invoke(verb, log, "--target", "pi_new", "--unit", " ").stderr
    monkeypatch.chdir(tmp_path)
    (tmp_path / "counterpoise.toml").write_text('unit = "visit"\n[evaluate]\ntitle = "March"\n')
    assert invoke(verb, log, "--target", "pi_new").stdout.endswith(printed.stdout)  # after the file's path


@pytest.mark.parametrize("place", ["/proc/report.html", "/nowhere/report.html", "FOLDER"])
def test_a_report_that_cannot_be_written_is_refused_before_the_log_is_read(tmp_path, place):
    path = tmp_path if place == "FOLDER" else place
    found = invoke("evaluate", tmp_path / "absent.parquet", "--html", path)
    assert found.exit_code == 2
    assert found.stderr.startswith(f"OptionError: cannot write {str(path)!r}: ")


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option")  # ibis sets it, pandas 3 regrets it
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_database_is_a_log_and_its_password_stays_out_of_the_report(postgres, tmp_path):
    ibis = pytest.importorskip("ibis")
    secret = urllib.parse.urlsplit(postgres).password
    connection = ibis.connect(postgres)
    connection.create_table("shop", shop().to_arrow(), overwrite=True)
    question = ["--table", "shop", "--reward", "click", "--propensity", "p", "--target", "pi_new"]
    try:
        for command in ("doctor", "compare", "plan --difference 0.1"):
            done = invoke(*command.split(), postgres, *question)
            assert done.exit_code == 0, done.output
            assert secret not in done.output
        command = [*COMMAND, "evaluate", postgres, *question, "--html", str(tmp_path / "report.html")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        shown = done.stdout + done.stderr + (tmp_path / "report.html").read_text()
        assert "shop" in shown
        assert secret not in shown
        wrong = invoke("evaluate", postgres.replace(secret, "hunter2"), *question)
        assert wrong.exit_code == 2
        assert "did not respond" in wrong.output
        assert "hunter2" not in wrong.output
    finally:
        connection.drop_table("shop")
        connection.disconnect()


@pytest.mark.once
@pytest.mark.parametrize("command", ["evaluate", "compare"])
def test_several_rewards_are_answered_one_after_the_other(tmp_path, command):
    log = tmp_path / "log.parquet"
    shop().with_columns(money=shop()["click"] * 2.5).write_parquet(log)
    asked = [command, log, "--propensity", "p", "--target", "pi_new", "--segment", "country"]
    more = ["--rows", "3"] if command == "compare" else ["--html", tmp_path / "report.html"]
    both = invoke(*asked, *more, "--reward", "click", "--reward", "money")
    assert both.exit_code == 0, both.output
    page = (tmp_path / "report.html").read_text(encoding="utf-8") if command == "evaluate" else ""
    said = [invoke(*asked, *more, "--reward", name).stdout.partition("Report: ")[0] for name in ("click", "money")]
    assert both.stdout.partition("Report: ")[0] == f"Reward: click\n{said[0]}\nReward: money\n{said[1]}"
    found = json.loads(invoke(*asked, "--reward", "click", "--reward", "money", "--json").stdout)
    alone = [json.loads(invoke(*asked, "--reward", name, "--json").stdout) for name in ("click", "money")]
    assert found == {"reward": "click"} | alone[0] | {"others": {"money": {"reward": "money"} | alone[1]}}
    if command == "evaluate":
        jsonschema.validate(found, schema())
        assert "Reward: <bdi>money</bdi>" in page


@pytest.mark.once
def test_a_state_of_several_rewards_is_shown_and_reported(tmp_path):
    log, state = shop().with_columns(money=shop()["click"] * 2.5), tmp_path / "state.json"
    for k in range(2):
        log[k::2].write_parquet(tmp_path / f"{k}.parquet")
        asked = ["--propensity", "p", "--target", "pi_new", "--reward", "click", "--reward", "money", "--state", state]
        done = invoke("evaluate", tmp_path / f"{k}.parquet", *asked, "--html", tmp_path / "report.html")
        assert done.exit_code == 0, done.output
        page = (tmp_path / "report.html").read_text(encoding="utf-8")
        assert ("As rows come in" in page, "come from earlier logs" in page) == (k == 0, k == 1)
    shown = invoke("state", "show", state)
    assert shown.exit_code == 0, shown.output
    assert "  reward: click, money\n" in shown.stdout
    answer = done.stdout.partition("Report: ")[0].replace(" · 1.parquet and earlier logs · ", " · ")
    assert shown.stdout.endswith(answer.replace("  A page for others: --html report.html.", ""))
    found = json.loads(invoke("state", "show", state, "--json").stdout)["answer"]
    jsonschema.validate(found, schema())
    assert found["others"]["money"]["n"] == 2000


@pytest.mark.parametrize(
    ("typed", "weight"),
    [
        ("clip:1.5", cp.weights.Clip(1.5)),
        ("shrink:slope", cp.weights.Slope(cp.weights.Shrink)),
        ("harmonic:0.1,0.5", cp.weights.Slope(cp.weights.Harmonic, [0.1, 0.5])),
    ],
)
def test_a_weight_by_its_name(tmp_path, typed, weight):
    log = tmp_path / "log.parquet"
    shop().write_parquet(log)
    asked = ["--reward", "click", "--propensity", "p", "--target", "pi_new"]
    found = json.loads(invoke("evaluate", log, *asked, "--weight", typed, "--json").stdout)
    jsonschema.validate(found, schema())
    result = cp.evaluate(log, reward="click", propensity="p", target="pi_new", weight=weight)
    values = {(one["target"], one["estimator"]): one["value"] for one in found["estimates"]}
    assert values == {key[:2]: one.value for key, one in result.estimates.items()}
    assert found["verdicts"][0]["verdict"] == "caution"
    page = tmp_path / "report.html"
    said = invoke("evaluate", log, *asked, "--weight", typed, "--html", page, "--all")
    assert said.exit_code == 0, said.output
    different = json.loads(invoke("compare", log, *asked, "--weight", typed, "--json").stdout)
    if not result.ladders:
        assert "ladder" not in found
        assert ("bias ladder" in said.stdout, "Bias ladder" in page.read_text(encoding="utf-8")) == (False, False)
        return
    assert found["ladder"] == result.ladder().to_dicts()
    assert sum(rung["chosen"] for rung in found["ladder"]) == 1
    assert (found["ladder"][0]["weight"], found["ladder"][0]["constant"]) == ("Importance()", None)
    assert len(different["ladder"]) == len(found["ladder"])
    assert all(rung.weight in said.stdout for rung in result.ladders["pi_new"].rungs)
    html = page.read_text(encoding="utf-8")
    assert "Bias ladder of <bdi>pi_new</bdi> by beta_ips" in html
    assert html.count("(chosen)") == 1
    for rung in result.ladders["pi_new"].rungs[1:]:
        assert f"<bdi>{rung.weight}</bdi>" in html


@pytest.mark.parametrize("typed", ["clip", "clip:ten", "harmonic:3", "klip:3"])
def test_a_weight_that_is_none_is_refused_before_the_log_is_read(typed):
    done = invoke("evaluate", "no such file.parquet", "--weight", typed)
    assert (done.exit_code, "no such file" in done.output) == (2, False)
    assert "OptionError" in done.output
