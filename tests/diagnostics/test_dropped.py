"""Dropped rows unlike the rest are noticed, on every engine; so are rows that were logged twice."""

import math

import numpy as np
import planted
import polars as pl
import pytest
from scipy import stats

import counterpoise as cp
from counterpoise.diagnostics.diagnose import Dropped
from counterpoise.diagnostics.seeming import Repeats
from counterpoise.moments import LogMoments, Powers

pytestmark = pytest.mark.once


def a_log(n=20_000, dropped=0.03, lost=0.6, seed=0):
    """Some propensities are 0, and a share `lost` of all clicks is on those rows."""
    g = np.random.default_rng(seed)
    click = g.random(n) < 0.06
    bad = np.zeros(n, bool)
    bad[g.choice(np.flatnonzero(click), round(lost * click.sum()), replace=False)] = True
    bad[g.choice(np.flatnonzero(~click), max(round(dropped * n) - bad.sum(), 0), replace=False)] = True
    hit = g.random(n) < 0.5
    return {"r": click * 1.0, "p": np.where(bad, 0.0, 0.5), "new": np.where(hit, 0.7, 0.3)}


OPTIONS = {"reward": "r", "propensity": "p", "target": "new", "drop_bad_rows": True}


def test_most_clicks_among_the_dropped_rows_are_a_caution():
    log = a_log(dropped=0.04)
    found = cp.evaluate(log, **OPTIONS)
    assert found.verdict().verdict == "caution"
    (caveat,) = (caveat for caveat in found.verdict().caveats if caveat.code == "dropped-rows")
    assert caveat.numbers["dropped"] == found.diagnostics().dropped == (log["p"] == 0).sum()
    assert "60%" in caveat.text  # of the reward
    assert found.diagnostics().mean_reward + found.diagnostics().dropped_shift == pytest.approx(np.mean(log["r"]))
    compared = cp.compare(log, **OPTIONS)
    assert "dropped-rows" in codes(compared)


@pytest.mark.thorough
def test_rows_dropped_at_random_are_no_caution():
    """At p = 0.01 (and a shift that matters), 2 in 200 are expected; 8 or more come once in a thousand."""
    cautions = 0
    for seed in range(200):
        g = np.random.default_rng([1, seed])
        log = a_log(n=2000, dropped=0.0, lost=0.0, seed=seed)
        log["p"] = np.where(g.random(2000) < 0.03, 0.0, 0.5)
        cautions += "dropped-rows" in codes(cp.evaluate(log, **OPTIONS))
    assert cautions < 8


def without_some_clicks(n=5_000, lost=0.1, seed=0):
    """A share `lost` of the clicks was never written down."""
    g = np.random.default_rng(seed)
    hit = g.random(n) < 0.5
    click = g.random(n) < np.where(hit, 0.35, 0.2)
    reward = np.where(click & (g.random(n) < lost), np.nan, click * 1.0)
    return {"r": reward, "p": np.full(n, 0.5), "new": np.where(hit, 0.8, 0.2)}


def codes(result, *place):
    return [one.code for one in result.verdict(*place).caveats]


def test_rewards_that_nobody_knows_are_a_caution_as_soon_as_they_could_matter():
    for seed in range(20):
        found = cp.evaluate(without_some_clicks(seed=seed), **OPTIONS)
        assert found.verdict().verdict == "caution"
        assert codes(found) == ["dropped-rows"]
    few = without_some_clicks(lost=0.0)
    few["r"][:3] = np.nan  # three rows of 5,000 move the answer by 0.0007 at most, a tenth of its error
    assert cp.evaluate(few, **OPTIONS).verdict().verdict == "ok"
    assert cp.evaluate(without_some_clicks(lost=0.0), **OPTIONS).verdict().verdict == "ok"


def test_what_dropped_rows_could_change_is_their_share_times_a_usual_weight_times_the_range():
    log = without_some_clicks()
    found = cp.evaluate(log, **OPTIONS)
    (caveat,) = found.verdict().caveats
    weight = np.where(np.array(log["new"]) > 0.5, 1.6, 0.4)[~np.isnan(log["r"])]
    share = np.isnan(log["r"]).mean()
    expected = share * np.sqrt((weight**2).mean()) / weight.mean()
    assert caveat.numbers["shift"] == pytest.approx(expected, rel=1e-9)
    truth, estimate = 0.8 * 0.35 + 0.2 * 0.2, found["new", "beta_ips"]
    assert abs(truth - estimate.value) < caveat.numbers["shift"] + 2 * estimate.stderr


