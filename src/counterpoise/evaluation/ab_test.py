"""`ab_test`: how much more one arm of a randomized test earns than another, from everything the log knows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, cast

import numpy as np

from counterpoise.diagnostics import Verdict
from counterpoise.diagnostics.sample_ratio import SampleRatio, sample_ratio
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
    percent,
    shortened,
    signed,
)
from counterpoise.engines.registry import columns_of
from counterpoise.errors import LogError, OptionError, Sentence, verbatim, warn_of_old_name
from counterpoise.estimators import Estimate
from counterpoise.evaluation.answer import comparison_of
from counterpoise.evaluation.asking import features_of, groups_of
from counterpoise.evaluation.checks import RewardMoments, together_by
from counterpoise.evaluation.estimates import IntervalOptions, options_of
from counterpoise.evaluation.evaluate import compare
from counterpoise.evaluation.loggers import ONE, by_value, checked_shares, with_names
from counterpoise.evaluation.ranking import direction
from counterpoise.evaluation.reading import Decision
from counterpoise.evaluation.result import Comparison
from counterpoise.evaluation.view import View
from counterpoise.intervals import Interval, Method, check_level
from counterpoise.intervals.quantity import joint_width, over, stretched
from counterpoise.log.log import Log, as_log
from counterpoise.log.parts import Column, Data, LogFields, column_name, is_minimized
from counterpoise.log.question import ask
from counterpoise.log.verbs import need_only, takes_parts
from counterpoise.moments import Floats, LogMoments
from counterpoise.moments.arms import names_of_arms, pair_of_arms
from counterpoise.moments.log_moments import Label
from counterpoise.weights import Own

if TYPE_CHECKING:
    import polars as pl

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
    return with_names(log.of(arrays)).but(logger=column)


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
