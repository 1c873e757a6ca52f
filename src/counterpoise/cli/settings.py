"""`counterpoise.toml`: what the commands of a team have in common, written by `counterpoise init` and read by every command.

What the file says is put among what was typed before anything is read, so that it means the same, is checked the same and is refused in
the same words. It holds no passwords and nothing that runs, reads or overwrites more than was typed.
"""

from __future__ import annotations

import difflib
import json
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from functools import partial, wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

import counterpoise as cp
from counterpoise.cli.options import FIRST, PANELS, PYTHON_ONLY, SHARED, Typed, takes
from counterpoise.cli.running import check_free, ends_at_once, writing
from counterpoise.cli.wording import written
from counterpoise.errors import CounterpoiseError, OptionError, masked, renaming
from counterpoise.log.addresses import forgetting_password, looks_like_address, without_password
from counterpoise.log.parts import OTHER_WORDS, PARTS, ids_among, new_name

if TYPE_CHECKING:
    from counterpoise.evaluation.doctor import Examination

Click = Any  # its contexts, groups and options, which newer versions of Typer bring along under names of their own
NAME = "counterpoise.toml"
PATHS = ("log", "items", "trained_on", "state", "html", "out", "target")  # relative to the file's own folder
WRITTEN = ("state", "html", "out")
TYPED_ONLY = ("external_access", "import", "imports", "force", "overwrite", "replace", "config")
SECRET = re.compile(r"passw|pwd|secret|token|credential|api_?key", re.IGNORECASE)
# what is typed leaves out what the file says about the same thing in another way
RIVALS = {
    "cluster": ("no_cluster",),
    "minimize": ("no_minimize",),
    "no_minimize": ("minimize",),
    "no_cluster": ("cluster",),
    "target": ("target_action", "always"),
    "target_action": ("target", "always"),
    "always": ("target", "target_action"),
    "log": ("table", "query"),
    "table": ("query",),
    "query": ("table",),
}
CONFIG = typer.Option(
    metavar="FILE",
    help=f"Read options from this file instead of {NAME} in the folder you are in; what you type wins.",
    rich_help_panel=PANELS["help"],
)
_TYPE = re.compile(r" <[^>]*>$")  # of Python's, which newer versions of Typer add to a name
_added: ContextVar[tuple[str, ...]] = ContextVar("_added", default=())
_names: ContextVar[frozenset[str]] = ContextVar("_names", default=frozenset())


def reads_settings(command: Callable[..., None]) -> Callable[..., None]:
    """A command with `--config`, which `Command` reads before the command sees anything."""

    @wraps(command)
    def run(config: Path | None = None, **values: object) -> None:
        command(**values)

    plain = signature(command, eval_str=True)
    option = Parameter("config", Parameter.KEYWORD_ONLY, annotation=Annotated[Path | None, CONFIG], default=None)
    run.__dict__["__signature__"] = plain.replace(parameters=[*plain.parameters.values(), option])
    return run


def from_file() -> frozenset[str]:
    """The options of the running command that the file gave and nobody typed."""
    return _names.get()


def check_title(html: Path | None, title: str | None) -> None:
    """Refuse a title without a report; the one in the file is for whoever writes one."""
    if html is None and title is not None and "title" not in from_file():
        raise OptionError("`title=` is the title of a report.", do="Write one with `html=report.html`.")


def command_line() -> str:
    """The command that runs, for others to run it again: as it was typed, with what the file added, and without passwords."""
    return shlex.join(["counterpoise", *map(without_password, [*sys.argv[1:], *_added.get()])])


