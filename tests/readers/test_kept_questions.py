"""A state answers one question: a day that asks another is refused, unless the change is proven to move nothing."""

from dataclasses import fields

import numpy as np
import polars as pl
import pytest
from sklearn.linear_model import Ridge

import counterpoise as cp
from counterpoise.errors import MomentsError
from counterpoise.log.parts import LogFields
from counterpoise.log.question import Question

pytestmark = pytest.mark.once

RANDOM = np.random.default_rng(0)


class Softmax:
    """A policy over three actions; among candidates, if there are any."""

    classes_, candidates_ = np.arange(3), None

    def __init__(self, slope):
        self.slope = slope

    def predict_proba(self, table, candidates=None):
        scores = np.exp(self.slope * np.asarray(table, dtype=float)[:, :1] * self.classes_)
        if candidates is not None:
            scores *= np.array([[one in pool for one in self.classes_] for pool in candidates.to_list()])
        return scores / scores.sum(axis=1, keepdims=True)


def day(n=120):
    """One day, with a column for every part that a log may have, and a second one like it."""
    x, action = RANDOM.normal(size=n), RANDOM.integers(0, 3, n)
    frame = pl.DataFrame(
        {
            "a": action, "b": RANDOM.permutation(action), "x": x, "y": RANDOM.normal(size=n),
            "r": (RANDOM.random(n) < 0.3 + 0.2 * action).astype(float), "s": RANDOM.normal(size=n),
            "p": np.full(n, 1 / 3), "p2": np.full(n, 0.3), "t": RANDOM.uniform(0.1, 0.9, n), "t2": RANDOM.uniform(0.1, 0.9, n),
            "q": RANDOM.random(n), "v": RANDOM.random(n), "who": RANDOM.choice(["A", "B"], n), "whose": RANDOM.choice(["A", "B"], n),
            "user": np.arange(n) // 2, "session": np.arange(n) // 3, "id": np.arange(n), "c": RANDOM.normal(size=n),
            "list": np.arange(n) // 3, "query": np.arange(n) // 3 + 7, "place": np.arange(n) % 3 + 1, "rank": (np.arange(n) + 1) % 3 + 1,
            "d": np.full(n, 0.5), "pool": [[0, 1, 2]] * n, "few": [[one, (one + 1) % 3] for one in action],
            "over": (np.arange(n) % 3 == 2) * 1.0, "lists": [[0.2, 0.3, 0.5]] * n, "lists2": [[0.5, 0.3, 0.2]] * n,
        }
    )  # fmt: skip
    return frame.with_columns(country=pl.when(pl.col("x") > 0).then(pl.lit("DE")).otherwise(pl.lit("FR")))


DAYS = day(), day()
BASE = {"reward": "r", "propensity": "p", "target": {"new": "t"}}
POLICY = BASE | {"action": "a", "context": ["x"], "target": {"new": Softmax(1.0)}}
MODELED = POLICY | {"model": Ridge()}
EPISODES = BASE | {"episode": "list", "step": "place"}
LISTS = BASE | {"slate": "list", "position": "place", "propensity_of": "item_given_above"}
LOGGERS = BASE | {"propensity": {"A": "p", "B": "p2"}, "logger": "who"}
LABELED = BASE | {"proxy": "q", "observed": "over"}
ITEMS = pl.DataFrame({"a": [0, 1, 2], "price": [1.0, 5.0, 2.0]})
LISTED = MODELED | {"target": {"new": cp.Probabilities("lists")}, "items": ITEMS}
GROUPS = {0: "x", 1: "y", 2: "y"}


class Doubled(cp.weights.Importance):
    """A weight of one's own."""

    def weight(self, target, propensity):
        return target / propensity


class Halved(Doubled):
    """Another formula by the same name."""

    def weight(self, target, propensity):
        return target / propensity / 2


Halved.__name__ = Halved.__qualname__ = "Doubled"

