"""The sections of the report on values: the answer with its verdicts, and the forest plots."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from counterpoise.display import Phrase, level_of, number, signed
from counterpoise.estimators import Estimate
from counterpoise.evaluation.reading import (
    TARGETS_DRAWN,
    TARGETS_LISTED,
    TARGETS_WITH_ALL_ESTIMATORS,
    Reading,
    headline,
)
from counterpoise.report.axes import forest_axis
from counterpoise.report.card import SIGNS
from counterpoise.report.glossary import ESTIMATOR_WORDS, term
from counterpoise.report.markup import Safe, el, join, left_out, name_of, phrase
from counterpoise.report.plots import strip, strip_axis


def head(reading: Reading) -> Safe:
    """The headline, and the verdict on every target."""
    result = reading.result
    verdicts = {target: result.verdict(target) for target in reading.foremost(TARGETS_LISTED)}
    listed = [
        el(
            "li",
            el("span", SIGNS[verdict.verdict], " ", verdict.verdict, class_="badge"),
            " · ",
            el("b", name_of(target)),
            ": no problems found in the weights or rewards." if not verdict.reasons else "",
            el("ul", *(el("li", el("bdi", reason)) for reason in verdict.reasons)) if verdict.reasons else "",
            class_=_class(verdict.verdict),
        )
        for target, verdict in verdicts.items()
    ]
    first, rest = listed[:TARGETS_DRAWN], list(verdicts.values())[TARGETS_DRAWN:]
    shown = [el("p", phrase(Phrase(headline(reading))), class_="answer"), el("ul", *first, class_="verdicts")]
    if rest:
        counts = Counter[str](verdict.verdict for verdict in rest)
        said = ", ".join(f"{counts[name]:,} {name}" for name in SIGNS if counts[name])
        folded = el("summary", f"The verdicts on {len(rest):,} more targets: {said}")
        shown.append(el("details", folded, el("ul", *listed[TARGETS_DRAWN:], class_="verdicts"), class_="entry"))
    shown.append(left_out(len(result.targets), TARGETS_LISTED, "targets", "highest estimates"))
    return join(shown)


def badge(verdict: str) -> Safe:
    """A verdict with its sign."""
    return el("span", SIGNS[verdict], " ", verdict, class_=f"badge {_class(verdict)}")


def _class(verdict: str) -> str:
    return "is-" + verdict.replace(" ", "-")


def estimates(reading: Reading) -> Safe:
    """A forest plot of all targets and estimators, which doubles as a table."""
    result = reading.result
    is_long = len(result.targets) > TARGETS_WITH_ALL_ESTIMATORS and len(reading.estimators) > 1
    names = (reading.primary,) if is_long else reading.estimators
    rows = {target: [result[target, name] for name in names] for target in reading.foremost(TARGETS_LISTED)}
    lead = (
        f"How much more each target would have earned per {reading.unit} than the policy it is compared with. The dashed line marks no "
        "difference."
        if reading.is_difference
        else f"What each target would have earned per {reading.unit}."
        + (
            f" The dashed line marks what the log itself earned: {number(*reading.logged_digits)}."
            if math.isfinite(reading.mark)
            else ""
        )
    )
    return join(
        [
            el(
                "p",
                lead,
                f" With so many targets, only {reading.primary} is shown; the result itself has every estimator."
                if is_long
                else " Bold marks the estimator behind the headline.",
                " An arrow means the interval continues off the plot.",
                " Each interval is for its own target alone." if len(result.targets) > 1 else "",
                class_="lead",
            ),
            _forest(
                reading, rows, reading.primary, reading.mark, "Estimates of every target", plus=reading.is_difference
            ),
            left_out(len(result.targets), TARGETS_LISTED, "targets", "highest estimates"),
        ]
    )


def lift(reading: Reading) -> Safe:
    """A forest plot of the lifts over the logging policy."""
    if not reading.lifts or reading.is_difference:
        return Safe("")
    rows = {target: [reading.lifts[target]] for target in reading.foremost(TARGETS_LISTED, tuple(reading.lifts))}
    return join(
        [
            el(
                "p",
                f"How much more each target would have earned per {reading.unit} than the policy that wrote the log (",
                term("lift"),
                "). To the right of the dashed line is better than that policy; an interval that crosses the line shows no clear "
                "difference.",
                " The intervals hold for all targets at once, so they are wider than each would be alone."
                if len(rows) > 1
                else "",
                class_="lead",
            ),
            _forest(reading, rows, reading.lift_estimator, 0.0, "Lift of every target", plus=True),
        ]
    )


def _forest(
    reading: Reading, rows: Mapping[str, list[Estimate]], primary: str, reference: float, caption: str, *, plus: bool
) -> Safe:
    level, verdicts = reading.result.level, {target: reading.result.verdict(target).verdict for target in rows}
    known = {target: listed for target, listed in rows.items() if reading.is_known(target)}
    shown = [estimate for listed in (known or rows).values() for estimate in listed]
    axis = forest_axis(shown, [estimate.name == primary for estimate in shown], reference)
    write = signed if plus else number
    single = all(len(listed) == 1 for listed in rows.values())
    bodies = []
    for target, listed in rows.items():
        doubt = "" if verdicts[target] == "ok" else badge(verdicts[target])
        lines = [] if single else [el("tr", el("th", name_of(target), " ", doubt, scope="rowgroup", colspan=3))]
        for estimate in listed:
            kind = "primary" if estimate.name == primary else "other"
            label = join([name_of(target), " ", doubt]) if single else estimate.name
            low, high = estimate.interval
            span = el("span", f"{write(low, estimate.stderr)} to {write(high, estimate.stderr)}", class_="range")
            said = [write(estimate.value, estimate.stderr), " ", span] if estimate.identified else ["not identified"]
            lines.append(
                el(
                    "tr",
                    el("th", label, scope="row", title=None if single else ESTIMATOR_WORDS.get(estimate.name)),
                    el("td", strip(estimate.value, low, high, axis, reference, kind), class_="plot"),
                    el("td", *said, class_="number"),
                    class_=kind,
                )
            )
        bodies.append(el("tbody", *lines, class_="group"))
    columns = el(
        "tr",
        el("th", "Target" if single else "Estimator", scope="col"),
        el("th", "Plot", scope="col", class_="plot"),
        el("th", term("value"), f" and {level_of(level)} ", term("interval", "interval"), scope="col", class_="number"),
    )
    axis_row = el("tr", el("td"), el("td", strip_axis(axis), class_="plot"), el("td"))
    return el(
        "div",
        el(
            "table",
            el("caption", caption),
            el("thead", columns),
            *bodies,
            el("tfoot", axis_row, aria_hidden="true"),
            class_="forest",
        ),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=caption,
    )
