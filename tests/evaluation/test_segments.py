"""Many segments: each has the answer it would have alone, and all of them take as long as a sort."""

import ast
import datetime as dt
import json
import pickle
import time
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from command_line import invoke
from messages import refuses

import counterpoise as cp
from counterpoise.errors import OptionError
from counterpoise.evaluation import estimates as made
from counterpoise.evaluation.ranking import drivers
from counterpoise.evaluation.showing import evaluation
from counterpoise.moments import Moments

ASKED = {"reward": "r", "propensity": "p", "target": "t"}


def a_log(rows, segments, seed=0):
    random = np.random.default_rng(seed)
    t = random.uniform(0.1, 0.9, rows)
    return {
        "r": (random.random(rows) < 0.3 * t).astype(float),
        "p": random.uniform(0.2, 0.9, rows),
        "t": t,
        "other": random.uniform(0.1, 0.9, rows),
        "seg": np.arange(rows) % segments,
        "user": random.integers(0, rows // 4, rows),
    }


@pytest.mark.parametrize("cluster", [None, "user"])
@pytest.mark.parametrize("verb", [cp.evaluate, cp.compare])
def test_a_segment_has_the_answer_it_would_have_alone(verb, cluster):
    log = a_log(3000, 60)
    log["r"][log["seg"] == 3] = 0.0  # nothing varies
    log["t"][log["seg"] == 4] = 0.0  # nothing is identified
    log["r"][log["seg"] % 7 == 6] *= 12.5
    asked = ASKED | {"cluster": cluster} | ({"against": "other"} if verb is cp.compare else {})
    together = verb(log, segment="seg", **asked)
    for k in (0, 3, 4, 6, 13, 59):
        alone = verb(log, where=f"seg = {k}", **asked)
        for (target, name, place), one in alone.estimates.items():
            assert place is None
            found = together[target, name, k]
            # alone, clicks are known to end at 0 and 1
            interval = replace(found.interval, limits=one.interval.limits)
            numbers = [(x.value, x.stderr, x.n, *y) for x, y in ((found, interval), (one, one.interval))]
            assert numbers[0] == pytest.approx(numbers[1], rel=1e-12, abs=1e-14, nan_ok=True), (k, name)
            assert str(together.verdict(target, k)) == str(alone.verdict(target))
        for (target, _), one in alone.all_diagnostics.items():
            found = together.all_diagnostics[target, (k,)]
            assert found.carrying_rows == pytest.approx(one.carrying_rows, rel=1e-12)
            assert found.mean_weight_p == pytest.approx(one.mean_weight_p, rel=1e-9)
            assert found.pareto_k == pytest.approx(one.pareto_k, rel=1e-12, nan_ok=True)


def seconds(work):
    """Processor time, which a busy machine hardly changes."""
    began = time.process_time()
    work()
    return time.process_time() - began


@pytest.mark.once
@pytest.mark.parametrize("apart", [False, True], ids=["alike", "rewards worlds apart"])
def test_the_time_grows_as_the_number_of_segments(apart):
    def work(segments):
        log = a_log(2 * segments, segments)
        log["r"] = log["r"] + apart * 1e6 * log["seg"]

        def run():
            found = cp.evaluate(log, segment="seg", max_segments=segments, estimator=["beta_ips", "ips"], **ASKED)
            assert len(str(found).splitlines()) < 40

        return run

    few, many = min(seconds(work(500)) for _ in range(2)), seconds(work(8000))
    assert many < 16 * 5 * few  # 256 times as long, if it grew with the square


def test_clusters_cost_no_more_than_their_sums():
    log = a_log(8000, 1500)
    found = []
    asked = ASKED | {"segment": "seg", "max_segments": 1500, "cluster": "user", "estimator": "beta_ips"}
    plain = seconds(lambda: cp.evaluate(log, **(asked | {"cluster": None})))
    clustered = seconds(lambda: found.append(cp.evaluate(log, **asked)))
    assert found[0]["t", "beta_ips", 7].stderr > 0
    assert clustered < 100 * plain  # there are 100 groups of clusters


def test_leaving_one_out_takes_three_merges_a_group(monkeypatch):
    random = np.random.default_rng(1)
    parts = [Moments.of(random.random(5), random.random(5)) for _ in range(37)]
    stack, merged = Moments.stack(parts), []
    plain = Moments.merge
    monkeypatch.setattr(Moments, "merge", lambda self, axis: merged.append(self.n.size // 2) or plain(self, axis))
    others = stack.others
    assert sum(merged) <= 3.5 * 37
    monkeypatch.undo()
    for k in (0, 1, 17, 35, 36):
        expected = sum(parts[:k] + parts[k + 1 :])
        assert others[k].mean == pytest.approx(expected.recenter(others[k].center).mean, rel=1e-12)
        assert others[k].scatter == pytest.approx(expected.recenter(others[k].center).scatter, rel=1e-11)


def test_nothing_is_made_of_a_segment_until_somebody_looks(monkeypatch):
    looked = []
    plain = made.diagnose
    monkeypatch.setattr(made, "diagnose", lambda *a, **k: looked.append(1) or plain(*a, **k))
    result = cp.evaluate(a_log(4000, 2000), segment="seg", max_segments=2000, **ASKED)
    assert len(looked) <= 1
    assert result.verdict(segment=7).verdict == "caution"
    assert len(looked) <= 2
    assert len(result.verdicts) == 2001


def test_a_result_of_many_segments_travels_and_is_written_whole():
    result = cp.evaluate(a_log(4000, 1200), segment="seg", max_segments=1200, **ASKED)
    back = pickle.loads(pickle.dumps(result))
    assert back.table().equals(result.table())
    assert len(evaluation(back)["verdicts"]) == 1201
    compared = cp.compare(a_log(4000, 1200), segment="seg", max_segments=1200, **ASKED)
    assert sum(one.contribution for one in drivers(compared)) == pytest.approx(compared["t", "beta_ips"].value)


# -- asking first ------------------------------------------------------------------------------------------------------------


def refused(work):
    with pytest.raises(OptionError) as caught:
        work()
    arguments = set()
    caught.value.render(lambda name, value: str(arguments.add((name, ast.literal_eval(value or "...")))))
    return arguments


def test_above_a_thousand_segments_we_ask_first():
    log = a_log(3000, 1001)
    assert ("max_segments", 1001) in refused(lambda: cp.evaluate(log, segment="seg", **ASKED))
    assert ("max_segments", 1001) in refused(lambda: cp.compare(log, segment="seg", max_segments=1000, **ASKED))
    assert len(cp.evaluate(log, segment="seg", max_segments=1001, **ASKED).moments.segments) == 1001
    assert len(cp.evaluate(a_log(3000, 1000), segment="seg", **ASKED).moments.segments) == 1000
    assert ("max_segments", 4) in refused(lambda: cp.evaluate(a_log(80, 4), segment="seg", max_segments=3, **ASKED))


@pytest.mark.parametrize("source", ["polars", "pandas", "duckdb"])
def test_of_a_point_in_time_we_propose_the_week_and_the_day(source):
    start = dt.datetime(2026, 3, 1)
    frame = pl.DataFrame(a_log(3000, 3)).with_columns(
        ts=pl.Series([start + k * dt.timedelta(minutes=7) for k in range(3000)])
    )
    log = frame.to_pandas() if source == "pandas" else frame
    if source == "duckdb":
        log = pytest.importorskip("duckdb").sql("select * from frame")
    coarser = [value for name, value in refused(lambda: cp.evaluate(log, segment="ts", **ASKED)) if name == "segment"]
    coarser.remove("ts")
    counts = sorted(len(cp.evaluate(log, segment=one, **ASKED).moments.segments) for one in coarser)
    assert counts == [3, 15]  # three weeks began, and fifteen days


def test_a_number_of_segments_without_segments_is_refused():
    for verb in (cp.evaluate, cp.compare, cp.distribution, cp.sensitivity, cp.rank):
        with refuses(OptionError):
            verb(a_log(100, 4), max_segments=10, **ASKED)
    for most in (0, True, 2.5):
        with refuses(OptionError):
            cp.evaluate(a_log(100, 4), segment="seg", max_segments=most, **ASKED)


def test_more_sums_than_memory_holds_are_refused_before_they_are_made():
    asked = ASKED | {"segment": "seg", "max_segments": 10_000, "cluster": "user"}
    said = dict(refused(lambda: cp.evaluate(a_log(20_000, 10_000), groups=1000, **asked)))
    assert 20 <= said["groups"] < 1000


@pytest.mark.once
def test_the_command_line_asks_first(tmp_path):
    pl.DataFrame(a_log(3000, 1001)).write_parquet(tmp_path / "log.parquet")
    asked = [
        "evaluate",
        tmp_path / "log.parquet",
        "--reward",
        "r",
        "--propensity",
        "p",
        "--target",
        "t",
        "--segment",
        "seg",
    ]
    refusal = invoke(*asked)
    assert (refusal.exit_code, "--max-segments 1001" in " ".join(refusal.output.split())) == (2, True)
    found = json.loads(invoke(*asked, "--max-segments", "1001", "--json").stdout)
    assert len(found["verdicts"]) == 1002


@pytest.mark.parametrize("cluster", [None, "user"])
def test_segments_added_up_over_their_last_column_are_those_without_it(cluster):
    log = a_log(2_000, 5) | {"half": np.arange(2_000) // 1_000}
    both = cp.evaluate(log, **ASKED, segment=["seg", "half"], cluster=cluster).moments.over_last_segment()
    alone = cp.evaluate(log, **ASKED, segment="seg", cluster=cluster).moments
    assert (both.segments, both.segment_columns) == (alone.segments, alone.segment_columns)
    added, expected = cp.evaluate(both), cp.evaluate(alone)
    for key, estimate in expected.estimates.items():
        assert added.estimates[key].value == pytest.approx(estimate.value, rel=1e-9)
        assert tuple(added.estimates[key].interval) == pytest.approx(tuple(estimate.interval), rel=1e-9)
