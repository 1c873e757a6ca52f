"""The report says the result's numbers, says them harmlessly whatever the log holds, and is written whole or not at all."""

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from html import unescape
from html.parser import HTMLParser

import numpy as np
import polars as pl
import pytest
from messages import refuses
from report_logs import HOSTILE, hostile, ordinary, partial, visits
from typer.testing import CliRunner

import counterpoise as cp
from counterpoise.cli import app
from counterpoise.diagnostics import Diagnostics
from counterpoise.display import percent_change
from counterpoise.estimators import ESTIMATORS
from counterpoise.evaluation import wording
from counterpoise.evaluation.reading import read
from counterpoise.intervals import INTERVALS
from counterpoise.report import render, write_report
from counterpoise.report.glossary import ESTIMATOR_WORDS, GLOSSARY
from counterpoise.report.markup import el, join, name_of, phrase
from counterpoise.report.page import fingerprint
from counterpoise.report.weights import profile

VOID = {"meta", "link", "input", "br", "path", "line", "rect", "circle"}
TAGS = """
html head meta link title style body a div h1 h2 h3 button p b i small bdi span ul ol li main footer time script br
table caption thead tbody tfoot tr th td svg path line circle text figure figcaption
label input select option output details summary dl dt dd code pre
"""


def is_claimed(result):
    """Whether people read that the best target beats what it is compared with."""
    return ". Better than " in str(wording.sentence(read(result)))


class Page(HTMLParser):
    """Every tag closed in order, and what the page is made of."""

    def __init__(self, page):
        super().__init__()
        self.stack, self.tags, self.attributes, self.words, self.ids = [], [], [], [], []
        self.feed(page)
        self.close()
        assert not self.stack, self.stack

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        assert len({name for name, _ in attrs}) == len(attrs)
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag in VOID
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


PAGES = {
    "ordinary": lambda: render(ordinary()[0]),
    "result alone": lambda: render(ordinary()[0], rows=False),
    "hostile": lambda: render(hostile()[0], command=" ".join(HOSTILE), title=HOSTILE[0]),
    "comparison": lambda: render(
        cp.compare(ordinary()[1], reward="click", propensity="propensity", target="new", against="bold")
    ),
    "several rewards": lambda: render(several_rewards()),
}


def several_rewards(ask=cp.evaluate):
    """Two rewards, one of which is missing in some rows and has a name that tries to do harm."""
    log = ordinary()[1]
    log[HOSTILE[0]] = np.where(np.arange(4000) % 5 == 0, np.nan, 3 * log["click"] + log["new"])
    asked = {"propensity": "propensity", "target": ["new", "bold"], "segment": "country", "drop_bad_rows": True}
    return ask(log, reward=["click", HOSTILE[0]], **asked)


@pytest.fixture(scope="module", params=PAGES)
def page(request):
    return PAGES[request.param]()


def test_is_well_formed_and_made_of_known_tags_only(page):
    found = Page(page)
    assert set(found.tags) <= set(TAGS.split())
    assert len(set(found.ids)) == len(found.ids)
    assert found.tags.count("script") == 1
    assert found.tags.count("h1") == 1


def test_asks_the_network_for_nothing(page):
    found = Page(page)
    for tag, name, value in found.attributes:
        assert name not in ("src", "srcset", "action", "style", "background"), (tag, value)
        assert not name.startswith("on"), (tag, value)
        if name == "href":
            assert value.startswith("#") or value == "data:,"
            assert not value.startswith("#") or value[1:] in found.ids  # every link leads somewhere
    style = re.search(r"<style>(.*?)</style>", page, flags=re.S)[1]
    assert "url(" not in style
    assert "@import" not in style
    assert "default-src 'none'" in page
    assert "unsafe" not in page.split("<style>")[0]


def test_is_small(page):
    assert len(page.encode("utf-8")) < 300_000


