"""Quantiles and CVaR under a target: equal to plain computations, monotone, and wide enough."""

import json
import math
import re

import numpy as np
import polars as pl
import pytest
from command_line import invoke
from doubts import codes
from messages import refuses

import counterpoise as cp
from counterpoise.evaluation.distribution import Shortfalls, thresholds_of
from counterpoise.moments.bins import shortfall


def a_log(n=3000, seed=3, reward="ratings"):
    g = np.random.default_rng(seed)
    logging, target = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.2, 0.3, 0.4])
    action = g.choice(4, n, p=logging)
    latent = g.normal(0.4 * action, 1.0)
    rewards = {
        "ratings": 1.0 + np.searchsorted([-1.0, 0.0, 0.5, 1.5], latent),
        "amounts": np.exp(latent),
        "mixed": np.where(latent > 0.8, np.exp(latent), 0.0),
    }
    return {"r": rewards[reward], "p": logging[action], "t": target[action]}


ASKED = {"reward": "r", "propensity": "p", "target": "t"}


def plain_cdf(log, t):
    """β-IPS of 1{r ≤ t}, written out."""
    w, y = log["t"] / log["p"], (log["r"] <= t).astype(float)
    beta = np.cov(w * y, w)[0, 1] / np.var(w, ddof=1)
    return float(np.mean(beta + w * (y - beta)))


@pytest.mark.parametrize("reward", ["ratings", "amounts", "mixed"])
def test_the_distribution_function_is_the_value_of_another_reward_at_every_threshold(reward):
    log = a_log(reward=reward)
    found = cp.distribution(log, **ASKED, thresholds=[0.0, 0.7, 1.0, 2.0, 3.0])
    cdf = found.cdf()
    assert cdf["threshold"].to_list() == [0.0, 0.7, 1.0, 2.0, 3.0]
    for t, value, lower, upper in cdf.rows():
        y = (log["r"] <= t).astype(float)
        one = cp.evaluate(log | {"y": y}, **ASKED | {"reward": "y"}, reward_bounds=(0, 1))["t", "beta_ips"]
        assert value == pytest.approx(one.value, abs=1e-10)
        if 0 < y.mean() < 1:
            assert value == pytest.approx(plain_cdf(log, t), abs=1e-10)
        assert (lower, upper) == pytest.approx(np.clip(list(one.interval), 0, 1), abs=1e-10)


