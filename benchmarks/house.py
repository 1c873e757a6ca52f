"""The house in figures: files and code by room, the way of a fit, parameters, loose types, imports, the longest function, comments.

Run it as `python benchmarks/house.py`, in any state of the tree that you want to compare; a folder of other sources may be its argument.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "src"
PACKAGE = "counterpoise"
ROWS = 2000  # of the log whose way is followed
VAGUE = ("found", "one")  # names that do not say what they hold
BLANK = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
Function = ast.FunctionDef | ast.AsyncFunctionDef


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

    @property
    def name(self) -> str:
        """Its dotted name."""
        parts = self.path.relative_to(self.source).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def functions(self) -> list[tuple[str, Function]]:
        """Every function and method, by its dotted name."""
        return list(_functions(self.tree, self.name))

    def imports(self, *, late: bool) -> Iterator[str]:
        """The modules that are imported at the top (or, with `late`, inside functions); not those for types alone."""
        typing_only = {
            inner
            for node in ast.walk(self.tree)
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            for inner in ast.walk(node)
        }
        inside = {inner for _, function in self.functions for inner in ast.walk(function)}
        for node in ast.walk(self.tree):
            if node not in typing_only and (node in inside) == late:
                if isinstance(node, ast.Import):
                    yield from (one.name for one in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module:
                    yield node.module
                    yield from (f"{node.module}.{one.name}" for one in node.names)

    @property
    def late_statements(self) -> int:
        """Import statements inside functions."""
        inside = {inner for _, function in self.functions for inner in ast.walk(function)}
        return sum(isinstance(node, ast.Import | ast.ImportFrom) for node in inside)

    @property
    def room(self) -> str:
        """The folder that it is in; "." for the package itself."""
        parts = self.path.relative_to(self.source / PACKAGE).parts
        return parts[0] if len(parts) > 1 else "."

    @cached_property
    def docstrings(self) -> set[int]:
        """The lines of docstrings, and of texts that stand below a field."""
        bodies = [node.body for node in ast.walk(self.tree) if isinstance(node, ast.Module | ast.ClassDef | Function)]
        texts = [
            line
            for body in bodies
            for line in body
            if isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)
        ]
        return {number for text in texts for number in range(text.lineno, (text.end_lineno or 0) + 1)}

    @property
    def code(self) -> int:
        """Lines of code: without blanks, comments and docstrings."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        lines = {n for token in tokens if token.type not in BLANK for n in range(token.start[0], token.end[0] + 1)}
        return len(lines - self.docstrings)

    @property
    def vague_names(self) -> int:
        """How often something is called by a name that does not say what it is."""
        stored = (
            node for node in ast.walk(self.tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        )
        return sum(node.id in VAGUE for node in stored)

    @property
    def comments(self) -> int:
        """Lines with a comment of their own or behind code."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return len({token.start[0] for token in tokens if token.type == tokenize.COMMENT})


def _functions(tree: ast.AST, name: str) -> Iterator[tuple[str, Function]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield f"{name}.{node.name}", node
            yield from _functions(node, f"{name}.{node.name}")
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{name}.{node.name}")
        else:
            yield from _functions(node, name)


def parameters(function: Function) -> int:
    """How many a caller can pass by name or place; `self` and `cls` are none, and neither are the parts of a log (`**parts`)."""
    given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return len([one for one in given if one.arg not in ("self", "cls")])


def deepest(modules: dict[str, Module]) -> list[str]:
    """The longest chain of imports at the top of modules."""
    needs = {
        name: sorted({one for one in module.imports(late=False) if one in modules}) for name, module in modules.items()
    }
    known: dict[str, list[str]] = {}

    def chain(name: str, above: tuple[str, ...] = ()) -> list[str]:
        if name not in known:
            below = [chain(one, (*above, name)) for one in needs[name] if one not in above and one != name]
            known[name] = [name, *max(below, key=len, default=[])]
        return known[name]

    return max((chain(name) for name in modules), key=len)


def read(source: Path) -> dict[str, Module]:
    """All modules below a folder, by name."""
    found = [
        Module(path, source, path.read_text(encoding="utf-8")) for path in sorted(source.rglob(f"{PACKAGE}/**/*.py"))
    ]
    return {module.name: module for module in found}


def passed(work: Callable[[], object], source: Path) -> tuple[Counter[str], int]:
    """The files of the package that some work passes through, by room, and how many of its functions; once it has run before."""
    work()
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
    return Counter(parts[0] if len(parts) > 1 else "." for parts in files), len(functions)


def ways(source: Path) -> None:
    """Print which way a fit and a search go."""
    sys.path.insert(0, str(source))
    from counterpoise.environments import SyntheticBandit
    from counterpoise.learn import PolicyLearner, learn_policy

    drawn = SyntheticBandit(n_actions=4, inverse_temperature=-2, seed=1).draw(ROWS)
    log: Any = {
        "context": drawn.context,
        "action": drawn.action,
        "reward": drawn.reward,
        "propensity": drawn.propensity,
    }
    warnings.simplefilter("ignore")
    for name, work in {
        "PolicyLearner.fit": lambda: PolicyLearner(epochs=2).fit(**log),
        "learn_policy": lambda: learn_policy(minutes=None, **log),
    }.items():
        rooms, functions = passed(work, source)
        shown = ", ".join(f"{room} {count}" for room, count in rooms.most_common())
        print(f"files that {name} passes through: {rooms.total()} ({shown}); functions: {functions}")


def rooms(modules: dict[str, Module]) -> None:
    """Print the size of every room."""
    print(f"{'room':<14}{'files':>6}{'code':>8}{'docstrings':>12}{'vague names':>13}")
    total: Counter[str] = Counter()
    for room in sorted({module.room for module in modules.values()}):
        inside = [module for module in modules.values() if module.room == room]
        counts = Counter(
            files=len(inside),
            code=sum(module.code for module in inside),
            docstrings=sum(len(module.docstrings) for module in inside),
            vague=sum(module.vague_names for module in inside),
        )
        total += counts
        _print_room(room, counts)
    _print_room("all", total)


def _print_room(room: str, counts: Counter[str]) -> None:
    print(f"{room:<14}{counts['files']:>6}{counts['code']:>8,}{counts['docstrings']:>12,}{counts['vague']:>13,}")


def main(source: Path = SOURCE) -> None:
    """Print the figures."""
    modules = read(source)
    rooms(modules)
    ways(source)
    lines = sum(module.text.count("\n") for module in modules.values())
    functions = [one for module in modules.values() for one in module.functions]
    counted = [
        (parameters(function), name)
        for name, function in functions
        if not name.startswith(f"{PACKAGE}.cli.") and not name.endswith(".__init__")
    ]
    length, longest = max((one.end_lineno - one.lineno + 1, name) for name, one in functions if one.end_lineno)
    body = max((_body(one), name) for name, one in functions)
    chain = deepest(modules)
    print(f"{len(modules):,} modules, {lines:,} lines")
    for most in (8, 9):
        many = sorted(((n, name) for n, name in counted if n > most), reverse=True)
        print(f"functions with more than {most} parameters outside cli/: {len(many)}")
    for n, name in sorted(((n, name) for n, name in counted if n > 8), reverse=True):
        print(f"    {n} {name}")
    for word in ("Any", "cast"):
        print(f"{word} per 1,000 lines: {1000 * _uses(modules, word) / lines:.1f}")
    print(f"imports inside functions: {sum(module.late_statements for module in modules.values())}")
    print(f"deepest chain of imports: {len(chain)} ({' → '.join(one.removeprefix(f'{PACKAGE}.') for one in chain)})")
    print(f"longest function: {length} lines with its docstring ({longest}), {body[0]} without ({body[1]})")
    print(f"comments: {100 * sum(module.comments for module in modules.values()) / lines:.1f} % of lines")


def _uses(modules: dict[str, Module], word: str) -> int:
    """How often typing's `Any` or `cast` is named, imports included; the methods called cast, of frames, are others."""
    found = [node for module in modules.values() for node in ast.walk(module.tree)]
    named = [node.id if isinstance(node, ast.Name) else getattr(node, "name", None) for node in found]
    return named.count(word)


def _body(function: Function) -> int:
    doc = ast.get_docstring(function, clean=False)
    first = function.body[1] if doc is not None and len(function.body) > 1 else function.body[0]
    return (function.end_lineno or 0) - first.lineno + 1


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else SOURCE)
