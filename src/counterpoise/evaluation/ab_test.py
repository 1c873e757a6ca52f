"""`ab_test`: how much more one arm of a randomized test earns than another, from everything the log knows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, cast

import numpy as np

from counterpoise.diagnostics import Verdict
from counterpoise.diagnostics.together import Together
from counterpoise.diagnostics.verdict import which_way
from counterpoise.display import (
    ROWS,
    Block,
    Cell,
    Display,
    Judged,
    Name,
    Table,
    Worded,
    above,
    checked_unit,
    counted,
    estimate_cells,
    finite,
    level_of,
    number,
    p_value,
    percent,
    shortened,
    signed,
)
from counterpoise.engines.registry import columns_of
from counterpoise.errors import LogError, OptionError, Sentence, verbatim, warn_of_old_name
from counterpoise.estimators import Estimate
from counterpoise.evaluation.answer import comparison_of
from counterpoise.evaluation.asking import ONE, by_value, features_of, groups_of
from counterpoise.evaluation.checks import RewardMoments, together_by
from counterpoise.evaluation.estimates import IntervalOptions, options_of
from counterpoise.evaluation.evaluate import compare
from counterpoise.evaluation.ranking import direction
from counterpoise.evaluation.reading import Decision
from counterpoise.evaluation.result import Comparison
from counterpoise.evaluation.view import View
from counterpoise.intervals import Interval, Method, check_level
from counterpoise.intervals.quantity import joint_width, over, stretched
from counterpoise.log.log import Log, as_log
from counterpoise.log.parts import Column, Data, LogFields, checked_shares, column_name, is_minimized
from counterpoise.log.question import ask
from counterpoise.log.verbs import need_only, takes_parts
from counterpoise.moments import Floats, LogMoments, Moments
from counterpoise.moments.columns import CONTEXT, SQUARE
from counterpoise.moments.log_moments import Contrast, Label
from counterpoise.moments.spread import KEPT, NOTHING, Powers, Tail
from counterpoise.moments.weighed import PLAIN
from counterpoise.weights import Own

if TYPE_CHECKING:
    import polars as pl

# -- Whether the arms have the shares of rows that they should have ----------------------------------------------------

MISMATCH = 0.001  # a test is looked at many times, and a false alarm costs it
EXACT = 10_000  # rows, up to which two arms are counted by the binomial distribution itself


@dataclass(frozen=True)
class SampleRatio:
    """How many rows every arm has, the share it should have, and how likely such counts are by chance.

    A mismatch means that the arms are not what was randomized: a bug in the assignment, bots, or one arm losing more rows than another.
    Differences between such arms mean nothing until the cause is known. `p` is nan if no shares were planned.
    """

    rows: Mapping[str, int]
    planned: Mapping[str, float] | None
    p: float

    @property
    def is_mismatch(self) -> bool:
        """Whether the shares are off by more than chance."""
        return self.p < MISMATCH

    def __str__(self) -> str:
        return self.text("row")

    def text(self, unit: str) -> str:
        """What the shares say, to readers to whom a row is a `unit`."""
        total = sum(self.rows.values())
        shares = ", ".join(f"{name} {100 * n / total:.4g} %" for name, n in self.rows.items())
        if self.planned is None:
            return f"Shares of the {unit}s: {shares}. The planned shares were not given, so these are not tested."
        planned = ", ".join(f"{name} {100 * share:.4g} %" for name, share in self.planned.items())
        said = f"Shares of the {unit}s: {shares}; planned: {planned} (p {p_value(self.p)})"
        if not self.is_mismatch:
            return f"{said}: as planned, up to chance."
        return (
            f"{said}. SAMPLE RATIO MISMATCH: the arms are not the groups that were randomized. Look for {unit}s that one arm loses, for "
            "assignments that changed on the way, or for bots; until then, ignore any difference between the arms."
        )


def sample_ratio(rows: Mapping[str, Floats], planned: Mapping[str, float] | None, *, is_clustered: bool) -> SampleRatio:
    r"""The test of the arms' shares, from the rows of every arm in each of the groups that clusters were hashed into.

    Two arms and few rows: the binomial distribution itself. Otherwise Pearson's :math:`\sum (n_k - n s_k)^2 / (n s_k)`. Where the rows of a
    cluster are in the same arm, rows are not independent: then the shares' covariance is the jackknife's over groups, and the test is
    Hotelling's.

    >>> ratio = sample_ratio({"a": np.array([5_300.0]), "b": np.array([4_700.0])}, {"a": 0.5, "b": 0.5}, is_clustered=False)
    >>> ratio.is_mismatch, round(ratio.p * 1e9, 1)
    (True, 2.1)

    References
    ----------
    Fabijan et al., "Diagnosing sample ratio mismatch in online controlled experiments", KDD 2019.
    """
    from scipy.special import bdtr, chdtrc, fdtrc  # which takes long to import

    counts = {name: int(arm.sum()) for name, arm in rows.items()}
    if planned is None:
        return SampleRatio(counts, None, float("nan"))
    arms, shares = np.stack(list(rows.values())), np.array([planned[name] for name in rows])
    total = arms.sum(axis=1)
    n = total.sum()
    # Hotelling's test of all shares but the last, whose covariance is that of leaving out one group at a time
    if is_clustered:
        arms = arms[:, arms.sum(axis=0) > 0]
        free, groups = len(shares) - 1, arms.shape[1]
        if groups <= free + 1:
            return SampleRatio(counts, dict(planned), float("nan"))
        without = (total[:, None] - arms) / (n - arms.sum(axis=0))
        apart = without[:free] - without[:free].mean(axis=1, keepdims=True)
        covariance = (groups - 1) / groups * apart @ apart.T
        off = (total / n - shares)[:free]
        statistic = float(off @ np.linalg.pinv(covariance) @ off)
        p = fdtrc(free, groups - free, statistic * (groups - free) / (free * (groups - 1)))
    elif len(total) == 2 and n <= EXACT:
        k, share, m = float(total[0]), float(shares[0]), int(n)
        below, above = bdtr(k, m, share), 1.0 - (bdtr(k - 1, m, share) if k else 0.0)
        p = min(2.0 * min(below, above), 1.0)
    else:
        p = chdtrc(len(total) - 1, (np.square(total - n * shares) / (n * shares)).sum())
    return SampleRatio(counts, dict(planned), float(p))


# -- What `ab_test` returns: the effect of every arm by each method, the arms' shares, and what all of it rests on -----

MEANS, ADJUSTED, POOLED = "difference in means", "regression-adjusted", "pooled off-policy"
APART = 3.3  # standard errors between two methods: p = 0.001
NO_CARRY_OVER = (
    "This assumes that decisions do not carry over between arms: what one arm does must not change what the <rows> of another earn, "
    "by a shared budget or stock, say."
)
NO_CARRY_OVER_POOLED = (
    " The pooled difference also assumes it from one decision to the next, whoever made them: it is about single decisions, and would "
    "miss what a policy does to a user in the long run."
)


@dataclass(frozen=True)
class Effect:
    """How much more an arm earns per row than the arm it is compared with, by one method.

    `worth` is how much more traffic the difference in means would need to be as sure: 0.5 means that the method is worth 50 %
    more rows.
    """

    arm: str
    against: str
    method: str
    estimate: Estimate
    verdict: Verdict
    worth: float

    @property
    def value(self) -> float:
        """The difference of the mean rewards."""
        return self.estimate.value

    @property
    def stderr(self) -> float:
        """Its standard error."""
        return self.estimate.stderr

    @property
    def interval(self) -> Interval:
        """Its confidence interval."""
        return self.estimate.interval


@dataclass(frozen=True)
class Arm:
    """An arm: its rows, its mean reward and that mean's standard error."""

    name: str
    rows: int
    mean: float
    stderr: float


