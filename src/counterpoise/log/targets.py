"""Targets: policies as a log sees them, each turned into one record in one place."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from numpy.typing import ArrayLike

from counterpoise.errors import OptionError
from counterpoise.log.parts import Arrays, column_names

if TYPE_CHECKING:
    from counterpoise.log.log import Log

# -- `ActionGroup`: a target whose choice is looked at by groups of actions only, such as the category of an item ------


@dataclass(frozen=True)
class ActionGroup:
    r"""A target that chooses among groups of actions, and within a group as the logging policy does: marginalized IPS.

    .. math:: w = \frac{\pi(g \mid x)}{\pi_0(g \mid x)}, \qquad g = g(a), \qquad \pi(g \mid x) = \sum_{a: g(a) = g} \pi(a \mid x)

    There are fewer groups than actions, so weights are smaller and estimates less noisy. Its value is that of the target if
    all actions of a group earn the same (in the same context). No log can prove that; but it is always an unbiased value of a
    policy that takes a group as the target does, and then an action of the group as the logging policy does. So compare the two:
    ``compare(log, target=ActionGroup(…), against="pi_new")`` shows what the groups hide, with its interval.

    Parameters
    ----------
    target, propensity
        Columns (or SQL expressions) with the target's and the logging policy's probability of the logged action's group. If `groups` are
        given: list columns with the probabilities of *all* actions; the target may also be a policy with `predict_proba`.
    groups
        The group of every action: a mapping of actions to groups, in the order of the lists; or a sequence, for actions 0, 1, 2, …

    Examples
    --------
    >>> from counterpoise import compare, evaluate
    >>> log = {"r": [1, 0, 1, 0], "p": [0.1, 0.4, 0.3, 0.2], "new": [0.3, 0.2, 0.1, 0.4], "p_group": [0.5] * 4, "new_group": [0.5] * 4}
    >>> by_group = {"by group": ActionGroup("new_group", "p_group")}
    >>> evaluate(log, reward="r", propensity="p", target=by_group)["by group", "ips"].value
    0.5

    References
    ----------
    Saito & Joachims, "Off-policy evaluation for large action spaces via embeddings", ICML 2022.
    """

    target: str | Classifier
    propensity: str
    groups: Mapping[object, object] | Sequence[object] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.propensity, str):
            raise OptionError(
                f"ActionGroup names the column of the logging policy's probability of groups (or of all actions); found "
                f"{type(self.propensity).__name__}."
            )
        if self.groups is None and not isinstance(self.target, str):
            raise OptionError(
                "ActionGroup names the column of the target's probability of the logged action's group.",
                do="For a policy, map every action to its group with `groups=`.",
            )
        if not isinstance(self.target, str) and not hasattr(self.target, "predict_proba"):
            raise OptionError(
                f"the target of ActionGroup is a column or a policy with predict_proba, found {type(self.target).__name__}."
            )
        if self.groups is not None and (
            isinstance(self.groups, str) or not isinstance(self.groups, Mapping | Sequence) or not len(self.groups)
        ):
            raise OptionError(
                "groups map every action to its group: pass a mapping, or a sequence of groups for the actions 0, 1, 2, …"
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """The list columns it reads; none if the log has the probabilities of groups themselves."""
        if self.groups is None:
            return ()
        return (self.target, self.propensity) if isinstance(self.target, str) else (self.propensity,)

    def expression(self, propensity: object) -> str:
        """The probability of the logged action, if groups are taken as the target does, and actions in them as the logging policy does.

        >>> ActionGroup("new_group", "p_group").expression("p")
        '(new_group) * (p) / (p_group)'
        """
        if propensity is None:
            raise OptionError("ActionGroup also needs `propensity=`, the logging policy's probability of the action.")
        return f"({self.target}) * ({propensity}) / ({self.propensity})"


# ----------------------------------------------------------------------------------------------------------------------


class Classifier(Protocol):
    """A policy that gives the probabilities of all actions, as scikit-learn's classifiers do."""

    @property
    def predict_proba(self) -> Callable[..., object]:
        """Contexts in, a table of probabilities out."""


class Ranker(Protocol):
    """A policy that shows lists."""

    @property
    def list_probabilities(self) -> Callable[..., object]:
        """Contexts and the lists that were shown in, the probabilities of their rows out."""


