"""Student's distribution without SciPy, which takes longer to import than an evaluation of a small file."""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from counterpoise.moments import Floats

TAIL, LEAST = 4e-4, 2.0  # the smallest tail and degrees of freedom that we compute ourselves, to 1e-12
MANY = 1000  # quantiles from which on SciPy is worth its import
NORMAL = 1000.0  # degrees of freedom from which on the expansion around the normal distribution is exact
NODES = 64  # of the quadrature
STEPS = 40  # at most; it takes one or two
RAISED = 60  # the argument of Γ from which on seven terms are exact


def t_quantile(freedom: ArrayLike, share: float) -> Floats:
    """Where Student's distribution has a `share` of its mass below, for one or several degrees of freedom: SciPy's `stdtrit`.

    >>> float(t_quantile(3.0, 0.975).round(4)), float(t_quantile(1e9, 0.975).round(4))
    (3.1824, 1.96)
    """
    v = np.asarray(freedom, dtype=np.float64)
    if not (TAIL <= share <= 1.0 - TAIL and v.size <= MANY and np.isfinite(v).all() and (v >= LEAST).all()):
        from scipy.special import stdtrit

        return np.asarray(stdtrit(v, share))
    t = _near_normal(NormalDist().inv_cdf(share), v)
    for _ in range(0 if (v >= NORMAL).all() else STEPS):
        inside, density = _from_middle(t, v)
        step = (inside - (share - 0.5)) / density
        # halfway to where a step from far outside would overshoot
        t = t - np.clip(step, -0.5 * (1.0 + np.abs(t)), 0.5 * (1.0 + np.abs(t)))
        if (np.abs(step) <= 1e-9 * (1.0 + np.abs(t))).all():  # the next one is the square of this
            break
    return np.asarray(t)


def t_share(freedom: float, t: float) -> float:
    """The share of Student's distribution below t: SciPy's `stdtr`.

    >>> round(t_share(3.0, -3.1824), 6)
    0.025
    """
    if math.isfinite(freedom) and freedom >= LEAST and math.isfinite(t):
        share = 0.5 + float(_from_middle(np.asarray(t), np.asarray(freedom))[0])
        if TAIL <= share <= 1.0 - TAIL:
            return share
    from scipy.special import stdtr

    return float(stdtr(freedom, t))


def normal_share(z: float) -> float:
    """The share of the normal distribution below z.

    >>> round(normal_share(-1.96), 4)
    0.025
    """
    return 0.5 * math.erfc(-z / math.sqrt(2.0))


def _near_normal(z: float, v: Floats) -> Floats:
    """The quantile by its expansion in 1/ν around the normal one (Abramowitz & Stegun, 26.7.5)."""
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    fourth = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160
    return np.asarray(z + (first + (second + (third + fourth / v) / v) / v) / v)


def _from_middle(t: Floats, v: Floats) -> tuple[Floats, Floats]:
    r"""The share between 0 and t, and the density at t, by quadrature over the angle θ with :math:`t = \sqrt\nu \tan\theta`.

    .. math:: P(0 < T < t) = c \sqrt\nu \int_0^\theta \cos^{\nu - 1}(x) \, dx
    """
    nodes, weights = _legendre()
    angle = np.arctan(t / np.sqrt(v))
    tangents = np.tan(angle[..., None] * nodes)
    heights = np.exp(-0.5 * (v[..., None] - 1.0) * np.log1p(tangents * tangents))
    constant = _constant(v)
    density = constant * np.exp(-0.5 * (v + 1.0) * np.log1p(t * t / v))
    return constant * np.sqrt(v) * angle * (heights @ weights), density


@cache
def _legendre() -> tuple[Floats, Floats]:
    """Gauss and Legendre's nodes and weights from 0 to 1."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    return (nodes + 1.0) / 2.0, weights / 2.0


def _constant(v: Floats) -> Floats:
    r""":math:`\Gamma((\nu + 1)/2) / (\sqrt{\pi \nu} \, \Gamma(\nu/2))`, the density's height at 0.

    The ratio of the two Γ by its expansion for large arguments, to which small ones are raised step by step.
    """
    a, raised = v / 2.0, np.ones(v.shape)
    for _ in range(RAISED if (a < RAISED).any() else 0):
        raised, a = raised * a / (a + 0.5), a + 1.0
    x = 1.0 / a
    ratio = 1.0 + x * (
        -1 / 8 + x * (1 / 128 + x * (5 / 1024 + x * (-21 / 32768 + x * (-399 / 262144 + x * (869 / 4194304)))))
    )
    return np.asarray(raised * ratio * np.sqrt(a) / np.sqrt(math.pi * v))
