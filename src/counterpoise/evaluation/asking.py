"""What the verbs share: turning their arguments into a question, and getting its moments from the log or from a state."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from os import PathLike
from typing import Any

from counterpoise.diagnostics import Caveat, Concern
from counterpoise.errors import LogError, OptionError
from counterpoise.evaluation.checks import explanation_of
from counterpoise.log.lists import refuse_lists
from counterpoise.log.log import MODEL, Log, check_own_names
from counterpoise.log.parts import Columns, Data, LogFields, Unlogged
from counterpoise.log.question import GROUPS, Question, ask
from counterpoise.log.targets import ActionGroup, Targets
from counterpoise.moments import LogMoments
from counterpoise.moments.log_moments import Label
from counterpoise.weights import Balanced, Own, Ratio, Weight, as_weight, list_weight


@dataclass(frozen=True)
class Stored:
    """Where moments are kept from day to day, and how to add today's."""

    state: str | PathLike[str] | None = None
    batch: str | None = None
    replace: bool = False
    version: str | Mapping[str, str] | None = None

    @property
    def given(self) -> list[str]:
        """The options that were used."""
        return [name for name, value in vars(self).items() if value not in (None, False)]


@dataclass(frozen=True)
class RewardMoments:
    """The moments that answer a question, one for each reward; moments that were handed over have no question."""

    moments: tuple[LogMoments, ...]
    rewards: tuple[str | None, ...]  # their names, if known
    question: Question | None = None
    earlier_rows: int = 0  # of logs before the question's own, which a state held
    concerns: tuple[Concern, ...] = ()  # what checks of single rows found: see `counterpoise.evaluation.checks`

    @property
    def is_clustered(self) -> bool:
        """Whether groups hold clusters."""
        return self.moments[0].cluster is not None

    @property
    def is_by_logger(self) -> bool:
        """Whether several loggers wrote the log, and the last segment says which of them."""
        how, columns = self.moments[0].weight.how, self.moments[0].segment_columns
        return bool(columns) and how.startswith(f"{Balanced.__name__}(") and how.endswith(f"logger={columns[-1]!r})")

    @property
    def rows(self) -> int:
        """How many rows the question's own log has, without those that were dropped."""
        return self.moments[0].n - self.earlier_rows

    @cached_property
    def _by_place(self) -> dict[Label | None, list[Concern]]:
        """The concerns about single places, of which there may be as many as segments."""
        concerns: dict[Label | None, list[Concern]] = {}
        for concern in self.concerns:
            for place in concern.places or ():
                concerns.setdefault(place, []).append(concern)
        return concerns

    def caveats(self, targets: Container[str], reward: str | None, place: Label | None) -> list[Caveat]:
        """What the checks say about an answer on these targets."""
        near = [*(concern for concern in self.concerns if concern.places is None), *self._by_place.get(place, ())]
        return [concern.caveat for concern in near if concern.touches(targets, reward)]


def known_moments(
    log: Log | Data | LogMoments, parts: LogFields, stored: Stored, target: Targets, *others: Any
) -> RewardMoments | None:
    """The moments that a verb was handed instead of a log, or those of a state that it was given alone."""
    chosen = [name for name in parts if name != "reward_bounds"]  # known in advance, not chosen from a log
    is_state = log is None and stored.state is not None and not chosen and target is None
    if not is_state and not isinstance(log, LogMoments):
        return None
    extra = [name for name in stored.given if not (is_state and name == "state")]
    if chosen or extra or any(other is not None for other in (target, *others)):
        raise OptionError(
            "moments have no columns or rows left to choose from: give columns, conditions and states with the log itself, not "
            "with its moments."
        )
    if isinstance(log, LogMoments):
        return RewardMoments((log,), (None,))
    from counterpoise.readers import batches

    known = batches.stored_state(stored.state)
    return RewardMoments(known.moments, known.rewards)


