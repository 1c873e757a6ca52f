"""Writes the files of this folder: run it with counterpoise 0.2, in this folder."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import torch

from counterpoise.learn import (
    MLP,
    LinearSoftmax,
    ModulePolicy,
    PlackettLuce,
    PolicyLearner,
    RankingLearner,
    Reduction,
    TwoTower,
    learn_policy,
)

CONTEXT = np.linspace(-1, 1, 8).reshape(4, 2)
NAMES = {"action": "item", "reward": "reward", "propensity": "propensity"}
SHORT = {"epochs": 2, "batch_size": 50, "folds": None, "learning_rate": 0.05, "progress": False}
LAMBDAS = [0.2, 0.5]


def log(rows=240):
    """A log with numbers, text that is missing here and there, lists, items with ids and names, and candidates; all of it arithmetic."""
    k = np.arange(rows)
    item = np.array(["jam", "oil", "tea"])[(k * 7 // 3) % 3]
    return pl.DataFrame(
        {
            "age": 20.0 + k % 37,
            "country": [None if i % 11 == 5 else "DFI"[i % 3] for i in k],
            "taste": [[float(i % 5), float(i % 4)] for i in k],
            "x": (k % 13) / 13,
            "y": (k % 17) / 17,
            "item": item,
            "id": np.array([3, 10, 77])[(k * 7 // 3) % 3],
            "pool": [sorted({one, ["jam", "oil", "tea"][i % 3]}) for i, one in zip(k, item, strict=True)],
            "reward": (k % 5 == 0) | (k % 3 == (k * 7 // 3) % 3),
            "propensity": np.full(rows, 0.5),
        }
    ).with_columns(pl.col("reward").cast(pl.Float64))


def lists(count=150):
    """A log of lists of two of four items."""
    k = np.arange(count)
    first, second = k % 4, (k % 4 + 1 + k % 3) % 4
    return pl.DataFrame(
        {
            "list": np.repeat(k, 2),
            "position": np.tile([1, 2], count),
            "item": np.stack([first, second], 1).ravel(),
            "x": np.repeat((k % 13) / 13, 2),
            "click": np.stack([first == 2, second == k % 4], 1).ravel().astype(float),
            "p": np.tile([1 / 4, 1 / 3], count),
        }
    )


LISTS = {
    "slate": "list", "position": "position", "action": "item", "context": "x", "reward": "click", "propensity": "p",
    "propensity_of": "item_given_above",
}  # fmt: skip


def module():
    return torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))


def policies():
    """Policies of every kind, by name."""
    torch.manual_seed(0)
    made = {
        "linear": LinearSoftmax(2, 3, bias=True, standardize=True),
        "mlp": MLP(2, 3, hidden=(4,), normalize=True, standardize=True).double(),
        "two_tower": TwoTower(2, 3, dimension=2, hidden=(3,)),
        "two_tower_items": TwoTower(2, 3, dimension=2, hidden=(3,), item_features=torch.arange(6.0).reshape(3, 2)),
        "module": ModulePolicy(module(), 3),
        "ranker": PlackettLuce(MLP(2, 3, hidden=(4,)), 2),
        "ranker_items": PlackettLuce(TwoTower(2, 3, dimension=2, item_features=torch.eye(3)), 2),
    }
    made["linear"].actions_, made["linear"].temperature = np.array([3, 10, 77]), 0.5
    made["mlp"].actions_, made["mlp"].context_ = np.array(["jam", "oil", "tea"], dtype=object), ("x", "y")
    made["ranker"].actions_ = np.array([3, 10, 77])
    return made


def forests():
    """Forests that a search found, one of values and one of classes."""
    from counterpoise.learn.search.forests import ForestLearner
    from sklearn.ensemble import ExtraTreesClassifier

    options = {"minutes": None, "context": ["x", "y"], **NAMES, "fallback": "warn", "progress": False}
    for name, contender in (
        ("forest", ForestLearner(trees=2, rows_per_leaf=40)),
        ("forest_classes", Reduction(ExtraTreesClassifier(2, max_depth=2))),
    ):
        yield name, learn_policy(log(), contenders=[contender], **options).policy


def learned(**options):
    """A policy learned from columns of all kinds, among candidates."""
    return PolicyLearner(**SHORT | options).fit(log(), context=["age", "country", "taste"], candidates="pool", **NAMES)


def runs():
    """Learners that have a checkpoint, and the arguments to fit them with, by the name of the checkpoint."""
    plain = {"context": ["x", "y"], "action": "id", "reward": "reward", "propensity": "propensity"}
    return {
        "run": (lambda **more: PolicyLearner(**SHORT | more), log(), plain),
        "run_snips": (
            lambda **more: PolicyLearner("snips", **SHORT | {"batch_size": None, "norms": None} | more), log(), plain
        ),
        "run_folds": (lambda **more: PolicyLearner(**SHORT | {"folds": 2} | more), log(), plain),
        "run_lambdas": (
            lambda **more: PolicyLearner("lambda_ips", banditnet_lambda=LAMBDAS, **SHORT | more), log(), plain
        ),
        "run_columns": (
            lambda **more: PolicyLearner(**SHORT | more), log(),
            {"context": ["age", "country", "taste"], "candidates": "pool", **NAMES},
        ),
        "run_lists": (lambda **more: RankingLearner(**SHORT | more), lists(), LISTS),
    }  # fmt: skip


def main():
    known = {}
    for name, policy in [*policies().items(), *forests()]:
        policy.save(f"{name}.safetensors")
        known[name] = policy.predict_proba(CONTEXT).tolist()
    learner = learned()
    learner.save("columns.safetensors")
    known["columns"] = learner.predict_proba(log()[:9], log()[:9]["pool"]).tolist()
    for name, (make, rows, parts) in runs().items():
        make(checkpoint=f"{name}.safetensors", epochs=1).fit(rows, **parts)
        whole = make().fit(rows, **parts)
        weights = {part: tensor.tolist() for part, tensor in whole.policy_.state_dict().items()}
        known[name] = {"values": [one.value for one in whole.history_], "weights": weights}
    Path("expected.json").write_text(json.dumps(known))


if __name__ == "__main__":
    main()
