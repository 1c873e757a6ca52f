"""From what was learned to the policy that is handed out: evaluation on rows that had no part in it, the fallback, and the last fit.

Every learner takes this way, `hand_out`: `PolicyLearner` and `learn_policy` with policies that were learned in folds, `RankingLearner`
with lists that were held out.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from counterpoise.errors import OptionError, Sentence, TrainingError, verbatim
from counterpoise.evaluation.evaluate import evaluate
from counterpoise.evaluation.result import Result
from counterpoise.intervals import Method
from counterpoise.learn.actions import Classes, mask_of_places
from counterpoise.learn.policy import CELLS, Policy
from counterpoise.learn.rows import Split
from counterpoise.learn.source import Source, inspect
from counterpoise.log.log import Log
from counterpoise.log.parts import LogFields
from counterpoise.log.question import Question
from counterpoise.log.sketches import Lesson
from counterpoise.log.targets import PolicyTarget, is_policy
from counterpoise.models.propensity import propensity_of
from counterpoise.moments import Floats
from counterpoise.readers.policies import probabilities

FOLDS = "fold policies"  # what the target of their result is called
TWICE = math.sqrt(2.0)  # how much wider intervals are where the variance is twice as large
ROWS = 10_000  # whose contexts show what is odd about a policy
SURE = 0.99  # a probability, or a share of contexts, that is nearly 1
C = TypeVar("C")


class LearningWarning(UserWarning):
    """A policy was learned that is not reliably better than the logging policy."""


# -- The one way: attempts, the fallback, and the last fit -------------------------------------------------------------


@dataclass(frozen=True)
class Attempt(Generic[C]):
    """Something to hand out: what `refit` makes a policy of, and its result on rows that had no part in it, if there are such.

    `lift_bound` is a lower bound on the lift that needs no interval; an imitation need not be better than the logging policy.
    """

    choice: C
    result: Result | None = None
    lift_bound: float = -math.inf
    imitates: bool = False

    @property
    def is_safe(self) -> bool:
        """Whether it is handed out whatever the fallback."""
        return self.result is None or self.imitates or is_surely_better(self.result, lift_bound=self.lift_bound)


def hand_out(
    source: Source,
    attempts: Iterable[Attempt[C]],
    refit: Callable[[C], Policy],
    *,
    fallback: str,
    imitate: Callable[[], Attempt[C] | None] = lambda: None,
) -> tuple[Policy, Attempt[C], Result | None]:
    """The policy to hand out, the attempt that it comes from, and the result that was rejected, if an imitation took its place.

    The first safe attempt is handed out; if none is, the last one with a warning, an imitation or nothing, as `fallback` says (and the
    last one, too, if there is no imitation to be had). The policy remembers the rows of `source`, and its result.
    """
    rejected = None
    for attempt in attempts:
        if attempt.is_safe:
            break
    else:
        result = attempt.result
        assert result is not None  # or it would be safe
        imitation = imitate() if fallback == "imitate" else None
        if imitation is not None:
            attempt, rejected = imitation, result
        else:
            text = f"the learned policy is not reliably better than the logging policy. {verbatim(doubts(result))}"
            collect = (
                "the probabilities of the logged actions." if is_estimated(result) else "a log that explores more."
            )
            if result.targets[0] == FOLDS:  # and not a policy that was evaluated on held-out rows, as a ranker is
                text += " (That is about the policies of the folds, each evaluated on held-out rows.)"
                collect = f"{collect[:-1]}, or pass `fallback='imitate'` for a policy that imitates the logging policy."
            if fallback == "raise":
                raise TrainingError(text, do=f"Collect {collect}")
            warn(LearningWarning(Sentence(f"T{text[1:]} Before you serve it, collect {collect}")))
    policy = refit(attempt.choice)
    policy.lesson_ = lesson_of(source, attempt.result, policy.lesson_)
    return policy, attempt, rejected


def warn(warning: LearningWarning) -> None:
    """Warn, pointing at the user's line that called us."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("counterpoise."):
        level, frame = level + 1, frame.f_back
    warnings.warn(warning, stacklevel=level)