@dataclass(frozen=True, eq=False, repr=False)
class ABTest(Display):
    """The answer of `ab_test`.

    ``test["new"]`` is the effect of an arm by its most certain method, and ``test["new", "difference in means"]`` by another;
    `effects` has all of them and `arms` the arms. `sample_ratio` tests the arms' shares, and `moments` are the sums by arm.
    """

    effects: tuple[Effect, ...]
    arms: tuple[Arm, ...]
    sample_ratio: SampleRatio
    level: float
    method: str
    moments: LogMoments
    dropped_rows: int = 0
    reward: str = "reward"
    minimize: bool | None = (
        False  # whether less is better; None if nobody said, and the reward's name sounds like a cost
    )
    log: str = ""  # a short name of where the rows are
    unit: str = "row"  # what a row is to its readers: see `with_unit`

    def with_unit(self, unit: str) -> ABTest:
        """The same test for readers to whom a row is a `unit`: ``print(test.with_unit("visit"))`` counts visits."""
        return replace(self, unit=checked_unit(unit))

    def per(self, unit: str) -> ABTest:
        """What `with_unit` was called until 0.4."""
        warn_of_old_name("per()", "with_unit()")
        return self.with_unit(unit)

    def __getitem__(self, key: str | tuple[str, str]) -> Effect:
        arm, method = key if isinstance(key, tuple) else (key, None)
        own = [effect for effect in self.effects if effect.arm == str(arm) and method in (None, effect.method)]
        if not own:
            known = ", ".join(repr((effect.arm, effect.method)) for effect in self.effects)
            raise OptionError(f"there is no effect {key!r} in this test; it has {known}.")
        return own[-1]  # later methods use more information

    @property
    def n(self) -> int:
        """How many rows were used."""
        return sum(arm.rows for arm in self.arms)

    @property
    def against(self) -> str:
        """The arm that the others are compared with."""
        return self.effects[0].against

    @property
    def treatments(self) -> tuple[str, ...]:
        """The other arms."""
        return tuple(dict.fromkeys(effect.arm for effect in self.effects))

    def arm(self, name: str) -> Arm:
        """An arm by its name."""
        return next(arm for arm in self.arms if arm.name == name)

    def decision(self, arm: str) -> Decision:
        """Whether an arm is better than the one it is compared with, allowing for looking at all arms; no arm can be if shares are off.

        It is ``"higher"`` or ``"lower"`` where `minimize` is None: nobody said which is better.
        """
        effect = self.together(arm)
        if self.sample_ratio.is_mismatch or not effect.identified:
            return "cannot say"
        if 0.0 in effect.interval:
            return "not decided"
        return direction(is_above=effect.value > 0, minimize=self.minimize)

    def together(self, arm: str) -> Estimate:
        """The effect of an arm by its most certain method, with an interval that holds for all arms at once."""
        effect, many = self[arm].estimate, len(self.treatments)
        return stretched(effect, joint_width(self.level, many))

    def relative(self, arm: str) -> Estimate | None:
        r"""The same as a share of what the other arm earned, 0.78 for +78 %; None where that is not clearly above 0.

        .. math:: \operatorname{Var}(\hat\Delta / \bar r_B) \approx \left[\operatorname{Var}(\hat\Delta) +
            (\rho^2 + 2 \rho) \operatorname{Var}(\bar r_B)\right] / \bar r_B^2, \qquad \rho = \hat\Delta / \bar r_B,

        since a difference in means falls as the other arm's mean rises. Other methods know that mean better, and we leave out the term
        2ρ where it would help them.
        """
        effect, other = self.together(arm), self.arm(self.against)
        if not other.mean > 0 or not effect.identified or not effect.stderr > 0:
            return None
        share = effect.value / other.mean
        both = share * share + (2 * share if self[arm].method == MEANS else max(2 * share, 0.0))
        wider = math.sqrt(max(effect.stderr**2 + both * other.stderr**2, 0.0)) / effect.stderr
        limits = effect.interval.limits
        is_share = limits == (-1.0, 1.0) and float(np.fmin.reduce(self.moments.reward_min)) >= 0.0
        low, high = (end / other.mean for end in limits)
        limits = (-1.0 if is_share else low, high)
        return over(effect, other.mean, other.stderr, wider=wider, limits=limits)

    @property
    def assumption(self) -> str:
        """What all of it rests on, besides randomization."""
        is_pooled = any(effect.method == POOLED for effect in self.effects)
        return Sentence(NO_CARRY_OVER + (NO_CARRY_OVER_POOLED if is_pooled else ""))

    @property
    def disagreements(self) -> tuple[str, ...]:
        """What to say about arms whose pooled difference is further from the difference in means than chance allows."""
        return tuple(said for arm in self.treatments for said in self._apart(arm))

    def _apart(self, arm: str) -> Iterator[str]:
        of = {effect.method: effect for effect in self.effects if effect.arm == arm}
        if POOLED not in of:
            return
        off = abs(of[POOLED].value - of[MEANS].value)
        # at least the error of their difference: both see the same rows
        error = math.hypot(of[POOLED].stderr, of[MEANS].stderr)
        if off > APART * error:
            yield (
                f"{shortened(arm)}: the pooled difference is {number(off, error)} from the difference in means, which chance does not "
                "explain: either the policies' probabilities are wrong, or decisions carry over. Go by the difference in means."
            )

    def table(self) -> pl.DataFrame:
        """One row per arm and method."""
        return self.cells().frame()

    def cells(self) -> Table:
        """The effects, one row per arm and method."""
        titles = {"difference": "value", "worth_more_traffic": "worth"}
        shown = ("arm", "method", "difference", "stderr", "lower", "upper", "worth_more_traffic", "verdict")
        rows: list[dict[str, Cell]] = [
            {
                "arm": Name(effect.arm),
                "against": Name(effect.against),
                "method": effect.method,
                **estimate_cells(effect.value, effect.stderr, effect.interval, name="difference", is_signed=True),
                "worth_more_traffic": Worded(effect.worth, "" if effect.method == MEANS else worth_text(effect.worth)),
                "verdict": effect.verdict.verdict,
            }
            for effect in self.effects
        ]
        return Table(rows, shown, titles)

    def document(self) -> dict[str, object]:
        """What `counterpoise ab-test --json` prints."""
        ratio, rows = self.sample_ratio, zip(self.cells().records(), self.effects, strict=True)
        return finite(
            {
                "n": self.n,
                "unit": self.unit,
                "minimize": self.minimize,
                "level": self.level,
                "decisions": {arm: self.decision(arm) for arm in self.treatments},
                "arms": self.arms,
                "effects": [row | effect.verdict.document() for row, effect in rows],
                "sample_ratio": {"planned": ratio.planned, "p": ratio.p, "is_mismatch": ratio.is_mismatch},
                "disagreements": self.disagreements,
                "assumption": self.assumption,
                "dropped_rows": self.dropped_rows,
            }
        )

    def report(
        self,
        path: str | PathLike[str],
        *,
        title: str | None = None,
        unit: str | None = None,
        command: str | None = None,
    ) -> Path:
        """Write one HTML file for people to read, and return its path; a row is a `unit` to them, such as a visit."""
        return cast("Path", above().write_ab_test(self, path, title=title, unit=unit, command=command))

    def headline(self) -> Iterator[str]:
        """A sentence for every arm."""
        for arm in self.treatments:
            effect = self[arm]
            more = (
                ""
                if effect.method == MEANS
                else f", as precise as the difference in means with {worth_text(effect.worth)}"
            )
            low, high = (signed(end, effect.stderr) for end in effect.interval)
            yield (
                f"{shortened(arm)} earned {signed(effect.value, effect.stderr)} per {self.unit} against {shortened(effect.against)} "
                f"({level_of(self.level)} interval: {low} to {high}; {effect.method}{more})."
            )

    def blocks(self, *, rows: int | None = ROWS) -> Iterator[Block]:
        """A sentence for every arm, the effects, the shares of the arms, and the caveats."""
        yield from self.headline()
        if self.minimize is not False:
            yield f"Less {shortened(self.reward)} is better." if self.minimize else which_way(self.reward).reason
        yield f"{counted(self.n, self.unit)}; {level_of(self.level)} intervals ({self.method})."
        yield ""
        yield self.cells()
        yield ""
        yield self.sample_ratio.text(self.unit)
        yield from self.disagreements
        verdicts = {str(effect.verdict): effect.verdict for effect in self.effects if effect.verdict.verdict != "ok"}
        for _, verdict in sorted(verdicts.items()):
            yield Judged("", verdict.verdict, verdict.of_units(self.unit).reasons)
        yield Sentence(self.assumption, self.unit)


