"""What the tests of learning share: torch on one thread, a small log, and policies of every kind."""

import os

import pytest
from conftest import CORE

if os.environ.get("CI") == "true" and not CORE:
    import torch
else:
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'counterpoise[learn]'")

from torch import Tensor, nn

from counterpoise.learn import MLP, LinearSoftmax, ModulePolicy, Policy, TwoTower

torch.set_num_threads(1)


class Embedded(nn.Module):
    """Two category ids and a number, embedded, joined and scored."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = nn.Embedding(4, 3)
        self.norm = nn.LayerNorm(7)
        self.out = nn.Linear(7, 6)

    def forward(self, context: Tensor) -> Tensor:
        ids = self.ids((context[:, :2].abs() * 10).long() % 4).flatten(1)
        return self.out(self.norm(torch.cat([ids, context[:, 2:3]], 1)))


class Pooled(nn.Module):
    """A linear layer applied at several positions of a row, and their embeddings added up."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = nn.Embedding(3, 4, padding_idx=0)
        self.mix = nn.Linear(4, 5)
        self.norm = nn.LayerNorm(5)
        self.out = nn.Linear(5, 6)

    def forward(self, context: Tensor) -> Tensor:
        return self.out(torch.tanh(self.norm(self.mix(self.ids((context.abs() * 10).long() % 3)))).sum(1))


def policies() -> dict[str, Policy]:
    """One of each kind, in float64, for contexts of 3 numbers and 6 actions."""
    torch.manual_seed(1)
    made: dict[str, Policy] = {
        "linear": LinearSoftmax(3, 6),
        "linear with bias": LinearSoftmax(3, 6, bias=True),
        "mlp": MLP(3, 6, hidden=(5, 4)),
        "normalised mlp": MLP(3, 6, hidden=(5, 4), normalize=True),
        "two towers": TwoTower(3, 6, dimension=4, hidden=(5,)),
        "two towers with item features": TwoTower(3, 6, dimension=4, hidden=(5,), item_features=torch.randn(6, 2)),
        "embedding": ModulePolicy(Embedded(), 6),
        "pooled embedding": ModulePolicy(Pooled(), 6),
    }
    return {name: policy.double() for name, policy in made.items()}


def small_log(rows: int = 40, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Context, action, reward and propensity of a log with rewards far from 0."""
    random = torch.Generator().manual_seed(seed)
    context = torch.randn(rows, 3, generator=random, dtype=torch.float64)
    action = torch.randint(6, (rows,), generator=random)
    reward = 2 + torch.randn(rows, generator=random, dtype=torch.float64)
    propensity = 0.05 + 0.2 * torch.rand(rows, generator=random, dtype=torch.float64)
    return context, action, reward, propensity