def question_of(
    log: Log,
    target: Targets,
    *,
    weight: Weight | Columns = None,
    against: Targets = None,
    segment: Columns = None,
    wants_groups: bool = False,
    smoothings: tuple[float, ...] = (),
) -> Question:
    """The question that a verb's arguments ask."""
    log.need_only("evaluate")
    if weight is not None or log.propensity_of is not None:
        weight = list_weight(weight, log.propensity_of)
    how, target = as_weight(weight, target)
    if isinstance(log.propensity, Mapping):
        refuse_lists(log.slate, "a log of several policies")
        log, how = balanced(log, how)
    is_estimated = isinstance(log.propensity, Unlogged) or log.propensity == MODEL
    if is_estimated:
        _check_estimated(log, target, against)
    sums: dict[str, Any] = {"groups": groups_of(log, wanted=wants_groups), "smoothings": smoothings}
    if log.baseline:
        sums["features"] = features_of(log, how)
    if log.slate is not None:
        # imported here, so that importing counterpoise does not import narwhals and polars
        from counterpoise.engines.first_look import lists_of

        sums["lists"] = lists_of(log)
    question = ask(log, target, weight=how, against=against, segment=segment, **sums)
    check_own_names(log, *(name for _, name in question.columns))
    if is_estimated:
        from counterpoise.models.propensity import propensity_of, with_propensities

        model = propensity_of(log)
        question = question if model is None else with_propensities(question, model)
    if log.model is not None:
        from counterpoise.models.reward import with_model

        return with_model(question)
    for extra in ("items", "value_samples"):
        if getattr(log, extra) is not None:
            raise OptionError(f"`{extra}=` is for a reward model. Pass `model='auto'`, too.")
    return question


def _check_estimated(log: Log, *targets: Targets) -> None:
    """Refuse whatever needs logged propensities."""
    if log.baseline:
        raise OptionError(
            "`baseline=` takes propensities as logged, and here a model estimates them.",
            do="Pass `model='auto'` instead, which works with both.",
        )
    for target in targets:
        named = list(target.values()) if isinstance(target, Mapping) else target
        if any(isinstance(policy, ActionGroup) for policy in (named if isinstance(named, list | tuple) else [named])):
            raise OptionError(
                "ActionGroup takes propensities as logged, and here a model estimates them.",
                do="To estimate those of the groups, make the group the action.",
            )


def read(question: Question, stored: Stored, progress: bool | None) -> RewardMoments:
    """The moments of a question, added to those that a state holds where there is one."""
    job = None
    if stored.state is not None:
        from counterpoise.readers import batches

        job = batches.start(stored.state, question, batch=stored.batch, replaces=stored.replace, version=stored.version)
    elif stored.given:
        raise OptionError(f"`{stored.given[0]}=` only works with a state.", do="Pass `state=`, too.")
    question, today = _sum_up(question, progress)
    if job is None:
        return RewardMoments(today, question.log.reward, question)
    merged = batches.finish(job, today)
    return RewardMoments(merged, question.log.reward, question, earlier_rows=merged[0].n - today[0].n)


def _sum_up(question: Question, progress: bool | None) -> tuple[Question, tuple[LogMoments, ...]]:
    """The question with its models fitted, if any, and its moments: propensities first, since a reward model may need them."""
    # imported here, so that importing counterpoise does not import narwhals and polars
    from counterpoise.engines.registry import moments_of

    if question.propensity_model is not None:
        from counterpoise.models.propensity import fit_propensity_model

        question = fit_propensity_model(question, progress)
    if question.model is not None:
        from counterpoise.models.reward import fit_reward_model

        question = fit_reward_model(question, progress)
    try:
        moments = moments_of(question, progress=progress)
    except LogError as error:
        explanation = explanation_of(error, question)
        if explanation is error:
            raise
        raise explanation from error
    return question, moments if question.propensity_model is None else with_errors(question, moments)


