"""DoubleML.

It has no policies, but weighted average potential outcomes, E[ω(x) Y(a)], and adds them up with one interval: with the target's
probabilities as weights, their sum over the actions is the target's value.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import doubleml as dml
import numpy as np
import pandas as pd
from doubleml.utils import DMLDummyClassifier, DMLDummyRegressor, PSProcessorConfig
from sklearn.linear_model import LinearRegression, LogisticRegression

from peer import data
from peer.data import Floats, Log

VERSION = ("DoubleML", "doubleml")
Estimates = dict[str, Any]


def frame_of(log: Log) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The log as a data frame, and what its columns are."""
    frame = pd.DataFrame(log.context, columns=[f"x{k}" for k in range(log.context.shape[1])])
    columns: dict[str, Any] = {"y_col": "reward", "d_cols": "action", "x_cols": list(frame)}
    frame["action"], frame["reward"] = log.action.astype(float), log.reward
    if log.user is not None:
        frame["user"], columns["cluster_cols"] = log.user, "user"
    return frame, columns


def reseed() -> None:
    np.random.seed(0)  # noqa: NPY002 - DoubleML draws its folds from NumPy's global generator


def shown(framework: dml.DoubleMLFramework) -> tuple[float, float, float]:
    lower, upper = framework.confint().to_numpy()[0]
    return framework.thetas[0], lower, upper


def total(frameworks: list[dml.DoubleMLFramework]) -> dml.DoubleMLFramework:
    value = frameworks[0]
    for framework in frameworks[1:]:
        value = value + framework
    return value


def taken(table: Floats) -> Floats:
    """The actions that the target takes; a weight that is 0 everywhere is refused."""
    return np.flatnonzero(table.any(axis=0))


def propensities(log: Log, action: int) -> Floats:
    """Those of an action, as a column; what was logged with a row stands in the rows that took it."""
    return np.where(log.action == action, log.propensity, log.logging[log.group, action])[:, None]


def given(frame: pd.DataFrame, columns: dict[str, Any], log: Log, table: Floats) -> dml.DoubleMLFramework:
    """The value with the log's own propensities and model, which go in as external predictions."""
    source = dml.DoubleMLData(frame, **columns)
    parts = []
    for action in taken(table):
        reseed()
        learners = DMLDummyRegressor(), DMLDummyClassifier()
        apo = dml.DoubleMLAPO(source, *learners, treatment_level=action, weights=table[:, action])
        found = {"ml_g_d_lvl1": log.model_table[:, [action]], "ml_g_d_lvl0": log.model_reward[:, None]}
        apo.fit(external_predictions={"action": found | {"ml_m": propensities(log, action)}})
        parts.append(apo.framework)
    return total(parts)


def evaluate(log: Log) -> Callable[[], Estimates]:
    frame, columns = frame_of(log)
    table = log.table()
    _ = log.model_table, log.model_reward, log.propensity
    return lambda: {"dr": shown(given(frame, columns, log, table))}


def targets(log: Log) -> Callable[[], Estimates]:
    frame, columns = frame_of(log)
    tables = [log.table(k) for k in range(len(log.policies))]
    _ = log.model_table, log.model_reward, log.propensity
    return lambda: {f"{k} dr": shown(given(frame, columns, log, table)) for k, table in enumerate(tables)}


def fitted(
    frame: pd.DataFrame, columns: dict[str, Any], table: Floats, log: Log | None = None
) -> dml.DoubleMLFramework:
    """The value with a model that is cross-fitted in five folds; without a log, so are the propensities."""
    source = dml.DoubleMLData(frame, **columns)
    logistic = LogisticRegression(max_iter=1000)
    model = logistic if source.binary_outcome else LinearRegression()
    parts = []
    for action in taken(table):
        reseed()
        known = None if log is None else {"action": {"ml_m": propensities(log, action)}}
        apo = dml.DoubleMLAPO(source, model, logistic, treatment_level=action, weights=table[:, action])
        parts.append(apo.fit(external_predictions=known).framework)
    return total(parts)


def model(log: Log) -> Callable[[], Estimates]:
    frame, columns = frame_of(log)
    table = log.table()
    _ = log.propensity
    return lambda: {"dr": shown(fitted(frame, columns, table, log))}


# -- features: it learns policies of two actions only, so that there is no `learn` ------------------------------------------


