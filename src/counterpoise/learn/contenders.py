"""Contenders: the ways to learn a policy that a search tries, and what each of them is given."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.errors import CounterpoiseError, LogError, OptionError, TrainingError, verbatim
from counterpoise.features import Scaling
from counterpoise.learn.forest import NEVER, Forest, ForestLearner, of_classifier
from counterpoise.learn.objectives import Objective, Rewards, objective_of
from counterpoise.learn.policies import MLP, LinearSoftmax, ModelPolicy, TwoTower, start_uniform
from counterpoise.learn.policy import Policy
from counterpoise.learn.rows import Batch, Rows, Split, batches
from counterpoise.learn.source import Source, reward_model
from counterpoise.learn.steps import ALONE, LoggedActions, Machine
from counterpoise.learn.training import IMITATION, OneCycle, Training, adam
from counterpoise.log.parts import Learnable
from counterpoise.log.targets import Classifier
from counterpoise.models.estimators import ClassPredictor, fresh
from counterpoise.models.reward import Reward, as_reward
from counterpoise.moments import Floats

FOREST_ACTIONS = 200  # a leaf has a number for every action, and a forest has many leaves
PREDICTED = "predicted_reward"
PROMISED = (0.0, 0.2)  # temperatures of what serves by predicted rewards
SMALL, LARGE = (128,), (256, 128)  # hidden layers


@dataclass(frozen=True)
class Rest:
    """The rows that a policy is learned from: all of a log, or those outside a fold.

    A contender with `keeps_time` stays within `seconds`, if there is a limit, and writes what it left out to `cuts`. Any other
    gets only as many rows as it should manage in that time. `features` are those of the items, a row for every action.

    The last fit of a search may have more: a `source` with all rows, where `rows` are only a sample that fits into memory, and several
    processes that share the work. A contender with `streams` uses both.
    """

    rows: Rows
    n_actions: int
    seconds: float | None = None
    cuts: list[str] = field(default_factory=list)
    features: Tensor | None = None
    source: Source | None = None
    machine: Machine = ALONE

    @cached_property
    def columns(self) -> Scaling:
        """Mean and scale of the contexts."""
        return Scaling.of(self.rows.context.cpu().numpy())

    @cached_property
    def rewards(self) -> Rewards:
        """The known range and spread of the rewards."""
        source = Loaded(self.rows) if self.source is None else self.source
        return Rewards.of(source.chunk(start).reward for start in source.starts)

    @property
    def lowest(self) -> float:
        """The lowest reward."""
        return self.rewards.lowest


class Contender(Protocol):
    """A way to learn a policy: anything with a name, serving temperatures to choose from, and `fit`.

    It is left out of a search whose rows have candidates if it says ``takes_candidates = False``; with ``takes_items = True`` it makes
    use of the items' features. `Rest` explains `keeps_time` and `streams`.
    """

    @property
    def name(self) -> str:
        """What the leaderboard calls it."""

    @property
    def temperatures(self) -> Sequence[float]:
        """How it may serve: 1 as learned, below 1 more sharply, 0 always the best action."""

    def fit(self, rest: Rest, seed: int) -> Policy | Classifier:
        """A `Policy`, or anything with `predict_proba`: a column for each of the actions 0, 1, …, or for those in its `classes_`."""


def portfolio(n_actions: int) -> list[Contender]:
    """The contenders that a search tries by default, cheap and useful ones first, as time may run out.

    >>> [contender.name for contender in portfolio(1000)]
    ['direct linear', 'softmax', 'direct network', 'log smoothing', 'large direct network']
    """
    contenders: list[Contender] = [
        Network("direct linear", PREDICTED, hidden=(), epochs=10, rate=0.02, temperatures=PROMISED),
        Network("softmax", "beta_ips", imitation=0.03),
        Network("direct network", PREDICTED, epochs=10, temperatures=PROMISED),
        Network("log smoothing", "log_smoothing"),
        Network(
            "large direct network", PREDICTED, hidden=LARGE, epochs=30, rate=0.005, decay=0.01, temperatures=PROMISED
        ),
    ]
    if n_actions <= FOREST_ACTIONS and find_spec("sklearn") is not None:
        contenders.insert(3, ForestLearner())
        from sklearn.ensemble import ExtraTreesClassifier

        contenders.append(Reduction(ExtraTreesClassifier(100), temperatures=(0.0,), name="reduction to trees"))
    return contenders


def imitation() -> Contender:
    """The likelihood fit of the logging policy."""
    return Network(IMITATION, IMITATION, hidden=LARGE, rate=0.005, temperatures=(1.0,))


# -- The direct method: the policy that takes what a reward model of scikit-learn promises most ------------------------


@dataclass(frozen=True)
class Direct:
    """Greedy, or a softmax, on a reward model: an estimator of scikit-learn, ``"auto"``, or a `counterpoise.models.Reward`.

    Every row is predicted by a model of other rows when policies are compared, because the search learns each policy without the fold
    that evaluates it.
    """

    model: str | Learnable | Reward = "auto"
    name: str = "direct"
    temperatures: tuple[float, ...] = (0.0, 0.1)

    def __post_init__(self) -> None:
        as_reward(self.model)  # raises if something is wrong with it

    def fit(self, rest: Rest, seed: int) -> ModelPolicy:
        """The model's predictions of all actions, in units of the rewards' standard deviation."""
        predict = reward_model(self.model, rest.rows, rest.n_actions, seed)
        scale = float(rest.rows.reward.double().numpy().std()) or 1.0
        return ModelPolicy(lambda context: predict(context) / scale, rest.n_actions)


# -- The reduction of off-policy learning to classification: any classifier that takes sample weights becomes a policy ---


@dataclass(frozen=True)
class Reduction:
    r"""A classifier of scikit-learn, fitted on actions weighed by what they earned.

    Σ c·1[π(x) = a] with c = (r − β)/p is the value of a deterministic policy, up to a constant, and maximizing it means
    classifying x as a with the cost c of a mistake. A negative c says that any other action is better: it becomes \|c\| on all
    others, or on one drawn from them and scaled up, so that no negative weight ever reaches the classifier. With β the lowest
    reward (the default) there are none.

    Parameters
    ----------
    classifier
        Anything with `fit(X, y, sample_weight=…)` and `predict_proba`, not fitted yet.
    baseline
        β: a number, or ``"lowest"`` or ``"mean"`` of the rewards, which have the other sign where less is better.
    negatives
        ``"one"`` drawn other action for a row with a negative c, or ``"all"`` of them.
    """

    classifier: ClassPredictor
    baseline: float | Literal["lowest", "mean"] = "lowest"
    negatives: Literal["one", "all"] = "one"
    name: str = "reduction"
    temperatures: tuple[float, ...] = (1.0, 0.0)
    takes_candidates: ClassVar[bool] = False

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
            raise LogError("all training examples have the same action, so there is nothing to classify.")
        is_forest = type(self.classifier) in (ExtraTreesClassifier, RandomForestClassifier)
        # a forest takes contexts as they are, so that its policy does
        mean, scale = (0.0, 1.0) if is_forest else (rest.columns.mean, rest.columns.scale)
        model = fresh(self.classifier, seed)
        try:
            model.fit((x - mean) / scale, y, sample_weight=weight)
        except CounterpoiseError:
            raise
        except (TypeError, ValueError) as error:
            if "sample_weight" in str(error):
                raise OptionError(
                    f"{type(model).__name__} does not take sample weights: {verbatim(error)}",
                    do="Pass a classifier that does; contexts are standardized before it sees them.",
                ) from error
            raise TrainingError(f"{type(model).__name__} could not be fitted: {verbatim(error)}") from error
        if is_forest:
            return of_classifier(model, rest.n_actions)
        known = np.asarray(model.classes_, dtype=np.int64)

        def scores(context: NDArray[np.float32]) -> NDArray[np.float64]:
            table = np.full((len(context), rest.n_actions), np.log(NEVER))
            table[:, known] = np.log(np.maximum(model.predict_proba((context - mean) / scale), NEVER))
            return table

        return ModelPolicy(scores, rest.n_actions)

    def examples(self, rest: Rest, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64], Floats]:
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
            raise LogError("no reward is above the baseline, so there are no training examples.")
        return x[index], action, weight / weight.mean()


# -- Networks: settings of the training loop, with a rate that rises and falls -----------------------------------------


BATCH = 256
LEAST, MOST = 300, 6_000  # steps; where a log is so large that there would be more, batches grow instead
WARM, TIMED = 2, 3  # steps that tell how long one takes
NEARLY = 0.95  # share of the intended training; anything less is reported


@dataclass(frozen=True)
class Network:
    """A softmax policy over a linear map or hidden layers (or a `TwoTower`, where items have features), trained for an objective.

    `objective` is the name of a registered one. Where it is for rewards of 0 and more, the lowest reward is taken away, and λ is
    one over their mean; BanditNet's λ is the mean reward. `imitation` counts in units of the mean size of a reward: a little of
    it keeps the policy near what was logged wherever rewards are silent.

    The last layer starts at 0, as the uniform policy, and the schedule is `OneCycle`. If time is short, there are fewer steps.
    """

    name: str
    objective: str
    hidden: tuple[int, ...] = SMALL
    epochs: int = 20
    rate: float = 0.01
    decay: float = 0.0
    imitation: float = 0.0
    temperatures: tuple[float, ...] = (1.0, 0.5, 0.0)
    keeps_time: ClassVar[bool] = True
    takes_items: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if objective_of(self.objective).needs_model_rewards:
            raise OptionError(
                f"objective {self.objective!r} needs a reward model's predictions, which a search does not have.",
                do="Use PolicyLearner, with `model=`.",
            )

    @property
    def streams(self) -> bool:
        """Whether it may learn batch by batch, from files and in several processes."""
        return not objective_of(self.objective).full_batch

    def fit(self, rest: Rest, seed: int) -> Policy:
        """The policy after all steps."""
        began, policy, machine = time.perf_counter(), self._start(rest, seed), rest.machine
        objective, lowest = self._objective(rest.rewards)
        source: Any = Loaded(rest.rows) if rest.source is None else rest.source
        split = Split(0.0, seed)

        def batches_of(epoch: int, size: int | None) -> Iterator[Batch]:
            for batch in batches(source, epoch, size, split, machine):
                if size is None or batch.total == size:  # the last of an epoch may be smaller, and noisier
                    yield replace(batch, reward=batch.reward - lowest) if lowest else batch

        n = len(rest.rows) if rest.source is None else rest.source.rows
        wanted = n * LEAST if objective.full_batch else max(self.epochs * n, LEAST * BATCH)  # rows, as often as visited
        visits, end = wanted, math.inf
        if rest.seconds is not None:
            end = began + rest.seconds
            first = next(batches_of(0, min(BATCH, n)))
            pace = self._pace(Training(twin := deepcopy(policy), objective, LoggedActions(twin)), first)
            visits = int(machine.agree(min(wanted, max(BATCH, int((end - time.perf_counter()) / pace)))))
        steps = min(max(math.ceil(visits / BATCH), LEAST), MOST)
        size = min(n, max(BATCH, math.ceil(visits / steps)))
        if objective.full_batch:
            steps, size = LEAST, n
        schedule = OneCycle(
            policy, rate=self.rate, decay=self.decay, steps=steps, batch_rows=size, end=end, machine=machine
        )
        training = Training(policy, objective, LoggedActions(policy, machine))
        training.run(lambda epoch: batches_of(epoch, None if objective.full_batch else size), schedule)
        if schedule.made * size < NEARLY * wanted:
            rest.cuts.append(f"{schedule.made * size / wanted:.1%} of its training")
        return policy

    def _objective(self, rewards: Rewards) -> tuple[Objective, float]:
        """The objective with everything filled in, and what is taken away from the rewards."""
        objective = objective_of(self.objective)
        lowest = rewards.lowest if objective.needs_smoothing else 0.0
        smoothing = 1 / (rewards.mean - lowest or 1.0)
        return replace(objective.at(rewards.mean, smoothing, rewards), imitation=self.imitation * rewards.size), lowest

    def _pace(self, training: Training, batch: Batch) -> float:
        """The seconds that a row takes in a step."""
        optimizer, began = adam(training.policy, self.rate, self.decay), 0.0
        with training.threads(len(batch.action)):
            for step in range(WARM + TIMED):
                if step == WARM:
                    began = time.perf_counter()
                training.step(batch, optimizer, measure=False)
        return max(time.perf_counter() - began, 1e-9) / TIMED / len(batch.action)

    def _start(self, rest: Rest, seed: int) -> Policy:
        width = rest.rows.context.shape[1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            policy: Policy
            if rest.features is not None:
                policy = TwoTower(
                    width, rest.n_actions, hidden=self.hidden, item_features=rest.features, standardize=True
                )
            elif self.hidden:
                policy = MLP(width, rest.n_actions, hidden=self.hidden, standardize=True)
            else:
                policy = LinearSoftmax(width, rest.n_actions, bias=True, standardize=True)
        start_uniform(policy, rest.columns)
        return policy


@dataclass(frozen=True)
class Loaded:
    """Rows in memory that make batches as a `Source` does."""

    rows: Rows
    starts: tuple[int, ...] = (0,)

    def chunk(self, start: int) -> Rows:
        """All of them."""
        return self.rows

    def before(self, start: int) -> int:
        """None: everything is one chunk."""
        return 0
