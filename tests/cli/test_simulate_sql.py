"""`counterpoise simulate` writes logs whose truth is known; `counterpoise sql` prints the statement that evaluates."""

import json

import duckdb
import polars as pl
import pytest
from command_line import invoke, shop

import counterpoise as cp
from counterpoise.environments import SyntheticBandit


@pytest.mark.parametrize("ending", ["parquet", "csv", "arrow", "jsonl"])
def test_a_simulated_log_is_evaluated_to_its_truth(tmp_path, ending):
    path = tmp_path / f"log.{ending}"
    truth = json.loads(invoke("simulate", path, "--rows", 3000, "--json").stdout)["truth"]
    found = invoke("evaluate", path, "--level", "0.999", "--json")
    assert found.exit_code == 0, found.stderr
    estimates = json.loads(found.stdout)["estimates"]
    assert {one["target"] for one in estimates} == {"pi_new", "pi_uniform"}
    for one in estimates:
        if one["estimator"] == "beta_ips":
            assert one["lower"] < truth[one["target"]] < one["upper"]


def test_the_truth_is_the_environments_own(tmp_path):
    path = tmp_path / "log.parquet"
    truth = json.loads(invoke("simulate", path, "--rows", 500, "--actions", 4, "--seed", 3, "--json").stdout)["truth"]
    drawn = SyntheticBandit(4, inverse_temperature=1.0, seed=3).draw(500)
    assert truth["pi_uniform"] == pytest.approx(drawn.value([[0.25] * 4] * 500))
    frame = pl.read_parquet(path)
    assert frame["reward"].to_list() == drawn.reward.tolist()
    assert frame["propensity"].to_list() == drawn.propensity.tolist()


def test_no_file_is_overwritten_or_left_behind_unasked(tmp_path):
    path = tmp_path / "log.csv"
    assert invoke("simulate", path, "--rows", 10).exit_code == 0
    before = path.read_text()
    again = invoke("simulate", path, "--rows", 20)
    assert (again.exit_code, path.read_text()) == (2, before)
    assert "--force" in again.stderr
    assert invoke("simulate", path, "--rows", 20, "--force").exit_code == 0
    assert len(pl.read_csv(path)) == 20
    assert [file.name for file in tmp_path.iterdir()] == ["log.csv"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["log.xlsx"], "cannot tell the format"),
        (["nowhere/log.csv"], "there is no folder"),
        (["log.csv", "--rows", "0"], "is too small; it must be at least 1"),
        (["log.csv", "--actions", "1"], "is too small; it must be at least 2"),
    ],
)
def test_impossible_simulations_are_refused(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    found = invoke("simulate", *arguments)
    assert found.exit_code == 2
    assert words in found.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_statement_gives_the_numbers_of_evaluate():
    logs = shop(500)
    options = ["--reward", "click", "--propensity", "p", "--target", "pi_new", "--segment", "country"]
    found = invoke("sql", "logs", "--dialect", "duckdb", *options)
    assert found.exit_code == 0, found.output
    with duckdb.connect() as connection:
        connection.register("logs", logs.to_arrow())
        rows = connection.sql(found.stdout).pl()
    names = {"reward": "click", "propensity": "p", "target": "pi_new", "segment": "country"}
    moments = cp.from_sums(rows, **names)
    expected = cp.evaluate(logs, **names)["pi_new", "beta_ips", "DE"]
    assert cp.evaluate(moments)["pi_new", "beta_ips", "DE"].value == pytest.approx(expected.value, rel=1e-9)


def test_unknown_dialects_are_refused():
    found = invoke("sql", "t", "--dialect", "klingon", "--reward", "r", "--propensity", "p", "--target", "pi")
    assert found.exit_code == 2
    assert "klingon" in found.stderr
    assert "Traceback" not in found.output


def test_expressions_that_are_none_are_refused_in_one_line():
    asked = ["--dialect", "duckdb", "--propensity", "p", "--target", "pi_new"]
    found = invoke("sql", "logs", *asked, "--reward", "click +")
    assert (found.exit_code, found.stderr.count("\n")) == (2, 1)
    assert found.stderr.startswith("ColumnError: --reward 'click +' is not an SQL expression")


def test_the_statement_reads_a_table_in_its_schema():
    asked = ["--dialect", "snowflake", "--reward", "click", "--propensity", "p", "--target", "pi_new"]
    assert 'FROM "shop"."logs"' in invoke("sql", "shop.logs", *asked).stdout
    assert 'FROM "shop.logs"' in invoke("sql", '"shop.logs"', *asked).stdout
