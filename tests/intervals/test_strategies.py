"""Interval methods are objects: the named and the given one agree, one of your own is as good, and nobody asks for their names."""

import ast
import copy
import math
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import polars as pl
import pytest
from command_line import shop
from messages import refuses

import counterpoise as cp
from counterpoise.estimators import DIFFERENCES, ESTIMATORS
from counterpoise.evaluation.answer import comparison_of, evaluation_of
from counterpoise.evaluation.checks import RewardMoments
from counterpoise.evaluation.estimates import IntervalOptions
from counterpoise.evaluation.evaluate import rank
from counterpoise.intervals import (
    INTERVALS,
    Anytime,
    Bernstein,
    Evidence,
    Interval,
    Jackknife,
    Method,
    Normal,
    Student,
    strategy,
)
from counterpoise.intervals.method import Wilson
from counterpoise.log.log import Log
from counterpoise.log.question import ask
from counterpoise.moments import Moments
from counterpoise.report.page import render
from counterpoise.weights import as_weight

QUESTION = {"reward": "click", "propensity": "p", "target": "pi_new"}
NAMED = [
    ({}, Normal()),
    ({}, Jackknife()),
    ({"tuned_for": 1e6}, Anytime(tuned_for=1e6)),
    ({"reward_bounds": (0, 1), "max_weight": 2}, Bernstein((0, 1), max_weight=2)),
]


class Chebyshev(Method):
    """A method of one's own."""

    name = "chebyshev"
    about = "Chebyshev intervals: for the cautious."

    def interval(self, evidence, level):
        half = evidence.stderr / math.sqrt(1 - level)
        return Interval(evidence.value - half, evidence.value + half, level, self.name)


@pytest.mark.parametrize(("options", "method"), NAMED, ids=[method.name for _, method in NAMED])
def test_a_name_with_its_options_and_the_object_are_the_same(options, method):
    everything = {"tuned_for": None, "reward_bounds": None, "max_weight": None} | options
    assert strategy(method.name, is_clustered=False, options=everything) == method
    assert strategy(method, is_clustered=True) is method


@pytest.mark.parametrize("name", ["normal", "jackknife", "anytime"])
def test_a_name_and_its_object_make_the_same_intervals(name):
    moments = cp.evaluate(
        shop(), **QUESTION, groups=50
    ).moments  # read once: sums differ in their last digits from pass to pass
    method = INTERVALS[name]()
    by_name, by_object = cp.evaluate(moments, interval=name), cp.evaluate(moments, interval=method)
    assert by_object.interval_method == by_name.interval_method == method
    assert by_object.method == name
    assert by_object.estimates == by_name.estimates
    assert {one.interval.method for one in by_object.estimates.values()} == {name}


def test_the_default_is_students_interval_whose_errors_allow_for_clusters():
    assert strategy(None, is_clustered=True) == strategy(None, is_clustered=False) == Student()
    assert [Student().uses_groups(is_clustered=one) for one in (True, False)] == [True, False]
    assert strategy("normal", is_clustered=True) == Normal()
    assert [INTERVALS[name].name for name in INTERVALS] == list(INTERVALS)


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        (
            "jacknife",
            "choose from student, normal, jackknife, anytime, bernstein, log_smoothing.*Did you mean 'jackknife'",
        ),
        (Jackknife, r"Pass an object, interval=Jackknife\("),
        (5, "interval=5 is not an interval; choose from student"),
        ("bernstein", r"cp\.intervals\.Bernstein\(reward_bounds=\(0, 1\), max_weight=10\)"),
    ],
    ids=str,
)
def test_what_is_no_method_is_refused_with_one_that_is(interval, words):
    with pytest.raises(cp.OptionError, match=words):
        strategy(interval, is_clustered=False)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Anytime(tuned_for=0), "tuned_for=0 is not a positive number"),
        (lambda: Anytime(tuned_for=True), "tuned_for"),
        (lambda: Bernstein((1, 0), 10), "the lower one first"),
        (lambda: Bernstein((0, 1, 2), 3), "reward_bounds"),
        (lambda: Bernstein(("a", "b"), 3), "reward_bounds"),
        (lambda: Bernstein((0, 1), 0), "max_weight=0 is not a positive"),
        (lambda: Bernstein((0, 1), "many"), "max_weight='many' is not a number"),
    ],
)
def test_a_method_refuses_its_own_bad_options(make, words):
    with pytest.raises(cp.OptionError, match=words):
        make()


def test_bounds_are_those_of_the_object():
    log = shop()
    with refuses(cp.LogError):
        cp.evaluate(log, **QUESTION, interval=Bernstein((0, 1), 1.5))
    with refuses(cp.LogError):
        cp.evaluate(log, **QUESTION, interval=Bernstein((0, 0.5), 2))
    with refuses(cp.OptionError):
        cp.evaluate(log, **QUESTION, interval=Bernstein((0, 1), 2), cluster="user_id")
    with refuses(cp.OptionError):
        cp.evaluate(log, **QUESTION, interval=Bernstein((0, 1), 2), estimator="snips")
    with refuses(cp.OptionError):
        cp.compare(log, **QUESTION, interval=Bernstein((0, 1), 2))


