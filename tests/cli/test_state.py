"""`counterpoise state show` prints what a state holds, and the answer once more."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

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
    for more in ([], ["--all"]):  # after three looks, intervals hold at all of them
        expected = invoke("evaluate", state.parent / "whole.parquet", *COLUMNS, "--interval", "anytime", *more).stdout
        shown = invoke("state", "show", state, *more)
        assert shown.exit_code == 0
        expected = expected.replace(
            " by beta_ips.",
            " by beta_ips. 3 looks so far: these intervals hold at all of them at once, however often you look.",
        )
        # a state has forgotten its logs' names, and writes no page
        assert expected.startswith(
            "Estimated click per row: pi_new against the logging policy · whole.parquet · 900 rows\n"
        )
        answer = expected.partition("\n")[2].replace("  A page for others: --html report.html.", "")
        assert shown.stdout.endswith(f"Estimated click per row: pi_new against the logging policy · 900 rows\n{answer}")


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
    assert "Better than pi_old" in invoke("state", "show", tmp_path / "state.json").stdout
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


def test_every_batch_has_its_own_answer(state):
    lines = [line.split() for line in invoke("state", "show", state).stdout.splitlines()]
    found = json.loads(invoke("state", "show", state, "--json").stdout)
    for key, name in ((None, "0.parquet"), ("tue", "tue"), (None, "2.parquet")):
        batch = next(one for one in found["batches"] if one["batch"] == key and name in f"{one['files'][0]} {key}")
        part = pl.read_parquet(batch["files"][0])
        result = cp.evaluate(part, reward="click", propensity="p", target="pi_new")
        assert batch["summaries"]["click"]["pi_new"]["value"] == pytest.approx(result["pi_new", result.best].value)
        value = cp.display.number(result["pi_new", result.best].value, result["pi_new", result.best].stderr)
        assert [name, "pi_new", value] in [line[:3] for line in lines]


def test_partitions_are_named_by_their_folders(tmp_path):
    days = ("2026-01-01", "2026-01-02")
    for seed, day in enumerate(days):
        file = tmp_path / f"day={day}" / "region=EU" / "part-0.parquet"
        file.parent.mkdir(parents=True)
        shop(60, seed=seed).write_parquet(file)
        cp.evaluate(file, reward="click", propensity="p", target="pi_new", state=tmp_path / "s")
    shown = invoke("state", "show", tmp_path / "s").stdout
    names = [line.split()[0] for line in shown.partition("Batch by batch")[2].splitlines() if "part-0" in line]
    assert names == [f"day={day}/region=EU/part-0.parquet" for day in days]


def test_a_state_of_one_batch_is_spoken_of_as_one(tmp_path):
    cp.evaluate(shop(100), reward="click", propensity="p", target="pi_new", state=tmp_path / "s", batch="a")
    assert "has 1 batch, which can still be replaced." in invoke("state", "show", tmp_path / "s").stdout


# -- a daily job -----------------------------------------------------------------------------------------------------------


def write_days(folder, days, change=0):
    for day in days:
        part = shop(300, seed=day)
        if change and day >= change:
            part = part.with_columns(click=pl.when(pl.int_range(pl.len()) % 3 == 0).then(1.0).otherwise("click"))
        part.write_parquet(folder / f"2026-11-{day:02}.parquet")


def test_only_new_files_are_added_each_as_a_batch(tmp_path):
    logs, state = tmp_path / "logs", tmp_path / "state.json"
    logs.mkdir()
    command = ["evaluate", logs, *COLUMNS, "--state", state, "--only-new", "--json"]
    write_days(logs, range(1, 4))
    assert json.loads(invoke(*command).stdout)["n"] == 900
    write_days(logs, range(4, 6))
    added = invoke(*command)
    assert (json.loads(added.stdout)["n"], added.exit_code) == (1500, 0)
    assert "Added 2 files." in added.stderr
    nothing = invoke(*command)
    assert (json.loads(nothing.stdout)["n"], nothing.exit_code) == (1500, 0)
    assert "No new files" in nothing.stderr
    assert [len(batch["files"]) for batch in json.loads(state.read_text())["batches"]] == [1] * 5


def test_only_new_needs_a_state_and_takes_no_batch(tmp_path):
    write_days(tmp_path, [1])
    for more, said in (
        ([], "--only-new needs a state"),
        (["--state", tmp_path / "s", "--batch", "a"], "--batch is about one batch"),
        (["--state", tmp_path / "s", "--replace"], "--replace is about one batch"),
    ):
        refused = invoke("evaluate", tmp_path, *COLUMNS, "--only-new", *more)
        assert refused.exit_code == 2
        assert said in refused.stderr


def test_what_is_already_there_has_an_exit_code_of_its_own(tmp_path):
    write_days(tmp_path, [1])
    command = ["evaluate", tmp_path / "2026-11-01.parquet", *COLUMNS, "--state", tmp_path / "s"]
    assert [invoke(*command).exit_code for _ in range(2)] == [0, 4]
    warned = invoke(*command, "--batch", "again")
    assert warned.exit_code == 0
    assert "Warning: the batch 'again' has the same rows as the file" in warned.stderr


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("days")
    write_days(folder, range(1, 26), change=20)
    assert invoke("evaluate", folder, *COLUMNS, "--state", folder / "state", "--only-new").exit_code == 0
    return folder / "state"


def test_watch_exits_3_if_an_alert_is_so(watched):
    for alerts, code in (([], 0), (["changed"], 3), (["lift < 0"], 0), (["lift < 0", "value > 0"], 3)):
        done = invoke("watch", watched, *(word for alert in alerts for word in ("--alert", alert)))
        assert done.exit_code == code
        assert "mean reward of the logging policy rose from" in done.stdout
        assert "2026-11-20" in done.stdout


def test_watch_exits_3_where_rows_are_missing(watched):
    for more, code in (
        (["--as-of", "2026-11-26", "--alert", "rows < 1000"], 3),
        (["--as-of", "2026-11-26", "--alert", "rows < 100"], 0),
        (["--as-of", "2026-11-26", "--alert", "age > 2 days"], 0),
        (["--as-of", "2026-11-28", "--alert", "age > 2 days"], 3),
        (["--as-of", "2026-11-28", "--alert", "changed since 2026-11-26"], 3),
    ):
        assert invoke("watch", watched, *more).exit_code == code, more


def test_watch_prints_json_and_writes_a_page(watched, tmp_path):
    done = invoke("watch", watched, "--json", "--html", tmp_path / "watch.html", "--alert", "changed")
    assert done.exit_code == 3
    document = json.loads(done.stdout)
    assert document["alerts"][0]["fired"]
    assert document == json.loads(as_text(cp.watch(watched, alert="changed").document()))
    assert "Mean reward of the logging policy" in (tmp_path / "watch.html").read_text()


def test_watch_reads_a_folder_and_keeps_a_state(watched, tmp_path):
    folder = str(watched.parent / "*.parquet")
    for more in ([], ["--state", tmp_path / "s"], ["--state", tmp_path / "s"]):
        done = invoke("watch", folder, *COLUMNS, *more, "--json")
        assert done.exit_code == 0
        assert json.loads(done.stdout)["alarms"] == json.loads(as_text(cp.watch(watched).document()))["alarms"]


def test_watch_refuses_a_question_to_a_state_and_what_it_cannot_read(watched, tmp_path):
    for arguments, said in (
        ((watched, "--target", "pi_new"), "--target is part of one"),
        ((watched, "--day", "date"), "--day is part of one"),
        ((watched, "--alert", "lift"), "such as 'lift < 0'"),
        ((watched, "--html", tmp_path), "it is a folder"),
        ((tmp_path / "none",), "no file"),
    ):
        refused = invoke("watch", *arguments)
        assert refused.exit_code == 2
        assert said in refused.stderr


# -- the line for cron ----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_cron_line_of_the_documentation_mails_what_happened_today(tmp_path):
    """With a `mail` that writes to a file: nothing in a quiet morning, today's error if `evaluate` fails, today's alarm if one fired."""
    text = (Path(__file__).parents[2] / "docs" / "daily.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^15 6 \* \* \*  (.+)$", text, re.MULTILINE)
    shop_, mailed = tmp_path / "shop", tmp_path / "mailed"
    (shop_ / "logs").mkdir(parents=True)
    (shop_ / "counterpoise.toml").write_text('reward = "click"\npropensity = "p"\n')
    line = line.replace("/srv/shop", str(shop_)).replace("/var/www/watch.html", str(tmp_path / "watch.html"))
    for name, body in (("mail", f"cat > {mailed}"), ("counterpoise", f'{sys.executable} -m counterpoise "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)

    def morning():
        mailed.unlink(missing_ok=True)
        path = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
        subprocess.run(["sh", "-c", line], env=os.environ | path, cwd=tmp_path, check=False)
        return mailed.read_text() if mailed.exists() else None

    write_days(shop_ / "logs", range(1, 4))
    assert morning() is None
    (shop_ / "logs" / "2026-11-04.parquet").write_text("this is no Parquet file")
    assert "2026-11-04.parquet" in morning()
    (shop_ / "logs" / "2026-11-04.parquet").unlink()
    assert morning() is None
    write_days(shop_ / "logs", range(4, 27), change=20)
    assert "alarm" in morning()
