"""The stored state of a daily job: what was asked, which batches were added, and their moments, in one file with a checksum.

The latest batches are kept apart, so any of them can be replaced exactly (subtracting sums would lose digits). Older ones are added up,
so the file stays small however many there are. Every batch keeps its summaries for good: a few numbers by name, which `watch` reads.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import takewhile
from operator import add
from os import PathLike
from pathlib import Path
from typing import Any, TypeGuard

from counterpoise.errors import MomentsError, OptionError, verbatim
from counterpoise.moments import stored
from counterpoise.moments.log_moments import LogMoments
from counterpoise.moments.moments import row_kinds
from counterpoise.moments.weighed import PLAIN, Weighed, named_today
from counterpoise.whole_files import whole_file

FORMAT = 4  # of the file; any other is refused, except for
EARLIER = (2, 3)  # which 0.2 and 0.3 wrote: 3 does not count its looks, and the batches of 2 have no summaries
APART = 31  # batches that can be replaced: a month of days
NUMBERS = 200_000  # that they may take together, about 4 MB; the last batch is always kept apart

MomentsOfRewards = tuple[LogMoments, ...]  # the moments of some rows, one for each reward

Summaries = Mapping[
    str, object
]  # numbers, and lists of them, by name: mappings in mappings, whose names may be those of a later version

_HEAD = b'{"format": %d, "sha256": "%s", '
_DEEP = 8  # mappings in mappings


@dataclass(frozen=True)
class StoredBatch:
    """What one call added."""

    key: str | None  # as given by batch=
    files: Mapping[str, str]  # path → fingerprint of its content
    rows: int = 0
    dropped: int = 0
    summaries: Summaries = field(default_factory=dict)  # kept for good, also those that this version does not know

    @property
    def name(self) -> str:
        """Its key, or its first file with the folders of its partition."""
        return partition_name(next(iter(self.files))) if self.key is None else self.key

    def __str__(self) -> str:
        if self.key is not None:
            return f"the batch {self.key!r}"
        first, *more = self.files
        return f"the file {first!r}" + (f" and {len(more):,} more" if more else "")


def partition_name(path: str) -> str:
    """The name of a file, after the folders that say which part of a log it has.

    >>> partition_name("/srv/logs/country=DE/day=2026-11-14/part-0.parquet"), partition_name("/srv/logs/2026-11-14.parquet")
    ('country=DE/day=2026-11-14/part-0.parquet', '2026-11-14.parquet')
    """
    *folders, name = Path(path).parts
    partition = list(takewhile(lambda folder: re.fullmatch(r"[^=]+=.*|[\d_-]+", folder), reversed(folders)))
    return "/".join([*reversed(partition), name])


@dataclass(frozen=True)
class State:
    """What was asked, which batches were added, and their moments: the latest one by one, the older ones added up."""

    question: dict[str, Any]
    batches: tuple[StoredBatch, ...]
    older: MomentsOfRewards  # None if all batches are kept apart
    recent: tuple[MomentsOfRewards, ...]
    looks: int = 0  # how many answers there were while it grew
    format: int = FORMAT  # of the file that it was read from

    @cached_property
    def moments(self) -> MomentsOfRewards:
        """The moments of all batches, one for each reward."""
        total = reduce(_sum, (*([self.older] if self.older else []), *self.recent))
        return tuple(replace(moments, looks=max(self.looks, 1)) for moments in total)

    @property
    def rows(self) -> int:
        """How many rows there are, not counting those that were dropped."""
        return sum(batch.rows for batch in self.batches)

    @property
    def rewards(self) -> tuple[str, ...]:
        """The rewards' names."""
        return _names(self.question["reward"])

    @property
    def first_apart(self) -> int:
        """The index of the first batch whose moments are kept apart."""
        return len(self.batches) - len(self.recent)

    def summarized(self, summarize: Callable[[MomentsOfRewards], Summaries]) -> State:
        """The state with summaries of every batch that is kept apart and has none, as those of 0.2 have none."""
        batches = list(self.batches)
        for k, moments in enumerate(self.recent, self.first_apart):
            if not batches[k].summaries:
                batches[k] = replace(batches[k], summaries=summarize(moments))
        return replace(self, batches=tuple(batches))

    def added(self, batch: StoredBatch, moments: MomentsOfRewards, instead_of: set[int]) -> State:
        """The state with one more batch at its end, without those it replaces (`instead_of`), all of which are kept apart.

        Its answer is one more look, unless the number of rows stays the same (a batch was mended) or nobody gets the answer (`unseen`).
        """
        kept = [k for k in range(len(self.batches)) if k not in instead_of]
        recent = [self.recent[k - self.first_apart] for k in kept if k >= self.first_apart]
        older = self.older
        recent.append(moments)
        while len(recent) > 1 and (len(recent) > APART or sum(map(_size, recent)) > NUMBERS):
            older = _sum(older, recent[0]) if older else recent[0]
            recent = recent[1:]
        batches = (*(self.batches[k] for k in kept), batch)
        state = State(self.question, batches, older, tuple(recent), self.looks)
        return state if state.rows == self.rows else replace(state, looks=self.looks + _shown.get())


