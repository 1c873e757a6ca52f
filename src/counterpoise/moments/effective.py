"""What the weights leave of a log: how many rows it is still worth, and which weight its moments were made with."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, is_dataclass
from numbers import Real
from typing import Any

import numpy as np

from counterpoise.moments import stored
from counterpoise.moments.moments import Moments
from counterpoise.moments.spread import Powers

# -- `Weighed`: which weight moments were made with, as far as adding and judging them needs to know -------------------


@dataclass(frozen=True)
class Weighed:
    """A weight's name and parameters, whether its mean must be 1 where the propensities are right, and whether it may be negative.

    >>> @dataclass
    ... class Clip:
    ...     most: float
    ...     mean_is_one = may_be_negative = False
    >>> Weighed.of(Clip(10)) == Weighed.of(Clip(10.0)) != Weighed.of(Clip(5))
    True
    >>> print(Weighed.of(Clip(10)))
    Clip(most=10)
    """

    how: str
    mean_is_one: bool = True
    may_be_negative: bool = False
    constant: float | None = field(default=None, compare=False)  # of a weight that has one

    @classmethod
    def of(cls, weight: Any) -> Weighed:
        """What there is to know about a member of `counterpoise.weights`, or a weight of the user's own."""
        declared = [field.name for field in fields(weight)] if is_dataclass(weight) else []
        names = dict.fromkeys([*declared, *getattr(weight, "__dict__", ())])
        values = {name: getattr(weight, name) for name in names}
        how = f"{type(weight).__name__}({', '.join(f'{name}={_as_text(value)}' for name, value in values.items())})"
        numbers = [float(value) for value in values.values() if _is_number(value)]
        constant = numbers[0] if len(numbers) == 1 else None
        return cls(how, bool(weight.mean_is_one), bool(weight.may_be_negative), constant)

    @property
    def unit(self) -> str:
        """What a row of the moments is."""
        return "list" if self.how in _OF_LISTS else "row"

    @property
    def is_running(self) -> bool:
        """Whether weights are products down a list, with one at every position."""
        return self.how == "Cascade()"

    def __str__(self) -> str:
        return self.how

    def to_plain(self) -> dict[str, Any]:
        """The weight as JSON keeps it."""
        return asdict(self)

    @classmethod
    def from_plain(cls, raw: Any) -> Weighed:
        """What `to_plain` returned; a ValueError says what is wrong with anything else."""
        names = [field.name for field in fields(cls)]
        raw = dict(stored.record(raw, "the weight", names[:-1], optional=names[-1:]))
        how, constant = stored.text(raw.pop("how"), "the weight"), raw.pop("constant", None)
        if not all(isinstance(flag, bool) for flag in raw.values()):
            raise ValueError("what is known of the weight should be true or false")
        if constant is not None:
            constant = float(stored.numbers(constant, "the weight's constant"))
        return cls(how, **raw, constant=constant)


