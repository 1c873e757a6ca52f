"""Policies that are ready to use, on standardized contexts, and how a new one is made for a log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from counterpoise.errors import OptionError, TrainingError
from counterpoise.features import Scaling
from counterpoise.learn.actions import ActionIds, Classes, ids_in, item_features
from counterpoise.learn.blocks import ItemScores
from counterpoise.learn.policy import Policy, check_sizes, cooled
from counterpoise.log.log import Log
from counterpoise.log.targets import Classifier

if TYPE_CHECKING:
    from counterpoise.learn.source import Inspection, Source

# -- the layer that standardizes contexts ----------------------------------------------------------------------------


class Standardize(nn.Module):
    """(x − mean) / scale for every column; both are stored with the policy and never learned.

    >>> layer = Standardize(2)
    >>> _ = layer.load_state_dict({"mean": torch.tensor([40.0, 50_000.0]), "scale": torch.tensor([10.0, 20_000.0])})
    >>> layer(torch.tensor([[50.0, 30_000.0]])).tolist()
    [[1.0, -1.0]]
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, context_dimension: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(context_dimension))
        self.register_buffer("scale", torch.ones(context_dimension))

    def forward(self, context: Tensor) -> Tensor:
        """The context in units of its columns' spread."""
        return (context - self.mean) / self.scale

    @property
    def is_unset(self) -> bool:
        """Whether mean and scale are still 0 and 1, so that it does nothing."""
        return not bool(self.mean.any()) and bool((self.scale == 1).all())


def standardize(policy: nn.Module, columns: Scaling) -> None:
    """Give a policy that standardizes its contexts the mean and scale of a log's columns, unless it has others already."""
    for layer in policy.modules():
        if isinstance(layer, Standardize) and layer.is_unset and len(layer.mean) == len(columns.mean):
            layer.load_state_dict({"mean": torch.as_tensor(columns.mean), "scale": torch.as_tensor(columns.scale)})


# -- Policies that are ready to use: linear, with hidden layers, of two towers, and around a module of yours -----------


class LinearSoftmax(Policy):
    """The softmax of a linear map of the context: the policy of the paper's experiments (no bias, contexts as they are).

    With `standardize`, the contexts are first centered and scaled by the buffers `body.mean` and `body.scale` (0 and 1 to begin with),
    which `PolicyLearner` takes from the training rows unless you have set them.
    """

    def __init__(
        self, context_dimension: int, n_actions: int, *, bias: bool = False, standardize: bool = False
    ) -> None:
        super().__init__()
        self._made_for(context_dimension, n_actions, bias=bias, standardize=standardize)
        self.body = Standardize(context_dimension) if standardize else nn.Identity()
        self.scores = nn.Linear(context_dimension, n_actions, bias=bias)


class MLP(Policy):
    """Hidden layers with ReLU, each with a LayerNorm if you `normalize`, and a linear last layer; `standardize` as in `LinearSoftmax`."""

    def __init__(
        self,
        context_dimension: int,
        n_actions: int,
        *,
        hidden: Sequence[int] = (64,),
        normalize: bool = False,
        standardize: bool = False,
    ) -> None:
        super().__init__()
        self._made_for(context_dimension, n_actions, hidden=list(hidden), normalize=normalize, standardize=standardize)
        self.body, width = _tower(context_dimension, hidden, normalize, standardize)
        self.scores = nn.Linear(width, n_actions)