PolicyTarget = Callable[..., ArrayLike] | Classifier | Ranker
CHOSEN = "chosen action"  # the part played by the column of a `Chosen`
LISTED = "list of probabilities"  # and that of a `Probabilities`
SAVED = ".safetensors"  # a policy that counterpoise.learn saved


@dataclass(frozen=True)
class Chosen:
    """A deterministic target: the column with the action it takes, which is compared with the logged one.

    >>> Chosen("item_new")
    Chosen(column='item_new')
    """

    column: str

    def __post_init__(self) -> None:
        if not isinstance(self.column, str):
            raise OptionError(f"Chosen names the column of an action, found {type(self.column).__name__}.")


@dataclass(frozen=True)
class Always:
    """A target that always takes one action, which is compared with the logged one.

    An action is text, a number or a boolean, as it is in the log; for a log of numbers (or booleans), their text will do, too.

    >>> Always("banner_green")
    Always(action='banner_green')
    """

    action: str | int | float | bool

    def __post_init__(self) -> None:
        plain: object = self.action
        if hasattr(plain, "item") and not getattr(plain, "shape", ()):
            plain = plain.item()  # of NumPy's numbers
        object.__setattr__(self, "action", plain)
        if not isinstance(plain, str | int | float | bool) or plain != plain:
            raise OptionError(f"Always names one action, as text or a number; found {type(plain).__name__}.")


@dataclass(frozen=True)
class Probabilities:
    """A target whose probabilities of all actions are in one column: a list for every row.

    The k-th entry belongs to the action k; or, if the log has `items`, to the action of their k-th row.

    >>> Probabilities("pi_new")
    Probabilities(column='pi_new')
    """

    column: str

    def __post_init__(self) -> None:
        if not isinstance(self.column, str):
            raise OptionError(f"Probabilities names a column of lists, found {type(self.column).__name__}.")


@dataclass(frozen=True)
class CrossFitted:
    """A target to fit: in every row, the action for which a model of the reward, fitted on other rows, predicts the most."""

    estimator: Any
    step: Any = None  # once it is fitted, what knows the folds of rows and has a model for each


# one target: a column or an expression (without a log, the array itself), a saved policy's file, or one of those above
OneTarget = str | ArrayLike | PathLike[str] | Chosen | Always | Probabilities | ActionGroup | PolicyTarget
Targets = OneTarget | Sequence[OneTarget] | Mapping[str, OneTarget] | None
# what a target is made from
TargetSource = str | Chosen | Always | Probabilities | ActionGroup | CrossFitted | PolicyTarget


def argument_of(part: str, column: str) -> str:
    """What to pass for a column to play a part, in the markup of messages."""
    own = {CHOSEN: Chosen, LISTED: Probabilities}
    return f"`target={own[part](column)!r}`" if part in own else f"`{part}={column!r}`"


