"""`learn_policy`: tries several ways to learn a policy, evaluates its choice on rows that had no part in it, and keeps what is safe."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.diagnostics.verdict import check_direction
from counterpoise.errors import LogError, OptionError
from counterpoise.evaluation.result import Result
from counterpoise.intervals import check_level
from counterpoise.learn.contenders import Contender, Direct, Network, Reduction, imitation, portfolio
from counterpoise.learn.hand_out import FOLDS, Attempt, evaluate_rows, hand_out
from counterpoise.learn.objectives import objective_of
from counterpoise.learn.options import Fallback, whole_number
from counterpoise.learn.policies import describe_columns, known_actions
from counterpoise.learn.policy import Policy
from counterpoise.learn.race import Found, Race, Served, Tell, at_temperature, by_bound, by_score
from counterpoise.learn.rows import Split
from counterpoise.learn.source import Inspection, Source, inspect, refuse_leaks
from counterpoise.learn.steps import Machine
from counterpoise.learn.training import IMITATION
from counterpoise.log.log import Log, as_log
from counterpoise.log.parts import Data, LogFields
from counterpoise.log.verbs import need_only, takes_parts
from counterpoise.readers.progress import progress_line

FALLBACKS = ("imitate", "warn", "raise")
SHORT = 0.5  # seconds reserved for the end, however late it is
RACE = 0.7  # of the time that is left once the log is read is for the race; the rest is for evaluation and the last fit
CERTIFYING = 0.15  # of what is left then, for the evaluation of what was chosen
IMITATING = 0.6  # of what is left after that, for an imitation in folds, if there is one
LAST = 0.9  # of what is left in the end, for the last fit
SAMPLE = 4_000_000  # rows of files that are raced on in memory; where there are more, they are a sample, and the last fit streams all
ALIKE = 30  # different contexts a fold must have for rows with the same one to stay together


@takes_parts("learn_policy")
def learn_policy(
    log: Log | Data = None,
    *,
    minutes: float | None = 1.0,
    contenders: Sequence[Contender | str] | None = None,
    objective: str | None = None,
    folds: int = 3,
    fallback: Fallback = "imitate",
    level: float = 0.95,
    seed: int = 0,
    progress: bool | None = None,
    **parts: Unpack[LogFields],
) -> Found:
    """Find a policy on the log of another one: try several ways to learn, and keep the best that is safe.

    The rows are cut into folds, by cluster if there is one, and rows with the same context stay together. Every contender is learned once
    without each fold, and evaluated on that fold's rows. For each fold, a contender (and the temperature it serves at) is chosen by the
    other folds' rows; `Found.result` is the value of those choices, where every row evaluates a policy that it neither trained nor chose.
    The policy you get comes from the contender that is best over all folds, learned from all rows.

    Contenders are chosen by β-IPS less its standard error if the rows measure a policy, and otherwise by a lower bound
    (`counterpoise.learn.criterion`). The choice is reliably better than the logging policy if the interval of its lift, widened
    because the folds share their rows (`counterpoise.learn.hand_out.lift_interval`), is above 0 with the verdict ok; or, where
    rows are independent of each other, if that lower bound is above an upper limit of the logging policy's value. If it is not, contenders
    are chosen once more, by the bound alone, and if that is not reliably better either, `fallback` decides what to do.

    With ``propensity="model"``, or a `models.Propensity`, a cross-fitted model estimates the propensities. Nothing is then surely
    better, because the verdict is at most caution: pass ``fallback="warn"`` for what was learned.

    Ctrl-C ends the search early: the best contender that has run by then is handed out, as it would have been in the end.

    Under torchrun, every process runs the same race, and all hand out what the first one chose; networks share the work of the last fit.

    Parameters
    ----------
    log
        A `Log`, or its data with the parts of a log, as in `evaluate`. `items` are features of the actions, which networks learn
        from; with `candidates`, a policy chooses among those of its row. With Parquet files of more than 4 million rows,
        contenders race on a sample, and a network that wins learns from all rows in the end, read chunk by chunk; any other log
        must fit in memory.
    minutes
        The time to stay within, reading and the last fit included. If it is short, contenders are left out, networks take fewer
        steps, forests have fewer trees or rows, other models learn from a sample, and policies are evaluated on one; `Found.skipped`
        and `Found.cut` say so. What is left out then depends on the speed of the machine; None, or infinity, tries everything,
        however long it takes.
    contenders
        What to try, instead of `portfolio(n_actions)`: networks, forests, `Reduction(classifier)`, `Direct(model)`, your own, or the names
        of objectives (`objectives.OBJECTIVES`, with those that you registered), for which a small network is trained.
    objective
        Only this one: the name of such an objective; ``"reduction"`` with a classifier as `model`; or ``"direct"`` with a reward model.
    folds
        How many parts the log is cut into.
    fallback
        ``"imitate"``: hand out a policy that imitates the logging policy; ``"warn"``, or ``"raise"`` an error.

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
    if minutes is not None and (isinstance(minutes, bool) or not isinstance(minutes, int | float) or not minutes > 0):
        raise OptionError(f"`minutes={minutes!r}` must be above 0.", do="Infinity tries everything.")
    whole_number("folds", folds, least=2)
    whole_number("seed", seed, least=0)
    check_level(level)
    if fallback not in FALLBACKS:
        raise OptionError(f"`fallback={fallback!r}` is not known; choose from {', '.join(FALLBACKS)}.")
    whole = as_log(log, parts)
    logged = whole.but(model=None)
    with progress_line(progress, "reading the log") as tell:
        opened = _open(logged, folds, seed)
        wanted = _contenders(contenders, objective, whole.model, opened.log.n_actions)
        if opened.features is not None and not any(getattr(each, "takes_items", False) for each in wanted):
            raise OptionError(
                "`items=` is of no use to these contenders, which do not look at features of actions.",
                do="Add a network, such as 'beta_ips', or leave out `items=`.",
            )
        clock = Clock(None if minutes is None or math.isinf(minutes) else began + 60 * minutes)
        source, inspection, every = opened.source, opened.log, opened.whole
        race = Race(source.chunk(source.starts[0]), opened.folds, folds, inspection.n_actions, seed, opened.features)
        race.run(wanted, clock.after(RACE), tell)
        names = () if logged.is_arrays else source.names.context
        search = Search(opened, race, clock, tell, level, names, wanted, Machine.join("cpu"))
        policy, attempt, rejected = hand_out(
            every, search.attempts(), search.refit, fallback=fallback, imitate=search.imitate
        )
    assert attempt.result is not None
    kind = IMITATION if search.name == IMITATION else "learned"
    range_of_rewards = sorted(map(every.in_its_units, inspection.rewards))
    return Found(
        policy, attempt.result, kind, rejected, search.name, tuple(race.leaderboard(level, every.in_its_units)),
        search.policies(attempt.choice[0]), every.in_its_units(inspection.mean_reward),
        search.ended - began, search.fit_seconds, race.skipped, every.dropped, search.cut,
        (range_of_rewards[0], range_of_rewards[1]),
    )  # fmt: skip