_shown = ContextVar("shown", default=1)  # whether the answer about a state that grows counts as a look


@contextmanager
def unseen(more: bool) -> Iterator[None]:
    """What is added to a state in here is not looked at yet if `more` batches follow before there is an answer."""
    token = _shown.set(0 if more else 1)
    try:
        yield
    finally:
        _shown.reset(token)


def _sum(first: MomentsOfRewards, second: MomentsOfRewards) -> MomentsOfRewards:
    return tuple(map(add, first, second))


def _size(moments: MomentsOfRewards) -> int:
    """How many numbers there are to store."""
    tails = sum(len(tail.weights) for log in moments for each in log.tails.values() for tail in each)
    return tails + sum(stack.mean.size + stack.scatter.size for log in moments for stack in log.moments.values())


def load(path: str | PathLike[str]) -> State | None:
    """The state in a file, or None if there is no file yet."""
    try:
        content = _content(Path(path))
        return None if content is None else replace(_from_plain(stored.parse(content[1])), format=content[0])
    except OSError as error:
        raise MomentsError(f"cannot read the state {str(path)!r}: {error.strerror or error}.") from error
    except MomentsError as error:
        raise MomentsError(f"cannot read the state {str(path)!r}: {verbatim(error)}") from error
    except stored.BROKEN as error:
        said = "it is nested too deeply" if isinstance(error, RecursionError) else str(error) or type(error).__name__
        raise MomentsError(
            f"{str(path)!r} is not a state that counterpoise wrote: {said}.",
            do="Name another file, or restore this one from a backup.",
        ) from error


def existing(path: str | PathLike[str] | None) -> State:
    """The state in a file that must exist."""
    if not isinstance(path, str | PathLike):
        raise OptionError(f"`state=` must be the path of a file, found {type(path).__name__}.")
    known = load(path)
    if known is None:
        raise MomentsError(
            f"there is no state {str(path)!r} yet.",
            do=f"Check the path, or evaluate a first log with `state={str(path)!r}`.",
        )
    return known


def is_state(place: object) -> bool:
    """Whether this is the path of a file that begins like a state."""
    if not isinstance(place, str | PathLike) or not Path(place).is_file():
        return False
    with Path(place).open("rb") as file:
        return re.match(rb'\{"format": \d+, ', file.read(32)) is not None


def _content(path: Path) -> tuple[int, bytes] | None:
    """A state's format and its JSON, once the checksum in front of it has been verified."""
    if not path.exists():
        return None
    if not path.is_file():
        raise ValueError("it is not a regular file")
    with path.open("rb") as file:
        head = file.read(len(_HEAD % (FORMAT, b"0" * 64)))
        version = re.match(rb'\{"format": (\d{1,9}),', head)
        if version and int(version[1]) not in (*EARLIER, FORMAT):
            raise MomentsError(
                f"it is in format {int(version[1])}, and this version reads formats {', '.join(map(str, EARLIER))} and {FORMAT}.",
                do="Make a new state from the logs.",
            )
        checksum = head[-67:-3]
        if version is None or head != _HEAD % (int(version[1]), checksum):
            raise ValueError("it does not begin like one")
        if hashlib.file_digest(file, "sha256").hexdigest().encode() != checksum:  # before any of it is held in memory
            raise ValueError("its checksum is wrong, so it was damaged or edited")
        file.seek(len(head))
        return int(version[1]), b"{" + file.read()


