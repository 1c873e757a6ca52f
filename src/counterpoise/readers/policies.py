"""Runs Python policies: a record batch goes in, and the target's probabilities of the logged actions come out."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.errors import ColumnError, LogError, OptionError, verbatim
from counterpoise.log.expressions import columns, of_64_bits
from counterpoise.log.kinds import LISTS
from counterpoise.log.question import Question
from counterpoise.log.sequences import check_same_context, rows_by_list
from counterpoise.log.targets import ActionGroup, CrossFitted, Probabilities, Ranker, is_ranker
from counterpoise.moments import Floats
from counterpoise.moments.moments import Reals

ROUNDED = 0.05  # above 1 may be the sum of probabilities that were rounded


def complete(frame: pl.DataFrame, question: Question, batch: str, first_row: int = 0) -> pl.DataFrame:
    """The batch with every column that only Python can make: propensities, those of the policies, and those of a reward model.

    `batch` is what an error calls it, and `first_row` the number of its first row, where rows are numbered.
    """
    frame = of_64_bits(frame, question)
    if question.propensity_model is not None:
        frame = question.propensity_model.complete(frame, question, batch, first_row)
    if question.model is not None:
        completed: pl.DataFrame = question.model.complete(frame, question, batch, first_row)
        return completed
    return add_policies(frame, question, batch, first_row) if question.policies else frame


def add_policies(frame: pl.DataFrame, question: Question, batch: str, first_row: int = 0) -> pl.DataFrame:
    """The batch with a column for every policy; `batch` is what an error calls it."""
    # a row without an action is bad, so no policy needs to see it
    has_action = frame.get_column(str(question.log.action)).is_not_null()
    shown = frame if has_action.all() else frame.filter(has_action)
    columns = []
    for target in question.policies:
        values = np.full(frame.height, np.nan)
        if isinstance(target.source, CrossFitted):
            values = target.source.step.greedy(frame, question, batch, first_row)
        elif shown.height:
            values[has_action.to_numpy()] = probabilities(target.source, shown, question, target.name, batch)
        columns.append(pl.Series(target.column, values).fill_nan(None))
    return frame.with_columns(columns)


def probabilities(policy: object, frame: pl.DataFrame, question: Question, name: str, batch: str) -> Floats:
    """A policy's probabilities of the logged actions of one batch, checked."""
    values: object
    if isinstance(policy, ActionGroup):
        values = _of_groups(policy, frame, question)
    elif is_ranker(policy):
        values = _of_ranker(policy, frame, question)
    elif hasattr(policy, "propensity") and callable(policy.propensity):  # without computing those of all other actions
        actions = frame.get_column(str(question.log.action)).to_numpy()
        values = policy.propensity(_context(policy, frame, question), actions, **_candidates(policy, frame, question))
    elif callable(policy) and not has_table(policy):  # it sees an Arrow record batch
        names = list(dict.fromkeys([*question.log.context, str(question.log.action)]))
        try:
            table = frame.select(columns(names)).rechunk().to_arrow()
        except ImportError as error:
            raise OptionError(
                "a policy that is a function is given Arrow record batches, for which pyarrow is missing: pip install pyarrow. "
                "One with a method predict_proba does without."
            ) from error
        values = policy(table.combine_chunks().to_batches()[0])
    else:
        values = logged_probabilities(
            table_of(policy, frame, question), frame.get_column(str(question.log.action)).to_numpy()
        )
    return check_probabilities(values, frame, name, batch, may_be_nan=is_ranker(policy))


