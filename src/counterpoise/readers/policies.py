"""Runs Python policies: a record batch goes in, and the target's probabilities of the logged actions come out."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.errors import LogError, OptionError
from counterpoise.log.action_groups import ActionGroup
from counterpoise.log.expressions import columns
from counterpoise.log.question import Question
from counterpoise.moments import Floats


def add_policies(frame: pl.DataFrame, question: Question, batch: str) -> pl.DataFrame:
    """The batch with a column for every policy; `batch` is what an error calls it."""
    known = frame.get_column(
        str(question.log.action)
    ).is_not_null()  # without an action a row is bad, and no policy's concern
    shown = frame if known.all() else frame.filter(known)
    columns = []
    for target in question.policies:
        values = np.full(frame.height, np.nan)
        if shown.height:
            values[known.to_numpy()] = probabilities(target.source, shown, question, target.name, batch)
        columns.append(pl.Series(target.column, values).fill_nan(None))
    return frame.with_columns(columns)


def probabilities(policy: Any, frame: pl.DataFrame, question: Question, name: str, batch: str) -> Floats:
    """A policy's probabilities of the logged actions of one batch, checked."""
    if isinstance(policy, ActionGroup):
        found = _of_groups(policy, frame, question)
    elif hasattr(policy, "predict_proba"):
        found = _of_classifier(policy, frame, question)
    else:
        found = _of_callable(policy, frame, question)
    try:
        values = np.asarray(found, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise LogError(f"policy {name!r} must return numbers; for {batch} it returned {found!r}: {error}.") from error
    if values.shape != (frame.height,):
        raise LogError(
            f"policy {name!r} must return one probability per row: for {batch} of {frame.height:,} rows it returned an "
            f"array of shape {values.shape}."
        )
    bad = np.flatnonzero(~((values >= 0) & (values <= 1)))
    if len(bad):
        raise LogError(
            f"policy {name!r} must return probabilities in [0, 1]: for {batch} {len(bad):,} of {frame.height:,} are not; the "
            f"first is row {bad[0]:,} of the batch with {values[bad[0]]}. Mend the policy."
        )
    return values


def _of_callable(policy: Any, frame: pl.DataFrame, question: Question) -> Any:
    """The probabilities from a callable, which sees an Arrow record batch with its context and the logged action."""
    names = list(dict.fromkeys([*question.log.context, str(question.log.action)]))
    try:
        table = frame.select(columns(names)).rechunk().to_arrow()
    except ImportError as error:
        raise OptionError(
            "a policy that is a function is given Arrow record batches, for which pyarrow is missing: pip install pyarrow. "
            "One with a method predict_proba does without."
        ) from error
    return policy(table.combine_chunks().to_batches()[0])


def _of_classifier(policy: Any, frame: pl.DataFrame, question: Question) -> Floats:
    """The probability of the logged action among the classes; the classifier never takes an action that it does not know."""
    table = _table(policy, frame, question)
    actions = frame.get_column(str(question.log.action)).to_numpy()
    classes = np.asarray(policy.classes_) if hasattr(policy, "classes_") else _numbered(table, actions)
    if np.shape(table) != (frame.height, len(classes)):
        raise OptionError(
            f"predict_proba must give one column per class ({len(classes)}), found shape {np.shape(table)}."
        )
    column = _places(actions, classes)
    chosen = np.asarray(table, dtype=np.float64)[np.arange(frame.height), column]
    return np.where(classes[column] == actions, chosen, 0.0)


def _table(policy: Any, frame: pl.DataFrame, question: Question) -> Any:
    """What a classifier predicts for the context of every row."""
    known = getattr(policy, "context_", ())
    if known:
        check_context(known, question.log.context)
    context = frame.select(columns(question.log.context))
    # a classifier fitted on a frame wants names, one fitted on an array warns of them
    return policy.predict_proba(_named(context) if hasattr(policy, "feature_names_in_") else context.to_numpy())


def _places(actions: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    """Where each action stands among the classes; for one that does not, the place of a neighbor."""
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
    known = np.asarray(list(groups) if isinstance(groups, Mapping) else range(len(groups)))
    labels = list(groups.values()) if isinstance(groups, Mapping) else list(groups)
    number = {label: k for k, label in enumerate(dict.fromkeys(labels))}
    group = np.array([number[label] for label in labels])
    actions = frame.get_column(str(question.log.action)).to_numpy()
    place = _places(actions, known)
    other = actions[known[place] != actions]
    if len(other):
        raise OptionError(f"groups has no group for the logged action {other[0]!r}: map every action to its group.")
    logging = _lists(frame, policy.propensity, len(known))
    if isinstance(policy.target, str):
        target = _lists(frame, policy.target, len(known))
    else:
        table = np.asarray(_table(policy.target, frame, question), dtype=np.float64)
        classes = np.asarray(getattr(policy.target, "classes_", known))
        target = np.zeros((frame.height, len(known)))
        at = _places(classes, known)
        target[:, at[known[at] == classes]] = table[:, known[at] == classes]
    same = group == group[place][:, None]  # the actions of the logged one's group
    row = np.arange(frame.height)
    of_group = (logging * same).sum(axis=1)
    share = np.divide(logging[row, place], of_group, out=np.zeros(frame.height), where=of_group > 0)
    chosen: Floats = np.minimum((target * same).sum(axis=1) * share, 1.0)  # sums of rounded numbers may exceed 1
    return chosen


def _lists(frame: pl.DataFrame, column: str, actions: int) -> Floats:
    """A column of lists, one number for each action, as a table."""
    lists = frame.get_column(column)
    if not isinstance(lists.dtype, pl.List | pl.Array):
        raise OptionError(
            f"column {column!r} should hold a list of the probabilities of all actions; it holds {lists.dtype}."
        )
    numbers = lists.cast(pl.List(pl.Float64))
    lengths = numbers.list.len().fill_null(0)
    if (lengths != actions).any():
        found = lengths.filter(lengths != actions)[0]
        raise LogError(
            f"column {column!r} should list the probabilities of {actions} actions in every row; one row lists {found}."
        )
    table: Floats = numbers.explode().to_numpy().reshape(-1, actions)
    return table


def _numbered(table: Any, actions: NDArray[Any]) -> NDArray[np.int64]:
    """The actions of a policy that does not name them: the columns of its table, numbered from 0."""
    count = np.shape(table)[1] if np.ndim(table) == 2 else 0
    other = actions[~np.isin(actions, np.arange(count))]
    if count and len(other):
        raise OptionError(
            f"the policy has no classes_, so that the {count} columns of its predict_proba are the actions 0 to {count - 1}; the "
            f"log has the action {other[0]!r}. Give the policy classes_, the actions in the order of its columns."
        )
    return np.arange(count)


def check_context(known: Sequence[str], found: Sequence[str]) -> None:
    """Check that a policy gets the columns it was learned from, in their order: it sees an array, in which any number fits anywhere."""
    if tuple(found) != tuple(known):
        advice = (
            "Pass them in that order" if sorted(found) == sorted(known) else "Pass those, or rename the log's columns"
        )
        raise OptionError(
            f"the policy was learned from the columns {', '.join(map(repr, known))}; context names "
            f"{', '.join(map(repr, found))}. {advice}."
        )


def _named(context: pl.DataFrame) -> Any:
    """A frame whose names scikit-learn can read: before 1.9 that means pandas, because polars has dropped the protocol it asks for."""
    sklearn = sys.modules.get("sklearn")
    if sklearn is None or tuple(map(int, sklearn.__version__.split(".")[:2])) >= (1, 9):
        return context
    try:
        pandas: Any = import_module("pandas")
    except ImportError:  # the classifier was fitted elsewhere; it answers, and warns
        return context
    return pandas.DataFrame({column.name: column.to_numpy() for column in context})
