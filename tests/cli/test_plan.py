"""`counterpoise plan`: the rows it asks for are the rows it takes, by simulation."""

import json
import math

import numpy as np
import polars as pl
import pytest
from command_line import invoke, shop
from messages import refuses
from scipy import stats

import counterpoise as cp
from counterpoise.evaluation.plan import SHARES, plan

NAMES = {"reward": "click", "propensity": "p", "target": "pi_new"}
TRUTH = 0.08  # how much more pi_new earns than the coin


def biased(n, seed, share=0.0):
    """Two banners; the logging policy shows the first in 9 of 10 rows, but for a share of uniform; pi_old is what it was."""
    random = np.random.default_rng(seed)
    taste = random.integers(0, 2, n)
    first = 0.9 * (1 - share) + share / 2
    shown = (random.random(n) > first).astype(int)
    return pl.DataFrame(
        {
            "click": (random.random(n) < np.where(shown == taste, 0.5, 0.1)).astype(float) + 3.0,
            "p": np.where(shown == 0, first, 1 - first),
            "pi_new": np.where(shown == taste, 0.9, 0.1),
            "pi_old": np.where(shown == 0, 0.9, 0.1),
        }
    )


def test_an_interval_of_the_rows_asked_for_has_the_width_asked_for():
    needs = plan(shop(20_000), **NAMES, difference=0.02).needs
    for rows, name in ((needs.value_rows, "beta_ips"), (needs.difference_rows, "lift")):
        interval = cp.evaluate(shop(int(rows), seed=5), **NAMES)["pi_new", name].interval
        # standard errors of a few thousand rows are known to a few per cent
        assert interval.width / 2 == pytest.approx(0.02, rel=0.08)


@pytest.mark.thorough
@pytest.mark.once
def test_the_power_is_the_power_asked_for():
    rows = int(plan(shop(20_000), **NAMES, difference=TRUTH, power=0.8).needs.power_rows)
    logs = 400
    seen = sum(cp.evaluate(shop(rows, seed), **NAMES)["pi_new", "lift"].interval.lower > 0 for seed in range(logs))
    # Monte Carlo error, and the log's own error of the variance (a few per cent of the rows, so of the power)
    assert seen / logs == pytest.approx(0.8, abs=3 * math.sqrt(0.8 * 0.2 / logs) + 0.02)


def rare(n, seed=0, base=0.05, better=0.3):
    """A treatment that 2 % of the rows got and half of them would get; a row's lift is 0.12 if 30 % click instead of 5 %."""
    random = np.random.default_rng(seed)
    treated = random.random(n) < 0.02
    return {
        "reward": (random.random(n) < np.where(treated, better, base)).astype(float),
        "propensity": np.where(treated, 0.02, 0.98),
        "target": np.full(n, 0.5),
    }


@pytest.mark.thorough
@pytest.mark.once
def test_the_power_is_the_power_asked_for_where_few_rows_carry_the_answer():
    """The normal interval would need 1,200 rows, at which Student's shows the difference in 28 % of logs."""
    rows = int(plan(**rare(200_000, seed=9), difference=0.12).needs.power_rows)
    logs = 300
    seen = sum(
        cp.evaluate(**rare(rows, seed), estimator="lift")["target", "lift"].interval.lower > 0 for seed in range(logs)
    )
    assert 0.75 - 3 * math.sqrt(0.8 * 0.2 / logs) < seen / logs < 0.87 + 3 * math.sqrt(0.8 * 0.2 / logs)


@pytest.mark.parametrize("interval", ["student", "normal", "jackknife", "anytime"])
def test_a_plan_is_made_with_the_interval_that_will_be_used(interval):
    """On the log's own rows the interval has a width; asked for that width, the plan answers with the log's rows."""
    log = rare(4000)
    groups = {"groups": 100} if interval == "jackknife" else {}
    found = cp.evaluate(**log, interval=interval, **groups, estimator=["beta_ips", "lift"])
    if interval == "anytime":  # too few rows carry this log's answer for any
        assert found["target", "lift"].interval.width == math.inf
        assert 4000 < plan(**log, difference=0.1, interval=interval).needs.difference_rows < math.inf
        return
    for name, rows in (("beta_ips", "value_rows"), ("lift", "difference_rows")):
        half = found["target", name].interval.width / 2
        needs = plan(**log, difference=half * (1 + 1e-9), interval=interval, **groups).needs
        assert getattr(needs, rows) == 4000


