"""`counterpoise ab-test`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import counterpoise as cp
from counterpoise.cli.options import CLUSTERS, LOG, REWARD, takes
from counterpoise.cli.running import ends_at_once
from counterpoise.cli.typed import Typed
from counterpoise.cli.wording import written
from counterpoise.errors import OptionError
from counterpoise.log.guess import usual


@ends_at_once
@takes(REWARD, "baseline", CLUSTERS, "interval", "level", "reward_bounds", "drop_bad_rows", LOG)
def ab_test(
    typed: Typed,
    *,
    arm: Annotated[str, typer.Option(metavar="COLUMN", help="Which arm a row belongs to.")] = "arm",
    against: Annotated[
        str | None, typer.Option(metavar="ARM", help="The arm to compare with; the first by default.")
    ] = None,
    propensity: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ARM=COLUMN",
            help="An arm's policy's probability of the logged action; one for every arm, to pool them.",
        ),
    ] = None,
    shares: Annotated[
        list[str] | None,
        typer.Option(metavar="ARM=SHARE", help="An arm's planned share of the rows; one for every arm."),
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a report for people to read.")] = None,
    json: bool,
) -> None:
    """How much more one arm of a randomized test earned than another: in means, adjusted for context, and pooled off-policy.

    \b
    Examples:
      counterpoise ab-test test.parquet --arm arm --reward click --shares A=0.5 --shares B=0.5
      counterpoise ab-test test.parquet --reward click --baseline visits --propensity A=p_a --propensity B=p_b --cluster user_id
    """
    from counterpoise.cli.printing import console, say
    from counterpoise.evaluation.documents import as_text

    values = typed.arguments()
    if values["reward"] is None:
        values["reward"] = usual("reward", typed.columns)
    test = cp.ab_test(
        typed.data,
        **values,
        arm=arm,
        against=against,
        propensity=pairs("propensity", propensity),
        shares=_numbers(pairs("shares", shares)),
    )
    if html is not None:
        test.report(html)
    if json:
        print(as_text(test.document()))
        return
    out, text = console(), repr(test)
    for reason in {reason for effect in test.effects for reason in effect.verdict.reasons}:
        text = text.replace(str(reason), written(reason))
    for line in text.splitlines():
        say(out, line)


def pairs(option: str, texts: list[str] | None) -> dict[str, str] | None:
    """Options of the form NAME=VALUE, by name.

    >>> pairs("shares", ["A=0.5", "B=0.5"])
    {'A': '0.5', 'B': '0.5'}
    """
    if not texts:
        return None
    values = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not (name and sign and value):
            raise OptionError(f"--{option} takes ARM=VALUE, found {text!r}.")
        values[name] = value
    return values


def _numbers(values: dict[str, str] | None) -> dict[str, Any] | None:
    try:
        return None if values is None else {name: float(value) for name, value in values.items()}
    except ValueError as error:
        raise OptionError(f"--shares takes numbers, such as A=0.5; {error}.") from None
