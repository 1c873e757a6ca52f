"""Logs that other tools wrote: each answer is that of the same rows in a frame, and no line is lost in silence."""

import gzip
import json
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command_line import invoke
from messages import refuses
from paper_files import shared

import counterpoise as cp
from counterpoise.environments import OpenBanditLog
from counterpoise.errors import RecordWarning
from counterpoise.log.parts import PARTS
from counterpoise.readers import formats, json_records

TARGETS = {"first": cp.Always(1), "uniform": "1.0 / n_candidates"}


def decision(i, random, k=4):
    """One record of a contextual bandit, as the decision service writes it."""
    p = 0.9 * random.dirichlet(np.ones(k)) + 0.1 / k
    chosen, hour = int(random.choice(k, p=p / p.sum())), int(random.integers(24))
    order = [chosen, *(j for j in range(k) if j != chosen)]
    return {
        "_label_cost": float(-(random.random() < 0.1 + 0.2 * (chosen == hour % k))),
        "_label_probability": float(p[chosen]),
        "_label_Action": chosen + 1,
        "_labelIndex": chosen,
        "Timestamp": f"2026-01-{1 + i % 28:02}T{hour:02}:00:15.5160000Z",
        "Version": "1",
        "EventId": f"e{i}-{random.integers(10**9)}",
        "a": [j + 1 for j in order],
        "c": {
            "GUser": {"id": f"u{random.integers(200)}", "age": int(random.integers(18, 80)), "is_new": bool(i % 3)},
            "hour": hour,
            "_multi": [{"TAction": {"topic": f"t{j}"}} for j in range(k)],
        },
        "p": [float(p[j]) for j in order],
        "VWState": {"m": "N/A"},
    }


def records(n=400, seed=0):
    random = np.random.default_rng(seed)
    return [decision(i, random) for i in range(n)]


def write(path, lines):
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return path


def rows_of(log):
    """The rows of a log as a frame."""
    return formats.opened(log.data, log.format).frame.collect()


@pytest.fixture
def dsjson(tmp_path):
    return write(tmp_path / "log.dsjson", records())


def test_a_decision_has_its_reward_propensity_action_and_context(dsjson):
    frame = rows_of(cp.read.vowpal_wabbit(dsjson))
    for row, record in zip(frame.iter_rows(named=True), records(), strict=True):
        assert row["reward"] == -record["_label_cost"]
        assert row["propensity"] == record["_label_probability"]
        assert row["action"] == record["_label_Action"] == record["a"][0]
        assert (row["candidates"], row["probabilities"], row["keep"]) == (record["a"], record["p"], 1.0)
        assert row["context_GUser_age"] == record["c"]["GUser"]["age"]
        assert row["context_GUser_id"] == record["c"]["GUser"]["id"]
        assert row["action_TAction_topic"] == f"t{record['_labelIndex']}"
        assert row["timestamp"].isoformat() == record["Timestamp"].replace("5160000Z", "516000")


def plain(records, target):
    """IPS and SNIPS by a plain loop."""
    weights = [target(record) / record["_label_probability"] for record in records]
    total = sum(w * -record["_label_cost"] for w, record in zip(weights, records, strict=True))
    return total / len(records), total / sum(weights)


LOOPS = {"first": lambda record: float(record["a"][0] == 1), "uniform": lambda record: 1 / len(record["a"])}


