"""What rewards can be, where that is known before the log is seen."""

from __future__ import annotations

import math

from counterpoise.errors import Argument, LogError, OptionError


def check_reward_bounds(reward_bounds: tuple[float, float]) -> tuple[float, float]:
    """The least and the largest reward there can be."""
    try:
        low, high = (float(x) for x in reward_bounds)
    except (TypeError, ValueError) as error:
        raise _not_two(reward_bounds) from error
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise _not_two(reward_bounds)
    return low, high


def check_within(reward_bounds: tuple[float, float], rewards: tuple[float, float]) -> None:
    """The log's lowest and highest rewards keep to the bounds they were promised to keep."""
    low, high = check_reward_bounds(reward_bounds)
    lowest, highest = rewards
    if lowest < low or highest > high:
        raise LogError(
            [
                Argument("reward_bounds", reward_bounds),
                f" do not hold: the log has rewards from {lowest:g} to {highest:g}.",
            ],
            do="Give bounds that hold for every possible reward.",
        )


def _not_two(found: object) -> OptionError:
    return OptionError([Argument("reward_bounds", found), " must be two finite numbers, the lower one first."])