class TwoTower(Policy):
    """Inner products of a context vector and an item vector, for catalogs of 10⁵ actions and more.

    With `item_features` (one row per action), an item's vector is a linear map of its features, so you can also score an item that
    was never logged; without them, every item has its own vector. `standardize` as in `LinearSoftmax`.
    """

    def __init__(
        self,
        context_dimension: int,
        n_actions: int,
        *,
        dimension: int = 32,
        hidden: Sequence[int] = (64,),
        normalize: bool = False,
        item_features: Tensor | None = None,
        standardize: bool = False,
    ) -> None:
        super().__init__()
        check_sizes(dimension=dimension)
        self._made_for(
            context_dimension, n_actions, dimension=dimension, hidden=list(hidden), normalize=normalize,
            item_dimension=None if item_features is None else item_features.shape[-1], standardize=standardize,
        )  # fmt: skip
        if item_features is not None and (item_features.ndim != 2 or len(item_features) != n_actions):
            raise OptionError(
                f"item_features must have a row for each of the {n_actions:,} actions; found shape "
                f"{tuple(item_features.shape)}."
            )
        tower, width = _tower(context_dimension, hidden, normalize, standardize)
        self.body = nn.Sequential(tower, nn.Linear(width, dimension))
        self.scores = (
            nn.Linear(dimension, n_actions, bias=False)
            if item_features is None
            else ItemScores(dimension, item_features)
        )


class ModulePolicy(Policy):
    """Any module of your own that returns a logit per action; `load_policy(path, module=…)` puts saved weights back into one.

    >>> policy = ModulePolicy(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3)), n_actions=3)
    >>> policy.predict_proba([[0.0, 1.0]]).shape
    (1, 3)
    """

    def __init__(self, module: nn.Module, n_actions: int) -> None:
        super().__init__()
        check_sizes(n_actions=n_actions)
        self.n_actions, self._config = n_actions, {"n_actions": n_actions}
        if isinstance(module, nn.Linear) and module.out_features != n_actions:
            raise self.not_fitting(module.out_features)  # of other modules we know it once they have run
        self.body = nn.Identity()
        self.scores = module


class ModelPolicy(Policy):
    """A softmax of the scores that a model of another library gives to actions, which is neither trained nor saved here.

    `scores` takes contexts as an array of single precision and returns a table of numbers, a column per action.

    >>> policy = ModelPolicy(lambda context: context @ [[1.0, 2.0, 3.0]], n_actions=3)
    >>> policy.greedy([[1.0], [-1.0]]).tolist()
    [2, 0]
    """

    is_foreign = True

    def __init__(self, scores: Callable[[NDArray[np.float32]], ArrayLike], n_actions: int) -> None:
        super().__init__()
        self.n_actions = n_actions
        self.body, self.scores = nn.Identity(), _ModelScores(scores)


class _ModelScores(nn.Module):
    def __init__(self, scores: Callable[[NDArray[np.float32]], ArrayLike]) -> None:
        super().__init__()
        self._scores = scores

    def forward(self, context: Tensor) -> Tensor:
        """What the model says, in double precision."""
        return torch.as_tensor(np.asarray(self._scores(context.float().numpy()), dtype=np.float64))


def as_policy(model: Policy | Classifier, n_actions: int) -> Policy:
    """What a contender learned, as a policy: anything with `predict_proba`, and `classes_` unless there is a column for every action.

    >>> class Second:
    ...     classes_ = [1]
    ...     def predict_proba(self, context):
    ...         return np.ones((len(context), 1))
    >>> as_policy(Second(), 3).predict_proba([[0.5], [0.7]]).tolist()
    [[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]]
    """
    if isinstance(model, Policy):
        return model
    if not hasattr(model, "predict_proba"):
        raise TrainingError(
            f"a contender learned a {type(model).__name__}, which has no predict_proba.",
            do="Return a policy, or anything that has it.",
        )
    known = np.asarray(getattr(model, "classes_", np.arange(n_actions)), dtype=np.int64)

    def scores(context: NDArray[np.float32]) -> NDArray[np.float64]:
        table = np.full((len(context), n_actions), -np.inf)
        with np.errstate(divide="ignore"):
            table[:, known] = np.log(np.asarray(model.predict_proba(context)))
        return table

    return ModelPolicy(scores, n_actions)


