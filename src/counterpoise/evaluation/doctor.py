"""The doctor: what a log looks like before anything is estimated from it, and what to fix first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Unpack, cast

import polars as pl

from counterpoise.diagnostics import Caveat, Diagnostics, Verdict
from counterpoise.diagnostics.diagnose import TITLES
from counterpoise.diagnostics.findings import (
    FEW,
    LOOKED_AT,
    Counted,
    Witnesses,
    about_densities,
    about_lists,
    about_misread,
    about_sampling,
    counted_of,
    leaks,
    meaning_of,
)
from counterpoise.diagnostics.seeming import about_repeats, fall_of, faults_of, find_lists, repeats, tells_apart
from counterpoise.diagnostics.verdict import COUNTED as COUNTED_PROPENSITIES
from counterpoise.diagnostics.verdict import SURE, UNNAMED, WHICH_WAY, which_way
from counterpoise.display import ROWS, Block, Display, Judged, Name, Table, above, finite, number, percent
from counterpoise.engines.first_look import sequences_of
from counterpoise.engines.registry import engine_of
from counterpoise.engines.rows import rows_of
from counterpoise.engines.streaming import Streaming, prepare_lazily
from counterpoise.errors import LogError, OptionError
from counterpoise.evaluation.audit import (
    Audit,
    DistributionColumns,
    Parts,
    about_audit,
    audit,
    check_columns,
    columns_of,
)
from counterpoise.evaluation.evaluate import evaluate
from counterpoise.log.expressions import check_digits, column, columns, computed
from counterpoise.log.good import is_number, is_propensity
from counterpoise.log.kinds import chance_kept, go_with, kinds_of, that_sounds_like
from counterpoise.log.kinds.kind import Severity
from counterpoise.log.log import Log, as_log, logged_propensity
from counterpoise.log.parts import (
    CONDITIONAL,
    FITTING,
    PLACE,
    PREDICTIONS,
    Columns,
    Data,
    LogFields,
    column_names,
    is_minimized,
    sampling_among,
    targets_among,
    usual,
)
from counterpoise.log.question import GROUPS, NoWeight, Question, RowWeight
from counterpoise.log.rules import Problem, rules_of
from counterpoise.log.targets import Always, Chosen, Target, Targets
from counterpoise.log.verbs import need_only, takes_parts
from counterpoise.readers.files import collect
from counterpoise.weights import list_weight

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SAMPLED = 20_000  # first rows in which context columns are tried as a model of the reward
OWN = (
    "lists-as-rows",
    "propensity-meaning",
    "propensities-not-probabilities",
    COUNTED_PROPENSITIES,
    UNNAMED,
    WHICH_WAY,
)  # caveats covered by the doctor's own findings
COUNTED = 2_000_000  # first rows in which distinct values and repeated rows are counted: every one takes memory
ROUNDING = 0.02  # the relative error of the smallest propensity from which rounding matters


@dataclass(frozen=True)
class LogColumn:
    """A column, and the part that its name suggests."""

    name: str
    kind: str
    missing: int
    part: str | None


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


@dataclass(frozen=True)
class TargetOverlap:
    """The weights of one target, and whether the log can tell its value."""

    target: str
    diagnostics: Diagnostics
    verdict: Verdict


@dataclass(frozen=True, repr=False)
class Examination(Display):
    """Everything the doctor saw; the first finding is what to fix first."""

    rows: int
    columns: tuple[LogColumn, ...]
    propensity: Propensities | None
    reward: RewardSummary | None
    duplicates: int
    actions: int | None
    overlap: tuple[TargetOverlap, ...]
    findings: tuple[Caveat, ...]
    audit: Audit | None = None

    def blocks(self, *, rows: int | None = ROWS) -> Iterator[Block]:
        """The columns, what was checked, and what to fix first."""
        yield f"{self.rows:,} rows, {len(self.columns):,} columns."
        yield ""
        titles = {"name": "column", "kind": "type", "part": "looks like"}
        yield Table(
            [vars(column) | {"name": Name(column.name), "part": column.part or ""} for column in self.columns],
            titles=titles,
        )
        yield ""
        yield Table([{"check": what, "found": said} for what, said in self._checks()])
        if self.overlap:
            yield ""
            yield "The weights of each target; their mean should be 1:"
            weights = [{"target": Name(overlap.target), **overlap.diagnostics.cells()} for overlap in self.overlap]
            yield Table(weights, titles=TITLES | {"n": f"{self.overlap[0].diagnostics.unit}s"})
        if self.audit is not None:
            yield from self.audit.blocks()
        yield ""
        if not self.findings:
            yield "Nothing to fix."
            return
        yield "What to do, the most urgent first:"
        for k, finding in enumerate(self.findings, start=1):
            yield Judged(f"{k}. ", finding.severity, (finding.message,), is_listed=True)

    def document(self) -> dict[str, object]:
        """Everything in plain values; a finding has its whole message, too."""
        said = [{**each.document(), "about": each.about, "message": each.message} for each in self.findings]
        return {**super().document(), "findings": finite(said)}

    def _checks(self) -> Iterator[tuple[str, str]]:
        """What was looked at, and what it shows."""
        if (p := self.propensity) is not None:
            yield "propensity: range", f"{number(p.lowest)} to {number(p.highest)}, median {number(p.median)}"
            yield "propensity: outside (0, 1]", f"{p.impossible:,} rows"
            yield "propensity: rounding", "all digits" if p.decimals is None else f"{p.decimals} decimals"
            yield "propensity: repeated values", f"{percent(p.repeated_share)}; {p.distinct:,} distinct"
            error = p.mean_inverse_stderr
            yield "propensity: mean of 1/p", f"{number(p.mean_inverse, error)} ± {number(error, error)}"
        if self.actions is not None:
            yield "actions", f"{self.actions:,} distinct"
        if (r := self.reward) is not None:
            yield "reward: range", f"{number(r.lowest)} to {number(r.highest)}, mean {number(r.mean)}"
            yield "reward: zero", f"{percent(r.zero_share)}; {r.distinct:,} distinct values"
            yield "reward: missing or infinite", f"{r.impossible:,} rows"
        yield "repeated rows", f"{self.duplicates:,}"

    def plot_propensities(self, ax: Axes | None = None) -> Axes:
        """The mean weight of every part that was audited, against 1; alarms first. Needs the extra ``plot``."""
        return cast("Axes", above().pictures.audit(self.audit, ax=ax))


@takes_parts("doctor")
def doctor(
    log: Log | Data = None,
    *,
    target: Targets = (),
    segment: str | Sequence[str] = (),
    day: str | None = None,
    probabilities: DistributionColumns = None,
    **parts: Unpack[LogFields],
) -> Examination:
    """Examine a log: its columns, propensities, rewards, repeated rows and overlap. Names that you don't give are guessed.

    A target is a column with its probability of the logged action, ``Chosen("column")`` or ``Always("action")``: one, a list, or a mapping.

    Parts that say how to estimate (`model`, `items`, `control`, `baseline`, `reward_bounds`, …) make no difference here, nor does
    `drop_bad_rows`: invalid rows are what the doctor looks for. Propensities to be estimated by a model are not examined.

    Every number covers all rows, except for medians, distinct values and repeated rows, which cover the first 2,000,000.

    Propensities are audited by `segment` (each column on its own), by `day` (the log's date or time, if it has only one) and by action, and
    against the logging policy's `probabilities` of all actions: a list column, columns in the actions' order, or columns by action.

    Examples
    --------
    >>> log = pl.DataFrame({"click": [1, 0, 1, 0], "p": [0.5, 0.5, 0.0, 0.5], "pi_new": [0.9, 0.1, 0.9, 0.1]})
    >>> print(doctor(log).findings[0].message.partition(":")[0])
    propensity 'p' must lie in (0, 1]
    """
    targets, chosen = _targets(target)
    segments = column_names("segment", segment, None)
    whole = as_log(log, parts)
    need_only(whole, "doctor")
    frame = rows_of(whole)
    schema = frame.collect_schema()
    names = schema.names()
    check_digits(schema, names)
    logged = logged_propensity(whole)
    if (
        logged is not None and logged not in names and not logged.isidentifier()
    ):  # an expression, which may be what the doctor said
        frame = computed(frame, [logged])
        schema = frame.collect_schema()
    reward, propensity, action = next(iter(whole.reward), None), logged_propensity(whole), whole.action
    named = [*segments, day, *columns_of(probabilities), reward, propensity, action, *targets, *whole.key]
    named += [source.column for source in chosen.values() if isinstance(source, Chosen)]
    check_columns(schema, [name for name in named if name])
    reward, action = reward or usual("reward", names), action or usual("action", names)
    if (
        propensity is None and whole.propensity is None
    ):  # otherwise a model estimates it, whatever the columns are called
        propensity = usual("propensity", names)
    if chosen and action is None:
        raise OptionError(
            "a target that takes one action is compared with the logged one.", do="Name its column with `action=`."
        )
    if not targets and not chosen:
        targets = targets_among(names, (reward, propensity))
    patient = Patient(whole, frame, schema, reward, propensity, action, targets, segments, day, probabilities, chosen)
    if patient.rows == 0:
        raise LogError("the log has no rows.")
    findings = [caveat for check in CHECKS for caveat in check(patient)]
    return Examination(
        patient.rows,
        patient.columns,
        patient.propensities,
        patient.rewards,
        patient.duplicates[0],
        patient.actions,
        patient.overlaps,
        tuple(sorted(findings, key=lambda caveat: ("fix", "look", "note").index(caveat.severity))),
        patient.audit,
    )


@dataclass(frozen=True, eq=False)
class Patient:
    """A log on the doctor's table: its rows, the column that plays each part (guessed if nobody named it), and what was measured."""

    log: Log
    frame: pl.LazyFrame
    schema: pl.Schema
    reward: str | None
    propensity: str | None
    action: str | None
    targets: tuple[str, ...]
    segments: tuple[str, ...]
    day: str | None
    distribution: DistributionColumns
    chosen: Mapping[str, Chosen | Always]  # targets that take one action

    @cached_property
    def _counts(self) -> dict[str, int]:
        """Rows, and missing values by column."""
        missing = (column(name).null_count().alias(f"{name} ") for name in self.schema)
        return collect(self.frame.select(pl.len().alias("rows"), *missing)).row(0, named=True)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self._counts["rows"])

    @property
    def columns(self) -> tuple[LogColumn, ...]:
        """Every column, with the part that it plays."""
        parts = {self.action: "action"} | dict.fromkeys(self.targets, "target")
        parts |= {self.propensity: "propensity", self.reward: "reward"}
        return tuple(
            LogColumn(name, str(kind), int(self._counts[f"{name} "]), parts.get(name))
            for name, kind in self.schema.items()
        )

    @cached_property
    def numbers(self) -> set[str | None]:
        """The columns that hold numbers."""
        return {name for name, kind in self.schema.items() if kind.is_numeric() or kind == pl.Boolean}

    @property
    def usable(self) -> list[str]:
        """The targets whose weights can be looked at."""
        return [name for name in self.targets if {self.reward, self.propensity, name} <= self.numbers]

    @property
    def sample(self) -> pl.LazyFrame:
        """The first rows, in which values are counted."""
        return self.frame.head(COUNTED)

    @cached_property
    def with_chances(self) -> pl.LazyFrame:
        """The rows, with the probability with which each was kept, if that is not a column but an expression."""
        chance = chance_kept(self.log)
        return self.frame if chance is None or chance in self.schema else computed(self.frame, [chance])

    @property
    def counts_alike(self) -> bool:
        """Whether the mean weights of parts of the log, and of 1/propensity, can be looked at."""
        return go_with(kinds_of(self.log), "mean weights")

    @cached_property
    def propensities(self) -> Propensities | None:
        """What the propensities look like, if they are numbers."""
        if self.propensity not in self.numbers:
            return None
        p = pl.col("p")
        good = self.frame.select(p=column(str(self.propensity)).cast(pl.Float64)).filter(is_propensity(p))
        places = {f"d{d}": ((p * 10**d).round() / 10**d - p).abs().max() for d in range(5)}
        spread = {"inverse": (1 / p).mean(), "spread": (1 / p).std()}
        measured = collect(good.select(n=p.len(), lowest=p.min(), highest=p.max(), **spread, **places)).row(
            0, named=True
        )
        n = int(measured["n"])
        if n == 0:
            return Propensities(self.rows)
        sample, counted_rows = good.head(COUNTED), min(n, COUNTED)
        counted = collect(sample.select(median=p.median(), distinct=p.n_unique(), commonest=p.mode().min()))
        median, distinct, commonest = counted.row(0)
        unseen = (counted_rows * (-p).log1p()).exp()  # the chance that an action with this propensity does not come up
        came_up = (1 - unseen) / p
        expected, error, chance = collect(
            good.select(mean=came_up.mean(), spread=came_up.std(), chance=(came_up * unseen).mean())
        ).row(0)
        return Propensities(
            impossible=self.rows - n,
            lowest=measured["lowest"],
            median=median,
            highest=measured["highest"],
            distinct=distinct,
            repeated_share=1 - distinct / counted_rows,
            commonest=commonest,
            commonest_share=float(collect(sample.select((p == commonest).mean())).item()),
            decimals=next((d for d in range(5) if measured[f"d{d}"] < 1e-9), None),
            counted=counted_of(collect(good.head(LOOKED_AT)).get_column("p").to_numpy()),
            mean_inverse=measured["inverse"],
            mean_inverse_stderr=(measured["spread"] or 0.0) / math.sqrt(n),
            expected_actions=expected,
            expected_actions_stderr=math.sqrt((error or 0.0) ** 2 / n + chance),
        )

    @cached_property
    def rewards(self) -> RewardSummary | None:
        """What the rewards look like, if they are numbers; means count rows as often as they stand for others."""
        if self.reward not in self.numbers:
            return None
        r, counts, chance = pl.col("r"), pl.col("counts"), chance_kept(self.log)
        kept = pl.lit(1.0) if chance is None else column(chance).cast(pl.Float64)
        every = self.with_chances.select(r=column(str(self.reward)).cast(pl.Float64), counts=1.0 / kept)
        good, known = every.filter(is_number(r)), pl.when(is_number(counts)).then(counts)
        means = {name: (of * known).sum() / known.sum() for name, of in (("mean", r), ("zero", r == 0))}
        measured = collect(good.select(n=r.len(), lowest=r.min(), highest=r.max(), **means))
        distinct = int(collect(good.head(COUNTED).select(r.n_unique())).item())
        n, *numbers, zero = measured.row(0)
        low, high, mean = (math.nan if x is None else float(x) for x in numbers)
        return RewardSummary(self.rows - n, low, mean, high, distinct, float(zero or 0.0))

    @cached_property
    def actions(self) -> int | None:
        """How many actions there are."""
        count = None if self.action is None else collect(self.sample.select(column(self.action).n_unique()))
        return None if count is None else int(count.item())

    @property
    def witnesses(self) -> Witnesses:
        """What can tell how the propensities are to be read."""
        parts = [name for name in dict.fromkeys((*self.segments, *self.log.context)) if name in self.schema]
        played = {self.reward, self.propensity, self.action, *self.targets, *parts, *self.log.key}
        others = [name for name, kind in self.schema.items() if kind.is_float() and name not in played]
        action = self.action if self.action in self.schema else None
        wanted = dict.fromkeys([str(self.propensity), *self.usable, *parts, *others, *([action] if action else [])])
        frame = collect(self.sample.select(columns(wanted)))
        return Witnesses.of(frame, str(self.propensity), {name: name for name in self.usable}, action, parts, others)

    @cached_property
    def duplicates(self) -> tuple[int, bool]:
        """How many rows repeat another row's key, or all of its columns, and whether that is odd.

        Rows with a few coarse columns repeat by chance. It is odd if there are more pairs than chance makes (`Repeats`), or if some
        column tells almost all rows apart, except for the repeated ones.
        """
        if self.log.key:
            keys = pl.struct(columns(self.log.key)).hash().n_unique()
            repeated = min(self.rows, COUNTED) - int(collect(self.sample.select(keys)).item())
            return repeated, repeated > 0
        counts = repeats(self.sample, self.schema)
        if counts is None or not counts.repeated:
            return 0, False
        return counts.repeated, counts.is_odd or tells_apart(self.sample, self.schema)

    @cached_property
    def judged(self) -> Log:
        """The log that overlap and rules are judged by: its rows are already chosen, and repeats are reported separately."""
        # overlap needs no bounds, which may belong to other rewards
        rows = self.log.of(self.frame).without(*PLACE, *FITTING, "key", "reward_bounds", "per")
        reward, propensity = (name if name in self.numbers else None for name in (self.reward, self.propensity))
        return rows.but(reward=reward, propensity=propensity, drop_bad_rows=True)

    @cached_property
    def overlaps(self) -> tuple[TargetOverlap, ...]:
        """The overlap of every usable target that has a good row."""
        value: Columns = self.judged.model_value  # of each target, in their order, or of the only one
        if isinstance(value, list | tuple):
            value = dict(zip(self.targets, value, strict=True)) if len(value) == len(self.targets) else None
        chosen = self.chosen if {self.reward, self.propensity} <= self.numbers else {}
        overlaps = []
        for name, source in [*zip(self.usable, self.usable, strict=True), *chosen.items()]:
            if isinstance(source, str):
                own_value = value.get(name) if isinstance(value, Mapping) else value
                model = None if own_value is None else self.judged.model_reward
                own = self.judged.but(model_value=own_value, model_reward=model)
            else:
                own = self.judged.but(action=self.action, model_value=None, model_reward=None)
            with suppress(LogError):  # every row is bad, which the other findings explain
                result = evaluate(own, target={name: source}, estimator="beta_ips")
                overlaps.append(TargetOverlap(name, result.diagnostics(), result.verdict()))
        return tuple(overlaps)

    @cached_property
    def audit(self) -> Audit | None:
        """The audit of the propensities, if some are possible."""
        if self.propensities is None or self.propensities.impossible == self.rows or not self.counts_alike:
            return None  # it counts every row once
        by = (self.action, self.log.cluster, self.segments, self.day, self.distribution)
        return audit(self.frame, self.schema, Parts(str(self.propensity), self.usable, *by))

    @cached_property
    def problems(self) -> list[Problem]:
        """What is wrong with rows or lists by the rules of `evaluate`, for parts whose columns exist and hold numbers."""
        log, known = self.judged, self.schema.names()
        control = {name: mean for name, mean in (log.control or {}).items() if name in self.numbers}
        lean = log.without("context", "candidates", "baseline", *PREDICTIONS, "groups")
        lean = lean.but(control=control or None, cluster=log.cluster if log.cluster in known else None)
        has_weights = log.propensity is not None
        targets = tuple(Target(name, name) for name in self.targets if name in self.numbers) if has_weights else ()
        question = Question(lean, targets, RowWeight() if has_weights else NoWeight())
        if log.reward and has_weights and log.list_id in known and log.list_place in self.numbers:
            groups = 1 if lean.cluster is None else GROUPS
            with suppress(LogError, OptionError):  # positions that are not positions, which other findings explain
                weight = list_weight(None, log)
                question = replace(question, weight=weight, sequences=sequences_of(lean), groups=groups)
        if not rules_of(question):
            return []
        problems = Streaming(prepare_lazily(self.with_chances, question), question).problems()
        return problems if engine_of(self.log).has_order else [replace(problem, row=None) for problem in problems]


