"""Confidence intervals: what each promises, and when."""

from counterpoise.intervals.intervals import (
    METHODS,
    Method,
    anytime,
    anytime_score,
    bernstein,
    check_bounds,
    check_reward_bounds,
    effective_clusters,
    jackknife,
    jackknife_error,
    normal,
    wilson,
)

__all__ = [
    "METHODS",
    "Method",
    "anytime",
    "anytime_score",
    "bernstein",
    "check_bounds",
    "check_reward_bounds",
    "effective_clusters",
    "jackknife",
    "jackknife_error",
    "normal",
    "wilson",
]
