"""A race: every contender is learned without each fold, and evaluated on the rows of that fold."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field
from functools import reduce
from operator import add
from statistics import NormalDist

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.display import ROWS, Block, Cell, Display, Number, Table, Worded, number
from counterpoise.errors import CounterpoiseError, Sentence, TrainingError, verbatim
from counterpoise.estimators.weighted import beta_ips
from counterpoise.evaluation.result import Result
from counterpoise.learn.contenders import Contender, Rest
from counterpoise.learn.criterion import Score, lambdas_of, score_of
from counterpoise.learn.hand_out import TWICE, doubts, how_to_get, report
from counterpoise.learn.policies import as_policy
from counterpoise.learn.policy import Policy, Serves
from counterpoise.learn.rows import Rows
from counterpoise.learn.source import Source
from counterpoise.learn.steps import ALONE, Machine
from counterpoise.moments import Moments
from counterpoise.moments.spread import Smoothed

# -- What a search found: the policy, what it would have earned, and how the contenders compare ------------------------


@dataclass(frozen=True)
class Standing:
    """A contender at its best serving temperature: its value on rows it was not learned from, and what it cost."""

    name: str
    temperature: float
    value: float
    lower: float
    upper: float
    effective_sample_size: float
    is_measured: bool
    score: float
    seconds: float

    def cells(self) -> dict[str, Cell]:
        """A row of the leaderboard."""
        error = (self.upper - self.lower) / 4.0  # an interval reaches about two to either side
        numbers = {"value": self.value, "lower": self.lower, "upper": self.upper}
        return {
            "contender": self.name,
            "temperature": Worded(self.temperature, f"{self.temperature:g}"),
            **{name: Number(value, error) for name, value in numbers.items()},
            "rows": Number(self.effective_sample_size, 10.0),
            "seconds": Number(self.seconds, 1.0),
            "": "" if self.is_measured else "not measured by these rows",
        }


@dataclass(frozen=True, eq=False, repr=False)
class Found(Serves, Display):
    """A policy that was found on a log.

    Attributes
    ----------
    policy
        What to serve, learned from all rows: it has `predict_proba`, `sample` and `classes_`.
    result
        What the fold policies would have earned, with interval and verdict: for every row, a policy that was neither learned from it nor
        chosen by it. `policy` has seen more rows and is usually a little better.
    kind
        ``"learned"``, or ``"imitation"`` if nothing was reliably better than the logging policy, which `policy` then imitates.
    rejected
        Where `policy` is an imitation, the result of what would have been chosen.
    name
        The contender that `policy` comes from.
    leaderboard
        The contenders, the best first.
    policies
        The fold policies that `result` is about.
    seconds, fit_seconds
        How long the search took, and the last fit alone.
    skipped
        Contenders that there was no time for, or that could not be fitted, and why.
    dropped_rows
        How many invalid rows were dropped.
    cut
        What the last fit left out for lack of time, in words; empty if nothing.
    reward_range
        The lowest and the highest reward, between which every true value lies.
    """

    policy: Policy
    result: Result
    kind: str
    rejected: Result | None
    name: str
    leaderboard: tuple[Standing, ...]
    policies: tuple[Policy, ...]
    mean_reward: float
    seconds: float
    fit_seconds: float
    skipped: dict[str, str]
    dropped_rows: int = 0
    cut: str = ""
    reward_range: tuple[float, float] = (-math.inf, math.inf)

    @property
    def served_policy(self) -> Policy:
        return self.policy

    def summary(self) -> str:
        """What was found, in a sentence or two."""
        value = self.result[self.result.targets[0], "beta_ips"]
        own, low, high, logged = (number(x, value.stderr) for x in (value.value, *value.interval, self.mean_reward))
        less = ", and less is better" if self.result.minimize else ""
        earned = f"{own} per row, between {low} and {high}; the logging policy earned {logged}{less}"
        if self.rejected is not None:
            said = [
                "Nothing was reliably better than the logging policy, so this policy imitates it.",
                doubts(self.rejected),
                how_to_get(self.rejected),
                f"The imitation would have earned {earned}.",
            ]
        else:
            said = [f"{self.name[0].upper()}{self.name[1:]} is best. It would have earned {earned}.", self._caution()]
        return Sentence(" ".join(verbatim(text) for text in (*said, self.outside(), self.cut) if text))

    def outside(self) -> str:
        """What to say about an estimate that lies outside the range of the rewards; empty if it doesn't."""
        low, high = self.reward_range
        results = [self.result] if self.rejected is None else [self.rejected, self.result]
        values = [float(result[result.targets[0], "beta_ips"].value) for result in results]
        odd = [value for value in values if not low <= value <= high]
        if not odd:
            return ""
        return (
            f"{odd[0]:.4g} per row is impossible, as all rewards are between {low:.4g} and {high:.4g}: the propensities are wrong, or far "
            "too few rows carry the estimate. Run `counterpoise doctor` for more."
        )

    def _caution(self) -> str:
        """What the verdict has to say, if it is not ok."""
        verdict = self.result.verdict()
        return "" if verdict.verdict == "ok" else f"But take the interval with care. {' '.join(verdict.reasons)}"

    def document(self) -> dict[str, object]:
        """What `counterpoise learn --json` prints of it."""
        return self.to_dict()

    def to_dict(self) -> dict[str, object]:
        """All numbers, ready for JSON."""
        return {
            "name": self.name,
            "kind": self.kind,
            **report(self.result, self.mean_reward),
            "effective_sample_size": self.result.diagnostics(self.result.targets[0]).effective_sample_size,
            "seconds": self.seconds,
            "fit_seconds": self.fit_seconds,
            "leaderboard": [asdict(standing) for standing in self.leaderboard],
            "skipped": self.skipped,
            "dropped_rows": self.dropped_rows,
            "cut": self.cut,
            "n_actions": self.policy.n_actions,
        }

    def blocks(self, *, rows: int | None = ROWS) -> Iterator[Block]:
        """What was found, and the leaderboard."""
        yield self.summary()
        yield ""
        yield Table([standing.cells() for standing in self.leaderboard])
        yield from (f"{name}: {why}" for name, why in self.skipped.items())
        yield "Contenders are evaluated on held-out rows; the best of several still looks a little too good."


