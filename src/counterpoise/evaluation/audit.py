"""The audit of propensities: mean weights of parts of a log against 1, and how often actions were taken, corrected for many looks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import polars as pl

from counterpoise.diagnostics import Caveat
from counterpoise.diagnostics.diagnose import FEW_WEIGHTS, MeanWeight, holm
from counterpoise.display import Block, Cell, Display, Name, Number, PValue, Table, p_value
from counterpoise.engines.first_look import quoting
from counterpoise.engines.registry import engine_of
from counterpoise.errors import ColumnError, LogError, OptionError, did_you_mean
from counterpoise.intervals.method import degrees_of_freedom
from counterpoise.intervals.student_t import t_quantile
from counterpoise.log.expressions import ReadPlan, column, columns
from counterpoise.log.good import is_believable, is_probability, is_propensity
from counterpoise.log.question import Question
from counterpoise.moments import Floats, Powers
from counterpoise.readers.files import collect
from counterpoise.weights import Balanced

# -- Whether actions were taken as often as the logged distribution of all actions says --------------------------------

EDGES = (0.0, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
VARIANCE = 25.0  # expected count at which a bin is normal enough; smaller bins join the next one
UNITS = 10  # clusters per bin that their covariance needs


@dataclass(frozen=True)
class CalibrationBin:
    """Pairs of a row and an action whose logged probability lies in (low, high]: their mean probability, and how often it was taken."""

    low: float
    high: float
    pairs: int
    predicted: float
    observed: float
    z: float


@dataclass(frozen=True)
class Calibration:
    """The bins, and a chi-square test of all of them; p is nan where there is too little to tell."""

    column: str
    rows: int
    impossible: int
    bins: tuple[CalibrationBin, ...]
    chi_square: float
    freedom: int
    p: float
    corrected_p: float = math.nan


def calibrate(column: str, sums: Mapping[str, float]) -> Calibration:
    r"""The test that actions fall into bins of probability as often as their distribution says.

    .. math:: \chi^2 = d^\top V^- d, \qquad d = \sum_i (Y_i - P_i), \qquad V = \sum_i \operatorname{diag}(P_i) - P_i P_i^\top

    For every bin between `EDGES`, the `sums` have P, the probability that a row's action falls into the bin; Y, whether it did; N, the
    actions in the bin; and the products P Pᵀ. With clusters, they have the products d dᵀ over the units, where d is the total of one
    cluster.

    Given the contexts, Y is multinomial with exactly these P, so V contains no estimates. With clusters, V is the sum of
    the squares of their totals. The rank of V counts the degrees of freedom.

    References
    ----------
    Hosmer & Lemeshow, "Goodness of fit tests for the multiple logistic regression model", Communications in Statistics 9 (1980).
    """
    from scipy.special import chdtrc  # which takes long to import

    pairs, taken, mass = (np.array([sums[f"{name}{k}"] or 0.0 for k in BINS]) for name in ("N", "Y", "P"))
    own, has_clusters = np.diag(mass) - _matrix(sums, "P"), "units" in sums
    merge, edges = _merge_bins(np.diag(own))
    pairs, taken, mass = merge @ pairs, merge @ taken, merge @ mass
    variance = merge @ (_matrix(sums, "D") if has_clusters else own) @ merge.T
    residual = taken - mass
    freedom = int(np.linalg.matrix_rank(variance, tol=1e-9 * max(float(np.trace(variance)), 1e-300), hermitian=True))
    chi_square = float(residual @ np.linalg.pinv(variance, rcond=1e-9, hermitian=True) @ residual)
    is_enough = freedom > 0 and (not has_clusters or sums["units"] >= UNITS * freedom)
    p = float(chdtrc(freedom, chi_square)) if is_enough else math.nan
    error = np.sqrt(np.maximum(np.diag(variance), 0.0))
    z = np.divide(residual, error, out=np.zeros_like(residual), where=error > 0)
    bins = tuple(
        CalibrationBin(low, high, int(count), float(expected / count), float(actual / count), float(score))
        for (low, high), count, expected, actual, score in zip(edges, pairs, mass, taken, z, strict=True)
        if count
    )
    return Calibration(column, int(sums["rows"]), int(sums["impossible"]), bins, chi_square, freedom, p)


def _merge_bins(variances: Floats) -> tuple[Floats, list[tuple[float, float]]]:
    """Which bins to put together, by their probabilities alone, so that the choice says nothing about the actions taken."""
    joined: list[list[int]] = [[]]
    for k in range(len(variances)):
        joined[-1].append(k)
        if variances[joined[-1]].sum() >= VARIANCE:
            joined.append([])
    small = joined.pop()
    if small and joined:
        joined[-1] += small
    elif small:
        joined = [small]
    merge = np.zeros((len(joined), len(variances)))
    for row, members in enumerate(joined):
        merge[row, members] = 1.0
    return merge, [(EDGES[members[0]], EDGES[members[-1] + 1]) for members in joined]


SAMPLE = 1000  # first rows in which a list of probabilities is recognized
ROUNDING = 1e-3  # by which probabilities may miss a sum of 1
BINS = range(len(EDGES) - 1)
_FIELDS: dict[str, type[pl.DataType]] = {f"P{k}": pl.Float64 for k in BINS} | {f"N{k}": pl.Int64 for k in BINS}


def find_distribution(frame: pl.LazyFrame, schema: pl.Schema, action: str, propensity: str) -> str | None:
    """The list column that sums to 1 and holds the propensity at the action's place, counted from 0."""
    if not schema[action].is_integer():
        return None
    for name, kind in schema.items():
        if not (isinstance(kind, pl.List | pl.Array) and kind.inner is not None and kind.inner.is_float()):
            continue
        sample = frame.head(SAMPLE).select(q=_list(column(name), kind), a=column(action), p=column(propensity))
        taken = pl.col("q").list.get(pl.col("a"), null_on_oob=True)
        is_it = (
            (pl.col("a") >= 0) & ((taken - pl.col("p")).abs() < 1e-6) & ((pl.col("q").list.sum() - 1).abs() < ROUNDING)
        )
        if (collect(sample.select(is_it.fill_null(False).mean())).item() or 0.0) > 0.99:
            return name
    return None