# -- What the doctor looks for, one check after the other --------------------------------------------------------------


def missing_parts(patient: Patient) -> Iterator[Caveat]:
    """Parts that no column plays, and columns that cannot play theirs."""
    is_estimated = patient.propensity is None and patient.log.propensity is not None  # by a model
    propensity = {} if is_estimated else {"propensity": patient.propensity}
    targets = patient.targets or tuple(patient.chosen)
    for part, name in {"reward": patient.reward, **propensity, "target": targets}.items():
        if not name:
            never = " If it was never logged, Python can estimate it: propensity=cp.models.Propensity(…), from context and action."
            more = never if part == "propensity" else ""
            text, do = f"no column looks like the {part}.", f"Name it with `{part}=COLUMN`.{more}"
            yield Caveat("missing-part", text, do=do, about=part)
    for name in (patient.reward, patient.propensity, *patient.targets):
        if name is not None and name not in patient.numbers:
            text = f"{name!r} holds {patient.schema[name]}, not numbers."
            yield Caveat("not-numbers", text, do="Write it as numbers.", about=name)


def misread_propensities(patient: Patient) -> Iterator[Caveat]:
    """Propensities that seem to be something else."""
    if patient.propensities is None or not patient.counts_alike:
        return
    misread, propensity = None, str(patient.propensity)
    if patient.propensities.impossible and patient.action is not None:
        targets = {name: name for name in patient.usable}
        first = patient.frame.head(SAMPLED).select(columns(dict.fromkeys([propensity, patient.action, *targets])))
        misread = about_densities(collect(first), propensity, targets, patient.action)
    misread = misread or about_misread(propensity, patient.witnesses)
    if misread is not None:
        yield replace(misread, unusual_severity="fix", about=propensity)


