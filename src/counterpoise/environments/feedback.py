"""`Feedback`: logged bandit rows with a known truth, and the true value of any policy on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from counterpoise.errors import OptionError, did_you_mean

if TYPE_CHECKING:
    import polars

# -- The checks that all environments share ----------------------------------------------------------------------------


def check_at_least(name: str, value: int, least: int) -> None:
    """Check that an argument is large enough."""
    if value < least:
        raise OptionError(f"`{name}={value!r}` is too small; it must be at least {least:,}.")


def check_choice(name: str, choice: object, choices: Sequence[str], do: str = "") -> None:
    """Check that an argument is one of a few words; if something else may be passed instead, `do` says so."""
    if choice not in choices:
        what = f"`{name}={choice!r}` is not one of {', '.join(map(repr, choices))}."
        raise OptionError(what, suggestion=did_you_mean(choice, choices), do=do)


def check_seed(seed: int) -> None:
    """Check that NumPy's legacy generator accepts this seed."""
    if not 0 <= seed < 2**32:
        raise OptionError(f"`seed={seed!r}` is out of range; a seed is a whole number from 0 to 2³² − 1.")


def check_probabilities(whose: str, probabilities: NDArray[np.float64], shape: tuple[int, int], first: int = 0) -> None:
    """Check that every row of contexts got a row of probabilities; the first of them is row `first` of the log."""
    if probabilities.shape != shape:
        raise OptionError(
            f"{whose} must return {shape[1]} probabilities per row, an array of shape {shape}; found {probabilities.shape}."
        )
    total = probabilities.sum(axis=1)
    is_good = (probabilities >= 0).all(axis=1) & (np.abs(total - 1) < 1e-6)
    off = np.flatnonzero(~is_good)  # written like this, NaN is off too
    if off.size:
        raise OptionError(
            f"the probabilities of {whose} must be at least 0 and sum to 1, and in {off.size:,} of {len(probabilities):,} rows they "
            f"do not; the first is row {first + off[0]}, where the smallest is {probabilities[off[0]].min():.6g} and the sum is "
            f"{total[off[0]]:.6g}."
        )


# -- `Feedback` itself, and the drawing of actions ---------------------------------------------------------------------


Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Choices = Integers | Floats  # an action for every row, or the probabilities of all
PolicyOnRows = ArrayLike | Callable[[Floats], ArrayLike]

CHUNK = 2**18  # matrix cells at a time: 2 MB of float64, which stay in the cache however large n is


def chunks(n: int, width: int) -> Iterator[slice]:
    """Slices of 0 … n whose rows hold about `CHUNK` cells of `width` columns each."""
    rows = max(1, CHUNK // width)
    for start in range(0, n, rows):
        yield slice(start, min(start + rows, n))


@dataclass(frozen=True, eq=False)
class Feedback:
    """One batch of logged rows, with the expected reward of every action, taken or not.

    `expected(rows)` is the matrix of expected rewards for a slice of rows, one column per action. It is computed when you
    ask for it, so a batch of 10⁶ rows and 1,000 actions takes no more memory than its rows.

    Wherever a policy is asked for, pass one action per row, a row of probabilities per row, or a function from contexts
    to either.

    Examples
    --------
    >>> from counterpoise.environments import SyntheticBandit
    >>> log = SyntheticBandit(n_actions=3, seed=1).draw(1000)
    >>> log.context.shape, log.action.shape, log.propensity.shape
    ((1000, 5), (1000,), (1000,))
    >>> always_first = np.zeros(1000, dtype=int)
    >>> log.value(always_first) == float(log.expected_of(always_first).mean())
    True
    """

    context: Floats
    action: Integers
    reward: Floats
    propensity: Floats
    n_actions: int
    expected: Callable[[slice], Floats] = field(repr=False)

    def __len__(self) -> int:
        return len(self.action)

    def value(self, policy: PolicyOnRows) -> float:
        """The true value of a policy on these contexts: the mean over rows of its expected reward."""
        means = np.empty(len(self))
        for rows in chunks(len(self), self.n_actions):
            chosen, expected = self._of(policy, rows), self.expected(rows)
            means[rows] = _pick(expected, chosen) if chosen.ndim == 1 else np.einsum("ij,ij->i", expected, chosen)
        return float(means.mean())

    def expected_of(self, action: ArrayLike) -> Floats:
        """The expected reward of one action per row."""
        rewards = np.empty(len(self))
        for rows in chunks(len(self), self.n_actions):
            rewards[rows] = _pick(self.expected(rows), self._of(action, rows))
        return rewards

    def target(self, policy: PolicyOnRows) -> Floats:
        """The probability that a policy gives each logged action: what an evaluation needs besides the propensity."""
        probabilities = np.empty(len(self))
        for rows in chunks(len(self), self.n_actions):
            chosen, logged = self._of(policy, rows), self.action[rows]
            probabilities[rows] = chosen == logged if chosen.ndim == 1 else _pick(chosen, logged)
        return probabilities

    def frame(self, **policies: PolicyOnRows) -> polars.DataFrame:
        """The rows as a polars frame: context_0 …, action, reward, propensity, and a target column for each named policy."""
        import polars as pl

        columns: dict[str, NDArray[np.generic]] = {
            f"context_{j}": self.context[:, j] for j in range(self.context.shape[1])
        }
        columns |= {"action": self.action, "reward": self.reward, "propensity": self.propensity}
        return pl.DataFrame(columns | {name: self.target(policy) for name, policy in policies.items()})

    def _of(self, policy: PolicyOnRows, rows: slice) -> Choices:
        """What a policy does on a slice of rows: actions (one axis) or probabilities (two), checked."""
        count = rows.stop - rows.start
        if callable(policy):
            choices = np.asarray(policy(self.context[rows]))
        else:
            choices = np.asarray(policy)
            if choices.shape[:1] != (len(self),):
                raise OptionError(
                    f"a policy needs one entry per row: there are {len(self):,} rows, and its shape is {choices.shape}."
                )
            choices = choices[rows]
        if choices.shape == (count,) and np.issubdtype(choices.dtype, np.integer):
            if choices.size and (choices.min() < 0 or choices.max() >= self.n_actions):
                wrong = choices[(choices < 0) | (choices >= self.n_actions)]
                raise OptionError(
                    f"actions must be numbers from 0 to {self.n_actions - 1}, and {wrong.size:,} of the policy's are not; "
                    f"the first is {wrong[0]}."
                )
            return choices
        if choices.shape != (count, self.n_actions):
            raise OptionError(
                f"a policy must return one integer action or {self.n_actions} probabilities per row; "
                f"for {count:,} rows, this one returned {choices.dtype} of shape {choices.shape}."
            )
        check_probabilities("a policy", choices, (count, self.n_actions), first=rows.start)
        return choices


def _pick(matrix: Choices, column: Choices) -> NDArray[np.generic]:
    """One entry per row."""
    return np.asarray(matrix[np.arange(len(column)), column.astype(np.int64, copy=False)])


def sample_actions(mass: Floats, uniform: Floats) -> tuple[Integers, Floats]:
    """The first action whose cumulative probability exceeds the row's uniform draw, and the total mass of the row.

    `mass` has a row per action, is proportional to the probabilities, and is overwritten with its running sums: side by
    side, the sums are vector operations, which `cumsum` within a row is not.
    """
    for a in range(1, len(mass)):
        mass[a] += mass[a - 1]
    total = mass[-1]
    passed = (mass <= uniform * total).view(np.uint8).sum(axis=0, dtype=np.int64)
    return np.minimum(passed, len(mass) - 1), total
