"""`sensitivity`: what the answers would be if the logged propensities were wrong, and how wrong they must be to flip a conclusion."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Real
from typing import TYPE_CHECKING, Any, cast

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.diagnostics import Caveat, Verdict, judge, resting_on_model
from counterpoise.display import (
    ROWS,
    Block,
    Cell,
    Display,
    Judged,
    Name,
    Number,
    Table,
    Worded,
    above,
    breakable,
    finite,
    level_of,
    shortened,
)
from counterpoise.engines.first_look import first_look
from counterpoise.engines.rows import over_good_rows
from counterpoise.errors import OptionError
from counterpoise.estimators import DIFFERENCES, ESTIMATORS, Estimate, linear, snips
from counterpoise.evaluation.asking import Stored, known_target, read, with_errors
from counterpoise.evaluation.distribution import bin_sql, thresholds_of
from counterpoise.evaluation.estimates import IntervalOptions, Quantities, diagnosis, limits_of, options_of
from counterpoise.evaluation.ranking import direction
from counterpoise.evaluation.support import missing_by_target
from counterpoise.evaluation.view import View
from counterpoise.intervals import Interval
from counterpoise.intervals.jackknife import jackknife_error
from counterpoise.intervals.method import normal_quantile
from counterpoise.intervals.quantity import Quantity
from counterpoise.log.columns import GROUP, PROPENSITY
from counterpoise.log.groups import with_groups
from counterpoise.log.parts import is_minimized
from counterpoise.log.question import LOGGING, Question
from counterpoise.log.verbs import need_only
from counterpoise.moments import Floats, LogMoments, Moments
from counterpoise.moments.bins import DIFFERENCE, OWN_VALUE, Bins, Cut, OddsBins, PairBins
from counterpoise.weights import Importance
from counterpoise.weights.biased import AllOdds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from counterpoise.evaluation.result import Result

# -- `Sensitivity`: bounds of values and lifts, and the factor at which a conclusion flips ------------------------------

MOST = 1e4  # anything larger counts as no tipping point
PRECISION = 1e-6  # of a tipping point, relative


@dataclass(frozen=True)
class Bounds:
    """What one target's value, and its lift over the logging policy, could be if odds were wrong by a factor of up to Γ.

    `value` and `lift` are the smallest and the largest that these rows allow. The intervals allow for sampling as well: they go from the
    lower end of the smallest to the upper end of the largest.
    """

    target: str
    gamma: float
    value: tuple[float, float]
    value_interval: Interval
    lift: tuple[float, float]
    lift_interval: Interval


@dataclass(frozen=True)
class TippingPoint:
    """The factor Γ at which odds that are wrong could flip a conclusion: that a target earns more, or less, than another policy.

    `point` is the smallest Γ at which the bounds of the lift reach 0. `sure` is the smallest at which their interval does, and 1
    if the interval of the lift contains 0 even with right propensities. Both are infinite if no Γ is large enough.
    """

    target: str
    lift: float
    point: float
    sure: float
    level: float
    against: str = ""  # the other policy; the logging policy, if none is named
    minimize: bool | None = (
        False  # whether less is better; None if nobody said, and the reward's name sounds like a cost
    )

    def __str__(self) -> str:
        earns, earned = ("earns", "earned") if self.minimize is False else ("comes to", "come to")
        said = "more" if self.lift > 0 else "less"
        who = shortened(self.target)
        other = shortened(self.against) if self.against else "the logging policy"
        if not math.isfinite(self.lift):
            return f"The log does not identify what {who} would have {earned}."
        if self.sure == 1.0:
            return f"The log does not show whether {who} {earns} more or less than {other}, even if all propensities are right."
        if self.minimize:
            other += f", which is {direction(is_above=self.lift > 0, minimize=True)},"
        if math.isinf(self.sure):
            return f"{who} {earns} {said} than {other.rstrip(',')}, however wrong the odds of logged actions are."
        level = breakable(level_of(self.level))
        point = "by no factor" if math.isinf(self.point) else f"by a factor of {self.point:.3g}"
        return (
            f"{who} {earns} {said} than {other} unless odds of logged actions are wrong by a factor of {self.sure:.3g} or more "
            f"({level}; the estimate itself reaches 0 {point})."
        )


@dataclass(frozen=True, eq=False, repr=False)
class Sensitivity(Display):
    """How much the answers about every target depend on the propensities being right; see `sensitivity`."""

    log: LogMoments
    options: IntervalOptions
    targets: tuple[str, ...]
    gammas: tuple[float, ...]
    against: str = ""  # the target that lifts are over; the logging policy, if none is named
    caveats: Mapping[str, Sequence[Caveat]] = field(default_factory=dict)  # what checks of single rows say of a target
    minimize: bool | None = (
        False  # whether less is better; None if nobody said, and the reward's name sounds like a cost
    )
    _known: dict[tuple[str, float, Which, bool], End] = field(default_factory=dict, init=False)

    @property
    def over(self) -> str:
        """What a lift is, in words."""
        return f"difference from {shortened(self.against)}" if self.against else "lift over the logging policy"

    @property
    def n(self) -> int:
        """How many rows there are, not counting those that were dropped."""
        return self.log.n

    @property
    def level(self) -> float:
        """The confidence level of the intervals."""
        return self.options.level

    def bounds(self, gamma: float, target: str | None = None) -> Bounds:
        """What a target's value and lift could be if odds were wrong by a factor of up to `gamma`."""
        _check_gamma(gamma)
        name = known_target(target, self.targets)
        return Bounds(name, float(gamma), *self.span(name, float(gamma), VALUE), *self.span(name, float(gamma), LIFT))

    @property
    def tipping_point(self) -> float:
        """The smallest Γ at which the first target's conclusion, more or less than was logged, could flip, allowing for sampling."""
        return self.tipping().sure

    def tipping(self, target: str | None = None) -> TippingPoint:
        """How wrong odds must be for the conclusion about a target to flip, with and without sampling."""
        name = known_target(target, self.targets)
        lift = self._end(name, 1.0, LIFT, upper=False).value
        sign = 1.0 if lift > 0 else -1.0

        def least(part: str) -> float:
            return _crossing(lambda gamma: sign * getattr(self._end(name, gamma, LIFT, upper=not lift > 0), part))

        if math.isnan(lift):
            return TippingPoint(name, math.nan, math.nan, math.nan, self.level, self.against, self.minimize)
        return TippingPoint(name, lift, least("value"), least("reach"), self.level, self.against, self.minimize)

    def verdict(self, target: str | None = None) -> Verdict:
        """Whether to believe the estimates of a target, if the propensities are right."""
        name, estimated = known_target(target, self.targets), self.log.estimated
        verdict = judge(diagnosis(self._views[name]))
        if estimated is not None and verdict.verdict != "not identified":
            verdict = Verdict((resting_on_model(estimated.model), *verdict.caveats))
        return verdict.with_caveats(self.caveats.get(name, ()))

    def table(self, gamma: Sequence[float] | None = None) -> pl.DataFrame:
        """The bounds of every target at every Γ as a tidy polars frame."""
        return self.cells(gamma).frame()

    def cells(self, gamma: Sequence[float] | None = None) -> Table:
        """The bounds of every target at every Γ."""
        gammas = self.gammas if gamma is None else checked_gammas(gamma)
        rows = [_row(self.bounds(factor, name)) for name in self.targets for factor in gammas]
        return Table(rows, ("target", *TITLES), TITLES)

    def plot(self, target: str | None = None, ax: Axes | None = None) -> Axes:
        """The bounds of a target's lift against Γ, with their interval and the tipping point. Needs the extra ``plot``."""
        return cast("Axes", above().pictures.sensitivity(self, known_target(target, self.targets), ax=ax))

    def document(self) -> dict[str, object]:
        """What `counterpoise sensitivity --json` prints."""
        tips = [self.tipping(name) for name in self.targets]
        points = [{"target": tip.target, "lift": tip.lift, "point": tip.point, "sure": tip.sure} for tip in tips]
        said = {"n": self.n, "level": self.level, "against": self.against or LOGGING, "minimize": self.minimize}
        said |= {"bounds": self.cells().records()}
        return finite(said | {"tipping_points": points, "dropped_rows": self.log.dropped})

    def blocks(self, *, rows: int | None = ROWS) -> Iterator[Block]:
        """The bounds of every target, and how wrong propensities must be for its conclusion to flip."""
        yield self.cells()
        yield ""
        hint = "" if rows is None else " See .table(), .tipping(target), .plot()."
        yield f"{self.n:,} rows; {level_of(self.level)} intervals of the {self.over}.{hint}"
        for name in self.targets:
            verdict = self.verdict(name)
            if verdict.verdict != "ok":
                yield Judged(f"{shortened(name)}: ", verdict.verdict, verdict.reasons)
            yield str(self.tipping(name))

    # -- how it is made ------------------------------------------------------------------------------------------------

    def span(self, name: str, gamma: float, which: Which) -> tuple[tuple[float, float], Interval]:
        """The smallest and the largest of what odds within [1/Γ, Γ] allow, and the interval around both."""
        low, high = (self._end(name, gamma, which, upper=upper) for upper in (False, True))
        limits, method = self._limits[name, which], self.options.method.name
        return (low.value, high.value), Interval(low.reach, high.reach, self.level, method, limits=limits)

    def _end(self, name: str, gamma: float, which: Which, *, upper: bool) -> End:
        """The largest or smallest that odds within [1/Γ, Γ] allow, with the end of its interval."""
        key = (name, gamma, which, upper)
        if key not in self._known:
            value, error = self._extreme(name, gamma, which, upper=upper)
            below, above = self._stretches[name, which]
            self._known[key] = End(value, value + above * error if upper else value - below * error)
        return self._known[key]

    def _extreme(self, name: str, gamma: float, which: Which, *, upper: bool) -> tuple[float, float]:
        """The largest or smallest value or lift, and its error: the delta method's, or the jackknife's if there are clusters.

        The odds are chosen from the same rows, which changes nothing to first order: at an extreme, the value does not move with them.
        """
        bins = self._bins[name]
        groups = bins.moments(bins.extreme(gamma, upper=upper))
        whole = which(groups.merge(axis=0))
        if self.log.cluster is None or not whole.identified:
            return float(whole.value), float(whole.stderr)
        error, _ = jackknife_error(np.asarray(which(groups.others).value), groups.n)
        return float(whole.value), float(error)

    @cached_property
    def _limits(self) -> dict[tuple[str, Which], tuple[float, float]]:
        """What the rewards' bounds leave possible, whatever the propensities are."""
        estimands, bounds = {VALUE: ("value", ""), LIFT: ("lift", self.against)}, self.options.reward_bounds
        return {
            (name, which): limits_of(View(self._views[name].log, (name, other)), estimand, bounds)
            for name in self.targets
            for which, (estimand, other) in estimands.items()
        }

    @cached_property
    def _stretches(self) -> dict[tuple[str, Which], tuple[float, float]]:
        """How many errors the interval reaches to either side: as many as that of `evaluate`, and at Γ = 1 at least as far.

        Estimated propensities have an error of their own, which the interval of `evaluate` includes and the errors here do not.
        """
        return {(name, which): self._stretch(name, which) for name in self.targets for which in (VALUE, LIFT)}

    def _stretch(self, name: str, which: Which) -> tuple[float, float]:
        plain, usual = self._plain(name, which), normal_quantile(self.level)
        lower, upper = plain.endless.interval()
        if math.isnan(plain.value) or not (0.0 < plain.stderr < math.inf and math.isfinite(upper - lower)):
            return usual, usual
        value, error = self._extreme(name, 1.0, which, upper=True)  # the plain log, with right propensities
        below, above = (side / error if error > 0 else 0.0 for side in (value - lower, upper - value))
        return max((plain.value - lower) / plain.stderr, below), max((upper - plain.value) / plain.stderr, above)

    def _plain(self, name: str, which: Which) -> Quantity:
        """What `evaluate` estimates, whose interval reaches as far, in errors."""
        estimator = _LIKE[which]
        return Quantities(self._views[name], {estimator: ESTIMATORS[estimator]}, self.options).at(estimator)

    @cached_property
    def _bins(self) -> dict[str, OddsBins]:
        return {name: OddsBins(self.log, name) for name in self.targets}

    @cached_property
    def _views(self) -> dict[str, View]:
        """The log as `evaluate` sees it, without its bins, for every target."""
        return {name: self._view(name) for name in self.targets}

    def _view(self, name: str) -> View:
        plain = Bins(replace(self.log.ladder[0], estimated=self.log.estimated))
        same = Cut(len(plain), value=0.0, beyond=0.0, slope=1.0)
        return View(plain.reward(same, name), (name, ""))


