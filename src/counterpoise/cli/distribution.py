"""`counterpoise distribution`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterpoise.cli import options
from counterpoise.cli.running import ends_at_once
from counterpoise.cli.targets import typed_targets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from counterpoise.evaluation.risk import Distribution, Statistic


@ends_at_once
def distribution(
    log: options.Log,
    reward: options.Reward = None,
    propensity: options.Propensity = None,
    target: options.Target = None,
    target_action: options.TargetAction = None,
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
    action: options.Action = None,
    context: options.Context = None,
    candidates: options.Candidates = None,
    cluster: options.Cluster = None,
    where: options.Where = None,
    interval: options.Method = None,
    level: options.Level = 0.95,
    reward_bounds: options.RewardBounds = None,
    drop_bad_rows: options.DropBadRows = False,
    json: options.Json = False,
    table: options.TableName = None,
    query: options.Query = None,
    external_access: options.ExternalAccess = False,
) -> None:
    """How the reward would be distributed under target policies: its quantiles, and the mean of its lowest part (CVaR).

    The policy that wrote the log is listed beside them, as "logging".

    \b
    Examples:
      counterpoise distribution log.parquet --target pi_new
      counterpoise distribution log.parquet --reward revenue --target pi_new --quantile 0.5 --quantile 0.9 --cvar 0.1 --json
      counterpoise distribution log.parquet --reward "-latency" --target pi_new --cvar 0.01
    """
    import counterpoise as cp
    from counterpoise.cli.printing import console
    from counterpoise.engines.registry import columns_of
    from counterpoise.evaluation.documents import as_text
    from counterpoise.evaluation.risk import QUANTILES, WORST
    from counterpoise.log.log import Log

    place = options.table_path(table)
    data = options.data_of(log)
    names = columns_of(Log(data, table=place, query=query, external_access=external_access))
    typed = typed_targets(target, target_action, names)
    parts, targets = options.guess_parts(names, reward, propensity, typed, quiet=json)
    answer = cp.distribution(
        data,
        reward=parts.reward,
        propensity=parts.propensity,
        target=targets,
        thresholds=threshold or None,
        action=action,
        context=context or None,
        candidates=candidates,
        cluster=cluster,
        interval=options.method(interval, reward_bounds=reward_bounds),
        level=level,
        reward_bounds=reward_bounds,
        drop_bad_rows=drop_bad_rows,
        where=where,
        table=place,
        query=query,
        external_access=external_access,
    )
    chosen = (quantile or (), cvar or ()) if quantile or cvar else (QUANTILES, WORST)
    statistics = answer.statistics(*chosen)
    if json:
        print(as_text(_document(answer, statistics)))
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
    from counterpoise.cli.printing import add, number, say, say_verdict, show, table

    made = table("policy", "", "q ", "value ", "lower ", "upper ", "verdict")
    for statistic in statistics:
        ends = [number(end) for end in statistic.interval]
        add(
            made,
            statistic.target,
            statistic.name,
            f"{statistic.q:g}",
            number(statistic.value),
            *ends,
            statistic.verdict.verdict,
        )
    show(out, made)
    say(out)
    say(
        out,
        f"{distribution.n:,} rows, {100 * distribution.level:.4g} % intervals ({distribution.options.method.name}).",
    )
    for statistic in statistics:
        if statistic.verdict.verdict != "ok":
            say_verdict(out, f"{statistic.target}, {statistic.name} {statistic.q:g}", statistic.verdict)
        if statistic.note:
            say(out, f"{statistic.target}, {statistic.name} {statistic.q:g}: {statistic.note}")
