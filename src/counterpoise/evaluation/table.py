"""`Frame`: the table of an answer as a polars frame, which prints as the answer does."""

from __future__ import annotations

import polars as pl

from counterpoise.display import Table, above


class Frame(pl.DataFrame):
    """A polars frame in every respect, except that it prints every row and column, to the digits of their errors."""

    cells: Table | None = None

    def _cells(self) -> Table:
        """The cells it was made from; once it has changed, cells of its own values."""
        if self.cells is not None and self.equals(_as_frame(self.cells)):
            return self.cells.whole()
        return Table(self.to_dicts(), shown=self.columns)

    def __str__(self) -> str:
        return str(self._cells())

    __repr__ = __str__

    def _repr_html_(self, *, _from_series: bool = False) -> str:
        return str(above().table_card(self._cells()))


def frame(table: Table) -> Frame:
    """All columns of a table as a frame."""
    made = _as_frame(table)
    made.cells = table
    return made


def _as_frame(table: Table) -> Frame:
    return Frame(table.records(), infer_schema_length=None)
