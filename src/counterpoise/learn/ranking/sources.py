"""Logs of lists as training reads them: one row per list in memory, and some whole lists kept apart to judge what was learned."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from counterpoise.errors import Argument, Blank, LogError, OptionError
from counterpoise.learn.ranking.probabilities import ABSENT
from counterpoise.learn.rows import Good, Names, Problem, Rows, Split, numeric, plain, read_rows, refusal
from counterpoise.learn.source import Source, columns_of, needed
from counterpoise.log.lists import DCG, DEEPEST, Lists, check_same_context, rows_by_list
from counterpoise.log.log import Log
from counterpoise.weights.lists import ListWeight, PseudoInverse

Integers = NDArray[np.int64]
TENSORS = ("context", "action", "reward", "propensity")


@dataclass(frozen=True)
class ListRows(Rows):
    """Some lists as tensors: a context each, and items, rewards and propensities lists × slots; below the end of a list, −1, 0 and 1.

    Rewards are as they count, discounted; `shares` is how much each slot counts in a list's mean weight.
    """

    shares: Any = None
    weight: Any = None

    def take(self, index: Any) -> ListRows:
        """Some of these lists."""
        return replace(self, **{name: getattr(self, name)[index] for name in TENSORS})

    def to(self, device: torch.device) -> ListRows:
        """The same lists on a device."""
        return replace(self, **{name: getattr(self, name).to(device) for name in TENSORS})

    def digest(self) -> bytes:
        """A digest of every number in them."""
        found = hashlib.sha256()
        for name in TENSORS:
            found.update(getattr(self, name).contiguous().numpy().data)
        return found.digest()


class ListSource(Source):
    """The lists of a log, all in memory. Those that `judges` holds out are not among them: `judged` has their rows."""

    def __init__(self, log: Log, weight: ListWeight, judges: Split) -> None:
        log.need("slate", "position")
        if isinstance(weight, PseudoInverse):
            raise OptionError(
                "a policy cannot be learned with the pseudo-inverse weight, which needs a logging policy that fills slots independently.",
                do=["Pass another ", Argument("weight"), "."],
            )
        super().__init__(log)
        self.weight, self.judges = weight, judges
        self.judged: Mapping[str, NDArray[Any]] = {}
        own = [("slate", log.slate), ("position", log.position)]
        own += [("discount", log.discount)] if log.discount not in (None, DCG) else []
        more = tuple((part, str(name)) for part, name in own)
        self.names: Names = replace(self.names, judged=(*self.names.judged, *more))

    @property
    def starts(self) -> list[int]:
        """Lists are one chunk."""
        return [0]

    def look(self, start: int) -> tuple[Rows, list[Problem]]:
        """All lists to train on, and what is wrong with rows."""
        columns = self._whole_columns()
        rows, good, problems = read_rows(columns, self.names)
        if problems and not self.log.drop_bad_rows:
            raise refusal(problems, len(rows))
        index, first = self._whole_lists(columns, good)
        check_same_context(rows.context.numpy(), index)
        held = self._judging(columns, index)
        self.judged = {name: np.asarray(column)[_rows(index[held])] for name, column in columns.items()}
        self._remember(columns, _rows(index[~held]))
        lists = self._lists(rows, columns, index[~held], first)
        self.memory, self.rows, self._before = lists, len(lists), {0: 0}
        self.dropped = len(rows) - int((index >= 0).sum())
        return lists, []

    def _whole_columns(self) -> Mapping[str, Any]:
        data = self.log.data
        if self.files is not None:
            data = self.files.read(needed(self.names, self.log.where, self.files.columns), 0, self.files.rows)
        found, _ = columns_of(data, self.names, self.log.where)
        return {name: found[name] for name in self.names.all}

    def _whole_lists(self, columns: Mapping[str, Any], good: Good) -> tuple[Integers, int]:
        """The rows of every list that has all its positions once and no bad row, and where positions begin."""
        position = numeric("position", str(self.log.position), columns[str(self.log.position)]).astype(np.float64)
        number = numbered(columns[str(self.log.slate)])
        first = float(np.nanmin(position[good])) if good.any() else 1.0
        rank = position - first
        usable = good & (rank % 1 == 0) & (rank >= 0) & (rank < DEEPEST)
        if good.any() and first not in (0.0, 1.0):
            raise LogError(f"position {self.log.position!r} must count from 0 or 1; the smallest is {first:g}.")
        kept = np.flatnonzero(usable)
        placed = rows_by_list(number[kept], rank[kept].astype(np.int64))
        index = np.where(placed >= 0, kept[placed], ABSENT)
        size = np.bincount(number)
        index = np.pad(index, ((0, len(size) - len(index)), (0, 0)), constant_values=ABSENT)
        # no position is there twice, and none is missing
        is_whole = (index >= 0).sum(axis=1) == size
        is_whole &= ((index >= 0) == (np.arange(index.shape[1]) < size[:, None])).all(axis=1)
        odd = np.flatnonzero(~is_whole)
        if len(odd) and not self.log.drop_bad_rows:
            one = plain(columns[str(self.log.slate)])[np.flatnonzero(number == odd[0])[:1]].tolist()[0]
            raise LogError(
                f"position {self.log.position!r} must run {first:g}, {first + 1:g}, … down every list (to {DEEPEST} positions at most), "
                f"with none missing or twice: {len(odd):,} of {len(size):,} lists do not; one is {one!r}.",
                do=["Fix the logger, or drop those lists with ", Argument("drop_bad_rows", True), "."],
            )
        whole = index[is_whole]
        return whole[:, : int((whole >= 0).sum(axis=1).max(initial=1))], int(first)

    def _judging(self, columns: Mapping[str, Any], index: Integers) -> Good:
        """Which lists are kept apart: by the hash of their cluster, or of their number."""
        if not len(index):
            raise LogError("no list is good, so there is nothing to learn from.")
        if self.log.cluster is None:
            return self.judges.held_out(0, len(index))
        cluster = numbered(columns[self.log.cluster])
        return self.judges.held_out(0, int(cluster.max()) + 1)[cluster[index[:, 0]]]

    def _lists(self, rows: Rows, columns: Mapping[str, Any], index: Integers, first: int) -> ListRows:
        there = index >= 0
        reward, propensity = (
            torch.as_tensor(np.where(there, part.numpy()[index], other).astype(np.float32))
            for part, other in ((rows.reward, 0.0), (rows.propensity, 1.0))
        )
        lists = Lists("", "", "", self.log.discount, first, first + index.shape[1] - 1)
        counts = torch.as_tensor(self._counts(columns, index, lists).astype(np.float32))
        return ListRows(
            rows.context[index[:, 0]],
            torch.as_tensor(np.where(there, rows.action.numpy()[index], ABSENT)),
            reward * counts,
            propensity,
            shares=np.array(list(lists.shares.values())),
            weight=self.weight,
        )

    def _counts(self, columns: Mapping[str, Any], index: Integers, lists: Lists) -> NDArray[np.float64]:
        """What the reward of every row counts."""
        if lists.discount_column is None:
            return np.where(index >= 0, [lists.counts(k) for k in range(1, lists.depth + 1)], 0.0)
        column = numeric("discount", lists.discount_column, columns[lists.discount_column]).astype(np.float64)
        return np.where(index >= 0, column[index], 0.0)


def judged_log(source: ListSource) -> Log:
    """The lists that judge, as a log of their own: computed columns are there under the text of their expressions."""
    log = source.log
    return Log(
        source.judged,
        reward=log.reward,
        propensity=log.propensity,
        action=log.action,
        context=log.context,
        cluster=log.cluster,
        slate=log.slate,
        position=log.position,
        propensity_of=log.propensity_of,
        discount=log.discount,
        groups=log.groups,
        reward_bounds=log.reward_bounds,
    )


def numbered(column: Any) -> Integers:
    """A number from 0 on for every distinct id."""
    ids = plain(column)
    found = np.unique(ids.astype(str) if ids.dtype.kind == "O" else ids, return_inverse=True)[1]
    return np.asarray(found, dtype=np.int64)


def refuse_depth(depth: int, items: int) -> None:
    """Refuse lists that are longer than there are items."""
    if depth > items:
        raise LogError(
            f"lists have up to {depth} positions, and there are only {items:,} items, so some are shown twice in a list, which a "
            "ranking policy never does.",
            do=["Look at the top of the lists, such as ", Argument("where", Blank("'position <= 3'")), "."],
        )


def _rows(index: Integers) -> Integers:
    """The rows of lists, in their order."""
    return index[index >= 0]
