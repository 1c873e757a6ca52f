"""This file holds `Request`: which columns of a log play which part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from counterpoise.errors import OptionError
from counterpoise.moments import MODEL, ROW
from counterpoise.moments.log_moments import Contrast

LOGGING = "logging"  # as `against`: the policy that wrote the log
GROUPS = 100


@dataclass(frozen=True)
class Request:
    """What to read from a log, and what to make of it."""

    reward: str
    propensity: str
    targets: tuple[str, ...]
    contrasts: tuple[Contrast, ...]
    segment: tuple[str, ...] = ()
    cluster: str | None = None
    key: tuple[str, ...] = ()
    model_reward: str | None = None
    model_value: Mapping[str, str] = field(default_factory=dict)
    control: Mapping[str, float] = field(default_factory=dict)
    groups: int = 1
    drop_bad_rows: bool = False
    where: str | None = None  # an SQL condition
    target_columns: Mapping[str, str] = field(default_factory=dict)  # where a target's column is not its name
    target_actions: Mapping[str, str] = field(default_factory=dict)  # made column → column with the action chosen
    policies: Mapping[str, Any] = field(default_factory=dict)  # made column → policy
    action: str | None = None
    context: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.targets:
            raise OptionError("no target: name the column with the target policy's probability of the logged action.")
        if len(set(self.targets)) < len(self.targets):
            raise OptionError(f"every target may be named once; found {', '.join(map(repr, self.targets))}.")
        if not (isinstance(self.groups, int) and 1 <= self.groups <= 10_000) or isinstance(self.groups, bool):
            raise OptionError(f"groups must be a whole number from 2 to 10,000, found {self.groups!r}.")
        if (self.model_reward is None) != (not self.model_value):
            raise OptionError(
                "model_reward and model_value go together: the model's reward of the logged action, and of the target."
            )
        if self.model_value and set(self.model_value) != set(self.targets):
            raise OptionError(
                f"model_value needs one column per target: {', '.join(self.targets)}; found {', '.join(self.model_value)}."
            )
        for name, mean in self.control.items():
            if isinstance(mean, bool) or not isinstance(mean, Real) or not abs(float(mean)) <= 1e50:
                raise OptionError(f"control maps a column to its known mean; that of {name!r} is {mean!r}.")
        reserved = set(self.control) & set(ROW + MODEL)
        if reserved:
            raise OptionError(f"a control may not be called {', '.join(sorted(reserved))}: rename the column.")

    @property
    def numbers(self) -> dict[str, tuple[str, str]]:
        """Internal name → (part, column) of every column that must hold numbers."""
        parts = {"r": ("reward", self.reward), "p": ("propensity", self.propensity)}
        columns = [self.target_columns.get(name, name) for name in self.targets]
        parts |= {f"t{k}": ("target", column) for k, column in enumerate(columns)}
        if self.model_reward is not None:
            parts["q"] = ("model_reward", self.model_reward)
            parts |= {f"v{k}": ("model_value", self.model_value[target]) for k, target in enumerate(self.targets)}
        return parts | {f"x{k}": ("control", column) for k, column in enumerate(self.control)}

    @property
    def others(self) -> Iterator[tuple[str, str]]:
        """(part, column) of the columns that may hold anything."""
        for column in self.segment:
            yield "segment", column
        if self.cluster is not None:
            yield "cluster", self.cluster
        for column in self.key:
            yield "key", column
        if self.action is not None:
            yield "action", self.action
        for column in self.target_actions.values():
            yield "target_action", column
        for column in self.context:
            yield "context", column

    @property
    def columns(self) -> list[tuple[str, str]]:
        """(part, column) of every column to read."""
        made = {("target", name) for name in (*self.target_actions, *self.policies)}
        return [*(entry for entry in self.numbers.values() if entry not in made), *self.others]

    @property
    def moment_columns(self) -> tuple[str, ...]:
        """Columns of the moments of a target's value."""
        return ROW + (MODEL if self.model_reward is not None else ()) + tuple(self.control)
