"""log π(a|x) of logged actions among very many items, differentiable, by kernels where they run and by blocks elsewhere."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from counterpoise.learn.items import blocks, kernels
from counterpoise.learn.items.kernels import Precision
from counterpoise.learn.items.logits import Logits, Summary


class _Logged(torch.autograd.Function):
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
        found = summary(logits, action, precision, mean=mean or ctx.needs_input_grad[0])
        ctx.precision = precision
        ctx.save_for_backward(contexts, items, bias, action, found.log_total, found.mean)
        ctx.mark_non_differentiable(found.squares, *([] if found.mean is None else [found.mean]))
        return found.logged - found.log_total, found.squares, found.mean

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

    >>> found, squares, _ = log_probability(Logits(torch.zeros(1, 2), torch.randn(4, 2)), torch.tensor([2]))
    >>> found.exp().item(), squares.item()
    (0.25, 0.25)
    """
    found: tuple[Tensor, Tensor, Tensor | None] = _Logged.apply(  # type: ignore[no-untyped-call]
        logits.contexts, logits.items, logits.bias, action, precision, mean
    )
    return found


def summary(logits: Logits, action: Tensor, precision: Precision | None, *, mean: bool) -> Summary:
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
    """What PyTorch is told to use for products of float32 numbers."""
    return "float32" if torch.get_float32_matmul_precision() == "highest" else "tf32"
