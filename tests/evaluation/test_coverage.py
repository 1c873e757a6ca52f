"""`check_coverage`: logs drawn again are summed as a log of the same rows would be, and what is reported is what was drawn."""

import json
import math

import jsonschema
import numpy as np
import polars as pl
import pytest
from command_line import degenerate, invoke, shop
from messages import refuses

import counterpoise as cp
from counterpoise.engines import resampling as unit_rows
from counterpoise.engines.resampling import drawn_again, tilted
from counterpoise.errors import CounterpoiseError, OptionError
from counterpoise.evaluation.coverage import Coverage
from counterpoise.evaluation.estimates import IntervalOptions, estimates
from counterpoise.evaluation.showing import schema
from counterpoise.evaluation.view import View

pytestmark = pytest.mark.once

ASKED = {"reward": "click", "propensity": "p", "target": "pi_new"}


class Planted:
    """Draws that are known: how often each unit comes up, and into which groups the copies fall."""

    def __init__(self, counts, groups=None):
        self.counts, self.groups = counts, groups

    def multinomial(self, total, shares, size):
        assert total == self.counts.sum()
        assert shares == pytest.approx(1 / len(shares))
        return np.tile(self.counts, (size, 1))

    def integers(self, most, size):
        return np.resize(self.groups, size)


def rows(n=300, seed=3):
    random = np.random.default_rng(seed)
    target = random.uniform(0.05, 0.9, n)
    other = random.uniform(0.05, 0.9, n)
    return pl.DataFrame(
        {"click": random.normal(7, 2, n), "p": random.uniform(0.2, 0.9, n), "pi_new": target, "pi_old": other}
    )


def units_of(result, **more):
    question, whole = result.asked(), result.moments[result.moments.targets[0]]
    center = float(whole.center + whole.average("s"))
    random = np.random.default_rng(0)
    return unit_rows.units_of(question, rows=result.n, center=center, random=random, **{"grouped": False} | more)


@pytest.mark.parametrize("interval", ["student", "normal", "anytime"])
@pytest.mark.parametrize("ask", [cp.evaluate, cp.compare], ids=["value", "difference"])
def test_a_drawn_log_is_evaluated_as_a_log_of_the_same_rows(ask, interval):
    log = rows()
    rival = {"against": "pi_old"} if ask is cp.compare else {}
    result = ask(log, **ASKED, **rival, interval=interval)
    counts = np.random.default_rng(1).multinomial(log.height, np.full(log.height, 1 / log.height))
    drawn = drawn_again(units_of(result), 1, groups=1, random=Planted(counts))
    contrast = ("pi_new", rival.get("against", ""))
    registry = {"beta_ips": result.registry["beta_ips"]}
    found = estimates(View(drawn, contrast), registry, IntervalOptions(0.95, result.interval_method))
    again = ask(log[np.repeat(np.arange(log.height), counts)], **ASKED, **rival, interval=interval)
    for expected, label in ((result, (0,)), (again, (1,))):
        one, plain = found["pi_new", "beta_ips", label], expected["pi_new", "beta_ips"]
        assert (one.value, one.stderr, *one.interval) == pytest.approx(
            (plain.value, plain.stderr, *plain.interval), rel=1e-10
        )


