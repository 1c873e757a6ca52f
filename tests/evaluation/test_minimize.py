"""`minimize=`: less is better. Numbers keep their signs; words, decisions, orders and next steps turn around."""

import json
import re
from functools import partial

import numpy as np
import polars as pl
import pytest
from messages import refuses

import counterpoise as cp
from counterpoise.errors import OptionError
from counterpoise.evaluation import wording
from counterpoise.evaluation.reading import read
from counterpoise.evaluation.watch import watch
from counterpoise.log.parts import sounds_like_cost

PARTS = {"propensity": "p", "action": "a"}
TURNED = {"better": "worse", "worse": "better"}


def shop(n: int = 6000, seed: int = 0) -> pl.DataFrame:
    """Rows on which `more` costs more than the logging policy, `less` costs less, and `same` what it costs."""
    random = np.random.default_rng(seed)
    a = random.integers(0, 2, n)
    cost = 2.0 + a + random.exponential(size=n)
    return pl.DataFrame(
        {
            "cost": cost,
            "gain": -cost,
            "quality": (random.random(n) < 0.3 + 0.2 * a) * 1.0,
            "a": a,
            "arm": np.where(a == 1, "B", "A"),
            "p": np.full(n, 0.5),
            "more": np.where(a == 1, 0.9, 0.1),
            "less": np.where(a == 1, 0.2, 0.8),
            "same": np.full(n, 0.5),
            "x": random.normal(size=n),
            "sessions": random.integers(1, 4, n),
            "country": np.where(np.arange(n) % 3 == 0, "DE", "FR"),
            "day": [f"2026-03-{1 + k * 30 // n:02}" for k in range(n)],
        }
    )


LOG = shop()


def both(verb, **asked):
    """The answers about what the actions cost, and about the same with the other sign, of which more is better."""
    return verb(LOG, reward="cost", minimize="cost", **asked), verb(LOG, reward="gain", **asked)


def test_a_policy_that_costs_more_is_worse_and_is_not_to_be_tested_live():
    result = cp.evaluate(LOG, **PARTS, reward="cost", target="more", minimize="cost")
    reading = read(result)
    assert result.value > reading.best.ran  # the number keeps its sign
    assert reading.best.relative.value > 0
    assert reading.best.decision == "worse"
    assert str(wording.next_steps(reading)[0]) == "Keep the logging policy."
    assert "Worse than the logging policy" in str(wording.sentence(reading))
    gain = read(cp.evaluate(LOG, **PARTS, reward="cost", target="less", minimize=True))
    assert gain.next_steps[0].kind == "test"


@pytest.mark.parametrize(
    "name", ["cost", "total_cost", "latencyMs", "churned", "refunds", "error_rate", "is_bounced", "time_to_resolution"]
)
def test_a_name_that_sounds_like_a_cost_makes_a_question_and_no_decision(name):
    log = LOG.rename({"cost": name})
    result = cp.evaluate(log, **PARTS, reward=name, target="more")
    reading = read(result)
    assert result.minimize is None
    assert result.verdict().verdict == "ok"  # the number is what it is
    assert reading.best.decision == "higher"
    assert [caveat.code for caveat in result.verdict().caveats] == ["less-may-be-better"]
    said = str(result)
    assert not re.search("better than|Better|worse|Test it live", said.replace("less of", ""))
    assert read(cp.evaluate(log, **PARTS, reward=name, target="less")).best.decision == "lower"


@pytest.mark.parametrize(
    "name",
    [
        *(
            "click",
            "reward",
            "revenue",
            "conversion",
            "watch_time",
            "ctr",
            "sales",
            "profit",
            "rating",
            "score",
            "retention",
            "margin",
        ),
        *(
            "time_spent",
            "session_time_total",
            "dwell_time",
            "purchase",
            "r",
            "y",
            "orders",
            "gmv",
            "utility",
            "distance",
        ),
        *(
            "lossless",
            "costume",
            "cost_saving",
            "costSavings",
            "error_free",
            "no_error",
            "loss_prevented",
            "churn_prevented",
            "weight_loss",
        ),
        *(
            "reward_minus_cost",
            "net_of_cost",
            "clicks_per_cost",
            "neg_cost",
            "latency_reduction",
            "-cost",
            "revenue - cost",
            "100 - cost",
        ),
    ],
)
def test_other_names_ask_nothing(name):
    assert not sounds_like_cost(name)