def leaking_context(patient: Patient) -> Iterator[Caveat]:
    """Context columns that give the reward away."""
    if patient.rewards is None:
        return
    for name, share in leaks(patient.frame.head(SAMPLED), str(patient.reward), patient.log.context).items():
        text = (
            f"the context column {name!r} explains {share:.0%} of the reward's variance on held-out rows: it was probably written after "
            "the choice."
        )
        do = "Leave it out of `context=`, or a model that uses it is worth nothing on new rows."
        yield Caveat("context-tells-reward", text, {"share": share}, do, about=name)


def doubtful_targets(patient: Patient) -> Iterator[Caveat]:
    """What the verdicts say about targets, beyond the doctor's own checks."""
    for overlap in patient.overlaps:
        severity: Severity = "fix" if overlap.verdict.verdict == "not identified" else "look"
        for caveat in overlap.verdict.caveats:
            if caveat.code not in OWN:
                yield replace(caveat.of_policy(overlap.target), unusual_severity=severity, about=overlap.target)


def which_way_is_better(patient: Patient) -> Iterator[Caveat]:
    """Rewards whose names sound like costs, unless somebody said which way is better."""
    for reward in patient.log.reward or filter(None, [patient.reward]):
        if is_minimized(patient.log.minimize, reward) is None:
            yield replace(which_way(reward), about=reward)


