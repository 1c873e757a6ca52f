"""The report in a real Chromium: it draws, sorts, filters and opens, by mouse and by keyboard, and asks the network for nothing."""

import base64
import re
import time

import browser as chromium
import numpy as np
import polars as pl
import pytest
from report_logs import crowded, hostile, ordinary, seven, visits

import counterpoise as cp
from counterpoise.report import write_report


@pytest.fixture(scope="module")
def browser():
    found = chromium.start()
    yield found
    found.close()


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    result, log = ordinary()
    alone = write_report(result, folder / "alone.html", rows=False)
    whole = write_report(result, folder / "whole.html", command="make report")
    result, log = hostile()
    bad = write_report(result, folder / "bad.html", title=next(iter(log)))
    result, log = crowded()
    many = write_report(result, folder / "many.html")
    return {"alone": alone, "whole": whole, "hostile": bad, "many": many}


SCREENS = {"a desk": (1280, 800), "a phone": (390, 844)}
MOST = {"one target": 2500, "a policy that loses": 2500, "twelve targets": 6000}  # pixels, as the page opens
SEEN = {  # what a reader has to find without scrolling, and where it is said
    "reward": ".asked bdi",
    "change": "h1 .change",
    "certainty": "h1 .certainty",
    "decision": ".card:nth-child(1) b",
    "trust": ".card:nth-child(2) .badge",
    "next step": ".card:nth-child(3) li",
}


@pytest.fixture(scope="module")
def seven_reports(tmp_path_factory):
    return seven(tmp_path_factory.mktemp("seven"))


NAMES = [
    "one target",
    "a policy that loses",
    "twelve targets",
    "not identified",
    "partial overlap",
    "a ranking",
    "an A/B test",
]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("name", NAMES)
def test_the_first_screen_has_the_answer(browser, seven_reports, name, screen, dark, capsys):
    (width, height), path = SCREENS[screen], seven_reports[name]
    browser.open(path, width=width, height=height, dark=dark)
    whole = browser.run("return document.documentElement.scrollHeight")
    with capsys.disabled():
        print(f"\n{name} on {screen}, {'dark' if dark else 'light'}: {whole} px high", end="")
    assert width != 1280 or whole <= MOST.get(name, 2500)
    ends = browser.run(
        "return Object.fromEntries(Object.entries(arguments[0]).map(([what, where]) => {"
        "  const e = document.querySelector(where); const box = e && e.getBoundingClientRect();"
        "  return [what, e && e.checkVisibility() && e.textContent.trim() ? [box.left, box.top, box.right, box.bottom] : null]; }))",
        SEEN,
    )
    # one has no number to be sure of, and the other only bounds, which are the change itself
    unsaid = {"certainty"} if name in ("not identified", "partial overlap") else set()
    assert {what for what, box in ends.items() if box is None} == unsaid
    if name == "partial overlap":
        assert browser.run("return document.querySelector('h1 .change').textContent").startswith("between ")
        assert browser.run("return document.querySelector('.words').textContent").startswith(
            "What it earns elsewhere: +"
        )
    for what, (left, top, right, bottom) in ((what, box) for what, box in ends.items() if box):
        assert 0 <= left <= right <= width, what
        assert 0 <= top <= bottom <= height, what
    assert browser.run("return document.querySelectorAll('details[open]').length") == 0
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.errors() == []
    assert browser.requests() == [path.resolve().as_uri()]
    assert browser.violations() == []


NUMBER, PLAIN = re.compile(r"[+−]?\d[\d,]*\.?\d*"), str.maketrans({"−": "-", ",": None})
OPENED = "document.querySelectorAll('details').forEach(d => { d.open = true; });"


@pytest.mark.parametrize("name", NAMES)
def test_no_plot_is_empty_and_nothing_folded_is_a_barrier(browser, seven_reports, name):
    browser.open(seven_reports[name])
    browser.run(OPENED)
    assert browser.violations() == []
    empty = browser.run(
        "return Array.from(document.querySelectorAll('svg.area, svg.strip')).filter(svg => !Array.from("
        "  svg.querySelectorAll('.curve, .bar, .held, .missed, .interval, circle')).some(e => {"
        "    const box = e.getBoundingClientRect(); return Math.max(box.width, box.height) > 1; })).length"
    )
    assert empty == 0


