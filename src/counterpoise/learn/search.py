"""`learn_policy`: tries several ways to learn a policy, judges its choice on rows that had no part in it, and keeps what is safe."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.diagnostics.verdict import check_direction
from counterpoise.errors import LogError, OptionError
from counterpoise.evaluation.result import Result
from counterpoise.intervals import check_level
from counterpoise.learn.actions import Classes
from counterpoise.learn.contenders import Contender, Direct, Network, Reduction, imitation, portfolio
from counterpoise.learn.judging import FOLDS, is_handed_out, is_surely_better, judge_rows, lesson_of
from counterpoise.learn.objectives import objective_of
from counterpoise.learn.options import Fallback, whole
from counterpoise.learn.policies import describe_columns, known_actions
from counterpoise.learn.policy import Policy
from counterpoise.learn.race import Found, Race, Served, Tell, at_temperature, by_bound, by_score
from counterpoise.learn.rows import Split
from counterpoise.learn.source import Inspection, Source, inspect, refuse_leaks
from counterpoise.learn.steps import Machine
from counterpoise.learn.training import IMITATION
from counterpoise.log.log import Log, as_log
from counterpoise.log.parts import Data, LogFields, takes_parts
from counterpoise.readers.progress import progress_line

FALLBACKS = ("imitate", "warn", "raise")
SHORT = 0.5  # seconds reserved for the end, however late it is
RACE = 0.7  # of the time that is left once the log is read is for the race; the rest is for judging and the last fit
CERTIFYING = 0.15  # of what is left then, for judging what was chosen
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
    without each fold, and that fold's rows judge it. For each fold, a contender (and the temperature it serves at) is chosen by the other
    folds' rows; `Found.result` is the value of those choices, where every row judges a policy that it neither trained nor chose.
    The policy you get comes from the contender that is best over all folds, learned from all rows.

    Contenders are chosen by β-IPS less its standard error if the rows measure a policy, and otherwise by a lower bound
    (`counterpoise.learn.criterion`). The choice is surely better than the policy that ran if the interval of its lift, widened
    because the folds share their rows (`counterpoise.learn.judging.lift_interval`), is above 0 with the verdict ok; or, where
    rows are independent of each other, if that lower bound is above an upper limit of what ran earns. If it is not, contenders
    are chosen once more, by the bound alone, and if that is not surely better either, `fallback` says what to do.

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
        steps, forests have fewer trees or rows, other models learn from a sample, and policies are judged on one; `Found.skipped`
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
    whole = as_log(log, parts)
    model, logged = whole.model, whole.but(model=None)
    with progress_line(progress, "reading the log") as tell:
        opened = _open(logged, folds, seed)
        wanted = _choose_contenders(contenders, objective, model, opened.log.n_actions)
        if opened.features is not None and not any(getattr(each, "takes_items", False) for each in wanted):
            raise OptionError(
                "`items=` is of no use to these contenders, which do not look at features of actions.",
                do="Add a network, such as 'beta_ips', or leave out `items=`.",
            )
        clock = Clock(None if minutes is None or math.isinf(minutes) else began + 60 * minutes)
        source, n_actions = opened.source, opened.log.n_actions
        race = Race(source.chunk(source.starts[0]), _folds(source, folds), folds, n_actions, seed, opened.features)
        race.run(wanted, clock.after(RACE), tell)
        names = () if logged.is_arrays else None
        machine = Machine.join("cpu")
        return _handed_out(_Search(opened, race, clock, tell, began, level, names, wanted, machine), fallback)


@dataclass(frozen=True)
class Opened:
    """A log that a search has read: the rows to race on, in memory, and a source of all rows if those are only a sample."""

    source: Source
    log: Inspection
    features: Tensor | None
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


@dataclass(frozen=True)
class _Search:
    """What is left to do after a race: judge its choice, and learn it from all rows."""

    opened: Opened
    race: Race
    clock: Clock
    tell: Tell | None
    began: float
    level: float
    names: tuple[str, ...] | None
    wanted: Sequence[Contender]
    machine: Machine

    def describe(self, policy: Policy) -> Policy:
        """Tell a policy the columns and actions of the log."""
        policy.context_ = self.opened.source.names.context if self.names is None else self.names
        policy.actions_ = self.opened.log.ids
        describe_columns(policy, self.opened.source)
        return policy

    def policies(self, chosen: Sequence[Served]) -> tuple[Policy, ...]:
        """What was chosen for every fold."""
        return tuple(self.describe(self.race.serve(served, fold)) for fold, served in enumerate(chosen))

    def judge(self, chosen: Sequence[Served], name: str = FOLDS) -> tuple[Result, float]:
        """The result of what was chosen for every fold, on rows that had no part in it, and the lower bound on its lift."""
        if self.tell is not None:
            self.tell("judging what was chosen")
        index, probability = self.race.certify(chosen, self.clock.left(CERTIFYING))
        targets = [(self.opened.source.starts[0], index, probability)]
        result = judge_rows(self.opened.source, targets, name=name, level=self.level)
        return result, self.race.bound(index, probability) - self.race.logging_value

    def last(self, best: Served) -> tuple[Policy, str]:
        """The policy to hand out, learned from all rows, and what was left out for lack of time or memory."""
        name, temperature = best
        if self.tell is not None:
            self.tell(f"{name}, learned from all rows")
        contender = {each.name: each for each in (*self.wanted, imitation())}[name]
        seconds = self.machine.agree(self.clock.left(LAST))
        try:
            policy = self.race.learn(contender, None, seconds, self.opened.files, self.machine)
            cuts = self.race.cuts[name]
            left_out = (
                f"There was time for {cuts} in its last fit; with more minutes there will be more." if cuts else ""
            )
        except KeyboardInterrupt:
            policy = self.race.policies[name][0]
            share = 1 - 1 / self.race.n_folds
            left_out = f"The search was stopped before its last fit, so it has learned from {share:.0%} of the rows."
        if self.opened.files is not None and not getattr(contender, "streams", False):
            rows, all_rows = len(self.race.rows), self.opened.files.rows
            sampled = f"It cannot learn from files chunk by chunk, and has learned from a sample of {rows:,} of {all_rows:,} rows."
            left_out = f"{sampled} {left_out}".rstrip()
        return self.describe(at_temperature(policy, temperature)), left_out


def _handed_out(search: _Search, fallback: Fallback) -> Found:
    """The policy that a search ends with: what is surely better, or what `fallback` says."""
    race, log, whole = search.race, search.opened.log, search.opened.whole
    judged: dict[tuple[Served, ...], tuple[Result, float]] = {}
    for rule in (by_score, by_bound):
        chosen, best = tuple(race.best(rule, without=fold) for fold in range(race.n_folds)), race.best(rule)
        if chosen not in judged:
            judged[chosen] = search.judge(chosen)
        result, lift_bound = judged[chosen]
        if is_surely_better(result, lift_bound=lift_bound):
            break
    rejected, policies = None, search.policies(chosen)
    if not is_handed_out(result, fallback, lift_bound=lift_bound):
        try:
            race.is_stopped = False
            race.run([imitation()], search.clock.after(IMITATING), search.tell)
            imitations = ((IMITATION, 1.0),) * race.n_folds
            imitating, _ = search.judge(imitations, f"imitating {FOLDS}")
            best, rejected, result, policies = imitations[0], result, imitating, search.policies(imitations)
        except KeyboardInterrupt:  # what was learned is there, and no imitation
            is_handed_out(result, "warn", lift_bound=lift_bound)
    start = time.perf_counter()
    best = search.machine.agree(best)  # a process with less time may have come to another conclusion
    policy, cut = search.last(best)
    policy.lesson_ = lesson_of(whole, result)
    ended = time.perf_counter()
    return Found(
        policy, result, IMITATION if best[0] == IMITATION else "learned", rejected, best[0],
        tuple(race.leaderboard(search.level, whole.in_its_units)), policies, whole.in_its_units(log.mean_reward),
        ended - search.began, ended - start, race.skipped, whole.dropped, cut,
        (min(ends := tuple(map(whole.in_its_units, log.rewards))), max(ends)),
    )  # fmt: skip


def _open(log: Log, folds: int, seed: int) -> Opened:
    """The log, checked row by row: in memory, with rows of the same context in one fold, or a sample of files in memory."""
    log.need_only("learn_policy")
    check_direction(log)
    known = known_actions(None, log)
    source = Source(log, None, known.classes, centers_rewards=True)
    if source.files is not None and source.files.rows <= SAMPLE:
        source = Source(log, None, known.classes, centers_rewards=True, in_memory=True)
    inspection = inspect(source, known.count(None, source), Split(0.0, seed), known.ids)
    if inspection.n_actions < 2:
        raise LogError(
            f"the log has a single action in {source.names.action!r}, so there is nothing to choose.",
            do="Learn from a log in which at least two actions were taken.",
        )
    refuse_leaks(source)
    source.number(inspection.ids)
    files = None
    if source.files is not None:
        files, source = source, _sample(source, known.classes, inspection, seed)
    source.keep_alike_together(ALIKE * folds)
    return Opened(source, inspection, known.features, files)


def _sample(files: Source, classes: Classes | None, log: Inspection, seed: int) -> Source:
    """Some of the rows of files in memory, drawn at random, as a log that is read in the same way."""
    names = classes if files.reading.names is None else files.reading.names
    source = Source(files.sample(SAMPLE, seed), None, names, files.reading.encoding)
    source.lowest = files.lowest
    inspect(source, None if log.ids is not None else log.n_actions, Split(0.0, seed), log.ids)
    source.number(log.ids)
    return source


def _folds(source: Source, folds: int) -> NDArray[np.int64]:
    """The folds of all rows, each of which must have some."""
    start = source.starts[0]
    fold_of = source.folds(start, source.chunk(start), folds)
    if len(np.unique(fold_of)) < folds:
        raise LogError(
            f"the log has {len(fold_of):,} rows, and with `folds={folds}` a fold has none of them.",
            do="Pass fewer `folds=`, or a log with more rows or clusters.",
        )
    return fold_of


def _choose_contenders(
    contenders: Sequence[Contender | str] | None, objective: str | None, model: Any, n_actions: int
) -> Sequence[Contender]:
    """The contenders that were asked for."""
    if model is not None and objective not in ("reduction", "direct"):
        raise OptionError("`model=` needs `objective=`, 'reduction' or 'direct'.")
    if objective is None:
        return portfolio(n_actions) if contenders is None else _contenders(contenders)
    if contenders is not None:
        raise OptionError("`objective=` and `contenders=` exclude each other.")
    if objective == "reduction":
        if model is None:
            raise OptionError("a reduction needs a classifier.", do="Pass one as `model=`.")
        return [Reduction(model)]
    if objective == "direct":
        return [Direct("auto" if model is None else model)]
    objective_of(objective, "reduction", "direct")  # raises if something is wrong with it
    return [Network(objective, objective)]


def _contenders(several: object) -> list[Contender]:
    """The user's own contenders, including networks for objectives given by name."""
    if not isinstance(several, Sequence) or isinstance(several, str) or not several:
        raise OptionError(f"`contenders=` must be a list of contenders; found {several!r}.")
    contenders = [Network(each, each) if isinstance(each, str) else each for each in several]
    for contender in contenders:
        if not all(hasattr(contender, part) for part in ("name", "temperatures", "fit")):
            raise OptionError(
                f"`contenders=` must have a name, temperatures and fit; {contender!r} does not.",
                do="Wrap a classifier in Reduction(…), and a reward model in Direct(…).",
            )
        temperatures = contender.temperatures
        if not len(temperatures) or not all(0 <= temperature < math.inf for temperature in temperatures):
            raise OptionError(f"contender {contender.name!r} needs temperatures of 0 or more; found {temperatures!r}.")
    return contenders


def _check(minutes: object, folds: object, fallback: object, level: float, seed: object) -> None:
    if minutes is not None and (isinstance(minutes, bool) or not isinstance(minutes, int | float) or not minutes > 0):
        raise OptionError(f"`minutes={minutes!r}` must be above 0.", do="Infinity tries everything.")
    whole("folds", folds, least=2)
    whole("seed", seed, least=0)
    check_level(level)
    if fallback not in FALLBACKS:
        raise OptionError(f"`fallback={fallback!r}` is not known; choose from {', '.join(FALLBACKS)}.")
