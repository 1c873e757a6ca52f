"""`LogMoments`: everything that one pass over a log keeps, ready to be stored and added to tomorrow's."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from operator import add
from typing import Any, TypeVar

import numpy as np

from counterpoise.errors import MomentsError, OptionError, verbatim
from counterpoise.moments import stored
from counterpoise.moments.moments import Floats, Moments, row_kinds
from counterpoise.moments.spread import EMPTY, KEPT, NOTHING, UNSMOOTHED, Powers, Smoothed, Tail
from counterpoise.moments.weighed import PLAIN, Estimated, Weighed

Contrast = tuple[str, str]  # (target, against); against is "" for the target's own value
Label = tuple[Hashable, ...]  # one value per segment column; () where there are none
Segment = Label | None  # None is the whole log
WHOLE = "(all)"

# what a log has of every segment, or of every rung
MomentsPart = TypeVar("MomentsPart", Powers, Tail, Smoothed, "LogMoments")
Sum = TypeVar("Sum", Tail, Powers, Smoothed)

FORMAT = 2  # of their JSON; any other is refused
LISTS = 2  # what sums of lists mean: 0.2 left the first unsaid, in which weights are 1 below the end of a list


@dataclass(frozen=True, eq=False)
class LogMoments:
    """The moments of a log by contrast, segment and group, with its largest weights and a count of the rows that were dropped.

    `+` adds the moments of another log with the same columns and weight: yesterday plus today makes both days. Groups are hashed from the
    clusters, so a cluster always lands in the same group. Duplicates are counted within each log, not across logs. Every log that is added
    counts as one more look: there was an answer about it before the next one came.
    """

    moments: Mapping[Contrast, Moments]  # each a stack of segments × groups
    tails: Mapping[Contrast, Sequence[Tail]]  # by segment
    excess: Mapping[Contrast, Sequence[Powers]]  # of w − 1, or of the difference of two weights, by segment
    segments: tuple[Label, ...]
    reward_min: Floats  # by segment
    reward_max: Floats
    rewards: Sequence[Powers]  # by segment
    segment_columns: tuple[str, ...] = ()
    cluster: str | None = None  # the column that groups were hashed from; without one, groups are of single rows
    control: tuple[tuple[str, float], ...] = ()  # control variates and their known means
    dropped: int = 0
    duplicates: int | None = None
    weight: Weighed = PLAIN
    ladder: tuple[LogMoments, ...] = ()  # the same rows with each weight of a ladder, the unbiased one first
    left_out: Powers = NOTHING  # the good rewards of rows that were dropped for something else
    smoothed: Mapping[Contrast, tuple[Smoothed, ...]] = field(default_factory=dict)  # by segment, if asked for
    features: tuple[tuple[str, float], ...] = ()  # the columns u·φ of a context baseline, and the centers of φ
    per: Sequence[Powers] = ()  # by segment, of what rewards are divided by, if they are
    estimated: Estimated | None = None  # what a propensity model does to the errors, where propensities were not logged
    rows_before: int | None = None  # how many rows there were before sampling, if somebody said so
    looks: int = 1  # how many answers there were while the log grew, this one among them
    queries: int = 0  # to a database, or jobs of Spark, that these sums took

    def __getitem__(self, target: str | tuple[str, Hashable]) -> Moments:
        """The moments of one target, over the whole log or in one segment."""
        name, segment = target if isinstance(target, tuple) else (target, None)
        if (name, "") not in self.moments:
            raise OptionError(f"there is no target {name!r}; choose one of {', '.join(map(repr, self.targets))}.")
        whole = self.moments[name, ""].merge(axis=1)
        if segment is None:
            everything: Moments = row_kinds().reduced(Moments.stack([whole.merge(axis=0)]), rows=self.known_rows)
            return everything[0]
        if as_label(segment) not in self.segments:
            raise OptionError(
                f"there is no segment {segment!r} in these moments.", do="See `segments` for those there are."
            )
        part: Moments = row_kinds().reduced(whole[self.segments.index(as_label(segment))])
        return part

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets' names, in the order they were given."""
        return tuple(dict.fromkeys(target for target, against in self.moments if not against))

    @property
    def n(self) -> int:
        """How many rows there are, not counting those that were dropped."""
        return int(next(iter(self.moments.values())).n.sum())

    @property
    def means_rewards(self) -> bool:
        """Whether a value is the mean of a row's reward, within its bounds; not if it is a sum over a list, or a ratio of two sums."""
        return self.weight.unit == "row" and not self.per

    @property
    def known_rows(self) -> int | None:
        """How many rows there were, where somebody said so and they come one by one; None elsewhere."""
        return self.rows_before if self.cluster is None else None

    @property
    def rungs(self) -> tuple[LogMoments, ...]:
        """The ladder over the whole log, which has one constant for all segments."""
        return tuple(replace(rung, segment_columns=(), rows_before=self.rows_before) for rung in self.ladder)

    @property
    def before_sampling(self) -> int | None:
        """How many rows there were before sampling, as said or estimated; None if rows were not sampled."""
        stack = next(iter(self.moments.values()))
        if row_kinds().count_form(stack) is None:
            return None
        return self.rows_before or round(float((stack.n * row_kinds().stands_for(stack)).sum()))

    @property
    def sizes(self) -> dict[str, int]:
        """How many rows there are; how many before sampling if rows were sampled, and how many looks if there were several."""
        before = self.before_sampling
        more = {} if before is None else {"rows_before": before}
        return {"n": self.n, **more, **({"looks": self.looks} if self.looks > 1 else {})}

    @property
    def labels(self) -> int | None:
        """How many of them are labeled, if the reward is known for some rows only."""
        kinds = row_kinds().kinds_in(next(iter(self.moments.values())).columns)
        return sum(powers.n for powers in self.rewards) if any(kind.known for kind in kinds) else None

    def __add__(self, other: LogMoments) -> LogMoments:
        if not isinstance(other, LogMoments):
            return NotImplemented
        self, other = self._as_deep_as(other), other._as_deep_as(self)
        _check_alike(self, other)
        segments = in_order(self.segments + other.segments)
        other = other._with_features_around(dict(self.features))
        mine, theirs = self._align(segments), other._align(segments)
        duplicates = None if self.duplicates is None or other.duplicates is None else self.duplicates + other.duplicates
        if self.ladder:
            # the choices from both ladders are forgotten: together they choose anew
            mine, theirs = mine._with_sums_of(mine.ladder[0]), theirs._with_sums_of(theirs.ladder[0])
        return replace(
            mine,
            moments={key: mine.moments[key] + theirs.moments[key] for key in mine.moments},
            tails={key: _add_each(mine.tails[key], theirs.tails[key]) for key in mine.tails},
            excess={key: _add_each(mine.excess[key], theirs.excess[key]) for key in mine.excess},
            reward_min=np.fmin(mine.reward_min, theirs.reward_min),
            reward_max=np.fmax(mine.reward_max, theirs.reward_max),
            rewards=_add_each(mine.rewards, theirs.rewards),
            per=_add_each(mine.per, theirs.per),
            dropped=self.dropped + other.dropped,
            smoothed={key: _add_each(mine.smoothed[key], theirs.smoothed[key]) for key in mine.smoothed},
            duplicates=duplicates,
            ladder=_add_each(self.ladder, other.ladder),
            left_out=self.left_out + other.left_out,
            estimated=self.estimated + other.estimated if self.estimated and other.estimated else None,
            rows_before=self.rows_before + other.rows_before if self.rows_before and other.rows_before else None,
            looks=self.looks + other.looks,
            queries=self.queries + other.queries,
        )

    def __radd__(self, other: object) -> LogMoments:
        return self if other == 0 else NotImplemented  # so that sum() works

    def _with_sums_of(self, rung: LogMoments) -> LogMoments:
        """The same log with what depends on the weights as one rung of its ladder has it."""
        return replace(self, moments=rung.moments, tails=rung.tails, excess=rung.excess)

    def _as_deep_as(self, other: LogMoments) -> LogMoments:
        """The same lists, with the positions of the other log's longest."""
        theirs = [stack.columns for stack in other.moments.values()]
        if not next(iter(self.moments.values())).ranks or len(theirs) != len(self.moments):
            return self
        deeper = {
            key: stack.with_ranks(columns, is_running=self.weight.is_running)
            for (key, stack), columns in zip(self.moments.items(), theirs, strict=True)
        }
        return replace(self, moments=deeper)

    def _with_features_around(self, centers: Mapping[str, float]) -> LogMoments:
        """The same moments with other centers of the features."""
        by = {name: center - centers[name] for name, center in self.features if center != centers[name]}
        if not by:
            return self
        return replace(
            self,
            moments={key: stack.with_features_moved(by) for key, stack in self.moments.items()},
            ladder=tuple(rung._with_features_around(centers) for rung in self.ladder),
            features=tuple((name, centers[name]) for name, _ in self.features),
        )

    def _align(self, segments: tuple[Label, ...]) -> LogMoments:
        """The same moments with a slot for each of these segments, in this order."""
        if segments == self.segments:
            return self
        known = {label: k for k, label in enumerate(self.segments)}
        place = [known.get(label, -1) for label in segments]

        def stretch(stack: Moments) -> Moments:
            return Moments.concat([stack, Moments.empty(stack.columns, (1, *stack.shape[1:]))])[place]

        def chosen(parts: Sequence[MomentsPart], nothing: MomentsPart) -> tuple[MomentsPart, ...]:
            return tuple(parts[k] if k >= 0 else nothing for k in place)

        return replace(
            self,
            moments={key: stretch(stack) for key, stack in self.moments.items()},
            tails={key: chosen(tails, EMPTY) for key, tails in self.tails.items()},
            excess={key: chosen(powers, NOTHING) for key, powers in self.excess.items()},
            segments=segments,
            reward_min=np.append(self.reward_min, np.nan)[place],
            reward_max=np.append(self.reward_max, np.nan)[place],
            rewards=chosen(self.rewards, NOTHING),
            per=chosen(self.per, NOTHING) if self.per else (),
            ladder=tuple(rung._align(segments) for rung in self.ladder),
            smoothed={key: chosen(sums, UNSMOOTHED) for key, sums in self.smoothed.items()},
        )

    def over_last_segment(self) -> LogMoments:
        """The same moments without their last segment column, added up over its values."""
        segments = in_order([label[:-1] for label in self.segments])
        places = [[k for k, own in enumerate(self.segments) if own[:-1] == label] for label in segments]

        def added(parts: Sequence[Sum], nothing: Sum) -> tuple[Sum, ...]:
            return tuple(sum((parts[k] for k in own), nothing) for own in places)

        return replace(
            self,
            moments={
                key: Moments.stack([stack[own].merge(axis=0) for own in places]) for key, stack in self.moments.items()
            },
            tails={key: added(tails, EMPTY) for key, tails in self.tails.items()},
            excess={key: added(powers, NOTHING) for key, powers in self.excess.items()},
            smoothed={key: added(sums, UNSMOOTHED) for key, sums in self.smoothed.items()},
            rewards=added(self.rewards, NOTHING),
            segments=segments,
            segment_columns=self.segment_columns[:-1],
            reward_min=np.array([np.fmin.reduce(self.reward_min[own]) for own in places]),
            reward_max=np.array([np.fmax.reduce(self.reward_max[own]) for own in places]),
        )

    # -- storing them --------------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """These moments as text; `from_json` restores them to the last bit."""
        return json.dumps(self.to_plain())

    @classmethod
    def from_json(cls, text: str) -> LogMoments:
        """The moments that `to_json` wrote; anything else is refused."""
        try:
            return cls.from_plain(stored.parse(text))
        except stored.BROKEN as error:
            what = f"this text is not the JSON of a log's moments: {verbatim(error)}."
            raise MomentsError(what, do="Recompute them from the log.") from error

    def to_plain(self) -> dict[str, object]:
        """These moments as plain lists and numbers, ready for JSON."""
        return {
            "format": FORMAT,
            "contrasts": [
                {
                    "target": key[0],
                    "against": key[1],
                    "moments": stack.to_plain(),
                    "tails": [
                        {"weights": tail.weights.tolist(), "zeros": tail.zeros} for tail in self.tails.get(key, ())
                    ],
                    "excess": [powers.to_plain() for powers in self.excess[key]],
                }
                | ({"smoothed": [sums.to_plain() for sums in self.smoothed[key]]} if key in self.smoothed else {})
                for key, stack in self.moments.items()
            ],
            "segments": [list(label) for label in self.segments],
            "reward_min": [None if np.isnan(x) else x for x in self.reward_min.tolist()],
            "reward_max": [None if np.isnan(x) else x for x in self.reward_max.tolist()],
            "rewards": [powers.to_plain() for powers in self.rewards],
            "segment_columns": list(self.segment_columns),
            "cluster": self.cluster,
            "control": [list(pair) for pair in self.control],
            "dropped": self.dropped,
            "duplicates": self.duplicates,
            "weight": self.weight.to_plain(),
            **({"ladder": [rung.to_plain() for rung in self.ladder]} if self.ladder else {}),
            "left_out": self.left_out.to_plain(),
            **({"lists": LISTS} if self.weight.unit == "ranking" else {}),
            **({"features": [list(pair) for pair in self.features]} if self.features else {}),
            **({"per": [powers.to_plain() for powers in self.per]} if self.per else {}),
            **({} if self.estimated is None else {"estimated": self.estimated.to_plain()}),
            **({} if self.rows_before is None else {"rows_before": self.rows_before}),
            **({} if self.looks == 1 else {"looks": self.looks}),
        }

    @classmethod
    def from_plain(cls, raw: object, *, unsaid: Weighed = PLAIN) -> LogMoments:
        """Moments from what `to_plain` returned; a ValueError says what is wrong with anything else.

        Moments stored before they recorded their weight have the one that is `unsaid`.
        """
        if isinstance(raw, dict) and raw.get("format", FORMAT) != FORMAT:
            what = f"these moments are in format {raw['format']!r:.80}, and this version reads format {FORMAT}."
            raise MomentsError(what, do="Recompute them from the log.")
        optional = ("weight", "ladder", "left_out", "lists", "features", "per", "estimated", "rows_before", "looks")
        log = stored.record(raw, "a log's moments", _KEYS, optional=optional)
        stacks: dict[Contrast, Moments] = {}
        tails: dict[Contrast, Sequence[Tail]] = {}
        excess: dict[Contrast, Sequence[Powers]] = {}
        smoothed: dict[Contrast, tuple[Smoothed, ...]] = {}
        for contrast in stored.items(log["contrasts"], "contrasts"):
            entry = stored.record(
                contrast, "a contrast", ("target", "against", "moments", "tails", "excess"), ("smoothed",)
            )
            key = stored.text(entry["target"], "target"), stored.text(entry["against"], "against")
            if key in stacks:
                raise ValueError(f"the contrast of {key[0]!r} and {key[1]!r} appears twice")
            stacks[key] = Moments.from_plain(entry["moments"])
            excess[key] = tuple(map(Powers.from_plain, stored.items(entry["excess"], "excess")))
            if "smoothed" in entry:
                smoothed[key] = tuple(map(Smoothed.from_plain, stored.items(entry["smoothed"], "smoothed")))
            if own_tails := tuple(map(_tail, stored.items(entry["tails"], "tails"))):
                tails[key] = own_tails
        made = cls(
            stacks,
            tails,
            excess,
            tuple(_label(label) for label in stored.items(log["segments"], "segments")),
            _ends(log["reward_min"], "reward_min"),
            _ends(log["reward_max"], "reward_max"),
            tuple(Powers.from_plain(powers) for powers in stored.items(log["rewards"], "rewards")),
            tuple(stored.text(name, "a segment's column") for name in stored.items(log["segment_columns"], "segments")),
            None if log["cluster"] is None else stored.text(log["cluster"], "cluster"),
            tuple(_control(pair) for pair in stored.items(log["control"], "control")),
            stored.count(log["dropped"], "dropped"),
            None if log["duplicates"] is None else stored.count(log["duplicates"], "duplicates"),
            Weighed.from_plain(log["weight"]) if "weight" in log else unsaid,
            tuple(cls.from_plain(rung) for rung in stored.items(log.get("ladder", []), "the ladder")),
            Powers.from_plain(log["left_out"]) if "left_out" in log else NOTHING,
            smoothed,
            tuple(_control(pair) for pair in stored.items(log.get("features", []), "features")),
            tuple(Powers.from_plain(powers) for powers in stored.items(log.get("per", []), "per")),
            Estimated.from_plain(log["estimated"]) if "estimated" in log else None,
            stored.count(log["rows_before"], "rows_before") if "rows_before" in log else None,
            stored.count(log.get("looks", 1), "looks"),
        )
        if made.weight.unit == "ranking" and log.get("lists") != LISTS:
            stacks = {key: _of_equal_lists(made.weight, stack) for key, stack in stacks.items()}
            made = replace(made, moments=stacks)
        _check_whole(made)
        return made


