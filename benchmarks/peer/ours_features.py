"""What counterpoise has of the features: a call for each.

It has no continuous actions, no models of states (fitted Q, DICE), no instruments, no trees that one could read (a scikit-learn tree can be
learned by `Reduction`, and is then out of sight), and nothing that acts and learns online.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl

import counterpoise as cp
from peer.data import Log, draw_lists, draw_log, draw_mistake

NAMES = {"reward": "reward", "propensity": "propensity", "target": "target"}


def columns(log: Log) -> dict[str, Any]:
    return {"reward": log.reward, "propensity": log.propensity, "target": log.target()}


def several(count: int) -> tuple[Log, dict[str, Any]]:
    log = draw_log(2000, 5, targets=count)
    return log, columns(log) | {"target": {f"t{k}": log.target(k) for k in range(count)}}


def is_near(estimate: Any, truth: float) -> bool:
    return abs(estimate.value - truth) < 4 * estimate.stderr


# -- estimates --------------------------------------------------------------------------------------------------------------


def normalize() -> None:
    log = draw_log(500, 5)
    log.reward[:] = 1.0
    assert abs(cp.evaluate(**columns(log))["target", "snips"].value - 1) < 1e-12


def take_best_baseline() -> None:
    """A constant added to every reward adds no error."""
    log = draw_log(2000, 5)
    result, moved = (
        cp.evaluate(**columns(log) | {"reward": log.reward + c})["target", "beta_ips"] for c in (0.0, 10.0)
    )
    assert abs(moved.value - result.value - 10) < 1e-9
    assert abs(moved.stderr - result.stderr) < 1e-9


def use_model() -> None:
    log = draw_log(2000, 5)
    result = cp.evaluate(**columns(log), model_reward=log.model_reward, model_value=log.model_value())
    assert is_near(result["target", "dr"], log.truths[0])
    assert result["target", "optimal_dr"].stderr < result["target", "ips"].stderr


def make_intervals() -> None:
    log = draw_log(2000, 5)
    for method in ("student", "normal", "jackknife", "anytime", cp.intervals.Bernstein((0, 1), max_weight=50)):
        lower, upper = cp.evaluate(**columns(log), interval=method)["target", "ips"].interval
        assert lower < log.truths[0] < upper


def allow_for_clusters() -> None:
    """Every row ten times, as a cluster: no more certain than once."""
    log, ten = draw_log(200, 3), np.repeat(np.arange(200), 10)
    repeated = {name: column[ten] for name, column in columns(log).items()}
    once, clustered, alone = (
        cp.evaluate(**given)["target", "beta_ips"].stderr
        for given in (columns(log), repeated | {"cluster": ten}, repeated)
    )
    assert abs(clustered / once - 1) < 0.1
    assert alone < 0.5 * once


def compare_two() -> None:
    log, given = several(2)
    found = cp.compare(**given | {"target": log.target(0), "against": log.target(1)})
    assert is_near(found, log.truths[0] - log.truths[1])
    assert found.interval.width < cp.evaluate(**columns(log))["target", "beta_ips"].interval.width


def rank_many() -> None:
    _, given = several(8)
    found, alone = cp.rank(**given), cp.compare(**given)
    assert [one.value for one in found] == sorted((one.value for one in found), reverse=True)
    assert all(one.interval.width > alone[one.target, alone.best].interval.width for one in found)


def look_at_segments() -> None:
    log = draw_log(2000, 5)
    country = np.array(["DE", "FR"])[log.group % 2]
    result = cp.evaluate(**columns(log), segment={"country": country})
    assert result["target", "beta_ips", "DE"].n == (country == "DE").sum()
    assert result.verdict("target", "FR").verdict == "ok"


def say_no() -> None:
    assert cp.evaluate(**columns(draw_mistake("no overlap", 1000))).verdict().verdict == "not identified"


def examine() -> None:
    frame = pl.DataFrame(columns(draw_mistake("propensities in percent", 1000)))
    first = cp.doctor(frame, **NAMES).findings[0]
    assert "100" in first.message


def plan_test() -> None:
    needs = [cp.plan(**columns(draw_log(2000, 5)), difference=d).needs.difference_rows for d in (0.01, 0.02)]
    assert needs[0] > 3 * needs[1] > 0


def doubt_propensities() -> None:
    log = draw_log(2000, 5)
    found = cp.sensitivity(**columns(log), gamma=[1.5])
    lower, upper = found.bounds(1.5).value
    assert lower < cp.evaluate(**columns(log))["target", "snips"].value < upper
    assert found.tipping_point >= 1


def estimate_propensities() -> None:
    log = draw_log(2000, 3)
    result = cp.evaluate(
        reward=log.reward, propensity="model", target=log.target(), action=log.action, context=log.context
    )
    assert is_near(result["target", "beta_ips"], log.truths[0])
    assert result.verdict().verdict == "caution"


def pool_loggers() -> None:
    """Rows of two policies, either of which could have written any of them."""
    random, log = np.random.default_rng(0), draw_log(2000, 3)
    both = {"old": log.logging, "even": np.full_like(log.logging, 1 / 3)}
    who = random.choice(list(both), log.rows)
    action = np.where(who == "old", log.action, random.integers(0, 3, log.rows))
    reward = (random.random(log.rows) < log.predictions[log.group, action]).astype(float)
    propensity = {name: table[log.group, action] for name, table in both.items()}
    result = cp.evaluate(reward=reward, propensity=propensity, logger=who, target=log.policies[0][log.group, action])
    assert is_near(result["target", "beta_ips"], (log.policies[0] * log.predictions).sum(axis=1).mean())
    assert "naive pooling" in result.loggers()["how"]


def shrink_weights() -> None:
    log = draw_log(2000, 5)
    w = log.target() / log.propensity
    weights = {
        cp.weights.Clip(1.2): np.minimum(w, 1.2),
        cp.weights.Shrink(5): 5 * w / (w**2 + 5),
        cp.weights.Switch(1.2): w * (w <= 1.2),
        cp.weights.Harmonic(0.5): w / (0.5 + 0.5 * w),
    }
    for weight, wanted in weights.items():
        found = cp.evaluate(**columns(log), weight=weight)["target", "ips"].value
        assert abs(found - (wanted * log.reward).mean()) < 1e-9
    assert len(cp.evaluate(**columns(log), weight=cp.weights.Slope(cp.weights.Clip)).ladder()) > 5


def weigh_groups() -> None:
    """Forty items of four kinds, which are all that matters."""
    random, kinds = np.random.default_rng(0), np.arange(40) % 4
    old, new = random.dirichlet(np.full(40, 0.5), 2) * 0.8 + 0.2 / 40
    action, rate = random.choice(40, 2000, p=old), 0.1 + 0.2 * kinds
    of_kind = {"p": np.bincount(kinds, old)[kinds[action]], "pi": np.bincount(kinds, new)[kinds[action]]}
    frame = pl.DataFrame({"reward": (random.random(2000) < rate[action]) * 1.0, "propensity": old[action], **of_kind})
    frame = frame.with_columns(target=new[action])
    targets = {"items": "target", "kinds": cp.ActionGroup("pi", "p")}
    result = cp.evaluate(frame, **NAMES | {"target": targets})
    assert is_near(result["kinds", "beta_ips"], float(new @ rate))
    assert result["kinds", "beta_ips"].stderr < 0.7 * result["items", "beta_ips"].stderr


# -- other questions --------------------------------------------------------------------------------------------------------


def evaluate_lists() -> None:
    lists = draw_lists(2000, 4)
    given = {name: getattr(lists, name) for name in ("slate", "position", "reward", "propensity", "target")}
    result = cp.evaluate(**given, propensity_of="item_at_position", weight=cp.weights.Independent())
    assert result.n == 500
    assert is_near(result["target", "beta_ips"], lists.truth)


def evaluate_episodes() -> None:
    """Two steps; the second is there, and pays, only after action 1."""
    random = np.random.default_rng(0)
    first, second = random.integers(0, 2, (2, 1000))
    goes_on = np.flatnonzero(first == 1)
    episode, step = np.concatenate([np.arange(1000), goes_on]), np.repeat([0, 1], [1000, len(goes_on)])
    action = np.concatenate([first, second[goes_on]])
    reward = np.where(step == 1, random.random(len(action)) < 0.2 + 0.6 * action, 0.0)
    target = np.where(action == 1, 0.8, 0.2)
    propensity = np.full(len(action), 0.5)
    result = cp.evaluate(episode=episode, step=step, reward=reward, propensity=propensity, target=target)
    assert is_near(result["target", "beta_ips"], 0.8 * (0.8 * 0.8 + 0.2 * 0.2))


def divide_sums() -> None:
    random, frame = np.random.default_rng(0), pl.DataFrame(columns(draw_log(2000, 5)))
    frame = frame.with_columns(visits=random.poisson(2, 2000) + 1)
    frame = frame.with_columns(revenue=1.5 * pl.col("visits") + random.normal(0, 0.1, 2000))
    result = cp.evaluate(frame, **NAMES | {"reward": cp.Ratio("revenue", "visits")})
    assert is_near(result["target", "beta_ips"], 1.5)


def look_at_tails() -> None:
    log, random = draw_log(2000, 5), np.random.default_rng(0)
    spread = cp.distribution(**columns(log) | {"reward": random.exponential(1.0, 2000)})
    assert is_near(spread.quantile(0.5), np.log(2))
    assert spread.cvar(0.1).value < spread.quantile(0.1).value


def undo_sampling() -> None:
    """Every click and half of the rest."""
    log, random = draw_log(2000, 5), np.random.default_rng(0)
    keep = np.where(log.reward == 1, 1.0, 0.5)
    kept = random.random(2000) < keep
    result = cp.evaluate(**{name: column[kept] for name, column in columns(log).items()}, keep=keep[kept])
    assert is_near(result["target", "beta_ips"], log.truths[0])
    assert abs(result.rows_before - 2000) < 200


def use_judge() -> None:
    """A biased judge of every row, and labels of a fifth."""
    log, random = draw_log(2000, 5), np.random.default_rng(0)
    rated, judge = random.random(2000) < 0.2, 0.3 + 0.5 * log.reward + random.normal(0, 0.1, 2000)
    frame = pl.DataFrame(columns(log)).with_columns(
        reward=np.where(rated, log.reward, np.nan), judge=judge, rated=rated
    )
    result = cp.evaluate(frame, **NAMES, proxy="judge", observed="rated")
    labels = cp.evaluate(frame, **NAMES, where="rated")
    assert is_near(result["target", "beta_ips"], log.truths[0])
    assert result.stderr < 0.8 * labels.stderr


def analyze_experiment() -> None:
    random = np.random.default_rng(0)
    arm, before = random.choice(["new", "old"], 1000), random.normal(size=1000)
    frame = pl.DataFrame(
        {"arm": arm, "before": before, "revenue": before + 0.5 * (arm == "new") + random.normal(size=1000)}
    )
    test = cp.ab_test(frame, arm="arm", against="old", reward="revenue", baseline=["before"])
    assert is_near(test["new"], 0.5)
    assert test["new"].interval.width < 0.8 * test["new", "difference in means"].interval.width


# -- where logs are, and what is kept of them -------------------------------------------------------------------------------


def same_as_arrays(log: Log, data: Any, **more: Any) -> bool:
    found, wanted = cp.evaluate(data, **NAMES, **more, progress=False), cp.evaluate(**columns(log))
    return abs(found["target", "beta_ips"].value - wanted["target", "beta_ips"].value) < 1e-9


def stream_files() -> None:
    log = draw_log(2000, 5)
    with TemporaryDirectory() as folder:
        for day in range(2):
            pl.DataFrame(columns(log))[1000 * day : 1000 * (day + 1)].write_parquet(f"{folder}/{day}.parquet")
        assert same_as_arrays(log, f"{folder}/*.parquet")


def ask_database() -> None:
    import duckdb

    log = draw_log(2000, 5)
    with duckdb.connect() as connection:
        connection.register("frame", pl.DataFrame(columns(log)).to_arrow())
        connection.execute("CREATE TABLE log AS SELECT * FROM frame")
        assert same_as_arrays(log, connection, table="log")


def ask_spark() -> None:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # a session this short is over before Java's second compiler pays
    os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1", "spark.driver.memory": "1g",
                "spark.sql.constraintPropagation.enabled": "false"}  # fmt: skip
    spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    try:
        log = draw_log(500, 5)
        frame = pl.DataFrame(columns(log))
        assert same_as_arrays(log, spark.createDataFrame(frame.rows(), frame.columns))
    finally:
        spark.stop()


def add_days() -> None:
    log = draw_log(2000, 5)
    days = [{name: column[part] for name, column in columns(log).items()} for part in (slice(1500), slice(1500, None))]
    first, second = (cp.LogMoments.from_json(cp.evaluate(**day).moments.to_json()) for day in days)
    whole, wanted = cp.evaluate(first + second), cp.evaluate(**columns(log))
    assert abs(whole["target", "beta_ips"].value - wanted["target", "beta_ips"].value) < 1e-9


def watch_days() -> None:
    """Twenty days of a hundred rows; from the sixteenth on, everybody clicks."""
    log, day = draw_log(2000, 3), np.arange(2000) // 100
    reward = np.where(day < 15, log.reward, 1.0)
    dates = pl.date_range(pl.date(2026, 11, 1), pl.date(2026, 11, 20), eager=True)
    frame = pl.DataFrame(columns(log) | {"reward": reward, "date": dates.gather(day)})
    watched = cp.watch(frame, **NAMES, day="date", alert="changed", progress=False)
    assert any(alarm.since == "2026-11-16" for alarm in watched.alarms)
    assert watched.alerts[0].fired


# -- learning ---------------------------------------------------------------------------------------------------------------


def draw_lesson(rows: int = 2000) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Contexts that point to one of three actions, which pays; and what every action pays in them."""
    random = np.random.default_rng(0)
    context, action = random.normal(size=(rows, 3)), random.integers(0, 3, rows)
    rates = np.where(np.eye(3)[context.argmax(axis=1)] == 1, 0.6, 0.1)
    reward = (random.random(rows) < rates[np.arange(rows), action]).astype(float)
    return {"context": context, "action": action, "reward": reward, "propensity": np.full(rows, 1 / 3)}, rates


