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

    told = [one for one in audit.checks if one.p == one.p]  # nan where nothing can be told
    if audit.checks:
        say(out)
        silent = audit.looks - len(told)
        few = f" For {silent:,} parts, too few rows carry the weights to tell." if silent else ""
        say(out, f"Mean weights of {len(told):,} parts of the log, the most doubtful first; each should be 1.{few}")
    if told:
        made = table("by", "part", "target", "mean ", "lower ", "upper ", "corrected p ", "looks")
        for one in sorted(told, key=lambda one: one.p)[:SHOWN]:
            ends = (number(one.mean), number(one.lower), number(one.upper))
            add(
                made,
                one.by,
                one.part,
                one.target or "1/p",
                *ends,
                p_value(one.corrected_p).removeprefix("= "),
                one.status,
            )
        show(out, made)
        if len(told) > SHOWN:
            say(out, f"{len(told) - SHOWN:,} more: see --json.")
    if audit.calibration is not None:
        _show_calibration(out, audit.calibration)


def _show_calibration(out: Console, found: Calibration) -> None:
    from counterpoise.cli.printing import add, number, say, show, table

    say(out)
    test = "too little to tell" if found.p != found.p else f"corrected p {p_value(found.corrected_p)}"
    say(out, f"How often actions were taken, by their probability in {found.column} ({test}):")
    made = table("probability", "cases ", "predicted ", "taken ", "z ")
    for one in found.bins:
        add(
            made,
            f"{one.low:g} to {one.high:g}",
            f"{one.pairs:,}",
            number(one.predicted),
            number(one.observed),
            f"{one.z:+.1f}",
        )
    show(out, made)
