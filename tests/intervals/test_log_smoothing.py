"""Logarithmic smoothing: the same bound wherever the log lives, and one that holds however heavy the weights are."""

import json
import math

import duckdb
import numpy as np
import polars as pl
import pytest
from command_line import invoke
from messages import refuses

import counterpoise as cp
from counterpoise.intervals.log_smoothing import GRID
from counterpoise.moments import LogMoments

pytestmark = pytest.mark.once

ASKED = {"reward": "r", "propensity": "p", "target": "t"}
HOW = ASKED | {"interval": "log_smoothing"}


def log_of(n=30_000):
    rng = np.random.default_rng(12)
    reward = rng.exponential(1.0, n) * (rng.random(n) < 0.3)
    columns = {"r": reward, "p": rng.uniform(0.01, 1, n), "t": rng.uniform(0, 1, n), "k": rng.integers(0, 3, n)}
    return pl.DataFrame(columns)


def plain_bound(log, level=0.95):
    """The bound by a loop over the rows."""
    n = log.height
    smoothing = min(GRID, key=lambda one: abs(math.log(one * math.sqrt(n))))
    total = math.fsum(math.log1p(smoothing * t / p * r) for r, p, t in log.select("r", "p", "t").rows())
    return math.expm1((total - math.log(1 / (1 - level))) / n) / smoothing


def check(log, where, **more):
    """That the whole log and its segments have the bounds of the loop."""
    found = cp.evaluate(where, segment="k", **HOW, **more)
    assert found["t", "ips"].interval.lower == pytest.approx(plain_bound(log), rel=1e-10)
    for k in range(3):
        assert found["t", "ips", k].interval.lower == pytest.approx(plain_bound(log.filter(k=k)), rel=1e-10)
    whole = cp.evaluate(where, **HOW, **more)
    assert whole["t", "ips"].interval.lower == pytest.approx(plain_bound(log), rel=1e-10)
    assert whole["t", "ips"].interval.upper == math.inf
    weighted = (log["t"] / log["p"] * log["r"]).to_list()
    sums = [math.fsum(math.log1p(one * x) / one for x in weighted) for one in GRID]
    np.testing.assert_allclose(whole.moments.smoothed["t", ""][0].sums, sums, rtol=1e-10)


@pytest.mark.parametrize("n", [2_000, 30_000])
def test_frames_files_and_duckdb_have_the_bound_of_a_plain_loop(n, tmp_path):
    log = log_of(n)
    log.write_parquet(tmp_path / "log.parquet")
    check(log, log)
    check(log, tmp_path / "log.parquet")
    with duckdb.connect() as connection:
        connection.register("log", log.to_arrow())
        check(log, connection.sql("select * from log"))


def test_postgres_has_the_bound_of_a_plain_loop(postgres):
    import psycopg

    log = log_of(30_000)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("drop table if exists smoothed_log")
        connection.execute("create table smoothed_log (r float8, p float8, t float8, k int)")
        with connection.cursor().copy("copy smoothed_log from stdin") as copy:
            for row in log.rows():
                copy.write_row(row)
        try:
            check(log, postgres, table="smoothed_log")
        finally:
            connection.execute("drop table smoothed_log")


def test_days_and_stored_moments_add_up(tmp_path):
    log = log_of(5_000)
    days = [
        cp.evaluate(part, segment="k", **HOW).moments for part in (log[:2_000], log[2_000:].filter(pl.col("k") > 0))
    ]
    kept = pl.concat([log[:2_000], log[2_000:].filter(pl.col("k") > 0)])
    both = LogMoments.from_json((days[0] + days[1]).to_json())
    assert cp.evaluate(both, interval="log_smoothing")["t", "ips"].interval.lower == pytest.approx(plain_bound(kept))
    state = tmp_path / "state.json"
    cp.evaluate(log[:2_000], **HOW, state=state, batch="1")
    found = cp.evaluate(log[2_000:], **HOW, state=state, batch="2")
    assert found["t", "ips"].interval.lower == pytest.approx(plain_bound(log), rel=1e-10)
    with refuses(cp.MomentsError):
        cp.evaluate(log, **ASKED, state=state, batch="3")
    cp.evaluate(log, **ASKED, state=tmp_path / "other.json", batch="1")
    with refuses(cp.MomentsError):
        cp.evaluate(log, **HOW, state=tmp_path / "other.json", batch="2")


def test_nobody_else_pays_for_it():
    moments = cp.evaluate(log_of(100), **ASKED).moments
    assert not moments.smoothed
    assert "smoothed" not in moments.to_json()
    with refuses(cp.OptionError):
        cp.evaluate(moments, interval="log_smoothing")
    with refuses(cp.MomentsError):
        moments + cp.evaluate(log_of(100), **HOW).moments


def test_what_it_is_not_for_is_refused():
    log = log_of(100)
    with refuses(cp.LogError):
        cp.evaluate(log.with_columns(r=pl.col("r") - 1), **HOW)
    with refuses(cp.OptionError):
        cp.compare(log, **HOW)
    with refuses(cp.OptionError):
        cp.evaluate(log, **HOW, cluster="k")
    with refuses(cp.OptionError):
        cp.evaluate(log, **HOW, estimator="snips")
    with refuses(cp.OptionError):
        cp.evaluate(log, reward="r", weight="t", interval="log_smoothing")
    with refuses(cp.OptionError):
        cp.intervals.LogSmoothing(scale=0)


def test_the_right_scale_makes_money_in_cents_as_good_as_in_euros():
    log = log_of(4_096)
    euros = cp.evaluate(log, **HOW)["t", "ips"].interval.lower
    cents = cp.evaluate(log.with_columns(r=pl.col("r") * 64), **ASKED, interval=cp.intervals.LogSmoothing(scale=64))[
        "t", "ips"
    ].interval.lower
    assert cents == pytest.approx(64 * euros)


@pytest.mark.thorough
@pytest.mark.parametrize("tail", [1.2, 1.5, 2.5])
def test_it_covers_where_weights_have_no_variance(tail):
    """Weights are Pareto with a tail index near 1, so that p = 1/w has no lower bound; the value is 0.2 of their mean, which is 1."""
    rng, runs, n, missed = np.random.default_rng(int(10 * tail)), 200, 300, 0
    for _ in range(runs):
        weight = (tail - 1) / tail * (1 + rng.pareto(tail, n))
        reward = (rng.random(n) < 0.2).astype(float)
        found = cp.evaluate(
            reward=reward,
            propensity=np.minimum(1 / weight, 1) * 0.2,
            target=np.minimum(weight, 1) * 0.2,
            interval="log_smoothing",
        )
        missed += found["target", "ips"].interval.lower > 0.2
    # at most 5 % of runs may miss: three standard errors of that share
    assert missed <= runs * 0.05 + 3 * math.sqrt(runs * 0.05 * 0.95)
    assert found["target", "ips"].interval.lower >= 0


def test_the_command_line_and_the_report_know_it(tmp_path):
    path = tmp_path / "log.parquet"
    log_of(500).write_parquet(path)
    options = ["evaluate", path, "--reward", "r", "--propensity", "p", "--target", "t", "--interval", "log_smoothing"]
    (estimate,) = json.loads(invoke(*options, "--json").stdout)["estimates"]
    assert (estimate["lower"], estimate["upper"]) == (pytest.approx(plain_bound(log_of(500))), None)
    assert "∞" in invoke(*options).stdout
    cp.evaluate(path, **HOW).report(tmp_path / "report.html")
    assert "Logarithmic smoothing" in (tmp_path / "report.html").read_text()
