"""The loggers of a log side by side: balanced, naively pooled, each alone, and all by inverse variance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from counterpoise.display import Cell, Share, Table, estimate_cells
from counterpoise.errors import Argument, Blank, OptionError
from counterpoise.estimators import Estimate
from counterpoise.evaluation.answer import evaluation_of
from counterpoise.evaluation.asking import Stored, read
from counterpoise.evaluation.estimates import options_of
from counterpoise.evaluation.loggers import by_logger, of_own_logger
from counterpoise.evaluation.result import Result
from counterpoise.evaluation.table import frame
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
    (moments,) = read(by_logger(plain), Stored(), False).moments
    stack = moments.moments[target, ""].merge(axis=1)
    carried = {
        str(label[0]): float(n * (1.0 + u))
        for label, n, u in zip(moments.segments, stack.n, stack.average("u"), strict=True)
    }
    naive = replace(of_own_logger(plain), segment=(weight.logger,))
    options = options_of(
        result.interval_method,
        result.level,
        (result.reward,),
        is_clustered=moments.cluster is not None,
        reward_bounds=result.reward_bounds,
    )
    apart = evaluation_of(read(naive, Stored(), False), options, (BETA_IPS,))
    each = {str(name): apart[target, BETA_IPS, name] for name in weight.loggers}
    total = sum(carried.values()) or math.nan
    rows = [
        _row("balanced", balanced),
        _row("naive pooling", apart[target, BETA_IPS]),
        _row("inverse variance", _mean(list(each.values()), result.level)),
    ]
    rows += [
        _row(f"{name} alone", estimate) | {"weight_share": Share(carried[name] / total)}
        for name, estimate in each.items()
    ]
    return frame(Table([{name: row.get(name) for name in COLUMNS} for row in rows]))


COLUMNS = ("how", "value", "stderr", "lower", "upper", "n", "weight_share")


def _row(how: str, estimate: Estimate) -> dict[str, Cell]:
    return {"how": how, **estimate_cells(estimate.value, estimate.stderr, estimate.interval), "n": estimate.n}


def _mean(parts: Sequence[Estimate], level: float) -> Estimate:
    """The mean of estimates by their inverse variances, which are themselves estimated: of loggers with few large weights, too small."""
    known = [part for part in parts if part.identified and 0 < part.stderr < math.inf]
    mass = sum(part.stderr**-2 for part in known)
    value = sum(part.value * part.stderr**-2 for part in known) / mass if mass else math.nan
    error = mass**-0.5 if mass else math.inf
    return Estimate(BETA_IPS, value, error, sum(part.n for part in known), (), normal(value, error, level))
