"""What a policy chooses among: actions by their ids and places, the candidates of each row, and what is known about items.

Inside, candidates are the places of actions, one row of them for each row of the log, padded with −1. For users, they are a list of ids
per row, or a boolean table with a column per action.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from counterpoise.errors import ColumnError, LogError, OptionError, verbatim
from counterpoise.features import Encoder
from counterpoise.features.encoder import TEXT, codes_of
from counterpoise.log.parts import FrameLike
from counterpoise.models.design import read_items
from counterpoise.readers.frames import from_table

# -- Actions: the ids they have in a log, and their places in a policy -------------------------------------------------

ActionIds = NDArray[np.int64]
ActionNames = NDArray[np.object_]
Classes = ActionIds | ActionNames  # the actions of a policy, in ascending order
ClassPlaces = NDArray[np.int64]  # of actions among the classes of a policy
NONE = -1  # the place of anything absent
MOST = 10_000_000  # distinct ids in a log; more are hardly actions, and each costs a logit per row


def as_ids(column: NDArray[np.generic]) -> ActionIds:
    """Whole numbers as they are, and −1 for anything that cannot be an id, so that no id is rounded into another."""
    if column.dtype.kind == "O" and all(type(value) is int and abs(value) < 2**63 for value in column):
        return column.astype(np.int64)
    if column.dtype.kind == "u":
        wide = column.astype(np.uint64)
        return np.where(wide < 2**63, wide, 0).astype(np.int64) - (wide >= 2**63)
    if column.dtype.kind in "bi":
        return column.astype(np.int64)
    numbers = column.astype(np.float64)
    # from 2^53 on a float stands for several whole numbers
    known = np.isfinite(numbers) & (np.floor(numbers) == numbers) & (np.abs(numbers) < 2**53)
    return np.where(known, numbers, -1).astype(np.int64)


class DistinctIds:
    """The distinct ids of a log, collected part by part; memory grows with the ids, not with the rows.

    >>> distinct = DistinctIds("item")
    >>> for part in ([5, 5, 1000], [7, 5]):
    ...     distinct.add(np.array(part))
    >>> distinct.ids.tolist(), distinct.have_gaps
    ([5, 7, 1000], True)
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.ids: ActionIds = np.empty(0, dtype=np.int64)

    def add(self, action: ActionIds) -> None:
        """Add some rows; anything that is not an id is reported elsewhere."""
        some = np.unique(action)
        fresh = some[(places(self.ids, some) < 0) & (some >= 0)]
        if len(fresh):
            self.ids = np.sort(np.concatenate([self.ids, fresh]))
        if len(self.ids) > MOST:
            raise LogError(
                f"{self.name!r} has more than {MOST:,} distinct actions. Is it the column of the logged action?",
                do="For a catalog as large as that, pass `n_actions=` or a policy.",
            )

    @property
    def have_gaps(self) -> bool:
        """Whether they are anything but 0, 1, 2, …"""
        return len(self.ids) > 0 and int(self.ids[-1]) != len(self.ids) - 1


def places(classes: Classes, actions: pl.Series | Sequence[object] | NDArray[np.generic]) -> ClassPlaces:
    """Where actions, an array or a series of ids or names, stand among classes in ascending order; −1 for those that are not there.

    >>> places(np.array([3, 5, 8]), np.array([8, 4, 3])).tolist(), places(np.array(["a", "b"]), ["b", None, "c"]).tolist()
    ([2, -1, 0], [1, -1, -1])
    """
    if classes.dtype.kind in "iu":
        ids = actions.fill_null(NONE).to_numpy() if isinstance(actions, pl.Series) else np.asarray(actions)
        if not len(classes):
            return np.full(ids.shape, NONE)
        place = np.minimum(np.searchsorted(classes, ids), len(classes) - 1)
        return np.where(classes[place] == ids, place, NONE)
    names = actions if isinstance(actions, pl.Series) else pl.Series(list(actions), strict=False)
    return codes_of(names.cast(pl.String), list(classes))


