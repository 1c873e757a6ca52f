"""What a log looks like, and whether its estimates can be believed."""

from counterpoise.diagnostics.verdict import (
    WRONG_PROPENSITIES,
    Diagnostics,
    Verdict,
    diagnose,
    judge,
    judge_difference,
    p_value,
)

__all__ = ["WRONG_PROPENSITIES", "Diagnostics", "Verdict", "diagnose", "judge", "judge_difference", "p_value"]