_KEYS = (
    "format", "contrasts", "segments", "reward_min", "reward_max", "rewards", "segment_columns", "cluster", "control",
    "dropped", "duplicates",
)  # fmt: skip


def _of_equal_lists(weight: Weighed, stack: Moments) -> Moments:
    """The sums of lists as 0.2 stored them, in today's meaning, which is the same where all lists have the same length.

    Then the mean excess of a list is the same combination of its positions' in every list.
    """
    whole = stack.merge(axis=1).merge(axis=0)
    place = [stack.columns.index(name) for name in stack.ranks]
    inner, u = whole.scatter[np.ix_(place, place)], whole.scatter[place, 0]
    left = whole.scatter[0, 0] - u @ np.linalg.pinv(inner, hermitian=True) @ u if place else 0.0
    if weight.how == "PseudoInverse()" or left > 1e-8 * whole.scatter[0, 0]:
        raise MomentsError(
            "these moments of rankings were stored by version 0.2, which did not keep what it takes where the length of a ranking "
            "depends on what it showed, and their lengths differ or cannot be known.",
            do="Recompute them from the log.",
        )
    return stack.with_lengths() if weight.how == "Independent()" else stack


def _tail(raw: object) -> Tail:
    tail = stored.record(raw, "a tail", ("weights", "zeros"))
    weights, zeros = stored.numbers(tail["weights"], "weights"), stored.count(tail["zeros"], "zeros")
    if weights.ndim != 1 or len(weights) > KEPT or (np.diff(weights) > 0).any():
        raise ValueError(f"the largest weights should be at most {KEPT:,} numbers in descending order")
    return Tail(weights, zeros)


