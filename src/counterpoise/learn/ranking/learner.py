"""`RankingLearner`: fits a policy that shows lists on a log of lists, and judges it on lists that it has not seen."""

from __future__ import annotations

import warnings
from copy import deepcopy
from dataclasses import replace
from typing import Any, Self, Unpack

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from counterpoise.errors import Argument, Blank, LogError, OptionError
from counterpoise.evaluation.evaluate import evaluate
from counterpoise.evaluation.result import Result
from counterpoise.learn.actions import places
from counterpoise.learn.batches import Inspection, Split, inspect
from counterpoise.learn.checkpoints import State, copy_of, restore_checkpoint
from counterpoise.learn.judging import is_surely_better, lesson_of, refused, warned
from counterpoise.learn.learner import PolicyLearner
from counterpoise.learn.options import Options, check_sizes, checked
from counterpoise.learn.policies import LinearSoftmax, standardize
from counterpoise.learn.ranking.plackett_luce import PlackettLuce, Shown, check_depth
from counterpoise.learn.ranking.sources import ListSource, judged_log, refuse_depth
from counterpoise.learn.ranking.steps import LoggedLists, RunningBaselines
from counterpoise.learn.training import IMITATION, Training, settings_of, start_of
from counterpoise.log.lists import CONDITIONAL
from counterpoise.log.log import LogFields, as_log
from counterpoise.weights.lists import ListWeight, list_weight

# -- A training run on lists: that of single rows, with the weights of lists and a baseline for each of their positions ---


class ListTraining(Training):
    """One run with some options on a log of lists."""

    def __init__(
        self, options: Options, source: ListSource, found: Inspection, policy: PlackettLuce, banditnet_lambda: float
    ) -> None:
        check_options(options)
        super().__init__(options, source, found, policy, banditnet_lambda)
        if self.processes > 1:
            raise OptionError("a ranking policy trains in one process only.", do="Start it without torchrun.")
        assert source.memory is not None
        terms = source.memory.reward.shape[1] if source.weight.by_position else 1
        self._settings = {
            "weight": type(source.weight).__name__,
            "propensity_of": source.log.propensity_of,
            "slots": policy.slots,
        }
        self._running = RunningBaselines(terms, decay=options.decay)
        self._logged = LoggedLists(policy, source.weight)

    def _restored(self) -> tuple[State, dict[str, Any]]:
        state = start_of(self.options, self.policy)
        state.sums = self._running.sums
        settings = settings_of(self.options, self.policy, state, self.banditnet_lambda, self.found) | self._settings
        if self._checkpoint is not None:
            restore_checkpoint(self._checkpoint, state, settings, self._epochs)
        return state, settings

    def _select(self, state: State) -> None:
        """As in `Training`; where the lists say nothing of any epoch yet, the value decides."""
        history, best = state.progress["history"], state.progress["best"]
        score = [(one["score"], one["value"]) for one in history]
        if not self.options.holdout or not best or score[-1] > score[best - 1]:
            state.best, state.progress["best"] = copy_of(state.policy), len(history)
        elif self._patience is not None and len(history) - best >= self._patience:
            state.progress["stopped"] = True


def check_options(options: Options) -> None:
    """Check that the options are for lists."""
    for name in ("precision", "negatives", "compile"):
        if getattr(options, name) is not None:
            raise OptionError([Argument(name), " is not there for lists."], do=["Leave out ", Argument(name), "."])
    for name, usual in (("imitation", 0.0), ("smoothing", None), ("clip", None), ("temperature", 1.0)):
        if getattr(options, name) != usual:
            raise OptionError([Argument(name), " is not there for lists."], do=["Leave out ", Argument(name), "."])
    if options.fallback == "imitate":
        raise OptionError([Argument("fallback", "imitate"), " is not there for lists."], do="Choose 'warn' or 'raise'.")
    if options.norms == "all":
        raise OptionError(
            [
                Argument("norms", "all"),
                " is not there for lists: their baselines look at the last layer, or at the logits.",
            ],
            do=["Leave out ", Argument("norms"), "."],
        )
    if options.trained.needs_model_rewards:
        raise OptionError(
            f"objective {options.objective!r} needs a reward model, which learning from lists has none of.",
            do="Choose beta_ips, running_beta_ips, ips, lambda_ips, or (with batch_size=None) snips or value_beta_ips.",
        )
    if options.trained.needs_smoothing or options.objective == IMITATION:
        raise OptionError(f"objective {options.objective!r} is not there for lists.", do="Choose beta_ips.")
    if options.trained.needs_lambda and not isinstance(options.banditnet_lambda, float):
        raise OptionError(
            ["with lists, λ is not tuned: pass one number as ", Argument("banditnet_lambda"), "."],
            do="It is subtracted from the reward at every position.",
        )