def test_hostile_names_are_shown_as_they_are():
    result, _ = hostile()
    page = render(result, command="\n".join(HOSTILE), title=HOSTILE[0])
    words = "".join(Page(page).words)
    for text in HOSTILE:
        if text.isprintable() and len(text) < 120:
            assert text in words
    assert "x" * 119 + "…" in words
    assert "nul␀ bell␇ line␊break" in words
    assert "�" in words or "? half a pair" in words


@pytest.mark.once
def test_many_long_segments_stay_below_five_megabytes():
    rows = 6_000
    random = np.random.default_rng(3)
    log = {"reward": random.random(rows), "propensity": np.full(rows, 0.5), "new": random.choice([0.2, 0.8], rows)}
    log["who"] = np.array([f"{k % 1500}" + '"' * 300 for k in range(rows)], dtype=object)
    page = render(
        cp.evaluate(log, reward="reward", propensity="propensity", target="new", segment="who", max_segments=1500)
    )
    assert len(page.encode()) < 5_000_000
    assert "Of 1,500 segments, only the 1,000 with the most rows are shown here" in page


def bare(page):
    """The words of some HTML."""
    return " ".join(unescape(re.sub(r"<[^>]+>", "", page)).replace("\N{NO-BREAK SPACE}", " ").split())


def part(page, pattern):
    """The words of what a pattern finds first."""
    return bare(re.search(pattern, page, flags=re.S)[1])


def test_the_first_screen_says_the_same():
    result, _ = ordinary()
    page, reading = render(result, unit="visit"), read(result.with_unit("visit"))
    best = reading.best
    size, low, high = (percent_change(x, best.relative.stderr) for x in (best.relative.value, *best.relative.interval))
    ends = reading.logged_digits, (best.value.value, best.value.stderr)
    ran, value = (wording.amount(reading, *end) for end in ends)
    said = f"new, the best of 2: {size} click ({low[:-2]} to {high}), from {ran} to {value} per 100 visits. Better than the logging policy"
    assert part(page, "<h1.*?>(.*?)</h1>") == bare(f"{said}. Verdict: ok.")
    assert part(page, '<span class="change better">(.*?)</span>') == bare(f"{size} click")  # which is set large
    assert part(page, "<figcaption>(.*?)</figcaption>").endswith(", best first, with 95 % intervals, for both at once")
    assert part(page, '<p class="asked">(.*?)</p>') == bare(str(wording.asked(reading)))
    cards = [bare(card) for card in re.findall('<div class="card">(.*?)</div>', page, flags=re.S)]
    assert cards[0].startswith("Decision▲ Better than the logging policy.")
    assert cards[1].startswith("Verdict✓ ok No problems found")
    assert all(bare(step) in cards[2] for step in wording.next_steps(reading))
    assert part(page, 'name="description" content="(.*?)"') == bare(
        str(wording.sentence(reading))
    )  # what links to it show
    assert part(page, "<title>(.*?)</title>") == bare(f"Click {size}: new")


def test_a_title_of_ones_own_stands_above_the_answer():
    page = render(ordinary()[0], title="March", rows=False)
    assert part(page, "<title>(.*?)</title>") == part(page, '<p class="title">(.*?)</p>') == "March"
    assert "<h1" in page
    with refuses(cp.OptionError):
        render(ordinary()[0], unit=" ")


def test_a_policy_that_loses_is_trusted_and_not_called_fine(tmp_path):
    result = cp.evaluate(visits(tmp_path / "log.parquet"), reward="click", propensity="propensity", target="bad")
    assert result.verdict().verdict == "ok"
    page = render(result)
    assert 'class="change worse"' in page
    assert "▼ Worse than the logging policy." in bare(page)
    assert page.count("✓ ok") == 2  # once on the first screen, once in the checks
    assert part(page, '<p class="asked">(.*?)</p>').endswith("log.parquet · 20,000 rows · 1–14 March 2026")