def worth_text(worth: float) -> str:
    """What a method is worth, in traffic.

    >>> worth_text(1.5).replace("\N{NO-BREAK SPACE}", " "), worth_text(-0.02).replace("\N{NO-BREAK SPACE}", " ")
    ('150 % more traffic', '2.0 % less traffic')
    """
    if not math.isfinite(worth):
        return "far more traffic"
    return f"{percent(abs(worth))} {'more' if worth >= 0 else 'less'} traffic"


def worth_of(estimate: Estimate, plain: Estimate) -> float:
    """How many more rows the difference in means would need for the same error, as a share of the rows there are."""
    return (plain.stderr / estimate.stderr) ** 2 - 1.0 if estimate.stderr > 0 else math.inf


# -- `ab_test` itself --------------------------------------------------------------------------------------------------


MOST = 20  # arms


@takes_parts("ab_test")
def ab_test(
    log: Log | Data = None,
    *,
    arm: Column,
    against: str | None = None,
    interval: str | Method | None = None,
    level: float = 0.95,
    progress: bool | None = None,
    **parts: Unpack[LogFields],
) -> ABTest:
    r"""How much more the arms of a randomized test earn per row than one of them, by up to three methods.

    - The **difference in means**. It is β-IPS with arms as actions and their shares of the rows as propensities, exactly.
    - **Regression-adjusted** by the columns of `baseline`, known before the choice (CUPED): the part of the rewards that they explain is
      noise you can remove. It is the context baseline of the same difference.
    - **Pooled off-policy**, if `propensity` maps every arm to its policy's probability of the logged action: every row of every arm
      counts for every policy, with the weight

      .. math:: \frac{\pi_A(a \mid x) - \pi_B(a \mid x)}{\sum_l s_l \, \pi_l(a \mid x)},

      and decisions on which the policies agree cancel. The more they agree, the less traffic it needs; but it ignores what a
      decision does to later ones.

    Parameters
    ----------
    log
        A `Log`, or its data with the parts of a log: `reward`, `baseline`, `cluster` (the unit of randomization), `propensity`, `where`, ….
        No policy is called, so `action`, `context` and `candidates` make no difference.
    arm
        The column that says which arm a row belongs to.
    against
        The arm that the others are compared with; by default, the first in order.
    shares
        The planned shares of the arms, such as ``{"A": 0.5, "B": 0.5}``: the test says whether the rows fit them (sample ratio
        mismatch). Estimates use the shares found in the log.
    interval, level, progress
        As for `evaluate`. ``interval="anytime"`` allows for looking at a running test as often as you like.

    Examples
    --------
    >>> test = ab_test({"arm": ["A", "B"] * 50, "r": [1.0, 2.0, 2.0, 3.0] * 25}, arm="arm", reward="r")
    >>> test["B"].value, test["B"].method
    (1.0, 'difference in means')

    References
    ----------
    Lin, "Agnostic notes on regression adjustments to experimental data", Annals of Applied Statistics 7 (2013); Deng, Xu, Kohavi & Walker,
    "Improving the sensitivity of online controlled experiments by utilizing pre-experiment data", WSDM 2013; Agarwal et al., KDD 2017.
    """
    check_level(level)
    whole = as_log(log, parts)
    need_only(whole, "ab_test")
    whole = _with_arm(whole, arm)
    whole.need("reward")
    clustered = whole.cluster is not None
    (options,) = options_of(interval, level, whole.reward, is_clustered=clustered, reward_bounds=whole.reward_bounds)
    column = str(whole.logger)
    groups = groups_of(whole, wanted=options.method.needs_groups)
    plain = whole.without_propensities()
    (moments,) = by_value(plain, column, groups=groups, features=features_of(plain, Own()))
    labels = _labels(moments, column, whole.drop_bad_rows)
    rival = next(iter(labels)) if against is None else str(against)
    if rival not in labels:
        raise OptionError(f"`against={against!r}` is not one of the arms {', '.join(map(repr, labels))}.")
    planned = None if whole.shares is None else checked_shares(whole.shares, tuple(labels))
    pooled = _pooled_comparison(whole, tuple(labels), rival, interval, level, progress)
    together = _together(plain, column, moments.n, labels, rival)
    effects = tuple(
        effect
        for name, label in labels.items()
        if name != rival
        for effect in _effects(moments, label, labels[rival], whole, options, pooled, together.get(name))
    )
    (stack,) = moments.moments.values()
    own = {name: stack[moments.segments.index(label)] for name, label in labels.items()}  # by group
    ratio = sample_ratio({name: groups.n for name, groups in own.items()}, planned, is_clustered=clustered)
    means = View(moments, next(iter(moments.moments)))
    logged, errors = means.logged[0], means.mean_error("s")
    places = {name: means.place(label) for name, label in labels.items()}
    arms = tuple(Arm(name, int(means.whole.n[k]), float(logged[k]), float(errors[k])) for name, k in places.items())
    dropped = moments.dropped + moments.n - sum(arm.rows for arm in arms)
    named = {"reward": whole.reward[0], "log": whole.short_name}
    minimize = is_minimized(whole.minimize, whole.reward[0])
    return ABTest(effects, arms, ratio, level, options.method.name, moments, dropped, minimize=minimize, **named)


