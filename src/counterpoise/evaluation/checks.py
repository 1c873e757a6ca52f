"""Checks of a log that sums cannot make: what single rows, their ids and the policies reveal about an answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.diagnostics import Caveat
from counterpoise.diagnostics.diagnose import of_mean
from counterpoise.diagnostics.findings import (
    LOOKED_AT,
    Witnesses,
    about_densities,
    about_lists,
    about_misread,
    about_sampling,
    counted_of,
    may_read,
    meaning_of,
)
from counterpoise.diagnostics.seeming import (
    about_repeats,
    fall_of,
    find_lists,
    repeats,
    says_action,
    says_list,
    says_position,
    shows_once,
    tells_apart,
)
from counterpoise.diagnostics.together import FEWEST, Together, are_smooth, moving_together, sureness
from counterpoise.diagnostics.verdict import (
    CHECK_PROPENSITIES,
    MISSING,
    REREAD,
    Uneven,
    labeled_shares,
)
from counterpoise.display import shortened
from counterpoise.engines.registry import engine_of, rows
from counterpoise.engines.rows import Sample, good_of, named_of
from counterpoise.engines.sampling import SPREAD, Ids
from counterpoise.engines.streaming import good_rows
from counterpoise.errors import CounterpoiseError, LogError, verbatim
from counterpoise.evaluation.own_rows import check_training_rows
from counterpoise.evaluation.support import missing_actions
from counterpoise.log.columns import MODEL_REWARD, PROPENSITY
from counterpoise.log.expressions import columns, computed, roots_of
from counterpoise.log.kinds import go_with, reduced, that_sounds_like
from counterpoise.log.kinds.kind import Severity
from counterpoise.log.parts import CONDITIONAL, MARGINAL, USUAL, Minimize, describes, ids_among, sampling_among, usual
from counterpoise.log.question import LOGGING, Question
from counterpoise.log.targets import Chosen
from counterpoise.moments import Floats, LogMoments
from counterpoise.moments.log_moments import Label
from counterpoise.moments.weighed import PLAIN
from counterpoise.readers.frames import with_policies
from counterpoise.weights import Balanced


@dataclass(frozen=True)
class RewardMoments:
    """The moments that answer a question, one for each reward; moments that were handed over have no question."""

    moments: tuple[LogMoments, ...]
    rewards: tuple[str | None, ...]  # their names, if known
    question: Question | None = None
    earlier_rows: int = 0  # of logs before the question's own, which a state held
    of_rows: tuple[Caveat, ...] = ()  # what checks of single rows say
    minimize: Minimize = None  # the rewards of which less is better, if anybody said

    @property
    def is_clustered(self) -> bool:
        """Whether groups hold clusters."""
        return self.moments[0].cluster is not None

    @property
    def is_by_policy(self) -> bool:
        """Whether several policies wrote the log, and the last segment says which of them."""
        return self.moments[0].weight.is_by_policy(self.moments[0].segment_columns)

    def over_policies(self) -> RewardMoments:
        """The same, added up over the policies that wrote the log: only then do balanced weights average to 1, as any ratio."""
        if not self.is_by_policy:
            return self
        question = self.question
        return replace(
            self,
            moments=tuple(replace(log.over_last_segment(), weight=PLAIN) for log in self.moments),
            question=None if question is None else replace(question, segment=question.segment[:-1]),
        )

    def with_caveats(self, more: Iterable[Caveat]) -> RewardMoments:
        """The same with more to say about the log."""
        return replace(self, of_rows=(*self.of_rows, *more))

    @property
    def looks(self) -> int:
        """How many answers there were while the log grew, this one among them."""
        return self.moments[0].looks

    @property
    def rows(self) -> int:
        """How many rows the question's own log has, without those that were dropped."""
        return self.moments[0].n - self.earlier_rows

    @cached_property
    def _by_place(self) -> dict[Label | None, list[Caveat]]:
        """The caveats about single places, of which there may be as many as segments."""
        by_place: dict[Label | None, list[Caveat]] = {}
        for caveat in self.of_rows:
            for place in caveat.places or ():
                by_place.setdefault(place, []).append(caveat)
        return by_place

    def caveats(self, targets: Container[str], reward: str | None, place: Label | None) -> list[Caveat]:
        """What the checks say about an answer on these targets."""
        near = [*(caveat for caveat in self.of_rows if caveat.places is None), *self._by_place.get(place, ())]
        return [caveat for caveat in near if caveat.touches(targets, reward)]


