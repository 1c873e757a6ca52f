"""How the command line writes the arguments that errors, findings and verdicts speak of: as options of the command that runs."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from counterpoise.errors import Argument, CounterpoiseError, Sentence
from counterpoise.log.targets import Chosen

# what Python calls otherwise than the command line does
_RENAMED = {"n_actions": "actions", "n": "rows"}
_NONE = {"batch_size": "0"}  # where None has a number of its own
_known: ContextVar[frozenset[str] | None] = ContextVar("_known", default=None)


@contextmanager
def options_are(names: Collection[str]) -> Iterator[None]:
    """While a command with these options runs, arguments that it does not have are written as Python's."""
    token = _known.set(frozenset(names))
    try:
        yield
    finally:
        _known.reset(token)


def written(said: str | CounterpoiseError) -> str:
    """What is said to people, in one line and with the options of the command line."""
    text = said.render(as_option) if isinstance(said, Sentence | CounterpoiseError) else said
    first, more, _ = text.partition("\n")  # engines go on about their query plans
    return first.rstrip(".") + "." if more else first


def as_option(argument: Argument) -> str:
    """An argument as it is typed.

    >>> as_option(Argument("reward", "clicked")), as_option(Argument("drop_bad_rows", True)), as_option(Argument("segment", []))
    ('--reward clicked', '--drop-bad-rows', 'no --segment')
    >>> as_option(Argument("where", "day > '2026'")), as_option(Argument("reward_bounds", (0, 1)))
    ('--where "day > \\'2026\\'"', '--reward-bounds 0 1')
    >>> as_option(Argument("table", ["shop", "logs"])), as_option(Argument("target", Chosen("item")))
    ('--table shop.logs', '--target-action item')
    """
    if isinstance(argument.value, Chosen):
        return as_option(Argument("target_action", argument.value.column))
    name = _option(argument.name)
    if argument.value is False and (refusal := _option(f"no_{argument.name}")) is not None:
        return refusal
    if name is None:
        return str(argument)
    if not argument.has_value or argument.value is True:
        return name
    if argument.value is None and argument.name in _NONE:
        return f"{name} {_NONE[argument.name]}"
    if argument.value is None or argument.value is False or argument.value in ([], (), {}):
        return f"no {name}"
    return " ".join(f"{name} {value}" for value in _values(argument))


def _option(name: str) -> str | None:
    """The option of that name, if the command has it."""
    known = _known.get()
    for option in (name, _RENAMED.get(name, name)):
        if (known is None and not option.startswith("no_")) or (known is not None and option in known):
            return f"--{option.replace('_', '-')}"
    return None


def _values(argument: Argument) -> list[str]:
    """The value of every time that the option is written."""
    value = argument.value
    if argument.name == "table" and not isinstance(value, str):
        return [".".join(map(_quoted, value))]
    if isinstance(value, tuple):
        return [" ".join(map(_quoted, value))]
    if isinstance(value, Mapping):
        return [_quoted(f"{name}={item}") for name, item in value.items()]
    return [_quoted(item) for item in value] if isinstance(value, list) else [_quoted(value)]


def _quoted(value: Any) -> str:
    """A word as a shell needs it, in double quotes where it has single ones in it."""
    text = str(value)
    if "'" in text and not set(text) & set('"$`\\!'):
        return f'"{text}"'
    return shlex.quote(text) if text.isascii() or " " in text else text
