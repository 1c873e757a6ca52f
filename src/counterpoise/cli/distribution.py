"""`counterpoise distribution`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

import counterpoise as cp
from counterpoise.cli.options import QUESTION, takes
from counterpoise.cli.printing import console, number, print_json, say, say_verdict, show_table
from counterpoise.cli.running import ends_at_once
from counterpoise.cli.typed import Typed
from counterpoise.evaluation.distribution import QUANTILES, WORST, Distribution, Statistic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console


@ends_at_once
@takes(QUESTION, "interval", "reward_bounds")
def distribution(
    typed: Typed,
    *,
    quantile: Annotated[
        list[float] | None,
        typer.Option(
            metavar="SHARE", help="The reward that this share does not exceed; may be repeated (0.1 … 0.9 by default)."
        ),
    ] = None,
    cvar: Annotated[
        list[float] | None,
        typer.Option(metavar="SHARE", help="The mean of this share of the rewards, the lowest; may be repeated."),
    ] = None,
    threshold: Annotated[
        list[float] | None,
        typer.Option(metavar="REWARD", help="Where to look at the distribution; may be repeated; by default, chosen."),
    ] = None,
) -> None:
    """How the reward would be distributed under target policies: its quantiles, and the mean of its lowest part (CVaR).

    The policy that wrote the log is listed beside them, as "logging".

    \b
    Examples:
      counterpoise distribution log.parquet --target pi_new
      counterpoise distribution log.parquet --reward revenue --target pi_new --quantile 0.5 --quantile 0.9 --cvar 0.1 --json
      counterpoise distribution log.parquet --reward "-latency" --target pi_new --cvar 0.01
    """
    answer = cp.distribution(typed.data, **typed.question(), thresholds=threshold or None)
    chosen = (quantile or (), cvar or ()) if quantile or cvar else (QUANTILES, WORST)
    statistics = answer.statistics(*chosen)
    if typed["json"]:
        print_json(_document(answer, statistics))
    else:
        _show(console(), answer, statistics)


def _document(distribution: Distribution, statistics: Sequence[Statistic]) -> dict[str, Any]:
    return {
        "n": distribution.n,
        "level": distribution.level,
        "thresholds": len(distribution.thresholds),
        "statistics": [
            {
                "target": statistic.target,
                "statistic": statistic.name,
                "q": statistic.q,
                "value": statistic.value,
                "stderr": statistic.stderr,
                "lower": statistic.interval.lower,
                "upper": statistic.interval.upper,
                "verdict": statistic.verdict.verdict,
                "reasons": statistic.verdict.reasons,
                "note": statistic.note,
            }
            for statistic in statistics
        ],
        "dropped_rows": distribution.dropped_rows,
    }


def _show(out: Console, distribution: Distribution, statistics: Sequence[Statistic]) -> None:
    rows = [
        [statistic.target, statistic.name, f"{statistic.q:g}"]
        + [number(x) for x in (statistic.value, *statistic.interval)]
        + [statistic.verdict.verdict]
        for statistic in statistics
    ]
    show_table(out, ["policy", "", "q ", "value ", "lower ", "upper ", "verdict"], rows)
    say(out)
    method = distribution.options.method.name
    say(out, f"{distribution.n:,} rows, {100 * distribution.level:.4g} % intervals ({method}).")
    for statistic in statistics:
        where = f"{statistic.target}, {statistic.name} {statistic.q:g}"
        if statistic.verdict.verdict != "ok":
            say_verdict(out, where, statistic.verdict)
        if statistic.note:
            say(out, f"{where}: {statistic.note}")