def learn_policy() -> None:
    from sklearn.linear_model import LogisticRegression

    from counterpoise.learn import Reduction

    lesson, rates = draw_lesson()
    contenders = ["beta_ips", Reduction(LogisticRegression())]
    found = cp.learn_policy(**lesson, contenders=contenders, minutes=None, progress=False)
    assert found.kind == "learned"
    assert (found.policy.predict_proba(lesson["context"]) * rates).sum(axis=1).mean() > 0.5
    assert found.result.verdict().verdict == "ok"


def learn_ranking() -> None:
    """Two of three items, at random; who sees the favorite on top may click."""
    from counterpoise.learn import RankingLearner

    random = np.random.default_rng(0)
    favorite = random.integers(0, 3, 1000)
    shown = random.random((1000, 3)).argsort(axis=1)[:, :2]
    reward = (random.random((1000, 2)) < np.where(shown == favorite[:, None], [0.8, 0.4], 0.1)).astype(float)
    ranker = RankingLearner(epochs=4, batch_size=64, learning_rate=0.1).fit(
        slate=np.repeat(np.arange(1000), 2),
        position=np.tile([0, 1], 1000),
        action=shown.ravel(),
        reward=reward.ravel(),
        propensity=np.tile([1 / 3, 1 / 2], 1000),
        context=np.repeat(np.eye(3)[favorite], 2, axis=0),
        propensity_of="item_given_above",
    )
    assert ranker.predict(np.eye(3))[:, 0].tolist() == [0, 1, 2]


