"""All 32 seeds of one mini-batch curve (100 epochs, 250,000 rows) on the GPU, as a CUDA graph and without it.

    python benchmarks/gpu_curve.py

Needs PyTorch beyond the core; the first figure includes capturing the graph, the test value after every epoch, everything but
drawing the log. The two programs must agree.
"""

import torch

from counterpoise.experiments.learning import N_ACTIONS, World
from counterpoise.experiments.many import Run, train_many


def main() -> None:
    world = World(250_000, "cuda")
    for objective in ("beta_ips", "ips", "running_beta_ips"):
        runs = [Run(objective, 0.01, seed) for seed in range(32)]
        train_many(world.train, N_ACTIONS, runs, epochs=1, value=world.test)  # sets up the libraries
        for epochs, graph in ((100, True), (5, False)):
            torch.cuda.reset_peak_memory_stats()
            curves = train_many(world.train, N_ACTIONS, runs, epochs=epochs, value=world.test, graph=graph)
            peak = torch.cuda.max_memory_allocated() / 2**30
            how = "graph" if graph else "eager"
            print(
                f"{objective}, {how}: 32 seeds x {epochs} epochs in {curves.seconds:.2f} s, peak {peak:.1f} GiB, "
                f"value {curves.value[:, -1].mean():.4f}",
                flush=True,
            )
        graph_, eager = (
            train_many(world.train, N_ACTIONS, runs[:4], epochs=2, value=world.test, graph=graph)
            for graph in (True, False)
        )
        apart = (graph_.weights - eager.weights).abs().max().item()
        print(f"  graph and eager weights differ by at most {apart:.2g} after 2 epochs", flush=True)


if __name__ == "__main__":
    main()