class Average(Policy):
    r"""The mixture of several policies, as if one of them were drawn for every context: the mean of their probabilities.

    .. math:: \pi(a \mid x) = \sum_k w_k \, \pi_k(a \mid x)

    Each is at its own temperature and chooses among the candidates, if there are any; the weights are equal unless you pass some.
    The average of the fold policies of `learn_policy`, ``Average(found.policies)``, is exactly the policy that `Found.result`
    describes. It is saved, loaded and exported like every other, if all of its policies can be.

    Examples
    --------
    >>> always = LinearSoftmax(1, 2)
    >>> _ = always.load_state_dict({"scores.weight": torch.tensor([[0.0], [1.0]])})
    >>> always.temperature = 0.0
    >>> Average([always, LinearSoftmax(1, 2)], weights=[3, 1]).predict_proba([[0.0]]).round(3).tolist()
    [[0.875, 0.125]]
    """

    def __init__(self, policies: Sequence[Policy], weights: Sequence[float] | None = None) -> None:
        super().__init__()
        members = list(policies) if isinstance(policies, Sequence) else []
        odd = [member for member in members if not isinstance(member, Policy) or hasattr(member, "list_probabilities")]
        if not members or odd:
            what = (
                type(odd[0]).__name__ if odd else "none" if isinstance(policies, Sequence) else type(policies).__name__
            )
            raise OptionError(f"an average is that of a list of policies that choose an action each; found {what}.")
        first = members[0]
        for k, member in enumerate(members[1:], start=2):
            for what, mine, other in (
                ("the actions", first.classes_.tolist(), member.classes_.tolist()),
                ("the columns", first.context_, member.context_),
                ("the encoding of columns", first.encoding_, member.encoding_),
                ("the candidates", first.candidates_, member.candidates_),
                ("the number of inputs", first.context_dimension, member.context_dimension),
            ):
                if mine != other:
                    raise OptionError(
                        f"{what} of policy {k} are not those of the first.",
                        do="Average policies that were learned from the same log, with the same parts.",
                    )
        shares = np.ones(len(members)) if weights is None else np.asarray(weights, dtype=np.float64)
        is_share = shares.shape == (len(members),) and bool(np.isfinite(shares).all() and (shares >= 0).all())
        if not is_share or not shares.sum() > 0:
            raise OptionError(
                f"`weights=` must be {len(members):,} numbers from 0 on, one for every policy; found {weights!r}."
            )
        self.policies, self.weights = nn.ModuleList(members), list((shares / shares.sum()).tolist())
        self.n_actions, self.context_dimension, self.actions_ = (
            first.n_actions, first.context_dimension, first.actions_,
        )  # fmt: skip
        self.context_, self.encoding_, self.candidates_ = first.context_, first.encoding_, first.candidates_
        self.action_ = first.action_

    def forward(self, context: Tensor) -> Tensor:
        """The logarithm of every action's probability."""
        return self.logits_among(context, None)

    def logits_among(self, context: Tensor, candidates: Tensor | None) -> Tensor:
        """The same where every policy chooses among candidates; in double precision."""
        shares = []
        for weight, policy in zip(self.weights, self._members, strict=True):
            logits = policy.logits_among(context.to(policy.device, policy.precision), candidates)
            shares.append(weight * torch.softmax(cooled(logits.double(), policy.temperature), -1).to(context.device))
        return torch.stack(shares).sum(0).log()

    @property
    def _members(self) -> list[Policy]:
        return list(self.policies)  # type: ignore[arg-type]

    def config(self) -> dict[str, object]:
        return {"weights": self.weights, "policies": [policy.description() for policy in self._members]}


def _tower(width: int, hidden: Sequence[int], normalize: bool, standardize: bool) -> tuple[nn.Sequential, int]:
    """Hidden layers, and how many features they return."""
    layers: list[nn.Module] = [Standardize(width)] if standardize else []
    for size in hidden:
        check_sizes(hidden=size)
        layers.append(nn.Linear(width, size))
        if normalize:
            layers.append(nn.LayerNorm(size))
        layers.append(nn.ReLU())
        width = size
    return nn.Sequential(*layers), width


# -- The policy to train: which actions it has, and how a new one is made once the log has told how wide its contexts are ---


FOR_ITEMS = "Pass `policy=TwoTower` or a function that takes item_features, or leave out `items=`."


