"""The weight of a log that several policies wrote: the target against all of them together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from counterpoise.weights.ratio import Ratio


@dataclass(frozen=True)
class Balanced(Ratio):
    r"""The balanced weight of several loggers, whose mean is 1.

    .. math:: w = \frac{\pi(a \mid x)}{\sum_l s_l \, \pi_l(a \mid x)}

    with s the loggers' shares of the rows: what a row weighs does not depend on who wrote it. An action that one logger takes rarely and
    another often has a small weight on the rows of both, where t/p of the row's own logger would be huge on the rows of the first.
    A log whose `propensity` maps several loggers to their columns has this weight; the mixture is computed with the log's other columns.

    >>> Balanced(("a", "b"), ("p_a", "p_b"), "policy").weight(0.75, 0.5 * 0.25 + 0.5 * 0.75)
    1.5

    References
    ----------
    Agarwal, Basu, Schnabel & Joachims, "Effective evaluation using logged bandit feedback from multiple loggers", KDD 2017; Veach & Guibas,
    "Optimally combining sampling techniques for Monte Carlo rendering", SIGGRAPH 1995.
    """

    loggers: tuple[Any, ...]
    columns: tuple[str, ...]
    logger: str  # the column that says who wrote a row
