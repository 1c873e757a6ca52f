"""The streaming engine: the aggregate query pushed into a polars scan, so that no row is ever copied."""

from __future__ import annotations

from threading import Lock

import narwhals as nw
import polars as pl

from counterpoise.engines import compiled, pushdown
from counterpoise.engines.assemble import assemble, labels_of, numbers_of
from counterpoise.engines.largest import Watcher
from counterpoise.engines.memory import centre_of
from counterpoise.engines.query import Frame, aggregate, excess_of, is_clean, is_well_centred
from counterpoise.errors import LogError
from counterpoise.log import rules as checks
from counterpoise.log.expressions import check_digits, column, columns, plan
from counterpoise.log.groups import integer_ids, with_groups
from counterpoise.log.request import Request
from counterpoise.moments.log_moments import LogMoments
from counterpoise.readers.progress import Report

WIDE = 16  # columns; more of them at once would take too much memory


def summarise(
    scan: pl.LazyFrame, request: Request, report: Report | None = None, *, is_long: bool = False
) -> LogMoments:
    """Moments of a scan that can be repeated: one pass, or three where rows are bad (find, name, leave out)."""
    if is_long and not request.key and compiled.answers(request):
        found = _compiled(scan, request, report)
        if found is not None:
            return found
    frame = _prepare(scan, request)
    centre = _centre(frame)
    answer, watchers = _run(frame, request, centre, report)
    rows = _rows(answer)
    if rows == 0:
        raise LogError("the log has no rows.")
    # a propensity under 1e-50 looks bad to the sums, though its row may be good: the rules decide
    if not is_clean(numbers_of(answer), request) and (problems := _find_problems(frame, request)):
        if not request.drop_bad_rows:
            checks.refuse(problems, rows)
        frame = nw.from_native(frame).filter(checks.valid(request)).to_native()
        centre = _centre(frame)
        answer, watchers = _run(frame, request, centre, None)
        if _rows(answer) == 0:
            raise checks.all_bad(problems, rows)
    if not is_well_centred(numbers_of(answer), labels_of(answer, request)):
        # segments whose rewards are worlds apart, or first rows unlike the rest: every segment around its own mean
        answer, watchers = _run(_own_centres(frame, answer, request, centre), request, None, None)
    n = _rows(answer)
    return assemble(
        numbers_of(answer),
        labels_of(answer, request),
        {target: {label: 1.0 + u for label, u in seen.largest().items()} for target, seen in watchers.items()},
        request,
        centre,
        dropped=rows - n,
        duplicates=_duplicates(frame, request, n),
    )


def _compiled(scan: pl.LazyFrame, request: Request, report: Report | None) -> LogMoments | None:
    """The compiled loop on the engine's pieces: one pass, or one per ten targets of many columns; None as soon as a row is bad."""
    wide = len(plan(request, scan.collect_schema().names()).read) > WIDE
    found: list[LogMoments] = []
    for part in pushdown.split(request) if wide else [request]:
        frame = _prepare(scan, part)
        centre = _centre(frame)
        running = compiled.Running(part, centre, None if found else report)
        frame.select(running.expression()).collect(engine="streaming")
        sums = running.result()
        if sums is None or not is_well_centred(sums[0], [()]):
            return None
        found.append(assemble(sums[0], [()], sums[1], part, centre))
    return pushdown.together(found, request)


def _centre(frame: pl.LazyFrame) -> float:
    return centre_of(frame.select("r").head(1000).collect(engine="streaming").to_series())


def _own_centres(frame: pl.LazyFrame, answer: pl.DataFrame, request: Request, centre: float) -> pl.LazyFrame:
    """The rows with the mean reward of their segment, known from the sums that were too far from it for more."""
    keys = [f"k{j}" for j in range(len(request.segment))]
    mean = (centre + pl.col("s").sum() / pl.col("n").sum()).alias("c")
    if not keys:
        return frame.with_columns(pl.lit(answer.select(mean).item()).alias("c"))
    return frame.join(answer.group_by(keys).agg(mean).lazy(), on=keys, how="left", nulls_equal=True)


