"""What an answer states: one estimator behind the value and the change, possible intervals, and no number where there is none."""

import json
import math
import re
from html import unescape

import numpy as np
import pytest

import counterpoise as cp
from counterpoise.estimators import ESTIMATORS
from counterpoise.evaluation.reading import read
from counterpoise.evaluation.showing import evaluation
from counterpoise.moments import LogMoments
from counterpoise.report.page import render
from counterpoise.weights import Weight

WEIGHTS = {"ratio": None, "clip": cp.weights.Clip(1.5), "own": "w"}
VALUES = [name for name, estimator in ESTIMATORS.items() if not estimator.is_difference]


def shop(n=2000, seed=0, rate=0.2):
    """A log of two actions, whose model knows half of what it could, and a weight of one's own whose mean is 1.3."""
    g = np.random.default_rng(seed)
    old = g.random(n) < 0.5
    action = np.where(g.random(n) < np.where(old, 0.3, 0.6), 1, 0)
    p = np.where(action == 1, np.where(old, 0.3, 0.6), np.where(old, 0.7, 0.4))
    t = np.where(action == 1, 0.8, 0.2)
    clicks = rate + 0.15 * action + 0.2 * old
    model = rate + np.array([0.0, 0.1])
    return {
        "click": (g.random(n) < clicks).astype(float),
        "p": p,
        "t": t,
        "w": 1.3 * t / p,
        "q": model[action],
        "v": np.full(n, model @ [0.2, 0.8]),
        "old": old.astype(float),
        "user": np.arange(n) // 4,
    }


def asked(weight, **more):
    how = {"weight": "w"} if weight == "own" else {"target": "t", "propensity": "p", "weight": WEIGHTS[weight]}
    return {"reward": "click", **how, **more}


# -- One estimator behind a sentence -----------------------------------------------------------------------------------


@pytest.mark.parametrize("cluster", [None, "user"])
@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("name", VALUES)
def test_value_change_and_footer_are_those_of_one_estimator(name, weight, cluster):
    model = {"model_reward": "q", "model_value": "v"} if ESTIMATORS[name].needs == "model" else {}
    baseline = {"baseline": ["old"]} if name == "context_ips" else {}
    result = cp.evaluate(shop(), **asked(weight, **model, **baseline, cluster=cluster), groups=50, estimator=name)
    change = read(result).best
    document = evaluation(result)
    assert document["estimates"][0]["estimator"] == name
    assert f"by {name}" in repr(result)
    if name == "dm":  # of which no difference is a part
        assert change.lift is None
        assert document["changes"][0]["difference"] is None
        return
    gain = change.value.value - change.ran
    # the best baselines of a value and of a difference are not quite the same, where weights average 1 by luck alone
    assert change.lift.value == pytest.approx(gain, abs=0.2 * change.lift.stderr)
    assert change.relative.value == pytest.approx(change.lift.value / change.ran)
    (said,) = document["changes"]
    assert said["difference"]["value"] == pytest.approx(change.lift.value)
    assert said["difference"]["value"] == pytest.approx(
        document["estimates"][0]["value"] - document["logged"]["mean"], abs=0.2 * change.lift.stderr
    )
    # what the sentence says of the change is what its two values say, to their digits
    page = unescape(re.sub(r"<[^>]+>", " ", render(result)))
    for text in (repr(result), re.sub(r"<[^>]+>", "", result._repr_html_()), page):
        share, start, end = re.search(r"([+−][\d.]+)\s%\s+click.*?from\s+([\d.]+)\s+to\s+([\d.]+)", text, re.S).groups()
        share = float(share.replace("−", "-"))
        assert share == pytest.approx(100 * (float(end) / float(start) - 1), abs=2.5), text


