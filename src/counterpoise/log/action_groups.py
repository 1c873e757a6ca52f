"""`ActionGroup`: a target whose choice is looked at by groups of actions only, such as the category of an item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from counterpoise.errors import Argument, OptionError


@dataclass(frozen=True)
class ActionGroup:
    r"""A target that chooses among groups of actions, and within a group as the logging policy does: marginalized IPS.

    .. math:: w = \frac{\pi(g \mid x)}{\pi_0(g \mid x)}, \qquad g = g(a), \qquad \pi(g \mid x) = \sum_{a: g(a) = g} \pi(a \mid x)

    There are fewer groups than actions, so that weights are smaller and estimates less noisy. Its value is that of the target if all
    actions of a group earn the same (in the same context). No log can prove that; but the value is, without bias and in any case, that
    of a policy which takes a group as the target does, and then an action of the group as the logging policy does. So compare the two:
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

    target: Any
    propensity: str
    groups: Mapping[Any, Any] | Sequence[Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.propensity, str):
            raise OptionError(
                f"ActionGroup names the column of the logging policy's probability of groups (or of all actions); found "
                f"{type(self.propensity).__name__}."
            )
        if self.groups is None and not isinstance(self.target, str):
            raise OptionError(
                "ActionGroup names the column of the target's probability of the logged action's group.",
                do=["For a policy, say which group every action belongs to, with ", Argument("groups"), "."],
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
        """The list columns it reads; none where the log has the probabilities of groups themselves."""
        if self.groups is None:
            return ()
        return (self.target, self.propensity) if isinstance(self.target, str) else (self.propensity,)

    def expression(self, propensity: str | None) -> str:
        """The probability of the logged action, if groups are taken as the target does, and actions in them as the logging policy does.

        >>> ActionGroup("new_group", "p_group").expression("p")
        '(new_group) * (p) / (p_group)'
        """
        if propensity is None:
            raise OptionError(
                ["ActionGroup also needs ", Argument("propensity"), ", the logging policy's probability of the action."]
            )
        return f"({self.target}) * ({propensity}) / ({self.propensity})"
