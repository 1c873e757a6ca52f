"""What a daily job may add to its state: every row once."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import translate
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from counterpoise.errors import Argument, MomentsError, OptionError, Text
from counterpoise.log.question import Question
from counterpoise.moments import Moments
from counterpoise.moments import state as states
from counterpoise.moments.log_moments import LogMoments
from counterpoise.moments.state import Batch, Rewards, State
from counterpoise.readers.kept_questions import check_same, question_kept
from counterpoise.readers.seen_files import Seen, check_unchanged, files_seen


@dataclass(frozen=True)
class Addition:
    """A batch on its way into a state: what we know about it before its log is read."""

    place: Path
    question: dict[str, Any]
    batch: Batch
    log: Any
    seen: Seen
    replaces: bool


def start(
    path: str | PathLike[str],
    question: Question,
    *,
    batch: str | None = None,
    replaces: bool = False,
    version: str | Mapping[str, str] | None = None,
) -> Addition:
    """Refuse, before the log is read, a batch that has already been added or a state that answers another question."""
    if not isinstance(path, str | PathLike):
        raise OptionError([Argument("state"), f" must be the path of a file, found {type(path).__name__}."])
    if batch is not None and (not isinstance(batch, str) or not batch):
        raise OptionError([Argument("batch", batch), " must be a text such as '2026-11-14'."])
    if not isinstance(replaces, bool):
        raise OptionError([Argument("replace", replaces), " must be True or False."])
    if not Path(path).resolve().parent.is_dir():
        raise MomentsError(f"cannot write the state {str(path)!r}: there is no folder {str(Path(path).parent)!r}.")
    log, asked = question.log.data, question_kept(question, version)
    known = states.load(path)
    if known is not None:
        check_same(path, known, asked)
    seen = files_seen(log, batch)
    new = Batch(batch, {str(file.resolve()): str(found[0]) for file, found in seen.items()})
    job = Addition(Path(path), asked, new, log, seen, replaces)
    if known is not None:
        _outdated(job, known)
    return job


def finish(job: Addition, today: Rewards) -> Rewards:
    """The stored moments with today's, one for each reward; stored before they are returned, all or nothing."""
    check_unchanged(job.seen, job.log, job.batch.key)
    new = replace(job.batch, rows=today[0].n, dropped=today[0].dropped)
    with states.alone(job.place.resolve().parent):
        known = states.load(job.place)  # once more: another job may have added to it while the log was read
        if known is None:
            state = State(job.question, (new,), (), (today,))
        else:
            check_same(job.place, known, job.question)
            outdated = _outdated(job, known)
            if job.batch.key is None:
                _check_no_copy(job, known, outdated, today)
            state = known.added(new, today, outdated)
        states.store(job.place, state)
    return state.moments


def stored_state(path: str | PathLike[str] | None) -> State:
    """A state that has to exist."""
    if not isinstance(path, str | PathLike):
        raise OptionError([Argument("state"), f" must be the path of a file, found {type(path).__name__}."])
    return states.existing(path)


def _outdated(job: Addition, known: State) -> set[int]:
    """The places of the batches that the new one replaces; unless replace=True, there must be none."""
    overlaps = _overlaps(job, known)
    if not job.replaces:
        for kind, said in _TWICE.items():
            files = [file for found in overlaps.values() for why, file in found if why == kind]
            if files:
                others = f", as are {len(files) - 1:,} others" if len(files) > 1 else ""
                what, advice = said
                raise MomentsError(what.format(name=files[0], state=str(job.place), others=others), do=advice)
    for k in overlaps:
        _check_replaceable(job, known, k)
    return set(overlaps)


_REPLACE, _DAY = Argument("replace", True), Argument("batch", "2026-11-14")
_TWICE: dict[str, tuple[str, Text]] = {
    "key": (
        "the batch {name!r} is already in the state {state!r}: adding it again would count its rows twice.",
        ["Give only what is new, or pass ", _REPLACE, " to put this log in its place."],
    ),
    "content": (
        "the file {name!r} is already in the state {state!r}{others}: adding it again would count its rows twice.",
        ["Give only what is new; if these are other rows, give them a key of their own with ", Argument("batch"), "."],
    ),
    "path": (
        "the file {name!r} is in the state {state!r} with other content{others}: rows that it had then and still has would count twice.",
        ["If all its rows are new, give them a key with ", _DAY, "; if the old ones are among them, pass ", _REPLACE,
         " to put it in the place of what it had added."],
    ),
    "folder": (
        "the file {name!r} is in the state {state!r}{others}, but no longer in its folder: if the folder was compacted, its rows would "
        "count twice.",
        ["If all rows in it are new, give them a key with ", _DAY, "; if the old ones are among them, pass ", _REPLACE,
         " to put the folder in the place of what it had added."],
    ),
}  # fmt: skip