def wrong_mean_weights(patient: Patient) -> Iterable[Caveat]:
    """Parts of the log in which propensities cannot be right."""
    return [] if patient.audit is None else about_audit(patient.audit, str(patient.propensity))


def odd_propensities(patient: Patient) -> Iterator[Caveat]:
    """What is wrong with the propensities, or might be."""
    propensities, column = patient.propensities, str(patient.propensity)
    if propensities is None:
        return
    lowest, distinct, decimals = propensities.lowest, propensities.distinct, propensities.decimals
    if lowest == propensities.highest == 1.0:
        text = f"{column!r} is always 1, and a policy that never varies shows nothing about any other."
        do = "If yours does explore, log its true probabilities; if not, let it explore first."
        yield Caveat("single-action", text, do=do, about=column)
    if propensities.counted is not None:
        yield replace(propensities.counted.caveat(column), unusual_severity="look", about=column)
    elif decimals is not None and distinct > FEW and (off := 0.5 * 10.0**-decimals / lowest) > ROUNDING:
        text = (
            f"{column!r} is rounded to {decimals} decimals, and its smallest value is {lowest:g}, so the largest weights may be off by "
            f"{off:.0%}."
        )
        yield Caveat("rounded-propensities", text, {"off": off}, "Log all digits.", about=column)
    common, share = propensities.commonest, propensities.commonest_share
    if share > 0.5 and distinct > FEW:
        text, do = (
            f"{share:.0%} of {column!r} is {common:g}, and the rest varies.",
            "Is that a default for rows whose true value was unknown?",
        )
        yield Caveat("default-propensities", text, {"share": share, "value": common}, do, about=column)
    actions = patient.actions if patient.counts_alike else None
    inverse, expected = propensities.mean_inverse, propensities.expected_actions
    # all actions, seen or not: there cannot be fewer than were seen, but there can be more if rare ones have not come up yet
    if actions and actions - inverse > max(SURE * propensities.mean_inverse_stderr, 0.02 * actions):
        text = f"the mean of 1/{column} is {inverse:.4g} and should be the number of actions, of which the log has {actions:,}."
        do = "Either the propensities are too large, or not all rows could choose from the same actions."
        yield Caveat("count-of-actions", text, {"mean": inverse, "actions": actions}, do, about=column)
    # if an action's propensity differs between rows, even more actions are to be expected, by Jensen's inequality
    if actions and expected - actions > max(SURE * propensities.expected_actions_stderr, 0.02 * actions):
        text = (
            f"the mean of 1/{column} is {inverse:.4g} and should be the number of actions. Some may not have come up yet, but about "
            f"{expected:,.0f} should have, and the log has {actions:,}."
        )
        do = (
            "Either the propensities are too small, or they are for finer choices than the action column distinguishes."
        )
        yield Caveat(
            "count-of-actions", text, {"mean": inverse, "actions": actions, "expected": expected}, do, about=column
        )