class Command(TyperCommand):
    """A command that lists its options in groups, and finds what was not typed in the file of settings."""

    def get_params(self, ctx: Click) -> list[Click]:
        """The options, with one for help."""
        return leave_text(super().get_params(ctx))

    def format_options(self, ctx: Click, formatter: Click) -> None:
        """Write the options under their headings."""
        panels = self.panels(ctx)
        width = min(30, max(len(option) for panel in panels.values() for option, _ in panel))
        for title, ((first, said), *others) in panels.items():
            with formatter.section(title):  # padded, so that all sections line up
                formatter.write_dl([(first.ljust(width), said), *others])

    def panels(self, ctx: Click) -> dict[str, list[tuple[str, str]]]:
        """The options by their headings, each as it is typed and what it says; required ones first, then those that matter most."""
        panels: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Arguments", *PANELS.values())}
        ranks = {name: rank for rank, name in enumerate(FIRST)}
        params = self.get_params(ctx)
        for param in sorted(params, key=lambda param: -1 if param.required else ranks.get(param.name, len(FIRST))):
            record = param.get_help_record(ctx)
            if record is not None:
                panels[heading_of(param)].append((_TYPE.sub("", record[0]), record[1]))
        return {title: panel for title, panel in panels.items() if panel}

    def collect_usage_pieces(self, ctx: Click) -> list[str]:
        """The words of the usage line: LOG..., where newer versions of Typer write {LOG}...."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def parse_args(self, ctx: Click, args: list[str]) -> list[str]:
        """What was typed, and what the file says besides."""
        _added.set(())
        _names.set(frozenset())
        params = {param.name: param for param in self.params}
        if "config" not in params or ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        args = list(_in_new_words(args, params))
        opts, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        typed = {name for name, value in opts.items() if _is_typed(value)}
        if "help" in typed:
            return super().parse_args(ctx, args)
        try:
            options, places = _words(ctx, params, typed, opts.get("config") if "config" in typed else None)
        except CounterpoiseError as error:
            print(f"{type(error).__name__}: {written(error)}", file=sys.stderr)
            raise typer.Exit(2) from None
        # places last and behind --, where every word is a value; a -- that was typed ends the options already
        ends = ["--"] if places and args[-1:] != ["--"] else []
        _added.set((*options, *ends, *places))
        return super().parse_args(ctx, [*options, *args, *ends, *places])


def leave_text(params: list[Click]) -> list[Click]:
    """The same options, which look at values as `_processed` does."""
    for param in params:
        if "process_value" not in vars(param):
            param.process_value = partial(_processed, param, param.process_value)
    return params


def _processed(param: Click, process: Callable[[Click, Any], Any], ctx: Click, value: Any) -> Any:
    """What an option's text stands for, as Typer has it.

    Text, defaults and what nobody typed stay what they are: newer versions of Typer would import Pydantic to look at them.
    """
    kind = getattr(getattr(param, "type_descriptor", None), "annotation", None)  # of those versions alone
    if kind is None or (param.required and not value):
        return process(ctx, value)
    is_several = param.multiple or param.nargs == -1
    if value is None:
        untyped = () if is_several else None
        return untyped if param.callback is None else param.callback(ctx, param, untyped)
    if param.callback is not None:
        return process(ctx, value)
    if kind in (int, float) and isinstance(value, int | float):
        return kind(value)
    if kind is str and isinstance(value, str):
        return value
    if kind == list[str] and is_several and isinstance(value, list | tuple):
        return list(value)
    return process(ctx, value)


def _in_new_words(args: list[str], params: Collection[str]) -> Iterator[str]:
    """What was typed, with an option that has a new name under that name; behind -- there are no options."""
    ends = args.index("--") if "--" in args else len(args)
    for place, word in enumerate(args):
        option, is_set, value = word.partition("=")
        new = new_name(option.removeprefix("--").replace("-", "_"), params) if option.startswith("--") else None
        if new is None or place >= ends:
            yield word
            continue
        renamed = f"--{new.replace('_', '-')}"
        print(f"Warning: {renaming(option, renamed)}", file=sys.stderr)
        yield f"{renamed}{is_set}{value}"


def heading_of(param: Click) -> str:
    """The heading under which an option is listed: its own, or that of the option of this name; a command's own are about its output."""
    if param.param_type_name == "argument":
        return "Arguments"
    if param.name == "help":
        return PANELS["help"]
    shared = SHARED[param.name].rich_help_panel if param.name in SHARED else None
    return str(param.rich_help_panel or shared or PANELS["output"])


def _is_typed(value: object) -> bool:
    """Whether the parser found a value; a place that was not named is empty, or None, depending on Typer's version."""
    return isinstance(value, str | bool | int | list | tuple) and value != () and value != []


# -- Reading -----------------------------------------------------------------------------------------------------------


def _words(ctx: Click, params: Mapping[str, Click], typed: set[str], named: str | None) -> tuple[list[str], list[str]]:
    """What the file adds to a command: options with their values, and places of a log."""
    path = Path(NAME) if named is None else Path(named)
    if named is None and not path.is_file():
        return [], []
    root = ctx.find_root().command
    command = ctx.command_path.removeprefix(ctx.find_root().command_path).strip()
    common, own = _settings(path, root, command)
    left_out = typed | {rival for name in typed for rival in RIVALS.get(name, ())}
    options: list[str] = []
    places: list[str] = []
    used = []
    for name, value in (common | own).items():
        if name in left_out or name not in params:
            continue
        words = _texts(path, name, value, params[name], is_own=name in own, is_found=named is None)
        if not words:
            continue
        used.append(name)
        if params[name].param_type_name == "argument":
            places += words
        else:
            options += words
    _names.set(frozenset(used))
    if used or named is not None:
        names = ", ".join(used).replace("_", "-") or "none for this command"
        print(f"Settings: {path.resolve()} ({names}).", file=sys.stderr)
    return options, places


