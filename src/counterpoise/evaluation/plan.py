"""Planning: how many rows a question needs, and what exploring a little would save."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from numbers import Real
from statistics import NormalDist
from typing import Unpack

import polars as pl

from counterpoise.diagnostics import Verdict
from counterpoise.engines.rows import over_good_rows
from counterpoise.errors import OptionError
from counterpoise.evaluation.evaluate import evaluate
from counterpoise.evaluation.result import Result
from counterpoise.log.log import Data, Log, LogFields
from counterpoise.log.names import PROPENSITY
from counterpoise.log.targets import Targets

SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)  # of uniform, mixed into the logging policy


@dataclass(frozen=True)
class Needs:
    """Rows for an interval of the value and of the difference that is ± the difference asked for, and for power to see it."""

    value_rows: float
    difference_rows: float
    power_rows: float


@dataclass(frozen=True)
class Exploration:
    """What mixing a share of uniform into the logging policy would need, and cost in reward per row while it runs."""

    share: float
    needs: Needs
    cost: float


@dataclass(frozen=True)
class Plan:
    """How many rows like those of the log a question needs; infinite where the log does not tell."""

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

    With σ² the variance of a row's contribution (n · stderr² of `beta_ips` for the value, of `lift` for the difference),

    .. math:: n_{\pm D} = \left(\frac{z_{(1 + \text{level})/2}\,\sigma}{D}\right)^2, \qquad
        n_{\text{power}} = \left(\frac{(z_{(1 + \text{level})/2} + z_{\text{power}})\,\sigma}{D}\right)^2.

    With the number of `actions` K it also says what exploring would save. Logging with :math:`\pi_\epsilon = (1 - \epsilon)\pi_0 +
    \epsilon/K` instead changes the variances to what the same log tells by weighting its rows,

    .. math:: \sigma_\epsilon^2 = \min_\beta E_{\pi_0}\left[\frac{\pi^2}{\pi_0 \pi_\epsilon} (r - \beta)^2\right] - (V - \beta)^2,
        \qquad \sigma_{\Delta,\epsilon}^2 =
        \min_\beta E_{\pi_0}\left[\frac{(\pi - \pi_0)^2}{\pi_0 \pi_\epsilon} (r - \beta)^2\right] - \Delta^2,

    where Δ is still the difference from :math:`\pi_0`. Actions that the log never took are not in it: exploring saves more than this
    where the target takes them. With a `cluster` the variances grow by the factor seen in the log.

    Examples
    --------
    >>> log = {"r": [1.0, 0.0, 0.0, 1.0] * 500, "p": [0.5] * 2000, "new": [0.9, 0.1] * 1000}
    >>> found = plan(pl.DataFrame(log), reward="r", propensity="p", target="new", difference=0.01)
    >>> found.needs.power_rows > found.needs.difference_rows
    True
    """
    _check(difference, power, actions)
    asked = ["beta_ips", "lift"]
    result = evaluate(log, target=target, level=level, estimator=asked, **parts)
    if len(result.targets) > 1:
        raise OptionError(f"plan is for one target; found {', '.join(result.targets)}.")
    target = result.targets[0]
    value, lift = result[target, "beta_ips"], result[target, "lift"]
    wish = Wish(difference, level, power)
    explored: tuple[Exploration, ...] = ()
    verdict = result.verdict(target)
    # rewards that never vary show no variance: it is unknown, not 0
    if verdict.verdict == "not identified" or not result.diagnostics(target).effective_rewards > 0:
        needs = Needs(math.inf, math.inf, math.inf)
        return Plan(target, difference, level, power, result.n, value.stderr, lift.stderr, needs, explored, verdict)
    if actions is not None and math.isfinite(value.stderr + lift.stderr):
        alike = _alike(result, evaluate(result.moments, interval="normal", estimator=asked), target)
        means = partial(_means, actions=actions, center=float(value.baseline))  # type: ignore[arg-type]
        seen = over_good_rows(result.asked(), means)
        explored = tuple(_explore(seen, actions, alike, wish))
    needs = wish.needs(result.n * value.stderr**2, result.n * lift.stderr**2)
    return Plan(target, difference, level, power, result.n, value.stderr, lift.stderr, needs, explored, verdict)


@dataclass(frozen=True)
class Wish:
    """A difference to be sure of, and how sure."""

    difference: float
    level: float
    power: float

    def needs(self, value: float, lift: float) -> Needs:
        """Rows, from the variances of a row's contribution to the value and to the difference."""
        z, more = NormalDist().inv_cdf((1 + self.level) / 2), NormalDist().inv_cdf(self.power)
        return Needs(self._rows(z, value), self._rows(z, lift), self._rows(z + more, lift))

    def _rows(self, z: float, variance: float) -> float:
        rows = z * z * variance / self.difference**2
        return float(math.ceil(rows)) if math.isfinite(rows) else math.inf


def _alike(clustered: Result, plain: Result, target: str) -> tuple[float, float]:
    """By how much clusters of rows that are alike raise the variances."""
    pairs = ((clustered[target, name].stderr, plain[target, name].stderr) for name in ("beta_ips", "lift"))
    value, lift = ((one / other) ** 2 if other > 0 else 1.0 for one, other in pairs)
    return value, lift


def _means(batches: Iterator[pl.DataFrame], actions: int, center: float) -> dict[str, float]:
    """One pass over the rows for all shares; weights are those of the formulas, to the powers 0, 1, 2 of the reward.

    Rewards are taken around a center: large ones would lose their digits.
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
    """What the variances would be with every share."""
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
    """A variance that was taken from few rows may come out negative, which tells nothing; rounding below 0 is 0."""
    return max(found, 0.0) if found > -1e-9 * abs(square) else math.nan


def _check_actions(actions: int, mean: float, error: float) -> None:
    """The mean of 1/propensity is the number of actions that the logging policy may take."""
    if actions < mean - 4 * error - 1e-9 * mean:
        raise OptionError(
            f"actions is {actions:,}, but the propensities are those of about {mean:,.0f} actions (the mean of 1/propensity): give the "
            "number of actions that the logging policy chooses from."
        )


def _check(difference: float, power: float, actions: int | None) -> None:
    if isinstance(difference, bool) or not isinstance(difference, Real) or not 0 < difference < math.inf:
        raise OptionError(f"difference must be a positive number, in units of the reward; found {difference!r}.")
    if not (isinstance(power, Real) and 0.0 < power < 1.0):
        raise OptionError(f"power must lie strictly between 0 and 1, found {power!r}.")
    if actions is not None and (isinstance(actions, bool) or not isinstance(actions, int) or actions < 2):
        raise OptionError(f"actions must be a whole number of at least 2, found {actions!r}.")
