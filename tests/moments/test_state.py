"""The state: day after day equals one pass, no day counts twice, and whoever is killed leaves the old state whole."""

import gzip
import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import tracemalloc
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import planted
import polars as pl
import pytest
from messages import refuses

import counterpoise as cp
from counterpoise.errors import StateWarning
from counterpoise.evaluation import asking
from counterpoise.moments import state as states
from counterpoise.readers.batches import of_any_day
from counterpoise.weights import Clip

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


@pytest.mark.once
def test_thirty_days_one_by_one_equal_one_pass(tmp_path):
    files, few = days(tmp_path), QUESTION | {"groups": 4}
    for k, file in enumerate(files):
        batch = None if k % 2 else f"2026-11-{k + 1:02}"  # files have a key of their own
        result = cp.evaluate(file, **few, state=tmp_path / "state.json", batch=batch)
    expected = planted.numbers("", cp.evaluate(files, **few, interval="anytime"))
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
    with refuses(cp.MomentsError):
        cp.evaluate(first, **QUESTION, state=state)
    copy = tmp_path / "copy.parquet"
    copy.write_bytes(first.read_bytes())
    with refuses(cp.MomentsError):
        cp.evaluate(copy, **QUESTION, state=state)
    with refuses(cp.MomentsError):
        cp.evaluate(second, **QUESTION, state=state, batch="two")
    assert state.read_bytes() == before


def test_a_folder_that_grows_is_not_counted_twice(tmp_path):
    first, second, third = days(tmp_path, 3)
    state = tmp_path / "state.json"
    cp.evaluate([first, second], **QUESTION, state=state)
    with refuses(cp.MomentsError):
        cp.evaluate(f"{tmp_path}/*.parquet", **QUESTION, state=state)
    cp.evaluate(third, **QUESTION, state=state)
    with refuses(cp.MomentsError):
        cp.evaluate([first, first], **QUESTION, state=tmp_path / "other.json")
    assert state.stat().st_mode & 0o777 == 0o666 & ~umask()


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.once
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
    with refuses(cp.MomentsError):
        cp.compare(second, **QUESTION | {"target": "new"}, against="old", state=state)


def test_frames_need_a_key_and_a_key_needs_a_state(tmp_path):
    log = planted.a_log(100, bad=False)
    with refuses(cp.OptionError):
        cp.evaluate(log, **QUESTION, state=tmp_path / "state.json")
    with refuses(cp.OptionError):
        cp.evaluate(log, **QUESTION, batch="today")
    cp.evaluate(log, **QUESTION, state=tmp_path / "state.json", batch="today")
    result = cp.evaluate(log, **QUESTION, state=tmp_path / "state.json", batch="tomorrow")
    assert result.n == 200


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"format": 2}', b'{"format": 1}', b"\xff\xfe"])
def test_a_damaged_state_is_refused_and_kept(tmp_path, damage):
    state = tmp_path / "state.json"
    state.write_bytes(damage)
    with refuses(cp.MomentsError):
        cp.evaluate(planted.a_log(100, bad=False), **QUESTION, state=state, batch="today")
    assert state.read_bytes() == damage


def test_bad_rows_leave_the_state_alone(tmp_path):
    state = tmp_path / "state.json"
    with pytest.raises(cp.LogError):
        cp.evaluate(planted.a_log(), **QUESTION | {"drop_bad_rows": False}, state=state, batch="today")
    assert not state.exists()


@pytest.mark.once
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
        done = subprocess.run([sys.executable, "-c", script], env=os.environ, capture_output=True, timeout=900)
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
    assert type(result.table()) is pl.DataFrame


@pytest.mark.once
def test_jobs_that_add_at_the_same_time_lose_nothing(tmp_path):
    """Between reading the old state and writing the new one another job may not do the same."""
    files, state = days(tmp_path), tmp_path / "state.json"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda file: cp.evaluate(file, **SHORT, drop_bad_rows=True, state=state), files))
    assert len(json.loads(state.read_text())["batches"]) == 30


# -- which rows are in it ----------------------------------------------------------------------------------------------

SHORT = {"reward": "reward", "propensity": "propensity", "target": "new"}


def some(folder, *names, rows=100):
    """Files of different rows."""
    log = planted.a_log(rows * len(names), bad=False)
    for k, name in enumerate(names):
        part, path = log[k * rows : (k + 1) * rows], folder / name
        path.parent.mkdir(exist_ok=True)
        part.write_csv(path) if path.suffix == ".csv" else part.write_parquet(path)
    return [folder / name for name in names]