# part: the question of the first day, and what the second day changes in it
REFUSED = {
    "reward": (BASE, {"reward": "s"}),
    "reward, one more": (BASE, {"reward": ["r", "s"]}),
    "propensity": (BASE, {"propensity": "p2"}),
    "propensity, by a model": (POLICY | {"propensity": "model"}, {"propensity": cp.models.Propensity("logistic", folds=2)}),
    "propensity, of loggers": (LOGGERS, {"propensity": {"A": "p2", "B": "p"}}),
    "logger": (LOGGERS, {"logger": "whose"}),
    "action": (POLICY, {"action": "b"}),
    "action, of a choice": (BASE | {"action": "a", "target": {"new": cp.Chosen("b")}}, {"action": "b"}),
    "context": (POLICY, {"context": ["y"]}),
    "candidates": (POLICY | {"candidates": "pool"}, {"candidates": "few"}),
    "candidates, no more": (POLICY | {"candidates": "few"}, {"candidates": None}),
    "cluster": (BASE | {"cluster": "user"}, {"cluster": "session"}),
    "key": (BASE | {"key": "id"}, {"key": "user"}),
    "keep": (BASE | {"keep": "p"}, {"keep": "p2"}),
    "per": (BASE | {"per": "t"}, {"per": "t2"}),
    "keep, no more": (BASE | {"keep": "p"}, {"keep": None}),
    "keep, a number": (BASE | {"keep": "p"}, {"keep": 0.5}),
    "proxy": (LABELED, {"proxy": "v"}),
    "proxy, no more": (LABELED, {"proxy": None, "observed": None}),
    "observed": (LABELED, {"observed": "1 - over"}),
    "label_propensity": (LABELED | {"label_propensity": "p"}, {"label_propensity": "p2"}),
    "model_reward": (BASE | {"model_reward": "q", "model_value": "v"}, {"model_reward": "v"}),
    "model_value": (BASE | {"model_reward": "q", "model_value": "v"}, {"model_value": "q"}),
    "model": (MODELED, {"model": Ridge(5.0)}),
    "model, no more": (MODELED, {"model": None}),
    "items": (LISTED, {"items": ITEMS.reverse()}),
    "items, no more": (LISTED, {"items": None}),
    "items, other columns": (MODELED | {"items": ITEMS}, {"items": ITEMS.with_columns(size=1.0)}),
    "value_samples": (MODELED | {"value_samples": 2}, {"value_samples": 1}),
    "control": (BASE | {"control": {"c": 0.0}}, {"control": {"c": 1.0}}),
    "baseline": (BASE | {"baseline": ["x"]}, {"baseline": ["y"]}),
    "baseline, other levels": (BASE | {"baseline": {"country": ["DE"]}}, {"baseline": {"country": ["FR"]}}),
    "baseline, no more": (BASE | {"baseline": ["x"]}, {"baseline": None}),
    "slate": (LISTS, {"slate": "query"}),
    "slate, no more": (LISTS, {"slate": None, "position": None, "propensity_of": None}),
    "position": (LISTS, {"position": "rank"}),
    "propensity_of": (LISTS, {"propensity_of": "item_at_position"}),
    "discount": (LISTS, {"discount": "dcg"}),
    "discount, another column": (LISTS | {"discount": "d"}, {"discount": None}),
    "episode": (EPISODES, {"episode": "query"}),
    "episode, no more": (EPISODES, {"episode": None, "step": None}),
    "episode, as lists": (EPISODES, LISTS | {"episode": None, "step": None}),
    "step": (EPISODES, {"step": "rank"}),
    "discount_factor": (EPISODES, {"discount_factor": 0.9}),
    "done": (EPISODES, {"done": "over"}),
    "where": (BASE, {"where": "x > 0"}),
    "groups": (BASE | {"groups": 10}, {"groups": 20}),
    "drop_bad_rows": (BASE, {"drop_bad_rows": True}),
    "target": (BASE, {"target": {"new": "t2"}}),
    "target, by another name": (BASE, {"target": {"newer": "t"}}),
    "target, another policy": (POLICY, {"target": {"new": Softmax(2.0)}}),
    "target, other lists": (LISTED, {"target": {"new": cp.Probabilities("lists2")}}),
    "target, another choice": (BASE | {"action": "a", "target": {"new": cp.Chosen("a")}}, {"target": {"new": cp.Chosen("b")}}),
    "target, another action": (BASE | {"action": "a", "target": {"new": cp.Always(0)}}, {"target": {"new": cp.Always(1)}}),
    "target, an action and no column": (BASE | {"action": "a", "target": {"new": cp.Always(0)}}, {"target": {"new": cp.Chosen("b")}}),
    "target, groups": (
        BASE | {"action": "a", "target": {"new": cp.ActionGroup("lists", "lists2", GROUPS)}},
        {"target": {"new": cp.ActionGroup("lists", "lists2", {0: "y", 1: "y", 2: "x"})}},
    ),
    "target, groups of other lists": (
        BASE | {"action": "a", "target": {"new": cp.ActionGroup("lists", "lists2", GROUPS)}},
        {"target": {"new": cp.ActionGroup("lists", "lists2", dict(reversed(GROUPS.items())))}},
    ),
    "segment": (BASE, {"segment": "country"}),
    "weight": (BASE, {"weight": cp.weights.Clip(2.0)}),
    "weight, another constant": (BASE | {"weight": cp.weights.Clip(2.0)}, {"weight": cp.weights.Clip(3.0)}),
    "weight, another formula": (BASE | {"weight": Doubled()}, {"weight": Halved()}),
    "interval, other sums": (BASE, {"interval": "log_smoothing"}),
}  # fmt: skip

