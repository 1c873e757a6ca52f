"""The test that the columns of a context baseline were known before the choice: then (w − 1)·φ has mean 0, whatever φ is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from counterpoise.diagnostics.diagnose import WRONG_PROPENSITIES
from counterpoise.diagnostics.mean_weight import of_mean
from counterpoise.diagnostics.verdict import Verdict, p_value


def after_choice(means: Mapping[str, tuple[float, float]], carrying: float, clusters: float = math.inf) -> list[str]:
    """What is wrong with the columns of a baseline, by the mean of (w − 1)·φ of each and its error; nothing if all may have mean 0.

    φ is taken from its mean, so that propensities that are all too small or too large do not count. The test is Student's, with as few
    degrees of freedom as the rows that carry the weights (`carrying`) and the clusters allow, and its p-values are multiplied by the
    number of columns.

    >>> after_choice({"age": (0.01, 0.02)}, carrying=400)
    []
    >>> print(*after_choice({"age": (0.01, 0.02), "dwell": (1.2, 0.03)}, carrying=400))
    The baseline 'dwell' was not known before the choice, or the propensities are wrong: the mean of (w − 1)·dwell is 1.2 and should be 0
    (p < 1e-12). Leave it out.
    """
    found = []
    for name, (mean, error) in means.items():
        p = min(1.0, len(means) * of_mean(mean, error, carrying, clusters))
        if p < WRONG_PROPENSITIES:
            found.append(
                f"The baseline {name!r} was not known before the choice, or the propensities are wrong: the mean of (w − 1)·{name} is "
                f"{mean:.4g} and should be 0 (p {p_value(p)}). Leave it out."
            )
    return found


def with_doubts(verdict: Verdict, reasons: list[str]) -> Verdict:
    """The verdict, at most `caution` where there are more reasons for it.

    >>> print(with_doubts(Verdict("ok", ()), ["It rains."]))
    caution: It rains.
    """
    if not reasons or verdict.verdict == "not identified":
        return verdict
    return replace(verdict, verdict="caution", reasons=(*verdict.reasons, *reasons))
