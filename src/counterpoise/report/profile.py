"""What sums cannot show and one more pass over the log can: a histogram of the weights, and the estimate as rows come in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import TYPE_CHECKING

import numpy as np

from counterpoise.engines.rows import over_good_rows, rows_of
from counterpoise.errors import CounterpoiseError
from counterpoise.estimators import Estimate, beta_ips
from counterpoise.intervals.method import normal
from counterpoise.log.question import PROPENSITY, Question
from counterpoise.moments import Floats, Moments

if TYPE_CHECKING:
    import polars as pl

CHECKPOINTS = 60
EDGES = 10.0 ** np.arange(-4.0, 6.05, 0.1)  # of the histogram; what lies beyond falls into the outermost bins


@dataclass
class Profile:
    """One target's β-IPS after each part of the rows, how many of its weights fall into each bin, and how many are 0."""

    steps: list[Estimate] = field(default_factory=list)
    counts: Floats = field(default_factory=lambda: np.zeros(len(EDGES) - 1))
    zeros: int = 0


def profile(question: Question, targets: Sequence[str], *, rows: int, level: float) -> dict[str, Profile]:
    """One pass, in row order, over the rows behind the question's estimates, of which there are about `rows`.

    >>> from counterpoise import evaluate
    >>> log = {"r": [1, 0, 1, 1], "p": [0.5, 0.5, 0.25, 0.5], "pi_new": [0.5, 0.25, 0.5, 0.25]}
    >>> result = evaluate(log, reward="r", propensity="p", target={"new": "pi_new"})
    >>> found = profile(result.question, ["new"], rows=4, level=0.95)["new"]
    >>> [step.n for step in found.steps], int(found.counts.sum())
    ([1, 2, 3, 4], 4)
    """
    chosen = {target: question.names.targets[question.target_names.index(target)] for target in targets}
    reward = question.names.rewards[0]

    def pass_over(batches: Iterator[pl.DataFrame]) -> dict[str, Profile]:
        profiles = {target: Profile() for target in targets}
        running = {target: Moments.empty() for target in targets}
        done, every, center = 0, max(1, -(-rows // CHECKPOINTS)), None
        for batch in batches:
            r = batch.get_column(reward).to_numpy()
            p = batch.get_column(PROPENSITY).to_numpy() if question.weight.needs_propensity else r
            center = float(r.mean()) if center is None and len(r) else center
            weights = {  # of the whole batch: a column in pieces becomes an array only once
                target: question.weight.weight(batch.get_column(column).to_numpy(), p)
                for target, column in chosen.items()
            }
            for target, w in weights.items():
                _count(profiles[target], w)
            for part in _parts(len(r), done, every):
                done += part.stop - part.start
                for target, w in weights.items():
                    running[target] += Moments.of(w[part], r[part], center=center)
                    if done % every == 0:
                        profiles[target].steps.append(_step(running[target], level))
        for target in targets if done % every else ():
            profiles[target].steps.append(_step(running[target], level))
        return profiles

    return over_good_rows(question, pass_over)


def _parts(length: int, seen: int, every: int) -> Iterator[slice]:
    """A batch, cut wherever a checkpoint falls into it: `seen` rows came before it, and there is a checkpoint `every` so many rows."""
    first = 0
    while first < length:
        last = min(length, first + every - (seen + first) % every)
        yield slice(first, last)
        first = last


def _count(profile: Profile, w: Floats) -> None:
    some = w[w > 0]
    profile.counts += np.histogram(np.clip(some, EDGES[0], EDGES[-1]), EDGES)[0]
    profile.zeros += len(w) - len(some)


def _step(moments: Moments, level: float) -> Estimate:
    estimate = beta_ips(moments)
    return replace(estimate, interval=normal(estimate.value, estimate.stderr, level))


# -- The days that a log goes from and to -----------------------------------------------------------------------------


def dates_of(question: Question) -> str:
    """The first and the last day of a log with a single column of dates or times; empty for others.

    >>> from datetime import date
    >>> from counterpoise import evaluate
    >>> log = {"r": [1, 0], "p": [0.5, 0.5], "t": [0.5, 0.5], "day": [date(2026, 3, 14), date(2026, 3, 1)]}
    >>> dates_of(evaluate(log, reward="r", propensity="p", target="t").question)
    '1–14 March 2026'
    """
    import polars as pl

    try:
        rows = rows_of(question.log)
        days = [name for name, kind in rows.collect_schema().items() if kind in (pl.Date, pl.Datetime)]
        if len(days) != 1:
            return ""
        column = pl.col(days[0])
        first, last = rows.select(column.min().alias("first"), column.max().alias("last")).collect().row(0)
    except (CounterpoiseError, pl.exceptions.PolarsError):
        return ""  # dates are a courtesy
    return "" if first is None else days_between(first, last)


def days_between(first: date, last: date) -> str:
    """Two days as people write them.

    >>> days_between(date(2026, 3, 1), date(2026, 4, 2)), days_between(date(2025, 3, 1), date(2025, 3, 1))
    ('1 March – 2 April 2026', '1 March 2025')
    """
    end = f"{last.day} {last:%B %Y}"
    if (first.year, first.month, first.day) == (last.year, last.month, last.day):
        return end
    if (first.year, first.month) == (last.year, last.month):
        return f"{first.day}–{end}"
    return f"{first.day} {first:%B}{'' if first.year == last.year else f' {first.year}'} – {end}"