def calibration_of(
    frame: pl.LazyFrame,
    schema: pl.Schema,
    action: str,
    distribution: str | Sequence[str] | Mapping[str, str] | Mapping[int, str],
    cluster: str | None = None,
) -> Calibration:
    """The calibration of a distribution: a list column, a column for each action from 0 on, or columns by action."""
    said = distribution if isinstance(distribution, str) else "all actions"
    place = column(action)
    if isinstance(distribution, str):
        q = _list(column(distribution), schema[distribution])
    else:
        named = distribution if isinstance(distribution, Mapping) else dict(enumerate(distribution))
        if isinstance(distribution, Mapping):
            place = place.cast(pl.String).replace_strict(
                [str(name) for name in named], list(range(len(named))), default=None, return_dtype=pl.Int64
            )
        q = pl.concat_list(p.cast(pl.Float64) for p in columns(named.values()))
    if not (isinstance(distribution, Mapping) or schema[action].is_integer()):
        raise ColumnError(
            f"{action!r} must be the place of the action's probability, counted from 0; it holds {schema[action]}.",
            do="Give the probabilities as columns by action, such as {'a': 'p_a', 'b': 'p_b'}.",
        )
    unit = {} if cluster is None else {"unit": column(cluster)}
    rows = frame.select(q=q, a=place.cast(pl.Int64), **unit).with_columns(
        y=pl.when(pl.col("a") >= 0).then(pl.col("q").list.get(pl.col("a"), null_on_oob=True))
    )
    is_right = (pl.col("y") > 0) & ((pl.col("q").list.sum() - 1).abs() < ROUNDING) & (pl.col("q").list.min() >= 0)
    rows = rows.with_columns(good=is_right.fill_null(False))
    bins = pl.col("q").map_batches(_in_bins, return_dtype=pl.Struct(_FIELDS), is_elementwise=True).alias("bins")
    y = pl.col("y")
    is_in = [((y > EDGES[k]) & (k == BINS[-1] or y <= EDGES[k + 1])).alias(f"Y{k}") for k in BINS]  # of what was taken
    every = rows.filter("good").with_columns(bins, *is_in).unnest("bins")
    sums = [pl.col(f"{name}{k}").sum() for name in ("P", "Y", "N") for k in BINS]
    plans = [
        every.select(pl.len().alias("rows"), *sums, *_products("P")),
        rows.select(impossible=(~pl.col("good")).sum()),
    ]
    if cluster is not None:
        off = [(pl.col(f"Y{k}").cast(pl.Float64) - pl.col(f"P{k}")).sum().alias(f"D{k}") for k in BINS]
        plans.append(every.group_by("unit").agg(off).select(pl.len().alias("units"), *_products("D")))
    return calibrate(said, collect(pl.concat(plans, how="horizontal")).row(0, named=True))


