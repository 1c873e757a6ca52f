"""`--minimize` on the command line and in counterpoise.toml; the advice of the question is followed to its end."""

import json
import re
import shlex

import numpy as np
import polars as pl
import pytest
from command_line import invoke

ASKED = ("--reward", "cost", "--propensity", "p", "--target", "more", "--target", "less")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(2)
    a = random.integers(0, 2, 4000)
    cost = 2.0 + a + random.exponential(size=4000)
    more = np.where(a == 1, 0.9, 0.1)
    log = {
        "cost": cost,
        "p": np.full(4000, 0.5),
        "more": more,
        "less": 1 - more,
        "arm": np.where(a == 1, "B", "A"),
        "a": a,
    }
    pl.DataFrame(log).write_parquet("log.parquet")
    return tmp_path


def decisions(*words):
    found = invoke(*words, "--json")
    assert found.exit_code == 0, found.stderr
    document = json.loads(found.stdout)
    answer = document.get("answer") if isinstance(document.get("answer"), dict) else document
    return {change["target"]: change["decision"] for change in answer["changes"]}


def test_the_question_is_asked_in_options_and_its_answers_work(folder):
    found = invoke("evaluate", "log.parquet", *ASKED)
    assert "Higher than the logging policy" in found.stdout
    (step,) = [line for line in found.stdout.splitlines() if line.startswith("Next:")]
    less, more = re.findall(r"--minimize cost|--no-minimize", step)
    assert decisions("evaluate", "log.parquet", *ASKED, *shlex.split(less)) == {"less": "better", "more": "worse"}
    assert decisions("evaluate", "log.parquet", *ASKED, *shlex.split(more)) == {"less": "worse", "more": "better"}
    assert "Is less of" not in invoke("evaluate", "log.parquet", *ASKED, *shlex.split(less)).stdout


def test_both_are_refused(folder):
    found = invoke("evaluate", "log.parquet", *ASKED, "--minimize", "cost", "--no-minimize")
    assert found.exit_code == 2
    assert "--no-minimize" in found.stderr


def test_settings_and_states_say_it_once(folder):
    (folder / "counterpoise.toml").write_text(
        'reward = "cost"\npropensity = "p"\ntarget = ["more", "less"]\nminimize = ["cost"]\n'
    )
    assert decisions("evaluate", "log.parquet", "--state", "costs.json")["more"] == "worse"
    assert decisions("evaluate", "log.parquet", "--no-minimize")["more"] == "better"  # what is typed counts
    (folder / "counterpoise.toml").unlink()
    assert decisions("state", "show", "costs.json")["more"] == "worse"
    assert "minimize: cost" in invoke("state", "show", "costs.json").stdout
    assert decisions("state", "show", "costs.json", "--no-minimize")["more"] == "better"


def test_a_state_without_it_is_told_by_state_show(folder):
    assert invoke("evaluate", "log.parquet", *ASKED, "--state", "costs.json").exit_code == 0
    assert decisions("state", "show", "costs.json")["more"] == "higher"
    assert decisions("state", "show", "costs.json", "--minimize", "cost")["more"] == "worse"
    assert "Less cost is better" in invoke("watch", "costs.json", "--minimize", "cost").stdout


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "log.parquet", *ASKED, "--against", "less"),
        ("plan", "log.parquet", *ASKED[:-2], "--difference", "0.1"),
        ("sensitivity", "log.parquet", *ASKED),
        ("ab-test", "log.parquet", "--reward", "cost"),
        ("doctor", "log.parquet", "--reward", "cost", "--propensity", "p", "--target", "more"),
    ],
)
def test_every_verb_takes_it(folder, words):
    for answer in (("--minimize", "cost"), ("--no-minimize",)):
        found = invoke(*words, *answer)
        assert found.exit_code == 0, found.stderr
        assert "Is less of" not in found.stdout
    both = [invoke(*words, *answer, "--json").stdout for answer in (("--minimize", "cost"), ("--no-minimize",))]
    assert both[0] != both[1] or words[0] == "doctor"


def test_sql_refuses_it(folder):
    found = invoke(
        "sql", "--table", "logs", "--reward", "cost", "--propensity", "p", "--target", "more", "--minimize", "cost"
    )
    assert found.exit_code == 2


def test_a_policy_is_learned_that_costs_less(folder):
    pytest.importorskip("torch")
    random = np.random.default_rng(4)
    log = pl.read_parquet("log.parquet").with_columns(x=random.normal(size=4000))
    log.with_columns(cost=5 + (2 * pl.col("a") - 1) * pl.col("x")).write_parquet("log.parquet")
    words = ("learn", "log.parquet", "--context", "x", "--action", "a", "--reward", "cost", "--propensity", "p")
    how = ("--objective", "beta_ips", "--epochs", "3", "--out", "policy.safetensors", "--json")
    assert invoke(*words, *how).exit_code == 2  # until it is known which way
    found = invoke(*words, *how, "--minimize", "cost")
    assert found.exit_code == 0, found.stderr
    numbers = json.loads(found.stdout)
    assert (numbers["kind"], numbers["minimize"]) == ("learned", True)
    assert numbers["upper"] < numbers["mean_reward"]
