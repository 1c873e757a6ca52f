"""The state: day after day equals one pass, no day counts twice, and whoever is killed leaves the old state whole."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import planted
import polars as pl
import pytest

import counterpoise as cp

QUESTION = {
    "reward": "reward",
    "propensity": "propensity",
    "target": ["new", "old"],
    "segment": "country",
    "cluster": "user",
    "drop_bad_rows": True,
}


def days(folder, n=30):
    log = planted.a_log(6000)
    for day in range(n):
        log[day * 200 : (day + 1) * 200].write_parquet(folder / f"day {day:02}.parquet")
    return [folder / f"day {day:02}.parquet" for day in range(n)]


def test_thirty_days_one_by_one_equal_one_pass(tmp_path):
    files = days(tmp_path)
    for k, file in enumerate(files):
        batch = None if k % 2 else f"2026-11-{k + 1:02}"  # files have a key of their own
        result = cp.evaluate(file, **QUESTION, state=tmp_path / "state.json", batch=batch)
    expected = planted.numbers("", cp.evaluate(files, **QUESTION))
    found = planted.numbers("", result)
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert found[key] == pytest.approx(values, rel=1e-12, abs=1e-14, nan_ok=True), key


def test_a_day_given_twice_is_refused_and_nothing_changes(tmp_path):
    first, second, *_ = days(tmp_path, 3)
    state = tmp_path / "state.json"
    cp.evaluate(first, **QUESTION, state=state)
    cp.evaluate(second, **QUESTION, state=state, batch="two")
    before = state.read_bytes()
    with pytest.raises(cp.MomentsError, match="already"):
        cp.evaluate(first, **QUESTION, state=state)
    copy = tmp_path / "copy.parquet"
    copy.write_bytes(first.read_bytes())
    with pytest.raises(cp.MomentsError, match="already"):
        cp.evaluate(copy, **QUESTION, state=state)
    with pytest.raises(cp.MomentsError, match="'two' is in the state"):
        cp.evaluate(second, **QUESTION, state=state, batch="two")
    assert state.read_bytes() == before


def test_a_folder_that_grows_is_not_counted_twice(tmp_path):
    first, second, third = days(tmp_path, 3)
    state = tmp_path / "state.json"
    cp.evaluate([first, second], **QUESTION, state=state)
    with pytest.raises(cp.MomentsError, match=r"day 00\.parquet' is in the state .* as are 1 others"):
        cp.evaluate(f"{tmp_path}/*.parquet", **QUESTION, state=state)
    cp.evaluate(third, **QUESTION, state=state)
    with pytest.raises(cp.MomentsError, match="are the same"):
        cp.evaluate([first, first], **QUESTION, state=tmp_path / "other.json")
    assert state.stat().st_mode & 0o777 == 0o666 & ~umask()


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_files_that_differ_in_the_middle_are_different_batches(tmp_path):
    rows = [f"{k % 2},0.5,0.5,{k}" for k in range(1_000_000)]
    for name, middle in (("a.csv", "1,0.5,0.5,x"), ("b.csv", "0,0.5,0.5,x")):
        rows[500_000:502_000] = [middle] * 2000
        (tmp_path / name).write_text("\n".join(["r,p,t,x", *rows]))
    question = {"reward": "r", "propensity": "p", "target": "t", "state": tmp_path / "state.json"}
    for name in ("a.csv", "b.csv"):
        assert cp.evaluate(tmp_path / name, **question).n in (1_000_000, 2_000_000)


def test_another_question_is_refused(tmp_path):
    first, second, *_ = days(tmp_path, 2)
    state = tmp_path / "state.json"
    cp.evaluate(first, **QUESTION, state=state)
    for change in ({"target": "new"}, {"where": "device = 1"}, {"segment": None}, {"reward": "value"}, {"groups": 50}):
        with pytest.raises(cp.MomentsError, match=next(iter(change))):
            cp.evaluate(second, **QUESTION | change, state=state)
    with pytest.raises(cp.MomentsError, match="made with"):
        cp.compare(second, **QUESTION | {"target": "new"}, against="old", state=state)


def test_frames_need_a_key_and_a_key_needs_a_state(tmp_path):
    log = planted.a_log(100, bad=False)
    with pytest.raises(cp.OptionError, match="batch="):
        cp.evaluate(log, **QUESTION, state=tmp_path / "state.json")
    with pytest.raises(cp.OptionError, match="state="):
        cp.evaluate(log, **QUESTION, batch="today")
    cp.evaluate(log, **QUESTION, state=tmp_path / "state.json", batch="today")
    result = cp.evaluate(log, **QUESTION, state=tmp_path / "state.json", batch="tomorrow")
    assert result.n == 200


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"format": 2}', b'{"format": 1}', b"\xff\xfe"])
def test_a_damaged_state_is_refused_and_kept(tmp_path, damage):
    state = tmp_path / "state.json"
    state.write_bytes(damage)
    with pytest.raises(cp.MomentsError, match=r"state\.json"):
        cp.evaluate(planted.a_log(100, bad=False), **QUESTION, state=state, batch="today")
    assert state.read_bytes() == damage


def test_bad_rows_leave_the_state_alone(tmp_path):
    state = tmp_path / "state.json"
    with pytest.raises(cp.LogError):
        cp.evaluate(planted.a_log(), **QUESTION | {"drop_bad_rows": False}, state=state, batch="today")
    assert not state.exists()


def test_a_process_killed_while_writing_leaves_the_old_state(tmp_path):
    """The process kills itself between the first and the last byte, and just before the new file takes its place."""
    state = tmp_path / "state.json"
    log = planted.a_log(300, bad=False)
    log.write_parquet(tmp_path / "log.parquet")
    cp.evaluate(log, **QUESTION, state=state, batch="one")
    before = state.read_bytes()
    for moment in ("os.fsync", "os.replace"):
        script = textwrap.dedent(
            f"""
            import os, signal
            import counterpoise as cp
            {moment} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
            cp.evaluate({str(tmp_path / "log.parquet")!r}, **{QUESTION!r}, state={str(state)!r}, batch="two")
            """
        )
        done = subprocess.run([sys.executable, "-c", script], env=os.environ, capture_output=True, timeout=120)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert state.read_bytes() == before
    assert cp.evaluate(log, **QUESTION, state=state, batch="two").n == 600
    assert [one["batch"] for one in json.loads(state.read_text())["batches"]] == ["one", "two"]


def test_states_of_policies(tmp_path):
    log = planted.a_log(bad=False)
    policy = planted.a_policy(log)
    for k in range(2):
        result = cp.evaluate(
            log[k * 2000 : (k + 1) * 2000],
            **planted.POLICY | {"key": None},
            target={"clf": policy},
            state=tmp_path / "state.json",
            batch=str(k),
        )
    expected = cp.evaluate(log, **planted.POLICY | {"key": None}, target={"clf": policy})
    assert result["clf", "snips"].value == pytest.approx(expected["clf", "snips"].value, rel=1e-12)
    assert isinstance(pl.DataFrame(result.table()), pl.DataFrame)


def test_jobs_that_add_at_the_same_time_lose_nothing(tmp_path):
    """Between reading the old state and writing the new one another job may not do the same."""
    files, state = days(tmp_path), tmp_path / "state.json"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda file: cp.evaluate(file, **QUESTION, state=state), files))
    assert len(json.loads(state.read_text())["batches"]) == 30
