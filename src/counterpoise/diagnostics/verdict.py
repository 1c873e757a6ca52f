"""Verdicts: whether to believe an estimate, and the caveats that say why not."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from counterpoise.diagnostics.diagnose import BEYOND_LUCK, FEW_WEIGHTS, WRONG_PROPENSITIES, Diagnostics, of_mean
from counterpoise.display import p_value
from counterpoise.errors import OptionError, Sentence, verbatim
from counterpoise.log.kinds import KINDS
from counterpoise.log.kinds.kind import Code, Severity
from counterpoise.log.kinds.labeled import FEW_LABELS
from counterpoise.log.log import Log
from counterpoise.log.parts import is_minimized
from counterpoise.moments.log_moments import Label, LogMoments
from counterpoise.moments.spread import below

# -- Caveats: what is wrong with an answer, how badly, in numbers and in words -----------------------------------------

VerdictWord = Literal["ok", "caution", "not identified"]
WORDS: tuple[VerdictWord, ...] = ("ok", "caution", "not identified")

MISSING = "missing-actions"
BELOW_ONE = "mean-weight-below-one"  # a mean that only missing actions or wrong numbers explain
TOGETHER = "rows-move-together"
OWN_ROWS = "own-training-rows"
BY_ACTION = "labels-depend-on-action"
COUNTED = "counted-propensities"
MISREAD = "propensities-not-probabilities"
REREAD = "propensities-reread"
UNNAMED = "sampling-not-named"
WHICH_WAY = "less-may-be-better"


ROWS, EXPLORE = (
    "Collect more <rows>.",
    "Have the logging policy explore the missing actions.",
)  # cures whose next step has a number of rows
CHECK_PROPENSITIES = (
    "Check what the logger writes: the probability of the action that it took, after every rule, as a share (no percentage, logarithm or "
    "odds); where it explored, ε/K and not ε."
)


# Every code there is; docs/certainty.md has them as a table. A code stays the same when its wording changes.
CODES: Mapping[str, Code] = {
    "no-rows": Code(
        "not identified",
        "There are no rows.",
        cure="Check where the log is read from, and which <rows> are asked for.",
    ),
    "no-overlap": Code("not identified", "The log never took an action that the target would take.", cure=EXPLORE),
    "single-row": Code("not identified", "A single row has no standard error.", cure=ROWS),
    "little-support": Code(
        "not identified",
        "The log shows less than half of what the target would do.",
        cure=f"{CHECK_PROPENSITIES} If they are right, have the logging policy explore more of what the target does.",
    ),
    "few-effective-rows": Code("caution", "The weights leave too few rows for a reliable standard error.", cure=ROWS),
    "biased-weights": Code(
        "caution",
        "Clipped, shrunk and other such weights have a bias that no interval covers.",
        cure="For an answer without that bias, name a `target=` and leave out `weight=`.",
    ),
    "mean-weight-off": Code(
        "caution", "Weights should average 1; these do not, so some probability is wrong.", cure=CHECK_PROPENSITIES
    ),
    BELOW_ONE: Code(
        "caution",
        "Weights average less than 1: probabilities are wrong, or actions are missing.",
        cure=f"{CHECK_PROPENSITIES} If they are right, have the logging policy explore more of what the target does.",
    ),
    "length-follows-choice": Code(
        "caution", "What was shown decides how long a ranking is, which these weights ignore."
    ),
    "cut-off-episodes": Code("caution", "Some episodes were cut off, and what they earned later is unknown."),
    "equal-rewards": Code("caution", "All rewards are the same, so the rows do not show how rewards vary.", cure=ROWS),
    "no-labels": Code("not identified", "No row with a weight is labeled, so there is only the proxy to go by."),
    "few-labels": Code("caution", "Too few rows are labeled to fit how far the proxy can be relied on."),
    "labels-not-at-random": Code("caution", "Labeled rows differ from the others, by their proxies."),
    BY_ACTION: Code(
        "caution",
        "Some actions, segments or weights have more labels than others, beyond what `label_propensity=` explains.",
    ),
    "few-carrying-rows": Code("caution", "Too few rows carry the answer; rows not seen yet could move it.", cure=ROWS),
    "policies-agree": Code(
        "caution",
        "The policies agree on every row, so the log shows nothing about where they differ.",
        cure="Compare policies that differ on <rows> of this log.",
    ),
    "few-clusters": Code(
        "caution", "Cluster-robust errors need more clusters, or clusters of more equal size.", cure=ROWS
    ),
    "repeated-keys": Code(
        "caution",
        "Rows repeat the key of another row, so the log may contain rows twice.",
        cure="Keep one <row> of each key.",
    ),
    "repeated-rows": Code(
        "caution", "Rows repeat other rows in every column, more often than chance would.", takes_rows=True
    ),
    "dropped-rows": Code("caution", "Invalid rows were dropped, and the rest may not be like them."),
    **{code: entry for kind in KINDS for code, entry in kind.codes.items()},
    UNNAMED: Code(
        "caution", "A column looks like the rate at which rows were sampled, and no argument names it.", takes_rows=True
    ),
    "baseline-after-choice": Code("caution", "A column of the baseline was not known before the choice."),
    "chosen-weight": Code(
        "caution",
        "The weight's constant was tuned on this log, and the interval ignores that.",
        cure="Choose the weight on an earlier log, and pass that one as `weight=`.",
    ),
    "many-looks": Code(
        "caution",
        "The log was looked at before, while it grew, and this interval holds for a single look.",
        cure="Leave out `interval=`: from the second look on, the default holds however often you look.",
    ),
    "action-groups": Code(
        "caution",
        "A target that chooses groups is evaluated as if actions of a group earned the same.",
        cure="Check that actions of one group earn about the same, or evaluate a policy that names its actions.",
    ),
    "estimated-propensities": Code(
        "caution",
        "The answer is only as good as the propensity model.",
        cure="Log the propensities from now on: no number of <rows> makes estimated ones certain.",
    ),
    "heavy-tailed-rewards": Code(
        "caution", "Rewards may have no variance, and then a mean is less sure than it looks."
    ),
    MISSING: Code(
        "caution",
        "The target takes actions that the log never takes, which leaves bounds.",
        takes_rows=True,
        cure=EXPLORE,
    ),
    OWN_ROWS: Code(
        "caution", "The policy was learned from these rows, or acts as if it was, which flatters it.", takes_rows=True
    ),
    TOGETHER: Code(
        "caution", "Rows with the same value in a column are alike, so the interval is too narrow.", takes_rows=True
    ),
    "lists-as-rows": Code(
        "caution",
        "Rows look like the positions of rankings or the steps of episodes, and are evaluated one by one.",
        takes_rows=True,
        cure="If they are rankings or episodes, evaluate them as such.",
    ),
    "propensity-meaning": Code(
        "caution", "The propensities of rankings do not match `propensity_of=`.", takes_rows=True
    ),
    MISREAD: Code("caution", "The column of propensities seems to contain something else.", takes_rows=True),
    REREAD: Code(
        "caution",
        "The column of propensities can be read in several ways, and too few checks tell which is right.",
        takes_rows=True,
    ),
    "actions-as-probabilities": Code(
        "caution", "A target's column seems to contain actions, and was read as probabilities.", takes_rows=True
    ),
    COUNTED: Code(
        "caution", "Propensities look counted from simulated draws, which makes weights too large.", takes_rows=True
    ),
    WHICH_WAY: Code("note", "The reward's name sounds like a cost, and it is not known whether less of it is better."),
    "carrying-logger": Code("note", "Of several loggers, one carries most of the weight."),
    "sensitivity": Code("note", "How wrong propensities must be for the conclusion to flip."),
    # what only the doctor says, who was asked nothing
    "missing-part": Code("fix", "No column looks like a part that every evaluation needs."),
    "not-numbers": Code("fix", "A column that must contain numbers contains something else."),
    "invalid-rows": Code("fix", "Rows break a rule, and `evaluate` would refuse them."),
    "no-valid-rows": Code("fix", "Every row is invalid, so no target can be evaluated."),
    "context-tells-reward": Code("fix", "A column of the context was probably written after the choice."),
    "single-action": Code("fix", "Every propensity is 1: the logging policy never varied."),
    "broken-lists": Code("fix", "Some rankings lack positions or have one twice."),
    "rounded-propensities": Code("look", "Propensities have so few digits that large weights are off."),
    "default-propensities": Code("look", "One value of the propensities is more common than all others together."),
    "count-of-actions": Code("look", "The mean of 1/propensity is not the number of actions."),
    "weights-of-parts": Code("look", "The mean weight of some part of the log is not 1."),
    "actions-not-as-logged": Code("look", "Actions were not taken as often as the logged distribution implies."),
    "not-a-distribution": Code("look", "The logged probabilities of all actions do not sum to 1."),
    "sampled-rows": Code("note", "Rows were sampled, and the mean weights of parts were not looked at."),
    "other-rewards": Code("note", "Only the first of several rewards was examined."),
}


@dataclass(frozen=True)
class Caveat:
    """A reason to trust an answer less than its interval suggests, or something to fix in a log.

    `code` is its name, one of `CODES`; `text` says what is wrong, and `do` what you can do about it, if anything. A `note`
    leaves the verdict as it is; the other severities of an answer are the best that a verdict with this caveat can be. The doctor's are
    `fix` and `look`, and its caveats say which column, target or part they are `about`.

    What checks of rows say is about one `target` or all, one `reward` or all, one segment (or the whole log, None) or everything.

    >>> wet = Caveat("repeated-keys", "Two <rows> have the same key.", do="Look at them.")
    >>> wet.severity, str(wet)
    ('caution', 'Two rows have the same key. Look at them.')
    """

    code: str
    text: str
    numbers: Mapping[str, float] = field(default_factory=dict, hash=False)
    do: str = ""
    unusual_severity: Severity | None = field(default=None, repr=False)  # if it differs from the code's
    where: str = field(default="", repr=False)  # what most of it is about, such as "country is DE"
    rest: str = field(default="", repr=False)  # the rows that it is not about, in SQL, such as "country <> 'DE'"
    action: str = field(default="", repr=False)  # the one that it is about above all
    left: str = field(default="", repr=False)  # the end of its text: what is left where something is missing
    unit: str = field(default="row", repr=False)  # what its text counts
    about: str = field(default="", repr=False)
    target: str | None = field(default=None, repr=False, compare=False)
    reward: str | None = field(default=None, repr=False, compare=False)
    places: tuple[Label | None, ...] | None = field(default=None, repr=False, compare=False)
    known: tuple[LogMoments, ...] = field(default=(), repr=False, compare=False)  # of the other rows, for each reward

    def __post_init__(self) -> None:
        for part in ("text", "do", "left"):
            object.__setattr__(self, part, Sentence(getattr(self, part), self.unit))

    @property
    def entry(self) -> Code:
        """What its code says: by `CODES`, or by a kind of rows of one's own."""
        own = {code: entry for kind in KINDS for code, entry in kind.codes.items()} if self.code not in CODES else CODES
        return own[self.code]

    @property
    def severity(self) -> Severity:
        """The best verdict that this caveat allows; of a log, how soon somebody should see to it."""
        return self.unusual_severity or self.entry.severity

    @property
    def cure(self) -> str:
        """The next step: what cures caveats of its code, or its own `do`."""
        return Sentence(self.entry.cure, self.unit) or self.do

    def __str__(self) -> str:
        return self.reason

    @property
    def reason(self) -> str:
        """What is wrong and what to do about it, with arguments that a front end may write its own way."""
        return Sentence(f"{verbatim(self.text)} {verbatim(self.do)}", self.unit) if self.do else self.text

    @property
    def message(self) -> str:
        """The reason, as the doctor calls it."""
        return self.reason

    def touches(self, targets: Container[str], reward: str | None) -> bool:
        """Whether it is about an answer on any of these targets."""
        return (self.target is None or self.target in targets) and (self.reward is None or self.reward == reward)

    def of_units(self, unit: str) -> Caveat:
        """The same about lists or visits, if those are what is counted."""
        return self if unit == self.unit else replace(self, unit=unit)

    def of_policy(self, policy: str) -> Caveat:
        """The same about one of several policies."""
        return replace(self, text=f"{verbatim(policy)}: {verbatim(self.text)}")

    def document(self) -> dict[str, object]:
        """The record for JSON."""
        parts = {"code": self.code, "severity": self.severity, "text": self.text, "do": self.do}
        return parts | {"numbers": dict(self.numbers)}


