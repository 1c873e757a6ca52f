"""`counterpoise learn` saves a policy that `evaluate` takes as a target, from frames and files alike."""

import json

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
        "--epochs",
        4,
        "--learning-rate",
        0.05,
        "--out",
        folder / "policy",
    ]
    return folder, command, invoke(*command, "--json")


def test_the_command_says_what_the_policy_earns(learnt):
    _, _, answer = learnt
    assert answer.exit_code == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert found["lower"] < found["value"] < found["upper"]
    assert 1 <= found["epoch"] <= 4


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
    _, command, _ = learnt
    refused = invoke(*command)
    assert refused.exit_code == 2
    assert "--force" in refused.stderr
    unknown = invoke(*command, "--objective", "magic", "--force")
    assert unknown.exit_code == 2
    assert "magic" in unknown.stderr
