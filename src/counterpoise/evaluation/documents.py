"""Answers as JSON documents: plain values, and null where there is no finite number."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from importlib.resources import files
from typing import Any, TypeVar

from counterpoise.evaluation.coverage import Coverage
from counterpoise.evaluation.ranking import Driver, Ranked
from counterpoise.evaluation.result import Comparison, Result, Segment, segment_text

Answer = TypeVar("Answer", bound=Result)

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


def evaluation(result: Result) -> dict[str, Any]:
    """What `counterpoise evaluate --json` prints; `schema` describes it.

    >>> from counterpoise import evaluate
    >>> printed = evaluation(evaluate(reward=[1.0, 0.0], propensity=[0.5, 0.5], target=[0.0, 0.0]))
    >>> printed["estimates"][0]["value"], printed["verdicts"][0]["verdict"]
    (None, 'not identified')
    """
    estimates = [
        {
            "target": target,
            "segment": _segment(segment),
            "estimator": estimator,
            "value": estimate.value,
            "stderr": estimate.stderr,
            "lower": estimate.interval.lower,
            "upper": estimate.interval.upper,
            "level": estimate.interval.level,
            "baseline": estimate.baseline,
        }
        for (target, estimator, segment), estimate in result.estimates.items()
    ]
    diagnostics = [
        {"target": target, "segment": _segment(segment)} | {name: getattr(measured, name) for name in DIAGNOSTICS}
        for (target, segment), measured in result.all_diagnostics.items()
    ]
    document = {
        "n": result.n,
        "estimates": estimates,
        "diagnostics": diagnostics,
        "verdicts": _verdicts(result),
        "dropped_rows": result.dropped_rows,
    }
    if result.model is not None:
        document["model"] = asdict(result.model)
    if result.propensity_model is not None:
        document["propensity_model"] = asdict(result.propensity_model)
    return finite(document | _ladder(result))  # type: ignore[no-any-return]


def comparison(result: Comparison, ranked: Sequence[Ranked], parts: Mapping[str, Sequence[Driver]]) -> dict[str, Any]:
    """What `counterpoise compare --json` prints; `parts` are the drivers of each target."""
    document = {
        "n": result.n,
        "against": result.against,
        "level": result.level,
        "differences": [
            {
                "target": difference.target,
                "difference": difference.value,
                "stderr": difference.stderr,
                "lower": result.estimates[difference.target, result.best, None].interval.lower,
                "upper": result.estimates[difference.target, result.best, None].interval.upper,
                "corrected_lower": difference.interval.lower,
                "corrected_upper": difference.interval.upper,
                "corrected_p": difference.p,
                "decision": difference.decision,
                "segments": [
                    asdict(part) | {"segment": _segment(part.segment)} for part in parts.get(difference.target, ())
                ],
            }
            for difference in ranked
        ],
        "verdicts": _verdicts(result),
        "dropped_rows": result.dropped_rows,
    }
    return finite(document | _ladder(result))  # type: ignore[no-any-return]


def coverage(check: Mapping[str, Coverage]) -> dict[str, Any]:
    """What `--check-coverage` adds: how often intervals like these covered, on logs like this one."""
    names = (
        "target",
        "estimator",
        "level",
        "runs",
        "covered",
        "stderr",
        "too_low",
        "too_high",
        "can_tell",
        "carrying_rows",
        "drawn",
    )
    return {"coverage": finite([{name: getattr(of_target, name) for name in names} for of_target in check.values()])}


def of_rewards(result: Answer, document: Callable[[Answer], dict[str, Any]]) -> dict[str, Any]:
    """The document about one reward as it is; of several the first one's, with its name and the documents of the others."""
    if not result.others:
        return document(result)
    each = {str(name): {"reward": name} | document(of_reward) for name, of_reward in result.by_reward.items()}
    return each.pop(str(result.reward)) | {"others": each}


def schema() -> dict[str, Any]:
    """The JSON schema of `evaluation`."""
    text = files("counterpoise").joinpath("schema", "evaluate.schema.json").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


def as_text(document: Any) -> str:
    """A document as JSON text."""
    return json.dumps(finite(document), indent=2, allow_nan=False)


def finite(value: Any) -> Any:
    """Plain values all the way down; nan and infinities become null, the only thing JSON has for them.

    >>> finite({"a": (1.0, float("inf"))})
    {'a': [1.0, None]}
    """
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return finite(asdict(value)) if is_dataclass(value) and not isinstance(value, type) else value


def _segment(segment: Segment) -> str | None:
    return None if segment is None else segment_text(segment)


def _ladder(result: Result) -> dict[str, Any]:
    """The bias ladder, where the log chose a weight's constant."""
    rows = [row for ladder in result.ladders.values() for row in ladder.rows()]
    return {"ladder": rows} if rows else {}


def _verdicts(result: Result) -> list[dict[str, Any]]:
    return [
        {"target": target, "segment": _segment(segment), "verdict": verdict.verdict, "reasons": verdict.reasons}
        | {"caveats": [caveat.document() for caveat in verdict.caveats]}
        for (target, segment), verdict in result.verdicts.items()
    ]
