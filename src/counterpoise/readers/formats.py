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
from counterpoise.log.log import Log
from counterpoise.log.parts import PARTS, ids_among
from counterpoise.readers import files, vowpal_wabbit
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

Parts = Mapping[str, object]


@dataclass(frozen=True)
class ForeignRows:
    """The rows of a log that another tool wrote, the parts that its columns play, and the lines that could not be read."""

    frame: pl.LazyFrame
    parts: Parts
    malformed: Tally | None = None
    lines: int = 0


def is_foreign(log: Log) -> bool:
    """Whether another tool wrote the files of a log."""
    return files.is_paths(log.data) and format_of(log.data, log.format) is not None


def format_of(data: files.Paths, name: str | None) -> str | None:
    """The format that was named, or that the first file's ending says; None for files that we read as they are."""
    if name is not None:
        normal = name.lower().replace("_", "-")
        if normal not in FORMATS:
            known = ", ".join(FORMATS)
            raise OptionError(
                f"`format={name!r}` is not one of {known}.", suggestion=did_you_mean(normal, FORMATS),
                do="Leave it out for files with columns of their own: Parquet, CSV, Arrow, JSON lines.",
            )  # fmt: skip
        return normal
    first = str(data if not isinstance(data, list | tuple) else data[0]).lower()
    return next((kind for kind, format in FORMATS.items() if first.endswith(format.endings)), None)


def opened(data: files.Paths, name: str | None = None) -> ForeignRows:
    """The files of another tool, opened once as long as they do not change."""
    kind = format_of(data, name)
    if kind is None:
        raise OptionError("these files are read as they are: leave out `format=`.")
    paths = FORMATS[kind].choose(files.files_of(data))
    return _opened(kind, tuple(paths), tuple(map(files.stamp_of, paths)))


@lru_cache(maxsize=64)  # logs of a day each, say, that are looked at more than once
def _opened(kind: str, paths: tuple[Path, ...], stamps: tuple[object, ...]) -> ForeignRows:
    try:
        return FORMATS[kind].open(paths)
    except files.UNREADABLE as error:
        raise LogError(f"cannot read {files.shown(paths[0])!r} as {kind}: {first_line(error)}.") from error


def check(log: Log) -> None:
    """Refuse what would otherwise be ignored: lines that cannot be read, lists that nobody named, rows that were dropped on purpose."""
    if not is_foreign(log):
        return
    rows = opened(log.data, log.format)
    bad = rows.malformed
    if bad is not None and not log.drop_bad_rows:
        many = (
            f"{bad.lines:,} of {rows.lines:,} lines cannot be read"
            if bad.lines > 1
            else f"1 of {rows.lines:,} lines cannot be read"
        )
        raise LogError(
            f"{many}; the first is {bad.first}: {bad.why}.",
            do="Fix the logger, or leave such lines out with `drop_bad_rows=True`.",
        )
    if "slate" in rows.parts and log.slate is None:
        raise LogError(
            "this log has lists, with one row per position, and their rows are not independent.",
            do="Say so with `slate='slate'`, `position='position'` and `propensity_of='item_given_above'`, or read it with `cp.read`.",
        )
    if "keep" in rows.parts and getattr(log, "keep", None) is None:
        do = "Pass `keep='keep'`." if "keep" in PARTS else "Only logs without it can be evaluated."
        raise LogError(
            "some records have a pdrop: rows like them were dropped on purpose, which must be weighed.", do=do
        )


# -- JSON lines: Vowpal Wabbit and routers -----------------------------------------------------------------------------


def _frame_of(records: Records) -> pl.LazyFrame:
    return pl.scan_parquet(records.parts, glob=False)


def _warn(records: Records) -> None:
    """Say which records make no row, or one without its context, and why."""
    reasons = {kind: tally for kind, tally in records.tallies.items() if kind not in (MALFORMED, BARE)}
    if reasons:
        total = sum(tally.lines for tally in reasons.values())
        said = "; ".join(f"{tally.lines:,} {reason} (the first is {tally.first})" for reason, tally in reasons.items())
        said = f"{total:,} of {records.lines:,} records {'is' if total == 1 else 'are'} left out: {said}."
        warnings.warn(RecordWarning(said), stacklevel=2)
    if bare := records.tallies.get(BARE):
        said = (
            f"{bare.lines:,} of {records.lines:,} records {'is' if bare.lines == 1 else 'are'} read without the context"
        )
        said = f"{said}, which is not like that of the first records; the first is {bare.first}."
        warnings.warn(RecordWarning(said), stacklevel=2)


def _vowpal_wabbit(paths: Sequence[Path]) -> ForeignRows:
    records = convert(paths, vowpal_wabbit.LAYOUT)
    _warn(records)
    frame = _frame_of(records)
    has_lists, has_keep = frame.select(pl.col("is_list").any(), (pl.col("keep") < 1).any()).collect().row(0)
    names = frame.collect_schema().names()
    parts: dict[str, object] = {part: part for part in ("reward", "propensity", "action", "candidates")}
    if context := [name for name in names if name.startswith("context_")]:
        parts["context"] = context
    if has_lists:
        parts |= {"slate": "slate", "position": "position", "propensity_of": "item_given_above"}
    if has_keep:
        parts["keep"] = "keep"
    return ForeignRows(frame, parts, records.tallies.get(MALFORMED), records.lines)


