"""The pushdown: the aggregate query runs where the log lives, and only its small answer travels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import narwhals as nw
import numpy as np
import polars as pl
from narwhals.dtypes import DType

from counterpoise.engines.lists import collapse
from counterpoise.engines.query import (
    FIRST,
    Frame,
    Numbers,
    Query,
    aggregate,
    broken_rules,
    center_of,
    context_aggregate,
    context_sums_of,
    is_clean,
    left_out,
    numbers_for,
)
from counterpoise.engines.summarize import Answer, Largest, labels_of, numbers_of
from counterpoise.errors import ColumnError, CounterpoiseError, LogError, OptionError
from counterpoise.log.baseline import Feature
from counterpoise.log.columns import GROUP, PROPENSITY, ROWS
from counterpoise.log.expressions import indicator
from counterpoise.log.good import LARGEST, is_number
from counterpoise.log.groups import CLUSTER, PRIME, checksum_of, with_groups
from counterpoise.log.question import Lane, Names, Question, part_of
from counterpoise.log.rules import Problem, check_type, is_good, key_of, only_known, rules_of
from counterpoise.log.sequences import LIST
from counterpoise.moments import Floats, Powers
from counterpoise.moments.log_moments import Label, as_label
from counterpoise.moments.spread import KEPT
from counterpoise.readers.connections import database_of, fetch

# -- Natural logarithms in the databases' own floats, where a library writes them in decimals --------------------------


def with_natural_logs(frame: Frame) -> Frame:
    """The same query with LN for every logarithm, all of which are natural; ibis asks PostgreSQL for decimals, which take minutes."""
    if not nw.get_native_namespace(frame).__name__.startswith("ibis"):
        return frame
    import ibis.expr.operations as ops

    def natural(node: ops.Node, changed: dict[str, ops.Node] | None) -> ops.Node:
        if isinstance(node, ops.Log):
            return ops.Ln(changed["arg"] if changed else node.arg)
        return node.__recreate__(changed) if changed else node

    rewritten: Frame = nw.from_native(frame.to_native().op().replace(natural).to_expr())
    return rewritten


# ----------------------------------------------------------------------------------------------------------------------


PER_STATEMENT = 10  # targets; with many more, engines spend minutes planning the statement
SUMS = 100  # of products in a statement, for the same reason
GOOD = "good"

Select = Callable[[Question], tuple[Frame, Mapping[str, str]]]


@dataclass
class PushedDown:
    """The engine for a log in a database, or in Spark.

    `select` returns the rows with every column that a question names, some under other names, and which is which. A `fence` keeps the
    database from writing one step's expressions into the next.

    Most logs are clean. So the first statement looks at the first rewards and ranks the weights as they are, and the second adds up
    the rows as they are, with the extremes that show whether any is bad. Only if one may be, bad rows are blanked before any
    arithmetic, because databases stop at a division by zero where embedded engines carry on; then one statement both counts the bad
    rows and adds up the good ones. With many targets, each checks only the rules of its own, or the cost would grow with the square of
    their number. If that turns up bad rows, the statements run again with a few more rules.
    """

    question: Question
    select: Select
    fence: Callable[[Frame], Frame] | None = None
    also: tuple[str, ...] = field(init=False)  # targets whose rules every statement has
    queries: int = field(default=0, init=False)  # that were asked
    _may_be_clean: bool = field(init=False)
    _made: dict[tuple[str, ...], Frame] = field(default_factory=dict, init=False)  # rows by their targets
    _largest: dict[Lane, Largest] = field(
        default_factory=dict, init=False
    )  # of the good rows, or of all while they may be clean
    skips_bad_rows = True

    def __post_init__(self) -> None:
        question = self.question
        # lists are judged as a whole, further rewards each by itself, and features by their squares
        self._may_be_clean = not (question.makes_rows or len(question.names.rewards) > 1 or question.features)
        few = len(question.targets) <= PER_STATEMENT
        self.also = self.question.names.targets if few else ()
        if not few:
            self._rows(self.question.names.targets)  # so that a missing column is known before the first statement runs

    def centers(self, *, only_good: bool) -> tuple[float, ...]:
        """The median of the first good rewards; of a plain question, the same statement ranks the weights of all rows."""
        names, (chunk, *more) = self.question.names, _chunks(self.question.names)

        def centers_of(rows: Frame) -> tuple[float, ...]:
            first = self._collect(rows.select(*names.rewards).head(FIRST))
            return tuple(center_of(first.get_column(name)) for name in names.rewards)

        if self._may_be_clean:
            try:
                rows = self._rows(chunk.targets)
                if more or names.keys:
                    return centers_of(rows)
                first = rows.select(place=nw.lit(-1), x=nw.col(names.rewards[0])).head(FIRST)
                answer = self._rank(chunk, names, first)
                return (center_of(answer.filter(place=-1).get_column("x")),)
            except CounterpoiseError:
                raise
            except Exception:  # a database stops at a division by zero or too large a number, and SQLite's may be texts
                self._may_be_clean = False
        return centers_of(self._good(chunk.targets))

    def aggregate(self, query: Query) -> Answer:
        """The sums of the good rows, a statement for every few targets."""
        names, parts = query.names, list[_ChunkSums]()
        if self._may_be_clean:
            try:
                parts = [self._ask(query, chunk, self._rows(chunk.targets)) for chunk in _chunks(names)]
            except CounterpoiseError:
                raise
            except Exception:  # as above
                self._may_be_clean = False
            else:
                self._may_be_clean = _is_clean(parts, _together(parts, names), names)
        if not self._may_be_clean:
            self._largest = {}
            parts = [self._ask(query, chunk, self._good(chunk.targets)) for chunk in _chunks(names)]
        total = _one({part.total for part in parts})
        several = names.rewards if len(names.rewards) > 1 else ()  # each of which has its own bad rows
        rewards = [f"{name}_count" for name in several]
        are_good = all(part.n == total and part.counted(rewards) <= {total} for part in parts)
        bad = [part.chunk for part in parts if part.n < total]
        if bad and self.question.log.drop_bad_rows and len(names.targets) > 1:
            is_complete = len(self.also) == len(names.targets)
            self.also = self._culprits(bad)
            if not is_complete:
                parts = [self._ask(query, part.chunk, self._good(part.chunk.targets)) for part in parts]
        if self.question.log.drop_bad_rows:
            _one({part.n for part in parts})
        first = parts[0].answer
        keys = first.select(names.segments) if names.segments else None
        numbers, labels = _together(parts, names), labels_of(first, names)
        return Answer(numbers, labels, total, are_good, lambda lane: self._largest_of(lane, names), keys)

    def problems(self) -> list[Problem]:
        """Which rules are broken, how often, and one value that breaks each, in the order of the rules."""
        known: dict[tuple[str, str, str], Problem] = {}
        for chunk in _chunks(self.question.names):
            rules = rules_of(self.question, chunk.targets)
            known |= {
                key_of(problem.rule): problem
                for problem in broken_rules(self._rows(chunk.targets), rules, self._collect)
            }
        return [known[key] for key in map(key_of, rules_of(self.question)) if key in known]

    def left_out(self, centers: Sequence[float]) -> tuple[Powers, ...]:
        """The good rewards of bad rows: every such row breaks a rule of the targets in `also`, or one that all targets share."""
        targets = list(self.also) or list(next(iter(_chunks(self.question.names))).targets)
        rows = self._rows(targets)
        return left_out(rows, self.question, centers, self._collect, targets=targets)

    def duplicates(self, n: int) -> int | None:
        """Good rows whose key another good row has."""
        if not self.question.log.key:
            return None
        chunk = next(iter(_chunks(self.question.names)))
        self.queries += 1
        return n - distinct_keys(self._good(chunk.targets), self.question)

    # -- statements ----------------------------------------------------------------------------------------------------

    def _collect(self, frame: Frame) -> pl.DataFrame:
        """Ask one question."""
        self.queries += 1
        return collect(frame)

    def _rows(self, targets: Sequence[str]) -> Frame:
        """The columns under internal names, for some targets."""
        key = tuple(targets)
        if key not in self._made:
            frame, names = self.select(self._part(targets))
            if self.question.makes_rows:
                self._made[key] = prepare_made(frame, self.question, names, targets, self._fenced)
            else:
                self._made[key] = self._fenced(prepare_there(frame, self.question, names, targets))
        return self._made[key]

    def _fenced(self, rows: Frame) -> Frame:
        return rows if self.fence is None else self.fence(rows)

    def _good(self, targets: Sequence[str]) -> Frame:
        """The rows of some targets, with every number blanked if one of them, or one of those in `also`, breaks a rule."""
        wider = list(dict.fromkeys([*targets, *self.also]))
        marked = self._fenced(self._rows(wider).with_columns(good=is_good(self.question, wider)))
        return self._fenced(_blank(marked, self.question, targets))

    def _part(self, targets: Sequence[str]) -> Question:
        places = [self.question.names.targets.index(name) for name in targets]
        return part_of(self.question, tuple(self.question.targets[k] for k in places), ())

    def _ask(self, query: Query, chunk: _Chunk, good: Frame) -> _ChunkSums:
        """The sums of some of the targets, and the number of all rows."""
        names = query.names
        if query.own is not None:
            means = zip(names.centers, names.rewards, strict=True)
            if names.segments:
                good = good.with_columns(**{name: nw.col(r).mean().over(*names.segments) for name, r in means})
            else:
                good = good.with_columns(**{name: nw.lit(float(query.own[name][0])) for name in names.centers})
        # a row's excess and weighted reward appear many times: computed once, before the fence; SQLite reads few subqueries of
        # subqueries, and lists have many
        is_deep = names.question.makes_rows and not names.question.smoothings
        watch = (lambda rows: rows) if is_deep else self._fenced
        sums = aggregate(good, query, lanes=chunk.lanes, watch=watch, context=False)
        answer = self._collect(with_natural_logs(sums) if names.question.smoothings else sums)
        answer = self._with_context(answer, good, query, chunk)
        total = int(answer.get_column(ROWS).cast(pl.Float64).sum())
        counted = answer.with_columns(pl.col(f"{chunk.targets[0]}_count").alias(ROWS))
        return _ChunkSums(chunk, counted.filter(pl.col(ROWS) > 0), total)

    def _with_context(self, answer: pl.DataFrame, good: Frame, query: Query, chunk: _Chunk) -> pl.DataFrame:
        """The answer with the sums of a context baseline, a statement for every hundred of them."""
        names = query.names
        wanted = context_sums_of(names, chunk.lanes) if names.is_wide else []
        for k in range(0, len(wanted), SUMS):
            some = wanted[k : k + SUMS]
            sums = context_aggregate(good, query, chunk.lanes, some, self._fenced)
            numbers = _align(self._collect(sums), answer, names)
            answer = answer.with_columns(pl.Series(name, numbers[name]) for name in some)
        return answer

    def _largest_of(self, lane: Lane, names: Names) -> Largest:
        """The largest weights of a lane in every segment, ranked with those of the other lanes of its statement."""
        if lane not in self._largest:
            chunk = next(chunk for chunk in _chunks(names) if lane in chunk.lanes)
            self._rank(chunk, names)
        return self._largest[lane]

    def _rank(self, chunk: _Chunk, names: Names, *beside: Frame) -> pl.DataFrame:
        """Remember the largest weights of some lanes, each of whose parts of the statement leaves the rules of other targets out.

        What is asked for `beside` them is in the answer, which is returned.
        """
        ranked = [lane for lane in chunk.lanes if not (lane.contrast[1] or lane.rung)]

        def rows(lane: Lane) -> Frame:
            if not self._may_be_clean:
                return self._good([lane.target])
            # without a fence, a part reads only the columns that it uses, and one frame of all targets is sooner made than ten
            return self._rows(chunk.targets if self.fence is None else [lane.target])

        parts = [self._top(rows(lane), k, lane, names) for k, lane in enumerate(ranked)]
        answer = self._collect(nw.concat([*parts, *beside])).cast({"x": pl.Float64})
        for k, lane in enumerate(ranked):
            own = answer.filter(place=k).drop_nulls("x")
            largest: dict[Label, Floats] = {} if names.segments else {(): np.empty(0)}
            for key, values in own.group_by(names.segments) if names.segments else [((), own)]:
                largest[as_label(key)] = np.sort(values.get_column("x").to_numpy())[::-1]
            self._largest[lane] = largest
        return answer

    def _top(self, rows: Frame, place: int, lane: Lane, names: Names) -> Frame:
        """The largest weights of one lane in every segment."""
        weight, keys = self.question.weight, list(names.segments)
        if names.apart:
            rows = rows.filter(~nw.col(names.rewards[lane.reward]).is_null())
        w = weight.weight(nw.col(lane.target), nw.col(PROPENSITY) if weight.needs_propensity else None)
        w = w if self.question.kept_with is None else w / nw.col(self.question.kept_with)
        weights = rows.select(*keys, place=nw.lit(place), x=w)
        if not keys:
            return weights.sort("x", descending=True, nulls_last=True).head(KEPT)
        weights = weights.filter(~nw.col("x").is_null())
        rank = nw.col("x").rank("ordinal", descending=True).over(*keys)
        return weights.with_columns(rank=rank).filter(nw.col("rank") <= KEPT).select(*keys, "place", "x")

    def _culprits(self, chunks: Sequence[_Chunk]) -> tuple[str, ...]:
        """Targets chosen so that every bad row breaks a rule of one of them, or a rule that all targets share.

        Rows are often bad for many targets at once; then the first of those targets is enough.
        """
        culprits: tuple[str, ...] = ()
        for chunk in chunks:
            targets = [*culprits, *(target for target in chunk.targets if target not in culprits)]
            first = nw.lit(-1)
            for k, target in reversed(list(enumerate(targets))):
                own = [rule.holds for rule in rules_of(self.question, [target]) if rule.target == target]
                first = nw.when(nw.all_horizontal(*own, ignore_nulls=False)).then(first).otherwise(nw.lit(k))
            places = self._collect(self._rows(targets).select(first=first).unique()).to_series().to_list()
            culprits = tuple(target for k, target in enumerate(targets) if target in culprits or k in places)
        return culprits


@dataclass(frozen=True)
class _Chunk:
    """A few lanes for one statement, and the targets they are about."""

    targets: tuple[str, ...]
    lanes: tuple[Lane, ...]


@dataclass(frozen=True)
class _ChunkSums:
    """What a few of the targets add up to: the sums of the good rows, and the number of all rows."""

    chunk: _Chunk
    answer: pl.DataFrame
    total: int

    @property
    def n(self) -> int:
        return int(self.answer.get_column(ROWS).cast(pl.Float64).sum())

    def counted(self, columns: Sequence[str]) -> set[int]:
        """The sums of some counts."""
        return {int(self.answer.get_column(name).cast(pl.Float64).sum()) for name in columns}


def _chunks(names: Names) -> Iterator[_Chunk]:
    """The lanes in pieces of a few targets.

    Segments and comparisons make a statement longer, and Spark spends minutes planning one that is too long.
    """
    question = names.question
    is_compared = any(other for _, other in question.contrasts)
    size = PER_STATEMENT // (2 if is_compared else 1) // (2 if question.segment or question.groups > 1 else 1)
    size = max(size // len(question.rungs) // max((kind.width for kind in question.kinds), default=1), 1)
    values = [target for target, against in question.contrasts if not against] or list(question.target_names)
    for k in range(0, len(values), size):
        lanes = tuple(lane for lane in names.lanes if lane.contrast[0] in values[k : k + size])
        used = dict.fromkeys(name for lane in lanes for name in (lane.target, lane.other) if name is not None)
        yield _Chunk(tuple(used), lanes)


def _one(counts: set[int]) -> int:
    """The count that all statements agree on."""
    if len(counts) > 1:
        raise LogError("the log changed while it was read: run it again, or read a copy that does not change.")
    return counts.pop()


def _together(parts: Sequence[_ChunkSums], names: Names) -> Numbers:
    """The sums of all parts, those of the first in whose order all are."""
    first = parts[0].answer
    return {name: column for part in parts for name, column in _align(part.answer, first, names).items()}


def _is_clean(parts: Sequence[_ChunkSums], numbers: Numbers, names: Names) -> bool:
    """Whether no row broke a rule; a propensity so small that a weight may be too large is looked at more closely."""
    if _one({part.total for part in parts}) != parts[0].n or not is_clean(numbers, names):
        return False
    least = numbers.get(f"{PROPENSITY}_min")
    return least is None or bool((least >= 1.0 / LARGEST).all())


def _align(answer: pl.DataFrame, first: pl.DataFrame, names: Names) -> dict[str, Floats]:
    """The numbers of an answer in the order of the first one's segments and groups."""
    if answer is not first and names.keys:
        order = first.select(names.keys).with_row_index("order")
        joined = answer.join(order, on=names.keys, how="inner", nulls_equal=True).sort("order").drop("order")
        _one({joined.height, answer.height, first.height})
        answer = joined
    return numbers_of(answer, names)


