"""Libraries, their environments and processes, and the cells of a run, which are kept: what `peers.py` builds its tasks on."""

from __future__ import annotations

import json
import math
import re
import select
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1]
PLACE = FOLDER.parent / ".peers"
LIMIT = 120.0  # seconds of a call
PATIENCE = 25.0  # seconds of a cell, until which calls are repeated
MEMORY = 8000.0  # MB
Record = dict[str, Any]


# -- the libraries and their environments -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Peer:
    """A library: `peer/NAME.py` calls it, and `.peers/NAME` has it."""

    title: str
    packages: tuple[str, ...] = ()
    """What pip is asked for; nothing if our own environment has it."""
    then: tuple[str, ...] = ()
    """And then, in a second call."""
    imports: str = ""
    """What a first evaluation imports."""
    module: str = ""
    """The module that calls it, if it is not called as the library is."""
    takes_tables: bool = False
    """Whether a policy comes in as a table of all rows and actions."""
    is_quick: bool = False
    """Whether a quick run has it."""


OBP = (
    "numpy==1.26.4", "scikit-learn==1.3.2", "scipy==1.12.0", "pandas==2.2.1", "torch==2.13.0", "matplotlib", "seaborn", "tqdm",
    "pyyaml", "pyarrow==23.0.1",
)  # fmt: skip
"""The newest on which all of it runs: with scikit-learn 1.4, its MIPS and its models of propensities fail."""
PEERS: dict[str, Peer] = {
    "ours": Peer("counterpoise", imports="counterpoise.evaluation.evaluate", is_quick=True),
    "ours_from_tables": Peer("counterpoise, from tables", takes_tables=True, is_quick=True),
    "numpy_by_hand": Peer("NumPy by hand", is_quick=True),
    "polars_by_hand": Peer("polars by hand", is_quick=True),
    "duckdb_by_hand": Peer("DuckDB by hand", is_quick=True),
    "scikit_learn": Peer("scikit-learn, argmax", is_quick=True),
    "paper_recipe": Peer("the paper's recipe", is_quick=True),
    "obp": Peer(
        "Open Bandit Pipeline",
        OBP,
        ("--no-deps", "--ignore-requires-python", "obp==0.5.7"),
        "obp.ope",
        takes_tables=True,
        is_quick=True,
    ),
    "skdr_eval": Peer("skdr-eval", ("skdr-eval[cli]==0.12.0",), imports="skdr_eval", takes_tables=True, is_quick=True),
    "pybandits": Peer(
        "pybandits", ("pybandits==8.4.1", "pandas"), imports="pybandits.offline_policy_estimator", takes_tables=True
    ),
    "vw_estimators": Peer("vw-estimators", ("vw-estimators==0.2.2",), imports="estimators.bandits.ips", is_quick=True),
    "coba": Peer("coba", ("coba==8.1.0", "vowpalwabbit==9.11.9", "numpy"), imports="coba"),
    "jurity": Peer("jurity", ("jurity==2.1.0", "pandas<3"), imports="jurity.recommenders"),
    "contextualbandits": Peer(
        "contextualbandits", ("contextualbandits==0.3.30", "costsensitive", "numpy<2.4"), imports="contextualbandits"
    ),
    "scope_rl": Peer("SCOPE-RL", ("torch==2.13.0", "scope-rl==0.2.1"), imports="scope_rl.ope", takes_tables=True),
    "econml": Peer("econml", ("econml==0.17.0",), imports="econml.policy"),
    "doubleml": Peer("doubleml", ("doubleml==0.11.4",), imports="doubleml", takes_tables=True),
}


def python_of(name: str) -> str:
    """The Python that runs a library."""
    return str(PLACE / name / "bin" / "python") if PEERS[name].packages else sys.executable


def built(name: str) -> Record:
    """What building its environment took, or its error in one line; built if it is not there."""
    peer, place = PEERS[name], PLACE / name
    note = place / "built.json"
    if not peer.packages:
        return {"seconds": math.nan}
    if note.exists():
        return json.loads(note.read_text(encoding="utf-8"))
    print(f"building {place.name} …", file=sys.stderr, flush=True)
    return build(place, peer.packages, peer.then)


