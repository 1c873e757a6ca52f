"""What a state keeps of every batch for good: the day's value, lift, rewards and weights with their errors, by name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from counterpoise.display import Cell, Name, Number, Table
from counterpoise.estimators import Estimate
from counterpoise.evaluation.answer import comparison_of, evaluation_of
from counterpoise.evaluation.checks import RewardMoments
from counterpoise.evaluation.estimates import options_of
from counterpoise.evaluation.result import Result
from counterpoise.evaluation.view import View
from counterpoise.log.parts import Minimize
from counterpoise.moments.log_moments import Segment
from counterpoise.moments.state import MomentsOfRewards, State, Summaries
from counterpoise.readers import batches

start = batches.start

LIFT, VALUE, REWARD, WEIGHT, PROPENSITIES = "lift", "value", "reward", "weight", "propensities"
ERROR, CARRYING = " error", " carrying rows"  # of a number that has this name


def finish(job: batches.Addition, today: MomentsOfRewards, rewards: Sequence[str]) -> tuple[MomentsOfRewards, Minimize]:
    """The stored moments with today's, and today's summaries with them; and which rewards are to be small, if anybody said."""
    return batches.finish(job, today, lambda moments: summaries_of(moments, rewards))


def summaries_of(moments: MomentsOfRewards, rewards: Sequence[str | None]) -> Summaries:
    """The summaries of a batch from its moments, one for each reward."""
    return summaries_at(*answers_of(moments, rewards))


def answers_of(moments: MomentsOfRewards, rewards: Sequence[str | None]) -> tuple[Result, Result | None]:
    """What the moments say about the targets' values; and about differences, if they are those of a comparison."""
    whole = RewardMoments(tuple(moments), tuple(rewards)).over_policies()
    options = options_of(None, 0.95, whole.rewards, is_clustered=whole.is_clustered)
    is_comparison = any(against for _, against in whole.moments[0].moments)
    return evaluation_of(whole, options, ()), comparison_of(whole, options) if is_comparison else None


def summaries_at(values: Result, differences: Result | None = None, place: Segment = None) -> Summaries:
    """The summaries of a whole log, or of one segment of it: numbers by reward, by target, and by name.

    The target "" is the logging policy. A number has its error, and how many rows carry that error. What is not identified is left out.
    """
    return {
        str(name): {"": _of_rewards(result, place)}
        | {
            target: _of_target(result, None if differences is None else differences.by_reward[name], target, place)
            for target in result.targets
        }
        for name, result in values.by_reward.items()
    }


def _of_rewards(result: Result, place: Segment) -> dict[str, float]:
    """The mean reward of the logging policy."""
    view = View(result.moments, next(iter(result.moments.moments)))
    k, whole = view.place(place), view.whole
    rows = int(whole.n[k])
    mean = float(np.asarray(whole.center + whole.average("s"))[k])
    carrying = rows / float(np.asarray(view.rewards.kurtosis)[k])
    return {"rows": rows, **_numbers(REWARD, mean, float(view.mean_error("s")[k]), carrying)}


def _of_target(result: Result, differences: Result | None, target: str, place: Segment) -> dict[str, float]:
    """A target's value and lift, the mean of its weights, and how evenly they are spread."""
    diagnostics = result.diagnostics(target, place)
    of_lift = result if differences is None else differences
    name = LIFT if differences is None else differences.best
    lift = of_lift.estimates.get((target, name, place))
    numbers = _estimate(VALUE, result[target, result.best, place], diagnostics.carrying_rows)
    numbers |= {} if lift is None else _estimate(LIFT, lift, diagnostics.carrying_rows)
    numbers |= _numbers(WEIGHT, diagnostics.mean_weight, diagnostics.mean_weight_stderr, diagnostics.weight_rows)
    view = View(result.moments, (target, ""))
    return numbers | _spread(view, view.place(place), diagnostics.mean_weight_stderr, diagnostics.weight_rows)


def _estimate(name: str, estimate: Estimate, carrying: float) -> dict[str, float]:
    return _numbers(name, estimate.value, estimate.stderr, carrying)


def _spread(view: View, k: int, error: float, carrying: float) -> dict[str, float]:
    r"""The effective share of the rows, (Σw)²/(n·Σw²), with its error by the delta method.

    The mean propensity is not among the sums that a log is reduced to. This share is, and moves whenever propensities do: it falls if
    those of what the target takes become smaller, whatever the rewards are.
    """
    powers = view.excess[k]
    if powers.n < 2:
        return {}
    middle = float(powers.middle)
    m, second, third, fourth = 1.0 + middle, *(float(powers.mean(order, middle)) for order in (2, 3, 4))
    square = m * m + second
    if not (second > 0 and square > 0 and math.isfinite(fourth)):
        return {}
    # of the mean m of w and the mean of w²: the share m²/square has these slopes
    slope, slope_of_square = 2 * m / square, -(m * m) / square**2
    both, of_square = third + 2 * m * second, fourth + 4 * m * third + 4 * m * m * second - second**2
    variance = slope**2 * second + 2 * slope * slope_of_square * both + slope_of_square**2 * of_square
    design = error / math.sqrt(second / powers.n) if view.is_clustered else 1.0  # as clusters change the mean's error
    return _numbers(PROPENSITIES, m * m / square, design * math.sqrt(max(variance, 0.0) / powers.n), carrying)


def _numbers(name: str, value: float, error: float, carrying: float) -> dict[str, float]:
    """A number with its error, or nothing if it is not identified."""
    known = {name: value, name + ERROR: error, name + CARRYING: carrying}
    return {key: float(x) for key, x in known.items()} if all(map(math.isfinite, known.values())) else {}


def number_in(summary: Mapping[str, object], name: str) -> float | None:
    """A number of a summary by its name, if it has one."""
    value = summary.get(name)
    return float(value) if isinstance(value, int | float) else None


def summarized(state: State) -> State:
    """A state with summaries of all batches that it keeps apart, also of those that an earlier version wrote."""
    return state.summarized(lambda moments: summaries_of(moments, state.rewards))


def by_batch(state: State, last: int) -> Table:
    """What every target would have earned in each of the last batches, and how much more than the logging policy."""
    rows: list[dict[str, Cell]] = []
    for batch in state.batches[-last:]:
        known = (
            (reward, target, numbers)
            for reward, targets in batch.summaries.items()
            if isinstance(targets, Mapping)
            for target, numbers in targets.items()
            if target and isinstance(numbers, Mapping)
        )
        for reward, target, numbers in known:
            cells: dict[str, Cell] = {"batch": Name(batch.name)}
            cells |= {"reward": Name(reward)} if len(state.rewards) > 1 else {}
            cells["target"] = Name(target)
            for kind in (VALUE, LIFT):
                value, error = number_in(numbers, kind), number_in(numbers, kind + ERROR)
                cells |= {kind: Number(value, error, kind == LIFT), f"{kind} ±": Number(error, error)}
            rows.append(cells)
    return Table(rows)