# -- What rows say beyond the moments: ids whose rows move together, lists, and misread propensities -------------------


SAMPLED = 4_000  # rows of whole ids
ENOUGH, AT_MOST = 200, 40_000  # ids that are enough to tell; until then, more rows are taken
REPEATED = 1.05  # rows per id, at least
SURELY = 3.5  # standard errors beyond chance, of a column whose name says nothing; several are tried
SCREENED = 2.0  # of which the first rows of a longer log have to show so many, for a column to be tried
TRIED = 4  # such columns, those first whose rewards are the most alike
COMPARED = 16  # columns, besides those of the question, by which rows are compared
OFTEN = 0.05  # of the rows: fewer repeated ones make an interval too narrow by less than 3 %
LABELED, ACTIONS = 200_000, 50  # rows, and the most common of their actions, whose labels are counted
MOST_ACTIONS = 1000  # of a column that may be the action
FIRST = 10_000  # rows that the doctor's cheap checks look at
RARE = 0.001  # once this share of rows is dropped, propensities are looked at
MATTERS = 0.25  # standard errors: a bias of that size lowers what a 95 % interval covers by half a percent
NAME = "the id as a number"
FAR = 0.1  # a mean weight this far from 1 may have misread propensities


def with_checks(whole: RewardMoments) -> RewardMoments:
    """The moments of a question with what every check has to say about its log."""
    question = whole.question
    if question is None:  # moments that were handed over have no rows to check
        return whole
    sample, caveats = Sample(question), list[Caveat]()
    for check in _checks_of(question):
        with suppress(LogError):  # if a check cannot read its sample, the answer stands without it
            caveats += check(sample, replace(whole, of_rows=tuple(caveats)))
    return replace(whole, of_rows=tuple(caveats))


def _checks_of(question: Question) -> Iterator[Callable[[Sample, RewardMoments], Iterator[Caveat]]]:
    """The checks for what a log has."""
    if question.policies or not (question.log.trained_on is None or question.log.trained_on is False):
        yield lambda sample, whole: check_training_rows(sample.question, whole)
    if any(target.tells_actions for target in question.targets):
        yield lambda sample, whole: missing_actions(sample.question, whole)
    if question.log.proxy is not None:
        yield labels_by_action
    if question.sequences is not None:
        yield propensity_meaning
        return
    if not question.log.is_arrays and not question.is_binned:
        yield actions_as_probabilities
        yield other_columns
    if _has_own_propensities(question) and go_with(question.kinds, "mean weights"):
        yield misread_propensities
        yield reread_propensities
        yield counted_propensities


def labels_by_action(sample: Sample, whole: RewardMoments) -> Iterator[Caveat]:
    """Whether some actions have more labels than others, on the first rows: by the log's column of actions, or one that may be it."""
    question, log, names = sample.question, sample.question.log, sample.columns
    item = log.action or usual("action", names)
    taken = {column for _, column in question.columns} | {*log.context, *question.segment}
    items = [item] if item is not None else [name for name in names if name not in taken][:COMPARED]
    if not items:
        return
    frame = sample.first(LABELED, [*items, *([] if log.cluster is None else [log.cluster])])
    labels = (_numbers(frame, str(log.observed)) == 1.0).astype(np.float64)
    at_one_rate = log.label_propensity is None
    if not at_one_rate:
        with np.errstate(divide="ignore", invalid="ignore"):
            labels /= _numbers(frame, str(log.label_propensity))
    is_known = np.isfinite(labels)
    frame, labels = frame.filter(is_known), labels[is_known]
    if not labels.any():
        return
    if item is None:
        items = [name for name in items if _may_be_action(question, frame, name)]
    clusters = None if log.cluster is None else _values(frame, log.cluster)
    for name in items:
        uneven = _labels_by(frame.get_column(name), labels, clusters, at_one_rate=at_one_rate)
        uneven = replace(uneven, p=min(1.0, uneven.p * len(items)))
        yield from uneven.caveats(at_one_rate=at_one_rate)


