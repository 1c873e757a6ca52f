"""`lift`: how much more the target policy earns than the logging policy, or than another target."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np

from counterpoise.estimators.constant import (
    BaselineChoice,
    check_baseline,
    from_mean_reward,
    has_overlap,
    optimal_baseline,
)
from counterpoise.estimators.context import check_context, context_fit, estimate_from
from counterpoise.estimators.estimate import Estimate, fit, linear
from counterpoise.estimators.lists import joint_baselines
from counterpoise.moments import MODEL, Floats, Moments


def lift(moments: Moments, *, baseline: BaselineChoice = "optimal") -> Estimate:
    r"""The target's value minus the logging policy's, with its own optimal baseline.

    .. math:: \hat\Delta = \frac1n \sum_i u_i (r_i - \beta), \qquad \beta = \frac{\mathrm{Cov}(ur, u)}{\mathrm{Var}(u)}

    Unbiased for any fixed β because E[u] = 0. If the policies are alike, its error is far smaller than that of the two values, because
    what they share cancels. Where the moments have the columns of a context baseline, the optimal one depends on the context, as in
    `context_ips`; where they have those of a reward model, uq − (v − q) is a second control variate, as in `difference_dr`, with q for
    the model's reward of the logged action and v for its value of the target. ``"plug-in"`` is mean(u²r)/mean(u²); ``0`` is the
    difference between plain IPS and the mean reward.

    Examples
    --------
    >>> lift(Moments.of(weight=[0.5, 1.5], reward=[1, 3])).value
    0.5

    References
    ----------
    Eq. `optimal_offpolicy_beta` of Gupta et al. (2024), for the weight difference instead of the weight.
    """
    if baseline == "optimal" and set(MODEL) <= set(moments.columns):
        return _with_model(from_mean_reward(moments), has_overlap(moments))
    if baseline == "optimal" and moments.context:
        around = from_mean_reward(moments)
        return estimate_from(context_fit(around, "us"), "lift", around, 0.0, has_overlap(moments))
    if baseline == "optimal" and moments.ranks:
        return joint_baselines("lift", from_mean_reward(moments), 0.0, ("us",), has_overlap(moments))
    return _difference("lift", moments, baseline, has_overlap(moments))


def lift_of_value(moments: Moments) -> Estimate:
    r"""The value of `beta_ips` (with a context baseline, of `context_ips`) less the mean reward: `lift` with the value's baseline.

    .. math:: \hat V_\beta - \bar r = \frac1n \sum_i u_i (r_i - \beta), \qquad \beta = \frac{\mathrm{Cov}(wr, w)}{\mathrm{Var}(w)}

    For weights whose mean is not 1, such as clipped ones: what they leave out is filled in with the baseline, and if the value and the
    lift had one each, the two would contradict each other. `evaluate` and `compare` report it as the lift by such weights.

    >>> from counterpoise.estimators import beta_ips
    >>> log = Moments.of(weight=[0.5, 1.5, 0.4], reward=[1, 3, 2])
    >>> round(lift_of_value(log).value, 9) == round(beta_ips(log).value - 2.0, 9)
    True
    """
    around, known = from_mean_reward(moments), has_overlap(moments)
    if not moments.context:
        return _above_baseline("lift", around, optimal_baseline(around, "s", "us"), known, fitted=1)
    regression = context_fit(around, "s", "us")
    of_reward = np.eye(len(around.columns))[around.columns.index("s")]
    return estimate_from(replace(regression, rest=regression.rest - of_reward), "lift", around, 0.0, known)


def difference(moments: Moments, *, baseline: BaselineChoice = "optimal") -> Estimate:
    """`lift` over another target: the same formula, with u as the difference of the two weights.

    >>> same = Moments.of(weight=[1.0, 1.0, 1.0], reward=[1, 3, 2])  # two policies that never differ
    >>> difference(same).value, difference(same).stderr
    (0.0, 0.0)
    """
    if baseline == "optimal" and moments.ranks:
        return joint_baselines("difference", from_mean_reward(moments), 0.0, ("us",), True)
    return _difference("difference", moments, baseline, True)


def context_difference(moments: Moments) -> Estimate:
    """`difference` with a baseline that depends on the context: u·φ(x) has mean 0 for the difference of two weights, too.

    >>> log = Moments.of(weight=[1.0, 1.0, 1.0], reward=[1, 3, 2], features={"age": [20, 30, 40]})
    >>> context_difference(log).value
    0.0
    """
    check_context(moments)
    around = from_mean_reward(moments)
    return estimate_from(context_fit(around, "us"), "difference", around, 0.0, True)


def _with_model(around: Moments, identified: object) -> Estimate:
    """`lift` with a reward model; where it leaves e = r − q, the control variate is u(r − e) − (v − r + e)."""
    d, at = len(around.columns), around.columns.index
    response, model = np.zeros(d), np.zeros(d)
    response[at("us")] = 1.0
    model[[at(name) for name in ("us", "ue", "v", "s", "e")]] = 1.0, -1.0, -1.0, 1.0, -1.0
    return estimate_from(fit(around, np.stack([np.eye(d)[at("u")], model]), response), "lift", around, 0.0, identified)


def _difference(name: str, moments: Moments, choice: BaselineChoice, identified: object) -> Estimate:
    around = from_mean_reward(moments)
    if choice == "optimal":
        beta = optimal_baseline(around, "us")
    elif choice == "plug-in":
        u = around.average("u")
        square = around.covariance("u", "u") + u * u
        product = around.covariance("u", "us") + u * around.average("us")
        beta = np.divide(product, square, out=np.zeros(np.shape(square)), where=square > 0)
    else:
        beta = check_baseline(choice) - np.asarray(around.center)
    return _above_baseline(name, around, beta, identified, fitted=int(choice == "optimal"))


def _above_baseline(name: str, around: Moments, beta: Floats, identified: object, *, fitted: int) -> Estimate:
    """The mean of u(r − β), with β taken from the center."""
    baseline = cast(Floats, around.center + beta)
    return linear(name, around, 0.0, {"us": 1.0, "u": -beta}, baseline=baseline, identified=identified, fitted=fitted)