def learn_items() -> None:
    """Two towers over a million items; every step compares with a hundred of them."""
    from counterpoise.learn import PolicyLearner, TwoTower

    random, items = np.random.default_rng(0), 1_000_000
    given = {
        "context": random.normal(size=(400, 3)),
        "action": random.integers(0, items, 400),
        "propensity": np.full(400, 1 / items),
    }
    policy = TwoTower(3, n_actions=items, dimension=4)
    PolicyLearner(policy=policy, epochs=1, batch_size=200, negatives=100, folds=None).fit(
        **given, reward=random.integers(0, 2, 400)
    )
    action, propensity = policy.sample(given["context"][:2], seed=0)
    assert action.max() < items
    assert (propensity > 0).all()


def export_policy() -> None:
    import onnxruntime

    from counterpoise.learn import PolicyLearner, export_onnx

    lesson, _ = draw_lesson(500)
    policy = PolicyLearner(epochs=1, folds=None).fit(**lesson).policy_
    with TemporaryDirectory() as folder:
        path = f"{folder}/policy.onnx"
        export_onnx(policy, path)
        session = onnxruntime.InferenceSession(path)
        given = {session.get_inputs()[0].name: lesson["context"].astype(np.float32)}
        assert np.allclose(session.run(["probabilities"], given)[0], policy.predict_proba(lesson["context"]), atol=1e-5)