def odd_rewards(patient: Patient) -> Iterator[Caveat]:
    """Rewards that are all the same."""
    if patient.rewards is not None and patient.rewards.distinct == 1:
        text = f"{patient.reward!r} is {patient.rewards.lowest:g} in every row, so the log cannot tell policies apart."
        numbers = {"reward": patient.rewards.lowest}
        yield Caveat("equal-rewards", text, numbers, unusual_severity="look", about=str(patient.reward))


def broken_rules(patient: Patient) -> Iterator[Caveat]:
    """Rows that `evaluate` would refuse, in its words, and the usual cause."""
    causes = {
        "propensity": "The usual causes are percentages, logarithms, 0 for “unknown”, and the probability of some other action.",
        "reward": "If no reward means 0, write 0; if a reward is not known yet, drop its row until it is.",
    }
    for problem in patient.problems:
        cause = "" if problem.rule.unit != "row" else causes.get(problem.rule.part, "")
        yield Caveat("invalid-rows", problem.said, {"rows": problem.count}, do=cause, about=problem.rule.column)


def lists_in_rows(patient: Patient) -> Iterator[Caveat]:
    """Whether rows are the positions of lists, which of those are broken (unless already reported), and what propensities mean."""
    log, sample = patient.log, patient.sample
    shows_several = log.shows_several
    if log.list_id in patient.schema and log.list_place in patient.schema:
        position, of = str(log.list_place), log.list_id
    else:
        taken = (patient.reward, patient.propensity, patient.action, *patient.targets)
        lists = find_lists(sample, patient.schema, taken)
        if lists is None:
            return
        position, of, shows_several = lists.position, lists.list, that_sounds_like(*lists.names).shows_several
        caveat = about_lists(lists, min(patient.rows, COUNTED))
        yield replace(caveat, unusual_severity="note" if of is None else "look", about=position)
    if of is None:
        return
    if not any(problem.rule.unit != "row" for problem in patient.problems):
        missing, repeated = faults_of(sample, position, of)
        for count, what in (
            (missing, "lack a position above their last"),
            (repeated, "have a position more than once"),
        ):
            if count:
                text = (
                    f"{count:,} of the rankings by {of!r} {what}, by {position!r}: their rows cannot be put together."
                )
                yield Caveat("broken-lists", text, {"lists": count}, "Fix the logger.", about=position)
    if shows_several and patient.propensities is not None:
        propensity = str(patient.propensity)
        fall, error, steps = fall_of(sample, position, propensity)
        meaning = meaning_of(fall, error, steps)
        if meaning is not None:
            is_given = meaning == CONDITIONAL
            whose = "of the item given those above it" if is_given else "of the item at its position, whatever is above"
            text = (
                f"the mean of 1/{propensity} counts the items to choose from. From the first position to {steps} below, it falls "
                f"by {fall:.2g} ± {error:.1g}, as it does where propensities are those {whose} and no item is shown twice: propensity_of "
                f"is {meaning}."
            )
            numbers = {"fall": fall, "error": error, "steps": float(steps)}
            yield Caveat("propensity-meaning", text, numbers, do="", unusual_severity="note", about=propensity)


