"""The report's section on a propensity model: its calibration, and how far its propensities overlap."""

from __future__ import annotations

from collections.abc import Sequence

from counterpoise.evaluation.reading import Reading
from counterpoise.report.markup import Safe, el, join, name_of


def propensity_model(reading: Reading) -> Safe:
    """What the model is, whether what it predicts is what happened, and how small its propensities get; nothing without a model."""
    quality = reading.result.propensity_model
    if quality is None:
        return Safe("")
    estimated = reading.result.moments.estimated
    errors = (
        "The errors above include what the fit of the model adds to them or takes from them."
        if estimated is not None and estimated.covariances
        else "The errors above take these propensities as known: there is no formula for what this model's fit does to them."
    )
    lead = join(
        [
            "The propensities were not logged. They come from ", name_of(quality.model), " of ", name_of(", ".join(quality.context)),
            f", fitted on {quality.rows:,} rows and {quality.actions:,} actions in {quality.folds} folds, so that no row is predicted by a "
            f"model that has seen it. The logged actions have a log loss of {quality.log_loss:.3g}; that of their shares alone is "
            f"{quality.log_loss_of_shares:.3g}. ", errors,
            f" In {quality.logged:,} further rows of the sample the propensity was logged." if quality.logged else "",
        ]
    )  # fmt: skip
    bins = [(f"{bin_.rows:,}", f"{bin_.predicted:.4g}", f"{bin_.observed:.4g}") for bin_ in quality.calibration]
    spread = [(_share(q), f"{value:.4g}") for q, value in quality.quantiles]
    note = (
        f"The sample is worth about {quality.effective_rows:,.0f} of its {quality.rows:,} rows to a policy that chooses every action "
        f"equally often. Propensities below {quality.floor:.2g} are raised to it: {quality.raised:,} were."
    )
    return join(
        [
            el("p", lead, class_="lead"),
            _table("Calibration: probabilities of all actions, out of fold", ("Pairs", "Predicted", "Observed"), bins),
            _table("Overlap: propensities of the logged actions", ("Share of rows below", "Propensity"), spread),
            el("p", note, class_="note"),
        ]
    )


def _share(quantile: float) -> str:
    return {0.0: "smallest", 1.0: "largest"}.get(quantile, f"{100 * quantile:g} %")


def _table(caption: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> Safe:
    head = el("tr", *(el("th", name, scope="col", class_="number") for name in names))
    body = [el("tr", *(el("td", cell, class_="number") for cell in row)) for row in rows]
    table = el("table", el("caption", caption), el("thead", head), el("tbody", *body))
    return el("div", table, class_="scroll", tabindex=0, role="region", aria_label=caption)