def _label(raw: object) -> Label:
    values = stored.items(raw, "a segment")
    known = tuple(value for value in values if value is None or isinstance(value, str | int | float))
    if len(known) < len(values):
        raise ValueError("a segment should hold text and numbers only")
    return known


def _ends(raw: object, what: str) -> Floats:
    """The smallest or largest reward of every segment; null, which marks a segment without rows, becomes nan."""
    values = stored.items(raw, what)
    known = np.array([value is not None for value in values], dtype=bool)
    ends = np.full(len(values), np.nan)
    ends[known] = stored.numbers([value for value in values if value is not None], what)
    return ends


def _control(raw: object) -> tuple[str, float]:
    name, mean = stored.items(raw, "a control")
    return stored.text(name, "a control's name"), float(stored.numbers(mean, "a control's mean"))


def _check_whole(log: LogMoments) -> None:
    """Check that all parts are about the same rows, segments and groups."""
    if not log.targets:
        raise ValueError("it has no moments of any target")
    first = next(iter(log.moments.values()))
    segments, groups = len(log.segments), first.shape[1] if len(first.shape) == 2 else 0
    for key, stack in log.moments.items():
        if stack.context != tuple(name for name, _ in log.features):
            raise ValueError("the features of the baseline are damaged")
        has_tails = key[1] or len(log.tails.get(key, ())) == segments
        if not groups or stack.shape != (segments, groups) or (stack.n != first.n).any() or not has_tails:
            raise ValueError(f"the moments of {key[0]!r} are damaged")
    rows = first.n.sum(axis=1)
    too_many = any(tail.zeros > rows[k] for tails in log.tails.values() for k, tail in enumerate(tails))
    least = min(
        (float(tail.weights[-1]) for tails in log.tails.values() for tail in tails if len(tail.weights)), default=0.0
    )
    if least < 0 and not log.weight.may_be_negative:
        raise ValueError("a weight is negative")
    if any(
        rung.ladder or list(rung.moments) != list(log.moments) or _sizes(rung) != _sizes(log) for rung in log.ladder
    ):
        raise ValueError("its ladder of weights is damaged")
    if int(rows.sum()) > stored.MOST or too_many:
        raise ValueError("the numbers of rows are damaged")
    if bool(log.per) != any(kind.divisor for kind in row_kinds().kinds_in(first.columns)):
        raise ValueError("what the rewards are divided by is damaged")
    known = rows if log.labels is None else np.array([powers.n for powers in log.rewards])
    every = [(powers, rows) for powers in (*log.excess.values(), *([log.per] if log.per else []))]
    for powers, count in (*every, (log.rewards, known)):
        if [member.n for member in powers] != count.tolist() or (count > rows).any():
            raise ValueError("the sums of powers are damaged")
    if log.left_out.n > log.dropped:
        raise ValueError("the dropped rows are damaged")
    if any(len(sums) != segments for sums in log.smoothed.values()):
        raise ValueError("the smoothed sums are damaged")
    ends = (log.reward_min, log.reward_max)
    is_labeled = {len(label) for label in log.segments} == {len(log.segment_columns)}
    if not is_labeled or len(set(log.segments)) < segments or any(end.shape != (segments,) for end in ends):
        raise ValueError("the segments are damaged")
    if (np.isnan(ends).any(axis=0) & (known > 0)).any() or (log.reward_min > log.reward_max).any():
        raise ValueError("the smallest and largest rewards are damaged")


