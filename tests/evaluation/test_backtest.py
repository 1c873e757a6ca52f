"""Backtests: earlier tests with known truth, what is counted about them, and what is refused."""

import json
import math

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import counterpoise as cp
from counterpoise.cli import app

pytestmark = pytest.mark.once

PARTS = {"reward": "r", "propensity": "p", "target": "new"}


def past_test(seed, n=600, bias=0.0):
    """A log of three actions before a test, and what the test measured: the truth, a bias, and noise of a known size."""
    random = np.random.default_rng(seed)
    old, new = random.dirichlet((4.0, 4.0, 4.0), n), random.dirichlet((4.0, 4.0, 4.0), n)
    mean = random.uniform(0.1, 0.9, 3)
    action = (random.random(n)[:, None] > old.cumsum(axis=1)).sum(axis=1).clip(0, 2)
    at = np.arange(n), action
    new = 0.5 * new + 0.5 * np.eye(3)[int(random.integers(3))]
    r = (random.random(n) < mean[action]) * 1.0
    log = pl.DataFrame({"r": r, "p": old[at], "new": new[at]})
    truth = float(((new - old) @ mean).mean())
    error = 0.02
    return log, {"measured": truth + bias + error * random.normal(), "stderr": error}


def simulated(bias=0.0):
    pairs = {f"test {k}": past_test([20, k], bias=bias) for k in range(30)}
    return {name: log for name, (log, _) in pairs.items()}, {name: one for name, (_, one) in pairs.items()}


def test_outcomes_are_covered_as_often_as_said():
    logs, outcomes = simulated()
    found = cp.backtest(logs, outcomes, **PARTS)
    assert len(found.known) == 30
    assert 0.95 in found.coverage_interval
    assert found.is_calibrated
    assert found.sign_agreement > 0.8
    expected = np.sqrt(np.mean([one.off**2 for one in found.tests]))
    assert found.error_ratio == pytest.approx(expected)


def test_a_bias_is_seen():
    logs, outcomes = simulated(bias=0.2)
    found = cp.backtest(logs, outcomes, **PARTS)
    assert not found.is_calibrated
    assert found.mean_off < -2
    assert found.coverage < 0.8
    assert "which chance does not explain" in repr(found)


def test_one_test_is_the_comparison_next_to_what_was_measured():
    log, outcome = past_test(0)
    alone = cp.compare(log, **PARTS)
    found = cp.backtest({"x": log}, [{"test": "x", **outcome}], **PARTS)["x"]
    assert found.predicted.value == alone.value
    off = (alone.value - outcome["measured"]) / math.hypot(alone.stderr, outcome["stderr"])
    assert found.off == pytest.approx(off)
    z = 1.959964
    ends = {"lower": outcome["measured"] - z * 0.02, "upper": outcome["measured"] + z * 0.02}
    by_ends = cp.backtest({"x": alone}, {"x": {"measured": outcome["measured"], **ends}})["x"]
    assert by_ends.stderr == pytest.approx(0.02)
    assert by_ends.covered == found.covered


def test_coverage_allows_for_the_outcomes_own_error():
    log, _ = past_test(1)
    predicted = cp.compare(log, **PARTS)
    beyond = predicted.interval.upper + 0.5 * (predicted.interval.upper - predicted.value)
    sure, unsure = (cp.backtest({"x": log}, {"x": (beyond, error)}, **PARTS)["x"] for error in (0.0, 1.0))
    assert not sure.covered
    assert unsure.covered


def test_frames_and_the_command_line(tmp_path):
    logs, outcomes = simulated()
    logs, outcomes = ({name: one[name] for name in ("test 0", "test 1")} for one in (logs, outcomes))
    rows = []
    for name, log in logs.items():
        log.write_parquet(tmp_path / f"{name}.parquet")
        rows.append({"test": name, "log": str(tmp_path / f"{name}.parquet"), **outcomes[name]})
    table = pl.DataFrame(rows)
    table.write_csv(tmp_path / "tests.csv")
    command = [
        "backtest",
        str(tmp_path / "tests.csv"),
        "--reward",
        "r",
        "--propensity",
        "p",
        "--target",
        "new",
        "--json",
    ]
    done = CliRunner().invoke(app, [*command, "--html", str(tmp_path / "page.html")])
    assert done.exit_code == 0, done.output
    found = cp.backtest(logs, table, **PARTS)
    assert json.loads(done.stdout)["tests"][0]["predicted"] == pytest.approx(found["test 0"].predicted.value)
    table.write_parquet(tmp_path / "tests.parquet")
    same = CliRunner().invoke(app, ["backtest", str(tmp_path / "tests.parquet"), *command[2:]])
    assert same.stdout == done.stdout
    page = (tmp_path / "page.html").read_text()
    assert "test 1" in page
    assert "<script>alert" not in page


@pytest.mark.parametrize(
    ("logs", "outcomes", "says"),
    [
        ({}, {}, "name of every test"),
        ({"x": {}}, {"y": (0.1, 0.1)}, "only one of them"),
        ({"x": {}}, {"x": 0.1}, "a pair"),
        ({"x": {}}, {"x": {"measured": 0.1}}, "needs the error"),
        ({"x": {}}, {"x": {"measured": math.nan, "stderr": 0.1}}, "finite"),
        ({"x": {}}, [{"name": "x"}], "test, measured and stderr"),
    ],
)
def test_bad_input_is_refused(logs, outcomes, says):
    with pytest.raises(cp.OptionError, match=says):
        cp.backtest(logs, outcomes, **PARTS)


@pytest.mark.parametrize("content", ["a log", "not a table", "nothing"])
def test_a_file_that_is_no_table_of_tests_is_refused_in_words(content, tmp_path):
    path = tmp_path / "tests.parquet"
    if content == "a log":
        simulated()[0]["test 0"].write_parquet(path)
    else:
        path.write_bytes(b"\x00\xff" * 50 if content == "not a table" else b"")
    done = CliRunner().invoke(app, ["backtest", str(path), "--target", "new"])
    assert done.exit_code == 2, done.output
    assert "tests.parquet" in done.output
