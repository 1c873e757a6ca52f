"""What the doctor looks for: propensities and rewards that seem wrong, and what to do about them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.display import shortened
from counterpoise.errors import Sentence, verbatim
from counterpoise.log.expressions import column, sql_name
from counterpoise.log.good import is_number, is_propensity
from counterpoise.log.groups import folds_of, row_ids
from counterpoise.log.lists import CONDITIONAL, MARGINAL
from counterpoise.log.rules import Problem
from counterpoise.moments import Floats
from counterpoise.readers.files import collect

Severity = Literal["fix", "look", "note"]
ROUNDING = 0.02  # the relative error of the smallest propensity from which rounding matters
FEW = 10  # so few distinct propensities may well be natural, such as 0.1, 0.2, …
SURE = 3.3  # standard errors: p = 0.001


@dataclass(frozen=True)
class Finding:
    """Something the owner of a log should know: `fix` it, `look` into it, or take `note` of it."""

    severity: Severity
    about: str
    message: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", Sentence(self.message))


@dataclass(frozen=True)
class Propensities:
    """What the good propensities look like; `impossible` ones lie outside (0, 1] or are missing.

    `expected_actions` is how many distinct actions we should see, given these propensities, in the m rows in which actions are counted:
    Σ_a 1 − (1 − π₀(a))ᵐ, estimated by the mean of (1 − (1 − p)ᵐ)/p. Its error includes the randomness of the count itself.
    """

    impossible: int
    lowest: float = math.nan
    median: float = math.nan
    highest: float = math.nan
    distinct: int = 0
    repeated_share: float = 0.0
    commonest: float = math.nan
    commonest_share: float = 0.0
    decimals: int | None = None
    counted: Counted | None = None
    mean_inverse: float = math.nan
    mean_inverse_stderr: float = math.nan
    expected_actions: float = math.nan
    expected_actions_stderr: float = math.nan


@dataclass(frozen=True)
class RewardSummary:
    """What the rewards look like; `impossible` ones are missing or not finite."""

    impossible: int
    lowest: float
    mean: float
    highest: float
    distinct: int
    zero_share: float


def about_propensities(column: str | None, propensities: Propensities | None, actions: int | None) -> list[Finding]:
    """What is wrong with the propensities, or might be."""
    if propensities is None or column is None:
        return []
    findings = []
    if propensities.lowest == propensities.highest == 1.0:
        what = (
            f"{column!r} is always 1, and a policy that never varies says nothing about any other. If yours does explore, log its true "
            "probabilities; if not, let it explore first."
        )
        findings.append(Finding("fix", column, what))
    if propensities.counted is not None:
        findings.append(
            Finding("look", column, f"{propensities.counted.said(column)} {propensities.counted.do(column)}")
        )
    elif propensities.decimals is not None and propensities.distinct > FEW:
        off = 0.5 * 10.0**-propensities.decimals / propensities.lowest
        if off > ROUNDING:
            what = (
                f"{column!r} is rounded to {propensities.decimals} decimals, and its smallest value is {propensities.lowest:g}, so the "
                f"largest weights may be off by {off:.0%}. Log all digits."
            )
            findings.append(Finding("look", column, what))
    if propensities.commonest_share > 0.5 and propensities.distinct > FEW:
        what = (
            f"{propensities.commonest_share:.0%} of {column!r} is {propensities.commonest:g}, and the rest varies. Is that a default for "
            "rows whose true value was unknown?"
        )
        findings.append(Finding("look", column, what))
    # all actions, seen or not: there cannot be fewer than were seen, but there can be more if rare ones have not come up yet
    if actions and actions - propensities.mean_inverse > max(SURE * propensities.mean_inverse_stderr, 0.02 * actions):
        what = (
            f"the mean of 1/{column} is {propensities.mean_inverse:.4g} and should be the number of actions, of which the log has "
            f"{actions:,}. Either the propensities are too large, or not all rows could choose from the same actions."
        )
        findings.append(Finding("look", column, what))
    # if an action's propensity differs between rows, even more actions are to be expected, by Jensen's inequality
    expected, error = propensities.expected_actions, propensities.expected_actions_stderr
    if actions and expected - actions > max(SURE * error, 0.02 * actions):
        what = (
            f"the mean of 1/{column} is {propensities.mean_inverse:.4g} and should be the number of actions. Some may not have come up "
            f"yet, but about {expected:,.0f} should have, and the log has {actions:,}. Either the propensities are too small, or they are "
            "for finer choices than the action column distinguishes."
        )
        findings.append(Finding("look", column, what))
    return findings


def about_rewards(column: str | None, rewards: RewardSummary | None) -> list[Finding]:
    """What is odd about the rewards."""
    if rewards is None or column is None or rewards.distinct != 1:
        return []
    what = f"{column!r} is {rewards.lowest:g} in every row, so the log cannot tell policies apart."
    return [Finding("look", column, what)]


def about_bad_rows(problem: Problem) -> Finding:
    """Rows that break a rule, in the words of `evaluate`, and the usual cause."""
    rule = problem.rule
    behind = "" if rule.is_of_lists else _BEHIND.get(rule.part, "")
    return Finding("fix", rule.column, f"{problem.said}{behind}")


_BEHIND = {
    "propensity": " The usual causes are percentages, logarithms, 0 for “unknown”, and the probability of some other action.",
    "reward": " If no reward means 0, write 0; if a reward is not known yet, leave its row out until it is.",
}


def about_lists(position: str, of: str | None, lists: int) -> Finding:
    """What to do about rows that are the slots of lists."""
    right = (
        "Rows can stand on their own only if their propensity is the item's chance of that position, whatever is above it. If it is the "
        "chance given what is above, the answer will be wrong and no check will show it. Evaluate them as lists: name both columns as "
        "slate and position, and say with propensity_of which of the two it is. See “Rankings” in the documentation."
    )
    if of is None:
        what = f"{position!r} looks like a position in a list, but no column says which rows belong to the same list. {right}"
        return Finding("note", position, what)
    what = f"{position!r} numbers the rows of each {of!r}, so they look like the slots of {lists:,} lists. {right}"
    return Finding("look", position, what)


def about_episodes(step: str, of: str | None, episodes: int) -> Finding:
    """What to do about rows that are the steps of episodes."""
    right = (
        "Rows can stand on their own only if no choice changes what comes after it. If one does, the answer will be wrong and no check "
        "will show it. Evaluate them as episodes: name both columns as episode and step. See “Sessions and episodes” in the documentation."
    )
    if of is None:
        what = (
            f"{step!r} looks like a step of episodes, but no column says which rows belong to the same episode. {right}"
        )
        return Finding("note", step, what)
    what = f"{step!r} numbers the rows of each {of!r}, so they look like the steps of {episodes:,} episodes. {right}"
    return Finding("look", step, what)


def about_positions(position: str, of: str, missing: int, repeated: int) -> list[Finding]:
    """Lists whose positions have gaps or repeat."""
    findings = []
    for count, what in ((missing, "lack a position above their last"), (repeated, "have a position more than once")):
        if count:
            said = f"{count:,} of the lists by {of!r} {what}, by {position!r}: their rows cannot be put together. Fix the logger."
            findings.append(Finding("fix", position, said))
    return findings


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


def about_meaning(propensity: str, fall: float, error: float, steps: int) -> Finding | None:
    """What the propensities of lists seem to mean."""
    meaning = meaning_of(fall, error, steps)
    if meaning is None:
        return None
    whose = (
        "of the item given those above it"
        if meaning == CONDITIONAL
        else "of the item at its position, whatever is above"
    )
    what = (
        f"the mean of 1/{propensity} counts the items to choose from. From the first position to {steps} below, it falls by {fall:.2g} ± "
        f"{error:.1g}, as it does where propensities are those {whose} and no item is shown twice: propensity_of is {meaning}."
    )
    return Finding("note", propensity, what)


# -- Propensities that were counted from simulated draws ---------------------------------------------------------------

LOOKED_AT = 10_000  # first rows
SMALL = 5  # a propensity of so few draws may be off by 45 %, and a rounded one by 10 %
DIVISORS = 64  # no whole number up to 10,000 has more: so many values of 1/k, for lists of different lengths, have no common denominator
DRAWS = np.unique(np.concatenate([np.arange(FEW + 1, 10_001), *np.outer([1, 2, 5], [10_000, 100_000, 1_000_000])]))
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

    def said(self, column: str) -> str:
        """What is odd about the column, and what it does to weights."""
        unless = (
            f", unless {column!r} is rounded to {round(math.log10(self.draws))} decimals" if self.may_be_rounded else ""
        )
        return (
            f"all values of {column!r} are multiples of 1/{self.draws:,}, and the smallest is {self.smallest:.2g}: they seem to come from "
            f"counting {self.draws:,} simulated draws{unless}. Weights from counts are too large on average, and so is the mean of "
            f"1/{column}, by about {100.0 * self.excess:.2g} %."
        )

    def do(self, column: str) -> str:
        """How to correct them."""
        expression = f"({sql_name(column)} * {self.draws} + 1) / {self.draws + 1}"
        rounded = "; if they were rounded, log all digits" if self.may_be_rounded else ""
        return (
            "Compute them instead, such as with cp.propensities.thompson_beta. If they were counted and that is no longer possible, pass "
            f"`propensity={expression!r}`{rounded}."
        )

    @property
    def may_be_rounded(self) -> bool:
        """Whether rounding to decimals looks the same."""
        return self.draws in POWERS_OF_TEN


def counted_of(p: Floats) -> Counted | None:
    """What propensities look like that were counted from draws, if these do.

    They are many, and multiples of 1/m; and some are so small that it matters, or m is not what rounding makes.

    >>> count = np.arange(1, 90)
    >>> counted_of(count / 500.0).draws, counted_of(count / 500.0 + 1e-5), counted_of(np.array([0.1, 0.9]))
    (500, None, None)
    """
    p = p[(p > 0.0) & (p <= 1.0)]
    distinct = np.unique(p)
    if len(distinct) <= FEW:
        return None
    draws = DRAWS
    for value in distinct:
        count, nearest = draws * value, np.rint(draws * value)
        draws = draws[(np.abs(count - nearest) < 1e-3 + 1e-7 * count) & (nearest > 0.0)]  # 1e-7: float32 will do
        if not len(draws):
            return None
    m, smallest = int(draws[0]), float(distinct[0])
    if m * smallest > SMALL + 0.5 and (m in POWERS_OF_TEN or len(distinct) <= DIVISORS):
        return None
    corrected = (p * m + 1.0) / (m + 1.0)
    return Counted(m, smallest, float(np.mean(1.0 / p) / np.mean(1.0 / corrected) - 1.0))


# -- Propensity columns that hold something else, and the expression that makes propensities of them ---------------------


VALID = 0.999  # share of the values that a reading must turn into propensities
PRECISE = 0.05  # the standard error of a mean weight that proves something
FEW_VALID = 0.5  # at most this share are propensities if the range alone shows that the column holds something else
TRIED = 3  # targets whose mean weights are used to tell what a column holds
OFF = 0.1  # how far from 1 the mean weight must be for another reading to be offered


@dataclass(frozen=True)
class PropensityReading:
    """One way to read a column: what it then holds, the expression, and the same as arithmetic on a polars column."""

    holds: str
    expression: str
    made: Callable[[pl.Expr], pl.Expr]


AS_IT_IS = PropensityReading("propensities", "{p}", lambda p: p)
READINGS = (
    PropensityReading("percentages", "{p} / 100", lambda p: p / 100.0),
    PropensityReading("logarithms of propensities", "exp({p})", lambda p: p.exp()),
    PropensityReading("probabilities of not taking the logged action", "1 - {p}", lambda p: 1.0 - p),
    PropensityReading("odds", "{p} / (1 + {p})", lambda p: p / (1.0 + p)),
    PropensityReading("inverse propensities", "1 / {p}", lambda p: 1.0 / p),
)


@dataclass(frozen=True)
class Tried:
    """What a reading makes of the column: the share of valid propensities, and means that should be 1, each with its error."""

    valid: float
    means: Mapping[str, tuple[float, float]]  # of what → mean, standard error

    @property
    def passes(self) -> bool:
        """Whether there is evidence for the reading, and none against it."""
        tests = self.means.values()
        return (
            self.valid >= VALID
            and len(self.means) > 0
            and all(error <= PRECISE and abs(mean - 1.0) <= max(SURE * error, 1e-9) for mean, error in tests)
        )

    @property
    def fails(self) -> bool:
        """Whether the reading is ruled out."""
        return self.valid < VALID or self.is_off

    @property
    def is_off(self) -> bool:
        """Whether a mean that should be 1 is far from it."""
        return any(abs(mean - 1.0) > max(OFF, SURE * error) for mean, error in self.means.values())


def try_readings(
    frame: pl.LazyFrame, name: str | None, targets: Mapping[str, str], actions: int | None = None
) -> list[Tried]:
    """The propensities as they are, and by every other reading if something is wrong with them; the first targets tell."""
    first = dict(list(targets.items())[:TRIED])
    plain = _read(frame, name, first, actions, [AS_IT_IS])
    return plain + _read(frame, name, first, actions, READINGS) if plain[0].fails else plain


def _read(
    frame: pl.LazyFrame,
    name: str | None,
    targets: Mapping[str, str],
    actions: int | None,
    readings: Sequence[PropensityReading],
) -> list[Tried]:
    """What each reading makes of the propensities: how many are possible, and whether mean weights are 1."""
    p, t = pl.col("p"), [pl.col(f"t{k}") for k in range(len(targets))]
    probabilities = {f"t{k}": column(target).cast(pl.Float64) for k, target in enumerate(targets.values())}
    rows = frame.select(p=column(str(name)).cast(pl.Float64), **probabilities).filter(p.is_finite())
    wanted: list[pl.Expr] = []
    for k, reading in enumerate(readings):
        made = reading.made(p)
        good = is_propensity(made)
        wanted.append(good.mean().alias(f"{k} valid"))
        weights = {f"{k} {j}": target / made for j, target in enumerate(t)}
        if actions and not targets:
            weights[f"{k} 0"] = 1.0 / (made * actions)
        for key, w in weights.items():
            known = w.filter(good & w.is_finite())
            wanted += [known.mean().alias(key), (known.std() / known.len().sqrt()).alias(f"{key} error")]
    measured = collect(rows.select(wanted)).row(0, named=True)
    said = [f"the mean weight of {shortened(target)}" for target in targets]
    said = said or (["the mean of 1/propensity over the number of actions"] if actions else [])
    return [
        Tried(
            float(measured[f"{k} valid"] or 0.0),
            {what: (_or_nan(measured[f"{k} {j}"]), _or_nan(measured[f"{k} {j} error"])) for j, what in enumerate(said)},
        )
        for k in range(len(readings))
    ]


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def about_misread(named: str | None, tried: Sequence[Tried]) -> list[Finding]:
    """What the column seems to hold, if it is not propensities; `tried` has it as it is, and then by every reading.

    If there is nothing to test it with (no target, no actions), the range of the values may still tell.
    """
    if named is None or not tried or not tried[0].fails:
        return []
    plain, *others = tried
    if not plain.means:
        possible = [
            reading
            for reading, test in zip(READINGS, others, strict=True)
            if plain.valid < FEW_VALID and test.valid >= VALID
        ]
        return [Finding("fix", named, _by_range(named, possible))] if possible else []
    passed = [(reading, test) for reading, test in zip(READINGS, others, strict=True) if test.passes]
    if not passed:
        return []
    best, test = min(passed, key=lambda pair: max(abs(mean - 1.0) for mean, _ in pair[1].means.values()))
    what, (mean, error) = next(iter(test.means.items()))
    before = plain.means[what][0]
    was = f", and not {before:.4g}" if plain.valid >= VALID else ""
    expression = _expression_of(best, named)
    said = f"{named!r} seems to hold {best.holds}: with {verbatim(expression)}, {what} is {mean:.3f} ± {error:.3f}, as it should be{was}. "
    return [Finding("fix", named, f"{said}Pass `propensity={expression!r}`.")]


def _by_range(named: str, possible: Sequence[PropensityReading]) -> str:
    holds = " or ".join(reading.holds for reading in possible)
    options = " or ".join(f"`propensity={_expression_of(reading, named)!r}`" for reading in possible)
    return f"going by their range, values of {named!r} could be {holds}. Pass {options}."


def _expression_of(reading: PropensityReading, named: str) -> str:
    """The expression, with a name that needs quotes in quotes."""
    return reading.expression.format(p=sql_name(named))


# -- Densities, where actions are continuous ---------------------------------------------------------------------------

VARIED = 100  # so many values of an action, some with a fraction, are no list to choose from


def about_densities(rows: pl.DataFrame, named: str, targets: Mapping[str, str], action: str | None) -> Finding | None:
    """What to do about propensities above 1 that are densities, because actions are continuous; targets are columns, or none are."""
    actions = None if action is None else rows.get_column(action).drop_nulls()
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
    said = f"{action!r} has {values:,} different values in {rows.height:,} rows, so actions look continuous, and {named!r} is a density. "
    if not targets:
        return Finding("fix", named, f"{said}{_IN_GROUPS}")
    scale = f"/ {10 ** (math.ceil(math.log10(highest)) + 1)}"  # with room for rows that were not looked at
    shown = {target: f"{sql_name(source)} {scale}" for target, source in targets.items()}
    made = f"{sql_name(named)} {scale}"
    return Finding(
        "fix",
        named,
        f"{said}Only ratios of densities count, so give all of them in another unit: pass `propensity={made!r}` and `target={shown!r}`.",
    )


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
    shares = {name: _r2(frame.get_column(name), r, folds) for name in known}
    return {name: share for name, share in shares.items() if share >= LEAKS}


def _r2(values: pl.Series, r: Floats, folds: NDArray[np.int64]) -> float:
    """The out-of-fold R² of the mean reward by bin of the column: by value, or by hundredths of the rows if there are many values."""
    if values.dtype.is_nested():
        return 0.0
    codes = values.rank("dense").fill_null(0).cast(pl.Int64).to_numpy()
    if codes.max() > VALUES:
        if not (values.dtype.is_numeric() or values.dtype.is_temporal()):
            return 0.0
        codes = (values.rank("average").fill_null(0).to_numpy() * VALUES / (len(r) + 1)).astype(np.int64)
    predicted = np.empty(len(r))
    for fold in (0, 1):
        own = folds == fold
        n = np.bincount(codes[~own], minlength=codes.max() + 1)
        total = np.bincount(codes[~own], r[~own], minlength=codes.max() + 1)
        predicted[own] = ((total + r[~own].mean()) / (n + 1))[codes[own]]
    return float(1 - np.square(r - predicted).sum() / np.square(r - r.mean()).sum())