@dataclass(frozen=True)
class Opened:
    """A log that a search has read: the rows to race on, in memory, and their folds; and a source of all rows if those are a sample."""

    source: Source
    log: Inspection
    features: Tensor | None
    folds: NDArray[np.int64]
    files: Source | None = None

    @property
    def whole(self) -> Source:
        """All rows."""
        return self.source if self.files is None else self.files


@dataclass(frozen=True)
class Clock:
    """When a search should be over, if there is a limit."""

    end: float | None

    def after(self, share: float) -> float | None:
        """When this share of the time that is left will be over."""
        left = self.left(1.0)
        return None if self.end is None or left is None else self.end - (1 - share) * left

    def left(self, share: float) -> float | None:
        """So much of the time that is left, in seconds."""
        return None if self.end is None else share * max(self.end - time.perf_counter(), SHORT)


Choice = tuple[tuple[Served, ...], Served]  # for every fold, and for all rows


@dataclass
class Search:
    """What follows a race: attempts to hand out its choice, and what is learned from all rows."""

    opened: Opened
    race: Race
    clock: Clock
    tell: Tell | None
    level: float
    names: tuple[str, ...]
    wanted: Sequence[Contender]
    machine: Machine
    name: str = ""  # of the contender that was learned from all rows
    cut: str = ""  # what that left out for lack of time or memory
    fit_seconds: float = 0.0
    ended: float = 0.0

    def attempts(self) -> Iterator[Attempt[Choice]]:
        """The contender that is best by its score, and where that is not reliably better, by its lower bound."""
        results: dict[tuple[Served, ...], tuple[Result, float]] = {}
        for rule in (by_score, by_bound):
            chosen = tuple(self.race.best(rule, without=fold) for fold in range(self.race.n_folds))
            if chosen not in results:
                results[chosen] = self.evaluate(chosen)
            yield Attempt((chosen, self.race.best(rule)), *results[chosen])

    def imitate(self) -> Attempt[Choice] | None:
        """An imitation of the logging policy, unless Ctrl-C comes before it."""
        chosen = ((IMITATION, 1.0),) * self.race.n_folds
        try:
            self.race.is_stopped = False
            self.race.run([imitation()], self.clock.after(IMITATING), self.tell)
            result, _ = self.evaluate(chosen, f"imitating {FOLDS}")
        except KeyboardInterrupt:
            return None
        return Attempt((chosen, chosen[0]), result, imitates=True)

    def evaluate(self, chosen: tuple[Served, ...], name: str = FOLDS) -> tuple[Result, float]:
        """The result of what was chosen for every fold, on rows that had no part in it, and the lower bound on its lift."""
        if self.tell is not None:
            self.tell("evaluating what was chosen")
        index, probability = self.race.certify(chosen, self.clock.left(CERTIFYING))
        targets = [(self.opened.source.starts[0], index, probability)]
        result = evaluate_rows(self.opened.source, targets, name=name, level=self.level)
        return result, self.race.bound(index, probability) - self.race.logging_value

    def refit(self, choice: Choice) -> Policy:
        """The policy of what was chosen, learned from all rows."""
        start, race = time.perf_counter(), self.race
        # a process with less time may have come to another conclusion
        self.name, temperature = self.machine.agree(choice[1])
        if self.tell is not None:
            self.tell(f"{self.name}, learned from all rows")
        contender = {each.name: each for each in (*self.wanted, imitation())}[self.name]
        seconds = self.machine.agree(self.clock.left(LAST))
        try:
            policy = race.learn(contender, None, seconds, self.opened.files, self.machine)
            cuts = race.cuts[self.name]
            self.cut = (
                f"There was time for {cuts} in its last fit; with more minutes there will be more." if cuts else ""
            )
        except KeyboardInterrupt:
            policy, share = race.policies[self.name][0], 1 - 1 / race.n_folds
            self.cut = f"The search was stopped before its last fit, so it has learned from {share:.0%} of the rows."
        if self.opened.files is not None and not getattr(contender, "streams", False):
            rows, every = len(race.rows), self.opened.files.rows
            sampled = f"It cannot learn from files chunk by chunk, and has learned from a sample of {rows:,} of {every:,} rows."
            self.cut = f"{sampled} {self.cut}".rstrip()
        self.ended = time.perf_counter()
        self.fit_seconds = self.ended - start
        return self.describe(at_temperature(policy, temperature))

    def policies(self, chosen: Sequence[Served]) -> tuple[Policy, ...]:
        """What was chosen for every fold."""
        return tuple(self.describe(self.race.serve(served, fold)) for fold, served in enumerate(chosen))

    def describe(self, policy: Policy) -> Policy:
        """Tell a policy the columns and actions of the log."""
        policy.context_, policy.actions_ = self.names, self.opened.log.ids
        describe_columns(policy, self.opened.source)
        return policy