def lesson_of(source: Source, result: Result | None, earlier: Lesson | None = None) -> Lesson:
    """What a policy remembers of the rows it was learned from, with its estimate on rows it had not seen."""
    sketch = source.sketch if earlier is None else source.sketch.after(earlier.sketch)
    if result is None:
        return Lesson(sketch)
    name = result.targets[0]
    value = result[name, "beta_ips"]
    estimate = {"value": value.value, "lower": value.interval.lower, "upper": value.interval.upper}
    return Lesson(sketch, estimate | {"level": value.interval.level, "verdict": result.verdict(name).verdict})


# -- Evaluation: each row by a policy that it neither trained nor chose ------------------------------------------------


def evaluate_folds(
    log: Log | Source,
    policies: Sequence[PolicyTarget],
    *,
    name: str = FOLDS,
    interval: str | Method | None = None,
    level: float = 0.95,
) -> Result:
    """What policies learned in folds would have earned: the k-th is evaluated on the rows of the k-th fold alone.

    There is one policy per fold, and none may have seen the rows of its fold, neither to train nor to choose: `Source.folds` says which
    those are. A policy is anything that is a target of `evaluate`: a `Policy`, anything with `predict_proba` (and `classes_`, unless
    actions are 0, 1, 2, …), or a function of record batches. Weights, intervals, clusters, verdict and the lift over the logging policy
    (``result["fold policies", "lift"]``) are those of `evaluate`. The value is that of the fold policies, not of one refitted on all
    rows, which has seen more and is usually a little better.

    Logs in files are read chunk by chunk, and the result of several chunks comes from their moments.

    Examples
    --------
    >>> from counterpoise.environments import SyntheticBandit
    >>> from counterpoise.learn import LinearSoftmax
    >>> drawn = SyntheticBandit(n_actions=4, inverse_temperature=-2, seed=1).draw(500)
    >>> log = Log(context=drawn.context, action=drawn.action, reward=drawn.reward, propensity=drawn.propensity)
    >>> result = evaluate_folds(log, [LinearSoftmax(5, 4), LinearSoftmax(5, 4)])
    >>> result.n, result.targets
    (500, ('fold policies',))
    """
    if not policies:
        raise OptionError("there are no policies to evaluate.", do="Pass one for every fold.")
    for policy in policies:
        if not is_policy(policy):
            shown = f"the class {policy.__name__}" if isinstance(policy, type) else repr(policy)[:60]
            raise OptionError(
                f"a policy to evaluate has predict_proba, or is a function of record batches; found {shown}.",
                do="Pass a policy for every fold, such as a PolicyLearner that was fitted without its rows.",
            )
    if isinstance(log, Source):
        source = log
    else:
        source = Source(log)
        inspect(source, None, Split(0.0, 0))
    # a learner's own policies know the actions by their numbers
    by_number = isinstance(log, Source) and all(isinstance(policy, Policy) for policy in policies)
    targets = ((start, None, _probabilities(source, start, policies, name, by_number)) for start in source.starts)
    return evaluate_rows(source, targets, name=name, interval=interval, level=level)


