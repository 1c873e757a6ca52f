"""Planning: how many rows a question needs, and what exploring a little would save."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from typing import Any, Literal, Unpack, cast

import numpy as np
import polars as pl

from counterpoise.diagnostics import Verdict
from counterpoise.diagnostics.verdict import rows_until_ok
from counterpoise.display import (
    ROWS,
    Block,
    Cell,
    Display,
    Judged,
    Number,
    Share,
    Table,
    level_of,
    sample_of,
    shortened,
)
from counterpoise.engines.rows import over_good_rows
from counterpoise.errors import OptionError, verbatim
from counterpoise.estimators import DIFFERENCES, ESTIMATORS
from counterpoise.evaluation.choose import check_differences, foremost
from counterpoise.evaluation.estimates import IntervalOptions, Quantities, extremes
from counterpoise.evaluation.evaluate import compare, evaluate
from counterpoise.evaluation.result import Comparison, Result
from counterpoise.evaluation.view import View
from counterpoise.intervals import Anytime, Method, strategy
from counterpoise.intervals.quantity import MOST_LEVERAGE, Quantity, variance_range
from counterpoise.log.columns import PROPENSITY
from counterpoise.log.kinds import check_rows
from counterpoise.log.log import Log, as_log
from counterpoise.log.parts import Data, LogFields
from counterpoise.log.targets import Targets
from counterpoise.log.verbs import need_only, takes_parts
from counterpoise.moments import LogMoments, Powers
from counterpoise.moments.spread import ORDERS, carrying_rows, usual_ends, usual_rewards

FEWEST = 3.0  # degrees of freedom of a variance, however few rows carry it
SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)  # of uniform, mixed into the logging policy


@dataclass(frozen=True)
class Needs:
    """How many rows it takes to know the value and the difference to within ± the difference asked for, and to have the power to see it.

    Each comes from a variance that is itself estimated, and its range (low, high) is what the log knows about it, at the level of
    the plan.
    """

    value_rows: float
    difference_rows: float
    power_rows: float
    value_range: tuple[float, float] = (0.0, math.inf)
    difference_range: tuple[float, float] = (0.0, math.inf)
    power_range: tuple[float, float] = (0.0, math.inf)


@dataclass(frozen=True)
class Exploration:
    """How many rows it would take if the logging policy mixed in a share of uniform choice, and the reward per row that would cost.

    Where less is better, that is what it would add to the reward.
    """

    share: float
    needs: Needs
    cost: float


@dataclass(frozen=True, repr=False)
class Plan(Display):
    """How many rows like those of the log a question needs; infinite if the log cannot tell.

    The verdict of `evaluate` is ``ok`` from `ok_rows` on; if that is infinite, something is wrong that more rows would not fix.
    `interval` is the method that was planned with.
    """

    target: str
    difference: float
    level: float
    power: float
    n: int
    value_stderr: float
    difference_stderr: float
    needs: Needs
    exploration: tuple[Exploration, ...]
    verdict: Verdict
    ok_rows: float = math.inf
    interval: str = "student"
    difference_share: float | None = None  # of the logging policy's value, if the difference was given as a share of it
    minimize: bool | None = False  # whether less of the reward is better: the target is then to earn that much less
    rows_before: int | None = None  # sampling, if rows were sampled

    def blocks(self, *, rows: int | None = ROWS) -> Iterator[Block]:
        """How many rows each question needs, with and without exploring, and the verdict."""
        yield f"The log has {sample_of(self.n, 'row', self.rows_before)}."
        if self.difference_share is not None:
            yield f"{100 * self.difference_share:g} % of what the logging policy earned is {self.difference:.4g} per row."
        yield ""
        yield self.cells()
        yield ""
        sure = level_of(self.level)
        yield f"“At least” and “at most” show how well this log determines these numbers ({sure}): their variances are estimates, too."
        yield f"The intervals are those of {self.interval}. {self._verdict_later()}"
        if self.exploration:
            yield ""
            yield "The same three, had the logging policy mixed in a share of uniform choice:"
            rows_of: list[dict[str, Cell]] = [
                {
                    "uniform": Share(mixture.share),
                    "value": _count(mixture.needs.value_rows),
                    "difference": _count(mixture.needs.difference_rows),
                    "power": _count(mixture.needs.power_rows),
                    "cost per row": mixture.cost,
                }
                for mixture in self.exploration
            ]
            yield Table(rows_of)
        yield ""
        yield Judged(f"{shortened(self.target)}: ", self.verdict.verdict, self.verdict.reasons)

    def cells(self) -> Table:
        """The rows that each question needs, and how many more that is."""
        size, sure, needs = f"{self.difference:.4g}", level_of(self.level), self.needs
        if self.difference_share is None:
            size = f"{self.difference:g}"
        questions = (
            (f"the value of {shortened(self.target)} to ± {size} ({sure})", needs.value_rows, needs.value_range),
            (
                f"its difference from the logging policy to ± {size} ({sure})",
                needs.difference_rows,
                needs.difference_range,
            ),
            (
                f"a difference of {'−' if self.minimize else ''}{size}, with {level_of(self.power)} power",
                needs.power_rows,
                needs.power_range,
            ),
        )
        return Table(
            [
                {
                    "to know": what,
                    "rows": _count(rows),
                    "at least": _count(low),
                    "at most": _count(high),
                    "more": _count(max(rows - self.n, 0.0)),
                }
                for what, rows, (low, high) in questions
            ]
        )

    def _verdict_later(self) -> str:
        """What the verdict will be on that many rows."""
        if math.isinf(self.ok_rows):
            return "More rows alone will not make the verdict ok: see below."
        if self.ok_rows <= min(self.needs.value_rows, self.needs.difference_rows, self.needs.power_rows):
            return "On that many rows, expect the verdict ok."
        return f"Expect the verdict to be ok from about {self.ok_rows:,.0f} rows on, and caution on fewer."


def _count(rows: float) -> Number:
    """A number of rows, to the row; none if no number is large enough."""
    return Number(rows if math.isfinite(rows) else None, 10.0)


@takes_parts("plan")
def plan(
    log: Log | Data = None,
    *,
    target: Targets,
    difference: float | str,
    actions: int | None = None,
    interval: str | Method | None = None,
    level: float = 0.95,
    power: float = 0.8,
    **parts: Unpack[LogFields],
) -> Plan:
    r"""How many rows it takes to know a target's value, or its difference from the logging policy, to within `difference`.

    The difference is in units of the reward, or a share of what the logging policy earned, as in ``"5%"``.

    The rows asked for are the fewest at which the `interval` that you will use (as in `evaluate`; by default, Student's) reaches no
    further than `difference` to either side, or leaves 0 with the chance `power` if the target earns `difference` more (with `minimize`,
    less). With σ² the
    variance of a row's contribution (n · stderr² of `beta_ips` for the value and of `lift` for the difference; with a `baseline`, of
    `context_ips` and `lift`; with a `model`, of `optimal_dr` for both, as `evaluate` and `compare` have them), they are the smallest n with

    .. math:: h(n) \le D, \qquad h(n) + t_{\text{power}}\,\sigma/\sqrt n \le D,

    where h is half the interval's width, z·σ/√n for normal intervals. Student's are wider where few rows carry the answer, and the larger
    the log, the more do: E, the clusters and the leverage are those of a log of n rows. In the second, h is that of an unlucky log, which
    has fewer of the rare rewards, and so a smaller variance.

    The log only estimates σ², from the E rows that carry the variance (`carrying_rows`), so that every number comes with a range:
    σ̂²ν/χ² at both ends of the level, with ν = max(3, E) degrees of freedom (at most one less than the
    effective clusters). The t quantile has as many.

    The verdict on a log of that size may not be ``ok`` yet: `ok_rows` says how many rows it takes.

    If you pass the number of `actions` K, it also tells you what exploring would save. Logging with :math:`\pi_\epsilon =
    (1 - \epsilon)\pi_0 + \epsilon/K` instead would change the variances, and by weighting its rows the same log tells us to what:

    .. math:: \sigma_\epsilon^2 = \min_\beta E_{\pi_0}\left[\frac{\pi^2}{\pi_0 \pi_\epsilon} (r - \beta)^2\right] - (V - \beta)^2,
        \qquad \sigma_{\Delta,\epsilon}^2 =
        \min_\beta E_{\pi_0}\left[\frac{(\pi - \pi_0)^2}{\pi_0 \pi_\epsilon} (r - \beta)^2\right] - \Delta^2,

    where Δ is still the difference from :math:`\pi_0`. This leaves out actions that the log never took: if the target takes them,
    exploring saves more than this. With a `cluster`, the variances grow by the factor seen in the log. A model or a baseline is left out
    here: these are the variances with the best constant.

    Examples
    --------
    >>> log = {"r": [1.0, 0.0, 0.0, 1.0] * 500, "p": [0.5] * 2000, "new": [0.9, 0.1] * 1000}
    >>> planned = plan(pl.DataFrame(log), reward="r", propensity="p", target="new", difference=0.01)
    >>> planned.needs.power_rows > planned.needs.difference_rows
    True
    >>> low, high = planned.needs.difference_range
    >>> low < planned.needs.difference_rows < high
    True
    """
    share = _share(difference)
    _check(1.0 if share is not None else difference, power, actions)
    whole = None if isinstance(log, LogMoments) else as_log(log, parts)
    if whole is not None:
        need_only(whole, "plan")
        if actions is not None:
            check_rows(whole, "exploration")
    is_looked_at = isinstance(log, LogMoments) and log.looks > 1
    method = strategy(Anytime() if interval is None and is_looked_at else interval, is_clustered=False)
    check_differences(method)
    best = _best(whole)
    result, paired = _answers(log, target, method, level, best, parts)
    if len(result.targets) > 1:
        raise OptionError(
            f"plan takes one target, found {verbatim(', '.join(result.targets))}.",
            do=f"Choose one with `target={result.targets[0]!r}`.",
        )
    target = result.targets[0]
    value = result[target, best]
    lift = result[target, "lift"] if paired is None else paired.difference
    diagnostics = result.diagnostics(target)
    mean = diagnostics.mean_reward
    if share is not None and not mean > 0:
        raise OptionError(
            f"`difference={difference!r}` is a share of what the logging policy earned, which was {mean:.4g} per row, and that is not "
            "above 0.",
            do="Name the difference in units of the reward: `difference=0.01`.",
        )
    size = float(difference) if share is None else share * mean
    clusters = math.inf if diagnostics.effective_clusters is None else diagnostics.effective_clusters
    freedom = min(max(diagnostics.carrying_rows, FEWEST), max(clusters - 1, 1.0))
    wish = Wish(-size if result.minimize else size, power, freedom)
    verdict = result.verdict(target)
    known = Plan(
        target, size, level, power, result.n, value.stderr, lift.stderr, Needs(math.inf, math.inf, math.inf), (), verdict,
        interval=method.name, difference_share=share, rows_before=result.rows_before, minimize=result.minimize,
    )  # fmt: skip
    # rewards that never vary show no variance: it is unknown, not 0
    if verdict.verdict == "not identified" or not diagnostics.carrying_rows > 0:
        return known
    options, view = IntervalOptions.of(result), View(result.moments, (target, ""))
    values = Quantities(view, {best: ESTIMATORS[best], "lift": ESTIMATORS["lift"]}, options)
    quantities = values.at(best), values.at("lift")
    if paired is not None:
        pair, name = View(result.moments, (target, paired.against)), paired.best
        quantities = values.at(best), Quantities(pair, {name: DIFFERENCES[name]}, options).at(name)
    explored: tuple[Exploration, ...] = ()
    if actions is not None and math.isfinite(value.stderr + lift.stderr):
        plain = evaluate(result.moments, interval="normal", estimator=[best, "lift"])
        pairs = ((result[target, name].stderr, plain[target, name].stderr) for name in (best, "lift"))
        alike = cast("tuple[float, float]", tuple((error / own) ** 2 if own > 0 else 1.0 for error, own in pairs))
        center = float(result[target, "beta_ips"].baseline)  # type: ignore[arg-type]
        means = over_good_rows(result.asked(), partial(_means, actions=actions, center=center))
        low, high = map(float, usual_ends(diagnostics.reward_min, diagnostics.reward_max))
        explored = tuple(_explore(Explored(means, center, (low, high), quantities, alike), actions, wish))
    return replace(
        known, needs=wish.needs(*quantities), exploration=explored, ok_rows=rows_until_ok(diagnostics, verdict)
    )


@dataclass(frozen=True)
class Wish:
    """A difference to be sure of, and the power to see it; it is negative if the target is to earn less.

    `freedom` is how many degrees of freedom the variances have.
    """

    difference: float
    power: float
    freedom: float

    def needs(self, value: Quantity, lift: Quantity) -> Needs:
        """Rows, from what a log says about the value and about the difference."""
        factors, size = (1.0, *variance_range(value.level, self.freedom)), abs(self.difference)

        def rows(quantity: Quantity, difference: float, power: float | None = None) -> list[float]:
            how: Any = {"power": power, "freedom": self.freedom}
            return [quantity.rows_needed(difference, variance=factor, **how) for factor in factors]

        goals = rows(value, size), rows(lift, size), rows(lift, self.difference, self.power)
        (value_rows, *_), (difference_rows, *_), (power_rows, *_) = goals
        return Needs(value_rows, difference_rows, power_rows, *((low, high) for _, low, high in goals))


def _answers(
    log: Log | Data, target: Targets, method: Method, level: float, best: str, parts: LogFields
) -> tuple[Result, Comparison | None]:
    """The values, and with a reward model the difference from the logging policy, which then has an estimate with that model, too."""
    estimators = list(dict.fromkeys([best, "lift", "beta_ips"]))
    if best != "optimal_dr":
        return evaluate(log, target=target, interval=method, level=level, estimator=estimators, **parts), None
    paired = compare(log, target=target, interval=method, level=level, **parts)
    bounds = paired.reward_bounds
    values = evaluate(paired.moments, interval=method, level=level, estimator=estimators, reward_bounds=bounds)
    return replace(values, question=paired.question, reward=paired.reward, minimize=paired.minimize), paired


def _best(log: Log | None) -> str:
    """The estimator of the value: with a reward model, or with a baseline that depends on the context, if the log has either."""
    if log is None:
        return "beta_ips"
    has = {"optimal_dr": log.model is not None or log.model_reward is not None, "context_ips": bool(log.baseline)}
    return foremost(["beta_ips", *(name for name, is_there in has.items() if is_there)], ESTIMATORS)


def _means(batches: Iterator[pl.DataFrame], actions: int, center: float) -> dict[str, float]:
    """One pass over the rows for all shares, with the weights of the formulas times the reward to the powers 0, 1, 2.

    Rewards are taken around a center, because large ones would lose their digits.
    """
    r, p, t = pl.col("r0") - center, pl.col(PROPENSITY), pl.col("t0")
    sums = {"target": r * t / p, "logging": r, "uniform": r / p, "ones": 1 / p, "squares": 1 / (p * p)}
    for k, share in enumerate(SHARES):
        mixed = (1 - share) * p + share / actions
        for power in range(3):
            sums[f"value {k} {power}"] = t * t / (p * mixed) * r**power
            sums[f"lift {k} {power}"] = (t - p) ** 2 / (p * mixed) * r**power
        for name, column in {"weights": t / mixed - 1, "differences": (t - p) / mixed, "rewards": r}.items():
            sums |= {f"{name} {k} {order}": mixed / p * column**order for order in ORDERS}
    wanted = [pl.len().cast(pl.Float64).alias("n"), *(column.sum().alias(name) for name, column in sums.items())]
    total = pl.concat([batch.select(wanted) for batch in batches]).sum().row(0, named=True)
    return {name: total[name] / total["n"] for name in sums} | {"n": total["n"]}


@dataclass(frozen=True)
class Explored:
    """What the rows say about logs of a policy that explores more: `means` over rows, with rewards around a center.

    `quantities` are the value and the difference by the log itself, and `alike` is by how much clusters make their variances grow.
    """

    means: Mapping[str, float]
    center: float
    ends: tuple[float, float]
    quantities: tuple[Quantity, Quantity]
    alike: tuple[float, float]

    def quantity(self, k: int, which: Literal[0, 1], variance: float, baseline: float) -> Quantity:
        """The value or the difference by as many rows of such a log, at the k-th share."""
        known = self.quantities[which].evidence
        excess = self._powers(("weights", "differences")[which], k, 0.0)
        rewards = self._powers("rewards", k, self.center)
        square = excess.mean(2, 0.0)
        heavy = math.sqrt(excess.mean(4, 0.0) / square) if square > 1e-24 else 0.0
        # the difference is between two other policies than the one that explores
        least = None if which == 0 else -heavy
        low, high = map(float, usual_rewards(rewards, self.ends))
        evidence = replace(
            known,
            stderr=math.sqrt(variance * self.alike[which] / known.n),
            carrying=float(carrying_rows(excess, rewards, self.ends)),
            extremes=extremes((low, high), self.center + baseline, least, heavy),
            leverage=0.0 if known.groups else min(float(excess.kurtosis) / known.n, MOST_LEVERAGE),
            spread=(excess, rewards, self.ends),
        )
        return replace(self.quantities[which], evidence=evidence)

    def _powers(self, name: str, k: int, center: float) -> Powers:
        n = int(self.means["n"])
        return Powers(n, center, n * np.array([self.means[f"{name} {k} {order}"] for order in ORDERS]))


def _explore(explored: Explored, actions: int, wish: Wish) -> Iterator[Exploration]:
    """How many rows a log with each share would need."""
    means = explored.means
    # the mean of 1/propensity is the number of actions that the logging policy may take
    mean, error = means["ones"], math.sqrt(max(means["squares"] - means["ones"] ** 2, 0.0) / means["n"])
    if actions < mean - 4 * error - 1e-9 * mean:
        raise OptionError(
            f"`actions={actions!r}` is too few: the propensities are those of about {mean:,.0f} actions (the mean of 1/propensity).",
            do="Give the number of actions that the logging policy chooses from.",
        )
    v = means["target"]
    gap = v - means["logging"]
    for k, share in enumerate(SHARES):
        a, b, c = (means[f"value {k} {power}"] for power in range(3))
        beta = (b - v) / (a - 1) if a > 1 + 1e-12 else 0.0  # where c − 2bβ + aβ² − (V − β)² is least
        value = explored.quantity(k, 0, _variance(c - 2 * b * beta + a * beta**2 - (v - beta) ** 2, c), beta)
        a, b, c = (means[f"lift {k} {power}"] for power in range(3))
        beta = b / a if a > 0 else 0.0
        lift = explored.quantity(k, 1, _variance(c - b * beta - gap**2, c), beta)
        lost = math.copysign(1.0, wish.difference) * (means["logging"] - means["uniform"] / means["ones"])
        yield Exploration(share, wish.needs(value, lift), share * lost)


def _variance(raw: float, square: float) -> float:
    """A variance taken from few rows may come out negative, which tells us nothing; if it is below 0 only by rounding, it is 0."""
    return max(raw, 0.0) if raw > -1e-9 * abs(square) else math.nan


def _share(difference: float | str) -> float | None:
    """A difference given as a share of what the logging policy earned, such as "5%"; None if it is an amount."""
    if not isinstance(difference, str):
        return None
    try:
        share = float(difference.strip().removesuffix("%")) / 100
    except ValueError:
        share = math.nan
    if not difference.strip().endswith("%") or not 0 < share < math.inf:
        raise OptionError(
            f"`difference={difference!r}` is neither a positive number, in units of the reward, nor a share of what the logging policy "
            "earned, such as '5%'."
        )
    return share


def _check(difference: float | str, power: float, actions: int | None) -> None:
    if isinstance(difference, bool) or not isinstance(difference, Real) or not 0 < difference < math.inf:
        raise OptionError(f"`difference={difference!r}` is not a positive number, in units of the reward.")
    if not (isinstance(power, Real) and 0.0 < power < 1.0):
        raise OptionError(f"`power={power!r}` does not lie strictly between 0 and 1.")
    if actions is not None and (isinstance(actions, bool) or not isinstance(actions, int) or actions < 2):
        raise OptionError(f"`actions={actions!r}` is not a whole number of at least 2.")