def _may_be_action(question: Question, frame: pl.DataFrame, name: str) -> bool:
    """Whether a column that nobody named has the log's actions in it: then the rows of each value, counted by 1/p, add up to all rows."""
    values = _values(frame, name)
    if (
        not _has_own_propensities(question)
        or values.dtype.is_float()
        or values.dtype.is_nested()
        or values.dtype.is_object()
    ):
        return False
    if values.null_count() or not 2 <= values.n_unique() <= MOST_ACTIONS:
        return False
    taken = values.rank("dense").to_numpy() - 1
    with np.errstate(divide="ignore"):
        counts = 1.0 / _numbers(frame, str(question.log.propensity))
    total, square = np.bincount(taken, counts), np.bincount(taken, np.square(counts))
    return bool(np.isfinite(total).all()) and bool((np.abs(total - len(taken)) <= 5.0 * np.sqrt(square)).all())


def _labels_by(actions: pl.Series, labels: Floats, clusters: pl.Series | None, *, at_one_rate: bool) -> Uneven:
    """How evenly labels, each counted by 1/e, are spread over actions: the action that chance explains least."""
    taken, n = actions.rename("x").rank("dense").fill_null(0).to_numpy().astype(np.int64), len(labels)
    mean, square = float(labels.mean()), float(np.square(labels).mean())
    rows, off = np.bincount(taken), np.bincount(taken, labels - mean)
    error = np.sqrt(np.maximum(square - mean**2, 0.0) * rows * (1.0 - rows / n))  # as if they were spread evenly
    common, groups = np.argsort(-rows)[:ACTIONS], math.inf
    if clusters is not None:
        ids = clusters.rank("dense").fill_null(0).to_numpy().astype(np.int64)
        groups = float(len(np.unique(ids)))
        for k in common:
            own = np.bincount(ids, (labels - mean) * ((taken == k) - rows[k] / n))
            error[k] = max(error[k], math.sqrt(float(own @ own)))
    worth = n * mean**2 / square * np.minimum(rows, n - rows) / n
    p = [of_mean(float(off[k]), float(error[k]), float(worth[k]), groups) for k in common]
    k = int(common[int(np.argmin(p))])
    share, rest = mean + float(off[k]) / rows[k], mean - float(off[k]) / max(n - rows[k], 1)
    where = f"{shortened(actions.name)} is {shortened(actions[int(np.argmax(taken == k))])}"
    text = labeled_shares(share, rest, where, at_one_rate=at_one_rate)
    return Uneven(text, {"share": share, "share_of_others": rest}, min(1.0, min(p) * int((rows > 0).sum())))


def actions_as_probabilities(sample: Sample, whole: RewardMoments) -> Iterator[Caveat]:
    """Whether the column of a target has the actions 0 and 1 in it, and not probabilities of the logged one, going by its name."""
    own = sample.question.log.action
    named = [
        target
        for target in sample.question.targets
        if target.is_column and (target.column == own or says_action(target.column))
    ]
    if not named:
        return
    frame = sample.first(FIRST)
    for target in named:
        values = frame.get_column(target.column) if target.column in frame.columns else pl.Series([0.5])
        if not values.drop_nulls().cast(pl.Float64, strict=False).is_in([0.0, 1.0]).all():
            continue
        what = "is the log's own column of actions" if target.column == own else "sounds like a column of actions"
        text = f"{target.column!r} {what} and has only 0 and 1 in it, but it was read as a target: the probability of the logged action."
        do = f"If these are the actions that the policy takes, pass `target={Chosen(target.column)!r}` and `action=`."
        yield Caveat("actions-as-probabilities", text, do=do, target=target.name)


def other_columns(sample: Sample, whole: RewardMoments) -> Iterator[Caveat]:
    """What columns that nobody named suggest, first by their names: ids whose rows move together, lists, sampling, and repeated rows."""
    question, log = sample.question, sample.question.log
    first = pl.DataFrame()
    if log.cluster is None and not log.rows_are_independent:
        first = _with_unnamed(sample)
        contrast = next((contrast for contrast in question.contrasts if contrast[1]), question.contrasts[0])

        def terms(frame: pl.DataFrame) -> dict[str, tuple[Floats, Floats]]:
            return {name: _terms(question, frame, place, *contrast) for place, name in enumerate(log.reward)}

        together = together_by(question, sample.columns, whole.rows, terms, len(log.reward), first)
        yield from (replace(each.caveat(), reward=reward) for reward, each in together.items())
    yield from lists_as_rows(sample, whole)
    taken = {column for _, column in question.columns} | {*log.context, *(log.baseline or ())}
    possible = sampling_among(sample.columns, taken) if question.kept_with is None else {}
    for name, is_sure in possible.items():
        caveat = about_sampling(sample.first(FIRST, list(possible)).get_column(name), is_sure=is_sure)
        if caveat is not None:
            yield caveat
            break
    if not log.key:  # probabilities and rewards alone may be the same for different decisions
        counts = repeats(first, first.schema)
        is_often = counts is not None and counts.repeated >= OFTEN * counts.rows
        if counts is not None and is_often and (counts.is_odd or tells_apart(first.lazy(), first.schema)):
            yield about_repeats(counts.repeated, counts.rows, are_first=counts.rows == FIRST)


