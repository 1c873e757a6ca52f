"""`cp.read`: logs that other tools wrote, each as a `Log` that every verb takes."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any, Unpack

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from counterpoise.errors import ColumnError, LogError, OptionError
from counterpoise.log.log import Log
from counterpoise.log.parts import FrameLike, LogFields, Paths
from counterpoise.readers import files, formats

__all__ = ["eppo", "growthbook", "obp", "open_bandit", "router", "to_obp", "vowpal_wabbit"]

BanditFeedback = Mapping[str, Any]


def vowpal_wabbit(paths: Paths, **parts: Unpack[LogFields]) -> Log:
    """Vowpal Wabbit's decision-service JSON (``.dsjson``, also compressed), as the Personalizer and the decision service wrote it.

    A row is a decision: `reward` is minus ``_label_cost``, `propensity` is ``_label_probability``, `action` the number of the chosen
    action in ``_multi`` (from 1), `candidates` and `probabilities` are ``a`` and ``p``. Flat features of the context are the columns
    ``context_…``, and those of the chosen action ``action_…``. `keep` is 1 − ``pdrop``. Records with ``_outcomes`` (CCB and slates) have
    a row for every position, with `slate` and `position`. Records that are no decision, or marked with ``_skipLearn``, are left out,
    and a warning says how many of each. Lines that cannot be read are refused, or counted with `drop_bad_rows`.

    The lines are read once, in batches, into Parquet files that are removed when the process ends. `parts` add to the log's own, or
    replace them.
    """
    return _of_files(paths, "vowpal-wabbit", parts)


def router(paths: Paths, **parts: Unpack[LogFields]) -> Log:
    """A router's JSON lines: which models it could have asked, with which probabilities, and the outcome of the one it chose.

    ``{"candidates": ["small", "large"], "probabilities": [0.7, 0.3], "chosen": "large", "quality": 0.9, "cost": 0.02, "latency": 1.4}``

    The reward is `quality` unless you say otherwise: ``reward="quality - 5 * cost"``. Whatever else a record has is a column, if it is
    a number, a truth value, text, or an object of these.
    """
    return _of_files(paths, "router", parts)


def open_bandit(folder: Paths, **parts: Unpack[LogFields]) -> Log:
    """A campaign of the Open Bandit Dataset: the folder with its log, such as ``random/all``, and ``item_context.csv`` beside it."""
    return _of_files(folder, "open-bandit", parts)


def eppo(events: FrameLike | Paths, outcomes: FrameLike | Paths | None = None, **parts: Unpack[LogFields]) -> Log:
    """Eppo's bandit events, as its logger gets them: subject, action, actionProbability, and attributes of both.

    With `outcomes` (subject, a reward and, if subjects come back, a timestamp), every outcome belongs to the subject's last action
    before it, and actions without an outcome have the reward 0.
    """
    return _of_table(events, outcomes, "eppo", parts)


def growthbook(
    exposures: FrameLike | Paths, outcomes: FrameLike | Paths | None = None, **parts: Unpack[LogFields]
) -> Log:
    """The exposures of a GrowthBook bandit: variation_id, variation_weights, a user's id, experiment_id and timestamp.

    The propensity is the weight of the variation. Of a user's exposures to an experiment the first counts: later ones repeat its
    variation. `outcomes` are joined by the user's id, as for `eppo`.
    """
    return _of_table(exposures, outcomes, "growthbook", parts)


def obp(bandit_feedback: BanditFeedback | str | PathLike[str], **parts: Unpack[LogFields]) -> Log:
    """The `bandit_feedback` of the Open Bandit Pipeline: its dict, or a ``.npz`` file with the same arrays.

    With a `model`, ``action_context`` is what it knows about the actions, the log's `items`.

    Examples
    --------
    >>> feedback = {"n_rounds": 2, "n_actions": 2, "action": [0, 1], "reward": [1, 0], "pscore": [0.5, 0.5]}
    >>> log = obp(feedback)
    >>> log.data
    shape: (2, 3)
    ┌────────┬────────┬────────────┐
    │ action ┆ reward ┆ propensity │
    │ ---    ┆ ---    ┆ ---        │
    │ i64    ┆ i64    ┆ f64        │
    ╞════════╪════════╪════════════╡
    │ 0      ┆ 1      ┆ 0.5        │
    │ 1      ┆ 0      ┆ 0.5        │
    └────────┴────────┴────────────┘
    """
    if isinstance(bandit_feedback, str | PathLike):
        feedback: BanditFeedback = formats.load_obp(files.files_of(bandit_feedback)[0])
    elif isinstance(bandit_feedback, Mapping):
        feedback = bandit_feedback
    else:
        raise OptionError(
            f"a bandit feedback is a dict, or the path of a .npz file; found {type(bandit_feedback).__name__}."
        )
    frame = formats.obp_frame(feedback)
    items = formats.obp_items(feedback) if parts.get("model") is not None else None
    own = formats.obp_parts(frame) | ({} if items is None else {"items": items})
    return Log(frame, **_merge(own, parts))


def to_obp(log: Log, *, n_actions: int | None = None, action_context: ArrayLike | None = None) -> dict[str, Any]:
    """The `bandit_feedback` of a log whose actions are numbers from 0, for the Open Bandit Pipeline; `obp` reads it back.

    A log knows nothing about actions that nobody took, unless it has `items`: pass `n_actions` and `action_context` if it has none. Without
    them, the number of actions is that of `pi_b`, or else the largest action plus 1.
    """
    log.need("reward", "propensity", "action")
    frame = _frame(log.data).collect()
    if log.where is not None:
        raise OptionError(
            "`where=` chooses rows of a log, and a bandit feedback has all of them.", do="Filter the rows first."
        )
    names = {"action": log.action, "reward": log.reward[0], "pscore": log.propensity, "position": "position"}
    arrays: dict[str, Any] = {
        key: frame.get_column(name).to_numpy() if isinstance(name, str) and name in frame.columns else None
        for key, name in names.items()
    }
    for key in ("action", "reward", "pscore"):
        if arrays[key] is None:
            raise ColumnError(
                f"the log has no column {names[key]!r}; a bandit feedback has columns, and no expressions of them."
            )
    action = arrays["action"]
    if not np.issubdtype(action.dtype, np.integer) or (action.size and action.min() < 0):
        raise LogError(
            "the actions of a bandit feedback are numbers from 0.", do="Number them, and keep the names beside."
        )
    if action_context is None and log.items is not None:
        items = _frame(log.items).collect()
        action_context = items.select(items.columns[1:]).to_numpy()
    pi_b = frame.get_column("pi_b").to_numpy() if "pi_b" in frame.columns else None
    sizes = [n_actions, None if pi_b is None else pi_b.shape[1]]
    sizes += [] if action_context is None else [len(np.asarray(action_context))]
    context = [name for name in log.context if name in frame.columns]
    return {
        "n_rounds": frame.height,
        "n_actions": next((size for size in sizes if size is not None), int(action.max(initial=-1)) + 1),
        "context": frame.select(context).to_numpy() if context else None,
        "action_context": None if action_context is None else np.asarray(action_context),
        "action": action,
        "position": arrays["position"],
        "reward": arrays["reward"],
        "expected_reward": frame.get_column("expected_reward").to_numpy()
        if "expected_reward" in frame.columns
        else None,
        "pi_b": pi_b,
        "pscore": arrays["pscore"],
    }


# ----------------------------------------------------------------------------------------------------------------------


def _merge(own: Mapping[str, object], parts: Mapping[str, object]) -> Any:
    """A format's own parts, but for those that were given."""
    return {**own, **{name: value for name, value in parts.items() if value is not None}}


