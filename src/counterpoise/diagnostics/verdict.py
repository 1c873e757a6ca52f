"""Verdicts: whether to believe an estimate, and the caveats that say why not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from counterpoise.diagnostics.diagnose import BEYOND_LUCK, FEW_WEIGHTS, WRONG_PROPENSITIES, Diagnostics, of_mean
from counterpoise.errors import Argument, Pieces, Sentence, in_units
from counterpoise.moments.effective import below

# -- Caveats: what is wrong with an answer, how badly, in numbers and in words -----------------------------------------


@dataclass(frozen=True)
class Caveat:
    """Something that makes an answer less sure than its interval says.

    `code` is its name, which stays the same when the wording changes; a `note` leaves the verdict as it is, the other severities are the
    best that a verdict with this caveat can be.
    """

    code: str
    severity: Literal["note", "caution", "not identified"]
    text: str
    numbers: Mapping[str, float] = field(default_factory=dict)


# -- The checks of a log, and the verdict: whether an estimate can be believed, in plain words -------------------------


VerdictWord = Literal["ok", "caution", "not identified"]

FEW_ROWS = 30  # effective
FEW_CARRYING = 7  # by simulation, benchmarks/coverage_grid.py
FEW_DIFFERING = 3  # of a difference, whose terms have both signs
FEW_CLUSTERS = 20
EARLY_ENDS = 0.01  # a bias of two errors shows with p < 1e-4, benchmarks/mended_lists.py
HEAVY_TAIL = 0.7  # Pareto k
UNSUPPORTED = 0.5
MANY_DROPPED = 0.05
BELOW_ONE = "mean-weight-below-one"  # the caveat about a mean weight that only missing actions or wrong numbers explain


@dataclass(frozen=True)
class Verdict:
    """`ok`, `caution` or `not identified`, and why; `caveats` are those of the reasons that have a code and numbers."""

    verdict: VerdictWord
    reasons: tuple[str, ...]
    caveats: tuple[Caveat, ...] = ()

    def __str__(self) -> str:
        return self.verdict + (": " + " ".join(self.reasons) if self.reasons else "")

    def with_caveats(self, caveats: Iterable[Caveat]) -> Verdict:
        """The verdict with more caveats, which is no better than the worst of them allows.

        >>> print(Verdict("ok", ()).with_caveats([Caveat("rain", "caution", "It rains.")]))
        caution: It rains.
        """
        more = tuple(caveats)
        if not more:
            return self
        words: tuple[VerdictWord, ...] = ("ok", "caution", "not identified")
        ranks = [words.index("ok" if one.severity == "note" else one.severity) for one in more]
        word = words[max(words.index(self.verdict), *ranks)]
        return Verdict(word, (*self.reasons, *(one.text for one in more)), (*self.caveats, *more))

    def without(self, code: str) -> Verdict:
        """The verdict without the caveats of this code, which another one explains; it is no better for that."""
        texts = [one.text for one in self.caveats if one.code == code]
        reasons = tuple(reason for reason in self.reasons if reason not in texts)
        return replace(self, reasons=reasons, caveats=tuple(one for one in self.caveats if one.code != code))


def judge(found: Diagnostics) -> Verdict:
    """The verdict on every estimate that relies on these weights (all but `dm`).

    >>> print(judge(Diagnostics(2, mean_weight=0.0)))
    not identified: No row has a positive weight: the log never took an action that the target would take.
    """
    fatal = _fatal(found)
    if fatal:
        return Verdict("not identified", (in_units(fatal, found.unit),))
    reasons = tuple(in_units(one, found.unit) for one in (*_of_weights(found), *_of_evidence(found), *_of_log(found)))
    caveats = [
        replace(one, text=in_units(one.text, found.unit)) for one in (*below_one(found), *_of_dropped_rows(found))
    ]
    return Verdict("caution" if reasons else "ok", reasons).with_caveats(caveats)


def resting_on_model(verdict: Verdict, model: str, *, is_whole: bool = True) -> Verdict:
    """The verdict, at most `caution`, where propensities are a model's word; a segment repeats it only if there is nothing else to say.

    >>> print(resting_on_model(Verdict("ok", ()), "LogisticRegression").verdict)
    caution
    """
    if verdict.verdict == "not identified":
        return verdict
    reason = (
        f"The propensities were not logged: the answer rests on those that {model} estimates from the context. It is wrong as far as they "
        "are, which no check of this log can show, above all where the choice and the reward had a common cause that is not in the context."
    )
    reasons = (reason, *verdict.reasons) if is_whole else verdict.reasons or (reason,)
    return replace(verdict, verdict="caution", reasons=reasons)


def judge_difference(policies: Mapping[str, Diagnostics], carrying: float, differing: float) -> Verdict:
    """The verdict on a difference: what is wrong with either policy's weights, and the rows that carry the difference itself.

    `carrying` are those rows, and `differing` is the mean square of the difference of the weights, 0 where no row tells the policies
    apart. What the two share cancels, so that a difference may be sure where neither value is.
    """
    shared = next(iter(policies.values()))
    unit = shared.unit
    fatal = [(name, in_units(_fatal(one), unit)) for name, one in policies.items()]
    if any(reason for _, reason in fatal):
        return Verdict("not identified", tuple(f"{name}: {reason}" for name, reason in fatal if reason))
    reasons: list[str] = [
        f"{name}: {in_units(reason, unit)}" for name, one in policies.items() for reason in _of_weights(one)
    ]
    about = len(reasons)
    if differing <= 1e-24 and len(policies) > 1:  # weights that are all 1 are those of the logging policy itself
        reasons.append(
            "The policies agree on every row of this log. If they differ at all, then on rows that it has not seen."
        )
    elif differing > 1e-24 and carrying < FEW_DIFFERING and not shared.has_equal_rewards:
        reasons.append(
            f"About {below(carrying, FEW_DIFFERING)} rows carry the difference; {FEW_DIFFERING} or more are needed for ok: the policies "
            "differ on too few rows, or on too few with the outcome that matters."
        )
    if shared.has_equal_rewards:
        reasons.append(_equal_rewards(shared))
    reasons += _of_log(shared)
    reasons[about:] = [in_units(reason, unit) for reason in reasons[about:]]
    weights = [
        replace(caveat, text=f"{name}: {caveat.text}") for name, one in policies.items() for caveat in below_one(one)
    ]
    caveats = [replace(one, text=in_units(one.text, unit)) for one in (*weights, *_of_dropped_rows(shared))]
    return Verdict("caution" if reasons else "ok", tuple(reasons)).with_caveats(caveats)


def _fatal(found: Diagnostics) -> str:
    if found.n == 0:
        return "There are no rows."
    if not found.has_overlap:
        return "No row has a positive weight: the log never took an action that the target would take."
    if found.n == 1:
        return "A single row says nothing about its own error."
    if found.mean_is_one and found.mean_weight + 3.3 * found.mean_weight_stderr < UNSUPPORTED:  # 3.3 errors: p = 0.001
        return (
            f"The mean weight is {found.mean_weight:.3g} and should be 1: either the log shows less than half of what the target would "
            "do, or the propensities are wrong."
        )
    return ""


def _of_weights(found: Diagnostics) -> list[str]:
    """What is wrong with the weights."""
    doubts = []
    if found.effective_sample_size < FEW_ROWS:
        doubts.append(
            f"The weights leave an effective sample of {found.effective_sample_size:.3g} rows out of {found.n:,}, too few for a reliable "
            "standard error."
        )
    if not found.mean_is_one:
        doubts.append(
            "These are not plain importance weights: expect a bias, which the interval does not cover. Their mean is "
            f"{found.mean_weight:.4g}, where that of plain weights is 1."
        )
    elif found.mean_weight_p < WRONG_PROPENSITIES and not found.is_below_one:
        what = _mean_weight(found)
        doubts.append(
            f"{what}: the propensities or target probabilities are wrong."
            if found.can_test_weights or found.mean_weight_p < BEYOND_LUCK
            else f"{what}, but so few rows carry the weights that this log cannot tell a wrong propensity from bad luck."
        )
    if found.length_p < EARLY_ENDS:
        how = "longer" if found.length_shift > 0 else "shorter"
        doubts.append(
            f"What was shown decides how long a list is: the target's lists would be {how} (by about {abs(found.length_shift):.2g} "
            f"positions, p {p_value(found.length_p)}), and these weights take every list to be as long as it was. If people leave because "
            "of what they see, use the cascade weight, with the propensity of an item given those above it."
        )
    return doubts


def below_one(found: Diagnostics) -> Iterator[Caveat]:
    """A mean weight clearly below 1, which has two readings."""
    if not found.is_below_one:
        return
    share = 1.0 - found.mean_weight
    upper = min(share + 2.0 * found.mean_weight_stderr, 1.0)
    size = _percent(share) if _percent(share) == _percent(upper) else f"{_percent(share)} to {_percent(upper)}"
    text = (
        f"{_mean_weight(found)}: either the propensities or target probabilities are wrong (the propensities too large or the target's too "
        f"small), or the log lacks actions that the target takes, {size} of what it does."
    )
    numbers = {"mean_weight": found.mean_weight, "share": share, "share_upper": upper}
    yield Caveat(BELOW_ONE, "caution", text, numbers)


def _mean_weight(found: Diagnostics) -> str:
    return f"The mean weight is {found.mean_weight:.4g} and should be 1 (p {p_value(found.mean_weight_p)})"


def _of_evidence(found: Diagnostics) -> list[str]:
    """What is wrong with the rows that carry a value."""
    if found.has_equal_rewards:
        return [_equal_rewards(found)]
    if found.carrying_rows >= FEW_CARRYING:
        return []
    rows = below(found.carrying_rows, FEW_CARRYING)
    needed = f"About {rows} rows carry this answer; {FEW_CARRYING} or more are needed for ok"
    if found.weight_rows < FEW_WEIGHTS:
        heavy = f" (Pareto k = {found.pareto_k:.2f})" if found.pareto_k > HEAVY_TAIL else ""
        return [f"{needed}: a few rows have most of the weight{heavy}, and rows not seen yet could move it."]
    return [f"{needed}: the outcome that matters is too rare among the rows with large weights."]


def _of_log(found: Diagnostics) -> list[str]:
    """What is wrong with the log, whatever is asked of it."""
    doubts = []
    if found.cluster_groups is not None and found.cluster_groups < FEW_CLUSTERS:
        doubts.append(
            f"The rows fall into only {found.cluster_groups} groups of clusters, and cluster-robust errors need at least {FEW_CLUSTERS}."
        )
    elif found.effective_clusters is not None and found.effective_clusters < FEW_CLUSTERS:
        doubts.append(
            f"A few large clusters hold most of the rows. All clusters together are worth about {found.effective_clusters:.2g} clusters "
            f"of equal size, and cluster-robust errors need at least {FEW_CLUSTERS}."
        )
    if found.duplicates:
        repeat = "row repeats" if found.duplicates == 1 else "rows repeat"
        doubts.append(f"{found.duplicates:,} {repeat} the key of another row, so the log may contain rows twice.")
    return doubts


def _of_dropped_rows(found: Diagnostics) -> Iterator[Caveat]:
    """What dropping bad rows may have done to the answer."""
    if found.has_unknown_rewards:
        text = _unknown_rewards(found)
    elif found.lost_rewards:
        text = _lost_rewards(found)
    elif found.dropped > MANY_DROPPED * (found.n + found.dropped):
        text = f"{found.dropped:,} of {found.n + found.dropped:,} rows were dropped as bad, and the rest may not be like them."
    else:
        return
    numbers = {"dropped": found.dropped, "unknown_share": found.unknown_share, "shift": found.unknown_shift}
    yield Caveat("dropped-rows", "caution", text, numbers)


def _unknown_rewards(found: Diagnostics) -> str:
    errors = found.unknown_shift / found.mean_reward_stderr if found.mean_reward_stderr > 0 else math.inf
    return (
        f"{_percent(found.unknown_share)} of the log's rows were dropped because their reward is missing or not a number. Other rewards "
        f"are from {found.reward_min:g} to {found.reward_max:g}, so those rows could move the answer by up to {found.unknown_shift:.2g}, "
        f"about {errors:.2g} standard errors. Find out what they earned: if a missing reward means 0, write a 0."
    )


def _lost_rewards(found: Diagnostics) -> str:
    m, n, mean = found.dropped_rewards, found.n, found.mean_reward
    whole = mean + found.dropped_shift
    total = whole * (n + m)
    lost = total - mean * n
    share = f", and {lost / total:.0%} of the reward with them" if found.reward_min >= 0 and lost > 0 else ""
    return (
        f"{found.dropped:,} of {n + found.dropped:,} rows ({_percent(found.dropped / (n + found.dropped))}) were dropped as bad{share}. "
        f"The mean reward is {mean:.4g} and would be {whole:.4g} with those whose reward is good (p {p_value(found.dropped_p)} if rows "
        "were bad at random), so the answer is about other rows than the log's."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"


def _equal_rewards(found: Diagnostics) -> str:
    unless: Pieces = (
        ["The interval assumes that rewards are 0 or 1; if they can be more, pass ", Argument("reward_bounds"), "."]
        if found.reward_min in (0.0, 1.0)
        else ["The interval is unbounded unless you pass ", Argument("reward_bounds"), "."]
    )
    return Sentence([f"Every reward is {found.reward_min:g}, so the rows do not show how rewards vary. ", *unless])


def p_value(p: float) -> str:
    """A p-value to two digits, or a bound if it is too small to mean anything.

    >>> p_value(0.0123), p_value(0.0)
    ('= 0.012', '< 1e-12')
    """
    return f"= {p:.2g}" if p > 1e-12 else "< 1e-12"


# -- The test that the columns of a context baseline were known before the choice: then (w − 1)·φ has mean 0, whatever φ is ---


def after_choice(means: Mapping[str, tuple[float, float]], carrying: float, clusters: float = math.inf) -> list[str]:
    """What is wrong with the columns of a baseline, by the mean of (w − 1)·φ of each and its error; nothing if all may have mean 0.

    φ is taken from its mean, so that propensities that are all too small or too large do not count. The test is Student's, with as few
    degrees of freedom as the rows that carry the weights (`carrying`) and the clusters allow, and its p-values are multiplied by the
    number of columns.

    >>> after_choice({"age": (0.01, 0.02)}, carrying=400)
    []
    >>> print(*after_choice({"age": (0.01, 0.02), "dwell": (1.2, 0.03)}, carrying=400))
    The baseline 'dwell' was not known before the choice, or the propensities are wrong: the mean of (w − 1)·dwell is 1.2 and should be 0
    (p < 1e-12). Leave it out.
    """
    found = []
    for name, (mean, error) in means.items():
        p = min(1.0, len(means) * of_mean(mean, error, carrying, clusters))
        if p < WRONG_PROPENSITIES:
            found.append(
                f"The baseline {name!r} was not known before the choice, or the propensities are wrong: the mean of (w − 1)·{name} is "
                f"{mean:.4g} and should be 0 (p {p_value(p)}). Leave it out."
            )
    return found


def with_doubts(verdict: Verdict, reasons: list[str]) -> Verdict:
    """The verdict, at most `caution` where there are more reasons for it.

    >>> print(with_doubts(Verdict("ok", ()), ["It rains."]))
    caution: It rains.
    """
    if not reasons or verdict.verdict == "not identified":
        return verdict
    return replace(verdict, verdict="caution", reasons=(*verdict.reasons, *reasons))