def distinct_keys(marked: Frame, question: Question) -> int:
    """How many different keys the good rows have."""
    keys = [f"key{k}" for k in range(len(question.log.key))]
    return int(collect(marked.filter(nw.col(GOOD)).select(*keys).unique().select(nw.len().alias(ROWS))).item())


def collect(frame: Frame) -> pl.DataFrame:
    """Fetch a small answer."""
    native = frame.to_native()
    is_postgres = nw.get_native_namespace(frame).__name__.startswith("ibis") and database_of(native) == "postgres"
    answer: pl.DataFrame = fetch(native) if is_postgres else frame.collect("polars").to_native()
    return answer


def prepare_there(
    frame: Frame, question: Question, names: Mapping[str, str], targets: Sequence[str] | None = None
) -> Frame:
    """The columns under internal names, for all targets or some of them: numbers as float64, segments, groups."""
    schema, log = frame.collect_schema(), question.log
    chosen = _internal_columns(question, frame, names, targets)
    if question.groups > 1:
        if log.cluster is None:
            raise OptionError(
                "rows in a database have no order to group them by, which the jackknife and cross_fit need.",
                do="Pass `cluster=`, a column of whole numbers such as the user's id.",
            )
        # the remainder first: an unsigned id may be too large for the type
        chosen.append((nw.col(_ids(log.cluster, schema, names)) % PRIME).cast(nw.Int64).alias(GROUP))
    prepared = only_known(frame.select(*chosen), question)
    return with_groups(prepared, question.groups) if question.groups > 1 else prepared


