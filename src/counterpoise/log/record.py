"""`record`: log a decision at the moment it is made, so that it can be evaluated later; plain Python, for servers."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from os import PathLike
from uuid import uuid4

from counterpoise.errors import LogError, OptionError

Action = str | int
ROUNDED = 1e-4  # so far may a sum of probabilities be from 1, and a propensity from its own: 32-bit numbers are
OWN = ("id", "time", "policy", "action", "propensity", "candidates", "probabilities")
FIRST = b'{"id": '  # how every line of ours begins
BLOCK = 65_536
PLAIN = getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)  # bytes as they are, and never through a link
LOCKS = import_module("fcntl") if find_spec("fcntl") else None  # which Windows lacks


def record(
    path: str | PathLike[str],
    *,
    action: Action,
    policy: str,
    probabilities: Mapping[Action, float] | None = None,
    propensity: float | None = None,
    context: Mapping[str, object] | None = None,
    id: str | None = None,
    time: datetime | None = None,
    **fields: object,
) -> str:
    """Append one decision to a file of JSON lines, and return its id, by which its reward is joined later.

    The line is checked by `check_decision` first, written as a whole and handed to the system at once; several threads and processes may
    write to one file. ``cp.evaluate`` reads the file as it is. `counterpoise/schema/record.schema.json` describes a line.

    Parameters
    ----------
    path
        The file, made if it is not there.
    action
        What was shown, after whatever rules, filters or caches may have changed the policy's choice.
    policy
        Which policy made the choice, and which version of it.
    probabilities
        Every candidate there was, and with what probability it could have been the action; they add up to 1.
    propensity
        The probability of the action, as the sampler has it. With `probabilities`, it can be left out: it is theirs of the action. Without
        them (there may be very many candidates), it has to be there, and nothing can be checked but its range.
    context
        What the policy looked at, by name, with the values that it saw. Each becomes a column of the log.
    id
        What the reward will be joined by, such as a request's id; by default, a new one.
    time
        When it was decided, with its zone; by default, now.
    fields
        Further columns: the user's id, the reward if it is known already, …

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = Path(folder, "log.jsonl")
    ...     id = record(log, action="red", policy="colors-3", probabilities={"red": 0.8, "green": 0.2}, context={"age": 31})
    ...     decision = json.loads(log.read_text())
    >>> decision["id"] == id, decision["propensity"], decision["candidates"], decision["age"]
    (True, 0.8, ['red', 'green'], 31)
    """
    action = _action(action)
    shares = None if probabilities is None else _shares(probabilities)
    served = check_decision(action, shares, propensity)
    decision: dict[str, object] = {
        "id": _text("id", uuid4().hex if id is None else id),
        "time": _moment(datetime.now(UTC) if time is None else time),
        "policy": _text("policy", policy),
        "action": action,
        "propensity": served,
    }
    if shares is not None:
        decision |= {"candidates": list(shares), "probabilities": list(shares.values())}
    for name, value in [*(context or {}).items(), *fields.items()]:
        if name in decision or name in OWN:
            raise OptionError(f"{name!r} is a field of every record, or was passed twice.", do="Give it another name.")
        decision[name] = _plain(name, value)
    _append(path, json.dumps(decision, ensure_ascii=False, allow_nan=False).encode() + b"\n")
    return str(decision["id"])


def check_decision(
    action: Action, probabilities: Mapping[Action, float] | None = None, propensity: float | None = None
) -> float:
    """Check one decision as a server is about to log it, and return the probability of the action: an assertion for deployment.

    Every probability is a finite number in [0, 1], together they add up to 1 up to rounding, the action is one of the candidates, it has a
    probability above 0, and the `propensity` to be logged, if there is one, is that probability and no other.

    Examples
    --------
    >>> check_decision("red", {"red": 0.8, "green": 0.2})
    0.8
    >>> check_decision("green", {"red": 0.8, "green": 0.2}, propensity=0.8)
    Traceback (most recent call last):
    counterpoise.errors.LogError: the propensity is 0.8, and the probability of the action 'green' is 0.2. Log the probability of the action
    that was shown, not that of the best one.
    """
    if probabilities is None:
        if propensity is None:
            raise OptionError(
                "a decision needs the probability of its action.", do="Pass `probabilities=`, or `propensity=` alone."
            )
        return _nonzero(action, _share("the propensity", propensity))
    shares = _shares(probabilities)
    if action not in shares:
        candidates = ", ".join(map(repr, list(shares)[:5])) + (", …" if len(shares) > 5 else "")
        raise LogError(
            f"the action {action!r} is not among the {len(shares):,} candidates ({candidates}).",
            do="If a rule or a filter changed the choice, pass the candidates and probabilities of the whole chain.",
        )
    total = math.fsum(shares.values())
    if abs(total - 1.0) > ROUNDED:
        raise LogError(
            f"the probabilities of the {len(shares):,} candidates add up to {total:.6g}, not to 1.",
            do="Pass those of all candidates, after every filter, with all their digits.",
        )
    served = _nonzero(action, shares[action])
    if propensity is not None:
        logged = _share("the propensity", propensity)
        if not math.isclose(logged, served, rel_tol=ROUNDED):
            raise LogError(
                f"the propensity is {logged:.6g}, and the probability of the action {action!r} is {served:.6g}.",
                do="Log the probability of the action that was shown, not that of the best one.",
            )
    return served


def _shares(probabilities: object) -> dict[Action, float]:
    """The candidates and their probabilities, each checked by itself."""
    if not isinstance(probabilities, Mapping) or not probabilities:
        raise OptionError(
            "`probabilities=` maps every candidate to its probability, such as {'red': 0.8, 'green': 0.2}."
        )
    return {_action(name): _share(f"the probability of {name!r}", p) for name, p in probabilities.items()}


def _share(what: str, value: object) -> float:
    """A probability, or an error that says which one it is not."""
    number = value.item() if hasattr(value, "item") else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0.0 <= number <= 1.0:
        raise LogError(
            f"{what} is {number!r}, not a number from 0 to 1.", do="Log probabilities, not scores or percentages."
        )
    return float(number)


def _nonzero(action: Action, share: float) -> float:
    if share == 0.0:
        raise LogError(
            f"the action {action!r} was shown, and its probability is 0.",
            do="Log the probability with which the whole chain shows it, rules and fallbacks included.",
        )
    return share


def _action(value: object) -> Action:
    """An action as JSON has it."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise OptionError(f"an action must be text or a whole number; found {value!r}.")
    return value


