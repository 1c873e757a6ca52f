"""`PolicyLearner`: fits a policy on a log, and keeps the epoch that is best on held-out rows."""

from __future__ import annotations

import inspect as signatures
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from os import PathLike
from typing import Any, Literal, Self, Unpack

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from counterpoise.errors import Argument, OptionError
from counterpoise.evaluation.result import Result
from counterpoise.evaluation.scoring import parts_of, value_scorer
from counterpoise.learn.batches import Inspection, inspect, refuse_leaks
from counterpoise.learn.callbacks import Callback
from counterpoise.learn.checkpoints import Epoch, copy_of
from counterpoise.learn.items.kernels import Precision
from counterpoise.learn.judging import (
    FOLDS,
    flattered,
    fold_policies,
    is_surely_better,
    judge,
    lesson_of,
    refused,
    remarks,
    warned,
)
from counterpoise.learn.options import Fallback, Optimizer, Options, Scheduler, check_sizes, checked
from counterpoise.learn.policies import describe_columns, known_actions, new_policy, standardize
from counterpoise.learn.policy import Policy, Serves
from counterpoise.learn.reward_models import RewardModels
from counterpoise.learn.source import Source
from counterpoise.learn.steps import Norms
from counterpoise.learn.training import IMITATION, beside, train
from counterpoise.log.lists import refuse_lists
from counterpoise.log.log import Log, LogFields, as_log

# -- scikit-learn's contract, kept without scikit-learn: `fit(X, y)`, `score`, and what its tools ask an estimator about itself ---

PREFIX = "logged "  # of the columns that join a frame of contexts


class NotFittedError(OptionError, AttributeError):
    """The learner has not learned anything yet: call `fit`. It is an `AttributeError`, too, so that `hasattr` works."""


class ScikitLearn:
    """What tools of scikit-learn ask for, beyond parameters: tags, whether it is fitted, and a score."""

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import Tags, TargetTags  # only scikit-learn asks

        return Tags(estimator_type=None, target_tags=TargetTags(required=False))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "policy_")

    def score(self, X: Any, y: Any) -> float:  # noqa: N803
        """The β-IPS value on rows that are not those of `fit`: see `value_scorer`."""
        return value_scorer(self, X, y)


def log_of(X: Any, y: Any, given: LogFields) -> Log:  # noqa: N803
    """The log of scikit-learn's X and y: all columns of X are the context, and y has the rest; `given` are further parts of it."""
    parts = parts_of(y)
    twice = [part for part in given if part in parts or part == "context"]
    if twice:
        raise OptionError(["X and y already say what ", Argument(twice[0]), " is."], do="Leave it out.")
    names = list(getattr(X, "columns", ()))
    if names and all(isinstance(name, str) for name in names):
        return _log_of_frame(X, names, parts, given)
    if hasattr(X, "toarray"):
        raise OptionError(
            "X is a sparse matrix, and contexts must be dense.",
            do="Pass X.toarray(), or sparse_output=False to the encoder.",
        )
    table = X if hasattr(X, "shape") else np.asarray(X)
    if len(table.shape) != 2:
        raise OptionError(f"X must be a table of contexts, a row for each; found shape {tuple(table.shape)}.")
    found: Any = {"context": np.asarray(table)} | parts | given
    return Log(None, **found)


def _log_of_frame(X: Any, names: list[str], parts: dict[str, Any], given: LogFields) -> Log:  # noqa: N803
    import narwhals as nw

    joined = {part: f"{PREFIX}{part}" for part in parts}
    clash = [name for name in joined.values() if name in names]
    if clash:
        raise OptionError(f"a column of X is called {clash[0]!r}, as we call one of y.", do="Rename it.")
    frame = nw.from_native(X, eager_only=True)
    columns = [nw.new_series(joined[part], values, backend=frame.implementation) for part, values in parts.items()]
    found: Any = {"context": names} | joined | given
    return Log(frame.with_columns(*columns).to_native(), **found)


