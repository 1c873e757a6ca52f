"""The code on the page about learning runs as it stands."""

import re
from pathlib import Path

import learning  # noqa: F401  (skips without torch)
import pytest
from command_line import invoke
from paper_files import shared

PAGE = Path(__file__).resolve().parents[2] / "docs" / "learning.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)


@pytest.mark.parametrize("code", BLOCKS)
def test_code_blocks_run(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(PAGE), "exec"), {})


def test_the_page_shows_what_check_curves_prints():
    curves = PAGE.with_name("figures") / "learning_curves.csv"
    printed = invoke("reproduce", "check-curves", curves, shared("paper/fig1_fig2_fig3_opl_curves.csv"))
    assert printed.exit_code == 0, printed.stderr
    assert f"```\n{printed.stdout}```" in PAGE.read_text(encoding="utf-8")


def test_there_is_code_to_run():
    assert len(BLOCKS) >= 7
