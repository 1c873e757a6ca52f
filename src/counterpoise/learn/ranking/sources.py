"""Logs of lists as training reads them: one row per list in memory, and some whole lists kept apart to judge what was learned."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from counterpoise.engines.first_look import lists_of
from counterpoise.engines.lists import collapse
from counterpoise.errors import Argument, Blank, ColumnError, LogError, OptionError
from counterpoise.learn.ranking.probabilities import ABSENT
from counterpoise.learn.rows import Rows, Split
from counterpoise.learn.source import UNREAD, Good, Source
from counterpoise.log.lists import DISCOUNT, LIST, POSITION, Lists, check_same_context, rows_by_list
from counterpoise.log.log import Log
from counterpoise.log.question import Learning, Question
from counterpoise.log.rules import Problem, all_bad, find_problems, is_good, refuse
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
        digest = hashlib.sha256()
        for name in TENSORS:
            digest.update(getattr(self, name).contiguous().numpy().data)
        return digest.digest()


class ListSource(Source):
    """The lists of a log, all in memory. Those that `judges` holds out are not among them: `judged` has their rows."""

    lists: Lists

    def __init__(self, log: Log, weight: ListWeight, judges: Split) -> None:
        log.need("slate", "position")
        if isinstance(weight, PseudoInverse):
            raise OptionError(
                "a policy cannot be learned with the pseudo-inverse weight, which needs a logging policy that fills slots independently.",
                do=["Pass another ", Argument("weight"), "."],
            )
        self.weight, self.judges = weight, judges
        self.judged = pl.DataFrame()
        super().__init__(log, fills_gaps=False, in_memory=True)
        if self.reading.encoding is not None or self.reading.names is not None or log.candidates is not None:
            raise ColumnError(
                "a ranking policy learns from contexts and items that are numbers, and some columns have others.",
                do="Number the items from 0, and name expressions that make numbers of the context.",
            )

    def _asked(self) -> Question:
        """The question of learning about lists, which are judged as a whole."""
        self.lists = lists_of(self.log)
        groups = 1 if self.log.cluster is None else 2  # which makes the rules look at clusters
        log = self.log.but(**UNREAD).but(model_reward=None)
        return Question(log, (), self.weight, groups=groups, lists=self.lists, learning=Learning())

    def look(self, start: int) -> tuple[Rows, list[Problem]]:
        """All lists to train on; bad ones are left out and counted if bad rows are to be dropped, and else refused."""
        frame = self._part(start)
        rows, judged = self._tensors(frame, self._digits)
        lists = nw.from_native(collapse(nw.from_native(judged.lazy()), self.question).to_native().sort(LIST).collect())
        held = lists.select(LIST, good=is_good(self.question).fill_null(False)).to_native()
        self.total, self.dropped = held.height, int((~held.get_column("good")).sum())
        problems = find_problems(lists, self.question, None) if self.dropped else []
        if self.dropped and not self.log.drop_bad_rows:
            refuse(problems, self.total)
        if self.dropped == self.total:
            raise all_bad(problems, self.total)
        of_rows = judged.select(LIST).join(held, on=LIST, how="left", nulls_equal=True, maintain_order="left")
        good = of_rows.get_column("good").to_numpy()
        self._check_single(rows, frame, good)
        index = self._rows_of_lists(judged, good)
        check_same_context(rows.context.numpy(), index)
        apart = self._judging(frame, index)
        self.judged = frame[_rows(index[apart])]
        self._remember(frame[_rows(index[~apart])])
        trained = self._lists(rows, judged, index[~apart])
        self.memory, self.rows, self._before = trained, len(trained), {0: 0}
        return trained, []

    def _rows_of_lists(self, judged: pl.DataFrame, good: Good) -> Integers:
        """Which rows each good list has, lists × slots, in the order of the lists' ids."""
        kept = np.flatnonzero(good)
        ids, position = judged.get_column(LIST).to_numpy()[kept], judged.get_column(POSITION).to_numpy()[kept]
        number = np.unique(ids, return_inverse=True)[1].astype(np.int64)
        placed = rows_by_list(number, (position - self.lists.first).astype(np.int64))
        return np.where(placed >= 0, kept[placed], ABSENT)

    def _judging(self, frame: pl.DataFrame, index: Integers) -> Good:
        """Which lists are kept apart: by the hash of their cluster, or of their number."""
        if self.log.cluster is None:
            return self.judges.held_out(0, len(index))
        cluster = frame.get_column(self.log.cluster)
        distinct = cluster.drop_nulls().unique().sort().to_numpy()
        number = np.searchsorted(distinct, cluster.to_numpy()[index[:, 0]])
        return self.judges.held_out(0, len(distinct))[number]

    def _lists(self, rows: Rows, judged: pl.DataFrame, index: Integers) -> ListRows:
        there = index >= 0
        reward, propensity = (
            torch.as_tensor(np.where(there, part.numpy()[index], other).astype(np.float32))
            for part, other in ((rows.reward, 0.0), (rows.propensity, 1.0))
        )
        lists = replace(self.lists, last=self.lists.first + index.shape[1] - 1)
        counts = np.array([lists.counts(k) for k in range(1, lists.depth + 1)])
        if lists.discount_column is not None:
            counts = judged.get_column(DISCOUNT).to_numpy()[index]
        return ListRows(
            rows.context[index[:, 0]],
            torch.as_tensor(np.where(there, rows.action.numpy()[index], ABSENT)),
            reward * torch.as_tensor(np.where(there, counts, 0.0).astype(np.float32)),
            propensity,
            shares=np.array(list(lists.shares.values())),
            weight=self.weight,
        )


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