def together_by(
    question: Question,
    columns: Sequence[str],
    rows: int,
    terms: Callable[[pl.DataFrame], Mapping[str, tuple[Floats, Floats]]],
    looks: int,
    first: pl.DataFrame | None = None,
) -> dict[str, Together]:
    """For every estimate, the column whose rows move together the most, if any, on a sample of whole ids.

    Columns whose names say that they identify somebody come first; if none of them moves, any column that nobody named is tried whose
    values repeat, and by which the rewards of the `first` rows are alike. `terms` makes of rows each estimate's terms, nan where a reward
    is bad, and weights; there are so many `looks` at each column.
    """
    log = question.log
    if log.cluster is not None or log.rows_are_independent or rows < 2 * FEWEST:
        return {}
    named = ids_among(columns, _taken(question))

    def strongest(possible: Mapping[str, bool], looks: int, *, is_named: bool) -> dict[str, Together]:
        best: dict[str, Together] = {}
        for column, is_sure in possible.items():
            whole_ids = _whole_ids(question, column, rows, is_named=is_named)
            if whole_ids is None:
                continue
            sample, ids = whole_ids
            for name, (psi, weights) in terms(sample).items():
                known = ~np.isnan(psi)
                if known.sum() < 2 * FEWEST:  # where rewards are known for some rows only
                    continue
                psi, own, weights = psi[known], ids[known], weights[known]
                if not is_named and (not sureness(psi, own) >= SURELY or are_smooth(own, psi)):
                    continue
                together = moving_together(column, own, psi, looks=looks)
                if together is None or (name in best and together.factor <= best[name].factor):
                    continue
                # an id may be of what was chosen, whose weights move together
                if is_sure or moving_together(column, own, weights) is None or _is_assigned(sample, own, weights):
                    best[name] = together
        return best

    sure = strongest(named, looks * len(named), is_named=True)
    if sure:
        return sure
    first = _with_unnamed(Sample(question)) if first is None else first
    return strongest(dict.fromkeys(_alike(question, first, columns, rows), False), looks, is_named=False)


def _unnamed(question: Question, columns: Sequence[str]) -> list[str]:
    """Some of the columns that nobody named."""
    taken = {column for _, column in question.columns}
    return [name for name in columns if name not in taken][:COMPARED]


def _with_unnamed(sample: Sample) -> pl.DataFrame:
    """The first rows with some of the columns that nobody named; nothing if there are none, or one cannot be read."""
    others = _unnamed(sample.question, sample.columns)
    with suppress(CounterpoiseError):
        return sample.first(FIRST, others) if others else pl.DataFrame()
    return pl.DataFrame()