def same(found, expected):
    mine, theirs = planted.numbers("", found), planted.numbers("", expected)
    assert mine.keys() == theirs.keys()
    for key, values in theirs.items():
        assert mine[key] == pytest.approx(values, rel=1e-12, abs=1e-14, nan_ok=True), key


def refused(words, log, state, error=cp.MomentsError, **options):
    before = state.read_bytes()
    with pytest.raises(error, match=words):
        cp.evaluate(log, **SHORT, state=state, **options)
    assert state.read_bytes() == before


def append(file, rows):
    pl.concat([pl.read_parquet(file), rows]).write_parquet(file)


def test_a_known_file_with_more_rows_is_refused_until_its_owner_says_what_it_is(tmp_path):
    state, (first, second) = tmp_path / "state.json", some(tmp_path, "a.parquet", "b.parquet")
    for file in (first, second):
        cp.evaluate(file, **SHORT, state=state)
    append(first, planted.a_log(50, seed=1, bad=False))
    refused("a.parquet' is in the state .* with other content.*batch=.*replace=True", first, state)
    replaced = cp.evaluate(first, **SHORT, state=state, replace=True)
    same(replaced, cp.evaluate([first, second], **SHORT, interval="anytime"))
    again = cp.evaluate(first, **SHORT, state=state, replace=True)  # a job that is run twice
    assert again.n == replaced.n == 250


def test_a_file_that_is_written_anew_every_day_has_a_key_every_day(tmp_path):
    state, latest = tmp_path / "state.json", tmp_path / "latest.parquet"
    for day in range(3):
        planted.a_log(100, seed=day, bad=False).write_parquet(latest)
        result = cp.evaluate(latest, **SHORT, state=state, batch=str(day))
    assert result.n == 300
    planted.a_log(70, seed=9, bad=False).write_parquet(latest)
    refused("with other content, as are 2 others", latest, state)
    refused("as the batch '0'. Name the batch", latest, state, replace=True)
    assert cp.evaluate(latest, **SHORT, state=state, batch="1", replace=True).n == 270


def test_a_replaced_batch_leaves_no_trace(tmp_path):
    """Even one whose rewards are 10¹² times those of the others, which a subtraction would not survive."""
    state, log = tmp_path / "state.json", planted.a_log(500, bad=False)
    parts = [log[k * 100 : (k + 1) * 100] for k in range(5)]
    for k, part in enumerate(parts):
        wrong = part.with_columns(reward=pl.col("reward") * 1e12) if k == 2 else part
        cp.evaluate(wrong, **SHORT, state=state, batch=str(k))
    result = cp.evaluate(parts[2], **SHORT, state=state, batch="2", replace=True)
    same(result, cp.evaluate(log, **SHORT, interval="anytime"))


def test_only_what_is_kept_apart_can_be_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(states, "APART", 2)
    state, files = tmp_path / "state.json", some(tmp_path, "a.parquet", "b.parquet", "c.parquet", "d.parquet")
    cp.evaluate(files[0], **SHORT, state=state)
    cp.evaluate(files[1:3], **SHORT, state=state)
    append(files[1], planted.a_log(50, seed=1, bad=False))
    refused("c.parquet' in one sum with files of this log", files[1], state, replace=True)
    cp.evaluate(files[3], **SHORT, state=state)
    append(files[0], planted.a_log(50, seed=2, bad=False))
    refused("cannot be replaced any more: .* its last 2 batches", files[0], state, replace=True)
    result = cp.evaluate(files[1:3], **SHORT, state=state, replace=True)
    assert result.n == 450
    assert len(json.loads(state.read_text())["recent"]) == 2


def test_large_moments_are_kept_apart_less_often(tmp_path, monkeypatch):
    monkeypatch.setattr(states, "NUMBERS", 300)
    for day in range(4):
        cp.evaluate(planted.a_log(100, seed=day, bad=False), **SHORT, state=tmp_path / "state.json", batch=str(day))
    assert len(json.loads((tmp_path / "state.json").read_text())["recent"]) == 2  # about 112 numbers each


