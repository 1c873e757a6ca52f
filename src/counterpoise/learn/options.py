"""The options of training and what is wrong with them, before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from numbers import Integral, Real
from typing import Any, Literal

from counterpoise.errors import OptionError
from counterpoise.learn.data import Log
from counterpoise.learn.inspection import Inspection
from counterpoise.learn.policies import Policy

Objective = Literal["ips", "lambda_ips", "beta_ips", "running_beta_ips", "dr", "snips", "value_beta_ips"]
OBJECTIVES = ("ips", "lambda_ips", "beta_ips", "running_beta_ips", "dr", "snips", "value_beta_ips")
FULL_BATCH_ONLY = ("snips", "value_beta_ips")
TUNED = tuple(round(0.6 + 0.05 * k, 2) for k in range(8))  # λ tried for BanditNet, as published


def check_options(objective: str, batch_size: int | None, norms: str | None) -> None:
    """Options that make sense whatever the log."""
    if objective not in OBJECTIVES:
        raise OptionError(f"no objective {objective!r}; there are {', '.join(OBJECTIVES)}.")
    if objective in FULL_BATCH_ONLY and batch_size is not None:
        raise OptionError(f"{objective} is no sum over rows, and mini-batches would bias it: pass batch_size=None.")
    if norms not in (None, "last_layer", "all"):
        raise OptionError(f"norms must be 'last_layer' or 'all'; found {norms!r}.")


def whole(name: str, value: Any, least: int) -> int:
    """A whole number, whichever library's; 1.5 is not rounded, as it must be a mistake."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) < 2**63:
        raise OptionError(f"{name} must be a whole number of at least {least}; found {value!r}.")
    return int(value)


def number(name: str, value: Any, says: str, allowed: Callable[[float], bool]) -> float:
    """A number that is allowed, whichever library's; `says` which are."""
    if isinstance(value, bool) or not isinstance(value, Real) or not allowed(float(value)):
        raise OptionError(f"{name} must {says}; found {value!r}.")
    return float(value)


def shifts(shift: Any) -> float | tuple[float, ...] | None:
    """λ of BanditNet: one, several to choose from, or None for those of the paper."""
    if shift is None:
        return None
    says = "be a number, several to choose from, or None for 0.6, 0.65, …, 0.95"
    if isinstance(shift, Real):
        return number("shift", shift, says, math.isfinite)
    if isinstance(shift, str) or not isinstance(shift, Iterable):
        raise OptionError(f"shift must {says}; found {shift!r}.")
    several = tuple(number("shift", one, says, math.isfinite) for one in shift)
    if not several:
        raise OptionError(f"shift must {says}; found none.")
    return several


def check_policy(policy: Any, n_actions: int | None) -> None:
    """A policy of ours, or a module wrapped into one."""
    if policy is None:
        return
    if not isinstance(policy, Policy):
        raise OptionError(
            f"policy must be a Policy; found {type(policy).__name__}. Wrap a module that gives a logit per action in "
            "ModulePolicy(module, n_actions=…)."
        )
    if n_actions not in (None, policy.n_actions):
        raise OptionError(f"n_actions is {n_actions}, but the policy has {policy.n_actions} actions: leave it out.")


def check_sizes(log: Log, found: Inspection, batch_size: int | None, holdout: float) -> None:
    """Options that make sense for this log."""
    modelled = None if log.memory is None else log.memory.model_rewards
    if modelled is not None and modelled.shape[1] != found.n_actions:
        raise OptionError(
            f"model_rewards must have a column for each of {found.n_actions:,} actions; found {modelled.shape[1]:,}. If the log "
            "lacks some of the actions, pass n_actions."
        )
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