def test_unknown_rewards_are_doubted_from_every_verb_and_source(tmp_path):
    log = pl.DataFrame(without_some_clicks()).with_columns(country=pl.Series(["DE", "FR"] * 2500))
    log.write_parquet(tmp_path / "log.parquet")
    log.write_csv(tmp_path / "log.csv")
    for data in (log, log.lazy(), log.to_pandas(), tmp_path / "log.parquet", tmp_path / "log.csv"):
        found = cp.evaluate(data, **OPTIONS, segment="country")
        assert codes(found) == codes(found, "new", "DE") == ["dropped-rows"]
    assert codes(cp.compare(log, **OPTIONS)) == ["dropped-rows"]
    assert [one.decision for one in cp.rank(log, **OPTIONS)] == ["undecided"]
    kept = sum(cp.evaluate(log[k::2], **OPTIONS).moments for k in range(2))
    assert codes(cp.evaluate(LogMoments.from_json(kept.to_json()))) == ["dropped-rows"]


def test_the_dropped_rewards_are_counted_as_they_are():
    log = planted.a_log()
    found = cp.evaluate(log, **planted.QUESTIONS["whole"])
    good = pl.col("reward").is_finite() & (pl.col("reward") < 1e50)
    fine = pl.col("propensity").is_between(0, 1, closed="right") & pl.col("new").is_between(0, 1)
    fine = (fine & pl.col("old").is_between(0, 1)).fill_null(False)
    rewards = log.filter(good & ~fine)["reward"].to_numpy()
    kept = log.filter(good & fine)["reward"].to_numpy()
    left_out, seen = found.moments.left_out, found.diagnostics()
    assert left_out.n == seen.dropped_rewards == len(rewards) == 7
    assert left_out.around(100.0).sums == pytest.approx(Powers.of(rewards, 100.0).sums, rel=1e-9)
    assert seen.dropped_shift == pytest.approx(np.r_[rewards, kept].mean() - kept.mean(), abs=1e-10)


def test_dropped_rewards_add_up_and_are_stored():
    log = pl.DataFrame(a_log())
    whole = cp.evaluate(log, **OPTIONS).moments
    parts = sum(cp.evaluate(log[k::3], **OPTIONS).moments for k in range(3))
    assert parts.left_out.n == whole.left_out.n > 0
    assert LogMoments.from_json(parts.to_json()).left_out.to_plain() == parts.left_out.to_plain()


def test_a_batch_of_nothing_but_bad_rows_counts_too():
    log = pl.DataFrame(a_log(n=6000)).sort("p")
    assert cp.evaluate(log.lazy(), **OPTIONS).moments.left_out.n == cp.evaluate(log, **OPTIONS).moments.left_out.n


@pytest.mark.parametrize("clicks", [0, 1, 4, 6])
def test_the_tails_of_few_clicks_are_nearly_those_of_counts(clicks):
    m, n, rate = 50, 5000, 0.03
    rest = round(rate * (n + m)) - clicks
    found = Dropped(Powers.of(np.arange(m) < clicks), Powers.of(np.arange(n) < rest))
    exact = stats.hypergeom(n + m, rest + clicks, m)
    tails = [exact.cdf(clicks) - exact.pmf(clicks) / 2, exact.sf(clicks - 1) - exact.pmf(clicks) / 2]  # mid-p
    assert math.log(found.p_value / (2 * min(tails))) == pytest.approx(0.0, abs=0.7)


def test_rows_logged_twice_are_found_without_a_key():
    g = np.random.default_rng(1)
    coarse = {"r": g.integers(0, 2, 3000), "p": g.choice([0.2, 0.5, 0.3], 3000), "new": g.choice([0.2, 0.6], 3000)}
    once = pl.DataFrame(coarse | {"x": g.integers(0, 3000, 3000), "y": g.integers(0, 5, 3000)})
    for log, odd in ((once, False), (pl.concat([once, once]), True), (pl.concat([once, once[:600]]), True)):
        said = [
            one for one in cp.doctor(log, reward="r", propensity="p", target=["new"]).findings if one.about == "rows"
        ]
        assert bool(said) == odd
    assert not [one for one in cp.doctor(pl.DataFrame(coarse)).findings if one.about == "rows"]


@pytest.mark.thorough
@pytest.mark.parametrize("kinds", [30, 1000, 50_000])
def test_rows_that_repeat_by_chance_are_not_odd(kinds):
    """2,000 rows of unequal frequency; at p = 0.001 (two tests), 0.4 of 200 are expected, and 5 come once in a thousand."""
    g = np.random.default_rng(kinds)
    odd = 0
    for _ in range(200):
        shares = g.dirichlet(np.full(kinds, 0.5))
        _, times = np.unique(g.choice(kinds, 2000, p=shares), return_counts=True)
        odd += Repeats(dict(zip(*np.unique(times, return_counts=True), strict=True))).is_odd
    assert odd < 5
