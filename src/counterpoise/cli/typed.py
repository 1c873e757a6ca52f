"""What was typed, as the library takes it: targets by name, tables by their path, columns guessed where none is named."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from counterpoise.cli.printing import console, say
from counterpoise.errors import Argument, Blank, OptionError
from counterpoise.intervals import strategy
from counterpoise.log.log import MODEL, Log
from counterpoise.log.parts import guess
from counterpoise.log.question import LOGGING
from counterpoise.log.targets import Chosen, name_of
from counterpoise.weights.names import weight_of

# no blank before the equals sign, or "shown = best" would be a name; and "a==b" is a comparison, too
_NAMED = re.compile(r"([\w.-]+)=(?!=)\s*(.+)", re.DOTALL)
_OF_COMMANDS = ("log", "json", "strict", "check_coverage", "coverage_runs", "sensitivity")  # and not of the library
_STEP = r'(?:"((?:[^"]|"")+)"|([^".]+))'  # of a table's path


class Typed(dict[str, Any]):
    """The values of the options that a command shares with others, by the options' names.

    >>> Typed(log=["log.csv"], table="shop.logs", cluster="user", no_cluster=False, context=[]).arguments()
    {'table': ['shop', 'logs'], 'cluster': 'user', 'context': None}
    """

    @property
    def data(self) -> Any:
        """The log's data: one place, or the files that a shell made of a glob."""
        return self["log"][0] if len(self["log"]) == 1 else self["log"]

    @property
    def columns(self) -> list[str]:
        """The names of the log's columns."""
        from counterpoise.engines.registry import columns_of

        place = self["table"] and table_path(self["table"])
        log = Log(self.data, table=place, query=self["query"], external_access=self["external_access"])
        return list(columns_of(log))

    def arguments(self) -> dict[str, Any]:
        """The library's arguments for them; what was not named is None."""
        # what may be repeated and was not typed at all is [], or None, depending on Typer's version
        typed = ((name, value) for name, value in self.items() if name not in _OF_COMMANDS)
        values: dict[str, Any] = {name: None if value == [] else value for name, value in typed}
        values |= {name: read(values[name]) for name, read in _READ.items() if values.get(name) is not None}
        if "no_cluster" in values:
            values["cluster"] = cluster_of(values["cluster"], values.pop("no_cluster"))
        own: dict[str, Any] = {name: values.pop(name) for name in ("tuned_for", "max_weight") if name in values}
        if values.get("interval") is not None:
            own["reward_bounds"] = values.get("reward_bounds")
            values["interval"] = strategy(values["interval"], is_clustered=False, options=own)
        return values

    def question(self, *, against: str | None = None) -> dict[str, Any]:
        """The arguments of a question about targets, with the columns that were not named guessed.

        What was guessed is printed, to standard error where standard output is for machines.
        """
        values = self.arguments()
        names = self.columns
        targets = typed_targets(values["target"], values.pop("target_action"), names)
        if against is not None:
            name, source = rival(against, targets, names)
            values["against"] = {name: source} if name else source
            names = [column for column in names if column != source]
        rewards = [values["reward"]] if isinstance(values["reward"], str) else values["reward"] or [None]
        model, propensity = values.pop("propensity_model", None), values["propensity"]
        logged = MODEL if model is not None and propensity is None else propensity
        parts = guess(names, reward=rewards[0], propensity=logged, target=tuple(targets))
        if parts.guessed:
            say(console(stderr=self["json"]), f"Guessed from the names: {parts}.")
        return values | {
            "reward": rewards if len(rewards) > 1 else parts.reward,
            "propensity": propensity_of(parts.propensity, model),
            "target": targets or {name: name for name in parts.target},
        }


def typed_targets(
    target: Sequence[str] | None, chosen: Sequence[str] | None, columns: Collection[str]
) -> dict[str, Any]:
    """The targets of a command by their names, `--target` before `--target-action`.

    >>> typed_targets(["pi_new", "half=pi_new / 2"], ["greedy=item_new"], ["pi_new", "item_new"])
    {'pi_new': 'pi_new', 'half': 'pi_new / 2', 'greedy': Chosen(column='item_new')}
    """
    targets: dict[str, Any] = {}
    for name, source in _sources(target or (), chosen or (), columns):
        if name in targets:
            another = Argument("target", Blank("NAME=EXPRESSION"))
            raise OptionError(f"two targets are called {name!r}.", do=["Give one of them another name: ", another, "."])
        targets[name] = source
    return targets


def _sources(target: Sequence[str], chosen: Sequence[str], columns: Collection[str]) -> Iterator[tuple[str, Any]]:
    for text in target:
        name, source = named(text, columns)
        yield name or name_of(source), source
    for text in chosen:
        name, column = named(text, columns)
        yield name or column, Chosen(column)


def named(text: str, columns: Collection[str]) -> tuple[str | None, str]:
    """A name, if there is one, and what it stands for; a text that is a column's name is that column, whatever is in it.

    >>> named("new=pi_new", ["pi_new"]), named("a=b", ["a=b"]), named("shown = best", []), named("a>=b", [])
    (('new', 'pi_new'), (None, 'a=b'), (None, 'shown = best'), (None, 'a>=b'))
    """
    match = None if text in columns else _NAMED.fullmatch(text)
    return (match[1], match[2]) if match else (None, text)


def rival(text: str, targets: Collection[str], columns: Sequence[str]) -> tuple[str | None, str]:
    """The policy that targets are compared with: its name, if it has one, and what it stands for."""
    from counterpoise.log.rules import missing

    known = (LOGGING, *targets, *columns)
    if text not in known and text.isidentifier():
        raise missing("against", text, columns)
    return named(text, known)


def table_path(name: str) -> str | list[str]:
    """A table's name as the library takes it: a list where dots separate schemas; double quotes keep a dot in a name.

    >>> table_path("logs"), table_path("shop.logs"), table_path('shop."odd.name"')
    ('logs', ['shop', 'logs'], ['shop', 'odd.name'])
    """
    if not re.fullmatch(rf"{_STEP}(\.{_STEP})*", name):
        raise OptionError(f'{name!r} is no name of a table: write logs, shop.logs, or "odd.name" in double quotes.')
    steps = [quoted.replace('""', '"') if quoted else bare for quoted, bare in re.findall(_STEP, name)]
    return steps[0] if len(steps) == 1 else steps


def cluster_of(column: str | None, no_cluster: bool) -> Any:
    """The clusters as the library takes them: a column, or False where there are none."""
    if column is not None and no_cluster:
        raise OptionError("--cluster says what moves together, and --no-cluster that nothing does: choose one of them.")
    return False if no_cluster else column


def table_of(path: str) -> Any:
    """A file, as a frame."""
    from counterpoise.engines.rows import collect
    from counterpoise.readers import files

    return collect(files.scan(path))


def propensity_of(column: str, model: str | None) -> Any:
    """The propensities as the library takes them: a column, or a model for all rows, or for those without a number in the column."""
    if model is None:
        return column
    from counterpoise.models import Propensity

    return Propensity(model, column=None if column == MODEL else column)


# how the library takes what is typed as text
_READ: dict[str, Callable[[str], Any]] = {
    "table": table_path,
    "items": table_of,
    "weight": weight_of,
    "propensity_of": lambda meaning: meaning.replace("-", "_"),
}
