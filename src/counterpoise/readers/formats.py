"""Logs as other tools write them: how each becomes rows, and which of its columns play which part."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from counterpoise.errors import ColumnError, LogError, OptionError, RecordWarning, did_you_mean, first_line
from counterpoise.log.kinds import LISTS
from counterpoise.log.log import Log
from counterpoise.log.parts import CONDITIONAL, PARTS, Paths, ids_among
from counterpoise.readers import files
from counterpoise.readers.json_records import (
    BARE,
    IS_READ,
    LINE,
    MALFORMED,
    Fields,
    Layout,
    Records,
    Tally,
    convert,
    flat,
    shape_of,
)


@dataclass(frozen=True)
class ForeignRows:
    """The rows of a log that another tool wrote, the parts that its columns play, and the lines that could not be read."""

    frame: pl.LazyFrame
    parts: Mapping[str, object]
    malformed: Tally | None = None
    lines: int = 0


def is_foreign(log: Log) -> bool:
    """Whether another tool wrote the files of a log."""
    return files.is_paths(log.data) and format_of(log.data, log.format) is not None


def format_of(data: Paths, name: str | None) -> str | None:
    """The format that was named, or that the first file's ending says; None for files that we read as they are."""
    if name is not None:
        normal = name.lower().replace("_", "-")
        if normal not in FORMATS:
            names = ", ".join(FORMATS)
            raise OptionError(
                f"`format={name!r}` is not one of {names}.", suggestion=did_you_mean(normal, FORMATS),
                do="Leave it out for files with columns of their own: Parquet, CSV, Arrow, JSON lines.",
            )  # fmt: skip
        return normal
    first = str(data if not isinstance(data, list | tuple) else data[0]).lower()
    return next((kind for kind, format in FORMATS.items() if first.endswith(format.endings)), None)


def opened(data: Paths, name: str | None = None) -> ForeignRows:
    """The files of another tool, opened once as long as they do not change."""
    kind = format_of(data, name)
    if kind is None:
        raise OptionError("these files are read as they are: leave out `format=`.")
    paths = FORMATS[kind].choose(files.files_of(data))
    return _read_files(kind, tuple(paths), tuple(map(files.stamp_of, paths)))


@lru_cache(maxsize=64)  # logs of a day each, say, that are looked at more than once
def _read_files(kind: str, paths: tuple[Path, ...], stamps: tuple[object, ...]) -> ForeignRows:
    try:
        return FORMATS[kind].open(paths)
    except files.UNREADABLE as error:
        raise LogError(f"cannot read {files.path_text(paths[0])!r} as {kind}: {first_line(error)}.") from error


def check(log: Log) -> None:
    """Refuse what would otherwise be ignored: lines that cannot be read, lists that nobody named, rows that were dropped on purpose."""
    if not is_foreign(log):
        return
    rows = opened(log.data, log.format)
    bad = rows.malformed
    if bad is not None and not log.drop_bad_rows:
        raise LogError(
            f"{bad.lines:,} of {rows.lines:,} lines cannot be read; the first is {bad.first}: {bad.why}.",
            do="Fix the logger, or drop such lines with `drop_bad_rows=True`.",
        )
    if LISTS.id_part in rows.parts and not LISTS.is_of(log):
        raise LogError(LISTS.unnamed.why, do=LISTS.unnamed.do)
    if "keep" in rows.parts and getattr(log, "keep", None) is None:
        do = "Pass `keep='keep'`." if "keep" in PARTS else "Only logs without it can be evaluated."
        raise LogError(
            "some records have a pdrop: rows like them were dropped on purpose, which must be weighed.", do=do
        )


# -- JSON lines -----------------------------------------------------------------------------


