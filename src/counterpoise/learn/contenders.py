"""Contenders: the ways to learn a policy that a search tries, and what each of them is given."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from counterpoise.errors import LogError, OptionError, TrainingError
from counterpoise.features import Scaling
from counterpoise.learn.baselines import baseline_of, gradient_sums
from counterpoise.learn.forest import NEVER, Forest, ForestLearner, of_classifier
from counterpoise.learn.objectives import beta_ips, log_smoothing
from counterpoise.learn.policies import MLP, LinearSoftmax, ModelPolicy, standardize
from counterpoise.learn.policy import Policy
from counterpoise.learn.reward_models import reward_model
from counterpoise.learn.rows import Rows
from counterpoise.learn.softmax import logit_norms, squared_sum
from counterpoise.models.estimators import fresh
from counterpoise.models.reward import as_reward

FOREST_ACTIONS = 200  # a leaf has a number for every action, and a forest has many leaves
IMITATION = "imitation"
SMALL, LARGE = (128,), (256, 128)  # hidden layers


@dataclass(frozen=True)
class Rest:
    """The rows that a policy is learned from: all of a log, or those outside a fold.

    A contender with `keeps_time` stays within `seconds`, if there is a limit, and writes to `cuts` what it left out for that. Any other
    one is given as few rows as it can be expected to take in that time.
    """

    rows: Rows
    n_actions: int
    seconds: float | None = None
    cuts: list[str] = field(default_factory=list)

    @cached_property
    def columns(self) -> Scaling:
        """Mean and scale of the contexts."""
        return Scaling.of(self.rows.context.cpu().numpy())

    @cached_property
    def lowest(self) -> float:
        """The lowest reward."""
        return float(self.rows.reward.min())

    @cached_property
    def is_binary(self) -> bool:
        """Whether there are two different rewards."""
        return len(np.unique(self.rows.reward.numpy())) == 2


class Contender(Protocol):
    """A way to learn a policy: anything with a name, serving temperatures to choose from, and `fit`."""

    @property
    def name(self) -> str:
        """What the leaderboard calls it."""

    @property
    def temperatures(self) -> Sequence[float]:
        """How it may serve: 1 as it was learned, less with fewer chances taken, 0 always with the best action."""

    def fit(self, rest: Rest, seed: int) -> Any:
        """A `Policy`, or anything with `predict_proba`: a column for each of the actions 0, 1, …, or for those in its `classes_`."""


def portfolio(n_actions: int) -> list[Contender]:
    """The contenders that a search tries by default, cheap and useful ones first, as time may run out.

    >>> [one.name for one in portfolio(1000)]
    ['direct linear', 'softmax', 'direct network', 'log smoothing', 'large direct network']
    """

    found: list[Contender] = [
        Network("direct linear", PredictedReward(), hidden=(), epochs=10, rate=0.02),
        Network("softmax", Softmax(imitation=0.03), hidden=SMALL, epochs=20),
        Network("direct network", PredictedReward(), hidden=SMALL, epochs=10),
        Network("log smoothing", LogSmoothing(), hidden=SMALL, epochs=20),
        Network("large direct network", PredictedReward(), hidden=LARGE, epochs=30, rate=0.005, decay=0.01),
    ]
    if n_actions <= FOREST_ACTIONS and find_spec("sklearn") is not None:
        found.insert(3, ForestLearner())
        found.append(of_trees())
    return found


def imitation() -> Contender:
    """The likelihood fit of the policy that wrote the log."""

    return Network(IMITATION, Imitation(), hidden=LARGE, epochs=20, rate=0.005)


# -- The direct method: the policy that takes what a reward model of scikit-learn promises most ------------------------


@dataclass(frozen=True)
class Direct:
    """Greedy, or a softmax, on a reward model: an estimator of scikit-learn, ``"auto"``, or a `counterpoise.models.Reward`.

    Every row is predicted by a model of other rows when policies are compared, because the search learns each policy without the fold
    that judges it.
    """

    model: Any = "auto"
    name: str = "direct"
    temperatures: tuple[float, ...] = (0.0, 0.1)

    def __post_init__(self) -> None:
        as_reward(self.model)  # says what is wrong with it

    def fit(self, rest: Rest, seed: int) -> ModelPolicy:
        """The model's predictions of all actions, in units of the rewards' standard deviation."""
        predict = reward_model(self.model, rest.rows, rest.n_actions, seed)
        scale = float(rest.rows.reward.double().numpy().std()) or 1.0
        return ModelPolicy(lambda context: predict(context) / scale, rest.n_actions)


# -- The reduction of off-policy learning to classification: any classifier that takes sample weights becomes a policy ---


@dataclass(frozen=True)
class Reduction:
    r"""A classifier of scikit-learn, fitted on actions weighed by what they earned.

    Σ c·1[π(x) = a] with c = (r − β)/p is the value of a deterministic policy, up to a constant, and to maximize it is to classify x as a
    with the cost c of a mistake. A negative c says that any other action is better: it becomes \|c\| on all others, or on one drawn from
    them and scaled up, so that no negative weight ever reaches the classifier. With β the lowest reward (the default) there are none.

    Parameters
    ----------
    classifier
        Anything with `fit(X, y, sample_weight=…)` and `predict_proba`, not fitted yet.
    baseline
        β: a number, or ``"lowest"`` or ``"mean"`` of the rewards.
    negatives
        ``"one"`` drawn other action for a row with a negative c, or ``"all"`` of them.
    """

    classifier: Any
    baseline: float | Literal["lowest", "mean"] = "lowest"
    negatives: Literal["one", "all"] = "one"
    name: str = "reduction"
    temperatures: tuple[float, ...] = (1.0, 0.0)

    def __post_init__(self) -> None:
        if not (hasattr(self.classifier, "fit") and hasattr(self.classifier, "predict_proba")):
            raise OptionError(
                f"a reduction needs a classifier with fit and predict_proba; found {type(self.classifier).__name__}.",
                do="Pass an instance, such as LogisticRegression().",
            )
        if self.negatives not in ("one", "all"):
            raise OptionError(f"negatives must be 'one' or 'all'; found {self.negatives!r}.")
        if isinstance(self.baseline, str) and self.baseline not in ("lowest", "mean"):
            raise OptionError(f"baseline must be a number, 'lowest' or 'mean'; found {self.baseline!r}.")

    def fit(self, rest: Rest, seed: int) -> ModelPolicy | Forest:
        """The classifier as a policy: its probabilities, or the most probable action. Forests of scikit-learn can be saved."""
        from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

        x, y, weight = self.examples(rest, seed)
        if len(np.unique(y)) < 2:
            raise LogError("all rows that speak for an action speak for the same one, so there is nothing to classify.")
        is_forest = type(self.classifier) in (ExtraTreesClassifier, RandomForestClassifier)
        # a forest takes contexts as they are, so that its policy does
        mean, scale = (0.0, 1.0) if is_forest else (rest.columns.mean, rest.columns.scale)
        model = fresh(self.classifier, seed)
        try:
            model.fit((x - mean) / scale, y, sample_weight=weight)
        except (TypeError, ValueError) as error:
            if "sample_weight" in str(error):
                raise OptionError(
                    f"{type(model).__name__} does not take sample weights: {error}",
                    do="Pass a classifier that does; contexts are standardized before it sees them.",
                ) from error
            raise TrainingError(f"{type(model).__name__} could not be fitted: {error}") from error
        if is_forest:
            return of_classifier(model, rest.n_actions)
        known = np.asarray(model.classes_, dtype=np.int64)

        def scores(context: NDArray[np.float32]) -> NDArray[np.float64]:
            found = np.full((len(context), rest.n_actions), np.log(NEVER))
            found[:, known] = np.log(np.maximum(model.predict_proba((context - mean) / scale), NEVER))
            return found

        return ModelPolicy(scores, rest.n_actions)

    def examples(self, rest: Rest, seed: int) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.float64]]:
        """Contexts, classes and weights, none of which is negative; the weights' mean is 1."""
        rows, n_actions = rest.rows, rest.n_actions
        x, action, reward = rows.context.numpy(), rows.action.numpy(), rows.reward.double().numpy()
        named = {"lowest": rest.lowest, "mean": float(reward.mean())}
        beta = named[self.baseline] if isinstance(self.baseline, str) else float(self.baseline)
        cost = (reward - beta) / rows.propensity.double().numpy()
        good, bad = np.flatnonzero(cost > 0), np.flatnonzero(cost < 0)
        if len(bad) and n_actions > 1:
            if self.negatives == "one":
                steps = np.random.default_rng(seed).integers(1, n_actions, len(bad))[:, None]
            else:
                steps = np.broadcast_to(np.arange(1, n_actions), (len(bad), n_actions - 1))
            others = ((action[bad, None] + steps) % n_actions).ravel()
            each = np.repeat(-cost[bad] * (n_actions - 1) / steps.shape[1], steps.shape[1])
            index = np.concatenate([good, np.repeat(bad, steps.shape[1])])
            action, weight = np.concatenate([action[good], others]), np.concatenate([cost[good], each])
        else:
            index, action, weight = good, action[good], cost[good]
        if not len(index):
            raise LogError("no row speaks for any action: no reward is above the baseline.")
        return x[index], action, weight / weight.mean()


