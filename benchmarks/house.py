"""The house in figures: files and code by room, who imports whom, loose types, the ways of an evaluation and of a fit.

    python benchmarks/house.py              # every figure, beside the limit that it must not pass
    python benchmarks/house.py --quick      # those that are read off the source, without running anything
    python benchmarks/house.py --check      # the figures that have limits, and exit code 1 if one is passed
    python benchmarks/house.py --source DIR # those of other sources, such as a checkout of an older version

The limits are a ratchet: lower one whenever its figure has fallen, so that what has shrunk stays small. No figure depends on a clock.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import re
import sys
import tempfile
import tokenize
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "src"
PACKAGE = "counterpoise"
ROWS = 600  # of the logs whose ways are followed: few, since following is slow
VAGUE = ("found", "one", "seen", "given", "asked", "told")  # names that do not say what they hold
BLANK = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
# Every module here is one strategy of a registry, one command or one kind of log, which its registry alone imports.
STRATEGIES = ("estimators", "intervals", "weights", "environments", "cli")
# What `make test` holds each figure to.
LIMITS = {
    "files": 190,
    "lines of code": 37_987,
    "modules with one importer": 15,
    "private functions with one caller": 298,
    "files that know of keep=": 5,
    "files that know of rankings": 6,
    "files that know of episodes": 4,
    "files that know of proxy=": 5,
    "files that know of per=": 3,
    "files that know of loggers": 5,
    "own imports inside functions": 27,
    "… that escape a cycle": 0,
    "deepest chain of imports": 20,
    "class names used twice": 0,
    "type names used twice": 1,
    "Any per 1,000 lines": 3.5,
    "casts": 51,
    "type: ignore": 18,
    "vague names": 2,
    "functions with more than 9 parameters": 5,
    "files of evaluate on Parquet, printed": 55,
    "opens of the log by evaluate --html": 1,
    "files of PolicyLearner.fit": 65,
    "files of learn_policy": 68,
}
# What a kind of row calls its own: parts of a log, columns inside a query and columns of moments, in the forms in which code and
# messages name them. A duplicate that polars keeps, the calibration's `observed` and "the logger", the user's code, are of no kind.
KINDS = {
    "keep=": r"\.keep\b|[`'\"]keep[='\"]|\bkeep : |\bKEEP\b|\bINVERSE\b|\bCOUNTS\b|\bcounts_of\b|rows_before|kinds\.sampled",
    "rankings": r"\bslate\b|\bSLATE\b|ListWeight|\bListRows\b|kinds\.lists",
    "episodes": r"episode",
    "proxy=": r"\bproxy\b|\bPROXY\b|log\.observed\b|label_propensity|LABEL_PROPENSITY|kinds\.labeled",
    "per=": r"\.per\b|`per=|\bPER\b|WEIGHTED_PER|\bRIVAL\b|\bDIVISOR\b|kinds\.ratio",
    "loggers": r"(?<!the )logger",
}
AT_HOME = ("log/kinds/", "log/parts.py", "cli/", "report/")  # where a kind may be known
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Figure:
    """A number about the house, and what it is made of."""

    name: str
    value: float
    parts: tuple[str, ...] = ()

    @property
    def limit(self) -> float | None:
        """What it must not pass, if it has a limit."""
        return LIMITS.get(self.name)

    @property
    def is_kept(self) -> bool:
        """Whether it is within its limit."""
        return self.limit is None or self.value <= self.limit

    def __str__(self) -> str:
        limit = "" if self.limit is None else f" (at most {self.limit:,})"
        return f"{self.name}: {self.value:,g}{limit}"


# -- modules ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Import:
    """A module that an import statement names, and where the statement stands."""

    module: str
    is_late: bool = False
    """Inside a function."""
    is_for_types: bool = False
    statement: int = 0


@dataclass(frozen=True)
class Module:
    """One file, parsed."""

    path: Path
    source: Path
    text: str = field(repr=False)

    @cached_property
    def tree(self) -> ast.Module:
        """What the text says."""
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Everything in it."""
        return list(ast.walk(self.tree))

    @property
    def name(self) -> str:
        """Its dotted name."""
        parts = self.path.relative_to(self.source).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def room(self) -> str:
        """The folder that it is in; "." for the package itself."""
        parts = self.path.relative_to(self.source / PACKAGE).parts
        return parts[0] if len(parts) > 1 else "."

    @property
    def is_door(self) -> bool:
        """Whether it is the `__init__.py` of a folder."""
        return self.path.name == "__init__.py"

    @cached_property
    def functions(self) -> list[tuple[str, Function]]:
        """Every function and method, by its dotted name."""
        return list(_functions(self.tree, self.name))

    @cached_property
    def classes(self) -> list[str]:
        """The names of its classes."""
        return [node.name for node in self.nodes if isinstance(node, ast.ClassDef)]

    @cached_property
    def types(self) -> list[str]:
        """The names of its types: classes, and what else at the top of a module is written like one."""
        targets = [target for node in self.tree.body if isinstance(node, ast.Assign) for target in node.targets]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        return [*self.classes, *(name for name in names if re.fullmatch(r"_?[A-Z]\w*[a-z]\w*", name))]

    @cached_property
    def statements(self) -> list[tuple[ast.Import | ast.ImportFrom, bool, bool]]:
        """Import statements, whether they stand in a function, and whether they are for types alone."""
        conditions = [
            node for node in self.nodes if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        ]
        for_types = {inner for node in conditions for inner in ast.walk(node)}
        late = {inner for _, function in self.functions for inner in ast.walk(function)}
        return [
            (node, node in late, node in for_types)
            for node in self.nodes
            if isinstance(node, ast.Import | ast.ImportFrom)
        ]

    def imports(self, modules: dict[str, Module]) -> Iterator[Import]:
        """The modules of ours that it imports; a name that a folder's door hands on counts for the module behind it."""
        for node, is_late, is_for_types in self.statements:
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names if alias.name in modules]
            else:
                names = [_behind(node.module or "", alias.name, modules) for alias in node.names]
            for name in names:
                if name:
                    yield Import(name, is_late, is_for_types, node.lineno)

    @cached_property
    def docstrings(self) -> set[int]:
        """The lines of docstrings, and of texts that stand below a field."""
        bodies = [node.body for node in self.nodes if isinstance(node, ast.Module | ast.ClassDef | Function)]
        texts = [
            line
            for body in bodies
            for line in body
            if isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)
        ]
        return {number for text in texts for number in range(text.lineno, (text.end_lineno or 0) + 1)}

    @cached_property
    def tokens(self) -> list[tokenize.TokenInfo]:
        """Its words."""
        return list(tokenize.generate_tokens(io.StringIO(self.text).readline))

    @cached_property
    def code(self) -> int:
        """Lines of code: without blanks, comments and docstrings."""
        words = [token for token in self.tokens if token.type not in BLANK]
        return len({n for token in words for n in range(token.start[0], token.end[0] + 1)} - self.docstrings)

    @cached_property
    def comments(self) -> list[str]:
        """Comments, on lines of their own or behind code."""
        return [token.string for token in self.tokens if token.type == tokenize.COMMENT]

    @cached_property
    def words(self) -> str:
        """Its names and texts, without comments and docstrings."""
        kinds = (tokenize.NAME, tokenize.OP, tokenize.STRING)
        return "".join(
            f"{token.string}{'' if token.string == '.' else ' '}"
            for token in self.tokens
            if token.type in kinds and token.start[0] not in self.docstrings
        ).replace(" .", ".")

    @cached_property
    def called_once(self) -> list[str]:
        """Private functions of the module that are named in one other place only."""
        names = [node.name for node in self.tree.body if isinstance(node, Function) and node.name.startswith("_")]
        return [name for name in names if len(re.findall(rf"\b{name}\b", self.text)) == 2]

    @cached_property
    def vague_names(self) -> int:
        """How often something is called by a name that does not say what it is."""
        stored = (node for node in self.nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        return sum(node.id in VAGUE for node in stored)

    def uses(self, word: str) -> int:
        """How often typing's `Any` or `cast` is named, imports included; the methods called cast, of frames, are others."""
        named = [node.id if isinstance(node, ast.Name) else getattr(node, "name", None) for node in self.nodes]
        return named.count(word)


def _functions(tree: ast.AST, name: str) -> Iterator[tuple[str, Function]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield f"{name}.{node.name}", node
            yield from _functions(node, f"{name}.{node.name}")
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{name}.{node.name}")
        else:
            yield from _functions(node, name)


def _behind(module: str, name: str, modules: dict[str, Module]) -> str:
    """The module that `from module import name` is about: a module in a folder, or the one that the folder's door has the name from."""
    if f"{module}.{name}" in modules:
        return f"{module}.{name}"
    if module in modules and modules[module].is_door and module != PACKAGE:
        for node, _, _ in modules[module].statements:
            if (
                isinstance(node, ast.ImportFrom)
                and node.module in modules
                and name in {alias.name for alias in node.names}
            ):
                return node.module if node.module != module else ""
    return module if module in modules else ""


def read(source: Path) -> dict[str, Module]:
    """All modules below a folder, by name."""
    paths = sorted(source.rglob(f"{PACKAGE}/**/*.py"))
    modules = [Module(path, source, path.read_text(encoding="utf-8")) for path in paths]
    return {module.name: module for module in modules}


# -- who imports whom -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Imports:
    """Who imports whom."""

    modules: dict[str, Module]

    @cached_property
    def all(self) -> dict[str, list[Import]]:
        """What each module imports of ours."""
        return {name: list(module.imports(self.modules)) for name, module in self.modules.items()}

    @cached_property
    def at_the_top(self) -> dict[str, list[str]]:
        """What each imports when it is imported itself."""
        return {
            name: sorted({each.module for each in imports if not each.is_late and not each.is_for_types} - {name})
            for name, imports in self.all.items()
        }

    def lonely(self) -> list[str]:
        """Modules with exactly one importer; doors of folders do not count as one, since they only hand on, and strategies are left out."""
        importers: dict[str, set[str]] = {name: set() for name in self.modules}
        for name, imports in self.all.items():
            for each in imports:
                if name == PACKAGE or not self.modules[name].is_door:
                    importers[each.module].add(name)
        return [
            f"{_short(name)} ← {_short(*by)}"
            for name, by in importers.items()
            if len(by) == 1 and not self.modules[name].is_door and self.modules[name].room not in STRATEGIES
        ]

    def late(self) -> list[str]:
        """Statements inside functions that import modules of ours."""
        return sorted(
            {
                f"{_short(name)}:{each.statement} → {_short(each.module)}"
                for name, imports in self.all.items()
                for each in imports
                if each.is_late and not each.is_for_types
            }
        )

    def escaping(self) -> list[str]:
        """Those of them that would close a cycle at the top of their module."""
        return sorted(
            {
                f"{_short(name)}:{each.statement} → {_short(each.module)}"
                for name, imports in self.all.items()
                for each in imports
                if each.is_late and not each.is_for_types and self._reaches(each.module, name)
            }
        )

    def _reaches(self, start: str, end: str) -> bool:
        """Whether importing one module imports the other; folders that both are in have been entered before."""
        entered = {end.rsplit(".", k)[0] for k in range(1, end.count(".") + 1)}
        known: set[str] = set()
        todo = [start]
        while todo:
            name = todo.pop()
            if name == end:
                return True
            if name not in known:
                known.add(name)
                folders = [name.rsplit(".", k)[0] for k in range(1, name.count(".") + 1)]
                todo += [each for each in (*self.at_the_top[name], *folders) if each not in entered]
        return False

    def deepest(self) -> list[str]:
        """The longest chain of imports at the top of modules."""
        chains: dict[str, list[str]] = {}

        def chain(name: str, above: tuple[str, ...] = ()) -> list[str]:
            if name not in chains:
                below = [chain(each, (*above, name)) for each in self.at_the_top[name] if each not in (*above, name)]
                chains[name] = [name, *max(below, key=len, default=[])]
            return chains[name]

        return max((chain(name) for name in self.modules), key=len)


def _short(name: str) -> str:
    return name.removeprefix(f"{PACKAGE}.")


# -- figures of the source --------------------------------------------------------------------------------------------------


def parameters(function: Function) -> int:
    """How many a caller can pass by name or place; `self` and `cls` are none, and neither are the parts of a log (`**parts`)."""
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return len([argument for argument in arguments if argument.arg not in ("self", "cls")])


def figures(modules: dict[str, Module]) -> Iterator[Figure]:
    """What can be read off the source."""
    all_modules = list(modules.values())
    lines = sum(module.text.count("\n") for module in all_modules)
    docstrings = sum(len(module.docstrings) for module in all_modules)
    code = sum(module.code for module in all_modules)
    yield Figure("files", len(modules))
    yield Figure("lines of code", code)
    yield Figure("lines of docstrings", docstrings)
    paper = (all_modules[0].source.parent / "paper").glob("*.py")
    yield Figure("lines, with those of paper/", lines + sum(path.read_text().count("\n") for path in paper))
    imports = Imports(modules)
    lonely, late, escaping, chain = imports.lonely(), imports.late(), imports.escaping(), imports.deepest()
    yield Figure("modules with one importer", len(lonely), tuple(lonely))
    once = [f"{_short(module.name)}.{name}" for module in all_modules for name in module.called_once]
    yield Figure("private functions with one caller", len(once), tuple(once))
    for kind, pattern in KINDS.items():
        places = [
            module.path.relative_to(module.source / PACKAGE).as_posix()
            for module in all_modules
            if re.search(pattern, module.words)
        ]
        away = [place for place in places if not place.startswith(AT_HOME)]
        yield Figure(f"files that know of {kind}", len(away), tuple(away))
    yield Figure(
        "imports inside functions", sum(is_late for module in all_modules for _, is_late, _ in module.statements)
    )
    yield Figure("own imports inside functions", len(late), tuple(late))
    yield Figure("… that escape a cycle", len(escaping), tuple(escaping))
    yield Figure("deepest chain of imports", len(chain), (" → ".join(_short(name) for name in chain),))
    classes = Counter(name for module in all_modules for name in module.classes)
    twice = sorted(name for name, count in classes.items() if count > 1)
    yield Figure("class names used twice", len(twice), (", ".join(twice),))
    types = Counter(name.lstrip("_") for module in all_modules for name in set(module.types))
    again = sorted(name for name, count in types.items() if count > 1)
    yield Figure("type names used twice", len(again), (", ".join(again),))
    yield Figure("Any per 1,000 lines", round(1000 * sum(module.uses("Any") for module in all_modules) / lines, 1))
    yield Figure("casts", sum(module.uses("cast") for module in all_modules))
    comments = [comment for module in all_modules for comment in module.comments]
    yield Figure("type: ignore", sum("type: ignore" in comment for comment in comments))
    yield Figure("vague names", sum(module.vague_names for module in all_modules))
    functions = [pair for module in all_modules for pair in module.functions]
    counted = sorted(((parameters(function), name) for name, function in functions), reverse=True)
    many = [f"{n} {_short(name)}" for n, name in counted if n > 9 and ".cli." not in name and "__init__" not in name]
    yield Figure("functions with more than 9 parameters", len(many), tuple(many))
    length, longest = max(((_body(function), name) for name, function in functions), default=(0, ""))
    yield Figure("lines of the longest function, without its docstring", length, (_short(longest),))
    yield Figure("comments per 100 lines", round(100 * len(comments) / lines, 1))


def _body(function: Function) -> int:
    doc = ast.get_docstring(function, clean=False)
    first = function.body[1] if doc is not None and len(function.body) > 1 else function.body[0]
    return (function.end_lineno or 0) - first.lineno + 1


# -- ways through the house -------------------------------------------------------------------------------------------------


def way(name: str, work: Callable[[], object], source: Path, first: Callable[[], object] | None = None) -> Figure:
    """The files of the package that some work passes through once it has run before (or something smaller in its place), by room."""
    (first or work)()
    functions: set[tuple[str, str]] = set()
    root = str(source / PACKAGE)

    def note(frame: Any, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(root):
            functions.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    files = {Path(file).relative_to(root).parts for file, _ in functions}
    rooms = Counter(parts[0] if len(parts) > 1 else "." for parts in files)
    by_room = ", ".join(f"{room} {count}" for room, count in rooms.most_common())
    return Figure(name, len(files), (f"{by_room}; {len(functions)} functions",))


def evaluating() -> Iterator[Figure]:
    """The way of a plain log, from a Parquet file to a printed answer and to a page."""
    import numpy as np
    import polars as pl

    import counterpoise as cp
    from counterpoise.cli import app

    source = Path(cp.__file__).parents[1]
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.parquet"
        reward = (random.random(ROWS) < 0.3).astype(float)
        target = random.uniform(0.2, 0.8, ROWS)
        pl.DataFrame({"reward": reward, "propensity": np.full(ROWS, 0.5), "target": target}).write_parquet(log)

        def show() -> None:
            with contextlib.redirect_stdout(io.StringIO()):
                print(cp.evaluate(log, reward="reward", propensity="propensity", target="target"))

        yield way("files of evaluate on Parquet, printed", show, source)
        html = Path(folder) / "page.html"
        fresh = log.rename(Path(folder) / "fresh.parquet")  # which nobody has opened yet: scans are kept
        words = f"evaluate {fresh} --reward reward --propensity propensity --target target --html {html}".split()
        with opens(fresh, source) as askers, contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            app(words)
        if not html.exists():
            raise RuntimeError("evaluate --html wrote no page.")
        yield Figure("opens of the log by evaluate --html", len(askers), (", ".join(askers),))


@contextlib.contextmanager
def opens(log: Path, source: Path) -> Iterator[list[str]]:
    """Who asks the readers to open a log, each time that they do; however many calls of polars one opening takes."""
    import polars as pl

    readers = str(source / PACKAGE / "readers")
    names = [name for name in dir(pl) if name.startswith(("scan_", "read_")) and callable(getattr(pl, name))]
    real = {name: getattr(pl, name) for name in names}
    doors: list[Any] = []  # the frames through which the readers were entered, kept so that no two are the same object
    askers: list[str] = []

    def counting(name: str) -> Callable[..., Any]:
        def opening(data: Any, *arguments: Any, **options: Any) -> Any:
            if log.name in str(data):
                door = sys._getframe(1)
                while door.f_back is not None and door.f_back.f_code.co_filename.startswith(readers):
                    door = door.f_back
                if not any(door is other for other in doors):
                    doors.append(door)
                    asker = door.f_back or door
                    askers.append(f"{Path(asker.f_code.co_filename).stem}.{asker.f_code.co_name}")
            return real[name](data, *arguments, **options)

        return opening

    try:
        for name in names:
            setattr(pl, name, counting(name))
        yield askers
    finally:
        for name, function in real.items():
            setattr(pl, name, function)


def learning() -> Iterator[Figure]:
    """The ways of a fit and of a search."""
    import counterpoise as cp
    from counterpoise.environments import SyntheticBandit
    from counterpoise.learn import PolicyLearner, learn_policy

    source = Path(cp.__file__).parents[1]
    drawn = SyntheticBandit(n_actions=4, inverse_temperature=-2, seed=1).draw(ROWS)
    log: Any = {name: getattr(drawn, name) for name in ("context", "action", "reward", "propensity")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield way("files of PolicyLearner.fit", lambda: PolicyLearner(epochs=2).fit(**log), source)
        short = partial(learn_policy, minutes=None, contenders=["beta_ips"], **log)
        yield way("files of learn_policy", lambda: learn_policy(minutes=None, **log), source, short)


# -- what it prints ---------------------------------------------------------------------------------------------------------


def rooms(modules: dict[str, Module]) -> Iterator[str]:
    """The size of every room, as a table."""
    yield "| room | files | code | docstrings |"
    yield "|---|---|---|---|"
    for room in (*sorted({module.room for module in modules.values()}), "all"):
        inside = [module for module in modules.values() if room in (module.room, "all")]
        code, docstrings = sum(module.code for module in inside), sum(len(module.docstrings) for module in inside)
        yield f"| {room} | {len(inside)} | {code:,} | {docstrings:,} |"


def main() -> int:
    """Print the figures; 1 if one that must not has passed its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the source alone: run nothing")
    parser.add_argument("--check", action="store_true", help="only figures with limits; exit with 1 if one is passed")
    parser.add_argument("--source", type=Path, default=SOURCE, help="the folder that holds the package")
    parser.add_argument("--write", action="store_true", help="write the figures into RESULTS.md")
    options = parser.parse_args()
    source = options.source.resolve()
    sys.path.insert(0, str(source))
    modules = read(source)
    every = list(figures(modules))
    if not options.quick:
        every += [*evaluating(), *learning()]
    if options.write:
        from bench import recording  # beside this script, which tests import from elsewhere

        with recording("house figures", sys.argv[1:], is_on=True):
            show(modules, [figure for figure in every if figure.limit is not None])
    elif options.check:
        for figure in every:
            if figure.limit is not None:
                print(figure if figure.is_kept else f"{figure}: TOO MANY")
                print("".join(f"    {part}\n" for part in figure.parts if not figure.is_kept), end="")
        return 0 if all(figure.is_kept for figure in every) else 1
    else:
        show(modules, every)
        for figure in every:
            print(f"\n{figure.name}:" if figure.parts else "")
            print("".join(f"    {part}\n" for part in figure.parts), end="")
    return 0


def show(modules: dict[str, Module], every: list[Figure]) -> None:
    """Print the rooms and the figures as tables."""
    print("\n".join(rooms(modules)), end="\n\n")
    print("| | figure | at most |\n|---|---|---|")
    for figure in every:
        limit = "" if figure.limit is None else f"{figure.limit:,}"
        print(f"| {figure.name} | {figure.value:,g} | {limit} |")


if __name__ == "__main__":
    sys.exit(main())
