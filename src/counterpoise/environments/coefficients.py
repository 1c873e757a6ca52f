"""The sparse polynomial behind the simulator's rewards: which monomials, with which coefficients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement
from math import comb
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

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
    kind: NDArray[np.int64]

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
        # row by row, the stream is that of one (n_context, n_chosen) draw, of which we want few columns
        rows = _uniform_rows(random, 1 + n_context, n_chosen, position)
        own, terms = rows[0], rows[1:]
    else:
        # Nobody can permute 10¹⁰ monomials; each column that matters is then in with probability `ratio`.
        everyone = np.concatenate([[-1], np.tile(np.arange(n_actions), degree)])
        action = everyone[random.uniform(size=everyone.size) < ratio]
        context = random.uniform(-1, 1, size=n_context)
        own = random.uniform(-1, 1, size=action.size)
        terms = random.uniform(-1, 1, size=(n_context, action.size))
    return _by_kind(tuple(monomials[i] for i in chosen), context, own, terms, action, n_actions)


def _uniform_rows(random: np.random.RandomState, rows: int, size: int, position: NDArray[np.int64]) -> Floats:
    """Some columns of `uniform(-1, 1, size=(rows, size))`, drawn in one buffer: fresh memory costs more than the draws."""
    bits = np.random.MT19937()
    bits.state = cast(Any, random.get_state(legacy=False))
    generator, buffer = np.random.Generator(bits), np.empty(size)
    drawn = np.empty((rows, len(position)))
    for row in drawn:
        row[:] = -1.0 + 2.0 * generator.random(out=buffer)[position]
    return drawn


def own_powers(n_actions: int, degree: int, size: int) -> NDArray[Any]:
    """Label of every action monomial: a + 2 for a power of action a alone, 1 for the constant, 0 for all that vanish.

    >>> own_powers(2, 2, 6).tolist()  # 1, a, b, aa, ab, bb
    [1, 2, 3, 2, 0, 3]
    """
    owner = np.zeros(size, dtype=np.int8 if n_actions < 126 else np.int16)
    owner[0] = 1
    for power in range(1, degree + 1):
        first, count = comb(n_actions + power - 1, power - 1), comb(n_actions + power - 1, power)
        for a in range(n_actions):
            owner[first + count - comb(n_actions - a + power - 1, power)] = a + 2
    return owner


def _by_kind(
    monomials: tuple[tuple[int, ...], ...],
    context: Floats,
    own: Floats,
    terms: Floats,
    action: NDArray[np.int64],
    n_actions: int,
) -> Polynomial:
    """Gather the surviving terms by action, and the actions by equal reward function."""
    of_action = [tuple(np.flatnonzero((action == -1) | (action == a)).tolist()) for a in range(n_actions)]
    members = tuple(dict.fromkeys(of_action))
    number = {terms_of: k for k, terms_of in enumerate(members)}
    return Polynomial(
        monomials=monomials,
        context=context,
        offset=np.array([own[list(terms_of)].sum() for terms_of in members]),
        terms=terms,
        members=members,
        kind=np.array([number[terms_of] for terms_of in of_action]),
    )