def _of_files(paths: Paths, kind: str, parts: Mapping[str, object]) -> Log:
    """The log of some files; a part that this version does not know, `keep`, is refused when it is asked about."""
    annotations = LogFields.__annotations__
    own = {name: value for name, value in formats.opened(paths, kind).parts.items() if name in annotations}
    log = Log(paths, **_merge({**own, "format": kind}, parts))
    formats.check(log)
    return log


def _of_table(
    data: FrameLike | Paths, outcomes: FrameLike | Paths | None, kind: str, parts: Mapping[str, object]
) -> Log:
    """The log of a table of events, and of their outcomes if they are in another one."""
    if outcomes is None and files.is_paths(data):
        return _of_files(data, kind, parts)
    table = formats.TABLES[kind]
    events = table.rows(_frame(data))
    if outcomes is not None:
        reward = str(parts.get("reward") or "reward")
        events = _with_outcomes(events, _frame(outcomes), str(table.parts(events).get("cluster")), reward)
        parts = {**parts, "reward": reward}
    return Log(events, **_merge(table.parts(events), parts))


def _frame(data: Any) -> pl.LazyFrame:
    """A table, lazily."""
    if files.is_paths(data):
        return files.scan(data)
    if isinstance(data, pl.LazyFrame | pl.DataFrame):
        return data.lazy()
    if isinstance(data, Mapping):
        return pl.LazyFrame(dict(data))
    try:
        frame: pl.DataFrame = nw.from_native(data).lazy().collect("polars").to_native()
    except TypeError as error:
        raise OptionError(f"a table is a frame or the path of a file; found {type(data).__name__}.") from error
    return frame.lazy()


