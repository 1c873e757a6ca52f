"""`counterpoise learn` saves a policy that `evaluate` takes as a target, from frames and files alike."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command_line import invoke

import counterpoise as cp

CONTEXT = [f"context_{k}" for k in range(5)]


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("learn")
    invoke("simulate", folder / "log.parquet", "--rows", 4000, "--actions", 5, "--inverse-temperature", -2, "--seed", 1)
    columns = [part for column in CONTEXT for part in ("--context", column)]
    command = [
        "learn",
        folder / "log.parquet",
        *columns,
        "--objective",
        "beta_ips",
        "--epochs",
        4,
        "--learning-rate",
        0.05,
        "--out",
        folder / "policy",
    ]
    return folder, command, invoke(*command, "--json")


def test_the_command_says_what_the_policy_earns(learnt):
    folder, _, answer = learnt
    assert answer.exit_code == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert found["lower"] < found["value"] < found["upper"]
    assert 1 <= found["epoch"] <= 4
    assert found["file"] == str(folder / "policy")
    assert found["mean_reward"] == pytest.approx(pl.read_parquet(folder / "log.parquet")["reward"].mean(), rel=1e-6)
    assert "evaluated on held-out rows" in found["note"]
    assert (found["kind"], found["verdict"], found["n_actions"]) == ("learned", "ok", 5)


def test_the_value_is_printed_beside_the_logging_policys(learnt):
    folder, command, answer = learnt
    printed = invoke(*command[:-1], folder / "printed")
    assert printed.exit_code == 0, printed.stderr
    found = json.loads(answer.stdout)
    assert f"{found['value']:.6g} per row, between {found['lower']:.6g}" in printed.stdout
    assert f"the logging policy earned {found['mean_reward']:.6g} per row" in printed.stdout
    assert (
        "Estimated with policies learned like it, each evaluated on held-out rows. The verdict is ok." in printed.stdout
    )
    assert f"{folder / 'printed'}: the policy, for 5 actions, the distinct values of 'action'." in printed.stdout


def test_a_saved_policy_is_a_target_on_frames_and_files_alike(learnt):
    from counterpoise.learn import load_policy

    folder, _, _ = learnt
    policy = load_policy(folder / "policy")
    log = pl.read_parquet(folder / "log.parquet")
    question = {
        "reward": "reward",
        "propensity": "propensity",
        "target": policy,
        "context": CONTEXT,
        "action": "action",
    }
    in_memory = cp.evaluate(log, **question)
    name = in_memory.targets[0]
    table = policy.predict_proba(log.select(CONTEXT).to_numpy())
    by_hand = table[range(len(log)), log["action"].to_numpy()]
    expected = cp.evaluate(reward=log["reward"], propensity=log["propensity"], target=by_hand)["target", "beta_ips"]
    for source in (log, log.lazy(), folder / "log.parquet"):
        found = cp.evaluate(source, **question)[name, "beta_ips"]
        assert found.value == pytest.approx(expected.value, rel=1e-9)
        assert found.stderr == pytest.approx(expected.stderr, rel=1e-9)
    assert in_memory[name, "lift"].value > 0  # it learnt something from a log of a policy that avoids good actions


def test_nothing_is_overwritten_unasked(learnt):
    folder, command, _ = learnt
    refused = invoke(*command)
    assert refused.exit_code == 2
    assert "--force" in refused.stderr
    unknown = invoke(*command[:-1], folder / "unknown", "--objective", "magic")
    assert unknown.exit_code == 2
    assert "magic" in unknown.stderr


def test_a_policy_goes_to_a_file_in_a_folder_that_exists(learnt):
    folder, command, _ = learnt
    absent = folder / "absent"
    for out, says in ((folder, "is a folder. Name a file"), (absent / "policy", f"no folder '{absent}'")):
        refused = invoke(*command[:-1], out, "--force")
        assert refused.exit_code == 2
        assert says in refused.stderr
    assert not absent.exists()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a folder that nobody may write to")
def test_a_folder_that_cannot_be_written_to_is_told_before_learning(learnt, monkeypatch):
    _, command, _ = learnt
    monkeypatch.setattr("counterpoise.learn.PolicyLearner", None)  # which would crash
    refused = invoke(*command[:-1], "/proc/policy")
    assert refused.exit_code == 2
    assert "cannot write '/proc/policy': " in refused.stderr


def test_passwords_of_databases_are_not_shown(learnt):
    folder, command, _ = learnt
    address = "postgresql://bob:s3cret@127.0.0.1:1/db"
    refused = invoke("learn", address, *command[2:-1], folder / "another", "--table", "logs")
    assert refused.exit_code == 2
    assert refused.stderr
    assert "s3cret" not in refused.output


def test_tables_of_databases_and_csv_files_are_learned_from(learnt):
    duckdb = pytest.importorskip("duckdb")
    folder, command, _ = learnt
    log = pl.read_parquet(folder / "log.parquet").with_columns(pool=pl.lit("|".join(map(str, range(6)))))
    log.write_csv(folder / "log.csv")
    with duckdb.connect(str(folder / "log.duckdb")) as base:
        base.execute("CREATE TABLE logs AS SELECT * FROM log")
    for data, more in ((folder / "log.csv", []), (folder / "log.duckdb", ["--table", "logs"])):
        done = invoke("learn", data, *command[2:-1], folder / "again", "--force", *more, "--candidates", "pool")
        assert done.exit_code == 0, done.stderr
        evaluated = ["--target", folder / "again.safetensors", "--reward", "reward", "--propensity", "propensity"]
        (folder / "again").replace(folder / "again.safetensors")
        context = [part for name in CONTEXT for part in ("--context", name)]
        found = invoke("evaluate", data, *evaluated, *more, "--action", "action", *context, "--candidates", "pool")
        assert found.exit_code in (0, 1), found.stderr
        assert "\nagain: " in found.stdout


def test_conditions_bad_rows_and_several_files_are_options_too(learnt):
    folder, command, _ = learnt
    log = pl.read_parquet(folder / "log.parquet").with_columns(day=pl.int_range(4000) // 1000)
    bad = log.with_columns(reward=pl.when(pl.int_range(4000) % 1000 == 5).then(None).otherwise(pl.col("reward")))
    for day in range(4):
        bad.filter(pl.col("day") == day).write_parquet(folder / f"day_{day}.parquet")
    files = [folder / f"day_{day}.parquet" for day in range(4)]
    asked = ["learn", *files, *command[2:-1], folder / "some", "--where", "day >= 1", "--batch-size", 256]
    refused = invoke(*asked)
    assert refused.exit_code == 2
    assert "of 3,000 rows: reward 'reward' must be a finite number: in 3 rows" in refused.stderr
    assert "--drop-bad-rows" in refused.stderr
    found = json.loads(invoke(*asked, "--drop-bad-rows", "--json").stdout)
    assert found["dropped_rows"] == 3
    kept = bad.filter((pl.col("day") >= 1) & pl.col("reward").is_not_null())
    assert found["mean_reward"] == pytest.approx(kept["reward"].mean(), rel=1e-6)


@pytest.fixture
def few_steps(monkeypatch):
    pytest.importorskip("torch")
    from counterpoise.learn import contenders as networks

    monkeypatch.setattr(networks, "LEAST", 50)
    monkeypatch.setattr(networks, "MOST", 100)


def test_several_ways_to_learn_are_tried_unless_one_is_named(learnt, few_steps):
    from counterpoise.learn import load_policy

    folder, command, _ = learnt
    columns = command[2 : 2 + 2 * len(CONTEXT)]
    asked = ["learn", folder / "log.parquet", *columns, "--minutes", 1e-6]
    answer = invoke(*asked, "--json", "--out", folder / "found")
    assert answer.exit_code == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert found["file"] == str(folder / "found")
    assert (found["kind"], found["verdict"], found["n_actions"], found["dropped_rows"]) == ("learned", "ok", 5, 0)
    assert {one["name"] for one in found["leaderboard"]} == {"direct linear"}
    assert set(found["skipped"].values()) == {"there was no time left to try it."}
    policy = load_policy(folder / "found")
    assert policy.context_ == tuple(CONTEXT)
    log = pl.read_parquet(folder / "log.parquet")
    names = {"context": CONTEXT, "action": "action", "reward": "reward", "propensity": "propensity"}
    result = cp.evaluate(log, **names, target=policy)
    assert result[result.targets[0], "lift"].interval.lower > 0
    printed = invoke(*asked, "--out", folder / "found", "--force").stdout
    assert "Direct linear is best. It would have earned" in printed
    assert "contender" in printed
    assert f"{folder / 'found'}: the policy, for 5 actions, the distinct values of 'action'." in printed


def test_what_is_not_surely_better_is_said_so(tmp_path, few_steps):
    random = np.random.default_rng(0)
    frame = pl.DataFrame({"x": random.normal(size=600), "action": random.integers(2, size=600)})
    frame = frame.with_columns(reward=pl.Series(random.integers(2, size=600)), propensity=pl.lit(0.5))
    frame.write_parquet(tmp_path / "log.parquet")
    asked = ["learn", tmp_path / "log.parquet", "--context", "x", "--out", tmp_path / "policy", "--force"]
    for more, says in (
        (["--minutes", 1e-6], "Nothing was reliably better than the logging policy, so this policy imitates it."),
        (
            ["--objective", "ips", "--epochs", 1, "--batch-size", 100],
            "The learned policy is not reliably better than the logging policy, so",
        ),
    ):
        answer = invoke(*asked, *more)
        assert answer.exit_code == 0, answer.stderr
        assert says in answer.stdout
        answer = invoke(*asked, *more, "--fallback", "warn")
        assert (answer.exit_code, "LearningWarning: The learned policy is not reliably" in answer.stderr) == (0, True)
        assert "or pass --fallback imitate for a policy that imitates the logging policy." in answer.stderr
        assert "fallback" not in answer.stdout  # which has what was learned, and not the warning once more
        answer = invoke(*asked, *more, "--fallback", "raise")
        assert answer.exit_code == 2
        assert "not reliably better" in answer.stderr
        assert "Collect a log that explores more, or pass --fallback imitate for a policy" in answer.stderr


def test_options_of_one_way_to_learn_are_refused_by_the_other(learnt):
    folder, command, _ = learnt
    columns = command[2 : 2 + 2 * len(CONTEXT)]
    asked = ["learn", folder / "log.parquet", *columns, "--out", folder / "none"]
    for more, says in (
        (["--epochs", 3], "--epochs only works with --objective"),
        (["--device", "cpu"], "--device only works with --objective"),
        (["--objective", "ips", "--minutes", 1], "--minutes and --objective exclude each other"),
        (["--minutes", 0], "--minutes 0.0 must be above 0"),
        (["--fallback", "hope"], "--fallback hope is not known; choose from imitate, warn, raise"),
    ):
        refused = invoke(*asked, *more)
        assert refused.exit_code == 2
        assert says in refused.stderr
    assert not (folder / "none").exists()
