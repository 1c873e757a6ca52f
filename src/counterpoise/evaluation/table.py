"""`Table`: a polars frame that prints in full."""

from __future__ import annotations

import shutil

import polars as pl


class Table(pl.DataFrame):
    """A polars frame in every respect, except that it prints every row and column."""

    def __str__(self) -> str:
        with _whole(), pl.Config(tbl_width_chars=max(shutil.get_terminal_size().columns, 120)):
            return super().__str__()

    __repr__ = __str__

    def _repr_html_(self, *, _from_series: bool = False) -> str:
        with _whole():
            return super()._repr_html_()


def _whole() -> pl.Config:
    return pl.Config(
        tbl_rows=-1,
        tbl_cols=-1,
        tbl_hide_dataframe_shape=True,
        tbl_hide_column_data_types=True,
        tbl_formatting="UTF8_FULL_CONDENSED",
        fmt_str_lengths=60,
    )