def _with_outcomes(events: pl.LazyFrame, outcomes: pl.LazyFrame, who: str, reward: str) -> pl.LazyFrame:
    """Events with the sum of the rewards that belong to each."""
    schema, schema_of_events = outcomes.collect_schema(), events.collect_schema()
    for name in (who, reward):
        if name not in schema:
            raise ColumnError(f"the outcomes have no column {name!r}; they have {', '.join(map(repr, schema))}.")
    if reward in schema_of_events:
        raise ColumnError(f"the events have a column {reward!r} of their own: leave out the outcomes, or rename it.")
    if "timestamp" not in schema or "timestamp" not in schema_of_events:
        repeated = events.select(pl.col(who).is_duplicated().sum()).collect(engine="streaming").item()
        if repeated:
            raise LogError(
                f"{repeated:,} events are of subjects with more than one, and the outcomes have no timestamp to tell which they belong to.",
                do="Add a column 'timestamp' to the outcomes.",
            )
        total = outcomes.group_by(who).agg(pl.col(reward).sum())
        return events.join(total, on=who, how="left", maintain_order="left").with_columns(pl.col(reward).fill_null(0))
    number = "counterpoise event"
    numbered = events.with_row_index(number)
    moments = numbered.select(who, number, timestamp=_time("timestamp", schema_of_events)).sort("timestamp")
    late = outcomes.select(who, reward, timestamp=_time("timestamp", schema)).sort("timestamp")
    joined = late.join_asof(moments, on="timestamp", by=who, strategy="backward", check_sortedness=False)
    total = joined.filter(pl.col(number).is_not_null()).group_by(number).agg(pl.col(reward).sum())
    rows = numbered.join(total, on=number, how="left", maintain_order="left")
    return rows.with_columns(pl.col(reward).fill_null(0)).drop(number)


def _time(name: str, schema: pl.Schema) -> pl.Expr:
    """A point in time, which files may have as text in ISO's form."""
    column = pl.col(name)
    if schema[name] == pl.String:
        column = column.str.to_datetime(time_unit="us", time_zone="UTC", strict=False)
    elif schema[name].is_temporal():
        zone = getattr(schema[name], "time_zone", None)
        column = column.cast(pl.Datetime("us", zone))
        column = column.dt.convert_time_zone("UTC") if zone else column.dt.replace_time_zone("UTC")
    return column
