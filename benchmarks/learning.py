"""Speed of learning as ratios, both sides in one run, one thread, in processor seconds.

    python benchmarks/learning.py

1. A β-IPS step over a plain IPS step: linear, MLP and two-tower policies; with the last layer's norms, and with all layers'.
2. The same for whole epochs of the paper's linear policy, with the gradient variance tracked in both.
3. One epoch of the paper's mini-batch experiment (250,000 rows; training, gradient variance, greedy value on 250,000 test
   rows) by its recipe (row-wise loader, per-sample gradients by vmap(grad), autograd) over ours.
"""

import argparse
from collections.abc import Callable
from statistics import median
from time import process_time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from counterpoise.experiments.learning import N_ACTIONS, World
from counterpoise.experiments.many import Run, train_many
from counterpoise.learn import MLP, LinearSoftmax, Policy, TwoTower, objectives
from counterpoise.learn.rows import Batch
from counterpoise.learn.steps import LoggedActions


def ratio(first: Callable[[], None], second: Callable[[], None], seconds: float) -> tuple[float, float, float]:
    """Seconds of one call of each, taken in turns, and the median of second/first over the turns."""
    for call in (first, second, first, second):
        call()
    started = process_time()
    first()
    second()
    repeats = max(3, int(seconds / (process_time() - started) / 8))
    times: list[tuple[float, float]] = []
    for _ in range(8):
        pair = []
        for call in (first, second):
            began = process_time()
            for _ in range(repeats):
                call()
            pair.append((process_time() - began) / repeats)
        times.append((pair[0], pair[1]))
    return median(t[0] for t in times), median(t[1] for t in times), median(t[1] / t[0] for t in times)


def steps(name: str, policy: Policy, dimension: int, rows: int, seconds: float) -> None:
    """IPS as anyone would write it against β-IPS with the last layer's norms, and with all layers'."""
    context, action = torch.randn(rows, dimension), torch.randint(policy.n_actions, (rows,))
    reward, propensity = torch.rand(rows).round(), torch.rand(rows) * 0.5 + 0.01
    batch = Batch(context, action, reward, propensity, rows)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-4)

    def ips() -> None:
        optimizer.zero_grad(set_to_none=True)
        target = torch.softmax(policy(context), -1).gather(1, action[:, None])[:, 0]
        (-objectives.ips(target, reward, propensity)).backward()
        optimizer.step()

    def beta_ips(norms: str) -> Callable[[], None]:
        logged = LoggedActions(policy, norms=norms)

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            logged.backward(batch, None, measure=False)
            optimizer.step()

        return step

    def closed_ips() -> None:
        optimizer.zero_grad(set_to_none=True)
        h = policy.body(context)
        with torch.no_grad():
            probabilities = torch.softmax(policy.scores(h), -1)
            target = probabilities.gather(1, action[:, None])[:, 0]
            coefficient = (target * reward / propensity / rows)[:, None]
            outer = probabilities.mul_(coefficient).scatter_add_(1, action[:, None], -coefficient)
            policy.scores.weight.grad = (h.T @ outer).T.contiguous()
            if policy.scores.bias is not None:
                policy.scores.bias.grad = outer.sum(0)
        if h.requires_grad:
            h.backward(outer @ policy.scores.weight.detach())
        optimizer.step()

    if isinstance(policy.scores, torch.nn.Linear):
        plain, ours, found = ratio(closed_ips, beta_ips("last_layer"), seconds)
        print(
            f"{name}, batch {rows}, norms of last_layer, IPS with the same written-out gradient: IPS {1e3 * plain:.2f} ms, "
            f"beta-IPS {1e3 * ours:.2f} ms, ratio {found:.3f}",
            flush=True,
        )
    for norms in ("last_layer", "all"):
        plain, ours, found = ratio(ips, beta_ips(norms), seconds)
        print(
            f"{name}, batch {rows}, norms of {norms}: IPS {1e3 * plain:.2f} ms, beta-IPS {1e3 * ours:.2f} ms, ratio {found:.3f}",
            flush=True,
        )


