"""Policies over very many items: a step on a GPU and on processors, against what it may take.

PYTHONPATH=src python benchmarks/items.py gpu --only time --items 1000000
python benchmarks/items.py step --actions 1000000 --negatives 1000
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from copy import deepcopy
from time import perf_counter, process_time

import numpy as np
import torch
from bench import Suite, head, row
from torch import Tensor

from counterpoise.learn import kernels, softmax
from counterpoise.learn.norms import last_layer_norms, logged_probability, logit_norms
from counterpoise.learn.objectives import baseline_of, beta_ips, gradient_sums
from counterpoise.learn.optimizers import LazyAdam
from counterpoise.learn.policies import LinearSoftmax, TwoTower
from counterpoise.learn.policy import Policy
from counterpoise.learn.rows import Batch
from counterpoise.learn.softmax import Arithmetic
from counterpoise.learn.steps import LoggedActions, map_norms

SUITE = Suite(__file__, __doc__)


# -- a GPU ------------------------------------------------------------------------------------------------------------------


GRADIENT_ERRORS = {"float32": 1e-5, "tf32": 3e-3, "bfloat16": 3e-3}  # relative, of every gradient and of β*
SURE = {"bfloat16": 2e-2}  # with logits five times as large: the error of a logit is a share of it
MILLISECONDS = {"bfloat16": 8.0, "tf32": 12.0, "float32": float("inf")}  # a step over 10⁶ items
GIBIBYTES = 1.0  # of everything on the GPU, likewise


class Checks:
    """What was wanted and what was found."""

    def __init__(self) -> None:
        self.failed = 0

    def __call__(self, what: str, found: float, limit: float, form: str = ".2e") -> None:
        good = found <= limit
        self.failed += not good
        print(f"{what}: {found:{form}} (at most {limit:{form}}){'' if good else '   MISSED'}", flush=True)


def random_batch(rows: int, items: int, width: int = 64) -> Batch:
    return Batch(
        torch.randn(rows, width, device="cuda"),
        torch.randint(items, (rows,), device="cuda"),
        torch.rand(rows, device="cuda").round(),
        (0.5 + torch.rand(rows, device="cuda")) / items,
        rows,
    )


def dense_gradients(policy: Policy, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """β* and the gradients by autograd on all logits, in float64."""
    policy = deepcopy(policy).double()
    context, reward, propensity = batch.context.double(), batch.reward.double(), batch.propensity.double()
    h = policy.body(context)
    logits = policy.scores(h)
    target, squares = logged_probability(logits, batch.action)
    if hasattr(policy.scores, "map"):
        norms = map_norms(policy.scores, logits, batch.action, h)
    else:
        norms = last_layer_norms(logit_norms(target, squares), h, bias=policy.scores.bias is not None)
    beta = baseline_of(gradient_sums(norms, reward, propensity))
    (-beta_ips(target, reward, propensity, baseline=beta)).backward()
    return beta, {name: parameter.grad for name, parameter in policy.named_parameters()}


def policies(items: int) -> Iterator[tuple[str, Policy]]:
    yield "a vector per item", TwoTower(64, items, dimension=32, hidden=(256,))
    yield "item features", TwoTower(64, items, dimension=32, hidden=(256,), item_features=torch.randn(items, 48))
    yield "linear with a bias", LinearSoftmax(64, items, bias=True)


def check_gradients(check: Checks) -> None:
    rows, items = 512, 20_011
    for name, policy in policies(items):
        policy = policy.cuda()
        batch = random_batch(rows, items)
        for times, limits in ((1, GRADIENT_ERRORS), (5, GRADIENT_ERRORS | SURE)):
            with torch.no_grad():
                for parameter in policy.scores.parameters():
                    parameter.mul_(times)
            beta, expected = dense_gradients(policy, batch)
            for precision, limit in limits.items():
                # layers before the last have errors of their own in bfloat16
                arithmetic = LastLayer() if precision == "bfloat16" else Arithmetic(precision)
                policy.zero_grad(set_to_none=True)
                with arithmetic.products(torch.device("cuda")):
                    step = LoggedActions(policy, arithmetic=arithmetic).backward(batch, None)
                found = dict(policy.named_parameters())
                errors = [float((found[part].grad - g).norm() / g.norm()) for part, g in expected.items()]
                what = f"{name}, logits × {times}, {precision}"
                check(f"{what}, β*", float((step.baseline - beta).abs() / beta.abs()), limit)
                check(f"{what}, worst gradient", max(errors), limit)


class LastLayer(Arithmetic):
    """bfloat16 products with the items, and the layers before them in TF32."""

    def __init__(self) -> None:
        super().__init__("bfloat16")

    def lowered(self, device: torch.device):
        return Arithmetic("tf32").lowered(device)


def check_time(check: Checks, items: int, rows: int = 4096, steps: int = 20) -> None:
    times = items / 1e6
    for name, features in (("a vector per item", False), ("item features (64)", True)):
        for precision, limit in MILLISECONDS.items():
            if features and items > 1_000_000:
                continue
            torch.cuda.empty_cache()
            item_features = torch.randn(items, 64) if features else None
            policy = TwoTower(64, items, dimension=32, hidden=(256,), item_features=item_features).cuda()
            optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3, fused=True)
            batch, arithmetic = random_batch(rows, items), Arithmetic(precision)
            logged = LoggedActions(policy, arithmetic=arithmetic)
            taken = []
            for step in range(steps + 3):
                if step == 3:
                    torch.cuda.reset_peak_memory_stats()
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                optimizer.zero_grad(set_to_none=True)
                with arithmetic.products(torch.device("cuda")):
                    logged.backward(batch, None)
                optimizer.step()
                end.record()
                torch.cuda.synchronize()
                taken.append(start.elapsed_time(end))
            what = f"{name}, {items:,} items × 32, batch {rows:,}, {precision}"
            limits = (float("inf"), float("inf")) if features else (limit * times, GIBIBYTES * times)
            check(f"{what}: ms a step", float(np.median(taken[3:])), limits[0], ".2f")
            check(f"{what}: GiB", torch.cuda.max_memory_allocated() / 2**30, limits[1], ".3f")
            own = sum(p.numel() * 16 for p in policy.parameters()) + sum(b.numel() * 4 for b in policy.buffers())
            beyond = (torch.cuda.max_memory_allocated() - own) / 2**20
            print(f"  beyond parameters, gradients, Adam's moments and features: {beyond:,.0f} MiB", flush=True)
            del policy, optimizer, batch, item_features


class ItemWorld:
    """10⁵ items and contexts as vectors; a reward is a coin whose bias is a logistic of their product."""

    def __init__(self, items: int, seed: int) -> None:
        random = torch.Generator("cuda").manual_seed(seed)
        self.items = torch.randn(items, 16, generator=random, device="cuda")
        self.noise = torch.randn(items, 16, generator=random, device="cuda")
        self.random = random

    def contexts(self, rows: int) -> Tensor:
        return torch.randn(rows, 16, generator=self.random, device="cuda")

    def rewards(self, contexts: Tensor) -> Tensor:
        return torch.sigmoid(contexts @ self.items.T / 2 - 2)

    def logging(self, contexts: Tensor) -> Tensor:
        return torch.softmax(contexts @ (0.5 * self.items + 0.5 * self.noise).T / 2, 1)

    def draw(self, rows: int) -> dict[str, np.ndarray]:
        parts: dict[str, list[Tensor]] = {"context": [], "action": [], "reward": [], "propensity": []}
        for _ in range(0, rows, 4096):
            x = self.contexts(4096)
            p = self.logging(x)
            noise = torch.empty_like(p).exponential_(generator=self.random)
            action = (p / noise).argmax(1)
            chance = self.rewards(x).gather(1, action[:, None])[:, 0]
            reward = (torch.rand(4096, generator=self.random, device="cuda") < chance).float()
            for name, part in zip(parts, (x, action, reward, p.gather(1, action[:, None])[:, 0]), strict=True):
                parts[name].append(part)
        return {name: torch.cat(some)[:rows].cpu().numpy() for name, some in parts.items()}

    @torch.no_grad()
    def value(self, policy: Policy, contexts: Tensor) -> float:
        found = [(torch.softmax(policy(x), 1) * self.rewards(x)).sum(1) for x in contexts.split(1024)]
        return float(torch.cat(found).mean())


@torch.no_grad()
def logging_value(world: ItemWorld, contexts: Tensor) -> float:
    return float(torch.cat([(world.logging(x) * world.rewards(x)).sum(1) for x in contexts.split(1024)]).mean())


def check_learning(check: Checks, items: int = 100_000, rows: int = 1_000_000, seeds: int = 4) -> None:
    from counterpoise.learn import PolicyLearner

    world = ItemWorld(items, 0)
    test = world.contexts(4096)
    earned = logging_value(world, test)
    kinds = {"item features": world.items.cpu(), "a vector per item": None}
    precisions = (None, "bfloat16", "float32")
    found: dict[tuple[str, str | None], list[float]] = {(kind, one): [] for kind in kinds for one in precisions}
    for seed in range(seeds):
        log = world.draw(rows)
        for (kind, precision), values in found.items():
            torch.manual_seed(seed)
            learner = PolicyLearner(
                policy=TwoTower(16, items, dimension=16, hidden=(64,), item_features=kinds[kind]),
                epochs=4,
                batch_size=4096,
                learning_rate=0.003,
                device="cuda",
                precision=precision,
                seed=seed,
                progress=False,
            )
            started = perf_counter()
            values.append(world.value(learner.fit(**log).policy_, test))
            print(
                f"seed {seed}, {kind}, {precision or 'default'}: value {values[-1]:.4f}, logging {earned:.4f}, "
                f"{perf_counter() - started:.1f} s",
                flush=True,
            )
    for (kind, precision), values in found.items():
        if precision != "float32":
            whole = np.array(found[kind, "float32"])
            error = np.sqrt((np.var(values, ddof=1) + np.var(whole, ddof=1)) / seeds)
            apart = abs(np.mean(values) - whole.mean())
            check(f"{kind}: value in {precision or 'default'} precision and in float32, apart", apart, 3 * error, ".5f")


@SUITE.experiment("gpu", only=["gradients"])
def check_gpu(
    *, only: list[str] = ("gradients", "time", "learning"), items: list[int] = (1_000_000, 10_000_000)
) -> bool:
    """A softmax over 10⁶ and 10⁷ items on a GPU: is it right, how long does a step take, how much memory, and does it learn the same?

    Needs CUDA. Gradients are compared with those of a dense step in float64; a step is a whole one: contexts through their tower, the
    softmax over all items, β*, both gradients, the gradient variance, and Adam. The simulated log has 10⁵ items. `--only` takes some of
    gradients, time and learning.
    """
    if not torch.cuda.is_available():
        print("There is no GPU here.")
        return True
    torch.manual_seed(0)
    check = Checks()
    print(
        f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, Triton {kernels.triton.__version__}", flush=True
    )
    if "gradients" in only:
        check_gradients(check)
    if "time" in only:
        for count in items:
            check_time(check, count)
    if "learning" in only:
        check_learning(check)
    print(f"{check.failed} limits missed" if check.failed else "all limits kept")
    return check.failed == 0


# -- any device -------------------------------------------------------------------------------------------------------------


@SUITE.experiment("step", actions=2000, steps=2)
def time_step(
    *,
    device: str = "cpu",
    actions: int = 100_000,
    batch: int = 256,
    steps: int = 10,
    precision: str | None = None,
    negatives: int | None = None,
    dense: bool = False,
) -> None:
    """Training a two-tower policy over a very large catalogue: milliseconds a step, rows a second, and peak memory.

    Contexts, items and rewards are random: the arithmetic is what is measured. `--dense` takes an array of all logits, `--negatives` some
    of the items instead of all; `--precision` is float32, tf32 or bfloat16, and `gpu` has limits for GPUs.
    """
    torch.manual_seed(0)
    is_cuda = device == "cuda"
    if dense:
        softmax.CELLS = 2**62
    arithmetic = Arithmetic(precision, negatives, sparse=True)
    rows = Batch(
        torch.randn(batch, 64, device=device),
        torch.randint(actions, (batch,), device=device),
        torch.rand(batch, device=device).round(),
        torch.full((batch,), 1 / actions, device=device),
        batch,
    )
    head("policy", "objective", "ms a step", "rows/s", "peak GiB" if is_cuda else "ms of processors")
    for name, features in (("a vector per item", None), ("item features (64)", torch.randn(actions, 64))):
        policy = TwoTower(64, actions, dimension=32, hidden=(256,), item_features=features).to(device)
        logged = LoggedActions(policy, arithmetic=arithmetic)
        kind = torch.optim.Adam if negatives is None else LazyAdam
        optimizer = kind(policy.parameters(), lr=1e-3, fused=None if dense or negatives else True)
        if is_cuda:
            torch.cuda.reset_peak_memory_stats()
        for objective, baseline in (("ips", 0.0), ("beta_ips", None)):
            for step in range(steps + 2):
                if step == 2:  # the first two set things up
                    if is_cuda:
                        torch.cuda.synchronize()
                    started, worked = perf_counter(), process_time()
                optimizer.zero_grad(set_to_none=True)
                with arithmetic.products(torch.device(device)):
                    logged.backward(rows, baseline)
                optimizer.step()
            if is_cuda:
                torch.cuda.synchronize()
            seconds, used = (perf_counter() - started) / steps, (process_time() - worked) / steps
            last = f"{torch.cuda.max_memory_allocated() / 2**30:.1f}" if is_cuda else f"{1e3 * used:.1f}"
            row(
                f"{name}, {actions:,} actions, batch {batch:,}",
                objective,
                f"{1e3 * seconds:.1f}",
                f"{batch / seconds:,.0f}",
                last,
            )
        parameters = sum(p.numel() for p in policy.parameters())
        row(f"per-sample gradients of it would take {batch * parameters * 4 / 2**30:,.0f} GiB", "", "", "", "")
        del policy, optimizer


if __name__ == "__main__":
    sys.exit(SUITE.main())
