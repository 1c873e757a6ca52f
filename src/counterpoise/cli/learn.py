"""This file holds `counterpoise learn`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from counterpoise.cli import options
from counterpoise.cli.running import without_traceback
from counterpoise.errors import OptionError


@without_traceback
def learn(
    log: Annotated[str, typer.Argument(help="Parquet files: a file, folder or glob; they may be larger than memory.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the policy goes.")],
    context: Annotated[list[str], typer.Option(metavar="COLUMN", help="Column of the context; repeat for more.")],
    action: Annotated[str, typer.Option(metavar="COLUMN", help="Column of the logged action, 0, 1, …")] = "action",
    reward: Annotated[str, typer.Option(metavar="COLUMN", help="Column of the reward.")] = "reward",
    propensity: Annotated[str, typer.Option(metavar="COLUMN", help="Column of the propensity.")] = "propensity",
    objective: Annotated[
        str, typer.Option(help="beta_ips, running_beta_ips, ips or lambda_ips; snips and value_beta_ips in full batch.")
    ] = "beta_ips",
    epochs: Annotated[int, typer.Option(metavar="N", help="Passes over the log.")] = 20,
    batch_size: Annotated[int, typer.Option(metavar="N", help="Rows of a step; 0 for the full batch.")] = 1024,
    learning_rate: Annotated[float, typer.Option(metavar="RATE", help="Of Adam.")] = 0.01,
    seed: Annotated[int, typer.Option(metavar="S", help="The same seed gives the same policy.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the folder.")] = False,
    json: options.Json = False,
) -> None:
    """Learn a linear softmax policy from a log, keep the best epoch by its held-out value, and save it.

    \b
    Examples:
      counterpoise learn log.parquet --context age --context income --action item --out policy
    """
    if find_spec("torch") is None or find_spec("safetensors") is None:
        raise OptionError("learning needs PyTorch: pip install 'counterpoise[learn]'.")
    if out.exists() and not force:
        raise OptionError(f"{str(out)!r} is there already: name another folder, or overwrite it with --force.")
    from counterpoise.documents import as_text
    from counterpoise.learn import PolicyLearner

    chosen: Any = objective
    learner = PolicyLearner(
        chosen, epochs=epochs, batch_size=batch_size or None, learning_rate=learning_rate, seed=seed, device=device
    )
    learner.fit(log, context=context, action=action, reward=reward, propensity=propensity)
    learner.save(out)
    best = next(one for one in learner.history_ if one.epoch == learner.best_epoch_)
    if json:
        found = {
            "folder": str(out),
            "epoch": learner.best_epoch_,
            "value": best.value,
            "lower": best.lower,
            "upper": best.upper,
        }
        print(as_text(found))
        return
    print(f"{out}: the policy of epoch {learner.best_epoch_}, by β-IPS on rows kept from training:")
    print(f"{best.value:.6g} per row, between {best.lower:.6g} and {best.upper:.6g}.")
