"""What a target does and the log never did, found action by action on a sample of rows, and the bounds that remain."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.diagnostics import Caveat, Verdict
from counterpoise.diagnostics.diagnose import MATTERS
from counterpoise.diagnostics.verdict import BELOW_ONE, MISSING, UNSUPPORTED
from counterpoise.display import number, percent, shortened, signed
from counterpoise.engines.registry import moments_of, rows
from counterpoise.engines.sampling import Spread
from counterpoise.errors import CounterpoiseError, verbatim
from counterpoise.estimators import Estimate, Estimator
from counterpoise.evaluation.choose import foremost
from counterpoise.log.expressions import columns, of_64_bits, sql_name
from counterpoise.log.kinds import chance_kept
from counterpoise.log.log import Log
from counterpoise.log.question import Question, ask
from counterpoise.log.targets import Probabilities, Target
from counterpoise.moments import Floats, LogMoments
from counterpoise.moments.log_moments import Label, as_label
from counterpoise.readers.policies import table_of
from counterpoise.weights import Balanced

if TYPE_CHECKING:
    from counterpoise.evaluation.checks import RewardMoments

PLAIN = "beta_ips"  # whose baseline is a constant

ROWS = 20_000  # of the sample
CELLS = 4_000_000  # of a policy's probabilities of all actions, rows times actions
FEWEST_ROWS = 200  # the smallest sample that can tell
LEVELS = 30  # of a column of the context, the most frequent ones
CHANCE = 0.01  # chance that any action of a right log looks missing anywhere
BEYOND = 4.0  # standard errors
HARDLY = 0.25  # share of what the target takes of an action, below which the log hardly takes it
FEWEST_HITS = 3.0  # expected rows, below which an action's absence proves nothing
SEGMENTS = 1000  # with a caveat of their own

NUMBER, TARGET = "counterpoise number", "counterpoise target"
CODES = NDArray[np.int64]


# -- finding them ------------------------------------------------------------------------------------------------------


def missing_actions(question: Question, whole: RewardMoments) -> Iterator[Caveat]:
    r"""The targets that take actions the log never takes, and where they take them.

    Of n rows with contexts x, a target takes the action a about :math:`T_a = \sum_i \pi(a \mid x_i)` times. Where the log can
    take it, too, the weights of the rows in which it did, :math:`X_a = \sum_{i: a_i = a} w_i`, have the same mean, and are about
    T/ω rows with a weight of ω each. We call an action missing where X is at most a quarter of T, and so little that a Poisson
    number of rows would be as small once in a hundred logs, over all actions and places that we look at. For ω we take the
    largest weights that the log has for what the target takes (only 5 % of the target's own choices have larger ones), and the
    action's own. So an action that the log takes as rarely as any other is not called missing just because it has not come up.

    The places are the segments, and the values (or quarters) of each column of the context.
    """
    targets = [target for target in question.targets if target.tells_actions]
    weight = question.weight
    is_plain = weight.mean_is_one and weight.needs_propensity and not isinstance(weight, Balanced)
    if not targets or not is_plain or question.sequences is not None or question.propensity_model is not None:
        return
    cluster = [] if question.log.cluster is None else [question.log.cluster]
    total = max(whole.rows + whole.moments[0].dropped, 1)
    beside = (*question.segment, *question.log.context, *cluster)
    some = of_64_bits(rows(question.slim(), Spread(ROWS, total), beside), question)
    known = some.filter(some.get_column(str(question.log.action)).is_not_null())
    for target in targets if known.height else ():
        missing = _missing(target, known, question)
        if missing is not None:
            yield replace(missing.caveat(None), known=missing.known(question))
            for place in missing.segments if question.segment else ():
                yield missing.caveat(place)


def missing_by_target(question: Question, whole: RewardMoments) -> dict[str, list[Caveat]]:
    """What is missing in the whole log, by target, for verbs whose answers have no bounds."""
    return {str(caveat.target): [caveat] for caveat in missing_actions(replace(question, segment=()), whole)}


@dataclass(frozen=True)
class Taken:
    """What a target takes in each row: which actions (by number), and with what probability."""

    row: CODES
    action: CODES
    mass: Floats
    logged: CODES  # the number of the action that was logged in each row, or -1 if the target does not know it
    probability: Floats  # the target's probability of it
    names: Sequence[object]

    def of(self, rows: NDArray[np.bool_]) -> Taken:
        """The same for some of the rows."""
        number = np.cumsum(rows) - 1
        kept = rows[self.row]
        of_rows = self.logged[rows], self.probability[rows]
        return Taken(number[self.row[kept]], self.action[kept], self.mass[kept], *of_rows, self.names)


def _missing(target: Target, rows: pl.DataFrame, question: Question) -> Missing | None:
    """What a target takes and the log does not; None if nothing is missing, or if we cannot tell."""
    try:
        rows, taken = _choices(target, rows, question)
    except (CounterpoiseError, TypeError, ValueError, pl.exceptions.PolarsError):
        return None  # such as actions that cannot be compared

    def numbers(name: str) -> Floats:
        return rows.get_column(name).cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()

    p, counts = numbers(str(question.log.propensity)), np.ones(rows.height)
    if (chance := chance_kept(question.log)) is not None:  # each row counts as often as it was sampled, on average once
        kept = numbers(chance)
        counts = np.where((kept > 0) & (kept <= 1), 1.0 / np.where(kept > 0, kept, 1.0), np.nan)
        counts = np.asarray(counts / np.nanmean(counts))
    good = (p > 0) & (p <= 1) & np.isfinite(counts)
    w = np.divide(counts * taken.probability, p, out=np.zeros(len(p)), where=good)[good]
    if not w.any():
        return None
    taken = replace(taken, mass=taken.mass * counts[taken.row]).of(good)
    rows, counts = rows.filter(pl.Series(good)), counts[good]
    places = _places(rows, question)
    lacks = _test(taken, w, places)
    return Missing(target.name, rows, taken, lacks, places, counts) if lacks.any() else None


def _choices(target: Target, rows: pl.DataFrame, question: Question) -> tuple[pl.DataFrame, Taken]:
    """The rows that can be looked at, and what a target takes in them."""
    action = str(question.log.action)
    if target.is_choice:
        rows = rows.filter(pl.col(target.source_column).is_not_null())
        both = [rows.get_column(name).alias("action") for name in (target.source_column, action)]
        whole = pl.concat([series.to_frame() for series in both], how="vertical_relaxed").get_column("action")
        names = whole.unique(maintain_order=True)
        codes = whole.replace_strict(names, np.arange(len(names)), return_dtype=pl.Int64).to_numpy()
        n = rows.height
        same = (codes[:n] == codes[n:]).astype(np.float64)
        return rows, Taken(np.arange(n), codes[:n], np.ones(n), codes[n:], same, names.to_list())
    width = table_of(target.source, rows.head(1), question).probabilities.shape[1]
    most = CELLS // max(width, 1)
    if most < FEWEST_ROWS:
        raise ValueError("too many actions")
    rows = rows if rows.height <= most else rows.gather_every(math.ceil(rows.height / most))
    actions, table = _table(target, rows, question)
    row, column = np.nonzero(table > 0)
    order = np.argsort(actions)
    logged = rows.get_column(action).to_numpy()
    at = order[np.minimum(np.searchsorted(actions[order], logged), width - 1)]
    knows = actions[at] == logged
    probability = np.where(knows, table[np.arange(rows.height), at], 0.0)
    return rows, Taken(row, column, table[row, column], np.where(knows, at, -1), probability, actions.tolist())


def _table(target: Target, rows: pl.DataFrame, question: Question) -> tuple[NDArray[np.generic], Floats]:
    """A target's actions, and its probabilities of all of them in each row; a policy is asked once for contexts that are alike."""
    names = list(question.log.context)
    contexts = rows.select(columns(names))
    if isinstance(target.source, Probabilities) or question.log.candidates or any(map(_is_nested, contexts.dtypes)):
        table = table_of(target.source, rows, question)
        return table.actions, np.asarray(table.probabilities, dtype=np.float64)
    first = rows.unique(names, keep="first", maintain_order=True)
    numbered = first.select(columns(names)).with_row_index(NUMBER)
    number = contexts.join(numbered, on=names, how="left", nulls_equal=True, maintain_order="left").get_column(NUMBER)
    table = table_of(target.source, first, question)
    return table.actions, np.asarray(table.probabilities, dtype=np.float64)[number.to_numpy()]


def _is_nested(dtype: pl.DataType) -> bool:
    return dtype.is_nested() or dtype == pl.Object


@dataclass(frozen=True)
class RowPlaces:
    """Where rows lie by one column, or by the segments: a number for each (-1: none of these), and what the numbers mean."""

    at: CODES
    said: Sequence[str]
    rest: Sequence[str]  # the rows that lie elsewhere, in SQL
    labels: Sequence[Label] | None = None  # of segments


def _places(rows: pl.DataFrame, question: Question) -> list[RowPlaces]:
    """The segments, and every column of the context."""
    places = []
    if question.segment:
        labels = [as_label(row) for row in rows.select(columns(question.segment)).rows()]
        known = {label: k for k, label in enumerate(dict.fromkeys(labels))}
        names = [" and ".join(map(_is, question.segment, label)) for label in known]
        rest = [" or ".join(map(_is_not, question.segment, label)) for label in known]
        places.append(RowPlaces(np.array([known[label] for label in labels]), names, rest, list(known)))
    return places + [_by_column(rows.get_column(name)) for name in question.log.context if name not in question.segment]


def _by_column(values: pl.Series) -> RowPlaces:
    """The values of a column; its quarters if there are many numbers, the most frequent ones if there are many texts."""
    if _is_nested(values.dtype):
        return RowPlaces(np.full(len(values), -1), [], [])
    counts = values.value_counts(sort=True)
    if counts.height > LEVELS and values.dtype.is_numeric():
        x = values.cast(pl.Float64).to_numpy()
        cuts = np.nanquantile(x, [0.25, 0.5, 0.75]).tolist()
        name = sql_name(values.name)
        said = [f"{values.name} is at most {cuts[0]:.4g}"]
        said += [f"{values.name} is between {low:.4g} and {high:.4g}" for low, high in pairwise(cuts)]
        said += [f"{values.name} is above {cuts[2]:.4g}"]
        rest = [f"{name} > {cuts[0]!r}"]
        rest += [f"{name} <= {low!r} or {name} > {high!r}" for low, high in pairwise(cuts)]
        rest += [f"{name} <= {cuts[2]!r}"]
        rest = [f"{condition} or {name} is null" if values.null_count() else condition for condition in rest]
        return RowPlaces(np.where(np.isnan(x), -1, np.searchsorted(cuts, x)), said, rest)
    levels = counts.get_column(values.name).head(LEVELS)
    codes = values.replace_strict(levels, np.arange(len(levels)), default=-1, return_dtype=pl.Int64)
    has_nulls = bool(values.null_count())
    rest = [_is_not(values.name, level, has_nulls=has_nulls) for level in levels]
    return RowPlaces(codes.to_numpy(), [_is(values.name, level) for level in levels], rest)


def _is(column: str, value: object) -> str:
    return f"{shortened(column)} is {'missing' if value is None else shortened(value)}"


def _is_not(column: str, value: object, *, has_nulls: bool = False) -> str:
    """The rows with another value, in SQL; empty where it has no plain way to write the value.

    >>> _is_not("country", "DE"), _is_not("my age", 30, has_nulls=True), _is_not("country", None)
    ("country <> 'DE'", '"my age" <> 30 or "my age" is null', 'country is not null')
    """
    name = sql_name(column)
    if value is None:
        return f"{name} is not null"
    if isinstance(value, str):
        written = "'" + value.replace("'", "''") + "'"
    elif isinstance(value, bool | int | float):
        written = str(value).lower()
    else:
        return ""
    return f"{name} <> {written}" + (f" or {name} is null" if has_nulls else "")


def _test(taken: Taken, w: Floats, places: Sequence[RowPlaces]) -> NDArray[np.bool_]:
    """Which of a target's probabilities are missing, by a test of every action in the whole log and at every place."""
    from scipy.special import gammaincc

    order = np.argsort(w)
    heavy = float(w[order][np.searchsorted(np.cumsum(w[order]), 0.95 * w.sum())])
    whole = RowPlaces(np.zeros(len(w), dtype=np.int64), [""], [""])
    cells = []
    for place in (whole, *places):
        width = max(len(place.said), 1)
        count = len(taken.names) * width
        at = np.where(place.at[taken.row] >= 0, taken.action * width + place.at[taken.row], count)
        hit = np.where((taken.logged >= 0) & (place.at >= 0), taken.logged * width + place.at, count)
        wanted = np.bincount(at, taken.mass, count + 1)[:count]
        observed = np.bincount(hit, w, count + 1)[:count]
        square = np.bincount(hit, w * w, count + 1)[:count]
        size = np.maximum(np.divide(square, observed, out=np.zeros(count), where=observed > 0), heavy)
        chance = np.where(wanted >= FEWEST_HITS * size, gammaincc(observed / size + 1.0, wanted / size), np.nan)
        cells.append((at, chance, wanted, observed, square))
    tests = sum(int(np.isfinite(chance).sum()) for _, chance, *_ in cells)
    lacks = np.zeros(len(taken.row), dtype=bool)
    for at, chance, wanted, observed, square in cells:
        is_empty = (chance < CHANCE / max(tests, 1)) & (observed <= HARDLY * wanted)
        # a place that was not known before the choice (the action itself, its category) has too much of an action elsewhere
        by_action = [sums.reshape(len(taken.names), -1) for sums in (np.where(is_empty, 0.0, wanted), observed, square)]
        rest, weight, spread = (sums.sum(axis=1) for sums in by_action)
        is_known_before = weight - rest <= BEYOND * np.sqrt(spread)
        is_empty &= np.repeat(is_known_before, len(is_empty) // len(taken.names))
        lacks |= np.append(is_empty, False)[at]
    return lacks


@dataclass(frozen=True)
class Missing:
    """What a target takes and the log does not."""

    target: str
    rows: pl.DataFrame
    taken: Taken
    # whether each of the target's probabilities is of an action that the log never takes there
    lacks: NDArray[np.bool_]
    places: Sequence[RowPlaces]
    counts: Floats  # how often each row counts

    @property
    def segments(self) -> list[Label]:
        """The segments in which something is missing; the worst of them, if there are very many."""
        at, labels = self.places[0].at[self.taken.row[self.lacks]], self.places[0].labels or ()
        mass = np.bincount(at, self.taken.mass[self.lacks], len(labels))
        return [labels[int(k)] for k in np.argsort(-mass)[:SEGMENTS] if mass[k] > 0]

    def caveat(self, segment: Label | None) -> Caveat:
        """What to say of the whole log, or of a segment in which something is missing."""
        there = np.ones(len(self.taken.logged), dtype=bool)
        if segment is not None:
            there = self.places[0].at == (self.places[0].labels or ()).index(segment)
        lacks = self.lacks & there[self.taken.row]
        n, mass = float(self.counts[there].sum()), np.where(lacks, self.taken.mass, 0.0)
        share = min(float(mass.sum()) / n, 1.0) if n else 0.0
        by_action = np.bincount(self.taken.action, mass, len(self.taken.names))
        first, others = int(by_action.argmax()), int((by_action > 0).sum()) - 1
        of_first = lacks & (self.taken.action == first)
        often = "hardly ever" if (self.taken.logged[self.taken.row[of_first]] == first).any() else "never"
        action = repr(shortened(self.taken.names[first]))
        text = (
            f"{percent(share)} of what {shortened(self.target)} does is not in this log, which {often} takes {action}"
        )
        if others:
            text += f" ({percent(by_action[first] / n)}) and {others:,} other action{'s' if others > 1 else ''}"
        spot = self._where(mass, there) if segment is None else None
        where = spot.said if spot else ""
        if (self.taken.logged[there] == first).any():  # somewhere else
            text += f" where {where}" if where else " where the target does"
        elif where:
            text += f"; the target does so above all where {where}"
        text = f"{text}.".replace("\N{NO-BREAK SPACE}", " ")
        effective = n * n / float(np.square(self.counts[there]).sum())
        upper = min(share + 2.0 * math.sqrt(share * (1.0 - share) / effective), 1.0)
        numbers = {"share": share, "share_upper": upper, "rows": n, "actions": others + 1}
        numbers |= {"share_there": spot.share} if spot else {}
        severity: Literal["not identified"] | None = "not identified" if share >= UNSUPPORTED else None
        rest = spot.rest if spot and self._is_all_in(spot) else ""
        named = shortened(self.taken.names[first])
        return Caveat(
            MISSING, text, numbers, "", severity, where, rest, action=named, target=self.target, places=(segment,)
        )

    def known(self, question: Question) -> tuple[LogMoments, ...]:
        """The moments of the rows in which nothing is missing, one for each reward; none where those are too few.

        They are the rows outside of the place where something is missing, if nothing is missing elsewhere, or else those in which the log
        has everything that the target takes. Both are known before the choice, so that weights average 1 there.
        """
        spot = self._where(np.where(self.lacks, self.taken.mass, 0.0), np.ones(len(self.taken.logged), dtype=bool))
        chosen = ~spot.rows if spot and self._is_all_in(spot) else self._is_complete
        if chosen.sum() < FEWEST_ROWS:
            return ()
        log, rows = question.log, self.rows.with_columns(pl.Series(TARGET, self.taken.probability))
        data, p = rows.filter(pl.Series(chosen)), str(log.propensity)
        numbers: dict[str, Any] = {number.part: named for number, named in question.own_numbers}
        known = Log(data, reward=log.reward, propensity=p, cluster=log.cluster, **numbers, drop_bad_rows=True)
        about = ask(known, {self.target: TARGET}, weight=question.weight, groups=question.groups)
        with suppress(CounterpoiseError):  # such as no good row
            return moments_of(about, progress=False)
        return ()

    @property
    def _is_complete(self) -> NDArray[np.bool_]:
        """Whether each row has nothing missing."""
        complete = np.ones(len(self.taken.logged), dtype=bool)
        complete[self.taken.row[self.lacks]] = False
        return complete

    def _is_all_in(self, spot: Spot) -> bool:
        """Whether nothing is missing elsewhere, and SQL can say where that is."""
        return bool(spot.rest) and bool(self._is_complete[~spot.rows].all())

    def _where(self, mass: Floats, there: NDArray[np.bool_]) -> Spot | None:
        """The value of a column where most is missing, if one stands out."""
        best, spot = 0.0, None
        for place in self.places:
            width = len(place.said)
            at = np.where(place.at >= 0, place.at, width)
            rows = np.bincount(at[there], self.counts[there], minlength=width + 1)[:width]
            missing = np.bincount(at[self.taken.row], mass, width + 1)[:width]
            share, of_rows = missing / mass.sum(), rows / max(rows.sum(), 1e-300)
            for k in np.flatnonzero((share >= 0.5) & (share >= 1.25 * of_rows)):
                if share[k] - of_rows[k] > best:
                    best = float(share[k] - of_rows[k])
                    spot = Spot(place.said[int(k)], place.rest[int(k)], float(share[k]), at == k)
        return spot


@dataclass(frozen=True)
class Spot:
    """Where most is missing: in words, the rest of the log in SQL, how much of it, and which rows."""

    said: str
    rest: str
    share: float
    rows: NDArray[np.bool_]


# -- what is left of an answer -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RewardRange:
    """The range of rewards: as the log promises, or as it has them."""

    low: float
    high: float
    is_promised: bool

    @property
    def said(self) -> str:
        """As the end of a sentence."""
        source = "by `reward_bounds=`" if self.is_promised else "as in this log"
        return f"if rewards lie between {self.low:g} and {self.high:g}, {source}."

    @property
    def do(self) -> str:
        """What to do if that is wrong."""
        return "" if self.is_promised else "If they can be anything else, pass `reward_bounds=`."


def rewards_of(moments: LogMoments, promised: tuple[float, float] | None) -> RewardRange:
    """The range of a log's rewards."""
    if promised is not None:
        return RewardRange(*promised, is_promised=True)
    if not moments.means_rewards:  # what is missing may be divided by next to nothing
        return RewardRange(-math.inf, math.inf, is_promised=False)
    return RewardRange(
        float(np.fmin.reduce(moments.reward_min)), float(np.fmax.reduce(moments.reward_max)), is_promised=False
    )


@dataclass(frozen=True)
class Gap:
    r"""A share of what a target does that the log says nothing about.

    An estimate with a baseline β gives the missing part β, since :math:`\beta + \frac1n\sum_i w_i(r_i - \beta)` has the mean
    :math:`V_{seen} + m\beta` where a share m is not in the log. So the value is between the estimate's lower end minus m(β − low) and its
    upper end plus m(high − β).
    """

    share: float
    has_point: bool  # whether the estimate is still a possible reading of the log

    def moves(self, baseline: float | None, rewards: RewardRange, sign: float) -> tuple[float, float]:
        """By how much the lower and the upper end of an interval move; `sign` is −1 for the policy that is compared with.

        Where there is no single baseline, what an estimator gives the missing part may be any reward.
        """
        betas = (rewards.low, rewards.high) if baseline is None else (baseline,)
        moves = [sign * self.share * (end - beta) for end in (rewards.low, rewards.high) for beta in betas]
        if self.has_point:
            moves.append(0.0)
        return min(moves), max(moves)


def gap_of(caveats: Sequence[Caveat]) -> Gap | None:
    """The missing share that caveats report for a target, unless it is too small to matter."""
    ordered = sorted(caveats, key=lambda caveat: caveat.code != MISSING)  # which also knows which actions
    first = next((caveat for caveat in ordered if _leaves_a_gap(caveat, MISSING, BELOW_ONE)), None)
    return None if first is None else Gap(first.numbers["share_upper"], has_point=first.code == BELOW_ONE)


def bounded(
    estimate: Estimate, estimator: Estimator, rewards: RewardRange, gap: Gap | None, other: Gap | None = None
) -> Estimate:
    """An estimate turned into bounds that allow for missing actions of a target and of its rival."""
    if (gap is None and other is None) or not estimate.identified:
        return estimate
    baseline = _constant(estimate, estimator)
    lower, upper = estimate.interval
    for side, sign in ((gap, 1.0), (other, -1.0)):
        if side is not None:
            down, up = side.moves(baseline, rewards, sign)
            lower, upper = lower + down, upper + up
    has_point = all(side is None or side.has_point for side in (gap, other))
    value = estimate.value if has_point else math.nan
    return replace(estimate, value=value, interval=replace(estimate.interval, lower=lower, upper=upper))


def _constant(estimate: Estimate, estimator: Estimator) -> float | None:
    """The baseline of an estimator that has a single one."""
    own = estimate.baseline
    return own if isinstance(own, float) and math.isfinite(own) and estimator.needs in ("", "groups") else None


def with_bounds(
    verdict: Verdict,
    estimates: Mapping[str, Estimate],
    estimators: Mapping[str, Estimator],
    rewards: RewardRange,
    own: Sequence[Caveat],
    other: Sequence[Caveat] = (),
) -> tuple[Verdict, dict[str, Estimate]]:
    """A verdict and its estimates, with bounds where something is missing, of the target (`own`) or of the `other` policy."""
    main_name = foremost(estimators, estimators)
    main = estimates[main_name]
    little = MATTERS * main.stderr / (rewards.high - rewards.low) if rewards.high > rewards.low else 0.0

    def settled(caveat: Caveat) -> Caveat:  # a note if too few actions are missing to matter
        is_little = caveat.code == MISSING and caveat.numbers["share_upper"] <= little
        return replace(caveat, unusual_severity="note") if is_little else caveat

    sides = [list(map(settled, side)) for side in (own, other)]
    missing = [caveat for side in sides for caveat in side if caveat.code == MISSING]
    # weights below 1 have nothing more to say where the actions that are missing explain them
    is_explained = all(any(_leaves_a_gap(caveat, MISSING) for caveat in side) for side in sides if side)
    kept = (caveat for caveat in verdict.caveats if not (is_explained and caveat.code == BELOW_ONE))
    verdict = Verdict((*kept, *missing))
    gaps = gap_of(sides[0]), gap_of(sides[1])
    answers = {name: bounded(estimate, estimators[name], rewards, *gaps) for name, estimate in estimates.items()}
    if gaps == (None, None):
        return verdict, answers
    # the same value, with a known baseline in place of the missing part
    if PLAIN in answers and not answers[PLAIN].identified:
        alike = [name for name in answers if estimators[name].estimand == estimators[PLAIN].estimand]
        several = [name for name in alike if _constant(answers[name], estimators[name]) is None]
        answers |= {name: replace(answers[name], interval=answers[PLAIN].interval) for name in several}
    bounds, write = answers[main_name].interval, signed if estimators[main_name].is_difference else number
    said = f"{write(bounds.lower, main.stderr)} to {write(bounds.upper, main.stderr)}, {rewards.said}"

    def with_ends(caveat: Caveat) -> Caveat:  # one about something missing, with the bounds that are left
        if not _leaves_a_gap(caveat, MISSING, BELOW_ONE):
            return caveat
        start = "The log gives bounds, and no estimate" if caveat.code == MISSING else "The interval allows for both"
        numbers, left = {**caveat.numbers, "lower": bounds.lower, "upper": bounds.upper}, f"{start}: {said}"
        return replace(caveat, text=f"{verbatim(caveat.text)} {left}", do=rewards.do, numbers=numbers, left=left)

    return Verdict(tuple(map(with_ends, verdict.caveats))), answers


def _leaves_a_gap(caveat: Caveat, *codes: str) -> bool:
    """Whether a caveat reports a gap that matters."""
    return caveat.code in codes and caveat.severity != "note"