@pytest.mark.thorough
def test_the_lift_of_an_estimator_has_the_error_it_has():
    names = ["snips", "ips", "cross_fit", "dr", "sndr", "auto", "beta_ips"]
    values, errors = {name: [] for name in names}, {name: [] for name in names}
    for seed in range(120):
        log = shop(500, seed=seed)
        for name in names:
            result = cp.evaluate(log, **asked("ratio", model_reward="q", model_value="v"), groups=20, estimator=name)
            lift = read(result).best.lift
            values[name].append(lift.value)
            errors[name].append(lift.stderr)
    for name in names:
        spread = np.std(values[name], ddof=1)  # which 120 logs know to 7 %
        error = np.sqrt(np.mean(np.square(errors[name])))
        if name == "auto":  # whose error includes how far it leans
            assert 0.78 * spread < error < 1.5 * spread
        else:
            assert error == pytest.approx(spread, rel=0.22), name


# -- Intervals end where rewards do --------------------------------------------------------------------------------------


def thin(n=300, seed=0, rate=0.3, reward=float):
    """A log in which the target's favorite came up in a few rows."""
    g = np.random.default_rng(seed)
    rare = g.random(n) < 0.03
    clicks = g.random(n) < np.where(rare, rate, 0.05)
    return {"r": clicks.astype(reward), "p": np.where(rare, 0.03, 0.97), "t": np.where(rare, 0.8, 0.2)}


ASKED = {"reward": "r", "propensity": "p", "target": "t"}


def wide(**options):
    """The first thin log whose interval is impossible without bounds."""
    for seed in range(50):
        log = thin(seed=seed)
        amounts = log | {"r": 1.5 * log["r"]}
        result = cp.evaluate(amounts, **ASKED, **options)
        lower, upper = result["t", "beta_ips"].interval
        if lower < -0.1 or upper > 1.6:
            return log
    raise AssertionError


def test_intervals_of_clicks_end_at_0_and_1():
    log = wide()
    result = cp.evaluate(log, **ASKED)
    plain = cp.evaluate(log | {"r": 1.5 * log["r"]}, **ASKED)
    mean = log["r"].mean()
    clipped = 0
    for (_, name, _), estimate in result.estimates.items():
        lower, upper = estimate.interval
        if name == "lift":
            assert -mean - 0.1 <= lower
            assert upper <= 1 - mean + 0.1
        else:
            assert 0.0 <= lower <= upper <= 1.0
        free = plain["t", name]
        assert estimate.value == pytest.approx(free.value / 1.5)
        assert estimate.stderr == pytest.approx(free.stderr / 1.5)
        clipped += (lower, upper) != pytest.approx((free.interval.lower / 1.5, free.interval.upper / 1.5), rel=1e-6)
    assert clipped
    for row in evaluation(result)["estimates"]:
        assert row["estimator"] == "lift" or 0.0 <= row["lower"] <= row["upper"] <= 1.0
    other = cp.compare(log | {"o": log["p"] ** 2}, **ASKED, against="o")
    assert other.interval.lower >= -1.0
    assert other.interval.upper <= 1.0
    stored = LogMoments.from_json(result.moments.to_json())
    assert tuple(cp.evaluate(stored)["t", "beta_ips"].interval) == tuple(result["t", "beta_ips"].interval)


def test_a_share_of_what_ran_is_never_less_than_nothing():
    g = np.random.default_rng(1)
    rare = g.random(4000) < 0.001
    log = {"r": g.random(4000) < np.where(rare, 0.4, 0.1), "p": np.where(rare, 0.001, 0.999)}
    log["t"] = np.where(rare, 0.7, 0.3)
    change = read(cp.evaluate(log, **ASKED)).best
    amounts = read(cp.evaluate(log | {"r": 3.0 * log["r"]}, **ASKED)).best
    assert amounts.relative.interval.lower < -1.0  # of amounts, nobody knows what they may be
    assert change.relative.interval.lower == -1.0
    assert change.relative.interval.upper <= 1 / 0.07 - 1
    assert change.relative.value == pytest.approx(amounts.relative.value)


