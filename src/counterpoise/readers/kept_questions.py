"""The question that a state answers, as it is kept: what must be the same every day, policies included."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from typing import Any

import narwhals as nw

from counterpoise.errors import Argument, Blank, MomentsError, OptionError
from counterpoise.log.action_groups import ActionGroup
from counterpoise.log.identity import identity
from counterpoise.log.question import Question
from counterpoise.moments.moments import CONTEXT
from counterpoise.moments.state import State
from counterpoise.moments.weighed import Weighed
from counterpoise.readers.policies import item_ids


def check_same(path: str | PathLike[str], known: State, asked: Mapping[str, Any]) -> None:
    """Refuse a state that answers another question, or is about other policies."""
    if known.question.get("smoothings", []) != asked.get("smoothings", []):
        has = "smoothings" in known.question
        raise MomentsError(
            f"the state {str(path)!r} {'has' if has else 'lacks'} the sums of the log_smoothing interval, and this call "
            f"{'does not make' if has else 'needs'} them: their moments do not add up.",
            do=[
                f"{'Pass' if has else 'Leave out'} ",
                Argument("interval", "log_smoothing"),
                ", or name another state.",
            ],
        )
    unsaid: dict[str, Any] = {"baseline": []}  # in a question that has none
    for part in {**unsaid, **known.question, **asked}:
        mine: Any = (unsaid | dict(asked)).get(part)
        found: Any = (unsaid | known.question).get(part)
        if part == "version" and found != mine:
            name = next(name for name in {**found, **mine} if found.get(name) != mine.get(name))
            raise MomentsError(
                f"the state {str(path)!r} was made with another {name!r}: its version there is {found.get(name)!r}, here it is "
                f"{mine.get(name)!r}. Values of two policies do not add up: name another state.",
                do=[
                    "If the policy is the same, and only a library or Python changed, say so from the start with ",
                    Argument("version", {name: Blank("'…'")}),
                    ".",
                ],
            )
        if found != mine:
            raise MomentsError(
                [
                    f"the state {str(path)!r} was made with ",
                    Argument(part, found),
                    ", and this call has ",
                    Argument(part, mine),
                    ": their moments do not add up.",
                ],
                do="Ask the same question, or name another state.",
            )


def question_kept(question: Question, version: str | Mapping[str, str] | None) -> dict[str, Any]:
    """What must be the same every day, as JSON keeps it."""
    rewards = list(question.log.reward)
    asked = {
        "reward": rewards if len(rewards) > 1 else rewards[0],
        "propensity": question.propensity_named,
        "target": list(question.target_names),
        "target columns": {one.name: one.described for one in question.targets if one.described != one.name},
        "weight": Weighed.of(question.weight).how,
        "contrasts": [list(contrast) for contrast in question.contrasts],
        "segment": list(question.segment),
        "cluster": question.log.cluster,
        "groups": question.groups,
        "key": list(question.log.key),
        "model_reward": question.log.model_reward,
        "model_value": dict(question.model_value),
        "control": dict(question.control),
        "where": question.log.where,
        "action": question.log.action if question.needs_python or question.choices else None,
        "context": list(question.log.context) if question.needs_python else [],
        "drop_bad_rows": question.log.drop_bad_rows,
        "version": _versions(question, version),
    } | ({"smoothings": list(question.smoothings)} if question.smoothings else {})
    if question.lists is not None:
        log = question.log
        asked |= {
            "slate": log.slate,
            "position": log.position,
            "propensity_of": log.propensity_of,
            "discount": log.discount,
        }
    if question.log.candidates is not None and question.needs_python:
        asked["candidates"] = question.log.candidates
    if question.log.items is not None:
        asked["items"] = _items_kept(question)
    if question.features:
        asked["baseline"] = [one.name.removeprefix(CONTEXT) for one in question.features]
    if question.propensity_model is not None:
        asked["propensity_model"] = question.propensity_model.described
    if question.model is not None:
        asked["model"] = question.model.described
    return dict(json.loads(json.dumps(asked)))


def _versions(question: Question, version: str | Mapping[str, str] | None) -> dict[str, str]:
    """The version of every target that has one: as given, or from a policy's code and parameters."""
    given = dict.fromkeys(question.target_names, version) if isinstance(version, str) else version or {}
    if not isinstance(given, Mapping) or not all(isinstance(one, str) and one for one in given.values()):
        raise OptionError([Argument("version", version), " must be a text such as '2', or map targets to texts."])
    for name in given:
        if name not in question.target_names:
            raise OptionError(f"version names {name!r}; the targets are {', '.join(map(repr, question.target_names))}.")
    found = {str(name): str(one) for name, one in given.items()}
    for target in question.policies:
        name = target.name
        if name not in found and target not in question.tables:
            told = _identity_of(target.source)
            if told is None:
                raise OptionError(
                    f"the policy {name!r} has something in it that cannot be looked at (a connection or a lock, say), so that a state "
                    f"could not tell it from another policy of that name.",
                    do=["Pass ", Argument("version", {name: "1"}), ", and change it with the policy."],
                )
            found[name] = told
    weight = question.weight
    if not type(weight).__module__.startswith(
        "counterpoise."
    ):  # one of the user's own, whose name says nothing of its formula
        found[f"{type(weight).__name__} (weight)"] = identity(weight) or "unknown"
    return dict(sorted(found.items()))


def _identity_of(policy: Any) -> str | None:
    """The identity of a policy; the groups of an `ActionGroup` are in the order of its lists, which a mapping's own identity leaves out."""
    if isinstance(policy, ActionGroup) and isinstance(policy.groups, Mapping):
        return identity((policy.target, policy.propensity, list(policy.groups.items())))
    return identity(policy)


def _items_kept(question: Question) -> str:
    """What of the items must be the same every day.

    That is which of them the k-th probability of a list belongs to, and which columns the model knows of them. What those hold may change,
    as prices do: a model is fitted anew on every log, and an estimate is as right with any.
    """
    frame = nw.from_native(question.log.items).lazy().collect("polars").to_native()
    ids = item_ids(frame, str(question.log.action))
    order = f", {len(ids):,} in the order {identity(ids.to_list())}" if question.tables else ""
    return f"the columns {', '.join(map(repr, frame.columns))}{order}"
