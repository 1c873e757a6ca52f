"""Asks Spark the questions of the matrix in a process of its own: `spark_answers.py local[2] log.parquet answers.json`.

One process can hold one kind of Spark session only, and a killed executor must not hurt the other tests.
"""

import json
import os
import signal
import sys
import threading
import time
import warnings
from importlib.util import find_spec
from pathlib import Path

import planted
import polars as pl

import counterpoise as cp

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
    builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.driver.memory", "1g")
    builder = builder.config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
    return (builder.remote("local[2]") if master == "connect" else builder.master(master)).getOrCreate()


class Slow:
    """A policy slow enough for its executor to be killed in the middle; picklable by its module."""

    def __init__(self, inner, folder):
        self.inner, self.folder = inner, folder
        self.classes_ = inner.classes_

    def predict_proba(self, x):
        Path(self.folder, f"{os.getppid()}-{time.time_ns()}").touch()
        time.sleep(0.5)
        return self.inner.predict_proba(x)


def kill_an_executor(folder, killed):
    """Kills the JVM of one executor as soon as a policy runs on it."""
    from pyspark import SparkContext

    while not killed:
        time.sleep(0.05)
        if any(Path(folder).iterdir()):
            for process in executors(SparkContext._gateway.proc.pid):
                os.kill(process, signal.SIGKILL)
                killed.append(process)
                return


def executors(gateway):
    """Ids of this session's own executor processes: descendants of its own gateway, and no one else's."""
    parent, line = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            line[int(entry.name)] = (entry / "cmdline").read_text()
        except OSError:
            continue  # it ended meanwhile

    def descends(process):
        while process in parent and process != gateway:
            process = parent[process]
        return process == gateway

    return [
        process for process in sorted(line) if "CoarseGrainedExecutorBackend" in line[process] and descends(process)
    ]


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


def main(master, path, out):
    spark = start(master)
    log = pl.read_parquet(path)
    frame = spark.read.parquet(path).repartition(4)
    policy = planted.a_policy(log)
    # minutes of planning, so one kind of session has to do
    found = {"answers": planted.answers(frame, quick=master != "local[2]"), "errors": errors(frame)}
    found["policy"] = planted.numbers("policy", cp.evaluate(frame, **planted.POLICY, target={"clf": policy}))
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
    if master == "local[2]":
        found["times"] = times(spark, frame)
        planted.with_context(log).write_parquet(f"{out}.context")
        found["context"] = planted.context_parts(spark.read.parquet(f"{out}.context"))
    if master.startswith("local-cluster"):
        folder, killed = Path(out).parent / "running", []
        folder.mkdir()
        killer = threading.Thread(target=kill_an_executor, args=(folder, killed), daemon=True)
        killer.start()
        slow = Slow(policy, str(folder))
        found["killed"] = planted.numbers("policy", cp.evaluate(frame, **planted.POLICY, target={"clf": slow}))
        killer.join(10)
        found["calls"] = [len(killed), len(list(folder.iterdir()))]
    Path(out).write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    import spark_answers  # so that policies are pickled by this module's name, which executors can import

    spark_answers.main(*sys.argv[1:])