@dataclass(frozen=True, repr=False)
class Verdict:
    """Whether to believe an answer, made of its caveats: `verdict` is as good as the worst of them allows; `reasons` are their texts.

    >>> print(Verdict((Caveat("few-clusters", "There are 7 clusters."),)))
    caution: There are 7 clusters.
    """

    caveats: tuple[Caveat, ...] = ()

    @property
    def verdict(self) -> VerdictWord:
        """`ok`, `caution` or `not identified`."""
        severities = {caveat.severity for caveat in self.caveats}
        return next((word for word in reversed(WORDS) if word in severities), "ok")

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is not `ok`, and what else you should know, in plain words."""
        return tuple(caveat.reason for caveat in self.caveats)

    @property
    def rests_on_few(self) -> bool:
        """Whether so few rows carry the answer that its standard error is no more than a guess."""
        counts = (caveat.numbers.get(name) for caveat in self.caveats for name in ("effective_rows", "carrying_rows"))
        return any(count is not None and count < FEW_CARRYING for count in counts)

    def __str__(self) -> str:
        return self.verdict + (": " + " ".join(self.reasons) if self.caveats else "")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def document(self) -> dict[str, object]:
        """The verdict in plain values, for JSON."""
        caveats = [caveat.document() for caveat in self.caveats]
        return {"verdict": self.verdict, "reasons": self.reasons, "caveats": caveats}

    def of_units(self, unit: str) -> Verdict:
        """The same about lists or visits, if those are what is counted."""
        return Verdict(tuple(caveat.of_units(unit) for caveat in self.caveats))

    def with_caveats(self, more: Iterable[Caveat]) -> Verdict:
        """The verdict with more caveats."""
        return Verdict((*self.caveats, *more))


def which_way(reward: str) -> Caveat:
    """The question of a reward whose name sounds like a cost: the number is what it is, and whether it is good news is not known."""
    return Caveat(
        WHICH_WAY,
        f"Is less of {reward!r} better?",
        do=f"If so, pass `minimize={reward!r}`; if more is better, `minimize=False`.",
    )


def check_direction(log: Log) -> None:
    """Refuse to learn until it is known which way, where the reward's name sounds like a cost."""
    for reward in log.reward:
        if is_minimized(log.minimize, reward) is None:
            caveat = which_way(reward)
            raise OptionError(f"a policy learns to make rewards large or small. {verbatim(caveat.text)}", do=caveat.do)


