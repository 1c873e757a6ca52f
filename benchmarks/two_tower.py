"""Training a two-tower policy over a very large catalogue: peak memory and rows a second.

    python benchmarks/two_tower.py --device cuda --actions 1000000 --batch 4096

Needs NumPy and PyTorch only. Contexts, items and rewards are random: the arithmetic is what is measured.
"""

import argparse
from time import perf_counter

import torch

from counterpoise.learn.policies import TwoTower
from counterpoise.learn.steps import Batch, backward


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--actions", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=10)
    asked = parser.parse_args()
    torch.manual_seed(0)
    cuda = asked.device == "cuda"
    batch = Batch(
        torch.randn(asked.batch, 64, device=asked.device),
        torch.randint(asked.actions, (asked.batch,), device=asked.device),
        torch.rand(asked.batch, device=asked.device).round(),
        torch.full((asked.batch,), 1 / asked.actions, device=asked.device),
        asked.batch,
    )
    for name, features in (("a vector per item", None), ("item features (64)", torch.randn(asked.actions, 64))):
        policy = TwoTower(64, asked.actions, dimension=32, hidden=(256,), item_features=features).to(asked.device)
        optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        for objective, baseline in (("ips", 0.0), ("beta_ips", None)):
            for step in range(asked.steps + 2):
                if step == 2:  # the first two set things up
                    if cuda:
                        torch.cuda.synchronize()
                    started = perf_counter()
                optimizer.zero_grad(set_to_none=True)
                backward(policy, batch, baseline)
                optimizer.step()
            if cuda:
                torch.cuda.synchronize()
            seconds = (perf_counter() - started) / asked.steps
            memory = f", peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if cuda else ""
            print(
                f"{name}, {asked.actions:,} actions, batch {asked.batch:,}, {objective}: {1e3 * seconds:.1f} ms a step, "
                f"{asked.batch / seconds:,.0f} rows/s{memory}",
                flush=True,
            )
        parameters = sum(p.numel() for p in policy.parameters())
        print(f"  per-sample gradients would take {asked.batch * parameters * 4 / 2**30:,.0f} GiB", flush=True)
        del policy, optimizer


if __name__ == "__main__":
    main()
