"""How moments came about: which weight they were made with, and what estimating the propensities does to their errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from counterpoise.moments import stored
from counterpoise.moments.columns import ROW
from counterpoise.moments.moments import Floats

if TYPE_CHECKING:
    from counterpoise.moments.log_moments import Segment
    from counterpoise.weights import Weight

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
    def of(cls, weight: Weight) -> Weighed:
        """What to record about a member of `counterpoise.weights`, or about the user's own weight."""
        declared: list[str] = [field.name for field in fields(weight)] if is_dataclass(weight) else []
        names = dict.fromkeys([*declared, *getattr(weight, "__dict__", ())])
        values = {name: getattr(weight, name) for name in names}
        how = f"{type(weight).__name__}({', '.join(f'{name}={_as_text(value)}' for name, value in values.items())})"
        numbers = [float(value) for value in values.values() if _is_number(value)]
        constant = numbers[0] if len(numbers) == 1 else None
        return cls(how, bool(weight.mean_is_one), bool(weight.may_be_negative), constant)

    @property
    def unit(self) -> str:
        """What a row of the moments is."""
        return _UNITS.get(self.how, "row")

    @property
    def is_own(self) -> bool:
        """Whether it is a column of the user's own, which is what it is; any other stands for the importance weight, whose mean is 1."""
        return self.how == "Own()"

    @property
    def is_running(self) -> bool:
        """Whether weights are products down a list, with one at every position."""
        return self.how in ("Cascade()", "PerDecision()")

    def is_by_policy(self, segments: tuple[str, ...]) -> bool:
        """Whether it is the balanced weight of several policies, and the last of these segments, its last parameter, is who wrote a row."""
        return bool(segments) and self.how.startswith("Balanced(") and self.how.endswith(f"={segments[-1]!r})")

    def __str__(self) -> str:
        return self.how

    def to_plain(self) -> dict[str, object]:
        """The weight as JSON keeps it."""
        return asdict(self)

    @classmethod
    def from_plain(cls, raw: object) -> Weighed:
        """What `to_plain` returned; a ValueError says what is wrong with anything else."""
        names = [field.name for field in fields(cls)]
        parts = stored.record(raw, "the weight", names[:-1], optional=names[-1:])
        how, constant = named_today(stored.text(parts["how"], "the weight")), parts.get("constant")
        mean_is_one, may_be_negative = parts["mean_is_one"], parts["may_be_negative"]
        if not isinstance(mean_is_one, bool) or not isinstance(may_be_negative, bool):
            raise ValueError("what is known of the weight should be true or false")
        known = None if constant is None else float(stored.numbers(constant, "the weight's constant"))
        return cls(how, mean_is_one, may_be_negative, known)


def _as_text(value: object) -> str:
    """A parameter as text, the same for 10 and 10.0."""
    if _is_number(value):
        number = float(value)
        return str(int(number)) if number.is_integer() else repr(number)
    if isinstance(value, tuple):
        return f"({', '.join(map(_as_text, value))})"
    return value.__name__ if isinstance(value, type) else repr(value)


def _is_number(value: object) -> TypeGuard[Real]:
    return isinstance(value, Real) and not isinstance(value, bool)


_UNITS = dict.fromkeys(("Independent()", "Cascade()", "Standard()", "PseudoInverse()"), "ranking") | dict.fromkeys(
    ("PerDecision()", "Trajectory()"), "episode"
)
PLAIN = Weighed("Importance()")


def named_today(how: str) -> str:
    """What a weight is called now, of what it was called when moments were stored: 0.3 had another name for the importance weight."""
    return PLAIN.how if how == "Ratio()" else how


# -- `Estimated`: what it does to errors that propensities were estimated from the same rows ------------------------------