def _products(name: str) -> list[pl.Expr]:
    """The sums of the products of any two bins."""
    pairs = [(j, k) for j in BINS for k in BINS if j <= k]
    return [(pl.col(f"{name}{j}") * pl.col(f"{name}{k}")).sum().alias(f"{name}{j} {k}") for j, k in pairs]


def _in_bins(lists: pl.Series) -> pl.Series:
    """For every list of probabilities, the mass P and the number N of those in each bin; zeros are in none."""
    row = np.repeat(np.arange(len(lists)), lists.list.len().to_numpy())
    q = lists.explode().to_numpy()
    row, q = row[q > 0], q[q > 0]
    bins = np.clip(np.searchsorted(EDGES, q) - 1, 0, BINS[-1])
    shape, at = (len(lists), len(BINS)), row * len(BINS) + bins
    mass = np.bincount(at, weights=q, minlength=shape[0] * shape[1]).reshape(shape)
    count = np.bincount(at, minlength=shape[0] * shape[1]).reshape(shape)
    fields = {f"P{k}": mass[:, k] for k in BINS} | {f"N{k}": count[:, k].astype(np.int64) for k in BINS}
    return pl.DataFrame(fields, schema=_FIELDS).to_struct("bins")


def _matrix(sums: Mapping[str, float], name: str) -> Floats:
    return np.array([[sums[f"{name}{min(j, k)} {max(j, k)}"] or 0.0 for k in BINS] for j in BINS], dtype=np.float64)


def _list(values: pl.Expr, kind: pl.DataType) -> pl.Expr:
    if not isinstance(kind, pl.List | pl.Array):
        raise ColumnError(f"the probabilities of all actions must be a list column, and it holds {kind}.")
    return (values.arr.to_list() if isinstance(kind, pl.Array) else values).cast(pl.List(pl.Float64))


# -- Mean weights of parts of a log against 1 --------------------------------------------------------------------------


PARTS_SHOWN = 12  # in a table; documents have all of them
Status = Literal["fine", "too large", "too small", "cannot tell", "not always eligible"]

ACTION = "action"
ALARMS: tuple[Status, ...] = ("too large", "too small")
LEVEL = 0.01  # for the doctor's alarms: one log in a hundred with right propensities may be doubted
SURER = (
    0.1  # means below 1 need stronger evidence: rows with small propensities that have not come up yet also lower them
)
FAR = 0.5  # an action with a mean below this was more likely ineligible in some rows than logged with propensities twice too large


@dataclass(frozen=True)
class Check:
    """The mean weight of one part of a log: a segment or a day under a target, or 1{A = a}/p of an action a over all rows.

    `p` is the test's own, `corrected_p` allows for all the other checks. Both are nan where too few rows carry the weights to tell.
    """

    by: str
    part: str
    target: str | None
    rows: int
    mean: float
    lower: float
    upper: float
    p: float
    corrected_p: float = math.nan
    status: Status = "cannot tell"

    def cells(self) -> dict[str, Cell]:
        """As a row of a table."""
        error = (self.upper - self.lower) / 4.0  # an interval reaches about two to either side
        numbers = {name: Number(getattr(self, name), error) for name in ("mean", "lower", "upper")}
        parts = {"by": Name(self.by), "part": Name(self.part), "target": Name(self.target or "1/p")}
        return {**parts, **numbers, "corrected p": PValue(self.corrected_p), "looks": self.status}

    def settled(self, corrected: float, level: float) -> Check:
        """The same with its corrected p, and what that says."""
        status: Status = "fine"
        if math.isnan(self.p):
            status = "cannot tell"
        elif self.mean > 1.0:
            status = "too large" if corrected <= level else "fine"
        elif corrected <= SURER * level:
            status = "not always eligible" if self.target is None and self.mean < FAR else "too small"
        return replace(self, corrected_p=corrected, status=status)