@dataclass(frozen=True)
class End:
    """A bound, and where its interval ends."""

    value: float
    reach: float


def self_normalized_lift(moments: Moments) -> Estimate:
    r"""The weighted mean of the rewards minus their plain mean, with the error of the difference.

    .. math:: \frac{\sum_i w_i r_i}{\sum_i w_i} - \frac1n \sum_i r_i

    >>> self_normalized_lift(Moments.of(weight=[1.0, 3.0], reward=[0, 1])).value
    0.25
    """
    target = snips(moments)
    known = ~np.isnan(target.value)
    weight = np.where(known, 1.0 + moments.average("u"), 1.0)
    around = moments.recenter(np.where(known, target.value, 0.0))
    row = {"s": 1.0 / weight - 1.0, "us": 1.0 / weight}
    return linear("lift", around, 0.0, row, baseline=target.baseline, identified=known)


Which = Callable[[Moments], Estimate]
VALUE, LIFT = snips, self_normalized_lift
_LIKE: dict[Which, str] = {VALUE: "snips", LIFT: "lift"}


def _crossing(height: Callable[[float], float]) -> float:
    """The smallest Γ at which a falling function is no longer above 0; by bisection of its logarithm."""
    if not height(1.0) > 0.0:
        return 1.0
    low, high = 1.0, 1.5
    while height(high) > 0.0:
        low, high = high, high**2
        if low >= MOST:
            return math.inf
    while high / low > 1.0 + PRECISION:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if height(middle) > 0.0 else (low, middle)
    return high


