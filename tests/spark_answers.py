"""Asks Spark the questions of the matrix in a process of its own: `spark_answers.py local-cluster[2,1,1024] log.parquet answers.json`.

A Spark takes long to start and warm up, so there is one, a cluster that serves Spark Connect as well: the classic session asks first,
then a client that knows its address only. One process holds one kind of session only, and a killed executor must not hurt other tests.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from importlib.util import find_spec
from pathlib import Path

import planted
import polars as pl

import counterpoise as cp
from counterpoise.engines import spark as spark_engine

warnings.simplefilter("ignore")


def start(master):
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["OMP_NUM_THREADS"] = "1"
    # sessions are short: the time that the second compiler takes never comes back
    os.environ["JAVA_TOOL_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    # Connect's workers know no other way to this module
    here = [os.path.dirname(os.path.abspath(__file__)), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, here))
    if master.startswith("sc://"):
        return SparkSession.builder.remote(master).getOrCreate()
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        # wide plans: what follows from filters is looked for in every column, and every plan is written out
        "spark.sql.constraintPropagation.enabled": "false",
        "spark.sql.maxPlanStringLength": "0",
        "spark.driver.memory": "1g",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.port": "0",  # any that is free
    }
    return SparkSession.builder.config(map=settings).master(master).getOrCreate()


def address(spark):
    """Where the session's Spark serves Connect."""
    service = getattr(spark.sparkContext._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    return f"sc://localhost:{getattr(service, 'MODULE$').localPort()}"


class Waiting:
    """A policy whose executor is killed in the middle: it waits for that; picklable by its module."""

    def __init__(self, inner, folder):
        self.inner, self.folder = inner, folder
        self.classes_ = inner.classes_

    def predict_proba(self, x):
        Path(self.folder, "calls", f"{os.getppid()}-{time.time_ns()}").touch()
        while not Path(self.folder, "killed").exists():
            time.sleep(0.05)
        return self.inner.predict_proba(x)


def kill_an_executor(folder):
    """Kills the JVM of the executor that first asks the policy."""
    calls = Path(folder, "calls")
    while not (called := list(calls.iterdir())):
        time.sleep(0.05)
    os.kill(executor_of(int(called[0].name.partition("-")[0])), signal.SIGKILL)
    Path(folder, "killed").touch()


def executor_of(process):
    """The id of the executor that a process of Python descends from."""
    while "CoarseGrainedExecutorBackend" not in Path(f"/proc/{process}/cmdline").read_text():
        process = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1]
    return int(process)


def errors(frame):
    """What the bad questions are answered with."""
    found = {}
    for name, question in {
        "bad rows": {"reward": "reward", "propensity": "propensity", "target": "new"},
        "wrong column": {"reward": "rewards", "propensity": "propensity", "target": "new"},
        "wrong expression": planted.BASE | {"target": "new + nothing"},
        "policy": planted.POLICY | {"target": too_large},
        "two of a name": planted.BASE | {"target": "new"},
    }.items():
        try:
            cp.evaluate(frame.select("*", frame.old.alias("new")) if name == "two of a name" else frame, **question)
        except cp.CounterpoiseError as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def times(spark, frame):
    """The segments of a point in time, by columns and by a policy, in a session that is elsewhere."""
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    timed = frame.selectExpr("*", "timestamp_seconds(1792976400 + device * 50400) as time")
    question = planted.BASE | {"segment": "time"}
    by_column = cp.evaluate(timed, **question, target="new")
    by_policy = cp.evaluate(timed, **question, target={"half": half}, context=["x0"], action="action")
    spark.conf.unset("spark.sql.session.timeZone")
    return [by_column.moments.segments, by_policy.moments.segments]


def half(batch):
    import numpy as np

    return np.full(batch.num_rows, 0.5)


def too_large(batch):
    import numpy as np

    return np.full(batch.num_rows, 1.5)


def by_name(batch):
    import numpy as np

    return np.array([0.1 + 0.8 * (len(name) % 2) if name else 0.5 for name in batch.column("name").to_pylist()])