def test_the_question_is_answered_by_what_it_advises():
    log = LOG.with_columns(latency="cost")
    (caveat,) = cp.evaluate(log, **PARTS, reward="latency", target="more").verdict().caveats
    answers = re.findall(r"minimize=('\w+'|\w+)", str(caveat.do))
    assert answers == ["'latency'", "False"]
    for answer, decision in zip(answers, ("worse", "better"), strict=True):
        result = cp.evaluate(log, **PARTS, reward="latency", target="more", minimize=eval(answer))
        assert not result.verdict().caveats
        assert read(result).best.decision == decision


TARGETS = ["more", "less", "same"]


def decisions_of(result):
    return {change.target: change.decision for change in read(result).changes}


MIRRORED = {
    "evaluate": lambda **how: decisions_of(cp.evaluate(**how, **PARTS, target=TARGETS)),
    "compare": lambda **how: decisions_of(cp.compare(**how, **PARTS, target=TARGETS)),
    "rank": lambda **how: [
        (one.target, one.decision, round(one.p, 6)) for one in cp.rank(**how, **PARTS, target=TARGETS)
    ],
    "segments": lambda **how: {
        change.where: change.decision
        for change in read(cp.evaluate(**how, **PARTS, target="more", segment="country")).segments()
    },
    "best": lambda **how: read(cp.evaluate(**how, **PARTS, target=TARGETS)).best.target,
    "foremost": lambda **how: read(cp.evaluate(**how, **PARTS, target=TARGETS)).foremost(2),
    "plan": lambda **how: (
        (made := cp.plan(**how, **PARTS, target="more", difference=0.05, actions=2)).needs,
        [(mixed.needs, round(mixed.cost, 9)) for mixed in made.exploration],
        made.ok_rows,
    ),
    "ab_test": lambda **how: cp.ab_test(**how, arm="arm").decision("B"),
    "sensitivity": lambda **how: round(cp.sensitivity(**how, **PARTS, target="more").tipping_point, 4),
    "next": lambda **how: [step[:20] for step in wording.next_steps(read(cp.evaluate(**how, **PARTS, target="more")))],
}


@pytest.mark.parametrize("verb", MIRRORED)
def test_less_of_a_cost_is_as_good_as_more_of_its_negative(verb):
    cost, gain = (MIRRORED[verb](log=LOG, reward=name, minimize=way) for name, way in (("cost", True), ("gain", None)))
    assert cost == gain
    if verb in ("evaluate", "compare"):  # and it turns the decisions of those who say that more is better
        plain = MIRRORED[verb](log=LOG, reward="cost", minimize=False)
        assert {target: TURNED.get(decision, decision) for target, decision in plain.items()} == cost


def test_the_rows_that_show_a_saving_are_those_that_show_a_gain_of_its_size():
    """Where terms are skewed, an unlucky log has another spread on the other side of 0."""
    random = np.random.default_rng(6)
    rare = random.random(8000) < 0.05
    cost = random.exponential(size=8000) * (1 + rare)
    log = pl.DataFrame({"cost": cost, "gain": -cost, "p": np.where(rare, 0.05, 0.95), "new": np.where(rare, 0.2, 0.8)})
    asked = {"propensity": "p", "target": "new", "difference": 0.1}
    saved = cp.plan(log, **asked, reward="cost", minimize=True)
    assert saved.needs == cp.plan(log, **asked, reward="gain").needs
    assert saved.needs.power_rows != cp.plan(log, **asked, reward="cost", minimize=False).needs.power_rows
    assert "a difference of −0.1" in str(saved)


def test_the_best_of_many_is_the_cheapest_and_is_listed_first():
    result = cp.evaluate(LOG, **PARTS, reward="cost", target=TARGETS, minimize="cost")
    assert [change.target for change in read(result).changes] == ["less", "same", "more"]
    assert str(wording.sentence(read(result))).startswith("less, the best of 3")
    unsaid = cp.evaluate(LOG, **PARTS, reward="cost", target=TARGETS)
    assert str(wording.sentence(read(unsaid))).startswith("more, the highest of 3")


