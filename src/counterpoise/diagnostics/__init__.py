"""What a log looks like, and whether its estimates can be believed."""

from counterpoise.diagnostics.diagnose import WRONG_PROPENSITIES, Clusters, Diagnostics, Lost, WeightedRows, diagnose
from counterpoise.diagnostics.verdict import (
    CODES,
    Caveat,
    Verdict,
    judge,
    judge_difference,
    resting_on_model,
)

__all__ = [
    "CODES",
    "WRONG_PROPENSITIES",
    "Caveat",
    "Clusters",
    "Diagnostics",
    "Lost",
    "Verdict",
    "WeightedRows",
    "diagnose",
    "judge",
    "judge_difference",
    "resting_on_model",
]
