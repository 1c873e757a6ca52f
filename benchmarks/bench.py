"""What every benchmark shares: experiments as functions, their command line, their sections of RESULTS.md, clocks and tables.

An experiment is a function whose keyword parameters are its options, whose docstring says what it shows, and which returns whether every
promise is kept (or nothing, if there is none to keep). A script collects its experiments in a `Suite`:

    python benchmarks/intervals.py                      # all of them
    python benchmarks/intervals.py grid --runs 200      # one, with options of its own
    python benchmarks/intervals.py --quick              # smaller, to see that they run
    python benchmarks/intervals.py grid --write         # and its output becomes its section of RESULTS.md
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import math
import re
import shlex
import subprocess
import sys
import time
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

RESULTS = Path(__file__).with_name("RESULTS.md")
sys.path.append(str(RESULTS.parents[1]))  # where paper/ is
Work = Callable[..., bool | None]
Item = TypeVar("Item")
Answer = TypeVar("Answer")


# -- experiments ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Experiment:
    """A function that measures something, and the options with which it takes seconds."""

    name: str
    work: Work
    quick: Mapping[str, Any]
    is_hidden: bool = False
    """A step of another experiment, run in a process of its own."""

    @property
    def quick_options(self) -> dict[str, Any]:
        """The options of a quick run, which starts no processes."""
        alone = {"processes": 1} if "processes" in inspect.signature(self.work).parameters else {}
        return alone | dict(self.quick)

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        return (inspect.getdoc(self.work) or "").split("\n")[0]

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Make an option of every parameter."""
        hints = typing.get_type_hints(self.work)
        for name, parameter in inspect.signature(self.work).parameters.items():
            flag, hint, default = f"--{name.replace('_', '-')}", hints[name], parameter.default
            if isinstance(hint, types.UnionType):  # such as Path | None
                hint = next(each for each in hint.__args__ if each is not type(None))
            if hint is bool:
                parser.add_argument(flag, action="store_true", default=argparse.SUPPRESS)
                continue
            is_many = typing.get_origin(hint) in (list, tuple)
            kind = typing.get_args(hint)[0] if is_many else hint
            parser.add_argument(
                flag,
                type=_whole if kind is int else kind,
                nargs="+" if is_many else None,
                default=argparse.SUPPRESS,
                help=None if default is None or default == () else f"default: {_shown(default)}",
            )


def _whole(text: str) -> int:
    """A whole number, which may be written as 1e7."""
    return int(float(text))


def _shown(default: object) -> str:
    return " ".join(map(str, default)) if isinstance(default, list | tuple) else str(default)


@dataclass
class Suite:
    """The experiments of one script."""

    script: str
    """Its path, `__file__`."""
    about: str
    """Its docstring."""
    page: Path = RESULTS
    """Where `--write` writes."""
    experiments: dict[str, Experiment] = field(default_factory=dict)

    def experiment(self, name: str, *, is_hidden: bool = False, **quick: Any) -> Callable[[Work], Work]:
        """Register a function; `quick` are the options that make it short."""

        def register(work: Work) -> Work:
            self.experiments[name] = Experiment(name, work, quick, is_hidden)
            return work

        return register

    @property
    def name(self) -> str:
        """What the script is called."""
        return Path(self.script).stem

    def run_apart(self, *words: object, **settings: Any) -> str:
        """Run an experiment in a process of its own, and return what it prints."""
        command = [sys.executable, self.script, *map(str, words)]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, **settings).stdout

    def parser(self) -> argparse.ArgumentParser:
        """The command line."""
        whole = argparse.ArgumentParser(description=self.about, formatter_class=argparse.RawDescriptionHelpFormatter)
        _add_common(whole)
        listed = {name: one for name, one in self.experiments.items() if not one.is_hidden}
        commands = whole.add_subparsers(dest="experiment", metavar="{" + ",".join(listed) + "}")
        for name, experiment in self.experiments.items():
            shown = {} if experiment.is_hidden else {"help": experiment.summary.replace("%", "%%")}
            parser = commands.add_parser(
                name,
                description=inspect.getdoc(experiment.work),
                formatter_class=argparse.RawDescriptionHelpFormatter,
                **shown,
            )
            _add_common(parser, default=argparse.SUPPRESS)
            experiment.add_options(parser)
        return whole

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Run what was asked for; 1 if a promise is broken."""
        words = list(sys.argv[1:] if arguments is None else arguments)
        options = vars(self.parser().parse_args(words))
        name, is_quick, writes = options.pop("experiment"), options.pop("quick"), options.pop("write")
        names = [name] if name else [name for name, one in self.experiments.items() if not one.is_hidden]
        is_kept = True
        for each in names:
            experiment = self.experiments[each]
            if len(names) > 1:
                print(f"\n## {each}: {experiment.summary}\n", flush=True)
            asked = (dict(experiment.quick_options) if is_quick else {}) | options
            typed = [word for word in words if word != each]
            with recording(f"{self.name} {each}", [each, *typed], is_on=writes, page=self.page):
                is_kept &= experiment.work(**asked) is not False
        return 0 if is_kept or is_quick else 1  # few runs break promises by luck


def _add_common(parser: argparse.ArgumentParser, default: Any = False) -> None:
    parser.add_argument("--quick", action="store_true", default=default, help="small, to see that it runs")
    parser.add_argument("--write", action="store_true", default=default, help="write the output into RESULTS.md")


class Both(io.TextIOBase):
    """Writes to the terminal as well."""

    def __init__(self, copy: io.StringIO) -> None:
        self.copy, self.terminal = copy, sys.stdout

    def write(self, text: str) -> int:
        self.copy.write(text)
        return self.terminal.write(text)

    def flush(self) -> None:
        self.terminal.flush()


# -- RESULTS.md -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def recording(key: str, words: Sequence[str], *, is_on: bool, page: Path = RESULTS) -> Iterator[None]:
    """Write what is printed meanwhile into a page, too; `words` stand behind the script's name on the command line."""
    if not is_on:
        yield
        return
    began, output = time.perf_counter(), io.StringIO()
    with contextlib.redirect_stdout(Both(output)):
        yield
    script = key.split()[0]
    command = shlex.join(["python", f"benchmarks/{script}.py", *(word for word in words if word != "--write")])
    write(key, command, output.getvalue(), time.perf_counter() - began, page)