def _prepare(scan: pl.LazyFrame, request: Request) -> pl.LazyFrame:
    """The columns under internal names: numbers as float64, segments, groups, keys."""
    available = scan.collect_schema()
    wanted = plan(request, available.names())
    check_digits(available, wanted.read)
    frame = wanted.complete(scan.select(columns(wanted.read)), request)
    schema = nw.from_native(frame).collect_schema()
    chosen = []
    for name, (part, number) in request.numbers.items():
        checks.check_type(part, number, schema[number])
        chosen.append(column(number).cast(pl.Float64).alias(name))
    for k, segment in enumerate(request.segment):
        values = column(segment).alias(f"k{k}")
        chosen.append(values.fill_nan(None) if schema[segment].is_float() else values)
    if request.key:
        chosen.append(pl.struct(columns(request.key)).hash().alias("key"))
    if request.cluster is not None:
        ids = column(request.cluster).map_batches(integer_ids, return_dtype=pl.Int64, is_elementwise=True)
        chosen.append(ids.alias("g"))
    prepared = frame.select(chosen)
    if request.groups > 1:
        if request.cluster is None:
            prepared = prepared.with_row_index("g").with_columns(pl.col("g").cast(pl.Int64))
        prepared = with_groups(nw.from_native(prepared), request.groups).to_native()
    return prepared


def _run(
    frame: pl.LazyFrame, request: Request, centre: float | None, report: Report | None
) -> tuple[pl.DataFrame, dict[str, Watcher]]:
    """The aggregate's answer and each target's watcher."""
    keys = [f"k{j}" for j in range(len(request.segment))]
    watchers = {target: Watcher(excess, keys) for target, excess in excess_of(request).items()}
    lock = Lock()

    def see(piece: pl.DataFrame) -> pl.DataFrame:
        for watcher in watchers.values():
            watcher.see(piece)
        if report is not None:
            with lock:  # the engine calls from several threads
                report(piece.height)
        return piece

    def watch(rows: Frame) -> Frame:
        # Of a whole piece at a time: a function inside an expression costs a tenth of the query, whatever it does.
        native: pl.LazyFrame = rows.to_native()
        return nw.from_native(native.map_batches(see, streamable=True, validate_output_schema=False))

    lazy: pl.LazyFrame = aggregate(nw.from_native(frame), request, centre, watch=watch).to_native()
    return lazy.collect(engine="streaming"), watchers


def _rows(answer: pl.DataFrame) -> int:
    return int(answer.get_column("n").sum())


def _find_problems(frame: pl.LazyFrame, request: Request) -> list[checks.Problem]:
    """Which rules are broken, how often, and where first: two more passes, neither of which keeps rows."""
    rules = checks.rules(request)
    bad = {f"rule{k}": ~rule.holds.fill_null(False) for k, rule in enumerate(rules)}
    rows = nw.from_native(frame.with_row_index("row")).with_columns(**bad).to_native()
    counts = rows.select(
        *(pl.col(name).sum().alias(f"{name}_count") for name in bad),
        *(pl.when(pl.col(name)).then(pl.col("row")).min().alias(f"{name}_row") for name in bad),
    )
    found = counts.collect(engine="streaming").row(0, named=True)
    first = {found[f"rule{k}_row"] for k in range(len(rules))} - {None}
    shown = rows.filter(pl.col("row").is_in(sorted(first))).collect(engine="streaming")
    problems = []
    for k, rule in enumerate(rules):
        count, row = found[f"rule{k}_count"], found[f"rule{k}_row"]
        if count:
            value = shown.filter(pl.col("row") == row).get_column(rule.shows).item()
            problems.append(checks.Problem(rule, int(count), int(row), value))
    return problems


def _duplicates(frame: pl.LazyFrame, request: Request, n: int) -> int | None:
    """Good rows whose key another row has; this one query needs memory for every distinct key."""
    if not request.key:
        return None
    return n - int(frame.select(pl.col("key").n_unique()).collect(engine="streaming").item())
