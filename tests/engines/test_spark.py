"""One Spark, classic and over Connect, on the log of the matrix: it says what is said here, as do models and plots of its rows."""

import json
import subprocess
import sys
from pathlib import Path

import planted
import polars as pl
import pytest
import spark_answers
from conftest import absent
from engines.test_matrix import assert_same

import counterpoise as cp


@pytest.fixture(scope="module")
def log():
    return planted.a_log()


@pytest.fixture(scope="module")
def spark(java, log, tmp_path_factory):
    """What Spark answered, in a process of its own, as its threads outlive a test."""
    pytest.importorskip("pyspark")
    here, folder = Path(__file__).parents[1], tmp_path_factory.mktemp("spark")
    log.write_parquet(folder / "log.parquet")
    command = [sys.executable, here / "spark_answers.py", "local-cluster[2,1,1024]"]
    command += [folder / "log.parquet", folder / "answers.json"]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "answers.json").read_text())


@pytest.fixture(scope="module")
def policy(log):
    return planted.numbers("policy", cp.evaluate(log, **planted.POLICY, target={"clf": planted.a_policy(log)}))


@pytest.mark.parametrize("session", ["classic", "connect"])
def test_spark_agrees(session, spark, log, policy):
    """Columns, policies, odd names, errors."""
    if session == "connect" and "connect" not in spark:
        absent("grpcio, for Spark Connect,")
    found = spark["connect"] if session == "connect" else spark
    assert_same(found["answers"], (planted.sample if session == "connect" else planted.answers)(log))
    assert_same(found["policy"], policy)
    without, jobs = found["without"]
    expected = planted.answers(log)
    assert without
    assert_same(without, {key: expected[key] for key in without})
    assert min(jobs) > 1  # their executors did not add them up
    if "learned" in found:
        learned = cp.evaluate(log, **planted.POLICY, target={"learned": planted.a_learned_policy()})
        assert_same(found["learned"], planted.numbers("learned", learned))
    one = cp.evaluate(log, **planted.BASE, target="new")["new", "snips"]
    assert found["odd"] == pytest.approx([one.value, one.stderr], rel=1e-9)
    named = cp.evaluate(
        log.with_columns(name=pl.format("user {}", "user")), **planted.BASE, target="new", cluster="name"
    )
    assert found["named"] == pytest.approx(named["new", "snips"].stderr, rel=1e-9)
    halves = log.with_columns(
        name=pl.format("user {}", "user"), propensity=pl.when(pl.col("id") < 2000).then("propensity").otherwise(0.0)
    )
    question = planted.BASE | {"segment": "country", "cluster": "name", "context": ["name"], "action": "action"}
    by_name = cp.evaluate(halves, **question, target={"named": spark_answers.by_name})
    assert_same(found["halves"], planted.numbers("halves", by_name))
    assert "propensity 'propensity' must lie in (0, 1]: 4 rows do not" in found["errors"]["bad rows"]
    assert "no column 'rewards' for reward" in found["errors"]["wrong column"]
    assert "nothing" in found["errors"]["wrong expression"]
    assert "for batch 0 of partition" in found["errors"]["policy"]
    assert "every column needs a name of its own" in found["errors"]["two of a name"]


def test_a_plain_log_takes_one_job_and_at_most_three_with_checks(spark):
    assert [sums for _, sums in spark["jobs"]] == [1, 1]
    assert max(every for every, _ in spark["jobs"]) <= 3


def test_a_baseline_of_the_context_is_the_same_in_spark(spark, log):
    assert_same(spark["context"], planted.context_parts(planted.with_context(log)))


def test_segments_of_a_point_in_time_do_not_depend_on_the_zone_of_the_session(spark):
    assert spark["times"] == [[["2026-10-26 01:00:00+00:00"], ["2026-10-26 15:00:00+00:00"]]] * 2


def test_an_executor_killed_in_the_middle_changes_nothing(spark, policy):
    assert_same(spark["killed"], policy)
    assert spark["calls"] > 4  # four partitions, of which at least one ran twice


def test_models_learners_and_plots_say_in_spark_what_they_say_here(spark):
    pytest.importorskip("torch")
    assert spark["same"] == ["models", "learners", "clusters", "a condition", "expressions", "an action"]
