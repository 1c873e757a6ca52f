"""The only validation of logs: names, types, and the rules that every row must obey."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

import narwhals as nw

from counterpoise.errors import ColumnError, LogError, verbatim
from counterpoise.log.columns import (
    ACTION,
    CANDIDATES,
    GROUP,
    ID,
    IS_CANDIDATE,
    MODELED,
    PROPENSITY,
    ROW_NUMBER,
    context_at,
    is_known_at,
)
from counterpoise.log.good import LARGEST, is_believable, is_number, is_probability, is_propensity
from counterpoise.log.kinds.kind import OR_DROP, Rule
from counterpoise.log.kinds.labeled import UNKNOWN
from counterpoise.log.sequences import FAULT, LENGTH, LIST
from counterpoise.log.targets import CHOSEN, Target, argument_of

if TYPE_CHECKING:
    from narwhals.typing import FrameT, IntoDataFrameT

    from counterpoise.log.question import Learning, Question


@dataclass(frozen=True)
class Problem:
    """How many rows break a rule, which one is the first, and what it contains."""

    rule: Rule
    count: int
    row: int | None  # None where rows have no order
    value: object

    @property
    def said(self) -> str:
        """The problem in words, and what to do, in the markup of messages."""
        rule = self.rule
        if rule.unit != "row":
            lists = f"{self.count:,} {rule.unit}s do" if self.count > 1 else f"1 {rule.unit} does"
            said = f"{rule.part} {rule.column!r} must {rule.expected}: {lists} not; one is {rule.unit} {self.value!r}."
            return f"{said} {rule.advice}"
        shown = "null" if self.value is None else verbatim(self.value)
        called = f"{rule.part} {rule.column!r}" if rule.column else rule.part
        if rule.part == "target" and rule.shows == PROPENSITY:  # what is shown is not what is judged
            shown = f"a propensity of {shown}"
        rows, do = (f"{self.count:,} rows", "do") if self.count > 1 else ("1 row", "does")
        broken = f"in {rows} it is not" if rule.expected.startswith("be ") else f"{rows} {do} not"
        where = f"one has {shown}" if self.row is None else f"the first is row {self.row:,} with {shown}"
        said = f"{called} must {rule.expected}: {broken}; {where}. {rule.advice}"
        is_whole = isinstance(self.value, int | float) and self.value > 1 and self.value % 1 == 0
        return f"{said} {rule.if_whole}." if rule.if_whole and is_whole else said


def check_distinct(names: Sequence[str], *, any_case: bool = False) -> None:
    """Check that no two columns share a name, because engines would silently take the first; some cannot tell A from a."""
    by_key: dict[str, str] = {}
    for name in names:
        key = name.casefold() if any_case else name
        if key in by_key:
            both = repr(name) if by_key[key] == name else f"{by_key[key]!r} and {name!r}"
            raise ColumnError(
                f"every column needs a name of its own, but the log has two called {both}. Rename or drop one of them."
            )
        by_key[key] = name


def check_type(part: str, column: str, dtype: nw.dtypes.DType) -> None:
    """Check that a column holds numbers: booleans and decimals will do; text, dates and nested values will not."""
    if dtype.is_numeric() or dtype in (nw.Boolean, nw.Unknown) or str(dtype) == "Null":
        return
    advice = "Cast it to a number first" if dtype == nw.String else "Pass a column of numbers"
    if part == "target" and dtype in (nw.String, nw.Categorical, nw.Enum):
        advice = f"{_takes(column)}; if it holds probabilities, cast it to a number first"
    if dtype.is_temporal():
        advice = "Dates and times can't be summed: pass a column of numbers"
    raise ColumnError(f"{part} must be a number, but column {column!r} holds {dtype}. {advice}.")


def rules_of(question: Question, targets: Sequence[str] | None = None) -> list[Rule]:
    """The rules that every row (or list) must obey, for all targets or for some of them, by their internal names."""
    if question.makes_rows:
        return made_rules(question, targets)
    log, names, sequences = question.log, question.names, question.sequences
    rules = []
    if question.weight.needs_propensity:
        holds = is_propensity(nw.col(PROPENSITY))
        called, advice = getattr(question.weight, "propensities", (str(log.propensity), _PROPENSITY))
        rules.append(Rule("propensity", called, "lie in (0, 1]", holds, PROPENSITY, advice))
    for name, column in zip(names.rewards, log.reward, strict=True):
        good, advice = is_number(nw.col(name)), _DROP if sequences is not None else f"{_DROP} {UNKNOWN}"
        for kind in question.kinds:
            good, advice = kind.of_reward(good, advice)
        rules.append(Rule("reward", column, FINITE, good, name, advice))
    for name, target in zip(names.targets, question.targets, strict=True):
        rules += _rules_of_target(name, target, question)
    if question.learning is not None:
        rules.append(_believable(nw.lit(1.0), LEARNED))  # it may end up always taking the logged action
    needed = {feature.column for feature in question.features if feature.is_number}
    owner = dict(zip(names.values, names.targets, strict=False))
    for name, (part, column) in question.numbers.items():
        if part in ("model_reward", "model_value", "control") or (part == "baseline" and column in needed):
            rules.append(Rule(part, column, FINITE, is_number(nw.col(name)), name, _DROP, owner.get(name)))
    for number, column in question.own_numbers:
        holds = number.range.holds(nw.col(number.name))
        rules.append(Rule(number.part, column, number.range.expected, holds, number.name, number.advice))
    if log.cluster is not None:
        rules.append(Rule("cluster", log.cluster, "be given", ~nw.col(GROUP).is_null(), GROUP, _DROP))
    rules += sequences.kind.rules_of_rows(sequences) if sequences is not None else []
    rules += [] if question.learning is None else _rules_of_learning(question, question.learning)
    return [rule for rule in rules if targets is None or rule.target is None or rule.target in targets]


def _rules_of_learning(question: Question, learning: Learning) -> list[Rule]:
    """What a row must say about its choice for a policy to learn from it."""
    log, action = question.log, str(question.log.action)
    expected = "be given" if learning.has_names else "be a whole number from 0 on"
    rules = [Rule("action", action, expected, nw.col(ID) >= 0, ACTION, _DROP)]
    for k, column in enumerate(log.context):
        finite = "be finite numbers" if column in learning.vectors else FINITE
        rules.append(Rule("context", column, finite, nw.col(is_known_at(k)), context_at(k), _DROP))
    if log.candidates is not None:
        some = nw.col(CANDIDATES) > 0
        # false only if an action and candidates are present, so that a row is reported once
        is_among = nw.col(IS_CANDIDATE) | ~some | (nw.col(ID) < 0)
        rules += [
            Rule("candidates", log.candidates, "have at least one action", some, CANDIDATES, _DROP),
            Rule("action", action, f"be among the candidates {log.candidates!r}", is_among, ACTION, _DROP),
        ]
    if learning.has_models:
        rules.append(Rule("model_rewards", "", "be finite numbers", is_number(nw.col(MODELED)), MODELED, _DROP))
    return rules


def fault_of(rule: Rule, question: Question) -> str:
    """The column that counts how often the rows of a list break a rule."""
    return f"{FAULT}{[key_of(row_rule) for row_rule in rules_of(question.of_rows)].index(key_of(rule))}"


def made_rules(question: Question, targets: Sequence[str] | None = None) -> list[Rule]:
    """The rules for what is made of several rows: those of its rows, its own, and one cluster and segment."""
    names, sequences = question.names, question.sequences
    if sequences is None:
        return []
    of_rows, kind = rules_of(question.of_rows, targets), sequences.kind
    broken = [nw.col(fault_of(rule, question)) for rule in of_rows]
    rules = [
        replace(rule, holds=count == 0, shows=LIST, unit=kind.unit) for rule, count in zip(of_rows, broken, strict=True)
    ]
    rules += kind.rules(sequences, reduce(add, broken))
    same = [("segment", column, name) for column, name in zip(question.segment, names.segments, strict=True)]
    same += [("cluster", str(question.log.cluster), GROUP)] if question.log.cluster is not None else []
    for part, column, name in same:
        low, high, count = (nw.col(f"{name}_{end}") for end in ("low", "high", "count"))
        holds = (count == 0) | ((count == nw.col(LENGTH)) & (low == high))
        expected = f"be the same on all rows of {kind.one_of_them}"
        rules.append(Rule(part, column, expected, holds, LIST, _SAME.replace("ranking", kind.unit), unit=kind.unit))
    return rules


def _rules_of_target(name: str, target: Target, question: Question) -> list[Rule]:
    t, called = nw.col(name), target.name
    if not question.weight.needs_propensity:
        return [Rule("weight", called, FINITE, is_number(t), name, _DROP, name)]
    return [
        Rule(
            "target",
            called,
            "lie in [0, 1]",
            is_probability(t),
            name,
            _TARGET,
            name,
            if_whole=_takes(target.source) if isinstance(target.source, str) else "",
        ),
        _believable(t, called, name),
    ]


def _takes(column: str) -> str:
    """What to do about a column that has actions where a target's probabilities belong."""
    return f"If {column!r} holds the action that the policy takes, pass {argument_of(CHOSEN, column)}, with `action=`"


