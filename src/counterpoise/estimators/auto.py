"""`auto`: the reward model where the log is thin, the unbiased estimators where it is not, and a smooth way between them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from counterpoise.estimators.estimate import Estimate, estimate_of
from counterpoise.estimators.model import OptimalRows, check_model, dm, optimal_rows
from counterpoise.estimators.weighted import has_overlap, optimal_baseline
from counterpoise.log.kinds import reduced
from counterpoise.moments import Floats, Moments

# All four by simulation on worlds and models of many kinds, where half or twice as much makes little difference: benchmarks/models.py auto.
TRUSTED = 30.0  # effective rows at which the fitted coefficients of the model count half
ERRORS = 0.1  # squared standard errors that the model may be off; of a normal estimate, the square error grows by 4 % at worst
UNSEEN = 0.5  # rows not seen yet, with rewards as variable as those that were
FEW = 10.0  # effective rows below which errors are themselves unreliable


def auto(moments: Moments) -> Estimate:
    r"""Lean on the model where few rows have weight, and on `optimal_dr` where many do: biased, with bounded regret.

    .. math:: \hat V = (1 - \lambda) \hat V_0 + \lambda \hat V_{DM}, \qquad \lambda = \frac{\tau^2}{\tau^2 + \Delta^2}, \qquad
        \Delta = \hat V_{DM} - \hat V_0

    :math:`\hat V_0` is the mix of `optimal_dr` and `beta_ips` in the ratio of E to 30, where E = (Σw)²/Σw² are the effective
    rows. The squared difference Δ² stands for the squared bias of the model, and τ² for how far off the model could be without
    the log noticing: :math:`\tau^2 = (1 + (10/E)^2) (s^2/10 + \sigma^2/2E^2)`, with s the standard error of Δ and σ² the variance
    of the rewards.

    The value is never further than τ/2 from :math:`\hat V_0`, which is nearly unbiased, so a bad model does bounded harm: in a
    large log, a sixth of a standard error at most. With fewer than about five effective rows, the model decides.

    .. math:: \text{stderr}^2 = s_0^2 + (\hat V - \hat V_0)^2 + \max(1 - \bar w, 0)^2 \sigma^2

    is the squared error of :math:`\hat V_0`, the distance from it, and what the actions may hide that should have come up and did not
    (a mean weight below 1). It is never smaller than that of :math:`\hat V_0`, because no log can show that leaning on a model was
    right. Without overlap the value is the model's, and its error is infinite. The last number of the baseline is λ.

    Examples
    --------
    Three rows with a weight say little, so the model decides. With a thousand times as many, it does not:

    >>> import numpy as np
    >>> w, r = np.array([6.0, 0.0, 3.0, 0.0, 0.0, 0.0, 2.0, 0.0]), np.array([1, 0, 0, 1, 0, 1, 1, 0])
    >>> few = Moments.of(w, r, model_reward=np.full(8, 0.4), model_value=np.full(8, 0.4))
    >>> many = Moments.of(np.tile(w, 1000), np.tile(r, 1000), model_reward=np.full(8000, 0.4), model_value=np.full(8000, 0.4))
    >>> round(auto(few).value, 2), round(auto(many).value, 2)
    (0.44, 0.68)

    References
    ----------
    Combining DM and importance sampling by their estimated errors: Thomas & Brunskill (MAGIC), ICML 2016; choosing among estimators
    with bounded regret: Su, Srinath & Krishnamurthy, ICML 2020; why the interval cannot be shorter than the unbiased one's:
    Armstrong & Kolesár, Econometrica 86 (2018).
    """
    return _lean(moments).estimate


def auto_without(groups: Moments) -> Floats:
    """The value without each of the groups, spread as widely as its error: the jackknife does not see the bias by itself.

    Where the model has most of the weight, leaving out a group moves next to nothing; so the unbiased part is left to move, by the
    factor by which the standard error exceeds its own.
    """
    whole, without = (_lean(reduced(part)) for part in (groups.merge(axis=len(groups.shape) - 1), groups.others))
    own, error = np.asarray(whole.unbiased.stderr), np.asarray(whole.estimate.stderr)
    wider = np.divide(error, own, out=np.ones(own.shape), where=(own > 0) & np.isfinite(own))
    moved = np.asarray(without.unbiased.value) - np.asarray(whole.unbiased.value)[..., None]
    return cast(Floats, np.asarray(whole.estimate.value)[..., None] + wider[..., None] * moved)


@dataclass(frozen=True)
class _Leaning:
    """The estimate, and the unbiased one that it leans away from."""

    estimate: Estimate
    unbiased: Estimate


def _lean(moments: Moments) -> _Leaning:
    check_model(moments)
    known, model = has_overlap(moments), dm(moments)
    weight = np.where(known, 1.0 + moments.average("u"), 1.0)
    square = moments.covariance("u", "u") + np.square(weight)
    rarity = square / (np.maximum(moments.n, 1) * np.square(weight))  # 1/E
    mix = _unbiased_rows(moments, rarity)
    around, baseline = mix.moments, mix.baseline
    unbiased = mix.estimate("auto", identified=known)
    apart = replace(mix, rows=around.form("v") - mix.rows).estimate("auto", identified=known)
    # the rows that should have come up bring the mean weight to 1, and widen the error in proportion
    error = np.square(apart.stderr / np.minimum(weight, 1.0))
    unseen = _variance(around, weight) * np.square(rarity)
    distance = np.asarray(model.value) - unbiased.value
    allowed = (1.0 + np.square(FEW * rarity)) * (ERRORS * error + UNSEEN * unseen)
    odds = np.divide(np.square(distance), allowed, out=np.full(np.shape(distance), np.inf), where=allowed > 0)
    share = np.where(known, 1.0 / (1.0 + odds), 1.0)
    shift = share * np.where(known, distance, 0.0)
    value = np.where(known, unbiased.value + shift, model.value)
    missing = np.maximum(1.0 - weight, 0.0) * np.sqrt(moments.covariance("s", "s"))
    root = np.sqrt(np.square(unbiased.stderr) + np.square(shift) + np.square(missing)) * np.maximum(moments.n, 1)
    return _Leaning(estimate_of("auto", value, root, moments.n, baseline=(*baseline, share)), unbiased)


def _unbiased_rows(moments: Moments, rarity: Floats) -> OptimalRows:
    """The rows of `optimal_dr` and `beta_ips` in the ratio of E to 30, which is ridge on all coefficients but the constant's."""
    best = optimal_rows(moments)
    around, (constant, *others) = best.moments, best.baseline
    beta = optimal_baseline(around, "s", "us")
    plain = around.form("s", "us") - beta[..., None] * around.form("u")
    share = 1.0 / (1.0 + TRUSTED * rarity)
    mixed = share[..., None] * best.rows + (1.0 - share)[..., None] * plain
    first = share * constant + (1.0 - share) * (around.center + beta)
    return replace(best, rows=mixed, baseline=(first, *(share * coefficient for coefficient in others)))


def _variance(moments: Moments, weight: Floats) -> Floats:
    """The variance of the weighted rewards; that of all rewards if it is smaller, or if those with a weight are all the same."""
    everyone = moments.covariance("s", "s")
    first = moments.average("us") / weight  # around the mean reward, where s has mean 0
    second = (everyone + moments.covariance("us", "s")) / weight
    weighted = second - np.square(first)
    return np.where(weighted > 1e-9 * everyone, np.minimum(weighted, everyone), everyone)
