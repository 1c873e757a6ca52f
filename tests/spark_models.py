"""Whether models, learners and the plots of the report make the same of the rows of a Spark as of a file's."""

import numpy as np
import polars as pl
from report.test_rows import QUESTIONS, awkward, check_rows
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


def same(session, folder):
    """What was the same in Spark as here, by name; the first difference is an error."""
    path = str(folder / "models.parquet")
    a_log().write_parquet(path)
    np.testing.assert_allclose(answers(session.read.parquet(path)), answers(path), rtol=1e-9)
    np.testing.assert_array_equal(learned(session.read.parquet(path)), learned(path))
    awkward().write_parquet(folder / "awkward.parquet")
    plots = ("clusters", "a condition", "expressions", "an action")
    for name in plots:
        check_rows(session.read.parquet(str(folder / "awkward.parquet")), QUESTIONS[name])
    return ["models", "learners", *plots]
