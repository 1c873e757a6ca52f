"""Whether a policy is evaluated on the rows that it was learned from, which flatter it.

Policies that were learned here carry a sketch of their training rows. Any other policy that is called is asked what it does in a
sample of contexts, and tested: does it know more about the reward of each row than rows like it can tell?
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.diagnostics import Caveat
from counterpoise.diagnostics.verdict import OWN_ROWS
from counterpoise.display import percent
from counterpoise.engines.registry import engine_of, rows
from counterpoise.engines.sampling import Spread
from counterpoise.errors import CounterpoiseError, OptionError
from counterpoise.features import Encoder
from counterpoise.log.expressions import column, columns, of_64_bits
from counterpoise.log.log import Log
from counterpoise.log.parts import Data, is_minimized
from counterpoise.log.question import Learning, NoWeight, Question
from counterpoise.log.sketches import Keys, Lesson, Overlap, Sketch, row_keys
from counterpoise.log.targets import Always, CrossFitted, Target, is_ranker
from counterpoise.moments import Floats
from counterpoise.readers.policies import has_table, probabilities, table_of
from counterpoise.threads import threads

if TYPE_CHECKING:
    from counterpoise.evaluation.checks import RewardMoments

SAMPLE = 200_000  # rows of a log in Spark


def check_training_rows(question: Question, whole: RewardMoments) -> Iterator[Caveat]:
    """A caveat for every policy that recognizes rows of this log from its training, or seems to."""
    log = question.log
    sources = {target.name: getattr(target.source, "lesson_", None) for target in question.policies}
    lessons = {name: lesson for name, lesson in sources.items() if isinstance(lesson, Lesson)}  # learned here
    unknown = [target for target in question.policies if not isinstance(target.source, CrossFitted)]
    others = [target for target in unknown if target.name not in lessons]
    if lessons and log.context and log.action is not None:
        for name, overlap in _overlaps(question, {name: lesson.sketch for name, lesson in lessons.items()}).items():
            if not overlap.is_same:
                continue
            text = f"It was learned from these <rows>: {percent(overlap.share)} of them were in its training, which flatters it."
            do, estimate = "Evaluate it on other <rows>.", lessons[name].estimate
            if estimate is not None:
                text += (
                    f" On <rows> that it had not seen, learning estimated {estimate['value']:.4g} per <row> ({estimate['lower']:.4g} to "
                    f"{estimate['upper']:.4g}), with the verdict {estimate['verdict']}."
                )
                do = "Use that, or evaluate it on other <rows>."
            numbers = {"share": overlap.share, "share_of_training": overlap.share_of_sketch}
            yield Caveat(OWN_ROWS, text, numbers, do, target=name)
    if log.trained_on is None:
        if question.sequences is None and log.context:
            yield from _seeming(question, [target for target in others if not is_ranker(target.source)], whole)
    elif log.trained_on is not False:
        overlap = _overlap_with(question, log.trained_on)
        text = f"It was trained on {percent(overlap.share)} of these <rows>, which flatters it."
        numbers = {"share": overlap.share, "share_of_training": overlap.share_of_sketch}
        fixed = [target for target in question.targets if not isinstance(target.source, Always)]
        for target in (others if question.policies else fixed) if overlap.is_same else ():
            yield Caveat(OWN_ROWS, text, numbers, "Evaluate it on other <rows>.", target=target.name)


def _overlaps(question: Question, sketches: Mapping[str, Sketch]) -> dict[str, Overlap]:
    """How the rows of the log fit what each policy remembers; with several rewards, the best fit counts."""
    watches = {name: {reward: sketch.watch() for reward in question.log.reward} for name, sketch in sketches.items()}

    def look(reward: str, keys: Keys) -> None:
        for mine in watches.values():
            mine[reward].add(keys)

    _over_keys(question.log.but(key=()), look)
    return {
        name: max((watch.overlap() for watch in mine.values()), key=lambda overlap: (overlap.is_same, overlap.share))
        for name, mine in watches.items()
    }


def _overlap_with(question: Question, trained_on: Data) -> Overlap:
    """How many of the log's rows are among those that a user says policies were trained on: by key, or else by what is in them."""
    log, sketch = question.log, Sketch()
    if not log.key and not (log.context and log.action is not None):
        raise OptionError(
            "`trained_on=` are rows to find in the log, and there is nothing to match them by.",
            do="Pass `key=`, what identifies a row; or `context=` and `action=`.",
        )
    if log.is_arrays:
        raise OptionError("`trained_on=` needs a log with named columns.", do="Pass a mapping of arrays as the log.")
    rows = Log(trained_on, reward=log.reward[0], action=log.action, context=log.context, key=log.key)
    try:
        _over_keys(rows, lambda _, keys: sketch.add(keys))
    except CounterpoiseError as error:
        raise OptionError(f"`trained_on=` cannot be read: {error}") from error
    if not sketch.rows:
        return Overlap(0.0, 0.0, False)
    if not log.key:
        return _overlaps(replace(question, log=log.but(reward=log.reward[0])), {"": sketch})[""]
    watch = sketch.watch()
    _over_keys(log, lambda _, keys: watch.add(keys))
    overlap = watch.overlap()
    return replace(overlap, is_same=overlap.share > 0)  # two rows with one key are one row


