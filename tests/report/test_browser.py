"""The report in a real Chromium: it draws, sorts, filters and opens, by mouse and by keyboard, and asks the network for nothing."""

import base64
import time

import browser as chromium
import pytest
from report_logs import crowded, hostile, ordinary

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
    assert len(dots) == 2 * 3 + 2 + 2 * 4  # estimates, lifts, and the mean weights of both targets in four segments
    assert all(size > 8 for size in dots)
    unnamed = browser.run("return document.querySelectorAll('.chart:not([role=img][aria-label])').length")
    assert unnamed == 0


def test_the_best_of_many_targets_is_drawn_and_the_others_verdicts_unfold(browser, reports):
    browser.open(reports["many"])
    titles = browser.run("return Array.from(document.querySelectorAll('h3')).map(h => h.textContent)")
    assert titles == [f"Weights of <b>{k}</b>" for k in range(11, 3, -1)]
    drawn = browser.run("return Array.from(document.querySelectorAll('svg.area .curve, svg.area .bar')).length")
    assert drawn > 8 * 3
    assert browser.run("return document.querySelectorAll('bdi *').length") == 0  # a name stays a name
    shown = "return Array.from(document.querySelectorAll('.verdicts > li')).filter(e => e.checkVisibility()).length"
    assert browser.run(shown) == 8
    browser.click("header details summary")
    assert browser.run(shown) == 12
    assert len(column(browser, 1)) == 12 * 30
    words = browser.run("return document.querySelector('#reproduce').textContent")
    assert "who < 30" in words


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
    return [float(text.replace("−", "-").replace(",", "")) for text in column(browser, k)]


def test_segments_sort_by_click_and_by_keyboard(browser, reports):
    browser.open(reports["whole"])
    value = "#segment-table thead th:nth-child(4)"
    browser.click(f"{value} button")
    assert numbers(browser, 3) == sorted(numbers(browser, 3))
    assert browser.run(f"return document.querySelector('{value}').getAttribute('aria-sort')") == "ascending"
    for key in ("enter", "space"):
        before = column(browser, 3)
        browser.run(f"document.querySelector('{value} button').focus()")
        browser.press(key)
        assert column(browser, 3) != before
    browser.click("#segment-table thead th:nth-child(2) button")
    assert column(browser, 1) == sorted(column(browser, 1))
    assert browser.errors() == []


def test_segments_filter_by_keyboard(browser, reports):
    browser.open(reports["whole"])
    browser.run("document.querySelector('[data-filters] input').focus()")
    browser.type("[data-filters] input", "fr")
    assert set(column(browser, 1)) == {"FR"}
    assert browser.run("return document.querySelector('[data-filters] output').textContent") == "2 of 8 rows"


def test_tab_reaches_everything(browser, reports):
    browser.open(reports["whole"])
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
    browser.click("#about-weight summary")
    assert browser.run(opened) == ["about-weight"]
    browser.run("document.querySelector('#about-value summary').focus()")
    browser.press("enter")
    assert browser.run(opened) == ["about-value", "about-weight"]
    browser.click("a[href='#about-pareto_k']")  # a word in a table leads to its entry
    deadline = time.monotonic() + chromium.PATIENCE  # the page hears of the click a moment later
    while "about-pareto_k" not in browser.run(opened):
        assert time.monotonic() < deadline


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
    assert browser.run("return document.querySelector('h1').textContent") == "<script>alert(1)</script>"
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