def of_trees() -> Reduction:
    """The reduction that a search tries by default."""
    from sklearn.ensemble import ExtraTreesClassifier

    return Reduction(ExtraTreesClassifier(100), temperatures=(0.0,), name="reduction to trees")


# -- Networks as contenders: one loop of training with a rate that rises and falls, and the losses that tell them apart ---


BATCH = 256
LEAST, MOST = 300, 6_000  # steps; where a log is so large that there would be more, batches grow instead
WARM, TIMED = 2, 3  # steps that tell how long one takes
RISE = 0.1  # of the steps, in which the rate rises
Loss = Callable[[Tensor, Rows], Tensor]


class Goal(Protocol):
    """What a network is trained for."""

    @property
    def temperatures(self) -> tuple[float, ...]:
        """How a policy trained for it may serve."""

    def loss(self, rest: Rest) -> Loss:
        """The loss of a batch, from its logits; what is common to all batches comes from the rows that are learned from."""


@dataclass(frozen=True)
class Network:
    """A softmax policy over a linear map or hidden layers, trained for a goal.

    The rate rises to `rate` over a tenth of the steps and falls to 0 (Smith & Topin 2018), so that there is no epoch to choose and no row
    to hold out. The last layer starts at 0, as the uniform policy. Where time is short there are fewer steps, and should they take longer
    than expected, the rate falls with the time that is left.
    """

    name: str
    goal: Goal
    hidden: tuple[int, ...]
    epochs: int
    rate: float = 0.01
    decay: float = 0.0
    keeps_time: ClassVar[bool] = True

    @property
    def temperatures(self) -> tuple[float, ...]:
        """Those that fit the goal."""
        return self.goal.temperatures

    def fit(self, rest: Rest, seed: int) -> Policy:
        """The policy after all steps."""
        began, rows, random = time.perf_counter(), rest.rows, torch.Generator().manual_seed(seed)
        policy = self._start(rest, seed)
        loss, n = self.goal.loss(rest), len(rows)
        wanted = max(self.epochs * n, LEAST * BATCH)  # rows, each as often as it is visited
        visits, end = wanted, math.inf
        if rest.seconds is not None:
            end = began + rest.seconds
            pace = self._pace(policy, loss, rows)
            visits = min(wanted, max(BATCH, int((end - time.perf_counter()) / pace)))
        steps = min(max(math.ceil(visits / BATCH), LEAST), MOST)
        size = min(n, max(BATCH, math.ceil(visits / steps)))
        optimizer = self._optimizer(policy)
        order, at, place, made = torch.randperm(n, generator=random), 0, 0.0, 0
        start = time.perf_counter()
        while place < steps:
            self._set_rate(optimizer, place, steps)
            if at + size > n:
                order, at = torch.randperm(n, generator=random), 0
            _step(policy, loss, rows.take(order[at : at + size]), optimizer)
            at += size
            made += 1
            place = max(place + 1, 0.0 if end == math.inf else steps * (time.perf_counter() - start) / (end - start))
        if made * size < 0.95 * wanted:
            rest.cuts.append(f"{made * size / wanted:.1%} of its training")
        return policy.eval()

    def _optimizer(self, policy: Policy) -> torch.optim.Optimizer:
        return torch.optim.AdamW(policy.parameters(), lr=self.rate, weight_decay=self.decay)

    def _pace(self, policy: Policy, loss: Loss, rows: Rows) -> float:
        """The seconds that a row takes in a step."""
        twin, batch, began = deepcopy(policy), rows.take(slice(0, BATCH)), 0.0
        optimizer = self._optimizer(twin)
        for step in range(WARM + TIMED):
            if step == WARM:
                began = time.perf_counter()
            _step(twin, loss, batch, optimizer)
        return max(time.perf_counter() - began, 1e-9) / TIMED / len(batch)

    def _set_rate(self, optimizer: torch.optim.Optimizer, place: float, steps: int) -> None:
        """The rate and the momentum at a place between the first step and the last, as those of torch's OneCycleLR."""
        top = max(RISE * steps - 1, 1e-9)
        if place <= top:
            rate, momentum = _cosine(self.rate / 25, self.rate, place / top), _cosine(0.95, 0.85, place / top)
        else:
            share = min((place - top) / (steps - 1 - top), 1.0)
            rate, momentum = _cosine(self.rate, self.rate / 25e4, share), _cosine(0.85, 0.95, share)
        for group in optimizer.param_groups:
            group["lr"], group["betas"] = rate, (momentum, group["betas"][1])

    def _start(self, rest: Rest, seed: int) -> Policy:
        width = rest.rows.context.shape[1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            policy: Policy = (
                MLP(width, rest.n_actions, hidden=self.hidden, standardize=True)
                if self.hidden
                else LinearSoftmax(width, rest.n_actions, bias=True, standardize=True)
            )
        for parameter in policy.scores.parameters():
            nn.init.zeros_(parameter)
        standardize(policy, rest.columns)
        return policy


def _step(policy: Policy, loss: Loss, batch: Rows, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss(policy(batch.context), batch))
    optimizer.step()


def _cosine(first: float, last: float, share: float) -> float:
    """A value on the way from the first to the last, along half a cosine."""
    return last + (first - last) / 2 * (1 + math.cos(math.pi * share))


@dataclass(frozen=True)
class Softmax:
    """β-IPS with the baseline of least variance of the logits' gradient, plus κ times the mean log-probability of the logged actions.

    κ counts in units of the mean size of a reward. A little of it keeps the policy near what was logged wherever the rewards say nothing.
    """

    imitation: float = 0.0
    temperatures: tuple[float, ...] = (1.0, 0.5, 0.0)

    def loss(self, rest: Rest) -> Loss:
        size = float(rest.rows.reward.abs().mean()) or 1.0

        def loss(logits: Tensor, rows: Rows) -> Tensor:
            logs = torch.log_softmax(logits, -1)
            logged = logs.gather(1, rows.action[:, None])[:, 0]
            target = logged.exp()
            with torch.no_grad():
                norms = logit_norms(target, squared_sum(logs.exp()))
                beta = baseline_of(gradient_sums(norms, rows.reward, rows.propensity))
            value = beta_ips(target, rows.reward, rows.propensity, baseline=beta) / size
            return -value - self.imitation * logged.mean()

        return loss


@dataclass(frozen=True)
class LogSmoothing:
    """The mean of log(1 + λwr)/λ, for rewards from their lowest value up, with λ in units of one over their mean."""

    smoothing: float = 1.0
    temperatures: tuple[float, ...] = (1.0, 0.5, 0.0)

    def loss(self, rest: Rest) -> Loss:
        lowest = rest.lowest
        size = float((rest.rows.reward - lowest).mean()) or 1.0

        def loss(logits: Tensor, rows: Rows) -> Tensor:
            target = torch.log_softmax(logits, -1).gather(1, rows.action[:, None])[:, 0].exp()
            return -log_smoothing(target, (rows.reward - lowest) / size, rows.propensity, smoothing=self.smoothing)

        return loss


@dataclass(frozen=True)
class Imitation:
    """The likelihood of the logged actions: what is learned imitates the policy that wrote the log."""

    temperatures: tuple[float, ...] = (1.0,)

    def loss(self, rest: Rest) -> Loss:
        return lambda logits, rows: nn.functional.cross_entropy(logits, rows.action)


@dataclass(frozen=True)
class PredictedReward:
    """A reward model with an output per action: the log-odds of a reward of two values, or its standardized mean.

    Rows are weighed by p to the power −½: between the rows as they are, from which the model learns most, and the rows that a uniform
    policy would have logged, where it must be right.
    """

    temperatures: tuple[float, ...] = (0.0, 0.2)

    def loss(self, rest: Rest) -> Loss:
        rewards = rest.rows.reward
        scale = float((rest.rows.propensity**-0.5).mean())
        if rest.is_binary:
            lowest, width = rest.lowest, float(rewards.max()) - rest.lowest
        else:
            lowest, width = float(rewards.mean()), float(rewards.std()) or 1.0
        score: Any = nn.functional.binary_cross_entropy_with_logits if rest.is_binary else nn.functional.mse_loss

        def loss(logits: Tensor, rows: Rows) -> Tensor:
            found = logits.gather(1, rows.action[:, None])[:, 0]
            each = score(found, (rows.reward - lowest) / width, reduction="none")
            mean: Tensor = (each * rows.propensity**-0.5).mean() / scale
            return mean

        return loss
