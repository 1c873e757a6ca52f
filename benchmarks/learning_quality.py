"""What `learn_policy` makes of logs whose truth is known, beside the Open Bandit Pipeline's learners.

    python benchmarks/learning_quality.py --obp /path/to/obp/bin/python     # 16 logs, 5 seeds, two processes of one thread
    python benchmarks/learning_quality.py --only digits greedy99 --seeds 2  # some logs, without peers
    python benchmarks/learning_quality.py --obp … --peers-only --csv peers.csv
    python benchmarks/learning_quality.py --peers peers.csv --strict        # peers as measured before; exit 1 if a promise is broken

The logs are those of `learning_logs.py`. On nine of them, the true value of our greedy policy stands next to those of the Pipeline's
learners, which need an environment of their own (`pip install obp` in it, and name its Python with `--obp`). On seven that are hard,
the policy that was handed out, with its own probabilities, is held against what logging earned, and the value that was reported, which is
that of the fold policies, against their true one.

Promises: within .01 of the best peer on every log, and ahead on two thirds; never below logging by more than .01 (where rewards are
amounts: by more than 1 % of what it earned); 90 % of the reported intervals cover, where the verdict does not say no; and the chosen
learner's own fit takes no longer than that of the fastest peer within .01 of it, or better.
"""

from __future__ import annotations

import argparse
import csv
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from typing import Any

import numpy as np
from learning_logs import HARD, LOGS, World, draw

NEAR = 0.01
AHEAD = 2 / 3
COVERED = 0.9
NO = "not identified"
PEERS = {
    "logistic": "IPW-logistic", "forest": "IPW-forest", "small_forest": "IPW-forest of 30", "network": "NN-IPW",
}  # fmt: skip
LEARNERS = ["logistic", "forest", "small_forest"]  # unless others are asked for: the network takes minutes a log
FOREST_CELLS = 5_000_000  # rows times actions, beyond which a forest of 100 trees takes minutes and gigabytes
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"), "1")
COLUMNS = [
    "log", "seed", "actions", "rows", "logging", "greedy", "handed_out", "chosen", "kind", "fit_seconds", "seconds",
    "reported", "lower", "upper", "folds", "verdict", *(key + unit for key in PEERS for unit in ("", "_seconds")), "error",
]  # fmt: skip
Row = dict[str, Any]


def ours(world: World, seed: int, minutes: float) -> Row:
    """What `learn_policy` finds with its defaults, and how good it is in truth."""
    import counterpoise as cp
    from counterpoise.evaluation.reading import read

    found = cp.learn_policy(
        context=world.context, action=world.action, reward=world.reward, propensity=world.propensity,
        minutes=minutes, seed=seed,
    )  # fmt: skip
    result = found.result
    estimate = result[result.targets[0], read(result).primary]
    return {
        "greedy": world.greedy_value(partial(probabilities, world, found.policy)),
        "handed_out": true_value(world, found.policy),
        "chosen": found.name,
        "kind": found.kind,
        "fit_seconds": found.fit_seconds,
        "seconds": found.seconds,
        "reported": estimate.value,
        "lower": estimate.interval.lower,
        "upper": estimate.interval.upper,
        "folds": np.mean([true_value(world, one) for one in found.policies]),
        "verdict": result.verdict().verdict,
    }


def true_value(world: World, policy: Any) -> float:
    """The true value of a policy that draws its actions."""
    return world.value(partial(probabilities, world, policy))


def probabilities(world: World, policy: Any, context: np.ndarray) -> np.ndarray:
    """A policy's probabilities of all actions; it knows those alone that were logged."""
    found = np.zeros((len(context), world.n_actions))
    found[:, policy.classes_] = policy.predict_proba(context)
    return found


