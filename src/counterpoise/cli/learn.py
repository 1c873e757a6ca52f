"""`counterpoise learn`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from counterpoise.cli import options
from counterpoise.cli.running import ends_at_once
from counterpoise.errors import OptionError

FLATTERS = (
    "These rows also chose the epoch, so that the value flatters the policy: evaluate it on a log it has not seen."
)


@ends_at_once
def learn(
    log: Annotated[str, typer.Argument(help="Parquet files: a file, folder or glob; they may be larger than memory.")],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="File for the policy (safetensors); `load_policy` reads it.")
    ],
    context: Annotated[list[str], typer.Option(metavar="COLUMN", help="Column of the context; repeat for more.")],
    action: Annotated[
        str, typer.Option(metavar="COLUMN", help="Column of the logged action: whole numbers.")
    ] = "action",
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
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    json: options.Json = False,
) -> None:
    """Learn a linear softmax policy from a log, keep the best epoch by its held-out value, and save it.

    \b
    Examples:
      counterpoise learn log.parquet --context age --context income --action item --out policy.safetensors
    """
    if find_spec("torch") is None or find_spec("safetensors") is None:
        raise OptionError("learning needs PyTorch: pip install 'counterpoise[learn]'.")
    _check_free(out, force)
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
            "file": str(out),
            "epoch": learner.best_epoch_,
            "value": best.value,
            "lower": best.lower,
            "upper": best.upper,
            "mean_reward": learner.mean_reward_,
            "n_actions": learner.policy_.n_actions,
            "note": FLATTERS,
        }
        print(as_text(found))
        return
    print(f"{out}: the policy of epoch {learner.best_epoch_}, by β-IPS on rows kept from training:")
    print(f"{best.value:.6g} per row, between {best.lower:.6g} and {best.upper:.6g};")
    print(f"the policy that wrote the log earned {learner.mean_reward_:.6g} per row.")
    print(FLATTERS)
    ids = learner.policy_.actions_
    if ids is not None:
        print(f"{len(ids):,} actions: the distinct ids of {action!r}, from {ids[0]} to {ids[-1]}.")


def _check_free(out: Path, force: bool) -> None:
    """Before training, which may take hours: the policy can go where it is to go."""
    if out.is_dir():
        raise OptionError(f"{str(out)!r} is a folder: name a file, such as {str(out / 'policy.safetensors')!r}.")
    if not out.parent.is_dir():
        raise OptionError(f"there is no folder {str(out.parent)!r}: make it, or name a file in a folder that exists.")
    if out.exists() and not force:
        raise OptionError(f"{str(out)!r} is there already: name another file, or overwrite it with --force.")