def test_bounds_and_what_is_missing_lead(tmp_path):
    result = partial(tmp_path / "log.parquet")
    page, best = render(result, unit="visit"), read(result).best
    low, high = (percent_change(end, (best.relative.interval.width) / 10) for end in best.relative.interval)
    assert part(page, "<h1.*?>(.*?)</h1>").startswith(
        bare(f"trains: between {low} and {high} sale. 20 % of its choices are")
    )
    assert "all of them where country is DE" in part(page, "<h1.*?>(.*?)</h1>")
    assert part(page, '<p class="words">(.*?)</p>').startswith("What it earns elsewhere: +")
    assert 'class="interval bounds"' in page


def test_a_log_without_overlap_gets_no_number():
    result = cp.evaluate(reward=[1, 0, 1], propensity=[0.5, 0.5, 0.5], target=[0.0, 0.0, 0.0])
    page = render(result)
    assert (
        part(page, "<h1.*?>(.*?)</h1>") == "This log of 3 rows cannot tell how target compares with the logging policy."
    )
    assert "not identified" in page
    assert "<svg" not in page  # there is nothing to draw


def test_a_model_alone_decides_nothing_and_a_rival_is_named(tmp_path):
    log = pl.read_parquet(visits(tmp_path / "log.parquet")).with_columns(q=pl.lit(0.06), v=pl.lit(0.09))
    asked = {"reward": "click", "propensity": "propensity"}
    alone = cp.evaluate(log, **asked, target="new", model_reward="q", model_value="v", estimator=["dm"])
    words = bare(render(alone))
    assert "Not decided. There is no interval of its difference from the logging policy." in words
    assert "model only The number comes from a reward model alone" in words
    page = render(cp.compare(log, **asked, target="new", against="bad"))
    assert part(page, "<title>(.*?)</title>").endswith(": new against bad")
    assert "Better than bad." in bare(page)


@pytest.mark.parametrize("columns", [{"day": "date"}, {"at": "datetime"}, {"a": "date", "b": "date"}, {}], ids=str)
def test_dates_are_those_of_the_only_column_of_dates(columns):
    days = pl.datetime_range(datetime(2025, 12, 30), datetime(2026, 1, 3), "1d", eager=True)
    log = pl.DataFrame({"r": [1.0, 0.0, 1.0, 0.0, 1.0], "p": [0.5] * 5, "t": [0.5] * 5})
    log = log.with_columns(**{name: days.dt.date() if kind == "date" else days for name, kind in columns.items()})
    page = render(cp.evaluate(log, reward="r", propensity="p", target="t"))
    said = part(page, '<p class="asked">(.*?)</p>')
    assert ("30 December 2025 – 3 January 2026" in said) == (len(columns) == 1)
    assert "December" not in render(cp.evaluate(log, reward="r", propensity="p", target="t"), rows=False)


def test_dates_are_in_order_and_other_segments_from_least_to_most():
    _, log = ordinary()
    log["day"] = np.array(["2026-03-02", "2026-03-10", "2026-03-01"])[np.arange(4000) % 3]
    for column, order in (("day", sorted(set(log["day"]))), ("country", None)):
        result = cp.evaluate(log, reward="click", propensity="propensity", target="new", segment=column)
        table = re.search('<table class="segments.*?</table>', render(result), flags=re.S)[0]
        shown = re.findall(r'<th scope="row"><bdi>(.*?)</bdi>', table)
        assert shown == (order or [change.where for change in read(result).segments()])
        rows = dict(zip(shown, re.findall(r'<td class="number" data-value="(\d+)">', table), strict=False))
        assert {where: int(n) for where, n in rows.items()} == {w: int((log[column] == w).sum()) for w in shown}


def test_a_target_that_is_not_identified_does_not_win():
    log = {"r": [1.0, 0.0] * 500, "p": [0.5] * 1000, "good": [0.5] * 1000, "poor": [0.01] * 1000}
    assert read(cp.evaluate(log, reward="r", propensity="p", target=["poor", "good"])).best_target == "good"


