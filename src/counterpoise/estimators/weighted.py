"""The estimators that need only weights and rewards: IPS and its baselines, and the lift over another policy."""

from __future__ import annotations

from dataclasses import replace
from numbers import Real
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from counterpoise.errors import OptionError
from counterpoise.estimators.estimate import ControlFit, Estimate, estimate_of, fit, linear
from counterpoise.moments import Floats, Moments
from counterpoise.moments.columns import EXCESS, LENGTH, MODEL, REWARD
from counterpoise.moments.moments import Stacked, Truth, least_squares

BaselineChoice = float | Literal["optimal", "plug-in"]


def ips(moments: Moments) -> Estimate:
    r"""Inverse propensity scoring: the mean of weight times reward.

    .. math:: \hat V = \frac1n \sum_i w_i r_i

    Unbiased when the propensities are right and the log has overlap. Its error grows as rewards move away from 0; a baseline fixes
    that.

    Examples
    --------
    >>> ips(Moments.of(weight=[0.5, 2.0, 0.5], reward=[3, 3, 3])).value
    3.0
    >>> ips(Moments.of(weight=[0.5, 2.0, 0.5], reward=[3, 3, 3])).stderr > 1
    True

    References
    ----------
    Horvitz & Thompson (1952); the paper's eq. `IPS`.
    """
    return linear(
        "ips",
        moments,
        moments.center,
        {"s": 1.0, "us": 1.0, "u": moments.center},
        baseline=np.zeros(moments.shape),
        identified=has_overlap(moments),
    )


def snips(moments: Moments) -> Estimate:
    r"""Self-normalized IPS: the weighted mean of the rewards.

    .. math:: \hat V = \frac{\sum_i w_i r_i}{\sum_i w_i}

    It stays within the range of the rewards, and works even if you know the propensities only up to a factor. Its bias is of
    order 1/n. It is β-IPS with its own value as the baseline. Lists are self-normalized at each position.

    Examples
    --------
    >>> estimate = snips(Moments.of(weight=[0.5, 2.0, 0.5], reward=[3, 3, 3]))
    >>> estimate.value, estimate.stderr, estimate.baseline
    (3.0, 0.0, 3.0)

    References
    ----------
    Swaminathan & Joachims, NeurIPS 2015.
    """
    if moments.ranks:
        return self_normalized(moments)
    known = has_overlap(moments)
    weight = np.where(known, 1.0 + moments.average("u"), 1.0)
    value = moments.center + (moments.average("s") + moments.average("us")) / weight
    # around its own value the weighted rewards have mean 0: their scatter is that of the delta method
    around = moments.recenter(value)
    return linear("snips", around, value, {"s": 1.0 / weight, "us": 1.0 / weight}, baseline=value, identified=known)


def beta_ips(moments: Moments, *, baseline: BaselineChoice = "optimal") -> Estimate:
    r"""Baseline-corrected IPS: subtract a constant from every reward, add it back once.

    .. math:: \hat V_\beta = \beta + \frac1n \sum_i w_i (r_i - \beta)

    Unbiased for any fixed β because E[w] = 1; β = 0 is IPS. The default β = Cov(wr, w)/Var(w) minimizes the variance. Taken from
    the same log, it costs a bias of order 1/n, which `cross_fit` removes. ``"plug-in"`` is the paper's formula,
    mean((w² − w)r)/mean(w² − w): it has the same limit, but gets into trouble when the target is close to the logging policy.
    Lists with a weight per position have a baseline per position, and the best ones are solved together for the value of the list; those
    of an episode's steps follow what each of them earns.

    Examples
    --------
    If rewards never vary, the estimate is exact, whereas IPS is noisy:

    >>> log = Moments.of(weight=[0.5, 2.0, 0.5], reward=[3, 3, 3])
    >>> beta_ips(log).value, beta_ips(log).stderr
    (3.0, 0.0)

    References
    ----------
    Gupta, Jeunen, Oosterhuis & de Rijke, RecSys 2024, eq. `beta_ips_ope` and `optimal_offpolicy_beta`.
    """
    if baseline == "optimal" and moments.has_steps:
        return shared_baselines("beta_ips", moments, rewards_of_steps(moments), 0.0, has_overlap(moments))
    if baseline == "optimal" and moments.ranks:
        around = from_mean_reward(moments)
        return joint_baselines("beta_ips", around, around.center, ("s", "us"), has_overlap(moments))
    around, beta = around_baseline(moments, baseline)
    return linear(
        "beta_ips",
        around,
        around.center,
        {"s": 1.0, "us": 1.0, "u": around.center - beta},
        baseline=beta,
        identified=has_overlap(moments),
        fitted=int(baseline == "optimal"),
    )