def check_probabilities(
    returned: object, frame: pl.DataFrame, name: str, batch: str, *, may_be_nan: bool = False
) -> Floats:
    """What a policy returned for the logged actions of one batch: one probability per row, or an error."""
    try:
        values = np.asarray(returned, dtype=np.float64)
    except (TypeError, ValueError) as error:
        message = f"policy {name!r} must return numbers; for {batch} it returned {returned!r}: {verbatim(error)}."
        raise LogError(message) from error
    if values.shape != (frame.height,):
        raise LogError(
            f"policy {name!r} must return one probability per row: for {batch} of {frame.height:,} rows it returned an "
            f"array of shape {values.shape}."
        )
    bad = np.flatnonzero(~((values >= 0) & (values <= 1) | (np.isnan(values) & may_be_nan)))
    if len(bad):
        raise LogError(
            f"policy {name!r} must return probabilities in [0, 1]: for {batch} {len(bad):,} of {frame.height:,} are not; the "
            f"first is row {bad[0]:,} of the batch with {values[bad[0]]}. Fix the policy."
        )
    return values


def _of_ranker(policy: Ranker, frame: pl.DataFrame, question: Question) -> Floats:
    """The probabilities of the rows of lists, of the kind that the log's propensities are; nan for rows without a place in a list."""
    lists = question.sequences
    if lists is None:
        raise OptionError("this policy ranks items, and this log has no rankings.", do=LISTS.told_by)
    probability = np.full(frame.height, np.nan)
    rank = frame.get_column(lists.place).cast(pl.Float64, strict=False) - lists.first
    is_placed = frame.get_column(lists.id).is_not_null() & rank.is_between(0, lists.depth - 1) & (rank % 1 == 0)
    kept = np.flatnonzero(is_placed.fill_null(False).to_numpy())
    if not len(kept):
        return probability
    shown = frame[kept]
    number = shown.get_column(lists.id).rank("dense").cast(pl.Int64).to_numpy() - 1
    rows = rows_by_list(number, rank.gather(kept).cast(pl.Int64).to_numpy())
    rows = rows[rows[:, 0] >= 0]  # a list without a top row is bad, so no policy needs to see it
    check_context(getattr(policy, "context_", ()) or question.log.context, question.log.context)
    context = shown.select(columns(question.log.context)).to_numpy()
    check_same_context(context, rows)
    items = shown.get_column(str(question.log.action)).to_numpy()
    listed = policy.list_probabilities(context[rows[:, 0]], np.where(rows >= 0, items[rows], -1), lists.propensity_of)
    probability[kept[rows[rows >= 0]]] = np.asarray(listed)[rows >= 0]
    return probability


@dataclass(frozen=True)
class ActionTable:
    """A policy's probabilities of all its actions (rows × actions), and which actions those are."""

    actions: NDArray[np.generic]
    probabilities: Reals


def has_table(policy: object) -> bool:
    """Whether a policy gives its probabilities of all actions, and not of the logged one alone."""
    return isinstance(policy, Probabilities) or hasattr(policy, "predict_proba")


def table_of(policy: Any, frame: pl.DataFrame, question: Question) -> ActionTable:
    """The probabilities of all actions, for the rows of a frame."""
    if isinstance(policy, Probabilities):
        lists = _lists(frame, policy.column)
        width, items = lists.shape[1], question.log.items
        ids = np.arange(width) if items is None else item_ids(items, str(question.log.action)).to_numpy()
        if len(ids) != width:
            raise ColumnError(
                f"column {policy.column!r} has lists of {width:,} probabilities, and the items are {len(ids):,}: give one for each item."
            )
        return _check_sums(ActionTable(ids, lists), f"the lists of probabilities in {policy.column!r}")
    table = policy.predict_proba(_context(policy, frame, question), **_candidates(policy, frame, question))
    if hasattr(policy, "classes_"):
        classes = np.asarray(policy.classes_)
    else:  # its columns are the actions, numbered from 0
        actions = frame.get_column(str(question.log.action)).to_numpy()
        count = np.shape(table)[1] if np.ndim(table) == 2 else 0
        classes = np.arange(count)
        other = actions[~np.isin(actions, classes)]
        if count and len(other):
            raise OptionError(
                f"the policy has no classes_, so that the {count} columns of its predict_proba are the actions 0 to {count - 1}; the "
                f"log has the action {other[0]!r}. Give the policy classes_, the actions in the order of its columns."
            )
    if np.shape(table) != (frame.height, len(classes)):
        raise OptionError(
            f"predict_proba must give one column per class ({len(classes)}), found shape {np.shape(table)}."
        )
    return _check_sums(ActionTable(classes, np.asarray(table)), "the probabilities of predict_proba")