def _over_keys(log: Log, look: Callable[[str, Keys], None]) -> None:
    """Show the keys of a log's rows, batch by batch: by its `key` if it has one, or else by context, action and each reward."""
    bare = log.only(*(("key",) if log.key else ("reward", "context", "action")))
    question = Question(bare, (), NoWeight(), learning=None if log.key else Learning())

    def of_batch(batches: Iterator[pl.DataFrame]) -> None:
        for batch in batches:
            if log.key:
                none = np.zeros(batch.height)
                look("", row_keys([batch.get_column(name) for name in log.key], none, none))
                continue
            good = batch.drop_nulls([str(log.action), *log.reward])
            context = [good.get_column(name) for name in log.context]
            for reward in log.reward:
                look(reward, row_keys(context, good.get_column(str(log.action)), good.get_column(reward)))

    engine = engine_of(bare)
    if engine.is_cluster:
        of_batch(iter([engine.sampled(question, SAMPLE)]))
    else:
        engine.over_rows(question, of_batch, None)


# -- A policy that remembers rewards: it departs from what it does in similar contexts, and each time is right ---------

ROWS = 4000  # that a policy is asked about
FEWEST = 500  # of which a test can tell anything
ACTIONS = 20  # the most frequent ones; rows of others are left out
REPEATED = 5  # rows per context, from which on a policy cannot know a single one
TREES, LEAF = 40, 5


def _seeming(question: Question, targets: Sequence[Target], whole: RewardMoments) -> Iterator[Caveat]:
    """The caveats for policies that seem to know the rewards of this log's own rows."""
    try:
        from sklearn.ensemble import ExtraTreesRegressor  # noqa: F401
    except ImportError:  # what was fitted elsewhere brings it along
        return
    log, action = question.log, str(question.log.action)
    total = max(whole.rows + whole.moments[0].dropped, 1)
    some = of_64_bits(rows(question.slim(), Spread(ROWS, total), log.context), question)
    frequent = some.get_column(action).rename("a").drop_nulls().value_counts(sort=True).get_column("a").head(ACTIONS)
    some = some.filter(column(action).is_in(frequent.implode()))
    # they may be too few, or contexts may repeat so often that no row stands out
    if some.height < FEWEST or some.select(columns(log.context)).n_unique() * REPEATED < some.height:
        return
    for target in targets:
        for reward in log.reward:
            with suppress(CounterpoiseError, TypeError, ValueError, pl.exceptions.PolarsError):
                memory = _memory(target, some, question, reward, whole.rows)
                if memory is not None and memory.is_seen:
                    yield memory.caveat(target.name, reward)


def _memory(target: Target, rows: pl.DataFrame, question: Question, reward: str, whole: int) -> Memory | None:
    """What a policy seems to remember of the rewards of some rows, in a log of so many."""
    log, action, named = question.log, str(question.log.action), str(question.log.propensity)
    r = _numbers(rows.get_column(reward))
    if named in rows.columns and question.propensity_model is None:
        p = _numbers(rows.get_column(named))
    else:  # where propensities have no column of their own, how often each action was taken
        p = _numbers(rows.select((pl.len().over(column(action)) / pl.len()).alias("share")).get_column("share"))
    good = np.isfinite(r) & (p > 0) & (p <= 1)
    if good.sum() < FEWEST:
        return None
    # what flatters a policy of costs is less of them
    sign = 1.0 if is_minimized(log.minimize, reward) is False else -1.0
    rows, r, p = rows.filter(pl.Series(good)), sign * r[good], p[good]
    logged = rows.get_column(action).rename("a")
    actions = logged.unique().sort()
    codes = logged.replace_strict(actions, np.arange(len(actions)), return_dtype=pl.Int64).to_numpy()
    table = _answers(target, rows, question, actions)
    context = rows.select(column(name).alias(f"x{k}") for k, name in enumerate(log.context))
    return memory_of(Encoder.of(context, context.columns).plain(context), codes, table, r, p, whole)


def _numbers(values: pl.Series) -> Floats:
    return values.rename("x").cast(pl.Float64, strict=False).fill_null(math.nan).to_numpy()


def _answers(target: Target, rows: pl.DataFrame, question: Question, actions: pl.Series) -> Floats:
    """A policy's probabilities of these actions in every row."""
    if has_table(target.source):
        answer = table_of(target.source, rows, question)
        places = {name: k for k, name in enumerate(answer.actions.tolist())}
        table = np.zeros((rows.height, len(actions)))
        for k, name in enumerate(actions.to_list()):
            if name in places:
                table[:, k] = answer.probabilities[:, places[name]]
        return table
    name = str(question.log.action)
    frames = (rows.with_columns(pl.lit(value, rows.schema[name]).alias(name)) for value in actions)
    return np.stack([probabilities(target.source, each, question, target.name, "a sample") for each in frames], axis=1)


