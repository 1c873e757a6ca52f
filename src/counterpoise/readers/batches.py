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

from counterpoise.errors import MomentsError, OptionError
from counterpoise.log.question import Question
from counterpoise.moments import Moments
from counterpoise.moments import state as states
from counterpoise.moments.log_moments import LogMoments
from counterpoise.moments.state import Batch, State
from counterpoise.readers.kept_questions import check_same, question_kept
from counterpoise.readers.seen_files import Seen, check_unchanged, files_seen


@dataclass(frozen=True)
class Addition:
    """A batch on its way into a state: what is known of it before its log is read."""

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
    """Refuse, before the log is read, a batch that was added already or a state that answers another question."""
    if not isinstance(path, str | PathLike):
        raise OptionError(f"state must be the path of a file, found {type(path).__name__}.")
    if batch is not None and (not isinstance(batch, str) or not batch):
        raise OptionError(f"batch must be a text such as '2026-11-14', found {batch!r}.")
    if not isinstance(replaces, bool):
        raise OptionError(f"replace must be True or False, found {replaces!r}.")
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


def finish(job: Addition, today: LogMoments) -> LogMoments:
    """The stored moments with today's; stored before they are returned, all or nothing."""
    check_unchanged(job.seen, job.log, job.batch.key)
    new = replace(job.batch, rows=today.n, dropped=today.dropped)
    with states.alone(job.place.resolve().parent):
        known = states.load(job.place)  # once more: another job may have added to it while the log was read
        if known is None:
            state = State(job.question, (new,), None, (today,))
        else:
            check_same(job.place, known, job.question)
            outdated = _outdated(job, known)
            if job.batch.key is None:
                _check_no_copy(job, known, outdated, today)
            state = known.added(new, today, outdated)
        states.store(job.place, state)
    return state.moments


def stored_moments(path: str | PathLike[str]) -> LogMoments:
    """The moments of everything that was added to a state."""
    if not isinstance(path, str | PathLike):
        raise OptionError(f"state must be the path of a file, found {type(path).__name__}.")
    return states.existing(path).moments


def _outdated(job: Addition, known: State) -> set[int]:
    """The places of the batches that the new one replaces; without replace=True there must be none."""
    overlaps = _overlaps(job, known)
    if not job.replaces:
        for kind, said in _TWICE.items():
            files = [file for found in overlaps.values() for why, file in found if why == kind]
            if files:
                others = f", as are {len(files) - 1:,} others" if len(files) > 1 else ""
                raise MomentsError(said.format(name=files[0], state=str(job.place), others=others))
    for k in overlaps:
        _check_replaceable(job, known, k)
    return set(overlaps)


_TWICE = {
    "key": "the batch {name!r} is in the state {state!r} already: adding it again would count its rows twice. Give only what is new, or "
    "pass replace=True to put this log in its place.",
    "content": "the file {name!r} is in the state {state!r} already{others}: adding it again would count its rows twice. Give only what "
    "is new; if these are other rows, give them their own key with batch=.",
    "path": "the file {name!r} is in the state {state!r} with other content{others}: the rows that it had then and still has would count "
    "twice. If all its rows are new, give them a key with batch='2026-11-14'; if the old ones are among them, pass replace=True to put "
    "it in the place of what it had added.",
    "folder": "the file {name!r} is in the state {state!r}{others}, and in its folder no more: if the folder was compacted, its rows would "
    "count twice. If all rows in it are new, give them a key with batch='2026-11-14'; if the old ones are among them, pass replace=True "
    "to put the folder in the place of what it had added.",
}


def _overlaps(job: Addition, known: State) -> dict[int, list[tuple[str, str]]]:
    """The places of the batches some of whose rows the new one seems to have, and what says so: kinds of `_TWICE`, with names."""
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
    """What the path of every file looks like, gone or not, that is in the log's folders or meets its globs."""
    patterns = []
    given = [job.log] if isinstance(job.log, str | PathLike) else job.log
    for place in (Path(one).resolve() for one in given) if job.seen else ():
        if place.is_dir():
            patterns.append(re.escape(f"{place}{os.sep}") + ".*")
        elif not place.exists():
            patterns.append(translate(str(place)))
    return re.compile("|".join(patterns), re.DOTALL) if patterns else None


def _check_replaceable(job: Addition, known: State, k: int) -> None:
    """A batch is replaced as a whole, by whoever says which one, and while it is kept apart."""
    new, batch, state, inside = job.batch, known.batches[k], str(job.place), _inside(job)
    if batch.key is not None and batch.key != new.key:
        raise MomentsError(
            f"the state {state!r} has files of this log as {batch}: say which batch to replace, with batch={batch.key!r} and replace=True."
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


def _check_no_copy(job: Addition, known: State, outdated: set[int], today: LogMoments) -> None:
    """Files that were compressed, converted or written with other line ends have other bytes and the same moments."""
    for k, moments in enumerate(known.recent, known.first_apart):
        if k not in outdated and _is_copy(moments, today):
            raise MomentsError(
                f"{job.batch} has the same numbers as {known.batches[k]} in the state {str(job.place)!r}: it looks like a copy "
                "(compressed, converted, or with other line ends), whose rows would count twice. If these are other rows after all, give "
                "them a key with batch=."
            )


def _is_copy(first: LogMoments, second: LogMoments) -> bool:
    """Whether two logs have the same rows as far as their moments tell, whatever their files look like."""
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
