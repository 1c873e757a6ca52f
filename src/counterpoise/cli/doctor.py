"""`counterpoise doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

import counterpoise as cp
from counterpoise.cli.auditing import show_audit
from counterpoise.cli.options import CLUSTERS, LOG, REWARD, takes
from counterpoise.cli.running import ends_at_once
from counterpoise.cli.typed import Typed
from counterpoise.cli.wording import written
from counterpoise.diagnostics import p_value
from counterpoise.log.log import help_of

if TYPE_CHECKING:
    from rich.console import Console

    from counterpoise.evaluation.doctor import Examination

COLORS = {"fix": "red", "look": "yellow", "note": ""}


@ends_at_once
@takes(REWARD, "propensity", "action", CLUSTERS, LOG)
def doctor(
    typed: Typed,
    *,
    target: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="A target's probability of the logged action; may be repeated; guessed."),
    ] = None,
    key: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help=f"{help_of('key').capitalize()}. May be repeated.")
    ] = None,
    segment: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Check mean weights for every value of this column; may be repeated."),
    ] = None,
    day: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Check mean weights by this day or time; a lone date column is found."),
    ] = None,
    distribution: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="The logging policy's probabilities of all actions: a list column, or repeat it for a column each, in the "
            "actions' order or as ACTION=COLUMN.",
        ),
    ] = None,
    json: bool,
) -> None:
    """What a log looks like, whether its propensities and rewards can be right, and what to fix first.

    \b
    Examples:
      counterpoise doctor log.parquet
      counterpoise doctor log.parquet --target pi_new --key request_id --json
      counterpoise doctor log.parquet --action item --segment country --day time
    """
    from counterpoise.cli.printing import console
    from counterpoise.evaluation.documents import as_text

    examination = cp.doctor(
        typed.data,
        **typed.arguments(),
        target=target or (),
        key=key or (),
        segment=segment or (),
        day=day,
        distribution=_distribution(distribution),
    )
    if json:
        print(as_text(examination))
    else:
        _show(console(), examination)


def _distribution(columns: list[str] | None) -> str | list[str] | dict[str, str] | None:
    """One list column, a column for each action, or columns by action."""
    if not columns:
        return None
    if all("=" in column for column in columns):
        return {action: name for action, _, name in (column.partition("=") for column in columns)}
    return columns[0] if len(columns) == 1 else columns


def _show(out: Console, examination: Examination) -> None:
    from rich.text import Text

    from counterpoise.cli.printing import add, number, say, show, table
    from counterpoise.evaluation.wording import visible

    say(out, f"{examination.rows:,} rows, {len(examination.columns):,} columns.")
    say(out)
    made = table("column", "type", "missing ", "looks like")
    for column in examination.columns:
        add(made, column.name, column.kind, f"{column.missing:,}", column.part or "")
    show(out, made)
    say(out)
    made = table("check", "found")
    if (p := examination.propensity) is not None:
        add(made, "propensity: range", f"{number(p.lowest)} to {number(p.highest)}, median {number(p.median)}")
        add(made, "propensity: outside (0, 1]", f"{p.impossible:,} rows")
        add(made, "propensity: rounding", "all digits" if p.decimals is None else f"{p.decimals} decimals")
        add(made, "propensity: repeated values", f"{p.repeated_share:.1%}; {p.distinct:,} distinct")
        add(made, "propensity: mean of 1/p", f"{number(p.mean_inverse)} ± {number(p.mean_inverse_stderr)}")
    if examination.actions is not None:
        add(made, "actions", f"{examination.actions:,} distinct")
    if (r := examination.reward) is not None:
        add(made, "reward: range", f"{number(r.lowest)} to {number(r.highest)}, mean {number(r.mean)}")
        add(made, "reward: zero", f"{r.zero_share:.1%}; {r.distinct:,} distinct values")
        add(made, "reward: missing or infinite", f"{r.impossible:,} rows")
    add(made, "repeated rows", f"{examination.duplicates:,}")
    for overlap in examination.overlap:
        d = overlap.diagnostics
        add(
            made,
            f"{overlap.target}: mean weight",
            f"{number(d.mean_weight)}, should be 1 (p {p_value(d.mean_weight_p)})",
        )
        add(made, f"{overlap.target}: effective rows", f"{d.effective_sample_size:,.0f} of {d.n:,}")
        add(made, f"{overlap.target}: largest weight", f"{number(d.max_weight)}; {d.zero_weight_share:.1%} are 0")
    show(out, made)
    if examination.audit is not None:
        show_audit(out, examination.audit)
    say(out)
    if not examination.findings:
        say(out, Text("Nothing to fix.", style="green"))
        return
    say(out, "What to do, the most urgent first:")
    for k, finding in enumerate(examination.findings, start=1):
        line = Text(f"{k}. ")
        line.append(finding.severity, style=COLORS[finding.severity])
        line.append(f": {visible(written(finding.message))}")
        say(out, line)