def _with_arm(log: Log, arm: Column) -> Log:
    """The log with its arms as its loggers, by the names of their columns."""
    if log.logger is not None:
        raise OptionError("the arms are the loggers of a test: leave out `logger=`.")
    if log.propensity is not None and not isinstance(log.propensity, Mapping):
        raise OptionError("`propensity=` maps every arm to its policy's probability of the logged action.")
    if not log.is_arrays:
        return log.but(logger=column_name("arm", arm, None))
    arrays = log.data.copy()
    column = column_name("arm", arm, arrays)
    return log.of(dict(arrays)).but(logger=column)


def _labels(moments: LogMoments, column: str, drop_bad_rows: bool) -> dict[str, Label]:
    """The arms by name, in order."""
    labels = [label for label in moments.segments if label[0] is not None]
    if len(labels) < len(moments.segments) and not drop_bad_rows:
        raise LogError(f"some rows of {column!r} have no arm.", do="Drop them with `where=`.")
    if not 2 <= len(labels) <= MOST:
        shown = ", ".join(names_of_arms(labels[:5])) + (", …" if len(labels) > 5 else "")
        raise LogError(f"a test has 2 to {MOST} arms, and {column!r} has {len(labels):,} values: {verbatim(shown)}.")
    return dict(zip(names_of_arms(labels), labels, strict=True))


