"""`learn_policy`: tries several ways to learn a policy, judges what it chose by rows that had no part in it, and keeps what is safe."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from counterpoise.errors import Argument, LogError, OptionError
from counterpoise.intervals import check_level
from counterpoise.learn.guardrails import refused, warned
from counterpoise.learn.judging import FOLDS, is_surely_better, judge, lesson_of
from counterpoise.learn.logs.batches import Split
from counterpoise.learn.logs.columns import needed
from counterpoise.learn.logs.inspection import Inspection, inspect
from counterpoise.learn.logs.sources import Source
from counterpoise.learn.policies.making import describe_columns
from counterpoise.learn.runs.options import whole
from counterpoise.learn.search.contenders import IMITATION, Contender, imitation, portfolio
from counterpoise.learn.search.direct import Direct
from counterpoise.learn.search.found import Found
from counterpoise.learn.search.race import Race, at_temperature, by_bound, by_score
from counterpoise.learn.search.reduction import Reduction
from counterpoise.log.lists import refuse_lists
from counterpoise.log.log import Log, LogFields, as_log
from counterpoise.readers.progress import progress_bar

FALLBACKS = ("imitate", "warn", "raise")
ALIKE = 30  # different contexts a fold must have for rows with the same one to stay together


def learn_policy(
    log: Any = None,
    *,
    minutes: float | None = 1.0,
    contenders: Sequence[Contender] | None = None,
    objective: str | None = None,
    folds: int = 3,
    fallback: str = "imitate",
    level: float = 0.95,
    seed: int = 0,
    progress: bool | None = None,
    **parts: Unpack[LogFields],
) -> Found:
    """Find a policy on the log of another one: try several ways to learn, and keep the best that is safe.

    The rows are cut into folds, by cluster if there is one, and rows with the same context stay together. Every contender is learned once
    without each fold, and that fold's rows judge it. For each fold, a contender (and the temperature it serves at) is chosen by the other
    folds' rows; `Found.result` is the value of what was so chosen, on every row by a policy that it neither trained nor chose.
    The policy handed out is that of the contender best over all folds, learned from all rows.

    Contenders are chosen by β-IPS less its standard error where the rows measure a policy, and elsewhere by a lower bound
    (`counterpoise.learn.runs.criterion`). What was chosen is surely better than the policy that ran if the interval of its lift is above 0
    with the verdict ok, or, where rows are independent of each other, if that lower bound is above what ran earned. If it is not,
    contenders are chosen once more, by the bound alone, and if that is not surely better either, `fallback` says what to do.

    Parameters
    ----------
    log
        A `Log`, or its data with the parts of a log, as in `evaluate`; it must fit into memory.
    minutes
        The time to stay within, as far as contenders can be left out: the first one and an imitation are always tried. Which ones are
        tried then depends on the speed of the machine; None tries all of them.
    contenders
        What to try, instead of `portfolio(n_actions)`: networks, forests, `Reduction(classifier)`, `Direct(model)`, or your own.
    objective
        Only this one: ``"reduction"`` with a classifier as `model`, or ``"direct"`` with a reward model.
    folds
        How many parts the log is cut into.
    fallback
        ``"imitate"``: hand out a policy that imitates the one that ran; ``"warn"``, or ``"raise"`` an error.

    Examples
    --------
    >>> from counterpoise.environments import SyntheticBandit
    >>> log = SyntheticBandit(n_actions=4, inverse_temperature=-2, seed=1).draw(2000)
    >>> found = learn_policy(
    ...     context=log.context, action=log.action, reward=log.reward, propensity=log.propensity, contenders=portfolio(4)[:1]
    ... )
    >>> found.kind, bool(log.value(found.predict_proba) > log.reward.mean())
    ('learned', True)
    """
    began = time.perf_counter()
    _check(minutes, folds, fallback, level, seed)
    given = as_log(log, parts)
    model, asked = given.model, given.but(model=None)
    source, seen = _opened(asked, folds, seed)
    names = () if asked.is_arrays else source.names.context
    wanted = _wanted(contenders, objective, model, seen.n_actions)
    rows = source.chunk(source.starts[0])
    race = Race(rows, _folds(source, folds), folds, seen.n_actions, seed)
    with progress_bar(progress, "trying policies", "fits") as report:
        race.run(wanted, None if minutes is None else began + 60 * minutes, report)

    def named(policy: Any) -> Any:
        policy.context_, policy.actions_ = names, seen.ids
        describe_columns(policy, source)
        return policy

    for rule in (by_score, by_bound):
        chosen = [race.best(rule, without=fold) for fold in range(folds)]
        policies = [named(race.served(one, fold)) for fold, one in enumerate(chosen)]
        result, best = judge(source, policies, level=level), race.best(rule)
        if sure := is_surely_better(result) or race.bound(chosen) > seen.mean_reward:
            break
    rejected = None
    if not sure and fallback != "imitate":
        if fallback == "raise":
            raise refused(result)
        warnings.warn(warned(result), stacklevel=2)
    elif not sure:
        race.run([imitation()], None, None)
        best, rejected = (IMITATION, 1.0), result
        policies = [named(race.served(best, fold)) for fold in range(folds)]
        result = judge(source, policies, name=f"imitating {FOLDS}", level=level)
    start = time.perf_counter()
    policy = named(at_temperature(race.learned(race.contenders[best[0]], None), best[1]))
    policy.lesson_ = lesson_of(source, result)
    ended = time.perf_counter()
    return Found(
        policy, result, IMITATION if best[0] == IMITATION else "learned", rejected, best[0],
        tuple(race.leaderboard(level)), tuple(policies), seen.mean_reward, ended - began, ended - start, race.skipped,
        source.dropped,
    )  # fmt: skip


def _opened(asked: Log, folds: int, seed: int) -> tuple[Source, Inspection]:
    """The log in memory, checked row by row, with rows of the same context in one fold."""
    refuse_lists(asked.slate, "learn_policy", instead="RankingLearner")
    for part in ("candidates", "items"):
        if getattr(asked, part) is not None:
            raise OptionError(
                ["learn_policy takes no ", Argument(part), "."],
                do="PolicyLearner does; or leave it out, and every action is one to choose from.",
            )
    asked.need_only("learn_policy")
    source = Source(asked)
    if source.files is not None:
        columns = list(dict.fromkeys([*needed(source.names, asked.where, source.files.columns), *source.id_columns]))
        source = Source(asked.of(source.files.read(columns, 0, source.files.rows)))
    seen = inspect(source, None, Split(0.0, seed))
    source.number(seen.ids)
    source.keep_alike_together(ALIKE * folds)
    return source, seen


def _folds(source: Source, folds: int) -> NDArray[np.int64]:
    """The folds of all rows, each of which must have some."""
    start = source.starts[0]
    found = source.folds(start, source.chunk(start), folds)
    if len(np.unique(found)) < folds:
        raise LogError(
            [f"the log has {len(found):,} rows, and with ", Argument("folds", folds), " a fold has none of them."],
            do=["Pass fewer ", Argument("folds"), ", or a log with more rows or clusters."],
        )
    return found


def _wanted(
    contenders: Sequence[Contender] | None, objective: str | None, model: Any, n_actions: int
) -> Sequence[Contender]:
    """The contenders that were asked for."""
    if objective is None:
        if model is not None:
            raise OptionError([Argument("model"), " needs ", Argument("objective"), ", 'reduction' or 'direct'."])
        return portfolio(n_actions) if contenders is None else _checked(contenders)
    if contenders is not None:
        raise OptionError([Argument("objective"), " and ", Argument("contenders"), " exclude each other."])
    if objective == "reduction":
        if model is None:
            raise OptionError("a reduction needs a classifier.", do=["Pass one as ", Argument("model"), "."])
        return [Reduction(model)]
    if objective == "direct":
        return [Direct("auto" if model is None else model)]
    raise OptionError(
        [Argument("objective", objective), " is not known here; choose 'reduction' or 'direct', or leave it out."],
        do="For an objective of gradients, such as 'beta_ips', use PolicyLearner.",
    )


def _checked(contenders: Any) -> list[Contender]:
    """Contenders of the user's own choice."""
    if not isinstance(contenders, Sequence) or isinstance(contenders, str) or not contenders:
        raise OptionError([Argument("contenders"), f" must be a list of contenders; found {contenders!r}."])
    for one in contenders:
        if not all(hasattr(one, part) for part in ("name", "temperatures", "fit")):
            raise OptionError(
                [Argument("contenders"), f" must have a name, temperatures and fit; {one!r} does not."],
                do="Wrap a classifier in Reduction(…), and a reward model in Direct(…).",
            )
        if not len(one.temperatures) or not all(0 <= temperature < math.inf for temperature in one.temperatures):
            raise OptionError(f"contender {one.name!r} needs temperatures of 0 or more; found {one.temperatures!r}.")
    return list(contenders)


def _check(minutes: Any, folds: Any, fallback: Any, level: Any, seed: Any) -> None:
    if minutes is not None and (isinstance(minutes, bool) or not isinstance(minutes, int | float) or not minutes > 0):
        raise OptionError([Argument("minutes", minutes), " must be above 0."], do="Infinity tries everything.")
    whole("folds", folds, least=2)
    whole("seed", seed, least=0)
    check_level(level)
    if fallback not in FALLBACKS:
        raise OptionError([Argument("fallback", fallback), f" is not known; choose from {', '.join(FALLBACKS)}."])
