"""Trials that try to break the command line: kills, signals, two jobs at once, full disks, damaged files.

python benchmarks/audit.py                     # about five minutes on two cores
python benchmarks/audit.py --trials 600        # ten times as many
python benchmarks/audit.py --only states --seed 7 --keep lost  # one kind, other dice, and the files of the trials that were lost

Every trial runs a command in a process of its own, forked from this one once everything is imported, on files in a folder that is
thrown away. A trial is lost if a file is half-written, a day is missing or counted twice, a command hangs, or it ends otherwise than
it should: 0 with an answer, 2 with an error in words, 130 or 143 after a signal; never 1, never 70, never a traceback.
"""

from __future__ import annotations

import argparse
import ctypes
import gzip
import importlib
import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

PATIENCE = 600.0  # seconds until a command counts as hung
MEMORY = 24 * 2**30  # bytes of address space: a crafted file that asks for more is asking for too much
ROWS = 400  # of a day
ASK = ["--reward", "reward", "--propensity", "propensity", "--target", "pi_new"]
IMPORTED = """
counterpoise.cli counterpoise.report counterpoise.engines.rows counterpoise.moments.state counterpoise.evaluation.showing
counterpoise.evaluation.doctor counterpoise.engines.registry counterpoise.environments.synthetic narwhals polars pyarrow
"""
TORCH = "torch safetensors counterpoise.learn"


# -- running a command -------------------------------------------------------------------------------------------------


@dataclass
class Ended:
    """How a command ended: its exit code (negative: by which signal; None: it hung), and what it said."""

    code: int | None
    out: str
    err: str
    seconds: float

    def __str__(self) -> str:
        lines = self.err.strip().splitlines()
        return f"exit {'none, it hung' if self.code is None else self.code}: {lines[-1][:160] if lines else 'silent'}"

    @property
    def is_answer(self) -> bool:
        return self.code == 0 and "Traceback" not in self.err

    @property
    def is_refusal(self) -> bool:
        """An error in words; a day that is there already has a code of its own."""
        return self.code in (2, 4) and "Traceback" not in self.err and bool(self.err.strip())


class Command:
    """A command that is running."""

    def __init__(self, work: Callable[[], object], file_limit: int | None = None) -> None:
        self.began = time.monotonic()
        self._ends, ends = zip(*(os.pipe() for _ in range(2)), strict=True)
        self.pid = os.fork()
        if self.pid == 0:
            _child(work, ends, file_limit)
        for end in ends:
            os.close(end)

    def send(self, sign: int) -> None:
        os.kill(self.pid, sign)

    def wait(self, patience: float = PATIENCE) -> Ended:
        """What it said and how it ended, within the time that there is."""
        said: dict[int, bytes] = dict.fromkeys(self._ends, b"")
        unread = list(self._ends)
        deadline = time.monotonic() + patience
        while unread and time.monotonic() < deadline:
            for end in select.select(unread, [], [], 0.5)[0]:
                piece = os.read(end, 65536)
                said[end] += piece
                if not piece:
                    unread.remove(end)
        is_hung = bool(unread)
        if is_hung:
            os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        for end in self._ends:
            os.close(end)
        out, err = (text.decode(errors="replace") for text in said.values())
        code = None if is_hung else os.waitstatus_to_exitcode(status)
        return Ended(code, out, err, time.monotonic() - self.began)