def _effects(
    moments: LogMoments,
    arm: Label,
    against: Label,
    log: Log,
    options: IntervalOptions,
    pooled: Comparison | None,
    together: Together | None,
) -> list[Effect]:
    """The effect of one arm by each method; rows that move together are a caveat of all but the pooled one, which has its own."""
    name, rival = names_of_arms((arm, against))
    pair = comparison_of(
        RewardMoments((pair_of_arms(moments, arm, against),), log.reward, minimize=log.minimize), (options,)
    )
    plain, verdict = pair[name, "beta_ips"], pair.verdict(name)
    verdict = verdict if together is None else verdict.with_caveats([together.caveat()])
    made: list[tuple[str, Estimate, Verdict]] = [(MEANS, plain, verdict)]
    if log.baseline:
        made.append((ADJUSTED, pair[name, "context_ips"], verdict))
    if pooled is not None:
        made.append((POOLED, pooled[name, pooled.best], pooled.verdict(name)))
    return [Effect(name, rival, how, estimate, said, worth_of(estimate, plain)) for how, estimate, said in made]


def _together(log: Log, column: str, rows: int, labels: Mapping[str, Label], rival: str) -> dict[str, Together]:
    """The arms in whose difference in means rows of one id move together, as they do if all rows of a user are in the same arm."""
    if log.is_arrays:
        return {}
    question = ask(log.but(baseline=None), {column: ONE}, weight=Own(), segment=column)

    def terms(frame: pl.DataFrame) -> dict[str, tuple[Floats, Floats]]:
        arm = frame.get_column(question.names.segments[0])
        reward = frame.get_column(question.names.rewards[0]).to_numpy()
        shares = {name: (arm == label[0]).fill_null(False).to_numpy() for name, label in labels.items()}
        shares = {name: rows / max(rows.mean(), 1.0 / len(arm)) for name, rows in shares.items()}
        excess = {
            name: share * (reward - np.average(reward, weights=share)) for name, share in shares.items() if share.any()
        }
        return {
            name: (own - excess[rival], shares[name])
            for name, own in excess.items()
            if name != rival and rival in excess
        }

    return together_by(question, columns_of(log), rows, terms, len(labels) - 1)


