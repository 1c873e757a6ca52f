"""The columns that a baseline depends on, as the numbers that its formula is linear in."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Literal

from counterpoise.errors import OptionError
from counterpoise.moments.columns import CONTEXT

BUCKETS = 16  # for the values of a category whose levels nobody named
MOST = 200  # features: the sums of products grow with their square

Kind = Literal["number", "truth", "category"]
LEVELS: dict[Kind, tuple[type, str, str]] = {  # the type of a level, what the column holds, and what to pass instead
    "number": (int, "numbers", "Pass numbers without quotes."),
    "truth": (bool, "truth values", "Pass True or False."),
    "category": (str, "text", "Pass text in quotes."),
}
# a category's levels, into how many buckets its values are hashed, or whatever suits its type
How = tuple[Hashable, ...] | int | None


@dataclass(frozen=True)
class Feature:
    """One number φ(x) of a row, which the baseline is linear in.

    It is the column as it is; or 1 where a boolean is true, a category has one `level`, or its checksum falls into one `bucket`,
    and 0 elsewhere. `center` is a number near the middle of its values, so that sums keep their digits.
    """

    column: str
    kind: Literal["number", "truth", "level", "bucket"] = "number"
    level: Hashable = None
    bucket: int = 0
    buckets: int = 0
    center: float = 0.0

    @property
    def name(self) -> str:
        """The name of u·φ among the columns of the moments.

        >>> Feature("age").name, Feature("country", "level", "de").name, Feature("country", "bucket", bucket=3, buckets=16).name
        ('u·age', 'u·country=de', 'u·country#3/16')
        """
        suffixes = {"level": f"={self.level}", "bucket": f"#{self.bucket}/{self.buckets}"}
        return CONTEXT + self.column + suffixes.get(self.kind, "")

    @property
    def is_number(self) -> bool:
        """Whether its column must hold numbers."""
        return self.kind == "number"


def features_of(column: str, how: How, kind: Kind, center: float = 0.0) -> tuple[Feature, ...]:
    """The features of one column, given its kind and its known levels.

    >>> [feature.name for feature in features_of("country", ("de", "fr"), "category")]
    ['u·country=de', 'u·country=fr']
    >>> len(features_of("country", None, "category")), len(features_of("age", None, "number", 40.0))
    (16, 1)
    """
    if isinstance(how, tuple):
        return tuple(Feature(column, "level", level) for level in how)
    if how is None and kind != "category":
        return (Feature(column, kind, center=center),)
    if kind != "category":
        raise OptionError(
            f"`baseline=` hashes {column!r} into {how} buckets, but only text is hashed.",
            do="Name its levels instead, or leave them out.",
        )
    buckets = how or BUCKETS
    return tuple(Feature(column, "bucket", bucket=k, buckets=buckets) for k in range(buckets))


def check_levels(column: str, how: How, kind: Kind) -> None:
    """Check that levels have the column's type, since every engine compares text with numbers in its own way.

    >>> check_levels("age", ("a",), "number")
    Traceback (most recent call last):
    counterpoise.errors.OptionError: column 'age' holds numbers, and baseline= gives it the level 'a'. Pass numbers without quotes.
    """
    types, held, do = LEVELS[kind]
    for level in how if isinstance(how, tuple) else ():
        if not isinstance(level, types):
            raise OptionError(f"column {column!r} holds {held}, and `baseline=` gives it the level {level!r}.", do=do)


def check_features(features: tuple[Feature, ...]) -> None:
    """Check that there are not too many features, and no two of the same name."""
    if len(features) > MOST:
        raise OptionError(
            f"`baseline=` makes {len(features):,} numbers of a row, and {MOST} are the most.",
            do="Name fewer levels, or hash into fewer buckets.",
        )
    names = [feature.name for feature in features]
    if len(set(names)) < len(names):
        raise OptionError("`baseline=` names something twice; each column and level once will do.")


def as_baseline(value: Mapping[str, object] | Iterable[str]) -> dict[str, How]:
    """What was passed as `baseline=`, column by column.

    >>> as_baseline(["age", "country"])
    {'age': None, 'country': None}
    >>> as_baseline({"age": None, "country": ["de", "fr"], "city": 64})
    {'age': None, 'country': ('de', 'fr'), 'city': 64}
    """
    columns = list(value)
    if len(set(columns)) < len(columns):
        raise OptionError(f"`baseline=` names a column twice: {', '.join(map(repr, columns))}.")
    by_column = value if isinstance(value, Mapping) else dict.fromkeys(columns)
    baseline: dict[str, How] = {}
    for column, how in by_column.items():
        if how is None:
            baseline[str(column)] = None
        elif isinstance(how, Integral) and not isinstance(how, bool) and 2 <= int(how) <= MOST:
            baseline[str(column)] = int(how)
        elif isinstance(how, list | tuple) and how and all(isinstance(level, str | bool | Integral) for level in how):
            baseline[str(column)] = tuple(level if isinstance(level, str | bool) else int(level) for level in how)
        else:
            raise OptionError(
                f"`baseline=` maps {str(column)!r} to {how!r}: give a list of its levels (text or whole numbers), the number of "
                f"buckets to hash it into (2 to {MOST}), or None."
            )
    return baseline
