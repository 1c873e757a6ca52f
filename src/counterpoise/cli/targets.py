"""Targets as they are typed: a column, an SQL expression, a chosen action or a saved policy, with or without a name."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from counterpoise.errors import Argument, Blank, OptionError
from counterpoise.log.targets import Chosen, name_of

# no blank before the equals sign, or "shown = best" would be a name; and "a==b" is a comparison, too
_NAMED = re.compile(r"([\w.-]+)=(?!=)\s*(.+)", re.DOTALL)


def typed_targets(
    target: Sequence[str] | None, chosen: Sequence[str] | None, columns: Collection[str]
) -> dict[str, Any]:
    """The targets of a command by their names, `--target` before `--target-action`.

    >>> typed_targets(["pi_new", "half=pi_new / 2"], ["greedy=item_new"], ["pi_new", "item_new"])
    {'pi_new': 'pi_new', 'half': 'pi_new / 2', 'greedy': Chosen(column='item_new')}
    """
    targets: dict[str, Any] = {}
    for name, source in _typed(target or (), chosen or (), columns):
        if name in targets:
            another = Argument("target", Blank("NAME=EXPRESSION"))
            raise OptionError(f"two targets are called {name!r}.", do=["Give one of them another name: ", another, "."])
        targets[name] = source
    return targets


def named(text: str, columns: Collection[str]) -> tuple[str | None, str]:
    """A name, if there is one, and what it stands for; a text that is a column's name is that column, whatever is in it.

    >>> named("new=pi_new", ["pi_new"]), named("a=b", ["a=b"]), named("shown = best", []), named("a>=b", [])
    (('new', 'pi_new'), (None, 'a=b'), (None, 'shown = best'), (None, 'a>=b'))
    """
    match = None if text in columns else _NAMED.fullmatch(text)
    return (match[1], match[2]) if match else (None, text)


def _typed(target: Sequence[str], chosen: Sequence[str], columns: Collection[str]) -> Iterator[tuple[str, Any]]:
    for text in target:
        name, source = named(text, columns)
        yield name or name_of(source), source
    for text in chosen:
        name, column = named(text, columns)
        yield name or column, Chosen(column)
