"""`counterpoise doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

import counterpoise as cp
from counterpoise.cli.options import CLUSTERS, KEY, LOG, REWARD, takes
from counterpoise.cli.printing import console, number, print_json, say, show_table
from counterpoise.cli.running import ends_at_once
from counterpoise.cli.typed import Typed
from counterpoise.cli.wording import written
from counterpoise.diagnostics import p_value
from counterpoise.evaluation.wording import visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from counterpoise.diagnostics.audit import Audit, Calibration
    from counterpoise.evaluation.doctor import Examination

SHOWN = 12  # parts in the table of the audit; --json has them all
COLORS = {"fix": "red", "look": "yellow", "note": ""}


@ends_at_once
@takes(REWARD, "propensity", "action", KEY, CLUSTERS, LOG)
def doctor(
    typed: Typed,
    *,
    target: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="A target's probability of the logged action; may be repeated; guessed."),
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
) -> None:
    """What a log looks like, whether its propensities and rewards can be right, and what to fix first.

    \b
    Examples:
      counterpoise doctor log.parquet
      counterpoise doctor log.parquet --target pi_new --key request_id --json
      counterpoise doctor log.parquet --action item --segment country --day time
    """
    examination = cp.doctor(
        typed.data,
        **typed.arguments(),
        target=target or (),
        segment=segment or (),
        day=day,
        distribution=_distribution(distribution),
    )
    if typed["json"]:
        print_json(examination)
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

    say(out, f"{examination.rows:,} rows, {len(examination.columns):,} columns.")
    say(out)
    columns = [[column.name, column.kind, f"{column.missing:,}", column.part or ""] for column in examination.columns]
    show_table(out, ["column", "type", "missing ", "looks like"], columns)
    say(out)
    show_table(out, ["check", "found"], _checks(examination))
    if examination.audit is not None:
        _show_audit(out, examination.audit)
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


def _checks(examination: Examination) -> Iterator[tuple[str, str]]:
    """What was looked at, and what it is."""
    if (p := examination.propensity) is not None:
        yield "propensity: range", f"{number(p.lowest)} to {number(p.highest)}, median {number(p.median)}"
        yield "propensity: outside (0, 1]", f"{p.impossible:,} rows"
        yield "propensity: rounding", "all digits" if p.decimals is None else f"{p.decimals} decimals"
        yield "propensity: repeated values", f"{p.repeated_share:.1%}; {p.distinct:,} distinct"
        yield "propensity: mean of 1/p", f"{number(p.mean_inverse)} ± {number(p.mean_inverse_stderr)}"
    if examination.actions is not None:
        yield "actions", f"{examination.actions:,} distinct"
    if (r := examination.reward) is not None:
        yield "reward: range", f"{number(r.lowest)} to {number(r.highest)}, mean {number(r.mean)}"
        yield "reward: zero", f"{r.zero_share:.1%}; {r.distinct:,} distinct values"
        yield "reward: missing or infinite", f"{r.impossible:,} rows"
    yield "repeated rows", f"{examination.duplicates:,}"
    for overlap in examination.overlap:
        d = overlap.diagnostics
        yield f"{overlap.target}: mean weight", f"{number(d.mean_weight)}, should be 1 (p {p_value(d.mean_weight_p)})"
        yield f"{overlap.target}: effective rows", f"{d.effective_sample_size:,.0f} of {d.n:,}"
        yield f"{overlap.target}: largest weight", f"{number(d.max_weight)}; {d.zero_weight_share:.1%} are 0"


def _show_audit(out: Console, audit: Audit) -> None:
    """The parts of the log that deviate most from a mean weight of 1, and the calibration of the logged probabilities."""
    telling = [check for check in audit.checks if check.p == check.p]  # nan where nothing can be told
    if audit.checks:
        say(out)
        silent = audit.looks - len(telling)
        few = f" For {silent:,} parts, too few rows carry the weights to tell." if silent else ""
        say(out, f"Mean weights of {len(telling):,} parts of the log, the most doubtful first; each should be 1.{few}")
    if telling:
        rows = [
            [check.by, check.part, check.target or "1/p"]
            + [number(x) for x in (check.mean, check.lower, check.upper)]
            + [p_value(check.corrected_p).removeprefix("= "), check.status]
            for check in sorted(telling, key=lambda check: check.p)[:SHOWN]
        ]
        show_table(out, ["by", "part", "target", "mean ", "lower ", "upper ", "corrected p ", "looks"], rows)
        if len(telling) > SHOWN:
            say(out, f"{len(telling) - SHOWN:,} more: see --json.")
    if audit.calibration is not None:
        _show_calibration(out, audit.calibration)


def _show_calibration(out: Console, calibration: Calibration) -> None:
    say(out)
    test = "too little to tell" if calibration.p != calibration.p else f"corrected p {p_value(calibration.corrected_p)}"
    say(out, f"How often actions were taken, by their probability in {calibration.column} ({test}):")
    rows = [
        [
            f"{group.low:g} to {group.high:g}",
            f"{group.pairs:,}",
            number(group.predicted),
            number(group.observed),
            f"{group.z:+.1f}",
        ]
        for group in calibration.bins
    ]
    show_table(out, ["probability", "cases ", "predicted ", "taken ", "z "], rows)
