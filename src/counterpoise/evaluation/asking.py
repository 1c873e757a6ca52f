"""What the verbs share: the question from their arguments, and its moments from the log or from what a state holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from os import PathLike
from typing import Any, NamedTuple

from counterpoise.errors import Argument, OptionError
from counterpoise.intervals import Method, strategy
from counterpoise.log.log import Log, LogFields, as_log
from counterpoise.log.question import GROUPS, Question, ask
from counterpoise.moments import LogMoments
from counterpoise.weights import as_weight


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


class Settled(NamedTuple):
    """What `evaluate` and `compare` settle alike before they part: moments that are known already, the interval, what rewards can be."""

    known: LogMoments | None
    method: Method
    reward_bounds: tuple[float, float] | None


def settle(log: Any, parts: LogFields, stored: Stored, interval: str | Method | None, *chosen: Any) -> Settled:
    """The start of a verb; `chosen` is what it was told to look at in the log, its targets first."""
    known = known_moments(log, parts, stored, *chosen)
    cluster = known.cluster if known is not None else _part(log, parts, "cluster")
    bounds = _part(log, parts, "reward_bounds")
    method = strategy(interval, is_clustered=cluster is not None, options={"reward_bounds": bounds})
    return Settled(known, method, bounds)


def known_moments(log: Any, parts: LogFields, stored: Stored, target: Any, *others: Any) -> LogMoments | None:
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
    log: Any, parts: LogFields, target: Any, *, weight: Any = None, against: Any = None, segment: Any = None,
    wants_groups: bool = False,
) -> Question:  # fmt: skip
    """The question that a verb's arguments put."""
    whole = as_log(log, parts)
    how, target = as_weight(weight, target)
    grouped = wants_groups or whole.cluster is not None or whole.groups is not None
    groups = _groups(whole.groups) if grouped else 1
    return ask(whole, target, weight=how, against=against, segment=segment, groups=groups)


def read(question: Question, stored: Stored, progress: bool | None) -> tuple[LogMoments, ...]:
    """The moments of a question, added to those that a state holds where there is one."""
    # imported here, so that importing counterpoise does not import narwhals and polars
    from counterpoise.engines.read import moments_of
    from counterpoise.readers import batches

    if stored.state is None:
        if stored.given:
            raise OptionError(
                [Argument(stored.given[0]), " says what a state keeps of this log."],
                do=["Pass ", Argument("state"), ", too."],
            )
        return moments_of(question, progress=progress)
    if len(question.log.reward) > 1:
        raise OptionError("a state keeps the sums of one reward: use one state for each.")
    job = batches.start(stored.state, question, batch=stored.batch, replaces=stored.replace, version=stored.version)
    (found,) = moments_of(question, progress=progress)
    return (batches.finish(job, found),)


def _part(log: Any, parts: LogFields, name: str) -> Any:
    """A part of the log, before there is one."""
    return getattr(log, name) if isinstance(log, Log) else parts.get(name)


def _groups(groups: Any) -> int:
    if groups is None:
        return GROUPS
    if isinstance(groups, bool) or not isinstance(groups, Integral) or groups < 2:
        raise OptionError([Argument("groups", groups), " is not a whole number of at least 2."])
    return int(groups)
