"""The estimators a second time, as plain loops over rows in 60-digit arithmetic: slow, obvious, independent."""

from __future__ import annotations

from decimal import Decimal, getcontext
from typing import NamedTuple

import numpy as np

getcontext().prec = 60


class Rows(NamedTuple):
    w: list
    r: list
    q: list
    v: list
    group: list

    @classmethod
    def of(cls, t, p, r, q=None, v=None, group=None):
        exact = [[Decimal(float(x)) for x in column] if column is not None else [] for column in (t, p, r, q, v)]
        weights = [a / b for a, b in zip(exact[0], exact[1], strict=True)]
        return cls(weights, *exact[2:], list(group) if group is not None else [])


def mean(xs):
    return sum(xs) / len(xs)


def cov(xs, ys):
    mx, my = mean(xs), mean(ys)
    return mean([(x - mx) * (y - my) for x, y in zip(xs, ys, strict=True)])


def of_terms(terms):
    """Mean of the rows' terms and the root of their variance over n."""
    return float(mean(terms)), float((cov(terms, terms) / len(terms)).sqrt())


def ips(rows):
    return of_terms([w * r for w, r in zip(rows.w, rows.r, strict=True)])


def snips(rows):
    value = sum(w * r for w, r in zip(rows.w, rows.r, strict=True)) / sum(rows.w)
    square = sum((w * (r - value)) ** 2 for w, r in zip(rows.w, rows.r, strict=True))
    return float(value), float(square.sqrt() / sum(rows.w))


def optimal_beta(rows):
    wr = [w * r for w, r in zip(rows.w, rows.r, strict=True)]
    return cov(wr, rows.w) / cov(rows.w, rows.w)


def with_beta(rows, beta):
    return of_terms([beta + w * (r - beta) for w, r in zip(rows.w, rows.r, strict=True)])


def _beta_terms(rows):
    beta = optimal_beta(rows)
    return [beta + w * (r - beta) for w, r in zip(rows.w, rows.r, strict=True)]


def beta_ips(rows):
    return of_terms(_beta_terms(rows))


def plug_in(rows):
    top = mean([r * (w * w - w) for w, r in zip(rows.w, rows.r, strict=True)])
    bottom = mean([w * w - w for w in rows.w])
    return with_beta(rows, top / max(bottom, Decimal(10) ** -11))


def cross_fit(rows):
    terms = []
    for group in sorted(set(rows.group)):
        others = [k for k, g in enumerate(rows.group) if g != group]
        beta = optimal_beta(Rows([rows.w[k] for k in others], [rows.r[k] for k in others], [], [], []))
        terms += [beta + w * (r - beta) for w, r, g in zip(rows.w, rows.r, rows.group, strict=True) if g == group]
    return of_terms(terms)


def dm(rows):
    return of_terms(rows.v)


def dr(rows):
    return of_terms([v + w * (r - q) for w, r, q, v in zip(rows.w, rows.r, rows.q, rows.v, strict=True)])


def sndr(rows):
    weight = mean(rows.w)
    error = mean([w * (r - q) for w, r, q in zip(rows.w, rows.r, rows.q, strict=True)]) / weight
    terms = [
        v + error + w * (r - q - error) / weight for w, r, q, v in zip(rows.w, rows.r, rows.q, rows.v, strict=True)
    ]
    return of_terms(terms)


def _optimal_terms(rows):
    """Least squares of w·r on the two control variates, by Cramer's rule."""
    y = [w * r for w, r in zip(rows.w, rows.r, strict=True)]
    a = [w - 1 for w in rows.w]
    b = [w * q - v for w, q, v in zip(rows.w, rows.q, rows.v, strict=True)]
    aa, ab, bb, ay, by = cov(a, a), cov(a, b), cov(b, b), cov(a, y), cov(b, y)
    determinant = aa * bb - ab * ab
    x1, x2 = (ay * bb - by * ab) / determinant, (aa * by - ab * ay) / determinant
    return [yi - x1 * ai - x2 * bi for yi, ai, bi in zip(y, a, b, strict=True)]


def optimal_dr(rows):
    return of_terms(_optimal_terms(rows))