def checked_gammas(gamma: float | Sequence[float] | Floats) -> tuple[float, ...]:
    """The Γ that a user asked for, in ascending order.

    >>> checked_gammas([2, 1.2]), checked_gammas(1.5)
    ((1.2, 2.0), (1.5,))
    """
    factors = gamma if isinstance(gamma, Sequence | np.ndarray) and not isinstance(gamma, str) else [gamma]
    for factor in factors:
        _check_gamma(factor)
    if not len(factors):
        raise OptionError("`gamma=` is empty: name at least one factor, such as 1.5.")
    return tuple(sorted({float(factor) for factor in factors}))


def _check_gamma(gamma: object) -> None:
    if isinstance(gamma, bool) or not isinstance(gamma, Real) or not 1.0 <= float(gamma) <= MOST:
        raise OptionError(
            f"`gamma={gamma!r}` is not a factor of at least 1 (and at most {MOST:,.0f}).",
            do="1 means that propensities are right, 2 that their odds may be half or twice as large.",
        )


TITLES = {
    "gamma": "Γ",
    "value_from": "value from",
    "value_to": "to",
    "lift_from": "lift from",
    "lift_to": "to",
    "lift_lower": "interval from",
    "lift_upper": "to",
}


def _row(bounds: Bounds) -> dict[str, Cell]:
    error = (
        bounds.lift_interval.width - (bounds.lift[1] - bounds.lift[0])
    ) / 4.0  # an interval reaches about two to either side
    ends = {
        "value_from": bounds.value[0],
        "value_to": bounds.value[1],
        "value_lower": bounds.value_interval.lower,
        "value_upper": bounds.value_interval.upper,
        "lift_from": bounds.lift[0],
        "lift_to": bounds.lift[1],
        "lift_lower": bounds.lift_interval.lower,
        "lift_upper": bounds.lift_interval.upper,
    }
    cells = {name: Number(end, error, is_signed=name.startswith("lift")) for name, end in ends.items()}
    return {"target": Name(bounds.target), "gamma": Worded(bounds.gamma, f"{bounds.gamma:g}"), **cells}