def _ids(cluster: str, schema: nw.Schema, names: Mapping[str, str]) -> str:
    """The column of a cluster's ids, which must be whole numbers."""
    ids = names.get(CLUSTER, names.get(cluster, cluster))
    if not schema[ids].is_integer():
        raise ColumnError(
            f"cluster {cluster!r} must hold whole numbers in this database, but holds {schema[ids]}.",
            do="Pass an expression that turns it into one, with the database's own hash function.",
        )
    return ids


def _internal_columns(
    question: Question, frame: Frame, names: Mapping[str, str], targets: Sequence[str] | None
) -> list[nw.Expr]:
    """Numbers, segments and keys under internal names."""
    schema = frame.collect_schema()
    chosen = []
    features = dict(zip(question.names.features, question.features, strict=True))
    for name in numbers_for(question, targets):
        part, column = question.numbers[name]
        if name in features and not features[name].is_number:
            chosen.append(indicator(_is_one(features[name], names)).alias(name))
            continue
        source = names.get(column, column)
        check_type(part, column, schema[source])
        chosen.append(_number(nw.col(source), schema[source]).alias(name))
    segments = zip(question.names.segments, question.segment, strict=True)
    chosen += [_label(frame, names.get(column, column)).alias(name) for name, column in segments]
    keys = enumerate(question.log.key)
    return chosen + [_label(frame, names.get(column, column)).alias(f"key{k}") for k, column in keys]


