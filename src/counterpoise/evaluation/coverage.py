"""How often intervals like a result's cover, on logs like its own: a claim you can check on the spot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, cast

import numpy as np

from counterpoise.display import ROWS, Block, Display, above, finite, shortened
from counterpoise.engines.resampling import Units, drawn_again, tilted, units_of, with_unseen
from counterpoise.errors import OptionError
from counterpoise.evaluation.estimates import IntervalOptions, estimates
from counterpoise.evaluation.reading import read
from counterpoise.evaluation.view import View
from counterpoise.log.kinds import check_rows
from counterpoise.log.question import LOGGING, part_of
from counterpoise.moments import Floats
from counterpoise.moments.spread import below
from counterpoise.readers.progress import progress_bar

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from counterpoise.evaluation.result import Result
    from counterpoise.readers.progress import Report

FEW_CARRYING = 3  # rows; with fewer, what a log looks like says little about the world that wrote it
FEWEST = 100  # runs


@dataclass(frozen=True, eq=False)
class Coverage:
    """How one estimate's interval did on `runs` resampled logs; `truth` is what it should cover.

    `lower` and `upper` are the ends of all the intervals. `drawn` says what was drawn: rows, blocks of rows or clusters. If fewer
    than three rows carry the answer (`carrying_rows`), the log cannot tell (`can_tell`), and the share means nothing. A weight that the
    log chose (`chosen_weight`) is the same on all of the resampled logs, so the share says nothing about that choice or about its bias.
    """

    target: str
    estimator: str
    level: float
    method: str
    truth: float
    lower: Floats
    upper: Floats
    carrying_rows: float
    drawn: str
    chosen_weight: str = ""

    @property
    def runs(self) -> int:
        """How many logs were drawn."""
        return len(self.lower)

    @property
    def covered(self) -> float:
        """The share of the intervals that cover; nan if there are none."""
        return float(np.mean((self.lower <= self.truth) & (self.truth <= self.upper))) if self.runs else math.nan

    @property
    def stderr(self) -> float:
        """The Monte Carlo error of `covered`; half a log is added on both sides, so that it is not 0 if all intervals cover."""
        share = (self.covered * self.runs + 0.5) / (self.runs + 1)
        return math.sqrt(share * (1 - share) / self.runs) if self.runs else math.nan

    @property
    def too_low(self) -> float:
        """The share of the intervals that lie below what they should cover."""
        return float(np.mean(self.upper < self.truth)) if self.runs else math.nan

    @property
    def too_high(self) -> float:
        """The share of the intervals that lie above what they should cover."""
        return float(np.mean(self.lower > self.truth)) if self.runs else math.nan

    @property
    def can_tell(self) -> bool:
        """Whether enough rows carry the answer for resampled logs to be realistic."""
        return self.runs > 0 and self.carrying_rows >= FEW_CARRYING

    def __str__(self) -> str:
        name = f"{shortened(self.target)}, {self.estimator}"
        if not self.runs:
            return f"{name}: this log cannot show how often the interval covers, as it does not identify the target."
        if not self.can_tell:
            return (
                f"{name}: this log cannot show how often the interval covers. About "
                f"{below(self.carrying_rows, FEW_CARRYING)} rows carry the answer; {FEW_CARRYING} or more are needed."
            )
        fixed = f" That takes {self.chosen_weight} as given, and ignores its bias."
        fixed = fixed if self.chosen_weight else ""
        return (
            f"{name}: the {100 * self.level:.6g} % interval covered on {_share(self.covered)} of {self.runs:,} logs like this one "
            f"(± {_share(self.stderr)}); it was too low on {_share(self.too_low)} and too high on {_share(self.too_high)}.{fixed}"
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """The first 100 intervals, with misses marked. Needs the extra ``plot``."""
        return cast("Axes", above().pictures.coverage(self, ax=ax))


@dataclass(frozen=True, eq=False, repr=False)
class CoverageCheck(Display, Mapping[str, Coverage]):
    """The answer of `check_coverage`: a `Coverage` for every target, by its name."""

    checks: Mapping[str, Coverage]
    reward: str | None = None

    def __getitem__(self, target: str) -> Coverage:
        return self.checks[target]

    def __iter__(self) -> Iterator[str]:
        return iter(self.checks)

    def __len__(self) -> int:
        return len(self.checks)

    def document(self) -> dict[str, object]:
        """What `--check-coverage` adds to a document."""
        shares = ("covered", "stderr", "too_low", "too_high")
        names = ("target", "estimator", "level", "runs", *shares, "can_tell", "carrying_rows", "drawn")
        return {"coverage": finite([{name: getattr(each, name) for name in names} for each in self.checks.values()])}

    def blocks(self, *, rows: int | None = ROWS) -> Iterator[Block]:
        """A sentence for every target."""
        yield from map(str, self.checks.values())

    def plot(self, target: str | None = None, ax: Axes | None = None) -> Axes:
        """The intervals of one target (the first, unless you name another) on logs drawn again. Needs the extra ``plot``."""
        name = next(iter(self.checks)) if target is None else target
        if name not in self.checks:
            raise OptionError(f"no target {name!r} was checked; there is {', '.join(map(repr, self.checks))}.")
        return self.checks[name].plot(ax)


def check_coverage(
    result: Result, runs: int, *, target: str | None, estimator: str | None, seed: int, progress: bool | None
) -> CoverageCheck:
    """See `Result.check_coverage`."""
    _check_rows(result)
    if isinstance(runs, bool) or not isinstance(runs, Integral) or runs < FEWEST:
        raise OptionError(f"`runs={runs!r}` is not a whole number of at least {FEWEST}.")
    name = read(result).primary if estimator is None else estimator
    chosen = result.targets if target is None else (target,)
    for policy in chosen:
        result[policy, name]  # raises for one that is not there
    random = np.random.default_rng(seed)
    groups = next(iter(result.moments.moments.values())).shape[1]
    contrast = result.moments[result.moments.targets[0]]
    center = float(contrast.center + contrast.average("s"))
    # one pass for all targets, unless each of them chose a weight of its own
    together = [(policy,) for policy in chosen] if result.ladders else [chosen]
    checks = {}
    for policies in together:
        question, names = result.asked(policies[0]), {*policies, result.against}
        targets = tuple(target for target in question.targets if target.name in names)
        question = part_of(question, targets, tuple(pair for pair in question.contrasts if pair[0] in names))
        units = units_of(question, rows=result.n, center=center, random=random, grouped=groups > 1)
        slow = len(units) * runs * len(policies) > 4e6
        with progress_bar(progress if slow else False, "drawing logs", "logs") as report:
            for policy in policies:
                checks[policy] = _coverage_of(result, policy, name, units, int(runs), random, report)
    return CoverageCheck(checks, result.reward)


def _check_rows(result: Result) -> None:
    """Check that all rows are at hand."""
    if result.question is None:
        raise OptionError(
            "a check of coverage draws rows again, and this result has none left: it was made from stored moments, or unpickled.",
            do="Evaluate the log itself.",
        )
    check_rows(result.question.log, "a check of coverage")
    if result.earlier_rows:
        raise OptionError(
            f"a check of coverage draws rows again, and {result.earlier_rows:,} of the {result.n:,} rows come from earlier logs, of which "
            "the state keeps only sums.",
            do="Evaluate all logs at once, without `state=`.",
        )


def _coverage_of(
    result: Result, target: str, name: str, units: Units, runs: int, random: np.random.Generator, report: Report | None
) -> Coverage:
    contrast = (target, result.against)
    view = View(replace(result.moments, segment_columns=()), contrast)
    excess, estimate = view.excess[0], result[target, name]
    # where policies agree on every row, their difference rests on rows not seen
    is_bare = result.is_difference(name) and excess.mean(2, 0.0) <= 1e-24
    carrying = 0.0 if is_bare else float(view.carrying[0])
    about = (target, name, result.level, result.method)
    ladder = result.ladders.get(target)
    weight = "" if ladder is None else ladder.choice.weight
    if not estimate.identified:
        return Coverage(*about, math.nan, np.empty(0), np.empty(0), carrying, units.are, weight)
    lane = next(lane for lane in units.question.names.lanes if lane.contrast == contrast)
    population = _with_half_rows(units, view)
    if units.question.weight.mean_is_one:
        population = tilted(population, lane.excess)
    groups = view.groups.shape[1]
    drawn = drawn_again(population, runs, groups=groups, random=random, report=report)
    made = estimates(View(drawn, contrast), {name: result.registry[name]}, IntervalOptions.of(result))
    _, first, *rest = made.values()  # all logs together; the log itself; the logs drawn from it
    lower, upper = (np.array([getattr(estimate.interval, end) for estimate in rest]) for end in ("lower", "upper"))
    return Coverage(*about, first.value, lower, upper, carrying, units.are, weight)


def _with_half_rows(units: Units, view: View) -> Units:
    """The units and one more row that has not come up: as heavy as those
    that carry the variance, half with a high and half with a low reward."""
    heavy, low, high = (float(by_place[0]) for by_place in (view.heavy, *view.usual_rewards))
    names, (target, against) = units.question.names, view.contrast
    reward = np.array([low, high, low, high])
    own, other = np.array([heavy, heavy, 0.0, 0.0]), np.array([0.0, 0.0, heavy, heavy])
    if against in ("", LOGGING):
        own, other = own + 1.0, np.ones(4)
    mass = np.array([0.5, 0.5, 0.0, 0.0]) if against in ("", LOGGING) else np.full(4, 0.25)
    weights = {name: own if name == target else other for name in units.question.target_names}
    excess = {
        lane.excess: weights[lane.contrast[0]] - weights.get(lane.contrast[1], np.ones(4)) for lane in names.lanes
    }
    columns = dict(zip(names.targets, weights.values(), strict=True))
    return with_unseen(units, excess, columns, reward, mass)


def _share(share: float) -> str:
    return f"{100 * share:.1f} %"