# -- `DifferenceSensitivity`: how far apart two targets could be if the propensities were wrong ------------------------


SAMPLE = 100_000  # rows from which the bins are chosen
BINS, FEWEST, MOST_BINS = 4000, 16, 128  # in all, and those of the share: as many as there is room for
REWARD = "r0"


@dataclass(frozen=True, eq=False, repr=False)
class DifferenceSensitivity(Sensitivity):
    """How much the lead of every target over another, `against`, depends on the propensities being right; see `sensitivity`.

    It reads like a `Sensitivity`; its lifts are over that other target, with the same wrong odds for both.
    """

    pairs: Mapping[str, PairBins] = field(default_factory=dict)
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)

    def verdict(self, target: str | None = None) -> Verdict:
        """Whether to believe a difference, if the propensities are right."""
        return self.verdicts[known_target(target, self.targets)]

    def _extreme(self, name: str, gamma: float, which: Which, *, upper: bool) -> tuple[float, float]:
        pair, mix = self.pairs[name], DIFFERENCE if which is LIFT else OWN_VALUE
        odds = pair.extreme(gamma, mix, upper=upper)
        value = float(pair.value(pair.sums_at(odds), mix))
        if self.log.cluster is None:
            return value, pair.stderr(odds, mix)
        error, _ = jackknife_error(pair.value(pair.others_at(odds), mix), pair.n)
        return value, float(error)

    def _plain(self, name: str, which: Which) -> Quantity:
        if which is VALUE:
            return super()._plain(name, which)
        view, estimators = View(self.log, (name, self.against)), {"beta_ips": DIFFERENCES["beta_ips"]}
        return Quantities(view, estimators, self.options).at("beta_ips")

    def _view(self, name: str) -> View:
        return View(self.log, (name, ""))


