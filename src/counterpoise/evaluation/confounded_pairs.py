"""`DifferenceSensitivity`: how far apart two targets could be if the propensities were wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.diagnostics import Verdict
from counterpoise.engines.rows import over_good_rows
from counterpoise.estimators import DIFFERENCES, ESTIMATORS, Estimate
from counterpoise.evaluation.confounded import LIFT, End, Sensitivity, Which
from counterpoise.evaluation.estimates import estimates
from counterpoise.evaluation.view import View
from counterpoise.intervals.jackknife import jackknife_error
from counterpoise.log.groups import with_groups
from counterpoise.log.names import GROUP, PROPENSITY
from counterpoise.log.question import Question
from counterpoise.log.thresholds import thresholds_of
from counterpoise.moments import Floats
from counterpoise.moments.odds_pairs import DIFFERENCE, VALUE, Mix, PairBins

if TYPE_CHECKING:
    from counterpoise.evaluation.result import Comparison

SAMPLE = 100_000  # rows from which the bins are chosen
BINS, FEWEST, MOST = 4000, 16, 128  # in all, and those of the share: as many as there is room for
REWARD = "r0"


@dataclass(frozen=True, eq=False, repr=False)
class DifferenceSensitivity(Sensitivity):
    """How far what every target earns more than one other, `against`, rests on the propensities being right; see `sensitivity`.

    It reads like a `Sensitivity`; its lifts are over that other target, with the same wrong odds for both.
    """

    pairs: Mapping[str, PairBins] = field(default_factory=dict)
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)

    def verdict(self, target: str | None = None) -> Verdict:
        """Whether to believe a difference, if the propensities are right."""
        return self.verdicts[self._known(target)]

    def _ends(self, name: str, gamma: float, which: Which) -> tuple[End, End]:
        key = (name, gamma, which)
        if key not in self._kept:
            pair, mix = self.pairs[name], DIFFERENCE if which is LIFT else VALUE
            below, above = self._stretch(name, which)
            (low, down), (high, up) = (
                self._at(pair, pair.extreme(gamma, mix, upper=upper), mix) for upper in (False, True)
            )
            self._kept[key] = (End(low, low - below * down), End(high, high + above * up))
        found: tuple[End, End] = self._kept[key]
        return found

    def _at(self, pair: PairBins, odds: Floats, mix: Mix) -> tuple[float, float]:
        """A value or a difference with these λ, and its error."""
        value = float(pair.value(pair.sums_at(odds), mix))
        if self.log.cluster is None:
            return value, pair.stderr(odds, mix)
        error, _ = jackknife_error(pair.value(pair.others_at(odds), mix), pair.n)
        return value, float(error)

    def _right(self, name: str, which: Which) -> tuple[float, float]:
        pair, mix = self.pairs[name], DIFFERENCE if which is LIFT else VALUE
        return self._at(pair, pair.extreme(1.0, mix, upper=True), mix)

    def _plain(self, name: str, which: Which) -> Estimate:
        if which is LIFT:
            view, estimators = View(self.log, (name, self.against)), {"beta_ips": DIFFERENCES["beta_ips"]}
        else:
            view, estimators = View(self.log, (name, "")), {"snips": ESTIMATORS["snips"]}
        (estimator,) = estimators
        return estimates(view, estimators, self.options)[name, estimator, None]


def of_comparison(result: Comparison, asked: Question, names: Sequence[str], **given: Any) -> DifferenceSensitivity:
    """The sensitivity of the differences between some targets and another, from one more pass over the rows of the log."""
    places = {name: asked.target_names.index(name) for name in (*names, result.against)}

    def pass_over(batches: Iterator[pl.DataFrame]) -> dict[str, PairBins]:
        found: dict[str, PairBins] = {}
        grids: dict[str, _Grid] = {}
        for batch in batches:
            rows = {name: batch.get_column(name).to_numpy() for name in (REWARD, PROPENSITY)}
            groups = _groups(batch, asked)
            other = batch.get_column(f"t{places[result.against]}").to_numpy()
            for name in names:
                target = batch.get_column(f"t{places[name]}").to_numpy()
                grid = grids.setdefault(name, _Grid.of(rows[REWARD], target, other)) if batch.height else None
                if grid is None:
                    continue
                bins, shape = grid.bins(rows[REWARD], target, other), (len(grid), asked.groups)
                columns = (rows[REWARD], rows[PROPENSITY], target, other)
                more = PairBins.of(bins, groups, *columns, shape, grid.center)
                found[name] = found[name] + more if name in found else more
        return found

    cluster = None if asked.log.cluster is None else GROUP
    pairs = over_good_rows(asked, pass_over, cluster=cluster)
    verdicts = {name: result.verdict(name) for name in names}
    return DifferenceSensitivity(
        result.moments, targets=tuple(names), against=result.against, pairs=pairs, verdicts=verdicts, **given
    )


@dataclass(frozen=True)
class _Grid:
    """The bins that rows are put into: by their reward, and by the target's share of the two probabilities, t/(t + t')."""

    rewards: Floats
    shares: Floats
    center: float

    @classmethod
    def of(cls, reward: Floats, target: Floats, other: Floats) -> _Grid:
        """The bins that suit a sample of the rows."""
        some = slice(None, None, max(len(reward) // SAMPLE, 1))
        rewards = np.array(thresholds_of(reward[some]))
        shares = _share(target[some], other[some])
        values = np.unique(shares)
        count = int(np.clip(BINS // (len(rewards) + 1), FEWEST, MOST))
        if len(values) > count:
            values = np.unique(np.quantile(shares, np.linspace(0.0, 1.0, count)))
        return cls(rewards, (values[1:] + values[:-1]) / 2, float(np.median(reward[some])))

    def __len__(self) -> int:
        return (len(self.rewards) + 1) * (len(self.shares) + 1)

    def bins(self, reward: Floats, target: Floats, other: Floats) -> NDArray[np.int64]:
        """The bin of every row."""
        share = np.searchsorted(self.shares, _share(target, other))
        return np.asarray(np.searchsorted(self.rewards, reward) * (len(self.shares) + 1) + share)


def _share(target: Floats, other: Floats) -> Floats:
    both = target + other
    return np.asarray(np.divide(target, both, out=np.full(len(both), 0.5), where=both > 0))


def _groups(batch: pl.DataFrame, asked: Question) -> NDArray[np.int64]:
    if asked.log.cluster is None:
        return np.zeros(batch.height, dtype=np.int64)
    ids = nw.from_native(batch.select(GROUP), eager_only=True)
    found: NDArray[np.int64] = with_groups(ids, asked.groups).to_native().get_column(GROUP).cast(pl.Int64).to_numpy()
    return found
