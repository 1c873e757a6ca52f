"""The bar below a notebook's cell: it comes with long work only, says how far that is, and goes away."""

import sys
import time
from types import ModuleType, SimpleNamespace

import pytest

import counterpoise as cp
from counterpoise.readers import progress
from counterpoise.readers.progress import progress_bar, progress_line


@pytest.fixture
def cell(monkeypatch):
    """What a cell of a notebook shows, one text after the other."""
    shown = []
    display = ModuleType("IPython.display")
    display.HTML = str
    display.display = lambda bar, display_id: shown.append(bar) or SimpleNamespace(update=shown.append)
    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=None)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(progress, "PATIENCE", 0.05)
    monkeypatch.setattr(progress, "REFRESH", 0.0)
    return shown


def test_long_work_has_a_bar_that_goes_away(cell):
    with progress_line(None, "reading <the> log") as tell:
        time.sleep(0.2)
        tell("2,000 of 3,000 rows")
    assert cell == [
        "<progress></progress> reading &lt;the&gt; log (0 s)",
        '<progress value="2000" max="3000"></progress> 2,000 of 3,000 rows (0 s)',
        "",
    ]


def test_rows_are_counted(cell):
    with progress_bar(True) as report:
        time.sleep(0.2)
        report(1500)
    assert "1,500 rows" in cell[1]


def test_short_and_unwanted_work_has_none(cell):
    with progress_line(None, "reading the log") as tell:
        tell("3 rows")
    with progress_line(False, "reading the log") as tell:
        assert tell is None
        time.sleep(0.1)
    result = cp.evaluate(reward=[1.0, 0.0], propensity=[0.5, 0.5], target=[0.5, 0.5])
    assert result.n == 2
    assert cell == []


def test_a_failure_leaves_no_bar(cell):
    def work():
        with progress_line(None, "reading the log"):
            time.sleep(0.2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert cell[-1] == ""


@pytest.mark.parametrize("shell", [None, SimpleNamespace(name="IPython in a terminal")])
def test_elsewhere_there_is_no_cell(cell, shell, monkeypatch):
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: shell)
    assert not progress.is_notebook()
    with progress_line(None, "reading the log") as tell:
        assert tell is None or sys.stderr.isatty()