@pytest.mark.parametrize("cluster", [None, "user"])
def test_the_cvar_is_the_value_of_another_reward_at_the_quantile(cluster):
    log = a_log() | {"user": np.arange(3000) // 3}
    found = cp.distribution(log, **ASKED, cluster=cluster)
    for q in (0.1, 0.4, 0.9):
        t, one = found.quantile(q).value, found.cvar(q)
        x = t - np.maximum(t - log["r"], 0) / q
        mean = cp.evaluate(log | {"x": x}, **ASKED | {"reward": "x"}, cluster=cluster)["t", "beta_ips"]
        assert (one.value, one.stderr) == pytest.approx((mean.value, mean.stderr), abs=1e-10)
        # the rows below the threshold count in full: at most as wide below as the interval of that reward, at least as the normal one
        assert mean.interval.lower - 1e-10 <= one.interval.lower <= mean.value - 1.95 * mean.stderr
        assert one.interval.width >= 2 * 1.95 * mean.stderr


def test_a_cvar_counts_the_rows_below_the_quantile_and_fewer_if_their_shortfalls_have_a_heavy_tail():
    log = a_log(
        n=20_000, reward="amounts"
    )  # the shortfalls of lognormal amounts are bounded, those of their negative are not
    heavy = log | {"r": -log["r"]}
    for rows, counts_in_full in ((log, True), (heavy, False)):
        found = cp.distribution(rows, **ASKED)
        threshold = found._curve("t").highest[found._curve("t").bins_below(0.1)]
        w, d = rows["t"] / rows["p"], np.maximum(threshold - rows["r"], 0)
        carried = len(w) / np.mean((w - w.mean()) ** 4) * np.var(w) ** 2
        share = np.mean(d > 0)
        counted = carried * min(share, 6 * np.mean(d**2) ** 2 / np.mean(d**4))
        cut = shortfall(found._curve("t").bins_below(0.1) + 1, threshold, 0.1)
        view = Shortfalls(found.bins.reward(cut, "t"), ("t", ""), found._share("t", cut))
        assert view.carrying[0] == pytest.approx(counted, rel=1e-2)  # rewards equal to the threshold
        assert (counted == carried * share) == counts_in_full


def test_all_of_the_rewards_are_the_mean():
    for reward in ("ratings", "amounts"):
        log = a_log(reward=reward)
        mean = cp.evaluate(log, **ASKED)["t", "beta_ips"]
        found = cp.distribution(log, **ASKED).cvar(1.0)
        assert (found.value, found.stderr) == pytest.approx((mean.value, mean.stderr), abs=1e-10)


@pytest.mark.once
@pytest.mark.parametrize(
    ("side", "q"), [(-1.0, 0.25), *(pytest.param(side, 1.0, marks=pytest.mark.thorough) for side in (1.0, -1.0))]
)
def test_tail_means_of_rewards_without_a_variance_are_never_ok(side, q):
    """Pareto 1.8 has a mean and no variance. Quantiles need none, nor does the worst quarter of gains, which are bounded below."""
    truth = 2.25 * q ** (-1 / 1.8)
    for seed in range(12):
        g = np.random.default_rng(seed)
        log = {"reward": side * g.random(2000) ** (-1 / 1.8), "propensity": np.full(2000, 0.5)}
        found = cp.distribution(**log, target=np.where(g.random(2000) < 0.5, 0.8, 0.2))
        tail = found.cvar(q)
        assert tail.verdict.verdict == "caution"
        assert "heavy-tailed-rewards" in codes(tail.verdict)
        # open where the tail shows itself, as it does in all but a few logs
        assert side * truth in tail.interval or found.tails[int(side > 0)].k < 0.45
        assert found.quantile(0.5).verdict.verdict == "ok"
        assert math.isfinite(found.quantile(0.5).interval.width)
        if side > 0:
            assert found.cvar(0.25).verdict.verdict == "ok"
        within = cp.distribution(**log, target=log["propensity"], reward_bounds=(-1e6, 1e6)).cvar(q)
        assert "Pareto" not in str(within.verdict)
        assert math.isfinite(within.interval.width)


def test_rewards_with_light_tails_keep_their_verdict():
    g = np.random.default_rng(0)
    for reward in (g.normal(size=5000), -g.exponential(size=5000), g.integers(1, 6, 5000).astype(float)):
        found = cp.distribution(
            reward=reward, propensity=np.full(5000, 0.5), target=np.where(g.random(5000) < 0.5, 0.8, 0.2)
        )
        assert {found.cvar(q).verdict.verdict for q in (0.1, 0.25, 1.0)} == {"ok"}


def test_on_policy_it_is_the_distribution_of_the_log():
    log = a_log(n=5001, reward="amounts")
    found = cp.distribution(log | {"t": log["p"]}, **ASKED)
    ordered = np.sort(log["r"])
    for q in (0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999):
        share = np.searchsorted(ordered, found.quantile(q).value) / 5001
        assert share == pytest.approx(q, abs=0.001 + 0.005 * min(q, 1 - q))
        assert found.quantile(q, "logging").value == found.quantile(q).value
    worst = ordered[:500].mean()
    assert found.cvar(0.1).value == pytest.approx(worst, abs=0.002)


def test_discrete_rewards_are_exact():
    log = a_log()
    found = cp.distribution(log, **ASKED)
    values = np.unique(log["r"])
    for q in (0.05, 0.3, 0.5, 0.77, 0.95):
        expected = next(t for t in values if plain_cdf(log, t) >= q or t == 5.0)
        one = found.quantile(q)
        assert one.value == expected
        assert {one.interval.lower, one.interval.upper} <= set(values)
        assert not one.note


def test_values_that_the_first_look_missed_do_not_blur_those_it_saw():
    """A rare reward between two common ones, in a row that the look skipped."""
    assert thresholds_of(np.array([4.0, 5.0, 5.0])) == (4.0, 4.5, 5.0)
    log = a_log()
    log["r"][7] = 4.2
    thresholds = thresholds_of(np.delete(log["r"], 7))
    found = cp.distribution(log, **ASKED, thresholds=thresholds)
    assert found.quantile(0.9).value == cp.distribution(log, **ASKED).quantile(0.9).value == 5.0


def test_estimates_out_of_order_are_put_in_order():
    """Where weights have a mean well above 1, β-IPS counts the heaviest rows for less than nothing."""
    heavy = np.arange(60) % 7 == 3
    log = {"r": np.linspace(0, 1, 60), "p": np.where(heavy, 0.25, 0.5), "t": np.where(heavy, 1.0, 0.75)}
    cdf = cp.distribution(log, **ASKED).cdf()
    raw = [plain_cdf(log, t) for t in cdf["threshold"][:-1]]
    assert (np.diff(raw) < 0).any()
    for column in ("value", "lower", "upper"):
        assert (np.diff(cdf[column]) >= 0).all()
        assert cdf[column].is_between(0, 1).all()


def test_what_no_row_has_shown_stays_open():
    log = a_log(reward="amounts")
    found = cp.distribution(log, **ASKED)
    assert found.quantile(0.9999).interval.upper == math.inf
    assert found.quantile(0.00001).interval.lower == -math.inf
    bounded = cp.distribution(log, **ASKED, reward_bounds=(0, 1000))
    assert bounded.quantile(0.9999).interval.upper == 1000
    assert bounded.quantile(0.00001).interval.lower == 0
    clicks = cp.distribution(log | {"r": log["r"] > 3}, **ASKED)
    assert list(clicks.quantile(0.99999).interval) == [1.0, 1.0]
    assert clicks.quantile(0.5).verdict.verdict == "ok"


def test_a_target_that_the_log_never_took_is_unknown():
    log = a_log() | {"t": np.zeros(3000)}
    found = cp.distribution(log, **ASKED)
    for one in (found.quantile(0.5), found.cvar(0.1)):
        assert math.isnan(one.value)
        assert list(one.interval) == [-math.inf, math.inf]
        assert one.verdict.verdict == "not identified"
    assert found.quantile(0.5, "logging").value == np.sort(log["r"])[1499]


def test_thresholds_that_are_far_apart_are_said_to_be():
    found = cp.distribution(a_log(reward="amounts"), **ASKED, thresholds=[1.0, 5.0])
    assert "pass thresholds" in found.quantile(0.6).note
    assert not cp.distribution(a_log(reward="amounts"), **ASKED).quantile(0.6).note


@pytest.mark.thorough
@pytest.mark.once
@pytest.mark.parametrize("reward", ["amounts", "ratings", "mixed"])
def test_intervals_cover(reward):
    """200 logs: 95 % ± 3 standard errors is at least 90.4 %."""
    big = a_log(n=400_000, seed=1, reward=reward)
    order = np.argsort(big["r"])
    r, w = big["r"][order], (big["t"] / big["p"])[order] / 400_000
    share = np.cumsum(w)
    median, k = r[np.searchsorted(share, 0.5)], np.searchsorted(share, 0.2)
    worst = ((r[:k] * w[:k]).sum() + (0.2 - share[k - 1]) * r[k]) / 0.2
    hits = []
    for seed in range(200):
        found = cp.distribution(a_log(n=2000, seed=100 + seed, reward=reward), **ASKED)
        one, other = found.quantile(0.5).interval, found.cvar(0.2).interval
        hits.append((one.lower <= median <= one.upper, other.lower - 1e-12 <= worst <= other.upper + 1e-12))
    assert (np.mean(hits, axis=0) >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / 200)).all()