def constant_dr(moments: Moments, *, prediction: BaselineChoice = "optimal") -> Estimate:
    r"""Doubly robust estimation with a model that predicts one number for everything.

    .. math:: \hat V = \frac1n \sum_i \left[ \hat r + w_i (r_i - \hat r) \right]

    The paper's equivalence: this is β-IPS with β = r̂, term by term.

    Examples
    --------
    >>> log = Moments.of(weight=[0.5, 2.0, 1.5], reward=[0, 1, 4])
    >>> constant_dr(log, prediction=2.0).value == beta_ips(log, baseline=2.0).value
    True

    References
    ----------
    Gupta et al., RecSys 2024, eq. `dr_grad_const_rew`.
    """
    return replace(beta_ips(moments, baseline=prediction), name="constant_dr")


def cross_fit(groups: Moments, *, baseline: BaselineChoice = "optimal") -> Estimate:
    r"""β-IPS in which every group of rows takes its baseline from the other groups: exactly unbiased.

    .. math:: \hat V = \frac1n \sum_k \sum_{i \in k} \left[ \beta_{-k} + w_i (r_i - \beta_{-k}) \right]

    Pass a stack of moments whose last axis is the groups. The reported baseline is the average over the rows. Where the moments have the
    columns of a context baseline, β(x) takes the place of β, and the baseline that is reported is its constant.

    Examples
    --------
    >>> half = Moments.of(weight=[0.5, 1.5, 1.0], reward=[1, 1, 1])
    >>> cross_fit(Moments.stack([half, half])).value
    1.0

    References
    ----------
    Cross-fitting as in Chernozhukov et al. (2018), applied to the baseline of Gupta et al. (2024).
    """
    n = np.asarray(groups.n)
    part = _cross_fit_parts(groups, baseline)
    total = n.sum(axis=-1)
    share = n / np.maximum(total, 1)[..., None]
    value = (share * part.value).sum(axis=-1)
    within = np.square(np.where(n > 1, part.stderr, 0.0) * n).sum(axis=-1)
    between = (n * np.square(part.value - value[..., None])).sum(axis=-1)
    known = has_overlap(groups.merge(axis=n.ndim - 1)) & ((n > 0).sum(axis=-1) > 1)
    mean_baseline = (share * part.baseline).sum(axis=-1)
    return estimate_of("cross_fit", value, np.sqrt(within + between), total, baseline=mean_baseline, identified=known)


def cross_fit_without(groups: Moments) -> Floats:
    """The cross-fitted value without each of the groups; the others keep their baselines."""
    n, part = np.asarray(groups.n), _cross_fit_parts(groups, "optimal")
    total, earned = n.sum(axis=-1, keepdims=True), (n * part.value).sum(axis=-1, keepdims=True)
    return cast(Floats, (earned - n * part.value) / np.maximum(total - n, 1))


def _cross_fit_parts(groups: Moments, baseline: BaselineChoice) -> Estimate:
    """The β-IPS of every group with the baseline of the others; 0 for an empty group."""
    others = groups.others
    if baseline == "optimal" and groups.has_steps:
        steps = step_baselines(others, rewards_of_steps(others))[0]
        form = np.zeros(groups.mean.shape) + rewards_of_steps(groups)
        form[..., [groups.columns.index(rank) for rank in groups.ranks]] -= steps
        return _of_members(linear("part", groups, 0.0, form, baseline=steps.sum(axis=-1)), groups)
    around, beta = from_mean_reward(groups), around_baseline(others, baseline)[1]
    rest = np.where(others.n > 0, beta - around.center, 0.0)  # the row is β + w(r − β) = c + s + us − rest·u
    coefficients: dict[str, ArrayLike] = {"s": 1.0, "us": 1.0, "u": -rest}
    if baseline == "optimal" and (groups.context or groups.ranks):
        near = from_mean_reward(others)
        regression = fit(near, controls_of(near), near.form("s", "us"))
        more = (*groups.context, *groups.ranks)
        coefficients |= {name: regression.rest[..., near.columns.index(name)] for name in more}
        own = near.center - regression.rest[..., near.columns.index("u")] - around.center
        coefficients["u"] = -np.where(others.n > 0, own, 0.0)
    part = linear("part", around, around.center, coefficients, baseline=around.center + rest)
    return _of_members(part, groups)


