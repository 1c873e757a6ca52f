"""Logs as training reads them: checked by the rules of every log, in memory or chunk by chunk from Parquet files, always the same rows."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import narwhals as nw
import numpy as np
import polars as pl
import polars.selectors as cs
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from counterpoise.diagnostics.findings import leaks
from counterpoise.engines.registry import Files, Frames, LogEngine, engine_of
from counterpoise.engines.streaming import prepare
from counterpoise.errors import LogError, OptionError, verbatim
from counterpoise.features import Encoder, Scaling
from counterpoise.learn.actions import NONE, ActionIds, Classes, DistinctIds, as_ids, placed, places
from counterpoise.learn.rows import Digits, Rows, Split, TrainingColumns, reading_of
from counterpoise.log.columns import (
    ACTION,
    CANDIDATES,
    GROUP,
    ID,
    IS_CANDIDATE,
    MODELED,
    PROPENSITY,
    context_at,
    is_known_at,
)
from counterpoise.log.expressions import ReadPlan, columns, of_64_bits, only, plan
from counterpoise.log.good import is_number
from counterpoise.log.groups import PRIME, folds_of, integer_ids
from counterpoise.log.kinds.kind import Rule
from counterpoise.log.log import Log
from counterpoise.log.parts import LISTS, ids_among, is_minimized
from counterpoise.log.question import Learning, Question, RowWeight
from counterpoise.log.rules import Problem, all_bad, find_problems, is_good, refuse
from counterpoise.log.sketches import Sketch, row_keys
from counterpoise.models.propensity import fit_propensity_model, propensity_of, with_propensities
from counterpoise.models.reward import Predict, as_reward, fit_numbers
from counterpoise.moments import Floats
from counterpoise.readers.files import ParquetFiles, are_parquet
from counterpoise.readers.formats import check, is_foreign
from counterpoise.readers.policies import complete

CHUNK = 2**18  # rows of a file in memory at a time
NUMBER = "counterpoise row"  # the column of a row's number in the log
FOLDS = 3  # of reward models, where nothing is evaluated in folds
SAMPLED = 20_000  # first rows in which the columns of a context are tried as a model of the reward, as the doctor does

Good = NDArray[np.bool_]


class Source:
    """The rows of a log: in Parquet files (read chunk by chunk, every epoch), or, for any other log, in memory as one chunk.

    The first pass calls `look` for all `starts` in order; from then on, `chunk` returns the same rows again. Bad rows are left
    out and counted if the log says so (`drop_bad_rows`), and otherwise reported by `look`. `classes` are the actions and
    `encoding` is that of the contexts, if they are known already. With `fills_gaps`, numbers that are missing in a context are
    marked instead of refused; with `centers_rewards`, rewards that differ too little for single precision have `lowest` taken
    away from them; with `in_memory`, files are read into memory, too. Where less is better, rewards have the other sign, so that
    whoever learns makes them large; `sign` says so.
    """

    def __init__(
        self,
        log: Log,
        model_rewards: ArrayLike | None = None,
        classes: Classes | None = None,
        encoding: Encoder | None = None,
        *,
        fills_gaps: bool = True,
        centers_rewards: bool = False,
        in_memory: bool = False,
    ) -> None:
        self.names = TrainingColumns.of(log)
        if isinstance(log.data, Mapping) and any(isinstance(part, Tensor) for part in log.data.values()):
            arrays = {
                name: part.detach().cpu().numpy() if isinstance(part, Tensor) else part
                for name, part in log.data.items()
            }
            log = log.of(arrays)
        self.log = log
        self.minimize = is_minimized(log.minimize, self.names.reward)
        self.sign = -1.0 if self.minimize else 1.0
        self.memory: Rows | None = None
        self.models: RewardModels | None = None
        self.without: int | None = None  # the fold whose rows no reward model may have seen
        self.rows = self.dropped = self.total = 0  # to train on, left out, and looked at so far
        self.sketch = Sketch()
        self._digits: dict[str, Digits] = {}
        self.lowest, self._centers = 0.0, centers_rewards
        self._model_rewards = model_rewards
        self._before: dict[int, int] = {}
        self._first: dict[int, int] = {}  # the number of a chunk's first row among those that meet the condition
        self._digests: dict[int, bytes] = {}
        self._ids: ActionIds | None = None
        self._folds: dict[tuple[int, int], NDArray[np.int64]] = {}
        engine = engine_of(log)
        self._has_order = engine.has_order
        if model_rewards is not None and not isinstance(engine, Frames):
            raise OptionError(
                "`model_rewards=` only works with a log in memory.", do="Read the files into a frame, and pass that."
            )
        if isinstance(engine, Files):
            check(log)
        is_plain = isinstance(engine, Files) and not is_foreign(log)
        is_chunked = is_plain and not in_memory and are_parquet(log.data)
        self.files = ParquetFiles(log.data) if is_chunked else None
        self.id_columns = self._ids_among(engine)
        self.question = self._asked()
        self._plan = None if self.files is None else plan(self.question, self.files.columns)
        self._frame = None if self.files is not None else self._fetched(engine)
        first = self._part(0, 1)
        self.reading = reading_of(first, self._parts, self.names, classes, encoding, fills_gaps=fills_gaps)
        nested = (name for name in self.names.context if isinstance(first.schema[name], pl.List | pl.Array))
        learning = Learning(self.reading.names is not None, tuple(nested), model_rewards is not None)
        self.question = replace(self.question, learning=learning)

    def _asked(self) -> Question:
        """The question of learning, which reads what training looks at; of a log in memory also the ids by which it is evaluated."""
        log = self.log.without("model", "items", "value_samples", "model_value", "baseline", *LISTS)
        ids = () if self.files is not None else tuple(self.id_columns)
        question = Question(log.without("key"), (), RowWeight(), segment=ids, learning=Learning())
        if (model := propensity_of(log)) is None:
            return question
        # what identifies a row says which fold of the propensity model it belongs to
        unfitted = with_propensities(replace(question, log=log), model)
        return fit_propensity_model(replace(unfitted, log=unfitted.log.without("key")))

    def _ids_among(self, engine: LogEngine) -> list[str]:
        """The columns that look like visitors' ids, if nobody named clusters."""
        if self.names.cluster is not None or self.log.rows_are_independent:
            return []
        known: Sequence[object] = engine.columns(self.log) if self.files is None else self.files.columns
        return list(ids_among([name for name in known if isinstance(name, str)], self.names.all))

    def _fetched(self, engine: LogEngine) -> pl.DataFrame:
        """The rows that meet the condition, in memory, with their numbers if a separate table must follow them."""
        number = None if self._model_rewards is None else NUMBER

        def together(batches: Iterator[pl.DataFrame]) -> pl.DataFrame:
            whole = list(batches)
            if not whole:
                raise LogError("the log has no rows.")
            return pl.concat(whole).with_columns(cs.decimal().cast(pl.Float64))

        return of_64_bits(engine.over_rows(self.question, together, number), self.question)

    def _part(self, start: int, rows: int | None = None, read: ReadPlan | None = None) -> pl.DataFrame:
        """The columns of a chunk, or of its first rows."""
        wanted = read or self._plan
        if self.files is None or wanted is None:
            assert self._frame is not None
            return self._frame if rows is None else self._frame.head(rows)
        part = self.files.read(wanted.read, start, CHUNK if rows is None else rows)
        return of_64_bits(wanted.complete(part, self.question), self.question)

    def _estimated(self, frame: pl.DataFrame, start: int) -> pl.DataFrame:
        """The rows of a chunk of files with their propensities, if a model estimates them; rows in memory have them already."""
        if self.files is None or self.question.propensity_model is None:
            return frame
        return complete(frame, self.question, f"the chunk from row {start:,}", self._first[start])

    def _parts(self) -> Iterator[pl.DataFrame]:
        for start in self.starts:
            yield self._part(start)

    def sample(self, rows: int, seed: int) -> Log:
        """The log with about so many of the rows of its files, drawn at random, in memory."""
        assert self.files is not None
        assert self._plan is not None
        random, share = np.random.default_rng(seed), rows / self.rows
        columns = list(dict.fromkeys([*self._plan.read, *self.id_columns]))
        parts = []
        for start in self.starts:
            frame = only(self.files.read(columns, start, CHUNK), self.log.where)
            parts.append(frame.filter(pl.Series(random.random(frame.height) < share)))
        return self.log.of(pl.concat(parts)).but(where=None)

    def _center(self) -> None:
        """Subtract the lowest reward from all, if rewards differ too little for single precision."""
        digits = Digits()
        for part in self._parts():
            digits.add(self.sign * _floats(part.get_column(self.names.reward).cast(pl.Float64, strict=False))[:, None])
        if digits.mean_of_lost is not None:
            self.lowest = float(digits.lowest[0])

    def in_its_units(self, reward: float) -> float:
        """A reward that learning sees, as the log has it."""
        return self.sign * (reward + self.lowest)

    @property
    def width(self) -> int:
        """How many numbers a context has, once it is encoded."""
        encoding = self.reading.encoding
        return len(self.names.context) if encoding is None else encoding.width

    @property
    def starts(self) -> list[int]:
        """The number of the first row of every chunk, as the files count them."""
        return [0] if self.files is None else list(range(0, self.files.rows, CHUNK))

    def look(self, start: int) -> tuple[Rows, list[Problem]]:
        """The rows of a chunk on the first pass, and what is wrong with some; those are left out if bad rows are to be dropped."""
        if self._centers and not self.total:
            self._center()
        self._first[start] = self.total
        frame = self._estimated(self._part(start), start)
        rows, checked = self._tensors(frame, self._digits)
        judged, number = self._judged(checked)
        good = self._good(judged)
        problems = [] if good.all() else find_problems(nw.from_native(judged, eager_only=True), self.question, number)
        self.total += len(good)
        if self.log.drop_bad_rows:
            self.dropped += int((~good).sum())
        kept, frame = self._trained_on(rows, frame, checked, judged.with_columns(good=pl.Series(good)))
        self._remember(frame)
        self._before[start] = self.rows
        self.rows += len(kept)
        if self.files is None:
            self.memory, self._frame = kept, frame
        else:
            self._digests[start] = kept.digest()
        return kept, problems

    def _judged(self, checked: pl.DataFrame) -> tuple[pl.DataFrame, int | None]:
        """What the rules are about, and the number of the first row, if rows have numbers."""
        return checked, self.number_of(self.total)

    def _trained_on(
        self, rows: Rows, frame: pl.DataFrame, checked: pl.DataFrame, judged: pl.DataFrame
    ) -> tuple[Rows, pl.DataFrame]:
        """The rows to train on, and their columns."""
        return self._kept(rows, frame, judged.get_column("good").to_numpy())

    def number_of(self, row: int) -> int | None:
        """The number of a row, if rows have numbers."""
        return row if self._has_order else None

    def _tensors(self, frame: pl.DataFrame, digits: dict[str, Digits] | None = None) -> tuple[Rows, pl.DataFrame]:
        """The rows of a frame as tensors, and under internal names the columns that rules look at; `digits` takes in their numbers."""
        names = self.names
        checked = prepare(frame, self.question.of_rows, 0)
        reward = self.sign * _floats(checked.get_column(self.question.names.rewards[0])) - self.lowest
        action = self._ids_of(frame.get_column(names.action))
        more = [frame.get_column(names.action).alias(ACTION), pl.Series(ID, action)]
        context, at = np.empty((frame.height, self.width), dtype=np.float32), 0
        for k, (name, block) in enumerate(self._blocks(frame)):
            more += [
                frame.get_column(name).alias(context_at(k)),
                pl.Series(is_known_at(k), is_number(block).all(axis=1)),
            ]
            with np.errstate(over="ignore"):
                context[:, at : at + block.shape[1]] = block
            at += block.shape[1]
            if digits is not None:
                digits.setdefault(f"context {name!r}", Digits()).add(block)
        if digits is not None:
            digits.setdefault(f"reward {names.reward!r}", Digits()).add(reward[:, None])
        candidates = unit = None
        if names.candidates is not None:
            candidates = self.reading.candidates(frame.get_column(names.candidates))
            more += [
                pl.Series(CANDIDATES, (candidates >= 0).sum(axis=1)),
                pl.Series(IS_CANDIDATE, (candidates == action[:, None]).any(axis=1)),
            ]
        if names.cluster is not None:
            more.append(integer_ids(frame.get_column(names.cluster)).alias(GROUP))
            unit = more[-1].fill_null(0).to_numpy() % PRIME  # 0 for one that is missing, whose row is bad anyway
        model_rewards = self._table(frame)
        if model_rewards is not None:
            more.append(pl.Series(MODELED, model_rewards.sum(axis=1, dtype=np.float64)))
        with np.errstate(over="ignore", under="ignore"):
            rows = Rows(
                torch.as_tensor(context),
                torch.as_tensor(action),
                torch.as_tensor(reward.astype(np.float32)),
                torch.as_tensor(_floats(checked.get_column(PROPENSITY)).astype(np.float32)),
                *(None if part is None else torch.as_tensor(part) for part in (model_rewards, candidates, unit)),
            )
        return rows, checked.hstack(more)

    def _blocks(self, frame: pl.DataFrame) -> Iterator[tuple[str, Floats]]:
        """The numbers that each column of the context becomes, a table for each."""
        if self.reading.encoding is not None:
            yield from self.reading.encoding.blocks(frame).items()  # type: ignore[arg-type]
            return
        for name in self.names.context:
            yield name, _floats(frame.get_column(name))[:, None]

    def _ids_of(self, action: pl.Series) -> ActionIds:
        """Actions as ids, or as the places of their names; −1 for anything else."""
        if self.reading.names is not None:
            return places(self.reading.names, action)
        if action.dtype.is_integer():
            return np.where(action.is_null(), NONE, as_ids(action.fill_null(0).to_numpy()))
        return as_ids(_floats(action))

    def _table(self, frame: pl.DataFrame) -> NDArray[np.float32] | None:
        """The rewards that a model predicts for all actions of these rows, if there are any."""
        if self._model_rewards is None:
            return None
        try:
            table = np.float32(self.sign) * np.array(self._model_rewards, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise OptionError(
                f"model_rewards must be numbers, a row for every row of the log: {verbatim(error)}."
            ) from error
        index = frame.get_column(NUMBER).cast(pl.Int64).to_numpy()
        rows = frame.height if self.log.where is None else len(table)
        if table.ndim != 2 or len(table) != rows or index.max(initial=-1) >= rows:
            raise OptionError(
                f"model_rewards must have a row for each of the {rows:,} rows and a column per action; found shape {table.shape}."
            )
        return table if self.log.where is None else table[index]

    def _good(self, judged: pl.DataFrame) -> Good:
        """Which of them break no rule."""
        units = nw.from_native(judged, eager_only=True)
        return units.select(good=is_good(self.question)).get_column("good").fill_null(False).to_numpy()

    def _kept(self, rows: Rows, frame: pl.DataFrame, good: Good) -> tuple[Rows, pl.DataFrame]:
        """The rows to train on, and their columns."""
        self._check_single(rows, frame, good)
        if not self.log.drop_bad_rows or good.all():
            return rows, frame
        return rows.take(torch.as_tensor(good)), frame.filter(pl.Series(good))

    def _check_single(self, rows: Rows, frame: pl.DataFrame, good: Good) -> None:
        """Check that single precision holds the numbers of good rows."""
        context, reward, propensity = rows.context.numpy(), rows.reward.numpy(), rows.propensity.numpy()
        if np.isfinite(context).all() and np.isfinite(reward).all() and (propensity > 0).all():
            return
        odd = np.flatnonzero(good & ~((propensity > 0) & np.isfinite(reward) & np.isfinite(context).all(axis=1)))
        if not len(odd):
            return
        row, names = frame[int(odd[0])], self.names  # with a number that would be infinite, or a propensity of 0
        numbers = {name: np.ravel(row.get_column(name)[0]) for name in (names.propensity, names.reward, *names.context)}
        with np.errstate(over="ignore", under="ignore"):
            narrow = {
                name: values.astype(np.float32) for name, values in numbers.items() if values.dtype.kind in "biuf"
            }
        lost = [
            name
            for name, column in narrow.items()
            if not np.isfinite(column).all() or (name == names.propensity and column <= 0)
        ]
        largest = numbers[lost[0]][np.abs(numbers[lost[0]]).argmax()]
        raise LogError(
            f"training is in single precision, which cannot hold {largest:g}, found in column {lost[0]!r}.",
            do="Rescale the column, or drop such rows.",
        )

    def _remember(self, frame: pl.DataFrame) -> None:
        """Add these rows to the sketch, so that a policy can recognize them."""
        names = self.names
        context = [frame.get_column(name) for name in names.context]
        self.sketch.add(row_keys(context, frame.get_column(names.action), frame.get_column(names.reward)))

    def check_digits(self) -> None:
        """Check, after the first pass, that single precision tells the numbers of every column apart."""
        for name, digits in self._digits.items():
            mean = digits.mean_of_lost
            if mean is not None:
                raise LogError(
                    f"{name} has numbers near {mean:.4g} that differ too little for single precision, in which policies compute.",
                    do=f"Name an expression that takes the mean away, such as {name.split(' ', 1)[1][1:-1]} - {mean:.12g}.",
                )

    def chunk(self, start: int) -> Rows:
        """The rows of one chunk, with the predictions of reward models if there are any."""
        rows = self.logged(start)
        return rows if self.models is None else self.models.with_predictions(start, rows, self.without)

    def logged(self, start: int) -> Rows:
        """The rows of one chunk."""
        return _numbered(self._again(start)[0], self._ids) if self.memory is None else self.memory

    def frame(self, start: int, names: Sequence[str]) -> pl.DataFrame:
        """Some columns of one chunk's rows, as the log itself has them, of any type."""
        frame = self._again(start)[1] if self._frame is None else self._frame
        return frame.select(columns(dict.fromkeys(names)))

    def ids(self, start: int) -> list[pl.Series]:
        """The columns of one chunk's rows that look like visitors' ids."""
        if self.files is None or not self.id_columns:
            return self.frame(start, self.id_columns).get_columns()
        read = plan(replace(self.question, segment=tuple(self.id_columns)), self.files.columns)
        return self._again(start, read)[1].select(columns(self.id_columns)).get_columns()

    def _again(self, start: int, read: ReadPlan | None = None) -> tuple[Rows, pl.DataFrame]:
        """The rows of a chunk of files and their columns, read once more; other columns with another plan."""
        frame = self._estimated(self._part(start, read=read), start)
        rows, checked = self._tensors(frame)
        kept, frame = self._kept(rows, frame, self._good(checked))
        # only files that were touched are compared by content, which costs a tenth of the reading
        if self.files is not None and not self.files.are_untouched() and kept.digest() != self._digests[start]:
            raise self.files.changed()
        return kept, frame

    def folds(self, start: int, rows: Rows, folds: int) -> NDArray[np.int64]:
        """The folds of a chunk's rows, by a hash of their cluster, or else of their number: always the same, and the same in files."""
        if (start, folds) in self._folds:
            return self._folds[start, folds]
        numbers = np.arange(self.before(start), self.before(start) + len(rows))
        hashed = folds_of(pl.Series(numbers if rows.unit is None else rows.unit.cpu().numpy()), folds)
        if self.files is None:  # files may be larger than memory, and so may their folds
            self._folds[start, folds] = hashed
        return hashed

    def keep_alike_together(self, least: int) -> None:
        """Put rows of the same context into one fold, if the log has no clusters and at least so many different contexts.

        Otherwise a policy would be evaluated on contexts whose rewards it remembers.
        """
        rows = self.memory
        if rows is None or rows.unit is not None or not rows.context.shape[1]:
            return
        bits = np.ascontiguousarray(rows.context.cpu().numpy()).view(np.uint32).astype(np.uint64)
        random = np.random.default_rng(0)
        odd = np.asarray(2 * random.integers(2**63, size=bits.shape[1], dtype=np.uint64) + np.uint64(1))
        mixed = bits * odd  # sums of products with odd numbers tell rows apart, and are sorted much faster than rows
        _, unit = np.unique(np.sum(mixed ^ (mixed >> np.uint64(32)), axis=1), return_inverse=True)
        if least <= unit.max() + 1 < len(unit):
            self.memory = replace(rows, unit=torch.as_tensor(unit))

    def before(self, start: int) -> int:
        """How many rows to train on there are in earlier chunks, which is the number of this chunk's first row."""
        return self._before[start]

    def digest(self) -> str:
        """A digest of every number of the log in order, the same in memory and in files; call it after a pass and before `number`."""
        if self.memory is not None:
            self._digests = {at: self.memory.take(slice(at, at + CHUNK)).digest() for at in range(0, self.rows, CHUNK)}
        return hashlib.sha256(b"".join(self._digests[start] for start in sorted(self._digests))).hexdigest()[:16]

    def number(self, ids: ActionIds | None) -> None:
        """From now on, replace an action by its place among these ids."""
        self._ids = ids
        if self.memory is not None:
            self.memory = _numbered(self.memory, ids)

    def to(self, device: torch.device) -> None:
        """Move what is in memory to a device, and keep it there."""
        if self.memory is not None:
            self.memory = self.memory.to(device)


def _floats(values: pl.Series) -> Floats:
    """Numbers in double precision, NaN where they are missing."""
    numbers: Floats = values.cast(pl.Float64).to_numpy()
    return numbers


def _numbered(rows: Rows, ids: ActionIds | None) -> Rows:
    """The rows with places for ids."""
    candidates = None if rows.candidates is None else placed(ids, rows.candidates)
    return replace(rows, action=placed(ids, rows.action), candidates=candidates)


# -- Reward models: fitted on some rows of a log, they predict the rewards of all actions on others ------------------------


def reward_model(model: object, rows: Rows, n_actions: int, seed: int) -> Predict:
    """A model of `counterpoise.models`, fitted on rows: from contexts to the rewards of all actions."""
    context, action = rows.context.cpu().numpy(), rows.action.cpu().numpy()
    return fit_numbers(model, context, action, rows.reward.double().cpu().numpy(), n_actions, seed)


class RewardModels:
    """Cross-fitted reward models of a log in memory or in files.

    A row is predicted by a model fitted on other folds, which has seen no row of the fold that evaluates the policy either. Models
    are fitted when they are first needed, on at most `Reward.sample` rows spread over the log, and predict chunk by chunk.
    """

    def __init__(self, source: Source, rows: int, n_actions: int, model: object, folds: int, seed: int) -> None:
        if folds == 2:
            raise OptionError(
                "a reward model with `folds=2` has no rows left to learn from.", do="Pass `folds=3` or more."
            )
        self.source, self.n_actions, self.model, self.seed = source, n_actions, model, seed
        self.folds = folds or FOLDS
        self._step = math.ceil(rows / as_reward(model).sample)
        self._sample: tuple[Rows, NDArray[np.int64]] | None = None
        self._models: dict[frozenset[int], Predict] = {}
        self._tables: dict[int | None, Tensor] = {}

    def digest(self, of_log: str) -> str:
        """A digest of the log and the model together, so that a checkpoint of another model is refused."""
        return hashlib.sha256(f"{of_log} {as_reward(self.model)!r}".encode()).hexdigest()[:16]

    def with_predictions(self, start: int, rows: Rows, without: int | None) -> Rows:
        """The rows of a chunk with the rewards that are predicted for all actions, by models that have not seen the fold `without`."""
        if without in self._tables:
            return replace(rows, model_rewards=self._tables[without])
        folds, table = self.source.folds(start, rows, self.folds), torch.empty(len(rows), self.n_actions)
        for fold in range(self.folds):
            own = np.flatnonzero(folds == fold)
            if len(own):
                left_out = frozenset({fold} if without is None else {fold, without})
                table[own] = torch.as_tensor(self._without(left_out)(rows.context[own].cpu().numpy())).float()
        table = table.to(rows.context.device)
        if self.source.files is None:  # files may be larger than memory
            self._tables = {without: table}
        return replace(rows, model_rewards=table)

    def _without(self, folds: frozenset[int]) -> Predict:
        if folds not in self._models:
            rows, theirs = self._sampled()
            kept = ~np.isin(theirs, list(folds))
            if not kept.any():
                raise LogError(
                    "there are too few rows or clusters for a reward model: some folds have none to learn from."
                )
            self._models[folds] = reward_model(self.model, rows.take(torch.as_tensor(kept)), self.n_actions, self.seed)
        return self._models[folds]

    def _sampled(self) -> tuple[Rows, NDArray[np.int64]]:
        """The rows that models are fitted on, and their folds."""
        if self._sample is None:
            parts = []
            for start in self.source.starts:
                rows = self.source.logged(start)
                some = slice(-self.source.before(start) % self._step, None, self._step)
                parts.append((rows.take(some), self.source.folds(start, rows, self.folds)[some]))
            self._sample = (
                reduce(Rows.followed_by, (rows for rows, _ in parts)),
                np.concatenate([folds for _, folds in parts]),
            )
        return self._sample


# -- the first look at a log, which checks every row and finds out what training must know before it starts -------------


@dataclass(frozen=True)
class Inspection:
    """What a first pass over a log finds."""

    rows: int
    n_actions: int
    held_out: int
    digest: str  # of every number of the log, in its order
    columns: Scaling  # of the contexts to train on
    mean_reward: float
    rewards: tuple[float, float]  # the least and the largest
    reward_size: float  # the root of their mean square
    ids: ActionIds | None  # of the actions, where they are not 0, 1, 2, …

    @property
    def gain_size(self) -> float:
        """The root of the mean square of the rewards above the least."""
        low = self.rewards[0]
        return math.sqrt(max(self.reward_size**2 - low * (2 * self.mean_reward - low), 0.0))


@dataclass
class _Totals:
    """What adds up over the rows of a log."""

    columns: Scaling
    rows: int = 0
    held_out: int = 0
    total: float = 0.0
    square: float = 0.0
    lowest: float = np.inf
    highest: float = -np.inf

    def add(self, rows: Rows, held_out: Good, trained: Good) -> None:
        """Add the rows of a chunk that are held out or trained on."""
        ours = held_out | trained
        self.rows, self.held_out = self.rows + int(ours.sum()), self.held_out + int(held_out.sum())
        reward = rows.reward if ours.all() else rows.reward[torch.as_tensor(ours, device=rows.reward.device)]
        if len(reward):
            self.lowest, self.highest = min(self.lowest, float(reward.min())), max(self.highest, float(reward.max()))
            self.total += float(reward.sum(dtype=torch.float64))
            self.square += float(reward.double().square().sum())
        # piece by piece, so that a log in memory is not copied whole, and gives what its files give
        for at in range(0, len(rows), CHUNK):
            piece = slice(at, at + CHUNK)
            chosen = torch.as_tensor(trained[piece], device=rows.context.device)
            self.columns += Scaling.of(rows.context[piece][chosen].cpu().numpy())

    def inspection(self, source: Source, n_actions: int, ids: ActionIds | None, digest: str) -> Inspection:
        """The `Inspection` they make; levels of categories stay 0 and 1."""
        encoding = source.reading.encoding
        return Inspection(
            rows=self.rows,
            n_actions=n_actions,
            held_out=self.held_out,
            digest=digest,
            columns=self.columns if encoding is None else self.columns.leaving(encoding.is_indicator),
            mean_reward=self.total / self.rows,
            rewards=(self.lowest, self.highest),
            reward_size=math.sqrt(self.square / self.rows),
            ids=ids,
        )


def inspect(source: Source, n_actions: int | None, split: Split, ids: ActionIds | None = None) -> Inspection:
    """Check every row, and raise one error that counts everything that is wrong.

    Without `n_actions` and `ids`, the actions are the distinct ids of the log, in ascending order.
    """
    totals, distinct = _Totals(Scaling.of(np.empty((0, source.width)))), DistinctIds(source.names.action)
    problems: list[Problem] = []
    unknown: list[Problem] = []  # actions that the policy does not have
    for start in source.starts:
        rows, bad = source.look(start)
        problems += bad
        if not len(rows) or (problems and not source.log.drop_bad_rows):  # which is refused below
            continue
        for actions in (rows.action, rows.candidates):
            if actions is None:
                continue
            if n_actions is None and ids is None:
                distinct.add(actions.numpy())
            elif not unknown or actions.ndim == 1:
                unknown += _unknown(actions, source, source.before(start), n_actions, ids)
        totals.add(rows, *replace(split, fold=None).parts(source, start, rows))
    if problems and not source.log.drop_bad_rows:
        refuse(problems, source.total)
    if not source.rows:
        raise all_bad(problems, source.total) if source.dropped else LogError("the log has no rows.")
    if unknown:
        refuse(unknown, source.rows)
    source.check_digits()
    if totals.lowest == totals.highest:
        raise LogError(
            f"all {source.rows:,} rewards are {source.in_its_units(totals.lowest):g}, so no action is better than another and there is "
            "nothing to learn."
        )
    if ids is not None:
        n_actions = len(ids)
    elif n_actions is None:
        n_actions = int(distinct.ids[-1]) + 1
        modeled = None if source.memory is None else source.memory.model_rewards
        # unless they are 0, 1, 2, …, or a model has a column for each gap
        if distinct.have_gaps and (modeled is None or modeled.shape[1] != n_actions):
            n_actions, ids = len(distinct.ids), distinct.ids
    return totals.inspection(source, n_actions, ids, source.digest())


def refuse_leaks(source: Source) -> None:
    """Refuse a context with a column that gives the reward away, by the doctor's own check of the first rows."""
    names = source.names
    rows = source.frame(source.starts[0], [names.reward, *names.context]).head(SAMPLED)
    rows = rows.with_columns(pl.col(names.reward).cast(pl.Float64, strict=False))
    for column, share in leaks(rows.lazy(), names.reward, names.context).items():
        raise LogError(
            f"the context column {column!r} explains {share:.0%} of the reward's variance on held-out rows: it was probably written after "
            "the choice, and a policy that uses it is worth nothing on new rows.",
            do="Leave it out of `context=`; `counterpoise doctor` has more about the log.",
        )


def without_fold(inspection: Inspection, source: Source, split: Split) -> Inspection:
    """The same for the rows outside the split's fold, all of which were checked before."""
    totals = _Totals(Scaling.of(np.empty((0, source.width))))
    for start in source.starts:
        rows = source.logged(start)
        totals.add(rows, *split.parts(source, start, rows))
    if totals.rows - totals.held_out < 1:
        raise OptionError(
            f"with `folds={split.folds}` a fold has all rows, and none are left to train on.",
            do="Pass `folds=None`, or a log with more clusters.",
        )
    return totals.inspection(source, inspection.n_actions, inspection.ids, inspection.digest)


def _unknown(action: Tensor, source: Source, start: int, n_actions: int | None, ids: ActionIds | None) -> list[Problem]:
    """Rows with an action (or candidates) that the policy does not have."""
    if ids is not None:
        allowed, outside = f"the policy's {len(ids):,} actions", placed(ids, action) < 0
    else:
        assert n_actions is not None
        allowed, outside = f"the integers 0 … {n_actions - 1}", action >= n_actions
    odd = torch.nonzero(outside & (action >= 0))  # anything that is not an id is reported as such
    if not len(odd):
        return []
    part, name = ("action", source.names.action) if action.ndim == 1 else ("candidates", str(source.names.candidates))
    expected = f"be {'one' if action.ndim == 1 else 'some'} of {allowed}"
    advice = "Drop those rows, or change `n_actions=` or the policy."
    rule = Rule(part, name, expected, nw.col(ID) >= 0, ID, advice)
    return [
        Problem(
            rule, len(set(odd[:, 0].tolist())), source.number_of(start + int(odd[0, 0])), int(action[tuple(odd[0])])
        )
    ]