def _alike(question: Question, first: pl.DataFrame, columns: Sequence[str], rows: int) -> list[str]:
    """The columns that nobody named, and whose names do not say what they are, by which rewards of the first rows are alike."""
    log, n = question.log, first.height
    taken = {*_taken(question), *log.context, *(log.baseline or ()), *(log.control or ())}
    free = [name for name in _unnamed(question, columns) if name not in taken and name in first.columns]
    if not free or n < 2 * FEWEST:
        return []
    # whole ids are looked at after that, where the first rows have but few rows of each
    least = SURELY - 1.0 if rows <= n else SCREENED
    is_known = _numbers(first, log.observed) == 1.0 if log.observed is not None else True
    rewards = [np.where(is_known, _numbers(first, name), np.nan) for name in log.reward]
    alike: dict[str, float] = {}
    for name in free:
        values = _values(first, name)
        if values.dtype.is_float():  # whose first values are whole numbers, if they are ids
            some = values.head(FEWEST).to_numpy()
            may_be_ids = bool((np.isnan(some) | (some % 1.0 == 0.0)).all())
        else:
            may_be_ids = values.dtype.is_integer() or values.dtype in (pl.String, pl.Categorical, pl.Enum)
        if describes(name) or not may_be_ids:
            continue
        # places in a table of which a few values may share one
        is_whole = values.dtype.is_integer() and not values.null_count()
        hashes = values.to_numpy().astype(np.uint64) * SPREAD if is_whole else values.hash().to_numpy()
        ids = (hashes >> np.uint64(64 - (2 * n).bit_length())).astype(np.int64)
        counts = np.bincount(ids)
        if not FEWEST <= (counts > 0).sum() < n or counts.max() > n / FEWEST:
            continue
        for reward in rewards:
            known = np.isfinite(reward)
            if known.sum() >= 2 * FEWEST:
                alike[name] = max(alike.get(name, 0.0), sureness(reward[known], ids[known]))
    best = sorted((name for name in alike if alike[name] >= least), key=lambda name: -alike[name])
    return [name for name in best if not _may_be_action(question, first, name)][:TRIED]


