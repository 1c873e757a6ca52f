"""coba, with Vowpal Wabbit beside it: a log is an environment, a policy is a learner, an evaluator runs one on the other."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import coba
import numpy as np
from coba.context import BasicLogger, CobaContext
from coba.pipes import ListSink
from vowpalwabbit import Workspace

from peer.data import Floats, Lesson, Log, draw_log

VERSION = ("coba", "coba")
Estimates = dict[str, Any]


class LoggedRows(coba.Environment):
    def __init__(self, rows: list[coba.LoggedInteraction]) -> None:
        self.rows = rows

    def read(self) -> Iterable[coba.LoggedInteraction]:
        return self.rows


class Target(coba.Learner):
    """A policy that looks up its probabilities and never learns."""

    def __init__(self, table: dict[tuple[float, ...], list[float]]) -> None:
        self.table, self.random = table, coba.CobaRandom(1)

    def score(self, context: Any, actions: Any, action: Any) -> float:
        return self.table[tuple(context)][actions.index(action)]

    def predict(self, context: Any, actions: Any) -> Any:
        return self.random.choicew(actions, self.table[tuple(context)])

    def learn(self, context: Any, action: Any, reward: float, probability: float) -> None:
        pass


def interactions(context: Floats, action: Floats, reward: Floats, p: Floats, actions: int) -> list[Any]:
    names = [f"action {k}" for k in range(actions)]
    columns = (map(tuple, context.tolist()), action.tolist(), reward.tolist(), p.tolist())
    return [coba.LoggedInteraction(x, names[a], r, p, actions=names) for x, a, r, p in zip(*columns, strict=True)]


def as_environment(log: Log) -> LoggedRows:
    return LoggedRows(interactions(log.context, log.action, log.reward, log.propensity, log.actions))


def as_table(log: Log, k: int = 0) -> dict[tuple[float, ...], list[float]]:
    groups, first = np.unique(log.group, return_index=True)
    table = log.changes["table"][first] if "table" in log.changes else log.policies[k][groups]
    return dict(zip(map(tuple, log.features[groups].tolist()), table.tolist(), strict=True))


def estimate(evaluator: Any, environment: LoggedRows, learner: Any) -> tuple[float, float, float]:
    """The mean of what an evaluator records, with the library's interval for a mean."""
    rewards = [each["reward"] for each in evaluator.evaluate(environment, learner)]
    if not rewards:  # rejection sampling kept no row
        return math.nan, math.nan, math.nan
    value, (below, above) = coba.StdErrCI(0.95).point_interval(rewards)
    return value, value - below, value + above


def by_rewards(kind: str) -> coba.SequentialCB:
    return coba.SequentialCB(record="reward", learn=None, eval=kind, seed=1)


def evaluate(log: Log) -> Callable[[], Estimates]:
    # DM and DR take no model from outside: see `model`
    environment, table = as_environment(log), as_table(log)

    def call() -> Estimates:
        said: list[Any] = []
        CobaContext.logger = BasicLogger(ListSink(said))
        found = {
            "ips": estimate(by_rewards("ips"), environment, Target(table)),
            "rejection": estimate(coba.RejectionCB(record="reward", seed=1), environment, Target(table)),
        }
        return found | {"says": "; ".join(map(str, said))[:300]}

    return call


def targets(log: Log) -> Callable[[], Estimates]:
    environment, tables = as_environment(log), [as_table(log, k) for k in range(len(log.policies))]
    return lambda: {f"{k} ips": estimate(by_rewards("ips"), environment, Target(each)) for k, each in enumerate(tables)}


def model(log: Log) -> Callable[[], Estimates]:
    """Vowpal Wabbit's regression; the value is that of actions drawn from the policy, one for each row."""
    environment, table = as_environment(log), as_table(log)
    return lambda: (
        {kind: estimate(by_rewards(kind), environment, Target(table)) for kind in ("dm", "dr")} | {"says": ""}
    )


# -- learning ---------------------------------------------------------------------------------------------------------------


def fit(rows: list[Any], passes: int = 1, **options: Any) -> coba.VowpalOffPolicyLearner:
    learner = coba.VowpalOffPolicyLearner(**options)
    for row in itertools.chain.from_iterable(itertools.repeat(rows, passes)):
        learner.learn(row["context"], row["action"], row["reward"], row["probability"], row["actions"])
    return learner


def learn(lesson: Lesson) -> Callable[[], Floats]:
    """`learner` is Vowpal Wabbit's --cb_type: mtr, which is its default, dr, or ips."""
    rows = interactions(lesson.context, lesson.action, lesson.reward, lesson.propensity, lesson.actions)
    names, test = rows[0]["actions"], [tuple(each) for each in lesson.test_context.tolist()]
    options: dict[str, Any] = {"cb_type": lesson.learner or "mtr", "seed": lesson.seed + 1}

    def call() -> Floats:
        best = tune(rows, lesson, options) if lesson.seconds > 0 else options
        learner = fit(rows, **best)
        return np.array([names.index(learner.predict(context, names)[0]) for context in test])

    return call