def _label(frame: Frame, column: str) -> nw.Expr:
    """The values of a segment or a key, or the ids of lists; NaN counts as missing, or two groups would share one label."""
    value = nw.col(column)
    # SQLite stores no NaN, and has no is_nan either
    may_be_nan = frame.collect_schema()[column].is_float() and database_of(frame.to_native()) != "sqlite"
    return nw.when(~value.is_nan()).then(value) if may_be_nan else value


def prepare_made(
    frame: Frame,
    question: Question,
    names: Mapping[str, str],
    targets: Sequence[str] | None = None,
    fence: Callable[[Frame], Frame] = lambda rows: rows,
) -> Frame:
    """What is made of several rows each, under internal names, for all targets or some of them."""
    log, schema = question.log, frame.collect_schema()
    whole = str(log.list_id)
    more = [_label(frame, names.get(whole, whole)).alias(LIST)]
    if question.groups > 1:
        ids = _ids(log.cluster or whole, schema, names)
        more.append((nw.col(ids) % PRIME).cast(nw.Int64).alias(GROUP))
    rows = frame.select(*_internal_columns(question.of_rows, frame, names, targets), *more)
    made = collapse(fence(rows), question, targets, fence)
    return with_groups(made, question.groups) if question.groups > 1 else made


def _is_one(feature: Feature, names: Mapping[str, str]) -> nw.Expr:
    """Whether a feature is 1; `indicator` turns null into 0."""
    if feature.kind == "bucket":
        checksum = checksum_of(feature.column)
        return nw.col(names.get(checksum, checksum)) % feature.buckets == feature.bucket
    column = nw.col(names.get(feature.column, feature.column))
    return column if feature.kind == "truth" else column == feature.level


def guard(rows: Frame, question: Question) -> Frame:
    """The rows, with every number blanked in bad ones."""
    return _blank(rows.with_columns(good=is_good(question)), question, None)


def _blank(marked: Frame, question: Question, targets: Sequence[str] | None) -> Frame:
    numbers, rewards = numbers_for(question, targets), question.names.rewards
    kept = {name: nw.col(GOOD) for name in numbers}
    if len(rewards) > 1:
        kept |= {name: nw.col(GOOD) & is_number(nw.col(name)) for name in rewards}
    return marked.with_columns(*(nw.when(kept[name]).then(nw.col(name)).alias(name) for name in numbers))


def _number(column: nw.Expr, dtype: DType) -> nw.Expr:
    if dtype == nw.Boolean:  # which not every database casts to a number
        column = nw.when(~column.is_null()).then(indicator(column))
    return column.cast(nw.Float64)
