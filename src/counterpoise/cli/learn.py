"""`counterpoise learn`."""

from __future__ import annotations

import os
import secrets
import sys
import warnings
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from counterpoise.cli import options
from counterpoise.cli.running import ends_at_once
from counterpoise.cli.wording import written
from counterpoise.errors import Argument, OptionError
from counterpoise.log.log import LogFields

FOLDS = "By policies learned like it, each on rows that it has not seen."


@partial(ends_at_once, on_second=True)
def learn(
    log: Annotated[
        list[str],
        typer.Argument(
            help="Files (Parquet, which may be larger than memory, CSV, Arrow, JSON lines), a folder or a glob; or a DuckDB file or "
            "postgresql:// URL."
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="File for the policy (safetensors); `evaluate --target` takes it.")
    ],
    context: Annotated[list[str], typer.Option(metavar="COLUMN", help="Column of the context; repeat for more.")],
    action: Annotated[
        str, typer.Option(metavar="COLUMN", help="Column of the logged action: whole numbers or text.")
    ] = "action",
    reward: Annotated[str, typer.Option(metavar="COLUMN", help="Column of the reward.")] = "reward",
    propensity: Annotated[str, typer.Option(metavar="COLUMN", help="Column of the propensity.")] = "propensity",
    candidates: options.Candidates = None,
    cluster: options.Cluster = None,
    no_cluster: options.NoCluster = False,
    minutes: Annotated[
        float | None, typer.Option(metavar="M", help="How long to try several ways to learn; 1 by default.")
    ] = None,
    fallback: Annotated[
        str,
        typer.Option(
            help="What to do if nothing is surely better than the policy that ran: imitate it, warn or raise."
        ),
    ] = "imitate",
    objective: Annotated[
        str | None,
        typer.Option(
            help="Train a linear softmax policy by gradients, and nothing else, on logs that may be larger than memory: beta_ips, "
            "running_beta_ips, ips, lambda_ips or log_smoothing; with --batch-size 0 also snips and value_beta_ips."
        ),
    ] = None,
    table: options.TableName = None,
    query: options.Query = None,
    where: options.Where = None,
    drop_bad_rows: options.DropBadRows = False,
    epochs: Annotated[
        int | None, typer.Option(metavar="N", help="With --objective: passes over the log; by default, while it helps.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(metavar="N", help="With --objective: rows per step, 1024; 0 for the full batch."),
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(metavar="RATE", help="With --objective: learning rate of Adam, 0.01.")
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="S", help="The same seed gives the same policy, if the same ways to learn are tried.")
    ] = 0,
    device: Annotated[str | None, typer.Option(help="With --objective: cpu or cuda.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    json: options.Json = False,
) -> None:
    """Find a policy on a log: try several ways to learn one, keep the best that is safe, and save it.

    \b
    Examples:
      counterpoise learn log.parquet --context age --context income --action item --out policy.safetensors
      counterpoise learn log.parquet --context age --action item --objective beta_ips --out policy.safetensors
    """
    if find_spec("torch") is None or find_spec("safetensors") is None:
        raise OptionError("learning needs PyTorch.", do="Run pip install 'counterpoise[learn]'.")
    _check_free(out, force)
    from counterpoise.evaluation.documents import as_text
    from counterpoise.learn import LearningWarning

    parts: LogFields = {
        "context": context,
        "action": action,
        "reward": reward,
        "propensity": propensity,
        "cluster": options.cluster_of(cluster, no_cluster),
        "candidates": candidates,
        "table": options.table_path(table),
        "query": query,
        "where": where,
        "drop_bad_rows": drop_bad_rows,
    }
    named = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate, "device": device}
    training = {name: value for name, value in named.items() if value is not None}
    data = log[0] if len(log) == 1 else log
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LearningWarning)
        if objective is None:
            said, numbers = _search(data, parts, out, training, minutes, fallback, seed)
        else:
            said, numbers = _train(data, parts, out, training, minutes, fallback, seed, objective)
    for warning in caught:
        said = warning.message.args[0] if isinstance(warning.message, LearningWarning) else str(warning.message)
        print(f"{warning.category.__name__}: {written(said)}", file=sys.stderr)
    if json:
        print(as_text({"file": str(out), **numbers}))
        return
    print(said)
    if numbers["dropped_rows"]:
        print(f"{numbers['dropped_rows']:,} bad rows were left out.")
    print(f"{out}: the policy, for {numbers['n_actions']:,} actions, the distinct values of {action!r}.")