def test_a_method_that_is_not_for_differences_is_refused():
    with refuses(cp.OptionError):
        plan(**rare(100), difference=0.1, interval="log_smoothing")


def test_the_plan_says_from_how_many_rows_on_the_verdict_is_ok(tmp_path):
    log = rare(3000)
    found = plan(**log, difference=0.12)
    assert found.verdict.verdict == "caution"
    assert found.needs.power_rows < found.ok_rows < math.inf
    verdicts = [cp.evaluate(**rare(int(times * found.ok_rows), seed=4)).verdict().verdict for times in (0.5, 2.0)]
    assert verdicts == ["caution", "ok"]
    pl.DataFrame(log).write_parquet(tmp_path / "log.parquet")
    said = invoke("plan", tmp_path / "log.parquet", "--target", "target", "--difference", "0.12")
    assert f"ok from about {found.ok_rows:,.0f} rows on" in " ".join(said.stdout.split())
    enough = invoke("plan", tmp_path / "log.parquet", "--target", "target", "--difference", "0.01")
    assert "expect the verdict ok" in " ".join(enough.stdout.split())
    # and never where more of the same rows change nothing
    doubled = {name: np.concatenate([column, column]) for name, column in log.items()} | {"key": np.arange(6000) % 3000}
    assert plan(**doubled, difference=0.12).ok_rows == math.inf


def test_exploring_needs_the_rows_that_a_log_of_an_exploring_policy_says():
    found = plan(biased(60_000, seed=1), **NAMES, difference=0.01, actions=2)
    assert [one.share for one in found.exploration] == list(SHARES)
    for one in found.exploration[1:]:
        log = biased(60_000, seed=2, share=one.share)
        value = plan(log, **NAMES, difference=0.01).needs.value_rows
        change = cp.compare(log, **NAMES, against="pi_old")
        rows = (1.96 * change.stderr * math.sqrt(change.n) / 0.01) ** 2
        assert one.needs.value_rows == pytest.approx(value, rel=0.06)
        assert one.needs.difference_rows == pytest.approx(rows, rel=0.06)
        lost = biased(60_000, seed=3)["click"].mean() - log["click"].mean()
        assert one.cost == pytest.approx(lost, abs=0.012)  # two means of 60,000 rows, 3 errors of 0.0027 and more
    rows = [one.needs.value_rows for one in found.exploration]
    assert found.needs.value_rows > rows[0] > rows[1] > rows[2] > rows[3]


def test_twice_the_precision_takes_four_times_the_rows():
    coarse, fine = (plan(shop(), **NAMES, difference=d, interval="normal").needs for d in (0.02, 0.01))
    assert fine.value_rows == pytest.approx(4 * coarse.value_rows, abs=4)
    assert coarse.power_rows > coarse.difference_rows


def test_clusters_of_rows_that_are_alike_need_more():
    frame = shop(1000)
    tenfold = pl.concat([frame.with_row_index("user")] * 10)
    alone = plan(tenfold, **NAMES, difference=0.01, actions=2)
    alike = plan(tenfold, **NAMES, difference=0.01, actions=2, cluster="user")
    assert alike.needs.value_rows == pytest.approx(10 * alone.needs.value_rows, rel=0.4)
    ratio = alike.exploration[0].needs.value_rows / alone.exploration[0].needs.value_rows
    assert ratio == pytest.approx(alike.needs.value_rows / alone.needs.value_rows, rel=1e-3)


