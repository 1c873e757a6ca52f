"""Run the gallery's pages as a reader would, and keep what they draw.

    python docs/gallery/run.py            # every page: its pictures and its notebook, if it has one, written again
    python docs/gallery/run.py csv home   # two of them; home is the documentation's first page, paper the one about the paper

Blocks of Python share their names, blocks of `sh` run in a shell, and both in one empty folder, where a page saves its pictures.
"""

import base64
import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
PAGES = sorted(page for page in HERE.glob("*.md") if page.stem != "index")
HOME, PAPER = HERE.parent / "index.md", HERE.parent / "paper.md"
NOTEBOOKS = ("csv", "no_propensities", "pandas_model")
FENCE = re.compile(r"^```(python|sh)([^\n]*)\n(.*?)^```\n", flags=re.S | re.M)
PICTURE = re.compile(r"!\[[^\]]*\]\(((?:figures/)?\w+\.png)\)")
DATA = HERE.parents[2] / "shared" / "obd"


def pictures(page):
    """The files of pictures that a text shows."""
    return PICTURE.findall(page)


def cells(page):
    """A page as the cells of a notebook: ("markdown" or "code", text), in which shell commands begin with `!`."""
    text = page.read_text(encoding="utf-8")
    end = 0
    for block in FENCE.finditer(text):
        yield "markdown", text[end : block.start()].strip()
        language, _, code = block.groups()
        yield "code", (code if language == "python" else re.sub(r"^(?=counterpoise)", "!", code, flags=re.M)).strip()
        end = block.end()
    yield "markdown", text[end:].strip()


def missing(title):
    """What a block's title says it needs, and this machine lacks."""
    needs = {
        "the Open Bandit Dataset": DATA.is_dir(),
        "Java": shutil.which("java"),
        "statsmodels": find_spec("statsmodels"),
    }
    return [what for what, there in needs.items() if f"needs {what}" in title and not there]


def run(code, names):
    """One cell: Python, or lines of shell commands, each of which must succeed."""
    if not code.startswith("!"):
        exec(compile(code, code.splitlines()[0], "exec"), names)
        return
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in re.split(r"^!", code, flags=re.M)[1:]:
        environment = os.environ | {"PATH": path}
        found = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment, check=False)
        print(found.stdout + found.stderr, end="")
        assert found.returncode == 0, command


def run_page(page):
    """Run a page in the current folder; what could not run for want of something."""
    if DATA.is_dir() and not Path("open_bandit").exists():
        Path("open_bandit").symlink_to(DATA)
    titles = [block[1] for block in FENCE.findall(page.read_text(encoding="utf-8"))]
    codes = [text for kind, text in cells(page) if kind == "code"]
    names, left_out = {}, []
    for title, code in zip(titles, codes, strict=True):
        left_out += missing(title)
        if not missing(title):
            run(code, names)
    close_figures()
    return left_out


def close_figures():
    """Forget the figures of a page."""
    if "matplotlib" in sys.modules:
        import matplotlib.pyplot as plt

        plt.close("all")


def notebook(page):
    """A page as a notebook that has run in the current folder, with what its cells printed and drew."""
    names, found = {}, []
    for kind, text in cells(page):
        text = PICTURE.sub("", text).strip() if kind == "markdown" else text
        text = re.sub(r"\[([^\]]+)\]\((?:\.\./)?[\w.#-]+\)", r"\1", text) if kind == "markdown" else text
        if not text:
            continue
        cell = {"cell_type": kind, "id": f"cell-{len(found)}", "metadata": {}, "source": text.splitlines(keepends=True)}
        if kind == "code":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                run(text, names)
            cell |= {"execution_count": None, "outputs": list(outputs(printed.getvalue(), text))}
        found.append(cell)
    close_figures()
    python = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": found, "metadata": {"kernelspec": python}, "nbformat": 4, "nbformat_minor": 5}


def outputs(printed, code):
    """What a cell printed, and the pictures that it saved."""
    if printed:
        yield {"output_type": "stream", "name": "stdout", "text": printed.splitlines(keepends=True)}
    for name in re.findall(r'savefig\("(\w+\.png)"', code):
        picture = base64.b64encode(Path(name).read_bytes()).decode()
        yield {"output_type": "display_data", "metadata": {}, "data": {"image/png": picture}}


def draw_home():
    """The picture of the first page: its answer beside the truth."""
    names = {}
    for kind, code in cells(HOME):
        if kind == "code":
            run(code, names)
    axes = names["result"].plot()
    axes.axvline(names["truth"], linestyle="--", color="black", label="truth")
    axes.legend(loc="center")
    axes.figure.savefig("answer.png", dpi=80, bbox_inches="tight")
    shutil.copy("answer.png", HOME.parent / "figures")


def main():
    names = sys.argv[1:] or ["home", "paper", *(page.stem for page in PAGES)]
    if "home" in names:
        names.remove("home")
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            draw_home()
    for page in (PAPER if name == "paper" else HERE / f"{name}.md" for name in names):
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            left_out = run_page(page)
            for name in pictures(page.read_text(encoding="utf-8")):
                if Path(Path(name).name).is_file():
                    shutil.copy(Path(name).name, page.parent / name)
        if page.stem in NOTEBOOKS:
            with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
                text = json.dumps(notebook(page), indent=1, ensure_ascii=False)
                page.with_suffix(".ipynb").write_text(text + "\n", encoding="utf-8")
        print(page.stem, *(f"without {what}" for what in left_out))


if __name__ == "__main__":
    main()
