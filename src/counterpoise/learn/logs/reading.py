"""How to read the columns of a log that are more than numbers: contexts to encode, actions that are text, and candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.errors import Argument, ColumnError, LogError, OptionError
from counterpoise.learn.logs.actions import MOST
from counterpoise.learn.logs.candidates import (
    NONE,
    Places,
    flat_of,
    ids_of_mask,
    lists_of,
    padded,
    places_of,
    whole_numbers,
)
from counterpoise.learn.logs.encoding import TEXT, Encoding, learned_encoding, series
from counterpoise.learn.logs.numbers import numeric
from counterpoise.learn.logs.rows import Names
from counterpoise.readers.policies import check_context

Columns = Mapping[str, Any]
Parts = Callable[[], Iterator[Columns]]  # the columns of a log, part by part, as often as one asks


@dataclass(frozen=True)
class Reading:
    """What the columns mean that are not plain numbers."""

    encoding: Encoding | None  # of the contexts, unless all of them are numbers
    names: NDArray[Any] | None  # of the actions in ascending order, if they are text
    classes: NDArray[Any] | None = None  # the actions, if they are known before the log is read
    width: int | None = None  # of a table of truth values, if the candidates are one

    def with_numbers(self, columns: Columns, names: Names) -> Columns:
        """The columns with places for actions that are text; −1 where there is none."""
        if self.names is None:
            return columns
        return dict(columns) | {names.action: _places(series(names.action, columns[names.action]), self.names)}

    def candidates_of(self, columns: Columns, names: Names, rows: int) -> Places | None:
        """The candidates of every row in the terms of the actions: ids, or places if these are text; filled up with −1."""
        if names.candidates is None:
            return None
        values = columns[names.candidates]
        mask = mask_in(names.candidates, values)
        if mask is not None:
            _check_rows(names.candidates, len(mask), rows)
            return ids_of_mask(mask, self._ids_of_columns(names.candidates, mask.shape[1]))
        lists = lists_of(names.candidates, values)
        _check_rows(names.candidates, len(lists), rows)
        if self.names is not None:
            return padded(lists, places_of(lists, self.names))
        flat = whole_numbers(flat_of(lists))
        odd = flat.is_null() | (flat < 0)
        if odd.any():
            raise LogError(
                f"candidates {names.candidates!r} must be whole numbers from 0 on, as the actions are: {odd.sum():,} of {len(flat):,} are "
                f"not; one is {flat_of(lists).filter(odd.fill_null(True))[0]!r}."
            )
        return padded(lists, flat.to_numpy())

    def _ids_of_columns(self, name: str, width: int) -> Places:
        """The actions that the columns of a table of truth values belong to."""
        known = self.names if self.names is not None else self.classes
        if known is not None and len(known) != width:
            raise OptionError(
                f"candidates {name!r} must have a column for each of the {len(known):,} actions; found {width:,}."
            )
        return np.arange(width) if self.names is not None or self.classes is None else np.asarray(self.classes)


def _places(values: pl.Series, names: NDArray[Any]) -> Places:
    known, numbers = pl.Series(list(names), dtype=pl.String), pl.Series(np.arange(len(names)))
    text = values.cast(pl.String)
    found: Places = text.replace_strict(known, numbers, default=NONE, return_dtype=pl.Int64).to_numpy()
    return found


def _check_rows(name: str, found: int, rows: int) -> None:
    if found != rows:
        raise ColumnError(f"candidates {name!r} must have a row for each of the {rows:,} of the log; found {found:,}.")


def mask_in(name: str, values: Any) -> NDArray[np.bool_] | None:
    """Candidates as a table of truth values, if that is what they are."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    if isinstance(values, np.ndarray) and values.ndim == 2 and values.dtype.kind == "b":
        return values
    if not isinstance(values, pl.Series) or not isinstance(values.dtype, pl.List | pl.Array):
        return None
    if values.dtype.inner != pl.Boolean:
        return None
    found = np.array(values.to_list(), dtype=object)
    if found.ndim != 2:
        raise ColumnError(f"candidates {name!r} must have a truth value for every action in each row.")
    return found.astype(bool)


def reading_of(
    parts: Parts,
    names: Names,
    classes: NDArray[Any] | None,
    encoding: Encoding | None = None,
    has_gaps: bool = False,
) -> Reading | None:
    """How to read a log; None if all that training looks at are numbers. Actions and encoding may be known already, from a policy.

    With `has_gaps`, numbers of the context are missing, which the encoding marks.
    """
    first = next(parts(), {})
    if not first:
        return None
    plain = not has_gaps and all(_is_numbers("context", name, first[name]) for name in names.context)
    is_text = is_text_in(names.action, first[names.action])
    _check_kinds(names.action, is_text, classes)
    if encoding is not None:
        check_context(encoding.names, names.context)
    elif plain and not is_text and names.candidates is None:
        return None
    elif not plain:
        encoding = learned_encoding(parts(), names.context)
    mask = None if names.candidates is None else mask_in(names.candidates, first[names.candidates])
    width = None if mask is None else mask.shape[1]
    return Reading(encoding, _names(parts, names, classes) if is_text else None, classes, width)


def _is_numbers(part: str, name: str, values: Any) -> bool:
    try:
        return numeric(part, name, values).dtype.kind not in "mM"  # times have units, which the encoding sees to
    except (ColumnError, ValueError, TypeError):
        return False


def is_text_in(name: str, values: Any) -> bool:
    """Whether actions are text."""
    if _is_numbers("action", name, values):
        return False
    found = series(name, values).dtype
    if found not in TEXT:
        raise ColumnError(f"action {name!r} must be whole numbers or text; found {found}.")
    return True


def _check_kinds(name: str, is_text: bool, classes: NDArray[Any] | None) -> None:
    if classes is not None and is_text != (classes.dtype.kind not in "iu"):
        kinds = ("text", "whole numbers") if is_text else ("whole numbers", "text")
        raise OptionError(
            f"the actions in {name!r} are {kinds[0]}, and those of the policy or the items are {kinds[1]}.",
            do="Give both the same type.",
        )


def _names(parts: Parts, names: Names, classes: NDArray[Any] | None) -> NDArray[Any]:
    """The names of all actions in a log, logged or only candidates, in ascending order; all must be among `classes`, if those are known."""
    found: dict[str, set[str]] = {"action": set(), "candidates": set()}
    for part in parts():
        found["action"].update(series(names.action, part[names.action]).cast(pl.String).drop_nulls().unique())
        if names.candidates is not None and mask_in(names.candidates, part[names.candidates]) is None:
            lists = lists_of(names.candidates, part[names.candidates])
            found["candidates"].update(flat_of(lists).cast(pl.String).drop_nulls().unique())
        if sum(map(len, found.values())) > MOST:
            raise LogError(
                f"{names.action!r} has more than {MOST:,} distinct actions. Is it the column of the logged action?"
            )
    if classes is None:
        return np.array(sorted(found["action"] | found["candidates"]), dtype=object)
    for what, some in found.items():
        _check_known(what, sorted(some - set(classes)), len(classes))
    return classes


def _check_known(what: str, lost: Sequence[str], known: int) -> None:
    if lost:
        raise LogError(
            f"{len(lost):,} {'of the logged actions are' if what == 'action' else 'of the candidates are'} not among the {known:,} that "
            f"the policy or the items have; one is {lost[0]!r}.",
            do=["Add them to ", Argument("items"), " or the policy, or leave out those rows."],
        )