def build(place: Path, *calls: tuple[str, ...]) -> Record:
    """A new environment with what each call of pip is asked for, nothing of it from a cache."""
    shutil.rmtree(place, ignore_errors=True)
    began, record = time.perf_counter(), {}
    pip = ["-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check"]
    try:
        subprocess.run([sys.executable, "-m", "venv", place], check=True, capture_output=True, text=True)
        for packages in filter(None, calls):
            command = [place / "bin" / "python", *pip, *packages]
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=900)
    except subprocess.TimeoutExpired:
        record = {"error": "pip took more than 900 s"}
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if re.match("error", line, re.IGNORECASE)]
        record = {"error": " ".join((lines or error.stderr.splitlines() or ["pip failed"])[-1].split())[:200]}
    record["seconds"] = time.perf_counter() - began
    place.mkdir(parents=True, exist_ok=True)
    (place / "built.json").write_text(json.dumps(record), encoding="utf-8")
    return record


def lineup(names: Sequence[str], task: str, *, quick: bool) -> list[str]:
    """Those that have a task, and whose environments can be built; a quick run has some of them."""
    chosen = [name for name in PEERS if name in names and (PEERS[name].is_quick or not quick)]
    return [name for name in chosen if has_task(name, task) and "error" not in built(name)]


@cache
def source_of(name: str) -> str:
    path = FOLDER / "peer" / f"{name}.py"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def has_task(name: str, task: str) -> bool:
    return re.search(rf"^def {task}\(", source_of(name), re.MULTILINE) is not None


# -- a library at work ------------------------------------------------------------------------------------------------------


