"""skdr-eval."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import skdr_eval as sk

from peer import data
from peer.data import Floats, Lists, Log

VERSION = ("skdr-eval", "skdr_eval")
Estimates = dict[str, Any]
REACH = 1.959963984540054


# -- given propensities and a given model -----------------------------------------------------------------------------------


def arrays_of(log: Log) -> dict[str, Floats]:
    propensities = log.logging[log.group]
    propensities[np.arange(log.rows), log.action] = log.propensity
    return {"propensities": propensities, "Y": log.reward, "q_hat": log.model_table, "A": log.action,
            "elig": np.ones(propensities.shape, dtype=np.int8)}  # fmt: skip


def artifact_of(arrays: dict[str, Any], policies: dict[str, Floats]) -> sk.EvaluationArtifact:
    """DR and SNDR with a prediction for every action, and an artifact, which knows the warnings and the verdict.

    `dr_value_with_clip`, which also chooses a clip, reads predictions of the logged action alone and takes them for the target's
    as well, so that its DR is biased. The interval is the normal one, which `evaluate_sklearn_models` falls back to.
    """
    rows, detailed = [], {}
    for name, policy in policies.items():
        detailed[name] = {
            each: sk.dr_value_with_strategy(**arrays, policy_probs=policy, strategy=sk.build_strategy(each))
            for each in ("DR", "SNDR")
        }
        for each, result in detailed[name].items():
            result.grid["clip"] = 10.0  # the strategies' own, without which there is no artifact
            numbers = {key: value for key, value in vars(result).items() if key not in ("grid", "contributions")}
            reach = REACH * result.SE_if
            interval = {"ci_lower": result.V_hat - reach, "ci_upper": result.V_hat + reach}
            rows.append({"model": name, "estimator": each} | numbers | interval)
    return sk.build_evaluation_artifact(
        report=pd.DataFrame(rows), detailed=detailed, n_samples=len(arrays["Y"]), propensities=arrays["propensities"],
        actions=arrays["A"], alpha=0.05,
    )  # fmt: skip


def shown(artifact: sk.EvaluationArtifact, prefix: bool = False) -> Estimates:
    return {
        f"{row.model} {row.estimator}".lower() if prefix else row.estimator.lower(): (row.V_hat, row.ci_lower, row.ci_upper)
        for row in artifact.report.itertuples()
    }  # fmt: skip


def says(artifact: sk.EvaluationArtifact, logs: pd.DataFrame, heard: list[str]) -> str:
    """What it logged, what the doctor finds, the support's health, and whether to replace what was logged."""
    checks = sk.doctor(logs, metric_col="reward").checks
    words = heard + [check.message for check in checks if check.status != "pass" and check.category != "environment"]
    row = artifact.report.iloc[0]
    advice = artifact.recommendation("target", estimator="DR", baseline=float(logs.reward.mean()))
    words += [
        f"support {row.support_health} {row.diagnostic_warnings}",
        f"{advice.verdict}, confidence {advice.confidence}",
    ]
    return "; ".join(words + [reason.message for reason in advice.reasons])


class Ear(logging.Handler):
    """What the library says through `logging`."""

    def __enter__(self) -> list[str]:
        self.heard: list[str] = []
        logging.getLogger("skdr_eval").addHandler(self)
        return self.heard

    def __exit__(self, *error: object) -> None:
        logging.getLogger("skdr_eval").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(record.getMessage())


def frame_of(log: Log) -> pd.DataFrame:
    """The log in the library's schema: its time is the order of the rows."""
    columns = {"arrival_ts": np.arange(log.rows), "client_id": np.arange(log.rows) if log.user is None else log.user}
    columns |= {f"cli_{k}": log.context[:, k] for k in range(log.context.shape[1])}
    columns |= {f"op_{a}_elig": np.ones(log.rows, dtype=int) for a in range(log.actions)}
    columns |= {
        "action": np.char.add("op_", log.action.astype(str)),
        "reward": log.reward,
        "propensity": log.propensity,
    }
    return pd.DataFrame(columns)


def evaluate(log: Log) -> Callable[[], Estimates]:
    arrays, table, logs = arrays_of(log), log.table(), frame_of(log)

    def call() -> Estimates:
        with Ear(logging.WARNING) as heard:
            artifact = artifact_of(arrays, {"target": table})
        return shown(artifact) | {"says": says(artifact, logs, heard)}

    return call


def targets(log: Log) -> Callable[[], Estimates]:
    arrays = arrays_of(log)
    tables = {str(k): log.table(k) for k in range(len(log.policies))}
    return lambda: shown(artifact_of(arrays, tables), prefix=True)


# -- propensities and a model that it fits ----------------------------------------------------------------------------------


class Target:
    """A policy comes in as a model of service times: the probability of an action is proportional to one over its time."""

    def __init__(self, table: Floats) -> None:
        self.times = 1 / np.maximum(table, 1e-12).ravel()

    def fit(self, features: Floats, times: Floats) -> Target:
        return self

    def predict(self, features: Floats) -> Floats:
        return self.times


def run_whole(logs: pd.DataFrame, table: Floats, **options: Any) -> sk.EvaluationArtifact:
    """The documented way, with bootstrap intervals; propensities in the log are not read, but always estimated."""
    return sk.evaluate_sklearn_models(
        logs, {"target": Target(table)}, fit_models=False, policy_train="all", ci_bootstrap=True, y_col="reward", **options
    )  # fmt: skip


