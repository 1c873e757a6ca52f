"""Every example of the gallery runs, asserts the truth beside the answer and draws its picture; notebooks are the pages, run."""

import importlib.util
import json
from pathlib import Path

import pytest
from conftest import absent

FOLDER = Path(__file__).parents[1] / "docs" / "gallery"
spec = importlib.util.spec_from_file_location("gallery_run", FOLDER / "run.py")
gallery = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gallery)
pytestmark = pytest.mark.once


def text(page):
    return page.read_text(encoding="utf-8")


def code(page):
    return "\n".join(cell for kind, cell in gallery.cells(page) if kind == "code")


@pytest.mark.parametrize("page", gallery.PAGES, ids=lambda page: page.stem)
def test_an_example_runs_and_draws_its_picture(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    left_out = gallery.run_page(page)
    if "the Open Bandit Dataset" not in left_out:  # the whole of its page
        for name in gallery.pictures(text(page)):
            assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    if left_out:
        absent(" and ".join(left_out))


@pytest.mark.parametrize("page", gallery.PAGES, ids=lambda page: page.stem)
def test_an_example_has_a_truth_to_hold_its_answer_to_and_a_small_picture(page):
    asserted = [line for line in code(page).splitlines() if line.lstrip().startswith("assert")]
    assert any(word in line for line in asserted for word in ("truth", "apart"))
    assert gallery.pictures(text(page)) == [f"{page.stem}.png"]
    assert 1_000 < (FOLDER / f"{page.stem}.png").stat().st_size < 60_000


def test_there_are_ten_examples_and_the_index_shows_them():
    index = text(FOLDER / "index.md")
    assert len(gallery.PAGES) >= 10
    for page in gallery.PAGES:
        assert f"({page.stem}.png)" in index
        assert f"({page.name})" in index
    assert {path.stem for path in FOLDER.glob("*.png")} == {page.stem for page in gallery.PAGES}


@pytest.mark.parametrize("name", gallery.NOTEBOOKS)
def test_a_notebook_is_its_page_with_what_came_out(name):
    """The same cells of code, which the test of the page runs; `python docs/gallery/run.py` writes notebooks again."""
    notebook = json.loads(text(FOLDER / f"{name}.ipynb"))
    assert notebook["nbformat"] == 4
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert ["".join(cell["source"]) for cell in cells] == [
        cell for kind, cell in gallery.cells(FOLDER / f"{name}.md") if kind == "code"
    ]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