_TEXTS, _NUMBERS = pl.List(pl.String()), pl.List(pl.Float64())
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
    made = {"action": pl.col("chosen"), "propensity": pl.col("propensity"), "line": pl.col(LINE)}
    made["n_candidates"] = pl.col("candidates").list.len().cast(pl.Int64)
    for name, dtype in frame.schema.items():
        if name not in ("chosen", LINE, IS_READ):
            made |= flat(pl.col(name), dtype, name)
    rows = numbered.join(logged, on="row", how="left", maintain_order="left").select(**made)
    return rows, pl.Series([None] * frame.height, dtype=pl.String)


def _router(paths: Sequence[Path]) -> ForeignRows:
    records = convert(paths, Layout(ROUTER | _MEASURED, _router_fields, _router_rows))
    _warn(records)
    parts = {"reward": "quality", "propensity": "propensity", "action": "action", "candidates": "candidates"}
    return ForeignRows(_frame_of(records), parts, records.tallies.get(MALFORMED), records.lines)


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
    made = {name: pl.col(column) for name, column in ours.items() if column is not None}
    for word, prefix in _EPPO_ATTRIBUTES.items():
        if word in plain and isinstance(schema[plain[word]], pl.Struct):
            made |= flat(pl.col(plain[word]), schema[plain[word]], prefix)
    taken = {column for column in ours.values() if column is not None}
    rest = [pl.col(name) for name in schema if name not in taken and name not in made]
    return frame.select(*rest, **made)


def growthbook_rows(frame: pl.LazyFrame) -> pl.LazyFrame:
    """GrowthBook's exposures, each user's first of an experiment: later ones repeat its variation, whatever the weights are by then."""
    schema = frame.collect_schema()
    for name in _GROWTHBOOK:
        if name not in schema:
            raise ColumnError(
                f"an exposure of a GrowthBook bandit has {name!r}; this log has {', '.join(map(repr, schema))}.",
                do="Log the variation's weights with every exposure: without them, nobody knows the propensity.",
            )
    weights = pl.col("variation_weights")
    if schema["variation_weights"] == pl.String:
        weights = weights.str.json_decode(_NUMBERS)
    place = pl.col("variation_id").cast(pl.Int64, strict=False)
    made = frame.with_columns(
        action=pl.col("variation_id"),
        propensity=weights.list.get(place, null_on_oob=True).cast(pl.Float64),
    )
    user = user_of(schema.names())
    if user is None:
        return made
    if "timestamp" in schema:
        made = made.sort("timestamp", maintain_order=True)
    once = [name for name in ("experiment_id", user) if name in schema]
    return made.unique(once, keep="first", maintain_order=True)


def user_of(names: Sequence[str]) -> str | None:
    """The column that says who was exposed."""
    return next(
        (name for name, is_sure in ids_among(names, ("experiment_id", "variation_id")).items() if is_sure), None
    )


def _eppo(paths: Sequence[Path]) -> ForeignRows:
    frame = eppo_rows(files.scan(list(paths)))
    return ForeignRows(frame, eppo_parts(frame))


def eppo_parts(frame: pl.LazyFrame) -> dict[str, object]:
    """The parts of Eppo's events."""
    names = frame.collect_schema().names()
    parts: dict[str, object] = {"propensity": "propensity", "action": "action", "cluster": "subject"}
    context = [name for name in names if name.startswith("context_")]
    return parts | ({"context": context} if context else {}) | ({"reward": "reward"} if "reward" in names else {})


def _growthbook(paths: Sequence[Path]) -> ForeignRows:
    frame = growthbook_rows(files.scan(list(paths)))
    return ForeignRows(frame, growthbook_parts(frame))


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
                f"a log of the Open Bandit Dataset has the {part} in {name!r}; {files.shown(paths[0])!r} has "
                f"{', '.join(map(repr, names[:8]))}.",
                do="Pass the folder of one campaign, such as 'random/all', or leave out `format=`.",
            )
    context = [name for name in names if name.startswith("user_feature_")]
    return ForeignRows(frame, {**_OPEN_BANDIT, "context": context})


def _logs_of_campaign(paths: Sequence[Path]) -> list[Path]:
    """A campaign's folder without the file about its items."""
    return [path for path in paths if path.name != ITEMS]


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
    known = feedback.get("action_context")
    if known is None:
        return None
    table = _array("action_context", known)
    table = table.reshape(len(table), -1)
    return pl.DataFrame({"action": np.arange(len(table))} | {f"item_{k}": table[:, k] for k in range(table.shape[1])})


def load_obp(path: Path) -> dict[str, ArrayLike]:
    """A bandit feedback from a file of NumPy's, which never runs code from it."""
    try:
        with np.load(path, allow_pickle=False) as kept:
            return {name: kept[name] for name in kept.files}
    except (OSError, ValueError, EOFError, AttributeError) as error:
        raise LogError(
            f"cannot read {files.shown(path)!r}: a bandit feedback is a .npz file without objects in it, and pickles are not opened.",
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


FORMATS: dict[str, Format] = {
    "vowpal-wabbit": Format(_vowpal_wabbit, (".dsjson", ".dsjson.gz")),
    "obp": Format(_obp),
    "open-bandit": Format(_open_bandit, choose=_logs_of_campaign),
    "eppo": Format(_eppo),
    "growthbook": Format(_growthbook),
    "router": Format(_router),
}
