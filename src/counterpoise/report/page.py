"""`write_report`: puts the sections together into one HTML file, written completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from counterpoise import __version__
from counterpoise.engines.registry import engine_of
from counterpoise.errors import OptionError
from counterpoise.evaluation.audit import audit_of
from counterpoise.evaluation.coverage import CoverageCheck
from counterpoise.evaluation.reading import TARGETS_DRAWN, Reading, read
from counterpoise.evaluation.result import Result
from counterpoise.evaluation.sensitivity import Sensitivity
from counterpoise.report import background, propensities, sections, weights
from counterpoise.report.markup import Safe, Section, assemble, el, join, name_of, write
from counterpoise.report.profile import Profile, profile
from counterpoise.weights import Ratio

Checks = CoverageCheck | Sequence[CoverageCheck] | None


def write_report(
    result: Result,
    path: str | os.PathLike[str],
    *,
    command: str | None = None,
    title: str | None = None,
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
        The heading.
    rows
        Whether to read the log again, for a histogram of the weights, the estimate as rows come in, and a section on wrong
        propensities. A result from stored moments has no log to read, and one that includes a state's earlier logs has only the
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
    return write(Path(path), render(result, command=command, title=title, rows=rows, coverage=coverage))


def render(
    result: Result,
    *,
    command: str | None = None,
    title: str | None = None,
    rows: bool = True,
    coverage: Checks = None,
) -> str:
    """The report as text; the arguments are those of `write_report`."""
    if not isinstance(result, Result):
        raise OptionError(f"a report needs a result of evaluate or compare; found {type(result).__name__}.")
    readings = [read(answer) for answer in result.by_reward.values()]
    checked = {check.reward: check for check in _checks(coverage)}
    shown = [
        part
        for place, reading in enumerate(readings)
        for part in _about(reading, place, len(readings), rows, checked.get(reading.result.reward))
    ]
    audited = _propensities(readings[0]) if rows else Safe("")  # the same for every reward
    shown += [Section("propensities", "Propensities, part by part", audited)] if audited else []
    shown += [
        Section("glossary", "What the numbers mean", background.words(readings[0])),
        Section("reproduce", "How to reproduce this", background.reproduce(readings[0], command, __version__)),
    ]
    return assemble(_heads(readings), shown, title or "Off-policy evaluation")


def _checks(coverage: Checks) -> Sequence[CoverageCheck]:
    checks = [] if coverage is None else [coverage] if isinstance(coverage, CoverageCheck) else list(coverage)
    for check in checks:
        if not isinstance(check, CoverageCheck):
            raise OptionError(f"coverage is what check_coverage returned; found {type(check).__name__}.")
    return checks


def _about(reading: Reading, place: int, rewards: int, rows: bool, check: CoverageCheck | None) -> list[Section]:
    """The sections about one reward; where there are several, its name is in their headings."""
    profiles = _profiles(reading) if rows else {}
    doubts = _doubts(reading) if rows else None
    end = f"-{place + 1}" if place else ""  # no address twice; the first reward's are those of a single one
    shown = [
        Section("estimates", "Difference" if reading.is_difference else "Estimates", sections.estimates(reading)),
        Section("lift", "Lift over the logging policy", sections.lift(reading)),
        Section("model", "The reward model", sections.model(reading)),
        Section("ladder", "Bias ladder", sections.ladder(reading)),
        Section("coverage", "How often such intervals cover", sections.coverage(check)),
        Section("sensitivity", "If the propensities were wrong", propensities.sensitivity(doubts)),
        Section("segments", "Segments", sections.segments(reading, f"segment-table{end}")),
        Section("weights", "Weights, and where the estimate comes from", weights.weights(reading, profiles)),
        Section("propensity-model", "The propensity model", propensities.propensity_model(reading)),
        Section("convergence", "As rows come in", weights.convergence(reading, profiles)),
    ]
    name = join([": ", name_of(reading.result.reward)]) if rewards > 1 else ""
    return [Section(part.key + end, join([part.words, name]), part.body) for part in shown if part.body]


def _profiles(reading: Reading) -> dict[str, Profile]:
    """What the rows themselves show; empty unless all of them are at hand."""
    result = reading.result
    if result.question is None or result.earlier_rows or not result.question.weight.needs_propensity or result.ladders:
        return {}  # targets that chose weights of their own have ladders to show
    drawn = reading.foremost(TARGETS_DRAWN, result.moments.targets)
    return profile(result.asked(), drawn, rows=result.n, level=result.level)


def _propensities(reading: Reading) -> Safe:
    """The audit of the propensities; None unless all rows are at hand."""
    result = reading.result
    if result.question is None or result.earlier_rows:
        return Safe("")
    return propensities.propensities(audit_of(result.asked()))


def _doubts(reading: Reading) -> Sensitivity | None:
    """How much the foremost targets depend on the propensities, from the rows; empty unless all of them are at hand.

    Spark takes so long to plan this that you have to ask for it, with `result.sensitivity()`.
    """
    result = reading.result
    if result.question is None or result.earlier_rows or not isinstance(result.question.weight, Ratio):
        return None
    if engine_of(result.question.log).is_cluster:
        return None
    known = result.targets if reading.is_difference else result.moments.targets
    return result.sensitivity(target=reading.foremost(TARGETS_DRAWN, known))


def _heads(readings: Sequence[Reading]) -> Safe:
    """The answer and the verdicts, reward by reward."""
    if len(readings) == 1:
        return sections.head(readings[0])
    return join(
        join([el("h2", "Reward: ", name_of(reading.result.reward)), sections.head(reading)]) for reading in readings
    )