# -- A race: every contender is learned without each fold, and evaluated on the rows of that fold -------------------------


SHARES = 3  # a contender may use a third of the time that is left, unless it is one of the last two
EVALUATING = 0.3  # of a contender's time is for its evaluation
LEAST_SECONDS = 0.15  # for a fit and its evaluation: less is no time at all
LARGE, FASTEST = 100_000, 400_000  # rows that a fit is given anyway, and for every second that it has
PILOT, GROWTH = 1_000, 4  # rows of the first fit that tells how long others take, and by how much more the next one has
BLOCK = 1_024  # rows that are evaluated before a first look at the clock
Tell = Callable[[str], None]
Served = tuple[str, float]  # a contender, and the temperature at which it serves


@dataclass(frozen=True)
class FoldSums:
    """What the rows of a fold say about a policy; `+` joins folds."""

    moments: Moments
    smoothed: Smoothed

    def __add__(self, other: FoldSums) -> FoldSums:
        return FoldSums(self.moments + other.moments, self.smoothed + other.smoothed)

    def score(self, lowest: float, times: float = 1.0) -> Score:
        """How good the policy looks by them; the bound allows for a variance that is `times` as large as that of independent rows."""
        return score_of(self.moments, self.smoothed, lowest, times)


@dataclass
class Race:
    """What contenders learned from the rows outside each fold, and what the rows of the fold say about that."""

    rows: Rows
    folds: NDArray[np.int64]
    n_folds: int
    n_actions: int
    seed: int
    features: Tensor | None = None  # of the items, a row for every action
    contenders: dict[str, Contender] = field(default_factory=dict)
    policies: dict[str, list[Policy]] = field(default_factory=dict)  # by contender, one for every fold
    sums: dict[Served, list[FoldSums]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    cuts: dict[str, str] = field(default_factory=dict)  # what a contender's last fit left out for lack of time
    is_stopped: bool = False  # by Ctrl-C
    _paces: dict[str, Pace] = field(default_factory=dict)

    def __post_init__(self) -> None:
        reward = self.rows.reward.double().numpy()
        self.lowest = float(reward.min())
        self.lambdas = lambdas_of(len(reward), float(np.sqrt(np.mean((reward - self.lowest) ** 2))))

    def run(self, contenders: Sequence[Contender], deadline: float | None, tell: Tell | None) -> None:
        """Let contenders run, one after another, as long as there is time; the first always does, however little there is.

        Ctrl-C ends the race, and what has run by then stays, if anything has.
        """
        for place, contender in enumerate(contenders):
            if contender.name in self.contenders:
                raise TrainingError(f"two contenders are called {contender.name!r}.", do="Give each a name of its own.")
            seconds = None if deadline is None else self._share(deadline, len(contenders) - place)
            has_run = any(other.name in self.policies for other in contenders[:place])
            if self.is_stopped:
                why: str | None = "the search was stopped before it."
            elif self.rows.candidates is not None and not getattr(contender, "takes_candidates", True):
                why = "it cannot learn to choose among the candidates of a row."
            elif seconds is not None and seconds < LEAST_SECONDS * self.n_folds and has_run:
                why = "there was no time left to try it."
            else:
                try:
                    why = self._enter(contender, seconds, tell, f"{contender.name} ({place + 1} of {len(contenders)})")
                except KeyboardInterrupt:
                    if not has_run:
                        raise
                    self.is_stopped, why = True, "the search was stopped while it was learning."
            if why is not None:
                self.skipped[contender.name] = why
        if not any(contender.name in self.policies for contender in contenders):
            raise TrainingError(f"no contender could be learned: {verbatim(' '.join(self.skipped.values()))}")

    @staticmethod
    def _share(deadline: float, contenders: int) -> float:
        """The seconds that the next of so many contenders may use."""
        return (deadline - time.perf_counter()) / min(contenders, SHARES)

    def _enter(self, contender: Contender, seconds: float | None, tell: Tell | None, what: str) -> str | None:
        """Learn a contender without each fold and evaluate it, in so many seconds, or say why not."""
        began, policies, evaluated = time.perf_counter(), [], []
        for fold in range(self.n_folds):
            if tell is not None:
                tell(f"{what}, fold {fold + 1} of {self.n_folds}")
            allowed = None
            if seconds is not None:
                left = seconds - (time.perf_counter() - began)
                allowed = max(left / (self.n_folds - fold), LEAST_SECONDS)
            try:
                policies.append(self.learn(contender, fold, None if allowed is None else (1 - EVALUATING) * allowed))
            except CounterpoiseError as error:
                return str(error)
            rest = None if allowed is None else EVALUATING * allowed
            evaluated.append(list(self._evaluate(policies[-1], fold, contender.temperatures, rest)))
        self.contenders[contender.name], self.policies[contender.name] = contender, policies
        for some in evaluated:
            for temperature, sums in some:
                self.sums.setdefault((contender.name, temperature), []).append(sums)
        self.seconds[contender.name] = time.perf_counter() - began
        return None

    def learn(
        self,
        contender: Contender,
        fold: int | None,
        seconds: float | None = None,
        source: Source | None = None,
        machine: Machine = ALONE,
    ) -> Policy:
        """What a contender learns from the rows outside a fold, or from all, in so many seconds.

        If the rows are a sample of a `source`, contenders that can learn from all of it do; several processes share that work.
        """
        index = np.arange(len(self.rows)) if fold is None else np.flatnonzero(self.folds != fold)
        streams = getattr(contender, "streams", False)
        source, machine = (source, machine) if streams else (None, ALONE)
        n, cuts = len(index), list[str]()
        most = math.inf if seconds is None or source is not None else LARGE + int(FASTEST * seconds)
        if n > most:  # no fit looks at more rows in that time
            index = np.sort(np.random.default_rng(self.seed).choice(index, int(most), replace=False))
        rows = self.rows if len(index) == len(self.rows) else self.rows.take(torch.as_tensor(index))
        is_watched = seconds is not None and not getattr(contender, "keeps_time", False)
        if seconds is not None and is_watched and (some := self._affordable(contender, rows, seconds)) < len(rows):
            rows = rows.sample(some, self.seed)
        if len(rows) < n:
            cuts.append(f"{len(rows):,} of {n:,} rows")
        began = time.perf_counter()
        rest = Rest(rows, self.n_actions, seconds, cuts, self.features, source, machine)
        policy = as_policy(contender.fit(rest, self.seed), self.n_actions)
        if is_watched and contender.name not in self._paces:
            self._paces[contender.name] = Pace(len(rows), time.perf_counter() - began)
        self.cuts[contender.name] = ", ".join(cuts)
        return policy

    def _affordable(self, contender: Contender, rows: Rows, seconds: float) -> int:
        """How many rows a contender can learn from in so many seconds, from how long it takes for fewer."""
        n, pace = len(rows), self._paces.get(contender.name)
        size = PILOT if pace is None else GROWTH * pace.rows
        if pace is None and n <= GROWTH * PILOT:
            return n  # the fit itself will tell
        while size < n and (pace is None or not pace.is_enough(seconds, n)):
            began = time.perf_counter()
            try:
                contender.fit(Rest(rows.sample(size, self.seed), self.n_actions, features=self.features), self.seed)
                pace = Pace(size, time.perf_counter() - began, pace)
            except CounterpoiseError:  # so few rows may have nothing to learn from
                pass
            size *= GROWTH
        if pace is None:
            return n
        self._paces[contender.name] = pace
        some, least = pace.rows_in(seconds, n), min(PILOT, n)
        if some < least and self.policies:
            raise TrainingError(
                f"it takes {pace.seconds:,.1f} s to learn from {pace.rows:,} rows, and there is no time for that."
            )
        return max(some, least)

    def _evaluate(
        self, policy: Policy, fold: int, temperatures: Sequence[float], seconds: float | None
    ) -> Iterator[tuple[float, FoldSums]]:
        index = self._fold_rows(fold)
        probabilities = self.probabilities(policy, index, temperatures, seconds)
        rows = self.rows.take(torch.as_tensor(index[: len(probabilities[temperatures[0]])]))
        reward, propensity = rows.reward.double().numpy(), rows.propensity.double().numpy()
        for temperature, logged in probabilities.items():
            yield temperature, self._sums(logged / propensity, reward)

    def _sums(self, weight: NDArray[np.float64], reward: NDArray[np.float64]) -> FoldSums:
        smoothed = Smoothed.of(weight * (reward - self.lowest), self.lambdas)
        return FoldSums(Moments.of(weight=weight, reward=reward), smoothed)

    def _fold_rows(self, fold: int) -> NDArray[np.int64]:
        """The rows of a fold in random order, so that the first of them stand for all."""
        return np.random.default_rng([self.seed, fold]).permutation(np.flatnonzero(self.folds == fold))

    def probabilities(
        self, policy: Policy, index: NDArray[np.int64], temperatures: Sequence[float], seconds: float | None
    ) -> dict[float, NDArray[np.float64]]:
        """The probability of the logged action in these rows, or in the first of them for which there is time."""
        began, at, size = time.perf_counter(), 0, BLOCK
        parts = []
        while at < len(index):
            rows = self.rows.take(torch.as_tensor(index[at : at + size]))
            parts.append(
                policy.logged_probabilities(rows.context, rows.action, rows.candidates, temperatures=temperatures)
            )
            at += size
            if seconds is not None:
                took = time.perf_counter() - began
                if took >= seconds:
                    break
                size = max(1, min(64 * BLOCK, int((seconds - took) * at / max(took, 1e-9))))
        return dict(zip(temperatures, np.concatenate(parts).T, strict=True))

    def certify(self, chosen: Sequence[Served], seconds: float | None) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Rows, and the probability of their logged action by what was chosen for their fold; as many as there is time for."""
        index, probability = [], []
        for fold, (name, temperature) in enumerate(chosen):
            rows = self._fold_rows(fold)
            each = None if seconds is None else seconds / self.n_folds
            logged = self.probabilities(self.policies[name][fold], rows, (temperature,), each)[temperature]
            index.append(rows[: len(logged)])
            probability.append(logged)
        all_rows, all_probabilities = np.concatenate(index), np.concatenate(probability)
        order = np.argsort(all_rows)
        return all_rows[order], np.minimum(all_probabilities[order], 1.0)

    def best(self, rule: Callable[[Score], float], without: int | None = None) -> Served:
        """The contender and temperature with the best score, by all rows or by those outside a fold."""
        scores = {served: rule(self._total(sums, without).score(self.lowest)) for served, sums in self.sums.items()}
        return max(scores, key=scores.__getitem__)

    def bound(self, index: NDArray[np.int64], probability: NDArray[np.float64]) -> float:
        """The lower bound on the value of what was chosen for every fold, by the rows that `certify` returned.

        It holds for independent rows: there is none where rows belong to clusters, or share a context. That the folds share rows, as
        `counterpoise.learn.hand_out.lift_interval` explains, is allowed for.
        """
        if self.rows.unit is not None:
            return -math.inf
        rows = self.rows.take(torch.as_tensor(index))
        weight = probability / rows.propensity.double().numpy()
        return self._sums(weight, rows.reward.double().numpy()).score(self.lowest, times=TWICE**2).lower

    @property
    def logging_value(self) -> float:
        """An upper limit on what the logging policy earns, allowing for sampling error."""
        reward = self.rows.reward.double().numpy()
        return float(reward.mean() + NormalDist().inv_cdf(0.975) * reward.std() / math.sqrt(len(reward)))

    def serve(self, chosen: Served, fold: int) -> Policy:
        """The policy of a fold at a temperature."""
        name, temperature = chosen
        return at_temperature(self.policies[name][fold], temperature)

    def leaderboard(self, level: float, in_its_units: Callable[[float], float] = float) -> list[Standing]:
        """All contenders, each at its best temperature, the best first, with values as the log has rewards."""
        z = NormalDist().inv_cdf(0.5 + level / 2)
        board: dict[str, Standing] = {}
        for (name, temperature), sums in self.sums.items():
            total = self._total(sums, None)
            score, estimate = total.score(self.lowest), beta_ips(total.moments)
            half, value = z * estimate.stderr, in_its_units(score.value)
            standing = Standing(
                name, temperature, value, value - half, value + half, score.effective_sample_size,
                score.is_measured, score.criterion, self.seconds[name],
            )  # fmt: skip
            if name not in board or standing.score > board[name].score:
                board[name] = standing
        return sorted(board.values(), key=lambda standing: -standing.score)

    @staticmethod
    def _total(sums: list[FoldSums], without: int | None) -> FoldSums:
        return reduce(add, (part for fold, part in enumerate(sums) if fold != without))


def by_score(score: Score) -> float:
    """The value less its error where rows measure it, and else the lower bound."""
    return score.criterion


def by_bound(score: Score) -> float:
    """The lower bound alone."""
    return score.lower


def at_temperature(policy: Policy, temperature: float) -> Policy:
    """The same policy, served at another temperature; what was learned is shared."""
    served = copy(policy)
    served.temperature = temperature
    return served


@dataclass(frozen=True)
class Pace:
    """How long a fit on so many rows took, and the smaller fit before it, if there was one."""

    rows: int
    seconds: float
    before: Pace | None = None

    @property
    def exponent(self) -> float:
        """By which power of the rows the time grows: at least as they do, and as it did from one fit to the next."""
        if self.before is None or min(self.seconds, self.before.seconds) <= 0:
            return 1.0
        grown = math.log(self.seconds / self.before.seconds) / math.log(self.rows / self.before.rows)
        return min(max(grown, 1.0), 3.0)

    def rows_in(self, seconds: float, most: int) -> int:
        """How many rows can be expected to take no longer than this, with a fifth to spare.

        >>> Pace(1000, 0.5).rows_in(2.5, 1_000_000), Pace(1000, 0.5, Pace(500, 0.125)).rows_in(2.5, 1_000_000)
        (4000, 2000)
        """
        if self.seconds <= 0:
            return most
        return min(most, max(1, int(self.rows * (0.8 * seconds / self.seconds) ** (1 / self.exponent) + 0.5)))

    def is_enough(self, seconds: float, most: int) -> bool:
        """Whether another fit would tell nothing new, or cost too much."""
        known = self.before is not None or GROWTH * self.rows >= most
        return (known and self.rows_in(seconds, most) >= most) or self.seconds * GROWTH**self.exponent > 0.1 * seconds
