"""A sketch of the rows that a policy was learned from: small, the same in any order and from any source, and enough to recognize them.

A row is its context, action and reward. It has a key of 64 bits, the upper half from the context, the lower half from all of it; a sketch
has the smallest keys, and how many rows have each. Since the upper half comes first, the rows of one context are in it together.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from counterpoise.log.groups import STEP, mix

Keys = NDArray[np.uint64]

SIZE = 2000  # different keys in a sketch
MISSING = np.uint64(0x7FF8000000000000)  # the bits of NaN, which stand for null, too
UPPER = np.uint64(0xFFFFFFFF00000000)
HALF = np.uint64(32)


def row_keys(context: Sequence[ArrayLike], action: Sized, reward: ArrayLike) -> Keys:
    """The key of every row; columns are arrays, or series of polars.

    >>> import polars as pl
    >>> first = row_keys([np.array([0.5, 1.0], np.float32)], np.array(["tea", "jam"]), [1, 0])
    >>> again = row_keys([pl.Series([0.5, 1.0])], pl.Series(["tea", "jam"], dtype=pl.Categorical), pl.Series([1.0, 0.0]))
    >>> bool((first == again).all())
    True
    """
    seed = np.zeros(len(action), dtype=np.uint64)
    for column in context:
        seed = mix((seed ^ _bits(column)) + STEP)
    row = mix((mix((seed ^ _bits(action)) + STEP) ^ _bits(reward)) + STEP)
    return (seed & UPPER) | (row >> HALF)


@dataclass(frozen=True)
class Overlap:
    """How the rows of a log fit a sketch: the share of them that is in it, and of the sketch's that is in the log."""

    share: float
    share_of_sketch: float
    is_same: bool  # rows of the log are those of the sketch, and not others like them


@dataclass
class Sketch:
    """The smallest keys of some rows, with the number of rows that have each, and how many rows there are in all."""

    keys: Keys = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    rows: int = 0
    size: int = SIZE

    def add(self, keys: Keys) -> None:
        """Add more rows."""
        self.rows += len(keys)
        if len(self.keys) == self.size:
            keys = keys[keys <= self.keys[-1]]
        self.keys, self.counts = self._with(*np.unique(keys, return_counts=True))

    def after(self, earlier: Sketch) -> Sketch:
        """The sketch of a policy that was first learned from other rows; learning from the same rows twice changes nothing."""
        if np.array_equal(self.keys, earlier.keys) and np.array_equal(self.counts, earlier.counts):
            return self
        return Sketch(*self._with(earlier.keys, earlier.counts), self.rows + earlier.rows, self.size)

    def _with(self, keys: Keys, counts: NDArray[np.int64]) -> tuple[Keys, NDArray[np.int64]]:
        """The smallest keys of these and those that there are, and how many rows have each."""
        both, place = np.unique(np.concatenate([self.keys, keys]), return_inverse=True)
        total = np.bincount(place, np.concatenate([self.counts, counts]), len(both)).astype(np.int64)
        return both[: self.size], total[: self.size]

    def watch(self) -> Watch:
        """A watch that sees the rows of a log go by, and says how they fit."""
        return Watch(self)

    def to_plain(self) -> dict[str, object]:
        """What fits into JSON."""
        texts = {"keys": self.keys.astype("<u8"), "counts": np.minimum(self.counts, 2**32 - 1).astype("<u4")}
        return {name: base64.b64encode(array.tobytes()).decode() for name, array in texts.items()} | {"rows": self.rows}

    @classmethod
    def from_plain(cls, stored: Mapping[str, object]) -> Sketch:
        """The sketch that `to_plain` wrote; a ValueError if it is something else."""
        try:
            keys = np.frombuffer(base64.b64decode(str(stored["keys"]), validate=True), dtype="<u8").astype(np.uint64)
            counts = np.frombuffer(base64.b64decode(str(stored["counts"]), validate=True), dtype="<u4").astype(np.int64)
            rows = stored["rows"]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError("the sketch of its training rows cannot be read") from error
        is_sorted = len(keys) == len(counts) > 0 and bool((keys[1:] > keys[:-1]).all())
        if not isinstance(rows, int) or isinstance(rows, bool) or rows <= 0 or not is_sorted or counts.min() < 1:
            raise ValueError("the sketch of its training rows makes no sense")
        return cls(keys, counts, rows, max(SIZE, len(keys)))


