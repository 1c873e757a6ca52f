"""The comparison with peers: data with a known truth, limits that hold, runs that go on, and mistakes judged as they are."""

import json
import statistics
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def peers():
    sys.path.insert(0, str(FOLDER))
    import peers

    yield peers
    sys.path.remove(str(FOLDER))


@pytest.fixture
def runs(peers, monkeypatch, tmp_path):
    """Where results are kept, and processes are started: in a folder of this test."""
    from peer import runs

    for module in (peers, runs):
        monkeypatch.setattr(module, "PLACE", tmp_path)
    return runs


# -- data -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", ["clicks 0.5, good overlap", "revenue, good overlap", "users"])
def test_the_truth_of_a_world_is_what_its_target_earns(peers, world):
    """IPS with the true propensities is unbiased; 60 logs, four standard errors."""
    from peer import data

    found = []
    for seed in range(60):
        log = data.draw_world(world, seed)
        found.append(np.mean(log.target() / log.propensity * log.reward) - log.truths[0])
    assert abs(statistics.mean(found)) < 4 * statistics.stdev(found) / 60**0.5


def test_the_truth_of_lists_is_what_their_target_earns(peers):
    from peer import data

    lists = data.draw_lists(200_000, 5, seed=1)
    sums = (lists.target / lists.propensity * lists.reward).reshape(-1, 5).sum(axis=1)
    assert abs(sums.mean() - lists.truth) < 4 * sums.std() / len(sums) ** 0.5


def test_columns_are_what_tables_say_of_the_logged_action(peers):
    from peer import data

    log = data.draw_log(300, 7, targets=2)
    rows = np.arange(log.rows)
    for k in range(2):
        assert np.array_equal(log.table(k)[rows, log.action], log.target(k))
        np.testing.assert_allclose((log.table(k) * log.model_table).sum(axis=1), log.model_value(k))
    assert np.array_equal(log.model_table[rows, log.action], log.model_reward)


# -- running ----------------------------------------------------------------------------------------------------------------


def test_libraries_race_agree_and_are_not_asked_again(runs, peers, capsys, monkeypatch):
    contest = runs.Race("evaluate", ["ours", "numpy_by_hand"], runs.Store(quick=True), repeats=2)
    spec = {"rows": 2000, "actions": 5}
    ((_, cell),) = contest.run([spec], {"rows": 100})
    assert all(len(cell[name]["seconds"]) == 2 for name in cell)
    assert peers.agreement([(spec, cell)], contest.names)
    monkeypatch.setattr(runs.Worker, "start", None)  # no process is needed
    again = runs.Race("evaluate", ["ours", "numpy_by_hand"], runs.Store(quick=True), repeats=2)
    assert again.run([spec])[0][1] == cell
    far = {"ours": cell["ours"], "numpy_by_hand": {**cell["numpy_by_hand"], "answer": {"ips": [9.0, 8.0, 10.0]}}}
    assert not peers.agreement([(spec, far)], contest.names)
    assert "Not the same: NumPy by hand, ips" in capsys.readouterr().out


def test_who_fails_is_shown_and_the_others_go_on(runs):
    """A library without the task, and one that needs longer than it may; larger sizes are not tried."""
    contest = runs.Race("evaluate", ["ours"], runs.Store(quick=True), repeats=2, limit=0.0)
    cells = contest.run([{"rows": 100, "actions": 2}, {"rows": 200, "actions": 2}])
    assert [cell["ours"]["error"] for _, cell in cells] == ["more than 0 s"] * 2
    contest = runs.Race("evaluate", ["numpy_by_hand", "scikit_learn"], runs.Store(quick=True), repeats=1, fresh=True)
    ((_, cell),) = contest.run([{"rows": 100, "actions": 2}])
    assert "has no attribute 'evaluate'" in cell["scikit_learn"]["error"]
    assert "answer" in cell["numpy_by_hand"]


def test_a_library_that_takes_too_much_memory_is_stopped(runs, monkeypatch):
    monkeypatch.setattr(runs, "MEMORY", 1.0)
    worker = runs.Worker("numpy_by_hand")
    answer = worker.ask(60, do="prepare", task="evaluate", spec={"rows": 10, "actions": 2})
    assert answer == {"error": "more than 0 GB", "is_limit": True}
    assert worker.process is None


def test_an_environment_that_cannot_be_built_says_why_in_one_line(runs, tmp_path):
    record = runs.build(tmp_path / "broken", (str(tmp_path / "no-such-package"),))
    assert "\n" not in record["error"]
    assert "no-such-package" in record["error"]
    assert json.loads((tmp_path / "broken" / "built.json").read_text()) == record


# -- tables -----------------------------------------------------------------------------------------------------------------


def test_ratios_are_medians_and_pairs_their_range(peers):
    ours, theirs = {"seconds": [1.0, 2.0, 3.0]}, {"seconds": [10.0, 30.0, 60.0]}
    assert peers.ratio(theirs, ours) == "15 (10–20)"
    assert peers.ratio({"error": "more than 8 GB"}, ours) == "more than 8 GB"


def test_exponents_are_those_of_the_sizes(peers):
    cells = [
        ({"rows": n, "actions": 10}, {"a": {"seconds": [1e-6 * n**1.5], "peak_mb": 100 + 1e-3 * n}})
        for n in (10**4, 10**5, 10**6)
    ]
    time_slope, memory_slope = peers.growth(cells, ["a"], "rows", {"actions": 10}, 10**4)["a"].split(", ")
    assert (time_slope, float(memory_slope)) == ("1.50", pytest.approx(1.0, abs=0.05))


@pytest.mark.parametrize(
    ("case", "found", "outcome"),
    [
        ("NaN reward", {"error": "ValueError: rewards must be finite"}, "refuses, and says why"),
        ("NaN reward", {"error": "IndexError: 3"}, "crashes"),
        ("NaN reward", {"answer": {"ips": [float("nan"), None, None]}}, "**NaN, without a word**"),
        ("propensities in percent", {"answer": {"ips": [0.0015, 0.0014, 0.0016], "says": "ok"}}, "**wrong, without a word**"),
        ("propensities in percent", {"answer": {"ips": [0.1, 0.0, 0.2], "says": "caution: propensities"}}, "answers, and warns"),
        ("repeated users", {"answer": {"ips": [0.157, 0.150, 0.164]}}, "**wrong, without a word**"),
        ("repeated users", {"answer": {"ips": [0.157, 0.110, 0.204]}}, "right, without a word"),
        ("all rewards equal", {"answer": {"snips": [0.157, 0.15, 0.16]}}, "right, without a word"),
    ],
)  # fmt: skip
def test_mistakes_are_judged_by_what_is_said_and_by_the_answer(peers, case, found, outcome):
    record = {"answer": {"truth": 0.157, "warnings": []} | found}
    assert peers.judge(case, record)[0] == outcome


def test_coverage_counts_only_what_was_ok(peers):
    covered = {"truth": 1.0, "warnings": [], "answer": {"ips": [1.0, 0.9, 1.1], "says": "ok"}}
    missed = {"truth": 1.0, "warnings": [], "answer": {"ips": [2.0, 1.9, 2.1], "says": "caution: few rows"}}
    answers = [covered] * 30 + [missed] * 10
    assert peers.coverage(answers, "ips").startswith("75.0%")
    assert peers.coverage(answers, "ips", given="ok").startswith("100.0%")
    assert peers.keeps_coverage(answers, "ips")
    assert not peers.keeps_coverage(
        [covered] * 30 + [missed | {"answer": missed["answer"] | {"says": "ok"}}] * 10, "ips"
    )
