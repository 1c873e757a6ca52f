"""Every kind of target that Python takes can be typed: columns, expressions, chosen actions, saved policies; and logs of several files."""

import json

import numpy as np
import polars as pl
import pytest
from command_line import invoke, shop

import counterpoise as cp

PARTS = {"reward": "click", "propensity": "p"}


@pytest.fixture
def files(tmp_path):
    """A log in two files, with the action that a greedy policy would take."""
    frame = shop().with_columns(best=(pl.col("pi_new") > 0.5).cast(pl.Int64) * pl.col("action"))
    frame = frame.with_columns(best=pl.when(pl.col("pi_new") > 0.5).then("action").otherwise(1 - pl.col("action")))
    frame = frame.with_columns(pl.col("pi_new").alias("a=b"))
    paths = [tmp_path / "day1.parquet", tmp_path / "day2.parquet"]
    frame[:900].write_parquet(paths[0])
    frame[900:].write_parquet(paths[1])
    return paths


def values(*arguments):
    found = invoke(*arguments, "--json")
    assert found.exit_code == 0, found.stderr
    said = json.loads(found.stdout)["estimates"]
    return {one["target"]: one["value"] for one in said if one["estimator"] == "beta_ips"}


def test_evaluate_takes_every_kind_of_target_over_several_files(files):
    typed = [
        "--target",
        "pi_new",
        "--target",
        "half=pi_new / 2 + 0.25",
        "--target",
        "a=b",
        "--target-action",
        "greedy=best",
    ]
    found = values("evaluate", *files, *typed, "--target-action", "best", "--action", "action")
    targets = {
        "pi_new": "pi_new",
        "half": "pi_new / 2 + 0.25",
        "a=b": "a=b",
        "greedy": cp.Chosen("best"),
        "best": cp.Chosen("best"),
    }
    same = cp.evaluate(files, **PARTS, action="action", target=targets)
    assert found == pytest.approx({name: same[name, "beta_ips"].value for name in targets}, rel=1e-12)
    assert found["a=b"] == found["pi_new"]
    assert found["greedy"] == found["best"]


def test_an_action_that_is_always_taken_can_be_typed(files):
    typed = ["--always", "1", "--always", "none=0", "--action", "action"]
    found = values("evaluate", *files, *typed, "--target", "pi_new")
    targets = {"1": cp.Always(1), "none": cp.Always(0), "pi_new": "pi_new"}
    same = cp.evaluate(files, **PARTS, action="action", target=targets)
    assert found == pytest.approx({name: same[name, "beta_ips"].value for name in targets}, rel=1e-12)
    against = invoke("compare", *files, *typed, "--target", "pi_new", "--against", "none", "--json")
    assert json.loads(against.stdout)["against"] == "none"
    for command in (["plan", "--difference", 0.1], ["sensitivity"], ["distribution"]):
        assert invoke(*command, *files, "--always", 1, "--action", "action").exit_code == 0


def test_an_equals_sign_between_blanks_is_a_comparison(files):
    found = values("evaluate", *files, "--target", "best = action", "--target-action", "best", "--action", "action")
    assert found["best = action"] == pytest.approx(found["best"], rel=1e-12)


def test_compare_and_plan_take_them_too(files):
    typed = ["--target-action", "greedy=best", "--action", "action"]
    for against, python in (("half=pi_new / 2 + 0.25", {"half": "pi_new / 2 + 0.25"}), ("pi_old", "pi_old")):
        printed = invoke("compare", *files, *typed, "--against", against, "--rows", 3, "--json")
        assert printed.exit_code == 0, printed.stderr
        found = json.loads(printed.stdout)
        same = cp.compare(files, **PARTS, action="action", target={"greedy": cp.Chosen("best")}, against=python)
        assert found["against"] == same.against
        assert found["differences"][0]["difference"] == pytest.approx(same.value, rel=1e-12)
        assert len(found["heaviest"]["rows"]) == 3
    both = invoke("compare", *files, *typed, "--target", "half=pi_new / 2 + 0.25", "--against", "half", "--json")
    assert json.loads(both.stdout)["against"] == "half"
    planned = invoke("plan", *files, *typed, "--difference", 0.01, "--json")
    assert planned.exit_code == 0, planned.stderr
    assert json.loads(planned.stdout)["target"] == "greedy"


def test_doctor_reads_several_files(files):
    assert json.loads(invoke("doctor", *files, "--json").stdout)["rows"] == 2000


def test_sql_names_targets_and_chosen_actions():
    command = ["sql", "logs", "--dialect", "duckdb", "--reward", "click", "--propensity", "p"]
    found = invoke(*command, "--target", "half=pi_new / 2", "--target-action", "greedy=best", "--action", "a")
    assert found.exit_code == 0, found.stderr
    targets = {"half": "pi_new / 2", "greedy": cp.Chosen("best")}
    assert found.stdout.strip() == cp.sql(table="logs", **PARTS, target=targets, action="a", dialect="duckdb").strip()


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (
            ["--target", "a=pi_new", "--target", "a=pi_old"],
            "two targets are called 'a'. Give one of them another name: --target ",
        ),
        (["--always", "1"], "this target needs --action, the column with the logged action."),
        (["--always", "one", "--action", "action"], "Always(action='one') is not among the logged actions"),
        (["--always", "1", "--always", "1", "--action", "action"], "two targets are called '1'"),
        (["--target", "DE", "--action", "country"], "For a policy that always takes it, pass --always DE."),
        (["--target", "DE"], "pass --always DE and --action country."),
        (["--target-action", "best"], "this target needs --action, the column with the logged action."),
        (["--target-action", "bst", "--action", "action"], "Did you mean 'best'? Pass --target-action best."),
        (["--target", "half=pi_nwe / 2"], "no column 'pi_nwe' in --target 'pi_nwe / 2'"),
    ],
)
def test_targets_that_make_no_sense_are_refused_by_their_options(files, typed, said):
    found = invoke("evaluate", *files, *typed)
    assert (found.exit_code, found.stderr.count("\n")) == (2, 1)
    assert said in found.stderr


def test_help_says_how_targets_are_named(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    said = " ".join(invoke("evaluate", "--help").stdout.split())
    assert "[NAME=]EXPRESSION" in said
    assert "What is a column's name as a whole is that column" in said
    assert "errors allow for its rows being alike" in said  # the words of `Log` itself


def test_what_learn_wrote_evaluate_takes(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("safetensors")
    random = np.random.default_rng(0)
    x, action = random.normal(size=1000), random.integers(0, 2, 1000)
    reward = (random.random(1000) < np.where((x > 0) == action, 0.8, 0.2)).astype(float)
    log, policy = tmp_path / "log.parquet", tmp_path / "policy.safetensors"
    pl.DataFrame({"x": x, "action": action, "reward": reward, "propensity": 0.5}).write_parquet(log)
    training = ["--objective", "beta_ips", "--epochs", 2, "--batch-size", 0, "--fallback", "warn"]
    learned = invoke("learn", log, "--context", "x", "--out", policy, *training)
    assert learned.exit_code == 0, learned.stderr
    typed = ["--target", policy, "--target", f"again={policy}", "--context", "x", "--action", "action"]
    found = values("evaluate", log, *typed)
    same = cp.evaluate(log, reward="reward", propensity="propensity", target=policy, context=["x"], action="action")
    assert found == pytest.approx(dict.fromkeys(("policy", "again"), same["policy", "beta_ips"].value), rel=1e-9)
    own = values("evaluate", log, "--target", policy, "--target", f"again={policy}")  # the file knows its columns
    assert own == pytest.approx(found, rel=1e-12)
