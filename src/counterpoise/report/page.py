"""`write_report`: puts the first screen and the sections together into one HTML file, written completely or not at all."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from counterpoise import __version__
from counterpoise.display import level_of
from counterpoise.engines.registry import engine_of
from counterpoise.errors import OptionError, masked
from counterpoise.estimators import ESTIMATORS
from counterpoise.evaluation.audit import audit_of
from counterpoise.evaluation.coverage import CoverageCheck
from counterpoise.evaluation.reading import LIFT, TARGETS_DRAWN, Reading, read
from counterpoise.evaluation.result import Result
from counterpoise.evaluation.wording import on_scale, scale_of, sentence, written
from counterpoise.evaluation.wording import title as title_of
from counterpoise.log.kinds import reduced
from counterpoise.moments import Moments
from counterpoise.report import propensities, sections, weights
from counterpoise.report.first_screen import first_screen, opening_of
from counterpoise.report.glossary import glossary, term
from counterpoise.report.markup import Safe, Section, assemble, el, folds, join, name_of, text, write
from counterpoise.report.weights import dates_of, profile
from counterpoise.weights import Importance

NAMED = 50  # targets, in a list of them

Checks = CoverageCheck | Sequence[CoverageCheck] | None


def write_report(
    result: Result,
    path: str | os.PathLike[str],
    *,
    command: str | None = None,
    title: str | None = None,
    unit: str | None = None,
    rows: bool = True,
    coverage: Checks = None,
) -> Path:
    """Write a result as one HTML file that opens anywhere, even without a network, and return the file's path.

    Parameters
    ----------
    result
        What `evaluate` or `compare` returned.
    path
        Where to write it. The file appears once it is complete; a failure leaves what was there before.
    command
        The command that made the result, shown to readers who want to rerun it.
    title
        The heading and the title of the tab; by default, the answer itself.
    unit
        What a row is to its readers, such as ``"visit"``.
    rows
        Whether to read the log again, for a histogram of the weights, the estimate as rows come in, the log's dates, and a section on
        wrong propensities. A result from stored moments has no log to read, and one that includes a state's earlier logs has only the
        last of them.
    coverage
        What `check_coverage` returned, for a section about it; with several rewards, a list of what it returned for each.

    Examples
    --------
    >>> import counterpoise as cp, tempfile
    >>> result = cp.evaluate(reward=[1, 0, 1, 1], propensity=[0.5, 0.5, 0.25, 0.5], target=[0.5, 0.25, 0.5, 0.25])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report(result, folder + "/report.html").name
    'report.html'
    """
    page = render(result, command=command, title=title, unit=unit, rows=rows, coverage=coverage)
    return write(Path(path), page)


def render(
    result: Result,
    *,
    command: str | None = None,
    title: str | None = None,
    unit: str | None = None,
    rows: bool = True,
    coverage: Checks = None,
) -> str:
    """The report as text; the arguments are those of `write_report`."""
    if not isinstance(result, Result):
        raise OptionError(f"a report needs a result of evaluate or compare; found {type(result).__name__}.")
    checks = [] if coverage is None else [coverage] if isinstance(coverage, CoverageCheck) else list(coverage)
    for check in checks:
        if not isinstance(check, CoverageCheck):
            raise OptionError(f"coverage is what check_coverage returned; found {type(check).__name__}.")
    covered = {check.reward: check for check in checks}
    result = result if unit is None else result.with_unit(unit)
    reading, *others = map(read, result.by_reward.values())
    question, dates, audit = result.question, "", None
    if rows and question is not None and not result.earlier_rows:
        dates = dates_of(question) if engine_of(question.log).has_order else ""
        # the same for every reward; each row must count once, and have a reward
        are_alike = question.log.keep is None and result.moments.labels is None
        audit = audit_of(result.asked()) if are_alike else None
    shown = []
    for place, other in enumerate(others, start=2):  # its own first screen and sections, folded into one
        change, scale = other.best, scale_of([other.best])
        said, span = written(on_scale(change, scale), scale)
        parts = _about(other, f"-{place}", rows, covered.get(other.result.reward))
        inside = join([first_screen(opening_of(other, dates), is_first=False), folds(parts, "h3")])
        gist = f"{said} ({span}): {change.decision}" if span else change.decision
        shown.append(Section(f"reward-{place}", join(["Reward: ", name_of(other.reward)]), inside, gist))
    names = list(dict.fromkeys(name for _, name, _ in result.estimates))
    has_lift = reading.has_lifts and not result.against and result.lift_of_best is ESTIMATORS[LIFT]
    names += [LIFT] if has_lift and LIFT not in names else []
    lead = el("p", "What every number on this page means. Click a term to open it.", class_="lead")
    words = join([lead, glossary(names, result.interval_method, reading.unit)])
    audited = propensities.propensities(audit), propensities.gist(audit)
    shown += [
        *_about(reading, "", rows, covered.get(result.reward)),
        Section("propensities", "Propensities, part by part", *audited),
        Section("glossary", "What the numbers mean", words, "every term in plain words"),
        Section("reproduce", "How to reproduce this", _reproduce(reading, command), f"counterpoise {__version__}"),
    ]
    first = first_screen(opening_of(reading, dates))
    return assemble(first, shown, title or title_of(reading), str(sentence(reading)), is_shown=bool(title))


def _about(reading: Reading, end: str, rows: bool, check: CoverageCheck | None) -> list[Section]:
    """The sections about one reward; `end` keeps the addresses of several apart."""
    result, best, drawn = reading.result, reading.best.target, TARGETS_DRAWN
    question, profiles, doubts = result.question, {}, None
    if rows and question is not None and not result.earlier_rows:
        are_alike = question.log.keep is None and result.moments.labels is None  # each row counts once
        # targets that chose weights of their own have ladders to show
        if are_alike and question.weight.needs_propensity and not result.ladders:
            targets = reading.foremost(drawn, result.moments.targets)
            profiles = profile(result.asked(), targets, rows=result.n, level=result.level)
        # Spark takes so long to plan this that you have to ask for it, with `result.sensitivity()`
        is_plain = are_alike and question.log.per is None and isinstance(question.weight, Importance)
        if is_plain and not engine_of(question.log).is_cluster:
            known = result.targets if reading.is_difference else result.moments.targets
            doubts = result.sensitivity(target=reading.foremost(drawn, known))
    converging = {name: each for name, each in profiles.items() if name not in result.targets or reading.is_known(name)}
    by = join(["By ", name_of(" / ".join(result.moments.segment_columns), 60)])
    sensitive = propensities.sensitivity(doubts), propensities.tipping_gist(doubts, best)
    model = propensities.propensity_model(reading), propensities.model_gist(reading)
    each_row = weights.convergence(reading, converging), weights.convergence_gist(converging, best)
    covering = sections.coverage(check), sections.coverage_gist(check)
    segments = sections.segments(reading, f"segment-table{end}"), sections.segments_gist(reading)
    shown = [
        Section("segments", by, *segments),
        Section("positions", "By position", sections.positions(reading), "what each adds to the value of a ranking"),
        Section("checks", "Checks", sections.checks(reading), sections.checks_gist(reading)),
        Section("sensitivity", "If the propensities were wrong", *sensitive),
        Section("estimates", "Estimators", sections.estimates(reading), sections.estimates_gist(reading, best)),
        Section("weights", "Weights", weights.weights(reading, profiles), weights.gist(reading)),
        Section("model", "The reward model", sections.model(reading), sections.model_gist(reading)),
        Section("ladder", "Bias ladder", sections.ladder(reading), sections.ladder_gist(reading)),
        Section("coverage", "How often such intervals cover", *covering),
        Section("propensity-model", "The propensity model", *model),
        Section("convergence", "As rows come in", *each_row),
    ]
    return [replace(part, key=part.key + end) for part in shown]


# -- How to make it again ----------------------------------------------------------------------------------------------


def _reproduce(reading: Reading, command: str | None) -> Safe:
    """The command, the version and the fingerprint of the data."""
    result, log, question = reading.result, reading.result.moments, reading.result.question

    def each(say: Callable[[Result], str]) -> Safe:
        """What is said about every reward, once if it is the same for all."""
        said = {name: say(answer) for name, answer in result.by_reward.items()}
        if len(set(said.values())) == 1:
            return text(next(iter(said.values())))
        return join(
            join([", " if k else "", name_of(name), ": ", words]) for k, (name, words) in enumerate(said.items())
        )

    columns: dict[str, str | None] = {}
    if question is not None:  # which the result still knows
        own = question.log
        is_logged = question.propensity_model is None
        propensity = question.propensity_named if is_logged else f"a model of {', '.join(own.context)}"
        columns = {
            "Reward": ", ".join(own.reward),
            "Propensity": propensity,
            "Condition": own.where,
            "Kept with": own.keep,
        }
    more = len(log.targets) - NAMED
    named = [join([", " if k else "", name_of(name)]) for k, name in enumerate(log.targets[:NAMED])]
    # the same for every target, since all have the same rows
    whole = next((known for (_, place), known in result.all_diagnostics.items() if place is None), None)
    clusters = None if whole is None else whole.effective_clusters
    facts: list[tuple[object, object]] = [
        ("Version", f"counterpoise {__version__}"),
        (term("n", unit=reading.unit), each(lambda answer: f"{answer.n:,}")),
        (term("dropped", unit=reading.unit), each(lambda answer: f"{answer.dropped_rows:,}")),
        ("Targets", join([*named, f" and {more:,} more" if more > 0 else ""])),
        *([("Before sampling", f"{result.rows_before:,}")] if result.rows_before is not None else []),
        *((part, el("code", name_of(column, 500))) for part, column in columns.items() if column is not None),
        *([] if log.weight.mean_is_one else [("Weights", el("code", name_of(log.weight)))]),
        ("Segments by", name_of(" / ".join(log.segment_columns)) if log.segment_columns else "none"),
        (term("cluster"), name_of(log.cluster) if log.cluster else f"none: {reading.unit}s are treated as independent"),
        *([] if clusters is None else [(term("effective_clusters"), f"about {round(clusters):,}")]),
        ("Intervals", f"{result.method}, level {level_of(result.level)}"),
        *([("Looks so far", f"{log.looks:,}")] if log.looks > 1 else []),
        (term("fingerprint"), el("code", each(fingerprint))),
    ]
    typed = el("code", el("bdi", masked(command)[:5000])) if command else ""
    listed = el("dl", *(join([el("dt", name), el("dd", value)]) for name, value in facts), class_="facts")
    return join([el("pre", typed, tabindex=0, aria_label="Command") if command else "", listed])


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
