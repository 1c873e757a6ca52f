"""`record` writes what `evaluate` reads: checked, one whole line per decision, whatever happens meanwhile."""

import errno
import json
import math
import os
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta, timezone
from importlib.resources import files

import jsonschema
import numpy as np
import polars as pl
import pytest
from messages import refuses

import counterpoise as cp
from counterpoise.log import record as module

SCHEMA = json.loads(files("counterpoise").joinpath("schema", "record.schema.json").read_text(encoding="utf-8"))
SHARES = {"red": 0.8, "green": 0.2}
DECISION = {"action": "red", "policy": "colors-3", "probabilities": SHARES}


def lines_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_line_has_every_field_and_fits_the_schema(tmp_path):
    log = tmp_path / "log.jsonl"
    berlin = datetime(2026, 11, 17, 9, 30, tzinfo=timezone(timedelta(hours=1)))
    context = {"age": np.int64(31), "city": "Köln", "scores": np.array([0.5, 2.0]), "income": math.nan, "since": berlin}
    assert cp.record(log, **DECISION, context=context, id="r-1", time=berlin, user_id=7, click=True) == "r-1"
    made = cp.record(str(log), action=np.int64(3), policy="colors-3", propensity=np.float32(0.25))
    first, second = lines_of(log)
    assert first == {
        "id": "r-1", "time": "2026-11-17T08:30:00.000000+00:00", "policy": "colors-3", "action": "red", "propensity": 0.8,
        "candidates": ["red", "green"], "probabilities": [0.8, 0.2], "age": 31, "city": "Köln", "scores": [0.5, 2.0],
        "income": None, "since": "2026-11-17T08:30:00.000000+00:00", "user_id": 7, "click": True,
    }  # fmt: skip
    assert second["id"] == made != "r-1"
    assert abs(datetime.fromisoformat(second["time"]) - datetime.now(UTC)) < timedelta(minutes=1)
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    for line in (first, second):
        jsonschema.validate(line, SCHEMA)
    for wrong in ({"propensity": 0.0}, {"action": None}, {"candidates": ["red", "red"]}, {"age": {"years": 3}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(first | wrong, SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({name: value for name, value in first.items() if name != "probabilities"}, SCHEMA)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"probabilities": {"red": 0.8, "green": 0.1}}, "the 2 candidates add up to 0.9, not to 1"),
        ({"probabilities": {"red": 0.333, "green": 0.333, "blue": 0.333}}, "add up to 0.999"),
        ({"action": "blue"}, "'blue' is not among the 2 candidates ('red', 'green')"),
        ({"propensity": 0.2}, "the propensity is 0.2, and the probability of the action 'red' is 0.8"),
        ({"action": "green", "propensity": 0.8}, "not that of the best one"),
        ({"probabilities": {"red": math.nan, "green": 1.0}}, "the probability of 'red' is nan, not a number from 0 to 1"),
        ({"probabilities": {"red": math.inf, "green": 0.0}}, "is inf"),
        ({"probabilities": {"red": 1.2, "green": -0.2}}, "the probability of 'red' is 1.2"),
        ({"probabilities": {"red": "0.8", "green": 0.2}}, "is '0.8'"),
        ({"probabilities": {"red": 0.0, "green": 1.0}}, "'red' was shown, and its probability is 0"),
        ({"probabilities": None}, "needs the probability of its action"),
        ({"probabilities": None, "propensity": 0}, "was shown, and its probability is 0"),
        ({"probabilities": None, "propensity": 80}, "the propensity is 80"),
        ({"probabilities": {}}, "maps every candidate to its probability"),
        ({"probabilities": [0.8, 0.2]}, "maps every candidate to its probability"),
        ({"action": 0.5}, "an action must be text or a whole number; found 0.5"),
        ({"policy": ""}, "policy= must be a text"),
        ({"id": 7}, "id= must be a text; found 7"),
        ({"time": datetime(2026, 1, 1)}, "with its zone"),
        ({"context": {"action": 1}}, "'action' is a field of every record"),
        ({"context": {"age": 1}, "age": 2}, "'age' is a field of every record, or was passed twice"),
        ({"context": {"age": {"years": 3}}}, "'age' must be text"),
        ({"context": {"age": math.inf}}, "'age' must be text, a finite number"),
    ],
)  # fmt: skip
def test_a_wrong_decision_is_refused_in_words_and_nothing_is_written(tmp_path, changed, said):
    log = tmp_path / "log.jsonl"
    with pytest.raises(cp.CounterpoiseError) as error:
        cp.record(log, **DECISION | changed)
    assert said in str(error.value)
    assert not log.exists()


def test_probabilities_of_32_bits_are_right_and_the_assertion_returns_the_served_one():
    scores = np.exp(np.random.default_rng(0).normal(size=1000)).astype(np.float32)
    shares = dict(enumerate(scores / scores.sum()))
    assert cp.check_decision(17, shares) == float(shares[17])
    assert cp.check_decision(17, shares, float(shares[17])) == float(shares[17])
    with refuses(cp.LogError):
        cp.check_decision(17, shares, float(max(shares.values())))


