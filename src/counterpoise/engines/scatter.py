"""The sums of products of a context baseline: with dozens of columns, a product of matrices is many times faster than a query."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations_with_replacement
from threading import Lock

import narwhals as nw
import numpy as np
import polars as pl

from counterpoise.engines.query import FEATURES, Frame
from counterpoise.log.question import Lane, Names
from counterpoise.moments import Floats

BLOCK = 10_000  # rows, not a power of two, with which columns would compete for the same lines of the cache
MULTIPLICATIONS = 250_000  # OpenBLAS takes several threads for more


class Scatter:
    """The sums that only a context baseline needs, of pieces of a frame that several threads may bring in any order."""

    def __init__(self, names: Names) -> None:
        self._names, self._lock = names, Lock()
        self._keys = list(names.keys)
        self._lanes = names.lanes if names.is_wide else ()
        needed = {*names.features, *_needed_columns(self._lanes), *self._keys}
        self._columns = sorted(needed - set(names.centered_features))
        self._centers = [feature.center for feature in names.question.features]
        self._sums: dict[tuple[object, ...], list[Floats]] = defaultdict(
            lambda: [np.zeros(())] * (len(self._lanes) + 1)
        )

    def watch(self, rows: Frame) -> Frame:
        """The same rows, which are seen in passing."""
        if not self._lanes:
            return rows
        native: pl.LazyFrame = rows.to_native()
        return nw.from_native(native.map_batches(self._pass_on, streamable=True, validate_output_schema=False))

    def see(self, piece: pl.DataFrame) -> None:
        """Add one more piece, whose rows have their u and s."""
        if not self._lanes or not piece.height:
            return
        for key, rows in self._parts(piece.select(self._columns)):
            products = self._products(rows)
            with self._lock:
                known = self._sums[key]
                self._sums[key] = [a + b for a, b in zip(known, products, strict=True)]

    def numbers(self, answer: pl.DataFrame) -> dict[str, Floats]:
        """The sums under the names that the aggregate gives them, in the order of the answer's segments and groups."""
        if not self._lanes:
            return {}
        keys = answer.select(self._keys).rows() if self._keys else [()] * answer.height
        empty = [np.zeros(()), *(np.zeros((len(lane.columns) + 1,) * 2) for lane in self._lanes)]
        each = [self._sums.get(key, empty) for key in keys]
        numbers = {FEATURES: np.array([sums[0] for sums in each])}
        for k, lane in enumerate(self._lanes):
            whole, columns = np.stack([sums[k + 1] for sums in each]), list(lane.columns.values())
            for i, name in enumerate(columns):
                numbers.setdefault(name, whole[:, i, -1])
            for i, j in combinations_with_replacement(range(len(columns)), 2):
                numbers.setdefault(self._names.product(columns[i], columns[j]), whole[:, i, j])
        return numbers

    def _pass_on(self, piece: pl.DataFrame) -> pl.DataFrame:
        self.see(piece)
        return piece

    def _parts(self, piece: pl.DataFrame) -> Iterator[tuple[tuple[object, ...], pl.DataFrame]]:
        if not self._keys:
            yield (), piece
            return
        yield from piece.partition_by(self._keys, as_dict=True, include_key=False).items()

    def _products(self, rows: pl.DataFrame) -> list[Floats]:
        """The sum of the features' squares, and for each lane Σzzᵀ over its columns and a last one of ones."""
        columns = {name: _array(rows.get_column(name)) for name in rows.columns}
        features = [columns[name] for name in self._names.features]
        size = min(BLOCK, rows.height)
        whole = np.empty((len(features), size))
        tables = [np.ones((len(lane.columns) + 1, size)) for lane in self._lanes]
        totals: list[Floats] = [np.zeros(()), *(np.zeros((len(table),) * 2) for table in tables)]
        with np.errstate(invalid="ignore", over="ignore"):  # a bad row spoils the sums, and is found by that
            for start in range(0, rows.height, size):
                stop = min(start + size, rows.height)
                phi = whole[:, : stop - start]
                for row, column, center in zip(phi, features, self._centers, strict=True):
                    np.subtract(column[start:stop], center, out=row)
                totals[0] = totals[0] + np.matmul(phi[:, None, :], phi[:, :, None]).sum()
                here = {name: column[start:stop] for name, column in columns.items()}
                for k, (lane, table) in enumerate(zip(self._lanes, tables, strict=True)):
                    z = table[:, : stop - start]
                    _fill(z, lane, here, phi)
                    if self._names.apart:  # rows on which this reward is bad
                        z[:-1] = np.nan_to_num(z[:-1])
                    totals[k + 1] += gram(z)
        return totals


def gram(z: Floats) -> Floats:
    """z·zᵀ in steps so short that BLAS takes one thread for each: the engine has a thread on every core already.

    It is a product of two different matrices, all columns but one times all: for so few columns that takes two thirds of the time of
    the product of a matrix with itself, of which BLAS computes only half.

    >>> gram(np.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [[5.0, 11.0], [11.0, 25.0]]
    """
    step = max(MULTIPLICATIONS // (len(z) * (len(z) + 1)), 16)
    whole = z.shape[1] // step * step
    steps = z[:, :whole].reshape(len(z), -1, step).swapaxes(0, 1)
    rest, last = z[:, whole:], z[-1]
    most = np.matmul(steps[:, :-1], steps.swapaxes(1, 2)).sum(axis=0) + rest[:-1] @ rest.T
    return np.vstack([most, [*most[:, -1], np.einsum("i,i->", last, last)]])


def _fill(z: Floats, lane: Lane, columns: Mapping[str, Floats], phi: Floats) -> None:
    """The rows' columns of a lane, one after the other; those of the features, which stand together, at once."""
    excess, context = columns[lane.excess], []
    for place, (name, column) in enumerate(lane.columns.items()):
        factor = lane.factors.get(name)
        if factor is None:
            z[place] = columns[column]
        elif factor in columns:
            np.multiply(columns[factor], excess, out=z[place])
        else:
            context.append(place)
    if context:
        np.multiply(phi, excess, out=z[context[0] : context[-1] + 1])


def _needed_columns(lanes: Sequence[Lane]) -> set[str]:
    """The columns of a frame from which those of the lanes are made."""
    return {lane.factors.get(name, column) for lane in lanes for name, column in lane.columns.items()}


def _array(column: pl.Series) -> Floats:
    """A column as an array, in which a null is NaN."""
    array: Floats = column.to_numpy()
    return array