def with_errors(question: Question, moments: tuple[LogMoments, ...]) -> tuple[LogMoments, ...]:
    """The moments, with what a propensity model does to their errors, if there is one."""
    if question.propensity_model is None or question.is_binned:  # bins have no errors of their own
        return moments
    from counterpoise.models import propensity_error

    return propensity_error.with_errors(question, moments)


def features_of(log: Log, weight: Weight) -> tuple[Any, ...]:
    """What the baseline of a log is linear in."""
    if not log.baseline:
        return ()
    # imported here, so that importing counterpoise does not import narwhals and polars
    from counterpoise.engines.first_look import baseline_features

    return baseline_features(log, weight)


def groups_of(log: Log, *, wanted: bool) -> int:
    """How many groups the clusters or rows of a log are hashed into."""
    groups = log.groups
    if groups is None:
        return GROUPS if wanted or log.cluster is not None else 1
    if isinstance(groups, bool) or not isinstance(groups, Integral) or groups < 2:
        raise OptionError(f"`groups={groups!r}` is not a whole number of at least 2.")
    return int(groups)


# -- Logs that several policies wrote: their shares, and their mixture as one propensity --------------------------------


ONE = "2.0"  # a weight whose excess is 1


def by_value(log: Log, column: str, *, groups: int = 1, features: tuple[Any, ...] = ()) -> tuple[LogMoments, ...]:
    """The sums of the rewards by the values of a column, with an excess of 1 in every row; in one pass."""
    # imported here, so that importing counterpoise does not import narwhals and polars
    from counterpoise.engines.registry import moments_of

    plain = log.but(propensity=None, logger=None, shares=None, model_reward=None, model_value=None, control=None)
    question = ask(plain, {column: ONE}, weight=Own(), segment=column, groups=groups, features=features)
    return moments_of(question)


def balanced(log: Log, weight: Weight) -> tuple[Log, Weight]:
    """The log with the mixture of its loggers as its propensity, and the weight that says so."""
    if type(weight) is not Ratio:
        raise OptionError(
            f"a log of several loggers has the balanced weight, and not {weight!r}: leave out the weight."
        )
    if log.logger is None:
        raise OptionError("`propensity=` has several loggers.", do="Say which of them wrote a row, with `logger=`.")
    loggers, logger, quote = log.propensity, str(log.logger), quote_of(log)
    names = tuple(loggers)
    shares = _shares(with_names(log), names) if log.shares is None else checked_shares(log.shares, names)
    mixed = balanced_sql(loggers, shares, logger, quote)
    return log.but(propensity=mixed, logger=None, shares=None), Balanced(names, tuple(loggers.values()), logger)


def with_names(log: Log) -> Log:
    """A log of arrays turned into columns, so that expressions can use them."""
    return log.of(dict(log.data)) if log.is_arrays else log


def _shares(log: Log, names: tuple[Any, ...]) -> dict[Any, float]:
    """The loggers' shares of the rows, in a pass of its own; rows that will be dropped are not counted."""
    if log.data is None or (isinstance(log.data, str) and not log.data):
        raise OptionError("the loggers' shares of the rows cannot be counted without the rows.", do="Pass `shares=`.")
    even = balanced_sql(log.propensity, dict.fromkeys(names, 1.0 / len(names)), str(log.logger), quote_of(log))
    good = log.but(where=even_where(log.where, even)) if log.drop_bad_rows else log
    moments = by_value(good.but(cluster=None, key=(), baseline=None), str(log.logger))[0]
    (stack,) = moments.moments.values()
    rows = {str(label[0]): int(n) for label, n in zip(moments.segments, stack.n.sum(axis=1), strict=True)}
    known = {name: rows.get(str(name), 0) for name in names}
    unknown = [name for name in rows if name not in set(map(str, names))]
    if unknown and not log.drop_bad_rows:
        raise LogError(
            f"{sum(rows[name] for name in unknown):,} rows were written by {unknown[0]!r}, a logger that was not named.",
            do="`propensity=` needs a column for each logger, or drop such rows with `where=`.",
        )
    absent = [name for name, n in known.items() if not n]
    if absent:
        raise LogError(
            f"no row was written by {absent[0]!r}; the log has {', '.join(map(repr, rows))}.",
            do="Leave it out of `propensity=`, or give `shares=`.",
        )
    total = sum(known.values())
    return {name: n / total for name, n in known.items()}


