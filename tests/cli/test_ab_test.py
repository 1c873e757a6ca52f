"""`counterpoise ab-test`: the table, the JSON and the page say what the verb says."""

import json
import re
from html import unescape

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import counterpoise as cp
from counterpoise.cli import app
from counterpoise.display import number, percent_change


@pytest.fixture
def log(tmp_path):
    random = np.random.default_rng(0)
    arm = np.where(random.random(800) < 0.5, "<b>new</b>", "old")
    rows = {
        "arm": arm,
        "click": (random.random(800) < 0.3) * 1,
        "x": random.normal(size=800),
        "p": random.uniform(0.2, 1, 800),
    }
    path = tmp_path / "log.parquet"
    pl.DataFrame(rows).write_parquet(path)
    return path


def run(log, *options):
    done = CliRunner().invoke(app, ["ab-test", str(log), *options])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_json_and_page(log, tmp_path):
    shares = ["--shares", "<b>new</b>=1", "--shares", "old=3"]
    pooled = ["--propensity", "<b>new</b>=p", "--propensity", "old=0.5 * p"]
    options = ["--against", "old", "--baseline", "x", *shares, *pooled, "--html", str(tmp_path / "page.html")]
    document = json.loads(run(log, *options, "--json"))
    columns = {"<b>new</b>": "p", "old": "0.5 * p"}
    found = cp.ab_test(str(log), arm="arm", against="old", reward="click", baseline=["x"], propensity=columns)
    assert [one["difference"] for one in document["effects"]] == pytest.approx([one.value for one in found.effects])
    assert document["sample_ratio"]["is_mismatch"]
    page = (tmp_path / "page.html").read_text()
    assert "<b>new</b>" not in page
    assert "&lt;b&gt;new&lt;/b&gt;" in page
    assert "MISMATCH" in page
    assert "carry over" in page


def test_the_page_has_both_means_the_change_the_decision_and_how_to_make_it_again(log, tmp_path):
    page = tmp_path / "page.html"
    run(log, "--against", "old", "--html", str(page), "--unit", "visit", "--title", "March")
    whole = page.read_text(encoding="utf-8").partition("</style>")[2]
    words = unescape(re.sub(r"<[^>]+>", "", whole)).replace("\N{NO-BREAK SPACE}", " ")
    found = cp.ab_test(str(log), arm="arm", against="old", reward="click")
    for arm in found.arms:
        assert number(100 * arm.mean, 100 * arm.stderr) in words
    share = found.relative("<b>new</b>")
    assert percent_change(share.value, share.stderr).replace("\N{NO-BREAK SPACE}", " ") in words
    assert "click per visit, <b>new</b> against old · log.parquet · 800 visits" in words
    assert "Not decided." in words
    assert "March" in words
    assert "How to reproduce this" in words
    assert not re.search(r"\brows?\b", words.split("How to reproduce this")[0].split("What this rests on")[0])


def test_a_title_without_a_page_is_refused_and_a_unit_is_not(log):
    done = CliRunner().invoke(app, ["ab-test", str(log), "--title", "March"])
    assert done.exit_code == 2
    printed = run(log, "--against", "old", "--unit", "visit")
    assert " per visit against old" in printed
    assert "800 visits" in printed
    assert not re.search(r"\brows?\b", printed)
    assert json.loads(run(log, "--unit", "visit", "--json"))["unit"] == "visit"


def test_text(log):
    text = run(log, "--against", "old")
    assert "difference in means" in text
    assert "not tested" in text


def test_options_that_are_no_pairs_are_refused(log):
    for options in (["--shares", "half"], ["--shares", "old=half"]):
        done = CliRunner().invoke(app, ["ab-test", str(log), *options])
        assert done.exit_code == 2
