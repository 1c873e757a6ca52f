"""This file holds the state of a daily job: yesterday's moments on disk, to which today's are added once."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from counterpoise.errors import MomentsError, OptionError
from counterpoise.log_moments import LogMoments
from counterpoise.sources.request import Request
from counterpoise.whole_files import whole_file

FORMAT = 1
_PIECE, _PIECES = 2**20, 64  # bytes and number of the pieces of a file, its ends among them, that tell it from others

Keys = Mapping[str, str]  # key of a batch → what to call it


@dataclass(frozen=True)
class State:
    """What was asked, which batches were added, and their moments together."""

    question: dict[str, Any]
    batches: tuple[str, ...]
    moments: LogMoments


def check_new(path: str | PathLike[str], request: Request, keys: Keys) -> None:
    """Refuse, before the log is read, a batch that was added already or a state that answers another question."""
    if not isinstance(path, str | PathLike):
        raise OptionError(f"state must be the path of a file, found {type(path).__name__}.")
    if not Path(path).resolve().parent.is_dir():
        raise MomentsError(f"cannot write the state {str(path)!r}: there is no folder {str(Path(path).parent)!r}.")
    known = load(path)
    if known is not None:
        _check(Path(path), known, request, keys)


def add(path: str | PathLike[str], request: Request, keys: Keys, today: LogMoments) -> LogMoments:
    """The stored moments with today's; stored before they are returned, all or nothing."""
    place = Path(path).resolve()  # a link stays a link
    with _alone(place.parent):
        known = load(path)  # once more: another job may have added to it while the log was read
        if known is None:
            state = State(_question(request), tuple(keys), today)
        else:
            _check(Path(path), known, request, keys)
            state = State(known.question, (*known.batches, *keys), known.moments + today)
        _store(place, state)
    return state.moments


def load(path: str | PathLike[str]) -> State | None:
    """The state in a file; None if there is no file yet."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise MomentsError(f"cannot read the state {str(path)!r}: {error}.") from error
    try:
        raw = json.loads(text)
        if raw["format"] != FORMAT:
            raise MomentsError(f"the state {str(path)!r} is of format {raw['format']!r}; this version reads {FORMAT}.")
        return State(raw["question"], tuple(raw["batches"]), LogMoments.from_json(json.dumps(raw["moments"])))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MomentsError(
            f"{str(path)!r} is not a state that counterpoise wrote: {error}. Name another file, or restore it from a backup."
        ) from error


def batch_keys(log: object, batch: str | None) -> Keys:
    """The batch's own key, or one of each of its files, so that a folder that grows is not counted twice."""
    if batch is not None:
        if not isinstance(batch, str) or not batch:
            raise OptionError(f"batch must be a text such as '2026-11-14', found {batch!r}.")
        return {batch: f"the batch {batch!r}"}
    from counterpoise.sources import files, sql

    if not files.is_paths(log) or sql.is_database(log):
        raise OptionError(
            "state= needs batch=, a key of this part of the log such as '2026-11-14', to refuse it a second time."
        )
    keys: dict[str, str] = {}
    for path in files.files_of(log):  # type: ignore[arg-type]
        key = f"file {_fingerprint(path)}"
        if key in keys:
            raise MomentsError(
                f"{keys[key]} and the file {str(path)!r} are the same: their rows would count twice. Leave one out, or give all of "
                "them a key with batch=."
            )
        keys[key] = f"the file {str(path)!r}"
    return keys


def _fingerprint(path: Path) -> str:
    """By content, so that a copy or a new name of the same file is still the same batch; of long files, parts of it."""
    size = path.stat().st_size
    digest = hashlib.sha256(f"{size} ".encode())
    with path.open("rb") as file:
        for k in range(min(_PIECES, -(-size // _PIECE))):
            file.seek(k * _PIECE if size <= _PIECES * _PIECE else (size - _PIECE) * k // (_PIECES - 1))
            digest.update(file.read(_PIECE))
    return digest.hexdigest()[:32]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Meanwhile no other job adds to a state in this folder, so that none loses what another added.

    The folder itself is locked, which leaves no file behind and ends with the process. Windows and some network disks cannot.
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


def _store(path: Path, state: State) -> None:
    text = json.dumps(
        {
            "format": FORMAT,
            "question": state.question,
            "batches": list(state.batches),
            "moments": json.loads(state.moments.to_json()),
        }
    )
    try:
        with whole_file(path) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise MomentsError(
            f"cannot write the state {str(path)!r}: {error}. The old one, if any, is untouched."
        ) from error


def _check(path: Path, known: State, request: Request, keys: Keys) -> None:
    again = [keys[key] for key in known.batches if key in keys]
    if again:
        others = f", as are {len(again) - 1:,} others" if len(again) > 1 else ""
        raise MomentsError(
            f"{again[0]} is in the state {str(path)!r} already{others}: adding it again would count its rows twice. Give only what is "
            "new; if it is another batch, give it its own key with batch=."
        )
    asked = _question(request)
    for part, mine in asked.items():
        if known.question.get(part) != mine:
            raise MomentsError(
                f"the state {str(path)!r} was made with {part}={known.question.get(part)!r}, this call has {mine!r}: their moments "
                "do not add. Ask the same question, or name another state."
            )


def _question(request: Request) -> dict[str, Any]:
    """What must be the same every day, as JSON keeps it."""
    asked = {
        "reward": request.reward,
        "propensity": request.propensity,
        "target": list(request.targets),
        "target columns": dict(request.target_columns),
        "contrasts": [list(contrast) for contrast in request.contrasts],
        "segment": list(request.segment),
        "cluster": request.cluster,
        "groups": request.groups,
        "key": list(request.key),
        "model_reward": request.model_reward,
        "model_value": dict(request.model_value),
        "control": dict(request.control),
        "where": request.where,
        "action": request.action,
        "context": list(request.context),
        "drop_bad_rows": request.drop_bad_rows,
    }
    return dict(json.loads(json.dumps(asked)))
