"""`SyntheticRanking`: lists of items shown, clicked and logged in long form, with a known truth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from counterpoise.environments.feedback import Floats, Integers, check_at_least, check_choice, check_seed
from counterpoise.errors import OptionError

if TYPE_CHECKING:
    import polars

Filling = Literal["plackett_luce", "independent"]
Clicks = Literal["position", "cascade", "dependent"]

NODES = 200  # of the quadrature, which is exact to 1e-12 for scores within e³ of each other
LISTS = 50_000  # in memory at a time
AFTER_CLICK, AFTER_NONE = 0.5, 0.95  # how likely a user of the cascade is to continue after a click, and after none


class SyntheticRanking:
    r"""A world that shows lists: items are chosen without replacement (Plackett–Luce) or slot by slot, and clicked as a model says.

    .. math:: \pi(a_k \mid x, a_1, \dots, a_{k-1}) = \frac{e^{f(x, a_k)}}{\sum_{a \notin \{a_1, \dots, a_{k-1}\}} e^{f(x, a)}}

    With ``logging="independent"``, both policies fill every slot without looking at the others, so an item may appear twice.
    Clicks follow one of three models: ``"position"``, the item's attraction times how often its position is looked at; ``"cascade"``, in
    which users read from the top and go on with a probability that depends on whether they clicked; and ``"dependent"``, in which every
    click also depends on all other items of the list, those below included. The new policy's scores are the logging policy's, moved
    toward attractive items by `sharper`.

    `draw` returns one row per position with both kinds of propensities, ``p_at`` and ``new_at`` of the item at its position and
    ``p_given`` and ``new_given`` of the item given those above; `value` is the new policy's expected number of clicks on a list.

    Examples
    --------
    >>> world = SyntheticRanking(positions=3, clicks="cascade")
    >>> world.draw(2).columns
    ['list', 'position', 'context', 'item', 'click', 'p_at', 'new_at', 'p_given', 'new_given']
    >>> new, error = world.value()
    >>> old, _ = world.value("logging")
    >>> new > old and error < 0.002
    True
    """

    def __init__(
        self,
        positions: int = 3,
        *,
        items: int | None = None,
        contexts: int = 3,
        logging: Filling = "plackett_luce",
        clicks: Clicks = "position",
        sharper: float = 1.0,
        seed: int = 0,
    ) -> None:
        check_at_least("positions", positions, 1)
        check_at_least("contexts", contexts, 1)
        check_seed(seed)
        self.positions, self.items = positions, positions + 5 if items is None else items
        if self.items < positions:
            raise OptionError(f"`items={items!r}` is too few for {positions} positions.")
        check_choice("logging", logging, get_args(Filling))
        check_choice("clicks", clicks, get_args(Clicks))
        self.logging, self.clicks, self.seed = logging, clicks, seed
        self._random = np.random.default_rng(seed)
        shape = (contexts, self.items)
        self.attraction: Floats = self._random.uniform(0.05, 0.6, shape)
        old = self._random.normal(0.0, 0.5, shape)
        self.scores = {"logging": old, "new": old + sharper * 2.0 * (self.attraction - 0.3)}
        self._at = {name: self._marginals(score) for name, score in self.scores.items()}

    def draw(self, lists: int) -> polars.DataFrame:
        """A log of so many lists, a row for each position; another call draws other lists."""
        import polars as pl

        check_at_least("lists", lists, 1)
        context = self._random.integers(len(self.attraction), size=lists)
        shown = self._lists("logging", context, self._random)
        clicks = self._draw_clicks(context, shown, self._random)
        k = np.arange(self.positions)
        columns = {
            "list": np.repeat(np.arange(lists), self.positions),
            "position": np.tile(k + 1, lists),
            "context": np.repeat(context, self.positions),
            "item": shown.ravel(),
            "click": clicks.ravel(),
        }
        policies = {"p": "logging", "new": "new"}
        columns |= {
            f"{name}_at": self._at[policy][context[:, None], k, shown].ravel() for name, policy in policies.items()
        }
        columns |= {
            f"{name}_given": self._conditional(policy, context, shown).ravel() for name, policy in policies.items()
        }
        return pl.DataFrame(columns)

    def value(self, policy: Literal["new", "logging"] | Floats = "new", *, draws: int = 200_000) -> tuple[float, float]:
        """The expected clicks on a list, and the standard error of that: 0 for the position model, else from so many drawn lists.

        Given the list, the expected clicks are known, so that only the lists are drawn. Instead of one of its two policies, you may pass
        the scores of your own, contexts × items, whose lists are always drawn.
        """
        if isinstance(policy, str) and self.clicks == "position":
            expected = np.einsum("xka,xa,k->x", self._at[policy], self.attraction, self._attention())
            return float(expected.mean()), 0.0
        random = np.random.default_rng([self.seed, 1])
        parts = []
        for start in range(0, draws, LISTS):
            context = random.integers(len(self.attraction), size=min(LISTS, draws - start))
            parts.append(self._expected_clicks(context, self._lists(policy, context, random)).sum(axis=1))
        clicks = np.concatenate(parts)
        return float(clicks.mean()), float(clicks.std() / np.sqrt(draws))

    def _attention(self) -> Floats:
        return np.asarray(1.0 / np.sqrt(np.arange(1, self.positions + 1)))

    def _lists(self, policy: str | Floats, context: Integers, random: np.random.Generator) -> Integers:
        """Lists that a policy shows, one in every context."""
        score = (self.scores[policy] if isinstance(policy, str) else self._own(policy))[context]
        if self.logging == "plackett_luce":  # the largest of scores with Gumbel noise are a draw without replacement
            return np.asarray(np.argsort(-(score + random.gumbel(size=score.shape)), axis=1)[:, : self.positions])
        slots = [(score + random.gumbel(size=score.shape)).argmax(axis=1) for _ in range(self.positions)]
        return np.stack(slots, axis=1)

    def _own(self, scores: Floats) -> Floats:
        """The scores of somebody else's policy, checked."""
        own = np.asarray(scores, dtype=np.float64)
        if own.shape != self.attraction.shape:
            raise OptionError(
                f"scores must have a row for each of the {len(self.attraction)} contexts and a column for each of the {self.items} "
                f"items; found shape {own.shape}."
            )
        return own

    def _conditional(self, policy: str, context: Integers, shown: Integers) -> Floats:
        """The probability of every item given those above it."""
        if self.logging == "independent":
            return np.asarray(self._at[policy][context[:, None], np.arange(self.positions), shown])
        odds = np.exp(self.scores[policy])
        own = odds[context[:, None], shown]
        above = np.cumsum(own, axis=1) - own
        return np.asarray(own / (odds.sum(axis=1)[context][:, None] - above))

    def _marginals(self, score: Floats) -> Floats:
        """The probability of every item at every position, contexts × positions × items."""
        odds = np.exp(score - score.max(axis=1, keepdims=True))
        if self.logging == "independent":
            share = odds / odds.sum(axis=1, keepdims=True)
            return np.repeat(share[:, None, :], self.positions, axis=1)
        return np.stack([_places(row, self.positions) for row in odds])

    def _expected_clicks(self, context: Integers, shown: Integers) -> Floats:
        """The expected click at every position of given lists."""
        own = self.attraction[context[:, None], shown]
        if self.clicks == "cascade":
            on = AFTER_CLICK * own + AFTER_NONE * (1.0 - own)
            reached = np.cumprod(np.concatenate([np.ones((len(own), 1)), on[:, :-1]], axis=1), axis=1)
            return np.asarray(reached * own)
        looked_at = self._attention() * own
        if self.clicks == "position":
            return np.asarray(looked_at)
        others = (own.sum(axis=1, keepdims=True) - own) / max(self.positions - 1, 1)
        return np.asarray(looked_at * (1.6 - 2.0 * others).clip(0.0, 1.6) / 1.6)

    def _draw_clicks(self, context: Integers, shown: Integers, random: np.random.Generator) -> Floats:
        """Clicks on given lists."""
        if self.clicks != "cascade":
            return np.asarray((random.random(shown.shape) < self._expected_clicks(context, shown)).astype(np.float64))
        own = self.attraction[context[:, None], shown]
        clicks, is_reading = np.zeros(shown.shape), np.ones(len(shown), dtype=bool)
        for k in range(self.positions):
            clicks[:, k] = is_reading & (random.random(len(shown)) < own[:, k])
            goes_on = random.random(len(shown)) < np.where(clicks[:, k] > 0, AFTER_CLICK, AFTER_NONE)
            is_reading &= goes_on
        return clicks