@dataclass(frozen=True, repr=False)
class Audit(Display):
    """Every check of the propensities, and how many parts of the log they were chosen from."""

    checks: tuple[Check, ...]
    looks: int
    calibration: Calibration | None = None
    level: float = LEVEL

    @property
    def alarms(self) -> tuple[Check, ...]:
        """The checks that say the propensities are wrong."""
        return tuple(test for test in self.checks if test.status in ALARMS)

    @property
    def in_order(self) -> list[Check]:
        """The checks with a finite interval: alarms first, then those that can be told, each by kind and name."""
        known = [test for test in self.checks if math.isfinite(test.lower + test.upper)]
        order = (*ALARMS, "fine")
        return sorted(
            known, key=lambda test: (test.status not in order, test.status not in ALARMS, test.target or "", test.by)
        )

    def blocks(self, *, rows: int | None = PARTS_SHOWN) -> Iterator[Block]:
        """The parts of the log that deviate most from a mean weight of 1, and the calibration of the logged probabilities."""
        telling = [check for check in self.checks if check.p == check.p]  # nan where the log cannot tell
        if self.checks:
            yield ""
            silent = self.looks - len(telling)
            few = f" For {silent:,} parts, too few rows carry the weights to tell." if silent else ""
            yield f"Mean weights of {len(telling):,} parts of the log, the most significant first; each should be 1.{few}"
        if telling:
            yield Table([check.cells() for check in sorted(telling, key=lambda check: check.p)[:PARTS_SHOWN]])
            if len(telling) > PARTS_SHOWN:
                yield f"{len(telling) - PARTS_SHOWN:,} more parts are in the audit's checks."
        if (calibration := self.calibration) is not None:
            yield ""
            test = (
                "too little to tell"
                if calibration.p != calibration.p
                else f"corrected p {p_value(calibration.corrected_p)}"
            )
            yield f"How often actions were taken, by their probability in {calibration.column} ({test}):"
            yield Table(
                [
                    {
                        "probability": f"{group.low:g} to {group.high:g}",
                        "cases": group.pairs,
                        "predicted": group.predicted,
                        "taken": group.observed,
                        "z": Number(group.z, 1.0, is_signed=True),
                    }
                    for group in calibration.bins
                ]
            )


def check(by: str, part: str, target: str | None, rows: int, excess: Powers) -> Check:
    r"""The test that a mean weight is 1, from the powers of the excess :math:`\sum_{i \in c} (w_i - 1)` of every unit c.

    A unit is a row or, with clusters, all rows of one cluster. Units are independent and their excess has mean 0, whatever their sizes,
    so that the test of `MeanWeight` holds for both.

    >>> check("country", "NO", "pi_new", 200, Powers.of([-0.5, 0.5] * 100, 0.0)).mean
    1.0
    """
    excess = excess.around(0.0)
    total = float(excess.sums[0])
    if rows == 0 or excess.n < 2 or not np.isfinite(excess.sums).all():
        return Check(by, part, target, rows, 1.0 + total / rows if rows else math.nan, -math.inf, math.inf, math.nan)
    mean = total / excess.n
    variance = max(excess.mean(2, mean), 0.0) * excess.n / (excess.n - 1)
    error = math.sqrt(variance / excess.n)
    carrying = excess.n / excess.kurtosis
    reach = float(t_quantile(degrees_of_freedom(carrying), 0.975)) * error * excess.n / rows
    p = MeanWeight(excess, error).p_value if carrying >= FEW_WEIGHTS else math.nan
    per_row = 1.0 + total / rows
    return Check(by, part, target, rows, per_row, per_row - reach, per_row + reach, p)


