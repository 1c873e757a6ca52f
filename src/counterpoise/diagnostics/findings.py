"""What rows reveal about a log that nobody said: lists, propensities and a context that are something else than they are taken for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.diagnostics.seeming import SeemingLists
from counterpoise.diagnostics.verdict import CHECK_PROPENSITIES, COUNTED, MISREAD, SURE, UNNAMED, Caveat
from counterpoise.display import shortened
from counterpoise.errors import verbatim
from counterpoise.log.expressions import column, sql_name
from counterpoise.log.good import is_number, is_propensity
from counterpoise.log.groups import folds_of, row_ids
from counterpoise.log.kinds import that_sounds_like
from counterpoise.log.parts import CONDITIONAL, MARGINAL, sampling_advice
from counterpoise.moments import Floats

FEW = 10  # so few distinct propensities may well be natural, such as 0.1, 0.2, …


# -- Rows that are the positions of lists, or the steps of episodes ----------------------------------------------------


def about_lists(seeming: SeemingLists, rows: int) -> Caveat:
    """What to do about rows that look like those of lists or episodes; a note where no column tells which belong together."""
    kind, position, of = that_sounds_like(*seeming.names), seeming.position, seeming.list
    (place, parts), unit = kind.looks_like, kind.unit
    if of is None:
        text = f"{position!r} looks like {place}, but no column says which rows belong to the same {unit}. {kind.if_so}"
        return Caveat("lists-as-rows", text, unusual_severity="note")
    text = f"{position!r} numbers the rows of each {of!r}, so they look like the {parts} of {seeming.lists:,} {unit}s. {kind.if_so}"
    return Caveat("lists-as-rows", text, {"lists": float(seeming.lists), "rows": rows})


def meaning_of(fall: float, error: float, steps: int) -> str | None:
    """What the propensities of lists are probabilities of, if the mean of 1/p can tell.

    That mean is the number of items that could be at a position. If items are shown once, it falls by one at every position given
    the items above, and stays the same otherwise.

    >>> meaning_of(1.9, 0.2, 2), meaning_of(0.1, 0.2, 2), meaning_of(0.1, 2.0, 2)
    ('item_given_above', 'item_at_position', None)
    """
    is_given, is_at = abs(fall - steps) <= SURE * error, abs(fall) <= SURE * error
    if is_given == is_at or not error > 0:
        return None
    return CONDITIONAL if is_given else MARGINAL


# -- Columns that say how rows were sampled ----------------------------------------------------------------------------


def about_sampling(values: pl.Series, *, is_sure: bool) -> Caveat | None:
    """What to say of a column that seems to say how rows were sampled, if its values can."""
    do = sampling_advice(values)
    if do is None:
        return None
    text = f"The column {values.name!r} looks like the rate at which <rows> were sampled, and all <rows> count alike."
    return Caveat(UNNAMED, text, {}, do, unusual_severity=None if is_sure else "note")


# -- Propensities that were counted from simulated draws ---------------------------------------------------------------

LOOKED_AT = 10_000  # first rows
SMALL = 5  # a propensity of so few draws may be off by 45 %, and a rounded one by 10 %
DIVISORS = 64  # no whole number up to 10,000 has more: so many values of 1/k, for lists of different lengths, have no common denominator
DRAWS = np.concatenate([np.arange(FEW + 1, 10_000), *np.outer([10_000, 100_000, 1_000_000], [1, 2, 5])])
POWERS_OF_TEN = {10**k for k in range(1, 8)}


@dataclass(frozen=True)
class Counted:
    """Propensities that are counts c of the same number m of `draws`, and the smallest of them.

    If c of m draws is taken for a propensity p, then the mean of m/c is above 1/p, by a share of about (1 − p)/(m·p). The mean of
    (m + 1)/(c + 1) is (1 − (1 − p)^(m + 1))/p, next to 1/p. So it shows by what share weights are too large, the `excess`, and corrects it.
    """

    draws: int
    smallest: float
    excess: float

    def corrected(self, p: Floats) -> Floats:
        """The propensities (c + 1)/(m + 1)."""
        return (p * self.draws + 1.0) / (self.draws + 1.0)

    def caveat(self, column: str, *, is_array: bool = False) -> Caveat:
        """What is odd about the column, what it does to weights, and how to correct it."""
        may_be_rounded = self.draws in POWERS_OF_TEN  # to decimals, which looks the same
        unless = f", unless {column!r} is rounded to {round(math.log10(self.draws))} decimals" if may_be_rounded else ""
        text = (
            f"All values of {column!r} are multiples of 1/{self.draws:,}, and the smallest is {self.smallest:.2g}: they seem to come from "
            f"counting {self.draws:,} simulated draws{unless}. Weights from counts are too large on average, and so is the mean of "
            f"1/{column}, by about {100.0 * self.excess:.2g} %."
        )
        expression = f"({sql_name(column)} * {self.draws} + 1) / {self.draws + 1}"
        rounded = "; if they were rounded, log all digits" if may_be_rounded else ""
        do = "Compute them instead, such as with cp.propensities.thompson_beta. If they were counted and that is no longer possible, "
        if is_array:  # of which no expression is computed
            do += f"pass an array of {verbatim(expression)} as propensity{rounded}."
        else:
            do += f"pass `propensity={expression!r}`{rounded}."
        return Caveat(COUNTED, text, {"draws": self.draws, "excess": self.excess}, do)


def counted_of(p: Floats) -> Counted | None:
    """What propensities look like that were counted from draws, if these do.

    They are many, and multiples of 1/m; and some are so small that it matters, or m is not what rounding makes.

    >>> count = np.arange(1, 90)
    >>> counted_of(count / 500.0).draws, counted_of(count / 500.0 + 1e-5), counted_of(np.array([0.1, 0.9]))
    (500, None, None)
    """
    p = p[(p > 0.0) & (p <= 1.0)]
    draws = _draws_of(p[:FEW], DRAWS)  # a few are enough to tell that most columns were not counted
    distinct = np.unique(p) if len(draws) else p[:0]
    draws = _draws_of(distinct, draws)
    if len(distinct) <= FEW or not len(draws):
        return None
    m, smallest = int(draws[0]), float(distinct[0])
    if m * smallest > SMALL + 0.5 and (m in POWERS_OF_TEN or len(distinct) <= DIVISORS):
        return None
    corrected = (p * m + 1.0) / (m + 1.0)
    return Counted(m, smallest, float(np.mean(1.0 / p) / np.mean(1.0 / corrected) - 1.0))


def _draws_of(p: Floats, draws: Floats) -> Floats:
    """Those numbers of draws of which all these propensities can be counts."""
    for value in p:
        if not len(draws):
            break
        count, nearest = draws * value, np.rint(draws * value)
        draws = draws[(np.abs(count - nearest) < 1e-3 + 1e-7 * count) & (nearest > 0.0)]  # 1e-7: float32 will do
    return draws


# -- Propensity columns that hold something else, and the expression that makes propensities of them ---------------------


VALID = 0.999  # share of the values that a reading must turn into propensities
PRECISE = 0.05  # the standard error of a mean weight that proves something
FEW_VALID = 0.5  # at most this share are propensities if the range alone shows that the column holds something else
TRIED = 3  # targets whose mean weights are used to tell what a column holds
OFF = 0.1  # how far from 1 the mean weight must be for another reading to be offered
SEVERAL = 2  # checks that must agree on a reading: a single one may be a coincidence
SAME = 0.95  # the correlation of two weights from which they make one check
APART = 1.25  # the ratio by which parts must differ, as they are, for their mean weights to be a check of their own
PARTS = 50  # values of a column by which mean weights are looked at
SOME = 50  # rows of a part that are enough to look at
SURE_OF_PARTS = 4.5  # standard errors: p < 0.001 after a hundred looks
PRECISE_PART = 0.2  # the standard error of a part's mean weight that proves something
OTHERS = 8  # other columns that may hold the propensities


@dataclass(frozen=True)
class PropensityReading:
    """One way to read a column: what it then holds, the expression, and the same as arithmetic; or another column in its place."""

    holds: str
    expression: str
    made: Callable[[Floats], Floats]
    is_column: bool = False

    def of(self, named: str) -> str:
        """The expression for a column, with a name that needs quotes in quotes."""
        return self.expression if self.is_column else self.expression.format(p=sql_name(named))


AS_IT_IS = PropensityReading("propensities", "{p}", lambda p: p)
READINGS = (
    PropensityReading("percentages", "{p} / 100", lambda p: p / 100.0),
    PropensityReading("logarithms of propensities", "exp({p})", np.exp),
    PropensityReading("probabilities of not taking the logged action", "1 - {p}", lambda p: 1.0 - p),
    PropensityReading("odds", "{p} / (1 + {p})", lambda p: p / (1.0 + p)),
    PropensityReading("inverse propensities", "1 / {p}", lambda p: 1.0 / p),
)


def exploring(actions: int) -> tuple[PropensityReading, PropensityReading]:
    """ε in place of ε/K wherever a policy explored; its best action has 1 − ε, or rightly 1 − ε + ε/K."""

    def made(of_best: Callable[[Floats], tuple[Floats, Floats]]) -> Callable[[Floats], Floats]:
        def read(p: Floats) -> Floats:
            best, explored = of_best(p)
            is_known = np.isin(np.round(explored, 6), np.unique(np.round(p[p < 0.5], 6)))
            return np.where(p < 0.5, p / actions, np.where(is_known, best, np.nan))

        return read

    holds = f"ε where the logging policy explored, and not ε/{actions}"
    case = f"CASE WHEN {{p}} < 0.5 THEN {{p}} / {actions} ELSE "
    return (
        PropensityReading(
            holds, f"{case}{{p}} + (1 - {{p}}) / {actions} END", made(lambda p: (p + (1.0 - p) / actions, 1.0 - p))
        ),
        PropensityReading(holds, f"{case}{{p}} END", made(lambda p: (p, (1.0 - p) * actions / (actions - 1.0)))),
    )


def may_read(expression: Callable[[Floats], Floats]) -> bool:
    """Whether an expression reads a column in one of these ways, by a few values.

    >>> may_read(lambda p: 1 - p), may_read(lambda p: np.where(p < 0.5, p / 7, p)), may_read(lambda p: p * 0.5)
    (True, True, False)
    """
    p = np.array([0.1, 0.3, 0.7])
    made = expression(p)
    share = made[0] / p[0]
    ways = [reading.made(p) for reading in READINGS]
    ways += [np.array([*(share * p[:2]), best]) for best in (p[2], p[2] + (1.0 - p[2]) * share) if share < 1.0]
    return any(np.allclose(made, way) for way in ways)


@dataclass(frozen=True)
class Tried:
    """What a reading makes of a column: the share of valid propensities, and means that should be 1, each with its error.

    `is_against` says that some action or part of the log rules it out, and `agree` how many independent checks support it.
    """

    valid: float
    means: Mapping[str, tuple[float, float]]  # of what → mean, standard error
    is_against: bool = False
    agree: int = 0

    @property
    def is_rejected(self) -> bool:
        """Whether there is evidence against the reading."""
        return (
            self.valid < VALID
            or self.is_against
            or any(abs(mean - 1.0) > max(SURE * error, 1e-9) for mean, error in self.means.values())
        )

    @property
    def passes(self) -> bool:
        """Whether there is evidence for the reading, and none against it."""
        return (
            not self.is_rejected and len(self.means) > 0 and all(error <= PRECISE for _, error in self.means.values())
        )

    @property
    def fails(self) -> bool:
        """Whether the column must be something else."""
        return self.valid < VALID or self.is_off

    @property
    def is_off(self) -> bool:
        """Whether a mean that should be 1 is far from it."""
        return any(abs(mean - 1.0) > max(OFF, SURE * error) for mean, error in self.means.values())

    @property
    def is_in_range(self) -> bool:
        """Whether the range alone does not show that the column holds something else."""
        return self.valid >= FEW_VALID


@dataclass(frozen=True)
class Witnesses:
    """What can tell how to read the column `p`: the probabilities of targets, the actions, parts of the log, and other columns.

    Actions and the values of parts are numbered; parts were known before the choice.
    """

    p: Floats
    targets: Mapping[str, Floats]
    action: NDArray[np.int64] | None = None
    actions: int = 0
    parts: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    others: Mapping[str, Floats] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        frame: pl.DataFrame,
        named: str,
        targets: Mapping[str, str],
        action: str | None = None,
        parts: Iterable[str] = (),
        others: Iterable[str] = (),
    ) -> Witnesses:
        """Those that a frame has; of the targets, the first tell."""

        def numbers(name: str) -> Floats:
            return frame.get_column(name).rename("x").cast(pl.Float64).fill_null(math.nan).to_numpy()

        def numbered(name: str) -> NDArray[np.int64]:
            values = frame.get_column(name).rename(
                "x"
            )  # of a name that looks like a pattern, polars would compute nothing
            if values.dtype.is_nested() or values.dtype.is_object():
                return np.zeros(len(values), np.int64)
            return values.rank("dense").fill_null(0).cast(pl.Int64).to_numpy() - (values.null_count() == 0)

        acted = None if action is None else numbered(action)
        coded = {name: numbered(name) for name in parts}
        possible = [name for name in others if frame.schema[name].is_float()]
        floats = {name: numbers(name) for name in possible}
        return cls(
            numbers(named),
            {name: numbers(target) for name, target in list(targets.items())[:TRIED]},
            acted,
            0 if acted is None else int(acted.max(initial=-1)) + 1,
            {name: codes for name, codes in coded.items() if 1 <= codes.max(initial=0) < PARTS},
            {name: x for name, x in list(floats.items())[:OTHERS] if np.mean(is_propensity(x)) >= VALID},
        )

    @cached_property
    def plain(self) -> Tried:
        """The column as it is."""
        return self.read(self.p)

    @cached_property
    def readings(self) -> list[tuple[PropensityReading, Tried]]:
        """Every other reading of the column, and other columns in its place."""
        own = (*READINGS, *(exploring(self.actions) if self.actions > 1 else ()))
        with np.errstate(all="ignore"):
            tried = [(reading, self.read(reading.made(self.p))) for reading in own]
        for name, values in self.others.items():
            tried.append((PropensityReading(repr(name), name, AS_IT_IS.made, is_column=True), self.read(values)))
        return tried

    @cached_property
    def passed(self) -> list[tuple[PropensityReading, Tried]]:
        """The readings that the log supports, the best first; where the range rules the column out, one that it does not reject will do."""
        passed = [
            (reading, test)
            for reading, test in self.readings
            if test.passes or not (self.plain.is_in_range or reading.is_column or test.is_rejected)
        ]
        return sorted(passed, key=lambda pair: max(abs(mean - 1.0) for mean, _ in pair[1].means.values()))

    def are_sure_of(self, reading: PropensityReading) -> bool:
        """Whether the log rejects all other readings, and several checks speak for this one, unless the range rules the column out.

        Other columns, of which there may be many, only count if they pass.
        """
        test = next(test for other, test in self.readings if other.expression == reading.expression)
        rivals = [(rival, other) for rival, other in self.readings if rival.expression != reading.expression]
        is_alone = not any(other.passes or not (rival.is_column or other.is_rejected) for rival, other in rivals)
        is_supported = (test.agree >= SEVERAL and not test.is_rejected) or not self.plain.is_in_range
        return self.plain.fails and is_alone and is_supported

    @np.errstate(all="ignore")
    def read(self, made: Floats) -> Tried:
        """What a reading makes of the column, by every check."""
        known = np.isfinite(self.p)
        good = known & is_propensity(made)
        valid = float(good.sum() / max(known.sum(), 1))
        good = np.logical_and.reduce([good, *map(np.isfinite, self.targets.values())])
        if good.sum() < 2:
            return Tried(valid, dict.fromkeys(self._said, (math.nan, math.nan)))
        inverse = 1.0 / made[good]
        n, ones = len(inverse), np.zeros(len(inverse), np.int64)
        weights = [target[good] * inverse for target in self.targets.values()]
        action = None if self.action is None else self.action[good]
        per_action = [] if action is None else [inverse / self.actions]
        whole = [_by(ones, w, n) for w in (*weights, *per_action)]
        means = {
            what: (float(mean[0]), float(error[0])) for what, (mean, error) in zip(self._said, whole, strict=False)
        }
        alone: list[Floats] = []  # weights that agree and are not nearly the same
        for w, (mean, error) in zip((*weights, *per_action), whole, strict=True):
            alike = (np.corrcoef(w, other)[0, 1] > SAME or w.std() == 0 == other.std() for other in alone)
            if _agree(mean, error, PRECISE) and not any(alike):
                alone.append(w)
        agree = len(alone)
        against = False
        if (
            action is not None
        ):  # one that not every row could take has a mean below 1: only means above speak against a reading
            by_action = _by(action, inverse, n)
            against = any(_is_above(mean, error) for mean, error in (*whole[len(weights) :], by_action))
            agree += _agree(*by_action) and _differ(np.bincount(action))
        for codes in (part[good] for part in self.parts.values()):
            rows = np.bincount(codes)
            by_part = [_by(codes, w, rows) for w in weights]
            against |= any(bool(np.any(_is_off(mean, error))) for mean, error in by_part)
            plain = [_by(codes, target[good] / self.p[good], rows)[0] for target in self.targets.values()]
            agree += any(_agree(*test) and _differ(mean) for test, mean in zip(by_part, plain, strict=True))
            if action is not None:
                against |= _is_above(*_by(codes * self.actions + action, inverse, np.repeat(rows, self.actions)))
        return Tried(valid, means, against, agree)

    @property
    def _said(self) -> list[str]:
        """What is tested: the mean weights of targets, or, if there are none, the mean of 1/propensity."""
        said = [f"the mean weight of {shortened(name)}" for name in self.targets]
        return said or (["the mean of 1/propensity over the number of actions"] if self.actions else [])


def _by(codes: NDArray[np.int64], w: Floats, rows: int | NDArray[np.int64]) -> tuple[Floats, Floats]:
    """The mean of a weight over `rows` in each place that has enough of them, and its error; nan in others."""
    counts = np.bincount(codes)
    n = np.broadcast_to(rows, counts.shape) if isinstance(rows, int) else rows[: len(counts)]
    with np.errstate(all="ignore"):
        mean, square = (np.bincount(codes, power) / n for power in (w, w * w))
        error = np.sqrt(np.maximum(square - mean * mean, 0.0) / n)
    few = counts < np.minimum(SOME, n)
    return np.where(few, np.nan, mean), np.where(few, np.nan, error)


def _is_off(mean: Floats, error: Floats) -> NDArray[np.bool_]:
    return np.abs(mean - 1.0) > np.maximum(OFF, SURE_OF_PARTS * error)


def _is_above(mean: Floats, error: Floats) -> bool:
    return bool(np.any(_is_off(mean, error) & (mean > 1.0)))


def _agree(mean: Floats, error: Floats, precise: float = PRECISE_PART) -> bool:
    """Whether all that is known precisely is 1 within its error."""
    known = error <= precise
    near = np.abs(mean - 1.0) <= np.maximum(SURE * error, 1e-9)
    return bool(known.any() and near[known].all())


def _differ(parts: NDArray[Any]) -> bool:
    """Whether parts differ, so that agreement of each does not follow from that of the whole."""
    known = parts[parts > 0]
    return len(known) > 1 and bool(known.max() > APART * known.min())


def _as_propensity(expression: str, is_array: bool) -> str:
    """How to pass an expression; where propensities are an array, no expression is computed."""
    return f"an array of {verbatim(expression)} as propensity" if is_array else f"`propensity={expression!r}`"


def about_misread(named: str, witnesses: Witnesses, *, is_array: bool = False) -> Caveat | None:
    """What the column seems to hold, if it is not propensities.

    A reading is offered only if the log rejects all others and several checks agree on it. If there is nothing to test it with (no
    target, no actions), the range of the values may still tell.
    """
    plain = witnesses.plain
    numbers = {"valid_share": plain.valid}
    if not plain.fails:
        return None
    if not plain.means:
        possible = [
            reading
            for reading, test in witnesses.readings
            if not plain.is_in_range and test.valid >= VALID and not reading.is_column
        ]
        if not possible:
            return None
        holds = " or ".join(reading.holds for reading in possible)
        options = " or ".join(_as_propensity(reading.of(named), is_array) for reading in possible)
        text = f"Going by their range, values of {named!r} could be {holds}."
        return Caveat(MISREAD, text, numbers, f"Pass {options}.")
    if not witnesses.passed:
        return None
    best, test = witnesses.passed[0]
    what, (mean, error) = next(iter(test.means.items()))
    before = plain.means[what][0]
    if not witnesses.are_sure_of(best):
        off = f"{what} is {before:.4g} and should be 1" if plain.valid >= VALID else "they do not lie in (0, 1]"
        said = f"{named!r} does not seem to hold propensities: {off}. Too few checks of this log can tell what it contains instead."
        return Caveat(MISREAD, said, numbers, CHECK_PROPENSITIES)
    was = f", and not {before:.4g}" if plain.valid >= VALID else ""
    expression = best.of(named)
    said = f"{named!r} seems to hold {best.holds}: with {verbatim(expression)}, {what} is {mean:.3f} ± {error:.3f}, as it should be{was}."
    if best.is_column:
        said = f"{named!r} does not seem to hold propensities, and {best.holds} does: with it, {what} is {mean:.3f} ± {error:.3f}{was}."
    return Caveat(MISREAD, said, numbers, f"Pass {_as_propensity(expression, is_array)}.")


# -- Densities, where actions are continuous ---------------------------------------------------------------------------

VARIED = 100  # so many values of an action, some with a fraction, are no list to choose from


def about_densities(
    rows: pl.DataFrame, named: str, targets: Mapping[str, str], action: str | None, *, is_array: bool = False
) -> Caveat | None:
    """What to do about propensities above 1 that are densities, because actions are continuous; targets are columns, or none are."""
    actions = None if action is None else rows.get_column(action).rename("x").drop_nulls()
    if actions is None or not actions.dtype.is_float():
        return None
    values = actions.n_unique()
    numbers = rows.select(
        column(name).cast(pl.Float64).fill_nan(None) for name in dict.fromkeys([named, *targets.values()])
    )
    highest = max((top for top in numbers.max().row(0) if top is not None), default=0.0)
    share = (numbers.get_column(named) > 0).mean()
    is_continuous = values >= max(min(VARIED, len(actions) / 2), ENOUGH) and bool((actions % 1 != 0).any())
    if not is_continuous or not isinstance(share, float) or share < VALID or not 1.0 < highest < math.inf:
        return None
    said = f"{action!r} has {values:,} different values in {rows.height:,} <rows>, so actions look continuous, and {named!r} is a density."
    if not targets:
        return Caveat(MISREAD, said, do=_IN_GROUPS)
    scale = f"/ {10 ** (math.ceil(math.log10(highest)) + 1)}"  # with room for rows that were not looked at
    shown = {target: f"{sql_name(source)} {scale}" for target, source in targets.items()}
    made = f"{sql_name(named)} {scale}"
    how = _as_propensity(made, is_array)
    do = f"Only ratios of densities count, so give all of them in another unit: pass {how} and `target={shown!r}`."
    return Caveat(MISREAD, said, do=do)


_IN_GROUPS = (
    "No single value has a probability: cut the actions into a few groups, pass the group as `action=`, and the logging policy's "
    "probability of the logged group as `propensity=`."
)


# -- Columns of the context that leak the reward -----------------------------------------------------------------------

LEAKS = 0.95  # a column that explains this share of the variance is too good to have been known before the choice
VALUES = 100  # values of a column that are kept apart; with more, hundredths of the rows are
ENOUGH = 50  # rows it takes to say anything


def leaks(rows: pl.LazyFrame, reward: str, context: Sequence[str]) -> dict[str, float]:
    """The context columns that give the reward away, and the share of its variance that they explain out of fold.

    >>> import polars as pl
    >>> rows = pl.LazyFrame({"r": [0.0, 1.0] * 100, "paid": ["no", "yes"] * 100, "age": list(range(200))})
    >>> leaks(rows, "r", ["paid", "age"]).keys()
    dict_keys(['paid'])
    """
    known = [name for name in context if name in rows.collect_schema().names() and name != reward]
    if not known:
        return {}
    frame = rows.select(reward, *known).collect().filter(is_number(pl.col(reward).cast(pl.Float64)))
    r = frame.get_column(reward).cast(pl.Float64).to_numpy()
    if len(r) < ENOUGH or r.std() <= 0:
        return {}
    folds = folds_of(row_ids(frame, (), 0), 2)
    shares: dict[str, float] = {}
    for name in (
        known
    ):  # the mean reward by value of a column, or by hundredths of the rows if it has many, on rows of the other fold
        values = frame.get_column(name)
        if values.dtype.is_nested():
            continue
        codes = values.rank("dense").fill_null(0).cast(pl.Int64).to_numpy()
        if codes.max() > VALUES:
            if not (values.dtype.is_numeric() or values.dtype.is_temporal()):
                continue
            codes = (values.rank("average").fill_null(0).to_numpy() * VALUES / (len(r) + 1)).astype(np.int64)
        predicted = np.empty(len(r))
        for fold in (0, 1):
            own = folds == fold
            n, total = (np.bincount(codes[~own], weights, codes.max() + 1) for weights in (None, r[~own]))
            predicted[own] = ((total + r[~own].mean()) / (n + 1))[codes[own]]
        shares[name] = float(1 - np.square(r - predicted).sum() / np.square(r - r.mean()).sum())
    return {name: share for name, share in shares.items() if share >= LEAKS}
