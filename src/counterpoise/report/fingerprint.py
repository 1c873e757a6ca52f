"""A short code for the rows behind a result, which tells whether a report and another run used the same data."""

from __future__ import annotations

import hashlib

import numpy as np

from counterpoise.evaluation.result import Result
from counterpoise.moments import Moments


def fingerprint(result: Result) -> str:
    """A short code for the rows behind a result: the same for the same rows in any order, on any engine.

    It uses only six digits of the sums, because their last digits differ from one machine to another.
    """
    log = result.moments
    parts = [str(log.n), str(log.dropped), "|".join(log.segment_columns), str(log.cluster)]
    for target in log.targets:
        parts += [target, *_digits(Moments.stack([log[target]]))[0]]
    order = sorted(range(len(log.segments)), key=lambda k: repr(log.segments[k])) if log.segment_columns else []
    for target in log.targets:
        rows = log.moments[target, ""].merge(axis=1)
        digits = _digits(rows)
        for k in order:
            parts += [repr(log.segments[k]), str(rows.n[k]), *digits[k]]
    code = "\x1f".join(parts).encode("utf-8", "replace")
    return hashlib.sha256(code.replace(b"-0.000000", b"0.000000")).hexdigest()[:16]


def _digits(rows: Moments) -> list[list[str]]:
    """Six digits of the sums of every member of a stack; nothing for a member without rows."""
    with np.errstate(invalid="ignore"):
        spread, noise = (np.sqrt(rows.covariance(name, name)) for name in ("s", "us"))
    sums = (1.0 + rows.average("u"), rows.covariance("u", "u"), rows.center + rows.average("s"), spread)
    numbers = np.stack([*sums, rows.average("us"), noise], axis=-1)
    size = np.maximum(np.abs(numbers).max(axis=-1), 1.0)
    return [
        [*(f"{x:.6f}" for x in row), f"{largest:.6g}"] if n else []
        for n, row, largest in zip(rows.n, numbers / size[:, None], size, strict=True)
    ]