def settle(
    checks: Sequence[Check], looks: int, calibration: Calibration | None = None, *, level: float = LEVEL
) -> Audit:
    """The checks with their corrected p and status.

    `looks` counts every part of the log, including those too small to test: a rare action that came up often enough to be tested
    came up too often, and the correction must pay for that choice.
    """
    raw = [test.p for test in checks] + ([] if calibration is None else [calibration.p])
    corrected = holm(raw, looks + (calibration is not None))
    settled = [test.settled(p, level) for test, p in zip(checks, corrected, strict=False)]
    if calibration is not None:
        calibration = replace(calibration, corrected_p=corrected[-1])
    return Audit(tuple(settled), looks, calibration, level)


# -- The audit: mean weights by segment, day and action ----------------------------------------------------------------


MOST = 1000  # parts of one kind that are tested, the largest first; the others still count as looks
UNIT, PART, TOTAL = "unit", "part", "total"
ORDERS = (1, 2, 3, 4)

DistributionColumns = str | Sequence[str] | Mapping[str, str] | Mapping[int, str] | None


@dataclass(frozen=True)
class Parts:
    """Which columns to audit, and by which."""

    propensity: str
    targets: Sequence[str] = ()
    action: str | None = None
    cluster: str | None = None
    segment: Sequence[str] = ()
    day: str | None = None
    distribution: DistributionColumns = None


def audit(frame: pl.LazyFrame, schema: pl.Schema, parts: Parts) -> Audit:
    """The audit of one log, over the rows whose propensity is possible; for a target, over those whose weight is too.

    Rewards play no role: a propensity is right or wrong whatever the outcome.
    """
    dates = [name for name, kind in schema.items() if kind in (pl.Date, pl.Datetime)]
    day = parts.day or (dates[0] if len(dates) == 1 else None)
    keys = {name: column(name).cast(pl.String) for name in parts.segment}
    if day is not None:
        keys[day] = (column(day).dt.date() if schema[day] == pl.Datetime else column(day)).cast(pl.String)
    good = _good(frame, parts, keys)
    plans = [_by_key(good, by, len(parts.targets)) for by in range(len(keys))] if parts.targets else []
    if parts.action is not None:
        plans += [_by_action(good), _all_units(good)]
    # one pass over the rows
    table = collect(pl.concat(plans, how="diagonal_relaxed")).to_dicts() if plans else []
    looked = {row["by"]: row["parts"] for row in table}
    looks = sum(count * (1 if by == ACTION else len(parts.targets)) for by, count in looked.items())
    total = next((row for row in table if row["by"] == TOTAL), None)
    checks: list[Check] = []
    for row in table:
        part = "missing" if row.get(PART) is None else row[PART]
        if row["by"] == ACTION and total is not None:
            sums = np.array([row[f"u0 {order}"] + total[f"u0 {order}"] for order in ORDERS])
            powers = Powers(total["units u0"], 0.0, sums)
            checks.append(check(str(parts.action), part, None, total["rows u0"], powers))
        elif row["by"] != TOTAL:
            for k, name in enumerate(parts.targets):
                sums = np.array([row[f"u{k} {order}"] for order in ORDERS], dtype=np.float64)
                powers = Powers(row[f"units u{k}"], 0.0, sums)
                checks.append(check(list(keys)[int(row["by"])], part, name, row[f"rows u{k}"], powers))
    if parts.action is None:
        if parts.distribution is not None:
            raise OptionError(
                "to check the probabilities of all actions, the logged action must be known.",
                do="Name its column with `action=COLUMN`.",
            )
        return settle(checks, looks)
    # the columns given, or a list column that holds the propensity where the action says
    distribution = parts.distribution or find_distribution(frame, schema, parts.action, parts.propensity)
    if distribution is None:
        return settle(checks, looks)
    return settle(checks, looks, calibration_of(frame, schema, parts.action, distribution, parts.cluster))


