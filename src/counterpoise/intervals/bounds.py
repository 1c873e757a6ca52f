"""The bounds of rewards, if they are known before the log is seen."""

from __future__ import annotations

import math

from counterpoise.errors import LogError, OptionError


def check_reward_bounds(reward_bounds: tuple[float, float]) -> tuple[float, float]:
    """The smallest and the largest reward there can be."""
    try:
        low, high = (float(x) for x in reward_bounds)
    except (TypeError, ValueError) as error:
        raise OptionError(f"reward_bounds must be (low, high), two numbers: {error}.") from error
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise OptionError(
            f"reward_bounds must be (low, high), two finite numbers with low < high; found {reward_bounds!r}."
        )
    return low, high


def check_within(reward_bounds: tuple[float, float], rewards: tuple[float, float]) -> None:
    """Check that the log's lowest and highest rewards keep within the bounds that were promised."""
    low, high = check_reward_bounds(reward_bounds)
    lowest, highest = rewards
    if lowest < low or highest > high:
        raise LogError(
            f"reward_bounds are ({low:g}, {high:g}), but the log has rewards from {lowest:g} to {highest:g}. "
            "Give bounds that hold for every possible reward."
        )