# -- What weights, rewards and the log itself say against an estimate --------------------------------------------------

FEW_ROWS = 30  # effective, with which a standard error is itself off by 13 %, 1/√(2·29)
FEW_CARRYING = 7  # by simulation, benchmarks/intervals.py grid
FEW_DIFFERING = 3  # of a difference, whose terms have both signs
FEW_CLUSTERS = 20  # with which the jackknife's error is itself off by 16 %, 1/√(2·19)
EARLY_ENDS = 0.01  # a bias of two errors shows with p < 1e-4, benchmarks/lists.py early
HEAVY_TAIL = 0.7  # Pareto k, above which means converge too slowly to rely on: Vehtari et al. (2024)
UNSUPPORTED = 0.5  # share of what a target does: if more is missing than seen, bounds say next to nothing
SURE = 3.3  # standard errors: p = 0.001
MANY_DROPPED = (
    0.05  # of all rows: if their rewards differ by a standard deviation, so does the answer by a twentieth of one
)


def judge(diagnostics: Diagnostics) -> Verdict:
    """The verdict on every estimate that relies on these weights (all but `dm`).

    >>> print(judge(Diagnostics(2, mean_weight=0.0)))
    not identified: No row has a positive weight: the log never took an action that the target would take.
    """
    caveats = list(_fatal(diagnostics)) or [
        *_of_weights(diagnostics),
        *_of_evidence(diagnostics),
        *_of_log(diagnostics),
        *below_one(diagnostics),
        *_of_dropped_rows(diagnostics),
    ]
    return Verdict(tuple(caveats)).of_units(diagnostics.unit)


