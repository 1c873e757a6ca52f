"""This file holds the reading of the front door's arguments: names of columns, or the arrays themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from counterpoise.errors import OptionError
from counterpoise.log.request import LOGGING, Request
from counterpoise.moments.log_moments import Contrast


def arrange(
    log: object,
    *,
    reward: Any,
    propensity: Any,
    target: Any,
    against: Any = None,
    segment: Any = None,
    cluster: Any = None,
    key: Any = None,
    model_reward: Any = None,
    model_value: Any = None,
    control: Mapping[str, float] | None = None,
    groups: int = 1,
    drop_bad_rows: bool = False,
    where: str | None = None,
    target_action: Any = None,
    action: str | None = None,
    context: Any = None,
) -> tuple[object, Request]:
    """A log and the request for it; arrays given without a log become one."""
    given = target if target is not None else target_action
    for part, value in (("reward", reward), ("propensity", propensity), ("target", given)):
        if value is None:
            raise OptionError(f"{part} is missing: name its column, or pass its array.")
    arrays: dict[str, Any] | None = {} if log is None else None
    reward, propensity = _one("reward", reward, arrays), _one("propensity", propensity, arrays)
    made = _make_targets(target, target_action, action, arrays)
    targets = _many("target", made.columns, arrays)
    targets += [name for name in made.names if name not in targets]
    values = _values(model_value, targets, arrays)
    if control and arrays is not None:
        raise OptionError("control names columns: pass them in a log, a mapping of arrays will do.")
    if control is not None and not isinstance(control, Mapping):
        raise OptionError(f"control maps columns to their known means, found {type(control).__name__}.")
    contrasts: tuple[Contrast, ...] = tuple((name, "") for name in targets)
    if against is not None:
        other = LOGGING if isinstance(against, str) and against == LOGGING else _one("against", against, arrays)
        if not other:
            raise OptionError("against must name a policy.")
        rivals = [name for name in targets if name != other]
        if not rivals:
            raise OptionError(f"target and against are both {other!r}: name two different policies.")
        if other != LOGGING and other not in targets:
            targets.append(other)
            contrasts += ((other, ""),)
        contrasts += tuple((name, other) for name in rivals)
    request = Request(
        reward=reward,
        propensity=propensity,
        targets=tuple(targets),
        contrasts=contrasts,
        segment=tuple(_many("segment", segment, arrays)),
        cluster=None if cluster is None else _one("cluster", cluster, arrays),
        key=tuple(_many("key", key, arrays)),
        model_reward=None if model_reward is None else _one("model_reward", model_reward, arrays),
        model_value=dict(zip(targets, values, strict=True)) if values else {},
        control=dict(control or {}),
        groups=groups,
        drop_bad_rows=drop_bad_rows,
        where=where,
        target_columns=made.names,
        target_actions=made.actions,
        policies=made.policies,
        action=action if made.actions or made.policies else None,
        context=tuple(_many("context", context, None)) if made.policies else (),
    )
    for part, columns in (("segment", request.segment), ("key", request.key), ("context", request.context)):
        if len(set(columns)) < len(columns):
            raise OptionError(f"{part} names a column twice: {', '.join(map(repr, columns))}.")
    if where is not None and not isinstance(where, str):
        raise OptionError(f"where must be an SQL condition as text, found {type(where).__name__}.")
    if made.policies and not request.context:
        raise OptionError("a policy needs context=[…], the columns it looks at.")
    return (log if arrays is None else arrays), request


@dataclass
class _Targets:
    """The targets as given: columns as they are, and what makes the others."""

    columns: Any = None
    names: dict[str, str] = field(default_factory=dict)  # target → its column, where the two differ
    actions: dict[str, str] = field(default_factory=dict)
    policies: dict[str, Any] = field(default_factory=dict)


def _make_targets(target: Any, target_action: Any, action: str | None, arrays: dict[str, Any] | None) -> _Targets:
    """Sort the targets into columns, named expressions, policies and chosen actions."""
    made = _Targets()
    if arrays is not None and (is_policy(target) or target_action is not None):
        raise OptionError("a policy or target_action needs a log with named columns: pass the log first.")
    if arrays is not None:
        made.columns = target
        return made
    if isinstance(target, Mapping):
        named = {str(name): one for name, one in target.items()}
    elif is_policy(target):
        named = {name_of(target): target}
    elif isinstance(target, list | tuple) and any(map(is_policy, target)):
        named = {}
        for one in target:
            _name_once(named, name_of(one) if is_policy(one) else one, one)
    else:
        named, made.columns = {}, target
    for name, one in named.items():
        if is_policy(one):
            made.names[name] = f"policy {name}"
            made.policies[f"policy {name}"] = one
        else:
            made.names[name] = _one("target", one, None)
    if target_action is not None:
        if isinstance(target_action, Mapping):
            chosen = {str(name): _one("target_action", one, None) for name, one in target_action.items()}
        else:
            chosen = {column: column for column in _many("target_action", target_action, None)}
        given = [*made.names, *([made.columns] if isinstance(made.columns, str) else made.columns or ())]
        for name, column in chosen.items():
            if name in given:
                raise OptionError(f"target and target_action are both called {name!r}: name one of them in a mapping.")
            made.names[name] = f"{column} = {action}"
            made.actions[f"{column} = {action}"] = column
    if (made.actions or made.policies) and not isinstance(action, str):
        raise OptionError("action is missing: name the column with the logged action.")
    return made


def _name_once(named: dict[str, Any], name: str, one: Any) -> None:
    if name in named:
        raise OptionError(f"two targets are called {name!r}: name them yourself, target={{'a': …, 'b': …}}.")
    named[name] = one


def is_policy(target: object) -> bool:
    """Whether a target is no column but something that computes one: a callable, or a classifier with predict_proba."""
    return not isinstance(target, str | type) and (callable(target) or hasattr(target, "predict_proba"))


def name_of(policy: Any) -> str:
    """What to call a policy that was given without a name."""
    return str(getattr(policy, "__name__", type(policy).__name__))


def _one(part: str, value: Any, arrays: dict[str, Any] | None) -> str:
    """The name of one column; an array is put in with the others under the name of its part."""
    if arrays is None:
        if not isinstance(value, str):
            raise OptionError(
                f"{part} must name a column of the log, found {type(value).__name__}. Without a log, pass arrays."
            )
        return value
    if isinstance(value, str):
        raise OptionError(
            f"{part}={value!r} names a column, but there is no log: pass the log first, or the array itself."
        )
    _put(arrays, part, value)
    return part


def _put(arrays: dict[str, Any], name: str, value: Any) -> None:
    if name in arrays:
        raise OptionError(f"two of the arrays are called {name!r}: give the target (or segment, or key) another name.")
    arrays[name] = value


def _values(value: Any, targets: list[str], arrays: dict[str, Any] | None) -> list[str]:
    """The model's value of each target, in the order of the targets; a mapping is by target."""
    if isinstance(value, Mapping):
        if set(value) != set(targets):
            raise OptionError(
                f"model_value needs one entry per target: {', '.join(targets)}; found {', '.join(map(str, value))}."
            )
        ordered = [value[name] for name in targets]
        own_names = [f"model_value of {name}" for name in targets]
        value = ordered if arrays is None else dict(zip(own_names, ordered, strict=True))
    values = _many("model_value", value, arrays)
    if values and len(values) != len(targets):
        raise OptionError(f"model_value needs one column per target ({len(targets)}), found {len(values)}.")
    return values


def _many(part: str, value: Any, arrays: dict[str, Any] | None) -> list[str]:
    """The names of one or several columns, or of one array, a mapping of names to arrays, or a list of arrays."""
    if value is None:
        return []
    if arrays is None:
        if isinstance(value, str):
            return [value]
        if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
            return list(value)
        raise OptionError(f"{part} must be the name of a column or a list of names, found {type(value).__name__}.")
    if isinstance(value, Mapping):
        for name, column in value.items():
            _put(arrays, str(name), column)
        return [str(name) for name in value]
    if (
        isinstance(value, list | tuple)
        and len(value)
        and hasattr(value[0], "__len__")
        and not isinstance(value[0], str)
    ):
        names = [f"{part}_{k}" for k in range(len(value))]
        for name, column in zip(names, value, strict=True):
            _put(arrays, name, column)
        return names
    return [_one(part, value, arrays)]
