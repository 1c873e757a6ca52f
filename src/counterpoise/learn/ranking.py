"""`RankingLearner`: fits a policy that shows rankings on a log of rankings, and evaluates it on held-out rankings."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Self, Unpack

import numpy as np
import torch

from counterpoise.diagnostics.verdict import check_direction
from counterpoise.errors import LogError, OptionError
from counterpoise.evaluation.evaluate import evaluate
from counterpoise.evaluation.result import Result
from counterpoise.learn.actions import places
from counterpoise.learn.hand_out import Attempt, hand_out
from counterpoise.learn.learner import PolicyLearner
from counterpoise.learn.options import (
    Fallback,
    Hardware,
    Optimization,
    Options,
    Schedule,
    ShortOptions,
    Terms,
    check_sizes,
    options_of,
)
from counterpoise.learn.plackett_luce import PlackettLuce, check_depth
from counterpoise.learn.policies import default_policy
from counterpoise.learn.policy import delegated
from counterpoise.learn.rows import Split
from counterpoise.learn.source import Inspection, Source, inspect
from counterpoise.learn.steps import LoggedLists
from counterpoise.learn.training import IMITATION, train
from counterpoise.log.log import Log, as_log
from counterpoise.log.parts import Data, LogFields
from counterpoise.log.verbs import need_only, takes_parts
from counterpoise.weights.lists import ListWeight, list_weight

# Options that lists don't have, each with the value that leaves it off and, where that is not the advice, what to do instead.
REFUSED: dict[str, tuple[object, str | None]] = {
    "precision": (None, None),
    "negatives": (None, None),
    "compile": (None, None),
    "imitation": (0.0, None),
    "smoothing": (None, None),
    "clip": (None, None),
    "temperature": (1.0, None),
    "fallback": ("imitate", "Choose 'warn' or 'raise'."),
    "norms": ("all", "Leave it out: the baselines of rankings look at the last layer, or at the logits."),
}


def check_options(options: Options) -> None:
    """Check that the options and the objective work with lists."""
    for name, (value, advice) in REFUSED.items():
        own = getattr(options, name)
        if advice is None and own != value:
            raise OptionError(f"`{name}=` does not work with rankings.", do=f"Leave out `{name}=`.")
        if advice is not None and own == value:
            raise OptionError(f"`{name}={own!r}` does not work with rankings.", do=advice)
    objective = options.trained
    if objective.needs_model_rewards:
        raise OptionError(
            f"objective {options.objective!r} needs a reward model, and learning from rankings has none.",
            do="Choose beta_ips, running_beta_ips, ips, lambda_ips, or (with batch_size=None) snips or value_beta_ips.",
        )
    if objective.needs_smoothing or objective.needs_score or options.objective == IMITATION:
        raise OptionError(f"objective {options.objective!r} does not work with rankings.", do="Choose beta_ips.")
    if objective.needs_lambda and not isinstance(options.banditnet_lambda, float):
        raise OptionError(
            "with rankings, λ is not tuned: pass one number as `banditnet_lambda=`.",
            do="It is subtracted from the reward at every position.",
        )


LEARNED = "learned"  # what the policy is called in `result_`


class RankingLearner(PolicyLearner):
    """Learns to rank from a log of rankings.

    The parameters, and the groups of options, are those of `PolicyLearner`, with these differences:

    - `policy` is a `PlackettLuce`, of which a copy is trained; by default, one with a linear softmax over the items of the log, and as many
      slots as the longest list.
    - `objective` is computed for every position (or for the list as a whole, if its weight is one) and added up. β-IPS has a baseline for
      each, solved together for the least variance of the gradient of the last layer (of the logits, if that is not linear).
      ``"dr"``, ``"log_smoothing"``, ``norms="all"``, `precision`, `negatives`, `compile`, `imitation`, `smoothing`, `clip`,
      `temperature` and tuning of BanditNet's λ are not available for lists.
    - `holdout` is the share of the lists that evaluates the policy. Of the others, the same share chooses the epoch (the one whose interval
      has the largest lower end), and the rest trains. Lists of the same `cluster` stay together, and
      `folds` makes no difference.
    - `fallback` is ``"warn"`` or ``"raise"``: what to do about a ranker that is not reliably better than the logging policy.

    After `fit`, `result_` is the `Result` of the policy on the lists that were kept apart, which neither trained nor chose it: the value of
    a list, the lift over what was logged, and a verdict. There is none with ``holdout=0``. `mean_reward_` is what the logging
    policy earned with a list, and `dropped_rows_` is how many lists were dropped because of invalid rows.

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

    def __init__(
        self,
        objective: str = "beta_ips",
        *,
        policy: PlackettLuce | None = None,
        n_actions: int | None = None,
        terms: Terms | None = None,
        optimization: Optimization | None = None,
        schedule: Schedule | None = None,
        hardware: Hardware | None = None,
        fallback: Fallback = "warn",
        level: float = 0.95,
        seed: int = 0,
        **options: Unpack[ShortOptions],
    ) -> None:
        super().__init__(
            objective, policy=policy, n_actions=n_actions, terms=terms, optimization=optimization, schedule=schedule,
            hardware=hardware, fallback=fallback, level=level, seed=seed, **options,
        )  # fmt: skip

    @takes_parts("RankingLearner")
    def fit(  # type: ignore[override]
        self, log: Log | Data = None, *, weight: ListWeight | None = None, **parts: Unpack[LogFields]
    ) -> Self:
        """Learn from a log of rankings, as `evaluate` takes it; all of them are read into memory.

        `weight` says what the reward at a position depends on: `cp.weights.Cascade()`, `Standard()` or `Independent()`; by default, the one
        that goes with `propensity_of`. The context must be the same on all rows of a list.
        """
        options = options_of(vars(self))
        check_options(options)
        if options.policy is not None and not isinstance(options.policy, PlackettLuce):
            raise OptionError(
                f"`policy=` must be a ranking policy; found {type(options.policy).__name__}.",
                do="Pass `policy=PlackettLuce(…, slots=…)`.",
            )
        lists = as_log(log, parts)
        if lists.list_id is None:
            raise OptionError(
                "learning to rank needs a log of rankings, and this one has no `slate=`.",
                do="Pass `slate=`, `position=` and `propensity_of=`.",
            )
        need_only(lists, "RankingLearner")
        check_direction(lists)
        apart = Split(options.holdout, options.seed + 2**31)
        weight = list_weight(weight, lists)
        source = Source(lists, fills_gaps=False, weight=weight, kept_apart=apart)
        inspection = inspect(source, None, options.split)
        self._know(source, inspection, named=not lists.is_arrays)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(options.seed)
            policy = policy_to_train(options, source, inspection)
            inspection = replace(inspection, n_actions=policy.n_actions, ids=policy.item_ids)
            check_sizes(source, inspection, options)
            source.number(inspection.ids)
            policy.context_, policy.action_ = self.context_, self.action_
            self.policy_ = policy
            settings: dict[str, object] = {
                "weight": type(weight).__name__, "propensity_of": lists.propensity_of, "slots": policy.slots,
            }  # fmt: skip
            logged = LoggedLists(policy, weight, source.shares, settings)
            self._keep(train(options, source, inspection, policy, logged))
        if options.holdout:
            target = {LEARNED: policy}
            self.result_ = evaluate(
                source.log_apart(), target=target, weight=weight, level=options.level, progress=False
            )
        attempt = Attempt(policy, getattr(self, "result_", None))
        hand_out(source, [attempt], lambda policy: policy, fallback=options.fallback)
        return self

    sample = delegated(PlackettLuce.sample)  # type: ignore[arg-type]
    list_probabilities = delegated(PlackettLuce.list_probabilities)


