"""Sampled rows: each was kept with a probability, and stands for as many of those there were as one over it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from counterpoise.errors import OptionError
from counterpoise.log.kinds.kind import (
    CHANCE,
    OR_DROP,
    Code,
    Conflict,
    Finding,
    NumberColumn,
    Places,
    Row,
    RowKind,
    Term,
)
from counterpoise.moments.columns import SQUARE
from counterpoise.moments.moments import Floats, Moments, ShorterRows
from counterpoise.moments.spread import NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable

    from counterpoise.log.log import Log
    from counterpoise.log.question import Lane, Names, Question
    from counterpoise.moments.log_moments import LogMoments

KEEP, COUNTS = "keep", "counts"  # the probability that a row was kept, and how many rows it counts for

INVERSE = "1/keep"  # of moments: how many rows before sampling a row stands for; every other column is multiplied by it

FAR = 4.0  # errors, which chance exceeds once in 16,000 logs


def _once(who: str = "{who}", do: str = "Evaluate and compare know them.") -> Conflict:
    why = f"{who} does not work with sampled rows yet, and this log has `keep=`."
    return Conflict(f"{why} Don't just leave that out: every row would then count once.", do)


class Sampled(RowKind):
    """Rows with `keep=`: their columns of moments are multiplied by h = 1/keep, which is a column of its own."""

    parts = ("keep", "rows_before")
    mark = INVERSE
    columns = (INVERSE,)
    numbers = (
        NumberColumn(
            "keep",
            KEEP,
            CHANCE,
            f"It is the probability that the row was kept, and it was: fix the sampler{OR_DROP}",
        ),
    )
    kept_with, count = KEEP, INVERSE
    is_compiled = True

    conflicts: ClassVar[Mapping[str, Conflict]] = {
        "loggers": _once("a log of several policies", "Evaluate the rows of each with `where=`."),
        "has_estimated_propensities": _once(
            "a propensity model", "Pass logged propensities, or those of a model that you fitted."
        ),
        "slate": _once("a log of rankings", "Evaluate a log with all of its rankings."),
        "episode": _once("a log of episodes", "Evaluate a log with all of its episodes."),
        **dict.fromkeys(("ab_test", "distribution", "sensitivity", "a check of coverage"), _once()),
        **dict.fromkeys(("learn_policy", "PolicyLearner", "RankingLearner"), _once()),
        "exploration": _once("`actions=`, what exploring would save,", "Leave out `actions=`."),
        "mean weights": Conflict(
            "rows were sampled, so that the mean weights of parts of the log, and of 1/propensity, were not looked at."
        ),
        "known propensities": Conflict(
            "{who} bounds single rows, and where rows were sampled, as `keep=` has it, each stands for several.",
            "Pass `interval='student'`.",
        ),
        "estimator='cross_fit'": Conflict(
            "cross_fit does not work with sampled rows yet, and this log has `keep=`.", "Use beta_ips."
        ),
    }

    codes: ClassVar[Mapping[str, Code]] = {
        "rows-before-sampling": Code(
            "caution",
            "The rows do not add up to as many as there were before sampling.",
            cure="Check `keep=` and `rows_before=` against what sampled the <rows>.",
        ),
    }

    def check(self, log: Log) -> None:
        """Check how many rows there were before sampling, too."""
        before = log.rows_before
        if before is not None:
            if isinstance(before, bool) or not isinstance(before, Integral) or before < 1:
                raise OptionError(f"`rows_before={before!r}` is not a whole number of at least 1.")
            if log.keep is None:
                what = "`rows_before=` is how many rows there were before sampling, which `keep=` is about."
                raise OptionError(what, do="Pass `keep=`, too, or leave it out.")
            if log.where is not None:
                what = "`rows_before=` counts the whole log before sampling, and `where=` chooses a part of it."
                raise OptionError(what, do="Leave out `rows_before=`.")

    def kept(self, log: Log) -> dict[str, object]:
        """The column of the probabilities; a single number may be another one every day."""
        try:
            float(str(log.keep))
        except ValueError:
            return {"keep": log.keep}
        return {"keep": "a number"}

    # -- what is added up --------------------------------------------------------------------------------------------------

    def lane(self, lane: Lane, names: Names) -> Lane:
        """Every column but u and what is made of it counts each row as often as it stands for others."""
        alone = {name: column for name, column in lane.columns.items() if name not in ("u", *lane.factors)}
        counts = f"{COUNTS}{lane.reward}" if names.apart else COUNTS
        columns = lane.columns | {name: f"{column}_counted" for name, column in alone.items()} | {INVERSE: counts}
        counted = {f"{column}_counted": column for column in alone.values()}
        return replace(lane, columns=columns, counted=counted, counts=counts, watched=f"{lane.excess}_counted")

    def products(self, lane: Lane) -> Mapping[tuple[str, str], str]:
        """Where hu·s is a column, hs·hu is h·hus."""
        if "us" not in lane.factors:
            return {}
        return {(lane.columns["s"], lane.excess): "_".join(sorted((lane.counts, lane.columns["us"])))}

    def terms(self, row: Row[Term]) -> dict[str, Term]:
        """How many rows each counts for."""
        return {COUNTS: 1.0 / row.get(KEEP)}

    def counted(self, lanes: Sequence[Lane], get: Callable[[str], Term]) -> dict[str, Term]:
        """Every row as often as it counts: one for all rows that sampling kept with its probability."""
        counts, columns = get(COUNTS), dict[str, Term]()
        for lane in lanes:
            columns |= {name: get(column) * counts for name, column in lane.counted.items()}
            columns[lane.shared] = get(lane.shared) * counts
            # where a reward has rows of its own, what is made from it is blank on the others
            own = counts if lane.counts == COUNTS else get(lane.shifted) * 0.0 + counts
            columns |= {lane.counts: own} if lane.counts != COUNTS else {}
            if not lane.contrast[1]:
                columns[lane.watched] = (get(lane.shared) + 1.0) * own - 1.0
        return columns

    def finished(self, moments: LogMoments, question: Question) -> LogMoments:
        """Dropped rows do not count alike, and nobody knows how many rows they stand for."""
        rows = None if moments.dropped else question.log.rows_before
        return replace(moments, left_out=NOTHING, rows_before=rows)

    # -- what the sums are worth ---------------------------------------------------------------------------------------------

    def moved(self, columns: Sequence[str]) -> Mapping[str, str]:
        """A row moves by as much as it counts."""
        return {"s": INVERSE, "v": INVERSE} if "v" in columns else {"s": INVERSE}

    def shorter(self, moments: Moments) -> ShorterRows:
        r"""Rows kept with probability k, each of which stands for h = 1/k of those there were.

        .. math:: \bar z = \frac{\sum_i h_i z_i}{\sum_i h_i}, \qquad
            \operatorname{Cov}(\bar z) \approx \frac{\sum_i h_i^2 (z_i - \bar z)(z_i - \bar z)^\top}{\left(\sum_i h_i\right)^2}

        The columns of the moments are h·z and h, so that h·(z − z̄)/h̄ is linear in them. Sums use h, products h²: dividing every sum by
        k alike would forget that a row that stands for many is still a single row. k may depend on the reward.

        References
        ----------
        Hájek, "Comment on a paper by D. Basu" (1971); Särndal, Swensson & Wretman, Model Assisted Survey Sampling (1992), ch. 5.
        """
        columns = tuple(name for name in moments.columns if name != INVERSE)
        place = moments.columns.index(INVERSE)
        own = [k for k in range(len(moments.columns)) if k != place]
        h = moments.mean[..., place, None]
        h = np.where(h > 0, h, 1.0)
        mean = moments.mean[..., own] / h
        turn = np.zeros((*moments.shape, len(own), len(moments.columns)))
        turn[..., range(len(own)), own] = 1.0
        turn[..., place] = -mean
        constant = mean
        if SQUARE in columns:  # of rows as heavy as sampling made them: (hu/h̄)², around its own mean
            square = columns.index(SQUARE)
            constant = np.where(np.arange(len(columns)) == square, 0.0, mean)
            turn[..., square, place] = 0.0
            turn[..., square, :] /= h
        return ShorterRows(turn / h[..., None], constant, np.asarray(moments.center), columns)

    def with_known_rows(self, moments: Moments, longer: Moments, rows: int) -> Moments:
        r"""The moments, the first of which are of a log that had so many rows N before it was sampled.

        Σh/N − 1 is then a control variate with mean 0 and variance Σh(h − 1)/N²:

        .. math:: \bar z \to \bar z - \gamma \left(\frac{\sum_i h_i}{N} - 1\right), \qquad
            \gamma = \frac{\sum_i h_i^2 (z_i - \bar z)}{\sum_i h_i (h_i - 1)}

        References
        ----------
        The regression estimator of Särndal, Swensson & Wretman, Model Assisted Survey Sampling (1992), ch. 6.
        """
        first = longer[0]
        h = float(first.average(INVERSE))
        error, total = _sampling_error(first), float(first.n * h)
        if error**2 <= 1e-9 * _squared_counts(first) or _is_miscounted(total, error, rows):
            return moments
        turn = self.shorter(first).turn
        with_counts = turn @ first.scatter[:, longer.columns.index(INVERSE)]  # Σh²(z − z̄)/h̄
        mean, scatter = moments.mean.copy(), moments.scatter.copy()
        mean[0] -= with_counts * h / error**2 * (total / rows - 1.0)
        scatter[0] -= np.outer(with_counts, with_counts) / error**2
        return Moments(moments.n, mean, scatter, moments.center, moments.columns)

    def findings(self, places: Places) -> Iterator[Finding]:
        """Whether Σ1/k is as many as there were, within chance; its error comes from the clusters where rows come in those."""
        before, rows = places.log.rows_before, places.together[0]
        if before is None:
            return
        total, error = float(rows.n * rows.average(INVERSE)), _sampling_error(rows)
        if places.is_clustered:
            sizes = (places.groups.n * places.groups.average(INVERSE))[0]
            error = math.sqrt(len(sizes) * float(np.var(sizes, ddof=1)))
        if _is_miscounted(total, error, before):
            text = (
                f"By `keep=`, the <rows> stand for about {total:,.0f} ± {error:,.0f}, and by `rows_before=` there were "
                f"{before:,}: one of them is wrong, or <rows> were lost."
            )
            yield Finding("rows-before-sampling", text, {"rows": total, "stderr": error, "rows_before": float(before)})

    def worth(self, moments: Moments) -> Floats:
        """How many rows would do as much, were all kept with the same probability."""
        return np.asarray(moments.n * _evenness(moments, moments.form(**{INVERSE: 1.0})))

    def effective(self, moments: Moments) -> Floats:
        """How many rows of equal weight would do as much, a weight being one over both probabilities."""
        return np.asarray(moments.n * _evenness(moments, moments.form("u", **{INVERSE: 1.0})))

    def counted_twice(self, places: Places, end: Floats) -> Floats:
        r"""By how much sampling by the reward makes the weights hu more uneven, of which the rewards' own unevenness is a part, too.

        .. math:: \kappa = \frac{\pi a^2 + (1 - \pi) b^2}{(\pi a + (1 - \pi) b)^2}

        if a share π of the rows has a reward apart from this end, and a and b are the means of h² of those and of the others.
        """
        rows, rewards, end = places.together, places.of_places(places.log.rewards), end * places.per_row
        counts = rows.form(**{INVERSE: 1.0})
        apart = rows.form("s") + np.asarray(rows.center - end)[:, None] * counts
        first, second = np.asarray(rewards.mean(1, end)), np.asarray(rewards.mean(2, end))
        is_known = second > 0
        share = np.where(is_known, np.minimum(np.square(first) / np.where(is_known, second, 1.0), 1.0), 1.0)
        whole = _mean_and_square(rows, counts)[1]
        of_apart = np.where(is_known, _mean_and_square(rows, apart)[1] / np.where(is_known, second, 1.0), whole)
        rest = np.maximum(whole - share * of_apart, 0.0)  # (1 − π)b
        with np.errstate(divide="ignore", invalid="ignore"):
            square = np.where(share < 1.0 - 1e-9, np.square(rest) / (1.0 - share), 0.0)
            factor = (share * np.square(of_apart) + square) / np.square(share * of_apart + rest)
        return np.where(np.isfinite(factor), np.maximum(factor, 1.0), 1.0)

    def lighter(self, places: Places, end: Floats) -> Floats:
        r"""How much lighter rows with a reward apart from this end are, by its distance d from the end, in shares of the range.

        .. math:: \frac{\sum (hwd)^2}{\sum hwd} \Big/ \frac{\sum (hw)^2}{\sum hw}

        Sampling may keep every click and few of the others: then no click counts for as many rows as they do.
        """
        rows, (low, high) = places.together, places.ends
        weights = rows.form("u", **{INVERSE: 1.0})
        apart = np.asarray(rows.center - end * places.per_row)[:, None]
        width = np.maximum((high - low) * places.per_row, 1e-300)
        size = _size_weighted(rows, rows.form("s", "us") + apart * weights) / width
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.abs(size) / _size_weighted(rows, weights)
        ratio = np.where(np.isfinite(ratio) & (ratio > 0), np.minimum(ratio, 1.0), 1.0)
        # rows that count alike are as heavy as without sampling
        are_alike = rows.covariance(INVERSE, INVERSE) <= 1e-12 * np.square(rows.average(INVERSE))
        return np.where(are_alike, 1.0, ratio)


def _mean_and_square(rows: Moments, form: Floats) -> tuple[Floats, Floats]:
    """The mean of a linear form of the columns, and of its square."""
    form = np.broadcast_to(form, rows.mean.shape)
    mean = np.asarray((form * rows.mean).sum(axis=-1))
    square = np.einsum("...i,...ij,...j->...", form, rows.scatter, form) / np.maximum(rows.n, 1)
    return mean, np.asarray(square + np.square(mean))


def _size_weighted(rows: Moments, form: Floats) -> Floats:
    """The mean of a linear form of the columns, in which every row counts as much as it has of it."""
    mean, square = _mean_and_square(rows, form)
    return np.divide(square, mean, out=np.zeros(mean.shape), where=mean != 0)


def _evenness(rows: Moments, form: Floats) -> Floats:
    """The share of the rows that would do as much, if each had as much of a linear form of the columns as any other."""
    mean, square = _mean_and_square(rows, form)
    return np.divide(np.square(mean), square, out=np.zeros(mean.shape), where=square > 0)


def _squared_counts(moments: Moments) -> float:
    """The sum of the squares of how many rows each row stands for."""
    place = moments.columns.index(INVERSE)
    return float(moments.scatter[place, place] + moments.n * np.square(moments.mean[place]))


def _sampling_error(moments: Moments) -> float:
    r"""The error of Σ1/k as the number of rows before sampling, if they were kept one by one: :math:`\sqrt{\sum_i h_i (h_i - 1)}`."""
    return math.sqrt(max(_squared_counts(moments) - float(moments.n * moments.average(INVERSE)), 0.0))


def _is_miscounted(total: float, error: float, rows: int) -> bool:
    """Whether sampled rows stand for a total that is further from the number of rows there were than chance allows.

    >>> _is_miscounted(59_000.0, 100.0, 60_000), _is_miscounted(59_900.0, 100.0, 60_000)
    (True, False)
    """
    return abs(total - rows) > FAR * error + 0.5
