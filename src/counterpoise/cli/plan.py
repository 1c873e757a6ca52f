"""`counterpoise plan`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

import counterpoise as cp
from counterpoise.cli.options import MODELS, QUESTION, takes
from counterpoise.cli.printing import console, number, print_json, say, say_verdict, show_table
from counterpoise.cli.running import ends_at_once
from counterpoise.cli.typed import Typed

if TYPE_CHECKING:
    from rich.console import Console

    from counterpoise.evaluation.plan import Needs, Plan


@ends_at_once
@takes(QUESTION, MODELS, "interval", "tuned_for")
def plan(
    typed: Typed,
    *,
    difference: Annotated[
        float, typer.Option(metavar="D", help="The difference that matters, in units of the reward.")
    ],
    power: Annotated[float, typer.Option(metavar="SHARE", help="Chance to see a difference that is there.")] = 0.8,
    actions: Annotated[
        int | None, typer.Option(metavar="K", help="Number of actions, to see what exploring would save.")
    ] = None,
) -> None:
    """How many rows it takes to know a target to within ± D, or to see a difference of D; and what exploring would save.

    \b
    Examples:
      counterpoise plan log.parquet --target pi_new --difference 0.01
      counterpoise plan log.parquet --target pi_new --difference 0.01 --actions 10 --cluster user_id
    """
    question = typed.question()
    answer = cp.plan(typed.data, **question, difference=difference, power=power, actions=actions)
    if typed["json"]:
        print_json(answer)
    else:
        _show(console(), answer)


def _show(out: Console, plan: Plan) -> None:
    name, size, sure = plan.target, f"{plan.difference:g}", f"{100 * plan.level:.4g} %"
    say(out, f"The log has {plan.n:,} rows.")
    say(out)
    rows = [
        [what, *map(_count, (needed, low, high, max(needed - plan.n, 0.0)))]
        for what, needed, (low, high) in _questions(name, size, sure, plan.power, plan.needs)
    ]
    show_table(out, ["to know", "rows ", "at least ", "at most ", "more "], rows)
    say(out)
    say(
        out,
        f"At least and at most are what this log knows of these numbers ({sure}): their variances are estimates, too.",
    )
    say(out, f"The intervals are those of {plan.interval}. {_verdict_later(plan)}")
    if plan.exploration:
        say(out)
        say(out, "The same three, had the logging policy mixed in a share of uniform choice:")
        rows = []
        for mixture in plan.exploration:
            needs = (mixture.needs.value_rows, mixture.needs.difference_rows, mixture.needs.power_rows)
            rows.append([f"{mixture.share:.0%}", *map(_count, needs), number(mixture.cost)])
        show_table(out, ["uniform ", "value ", "difference ", "power ", "cost per row "], rows)
    say(out)
    say_verdict(out, plan.target, plan.verdict)


def _verdict_later(plan: Plan) -> str:
    """What the verdict will be on the rows that were asked for."""
    if math.isinf(plan.ok_rows):
        return "More rows alone will not make the verdict ok: see below."
    needs = plan.needs
    if plan.ok_rows <= min(needs.value_rows, needs.difference_rows, needs.power_rows):
        return "On that many rows, expect the verdict ok."
    return f"Expect the verdict to be ok from about {plan.ok_rows:,.0f} rows on, and caution on fewer."


def _questions(
    name: str, size: str, sure: str, power: float, needs: Needs
) -> list[tuple[str, float, tuple[float, float]]]:
    return [
        (f"the value of {name} to ± {size} ({sure})", needs.value_rows, needs.value_range),
        (f"its difference from the logging policy to ± {size} ({sure})", needs.difference_rows, needs.difference_range),
        (f"a difference of {size}, with {100 * power:.4g} % power", needs.power_rows, needs.power_range),
    ]


def _count(rows: float) -> str:
    return f"{rows:,.0f}" if math.isfinite(rows) else "–"
