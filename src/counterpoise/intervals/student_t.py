"""Student's distribution without SciPy, which takes longer to import than an evaluation of a small file."""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from counterpoise.moments import Floats

TAIL, LEAST = 1e-6, 2.0  # the smallest tail and degrees of freedom that we compute ourselves
MANY = 1000  # quantiles, from which on SciPy is worth its import
NORMAL = 3000.0  # degrees of freedom from which on the expansion around the normal distribution is exact
SPACING = 0.11  # of the quadrature's nodes
STEPS = 40  # at most; it takes one or two
RAISED = 60  # the argument of Γ from which on seven terms are exact


def t_quantile(freedom: ArrayLike, share: float) -> Floats:
    """Where Student's distribution has a `share` of its mass below, for one or several degrees of freedom: SciPy's `stdtrit`.

    >>> float(t_quantile(3.0, 0.975).round(4)), float(t_quantile(1e9, 0.025).round(4))
    (3.1824, -1.96)
    """
    v, tail = np.asarray(freedom, dtype=np.float64), min(share, 1.0 - share)
    if not (tail >= TAIL and v.size <= MANY and np.isfinite(v).all() and (v >= LEAST).all()):
        from scipy.special import stdtrit

        return np.asarray(stdtrit(v, share))
    z = -NormalDist().inv_cdf(tail)
    # the expansion in 1/ν around the normal quantile (Abramowitz & Stegun, 26.7.5)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    fourth = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160
    t = np.asarray(z + (first + (second + (third + fourth / v) / v) / v) / v)
    constant = _constant(v)
    for _ in range(0 if (v >= NORMAL).all() else STEPS):
        beyond, density = _tail(t, v, constant)
        # Halley's step, and no further than this, where one from far outside would overshoot
        step, most = (beyond - tail) / density, 0.5 * (1.0 + t)
        step = np.clip(step / np.maximum(1.0 - 0.5 * step * (v + 1.0) * t / (v + t * t), 0.5), -most, most)
        t = np.maximum(t + step, 0.0)
        if (np.abs(step) <= 3e-6 * (1.0 + t)).all():  # the next one is about the cube of this
            break
    return np.asarray(np.copysign(t, share - 0.5))


def t_share(freedom: float, t: float) -> float:
    """The share of Student's distribution below t: SciPy's `stdtr`.

    >>> round(t_share(3.0, -3.1824), 4)
    0.025
    """
    v = np.asarray(freedom)
    if math.isfinite(freedom) and freedom >= LEAST and math.isfinite(t):
        tail = float(_tail(np.asarray(abs(t)), v, _constant(v))[0])
        if tail >= TAIL:
            return tail if t < 0.0 else 1.0 - tail
    from scipy.special import stdtr

    return float(stdtr(freedom, t))


def normal_share(z: float) -> float:
    """The share of the normal distribution below z.

    >>> round(normal_share(-1.96), 4)
    0.025
    """
    return 0.5 * math.erfc(-z / math.sqrt(2.0))


def _tail(t: Floats, v: Floats, constant: Floats) -> tuple[Floats, Floats]:
    """The share above t ≥ 0, and the density there, by a sum over nodes that double exponentials spread from t to infinity."""
    distances, weights = _nodes()
    x = t[..., None] + distances
    power = -0.5 * (v + 1.0)
    heights = np.exp(power[..., None] * np.log1p(x * x / v[..., None]))
    return constant * (heights @ weights), constant * np.exp(power * np.log1p(t * t / v))


@cache
def _nodes() -> tuple[Floats, Floats]:
    """The nodes exp(s − exp(−s)) of the trapezoidal rule in s, and their weights (Takahasi & Mori, 1974)."""
    s = np.arange(-3.8, 21.0, SPACING)
    distances = np.exp(s - np.exp(-s))
    return distances, SPACING * distances * (1.0 + np.exp(-s))


def _constant(v: Floats) -> Floats:
    r""":math:`\Gamma((\nu + 1)/2) / (\sqrt{\pi \nu} \, \Gamma(\nu/2))`, the density's height at 0.

    The ratio of the two Γ by its expansion for large arguments, to which small ones are raised step by step.
    """
    a = v / 2.0
    steps = np.arange(RAISED) if (a < RAISED).any() else np.arange(0)
    raised = ((a[..., None] + steps) / (a[..., None] + steps + 0.5)).prod(axis=-1)
    a = a + len(steps)
    x = 1.0 / a
    ratio = 1.0 + x * (
        -1 / 8 + x * (1 / 128 + x * (5 / 1024 + x * (-21 / 32768 + x * (-399 / 262144 + x * 869 / 4194304))))
    )
    return np.asarray(raised * ratio * np.sqrt(a) / np.sqrt(math.pi * v))