class RowWise(Dataset):
    """A row at a time, as the recipe's loader takes them."""

    def __init__(self, world: World) -> None:
        rows = world.train
        self.columns = (rows.context, rows.action, rows.reward, 1 / rows.inverse)

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(column[index] for column in self.columns)


def recipe_epoch(world: World) -> float:
    """One epoch as the recipe says: β* and the gradient variance from per-sample gradients, then autograd."""
    torch.manual_seed(0)
    model = torch.nn.Linear(5, N_ACTIONS, bias=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def probability(weights: dict[str, torch.Tensor], x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.func.functional_call(model, weights, (x,)), -1).gather(-1, a[None])[0]

    per_sample = torch.func.vmap(torch.func.grad(probability), in_dims=(None, 0, 0))
    variance = 0.0
    for x, a, r, p in DataLoader(RowWise(world), batch_size=1024, shuffle=True):
        weights = {name: value.detach() for name, value in model.named_parameters()}
        gradients = per_sample(weights, x, a)["weight"].flatten(1)
        norms = gradients.square().sum(1)
        beta = (norms / p.square() * r).sum() / (norms / p.square()).sum()
        c = (r - beta) / p
        mean = (gradients * c[:, None]).mean(0)
        variance += (((norms * c.square()).mean() - mean.square().sum()) / len(r)).item()
        target = torch.softmax(model(x), -1).gather(1, a[:, None])[:, 0]
        optimizer.zero_grad()
        (-(target / p * (r - beta)).mean()).backward()
        optimizer.step()
    with torch.no_grad():
        best = torch.softmax(model(world.test.context), -1).argmax(1)
        return world.test.expected[torch.arange(len(best)), best].mean().item()


def epoch() -> None:
    """The recipe's epoch against ours, in turns."""
    world = World(250_000, "cpu")
    runs = [Run("beta_ips", 0.01, 0)]
    train_many(world.train, N_ACTIONS, runs, epochs=1, value=world.test)

    def train(objective: str) -> Callable[[], None]:
        return lambda: train_many(world.train, N_ACTIONS, [Run(objective, 0.01, 0)], epochs=1) and None

    plain, beta, found = ratio(train("ips"), train("beta_ips"), 8.0)
    print(
        f"mini-batch training epoch, gradient variance tracked in both: IPS {plain:.3f} s, beta-IPS {beta:.3f} s, "
        f"ratio {found:.3f}",
        flush=True,
    )
    theirs, ours = [], []
    for _ in range(3):
        began = process_time()
        value = recipe_epoch(world)
        theirs.append(process_time() - began)
        began = process_time()
        curves = train_many(world.train, N_ACTIONS, runs, epochs=3, value=world.test)
        ours.append((process_time() - began) / 3)
    found = np.median(np.array(theirs) / np.array(ours))
    print(
        f"mini-batch epoch: recipe {median(theirs):.2f} s (value {value:.3f}), ours {median(ours):.3f} s "
        f"(value {curves.value[0, 0]:.3f}), {found:.1f} times faster",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="per ratio of steps")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    steps("linear 5-100", LinearSoftmax(5, 100), 5, 1024, asked.seconds)
    steps("MLP 64-256-256-1000", MLP(64, 1000, hidden=(256, 256)), 64, 4096, asked.seconds)
    steps("two-tower, 100,000 actions", TwoTower(64, 100_000, dimension=32, hidden=(256,)), 64, 256, asked.seconds)
    features = torch.randn(100_000, 64)
    policy = TwoTower(64, 100_000, dimension=32, hidden=(256,), item_features=features)
    steps("two-tower with item features, 100,000 actions", policy, 64, 256, asked.seconds)
    epoch()


if __name__ == "__main__":
    main()