def peers(world: World, seed: int, obp: str, names: list[str]) -> Row:
    """True values and seconds of the Pipeline's learners, which see the log and the test set's contexts only."""
    if len(world.action) * world.n_actions > FOREST_CELLS:
        names = [name for name in names if name != "forest"]
    script = pathlib.Path(__file__).with_name("learning_peers.py")
    with tempfile.TemporaryDirectory() as folder:
        log, greedy = f"{folder}/log.npz", f"{folder}/greedy.npz"
        np.savez(
            log, context=world.context, action=world.action, reward=world.reward, propensity=world.propensity,
            n_actions=world.n_actions, test_context=world.test_context, seed=seed,
        )  # fmt: skip
        done = subprocess.run([obp, "-E", script, log, greedy, *names], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"the Pipeline's learners failed: {done.stderr.strip().splitlines()[-1]}")
        with np.load(greedy) as file:
            found = {key: file[key] for key in file.files}
    each = np.arange(len(world.test_reward))
    values = {name: world.test_reward[each, found[name]].mean(dtype=np.float64) for name in names}
    return values | {f"{name}_seconds": float(found[f"{name}_seconds"]) for name in names}


def measure(job: tuple[str, int], given: argparse.Namespace) -> Row:
    """One log and seed."""
    name, seed = job
    world = draw(name, seed)
    row: Row = {"log": name, "seed": seed, "actions": world.n_actions, "rows": len(world.action)}
    row["logging"] = world.logging_value
    try:
        if not given.peers_only:
            row |= ours(world, seed, given.minutes)
        if given.obp and name not in HARD:
            row |= peers(world, seed, given.obp, given.learners)
    except Exception as error:  # the other logs go on, and the failure is reported at the end
        row["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
    return row


def load_modules() -> None:
    """Import what a worker needs, so that no log's seconds include it."""
    for name in ("counterpoise.learn", "sklearn.ensemble", "sklearn.linear_model", "torch"):
        import_module(name)


def measured(given: argparse.Namespace) -> list[Row]:
    """All logs and seeds, written down and said as they come."""
    jobs = [(name, seed) for name in given.only for seed in range(given.first_seed, given.first_seed + given.seeds)]
    known = peers_of(given.peers) if given.peers else {}
    rows = []
    with (
        get_context("spawn").Pool(given.processes, load_modules, maxtasksperchild=10) as pool,
        open(given.csv or os.devnull, "w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for row in pool.imap_unordered(partial(measure, given=given), jobs):
            rows.append(known.get((row["log"], row["seed"]), {}) | row)
            writer.writerow(rows[-1])
            file.flush()
            print(f"[{len(rows)} of {len(jobs)}] {progress(rows[-1])}", file=sys.stderr, flush=True)
    return sorted(rows, key=lambda row: jobs.index((row["log"], row["seed"])))


def peers_of(path: pathlib.Path) -> dict[tuple[str, int], Row]:
    """The peers' columns of an earlier `--csv`."""
    with open(path, newline="", encoding="utf-8") as file:
        return {
            (row["log"], int(row["seed"])): {
                key: float(row[key]) for one in PEERS for key in (one, f"{one}_seconds") if row.get(key)
            }
            for row in csv.DictReader(file)
        }


def progress(row: Row) -> str:
    if "error" in row:
        return f"{row['log']} seed {row['seed']}: {row['error']}"
    shown = {"logging": "logging", "greedy": "ours", **PEERS}
    values = ", ".join(f"{label} {row[key]:.3f}" for key, label in shown.items() if key in row)
    return f"{row['log']} seed {row['seed']}: {values}" + (f" ({row['chosen']})" if "chosen" in row else "")


def column(rows: list[Row], key: str) -> np.ndarray:
    """One number per seed, NaN where there is none."""
    return np.array([row.get(key, np.nan) for row in rows], dtype=float)


def number(value: float, digits: int = 3) -> str:
    return "–" if np.isnan(value) else f"{value:,.{digits}f}"


def often(rows: list[Row], key: str) -> str:
    """The names in a column, the most frequent first."""
    counts = Counter(row[key] for row in rows if key in row).most_common()
    return ", ".join(name if len(counts) == 1 else f"{name} {count}" for name, count in counts) or "–"


def mode(rows: list[Row], key: str) -> str:
    """The most frequent name in a column, and how often it is there if not always."""
    names = [row[key] for row in rows if key in row]
    name, count = Counter(names).most_common(1)[0] if names else ("–", 0)
    return name if count == len(names) else f"{name} ({count} of {len(names)})"


def show(header: list[str], rows: list[list[str]]) -> None:
    for cells in (header, ["---"] * len(header), *rows):
        print("| " + " | ".join(cells) + " |")
    print()


class Beside:
    """One log: our greedy policy beside the peers."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.ours = column(rows, "greedy")
        self.fit = float(np.median(column(rows, "fit_seconds")))
        every = {name: column(rows, name) for name in PEERS}
        self.peers = {name: values for name, values in every.items() if not np.isnan(values).any()}
        self.times = {name: float(np.median(column(rows, f"{name}_seconds"))) for name in self.peers}
        self.best = max(self.peers, key=lambda name: self.peers[name].mean(), default="")
        gap = self.ours - self.peers[self.best] if self.best else np.array([np.nan])
        self.gap = float(gap.mean())
        self.error = float(gap.std(ddof=1) / np.sqrt(len(gap))) if len(gap) > 1 else np.nan
        as_good = [name for name, values in self.peers.items() if values.mean() >= self.ours.mean() - NEAR]
        self.fastest = min(as_good, key=self.times.__getitem__, default="")

    def cells(self, shown: list[str]) -> list[str]:
        first, rows = self.rows[0], self.rows
        beside = [
            cell
            for name in shown
            for cell in (number(column(rows, name).mean()), number(np.median(column(rows, f"{name}_seconds")), 2))
        ]
        return [
            first["log"], f"{first['actions']:,}", f"{first['rows']:,}", number(column(rows, "logging").mean()),
            number(self.ours.mean()), mode(rows, "chosen"), number(self.fit, 2),
            number(np.median(column(rows, "seconds")), 1), *beside,
            "–" if np.isnan(self.gap) else f"{self.gap:+.3f} ± {number(self.error)} ({PEERS[self.best]})",
            f"{PEERS[self.fastest]}, {self.times[self.fastest]:.2f}" if self.fastest else "–",
        ]  # fmt: skip


def report_quality(logs: list[list[Row]]) -> list[str]:
    """The table beside the peers, and which promises are broken."""
    found = [Beside(rows) for rows in logs]
    shown = [name for name in PEERS if name in LEARNERS or any(name in one.peers for one in found)]
    beside = [cell for name in shown for cell in (PEERS[name], "s")]
    ends = ["ours − best peer", "fastest peer as good, s"]
    header = ["log", "actions", "rows", "logging", "ours", "chosen", "its fit, s", "portfolio, s", *beside, *ends]
    show(header, [one.cells(shown) for one in found])
    judged = [one for one in found if not np.isnan(one.gap)]
    if not judged:
        print("Nothing to compare: peers need --obp or --peers, and ours runs without --peers-only.\n")
        return []
    near = sum(one.gap >= -NEAR for one in judged)
    ahead = sum(one.gap > 0 for one in judged)
    print(f"within {NEAR} of the best peer on {near} of {len(judged)}, ahead on {ahead} of {len(judged)}")
    matched = [one for one in judged if one.fastest]
    slower = [one for one in matched if one.fit > one.times[one.fastest]]
    print(
        f"the chosen learner's own fit is no slower than the fastest peer within {NEAR} of it or better on "
        f"{len(matched) - len(slower)} of {len(matched)}; on {len(judged) - len(matched)} no peer is as good\n"
    )
    return [
        *(f"{one.rows[0]['log']}: no peer was measured on all of its seeds" for one in found if one not in judged),
        *([f"within {NEAR} of the best peer on {near} of {len(judged)} only"] if near < len(judged) else []),
        *([f"ahead on {ahead} of {len(judged)} only"] if ahead < AHEAD * len(judged) else []),
        *(f"{one.rows[0]['log']}: the fit takes {one.fit:.2f} s, {PEERS[one.fastest]} {one.times[one.fastest]:.2f}"
          for one in slower),
    ]  # fmt: skip


def is_believed(row: Row) -> bool:
    return bool(row["verdict"] != NO)


def is_covered(row: Row) -> bool:
    return bool(row["lower"] <= row["folds"] <= row["upper"])


def is_below(row: Row) -> bool:
    """Whether what was handed out earns less than logging did."""
    scale = row["logging"] if row["logging"] > 1 else 1.0
    return bool(row["handed_out"] < row["logging"] - NEAR * scale)


def hard_cells(rows: list[Row]) -> list[str]:
    believed = [row for row in rows if is_believed(row)]
    reported, lower, upper = (
        number(column(believed, key).mean()) if believed else "–" for key in ("reported", "lower", "upper")
    )
    return [
        rows[0]["log"],
        *(number(column(rows, key).mean()) for key in ("logging", "handed_out", "greedy")),
        f"{reported} [{lower}, {upper}]" if believed else "–",
        number(column(rows, "folds").mean()),
        f"{sum(map(is_covered, believed))} of {len(believed)}",
        often(rows, "verdict"), often(rows, "kind"), mode(rows, "chosen"), number(np.median(column(rows, "seconds")), 1),
    ]  # fmt: skip


def report_hard(logs: list[list[Row]]) -> list[str]:
    """The table of hard logs, and which promises are broken."""
    logs = [rows for rows in logs if "handed_out" in rows[0]]
    if not logs:
        return []
    show(
        ["hard log", "logging", "handed out", "its greedy actions", "reported", "true, of the folds", "covered",
         "verdict", "kind", "chosen", "portfolio, s"],
        [hard_cells(rows) for rows in logs],
    )  # fmt: skip
    every = [row for rows in logs for row in rows]
    believed = [row for row in every if is_believed(row)]
    covered = sum(map(is_covered, believed))
    below = [row for row in every if is_below(row)]
    worst = min(every, key=lambda row: row["handed_out"] / row["logging"])
    share = f" ({covered / len(believed):.1%})" if believed else ""
    print(
        f"covered: {covered} of {len(believed)}{share} whose verdict is not {NO!r}; more than {NEAR} below logging: "
        f"{len(below)} of {len(every)}; the least: {worst['handed_out'] / worst['logging']:.3f} of logging's value "
        f"({worst['log']}, seed {worst['seed']})\n"
    )
    return [
        *([f"{covered} of {len(believed)} reported intervals cover"] if covered < COVERED * len(believed) else []),
        *(f"{row['log']} seed {row['seed']}: {row['handed_out']:.3f} where logging earned {row['logging']:.3f}"
          for row in below),
    ]  # fmt: skip


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=LOGS, default=list(LOGS), metavar="LOG")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=1.0, help="the budget of learn_policy")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--obp", metavar="PYTHON", help="a Python that has the Open Bandit Pipeline")
    parser.add_argument("--learners", nargs="+", choices=PEERS, default=LEARNERS, help="which of its learners")
    parser.add_argument("--peers", type=pathlib.Path, metavar="FILE", help="peers, as an earlier --csv has them")
    parser.add_argument("--peers-only", action="store_true", help="run the peers alone")
    parser.add_argument("--csv", type=pathlib.Path, metavar="FILE", help="write one row per log and seed")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a promise is broken")
    given = parser.parse_args()
    if given.peers_only:
        given.only = [name for name in given.only if name not in HARD]
    if given.strict and not (given.obp or given.peers) and any(name not in HARD for name in given.only):
        parser.error("--strict compares with peers: pass --obp or --peers, or --only with hard logs.")
    if given.obp and subprocess.run([given.obp, "-E", "-c", "import obp.policy"], capture_output=True).returncode:
        parser.error(f"{given.obp} cannot import obp.policy.")
    return given


def main() -> int:
    given = asked()
    os.environ.update(ONE_THREAD)  # the workers and the peers inherit it
    started = time.perf_counter()
    rows = measured(given)
    failed = [row for row in rows if "error" in row]
    logs = [[row for row in rows if row["log"] == name and "error" not in row] for name in given.only]
    broken = report_quality([one for one in logs if one and one[0]["log"] not in HARD])
    broken += report_hard([one for one in logs if one and one[0]["log"] in HARD])
    broken += [f"{row['log']} seed {row['seed']} failed: {row['error']}" for row in failed]
    print(f"{(time.perf_counter() - started) / 60:.1f} minutes; processes of one thread: {given.processes}")
    for one in broken:
        print(f"broken promise: {one}")
    return int(bool(broken) and given.strict)


if __name__ == "__main__":
    sys.exit(main())