def _open(log: Log, folds: int, seed: int) -> Opened:
    """The log, checked row by row, with rows of the same context in one fold: in memory, or a sample of files in memory."""
    need_only(log, "learn_policy")
    check_direction(log)
    known = known_actions(None, log)
    source, files = Source(log, None, known.classes, centers_rewards=True), None
    if source.files is not None and source.files.rows <= SAMPLE:
        source = Source(log, None, known.classes, centers_rewards=True, in_memory=True)
    nothing_held_out = Split(0.0, seed)
    inspection = inspect(source, known.count(None, source), nothing_held_out, known.ids)
    if inspection.n_actions < 2:
        raise LogError(
            f"the log has a single action in {source.names.action!r}, so there is nothing to choose.",
            do="Learn from a log in which at least two actions were taken.",
        )
    refuse_leaks(source)
    source.number(inspection.ids)
    if source.files is not None:  # a sample of their rows, drawn at random, as a log that is read in the same way
        files, names = source, source.reading.names
        source = Source(
            files.sample(SAMPLE, seed), None, known.classes if names is None else names, files.reading.encoding
        )
        source.lowest, ids = files.lowest, inspection.ids
        inspect(source, inspection.n_actions if ids is None else None, nothing_held_out, ids)
        source.number(ids)
    source.keep_alike_together(ALIKE * folds)
    start = source.starts[0]
    fold_of = source.folds(start, source.chunk(start), folds)
    if len(np.unique(fold_of)) < folds:
        raise LogError(
            f"the log has {len(fold_of):,} rows, and with `folds={folds}` a fold has none of them.",
            do="Pass fewer `folds=`, or a log with more rows or clusters.",
        )
    return Opened(source, inspection, known.features, fold_of, files)


def _contenders(
    contenders: Sequence[Contender | str] | None, objective: str | None, model: Any, n_actions: int
) -> Sequence[Contender]:
    """The contenders that were asked for: those of the portfolio, the user's own, or a single one."""
    if model is not None and objective not in ("reduction", "direct"):
        raise OptionError("`model=` needs `objective=`, 'reduction' or 'direct'.")
    if objective is not None and contenders is not None:
        raise OptionError("`objective=` and `contenders=` exclude each other.")
    if objective == "reduction":
        if model is None:
            raise OptionError("a reduction needs a classifier.", do="Pass one as `model=`.")
        return [Reduction(model)]
    if objective == "direct":
        return [Direct("auto" if model is None else model)]
    if objective is not None:
        objective_of(objective, "reduction", "direct")  # raises if something is wrong with it
        return [Network(objective, objective)]
    if contenders is None:
        return portfolio(n_actions)
    if not isinstance(contenders, Sequence) or isinstance(contenders, str) or not contenders:
        raise OptionError(f"`contenders=` must be a list of contenders; found {contenders!r}.")
    own = [Network(each, each) if isinstance(each, str) else each for each in contenders]
    for contender in own:
        if not all(hasattr(contender, part) for part in ("name", "temperatures", "fit")):
            raise OptionError(
                f"`contenders=` must have a name, temperatures and fit; {contender!r} does not.",
                do="Wrap a classifier in Reduction(…), and a reward model in Direct(…).",
            )
        temperatures = contender.temperatures
        if not len(temperatures) or not all(0 <= temperature < math.inf for temperature in temperatures):
            raise OptionError(f"contender {contender.name!r} needs temperatures of 0 or more; found {temperatures!r}.")
    return own