def _probabilities(source: Source, start: int, policies: Sequence[Any], name: str, by_number: bool) -> Floats:
    """The probability of every logged action of a chunk under the policy of its row's fold."""
    chunk = source.logged(start)
    folds, probability = source.folds(start, chunk, len(policies)), np.zeros(len(chunk))
    frame = pl.DataFrame() if by_number else source.frame(start, source.names.all)
    question = Question(source.log, (), None)
    for fold, policy in enumerate(policies):
        index = np.flatnonzero(folds == fold)
        if by_number:
            rows = chunk.take(torch.as_tensor(index, device=chunk.action.device))
            logged = policy.logged_probabilities(rows.context, rows.action, rows.candidates)[:, 0]
            probability[index] = np.minimum(logged, 1.0)
            continue
        # a policy has as many actions as it knows: by default, a learner has those of its log
        size = max(1, CELLS // (getattr(policy, "n_actions", None) or len(getattr(policy, "classes_", ())) or 1000))
        for at in range(0, len(index), size):
            part = index[at : at + size]
            probability[part] = probabilities(
                policy, frame[part], question, f"{name} {fold + 1}", "the rows of its fold"
            )
    return probability


def evaluate_rows(
    source: Source,
    targets: Iterable[tuple[int, NDArray[np.int64] | None, Floats]],
    *,
    name: str = FOLDS,
    interval: str | Method | None = None,
    level: float = 0.95,
) -> Result:
    """The same from probabilities: for each chunk that starts somewhere, some of its rows (None is all of them), and the probability that
    the policy of their fold gives to the logged action.
    """
    names, log = source.names, source.log
    parts: LogFields = {
        "reward": names.reward,
        "propensity": names.propensity,
        "cluster": False if log.rows_are_independent else names.cluster,
        "groups": log.groups,
        "reward_bounds": log.reward_bounds,
        "minimize": source.minimize,
    }
    columns = [names.reward, *([] if names.cluster is None else [names.cluster])]
    if (model := propensity_of(log)) is None:
        columns.append(names.propensity)
    else:  # which is fitted to these rows once more, so that errors allow for it
        parts |= {"propensity": model, "action": names.action, "context": list(names.context)}
        columns += [names.action, *names.context, *([] if model.column is None else [str(model.column)])]
    results: list[Result] = []
    for start, index, probability in targets:
        frame = source.frame(start, columns)
        frame = frame.with_columns(ids for ids in source.ids(start) if ids.name not in columns)
        frame = frame if index is None or len(index) == frame.height else frame[index]
        if not frame.is_empty():
            rows = frame.with_columns(pl.Series(name, probability))
            results.append(evaluate(rows, target=name, interval=interval, level=level, **parts))
    if len(results) == 1 and len(source.starts) == 1:
        return results[0]
    moments = [result.moments for result in results]
    total = replace(sum(moments[1:], moments[0]), looks=1)  # of chunks that nobody looked at
    whole = evaluate(
        total, interval=interval, level=level, reward_bounds=log.reward_bounds, minimize=bool(source.minimize)
    )
    # moments have no rows left to check
    caveats = {
        caveat.code: caveat for result in results for caveat in result.verdict(name).caveats if caveat.entry.takes_rows
    }
    return replace(whole, verdicts={key: each.with_caveats(caveats.values()) for key, each in whole.verdicts.items()})


def is_surely_better(result: Result, target: str | None = None, *, lift_bound: float = -math.inf) -> bool:
    """Whether a target reliably earns more than the logging policy; where less is better, less.

    Its `lift_interval` is above 0 (or below it) and the verdict is ok; or a lower bound on the gain that needs neither is above 0. With
    estimated propensities nothing is: the verdict is at most caution, and the bound takes propensities as known.
    """
    name = result.targets[0] if target is None else target
    if lift_bound > 0 and not is_estimated(result):
        return True
    return _is_gain(result, name) and result.verdict(name).verdict == "ok"


def is_estimated(result: Result) -> bool:
    """Whether a model estimated the propensities behind a result."""
    return any(caveat.code == "estimated-propensities" for caveat in result.verdict(result.targets[0]).caveats)


def how_to_get(rejected: Result) -> str:
    """How to get what was learned, where nothing but estimated propensities spoke against it; empty otherwise."""
    name = rejected.targets[0]
    if not is_estimated(rejected) or not _is_gain(rejected, name):
        return ""
    earned = rejected[name, "beta_ips"].value
    return Sentence(
        f"On held-out rows, the learned policy would have earned {earned:.4g}: pass `fallback='warn'` to get it, and run an A/B test "
        "before you rely on it."
    )


def _is_gain(result: Result, target: str) -> bool:
    """Whether all of the interval of the lift is on the better side of 0."""
    lower, upper = lift_interval(result, target)
    return upper < 0 if result.minimize else lower > 0


def lift_interval(result: Result, target: str) -> tuple[float, float]:
    """The interval of the lift by which a policy is handed out or not: for fold policies, √2 times as wide as that of fixed ones.

    The rows of two folds meet twice: those of the first train the policy that those of the second evaluate, and the other way
    around. So the luck they share counts twice, and the folds are not independent. For policies that respond to sums of the rows
    that train them linearly, the variance of the mean is exactly twice what independent folds would have, however many there are:
    of d₁, d₂, … with mean 0, Σ dⱼ Σ_{k≠j} dₖ has the variance 2K(K − 1), and not K(K − 1). For a best action per context it is
    1.7 times.
    """
    lift = result[target, "lift"]
    lower, upper = lift.interval
    middle = lift.value if lift.identified else (lower + upper) / 2  # bounds have no value between them
    wider = TWICE if target.endswith(FOLDS) else 1.0
    return middle + wider * (lower - middle), middle + wider * (upper - middle)


def report(result: Result, mean_reward: float) -> dict[str, object]:
    """The numbers of a result that every report has, with what the logging policy earned."""
    value = result[result.targets[0], "beta_ips"]
    return {
        "value": value.value,
        "lower": value.interval.lower,
        "upper": value.interval.upper,
        "mean_reward": mean_reward,
        "minimize": result.minimize,
        "verdict": result.verdict().verdict,
    }


def doubts(result: Result, target: str | None = None) -> str:
    """Why a target is not reliably better than the logging policy, in plain words; empty if it is.

    >>> log = {"r": [1, 0, 1, 0] * 50, "p": [0.5] * 200, "new": [0.5, 0.6, 0.5, 0.4] * 50}
    >>> print(doubts(evaluate(log, reward="r", propensity="p", target="new")))
    It would have earned 0.5 per row, and the logging policy earned 0.5; the lift is between -0.002 and 0.002.
    """
    name = result.targets[0] if target is None else target
    lift, verdict, logged = result[name, "lift"], result.verdict(name), result.diagnostics(name).mean_reward
    reasons = []
    lower, upper = lift_interval(result, name)
    if not _is_gain(result, name):
        earned = f"It would have earned {logged + lift.value:.4g} per row, and the" if lift.identified else "The"
        shared = ", which allows for what the folds share" if name.endswith(FOLDS) else ""
        reasons.append(
            f"{earned} logging policy earned {logged:.4g}; the lift is between {lower:.2g} and {upper:.2g}{shared}."
        )
    if verdict.verdict != "ok":
        reasons += verdict.reasons
    if is_estimated(result):
        reasons.append("With estimated propensities, no policy counts as reliably better than the logging policy.")
    return " ".join(reasons)


# -- What is odd about a policy ------------------------------------------------------------------------------------------


TRAINED_BEFORE = (
    "The policy that you passed was trained on this very log, so that no row is new to it, and result_ will flatter it. Pass one that was "
    "not trained, or a function that makes one; or evaluate it on another log."
)


def remarks(policy: Policy, source: Source, start: dict[str, torch.Tensor]) -> tuple[str, ...]:
    """What is odd about a trained policy: it never moved, is uniform, or hardly explores."""
    rows = next(rows for start in source.starts if len(rows := source.logged(start)))
    some = rows.context[: max(1, min(ROWS, 2**22 // policy.n_actions))]
    mask = None if rows.candidates is None else mask_of_places(rows.candidates[: len(some)], policy.n_actions)
    odd = list(_of_table(policy.predict_proba(some.cpu().numpy(), mask), policy.classes_))
    moved = any(not torch.equal(tensor.cpu(), start[name].cpu()) for name, tensor in policy.state_dict().items())
    return (*([] if moved else ["Training never moved the policy: it is what it was at the start."]), *odd)


def _of_table(table: Floats, actions: Classes) -> list[str]:
    """The same from probabilities, contexts × actions.

    >>> _of_table(np.array([[0.999, 0.001], [0.998, 0.002]]), np.array([7, 9]))
    ['It takes action 7 in nearly every context: one action for everyone.']
    """
    if table.shape[1] < 2:
        return []
    best, top = table.argmax(axis=1), table.max(axis=1)
    usual = np.bincount(best).argmax()
    if (table[:, usual] > SURE).mean() > SURE:
        return [f"It takes action {actions[usual]} in nearly every context: one action for everyone."]
    if (top > SURE).mean() > SURE:
        return ["It takes one action for sure in nearly every context, so a log of it would explore next to nothing."]
    if (top < 1.01 / table.shape[1]).all():
        return ["It is the uniform policy, or as good as: it has learned nothing."]
    return []
