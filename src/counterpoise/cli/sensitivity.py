"""`counterpoise sensitivity`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterpoise.cli import options
from counterpoise.cli.running import ends_at_once
from counterpoise.cli.targets import named, typed_targets
from counterpoise.log.question import LOGGING

if TYPE_CHECKING:
    from rich.console import Console

    from counterpoise.evaluation.confounded import Sensitivity


@ends_at_once
def sensitivity(
    log: options.Log,
    reward: options.Reward = None,
    propensity: options.Propensity = None,
    target: options.Target = None,
    target_action: options.TargetAction = None,
    against: Annotated[
        str,
        typer.Option(
            metavar="[NAME=]EXPRESSION",
            help="The policy that the conclusion is about: the name of a target, whatever --target takes, or logging, which wrote the log.",
        ),
    ] = LOGGING,
    gamma: Annotated[
        list[float] | None,
        typer.Option(
            metavar="FACTOR", help="How far odds may be wrong, at least 1; may be repeated (1, 1.2, 1.5, 2 by default)."
        ),
    ] = None,
    action: options.Action = None,
    context: options.Context = None,
    candidates: options.Candidates = None,
    cluster: options.Cluster = None,
    where: options.Where = None,
    level: options.Level = 0.95,
    reward_bounds: options.RewardBounds = None,
    drop_bad_rows: options.DropBadRows = False,
    json: options.Json = False,
    table: options.TableName = None,
    query: options.Query = None,
    external_access: options.ExternalAccess = False,
) -> None:
    """What target policies could have earned if the propensities were wrong, and how wrong they must be for a conclusion to flip.

    The odds of every logged action may be wrong by a factor of up to gamma, in whatever way is worst.

    \b
    Examples:
      counterpoise sensitivity log.parquet --target pi_new
      counterpoise sensitivity log.parquet --target pi_new --against pi_old
      counterpoise sensitivity log.parquet --reward revenue --target pi_new --gamma 1.1 --gamma 3 --cluster user_id --json
    """
    import counterpoise as cp
    from counterpoise.cli.printing import console
    from counterpoise.engines.registry import columns_of
    from counterpoise.evaluation.confounded import GAMMAS
    from counterpoise.evaluation.documents import as_text
    from counterpoise.log.log import Log
    from counterpoise.log.rules import missing

    place = options.table_path(table)
    data = options.data_of(log)
    names = columns_of(Log(data, table=place, query=query, external_access=external_access))
    typed = typed_targets(target, target_action, names)
    if against not in (LOGGING, *typed, *names) and against.isidentifier():
        raise missing("against", against, names)
    name, source = named(against, (LOGGING, *typed, *names))
    rest = [column for column in names if column != source]
    parts, targets = options.guess_parts(rest, reward, propensity, typed, quiet=json)
    answer = cp.sensitivity(
        data,
        reward=parts.reward,
        propensity=parts.propensity,
        target=targets,
        against={name: source} if name else source,
        gamma=gamma or GAMMAS,
        level=level,
        action=action,
        context=context or None,
        candidates=candidates,
        cluster=cluster,
        where=where,
        reward_bounds=reward_bounds,
        drop_bad_rows=drop_bad_rows,
        table=place,
        query=query,
        external_access=external_access,
    )
    if json:
        print(as_text(_document(answer)))
    else:
        _show(console(), answer)


def _document(sensitivity: Sensitivity) -> dict[str, Any]:
    from counterpoise.evaluation.documents import finite

    tips = [sensitivity.tipping(name) for name in sensitivity.targets]
    return {
        "n": sensitivity.n,
        "level": sensitivity.level,
        "against": sensitivity.against or LOGGING,
        "bounds": finite(sensitivity.table().to_dicts()),
        "tipping_points": finite(
            [{"target": tip.target, "lift": tip.lift, "point": tip.point, "sure": tip.sure} for tip in tips]
        ),
        "dropped_rows": sensitivity.log.dropped,
    }


def _show(out: Console, sensitivity: Sensitivity) -> None:
    from counterpoise.cli.printing import add, number, say, say_verdict, show, table

    made = table("target", "gamma ", "value from ", "to ", "lift from ", "to ", "interval from ", "to ")
    for row in sensitivity.table().to_dicts():
        names = ("value_from", "value_to", "lift_from", "lift_to", "lift_lower", "lift_upper")
        add(made, row["target"], f"{row['gamma']:g}", *(number(row[name]) for name in names))
    show(out, made)
    say(out)
    say(out, f"{sensitivity.n:,} rows, {100 * sensitivity.level:.4g} % intervals of the {sensitivity.over}.")
    for name in sensitivity.targets:
        verdict = sensitivity.verdict(name)
        if verdict.verdict != "ok":
            say_verdict(out, name, verdict)
        say(out, str(sensitivity.tipping(name)))