def _overlaps(job: Addition, known: State) -> dict[int, list[tuple[str, str]]]:
    """The places of the batches that seem to share rows with the new one, and what suggests so: kinds of `_TWICE`, with names."""
    new, found = job.batch, {}
    names, inside = {content: file for file, content in new.files.items()}, _inside(job)
    for k, batch in enumerate(known.batches):
        said = []
        if new.key is not None and new.key == batch.key:
            said.append(("key", new.key))
        elif new.key is None or (job.replaces and batch.key is None):  # a key is its owner's word for other rows
            for file, content in batch.files.items():
                if content in names:
                    said.append(("content", names[content]))
                elif file in new.files:
                    said.append(("path", file))
                elif inside is not None and inside.fullmatch(file):
                    said.append(("folder", file))
        if said:
            found[k] = said
    return found


def _inside(job: Addition) -> re.Pattern[str] | None:
    """What the path of a file looks like, gone or not, if it is in the log's folders or matches its globs."""
    patterns = []
    given = [job.log] if isinstance(job.log, str | PathLike) else job.log
    for place in (Path(one).resolve() for one in given) if job.seen else ():
        if place.is_dir():
            patterns.append(re.escape(f"{place}{os.sep}") + ".*")
        elif not place.exists():
            patterns.append(translate(str(place)))
    return re.compile("|".join(patterns), re.DOTALL) if patterns else None


def _check_replaceable(job: Addition, known: State, k: int) -> None:
    """Check that a batch can be replaced: as a whole, by a call that says which one, and while it is still kept apart."""
    new, batch, state, inside = job.batch, known.batches[k], str(job.place), _inside(job)
    if batch.key is not None and batch.key != new.key:
        raise MomentsError(
            f"the state {state!r} has files of this log as {batch}.",
            do=["Say which batch to replace, with ", Argument("batch", batch.key), " and ", _REPLACE, "."],
        )
    contents = set(new.files.values())
    for file, content in batch.files.items() if batch.key is None else ():
        if not (file in new.files or content in contents or (inside is not None and inside.fullmatch(file))):
            raise MomentsError(
                f"the state {state!r} has {file!r} in one sum with files of this log, and a sum cannot be taken apart: pass all files that "
                "were added together, or make a new state from the logs."
            )
    if k < known.first_apart:
        raise MomentsError(
            f"{batch} cannot be replaced any more: the state {state!r} keeps only its last {len(known.recent)} batches apart. Make a new "
            "state from the logs."
        )


def _check_no_copy(job: Addition, known: State, outdated: set[int], today: Rewards) -> None:
    """Files that were compressed, converted or written with other line ends have other bytes and the same moments."""
    for k, moments in enumerate(known.recent, known.first_apart):
        if k not in outdated and all(map(_is_copy, moments, today)):
            raise MomentsError(
                f"{job.batch} has the same numbers as {known.batches[k]} in the state {str(job.place)!r}: it looks like a copy "
                "(compressed, converted, or with other line ends), whose rows would count twice.",
                do=["If these are other rows after all, give them a key with ", Argument("batch"), "."],
            )


def _is_copy(first: LogMoments, second: LogMoments) -> bool:
    """Whether two logs have the same rows as far as their moments can tell, whatever their files look like."""
    if first.segments != second.segments or first.moments.keys() != second.moments.keys():
        return False
    ends = ((first.reward_min, second.reward_min), (first.reward_max, second.reward_max))
    if not all(np.array_equal(a, b, equal_nan=True) for a, b in ends):
        return False
    return all(_is_equal(one, second.moments[key]) for key, one in first.moments.items())


def _is_equal(first: Moments, second: Moments) -> bool:
    if first.columns != second.columns or not np.array_equal(first.n, second.n):
        return False
    moved = second.recenter(first.center)
    pairs = ((first.mean, moved.mean), (first.scatter, moved.scatter))
    return all(np.allclose(a, b, rtol=1e-9, atol=1e-9 * float(np.abs(a).max(initial=0.0))) for a, b in pairs)