# -- for people and other tools ---------------------------------------------------------------------------------------------


def write_page() -> None:
    with TemporaryDirectory() as folder:
        path = cp.evaluate(**columns(draw_log(1000, 5))).report(f"{folder}/report.html")
        assert "<html" in path.read_text(encoding="utf-8")


def use_command_line() -> None:
    with TemporaryDirectory() as folder:
        pl.DataFrame(columns(draw_log(500, 5))).write_csv(f"{folder}/log.csv")
        command = [sys.executable, "-m", "counterpoise", "evaluate", "log.csv", "--target", "target", "--json"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)


def read_vowpal_wabbit() -> None:
    log = draw_log(100, 3)
    lines = []
    for action, reward, p in zip(log.action.tolist(), log.reward, log.propensity, strict=True):
        order = [action + 1, *(k + 1 for k in range(3) if k != action)]
        record = {"_label_cost": -reward, "_label_probability": p, "_label_Action": action + 1, "_labelIndex": action,
                  "Timestamp": "2026-11-16T10:00:00.0000000Z", "EventId": str(len(lines)), "a": order,
                  "c": {"_multi": [{}, {}, {}]}, "p": [p, (1 - p) / 2, (1 - p) / 2]}  # fmt: skip
        lines.append(json.dumps(record))
    with TemporaryDirectory() as folder:
        path = Path(folder, "monday.dsjson")
        path.write_text("\n".join(lines), encoding="utf-8")
        result = cp.evaluate(cp.read.vowpal_wabbit(path), target=cp.Always(2))
    value = result.estimates[result.targets[0], "ips", None].value
    assert abs(value - np.mean((log.action == 1) / log.propensity * log.reward)) < 1e-9