def places_of_rows(classes: Classes, action: ArrayLike, rows: int) -> ClassPlaces:
    """The places of one action per row, as the user passes them."""
    actions = np.asarray(action)
    if actions.shape != (rows,):
        raise OptionError(f"there must be one `action=` per context ({rows:,}); found shape {actions.shape}.")
    is_numbers = classes.dtype.kind in "iu"
    if rows and is_numbers != (actions.dtype.kind in "biuf"):
        raise OptionError(
            f"the policy's actions are such as {classes[0]}, those given such as {actions[0]}: give both the same type."
        )
    return places(classes, as_ids(actions) if is_numbers else actions)


def ids_in(classes: Classes | None) -> ActionIds | None:
    """Actions that are whole numbers; None if there are none, or if they have names."""
    return None if classes is None or classes.dtype == object else classes.astype(np.int64, copy=False)


def placed(ids: ActionIds | None, action: Tensor) -> Tensor:
    """The places of a tensor of ids; without ids, an action is its own place."""
    if ids is None:
        return action
    flat = action.detach().cpu().numpy().reshape(-1)
    return torch.as_tensor(places(ids, flat)).reshape(action.shape).to(action.device)


def checked_ids(actions: ArrayLike, n_actions: int) -> Classes:
    """Ids or names, checked to suit a policy: one for each of its actions, in order."""
    ids = np.asarray(actions)
    if ids.dtype.kind in "UOT" and ids.shape == (n_actions,) and all(isinstance(name, str) for name in ids):
        names = ids.astype(object)
        if (names[:-1] < names[1:]).all():
            return names
        raise OptionError(f"actions_ must be {n_actions:,} different names in ascending order.")
    if (
        ids.shape != (n_actions,)
        or ids.dtype.kind not in "iu"
        or (ids[:-1] >= ids[1:]).any()
        or not 0 <= ids[0] < 2**63
    ):
        raise OptionError(
            f"actions_ must be {n_actions:,} different whole numbers from 0 on, or names, in ascending order; found {ids.dtype} of shape "
            f"{ids.shape}."
        )
    return ids.astype(np.int64)


# -- Candidates: which actions a policy may choose from in each row, and the softmax over those alone ------------------


Mask = NDArray[np.bool_]
# as users give them: a list of actions for every row, or truth values; None for all actions
Candidates = Tensor | ArrayLike | Sequence[object] | None
FEW = 4  # with this many times more actions than candidates, only the candidates' logits are computed
APART = "|"  # what separates candidates in the text of a CSV file


def among(logits: Tensor, candidates: Tensor | None) -> Tensor:
    """Logits with −∞ for every action that is not a candidate, so that a softmax has probability 0 there.

    Candidates are a boolean table, or rows of places padded with −1; without any, logits stay as they are.

    >>> among(torch.zeros(2, 3), torch.tensor([[0, 2], [1, -1]])).tolist()
    [[0.0, -inf, 0.0], [-inf, 0.0, -inf]]
    >>> torch.softmax(among(torch.zeros(1, 3), torch.tensor([[True, False, True]])), -1).tolist()
    [[0.5, 0.0, 0.5]]
    """
    if candidates is None:
        return logits
    mask = candidates if candidates.dtype == torch.bool else mask_of_places(candidates, logits.shape[-1])
    return logits.masked_fill(~mask, -torch.inf)


def are_few(candidates: Tensor | None, n_actions: int) -> bool:
    """Whether a row has so few candidates that the other actions are better left out altogether."""
    return candidates is not None and FEW * candidates.shape[1] <= n_actions


def logits_at(layer: nn.Linear, features: Tensor, candidates: Tensor) -> Tensor:
    """The logits of each row's candidates alone, without those of all other actions; −∞ where a row is padded.

    >>> layer = nn.Linear(2, 1000)
    >>> h, candidates = torch.randn(3, 2), torch.tensor([[5, 999], [7, -1], [0, 1]])
    >>> torch.allclose(logits_at(layer, h, candidates)[0], layer(h)[0, [5, 999]], atol=1e-6)
    True
    """
    place = candidates.clamp(min=0)
    logits = (layer.weight[place] @ features[:, :, None])[..., 0]
    if layer.bias is not None:
        logits = logits + layer.bias[place]
    return among(logits, candidates >= 0)


