"""Vowpal Wabbit's decision-service JSON: contextual bandits, ranked lists (CCB) and slates, one record a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from counterpoise.readers.json_records import IS_READ, LINE, Fields, Layout, flat, shape_of

_NUMBERS, _PLACES = pl.List(pl.Float64()), pl.List(pl.Int64())
FIELDS: Fields = {
    "_label_cost": pl.Float64(),
    "_label_probability": pl.Float64(),
    "_label_Action": pl.Int64(),
    "_labelIndex": pl.Int64(),
    "a": _PLACES,
    "p": _NUMBERS,
    "_outcomes": pl.List(pl.Struct({"_label_cost": pl.Float64(), "_a": _PLACES, "_p": _NUMBERS})),
    "_skipLearn": pl.Boolean(),
    "_deferred": pl.Boolean(),
    "pdrop": pl.Float64(),
    "Timestamp": pl.String(),
    "EventId": pl.String(),
    "RewardValue": pl.Float64(),
    "DeferredAction": pl.Boolean(),
}
OBSERVED = pl.List(pl.Struct({"v": pl.Float64()}))  # the outcomes that arrived, from which the cost was made

SKIPPED = "marked with _skipLearn"
DEFERRED = "deferred and never activated"
DANGLING = "rewards without their decision"
ACTIVATION = "activations without their decision"
OTHER = "without a decision"


def _beside(records: Sequence[Mapping[str, object]]) -> Fields:
    """The features of the context and of the actions, as far as they are flat."""
    contexts = [context for record in records if isinstance(context := record.get("c"), dict)]
    shared = [
        {name: value for name, value in context.items() if name not in ("_multi", "_slots")} for context in contexts
    ]
    lists = [context["_multi"] for context in contexts if isinstance(context.get("_multi"), list)]
    fields, actions = shape_of(shared), shape_of([action for actions in lists for action in actions])
    inside = {part.name: part.dtype for part in fields.fields} if isinstance(fields, pl.Struct) else {}
    if isinstance(actions, pl.Struct):
        inside["_multi"] = pl.List(actions)
    beside: Fields = {"o": OBSERVED}
    if inside:
        beside["c"] = pl.Struct(inside)
    return beside


def _rows(frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
    """A row for every decision, or for every position of a list, and why other records have none."""
    reasons = frame.select(_reason()).to_series()
    decisions = frame.filter(reasons.is_null())
    return decisions.select(**_columns(frame.schema)).pipe(_by_position), reasons


def _reason() -> pl.Expr:
    """Why a record makes no row; null if it makes one, as a line that cannot be read does."""
    has_list = pl.col("_outcomes").list.len().fill_null(0) > 0
    has_action = pl.any_horizontal(pl.col("a", "_label_Action", "_labelIndex", "_label_cost").is_not_null())
    is_decision = (has_list | has_action) & pl.col("RewardValue").is_null()
    return (
        pl.when(~pl.col(IS_READ))
        .then(None)
        .when(is_decision & pl.col("_skipLearn").fill_null(False))
        .then(pl.lit(SKIPPED))
        .when(is_decision & pl.col("_deferred").fill_null(False))
        .then(pl.lit(DEFERRED))
        .when(is_decision)
        .then(None)
        .when(pl.col("RewardValue").is_not_null())
        .then(pl.lit(DANGLING))
        .when(pl.col("DeferredAction").is_not_null())
        .then(pl.lit(ACTIVATION))
        .otherwise(pl.lit(OTHER))
        .cast(pl.String)
    )


def _columns(schema: Mapping[str, pl.DataType]) -> dict[str, pl.Expr]:
    """What a row of a single decision has; a list's rows take their action, propensity and reward from their position."""
    place = pl.coalesce(pl.col("_label_Action"), pl.col("_labelIndex") + 1, pl.col("a").list.first())
    logged = pl.coalesce(pl.col("_label_probability"), pl.col("p").list.first())
    own = {
        "outcomes": pl.col("_outcomes"),
        "reward": _reward(pl.col("_label_cost")),
        "propensity": logged,
        "action": place,
        "candidates": pl.col("a"),
        "probabilities": pl.col("p"),
        "n_candidates": pl.col("a").list.len().cast(pl.Int64),
        "keep": 1.0 - pl.col("pdrop").fill_null(0.0),
        "timestamp": pl.col("Timestamp").str.to_datetime("%Y-%m-%dT%H:%M:%S%.fZ", time_unit="us", strict=False),
        "event_id": pl.col("EventId"),
        "n_outcomes": pl.col("o").list.len().fill_null(0).cast(pl.Int64),
        "line": pl.col(LINE),
    }
    context = schema.get("c")
    fields = {part.name: part.dtype for part in context.fields} if isinstance(context, pl.Struct) else {}
    shared = pl.Struct({name: dtype for name, dtype in fields.items() if name != "_multi"})
    own |= flat(pl.col("c"), shared, "context") if shared.fields else {}
    if isinstance(actions := fields.get("_multi"), pl.List):
        chosen = pl.col("c").struct.field("_multi").list.get(place - 1, null_on_oob=True)
        own |= flat(chosen, actions.inner, "action")
    return own


def _reward(cost: pl.Expr) -> pl.Expr:
    """A cost as a reward, whose zero has no sign."""
    return pl.when(cost != 0).then(-cost).otherwise(cost)


def _by_position(decisions: pl.DataFrame) -> pl.DataFrame:
    """Lists spread over one row per position: actions counted from 1, and the reward of a whole list on its first row."""
    lists = pl.col("outcomes")
    numbered = decisions.with_columns(
        slate=pl.coalesce(pl.col("event_id"), pl.format("line {}", "line")),
        position=pl.lit(1, pl.Int64),
        outcomes=pl.when(lists.list.len() > 0).then(lists),
    ).with_columns(is_list=lists.is_not_null())
    if not numbered.get_column("is_list").any():
        return numbered.drop("outcomes")
    rows = numbered.explode("outcomes")
    outcome, is_listed = lists.struct, pl.col("is_list")
    place = pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over("line")
    cost = outcome.field("_label_cost")
    whole = pl.when(place == 1).then(pl.col("reward")).otherwise(0.0)
    candidates = outcome.field("_a").list.eval(pl.element() + 1)
    spread = {
        "reward": pl.when(cost.is_null().all().over("line")).then(whole).otherwise(_reward(cost)),
        "propensity": outcome.field("_p").list.first(),
        "action": candidates.list.first(),
        "candidates": candidates,
        "probabilities": outcome.field("_p"),
        "n_candidates": candidates.list.len().cast(pl.Int64),
    }
    made = {name: pl.when(is_listed).then(value).otherwise(pl.col(name)) for name, value in spread.items()}
    return rows.with_columns(**made, position=place).drop("outcomes")


LAYOUT = Layout(FIELDS, _beside, _rows)
