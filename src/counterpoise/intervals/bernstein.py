"""Bernstein intervals: valid for a log of any size, if rewards and weights have known bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from counterpoise.errors import LogError, OptionError, did_you_mean
from counterpoise.intervals.method import Evidence, Interval, Method, check_level, normal
from counterpoise.log.parts import RewardBounds

# -- The bounds of rewards, if they are known before the log is seen ---------------------------------------------------


def check_reward_bounds(reward_bounds: tuple[float, float]) -> tuple[float, float]:
    """The smallest and the largest reward there can be."""
    try:
        low, high = (float(x) for x in reward_bounds)
    except (TypeError, ValueError) as error:
        raise _not_two(reward_bounds) from error
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise _not_two(reward_bounds)
    return low, high


def bounds_by_reward(bounds: RewardBounds, rewards: Sequence[str | None]) -> tuple[tuple[float, float] | None, ...]:
    """The bounds of each reward: a pair is for all of them, a mapping for those it names.

    >>> bounds_by_reward({"click": (0, 1)}, ["click", "revenue"])
    ((0, 1), None)
    """
    if not isinstance(bounds, Mapping):
        return (bounds,) * len(rewards)
    known = [name for name in rewards if name is not None]
    if not known:
        raise OptionError(
            "reward_bounds maps rewards to their bounds, and these moments have forgotten the name of theirs.",
            do="Pass one pair, (low, high).",
        )
    for name in bounds:
        if name not in known:
            raise OptionError(
                f"reward_bounds names {name!r}, which is not a reward; there is {' and '.join(map(repr, known))}.",
                suggestion=did_you_mean(name, known),
            )
    return tuple(None if name is None else bounds.get(name) for name in rewards)


def check_within(reward_bounds: tuple[float, float], rewards: tuple[float, float]) -> None:
    """Check that the log's lowest and highest rewards keep within the bounds that were promised."""
    low, high = check_reward_bounds(reward_bounds)
    lowest, highest = rewards
    if lowest < low or highest > high:
        raise LogError(
            f"`reward_bounds={reward_bounds!r}` does not hold: the log has rewards from {lowest:g} to {highest:g}.",
            do="Give bounds that hold for every possible reward.",
        )


def _not_two(bounds: object) -> OptionError:
    return OptionError(f"`reward_bounds={bounds!r}` must be two finite numbers, the lower one first.")


# -- `Bernstein`: the interval itself ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bernstein(Method):
    """For `ips` at any number of rows, if you know bounds on rewards and weights before you see the log; wide.

    `max_weight` is 1/(the smallest propensity that the logging policy can give).
    """

    reward_bounds: tuple[float, float]
    max_weight: float

    name: ClassVar[str] = "bernstein"
    about: ClassVar[str] = (
        "Bernstein intervals: valid for any number of <rows> if rewards and weights are bounded, but wide."
    )
    allows_differences: ClassVar[bool] = False
    needs_known_propensities: ClassVar[bool] = True
    estimators: ClassVar[tuple[str, ...]] = ("ips",)  # the only one whose rows have bounds known beforehand

    def __post_init__(self) -> None:
        check_reward_bounds(self.reward_bounds)
        _check_weight(self.max_weight)

    @classmethod
    def from_options(cls, options: Mapping[str, object] | None = None) -> Self:
        """The method from its options, which must have both bounds, as there are no defaults. In Python, pass the object instead."""
        chosen: Mapping[str, Any] = options or {}
        reward_bounds, max_weight = chosen.get("reward_bounds"), chosen.get("max_weight")
        if reward_bounds is None or max_weight is None:
            bounds, has_options = reward_bounds or (0, 1), "max_weight" in chosen
            written = f"Pass interval=cp.intervals.Bernstein(reward_bounds={bounds}, max_weight=10)."
            raise OptionError(
                "the bernstein interval needs `reward_bounds=` and `max_weight=`, both known before you see the log.",
                do="" if has_options else written,
                suggestion="The largest weight is 1/(the smallest propensity that the logging policy can give).",
            )
        return cls(reward_bounds, max_weight)

    @property
    def score(self) -> None:
        """None, because the interval already allows for the bounds."""
        return

    def check(self, *, rewards: tuple[float, float], max_weight: float, is_clustered: bool) -> None:
        """Check that the log keeps within the bounds and that its rows are independent."""
        check_within(self.reward_bounds, rewards)
        most = _check_weight(self.max_weight)
        if max_weight > most * (1 + 1e-12):  # 1/(1/3) may round to a little more than 3
            raise LogError(
                f"`max_weight={self.max_weight!r}` is too small: the log has a weight of {max_weight:g}.",
                do="Give the largest weight that the logging policy allows, 1/(its smallest propensity); a bound taken from the log itself "
                "is no bound.",
            )
        if is_clustered:
            raise OptionError("the bernstein interval assumes independent rows, and clusters are not: use jackknife.")

    def interval(self, evidence: Evidence, level: float) -> Interval:
        """See `bernstein`."""
        bounds = check_reward_bounds(self.reward_bounds)
        return bernstein(
            evidence.value, evidence.stderr, evidence.n, level, reward_bounds=bounds, max_weight=float(self.max_weight)
        )


def bernstein(
    value: float,
    stderr: float,
    n: int,
    level: float = 0.95,
    *,
    reward_bounds: tuple[float, float],
    max_weight: float,
) -> Interval:
    r"""An interval for the value of IPS that holds at every n, if bounds on rewards and weights are known beforehand.

    .. math:: \frac1n\sum_i w_i r_i \pm \left( \sqrt{\frac{2 S^2 L}{n}} + \frac{7 R L}{3 (n - 1)} \right)

    L is log(4/(1 − level)), S² the sample variance of w·r and R its range. It does not rely on large samples, and pays for that: the
    second term alone is R·10/n at 95 %, often several times the normal interval. Its `note` says how many times.

    Examples
    --------
    >>> print(bernstein(0.5, 0.02, 1000, reward_bounds=(0, 1), max_weight=1.5).note)
    valid at any n; 1.9 times as wide as the normal interval

    References
    ----------
    Maurer & Pontil, "Empirical Bernstein bounds and sample variance penalization", COLT 2009, theorem 4 on both sides.
    """
    check_level(level)
    low, high = reward_bounds
    if math.isnan(value) or n < 2:
        return Interval(low, high, level, Bernstein.name, "the log has no information; these are the bounds themselves")
    reach = max_weight * (max(high, 0.0) - min(low, 0.0))
    log_term = math.log(4.0 / (1.0 - level))
    variance = stderr**2 * n * n / (n - 1)
    half = math.sqrt(2.0 * variance * log_term / n) + 7.0 * reach * log_term / (3.0 * (n - 1))
    usual = normal(value, stderr, level).width / 2
    note = f"valid at any n; {half / usual:.1f} times as wide as the normal interval" if usual > 0 else "valid at any n"
    # the value itself is a mean of rewards, so it cannot leave their bounds
    lower, upper = max(value - half, low), min(value + half, high)
    if lower > upper:
        return Interval(low, high, level, Bernstein.name, "the estimate lies outside the bounds: the weights are wrong")
    return Interval(lower, upper, level, Bernstein.name, note)


def _check_weight(max_weight: float) -> float:
    try:
        weight = float(max_weight)
    except (TypeError, ValueError) as error:
        raise OptionError(f"`max_weight={max_weight!r}` is not a number.") from error
    if not (math.isfinite(weight) and weight > 0):
        raise OptionError(f"`max_weight={max_weight!r}` is not a positive number.")
    return weight
