"""`SyntheticBandit`: the simulator behind the paper's evaluation and learning experiments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from itertools import combinations_with_replacement
from math import comb
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from counterpoise.environments.feedback import (
    Feedback,
    Floats,
    Integers,
    check_at_least,
    check_choice,
    check_probabilities,
    check_seed,
    chunks,
    sample_actions,
)
from counterpoise.errors import OptionError

if TYPE_CHECKING:
    import polars

SHARPER = 3.0  # how much more the new policy of a simulated log prefers good actions than the logging policy does


@dataclass(eq=False)
class SyntheticBandit:
    r"""A contextual bandit with sparse polynomial rewards and a softmax logging policy.

    .. math:: q(x, a) = \sigma(d\,(v - \bar v / s_v)), \qquad \pi_0(a \mid x) \propto \exp(T q(x, a))

    v is a polynomial of degree d in the context and the one-hot action. A share `ratio` of its monomials have coefficients,
    uniform on (−1, 1); v̄ and s_v are its mean and standard deviation over the batch. (This is how it was published: the
    standardization lacks its parentheses, so rewards depend a little on the batch they are drawn with.)

    The defaults are the paper's world, exact to the draw: the same seed gives the rows behind its published numbers.
    Each `draw` continues the environment's own stream of contexts and rewards, so a second batch has new rows.

    With `inverse_temperature` T > 0 good actions are logged more often, with T < 0 bad ones. `degree=1, ratio=1` makes v
    linear in the context, per action. `reward="continuous"` takes v itself as the expected reward and adds normal noise
    with standard deviation `noise`. `logging` is "softmax", "uniform", or a function that turns each context into a row
    of action probabilities.

    Examples
    --------
    A worse logging policy earns less:

    >>> bad = SyntheticBandit(n_actions=25, inverse_temperature=-5, seed=0).draw(2000)
    >>> good = SyntheticBandit(n_actions=25, inverse_temperature=5, seed=0).draw(2000)
    >>> bool(bad.reward.mean() < good.reward.mean())
    True

    References
    ----------
    Gupta, Jeunen, Oosterhuis & de Rijke, RecSys 2024, section 4; Saito, Aihara, Matsutani & Narita, "Open Bandit
    Dataset and Pipeline", NeurIPS 2021, for the environment it parameterizes.
    """

    n_actions: int
    _: KW_ONLY
    inverse_temperature: float = 1.0
    seed: int = 0
    context_dimension: int = 5
    degree: int = 4
    ratio: float = 0.1
    reward: Literal["binary", "continuous"] = "binary"
    noise: float = 1.0
    logging: Literal["softmax", "uniform"] | Callable[[Floats], ArrayLike] = "softmax"

    def __post_init__(self) -> None:
        check_at_least("n_actions", self.n_actions, 2)
        check_at_least("context_dimension", self.context_dimension, 1)
        check_at_least("degree", self.degree, 1)
        check_seed(self.seed)
        check_choice("reward", self.reward, ("binary", "continuous"))
        if not callable(self.logging):
            check_choice("logging", self.logging, ("softmax", "uniform"), do="Or pass a function of the contexts.")
        if not 0 < self.ratio <= 1:
            what = "must lie in (0, 1]: it is the share of monomials that have a coefficient."
            raise OptionError(f"`ratio={self.ratio!r}` {what}")
        if not np.isfinite(self.inverse_temperature):
            raise OptionError(f"`inverse_temperature={self.inverse_temperature!r}` is not a finite number.")
        if not (np.isfinite(self.noise) and self.noise >= 0):
            what = "is not a standard deviation; pass a finite number of at least 0."
            raise OptionError(f"`noise={self.noise!r}` {what}")
        monomials = comb(self.context_dimension + self.degree, self.degree)
        if monomials > 10**6:
            raise OptionError(
                f"a polynomial of degree {self.degree} in {self.context_dimension} context dimensions has {monomials:,} monomials, more "
                "than 1,000,000.",
                do="Lower `degree=` or `context_dimension=`.",
            )
        self._random = np.random.RandomState(self.seed)

    def draw(self, n: int) -> Feedback:
        """Log the next n rows."""
        check_at_least("n", n, 1)
        v = polynomial(self.seed, self.n_actions, self.context_dimension, self.degree, self.ratio)
        context = self._random.normal(size=(n, self.context_dimension))
        shift = self._shift(v, context)

        def expected_by_kind(rows: slice) -> Floats:
            value = v(context[rows]) - shift
            if self.reward == "continuous":
                return value
            e = np.exp(-np.abs(self.degree * value))  # 1 / (1 + exp(−x)) without overflow
            return np.where(value >= 0, 1.0, e) / (1.0 + e)

        # Actions come from a fresh generator for every batch, so the first rows of two batches share these uniforms.
        uniform = np.random.RandomState(self.seed).uniform(size=n)
        action, chosen, propensity = np.empty(n, dtype=np.int64), np.empty(n), np.empty(n)
        for rows in chunks(n, self.n_actions):
            expected = expected_by_kind(rows)
            action[rows], propensity[rows] = self._log(context[rows], expected, v, uniform[rows])
            chosen[rows] = expected[v.kind[action[rows]], np.arange(expected.shape[1])]
        if self.reward == "continuous":
            reward = chosen + self.noise * self._random.normal(size=n)
        else:
            reward = self._random.binomial(1, chosen).astype(np.float64)
        return Feedback(
            context=context,
            action=action,
            reward=reward,
            propensity=propensity,
            n_actions=self.n_actions,
            expected=lambda rows: expected_by_kind(rows)[v.kind].T,
        )

    def _shift(self, v: Polynomial, context: Floats) -> float:
        """mean(v) / std(v) over all rows and actions, chunk by chunk (Chan, Golub & LeVeque 1983)."""
        share = np.bincount(v.kind) / self.n_actions  # of the actions, by kind
        count, mean, scatter = 0, 0.0, 0.0
        for rows in chunks(len(context), self.n_actions):
            values = v(context[rows])
            size = values.shape[1]
            m = float((share @ values).mean())
            delta = m - mean
            scatter += float((share @ np.square(values - m)).sum()) + delta * delta * count * size / (count + size)
            mean += delta * size / (count + size)
            count += size
        deviation = np.sqrt(scatter / count)
        return mean / float(deviation) if deviation > 0 else 0.0

    def _log(self, context: Floats, expected: Floats, v: Polynomial, uniform: Floats) -> tuple[Integers, Floats]:
        """The logged actions of some rows, and their propensities."""
        if callable(self.logging):
            mass = np.array(self.logging(context), dtype=np.float64)
            check_probabilities("the logging policy", mass, (len(context), self.n_actions))
            mass, kind = mass.T.copy(), np.arange(self.n_actions)
        elif self.logging == "uniform":
            mass, kind = np.ones((1, len(context))), np.zeros(self.n_actions, dtype=np.int64)
        else:
            score = self.inverse_temperature * expected
            mass, kind = np.exp(score - score.max(axis=0)), v.kind
        action, total = sample_actions(mass[kind], uniform)
        return action, mass[kind[action], np.arange(len(action))] / total


def simulated_log(
    n: int, *, n_actions: int = 10, inverse_temperature: float = 1.0, seed: int = 0
) -> tuple[polars.DataFrame, dict[str, float]]:
    """A log of `SyntheticBandit` with two targets, and the true values of both and of the logging policy on its contexts.

    ``pi_new`` is a softmax of the expected rewards, sharper than the logging policy's; ``pi_uniform`` gives every action the same chance.

    Examples
    --------
    >>> log, truth = simulated_log(1000)
    >>> log.columns[-5:]
    ['action', 'reward', 'propensity', 'pi_new', 'pi_uniform']
    >>> truth["pi_new"] > truth["logging"] > truth["pi_uniform"]
    True
    """
    import polars as pl

    drawn = SyntheticBandit(n_actions, inverse_temperature=inverse_temperature, seed=seed).draw(n)
    probability = np.empty(n)
    earned = {name: np.empty(n) for name in ("pi_new", "pi_uniform", "logging")}
    for rows in chunks(n, n_actions):
        expected = drawn.expected(rows)
        new, old = _softmax((inverse_temperature + SHARPER) * expected), _softmax(inverse_temperature * expected)
        probability[rows] = new[np.arange(len(new)), drawn.action[rows]]
        earned["pi_new"][rows] = (new * expected).sum(axis=1)
        earned["logging"][rows] = (old * expected).sum(axis=1)
        earned["pi_uniform"][rows] = expected.mean(axis=1)
    frame = drawn.frame().with_columns(pi_new=pl.Series(probability), pi_uniform=pl.lit(1.0 / n_actions))
    return frame, {name: float(values.mean()) for name, values in earned.items()}


def _softmax(score: Floats) -> Floats:
    raised = np.exp(score - score.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


# -- The sparse polynomial behind the rewards: which monomials, with which coefficients --------------------------------

BLOCK = 4096  # rows at a time, so that their monomials and terms stay in the cache
SHUFFLED = 2**27  # action monomials; if there are more, the recipe's full permutation is not drawn


@dataclass(frozen=True, eq=False)
class Polynomial:
    r"""v(x, a) = φ(x)·θ + b_a + φ(x)ᵀ M ψ(a), with one-hot actions written out.

    All products of two different actions are 0, so ψ(a) has only the constant and a's own powers. `terms` are the columns
    of M that survive, `members[k]` are those that actions of kind k add up, and `kind[a]` is the kind of action a: all
    actions without a chosen power share one reward function.
    """

    monomials: tuple[tuple[int, ...], ...]
    context: Floats
    offset: Floats  # b, per kind
    terms: Floats
    members: tuple[tuple[int, ...], ...]
    kind: Integers

    def __call__(self, x: Floats) -> Floats:
        """v for each kind of action and row of x, with one row per kind; `[kind]` turns that into one row per action."""
        values = np.empty((len(self.members), len(x)))
        for start in range(0, len(x), BLOCK):
            rows = slice(start, start + BLOCK)
            self._block(np.ascontiguousarray(x[rows].T), values[:, rows])
        return values

    def _block(self, x: Floats, out: Floats) -> None:
        """v for a few rows, which are passed as columns."""
        phi = np.ones((len(self.monomials), x.shape[1]))
        for product, monomial in zip(phi, self.monomials, strict=True):
            for index in reversed(monomial):  # this order of products keeps the last digit of the published runs
                product *= x[index]
        shared, values = self.context @ phi, self.terms.T @ phi
        for k, members in enumerate(self.members):
            out[k] = sum((values[term] for term in members), start=0.0)
            out[k] += shared + self.offset[k]


@lru_cache(maxsize=8)
def polynomial(seed: int, n_actions: int, context_dimension: int, degree: int, ratio: float) -> Polynomial:
    """Draw the coefficients in the paper's order from a fresh legacy generator.

    The choice among all D = C(n_actions + degree, degree) action monomials is one shuffle of D labels of one or two
    bytes: the draws, and so the result, are those of `choice(D, size, replace=False)` on eight-byte indices.
    """
    random = np.random.RandomState(seed)
    monomials = [m for k in range(degree + 1) for m in combinations_with_replacement(range(context_dimension), k)]
    d_context, d_action = len(monomials), comb(n_actions + degree, degree)
    n_context, n_chosen = max(int(ratio * d_context), 1), max(int(ratio * d_action), 1)
    chosen = random.choice(d_context, n_context, replace=False)
    if d_action <= SHUFFLED:
        owner = own_powers(n_actions, degree, d_action)
        random.shuffle(owner)
        position = np.flatnonzero(owner[:n_chosen])
        action = owner[position].astype(np.int64) - 2  # −1 is the constant, which every action has
        del owner
        context = random.uniform(-1, 1, size=n_context)
        # row by row, the stream is that of one `uniform(-1, 1, size=(1 + n_context, n_chosen))`, of which we want few columns: drawn in
        # one buffer, because fresh memory costs more than the draws
        bits = np.random.MT19937()
        bits.state = cast(Any, random.get_state(legacy=False))
        generator, buffer = np.random.Generator(bits), np.empty(n_chosen)
        drawn = np.empty((1 + n_context, len(position)))
        for row in drawn:
            row[:] = -1.0 + 2.0 * generator.random(out=buffer)[position]
        own, terms = drawn[0], drawn[1:]
    else:
        # Nobody can permute 10¹⁰ monomials; each column that matters is then in with probability `ratio`.
        everyone = np.concatenate([[-1], np.tile(np.arange(n_actions), degree)])
        action = everyone[random.uniform(size=everyone.size) < ratio]
        context = random.uniform(-1, 1, size=n_context)
        own = random.uniform(-1, 1, size=action.size)
        terms = random.uniform(-1, 1, size=(n_context, action.size))
    # the surviving terms by action, and the actions by equal reward function
    of_action = [tuple(np.flatnonzero((action == -1) | (action == a)).tolist()) for a in range(n_actions)]
    members = tuple(dict.fromkeys(of_action))
    number = {terms_of: k for k, terms_of in enumerate(members)}
    return Polynomial(
        monomials=tuple(monomials[i] for i in chosen),
        context=context,
        offset=np.array([own[list(terms_of)].sum() for terms_of in members]),
        terms=terms,
        members=members,
        kind=np.array([number[terms_of] for terms_of in of_action]),
    )


def own_powers(n_actions: int, degree: int, size: int) -> NDArray[np.int8 | np.int16]:
    """Label of every action monomial: a + 2 for a power of action a alone, 1 for the constant, 0 for all that vanish.

    >>> own_powers(2, 2, 6).tolist()  # 1, a, b, aa, ab, bb
    [1, 2, 3, 2, 0, 3]
    """
    owner = np.zeros(size, dtype="int8" if n_actions < 126 else "int16")
    owner[0] = 1
    for power in range(1, degree + 1):
        first, count = comb(n_actions + power - 1, power - 1), comb(n_actions + power - 1, power)
        for a in range(n_actions):
            owner[first + count - comb(n_actions - a + power - 1, power)] = a + 2
    return owner