def tune(rows: list[Any], lesson: Lesson, options: dict[str, Any]) -> dict[str, Any]:
    """The settings that earn most in a quarter that was not learned from, by the library's IPS."""
    began, order = time.perf_counter(), np.random.default_rng(lesson.seed).permutation(len(rows))
    held, kept = np.split(order, [len(order) // 4])
    quarter, rest = LoggedRows([rows[k] for k in held]), [rows[k] for k in kept]
    values: list[tuple[float, int, dict[str, Any]]] = []
    grid = itertools.product((1, 4), (0.5, 0.1, 2.0, 0.02), ((1, "a", "ax", "axx"), (1, "a", "ax")))
    for passes, rate, features in grid:
        if values and time.perf_counter() - began > lesson.seconds:
            break
        tried = options | {"passes": passes, "learning_rate": rate, "features": features}
        values.append((estimate(by_rewards("ips"), quarter, fit(rest, **tried))[0], -len(values), tried))
    return max(values)[2]


# -- features ---------------------------------------------------------------------------------------------------------------


def is_doubly_robust() -> None:
    log = draw_log(4000, 4)
    assert abs(model(log)()["dr"][0] - log.truths[0]) < 0.05


def has_intervals() -> None:
    log = draw_log(2000, 4)
    value, lower, upper = evaluate(log)()["ips"]
    assert lower < value < upper


def learns() -> None:
    log = draw_log(2000, 4)
    test = log.features
    for kind in ("mtr", "dr", "ips"):
        lesson = Lesson(log.context, log.action, log.reward, log.propensity, 4, test, learner=kind)
        assert set(learn(lesson)()) <= set(range(4))


def acts_online() -> None:
    world = coba.Environments.from_linear_synthetic(500, n_actions=3, seed=1)
    rewards = [each["reward"] for each in coba.SequentialCB().evaluate(world[0], coba.VowpalEpsilonLearner())]
    assert sum(rewards[250:]) > sum(rewards[:250])


def event_line(cost: float, p: float, action: int) -> str:
    """A line of Vowpal Wabbit's dsjson."""
    actions = [action, *(each for each in (1, 2, 3) if each != action)]
    choices = [{"a": {f"action {k}": 1}} for k in (1, 2, 3)]
    return json.dumps(
        {"_label_cost": cost, "_label_probability": p, "_label_Action": action, "_labelIndex": action - 1, "Version": "1",
         "EventId": "1", "a": actions, "c": {"x": {"f": 1}, "_multi": choices}, "p": [p, (1 - p) / 2, (1 - p) / 2]}
    )  # fmt: skip


def reads_vowpal_wabbit() -> None:
    workspace = Workspace("--dsjson --cb_adf --cb_type dr --quiet")
    for k in range(60):
        example = workspace.parse(event_line(-float(k % 3 == 1), 1 / 3, 1 + k % 3))
        workspace.learn(example)
        workspace.finish_example(example)
    assert np.argmin(workspace.predict(workspace.parse(event_line(0, 1 / 3, 1)))) == 1


def learns_continuous_actions() -> None:
    workspace, random = (
        Workspace("--cats 4 --bandwidth 1 --min_value 0 --max_value 8 --quiet"),
        np.random.default_rng(1),
    )
    for action in random.uniform(0, 8, 1000):
        workspace.learn(f"ca {action}:{(action - 3) ** 2 / 25}:0.125 |x f")
    assert abs(workspace.predict("|x f")[0] - 3) < 3


def learns_lists() -> None:
    """Conditional bandits: a list is filled slot by slot, each with a cost of its own."""
    workspace = Workspace("--ccb_explore_adf --quiet")
    shown = ["ccb shared |s a", *(f"ccb action |a item{k}" for k in range(3))]
    for k in range(90):
        first, second = k % 3, (k + 1) % 3
        costs = [f"ccb slot {first}:{-float(first == 2)}:0.333 |slot one", f"ccb slot {second}:0:0.5 |slot two"]
        workspace.learn(shown + costs)
    slots = workspace.predict([*shown, "ccb slot |slot one", "ccb slot |slot two"])
    assert max(slots[0], key=lambda each: each[1])[0] == 2


def has_command() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.json"
        path.write_text("\n".join(event_line(-float(k % 2), 1 / 3, 1 + k % 3) for k in range(60)), encoding="utf-8")
        command = [sys.executable, "-m", "vowpalwabbit", "--dsjson", "--cb_adf", "-d", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    said = done.stdout + done.stderr
    assert "average loss" in said
    assert math.isfinite(float(said.split("average loss = ")[1].split()[0]))


FEATURES = {
    "doubly robust": is_doubly_robust,
    "confidence intervals": has_intervals,
    "learning a policy from a log": learns,
    "acting and learning online": acts_online,
    # by Vowpal Wabbit alone
    "continuous actions": learns_continuous_actions,
    "learning rankings from a log": learns_lists,
    "a command line": has_command,
    "logs of Vowpal Wabbit": reads_vowpal_wabbit,
}