@pytest.mark.thorough
@pytest.mark.once
def test_the_best_of_many_equal_targets_is_rarely_called_better():
    """Ten targets as good as the logging policy, at level 0.8: the best one is called better in at most 1 log of 5.

    One interval of a single target leaves 0 below itself in 1 log of 10, so that without a correction the best of ten would be called
    better in 1 − 0.9¹⁰ = 0.65 of the logs.
    """
    random, logs, n, level = np.random.default_rng(2), 60, 300, 0.8
    targets = [f"pi_{k}" for k in range(10)]
    claimed = {"compare": 0, "evaluate": 0, "lift": 0}
    for _ in range(logs):
        log = {"r": random.normal(size=n), "p": np.full(n, 0.5)} | {t: random.choice([0.1, 0.9], n) for t in targets}
        asked = {"reward": "r", "propensity": "p", "target": targets, "level": level}
        claimed["compare"] += is_claimed(cp.compare(log, **asked))
        values = cp.evaluate(log, **asked, estimator="beta_ips")
        claimed["evaluate"] += is_claimed(values)
        lifts = cp.evaluate(values.moments, estimator="lift", level=level)
        claimed["lift"] += is_claimed(lifts)
    error = math.sqrt(level * (1 - level) / logs)
    for name, count in claimed.items():
        assert count / logs < 1 - level + 3 * error, name


def test_a_difference_that_is_there_is_still_shown_among_many_targets():
    random, n = np.random.default_rng(3), 2000
    log = {"r": random.integers(0, 2, n).astype(float), "p": np.full(n, 0.5)}
    log |= {f"pi_{k}": np.full(n, 0.5) for k in range(9)} | {"good": np.where(log["r"] == 1, 0.6, 0.4)}
    asked = {"reward": "r", "propensity": "p", "target": [name for name in log if name not in "rp"]}
    assert is_claimed(cp.compare(log, **asked))
    assert is_claimed(cp.evaluate(log, **asked))


@pytest.mark.once
@pytest.mark.parametrize("method", ["normal", "jackknife", "anytime", "bernstein"])
@pytest.mark.parametrize("rewards", [[0.0] * 8, [1.0] * 8, [0, 1, 0, 1, 1, 0, 0, 1], [-1e6, 1e6] * 4, [1e-9] * 8])
def test_degenerate_logs_have_reports(method, rewards):
    log = {"r": rewards, "p": [0.5, 0.25] * 4, "t": [0.5, 0.25, 0.9, 0.1] * 2, "s": ["a", None] * 4}
    interval = cp.intervals.Bernstein((-1e6, 1e6), max_weight=4.0) if method == "bernstein" else method
    result = cp.evaluate(log, reward="r", propensity="p", target="t", segment="s", interval=interval)
    page = render(result)
    Page(page)
    assert not re.search(r"\b(nan|inf|None)\b", " ".join(Page(page).words[:-3]))


def test_every_number_has_its_words():
    assert set(ESTIMATOR_WORDS) == set(ESTIMATORS)
    assert all(method.about for method in INTERVALS.values())
    shown = {
        "n",
        "effective_sample_size",
        "mean_weight",
        "mean_weight_p",
        "max_weight",
        "top_share",
        "pareto_k",
        "zero_weight_share",
    }
    assert shown <= set(GLOSSARY)
    assert shown <= set(Diagnostics.__dataclass_fields__)


def test_convergence_ends_at_the_estimate_in_every_kind_of_frame():
    result, log = ordinary()
    arrays = {name: column for name, column in log.items() if name != "country"}
    for frame in (arrays, pl.DataFrame(arrays), pl.LazyFrame(arrays), pl.DataFrame(arrays).to_pandas()):
        asked = cp.evaluate(frame, reward="click", propensity="propensity", target=["new", "bold"]).asked()
        found = profile(asked, result.targets, rows=result.n, level=0.95)
        for target in result.targets:
            last = found[target].steps[-1]
            assert last.n == result.n
            assert math.isclose(last.value, result[target, "beta_ips"].value, rel_tol=1e-12)
            assert found[target].counts.sum() == result.n


