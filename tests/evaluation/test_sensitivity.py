"""Bounds under wrong propensities: equal to a search over every possibility, as uncertain as they say, and right about a confounder."""

import itertools
import json
import math

import numpy as np
import polars as pl
import pytest
from command_line import invoke
from messages import refuses
from scipy.optimize import linprog

import counterpoise as cp
from counterpoise.evaluation.sensitivity import LIFT, VALUE, self_normalized_lift
from counterpoise.moments.bins import DIFFERENCE, PairBins
from counterpoise.weights.biased import AllOdds, Odds

pytestmark = pytest.mark.once

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
    found = several.of("clicked").sensitivity().bounds(1.5)
    for name in ("value", "value_interval", "lift", "lift_interval"):  # up to the order in which threads add up
        assert list(getattr(found, name)) == pytest.approx(list(getattr(expected, name)), abs=1e-12)
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
        value, error = found._extreme("t", gamma, VALUE, upper=True)
        given = cp.evaluate(
            log | {"w": w}, reward="r", weight="w", cluster=cluster, interval="normal" if cluster is None else None
        )
        assert value == pytest.approx(given["w", "snips"].value, abs=1e-12)
        assert error == pytest.approx(given["w", "snips"].stderr, rel=1e-9)
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


@pytest.mark.thorough
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
    with refuses(cp.OptionError):
        cp.sensitivity(cp.evaluate(log, **ASKED).moments)
    with refuses(cp.OptionError):
        cp.evaluate(log, **ASKED, weight=cp.weights.Clip(5)).sensitivity()
    with refuses(cp.OptionError):
        cp.evaluate(log, **ASKED).sensitivity(target="x")
    with refuses(cp.OptionError):
        cp.sensitivity(log, **ASKED).bounds(1.5, "x")
    state = tmp_path / "sums.json"
    for day in ("1", "2"):
        result = cp.evaluate(log, **ASKED, state=state, batch=day)
    with refuses(cp.OptionError):
        result.sensitivity()


def two_targets(n=3000, seed=3, reward="clicks"):
    """A log of two targets that are mostly alike, whose probabilities depend on a context."""
    g = np.random.default_rng(seed)
    log = a_log(n, seed, reward)
    log["t"] = np.clip(log["t"] * g.uniform(0.5, 1.3, n), 0, 1)
    return log | {"o": np.clip(log["t"] * g.uniform(0.8, 1.2, n), 0, 1)}


def difference(log, odds):
    a, b = (weights(log | {"t": log[name]}, odds) for name in "to")
    return (a @ log["r"]) / a.sum(axis=-1) - (b @ log["r"]) / b.sum(axis=-1)


def largest_by_programs(log, gamma):
    """The largest difference: for each ratio κ of the sums of weights it is a linear program in λ/Σw and 1/Σw."""
    q, r, n = (1 - log["p"]) / log["p"], log["r"], len(log["r"])
    limits = np.block([[np.eye(n), np.full((n, 1), -gamma)], [-np.eye(n), np.full((n, 1), 1 / gamma)]])

    def most(kappa):
        both = log["t"] - kappa * log["o"]
        equal = np.array([np.append(log["t"] * q, log["t"].sum()), np.append(both * q, both.sum())])
        solved = linprog(-np.append(both * q * r, both @ r), limits, np.zeros(2 * n), equal, [1.0, 0.0])
        return -solved.fun if solved.status == 0 else -np.inf

    low, high = 0.5 * log["t"].sum() / log["o"].sum(), 2.0 * log["t"].sum() / log["o"].sum()
    for _ in range(4):  # ever closer around the best ratio
        kappas = np.linspace(low, high, 31)
        found = [most(kappa) for kappa in kappas]
        best = int(np.argmax(found))
        low, high = kappas[max(best - 1, 0)], kappas[min(best + 1, 30)]
    return found[best]


@pytest.mark.parametrize("seed", range(4))
def test_the_bounds_of_a_difference_are_the_extremes_over_odds_that_both_targets_share(seed):
    """No corner of the cube of λ is beyond them, and neither is any point inside, which linear programs look for."""
    log = {name: column[:9] for name, column in two_targets(seed=seed, reward="ratings").items()}
    log["r"] = log["r"] + np.arange(9) / 7
    found = cp.sensitivity(log, **ASKED, against="o").bounds(2.5)
    corners = difference(log, np.array(list(itertools.product((0.4, 2.5), repeat=9))))
    assert found.lift[0] <= corners.min() + 1e-12
    assert found.lift[1] >= corners.max() - 1e-12
    turned = log | {"r": -log["r"]}
    for side, rows in ((found.lift[1], log), (-found.lift[0], turned)):
        most = largest_by_programs(rows, 2.5)
        assert most - 1e-9 <= side <= most + 1e-5  # the programs' ratios are a grid
    values = cp.sensitivity(log, **ASKED | {"target": ["t", "o"]})
    (low, high), (least, most) = (values.bounds(2.5, name).value for name in "to")
    assert found.value == pytest.approx((low, high), abs=1e-9)
    assert low - most < found.lift[0] < found.lift[1] < high - least  # each at its worst, which cannot be at once


