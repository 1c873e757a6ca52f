"""Bounds under wrong propensities: equal to a search over every possibility, as uncertain as they say, and right about a confounder."""

import itertools
import json
import math

import numpy as np
import polars as pl
import pytest
from command_line import invoke

import counterpoise as cp
from counterpoise.evaluation.confounded import self_normalized_lift
from counterpoise.weights.odds import AllOdds, Odds

ASKED = {"reward": "r", "propensity": "p", "target": "t"}


def a_log(n=3000, seed=3, reward="clicks"):
    g = np.random.default_rng(seed)
    logging, target = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.2, 0.3, 0.4])
    action = g.choice(4, n, p=logging)
    latent = g.normal(0.4 * action, 1.0)
    rewards = {
        "clicks": (latent > 1.0).astype(float),
        "ratings": 1.0 + np.searchsorted([-1.0, 0.0, 0.5, 1.5], latent),
        "amounts": np.exp(latent),
    }
    return {"r": rewards[reward], "p": logging[action], "t": target[action], "user": np.arange(n) // 3}


def weights(log, odds):
    return log["t"] + odds * (log["t"] / log["p"] - log["t"])


def by_thresholds(log, gamma, *, upper):
    """The extreme value over all thresholds between any two rewards."""
    high, low = weights(log, gamma), weights(log, 1 / gamma)
    found = []
    for cut in (-np.inf, *np.unique(log["r"])):
        w = np.where((log["r"] > cut) == upper, high, low)
        found.append((w @ log["r"]) / w.sum())
    return max(found) if upper else min(found)


@pytest.mark.parametrize("seed", range(3))
def test_the_bounds_are_the_extremes_over_all_odds(seed):
    """Every corner of the cube of λ, row by row; a linear fraction has its extremes there."""
    log = {name: column[:9] for name, column in a_log(seed=seed, reward="ratings").items()}
    log["r"] = log["r"] + np.arange(9) / 7
    found = cp.sensitivity(log, **ASKED).bounds(1.7)
    corners = [weights(log, np.array(odds)) for odds in itertools.product((1 / 1.7, 1.7), repeat=9)]
    values = [(w @ log["r"]) / w.sum() for w in corners]
    assert found.value == pytest.approx((min(values), max(values)), abs=1e-12)
    assert found.lift == pytest.approx((min(values) - log["r"].mean(), max(values) - log["r"].mean()), abs=1e-12)


def test_for_clicks_the_bounds_have_a_closed_form():
    log = a_log()
    clicked = log["r"] == 1
    for gamma in (1.0, 1.3, 2.0, 20.0):
        most, least = (weights(log, x)[clicked].sum() for x in (gamma, 1 / gamma))
        over, under = (weights(log, x)[~clicked].sum() for x in (gamma, 1 / gamma))
        expected = least / (least + over), most / (most + under)
        assert cp.sensitivity(log, **ASKED).bounds(gamma).value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("reward", "close"), [("ratings", 1e-11), ("amounts", 2e-3)])
def test_bins_of_the_reward_lose_little(reward, close):
    log = a_log(reward=reward)
    found = cp.sensitivity(log, **ASKED)
    for gamma in (1.2, 2.0, 5.0):
        low, high = found.bounds(gamma).value
        least, most = (by_thresholds(log, gamma, upper=upper) for upper in (False, True))
        assert low == pytest.approx(least, rel=close)
        assert high == pytest.approx(most, rel=close)
        assert least - 1e-11 <= low <= high <= most + 1e-11  # bins only take choices away


def test_right_propensities_are_the_answer_of_evaluate():
    for cluster in (None, "user"):
        log = a_log(reward="ratings")
        result = cp.evaluate(log, **ASKED, cluster=cluster)
        found = result.sensitivity([1.0, 2.0])
        one, whole = found.bounds(1.0), result["t", "snips"]
        assert one.value == pytest.approx((whole.value, whole.value), abs=1e-12)
        assert list(one.value_interval) == pytest.approx(list(whole.interval), abs=1e-9)
        assert found.verdict().verdict == result.verdict().verdict