def audit_of(question: Question) -> Audit | None:
    """The audit of a log in files or a frame, by what a question names; None for other logs, and if rows cannot be read.

    >>> from counterpoise import evaluate
    >>> rows = {"r": [1, 0] * 50, "p": [0.5] * 100, "t": [0.6, 0.4] * 50, "item": ["a", "b"] * 50}
    >>> audit_of(evaluate(rows, reward="r", propensity="p", target="t", action="item").question).checks[0].mean
    1.0
    """
    log = question.log
    if (
        question.propensity_model is not None
        or log.list_id is not None
        or not question.weight.needs_propensity
        or not engine_of(log).has_order
    ):
        return None
    if isinstance(question.weight, Balanced):  # whose weights need not average to 1 on the days of one policy
        question = question.weight.pooled(question, quoting(log))
        log = question.log
    targets = {target.column: target.name for target in question.targets if not target.is_policy}
    chosen = {choice.column for choice in question.choices}
    with suppress(LogError):
        frame = engine_of(log).scan(log)
        known = set(frame.collect_schema()) | chosen
        used = [str(log.propensity), log.action, log.cluster, *question.segment, *targets]
        made = ReadPlan((), tuple(name for name in used if name is not None and name not in known))
        frame = made.complete(frame, question)
        parts = Parts(str(log.propensity), list(targets), log.action, log.cluster, question.segment)
        audited = audit(frame, frame.collect_schema(), parts)
        named = [test if test.target is None else replace(test, target=targets[test.target]) for test in audited.checks]
        return replace(audited, checks=tuple(named))
    return None


def check_columns(schema: pl.Schema, names: Sequence[str]) -> None:
    """Raise an error for the first name that no column has."""
    for name in names:
        if name not in schema:
            listed = ", ".join(map(repr, schema.names()))
            raise ColumnError(f"no column {name!r}; the log has {listed}.", suggestion=did_you_mean(name, schema))


def columns_of(distribution: DistributionColumns) -> list[str]:
    """The columns that hold the logging distribution."""
    if distribution is None:
        return []
    if isinstance(distribution, str):
        return [distribution]
    return list(distribution.values() if isinstance(distribution, Mapping) else distribution)


def _good(frame: pl.LazyFrame, parts: Parts, keys: Mapping[str, pl.Expr]) -> pl.LazyFrame:
    """The rows with a possible propensity under names of our own: v = 1/p, a target's u = w − 1 (null where that is impossible), keys."""
    p = column(parts.propensity).cast(pl.Float64)
    chosen = {"p": p} | {f"k{k}": key for k, key in enumerate(keys.values())}
    chosen |= {f"t{k}": column(name).cast(pl.Float64) for k, name in enumerate(parts.targets)}
    if parts.action is not None:
        chosen["a"] = column(parts.action).cast(pl.String)
    if parts.cluster is not None:
        chosen[UNIT] = column(parts.cluster)
    good, p = frame.select(**chosen).filter(is_propensity(pl.col("p"))), pl.col("p")
    excess = {}
    for k in range(len(parts.targets)):
        t = pl.col(f"t{k}")
        excess[f"u{k}"] = pl.when(is_probability(t) & is_believable(t, p)).then((t - p) / p)
    return good.with_columns(v=1 / p, **excess)


def _by_key(good: pl.LazyFrame, by: int, targets: int) -> pl.LazyFrame:
    """For every value of one key and every target: rows, units, and the sums of powers of the units' excess."""
    excess = [f"u{k}" for k in range(targets)]
    rows = {f"rows {name}": pl.col(name).count() for name in excess}
    if UNIT in good.collect_schema():
        sums = {name: pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()) for name in excess}
        units = good.group_by(pl.col(f"k{by}").alias(PART), UNIT).agg(**rows, **sums)
        rows = {name: pl.col(name).sum() for name in rows}
    else:
        units = good.with_columns(pl.col(f"k{by}").alias(PART))
    powers = {f"{name} {order}": (pl.col(name) ** order).sum() for name in excess for order in ORDERS}
    counts = {f"units {name}": pl.col(name).count() for name in excess}
    return _largest(units.group_by(PART).agg(size=pl.len(), **rows, **counts, **powers), str(by))


def _by_action(good: pl.LazyFrame) -> pl.LazyFrame:
    """For every action, how the powers of the units' excess differ from those of units that never took it: minus their sizes."""
    taken = good.filter(pl.col("a").is_not_null())
    if UNIT in good.collect_schema():
        sizes = good.group_by(UNIT).agg(m=pl.len().cast(pl.Float64))
        pairs = taken.group_by(pl.col("a").alias(PART), UNIT).agg(v=pl.col("v").sum(), rows=pl.len())
        units, rows = pairs.join(sizes, on=UNIT, nulls_equal=True), pl.col("rows").sum()
    else:
        units, rows = taken.with_columns(pl.col("a").alias(PART), m=pl.lit(1.0)), pl.len()
    m = pl.col("m")
    powers = {f"u0 {order}": ((pl.col("v") - m) ** order - (-m) ** order).sum() for order in ORDERS}
    return _largest(units.group_by(PART).agg(size=pl.len(), **{"rows u0": rows}, **powers), ACTION)