def of_comparison(result: Result, question: Question, names: Sequence[str], **fields: Any) -> DifferenceSensitivity:
    """The sensitivity of the differences between some targets and another, from one more pass over the rows of the log."""
    places = {name: question.target_names.index(name) for name in (*names, result.against)}

    def pass_over(batches: Iterator[pl.DataFrame]) -> dict[str, PairBins]:
        sums: dict[str, PairBins] = {}
        grids: dict[str, _Grid] = {}
        for batch in batches:
            if not batch.height:
                continue
            reward, p = (batch.get_column(name).to_numpy() for name in (REWARD, PROPENSITY))
            groups = _groups(batch, question)
            other = batch.get_column(f"t{places[result.against]}").to_numpy()
            for name in names:
                target = batch.get_column(f"t{places[name]}").to_numpy()
                if name not in grids:
                    grids[name] = _Grid.of(reward, target, other)
                grid = grids[name]
                bins, shape = grid.bins(reward, target, other), (len(grid), question.groups)
                more = PairBins.of(bins, groups, reward, p, target, other, shape, grid.center)
                sums[name] = sums[name] + more if name in sums else more
        return sums

    cluster = None if question.log.cluster is None else GROUP
    pairs = over_good_rows(question, pass_over, cluster=cluster)
    verdicts = {name: result.verdict(name) for name in names}
    return DifferenceSensitivity(
        result.moments, targets=tuple(names), against=result.against, pairs=pairs, verdicts=verdicts, **fields
    )


