"""The report's section on a propensity model: its calibration, and how far its propensities overlap."""

from __future__ import annotations

from collections.abc import Sequence

from counterpoise.evaluation.reading import Reading
from counterpoise.report.markup import Safe, el, join, name_of


def propensity_model(reading: Reading) -> Safe:
    """What the model is, whether what it predicts is what happened, and how small its propensities get; nothing without a model."""
    found = reading.result.propensity_model
    if found is None:
        return Safe("")
    estimated = reading.result.moments.estimated
    errors = (
        "The errors above include what the fit of the model adds to them or takes from them."
        if estimated is not None and estimated.covariances
        else "The errors above take these propensities as known: there is no formula for what this model's fit does to them."
    )
    lead = join(
        [
            "The propensities were not logged. They come from ", name_of(found.model), " of ", name_of(", ".join(found.context)),
            f", fitted on {found.rows:,} rows and {found.actions:,} actions in {found.folds} folds, so that no row is predicted by a model "
            f"that has seen it. The logged actions have a log loss of {found.log_loss:.3g}; that of their shares alone is "
            f"{found.log_loss_of_shares:.3g}. ", errors,
            f" In {found.logged:,} further rows of the sample the propensity was logged." if found.logged else "",
        ]
    )  # fmt: skip
    bins = [(f"{one.rows:,}", f"{one.predicted:.4g}", f"{one.observed:.4g}") for one in found.calibration]
    spread = [(_share(q), f"{value:.4g}") for q, value in found.quantiles]
    note = (
        f"The sample is worth about {found.effective_rows:,.0f} of its {found.rows:,} rows to a policy that chooses every action equally "
        f"often. Propensities below {found.floor:.2g} are raised to it: {found.raised:,} were."
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
