"""Moments in, estimates out: small functions, and the one registry that lists them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from counterpoise.estimators.auto import auto, auto_without
from counterpoise.estimators.estimate import Estimate, estimate_of, gradient, linear, unstack
from counterpoise.estimators.model import difference_dr, dm, dr, optimal_dr, sndr
from counterpoise.estimators.weighted import (
    beta_ips,
    constant_dr,
    context_difference,
    context_ips,
    cross_fit,
    cross_fit_without,
    difference,
    ips,
    lift,
    snips,
)
from counterpoise.log.kinds import reduced
from counterpoise.moments import Floats, Moments


@dataclass(frozen=True)
class Estimator:
    """An entry in the registry: the function, what it estimates, and what it needs beyond weights and rewards.

    Add your own with ``ESTIMATORS["mine"] = Estimator(mine)``, where ``mine`` is a function from moments, or a stack of them, to an
    `Estimate`; `linear` makes one for you.
    """

    function: Callable[..., Estimate]
    estimand: Literal["value", "lift"] = "value"
    needs: Literal["", "model", "groups", "context"] = ""
    replicates: Callable[[Moments], Floats] | None = None
    follows_rewards: bool = True  # a constant added to every reward is added to the value
    uses_rewards: bool = True  # those of the log; a model that answers alone is not judged by the log's weights

    def __call__(self, moments: Moments) -> Estimate:
        return self.function(moments)

    @property
    def is_difference(self) -> bool:
        """Whether it estimates a difference between two policies, for which 0 is the mark, and not a value."""
        return self.estimand == "lift"

    @property
    def about(self) -> str:
        """The first line of the function's docstring."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]

    def without_each(self, groups: Moments) -> Floats:
        """The value without each of the groups (the last axis): what a delete-group jackknife looks at."""
        if self.replicates:
            return self.replicates(groups)
        if self.needs != "groups":
            return np.asarray(self.function(reduced(groups.others)).value)
        size = groups.shape[-1]
        others = ([j for j in range(size) if j != k] for k in range(size))
        return np.stack([np.asarray(self.function(groups[..., rest]).value) for rest in others], axis=-1)


def above_logging(estimator: Estimator) -> Estimator:
    r"""An estimator of values less the mean reward: the lift that belongs to it, with the error of the pair, from the same sums.

    .. math:: \operatorname{Var}(\hat V - \bar r) = \operatorname{Var}(\hat V) + \operatorname{Var}(\bar r) -
        2 \operatorname{Cov}(\hat V, \bar r)

    The covariance is that of the delta method, with the slopes of the value.

    >>> log = Moments.of(weight=[0.5, 2.0, 1.5], reward=[0, 1, 4])
    >>> mine, known = above_logging(ESTIMATORS["ips"])(log), lift(log, baseline=0.0)
    >>> round(mine.value - known.value, 9), round(mine.stderr / known.stderr, 9)
    (0.0, 1.0)
    """

    def function(moments: Moments) -> Estimate:
        is_by_groups = estimator.needs == "groups"
        made, rows = estimator(moments), moments.merge(axis=len(moments.shape) - 1) if is_by_groups else moments
        s, n = rows.columns.index("s"), np.maximum(np.asarray(rows.n), 1)
        own, spread = np.square(np.asarray(made.stderr) * n), rows.scatter[..., s, s]
        square = own + spread - 2.0 * (gradient(estimator, moments) * rows.scatter[..., s]).sum(axis=-1)
        root = np.sqrt(np.where(square > 1e-10 * (own + spread), square, 0.0))  # a smaller one is rounding
        value = np.asarray(made.value) - rows.center - rows.average("s")
        return estimate_of("lift", value, root, made.n, baseline=made.baseline)

    def without(groups: Moments) -> Floats:
        others = reduced(groups.others)
        return np.asarray(estimator.without_each(groups) - others.center - others.average("s"))

    return replace(estimator, function=function, estimand="lift", replicates=without)


ESTIMATORS: dict[str, Estimator] = {
    "ips": Estimator(ips, follows_rewards=False),
    "snips": Estimator(snips),
    "beta_ips": Estimator(beta_ips),
    "context_ips": Estimator(context_ips, needs="context"),
    "cross_fit": Estimator(cross_fit, needs="groups", replicates=cross_fit_without),
    "dm": Estimator(dm, needs="model", uses_rewards=False),
    "dr": Estimator(dr, needs="model"),
    "constant_dr": Estimator(constant_dr),
    "sndr": Estimator(sndr, needs="model"),
    "optimal_dr": Estimator(optimal_dr),
    "auto": Estimator(auto, needs="model", replicates=auto_without),
    "lift": Estimator(lift, estimand="lift"),
}

# The same family for the difference of two targets, where u is the difference of their weights.
DIFFERENCES: dict[str, Estimator] = {
    "ips": Estimator(partial(difference, baseline=0.0), estimand="lift", follows_rewards=False),
    "beta_ips": Estimator(difference, estimand="lift"),
    "context_ips": Estimator(context_difference, estimand="lift", needs="context"),
    "optimal_dr": Estimator(difference_dr, estimand="lift", needs="model", follows_rewards=False),
}

__all__ = [
    "DIFFERENCES",
    "ESTIMATORS",
    "Estimate",
    "Estimator",
    "above_logging",
    "auto",
    "beta_ips",
    "constant_dr",
    "context_difference",
    "context_ips",
    "cross_fit",
    "difference",
    "difference_dr",
    "dm",
    "dr",
    "gradient",
    "ips",
    "lift",
    "linear",
    "optimal_dr",
    "sndr",
    "snips",
    "unstack",
]
