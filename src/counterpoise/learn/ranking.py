"""`RankingLearner`: fits a policy that shows rankings on a log of rankings, and evaluates it on held-out rankings."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Self, Unpack

import narwhals as nw
import numpy as np
import polars as pl
import torch

from counterpoise.diagnostics.verdict import check_direction
from counterpoise.engines.first_look import sequences_of
from counterpoise.engines.lists import collapse
from counterpoise.errors import ColumnError, LogError, OptionError
from counterpoise.evaluation.evaluate import evaluate
from counterpoise.evaluation.result import Result
from counterpoise.learn.actions import NONE, places
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
from counterpoise.learn.rows import Digits, Rows, Split
from counterpoise.learn.source import Inspection, Source, inspect
from counterpoise.learn.steps import LoggedLists
from counterpoise.learn.training import IMITATION, train
from counterpoise.log.kinds import LISTS, check_rows
from counterpoise.log.log import Log, as_log
from counterpoise.log.parts import MODELS, Data, LogFields
from counterpoise.log.question import Learning, Question
from counterpoise.log.sequences import DISCOUNT, LIST, POSITION, check_same_context, rows_by_list
from counterpoise.log.verbs import need_only, takes_parts
from counterpoise.moments import Floats
from counterpoise.weights import ListWeight, PseudoInverse, Weight, list_weight

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


class ListSource(Source):
    """The rows of a log of lists, each of which stands for a list, all in memory.

    Items, rewards (discounted, as they count) and propensities are lists × positions, with −1, 0 and 1 below the end of a list, and
    `shares` is how much each position counts in a list's mean weight. The lists that are `kept_apart` are not among them, but their rows
    are in `apart`.
    """

    shares: Floats

    def __init__(self, log: Log, weight: Weight, kept_apart: Split) -> None:
        self.weight, self.kept_apart, self.apart = weight, kept_apart, pl.DataFrame()
        super().__init__(log, fills_gaps=False, in_memory=True)
        if self.reading.encoding is not None or self.reading.names is not None or log.candidates is not None:
            raise ColumnError(
                "a ranking policy learns from contexts and items that are numbers, and some columns have others.",
                do="Number the items from 0, and name expressions that make numbers of the context.",
            )

    def log_apart(self) -> Log:
        """The lists that are kept apart, as a log of their own: computed columns are there under the text of their expressions."""
        log = self.log
        return Log(
            self.apart, reward=log.reward, minimize=self.minimize, propensity=log.propensity, action=log.action, context=log.context,
            cluster=log.cluster, slate=log.slate, position=log.position, propensity_of=log.propensity_of,
            discount=log.discount, groups=log.groups, reward_bounds=log.reward_bounds,
        )  # fmt: skip

    def _asked(self) -> Question:
        if self.log.has_estimated_propensities:
            check_rows(self.log, "a propensity model")
        if isinstance(self.weight, PseudoInverse):
            raise OptionError(
                "a policy cannot be learned with the pseudo-inverse weight, which needs a logging policy that fills positions "
                "independently.",
                do="Pass another `weight=`.",
            )
        log, sequences = self.log.without("key", "baseline", *MODELS), sequences_of(self.log)
        groups = 1 if log.cluster is None else 2  # which makes the rules look at clusters
        return Question(log, (), self.weight, groups=groups, sequences=sequences, learning=Learning())

    def _tensors(self, frame: pl.DataFrame, digits: dict[str, Digits] | None = None) -> tuple[Rows, pl.DataFrame]:
        rows, checked = super()._tensors(frame, digits)
        of = frame.get_column(str(self.log.slate)).alias(LIST)
        return rows, checked.with_columns(of.fill_nan(None) if of.dtype.is_float() else of)

    def _judged(self, checked: pl.DataFrame) -> tuple[pl.DataFrame, int | None]:
        return collapse(nw.from_native(checked.lazy()), self.question).to_native().sort(LIST).collect(), None

    def _trained_on(
        self, rows: Rows, frame: pl.DataFrame, checked: pl.DataFrame, judged: pl.DataFrame
    ) -> tuple[Rows, pl.DataFrame]:
        lists, good = self.question.sequences, judged.get_column("good")
        if lists is None or not good.any() or not (good.all() or self.log.drop_bad_rows):
            return rows.take(slice(0, 0)), frame.clear()
        of_rows = checked.select(LIST).join(judged, on=LIST, how="left", nulls_equal=True, maintain_order="left")
        is_kept = of_rows.get_column("good").to_numpy()
        self._check_single(rows, frame, is_kept)
        # which rows each good list has, lists × positions, in the order of the lists' ids
        kept = np.flatnonzero(is_kept)
        ids, position = (checked.get_column(name).to_numpy()[kept] for name in (LIST, POSITION))
        number = np.unique(ids, return_inverse=True)[1].astype(np.int64)
        placed = rows_by_list(number, (position - lists.first).astype(np.int64))
        index = np.where(placed >= 0, kept[placed], NONE)
        check_same_context(rows.context.numpy(), index)
        # apart by the hash of their cluster, or of their number
        if self.names.cluster is None:
            apart = self.kept_apart.held_out(0, len(index))
        else:
            cluster = frame.get_column(self.names.cluster)
            distinct = cluster.drop_nulls().unique().sort().to_numpy()
            of_list = np.searchsorted(distinct, cluster.to_numpy()[index[:, 0]])
            apart = self.kept_apart.held_out(0, len(distinct))[of_list]
        self.apart, index = frame[index[apart][index[apart] >= 0]], index[~apart]
        there = index >= 0
        reward, propensity = (
            torch.as_tensor(np.where(there, part.numpy()[index], other).astype(np.float32))
            for part, other in ((rows.reward, 0.0), (rows.propensity, 1.0))
        )
        shown = replace(lists, last=lists.first + index.shape[1] - 1)
        counts = np.array([shown.counts(k) for k in range(1, shown.depth + 1)])
        if shown.discount_column is not None:
            counts = checked.get_column(DISCOUNT).to_numpy()[index]
        self.shares = np.array(list(shown.shares.values()))
        trained = Rows(
            rows.context[index[:, 0]],
            torch.as_tensor(np.where(there, rows.action.numpy()[index], NONE)),
            reward * torch.as_tensor(np.where(there, counts, 0.0).astype(np.float32)),
            propensity,
        )
        return trained, frame[index[there]]


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
                do=LISTS.told_by,
            )
        need_only(lists, "RankingLearner")
        check_direction(lists)
        apart = Split(options.holdout, options.seed + 2**31)
        weight = list_weight(weight, lists)
        source = ListSource(lists, weight, apart)
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
