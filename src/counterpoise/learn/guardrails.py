"""Guardrails: policies learned in folds, what is said of one that may do harm, and what is odd about a policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from counterpoise.errors import Argument, Sentence, TrainingError
from counterpoise.evaluation.result import Result
from counterpoise.learn.judging import FOLDS, doubts
from counterpoise.learn.logs.candidates import mask_of_places
from counterpoise.learn.logs.inspection import Inspection, without_fold
from counterpoise.learn.logs.sources import Source
from counterpoise.learn.policies.policy import Policy
from counterpoise.learn.runs.options import Options
from counterpoise.learn.runs.tuning import beside, train

ROWS = 10_000  # whose contexts show what is odd about a policy
SURE = 0.99  # a probability, or a share of contexts, that is nearly 1


class LearningWarning(UserWarning):
    """A policy that was learned, but is not surely better than the one that wrote the log."""


def fold_policies(
    options: Options, source: Source, found: Inspection, make: Callable[[Inspection], Policy]
) -> list[Policy]:
    """A policy for every fold, trained and chosen on the other rows alone; `make` builds one for the rows that it trains on.

    Where there is a checkpoint, each fold has its own beside it (``run.fold-1.safetensors``).
    """
    policies = []
    for fold in range(options.folds):
        source.without = fold
        ours = replace(options, fold=fold, checkpoint=beside(options.checkpoint, f"fold-{fold + 1}"))
        seen = without_fold(found, source, ours.split)
        torch.manual_seed(options.seed)
        policy = make(seen)
        train(ours, source, seen, policy)
        policies.append(policy)
    source.without = None
    return policies


def not_better(result: Result) -> str:
    """What to say of a policy that is not surely better than what ran."""
    said = f"the learned policy is not surely better than the policy that wrote the log. {doubts(result)}"
    return (
        f"{said} (That is about the policies of the folds, each judged by rows that it has not seen.)"
        if _has_folds(result)
        else said
    )


def warned(result: Result) -> LearningWarning:
    """The warning that says so."""
    said = f"T{not_better(result)[1:]} Before you serve it, "
    return LearningWarning(Sentence([said, *_advice(result, "collect")]))


def flattered() -> LearningWarning:
    """The warning about a policy that had seen the rows of all folds before."""
    return LearningWarning(
        "The policy that you passed was trained on this very log, so that no row is new to it, and result_ will flatter it. Pass one that "
        "was not trained, or a function that makes one; or judge it by another log."
    )


def refused(result: Result) -> TrainingError:
    """The error that says so."""
    return TrainingError(not_better(result), do=_advice(result, "Collect"))


def _has_folds(result: Result) -> bool:
    """Whether it is about policies of folds, and not about one that was judged on rows held out, as a ranker is."""
    return result.targets[0] == FOLDS


def _advice(result: Result, collect: str) -> list[str | Argument]:
    """What to do about it; `collect` is its first word, which may begin a sentence."""
    advice = f"{collect} a log that explores more"
    if not _has_folds(result):
        return [f"{advice}."]
    imitate = Argument("fallback", "imitate")
    return [f"{advice}, or pass ", imitate, " for a policy that imitates the one that ran."]


def remarks(policy: Policy, source: Source, start: dict[str, torch.Tensor]) -> tuple[str, ...]:
    """What is odd about a policy that was trained: that it never moved, that it is uniform, or that it takes nearly no chances."""
    rows = next(rows for start in source.starts if len(rows := source.logged(start)))
    some = rows.context[: max(1, min(ROWS, 2**22 // policy.n_actions))]
    mask = None if rows.candidates is None else mask_of_places(rows.candidates[: len(some)], policy.n_actions)
    found = list(_of_table(policy.predict_proba(some.cpu().numpy(), mask), policy.classes_))
    moved = any(not torch.equal(tensor.cpu(), start[name].cpu()) for name, tensor in policy.state_dict().items())
    return (*([] if moved else ["Training never moved the policy: it is what it was at the start."]), *found)


def _of_table(table: NDArray[np.float64], actions: NDArray[Any]) -> list[str]:
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
