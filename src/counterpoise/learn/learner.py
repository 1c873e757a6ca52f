"""`PolicyLearner`: fits a policy on a log, and keeps the epoch that is best on held-out rows."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import fields, replace
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, Unpack

import narwhals as nw
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from counterpoise.diagnostics.verdict import check_direction
from counterpoise.errors import OptionError
from counterpoise.evaluation.result import Result
from counterpoise.evaluation.scoring import parts_of, value_scorer
from counterpoise.learn.actions import Candidates, Classes
from counterpoise.learn.checkpoints import Epoch
from counterpoise.learn.hand_out import (
    FOLDS,
    TRAINED_BEFORE,
    Attempt,
    LearningWarning,
    evaluate_folds,
    hand_out,
    remarks,
    warn,
)
from counterpoise.learn.options import (
    GROUP_OF,
    GROUPS,
    Fallback,
    Hardware,
    Optimization,
    OptionGroup,
    Options,
    Schedule,
    ShortOptions,
    Terms,
    check_sizes,
    options_of,
)
from counterpoise.learn.policies import describe_columns, known_actions, new_policy, standardize
from counterpoise.learn.policy import Contexts, Policy, Serves
from counterpoise.learn.source import Inspection, RewardModels, Source, inspect, refuse_leaks
from counterpoise.learn.training import IMITATION, Trained, beside, copy_of, fold_policies, train
from counterpoise.log.log import Log, as_log
from counterpoise.log.parts import Columns, Data, FrameLike, LogFields
from counterpoise.log.verbs import need_only, takes_parts

# -- scikit-learn's contract, kept without scikit-learn ----------------------------------------------------------------

PREFIX = "logged "  # of the columns that join a frame of contexts


class NotFittedError(OptionError, AttributeError):
    """The learner has not learned anything yet: call `fit`. It is an `AttributeError`, too, so that `hasattr` works."""


class ScikitLearn:
    """scikit-learn's contract: parameters by name, tags, whether it is fitted, and a score.

    Parameters that are groups of options are what scikit-learn calls nested: `schedule__epochs` is the option `epochs` of the group
    `schedule`. As no two groups share a name, `epochs` alone says the same.
    """

    __signature__: ClassVar[Signature]  # lists the options of all groups, too, for help and notebooks
    _defaults: ClassVar[dict[str, object]]

    def __init_subclass__(cls) -> None:
        _, *parameters = signature(cls.__init__).parameters.values()
        own = [parameter for parameter in parameters if parameter.kind != Parameter.VAR_KEYWORD]
        cls._defaults = {parameter.name: parameter.default for parameter in own}
        short = [
            Parameter(part.name, Parameter.KEYWORD_ONLY, default=part.default, annotation=part.type)
            for record in GROUPS.values()
            for part in fields(record)
            if len(own) < len(parameters) and part.name not in cls._defaults
        ]
        cls.__signature__ = Signature([*own, *short])

    def get_params(self, deep: bool = True) -> dict[str, object]:
        """The parameters, as they were given; `deep` adds the options of the groups, by both of their names."""
        params = {name: getattr(self, name) for name in self._defaults}
        if deep:
            for group in GROUPS:
                options = vars(self._group(group)) if isinstance(self._group(group), OptionGroup) else {}
                params |= {f"{group}__{name}": value for name, value in options.items()} | options
        return params

    def set_params(self, **params: object) -> Self:
        """Change some parameters; they are checked in `fit`."""
        own = {name: params[name] for name in self._defaults if name in params}
        changes = self._changes({name: value for name, value in params.items() if name not in own}, own)
        for name, value in (own | changes).items():
            setattr(self, name, value)
        return self

    def _group(self, name: str, params: Mapping[str, object] | None = None) -> object:
        """A group of options, from these parameters or the current ones; the defaults if there is none."""
        group = getattr(self, name) if params is None or name not in params else params[name]
        return GROUPS[name]() if group is None else group

    def _changes(self, options: Mapping[str, object], params: Mapping[str, object]) -> dict[str, object]:
        """The groups with these options changed, none of which may contradict a group among the parameters given with them."""
        changes: dict[str, dict[str, object]] = {}
        for name, value in options.items():
            group, _, part = name.rpartition("__")
            if part not in GROUP_OF or group not in ("", GROUP_OF[part]):
                raise self._unknown(name)
            group = GROUP_OF[part]
            for other in (changes.get(group), getattr(params.get(group), "__dict__", None)):
                if other and other.get(part, value) is not value:
                    raise OptionError(
                        f"`{part}={value!r}` contradicts {other[part]!r}, which it is in `{group}=`.",
                        do=f"Say it once: {part}=, or {group}={GROUPS[group].__name__}({part}=…).",
                    )
            changes.setdefault(group, {})[part] = value
        groups = {group: self._group(group, params) for group in changes}
        return {
            name: replace(group, **changes[name]) for name, group in groups.items() if isinstance(group, GROUPS[name])
        }

    def _unknown(self, name: str) -> OptionError:
        known = [*self._defaults, *GROUP_OF]
        near = difflib.get_close_matches(name.rpartition("__")[2], known, n=1)
        names = "" if near else f"; it has {', '.join(known)}"
        return OptionError(
            f"{type(self).__name__} has no parameter `{name}=`{names}.",
            suggestion=f"Did you mean `{near[0]}=`?" if near else "",
        )

    if not TYPE_CHECKING:  # a misspelled attribute should stay an error

        def __getattr__(self, name: str) -> object:
            if name not in GROUP_OF:
                return super().__getattribute__(name)  # once more, for the error that brought us here
            return getattr(self._group(GROUP_OF[name]), name)

        def __setattr__(self, name: str, value: object) -> None:
            if name in GROUP_OF:
                vars(self).update(self._changes({name: value}, {}))
            else:
                super().__setattr__(name, value)

    def __repr__(self) -> str:
        changed: dict[str, object] = {}
        for name, value in self.get_params(deep=False).items():
            if isinstance(value, OptionGroup):
                changed |= value.changed()
            elif value is not self._defaults[name]:
                changed[name] = value
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in changed.items())})"

    def __sklearn_tags__(self) -> object:
        from sklearn.utils import Tags, TargetTags  # only scikit-learn asks

        return Tags(estimator_type=None, target_tags=TargetTags(required=False))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "policy_")

    def score(self, X: ArrayLike | FrameLike, y: Columns | FrameLike) -> float:  # noqa: N803
        """The β-IPS value on rows that are not those of `fit`: see `value_scorer`."""
        return value_scorer(self, X, y)


def log_of(X: Any, y: Columns | FrameLike, more: LogFields) -> Log:  # noqa: N803
    """The log in scikit-learn's X and y: all columns of X are the context, y has the rest, and `more` are further parts."""
    parts = parts_of(y)
    twice = [part for part in more if part in parts or part == "context"]
    if twice:
        raise OptionError(f"X and y already define `{twice[0]}=`.", do="Leave it out.")
    names = list(getattr(X, "columns", ()))
    if names and all(isinstance(name, str) for name in names):
        joined = {part: f"{PREFIX}{part}" for part in parts}
        clash = [name for name in joined.values() if name in names]
        if clash:
            raise OptionError(f"a column of X is called {clash[0]!r}, as we call one of y.", do="Rename it.")
        frame = nw.from_native(X, eager_only=True)
        series = [nw.new_series(joined[part], values, backend=frame.implementation) for part, values in parts.items()]
        columns: Any = {"context": names} | joined | more
        return Log(frame.with_columns(*series).to_native(), **columns)
    if hasattr(X, "toarray"):
        raise OptionError(
            "X is a sparse matrix, and contexts must be dense.",
            do="Pass X.toarray(), or sparse_output=False to the encoder.",
        )
    table = X if hasattr(X, "shape") else np.asarray(X)
    if len(table.shape) != 2:
        raise OptionError(f"X must be a table of contexts, a row for each; found shape {tuple(table.shape)}.")
    columns = {"context": np.asarray(table)} | parts | more
    return Log(None, **columns)


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
    n_actions
        How many actions there are, numbered from 0; by default, those of the log.
    terms, optimization, schedule, hardware
        The options of the objective (`Terms`), of the optimizer (`Optimization`), of epochs, held-out rows and checkpoints (`Schedule`),
        and of devices and precision (`Hardware`). Any of these options can be given by its own name instead:
        ``PolicyLearner(epochs=5, device="cuda")`` is ``PolicyLearner(schedule=Schedule(epochs=5), hardware=Hardware(device="cuda"))``.
        To scikit-learn they are nested parameters, such as `schedule__epochs`.
    temperature
        What the policy serves with: its logits are divided by it, and 0 always takes the most probable action. ``"auto"`` takes
        the best of 1, 0.5, 0.25 and 0 on the held-out rows. Fold policies are evaluated at this temperature, epochs without it.
    folds
        In how many folds the learning is evaluated: for each, a policy is trained and chosen on the other rows, and evaluated on its
        own. That takes about `folds` times as long, and `result_` has the result. Rows of one cluster stay in one fold.
        With None, nothing is evaluated. The policy that you get is trained on all rows, and is the same with or without folds.
    fallback
        What to do if the policies of the folds are not reliably better than the logging policy (the interval of the lift is not above
        0, or the verdict is not ``"ok"``): ``"warn"``; ``"imitate"``, to get a policy that imitates the logging policy instead (`kind_` is
        then ``"imitation"``, `result_` is about it, and `rejected_` is about what was learned); or ``"raise"``.
    level
        That of the intervals.
    seed
        The same seed, on the same log, gives the same policy.

    Without `policy` and `n_actions`, the actions are the distinct ids or names in the log, in ascending order. They need not be 0, 1, 2, …,
    and they stay with the policy (`classes_`) when you save and load it. Contexts that are text or lists are encoded, and the encoding
    stays with the policy, too (`encoding_`). Parquet files must not change during training.

    After `fit`, `policy_` is the policy of the best epoch, `history_` has one `Epoch` per epoch, `best_epoch_` says which one was
    best, `mean_reward_` is what the logging policy earned, `dropped_rows_` is how many invalid rows were dropped, and
    `feature_names_in_` (if columns have names) and `n_features_in_` describe the context. The value of the best epoch flatters
    the policy, because the rows that measure it also chose it. `result_`, a `Result`, does not: it is the value of the policies
    of the folds, each on held-out rows, with its lift over the logging policy, intervals and verdict. `remarks_` points out what is
    odd about the policy: it never moved, is uniform, or always takes the same action.

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
    action_: str | None
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
        terms: Terms | None = None,
        optimization: Optimization | None = None,
        schedule: Schedule | None = None,
        hardware: Hardware | None = None,
        temperature: float | Literal["auto"] = 1.0,
        folds: int | None = 3,
        fallback: Fallback = "warn",
        level: float = 0.95,
        seed: int = 0,
        **options: Unpack[ShortOptions],
    ) -> None:
        self.objective = objective
        self.policy = policy
        self.n_actions = n_actions
        self.terms = terms
        self.optimization = optimization
        self.schedule = schedule
        self.hardware = hardware
        self.temperature = temperature
        self.folds = folds
        self.fallback = fallback
        self.level = level
        self.seed = seed
        vars(self).update(self._changes(options, vars(self)))

    # -- fitting -------------------------------------------------------------------------------------------------------

    @takes_parts("PolicyLearner")
    def fit(
        self,
        log: Log | Data | ArrayLike = None,
        y: Columns | FrameLike = None,
        *,
        model_rewards: ArrayLike | None = None,
        **parts: Unpack[LogFields],
    ) -> Self:
        """Learn from a log: a `Log`, or its data and the parts of a log (`context`, `action`, `reward`, `propensity`, …).

        Or as scikit-learn has it, from a table of contexts and a `y` with what was logged:
        ``fit(X, cp.logged(action, reward, propensity))``.

        The data is a mapping of arrays, any frame, or the name of Parquet files, which are read chunk by chunk and may be larger
        than memory; any other log (CSV, JSON lines, a database, Spark) is read into memory, so its rows must fit. Without data,
        the parts are the arrays themselves. `where` and `drop_bad_rows` work as they do in `evaluate`, with the same rule for a
        invalid row (`control` is read only for that; `key` is not read). For DR, `model` is a reward model to fit (as in `evaluate`;
        cross-fitted, and in files chunk by chunk), or `model_rewards` an array of predictions, one column per action.

        `candidates` names a column with the actions to choose from, a list in every row; the policy then chooses among those.
        Without data, it is a boolean array with a column per action. `items` is a frame with a row for every action: the policy
        is then a `TwoTower` on the items' features, unless you pass another.
        """
        options = options_of(vars(self))
        whole = as_log(log, parts) if y is None else log_of(log, y, parts)
        need_only(whole, "PolicyLearner")
        check_direction(whole)
        if options.negatives is not None and whole.candidates is not None:
            raise OptionError(
                "`negatives=` draws from all items, and `candidates=` lists those of each row.",
                do="Leave out either.",
            )
        if options.trained.needs_model_rewards != ((model_rewards is not None) != (whole.model is not None)):
            needs = "needs" if options.trained.needs_model_rewards else "does not use"
            raise OptionError(
                f"objective {options.objective!r} {needs} `model_rewards=`, predictions with a column per action, or "
                "else `model=`, a reward model to fit."
            )
        # a copy, so that a second fit starts afresh
        policy = deepcopy(options.policy) if isinstance(options.policy, Policy) else None
        known = known_actions(policy, whole)
        encoding = None if policy is None else policy.encoding_
        source = Source(whole, model_rewards, known.classes, encoding, fills_gaps=policy is None)
        if policy is not None:
            policy.check_width(source.width)
        inspection = inspect(source, known.count(options.n_actions, source), options.split, known.ids)
        refuse_leaks(source)
        check_sizes(source, inspection, options)
        source.number(inspection.ids)
        if whole.model is not None:
            source.models = RewardModels(
                source, inspection.rows, inspection.n_actions, whole.model, options.folds, options.seed
            )
            inspection = replace(inspection, digest=source.models.digest(inspection.digest))
        self._know(source, inspection, named=not whole.is_arrays)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(options.seed)

            def start(inspected: Inspection) -> Policy:
                made = (
                    new_policy(options.policy, source, inspected, known.features)
                    if policy is None
                    else deepcopy(policy)
                )
                standardize(made, inspected.columns)
                made.context_, made.actions_ = self.context_, inspected.ids
                describe_columns(made, source)
                return made

            if options.folds and policy is not None and policy.learned_from_ == inspection.digest:
                warn(LearningWarning(TRAINED_BEFORE))
            self._hand_out(options, source, inspection, start)
        return self

    def _hand_out(
        self, options: Options, source: Source, inspection: Inspection, start: Callable[[Inspection], Policy]
    ) -> None:
        """Train fold policies, evaluate them, and train the policy that is handed out from the same `start` as they."""
        random = torch.get_rng_state()

        def attempt(options: Options, name: str = FOLDS) -> Attempt[Options]:
            if not options.folds:
                return Attempt(options)
            policies = fold_policies(options, source, inspection, start)
            self.result_ = evaluate_folds(source, policies, name=name, level=options.level)
            return Attempt(options, self.result_, imitates=options.objective == IMITATION)

        def imitate() -> Attempt[Options]:
            self.rejected_, own = self.result_, beside(options.checkpoint, IMITATION)
            plain = replace(options, objective=IMITATION, imitation=0.0, clip=None, temperature=1.0, checkpoint=own)
            return attempt(plain, f"imitating {FOLDS}")

        def refit(options: Options) -> Policy:
            torch.set_rng_state(random)
            self.policy_ = start(inspection)
            before = copy_of(self.policy_)
            self._keep(train(options, source, inspection, self.policy_))
            self.policy_.learned_from_ = inspection.digest
            self.kind_ = IMITATION if options.objective == IMITATION else "learned"
            self.remarks_ = remarks(self.policy_, source, before)
            return self.policy_

        hand_out(source, [attempt(options)], refit, fallback=options.fallback, imitate=imitate)

    def _know(self, source: Source, inspection: Inspection, *, named: bool) -> None:
        """Remember what only the log can tell."""
        for name in ("result_", "rejected_", "banditnet_lambda_", "tuning_"):
            vars(self).pop(name, None)  # of an earlier fit
        self.mean_reward_, self.dropped_rows_ = source.in_its_units(inspection.mean_reward), source.dropped
        self._sign = source.sign
        self.context_ = source.names.context if named else ()
        self.action_ = source.names.action if named else None
        self.n_features_in_ = len(source.names.context)
        if named:
            self.feature_names_in_ = np.array(self.context_, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _keep(self, trained: Trained) -> None:
        """Remember how a run went."""
        self.history_, self.best_epoch_ = trained.history, trained.best_epoch
        if trained.banditnet_lambda is not None:
            self.banditnet_lambda_ = self._sign * trained.banditnet_lambda
        if trained.values is not None:
            self.tuning_ = {self._sign * tried: self._sign * value for tried, value in trained.values.items()}

    # -- using ---------------------------------------------------------------------------------------------------------

    def predict(self, context: Contexts, candidates: Candidates = None) -> Classes:
        """The greedy action of every context."""
        actions = self.greedy(context, candidates=candidates)
        return np.asarray(actions.cpu() if isinstance(actions, torch.Tensor) else actions)

    @property
    def served_policy(self) -> Policy:
        """The policy that was learned."""
        if not hasattr(self, "policy_"):
            raise NotFittedError("this learner has not learned anything yet.", do="Call fit first.")
        return self.policy_
