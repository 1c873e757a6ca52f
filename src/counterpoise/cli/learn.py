"""`counterpoise learn`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from counterpoise.cli import options
from counterpoise.cli.running import ends_at_once
from counterpoise.errors import OptionError

FLATTERS = (
    "The same rows chose the epoch, so this value flatters the policy: evaluate it on a log that it has not seen."
)


@ends_at_once
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
    objective: Annotated[
        str,
        typer.Option(
            help="beta_ips, running_beta_ips, ips or lambda_ips; with --batch-size 0 also snips and value_beta_ips."
        ),
    ] = "beta_ips",
    table: options.TableName = None,
    query: options.Query = None,
    where: options.Where = None,
    drop_bad_rows: options.DropBadRows = False,
    epochs: Annotated[int, typer.Option(metavar="N", help="Passes over the log.")] = 20,
    batch_size: Annotated[int, typer.Option(metavar="N", help="Rows per step; 0 for the full batch.")] = 1024,
    learning_rate: Annotated[float, typer.Option(metavar="RATE", help="Learning rate of Adam.")] = 0.01,
    seed: Annotated[int, typer.Option(metavar="S", help="The same seed gives the same policy.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    json: options.Json = False,
) -> None:
    """Learn a linear softmax policy from a log, keep the best epoch by its held-out value, and save it.

    \b
    Examples:
      counterpoise learn log.parquet --context age --context income --action item --out policy.safetensors
    """
    if find_spec("torch") is None or find_spec("safetensors") is None:
        raise OptionError("learning needs PyTorch.", do="Run pip install 'counterpoise[learn]'.")
    _check_free(out, force)
    from counterpoise.evaluation.documents import as_text
    from counterpoise.learn import PolicyLearner

    learner = PolicyLearner(
        objective,
        epochs=epochs,
        batch_size=batch_size or None,
        learning_rate=learning_rate,
        seed=seed,
        device=device,
        folds=None,
    )
    learner.fit(
        log[0] if len(log) == 1 else log,
        context=context,
        action=action,
        reward=reward,
        propensity=propensity,
        candidates=candidates,
        table=options.table_path(table),
        query=query,
        where=where,
        drop_bad_rows=drop_bad_rows,
    )
    learner.save(out)
    best = next(one for one in learner.history_ if one.epoch == learner.best_epoch_)
    if json:
        found = {
            "file": str(out),
            "epoch": learner.best_epoch_,
            "value": best.value,
            "lower": best.lower,
            "upper": best.upper,
            "mean_reward": learner.mean_reward_,
            "dropped_rows": learner.dropped_rows_,
            "n_actions": learner.policy_.n_actions,
            "note": FLATTERS,
        }
        print(as_text(found))
        return
    print(f"{out}: the policy of epoch {learner.best_epoch_}. By β-IPS on rows held out from training it would earn")
    print(f"{best.value:.6g} per row, between {best.lower:.6g} and {best.upper:.6g};")
    print(f"the policy that wrote the log earned {learner.mean_reward_:.6g} per row.")
    if learner.dropped_rows_:
        print(f"{learner.dropped_rows_:,} bad rows were left out.")
    print(FLATTERS)
    ids = learner.policy_.actions_
    if ids is not None:
        print(f"{len(ids):,} actions: the distinct ids of {action!r}, from {ids[0]} to {ids[-1]}.")


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
