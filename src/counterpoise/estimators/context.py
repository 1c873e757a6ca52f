"""`context_ips`: β-IPS with a baseline that depends on the context."""

from __future__ import annotations

from typing import Any

import numpy as np

from counterpoise.errors import Argument, OptionError
from counterpoise.estimators.constant import from_mean_reward, has_overlap
from counterpoise.estimators.estimate import Estimate, Fit, fit, linear
from counterpoise.moments import Moments


def context_ips(moments: Moments) -> Estimate:
    r"""β-IPS whose baseline depends on the context, by the columns named in `baseline=`.

    .. math:: \hat V = \frac1n \sum_i \left[ w_i r_i - u_i \beta(x_i) \right], \qquad
        \beta(x) = \beta + \theta \cdot (\varphi(x) - \bar\varphi)

    Every u·φ(x) has mean 0 whatever the context does, so any fixed θ is unbiased, and no model of the actions is needed. θ is a ridge
    fit on the scatter, whose penalty comes from the same sums; where the context explains no more than noise would, θ = 0 and this is
    `beta_ips`. Fitting costs a bias of order 1/n, which `cross_fit` removes. The baseline holds β, which is that of `beta_ips`, and θ.

    Examples
    --------
    Rewards that follow the context are estimated far more closely than by a constant:

    >>> from counterpoise.estimators import beta_ips
    >>> g = np.random.default_rng(0)
    >>> age, w = g.normal(size=1000), g.choice([0.2, 1.8], 1000)
    >>> log = Moments.of(w, 2.0 * age + 0.1 * g.normal(size=1000), features={"age": age})
    >>> context_ips(log).stderr < 0.85 * beta_ips(log).stderr
    True

    References
    ----------
    Control variates as regression: Glynn & Szechtman (2002); with θ = 0, eq. `optimal_offpolicy_beta` of Gupta et al. (2024).
    """
    check_context(moments)
    around = from_mean_reward(moments)
    regression = context_fit(around, "s", "us")
    return estimate_from(regression, "context_ips", around, around.center, has_overlap(moments))


def context_fit(moments: Moments, *response: str) -> Fit:
    """The sum of some columns less its context baseline."""
    form = np.isin(moments.columns, response).astype(np.float64)
    u = (np.asarray(moments.columns) == "u").astype(np.float64)
    return fit(moments, u[None], form)


def estimate_from(regression: Fit, name: str, moments: Moments, intercept: Any, identified: Any) -> Estimate:
    """The estimate of what a fit leaves; its baseline is the constant of `beta_ips`, a model's share, and the context's coefficients."""
    constant, *shares = np.moveaxis(regression.fixed, -1, 0)
    baseline = (moments.center + constant, *shares, *np.moveaxis(regression.context, -1, 0))
    return linear(
        name,
        moments,
        intercept,
        regression.rest,
        baseline=baseline,
        identified=identified,
        fitted=1 + len(shares),
        widening=regression.widening,
    )


def check_context(moments: Moments) -> None:
    """The columns of a context baseline are there."""
    if not moments.context:
        raise OptionError(
            "this estimator needs a baseline that depends on the context.",
            do=["Pass ", Argument("baseline"), ", the columns that rewards may depend on."],
        )
