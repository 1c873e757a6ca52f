"""Reward models that learn batch by batch, by `partial_fit`: from all rows of a log, however many there are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import polars as pl

from counterpoise.engines.registry import engine_of
from counterpoise.log.question import Question
from counterpoise.models.design import Design
from counterpoise.models.estimators import failed, fresh, is_classifier
from counterpoise.models.folds import FOLD
from counterpoise.models.rows import good_rows, row_weights
from counterpoise.moments import Floats
from counterpoise.readers.progress import Report

ROWS = 100_000  # that a model is given at once


def streamed(
    estimator: Any, design: Design, question: Question, folds: int, rewards: Floats, report: Report | None
) -> tuple[list[Any], int]:
    """A model for every fold, each of which has seen all rows of the other folds once, in the log's order; and how many rows there are."""
    models, seen = [fresh(estimator) for _ in range(folds)], 0
    extra = {"classes": np.unique(rewards)} if is_classifier(estimator) else {}

    def learn(batches: Iterable[pl.DataFrame]) -> None:
        nonlocal seen
        for batch in batches:
            for part in batch.iter_slices(ROWS):
                rows = good_rows(part, question)
                _learn(models, design, rows, question, extra)
                seen += rows.height

    engine_of(question.log).over_rows(question, learn, None)
    if report is not None:
        report(folds)
    return models, seen


def _learn(models: list[Any], design: Design, rows: pl.DataFrame, question: Question, extra: dict[str, Any]) -> None:
    action = rows.get_column(str(question.log.action))
    x, codes, folds = design.contexts(rows), design.actions.codes(action), rows.get_column(FOLD).to_numpy()
    rewards = rows.get_column(question.log.reward[0]).cast(pl.Float64).to_numpy()
    weights = row_weights(rows, question) if question.targets else None
    for fold, model in enumerate(models):
        others = folds != fold
        if not others.any():
            continue
        own = {} if weights is None else {"sample_weight": weights[others]}
        try:
            model.partial_fit(design.pairs(x[others], codes[others]), rewards[others], **extra, **own)
        except (TypeError, ValueError) as error:
            raise failed(model, error) from error
