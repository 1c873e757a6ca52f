"""`Weighed`: which weight moments were made with, as far as adding and judging them needs to know."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, is_dataclass
from numbers import Real
from typing import Any

from counterpoise.moments import stored


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
        declared = [one.name for one in fields(weight)] if is_dataclass(weight) else []
        names = dict.fromkeys([*declared, *getattr(weight, "__dict__", ())])
        values = {name: getattr(weight, name) for name in names}
        told = ", ".join(f"{name}={_written(value)}" for name, value in values.items())
        numbers = [float(value) for value in values.values() if _is_number(value)]
        constant = numbers[0] if len(numbers) == 1 else None
        return cls(f"{type(weight).__name__}({told})", bool(weight.mean_is_one), bool(weight.may_be_negative), constant)

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
        names = [one.name for one in fields(cls)]
        raw = dict(stored.record(raw, "the weight", names[:-1], optional=names[-1:]))
        how, constant = stored.text(raw.pop("how"), "the weight"), raw.pop("constant", None)
        if not all(isinstance(one, bool) for one in raw.values()):
            raise ValueError("what is known of the weight should be true or false")
        if constant is not None:
            constant = float(stored.numbers(constant, "the weight's constant"))
        return cls(how, **raw, constant=constant)


def _written(value: Any) -> str:
    """A parameter as text, the same for 10 and 10.0."""
    if _is_number(value):
        number = float(value)
        return str(int(number)) if number.is_integer() else repr(number)
    if isinstance(value, tuple):
        return f"({', '.join(map(_written, value))})"
    return value.__name__ if isinstance(value, type) else repr(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


_OF_LISTS = ("Independent()", "Cascade()", "Standard()", "PseudoInverse()")
PLAIN = Weighed("Ratio()")  # the importance weight
