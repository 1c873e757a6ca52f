"""The policy to train: which actions it has, and how a new one is made once the log has told how wide its contexts are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, signature
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from counterpoise.errors import Argument, Blank, OptionError
from counterpoise.learn.logs.actions import Ids
from counterpoise.learn.logs.inspection import Inspection
from counterpoise.learn.logs.items_frame import item_features
from counterpoise.learn.logs.sources import Source
from counterpoise.learn.policies.kinds import LinearSoftmax, TwoTower
from counterpoise.learn.policies.policy import Policy
from counterpoise.log.log import Log

FOR_ITEMS: list[str | Argument] = [
    "Pass ",
    Argument("policy", Blank("TwoTower")),
    " or a function that takes item_features, or leave out ",
    Argument("items"),
    ".",
]


@dataclass(frozen=True)
class Known:
    """What is known of the actions before the log is read: those of a policy that is passed, or those of the items."""

    policy: Policy | None
    classes: NDArray[Any] | None = None
    features: Tensor | None = None

    @property
    def ids(self) -> Ids | None:
        """The actions as whole numbers, if they are some."""
        return self.classes if self.classes is not None and self.classes.dtype.kind in "iu" else None

    def count(self, n_actions: int | None, source: Source) -> int | None:
        """How many actions there are, if that is settled before the rows are looked at."""
        names = None if source.reading is None else source.reading.names
        width = None if source.reading is None else source.reading.width
        given = self.policy.n_actions if self.policy is not None else n_actions
        known = [len(some) for some in (names, self.classes) if some is not None] + [
            size for size in (width, given) if size is not None
        ]
        if len(set(known)) > 1:
            what = "names" if names is not None else "items" if self.classes is not None else "columns of candidates"
            whose = (
                "the policy has" if self.policy is not None else "n_actions is" if given is not None else "there are"
            )
            raise OptionError(
                f"{whose} {known[-1]:,}{' actions' if self.policy is not None else ''}, but {known[0]:,} {what} of actions were found.",
                do=["Leave out ", Argument("n_actions"), "; for a policy of your own, pass a function that makes it."],
            )
        return known[0] if known else None


def known_actions(policy: Policy | None, log: Log) -> Known:
    """What a policy that is passed, or the items of a log, say about the actions."""
    if log.items is None:
        return Known(policy, None if policy is None else policy.actions_)
    if policy is not None:
        raise OptionError(
            [Argument("items"), " gives features to the policy that the learner makes, and yours is made already."],
            do=FOR_ITEMS,
        )
    items = item_features(log.items, action=str(log.action))
    return Known(None, items.classes, items.features)


def new_policy(
    make: Callable[..., Policy] | None, source: Source, found: Inspection, features: Tensor | None
) -> Policy:
    """A policy for the contexts and actions of a log: by the function that was given, or the default."""
    if make is None and features is None:
        return _default_policy(found)
    build: Callable[..., Policy] = partial(TwoTower, standardize=True) if make is None else make
    if features is not None and not _takes_items(build):
        who = [build.__name__] if isinstance(build, type) else ["the function passed as ", Argument("policy")]
        raise OptionError(
            [*who, " takes no item_features, so ", Argument("items"), " is of no use to it."],
            do=FOR_ITEMS,
        )
    made = build(source.width, found.n_actions, **({} if features is None else {"item_features": features}))
    if not isinstance(made, Policy) or made.n_actions != found.n_actions:
        what = f"one with {made.n_actions:,} actions" if isinstance(made, Policy) else type(made).__name__
        raise OptionError(
            [
                "the function passed as ",
                Argument("policy"),
                f" must make a Policy with {found.n_actions:,} actions; it made {what}.",
            ],
            do="It is called with the number of inputs and the number of actions.",
        )
    made.check_width(source.width)
    return made


def _takes_items(build: Callable[..., Policy]) -> bool:
    """Whether a class or a function takes item_features; one whose signature nobody knows may."""
    try:
        parameters = signature(build).parameters
    except (TypeError, ValueError):
        return True
    return "item_features" in parameters or any(one.kind is Parameter.VAR_KEYWORD for one in parameters.values())


def _default_policy(found: Inspection) -> Policy:
    """A linear softmax that standardizes its contexts and starts as the uniform policy."""
    policy = LinearSoftmax(len(found.columns.mean), found.n_actions, bias=True, standardize=True)
    for parameter in policy.scores.parameters():
        nn.init.zeros_(parameter)
    return policy


def describe_columns(policy: Policy, source: Source) -> None:
    """Tell a policy how the columns of its log are read, which it keeps."""
    reading = source.reading
    policy.encoding_ = None if reading is None else reading.encoding
    policy.candidates_ = source.names.candidates
    if reading is not None and reading.names is not None:
        policy.actions_ = np.asarray(reading.names, dtype=object)
