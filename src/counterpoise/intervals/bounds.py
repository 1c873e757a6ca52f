"""The bounds of rewards, if they are known before the log is seen."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from counterpoise.errors import Argument, LogError, OptionError


def check_reward_bounds(reward_bounds: tuple[float, float]) -> tuple[float, float]:
    """The smallest and the largest reward there can be."""
    try:
        low, high = (float(x) for x in reward_bounds)
    except (TypeError, ValueError) as error:
        raise _not_two(reward_bounds) from error
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise _not_two(reward_bounds)
    return low, high


def bounds_by_reward(given: Any, rewards: Sequence[str | None]) -> tuple[tuple[float, float] | None, ...]:
    """The bounds of each reward: a pair is for all of them, a mapping for those it names.

    >>> bounds_by_reward({"click": (0, 1)}, ["click", "revenue"])
    ((0, 1), None)
    """
    if not isinstance(given, Mapping):
        return (given,) * len(rewards)
    known = [name for name in rewards if name is not None]
    if not known:
        raise OptionError(
            "reward_bounds maps rewards to their bounds, and these moments have forgotten the name of theirs.",
            do="Pass one pair, (low, high).",
        )
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            raise OptionError(
                f"reward_bounds names {name!r}, which is not a reward; there is {' and '.join(map(repr, known))}.",
                suggestion=f"Did you mean {near[0]!r}?" if near else "",
            )
    return tuple(given.get(name) for name in rewards)


def check_within(reward_bounds: tuple[float, float], rewards: tuple[float, float]) -> None:
    """Check that the log's lowest and highest rewards keep within the bounds that were promised."""
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
