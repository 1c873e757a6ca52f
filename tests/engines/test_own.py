"""An engine of one's own is one class and one line, and every verb reads its logs."""

import polars as pl
import pytest
from command_line import shop
from messages import refuses

import counterpoise as cp
from counterpoise.engines import ENGINES, LogEngine
from counterpoise.report.page import render

PARTS = {"reward": "click", "propensity": "p"}


class Shelf:
    """A log that nobody but its owner knows how to read."""

    def __init__(self, *days):
        self.days = days


class Shelves(LogEngine):
    def holds(self, data):
        return isinstance(data, Shelf)

    def frame(self, data):
        return pl.concat([day.lazy() for day in data.days])


@pytest.fixture
def shelf(monkeypatch):
    monkeypatch.setitem(ENGINES, "shelves", Shelves())
    log = shop()
    return Shelf(log[:700], log[700:])


@pytest.mark.parametrize("more", [{}, {"where": "p > 0.3"}, {"cluster": "user_id"}, {"reward": "click + 1.0"}])
def test_it_answers_as_the_frame_itself_does(shelf, more):
    found, expected = (cp.evaluate(log, **PARTS | more, target="pi_new") for log in (shelf, shop()))
    assert found.n == expected.n
    for key, one in expected.estimates.items():
        assert found.estimates[key].value == pytest.approx(one.value, rel=1e-12)


def test_the_verbs_that_look_at_rows_read_it_too(shelf):
    plans = [cp.plan(log, **PARTS, target="pi_new", difference=0.1, actions=10_000) for log in (shelf, shop())]
    assert plans[0] == plans[1]
    seen = [cp.doctor(log, **PARTS, target=["pi_new"]) for log in (shelf, shop())]
    assert seen[0].rows == seen[1].rows == 2000
    assert seen[0].reward == seen[1].reward
    assert "As rows come in" in render(cp.evaluate(shelf, **PARTS, target="pi_new"))


def test_what_is_for_databases_is_refused_for_it(shelf):
    with refuses(cp.OptionError):
        cp.evaluate(shelf, **PARTS, target="pi_new", table="logs")


def test_without_its_line_it_is_no_log():
    with refuses(cp.OptionError):
        cp.evaluate(Shelf(shop()), **PARTS, target="pi_new")
