"""What one writes without a library of estimators, in SQL for DuckDB."""

from __future__ import annotations

from collections.abc import Callable

import duckdb
import polars as pl

from peer.data import File, Lists, Log
from peer.polars_by_hand import Estimates, estimates, frame_of, normal

VERSION = ("duckdb", "duckdb")


def means(k: int = 0, target: str = "", value: str = "") -> str:
    """The means of what the estimators of a target, and their errors, are made of."""
    target, value = target or f"target{k}", value or f"model_value{k}"
    w = f"({target} / propensity)"
    wr, dr = f"({w} * reward)", f"({value} + {w} * (reward - model_reward))"
    products = {
        "w": w,
        "wr": wr,
        "ww": f"{w} * {w}",
        "wwr": f"{w} * {wr}",
        "wrwr": f"{wr} * {wr}",
        "dr": dr,
        "drdr": f"{dr} * {dr}",
    }
    return ", ".join(f"avg({product}) AS {name}{k}" for name, product in products.items())


def only_row(query: str, connection: duckdb.DuckDBPyConnection) -> dict[str, float]:
    answer = connection.execute(query)
    return dict(zip([column[0] for column in answer.description], answer.fetchone(), strict=True))


def evaluate(log: Log) -> Callable[[], Estimates]:
    connection = duckdb.connect()
    connection.register("log", frame_of(log).to_arrow())
    return lambda: estimates(only_row(f"SELECT {means()} FROM log", connection), log.rows)


def targets(log: Log) -> Callable[[], Estimates]:
    connection, count = duckdb.connect(), range(len(log.policies))
    connection.register("log", frame_of(log, count).to_arrow())

    def call() -> Estimates:
        found = only_row(f"SELECT {', '.join(means(k) for k in count)} FROM log", connection)
        return {f"{k} {name}": one for k in count for name, one in estimates(found, log.rows, k).items()}

    return call


def files(file: File) -> Callable[[], Estimates]:
    def call() -> Estimates:
        query = f"SELECT {means(0, 'target', 'model_value')}, count(*) AS n FROM read_parquet('{file.path}')"
        found = only_row(query, duckdb.connect())
        return estimates(found, int(found["n"]))

    return call


def lists(log: Lists) -> Callable[[], Estimates]:
    """Independent, cascade and standard weights."""
    connection = duckdb.connect()
    names = ("slate", "position", "reward", "propensity", "target")
    connection.register("log", pl.DataFrame({name: getattr(log, name) for name in names}).to_arrow())
    kinds = ("iips", "rips", "sips")

    def call() -> Estimates:
        rows = """SELECT slate, reward, target / propensity AS w,
            product(target / propensity) OVER (PARTITION BY slate ORDER BY position) AS above FROM log"""
        sums = f"SELECT sum(w * reward) AS iips, sum(above * reward) AS rips, product(w) * sum(reward) AS sips FROM ({rows}) GROUP BY slate"
        figures = ", ".join(f"avg({kind}) AS {kind}, var_pop({kind}) AS {kind}_spread" for kind in kinds)
        found = only_row(f"SELECT {figures}, count(*) AS n FROM ({sums})", connection)
        return {kind: normal(found[kind], found[f"{kind}_spread"], int(found["n"])) for kind in kinds}

    return call