@dataclass(frozen=True)
class Memory:
    """What a policy seems to remember of the rewards: what that adds to its value, and how sure that is."""

    flattery: float  # per row
    error: float  # of the value
    z: float
    gain: float  # over the logging policy, per row, by anything else

    @property
    def is_seen(self) -> bool:
        """Whether it is there beyond chance and matters, and the policy's other merits do not explain it.

        A policy that rightly knows most of the rewards, such as a classifier that saw all labels, knows some that rows like them hide.
        """
        return self.z > SURE and self.flattery > max(MATTERS * self.error, BESIDE * self.gain)

    def caveat(self, target: str, reward: str) -> Caveat:
        """What to say of it."""
        text = (
            f"It seems to have been fitted on these <rows>: it knows more about the rewards of single <rows> than <rows> like them can "
            f"tell, which flatters it by about {self.flattery:.2g} per <row>, where the standard error is {self.error:.2g}."
        )
        do = (
            "Evaluate it on other <rows>, or pass those that it was fitted on as `trained_on=`; `trained_on=False` means that these were "
            "not among them."
        )
        numbers = {"flattery": self.flattery, "error": self.error, "z": self.z}
        return Caveat(OWN_ROWS, text, numbers, do, target=target, reward=reward)


SURE, MATTERS, BESIDE = 3.5, 0.5, 0.2  # by simulation, benchmarks/verdicts.py own-rows


@np.errstate(all="ignore")  # a forest refuses what is not finite
def memory_of(context: Floats, action: NDArray[np.int64], table: Floats, r: Floats, p: Floats, rows: int) -> Memory:
    r"""How much a policy knows about the reward of each row beyond what it shows in similar rows, and beyond what those earned.

    For each row, rows like it (a forest's, without the row itself) say what the policy would do, :math:`\hat\pi_i`, and what the
    action earns, :math:`\hat r_i`. A policy departs from the former where it knows better, or by the chance of its own training. If that
    was on other rows, its departures have nothing to do with the noise in this reward; if it was on this row, they follow it:

    .. math:: \frac1n \sum_i \frac{\pi(a_i \mid x_i) - \hat\pi_i}{p_i} (r_i - \hat r_i)

    is what the policy gains by its departures. What it rightly knows and rows like these don't show fades as there are more of
    them: seen from a quarter of the rows, it is larger. We subtract how much larger, if it is; what is left is memory.
    """
    from sklearn.ensemble import ExtraTreesRegressor

    n, every = len(r), np.arange(len(r))
    scale = context.std(axis=0)
    x = (context - context.mean(axis=0)) / np.where(scale > 0, scale, 1.0)
    taken = np.eye(table.shape[1])[action]
    known = np.stack([table[every, action], r], axis=1)
    spread = np.where(known.std(axis=0) > 0, known.std(axis=0), 1.0)

    def predictions(some: NDArray[np.int64]) -> Floats:
        """What some rows say about the policy's choice and the reward of every row, none about itself."""
        scores = _linear(x, table, some)
        mine, others = scores[every, action], np.where(taken > 0, -np.inf, scores).max(axis=1)
        z = np.column_stack([x, taken, mine, mine - others])
        forest: Any = ExtraTreesRegressor(
            TREES, min_samples_leaf=LEAF, max_features=0.7, bootstrap=True, oob_score=len(some) == n, random_state=0
        ).fit(z[some], (known / spread)[some])
        return np.asarray(forest.oob_prediction_ if len(some) == n else forest.predict(z)) * spread

    def gains(predicted: Floats) -> Floats:
        departure, surprise = (known - predicted).T
        return np.asarray(departure / p * (surprise - surprise.mean()))

    def memory(*terms: Floats) -> Memory:
        forms = [(float(each.mean()), float(each.std()) / math.sqrt(n)) for each in terms]
        flattery, z = min(mean for mean, _ in forms), min(mean / max(error, 1e-300) for mean, error in forms)
        w = known[:, 0] / p
        error = float(np.std(w * (r - r.mean()))) / math.sqrt(max(rows, 1))
        return Memory(flattery, error, z, float(((w - 1) * (r - r.mean())).mean()) - flattery)

    with threads(n * x.shape[1]):
        full = gains(predictions(every))
        if not memory(full).is_seen:  # nor is anything less
            return memory(full)
        part = np.random.default_rng(0).permutation(n) % 4
        quarters = np.zeros(n)
        for k in (0, 1):
            quarters[part != k] += gains(predictions(np.flatnonzero(part == k)))[part != k]
        quarters /= 2 - (part < 2)
    return memory(full, 2 * full - quarters)


def _linear(x: Floats, table: Floats, some: NDArray[np.int64]) -> Floats:
    """A ridge regression of a policy's probabilities on the context; each row is predicted without itself."""
    wide = np.column_stack([np.ones(len(x)), x])
    own = wide[some]
    hat = np.linalg.solve(own.T @ own + RIDGE * np.eye(wide.shape[1]), own.T)
    scores = wide @ (hat @ table[some])
    leverage = np.minimum((own.T * hat).sum(axis=0), 0.99)
    scores[some] = table[some] - (table[some] - scores[some]) / (1 - leverage)[:, None]
    return np.asarray(scores)


RIDGE = 3.0