def sampled_rows(patient: Patient) -> Iterator[Caveat]:
    """Whether a column that nobody named says how rows were sampled, and what was left out because rows were sampled."""
    for kind in kinds_of(patient.log):
        if conflict := kind.conflicts.get("mean weights"):
            yield Caveat("sampled-rows", conflict.why, about=kind.parts[0])
            return
    taken = (patient.reward, patient.propensity, patient.action, *patient.targets, *patient.log.context)
    for name, is_sure in sampling_among(patient.schema.names(), taken).items():
        values = collect(patient.sample.select(column(name))).get_column(name)
        caveat = about_sampling(values, is_sure=is_sure)
        if caveat is not None:
            yield replace(caveat, unusual_severity="look", about=name)


def other_rewards(patient: Patient) -> Iterator[Caveat]:
    """Rewards beyond the first, which were not examined."""
    rewards = patient.log.reward
    if len(rewards) > 1:
        text = f"only {rewards[0]!r} was examined, one of {len(rewards)} rewards."
        yield Caveat("other-rewards", text, do="Examine the others one at a time.", about="reward")


def targets_without_rows(patient: Patient) -> Iterator[Caveat]:
    """Targets of which every row is invalid."""
    judged = {overlap.target for overlap in patient.overlaps}
    blind = [name for name in patient.usable if name not in judged]
    if blind:
        text = f"every row is invalid, so there are no diagnostics of {', '.join(blind)}."
        yield Caveat("no-valid-rows", text, do="Fix these rows first.", about="rows")