def test_a_change_beyond_what_is_possible_has_an_interval_that_says_nothing():
    g = np.random.default_rng(0)
    click = g.integers(0, 2, 4000)
    # a target that takes the logged action wherever there was a click, as one that remembers its rows does
    log = {"r": click, "p": np.full(4000, 1 / 3), "t": np.where(click == 1, 1.0, g.random(4000) < 0.05)}
    change = read(cp.evaluate(log, **ASKED)).best
    assert change.lift.value > change.lift.interval.upper
    assert change.relative.interval.lower == -1.0
    assert change.relative.interval.upper > 0.9  # all clicks, of about half
    assert change.decision == "not decided"


@pytest.mark.parametrize("rewards", ["scores", "amounts", "promised", "amounts below 1"])
def test_which_rewards_have_bounds(rewards):
    log, g = wide(), np.random.default_rng(0)
    sizes = {"scores": 1.0, "amounts": 5.0, "promised": 5.0, "amounts below 1": 0.83}[rewards]
    log["r"] = sizes * log["r"] * np.where(g.random(300) < 0.2, 0.5, 1.0)
    how = {"reward_bounds": (0.0, 5.0)} if rewards == "promised" else {}
    lower, upper = cp.evaluate(log, **ASKED, **how)["t", "beta_ips"].interval
    is_possible = lower >= 0.0 and upper <= sizes
    assert is_possible == (rewards in ("scores", "promised"))