@dataclass(frozen=True)
class Target:
    """A target policy: its name, and where its probability of the logged action comes from.

    `source` is the text of a column or expression, a `Chosen`, `Always`, `Probabilities`, or a policy: a callable on record batches,
    anything with `predict_proba`, or an `ActionGroup` of them. `column` is what its probabilities are called among the log's columns.
    `by_group` says that it chooses among groups of actions.
    """

    name: str
    source: TargetSource
    by_group: bool = False

    @property
    def is_column(self) -> bool:
        """Whether the log has its probabilities, or an expression that gives them."""
        return isinstance(self.source, str)

    @property
    def is_choice(self) -> bool:
        """Whether it is deterministic: it takes the action of a column, or always the same."""
        return isinstance(self.source, Chosen | Always)

    @property
    def is_policy(self) -> bool:
        """Whether Python computes its probabilities."""
        return not self.is_column and not self.is_choice

    @property
    def tells_actions(self) -> bool:
        """Whether it tells which actions it takes, not only how probable the logged one is."""
        return (
            self.is_choice
            or isinstance(self.source, Probabilities)
            or (hasattr(self.source, "predict_proba") and not self.by_group)
        )

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns that a policy reads besides the context."""
        return self.source.columns if isinstance(self.source, ActionGroup) else ()

    @property
    def source_column(self) -> str:
        """The column that tells which actions it takes, or how probable each is; that of `Always` is made where the rows are read."""
        if isinstance(self.source, Always):
            return f"counterpoise action {self.source.action!r}"
        return self.source.column if isinstance(self.source, Chosen | Probabilities) else self.column

    @property
    def described(self) -> str:
        """What it is made from, as text that stays the same from day to day."""
        if isinstance(self.source, Chosen):
            return f"the action in {self.source.column}"
        if isinstance(self.source, Always):
            return f"always {self.source.action!r}"
        if isinstance(self.source, Probabilities):
            return f"the lists in {self.source.column}"
        return self.source if isinstance(self.source, str) else "a policy"

    @property
    def column(self) -> str:
        """The column of its probabilities; we make one if the log has none."""
        if isinstance(self.source, str):
            return self.source
        kind = "choice" if self.is_choice else "policy"
        return f"counterpoise {kind} {self.name}"


def targets_of(sources: object, log: Log, arrays: Arrays | None = None) -> tuple[Target, ...]:
    """The targets of a verb, given as one, a list, or a mapping of names to targets.

    >>> from counterpoise import Log
    >>> [target.name for target in targets_of({"new": "pi_new / 2", "greedy": Chosen("item")}, Log({}, action="a"))]
    ['new', 'greedy']
    """
    if sources is None:
        raise OptionError("target is missing: name its column with `target=`, or pass its array.")
    if arrays is not None:
        if is_policy(sources) or isinstance(sources, Chosen | Probabilities | ActionGroup):
            raise OptionError(
                "a policy, a chosen action or a group of actions needs a log with named columns: pass the log first."
            )
        return _of_arrays(sources, log, arrays)
    by_name: dict[str, Target] = {}
    for name, source in _names_and_sources(sources, is_fitting=log.cross_fit):
        if name in by_name:
            raise OptionError(f"two targets are called {name!r}.", do="Name them yourself: `target={'a': …, 'b': …}`.")
        is_group = isinstance(source, ActionGroup)
        if isinstance(source, ActionGroup) and source.groups is None:  # the log has the sums over groups
            source = source.expression(log.propensity)
        by_name[name] = Target(name, source, is_group)
    targets = tuple(by_name.values())
    if not targets:
        raise OptionError("no target: name the column with the target policy's probability of the logged action.")
    log = as_remembered(log, targets)
    if any(not target.is_column for target in targets) and log.action is None:
        raise OptionError("this target needs `action=`, the column with the logged action.")
    policies = {target.name: policy for target in targets if is_policy(policy := _policy_of(target.source))}
    if policies and not log.context:
        raise OptionError("a policy needs `context=`, the columns that it looks at.")
    for name, policy in policies.items() if log.candidates is not None else ():
        if not (hasattr(policy, "candidates_") or is_ranker(policy)):
            raise OptionError(
                f"the policy {name!r} takes no candidates, and so may choose actions that `candidates=` rules out.",
                do="Let its predict_proba(context, candidates) choose among them, and give it an attribute candidates_; "
                "or leave out `candidates=`.",
            )
    return targets


def as_remembered(log: Log, targets: Sequence[Target]) -> Log:
    """The log with the context and the action that policies were learned from, where it names none itself.

    Candidates differ from log to log, so they are asked for. A propensity model needs the context that the logging policy looked at, which
    is another one.
    """
    is_estimated = log.has_estimated_propensities
    policies = {target.name: _policy_of(target.source) for target in targets if target.is_policy}
    if log.is_arrays or is_estimated:
        return log
    parts: dict[str, Any] = {}
    for part in ("context", "action"):
        by_name = {name: kept for name, policy in policies.items() if (kept := getattr(policy, f"{part}_", None))}
        if not by_name or getattr(log, part):
            continue
        (first, kept), *others = by_name.items()
        for name, other in others:
            if other != kept:
                raise OptionError(
                    f"the policies {first!r} and {name!r} were learned with another {part} each: {kept!r} and {other!r}.",
                    do=f"Evaluate one at a time, or pass `{part}=`.",
                )
        parts[part] = kept
    return log.but(**parts) if parts else log


def _of_arrays(sources: object, log: Log, arrays: Arrays) -> tuple[Target, ...]:
    """The targets of a log without columns: arrays, and actions that are always taken."""
    listed = [sources] if isinstance(sources, Always) else sources
    if isinstance(listed, list | tuple) and listed and all(isinstance(source, Always) for source in listed):
        listed = {name_of(source): source for source in listed}
    if not (isinstance(listed, Mapping) and any(isinstance(source, Always) for source in listed.values())):
        return tuple(Target(name, name) for name in column_names("target", listed, arrays))
    log.need("action")
    named = ((str(name), source) for name, source in listed.items())
    return tuple(
        Target(name, source if isinstance(source, Always) else arrays.put(name, source)) for name, source in named
    )


def _policy_of(source: object) -> object:
    """The policy of a target that has one, or else what the target is made from."""
    return source.target if isinstance(source, ActionGroup) else source


def is_policy(target: object) -> TypeGuard[PolicyTarget]:
    """Whether a target is not a column but something that computes one: a callable, a classifier with predict_proba, or a ranker."""
    if isinstance(target, CrossFitted):
        return True
    return not isinstance(target, str | type | Chosen | Always | Probabilities | ActionGroup) and (
        callable(target) or hasattr(target, "predict_proba") or hasattr(target, "list_probabilities")
    )


def is_ranker(policy: object) -> TypeGuard[Ranker]:
    """Whether a policy shows lists, so that a row's probability depends on the other rows of its list."""
    return hasattr(policy, "list_probabilities")