def _of_members(part: Estimate, groups: Moments) -> Estimate:
    values: Any = np.where(np.asarray(groups.n) > 0, part.value, 0.0)  # of a stack
    return replace(part, value=values)


def optimal_baseline(moments: Moments, *columns: str) -> Floats:
    """Cov(Σ columns, u)/Var(u), or 0 if the weights do not vary."""
    variance = moments.covariance("u", "u")
    covariance = sum((moments.covariance("u", column) for column in columns), np.zeros(moments.shape))
    varies = variance > resolution(moments)
    return cast(Floats, np.where(varies, covariance / np.where(varies, variance, 1.0), 0.0))


def resolution(moments: Moments) -> Floats:
    """The variance of the weights below which it is only rounding, and they are all equal."""
    return cast(Floats, np.square(1e-15) + 1e-13 * np.square(moments.average("u")))


def has_overlap(moments: Moments) -> NDArray[np.bool_]:
    """Whether any row has a positive weight; without one the log says nothing about the target."""
    return 1.0 + moments.average("u") > 1e-15


def from_mean_reward(moments: Moments) -> Moments:
    """The moments recentered on the mean reward, so that no answer depends on the provisional center, even in degenerate logs."""
    return moments.recenter(moments.center + moments.average("s"))


def check_baseline(choice: object) -> float:
    """A baseline given as a number."""
    if isinstance(choice, bool) or not isinstance(choice, Real) or not np.isfinite(float(choice)):
        raise OptionError(f'a baseline is "optimal", "plug-in" or a finite number; found {choice!r}.')
    return float(choice)


def around_baseline(moments: Moments, choice: BaselineChoice) -> tuple[Moments, Floats]:
    """The moments recentered on the mean reward, and the chosen baseline."""
    around = from_mean_reward(moments)
    if choice == "optimal":
        return around, cast(Floats, around.center + optimal_baseline(around, "s", "us"))
    if choice == "plug-in":
        u, us = around.average("u"), around.average("us")
        denominator = around.covariance("u", "u") + u * u + u
        numerator = us + around.covariance("u", "us") + u * us
        floor = 1e-11  # as in the paper's experiments
        return around, cast(Floats, (around.center * denominator + numerator) / np.maximum(denominator, floor))
    return around, np.full(moments.shape, check_baseline(choice))


# -- β-IPS with a baseline that depends on the context ------------------------------------------------------------------


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


def context_fit(moments: Moments, *response: str) -> ControlFit:
    """The sum of some columns less its context baseline."""
    return fit(moments, moments.form("u")[None], moments.form(*response))


def estimate_from(
    regression: ControlFit, name: str, moments: Moments, intercept: Stacked, identified: Truth
) -> Estimate:
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
    """Check that the columns of a context baseline are there."""
    if not moments.context:
        raise OptionError(
            "this estimator needs a baseline that depends on the context.",
            do="Pass `baseline=`, the columns that rewards may depend on.",
        )