@dataclass(frozen=True)
class KnownActions:
    """What is known about the actions before the log is read, from a given policy or from the items."""

    policy: Policy | None
    classes: Classes | None = None
    features: Tensor | None = None

    @property
    def ids(self) -> ActionIds | None:
        """The actions as whole numbers, if they are some."""
        return ids_in(self.classes)

    def count(self, n_actions: int | None, source: Source) -> int | None:
        """How many actions there are, if that is settled before the rows are looked at."""
        names, width = source.reading.names, source.reading.width
        settled = self.policy.n_actions if self.policy is not None else n_actions
        known = [len(some) for some in (names, self.classes) if some is not None] + [
            size for size in (width, settled) if size is not None
        ]
        if len(set(known)) > 1:
            what = "names" if names is not None else "items" if self.classes is not None else "columns of candidates"
            whose = (
                "the policy has" if self.policy is not None else "n_actions is" if settled is not None else "there are"
            )
            raise OptionError(
                f"{whose} {known[-1]:,}{' actions' if self.policy is not None else ''}, but {known[0]:,} {what} of actions were found.",
                do="Leave out `n_actions=`; for a policy of your own, pass a function that makes it.",
            )
        return known[0] if known else None


def known_actions(policy: Policy | None, log: Log) -> KnownActions:
    """What a policy that is passed, or the items of a log, say about the actions."""
    if log.items is None:
        return KnownActions(policy, None if policy is None else policy.actions_)
    if policy is not None:
        raise OptionError(
            "`items=` gives features to the policy that the learner makes, and you passed one that exists already.",
            do=FOR_ITEMS,
        )
    items = item_features(log.items, action=str(log.action))
    return KnownActions(None, items.classes, items.features)


def new_policy(
    make: Callable[..., Policy] | None, source: Source, inspection: Inspection, features: Tensor | None
) -> Policy:
    """A policy for the contexts and actions of a log: by the function that was given, or the default."""
    if make is None and features is None:
        return default_policy(inspection.columns, inspection.n_actions)
    build: Callable[..., Policy] = partial(TwoTower, standardize=True) if make is None else make
    if features is not None:
        try:
            parameters = signature(build).parameters
            takes_items = "item_features" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        except (TypeError, ValueError):
            takes_items = True  # with an unknown signature, it may
        if not takes_items:
            who = build.__name__ if isinstance(build, type) else "the function passed as `policy=`"
            raise OptionError(f"{who} takes no item_features, so `items=` is of no use to it.", do=FOR_ITEMS)
    made = build(source.width, inspection.n_actions, **({} if features is None else {"item_features": features}))
    if not isinstance(made, Policy) or made.n_actions != inspection.n_actions:
        what = f"one with {made.n_actions:,} actions" if isinstance(made, Policy) else type(made).__name__
        raise OptionError(
            f"the function passed as `policy=` must make a Policy with {inspection.n_actions:,} actions; "
            f"it made {what}.",
            do="It is called with the number of inputs and the number of actions.",
        )
    made.check_width(source.width)
    return made


def start_uniform(policy: Policy, columns: Scaling) -> None:
    """Make a new policy the uniform one, on standardized contexts."""
    for parameter in policy.scores.parameters():
        nn.init.zeros_(parameter)
    standardize(policy, columns)


def default_policy(columns: Scaling, n_actions: int) -> LinearSoftmax:
    """A linear softmax that standardizes its contexts and starts as the uniform policy."""
    policy = LinearSoftmax(len(columns.mean), n_actions, bias=True, standardize=True)
    start_uniform(policy, columns)
    return policy


def describe_columns(policy: Policy, source: Source) -> None:
    """Tell a policy how the columns of its log are read, for it to keep."""
    policy.encoding_ = source.reading.encoding
    policy.candidates_ = source.names.candidates
    policy.action_ = source.names.action if policy.context_ else None  # arrays have no names
    if source.reading.names is not None:
        policy.actions_ = np.asarray(source.reading.names, dtype=object)
