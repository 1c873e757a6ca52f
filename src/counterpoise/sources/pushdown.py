"""The pushdown: the aggregate query runs where the log lives, and only its small answer travels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl

from counterpoise.errors import ColumnError, LogError, OptionError
from counterpoise.log_moments import Contrast, Label, LogMoments, as_label
from counterpoise.moments import Floats
from counterpoise.sources import checks
from counterpoise.sources.assemble import assemble, labels_of, numbers_of
from counterpoise.sources.embedded import centre_of
from counterpoise.sources.groups import PRIME, with_groups
from counterpoise.sources.query import aggregate, excess_of, indicator, is_well_centred
from counterpoise.sources.request import Request
from counterpoise.tails import KEPT

PER_STATEMENT = 10  # targets; with many more, engines spend minutes planning the statement

CLUSTER = (
    "the cluster's checksum"  # among the names of columns: where the cluster is text, and other parts may want the text
)

Frame = nw.LazyFrame[Any]
Collect = Callable[[Frame], pl.DataFrame]


@dataclass(frozen=True)
class Database:
    """Where a log lives, and how it is asked.

    `select` gives the rows with every column that a request names, some under other names, and which is which. A `fence` keeps the
    database from writing one step's expressions into the next.
    """

    select: Callable[[Request], tuple[Frame, Mapping[str, str]]]
    collect: Collect
    fence: Callable[[Frame, Request], Frame] = lambda rows, request: rows

    def rows(self, request: Request) -> Frame:
        """The columns under internal names."""
        frame, names = self.select(request)
        return self.fence(prepare(frame, request, names), request)

    def good(self, request: Request, part: Request, also: Sequence[str]) -> Frame:
        """The rows of a part of the request, with every number blank where one of its targets, or of those in `also`, is bad."""
        wider = only(request, (*part.targets, *(target for target in also if target not in part.targets)))
        return guard(self.rows(wider), wider, part, lambda rows: self.fence(rows, wider))


@dataclass(frozen=True)
class _Part:
    """What a few of the targets add up to: the sums of the good rows, and the number of all rows."""

    request: Request
    good: Frame
    answer: pl.DataFrame
    total: int

    @property
    def n(self) -> int:
        return int(numbers_of(self.answer)["n"].sum())


def summarise(log: Database, request: Request) -> LogMoments:
    """Moments of a log in a database: one aggregate per ten targets, then the largest weights of each target.

    Bad rows are blanked before any arithmetic, because databases stop at a division by zero where embedded engines carry on, so that
    one statement both counts the bad rows and adds up the good ones. Of many targets each statement knows the rules of its own, or
    their cost would grow with the square of their number; where that finds bad rows, they are asked again with a few rules more.
    """
    few = len(request.targets) <= PER_STATEMENT
    also = request.targets if few else ()
    if not few:
        log.rows(request)  # so that a missing column is known before the first statement runs
    centre, parts = None, []
    for part in split(request):
        good = log.good(request, part, also)
        if centre is None:
            centre = centre_of(log.collect(good.select("r").head(1000)).to_series().cast(pl.Float64))
        parts.append(_ask(log, part, good, centre))
    assert centre is not None  # a request has targets
    total = _one({part.total for part in parts})
    if total == 0:
        raise LogError("the log has no rows.")
    if all(part.n == total for part in parts):
        also = ()
    elif not request.drop_bad_rows:
        checks.refuse(_problems(log, request, parts), total)
    elif not few:
        also = _culprits(log, request, parts)
        parts = [_ask(log, part.request, log.good(request, part.request, also), centre) for part in parts]
    n = _one({part.n for part in parts})
    if n == 0:
        raise checks.all_bad(_problems(log, request, parts), total)
    found = together([_moments(log, request, part, also, centre) for part in parts], request)
    return replace(found, dropped=total - n, duplicates=duplicates_of(parts[0].good, request, n, log.collect))


def _one(counts: set[int]) -> int:
    """The count that all statements agree on."""
    if len(counts) > 1:
        raise LogError("the log changed while it was read: run it again, or read a copy that does not change.")
    return counts.pop()


def together(parts: Sequence[LogMoments], request: Request) -> LogMoments:
    """The moments of a request whose targets were asked for in pieces."""
    moments = {contrast: stack for part in parts for contrast, stack in part.moments.items()}
    tails = {contrast: tail for part in parts for contrast, tail in part.tails.items()}
    ordered = {contrast: moments[contrast] for contrast in request.contrasts}
    return replace(parts[0], moments=ordered, tails={key: tails[key] for key in ordered if not key[1]})


def prepare(frame: Frame, request: Request, names: Mapping[str, str]) -> Frame:
    """The columns under internal names: numbers as float64, segments, groups."""
    schema = frame.collect_schema()
    chosen = []
    for name, (part, column) in request.numbers.items():
        found = names.get(column, column)
        checks.check_type(part, column, schema[found])
        chosen.append(_number(nw.col(found), schema[found]).alias(name))
    chosen += [_segment(names.get(column, column), schema).alias(f"k{k}") for k, column in enumerate(request.segment)]
    chosen += [nw.col(names.get(column, column)).alias(f"key{k}") for k, column in enumerate(request.key)]
    if request.groups > 1:
        if request.cluster is None:
            raise OptionError(
                "rows in a database have no order to group them by: pass cluster=, the column of a whole number such as the "
                "user's id, for the jackknife and cross_fit."
            )
        ids = names.get(CLUSTER, names.get(request.cluster, request.cluster))
        if not schema[ids].is_integer():
            raise ColumnError(
                f"cluster {request.cluster!r} must hold whole numbers in this database, but holds {schema[ids]}. Pass an "
                "expression that makes one of it with the database's own hash function."
            )
        # the remainder first: an unsigned id may be too large for the type
        chosen.append((nw.col(ids) % PRIME).cast(nw.Int64).alias("g"))
    prepared = frame.select(*chosen)
    return with_groups(prepared, request.groups) if request.groups > 1 else prepared


def _segment(column: str, schema: Any) -> nw.Expr:
    """A segment's values; NaN is missing, or two groups would have one label."""
    return nw.when(~nw.col(column).is_nan()).then(nw.col(column)) if schema[column].is_float() else nw.col(column)


