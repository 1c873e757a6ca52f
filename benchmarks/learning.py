"""Learning: what a step costs, whether a search keeps to its minutes, and whether what it hands out is better.

python benchmarks/learning.py --quick
python benchmarks/learning.py minutes --rows 1e4 1e5 2e6 --actions 5 50 1000 --minutes 0.3 1 5
python benchmarks/learning.py safe --runs 200 --processes 16
"""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import numpy as np
import torch
from bench import Suite, head, in_processes, row, share, slack
from logs import HARD, LOGS, World, draw
from torch.utils.data import DataLoader, Dataset

import counterpoise as cp
from counterpoise.errors import TrainingError
from counterpoise.learn import MLP, LinearSoftmax, Policy, TwoTower, objectives
from counterpoise.learn.contenders import PROMISED, Network
from counterpoise.learn.forest import ForestLearner
from counterpoise.learn.rows import Batch
from counterpoise.learn.steps import LoggedActions
from paper.learning import N_ACTIONS
from paper.learning import World as PaperWorld
from paper.many import Run, train_many

SUITE = Suite(__file__, __doc__)


# -- a step and an epoch ----------------------------------------------------------------------------------------------------


def time_ratio(first: Callable[[], None], second: Callable[[], None], seconds: float) -> tuple[float, float, float]:
    """Seconds of one call of each, taken in turns, and the median of second/first over the turns."""
    for call in (first, second, first, second):
        call()
    started = process_time()
    first()
    second()
    repeats = max(3, int(seconds / (process_time() - started) / 8))
    times: list[tuple[float, float]] = []
    for _ in range(8):
        pair = []
        for call in (first, second):
            began = process_time()
            for _ in range(repeats):
                call()
            pair.append((process_time() - began) / repeats)
        times.append((pair[0], pair[1]))
    return median(t[0] for t in times), median(t[1] for t in times), median(t[1] / t[0] for t in times)


def time_steps(name: str, policy: Policy, dimension: int, rows: int, seconds: float) -> None:
    """IPS as anyone would write it against β-IPS with the last layer's norms, and with all layers'."""
    context, action = torch.randn(rows, dimension), torch.randint(policy.n_actions, (rows,))
    reward, propensity = torch.rand(rows).round(), torch.rand(rows) * 0.5 + 0.01
    batch = Batch(context, action, reward, propensity, rows)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-4)

    def ips() -> None:
        optimizer.zero_grad(set_to_none=True)
        target = torch.softmax(policy(context), -1).gather(1, action[:, None])[:, 0]
        (-objectives.ips(target, reward, propensity)).backward()
        optimizer.step()

    def beta_ips(norms: str) -> Callable[[], None]:
        logged = LoggedActions(policy, norms=norms)

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            logged.backward(batch, None, measure=False)
            optimizer.step()

        return step

    def closed_ips() -> None:
        optimizer.zero_grad(set_to_none=True)
        h = policy.body(context)
        with torch.no_grad():
            probabilities = torch.softmax(policy.scores(h), -1)
            target = probabilities.gather(1, action[:, None])[:, 0]
            coefficient = (target * reward / propensity / rows)[:, None]
            outer = probabilities.mul_(coefficient).scatter_add_(1, action[:, None], -coefficient)
            policy.scores.weight.grad = (h.T @ outer).T.contiguous()
            if policy.scores.bias is not None:
                policy.scores.bias.grad = outer.sum(0)
        if h.requires_grad:
            h.backward(outer @ policy.scores.weight.detach())
        optimizer.step()

    if isinstance(policy.scores, torch.nn.Linear):
        plain, ours, found = time_ratio(closed_ips, beta_ips("last_layer"), seconds)
        print(
            f"{name}, batch {rows}, norms of last_layer, IPS with the same written-out gradient: IPS {1e3 * plain:.2f} ms, "
            f"beta-IPS {1e3 * ours:.2f} ms, ratio {found:.3f}",
            flush=True,
        )
    for norms in ("last_layer", "all"):
        plain, ours, found = time_ratio(ips, beta_ips(norms), seconds)
        print(
            f"{name}, batch {rows}, norms of {norms}: IPS {1e3 * plain:.2f} ms, beta-IPS {1e3 * ours:.2f} ms, ratio {found:.3f}",
            flush=True,
        )


