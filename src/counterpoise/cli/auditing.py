"""Prints the audit of propensities that `counterpoise doctor` makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from counterpoise.diagnostics import p_value

if TYPE_CHECKING:
    from rich.console import Console

    from counterpoise.diagnostics.audit import Audit, Calibration

SHOWN = 12  # parts in the table; --json has them all


def show_audit(out: Console, audit: Audit) -> None:
    """The parts of the log that deviate most from a mean weight of 1, and the calibration of the logged probabilities."""
    from counterpoise.cli.printing import add, number, say, show, table

    telling = [check for check in audit.checks if check.p == check.p]  # nan where nothing can be told
    if audit.checks:
        say(out)
        silent = audit.looks - len(telling)
        few = f" For {silent:,} parts, too few rows carry the weights to tell." if silent else ""
        say(out, f"Mean weights of {len(telling):,} parts of the log, the most doubtful first; each should be 1.{few}")
    if telling:
        made = table("by", "part", "target", "mean ", "lower ", "upper ", "corrected p ", "looks")
        for check in sorted(telling, key=lambda check: check.p)[:SHOWN]:
            ends = (number(check.mean), number(check.lower), number(check.upper))
            add(
                made,
                check.by,
                check.part,
                check.target or "1/p",
                *ends,
                p_value(check.corrected_p).removeprefix("= "),
                check.status,
            )
        show(out, made)
        if len(telling) > SHOWN:
            say(out, f"{len(telling) - SHOWN:,} more: see --json.")
    if audit.calibration is not None:
        _show_calibration(out, audit.calibration)


def _show_calibration(out: Console, calibration: Calibration) -> None:
    from counterpoise.cli.printing import add, number, say, show, table

    say(out)
    test = "too little to tell" if calibration.p != calibration.p else f"corrected p {p_value(calibration.corrected_p)}"
    say(out, f"How often actions were taken, by their probability in {calibration.column} ({test}):")
    made = table("probability", "cases ", "predicted ", "taken ", "z ")
    for group in calibration.bins:
        add(
            made,
            f"{group.low:g} to {group.high:g}",
            f"{group.pairs:,}",
            number(group.predicted),
            number(group.observed),
            f"{group.z:+.1f}",
        )
    show(out, made)
