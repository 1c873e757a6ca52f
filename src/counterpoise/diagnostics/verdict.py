"""Verdicts: whether to believe an estimate, and the caveats that say why not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from counterpoise.diagnostics.diagnose import BEYOND_LUCK, FEW_WEIGHTS, WRONG_PROPENSITIES, Diagnostics, of_mean
from counterpoise.display import p_value
from counterpoise.errors import Argument, Pieces, Sentence, in_units
from counterpoise.moments.spread import below

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
        ranks = [words.index("ok" if caveat.severity == "note" else caveat.severity) for caveat in more]
        word = words[max(words.index(self.verdict), *ranks)]
        return Verdict(word, (*self.reasons, *(caveat.text for caveat in more)), (*self.caveats, *more))

    def without(self, code: str) -> Verdict:
        """The verdict without the caveats of this code, which another one explains; it is no better for that."""
        texts = [caveat.text for caveat in self.caveats if caveat.code == code]
        reasons = tuple(reason for reason in self.reasons if reason not in texts)
        return replace(self, reasons=reasons, caveats=tuple(caveat for caveat in self.caveats if caveat.code != code))


def judge(diagnostics: Diagnostics) -> Verdict:
    """The verdict on every estimate that relies on these weights (all but `dm`).

    >>> print(judge(Diagnostics(2, mean_weight=0.0)))
    not identified: No row has a positive weight: the log never took an action that the target would take.
    """
    fatal = _fatal(diagnostics)
    if fatal:
        return Verdict("not identified", (in_units(fatal, diagnostics.unit),))
    reasons = (*_of_weights(diagnostics), *_of_evidence(diagnostics), *_of_log(diagnostics))
    caveats = (*below_one(diagnostics), *_of_dropped_rows(diagnostics))
    return _verdict([in_units(reason, diagnostics.unit) for reason in reasons], caveats, diagnostics.unit)


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
    fatal = [(name, in_units(_fatal(policy), unit)) for name, policy in policies.items()]
    if any(reason for _, reason in fatal):
        return Verdict("not identified", tuple(f"{name}: {reason}" for name, reason in fatal if reason))
    reasons: list[str] = [
        f"{name}: {in_units(reason, unit)}" for name, policy in policies.items() for reason in _of_weights(policy)
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
        reasons.append(_equal_rewards(shared.reward_min))
    reasons += _of_log(shared)
    reasons[about:] = [in_units(reason, unit) for reason in reasons[about:]]
    weights = [
        replace(caveat, text=f"{name}: {caveat.text}")
        for name, policy in policies.items()
        for caveat in below_one(policy)
    ]
    return _verdict(reasons, (*weights, *_of_dropped_rows(shared)), unit)


def _verdict(reasons: Iterable[str], caveats: Iterable[Caveat], unit: str) -> Verdict:
    """`ok` unless something speaks against it."""
    verdict = with_doubts(Verdict("ok", ()), list(reasons))
    return verdict.with_caveats(replace(caveat, text=in_units(caveat.text, unit)) for caveat in caveats)


def _fatal(diagnostics: Diagnostics) -> str:
    if diagnostics.n == 0:
        return "There are no rows."
    if not diagnostics.has_overlap:
        return "No row has a positive weight: the log never took an action that the target would take."
    if diagnostics.n == 1:
        return "A single row says nothing about its own error."
    weight, error = diagnostics.mean_weight, diagnostics.mean_weight_stderr
    if diagnostics.mean_is_one and weight + 3.3 * error < UNSUPPORTED:  # 3.3 errors: p = 0.001
        return (
            f"The mean weight is {weight:.3g} and should be 1: either the log shows less than half of what the target would do, or the "
            "propensities are wrong."
        )
    return ""


def _of_weights(diagnostics: Diagnostics) -> list[str]:
    """What is wrong with the weights."""
    doubts = []
    if diagnostics.effective_sample_size < FEW_ROWS:
        doubts.append(
            f"The weights leave an effective sample of {diagnostics.effective_sample_size:.3g} rows out of {diagnostics.n:,}, too few for "
            "a reliable standard error."
        )
    if not diagnostics.mean_is_one:
        doubts.append(
            "These are not plain importance weights: expect a bias, which the interval does not cover. Their mean is "
            f"{diagnostics.mean_weight:.4g}, where that of plain weights is 1."
        )
    elif diagnostics.mean_weight_p < WRONG_PROPENSITIES and not diagnostics.is_below_one:
        what = _mean_weight(diagnostics)
        doubts.append(
            f"{what}: the propensities or target probabilities are wrong."
            if diagnostics.can_test_weights or diagnostics.mean_weight_p < BEYOND_LUCK
            else f"{what}, but so few rows carry the weights that this log cannot tell a wrong propensity from bad luck."
        )
    if diagnostics.length_p < EARLY_ENDS:
        how = "longer" if diagnostics.length_shift > 0 else "shorter"
        doubts.append(
            f"What was shown decides how long a list is: the target's lists would be {how} (by about {abs(diagnostics.length_shift):.2g} "
            f"positions, p {p_value(diagnostics.length_p)}), and these weights take every list to be as long as it was. If people leave "
            "because of what they see, use the cascade weight, with the propensity of an item given those above it."
        )
    return doubts


def below_one(diagnostics: Diagnostics) -> Iterator[Caveat]:
    """A mean weight clearly below 1, which has two readings."""
    if not diagnostics.is_below_one:
        return
    share = 1.0 - diagnostics.mean_weight
    upper = min(share + 2.0 * diagnostics.mean_weight_stderr, 1.0)
    size = _percent(share) if _percent(share) == _percent(upper) else f"{_percent(share)} to {_percent(upper)}"
    text = (
        f"{_mean_weight(diagnostics)}: either the propensities or target probabilities are wrong (the propensities too large or the "
        f"target's too small), or the log lacks actions that the target takes, {size} of what it does."
    )
    numbers = {"mean_weight": diagnostics.mean_weight, "share": share, "share_upper": upper}
    yield Caveat(BELOW_ONE, "caution", text, numbers)


def _mean_weight(diagnostics: Diagnostics) -> str:
    return f"The mean weight is {diagnostics.mean_weight:.4g} and should be 1 (p {p_value(diagnostics.mean_weight_p)})"


def _of_evidence(diagnostics: Diagnostics) -> list[str]:
    """What is wrong with the rows that carry a value."""
    if diagnostics.has_equal_rewards:
        return [_equal_rewards(diagnostics.reward_min)]
    if diagnostics.carrying_rows >= FEW_CARRYING:
        return []
    rows = below(diagnostics.carrying_rows, FEW_CARRYING)
    needed = f"About {rows} rows carry this answer; {FEW_CARRYING} or more are needed for ok"
    if diagnostics.weight_rows < FEW_WEIGHTS:
        heavy = f" (Pareto k = {diagnostics.pareto_k:.2f})" if diagnostics.pareto_k > HEAVY_TAIL else ""
        return [f"{needed}: a few rows have most of the weight{heavy}, and rows not seen yet could move it."]
    return [f"{needed}: the outcome that matters is too rare among the rows with large weights."]


def _of_log(diagnostics: Diagnostics) -> list[str]:
    """What is wrong with the log, whatever is asked of it."""
    doubts = []
    groups, effective = diagnostics.cluster_groups, diagnostics.effective_clusters
    if groups is not None and groups < FEW_CLUSTERS:
        doubts.append(
            f"The rows fall into only {groups} groups of clusters, and cluster-robust errors need at least {FEW_CLUSTERS}."
        )
    elif effective is not None and effective < FEW_CLUSTERS:
        doubts.append(
            f"A few large clusters hold most of the rows. All clusters together are worth about {effective:.2g} clusters of equal size, "
            f"and cluster-robust errors need at least {FEW_CLUSTERS}."
        )
    if diagnostics.duplicates:
        repeat = "row repeats" if diagnostics.duplicates == 1 else "rows repeat"
        doubts.append(f"{diagnostics.duplicates:,} {repeat} the key of another row, so the log may contain rows twice.")
    return doubts


def _of_dropped_rows(diagnostics: Diagnostics) -> Iterator[Caveat]:
    """What dropping bad rows may have done to the answer."""
    dropped = diagnostics.dropped
    if diagnostics.has_unknown_rewards:
        text = _unknown_rewards(diagnostics)
    elif diagnostics.lost_rewards:
        text = _lost_rewards(diagnostics)
    elif dropped > MANY_DROPPED * (diagnostics.n + dropped):
        text = (
            f"{dropped:,} of {diagnostics.n + dropped:,} rows were dropped as bad, and the rest may not be like them."
        )
    else:
        return
    numbers = {"dropped": dropped, "unknown_share": diagnostics.unknown_share, "shift": diagnostics.unknown_shift}
    yield Caveat("dropped-rows", "caution", text, numbers)


def _unknown_rewards(diagnostics: Diagnostics) -> str:
    shift, stderr = diagnostics.unknown_shift, diagnostics.mean_reward_stderr
    errors = shift / stderr if stderr > 0 else math.inf
    return (
        f"{_percent(diagnostics.unknown_share)} of the log's rows were dropped because their reward is missing or not a number. Other "
        f"rewards are from {diagnostics.reward_min:g} to {diagnostics.reward_max:g}, so those rows could move the answer by up to "
        f"{shift:.2g}, about {errors:.2g} standard errors. Find out what they earned: if a missing reward means 0, write a 0."
    )


def _lost_rewards(diagnostics: Diagnostics) -> str:
    m, n, mean, dropped = diagnostics.dropped_rewards, diagnostics.n, diagnostics.mean_reward, diagnostics.dropped
    whole = mean + diagnostics.dropped_shift
    total = whole * (n + m)
    lost = total - mean * n
    share = f", and {lost / total:.0%} of the reward with them" if diagnostics.reward_min >= 0 and lost > 0 else ""
    return (
        f"{dropped:,} of {n + dropped:,} rows ({_percent(dropped / (n + dropped))}) were dropped as bad{share}. The mean reward is "
        f"{mean:.4g} and would be {whole:.4g} with those whose reward is good (p {p_value(diagnostics.dropped_p)} if rows were bad at "
        "random), so the answer is about other rows than the log's."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"


def _equal_rewards(reward: float) -> str:
    unless: Pieces = (
        ["The interval assumes that rewards are 0 or 1; if they can be more, pass ", Argument("reward_bounds"), "."]
        if reward in (0.0, 1.0)
        else ["The interval is unbounded unless you pass ", Argument("reward_bounds"), "."]
    )
    return Sentence([f"Every reward is {reward:g}, so the rows do not show how rewards vary. ", *unless])


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
    doubts = []
    for name, (mean, error) in means.items():
        p = min(1.0, len(means) * of_mean(mean, error, carrying, clusters))
        if p < WRONG_PROPENSITIES:
            doubts.append(
                f"The baseline {name!r} was not known before the choice, or the propensities are wrong: the mean of (w − 1)·{name} is "
                f"{mean:.4g} and should be 0 (p {p_value(p)}). Leave it out."
            )
    return doubts


def with_doubts(verdict: Verdict, reasons: list[str]) -> Verdict:
    """The verdict, at most `caution` where there are more reasons for it.

    >>> print(with_doubts(Verdict("ok", ()), ["It rains."]))
    caution: It rains.
    """
    if not reasons or verdict.verdict == "not identified":
        return verdict
    return replace(verdict, verdict="caution", reasons=(*verdict.reasons, *reasons))
