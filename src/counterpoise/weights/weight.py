"""Unbiased weights (the ratio, that of several loggers, your own), and what every weight says about itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite, nan
from numbers import Real
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from counterpoise.errors import OptionError
from counterpoise.log.good import Values
from counterpoise.log.kinds.loggers import INVALID, own_sql

if TYPE_CHECKING:
    from counterpoise.log.log import Log
    from counterpoise.log.question import Question
    from counterpoise.log.targets import Targets

# -- What weights with a constant share: the check of that constant, and the order of several from the least biased on ---


def check_constant(constant: object, what: str, low: float, high: float) -> None:
    """Raise an error that says `what` a weight takes, unless its constant is a finite number in [low, high]."""
    number = float(constant) if isinstance(constant, Real) and not isinstance(constant, bool) else nan
    if not (isfinite(number) and low <= number <= high):
        raise OptionError(f"{what}; found {constant!r}.")


def least_biased_first(constants: Sequence[float], unbiased_at: float) -> tuple[float, ...]:
    """Constants in order of their distance from the one that changes nothing.

    >>> least_biased_first([1, 100, 10], float("inf")), least_biased_first([0.5, 0.01], 0.0)
    ((100.0, 10.0, 1.0), (0.01, 0.5))
    """
    numbers = [float(constant) for constant in constants]
    return tuple(sorted(numbers, key=lambda number: abs(number - unbiased_at) if isfinite(unbiased_at) else -number))


# -- What a weight is to the rest of the library -----------------------------------------------------------------------


@runtime_checkable
class Weight(Protocol):
    """A weight as arithmetic on columns; the same code runs on narwhals expressions and NumPy arrays.

    For your own, inherit from it, give it a `weight`, and override whatever else differs. Rows are summed as u = w − 1: a weight
    that is often near 1 keeps its digits with an `excess` of its own.

    Examples
    --------
    >>> class Halfway(Weight):
    ...     mean_is_one = True
    ...
    ...     def weight(self, target, propensity):
    ...         return (target / propensity + 1) / 2
    >>> Halfway().excess(0.75, 0.25), Halfway()
    (1.0, Halfway())
    """

    mean_is_one: ClassVar[bool] = False  # if propensities are right; the mean-weight test relies on it
    may_be_negative: ClassVar[bool] = False
    needs_propensity: ClassVar[bool] = True
    part: ClassVar[str] = "target"  # what a target's column holds: "target", a probability, or "weight"
    unit: ClassVar[str] = "row"  # what has one
    by_position: ClassVar[bool] = False  # whether every place in it has a weight, and a baseline, of its own
    is_running: ClassVar[bool] = False  # whether weights are products over the places before

    @abstractmethod
    def weight(self, target: Values, propensity: Values) -> Values:
        """w."""

    def excess(self, target: Values, propensity: Values) -> Values:
        """w − 1."""
        return self.weight(target, propensity) - 1.0

    def difference(self, target: Values, other: Values, propensity: Values) -> Values:
        """The weight of one target minus that of another."""
        return self.weight(target, propensity) - self.weight(other, propensity)

    def is_zero(self, target: Values) -> Values:
        """Where the weight is 0."""
        return target == 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


# -- The importance weight, target / propensity ------------------------------------------------------------------------


@dataclass(frozen=True)
class Importance(Weight):
    r"""The importance weight, whose mean is 1.

    .. math:: w = \pi(a \mid x) / \pi_0(a \mid x)

    >>> Importance().excess(0.75, 0.5)
    0.5
    """

    mean_is_one = True

    def weight(self, target: Values, propensity: Values) -> Values:
        """The ratio itself."""
        return target / propensity

    def excess(self, target: Values, propensity: Values) -> Values:
        """(t − p)/p rather than t/p − 1, because it keeps its digits for weights near 1."""
        return (target - propensity) / propensity

    def difference(self, target: Values, other: Values, propensity: Values) -> Values:
        """The difference of two weights, in one division."""
        return (target - other) / propensity


class Rungs(Weight):
    """Several weights side by side, of which the first, the importance weight, stands for all of them."""

    def weight(self, target: Values, propensity: Values) -> Values:
        """That of the first rung."""
        return Importance().weight(target, propensity)

    def excess(self, target: Values, propensity: Values) -> Values:
        """That of the first rung."""
        return Importance().excess(target, propensity)

    def difference(self, target: Values, other: Values, propensity: Values) -> Values:
        """That of the first rung."""
        return Importance().difference(target, other, propensity)


# -- The user's own weight, from a column of the log -------------------------------------------------------------------


@dataclass(frozen=True)
class Own(Weight):
    """The column you name as `weight=` is the weight itself; it may be negative, and nothing is known about its mean.

    >>> Own().excess(-0.25, None)
    -1.25
    """

    may_be_negative = True
    needs_propensity = False
    part = "weight"

    def weight(self, target: Values, propensity: Values) -> Values:
        """The column itself."""
        return target


# -- How a verb's `weight=` becomes a weight ---------------------------------------------------------------------------


def as_weight(weight: object, target: Targets) -> tuple[Weight, Targets]:
    """The weight and the targets of a verb: text names a column of the user's own weights, which is then the target, too."""
    if weight is None:
        return Importance(), target
    if isinstance(weight, Weight) and not isinstance(weight, type):
        return weight, target
    if isinstance(weight, type) or not isinstance(weight, str | list | tuple | dict):
        raise OptionError(
            f"weight is a column's name, or a method such as counterpoise.weights.Clip(10), or Slope(Clip) to let the log choose the "
            f"constant; found {weight!r}."
        )
    if target is not None:
        raise OptionError(
            "a weight of your own already includes the target.", do="Pass `weight=` or `target=`, not both."
        )
    return Own(), weight