def _plain(name: str, value: object) -> object:
    """A column's value as JSON has it: text, numbers, booleans, null for NaN, and lists of them; NumPy's are taken, too."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(name, entry) for entry in value]
    if isinstance(value, datetime):
        return _moment(value)
    if isinstance(value, float) and math.isnan(value):
        return None
    if not (value is None or isinstance(value, str | int | float)) or value in (math.inf, -math.inf):
        raise OptionError(
            f"{name!r} must be text, a finite number, a boolean, None, or a list of them; found {value!r}."
        )
    return value


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise OptionError(f"`{name}=` must be a text; found {value!r}.")
    return value


def _moment(time: object) -> str:
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise OptionError(f"a time must be a datetime with its zone, such as datetime.now(UTC); found {time!r}.")
    return time.astimezone(UTC).isoformat(timespec="microseconds")


# -- One line more, or none --------------------------------------------------------------------------------------------


def _append(path: str | PathLike[str], line: bytes) -> None:
    """Add a whole line to a file, or nothing: what could be written only in part (a full disk) is taken back."""
    try:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | PLAIN, 0o644)
        try:
            if LOCKS is not None:  # nobody else who records can write to it meanwhile
                LOCKS.flock(file, LOCKS.LOCK_EX)
            size = _whole_lines(file, path)
            try:
                written = os.write(file, line)
                while written < len(line):
                    written += os.write(file, line[written:])
            except BaseException:
                os.ftruncate(file, size)
                raise
        finally:
            os.close(file)
    except OSError as error:
        reason = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise LogError(f"cannot write to {os.fspath(path)!r}: {reason}.", do="Name another file.") from error


def _whole_lines(file: int, path: str | PathLike[str]) -> int:
    """How long the file is, without the part of a line that a process left behind when it was killed while writing it."""
    size = end = os.fstat(file).st_size
    tail = b""
    while end and b"\n" not in tail:
        start = max(end - (BLOCK if tail else 1), 0)
        os.lseek(file, start, os.SEEK_SET)
        tail, end = os.read(file, end - start) + tail, start
    half = tail[tail.rfind(b"\n") + 1 :]
    if not half:
        return size
    if not half.startswith(FIRST[: len(half)]):
        raise LogError(
            f"{os.fspath(path)!r} does not end with a line that `record` wrote, so nothing is added to it.",
            do="Name another file, or end its last line.",
        )
    os.ftruncate(file, size - len(half))
    return size - len(half)
