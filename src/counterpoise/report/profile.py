"""This file holds what one more pass over the log shows and sums cannot: the weights' histogram, and the estimate as rows come in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from counterpoise.errors import ColumnError, OptionError
from counterpoise.estimators import Estimate, beta_ips
from counterpoise.estimators.estimate import normal
from counterpoise.moments import Floats, Moments

CHECKPOINTS = 60
BATCH = 1_000_000
LARGEST = 1e50
EDGES = 10.0 ** np.arange(-4.0, 6.05, 0.1)  # of the histogram; what lies beyond falls into the outermost bins


@dataclass
class Profile:
    """Of one target: β-IPS after each part of the rows, and how many weights fall into each bin."""

    steps: list[Estimate] = field(default_factory=list)
    counts: Floats = field(default_factory=lambda: np.zeros(len(EDGES) - 1))


def profile(
    log: object, targets: tuple[str, ...], *, reward: str, propensity: str, rows: int, level: float
) -> dict[str, Profile]:
    """One pass over the log in row order, which holds about `rows` rows; rows with impossible values are passed over.

    >>> log = {"r": [1, 0, 1, 1], "p": [0.5, 0.5, 0.25, 0.5], "new": [0.5, 0.25, 0.5, 0.25]}
    >>> found = profile(log, ("new",), reward="r", propensity="p", rows=4, level=0.95)["new"]
    >>> [step.n for step in found.steps], int(found.counts.sum())
    ([1, 2, 3, 4], 4)
    """
    found = {target: Profile() for target in targets}
    running = {target: Moments.empty() for target in targets}
    seen, every, centre = 0, max(1, -(-rows // CHECKPOINTS)), None
    for r, p, t in _batches(log, targets, reward, propensity):
        centre = float(r.mean()) if centre is None and len(r) else centre
        first = 0
        while first < len(r):
            last = min(len(r), first + every - seen % every)
            part = slice(first, last)
            seen += last - first
            for target, share in zip(targets, t, strict=True):
                w = share[part] / p[part]
                running[target] += Moments.of(w, r[part], centre=centre)
                found[target].counts += np.histogram(np.clip(w[w > 0], EDGES[0], EDGES[-1]), EDGES)[0]
                if seen % every == 0:
                    found[target].steps.append(_step(running[target], level))
            first = last
    for target in targets:
        if seen % every:
            found[target].steps.append(_step(running[target], level))
    return found


def _step(moments: Moments, level: float) -> Estimate:
    estimate = beta_ips(moments)
    interval = normal(estimate.value, estimate.stderr, level)
    return Estimate("beta_ips", estimate.value, estimate.stderr, estimate.n, estimate.baseline, interval)


def _batches(
    log: object, targets: tuple[str, ...], reward: str, propensity: str
) -> Iterator[tuple[Floats, Floats, Floats]]:
    """Rewards, propensities and the targets' probabilities, batch by batch."""
    columns = list(dict.fromkeys((reward, propensity, *targets)))
    for frame in _frames(log, columns):
        try:
            table = {name: frame[name].cast(float, strict=False).to_numpy().astype(np.float64) for name in columns}
        except Exception as error:
            raise ColumnError(f"the report needs numbers in {', '.join(map(repr, columns))}: {error}") from error
        r, p, t = table[reward], table[propensity], np.stack([table[name] for name in targets])
        with np.errstate(invalid="ignore"):
            good = (np.abs(r) <= LARGEST) & (p > 0) & (p <= 1) & ((t >= 0) & (t <= LARGEST * p)).all(axis=0)
        yield r[good], p[good], t[:, good]


def _frames(log: object, columns: list[str]) -> Iterator[Any]:
    """The columns as polars frames; lazy ones come in batches."""
    import narwhals as nw
    import polars as pl

    if isinstance(log, Mapping):
        _check(columns, list(log))
        yield pl.DataFrame({name: np.asarray(log[name]) for name in columns})
        return
    try:
        frame = nw.from_native(log)  # type: ignore[call-overload]
    except TypeError as error:
        raise OptionError(
            f"the report's log is a mapping of arrays or a frame (pandas, polars, pyarrow, …); found {type(log).__name__}."
        ) from error
    _check(columns, frame.collect_schema().names())
    wanted = frame.select(columns)
    native = wanted.to_native()
    if isinstance(native, pl.LazyFrame):
        yield from native.collect_batches(chunk_size=BATCH, engine="streaming", maintain_order=True)
    elif isinstance(wanted, nw.LazyFrame):
        yield wanted.collect("polars").to_native()
    else:
        yield wanted.to_polars()


def _check(columns: list[str], available: list[str]) -> None:
    for name in columns:
        if name not in available:
            shown = ", ".join(map(repr, available[:20]))
            raise ColumnError(
                f"no column {name!r} for the report; the log has {shown}. Pass reward= and propensity= with the log."
            )
