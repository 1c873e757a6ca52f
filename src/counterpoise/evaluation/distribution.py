"""`distribution`: how the reward would be distributed under a target policy, not just what it would be on average."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Real
from typing import TYPE_CHECKING, Unpack, cast

import numpy as np
import polars as pl

from counterpoise.diagnostics import Caveat, Verdict, judge
from counterpoise.display import (
    ROWS,
    Block,
    Cell,
    Display,
    Judged,
    Name,
    Table,
    Worded,
    above,
    breakable,
    cell_text,
    cell_value,
    estimate_cells,
    finite,
    level_of,
    number,
    shortened,
)
from counterpoise.engines.first_look import first_look
from counterpoise.errors import OptionError
from counterpoise.estimators import ESTIMATORS, Estimate
from counterpoise.evaluation.asking import Stored, known_target, question_of, read
from counterpoise.evaluation.choose import choose
from counterpoise.evaluation.estimates import IntervalOptions, diagnosis, estimates, options_of
from counterpoise.evaluation.support import missing_by_target
from counterpoise.evaluation.view import View
from counterpoise.intervals import Interval, Method, check_level
from counterpoise.intervals.method import UNKNOWN, normal_quantile
from counterpoise.log.log import Log, as_log, logged_propensity
from counterpoise.log.parts import Columns, Data, LogFields
from counterpoise.log.question import LOGGING
from counterpoise.log.targets import Targets
from counterpoise.log.verbs import need_only, takes_parts
from counterpoise.moments import Floats, LogMoments
from counterpoise.moments.bins import Bins, Cut, is_below, shortfall, with_unweighted
from counterpoise.moments.spread import Shape, tail_shapes, usual_ends
from counterpoise.weights import Weight

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# -- Thresholds: chosen from a look at the rewards, and the bins between them as SQL -----------------------------------

DISTINCT = 200  # rewards with no more distinct values than this have one threshold each
LIMIT = 1000  # thresholds that may be given

# evenly spaced, and ever closer toward either end, so that extreme quantiles have thresholds, too
_TAILS = 2.0 ** -np.arange(7.5, 17.5, 0.5)
LEVELS = np.concatenate([_TAILS[::-1], np.arange(1, 128) / 128, 1.0 - _TAILS])


def thresholds_of(rewards: Floats) -> tuple[float, ...]:
    """Thresholds that suit a sample of the rewards: every value if there are few, or else about 170 quantiles.

    A value that many rows share also gets a threshold just below it, halfway to the next smaller one in the sample, so that its bin holds
    next to nothing else.

    >>> thresholds_of(np.array([5.0, 1.0, 1.0, 4.0]))
    (1.0, 2.5, 4.0, 4.5, 5.0)
    """
    if not len(rewards):
        return (0.0,)
    values, counts = np.unique(rewards, return_counts=True)
    few = len(values) <= DISTINCT
    chosen = values if few else np.quantile(rewards, LEVELS, method="inverted_cdf")
    shared = np.flatnonzero(counts >= (1 if few else len(rewards) / DISTINCT))
    inner = shared[shared > 0]
    below = values[inner - 1] + (values[inner] - values[inner - 1]) / 2
    return tuple(np.unique(np.concatenate([chosen, values[shared], below])).tolist())


def given_thresholds(thresholds: object) -> tuple[float, ...]:
    """The thresholds that a user gave, in ascending order.

    >>> given_thresholds([3, 1.5])
    (1.5, 3.0)
    """
    try:
        numbers = np.unique(np.asarray(thresholds, dtype=np.float64).ravel())
    except (TypeError, ValueError):
        numbers = np.array([np.nan])
    if not 1 <= len(numbers) <= LIMIT or not np.isfinite(numbers).all():
        raise OptionError(f"`thresholds=` must be 1 to {LIMIT:,} finite numbers, in units of the reward.")
    return cast("tuple[float, ...]", tuple(numbers.tolist()))


def bin_sql(reward: str, thresholds: Sequence[float]) -> str:
    """SQL for the number of thresholds below a reward, as a tree of comparisons: a database needs about eight of them for a row.

    Literals have an exponent, which makes them floats, not decimals, wherever that matters.

    >>> bin_sql('"r"', [0.0, 0.5])
    'CASE WHEN "r" <= 0.5e0 THEN CASE WHEN "r" <= 0.0e0 THEN 0 ELSE 1 END ELSE 2 END'
    """

    def tree(first: int, last: int) -> str:
        if first == last:
            return str(first)
        middle = (first + last) // 2
        digits, _, exponent = repr(float(thresholds[middle])).partition("e")
        literal = f"{digits if '.' in digits else digits + '.0'}e{exponent or 0}"  # older polars cannot read 1e-09
        return f"CASE WHEN {reward} <= {literal} THEN {tree(first, middle)} ELSE {tree(middle + 1, last)} END"

    return tree(0, len(thresholds))


# -- `DistributionFunction`: F on bins, made monotone, with its intervals; and how to read quantiles off it -------------


@dataclass(frozen=True, eq=False)
class DistributionFunction:
    r"""The distribution function F(t) of the rewards under one policy: its estimate and interval at the end of every bin.

    `value`, `lower` and `upper` have one entry more than there are bins: the first is F below the lowest reward. `lowest` and `highest`
    are the rewards at either end of every bin; where they are equal, the bin is a step.

    Estimates at neighboring thresholds need not be in order, so that all three are sorted, which brings them no further from a monotone
    truth (Chernozhukov, Fernández-Val & Galichon, Biometrika 96, 2009), and kept within 0 and 1.
    """

    value: Floats
    lower: Floats
    upper: Floats
    lowest: Floats
    highest: Floats

    @classmethod
    def of(cls, value: Floats, lower: Floats, upper: Floats, lowest: Floats, highest: Floats) -> DistributionFunction:
        """The curve that these estimates make, once they are in order."""
        value, lower, upper = (np.clip(np.sort(each), 0.0, 1.0) for each in (value, lower, upper))
        return cls(value, lower, upper, lowest, highest)

    def bins_below(self, q: float) -> int:
        """How many bins lie wholly below the q-quantile."""
        return self._first(self.value, q)

    def quantile(self, q: float) -> float:
        """The smallest reward t with F(t) ≥ q; within a bin of several rewards, F is taken to rise evenly."""
        return self._reaches(self.value, q)

    def interval(self, q: float, ends: tuple[float, float]) -> tuple[float, float]:
        """Where the quantile lies, given where rewards themselves must lie: the ends of all t at which F(t) may be q.

        Woodruff, "Confidence intervals for medians and other position measures", JASA 47 (1952). The quantile is at least the point
        at which the upper ends of F reach q and at most the one at which the lower ends do, for discrete rewards, too.
        """
        low = self._reaches(self.upper, q) if self.upper[0] < q else ends[0]
        high = self._reaches(self.lower, q) if self.lower[-1] >= q else ends[1]
        return low, high

    def share(self, k: int) -> float:
        """The share of the k-th bin."""
        return float(self.value[k + 1] - self.value[k])

    def _first(self, curve: Floats, q: float) -> int:
        return min(int(np.searchsorted(curve[1:], q, side="left")), len(self.highest) - 1)

    def _reaches(self, curve: Floats, q: float) -> float:
        k = self._first(curve, q)
        low, high, before, after = self.lowest[k], self.highest[k], curve[k], curve[k + 1]
        rise = after - before
        if low == high or not rise > 0:
            return float(high)
        return float(low + (high - low) * min(max((q - before) / rise, 0.0), 1.0))


# -- `Distribution`: quantiles and CVaR of every policy ----------------------------------------------------------------


BETA_IPS = "beta_ips"
TAIL = 6.0  # mean(d⁴)/mean(d²)² of distances d that fall off exponentially
VARIANCE = 0.5  # Pareto k from which on rewards have no variance
OPEN = 0.4  # above which a mean is open on that side: most logs of rewards without a variance show more, benchmarks/verdicts.py tails
COARSE = 0.02  # of the rewards in one bin, if it holds several rewards
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
WORST = (0.1,)


@dataclass(frozen=True)
class Statistic:
    """A quantile, or a CVaR, under one policy: its value, standard error and interval, and whether to believe it."""

    target: str
    name: str
    q: float
    value: float
    stderr: float
    interval: Interval
    verdict: Verdict
    note: str = ""

    def __str__(self) -> str:
        lower, upper = self.interval
        said = f"{self.name} {self.q:g}: {number(self.value, self.stderr)}"
        ends = f"{number(lower, self.stderr)} to {number(upper, self.stderr)}"
        return breakable(f"{said} ({level_of(self.interval.level)}: {ends})")


@dataclass(frozen=True, eq=False, repr=False)
class Distribution(Display):
    """The distribution of the reward under every target, and under the logging policy, ``"logging"``.

    `bins` has the moments of the rows between the `thresholds`, and `tails` how slowly the lowest and the highest rewards fall off, as a
    look at up to 100,000 rows shows it.
    """

    bins: Bins
    thresholds: tuple[float, ...]
    options: IntervalOptions
    targets: tuple[str, ...]
    tails: tuple[Shape, Shape] = (Shape(), Shape())
    caveats: Mapping[str, Sequence[Caveat]] = field(default_factory=dict)  # what checks of single rows say of a target

    @property
    def n(self) -> int:
        """How many rows there are, not counting those that were dropped."""
        return self.bins.log.n

    @property
    def dropped_rows(self) -> int:
        """How many invalid rows were dropped."""
        return self.bins.log.dropped

    @property
    def level(self) -> float:
        """The confidence level of the intervals."""
        return self.options.level

    @property
    def policies(self) -> tuple[str, ...]:
        """The targets, and the logging policy."""
        return tuple(dict.fromkeys((*self.targets, LOGGING)))

    def quantile(self, q: float, target: str | None = None) -> Statistic:
        """The smallest reward that a share q of the rewards does not exceed; the interval inverts those of F (Woodruff 1952)."""
        _check_share("quantile", q, is_one_allowed=False)
        name = known_target(target, self.policies)
        curve = self._curve(name)
        if np.isnan(curve.value).any():
            return self._unknown(name, "quantile", q)
        interval = Interval(*curve.interval(q, self._ends), self.level, self.options.method.name)
        verdict = self._verdict(name, is_below(self._telling(curve, q)))
        value = curve.quantile(q)
        # half the interval's width in units of the normal's: what it says about the standard error
        width = interval.upper - interval.lower
        stderr = width / (2 * normal_quantile(interval.level)) if math.isfinite(width) else math.inf
        return Statistic(name, "quantile", q, value, stderr, interval, verdict, self._note(curve, q))

    def cvar(self, q: float, target: str | None = None) -> Statistic:
        r"""The mean of the worst share q of the rewards, the lowest ones: the conditional value at risk (or expected shortfall).

        .. math:: \text{CVaR}(q) = \max_t \left( t - E_\pi[(t - r)_+] / q \right)

        The maximum is at the q-quantile, so that this is the value of another reward, t − (t − r)₊/q, with the error and interval
        of its β-IPS there. The upper end is that of the whole interval of the quantile, as each t bounds the CVaR from below. If
        large rewards are bad, as with costs, negate them.

        Where the lowest rewards fall off so slowly that they may have no variance (for q = 1, where the highest do, too), no error says how
        far off the mean is: the verdict is ``caution``, and the interval is open on that side if their Pareto k is above 0.4.
        """
        _check_share("cvar", q, is_one_allowed=True)
        name = known_target(target, self.policies)
        curve = self._curve(name)
        if np.isnan(curve.value).any():
            return self._unknown(name, "cvar", q)
        k, at = curve.bins_below(q), curve.quantile(q)
        low, high = curve.interval(q, (-math.inf, math.inf))
        tried = [j for j in range(len(curve.highest)) if j == k or low <= curve.highest[j] <= high]
        # between the quantile and the end of its bin, F rises evenly
        inside = (curve.highest[k] - at) * max(curve.value[k + 1] - q, 0.0) / (2 * q)
        cuts = {j: shortfall(j + 1, float(curve.highest[j]), q) for j in tried}
        means = {j: self._mean(name, cut) for j, cut in cuts.items()}
        best = means[k]
        upper = max(estimate.interval.upper for estimate in means.values())
        interval = replace(best.interval, lower=best.interval.lower + inside, upper=upper + inside, limits=UNKNOWN)
        # if all of the worst rewards equal the lowest one, the quantile may be in doubt
        is_lowest = curve.highest[k] == curve.lowest[0]
        verdict = self._verdict(name, is_below(self._telling(curve, q)) if is_lowest else cuts[k])
        below, above = self.tails if self.options.reward_bounds is None else (Shape(), Shape())
        if below.k > OPEN and not is_lowest:
            interval = replace(interval, lower=-math.inf)
        if above.k > OPEN and q == 1.0:
            interval = replace(interval, upper=math.inf)
        sides = ({} if is_lowest else {"lowest": below}) | ({"highest": above} if q == 1.0 else {})
        verdict = _with_tails(verdict, {side: tail for side, tail in sides.items() if tail.most > VARIANCE})
        return Statistic(name, "cvar", q, best.value + inside, best.stderr, interval, verdict, self._note(curve, q))

    def cdf(self, target: str | None = None) -> pl.DataFrame:
        """F at every threshold, with its interval at each, as a polars frame."""
        curve = self._curve(known_target(target, self.policies))
        labels = np.array([cast(int, label) for (label,) in self.bins.log.segments])
        place = np.searchsorted(labels, np.arange(len(self.thresholds)), side="right")
        columns = {"value": curve.value, "lower": curve.lower, "upper": curve.upper}
        return pl.DataFrame({"threshold": self.thresholds} | {name: column[place] for name, column in columns.items()})

    def statistics(self, quantile: Sequence[float] = QUANTILES, cvar: Sequence[float] = WORST) -> list[Statistic]:
        """These quantiles and CVaRs of every policy."""
        return [
            statistic
            for name in self.policies
            for statistic in (*(self.quantile(q, name) for q in quantile), *(self.cvar(q, name) for q in cvar))
        ]

    def table(self, quantile: Sequence[float] = QUANTILES, cvar: Sequence[float] = WORST) -> pl.DataFrame:
        """These quantiles and CVaRs of every policy as a tidy polars frame."""
        return _table(self.statistics(quantile, cvar)).frame()

    def plot(self, ax: Axes | None = None) -> Axes:
        """The distribution functions of all policies, with their intervals. Needs the extra ``plot``."""
        return cast("Axes", above().pictures.distribution(self, ax=ax))

    def document(self, statistics: Sequence[Statistic] | None = None) -> dict[str, object]:
        """What `counterpoise distribution --json` prints: these statistics, or the usual ones."""
        chosen = self.statistics() if statistics is None else statistics
        rows = [
            row | {"reasons": statistic.verdict.reasons, "note": statistic.note}
            for row, statistic in zip(_table(chosen).records(), chosen, strict=True)
        ]
        numbers = {"n": self.n, "level": self.level, "thresholds": len(self.thresholds)}
        return finite(numbers | {"statistics": rows, "dropped_rows": self.dropped_rows})

    def blocks(self, *, rows: int | None = ROWS, statistics: Sequence[Statistic] | None = None) -> Iterator[Block]:
        """These statistics, or the usual ones, and what is in doubt about them."""
        chosen = self.statistics() if statistics is None else statistics
        yield _table(chosen)
        yield ""
        method, level = self.options.method.name, level_of(self.level)
        hint = "" if rows is None else " See .table(), .cdf(), .plot()."
        yield f"{self.n:,} rows; {level} intervals ({method}); {len(self.thresholds):,} thresholds.{hint}"
        for statistic in chosen:
            where = f"{shortened(statistic.target)}, {statistic.name} {statistic.q:g}: "
            if statistic.verdict.verdict != "ok":
                yield Judged(where, statistic.verdict.verdict, statistic.verdict.reasons)
            if statistic.note:
                yield f"{where}{statistic.note}"

    # -- how it is made ------------------------------------------------------------------------------------------------

    @cached_property
    def _curves(self) -> dict[str, DistributionFunction]:
        return {}  # made when they are first asked for

    def _curve(self, name: str) -> DistributionFunction:
        """The distribution function of a policy."""
        if name not in self._curves:
            places = range(len(self.bins) + 1)
            view = View(self.bins.rewards([is_below(k) for k in places], name), (name, ""))
            options = replace(self.options, reward_bounds=(0.0, 1.0))
            by_place = estimates(view, {BETA_IPS: ESTIMATORS[BETA_IPS]}, options)
            each = [by_place[name, BETA_IPS, (k,)] for k in places]
            value, lower, upper = np.array([(estimate.value, *estimate.interval) for estimate in each]).T
            log = self.bins.log
            self._curves[name] = DistributionFunction.of(value, lower, upper, log.reward_min, log.reward_max)
        return self._curves[name]

    @property
    def _ends(self) -> tuple[float, float]:
        """Where rewards must lie: as the log promises, within 0 and 1 if nothing else was seen, or anywhere."""
        if self.options.reward_bounds is not None:
            return self.options.reward_bounds
        return (0.0, 1.0) if set(self.bins.seen) <= {0.0, 1.0} else (-math.inf, math.inf)

    def _mean(self, name: str, cut: Cut) -> Estimate:
        """The estimate of the mean of another reward; one that can only have a single value needs no estimate."""
        bounds = self._bounds(cut)
        if bounds is not None and bounds[0] == bounds[1]:
            certain = Interval(cut.beyond, cut.beyond, self.level, self.options.method.name)
            return Estimate(BETA_IPS, cut.beyond, 0.0, self.n, cut.beyond, certain)
        options = replace(self.options, reward_bounds=bounds)
        view = Shortfalls(self.bins.reward(cut, name), (name, ""), self._share(name, cut))
        return estimates(view, {BETA_IPS: ESTIMATORS[BETA_IPS]}, options)[name, BETA_IPS, None]

    def _share(self, name: str, cut: Cut) -> float:
        """The share of the rows in the first bins."""
        return float(self._view(name, is_below(cut.bins)).rewards[0].mean(1, 0.0))

    def _bounds(self, cut: Cut) -> tuple[float, float] | None:
        """Where such a reward must lie, if rewards keep within their bounds, or else within what was seen of them."""
        ends = self.bins.seen
        if self.options.reward_bounds is None and ends[0] == ends[1]:
            return None
        low, _ = self.options.reward_bounds or usual_ends(*ends)
        return min(cut.of(float(low)), cut.of(ends[0])), cut.beyond

    def _telling(self, curve: DistributionFunction, q: float) -> int:
        """The number of first bins whose share says most about the quantile: the nearest one that is neither all nor nothing."""
        k, bins = curve.bins_below(q), len(curve.highest)
        near = [j for j in (k, k + 1) if 0 < j < bins] or [k + 1]
        return min(near, key=lambda j: abs(float(curve.value[j]) - q))

    def _verdict(self, name: str, cut: Cut) -> Verdict:
        """The verdict on the mean of a reward."""
        return judge(diagnosis(self._view(name, cut))).with_caveats(self.caveats.get(name, ()))

    def _view(self, name: str, cut: Cut) -> View:
        return View(self.bins.reward(cut, name), (name, ""))

    def _note(self, curve: DistributionFunction, q: float) -> str:
        """What to do about thresholds that are far apart around a quantile."""
        k = curve.bins_below(q)
        if curve.lowest[k] == curve.highest[k] or curve.share(k) <= COARSE:
            return ""
        return (
            f"no threshold between {curve.lowest[k]:.6g} and {curve.highest[k]:.6g}, where {100 * curve.share(k):.2g} % of the rewards "
            "lie: pass thresholds there for more detail."
        )

    def _unknown(self, name: str, what: str, q: float) -> Statistic:
        nowhere = Interval(-math.inf, math.inf, self.level, self.options.method.name)
        verdict = self._verdict(name, is_below(len(self.bins)))
        return Statistic(name, what, q, math.nan, math.inf, nowhere, verdict)


@dataclass(frozen=True, eq=False)
class Shortfalls(View):
    """A log whose rewards are shortfalls, as a CVaR has them; `below` is the share of the rows that have one.

    `carrying_rows` counts rewards of many values as if their tail were that of revenue. The shortfalls of most rewards fall off as fast
    as an exponential distribution does, or faster, and then each of the rows below the threshold counts in full.
    """

    below: float

    @cached_property
    def carrying(self) -> Floats:
        """How many rows carry the CVaR."""
        usual, excess = super().carrying, self.excess
        return np.asarray(np.maximum(np.minimum(2.0 * TAIL * usual, self.below * excess.n / excess.kurtosis), usual))


def _with_tails(verdict: Verdict, heavy: Mapping[str, Shape]) -> Verdict:
    """The verdict on a mean, at most `caution` where rewards may have no variance."""
    if not heavy or verdict.verdict == "not identified":
        return verdict
    (side, tail), *_ = sorted(heavy.items(), key=lambda pair: -pair[1].k)
    text = (
        f"The {side} rewards may fall off too slowly (Pareto k = {tail.k:.2f} ± {tail.error:.2f}) to have a variance, for which k must "
        "be below 0.5; their mean would then be further off than an interval shows."
    )
    do = "Look at quantiles, which need no variance, or pass `reward_bounds=` if rewards are bounded."
    return verdict.with_caveats([Caveat("heavy-tailed-rewards", text, {"k": tail.k, "error": tail.error}, do)])


def _table(statistics: Sequence[Statistic]) -> Table:
    """A row for each; an estimate without an error, such as a quantile of clicks, is written without zeros behind it."""
    rows: list[dict[str, Cell]] = []
    for statistic in statistics:
        cells = estimate_cells(statistic.value, statistic.stderr, statistic.interval)
        if not (statistic.stderr > 0 and math.isfinite(statistic.stderr)):
            cells = {name: Worded(cell_value(cell), _plain(cell_text(cell))) for name, cell in cells.items()}
        said: dict[str, Cell] = {"statistic": statistic.name, "q": Worded(statistic.q, f"{statistic.q:g}")}
        rows.append({"target": Name(statistic.target), **said, **cells, "verdict": statistic.verdict.verdict})
    shown = ("target", "statistic", "q", "value", "lower", "upper", "verdict")
    return Table(rows, shown, {"target": "policy", "statistic": ""})


def _plain(written: str) -> str:
    """A number without zeros behind it.

    >>> _plain("1.000"), _plain("12.50"), _plain("1,200"), _plain("–")
    ('1', '12.5', '1,200', '–')
    """
    return written.rstrip("0").rstrip(".") if "." in written and "e" not in written else written


def _check_share(what: str, q: float, *, is_one_allowed: bool) -> None:
    is_number = isinstance(q, Real) and not isinstance(q, bool)
    if not is_number or not (0.0 < q < 1.0 or (is_one_allowed and q == 1.0)):
        raise OptionError(f"`{what}={q!r}` is not a share of the rewards, strictly between 0 and 1.")


# -- `distribution` itself ---------------------------------------------------------------------------------------------


@takes_parts("distribution")
def distribution(
    log: Log | Data = None,
    *,
    target: Targets = None,
    thresholds: Sequence[float] | None = None,
    weight: Weight | Columns = None,
    interval: str | Method | None = None,
    level: float = 0.95,
    progress: bool | None = None,
    **parts: Unpack[LogFields],
) -> Distribution:
    r"""How the reward would be distributed under the target policies: its quantiles, and the mean of its worst part.

    .. math:: F(t) = E_\pi[1\{r \le t\}], \qquad Q(q) = \min\{t : F(t) \ge q\}, \qquad \text{CVaR}(q) = \frac1q \int_0^q Q

    Every threshold t is another reward, 1{r ≤ t}, and one pass over the log gives the β-IPS of all of them. So this is right
    where the value of `evaluate` is, and wrong where that is wrong: look at the verdicts.

    Parameters
    ----------
    log, target, weight, interval, level, progress
        As for `evaluate`; with one reward, and without a reward model.
    thresholds
        Where to look at F. By default they come from a first look at the rewards of 100,000 rows (evenly spaced ones if the log is in
        memory, the first ones if it is in files, a database or Spark): every value if there are at most 200, about 170 quantiles if
        there are more. Rewards with few values are then treated exactly; between the thresholds of others, F is interpolated.

    Examples
    --------
    >>> import numpy as np
    >>> random = np.random.default_rng(0)
    >>> reward = random.exponential(size=10_000)
    >>> answer = distribution(reward=reward, propensity=np.full(10_000, 0.5), target=np.full(10_000, 0.5))
    >>> median = answer.quantile(0.5)
    >>> bool(abs(median.value - np.median(reward)) < 0.01), np.log(2) in median.interval
    (True, True)

    References
    ----------
    Huang, Leqi, Lipton & Azizzadenesheli, "Off-policy risk assessment in contextual bandits", NeurIPS 2021.
    """
    check_level(level)
    if isinstance(log, LogMoments):
        raise OptionError(
            "a distribution needs the log itself: quantiles cannot be computed from the moments of its rewards."
        )
    own_log = as_log(log, parts)
    own_log.need("reward")
    need_only(own_log, "distribution")
    if own_log.propensity is not None and logged_propensity(own_log) != own_log.propensity:
        raise OptionError(
            "a distribution takes propensities as logged: its errors would not include those of a propensity model.",
            do="Name the column with `propensity=`.",
        )
    chosen = None if thresholds is None else given_thresholds(thresholds)
    is_clustered = own_log.cluster is not None
    (options,) = options_of(
        interval, level, own_log.reward, is_clustered=is_clustered, reward_bounds=own_log.reward_bounds
    )
    question = question_of(own_log, target, weight=weight, wants_groups=options.method.needs_groups)
    choose((BETA_IPS,), question.moment_columns, question.groups, options.method)  # before the log is read
    look = first_look(question)
    at = thresholds_of(look.rewards) if chosen is None else chosen
    binned = replace(question, segment=(bin_sql(look.sql, at),), is_binned=True)
    sums = read(binned, Stored(), progress)
    bins = Bins(with_unweighted(sums.moments[0], LOGGING))
    tails, missing = tail_shapes(look.rewards), missing_by_target(question, sums)
    return Distribution(bins, at, options, question.target_names, tails, missing)