def test_a_ranking_by_an_unsaid_direction_asks():
    ranked = cp.rank(LOG, **PARTS, reward="cost", target=TARGETS)
    assert [one.decision for one in ranked] == ["higher", "undecided", "lower"]
    assert "minimize=True" in str(ranked)
    assert "minimize" not in str(cp.rank(LOG, **PARTS, reward="cost", target=TARGETS, minimize=True))


def test_several_rewards_each_go_their_own_way():
    result = cp.evaluate(LOG, **PARTS, reward=["quality", "cost"], target="more", minimize="cost")
    assert {name: answer.minimize for name, answer in result.by_reward.items()} == {"quality": False, "cost": True}
    assert {name: read(answer).best.decision for name, answer in result.by_reward.items()} == {
        "quality": "better",
        "cost": "worse",
    }
    assert result.of("cost").asked().log.minimize is True
    document = result.document()
    assert (document["minimize"], document["others"]["cost"]["minimize"]) == (False, True)
    both = cp.evaluate(LOG.with_columns(delay="cost"), **PARTS, reward=["delay", "cost"], target="more", minimize=True)
    assert [answer.minimize for answer in both.by_reward.values()] == [True, True]


def test_ratios_lists_of_names_and_arrays_take_it():
    ratio = cp.evaluate(LOG, **PARTS, reward=cp.Ratio("cost", "sessions"), target="more", minimize=True)
    assert read(ratio).best.decision == "worse"
    arrays = {name: LOG[name].to_numpy() for name in ("cost", "p", "more")}
    made = cp.evaluate(
        reward={"cost": arrays["cost"]}, propensity=arrays["p"], target=arrays["more"], minimize=["cost"]
    )
    assert read(made).best.decision == "worse"
    log = cp.Log(LOG, reward="cost", propensity="p", minimize=True)
    assert "minimize=True" in repr(log)
    assert read(cp.evaluate(log.but(where="country = 'DE'"), target="more")).best.decision == "worse"
    assert cp.evaluate(log.but(reward="gain", minimize=False), target="more").minimize is False


@pytest.mark.parametrize("wrong", ["price", ["cost", "price"], 3, {"cost": True}, []])
def test_what_is_no_reward_is_refused(wrong):
    with refuses(OptionError):
        cp.evaluate(LOG, **PARTS, reward="cost", target="more", minimize=wrong)


def test_moments_take_it_and_a_state_remembers_it(tmp_path):
    asked = PARTS | {"reward": "cost", "target": ["more", "less"]}
    result = cp.evaluate(LOG, **asked, minimize="cost")
    assert cp.evaluate(result.moments).minimize is False  # stored moments have forgotten even the reward's name
    assert read(cp.evaluate(result.moments, minimize=True)).best.target == "less"
    state = tmp_path / "costs.state"
    cp.evaluate(LOG.head(3000), **asked, minimize="cost", state=state, batch="1")
    assert cp.evaluate(LOG.tail(3000), **asked, state=state, batch="2").minimize is True  # said once
    known = cp.evaluate(state=state)
    assert known.minimize is True
    assert decisions_of(known) == {"less": "better", "more": "worse"}
    assert decisions_of(cp.evaluate(state=state, minimize=False)) == {"less": "worse", "more": "better"}
    with refuses(OptionError):
        cp.evaluate(state=state, minimize="click")
    watched = watch(state)
    assert any("Less cost is better" in note for note in watched.notes)


def test_a_state_that_was_made_before_asks_and_learns_the_answer(tmp_path):
    asked = PARTS | {"reward": "cost", "target": "more"}
    state = tmp_path / "old.state"
    cp.evaluate(LOG.head(3000), **asked, state=state, batch="1")
    assert "minimize" not in json.loads(state.read_bytes())["question"]  # as 0.3 wrote it
    assert cp.evaluate(state=state).minimize is None
    assert read(cp.evaluate(state=state, minimize="cost")).best.decision == "worse"
    assert cp.evaluate(LOG.tail(3000), **asked, minimize="cost", state=state, batch="2").minimize is True
    assert cp.evaluate(state=state).minimize is True


