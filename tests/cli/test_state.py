"""`counterpoise state show` prints what a state holds, and the answer once more."""

import json

import jsonschema
import polars as pl
import pytest
from command_line import invoke, shop

import counterpoise as cp
from counterpoise.display import as_text
from counterpoise.evaluation import showing

COLUMNS = ["--reward", "click", "--propensity", "p", "--target", "pi_new"]


@pytest.fixture
def state(tmp_path):
    frame = shop(900)
    for day, part in enumerate((frame[:400], frame[400:600], frame[600:])):
        part.write_parquet(tmp_path / f"{day}.parquet")
    for day, key in enumerate(([], ["--batch", "tue"], [])):
        done = invoke("evaluate", tmp_path / f"{day}.parquet", *COLUMNS, "--state", tmp_path / "state.json", *key)
        assert done.exit_code == 0
    return tmp_path / "state.json"


def test_the_answer_of_the_last_run_is_printed_again(state):
    whole = pl.concat([pl.read_parquet(state.parent / f"{day}.parquet") for day in range(3)])
    whole.write_parquet(state.parent / "whole.parquet")
    expected = invoke("evaluate", state.parent / "whole.parquet", *COLUMNS).stdout
    shown = invoke("state", "show", state)
    assert shown.exit_code == 0
    assert shown.stdout.endswith(expected)


def test_the_question_and_the_batches_are_printed(state):
    lines = [line.split() for line in invoke("state", "show", state).stdout.splitlines()]
    assert ["reward:", "click"] in lines
    assert ["target:", "pi_new"] in lines
    assert ["–", "400", "0", str(state.parent / "0.parquet")] in lines
    assert ["tue", "200", "0", str(state.parent / "1.parquet")] in lines


def test_json_has_the_question_every_batch_and_the_answer(state):
    found = json.loads(invoke("state", "show", state, "--json", "--interval", "anytime", "--level", "0.9").stdout)
    assert found["question"]["reward"] == "click"
    assert [(one["batch"], one["rows"]) for one in found["batches"]] == [(None, 400), ("tue", 200), (None, 300)]
    assert all(one["replaceable"] for one in found["batches"])
    jsonschema.validate(found["answer"], showing.schema())
    expected = showing.evaluation(cp.evaluate(state=state, interval="anytime", level=0.9))
    assert found["answer"] == json.loads(as_text(expected))


def test_a_state_of_compare_shows_the_differences(tmp_path):
    question = {"reward": "click", "propensity": "p", "target": "pi_new", "against": "pi_old", "segment": "country"}
    result = cp.compare(shop(500), **question, state=tmp_path / "state.json", batch="mon")
    assert "pi_new would have earned" in invoke("state", "show", tmp_path / "state.json").stdout
    found = json.loads(invoke("state", "show", tmp_path / "state.json", "--json").stdout)
    assert found["answer"]["differences"][0]["difference"] == pytest.approx(result.value)


def test_nothing_that_is_no_state_is_shown(state, tmp_path):
    state.write_bytes(state.read_bytes().replace(b"click", b"clock"))
    for file, said in ((state, "checksum is wrong"), (tmp_path / "none.json", "there is no state")):
        done = invoke("state", "show", file)
        assert done.exit_code == 2
        assert said in done.stderr
        assert done.stdout == ""


def test_a_file_with_more_rows_is_refused_and_then_replaced(state):
    changed = state.parent / "2.parquet"
    pl.concat([pl.read_parquet(changed), shop(50, seed=3)]).write_parquet(changed)
    arguments = ["evaluate", changed, *COLUMNS, "--state", state, "--json"]
    refused = invoke(*arguments)
    assert refused.exit_code == 2
    assert "with other content" in refused.stderr
    assert "pass --replace" in refused.stderr
    assert json.loads(invoke(*arguments, "--replace").stdout)["n"] == 950