def _settings(path: Path, root: Click, command: str) -> tuple[dict[str, object], dict[str, object]]:
    """What the file says to all commands, and what to this one; every key in it is checked, whichever command runs."""
    import tomllib  # only where there is such a file

    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"{str(path)!r} is not TOML: {error}.", do='A line is KEY = "VALUE".') from None
    except OSError as error:
        raise OptionError(f"cannot read the settings {str(path)!r}: {error.strerror or error}.") from None
    tables = {name: value for name, value in document.items() if isinstance(value, dict)}
    options = [name for name in SHARED if name not in PYTHON_ONLY]
    commands = {name: each for name, each in _commands(root) if any(p.name == "config" for p in each.params)}
    for name, table in tables.items():
        if name not in commands:
            raise _unknown(path, name, [*options, *commands], f"[{name}]")
        own_options = [str(param.name) for param in commands[name].params]
        tables[name] = _keys_in_new_words(path, table, own_options)
        _check(path, tables[name], own_options, commands, f" of [{name}]")
    top = _keys_in_new_words(path, {key: value for key, value in document.items() if key not in tables}, options)
    _check(path, top, options, commands, "")
    own = tables.get(command, {})
    common, own = ({name.replace("-", "_"): value for name, value in part.items()} for part in (top, own))
    return common, own


def _keys_in_new_words(path: Path, keys: Mapping[str, object], known: Collection[str]) -> dict[str, object]:
    """Keys of the file, those that have a new name under that name."""
    renamed = {key: new_name(key.replace("-", "_"), known) for key in keys}
    for old, new in renamed.items():
        if new is not None:
            print(f"Warning: in {str(path)!r}, {renaming(repr(old), repr(new))}", file=sys.stderr)
    return {renamed[key] or key: value for key, value in keys.items()}