@pytest.mark.parametrize("name", NAMES)
def test_the_marks_of_a_plot_are_where_its_numbers_say(browser, seven_reports, name):
    """In every picture and forest: dots and ends of intervals lie on one line through the numbers beside them."""
    browser.open(seven_reports[name])
    browser.run(OPENED)
    plots = browser.run(
        "return Array.from(document.querySelectorAll('.picture, table.forest, table.segments')).map(plot =>"
        "  Array.from(plot.querySelectorAll('li, tbody tr')).filter(row => row.querySelector('svg.strip')).map(row => {"
        "    const strip = row.querySelector('svg.strip').getBoundingClientRect();"
        "    const at = e => { const b = e.getBoundingClientRect(); return [b.left - strip.left, b.right - strip.left]; };"
        "    const dot = row.querySelector('.strip circle'), line = row.querySelector('.strip .interval');"
        "    return {said: row.querySelector('.size, td.number:not([data-value])').textContent, width: strip.width,"
        "            arrow: !!row.querySelector('.arrow'), dot: dot && at(dot), line: line && at(line)}; }))"
    )
    checked = 0
    for rows in plots:
        marks = []  # a number, half of its last digit, and where it is drawn
        for row in rows:
            said = [
                (float(x.translate(PLAIN)), 0.5 * 10.0 ** -len(x.partition(".")[2]))
                for x in NUMBER.findall(row["said"])
            ]
            marks += [(*said[0], sum(row["dot"]) / 2)] if row["dot"] else []
            if row["line"] and not row["arrow"]:
                ends = said[1:3] if row["dot"] else said[:2]
                marks += [(*end, place) for end, place in zip(ends, row["line"], strict=True)]
        if len({number for number, _, _ in marks}) < 2:
            continue  # nothing, or the same number everywhere
        numbers, halves, places = map(np.array, zip(*marks, strict=True))
        slope, start = np.polyfit(numbers, places, 1)
        assert slope > 0
        assert np.all(np.abs(slope * numbers + start - places) < slope * halves + 1.5), name
        checked += len(marks)
    assert checked > 2 or name == "not identified"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["alone", "whole", "hostile", "many"])