def _believable(t: nw.Expr, called: str, name: str | None = None) -> Rule:
    """That a target's weight can be squared; false only where both are fine by themselves, so that one wrong value is reported once."""
    p = nw.col(PROPENSITY)
    holds = ~(is_propensity(p) & is_probability(t) & ~is_believable(t, p)).fill_null(False)
    return Rule("target", called, f"be below {LARGEST:g} times the propensity", holds, PROPENSITY, _DROP, name)


def is_good(question: Question, targets: Sequence[str] | None = None) -> nw.Expr:
    """All rules at once; with several rewards, each has its own good rows, so no reward rules out a row."""
    apart = len(question.log.reward) > 1 and question.sequences is None
    held = [rule.holds for rule in rules_of(question, targets) if not (apart and rule.part == "reward")]
    return nw.all_horizontal(*held, ignore_nulls=False)


def only_known(frame: FrameT, question: Question) -> FrameT:
    """The rows under internal names, without rewards that are not known, whatever stands there."""
    return reduce(lambda rows, kind: kind.only_known(rows, question), question.kinds, frame)


def only_good(frame: FrameT, question: Question) -> FrameT:
    """The rows that break no rule; if there are several rewards, the bad ones are blanked."""
    kept = frame.filter(is_good(question))
    rewards = question.names.rewards
    if len(rewards) == 1 or question.sequences is not None:
        return kept
    return kept.with_columns(*(nw.when(is_number(nw.col(name))).then(nw.col(name)).alias(name) for name in rewards))