def test_a_distribution_shows_itself():
    found = cp.distribution(a_log(), **ASKED)
    text = repr(found)
    assert re.search(r"^t +quantile +0\.5 ", text, flags=re.M)
    assert "logging" in text
    table = found.table(quantile=[0.5], cvar=[])
    assert table.columns == ["target", "statistic", "q", "value", "stderr", "lower", "upper", "verdict"]
    assert table["target"].to_list() == ["t", "logging"]
    pytest.importorskip("matplotlib").use("Agg")
    axes = found.plot()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["t", "logging"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"thresholds": []}, "finite numbers"),
        ({"thresholds": [1.0, float("nan")]}, "finite numbers"),
        ({"reward": ["r", "p"]}, "one reward"),
        ({"model_reward": "p", "model_value": "p"}, "model_reward"),
        ({"interval": cp.intervals.Bernstein((0, 1), 10)}, "bernstein"),
    ],
)
def test_what_it_cannot_do_is_said(given, said):
    with pytest.raises(cp.OptionError, match=said):
        cp.distribution(a_log(), **ASKED | given)


def test_shares_and_targets_are_checked():
    found = cp.distribution(a_log(), **ASKED)
    for wrong in (0.0, 1.0, -0.5, True, "half"):
        with refuses(cp.OptionError):
            found.quantile(wrong)
    with refuses(cp.OptionError):
        found.cvar(0.1, "x")
    with refuses(cp.OptionError):
        cp.distribution(cp.evaluate(a_log(), **ASKED).moments)


def test_the_command_prints_the_same_numbers(tmp_path):
    path = tmp_path / "log.parquet"
    pl.DataFrame(a_log()).write_parquet(path)
    named = ["--reward", "r", "--propensity", "p", "--target", "t"]
    done = invoke("distribution", path, *named, "--quantile", "0.5", "--cvar", "0.1", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    expected = cp.distribution(path, **ASKED).statistics([0.5], [0.1])
    assert [(one["target"], one["statistic"], one["q"], one["value"]) for one in found["statistics"]] == [
        (one.target, one.name, one.q, one.value) for one in expected
    ]
    shown = invoke("distribution", path, *named)
    assert "quantile" in shown.stdout
    assert "0.9" in shown.stdout
    wrong = invoke("distribution", path, *named, "--quantile", "2")
    assert wrong.exit_code == 2
    assert "--quantile 2.0" in wrong.output
