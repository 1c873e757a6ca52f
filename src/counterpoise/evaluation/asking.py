"""What the verbs share: the question from their arguments, and its moments from the log or from what a state holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from os import PathLike
from typing import Any

from counterpoise.errors import OptionError
from counterpoise.log.log import Columns, Data, Log, LogFields, as_log
from counterpoise.log.question import GROUPS, Question, ask
from counterpoise.log.targets import Targets
from counterpoise.moments import LogMoments
from counterpoise.weights import Weight, as_weight


@dataclass(frozen=True)
class Stored:
    """Where moments are kept from day to day, and what today's are to it."""

    state: str | PathLike[str] | None = None
    batch: str | None = None
    replace: bool = False
    version: str | Mapping[str, str] | None = None

    @property
    def given(self) -> list[str]:
        """The options that were used."""
        return [name for name, value in vars(self).items() if value not in (None, False)]


@dataclass(frozen=True)
class Asked:
    """A question and the moments that answer it, one for each reward; moments that were handed over have no question."""

    moments: tuple[LogMoments, ...]
    question: Question | None = None


def known_moments(
    log: Log | Data, parts: LogFields, stored: Stored, target: Targets, *others: Any
) -> LogMoments | None:
    """The moments that a verb was handed instead of a log, or those of a state that it was given alone."""
    chosen = [name for name in parts if name != "reward_bounds"]  # which are known of rewards, not chosen from a log
    is_state = log is None and stored.state is not None and not chosen and target is None
    if not is_state and not isinstance(log, LogMoments):
        return None
    given = [name for name in stored.given if not (is_state and name == "state")]
    if chosen or given or any(other is not None for other in (target, *others)):
        raise OptionError(
            "moments have no columns or rows left to choose from: give columns, conditions and states with the log itself, not "
            "with its moments."
        )
    if isinstance(log, LogMoments):
        return log
    from counterpoise.readers import batches

    return batches.stored_moments(str(stored.state))


def question_of(
    log: Log | Data,
    parts: LogFields,
    target: Targets,
    *,
    weight: Weight | Columns = None,
    against: Targets = None,
    segment: Columns = None,
    wants_groups: bool = False,
) -> Question:
    """The question that a verb's arguments put."""
    whole = as_log(log, parts)
    how, target = as_weight(weight, target)
    grouped = wants_groups or whole.cluster is not None or whole.groups is not None
    groups = _groups(whole.groups) if grouped else 1
    return ask(whole, target, weight=how, against=against, segment=segment, groups=groups)


def read(question: Question, stored: Stored, progress: bool | None) -> tuple[LogMoments, ...]:
    """The moments of a question, added to those that a state holds where there is one."""
    # imported here, so that importing counterpoise does not import narwhals and polars
    from counterpoise.engines.registry import moments_of
    from counterpoise.readers import batches

    if stored.state is None:
        if stored.given:
            raise OptionError(f"{stored.given[0]}= is about what a state keeps of this log: pass state= too.")
        return moments_of(question, progress=progress)
    if len(question.log.reward) > 1:
        raise OptionError("a state keeps the sums of one reward: use one state for each.")
    job = batches.start(stored.state, question, batch=stored.batch, replaces=stored.replace, version=stored.version)
    (found,) = moments_of(question, progress=progress)
    return (batches.finish(job, found),)


def _groups(groups: Any) -> int:
    if groups is None:
        return GROUPS
    if isinstance(groups, bool) or not isinstance(groups, Integral) or groups < 2:
        raise OptionError(f"groups must be a whole number of at least 2, found {groups!r}.")
    return int(groups)
