"""What a log looks like, and whether its estimates can be believed."""

from counterpoise.diagnostics.diagnose import WRONG_PROPENSITIES, Clusters, Diagnostics, Lost, Seen, diagnose
from counterpoise.diagnostics.verdict import (
    Caveat,
    Verdict,
    judge,
    judge_difference,
    resting_on_model,
)

__all__ = [
    "WRONG_PROPENSITIES",
    "Caveat",
    "Clusters",
    "Diagnostics",
    "Lost",
    "Seen",
    "Verdict",
    "diagnose",
    "judge",
    "judge_difference",
    "resting_on_model",
]
