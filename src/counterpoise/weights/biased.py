"""Weights that trade bias for variance, with your constant or one that the log chooses; and weights at other odds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, nextafter
from sys import float_info

import numpy as np

from counterpoise.errors import OptionError
from counterpoise.log.good import Values
from counterpoise.weights.weight import Importance, Rungs, Weight, check_constant, least_biased_first

# -- The importance weight, cut off at a constant: less variance, some bias --------------------------------------------


@dataclass(frozen=True)
class Clip(Weight):
    r"""The importance weight, at most `most`.

    .. math:: w = \min\{\pi(a \mid x) / \pi_0(a \mid x),\; c\}

    Its mean falls short of 1 by the weight that was cut off: read the estimate as that of a policy that takes its rarest actions
    less often. The test of the mean weight does not apply.

    >>> float(Clip(10).excess(0.9, 0.01)), float(Clip(10).excess(0.75, 0.5))
    (9.0, 0.5)

    References
    ----------
    Ionides, "Truncated importance sampling", Journal of Computational and Graphical Statistics, 2008.
    """

    most: float
    unbiased_at = inf
    ladder = (1000.0, 500.0, 200.0, 100.0, 50.0, 20.0, 10.0, 5.0, 2.0, 1.0)

    def __post_init__(self) -> None:
        what = "Clip takes the largest weight to keep, a positive number"
        check_constant(self.most, what, float_info.min, inf)

    def weight(self, target: Values, propensity: Values) -> Values:
        """min(w, c)."""
        return _up_to(float(self.most), target / propensity, float(self.most))

    def excess(self, target: Values, propensity: Values) -> Values:
        """min(w, c) − 1."""
        return _up_to(self.most - 1.0, (target - propensity) / propensity, self.most - 1.0)

    def difference(self, target: Values, other: Values, propensity: Values) -> Values:
        """The difference of two cut-off weights."""
        return self.excess(target, propensity) - self.excess(other, propensity)


def _up_to(most: float, values: Values, other: float) -> Values:
    """The values up to `most`, and another in the place of those above it, on any engine or in NumPy."""
    if isinstance(values, float):
        return other if values > most else values
    if isinstance(values, np.ndarray):
        return np.where(values > most, other, values)
    import narwhals as nw

    return nw.when(values > most).then(nw.lit(other)).otherwise(values)


# -- The importance weight, shrunk toward 0 the more the larger it is: less variance, some bias ------------------------


@dataclass(frozen=True)
class Shrink(Weight):
    r"""Optimistic shrinkage of the importance weight.

    .. math:: \hat w = \frac{\lambda w}{w^2 + \lambda}

    Weights far below √λ stay as they are, none exceeds √λ/2, and those far above √λ fall back to 0. The larger the constant λ, the less
    bias; λ = ∞ is the importance weight itself.

    >>> Shrink(100).weight(0.9, 0.09), Shrink(100).excess(0.5, 0.5)  # w = 10 = √λ, and w = 1
    (5.0, -0.009900990099009901)

    References
    ----------
    Su, Dimakopoulou, Krishnamurthy & Dudík, "Doubly robust off-policy evaluation with shrinkage", ICML 2020.
    """

    constant: float
    unbiased_at = inf
    ladder = (1e6, 1e5, 1e4, 3e3, 1e3, 300.0, 100.0, 30.0, 10.0, 3.0)

    def __post_init__(self) -> None:
        check_constant(self.constant, "Shrink takes λ, a positive number", float_info.min, inf)

    def weight(self, target: Values, propensity: Values) -> Values:
        """λw/(w² + λ)."""
        w, constant = target / propensity, float(self.constant)
        return constant * w / (w * w + constant)

    def excess(self, target: Values, propensity: Values) -> Values:
        """λw/(w² + λ) − 1 = (λ(w − 1) − w²)/(w² + λ)."""
        w, constant = target / propensity, float(self.constant)
        return (constant * ((target - propensity) / propensity) - w * w) / (w * w + constant)


# -- The importance weight where it is small, and none where it is large: there a reward model speaks alone ------------


@dataclass(frozen=True)
class Switch(Weight):
    r"""The importance weight up to `most`, and 0 above it.

    .. math:: \hat w = w \cdot 1\{w \le \tau\}

    With a reward model, `dr` is then SWITCH-DR: rows with larger weights do not correct the model, so that the error is bounded and the
    model's bias on such rows stays. Without a model, rows with larger weights are simply lost: prefer `Clip` there.

    >>> Switch(10).weight(0.9, 0.01), Switch(10).excess(0.75, 0.5)
    (0.0, 0.5)

    References
    ----------
    Wang, Agarwal & Dudík, "Optimal and adaptive off-policy evaluation in contextual bandits", ICML 2017.
    """

    most: float
    unbiased_at = inf
    ladder = (1000.0, 500.0, 200.0, 100.0, 50.0, 20.0, 10.0, 5.0, 2.0, 1.0)

    def __post_init__(self) -> None:
        check_constant(self.most, "Switch takes the largest weight to keep, a positive number", float_info.min, inf)

    def weight(self, target: Values, propensity: Values) -> Values:
        """w, or 0."""
        return _up_to(float(self.most), target / propensity, 0.0)

    def excess(self, target: Values, propensity: Values) -> Values:
        """w − 1, or −1."""
        return _up_to(self.most - 1.0, (target - propensity) / propensity, -1.0)


# -- The importance weight, averaged harmonically with 1: less variance, some bias -------------------------------------


@dataclass(frozen=True)
class Harmonic(Weight):
    r"""The λ-harmonic importance weight, whose estimates concentrate like those of bounded (sub-Gaussian) rows.

    .. math:: \hat w = \frac{w}{1 - \lambda + \lambda w}

    The weighted harmonic mean of w and 1; none exceeds 1/λ. The smaller the constant λ, the less bias; λ = 0 is the importance weight
    itself, and λ = 1 (which is not allowed, as 0/0 would be the weight of an action that the target never takes) would be the mean
    logged reward.

    >>> round(Harmonic(0.1).weight(0.9, 0.01), 3), Harmonic(0.1).excess(0.5, 0.5)
    (9.091, 0.0)

    References
    ----------
    Metelli, Russo & Restelli, "Subgaussian and differentiable importance sampling for off-policy evaluation and learning", NeurIPS 2021
    (their s = −1).
    """

    constant: float
    unbiased_at = 0.0
    ladder = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.9)

    def __post_init__(self) -> None:
        check_constant(self.constant, "Harmonic takes λ, a number from 0 to less than 1", 0.0, nextafter(1.0, 0.0))

    def weight(self, target: Values, propensity: Values) -> Values:
        """w/(1 − λ + λw), as one division."""
        return target / self._mean(target, propensity)

    def excess(self, target: Values, propensity: Values) -> Values:
        """ŵ − 1 = (1 − λ)(t − p)/((1 − λ)p + λt), which keeps its digits for weights near 1."""
        return (1.0 - float(self.constant)) * (target - propensity) / self._mean(target, propensity)

    def difference(self, target: Values, other: Values, propensity: Values) -> Values:
        """The difference of two such weights."""
        return self.excess(target, propensity) - self.excess(other, propensity)

    def _mean(self, target: Values, propensity: Values) -> Values:
        """(1 − λ)p + λt: what replaces the propensity."""
        return (1.0 - float(self.constant)) * propensity + float(self.constant) * target


# -- Weights with a larger divisor than the propensity: a power of it, or a constant added to it; less variance, some bias ---


@dataclass(frozen=True)
class ExponentialSmoothing(Weight):
    r"""The target's probability, divided by a power of the propensity.

    .. math:: \hat w = \pi(a \mid x) / \pi_0(a \mid x)^\alpha

    The larger the power α, the less bias; α = 1 is the importance weight itself.

    >>> ExponentialSmoothing(0.5).weight(0.9, 0.01), ExponentialSmoothing(0.5).excess(0.5, 0.25)
    (9.0, 0.0)

    References
    ----------
    Aouali, Brunel, Rohde & Korba, "Exponential smoothing for off-policy learning", ICML 2023.
    """

    power: float
    unbiased_at = 1.0
    ladder = (0.98, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5, 0.25)

    def __post_init__(self) -> None:
        check_constant(self.power, "ExponentialSmoothing takes the power α, a number from 0 to 1", 0.0, 1.0)

    def weight(self, target: Values, propensity: Values) -> Values:
        """π/π₀^α."""
        return target / propensity ** float(self.power)

    def excess(self, target: Values, propensity: Values) -> Values:
        """(π − π₀^α)/π₀^α."""
        divisor = propensity ** float(self.power)
        return (target - divisor) / divisor

    def difference(self, target: Values, other: Values, propensity: Values) -> Values:
        """The difference of two such weights, in one division."""
        return (target - other) / propensity ** float(self.power)


@dataclass(frozen=True)
class ImplicitExploration(Weight):
    r"""The target's probability, divided by the propensity plus a constant, as if the log had explored that much more.

    .. math:: \hat w = \frac{\pi(a \mid x)}{\pi_0(a \mid x) + \gamma}

    No weight exceeds 1/γ. The smaller the constant γ, the less bias; γ = 0 is the importance weight itself.

    >>> round(ImplicitExploration(0.1).weight(0.9, 0.01), 3), round(ImplicitExploration(0.25).excess(0.5, 0.25), 3)
    (8.182, 0.0)

    References
    ----------
    Neu, "Explore no more: improved high-probability regret bounds for non-stochastic bandits", NeurIPS 2015; Gabbianelli, Neu & Papini,
    "Importance-weighted offline learning done right", ALT 2024.
    """

    added: float
    unbiased_at = 0.0
    ladder = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)

    def __post_init__(self) -> None:
        check_constant(self.added, "ImplicitExploration takes γ, a number of at least 0", 0.0, inf)

    def weight(self, target: Values, propensity: Values) -> Values:
        """π/(π₀ + γ)."""
        return target / (propensity + float(self.added))

    def excess(self, target: Values, propensity: Values) -> Values:
        """(π − π₀ − γ)/(π₀ + γ)."""
        return (target - propensity - float(self.added)) / (propensity + float(self.added))

    def difference(self, target: Values, other: Values, propensity: Values) -> Values:
        """The difference of two such weights, in one division."""
        return (target - other) / (propensity + float(self.added))


# -- `Slope`: a weight whose constant the log itself chooses, from a ladder of constants that one pass adds up side by side ---


@dataclass(frozen=True)
class Slope(Rungs):
    """One kind of weight with every constant of a ladder, among which SLOPE chooses: `Slope(Clip)`, `Slope(Shrink, [10, 100, 1000])`.

    The plain importance weight is the first rung, then come the constants from the least biased on. For each target the log
    chooses the rung with the least standard error whose interval (half an error to either side) still meets the intervals of all
    rungs before it, over the whole log: bias is traded for variance as long as it is not larger than the errors.
    `result.ladder()` shows all rungs. It still takes one pass, in which a rung is one more target whose column has already been
    read: with the ten rungs of `Clip`, about three times as long. For each rung only the largest weight is kept, not the tail.
    The constants do not depend on the log, so moments of different days add up.

    Whether it pays depends on the log: if the plain weight is the best of the ladder, the choice adds a little noise.

    Your own kind is a class that makes a weight from a constant; list its constants starting with the least biased.

    >>> from counterpoise.weights import Clip
    >>> Slope(Clip, [1, 100]).rungs
    (Importance(), Clip(most=100.0), Clip(most=1.0))

    References
    ----------
    Su, Srinath & Krishnamurthy, "Adaptive estimator selection for off-policy evaluation", ICML 2020.
    """

    kind: Callable[[float], Weight]
    constants: Sequence[float] | None = None

    def __post_init__(self) -> None:
        kind, constants = self.kind, self.constants
        if not isinstance(kind, type) or not isinstance(kind, Weight):
            raise OptionError(
                f"Slope takes a kind of weight that has a constant, such as counterpoise.weights.Clip; found {kind!r}."
            )
        if constants is None:
            constants = getattr(kind, "ladder", ())
        elif isinstance(constants, str) or not isinstance(constants, Sequence):
            raise OptionError(f"the constants of Slope are a list of numbers, found {constants!r}.")
        if not constants or len(set(constants)) < len(constants):
            raise OptionError(f"Slope needs constants, each of them once; found {list(constants)!r}.")
        for constant in constants:
            kind(constant)  # raises an error for an invalid one
        unbiased_at = getattr(kind, "unbiased_at", None)
        in_order = tuple(map(float, constants)) if unbiased_at is None else least_biased_first(constants, unbiased_at)
        object.__setattr__(self, "constants", in_order)

    @property
    def rungs(self) -> tuple[Weight, ...]:
        """The weights to choose from, the unbiased one first."""
        return (Importance(), *(self.kind(constant) for constant in self.constants or ()))


# -- Weights for propensities that are wrong in their odds: what sensitivity bounds are made from --------------------------


@dataclass(frozen=True)
class Odds(Weight):
    r"""The importance weight if the odds against every logged action were λ times what the propensity says.

    .. math:: w_\lambda = t + \lambda (w - t), \qquad \frac{1 - p^*}{p^*} = \lambda \, \frac{1 - p}{p}

    λ = 1 is the importance weight itself, and λ = 0 the target's probability, as if the logged action had been certain. An action that
    was certain (p = 1) stays so.

    >>> Odds(2.0).weight(0.5, 0.25), Odds(0.0).weight(0.5, 0.25), Odds(2.0).excess(0.5, 1.0)
    (3.5, 0.5, -0.5)

    References
    ----------
    Tan, "A distributional approach for causal inference using propensity scores", JASA 101 (2006).
    """

    times: float

    def __post_init__(self) -> None:
        check_constant(self.times, "Odds takes λ, a number of at least 0", 0.0, inf)

    def weight(self, target: Values, propensity: Values) -> Values:
        """t(1 + λ(1 − p)/p)."""
        return target * (1.0 + float(self.times) * ((1.0 - propensity) / propensity))

    def excess(self, target: Values, propensity: Values) -> Values:
        """(w − 1) + (λ − 1)(w − t), which keeps the digits of weights near 1."""
        more = float(self.times) - 1.0
        return (target - propensity) / propensity + more * (target * ((1.0 - propensity) / propensity))

    def difference(self, target: Values, other: Values, propensity: Values) -> Values:
        """The difference of two such weights, in one division."""
        return self.weight(target - other, propensity)


@dataclass(frozen=True)
class AllOdds(Rungs):
    """Three of these weights side by side; sums of any other follow from theirs, being linear in λ, and sums of squares quadratic.

    >>> AllOdds().rungs
    (Importance(), Odds(times=0.0), Odds(times=2.0))
    """

    @property
    def rungs(self) -> tuple[Weight, ...]:
        """The weights at λ = 1, 0 and 2."""
        return (Importance(), Odds(0.0), Odds(2.0))
