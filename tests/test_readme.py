"""The README's code runs as it stands, and its promises about the repository hold."""

import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from command_line import invoke

import counterpoise as cp

README = Path(__file__).parent.parent / "README.md"
DOCS = README.parent / "docs"


def blocks():
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.S)


def outputs():
    return re.findall(r"```text\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.S)


def listed_commands(page):
    shown = re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.S)
    (listed,) = (block for block in shown if "counterpoise simulate" in block)
    return [shlex.split(line, comments=True) for line in listed.splitlines()]


def test_the_readme_can_be_read_in_five_minutes():
    words = [
        word for word in README.read_text(encoding="utf-8").split() if re.search(r"\w", word)
    ]  # not the lines of tables
    assert len(words) <= 1000


def test_the_figures_beside_other_libraries_are_those_of_the_page():
    page = (README.parent / "benchmarks" / "PEERS.md").read_text(encoding="utf-8")
    section = README.read_text(encoding="utf-8").partition("## Beside other libraries")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    assert len(rows) >= 5
    assert [row for row in rows if row not in page] == []


@pytest.mark.parametrize("code", blocks())
def test_code_blocks_run(code, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(README), "exec"), {})
    assert "beta_ips" in capsys.readouterr().out


@pytest.mark.thorough
@pytest.mark.once
def test_the_commands_run_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = listed_commands(DOCS / "command_line.md")
    assert len(commands) >= 7
    assert all(command in commands for command in listed_commands(README))
    for command in commands:
        if any(word.endswith(".safetensors") for word in command) and find_spec("torch") is None:
            continue
        found = invoke(*command[1:])
        assert found.exit_code == 0, (command, found.output)


def test_the_report_is_shown_as_a_picture_that_loads_quickly():
    text = README.read_text(encoding="utf-8")
    home = (DOCS / "index.md").read_text(encoding="utf-8")
    assert "(docs/figures/report.png)" in text[: text.index("## ")]
    assert "(figures/report.png)" in home
    assert (DOCS / "figures" / "report.png").stat().st_size < 300_000


def test_there_is_code_to_run():
    assert blocks()


def test_every_estimator_has_its_row():
    page = (DOCS / "estimators.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|", page[: page.index("## ")], flags=re.M)
    assert set(rows) == set(cp.ESTIMATORS)


def test_importing_is_fast_and_light():
    """No heavy library comes along. (The time itself is looked at by `make benchmark`, not by a test.)"""
    code = (
        "import sys, counterpoise; "
        "heavy = {'torch', 'pandas', 'matplotlib', 'sklearn', 'polars', 'narwhals', 'scipy', 'numba', 'pyarrow'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


@pytest.fixture(scope="module")
def demo():
    return subprocess.run(
        [sys.executable, "-m", "counterpoise.demo"], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.once
def test_the_demo_shows_the_truth_beside_the_estimates(demo):
    for expected in (
        "The truth, which we know because",
        "beta_ips",
        "covers the truth",
        "Verdict: ok",
        "New against old",
    ):
        assert expected in demo


@pytest.mark.once
def test_what_the_readme_shows_of_the_demo_is_what_it_prints(demo):
    (shown,) = (block for block in outputs() if "logging policy  " in block)
    assert shown in demo
    (truth,) = re.findall(r"^The truth, which we know.*$", README.read_text(encoding="utf-8"), flags=re.M)
    assert truth in demo


def test_what_the_readme_shows_of_a_result_is_what_it_prints(capsys):
    (shown,) = (block for block in outputs() if "the best of 2" in block)
    exec(compile(blocks()[0], str(README), "exec"), {})
    assert shown in capsys.readouterr().out
