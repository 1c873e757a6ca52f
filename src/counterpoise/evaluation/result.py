"""What `evaluate` and `compare` return: estimates, diagnostics, verdicts, and ways to look at them."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from itertools import count
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar, cast

from counterpoise.diagnostics import Caveat, Diagnostics, Verdict
from counterpoise.diagnostics.verdict import weight_by_policy
from counterpoise.display import (
    ESTIMATE,
    ROWS,
    Block,
    Cell,
    Display,
    FullAnswer,
    Name,
    Share,
    Table,
    Worded,
    above,
    checked_unit,
    estimate_cells,
)
from counterpoise.engines.first_look import quoting
from counterpoise.engines.registry import moments_of
from counterpoise.errors import OptionError, verbatim, warn_of_old_name
from counterpoise.estimators import DIFFERENCES, ESTIMATORS, Estimate, Estimator
from counterpoise.estimators.estimate import Baseline
from counterpoise.evaluation.choose import check_differences, foremost, has_context, lift_of, right_for
from counterpoise.evaluation.estimates import IntervalOptions, Quantities, estimates, options_of
from counterpoise.evaluation.view import Abreast, View
from counterpoise.intervals import Interval, Method
from counterpoise.intervals.method import normal
from counterpoise.log.question import Question
from counterpoise.moments.columns import MODEL
from counterpoise.moments.log_moments import WHOLE, LogMoments, Segment, as_label, segment_text
from counterpoise.weights import Balanced

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.axes import Axes

    from counterpoise.evaluation.coverage import CoverageCheck
    from counterpoise.evaluation.ladder import Ladder
    from counterpoise.evaluation.sensitivity import Sensitivity
    from counterpoise.models import PropensityQuality, Quality

# -- `Result` and `Comparison`: what `evaluate` and `compare` return ---------------------------------------------------


GAMMAS = (1.0, 1.2, 1.5, 2.0)  # how far odds may be wrong, where nobody says


DiagnosticsOrVerdict = TypeVar("DiagnosticsOrVerdict", Diagnostics, Verdict)


@dataclass(frozen=True, eq=False, repr=False)
class Result(Display):
    """The answer of `evaluate`.

    ``result["pi_new", "beta_ips"]`` is one `Estimate` over the whole log, and ``result["pi_new", "beta_ips", "DE"]`` is that of a
    segment (pass a tuple of values if there are several columns, and ``(None,)`` for missing values). `table()` has them all,
    `verdict(target)` tells you whether to believe them, and `moments` is what to store. With several rewards, this is the answer about
    the first; ``result.of("revenue")`` is the answer about another.
    """

    registry: ClassVar[Mapping[str, Estimator]] = ESTIMATORS

    moments: LogMoments
    estimates: Mapping[tuple[str, str, Segment], Estimate]
    all_diagnostics: Mapping[tuple[str, Segment], Diagnostics]
    verdicts: Mapping[tuple[str, Segment], Verdict]
    level: float
    interval_method: Method
    reward_bounds: tuple[float, float] | None = None  # the range of possible rewards, if given
    reward: str | None = None  # the reward's name; stored moments have forgotten it
    minimize: bool | None = False  # whether less of it is better; None if nobody said, and its name sounds like a cost
    question: Question | None = None  # what was asked of which log; stored moments have forgotten it, too
    others: Mapping[str, Self] = field(default_factory=dict)  # results of further rewards, by name
    earlier_rows: int = 0  # that came from a state, and not from the question's log
    elsewhere: Mapping[str, LogMoments] = field(
        default_factory=dict
    )  # by target, of rows where it has all that it does
    ladders: Mapping[str, Ladder] = field(default_factory=dict)  # by target, where a weight's constant was chosen
    model: Quality | None = None  # how good the reward model is, if one was fitted
    propensity_model: PropensityQuality | None = None  # how good it is, where propensities were not logged
    against: str = ""  # the other policy of a comparison
    unit: str | None = None  # what a row is to its readers, if they have a word for it: see `with_unit`
    abreast: Abreast | None = None  # its targets side by side, where they can be seen so

    def __getitem__(self, key: tuple[str, str] | tuple[str, str, Hashable]) -> Estimate:
        if not (isinstance(key, tuple) and len(key) in (2, 3)):
            raise OptionError('ask for result["target", "estimator"], or result["target", "estimator", "segment"].')
        target, estimator, segment = key if len(key) == 3 else (*key, None)
        try:
            estimate = self.estimates.get((target, estimator, None if segment is None else as_label(segment)))
        except TypeError as error:
            raise OptionError(f"a target, estimator and segment are names, found {key!r}.") from error
        if estimate is not None:
            return estimate
        for what, wanted, known in (
            ("target", target, {k[0] for k in self.estimates}),
            ("estimator", estimator, {k[1] for k in self.estimates}),
        ):
            if wanted not in known:
                raise OptionError(f"no {what} {wanted!r} in this result; {_choice(str(wanted), known)}")
        segments = {segment_text(k[2]) for k in self.estimates if k[2] is not None}
        raise OptionError(f"no segment {segment!r} in this result; {_choice(str(segment), segments)}")

    @property
    def value(self) -> float:
        """What the only target would have earned per row, by the estimator behind the headline; of a comparison, how much more."""
        return self._only.value

    @property
    def stderr(self) -> float:
        """The standard error of `value`."""
        return self._only.stderr

    @property
    def interval(self) -> Interval:
        """The confidence interval of `value`."""
        return self._only.interval

    @property
    def _only(self) -> Estimate:
        self._refuse_several("value", f"result[{{target!r}}, {self.best!r}]")
        return self.estimates[self.targets[0], self.best, None]

    def _refuse_several(self, what: str, instead: str) -> None:
        """Refuse to choose one of several targets; `instead` asks for one."""
        if len(self.targets) > 1:
            named = ", ".join(map(repr, self.targets[:5])) + (", …" if len(self.targets) > 5 else "")
            raise OptionError(
                f"this result has {len(self.targets)} targets ({named}), and so no single {what}.",
                do=f"Ask for one of them: {instead.format(target=self.targets[0])}.",
            )

    def asked(self, target: str | None = None) -> Question:
        """What was asked of the log about this reward, for another look at its rows; with the weight that a `target` chose."""
        if self.question is None:
            raise OptionError(
                "this result was made from stored moments or unpickled, and no longer knows its columns: evaluate the log itself."
            )
        question = self.question.about(self.reward)
        ladder = None if target is None else self.ladders.get(target)
        return question if ladder is None else replace(question, weight=question.rungs[ladder.chosen])

    @property
    def by_reward(self) -> dict[str | None, Self]:
        """The results of all rewards by name, this one first."""
        return {self.reward: self} | dict(self.others)

    def of(self, reward: str) -> Self:
        """The result for one of several rewards, by its name."""
        if reward == self.reward:
            return self
        if reward not in self.others:
            known = {str(name) for name in (self.reward, *self.others) if name is not None}
            raise OptionError(f"no reward {reward!r} in this result; {_choice(str(reward), known)}")
        return self.others[reward]

    def __getstate__(self) -> dict[str, object]:
        # a policy in the question may be a lambda or hold a connection, which cannot be pickled; the numbers can
        return {**self.__dict__, "question": None, "abreast": None}

    @property
    def method(self) -> str:
        """The name of the interval's method."""
        return self.interval_method.name

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """The targets, in the order they were given."""
        return tuple(dict.fromkeys(target for target, _, _ in self.estimates))

    @property
    def n(self) -> int:
        """How many rows were used."""
        return self.moments.n

    @property
    def rows_before(self) -> int | None:
        """How many rows there were before sampling, as far as `keep` tells, unless that was said; None if rows were not sampled."""
        return self.moments.before_sampling

    @cached_property
    def segment_rows(self) -> dict[Segment, int]:
        """How many rows each segment has."""
        rows = next(iter(self.moments.moments.values())).n.sum(axis=1).tolist()
        return dict(zip(self.moments.segments, rows, strict=True)) if self.moments.segment_columns else {}

    @property
    def queries(self) -> int:
        """How many queries of a database, or jobs of Spark, the sums took; 0 where rows were read."""
        return self.moments.queries

    @property
    def dropped_rows(self) -> int:
        """How many invalid rows were dropped."""
        return self.moments.dropped

    def diagnostics(self, target: str | None = None, segment: Hashable = None) -> Diagnostics:
        """The overlap and weights of a target (the first, unless you name another), over the whole log or in a segment."""
        return self._of(self.all_diagnostics, target, segment)

    def verdict(self, target: str | None = None, segment: Hashable = None, *, sensitivity: bool = False) -> Verdict:
        """Whether to believe the estimates of a target, and why.

        With `sensitivity`, its last sentence says how wrong propensities must be for the conclusion to flip (see `sensitivity`). For
        that, the log is read once more when it is first asked for.
        """
        verdict = self._of(self.verdicts, target, segment)
        if not sensitivity:
            return verdict
        if segment is not None:
            raise OptionError("the sensitivity of a segment needs a log of its own: pass `where=`.")
        name = self.targets[0] if target is None else target
        if name not in self._tips:
            tip = str(self.sensitivity(target=name, progress=False).tipping(name))
            columns = next(iter(self.moments.moments.values())).columns
            helped = set(MODEL) <= set(columns) or has_context(columns)
            self._tips[name] = (
                f"By weights and rewards alone, which is all that sensitivity uses: {tip}" if helped else tip
            )
        return verdict.with_caveats([Caveat("sensitivity", self._tips[name])])

    def with_tipping_points(self) -> Self:
        """The same result, whose verdicts on the whole log say how wrong propensities must be for the conclusion to flip."""
        verdicts = dict(self.verdicts)
        for name in self.targets:
            verdicts[name, None] = self.verdict(name, sensitivity=True)
        others = {name: other.with_tipping_points() for name, other in self.others.items()}
        return replace(self, verdicts=verdicts, others=others)

    @cached_property
    def _tips(self) -> dict[str, str]:
        return {}  # made when they are first asked for

    def worth(self, target: str | None = None) -> float:
        """What the control variates of `optimal_dr` gained over a constant baseline: 0.25 is worth 25 % more rows.

        It is (stderr of `beta_ips` / stderr of `optimal_dr`)² − 1, over the whole log.
        """
        name = self.targets[0] if target is None else target
        missing = [needed for needed in ("beta_ips", "optimal_dr") if (name, needed, None) not in self.estimates]
        if missing and name in self.targets:
            raise OptionError(
                f"worth compares optimal_dr with beta_ips, and this result has no {' and no '.join(missing)}.",
                do="Pass `model='auto'`; if you choose with `estimator=`, name both of them.",
            )
        plain, best = self[name, "beta_ips"].stderr, self[name, "optimal_dr"].stderr
        return (plain / best) ** 2 - 1.0 if best > 0 else 0.0

    @cached_property
    def estimators(self) -> tuple[str, ...]:
        """The names of all estimators."""
        return tuple(dict.fromkeys(name for _, name, _ in self.estimates))

    @cached_property
    def best(self) -> str:
        """The estimator behind the headline: with a reward model if there is one, or else with a baseline that depends on the context."""
        return foremost(self.estimators, self.registry, first=right_for(self.moments))

    @property
    def lift_of_best(self) -> Estimator:
        """The estimator of how much more a target earns than the logging policy that belongs to the one behind the headline."""
        if self.is_difference(self.best):
            return self.registry[self.best]
        return lift_of(self.best, self.moments)

    def is_difference(self, estimator: str) -> bool:
        """Whether an estimator is about differences between two policies. One that is not registered (any more) counts as one of values."""
        known = self.registry.get(estimator)
        return known is not None and known.is_difference

    def is_model_only(self, estimator: str) -> bool:
        """Whether an estimator rests on a reward model alone, which the verdict on the log's weights does not cover."""
        known = self.registry.get(estimator)
        return known is not None and not known.uses_rewards

    def stated(self, target: str, estimator: str, segment: Segment = None) -> Estimate:
        """An estimate as answers show it: without a number where the verdict is `not identified`, but for bounds and a model's own."""
        estimate = self.estimates[target, estimator, segment]
        if not estimate.identified or self.verdict_on(target, estimator, segment) != "not identified":
            return estimate
        nowhere = replace(estimate.interval, lower=-math.inf, upper=math.inf)
        return replace(estimate, value=math.nan, stderr=math.inf, interval=nowhere)

    def verdict_on(self, target: str, estimator: str, segment: Segment = None) -> str:
        """The verdict on one estimate, in a word or two."""
        return "model only" if self.is_model_only(estimator) else self.verdicts[target, segment].verdict

    def _of(
        self, table: Mapping[tuple[str, Segment], DiagnosticsOrVerdict], target: str | None, segment: Hashable
    ) -> DiagnosticsOrVerdict:
        name = self.targets[0] if target is None else target
        entry = table.get((name, None if segment is None else as_label(segment)))
        if entry is None:
            raise OptionError(f"no target {name!r} with segment {segment!r} in this result.")
        return entry

    def table(self) -> pl.DataFrame:
        """Everything as a tidy polars frame, with one row per target, segment and estimator."""
        return self.cells(self.estimates).frame()

    def cells(self, keys: Iterable[tuple[str, str, Segment]]) -> Table:
        """The table of these estimates; `n` and `baseline` are for frames alone."""
        shown = ("target", *(["segment"] if self.moments.segment_columns else []), "estimator", *ESTIMATE, "verdict")
        return Table([self._row(*key) for key in keys], shown=shown)

    def summary(self) -> Display:
        """The answer at full length, with every segment and estimator; `print(result)` has what matters most."""
        return FullAnswer(self)

    def conf_int(self) -> pl.DataFrame:
        """The confidence interval of every target, and of every segment and reward if there are several, as a polars frame.

        By the estimator behind the headline, at the result's own level; of a comparison, these are intervals of differences.
        """
        rows = [
            {
                **({"reward": None if reward is None else Name(reward)} if self.others else {}),
                "target": Name(target),
                **({"segment": _segment_name(segment)} if self.moments.segment_columns else {}),
                "lower": (interval := answer.stated(target, answer.best, segment).interval).lower,
                "upper": interval.upper,
            }
            for reward, answer in self.by_reward.items()
            for target, name, segment in answer.estimates
            if name == answer.best
        ]
        return Table(rows).frame()

    def p_value(self, target: str | None = None, segment: Hashable = None) -> float:
        """The p-value of a target's lift over the logging policy or, in a comparison, of its difference, against no difference.

        It is the largest 1 − level whose interval still has 0 in it, made by the result's own method. With several targets, name
        one; no p-value is corrected for their number (`rank` does that). For another reward, ask ``result.of("revenue")``.
        """
        if target is None:
            self._refuse_several("p-value", "result.p_value({target!r})")
        name = self.targets[0] if target is None else target
        verdict, place = self.verdict(name, segment).verdict, None if segment is None else as_label(segment)
        estimator = self.registry[self.best] if self.against else self.lift_of_best
        what = f"difference of {name!r} from {self.against!r}" if self.against else f"lift of {name!r}"
        if self.is_model_only(self.best):
            raise OptionError(
                f"{self.best} is what a reward model predicts, without an error of its own, and so has no p-value.",
                do="Leave it out of `estimator=`.",
            )
        check_differences(self.interval_method)
        if verdict == "not identified" or not self.estimates[name, self.best, place].identified:
            raise OptionError(
                f"the {what} has no p-value, since the log does not identify it.", do="See result.verdict()."
            )
        view = View(self.moments, (name, self.against))
        return Quantities(view, {what: estimator}, IntervalOptions.of(self)).at(what, place).p_value()

    def with_unit(self, unit: str) -> Self:
        """The same result for readers to whom a row is a `unit`: ``print(result.with_unit("visit"))`` counts visits."""
        others = {name: other.with_unit(unit) for name, other in self.others.items()}
        return replace(self, unit=checked_unit(unit), others=others)

    def per(self, unit: str) -> Self:
        """What `with_unit` was called until 0.4."""
        warn_of_old_name("per()", "with_unit()")
        return self.with_unit(unit)

    def blocks(self, *, rows: int | None = ROWS) -> Iterator[Block]:
        """What was asked, the answer, a row for each target and for the segments that differ most, and what to do next."""
        from counterpoise.evaluation.showing import blocks

        return blocks(self, rows=rows)

    def ladder(self) -> pl.DataFrame:
        """The bias ladder: value and interval of every target over the whole log with each constant of its weight, the unbiased one first.

        For results with ``weight=Slope(…)``, which chose one of these rungs for each target.
        """
        if not self.ladders:
            raise OptionError(
                "this result has a single weight, and no ladder to choose it from.",
                do="Pass `weight=cp.weights.Slope(cp.weights.Clip)`.",
            )
        return Table([row for ladder in self.ladders.values() for row in ladder.rows()]).frame()

    def _row(self, target: str, estimator: str, segment: Segment) -> dict[str, Cell]:
        estimate = self.stated(target, estimator, segment)
        baseline, verdict = estimate.baseline, self.verdicts[target, segment]
        is_guess = verdict.rests_on_few and not self.is_model_only(estimator)
        is_difference = self.is_difference(estimator)
        return {
            "target": Name(target),
            **({"segment": _segment_name(segment)} if self.moments.segment_columns else {}),
            "estimator": estimator,
            **estimate_cells(estimate.value, estimate.stderr, estimate.interval, is_signed=is_difference),
            **({"stderr": Worded(estimate.stderr, "")} if is_guess else {}),
            "verdict": self.verdict_on(target, estimator, segment),
            "n": estimate.n,
            "baseline": (baseline[0] if baseline else None) if isinstance(baseline, tuple) else baseline,
        }

    def document(self, more: Callable[[Result], dict[str, object]] | None = None) -> dict[str, object]:
        """What `counterpoise evaluate --json` (or `compare --json`) prints; `counterpoise.evaluation.showing.schema` describes it.

        `more` is what else to put into the document of each reward.
        """
        from counterpoise.evaluation.showing import document

        return document(self, more)

    def log_to_mlflow(self, *, step: int | None = None) -> None:
        """Log this answer to the active run of MLflow, or to a new one. Needs the extra ``mlflow``.

        Values and lifts of all targets with their intervals become metrics (``new/value``, ``new/lift lower``, …; after the name of the
        reward, if there are several), those that the log does not tell left out; verdicts and what was asked become tags; and the whole
        `document` is stored as ``counterpoise.json``. A daily job passes the number of the day as `step`.
        """
        try:
            mlflow = import_module("mlflow")
        except ImportError as error:
            raise OptionError("MLflow is missing.", do="Run pip install 'counterpoise[mlflow]'.") from error
        metrics: dict[str, float] = {"rows": self.n}
        tags = {"counterpoise.estimator": self.best, "counterpoise.interval": f"{self.method}, {self.level:g}"}
        for reward, answer in self.by_reward.items():
            place = (str(reward),) if self.others else ()
            for target in answer.targets:
                name = _tracked((*place, target), tags)
                tags[f"verdict {name}"] = answer.verdict(target).verdict
                for what, estimator in (("", answer.best), ("lift ", "lift")):
                    is_apart = estimator != answer.best and answer.lift_of_best is not ESTIMATORS["lift"]
                    if (target, estimator, None) in answer.estimates and not is_apart:
                        estimate = answer.stated(target, estimator)
                        ends = {"lower": estimate.interval.lower, "upper": estimate.interval.upper}
                        numbers = {"value": estimate.value, "stderr": estimate.stderr, **ends}
                        metrics |= {f"{name}/{what}{part}": x for part, x in numbers.items() if math.isfinite(x)}
        if self.reward is not None:
            tags["counterpoise.reward"] = ", ".join(map(str, self.by_reward))
        if smaller := [str(name) for name, answer in self.by_reward.items() if answer.minimize]:
            tags["counterpoise.minimize"] = ", ".join(smaller)
        mlflow.log_metrics(metrics, step=step)
        mlflow.set_tags(tags)
        mlflow.log_dict(self.document(), "counterpoise.json")

    def plot(self, ax: Axes | None = None) -> Axes:
        """The forest plot: an interval for every target, or for every estimator of a single one. Needs the extra ``plot``."""
        return cast("Axes", above().pictures.forest(self, ax=ax))

    def plot_weights(self, ax: Axes | None = None) -> Axes:
        """The tails of the weights: how many rows have at least a given weight."""
        return cast("Axes", above().pictures.weights(self, ax=ax))

    def plot_segments(self, target: str | None = None, ax: Axes | None = None) -> Axes:
        """An interval for every segment of one target (the first, unless you name another), largest segments first."""
        return cast("Axes", above().pictures.segments(self, target, ax=ax))

    def plot_over_time(self, target: str | None = None, ax: Axes | None = None) -> Axes:
        """The lift of one target (by default, the best) over the logging policy each day, in order, with intervals that hold at once.

        The result must have dates as its one `segment=`. If it has no lifts, these are values.
        """
        return cast("Axes", above().pictures.over_time(self, target, ax=ax))

    def check_coverage(
        self,
        runs: int = 1000,
        *,
        target: str | None = None,
        estimator: str | None = None,
        seed: int = 0,
        progress: bool | None = None,
    ) -> CoverageCheck:
        """How often intervals like these cover, on logs like this one.

        The log is read once more, and `runs` logs are drawn from its rows (or its clusters, if it has any) with replacement. On
        each of them, we make the interval of a `target` (all of them, unless you name one) by an `estimator` (the one behind the
        headline) in the same way, and count whether it covers the value that the estimator has on what was drawn from. That is
        the log itself, with rows a little more or less likely so that weights have mean 1, and one more row that has not come up
        yet, as in Student's interval. If fewer than three rows carry the answer, the log cannot tell.

        Logs of more than 20,000 different rows are dealt into blocks of rows first. The same `seed` draws the same logs.
        """
        from counterpoise.evaluation.coverage import check_coverage

        return check_coverage(self, runs, target=target, estimator=estimator, seed=seed, progress=progress)

    def sensitivity(
        self,
        gamma: float | Sequence[float] = GAMMAS,
        *,
        target: str | Sequence[str] | None = None,
        progress: bool | None = None,
    ) -> Sensitivity:
        """What the targets (all, unless you name some) could have earned if the propensities were wrong: see `sensitivity`.

        The log is read once more. For a comparison of two targets, it is about their difference.
        """
        from counterpoise.evaluation.sensitivity import of_result

        return of_result(self, gamma, target, progress)

    def loggers(self, target: str | None = None) -> pl.DataFrame:
        """Several loggers side by side: the balanced estimate of a target, naive pooling (weights by each row's
        own logger), each logger's own estimate, and their mean by inverse variance.

        The log is read once more. `weight_share` is the part of all balanced weights that a logger's rows have.
        """
        question, name = self.asked(), self.targets[0] if target is None else target
        weight = question.weight
        if not isinstance(weight, Balanced):
            raise OptionError(
                "this log has no `logger=`, and so a single logging policy.",
                do="For several, pass `propensity={'a': …, 'b': …}` and `logger=`.",
            )
        balanced, estimator = self[name, "beta_ips"], {"beta_ips": ESTIMATORS["beta_ips"]}
        plain = question.slim("cluster", "key")
        (moments,) = moments_of(weight.by_policy(plain))
        carried = weight_by_policy(moments, name)
        (naive,) = moments_of(replace(weight.pooled(plain, quoting(plain.log)), segment=(weight.logger,)))
        (options,) = options_of(
            self.interval_method,
            self.level,
            (self.reward,),
            is_clustered=moments.cluster is not None,
            reward_bounds=self.reward_bounds,
        )
        apart = estimates(View(naive, (name, "")), estimator, options)
        each = {
            logger: apart[name, "beta_ips", as_label(logger)]
            for logger in weight.loggers
            if as_label(logger) in naive.segments
        }
        rows = {
            "balanced": balanced,
            "naive pooling": apart[name, "beta_ips", None],
            "inverse variance": _by_inverse_variance(list(each.values()), self.level),
        } | {f"{logger} alone": estimate for logger, estimate in each.items()}
        total = sum(carried.values()) or math.nan
        shares = {f"{logger} alone": Share(carried[str(logger)] / total) for logger in each}
        return Table(
            [
                {
                    "how": how,
                    **estimate_cells(estimate.value, estimate.stderr, estimate.interval),
                    "n": estimate.n,
                    "weight_share": shares.get(how),
                }
                for how, estimate in rows.items()
            ]
        ).frame()

    def report(
        self,
        path: str | PathLike[str],
        *,
        title: str | None = None,
        unit: str | None = None,
        command: str | None = None,
        rows: bool = True,
        coverage: CoverageCheck | Sequence[CoverageCheck] | None = None,
    ) -> Path:
        """Write one HTML file for people to read, and return its path.

        It may have a `title`, say what a row is to its readers (``unit="visit"``), and show the `command` to those who want to rerun
        it. If the result still knows its log, its `rows` are read again, for the log's dates, a histogram of the weights, a plot of
        the estimate as rows come in, and a section on wrong propensities. `coverage` is what `check_coverage` returned, for a section
        about it (a list, if there are several rewards).
        """
        how = {"title": title, "unit": unit, "command": command, "rows": rows, "coverage": coverage}
        return cast("Path", above().write_report(self, path, **how))


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Result):
    """The answer of `compare`: the difference between two policies, as `value`, `stderr`, `interval` and `baseline`.

    You can use it like a `Result`; its estimators are ``"beta_ips"`` and ``"ips"``, with a `baseline` also ``"context_ips"``, and with a
    reward model ``"optimal_dr"``; `best` is the one to use.
    """

    registry: ClassVar[Mapping[str, Estimator]] = DIFFERENCES

    @property
    def difference(self) -> Estimate:
        """The paired difference of the only target with its own optimal baseline, over the whole log."""
        return self._only

    @property
    def baseline(self) -> Baseline:
        """The optimal baseline of the difference."""
        return self.difference.baseline

    def _row(self, target: str, estimator: str, segment: Segment) -> dict[str, Cell]:
        row = super()._row(target, estimator, segment)
        return {"target": row.pop("target"), "against": Name(self.against), **row}


def _segment_name(segment: Segment) -> Name:
    return Name(WHOLE if segment is None else segment_text(segment))


def _by_inverse_variance(parts: Sequence[Estimate], level: float) -> Estimate:
    """The mean of estimates by inverse variance; those variances are estimates, and too small for loggers with few large weights."""
    known = [part for part in parts if part.identified and 0 < part.stderr < math.inf]
    mass = sum(part.stderr**-2 for part in known)
    value = sum(part.value * part.stderr**-2 for part in known) / mass if mass else math.nan
    error = mass**-0.5 if mass else math.inf
    return Estimate("beta_ips", value, error, sum(part.n for part in known), (), normal(value, error, level))


def _tracked(names: Sequence[str], tags: Mapping[str, str]) -> str:
    """A name that MLflow takes, made from names that may have anything in them, and not among those that already have a verdict."""
    plain = "/".join(re.sub(r"[^\w -]", "_", name)[:100] for name in names)
    return next(name for k in count(1) if f"verdict {(name := plain if k == 1 else f'{plain} {k}')}" not in tags)


def _choice(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1)
    listed = f"it has {verbatim(', '.join(sorted(known)))}." if known else "it has none."
    return listed + (f" Did you mean {near[0]!r}?" if near else "")