def model(log: Log) -> Callable[[], Estimates]:
    logs, table = frame_of(log), log.table()

    def call() -> Estimates:
        with Ear(logging.WARNING) as heard:
            artifact = run_whole(logs, table)
        return shown(artifact) | {"says": says(artifact, logs, heard)}

    return call


# -- lists ------------------------------------------------------------------------------------------------------------------


def lists(log: Lists) -> Callable[[], Estimates]:
    logging, target = log.policies
    frame = pd.DataFrame(
        {"slate": log.matrix("action").tolist(), "clicks": log.matrix("reward").astype(int).tolist(),
         "reward": log.matrix("reward").sum(axis=1), "logging_prob": log.matrix("propensity").prod(axis=1)}
    )  # fmt: skip

    def call() -> Estimates:
        # PI-IPS is left out: it never asks how lists were logged
        artifact = sk.evaluate_slate_models(
            frame, {"target": lambda rank, item: target[rank, item]}, n_items=target.shape[1],
            logging_policy_per_rank=lambda rank, item: logging[rank, item],
            estimators=("SlateStandardIPS", "RIPS", "SlateCascadeDR"),
        )  # fmt: skip
        found: Estimates = {
            row.estimator.lower(): (row.V_hat, row.V_hat - REACH * row.SE_if, row.V_hat + REACH * row.SE_if)
            for row in artifact.report.itertuples()
        }
        return found | {"says": ", ".join(filter(None, artifact.report.diagnostic_warnings))}

    return call


# -- features ---------------------------------------------------------------------------------------------------------------


def small(estimator: str, **options: Any) -> Any:
    log = data.draw_log(1000, 10)
    arrays = arrays_of(log) | {"q_hat": options.pop("q_hat", log.model_table)}
    strategy = sk.build_strategy(estimator, **options)
    embedding = options.get("action_embedding")
    return sk.dr_value_with_strategy(**arrays, policy_probs=log.table(), strategy=strategy, action_embedding=embedding)


def try_self_normalized() -> None:
    log = data.draw_log(1000, 10)
    w = log.target() / log.propensity
    assert np.isclose(small("SNDR", q_hat=np.zeros((1000, 10))).V_hat, (w * log.reward).sum() / w.sum())


def try_doubly_robust() -> None:
    assert abs(small("DR").V_hat - 0.157) < 0.1


def try_intervals() -> None:
    lower, upper = sk.block_bootstrap_ci(np.arange(500) % 2.0, None, np.array([0.5]))
    assert lower <= 0.5 <= upper


def try_difference() -> None:
    """Over what was logged, whose mean counts as known."""
    log = data.draw_log(1000, 3)
    row = run_whole(frame_of(log), log.table(), baseline="logged", outcome_estimator="ridge").report.iloc[0]
    assert row.delta_ci_lower < row.delta_V_hat < row.delta_ci_upper


def try_many() -> None:
    """For p-values that one has."""
    assert np.allclose(sk.multiple_comparison_correction([0.01, 0.04, 0.5], method="holm"), [0.03, 0.08, 0.5])


def try_verdict() -> None:
    log = data.draw_mistake("no overlap", rows=1000)
    log.policies = (0.999 * log.policies[0] + 0.001 / 10,)
    artifact = artifact_of(arrays_of(log), {"target": log.table()})
    assert artifact.report.support_health[0] == "high_risk"


def try_doctor() -> None:
    report = sk.doctor(frame_of(data.draw_mistake("NaN reward", rows=1000)), metric_col="reward")
    assert not report.ok
    assert any(check.fix_hint for check in report.checks if check.status == "fail")


def try_power() -> None:
    assert 300 < sk.sample_size_calculation(0.2, power=0.8) < 450


def try_propensities() -> None:
    log = data.draw_log(1000, 3)
    found, _ = sk.fit_propensity_timecal(log.context, log.action)
    assert found.shape == (1000, 3)


def try_shrinkage() -> None:
    assert 0 < small("DRos", lam=1.0).V_hat < 1
    assert 0 < small("SWITCH-DR", tau=1.0).V_hat < 1


def try_embeddings() -> None:
    assert small("MIPS", action_embedding=np.eye(10)[:, :3]).ESS > 100


def try_lists() -> None:
    log = data.draw_lists(5000, 5)
    assert abs(lists(log)()["rips"][0] - log.truth) < 0.3


def try_page() -> None:
    log = data.draw_log(1000, 3)
    assert (
        "<html" in artifact_of(arrays_of(log), {"target": log.table()}).card("target", headline_estimator="DR").lower()
    )


def try_command() -> None:
    command = Path(sys.executable).with_name("skdr-eval")
    assert "doctor" in subprocess.run([command, "--help"], capture_output=True, text=True, check=True).stdout


FEATURES = {
    "self-normalized IPS": try_self_normalized,
    "doubly robust": try_doubly_robust,
    "confidence intervals": try_intervals,
    "the difference of two policies, with an interval": try_difference,
    "the best of many policies, adjusted for having chosen": try_many,
    "says when the log cannot answer": try_verdict,
    "checks a log and says what to fix": try_doctor,
    "how many rows a test would need": try_power,
    "propensities estimated from the log": try_propensities,
    "clipped and shrunk weights": try_shrinkage,
    "weights by the features of actions (MIPS)": try_embeddings,
    "lists and rankings": try_lists,
    "a page to share": try_page,
    "a command line": try_command,
}
