"""vw-estimators: sums to which rows are added one by one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from estimators.bandits import cats_utils, clopper_pearson, cressieread, cs, gaussian, ips, snips
from estimators.ccb import pdis_cressieread
from estimators.slates import gaussian as slates_gaussian
from estimators.slates import pseudo_inverse
from estimators.utils import ds_parse

from peer.data import Floats, Lists, Log, draw_lists, draw_log

VERSION = ("vw-estimators", "estimators")
Estimates = dict[str, Any]


def numbers(value: float | None, interval: list[float | None]) -> tuple[float, ...]:
    """An estimate with its interval; the library says None where it has no answer."""
    return tuple(math.nan if each is None else float(each) for each in (value, *interval))


def bounds(reward: Floats) -> dict[str, bool]:
    """Its intervals take rewards from 0 to 1, and raise an error otherwise unless they may follow the data."""
    return {"empirical_r_bounds": True} if bool((reward > 1).any() or (reward < 0).any()) else {}


def estimates(p_log: list[float], reward: list[float], p_pred: list[float], options: dict[str, bool]) -> Estimates:
    by_ips, by_snips, by_cressieread = ips.Estimator(), snips.Estimator(), cressieread.Estimator()
    of_ips, of_cressieread = gaussian.Interval(), cressieread.Interval(**options)
    every = (by_ips, by_snips, by_cressieread, of_ips, of_cressieread)
    for p, r, target in zip(p_log, reward, p_pred, strict=True):
        for each in every:
            each.add_example(p, r, target)
    return {
        "ips": numbers(by_ips.get(), of_ips.get()),
        "snips": numbers(by_snips.get(), [None, None]),  # it has no interval for SNIPS
        "cressieread": numbers(by_cressieread.get(), of_cressieread.get()),
    }


def evaluate(log: Log) -> Callable[[], Estimates]:
    columns, options = [each.tolist() for each in (log.propensity, log.reward, log.target())], bounds(log.reward)
    return lambda: estimates(*columns, options) | {"says": ""}


def targets(log: Log) -> Callable[[], Estimates]:
    p, reward, options = log.propensity.tolist(), log.reward.tolist(), bounds(log.reward)
    columns = [log.target(k).tolist() for k in range(len(log.policies))]

    def call() -> Estimates:
        every = [estimates(p, reward, target, options) for target in columns]
        return {f"{k} {name}": one for k, each in enumerate(every) for name, one in each.items()}

    return call


def lists(log: Lists) -> Callable[[], Estimates]:
    """The pseudo-inverse estimator; the reward of a list is the sum of its items'."""
    p, target = log.matrix("propensity").tolist(), log.matrix("target").tolist()
    reward = log.matrix("reward").sum(axis=1).tolist()

    def call() -> Estimates:
        estimator, interval = pseudo_inverse.Estimator(), slates_gaussian.Interval()
        for p_logs, r, p_preds in zip(p, reward, target, strict=True):
            estimator.add_example(p_logs, r, p_preds)
            interval.add_example(p_logs, r, p_preds)
        return {"pi": numbers(estimator.get(), interval.get()), "says": ""}

    return call


# -- features ---------------------------------------------------------------------------------------------------------------


def fill(sums: Any, log: Log, rows: slice = slice(None), **options: float) -> Any:
    for p, r, target in zip(log.propensity[rows], log.reward[rows], log.target()[rows], strict=True):
        sums.add_example(float(p), float(r), float(target), **options)
    return sums


def normalizes() -> None:
    log = draw_log(200, 4)
    log.reward[:] = 1.0
    assert math.isclose(fill(snips.Estimator(), log).get(), 1.0)


def has_intervals() -> None:
    log = draw_log(2000, 4)
    for each in (gaussian, clopper_pearson, cressieread, cs):
        lower, upper = fill(each.Interval(), log).get(0.05)
        assert lower < log.truths[0] < upper


def evaluates_lists() -> None:
    log = draw_lists(5000, 5)
    value, lower, upper = lists(log)()["pi"]
    assert lower < value < upper


def evaluates_episodes() -> None:
    """Slots of conditional bandits, each with the product of the weights so far: importance sampling per decision."""
    log = draw_lists(5000, 2)
    sums = pdis_cressieread.Estimator()
    for p, r, target in zip(*(log.matrix(name).tolist() for name in ("propensity", "reward", "target")), strict=True):
        sums.add_example(p, r, target)
    assert len(sums.get()) == 2
    assert abs(sum(sums.get()) - log.truth) < 0.1


def evaluates_continuous_actions() -> None:
    """The density of its policy for continuous actions, at what was logged: uniform around the middle of a bin."""
    transformer = cats_utils.CatsTransformer(num_actions=4, bandwidth=1, max_value=8, min_value=0)
    line = b'{"_label_ca":{"cost":-1,"pdf_value":0.125,"action":2.5},"Timestamp":"2017-10-24T00:00:15.5160000Z","c":{}}'
    event = transformer.transform(ds_parse.json_cooked_continuous_actions(line), 3.0)
    sums = ips.Estimator()
    sums.add_example(event["p"], -event["cost"], event["pred_p"])
    assert math.isclose(sums.get(), 4.0)


def corrects_for_dropped_rows() -> None:
    log = draw_log(4000, 4)
    all_rows = fill(gaussian.Interval(), log).get()
    half = fill(gaussian.Interval(), log, slice(0, None, 2), p_drop=0.5).get()
    assert abs(sum(half) - sum(all_rows)) < 0.1


def adds_sums() -> None:
    log = draw_log(200, 4)
    for each in (ips.Estimator, snips.Estimator, cressieread.Estimator):
        days = fill(each(), log, slice(0, 100)) + fill(each(), log, slice(100, None))
        assert math.isclose(days.get(), fill(each(), log).get())


def event_line(cost: float, p: float, action: int) -> str:
    """A line of Vowpal Wabbit's dsjson."""
    actions = [action, *(each for each in (1, 2, 3) if each != action)]
    return json.dumps(
        {"_label_cost": cost, "_label_probability": p, "_label_Action": action, "_labelIndex": action - 1,
         "Timestamp": "2017-10-24T00:00:15.5160000Z", "Version": "1", "EventId": "fa68cd9a71764118a635fd3d7a908634",
         "a": actions, "c": {}, "p": [p, (1 - p) / 2, (1 - p) / 2]},
        separators=(",", ":"),
    )  # fmt: skip


def reads_vowpal_wabbit() -> None:
    event = ds_parse.json_cooked(event_line(-1, 0.5, 2).encode())
    assert (float(event["cost"]), event["p"], event["a"], event["num_a"]) == (-1.0, 0.5, 2, 3)


# no "a command line": its script basic-usage.py cannot be started as installed, since math.py beside it hides Python's
FEATURES = {
    "self-normalized IPS": normalizes,
    "confidence intervals": has_intervals,
    "continuous actions": evaluates_continuous_actions,
    "lists and rankings": evaluates_lists,
    "episodes of many steps": evaluates_episodes,
    "logs that kept only a sample of the rows": corrects_for_dropped_rows,
    "stored sums to which days are added": adds_sums,
    "logs of Vowpal Wabbit": reads_vowpal_wabbit,
}