@pytest.mark.parametrize("target", LOOPS)
def test_ips_and_snips_are_those_of_a_plain_loop(dsjson, target):
    result = cp.evaluate(cp.read.vowpal_wabbit(dsjson), target=TARGETS, cluster=False)
    ips, snips = plain(records(), LOOPS[target])
    assert result[target, "ips"].value == pytest.approx(ips, rel=1e-12, abs=1e-12)
    assert result[target, "snips"].value == pytest.approx(snips, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("target", LOOPS)
def test_ips_and_snips_are_those_of_vw_estimators(dsjson, target):
    pytest.importorskip("estimators.bandits.ips", reason="vw-estimators is not installed")
    from estimators.bandits import ips, snips
    from estimators.utils.ds_parse import json_cooked

    theirs = {"ips": ips.Estimator(), "snips": snips.Estimator()}
    for record in records():  # their parser looks for fields at places, without blanks
        line = json.dumps(record, separators=(",", ":")).encode()
        parsed = json_cooked(line)
        probability = float(parsed["a"] == 1) if target == "first" else 1 / parsed["num_a"]
        for estimator in theirs.values():
            estimator.add_example(parsed["p"], -float(parsed["cost"]), probability)
    result = cp.evaluate(cp.read.vowpal_wabbit(dsjson), target=TARGETS, cluster=False)
    for name, estimator in theirs.items():
        assert result[target, name].value == pytest.approx(estimator.get(), rel=1e-12, abs=1e-12)


def test_batches_globs_and_compression_change_nothing(tmp_path, monkeypatch):
    whole = rows_of(cp.read.vowpal_wabbit(write(tmp_path / "whole.dsjson", records())))
    monkeypatch.setattr(json_records, "BATCH", 5000)
    lines = [json.dumps(record) for record in records()]
    (tmp_path / "days").mkdir()
    for k in range(2):
        with gzip.open(tmp_path / "days" / f"{k}.dsjson.gz", "wt") as file:
            file.write("\n\n".join(lines[200 * k : 200 * (k + 1)]))  # blank lines are no records
    parts = rows_of(cp.read.vowpal_wabbit(str(tmp_path / "days" / "*.dsjson.gz")))
    assert parts.drop("line").equals(whole.drop("line"))


# -- Lines that are not what they should be ----------------------------------------------------------------------------

JUNK = {
    "cut off": json.dumps(records(1)[0])[:-40] + "\n",
    "not JSON": "nonsense\n",
    "an array": "[1, 2]\n",
    "a number": "5\n",
    "two objects": "{}, {}\n",
    "NaN": '{"_label_cost": NaN, "_label_probability": 0.5, "a": [1]}\n',
    "infinite": '{"_label_cost": 1e999, "_label_probability": 0.5, "a": [1]}\n',
    "huge": '{"_label_cost": ' + "9" * 400 + ', "_label_probability": 0.5, "a": [1]}\n',
    "text": '{"_label_cost": "one", "_label_probability": 0.5, "a": [1]}\n',
    "deep array": '{"_label_cost": 1, "a": ' + "[" * 100_000 + "]" * 100_000 + "}\n",
    "deep object": '{"c": ' * 100_000 + "1" + "}" * 100_000 + "\n",
}


@pytest.mark.parametrize("kind", JUNK)
def test_a_line_that_cannot_be_read_is_named_and_counted(tmp_path, kind):
    good = records()
    path = write(tmp_path / "log.dsjson", [*good[:100], JUNK[kind], *good[100:]])
    with refuses(cp.LogError):
        cp.read.vowpal_wabbit(path)
    log = cp.read.vowpal_wabbit(path, drop_bad_rows=True)
    result = cp.evaluate(log, target=TARGETS, cluster=False)
    assert (result.n, result.dropped_rows) == (400, 1)
    assert result["first", "ips"].value == pytest.approx(plain(good, LOOPS["first"])[0], rel=1e-12)


def test_bad_lines_are_found_wherever_they_are_and_whatever_they_add_up_to(tmp_path):
    good = [json.dumps(record) + "\n" for record in records()]
    # each pair of lines is one object if a comma is put between them, and "two objects" would make up for it
    lines = ['{"_outcomes": [{"_a": [1]}\n', '{"_a": [1]}]}\n', *good[:7], JUNK["two objects"], *good[7:], JUNK["NaN"]]
    path = write(tmp_path / "log.dsjson", lines)
    with refuses(cp.LogError):
        cp.read.vowpal_wabbit(path)
    assert cp.evaluate(cp.read.vowpal_wabbit(path, drop_bad_rows=True), target=TARGETS, cluster=False).dropped_rows == 4


def test_bytes_that_are_not_text_are_a_bad_line(tmp_path):
    path = write(tmp_path / "log.dsjson", records())
    path.write_bytes(path.read_bytes() + b'{"_label_cost": 1, "EventId": "\xff"}\n')
    with refuses(cp.LogError):
        cp.read.vowpal_wabbit(path)


def test_a_file_of_something_else_is_refused(tmp_path):
    (tmp_path / "log.dsjson").write_text("a,b\n1,2\n")
    with refuses(cp.LogError):
        cp.read.vowpal_wabbit(tmp_path / "log.dsjson")


def test_records_that_are_no_decision_are_counted_by_kind(tmp_path):
    good = records(50)
    others = [
        {"RewardValue": 1.0, "EnqueuedTimeUtc": "2026-01-03T20:12:20.028Z", "EventId": "x", "Observations": []},
        {"DeferredAction": False, "EventId": "y"},
        {"Version": "1"},
        good[0] | {"_skipLearn": True},
        good[1] | {"_deferred": True},
        good[2] | {"_skipLearn": True},
    ]
    path = write(tmp_path / "log.dsjson", [*good, *others])
    with pytest.warns(RecordWarning) as said:
        log = cp.read.vowpal_wabbit(path)
    text = str(said[0].message)
    for part in (
        "6 of 56 records are dropped",
        "1 rewards without their decision (the first is line 51",
        "1 activations without their decision (the first is line 52",
        "1 without a decision (the first is line 53",
        "2 marked with _skipLearn (the first is line 54",
        "1 deferred and never activated (the first is line 55",
    ):
        assert part in text
    assert cp.evaluate(log, target=TARGETS, cluster=False).n == 50


def test_a_context_unlike_the_first_costs_a_record_its_context_and_nothing_else(tmp_path):
    good = records(1200)
    odd = good[1100] | {"c": {"GUser": "somebody"}}
    path = write(tmp_path / "log.dsjson", [*good[:1100], odd, *good[1101:]])
    with pytest.warns(RecordWarning, match=r"1 of 1,200 records is read without the context.* line 1,101 of"):
        log = cp.read.vowpal_wabbit(path)
    rows = rows_of(log)
    assert rows["context_GUser_age"].null_count() == 1
    assert rows["reward"].to_list() == [-record["_label_cost"] for record in good]


def test_a_decision_without_a_label_is_a_bad_row(tmp_path):
    lines = records(20)
    del lines[3]["_label_cost"]
    log = cp.read.vowpal_wabbit(write(tmp_path / "log.dsjson", lines))
    with refuses(cp.LogError):
        cp.evaluate(log, target=TARGETS, cluster=False)


def test_names_that_polars_takes_for_patterns_are_no_columns(tmp_path):
    lines = [record | {"c": {"*": 1, "^.*$": 2, "ok": 3, "deep": {"*": 1}}} for record in records(20)]
    names = rows_of(cp.read.vowpal_wabbit(write(tmp_path / "log.dsjson", lines))).columns
    assert [name for name in names if name.startswith("context_")] == ["context_ok"]


def test_rows_that_were_dropped_on_purpose_are_weighed_or_refused(tmp_path):
    path = write(tmp_path / "log.dsjson", [record | {"pdrop": 0.5 * (k % 2)} for k, record in enumerate(records())])
    if "keep" in PARTS:
        assert cp.read.vowpal_wabbit(path).keep == "keep"
    else:
        with refuses(cp.LogError):
            cp.read.vowpal_wabbit(path)
    with refuses(cp.LogError):
        cp.evaluate(path, reward="reward", propensity="propensity", action="action", target=TARGETS)


# -- Lists -------------------------------------------------------------------------------------------------------------


def ranked(n=300, seed=1, *, is_slate=False):
    """Three of four items in a row, each with its probability given those above (CCB); or one of two in each slot (slates)."""
    random = np.random.default_rng(seed)
    lines = []
    for i in range(n):
        outcomes, left = [], [0, 1, 2, 3]
        for _ in range(2):
            items = [0, 1] if is_slate else left
            p = 0.8 * random.dirichlet(np.ones(len(items))) + 0.2 / len(items)
            place = int(random.choice(len(items), p=p / p.sum()))
            order = [place, *(k for k in range(len(items)) if k != place)]
            outcome = {"_id": f"{i}", "_a": [items[k] for k in order], "_p": [float(p[k]) for k in order]}
            cost = {} if is_slate else {"_label_cost": float(-(random.random() < 0.1 * (1 + items[place])))}
            outcomes.append(outcome | cost)
            left = [item for item in left if item != items[place]]
        whole = {"_label_cost": float(-(random.random() < 0.3))} if is_slate else {}
        lines.append(
            {**whole, "_outcomes": outcomes, "EventId": f"list {i}", "c": {"hour": i % 24, "_multi": [], "_slots": []}}
        )
    return lines


@pytest.mark.parametrize("is_slate", [False, True])
def test_lists_have_a_row_per_position(tmp_path, is_slate):
    lines = ranked(is_slate=is_slate)
    log = cp.read.vowpal_wabbit(write(tmp_path / "log.dsjson", lines))
    assert (log.slate, log.position, log.propensity_of) == ("slate", "position", "item_given_above")
    expected = [
        {
            "slate": record["EventId"],
            "position": k + 1,
            "action": outcome["_a"][0] + 1,
            "propensity": outcome["_p"][0],
            "reward": -outcome["_label_cost"] if not is_slate else -record["_label_cost"] * (k == 0),
            "candidates": [item + 1 for item in outcome["_a"]],
        }
        for record in lines
        for k, outcome in enumerate(record["_outcomes"])
    ]
    rows = rows_of(log)
    assert rows.select(list(expected[0])).to_dicts() == expected
    found = cp.evaluate(log, target="1.0 / n_candidates")
    parts = {part: getattr(log, part) for part in ("reward", "propensity", "slate", "position", "propensity_of")}
    same = cp.evaluate(rows, **parts, target="1.0 / n_candidates")
    assert found.value == pytest.approx(same.value, rel=1e-12)
    with refuses(cp.LogError):
        cp.evaluate(tmp_path / "log.dsjson", reward="reward", propensity="propensity", target="1.0 / n_candidates")


# -- Verbs and the command line ----------------------------------------------------------------------------------------

VERBS = {
    "evaluate": lambda log: cp.evaluate(log, target=TARGETS, segment="context_hour")["uniform", "snips"].value,
    "model": lambda log: cp.evaluate(log.but(model="ridge", context=["context_hour"]), target=cp.Always(1)).value,
    "compare": lambda log: cp.compare(log, target=TARGETS["uniform"]).value,
    "rank": lambda log: [row.target for row in cp.rank(log, target=TARGETS)],
    "plan": lambda log: cp.plan(log, target=TARGETS["uniform"], difference=0.1).value_stderr,
    "distribution": lambda log: cp.distribution(log, target=cp.Always(1)).cvar(0.5).value,
    "sensitivity": lambda log: cp.sensitivity(log, target=cp.Always(1)).bounds(1.5).value,
    "doctor": lambda log: [str(finding) for finding in cp.doctor(log, target="propensity").findings],
    "watch": lambda log: len(cp.watch(log, day="timestamp", target=cp.Always(1)).days),
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_says_what_it_says_of_the_same_rows(dsjson, verb):
    log = cp.read.vowpal_wabbit(dsjson, cluster=False)
    found, expected = VERBS[verb](log), VERBS[verb](log.of(rows_of(log)))
    is_number = isinstance(expected, float | tuple)  # sums over threads may differ in their last digits
    assert found == (pytest.approx(expected, rel=1e-9) if is_number else expected)


def test_a_policy_is_learned(dsjson):
    pytest.importorskip("torch")
    from counterpoise.learn import PolicyLearner

    log = cp.read.vowpal_wabbit(dsjson, cluster=False, context=["context_hour"]).but(candidates=None)
    found, same = (PolicyLearner("ips", epochs=1, fallback="imitate").fit(rows) for rows in (log, log.of(rows_of(log))))
    assert found.policy_.n_actions == 4
    assert found.result_.value == pytest.approx(same.result_.value, rel=1e-9)


COMMANDS = {
    "evaluate": ("evaluate", "--always", "1", "--no-cluster"),
    "compare": ("compare", "--always", "1", "--no-cluster"),
    "plan": ("plan", "--always", "1", "--difference", "0.1", "--no-cluster"),
    "doctor": ("doctor", "--no-cluster"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_ending_says_what_a_file_is_on_the_command_line(dsjson, command):
    name, *options = COMMANDS[command]
    found = invoke(name, dsjson, *options, "--json")
    assert found.exit_code == 0, found.output
    if command == "evaluate":
        expected = cp.evaluate(cp.read.vowpal_wabbit(dsjson), target=cp.Always(1), cluster=False)
        values = {row["estimator"]: row["value"] for row in json.loads(found.stdout)["estimates"]}
        assert values["ips"] == pytest.approx(expected["1", "ips"].value, rel=1e-12)


def test_the_format_can_be_named_and_settled_in_a_file(tmp_path, monkeypatch):
    write(tmp_path / "log.jsonl", records())
    monkeypatch.chdir(tmp_path)
    named = invoke("evaluate", "log.jsonl", "--format", "vowpal-wabbit", "--always", "1", "--no-cluster")
    assert named.exit_code == 0, named.output
    (tmp_path / "counterpoise.toml").write_text('format = "vowpal-wabbit"\nno_cluster = true\nalways = ["1"]\n')
    settled = invoke("evaluate", "log.jsonl")
    assert settled.exit_code == 0, settled.output
    assert settled.stdout.splitlines()[-3:] == named.stdout.splitlines()[-3:]
    wrong = invoke("evaluate", "log.jsonl", "--format", "vowpal", "--always", "1")
    assert wrong.exit_code == 2
    assert "Did you mean 'vowpal-wabbit'" in wrong.output


def test_a_state_knows_the_files_again(tmp_path):
    for k in range(3):
        write(tmp_path / f"2026-01-0{k + 1}.dsjson", records(seed=k))
    state = ("--always", "1", "--no-cluster", "--state", tmp_path / "state.json")
    assert invoke("evaluate", tmp_path / "2026-01-01.dsjson", *state).exit_code == 0
    assert invoke("evaluate", tmp_path / "2026-01-01.dsjson", *state).exit_code == 4
    rest = invoke("evaluate", tmp_path / "*.dsjson", *state, "--only-new", "--json")
    assert rest.exit_code == 0, rest.output
    whole = cp.evaluate(cp.read.vowpal_wabbit(str(tmp_path / "*.dsjson")), target=cp.Always(1), cluster=False)
    kept = [row for row in json.loads(rest.stdout)["estimates"] if row["estimator"] == "ips"]
    assert kept[0]["value"] == pytest.approx(whole["1", "ips"].value, rel=1e-12)


def test_a_watch_over_files_reads_each(tmp_path):
    for k in range(3):
        write(tmp_path / f"2026-01-0{k + 1}.dsjson", records(seed=k))
    found = invoke("watch", tmp_path / "*.dsjson", "--always", "1", "--no-cluster")
    assert found.exit_code in (0, 1), found.output
    assert "2026-01-03" in found.output or "3 days" in found.output, found.output


def test_what_is_left_out_is_printed(tmp_path):
    path = write(tmp_path / "log.dsjson", [*records(50), {"RewardValue": 1.0, "EventId": "x"}])
    found = invoke("evaluate", path, "--always", "1", "--no-cluster")
    assert "Warning: 1 of 51 records is dropped" in found.output
    bad = write(tmp_path / "bad.dsjson", [*records(50), "nonsense\n"])
    refused = invoke("evaluate", bad, "--always", "1", "--no-cluster")
    assert refused.exit_code == 2
    assert "--drop-bad-rows" in refused.output
    assert invoke("evaluate", bad, "--always", "1", "--no-cluster", "--drop-bad-rows").exit_code == 0


def test_a_format_is_for_files(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    rows = pl.DataFrame({"r": [1.0, 0.0], "p": [0.5, 0.5]})
    with duckdb.connect(tmp_path / "log.duckdb") as connection:
        connection.execute("CREATE TABLE logs AS SELECT * FROM rows")
    for log in (rows, cp.Log(tmp_path / "log.duckdb", table="logs")):
        with refuses(cp.OptionError):
            cp.evaluate(log, reward="r", propensity="p", target="p", format="router")


# -- The Open Bandit Pipeline and Dataset ------------------------------------------------------------------------------


def feedback(n=500, k=4, seed=0):
    random = np.random.default_rng(seed)
    pi_b = random.dirichlet(np.ones(k), size=n)
    action = np.array([random.choice(k, p=p) for p in pi_b])
    expected = random.random((n, k))
    return {
        "n_rounds": n,
        "n_actions": k,
        "context": random.normal(size=(n, 3)),
        "action_context": np.eye(k),
        "action": action,
        "position": None,
        "reward": (random.random(n) < expected[np.arange(n), action]).astype(int),
        "expected_reward": expected,
        "pi_b": pi_b[:, :, np.newaxis],
        "pscore": pi_b[np.arange(n), action],
    }


def test_ipw_and_snipw_are_those_of_the_open_bandit_pipeline():
    data = feedback()
    new = np.random.default_rng(1).dirichlet(np.ones(4), size=500)
    chosen = new[np.arange(500), data["action"]]
    weight = chosen / data["pscore"]  # as its InverseProbabilityWeighting has it, and its self-normalized form
    log = cp.read.obp(data)
    assert cp.evaluate(log, target=cp.Always(1)).n == 500
    result = cp.evaluate(log.data.with_columns(new=chosen), target="new", reward="reward", propensity="propensity")
    assert result["new", "ips"].value == pytest.approx((data["reward"] * weight).mean(), rel=1e-12)
    assert result["new", "snips"].value == pytest.approx((data["reward"] * weight / weight.mean()).mean(), rel=1e-12)


@pytest.mark.parametrize("positions", [None, 3])
def test_a_bandit_feedback_comes_back_as_it_was(positions):
    data = feedback()
    if positions:
        data["position"] = np.arange(500) % positions
        data["pi_b"] = np.repeat(data["pi_b"], positions, axis=2) / positions
    modeled = cp.read.to_obp(cp.read.obp(data, model="ridge"))
    np.testing.assert_array_equal(modeled["action_context"], data["action_context"])
    back = cp.read.to_obp(cp.read.obp(data), action_context=data["action_context"])
    assert back.keys() == data.keys()
    for key, value in data.items():
        if isinstance(value, np.ndarray):
            assert back[key].shape == value.shape
            np.testing.assert_array_equal(back[key], value)
        else:
            assert back[key] == value


def test_a_bandit_feedback_in_a_file_is_never_unpickled(tmp_path):
    data = {key: value for key, value in feedback().items() if value is not None}
    np.savez(tmp_path / "log.npz", **data)
    found = invoke("evaluate", tmp_path / "log.npz", "--format", "obp", "--always", "1", "--no-cluster")
    assert found.exit_code == 0, found.output
    np.savez(tmp_path / "objects.npz", action=np.array([{}], dtype=object), allow_pickle=True)
    with refuses(cp.LogError):
        cp.read.obp(tmp_path / "objects.npz")
    with refuses(cp.ColumnError):
        cp.read.obp({"action": [0], "reward": [1]})
    with refuses(cp.LogError):
        cp.read.obp({"action": [0], "reward": [1, 0], "pscore": [1.0]})


def test_only_numbered_actions_make_a_bandit_feedback():
    log = cp.Log(pl.DataFrame({"r": [1.0], "p": [1.0], "a": ["x"]}), reward="r", propensity="p", action="a")
    with refuses(cp.LogError):
        cp.read.to_obp(log)


def test_a_campaign_of_the_open_bandit_dataset_is_that_of_the_environment():
    folder = shared("obd")
    log = cp.read.open_bandit(folder / "random" / "all")
    rows = OpenBanditLog(folder, policy="random", campaign="all").read()
    expected = cp.evaluate(rows, target=cp.Always(3), reward="reward", propensity="propensity", action="action")
    assert cp.evaluate(log, target=cp.Always(3)).value == pytest.approx(expected.value, rel=1e-12)
    found = invoke("evaluate", folder / "random" / "all", "--format", "open-bandit", "--always", "3")
    assert found.exit_code == 0, found.output


# -- Eppo, GrowthBook, routers -----------------------------------------------------------------------------------------


def eppo_events(n=300, seed=0):
    random = np.random.default_rng(seed)
    p = random.uniform(0.2, 0.8, n)
    is_nike = random.random(n) < p
    return [
        {
            "timestamp": f"2026-01-01T{i // 60:02}:{i % 60:02}:00Z",
            "flagKey": "shoes",
            "banditKey": "shoe-bandit",
            "subject": f"s{i % 200}",
            "action": "nike" if is_nike[i] else "adidas",
            "actionProbability": float(p[i] if is_nike[i] else 1 - p[i]),
            "optimalityGap": 0.0,
            "modelVersion": "v1",
            "subjectNumericAttributes": {"age": float(random.integers(18, 80))},
            "subjectCategoricalAttributes": {"country": "NO"},
            "actionNumericAttributes": {"brand_affinity": 0.2},
            "actionCategoricalAttributes": {},
            "metaData": {"sdkLanguage": "python"},
        }
        for i in range(n)
    ]


def test_an_outcome_belongs_to_the_last_action_before_it(tmp_path):
    events = eppo_events()
    path = write(tmp_path / "events.jsonl", events)
    random = np.random.default_rng(5)
    outcomes = [
        {"subject": f"s{who}", "reward": 1.0, "timestamp": f"2026-01-01T{hour:02}:{minute:02}:30Z"}
        for who, hour, minute in zip(*(random.integers(most, size=400) for most in (220, 6, 60)), strict=True)
    ]
    expected = [0.0] * len(events)
    for outcome in outcomes:
        mine = [
            i
            for i, event in enumerate(events)
            if event["subject"] == outcome["subject"] and event["timestamp"] <= outcome["timestamp"]
        ]
        if mine:
            expected[max(mine)] += outcome["reward"]
    log = cp.read.eppo(path, pl.DataFrame(outcomes))
    assert log.data.collect()["reward"].to_list() == expected
    assert (log.cluster, log.context) == ("subject", ("context_age", "context_country"))
    weight = np.array([(event["action"] == "nike") / event["actionProbability"] for event in events])
    result = cp.evaluate(log, target=cp.Always("nike"))
    assert result["nike", "ips"].value == pytest.approx((weight * expected).mean(), rel=1e-12)
    with refuses(cp.LogError):
        cp.read.eppo(path, pl.DataFrame(outcomes).drop("timestamp"))


def test_an_outcome_without_a_time_belongs_to_the_only_action_of_its_subject():
    events = pl.DataFrame(eppo_events(200))
    log = cp.read.eppo(events, {"subject": ["s3", "s3", "s7"], "reward": [1.0, 2.0, 4.0]})
    rewards = log.data.collect()["reward"].to_list()
    assert (rewards[3], rewards[7], sum(rewards)) == (3.0, 4.0, 7.0)


def test_eppo_events_are_read_in_any_case_and_on_the_command_line(tmp_path):
    events = [event | {"reward": float(i % 3 == 0)} for i, event in enumerate(eppo_events())]
    rename = {"subject": "SubjectKey", "actionProbability": "action_probability", "modelVersion": "ModelVersion"}
    renamed = [{rename.get(name, name): value for name, value in event.items()} for event in events]
    answers = []
    for name, lines in (("a.jsonl", events), ("b.jsonl", renamed)):
        answers.append(cp.evaluate(cp.read.eppo(write(tmp_path / name, lines)), target=cp.Always("nike")).value)
    assert answers[0] == answers[1]
    found = invoke("evaluate", tmp_path / "b.jsonl", "--format", "eppo", "--always", "nike")
    assert found.exit_code == 0, found.output
    with refuses(cp.ColumnError):
        cp.read.eppo(pl.DataFrame({"action": ["a"], "subject": ["s"]}))


def test_the_first_exposure_to_a_growthbook_bandit_has_the_weight_of_its_variation(tmp_path):
    frame = pl.DataFrame(
        {
            "user_id": ["a", "b", "a", "c"],
            "timestamp": ["2026-01-01T00:00:00", "2026-01-01T00:01:00", "2026-01-02T00:00:00", "2026-01-03T00:00:00"],
            "experiment_id": ["x"] * 4,
            "variation_id": ["0", "1", "0", "2"],
            "variation_weights": ["[0.5, 0.25, 0.25]", "[0.5, 0.25, 0.25]", "[0.1, 0.1, 0.8]", "[0.1, 0.1, 0.8]"],
        }
    )
    log = cp.read.growthbook(frame, {"user_id": ["b", "c"], "reward": [1.0, 3.0]})
    rows = log.data.collect().sort("user_id")
    assert rows["propensity"].to_list() == [0.5, 0.25, 0.8]
    assert rows["reward"].to_list() == [0.0, 1.0, 3.0]
    assert log.cluster == "user_id"
    frame.with_columns(reward=pl.lit(1.0)).write_csv(tmp_path / "log.csv")
    found = invoke("doctor", tmp_path / "log.csv", "--format", "growthbook")
    assert found.exit_code in (0, 1), found.output
    with refuses(cp.ColumnError):
        cp.read.growthbook(frame.drop("variation_weights"))


def requests(n=300, seed=0):
    random = np.random.default_rng(seed)
    lines = []
    for i in range(n):
        p = 0.7 * random.dirichlet(np.ones(3)) + 0.1
        k = int(random.choice(3, p=p / p.sum()))
        lines.append(
            {
                "candidates": ["small", "medium", "large"],
                "probabilities": [float(x) for x in p],
                "chosen": ("small", "medium", "large")[k],
                "quality": float(random.random() < 0.4 + 0.2 * k),
                "cost": 0.01 * (k + 1),
                "latency": float(random.random()),
                "prompt": {"length": i, "language": "en"},
            }
        )
    return lines


def test_a_router_has_the_probability_of_what_it_chose(tmp_path):
    lines = requests()
    path = write(tmp_path / "log.jsonl", lines)
    log = cp.read.router(path, reward="quality - 5 * cost")
    weight = np.array([(line["chosen"] == "small") / line["probabilities"][0] for line in lines])
    reward = np.array([line["quality"] - 5 * line["cost"] for line in lines])
    result = cp.evaluate(log, target=cp.Always("small"))
    assert result["small", "ips"].value == pytest.approx((weight * reward).mean(), rel=1e-12)
    assert "prompt_language" in rows_of(log).columns
    found = invoke("evaluate", path, "--format", "router", "--reward", "quality - 5 * cost", "--always", "small")
    assert found.exit_code == 0, found.output


def test_a_router_that_chose_what_it_did_not_have_is_a_bad_row(tmp_path):
    lines = requests()
    lines[7]["chosen"] = "huge"
    log = cp.read.router(write(tmp_path / "log.jsonl", lines))
    with refuses(cp.LogError):
        cp.evaluate(log, target=cp.Always("small"))
    with refuses(cp.ColumnError):
        cp.read.router(write(tmp_path / "more.jsonl", [line | {"propensity": 0.5} for line in lines]))


def test_the_files_are_removed_when_the_process_ends(dsjson):
    import subprocess

    code = (
        "import sys, counterpoise as cp\nfrom counterpoise.readers import json_records\n"
        "cp.read.vowpal_wabbit(sys.argv[1])\nprint(json_records._folder())\n"
    )
    folder = subprocess.run(
        [sys.executable, "-c", code, str(dsjson)], capture_output=True, text=True, check=True
    ).stdout
    assert "counterpoise-" in folder
    assert not Path(folder.strip()).exists()


def test_every_format_is_named_where_it_is_explained():
    for name in formats.FORMATS:
        assert name in PARTS["format"].sentence
        assert hasattr(cp.read, name.replace("-", "_"))