class RowWise(Dataset):
    """A row at a time, as the recipe's loader takes them."""

    def __init__(self, world: PaperWorld) -> None:
        rows = world.train
        self.columns = (rows.context, rows.action, rows.reward, 1 / rows.inverse)

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(column[index] for column in self.columns)


def recipe_epoch(world: PaperWorld) -> float:
    """One epoch as the recipe says: β* and the gradient variance from per-sample gradients, then autograd."""
    torch.manual_seed(0)
    model = torch.nn.Linear(5, N_ACTIONS, bias=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def probability(weights: dict[str, torch.Tensor], x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.func.functional_call(model, weights, (x,)), -1).gather(-1, a[None])[0]

    per_sample = torch.func.vmap(torch.func.grad(probability), in_dims=(None, 0, 0))
    variance = 0.0
    for x, a, r, p in DataLoader(RowWise(world), batch_size=1024, shuffle=True):
        weights = {name: value.detach() for name, value in model.named_parameters()}
        gradients = per_sample(weights, x, a)["weight"].flatten(1)
        norms = gradients.square().sum(1)
        beta = (norms / p.square() * r).sum() / (norms / p.square()).sum()
        c = (r - beta) / p
        mean = (gradients * c[:, None]).mean(0)
        variance += (((norms * c.square()).mean() - mean.square().sum()) / len(r)).item()
        target = torch.softmax(model(x), -1).gather(1, a[:, None])[:, 0]
        optimizer.zero_grad()
        (-(target / p * (r - beta)).mean()).backward()
        optimizer.step()
    with torch.no_grad():
        best = torch.softmax(model(world.test.context), -1).argmax(1)
        return world.test.expected[torch.arange(len(best)), best].mean().item()


def time_epoch(rows: int) -> None:
    """The recipe's epoch against ours, in turns."""
    world = PaperWorld(rows, "cpu")
    runs = [Run("beta_ips", 0.01, 0)]
    train_many(world.train, N_ACTIONS, runs, epochs=1, value=world.test)

    def train(objective: str) -> Callable[[], None]:
        return lambda: train_many(world.train, N_ACTIONS, [Run(objective, 0.01, 0)], epochs=1) and None

    plain, beta, found = time_ratio(train("ips"), train("beta_ips"), 8.0)
    print(
        f"mini-batch training epoch, gradient variance tracked in both: IPS {plain:.3f} s, beta-IPS {beta:.3f} s, "
        f"ratio {found:.3f}",
        flush=True,
    )
    theirs, ours = [], []
    for _ in range(3):
        began = process_time()
        value = recipe_epoch(world)
        theirs.append(process_time() - began)
        began = process_time()
        curves = train_many(world.train, N_ACTIONS, runs, epochs=3, value=world.test)
        ours.append((process_time() - began) / 3)
    found = np.median(np.array(theirs) / np.array(ours))
    print(
        f"mini-batch epoch: recipe {median(theirs):.2f} s (value {value:.3f}), ours {median(ours):.3f} s "
        f"(value {curves.value[0, 0]:.3f}), {found:.1f} times faster",
        flush=True,
    )


@SUITE.experiment("steps", seconds=0.05, largest=100)
def check_steps(*, seconds: float = 8.0, largest: int = 100_000) -> None:
    """A β-IPS step over a plain IPS step, one thread, in processor seconds: with the last layer's norms, and with all layers'.

    Linear, MLP and two-tower policies, the latter of `--largest` actions; `--seconds` for each ratio.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    time_steps("linear 5-100", LinearSoftmax(5, 100), 5, 1024, seconds)
    time_steps("MLP 64-256-256-1000", MLP(64, 1000, hidden=(256, 256)), 64, 4096, seconds)
    for name, features in (("two-tower", None), ("two-tower with item features", torch.randn(largest, 64))):
        policy = TwoTower(64, largest, dimension=32, hidden=(256,), item_features=features)
        time_steps(f"{name}, {largest:,} actions", policy, 64, 256, seconds)


@SUITE.experiment("epoch", rows=5000)
def check_epoch(*, rows: int = 250_000) -> None:
    """One epoch of the paper's mini-batch experiment, one thread: by its recipe over ours, and β-IPS over IPS.

    Training, gradient variance and greedy value on as many test rows. The recipe has a row-wise loader, per-sample gradients by
    vmap(grad), and autograd.
    """
    torch.set_num_threads(1)
    time_epoch(int(rows))


# -- minutes ----------------------------------------------------------------------------------------------------------------


JUDGES = 20_000  # contexts on which true values are computed
CHUNK = 10_000_000  # probabilities that are drawn from at a time
WIDTH = 8


@dataclass(frozen=True, eq=False)
class QuadraticLog:
    """Clicks whose odds are quadratic in the context, logged by a policy that prefers bad actions a little."""

    context: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    propensity: np.ndarray
    linear: np.ndarray
    squared: np.ndarray

    def expected(self, rows: slice) -> np.ndarray:
        """What every action earns."""
        return chances(self.context[rows], self.linear, self.squared)


def chances(context: np.ndarray, linear: np.ndarray, squared: np.ndarray) -> np.ndarray:
    """The chance of a click by context and action."""
    return 1 / (1 + np.exp(-(context @ linear + (context**2 - 1) @ squared)))


def draw_quadratic(actions: int, rows: int, seed: int) -> QuadraticLog:
    """A log, a part at a time."""
    random = np.random.default_rng([seed, actions])
    linear, squared = 0.5 * random.normal(size=(WIDTH, actions)), 0.2 * random.normal(size=(WIDTH, actions))
    context = random.normal(size=(rows, WIDTH)).astype(np.float32)
    action, propensity, reward = np.empty(rows, dtype=np.int64), np.empty(rows), np.empty(rows)
    size = max(1, CHUNK // actions)
    for start in range(0, rows, size):
        part = slice(start, start + size)
        clicks = chances(context[part], linear, squared)
        weights = np.exp(-clicks)
        below = np.cumsum(weights, axis=1)
        drawn = (below < random.random((len(below), 1)) * below[:, -1:]).sum(axis=1)
        places = np.arange(len(drawn))
        action[part], propensity[part] = drawn, weights[places, drawn] / below[:, -1]
        reward[part] = random.random(len(drawn)) < clicks[places, drawn]
    return QuadraticLog(context, action, reward, propensity, linear, squared)


def search(log: QuadraticLog, minutes: float) -> tuple[float, object]:
    """The seconds that a search took, and what it found."""
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = cp.learn_policy(
            context=log.context, action=log.action, reward=log.reward, propensity=log.propensity,
            minutes=minutes, progress=False,
        )  # fmt: skip
    return time.perf_counter() - began, found


def quadratic_value(log: QuadraticLog, rows: slice, table: np.ndarray) -> float:
    """The value of a policy on some contexts."""
    return float((log.expected(rows) * table).sum(axis=1).mean())


def _table(found: object, context: np.ndarray, actions: int) -> np.ndarray:
    """The policy's probabilities, with a column for every action of the world, also for those that the log lacks."""
    table = np.zeros((len(context), actions))
    table[:, np.asarray(found.classes_)] = found.predict_proba(context)
    return table


@SUITE.experiment("minutes", rows=[2000], actions=[5], minutes=[0.05])
def check_minutes(
    *, rows: list[int] = (10**4, 10**5), actions: list[int] = (5, 50), minutes: list[float] = (0.3,), seed: int = 0
) -> bool:
    """Whether `learn_policy` keeps to `minutes=`, and what it makes of them, on logs whose truth is known.

    One process learns from one log after another, and from a small one first, so that imports do not count. Every line has the seconds
    that were used and those that are allowed (1.2 × minutes + 3 s), the true value of the policy that was handed out, that of the policy
    that wrote the log, and that of the best action everywhere. With PYTHONPATH=/another/checkout/src, the same for another version.
    """
    print(f"counterpoise {cp.__version__}\n")
    search(draw_quadratic(3, 500, 0), 0.05)
    head("rows", "actions", "minutes", "seconds", "allowed", "logging", "learned", "best", "contender")
    is_late = False
    for n, count in product(map(int, rows), actions):
        log = draw_quadratic(count, n, seed)
        part = slice(0, min(n, max(1000, JUDGES * 50 // max(count, 50))))
        best = float(log.expected(part).max(axis=1).mean())
        for limit in minutes:
            seconds, policy = search(log, limit)
            allowed = 1.2 * 60 * limit + 3
            is_late |= seconds > allowed
            learned = quadratic_value(log, part, _table(policy, log.context[part], count))
            values = (f"{value:.4f}" for value in (float(log.reward.mean()), learned, best))
            how = f"{policy.name} ({len(policy.leaderboard)} tried, {len(policy.skipped)} left out)"
            late = " LATE" if seconds > allowed else ""
            row(f"{n:,}", f"{count:,}", f"{limit:g}", f"{seconds:.1f}{late}", f"{allowed:.1f}", *values, how)
    return not is_late


# -- false alarms -----------------------------------------------------------------------------------------------------------


ROWS, ACTIONS = 3_000, 10
MOODS = {
    "clicks 0.02": lambda random, mood: random.random(len(mood)) < 0.02 * np.exp(mood - 0.5),
    "coins": lambda random, mood: random.random(len(mood)) < 0.5,
    "clicks 0.4": lambda random, mood: random.random(len(mood)) < 1 / (1 + np.exp(0.4 - mood)),
    "revenue": lambda random, mood: (
        (random.random(len(mood)) < 0.1) * np.exp(1.5 * random.normal(size=len(mood)) + mood)
    ),
}
EXPLORING = {"softmax": None, "99 % greedy": 0.01, "uniform": 1.0}
USERS = ("independent", "unequal users")
CONTENDERS = [
    Network("softmax", "beta_ips", hidden=(16,), epochs=3, imitation=0.03),
    Network("direct", "predicted_reward", hidden=(), epochs=3, rate=0.02, temperatures=PROMISED),
    Network("log smoothing", "log_smoothing", hidden=(16,), epochs=3),
    ForestLearner(trees=20),
]
SafeWorld = tuple[str, str, str, int]


def log_without_gain(
    reward: str, exploring: str, users: str, actions: int, rows: int, random: np.random.Generator
) -> dict[str, np.ndarray]:
    """A log in which the action does not matter; with users, it is their mood that does, and the few largest have most rows."""
    user = np.arange(rows)
    if users == "unequal users":
        user = random.choice(200, size=rows, p=(share := 1 / np.arange(1, 201)) / share.sum())
    mood = random.normal(size=user.max() + 1)[user]
    context = random.normal(size=(rows, 4))
    scores = context @ random.normal(size=(4, actions))
    logging = np.exp(scores - scores.max(axis=1, keepdims=True))
    logging /= logging.sum(axis=1, keepdims=True)
    if EXPLORING[exploring] is not None:
        logging = EXPLORING[exploring] / actions + (1 - EXPLORING[exploring]) * np.eye(actions)[scores.argmax(axis=1)]
    action = (logging.cumsum(axis=1) > random.random((rows, 1))).argmax(axis=1)
    found = {"context": context, "action": action, "reward": np.asarray(MOODS[reward](random, mood), dtype=float)}
    found["propensity"] = logging[np.arange(rows), action]
    return found | ({} if users == "independent" else {"cluster": user})


def is_false_alarm(job: tuple[SafeWorld, int, int]) -> tuple[SafeWorld, bool]:
    """Whether something is handed out as better."""
    world, rows, seed = job
    torch.set_num_threads(1)
    log = log_without_gain(*world, rows, np.random.default_rng([seed, *map(len, world[:3]), world[3]]))
    try:
        cp.learn_policy(**log, contenders=CONTENDERS, minutes=None, fallback="raise", progress=False)
    except TrainingError:
        return world, False
    return world, True


@SUITE.experiment("safe", runs=1, coins=True)
def check_safe(*, runs: int = 40, coins: bool = False, processes: int = 1) -> bool:
    """How often `learn_policy` hands out a policy as better than what ran when it is not: worlds in which no policy is better.

    What an action earns does not depend on the action, so every policy earns the same, and each one that is handed out as learned is a
    false alarm. Rewards are rare, or have heavy tails; logging explores well, or takes its own action in 99 % of the rows; rows are
    independent, or belong to users of very unequal sizes whose rewards are alike. Contenders are few and short, which changes who wins, and
    not whether the winner is safe. `--coins` takes the hardest worlds alone: coins, 1,000 rows, two or five actions. At most 5 % may be
    false alarms, in a world and over all, but for three standard errors.
    """
    places: list[SafeWorld] = list(product(MOODS, EXPLORING, USERS, [ACTIONS]))
    if coins:
        places = [("coins", exploring, "independent", n) for exploring in ("uniform", "softmax") for n in (2, 5)]
    alarms = dict.fromkeys(places, 0)
    jobs = [(world, 1_000 if coins else ROWS, seed) for world in places for seed in range(runs)]
    for world, is_alarm in in_processes(is_false_alarm, jobs, processes):
        alarms[world] += is_alarm
    head("world", "handed out as better", "share", "Monte Carlo error", "")
    is_kept = True
    for world, count in [*alarms.items(), (("all",), sum(alarms.values()))]:
        logs = runs if len(world) > 1 else len(jobs)
        is_above = count / logs > 0.05 + slack(0.05, logs)
        is_kept &= not is_above
        words = (
            f"{count} of {logs}",
            share(count, logs),
            f"± {slack(0.05, logs, 1):.1%}",
            "TOO MANY" if is_above else "",
        )
        row(", ".join(map(str, world)), *words)
    return is_kept


# -- logs to learn from -----------------------------------------------------------------------------------------------------


# what logging earned where the table was first measured
FIRST = {
    "obp10": 0.652, "obp50": 0.577, "obp100neg": 0.457, "cp20": 0.427, "cp100": 0.352,
    "digits": 0.562, "letter": 0.433, "penbased": 0.585, "satimage": 0.562,
}  # fmt: skip


@SUITE.experiment("logs", only=["base"], seeds=1)
def list_logs(*, only: list[str] = tuple(LOGS), seeds: int = 5, save: Path | None = None) -> None:
    """What logging earns on every log that `quality` learns from; `--save FOLDER` writes them as .npz files."""
    if save:
        save.mkdir(parents=True, exist_ok=True)
    head("log", "actions", "rows", "test rows", "logging", "in the log", "first measured", "best")
    for name in only:
        drawn = [draw(name, seed) for seed in range(seeds)]
        for seed, world in enumerate(drawn):
            if save:
                world.save(save / f"{name}_{seed}.npz")
        sizes = (f"{size:,}" for size in (drawn[0].n_actions, len(drawn[0].action), len(drawn[0].test_context)))
        logged = np.mean([world.reward.mean(dtype=np.float64) for world in drawn])
        earned, best = np.mean([(world.logging_value, world.best_value) for world in drawn], axis=0)
        row(name, *sizes, f"{earned:.3f}", f"{logged:.3f}", FIRST.get(name, ""), f"{best:.3f}")


# -- what is learned, beside peers ------------------------------------------------------------------------------------------


NEAR = 0.01
AHEAD = 2 / 3
COVERED = 0.9
NO = "not identified"
PEERS = {
    "logistic": "IPW-logistic", "forest": "IPW-forest", "small_forest": "IPW-forest of 30", "network": "NN-IPW",
}  # fmt: skip
LEARNERS = ["logistic", "forest", "small_forest"]  # unless others are asked for: the network takes minutes a log
FOREST_CELLS = 5_000_000  # records times actions, beyond which a forest of 100 trees takes minutes and gigabytes
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"), "1")
COLUMNS = [
    "log", "seed", "actions", "rows", "logging", "greedy", "handed_out", "chosen", "kind", "fit_seconds", "seconds",
    "reported", "lower", "upper", "folds", "verdict", *(key + unit for key in PEERS for unit in ("", "_seconds")), "error",
]  # fmt: skip
Record = dict[str, Any]


def learn_ours(world: World, seed: int, minutes: float) -> Record:
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
        "handed_out": world_value(world, found.policy),
        "chosen": found.name,
        "kind": found.kind,
        "fit_seconds": found.fit_seconds,
        "seconds": found.seconds,
        "reported": estimate.value,
        "lower": estimate.interval.lower,
        "upper": estimate.interval.upper,
        "folds": np.mean([world_value(world, one) for one in found.policies]),
        "verdict": result.verdict().verdict,
    }


def world_value(world: World, policy: Any) -> float:
    """The true value of a policy that draws its actions."""
    return world.value(partial(probabilities, world, policy))


def probabilities(world: World, policy: Any, context: np.ndarray) -> np.ndarray:
    """A policy's probabilities of all actions; it knows those alone that were logged."""
    found = np.zeros((len(context), world.n_actions))
    found[:, policy.classes_] = policy.predict_proba(context)
    return found


def learn_theirs(world: World, seed: int, obp: str, names: list[str]) -> Record:
    """True values and seconds of the Pipeline's learners, which see the log and the test set's contexts only."""
    if len(world.action) * world.n_actions > FOREST_CELLS:
        names = [name for name in names if name != "forest"]
    with tempfile.TemporaryDirectory() as folder:
        log, greedy = f"{folder}/log.npz", f"{folder}/greedy.npz"
        np.savez(
            log, context=world.context, action=world.action, reward=world.reward, propensity=world.propensity,
            n_actions=world.n_actions, test_context=world.test_context, seed=seed,
        )  # fmt: skip
        python = Path(shutil.which(obp) or obp).absolute()  # it runs in another folder
        words = [python, "-E", "-m", "peer.obp", "learners", log, greedy, *names]
        done = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parent)
        if done.returncode:
            raise RuntimeError(f"the Pipeline's learners failed: {done.stderr.strip().splitlines()[-1]}")
        with np.load(greedy) as file:
            found = {key: file[key] for key in file.files}
    each = np.arange(len(world.test_reward))
    values = {name: world.test_reward[each, found[name]].mean(dtype=np.float64) for name in names}
    return values | {f"{name}_seconds": float(found[f"{name}_seconds"]) for name in names}


def measure_log(job: tuple[str, int], given: QualityOptions) -> Record:
    """One log and seed."""
    name, seed = job
    world = draw(name, seed)
    record: Record = {"log": name, "seed": seed, "actions": world.n_actions, "rows": len(world.action)}
    record["logging"] = world.logging_value
    try:
        if not given.peers_only:
            record |= learn_ours(world, seed, given.minutes)
        if given.obp and name not in HARD:
            record |= learn_theirs(world, seed, given.obp, given.learners)
    except Exception as error:  # the other logs go on, and the failure is reported at the end
        record["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
    return record


def load_modules() -> None:
    """Import what a worker needs, so that no log's seconds include it."""
    for name in ("counterpoise.learn", "sklearn.ensemble", "sklearn.linear_model", "torch"):
        import_module(name)


def measure_logs(given: QualityOptions) -> list[Record]:
    """All logs and seeds, written down and said as they come."""
    jobs = [(name, seed) for name in given.only for seed in range(given.first_seed, given.first_seed + given.seeds)]
    known = peers_of(given.peers) if given.peers else {}
    records = []
    with (
        get_context("spawn").Pool(given.processes, load_modules, maxtasksperchild=10) as pool,
        open(given.csv or os.devnull, "w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for record in pool.imap_unordered(partial(measure_log, given=given), jobs):
            records.append(known.get((record["log"], record["seed"]), {}) | record)
            writer.writerow(records[-1])
            file.flush()
            print(f"[{len(records)} of {len(jobs)}] {progress(records[-1])}", file=sys.stderr, flush=True)
    return sorted(records, key=lambda record: jobs.index((record["log"], record["seed"])))


def peers_of(path: Path) -> dict[tuple[str, int], Record]:
    """The peers' columns of an earlier `--csv`."""
    with open(path, newline="", encoding="utf-8") as file:
        return {
            (record["log"], int(record["seed"])): {
                key: float(record[key]) for one in PEERS for key in (one, f"{one}_seconds") if record.get(key)
            }
            for record in csv.DictReader(file)
        }


def progress(record: Record) -> str:
    if "error" in record:
        return f"{record['log']} seed {record['seed']}: {record['error']}"
    shown = {"logging": "logging", "greedy": "ours", **PEERS}
    values = ", ".join(f"{label} {record[key]:.3f}" for key, label in shown.items() if key in record)
    return f"{record['log']} seed {record['seed']}: {values}" + (f" ({record['chosen']})" if "chosen" in record else "")


def column(records: list[Record], key: str) -> np.ndarray:
    """One number per seed, NaN where there is none."""
    return np.array([record.get(key, np.nan) for record in records], dtype=float)


def number(value: float, digits: int = 3) -> str:
    return "–" if np.isnan(value) else f"{value:,.{digits}f}"


def often(records: list[Record], key: str) -> str:
    """The names in a column, the most frequent first."""
    counts = Counter(record[key] for record in records if key in record).most_common()
    return ", ".join(name if len(counts) == 1 else f"{name} {count}" for name, count in counts) or "–"


def mode(records: list[Record], key: str) -> str:
    """The most frequent name in a column, and how often it is there if not always."""
    names = [record[key] for record in records if key in record]
    name, count = Counter(names).most_common(1)[0] if names else ("–", 0)
    return name if count == len(names) else f"{name} ({count} of {len(names)})"


def show_table(header: list[str], records: list[list[str]]) -> None:
    for cells in (header, ["---"] * len(header), *records):
        print("| " + " | ".join(cells) + " |")
    print()


class Beside:
    """One log: our greedy policy beside the peers."""

    def __init__(self, records: list[Record]) -> None:
        self.rows = records
        self.ours = column(records, "greedy")
        self.fit = float(np.median(column(records, "fit_seconds")))
        every = {name: column(records, name) for name in PEERS}
        self.peers = {name: values for name, values in every.items() if not np.isnan(values).any()}
        self.times = {name: float(np.median(column(records, f"{name}_seconds"))) for name in self.peers}
        self.best = max(self.peers, key=lambda name: self.peers[name].mean(), default="")
        gap = self.ours - self.peers[self.best] if self.best else np.array([np.nan])
        self.gap = float(gap.mean())
        self.error = float(gap.std(ddof=1) / np.sqrt(len(gap))) if len(gap) > 1 else np.nan
        as_good = [name for name, values in self.peers.items() if values.mean() >= self.ours.mean() - NEAR]
        self.fastest = min(as_good, key=self.times.__getitem__, default="")

    def cells(self, shown: list[str]) -> list[str]:
        first, records = self.rows[0], self.rows
        beside = [
            cell
            for name in shown
            for cell in (number(column(records, name).mean()), number(np.median(column(records, f"{name}_seconds")), 2))
        ]
        return [
            first["log"], f"{first['actions']:,}", f"{first['rows']:,}", number(column(records, "logging").mean()),
            number(self.ours.mean()), mode(records, "chosen"), number(self.fit, 2),
            number(np.median(column(records, "seconds")), 1), *beside,
            "–" if np.isnan(self.gap) else f"{self.gap:+.3f} ± {number(self.error)} ({PEERS[self.best]})",
            f"{PEERS[self.fastest]}, {self.times[self.fastest]:.2f}" if self.fastest else "–",
        ]  # fmt: skip


def report_quality(logs: list[list[Record]]) -> list[str]:
    """The table beside the peers, and which promises are broken."""
    found = [Beside(records) for records in logs]
    shown = [name for name in PEERS if name in LEARNERS or any(name in one.peers for one in found)]
    beside = [cell for name in shown for cell in (PEERS[name], "s")]
    ends = ["ours − best peer", "fastest peer as good, s"]
    header = ["log", "actions", "rows", "logging", "ours", "chosen", "its fit, s", "portfolio, s", *beside, *ends]
    show_table(header, [one.cells(shown) for one in found])
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


def is_believed(record: Record) -> bool:
    return bool(record["verdict"] != NO)


def is_covered(record: Record) -> bool:
    return bool(record["lower"] <= record["folds"] <= record["upper"])


def is_below(record: Record) -> bool:
    """Whether what was handed out earns less than logging did."""
    scale = record["logging"] if record["logging"] > 1 else 1.0
    return bool(record["handed_out"] < record["logging"] - NEAR * scale)


def hard_cells(records: list[Record]) -> list[str]:
    believed = [record for record in records if is_believed(record)]
    reported, lower, upper = (
        number(column(believed, key).mean()) if believed else "–" for key in ("reported", "lower", "upper")
    )
    return [
        records[0]["log"],
        *(number(column(records, key).mean()) for key in ("logging", "handed_out", "greedy")),
        f"{reported} [{lower}, {upper}]" if believed else "–",
        number(column(records, "folds").mean()),
        f"{sum(map(is_covered, believed))} of {len(believed)}",
        often(records, "verdict"), often(records, "kind"), mode(records, "chosen"), number(np.median(column(records, "seconds")), 1),
    ]  # fmt: skip


def report_hard(logs: list[list[Record]]) -> list[str]:
    """The table of hard logs, and which promises are broken."""
    logs = [records for records in logs if "handed_out" in records[0]]
    if not logs:
        return []
    show_table(
        ["hard log", "logging", "handed out", "its greedy actions", "reported", "true, of the folds", "covered",
         "verdict", "kind", "chosen", "portfolio, s"],
        [hard_cells(records) for records in logs],
    )  # fmt: skip
    every = [record for records in logs for record in records]
    believed = [record for record in every if is_believed(record)]
    covered = sum(map(is_covered, believed))
    below = [record for record in every if is_below(record)]
    worst = min(every, key=lambda record: record["handed_out"] / record["logging"])
    share = f" ({covered / len(believed):.1%})" if believed else ""
    print(
        f"covered: {covered} of {len(believed)}{share} whose verdict is not {NO!r}; more than {NEAR} below logging: "
        f"{len(below)} of {len(every)}; the least: {worst['handed_out'] / worst['logging']:.3f} of logging's value "
        f"({worst['log']}, seed {worst['seed']})\n"
    )
    return [
        *([f"{covered} of {len(believed)} reported intervals cover"] if covered < COVERED * len(believed) else []),
        *(f"{record['log']} seed {record['seed']}: {record['handed_out']:.3f} where logging earned {record['logging']:.3f}"
          for record in below),
    ]  # fmt: skip


@dataclass(frozen=True)
class QualityOptions:
    """What is measured, and with whom."""

    only: list[str]
    seeds: int
    first_seed: int
    minutes: float
    processes: int
    obp: str | None
    learners: list[str]
    peers: Path | None
    peers_only: bool
    csv: Path | None


@SUITE.experiment("quality", only=["base"], seeds=1, minutes=0.02, processes=1)
def check_quality(
    *,
    only: list[str] = tuple(LOGS),
    seeds: int = 5,
    first_seed: int = 0,
    minutes: float = 1.0,
    processes: int = 2,
    obp: str | None = None,
    learners: list[str] = tuple(LEARNERS),
    peers: Path | None = None,
    peers_only: bool = False,
    csv: Path | None = None,
    strict: bool = False,
) -> bool:
    """What `learn_policy` makes of logs whose truth is known, beside the Open Bandit Pipeline's learners.

    The logs are those of `logs`. On nine of them, the true value of our greedy policy stands next to those of the Pipeline's learners,
    which need an environment of their own (`pip install obp` in it, and name its Python with `--obp`). On seven that are hard, the policy
    that was handed out, with its own probabilities, is held against what logging earned, and the value that was reported, which is that of
    the fold policies, against their true one. `--csv FILE` writes one line per log and seed; `--peers FILE` takes the peers from such a
    file, and `--peers-only` runs them alone.

    Promises: within .01 of the best peer on every log, and ahead on two thirds; never below logging by more than .01 (where rewards are
    amounts: by more than 1 % of what it earned); 90 % of the reported intervals cover, where the verdict does not say no; and the chosen
    learner's own fit takes no longer than that of the fastest peer within .01 of it, or better. With `--strict`, exit code 1 if one is
    broken.
    """
    names = [name for name in only if not peers_only or name not in HARD]
    given = QualityOptions(names, seeds, first_seed, minutes, processes, obp, list(learners), peers, peers_only, csv)
    _check_options(given, strict)
    os.environ.update(ONE_THREAD)  # the workers and the peers inherit it
    began = time.perf_counter()
    records = measure_logs(given)
    failed = [record for record in records if "error" in record]
    good = [[each for each in records if each["log"] == name and "error" not in each] for name in names]
    broken = report_quality([log for log in good if log and log[0]["log"] not in HARD])
    broken += report_hard([log for log in good if log and log[0]["log"] in HARD])
    broken += [f"{record['log']} seed {record['seed']} failed: {record['error']}" for record in failed]
    print(f"{(time.perf_counter() - began) / 60:.1f} minutes; processes of one thread: {processes}")
    for promise in broken:
        print(f"broken promise: {promise}")
    return not (broken and strict)


def _check_options(given: QualityOptions, strict: bool) -> None:
    if unknown := [name for name in given.only if name not in LOGS]:
        raise SystemExit(f"There is no log {unknown[0]!r}; choose from {', '.join(LOGS)}.")
    if strict and not (given.obp or given.peers) and any(name not in HARD for name in given.only):
        raise SystemExit("--strict compares with peers: pass --obp or --peers, or --only with hard logs.")
    if given.obp and subprocess.run([given.obp, "-E", "-c", "import obp.policy"], capture_output=True).returncode:
        raise SystemExit(f"{given.obp} cannot import obp.policy.")


if __name__ == "__main__":
    sys.exit(SUITE.main())