# part: why it may change, and the questions of both days
HARMLESS = {
    "shares": ("a day's own: what a row weighs that day", LOGGERS | {"shares": {"A": 1, "B": 1}}, {"shares": {"A": 2, "B": 1}}),
    "rows_before": ("a day's own", BASE | {"keep": "p2", "rows_before": 400}, {"rows_before": 401}),
    "minimize": ("what the sums mean, and no part of them", BASE, {"minimize": "r"}),
    "trained_on": ("what the rows are to policies, and no part of the sums", BASE, {"trained_on": False}),
    "table": ("where the rows are", BASE, {}),
    "query": ("where the rows are", BASE, {}),
    "external_access": ("how the rows are read", BASE, {}),
    "timeout": ("how long a database may take", BASE, {}),
    "format": ("how the rows are read", BASE, {}),
    "max_segments": ("how many segments are too many", BASE, {}),
    "reward_bounds": ("checked against all rewards that the state has seen", BASE, {"reward_bounds": (0.0, 1.0)}),
    "action": ("not read: the target is a column", BASE | {"action": "a"}, {"action": "b"}),
    "context": ("not read: the target is a column", BASE | {"context": ["x"]}, {"context": ["y"]}),
    "candidates": ("not read: the target is a column", BASE | {"candidates": "pool"}, {"candidates": "few"}),
    "items": ("a model is fitted anew every day", MODELED | {"items": ITEMS}, {"items": ITEMS.with_columns(price=pl.col("price") * 2)}),
    "shares, not given": ("those that the rows have", LOGGERS, {}),
    "level": ("of the answer, not of the sums", BASE, {"level": 0.9}),
    "estimator": ("of the answer, not of the sums", BASE, {"estimator": "ips"}),
}  # fmt: skip


@pytest.mark.parametrize("part", list(REFUSED))
def test_a_day_that_asks_something_else_is_refused(part, tmp_path):
    first, change = REFUSED[part]
    state = tmp_path / "state.json"
    cp.evaluate(DAYS[0], **first, state=state, batch="mon")
    before = state.read_bytes()
    with pytest.raises(MomentsError):
        cp.evaluate(DAYS[1], **(first | change), state=state, batch="tue")
    assert state.read_bytes() == before
    cp.evaluate(DAYS[1], **first, state=state, batch="tue")  # the same question is not refused


@pytest.mark.parametrize("part", list(HARMLESS))
def test_what_may_change_moves_nothing(part, tmp_path):
    """The state adds up the days as they are answered alone: n·value of both is that of the whole."""
    _, first, change = HARMLESS[part]
    state = tmp_path / "state.json"
    cp.evaluate(DAYS[0], **first, state=state, batch="mon")
    both = cp.evaluate(DAYS[1], **(first | change), state=state, batch="tue")
    alone = [cp.evaluate(DAYS[0], **first), cp.evaluate(DAYS[1], **(first | change))]
    expected = sum(one.n * one["new", "ips"].value for one in alone) / sum(one.n for one in alone)
    assert both["new", "ips"].value == pytest.approx(expected, rel=1e-12)


def test_no_part_of_a_log_or_a_question_is_left_out():
    tried = {name.partition(",")[0] for name in (*REFUSED, *HARMLESS)}
    assert tried >= set(LogFields.__annotations__) - {"cross_fit"}  # which no state takes
    held = {  # what the parts of a question are made of
        "log": "reward", "targets": "target", "weight": "weight", "contrasts": "target", "segment": "segment", "groups": "groups",
        "model_value": "model_value", "smoothings": "interval", "features": "baseline", "model": "model",
        "propensity_model": "propensity", "sequences": "slate",
        "is_binned": None, "is_about_rows": None, "learning": None,  # of questions inside, which no state answers
    }  # fmt: skip
    assert set(held) == {one.name for one in fields(Question)}
    assert {one for one in held.values() if one} <= tried


def test_another_rival_is_another_question(tmp_path):
    parts = BASE | {"target": {"new": "t", "old": "t2"}}
    cp.compare(DAYS[0], **parts, against="old", state=tmp_path / "state.json", batch="mon")
    with pytest.raises(MomentsError):
        cp.compare(DAYS[1], **parts, against="logging", state=tmp_path / "state.json", batch="tue")