def policy_to_train(options: Options, source: Source, inspection: Inspection) -> PlackettLuce:
    """The policy that was given, if it knows the items and has the slots, or a linear one."""
    assert source.memory is not None
    depth = source.memory.action.shape[1]
    policy = deepcopy(options.policy)  # so that fitting twice is fitting once
    if not isinstance(policy, PlackettLuce):
        items = options.n_actions or inspection.n_actions
        if depth > items:
            raise LogError(
                f"rankings have up to {depth} positions, and there are only {items:,} items, so some are shown twice in a ranking, which "
                "a ranking policy never does.",
                do="Look at the top of the rankings, such as `where='position <= 3'`.",
            )
        policy = PlackettLuce(default_policy(inspection.columns, items), depth)
        policy.actions_ = inspection.ids if options.n_actions is None else None
    policy.check_width(len(source.names.context))
    check_depth(policy, depth)
    logged = np.arange(inspection.n_actions) if inspection.ids is None else inspection.ids
    known = np.arange(policy.n_actions) if policy.item_ids is None else policy.item_ids
    unknown = logged[places(known, logged) < 0]
    if len(unknown):
        raise LogError(
            f"the policy has no item {unknown[0]:,}, which the log has ({len(unknown):,} of {len(logged):,} are unknown).",
            do="Drop those rankings, or change `n_actions=` or the policy.",
        )
    return policy
