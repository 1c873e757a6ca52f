"""`counterpoise simulate`: a log whose truth is known."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from counterpoise.cli.options import Json
from counterpoise.cli.printing import print_json
from counterpoise.cli.running import check_free, ends_at_once, writing
from counterpoise.errors import OptionError

if TYPE_CHECKING:
    import polars as pl

FORMATS = {".parquet": "write_parquet", ".csv": "write_csv", ".arrow": "write_ipc", ".jsonl": "write_ndjson"}


@ends_at_once
def simulate(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write: .parquet, .csv, .arrow or .jsonl.")],
    rows: Annotated[int, typer.Option(metavar="N", help="Rows of the log.")] = 10_000,
    actions: Annotated[int, typer.Option(metavar="K", help="Number of actions.")] = 10,
    inverse_temperature: Annotated[
        float,
        typer.Option(metavar="T", help="Of the logging policy: above 0 it prefers good actions, below 0 bad ones."),
    ] = 1.0,
    seed: Annotated[int, typer.Option(metavar="S", help="The same seed gives the same log.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    json: Json = False,
) -> None:
    """Write a simulated log with two target policies, pi_new and pi_uniform, and print what they truly earn.

    \b
    Examples:
      counterpoise simulate log.parquet
      counterpoise simulate log.csv --rows 100000 --actions 50 --seed 7
    """
    from counterpoise.environments.synthetic import simulated_log

    if out.suffix.lower() not in FORMATS:
        raise OptionError(f"cannot tell the format of {str(out)!r}; known endings are {', '.join(FORMATS)}.")
    check_free(out, force=force, such_as="log.parquet")
    log, truth = simulated_log(rows, n_actions=actions, inverse_temperature=inverse_temperature, seed=seed)
    with writing(out) as part:
        _write(log, part)
    if json:
        print_json({"file": str(out), "rows": len(log), "truth": truth})
        return
    print(f"{out}: {len(log):,} rows, columns {', '.join(log.columns)}.")
    print("True values, known because the log is simulated:")
    for name, value in truth.items():
        print(f"  {name:<12}{value:.6f}")


def _write(log: pl.DataFrame, path: Path) -> None:
    """Write the log in the format of the file's name; a full disk is reported as such, whatever the engine raises."""
    from polars.exceptions import PolarsError

    from counterpoise.readers.files import engine_name

    try:
        getattr(log, FORMATS[path.suffix.lower()])(engine_name(path))
    except (PolarsError, OSError) as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