def binary(rows: int = 600, seed: int = 0) -> tuple[pd.DataFrame, list[str]]:
    """An experiment with two arms, a continuous outcome and an instrument."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 3))
    z = random.integers(0, 2, rows)
    d = np.where(random.random(rows) < 0.8, z, 1 - z)
    y = x[:, 0] + d * (1 + x[:, 1]) + 0.5 * random.normal(size=rows)
    frame = pd.DataFrame(x, columns=["x0", "x1", "x2"]).assign(d=d.astype(float), y=y, z=z.astype(float))
    return frame, ["x0", "x1", "x2"]


def irm(frame: pd.DataFrame, names: list[str], **options: Any) -> dml.DoubleMLIRM:
    reseed()
    source = dml.DoubleMLData(frame, "y", "d", names)
    return dml.DoubleMLIRM(source, LinearRegression(), LogisticRegression(), **options).fit()


def values(log: Log) -> list[dml.DoubleMLFramework]:
    frame, columns = frame_of(log)
    return [given(frame, columns, log, log.table(k)) for k in range(len(log.policies))]


def try_doubly_robust() -> None:
    log = data.draw_log(2000, 3)
    (value,) = values(log)
    assert abs(value.thetas[0] - log.truths[0]) < 0.05


def try_intervals() -> None:
    lower, upper = values(data.draw_log(1000, 3))[0].confint(level=0.95).to_numpy()[0]
    assert lower < upper


def try_clusters() -> None:
    log = data.draw_world("users", 0, rows=1000, actions=3)
    (clustered,) = values(log)
    log.user = None
    assert clustered.ses[0] != values(log)[0].ses[0]


def try_difference() -> None:
    first, second = values(data.draw_log(1000, 3, targets=2))
    lower, upper = (second - first).confint().to_numpy()[0]
    assert lower < upper


def try_best_of_many() -> None:
    log = data.draw_log(1000, 3)
    frame, columns = frame_of(log)
    policies = np.eye(3)[:, None, :].repeat(log.rows, axis=1)  # always the same action
    three = dml.concat([given(frame, columns, log, table) for table in policies])
    reseed()
    three.bootstrap()
    joint, alone = three.confint(joint=True).to_numpy(), three.confint().to_numpy()
    assert (np.ptp(joint, axis=1) > np.ptp(alone, axis=1)).all()


def try_segments() -> None:
    frame, names = binary()
    segments = pd.DataFrame({"high": frame.x1 > 0, "low": frame.x1 <= 0})
    found = irm(frame, names).gate(segments).confint()
    assert found.loc["high", "effect"] > found.loc["low", "effect"]


def try_sensitivity() -> None:
    frame, names = binary()
    fit = irm(frame, names)
    fit.sensitivity_analysis(cf_y=0.05, cf_d=0.05)
    assert 0 < fit.sensitivity_params["rv"][0] < 1


def try_propensities() -> None:
    log = data.draw_log(1000, 2)
    frame, columns = frame_of(log)
    assert 0 < fitted(frame, columns, log.table()).thetas[0] < 1


def try_clipping() -> None:
    frame, names = binary()
    fit = irm(frame, names, ps_processor_config=PSProcessorConfig(clipping_threshold=0.2))
    assert fit.predictions["ml_m"].min() >= 0.2


def try_quantiles() -> None:
    frame, names = binary()
    reseed()
    source = dml.DoubleMLData(frame, "y", "d", names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantile = dml.DoubleMLPQ(source, LogisticRegression(), LogisticRegression(), treatment=1, quantile=0.5).fit()
    assert abs(quantile.coef[0] - 1) < 0.5


def try_experiment() -> None:
    """Covariates make the interval of an A/B test shorter than that of the difference in means."""
    frame, names = binary()
    frame["d"] = np.random.default_rng(1).integers(0, 2, len(frame)).astype(float)
    frame["y"] = 3 * frame.x0 + frame.d
    spread = frame.groupby("d").y.sem()
    assert irm(frame, names).se[0] < np.hypot(*spread)


def try_instrument() -> None:
    frame, names = binary()
    reseed()
    source = dml.DoubleMLData(frame, "y", "d", names, z_cols="z")
    fit = dml.DoubleMLIIVM(source, LinearRegression(), LogisticRegression(), LogisticRegression()).fit()
    assert abs(fit.coef[0] - 1) < 0.5


def try_continuous() -> None:
    """The slope of a continuous action: a partially linear model."""
    frame, names = binary()
    frame["d"] = frame.x0 + np.random.default_rng(1).normal(size=len(frame))
    frame["y"] = 2 * frame.d + frame.x0
    reseed()
    source = dml.DoubleMLData(frame, "y", "d", names)
    assert abs(dml.DoubleMLPLR(source, LinearRegression(), LinearRegression()).fit().coef[0] - 2) < 0.1


def try_tree() -> None:
    frame, names = binary()
    tree = irm(frame, names).policy_tree(features=frame[names], depth=2)
    actions = tree.predict(frame[names]).pred_treatment
    assert actions[frame.x1 > 0].mean() > actions[frame.x1 < -1].mean()


FEATURES = {
    "doubly robust": try_doubly_robust,
    "confidence intervals": try_intervals,
    "dependent rows: clusters": try_clusters,
    "the difference of two policies, with an interval": try_difference,
    "the best of many policies, adjusted for having chosen": try_best_of_many,
    "values by segment": try_segments,
    "how wrong propensities must be to change the answer": try_sensitivity,
    "propensities estimated from the log": try_propensities,
    "clipped and shrunk weights": try_clipping,
    "continuous actions": try_continuous,
    "quantiles and tails of rewards": try_quantiles,
    "A/B tests with less variance": try_experiment,
    "learning a policy from a log": try_tree,
    "policies one can read: trees": try_tree,
    "instruments for what was not logged": try_instrument,
}
