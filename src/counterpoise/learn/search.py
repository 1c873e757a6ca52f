"""`learn_policy`: tries several ways to learn a policy, judges what it chose by rows that had no part in it, and keeps what is safe."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from counterpoise.errors import Argument, LogError, OptionError
from counterpoise.evaluation.result import Result
from counterpoise.intervals import check_level
from counterpoise.learn.contenders import IMITATION, Contender, Direct, Reduction, imitation, portfolio
from counterpoise.learn.judging import FOLDS, is_handed_out, is_surely_better, judge_rows, lesson_of
from counterpoise.learn.options import whole
from counterpoise.learn.policies import describe_columns
from counterpoise.learn.race import Found, Race, Served, Tell, at_temperature, by_bound, by_score
from counterpoise.learn.rows import Split
from counterpoise.learn.source import Inspection, Source, inspect, refuse_leaks
from counterpoise.log.lists import refuse_lists
from counterpoise.log.log import Log, LogFields, as_log
from counterpoise.readers.progress import progress_line

FALLBACKS = ("imitate", "warn", "raise")
SHORT = 0.5  # seconds that there are at the end, however late it is
RACE = 0.7  # of the time that is left once the log is read is for the race; the rest is for judging and the last fit
CERTIFYING = 0.15  # of what is left then, for judging what was chosen
IMITATING = 0.6  # of what is left after that, for an imitation in folds, if there is one
LAST = 0.9  # of what is left in the end, for the last fit
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
    (`counterpoise.learn.criterion`). What was chosen is surely better than the policy that ran if the interval of its lift, widened
    because the folds share their rows (`counterpoise.learn.judging.lift_interval`), is above 0 with the verdict ok; or, where rows are
    independent of each other, if that lower bound is above an upper limit of what ran earns. If it is not, contenders are chosen once
    more, by the bound alone, and if that is not surely better either, `fallback` says what to do.

    Ctrl-C ends the search early: the best contender that has run by then is handed out, as it would have been in the end.

    Parameters
    ----------
    log
        A `Log`, or its data with the parts of a log, as in `evaluate`; it must fit into memory.
    minutes
        The time to stay within, reading and the last fit included. Where it is short, contenders are left out, networks take fewer steps,
        forests have fewer trees or rows, other models learn from a sample, and policies are judged by one; `Found.skipped` and
        `Found.cut` say so. What is left out then depends on the speed of the machine; None tries everything, however long it takes.
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
    with progress_line(progress, "reading the log") as tell:
        source, seen = _opened(asked, folds, seed)
        wanted = _wanted(contenders, objective, model, seen.n_actions)
        clock = Clock(None if minutes is None else began + 60 * minutes)
        race = Race(source.chunk(source.starts[0]), _folds(source, folds), folds, seen.n_actions, seed)
        race.run(wanted, clock.after(RACE), tell)
        return _handed_out(
            _Search(source, seen, race, clock, tell, began, level, () if asked.is_arrays else None), fallback
        )


@dataclass(frozen=True)
class Clock:
    """When a search should be over, if there is a limit."""

    end: float | None

    def after(self, share: float) -> float | None:
        """When this share of the time that is left will be over."""
        return None if self.end is None else self.end - (1 - share) * self.left(1.0)

    def left(self, share: float) -> Any:
        """So much of the time that is left, in seconds."""
        return None if self.end is None else share * max(self.end - time.perf_counter(), SHORT)


@dataclass(frozen=True)
class _Search:
    """What a race left to do: to judge what it chose, and to learn it from all rows."""

    source: Source
    seen: Inspection
    race: Race
    clock: Clock
    tell: Tell | None
    began: float
    level: float
    names: tuple[str, ...] | None

    def named(self, policy: Any) -> Any:
        """A policy that knows the columns and actions of the log."""
        policy.context_ = self.source.names.context if self.names is None else self.names
        policy.actions_ = self.seen.ids
        describe_columns(policy, self.source)
        return policy

    def policies(self, chosen: Sequence[Served]) -> tuple[Any, ...]:
        """What was chosen for every fold."""
        return tuple(self.named(self.race.served(one, fold)) for fold, one in enumerate(chosen))

    def judged(self, chosen: Sequence[Served], name: str = FOLDS) -> tuple[Result, float]:
        """What was chosen for every fold, on rows that had no part in it, and the lower bound on its lift."""
        if self.tell is not None:
            self.tell("judging what was chosen")
        index, probability = self.race.certified(chosen, self.clock.left(CERTIFYING))
        targets = [(self.source.starts[0], index, probability)]
        result = judge_rows(self.source, targets, name=name, level=self.level)
        return result, self.race.bound(index, probability) - self.race.logging_value

    def last(self, best: Served) -> tuple[Any, str]:
        """The policy to hand out, learned from all rows, and what was left out for lack of time."""
        name, temperature = best
        if self.tell is not None:
            self.tell(f"{name}, learned from all rows")
        try:
            policy = self.race.learned(self.race.contenders[name], None, self.clock.left(LAST))
            cuts = self.race.cuts[name]
            said = f"There was time for {cuts} in its last fit; with more minutes there will be more." if cuts else ""
        except KeyboardInterrupt:
            policy = self.race.policies[name][0]
            share = 1 - 1 / self.race.n_folds
            said = f"The search was stopped before its last fit, so it has learned from {share:.0%} of the rows."
        return self.named(at_temperature(policy, temperature)), said


def _handed_out(search: _Search, fallback: str) -> Found:
    """The policy that a search ends with: what is surely better, or what `fallback` says."""
    race, seen = search.race, search.seen
    judged: dict[tuple[Served, ...], tuple[Result, float]] = {}
    for rule in (by_score, by_bound):
        chosen, best = tuple(race.best(rule, without=fold) for fold in range(race.n_folds)), race.best(rule)
        if chosen not in judged:
            judged[chosen] = search.judged(chosen)
        result, lift_bound = judged[chosen]
        if is_surely_better(result, lift_bound=lift_bound):
            break
    rejected, policies = None, search.policies(chosen)
    if not is_handed_out(result, fallback, lift_bound=lift_bound):
        try:
            race.is_stopped = False
            race.run([imitation()], search.clock.after(IMITATING), search.tell)
            imitations = ((IMITATION, 1.0),) * race.n_folds
            imitating, _ = search.judged(imitations, f"imitating {FOLDS}")
            best, rejected, result, policies = imitations[0], result, imitating, search.policies(imitations)
        except KeyboardInterrupt:  # what was learned is there, and no imitation
            is_handed_out(result, "warn", lift_bound=lift_bound)
    start = time.perf_counter()
    policy, cut = search.last(best)
    policy.lesson_ = lesson_of(search.source, result)
    ended = time.perf_counter()
    return Found(
        policy, result, IMITATION if best[0] == IMITATION else "learned", rejected, best[0],
        tuple(race.leaderboard(search.level, search.source.lowest)), policies, seen.mean_reward + search.source.lowest,
        ended - search.began, ended - start, race.skipped, search.source.dropped, cut,
        (seen.rewards[0] + search.source.lowest, seen.rewards[1] + search.source.lowest),
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
    source = Source(asked, centers_rewards=True, in_memory=True)
    seen = inspect(source, None, Split(0.0, seed))
    if seen.n_actions < 2:
        raise LogError(
            f"the log has a single action in {source.names.action!r}, so there is nothing to choose.",
            do="Learn from a log in which at least two actions were taken.",
        )
    refuse_leaks(source)
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