def backup(path: Path, state: State) -> Path:
    """Keep the file of a state in an earlier format beside it, since the version that wrote it cannot read a later one."""
    place = path.with_name(f"{path.stem}.format-{state.format}{path.suffix}")
    try:
        with whole_file(place) as part:
            shutil.copyfile(path, part)
    except OSError as error:
        raise MomentsError(
            f"cannot keep a copy of the state {str(path)!r} as {str(place)!r}: {error.strerror or error}. Nothing was changed."
        ) from error
    return place


def store(path: Path, state: State) -> None:
    raw = {
        "question": state.question,
        "batches": [
            {
                "batch": batch.key,
                "files": dict(batch.files),
                "rows": batch.rows,
                "dropped": batch.dropped,
                "summaries": dict(batch.summaries),
            }
            for batch in state.batches
        ],
        "older": _to_plain(state.older) if state.older else None,
        "recent": [_to_plain(moments) for moments in state.recent],
        "looks": state.looks,
    }
    try:
        body = json.dumps(raw, allow_nan=False)[1:].encode()
    except ValueError as error:
        raise MomentsError(
            f"cannot store the state {str(path)!r}: its sums are too large to be written as numbers. The old state, if there was "
            "one, is unchanged."
        ) from error
    try:
        with whole_file(path) as part:
            part.write_bytes(_HEAD % (FORMAT, hashlib.sha256(body).hexdigest().encode()) + body)
    except OSError as error:
        raise MomentsError(
            f"cannot write the state {str(path)!r}: {error.strerror or error}. The old state, if there was one, is unchanged."
        ) from error


def _from_plain(raw: object) -> State:
    """A state whose parts all belong together; if one does not, a ValueError says which."""
    parts = stored.record(raw, "the state", ("question", "batches", "older", "recent"), optional=("looks",))
    question = _read_question(parts["question"])
    batches = tuple(_batch(entry) for entry in stored.items(parts["batches"], "batches"))
    how = question["weight"]
    unsaid = Weighed(how, mean_is_one=how == PLAIN.how, may_be_negative=how == "Own()")
    count = len(_names(question["reward"]))
    older = () if parts["older"] is None else _moments(parts["older"], count, unsaid)
    recent = tuple(_moments(entry, count, unsaid) for entry in stored.items(parts["recent"], "recent"))
    first = len(batches) - len(recent)
    rows = [batch.rows for batch in batches]
    if not recent or first < 0 or (not older) != (first == 0):
        raise ValueError("it does not have the moments of each of its batches")
    if [rewards[0].n for rewards in recent] != rows[first:] or (older and older[0].n != sum(rows[:first])):
        raise ValueError("its batches and their moments disagree about the number of rows")
    for moments in (*older, *(moments for rewards in recent for moments in rewards)):
        contrasts = [list(contrast) for contrast in moments.moments]
        if (contrasts, moments.weight.how) != (question["contrasts"], question["weight"]):
            raise ValueError("its moments do not match its question")
        smoothed = (sums for by_segment in moments.smoothed.values() for sums in by_segment)
        if any(list(sums.lambdas) != question.get("smoothings") for sums in smoothed):
            raise ValueError("its moments are smoothed in another way than its question has it")
    # before 0.4 nobody counted: as far as we know, there was an answer after every batch
    looks = stored.count(parts.get("looks", len(batches)), "looks")
    return State(question, batches, older, recent, looks)


def _to_plain(moments: MomentsOfRewards) -> object:
    """The moments of one reward as they are, those of several in a list."""
    return moments[0].to_plain() if len(moments) == 1 else [log.to_plain() for log in moments]


def _moments(raw: object, rewards: int, unsaid: Weighed) -> MomentsOfRewards:
    each = [raw] if rewards == 1 else stored.items(raw, "the moments of several rewards")
    moments = tuple(LogMoments.from_plain(entry, unsaid=unsaid) for entry in each)
    if len(moments) != rewards or len({log.n + log.dropped for log in moments}) > 1:
        raise ValueError("its rewards do not have the moments of the same rows")
    return moments


def _names(reward: str | Sequence[str]) -> tuple[str, ...]:
    return (reward,) if isinstance(reward, str) else tuple(reward)