def answers(spark, log, path, *, ask):
    """What every kind of session is asked; planning takes minutes, so one kind has to do for most of the matrix."""
    frame = spark.read.parquet(path).repartition(4)
    found = {"answers": ask(frame), "errors": errors(frame)}
    if ask is planted.sample:
        found["without"] = without_counterpoise(spark, frame, "labels", "expression", "kept", "ratio", "action")
    found["policy"] = planted.numbers(
        "policy", cp.evaluate(frame, **planted.POLICY, target={"clf": planted.a_policy(log)})
    )
    if find_spec("torch") is not None:
        learned = cp.evaluate(frame, **planted.POLICY, target={"learned": planted.a_learned_policy()})
        found["learned"] = planted.numbers("learned", learned)
    odd = frame.withColumnRenamed("reward", "re`wa.rd; --").withColumnRenamed("new", 'n "é" w')
    result = cp.evaluate(odd, **planted.BASE | {"reward": "re`wa.rd; --", "target": 'n "é" w'})
    found["odd"] = [result['n "é" w', "snips"].value, result['n "é" w', "snips"].stderr]
    named = frame.selectExpr("*", "concat('user ', user) as name")
    found["named"] = cp.evaluate(named, **planted.BASE, target="new", cluster="name")["new", "snips"].stderr
    # one partition has bad rows only; the cluster's text is also what the policy looks at
    halves = named.filter("id < 2000").unionByName(
        named.filter("id >= 2000").selectExpr("*").withColumn("propensity", named.x0 * 0)
    )
    question = planted.BASE | {"segment": "country", "cluster": "name", "context": ["name"], "action": "action"}
    found["halves"] = planted.numbers("halves", cp.evaluate(halves, **question, target={"named": by_name}))
    return found


def jobs(spark, frame):
    """How many jobs a plain log takes, for one target and for ten, and how many of them the answer says its sums took."""
    asked, found = frame.selectExpr("reward", "propensity", *(f"new * {k} / 10 as t{k}" for k in range(10))), []
    for targets in (1, 10):
        spark.sparkContext.setJobGroup(f"{targets} targets", "to be counted")
        result = cp.evaluate(asked, **planted.BASE, target=[f"t{k}" for k in range(targets)])
        found.append([len(spark.sparkContext.statusTracker().getJobIdsForGroup(f"{targets} targets")), result.queries])
    spark.sparkContext.setJobGroup("", "")
    return found


def without_counterpoise(spark, frame, *names):
    """The numbers of some questions where executors cannot import it; and how many jobs their sums took."""
    spark_engine._WITHOUT_COUNTERPOISE.add(spark)
    results = {name: cp.evaluate(frame, **planted.QUESTIONS[name]) for name in names}
    spark_engine._WITHOUT_COUNTERPOISE.discard(spark)
    numbers = {key: values for name, one in results.items() for key, values in planted.numbers(name, one).items()}
    return numbers, [one.queries for one in results.values()]


def in_classic(spark, log, path, out):
    """What one kind of session has to do for."""
    frame = spark.read.parquet(path).repartition(4)
    found = {"times": times(spark, frame), "jobs": jobs(spark, spark.read.parquet(path))}
    found["without"] = without_counterpoise(spark, frame, "whole", "everything", "worlds apart")
    planted.with_context(log).write_parquet(f"{out}.context")
    found["context"] = planted.context_parts(spark.read.parquet(f"{out}.context"))
    if find_spec("torch") is not None:
        import spark_models

        found["same"] = spark_models.same(spark, Path(out).parent)
    return found


def with_an_executor_killed(spark, log, path, folder):
    Path(folder, "calls").mkdir(parents=True)
    threading.Thread(target=kill_an_executor, args=(folder,), daemon=True).start()
    frame = spark.read.parquet(path).repartition(4)
    found = cp.evaluate(frame, **planted.POLICY, target={"clf": Waiting(planted.a_policy(log), str(folder))})
    return {"killed": planted.numbers("policy", found), "calls": len(list(Path(folder, "calls").iterdir()))}


def main(master, path, out):
    spark, log = start(master), pl.read_parquet(path)
    if master.startswith("sc://"):
        found = answers(spark, log, path, ask=planted.sample)
    else:
        found = answers(spark, log, path, ask=planted.answers) | in_classic(spark, log, path, out)
        if find_spec("grpc") is not None:
            command = [sys.executable, __file__, address(spark), path, f"{out}.connect"]
            subprocess.run(command, check=True)
            found["connect"] = json.loads(Path(f"{out}.connect").read_text())
        found |= with_an_executor_killed(spark, log, path, f"{out}.running")
    Path(out).write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    import spark_answers  # so that policies are pickled by this module's name, which executors can import

    spark_answers.main(*sys.argv[1:])
