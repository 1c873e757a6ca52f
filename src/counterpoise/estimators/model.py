"""The estimators that use a reward model, or any other control variates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from counterpoise.errors import OptionError
from counterpoise.estimators.estimate import Estimate, fit, linear
from counterpoise.estimators.weighted import from_mean_reward, has_overlap
from counterpoise.moments import Floats, Moments
from counterpoise.moments.columns import EXCESS, MODEL, OF_WHOLE_LISTS, REWARD, ROW, SQUARE
from counterpoise.moments.moments import Truth


def dm(moments: Moments) -> Estimate:
    r"""The direct method: the model's value of the target policy, averaged over the contexts.

    .. math:: \hat V = \frac1n \sum_i v_i, \qquad v = \sum_a \pi(a \mid x) \hat r(a, x)

    It needs no overlap and has little variance, but it inherits every bias of the model, and its standard error does not show that.

    Examples
    --------
    >>> dm(Moments.of([0.0, 0.0], [1, 0], model_reward=[0.5, 0.5], model_value=[0.25, 0.75])).value
    0.5
    """
    check_model(moments)
    return linear("dm", moments, moments.center, {"v": 1.0}, baseline=())


def dr(moments: Moments) -> Estimate:
    r"""Doubly robust: the direct method, plus IPS on what the model got wrong.

    .. math:: \hat V = \frac1n \sum_i \left[ v_i + w_i (r_i - q_i) \right]

    Unbiased if the propensities or the model are right (and the model was fitted on other rows). A poor model can make it noisier than
    IPS; `optimal_dr` decides from the log how far to trust the model.

    Examples
    --------
    >>> dr(Moments.of([2.0, 0.0], [1, 0], model_reward=[0.5, 0.5], model_value=[0.25, 0.75])).value
    1.0

    References
    ----------
    Dudík, Langford & Li, ICML 2011.
    """
    check_model(moments)
    form = {"v": 1.0, "e": 1.0, "ue": 1.0}
    return linear("dr", moments, moments.center, form, baseline=(0.0, 1.0), identified=has_overlap(moments))


def sndr(moments: Moments) -> Estimate:
    r"""Self-normalized doubly robust: the model's errors are averaged with weights that sum to 1.

    .. math:: \hat V = \frac1n \sum_i v_i + \frac{\sum_i w_i (r_i - q_i)}{\sum_i w_i}

    Examples
    --------
    A model that is wrong by a constant does no harm:

    >>> log = Moments.of([0.5, 2.0], [1, 0], model_reward=[8, 7], model_value=[7.5, 7.5])
    >>> round(sndr(log).value, 12)
    0.5

    References
    ----------
    Thomas & Brunskill, ICML 2016 (the weighted doubly robust estimator).
    """
    check_model(moments)
    known = has_overlap(moments)
    weight = np.where(known, 1.0 + moments.average("u"), 1.0)
    error = (moments.average("e") + moments.average("ue")) / weight
    return linear(
        "sndr",
        moments,
        moments.center + error * moments.average("u") / weight,
        {"v": 1.0, "e": 1.0 / weight, "ue": 1.0 / weight, "u": -error / weight},
        baseline=(error, 1.0),
        identified=known,
    )


def optimal_dr(moments: Moments) -> Estimate:
    r"""The combination of all control variates (the weights, the model, and any others) that has the least variance.

    .. math:: \hat V = \frac1n \sum_i \left[ w_i r_i - b_0 (w_i - 1) - b_1 (w_i q_i - v_i) - \dots \right]

    Every bracket after the first has mean 0, so any b is unbiased; the best one is a least-squares fit on the scatter. b₁ = 0 is
    β-IPS, b₁ = 1 and b₀ = 0 is DR, and as n grows this is never worse than either. Fitting b costs a bias of order 1/n.
    The baseline holds the constant, the model's coefficient, those of any further controls, and those of the context's columns, which
    are fitted last, by ridge, as in `context_ips`.

    Examples
    --------
    >>> log = Moments.of([0.5, 2.0, 0.5, 1.0], [3, 1, 3, 2], model_reward=[3, 1, 3, 2], model_value=[2, 2, 2, 2])
    >>> round(optimal_dr(log).value, 12), optimal_dr(log).stderr < 1e-7
    (2.0, True)

    References
    ----------
    Control variates as regression: Glynn & Szechtman (2002); eq. `optimal_offpolicy_beta` of Gupta et al. (2024) is the case of one.
    """
    return optimal_rows(moments).estimate("optimal_dr", identified=has_overlap(moments))


@dataclass(frozen=True, eq=False)
class OptimalRows:
    """The rows behind `optimal_dr`: the moments around the mean reward, a coefficient per column, and the baseline.

    `fitted` controls were fitted by least squares, and `widening` is what the error takes for the context's.
    """

    moments: Moments
    rows: Floats
    baseline: tuple[Floats, ...]
    fitted: int
    widening: Floats

    def estimate(self, name: str, *, identified: Truth) -> Estimate:
        """The mean of the rows, and its error."""
        return linear(
            name,
            self.moments,
            self.moments.center,
            self.rows,
            baseline=self.baseline,
            identified=identified,
            fitted=self.fitted,
            widening=self.widening,
        )


def optimal_rows(moments: Moments) -> OptimalRows:
    """What least squares, and ridge for the context, leave of the rewards."""
    around = from_mean_reward(moments)
    controls = [around.form("u")]
    has_model = set(MODEL) <= set(around.columns)
    if has_model:
        controls.append(around.form("s", "us", e=-1.0, ue=-1.0, v=-1.0))  # w·q − v, both less the center
    elsewhere = (REWARD, EXCESS) if around.has_steps else REWARD
    further = [
        name
        for name in around.columns
        if name not in (*ROW, *MODEL, SQUARE, *OF_WHOLE_LISTS, *around.context) and not name.startswith(elsewhere)
    ]
    c = np.stack([*controls, *map(around.form, further)])
    regression = fit(around, c, around.form("s", "us"))
    coefficients = regression.fixed
    constant = around.center + coefficients[..., 0]
    if has_model:
        constant = constant - coefficients[..., 1] * around.center
    baseline = (constant, *np.moveaxis(coefficients[..., 1:], -1, 0), *np.moveaxis(regression.context, -1, 0))
    return OptimalRows(around, regression.rest, baseline, len(c), regression.widening)


def difference_dr(moments: Moments) -> Estimate:
    r"""The difference of two targets with a reward model: the weights and the model as control variates, combined for the least variance.

    .. math:: \hat\Delta = \frac1n \sum_i \left[ u_i r_i - b_0 u_i - b_1 (u_i q_i - d_i) \right]

    u is the difference of the two weights, and d that of the model's two values; for the logging policy, that value is q, the
    model's reward of the logged action. Every bracket after the first has mean 0, as in `optimal_dr`.

    Examples
    --------
    A model that is right about every row leaves the model's own difference, without error:

    >>> columns = ("u", "s", "us", "e", "ue", "v")
    >>> rows = np.array([[1.0, 3, 3, 0, 0, 2], [-1.0, 1, -1, 0, 0, 0], [0.5, 2, 1, 0, 0, 1], [-0.5, 2, -1, 0, 0, -1]])
    >>> log = Moments.of_sums(np.array(4), rows.sum(axis=0), rows.T @ rows, np.array(0.0), columns)
    >>> round(difference_dr(log).value, 12)
    0.5
    """
    check_model(moments)
    around = from_mean_reward(moments)
    model = around.form("us", ue=-1.0, v=-1.0)  # u·(q − c) − (d − c), whose mean is c
    c = np.stack([around.form("u"), model])
    regression = fit(around, c, around.form("us"))
    constant, share = regression.fixed[..., 0], regression.fixed[..., 1]
    return linear(
        "optimal_dr",
        around,
        share * around.center,
        regression.rest,
        baseline=(around.center + constant - share * around.center, share, *np.moveaxis(regression.context, -1, 0)),
        fitted=len(c),
        widening=regression.widening,
    )


def check_model(moments: Moments) -> None:
    """Check that the columns of a reward model are there."""
    if not set(MODEL) <= set(moments.columns):
        raise OptionError(
            "this estimator needs a reward model.",
            do="Pass `model_reward=` (its reward of the logged action) and `model_value=` (its value of the target "
            "policy).",
        )
