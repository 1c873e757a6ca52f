"""`Slope`: a weight whose constant the log itself chooses, from a ladder of constants that one pass adds up side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from counterpoise.errors import OptionError
from counterpoise.log.good import Values
from counterpoise.weights.constants import least_biased_first
from counterpoise.weights.ratio import Ratio
from counterpoise.weights.weight import Weight


@dataclass(frozen=True)
class Slope(Weight):
    """One kind of weight with every constant of a ladder, among which SLOPE chooses: `Slope(Clip)`, `Slope(Shrink, [10, 100, 1000])`.

    The plain importance weight is the first rung, then come the constants from the least biased on. For each target the log chooses
    the rung with the least standard error whose interval (half an error to either side) still meets the intervals of all rungs before
    it, over the whole log: bias is traded for variance as long as it is not larger than the errors. `result.ladder()` shows all rungs.
    It takes one pass still, in which a rung is one more target whose column has been read already: with the ten rungs of `Clip` about
    three times as long as without. Of each rung only the largest weight is kept, not the tail. The constants do not depend on
    the log, so that the moments of days add up.

    Whether it pays is a matter of the log: where the plain weight is the best of the ladder, the choice adds a little noise of its own.

    A kind of your own is a class that makes a weight from a constant; name its constants from the least biased on.

    >>> from counterpoise.weights import Clip
    >>> Slope(Clip, [1, 100]).rungs
    (Ratio(), Clip(most=100.0), Clip(most=1.0))

    References
    ----------
    Su, Srinath & Krishnamurthy, "Adaptive estimator selection for off-policy evaluation", ICML 2020.
    """

    kind: Any
    constants: Sequence[float] | None = None

    def __post_init__(self) -> None:
        kind, constants = self.kind, self.constants
        if not isinstance(kind, type) or not isinstance(kind, Weight):
            raise OptionError(
                f"Slope takes a kind of weight that has a constant, such as counterpoise.weights.Clip; found {kind!r}."
            )
        if constants is None:
            constants = getattr(kind, "ladder", ())
        elif isinstance(constants, str) or not isinstance(constants, Sequence):
            raise OptionError(f"the constants of Slope are a list of numbers, found {constants!r}.")
        if not constants or len(set(constants)) < len(constants):
            raise OptionError(f"Slope needs constants, each of them once; found {list(constants)!r}.")
        for one in constants:
            kind(one)  # raises an error for one that it does not take
        unbiased_at = getattr(kind, "unbiased_at", None)
        in_order = tuple(map(float, constants)) if unbiased_at is None else least_biased_first(constants, unbiased_at)
        object.__setattr__(self, "constants", in_order)

    @property
    def rungs(self) -> tuple[Weight, ...]:
        """The weights to choose from, the unbiased one first."""
        return (Ratio(), *(self.kind(one) for one in self.constants or ()))

    def weight(self, target: Values, propensity: Values) -> Values:
        """That of the first rung, the importance weight."""
        return Ratio().weight(target, propensity)

    def excess(self, target: Values, propensity: Values) -> Values:
        """That of the first rung."""
        return Ratio().excess(target, propensity)

    def difference(self, target: Values, other: Values, propensity: Values) -> Values:
        """That of the first rung."""
        return Ratio().difference(target, other, propensity)
