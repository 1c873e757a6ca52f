"""--baseline on the command line: columns that the baseline depends on."""

import json

import planted
import pytest
from typer.testing import CliRunner

import counterpoise as cp
from counterpoise.cli.app import app


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "log.parquet"
    planted.with_context(planted.a_log(bad=False), bad=False).write_parquet(path)
    return str(path)


def test_baselines_reach_every_verb(path):
    columns = ["--reward", "reward", "--propensity", "propensity", "--target", "new"]
    baseline = ["--baseline", "x0", "--baseline", "name"]
    said = CliRunner().invoke(app, ["evaluate", path, *columns, *baseline, "--json"])
    assert said.exit_code == 0, said.output
    found = {row["estimator"]: row for row in json.loads(said.stdout)["estimates"]}
    result = cp.evaluate(path, reward="reward", propensity="propensity", target="new", baseline=["x0", "name"])
    assert found["context_ips"]["value"] == pytest.approx(result["new", "context_ips"].value, rel=1e-12)
    said = CliRunner().invoke(app, ["compare", path, *columns, "--against", "old", *baseline, "--json"])
    comparison = cp.compare(
        path, reward="reward", propensity="propensity", target="new", against="old", baseline=["x0", "name"]
    )
    difference = json.loads(said.stdout)["differences"][0]
    assert comparison.best == "context_ips"
    assert difference["stderr"] == pytest.approx(comparison.stderr, rel=1e-12)
    assert (difference["lower"], difference["upper"]) == pytest.approx(tuple(comparison.interval), rel=1e-12)
    planned = CliRunner().invoke(app, ["plan", path, *columns, *baseline, "--difference", "0.1", "--json"])
    assert planned.exit_code == 0, planned.output


def test_the_text_says_which_estimator_answers(path):
    columns = ["--reward", "reward", "--propensity", "propensity", "--target", "new", "--baseline", "x0"]
    said = CliRunner().invoke(app, ["evaluate", path, *columns])
    assert said.exit_code == 0, said.output
    assert "by context_ips" in said.output