def _search(
    data: Any, parts: LogFields, out: Path, training: dict[str, Any], minutes: float | None, fallback: str, seed: int
) -> tuple[str, dict[str, Any]]:
    """Several ways to learn: what to say of what was found, and its numbers."""
    from counterpoise.learn import learn_policy

    if training:
        name = next(iter(training))
        raise OptionError(
            [Argument(name), " only works with ", Argument("objective"), "."],
            do=["Pass ", Argument("objective", "beta_ips"), ", or leave out ", Argument(name), "."],
        )
    budget: dict[str, Any] = {} if minutes is None else {"minutes": minutes}
    best = learn_policy(data, fallback=fallback, seed=seed, **budget, **parts)
    best.save(out)
    return str(best), best.to_dict()


def _train(
    data: Any,
    parts: LogFields,
    out: Path,
    training: dict[str, Any],
    minutes: float | None,
    fallback: str,
    seed: int,
    objective: str,
) -> tuple[str, dict[str, Any]]:
    """One way to learn: the same of it."""
    from counterpoise.learn import PolicyLearner
    from counterpoise.learn.judging import doubts

    if minutes is not None:
        raise OptionError([Argument("minutes"), " and ", Argument("objective"), " exclude each other."])
    if training.get("batch_size") == 0:
        training["batch_size"] = None
    learner = PolicyLearner(objective, seed=seed, fallback=fallback, **training)  # type: ignore[arg-type]
    learner.fit(data, **parts)
    learner.save(out)
    result = learner.result_
    value, verdict = result[result.targets[0], "beta_ips"], result.verdict()
    numbers = {
        "kind": learner.kind_,
        "epoch": learner.best_epoch_,
        "value": value.value,
        "lower": value.interval.lower,
        "upper": value.interval.upper,
        "mean_reward": learner.mean_reward_,
        "verdict": verdict.verdict,
        "dropped_rows": learner.dropped_rows_,
        "n_actions": learner.policy_.n_actions,
        "note": FOLDS,
    }
    lines = [
        f"The policy of epoch {learner.best_epoch_} would earn {value.value:.6g} per row, between {value.interval.lower:.6g} and "
        f"{value.interval.upper:.6g}; the policy that wrote the log earned {learner.mean_reward_:.6g} per row.",
        f"{FOLDS} The verdict is {verdict.verdict}.",
    ]
    if hasattr(learner, "rejected_"):
        lines.insert(
            0,
            f"What was learned is not surely better than the policy that ran, so this policy imitates it. {doubts(learner.rejected_)}",
        )
    return "\n".join(lines), numbers


def _check_free(out: Path, force: bool) -> None:
    """Make sure, before training that may take hours, that the policy can be written."""
    if out.is_dir():
        raise OptionError(f"{str(out)!r} is a folder.", do=f"Name a file, such as {str(out / 'policy.safetensors')!r}.")
    if not out.parent.is_dir():
        raise OptionError(
            f"there is no folder {str(out.parent)!r}.", do="Create it, or name a file in a folder that exists."
        )
    if out.exists() and not force:
        raise OptionError(f"{str(out)!r} already exists.", do="Name another file, or pass --force to replace it.")
    if out.exists() and not out.is_file():
        raise OptionError(f"{str(out)!r} is not a regular file.", do="Name another one.")
    trial = out.resolve().parent / f".{secrets.token_hex(6)}"
    try:
        os.close(os.open(trial, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        trial.unlink()
    except OSError as error:
        raise OptionError(
            f"cannot write to the folder {str(trial.parent)!r}: {error.strerror or error}.",
            do="Name a file in a folder that you may write to.",
        ) from error