# -- How much more the target policy earns than the logging policy, or than another target -------------------------------


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
        around = from_mean_reward(moments)
        # where the model leaves e = r − q, the control variate is u(r − e) − (v − r + e)
        controls = np.stack([around.form("u"), around.form("s", "us", e=-1.0, ue=-1.0, v=-1.0)])
        return estimate_from(fit(around, controls, around.form("us")), "lift", around, 0.0, has_overlap(moments))
    if baseline == "optimal" and moments.context:
        around = from_mean_reward(moments)
        return estimate_from(context_fit(around, "us"), "lift", around, 0.0, has_overlap(moments))
    if baseline == "optimal" and moments.has_steps:
        gain = rewards_of_steps(moments) - moments.form("s")
        return shared_baselines("lift", moments, gain, -moments.center, has_overlap(moments))
    if baseline == "optimal" and moments.ranks:
        return joint_baselines("lift", from_mean_reward(moments), 0.0, ("us",), has_overlap(moments))
    return _difference("lift", moments, baseline, has_overlap(moments))


def difference(moments: Moments, *, baseline: BaselineChoice = "optimal") -> Estimate:
    """`lift` over another target: the same formula, with u as the difference of the two weights.

    >>> same = Moments.of(weight=[1.0, 1.0, 1.0], reward=[1, 3, 2])  # two policies that never differ
    >>> difference(same).value, difference(same).stderr
    (0.0, 0.0)
    """
    if baseline == "optimal" and moments.has_steps:
        gain = moments.form("us") + np.asarray(moments.center)[..., None] * moments.form("u")
        return shared_baselines("difference", moments, gain, 0.0, True)
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


def _difference(name: str, moments: Moments, choice: BaselineChoice, identified: Truth) -> Estimate:
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
    baseline, fitted = cast(Floats, around.center + beta), int(choice == "optimal")
    return linear(name, around, 0.0, {"us": 1.0, "u": -beta}, baseline=baseline, identified=identified, fitted=fitted)


# -- Baselines of lists, one for every position, solved together for the value of the list; and of episodes, whose steps share them ---


def controls_of(moments: Moments) -> Floats:
    """The control variates that every log has: u, and the excess at each position of lists, as rows over the columns."""
    # of an episode's steps, few may reach the last, whose coefficients would fit those few
    ranks = () if moments.has_steps else moments.ranks
    return np.eye(len(moments.columns))[[moments.columns.index(name) for name in ("u", *ranks)]]


def joint_baselines(
    name: str, around: Moments, intercept: Stacked, response: tuple[str, ...], identified: Truth
) -> Estimate:
    r"""The value of lists with the baselines of all positions that leave it the least variance together.

    .. math:: \hat V = \frac1n \sum_i \sum_k \left[ w_{ik} r_{ik} - \beta_k (w_{ik} - 1) \right]

    Every w_k − 1 has mean 0, so that any β is unbiased. The best is one least-squares fit of the lists' weighted rewards: since
    positions of a ranking are correlated, it differs from what is best for each position alone, and is never worse for the list.
    """
    form = around.form(*response)
    u, *positions = controls = controls_of(around)
    each = least_squares(around, controls[1:], np.stack([form, u]))
    center = np.asarray(around.center)[..., None]
    rest, left = (
        row - np.einsum("...i,ij->...j", each[..., k], np.stack(positions)) for k, row in enumerate((form, u))
    )
    # u, a mean of the positions' excess, has nothing left, unless days whose lists are of other lengths have other means
    is_left = np.einsum("...i,...ij,...j->...", left, around.scatter, left) > 1e-12 * around.scatter[..., 0, 0]
    rest = rest + np.where(is_left[..., None], center * left, 0.0)
    beta = each[..., 0] + center * each[..., 1]
    return linear(
        name,
        around,
        intercept,
        rest,
        baseline=tuple(np.moveaxis(beta, -1, 0)),
        identified=identified,
        fitted=len(around.ranks),
    )


def shared_baselines(name: str, moments: Moments, response: Floats, intercept: Stacked, identified: Truth) -> Estimate:
    r"""The value of episodes with baselines that all steps share: those of `step_baselines`.

    .. math:: \hat V = \frac1n \sum_i \sum_t \left[ W_{i,1:t} \, r_{it} - \beta_t (W_{i,1:t} - 1) \right]

    Since a weight stays what it is after the end of its episode, Σ βₜ(W₁:ₜ − 1) is Σ bₜ(W₁:ₜ − W₁:ₜ₋₁) over the steps that were reached,
    with bₜ = βₜ + βₜ₊₁ + …, and has mean 0 for any β.
    """
    beta, fitted = step_baselines(moments, response)
    rest = np.zeros(moments.mean.shape) + response
    rest[..., [moments.columns.index(rank) for rank in moments.ranks]] -= beta
    return linear(
        name, moments, intercept, rest, baseline=tuple(np.moveaxis(beta, -1, 0)), identified=identified, fitted=fitted
    )


