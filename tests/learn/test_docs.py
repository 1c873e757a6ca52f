"""The page about learning shows what its commands print."""

from pathlib import Path

import learning  # noqa: F401  (skips without torch)
from paper_files import shared
from typer.testing import CliRunner

from paper.__main__ import app

PAGE = Path(__file__).resolve().parents[2] / "docs" / "learning" / "quality.md"


def test_the_page_shows_what_check_curves_prints():
    curves = PAGE.parents[1] / "figures" / "learning_curves.csv"
    printed = CliRunner().invoke(app, ["check-curves", str(curves), str(shared("paper/fig1_fig2_fig3_opl_curves.csv"))])
    assert printed.exit_code == 0, printed.stderr
    assert f"```\n{printed.stdout}```" in PAGE.read_text(encoding="utf-8")
