"""This file holds the options of training and what is wrong with them, before anything is trained."""

from __future__ import annotations

from typing import Literal

from counterpoise.errors import OptionError
from counterpoise.learn.data import Log
from counterpoise.learn.inspection import Inspection

Objective = Literal["ips", "lambda_ips", "beta_ips", "running_beta_ips", "dr", "snips", "value_beta_ips"]
OBJECTIVES = ("ips", "lambda_ips", "beta_ips", "running_beta_ips", "dr", "snips", "value_beta_ips")
FULL_BATCH_ONLY = ("snips", "value_beta_ips")
TUNED = tuple(round(0.6 + 0.05 * k, 2) for k in range(8))  # λ tried for BanditNet, as published


def check_options(
    objective: str, batch_size: int | None, norms: str | None, learning_rate: float, epochs: int, holdout: float
) -> None:
    """Options that make sense whatever the log."""
    if objective not in OBJECTIVES:
        raise OptionError(f"no objective {objective!r}; there are {', '.join(OBJECTIVES)}.")
    if objective in FULL_BATCH_ONLY and batch_size is not None:
        raise OptionError(f"{objective} is no sum over rows, and mini-batches would bias it: pass batch_size=None.")
    if norms not in (None, "last_layer", "all"):
        raise OptionError(f"norms must be 'last_layer' or 'all'; found {norms!r}.")
    if not learning_rate > 0 or epochs < 1 or (batch_size is not None and batch_size < 1):
        raise OptionError(
            "learning_rate must be above 0, epochs and batch_size at least 1; "
            f"found {learning_rate}, {epochs} and {batch_size}."
        )
    if not 0 <= holdout < 1:
        raise OptionError(f"holdout must lie in [0, 1): it is a share of the rows; found {holdout}.")


def check_sizes(log: Log, found: Inspection, batch_size: int | None, holdout: float) -> None:
    """Options that make sense for this log."""
    training = found.rows - found.held_out
    if batch_size is None and len(log.starts) > 1:
        raise OptionError(f"{found.rows:,} rows of files do not fit one batch: pass a batch_size, or load the log.")
    if batch_size is not None and training < batch_size:
        raise OptionError(
            f"batch_size is {batch_size:,}, but the log has {training:,} rows to train on ({found.held_out:,} are "
            "held out): lower it, or pass batch_size=None for full batches."
        )
    if holdout and not found.held_out:
        raise OptionError(f"holdout={holdout} of {found.rows:,} rows is no row: raise it, or pass holdout=0.")