def step_baselines(moments: Moments, response: Floats) -> tuple[Floats, int]:
    r"""A baseline for every step of episodes from two fitted numbers, βₜ = λ·vₜ + μ, and how many were fitted.

    Here v is what a step earns by `self_normalized`: λ = 0 is `ips` and λ = 1 is `snips`, which are mixed for the least variance. A
    coefficient of its own for every step, as lists have, would fit the few episodes that reach the last ones: on logs of 2,000 episodes
    with up to 20 steps, it had twice the squared error of `ips` (`benchmarks/kinds.py episodes`). Differences of two policies, whose
    moments have no rewards by step, have μ alone.
    """
    place = [moments.columns.index(rank) for rank in moments.ranks]
    shape = np.ones((*moments.shape, 1, len(place)))
    if REWARD + moments.ranks[0].removeprefix(EXCESS) in moments.columns:
        shape = np.concatenate([step_values(moments)[0][..., None, :], shape], axis=-2)
    controls = np.zeros((*shape.shape[:-1], len(moments.columns)))
    controls[..., place] = shape
    fitted = least_squares(moments, controls, np.broadcast_to(response, moments.mean.shape)[..., None, :])[..., 0]
    return np.einsum("...i,...ik->...k", fitted, shape), shape.shape[-2]


def step_values(moments: Moments) -> tuple[Floats, Floats, Truth]:
    """What every position earns, self-normalized, its mean weight, and whether all are known."""
    weight = np.stack([1.0 + moments.average(name) for name in moments.ranks], axis=-1)
    known = (weight > 1e-15).all(axis=-1)
    weight = np.where(weight > 1e-15, weight, 1.0)
    rewards = [moments.average(REWARD + name.removeprefix(EXCESS)) for name in moments.ranks]
    return np.stack(rewards, axis=-1) / weight, weight, known


def rewards_of_steps(moments: Moments) -> Floats:
    """The weighted rewards of all steps together, as a form over the columns."""
    return moments.form(*(REWARD + name.removeprefix(EXCESS) for name in moments.ranks))


def self_normalized(moments: Moments) -> Estimate:
    r"""Every position divided by its own mean weight; a list that ends above a position has the weight of its end and reward 0 there.

    .. math:: \hat V = \sum_k \frac{\sum_i w_{ik} r_{ik}}{\sum_i w_{ik}}
    """
    names = moments.ranks
    rewards = [REWARD + name.removeprefix(EXCESS) for name in names]
    by_rank = step_values(moments)
    (value, weight), known = (np.moveaxis(part, -1, 0) for part in by_rank[:2]), by_rank[2]
    coefficients = dict(zip(rewards, 1.0 / weight, strict=True)) | dict(zip(names, -value / weight, strict=True))
    intercept = (value * (weight - 1.0) / weight).sum(axis=0)
    return linear("snips", moments, intercept, coefficients, baseline=tuple(value), identified=known)


def longer_lists(moments: Moments) -> Estimate:
    r"""By how many positions, to first order, lists would be longer if the target chose; its true value is 0 if lengths were fixed before.

    .. math:: \hat\Delta = \frac1n \sum_i \sum_k (L_i - \beta_k) (w_{ik} - 1)

    The baselines β remove what the weights explain by themselves: nothing is left if all lists have the same length L.
    """
    form, at = moments.form(LENGTH), moments.columns.index(LENGTH)
    u, *positions = controls_of(moments)
    controls = np.stack(positions or [u])
    each = least_squares(moments, controls, form[None])
    rest = form - each[..., 0] @ controls
    square = np.einsum("...i,...ij,...j->...", rest, moments.scatter, rest)
    varies = square > 1e-12 * moments.scatter[..., at, at]
    rest = np.where(varies[..., None], rest, 0.0)
    return linear("longer_lists", moments, 0.0, rest, baseline=())
