"""Planning: how many rows a question needs, and what exploring a little would save."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from numbers import Real
from statistics import NormalDist
from typing import Literal, Unpack

import polars as pl

from counterpoise.diagnostics import Verdict
from counterpoise.engines.rows import over_good_rows
from counterpoise.errors import Argument, OptionError
from counterpoise.evaluation.evaluate import compare, evaluate
from counterpoise.evaluation.result import Comparison, Result
from counterpoise.log.log import Data, Log, LogFields, as_log
from counterpoise.log.names import PROPENSITY
from counterpoise.log.targets import Targets
from counterpoise.moments import LogMoments

FEWEST = 3.0  # degrees of freedom of a variance, however few rows carry it
SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)  # of uniform, mixed into the logging policy


@dataclass(frozen=True)
class Needs:
    """How many rows it takes to know the value and the difference to ± the difference asked for, and to have the power to see it.

    Each comes from a variance that is itself estimated, and its range (low, high) is what the log knows of it, at the level of the plan.
    """

    value_rows: float
    difference_rows: float
    power_rows: float
    value_range: tuple[float, float] = (0.0, math.inf)
    difference_range: tuple[float, float] = (0.0, math.inf)
    power_range: tuple[float, float] = (0.0, math.inf)


@dataclass(frozen=True)
class Exploration:
    """How many rows it would take if the logging policy mixed in a share of uniform choice, and the reward per row that would cost."""

    share: float
    needs: Needs
    cost: float


@dataclass(frozen=True)
class Plan:
    """How many rows like those of the log a question needs; infinite if the log cannot tell."""

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


def plan(
    log: Log | Data = None,
    *,
    target: Targets,
    difference: float,
    actions: int | None = None,
    level: float = 0.95,
    power: float = 0.8,
    **parts: Unpack[LogFields],
) -> Plan:
    r"""How many rows it takes to know a target's value, or its difference from the logging policy, to within `difference`.

    With σ² the variance of a row's contribution (n · stderr² of `beta_ips` for the value and of `lift` for the difference; with a
    `baseline`, of `context_ips` and `lift`; with a `model`, of `optimal_dr` for both, as `evaluate` and `compare` have them),

    .. math:: n_{\pm D} = \left(\frac{z_{(1 + \text{level})/2}\,\sigma}{D}\right)^2, \qquad
        n_{\text{power}} = \left(\frac{(z_{(1 + \text{level})/2} + z_{\text{power}})\,\sigma}{D}\right)^2.

    The log only estimates σ², from the E rows that carry the variance (`carrying_rows`), so that every number comes with a range:
    σ̂²ν/χ² at both ends of the level, with ν = max(3, E) degrees of freedom (at most one less than the
    effective clusters).

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
    >>> found = plan(pl.DataFrame(log), reward="r", propensity="p", target="new", difference=0.01)
    >>> found.needs.power_rows > found.needs.difference_rows
    True
    >>> low, high = found.needs.difference_range
    >>> low < found.needs.difference_rows < high
    True
    """
    _check(difference, power, actions)
    if not isinstance(log, LogMoments):
        as_log(log, parts).need_only("plan")
    best = _best(log, parts)
    result, paired = _answers(log, target, level, best, parts)
    if len(result.targets) > 1:
        raise one_target(result.targets)
    target = result.targets[0]
    value = result[target, best]
    lift = result[target, "lift"] if paired is None else paired.difference
    seen = result.diagnostics(target)
    clusters = math.inf if seen.effective_clusters is None else seen.effective_clusters
    wish = Wish(difference, level, power, min(max(seen.carrying_rows, FEWEST), max(clusters - 1, 1.0)))
    explored: tuple[Exploration, ...] = ()
    verdict = result.verdict(target)
    # rewards that never vary show no variance: it is unknown, not 0
    if verdict.verdict == "not identified" or not seen.carrying_rows > 0:
        needs = Needs(math.inf, math.inf, math.inf)
        return Plan(target, difference, level, power, result.n, value.stderr, lift.stderr, needs, explored, verdict)
    if actions is not None and math.isfinite(value.stderr + lift.stderr):
        plain = evaluate(result.moments, interval="normal", estimator=[best, "lift"])
        alike = _alike(result, plain, target, (best, "lift"))
        means = partial(_means, actions=actions, center=float(result[target, "beta_ips"].baseline))  # type: ignore[arg-type]
        explored = tuple(_explore(over_good_rows(result.asked(), means), actions, alike, wish))
    needs = wish.needs(result.n * value.stderr**2, result.n * lift.stderr**2)
    return Plan(target, difference, level, power, result.n, value.stderr, lift.stderr, needs, explored, verdict)


@dataclass(frozen=True)
class Wish:
    """A difference to be sure of, and how sure; `freedom` is how many degrees of freedom the variances have."""

    difference: float
    level: float
    power: float
    freedom: float = math.inf

    def needs(self, value: float, lift: float) -> Needs:
        """Rows, from the variances of a row's contribution to the value and to the difference."""
        z, more = NormalDist().inv_cdf((1 + self.level) / 2), NormalDist().inv_cdf(self.power)
        asked = ((z, value), (z, lift), (z + more, lift))
        ranges = [tuple(self._rows(x, variance * factor) for factor in self._factors) for x, variance in asked]
        return Needs(*(self._rows(x, variance) for x, variance in asked), *ranges)  # type: ignore[arg-type]

    @cached_property
    def _factors(self) -> tuple[float, float]:
        """What an estimated variance may be too large and too small by."""
        from scipy.special import chdtri

        if not math.isfinite(self.freedom):
            return 1.0, 1.0
        low, high = (self.freedom / float(chdtri(self.freedom, (1 + side * self.level) / 2)) for side in (-1, 1))
        return low, high

    def _rows(self, z: float, variance: float) -> float:
        rows = z * z * variance / self.difference**2
        return float(math.ceil(rows)) if math.isfinite(rows) else math.inf