def _places(odds: Floats, positions: int) -> Floats:
    r"""How likely each item of a Plackett–Luce draw is at each of the first positions.

    Items race with exponential times at their odds as rates: an item is k-th if k − 1 others are there before it, so that

    .. math:: P(a, k) = \int_0^\infty \theta_a e^{-\theta_a t} \Pr(\text{exactly } k - 1 \text{ others by } t) \, dt

    >>> _places(np.array([1.0, 1.0, 2.0]), 2).round(4).tolist()
    [[0.25, 0.25, 0.5], [0.3333, 0.3333, 0.3333]]
    """
    x, w = np.polynomial.legendre.leggauss(NODES)
    # t = −log(s)/rate with s in (0, 1): the integrand is then smooth up to its ends for rates of a like size
    s, rate = (x + 1.0) / 2.0, float(odds.min())
    arrived = 1.0 - s[None, :] ** (odds[:, None] / rate)  # items × nodes
    density = (odds[:, None] / rate) * s[None, :] ** (odds[:, None] / rate - 1.0) * (w / 2.0)
    shares = np.empty((positions, len(odds)))
    for a in range(len(odds)):
        before = np.zeros((positions, NODES))  # how likely so many of the others have arrived
        before[0] = 1.0
        for b in range(len(odds)):
            if b != a:
                before[1:] = before[1:] * (1.0 - arrived[b]) + before[:-1] * arrived[b]
                before[0] *= 1.0 - arrived[b]
        shares[:, a] = (before * density[a]).sum(axis=1)
    return shares