def _commands(group: Click, before: str = "") -> Iterator[tuple[str, Click]]:
    """Every command by its words, such as `state show`."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def _check(
    path: Path, keys: Mapping[str, object], options: list[str], commands: Mapping[str, Click], where: str
) -> None:
    """Refuse keys that hold passwords or code, and those that no command knows."""
    for key, value in keys.items():
        name = key.replace("-", "_")
        if SECRET.search(name) or any(
            isinstance(text, str) and masked(text) != text
            for text in (value if isinstance(value, list) else [value])
            if name in ("log", "query", "table")
        ):
            raise OptionError(
                f"{str(path)!r} holds a password in {key!r}, and others read this file.",
                do="Leave it out: PostgreSQL reads the variable PGPASSWORD, or ~/.pgpass.",
            )
        if name in TYPED_ONLY:
            option = f"--{name.replace('_', '-')}".replace("--imports", "--import")
            raise OptionError(
                f"{str(path)!r} has {key!r}, which no file may decide.",
                do=f"Leave it out, and type {option} where you mean it.",
            )
        if name not in options:
            owners = [command for command, its in commands.items() if name in (param.name for param in its.params)]
            if owners and not where:
                raise OptionError(
                    f"{key!r} in {str(path)!r} is not for all commands.", do=f"Put it below a line [{owners[0]}]."
                )
            raise _unknown(path, key, options, repr(key) + where)


def _unknown(path: Path, key: str, options: list[str], what: str) -> OptionError:
    name = key.replace("-", "_").lower()
    near = [word for word, others in OTHER_WORDS.items() if word in options and name in others]
    near = near or difflib.get_close_matches(name, options, n=1)
    hint = (
        f"Did you mean {near[0].replace('_', '-')!r}?" if near else "Keys are the options of a command, without dashes."
    )
    return OptionError(f"{what} in {str(path)!r} is not a setting.", suggestion=hint)


def _texts(path: Path, name: str, value: object, param: Click, *, is_own: bool, is_found: bool) -> list[str]:
    """A value of the file as it would be typed, with its option; empty where the command means something else by that name."""
    option = [] if param.param_type_name == "argument" else [param.opts[0]]
    if getattr(param, "is_flag", False):
        if not isinstance(value, bool):
            raise OptionError(f"{name!r} in {str(path)!r} must be true or false, found {value!r}.")
        return option if value else []
    values = value if isinstance(value, list) else [value]
    if not values or any(isinstance(part, bool) or not isinstance(part, str | int | float) for part in values):
        raise OptionError(f"{name!r} in {str(path)!r} must be text, a number or a list of them, found {value!r}.")
    for part in values:
        if str(part).startswith("-") and (isinstance(part, str) or not option):
            raise OptionError(
                f"{name!r} in {str(path)!r} holds {str(part)!r}, which looks like an option, and a file may hold only values.",
                do="Type it where you mean it; begin an expression with a parenthesis, and a path with ./.",
            )
        if "\0" in str(part):
            raise OptionError(f"{name!r} in {str(path)!r} holds {part!r}, and no value contains a null character.")
    texts = [_beside(path, name, str(part)) for part in values]
    if name in WRITTEN and is_found:  # it may write nothing outside of its folder, also by way of a link, but a report
        do = f"Type {' '.join([*option, shlex.quote(texts[0])])}, or name the file: --config {path}."
        folder = path.parent.resolve()
        if not all((folder / text).resolve().is_relative_to(folder) for text in texts):
            what = "is outside of its folder, where a file that is only found may not write."
            raise OptionError(f"{name!r} in {str(path)!r} {what}", do=do)
        if name == "html" and not all(text.lower().endswith((".html", ".htm")) for text in texts):
            what = "must end in .html, so that it replaces nothing but a report."
            raise OptionError(f"{name!r} in {str(path)!r} {what}", do=do)
    expected = SHARED[name].metavar if name in SHARED else None
    if not is_own and option and param.metavar != expected:
        # a column of that name will do for a command that takes columns alone; elsewhere the word means something else
        texts = [text for text in texts if param.metavar == "COLUMN" and text.isidentifier()]
        if len(texts) > 1 and not param.multiple:
            return []
    if param.nargs > 1:
        if len(texts) != param.nargs:
            raise OptionError(f"{name!r} in {str(path)!r} must be a list of {param.nargs}, found {value!r}.")
        return [*option, *texts]
    if len(texts) > 1 and not (param.nargs == -1 or param.multiple):
        raise OptionError(
            f"{name!r} in {str(path)!r} has {len(texts)} values, and this command takes one.",
            do=f"Type the one that you mean: {' '.join([*option, shlex.quote(texts[0])])}.",
        )
    return [word for text in texts for word in [*option, text]]


def _beside(path: Path, name: str, text: str) -> str:
    """A path relative to the folder of the file, if that is another one than this; of targets, those that are files."""
    folder = path.parent
    before, _, last = text.rpartition("=") if name == "target" else ("", "", text)
    is_path = name in PATHS and (name != "target" or last.endswith(".safetensors")) and not looks_like_address(last)
    if not is_path or folder == Path() or Path(last).is_absolute():
        return text
    return f"{before}={folder / last}" if before else str(folder / last)


# -- Writing -----------------------------------------------------------------------------------------------------------


@ends_at_once
@takes(
    "reward",
    "propensity",
    "propensity_model",
    "action",
    "context",
    "cluster",
    "where",
    "target",
    "target_action",
    "always",
    "segment",
    "table",
    "query",
)
def init(
    typed: Typed,
    *,
    log: Annotated[
        list[str] | None,
        typer.Argument(metavar="LOG", help="The log to look at, as for evaluate; without one, all lines are comments."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to write.")] = Path(NAME),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
) -> None:
    """Write counterpoise.toml: which column plays which part, so that nobody has to type it again.

    The doctor looks at the log and guesses what you do not name. Read the file, correct it, and share it: every command that runs in its
    folder reads it, and what you type wins.

    \b
    Examples:
      counterpoise init log.parquet
      counterpoise init shop.duckdb --table logs --target pi_new
    """
    check_free(out, such_as=NAME, force=overwrite, flag="--overwrite")
    values = {name: value for name, value in typed.items() if value not in (None, [])}
    examination = None
    if log:
        own = {name: values[name] for name in ("reward", "propensity", "action", "where", "query") if name in values}
        place = {"table": Typed(table=values["table"]).arguments()["table"]} if "table" in values else {}
        examination = cp.doctor(log[0] if len(log) == 1 else log, **own, **place)
        places = [forgetting_password(text) for text in log]
        parts: dict[str, list[str]] = {}
        for column in examination.columns:
            if column.part is not None:
                parts.setdefault(column.part, []).append(column.name)
        guessed: dict[str, object] = {"log": places if len(places) > 1 else places[0]}
        guessed |= {name: parts[name][0] for name in ("reward", "propensity", "action") if name in parts}
        if "propensity_model" in values:
            guessed.pop("propensity", None)
        # what the names say moves together
        ids = ids_among([column.name for column in examination.columns])
        if units := [name for name, is_sure in ids.items() if is_sure]:
            guessed["cluster"] = units[0]
        if "target" in parts and not {"target_action", "always"} & set(values):
            guessed["target"] = parts["target"]
        values = guessed | values
    text = "\n".join(_lines(values, examination)) + "\n"
    with writing(out) as part:
        part.write_text(text, encoding="utf-8")
    print(f"Wrote {out}: {', '.join(values).replace('_', '-') or 'only comments, to be filled in'}.")
    for finding in examination.findings[:1] if examination is not None else ():
        print(f"The doctor reports: {written(finding.message)}")
    print(f"{'Read it, correct it' if log else 'Fill it in'}, then run: counterpoise evaluate")


# every line of the file: a heading, or a key with an example and what it is
_TEMPLATE: tuple[tuple[str, object, str] | str, ...] = (
    "Where the rows are: files, a folder, a glob, a DuckDB file, or a postgresql:// address without its password.",
    ("log", "log.parquet", ""),
    ("table", "shop.logs", "in a database"),
    ("query", "SELECT * FROM shop.logs", "in a database, instead of a table"),
    ("where", "day >= '2026-01-01'", ""),
    "Which column plays which part.",
    ("reward", "click", ""),
    ("propensity", "p", ""),
    ("propensity_model", "logistic", "instead of propensity: logistic or boosted; needs action and context"),
    ("action", "item", ""),
    ("context", ["country", "age"], ""),
    ("cluster", "user_id", ""),
    "The policies to evaluate.",
    ("target", ["pi_new"], "its probability of the logged action"),
    ("target_action", ["best_item"], "the action that it takes; needs action"),
    ("always", ["home"], "the one action that it takes; needs action"),
    "The answer.",
    ("segment", ["country"], "reported for each of its values, too"),
    ("level", 0.95, ""),
    ("unit", "visit", "what a row is to your readers"),
)


def _lines(values: Mapping[str, object], examination: Examination | None) -> Iterator[str]:
    """The file: what is known as settings, and what is not as comments that show how to say it."""
    yield f"# Settings for counterpoise, written by `counterpoise init`. Every command that runs in this folder reads {NAME};"
    yield "# what you type wins. Keys are the options that `counterpoise evaluate --help` lists, without their dashes. A key that"
    yield "# a command has no use for is passed over. Passwords and code are refused: this file is for sharing."
    said: dict[str, str] = {}  # what the doctor saw in the columns
    if examination is not None:
        if (r := examination.reward) is not None:
            said["reward"] = f"{r.lowest:.6g} to {r.highest:.6g}, on average {r.mean:.6g}"
        if (p := examination.propensity) is not None:
            said["propensity"] = f"{p.lowest:.6g} to {p.highest:.6g}"
        if examination.actions is not None:
            said["action"] = f"{examination.actions:,} distinct"
        said["log"] = f"{examination.rows:,} rows"
    for entry in _TEMPLATE:
        if isinstance(entry, str):
            yield ""
            yield f"# {entry}"
            continue
        name, example, note = entry
        is_known = name in values
        sentence = note or (PARTS[name].sentence if name in PARTS else "")
        comment = said.get(name, "") if is_known else sentence
        if name == "context" and examination is not None:
            taken = {column for value in values.values() for column in (value if isinstance(value, list) else [value])}
            example = [column.name for column in examination.columns if column.name not in taken][:5] or example
        line = f"{name.replace('_', '-')} = {_toml(values.get(name, example))}"
        yield f"{'' if is_known else '# '}{line}{f'  # {comment}' if comment else ''}"
    yield ""
    yield "# Options of a single command go below its name."
    yield "# [evaluate]"
    yield '# html = "report.html"'


def _toml(value: object) -> str:
    """A value as TOML has it.

    >>> _toml(["a", 'say "b"']), _toml(["log.csv"]), _toml(0.95)
    ('["a", "say \\\\"b\\\\""]', '["log.csv"]', '0.95')
    """
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