def _answers(
    log: Log | Data, target: Targets, level: float, best: str, parts: LogFields
) -> tuple[Result, Comparison | None]:
    """The values, and with a reward model the difference from the logging policy, which then has an estimate with that model, too."""
    estimators = list(dict.fromkeys([best, "lift", "beta_ips"]))
    if best != "optimal_dr":
        return evaluate(log, target=target, level=level, estimator=estimators, **parts), None
    paired = compare(log, target=target, level=level, **parts)
    values = evaluate(paired.moments, level=level, estimator=estimators, reward_bounds=paired.reward_bounds)
    return replace(values, question=paired.question, reward=paired.reward), paired


def _best(log: Log | Data, parts: LogFields) -> str:
    """The estimator of the value: with a reward model, or with a baseline that depends on the context, if the log has either."""

    def has(part: Literal["model", "model_reward", "baseline"]) -> bool:
        return parts.get(part) is not None or (isinstance(log, Log) and bool(getattr(log, part)))

    return "optimal_dr" if has("model") or has("model_reward") else "context_ips" if has("baseline") else "beta_ips"


def _alike(clustered: Result, plain: Result, target: str, names: Sequence[str]) -> tuple[float, float]:
    """By how much the variances grow because rows of the same cluster are alike."""
    pairs = ((clustered[target, name].stderr, plain[target, name].stderr) for name in names)
    value, lift = ((one / other) ** 2 if other > 0 else 1.0 for one, other in pairs)
    return value, lift


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
    wanted = [pl.len().cast(pl.Float64).alias("n"), *(column.sum().alias(name) for name, column in sums.items())]
    total = pl.concat([batch.select(wanted) for batch in batches]).sum().row(0, named=True)
    return {name: total[name] / total["n"] for name in sums} | {"n": total["n"]}


def _explore(seen: Mapping[str, float], actions: int, alike: tuple[float, float], wish: Wish) -> Iterator[Exploration]:
    """What the variances would be for each share."""
    _check_actions(actions, seen["ones"], math.sqrt(max(seen["squares"] - seen["ones"] ** 2, 0.0) / seen["n"]))
    v = seen["target"]
    gap = v - seen["logging"]
    for k, share in enumerate(SHARES):
        a, b, c = (seen[f"value {k} {power}"] for power in range(3))
        beta = (b - v) / (a - 1) if a > 1 + 1e-12 else 0.0  # where c − 2bβ + aβ² − (V − β)² is least
        value = c - 2 * b * beta + a * beta**2 - (v - beta) ** 2
        a, b, c = (seen[f"lift {k} {power}"] for power in range(3))
        lift = c - (b * b / a if a > 0 else 0.0) - gap**2
        needs = wish.needs(_variance(value, c) * alike[0], _variance(lift, c) * alike[1])
        yield Exploration(share, needs, share * (seen["logging"] - seen["uniform"] / seen["ones"]))


def _variance(found: float, square: float) -> float:
    """A variance taken from few rows may come out negative, which tells us nothing; if it is below 0 only by rounding, it is 0."""
    return max(found, 0.0) if found > -1e-9 * abs(square) else math.nan


def _check_actions(actions: int, mean: float, error: float) -> None:
    """The mean of 1/propensity is the number of actions that the logging policy may take."""
    if actions < mean - 4 * error - 1e-9 * mean:
        raise OptionError(
            [
                Argument("actions", actions),
                f" is too few: the propensities are those of about {mean:,.0f} actions (the mean of 1/propensity).",
            ],
            do="Give the number of actions that the logging policy chooses from.",
        )


def one_target(found: Sequence[str]) -> OptionError:
    """The error that a plan was asked for several targets at once."""
    return OptionError(
        f"plan takes one target, found {', '.join(found)}.", do=["Choose one with ", Argument("target", found[0]), "."]
    )


def _check(difference: float, power: float, actions: int | None) -> None:
    if isinstance(difference, bool) or not isinstance(difference, Real) or not 0 < difference < math.inf:
        raise OptionError([Argument("difference", difference), " is not a positive number, in units of the reward."])
    if not (isinstance(power, Real) and 0.0 < power < 1.0):
        raise OptionError([Argument("power", power), " does not lie strictly between 0 and 1."])
    if actions is not None and (isinstance(actions, bool) or not isinstance(actions, int) or actions < 2):
        raise OptionError([Argument("actions", actions), " is not a whole number of at least 2."])