def test_a_compacted_folder_is_refused_until_its_owner_says_what_it_is(tmp_path):
    files = some(tmp_path, "logs/a.parquet", "logs/b.parquet", "logs/c.parquet")
    logs, states_ = tmp_path / "logs", [tmp_path / "one.json", tmp_path / "two.json"]
    for state in states_:
        expected = cp.evaluate(logs, **SHORT, state=state)
    pl.concat([pl.read_parquet(file) for file in files]).write_parquet(logs / "all.parquet")
    for file in files:
        file.unlink()
    for log in (logs, logs / "*.parquet", [logs]):
        refused("no longer in its folder: if the folder was compacted", log, states_[0])
    same(cp.evaluate(logs, **SHORT, state=states_[0], replace=True), expected)
    assert cp.evaluate(logs, **SHORT, state=states_[1], batch="other rows").n == 600


def test_a_copy_that_was_compressed_converted_or_got_other_line_ends_is_refused(tmp_path):
    state, (first, second) = tmp_path / "state.json", some(tmp_path, "a.csv", "b.csv")
    for file in (first, second):
        cp.evaluate(file, **SHORT, state=state)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(first.read_bytes()))
    (tmp_path / "crlf.csv").write_bytes(second.read_bytes().replace(b"\n", b"\r\n"))
    pl.read_csv(first).write_parquet(tmp_path / "a.parquet")
    for name, of in (("a.csv.gz", "a.csv"), ("crlf.csv", "b.csv"), ("a.parquet", "a.csv")):
        refused(f"{name}' has the same numbers as the file '.*{of}'", tmp_path / name, state)
    assert cp.evaluate(tmp_path / "a.parquet", **SHORT, state=state, batch="other rows").n == 300


@pytest.mark.parametrize("change", ["appended", "same size", "new file", "gone"])
def test_files_that_change_while_they_are_read_are_refused(tmp_path, monkeypatch, change):
    state, (file, other) = tmp_path / "state.json", some(tmp_path, "logs/a.csv", "logs/b.csv")

    def changes(*arguments, **options):
        found = reading(*arguments, **options)
        text = file.read_text()
        if change == "appended":
            file.write_text(text + text.splitlines()[1] + "\n")
        elif change == "same size":
            file.write_text(text.replace("1", "2"))
        elif change == "new file":
            (tmp_path / "logs" / "c.csv").write_text(text.replace("1", "2"))
        else:
            other.unlink()
        return found

    reading = asking.moments_of
    monkeypatch.setattr(asking, "moments_of", changes)
    for batch in (None, "key"):
        with refuses(cp.MomentsError):
            cp.evaluate(tmp_path / "logs", **SHORT, state=state, batch=batch)
        some(tmp_path, "logs/a.csv", "logs/b.csv")
        (tmp_path / "logs" / "c.csv").unlink(missing_ok=True)
    assert not state.exists()


# -- which policies ----------------------------------------------------------------------------------------------------


class Shares:
    """A policy of one's own."""

    def __init__(self, share):
        self.share = share

    def __call__(self, batch):
        return np.full(batch.num_rows, self.share)


def constant(share):
    return lambda batch: np.full(batch.num_rows, share)


def test_another_policy_under_the_same_name_is_refused(tmp_path):
    log = planted.a_log(600, bad=False)
    question = planted.BASE | {"context": ["x0", "x1"], "action": "action"}
    kinds = {
        "classifier": lambda k: planted.a_policy(log[k * 100 :]),
        "closure": lambda k: constant([0.3, 0.4][k]),
        "object": lambda k: Shares([0.3, 0.4][k]),
    }
    for name, policy in kinds.items():
        state = tmp_path / f"{name}.json"
        for batch in "ab":  # made again, as a new process would
            result = cp.evaluate(log[:200], **question, target={"it": policy(0)}, state=state, batch=batch)
        assert result.n == 400
        with refuses(cp.MomentsError):
            cp.evaluate(log[200:], **question, target={"it": policy(1)}, state=state, batch="c")


def test_a_version_tells_policies_apart(tmp_path):
    log, state = planted.a_log(300, bad=False), tmp_path / "state.json"
    question = planted.BASE | {"context": ["x0"], "action": "action"}
    held = threading.Lock()

    def locked(batch):
        with held:
            return np.full(batch.num_rows, 0.3)

    with refuses(cp.OptionError):
        cp.evaluate(log, **question, target=locked, state=state, batch="a")
    cp.evaluate(log, **question, target=locked, state=state, batch="a", version={"locked": "1"})
    cp.evaluate(log, **question, target={"locked": constant(0.3)}, state=state, batch="b", version="1")
    with refuses(cp.MomentsError):
        cp.evaluate(log, **question, target=locked, state=state, batch="c", version="2")
    columns = tmp_path / "columns.json"  # what fills a column may change, too
    cp.evaluate(log, **SHORT, state=columns, batch="a", version="1")
    with refuses(cp.MomentsError):
        cp.evaluate(log, **SHORT, state=columns, batch="b")