@dataclass
class Watch:
    """Counts the rows of a log that are in a sketch."""

    sketch: Sketch
    rows: int = 0
    near: int = 0  # rows as low as those of the sketch
    familiar: int = 0  # of those, rows with a context of the sketch
    counts: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.counts = np.zeros(len(self.sketch.keys), dtype=np.int64)

    def add(self, keys: Keys) -> None:
        """See some rows of the log."""
        lowest = self.sketch.keys
        self.rows += len(keys)
        is_full = len(lowest) == self.sketch.size
        near = keys[keys <= lowest[-1]] if is_full else keys
        self.near += len(near)
        at = np.minimum(np.searchsorted(lowest, near), len(lowest) - 1)
        self.counts += np.bincount(at[lowest[at] == near], minlength=len(lowest))
        contexts = np.unique(lowest & UPPER)
        place = np.minimum(np.searchsorted(contexts, near & UPPER), len(contexts) - 1)
        self.familiar += int((contexts[place] == near & UPPER).sum())

    def overlap(self) -> Overlap:
        """The overlap that was seen.

        Rows may be alike by chance, the more so the fewer different ones there are, and users who come back bring the same
        context, maybe with the same outcome. We call them the same rows only if chance does not explain their number, and if
        nearly all rows with a context of the sketch are in it, or nearly all of the sketch is in the log.
        """
        common, there = int(self.counts.sum()), self.sketch.counts
        share_of_sketch = float(np.minimum(self.counts, there).sum() / there.sum())
        is_whole = common >= SAME * self.familiar or share_of_sketch >= SAME
        by_chance = not (self._too_many_once() or self._is_within() or self._too_regular() or self._is_copy())
        return Overlap(common / max(self.near, 1), share_of_sketch, common > 0 and is_whole and not by_chance)

    @property
    def _ratio(self) -> float:
        return self.rows / self.sketch.rows

    def _too_many_once(self) -> bool:
        """Whether rows that the sketch has once are in the log more often than new rows of the same world would be.

        The chance that a new row equals one that n rows have just once is about 2·F₂/n, F₂ the number of different rows that they have
        twice (Good 1953); we allow for three standard errors of both.
        """
        once, twice = self.sketch.counts == 1, int((self.sketch.counts == 2).sum())
        expected = 2 * self._ratio * (twice + 3 * np.sqrt(twice) + 3)
        return bool(self.counts[once].sum() > expected + 3 * np.sqrt(expected))

    def _is_within(self) -> bool:
        """Whether no number of rows is larger in the log than in the sketch, or none is smaller, as in a part of them or more.

        Of the rows with one key in two logs that were drawn apart, the number in either is binomial. A few exceptions may come from rows
        that only one of them has; their number is then held against Chernoff's bound.
        """
        from scipy.special import bdtr

        here, there = self.counts, self.sketch.counts
        both, part = here + there, self.rows / (self.rows + self.sketch.rows)
        more, fewer = 1.0 - bdtr(both // 2, both, part), bdtr((both - 1) // 2, both, part)
        new = self.near - int(here.sum())
        tests = (more, int((here > there).sum()) + new), (fewer, int((here < there).sum()))
        return any(_surprise(chances, exceptions) > COINCIDENCE for chances, exceptions in tests)

    def _too_regular(self) -> bool:
        """Whether the numbers of frequent rows agree far better than those of two logs drawn apart, where each is binomial."""
        both, part = self.counts + self.sketch.counts, self.rows / (self.rows + self.sketch.rows)
        is_frequent = (self.sketch.counts >= OFTEN) & (self.sketch.counts * self._ratio >= OFTEN)
        if is_frequent.sum() < KINDS:
            return False
        n = both[is_frequent]
        squares = (self.counts[is_frequent] - n * part) ** 2 / (n * part * (1 - part))
        return bool(squares.mean() < REGULAR)

    def _is_copy(self) -> bool:
        """Whether every count is exactly the sketch's, and there are enough of them to rule out coincidence."""
        if self.rows != self.sketch.rows or not np.array_equal(self.counts, self.sketch.counts):
            return False
        # of 2m rows, just half are in either log with a probability of about 1/√(πm)
        return bool(np.log(np.pi * self.sketch.counts).sum() / 2 > COINCIDENCE)


def _surprise(chances: NDArray[np.generic], exceptions: int) -> float:
    """How surprising it is, as a logarithm, that so few of these have happened."""
    if exceptions == 0:
        return float(-np.log1p(-np.minimum(chances, 1.0 - 1e-12)).sum())
    expected = float(chances.sum())
    return (expected - exceptions) ** 2 / (2 * expected) if exceptions < expected else 0.0


SAME = 0.95
OFTEN, KINDS, REGULAR = 10, 30, 0.35
COINCIDENCE = np.log(10_000)


def _bits(column: object) -> Keys:
    """Every value of a column as 64 bits: equal ones alike, whatever their type."""
    if hasattr(column, "detach"):
        column = column.detach().cpu().numpy()
    if isinstance(column, pl.Series):
        kind = str(column.dtype)
        if kind.startswith(("List", "Array")):
            rows = [() if numbers is None else numbers for numbers in column.to_list()]
            table = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
            for row, numbers in zip(table, rows, strict=True):
                row[: len(numbers)] = numbers
            return _of_table(table)
        if kind.startswith(("String", "Categorical", "Enum", "Binary", "Null", "Object")):
            return _of_texts(column.cast(pl.String) if kind != "Object" else column)
        if kind.startswith(("Date", "Time", "Duration")):
            return _of_numbers(column.to_numpy())
        return _of_numbers(column.cast(pl.Float64).to_numpy())
    if isinstance(column, np.ma.MaskedArray):
        column = np.ma.filled(column.astype(object), None)
    array = np.asarray(column)
    if array.ndim == 2:
        return _of_table(array)
    if array.dtype.kind == "O":
        try:
            array = array.astype(np.float64)  # in which None is NaN
        except (TypeError, ValueError):
            return _of_texts(array)
    return _of_numbers(array) if array.dtype.kind in "biufmM" else _of_texts(array)


def _of_numbers(array: NDArray[np.generic]) -> Keys:
    if array.dtype.kind in "mM":
        unknown = np.isnat(array)
        microseconds = array.astype(f"{array.dtype.kind}8[us]").astype(np.int64)
        array = np.where(unknown, np.nan, microseconds.astype(np.float64))
    numbers = array.astype(np.float64) + 0.0  # of which −0 and 0 are one
    return np.where(np.isnan(numbers), MISSING, numbers.view(np.uint64))


def _of_texts(values: pl.Series | NDArray[np.generic]) -> Keys:
    texts = values.to_list() if isinstance(values, pl.Series) else values.tolist()
    keys: dict[object, int] = {None: int(MISSING)}
    for text in texts:
        if text not in keys:
            keys[text] = int.from_bytes(hashlib.blake2b(str(text).encode(), digest_size=8).digest(), "little")
    return np.fromiter((keys[text] for text in texts), dtype=np.uint64, count=len(texts))


def _of_table(array: NDArray[np.generic]) -> Keys:
    seed = np.zeros(len(array), dtype=np.uint64)
    for column in array.T:
        seed = mix((seed ^ _of_numbers(column)) + STEP)
    return seed


@dataclass(frozen=True)
class Lesson:
    """What a policy remembers of its training: a sketch of the rows, and what learning estimated on rows it had not seen."""

    sketch: Sketch
    estimate: Mapping[str, object] | None = None  # value, lower, upper, verdict

    def to_plain(self) -> dict[str, object]:
        """What fits into JSON."""
        return self.sketch.to_plain() | {"estimate": None if self.estimate is None else dict(self.estimate)}

    @classmethod
    def from_plain(cls, stored: Mapping[str, object]) -> Lesson:
        """What `to_plain` wrote; a ValueError if it is something else."""
        sketch, estimate = Sketch.from_plain(stored), stored.get("estimate")
        numbers = ("value", "lower", "upper")
        if estimate is None or (
            isinstance(estimate, dict)
            and all(isinstance(estimate.get(name), int | float) for name in numbers)
            and estimate.get("verdict") in ("ok", "caution", "not identified")
        ):
            return cls(sketch, estimate)
        raise ValueError("the estimate from its learning makes no sense")
