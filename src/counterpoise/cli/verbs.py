"""`counterpoise doctor`, `plan`, `ab-test` and the like: commands that answer with one page of text, each a verb of the library."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

import counterpoise as cp
from counterpoise.cli.options import (
    TARGETS,
    Json,
    Title,
    Typed,
    answer_option,
    log_option,
    numbers,
    pairs,
    table_of,
    table_path,
    takes,
    target_option,
    typed_targets,
)
from counterpoise.cli.printing import console, print_json, show, show_blocks
from counterpoise.cli.running import check_free, ends_at_once, writing
from counterpoise.cli.settings import check_title, command_line
from counterpoise.errors import OptionError
from counterpoise.log.parts import MODELS, usual
from counterpoise.log.question import LOGGING

Html = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a report for people to read.")]
# what `simulate` writes
FORMATS = {".parquet": "write_parquet", ".csv": "write_csv", ".arrow": "write_ipc", ".jsonl": "write_ndjson"}
# parts that say how to estimate, and make no difference to the doctor
ESTIMATING = (
    *MODELS,
    "context",
    "candidates",
    "control",
    "baseline",
    "discount",
    "groups",
    "reward_bounds",
    "drop_bad_rows",
)


@ends_at_once
@takes("no_cluster", "no_minimize", "target_action", "always", verb="doctor", without=ESTIMATING)
def doctor(
    typed: Typed,
    *,
    target: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="A target's probability of the logged action; may be repeated; guessed."),
    ] = None,
    segment: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Check mean weights for every value of this column; may be repeated."),
    ] = None,
    day: Annotated[
        str | None,
        answer_option(metavar="COLUMN", help="Check mean weights by this day or time; a lone date column is found."),
    ] = None,
    probabilities: Annotated[
        list[str] | None,
        log_option(
            metavar="COLUMN",
            help="The logging policy's probabilities of all actions: a list column, or repeat it for a column each, in the "
            "actions' order or as ACTION=COLUMN.",
        ),
    ] = None,
) -> None:
    """What a log looks like, whether its propensities and rewards can be right, and what to fix first.

    \b
    Examples:
      counterpoise doctor log.parquet
      counterpoise doctor log.parquet --target pi_new --key request_id --json
      counterpoise doctor log.parquet --action item --segment country --day time
      counterpoise doctor log.parquet --action item --target-action item_new
    """
    parts = typed.arguments()
    chosen = typed_targets((), parts.pop("target_action"), (), parts.pop("always"))
    columns: str | list[str] | dict[str, str] | None = probabilities or None
    if probabilities and all("=" in column for column in probabilities):
        columns = {action: name for action, _, name in (column.partition("=") for column in probabilities)}
    elif probabilities and len(probabilities) == 1:
        columns = probabilities[0]
    examination = cp.doctor(
        typed.data,
        **parts,
        target={**{column: column for column in target or ()}, **chosen},
        segment=segment or (),
        day=day,
        probabilities=columns,
    )
    show(typed, examination)


@ends_at_once
@takes(*TARGETS, "interval", "tuned_for", verb="plan")
def plan(
    typed: Typed,
    *,
    difference: Annotated[
        str,
        answer_option(
            metavar="D",
            help="The difference that matters: in units of the reward, or as a share of what the logging policy earned, such as 5%.",
        ),
    ],
    power: Annotated[float, answer_option(metavar="SHARE", help="Chance to see a difference that is there.")] = 0.8,
    actions: Annotated[
        int | None, answer_option(metavar="K", help="Number of actions, to see what exploring would save.")
    ] = None,
) -> None:
    """How many rows it takes to know a target to within ± D, or to see a difference of D; and what exploring would save.

    \b
    Examples:
      counterpoise plan log.parquet --target pi_new --difference 5%
      counterpoise plan log.parquet --target pi_new --difference 0.01 \\
        --actions 10 --cluster user_id
    """
    try:
        size = difference if difference.strip().endswith("%") else float(difference)
    except ValueError:
        raise OptionError(f"`{difference=}` is neither a number nor a share such as 5%.") from None
    show(typed, cp.plan(typed.data, **typed.question(), difference=size, power=power, actions=actions))


@ends_at_once
@takes(*TARGETS, "weight", "interval", verb="distribution")
def distribution(
    typed: Typed,
    *,
    quantile: Annotated[
        list[float] | None,
        answer_option(
            metavar="SHARE", help="The reward that this share does not exceed; may be repeated (0.1 … 0.9 by default)."
        ),
    ] = None,
    cvar: Annotated[
        list[float] | None,
        answer_option(metavar="SHARE", help="The mean of this share of the rewards, the lowest; may be repeated."),
    ] = None,
    threshold: Annotated[
        list[float] | None,
        answer_option(metavar="REWARD", help="Where to look at the distribution; may be repeated; by default, chosen."),
    ] = None,
) -> None:
    """How the reward would be distributed under target policies: its quantiles, and the mean of its lowest part (CVaR).

    The logging policy is listed beside them, as "logging".

    \b
    Examples:
      counterpoise distribution log.parquet --target pi_new
      counterpoise distribution log.parquet --reward revenue --quantile 0.5 \\
        --cvar 0.1 --json
      counterpoise distribution log.parquet --reward "-latency" \\
        --target pi_new --cvar 0.01
    """
    answer = cp.distribution(typed.data, **typed.question(), thresholds=threshold or None)
    chosen = answer.statistics(quantile or (), cvar or ()) if quantile or cvar else None
    if typed["json"]:
        print_json(answer.document(chosen))
    else:
        show_blocks(console(), answer.blocks(rows=None, statistics=chosen))


@ends_at_once
@takes(*TARGETS, verb="sensitivity")
def sensitivity(
    typed: Typed,
    *,
    against: Annotated[
        str,
        target_option(
            metavar="[NAME=]EXPRESSION",
            help="The policy that the conclusion is about: the name of a target, what --target takes, or logging for the logging policy.",
        ),
    ] = LOGGING,
    gamma: Annotated[
        list[float] | None,
        answer_option(
            metavar="FACTOR", help="How far odds may be wrong, at least 1; may be repeated (1, 1.2, 1.5, 2 by default)."
        ),
    ] = None,
) -> None:
    """What target policies could have earned if the propensities were wrong, and how wrong they must be for a conclusion to flip.

    The odds of every logged action may be wrong by a factor of up to gamma, in whatever way is worst.

    \b
    Examples:
      counterpoise sensitivity log.parquet --target pi_new
      counterpoise sensitivity log.parquet --target pi_new --against pi_old
      counterpoise sensitivity log.parquet --target pi_new --gamma 1.1 \\
        --gamma 3 --json
    """
    question = typed.question(against=against) | ({"gamma": gamma} if gamma else {})
    show(typed, cp.sensitivity(typed.data, **question))


@ends_at_once
@takes(
    "no_cluster",
    "no_minimize",
    "interval",
    "level",
    "unit",
    verb="ab_test",
    without=("action", "context", "candidates", "key"),
)
def ab_test(
    typed: Typed,
    *,
    arm: Annotated[str, log_option(metavar="COLUMN", help="Which arm a row belongs to.")] = "arm",
    against: Annotated[
        str | None, answer_option(metavar="ARM", help="The arm to compare with; the first by default.")
    ] = None,
    propensity: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ARM=COLUMN",
            help="An arm's policy's probability of the logged action; one for every arm, to pool them.",
        ),
    ] = None,
    shares: Annotated[
        list[str] | None, log_option(metavar="ARM=SHARE", help="An arm's planned share of the rows; one for every arm.")
    ] = None,
    html: Html = None,
    title: Title = None,
) -> None:
    """How much more one arm of a randomized test earned than another: in means, adjusted for context, and pooled off-policy.

    \b
    Examples:
      counterpoise ab-test test.parquet --reward click --shares A=0.5 \\
        --shares B=0.5
      counterpoise ab-test test.parquet --reward click --baseline visits \\
        --cluster user_id
      counterpoise ab-test test.parquet --reward click --propensity A=p_a \\
        --propensity B=p_b
    """
    check_title(html, title)
    values = typed.arguments()
    if values["reward"] is None:
        values["reward"] = usual("reward", typed.columns)
    test = cp.ab_test(
        typed.data,
        **values,
        arm=arm,
        against=against,
        propensity=pairs("propensity", propensity),
        shares=numbers("shares", pairs("shares", shares)),
    )
    test = test if typed["unit"] is None else test.with_unit(typed["unit"])
    if html is not None:
        test.report(html, command=command_line(), title=title)
    show(typed, test)


@ends_at_once
@takes(
    "no_cluster",
    "no_minimize",
    "interval",
    "level",
    verb="backtest",
    without=("log", "table", "query", "external_access", "timeout"),
)
def backtest(
    typed: Typed,
    *,
    tests: Annotated[
        Path,
        typer.Argument(
            metavar="TABLE.CSV",
            help="One row per test: test, log, measured, stderr (or lower and upper), and maybe target and against.",
        ),
    ],
    reward: Annotated[str, typer.Option(metavar="COLUMN", help="The reward in every log.")] = "reward",
    propensity: Annotated[str, typer.Option(metavar="COLUMN", help="The propensity in every log.")] = "propensity",
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="The target, where the table has none.")] = None,
    html: Html = None,
) -> None:
    """What we would have said before earlier A/B tests, next to what they measured: coverage, signs and calibration.

    \b
    Example:
      counterpoise backtest tests.csv --reward click --target pi_new \\
        --html backtest.html
    """
    if not tests.is_file():
        raise OptionError(f"there is no file {str(tests)!r}.")
    rows = table_of(str(tests)).to_dicts()
    lacking = [name for name in ("test", "log", "measured") if not rows or name not in rows[0]]
    if lacking:
        raise OptionError(f"{str(tests)!r} has no column {lacking[0]!r}: it needs test, log, measured and stderr.")
    logs = {str(row["test"]): str(row["log"]) for row in rows}
    outcome = cp.backtest(logs, rows, target=target, reward=reward, propensity=propensity, **typed.arguments())
    if html is not None:
        outcome.report(html)
    show(typed, outcome)


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
    from polars.exceptions import PolarsError

    from counterpoise.environments.synthetic import simulated_log
    from counterpoise.readers.files import engine_name

    if out.suffix.lower() not in FORMATS:
        raise OptionError(f"cannot tell the format of {str(out)!r}; known endings are {', '.join(FORMATS)}.")
    check_free(out, force=force, such_as="log.parquet")
    log, truth = simulated_log(rows, n_actions=actions, inverse_temperature=inverse_temperature, seed=seed)
    with writing(out) as part:
        try:
            getattr(log, FORMATS[out.suffix.lower()])(engine_name(part))
        except (PolarsError, OSError) as error:  # a full disk is reported as such, whatever the engine raises
            number = re.search(r"\(os error (\d+)\)", str(error))
            if number is None:
                raise
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
    if json:
        print_json({"file": str(out), "rows": len(log), "truth": truth})
        return
    print(f"{out}: {len(log):,} rows, columns {', '.join(log.columns)}.")
    print("True values, known because the log is simulated:")
    for name, value in truth.items():
        print(f"  {name:<12}{value:.6f}")


@ends_at_once
@takes("target_action", "action", "segment", "cluster", "where")
def sql(
    typed: Typed,
    *,
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="The log's table; shop.logs is logs in the schema shop.")
    ],
    dialect: Annotated[str, typer.Option(metavar="NAME", help="bigquery, snowflake, trino, postgres, duckdb, …")],
    reward: Annotated[str, typer.Option(metavar="COLUMN", help="Column of the reward, or an expression.")],
    propensity: Annotated[str, typer.Option(metavar="COLUMN", help="Column of the propensity, or an expression.")],
    target: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]EXPRESSION", help="A target's column, or an SQL expression; may be repeated."),
    ] = None,
    center: Annotated[
        float, typer.Option(metavar="REWARD", help="A number near the mean reward: sums far from it lose digits.")
    ] = 0.0,
) -> None:
    """Print the one aggregate statement that evaluate would run, for a database that only you can reach.

    Its answer, a few rows, goes to `counterpoise.from_sums` in Python.

    \b
    Example:
      counterpoise sql logs --dialect bigquery --reward click --propensity p \\
        --target pi_new
    """
    values = typed.arguments()
    targets = typed_targets(target, values.pop("target_action"), ())
    place = table_path(table)
    values |= {"table": place, "reward": reward, "propensity": propensity, "target": targets, "center": center}
    print(cp.sql(dialect=dialect, **values))