def is_unfitted(target: object) -> bool:
    """Whether a target is an estimator of scikit-learn that was not fitted yet."""
    if (
        "sklearn" not in sys.modules
        or isinstance(target, type)
        or not (hasattr(target, "fit") and hasattr(target, "get_params"))
    ):
        return False
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    try:
        check_is_fitted(target)
    except NotFittedError:
        return not type(target).__module__.startswith("counterpoise.")
    return False


def check_fitting(log: Log, targets: Sequence[Target]) -> None:
    """Check that there is something to cross-fit, and nothing that it does not work with."""
    if not any(isinstance(target.source, CrossFitted) for target in targets):
        raise OptionError(
            "`cross_fit=True` fits targets that are unfitted estimators of scikit-learn, and none of these is one.",
            do="Pass a new one, such as HistGradientBoostingRegressor(), as the target; or leave it out.",
        )
    if len(log.reward) > 1:
        raise OptionError("`cross_fit=` learns from one reward: evaluate one at a time.")
    if log.model is not None:
        raise OptionError("`cross_fit=` does not work with `model=` yet: leave one of them out.")


def _names_and_sources(sources: object, *, is_fitting: bool) -> Iterator[tuple[str, TargetSource]]:
    if isinstance(sources, Mapping):
        named = [(str(name), target) for name, target in sources.items()]
    else:
        named = [(name_of(target), target) for target in (sources if isinstance(sources, list | tuple) else [sources])]
    for name, target in named:
        if is_fitting and is_unfitted(target):
            yield name, CrossFitted(target)
        elif isinstance(target, PathLike) or (isinstance(target, str) and target.endswith(SAVED)):
            # by name: learning stands on evaluation, and only a saved policy needs it
            yield name, import_module("counterpoise.learn").load_policy(target)
        else:
            _check_source(target)
            yield name, target


def _check_source(target: object) -> None:
    if type(target).__module__.startswith("sklearn.") and (is_unfitted(target) or not hasattr(target, "predict_proba")):
        what = "is not fitted" if is_unfitted(target) else "has no predict_proba, so it is not a policy"
        raise OptionError(
            f"{type(target).__name__} {what}.",
            do="Pass a classifier of actions that was fitted on other rows; or an unfitted model of the reward with `cross_fit=True`, "
            "to take the action for which it predicts the most.",
        )
    if not (isinstance(target, str | Chosen | Always | Probabilities | ActionGroup) or is_policy(target)):
        raise OptionError(
            "a target is the name of a column, an SQL expression, Chosen(…), Always(…), Probabilities(…), ActionGroup(…) or a policy; "
            f"found {type(target).__name__}. Without a log, pass arrays."
        )


def name_of(source: object) -> str:
    """The name of a target that nobody named."""
    if isinstance(source, str):
        return source.rsplit("/", 1)[-1].removesuffix(SAVED) if source.endswith(SAVED) else source
    if isinstance(source, Chosen | Probabilities):
        return source.column
    if isinstance(source, Always):
        return str(source.action)
    if isinstance(source, PathLike):
        return name_of(str(source))
    if isinstance(source, ActionGroup):
        return name_of(source.target)
    return str(getattr(source, "__name__", type(source).__name__))