def judge_difference(policies: Mapping[str, Diagnostics], carrying: float, differing: float) -> Verdict:
    """The verdict on a difference: what is wrong with either policy's weights, and the rows that carry the difference itself.

    `carrying` are those rows, and `differing` is the mean square of the difference of the weights, 0 if the policies agree on
    every row. What the two share cancels, so a difference may be certain even if neither value is.
    """
    shared = next(iter(policies.values()))

    def of_each(check: Callable[[Diagnostics], Iterator[Caveat]]) -> list[Caveat]:
        return [caveat.of_policy(name) for name, policy in policies.items() for caveat in check(policy)]

    own: list[Caveat] = []
    is_none = differing <= 1e-24  # rounding: the policies agree on every row
    if is_none and len(policies) > 1:  # weights that are all 1 are those of the logging policy itself
        text = "The policies agree on every <row> of this log. If they differ at all, it is on <rows> that the log does not have."
        own.append(Caveat("policies-agree", text))
    elif not is_none and carrying < FEW_DIFFERING and not shared.has_equal_rewards:
        text = (
            f"About {below(carrying, FEW_DIFFERING)} <rows> carry the difference; {FEW_DIFFERING} or more are needed for ok: the policies "
            "differ on too few <rows>, or on too few with the outcome that matters."
        )
        own.append(Caveat("few-carrying-rows", text, {"carrying_rows": carrying, "needed": FEW_DIFFERING}))
    own += [*_equal_rewards(shared), *_of_log(shared)]
    caveats = of_each(_fatal) or [*of_each(_of_weights), *own, *of_each(below_one), *_of_dropped_rows(shared)]
    return Verdict(tuple(caveats)).of_units(shared.unit)


