"""Where a series of days stops being like the days before it: a Gaussian scan with known errors, weekday by weekday."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from counterpoise.intervals.method import degrees_of_freedom
from counterpoise.intervals.student import heavier, heavier_factors
from counterpoise.moments import Floats

MONTH = 30  # days, over which the chance of a false alarm is spread
WIDEST = 28  # days since a change; one that took longer to show was slow
SETTLED = 7  # days before a change: every weekday once
LOOKS = 0.12  # the constant of `alarm_limit`: benchmarks/verdicts.py watch-limits
POOLED = 30.0  # degrees of freedom with which the whole reference period speaks about the error of a weekday
# Times the variance of quiet days. A change of three errors that N rows carry makes it 1 + 3/√N times as large, and few rows know it badly;
# a single row that makes it three times as large moves the mean by √2 errors, which raises no alarm.
WILD = 3.0
SURE = 1e9  # rows that carry a number whose tails the limit has already
DISPERSED = 0.01  # how unlikely the spread of the reference days must be before it is believed


@dataclass(frozen=True)
class Shift:
    """Where a series of days changed: the places of the day it was noticed and of its first day, and the levels before and after."""

    noticed: int
    first: int
    before: float
    after: float
    errors: float  # how many standard errors the change is from 0
    limit: float  # and how many it takes


def alarm_limit(first: int, last: int, series: int, alpha: float) -> float:
    r"""How many standard errors raise an alarm, if any false alarm of any series from day `first` to `last` has a chance of `alpha`.

    .. math:: 2 (1 - \Phi(h)) \cdot c h^2 \sum_t \log(1 + k_t) \cdot \text{series} = \alpha

    A change that is seen on day t may have begun on any of :math:`k_t` days. These looks overlap so much that they count as no more than
    c·h²·log(1 + k) independent ones. Days count from the beginning of the reference.

    >>> round(alarm_limit(14, 30, 5, 0.05), 1)
    3.8

    References
    ----------
    Siegmund & Venkatraman, "Using the generalized likelihood ratio statistic for sequential detection of a change-point", Annals of
    Statistics 23 (1995), for the form of it.
    """
    looks = LOOKS * series * sum(math.log1p(min(WIDEST, day + 1 - SETTLED)) for day in range(first, last))
    low, high = 1.0, 40.0
    for _ in range(60):
        h = (low + high) / 2
        low, high = (h, high) if math.erfc(h / math.sqrt(2)) * h * h * looks > alpha else (low, h)
    return high


def weekday_spread(values: Floats, errors: Floats, weekdays: Sequence[int]) -> float:
    """The variance of the effects of weekdays, by empirical Bayes from days of known errors; not 0, however even the days are.

    >>> rng = np.random.default_rng(0)
    >>> noise, week = rng.normal(size=28), np.arange(28) % 7
    >>> bool(weekday_spread(noise, np.ones(28), week) < 0.5 < weekday_spread(noise + 5 * (week > 4), np.ones(28), week))
    True
    """
    of_day = np.eye(7)[np.asarray(weekdays)]
    precision, scale = 1 / errors**2, float(np.median(errors))
    spreads = scale * np.concatenate([[0.05], np.geomspace(0.1, 64.0, 40)])
    n, total = precision @ of_day, (precision * values) @ of_day
    logs = []
    for spread in spreads:
        shrink = 1 / (1 + n * spread**2)
        level = float((shrink * total).sum() / (shrink * n).sum())
        misfit = (total - n * level) ** 2 * spread**2 * shrink
        # the part of the restricted likelihood that depends on the spread, and a half-Cauchy prior on a logarithmic grid
        fit = 0.5 * np.log(shrink).sum() - 0.5 * math.log(float((shrink * n).sum())) + 0.5 * float(misfit.sum())
        fit += -0.5 * float((precision * (values - level) ** 2).sum()) + math.log(spread / (1 + (spread / scale) ** 2))
        logs.append(fit)
    weights = np.exp(np.array(logs) - max(logs))
    return float((weights * spreads**2).sum() / weights.sum())


def dispersion(values: Floats, errors: Floats, weekdays: Sequence[int]) -> float:
    """By how much days of the same weekday differ more than their rows explain: 1, unless that is beyond doubt."""
    from scipy.special import chdtrc

    of_day = np.eye(7)[np.asarray(weekdays)]
    precision = 1 / errors**2
    n = precision @ of_day
    means = np.divide((precision * values) @ of_day, n, out=np.zeros(7), where=n > 0)
    square, freedom = float((precision * (values - of_day @ means) ** 2).sum()), len(values) - int((n > 0).sum())
    if freedom < 1 or chdtrc(freedom, square) > DISPERSED:
        return 1.0
    return math.sqrt(square / freedom)


def count_error(rows: Floats, weekdays: Sequence[int]) -> tuple[float, int]:
    """By how much the logarithm of a day's rows differs from that of other days of the same weekday, and its degrees of freedom.

    The rows of days differ by far more than counts of independent visits would, so only days tell by how much.
    """
    of_day = np.eye(7)[np.asarray(weekdays)]
    logs, n = np.log(rows), of_day.sum(axis=0)
    left = logs - of_day @ ((logs @ of_day) / np.maximum(n, 1))
    freedom = max(len(rows) - int((n > 0).sum()), 1)
    return math.sqrt(max(float(left @ left) / freedom, 1 / float(rows.mean()))), freedom


def quiet_errors(errors: Floats, carrying: Floats, rows: Floats, weekdays: Sequence[int], reference: slice) -> Floats:
    """The errors that days would have if they were like those of the reference.

    A day with more clicks has a larger error of its own, and one without clicks has none at all, so what a day says about itself would
    hide a change or make one up. So the variance of a row comes from the same weekday of the reference, averaged with all of it in
    proportion to the degrees of freedom (Smyth 2004). A day has its own only if that is more than `WILD` times as large: after an outlier,
    or a change of the weights.
    """
    freedom = np.asarray(degrees_of_freedom(carrying), dtype=np.float64)
    of_day = np.eye(7)[np.asarray(weekdays)]
    squares, total = (rows * errors)[reference] ** 2, np.maximum(rows[reference], 1.0)
    of_all = float(squares.sum() / total.sum())
    of_weekday = (squares @ of_day[reference]) / np.maximum(total @ of_day[reference], 1.0)
    known = freedom[reference] @ of_day[reference]
    per_row = (known * of_weekday + POOLED * of_all) / (known + POOLED)
    quiet = of_day @ per_row / np.maximum(rows, 1.0)
    return np.sqrt(np.where(errors**2 > WILD * quiet, errors**2, quiet))


def scan(
    values: Floats,
    errors: Floats,
    carrying: Floats,
    weekdays: Sequence[int],
    spread: float,
    first: int,
    limit: Callable[[int], float],
) -> Iterator[Shift]:
    r"""For every day from `first` on, the change in the last four weeks that comes closest to its limit, or passes it by most.

    The model is a level, an effect of each weekday with variance `spread`, and a shift from some day on. The statistic of the shift is
    the signed root of the likelihood ratio, which is a standard normal number if nothing changed and many rows carry every day.

    Where few do, its tails are Student's, and the day's `limit` rises: with the rows that carry the whole contrast of days, not those of
    a day. The kurtosis of a sum is the mean of its terms' with squared shares of the variance as weights, and the rows that carry a
    number are the inverse of that. So four days with a few clicks each stand as firmly as one with four times as many. N rare clicks
    have a skewness of 1/√N, whose square makes the tails about those of N degrees of freedom (Edgeworth's second term).
    """
    of_day = np.eye(7)[np.asarray(weekdays)]
    precision = (1 / errors**2)[:, None] * of_day
    each_day = (precision, precision * values[:, None], precision**2 / np.maximum(carrying, 1e-9)[:, None])
    sums = [np.concatenate([np.zeros((1, 7)), np.cumsum(x, axis=0)]) for x in each_day]
    for last in range(first, len(values)):
        starts = np.arange(max(SETTLED, last + 1 - WIDEST), last + 1)
        (n, total, fourth), (before, total_before, fourth_before) = (
            (x[last + 1] for x in sums),
            (x[starts] for x in sums),
        )
        inside, shrink = n - before, 1 / (n + 1 / spread)
        left = 1 - n * shrink
        level, both = float((n * left).sum()), inside @ left
        information = inside.sum(axis=1) - (inside**2) @ shrink - both**2 / level
        score_level = float(total @ left)
        score = (total - total_before).sum(axis=1) - (inside * shrink) @ total - both * score_level / level
        known = information > 1e-9 * float(n.sum())
        z = np.where(known, score / np.sqrt(np.where(known, information, 1.0)), 0.0)
        # a day has the weight precision·(1 − fitted) in the contrast if it comes after the change, and precision·fitted if before
        fitted = inside * shrink + np.outer(both / level, left)
        variance = (inside * (1 - fitted) ** 2 + before * fitted**2).sum(axis=1)
        kurtosis = ((fourth - fourth_before) * (1 - fitted) ** 4 + fourth_before * fitted**4).sum(axis=1)
        carried = variance**2 / np.maximum(kurtosis, 1e-300)
        limits = heavier_factors(limit(last), carried + POOLED)
        k = int((np.abs(z) / limits).argmax())
        shift = float(score[k] / information[k]) if known[k] else 0.0
        base = (score_level - float(both[k]) * shift) / level
        yield Shift(last, int(starts[k]), base, base + shift, float(z[k]), float(limits[k]))


@dataclass(frozen=True)
class Watched:
    """How a series is watched: the first `reference` of its days are taken as quiet, and `count` series share the chance `alpha`."""

    reference: int
    count: int
    alpha: float

    def limit(self, day: int) -> float:
        """How many standard errors raise an alarm on a day, counted from the beginning of the reference."""
        month = day // MONTH if self.reference < MONTH else (day - self.reference) // MONTH
        start = month * MONTH if self.reference < MONTH else self.reference + month * MONTH
        return alarm_limit(max(start, self.reference), start + MONTH, self.count, self.alpha)

    def changes(
        self, values: Floats, errors: Floats, carrying: Floats, rows: Floats, weekdays: Sequence[int]
    ) -> tuple[list[Shift], float]:
        """All changes of a series, one after another, and how much more its reference days differ than their rows explain."""
        extra, reference = 1.0, slice(0, self.reference)

        def shifts(start: int) -> Iterator[Shift]:
            nonlocal extra
            part, week = slice(start, None), weekdays[start:]
            own = quiet_errors(errors[part], carrying[part], rows[part], week, reference)
            if not (own > 0).all():
                return iter(())
            wider = dispersion(values[part][reference], own[reference], week[: self.reference])
            own, extra = own * wider, max(extra, wider)
            spread = weekday_spread(values[part][reference], own[reference], week[: self.reference])
            return scan(values[part], own, carrying[part], week, spread, self.reference, self.limit)

        return self._one_after_another(shifts, len(values)), extra

    def count_changes(self, rows: Floats, weekdays: Sequence[int]) -> tuple[list[Shift], float]:
        """All changes of the logarithm of a day's rows, and how much quiet days differ: by the spread of the reference, with its tails."""
        quiet = 0.0

        def shifts(start: int) -> Iterator[Shift]:
            nonlocal quiet
            logs, week = np.log(rows[start:]), weekdays[start:]
            error, freedom = count_error(rows[start:][: self.reference], week[: self.reference])
            quiet, errors = error, np.full(len(logs), error)
            spread = weekday_spread(logs[: self.reference], errors[: self.reference], week[: self.reference])
            sure = np.full(len(logs), SURE)
            return scan(logs, errors, sure, week, spread, self.reference, lambda day: heavier(self.limit(day), freedom))

        return self._one_after_another(shifts, len(rows)), quiet

    def _one_after_another(self, shifts: Callable[[int], Iterator[Shift]], days: int) -> list[Shift]:
        """Every first alarm of `shifts` from some day on; the days since a change are the next reference."""
        start, changes = 0, list[Shift]()
        while days - start > self.reference:
            shift = next((each for each in shifts(start) if abs(each.errors) > each.limit), None)
            if shift is None:
                break
            changes.append(replace(shift, noticed=start + shift.noticed, first=start + shift.first))
            start += shift.first
        return changes