def test_a_method_of_ones_own_is_registered_and_known_everywhere(monkeypatch):
    monkeypatch.setitem(INTERVALS, "chebyshev", Chebyshev)
    log = shop()
    result = cp.evaluate(log, **QUESTION, segment="country", interval="chebyshev")
    for one in result.estimates.values():
        assert one.interval.width == pytest.approx(2 * one.stderr / math.sqrt(0.05))
    change = cp.compare(log, reward="click", propensity="p", target=["pi_new", "pi_old"], interval="chebyshev")
    ranked = {one.target: one for one in rank(change)}["pi_new"]
    assert ranked.interval.width == pytest.approx(
        change["pi_new", "beta_ips"].interval.width * math.sqrt(2)
    )  # for two targets at once
    page = render(result)
    assert "chebyshev intervals" in page
    assert Chebyshev.about in page


def test_a_method_may_ask_for_groups_estimators_and_values_alone():
    @dataclass(frozen=True)
    class Picky(Chebyshev):
        needs_groups: ClassVar[bool] = True
        allows_differences: ClassVar[bool] = False
        estimators: ClassVar[tuple[str, ...]] = ("snips", "ips")

    result = cp.evaluate(shop(), **QUESTION, interval=Picky())
    assert [name for _, name, _ in result.estimates] == ["snips", "ips"]
    by_groups = cp.evaluate(result.moments, interval="jackknife")
    assert result["pi_new", "snips"].stderr == by_groups["pi_new", "snips"].stderr
    with refuses(cp.OptionError):
        cp.compare(shop(), **QUESTION, interval=Picky())
    with refuses(cp.OptionError):
        cp.evaluate(cp.evaluate(shop(), **QUESTION).moments, interval=Picky())


def test_rewards_that_never_vary_have_the_score_of_the_method():
    class Doubled(Wilson):
        words = "twice Wilson's score"

        def ends(self, share, n, level):
            return tuple(2 * end for end in super().ends(share, n, level))

    class Own(Normal):
        score = Doubled()

    class Without(Normal):
        score = None

    log = {"r": np.zeros(100), "p": np.full(100, 0.5), "t": np.tile([0.4, 0.6], 50)}
    ends = [
        cp.evaluate(log, reward="r", propensity="p", target="t", interval=method)["t", "snips"].interval
        for method in (Normal(), Own(), Without())
    ]
    assert ends[1].upper == pytest.approx(2 * ends[0].upper)
    assert "twice Wilson's score" in ends[1].note
    assert tuple(ends[2]) == (0.0, 0.0)


@pytest.mark.once
def test_no_code_outside_the_intervals_asks_for_a_methods_name():
    source, methods = Path(cp.__file__).parent, {*INTERVALS, "chebyshev"}
    for path in source.rglob("*.py"):
        if path.parent.name == "intervals":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare | ast.MatchValue):
                constants = {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}
                assert not methods & constants, f"{path.relative_to(source)}, line {node.lineno}"


ENTRIES = [one for one in (*ESTIMATORS.values(), *DIFFERENCES.values()) if one.needs != "context"]


@pytest.mark.parametrize("entry", ENTRIES)
def test_estimators_leave_the_interval_open_and_say_so_when_it_is_asked_for(entry):
    g = np.random.default_rng(0)
    model = {"model_reward": g.random(50), "model_value": g.random(50)}
    one = Moments.of(g.random(50) * 2, g.random(50), **model)
    found = entry(Moments.stack([one, one]) if entry.needs == "groups" else one)
    assert math.isfinite(found.value)
    assert str(found).endswith(f"(n = {found.n})")
    for look in (lambda: found.interval.lower, lambda: tuple(found.interval), lambda: 0.0 in found.interval):
        with refuses(cp.OptionError):
            look()
    assert pickle.loads(pickle.dumps(found)) == copy.deepcopy(found) == found


def test_a_result_that_travelled_is_ranked_as_before():
    log = {"r": np.full(200, 3.7), "p": np.full(200, 0.5), "t": np.tile([0.4, 0.6], 100)}
    asked = {"reward": "r", "propensity": "p", "target": "t", "reward_bounds": (0, 5), "interval": Anytime(500)}
    change = cp.compare(log, **asked)
    back = pickle.loads(pickle.dumps(change))
    assert back.question is None
    assert back.interval_method == Anytime(500)
    assert rank(back) == rank(change)
    assert rank(back)[0].interval == change.interval


