"""What the doctor looks for: propensities and rewards that seem wrong, and what to do about them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from counterpoise.errors import Sentence
from counterpoise.log.lists import CONDITIONAL, MARGINAL
from counterpoise.log.rules import Problem

Severity = Literal["fix", "look", "note"]
ROUNDING = 0.02  # the relative error of the smallest propensity from which rounding matters
FEW = 10  # so few distinct propensities may well be natural, such as 0.1, 0.2, …
SURE = 3.3  # standard errors: p = 0.001


@dataclass(frozen=True)
class Finding:
    """Something the owner of a log should know: `fix` it, `look` into it, or take `note` of it."""

    severity: Severity
    about: str
    message: str


@dataclass(frozen=True)
class Propensities:
    """What the good propensities look like; `impossible` ones lie outside (0, 1] or are missing.

    `expected_actions` is how many distinct actions we should see, given these propensities, in the m rows in which actions are counted:
    Σ_a 1 − (1 − π₀(a))ᵐ, estimated by the mean of (1 − (1 − p)ᵐ)/p. Its error includes the randomness of the count itself.
    """

    impossible: int
    lowest: float = math.nan
    median: float = math.nan
    highest: float = math.nan
    distinct: int = 0
    repeated_share: float = 0.0
    commonest: float = math.nan
    commonest_share: float = 0.0
    decimals: int | None = None
    mean_inverse: float = math.nan
    mean_inverse_stderr: float = math.nan
    expected_actions: float = math.nan
    expected_actions_stderr: float = math.nan


@dataclass(frozen=True)
class Rewards:
    """What the rewards look like; `impossible` ones are missing or not finite."""

    impossible: int
    lowest: float
    mean: float
    highest: float
    distinct: int
    zero_share: float


def about_propensities(column: str | None, propensities: Propensities | None, actions: int | None) -> list[Finding]:
    """What is wrong with the propensities, or might be."""
    if propensities is None or column is None:
        return []
    findings = []
    if propensities.lowest == propensities.highest == 1.0:
        what = (
            f"{column!r} is always 1, and a policy that never varies says nothing about any other. If yours does explore, log its true "
            "probabilities; if not, let it explore first."
        )
        findings.append(Finding("fix", column, what))
    if propensities.decimals is not None and propensities.distinct > FEW:
        off = 0.5 * 10.0**-propensities.decimals / propensities.lowest
        if off > ROUNDING:
            what = (
                f"{column!r} is rounded to {propensities.decimals} decimals, and its smallest value is {propensities.lowest:g}, so the "
                f"largest weights may be off by {off:.0%}. Log all digits."
            )
            findings.append(Finding("look", column, what))
    if propensities.commonest_share > 0.5 and propensities.distinct > FEW:
        what = (
            f"{propensities.commonest_share:.0%} of {column!r} is {propensities.commonest:g}, and the rest varies. Is that a default for "
            "rows whose true value was unknown?"
        )
        findings.append(Finding("look", column, what))
    # all actions, seen or not: there cannot be fewer than were seen, but there can be more if rare ones have not come up yet
    if actions and actions - propensities.mean_inverse > max(SURE * propensities.mean_inverse_stderr, 0.02 * actions):
        what = (
            f"the mean of 1/{column} is {propensities.mean_inverse:.4g} and should be the number of actions, of which the log has "
            f"{actions:,}. Either the propensities are too large, or not all rows could choose from the same actions."
        )
        findings.append(Finding("look", column, what))
    # if an action's propensity differs between rows, even more actions are to be expected, by Jensen's inequality
    expected, error = propensities.expected_actions, propensities.expected_actions_stderr
    if actions and expected - actions > max(SURE * error, 0.02 * actions):
        what = (
            f"the mean of 1/{column} is {propensities.mean_inverse:.4g} and should be the number of actions. Some may not have come up "
            f"yet, but about {expected:,.0f} should have, and the log has {actions:,}. Either the propensities are too small, or they are "
            "for finer choices than the action column distinguishes."
        )
        findings.append(Finding("look", column, what))
    return findings


def about_rewards(column: str | None, rewards: Rewards | None) -> list[Finding]:
    """What is odd about the rewards."""
    if rewards is None or column is None or rewards.distinct != 1:
        return []
    what = f"{column!r} is {rewards.lowest:g} in every row, so the log cannot tell policies apart."
    return [Finding("look", column, what)]


def about_bad_rows(problem: Problem) -> Finding:
    """Rows that break a rule, in the words in which `evaluate` refuses them, and what usually is behind it."""
    rule = problem.rule
    return Finding(
        "fix", rule.column, Sentence([problem.said, _BEHIND.get(rule.part, "") if not rule.is_of_lists else ""])
    )


_BEHIND = {
    "propensity": " The usual causes are percentages, logarithms, 0 for “unknown”, and the probability of some other action.",
    "reward": " If no reward means 0, write 0; if a reward is not known yet, leave its row out until it is.",
}


def about_lists(position: str, of: str | None, lists: int) -> Finding:
    """What to do about rows that are the slots of lists."""
    right = (
        "Rows can stand on their own only if their propensity is the item's chance of that position, whatever is above it. If it is the "
        "chance given what is above, the answer will be wrong and no check will show it. Evaluate them as lists: name both columns as "
        "slate and position, and say with propensity_of which of the two it is. See “Rankings” in the documentation."
    )
    if of is None:
        what = f"{position!r} looks like a position in a list, but no column says which rows belong to the same list. {right}"
        return Finding("note", position, what)
    what = f"{position!r} numbers the rows of each {of!r}, so they look like the slots of {lists:,} lists. {right}"
    return Finding("look", position, what)


def about_positions(position: str, of: str, missing: int, repeated: int) -> list[Finding]:
    """Lists whose positions have gaps, or are there twice."""
    findings = []
    for count, what in ((missing, "lack a position above their last"), (repeated, "have a position more than once")):
        if count:
            said = f"{count:,} of the lists by {of!r} {what}, by {position!r}: their rows cannot be put together. Fix the logger."
            findings.append(Finding("fix", position, said))
    return findings


def meaning_of(fall: float, error: float, steps: int) -> str | None:
    """What the propensities of lists are the probabilities of, where the mean of 1/p tells.

    It is the number of items that could be at a position. Where an item is shown once, that number is one less at every position below,
    given what is above; and the same at all, whatever is above.

    >>> meaning_of(1.9, 0.2, 2), meaning_of(0.1, 0.2, 2), meaning_of(0.1, 2.0, 2)
    ('item_given_above', 'item_at_position', None)
    """
    is_given, is_at = abs(fall - steps) <= SURE * error, abs(fall) <= SURE * error
    if is_given == is_at or not error > 0:
        return None
    return CONDITIONAL if is_given else MARGINAL


def about_meaning(propensity: str, fall: float, error: float, steps: int) -> Finding | None:
    """What the propensities of lists seem to mean."""
    meaning = meaning_of(fall, error, steps)
    if meaning is None:
        return None
    whose = (
        "of the item given those above it"
        if meaning == CONDITIONAL
        else "of the item at its position, whatever is above"
    )
    what = (
        f"the mean of 1/{propensity} counts the items to choose from. From the first position to {steps} below, it falls by {fall:.2g} ± "
        f"{error:.1g}, as it does where propensities are those {whose} and no item is shown twice: propensity_of is {meaning}."
    )
    return Finding("note", propensity, what)
