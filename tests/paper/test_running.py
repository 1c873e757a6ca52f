"""Runs that are interrupted, continued, refused; and the commands that start them."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from messages import refuses
from paper_files import shared
from typer.testing import CliRunner

from counterpoise.errors import OptionError
from paper.__main__ import app
from paper.claims import read_cells
from paper.ope import RECIPE, Cell, by_cell, run_cells
from paper.result_file import ResultFile, ResultFileError, read_rows
from paper.table1 import PAPER, run_table

CELLS = [Cell(1.0, 25, 100, seed) for seed in range(3)]
OPE = ["ope", "--inverse-temperature", "1", "--actions", "25", "--n", "100", "--jobs", "1"]


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_continued_run_keeps_what_is_there_and_adds_what_is_missing(tmp_path):
    path = tmp_path / "runs.csv"
    whole = run_cells(CELLS, tmp_path / "whole.csv", jobs=1).path.read_text()
    run_cells(CELLS[:2], path, jobs=1)
    # a mark that only a kept row can have, and a cell cut short by an interruption
    lines = path.read_text().splitlines()
    lines[1] = ",".join([*lines[1].split(",")[:5], "123.5", "7"])
    path.write_text("\n".join(lines[:-3]) + "\n")
    file = run_cells(CELLS, path, jobs=2)
    assert sorted(file.rows) == CELLS
    continued = path.read_text().splitlines()
    assert continued[1] == lines[1]
    assert continued[2:] == whole.splitlines()[2:]


def test_a_file_of_another_recipe_is_refused(tmp_path):
    path = tmp_path / "runs.csv"
    run_cells(CELLS[:1], path, jobs=1)
    sidecar = tmp_path / "runs.recipe.json"
    assert json.loads(sidecar.read_text()) == {"recipe": "ope", "version": RECIPE.version}
    sidecar.write_text(json.dumps({"recipe": "ope", "version": RECIPE.version + 1}))
    with refuses(ResultFileError):
        run_cells(CELLS, path, jobs=1)
    sidecar.write_text("{")
    with refuses(ResultFileError):
        run_cells(CELLS, path, jobs=1)
    sidecar.unlink()
    with refuses(ResultFileError):
        run_cells(CELLS, path, jobs=1)
    assert len(read_rows(path, RECIPE)) == 1


def test_damaged_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "runs.csv"
    file = ResultFile.open(path, RECIPE)
    path.write_text(path.read_text() + "1,25,100,zero,IPS,0,0\n")
    with refuses(ResultFileError):
        ResultFile.open(path, file.recipe)
    path.write_text("a,b\n1,2\n")
    with refuses(ResultFileError):
        ResultFile.open(path, file.recipe)


def test_nothing_is_left_half_written(tmp_path):
    run_cells(CELLS[:1], tmp_path / "runs.csv", jobs=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs.csv", "runs.recipe.json"]


def test_the_command_writes_runs_and_is_quiet_without_a_terminal(tmp_path):
    command = [sys.executable, "-m", "paper", *OPE, "--seeds", "1:3", "--out", str(tmp_path / "runs.csv")]
    found = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "80"})
    assert found.stderr == ""
    assert "2 cells" in found.stdout
    assert sorted(key[3] for key in read_rows(tmp_path / "runs.csv", RECIPE)) == [1, 2]


def test_an_interrupted_run_saves_what_is_finished_and_continues(tmp_path):
    path = tmp_path / "runs.csv"
    command = [sys.executable, "-m", "paper", *OPE, "--seeds", "0:2000", "--out", str(path)]
    # a new group and a default handler, so that the signal arrives as Ctrl-C does at a terminal
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=_ctrl_c
    )
    deadline = time.monotonic() + 600
    while not (path.exists() and read_rows(path, RECIPE)) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=600)
    assert running.returncode != 0
    assert "Traceback" not in said
    finished = read_rows(path, RECIPE)
    assert 0 < len(finished) < 2000
    file = run_cells([*CELLS, Cell(1.0, 25, 101, 0)], path, jobs=1)
    assert {key: file.rows[key] for key in finished} == finished


def _ctrl_c():
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--n", "0"], "OptionError: a cell needs n of at least 1 row; found 0"),
        (["--actions", "1"], "OptionError: a cell needs at least 2 actions"),
        (["--seeds", "-1"], "OptionError: seeds must lie in 0"),
        (["--seeds", "5:5"], "OptionError: `--seeds 5:5` selects no seeds"),
        (["--seeds", "many"], "OptionError: seeds are one integer or first:last"),
        (["--jobs", "0"], "OptionError: jobs must be at least 1"),
        (["--out", "/dev/null/runs.csv"], "ResultFileError: '/dev/null/runs"),
    ],
)
def test_impossible_commands_exit_2_without_a_traceback(tmp_path, change, words):
    arguments = [*OPE, "--seeds", "0:1", "--out", str(tmp_path / "runs.csv")]
    at = arguments.index(change[0])
    arguments[at : at + 2] = change
    found = invoke(*arguments)
    assert found.exit_code == 2
    assert found.stderr.startswith(words)
    assert "Traceback" not in found.output
    assert len(found.stderr.splitlines()) == 1


def test_other_impossible_commands_exit_2_too(tmp_path):
    for arguments, words in [
        (["figure4", "--scale", "huge", "--out", tmp_path], "no scale 'huge'"),
        (["figure5", "--published", tmp_path / "none.csv", "--out", tmp_path], "cannot be read"),
        (["table1", "--data", tmp_path, "--out", tmp_path], "laid out as"),
        (["table1", "--data", tmp_path, "--campaign", "man", "--out", tmp_path], "Did you mean 'men'"),
        (["table1", "--data", tmp_path, "--scale", "huge", "--out", tmp_path], "no scale 'huge'"),
        (["check", tmp_path / "none.csv"], "cannot be read"),
        (["claims", tmp_path / "none.csv"], "cannot be read"),
    ]:
        found = invoke(*arguments)
        assert (found.exit_code, "Traceback" in found.output) == (2, False)
        assert words in found.stderr


def test_check_exits_1_where_a_published_digit_differs(tmp_path):
    lines = shared("paper/ope_runs_seeds_0_to_9.csv").read_text().splitlines()
    few = [line for line in lines[1:] if line.startswith("1,25,100,0,")]
    path = tmp_path / "published.csv"
    path.write_text("\n".join([lines[0], *few]) + "\n")
    found = invoke("check", path, "--out", tmp_path / "runs.csv", "--jobs", 1)
    assert (found.exit_code, found.stdout) == (0, "1 runs, 10 numbers: 0 differ in the first 8 digits.\n")
    changed = few[0].split(",")
    changed[5] = f"{float(changed[5]) * (1 + 1e-7):.12g}"
    path.write_text("\n".join([lines[0], ",".join(changed), *few[1:]]) + "\n")
    found = invoke("check", path, "--out", tmp_path / "runs.csv", "--jobs", 1)
    assert found.exit_code == 1
    assert "squared_error of DM" in found.stdout


def test_figures_and_claims_from_the_smoke_scale(tmp_path):
    found = invoke("figure4", "--scale", "smoke", "--out", tmp_path, "--jobs", 2)
    assert found.exit_code == 0, found.output
    assert {path.name for path in tmp_path.glob("figure4*")} == {
        f"figure4_smoke{suffix}" for suffix in (".svg", ".png", "_ours.svg", "_ours.png")
    }
    assert invoke("figure5", "--scale", "smoke", "--out", tmp_path, "--jobs", 2).exit_code == 0
    assert invoke("draw", tmp_path / "ope_smoke.csv", "--out", tmp_path / "drawn").exit_code == 0
    assert len(list((tmp_path / "drawn").glob("figure*"))) == 8
    cells = read_cells(tmp_path / "drawn" / "cells.csv")
    runs = by_cell(read_rows(tmp_path / "ope_smoke.csv", RECIPE))
    assert cells[-5.0, 25, 100]["IPS"][0] == pytest.approx(runs[-5.0, 25, 100]["IPS"][:, 0].mean(), rel=1e-7)
    said = invoke("claims", tmp_path / "ope_smoke.csv").stdout
    assert "Lowest mean squared error in 6 cells" in said
    assert "Nominal 95 % normal intervals at inverse temperature -5 cover" in said


def test_published_claims_are_printed():
    said = invoke("claims", shared("paper/fig4_fig5_ope_cells.csv")).stdout
    assert "in 160 cells" in said
    assert "beta-IPS 99." in said


def test_table1_on_the_sample(tmp_path, monkeypatch):
    monkeypatch.setattr("paper.table1.DRAWS", 20_000)
    data = shared("obd")
    lines = run_table(data, data / "thompson_priors.yaml", tmp_path / "t.csv", samples=2, campaigns=("men",), jobs=1)
    assert {line.estimator for line in lines} > set(PAPER)
    assert lines[0].truth == pytest.approx(0.0069)
    assert 0.1 < lines[0].truth_stderr / lines[0].truth < 0.15
    assert all(0 <= line.error < 2 for line in lines)
    with refuses(OptionError):
        run_table(data, data / "thompson_priors.yaml", tmp_path / "t.csv", samples=1, campaigns=("men",), jobs=1)


def test_help_is_quick_and_lists_the_commands():
    code = "import sys, paper.__main__; print([m for m in ('matplotlib', 'sklearn', 'pandas') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
    said = invoke("--help").stdout
    assert all(name in said for name in ("figure4", "figure5", "table1", "ope", "check", "claims"))