@dataclass(frozen=True)
class _Grid:
    """The bins that rows are put into: by their reward, and by the target's share of the two probabilities, t/(t + t')."""

    rewards: Floats
    shares: Floats
    center: float

    @classmethod
    def of(cls, reward: Floats, target: Floats, other: Floats) -> _Grid:
        """The bins that suit a sample of the rows."""
        some = slice(None, None, max(len(reward) // SAMPLE, 1))
        rewards = np.array(thresholds_of(reward[some]))
        shares = _share(target[some], other[some])
        values = np.unique(shares)
        count = int(np.clip(BINS // (len(rewards) + 1), FEWEST, MOST_BINS))
        if len(values) > count:
            values = np.unique(np.quantile(shares, np.linspace(0.0, 1.0, count)))
        return cls(rewards, (values[1:] + values[:-1]) / 2, float(np.median(reward[some])))

    def __len__(self) -> int:
        return (len(self.rewards) + 1) * (len(self.shares) + 1)

    def bins(self, reward: Floats, target: Floats, other: Floats) -> NDArray[np.int64]:
        """The bin of every row."""
        share = np.searchsorted(self.shares, _share(target, other))
        return np.asarray(np.searchsorted(self.rewards, reward) * (len(self.shares) + 1) + share)


def _share(target: Floats, other: Floats) -> Floats:
    both = target + other
    return np.asarray(np.divide(target, both, out=np.full(len(both), 0.5), where=both > 0))


def _groups(batch: pl.DataFrame, question: Question) -> NDArray[np.int64]:
    if question.log.cluster is None:
        return np.zeros(batch.height, dtype=np.int64)
    ids = nw.from_native(batch.select(GROUP), eager_only=True)
    groups: NDArray[np.int64] = (
        with_groups(ids, question.groups).to_native().get_column(GROUP).cast(pl.Int64).to_numpy()
    )
    return groups


# -- Of a result, and of a question ----------------------------------------------------------------------------------------------


def of_result(
    result: Result, gamma: float | Sequence[float], target: str | Sequence[str] | None, progress: bool | None
) -> Sensitivity:
    """The sensitivity of a result, whose log is read once more; a reward model, controls and a baseline are left out."""
    gammas, question = checked_gammas(gamma), result.asked()
    if result.earlier_rows:
        raise OptionError(
            f"sensitivity looks at rows again, and {result.earlier_rows:,} of the {result.n:,} rows come from earlier logs, of which the "
            "state keeps only sums.",
            do="Evaluate all logs at once, without `state=`.",
        )
    known = result.targets if is_of_two(result) else question.target_names
    chosen = known if target is None else (target,) if isinstance(target, str) else tuple(target)
    unknown = [name for name in chosen if name not in known]
    if unknown or not chosen:
        raise OptionError(f"no target {unknown[0] if unknown else ''!r}; choose from {', '.join(map(repr, known))}.")
    plain = question.slim("cluster", "key", "segment")
    log = plain.log.but(reward_bounds=result.reward_bounds, max_segments=None)  # it is about the whole log
    lean_question = replace(plain, log=log, smoothings=())
    if is_of_two(result):
        check_plain(lean_question)
        options = _options(lean_question, result.level)
        return of_comparison(result, lean_question, chosen, options=options, gammas=gammas, minimize=result.minimize)
    targets = tuple(policy for policy in question.targets if policy.name in chosen)
    made = of_question(replace(lean_question, targets=targets, contrasts=()), gammas, result.level, progress)
    return replace(made, minimize=result.minimize)


def is_of_two(result: Result) -> bool:
    """Whether a result is the difference between two targets, not one from the logging policy."""
    return result.against not in ("", LOGGING)


def of_question(
    question: Question, gammas: tuple[float, ...], level: float, progress: bool | None = None
) -> Sensitivity:
    """The sensitivity of what was asked of a log, which is read once more."""
    check_plain(question)
    options = _options(question, level)
    look = first_look(question)
    bins = bin_sql(look.sql, thresholds_of(look.rewards))
    own = tuple((name, "") for name in question.target_names)
    binned = replace(question, weight=AllOdds(), contrasts=own, segment=(bins,), is_binned=True, smoothings=())
    answer = read(binned, Stored(), progress)
    (moments,) = answer.moments
    if answer.question is not None:  # with its models fitted: the errors are those of the whole log
        whole = replace(answer.question, weight=question.weight, segment=(), is_binned=False)
        (moments,) = with_errors(whole, (moments,))
    caveats = missing_by_target(question, answer)
    minimize = is_minimized(question.log.minimize, question.log.reward[0])
    return Sensitivity(moments, options, question.target_names, gammas, caveats=caveats, minimize=minimize)


def _options(question: Question, level: float) -> IntervalOptions:
    log = question.log
    is_clustered = log.cluster is not None
    (options,) = options_of(None, level, log.reward, is_clustered=is_clustered, reward_bounds=log.reward_bounds)
    return options


def check_plain(question: Question) -> None:
    need_only(question.log, "sensitivity")
    if not isinstance(question.weight, Importance):
        raise OptionError(
            f"sensitivity is about propensities, and so about the plain weight target / propensity; found {question.weight!r}."
        )