def find_problems(frame: nw.DataFrame[IntoDataFrameT], question: Question, first_row: int | None) -> list[Problem]:
    """Which rules are broken, how often, and where first; `first_row` is None where rows have no order."""
    problems = []
    indexed = frame.with_row_index(ROW_NUMBER)
    for rule in rules_of(question):
        bad = indexed.filter(~rule.holds.fill_null(False)).select(ROW_NUMBER, rule.shows)
        if len(bad):
            row, value = bad.row(0)
            problems.append(Problem(rule, len(bad), None if first_row is None else first_row + int(row), value))
    return problems


def key_of(rule: Rule) -> tuple[str, str, str]:
    """What makes two rules the same, wherever their columns are."""
    return rule.part, rule.column, rule.expected


def merge_problems(problems: Sequence[Problem]) -> list[Problem]:
    """The problems of several batches, with those of the same rule added together."""
    merged: dict[tuple[str, str, str], Problem] = {}
    for problem in problems:
        key = key_of(problem.rule)
        known = merged.get(key)
        first = problem if known is None or (problem.row or 0) < (known.row or 0) else known
        count = problem.count + (known.count if known else 0)
        merged[key] = Problem(first.rule, count, first.row, first.value)
    return list(merged.values())


def refuse(problems: Sequence[Problem], rows: int) -> None:
    """Raise an error that says what is wrong with the log."""
    merged = merge_problems(problems)
    raise LogError(f"of {rows:,} {_counted(merged)}: {' Also: '.join(problem.said for problem in merged)}")


def all_bad(problems: Sequence[Problem], rows: int) -> LogError:
    """The error if no rows are left."""
    merged = merge_problems(problems)
    return LogError(
        f"all {rows:,} {_counted(merged)} are invalid. {' Also: '.join(problem.said for problem in merged)}"
    )


def _counted(problems: Sequence[Problem]) -> str:
    return next((f"{problem.rule.unit}s" for problem in problems if problem.rule.unit != "row"), "rows")


FINITE = "be a finite number"
LEARNED = "learned"  # the target name of a policy still to be learned
_DROP = f"Fix the logger{OR_DROP}"
_SAME = f"Is the id of the ranking used again? Make one that is not, such as an expression of both{OR_DROP}"
_PROPENSITY = (
    "It is the probability with which the logging policy chose the logged action, so it cannot be 0 or above 1: "
    f"fix the logger{OR_DROP}"
)
_TARGET = (
    "It is the target policy's probability of the logged action (1 or 0 for a deterministic policy): "
    f"fix the policy{OR_DROP}"
)