class Worker:
    """A process in a library's Python that does one task after another; it is started when it is needed."""

    def __init__(self, name: str) -> None:
        self.name, self.process = name, None

    def start(self) -> None:
        command = [python_of(self.name), "-m", "peer.worker", self.name]
        with (PLACE / f"{self.name}.log").open("a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                command, cwd=FOLDER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            with suppress(BrokenPipeError):
                self.process.stdin.close()
            self.process.stdout.close()
            self.process.wait()
        self.process = None

    def ask(self, limit: float, **question: Any) -> Record:
        """An answer, or an error: too slow, too large, or whatever the library raised."""
        if self.process is None:
            self.start()
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return self.give_up("the process ended")
        until = time.perf_counter() + limit
        while not select.select([self.process.stdout], [], [], 0.02)[0]:
            if time.perf_counter() > until:
                return self.give_up(f"more than {limit:.0f} s", is_limit=True)
            if resident(self.process.pid) > MEMORY:
                return self.give_up(f"more than {MEMORY / 1000:.0f} GB", is_limit=True)
        line = self.process.stdout.readline()
        return json.loads(line) if line else self.give_up("the process ended")

    def give_up(self, why: str, *, is_limit: bool = False) -> Record:
        self.stop()
        return {"error": why, "is_limit": is_limit}


def resident(pid: int) -> float:
    """Resident memory of a process in MB."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1000 for line in lines if line.startswith("VmRSS")), 0.0)


@contextmanager
def workers(names: Sequence[str]) -> Iterator[dict[str, Worker]]:
    team = {name: Worker(name) for name in names}
    try:
        yield team
    finally:
        for worker in team.values():
            worker.stop()


# -- cells, which are kept --------------------------------------------------------------------------------------------------


class Store:
    """Results by task and cell: a line of JSON each, so that a run that is stopped loses one cell at most."""

    def __init__(self, *, quick: bool) -> None:
        self.path = PLACE / ("quick.jsonl" if quick else "results.jsonl")
        self.cells: dict[str, Record] = {}
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                kept = json.loads(line)
                self.cells[kept["key"]] = kept["cell"]

    @staticmethod
    def key(task: str, spec: Mapping[str, Any]) -> str:
        return f"{task} {json.dumps(spec, sort_keys=True)}"

    def get(self, task: str, spec: Mapping[str, Any]) -> Record:
        """What is known of a cell, library by library."""
        return self.cells.get(self.key(task, spec), {})

    def put(self, task: str, spec: Mapping[str, Any], cell: Record) -> None:
        self.cells[self.key(task, spec)] = cell
        PLACE.mkdir(exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:  # a line at a time, so that threads do not mix
            file.write(json.dumps({"key": self.key(task, spec), "cell": cell}) + "\n")


Spec = dict[str, Any]


@dataclass
class Race:
    """Libraries that do one task at several sizes, in turns."""

    task: str
    names: list[str]
    store: Store
    repeats: int = 5
    fresh: bool = False
    limit: float = LIMIT
    """Seconds of a call."""

    def run(self, specs: Sequence[Spec], warm: Spec | None = None) -> list[tuple[Spec, Record]]:
        """Every cell: from the store, or measured; who fails for time or memory is spared what is larger in every way."""
        found, failed = [], {}
        with workers(self.names) as team:
            for spec in specs:
                cell = {} if self.fresh else self.store.get(self.task, spec)
                if not set(self.names) <= set(cell):  # whoever is missing runs beside ours, in the same minutes
                    cell = cell | self.measure(team, spec, warm, failed | self.too_slow(spec, found))
                    self.store.put(self.task, spec, cell)
                for name, record in cell.items():
                    if record.get("is_limit"):
                        failed.setdefault(name, []).append((spec, record["error"]))
                found.append((spec, {name: cell[name] for name in self.names}))
        return found

    def too_slow(self, spec: Spec, before: list[tuple[Spec, Record]]) -> Record:
        """Who would need longer than it may, if its time grew as the rows do from the largest smaller log."""
        fixed = ("rows", "path")
        smaller = [
            (than, cell) for than, cell in before
            if is_larger(spec, than) and all(than[key] == spec[key] for key in spec if key not in fixed)
        ]  # fmt: skip
        slow = {}
        for than, cell in smaller[-1:]:
            for name, record in cell.items():
                seconds = statistics.median(record["seconds"]) if "seconds" in record else 0.0
                if seconds * spec["rows"] / than["rows"] > self.limit:
                    slow[name] = [(than, f"more than {self.limit:.0f} s ({than['rows']:,} rows took {seconds:.0f})")]
        return slow

    def measure(self, team: dict[str, Worker], spec: Spec, warm: Spec | None, failed: Record) -> Record:
        print(f"{self.task} {spec}", file=sys.stderr, flush=True)
        rounds: dict[str, list[Record]] = {name: [] for name in team}
        errors: dict[str, Record] = {}
        for name, before in failed.items():
            larger = [why for smaller, why in before if is_larger(spec, smaller)]
            if larger:
                errors[name] = {"error": larger[0], "is_limit": True}
        gigabytes = spec.get("rows", 0) * spec.get("actions", 0) * 8e-9
        if gigabytes * 1000 >= MEMORY and self.task != "files":
            why = f"more than {MEMORY / 1000:.0f} GB (one of its tables has {gigabytes:.0f})"
            errors |= {name: {"error": why, "is_limit": True} for name in team if PEERS[name].takes_tables}
        spent = dict.fromkeys(team, 0.0)
        for k in range(self.repeats):
            for name, worker in team.items():
                if name in errors or (k and spent[name] * (k + 1) / k > PATIENCE):
                    continue
                began = time.perf_counter()
                answer = worker.ask(self.limit, do="prepare", task=self.task, spec=spec, warm=warm)
                answer = answer if "error" in answer else worker.ask(self.limit, do="run")
                spent[name] += time.perf_counter() - began
                if "error" in answer:
                    errors[name] = answer
                else:
                    rounds[name].append(answer)
        return {name: errors.get(name) or summary(rounds[name]) for name in team}


def is_larger(spec: Spec, than: Spec) -> bool:
    numbers = [key for key, value in spec.items() if isinstance(value, int)]
    return all(spec[key] >= than[key] for key in numbers)


def summary(rounds: list[Record]) -> Record:
    """What is kept of several runs of one call."""
    return {
        "seconds": [each["seconds"] for each in rounds],
        "cpu": [each["cpu"] for each in rounds],
        "peak_mb": max(each["peak_mb"] for each in rounds),
        "answer": rounds[0]["answer"],
        "warnings": rounds[0]["warnings"],
    }