def rows_until_ok(diagnostics: Diagnostics, verdict: Verdict) -> float:
    """How many rows of the same kind it takes for the verdict to be `ok`; infinite if rows do not cure it."""
    carrying, effective = diagnostics.carrying_rows, diagnostics.effective_sample_size
    of_rows = {caveat.code for caveat in judge(diagnostics).caveats}
    # some caveats have nothing to do with rows, such as that of a model's propensities
    others = any(caveat.code not in of_rows and caveat.severity != "note" for caveat in verdict.caveats)
    if others or not (carrying > 0 and effective > 0):
        return math.inf
    few = [FEW_CARRYING / carrying, FEW_ROWS / effective]
    groups, clusters = diagnostics.cluster_groups, diagnostics.effective_clusters
    if groups is not None and clusters is not None:
        few += [FEW_CLUSTERS / max(groups, 1), FEW_CLUSTERS / clusters]
    times = max(few) * (1 + 1e-9)
    grown = replace(
        diagnostics,
        effective_sample_size=diagnostics.effective_sample_size * times,
        carrying_rows=diagnostics.carrying_rows * times,
        cluster_groups=None if groups is None else math.ceil(groups * times),
        effective_clusters=None if clusters is None else clusters * times,
    )
    return float(math.ceil(diagnostics.n * times)) if judge(grown).verdict == "ok" else math.inf


def resting_on_model(model: str) -> Caveat:
    """The caveat for estimated propensities."""
    text = (
        f"The propensities were not logged: the answer rests on those that {model} estimates from the context. It is only as good as they "
        "are, and no check of this log can tell, least of all if something that is not in the context drove both the choice and the reward."
    )
    return Caveat("estimated-propensities", text)


def _fatal(diagnostics: Diagnostics) -> Iterator[Caveat]:
    """What makes an answer impossible."""
    weight, error = diagnostics.mean_weight, diagnostics.mean_weight_stderr
    if diagnostics.n == 0:
        yield Caveat("no-rows", "There are no <rows>.")
    elif not diagnostics.has_overlap:
        yield Caveat(
            "no-overlap",
            "No <row> has a positive weight: the log never took an action that the target would take.",
        )
    elif diagnostics.n == 1:
        yield Caveat("single-row", "A single <row> has no standard error.")
    elif diagnostics.mean_is_one and weight + SURE * error < UNSUPPORTED:
        text = (
            f"The mean weight is {weight:.3g} and should be 1: either the log shows less than half of what the target would do, or the "
            "propensities are wrong."
        )
        yield Caveat("little-support", text, {"mean_weight": weight, "error": error})


def _of_weights(diagnostics: Diagnostics) -> Iterator[Caveat]:
    """What is wrong with the weights."""
    effective = diagnostics.effective_sample_size
    if effective < FEW_ROWS:
        text = (
            f"The weights leave an effective sample of {effective:.3g} <rows> out of {diagnostics.n:,}, too few for a reliable "
            "standard error."
        )
        yield Caveat("few-effective-rows", text, {"effective_rows": effective, "needed": FEW_ROWS})
    numbers = {"mean_weight": diagnostics.mean_weight}
    if not diagnostics.mean_is_one:
        text = (
            "These are not plain importance weights: expect a bias, which the interval does not cover. Their mean is "
            f"{diagnostics.mean_weight:.4g}, where that of plain weights is 1."
        )
        yield Caveat("biased-weights", text, numbers)
    elif diagnostics.mean_weight_p < WRONG_PROPENSITIES and not diagnostics.is_below_one:
        is_sure = diagnostics.can_test_weights or diagnostics.mean_weight_p < BEYOND_LUCK
        what = (
            ": the propensities or target probabilities are wrong."
            if is_sure
            else ", but so few <rows> carry the weights that this log cannot tell a wrong propensity from bad luck."
        )
        numbers["p"] = diagnostics.mean_weight_p
        yield Caveat("mean-weight-off", f"{_mean_weight(diagnostics)}{what}", numbers)
    if diagnostics.length_p < EARLY_ENDS:
        shift, p = diagnostics.length_shift, diagnostics.length_p
        text = (
            f"What was shown decides how long a ranking is: the target's rankings would be {'longer' if shift > 0 else 'shorter'} (by "
            f"about {abs(shift):.2g} positions, p {p_value(p)}), and these weights take every ranking to be as long as it was."
        )
        do = "If people leave because of what they see, use the cascade weight, with the propensity of an item given those above it."
        yield Caveat("length-follows-choice", text, {"shift": shift, "p": p}, do)


