"""How the command line writes the arguments that errors, findings and verdicts mention: as options of the running command."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from counterpoise.errors import CounterpoiseError, Sentence, as_python

# names that differ between Python and the command line
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


def as_option(name: str, value: str = "") -> str:
    """An argument as it is typed, of its name and the text of its value.

    >>> as_option("reward", "'clicked'"), as_option("drop_bad_rows", "True"), as_option("segment", "[]")
    ('--reward clicked', '--drop-bad-rows', 'no --segment')
    >>> as_option("where", repr("day > '2026'")), as_option("reward_bounds", "(0, 1)")
    ('--where "day > \\'2026\\'"', '--reward-bounds 0 1')
    >>> as_option("table", "['shop', 'logs']"), as_option("target", "Chosen(column='item')"), as_option("target", "Always(action='tea')")
    ('--table shop.logs', '--target-action item', '--always tea')
    >>> as_option("weight", "Clip(10)"), as_option("weight", "PerDecision()")
    ('--weight clip:10', '--weight per_decision')
    """
    if chosen := re.fullmatch(r"Chosen\(column=(.*)\)", value):
        return as_option("target_action", chosen[1])
    if name == "propensity" and value == "'model'" and (model := _option("propensity_model")) is not None:
        return f"{model} logistic"
    if always := re.fullmatch(r"Always\(action=(.*)\)", value):
        rival = f" {as_option(name, always[1])}" if name == "against" else ""  # which names one of the targets
        return as_option("always", always[1]) + rival
    if name == "weight" and (made := re.fullmatch(r"(\w+)\((.*)\)", value)):
        plain = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", made[1]).lower()
        return as_option(name, f"'{plain}:{made[2]}'" if made[2] else f"'{plain}'")
    option, parsed = _option(name), _parsed(value)
    if parsed is False and (refusal := _option(f"no_{name}")) is not None:
        return refusal
    if option is None:
        return as_python(name, value)
    if not value or parsed is True:
        return option
    if parsed is None and name in _NONE:
        return f"{option} {_NONE[name]}"
    if parsed is None or parsed is False or parsed in ([], (), {}):
        return f"no {option}"
    return " ".join(f"{option} {word}" for word in _words(name, parsed))


def _parsed(value: str) -> object:
    """What a text is the repr of, or the text itself, which the reader fills in; … stands for any text."""
    for text in (value, value.replace(": …", ": '…'")):
        with suppress(SyntaxError, TypeError, ValueError):
            return ast.literal_eval(text)
    return value


def _option(name: str) -> str | None:
    """The option of that name, if the command has it."""
    known = _known.get()
    for option in (name, _RENAMED.get(name, name)):
        if (known is None and not option.startswith("no_")) or (known is not None and option in known):
            return f"--{option.replace('_', '-')}"
    return None


def has_option(name: str) -> bool:
    """Whether the command that runs has an option of that name."""
    return name in (_known.get() or ())


def _words(name: str, value: object) -> list[str]:
    """What follows the option, each time that it is written."""
    if isinstance(value, list | tuple) and name == "table":
        return [".".join(map(quoted, value))]
    if isinstance(value, tuple):
        return [" ".join(map(quoted, value))]
    if isinstance(value, dict):
        return [quoted(f"{key}={item}") for key, item in value.items()]
    return [quoted(item) for item in value] if isinstance(value, list) else [quoted(value)]


def quoted(value: object) -> str:
    """A word as a shell needs it, in double quotes where it has single ones in it."""
    text = str(value)
    if "'" in text and not set(text) & set('"$`\\!'):
        return f'"{text}"'
    return shlex.quote(text) if text.isascii() or " " in text else text
