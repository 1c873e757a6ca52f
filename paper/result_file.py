"""`ResultFile`: the tidy CSV of an experiment, filled by several processes, which you can continue after an interruption."""

from __future__ import annotations

import csv
import json
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from counterpoise.errors import CounterpoiseError, OptionError, verbatim

Key = tuple[float | int | str, ...]
Row = tuple[float | int | str, ...]


class ResultFileError(CounterpoiseError):
    """A result file that cannot be continued or written: move it away, or name another one."""


@dataclass(frozen=True)
class Recipe:
    """What is in a result file; change `version` whenever the same key would get different numbers."""

    name: str
    version: int
    keys: tuple[tuple[str, type], ...]
    values: tuple[tuple[str, type], ...]
    complete: int  # rows that belong to one key

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.keys + self.values)


@dataclass
class ResultFile:
    """Rows by key, in memory and on disk; a key is there with all of its rows or not at all.

    The version of the recipe is stored next to the CSV, in ``<name>.recipe.json``, so the CSV itself stays plain.
    """

    path: Path
    recipe: Recipe
    rows: dict[Key, list[Row]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: str | Path, recipe: Recipe) -> ResultFile:
        """Continue a file, or start one; refuse a file that another recipe wrote, or that cannot be written."""
        file = cls(Path(path), recipe)
        if file.path.is_dir():
            raise ResultFileError(f"{str(file.path)!r} is a folder: pass the name of a CSV file.")
        if file.path.exists():
            file._check_recipe()
            file._read()
        file.save()
        return file

    @property
    def recipe_path(self) -> Path:
        return self.path.with_suffix(".recipe.json")

    def missing(self, keys: Iterable[Key]) -> list[Key]:
        """Of some keys, those that still have to be run."""
        return [key for key in keys if key not in self.rows]

    def add(self, results: Mapping[Key, Iterable[Row]]) -> None:
        """Add the rows of finished keys."""
        for key, rows in results.items():
            self.rows[key] = list(rows)

    def save(self) -> None:
        """Write everything, in the order of the keys; a reader never sees half a file."""
        recipe = {"recipe": self.recipe.name, "version": self.recipe.version}
        write_atomically(self.recipe_path, json.dumps(recipe) + "\n")
        lines = [",".join(self.recipe.columns)]
        lines += [",".join(_text(x) for x in key + row) for key in sorted(self.rows) for row in self.rows[key]]
        write_atomically(self.path, "\n".join(lines) + "\n")

    def _check_recipe(self) -> None:
        wanted = f"version {self.recipe.version} of the recipe {self.recipe.name!r}"
        advice = "Move it away, or write to another file."
        try:
            stored = json.loads(self.recipe_path.read_text(encoding="utf-8"))
            name, version = stored["recipe"], stored["version"]
        except FileNotFoundError:
            raise ResultFileError(
                f"{str(self.path)!r} exists without its {self.recipe_path.name}: nothing says that {wanted} wrote it. "
                f"{advice}"
            ) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ResultFileError(f"{str(self.recipe_path)!r} cannot be read: {error!r}. {advice}") from error
        if (name, version) != (self.recipe.name, self.recipe.version):
            raise ResultFileError(
                f"{str(self.path)!r} was written by version {version} of the recipe {name!r}, this is {wanted}: "
                f"their numbers must not be mixed. {advice}"
            )

    def _read(self) -> None:
        stored = read_rows(self.path, self.recipe)
        self.rows = {key: rows for key, rows in stored.items() if len(rows) == self.recipe.complete}


def read_rows(path: str | Path, recipe: Recipe) -> dict[Key, list[Row]]:
    """The rows of a CSV file by key, whoever wrote it."""
    columns = recipe.keys + recipe.values
    rows: dict[Key, list[Row]] = {}
    try:
        with Path(path).open(newline="", encoding="utf-8") as stream:
            reader = csv.DictReader(stream)
            missing = [name for name, _ in columns if name not in (reader.fieldnames or [])]
            if missing:
                raise ResultFileError(
                    f"{str(path)!r} has no column {missing[0]!r}; it has "
                    f"{', '.join(map(repr, reader.fieldnames or [])) or 'none'}. Name a file of results."
                )
            for number, line in enumerate(reader, start=2):
                try:
                    row = tuple(kind(line[name]) for name, kind in columns)
                except (TypeError, ValueError):
                    raise ResultFileError(
                        f"{str(path)!r} is damaged: line {number} reads {','.join(map(str, line.values()))!r}. "
                        "Move the file away."
                    ) from None
                rows.setdefault(row[: len(recipe.keys)], []).append(row[len(recipe.keys) :])
    except (OSError, UnicodeDecodeError) as error:
        raise ResultFileError(f"{str(path)!r} cannot be read: {verbatim(error)}. Name a file of results.") from error
    return rows


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file completely, or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            part.write_bytes(content.encode() if isinstance(content, str) else content)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise ResultFileError(
            f"{str(path)!r} cannot be written: {error.strerror}. Name a file you may write."
        ) from error


def _text(x: float | int | str) -> str:
    """A number with twelve digits, as in the published files, and integers without a point."""
    if isinstance(x, float):
        return str(int(x)) if math.isfinite(x) and x == int(x) and abs(x) < 1e15 else f"{x:.12g}"
    return str(x)


# -- Tasks in several processes, one thread each, saved as they finish -------------------------------------------------

SAVE_EVERY = 10.0  # seconds
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"), "1")

Worker = Callable[[Sequence[Key]], Mapping[Key, Sequence[Row]]]


def run_tasks(
    worker: Worker, tasks: Sequence[Sequence[Key]], file: ResultFile, *, jobs: int | None, title: str
) -> None:
    """Run every task (a list of keys) and add its rows to the file; whatever is finished survives an interruption."""
    count = jobs if jobs is not None else os.cpu_count() or 1
    if count < 1:
        raise OptionError(f"jobs must be at least 1; found {count}.")
    total = sum(map(len, tasks))
    if not total:
        return
    console = Console(stderr=True)
    console.quiet = not console.is_terminal  # a disabled bar still ended in an empty line before rich 14.3
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    saved = -SAVE_EVERY  # the first result is saved at once: a file that cannot be written shows early
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress, _one_thread_each():
        bar = progress.add_task(title, total=total)
        pool = ProcessPoolExecutor(min(count, len(tasks)), multiprocessing.get_context("spawn"), initializer=_quiet)
        try:
            for done in as_completed([pool.submit(worker, task) for task in tasks]):
                results = done.result()
                file.add(results)
                progress.advance(bar, len(results))
                if time.monotonic() - saved > SAVE_EVERY:
                    file.save()
                    saved = time.monotonic()
        except BrokenProcessPool as error:
            raise ResultFileError(
                "a process died, most often for want of memory. What was finished is saved: run the same command "
                "again to continue, with fewer --jobs."
            ) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            file.save()


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Make processes started in the meantime use one thread, because two that share two cores must not run four."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _quiet() -> None:
    """Only the parent answers Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