def several():
    log = shop().with_columns(revenue=shop()["click"] * 3.5)
    whole = Log(log, reward=["click", "revenue"], propensity="p", reward_bounds=(0, 10))
    weight, target = as_weight(None, "pi_new")
    return log, {against: ask(whole, target, weight=weight, against=against) for against in (None, "logging")}


def test_several_rewards_are_several_results_in_one():
    log, questions = several()
    asked = {"propensity": "p", "target": "pi_new", "reward_bounds": (0, 10)}
    single = [cp.evaluate(log, reward=name, **asked) for name in ("click", "revenue")]
    rewards, how = ("click", "revenue"), [IntervalOptions(0.95, Student(), (0, 10))] * 2
    result = evaluation_of(RewardMoments(tuple(one.moments for one in single), rewards, questions[None]), how, ())
    assert result.reward == "click"
    assert result.of("click") is result
    assert result.of("revenue").estimates == single[1].estimates
    assert result.estimates == single[0].estimates
    assert result.of("revenue").reward_bounds == (0, 10)
    assert pickle.loads(pickle.dumps(result)).of("revenue").estimates == single[1].estimates
    with refuses(cp.OptionError):
        result.of("revenu")
    single = [cp.compare(log, reward=name, **asked) for name in ("click", "revenue")]
    change = comparison_of(RewardMoments(tuple(one.moments for one in single), rewards, questions["logging"]), how)
    assert change.of("revenue").value == single[1].value == pytest.approx(3.5 * change.value)


def test_bounds_of_rewards_are_one_pair_for_all_or_by_name():
    # how far rewards that never vary might go, only their bounds say
    log = shop().with_columns(click=pl.lit(1.0), revenue=pl.lit(3.5))
    asked = {"propensity": "p", "target": "pi_new"}
    bounds = {"click": (0, 1), "revenue": (0, 10)}
    both = cp.evaluate(log, reward=["click", "revenue"], reward_bounds=bounds, **asked)
    for name, pair in bounds.items():
        alone = cp.evaluate(log, reward=name, reward_bounds=pair, **asked)
        assert both.of(name).estimates == alone.estimates
        assert both.of(name).reward_bounds == pair
    same = cp.evaluate(log, reward=["click", "revenue"], reward_bounds=(0, 10), **asked)
    assert same.of("revenue").estimates == both.of("revenue").estimates
    assert same["pi_new", "ips"].interval != both["pi_new", "ips"].interval
    assert cp.evaluate(log, reward="click", reward_bounds={"click": (0, 1)}, **asked).estimates == both.estimates


def test_a_method_that_is_passed_as_an_object_is_that_of_every_reward():
    log = shop().with_columns(revenue=shop()["click"] * 3.5)
    asked = {"propensity": "p", "target": "pi_new", "interval": cp.intervals.Bernstein((0, 10), 2)}
    both = cp.evaluate(log, reward=["click", "revenue"], **asked)
    for name in ("click", "revenue"):
        assert both.of(name).interval_method == Bernstein((0, 10), 2)
        assert both.of(name).estimates == cp.evaluate(log, reward=name, **asked).estimates


def test_bounds_may_be_known_of_some_rewards_only():
    log = shop().with_columns(nothing=pl.lit(0.0), money=pl.lit(5.0))
    asked = {"propensity": "p", "target": "pi_new", "reward": ["nothing", "money"]}
    for verb in (cp.evaluate, cp.compare):
        some = verb(log, reward_bounds={"money": (0, 20)}, **asked)
        assert some.of("nothing").reward_bounds is None
        assert math.isfinite(some.of("money")["pi_new", "beta_ips"].interval.width)
        assert not math.isfinite(verb(log, **asked).of("money")["pi_new", "beta_ips"].interval.width)


def test_bounds_that_name_no_reward_are_refused_before_the_log_is_read(tmp_path):
    asked = {"propensity": "p", "target": "pi_new", "reward": ["click", "revenue"]}
    with refuses(cp.OptionError):
        cp.evaluate(tmp_path / "none.parquet", **asked, reward_bounds={"clik": (0, 1)})
    with refuses(cp.OptionError):
        cp.evaluate(tmp_path / "none.parquet", **asked, reward_bounds={"click": (1, 0)})
    moments = cp.evaluate(shop(), reward="click", propensity="p", target="pi_new").moments
    with refuses(cp.OptionError):
        cp.evaluate(moments, reward_bounds={"click": (0, 1)})


def test_evidence_is_enough_for_every_method():
    evidence = Evidence(0.5, 0.01, 1000, groups=100, clusters=50.0)
    for method in (Normal(), Jackknife(), Anytime(), Bernstein((0, 1), 2)):
        found = method.interval(evidence, 0.9)
        assert (found.level, found.method) == (0.9, method.name)
        assert 0.5 in found
        assert found.width < method.interval(evidence, 0.99).width
