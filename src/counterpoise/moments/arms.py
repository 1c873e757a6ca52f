"""The arms of an A/B test as policies: from the moments of each arm's own rows to those of the difference between two arms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from counterpoise.moments.columns import CONTEXT, SQUARE
from counterpoise.moments.log_moments import Contrast, Label, LogMoments
from counterpoise.moments.moments import Moments
from counterpoise.moments.spread import KEPT, NOTHING, Powers, Tail
from counterpoise.moments.weighed import PLAIN


def pair_of_arms(log: LogMoments, arm: Label, against: Label) -> LogMoments:
    """The moments of two arms with arms as actions, and their shares of the pair's rows as propensities.

    `log` has the arms as its segments, and rows whose excess is 1. A policy that always takes arm A has the weight 1/p on the rows of A
    and 0 on those of B, so u is a constant in each arm, and everything follows from the arms' own sums: nothing is read again.
    """
    places = [log.segments.index(label) for label in (arm, against)]
    (stack,) = log.moments.values()
    sizes = [int(stack[k].n.sum()) for k in places]
    rows = sum(sizes)
    weights = [rows / size for size in sizes]
    first, second = names_of_arms((arm, against))
    excess: dict[Contrast, tuple[float, float]] = {
        (first, ""): (weights[0] - 1.0, -1.0),
        (second, ""): (-1.0, weights[1] - 1.0),
        (first, second): (weights[0], -weights[1]),
    }
    tails = {
        (name, ""): (Tail(np.full(min(sizes[k], KEPT), weights[k]), rows - sizes[k]),)
        for k, name in enumerate((first, second))
    }
    return replace(
        log,
        moments={
            key: Moments.stack(
                [Moments.stack([_with_excess(stack[k], u) for k, u in zip(places, us, strict=True)]).merge(0)]
            )
            for key, us in excess.items()
        },
        tails=tails,
        excess={
            key: (sum((Powers(size, u, np.zeros(4)) for size, u in zip(sizes, us, strict=True)), NOTHING),)
            for key, us in excess.items()
        },
        segments=((),),
        segment_columns=(),
        reward_min=log.reward_min[places].min(keepdims=True),
        reward_max=log.reward_max[places].max(keepdims=True),
        rewards=(log.rewards[places[0]] + log.rewards[places[1]],),
        weight=PLAIN,
    )


def _with_excess(arm: Moments, u: float) -> Moments:
    """The moments of rows that all have the excess `u`, from those of rows with the excess 1, where u·s is s and u·φ is φ."""
    columns = arm.columns
    scaled, known = np.zeros((len(columns), len(columns))), np.zeros(len(columns))
    for k, name in enumerate(columns):
        if name == "s":
            scaled[k, k] = 1.0
        elif name == "us":
            scaled[k, columns.index("s")] = u
        elif name.startswith(CONTEXT):
            scaled[k, k] = u
        else:
            known[k] = {"u": u, SQUARE: u * u}[name]
    mean = arm.mean @ scaled.T + known * (np.asarray(arm.n) > 0)[..., None]
    return Moments(arm.n, mean, scaled @ arm.scatter @ scaled.T, arm.center, columns)


def names_of_arms(labels: Sequence[Label]) -> tuple[str, ...]:
    """What arms are called.

    >>> names_of_arms([("new",), (1,), (True,)])
    ('new', '1', 'True')
    """
    return tuple(str(label[0]) for label in labels)