def _check_sums(table: ActionTable, what: str) -> ActionTable:
    """The table, unless a row adds up to clearly more than 1; less than 1 leaves room for actions it does not list."""
    sums = table.probabilities.sum(axis=1)
    bad = np.flatnonzero(sums > 1.0 + ROUNDED)
    if len(bad):
        do = "add" if len(bad) > 1 else "adds"
        raise LogError(
            f"{what} must add up to at most 1 in every row: {len(bad):,} of {len(sums):,} rows {do} up to more; the "
            f"first is row {bad[0]:,} with {sums[bad[0]]:.4g}. Divide them by their sum, or fix the policy."
        )
    return table


def read_by(policy: object, question: Question) -> list[str]:
    """The columns that `table_of` lets a policy see: rows with the same values are the same question to it."""
    candidates = question.log.candidates if hasattr(policy, "candidates_") else None
    return list(dict.fromkeys([*question.log.context, *([] if candidates is None else [candidates])]))


def _context(policy: object, frame: pl.DataFrame, question: Question) -> object:
    """The contexts of the rows as a policy takes them: a frame if it knows what to make of one, else an array."""
    check_context(getattr(policy, "context_", ()) or question.log.context, question.log.context)
    context = frame.select(columns(question.log.context))
    if getattr(policy, "encoding_", None) is not None:
        return context  # it knows what to make of every column
    if not hasattr(policy, "feature_names_in_"):  # a classifier fitted on an array warns of names
        times = [column for column in context.columns if context.schema[column].is_temporal()]
        if times and len(context.columns) > 1:
            raise ColumnError(
                f"the policy takes contexts as an array, in which the times of {times[0]!r} cannot be next to other columns.",
                do="Make them numbers, with an expression in `context=`.",
            )
        return context.to_numpy()
    # one fitted on a frame wants names that scikit-learn can read: before 1.9 that means pandas, because polars has dropped the protocol
    # that it asks for
    sklearn = sys.modules.get("sklearn")
    if sklearn is None or tuple(map(int, sklearn.__version__.split(".")[:2])) >= (1, 9):
        return context
    try:
        pandas = import_module("pandas")
    except ImportError:  # the classifier was fitted elsewhere; it answers, and warns
        return context
    return pandas.DataFrame({column.name: column.to_numpy() for column in context})


def _candidates(policy: object, frame: pl.DataFrame, question: Question) -> dict[str, pl.Series]:
    """The candidates of the rows, for a policy that chooses among them."""
    if not hasattr(policy, "candidates_"):
        return {}
    column = question.log.candidates
    if column is None and policy.candidates_ is not None:
        raise OptionError(
            f"the policy was learned to choose among candidates, those in the column {policy.candidates_!r}.",
            do="Name theirs with `candidates=`.",
        )
    return {} if column is None else {"candidates": frame.get_column(column)}


def _lists(frame: pl.DataFrame, column: str) -> Floats:
    """A column of lists of one length, one number for each action, as a table."""
    lists = frame.get_column(column)
    if not isinstance(lists.dtype, pl.List | pl.Array):
        raise ColumnError(f"column {column!r} must hold lists of probabilities, but holds {lists.dtype}.")
    widths = lists.arr.len() if isinstance(lists.dtype, pl.Array) else lists.list.len()
    width = widths.max()
    if not isinstance(width, int) or lists.null_count() or widths.min() != width:
        raise ColumnError(
            f"column {column!r} must hold one probability for every action, but its lists are of different lengths."
        )
    table: Floats = lists.explode().cast(pl.Float64).to_numpy().reshape(frame.height, width)
    return table


def frame_of(items: Any) -> pl.DataFrame:
    """The items as a frame, whatever kind of frame they come in."""
    if isinstance(items, pl.DataFrame):
        return items
    try:
        frame: pl.DataFrame = nw.from_native(items).lazy().collect("polars").to_native()
    except TypeError as error:
        raise OptionError(f"`items=` must be a frame with one row per action, found {type(items).__name__}.") from error
    return frame