def mask_of_places(candidates: Tensor, n_actions: int) -> Tensor:
    """Candidates by their places as a boolean table with a column per action."""
    # one more column, which absorbs the padding
    wide = torch.zeros(len(candidates), n_actions + 1, dtype=torch.bool, device=candidates.device)
    return wide.scatter_(1, torch.where(candidates < 0, n_actions, candidates), True)[:, :n_actions]


def mask_of(candidates: Candidates, classes: Classes, rows: int) -> Tensor:
    """The candidates of some rows, or their mask, as a boolean table with a column per action.

    They may be such a table already (or one row of it, for all), or a list of actions for every row. Actions that the policy does not know
    are left out: it never takes them. A row without any that it knows is an error.

    >>> mask_of([["b", "new"], ["a", "b"]], np.array(["a", "b", "c"]), 2).tolist()
    [[False, True, False], [True, True, False]]
    """
    given = candidates.detach().cpu().numpy() if isinstance(candidates, Tensor) else candidates
    if isinstance(given, list | tuple) and len(given):
        first = given[0]
        if isinstance(first[0] if isinstance(first, list | tuple) and first else first, bool):
            table = np.array(given)
            given = table if table.dtype == bool else given
    kind = given.dtype.kind if isinstance(given, np.ndarray) else ""
    if isinstance(given, np.ndarray) and kind in "iu" and given.shape == (rows, len(classes)):
        # as many as there are actions, only 0 and 1, and some repeated within a row
        repeated = len(classes) > 2 or bool((given[:, 0] == given[:, -1]).any())
        if repeated and bool(((given == 0) | (given == 1)).all()):
            raise OptionError(
                "`mask=` holds zeros and ones, a column per action, which could be ids of actions.",
                do="Pass truth values: mask.astype(bool).",
            )
    if isinstance(candidates, np.ndarray) and kind == "f":
        raise _misshapen(candidates.shape, f"{candidates.dtype} of shape ", rows, len(classes))
    if kind == "b":
        mask = torch.as_tensor(np.array(given))
    else:
        lists = lists_of("candidates", candidates)
        mask = mask_of_places(torch.as_tensor(padded(lists, places_of(lists, classes))), len(classes))
    if mask.ndim == 1:
        mask = mask.expand(rows, -1)
    if mask.shape != (rows, len(classes)):
        raise _misshapen(mask.shape, "", rows, len(classes))
    without = torch.nonzero(~mask.any(-1)).flatten()
    if len(without):
        raise LogError(
            f"a row needs at least one candidate that the policy knows: {len(without):,} of {rows:,} rows have none; the first is row "
            f"{int(without[0]):,}.",
            do="classes_ has the actions that it knows; drop those rows, or train it on a log that has their candidates.",
        )
    return mask


def _misshapen(shape: Sequence[int], kind: str, rows: int, n_actions: int) -> OptionError:
    return OptionError(
        f"`candidates=`, or `mask=`, must be truth values, a row for each of the {rows:,} contexts and a column for "
        f"each of the {n_actions:,} actions, or a list of actions per row; found {kind}{' × '.join(f'{size:,}' for size in shape)}."
    )


def lists_of(name: str, values: object) -> pl.Series:
    """A column of candidates as a series of lists; text is a JSON list, or separates candidates with |, because CSV has no lists.

    >>> lists_of("pool", ["a|b", '["c"]', None]).to_list()
    [['a', 'b'], ['c'], None]
    """
    if not hasattr(values, "__len__"):
        raise OptionError(f"candidates must be a list of actions per row; found {type(values).__name__}.")
    lists = from_table(name, values)
    if isinstance(lists.dtype, pl.Array):
        lists = lists.arr.to_list()
    if lists.dtype == pl.String:

        def parsed(text: str | None) -> list[str | None] | None:
            if text is None or not text.startswith("["):
                return None if text is None else [action.strip() for action in text.split(APART)]
            try:
                actions = json.loads(text)
            except ValueError as error:
                raise ColumnError(
                    f"candidates {name!r} has {text[:50]!r}, which is not a JSON list: {verbatim(error)}."
                ) from error
            return [None if action is None else str(action) for action in actions]

        lists = pl.Series(name, [parsed(text) for text in lists], dtype=pl.List(pl.String))
    if lists.dtype == pl.Null:
        lists = lists.cast(pl.List(pl.String))
    if not isinstance(lists.dtype, pl.List) or lists.dtype.inner.is_nested():
        raise ColumnError(
            f"candidates {name!r} must be a list of actions in every row, and the column has {lists.dtype}.",
            do=f"Make lists of them, or text such as 'a{APART}b' or '[\"a\", \"b\"]'.",
        )
    return lists.list.drop_nulls().list.unique(maintain_order=True)