def even_where(where: str | None, mixed: str) -> str:
    """A condition that also requires the mixture to be known."""
    return f"({mixed}) > 0" if where is None else f"({where}) AND ({mixed}) > 0"


def quote_of(log: Log) -> Any:
    # imported here, so that importing counterpoise does not import narwhals and polars
    from counterpoise.engines.first_look import quoting

    return quoting(log)


def of_own_logger(question: Question) -> Question:
    """The same question, with the probability that a row's own logger gave its action, so that weights average 1 by logger."""
    weight = question.weight
    own = own_sql(dict(zip(weight.loggers, weight.columns, strict=True)), weight.logger, quote_of(question.log))
    return replace(question, log=question.log.but(propensity=own), weight=Ratio())


# -- The probability with which several loggers took an action together, as SQL of their columns -----------------------


Quote = Callable[[str], str]  # a column or an expression, as it stands inside an expression of the log's SQL


def checked_shares(shares: Any, names: tuple[Any, ...]) -> dict[Any, float]:
    """Shares by name, scaled to add up to 1: 50 and 50 will do.

    >>> checked_shares({"a": 3, "b": 1}, ("a", "b"))
    {'a': 0.75, 'b': 0.25}
    """
    by_name = {str(name): share for name, share in shares.items()} if isinstance(shares, Mapping) else {}
    if set(by_name) != set(map(str, names)):
        expected, entries = ", ".join(map(repr, names)), ", ".join(map(repr, by_name)) or repr(shares)
        raise OptionError(f"`shares=` needs one entry for each of {expected}; found {entries}.")
    is_number = (isinstance(share, int | float) and not isinstance(share, bool) for share in by_name.values())
    if not all(is_number) or not all(0 < share < math.inf for share in by_name.values()):
        raise OptionError(f"`shares=` holds something that isn't a positive number: {by_name!r}.")
    total = sum(by_name.values())
    return {name: by_name[str(name)] / total for name in names}


def own_sql(propensity: Mapping[Any, str], logger: str, quote: Quote) -> str:
    """The probability that the row's own logger gave the logged action.

    >>> own_sql({"a": "p_a", 2: "p_b"}, "who", '"{}"'.format)
    '(CASE WHEN "who" = \\'a\\' THEN "p_a" WHEN "who" = 2 THEN "p_b" END)'
    """
    cases = (f"WHEN {quote(logger)} = {_literal(name)} THEN {quote(column)}" for name, column in propensity.items())
    return f"(CASE {' '.join(cases)} END)"


def balanced_sql(propensity: Mapping[Any, str], shares: Mapping[Any, float], logger: str, quote: Quote) -> str:
    """Σ s·p over the loggers; null if one of the probabilities is invalid, or the row's own logger could not have written it."""
    columns = {name: quote(column) for name, column in propensity.items()}
    mixed = " + ".join(f"{shares[name]:.17e} * {column}" for name, column in columns.items())
    ranges = " AND ".join(f"{column} >= 0 AND {column} <= 1" for column in columns.values())
    return f"CASE WHEN {own_sql(propensity, logger, quote)} > 0 AND {ranges} THEN {mixed} END"


def _literal(name: Any) -> str:
    if isinstance(name, bool):
        return "TRUE" if name else "FALSE"
    return repr(name) if isinstance(name, int | float) else "'" + str(name).replace("'", "''") + "'"