def test_bad_rows_are_passed_over_and_said():
    result, log = ordinary(400)
    worse = {name: np.append(log[name], [np.nan, 0.5]) for name in ("click", "new", "bold")}
    worse["propensity"] = np.append(log["propensity"], [0.5, 0.0])
    asked = replace(result.asked(), log=result.asked().log.of(worse))
    found = profile(asked, result.targets, rows=402, level=0.95)
    assert found["new"].steps[-1].n == 400
    half = replace(asked, log=asked.log.of({name: column[:200] for name, column in log.items()}))
    assert "has 200 usable rows, but the estimates rest on 400" in render(replace(result, question=half))


def test_the_fingerprint_knows_the_rows_and_not_their_order():
    _, log = ordinary(500)
    turned = {name: column[::-1] for name, column in log.items()}
    other = log | {"click": 1 - log["click"]}
    codes = [
        fingerprint(cp.evaluate(one, reward="click", propensity="propensity", target="new"))
        for one in (log, turned, other)
    ]
    assert codes[0] == codes[1] != codes[2]


def test_the_fingerprint_knows_the_segments_and_their_rows():
    _, log = ordinary(500)
    turned = {name: column[::-1] for name, column in log.items()}
    renamed = log | {"country": np.where(log["country"] == "DE", "AT", log["country"])}
    moved = log | {"country": log["country"][::-1]}
    codes = [
        fingerprint(cp.evaluate(one, reward="click", propensity="propensity", target="new", segment="country"))
        for one in (log, turned, renamed, moved)
    ]
    assert codes[0] == codes[1]
    assert len(set(codes)) == 3


def folds_of(page):
    """What every fold begins with, by its address."""
    return dict(re.findall(r'<details id="([\w-]+)" class="fold"><summary>(.*?)</summary>', page, re.DOTALL))


@pytest.mark.once
@pytest.mark.parametrize("ask", [cp.evaluate, cp.compare])
def test_a_report_about_several_rewards_has_a_first_screen_for_each(ask):
    result = several_rewards(ask)
    page = render(result)
    found = Page(page)
    assert len(set(found.ids)) == len(found.ids)
    links = {value[1:] for _, name, value in found.attributes if name == "href" and value.startswith("#")}
    assert links <= set(found.ids)
    whole = folds_of(page)
    for place, (reward, one) in enumerate(result.by_reward.items()):
        alone = folds_of(render(replace(one, others={})))
        end = "" if place == 0 else "-2"
        about = [key for key in alone if key not in ("propensities", "glossary", "reproduce")]
        assert {"estimates", "segments", "weights", "convergence", "checks"} <= set(about)
        for key in about:
            assert bare(whole[key + end]) == bare(alone[key])  # its answer, too
        reading = read(one)
        assert join([el("p", phrase(wording.asked(reading)), class_="asked")]) in page
        assert f"{name_of(reward)}: {one.n:,}" in page
        assert fingerprint(one) in page
    assert bare(whole["reward-2"]).startswith(f"Reward: {HOSTILE[0]}")
    assert len(re.findall('class="answer', page)) == 2
    assert result.n == 4000 > result.of(HOSTILE[0]).n
    assert "Reward: " not in render(ordinary()[0])


@pytest.mark.once
def test_the_demonstration_has_a_report(tmp_path):
    path = tmp_path / "report.html"
    subprocess.run([sys.executable, "-m", "counterpoise.demo", str(path)], check=True, capture_output=True)
    page = path.read_text(encoding="utf-8")
    Page(page)
    assert all(
        f'id="{name}"' in page for name in ("estimates", "checks", "segments", "weights", "convergence", "glossary")
    )