def test_conditions_expressions_and_bad_rows_count_alike_in_both_passes():
    frame = shop(3000)
    kept = frame.filter(pl.col("country") == "DE")
    part = plan(frame, **NAMES, difference=0.01, actions=2, where="country = 'DE'")
    assert part.exploration == plan(kept, **NAMES, difference=0.01, actions=2).exploration
    halved = plan(frame, **(NAMES | {"reward": "click / 2"}), difference=0.005, actions=2)
    whole = plan(frame, **NAMES, difference=0.01, actions=2)
    assert halved.exploration[2].needs.value_rows == pytest.approx(whole.exploration[2].needs.value_rows, abs=1)
    bad = pl.concat([frame, frame[:5].with_columns(p=pl.lit(0.0))])
    dropped = plan(bad, **NAMES, difference=0.01, actions=2, drop_bad_rows=True)
    assert dropped.exploration == whole.exploration


def test_the_command_says_how_many_more_rows(tmp_path):
    path = tmp_path / "log.parquet"
    shop().write_parquet(path)
    found = invoke("plan", path, "--target", "pi_new", "--difference", "0.01", "--actions", "2")
    assert found.exit_code == 0
    needs = plan(shop(), **NAMES, difference=0.01).needs
    assert f"{needs.value_rows:,.0f}" in found.stdout
    assert f"{needs.value_rows - 2000:,.0f}" in found.stdout
    assert "cost per row" in found.stdout
    document = json.loads(invoke("plan", path, "--target", "pi_new", "--difference", "0.01", "--json").stdout)
    assert document["needs"]["power_rows"] == pytest.approx(needs.power_rows, rel=1e-6)
    assert document["exploration"] == []


def test_a_log_that_does_not_tell_needs_no_number_of_rows(tmp_path):
    path = tmp_path / "log.parquet"
    shop(100).with_columns(pi_new=0.0).write_parquet(path)
    found = invoke("plan", path, "--target", "pi_new", "--difference", "0.01", "--actions", "2", "--json")
    assert found.exit_code == 0
    document = json.loads(found.stdout, parse_constant=pytest.fail)
    assert (document["needs"]["value_rows"], document["verdict"]["verdict"]) == (None, "not identified")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--difference", "0"], "--difference 0.0 is not a positive number"),
        (["--difference", "0.1", "--power", "1"], "--power 1.0 does not lie strictly between 0 and 1"),
        (["--difference", "0.1", "--actions", "1"], "--actions 1 is not a whole number of at least 2"),
        (["--difference", "0.1", "--target", "pi_old"], "plan takes one target"),
    ],
)
def test_impossible_plans_are_refused(tmp_path, options, words):
    path = tmp_path / "log.parquet"
    shop(100).write_parquet(path)
    found = invoke("plan", path, "--target", "pi_new", *options)
    assert found.exit_code == 2
    assert words in found.stderr


def test_the_range_is_the_chi_square_interval_of_the_variance():
    found = cp.evaluate(shop(2000), **NAMES, estimator=["beta_ips", "lift"])
    needs = plan(shop(2000), **NAMES, difference=0.02, interval="normal").needs
    carrying = found.diagnostics().carrying_rows
    for rows, name in ((needs.value_range, "beta_ips"), (needs.difference_range, "lift")):
        variance = 2000 * found["pi_new", name].stderr ** 2
        ends = [
            variance * carrying / stats.chi2(carrying).ppf(q) * (stats.norm.ppf(0.975) / 0.02) ** 2
            for q in (0.975, 0.025)
        ]
        assert rows == tuple(map(math.ceil, ends))


@pytest.mark.thorough
@pytest.mark.once
def test_the_range_holds_the_rows_that_it_takes():
    """At 95 %, 10 of 200 logs miss on average; 20 or more do once in a thousand. The truth is known to half a per cent."""
    logs = 200
    truth = plan(shop(400_000, seed=7), **NAMES, difference=0.02).needs.value_rows
    ranges = [plan(shop(300, seed), **NAMES, difference=0.02).needs.value_range for seed in range(logs)]
    assert sum(not low <= truth <= high for low, high in ranges) < 20
    assert np.median([high / low for low, high in ranges]) > 1.3


def test_a_log_that_cannot_tell_leaves_everything_open():
    log = shop(500).with_columns(click=pl.lit(0.0))
    needs = plan(log, **NAMES, difference=0.02).needs
    assert needs.value_range == needs.power_range == (0.0, math.inf)