def test_a_result_with_several_rewards_and_a_model_is_asked_about_weights_alone():
    log = a_log(reward="ratings")
    log |= {"clicked": (log["r"] > 3).astype(float), "model": np.full(3000, 3.0)}
    several = cp.evaluate(log, **ASKED | {"reward": ["r", "clicked"]}, reward_bounds={"r": (1, 5), "clicked": (0, 1)})
    expected = cp.sensitivity(log, **ASKED | {"reward": "clicked"}, reward_bounds=(0, 1)).bounds(1.5)
    assert several.of("clicked").sensitivity().bounds(1.5) == expected
    modeled = cp.evaluate(log, **ASKED, model_reward="model", model_value="model", control={"clicked": 0.3})
    assert modeled.sensitivity().bounds(1.5).value == pytest.approx(several.sensitivity().bounds(1.5).value, abs=1e-12)
    based = cp.evaluate(log, **ASKED, baseline=["user"])
    assert based.sensitivity().bounds(1.5).value == pytest.approx(several.sensitivity().bounds(1.5).value, abs=1e-12)
    both = cp.compare(log | {"o": log["p"]}, **ASKED | {"target": ["t", "o"]})
    assert both.sensitivity().targets == ("t", "o")
    assert both.sensitivity(target="o").bounds(1.0).lift == pytest.approx((0.0, 0.0), abs=1e-12)


def test_errors_are_those_of_the_worst_weights_as_given_ones():
    """SNIPS with the worst weights in a column of their own, and the jackknife over users left out by hand."""
    log = a_log(reward="ratings")
    gamma, cut = 1.5, 4.0
    w = np.where(log["r"] >= cut, weights(log, gamma), weights(log, 1 / gamma))
    for cluster in (None, "user"):
        found = cp.sensitivity(log, **ASKED, cluster=cluster)
        bins = found._bins("t")
        worst = bins.extreme(gamma, upper=True)
        estimate = found._estimate(bins.moments(worst), cp.ESTIMATORS["snips"].function)
        given = cp.evaluate(
            log | {"w": w}, reward="r", weight="w", cluster=cluster, interval="normal" if cluster is None else None
        )
        assert estimate.value == pytest.approx(given["w", "snips"].value, abs=1e-12)
        assert estimate.stderr == pytest.approx(given["w", "snips"].stderr, rel=1e-9)
    value = (w @ log["r"]) / w.sum()
    influence = w * (log["r"] - value) / w.mean() - (log["r"] - log["r"].mean())
    lift = self_normalized_lift(cp.Moments.of(w, log["r"]))
    assert (lift.value, lift.stderr) == pytest.approx(
        (value - log["r"].mean(), influence.std() / math.sqrt(len(w))), rel=1e-10
    )


def confounded(n, gamma, seed, effect=1.0):
    """Half of all rows have a trait that the policy sees and the log does not keep; the reward is that trait, or has something of it.

    The policy takes action 1 with odds Γ if the trait is there, and 1/Γ if not. On average that is 1/2, which is what is logged.
    """
    g = np.random.default_rng(seed)
    trait = g.random(n) < 0.5
    chance = np.where(trait, gamma / (1 + gamma), 1 / (1 + gamma))
    action = g.random(n) < chance
    reward = (g.random(n) < 0.5 + effect * (trait - 0.5)).astype(float)
    return {"r": reward, "p": np.full(n, 0.5), "t": action.astype(float)}


def needed(found, truth):
    """The least Γ whose bounds contain the truth."""
    low, high = 1.0, 100.0
    while high / low > 1.0001:
        middle = math.sqrt(low * high)
        lower, upper = found.bounds(middle).value
        low, high = (low, middle) if lower <= truth <= upper else (middle, high)
    return high