def test_refusals_say_what_to_do(tmp_path):
    result, _ = ordinary(200)
    with refuses(cp.OptionError):
        write_report(result, tmp_path)
    with refuses(cp.OptionError):
        write_report(result, tmp_path / "no" / "report.html")
    with refuses(cp.OptionError):
        write_report("result", tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_the_old_report(tmp_path, monkeypatch):
    result, _ = ordinary(200)
    path = tmp_path / "report.html"
    path.write_text("old")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_report(result, path)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("report.html", "old")]


def test_parts_of_the_log_with_wrong_propensities_are_shown():
    g = np.random.default_rng(0)
    n, logged, wanted = 20_000, np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    action, country = g.choice(3, n, p=logged), g.choice(["de", "fr", "<b>it"], n)
    wrong = np.where((country == "fr") & (action == 1), 0.7, 1.0)
    log = {
        "r": g.random(n) < 0.1,
        "p": logged[action] * wrong,
        "pi": wanted[action],
        "item": action,
        "country": country,
    }
    named = {"reward": "r", "propensity": "p", "action": "item", "segment": "country"}
    page = render(cp.evaluate(log, **named, target={"p": "pi * 1.0"}))  # a target may be called like a column
    assert "2 alarms in 6 parts of the log" in page
    assert page.count("too large, p &lt; 1e-12") == 2
    assert "country</bdi> <bdi>fr</bdi>, under <bdi>p</bdi>" in page
    right = render(cp.evaluate(log | {"p": logged[action]}, **named, target="pi"))
    assert "no alarm in 6 parts of the log" in right
    assert 'id="propensities"' not in render(cp.evaluate(log, reward="r", propensity="p", target="pi"))


def in_terminal(typed, log, *options):
    """What a command prints, to a pipe."""
    done = CliRunner().invoke(app, ["evaluate", str(log), *typed, *options])
    assert done.exit_code == 0, done.stderr
    return done.stdout


ASKED = {
    "one target": ["--target", "new"],
    "a policy that loses": ["--target", "bad"],
    "two targets": ["--target", "new", "--target", "bad", "--segment", "country"],
    "nothing known": ["--target", "never=0 * new"],
    "some of it missing": ["--target-action", "trains=wanted", "--action", "action", "--context", "country"],
}


@pytest.mark.parametrize("name", ASKED)
def test_the_first_sentence_is_the_same_wherever_people_read_it(name, tmp_path):
    """Word for word: printed in Python, on a notebook's card, on the page as it opens, in a terminal and in JSON."""
    log, parts = tmp_path / "log.parquet", {"reward": "click", "propensity": "propensity"}
    if name == "some of it missing":
        result, parts = partial(log), {"reward": "sale", "propensity": "p"}
    else:
        visits(log)
        targets = [text.partition("=")[::2] for text in ASKED[name] if text not in ("--target", "--segment", "country")]
        result = cp.evaluate(log, **parts, target={target: source or target for target, source in targets})
    result = result.with_unit("visit")
    said, known = bare(str(wording.sentence(read(result)))), wording.known_part(read(result))
    assert str(result).splitlines()[2] == said
    assert part(result._repr_html_(), r"<p[^>]*>.*?</p><p[^>]*>(.*?)</p>") == said
    page = result.report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert part(page, "<h1.*?>(.*?)</h1>") == said
    typed = [*ASKED[name], *(word for part in parts.items() for word in (f"--{part[0]}", part[1])), "--unit", "visit"]
    printed = in_terminal(typed, log)
    assert printed.splitlines()[2] == said
    document = json.loads(in_terminal(typed, log, "--json"))
    assert (document["answer"], document["unit"]) == (said, "visit")
    if name == "some of it missing":
        assert known is not None
        for shown in (str(result), bare(result._repr_html_()), bare(page), printed, document["known_part"]):
            assert bare(str(known)) in shown
        assert bare(" ".join(wording.next_steps(read(result)))) in bare(page)
    else:
        assert known is None
        assert document["known_part"] is None