# -- The weight of a log that several policies wrote: the target against all of them together --------------------------


@dataclass(frozen=True)
class Balanced(Importance):
    r"""The balanced weight of several loggers, whose mean is 1.

    .. math:: w = \frac{\pi(a \mid x)}{\sum_l s_l \, \pi_l(a \mid x)}

    with s the loggers' shares of the rows: a row's weight does not depend on who wrote it. An action that one logger takes rarely
    and another often has a small weight on the rows of both, while t/p by the row's own logger would be huge on the rows of the
    first. A log whose `propensity` maps several loggers to their columns has this weight; the mixture is computed with the log's
    other columns.

    >>> Balanced(("a", "b"), ("p_a", "p_b"), "policy").weight(0.75, 0.5 * 0.25 + 0.5 * 0.75)
    1.5

    References
    ----------
    Agarwal, Basu, Schnabel & Joachims, "Effective evaluation using logged bandit feedback from multiple loggers", KDD 2017; Veach & Guibas,
    "Optimally combining sampling techniques for Monte Carlo rendering", SIGGRAPH 1995.
    """

    loggers: tuple[str, ...]
    columns: tuple[str, ...]
    logger: str  # the column that says who wrote a row

    @classmethod
    def of(cls, log: Log, weight: Weight) -> Balanced:
        """The weight of a log that several policies wrote, of which a verb's `weight` says nothing else."""
        if type(weight) is not Importance:
            raise OptionError(
                f"a log of several loggers has the balanced weight, and not {type(weight).__name__}: leave out `weight=`."
            )
        if log.logger is None:
            raise OptionError(
                "`propensity=` has several loggers.", do="Name the column with each row's logger with `logger=`."
            )
        return cls(tuple(log.loggers), tuple(log.loggers.values()), log.logger)

    @property
    def propensities(self) -> tuple[str, str]:
        """What they are called where one of them is invalid, and what to do about it."""
        return ", ".join(map(str, self.loggers)), INVALID

    def is_by_policy(self, segment: tuple[str, ...]) -> bool:
        """Whether the last of these segments is the policy that wrote a row."""
        return segment[-1:] == (self.logger,)

    def by_policy(self, question: Question) -> Question:
        """The question with the policy that wrote a row as its last segment."""
        if self.logger in question.segment:
            raise OptionError(
                f"`segment={self.logger!r}` is the logger, by which balanced weights do not average to 1.",
                do="See result.loggers() for each logger's own estimate.",
            )
        return replace(question, segment=(*question.segment, self.logger))

    def pooled(self, question: Question, quote: Callable[[str], str]) -> Question:
        """The question with t/p by the row's own logger, which averages to 1 on the rows of each of them."""
        own = own_sql(dict(zip(self.loggers, self.columns, strict=True)), self.logger, quote)
        return replace(question, log=question.log.but(propensity=own), weight=Importance())
