"""`counterpoise learn`."""

from __future__ import annotations

import sys
import warnings
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterpoise.cli.options import Typed, propensity_of, takes, training_option
from counterpoise.cli.printing import console, print_json, say
from counterpoise.cli.running import check_free, ends_at_once
from counterpoise.cli.wording import written
from counterpoise.errors import OptionError, Sentence
from counterpoise.log.log import MODEL
from counterpoise.log.parts import usual, which_column

if TYPE_CHECKING:
    from counterpoise.learn import PolicyLearner
    from counterpoise.learn.race import Found

FOLDS = "Estimated with policies learned like it, each evaluated on held-out rows."


@partial(ends_at_once, on_second=True)
@takes(
    "propensity_model",
    "minimize",
    "no_minimize",
    "candidates",
    "cluster",
    "no_cluster",
    "where",
    "table",
    "query",
    "timeout",
    "format",
    "drop_bad_rows",
    "json",
)
def learn(
    typed: Typed,
    *,
    log: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG",
            help="Files (Parquet, which may be larger than memory, CSV, Arrow, JSON lines), a folder or a glob; or a DuckDB file or "
            "postgresql:// URL.",
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="File for the policy (safetensors); `evaluate --target` takes it.")
    ],
    context: Annotated[list[str], typer.Option(metavar="COLUMN", help="Column of the context; repeat for more.")],
    action: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of the logged action: whole numbers or text. Guessed.")
    ] = None,
    reward: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of the reward. Guessed, as evaluate does.")
    ] = None,
    propensity: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of the propensity. Guessed, as evaluate does.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(metavar="M", help="How long to try several ways to learn; 1 by default.")
    ] = None,
    fallback: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help="What to do if nothing is reliably better than the logging policy: imitate it, warn or raise.",
        ),
    ] = "imitate",
    objective: Annotated[
        str | None,
        training_option(
            metavar="NAME",
            help="Train a linear softmax policy by gradients, and nothing else, on logs that may be larger than memory: beta_ips, "
            "running_beta_ips, ips, lambda_ips, log_smoothing or imitation; with --batch-size 0 also snips and value_beta_ips.",
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        training_option(metavar="N", help="With --objective: passes over the log; by default, while it helps."),
    ] = None,
    batch_size: Annotated[
        int | None, training_option(metavar="N", help="With --objective: rows per step, 1024; 0 for the full batch.")
    ] = None,
    learning_rate: Annotated[
        float | None, training_option(metavar="RATE", help="With --objective: learning rate of Adam, 0.01.")
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="S", help="The same seed gives the same policy, if the same ways to learn are tried.")
    ] = 0,
    device: Annotated[str | None, training_option(metavar="NAME", help="With --objective: cpu or cuda.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Find a policy on a log: try several ways to learn one, keep the best that is safe, and save it.

    \b
    Examples:
      counterpoise learn log.parquet --context age --context income \\
        --action item --out policy.safetensors
      counterpoise learn log.parquet --context age --action item \\
        --objective beta_ips --out policy.safetensors
    """
    if find_spec("torch") is None or find_spec("safetensors") is None:
        raise OptionError("learning needs PyTorch.", do="Run pip install 'counterpoise[learn]'.")
    check_free(out, force=force, such_as="policy.safetensors")
    from counterpoise.learn import LearningWarning, PolicyLearner, learn_policy

    parts = typed.arguments() | {"context": context}
    model = parts.pop("propensity_model")
    parts |= _columns(typed, log, action, reward, MODEL if model is not None and propensity is None else propensity)
    parts["propensity"] = propensity_of(parts["propensity"], model)
    named = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate, "device": device}
    training: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    data, how = log[0] if len(log) == 1 else log, dict[str, Any](fallback=fallback, seed=seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LearningWarning)
        best: Found | PolicyLearner
        if objective is None:  # several ways to learn
            for name in training:
                do = f"Pass `objective='beta_ips'`, or leave out `{name}=`."
                raise OptionError(f"`{name}=` only works with `objective=`.", do=do)
            if minutes is not None:
                how["minutes"] = minutes
            best = learn_policy(data, **how, **parts)
            said = (written(block) if isinstance(block, Sentence) else str(block) for block in best.blocks())
            summary, numbers = "\n".join(said), best.to_dict()
        else:  # one
            if minutes is not None:
                raise OptionError("`minutes=` and `objective=` exclude each other.")
            if training.get("batch_size") == 0:
                training["batch_size"] = None
            best = PolicyLearner(objective, **how, **training).fit(data, **parts)
            summary, numbers = _summary(best)
        best.save(out)
    for warning in caught:
        text = warning.message.args[0] if isinstance(warning.message, LearningWarning) else str(warning.message)
        print(f"{warning.category.__name__}: {written(text)}", file=sys.stderr)
    if typed["json"]:
        print_json({"file": str(out), **numbers})
        return
    print(summary)
    if numbers["dropped_rows"]:
        print(f"{numbers['dropped_rows']:,} invalid rows were dropped.")
    print(f"{out}: the policy, for {numbers['n_actions']:,} actions, the distinct values of {parts['action']!r}.")


def _columns(
    typed: Typed, log: list[str], action: str | None, reward: str | None, propensity: str | None
) -> dict[str, str]:
    """The columns of the parts; what was guessed is printed."""
    named = {"action": action, "reward": reward, "propensity": propensity}
    if None not in named.values():
        return {name: str(column) for name, column in named.items()}
    names = Typed(typed, log=log, external_access=False).columns
    columns = {part: column or usual(part, names) or which_column(part, names) for part, column in named.items()}
    guessed = ", ".join(f"{part} {columns[part]!r}" for part, column in named.items() if column is None)
    say(console(stderr=typed["json"]), f"Guessed from the names: {guessed}.")
    return columns


def _summary(learner: PolicyLearner) -> tuple[str, dict[str, object]]:
    """What was learned, in words and in numbers."""
    from counterpoise.learn.hand_out import doubts, how_to_get, report

    result = learner.result_
    value = result[result.targets[0], "beta_ips"]
    numbers = {
        "kind": learner.kind_,
        "epoch": learner.best_epoch_,
        **report(result, learner.mean_reward_),
        "dropped_rows": learner.dropped_rows_,
        "n_actions": learner.policy_.n_actions,
        "note": FOLDS,
    }
    lines = [
        f"The policy of epoch {learner.best_epoch_} would earn {value.value:.6g} per row, between {value.interval.lower:.6g} and "
        f"{value.interval.upper:.6g}; the logging policy earned {learner.mean_reward_:.6g} per row"
        + (", and less is better." if result.minimize else "."),
        f"{FOLDS} The verdict is {result.verdict().verdict}.",
    ]
    if hasattr(learner, "rejected_"):
        refusal = "The learned policy is not reliably better than the logging policy, so this policy imitates the logging policy."
        lines.insert(0, f"{refusal} {doubts(learner.rejected_)} {written(how_to_get(learner.rejected_))}".rstrip())
    return "\n".join(lines), numbers
