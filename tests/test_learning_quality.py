"""The table of learned policies compares with the right peer, and sees a broken promise when there is one."""

import importlib
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def quality():
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module("learning_quality")
    sys.path.remove(str(FOLDER))
    for name in ("learning_quality", "learning_logs"):
        del sys.modules[name]


def beside(log, ours, logistic, forest, fit=1.0):
    """Two seeds of a log; the logistic regression takes 2 s and the forest 3 s."""
    return [
        {"log": log, "seed": seed, "actions": 10, "rows": 100, "logging": 0.5, "greedy": ours + 0.1 * seed,
         "chosen": "mlp", "fit_seconds": fit, "seconds": 30.0, "logistic": logistic + 0.1 * seed,
         "logistic_seconds": 2.0, "forest": forest + 0.1 * seed, "forest_seconds": 3.0}
        for seed in range(2)
    ]  # fmt: skip


def test_the_difference_is_paired_and_from_the_best_peer(quality):
    found = quality.Beside(beside("digits", 0.80, 0.70, 0.82))
    assert found.best == "forest"
    assert found.gap == pytest.approx(-0.02)
    assert found.error == pytest.approx(0, abs=1e-12)  # seeds differ, but all learners by the same
    assert found.fastest == "forest"  # the logistic regression is faster, and not as good


def test_a_log_far_behind_or_slower_than_an_equal_breaks_a_promise(quality, capsys):
    logs = [beside("digits", 0.80, 0.795, 0.70), beside("letter", 0.90, 0.80, 0.80), beside("cp20", 0.70, 0.60, 0.60)]
    assert quality.report_quality(logs) == []
    assert "within 0.01 of the best peer on 3 of 3, ahead on 3 of 3" in capsys.readouterr().out
    logs[0] = beside("digits", 0.80, 0.795, 0.70, fit=2.5)
    assert quality.report_quality(logs) == ["digits: the fit takes 2.50 s, IPW-logistic 2.00"]
    logs[1] = beside("letter", 0.78, 0.80, 0.70, fit=0.1)
    logs[2] = beside("cp20", 0.595, 0.60, 0.60)
    assert quality.report_quality(logs[1:]) == ["within 0.01 of the best peer on 1 of 2 only", "ahead on 0 of 2 only"]


def test_a_log_without_peers_does_not_count_as_shown(quality):
    without = [
        {key: row[key] for key in row if "logistic" not in key and "forest" not in key}
        for row in beside("letter", 0.9, 0, 0)
    ]
    found = quality.report_quality([beside("digits", 0.80, 0.70, 0.70), without])
    assert found == ["letter: no peer was measured on all of its seeds"]


def hard(log, handed_out, folds, verdict="ok", logging=0.8):
    return {
        "log": log, "seed": 0, "logging": logging, "greedy": handed_out, "handed_out": handed_out, "chosen": "mlp",
        "kind": "learned", "seconds": 30.0, "reported": 0.85, "lower": 0.82, "upper": 0.88, "folds": folds,
        "verdict": verdict,
    }  # fmt: skip


def test_a_policy_below_logging_breaks_a_promise_and_amounts_have_their_own_scale(quality):
    assert quality.report_hard([[hard("base", 0.791, 0.85)], [hard("revenue", 11.9, 0.85, logging=12.0)]]) == []
    broken = quality.report_hard([[hard("base", 0.789, 0.85)], [hard("revenue", 11.8, 0.85, logging=12.0)]])
    assert broken == [
        "base seed 0: 0.789 where logging earned 0.800", "revenue seed 0: 11.800 where logging earned 12.000",
    ]  # fmt: skip


def test_a_missed_truth_counts_unless_the_verdict_says_no(quality):
    assert quality.report_hard([[hard("base", 0.85, 0.7)]]) == ["0 of 1 reported intervals cover"]
    assert quality.report_hard([[hard("base", 0.85, 0.7, verdict="not identified")]]) == []