@pytest.mark.parametrize("reward", ["clicks", "amounts"])
def test_bins_lose_little_of_the_bounds_of_a_difference(reward):
    log = two_targets(2000, reward=reward)
    found = cp.sensitivity(log, **ASKED, against="o")
    rows = np.arange(2000)
    each = PairBins.of(rows, np.zeros(2000, int), *(log[name] for name in "rpto"), (2000, 1), 0.0)
    for gamma in (1.0, 1.5, 3.0):
        low, high = (
            float(each.value(each.sums_at(each.extreme(gamma, DIFFERENCE, upper=up)), DIFFERENCE))
            for up in (False, True)
        )
        least, most = found.bounds(gamma).lift
        assert low - 1e-9 <= least <= most <= high + 1e-9
        assert most - least == pytest.approx(high - low, rel=0.01, abs=1e-12)


def test_errors_of_a_difference_are_those_of_what_rows_add_to_it():
    log = two_targets(reward="ratings")
    for cluster in (None, "user"):
        found = cp.compare(log, **ASKED, against="o", cluster=cluster).sensitivity([1.0, 1.5])
        assert (found.targets, found.against, found.n) == (("t",), "o", 3000)
        pair = found.pairs["t"]
        ones = np.ones(len(pair.sums))
        a, b = log["t"] / log["p"], log["o"] / log["p"]
        one, two = (a @ log["r"]) / a.sum(), (b @ log["r"]) / b.sum()
        parts = a * (log["r"] - one) / a.sum() - b * (log["r"] - two) / b.sum()
        value, error = found._extreme("t", 1.0, LIFT, upper=True)
        assert value == pytest.approx(one - two, abs=1e-12)
        if cluster is None:
            assert error == pytest.approx(math.sqrt((parts**2).sum()), rel=1e-9)
            errors = [pair.stderr(np.full(len(ones), odds), DIFFERENCE) for odds in (0.5, 2.0)]
            assert errors[0] < error < errors[1]
        else:
            by_user = np.bincount(log["user"], parts)
            assert error == pytest.approx(math.sqrt((by_user**2).sum()), rel=0.25)
        tips = found.tipping()
        assert found.bounds(tips.point).lift[0 if tips.lift > 0 else 1] == pytest.approx(0.0, abs=1e-5)
        assert "than o" in str(tips)
        assert found.verdict() == cp.compare(log, **ASKED, against="o", cluster=cluster).verdict()


def test_differences_of_every_kind_of_log_have_the_same_bounds(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    log = pl.DataFrame(two_targets(reward="ratings"))
    path = tmp_path / "log.parquet"
    log.write_parquet(path)
    connection = duckdb.connect()
    connection.sql(f"CREATE TABLE log AS SELECT * FROM '{path}'")
    expected = cp.sensitivity(log, **ASKED, against="o", cluster="user").table()
    for data, extra in ((str(path), {}), (connection, {"table": "log"})):
        found = cp.sensitivity(data, **ASKED, against="o", cluster="user", **extra).table()
        for name in ("lift_from", "lift_to", "lift_lower", "lift_upper"):
            assert found[name].to_list() == pytest.approx(expected[name].to_list(), rel=1e-9)
    page = cp.compare(log, **ASKED, against="o").report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "difference from o" in page
    asked = ["--reward", "r", "--propensity", "p", "--target", "t", "--against", "o"]
    shown = " ".join(invoke("sensitivity", str(path), *asked).stdout.split())
    assert "difference from o" in shown
    assert "than o" in " ".join(invoke("compare", str(path), *asked, "--sensitivity").stdout.split())


def test_a_verdict_says_the_tipping_point_if_asked(tmp_path):
    log = a_log()
    result = cp.evaluate(log, **ASKED, segment="p")
    plain, told = result.verdict(), result.verdict(sensitivity=True)
    assert told.verdict == plain.verdict
    assert told.reasons == (*plain.reasons, str(result.sensitivity().tipping()))
    with refuses(cp.OptionError):
        result.verdict(segment=0.1, sensitivity=True)
    path = tmp_path / "log.parquet"
    pl.DataFrame(log).write_parquet(path)
    asked = ["evaluate", str(path), "--reward", "r", "--propensity", "p", "--target", "t", "--json"]
    assert json.loads(invoke(*asked, "--sensitivity").stdout)["verdicts"][0]["reasons"] == list(told.reasons)
    assert json.loads(invoke(*asked).stdout)["verdicts"][0]["reasons"] == list(plain.reasons)


def test_a_verdict_says_that_sensitivity_knows_no_baseline():
    g = np.random.default_rng(0)
    x, w = g.normal(size=2000), g.choice([0.4, 1.6], 2000)
    log = {"r": 2 * x + 0.125 * w + 0.3 * g.normal(size=2000), "p": np.full(2000, 0.5), "new": 0.5 * w, "x": x}
    found = cp.compare(log, reward="r", propensity="p", target="new", baseline=["x"])
    assert found.interval.lower > 0
    assert (
        found.verdict(sensitivity=True)
        .reasons[-1]
        .startswith(
            "By weights and rewards alone, which is all that sensitivity uses: The log does not show whether new earns more or less"
        )
    )
    plain = cp.compare(log, reward="r", propensity="p", target="new").verdict(sensitivity=True).reasons[-1]
    assert plain.startswith("The log does not show")