def _whole_ids(
    question: Question, column: str, total: int, *, is_named: bool
) -> tuple[pl.DataFrame, NDArray[np.int64]] | None:
    """The good rows of some whole ids of a column, under the question's own names, and numbers for these ids, if they repeat as ids do.

    Ids are not a number per row, not a few segments, not measurements. Those of a column whose name says nothing come twice or more
    often, and none of them in a large part of the rows.
    """
    for most in (SAMPLED, AT_MOST):
        parts = max(1, total // most)
        some = rows(question, Ids(column, parts), (column,))
        ids = some.get_column(column).rename(NAME)
        ids = ids.fill_nan(None) if ids.dtype.is_float() else ids
        if ids.null_count():
            some, ids = some.filter(ids.is_not_null()), ids.drop_nulls()
        count = 0 if ids.dtype.is_nested() else ids.n_unique()
        if parts == 1 or count >= ENOUGH:  # of few ids, each may have many rows
            break
    n = ids.len()
    if ids.dtype.is_nested() or ids.dtype.is_temporal() or not n >= 2 * FEWEST:
        return None
    if not FEWEST <= count <= n / (REPEATED if is_named else 2.0) or (
        ids.dtype.is_float() and not bool((ids % 1 == 0).all())
    ):
        return None
    if not is_named and int(ids.value_counts().get_column("count").to_numpy().max()) > total / FEWEST:
        return None
    good = named_of(some, question).with_columns(ids)
    if question.log.drop_bad_rows:  # without it, bad rows have been refused
        good = good_rows(good, question)
    numbers = good.get_column(NAME)
    _, numbered = np.unique(
        (numbers if numbers.dtype.is_integer() else numbers.rank("dense")).to_numpy(), return_inverse=True
    )
    return (good, numbered) if good.height >= 2 * FEWEST else None


def _is_assigned(sample: pl.DataFrame, ids: NDArray[np.int64], weights: Floats) -> bool:
    """Whether rows of one id have one weight because a single choice was made for all of them, and not because the id is of the choice.

    Then many ids share few weights, and there are far more ids than actions, of which there are 1/p on average.
    """
    pairs = np.unique(np.stack([ids, weights.round(12)]), axis=1)
    count, each = len(np.unique(ids)), len(np.unique(pairs[1]))
    actions = float(np.mean(1.0 / _numbers(sample, PROPENSITY))) if PROPENSITY in sample.columns else 1.0
    return pairs.shape[1] == count and count > 10 * each and count > 2 * actions


def _taken(question: Question) -> set[str | None]:
    """The columns whose part rules out that they identify visitors."""
    log = question.log
    alone = log.key if len(log.key) == 1 else ()
    parts = (log.action, log.list_id, log.list_place, log.done, log.candidates, log.propensity)
    targets = (target.column for target in question.targets)
    return {*parts, *log.reward, *alone, *question.segment, *USUAL["action"], *targets}


def _terms(question: Question, frame: pl.DataFrame, reward: int, target: str, other: str) -> tuple[Floats, Floats]:
    """The terms whose mean is a target's value or its difference from another policy, and the weights that they are made with."""
    names = question.names
    of = dict(zip(question.target_names, zip(names.targets, names.values or names.targets, strict=True), strict=True))
    r = _numbers(frame, names.rewards[reward])
    q = _numbers(frame, MODEL_REWARD) if names.values else None

    p = _numbers(frame, PROPENSITY) if question.weight.needs_propensity else None

    def weights(name: str) -> Floats:
        made: Floats = np.ones(len(r)) if name == LOGGING else question.weight.weight(_numbers(frame, of[name][0]), p)
        return made

    w = weights(target) - weights(other) if other else weights(target)
    if q is not None:
        value = _numbers(frame, of[target][1])
        if other:
            value = value - (q if other == LOGGING else _numbers(frame, of[other][1]))
        psi = value + w * (r - q)
    else:
        spread = np.nanvar(w)
        known = ~np.isnan(r)
        if known.sum() < 2:
            return np.full(len(r), np.nan), w
        beta = float(np.cov((w * r)[known], w[known])[0, 1] / spread) if spread > 0 else float(np.nanmean(r))
        psi = w * (r - beta) + beta
    if question.kept_with is None:
        return psi, w
    counts = 1.0 / _numbers(frame, question.kept_with)
    mean = np.nansum(counts * psi) / counts[~np.isnan(psi)].sum()
    return counts * (psi - mean), counts * w


def _values(frame: pl.DataFrame, name: str) -> pl.Series:
    """A column under a plain name: of one such as ^a$, which is a pattern, polars would compute nothing."""
    return frame.get_column(name).rename("x")


def _numbers(frame: pl.DataFrame, name: str) -> Floats:
    values = _values(frame, name)
    return np.asarray(
        (values.cast(pl.Float64).fill_null(math.nan) if values.null_count() else values).to_numpy(), dtype=np.float64
    )


def lists_as_rows(sample: Sample, whole: RewardMoments) -> Iterator[Caveat]:
    """Whether rows are positions of lists although nobody said so: the doctor's check, on whole lists."""
    question, log, names = sample.question, sample.question.log, sample.columns
    # a verdict on propensities of a model is at most `caution` anyway
    if not question.weight.needs_propensity or question.propensity_model is not None:
        return
    taken = _taken(question)
    free = [name for name in map(str, names) if name not in taken]
    positions = [name for name in free if says_position(name)]
    ids = [name for name in free if says_list(name) or name in ids_among((name,))] if positions else []
    item = log.action or usual("action", names)
    for of in ids:
        others = [of, *positions, *([] if item is None else [item])]
        frame = rows(question, Ids(of, max(1, whole.rows // SAMPLED)), others)
        looked_at = frame.select(columns([of, *positions]))
        lists = find_lists(looked_at.lazy(), looked_at.schema, ())
        if lists is None or lists.list is None:
            continue
        if that_sounds_like(*lists.names).shows_several:
            fall, error, steps = fall_of(frame.lazy(), lists.position, str(log.propensity))
            stands_alone = meaning_of(fall, error, steps) == MARGINAL
            if stands_alone and item is not None and shows_once(frame.lazy(), of, item):
                continue  # rows can stand on their own if the propensity is the chance of the position, whatever is above
        yield about_lists(lists, frame.height)
        return


def propensity_meaning(sample: Sample, whole: RewardMoments) -> Iterator[Caveat]:
    """Whether the propensities of lists mean what they are said to mean: the doctor's check, on the first rows."""
    question, lists, log = sample.question, sample.question.sequences, sample.question.log
    if lists is None or not lists.kind.shows_several or question.is_binned or question.propensity_model is not None:
        return
    item = log.action or usual("action", sample.columns)
    frame = sample.first(FIRST, [] if item is None else [item]).lazy()
    fall, error, steps = fall_of(frame, lists.place, str(log.propensity))
    meaning = meaning_of(fall, error, steps)
    if meaning in (None, lists.propensity_of):
        return
    # if items may be shown twice, the number to choose from does not fall
    if meaning == MARGINAL and (item is None or not shows_once(frame, str(log.list_id), item)):
        return
    what = "it should fall by one with each" if lists.propensity_of == CONDITIONAL else "it should not fall"
    text = (
        f"The mean of 1/{verbatim(log.propensity)} counts the items to choose from; from the first position to {steps} below "
        f"it falls by {fall:.2g} ± {error:.1g}, and with `propensity_of={lists.propensity_of!r}` {what}."
    )
    do = f"Pass `propensity_of={str(meaning)!r}`, or find out what was logged."
    numbers = {"fall": fall, "error": error, "steps": float(steps)}
    yield Caveat("propensity-meaning", text, numbers, do)


def misread_propensities(sample: Sample, whole: RewardMoments) -> Iterator[Caveat]:
    """Whether a column of propensities holds something else, where rows are dropped or the mean weight is far from 1."""
    moments = whole.moments[0]
    dropped = moments.dropped / max(moments.n + moments.dropped, 1)
    missing = {caveat.target: caveat.numbers["share"] for caveat in whole.of_rows if caveat.code == MISSING}
    far = _far_from_one(moments, missing)
    if dropped <= RARE and not far:
        return
    misread = _misread(sample, missing.keys() - far)
    if misread is not None:
        yield misread


def reread_propensities(sample: Sample, whole: RewardMoments) -> Iterator[Caveat]:
    """Whether an expression reads a column in one of several ways that the log allows: then a mean weight of 1 may be a coincidence."""
    log, names = sample.question.log, sample.columns
    expression = str(log.propensity)
    if log.is_arrays or expression in names:
        return
    try:  # a database may know what polars does not
        (named,) = dict.fromkeys(roots_of("propensity", expression, names))
        if not may_read(lambda p: _numbers(computed(pl.DataFrame({named: p}), [expression]), expression)):
            return
    except (CounterpoiseError, ValueError):
        return
    witnesses, made = _witnesses(sample, named)
    if witnesses is None or made is None:
        return
    known = np.isfinite(made)
    with np.errstate(all="ignore"):
        same = [
            reading
            for reading, _ in witnesses.readings
            if not reading.is_column and np.allclose(reading.made(witnesses.p)[known], made[known], rtol=1e-6)
        ]
    if not same or np.allclose(witnesses.p[known], made[known], rtol=1e-6) or witnesses.are_sure_of(same[0]):
        return
    text = (
        f"{verbatim(expression)} reads {named!r} in one of several ways, and too few checks of this log tell which is right: that "
        "weights average 1 may be a coincidence."
    )
    more = [] if witnesses.actions else ["the column of actions with `action=`"]
    more += [] if witnesses.parts else ["a segment known before the choice with `segment=`"]
    name = f" To let more checks tell, name {' and '.join(more)}." if more else ""
    yield Caveat(REREAD, text, do=f"{CHECK_PROPENSITIES}{name}")


def counted_propensities(sample: Sample, whole: RewardMoments) -> Iterator[Caveat]:
    """Whether propensities were counted from simulated draws, and what that does to each answer, by the first rows.

    The first rows of a lazy frame and of Spark may take a whole pass: they are looked at only if the mean weight is far from 1.
    """
    question, log = sample.question, sample.question.log
    named = str(log.propensity)
    takes_a_pass = isinstance(log.data, pl.LazyFrame) or engine_of(log).is_cluster
    if takes_a_pass and not _far_from_one(whole.moments[0]):
        return
    if not log.is_arrays and named not in sample.columns:  # an expression, which may be what corrects them
        return
    counted = counted_of(_numbers(sample.column(named, LOOKED_AT), named))
    if counted is None:
        return
    known = good_of(sample.first(LOOKED_AT), question)
    caveat = counted.caveat(named, is_array=log.is_arrays)
    corrected = known.with_columns(pl.Series(PROPENSITY, counted.corrected(_numbers(known, PROPENSITY))))
    for (place, reward), (target, other) in product(enumerate(log.reward), question.contrasts):
        r = _numbers(known, question.names.rewards[place])
        (psi, w), (right, right_w) = (_terms(question, frame, place, target, other) for frame in (known, corrected))
        sizes = []  # how far the mean of terms is from that of the right ones, its standard error in the whole log, and of what
        for name, terms, others in (("this answer", psi, right), ("ips", w * r, right_w * r)):
            is_known = ~np.isnan(terms)
            error = float(np.std(terms[is_known])) / math.sqrt(max(whole.rows, 1))
            sizes.append((float(np.mean(terms[is_known] - others[is_known])), error, name))
        bias, error, name = max(sizes, key=lambda size: abs(size[0]) / max(size[1], 1e-300))
        text = (
            f"{verbatim(caveat.text)} That moves {name} by about {bias:.2g}, where its standard error is {error:.2g}."
        )
        numbers = {**caveat.numbers, "bias": bias, "error": error}
        severity: Severity = "caution" if abs(bias) > MATTERS * error else "note"
        yield replace(caveat, text=text, numbers=numbers, unusual_severity=severity, target=target, reward=reward)


def explanation_of(error: LogError, question: Question) -> LogError:
    """The error about bad rows; if propensities seem to be something else, it says what, and how to read them."""
    misread = None
    with suppress(CounterpoiseError):  # report the first error
        misread = _misread(Sample(question)) if _has_own_propensities(question) else None
    if misread is None or misread.numbers["valid_share"] >= 1.0:
        return error
    return LogError(
        f"propensity {question.log.propensity!r} must lie in (0, 1], and does not: {verbatim(misread.reason)}"
    )


def _misread(sample: Sample, lacking: Container[str | None] = ()) -> Caveat | None:
    """What propensities seem to hold, by the doctor's readings of the first rows, and the share that can be propensities.

    Targets that take actions the log lacks cannot tell.
    """
    question = sample.question
    named = str(question.log.propensity)
    witnesses, _ = _witnesses(sample, named, lacking)
    if witnesses is None:
        return None
    action, plain = question.log.action, witnesses.plain
    if action is not None:
        frame = sample.first(FIRST, (action,))
        known = {name for name, dtype in frame.schema.items() if dtype.is_numeric()}
        own = {target.name: target.column for target in question.targets if target.is_column and target.column in known}
        targets = own if len(own) == len(question.targets) else {}
        density = about_densities(frame, named, targets, action, is_array=question.log.is_arrays)
        if density is not None:
            return replace(density, numbers={"valid_share": plain.valid})
    # a few bad rows among good ones need no other reading
    is_odd = not plain.is_in_range or plain.is_off
    return about_misread(named, witnesses, is_array=question.log.is_arrays) if is_odd else None


def _witnesses(
    sample: Sample, named: str, lacking: Container[str | None] = ()
) -> tuple[Witnesses | None, Floats | None]:
    """What the first rows tell about a column of propensities, if it holds numbers, and the values that the question makes of it."""
    question, log, names = sample.question, sample.question.log, sample.columns
    action = log.action or usual("action", names)
    parts = [name for name in dict.fromkeys((*question.segment, *log.context)) if name in names]
    taken = {*_taken(question), named, *parts, log.cluster, *log.key}
    others = [name for name in names if name not in taken][:COMPARED]
    own = [name for name in dict.fromkeys((named, action, *parts)) if name is not None and name in names]
    try:
        frame = sample.first(FIRST, [*own, *others])
    except CounterpoiseError:  # a column that nobody asked for may be unreadable
        frame, others = sample.first(FIRST, own), []
    if question.policies:
        frame = pl.concat(with_policies([frame], question.slim("models", "controls", "segment")))
    known = {name for name, dtype in frame.schema.items() if dtype.is_numeric()}
    if named not in known:
        return None, None
    targets = {
        target.name: target.column
        for target in question.targets
        if target.column in known and target.name not in lacking
    }
    witnesses = Witnesses.of(
        frame,
        named,
        targets,
        action if action in frame.columns else None,
        [name for name in parts if name in frame.columns],
        [name for name in others if name in frame.columns],
    )
    made = _numbers(frame, str(log.propensity)) if log.propensity in known else None
    return witnesses, made


def _has_own_propensities(question: Question) -> bool:
    return (
        question.weight.needs_propensity
        and question.propensity_model is None
        and not question.is_binned
        and not isinstance(question.weight, Balanced)
    )


def _far_from_one(moments: LogMoments, missing: Mapping[str | None, float] | None = None) -> set[str]:
    """The targets whose mean weight is so far from 1 that another reading is worth trying, by more than the log lacks of what they do."""
    far: set[str] = set()
    if moments.weight.mean_is_one:
        for (target, other), stack in moments.moments.items():
            mean = float(reduced(stack.merge(axis=1).merge(axis=0)).average("u"))
            if not other and abs(mean + (missing or {}).get(target, 0.0)) > FAR:
                far.add(target)
    return far