def test_what_it_writes_is_evaluated_as_it_is(tmp_path):
    """A server with two kinds of visitors, whose true values are known; rewards known at once, and joined later."""
    random = np.random.default_rng(1)
    rate = {"young": {"red": 0.2, "green": 0.6}, "old": {"red": 0.5, "green": 0.1}}
    old, new = {"red": 0.7, "green": 0.3}, {"young": {"red": 0.1, "green": 0.9}, "old": {"red": 0.9, "green": 0.1}}
    truth = np.mean([sum(new[kind][a] * rate[kind][a] for a in old) for kind in rate])
    log, rewards = tmp_path / "log.jsonl", tmp_path / "rewards.jsonl"
    with rewards.open("w", encoding="utf-8") as file:
        for k in range(4000):
            kind = "young" if random.random() < 0.5 else "old"
            action = "red" if random.random() < old["red"] else "green"
            click = int(random.random() < rate[kind][action])
            known = {"click": click, "pi_new": new[kind][action]}
            id = cp.record(
                log,
                action=action,
                policy="v1",
                probabilities=old,
                context={"kind": kind},
                id=f"r{k}",
                user_id=k,
                **known,
            )
            if click:
                file.write(json.dumps({"id": id, "clicked": 1}) + "\n")

    asked = {"propensity": "propensity", "action": "action", "target": {"new": "pi_new"}}
    result = cp.evaluate(str(log), reward="click", **asked)
    lower, upper = result["new", "beta_ips"].interval.lower, result["new", "beta_ips"].interval.upper
    assert lower < truth < upper
    assert upper - lower < 0.1
    assert result.verdict().verdict == "ok"
    by_policy = cp.evaluate(
        str(log), reward="click", target=Policy(new), context=["kind"], action="action", propensity="propensity"
    )
    assert by_policy["Policy", "beta_ips"].value == pytest.approx(result["new", "beta_ips"].value, rel=1e-12)

    joined = (
        pl.scan_ndjson(log)
        .join(pl.scan_ndjson(rewards).unique("id"), on="id", how="left")
        .with_columns(pl.col("clicked").fill_null(0))
    )
    later = cp.evaluate(joined, reward="clicked", **asked)
    assert later["new", "beta_ips"].value == pytest.approx(result["new", "beta_ips"].value, rel=1e-12)
    examined = cp.doctor(str(log), reward="click", action="action")
    assert not [finding for finding in examined.findings if finding.severity == "fix"]


class Policy:
    """A policy of two kinds of visitors."""

    classes_ = np.array(["green", "red"])

    def __init__(self, shares):
        self.shares = shares

    def predict_proba(self, context):
        return np.array([[self.shares[kind]["green"], self.shares[kind]["red"]] for (kind,) in context])


WRITER = """
import sys
import counterpoise as cp
for _ in range(25):
    cp.record(sys.argv[1], action="red", policy="colors-3", propensity=0.8, context={"text": "x" * 30_000})
"""


def test_threads_and_processes_write_whole_lines(tmp_path):
    log = tmp_path / "log.jsonl"
    long = "x" * 30_000  # several pages

    def work():
        for _ in range(25):
            cp.record(log, **DECISION, context={"text": long})

    processes = [subprocess.Popen([sys.executable, "-c", WRITER, str(log)]) for _ in range(2)]
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [process.wait(timeout=60) for process in processes] == [0, 0]
    lines = lines_of(log)
    assert len(lines) == len({line["id"] for line in lines}) == 150
    assert all(line["text"] == long for line in lines)


def test_a_full_disk_leaves_no_half_line(tmp_path, monkeypatch):
    log = tmp_path / "log.jsonl"
    cp.record(log, **DECISION, id="first")
    write, calls = os.write, []

    def half(file, line):
        calls.append(line)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, line[: len(line) // 2])

    monkeypatch.setattr(module.os, "write", half)
    with refuses(cp.LogError):
        cp.record(log, **DECISION, id="second")
    monkeypatch.undo()
    assert [line["id"] for line in lines_of(log)] == ["first"]
    cp.record(log, **DECISION, id="third")
    assert [line["id"] for line in lines_of(log)] == ["first", "third"]


@pytest.mark.parametrize("length", [1, 5, 40, 100_000])
def test_what_a_killed_process_left_behind_is_cut_off(tmp_path, length):
    log = tmp_path / "log.jsonl"
    cp.record(log, **DECISION, id="first")
    whole = log.read_bytes()
    half = (b'{"id": "second", "text": "' + b"x" * 200_000)[:length]
    log.write_bytes(whole + half)
    cp.record(log, **DECISION, id="third")
    assert [line["id"] for line in lines_of(log)] == ["first", "third"]


def test_files_of_others_are_left_alone(tmp_path):
    other = tmp_path / "log.csv"
    other.write_text("a,b\n1,2")
    with refuses(cp.LogError):
        cp.record(other, **DECISION)
    assert other.read_text() == "a,b\n1,2"
    with refuses(cp.LogError):
        cp.record(tmp_path / "nowhere" / "log.jsonl", **DECISION)


def test_a_server_loads_nothing_heavy():
    heavy = "'numpy', 'polars', 'narwhals', 'pandas', 'torch', 'rich', 'typer'"
    code = f"import counterpoise as cp, sys; cp.record; print(sorted(set(sys.modules) & {{{heavy}}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
