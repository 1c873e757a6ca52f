"""What one writes without a library of estimators, in polars."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl

from peer.data import File, Lists, Log

VERSION = ("polars", "polars")
Estimates = dict[str, tuple[float, float, float]]


def means(k: int = 0) -> list[pl.Expr]:
    """The means of what the estimators of a target, and their errors, are made of."""
    r, w = pl.col("reward"), pl.col(f"target{k}") / pl.col("propensity")
    dr = pl.col(f"model_value{k}") + w * (r - pl.col("model_reward"))
    wr = w * r
    products = {"w": w, "wr": wr, "ww": w * w, "wwr": w * wr, "wrwr": wr * wr, "dr": dr, "drdr": dr * dr}
    return [product.mean().alias(f"{name}{k}") for name, product in products.items()]


def estimates(found: dict[str, float], n: int, k: int = 0) -> Estimates:
    """IPS, SNIPS, β-IPS with the best β, and DR, with normal intervals by the delta method, from the means."""
    w, wr, ww, wwr, wrwr, dr, drdr = (found[f"{name}{k}"] for name in ("w", "wr", "ww", "wwr", "wrwr", "dr", "drdr"))
    snips = wr / w
    beta = (wwr - w * wr) / (ww - w * w)
    spread = wrwr - wr * wr
    return {
        "ips": normal(wr, spread, n),
        "snips": normal(snips, (wrwr - 2 * snips * wwr + snips * snips * ww) / (w * w), n),
        "beta_ips": normal(wr - beta * (w - 1), spread - beta * (wwr - w * wr), n),
        "dr": normal(dr, drdr - dr * dr, n),
    }


def normal(value: float, variance: float, n: int) -> tuple[float, float, float]:
    reach = 1.959963984540054 * (max(variance, 0.0) / n) ** 0.5
    return value, value - reach, value + reach


def frame_of(log: Log, count: Sequence[int] = (0,)) -> pl.DataFrame:
    given = {"reward": log.reward, "propensity": log.propensity, "model_reward": log.model_reward}
    given |= {f"target{k}": log.target(k) for k in count} | {f"model_value{k}": log.model_value(k) for k in count}
    return pl.DataFrame(given)


def evaluate(log: Log) -> Callable[[], Estimates]:
    frame = frame_of(log)
    return lambda: estimates(frame.select(means()).row(0, named=True), len(frame))


def targets(log: Log) -> Callable[[], Estimates]:
    count = range(len(log.policies))
    frame = frame_of(log, count)

    def call() -> Estimates:
        found = frame.select(each for k in count for each in means(k)).row(0, named=True)
        return {f"{k} {name}": one for k in count for name, one in estimates(found, len(frame), k).items()}

    return call


def files(file: File) -> Callable[[], Estimates]:
    def call() -> Estimates:
        scan = pl.scan_parquet(file.path).rename({"target": "target0", "model_value": "model_value0"})
        found = scan.select(*means(), pl.len().alias("n")).collect(engine="streaming").row(0, named=True)
        return estimates(found, found["n"])

    return call


def lists(log: Lists) -> Callable[[], Estimates]:
    """Independent, cascade and standard weights."""
    names = ("slate", "position", "reward", "propensity", "target")
    frame = pl.DataFrame({name: getattr(log, name) for name in names})
    w, r = pl.col("w"), pl.col("reward")

    def call() -> Estimates:
        rows = frame.with_columns(w=pl.col("target") / pl.col("propensity")).sort("slate", "position")
        sums = rows.group_by("slate").agg(
            iips=(w * r).sum(), rips=(w.cum_prod() * r).sum(), sips=w.product() * r.sum()
        )  # fmt: skip
        return {name: normal(sums[name].mean(), sums[name].var(ddof=0), len(sums)) for name in ("iips", "rips", "sips")}

    return call
