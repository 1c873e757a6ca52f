"""`PolicyLearner`: fits a policy on a log, and keeps the epoch that is best on held-out rows."""

from __future__ import annotations

import inspect as signatures
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from os import PathLike
from typing import TYPE_CHECKING, Any, Self, Unpack

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from counterpoise.errors import Argument, OptionError
from counterpoise.learn.callbacks import Callback
from counterpoise.learn.checkpoints import Epoch
from counterpoise.learn.contract import NotFittedError, ScikitLearn, log_of
from counterpoise.learn.inspection import Inspection, inspect
from counterpoise.learn.items.kernels import Precision
from counterpoise.learn.making import describe_columns, known_actions, new_policy
from counterpoise.learn.options import Optimizer, Options, check_sizes, checked
from counterpoise.learn.policies import Policy
from counterpoise.learn.schedules import Scheduler
from counterpoise.learn.sources import Source
from counterpoise.learn.steps import Norms
from counterpoise.learn.storage import save_policy
from counterpoise.learn.training import Training
from counterpoise.learn.tuning import tune
from counterpoise.log.lists import refuse_lists
from counterpoise.log.log import LogFields, as_log

if TYPE_CHECKING:
    from counterpoise.learn.encoding import Encoding


class PolicyLearner(ScikitLearn):
    """Learns a policy from the log of another one.

    It keeps scikit-learn's contract: parameters are stored as you give them and checked in `fit`; `get_params`, `set_params` and
    `sklearn.base.clone` work; and the names of what was learned end in an underscore.

    Parameters
    ----------
    objective
        A name in `objectives.OBJECTIVES`: ``"beta_ips"``, with the baseline of least gradient variance in each batch;
        ``"running_beta_ips"``, with that of the batches before it, and therefore unbiased; ``"ips"``; ``"lambda_ips"`` (BanditNet),
        with `banditnet_lambda`; ``"dr"``, with `model_rewards`; only with ``batch_size=None``, ``"snips"`` and ``"value_beta_ips"``
        (differentiated through its baseline); or one that you registered yourself.
    policy
        A `Policy` to start from: a copy of it is trained, and becomes `policy_`. By default, a linear softmax with an intercept, on
        contexts standardized by the mean and standard deviation of the training rows. A policy that you pass sees the contexts as they are.
        If contexts are encoded, only the log tells how many numbers they become, so pass the class or a function instead: it is called with
        that and the number of actions, and with `item_features=` if the log has items.
    banditnet_lambda
        BanditNet's λ, or several to choose from; the one with the best SNIPS value on the training rows is kept. None tries
        0.6, 0.65, …, 0.95, as published.
    norms
        ``"last_layer"`` or ``"all"``: whose gradient variance the baseline minimizes. By default, that of the last layer if it has a
        closed form (exact for linear policies, nearly free for others).
    holdout
        The share of the rows that is kept from training. The epoch with the largest β-IPS value on those rows is kept, never the one
        with the largest training objective. With 0, the last epoch is kept.
    patience
        Stop after this many epochs without a better held-out value.
    precision
        That of training: ``"float32"``; ``"tf32"``, float32 with products of 10 bits after the point (on GPUs only); ``"bfloat16"``, in
        which all layers before the last run in bfloat16 (PyTorch's autocast). Sums, parameters and values on held-out rows are float32 in
        any case. By default, float32 on a CPU and TF32 on a GPU.
    negatives
        How many items to draw at each step, which then stand for all of them: a sampled softmax, with a bias that falls as 1/negatives;
        for catalogs of 10⁷ items, and of 10⁶ on a CPU. By default, the softmax is over all items, and exact.
    optimizer
        A function that takes the parameters and returns an optimizer; by default, Adam with `learning_rate`.
    callbacks
        Functions that are called after every epoch with an `EpochEnd`; training stops where one returns True. `LogTo` is one, for
        TensorBoard and MLflow.
    scheduler
        A function that takes the optimizer and returns one of PyTorch's learning rate schedulers, which steps after every epoch.
        `ReduceLROnPlateau` is told the held-out value, and needs ``mode="max"``.
    compile
        Whether to train with `torch.compile`; a mapping has its options. It compiles the layers below a linear last layer.
    checkpoint
        A file written after every epoch. If it already exists, `fit` resumes from it and ends with the same result, or trains for more
        epochs if you ask for more. A checkpoint made with other options (including the optimizer and the policy's layers) or from
        another log is refused. If λ is tuned, this file has the start, and each λ has its own file next to it
        (``run.lambda-0.6.safetensors``).
    progress
        Whether to show a bar with value and gradient variance; by default, only on a terminal.

    Without `policy` and `n_actions`, the actions are the distinct ids or names in the log, in ascending order. They need not be 0, 1, 2, …,
    and they stay with the policy (`classes_`) when you save and load it. Contexts that are text or lists are encoded, and the encoding
    stays with the policy, too (`encoding_`). Parquet files must not change during training.

    After `fit`, `policy_` is the policy of the best epoch, `history_` has one `Epoch` per epoch, `best_epoch_` says which one was best,
    `mean_reward_` is what the logging policy earned, `dropped_rows_` is how many bad rows were left out, and `feature_names_in_` (if
    columns have names) and `n_features_in_` describe the context. The value of the best epoch flatters the policy, because the rows that
    measure it also chose it.

    Examples
    --------
    >>> from counterpoise.environments import SyntheticBandit
    >>> log = SyntheticBandit(n_actions=4, inverse_temperature=-2, seed=1).draw(4000)
    >>> learner = PolicyLearner(epochs=5, batch_size=200, learning_rate=0.1)
    >>> _ = learner.fit(context=log.context, action=log.action, reward=log.reward, propensity=log.propensity)
    >>> learner.history_[-1].lower < learner.history_[-1].value < learner.history_[-1].upper
    True
    >>> bool(log.value(learner.predict_proba) > log.reward.mean())
    True
    """

    policy_: Policy
    context_: tuple[str, ...]
    feature_names_in_: NDArray[np.object_]
    n_features_in_: int
    mean_reward_: float
    dropped_rows_: int
    history_: list[Epoch]
    best_epoch_: int
    banditnet_lambda_: float
    tuning_: dict[float, float]

    def __init__(
        self,
        objective: str = "beta_ips",
        *,
        policy: Policy | Callable[..., Policy] | None = None,
        n_actions: int | None = None,
        learning_rate: float = 0.01,
        batch_size: int | None = 1024,
        epochs: int = 20,
        banditnet_lambda: float | Sequence[float] | None = None,
        norms: Norms | None = None,
        decay: float = 0.9,
        holdout: float = 0.1,
        patience: int | None = None,
        level: float = 0.95,
        seed: int = 0,
        device: str = "cpu",
        precision: Precision | None = None,
        negatives: int | None = None,
        optimizer: Optimizer | None = None,
        callbacks: Sequence[Callback] | None = None,
        scheduler: Scheduler | None = None,
        compile: bool | Mapping[str, Any] = False,
        checkpoint: str | PathLike[str] | None = None,
        progress: bool | None = None,
    ) -> None:
        self.objective = objective
        self.policy = policy
        self.n_actions = n_actions
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.epochs = epochs
        self.banditnet_lambda = banditnet_lambda
        self.norms = norms
        self.decay = decay
        self.holdout = holdout
        self.patience = patience
        self.level = level
        self.seed = seed
        self.device = device
        self.precision = precision
        self.negatives = negatives
        self.optimizer = optimizer
        self.callbacks = callbacks
        self.scheduler = scheduler
        self.compile = compile
        self.checkpoint = checkpoint
        self.progress = progress

    # -- scikit-learn's contract ---------------------------------------------------------------------------------------

    @classmethod
    def _parameters(cls) -> list[str]:
        return [name for name in signatures.signature(cls.__init__).parameters if name != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters, as they were given."""
        return {name: getattr(self, name) for name in self._parameters()}

    def set_params(self, **params: Any) -> Self:
        """Change some parameters; they are checked in `fit`."""
        for name, value in params.items():
            if name not in self._parameters():
                raise OptionError(
                    [
                        f"{type(self).__name__} has no parameter ",
                        Argument(name),
                        f"; it has {', '.join(self._parameters())}.",
                    ]
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = signatures.signature(type(self).__init__).parameters
        changed = [
            f"{name}={value!r}" for name, value in self.get_params().items() if value is not defaults[name].default
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    # -- fitting -------------------------------------------------------------------------------------------------------

    def fit(
        self, log: Any = None, y: Any = None, *, model_rewards: ArrayLike | None = None, **parts: Unpack[LogFields]
    ) -> Self:
        """Learn from a log: a `Log`, or its data and the parts of a log (`context`, `action`, `reward`, `propensity`, …).

        Or as scikit-learn has it, from a table of contexts and a `y` with what was logged:
        ``fit(X, cp.logged(action, reward, propensity))``.

        The data is a mapping of arrays, any frame, or the name of Parquet files, which are read chunk by chunk and may be larger than
        memory; any other log (CSV, JSON lines, a database, Spark) is read into memory, so its rows must fit. Without data, the parts are
        the arrays themselves. `where` and `drop_bad_rows` work as they do in `evaluate`, with the same rule for a bad row. `model_rewards`
        is an array of a reward model's predictions, one column per action, for DR.

        `candidates` names a column with the actions that there were to choose from, a list in every row; the policy then chooses among
        those. Without data it is an array of truth values with a column per action. `items` is a frame with a row for every action: the
        policy is then a `TwoTower` on the items' features, unless you pass another.
        """
        options = checked(self.get_params())
        asked = as_log(log, parts) if y is None else log_of(log, y, parts)
        refuse_lists(asked.slate, "PolicyLearner", instead="RankingLearner")
        if options.negatives is not None and asked.candidates is not None:
            raise OptionError(
                [
                    Argument("negatives"),
                    " draws from all items, and ",
                    Argument("candidates"),
                    " says which there are in each row.",
                ],
                do="Leave out either.",
            )
        if options.trained.needs_model_rewards != (model_rewards is not None):
            needs = "needs" if model_rewards is None else "does not use"
            raise OptionError(
                [
                    f"objective {options.objective!r} {needs} ",
                    Argument("model_rewards"),
                    ", predictions with a column per action.",
                ]
            )
        policy = (
            deepcopy(options.policy) if isinstance(options.policy, Policy) else None
        )  # so that a second fit starts afresh
        known = known_actions(policy, asked)
        source = Source(asked, model_rewards, known.classes, None if policy is None else policy.encoding_)
        if policy is not None:
            policy.check_width(source.width)
        found = inspect(source, known.count(options.n_actions, source), options.split, known.ids)
        check_sizes(source, found, options)
        source.number(found.ids)
        self._know(source, found, named=not asked.is_arrays)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(options.seed)
            self._train(options, source, found, policy or new_policy(options.policy, source, found, known.features))
        return self

    def _know(self, source: Source, found: Inspection, *, named: bool) -> None:
        """Remember what the log alone tells us."""
        self.mean_reward_, self.dropped_rows_ = found.mean_reward, source.dropped
        self.context_ = source.names.context if named else ()
        self.n_features_in_ = len(source.names.context)
        if named:
            self.feature_names_in_ = np.array(self.context_, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _train(self, options: Options, source: Source, found: Inspection, policy: Policy) -> None:
        policy.context_, policy.actions_ = self.context_, found.ids
        describe_columns(policy, source)
        self.policy_ = policy
        given = options.banditnet_lambda
        if options.trained.needs_lambda and isinstance(given, tuple):
            tuned = tune(options, source, found, policy, given)
            self.tuning_, self.banditnet_lambda_ = tuned.values, tuned.banditnet_lambda
            self.history_, self.best_epoch_ = tuned.history, tuned.best_epoch
            return
        chosen = given if options.trained.needs_lambda and isinstance(given, float) else 0.0
        if options.trained.needs_lambda:
            self.banditnet_lambda_ = chosen
        training = Training(options, source, found, policy, chosen)
        training.run(options.checkpoint)
        self.history_, self.best_epoch_ = training.history, training.best_epoch

    # -- using ---------------------------------------------------------------------------------------------------------

    @property
    def classes_(self) -> NDArray[Any]:
        """The actions, in the order of `predict_proba`'s columns."""
        return self._fitted().classes_

    @property
    def encoding_(self) -> Encoding | None:
        """How contexts become numbers; None if all of them are numbers."""
        return self._fitted().encoding_

    def sample(
        self,
        context: Any,
        *,
        temperature: float | None = None,
        mask: Any = None,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """One action per context and its propensity, ready to log; the options are those of `Policy.sample`."""
        return self._fitted().sample(context, temperature=temperature, mask=mask, seed=seed, generator=generator)

    @property
    def candidates_(self) -> str | None:
        """The column of the candidates that it learned to choose among; None if it chooses among all actions."""
        return self._fitted().candidates_

    def predict_proba(
        self, context: Any, candidates: Any = None, *, temperature: float | None = None, mask: Any = None
    ) -> NDArray[np.float64]:
        """The probabilities of all actions, one row per context, so you can pass a learner to `evaluate` as a `target`."""
        return self._fitted().predict_proba(context, candidates, temperature=temperature, mask=mask)

    def predict(self, context: Any, candidates: Any = None) -> NDArray[Any]:
        """The greedy action of every context."""
        return np.asarray(self.classes_[self.predict_proba(context, candidates).argmax(axis=1)])

    def save(self, path: str | PathLike[str]) -> None:
        """Write the policy to a file, which `load_policy` reads."""
        save_policy(self._fitted(), path)

    def _fitted(self) -> Policy:
        if not hasattr(self, "policy_"):
            raise NotFittedError("this learner has not learned anything yet.", do="Call fit first.")
        return self.policy_
