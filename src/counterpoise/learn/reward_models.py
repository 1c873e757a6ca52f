"""Reward models for learning: fitted on some rows of a log, they predict the rewards of all actions on others."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from functools import reduce

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.errors import LogError, OptionError
from counterpoise.learn.rows import Rows
from counterpoise.learn.source import Source
from counterpoise.models.reward import Predict, as_reward, fit_numbers

FOLDS = 3  # where nothing is judged in folds


def reward_model(model: object, rows: Rows, n_actions: int, seed: int) -> Predict:
    """A model of `counterpoise.models`, fitted on rows: from contexts to the rewards of all actions."""
    context, action = rows.context.cpu().numpy(), rows.action.cpu().numpy()
    return fit_numbers(model, context, action, rows.reward.double().cpu().numpy(), n_actions, seed)


class RewardModels:
    """Cross-fitted reward models of a log in memory or in files.

    A row is predicted by a model fitted on other folds, which has seen no row of the fold that judges the policy either. Models
    are fitted when they are first needed, on at most `Reward.sample` rows spread over the log, and predict chunk by chunk.
    """

    def __init__(self, source: Source, rows: int, n_actions: int, model: object, folds: int, seed: int) -> None:
        if folds == 2:
            raise OptionError(
                "a reward model with `folds=2` has no rows left to learn from.", do="Pass `folds=3` or more."
            )
        self.source, self.n_actions, self.model, self.seed = source, n_actions, model, seed
        self.folds = folds or FOLDS
        self._step = math.ceil(rows / as_reward(model).sample)
        self._sample: tuple[Rows, NDArray[np.int64]] | None = None
        self._models: dict[frozenset[int], Predict] = {}
        self._tables: dict[int | None, Tensor] = {}

    def digest(self, of_log: str) -> str:
        """A digest of the log and the model together, so that a checkpoint of another model is refused."""
        return hashlib.sha256(f"{of_log} {as_reward(self.model)!r}".encode()).hexdigest()[:16]

    def with_predictions(self, start: int, rows: Rows, without: int | None) -> Rows:
        """The rows of a chunk with the rewards that are predicted for all actions, by models that have not seen the fold `without`."""
        if without in self._tables:
            return replace(rows, model_rewards=self._tables[without])
        folds, table = self.source.folds(start, rows, self.folds), torch.empty(len(rows), self.n_actions)
        for fold in range(self.folds):
            own = np.flatnonzero(folds == fold)
            if len(own):
                left_out = frozenset({fold} if without is None else {fold, without})
                table[own] = torch.as_tensor(self._without(left_out)(rows.context[own].cpu().numpy())).float()
        table = table.to(rows.context.device)
        if self.source.files is None:  # files may be larger than memory
            self._tables = {without: table}
        return replace(rows, model_rewards=table)

    def _without(self, folds: frozenset[int]) -> Predict:
        if folds not in self._models:
            rows, theirs = self._sampled()
            kept = ~np.isin(theirs, list(folds))
            if not kept.any():
                raise LogError(
                    "there are too few rows or clusters for a reward model: some folds have none to learn from."
                )
            self._models[folds] = reward_model(self.model, rows.take(torch.as_tensor(kept)), self.n_actions, self.seed)
        return self._models[folds]

    def _sampled(self) -> tuple[Rows, NDArray[np.int64]]:
        """The rows that models are fitted on, and their folds."""
        if self._sample is None:
            parts = []
            for start in self.source.starts:
                rows = self.source.logged(start)
                some = slice(-self.source.before(start) % self._step, None, self._step)
                parts.append((rows.take(some), self.source.folds(start, rows, self.folds)[some]))
            self._sample = (
                reduce(Rows.followed_by, (rows for rows, _ in parts)),
                np.concatenate([folds for _, folds in parts]),
            )
        return self._sample
