"""The doctor: what a log looks like before anything is estimated from it, and what to fix first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack, cast

import polars as pl

from counterpoise.diagnostics import Diagnostics, Verdict
from counterpoise.diagnostics.audit import Audit, about_audit
from counterpoise.diagnostics.findings import (
    Finding,
    Propensities,
    Rewards,
    Severity,
    about_bad_rows,
    about_lists,
    about_meaning,
    about_positions,
    about_propensities,
    about_rewards,
)
from counterpoise.diagnostics.list_logs import fall_of, faults_of, find_lists
from counterpoise.diagnostics.misread import about_misread, try_readings
from counterpoise.diagnostics.repeats import repeats, tells_apart
from counterpoise.engines.first_look import lists_of
from counterpoise.engines.polars_frames import prepare_lazily
from counterpoise.engines.registry import engine_of
from counterpoise.engines.rows import collect, rows_of
from counterpoise.engines.streaming import Streaming
from counterpoise.errors import Argument, Blank, ColumnError, LogError, OptionError, Sentence
from counterpoise.evaluation.audit import Distribution, Parts, audit, check_columns, columns_of
from counterpoise.evaluation.evaluate import evaluate
from counterpoise.evaluation.result import above
from counterpoise.log.expressions import check_digits, column, columns
from counterpoise.log.good import is_number, is_propensity
from counterpoise.log.guess import targets_among, usual
from counterpoise.log.log import Data, Log, LogFields, as_log, column_names, logged_propensity
from counterpoise.log.question import GROUPS, NoWeight, Question, RowWeight
from counterpoise.log.rules import Problem, rules_of
from counterpoise.log.targets import Target
from counterpoise.models.quality import Leak, leaks
from counterpoise.weights import list_weight

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SAMPLED = 20_000  # first rows in which context columns are tried as a model of the reward
OWN = (
    "lists-as-rows",
    "propensity-meaning",
    "propensities-not-probabilities",
)  # caveats that the doctor's findings are about
COUNTED = 2_000_000  # first rows in which distinct values and repeated rows are counted: every one takes memory


@dataclass(frozen=True)
class Column:
    """A column, and the part that its name suggests."""

    name: str
    kind: str
    missing: int
    part: str | None


@dataclass(frozen=True)
class Overlap:
    """The weights of one target, and whether its value can be told."""

    target: str
    diagnostics: Diagnostics
    verdict: Verdict


@dataclass(frozen=True)
class Examination:
    """Everything the doctor saw; the first finding is what to fix first."""

    rows: int
    columns: tuple[Column, ...]
    propensity: Propensities | None
    reward: Rewards | None
    duplicates: int
    actions: int | None
    overlap: tuple[Overlap, ...]
    findings: tuple[Finding, ...]
    audit: Audit | None = None

    def plot_propensities(self, ax: Axes | None = None) -> Axes:
        """The mean weight of every part that was audited, against 1; alarms first. Needs the extra ``plot``."""
        return cast("Axes", above().audit_picture.means(self.audit, ax=ax))


def doctor(
    log: Log | Data = None,
    *,
    target: str | Sequence[str] | Mapping[str, str] = (),
    segment: str | Sequence[str] = (),
    day: str | None = None,
    distribution: Distribution = None,
    **parts: Unpack[LogFields],
) -> Examination:
    """Examine a log: its columns, propensities, rewards, repeated rows and overlap. Names that you don't give are guessed.

    A target is a column with its probability of the logged action: one name, a list of names, or a mapping of targets to columns.

    Parts that say how to estimate (`model`, `items`, `control`, `baseline`, `reward_bounds`, …) make no difference here, nor does
    `drop_bad_rows`: bad rows are what the doctor looks for. Of propensities that a model is to estimate, nothing is examined.

    Every number covers all rows, except for medians, distinct values and repeated rows, which cover the first 2,000,000.

    Propensities are audited by `segment` (each column on its own), by `day` (the log's date or time, if it has only one) and by action, and
    against the logging policy's `distribution` over all actions: a list column, columns in the actions' order, or columns by action.

    Examples
    --------
    >>> log = pl.DataFrame({"click": [1, 0, 1, 0], "p": [0.5, 0.5, 0.0, 0.5], "pi_new": [0.9, 0.1, 0.9, 0.1]})
    >>> print(doctor(log).findings[0].message.partition(":")[0])
    propensity 'p' must lie in (0, 1]
    """
    asked_targets = _target_columns(target)
    asked_log = as_log(log, parts)
    asked_log.need_only("doctor")
    asked_log.need_one_logger("doctor")
    frame = rows_of(asked_log)
    reward, propensity = next(iter(asked_log.reward), None), logged_propensity(asked_log)
    action, key = asked_log.action, asked_log.key
    schema = frame.collect_schema()
    names = schema.names()
    check_digits(schema, names)
    segments = column_names("segment", segment, None)
    check_columns(schema, [*segments, *([day] if day else []), *columns_of(distribution)])
    for name in (reward, propensity, action, *asked_targets, *key):
        if name is not None and name not in names:
            raise ColumnError(f"no column {name!r}; the log has {', '.join(map(repr, names))}.")
    reward = usual("reward", names) if reward is None else reward
    is_estimated = propensity is None and asked_log.propensity is not None  # by a model, and not logged under any name
    propensity = usual("propensity", names) if propensity is None and not is_estimated else propensity
    targets = asked_targets or targets_among(names, (reward, propensity))
    action = action or usual("action", names)
    counts = collect(frame.select(pl.len().alias("rows"), *(column(n).null_count().alias(f"{n} ") for n in names)))
    rows = int(counts["rows"][0])
    if rows == 0:
        raise LogError("the log has no rows.")
    roles = {action: "action"} | dict.fromkeys(targets, "target") | {propensity: "propensity", reward: "reward"}
    described = tuple(Column(n, str(schema[n]), int(counts[f"{n} "][0]), roles.get(n)) for n in names)
    numbers = {n for n in names if schema[n].is_numeric() or schema[n] == pl.Boolean}
    played = {"reward": reward} if is_estimated else {"reward": reward, "propensity": propensity}
    findings = _about_columns(played, targets, schema, numbers)
    propensities = _propensities(frame, propensity) if propensity in numbers else None
    rewards = _rewards(frame, reward) if reward in numbers else None
    actions = None if action is None else int(collect(frame.head(COUNTED).select(column(action).n_unique())).item())
    sample = frame.head(COUNTED)
    duplicates, is_odd = _duplicates(sample, schema, list(key), min(rows, COUNTED))
    usable = [name for name in targets if {reward, propensity, name} <= numbers]
    # rows are chosen already, and repeated ones are told of below; overlap needs no bounds, which may be of other rewards
    judged = asked_log.of(frame).but(
        model=None,
        items=None,
        value_samples=None,
        where=None,
        table=None,
        query=None,
        external_access=False,
        key=(),
        reward_bounds=None,
        drop_bad_rows=True,
    )
    overlaps = _overlap(judged.but(reward=reward, propensity=propensity), targets, usable) if usable else []
    audited = None
    if propensity in numbers and propensity is not None and propensities is not None and propensities.impossible < rows:
        seen_by = Parts(propensity, usable, action, asked_log.cluster, segments, day, distribution)
        audited = audit(frame, schema, seen_by)
    named = judged.but(
        reward=reward if reward in numbers else (), propensity=propensity if propensity in numbers else None
    )
    problems = _problems(named, [name for name in targets if name in numbers], numbers)
    if not engine_of(asked_log).has_order:
        problems = [replace(problem, row=None) for problem in problems]
    tried = try_readings(frame, propensity, usable, actions) if propensity in numbers else []
    leaking = leaks(sample.head(SAMPLED), str(reward), asked_log.context) if reward in numbers else []
    findings += [
        *about_misread(propensity, tried),
        *map(_about_leak, leaking),
        *(finding for overlap in overlaps for finding in _doubts(overlap)),
        *(about_audit(audited, propensity) if audited is not None and propensity is not None else ()),
        *about_propensities(propensity, propensities, actions),
        *about_rewards(reward, rewards),
        *map(about_bad_rows, problems),
    ]
    is_told = any(problem.rule.is_of_lists for problem in problems)
    findings += _about_lists(
        sample, schema, asked_log, (reward, propensity, action, *targets), propensity in numbers, is_told
    )
    blind = [name for name in usable if name not in {overlap.target for overlap in overlaps}]
    findings += [
        *_about_others(asked_log.reward),
        *_about_blind(blind),
        *(_about_repeated(duplicates, rows, key) if is_odd else ()),
    ]
    order: dict[Severity, int] = {"fix": 0, "look": 1, "note": 2}
    findings.sort(key=lambda finding: order[finding.severity])
    return Examination(
        rows, described, propensities, rewards, duplicates, actions, tuple(overlaps), tuple(findings), audited
    )


def _target_columns(target: Any) -> tuple[str, ...]:
    """The columns of the targets, each once."""
    names = list(target.values()) if isinstance(target, Mapping) else target
    for name in names if isinstance(names, list | tuple) else [names]:
        if name is not None and not isinstance(name, str):
            raise OptionError(
                [Argument("target"), f" of doctor must name columns of the log, found {type(name).__name__}."],
                do="Pass a column with the target's probability of the logged action; evaluate takes the other kinds of targets.",
            )
    return tuple(dict.fromkeys(column_names("target", names, None)))


def _about_lists(
    sample: pl.LazyFrame,
    schema: pl.Schema,
    log: Log,
    taken: Sequence[str | None],
    has_propensities: bool,
    is_told: bool,
) -> Iterator[Finding]:
    """Whether rows are the positions of lists, which of those are broken (if that is not told yet), and what propensities mean."""
    if log.slate in schema and log.position in schema:
        position, of = str(log.position), log.slate
    else:
        lists = find_lists(sample, schema, taken)
        if lists is None:
            return
        position, of = lists.position, lists.list
        yield about_lists(position, of, lists.lists)
    if of is not None and not is_told:
        yield from about_positions(position, of, *faults_of(sample, position, of))
    propensity = taken[1]
    if of is not None and has_propensities and propensity is not None:
        meaning = about_meaning(propensity, *fall_of(sample, position, propensity))
        if meaning is not None:
            yield meaning


def _about_columns(
    parts: Mapping[str, str | None], targets: Sequence[str], schema: pl.Schema, numbers: set[str]
) -> list[Finding]:
    """Parts that no column plays, and columns that cannot play theirs."""
    missing = [part for part, known in {**parts, "target": targets}.items() if not known]
    texts = [name for name in (*parts.values(), *targets) if name is not None and name not in numbers]
    return [
        *(Finding("fix", part, _nameless(part)) for part in missing),
        *(Finding("fix", name, f"{name!r} holds {schema[name]}, not numbers. Write it as numbers.") for name in texts),
    ]


def _about_leak(leak: Leak) -> Finding:
    """A context column that tells the reward."""
    said = Sentence(
        [
            f"the context column {leak.column!r} tells {leak.r2:.0%} of the reward's variance, on rows it was not learned from: it was "
            "probably written after the choice. Leave it out of ",
            Argument("context"),
            ", or a model that uses it is worth nothing on new rows.",
        ]
    )
    return Finding("fix", leak.column, said)


def _about_others(rewards: Sequence[str]) -> Iterator[Finding]:
    """Rewards besides the first, which nobody has looked at."""
    if len(rewards) > 1:
        what = f"this is about {rewards[0]!r}, one of {len(rewards)} rewards. Ask about the others one at a time."
        yield Finding("note", "reward", what)


def _about_blind(targets: Sequence[str]) -> Iterator[Finding]:
    """Targets of which every row is bad."""
    if targets:
        what = f"every row has an impossible value, so that nothing is left to see of {', '.join(targets)}. Mend the rows first."
        yield Finding("fix", "rows", what)


def _about_repeated(duplicates: int, rows: int, key: Sequence[str]) -> Iterator[Finding]:
    """Rows that should have been logged once."""
    of = f"{rows:,}" if rows <= COUNTED else f"the first {COUNTED:,}"
    what = f"the key {', '.join(key)} of another row" if key else "another row in every column"
    said = f"{duplicates:,} of {of} rows repeat {what}. Log each decision once."
    yield Finding("fix" if key else "look", "rows", said)


def _propensities(frame: pl.LazyFrame, name: str | None) -> Propensities:
    p = column(str(name)).cast(pl.Float64)
    good = frame.select(p=p).filter(is_propensity(pl.col("p")))
    p = pl.col("p")
    places = {f"d{d}": ((p * 10**d).round() / 10**d - p).abs().max() for d in range(5)}
    whole = good.select(
        n=p.len(), lowest=p.min(), highest=p.max(), inverse=(1 / p).mean(), spread=(1 / p).std(), **places
    )
    measured = collect(whole).row(0, named=True)
    n, nan = int(measured["n"]), math.nan
    impossible = int(collect(frame.select(pl.len())).item()) - n
    if n == 0:
        return Propensities(impossible, nan, nan, nan, 0, 0.0, nan, 0.0, None, nan, nan, nan, nan)
    sample = good.head(COUNTED)
    counted = collect(sample.select(median=p.median(), distinct=p.n_unique(), commonest=p.mode().min()))
    median, distinct, commonest = counted.row(0)
    often = float(collect(sample.select((p == commonest).mean())).item())
    decimals = next((d for d in range(5) if measured[f"d{d}"] < 1e-9), None)
    error = (measured["spread"] or 0.0) / math.sqrt(n)
    counted_rows = min(n, COUNTED)
    repeated = 1 - distinct / counted_rows
    unseen = (counted_rows * (-p).log1p()).exp()  # the chance that an action with this propensity does not come up
    came_up = (1 - unseen) / p
    expected, spread, chance = collect(
        good.select(mean=came_up.mean(), spread=came_up.std(), chance=(came_up * unseen).mean())
    ).row(0)
    return Propensities(
        impossible,
        measured["lowest"],
        median,
        measured["highest"],
        distinct,
        repeated,
        commonest,
        often,
        decimals,
        measured["inverse"],
        error,
        expected,
        math.sqrt((spread or 0.0) ** 2 / n + chance),
    )


def _rewards(frame: pl.LazyFrame, name: str | None) -> Rewards:
    r = pl.col("r")
    good = frame.select(r=column(str(name)).cast(pl.Float64)).filter(is_number(r))
    measured = collect(good.select(n=r.len(), lowest=r.min(), mean=r.mean(), highest=r.max(), zero=(r == 0).mean()))
    distinct = int(collect(good.head(COUNTED).select(r.n_unique())).item())
    n, low, mean, high, zero = measured.row(0)
    missing = int(collect(frame.select(pl.len())).item()) - n
    low, mean, high = (math.nan if x is None else float(x) for x in (low, mean, high))
    return Rewards(missing, low, mean, high, distinct, float(zero or 0.0))


def _problems(log: Log, targets: Sequence[str], numbers: set[str]) -> list[Problem]:
    """What is wrong with rows or lists by the rules of `evaluate`, as far as the columns of its parts are there and are numbers."""
    known = log.data.collect_schema().names()
    control = {name: mean for name, mean in (log.control or {}).items() if name in numbers}
    lean = log.but(
        context=(), candidates=None, baseline=None, model_reward=None, model_value=None, control=control or None, groups=None,
        cluster=log.cluster if log.cluster in known else None,
    )  # fmt: skip
    chosen = tuple(Target(name, name) for name in targets) if log.propensity is not None else ()
    question = Question(lean, chosen, RowWeight() if log.propensity is not None else NoWeight())
    if log.reward and log.propensity is not None and log.slate in known and log.position in numbers:
        groups = 1 if lean.cluster is None else GROUPS
        with suppress(LogError, OptionError):  # whose positions are no positions, which other findings explain
            weight: Any = list_weight(None, log.propensity_of)
            question = replace(question, weight=weight, lists=lists_of(lean), groups=groups)
    if not rules_of(question):
        return []
    return Streaming(prepare_lazily(log.data, question), question).problems()


def _duplicates(frame: pl.LazyFrame, schema: pl.Schema, key: list[str], rows: int) -> tuple[int, bool]:
    """How many rows repeat another row's key, or all of its columns, and whether that is odd.

    Rows with a few coarse columns repeat by chance. It is odd if there are more pairs than chance makes (`Repeats`), or if some column
    tells almost all rows apart, except for the repeated ones.
    """
    if key:
        distinct = int(collect(frame.select(pl.struct(columns(key)).hash().n_unique())).item())
        return rows - distinct, distinct < rows
    counts = repeats(frame, schema)
    if counts is None or not counts.repeated:
        return 0, False
    return counts.repeated, counts.is_odd or tells_apart(frame, schema, counts)


def _nameless(part: str) -> Sentence:
    never = (
        " If it was never logged, Python can estimate it: propensity=cp.models.Propensity(…), from context and action."
    )
    more = never if part == "propensity" else ""
    return Sentence([f"no column looks like the {part}. Name it with ", Argument(part, Blank("COLUMN")), f".{more}"])


def _overlap(log: Log, targets: Sequence[str], usable: Sequence[str]) -> list[Overlap]:
    """The overlap of every usable target that has a good row."""
    overlaps = []
    for target in usable:
        value = _model_value(log.model_value, targets, target)
        own = log.but(model_value=value, model_reward=None if value is None else log.model_reward)
        with suppress(LogError):  # every row is bad, which the other findings explain
            result = evaluate(own, target=target, estimator="beta_ips")
            overlaps.append(Overlap(target, result.diagnostics(), result.verdict()))
    return overlaps


def _model_value(value: Any, targets: Sequence[str], target: str) -> Any:
    """The column with a reward model's value of one target: of a mapping, of a list in the targets' order, or the only one."""
    if isinstance(value, Mapping):
        return value.get(target)
    if isinstance(value, list | tuple):
        return value[targets.index(target)] if len(value) == len(targets) else None
    return value


def _doubts(overlap: Overlap) -> list[Finding]:
    severity: Severity = "fix" if overlap.verdict.verdict == "not identified" else "look"
    # those of its own codes the doctor finds itself
    reasons = [caveat.reason for caveat in overlap.verdict.caveats if caveat.code not in OWN]
    return [Finding(severity, overlap.target, Sentence([f"{overlap.target}: ", reason])) for reason in reasons]