@dataclass(frozen=True, eq=False)
class Estimated:
    r"""The covariances, over rows, of the moments' columns z and of what the fit takes from them, h.

    An estimate of the form Σ aⱼ·mean(zⱼ) whose propensities were estimated has, to first order, the error of the mean of a·(z −
    h), where h is the part of z that the scores of the propensity model explain. If the model was fitted on a share of the rows,
    the variance of a·h is that of as few rows.

    >>> known = Estimated("model", 100, 100, 0.0, {("t", ""): {None: np.diag([4.0, 0.0])}})
    >>> fitted = Estimated("model", 100, 100, 0.0, {("t", ""): {None: np.array([[4.0, 1.0], [1.0, 1.0]])}})
    >>> known.factor(("t", ""), None, np.array([1.0])), round(fitted.factor(("t", ""), None, np.array([1.0])), 3)
    (1.0, 0.866)
    """

    model: str
    rows: int  # that the model was drawn from
    of: int  # rows of the log
    center: float  # of the rewards in z
    covariances: Mapping[tuple[str, str], Mapping[Segment, Floats]] = field(default_factory=dict)  # empty if unknown

    def factor(self, contrast: tuple[str, str], place: Segment, a: Floats) -> float:
        """By how much the standard error of an estimate with these coefficients changes; 1 where that is not known."""
        covariance = self.covariances.get(contrast, {}).get(place)
        if covariance is None or not np.isfinite(a).all():
            return 1.0
        d = len(a)
        plain, both, fit = a @ covariance[:d, :d] @ a, a @ covariance[:d, d:] @ a, a @ covariance[d:, d:] @ a
        whole = plain - 2.0 * both + max(self.of / max(self.rows, 1), 1.0) * fit
        return float(np.sqrt(whole / plain)) if plain > 0 and whole > 0 else 1.0

    def __add__(self, other: Estimated) -> Estimated:
        if not isinstance(other, Estimated):
            return NotImplemented
        n, other = self.of + other.of, other.recenter(self.center)
        mine, theirs = self.of / max(n, 1), other.of / max(n, 1)

        def added(first: Mapping[Segment, Floats], second: Mapping[Segment, Floats]) -> dict[Segment, Floats]:
            shared = {place: mine * first[place] + theirs * second[place] for place in first if place in second}
            return {**first, **second, **shared}

        known = [contrast for contrast in self.covariances if contrast in other.covariances]
        covariances = {contrast: added(self.covariances[contrast], other.covariances[contrast]) for contrast in known}
        return Estimated(self.model, self.rows + other.rows, n, self.center, covariances)

    def recenter(self, center: float) -> Estimated:
        """The same rows seen from another center of the rewards, which moves u·s by δ·u."""
        delta = self.center - center

        def moved(covariance: Floats) -> Floats:
            turn = np.eye(len(covariance))
            for start in (0, len(covariance) // 2):
                turn[start + ROW.index("us"), start + ROW.index("u")] = delta
            return np.asarray(turn @ covariance @ turn.T)

        covariances = {
            contrast: {place: moved(covariance) for place, covariance in by_place.items()}
            for contrast, by_place in self.covariances.items()
        }
        return replace(self, center=center, covariances=covariances)

    def to_plain(self) -> dict[str, object]:
        """As plain lists and numbers, ready for JSON."""
        return {
            "model": self.model,
            "rows": self.rows,
            "of": self.of,
            "center": self.center,
            "covariances": [
                [
                    list(contrast),
                    [[None if place is None else list(place), matrix.tolist()] for place, matrix in by_place.items()],
                ]
                for contrast, by_place in self.covariances.items()
            ],
        }

    @classmethod
    def from_plain(cls, raw: object) -> Estimated:
        """What `to_plain` returned; a ValueError says what is wrong with anything else."""
        parts = stored.record(raw, "estimated propensities", ("model", "rows", "of", "center", "covariances"))
        covariances = {}
        for contrast, by_place in map(_pair, stored.items(parts["covariances"], "covariances")):
            target, against = _pair(contrast)
            places = {}
            for place, entries in map(_pair, stored.items(by_place, "covariances")):
                matrix = stored.numbers(entries, "covariances")
                if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
                    raise ValueError("the covariances of estimated propensities are damaged")
                places[None if place is None else tuple(stored.items(place, "a segment"))] = matrix
            covariances[stored.text(target, "target"), stored.text(against, "against")] = places
        rows, of = stored.count(parts["rows"], "rows"), stored.count(parts["of"], "rows")
        center = float(stored.numbers(parts["center"], "center"))
        return cls(stored.text(parts["model"], "model"), rows, of, center, covariances)


def _pair(raw: object) -> tuple[object, object]:
    pair = stored.items(raw, "a pair")
    if len(pair) != 2:
        raise ValueError("the covariances of estimated propensities are damaged")
    return pair[0], pair[1]