def places_of(lists: pl.Series, classes: Classes) -> ClassPlaces:
    """The places of all candidates among the actions, row after row; −1 for unknown ones."""
    flat = flat_of(lists)
    return places(classes, whole_numbers(flat) if classes.dtype.kind in "iu" else flat)


def flat_of(lists: pl.Series) -> pl.Series:
    """All candidates, row after row."""
    return lists.filter(lists.list.len() > 0).explode()


def whole_numbers(flat: pl.Series) -> pl.Series:
    """Candidates as whole numbers, as the actions are; null for what is not one."""
    if flat.dtype == pl.String or flat.dtype.is_numeric():
        return flat.cast(pl.Int64, strict=False)
    raise ColumnError(f"candidates {flat.name!r} must be whole numbers, as the actions are, and are {flat.dtype}.")


def padded(lists: pl.Series, flat: ClassPlaces) -> ClassPlaces:
    """A row of numbers for every list, from the numbers of all of them in order; padded with −1."""
    return _in_rows(lists.list.len().fill_null(0).to_numpy().astype(np.int64), flat)


def ids_of_mask(mask: Mask, ids: Sequence[int] | ClassPlaces) -> ClassPlaces:
    """A boolean table as rows of ids, padded with −1.

    >>> ids_of_mask(np.array([[True, False, True], [False, True, False]]), [5, 7, 9]).tolist()
    [[5, 9], [7, -1]]
    """
    return _in_rows(mask.sum(1), np.asarray(ids)[np.nonzero(mask)[1]])


def _in_rows(lengths: ClassPlaces, flat: ClassPlaces) -> ClassPlaces:
    width = max(1, int(lengths.max(initial=0)))
    table = np.full((len(lengths), width), NONE, dtype=np.int64)
    table[np.arange(width) < lengths[:, None]] = flat
    return table


def one_below_the_other(first: Tensor, second: Tensor) -> Tensor:
    """Rows of candidates, followed by others, both padded to the same width."""
    width = max(first.shape[1], second.shape[1])
    return torch.cat([nn.functional.pad(rows, (0, width - rows.shape[1]), value=NONE) for rows in (first, second)])


# -- What is known of the items: a frame with one row for each, as the features of a policy's actions ------------------


@dataclass(frozen=True)
class Items:
    """The actions in ascending order, and the features of each in the same order."""

    classes: Classes
    features: Tensor


def item_features(items: FrameLike, *, action: str = "action") -> Items:
    """The items of a frame as a policy takes them: `classes` in ascending order, and `features` with a row for each.

    Their ids are in the column with the name of the log's action, or else in the first column. Numbers are standardized, text
    becomes a column per level, and lists of numbers (embeddings) stay as they are. Missing or repeated ids are refused.

    Examples
    --------
    >>> import polars as pl
    >>> items = item_features(pl.DataFrame({"item": ["tea", "jam"], "price": [1.0, 3.0], "kind": ["drink", "food"]}), action="item")
    >>> items.classes.tolist(), items.features.tolist()
    (['jam', 'tea'], [[1.0, 0.0, 1.0], [-1.0, 1.0, 0.0]])
    """
    ids, described = read_items(items, action)
    is_number, below = ids.dtype.is_integer(), ids.filter(ids < 0) if ids.dtype.is_integer() else ids.clear()
    if len(below) or not (is_number or ids.dtype in TEXT):
        wrong = f"the id {below[0]}" if len(below) else f"ids of type {ids.dtype}"
        raise OptionError(f"`items=` has {wrong} in {ids.name!r}, and ids are text, or whole numbers from 0 on.")
    classes: Classes = ids.cast(pl.Int64 if is_number else pl.String).to_numpy()
    order = np.argsort(classes)
    table = Encoder.of(described, described.columns).plain(described)[order]
    return Items(classes[order], torch.as_tensor(table, dtype=torch.float32))