def auto(rows):
    """The model's value and the unbiased one, weighted by how far apart they are and how far apart they may be."""
    n, weight, rewards = len(rows.w), mean(rows.w), cov(rows.r, rows.r)
    few = sum(w * w for w in rows.w) / sum(rows.w) ** 2  # 1/E
    share = 1 / (1 + 30 * few)
    terms = [share * a + (1 - share) * b for a, b in zip(_optimal_terms(rows), _beta_terms(rows), strict=True)]
    distance = mean(rows.v) - mean(terms)
    apart = [v - t for v, t in zip(rows.v, terms, strict=True)]
    error = cov(apart, apart) / n / min(weight, 1) ** 2
    seen = sum(w * r for w, r in zip(rows.w, rows.r, strict=True)) / sum(rows.w)
    varied = sum(w * (r - seen) ** 2 for w, r in zip(rows.w, rows.r, strict=True)) / sum(rows.w)
    varied = min(varied, rewards) if varied > rewards / 10**9 else rewards
    allowed = (1 + (10 * few) ** 2) * (error / 10 + varied * few**2 / 2)
    shift = distance * allowed / (allowed + distance**2)
    missing = max(1 - weight, 0) ** 2 * rewards
    return float(mean(terms) + shift), float((cov(terms, terms) / n + shift**2 + missing).sqrt())


def sampled_beta_ips(rows, keep, before=None):
    """β-IPS of rows that were kept with these probabilities, and its error; `before` is how many there were, if known.

    V̂ = Σ(w(r − β) + β)/k ÷ Σ1/k, with β from regressing (wr − V̂)/k on u/k, and variance Σ(ψ/k)²/N̂².
    """
    h = [1 / Decimal(float(k)) for k in keep]
    total = sum(h)

    def around(xs):
        middle = sum(a * x for a, x in zip(h, xs, strict=True)) / total
        return middle, [a * (x - middle) for a, x in zip(h, xs, strict=True)]

    def with_rows(xs):
        """The mean and each row's influence on it, with the number of rows as a control variate."""
        middle, own = around(xs)
        if before is None:
            return middle, own, Decimal(0)
        spread = sum(a * (a - 1) for a in h)
        gamma = sum(a * x for a, x in zip(h, own, strict=True)) / spread
        return middle - gamma * (total / before - 1), own, gamma * gamma * spread

    wr = [w * r for w, r in zip(rows.w, rows.r, strict=True)]
    both = [x + y for x, y in zip(wr, rows.w, strict=True)]
    (_, y, cy), (_, u, cu), (_, _, cb) = with_rows(wr), with_rows(rows.w), with_rows(both)
    cross = sum(p * q for p, q in zip(y, u, strict=True)) - (cb - cy - cu) / 2
    beta = cross / (sum(q * q for q in u) - cu)
    middle, psi, less = with_rows([w * (r - beta) + beta for w, r in zip(rows.w, rows.r, strict=True)])
    return float(middle), float((sum(x * x for x in psi) - less).sqrt() / total), float(beta)


def lift(rows):
    u = [w - 1 for w in rows.w]
    ur = [x * r for x, r in zip(u, rows.r, strict=True)]
    model = [x * q - (v - q) for x, q, v in zip(u, rows.q, rows.v, strict=True)]
    uu, um, mm, ru, rm = cov(u, u), cov(u, model), cov(model, model), cov(ur, u), cov(ur, model)
    beta, share = (ru * mm - rm * um) / (uu * mm - um * um), (rm * uu - ru * um) / (uu * mm - um * um)
    return of_terms([x - beta * y - share * z for x, y, z in zip(ur, u, model, strict=True)])


PLAIN = {
    "ips": ips,
    "snips": snips,
    "beta_ips": beta_ips,
    "cross_fit": cross_fit,
    "dm": dm,
    "dr": dr,
    "constant_dr": beta_ips,
    "sndr": sndr,
    "optimal_dr": optimal_dr,
    "auto": auto,
    "lift": lift,
}


def random_log(seed, n=200, *, offset=0.0, closeness=None, binary=False):
    """A log of n rows: target and propensity as they come, or with weights within `closeness` of 1."""
    g = np.random.default_rng(seed)
    p = g.uniform(0.1, 0.9, n)
    t = g.uniform(0.0, 1.0, n) if closeness is None else p * (1.0 + closeness * g.uniform(-1, 1, n))
    noise = g.normal(size=n)
    r = (noise > 0.3).astype(float) if binary else offset + 0.5 * t + noise
    q = offset + 0.3 * noise + 0.2 * g.normal(size=n)
    v = offset + 0.25 * g.normal(size=n)
    return {"t": t, "p": p, "r": r, "q": q, "v": v, "group": g.integers(0, 7, n)}
