"""Compares many policies: a ranking that allows for looking at all of them, and what drives a difference."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import narwhals as nw
import numpy as np
import polars as pl

from counterpoise.diagnostics.diagnose import holm
from counterpoise.display import ROWS, Block, Display, Name, Number, PValue, Table, estimate_cells, finite, percent
from counterpoise.engines.rows import over_good_rows
from counterpoise.errors import Sentence
from counterpoise.estimators import DIFFERENCES, Estimate, difference
from counterpoise.estimators.estimate import Baseline, linear
from counterpoise.evaluation.estimates import IntervalOptions, Quantities
from counterpoise.evaluation.view import View
from counterpoise.intervals import Evidence, Interval
from counterpoise.intervals.quantity import Quantity
from counterpoise.log.columns import PROPENSITY
from counterpoise.log.kinds import count_form, kinds_in, reduced, stands_for
from counterpoise.log.question import LOGGING, Question
from counterpoise.moments import Floats, Moments
from counterpoise.moments.log_moments import Segment

if TYPE_CHECKING:
    from counterpoise.evaluation.result import Result

Direction = Literal["better", "worse", "higher", "lower"]


@dataclass(frozen=True)
class Ranked:
    """One policy: its difference, an interval that holds at the same time as all the others, and Holm's p-value.

    The decision is ``"higher"`` or ``"lower"`` where the reward's name sounds like a cost and `minimize` was not said.
    """

    target: str
    value: float
    stderr: float
    interval: Interval
    p: float
    decision: Literal[Direction, "undecided"]


def direction(*, is_above: bool, minimize: bool | None) -> Direction:
    """What a difference whose interval excludes 0 means: it is better or worse, if anybody knows which way is up.

    >>> [direction(is_above=True, minimize=minimize) for minimize in (False, True, None)]
    ['better', 'worse', 'higher']
    """
    if minimize is None:
        return "higher" if is_above else "lower"
    return "worse" if is_above == minimize else "better"


class Ranking(Display, list[Ranked]):
    """The answer of `rank`: the policies, best first; highest first where it is not known whether less is better."""

    def cells(self) -> Table:
        """A row for each policy."""
        rows = [
            {
                "target": Name(policy.target),
                **estimate_cells(policy.value, policy.stderr, policy.interval, is_signed=True),
                "p": PValue(policy.p),
                "decision": policy.decision,
            }
            for policy in self
        ]
        return Table(rows, titles={"value": "difference"})

    def blocks(self, *, rows: int | None = ROWS) -> Iterator[Block]:
        """The policies as a table."""
        yield self.cells()
        if any(policy.decision in ("higher", "lower") for policy in self):
            yield Sentence("To learn which is better, pass `minimize=True` if less is, else `minimize=False`.")


@dataclass(frozen=True)
class Driver:
    """How much of the whole difference comes from one segment; the segments add up to the whole."""

    segment: Segment
    rows: int
    share_of_rows: float
    contribution: float
    stderr: float


def ranking_of(comparison: Result) -> Ranking:
    """The policies of a comparison, best first; see `rank` for how they are corrected for their number."""
    quantities = {name: _difference(comparison, name) for name in comparison.targets}
    is_ok = {name: comparison.verdicts[name, None].verdict == "ok" for name in quantities}
    tested = [quantity.p_value() if is_ok[name] else 1.0 for name, quantity in quantities.items()]
    ranked = []
    for (name, quantity), p in zip(quantities.items(), holm(tested), strict=True):
        estimate, interval = comparison.stated(name, comparison.best), quantity.interval(among=len(quantities))
        if not estimate.identified and not all(map(math.isfinite, estimate.interval)):
            interval = replace(estimate.interval, level=interval.level)
        sure = p <= 1 - comparison.level
        way = direction(is_above=estimate.value > 0, minimize=comparison.minimize)
        ranked.append(Ranked(name, estimate.value, estimate.stderr, interval, p, way if sure else "undecided"))
    order = 1.0 if comparison.minimize else -1.0
    best_first = sorted(ranked, key=lambda policy: math.inf if math.isnan(policy.value) else order * policy.value)
    return Ranking(best_first)


def _difference(comparison: Result, target: str) -> Quantity:
    """A difference, moved as far as the actions that the log lacks move its interval; of one that is not identified, nothing is known."""
    name, estimate = comparison.best, comparison.stated(target, comparison.best)
    bounds = estimate.interval
    if not estimate.identified and not all(map(math.isfinite, bounds)):
        return Quantity(Evidence(math.nan, math.inf, estimate.n), level=comparison.level)
    options = IntervalOptions.of(comparison)
    view = View(comparison.moments, (target, comparison.against))
    quantity = replace(Quantities(view, {name: DIFFERENCES[name]}, options).at(name), limits=bounds.limits)
    if not all(map(math.isfinite, bounds)) or tuple(quantity.interval()) == tuple(bounds):
        return quantity
    plain = quantity.endless.interval()
    return replace(quantity, moved=(bounds.lower - plain.lower, bounds.upper - plain.upper))


def drivers(comparison: Result, target: str | None = None) -> list[Driver]:
    r"""Where a difference comes from, largest part first.

    .. math:: \hat\Delta = \sum_s \frac{n_s}{n} \cdot \frac{1}{n_s} \sum_{i \in s} u_i (r_i - \beta)

    with a single β for the whole log, so that the parts add up to the whole, which is that of `beta_ips`.

    Examples
    --------
    >>> from counterpoise import compare
    >>> log = {"r": [1, 0, 1, 0], "p": [0.5] * 4, "new": [0.9, 0.1, 0.5, 0.5], "country": ["DE", "DE", "FR", "FR"]}
    >>> for driver in drivers(compare(log, reward="r", propensity="p", target="new", segment="country")):
    ...     print(driver.segment, round(driver.contribution, 3))
    ('DE',) 0.2
    ('FR',) 0.0
    """
    name = comparison.targets[0] if target is None else target
    log, whole = comparison.moments, comparison.estimates[name, "beta_ips", None]
    if not log.segment_columns:
        return []
    groups = log.moments[name, comparison.against]
    # rows of a part are mapped like those of the whole, so that they add up to it
    if any(kind.divisor for kind in kinds_in(groups.columns)):
        groups = reduced(groups, groups.merge(axis=0).merge(axis=0))
    together = groups.merge(axis=0)
    total = together.n * stands_for(together)  # rows by group, before sampling if they were sampled
    everyone = together.merge(axis=0)
    counts = count_form(everyone)
    counted_squares = float(everyone.n) if counts is None else _products(everyone, counts, counts)
    everything = float(total.sum())
    parts = []
    for k, segment in enumerate(log.segments):
        rows = groups.merge(axis=1)[k]
        part, size = _with_baseline(reduced(rows), whole.baseline), float(rows.n * stands_for(rows))
        share, mean = size / everything, part.value if part.n else 0.0
        if log.cluster is None:
            # over all rows, those of other segments being 0: how they differ within, and whether a row falls into the segment at all
            square, cross = _earned(rows, whole.baseline)
            around = square - 2.0 * share * mean * cross + (share * mean) ** 2 * counted_squares
            error = math.sqrt(max(around, 0.0)) / everything
        else:
            by_group, sizes = _with_baseline(reduced(groups[k]), whole.baseline), groups[k].n * stands_for(groups[k])
            earned = np.where(sizes > 0, sizes * np.nan_to_num(by_group.value), 0.0)
            count = int((total > 0).sum())
            around = np.square(earned - share * mean * total).sum()
            error = math.sqrt(around * count / (count - 1)) / everything if count > 1 else math.inf
        parts.append(Driver(segment, part.n, share, share * mean, error))
    return sorted(parts, key=lambda driver: -abs(driver.contribution))


def _with_baseline(moments: Moments, baseline: Baseline) -> Estimate:
    """The difference with given baselines: one, or one for each position of lists."""
    if not isinstance(baseline, tuple):
        return difference(moments, baseline=baseline)
    positions = {name: -beta for name, beta in zip(moments.ranks, baseline, strict=True)}
    return linear("difference", moments, 0.0, {"us": 1.0, "u": moments.center, **positions}, baseline=baseline)


def _earned(rows: Moments, baseline: Baseline) -> tuple[float, float]:
    """What rows earned less the baseline, squared and added up, and its products with how many rows each stands for."""
    betas = dict(zip(rows.ranks, baseline, strict=True)) if isinstance(baseline, tuple) else {"u": baseline}
    form = {"us": 1.0, "u": rows.center} | {
        name: (rows.center if name == "u" else 0.0) - beta for name, beta in betas.items()
    }
    own = rows.form(**form)
    counts = count_form(rows)
    cross = rows.n * float(own @ rows.mean) if counts is None else _products(rows, own, counts)
    return _products(rows, own, own), cross


def _products(rows: Moments, first: Floats, second: Floats) -> float:
    """The products of two sums of the columns, added up."""
    return float(first @ rows.scatter @ second + rows.n * (first @ rows.mean) * (second @ rows.mean))


# -- The rows that drive a difference ---------------------------------------------------------------------------------------


ROW = "row number in the log"  # a name that no log has
WEIGHT, OTHER = "its weight", "the other weight"
MOST_ROWS = 100_000  # of which the largest one in a hundred are reported


@dataclass(frozen=True)
class HeavyRow:
    """A row, its weights under both policies, and its part in the difference."""

    row: int
    reward: float
    propensity: float
    weight: float
    other_weight: float
    part: float


@dataclass(frozen=True, repr=False)
class Heaviest(Display):
    """The rows with the largest parts, and the share of all parts (by size) that the largest one percent of rows carry."""

    n: int
    rows: tuple[HeavyRow, ...]
    top_rows: int
    top_share: float
    target: str = ""

    def document(self) -> dict[str, object]:
        """What `counterpoise compare --rows` adds to a document."""
        return {"heaviest": finite(self)}

    def blocks(self, *, rows: int | None = ROWS) -> Iterator[Block]:
        """How much the largest rows carry, and what they are."""
        yield (
            f"The {self.top_rows:,} heaviest of {self.n:,} rows carry {percent(self.top_share)} of what moves the difference of "
            f"{self.target}. The heaviest, numbered from 0:"
        )
        cells = [vars(row) | {"part": Number(row.part, is_signed=True)} for row in self.rows]
        yield Table(cells, titles={"other_weight": "other weight"}).first(rows)


def heaviest(question: Question, *, target: str, against: str = LOGGING, baseline: float, count: int = 10) -> Heaviest:
    """The rows whose parts (w₁ − w₂)(r − β)/n in a difference are largest, among the rows behind the question's estimates.

    >>> import polars as pl
    >>> from counterpoise import compare
    >>> log = pl.DataFrame({"r": [1.0, 0.0, 9.0], "p": [0.5, 0.5, 0.1], "new": [0.5, 0.4, 0.8]})
    >>> asked = compare(log, reward="r", propensity="p", target="new").question
    >>> heavy = heaviest(asked, target="new", baseline=0.0, count=1)
    >>> heavy.rows[0].row, round(heavy.rows[0].part, 6)
    (2, 21.0)
    """
    columns = dict(zip(question.target_names, question.names.targets, strict=True))
    r, p, w, v = (nw.col(name) for name in (question.names.rewards[0], PROPENSITY, WEIGHT, OTHER))
    made = {WEIGHT: question.weight.weight(nw.col(columns[target]), p)}
    made[OTHER] = nw.lit(1.0) if against == LOGGING else question.weight.weight(nw.col(columns[against]), p)
    counts = nw.lit(1.0) if question.kept_with is None else 1.0 / nw.col(question.kept_with)
    part = (w - v) * (r - baseline) * counts
    wanted = [nw.col(ROW), r.alias("r"), p.alias("p"), w, v, part.alias("part"), counts.alias("counts")]
    size = pl.col("part").abs()
    order = [size, pl.col(ROW)]  # the first of rows with equal parts

    def largest(batches: Iterator[pl.DataFrame]) -> Heaviest:
        n, size_before, total, top = 0, 0.0, 0.0, pl.DataFrame()
        for batch in batches:
            parts = nw.from_native(batch).with_columns(**made).select(*wanted).to_native()
            n, total = n + parts.height, total + float(parts.select(size.sum()).item())
            size_before += float(parts.get_column("counts").sum())
            parts = parts.drop("counts")
            top = pl.concat([top, parts] if top.width else [parts]).top_k(
                max(MOST_ROWS, count), by=order, reverse=[False, True]
            )
        top = top.sort(order, descending=[True, False])
        first = min(max(1, n // 100), MOST_ROWS)
        carried = float(top.head(first).select(size.sum()).item())
        rows = (HeavyRow(int(k), r, p, w, v, part / size_before) for k, r, p, w, v, part in top.head(count).iter_rows())
        return Heaviest(n, tuple(rows), first, carried / total if total > 0 else 0.0, target)

    return over_good_rows(question, largest, number=ROW)
