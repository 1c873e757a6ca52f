"""The loggers of a log side by side: balanced, naively pooled, each alone, and all by inverse variance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from counterpoise.errors import Argument, Blank, OptionError
from counterpoise.estimators import Estimate
from counterpoise.evaluation.answer import evaluated
from counterpoise.evaluation.asking import Stored, read
from counterpoise.evaluation.estimates import options_of
from counterpoise.evaluation.loggers import by_logger, of_own_logger
from counterpoise.evaluation.result import Result
from counterpoise.evaluation.table import Table
from counterpoise.intervals.method import normal
from counterpoise.log.question import lean
from counterpoise.weights import Balanced

BETA_IPS = "beta_ips"


def logger_table(result: Result, target: str) -> pl.DataFrame:
    """See `Result.loggers`."""
    question = result.asked()
    weight = question.weight
    if not isinstance(weight, Balanced):
        raise OptionError(
            "one policy wrote this log, as far as it was said.",
            do=[
                "For several, pass ",
                Argument("propensity", {"a": Blank("…"), "b": Blank("…")}),
                " and ",
                Argument("logger"),
                ".",
            ],
        )
    balanced = result[target, BETA_IPS]
    plain = replace(lean(question), segment=())
    (found,) = read(by_logger(plain), Stored(), False).moments
    stack = found.moments[target, ""].merge(axis=1)
    carried = {
        str(label[0]): float(n * (1.0 + u))
        for label, n, u in zip(found.segments, stack.n, stack.average("u"), strict=True)
    }
    naive = replace(of_own_logger(plain), segment=(weight.logger,))
    options = options_of(
        result.interval_method,
        result.level,
        (result.reward,),
        is_clustered=found.cluster is not None,
        reward_bounds=result.reward_bounds,
    )
    apart = evaluated(read(naive, Stored(), False), options, (BETA_IPS,))
    each = {str(name): apart[target, BETA_IPS, name] for name in weight.loggers}
    total = sum(carried.values()) or math.nan
    rows = [
        _row("balanced", balanced),
        _row("naive pooling", apart[target, BETA_IPS]),
        _mixed(list(each.values()), result.level),
    ]
    rows += [_row(f"{name} alone", one) | {"weight_share": carried[name] / total} for name, one in each.items()]
    return Table([{name: row.get(name) for name in COLUMNS} for row in rows], infer_schema_length=None)


COLUMNS = ("how", "value", "stderr", "lower", "upper", "n", "weight_share")


def _row(how: str, one: Estimate) -> dict[str, Any]:
    value = one.value if one.identified else None
    ends = {"lower": one.interval.lower, "upper": one.interval.upper}
    return {"how": how, "value": value, "stderr": one.stderr, **ends, "n": one.n}


def _mixed(parts: Sequence[Estimate], level: float) -> dict[str, Any]:
    """The mean of estimates by their inverse variances, which are themselves estimated: of loggers with few large weights, too small."""
    known = [one for one in parts if one.identified and 0 < one.stderr < math.inf]
    mass = sum(one.stderr**-2 for one in known)
    if not mass:
        return {
            "how": "inverse variance",
            "value": None,
            "stderr": math.inf,
            "lower": -math.inf,
            "upper": math.inf,
            "n": 0,
        }
    value, error = sum(one.value * one.stderr**-2 for one in known) / mass, mass**-0.5
    low, high = normal(value, error, level)
    n = sum(one.n for one in known)
    return {
        "how": "inverse variance",
        "value": value,
        "stderr": error,
        "lower": low,
        "upper": high,
        "n": n,
    }
