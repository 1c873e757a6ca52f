"""A Spark of its own: whether models, learners and the plots of the report make the same of its rows as of a file's."""

import sys

import numpy as np
import polars as pl
import spark_answers
from report.test_rows import QUESTIONS, check_rows
from sklearn.linear_model import LogisticRegression

import counterpoise as cp

PARTS = {"reward": "r", "action": "a", "context": ["x", "y"], "cluster": "user"}


def a_log(n=3_000):
    """Three actions, chosen and rewarded by the context."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(2, n))
    scores = np.exp(np.column_stack([np.zeros(n), 0.6 * x, 0.5 * y - 0.4 * x]))
    policy = scores / scores.sum(axis=1, keepdims=True)
    a = (policy.cumsum(axis=1) > random.random(n)[:, None]).argmax(axis=1)
    r = (random.random(n) < 1 / (1 + np.exp(1 - 0.5 * x - 0.4 * a))).astype(float)
    columns = {"x": x, "y": y, "a": a, "r": r, "p": policy[np.arange(n), a], "pi": np.array([0.2, 0.3, 0.5])[a]}
    return pl.DataFrame({"user": np.arange(n) // 3, **columns})


def answers(log):
    """A log without propensities, and one with a reward model for a target that is a classifier."""
    rows = a_log()
    target = LogisticRegression().fit(rows.select("x", "y").to_numpy(), rows["a"].to_numpy())
    estimated = cp.evaluate(log, **PARTS, propensity="model", target="pi")
    modeled = cp.evaluate(log, **PARTS, propensity="p", target={"new": target}, model="logistic")
    found = [*estimated.estimates.values(), *modeled.estimates.values()]
    return np.array([(one.value, one.stderr) for one in found])


def learned(log):
    """What a policy says that is learned from a log."""
    from counterpoise.learn import PolicyLearner

    learner = PolicyLearner(epochs=2, batch_size=256, folds=None)
    return learner.fit(log, **PARTS, propensity="p").predict_proba(a_log().select("x", "y").to_numpy())


if __name__ == "__main__":
    session = spark_answers.start("local[2]")
    np.testing.assert_allclose(answers(session.read.parquet(sys.argv[1])), answers(sys.argv[1]), rtol=1e-9)
    np.testing.assert_array_equal(learned(session.read.parquet(sys.argv[1])), learned(sys.argv[1]))
    print("same")
    awkward = session.read.parquet(sys.argv[2])
    for name in ("clusters", "a condition", "expressions", "an action"):
        check_rows(awkward, QUESTIONS[name])
        print("same")
    session.stop()
