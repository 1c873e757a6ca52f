r"""log π over very many items, exactly in blocks or in a kernel, or by a sample of them; and in which precision steps compute.

For a row with logged action a and m items drawn uniformly, with replacement, out of n,

.. math:: \hat Z = e^{z_a} + \frac{n}{m} \sum_{k:\, j_k \ne a} e^{z_{j_k}}, \qquad \hat\pi_a = e^{z_a} / \hat Z

(the factor n/m is the logQ correction of sampled softmax for uniform draws; Jean et al. 2015). Ẑ is unbiased, and therefore
π̂_a is not: to first order it is too large by the factor

.. math:: 1 + \frac{n \sum_{b \ne a} \pi_b^2 - (1 - \pi_a)^2}{m}

so the bias falls as 1/m, is small while the policy spreads over many more than n/m items, and is of order 1 once it has settled on fewer.
The gradient has a bias of the same order. All rows of a batch share their draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding

from counterpoise.errors import OptionError
from counterpoise.learn import blocks, kernels
from counterpoise.learn.blocks import ItemSummary, Logits
from counterpoise.learn.kernels import Precision

CELLS = 2**22  # logits that a step may hold at once: 16 MB of float32, from where on blocks are faster
# with fewer items than this, a long batch has many logits but no long rows, and blocks gain nothing
LEAST_ITEMS = 2**12

# -- All items ---------------------------------------------------------------------------------------------------------


def too_many(rows: int, items: int) -> bool:
    """Whether these are too many logits to hold in memory at once.

    >>> too_many(rows=1024, items=1000), too_many(rows=1024, items=1_000_000)
    (False, True)
    """
    return items >= LEAST_ITEMS and rows * items > CELLS


class _LoggedItem(torch.autograd.Function):
    """log π(a|x), Σπ² and the mean item vector; only the first is differentiable."""

    @staticmethod
    def forward(
        ctx: Any,
        contexts: Tensor,
        items: Tensor,
        bias: Tensor | None,
        action: Tensor,
        precision: Precision | None,
        mean: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        logits = Logits(contexts, items, bias)
        sums = summary(logits, action, precision, mean=mean or ctx.needs_input_grad[0])
        ctx.precision = precision
        ctx.save_for_backward(contexts, items, bias, action, sums.log_total, sums.mean)
        ctx.mark_non_differentiable(sums.squares, *([] if sums.mean is None else [sums.mean]))
        return sums.logged - sums.log_total, sums.squares, sums.mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None]:
        contexts, items, bias, action, log_total, mean = ctx.saved_tensors
        scale = gradients[0]
        of_contexts = scale[:, None] * (items[action] - mean) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return of_contexts, None, None, None, None, None
        of_items, of_bias = item_gradients(Logits(contexts, items, bias), log_total, scale, ctx.precision)
        of_items.index_add_(0, action, contexts * scale[:, None])
        if of_bias is not None:
            of_bias.index_add_(0, action, scale)
        return of_contexts, of_items, of_bias, None, None, None


def log_probability(
    logits: Logits, action: Tensor, *, precision: Precision | None = None, mean: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """log π(a|x) of the logged actions, differentiable; Σπ²; and, if asked for, the mean item vector Σπv, which are not.

    `precision` is that of the products on a GPU; None follows `torch.set_float32_matmul_precision`.

    >>> log_target, squares, _ = log_probability(Logits(torch.zeros(1, 2), torch.randn(4, 2)), torch.tensor([2]))
    >>> log_target.exp().item(), squares.item()
    (0.25, 0.25)
    """
    log_target, squares, mean_item = _LoggedItem.apply(  # type: ignore[no-untyped-call]
        logits.contexts, logits.items, logits.bias, action, precision, mean
    )
    return log_target, squares, mean_item


def summary(logits: Logits, action: Tensor, precision: Precision | None, *, mean: bool) -> ItemSummary:
    """The first pass, wherever it is fastest."""
    if kernels.fits(logits):
        return kernels.summary(logits, action, precision or _usual(), mean=mean)
    return blocks.summary(logits, action, mean=mean)


def item_gradients(
    logits: Logits, log_total: Tensor, scale: Tensor, precision: Precision | None
) -> tuple[Tensor, Tensor | None]:
    """The second pass, likewise."""
    if kernels.fits(logits):
        return kernels.item_gradients(logits, log_total, scale, precision or _usual())
    return blocks.item_gradients(logits, log_total, scale)


def _usual() -> Precision:
    """What PyTorch is set to use for float32 products."""
    return "float32" if torch.get_float32_matmul_precision() == "highest" else "tf32"


# -- A sample of the items ---------------------------------------------------------------------------------------------


def sampled_log_probability(
    logits: Logits, action: Tensor, negatives: int, *, sparse: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """log π̂(a|x), differentiable; estimates of Σπ² and of the mean item vector, which are not.

    With `sparse`, the gradient of the item vectors has rows only for items that were logged or drawn.
    """
    contexts, items, bias = logits.contexts, logits.items, logits.bias
    share = negatives / len(items)
    # by the generator of the CPU, whose state is part of a checkpoint
    drawn = torch.randint(len(items), (negatives,)).to(items.device)
    logged, vectors = embedding(action, items, sparse=sparse), embedding(drawn, items, sparse=sparse)
    z_logged, z = (contexts * logged).sum(1), contexts @ vectors.T - math.log(share)
    if bias is not None:
        z_logged, z = z_logged + bias[action], z + bias[drawn]
    z = z.masked_fill(drawn[None, :] == action[:, None], -torch.inf)
    logs = torch.log_softmax(torch.cat([z_logged[:, None], z], 1), 1)
    with torch.no_grad():
        p, others = logs[:, :1].exp(), logs[:, 1:].exp()
        squares = p[:, 0].square() + share * others.square().sum(1)
        mean = p * logged + others @ vectors
    return logs[:, 0], squares, mean


# -- In which precision, and whether it looks at all items -------------------------------------------------------------


@dataclass(frozen=True)
class Arithmetic:
    """How a step computes: the precision of its products, how many items stand for all, and whether gradients may be sparse."""

    precision: Precision | None = None
    negatives: int | None = None
    sparse: bool = False

    def by_items(self, rows: int, items: int) -> bool:
        """Whether a step must do without an array of all logits."""
        return self.negatives is not None or too_many(rows, items)

    def log_probability(self, logits: Logits, action: Tensor, *, mean: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """log π(a|x), differentiable; Σπ²; and the mean item vector, if asked for."""
        if self.negatives is not None:
            return sampled_log_probability(logits, action, self.negatives, sparse=self.sparse)
        return log_probability(logits, action, precision=self.precision, mean=mean)

    def lowered(self, device: torch.device) -> AbstractContextManager[None]:
        """The layers before the last one run in this: in bfloat16, if that was asked for."""
        if self.precision != "bfloat16":
            return nullcontext()
        return torch.autocast(device.type, torch.bfloat16)

    @contextmanager
    def products(self, device: torch.device) -> Iterator[None]:
        """A step runs in this: on a GPU, products of float32 numbers are TF32 unless whole float32 was asked for."""
        if device.type != "cuda":
            yield
            return
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest" if self.precision == "float32" else "high")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


USUAL = Arithmetic()


def whole(x: Tensor) -> Tensor:
    """Half-precision numbers in single precision, and others as they are."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def check_precision(precision: object, device: str) -> None:
    """Check that there is such a precision, on this device."""
    if precision not in (None, "float32", "tf32", "bfloat16"):
        raise OptionError(f"precision must be None, 'float32', 'tf32' or 'bfloat16'; found {precision!r}.")
    if precision == "tf32" and torch.device(device).type == "cpu":
        raise OptionError(
            "`precision='tf32'` needs a GPU; a CPU computes in float32.",
            do="Leave out `precision=`, or pass `device='cuda'`.",
        )
