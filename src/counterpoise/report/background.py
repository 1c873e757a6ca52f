"""The report's last sections: what its numbers mean, and how to make it again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from counterpoise.display import level_of
from counterpoise.errors import in_units, masked
from counterpoise.evaluation.reading import Reading
from counterpoise.evaluation.result import Result
from counterpoise.log.question import Question
from counterpoise.report.fingerprint import fingerprint
from counterpoise.report.glossary import GLOSSARY, glossary, term
from counterpoise.report.markup import Safe, el, join, name_of, text


def words(reading: Reading) -> Safe:
    """The glossary."""
    names = list(dict.fromkeys(name for _, name, _ in reading.result.estimates))
    names += [reading.lift_estimator] if reading.lifts and reading.lift_estimator not in names else []
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
    parts = {"Reward": ", ".join(log.reward), "Propensity": propensity, "Condition": log.where}
    return [(part, el("code", name_of(column, 500))) for part, column in parts.items() if column is not None]


def _listed(names: Sequence[str], limit: int = 50) -> Safe:
    """Names in a row, and how many more there are."""
    shown = [join([", " if k else "", name_of(name)]) for k, name in enumerate(names[:limit])]
    return join([*shown, f" and {len(names) - limit:,} more" if len(names) > limit else ""])


def _each(result: Result, say: Callable[[Result], str]) -> Safe:
    """What is said of every reward: once where it is the same for all."""
    said = {name: say(answer) for name, answer in result.by_reward.items()}
    if len(set(said.values())) == 1:
        return text(next(iter(said.values())))
    return join(join([", " if k else "", name_of(name), ": ", text]) for k, (name, text) in enumerate(said.items()))


def reproduce(reading: Reading, command: str | None, version: str) -> Safe:
    """The command, the version and the fingerprint of the data."""
    result, log = reading.result, reading.result.moments
    facts: list[tuple[object, object]] = [
        ("Version", f"counterpoise {version}"),
        (term("n", in_units(GLOSSARY["n"].term, reading.unit)), _each(result, lambda answer: f"{answer.n:,}")),
        (
            term("dropped", in_units(GLOSSARY["dropped"].term, reading.unit)),
            _each(result, lambda answer: f"{answer.dropped_rows:,}"),
        ),
        ("Targets", _listed(log.targets)),
        *_asked(result.question),
        *([] if log.weight.mean_is_one else [("Weights", el("code", name_of(log.weight)))]),
        ("Segments by", join([name_of(" / ".join(log.segment_columns))]) if log.segment_columns else "none"),
        (term("cluster"), name_of(log.cluster) if log.cluster else f"none: {reading.unit}s are treated as independent"),
        *_effective_clusters(result),
        ("Intervals", f"{result.method}, level {level_of(result.level)}"),
        (term("fingerprint"), el("code", _each(result, fingerprint))),
    ]
    shown = [el("dl", *(join([el("dt", name), el("dd", value)]) for name, value in facts), class_="facts")]
    if command:
        shown.insert(0, el("pre", el("code", el("bdi", masked(command)[:5000])), tabindex=0, aria_label="Command"))
    return join(shown)