@pytest.mark.parametrize(
    "wrong", [{"version": 1}, {"version": {"old": "1"}}, {"version": {"new": 1}}, {"replace": "yes"}], ids=str
)
def test_versions_and_replacements_that_make_no_sense_are_refused(tmp_path, wrong):
    log = planted.a_log(50, bad=False)
    with pytest.raises(cp.OptionError, match=next(iter(wrong))):
        cp.evaluate(log, **SHORT, state=tmp_path / "state.json", batch="a", **wrong)
    with refuses(cp.OptionError):
        cp.evaluate(log, **SHORT, **wrong)


# -- the answer once more ----------------------------------------------------------------------------------------------


def test_an_answer_that_was_lost_can_be_had_again(tmp_path):
    state, files = tmp_path / "state.json", days(tmp_path, 3)
    for file in files:
        lost = cp.evaluate(file, **QUESTION, state=state, interval="anytime")
    before = state.read_bytes()
    same(cp.evaluate(state=state, interval="anytime"), lost)
    assert state.read_bytes() == before
    other = tmp_path / "compare.json"
    lost = cp.compare(files[0], **QUESTION | {"target": "new"}, against="old", state=other)
    same(cp.compare(state=other), lost)
    with refuses(cp.MomentsError):
        cp.evaluate(state=tmp_path / "none.json")
    with refuses(cp.OptionError):
        cp.evaluate(state=state, segment="country")


@pytest.mark.once
def test_ten_thousand_batches_are_a_small_file(tmp_path):
    log, path = planted.a_log(10_000, bad=False), tmp_path / "state.json"
    cp.evaluate(log[:1], **SHORT, state=path, batch="0")
    question = states.load(path).question
    keys = tuple(states.StoredBatch(f"2026-11-14 {k}", {f"/logs/{k}.parquet": "0" * 32}, 1) for k in range(10_000))
    recent = tuple((cp.evaluate(log[k : k + 1], **SHORT).moments,) for k in range(31))
    states.store(path, states.State(question, keys, (cp.evaluate(log[31:], **SHORT).moments,), recent))
    assert cp.evaluate(state=path).n == 10_000
    assert path.stat().st_size < 3_000_000


# -- damage ------------------------------------------------------------------------------------------------------------