def _batch(raw: object) -> StoredBatch:
    parts = stored.record(raw, "a batch", ("batch", "files", "rows", "dropped"), optional=("summaries",))
    key = None if parts["batch"] is None else stored.text(parts["batch"], "the key of a batch")
    files = parts["files"]
    if not isinstance(files, dict) or not (files or key):
        raise ValueError("a batch needs files or a key")
    for fingerprint in files.values():
        stored.text(fingerprint, "the fingerprint of a file")
    rows, dropped = stored.count(parts["rows"], "rows"), stored.count(parts["dropped"], "dropped")
    return StoredBatch(key, files, rows, dropped, _read_summaries(parts.get("summaries", {})))


def _read_summaries(raw: object, deep: int = 0) -> dict[str, object]:
    """Numbers by name, in mappings; names that this version does not know are kept for the one that does."""
    if not isinstance(raw, dict) or deep > _DEEP:
        raise ValueError("the summaries of a batch should be numbers by name")
    return {
        name: _read_summaries(part, deep + 1) if isinstance(part, dict) else _number(part) for name, part in raw.items()
    }


def _number(part: object) -> object:
    """A number, or a list of them, as it was written."""
    stored.numbers(part, "the summaries of a batch")
    return part


_TEXTS, _MAYBE, _MAPPING, _ONE_OR_MORE = "a list of texts", "text or null", "a mapping", "text or a list of texts"
_PARTS = {
    "reward": _ONE_OR_MORE, "propensity": _MAYBE, "target": _TEXTS, "target columns": _MAPPING, "contrasts": "a list of pairs",
    "segment": _TEXTS, "cluster": _MAYBE, "groups": "a number", "key": _TEXTS, "model_reward": _MAYBE,
    "model_value": _MAPPING, "control": _MAPPING, "where": _MAYBE, "action": _MAYBE, "context": _TEXTS,
    "drop_bad_rows": "true or false", "version": _MAPPING, "weight": "text",
}  # fmt: skip


OLD_NAMES = {"gamma": "discount_factor"}  # in states of 0.3 and before
# only present if it was part of the question
_SAID = ("model", "propensity_model", "items", "candidates")


def _read_question(raw: object) -> dict[str, Any]:
    of_kinds = [part for kind in row_kinds().KINDS for part in kind.parts]
    if isinstance(raw, dict):
        raw = {OLD_NAMES.get(part, part): value for part, value in raw.items()}
    question = stored.record(
        raw, "the question", tuple(_PARTS), optional=("smoothings", "baseline", "minimize", *_SAID, *of_kinds)
    )
    fits: dict[str, Callable[[object], bool]] = {
        "text": lambda value: isinstance(value, str),
        _MAYBE: lambda value: value is None or isinstance(value, str),
        _TEXTS: _are_texts,
        _ONE_OR_MORE: lambda value: isinstance(value, str) or (_are_texts(value) and len({*value}) == len(value) > 1),
        _MAPPING: lambda value: (
            isinstance(value, dict) and all(type(entry) in (str, int, float) for entry in value.values())
        ),
        "a list of pairs": lambda value: (
            isinstance(value, list) and all(_are_texts(pair) and len(pair) == 2 for pair in value)
        ),
        "a number": lambda value: type(value) is int,
        "true or false": lambda value: isinstance(value, bool),
    }
    for part, kind in _PARTS.items():
        if not fits[kind](question[part]):
            raise ValueError(f"{part!r} in its question should be {kind}")
    number = question.get("discount_factor")
    columns = [question.get(part) for part in of_kinds if part != "discount_factor"]
    if not all(map(fits[_MAYBE], columns)) or type(number) not in (int, float, type(None)):
        raise ValueError("what its rows stand for should be names of columns")
    question["weight"] = named_today(str(question["weight"]))
    if not _are_texts(question.get("baseline", [])):
        raise ValueError(f"'baseline' in its question should be {_TEXTS}")
    minimize, rewards = question.get("minimize", []), question["reward"]
    if not _are_texts(minimize) or not {*minimize} <= {*(rewards if _are_texts(rewards) else [rewards])}:
        raise ValueError("'minimize' in its question should be a list of its rewards")
    for part in _SAID:
        if not isinstance(question.get(part, ""), str):
            raise ValueError(f"{part!r} in its question should be text")
    return question


def _are_texts(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other jobs from adding to a state in this folder in the meantime, so that none overwrites what another added.

    The lock is on the folder itself: it leaves no file behind and ends with the process. Windows and some network disks have no such lock.
    """
    try:
        import fcntl

        held = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        yield
        return
    try:
        with suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)
