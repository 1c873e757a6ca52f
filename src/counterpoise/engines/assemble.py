"""This file holds the way from the aggregate query's answer to a log's moments, whichever engine answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from counterpoise.engines.query import excess_of, moments_of
from counterpoise.log.request import Request
from counterpoise.moments import Floats
from counterpoise.moments.log_moments import Label, LogMoments, as_label, in_order
from counterpoise.moments.tails import EMPTY, Tail

Largest = Mapping[Label, Floats]  # segment → its largest weights in descending order


def numbers_of(answer: pl.DataFrame) -> dict[str, Floats]:
    """The answer's columns as float64, with nan for null; some engines' sums are decimals."""
    names = [name for name in answer.columns if not name.startswith("k")]
    return {name: answer.get_column(name).cast(pl.Float64).to_numpy() for name in names}


def labels_of(answer: pl.DataFrame, request: Request) -> list[Label]:
    """The segment of each of the answer's rows."""
    keys = [f"k{j}" for j in range(len(request.segment))]
    return [as_label(row) for row in answer.select(keys).rows()] if keys else [()] * answer.height


def assemble(
    numbers: Mapping[str, Floats],
    labels: Sequence[Label],
    largest: Mapping[str, Largest],
    request: Request,
    centre: float,
    *,
    dropped: int = 0,
    duplicates: int | None = None,
) -> LogMoments:
    """Moments of a log from the answer of the query, one row per label, and from each target's largest weights."""
    segments = in_order(labels)
    place = {label: k for k, label in enumerate(segments)}
    at = np.array([place[label] for label in labels], dtype=np.int64)
    lowest, highest = np.full(len(segments), np.inf), np.full(len(segments), -np.inf)
    np.fmin.at(lowest, at, numbers["r_min"])
    np.fmax.at(highest, at, numbers["r_max"])
    tails = {}
    for t in excess_of(request):
        zeros = np.zeros(len(segments))
        np.add.at(zeros, at, np.nan_to_num(numbers[f"zero{t[1:]}"]))
        weights = largest[t]
        tails[request.targets[int(t[1:])], ""] = tuple(
            Tail(weights.get(label, EMPTY.weights), int(zeros[j])) for j, label in enumerate(segments)
        )
    centres = np.full((len(segments), 1), centre)
    if "c" in numbers:
        centres[at, 0] = numbers["c"]
    moments = moments_of(numbers, request, centres, at, len(segments))
    return LogMoments(
        moments,
        tails,
        segments,
        lowest,
        highest,
        request.segment,
        request.cluster,
        tuple(request.control.items()),
        dropped,
        duplicates,
    )
