"""Jackknife intervals: what we learn from leaving out one group of clusters at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from counterpoise.intervals.method import Evidence, Interval, Method, check_level, degrees_of_freedom, symmetric
from counterpoise.intervals.student_t import t_quantile
from counterpoise.moments import Floats


@dataclass(frozen=True)
class Jackknife(Method):
    """Right even if rows of the same cluster are alike."""

    name: ClassVar[str] = "jackknife"
    about: ClassVar[str] = (
        "Jackknife intervals: made by leaving out one group of clusters after another, so <rows> of the same cluster may be alike."
    )
    needs_groups: ClassVar[bool] = True

    def interval(self, evidence: Evidence, level: float) -> Interval:
        """See `jackknife`."""
        return jackknife(evidence.value, evidence.stderr, evidence.groups, level, clusters=evidence.clusters)


def jackknife(value: float, stderr: float, groups: int, level: float = 0.95, *, clusters: float = math.inf) -> Interval:
    """Value ± t·stderr, with one degree of freedom less than the number of groups or effective `clusters`, whichever is smaller.

    >>> from counterpoise.intervals.method import normal
    >>> jackknife(0.0, 1.0, 11).width > normal(0.0, 1.0).width
    True
    >>> jackknife(0.0, 1.0, 100, clusters=11.0).width == jackknife(0.0, 1.0, 11).width
    True
    """
    check_level(level)
    if groups < 2:
        return Interval(-math.inf, math.inf, level, Jackknife.name)
    freedom = degrees_of_freedom(math.inf, min(groups, clusters))
    return symmetric(value, float(t_quantile(freedom, (1 + level) / 2)) * stderr, level, Jackknife.name)


def jackknife_error(without: Floats, sizes: Floats) -> tuple[Floats, Floats]:
    r"""The standard error from the values without each group (last axis), and how many groups have rows.

    .. math:: \hat\sigma^2 = \frac{G - 1}{G} \sum_g \left(\hat\theta_{-g} - \bar\theta_{-}\right)^2

    If groups hold whole clusters, it is cluster-robust, for any smooth function of the moments and whatever the sizes of the groups.
    (The delete-m formula for unequal sizes assumes that a group's variance falls with its size, which is not true if a single user
    makes a group large.)

    Examples
    --------
    For a mean over groups of one row each, it is the textbook error, sd/√n:

    >>> rows = np.array([1.0, 2.0, 3.0, 6.0])
    >>> error, groups = jackknife_error((rows.sum() - rows) / 3, np.ones(4))
    >>> round(float(error), 12) == round(float(rows.std(ddof=1) / 2), 12)
    True

    References
    ----------
    Efron & Tibshirani, "An Introduction to the Bootstrap" (1993), section 11.5.
    """
    present = np.asarray(sizes) > 0
    groups = present.sum(axis=-1)
    left_out = np.where(present, without, 0.0)
    center = left_out.sum(axis=-1) / np.maximum(groups, 1)
    spread = np.square(np.where(present, left_out - center[..., None], 0.0)).sum(axis=-1)
    return np.where(groups > 1, np.sqrt(spread * (groups - 1) / np.maximum(groups, 1)), np.inf), groups


def effective_clusters(sizes: Floats) -> Floats:
    r"""How many clusters of equal size the clusters are worth, :math:`(\sum m)^2 / \sum m^2`, from the hashed groups' sizes (last axis).

    We do not count clusters one by one. Hashed into G groups of sizes M, two of them meet with chance 1/G, so that

    .. math:: E \sum_g M_g^2 = \sum_c m_c^2 \left(1 - \frac1G\right) + \frac{N^2}{G},

    which gives :math:`\sum m^2` to about √(2/G), 14 % for 100 groups. Sizes may be sums of weights instead of rows.

    Examples
    --------
    Four clusters of five rows in eight groups, two of which share one:

    >>> float(effective_clusters(np.array([10, 0, 5, 0, 0, 0, 5, 0])).round(2))
    3.5
    """
    sizes = np.asarray(sizes, dtype=np.float64)
    groups, total = sizes.shape[-1], sizes.sum(axis=-1)
    # ΣM² − N²/G, without its cancellation
    squares = np.square(sizes - total[..., None] / groups).sum(axis=-1) / max(1.0 - 1.0 / groups, 1e-300)
    known = (squares > 0) & (groups > 1)
    return np.where(known, np.maximum(np.square(total) / np.where(known, squares, 1.0), 1.0), np.inf)
