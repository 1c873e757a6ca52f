"""`--check-coverage`: how often intervals like these cover, for people and for machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from counterpoise.evaluation.coverage import CoverageCheck
    from counterpoise.evaluation.result import Result


def checks_of(result: Result, runs: int, *, wanted: bool) -> dict[str | None, CoverageCheck]:
    """The check of every reward, by its name; none where nobody wants them."""
    return {name: answer.check_coverage(runs) for name, answer in result.by_reward.items()} if wanted else {}


def say_coverage(out: Console, check: CoverageCheck | None) -> None:
    """A line for every target."""
    from counterpoise.cli.printing import say

    if check is not None:
        say(out)
        for covered in check.values():
            say(out, str(covered))