def test_days_of_a_cost_say_what_a_lift_means():
    watched = watch(LOG, **PARTS, reward="cost", target="more", day="day", minimize="cost", alert="lift > 0")
    assert watched.alerts[0].fired
    assert watched.alerts[0].text.endswith("; worse).")
    assert {series.minimize for series in watched.series if series.kind != "rows"} == {True}
    unsaid = watch(LOG, **PARTS, reward="cost", target="more", day="day", alert="lift > 0")
    assert unsaid.alerts[0].text.endswith("; higher).")
    assert "minimize='cost'" in unsaid.notes[0]


def test_an_arm_that_costs_more_is_worse():
    test = cp.ab_test(LOG, arm="arm", reward="cost", minimize="cost")
    assert (test["B"].value > 0, test.decision("B")) == (True, "worse")
    assert test.document()["decisions"] == {"B": "worse"}
    unsaid = cp.ab_test(LOG, arm="arm", reward="cost")
    assert unsaid.decision("B") == "higher"
    assert "minimize='cost'" in str(unsaid)


def test_pages_show_where_the_number_goes_and_whether_that_is_good(tmp_path):
    page = (
        cp.evaluate(LOG, **PARTS, reward="cost", target="less", minimize="cost")
        .report(tmp_path / "less.html")
        .read_text()
    )
    assert '<b class="better">▼ Better than the logging policy.</b>' in page
    assert "All of the interval is below 0, and less is better." in page
    page = (
        cp.evaluate(LOG, **PARTS, reward="cost", target="more", minimize="cost")
        .report(tmp_path / "more.html")
        .read_text()
    )
    assert '<b class="worse">▲ Worse than the logging policy.</b>' in page
    page = cp.evaluate(LOG, **PARTS, reward="cost", target="more").report(tmp_path / "unsaid.html").read_text()
    assert '<b class="open">▲ Higher than the logging policy.</b>' in page
    page = cp.ab_test(LOG, arm="arm", reward="cost", minimize="cost").report(tmp_path / "test.html").read_text()
    assert '<b class="worse">▲ Worse than A.</b>' in page
    assert "Keep A." in page


def test_the_conclusion_that_flips_is_named_with_what_it_means():
    more = str(cp.sensitivity(LOG, **PARTS, reward="cost", target="more", minimize=True).tipping())
    less = cp.sensitivity(LOG, **PARTS, reward="cost", target="less", minimize=True)
    assert "more than the logging policy, which is worse, unless" in more
    assert "less than the logging policy, which is better, unless" in str(less.tipping())
    assert less.document()["minimize"] is True
    paired = cp.sensitivity(LOG, **PARTS, reward="cost", target="less", against="more", minimize=True)
    assert "less than more, which is better" in str(paired.tipping())


def test_the_doctor_asks():
    codes = [
        finding
        for finding in cp.doctor(LOG, reward="cost", propensity="p", target="more").findings
        if finding.about == "cost"
    ]
    assert any("minimize='cost'" in str(finding.message) for finding in codes)
    said = cp.doctor(LOG, reward="cost", propensity="p", target="more", minimize="cost").findings
    assert not any("minimize" in str(finding.message) for finding in said)


@pytest.mark.parametrize("verb", [partial(cp.distribution, LOG), partial(cp.sql, table="logs", dialect="duckdb")])
def test_verbs_without_a_direction_refuse_it_in_words(verb):
    asked = {"reward": "cost", "propensity": "p", "target": "more"}
    with refuses(OptionError):
        verb(minimize="cost", **asked)


def test_a_comparison_of_two_targets_has_no_single_number():
    compared = cp.compare(LOG, **PARTS, reward="gain", target=["more", "less"])
    for name in ("value", "stderr", "interval", "baseline", "difference"):
        with refuses(OptionError):
            getattr(compared, name)
    assert cp.compare(LOG, **PARTS, reward="gain", target="more").value == compared["more", "beta_ips"].value