def write(key: str, command: str, output: str, seconds: float, path: Path = RESULTS) -> None:
    """Put an experiment's output between its marks in RESULTS.md; what is written around them stays."""
    from counterpoise import __version__

    body = output.strip("\n")
    if not any(line.startswith("|") for line in body.splitlines()):
        body = f"```text\n{body}\n```"
    begin, end = f"<!-- {key} -->", f"<!-- /{key} -->"
    section = f"{begin}\n`{command}`, version {__version__}, {seconds:,.0f} s\n\n{body}\n{end}"
    text = path.read_text(encoding="utf-8")
    if begin in text:
        text = re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: section, text, flags=re.DOTALL)
    else:
        text = f"{text.rstrip()}\n\n### {key}\n\n{section}\n"
    path.write_text(text, encoding="utf-8")


# -- tables -----------------------------------------------------------------------------------------------------------------


def head(*names: str) -> None:
    """Begin a table."""
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}", flush=True)


def row(*cells: object) -> None:
    """A line of a table."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def share(part: float, whole: float, digits: int = 1) -> str:
    """A share in percent; a dash if there is nothing to share."""
    return f"{part / whole:.{digits}%}" if whole else "–"


def slack(level: float, runs: int, errors: float = 3.0) -> float:
    """How far a share of so many runs may be off by luck, in standard errors."""
    return errors * math.sqrt(level * (1 - level) / max(runs, 1))


# -- processes and clocks ---------------------------------------------------------------------------------------------------


def in_processes(
    work: Callable[[Item], Answer], jobs: Iterable[Item], processes: int, chunk: int = 1
) -> Iterator[Answer]:
    """The answers to all jobs, in their order; in this process if there is only one."""
    todo = list(jobs)
    if processes == 1:
        yield from map(work, todo)
        return
    began = time.time()
    for k, answer in enumerate(_pool(processes).map(work, todo, chunksize=chunk), start=1):
        if sys.stderr.isatty():
            print(f"\r{k} of {len(todo)}, {time.time() - began:.0f} s ", end="", file=sys.stderr, flush=True)
        yield answer


@cache
def _pool(processes: int) -> ProcessPoolExecutor:
    """One pool for all experiments of a script; its processes are started afresh, since a fork loses the threads of polars."""
    return ProcessPoolExecutor(processes, mp_context=get_context("spawn"))


def split(runs: int, parts: int) -> list[int]:
    """So many runs in so many jobs."""
    size = -(-runs // max(parts, 1))
    return [min(size, runs - start) for start in range(0, runs, size)]


def fastest(work: Callable[[], object], times: int = 5) -> float:
    """The least seconds of several runs: what the machine can do when nothing else interferes."""
    return fastest_of({"": work}, times)[""][0]


def fastest_of(works: Mapping[str, Callable[[], object]], times: int) -> dict[str, tuple[float, float]]:
    """The least seconds, by the clock and of processors, of several runs of each, taken in turns.

    In turns, so that a busy moment of the machine hits all alike; processor seconds hardly feel what else the machine does.
    """
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for _ in range(times):
        for name, work in works.items():
            began, used = time.perf_counter(), time.process_time()
            work()
            taken[name].append((time.perf_counter() - began, time.process_time() - used))
    return {name: (min(clock for clock, _ in pairs), min(used for _, used in pairs)) for name, pairs in taken.items()}


def resident(what: str) -> float:
    """Resident memory now (VmRSS) or at most since the last reset (VmHWM), in MB; Linux alone."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1000
