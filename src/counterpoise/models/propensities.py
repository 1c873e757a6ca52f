"""The propensities of policies that choose by chance: Thompson sampling by quadrature, softmax and ε-greedy in closed form.

>>> from counterpoise import propensities
>>> propensities.softmax([[0.0, 0.0]]), propensities.epsilon_greedy([[0.3, 0.1]], 0.1)
(array([[0.5, 0.5]]), array([[0.95, 0.05]]))
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from operator import index
from typing import Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from counterpoise.errors import OptionError
from counterpoise.moments import Floats

__all__ = ["epsilon_greedy", "softmax", "thompson_beta", "thompson_normal"]


def thompson_beta(alpha: ArrayLike, beta: ArrayLike, top: int = 1) -> Floats:
    r"""The chance that each arm has the largest of one draw per arm from Beta(α, β), or one of the `top` largest.

    .. math:: p_a = \int f_a(x) \Pr(\text{fewer than top of the other arms exceed } x)\, dx

    `alpha` and `beta` have a row for each decision and a column for each arm (or are a single row), and so have the probabilities. They
    come from deterministic quadrature, and not from counting draws, with a relative error below 1e-6 even where they are tiny; below
    about 1e-300 they are 0.

    With `top=k`, it is the chance of being *among* the k arms that are shown, and rows add up to k. It is not the chance of a certain
    position, nor that of the whole list.

    Examples
    --------
    An arm that was never tried against one with 50 clicks in 1,000 views:

    >>> thompson_beta([[1, 51]], [[1, 951]]).round(6)
    array([[0.949102, 0.050898]])
    >>> thompson_beta([1, 2, 3], [3, 2, 1], top=2).round(4)
    array([0.2202, 0.8095, 0.9702])
    """
    shape, (a, b) = _rows({"alpha": alpha, "beta": beta}, positive=("alpha", "beta"))
    return _chances(Betas, (a, b), _check_top(top, shape)).reshape(shape)


def thompson_normal(mean: ArrayLike, sd: ArrayLike, top: int = 1) -> Floats:
    r"""The chance that each arm has the largest of one draw per arm from a normal distribution, or one of the `top` largest.

    As `thompson_beta`, for posteriors with a mean and a standard deviation, such as those of a linear model.

    Examples
    --------
    Of two arms, the better one is chosen with probability Φ(difference / its sd):

    >>> thompson_normal([[0.0, 1.0]], [[0.6, 0.8]]).round(6), special.ndtr(1.0).round(6)
    (array([[0.158655, 0.841345]]), np.float64(0.841345))
    """
    shape, (m, s) = _rows({"mean": mean, "sd": sd}, positive=("sd",))
    scale = s.max(axis=1, keepdims=True)  # only differences matter, and they keep their digits
    parameters = (m - m.max(axis=1, keepdims=True)) / scale, s / scale
    return _chances(Normals, parameters, _check_top(top, shape)).reshape(shape)


def softmax(scores: ArrayLike, temperature: float = 1.0) -> Floats:
    r"""The chance of each arm if it is chosen in proportion to exp(score / temperature).

    >>> softmax([0.0, np.log(3.0)])
    array([0.25, 0.75])
    """
    shape, (s,) = _rows({"scores": scores})
    if not 0.0 < temperature < np.inf:
        raise OptionError(f"`temperature=` must be above 0 and finite, found {temperature!r}.")
    weights = np.exp((s - s.max(axis=1, keepdims=True)) / temperature)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True)).reshape(shape)


def epsilon_greedy(scores: ArrayLike, epsilon: float) -> Floats:
    r"""The chance of each arm if the best is taken, except for a share ε of choices that are uniform; equal scores share the best's part.

    >>> epsilon_greedy([1.0, 2.0, 2.0, 0.0], 0.2)
    array([0.05, 0.45, 0.45, 0.05])
    """
    shape, (s,) = _rows({"scores": scores})
    if not 0.0 <= epsilon <= 1.0:
        raise OptionError(f"`epsilon=` must lie between 0 and 1, found {epsilon!r}.")
    is_best = s == s.max(axis=1, keepdims=True)
    shared = is_best / is_best.sum(axis=1, keepdims=True)
    return np.asarray((1.0 - epsilon) * shared + epsilon / s.shape[1]).reshape(shape)


def _rows(arrays: dict[str, ArrayLike], positive: tuple[str, ...] = ()) -> tuple[tuple[int, ...], list[Floats]]:
    """The arrays as rows × arms, and the shape that they came in."""
    values = []
    for name, array in arrays.items():
        try:
            values.append(np.asarray(array, dtype=np.float64))
        except (TypeError, ValueError):
            raise OptionError(
                f"`{name}=` must hold numbers, a row for each decision and a column for each arm."
            ) from None
    shape = values[0].shape
    if any(value.shape != shape for value in values):
        shapes = " and ".join(f"{name} {value.shape}" for name, value in zip(arrays, values, strict=True))
        raise OptionError(f"every arm of every row needs all parameters, and the shapes differ: {shapes}.")
    if len(shape) not in (1, 2) or shape[-1] < 2:
        raise OptionError(
            f"expected a row for each decision and a column for each of at least 2 arms, found the shape {shape}."
        )
    rows = [value.reshape(-1, shape[-1]) for value in values]
    for name, value in zip(arrays, rows, strict=True):
        wrong = ~(np.isfinite(value) & ((value > 0.0) | (name not in positive)))
        if wrong.any():
            row, arm = np.argwhere(wrong)[0]
            rule = "a finite number above 0" if name in positive else "a finite number"
            raise OptionError(
                f"`{name}=` must be {rule} for every arm, and {int(wrong.sum()):,} of {value.size:,} are not; the first is arm {arm} "
                f"of row {row} with {value[row, arm]}."
            )
    return shape, rows


def _check_top(top: int, shape: tuple[int, ...]) -> int:
    try:
        k = index(top)
    except TypeError:
        k = 0
    if not 1 <= k < shape[-1]:
        raise OptionError(
            f"`top=` must be a whole number from 1 to {shape[-1] - 1}, one less than there are arms, found {top!r}.",
            do="If every arm is shown, each has probability 1.",
        )
    return k


# -- One draw per arm. Normal densities have a concave logarithm; so have those of the logits of Beta draws, even where Beta is U-shaped.
#    Then distribution functions have one, too, and the product of the two has a single peak. ---------------------------------------------


@dataclass(frozen=True, eq=False)
class Normals:
    """Normal draws, arms × rows; `constant` is what the logarithm of each density ends with."""

    mean: Floats
    sd: Floats
    constant: Floats

    @classmethod
    def draws(cls, mean: Floats, sd: Floats) -> Self:
        """With the constant that makes them densities."""
        return cls(mean, sd, np.log(sd) + 0.5 * np.log(2.0 * np.pi))

    @property
    def mode(self) -> Floats:
        """Where each density is highest."""
        return self.mean

    @property
    def width(self) -> Floats:
        """About one standard deviation."""
        return self.sd

    def log_density(self, y: Floats) -> Floats:
        """At y, one for each row or arm, or at the nodes of each row (1 × rows × nodes)."""
        mean, sd = _for_each(self.mean, y), _for_each(self.sd, y)
        z: Floats = (y - mean) / sd
        z *= z
        z *= -0.5
        z -= _for_each(self.constant, y)
        return z

    def slope(self, y: Floats) -> Floats:
        """The derivative of the log density."""
        return (self.mean - y) / self.sd**2

    def reach(self, y: Floats) -> Floats:
        """How far from y a step may go at most."""
        return np.full(y.shape, np.inf)

    def bend(self, y: Floats) -> Floats:
        """How fast the slope falls at most, as far as a step from y may go."""
        return 1.0 / self.sd**2

    def below(self, y: Floats) -> Floats:
        """The chance of a draw below y, with all its digits where it is tiny."""
        return np.asarray(special.ndtr((y - self.mean) / self.sd))

    def of(self, which: NDArray[np.intp]) -> Self:
        """For every arm, another arm of its row."""
        return type(self)(*(np.take_along_axis(x, which, axis=0) for x in (self.mean, self.sd, self.constant)))

    def take(self, rows: NDArray[np.bool_]) -> Self:
        """Some of the rows."""
        return type(self)(*(x[:, rows] for x in (self.mean, self.sd, self.constant)))

    def meeting(self, rivals: Self) -> Self:
        """Each density times that of a rival, normalized: where the two would be if they were equal."""
        square = self.sd**2 + rivals.sd**2
        mean = (self.mean * rivals.sd**2 + rivals.mean * self.sd**2) / square
        return self.draws(mean, self.sd * rivals.sd / np.sqrt(square))


@dataclass(frozen=True, eq=False)
class Betas:
    """The logits y = log(x / (1 − x)) of Beta draws x, arms × rows: their log density is α log x + β log(1 − x) − log B(α, β)."""

    alpha: Floats
    beta: Floats
    constant: Floats

    @classmethod
    def draws(cls, alpha: Floats, beta: Floats) -> Self:
        """With the constant that makes them densities."""
        return cls(alpha, beta, special.betaln(alpha, beta))

    @property
    def mode(self) -> Floats:
        """Where each density is highest."""
        return np.asarray(np.log(self.alpha) - np.log(self.beta))

    @property
    def width(self) -> Floats:
        """About one standard deviation."""
        return np.sqrt(1.0 / self.alpha + 1.0 / self.beta)

    def log_density(self, y: Floats) -> Floats:
        """At y, one for each row or arm, or at the nodes of each row (1 × rows × nodes)."""
        both, beta = _for_each(self.alpha + self.beta, y), _for_each(self.beta, y)
        z: Floats = both * special.log_expit(y)  # log(1 − x) is log x − y
        z -= beta * y
        z -= _for_each(self.constant, y)
        return z

    def slope(self, y: Floats) -> Floats:
        """The derivative of the log density."""
        return np.asarray(self.alpha - (self.alpha + self.beta) * special.expit(y))

    def reach(self, y: Floats) -> Floats:
        """How far from y a step may go at most: log x is not analytic at ±iπ."""
        return np.maximum(1.0, 0.5 * np.abs(y))

    def bend(self, y: Floats) -> Floats:
        """How fast the slope falls at most, as far as a step from y may go: x(1 − x) is largest next to y = 0."""
        nearest = np.where(y < 0.0, np.minimum(y + self.reach(y), 0.0), y)
        x = special.expit(-np.abs(nearest))
        return np.asarray((self.alpha + self.beta) * x * (1.0 - x))

    def below(self, y: Floats) -> Floats:
        """The chance of a draw below y, with all its digits where it is tiny."""
        a, b = self.alpha, self.beta
        x = special.expit(-np.abs(y))
        near = np.where(y < 0.0, special.betainc(a, b, x), special.betaincc(b, a, x))
        far = np.exp(np.minimum(a * y - np.log(a) - self.constant, 0.0))  # where x itself would be 0
        return np.where(y < -600.0, far, near)

    def of(self, which: NDArray[np.intp]) -> Self:
        """For every arm, another arm of its row."""
        return type(self)(*(np.take_along_axis(x, which, axis=0) for x in (self.alpha, self.beta, self.constant)))

    def take(self, rows: NDArray[np.bool_]) -> Self:
        """Some of the rows."""
        return type(self)(*(x[:, rows] for x in (self.alpha, self.beta, self.constant)))

    def meeting(self, rivals: Self) -> Self:
        """Each density times that of a rival, normalized: where the two would be if they were equal."""
        return self.draws(self.alpha + rivals.alpha, self.beta + rivals.beta)


Arms = TypeVar("Arms", Normals, Betas)


def _for_each(parameter: Floats, y: Floats) -> Floats:
    """A parameter, arms × rows, for one y of each row or arm, or for the nodes of each row (1 × rows × nodes)."""
    return parameter[..., None] if y.ndim > 2 else parameter


# -- The integrals, from left to right in panels, for all arms at once -----------------------------------------------------

NODES = 16  # of Gauss and Legendre in a panel
STEEP, BENT = 16.0, 6.0  # what a log density may change in a panel: by its slope, and by the slope's change
NOTHING = 1e-9  # of a propensity: what may be left out at either end
TINY = -700.0  # the logarithm of what is as good as 0
BATCH = 2**18  # numbers that are worked on at once


def _chances(kind: type[Arms], parameters: tuple[Floats, Floats], top: int) -> Floats:
    """The chance that each arm's draw is among the `top` largest; rows with the same parameters are computed once."""
    distinct, places = np.unique(np.concatenate(parameters, axis=1), axis=0, return_inverse=True)
    first, second = np.split(distinct, 2, axis=1)
    chances = np.empty_like(first)
    step = max(1, BATCH // (NODES * first.shape[1]))
    for start in range(0, len(first), step):
        rows = slice(start, start + step)
        arms = kind.draws(np.ascontiguousarray(first[rows].T), np.ascontiguousarray(second[rows].T))
        chances[rows] = _sweep(arms, top).T
    return chances[places.reshape(-1)]


def _sweep(arms: Arms, top: int) -> Floats:
    """The chances of some rows, arms × rows.

    Distribution functions are integrated along with the chances, from densities at the same nodes: those of Beta are costly to ask for.
    """
    nodes, weights, running = _rule()
    chances = np.zeros(arms.mode.shape)
    y = _start(arms, top)
    below, rows = arms.below(y), np.arange(len(y))
    while len(rows):
        slope, level = arms.slope(y), arms.log_density(y)
        # past its peak, less than density / slope is left of an arm: it is done once that no longer counts
        with np.errstate(divide="ignore"):
            counts = np.maximum(np.log(NOTHING * chances[:, rows]), TINY)
            is_open = (slope >= 0.0) | (level - np.log(np.abs(slope)) > counts)
        goes_on = np.logical_or.reduce(is_open, axis=0)
        if not goes_on.all():
            rows, y, below, arms = rows[goes_on], y[goes_on], below[:, goes_on], arms.take(goes_on)
            continue
        step = _step(arms, y, slope, level, is_open)
        mass = arms.log_density((y[:, None] + step[:, None] * nodes)[None])
        np.exp(mass, out=mass)
        mass *= (step * is_open)[..., None]
        so_far = (mass.reshape(-1, NODES) @ running).reshape(mass.shape)
        so_far += np.where(is_open, below, 1.0)[..., None]
        np.clip(so_far, 0.0, 1.0, out=so_far)
        below = below + mass @ weights
        mass *= _chance_to_be_among(so_far, top)
        chances[:, rows] += mass @ weights
        y = y + step
    return chances


def _start(arms: Arms, top: int) -> Floats:
    """A point for each row below which next to nothing of any arm's integral lies.

    Of an arm that is among the `top` by its mode, hardly any draw lies there. Any other has to exceed the draw of one of those, whichever,
    and given that it exceeds another, a draw is stochastically above what it is given that the two are equal.
    """
    mode, own = arms.mode, _lower_end(arms)
    order = np.argsort(-mode, axis=0, kind="stable")[:top]
    start = np.full_like(mode, np.inf)
    for which in order:
        rivals = arms.of(np.broadcast_to(which, mode.shape))
        equal = arms.meeting(rivals)
        is_never_above = arms.log_density(equal.mode) + rivals.log_density(equal.mode) < TINY
        start = np.minimum(start, np.where(is_never_above, np.inf, _lower_end(equal)))
    np.put_along_axis(start, order, -np.inf, axis=0)
    return np.asarray(np.maximum(start, own).min(axis=0))


def _lower_end(arms: Normals | Betas) -> Floats:
    """A point below which each density has next to nothing."""
    end = arms.log_density(arms.mode) + np.log(NOTHING) - 2.0
    length = 4.0 * arms.width
    y = arms.mode - length
    while (is_inside := arms.log_density(y) > end).any():
        length = np.where(is_inside, 2.0 * length, length)
        y = np.where(is_inside, arms.mode - length, y)
    for _ in range(3):  # by Newton's method, which never overshoots, because log densities are concave
        y = y - (arms.log_density(y) - end) / arms.slope(y)
    return np.asarray(y)


def _step(arms: Normals | Betas, y: Floats, slope: Floats, level: Floats, is_open: NDArray[np.bool_]) -> Floats:
    """How long the next panel of each row is, so that polynomials follow the densities of all arms."""
    bend, steep = np.maximum(arms.bend(y), 1e-200), np.abs(slope)
    length = np.minimum(2.0 * STEEP / (steep + np.sqrt(steep**2 + 4.0 * STEEP * bend)), np.sqrt(BENT / bend))
    # as long as a density is as good as 0, nothing has to follow it; again, the tangent never overshoots
    rises = np.divide(TINY - level, slope, out=np.zeros_like(slope), where=slope > 0.0)
    longest = np.where(is_open, np.maximum(length, rises), np.inf).min(axis=0)
    shortest = 4.0 * np.spacing(np.abs(y))
    return np.asarray(np.maximum(np.minimum(longest, arms.reach(y)), shortest))


def _chance_to_be_among(below: Floats, top: int) -> Floats:
    """The chance that fewer than `top` of the other arms exceed a node, from the chance that each is below it, arms × rows × nodes.

    The number of arms that exceed it is counted from the first arm up and from the last arm down. Without a division, chances of 0 and 1
    do no harm.
    """
    above = 1.0 - below
    earlier = np.zeros((top, *below.shape[1:]))  # the chance that so many of the arms before this one exceed it
    earlier[0] = 1.0
    before = [earlier]
    for arm in range(len(below) - 1):
        before.append(_count(before[-1], below[arm], above[arm]))
    later = before[0]
    among = np.empty_like(below)
    for arm in reversed(range(len(below))):
        at_most = later.cumsum(axis=0)[::-1] if top > 1 else later
        among[arm] = before[arm][0] * at_most[0] if top == 1 else (before[arm] * at_most).sum(axis=0)
        later = _count(later, below[arm], above[arm])
    return among


def _count(chances: Floats, below: Floats, above: Floats) -> Floats:
    """The chances of 0, 1, … arms with one more arm."""
    counted: Floats = chances * below
    counted[1:] += chances[:-1] * above
    return counted


@cache
def _rule() -> tuple[Floats, Floats, Floats]:
    """Nodes and weights of Gauss and Legendre on [0, 1], and a matrix that integrates from 0 up to each node."""
    x, weights = np.polynomial.legendre.leggauss(NODES)
    values = np.polynomial.legendre.legvander(x, NODES)
    degree = np.arange(1, NODES)
    integrals = np.empty((NODES, NODES))
    integrals[:, 0] = x + 1.0
    integrals[:, 1:] = (values[:, 2:] - values[:, :-2]) / (2.0 * degree + 1.0)
    running = integrals @ np.linalg.inv(values[:, :NODES])
    return (x + 1.0) / 2.0, weights / 2.0, np.ascontiguousarray(running.T) / 2.0