def _as_text(value: Any) -> str:
    """A parameter as text, the same for 10 and 10.0."""
    if _is_number(value):
        number = float(value)
        return str(int(number)) if number.is_integer() else repr(number)
    if isinstance(value, tuple):
        return f"({', '.join(map(_as_text, value))})"
    return value.__name__ if isinstance(value, type) else repr(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


_OF_LISTS = ("Independent()", "Cascade()", "Standard()", "PseudoInverse()")
PLAIN = Weighed("Ratio()")  # the importance weight


# -- What the weights leave of a log: how many rows it is still worth, and where the rewards that count lie ------------


def effective_sample_size(moments: Moments) -> Any:
    """(Σw)²/Σw²: how many rows of equal weight the log is worth; for a stack, one answer per member.

    >>> effective_sample_size(Moments.of(weight=[2.0, 0.0, 2.0, 0.0], reward=[1, 0, 1, 0]))
    2.0
    """
    mean = np.maximum(1.0 + moments.average("u"), 0.0)
    square = np.square(mean)
    size = np.where(mean > 0, moments.n * square / np.where(mean > 0, square + moments.covariance("u", "u"), 1.0), 0.0)
    return size if size.ndim else float(size)


def at_an_end(moments: Moments, end: Any, width: Any) -> Any:
    """Whether the reward of every row with a weight is at one `end` of a range of this `width`; for a stack, one answer per member."""
    return (width == 0) | (abs(mean_distance(moments, end, np.where(width > 0, width, 1.0))) <= 1e-12)  # rounding


def mean_distance(moments: Moments, end: Any, width: Any) -> Any:
    """The mean of w·(r − end), in units of the rewards' width."""
    apart = moments.center - end  # w·(r − end) = (1 + u)(s + apart) = apart + apart·u + s + u·s
    rest = moments.average("s") / width + moments.average("us") / width
    return apart / width * (1.0 + moments.average("u")) + rest


def usual_ends(lowest: Any, highest: Any) -> tuple[Any, Any]:
    """What rewards can be, as far as the log tells: 0 and 1 where it has seen nothing else, or else what it has seen."""
    low, high = np.asarray(lowest), np.asarray(highest)
    is_click = ((low == 0) | (low == 1)) & ((high == 0) | (high == 1))
    return np.where(is_click, 0.0, low)[()], np.where(is_click, 1.0, high)[()]


def carrying_rows(excess: Powers, rewards: Powers, ends: tuple[Any, Any]) -> Any:
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
    width = np.asarray(ends[1] - ends[0])
    shares = []
    with np.errstate(over="ignore", invalid="ignore"):
        for end in ends:
            square, fourth = rewards.mean(2, end), rewards.mean(4, end)
            is_there = fourth > (1e-7 * width) ** 4  # rounding
            shares.append(np.where(is_there, np.square(square) / np.where(is_there, fourth, 1.0), 0.0))
    factor = np.where(has_two_values(rewards, ends), 1.0, 0.5)
    rows = factor * excess.n / excess.kurtosis * np.minimum(*shares)
    carrying = np.where((np.asarray(excess.n) > 0) & (width > 0), rows, 0.0)
    return carrying if carrying.ndim else float(carrying)


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
        first, square, third = (abs(float(rewards.mean(order, end))) for order in (1, 2, 3))
        shares.append(min(first**3 * third / square**3, 1.0) if square > 0 else 0.0)
    factor = 1.0 if has_two_values(rewards, ends) else 0.5
    return float(factor * excess.n / excess.kurtosis * min(shares))


def has_two_values(rewards: Powers, ends: tuple[Any, Any]) -> Any:
    """Whether rewards are at one end or the other, as clicks are: then, and only then, their mean square distance is width times mean.

    >>> has_two_values(Powers.of([0.0, 1.0, 1.0]), (0.0, 1.0)), has_two_values(Powers.of([0.0, 0.5, 1.0]), (0.0, 1.0))
    (True, False)
    """
    low, high = ends
    with np.errstate(over="ignore", invalid="ignore"):
        is_either = np.abs(rewards.mean(2, low) - (high - low) * rewards.mean(1, low)) <= 1e-9 * np.square(high - low)
    return is_either if np.ndim(is_either) else bool(is_either)


def usual_rewards(rewards: Powers, ends: tuple[Any, Any]) -> tuple[Any, Any]:
    """A high and a low reward that a row not seen yet may well have: from either end, the size-weighted mean distance of the others.

    >>> float(usual_rewards(Powers.of([0.0, 0.0, 0.0, 10.0, 30.0]), (0.0, 30.0))[1])
    25.0
    """
    low, high = ends
    usual = []
    for end, other in ((low, high), (high, low)):
        first, second = rewards.mean(1, end), rewards.mean(2, end)
        is_apart = np.abs(first) > 1e-12 * (high - low)
        with np.errstate(over="ignore", invalid="ignore"):
            usual.append(np.where(is_apart, end + second / np.where(is_apart, first, 1.0), other)[()])
    return usual[1], usual[0]


def below(count: float, limit: float) -> str:
    """A number below a limit, with as many digits as it takes to see that.

    >>> below(2.34, 7), below(6.96, 7), below(6.9996, 7)
    ('2.3', '6.96', '6.9996')
    """
    return next((text for digits in range(2, 16) if float(text := f"{count:.{digits}g}") < limit), repr(count))