def _sizes(log: LogMoments) -> tuple[object, ...]:
    return log.segments, next(iter(log.moments.values())).n.tolist()


def _add_each(first: Sequence[MomentsPart], second: Sequence[MomentsPart]) -> tuple[MomentsPart, ...]:
    """The parts of every segment in two logs, added."""
    return tuple(map(add, first, second))


def segment_text(label: Segment) -> str:
    """A segment as people read it: its values, separated by slashes."""
    return " / ".join("(missing)" if value is None else str(value) for value in label or ())


def as_label(segment: Hashable) -> Label:
    """The label of a segment, given as one value or as a tuple of values."""
    return tuple(plain(value) for value in (segment if isinstance(segment, tuple) else (segment,)))


def plain(value: object) -> str | int | float | None:
    """A segment's value as JSON can store it: text, numbers, booleans and null as they are, anything else (dates, infinities) as text.

    Times with a zone are written in UTC, because databases return them in whatever zone the session or process uses.

    >>> from datetime import datetime
    >>> plain(datetime.fromisoformat("2026-11-14 01:30:00+02:00"))
    '2026-11-13 23:30:00+00:00'
    """
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC)
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def in_order(labels: Sequence[Label]) -> tuple[Label, ...]:
    """Each label once: numbers in order, then text, then null."""

    def key(label: Label) -> tuple[tuple[bool, bool, Any], ...]:
        return tuple((value is None, isinstance(value, str), "" if value is None else value) for value in label)

    known = set(labels)
    are_numbers = all(issubclass(kind, int | float) for kind in set(map(type, chain.from_iterable(known))))
    return tuple(sorted(known, key=None if are_numbers else key))


def _check_alike(first: LogMoments, second: LogMoments) -> None:
    for what, mine, theirs in (
        ("targets", tuple(first.moments), tuple(second.moments)),
        ("columns", *([stack.columns for stack in log.moments.values()] for log in (first, second))),
        ("segment columns", first.segment_columns, second.segment_columns),
        ("clusters", (first.cluster, _groups(first)), (second.cluster, _groups(second))),
        ("controls", first.control, second.control),
        ("weights", str(first.weight), str(second.weight)),
        ("ladders of weights", *([str(rung.weight) for rung in log.ladder] for log in (first, second))),
        ("smoothings", tuple(first.smoothed), tuple(second.smoothed)),
        ("propensities", *("estimated" if log.estimated else "logged" for log in (first, second))),
    ):
        if mine != theirs:
            message = f"moments of logs with different {what} cannot be added: {mine} and {theirs}."
            raise MomentsError(message, do="Evaluate both logs the same way.")


def _groups(log: LogMoments) -> int:
    return int(next(iter(log.moments.values())).shape[1])