def _pooled_comparison(
    log: Log, names: tuple[str, ...], rival: str, interval: str | Method | None, level: float, progress: bool | None
) -> Comparison | None:
    """Every arm's policy against one of them, by the rows of all arms."""
    if log.propensity is None:
        return None
    columns = {str(name): column for name, column in log.loggers.items()}
    if set(columns) != set(names):
        raise OptionError(
            "`propensity=` maps every arm to its policy's probability of the logged action: "
            f"it needs {', '.join(map(repr, names))}, and has {', '.join(map(repr, columns))}."
        )
    targets = {name: columns[name] for name in names if name != rival}
    lean = log.but(shares=None)
    return compare(
        lean, target=targets, against={rival: columns[rival]}, interval=interval, level=level, progress=progress
    )


# -- Arms as policies: from the sums of each arm's own rows to those of the difference between two arms ----------------


def pair_of_arms(log: LogMoments, arm: Label, against: Label) -> LogMoments:
    """The moments of two arms with arms as actions, and their shares of the pair's rows as propensities.

    `log` has the arms as its segments, and rows whose excess is 1. A policy that always takes arm A has the weight 1/p on the rows of A
    and 0 on those of B, so u is a constant in each arm, and everything follows from the arms' own sums: nothing is read again.
    """
    places = [log.segments.index(label) for label in (arm, against)]
    (stack,) = log.moments.values()
    sizes = [int(stack[k].n.sum()) for k in places]
    rows = sum(sizes)
    weights = [rows / size for size in sizes]
    first, second = names_of_arms((arm, against))
    excess: dict[Contrast, tuple[float, float]] = {
        (first, ""): (weights[0] - 1.0, -1.0),
        (second, ""): (-1.0, weights[1] - 1.0),
        (first, second): (weights[0], -weights[1]),
    }
    tails = {
        (name, ""): (Tail(np.full(min(sizes[k], KEPT), weights[k]), rows - sizes[k]),)
        for k, name in enumerate((first, second))
    }
    return replace(
        log,
        moments={
            key: Moments.stack(
                [Moments.stack([_with_excess(stack[k], u) for k, u in zip(places, us, strict=True)]).merge(0)]
            )
            for key, us in excess.items()
        },
        tails=tails,
        excess={
            key: (sum((Powers(size, u, np.zeros(4)) for size, u in zip(sizes, us, strict=True)), NOTHING),)
            for key, us in excess.items()
        },
        segments=((),),
        segment_columns=(),
        reward_min=log.reward_min[places].min(keepdims=True),
        reward_max=log.reward_max[places].max(keepdims=True),
        rewards=(log.rewards[places[0]] + log.rewards[places[1]],),
        weight=PLAIN,
    )


def _with_excess(arm: Moments, u: float) -> Moments:
    """The moments of rows that all have the excess `u`, from those of rows with the excess 1, where u·s is s and u·φ is φ."""
    columns = arm.columns
    scaled, known = np.zeros((len(columns), len(columns))), np.zeros(len(columns))
    for k, name in enumerate(columns):
        if name == "s":
            scaled[k, k] = 1.0
        elif name == "us":
            scaled[k, columns.index("s")] = u
        elif name.startswith(CONTEXT):
            scaled[k, k] = u
        else:
            known[k] = {"u": u, SQUARE: u * u}[name]
    mean = arm.mean @ scaled.T + known * (np.asarray(arm.n) > 0)[..., None]
    return Moments(arm.n, mean, scaled @ arm.scatter @ scaled.T, arm.center, columns)


def names_of_arms(labels: Sequence[Label]) -> tuple[str, ...]:
    """What arms are called.

    >>> names_of_arms([("new",), (1,), (True,)])
    ('new', '1', 'True')
    """
    return tuple(str(label[0]) for label in labels)
