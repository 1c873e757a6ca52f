"""What the weights leave of a log: how many rows it is still worth, and where the rewards that count lie."""

from __future__ import annotations

from typing import Any

import numpy as np

from counterpoise.moments.moments import Moments
from counterpoise.moments.powers import Powers


def effective_sample_size(moments: Moments) -> float:
    """(Σw)²/Σw²: how many rows of equal weight the log is worth.

    >>> effective_sample_size(Moments.of(weight=[2.0, 0.0, 2.0, 0.0], reward=[1, 0, 1, 0]))
    2.0
    """
    mean = max(1.0 + float(moments.average("u")), 0.0)
    return moments.n * mean**2 / (mean**2 + float(moments.covariance("u", "u"))) if mean > 0 else 0.0


def at_an_end(moments: Moments, end: Any, width: Any) -> Any:
    """Whether the reward of every row with a weight is at one `end` of a range of this `width`; for a stack, one answer per member."""
    return (width == 0) | (abs(mean_distance(moments, end, np.where(width > 0, width, 1.0))) <= 1e-12)  # rounding


def mean_distance(moments: Moments, end: Any, width: Any) -> Any:
    """The mean of w·(r − end), in units of the rewards' width."""
    apart = moments.center - end  # w·(r − end) = (1 + u)(s + apart) = apart + apart·u + s + u·s
    rest = moments.average("s") / width + moments.average("us") / width
    return apart / width * (1.0 + moments.average("u")) + rest


def usual_ends(lowest: float, highest: float) -> tuple[float, float]:
    """What rewards can be, as far as the log tells: 0 and 1 where it has seen nothing else, or else what it has seen."""
    return (0.0, 1.0) if {lowest, highest} <= {0.0, 1.0} else (lowest, highest)


def carrying_rows(excess: Powers, rewards: Powers, ends: tuple[float, float]) -> float:
    r"""How many rows carry the variance of a value or a difference: clicks (or other rewards) among the rows with large weights.

    .. math:: E = \frac{n}{\text{kurtosis}(u)} \cdot \min_{\text{ends}} \frac{\text{mean}(d^2)^2}{\text{mean}(d^4)}

    with u the excess of the weights (or the difference of two policies' weights) and d the distance of a reward from either end. The
    first factor counts the rows that carry the weights' variance, the second is the share of them whose reward differs from the
    usual one: the click rate, for clicks. Both are of the marginal distributions, so that a click on a heavy row need not have come
    up to be missed. Rewards of more than two values have a tail of which the log has seen only a part: they count half.

    Examples
    --------
    A thousand rows of two equally frequent weights, and ten clicks:

    >>> round(carrying_rows(Powers.of([-0.5, 0.5] * 500), Powers.of([1.0] * 10 + [0.0] * 990), (0.0, 1.0)), 9)
    10.0
    """
    if not excess.n or not ends[1] > ends[0]:
        return 0.0
    shares = []
    for end in ends:
        square, fourth = rewards.mean(2, end), rewards.mean(4, end)
        tiny = (1e-7 * (ends[1] - ends[0])) ** 4  # rounding
        shares.append(square**2 / fourth if fourth > tiny else 0.0)
    seen = 1.0 if has_two_values(rewards, ends) else 0.5
    return seen * excess.n / excess.kurtosis * min(shares)


def outcome_rows(excess: Powers, rewards: Powers, ends: tuple[float, float]) -> float:
    r"""How many of the rows that carry the weights' variance have another reward than the usual one, whatever its size.

    .. math:: \frac{n}{\text{kurtosis}(u)} \cdot \min_{\text{ends}} \frac{\text{mean}(d)^3 \, \text{mean}(d^3)}{\text{mean}(d^2)^3}

    The share is exact for clicks, where this is `carrying_rows`, and for amounts of a lognormal distribution, however wide: fewer of
    those carry the variance, but those that do not have come up, too. As there, rewards of more than two values count half.

    >>> spends = [0.0] * 850 + np.exp(np.random.default_rng(0).normal(size=150)).tolist()
    >>> known = Powers.of([-0.5, 0.5] * 500), Powers.of(spends), (0.0, max(spends))
    >>> round(outcome_rows(*known)), round(carrying_rows(*known))  # of 150 that were paid
    (57, 17)
    """
    if not excess.n or not ends[1] > ends[0]:
        return 0.0
    shares = []
    for end in ends:
        first, square, third = (abs(rewards.mean(order, end)) for order in (1, 2, 3))
        shares.append(min(first**3 * third / square**3, 1.0) if square > 0 else 0.0)
    seen = 1.0 if has_two_values(rewards, ends) else 0.5
    return seen * excess.n / excess.kurtosis * min(shares)


def has_two_values(rewards: Powers, ends: tuple[float, float]) -> bool:
    """Whether rewards are at one end or the other, as clicks are: then, and only then, their mean square distance is width times mean.

    >>> has_two_values(Powers.of([0.0, 1.0, 1.0]), (0.0, 1.0)), has_two_values(Powers.of([0.0, 0.5, 1.0]), (0.0, 1.0))
    (True, False)
    """
    low, high = ends
    return abs(rewards.mean(2, low) - (high - low) * rewards.mean(1, low)) <= 1e-9 * (high - low) ** 2


def usual_rewards(rewards: Powers, ends: tuple[float, float]) -> tuple[float, float]:
    """A high and a low reward that a row not seen yet may well have: from either end, the size-weighted mean distance of the others.

    >>> usual_rewards(Powers.of([0.0, 0.0, 0.0, 10.0, 30.0]), (0.0, 30.0))[1]
    25.0
    """
    low, high = ends
    found = []
    for end, other in ((low, high), (high, low)):
        first, second = rewards.mean(1, end), rewards.mean(2, end)
        found.append(end + second / first if abs(first) > 1e-12 * (high - low) else other)
    return found[1], found[0]