@pytest.mark.parametrize("gamma", [1.5, 3.0])
def test_the_factor_that_contains_the_truth_is_that_of_the_confounder_left_out(gamma):
    n = 20_000
    found = cp.sensitivity(confounded(n, gamma, seed=1), **ASKED)
    share = gamma / (1 + gamma)
    error = 1 / math.sqrt(n / 2 * share * (1 - share))  # of the log-odds of the trait among the rows with action 1
    assert abs(math.log(needed(found, 0.5) / gamma)) < 4 * error
    assert found.bounds(1.0).value_interval.lower > 0.5  # without a doubt, and wrong
    # where the reward has less of the trait, less is needed, and the confounder's own factor is enough
    weaker = cp.sensitivity(confounded(n, gamma, seed=2, effect=0.5), **ASKED)
    assert 1.0 < needed(weaker, 0.5) < gamma
    lower, upper = weaker.bounds(gamma).value
    assert lower < 0.5 < upper


def test_bounds_are_as_uncertain_as_they_say():
    """Over 250 logs: the interval at the confounder's Γ has the truth in it, and its lower end misses the world's lower bound in 2.5 %."""
    gamma, effect, runs, low_misses, covered, lows, errors = 2.0, 0.6, 250, 0, 0, [], []
    share = 0.5 + effect * (gamma / (1 + gamma) - 0.5)  # of rewards among the rows with action 1
    bound = share * (1 + 1 / gamma) / (share * (1 + 1 / gamma) + (1 - share) * (1 + gamma))
    for seed in range(runs):
        one = cp.sensitivity(confounded(1000, gamma, seed, effect), **ASKED).bounds(gamma)
        lows.append(one.value[0])
        errors.append((one.value[0] - one.value_interval.lower) / 1.96)
        low_misses += one.value_interval.lower > bound
        covered += 0.5 in one.value_interval
    spread = float(np.std(lows))
    assert np.mean(lows) == pytest.approx(bound, abs=4 * spread / math.sqrt(runs))
    assert np.mean(errors) == pytest.approx(spread, rel=4 / math.sqrt(2 * runs))
    expected = 0.025
    assert abs(low_misses / runs - expected) < 4 * math.sqrt(expected * (1 - expected) / runs)
    assert covered / runs > 0.95 - 4 * math.sqrt(0.05 * 0.95 / runs)


def test_the_tipping_point_is_where_the_bounds_reach_zero():
    found = cp.sensitivity(a_log(reward="ratings"), **ASKED)
    tips = found.tipping()
    assert 1.0 < tips.sure < tips.point
    assert found.tipping_point == tips.sure
    assert found.bounds(tips.point).lift[0] == pytest.approx(0.0, abs=1e-5)
    assert found.bounds(tips.sure).lift_interval.lower == pytest.approx(0.0, abs=1e-5)
    assert f"factor of {tips.sure:.3g} or more" in str(tips)
    worse = a_log(reward="ratings")
    worse["r"] = -worse["r"]
    turned = cp.sensitivity(worse, **ASKED).tipping()
    assert (turned.point, turned.lift) == pytest.approx((tips.point, -tips.lift), rel=1e-5)
    assert "earns less" in str(turned)


def test_what_is_not_shown_cannot_be_flipped():
    log = a_log(n=200)
    log["t"] = np.clip(log["p"] * 1.02, 0, 1)
    tips = cp.sensitivity(log, **ASKED).tipping()
    assert tips.sure == 1.0
    assert "does not show" in str(tips)
    nothing = cp.sensitivity(a_log() | {"t": np.zeros(3000)}, **ASKED)
    assert math.isnan(nothing.tipping().lift)
    assert "does not identify" in str(nothing.tipping())
    assert "–" in repr(nothing)
    certain = a_log()
    certain |= {"p": np.ones(3000), "t": (certain["r"] == 1) * 1.0}
    assert cp.sensitivity(certain, **ASKED).tipping().point == math.inf  # what was certain stays so


def test_weights_with_other_odds_are_weights_like_any():
    log = a_log()
    result = cp.evaluate(log, **ASKED, weight=Odds(1.5))
    assert result["t", "ips"].value == pytest.approx(np.mean(weights(log, 1.5) * log["r"]), abs=1e-12)
    both = cp.compare(log | {"o": log["p"]}, **ASKED, against="o", weight=Odds(1.5), interval="normal")
    other = weights(log | {"t": log["p"]}, 1.5)
    assert both.estimates["t", "ips", None].value == pytest.approx(
        np.mean((weights(log, 1.5) - other) * log["r"]), abs=1e-12
    )
    assert AllOdds().excess(0.6, 0.5) == pytest.approx(0.2)
    assert AllOdds().difference(0.6, 0.5, 0.5) == pytest.approx(0.2)