def repeated_rows(patient: Patient) -> Iterator[Caveat]:
    """Rows that should have been logged once."""
    repeated, is_odd = patient.duplicates
    if is_odd:
        key, rows = patient.log.key, min(patient.rows, COUNTED)
        caveat = about_repeats(repeated, rows, are_first=patient.rows > COUNTED, key=key)
        yield replace(caveat, unusual_severity="fix" if key else "look", about="rows")


CHECKS: tuple[Callable[[Patient], Iterable[Caveat]], ...] = (
    missing_parts,
    misread_propensities,
    leaking_context,
    doubtful_targets,
    wrong_mean_weights,
    odd_propensities,
    odd_rewards,
    which_way_is_better,
    broken_rules,
    lists_in_rows,
    sampled_rows,
    other_rewards,
    targets_without_rows,
    repeated_rows,
)


# -- The targets ------------------------------------------------------------------------------------------------------


def _targets(target: Targets) -> tuple[tuple[str, ...], dict[str, Chosen | Always]]:
    """The columns of the targets, each once; and those that take one action, by name."""
    listed = target if isinstance(target, list | tuple) else [target]
    named = target.items() if isinstance(target, Mapping) else [(None, source) for source in listed]
    names, chosen = dict[str, None](), dict[str, Chosen | Always]()
    for name, source in named:
        if isinstance(source, Chosen | Always):
            chosen[name or str(source.column if isinstance(source, Chosen) else source.action)] = source
        elif isinstance(source, str):
            names[source] = None
        elif source is not None:
            raise OptionError(
                f"`target=` of doctor must name columns of the log, found {type(source).__name__}.",
                do="Pass a column with the target's probability of the logged action, `cp.Chosen` or `cp.Always`; evaluate takes the "
                "other kinds of targets.",
            )
    return tuple(names), chosen
