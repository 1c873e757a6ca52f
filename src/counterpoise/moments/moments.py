"""`Moments`: the count, mean and scatter of a log's rows, from which every estimate is made."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from types import EllipsisType
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from counterpoise.errors import LogError, MomentsError, verbatim
from counterpoise.moments import stored
from counterpoise.moments.columns import CONTEXT, EXCESS, LENGTH, MODEL, REWARD, ROW, SQUARE, STEPS

Floats = NDArray[np.float64]
Reals = NDArray[np.float32 | np.float64]
Stacked = float | Floats  # one number, or one for every member of a stack
Truth = bool | np.bool_ | NDArray[np.bool_]  # the same of truth values
Index = int | slice | EllipsisType | Sequence[int]  # along one of the leading axes of a stack


@dataclass(frozen=True, eq=False)
class Moments:
    r"""The count, mean and centered scatter of the rows z = (u, s, u·s) of a log.

    With w = target / propensity and r the reward, u = w − 1 and s = r − c, where c is a provisional center of the
    rewards. Sums of u and s keep their digits where sums of w and r lose them (rewards near 10⁸, weights near 1).

    A reward model adds the columns e = r − q, u·e and v − c, where q is the model's reward for the logged action and v is the
    model's value of the target policy. Every further control variate adds one column, minus its known mean. A baseline that depends on
    the context adds u·(φ − its center) for each of its features φ, and u².

    Where rows are lists, s is the reward of the whole list, u the mean excess over the positions of the longest list, and u·s stands for
    what the weights add to the list's reward, less c·u. Lists with a weight per position have the columns u@1, u@2, …, the excess at each,
    and y@1, y@2, …, the weighted rewards. Below the end of a list, a running product stays what it is at the end, and other weights are 1.
    Lists whose weights are not running products have the column u×length. Episodes are lists with the column steps, how many they have,
    and, where the log says which of them were cut off, the column cut.

    Other kinds of rows have further columns of their own, and what they mean is written in `log/kinds`.

    `+` merges the moments of two parts of a log into those of the whole (Chan, Golub & LeVeque 1983). If the arrays have
    leading axes (segments, groups), this is a stack of moments, and `merge` adds along one of those axes.

    Examples
    --------
    >>> monday = Moments.of(weight=[0.5, 2.0], reward=[1, 0])
    >>> tuesday = Moments.of(weight=[1.0, 0.5], reward=[1, 1])
    >>> week = monday + tuesday
    >>> week.n, float(week.mean[0])
    (4, 0.0)

    References
    ----------
    Chan, Golub & LeVeque, "Algorithms for computing the sample variance", The American Statistician 37 (1983).
    """

    n: Any  # int, or an integer array for a stack
    mean: Floats
    scatter: Floats
    center: Any  # float, or a float array for a stack
    columns: tuple[str, ...] = ROW

    def __post_init__(self) -> None:
        d = len(self.columns)
        n, center = np.asarray(self.n), np.asarray(self.center, dtype=np.float64)
        if self.mean.shape != (*n.shape, d) or self.scatter.shape != (*n.shape, d, d) or center.shape != n.shape:
            raise MomentsError(
                f"moments of {d} columns need a mean of shape (…, {d}) and a scatter of shape (…, {d}, {d}); "
                f"found n {n.shape}, mean {self.mean.shape}, scatter {self.scatter.shape}, center {center.shape}."
            )
        if n.ndim == 0:
            object.__setattr__(self, "n", int(n))
            object.__setattr__(self, "center", float(center))

    # -- making them ---------------------------------------------------------------------------------------------------

    @classmethod
    def of(
        cls,
        weight: ArrayLike,
        reward: ArrayLike,
        *,
        model_reward: ArrayLike | None = None,
        model_value: ArrayLike | None = None,
        controls: Mapping[str, ArrayLike] | None = None,
        features: Mapping[str, ArrayLike] | None = None,
        center: float | None = None,
    ) -> Moments:
        """The moments of rows given as arrays; `controls` are columns whose true mean is 0, `features` those of a context baseline.

        >>> Moments.of(weight=[1.0, 1.0], reward=[3, 5]).center
        4.0
        """
        w, r = np.asarray(weight, dtype=np.float64), np.asarray(reward, dtype=np.float64)
        c = center if center is not None else float(r.mean()) if r.size else 0.0
        if w.shape != r.shape or w.ndim != 1:
            raise LogError(f"weights and rewards need one number per row each; found shapes {w.shape} and {r.shape}.")
        if (model_reward is None) != (model_value is None):
            raise LogError("`model_reward=` and `model_value=` go together.", do="Pass both, or neither.")
        u, s = w - 1.0, r - c
        rows, columns = [u, s, u * s], ROW
        if model_reward is not None and model_value is not None:
            e = r - np.asarray(model_reward, dtype=np.float64)
            rows += [e, u * e, np.asarray(model_value, dtype=np.float64) - c]
            columns += MODEL
        for name, column in (controls or {}).items():
            rows.append(np.asarray(column, dtype=np.float64))
            columns += (name,)
        for name, column in (features or {}).items():
            phi = np.asarray(column, dtype=np.float64)
            rows.append(u * (phi - phi.mean() if phi.size else phi))
            columns += (CONTEXT + name,)
        if features:
            rows.append(u * u)
            columns += (SQUARE,)
        if any(row.shape != r.shape or not np.isfinite(row).all() for row in rows):
            raise LogError("weights, rewards and all other columns must be finite numbers, one per row.")
        z = np.stack(rows)
        mean = z.mean(axis=1) if r.size else np.zeros(len(columns))
        z -= mean[:, None]
        return cls(r.size, mean, z @ z.T, c, columns)

    @classmethod
    def of_sums(
        cls, n: ArrayLike, sums: Floats, products: Floats, center: ArrayLike, columns: Sequence[str]
    ) -> Moments:
        """The moments from Σz and Σz·zᵀ, which is all that an engine that can only add gives us."""
        count = np.asarray(n, dtype=np.int64)
        mean = sums / np.maximum(count, 1)[..., None]
        scatter = products - sums[..., :, None] * mean[..., None, :]
        diagonal = np.einsum("...ii->...i", scatter)
        np.maximum(diagonal, 0.0, out=diagonal)  # a sum of squares rounds to -1e-17 at worst
        return cls(count, mean, scatter, np.broadcast_to(np.asarray(center, float), count.shape).copy(), tuple(columns))

    @classmethod
    def empty(cls, columns: Sequence[str] = ROW, shape: tuple[int, ...] = ()) -> Moments:
        """The moments of no rows at all: adding them changes nothing."""
        d = len(columns)
        zeros = np.zeros(shape)
        return cls(zeros.astype(np.int64), np.zeros((*shape, d)), np.zeros((*shape, d, d)), zeros, tuple(columns))

    @classmethod
    def stack(cls, parts: Sequence[Moments]) -> Moments:
        """Several moments of the same columns as one stack with a new leading axis."""
        columns = parts[0].columns
        for part in parts[1:]:
            if part.columns != columns:
                raise MomentsError(
                    f"moments of different columns cannot be added: {', '.join(columns)} and {', '.join(part.columns)}.",
                    do="Evaluate both logs with the same reward model and controls.",
                )
        return cls(
            np.stack([np.asarray(part.n) for part in parts]),
            np.stack([part.mean for part in parts]),
            np.stack([part.scatter for part in parts]),
            np.stack([np.asarray(part.center) for part in parts]),
            columns,
        )

    @classmethod
    def concat(cls, parts: Sequence[Moments], axis: int = 0) -> Moments:
        """Several stacks of the same columns, one after the other along a leading axis."""
        axis %= len(parts[0].shape)
        n, mean, scatter, center = (np.concatenate([getattr(stack, part) for stack in parts], axis) for part in _PARTS)
        return cls(n, mean, scatter, center, parts[0].columns)

    # -- adding them ---------------------------------------------------------------------------------------------------

    def __add__(self, other: object) -> Moments:
        """The moments of the rows of both."""
        if not isinstance(other, Moments):
            return NotImplemented
        if self.shape == other.shape == ():
            if other.n == 0:
                return self
            if self.n == 0:
                return other
        return Moments.stack([self, other]).merge(axis=0)

    def __radd__(self, other: object) -> Moments:
        return self if other == 0 else NotImplemented  # so that sum() works

    def merge(self, axis: int) -> Moments:
        """The stack added up along one of its leading axes."""
        axis %= len(self.shape)
        n = self.n
        if n.shape[axis] == 1:
            only: tuple[Index, ...] = (*(slice(None),) * axis, 0)
            return self[only]
        total = n.sum(axis=axis)
        first = np.take_along_axis(self.center, np.expand_dims(np.argmax(n > 0, axis=axis), axis), axis)
        # measured from the first center, so that equal centers stay equal to the last bit
        share = n / np.maximum(total, 1)[tuple(slice(None) if k != axis else None for k in range(n.ndim))]
        center = first + (share * (self.center - first)).sum(axis=axis, keepdims=True)
        centered = self.recenter(np.broadcast_to(center, n.shape))
        mean = (share[..., None] * centered.mean).sum(axis=axis)
        apart = centered.mean - np.expand_dims(mean, axis)
        between = n[..., None, None] * apart[..., :, None] * apart[..., None, :]
        return Moments(total, mean, (centered.scatter + between).sum(axis=axis), center.squeeze(axis), self.columns)

    @cached_property
    def others(self) -> Moments:
        """For every member of the last axis, all the others merged.

        We merge neighbors into pairs and recurse on those, so three merges per member suffice. Subtracting from the total would
        lose all digits when one group holds nearly all of the scatter.
        """
        *ahead, size = self.shape
        if size == 1:
            return Moments.empty(self.columns, self.shape)
        if size % 2:
            padded = Moments.concat([self, Moments.empty(self.columns, (*ahead, 1))], axis=-1)
            return padded.others[..., :size]
        first, second = self[..., ::2], self[..., 1::2]
        apart = Moments.stack([first, second]).merge(axis=0).others  # for every pair, all the other pairs
        pairs = [Moments.stack([apart, sibling]).merge(axis=0) for sibling in (second, first)]
        joined = [np.stack([getattr(pair, part) for pair in pairs], axis=len(ahead) + 1) for part in _PARTS]
        n, mean, scatter, center = (whole.reshape(*ahead, size, *whole.shape[len(ahead) + 2 :]) for whole in joined)
        return Moments(n, mean, scatter, center, self.columns)

    def recenter(self, center: ArrayLike) -> Moments:
        """The same rows seen from another center of the rewards: s moves by δ, u·s by δ·u.

        >>> Moments.of([0.5, 2.0], [1, 0]).recenter(0.0).mean.tolist()
        [0.25, 0.5, -0.25]
        """
        delta = np.asarray(self.center - np.asarray(center, dtype=np.float64))
        if not delta.any() and delta.shape == np.shape(self.n):
            return self
        mean, scatter = self.mean.copy(), self.scatter.copy()
        moved = {"us": "u"}  # by δ times another column
        for kind in row_kinds().kinds_in(self.columns):
            moved |= kind.moved(self.columns)
        mean[..., [k for k, name in enumerate(self.columns) if name in ("s", "v") and name not in moved]] += delta[
            ..., None
        ]
        for column, by in ((self.columns.index(name), self.columns.index(other)) for name, other in moved.items()):
            mean[..., column] += delta * mean[..., by]
            scatter[..., column, :] += delta[..., None] * scatter[..., by, :]
            scatter[..., :, column] += delta[..., None] * scatter[..., :, by]
        return Moments(
            self.n, mean, scatter, np.broadcast_to(np.asarray(center, float), np.shape(self.n)), self.columns
        )

    @property
    def context(self) -> tuple[str, ...]:
        """The columns of a context baseline."""
        return tuple(name for name in self.columns if name.startswith(CONTEXT))

    @property
    def ranks(self) -> tuple[str, ...]:
        """The columns of the excess at every position of a ranking."""
        return tuple(name for name in self.columns if name.startswith(EXCESS))

    @property
    def has_steps(self) -> bool:
        """Whether positions are the steps of episodes, of which few may reach the last."""
        return STEPS in self.columns and bool(self.ranks)

    def with_ranks(self, columns: Sequence[str], *, is_running: bool) -> Moments:
        """The same lists with further positions that none of them has: there, running products keep their last value."""
        missing = [name for name in columns if name.startswith((EXCESS, REWARD)) and name not in self.columns]
        if not missing or not self.ranks:
            return self
        wide = [*self.columns, *missing]
        fixed = [name for name in wide if not name.startswith((EXCESS, REWARD))]
        ranked = [
            sorted((n for n in wide if n.startswith(k)), key=lambda n: int(n[len(EXCESS) :])) for k in (EXCESS, REWARD)
        ]
        order = (*fixed, *ranked[0], *ranked[1])
        last = self.columns.index(self.ranks[-1])
        made_of = np.zeros((len(order), len(self.columns)))
        for k, name in enumerate(order):
            if name in self.columns:
                made_of[k, self.columns.index(name)] = 1.0
            elif is_running and name.startswith(EXCESS):
                made_of[k, last] = 1.0
        return self.mapped(made_of, order)

    def with_lengths(self) -> Moments:
        """The same lists, all of the same length, with the column u×length, if they are those of a target and lack it."""
        if LENGTH in self.columns or not any(name.startswith(REWARD) for name in self.columns):
            return self
        place = self.columns.index(self.ranks[0])
        made_of = np.insert(np.eye(len(self.columns)), place, 0.0, axis=0)
        made_of[place, place : place + len(self.ranks)] = len(self.ranks)
        order = (*self.columns[:place], LENGTH, *self.columns[place:])
        return self.mapped(made_of, order)

    def with_features_moved(self, by: Mapping[str, float]) -> Moments:
        """The same rows with other centers of their features: u·(φ − c) moves by `by`·u.

        >>> log = Moments.of([0.5, 2.0], [1, 0], features={"age": [20, 50]})
        >>> bool(log.with_features_moved({"u·age": 35.0}).average("u·age") == 35 * log.average("u") + log.average("u·age"))
        True
        """
        moved = np.eye(len(self.columns))
        for name, delta in by.items():
            moved[self.columns.index(name), self.columns.index("u")] = delta
        return self.mapped(moved, self.columns)

    def mapped(self, made_of: Floats, columns: Sequence[str]) -> Moments:
        """The moments of columns that are linear in these: the rows of `made_of` have their coefficients."""
        return Moments(self.n, self.mean @ made_of.T, made_of @ self.scatter @ made_of.T, self.center, tuple(columns))

    def shifted(self, constant: ArrayLike) -> Moments:
        """The moments of the same log with a constant added to every reward (and to the model's).

        >>> Moments.of([0.5, 2.0], [1, 0]).shifted(-0.5).center
        0.0
        """
        return Moments(self.n, self.mean, self.scatter, np.asarray(self.center + np.asarray(constant)), self.columns)

    # -- looking at them -----------------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """The leading axes of a stack; () for the moments of one set of rows."""
        return np.shape(self.n)

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Moments:
        """A part of a stack."""
        key = index if isinstance(index, tuple) else (index,)
        rest = (slice(None),)
        inner = key if Ellipsis in key else (*key, ...)
        return Moments(
            self.n[key], self.mean[inner + rest], self.scatter[inner + rest * 2], self.center[key], self.columns
        )

    def average(self, column: str) -> Floats:
        """The mean of one column."""
        return self.mean[..., self.columns.index(column)]

    def form(self, *columns: str, **coefficients: float) -> Floats:
        """A sum of columns, some of them times a coefficient, as a row over all of them.

        >>> Moments.of([0.5, 2.0], [1, 0]).form("us", u=-0.5).tolist()
        [-0.5, 0.0, 1.0]
        """
        return np.array([coefficients.get(name, float(name in columns)) for name in self.columns])

    def covariance(self, first: str, second: str) -> Floats:
        """The scatter of two columns, divided by n."""
        entry = self.scatter[..., self.columns.index(first), self.columns.index(second)]
        return cast(Floats, entry / np.maximum(self.n, 1))

    # -- storing them --------------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """These moments as text; `from_json` restores them to the last bit."""
        return json.dumps(self.to_plain())

    @classmethod
    def from_json(cls, text: str) -> Moments:
        """The moments that `to_json` wrote; anything else is refused.

        >>> week = Moments.of([0.5, 2.0], [1, 0])
        >>> Moments.from_json(week.to_json()).to_json() == week.to_json()
        True
        """
        try:
            return cls.from_plain(stored.parse(text))
        except stored.BROKEN as error:
            what = f"this text is not the JSON of moments: {verbatim(error)}."
            raise MomentsError(what, do="Recompute them from the log.") from error

    def to_plain(self) -> dict[str, object]:
        """These moments as plain lists and numbers, ready for JSON."""
        return {
            "n": np.asarray(self.n).tolist(),
            "mean": self.mean.tolist(),
            "scatter": self.scatter.tolist(),
            "center": np.asarray(self.center).tolist(),
            "columns": list(self.columns),
        }

    @classmethod
    def from_plain(cls, raw: object) -> Moments:
        """The moments from what `to_plain` returned; for anything else, a ValueError says what is wrong with it."""
        parts = stored.record(raw, "moments", ("n", "mean", "scatter", "center", "columns"))
        columns = tuple(stored.text(name, "a column's name") for name in stored.items(parts["columns"], "columns"))
        if columns[: len(ROW)] != ROW or len(set(columns)) < len(columns):
            raise ValueError(f"the columns should start with {', '.join(ROW)}, and none should appear twice")
        n = stored.counts(parts["n"], "n")
        mean, scatter, center = (stored.numbers(parts[name], name) for name in ("mean", "scatter", "center"))
        try:
            moments = cls(n, mean, scatter, center, columns)
        except MomentsError as error:
            raise ValueError(str(error).rstrip(".")) from error
        if (np.einsum("...ii->...i", scatter) < 0).any():
            raise ValueError("a sum of squares is negative")
        return moments

    def __repr__(self) -> str:
        if self.shape:
            return f"Moments(stack of {' × '.join(map(str, self.shape))}, columns={self.columns})"
        means = ", ".join(f"{name}={value:.6g}" for name, value in zip(self.columns, self.mean, strict=True))
        return f"Moments(n={self.n:,}, center={self.center:.6g}, mean: {means})"


@dataclass(frozen=True)
class ShorterRows:
    """A linear map of longer rows to shorter ones, whose coefficients are already chosen: constant + turn·row, around a new center."""

    turn: Floats
    constant: Floats
    center: Floats
    columns: tuple[str, ...]

    def __call__(self, moments: Moments) -> Moments:
        """The moments of the shorter rows."""
        mean = self.constant + (self.turn @ moments.mean[..., None])[..., 0]
        scatter = self.turn @ moments.scatter @ np.swapaxes(self.turn, -1, -2)
        squares = np.einsum("...ii->...i", scatter)
        np.maximum(squares, 0.0, out=squares)  # rounding
        return Moments(moments.n, mean, scatter, np.broadcast_to(self.center, moments.shape), self.columns)


def row_kinds() -> Any:
    """The kinds of rows, whose columns moments add up without knowing them. They are above this room, and so imported by name."""
    return import_module("counterpoise.log.kinds")


_PARTS = ("n", "mean", "scatter", "center")


# -- Coefficients of control variates, fitted on the scatter -----------------------------------------------------------


def least_squares(moments: Moments, controls: Floats, responses: Floats) -> Floats:
    """The coefficients of the controls (rows of a matrix over the columns) that leave each response with the least scatter.

    Controls that have no variance, or repeat others, get the smallest coefficients that do the same (a pseudo-inverse of the
    correlations, so the units of the columns do not matter).
    """
    cross = controls @ moments.scatter @ np.swapaxes(controls, -1, -2)
    right = controls @ moments.scatter @ np.swapaxes(responses, -1, -2)
    inverse = inverse_sizes(moments, controls, cross)
    correlation = cross * inverse[..., :, None] * inverse[..., None, :]
    solved = np.linalg.pinv(correlation, rcond=1e-10, hermitian=True) @ (right * inverse[..., None])
    return np.asarray(solved * inverse[..., None])


def inverse_sizes(moments: Moments, controls: Floats, cross: Floats) -> Floats:
    """One over the root of each control's scatter; 0 where that is no more than rounding."""
    square = np.einsum("...ii->...i", cross)
    # what rounding alone can leave of a control that is constant: its columns may be large and cancel
    n = np.maximum(np.asarray(moments.n), 1)[..., None]
    terms = np.einsum("...ij,...j->...i", np.square(controls), np.einsum("...ii->...i", moments.scatter))
    means = np.einsum("...ij,...j->...i", controls, moments.mean)
    rounding = 1e-13 * (terms + n * np.square(means)) + n * 1e-30
    size = np.sqrt(np.where(square > rounding, square, 0.0))
    return np.divide(1.0, size, out=np.zeros_like(size), where=size > 0)
