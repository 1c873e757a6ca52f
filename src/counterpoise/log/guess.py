"""Guesses from their names which columns of a log are the reward, the propensity, the targets and the ids of whoever came."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from counterpoise.errors import Argument, Blank, ColumnError

USUAL = {
    "reward": ("reward", "click", "clicked", "r"),
    "propensity": ("propensity", "propensity_score", "pscore", "p", "action_prob"),
    "target": ("target", "pi", "pi_new", "target_prob", "evaluation_prob", "new"),
    "action": ("action", "a", "arm", "item_id", "action_id"),
}
_TARGETS = re.compile(r"(pi|target)(_(?!action)\w+)?", re.IGNORECASE)  # pi_new, pi_old, target_b; not target_action
_ID = r"(_?(id|key|uuid|guid|hash))"
_WHO = (
    "user|visitor|customer|client|session|device|member|household|account|cookie|person|people|patient|player|subscriber|guest|shopper|"
    "buyer|driver|rider|student|viewer|reader|browser|consumer|panelist|subject|participant|employee|passenger|traveler|tenant|owner"
)
_UNIT = re.compile(rf"({_WHO}|uid|(.*_)?({_WHO}){_ID}|(anon|anonymous|visit|trip|unit|cluster){_ID})")
# what is chosen, or where and when it is: rows of the same one are alike, and yet drawn one by one
_THING = re.compile(
    r"(.*_)?(action|arm|item|product|article|ad|ads|creative|banner|variant|treatment|campaign|offer|content|movie|film|song|track|video|doc|"
    r"document|sku|listing|hotel|poi|policy|model|logger|experiment|test|bucket|group|segment|category|brand|store|shop|region|country|city|"
    r"state|zip|zone|market|location|place|site|publisher|channel|hour|day|week|month|year|date|time|slot|position|rank|type|kind|class|"
    r"topic|genre|language|template|version|choice|option|candidate|reward|label|row|index|event|impression|request|decision|log|record|"
    r"click|order|query|search|page|list|slate|carousel|feed)s?" + _ID
)
_ANY_ID = re.compile(r".+_(id|uuid|guid)")


@dataclass(frozen=True)
class Parts:
    """Which columns play which part, and which of those were guessed."""

    reward: str
    propensity: str
    target: tuple[str, ...]
    guessed: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return ", ".join(f"{part} {column!r}" for part, column in self.guessed)


def guess(
    columns: Sequence[str], *, reward: str | None = None, propensity: str | None = None, target: Sequence[str] = ()
) -> Parts:
    """What you give stays as it is; the rest is looked up among the usual names, in upper or lower case.

    Every column called pi, target, pi_… or target_… is a target.

    >>> guess(["Click", "pscore", "pi_new", "pi_old", "country"])
    Parts(reward='Click', propensity='pscore', target=('pi_new', 'pi_old'),
          guessed=(('reward', 'Click'), ('propensity', 'pscore'), ('target', 'pi_new'), ('target', 'pi_old')))
    """
    guessed: list[tuple[str, str]] = []
    if reward is None:
        reward = usual("reward", columns) or _unknown("reward", columns)
        guessed.append(("reward", reward))
    if propensity is None:
        propensity = usual("propensity", columns) or _unknown("propensity", columns)
        guessed.append(("propensity", propensity))
    targets = tuple(target)
    if not targets:
        targets = targets_among(columns, (reward, propensity)) or (_unknown("target", columns),)
        guessed += [("target", name) for name in targets]
    return Parts(reward, propensity, targets, tuple(guessed))


def usual(part: str, columns: Sequence[str]) -> str | None:
    """The column with the first of the usual names of a part."""
    for name in USUAL[part]:
        for column in columns:
            if column.lower() == name:
                return column
    return None


def targets_among(columns: Sequence[str], taken: Sequence[str | None] = ()) -> tuple[str, ...]:
    """Every column whose name says that it is a target's probability."""
    free = [column for column in columns if column not in taken]
    named = tuple(column for column in free if _TARGETS.fullmatch(column))
    usual_name = usual("target", free)
    return named or ((usual_name,) if usual_name else ())


def ids_among(columns: Collection[str], taken: Collection[str | None] = ()) -> dict[str, bool]:
    """The columns whose names say that they tell who or what came, and whether that is sure: user_id is, and panel_id may be.

    >>> ids_among(["click", "user_id", "sessionId", "item_id", "panel_id", "p"])
    {'user_id': True, 'sessionId': True, 'panel_id': False}
    """
    return {name: sure for name in columns if name not in taken and (sure := _is_id(name)) is not None}


@lru_cache(maxsize=10_000)  # of names, which are the same from call to call
def _is_id(name: str) -> bool | None:
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    if _UNIT.fullmatch(plain):
        return True
    return False if _ANY_ID.fullmatch(plain) and not _THING.fullmatch(plain) else None


def _unknown(part: str, columns: Sequence[str]) -> str:
    shown = ", ".join(map(repr, columns[:20])) + (f" and {len(columns) - 20} more" if len(columns) > 20 else "")
    raise ColumnError(
        f"which column is the {part}? None has a usual name ({', '.join(USUAL[part])}); the log has {shown or 'no columns'}.",
        do=["Pass ", Argument(part, Blank("COLUMN")), "."],
    )