def below_one(diagnostics: Diagnostics) -> Iterator[Caveat]:
    """The caveat for a mean weight clearly below 1, which has two readings."""
    if not diagnostics.is_below_one:
        return
    share = 1.0 - diagnostics.mean_weight
    upper = min(share + 2.0 * diagnostics.mean_weight_stderr, 1.0)
    size = _percent(share) if _percent(share) == _percent(upper) else f"{_percent(share)} to {_percent(upper)}"
    text = (
        f"{_mean_weight(diagnostics)}: either the propensities or target probabilities are wrong (the propensities too large or the "
        f"target's too small), or the log lacks actions that the target takes, {size} of what it does."
    )
    yield Caveat(BELOW_ONE, text, {"mean_weight": diagnostics.mean_weight, "share": share, "share_upper": upper})


def _mean_weight(diagnostics: Diagnostics) -> str:
    return f"The mean weight is {diagnostics.mean_weight:.4g} and should be 1 (p {p_value(diagnostics.mean_weight_p)})"


def _of_evidence(diagnostics: Diagnostics) -> Iterator[Caveat]:
    """What is wrong with the rows that carry a value."""
    carrying = diagnostics.carrying_rows
    yield from _equal_rewards(diagnostics)
    if carrying < FEW_CARRYING and not diagnostics.has_equal_rewards:
        why = "the outcome that matters is too rare among the <rows> with large weights."
        if diagnostics.weight_rows < FEW_WEIGHTS:
            heavy = f" (Pareto k = {diagnostics.pareto_k:.2f})" if diagnostics.pareto_k > HEAVY_TAIL else ""
            why = f"a few <rows> have most of the weight{heavy}, and <rows> not seen yet could move it."
        text = f"About {below(carrying, FEW_CARRYING)} <rows> carry this answer; {FEW_CARRYING} or more are needed for ok: {why}"
        yield Caveat("few-carrying-rows", text, {"carrying_rows": carrying, "needed": FEW_CARRYING})


def _equal_rewards(diagnostics: Diagnostics) -> Iterator[Caveat]:
    """The caveat for rewards that are all the same, so that only bounds say what others could be."""
    if not diagnostics.has_equal_rewards:
        return
    reward = diagnostics.reward_min
    unless = (
        "The interval assumes that rewards are 0 or 1; if they can be more, pass `reward_bounds=`."
        if reward in (0.0, 1.0)
        else "The interval is unbounded unless you pass `reward_bounds=`."
    )
    text = f"Every reward is {reward:g}, so the <rows> do not show how rewards vary."
    yield Caveat("equal-rewards", text, {"reward": reward}, unless)


def _of_log(diagnostics: Diagnostics) -> Iterator[Caveat]:
    """What is wrong with the log, whatever the question."""
    groups, effective, repeated = diagnostics.cluster_groups, diagnostics.effective_clusters, diagnostics.duplicates
    if groups is not None and groups < FEW_CLUSTERS:
        text = f"The <rows> fall into only {groups} groups of clusters, and cluster-robust errors need at least {FEW_CLUSTERS}."
        yield Caveat("few-clusters", text, {"clusters": groups, "needed": FEW_CLUSTERS})
    elif effective is not None and effective < FEW_CLUSTERS:
        text = (
            f"A few large clusters hold most of the <rows>. The effective number of clusters is about {effective:.2g}, and cluster-robust "
            f"errors need at least {FEW_CLUSTERS}."
        )
        yield Caveat("few-clusters", text, {"clusters": effective, "needed": FEW_CLUSTERS})
    if diagnostics.cut_off:
        cut, n = diagnostics.cut_off, diagnostics.n
        text = (
            f"{cut:,} of {n:,} episodes ({_percent(cut / n)}) were cut off before their end. What they earned later is unknown and counts "
            "as 0, so this is the value of the steps in the log, and not of whole episodes."
        )
        do = (
            "Drop, with `where=`, episodes that began too late to end in this log; or evaluate the first steps alone, as many as no "
            "episode was cut off before, without `done=`."
        )
        yield Caveat("cut-off-episodes", text, {"episodes": cut, "share": cut / n}, do)
    if repeated:
        repeat = "<row> repeats" if repeated == 1 else "<rows> repeat"
        text = f"{repeated:,} {repeat} the key of another <row>, so the log may contain <rows> twice."
        yield Caveat("repeated-keys", text, {"rows": repeated})