def _number(column: nw.Expr, dtype: Any) -> nw.Expr:
    if dtype == nw.Boolean:  # which not every database casts to a number
        column = nw.when(~column.is_null()).then(indicator(column))
    return column.cast(nw.Float64)


def guard(
    rows: Frame, request: Request, part: Request | None = None, fence: Callable[[Frame], Frame] = lambda rows: rows
) -> Frame:
    """The rows with every number of a bad one blank; of those that a part of the request needs, where one is given."""
    marked = fence(rows.with_columns(good=checks.valid(request)))
    numbers = (part or request).numbers
    return fence(marked.with_columns(*(nw.when(nw.col("good")).then(nw.col(name)).alias(name) for name in numbers)))


def split(request: Request) -> Iterator[Request]:
    """The request in pieces of a few targets.

    Segments and comparisons make a statement longer, and Spark plans for minutes where it is too long.
    """
    is_compared = any(other for _, other in request.contrasts)
    size = PER_STATEMENT // (2 if is_compared else 1) // (2 if request.segment or request.groups > 1 else 1)
    values = [target for target, against in request.contrasts if not against]
    against = {other for _, other in request.contrasts if other in request.targets}
    for k in range(0, len(values), size):
        chunk = values[k : k + size]
        contrasts = tuple(contrast for contrast in request.contrasts if contrast[0] in chunk)
        yield only(request, (*chunk, *(other for other in against if other not in chunk)), contrasts)


def only(request: Request, targets: Sequence[str], contrasts: Sequence[Contrast] = ()) -> Request:
    """The same question about some of the targets."""
    columns = {request.target_columns.get(target, target) for target in targets}
    return replace(
        request,
        targets=tuple(targets),
        contrasts=tuple(contrasts),
        model_value={target: request.model_value[target] for target in targets} if request.model_value else {},
        target_actions={made: taken for made, taken in request.target_actions.items() if made in columns},
    )


def _ask(log: Database, request: Request, good: Frame, centre: float | None) -> _Part:
    """The sums of some of the targets."""
    keys = [f"k{j}" for j in range(len(request.segment))]
    if centre is None:
        good = good.with_columns(c=nw.col("r").mean().over(*keys))
    answer = log.collect(aggregate(good, request, centre))
    total = int(numbers_of(answer)["n"].sum())
    return _Part(request, good, answer.with_columns(n=pl.col("p_count")).filter(pl.col("n") > 0), total)


