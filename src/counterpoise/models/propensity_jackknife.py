"""Propensities by models that are fitted again without each group of rows: what the fit does to errors, where no formula says it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoise.models.estimators import fit
from counterpoise.models.propensity_fitting import out_of_fold, sharpness_of
from counterpoise.models.propensity_step import Classifier, Codes, sharpened
from counterpoise.moments import Floats

GROUPS = 20  # as many refits of all folds


def groups_of(cluster: NDArray[np.int64]) -> NDArray[np.int64]:
    """The group of every row, the same for all rows of a cluster; clusters are dealt out at random, as evenly as can be.

    >>> found = groups_of(np.arange(100) // 2)
    >>> bool((found[::2] == found[1::2]).all()), len(set(found.tolist()))
    (True, 20)
    """
    return np.asarray(np.random.default_rng(0).permutation(int(cluster.max()) + 1)[cluster] % GROUPS)


def refitted(
    classifiers: tuple[Classifier, ...], x: Floats, codes: Codes, folds: Codes, is_logged: NDArray[np.bool_],
    groups: NDArray[np.int64], categories: tuple[bool, ...], calibrate: bool,
) -> Floats:  # fmt: skip
    """For every group, the propensities of the logged actions by models that have seen neither it nor the row's own fold; 0 if unknown."""
    found = np.zeros((GROUPS, len(x)))
    known = (codes >= 0) & ~is_logged
    for group in range(GROUPS):
        kept = known & (groups != group)
        shares = np.bincount(codes[kept], minlength=classifiers[0].actions) / max(int(kept.sum()), 1)
        made: list[Classifier] = []
        for fold, one in enumerate(classifiers):
            others: Any = kept & (folds != fold)
            made.append(Classifier(fit(one.estimator, x[others], codes[others], None, categories), one.actions, shares))
        table = out_of_fold(made, x, folds)
        positive = np.maximum(shares, 1e-12)
        sharpness = sharpness_of(table[kept], codes[kept], positive) if calibrate else 1.0
        table = sharpened(table, positive, sharpness)
        found[group] = np.where(codes >= 0, table[np.arange(len(x)), codes], 0.0)
    return found