def test_a_flipped_bit_is_refused(tmp_path):
    state, log = tmp_path / "state.json", planted.a_log(200, bad=False)
    for k in range(3):
        cp.evaluate(log[k * 50 : (k + 1) * 50], **SHORT, segment="country", state=state, batch=f"{k}")
    whole, random = state.read_bytes(), np.random.default_rng(0)
    for at in random.choice(8 * len(whole), 400, replace=False):
        damaged = bytearray(whole)
        damaged[at // 8] ^= 1 << (at % 8)
        state.write_bytes(damaged)
        with pytest.raises(cp.MomentsError, match=r"state\.json"):
            cp.evaluate(state=state)


def crafted(path, change):
    """A state with something else in it, and a checksum that is right."""
    raw = json.loads(path.read_text())
    del raw["format"], raw["sha256"]
    change(raw)
    write(path, json.dumps(raw)[1:].encode())


def write(path, body, version=states.FORMAT):
    path.write_bytes(b'{"format": %d, "sha256": "%s", ' % (version, hashlib.sha256(body).hexdigest().encode()) + body)


def as_of_02(path, recent):
    """The state as version 0.2 would have left it: in format 2, without summaries, and with only so many batches apart."""
    raw = json.loads(path.read_text())
    moments = [cp.LogMoments.from_json(json.dumps(entry)) for entry in raw["recent"]]
    older = moments[: len(moments) - recent]
    for batch in raw["batches"]:
        del batch["summaries"]
    raw["older"], raw["recent"] = sum(older).to_plain() if older else None, raw["recent"][len(older) :]
    del raw["format"], raw["sha256"], raw["looks"]
    write(path, json.dumps(raw)[1:].encode(), version=2)


def put(value, *place):
    def change(raw):
        for step in place[:-1]:
            raw = raw[step]
        raw[place[-1]] = value

    return change


FIRST = ("recent", 0, "contrasts", 0)
CRAFTED = {
    "NaN": put(float("nan"), *FIRST, "moments", "mean", 0, 0, 0),
    "infinity": put(float("inf"), *FIRST, "moments", "center", 0, 0),
    "overflow": put(10**400, *FIRST, "moments", "center", 0, 0),
    "negative count": put(-1, *FIRST, "moments", "n", 0, 0),
    "count that is no whole number": put(1.5, *FIRST, "moments", "n", 0, 0),
    "count beyond counting": put(2**62, *FIRST, "moments", "n", 0, 0),
    "negative square": put(-1.0, *FIRST, "moments", "scatter", 0, 0, 0, 0),
    "text for a number": put("0.5", *FIRST, "moments", "mean", 0, 0, 0),
    "text for a mean": put("mean", *FIRST, "moments", "mean"),
    "true for a number": put(True, "recent", 0, "dropped"),
    "number for a text": put(7, *FIRST, "target"),
    "list for a text": put(["reward"], "question", "reward"),
    "ragged": put([[1.0], [1.0, 2.0]], *FIRST, "moments", "mean"),
    "no groups": put([[]], *FIRST, "moments", "n"),
    "huge shape": put([[0] * 100_000], *FIRST, "moments", "n"),
    "many columns": put([f"x{k}" for k in range(100_000)], *FIRST, "moments", "columns"),
    "a column twice": put(["u", "s", "us", "us"], *FIRST, "moments", "columns"),
    "weights in disorder": put([1.0, 2.0], *FIRST, "tails", 0, "weights"),
    "a negative weight": put([1.0, -2.0], *FIRST, "tails", 0, "weights"),
    "too many weights": put([1.0] * 1001, *FIRST, "tails", 0, "weights"),
    "too many zeros": put(10**6, *FIRST, "tails", 0, "zeros"),
    "rewards upside down": put([1e9], "recent", 0, "reward_min"),
    "a segment that is a list": put([[["DE"]]], "recent", 0, "segments"),
    "a weight that is a text": put("Importance()", "recent", 0, "weight"),
    "a weight of some mean": put(1, "recent", 0, "weight", "mean_is_one"),
    "unknown entry": put(1, "surprise"),
    "unknown entry inside": put(1, *FIRST, "surprise"),
    "unknown part of the question": put(1, "question", "surprise"),
    "a number for a column of lists": put(7, "question", "slate"),
    "a text for a discount factor": put("0.9", "question", "discount_factor"),
    "batches as a mapping": put({}, "batches"),
    "a batch of other rows": put(99, "batches", 0, "rows"),
    "a batch of nothing": put({"batch": None, "files": {}, "rows": 50, "dropped": 0}, "batches", 0),
    "no moments": put([], "recent"),
    "moments of another question": put([["old", ""]], "question", "contrasts"),
    "moments of another weight": put("Clip(most=3)", "question", "weight"),
    "summaries as a list": put([1.0], "batches", 0, "summaries"),
    "text in a summary": put({"reward": {"new": {"value": "0.5"}}}, "batches", 0, "summaries"),
    "infinity in a summary": put({"reward": {"new": {"value": 10**400}}}, "batches", 0, "summaries"),
}


@pytest.mark.parametrize("kind", CRAFTED)
def test_a_crafted_state_is_refused(tmp_path, kind):
    state = tmp_path / "state.json"
    cp.evaluate(planted.a_log(50, bad=False), **SHORT, state=state, batch="a")
    crafted(state, CRAFTED[kind])
    with refuses(cp.MomentsError):
        cp.evaluate(state=state)


def test_a_state_that_is_deep_long_or_no_file_is_refused_before_much_is_allocated(tmp_path):
    state = tmp_path / "state.json"
    write(state, b'"question": ' + b"[" * 200_000)
    with refuses(cp.MomentsError):
        cp.evaluate(state=state)
    write(state, b'"question": ' + b"[" * 900 + b"]" * 900 + b', "batches": [], "older": null, "recent": []}')
    with refuses(cp.MomentsError):
        cp.evaluate(state=state)
    with state.open("r+b") as file:
        file.truncate(2**28)
    tracemalloc.start()
    with refuses(cp.MomentsError):
        cp.evaluate(state=state)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()
    state.unlink()
    os.mkfifo(state)
    with refuses(cp.MomentsError):
        cp.evaluate(state=state)


def test_a_condition_on_the_day_may_name_another_day_every_day(tmp_path):
    log = planted.a_log(300, bad=False).with_columns(day=pl.Series([f"2026-11-{1 + k // 100:02}" for k in range(300)]))
    log.write_parquet(tmp_path / "log.parquet")
    state = tmp_path / "state.json"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for k in range(3):
            where = f"device >= 0 AND day = '2026-11-{k + 1:02}'"
            result = cp.evaluate(tmp_path / "log.parquet", **SHORT, where=where, state=state, batch=str(k))
    same(result, cp.evaluate(log, **SHORT, where="device >= 0", interval="anytime"))
    assert states.load(state).question["where"] == "device >= 0 AND day = 'any day'"
    with pytest.raises(cp.AlreadyAddedError):
        cp.evaluate(log, **SHORT, where=where, state=state, batch="2")
    with pytest.warns(StateWarning, match="same rows"):
        cp.evaluate(log, **SHORT, where=where, state=state, batch="again")
    for other in ("device >= 1 AND day = '2026-11-01'", "device >= 0 AND day >= '2026-11-01'", None):
        with refuses(cp.MomentsError):
            cp.evaluate(log, **SHORT, where=other, state=state, batch="other")


def test_a_database_is_added_day_by_day_with_a_query(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    log = planted.a_log(300, bad=False).with_columns(day=pl.Series([1 + k // 100 for k in range(300)]))
    with duckdb.connect() as connection:
        connection.register("log", log)
        for k in (1, 2, 3):
            query = {"query": f"SELECT * FROM log WHERE day = {k}", "state": tmp_path / "state.json", "batch": str(k)}
            result = cp.evaluate(connection, **SHORT, **query)
    assert (result.n, result.moments.looks) == (300, 3)


@pytest.mark.parametrize(
    "where",
    [
        "country = 'DE'",
        "user = 12345678",
        "day >= '2026-11-14'",
        "day = '2026-11-14' OR x = 1",
        "NOT (x = 1 AND day = '2026-11-14' AND y = 2)",
        "f(x AND day = '2026-11-14' AND y)",
        "x = 'a AND day = ''2026-11-14'' AND b'",
        "(day = '2026-11-14') = FALSE",
        None,
    ],
)
def test_a_condition_that_two_days_could_share_stays_as_it_is(where):
    assert of_any_day(where) == where


def test_a_state_of_an_older_version_says_so(tmp_path):
    state = tmp_path / "state.json"
    state.write_text('{"format": 1, "question": {}, "batches": ["one"], "moments": {}}')
    with refuses(cp.MomentsError):
        cp.evaluate(planted.a_log(50, bad=False), **SHORT, state=state, batch="a")


def test_a_state_of_02_is_read_and_gets_summaries_when_it_is_next_written(tmp_path):
    state, names = tmp_path / "state.json", [f"2026-11-{day:02}" for day in range(1, 7)]
    for k, name in enumerate(names):
        cp.evaluate(planted.a_log(50 + k, bad=False), **SHORT, state=state, batch=name)
    with_all = cp.watch(state)
    expected = cp.evaluate(state=state).n
    as_of_02(state, recent=4)
    old = state.read_bytes()
    assert cp.evaluate(state=state).n == expected
    watched = cp.watch(state)
    assert [day.name for day in watched.days] == names[2:]
    assert "2 batches of an earlier version had been added up before days were kept" in watched.notes[0]
    assert state.read_bytes() == old  # looking changes nothing
    with pytest.warns(StateWarning, match=r"kept as '.*state\.format-2\.json'"):
        cp.evaluate(planted.a_log(70, bad=False), **SHORT, state=state, batch="2026-11-07")
    assert (tmp_path / "state.format-2.json").read_bytes() == old
    assert cp.evaluate(state=tmp_path / "state.format-2.json").n == expected
    raw = json.loads(state.read_text())
    assert raw["format"] == states.FORMAT
    assert [bool(batch["summaries"]) for batch in raw["batches"]] == [False] * 2 + [True] * 5
    again = cp.watch(state)
    for mine, theirs in zip(again.series, with_all.series, strict=True):
        assert mine.values[:4] == pytest.approx(theirs.values[2:], rel=1e-12)


def test_a_state_of_03_is_read_has_a_look_for_every_batch_and_is_kept_when_it_is_next_written(tmp_path):
    state, log = tmp_path / "state.json", planted.a_log(200, bad=False)
    for k in range(3):
        cp.evaluate(log[50 * k : 50 * (k + 1)], **SHORT, state=state, batch=str(k))
    raw = json.loads(state.read_text())
    del raw["format"], raw["sha256"], raw["looks"]
    write(state, json.dumps(raw)[1:].encode(), version=3)
    old = state.read_bytes()
    assert cp.evaluate(state=state).moments.looks == 3
    with pytest.warns(StateWarning, match=r"state\.format-3\.json"):
        assert cp.evaluate(log[150:], **SHORT, state=state, batch="3").moments.looks == 4
    assert (tmp_path / "state.format-3.json").read_bytes() == old
    assert states.load(state).looks == 4


def test_summaries_outlive_the_moments_and_keep_what_a_later_version_put_there(tmp_path, monkeypatch):
    monkeypatch.setattr(states, "APART", 2)
    state = tmp_path / "state.json"
    for day in range(5):
        cp.evaluate(planted.a_log(50 + day, bad=False), **SHORT, state=state, batch=f"2026-11-0{day + 1}")
        if day == 0:
            crafted(state, put([1.0, 2.0], "batches", 0, "summaries", "squares of tomorrow"))
    raw = json.loads(state.read_text())
    assert len(raw["recent"]) == 2
    assert raw["batches"][0]["summaries"]["squares of tomorrow"] == [1.0, 2.0]
    assert len(cp.watch(state).days) == 5


def test_what_is_already_there_is_an_error_of_its_own_and_a_part_of_it_is_not(tmp_path):
    first, second, *_ = days(tmp_path, 3)
    state = tmp_path / "state.json"
    cp.evaluate(first, **QUESTION, state=state)
    cp.evaluate(second, **QUESTION, state=state, batch="two")
    for log, batch in ((first, None), (second, "two")):
        with refuses(cp.AlreadyAddedError):
            cp.evaluate(log, **QUESTION, state=state, batch=batch)
    for log, batch in ((tmp_path, None), (first.parent / "day 02.parquet", "two")):
        with refuses(cp.MomentsError) as refusal:
            cp.evaluate(log, **QUESTION, state=state, batch=batch)
        assert refusal.type is cp.MomentsError  # something of it is not there


def test_the_same_rows_under_another_key_are_counted_with_a_warning(tmp_path):
    log, state = planted.a_log(50, bad=False), tmp_path / "state.json"
    cp.evaluate(log, **SHORT, state=state, batch="a")
    with pytest.warns(StateWarning, match="the batch 'b' has the same rows as the batch 'a'"):
        assert cp.evaluate(log, **SHORT, state=state, batch="b").n == 100
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cp.evaluate(planted.a_log(60, bad=False), **SHORT, state=state, batch="c")
        cp.evaluate(log, **SHORT, state=tmp_path / "another", batch="b")


@pytest.mark.parametrize("weight", [None, Clip(3)])
def test_a_state_from_before_moments_knew_their_weight_is_read(tmp_path, weight):
    state = tmp_path / "state.json"
    result = cp.evaluate(planted.a_log(50, bad=False), **SHORT, weight=weight, state=state, batch="a")

    def forget(raw):
        for moments in raw["recent"]:
            del moments["weight"]

    crafted(state, forget)
    assert cp.evaluate(state=state).moments.weight == result.moments.weight
    again = cp.evaluate(planted.a_log(70, bad=False), **SHORT, weight=weight, state=state, batch="b")
    assert again.n == 120
    raw = json.loads(result.moments.to_json())
    del raw["weight"]
    assert cp.LogMoments.from_json(json.dumps(raw)).weight.how == "Importance()"


def test_a_state_with_the_names_of_0_3_is_read_and_grows(tmp_path):
    state = tmp_path / "state.json"
    steps = {"reward": "r", "propensity": "p", "target": "t", "episode": "game", "step": "move", "discount_factor": 0.9}
    g = np.random.default_rng(0)
    log = {
        "r": g.random(60),
        "p": np.full(60, 0.5),
        "t": g.uniform(0.3, 0.7, 60),
        "game": np.arange(60) // 3,
        "move": np.arange(60) % 3,
    }
    for asked, rows in ((SHORT, planted.a_log(50, bad=False)), (steps, log)):
        state.unlink(missing_ok=True)
        result = cp.evaluate(rows, **asked, state=state, batch="a")

        def as_it_was(raw):
            text = json.dumps(raw).replace('"discount_factor"', '"gamma"').replace("Importance()", "Ratio()")
            raw.clear()
            raw.update(json.loads(text))

        crafted(state, as_it_was)
        assert b"Importance" not in state.read_bytes()
        again = cp.evaluate(rows, **asked, state=state, batch="b")
        assert again.moments.weight == result.moments.weight
        assert again.n == 2 * result.n
        assert b"Ratio()" not in state.read_bytes()
        assert b'"gamma"' not in state.read_bytes()
    old = result.moments.to_json().replace("Importance()", "Ratio()")
    assert cp.LogMoments.from_json(old).weight == result.moments.weight


def two_rewards(rows):
    log = planted.a_log(rows, bad=False)
    odd = pl.int_range(pl.len()) % 7 == 3
    return log.with_columns(revenue=pl.when(~odd).then(pl.col("reward") * 3.5 + 1))


SEVERAL = SHORT | {"reward": ["reward", "revenue"], "drop_bad_rows": True, "segment": "country"}


@pytest.mark.parametrize("ask", [cp.evaluate, cp.compare])
def test_several_rewards_in_one_state_are_those_of_one_state_each(tmp_path, monkeypatch, ask):
    monkeypatch.setattr(states, "APART", 2)  # older batches are in it, too
    log, state = two_rewards(400), tmp_path / "state.json"
    for k in range(4):
        result = ask(log[100 * k : 100 * k + 100], **SEVERAL, state=state, batch=f"{k}")
    result = ask(log[300:390], **SEVERAL, state=state, batch="3", replace=True)
    again = ask(state=state)
    assert result.of("revenue").n < result.n == 390
    for reward in ("reward", "revenue"):
        single = tmp_path / f"{reward}.json"
        for first, last in ((0, 100), (100, 200), (200, 300), (300, 390)):
            alone = ask(log[first:last], **SEVERAL | {"reward": reward}, state=single, batch=f"{first}")
        for found in (result.of(reward), again.of(reward)):
            assert (found.reward, found.n, found.dropped_rows) == (reward, alone.n, alone.dropped_rows)
            assert found.estimates.keys() == alone.estimates.keys()
            for key, one in alone.estimates.items():
                assert found.estimates[key].value == pytest.approx(one.value, rel=1e-12)
                assert found.estimates[key].stderr == pytest.approx(one.stderr, rel=1e-9)
    assert json.loads(state.read_text())["question"]["reward"] == ["reward", "revenue"]
    assert json.loads(single.read_text())["question"]["reward"] == "revenue"  # as it always was
    for other in ("reward", ["revenue", "reward"]):
        with refuses(cp.MomentsError):
            ask(log[:9], **SEVERAL | {"reward": other}, state=state, batch="more")
    if ask is cp.evaluate:
        assert ask(state=state, reward_bounds={"revenue": (0, 1e4)}).of("revenue").reward_bounds == (0, 1e4)


def test_a_copy_is_one_in_every_reward(tmp_path):
    log = two_rewards(100)
    log.write_parquet(tmp_path / "a.parquet")
    log.write_csv(tmp_path / "a.csv")
    log.with_columns(revenue=pl.col("revenue") + 1).write_parquet(tmp_path / "b.parquet")
    cp.evaluate(tmp_path / "a.parquet", **SEVERAL, state=tmp_path / "state.json")
    with refuses(cp.MomentsError):
        cp.evaluate(tmp_path / "a.csv", **SEVERAL, state=tmp_path / "state.json")
    assert cp.evaluate(tmp_path / "b.parquet", **SEVERAL, state=tmp_path / "state.json").n == 200


SEVERAL_CRAFTED = {
    "one reward's moments": lambda raw: raw["recent"].__setitem__(0, raw["recent"][0][0]),
    "a reward too few": lambda raw: raw["recent"][0].pop(),
    "a reward too many": lambda raw: raw["recent"][0].append(raw["recent"][0][0]),
    "a reward twice": put(["reward", "reward"], "question", "reward"),
    "no reward": put([], "question", "reward"),
    "another reward's rows": put(1, "recent", 0, 1, "dropped"),
}


@pytest.mark.parametrize("kind", SEVERAL_CRAFTED)
def test_a_crafted_state_of_several_rewards_is_refused(tmp_path, kind):
    state = tmp_path / "state.json"
    cp.evaluate(two_rewards(50), **SEVERAL, state=state, batch="a")
    crafted(state, SEVERAL_CRAFTED[kind])
    with refuses(cp.MomentsError):
        cp.evaluate(state=state)


OF_MOMENTS = list(CRAFTED)[: list(CRAFTED).index("unknown entry")]


@pytest.mark.parametrize("kind", [kind for kind in OF_MOMENTS if kind != "list for a text"])
def test_crafted_moments_are_refused(kind):
    raw = {"recent": [json.loads(cp.evaluate(planted.a_log(50, bad=False), **SHORT).moments.to_json())]}
    CRAFTED[kind](raw)
    with pytest.raises(cp.MomentsError):
        cp.LogMoments.from_json(json.dumps(raw["recent"][0]))