def _of_dropped_rows(diagnostics: Diagnostics) -> Iterator[Caveat]:
    """What dropping bad rows may have done to the answer."""
    n, dropped, stderr = diagnostics.n, diagnostics.dropped, diagnostics.mean_reward_stderr
    shift, do = diagnostics.unknown_shift, "Fix the invalid <rows> in the log, and evaluate it again."
    if diagnostics.has_unknown_rewards:
        text = (
            f"{_percent(diagnostics.unknown_share)} of the log's <rows> were dropped because their reward is missing or not a number. "
            f"Other rewards are from {diagnostics.reward_min:g} to {diagnostics.reward_max:g}, so those <rows> could move the answer by "
            f"up to {shift:.2g}, about {shift / stderr if stderr > 0 else math.inf:.2g} standard errors."
        )
        do = "Find out what they earned: if a missing reward means 0, write a 0."
    elif diagnostics.lost_rewards:
        mean = diagnostics.mean_reward
        whole = mean + diagnostics.dropped_shift
        total = whole * (n + diagnostics.dropped_rewards)
        lost = total - mean * n
        share = f", and {lost / total:.0%} of the reward with them" if diagnostics.reward_min >= 0 and lost > 0 else ""
        text = (
            f"{dropped:,} of {n + dropped:,} <rows> ({_percent(dropped / (n + dropped))}) were invalid and dropped{share}. The mean "
            "reward is "
            f"{mean:.4g} and would be {whole:.4g} with those whose reward is good (p {p_value(diagnostics.dropped_p)} if <rows> were "
            "invalid at random), so the <rows> behind the answer are not like those of the log."
        )
    elif dropped > MANY_DROPPED * (n + dropped):
        text = f"{dropped:,} of {n + dropped:,} <rows> were invalid and dropped, and the rest may not be like them."
    else:
        return
    numbers = {"dropped": dropped, "unknown_share": diagnostics.unknown_share, "shift": shift}
    yield Caveat("dropped-rows", text, numbers, do)


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"


# -- The test that the columns of a context baseline were known before the choice: then (w − 1)·φ has mean 0, whatever φ is ---


def after_choice(
    means: Mapping[str, tuple[float, float]], carrying: float, clusters: float = math.inf
) -> Iterator[Caveat]:
    """What is wrong with the columns of a baseline, by the mean of (w − 1)·φ of each and its error; nothing if all may have mean 0.

    φ is taken from its mean, so that propensities that are all too small or too large do not count. The test is Student's, with as few
    degrees of freedom as the rows that carry the weights (`carrying`) and the clusters allow, and its p-values are multiplied by the
    number of columns.

    >>> list(after_choice({"age": (0.01, 0.02)}, carrying=400))
    []
    >>> print(*after_choice({"age": (0.01, 0.02), "dwell": (1.2, 0.03)}, carrying=400))
    The baseline 'dwell' was not known before the choice, or the propensities are wrong: the mean of (w − 1)·dwell is 1.2 and should be 0
    (p < 1e-12). Leave it out.
    """
    for name, (mean, error) in means.items():
        p = min(1.0, len(means) * of_mean(mean, error, carrying, clusters))
        if p < WRONG_PROPENSITIES:
            text = (
                f"The baseline {name!r} was not known before the choice, or the propensities are wrong: the mean of (w − 1)·{name} is "
                f"{mean:.4g} and should be 0 (p {p_value(p)})."
            )
            yield Caveat("baseline-after-choice", text, {"mean": mean, "p": p}, "Leave it out.")


def carrying_policies(log: LogMoments) -> Iterator[Caveat]:
    """Which logging policy carries each target's value, from moments whose last segment says who wrote a row."""
    for target in log.targets:
        carried = weight_by_policy(log, target)
        most = max(carried, key=carried.__getitem__)
        rows = log.moments[target, ""].n.sum(axis=1)
        own = sum(int(n) for label, n in zip(log.segments, rows, strict=True) if str(label[-1]) == most)
        weight, share = carried[most] / max(sum(carried.values()), 1e-300), own / log.n
        much = "Most of the weight" if weight > 0.5 else "The largest part of the weight"
        text = f"{much} comes from logger {most}: {100 * weight:.0f} %, on {100 * share:.0f} % of the <rows>."
        numbers = {"weight_share": weight, "row_share": share}
        yield Caveat("carrying-logger", text, numbers, target=target, places=(None,))