def test_drawn_clusters_are_evaluated_as_new_clusters_in_the_groups_that_they_fell_into():
    log = rows(40).with_columns(user=pl.int_range(pl.len()) // 4)
    counts = np.array([0, 2, 1, 1, 1, 1, 1, 1, 1, 1])
    groups = np.array([5, 1, 8, 0, 3, 9, 4, 2, 7, 6])
    result = cp.evaluate(log, **ASKED, cluster="user", groups=10, estimator="beta_ips", interval="jackknife")
    units = units_of(result)
    assert len(units) == 10
    drawn = drawn_again(units, 1, groups=10, random=Planted(counts, groups))
    stack = drawn.moments["pi_new", ""][1]
    users = np.repeat(np.arange(10), counts)
    for user, group in zip(users, groups, strict=True):
        one = log.filter(pl.col("user") == user)
        w, r = (one["pi_new"] / one["p"]).to_numpy(), one["click"].to_numpy()
        plain = cp.Moments.of(w, r, center=units.center)
        assert stack[int(group)].mean == pytest.approx(plain.mean, rel=1e-10, abs=1e-12)
        assert stack[int(group)].scatter == pytest.approx(plain.scatter, rel=1e-9, abs=1e-9)


def test_rows_that_are_equal_are_one_unit_and_those_of_a_long_log_blocks(monkeypatch):
    log = shop()
    equal = units_of(cp.evaluate(log, **ASKED))
    assert len(equal) == log.select("click", "pi_new").unique().height
    assert equal.mass.sum() == log.height
    monkeypatch.setattr(unit_rows, "MOST", 50)
    many = rows(1000)
    for result, what in (
        (cp.evaluate(many, **ASKED), "blocks of rows"),
        (cp.evaluate(many.with_columns(user=pl.int_range(pl.len()) // 2), **ASKED, cluster="user"), "clusters"),
    ):
        blocks = units_of(result)
        assert (blocks.are, 30 < len(blocks) <= 50) == (what, True)
        assert blocks.sums["n"].sum() == 1000
        u = (many["pi_new"] / many["p"] - 1).to_numpy()
        assert blocks.sums["u0"].sum() == pytest.approx(u.sum(), rel=1e-10)
        assert blocks.highest["t0_peak"].max() == pytest.approx(1 + u.max(), rel=1e-12)


def test_tilted_masses_give_weights_of_mean_1_and_as_many_rows():
    units = units_of(cp.evaluate(rows(), **ASKED))
    assert abs(float(units.mass @ units.sums["u0"])) > 1
    found = tilted(units, "u0")
    assert float(found.mass @ found.sums["u0"]) == pytest.approx(0, abs=1e-9)
    assert float(found.mass @ found.sums["n"]) == pytest.approx(300, rel=1e-12)
    ratios = np.log(found.mass / units.mass)
    slope = np.polyfit(units.sums["u0"], ratios, 1)
    assert ratios == pytest.approx(np.polyval(slope, units.sums["u0"]), abs=1e-9)


def test_a_row_that_was_not_seen_is_summed_as_a_row_whose_model_says_what_it_says_on_average():
    log = rows().with_columns(q=pl.col("click") * 0.5 + pl.col("p"), v=pl.col("pi_new") * 3)
    units = units_of(cp.evaluate(log, **ASKED, model_reward="q", model_value="v"))
    reward, weight = np.array([4.0, 9.0]), np.array([3.0, 3.0])
    whole = unit_rows.with_unseen(units, {"u0": weight - 1}, {"t0": weight}, reward, np.array([1.0, 1.0]))
    w, r = (log["pi_new"] / log["p"]).to_numpy(), log["click"].to_numpy()
    model = {
        "model_reward": np.append(log["q"], np.full(2, log["q"].mean())),
        "model_value": np.append(log["v"], np.full(2, log["v"].mean())),
    }
    plain = cp.Moments.of(np.append(w, weight), np.append(r, reward), **model, center=units.center)
    found = drawn_again(whole, 100, groups=1, random=np.random.default_rng(0)).moments["pi_new", ""][0, 0]
    assert found.n == 302
    assert found.mean == pytest.approx(plain.mean, rel=1e-10)
    assert found.scatter == pytest.approx(plain.scatter, rel=1e-9, abs=1e-9)


def test_shares_are_of_the_intervals_that_were_drawn():
    lower, upper = np.array([0.0, 2.0, -9.0, -9.0, -9.0]), np.array([2.0, 3.0, 0.5, 0.9, 0.7])
    one = Coverage("new", "beta_ips", 0.95, "normal", 1.0, lower, upper, 10.0, "rows")
    assert (one.covered, one.too_low, one.too_high, one.runs) == (0.2, 0.6, 0.2, 5)
    assert one.stderr == pytest.approx(math.sqrt(0.25 * 0.75 / 5))
    assert "20.0 % of 5 logs" in str(one)


def test_many_rows_that_carry_the_answer_make_the_interval_cover_as_promised():
    for ask, more in ((cp.evaluate, {}), (cp.evaluate, {"cluster": "user_id"}), (cp.compare, {"against": "pi_old"})):
        found = ask(shop(4000), **ASKED, **more).check_coverage(1000)["pi_new"]
        # three Monte Carlo errors, and one point for what a log of 4,000 rows may differ from its world
        assert abs(found.covered - 0.95) <= 3 * math.sqrt(0.95 * 0.05 / 1000) + 0.01
        assert found.can_tell
        assert found.drawn == ("clusters" if "cluster" in more else "rows")


def test_an_interval_that_is_too_narrow_is_found_out():
    class Narrow(cp.intervals.Normal):
        name = "narrow"

        def interval(self, evidence, level):
            return super().interval(evidence, 0.5)

    found = cp.evaluate(shop(), **ASKED, interval=Narrow()).check_coverage(1000)["pi_new"]
    assert abs(found.covered - 0.5) <= 4 * math.sqrt(0.25 / 1000)
    assert abs(found.too_low - found.too_high) <= 0.1


def test_the_same_seed_draws_the_same_logs():
    result = cp.evaluate(shop(), **ASKED)
    first, again, other = (result.check_coverage(100, seed=seed)["pi_new"] for seed in (1, 1, 2))
    assert first.lower.tolist() == again.lower.tolist() != other.lower.tolist()


def test_a_log_that_cannot_tell_says_so():
    random = np.random.default_rng(0)
    p = np.where(random.random(500) < 0.99, 0.99, 0.01)
    log = {"click": random.random(500) < 0.1, "p": p, "pi_new": 1 - p}
    found = cp.evaluate(log, **ASKED).check_coverage(100)["pi_new"]
    assert found.carrying_rows < 3
    assert not found.can_tell
    assert "cannot show" in str(found)
    alike = cp.compare(shop().with_columns(pi_new="pi_old"), **ASKED, against="pi_old").check_coverage(100)["pi_new"]
    assert (alike.carrying_rows, alike.can_tell) == (0.0, False)
    nothing = cp.evaluate({**log, "pi_new": np.zeros(500)}, **ASKED).check_coverage(100)["pi_new"]
    assert (nothing.runs, nothing.can_tell) == (0, False)
    assert "does not identify the target" in str(nothing)


def test_only_a_log_whose_rows_are_at_hand_is_checked(tmp_path):
    result = cp.evaluate(shop(), **ASKED)
    with refuses(OptionError):
        cp.evaluate(result.moments).check_coverage()
    for day in (0, 1):
        result = cp.evaluate(shop(seed=day), **ASKED, state=tmp_path / "state", batch=str(day))
    with refuses(OptionError):
        result.check_coverage()
    for runs in (99, 1.5, True):
        with refuses(OptionError):
            cp.evaluate(shop(), **ASKED).check_coverage(runs)
    with refuses(OptionError):
        cp.evaluate(shop(), **ASKED).check_coverage(100, estimator="bees")


@pytest.mark.parametrize("seed", range(30))
def test_no_log_is_too_odd_to_be_checked(seed):
    log, options = degenerate(seed)
    more = {name.removeprefix("--"): value for name, value in zip(options[::2], options[1::2], strict=True)}
    more |= {"reward": "reward", "propensity": "propensity", "target": ["pi_a", "pi_b"]}
    try:
        result = cp.evaluate(log, **more)
    except CounterpoiseError:
        return
    for one in result.check_coverage(100).values():
        assert not one.runs or 0 <= one.covered <= 1


def test_other_estimators_rewards_and_targets_are_checked():
    log = shop().with_columns(
        spent=pl.col("click") * 3,
        q=pl.when(pl.col("pi_new") > 0.5).then(0.28).otherwise(0.12),
        v=0.9 * 0.28 + 0.1 * 0.12,
    )
    several = cp.evaluate(log, **ASKED | {"reward": ["click", "spent"], "target": ["pi_new", "pi_old"]})
    assert list(several.of("spent").check_coverage(100)) == ["pi_new", "pi_old"]
    assert list(several.check_coverage(100, target="pi_old")) == ["pi_old"]
    model = cp.evaluate(log, **ASKED, model_reward="q", model_value="v", groups=10)
    for name in ("dr", "optimal_dr", "cross_fit", "snips", "lift"):
        found = model.check_coverage(400, estimator=name)["pi_new"]
        assert abs(found.covered - 0.95) <= 4 * math.sqrt(0.95 * 0.05 / 400) + 0.01, name


def test_the_command_line_says_it_and_the_json_keeps_to_its_schema(tmp_path):
    path = tmp_path / "log.parquet"
    shop().write_parquet(path)
    asked = [path, "--target", "pi_new", "--check-coverage", "--coverage-runs", 200]
    expected = cp.evaluate(shop(), **ASKED).check_coverage(200)["pi_new"]
    assert str(expected) in invoke("evaluate", *asked).stdout
    document = json.loads(invoke("evaluate", *asked, "--json").stdout)
    jsonschema.validate(document, schema())
    (one,) = document["coverage"]
    assert (one["covered"], one["too_low"], one["runs"]) == (expected.covered, expected.too_low, 200)
    assert "coverage" not in json.loads(invoke("evaluate", *asked[:3], "--json").stdout)
    difference = cp.compare(shop(), **ASKED).check_coverage(200)["pi_new"]
    assert json.loads(invoke("compare", *asked, "--json").stdout)["coverage"][0]["covered"] == difference.covered
    assert str(difference) in invoke("compare", *asked).stdout


def test_the_report_has_a_section_on_it_and_a_picture(tmp_path):
    result = cp.evaluate(shop(), **ASKED)
    check = result.check_coverage(200)
    page = result.report(tmp_path / "report.html", coverage=check).read_text(encoding="utf-8")
    assert str(check["pi_new"]) in page
    missed = np.sum(
        (check["pi_new"].lower[:100] > check["pi_new"].truth) | (check["pi_new"].upper[:100] < check["pi_new"].truth)
    )
    assert page.count('class="missed"') == missed > 0
    assert page.count('class="held"') == 100 - missed
    assert 'id="coverage"' not in result.report(tmp_path / "plain.html").read_text(encoding="utf-8")
    with refuses(OptionError):
        result.report(tmp_path / "wrong.html", coverage="check")


def test_the_plot_shows_the_first_hundred_intervals():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    check = cp.evaluate(shop(), **ASKED).check_coverage(200)
    axes = check.plot()
    assert sum(len(lines.get_segments()) for lines in axes.collections) == 100
    assert f"{100 * check['pi_new'].covered:.1f} % of 200" in axes.get_title(loc="left") + axes.get_title()
    pyplot.close(axes.figure)
    with refuses(OptionError):
        check.plot("pi_old")
