"""Learn a recommendation policy from the Open Bandit Dataset, save it, load it, and ask what it would earn.

    python examples/learn_open_bandit.py FOLDER [policy.safetensors]

FOLDER contains `random` and `bts` in the dataset's own layout. The policy learns from the earliest 70 % of the random policy's
log and is judged on the rest, which was used neither to train it nor to choose an epoch.
"""

import sys
from pathlib import Path

import numpy as np
import polars as pl

import counterpoise as cp
from counterpoise.environments import OpenBanditLog
from counterpoise.learn import PolicyLearner, load_policy


def learn(folder: Path, saved: Path) -> cp.Result:
    """Train a policy, save it, load it again, and evaluate it on rows that it has not seen."""
    source = OpenBanditLog(folder, policy="random", campaign="men")
    log = source.read().sort("timestamp", maintain_order=True)
    # what is known before an item is shown: the user's affinity to each item, on a log scale, and the position
    affinity = [name for name in log.columns if name.startswith("user-item_affinity_")]
    log = log.with_columns(pl.col(affinity).log1p(), *[(pl.col("position") == k).alias(f"at_{k}") for k in (1, 2, 3)])
    context = [*affinity, "at_1", "at_2", "at_3"]
    past, future = log.head(int(0.7 * len(log))), log.tail(len(log) - int(0.7 * len(log)))

    # without folds: what it is worth, the future tells
    learner = PolicyLearner(
        n_actions=source.n_actions, epochs=10, batch_size=256, learning_rate=0.01, holdout=0.2, patience=3, folds=None
    )
    learner.fit(past, context=context, action="action", reward="reward", propensity="propensity")
    for epoch in learner.history_:
        print(
            f"epoch {epoch.epoch}: {epoch.value:.4f} ({epoch.lower:.4f} to {epoch.upper:.4f}) on held-out rows, "
            f"gradient variance {epoch.gradient_variance:.3g}"
        )
    print(f"kept: epoch {learner.best_epoch_}")
    learner.save(saved)

    policy = load_policy(saved)
    probabilities = policy.predict_proba(future.select(context).to_numpy())
    learned = probabilities[np.arange(len(future)), future["action"].to_numpy()]
    return cp.evaluate(future.with_columns(learned=learned), reward="reward", propensity="propensity", target="learned")


def main() -> None:
    folder = Path(sys.argv[1])
    saved = Path(sys.argv[2]) if len(sys.argv) > 2 else Path("policy.safetensors")
    result = learn(folder, saved)
    print(result)
    print(f"verdict: {result.verdict()}")


if __name__ == "__main__":
    main()