def weight_by_policy(log: LogMoments, target: str) -> dict[str, float]:
    """The sum of a target's weights on the rows of each logging policy, which is the last segment of the moments."""
    stack = log.moments[target, ""].merge(axis=1)
    carried = dict.fromkeys((str(label[-1]) for label in log.segments), 0.0)
    for label, weight in zip(log.segments, stack.n * (1.0 + stack.average("u")), strict=True):
        carried[str(label[-1])] += float(weight)
    return carried


def looked_at(looks: int, method: str) -> Caveat:
    """The caveat for a growing log that was looked at before, where the interval holds for a single look."""
    text = (
        f"There were {looks:,} looks so far, and {method} intervals hold for a single one: every further look is one more chance to "
        "see a lift that is not there."
    )
    return Caveat("many-looks", text, {"looks": looks})


# -- What the labels of a log with a proxy say ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Labels:
    """The labels of one answer: what they are worth, the means of the proxy among them and among all rows, and what else they depend on."""

    effective: float
    proxy: float
    proxy_of_all: float
    error: float  # of the difference of these means
    at_one_rate: bool = True
    clusters: float = math.inf
    others: tuple[Uneven, ...] = ()


@dataclass(frozen=True)
class Uneven:
    """How much more labels some rows have than others: in words, in numbers, and the p-value of chance."""

    text: str
    numbers: Mapping[str, float]
    p: float

    def caveats(self, *, at_one_rate: bool) -> Iterator[Caveat]:
        """The caveat, if chance does not explain it."""
        if self.p < WRONG_PROPENSITIES:
            do = _label_propensity(at_one_rate, "One number for all <rows> is not enough.")
            text = f"Labels are not spread evenly: {self.text} (p {p_value(self.p)})."
            yield Caveat(BY_ACTION, text, {**self.numbers, "p": self.p}, do)


def labeled_shares(share: float, rest: float, where: str, *, at_one_rate: bool) -> str:
    """How large a share of some rows is labeled, and of the others, in words."""
    own, others, where = *(f"{100 * part:.3g} %" for part in (share, rest)), verbatim(where)
    if at_one_rate:
        return f"{own} of the <rows> where {where} are labeled, and {others} of the others"
    return f"by `label_propensity=`, labeled <rows> stand for {own} of the <rows> where {where}, and for {others} of the others"


def _label_propensity(at_one_rate: bool, more: str) -> str:
    """What to do about labels that depend on something, where every label counts alike, or by what was passed."""
    if not at_one_rate:
        return "The probabilities in `label_propensity=` should explain that: check them."
    return f"Pass `label_propensity=`, the probability with which each <row> was labeled. {more}"


def judge_labels(labels: Labels) -> Iterator[Caveat]:
    """What is wrong with the labels: none, few, or labeled rows that are unlike the others.

    >>> list(judge_labels(Labels(600.0, proxy=0.41, proxy_of_all=0.40, error=0.01)))
    []
    >>> [caveat.code for caveat in judge_labels(Labels(32.0, proxy=0.48, proxy_of_all=0.40, error=0.01))]
    ['few-labels', 'labels-not-at-random']
    """
    if not labels.effective > 0:
        yield Caveat(
            "no-labels",
            "No <row> with a weight is labeled, and a proxy alone cannot tell what it is worth.",
            do="Label some.",
        )
        return
    if labels.effective < FEW_LABELS:
        text = (
            f"With their weights, the labels are worth {below(labels.effective, FEW_LABELS)} of equal weight; {FEW_LABELS} or more are "
            "needed to fit how far the proxy can be relied on. So it is taken at its word, plus its mean error among them, or left out."
        )
        yield Caveat("few-labels", text, {"labels": labels.effective, "needed": FEW_LABELS}, "Label more <rows>.")
    p = of_mean(labels.proxy - labels.proxy_of_all, labels.error, labels.effective, labels.clusters)
    if p < WRONG_PROPENSITIES:
        text = (
            f"Labeled <rows> are not like the others: their mean proxy is {labels.proxy:.4g}, and {labels.proxy_of_all:.4g} over all "
            f"<rows> (p {p_value(p)})."
        )
        do = _label_propensity(labels.at_one_rate, "Of a reward that comes late, that its whole window had passed.")
        numbers = {"proxy": labels.proxy, "proxy_of_all": labels.proxy_of_all, "p": p}
        yield Caveat("labels-not-at-random", text, numbers, do)
    for uneven in sorted(labels.others, key=lambda one: one.p)[:1]:
        yield from uneven.caveats(at_one_rate=labels.at_one_rate)
