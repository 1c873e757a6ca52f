"""Training a two-tower policy over a very large catalogue: peak memory and rows a second.

    python benchmarks/two_tower.py                                # 10⁵ items on the CPU
    python benchmarks/two_tower.py --dense                        # the same with an array of all logits, as before
    python benchmarks/two_tower.py --actions 1000000 --negatives 1000
    python benchmarks/two_tower.py --device cuda --actions 1000000 --batch 4096

Needs PyTorch beyond the core. Contexts, items and rewards are random: the arithmetic is what is measured. gpu_items.py has limits for GPUs.
"""

import argparse
from time import perf_counter, process_time

import torch

from counterpoise.learn import softmax
from counterpoise.learn.optimizers import LazyAdam
from counterpoise.learn.policies import TwoTower
from counterpoise.learn.rows import Batch
from counterpoise.learn.softmax import Arithmetic
from counterpoise.learn.steps import LoggedActions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--actions", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--precision", choices=["float32", "tf32", "bfloat16"])
    parser.add_argument("--negatives", type=int)
    parser.add_argument("--dense", action="store_true", help="with an array of all logits")
    asked = parser.parse_args()
    torch.manual_seed(0)
    cuda = asked.device == "cuda"
    if asked.dense:
        softmax.CELLS = 2**62
    arithmetic = Arithmetic(asked.precision, asked.negatives, sparse=True)
    batch = Batch(
        torch.randn(asked.batch, 64, device=asked.device),
        torch.randint(asked.actions, (asked.batch,), device=asked.device),
        torch.rand(asked.batch, device=asked.device).round(),
        torch.full((asked.batch,), 1 / asked.actions, device=asked.device),
        asked.batch,
    )
    for name, features in (("a vector per item", None), ("item features (64)", torch.randn(asked.actions, 64))):
        policy = TwoTower(64, asked.actions, dimension=32, hidden=(256,), item_features=features).to(asked.device)
        kind = torch.optim.Adam if asked.negatives is None else LazyAdam
        optimizer = kind(policy.parameters(), lr=1e-3, fused=None if asked.dense or asked.negatives else True)
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        logged = LoggedActions(policy, arithmetic=arithmetic)
        for objective, baseline in (("ips", 0.0), ("beta_ips", None)):
            for step in range(asked.steps + 2):
                if step == 2:  # the first two set things up
                    if cuda:
                        torch.cuda.synchronize()
                    started, worked = perf_counter(), process_time()
                optimizer.zero_grad(set_to_none=True)
                with arithmetic.products(torch.device(asked.device)):
                    logged.backward(batch, baseline)
                optimizer.step()
            if cuda:
                torch.cuda.synchronize()
            seconds = (perf_counter() - started) / asked.steps
            own = (process_time() - worked) / asked.steps
            memory = (
                f", peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB"
                if cuda
                else f", {1e3 * own:.1f} ms of processors"
            )
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
