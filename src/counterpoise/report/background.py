"""The report's last sections: what its numbers mean, and how to make it again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from counterpoise.display import level_of
from counterpoise.errors import masked
from counterpoise.estimators import ESTIMATORS
from counterpoise.evaluation.reading import LIFT, Reading
from counterpoise.evaluation.result import Result
from counterpoise.log.question import Question
from counterpoise.moments import Moments
from counterpoise.moments.reduction import reduced
from counterpoise.report.glossary import glossary, term
from counterpoise.report.markup import Safe, el, join, name_of, text


def words(reading: Reading) -> Safe:
    """The glossary."""
    names = list(dict.fromkeys(name for _, name, _ in reading.result.estimates))
    is_plain = reading.has_lifts and not reading.result.against and reading.result.lift_of_best is ESTIMATORS[LIFT]
    names += [LIFT] if is_plain and LIFT not in names else []
    return join(
        [
            el("p", "What every number on this page means. Click a term to open it.", class_="lead"),
            glossary(names, reading.result.interval_method, reading.unit),
        ]
    )


def _effective_clusters(result: Result) -> list[tuple[object, object]]:
    """How many clusters the rows are worth: the same for every target, since all have the same rows."""
    diagnostics = next(
        (diagnostics for (_, place), diagnostics in result.all_diagnostics.items() if place is None), None
    )
    if diagnostics is None or diagnostics.effective_clusters is None:
        return []
    return [(term("effective_clusters"), f"about {round(diagnostics.effective_clusters):,}")]


def _asked(question: Question | None) -> list[tuple[object, object]]:
    """Which columns and rows were asked about, if the result still knows."""
    if question is None:
        return []
    log = question.log
    step = question.propensity_model
    propensity = question.propensity_named if step is None else f"a model of {', '.join(log.context)}"
    parts = {"Reward": ", ".join(log.reward), "Propensity": propensity, "Condition": log.where, "Kept with": log.keep}
    return [(part, el("code", name_of(column, 500))) for part, column in parts.items() if column is not None]


def _listed(names: Sequence[str], limit: int = 50) -> Safe:
    """Names in a row, and how many more there are."""
    shown = [join([", " if k else "", name_of(name)]) for k, name in enumerate(names[:limit])]
    return join([*shown, f" and {len(names) - limit:,} more" if len(names) > limit else ""])


def _each(result: Result, say: Callable[[Result], str]) -> Safe:
    """What is said about every reward, once if it is the same for all."""
    said = {name: say(answer) for name, answer in result.by_reward.items()}
    if len(set(said.values())) == 1:
        return text(next(iter(said.values())))
    return join(join([", " if k else "", name_of(name), ": ", text]) for k, (name, text) in enumerate(said.items()))


def reproduce(reading: Reading, command: str | None, version: str) -> Safe:
    """The command, the version and the fingerprint of the data."""
    result, log, unit = reading.result, reading.result.moments, reading.unit
    facts: list[tuple[object, object]] = [
        ("Version", f"counterpoise {version}"),
        (term("n", unit=unit), _each(result, lambda answer: f"{answer.n:,}")),
        (term("dropped", unit=unit), _each(result, lambda answer: f"{answer.dropped_rows:,}")),
        ("Targets", _listed(log.targets)),
        *([("Before sampling", f"{result.rows_before:,}")] if result.rows_before is not None else []),
        *_asked(result.question),
        *([] if log.weight.mean_is_one else [("Weights", el("code", name_of(log.weight)))]),
        ("Segments by", join([name_of(" / ".join(log.segment_columns))]) if log.segment_columns else "none"),
        (term("cluster"), name_of(log.cluster) if log.cluster else f"none: {unit}s are treated as independent"),
        *_effective_clusters(result),
        ("Intervals", f"{result.method}, level {level_of(result.level)}"),
        *([("Looks so far", f"{log.looks:,}")] if log.looks > 1 else []),
        (term("fingerprint"), el("code", _each(result, fingerprint))),
    ]
    shown = [el("dl", *(join([el("dt", name), el("dd", value)]) for name, value in facts), class_="facts")]
    if command:
        shown.insert(0, el("pre", el("code", el("bdi", masked(command)[:5000])), tabindex=0, aria_label="Command"))
    return join(shown)


# -- A short code for the rows behind a result, which tells whether a report and another run used the same data --------


def fingerprint(result: Result) -> str:
    """A short code for the rows behind a result: the same for the same rows in any order, on any engine.

    It uses only six digits of the sums, because their last digits differ from one machine to another.
    """
    log = result.moments
    parts = [str(log.n), str(log.dropped), "|".join(log.segment_columns), str(log.cluster)]
    for target in log.targets:
        parts += [target, *_digits(Moments.stack([log[target]]))[0]]
    order = sorted(range(len(log.segments)), key=lambda k: repr(log.segments[k])) if log.segment_columns else []
    for target in log.targets:
        rows = reduced(log.moments[target, ""].merge(axis=1))
        digits = _digits(rows)
        for k in order:
            parts += [repr(log.segments[k]), str(rows.n[k]), *digits[k]]
    code = "\x1f".join(parts).encode("utf-8", "replace")
    return hashlib.sha256(code.replace(b"-0.000000", b"0.000000")).hexdigest()[:16]


def _digits(rows: Moments) -> list[list[str]]:
    """Six digits of the sums of every member of a stack; nothing for a member without rows."""
    with np.errstate(invalid="ignore"):
        spread, noise = (np.sqrt(rows.covariance(name, name)) for name in ("s", "us"))
    sums = (1.0 + rows.average("u"), rows.covariance("u", "u"), rows.center + rows.average("s"), spread)
    numbers = np.stack([*sums, rows.average("us"), noise], axis=-1)
    size = np.maximum(np.abs(numbers).max(axis=-1), 1.0)
    return [
        [*(f"{x:.6f}" for x in row), f"{largest:.6g}"] if n else []
        for n, row, largest in zip(rows.n, numbers / size[:, None], size, strict=True)
    ]