# -- `RankingLearner`: fits a policy that shows lists on a log of lists, and judges it on lists that it has not seen ---


LEARNED = "learned"  # what the policy is called in `result_`


class RankingLearner(PolicyLearner):
    """Learns to rank from a log of lists.

    The parameters are those of `PolicyLearner`, with these differences:

    - `policy` is a `PlackettLuce`, of which a copy is trained; by default, one with a linear softmax over the items of the log, and as many
      slots as the longest list.
    - `objective` is computed for every position (or for the list as a whole, if its weight is one) and added up. β-IPS has a baseline for
      each, solved together for the least variance of the gradient of the last layer (of the logits, if that is not linear). ``"dr"``,
      ``"log_smoothing"``, ``norms="all"``, `precision`, `negatives`, `compile`, `imitation`, `smoothing`, `clip`, `temperature` and tuning
      of BanditNet's λ are not there for lists.
    - `holdout` is the share of the lists that judges the policy. Of the others, the same share chooses the epoch (the one whose interval
      has the largest lower end), and the rest trains. Lists of the same `cluster` judge together or not at all, and
      `folds` makes no difference.
    - `fallback` is ``"warn"`` or ``"raise"``: a ranker that is not surely better than what ran comes with a warning, or not at all.

    After `fit`, `result_` is the `Result` of the policy on the lists that judge, which neither trained nor chose it: the value of a list,
    the lift over what was logged, and a verdict. It is not there with ``holdout=0``. `mean_reward_` is what the logging policy earned with
    a list.

    Examples
    --------
    >>> from counterpoise.environments import SyntheticRanking
    >>> log = SyntheticRanking(positions=2, items=4, contexts=1, seed=1).draw(4000)
    >>> parts = {"slate": "list", "position": "position", "propensity_of": "item_given_above", "reward": "click"}
    >>> learner = RankingLearner(epochs=3, batch_size=200, learning_rate=0.1)
    >>> _ = learner.fit(log, context="context", action="item", propensity="p_given", **parts)
    >>> learner.result_["learned", "lift"].value > 0
    True
    >>> learner.predict([[0.0]]).shape
    (1, 2)
    """

    policy_: PlackettLuce
    result_: Result

    def fit(  # type: ignore[override]
        self, log: Any = None, *, weight: ListWeight | None = None, **parts: Unpack[LogFields]
    ) -> Self:
        """Learn from a log of lists, as `evaluate` takes it; all of them are read into memory.

        `weight` says what the reward at a position depends on: `cp.weights.Cascade()`, `Standard()` or `Independent()`; by default, the one
        that goes with `propensity_of`. The context must be the same on all rows of a list.
        """
        options = checked(self.get_params())
        check_options(options)
        if options.policy is not None and not isinstance(options.policy, PlackettLuce):
            raise OptionError(
                f"a ranking policy shows lists; found {type(options.policy).__name__}.",
                do=["Pass ", Argument("policy", Blank("PlackettLuce(…, slots=…)")), "."],
            )
        asked = as_log(log, parts)
        if asked.slate is None:
            raise OptionError(
                "learning to rank needs a log of lists, and nothing says which rows are one.",
                do=["Pass ", Argument("slate"), ", ", Argument("position"), " and ", Argument("propensity_of"), "."],
            )
        asked.need_only("RankingLearner")
        source = ListSource(
            asked, list_weight(weight, asked.propensity_of), Split(options.holdout, options.seed + 2**31)
        )
        found = inspect(source, None, options.split)
        self._know(source, found, named=not asked.is_arrays)
        vars(self).pop("result_", None)  # of an earlier fit
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(options.seed)
            policy = _policy(options, source, found)
            found = replace(found, n_actions=policy.n_actions, ids=policy.item_ids)
            check_sizes(source, found, options)
            source.number(found.ids)
            policy.context_ = self.context_
            self.policy_ = policy
            self._train_lists(options, source, found, policy)
        if options.holdout:
            self.result_ = evaluate(
                judged_log(source), target={LEARNED: policy}, weight=source.weight, level=options.level, progress=False
            )
            if not is_surely_better(self.result_):
                if options.fallback == "raise":
                    raise refused(self.result_)
                warnings.warn(warned(self.result_), stacklevel=2)
        policy.lesson_ = lesson_of(source, getattr(self, "result_", None), policy.lesson_)
        return self

    def _train_lists(self, options: Options, source: ListSource, found: Inspection, policy: PlackettLuce) -> None:
        given = options.banditnet_lambda
        chosen = given if options.trained.needs_lambda and isinstance(given, float) else 0.0
        if options.trained.needs_lambda:
            self.banditnet_lambda_ = chosen
        training = ListTraining(options, source, found, policy, chosen)
        training.run(options.checkpoint)
        self.history_, self.best_epoch_ = training.history, training.best_epoch

    def predict(self, context: ArrayLike) -> NDArray[np.int64]:  # type: ignore[override]
        """The most probable list of every context, as ids."""
        return np.asarray(self._ranker().greedy(context).cpu())

    def sample(  # type: ignore[override]
        self,
        context: ArrayLike,
        *,
        temperature: float | None = None,
        mask: Any = None,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Shown:
        """One list per context, with the propensities to log; the options are those of `PlackettLuce.sample`."""
        return self._ranker().sample(context, temperature=temperature, mask=mask, seed=seed, generator=generator)

    def list_probabilities(
        self, context: ArrayLike, items: ArrayLike, propensity_of: str = CONDITIONAL
    ) -> NDArray[np.float64]:
        """The probabilities of logged lists, so you can pass a learner to `evaluate` as a `target`."""
        return self._ranker().list_probabilities(context, items, propensity_of)

    def _ranker(self) -> PlackettLuce:
        self._fitted()
        return self.policy_


def _policy(options: Options, source: ListSource, found: Inspection) -> PlackettLuce:
    """The policy to train: the one that was given, if it knows the items and has the slots, or a linear one."""
    assert source.memory is not None
    depth = source.memory.action.shape[1]
    policy = deepcopy(options.policy)  # so that fitting twice is fitting once
    if not isinstance(policy, PlackettLuce):
        items = options.n_actions or found.n_actions
        refuse_depth(depth, items)
        policy = _default_policy(found, items, depth)
        policy.actions_ = found.ids if options.n_actions is None else None
    policy.check_width(len(source.names.context))
    check_depth(policy, depth)
    logged = np.arange(found.n_actions) if found.ids is None else found.ids
    known = np.arange(policy.n_actions) if policy.item_ids is None else policy.item_ids
    unknown = logged[places(known, logged) < 0]
    if len(unknown):
        raise LogError(
            f"the policy has no item {unknown[0]:,}, which the log has ({len(unknown):,} of {len(logged):,} are unknown).",
            do=["Leave those lists out, or change ", Argument("n_actions"), " or the policy."],
        )
    return policy


def _default_policy(found: Inspection, items: int, slots: int) -> PlackettLuce:
    """A linear softmax on standardized contexts, which begins as the uniform policy."""
    scores = LinearSoftmax(len(found.columns.mean), items, bias=True, standardize=True)
    standardize(scores, found.columns)
    for parameter in scores.scores.parameters():
        nn.init.zeros_(parameter)
    return PlackettLuce(scores, slots)
