"""Whether the arms of a test have the shares of rows that they should have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from counterpoise.display import p_value
from counterpoise.moments import Floats

MISMATCH = 0.001  # a test is looked at many times, and a false alarm costs it
EXACT = 10_000  # rows, up to which two arms are counted by the binomial distribution itself


@dataclass(frozen=True)
class SampleRatio:
    """How many rows every arm has, the share it should have, and how likely such counts are by chance.

    A mismatch means that the arms are not what was randomized: a bug in the assignment, bots, or one arm losing more rows than another.
    Differences between such arms mean nothing until the cause is known. `p` is nan if no shares were planned.
    """

    rows: Mapping[str, int]
    planned: Mapping[str, float] | None
    p: float

    @property
    def is_mismatch(self) -> bool:
        """Whether the shares are off by more than chance."""
        return self.p < MISMATCH

    def __str__(self) -> str:
        return self.text("row")

    def text(self, unit: str) -> str:
        """What the shares say, to readers to whom a row is a `unit`."""
        total = sum(self.rows.values())
        shares = ", ".join(f"{name} {100 * n / total:.4g} %" for name, n in self.rows.items())
        if self.planned is None:
            return f"Shares of the {unit}s: {shares}. The planned shares were not given, so these are not tested."
        planned = ", ".join(f"{name} {100 * share:.4g} %" for name, share in self.planned.items())
        said = f"Shares of the {unit}s: {shares}; planned: {planned} (p {p_value(self.p)})"
        if not self.is_mismatch:
            return f"{said}: as planned, up to chance."
        return (
            f"{said}. SAMPLE RATIO MISMATCH: the arms are not the groups that were randomized. Look for {unit}s that one arm loses, for "
            "assignments that changed on the way, or for bots; until then, do not believe any difference between the arms."
        )


def sample_ratio(rows: Mapping[str, Floats], planned: Mapping[str, float] | None, *, is_clustered: bool) -> SampleRatio:
    r"""The test of the arms' shares, from the rows of every arm in each of the groups that clusters were hashed into.

    Two arms and few rows: the binomial distribution itself. Otherwise Pearson's :math:`\sum (n_k - n s_k)^2 / (n s_k)`. Where the rows of a
    cluster are in the same arm, rows are not independent: then the shares' covariance is the jackknife's over groups, and the test is
    Hotelling's.

    >>> ratio = sample_ratio({"a": np.array([5_300.0]), "b": np.array([4_700.0])}, {"a": 0.5, "b": 0.5}, is_clustered=False)
    >>> ratio.is_mismatch, round(ratio.p * 1e9, 1)
    (True, 2.1)

    References
    ----------
    Fabijan et al., "Diagnosing sample ratio mismatch in online controlled experiments", KDD 2019.
    """
    from scipy.special import bdtr, chdtrc, fdtrc  # which takes long to import

    counts = {name: int(arm.sum()) for name, arm in rows.items()}
    if planned is None:
        return SampleRatio(counts, None, float("nan"))
    arms, shares = np.stack(list(rows.values())), np.array([planned[name] for name in rows])
    total = arms.sum(axis=1)
    n = total.sum()
    if (
        is_clustered
    ):  # Hotelling's test of all shares but the last, whose covariance is that of leaving out one group at a time
        arms = arms[:, arms.sum(axis=0) > 0]
        free, groups = len(shares) - 1, arms.shape[1]
        if groups <= free + 1:
            return SampleRatio(counts, dict(planned), float("nan"))
        without = (total[:, None] - arms) / (n - arms.sum(axis=0))
        apart = without[:free] - without[:free].mean(axis=1, keepdims=True)
        covariance = (groups - 1) / groups * apart @ apart.T
        off = (total / n - shares)[:free]
        statistic = float(off @ np.linalg.pinv(covariance) @ off)
        p = fdtrc(free, groups - free, statistic * (groups - free) / (free * (groups - 1)))
    elif len(total) == 2 and n <= EXACT:
        k, share, m = float(total[0]), float(shares[0]), int(n)
        below, above = bdtr(k, m, share), 1.0 - (bdtr(k - 1, m, share) if k else 0.0)
        p = min(2.0 * min(below, above), 1.0)
    else:
        p = chdtrc(len(total) - 1, (np.square(total - n * shares) / (n * shares)).sum())
    return SampleRatio(counts, dict(planned), float(p))