def _rows_of(paths: Sequence[Path], layout: Layout) -> tuple[pl.LazyFrame, Records]:
    """The rows that records make; a warning says which make none, or one without its context, and why."""
    records = convert(paths, layout)
    reasons = {kind: tally for kind, tally in records.tallies.items() if kind not in (MALFORMED, BARE)}
    if reasons:
        total = sum(tally.lines for tally in reasons.values())
        said = "; ".join(f"{tally.lines:,} {reason} (the first is {tally.first})" for reason, tally in reasons.items())
        said = f"{total:,} of {records.lines:,} records {'is' if total == 1 else 'are'} dropped: {said}."
        warnings.warn(RecordWarning(said), stacklevel=2)
    if bare := records.tallies.get(BARE):
        said = f"{bare.lines:,} of {records.lines:,} records {'is' if bare.lines == 1 else 'are'} read without the"
        said = f"{said} context, which is not like that of the first records; the first is {bare.first}."
        warnings.warn(RecordWarning(said), stacklevel=2)
    return pl.scan_parquet(records.parts, glob=False), records


# -- Vowpal Wabbit's decision-service JSON: contextual bandits, ranked lists (CCB) and slates, one record a line -----------------------

_NUMBERS = pl.List(pl.Float64())
_PLACES = pl.List(pl.Int64())
DECISION: Fields = {
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


def _decision_fields(records: Sequence[Mapping[str, object]]) -> Fields:
    """The features of the context and of the actions, as far as they are flat."""
    contexts = [context for record in records if isinstance(context := record.get("c"), dict)]
    own = ("_multi", "_slots")
    shared = [{name: value for name, value in context.items() if name not in own} for context in contexts]
    lists = [context["_multi"] for context in contexts if isinstance(context.get("_multi"), list)]
    fields, actions = shape_of(shared), shape_of([action for actions in lists for action in actions])
    inside = {part.name: part.dtype for part in fields.fields} if isinstance(fields, pl.Struct) else {}
    if isinstance(actions, pl.Struct):
        inside["_multi"] = pl.List(actions)
    beside: Fields = {"o": OBSERVED}
    if inside:
        beside["c"] = pl.Struct(inside)
    return beside


def _decision_rows(frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
    """A row for every decision, or for every position of a ranking, and why other records have none."""
    has_list = pl.col("_outcomes").list.len().fill_null(0) > 0
    has_action = pl.any_horizontal(pl.col("a", "_label_Action", "_labelIndex", "_label_cost").is_not_null())
    is_decision = (has_list | has_action) & pl.col("RewardValue").is_null()
    reason = (
        pl.when(~pl.col(IS_READ))
        .then(None)  # a row, as for a decision
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
    reasons = frame.select(reason).to_series()
    decisions = frame.filter(reasons.is_null())
    return decisions.select(**_columns(frame.schema)).pipe(_by_position), reasons


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
        pl.coalesce(pl.col("event_id"), pl.format("line {}", "line")).alias(LISTS.id_part),
        pl.lit(1, pl.Int64).alias(LISTS.place_part),
        outcomes=pl.when(lists.list.len() > 0).then(lists),
    ).with_columns(is_list=lists.is_not_null())
    if not numbered.get_column("is_list").any():
        return numbered.drop("outcomes")
    rows = numbered.explode("outcomes")
    outcome, is_listed = lists.struct, pl.col("is_list")
    place = pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over("line")
    cost = outcome.field("_label_cost")
    of_list = pl.when(place == 1).then(pl.col("reward")).otherwise(0.0)
    candidates = outcome.field("_a").list.eval(pl.element() + 1)
    spread = {
        "reward": pl.when(cost.is_null().all().over("line")).then(of_list).otherwise(_reward(cost)),
        "propensity": outcome.field("_p").list.first(),
        "action": candidates.list.first(),
        "candidates": candidates,
        "probabilities": outcome.field("_p"),
        "n_candidates": candidates.list.len().cast(pl.Int64),
    }
    columns = {name: pl.when(is_listed).then(value).otherwise(pl.col(name)) for name, value in spread.items()}
    return rows.with_columns(place.alias(LISTS.place_part), **columns).drop("outcomes")


def _vowpal_wabbit(paths: Sequence[Path]) -> ForeignRows:
    frame, records = _rows_of(paths, Layout(DECISION, _decision_fields, _decision_rows))
    has_lists, has_keep = frame.select(pl.col("is_list").any(), (pl.col("keep") < 1).any()).collect().row(0)
    names = frame.collect_schema().names()
    parts: dict[str, object] = {part: part for part in ("reward", "propensity", "action", "candidates")}
    if context := [name for name in names if name.startswith("context_")]:
        parts["context"] = context
    if has_lists:
        parts |= {part: part for part in (LISTS.id_part, LISTS.place_part)} | {"propensity_of": CONDITIONAL}
    if has_keep:
        parts["keep"] = "keep"
    return ForeignRows(frame, parts, records.tallies.get(MALFORMED), records.lines)


# -- Routers: which models could have been asked, and which one was -----------------------------------------------------

_TEXTS = pl.List(pl.String())
ROUTER: Fields = {"candidates": _TEXTS, "probabilities": _NUMBERS, "chosen": pl.String()}
_MEASURED: Fields = {name: pl.Float64() for name in ("quality", "cost", "latency")}
_OURS = ("action", "propensity", "line", "n_candidates")


def _router_fields(records: Sequence[Mapping[str, object]]) -> Fields:
    """What else a router says about a request, as far as it is flat."""
    shapes = shape_of(records)
    fields = {part.name: part.dtype for part in shapes.fields} if isinstance(shapes, pl.Struct) else {}
    if clash := next((name for name in _OURS if name in fields), None):
        raise ColumnError(
            f"router records have no field {clash!r} of their own: a column of that name is made from chosen, candidates and "
            "probabilities.",
            do="Rename it in the log.",
        )
    return fields


def _router_rows(frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
    """A row for every request; the propensity is the probability of the chosen model, and null if it is not a candidate."""
    numbered = frame.with_row_index("row")
    pairs = numbered.select("row", "chosen", candidate=pl.col("candidates"), probability=pl.col("probabilities"))
    fits = pairs.filter(pl.col("candidate").list.len() == pl.col("probability").list.len())
    spread = fits.explode("candidate", "probability").filter(pl.col("candidate") == pl.col("chosen"))
    logged = spread.unique("row", keep="first").select("row", propensity="probability")
    columns = {"action": pl.col("chosen"), "propensity": pl.col("propensity"), "line": pl.col(LINE)}
    columns["n_candidates"] = pl.col("candidates").list.len().cast(pl.Int64)
    for name, dtype in frame.schema.items():
        if name not in ("chosen", LINE, IS_READ):
            columns |= flat(pl.col(name), dtype, name)
    rows = numbered.join(logged, on="row", how="left", maintain_order="left").select(**columns)
    return rows, pl.Series([None] * frame.height, dtype=pl.String)


def _router(paths: Sequence[Path]) -> ForeignRows:
    frame, records = _rows_of(paths, Layout(ROUTER | _MEASURED, _router_fields, _router_rows))
    parts = {"reward": "quality", "propensity": "propensity", "action": "action", "candidates": "candidates"}
    return ForeignRows(frame, parts, records.tallies.get(MALFORMED), records.lines)


# -- Tables: Eppo, GrowthBook, the Open Bandit Dataset -------------------------------------------------------------------

# how the fields of Eppo's bandit events are called in its SDKs, without case and underscores
_EPPO = {
    "action": ("action",),
    "propensity": ("actionprobability",),
    "subject": ("subject", "subjectkey"),
    "timestamp": ("timestamp",),
    "flag": ("flagkey", "featureflag", "experiment"),
    "bandit": ("banditkey", "bandit"),
    "model_version": ("modelversion", "banditmodelversion"),
    "optimality_gap": ("optimalitygap",),
}
_EPPO_ATTRIBUTES = {
    "subjectnumericattributes": "context",
    "subjectcategoricalattributes": "context",
    "actionnumericattributes": "action",
    "actioncategoricalattributes": "action",
}
_GROWTHBOOK = ("variation_id", "variation_weights")


def eppo_rows(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Eppo's bandit events, under our names: one row for every action that was taken."""
    schema = frame.collect_schema()
    plain = {re.sub(r"[\W_]", "", name).lower(): name for name in schema}
    ours = {name: next((plain[word] for word in words if word in plain), None) for name, words in _EPPO.items()}
    for name in ("action", "propensity", "subject"):
        if ours[name] is None:
            raise ColumnError(
                f"an Eppo bandit event has {_EPPO[name][0]!r}, in whatever case; this log has {', '.join(map(repr, schema))}.",
                do="Check `format=`, or name the columns without it.",
            )
    columns = {name: pl.col(column) for name, column in ours.items() if column is not None}
    for word, prefix in _EPPO_ATTRIBUTES.items():
        if word in plain and isinstance(schema[plain[word]], pl.Struct):
            columns |= flat(pl.col(plain[word]), schema[plain[word]], prefix)
    taken = {column for column in ours.values() if column is not None}
    rest = [pl.col(name) for name in schema if name not in taken and name not in columns]
    return frame.select(*rest, **columns)


def growthbook_rows(frame: pl.LazyFrame) -> pl.LazyFrame:
    """GrowthBook's exposures, each user's first of an experiment: later ones repeat its variation, whatever the weights are by then."""
    schema = frame.collect_schema()
    for name in _GROWTHBOOK:
        if name not in schema:
            raise ColumnError(
                f"an exposure of a GrowthBook bandit has {name!r}; this log has {', '.join(map(repr, schema))}.",
                do="Log the variation's weights with every exposure: without them, the propensity is unknown.",
            )
    weights = pl.col("variation_weights")
    if schema["variation_weights"] == pl.String:
        weights = weights.str.json_decode(_NUMBERS)
    place = pl.col("variation_id").cast(pl.Int64, strict=False)
    rows = frame.with_columns(
        action=pl.col("variation_id"), propensity=weights.list.get(place, null_on_oob=True).cast(pl.Float64)
    )
    user = user_of(schema.names())
    if user is None:
        return rows
    if "timestamp" in schema:
        rows = rows.sort("timestamp", maintain_order=True)
    once = [name for name in ("experiment_id", user) if name in schema]
    return rows.unique(once, keep="first", maintain_order=True)


def user_of(names: Sequence[str]) -> str | None:
    """The column that says who was exposed."""
    ids = ids_among(names, ("experiment_id", "variation_id"))
    return next((name for name, is_sure in ids.items() if is_sure), None)


def eppo_parts(frame: pl.LazyFrame) -> dict[str, object]:
    """The parts of Eppo's events."""
    names = frame.collect_schema().names()
    parts: dict[str, object] = {"propensity": "propensity", "action": "action", "cluster": "subject"}
    context = [name for name in names if name.startswith("context_")]
    return parts | ({"context": context} if context else {}) | ({"reward": "reward"} if "reward" in names else {})


def growthbook_parts(frame: pl.LazyFrame) -> dict[str, object]:
    """The parts of GrowthBook's exposures."""
    names = frame.collect_schema().names()
    parts: dict[str, object] = {"propensity": "propensity", "action": "action"}
    user = user_of(names)
    return parts | ({"cluster": user} if user else {}) | ({"reward": "reward"} if "reward" in names else {})


ITEMS = "item_context.csv"
_OPEN_BANDIT = {"reward": "click", "propensity": "propensity_score", "action": "item_id"}


def _open_bandit(paths: Sequence[Path]) -> ForeignRows:
    frame = files.scan(list(paths))
    names = frame.collect_schema().names()
    for part, name in _OPEN_BANDIT.items():
        if name not in names:
            raise ColumnError(
                f"a log of the Open Bandit Dataset has the {part} in {name!r}; {files.path_text(paths[0])!r} has "
                f"{', '.join(map(repr, names[:8]))}.",
                do="Pass the folder of one campaign, such as 'random/all', or leave out `format=`.",
            )
    context = [name for name in names if name.startswith("user_feature_")]
    return ForeignRows(frame, {**_OPEN_BANDIT, "context": context})


# -- The Open Bandit Pipeline --------------------------------------------------------------------------------------------

_PER_ROUND = ("action", "reward", "pscore", "position", "context", "pi_b", "expected_reward")


def obp_frame(feedback: Mapping[str, object]) -> pl.DataFrame:
    """A bandit feedback as a frame: context_0 …, action, reward, propensity, and the rest under its own name."""
    for name in ("action", "reward", "pscore"):
        if feedback.get(name) is None:
            raise ColumnError(f"a bandit feedback has {name!r}; this one has {', '.join(map(repr, feedback))}.")
    arrays = {name: _array(name, feedback[name]) for name in _PER_ROUND if feedback.get(name) is not None}
    rounds = len(arrays["action"])
    for name, array in arrays.items():
        if len(array) != rounds:
            raise LogError(f"{name!r} of the bandit feedback has {len(array):,} rows, and 'action' has {rounds:,}.")
    columns: dict[str, NDArray[np.generic]] = {
        "action": arrays["action"],
        "reward": arrays["reward"],
        "propensity": arrays["pscore"],
    }
    columns |= {name: arrays[name] for name in ("position", "pi_b", "expected_reward") if name in arrays}
    if "context" in arrays:
        context = arrays["context"].reshape(rounds, -1)
        columns |= {f"context_{k}": context[:, k] for k in range(context.shape[1])}
    return pl.DataFrame(columns)


def _array(name: str, value: object) -> NDArray[np.generic]:
    array: NDArray[np.generic] = np.asarray(value)
    if array.dtype == object:
        raise LogError(f"{name!r} of the bandit feedback must be an array of numbers; found {array.dtype}.")
    return array


def obp_parts(frame: pl.DataFrame) -> dict[str, object]:
    """The parts of a bandit feedback."""
    context = [name for name in frame.columns if name.startswith("context_")]
    return {part: part for part in ("reward", "propensity", "action")} | ({"context": context} if context else {})


def obp_items(feedback: Mapping[str, object]) -> pl.DataFrame | None:
    """What a bandit feedback knows about its actions: one row for each."""
    if feedback.get("action_context") is None:
        return None
    table = _array("action_context", feedback["action_context"])
    table = table.reshape(len(table), -1)
    return pl.DataFrame({"action": np.arange(len(table))} | {f"item_{k}": table[:, k] for k in range(table.shape[1])})


def load_obp(path: Path) -> dict[str, ArrayLike]:
    """A bandit feedback from a file of NumPy's, which never runs code from it."""
    try:
        with np.load(path, allow_pickle=False) as kept:
            return {name: kept[name] for name in kept.files}
    except (OSError, ValueError, EOFError, AttributeError) as error:
        raise LogError(
            f"cannot read {files.path_text(path)!r}: a bandit feedback is a .npz file without objects in it, and pickles are not opened.",
            do="Write it with numpy.savez(path, **{key: value for key, value in bandit_feedback.items() if value is not None}).",
        ) from error


def _obp(paths: Sequence[Path]) -> ForeignRows:
    frames = [obp_frame(load_obp(path)) for path in paths]
    frame = pl.concat(frames)
    return ForeignRows(frame.lazy(), obp_parts(frame))


# -- The list ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Format:
    """A tool's way to write logs: how its files are opened, the endings that give it away, and which of a folder's files are logs."""

    open: Callable[[Sequence[Path]], ForeignRows]
    endings: tuple[str, ...] = ()
    choose: Callable[[Sequence[Path]], Sequence[Path]] = list


@dataclass(frozen=True)
class TableFormat:
    """A tool's way to write tables, in files or in memory: their rows under our names, and the parts of these."""

    rows: Callable[[pl.LazyFrame], pl.LazyFrame]
    parts: Callable[[pl.LazyFrame], dict[str, object]]

    def open(self, paths: Sequence[Path]) -> ForeignRows:
        """Its files."""
        frame = self.rows(files.scan(list(paths)))
        return ForeignRows(frame, self.parts(frame))


TABLES = {"eppo": TableFormat(eppo_rows, eppo_parts), "growthbook": TableFormat(growthbook_rows, growthbook_parts)}
FORMATS: dict[str, Format] = {
    "vowpal-wabbit": Format(_vowpal_wabbit, (".dsjson", ".dsjson.gz")),
    "obp": Format(_obp),
    # a campaign's folder has a file about its items, too
    "open-bandit": Format(_open_bandit, choose=lambda paths: [path for path in paths if path.name != ITEMS]),
    **{name: Format(table.open) for name, table in TABLES.items()},
    "router": Format(_router),
}
