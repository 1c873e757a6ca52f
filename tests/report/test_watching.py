"""The page of a watched log in a real Chromium: alarms first, plots made of its numbers, hostile names harmless, nothing fetched."""

import re

import browser as chromium
import numpy as np
import polars as pl
import pytest
from report_logs import HOSTILE

import counterpoise as cp

DAYS = [f"2026-11-{day:02}" for day in range(1, 31)]


@pytest.fixture(scope="module")
def watched():
    random = np.random.default_rng(0)
    day, shown = np.repeat(DAYS, 300), random.random(9000) < 0.5
    rate = np.where(shown, 0.3, 0.2) + 0.2 * (day >= DAYS[19])
    name = HOSTILE[0]
    log = pl.DataFrame({"day": day, "r": (random.random(9000) < rate) * 1.0, "p": 0.5, name: np.where(shown, 0.8, 0.2)})
    target = {name: np.where(shown, 0.8, 0.2)}
    columns = {"reward": log["r"].to_numpy(), "propensity": np.full(9000, 0.5), "target": target}
    return cp.watch(**columns, day=day, alert=["changed", "lift < 0"], as_of="2026-12-01")


@pytest.fixture(scope="module")
def page(watched, tmp_path_factory):
    return watched.report(tmp_path_factory.mktemp("page") / "watch.html", title=HOSTILE[0], command=" ".join(HOSTILE))


@pytest.fixture(scope="module")
def browser():
    found = chromium.start()
    yield found
    found.close()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_it_opens_without_error_request_or_barrier(browser, page, width, dark):
    browser.open(page, width=width, dark=dark)
    assert browser.errors() == []
    assert browser.requests() == [page.resolve().as_uri()]
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.violations() == []
    assert browser.run("return document.querySelectorAll('bdi *, img').length") == 0


def test_alarms_come_first_and_are_marked(browser, page, watched):
    browser.open(page)
    listed = browser.run("return Array.from(document.querySelectorAll('main li[class^=is-]')).map(e => e.textContent)")
    assert len(listed) == len(watched.alarms) + 2
    assert any("Mean reward of the logging policy rose from" in each for each in listed[: len(watched.alarms)])
    marks = browser.run("return document.querySelectorAll('.area .mark').length")
    assert marks == len(watched.alarms)


def test_every_plot_is_made_of_the_numbers(page, watched):
    """Heights of the line, read off the page, are linear in the means so far."""
    curves = re.findall(r'<path d="M([^"]+)" class="curve"', page.read_text(encoding="utf-8"))
    curves = curves or re.findall(r'class="curve" d="M([^"]+)"', page.read_text(encoding="utf-8"))
    assert len(curves) == len(watched.series)
    for curve, series in zip(curves, watched.series, strict=True):
        points = np.array([[float(x) for x in re.split(r"[ ,]", point)] for point in curve.split("L")])
        assert len(points) == len(series.days)
        assert np.diff(points[:, 0]) == pytest.approx(np.full(len(points) - 1, np.diff(points[:, 0])[0]), abs=0.11)
        if series.is_count:  # every day of this log has as many rows
            assert np.ptp(points[:, 1]) == 0
            continue
        slope, start = np.polyfit(series.running, points[:, 1], 1)
        assert slope < 0
        assert points[:, 1] == pytest.approx(start + slope * series.running, abs=0.2)