def test_every_engine_gives_the_same_bounds(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    log = pl.DataFrame(a_log(reward="ratings"))
    path = tmp_path / "log.parquet"
    log.write_parquet(path)
    connection = duckdb.connect()
    connection.sql(f"CREATE TABLE log AS SELECT * FROM '{path}'")
    for cluster in (None, "user"):
        expected = None
        for data, extra in (
            (log, {}),
            (log.lazy(), {}),
            (str(path), {}),
            (connection, {"table": "log"}),
            (log.to_pandas(), {}),
        ):
            asked = ASKED | {"reward": "r * r", "cluster": cluster}
            found = cp.sensitivity(data, **asked, **extra)
            numbers = [x for one in found.table().rows() for x in one[1:]] + [found.tipping_point]
            expected = expected or numbers
            assert numbers == pytest.approx(expected, rel=1e-9)


def test_it_shows_itself(tmp_path):
    log = a_log()
    found = cp.sensitivity(log, **ASKED, gamma=[2, 1.25])
    assert found.table()["gamma"].to_list() == [1.25, 2.0]
    assert str(found.tipping()) in repr(found)
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    axes = found.plot()
    assert axes.get_legend_handles_labels()[1][-1].startswith("could flip")
    pyplot.close("all")
    result = cp.evaluate(log, **ASKED)
    page = result.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "If the propensities were wrong" in page
    assert str(result.sensitivity().tipping()).partition(" (95")[0] in page
    assert "If the propensities were wrong" not in result.report(tmp_path / "short.html", rows=False).read_text("utf-8")


def test_the_command_says_the_same(tmp_path):
    path = tmp_path / "log.parquet"
    pl.DataFrame(a_log()).write_parquet(path)
    options = ["sensitivity", str(path), "--reward", "r", "--propensity", "p", "--target", "t"]
    shown = invoke(*options, "--gamma", "1.5")
    found = cp.sensitivity(str(path), **ASKED, gamma=1.5)
    assert f"factor of {found.tipping_point:.3g}" in " ".join(shown.stdout.split())
    document = json.loads(invoke(*options, "--json").stdout)
    assert document["tipping_points"][0]["sure"] == pytest.approx(found.tipping_point)
    assert [one["gamma"] for one in document["bounds"]] == [1.0, 1.2, 1.5, 2.0]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"gamma": 0.5}, "not a factor of at least 1"),
        ({"gamma": [True]}, "not a factor"),
        ({"gamma": []}, "at least one factor"),
        ({"reward": ["r", "user"]}, "one reward"),
        ({"control": {"user": 0.0}}, "leave out control="),
        ({"model_reward": "r", "model_value": "r"}, "leave out model_reward="),
    ],
)
def test_what_makes_no_sense_is_refused(changed, said):
    with pytest.raises(cp.OptionError, match=said):
        cp.sensitivity(a_log(), **ASKED | changed)


def test_results_without_their_rows_are_refused(tmp_path):
    log = a_log()
    with pytest.raises(cp.OptionError, match="the log itself"):
        cp.sensitivity(cp.evaluate(log, **ASKED).moments)
    with pytest.raises(cp.OptionError, match="plain weight"):
        cp.evaluate(log, **ASKED, weight=cp.weights.Clip(5)).sensitivity()
    with pytest.raises(cp.OptionError, match="no target 'x'"):
        cp.evaluate(log, **ASKED).sensitivity(target="x")
    with pytest.raises(cp.OptionError, match="no target 'x'"):
        cp.sensitivity(log, **ASKED).bounds(1.5, "x")
    state = tmp_path / "sums.json"
    for day in ("1", "2"):
        result = cp.evaluate(log, **ASKED, state=state, batch=day)
    with pytest.raises(cp.OptionError, match="earlier logs"):
        result.sensitivity()