def test_opens_without_error_request_or_barrier(browser, reports, name, width, dark):
    browser.open(reports[name], width=width, dark=dark)
    assert browser.errors() == []
    assert browser.requests() == [reports[name].resolve().as_uri()]
    assert browser.run("return document.documentElement.scrollWidth") <= width  # nothing sticks out
    assert browser.violations() == []
    dark_page = browser.run("return getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark_page == dark


def test_every_plot_is_drawn(browser, reports):
    browser.open(reports["whole"])
    browser.run(OPENED)
    sizes = browser.run(
        "return Array.from(document.querySelectorAll('svg.area')).map(svg => {"
        "  const drawn = Array.from(svg.querySelectorAll('.curve, .bar')).map(e => e.getBoundingClientRect());"
        "  const box = svg.getBoundingClientRect();"
        "  return [Math.max(...drawn.map(b => b.width)), Math.max(...drawn.map(b => b.height)), box.width, box.height]; })"
    )
    assert len(sizes) == 2 * 4 + 2  # two targets: sensitivity, tail, contribution and histogram each, and convergence
    for line_width, line_height, width, height in sizes:
        assert width > 200
        assert height == 220
        assert line_width > 3
        assert line_height > 100
    dots = browser.run(
        "return Array.from(document.querySelectorAll('.strip circle')).map(c => c.getBoundingClientRect().width)"
    )
    # the picture, both targets in four segments, estimates, and the mean weights of both targets in four segments
    assert len(dots) == 2 + 2 * 4 + 2 * 3 + 2 * 4
    assert all(size > 8 for size in dots)
    unnamed = browser.run("return document.querySelectorAll('.chart:not([role=img][aria-label])').length")
    assert unnamed == 0


def test_the_best_of_many_targets_is_drawn_first(browser, reports):
    browser.open(reports["many"])
    drawn = browser.run("return Array.from(document.querySelectorAll('.picture .who')).map(e => e.textContent)")
    assert drawn == [f"<b>{k}</b>" for k in range(11, -1, -1)]
    browser.run(OPENED)
    titles = browser.run("return Array.from(document.querySelectorAll('#weights h3')).map(h => h.textContent)")
    assert titles == [f"Weights of <b>{k}</b>" for k in range(11, 3, -1)]
    drawn = browser.run("return Array.from(document.querySelectorAll('svg.area .curve, svg.area .bar')).length")
    assert drawn > 8 * 3
    assert browser.run("return document.querySelectorAll('bdi *').length") == 0  # a name stays a name
    assert len(column(browser, 1)) == 12 * 30
    words = browser.run("return document.querySelector('#reproduce').textContent")
    assert "who < 30" in words


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_of_a_daily_job_draws_its_days_and_has_no_barrier(browser, tmp_path, width):
    log = pl.read_parquet(visits(tmp_path / "visits.parquet"))
    days = pl.Series([f"2026-03-{1 + k * 28 // log.height:02}" for k in range(log.height)])
    watched = cp.watch(log.with_columns(day=days), reward="click", propensity="propensity", target="new", day="day")
    path = watched.report(tmp_path / "watch.html")
    browser.open(path, width=width)
    assert browser.errors() == []
    assert browser.requests() == [path.resolve().as_uri()]
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.run("return document.querySelectorAll('h1').length") == 1
    drawn = "return Array.from(document.querySelectorAll('svg.area')).filter(e => e.checkVisibility()).length"
    assert browser.run(drawn) == len(watched.series)
    browser.run(OPENED)
    assert browser.violations() == []


@pytest.mark.parametrize(("paper", "ink"), [("#ffffff", "#111111"), ("#111111", "#dddddd")])
def test_cards_are_legible_on_any_paper_and_fit_a_narrow_notebook(browser, tmp_path, paper, ink):
    cards = "".join(made()[0]._repr_html_() for made in (ordinary, hostile, crowded))
    page = tmp_path / "notebook.html"
    page.write_text(
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>Notebook</title>"
        f"<meta name='viewport' content='width=device-width'><main><h1>Cards</h1>{cards}</main>"
        f"<style>body {{ background: {paper}; color: {ink}; margin: 8px }}</style></html>",
        encoding="utf-8",
    )
    for width in (1280, 390):
        browser.open(page, width=width, dark=paper == "#111111")
        assert browser.errors() == []
        assert browser.requests() == [page.resolve().as_uri()]
        assert browser.run("return document.documentElement.scrollWidth") <= width
        assert browser.violations() == []
    assert browser.run("return document.querySelectorAll('bdi *, img, script').length") == 0


def column(browser, k):
    rows = "Array.from(document.querySelectorAll('#segment-table tbody tr')).filter(row => !row.hidden)"
    script = f"return {rows}.map(row => row.cells[arguments[0]].textContent)"
    return browser.run(script, k)


def numbers(browser, k):
    return [float(text.split()[0].replace("−", "-").replace(",", "")) for text in column(browser, k)]


def test_segments_sort_by_click_and_by_keyboard(browser, reports):
    browser.open(reports["whole"])
    browser.click("#segments > summary")
    value = "#segment-table thead th:nth-child(6)"
    browser.click(f"{value} button")
    assert numbers(browser, 5) == sorted(numbers(browser, 5))
    assert browser.run(f"return document.querySelector('{value}').getAttribute('aria-sort')") == "ascending"
    for key in ("enter", "space"):
        before = column(browser, 5)
        browser.run(f"document.querySelector('{value} button').focus()")
        browser.press(key)
        assert column(browser, 5) != before
    browser.click("#segment-table thead th:nth-child(2) button")
    assert column(browser, 1) == sorted(column(browser, 1))
    assert browser.errors() == []


def test_segments_filter_by_keyboard(browser, reports):
    browser.open(reports["whole"])
    browser.click("#segments > summary")
    browser.run("document.querySelector('[data-filters] input').focus()")
    browser.type("[data-filters] input", "fr")
    assert set(column(browser, 1)) == {"FR"}
    assert browser.run("return document.querySelector('[data-filters] output').textContent") == "2 of 8 rows"


def test_tab_reaches_everything(browser, reports):
    browser.open(reports["whole"])
    browser.run(OPENED)
    wanted = browser.run("return document.querySelectorAll('a, button, input, select, summary').length")
    seen = set()
    for _ in range(wanted + 10):
        browser.press("tab")
        seen.add(
            browser.run(
                "const e = document.activeElement; return e.matches('a, button, input, select, summary') ?"
                " Array.from(document.querySelectorAll('*')).indexOf(e) : -1"
            )
        )
    assert len(seen - {-1}) == wanted


def test_the_glossary_opens(browser, reports):
    browser.open(reports["alone"])
    opened = "return Array.from(document.querySelectorAll('details[open]')).map(d => d.id)"
    assert browser.run(opened) == []
    browser.click("#weights > summary")
    browser.click("a[href='#about-pareto_k']")  # a word in a table leads to its entry, and opens what it is in
    deadline = time.monotonic() + chromium.PATIENCE  # the page hears of the click a moment later
    while browser.run(opened) != ["weights", "glossary", "about-pareto_k"]:
        assert time.monotonic() < deadline
    browser.click("#about-weight summary")
    browser.run("document.querySelector('#about-value summary').focus()")
    browser.press("enter")
    assert {"about-value", "about-weight"} <= set(browser.run(opened))


def test_colours_change_by_the_button(browser, reports):
    browser.open(reports["alone"])
    color = "return getComputedStyle(document.body).backgroundColor"
    light = browser.run(color)
    browser.click("#theme")
    assert browser.run(color) != light
    assert browser.violations() == []
    browser.click("#theme")
    assert browser.run(color) == light


def test_a_hostile_log_does_nothing(browser, reports):
    browser.open(reports["hostile"])
    assert browser.run("return document.images.length") == 0
    assert browser.run("return document.scripts.length") == 1
    assert browser.run("return document.querySelectorAll('h1').length") == 1
    assert browser.run("return document.querySelector('.title').textContent") == "<script>alert(1)</script>"
    assert browser.run("return document.title") == "<script>alert(1)</script>"
    browser.run(OPENED)
    assert '"><img src=x onerror=alert(1)>' in column(browser, 1)
    browser.click("#segment-table thead th:nth-child(2) button")
    assert browser.errors() == []


def test_an_injected_script_would_not_run(browser, reports, tmp_path):
    page = reports["alone"].read_text(encoding="utf-8")
    path = tmp_path / "injected.html"
    path.write_text(
        page.replace("<main>", "<main><script>window.harmed = true</script><img src=x onerror='window.harmed=true'>")
    )
    browser.open(path)
    assert browser.run("return window.harmed === undefined")
    assert browser.errors()  # the policy says so; and these checks do see errors


def test_barriers_would_be_found(browser, reports, tmp_path):
    path = tmp_path / "pale.html"
    path.write_text(reports["alone"].read_text(encoding="utf-8").replace("<main>", "<main><svg role='img'></svg>"))
    browser.open(path)
    assert [name for name, _ in browser.violations()] == ["svg-img-alt"]


def test_prints_on_a4(browser, reports):
    browser.open(reports["whole"], dark=True)
    printed = base64.b64decode(
        browser.devtools("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"]
    )
    assert printed.startswith(b"%PDF")
    assert b"/MediaBox [0 0 594.95996 841.91998]" in printed or b"/MediaBox [0 0 595" in printed
    assert 2 <= printed.count(b"/Type /Page\n") <= 12