def test_what_is_no_mean_of_rewards_has_no_bounds():
    g = np.random.default_rng(0)
    n = 600
    log = {"r": g.integers(0, 2, n), "w": g.exponential(2.5, n) * 2, "d": g.uniform(0.2, 0.4, n)}
    log |= {"p": np.full(n, 0.5), "t": np.full(n, 0.6), "list": np.arange(n) // 3, "place": np.arange(n) % 3 + 1}
    assert cp.evaluate(log, reward="r", weight="w").interval.upper > 1.0
    assert cp.evaluate(log, reward=cp.Ratio("r", "d"), propensity="p", target="t").interval.upper > 1.0
    lists = cp.evaluate(log, **ASKED, slate="list", position="place", propensity_of="item_at_position")
    assert lists.interval.upper > 1.0


@pytest.mark.parametrize("interval", ["student", "normal", "anytime"])
def test_every_verb_ends_where_rewards_do(interval):
    log = wide()
    log["o"] = 1.0 - log["t"]
    ranked = cp.rank(log, **(ASKED | {"target": ["t", "o"]}), against="logging", interval=interval)
    for policy in ranked:
        assert not math.isfinite(policy.interval.upper) or -1.0 <= policy.interval.lower <= policy.interval.upper <= 1.0
    bounds = cp.sensitivity(log, **ASKED).bounds(1.5)
    assert 0.0 <= bounds.value_interval.lower <= bounds.value_interval.upper <= 1.0
    assert -0.5 <= bounds.lift_interval.lower <= bounds.lift_interval.upper <= 1.0


def test_an_estimate_that_is_impossible_says_nothing():
    random = np.random.default_rng(0)
    n = 2000
    log = {
        "r": random.random(n) < 0.9,
        "p": np.full(n, 0.25),
        "t": np.full(n, 0.5),
    }  # propensities half of what they are
    result = cp.evaluate(log, **ASKED, estimator="ips")
    assert result.value > 1.5
    assert tuple(result.interval) == (0.0, 1.0)
    assert result.verdict().verdict != "ok"
    assert cp.compare(log, **ASKED).verdict().verdict != "ok"


# -- No number where there is none ---------------------------------------------------------------------------------------


def silent():
    g = np.random.default_rng(0)
    n = 3000
    t = g.choice([0.02, 0.18], n)
    return {"r": g.random(n) < 4 * t, "p": np.full(n, 0.5), "t": t, "c": np.arange(n) % 2}


@pytest.mark.parametrize("verb", ["evaluate", "compare"])
def test_what_is_not_identified_has_no_number(verb):
    log = silent()
    log["o"] = log["p"]
    how = ASKED | {"segment": "c"} | ({"against": "o"} if verb == "compare" else {})
    result = getattr(cp, verb)(log, **how)
    assert result.verdict().verdict == "not identified"
    value = result["t", "beta_ips"].value
    assert math.isfinite(value)  # what the estimator makes of it is still there to look at
    page = unescape(re.sub(r"<[^>]+>", " ", render(result)))
    document = json.dumps(result.document())
    shown = [repr(result), result._repr_html_(), str(result.table()), page, document]
    for text in shown:
        for digits in (f"{value:.4f}", f"{value:.3f}"):
            assert digits not in text, (digits, text)
    for row in result.document().get("estimates", ()):
        assert row["value"] is row["stderr"] is row["lower"] is row["upper"] is None
    for row in result.document()["changes"]:
        assert row["difference"] is row["relative"] is None
    if verb == "compare":
        assert math.isnan(cp.rank(result)[0].value)


def test_an_error_that_two_rows_carry_is_not_printed():
    g = np.random.default_rng(2)
    n = 2000
    w = np.where(np.arange(n) < 2, 900.0, 0.1)
    log = {"r": g.random(n) < 0.3, "p": np.full(n, 0.001), "t": 0.001 * w}
    result = cp.evaluate(log, **ASKED)
    assert result.diagnostics().effective_sample_size < 7
    for text in (repr(result), result._repr_html_()):
        assert "±" not in text
    assert str(result.cells(result.estimates).cells()[0][3]) == ""
    assert result.table()["stderr"][0] > 0  # a number for those who compute with it
    many = cp.evaluate(shop(), **asked("ratio"))
    assert "±" in repr(many)


# -- Weights of one's own ------------------------------------------------------------------------------------------------


class Smoothed(Weight):
    """Weights that stand for the importance weight, as clipped ones do."""

    def weight(self, target, propensity):
        return target / (propensity + 0.1)


def test_weights_that_do_not_average_1_are_taken_as_they_are(tmp_path):
    log = shop(4000)
    result = cp.evaluate(log, reward="click", weight="w")
    value = float(np.mean(log["w"] * log["click"]))
    assert result.best == "ips"
    assert result.value == pytest.approx(value)
    change = read(result).best
    assert change.lift.value == pytest.approx(value - log["click"].mean())
    assert result["w", "lift"].value == pytest.approx(value - log["click"].mean())
    assert change.decision == "better"
    assert cp.evaluate(log, reward="click", weight="w", estimator=["snips", "beta_ips"]).best == "snips"
    chosen = cp.evaluate(log, reward="click", weight="w", estimator="snips")
    assert chosen.best == "snips"
    assert chosen.value == pytest.approx(np.average(log["click"], weights=log["w"]))
    ratio = cp.evaluate(log | {"d": 1.0 + log["old"]}, reward=cp.Ratio("click", "d"), weight="w")
    assert ratio.best == "snips"
    of_baseline = cp.evaluate(log, reward="click", weight="w", baseline=["old"])
    assert of_baseline.best == "ips"
    assert of_baseline.value == pytest.approx(value)
    half = {name: column[:2000] for name, column in log.items()}, {name: column[2000:] for name, column in log.items()}
    for k, rows in enumerate(half):
        stored = cp.evaluate(rows, reward="click", weight="w", state=tmp_path / "state.json", batch=str(k))
    assert stored.best == "ips"
    assert stored.value == pytest.approx(value)


def test_weights_that_do_average_1_keep_their_baseline():
    log = shop(4000)
    log["w"] /= 1.3
    assert cp.evaluate(log, reward="click", weight="w").best == "beta_ips"
    for weight in (cp.weights.Clip(1.5), Smoothed()):
        biased = cp.evaluate(log, reward="click", propensity="p", target="t", weight=weight)
        assert biased.best == "beta_ips"  # what it leaves out is filled in
    two = {"a": log["w"], "b": 1.5 * log["w"]}
    pair = cp.compare(log | two, reward="click", weight=["a"], against={"b": "b"})
    assert pair.best == "ips"
    assert pair.value == pytest.approx(np.mean((two["a"] - two["b"]) * log["click"]))