def item_ids(items: object, action: str) -> pl.Series:
    """The ids of the items: their column with the name of the log's action, or else their first."""
    frame = frame_of(items)
    return frame.get_column(action if action in frame.columns else frame.columns[0])


def logged_probabilities(
    table: ActionTable, actions: NDArray[np.generic], rows: NDArray[np.int64] | None = None
) -> Floats:
    """The probability of the logged action among all; a policy never takes an action that it does not know.

    `rows` says which row of the table each action belongs to, if they do not go one by one.
    """
    column = _places(actions, table.actions)
    row = np.arange(len(actions)) if rows is None else rows
    probability = np.asarray(table.probabilities[row, column], dtype=np.float64)
    return np.where(table.actions[column] == actions, probability, 0.0)


def _places(actions: NDArray[np.generic], classes: NDArray[np.generic]) -> NDArray[np.int64]:
    """Where each action stands among the classes; for an unknown one, the place of a neighbor."""
    order = np.argsort(classes)
    try:
        place = np.minimum(np.searchsorted(classes[order], actions), len(classes) - 1)
    except TypeError as error:
        raise OptionError(
            f"the policy's actions are such as {classes[0]!r}, the logged ones such as {actions[0]!r}: give both the same type."
        ) from error
    return order[place]


def _of_groups(policy: ActionGroup, frame: pl.DataFrame, question: Question) -> Floats:
    """The target's probability of the logged action's group, times that of the action in its group under the logging policy."""
    groups = policy.groups or ()
    ids = np.asarray(list(groups) if isinstance(groups, Mapping) else range(len(groups)))
    labels = list(groups.values()) if isinstance(groups, Mapping) else list(groups)
    number = {label: k for k, label in enumerate(dict.fromkeys(labels))}
    group = np.array([number[label] for label in labels])
    actions = frame.get_column(str(question.log.action)).to_numpy()
    place = _places(actions, ids)
    other = actions[ids[place] != actions]
    if len(other):
        raise OptionError(f"groups has no group for the logged action {other[0]!r}: map every action to its group.")
    logging = _of_all(frame, policy.propensity, len(ids))
    if isinstance(policy.target, str):
        target = _of_all(frame, policy.target, len(ids))
    else:
        table = table_of(policy.target, frame, question)
        classes = table.actions if hasattr(policy.target, "classes_") else ids
        target = np.zeros((frame.height, len(ids)))
        at = _places(classes, ids)
        target[:, at[ids[at] == classes]] = table.probabilities[:, ids[at] == classes]
    same = group == group[place][:, None]  # the actions of the logged one's group
    row = np.arange(frame.height)
    of_group = (logging * same).sum(axis=1)
    share = np.divide(logging[row, place], of_group, out=np.zeros(frame.height), where=of_group > 0)
    probability: Floats = np.minimum((target * same).sum(axis=1) * share, 1.0)  # sums of rounded numbers may exceed 1
    return probability


def _of_all(frame: pl.DataFrame, column: str, actions: int) -> Floats:
    """A column of lists with one number for each of so many actions."""
    table = _lists(frame, column)
    if table.shape[1] != actions:
        raise LogError(
            f"column {column!r} should list the probabilities of {actions} actions in every row; one row lists {table.shape[1]}."
        )
    return table


def check_context(learned_from: Sequence[str], columns: Sequence[str]) -> None:
    """Check that a policy gets the columns it was learned from, in their order: it sees an array, in which any number fits anywhere."""
    if tuple(columns) != tuple(learned_from):
        advice = (
            "Pass them in that order"
            if sorted(columns) == sorted(learned_from)
            else "Pass those, or rename the log's columns"
        )
        raise OptionError(
            f"the policy was learned from the columns {', '.join(map(repr, learned_from))}; context names "
            f"{', '.join(map(repr, columns))}. {advice}."
        )