def _all_units(good: pl.LazyFrame) -> pl.LazyFrame:
    """The same sums for units that never took the action."""
    if UNIT in good.collect_schema():
        sizes = good.group_by(UNIT).agg(m=pl.len().cast(pl.Float64))
    else:
        sizes = good.select(m=pl.col("v").is_not_null().cast(pl.Float64))
    powers = {f"u0 {order}": ((-pl.col("m")) ** order).sum() for order in ORDERS}
    total = sizes.select(size=pl.len(), **{"rows u0": pl.col("m").sum().cast(pl.Int64), "units u0": pl.len()}, **powers)
    return total.with_columns(by=pl.lit(TOTAL), parts=pl.lit(0, pl.Int64))


def _largest(groups: pl.LazyFrame, by: str) -> pl.LazyFrame:
    ordered = groups.with_columns(by=pl.lit(by), parts=pl.len().cast(pl.Int64))
    return ordered.sort("size", PART, descending=[True, False], nulls_last=True).head(MOST)


# -- What to say about it ----------------------------------------------------------------------------------------------


def about_audit(audit: Audit, propensity: str) -> Iterator[Caveat]:
    """What the audit says about the propensities, one caveat for each way to look at them."""
    for by, target in dict.fromkeys((test.by, test.target) for test in audit.checks):
        alarms = [test for test in audit.alarms if (test.by, test.target) == (by, target)]
        if not alarms:
            continue
        worst = min(alarms, key=lambda test: test.p)
        p = f"(p {p_value(worst.corrected_p)}, corrected for all looks)."
        large = sum(test.status == "too large" for test in alarms)
        if target is None:
            few = ((large, "large"), (len(alarms) - large, "small"))
            counts = " and ".join(
                f"too {word} for {count:,} {'action' if count == 1 else 'actions'}" for count, word in few if count
            )
            text = (
                f"the mean of 1{{action}}/propensity over all rows is {counts}: for {worst.part} it is {worst.mean:.3g}, and it should "
                f"be 1 if {worst.part} could be chosen in every row {p}"
            )
            do = (
                "A mean above 1 means that propensities are too small, or that rows of other actions were lost. Log the propensities that "
                "the choice was really made with."
                if large
                else "Either these actions were not always eligible, which is fine, or their propensities are too large."
            )
        else:
            text = (
                f"{target}: the mean weight is not 1 for {len(alarms):,} {'value' if len(alarms) == 1 else 'values'} of {by}: where "
                f"{by} is {worst.part}, it is {worst.mean:.3g} {p}"
            )
            do = "Look at how propensities were logged there, and whether the target takes actions there that the log never took."
        numbers = {"mean": worst.mean, "p": worst.corrected_p, "alarms": len(alarms)}
        yield Caveat("weights-of-parts", text, numbers, do, about=propensity)
    calibration = audit.calibration
    if calibration is not None and calibration.corrected_p <= audit.level:
        worst_bin = max(calibration.bins, key=lambda bin_: abs(bin_.z))
        text = (
            f"actions with a logged probability of about {worst_bin.predicted:.3g} were taken in {worst_bin.observed:.3g} of the cases "
            f"(p {p_value(calibration.corrected_p)} for all bins together): the logged distribution is not the one that actions were drawn "
            "from."
        )
        do = "Log the probabilities that the choice was really made with."
        numbers = {"predicted": worst_bin.predicted, "observed": worst_bin.observed, "p": calibration.corrected_p}
        yield Caveat("actions-not-as-logged", text, numbers, do, about=propensity)
    if calibration is not None and calibration.impossible:
        rows = f"in {calibration.impossible:,} rows"
        text = f"{rows} the probabilities of all actions do not sum to 1, or give 0 to the action that was taken."
        do = "Log the whole distribution, as it was when the choice was made."
        yield Caveat("not-a-distribution", text, {"rows": calibration.impossible}, do, about=propensity)
