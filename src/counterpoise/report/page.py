"""`write_report`: puts the first screen and the sections together into one HTML file, written completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from counterpoise import __version__
from counterpoise.engines.registry import engine_of
from counterpoise.errors import OptionError
from counterpoise.evaluation.audit import Audit, audit_of
from counterpoise.evaluation.coverage import CoverageCheck
from counterpoise.evaluation.reading import TARGETS_DRAWN, Reading, read
from counterpoise.evaluation.result import Result
from counterpoise.evaluation.sensitivity import Sensitivity
from counterpoise.evaluation.wording import on_scale, scale_of, sentence, written
from counterpoise.evaluation.wording import title as title_of
from counterpoise.report import background, propensities, sections, weights
from counterpoise.report.first_screen import first_screen, opening_of
from counterpoise.report.markup import Section, assemble, folds, join, name_of, write
from counterpoise.report.profile import Profile, dates_of, profile
from counterpoise.weights import Ratio

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
    result = result if unit is None else result.per(unit)
    reading, *others = map(read, result.by_reward.values())
    checked = {check.reward: check for check in _checks(coverage)}
    dates = _dates(result) if rows else ""
    audit = _audit(result) if rows else None  # the same for every reward
    further = [_further(other, place, dates, rows, checked) for place, other in enumerate(others, start=2)]
    shown = [
        *further,
        *_about(reading, "", rows, checked.get(reading.result.reward)),
        Section(
            "propensities", "Propensities, part by part", propensities.propensities(audit), propensities.gist(audit)
        ),
        Section("glossary", "What the numbers mean", background.words(reading), "every term in plain words"),
        Section(
            "reproduce",
            "How to reproduce this",
            background.reproduce(reading, command, __version__),
            f"counterpoise {__version__}",
        ),
    ]
    first = first_screen(opening_of(reading, dates))
    return assemble(first, shown, title or title_of(reading), str(sentence(reading)), is_shown=bool(title))


def _further(
    reading: Reading, place: int, dates: str, rows: bool, checked: Mapping[str | None, CoverageCheck]
) -> Section:
    """Another reward: its own first screen and sections, folded into one."""
    change, scale = reading.best, scale_of([reading.best])
    said, span = written(on_scale(change, scale), scale)
    parts = _about(reading, f"-{place}", rows, checked.get(reading.result.reward))
    body = join([first_screen(opening_of(reading, dates), is_first=False), folds(parts, "h3")])
    gist = f"{said} ({span}): {change.decision}" if span else change.decision
    return Section(f"reward-{place}", join(["Reward: ", name_of(reading.reward)]), body, gist)


def _checks(coverage: Checks) -> Sequence[CoverageCheck]:
    checks = [] if coverage is None else [coverage] if isinstance(coverage, CoverageCheck) else list(coverage)
    for check in checks:
        if not isinstance(check, CoverageCheck):
            raise OptionError(f"coverage is what check_coverage returned; found {type(check).__name__}.")
    return checks


def _about(reading: Reading, end: str, rows: bool, check: CoverageCheck | None) -> list[Section]:
    """The sections about one reward; `end` keeps the addresses of several apart."""
    reading, best = reading, reading.best.target
    profiles = _profiles(reading) if rows else {}
    silent = {name for name in reading.result.targets if not reading.is_known(name)}
    converging = {name: profile for name, profile in profiles.items() if name not in silent}
    doubts = _doubts(reading) if rows else None
    by = name_of(" / ".join(reading.result.moments.segment_columns), 60)
    shown = [
        Section(
            "segments",
            join(["By ", by]),
            sections.segments(reading, f"segment-table{end}"),
            sections.segments_gist(reading),
        ),
        Section("positions", "By position", sections.positions(reading), "what each adds to the value of a list"),
        Section("checks", "Checks", sections.checks(reading), sections.checks_gist(reading)),
        Section(
            "sensitivity",
            "If the propensities were wrong",
            propensities.sensitivity(doubts),
            propensities.tipping_gist(doubts, best),
        ),
        Section("estimates", "Estimators", sections.estimates(reading), sections.estimates_gist(reading, best)),
        Section("weights", "Weights", weights.weights(reading, profiles), weights.gist(reading)),
        Section("model", "The reward model", sections.model(reading), sections.model_gist(reading)),
        Section("ladder", "Bias ladder", sections.ladder(reading), sections.ladder_gist(reading)),
        Section("coverage", "How often such intervals cover", sections.coverage(check), sections.coverage_gist(check)),
        Section(
            "propensity-model",
            "The propensity model",
            propensities.propensity_model(reading),
            propensities.model_gist(reading),
        ),
        Section(
            "convergence",
            "As rows come in",
            weights.convergence(reading, converging),
            weights.convergence_gist(converging, best),
        ),
    ]
    return [replace(part, key=part.key + end) for part in shown]


def _profiles(reading: Reading) -> dict[str, Profile]:
    """What the rows themselves show; empty unless all of them are at hand."""
    result = reading.result
    if result.question is None or result.earlier_rows or not result.question.weight.needs_propensity or result.ladders:
        return {}  # targets that chose weights of their own have ladders to show
    if result.question.log.keep is not None or result.moments.labels is not None:
        return {}  # whose rows do not count alike
    drawn = reading.foremost(TARGETS_DRAWN, result.moments.targets)
    return profile(result.asked(), drawn, rows=result.n, level=result.level)


def _audit(result: Result) -> Audit | None:
    """The audit of the propensities; None unless all rows are at hand, each counts once, and each has a reward."""
    if result.question is None or result.earlier_rows or result.question.log.keep is not None:
        return None
    return audit_of(result.asked()) if result.moments.labels is None else None


def _dates(result: Result) -> str:
    """From which day to which the log goes; empty if it has no column of dates, or several."""
    if result.question is None or result.earlier_rows or not engine_of(result.question.log).has_order:
        return ""
    return dates_of(result.question)


def _doubts(reading: Reading) -> Sensitivity | None:
    """How much the foremost targets depend on the propensities, from the rows; empty unless all of them are at hand.

    Spark takes so long to plan this that you have to ask for it, with `result.sensitivity()`.
    """
    result = reading.result
    if result.question is None or result.earlier_rows or not isinstance(result.question.weight, Ratio):
        return None
    log = result.question.log
    is_plain = log.keep is None and log.per is None and result.moments.labels is None
    if engine_of(log).is_cluster or not is_plain:
        return None
    known = result.targets if reading.is_difference else result.moments.targets
    return result.sensitivity(target=reading.foremost(TARGETS_DRAWN, known))
