"""The report's section on the reward model: how good it is on rows it has not seen, and what it bought."""

from __future__ import annotations

from collections.abc import Iterator

from counterpoise.evaluation.reading import TARGETS_LISTED, Reading
from counterpoise.report.markup import Safe, el, join, name_of


def model(reading: Reading) -> Safe:
    """Quality, worth and calibration; nothing where no model was fitted."""
    quality = reading.result.model
    if quality is None:
        return Safe("")
    lead = (
        f"{quality.model}, fitted on {quality.rows:,} rows in {quality.folds} folds, so that every row is predicted by a model that has "
        f"not seen it. It explains {quality.r2:.1%} of the rewards' variance on such rows."
    )
    if quality.calibration:
        lead += (
            f" Its log loss is {quality.log_loss:.4g}; that of the mean reward alone is {quality.log_loss_of_mean:.4g}."
        )
    return join([el("p", lead, class_="lead"), el("ul", *_worth(reading)), _calibration(reading)])


def _worth(reading: Reading) -> Iterator[Safe]:
    result = reading.result
    for target in reading.foremost(TARGETS_LISTED):
        if all((target, name, None) in result.estimates for name in ("beta_ips", "optimal_dr")):
            yield el("li", name_of(target), f": the model is worth {max(result.worth(target), 0.0):.0%} more rows.")


def _calibration(reading: Reading) -> Safe:
    quality = reading.result.model
    if quality is None or not quality.calibration:
        return Safe("")
    head = el("tr", *(el("th", words, scope="col", class_="number") for words in ("Rows", "Predicted", "Observed")))
    rows = [
        el(
            "tr",
            *(
                el("td", said, class_="number")
                for said in (f"{bin_.rows:,}", f"{bin_.predicted:.4g}", f"{bin_.observed:.4g}")
            ),
        )
        for bin_ in quality.calibration
    ]
    caption = "Calibration: tenths of the rows by what was predicted"
    table = el("table", el("caption", caption), el("thead", head), el("tbody", *rows))
    return el("div", table, class_="scroll", tabindex=0, role="region", aria_label=caption)
