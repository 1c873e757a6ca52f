"""Logs like a given one: its units drawn again with replacement, many times, and summed without another look at the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from counterpoise.engines.query import Query
from counterpoise.engines.summarize import Answer, assemble
from counterpoise.engines.units import Units, peak
from counterpoise.log.names import GROUP, ROWS, Lane, Names
from counterpoise.moments import Floats, LogMoments
from counterpoise.moments.log_moments import Label

CELLS = 4_000_000  # of the matrix of counts that is in memory at a time
DRAWN = "log drawn again"
FARTHEST = 30.0  # a unit's mass changes by e to this power at most


def tilted(units: Units, excess: str) -> Units:
    r"""The units with other masses, as near to their own as possible, under which the weights have mean 1.

    .. math:: m_k \to m_k e^{-\lambda u_k}, \qquad \sum_k m_k e^{-\lambda u_k} u_k = 0

    In the world that wrote the log, E[w] = 1, and estimators rely on it. In the log itself the mean is 0.9 or 1.1, so that in logs drawn
    from it a baseline would add an error that it does not have in the world.

    References
    ----------
    Hall & Presnell, "Intentionally biased bootstrap methods", Journal of the Royal Statistical Society B 61 (1999).
    """
    u, rows = units.sums[excess], units.sums[ROWS]
    size = np.abs(u).max()
    if not u.min() < 0.0 < u.max():
        return units  # no masses at all give a mean of 1
    scaled = u / size
    low, high = -FARTHEST, FARTHEST
    for _ in range(100):
        middle = (low + high) / 2
        total = float((units.mass * np.exp(-middle * scaled) * scaled).sum())
        low, high = (middle, high) if total > 0 else (low, middle)
    mass = units.mass * np.exp(-middle * scaled)
    return replace(units, mass=mass * (round(float(units.mass @ rows)) / float(mass @ rows)))


def drawn_again(
    units: Units, runs: int, *, groups: int, random: np.random.Generator, report: Callable[[int], None] | None = None
) -> LogMoments:
    """The moments of logs that were drawn again, one per segment; the first is of the units themselves, each as often as it is there.

    As many units are drawn as there are, with replacement and in proportion to their masses. Where there are `groups`, every unit that is
    drawn falls into one of them at random, as a cluster that is hashed.
    """
    step = max(1, CELLS // (len(units) + (groups - 1) * len(units.sums)))
    parts = [_summed(units, units.mass[None, :], groups, random)]
    share = units.mass / units.mass.sum()
    for start in range(0, runs, step):
        counts = random.multinomial(round(units.mass.sum()), share, size=min(step, runs - start))
        parts.append(_summed(units, counts.astype(np.float64), groups, random))
        if report is not None:
            report(len(counts))
    together = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return _assembled(units, together, groups)


def each_unit(units: Units) -> LogMoments:
    """The moments of every unit by itself, one per segment."""
    alone = {name: one[:, None] for name, one in units.sums.items()}
    return _assembled(units, alone | dict(units.lowest) | dict(units.highest), 1)


def _summed(units: Units, counts: Floats, groups: int, random: np.random.Generator) -> dict[str, Floats]:
    """The sums of some drawn logs, logs × groups, and their extremes."""
    columns = np.stack(list(units.sums.values()), axis=1)
    sums = (counts @ columns)[:, None] if groups == 1 else _by_group(counts, columns, groups, random)
    found = {name: sums[..., k] for k, name in enumerate(units.sums)}
    there = counts > 0
    found |= {name: np.where(there, one, np.inf).min(axis=1) for name, one in units.lowest.items()}
    return found | {name: np.where(there, one, -np.inf).max(axis=1) for name, one in units.highest.items()}


def _by_group(counts: Floats, columns: Floats, groups: int, random: np.random.Generator) -> Floats:
    """Every copy of a unit in a group of its own; the fractions of the log itself stay together."""
    from scipy.sparse import csr_array

    logs, units = counts.shape
    log, unit = np.nonzero(counts)
    often = counts[log, unit]
    copies = np.maximum(often.astype(np.int64), 1)
    log, unit, each = np.repeat(log, copies), np.repeat(unit, copies), np.repeat(often / copies, copies)
    spot = log * groups + random.integers(groups, size=len(log))
    summed = csr_array((each, (spot, unit)), shape=(logs * groups, units)) @ columns
    return np.asarray(summed).reshape(logs, groups, -1)


def _assembled(units: Units, sums: Mapping[str, Floats], groups: int) -> LogMoments:
    """Sums of logs × groups as moments, as an engine's answer would be."""
    names = Names(replace(units.question, segment=(DRAWN,), groups=groups))
    logs = len(sums[ROWS])
    peaks = {target: sums[peak(target)] for target in names.targets}
    labels: list[Label] = [(k,) for k in range(logs) for _ in range(groups)]

    def largest(lane: Lane) -> dict[Label, Floats]:
        return {(k,): peaks[lane.target][k : k + 1] for k in range(logs)}

    numbers = {name: np.repeat(one, groups) if one.ndim == 1 else one.ravel() for name, one in sums.items()}
    numbers |= {lane.zeros: np.zeros(logs * groups) for lane in names.lanes}
    numbers |= {GROUP: np.tile(np.arange(groups, dtype=np.float64), logs), ROWS: np.rint(numbers[ROWS])}
    rows = int(numbers[ROWS].sum())
    return assemble(Answer(numbers, labels, rows, True, largest), Query(names, (units.center,)), rows)[0]