# -- `PolicyLearner`: fits a policy on a log, and keeps the epoch that is best on held-out rows ------------------------


class PolicyLearner(Serves, ScikitLearn):
    """Learns a policy from the log of another one.

    It keeps scikit-learn's contract: parameters are stored as you give them and checked in `fit`; `get_params`, `set_params` and
    `sklearn.base.clone` work; and the names of what was learned end in an underscore.

    Parameters
    ----------
    objective
        A name in `objectives.OBJECTIVES`: ``"beta_ips"``, with the baseline of least gradient variance in each batch;
        ``"running_beta_ips"``, with that of the batches before it, and therefore unbiased; ``"ips"``; ``"lambda_ips"`` (BanditNet),
        with `banditnet_lambda`; ``"log_smoothing"``, for rewards of 0 and more, which trusts large weights less; ``"imitation"``, which
        learns the logging policy itself; ``"dr"``, with `model` or `model_rewards` in `fit`; only with ``batch_size=None``, ``"snips"`` and
        ``"value_beta_ips"`` (differentiated through its baseline); or one that you registered yourself.
    policy
        A `Policy` to start from: a copy of it is trained, and becomes `policy_`. By default, a linear softmax with an intercept that
        starts as the uniform policy, on contexts standardized by the mean and standard deviation of the training rows. A policy that you
        pass sees the contexts as they are, unless you made it with ``standardize=True``, and training goes on from its parameters: if it
        was already trained on this log, no row is new to it, and `result_` flatters it. If contexts are encoded, only the log tells how
        many numbers they become, so pass the class or a function instead: it is called with that and the number of actions, and with
        `item_features=` if the log has items.
    batch_size
        Rows of a step; a log with fewer rows is one batch. With None, every step is over all rows.
    epochs
        How often to go through the log; by default, until `patience` epochs in a row were no better on the held-out rows (as many as make
        up 200 steps, and at least 10), and for 8,000 steps at most.
    banditnet_lambda
        BanditNet's λ, or several to choose from; the one with the best SNIPS value on the training rows is kept. None tries
        0.6, 0.65, …, 0.95, as published for rewards from 0 to 1, brought to the range that the rewards have.
    norms
        ``"last_layer"`` or ``"all"``: whose gradient variance the baseline minimizes. By default, that of the last layer if it has a
        closed form (exact for linear policies, nearly free for others).
    holdout
        The share of the rows that is kept from training. The epoch that is best on those rows is kept (`Epoch.score`), never the one
        with the largest training objective. With 0, the last epoch is kept.
    patience
        Stop after this many epochs without a better held-out value.
    folds
        In how many folds the learning is judged: for each, a policy is trained and chosen on the other rows, and judged by its own. That
        costs about `folds` times the time, and `result_` says what came of it. Rows of one cluster are in one fold. With None, nothing is
        judged. The policy that you get is trained on all rows, and is the same with and without folds.
    fallback
        What to do if the policies of the folds are not surely better than the one that wrote the log (the interval of the lift is not above
        0, or the verdict is not ``"ok"``): ``"warn"``; ``"imitate"``, to get a policy that imitates the logging policy instead (`kind_` is
        then ``"imitation"``, `result_` is about it, and `rejected_` is about what was learned); or ``"raise"``.
    imitation
        κ: this much of the mean of log π(a|x) on the logged rows is added to the objective, which keeps the policy near what was logged.
    smoothing
        λ of the objective ``"log_smoothing"``; by default, 1/√n over the usual size of a reward.
    clip
        The largest weight that a row with a reward above the baseline counts with.
    temperature
        What the policy serves with: its logits are divided by it, and 0 takes the most probable action always. ``"auto"`` takes the
        best of 1, 0.5, 0.25 and 0 on the held-out rows. The policies of the folds are judged with it, the epochs are without it.
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
        (``run.lambda-0.6.safetensors``); so has each fold (``run.fold-1.safetensors``).
    progress
        Whether to show a bar with value and gradient variance; by default, only on a terminal.

    Without `policy` and `n_actions`, the actions are the distinct ids or names in the log, in ascending order. They need not be 0, 1, 2, …,
    and they stay with the policy (`classes_`) when you save and load it. Contexts that are text or lists are encoded, and the encoding
    stays with the policy, too (`encoding_`). Parquet files must not change during training.

    After `fit`, `policy_` is the policy of the best epoch, `history_` has one `Epoch` per epoch, `best_epoch_` says which one was best,
    `mean_reward_` is what the logging policy earned, `dropped_rows_` is how many bad rows were left out, and `feature_names_in_` (if
    columns have names) and `n_features_in_` describe the context. The value of the best epoch flatters the policy, because the rows that
    measure it also chose it. `result_`, a `Result`, does not: it is the value of the policies of the folds, by the rows that each of them
    has not seen, with its lift over what ran, intervals and verdict. `remarks_` says what is odd about the policy: that it never moved, is
    uniform, or takes one action for sure.

    Examples
    --------
    >>> from counterpoise.environments import SyntheticBandit
    >>> log = SyntheticBandit(n_actions=4, inverse_temperature=-2, seed=1).draw(4000)
    >>> learner = PolicyLearner(epochs=5, batch_size=200, learning_rate=0.1)
    >>> _ = learner.fit(context=log.context, action=log.action, reward=log.reward, propensity=log.propensity)
    >>> learner.result_["fold policies", "lift"].interval.lower > 0, learner.result_.verdict().verdict
    (True, 'ok')
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
    result_: Result
    kind_: str
    rejected_: Result
    remarks_: tuple[str, ...]

    def __init__(
        self,
        objective: str = "beta_ips",
        *,
        policy: Policy | Callable[..., Policy] | None = None,
        n_actions: int | None = None,
        learning_rate: float = 0.01,
        batch_size: int | None = 1024,
        epochs: int | None = None,
        banditnet_lambda: float | Sequence[float] | None = None,
        norms: Norms | None = None,
        decay: float = 0.9,
        holdout: float = 0.1,
        patience: int | None = None,
        folds: int | None = 3,
        fallback: Fallback = "warn",
        imitation: float = 0.0,
        smoothing: float | None = None,
        clip: float | None = None,
        temperature: float | Literal["auto"] = 1.0,
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
        self.folds = folds
        self.fallback = fallback
        self.imitation = imitation
        self.smoothing = smoothing
        self.clip = clip
        self.temperature = temperature
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
        the arrays themselves. `where` and `drop_bad_rows` work as they do in `evaluate`, with the same rule for a bad row (for which
        alone `control` is read; `key` is not). For DR, `model`
        is a reward model to fit (as in `evaluate`; cross-fitted, and in files chunk by chunk), or `model_rewards` an array of predictions,
        one column per action.

        `candidates` names a column with the actions that there were to choose from, a list in every row; the policy then chooses among
        those. Without data it is an array of truth values with a column per action. `items` is a frame with a row for every action: the
        policy is then a `TwoTower` on the items' features, unless you pass another.
        """
        options = checked(self.get_params())
        asked = as_log(log, parts) if y is None else log_of(log, y, parts)
        refuse_lists(asked.slate, "PolicyLearner", instead="RankingLearner")
        asked.need_only("PolicyLearner")
        _check_parts(options, asked, has_predictions=model_rewards is not None)
        # a copy, so that a second fit starts afresh
        policy = deepcopy(options.policy) if isinstance(options.policy, Policy) else None
        known = known_actions(policy, asked)
        encoding = None if policy is None else policy.encoding_
        source = Source(asked, model_rewards, known.classes, encoding, fills_gaps=policy is None)
        if policy is not None:
            policy.check_width(source.width)
        found = inspect(source, known.count(options.n_actions, source), options.split, known.ids)
        refuse_leaks(source)
        check_sizes(source, found, options)
        source.number(found.ids)
        if asked.model is not None:
            source.models = RewardModels(source, found.rows, found.n_actions, asked.model, options.folds, options.seed)
            found = replace(found, digest=source.models.digest(found.digest))
        self._know(source, found, named=not asked.is_arrays)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(options.seed)

            def start(seen: Inspection) -> Policy:
                made = new_policy(options.policy, source, seen, known.features) if policy is None else deepcopy(policy)
                standardize(made, seen.columns)
                made.context_, made.actions_ = self.context_, seen.ids
                describe_columns(made, source)
                return made

            if options.folds and policy is not None and policy.learned_from_ == found.digest:
                warnings.warn(flattered(), stacklevel=2)
            random = torch.get_rng_state()
            chosen = self._judge(options, source, found, start) if options.folds else options
            torch.set_rng_state(random)
            self._train(chosen, source, found, start(found))
        return self

    def _know(self, source: Source, found: Inspection, *, named: bool) -> None:
        """Remember what the log alone tells us."""
        for name in ("result_", "rejected_", "banditnet_lambda_", "tuning_"):
            vars(self).pop(name, None)  # of an earlier fit
        self.mean_reward_, self.dropped_rows_ = found.mean_reward, source.dropped
        self.context_ = source.names.context if named else ()
        self.n_features_in_ = len(source.names.context)
        if named:
            self.feature_names_in_ = np.array(self.context_, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _judge(
        self, options: Options, source: Source, found: Inspection, make: Callable[[Inspection], Policy]
    ) -> Options:
        """Judge the policies of the folds, and return the options of the policy to hand out: those asked for, or those of an imitation."""

        def judged(options: Options, name: str) -> Result:
            return judge(source, fold_policies(options, source, found, make), name=name, level=options.level)

        self.result_ = judged(options, FOLDS)
        if is_surely_better(self.result_) or options.objective == IMITATION:
            return options
        if options.fallback == "raise":
            raise refused(self.result_)
        if options.fallback == "warn":
            warnings.warn(warned(self.result_), stacklevel=3)
            return options
        self.rejected_ = self.result_
        options = replace(options, objective=IMITATION, imitation=0.0, clip=None, temperature=1.0)
        options = replace(options, checkpoint=beside(options.checkpoint, IMITATION))
        self.result_ = judged(options, f"imitating {FOLDS}")
        return options

    def _train(self, options: Options, source: Source, found: Inspection, policy: Policy) -> None:
        self.policy_, before = policy, copy_of(policy)
        done = train(options, source, found, policy)
        self.history_, self.best_epoch_ = done.history, done.best_epoch
        if done.banditnet_lambda is not None:
            self.banditnet_lambda_ = done.banditnet_lambda
        if done.values is not None:
            self.tuning_ = done.values
        policy.learned_from_ = found.digest
        policy.lesson_ = lesson_of(source, getattr(self, "result_", None), policy.lesson_)
        self.kind_ = IMITATION if options.objective == IMITATION else "learned"
        self.remarks_ = remarks(policy, source, before)

    # -- using ---------------------------------------------------------------------------------------------------------

    def predict(self, context: Any, candidates: Any = None) -> NDArray[Any]:
        """The greedy action of every context."""
        actions = self.greedy(context, candidates=candidates)
        return np.asarray(actions.cpu() if isinstance(actions, torch.Tensor) else actions)

    @property
    def served_policy(self) -> Policy:
        """The policy that was learned."""
        if not hasattr(self, "policy_"):
            raise NotFittedError("this learner has not learned anything yet.", do="Call fit first.")
        return self.policy_


def _check_parts(options: Options, asked: Log, *, has_predictions: bool) -> None:
    """Check that the objective gets the parts of the log that it needs, and none that exclude each other."""
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
    if options.trained.needs_model_rewards != (has_predictions != (asked.model is not None)):
        needs = "needs" if options.trained.needs_model_rewards else "does not use"
        raise OptionError(
            [
                f"objective {options.objective!r} {needs} ",
                Argument("model_rewards"),
                ", predictions with a column per action, or else ",
                Argument("model"),
                ", a reward model to fit.",
            ]
        )
