"""The names of columns inside a query, which are made here and taken apart nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from counterpoise.log.lists import excess_at, reward_at
from counterpoise.moments.log_moments import Contrast
from counterpoise.moments.moments import CONTEXT, EXCESS, LENGTH, REWARD, SQUARE

if TYPE_CHECKING:
    from counterpoise.log.question import Question

PROPENSITY, MODEL_REWARD, MODEL_ERROR, GROUP, KEY, ROWS, ROW = "p", "q", "e", "g", "key", "n", "row"

# what a policy learns from: the logged action, its id (−1 where it has none), how many candidates there were and whether it was among
# them, and the sum of a reward model's predictions
ACTION, ID, CANDIDATES, IS_CANDIDATE, MODELED = "action", "id", "candidates", "is candidate", "modeled"


def context_at(place: int) -> str:
    """The name of a column of the context, as it is logged."""
    return f"context {place}"


def is_known_at(place: int) -> str:
    """The name of the column that says where this context is finite numbers."""
    return f"{context_at(place)} is known"


@dataclass(frozen=True)
class Lane:
    """One set of sums: a contrast of one reward, and the columns of the query that are added up for it.

    `columns` maps the moments' columns to the query's; `target` and `other` hold the two policies' probabilities (None means the policy
    that wrote the log). Some of the columns are products with the excess: `factors` maps them to the other factor. If rewards have bad
    rows of their own, `excess` is blank on those, and `shared` is what it is made from.
    Where a question has a ladder of weights, every contrast has a lane for each `rung` of it.
    """

    contrast: Contrast
    reward: int
    target: str
    other: str | None
    excess: str
    shared: str
    zeros: str
    columns: dict[str, str] = field(compare=False)
    weight: Any = field(compare=False)
    rung: int = 0
    factors: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def without_context(self) -> Lane:
        """The same lane without the columns of a context baseline, or of single positions."""
        wide = (CONTEXT, EXCESS, REWARD)
        kept = {name: one for name, one in self.columns.items() if name != SQUARE and not name.startswith(wide)}
        return replace(self, columns=kept, factors={name: one for name, one in self.factors.items() if name in kept})

    @property
    def products(self) -> dict[str, tuple[str, str]]:
        """The columns that are products with the excess: name → its two factors."""
        return {self.columns[name]: (factor, self.excess) for name, factor in self.factors.items()}

    @property
    def peak(self) -> str:
        """The largest excess, which is all that is kept of the tail of a rung above the first."""
        return f"{self.excess}_max"


@dataclass(frozen=True)
class Names:
    """Every internal name that a question needs.

    With `apart`, each reward has its own rows: those on which it is good.
    """

    question: Question
    apart: bool = False

    @cached_property
    def rewards(self) -> tuple[str, ...]:
        """The rewards."""
        return tuple(f"r{j}" for j in range(len(self.question.log.reward)))

    @cached_property
    def shifted(self) -> tuple[str, ...]:
        """The rewards minus their centers."""
        return tuple(f"s{j}" for j in range(len(self.rewards)))

    @cached_property
    def centers(self) -> tuple[str, ...]:
        """A center for each row's segment, if one for all will not do."""
        return tuple(f"c{j}" for j in range(len(self.rewards)))

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """The targets' probabilities of the logged action, or the user's own weights."""
        return tuple(f"t{k}" for k in range(len(self.question.targets)))

    @cached_property
    def values(self) -> tuple[str, ...]:
        """The model's value of each target."""
        return tuple(f"v{k}" for k in range(len(self.question.targets))) if self.question.model_value else ()

    @cached_property
    def controls(self) -> tuple[str, ...]:
        """Further control variates."""
        return tuple(f"x{k}" for k in range(len(self.question.control)))

    @cached_property
    def features(self) -> tuple[str, ...]:
        """The features of a context baseline."""
        return tuple(f"f{k}" for k in range(len(self.question.features)))

    @cached_property
    def centered_features(self) -> tuple[str, ...]:
        """The features minus their centers."""
        return tuple(f"h{k}" for k in range(len(self.features)))

    @cached_property
    def centered_values(self) -> tuple[str, ...]:
        """The model's values minus the center."""
        return tuple(f"w{k}" for k in range(len(self.values)))

    @cached_property
    def value_differences(self) -> dict[str, tuple[str, str]]:
        """The model's differences minus the center, and which two values each is of; that of the logging policy is the logged action's."""
        if not self.values:
            return {}
        values = dict(zip(self.question.target_names, self.values, strict=True))
        contrasts = enumerate(self.question.contrasts)
        return {f"d{k}": (values[one], values.get(other, MODEL_REWARD)) for k, (one, other) in contrasts if other}

    @cached_property
    def centered_controls(self) -> tuple[str, ...]:
        """The control variates minus their known means."""
        return tuple(f"y{k}" for k in range(len(self.controls)))

    @cached_property
    def segments(self) -> tuple[str, ...]:
        """The columns that segments are made of."""
        return tuple(f"k{j}" for j in range(len(self.question.segment)))

    @cached_property
    def keys(self) -> list[str]:
        """What rows are grouped by: segments, and hashed groups of clusters."""
        return [*self.segments, *([GROUP] if self.question.groups > 1 else [])]

    @cached_property
    def lanes(self) -> tuple[Lane, ...]:
        """All the sums we want: rewards × contrasts × rungs."""
        rungs, contrasts = range(len(self.question.rungs)), range(len(self.question.contrasts))
        return tuple(self._lane(j, k, i) for j in range(len(self.rewards)) for k in contrasts for i in rungs)

    def lanes_of(self, reward: int, rung: int = 0) -> tuple[Lane, ...]:
        """The lanes of one reward, with one of the weights where there is a ladder of them."""
        return tuple(lane for lane in self.lanes if (lane.reward, lane.rung) == (reward, rung))

    def product(self, a: str, b: str) -> str:
        """The name of the product of two columns; u·s and u·e are columns themselves."""
        return self._products.get((a, b)) or self._products.get((b, a)) or "_".join(sorted((a, b)))

    @staticmethod
    def power(column: str, order: int) -> str:
        """The name of a power of a column."""
        return f"{column}_to_{order}"

    @staticmethod
    def weighted(lane: Lane) -> str:
        """The name of the weighted rewards of a lane."""
        return f"{lane.columns['us']}_weighted"

    @staticmethod
    def smoothed(lane: Lane, place: int) -> str:
        """The name of the smoothed rewards of a lane, for one of the question's smoothings."""
        return f"{lane.columns['us']}_smooth{place}"

    @cached_property
    def _products(self) -> dict[tuple[str, str], str]:
        found = {}
        for lane in self.lanes:
            for factor, product in (("s", "us"), ("e", "ue")):
                if product in lane.factors:
                    found[lane.columns[factor], lane.excess] = lane.columns[product]
        return found

    @property
    def is_wide(self) -> bool:
        """Whether lanes have so many columns that their products are not a matter for the one query."""
        return bool(self.features or self.question.ranks)

    def _list_columns(self, target: str, against: str, other: str | None, shared: str, j: int) -> dict[str, str]:
        """What a lane of lists has beside u, s and us: the model's columns, and those of every position."""
        place, ranks = self.question.target_names.index(target), self.question.ranks
        own = self.targets[place]
        if against:
            return {excess_at(k): f"u{shared}at{k}" if other else excess_of(own, k) for k in ranks}
        model = {"e": f"{own}_e", "ue": f"{own}_ue", "v": self.centered_values[place]} if self.values else {}
        lengths = {LENGTH: length_of(own)} if self.question.keeps_lengths else {}
        excess = {excess_at(k): excess_of(own, k) for k in ranks}
        return model | lengths | excess | {reward_at(k): reward_of(own, j, k) for k in ranks}

    def made_of(self, targets: Sequence[str] | None = None) -> list[str]:
        """The columns that a list has beside its numbers, for all targets or some of them."""
        found = []
        for target in self.targets if targets is None else targets:
            found += [gain_of(target, j) for j in range(len(self.rewards))]
            found += [excess_of(target, k) for k in self.question.ranks]
            found += [reward_of(target, j, k) for j in range(len(self.rewards)) for k in self.question.ranks]
            found += [f"{target}_e", f"{target}_ue"] if self.values else []
            found += [length_of(target)] if self.question.keeps_lengths else []
        return found

    def _lane(self, j: int, k: int, rung: int) -> Lane:
        target, against = self.question.contrasts[k]
        place = self.question.target_names.index(target)
        others = self.question.target_names
        other = self.targets[others.index(against)] if against and against in others else None
        shared = f"{k}c{rung}" if rung else f"{k}"
        own = f"{shared}r{j}" if self.apart else shared
        mixed = f"{shared}r{j}" if len(self.rewards) > 1 else shared
        columns = {"u": f"u{own}", "s": self.shifted[j], "us": f"us{mixed}"}
        factors = {} if self.question.makes_lists else {"us": self.shifted[j]}
        if self.question.makes_lists:
            columns |= self._list_columns(target, against, other, shared, j)
        elif not against:
            if self.values:
                columns |= {"e": MODEL_ERROR, "ue": f"ue{shared}", "v": self.centered_values[place]}
                factors |= {"ue": MODEL_ERROR}
            columns |= dict(zip(self.question.control, self.centered_controls, strict=True))
        elif self.values:
            columns |= {"e": MODEL_ERROR, "ue": f"ue{shared}", "v": f"d{k}"}
            factors |= {"ue": MODEL_ERROR}
        for feature, centered in zip(self.question.features, self.centered_features, strict=True):
            columns[feature.name], factors[feature.name] = f"u{own}{centered}", centered
        if self.features:
            columns[SQUARE], factors[SQUARE] = f"uu{own}", f"u{own}"
        zeros = f"zero{place}r{j}" if self.apart else f"zero{place}"
        weight, names = self.question.rungs[rung], (f"u{own}", f"u{shared}", zeros)
        return Lane((target, against), j, self.targets[place], other, *names, columns, weight, rung, factors)


def gain_of(target: str, reward: int) -> str:
    """A list's weighted reward less its reward, for one target."""
    return f"{target}_d{reward}"


def excess_of(target: str, rank: int) -> str:
    """The excess at one position of a list."""
    return f"{target}_u{rank}"


def length_of(target: str) -> str:
    """The length of a list times the sum of its excesses."""
    return f"{target}_length"


def reward_of(target: str, reward: int, rank: int) -> str:
    """The weighted reward at one position of a list."""
    return f"{target}_y{reward}_{rank}"