def _child(work: Callable[[], object], ends: tuple[int, ...], file_limit: int | None) -> None:
    """In the fork: the work, with the exit code that the interpreter would give it."""
    code = 1
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, end in enumerate(ends, start=1):
            os.dup2(end, number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if file_limit is not None:
            sys.dont_write_bytecode = True  # a module compiled under the limit would be cut off for everybody after
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
        try:
            work()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:  # whatever it is: this is where the interpreter would print it
            traceback.print_exc()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(code)


def command(*arguments: object) -> Callable[[], object]:
    """`counterpoise …` as work for a child."""
    program = _program()  # made before the fork, like all that belongs to the interpreter's start

    def work() -> None:
        sys.argv = ["counterpoise", *map(str, arguments)]
        program(sys.argv[1:])

    return work


@cache
def _program() -> Callable[[list[str]], object]:
    from typer.main import get_command

    from counterpoise.cli import app

    return get_command(app)


def run(*arguments: object, file_limit: int | None = None) -> Ended:
    """`counterpoise …` to its end."""
    return Command(command(*arguments), file_limit).wait()


def answer(ended: Ended) -> dict[str, Any]:
    """The numbers of `evaluate --json`, for comparing."""
    document = json.loads(ended.out)
    shown = [(one["target"], one["estimator"], one.get("segment"), one["value"]) for one in document["estimates"]]
    return {"n": document["n"], "estimates": [(*names, value) for *names, value in shown]}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two answers are the same up to rounding."""
    pairs = list(zip(one["estimates"], other["estimates"], strict=False))
    near = all(
        a[:-1] == b[:-1] and (a[-1] == b[-1] or abs(a[-1] - b[-1]) <= 1e-9 * max(1.0, abs(b[-1]))) for a, b in pairs
    )
    return one["n"] == other["n"] and len(one["estimates"]) == len(other["estimates"]) and near


# -- counting ----------------------------------------------------------------------------------------------------------


@dataclass
class Audit:
    """Where trials happen, their dice, and how they ended."""

    folder: Path
    trials: int
    seed: int
    keep: Path | None
    tried: dict[str, int] = field(default_factory=dict)
    lost: dict[str, list[str]] = field(default_factory=dict)

    def dice(self, kind: str) -> random.Random:
        return random.Random(f"{self.seed} {kind}")

    def share(self, part: float) -> int:
        """Dear trials are fewer."""
        return max(2, round(self.trials * part))

    def count(self, kind: str, problem: str, file: Path | None = None) -> None:
        """One more trial; a problem in words is a loss, and its file is kept."""
        self.tried[kind] = self.tried.get(kind, 0) + 1
        if not problem:
            return
        found = self.lost.setdefault(kind, [])
        found.append(f"trial {self.tried[kind]}: {problem}")
        if self.keep is not None and file is not None and file.exists():
            self.keep.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, self.keep / f"{kind.replace(' ', '-').replace(',', '')}-{self.tried[kind]}{file.suffix}")

    def place(self, name: str) -> Path:
        """A new, empty folder."""
        place = self.folder / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        return place

    def table(self) -> str:
        width = max(map(len, self.tried), default=0) + 2
        lines = [f"{'':<{width}}{'tried':>8}{'survived':>10}{'lost':>6}"]
        for kind, tried in self.tried.items():
            lost = len(self.lost.get(kind, ()))
            lines.append(f"{kind:<{width}}{tried:>8,}{tried - lost:>10,}{lost:>6,}")
        tried, lost = sum(self.tried.values()), sum(map(len, self.lost.values()))
        return "\n".join([*lines, f"{'all':<{width}}{tried:>8,}{tried - lost:>10,}{lost:>6,}"])


def simulate(path: Path, rows: int = ROWS, seed: int = 0) -> Path:
    """A log on disk."""
    ended = run("simulate", path, "--rows", rows, "--seed", seed)
    if not ended.is_answer:
        raise SystemExit(f"cannot prepare a log: {ended}")
    return path


def expect(ended: Ended) -> Ended:
    """A command without which there is nothing to try."""
    if not ended.is_answer:
        raise SystemExit(f"a command fails before anything is done to it: {ended}")
    return ended


def leftovers(place: Path, *known: Path) -> str:
    """What lies in a folder that should not."""
    others = sorted(path.name for path in place.iterdir() if path not in known)
    return f"left behind {', '.join(others)}" if others else ""


# -- a daily state -----------------------------------------------------------------------------------------------------

STATE_QUESTION = [*ASK, "--segment", "action", "--json"]


def add(day: Path, state: Path) -> tuple[object, ...]:
    return ("evaluate", day, *STATE_QUESTION, "--state", state)


def rows_in(state: Path, place: Path) -> int | str:
    """The rows that a state holds, told by adding one more day to a copy of it; else what is wrong."""
    probe, copy = place / "probe.parquet", place / "copy.json"
    if not probe.exists():
        simulate(probe, seed=10**6)
    shutil.copy(state, copy) if state.exists() else copy.unlink(missing_ok=True)
    ended = run(*add(probe, copy))
    return int(answer(ended)["n"]) - ROWS if ended.is_answer else str(ended)


def kills(audit: Audit) -> None:
    """A job killed at any moment and started again: its day is in the state, once."""
    kind, dice, place = "kill -9 while a day is added, then again", audit.dice("kills"), audit.place("kills")
    days, other = audit.place("kills/days"), audit.place("kills/other")
    state = place / "state.json"
    usual = sorted(
        run(*add(simulate(other / f"{k}.parquet", seed=500 + k), other / "s.json")).seconds for k in range(3)
    )[1]
    for k in range(audit.trials):
        day = simulate(days / f"{k}.parquet", seed=k)
        job = Command(command(*add(day, state)))
        time.sleep(dice.uniform(0.0, 1.1 * usual))
        job.send(signal.SIGKILL)
        job.wait()
        again = run(*add(day, state))
        held = rows_in(state, other)
        problem = "" if again.is_answer or again.is_refusal else f"started again: {again}"
        if held != ROWS * (k + 1):
            problem = f"{ROWS * (k + 1)} rows were added, the state holds {held}; started again: {again}"
        audit.count(kind, problem, state)
        if problem:  # a state that is wrong stays wrong: on with a good one
            state.unlink(missing_ok=True)
            for j in range(k + 1):
                expect(run(*add(days / f"{j}.parquet", state)))
    last = simulate(other / "last.parquet", seed=10**6 + 1)
    whole = answer(expect(run(*add(last, state))))
    audit.count("the next job removes what killed ones left", leftovers(place, days, other, state))
    shutil.copy(last, days / "last.parquet")
    expected = answer(expect(run("evaluate", days, *STATE_QUESTION)))
    audit.count("the state equals all days read at once", "" if same(whole, expected) else "it does not", state)


def at_once(audit: Audit) -> None:
    """Two jobs on one state: two days are both in it, one day given twice is in it once."""
    place = audit.place("at once")
    other = audit.place("at once/other")
    first, second = (simulate(place / f"{k}.parquet", seed=k) for k in (1, 2))
    for kind, days, wanted in (
        ("two jobs add two days at once", (first, second), 2),
        ("two jobs add the same day at once", (first, first), 1),
    ):
        for _ in range(audit.share(0.25)):
            state = place / "state.json"
            state.unlink(missing_ok=True)
            jobs = [Command(command(*add(day, state))) for day in days]
            ended = [job.wait() for job in jobs]
            held = rows_in(state, other)
            problem = "" if held == wanted * ROWS else f"the state holds {held} rows, not {wanted * ROWS}"
            good = sum(one.is_answer for one in ended), sum(one.is_refusal for one in ended)
            if good != (wanted, 2 - wanted):
                problem = f"{problem} {'; '.join(map(str, ended))}".strip()
            audit.count(kind, problem, state)


# -- signals and full disks --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Writer:
    """A command that writes a file, and how to know that the file is whole."""

    name: str
    ending: str
    arguments: Callable[[Path], tuple[object, ...]]
    is_whole: Callable[[bytes], bool]
    old: Callable[[Path], None]  # puts there what was there before


def writers(place: Path, rows: int) -> list[Writer]:
    """The commands that write, with logs of so many rows to work on."""
    log = simulate(place / "log.parquet", rows)
    small = simulate(place / "small.parquet", 1000, seed=9)
    yesterday = place / "yesterday.json"
    expect(run(*add(small, yesterday)))

    def is_json(data: bytes) -> bool:
        return isinstance(json.loads(data), dict)

    def is_tensors(data: bytes) -> bool:
        header = int.from_bytes(data[:8], "little")
        ends = [one["data_offsets"][1] for name, one in json.loads(data[8 : 8 + header]).items() if name[0] != "_"]
        return len(data) == 8 + header + max(ends)

    def old_text(path: Path) -> None:
        path.write_text("old")

    contexts = [part for column in ("context_0", "context_1") for part in ("--context", column)]
    return [
        Writer("simulate", ".parquet", lambda out: ("simulate", out, "--rows", rows, "--force"),
               lambda data: data[:4] == data[-4:] == b"PAR1", old_text),
        Writer("simulate", ".csv", lambda out: ("simulate", out, "--rows", rows, "--force"),
               lambda data: data.count(b"\n") == rows + 1, old_text),
        Writer("report", ".html", lambda out: ("evaluate", log, *ASK, "--segment", "action", "--html", out),
               lambda data: data.rstrip().endswith(b"</html>"), old_text),
        Writer("state", ".json", lambda out: add(log, out), is_json, lambda path: shutil.copy(yesterday, path)),
        Writer("learn", ".safetensors",
               lambda out: ("learn", log, *contexts, "--objective", "beta_ips", "--epochs", "3", "--out", out, "--force"),
               is_tensors, old_text),
    ]  # fmt: skip


def judge_file(writer: Writer, out: Path, before: bytes | None, ended: Ended) -> str:
    """What is wrong with the file that a command was writing when something happened; nothing where all is well."""
    others = leftovers(out.parent, out)
    if others:
        return f"{writer.name}: {others} ({ended})"
    now = out.read_bytes() if out.exists() else None
    if now == before and not ended.is_answer:
        return ""
    try:
        is_whole = now is not None and now != before and writer.is_whole(now)
    except (ValueError, KeyError, IndexError):
        is_whole = False
    return "" if is_whole else f"{writer.name}: {out.name} is neither the old file nor a whole new one ({ended})"


def signals(audit: Audit) -> None:
    """Ctrl-C, and the signal of a scheduler, at any moment of a long command."""
    dice, place = audit.dice("signals"), audit.place("signals")
    logs = audit.place("signals/logs")
    chosen = writers(logs, 150_000)
    usual = {}
    for writer in chosen:
        out = audit.place("signals/out") / f"file{writer.ending}"
        usual[writer] = expect(Command(command(*writer.arguments(out))).wait()).seconds
    for name, codes in (("SIGINT", (130,)), ("SIGTERM", (143, -signal.SIGTERM))):
        for k in range(audit.share(0.25)):
            writer = chosen[k % len(chosen)]
            out = audit.place("signals/out") / f"file{writer.ending}"
            if dice.random() < 0.5:
                writer.old(out)
            before = out.read_bytes() if out.exists() else None
            job = Command(command(*writer.arguments(out)))
            time.sleep(dice.uniform(0.05, 1.0) * usual[writer])
            job.send(getattr(signal, name))
            ended = job.wait()
            problem = judge_file(writer, out, before, ended)
            if not (ended.is_answer or (ended.code in codes and "Traceback" not in ended.err)):
                problem = f"{writer.name}: {problem} {ended}"
            audit.count(f"{name} while a file is written", problem, out)
    shutil.rmtree(place)


def full_disks(audit: Audit) -> None:
    """No room for the file, or for all of it: an error in words, and what was there before."""
    dice, logs = audit.dice("disks"), audit.place("disks/logs")
    chosen = writers(logs, 3000)
    sizes = {}
    for writer in chosen:
        out = audit.place("disks/out") / f"file{writer.ending}"
        expect(Command(command(*writer.arguments(out))).wait())
        sizes[writer] = out.stat().st_size
    with small_disk(audit.place("disks/small")) as disk:
        kinds = ["a limit on the size of files"] + (["a full disk"] if disk is not None else [])
        for kind in kinds:
            for k in range(audit.share(0.4)):
                writer = chosen[k % len(chosen)]
                is_disk = disk is not None and kind == "a full disk"
                folder = empty(disk / "out") if is_disk and disk is not None else audit.place("disks/out")
                out = folder / f"file{writer.ending}"
                writer.old(out)
                before, room = out.read_bytes(), int(dice.random() * sizes[writer])
                if is_disk and disk is not None:
                    fill(disk, room)
                limit = None if is_disk else room
                ended = Command(command(*writer.arguments(out)), limit).wait()
                problem = judge_file(writer, out, before, ended)
                if not (ended.is_answer or ended.is_refusal):
                    problem = f"{writer.name}: {problem} {ended}"
                audit.count(kind, problem, out)


@contextmanager
def small_disk(place: Path, size: int = 4 * 2**20) -> Iterator[Path | None]:
    """A disk of a few megabytes, where one may be had: root may mount one."""
    libc = ctypes.CDLL(None, use_errno=True)
    where = os.fsencode(place)
    if (
        os.geteuid() != 0
        or sys.platform != "linux"
        or libc.mount(b"tmpfs", where, b"tmpfs", 0, f"size={size}".encode())
    ):
        yield None
        return
    try:
        yield place
    finally:
        libc.umount2(where, 2)  # when nobody is using it any more


def fill(disk: Path, room: int) -> None:
    """Leave so many bytes free."""
    filler = disk / "filler"
    filler.unlink(missing_ok=True)
    free = shutil.disk_usage(disk).free
    filler.write_bytes(b"\0" * max(0, free - room))


def empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    (folder.parent / "filler").unlink(missing_ok=True)
    folder.mkdir()
    return folder


# -- damaged files -----------------------------------------------------------------------------------------------------


def flip(data: bytes, dice: random.Random, count: int = 1) -> bytes:
    """Some bits turned: half of the time near an end, where formats keep what they live by."""
    changed = bytearray(data)
    for _ in range(count):
        edge = min(600, len(data))
        place = dice.randrange(len(data))
        if dice.random() < 0.5:
            place = dice.choice([dice.randrange(edge), len(data) - 1 - dice.randrange(edge)])
        changed[place] ^= 1 << dice.randrange(8)
    return bytes(changed)


def cut(data: bytes, dice: random.Random) -> bytes:
    return data[: dice.randrange(len(data))]


def scramble(data: bytes, dice: random.Random) -> bytes:
    """A stretch of zeros or noise, a stretch lost, or one written twice."""
    start = dice.randrange(len(data))
    end = min(len(data), start + dice.randrange(1, 200))
    middle = dice.choice([bytes(end - start), dice.randbytes(end - start), b"", data[start:end] * 2])
    return data[:start] + middle + data[end:]


def damaged(data: bytes, dice: random.Random) -> tuple[str, bytes]:
    """The file after an accident, and what happened to it."""
    accident = dice.choice(["one bit", "some bits", "cut", "scrambled"])
    match accident:
        case "one bit":
            return accident, flip(data, dice)
        case "some bits":
            return accident, flip(data, dice, dice.randrange(2, 9))
        case "cut":
            return accident, cut(data, dice)
        case _:
            return accident, scramble(data, dice)


def logs(audit: Audit) -> None:
    """Damaged logs are refused in words, or read; where the format can tell that it is damaged, no other answer comes of it."""
    place = audit.place("damaged")
    originals = [simulate(place / f"log{ending}", 300, seed=3) for ending in (".parquet", ".csv", ".arrow", ".jsonl")]
    zipped = place / "log.csv.gz"
    zipped.write_bytes(gzip.compress((place / "log.csv").read_bytes()))
    for original in [*originals, zipped]:
        ending = "".join(original.suffixes)
        kind, dice = f"damaged {ending}", audit.dice(original.name)
        data, expected = original.read_bytes(), answer(expect(run("evaluate", original, *ASK, "--json")))
        for k in range(audit.share(0.8)):
            accident, broken = damaged(data, dice)
            path = place / f"broken{ending}"
            path.write_bytes(broken)
            if k % 5 == 4:
                ended = run("doctor", path, "--reward", "reward", "--propensity", "propensity", "--json")
                audit.count(kind, "" if ended.is_answer or ended.is_refusal or ended.code == 1 else str(ended), path)
                continue
            ended = run("evaluate", path, *ASK, "--json")
            problem = "" if ended.is_answer or ended.is_refusal else f"{accident}: {ended}"
            knows = ending == ".csv.gz" or (accident == "cut" and ending in (".parquet", ".arrow"))
            if ended.is_answer and knows and not same(answer(ended), expected):
                problem = f"{accident}: another answer"
            audit.count(kind, problem, path)


def states(audit: Audit) -> None:
    """A damaged state is refused, or gives the very answer of the whole one; its day is never taken a second time."""
    place, dice = audit.place("states"), audit.dice("states")
    first, second = (simulate(place / f"{k}.parquet", seed=k) for k in (1, 2))
    state, copy = place / "state.json", place / "copy.json"
    expect(run(*add(first, state)))
    data = state.read_bytes()
    shutil.copy(state, copy)
    expected = expect(run(*add(second, copy))).out
    for _ in range(audit.trials):
        accident, broken = damaged(data, dice)
        for kind, day in (("damaged state, a new day", second), ("damaged state, the same day again", first)):
            copy.write_bytes(broken)
            ended = run(*add(day, copy))
            problem = "" if ended.is_answer or ended.is_refusal else f"{accident}: {ended}"
            if ended.is_answer and (
                day == first or ended.out != expected
            ):  # to the last digit: nothing else is the same state
                problem = f"{accident}: {'taken twice' if day == first else 'another answer'}"
            copy.write_bytes(broken)
            audit.count(kind, problem, copy)


def learning(audit: Audit) -> None:
    """Damaged policies and checkpoints are refused in words before anything large is made of them, or are what they were.

    Crafted ones have a checksum that is right and numbers that are not; an index among them must lead nowhere outside.
    """
    place = audit.place("learning")

    def in_words(work: Callable[[], object]) -> Callable[[], object]:
        def wrapped() -> None:
            from counterpoise.errors import CounterpoiseError

            try:
                work()
            except CounterpoiseError as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr)
                raise SystemExit(2) from None

        return wrapped

    def load(path: Path) -> Callable[[], object]:
        def work() -> None:
            import torch

            from counterpoise.learn import load_policy

            print(load_policy(path).predict_proba(torch.linspace(-2, 2, 40).reshape(8, 5)).tolist())

        return in_words(work)

    def craft(kind: str, path: Path, seed: int) -> Callable[[], object]:
        """A policy with one number changed, and a checksum that fits."""

        def work() -> None:
            from counterpoise.learn import LinearSoftmax
            from counterpoise.learn.forest import Forest
            from counterpoise.learn.policy import save_policy
            from counterpoise.learn.tensor_files import read_tensors, write_tensors

            forest = Forest(5, 4, trees=2, nodes=2, leaves=2, depth=1)
            save_policy(forest if kind == "forest" else LinearSoftmax(5, 4), path)
            tensors, description = read_tensors(path)
            dice = random.Random(seed)
            tensor = tensors[dice.choice(sorted(tensors))].view(-1)
            numbers = (
                (2**62, -1, 7, -(2**40)) if not tensor.is_floating_point() else (float("nan"), 1e30, -float("inf"))
            )
            tensor[dice.randrange(len(tensor))] = dice.choice(numbers)
            if dice.random() < 0.3:
                description["config"][dice.choice(["context", "lesson", "encoding", "temperature"])] = dice.choice(
                    [7, "x", [1], {"keys": "AAAA"}, -1.0]
                )
            write_tensors(path, tensors, description)

        return in_words(work)

    def fit(path: Path, epochs: int) -> Callable[[], object]:
        def work() -> None:
            from counterpoise.environments import SyntheticBandit
            from counterpoise.learn import PolicyLearner

            log = SyntheticBandit(n_actions=4, seed=1).draw(200)
            learner = PolicyLearner(epochs=epochs, batch_size=50, checkpoint=path, folds=None)
            learner.fit(context=log.context, action=log.action, reward=log.reward, propensity=log.propensity)
            learner.save(place / "policy.safetensors")

        return in_words(work)

    policy, checkpoint = place / "policy.safetensors", place / "checkpoint.safetensors"
    expect(Command(fit(checkpoint, 3)).wait())
    whole = expect(Command(load(policy)).wait())
    for kind, original, open_it in (
        ("damaged policy", policy, load),
        ("damaged checkpoint", checkpoint, lambda path: fit(path, 3)),
    ):
        data, dice, path = original.read_bytes(), audit.dice(kind), place / "broken.safetensors"
        for _ in range(audit.share(0.8)):
            accident, broken = damaged(data, dice)
            path.write_bytes(broken)
            ended = Command(open_it(path)).wait()
            path.write_bytes(broken)
            problem = "" if ended.is_answer or ended.is_refusal else f"{accident}: {ended}"
            if kind == "damaged policy" and ended.is_answer and ended.out != whole.out:
                problem = f"{accident}: it is read as another policy"
            audit.count(kind, problem, path)
    for trial in range(audit.share(0.8)):
        kind, path = ("forest", "linear")[trial % 2], place / "crafted.safetensors"
        expect(Command(craft(kind, path, audit.seed + trial)).wait())
        ended = Command(load(path)).wait()
        audit.count("crafted policy", "" if ended.is_answer or ended.is_refusal else f"{kind}: {ended}", path)


def forks(audit: Audit) -> None:
    """A child of a process in which polars has run answers or refuses, and never waits forever."""
    place = audit.place("forks")
    log = simulate(place / "log.parquet")

    def work(verb: str) -> Callable[[], object]:
        def forked() -> None:
            import polars as pl

            import counterpoise as cp

            rows = pl.scan_parquet(log)
            data = {"frame": rows.collect(), "lazy": rows, "arrays": rows.collect().to_dict(), "file": log}[verb]
            rows.group_by("action").agg(pl.col("reward").sum()).collect()
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    cp.evaluate(data, reward="reward", propensity="propensity", target="pi_new")
                    code = 0
                except cp.OptionError as error:
                    print(error, file=sys.stderr)
                    code = 2
                finally:
                    sys.stderr.flush()
                    os._exit(code)
            raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

        return forked

    for trial in range(audit.share(0.2)):
        verb = ("frame", "lazy", "arrays", "file")[trial % 4]
        ended = Command(work(verb)).wait(20.0)
        audit.count("child of a fork", "" if ended.is_answer or ended.is_refusal else f"{verb}: {ended}")


def unwritable(audit: Audit) -> None:
    """An output that cannot be written is an error in words, and leaves nothing behind."""
    place = audit.place("unwritable")
    for writer in writers(place, 400):
        for trial in range(audit.share(0.05)):
            folder = audit.place("unwritable outputs")
            (folder / "file").write_text("old")
            (folder / "folder").mkdir()
            out = (folder / "file" / "out", folder / "absent" / "deep" / "out", folder / "folder")[trial % 3]
            ended = run(*writer.arguments(out if out.is_dir() else out.with_suffix(writer.ending)))
            shutil.rmtree(folder / "absent", ignore_errors=True)  # which learning makes
            others = leftovers(folder, folder / "file", folder / "folder") or leftovers(folder / "folder")
            problem = others if ended.is_refusal or (ended.is_answer and trial % 3 == 1) else str(ended)
            audit.count("unwritable output", f"{writer.name}: {problem}" if problem else "")


# -- doors -------------------------------------------------------------------------------------------------------------


def within(folder: Path, *arguments: object) -> Ended:
    """`counterpoise …` in a folder, to its end."""
    work = command(*arguments)

    def there() -> None:
        os.chdir(folder)
        work()

    return Command(there).wait()


def settings(audit: Audit) -> None:
    """A counterpoise.toml that lies in the folder, with an option hidden in a value: it reaches nothing outside, and overwrites nothing."""
    kind, dice = "option in a counterpoise.toml", audit.dice("settings")
    repository, victim = audit.place("settings/repository"), audit.place("settings/victim") / "notes.txt"
    log = simulate(repository / "log.parquet")
    secret = repository / "secret.db"
    hidden = [
        f"--html={victim}",
        f"--html {victim}",
        f"--state={victim}",
        "--replace",
        "--external-access",
        "--force",
        "--import=os",
    ]
    hidden += [
        f"--out={victim}",
        f"--config={victim}",
        "-h",
        "--help",
        f"\n--html={victim}",
        f"\N{EN DASH}html={victim}",
        f" --html={victim}",
    ]
    keys = (
        "log",
        "items",
        "reward",
        "propensity",
        "target",
        "always",
        "segment",
        "where",
        "context",
        "cluster",
        "unit",
        "table",
        "query",
    )
    for _ in range(audit.trials):
        victim.write_text("mine")
        secret.write_text("mine")
        name, text, key = (
            dice.choice(("evaluate", "compare", "doctor", "distribution")),
            dice.choice(hidden),
            dice.choice(keys),
        )
        value = dice.choice(
            (text, ["log.parquet", text], ["log.parquet", "--html", str(victim)], {"html": str(victim)})
        )
        values = {"log": "log.parquet", "reward": "reward", "propensity": "propensity", "target": "pi_new"} | {
            key: value
        }
        if dice.random() < 0.3:
            values = dict(values, log="log.parquet") | {
                dice.choice(("html", "state")): str(dice.choice((victim, f"../victim/{victim.name}", secret.name)))
            }
        lines = [
            f"{part} = {json.dumps(one) if not isinstance(one, dict) else '{ html = ' + json.dumps(one['html']) + ' }'}"
            for part, one in values.items()
        ]
        (repository / "counterpoise.toml").write_text("\n".join([f"[{name}]", *lines]) + "\n")
        ended = within(repository, name)
        problem = "" if ended.is_answer or ended.is_refusal else str(ended)
        if victim.read_text() != "mine" or secret.read_text() != "mine":
            problem = f"it overwrote a file: {ended}"
        others = leftovers(repository, log, secret, repository / "counterpoise.toml") or leftovers(
            victim.parent, victim
        )
        audit.count(kind, problem or others, repository / "counterpoise.toml")


def links(audit: Audit) -> None:
    """An output that is a link: the file it leads to stays as it was, or is not made."""
    place = audit.place("links")
    for writer in writers(place, 400):
        for trial in range(audit.share(0.1)):
            folder = audit.place("linked outputs")
            victim, link = folder / "victim", folder / f"link{writer.ending}"
            if is_there := trial % 2 == 0:
                victim.write_text("mine")
            link.symlink_to(victim)
            ended = run(*writer.arguments(link))
            problem = "" if ended.is_answer or ended.is_refusal else str(ended)
            if victim.exists() != is_there or (is_there and victim.read_text() != "mine"):
                problem = f"it was written through: {ended}"
            audit.count("linked output", f"{writer.name}: {problem}" if problem else leftovers(folder, victim, link))


ENDLESS = """
WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT (n + 1) % 1000000 + 1 FROM t WHERE n > 0)
SELECT log.* FROM log, (SELECT max(n) AS n FROM t) u WHERE u.n > 0
"""


def endless(audit: Audit) -> None:
    """A query that never ends, in DuckDB and in SQLite: --timeout stops it, and so does Ctrl-C."""
    place = audit.place("endless")
    log = simulate(place / "log.parquet")
    databases = {"duckdb": place / "log.duckdb", "sqlite": f"sqlite://{place / 'log.sqlite'}"}

    def make() -> None:  # in a child: a fork of a process with its threads may hang
        import sqlite3

        import duckdb
        import polars as pl

        rows = pl.read_parquet(log)
        with duckdb.connect(place / "log.duckdb") as connection:
            connection.execute(f"CREATE TABLE log AS SELECT * FROM '{log}'")
        with sqlite3.connect(place / "log.sqlite") as lite:
            lite.execute(f"CREATE TABLE log ({', '.join(rows.columns)})")
            lite.executemany(f"INSERT INTO log VALUES ({', '.join('?' * rows.width)})", rows.rows())

    expect(Command(make).wait())
    for trial in range(audit.share(0.1)):
        for name, where in databases.items():
            asked = ("evaluate", where, "--query", ENDLESS, *ASK)
            ended = Command(command(*asked, "--timeout", 1 + trial % 3)).wait(60.0)
            audit.count(
                f"endless query, --timeout ({name})",
                "" if ended.is_refusal and "--timeout" in ended.err else str(ended),
            )
            job = Command(command(*asked))
            time.sleep(2.0 + trial % 3)
            job.send(signal.SIGINT)
            ended = job.wait(60.0)
            audit.count(
                f"endless query, Ctrl-C ({name})", "" if ended.code == 130 and ended.seconds < 30.0 else str(ended)
            )


SECTIONS: dict[str, Callable[[Audit], None]] = {
    "kills": kills,
    "at-once": at_once,
    "states": states,
    "logs": logs,
    "learning": learning,
    "forks": forks,
    "unwritable": unwritable,
    "disks": full_disks,
    "signals": signals,
    "settings": settings,
    "links": links,
    "endless": endless,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two trials of each kind")
    parser.add_argument("--write", action="store_true", help="write the table into RESULTS.md")
    parser.add_argument("--trials", type=int, default=60, help="of each kind; dear ones get a part of them")
    parser.add_argument("--seed", type=int, default=0, help="of the dice; the same seed damages the same bits")
    parser.add_argument("--only", choices=list(SECTIONS), action="append", help="this kind alone; may be repeated")
    parser.add_argument("--keep", type=Path, help="a folder for the files of the trials that were lost")
    options = parser.parse_args()
    from bench import recording  # beside this script, which tests import from elsewhere

    chosen = options.only or list(SECTIONS)
    needs_torch = {"learning", "disks", "signals", "unwritable", "links"} & set(chosen)
    # imported, and not used: a fork of a process in which an engine's threads run may hang
    for name in (IMPORTED + TORCH if needs_torch else IMPORTED).split():
        importlib.import_module(name)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="counterpoise-audit-") as folder:
        audit = Audit(Path(folder), 2 if options.quick else options.trials, options.seed, options.keep)
        for name in chosen:
            print(f"{name} …", file=sys.stderr, flush=True)
            SECTIONS[name](audit)
    with recording("audit table", sys.argv[1:], is_on=options.write):
        for kind, losses in audit.lost.items():
            print(f"\nLost, {kind}:")
            print("\n".join(f"  {loss}" for loss in losses[:5]))
            print(f"  and {len(losses) - 5:,} more" if len(losses) > 5 else "", end="\n" if len(losses) > 5 else "")
        print(f"\n{audit.table()}\n{time.monotonic() - began:,.0f} s")
    raise SystemExit(1 if audit.lost else 0)


if __name__ == "__main__":
    main()
