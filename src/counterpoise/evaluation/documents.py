"""Answers as JSON documents: plain values, and null where there is no finite number."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from counterpoise.display import finite
from counterpoise.evaluation.ranking import drivers, rank
from counterpoise.evaluation.result import COLUMNS, Comparison, Result, Segment, segment_text

DIAGNOSTICS = (
    "effective_sample_size",
    "mean_weight",
    "mean_weight_p",
    "max_weight",
    "pareto_k",
    "zero_weight_share",
    "carrying_rows",
    "effective_clusters",
)


def document(result: Result, more: Callable[[Any], dict[str, Any]] | None = None) -> dict[str, Any]:
    """A result as the command line prints it in JSON; with several rewards, the first one's, and the others' by name.

    `more` is what a command adds to the document of each.
    """
    each = {}
    for name, answer in result.by_reward.items():
        named = {"reward": name} if result.others else {}
        written = _comparison(answer) if isinstance(answer, Comparison) else evaluation(answer)
        each[name] = named | written | (more(answer) if more is not None else {})
    first = each.pop(result.reward)
    return first | ({"others": each} if each else {})


def evaluation(result: Result) -> dict[str, Any]:
    """What `counterpoise evaluate --json` prints about one reward; `schema` describes it.

    >>> from counterpoise import evaluate
    >>> printed = evaluation(evaluate(reward=[1.0, 0.0], propensity=[0.5, 0.5], target=[0.0, 0.0]))
    >>> printed["estimates"][0]["value"], printed["verdicts"][0]["verdict"]
    (None, 'not identified')
    """
    rows = zip(result.cells(result.estimates).records(), result.estimates.items(), strict=True)
    estimates = [
        {
            "target": target,
            "segment": _segment(segment),
            "estimator": estimator,
            **{name: row[name] for name in COLUMNS},
            "level": estimate.interval.level,
            "baseline": estimate.baseline,
        }
        for row, ((target, estimator, segment), estimate) in rows
    ]
    diagnostics = [
        {"target": target, "segment": _segment(segment)} | {name: getattr(measured, name) for name in DIAGNOSTICS}
        for (target, segment), measured in result.all_diagnostics.items()
    ]
    models = {"model": result.model, "propensity_model": result.propensity_model}
    said = {"n": result.n, "estimates": estimates, "diagnostics": diagnostics} | _rest(result)
    return finite(said | {name: model for name, model in models.items() if model is not None})


def _comparison(result: Comparison) -> dict[str, Any]:
    """What `counterpoise compare --json` prints about one reward: the ranking, and what drives each difference."""
    differences = [
        {
            "target": policy.target,
            "difference": policy.value,
            "stderr": policy.stderr,
            "lower": result.estimates[policy.target, result.best, None].interval.lower,
            "upper": result.estimates[policy.target, result.best, None].interval.upper,
            "corrected_lower": policy.interval.lower,
            "corrected_upper": policy.interval.upper,
            "corrected_p": policy.p,
            "decision": policy.decision,
            "segments": [
                vars(driver) | {"segment": _segment(driver.segment)} for driver in drivers(result, policy.target)
            ],
        }
        for policy in rank(result)
    ]
    said = {"n": result.n, "against": result.against, "level": result.level, "differences": differences}
    return finite(said | _rest(result))


def _rest(result: Result) -> dict[str, Any]:
    """What both documents end with; the bias ladder only where the log chose a weight's constant."""
    rungs = [row for ladder in result.ladders.values() for row in ladder.rows()]
    verdicts = [
        {"target": target, "segment": _segment(segment)} | verdict.document()
        for (target, segment), verdict in result.verdicts.items()
    ]
    return {"verdicts": verdicts, "dropped_rows": result.dropped_rows} | ({"ladder": rungs} if rungs else {})


def schema() -> dict[str, Any]:
    """The JSON schema of `evaluation`."""
    text = files("counterpoise").joinpath("schema", "evaluate.schema.json").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


def as_text(document: Any) -> str:
    """A document as JSON text."""
    return json.dumps(finite(document), indent=2, allow_nan=False)


def _segment(segment: Segment) -> str | None:
    return None if segment is None else segment_text(segment)