FEATURES: dict[str, Callable[[], None]] = {
    "self-normalized IPS": normalize,
    "the best baseline (β-IPS)": take_best_baseline,
    "doubly robust": use_model,
    "confidence intervals": make_intervals,
    "dependent rows: clusters": allow_for_clusters,
    "the difference of two policies, with an interval": compare_two,
    "the best of many policies, adjusted for having chosen": rank_many,
    "values by segment": look_at_segments,
    "says when the log cannot answer": say_no,
    "checks a log and says what to fix": examine,
    "how many rows a test would need": plan_test,
    "how wrong propensities must be to change the answer": doubt_propensities,
    "propensities estimated from the log": estimate_propensities,
    "several logging policies": pool_loggers,
    "clipped and shrunk weights": shrink_weights,
    "weights by the features of actions (MIPS)": weigh_groups,
    "lists and rankings": evaluate_lists,
    "episodes of many steps": evaluate_episodes,
    "ratios of sums": divide_sums,
    "quantiles and tails of rewards": look_at_tails,
    "logs that kept only a sample of the rows": undo_sampling,
    "a judge of everything and a few labels": use_judge,
    "A/B tests with less variance": analyze_experiment,
    "Parquet files larger than memory": stream_files,
    "SQL databases": ask_database,
    "Spark": ask_spark,
    "stored sums to which days are added": add_days,
    "alarms over days": watch_days,
    "learning a policy from a log": learn_policy,
    "learning rankings from a log": learn_ranking,
    "learning over a million items": learn_items,
    "a page to share": write_page,
    "a command line": use_command_line,
    "logs of Vowpal Wabbit": read_vowpal_wabbit,
    "a policy as ONNX": export_policy,
}