def _moments(log: Database, request: Request, part: _Part, also: Sequence[str], centre: float) -> LogMoments:
    """Moments of some of the targets, around a centre that suits their rewards."""
    asked, sums = part.request, numbers_of(part.answer)
    if not is_well_centred(sums, labels_of(part.answer, asked)):
        # segments whose rewards are worlds apart, or first rows unlike the rest: every segment around its own mean
        centre += float(sums["s"].sum() / sums["n"].sum())
        part = _ask(log, asked, part.good, None if asked.segment else centre)
    largest = {}
    for name in excess_of(asked):
        # a statement about this target alone, which leaves the rules of the others out
        alone = only(request, [asked.targets[int(name[1:])]])
        largest[name] = _largest(log.good(request, alone, also), len(asked.segment), log.collect)
    return assemble(numbers_of(part.answer), labels_of(part.answer, asked), largest, asked, centre)


def _largest(good: Frame, segments: int, collect: Collect) -> dict[Label, Floats]:
    """The largest weights of the first target in every segment, in descending order."""
    keys = [f"k{j}" for j in range(segments)]
    weights = good.select(*keys, w=nw.col("t0") / nw.col("p")).filter(~nw.col("w").is_null())
    if not keys:
        top = collect(weights.sort("w", descending=True).head(KEPT))
        return {(): np.sort(top.get_column("w").cast(pl.Float64).to_numpy())[::-1]}
    rank = nw.col("w").rank("ordinal", descending=True).over(*keys)
    top = collect(weights.with_columns(place=rank).filter(nw.col("place") <= KEPT).select(*keys, "w"))
    grouped = top.group_by(keys).agg(pl.col("w").cast(pl.Float64))
    return {as_label(row[:-1]): np.sort(np.asarray(row[-1], dtype=np.float64))[::-1] for row in grouped.rows()}


def find_problems(rows: Frame, request: Request, collect: Collect) -> list[checks.Problem]:
    """Which rules are broken, how often, and one value that breaks each."""
    rules = checks.rules(request)
    bad = {f"rule{k}": ~rule.holds.fill_null(False) for k, rule in enumerate(rules)}
    marked = rows.with_columns(**bad)
    marked = marked.with_columns(
        *(indicator(nw.col(name)).alias(f"{name}_count") for name in bad),
        *(nw.when(nw.col(f"rule{k}")).then(nw.col(rule.shows)).alias(f"rule{k}_value") for k, rule in enumerate(rules)),
    )
    answer = collect(
        marked.select(
            *(nw.col(f"{name}_count").sum() for name in bad), *(nw.col(f"{name}_value").max() for name in bad)
        )
    ).row(0, named=True)
    return [
        checks.Problem(rule, int(answer[f"rule{k}_count"]), None, answer[f"rule{k}_value"])
        for k, rule in enumerate(rules)
        if answer[f"rule{k}_count"]
    ]


def _problems(log: Database, request: Request, parts: Sequence[_Part]) -> list[checks.Problem]:
    """What is wrong with the bad rows, in the order of the rules; a part that found none is not asked."""
    known: dict[tuple[str, str, str], checks.Problem] = {}
    for part in parts:
        if part.n < part.total:
            asked = only(part.request, part.request.targets)
            known |= {checks.key_of(one.rule): one for one in find_problems(log.rows(asked), asked, log.collect)}
    return [known[key] for key in map(checks.key_of, checks.rules(request)) if key in known]


def _culprits(log: Database, request: Request, parts: Sequence[_Part]) -> tuple[str, ...]:
    """Targets such that every bad row breaks a rule of one of them, or one that all targets share.

    Rows are often bad for many targets at once, and then the first of these will do.
    """
    found: tuple[str, ...] = ()
    for part in parts:
        if part.n < part.total:
            asked = only(request, (*found, *(target for target in part.request.targets if target not in found)))
            first = nw.lit(-1)
            for k, target in reversed(list(enumerate(asked.targets))):
                first = nw.when(_holds(asked, target)).then(first).otherwise(nw.lit(k))
            places = log.collect(log.rows(asked).select(first=first).unique()).to_series().to_list()
            found = tuple(target for k, target in enumerate(asked.targets) if target in found or k in places)
    return found


def _holds(request: Request, target: str) -> nw.Expr:
    """Whether a row is good for one of the targets."""
    own = (("target", target), ("model_value", request.model_value.get(target)))
    rules = [rule.holds for rule in checks.rules(request) if (rule.part, rule.column) in own]
    return nw.all_horizontal(*rules, ignore_nulls=False)


def duplicates_of(good: Frame, request: Request, n: int, collect: Collect) -> int | None:
    """Good rows whose key another good row has."""
    if not request.key:
        return None
    keys = [f"key{k}" for k in range(len(request.key))]
    distinct = collect(good.filter(nw.col("good")).select(*keys).unique().select(nw.len().alias("n")))
    return n - int(distinct.item())
