"""The two passes of `blocks`, each as one Triton kernel in which no logit leaves the chip.

Products are of bfloat16, TF32 or float32 numbers, sums are float32. Both factors of a logit are rounded before they are multiplied, in the
same way on any GPU, so that the logit of the logged action can be computed outside of the kernel and fits the others.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from counterpoise.learn.blocks import ItemSummary, Logits

try:
    import triton
    import triton.language as tl
except ImportError:  # on a CPU, or with a build of PyTorch for other GPUs: `blocks` does the same there
    triton = tl = None


INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton's interpreter multiplies no bfloat16 numbers
Precision = Literal["bfloat16", "tf32", "float32"]
WIDEST = 256  # numbers in a vector that fit on the chip
PROGRAMS = 1024  # of the first pass: several for every multiprocessor
PER_BIT = math.log2(math.e)  # logits are kept in bits, because GPUs raise 2 and not e to a power


def compiled(kernel: Any) -> Any:
    """A Triton kernel, or a function that nobody calls."""
    return kernel if triton is None else triton.jit(kernel)


@dataclass(frozen=True)
class Tiles:
    """How large the pieces are that a program works on, and with how many warps and buffers."""

    rows: int
    items: int
    warps: int
    stages: int


def fits(logits: Logits) -> bool:
    """Whether the kernels can take these logits."""
    items = logits.items
    return triton is not None and items.is_cuda and items.dtype == torch.float32 and items.shape[1] <= WIDEST


def summary(logits: Logits, action: Tensor, precision: Precision, *, mean: bool) -> ItemSummary:
    """The first pass: parts of the items side by side, and what they found put together."""
    contexts, items = rounded(logits.contexts * PER_BIT, precision), logits.items.contiguous()
    bias = None if logits.bias is None else logits.bias * PER_BIT
    rows, width = contexts.shape
    tiles = first_tiles(width, precision)
    row_tiles = triton.cdiv(rows, tiles.rows)
    parts = max(1, min(PROGRAMS // row_tiles, triton.cdiv(len(items), tiles.items)))
    chunk = triton.cdiv(triton.cdiv(len(items), parts), tiles.items) * tiles.items
    top, total, squares = (contexts.new_empty((parts, rows), dtype=torch.float32) for _ in range(3))
    means = contexts.new_empty((parts, rows, width) if mean else 1, dtype=torch.float32)
    summary_kernel[row_tiles, parts](
        contexts,
        items,
        items if bias is None else bias,
        top,
        total,
        squares,
        means,
        rows,
        len(items),
        chunk,
        **_shared(width, tiles, precision),
        BIAS=bias is not None,
        MEAN=mean,
    )
    highest = top.amax(0)
    fade = torch.exp2(top - highest)
    sums = (total * fade).sum(0)
    mean_item = (means * fade[..., None]).sum(0) / sums[:, None] if mean else None
    logged = (contexts.float() * rounded(items[action], precision).float()).sum(1)
    logged = logged if bias is None else logged + bias[action]
    log_total = highest + sums.log2()
    return ItemSummary(
        logged / PER_BIT, log_total / PER_BIT, (squares * fade.square()).sum(0) / sums.square(), mean_item
    )


def item_gradients(
    logits: Logits, log_total: Tensor, scale: Tensor, precision: Precision
) -> tuple[Tensor, Tensor | None]:
    """The second pass: −Σ_rows s π c for every item, and −Σ_rows s π for its bias, with `scale` s for every row."""
    contexts, items = rounded(logits.contexts * PER_BIT, precision), logits.items.contiguous()
    scaled = rounded(logits.contexts * -scale[:, None], precision)
    bias = None if logits.bias is None else logits.bias * PER_BIT
    width = items.shape[1]
    tiles = second_tiles(width, precision)
    gradient = torch.empty_like(items)
    bias_gradient = None if bias is None else torch.empty_like(bias)
    gradient_kernel[(triton.cdiv(len(items), tiles.items),)](
        contexts,
        scaled,
        items,
        items if bias is None else bias,
        log_total * PER_BIT,
        scale,
        gradient,
        gradient if bias_gradient is None else bias_gradient,
        len(contexts),
        len(items),
        **_shared(width, tiles, precision),
        BIAS=bias is not None,
    )
    return gradient, bias_gradient


def rounded(x: Tensor, precision: Precision) -> Tensor:
    """Numbers as the products see them; those of TF32 keep 10 of the 23 bits after the point.

    >>> rounded(torch.tensor([1.0, 1 + 2**-9, 1 + 2**-11]), "tf32").tolist()
    [1.0, 1.001953125, 1.0009765625]
    """
    if precision == "float32":
        return x.contiguous()
    bits = x.contiguous().view(torch.int32)
    if precision == "tf32":
        return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)
    short = ((bits + 0x8000) & ~0xFFFF).view(torch.float32)
    return short if INTERPRETED else short.bfloat16()


def first_tiles(width: int, precision: Precision) -> Tiles:
    """The tiles of the first pass, as measured on an H200; wide vectors leave less room."""
    if width > 64:
        return Tiles(64, 64 if width <= 128 else 32, 4, 2)
    return {"bfloat16": Tiles(128, 128, 4, 3), "tf32": Tiles(128, 64, 4, 3), "float32": Tiles(128, 32, 4, 2)}[precision]


def second_tiles(width: int, precision: Precision) -> Tiles:
    """The tiles of the second pass, likewise."""
    if width > 64:
        return Tiles(64 if width <= 128 else 32, 64, 4, 2)
    return {"bfloat16": Tiles(32, 128, 4, 3), "tf32": Tiles(128, 128, 4, 2), "float32": Tiles(64, 64, 4, 2)}[precision]


def _shared(width: int, tiles: Tiles, precision: Precision) -> dict[str, int | str]:
    return {
        "WIDTH": width,
        "PADDED": max(16, triton.next_power_of_2(width)),
        "ROWS": tiles.rows,
        "ITEMS": tiles.items,
        "PRECISION": precision,
        "DOT": "tf32" if precision == "tf32" else "ieee",
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
    }


@compiled
def round_tile(x, like, PRECISION: tl.constexpr):  # noqa: N803
    """What `rounded` does, on the chip."""
    if PRECISION == "bfloat16":
        x = ((x.to(tl.int32, bitcast=True) + 0x8000) & ~0xFFFF).to(tl.float32, bitcast=True)
    if PRECISION == "tf32":
        x = ((x.to(tl.int32, bitcast=True) + 0x1000) & ~0x1FFF).to(tl.float32, bitcast=True)
    return x.to(like.dtype)


@compiled
def summary_kernel(
    contexts,
    items,
    bias,
    top,
    total,
    squares,
    means,
    n_rows,
    n_items,
    chunk,
    WIDTH: tl.constexpr,  # noqa: N803
    PADDED: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    ITEMS: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
    DOT: tl.constexpr,  # noqa: N803
    BIAS: tl.constexpr,  # noqa: N803
    MEAN: tl.constexpr,  # noqa: N803
):
    """Some rows and a chunk of the items: the largest logit, the three sums relative to it."""
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, PADDED)
    part = tl.program_id(1)
    c = tl.load(
        contexts + i[:, None] * WIDTH + k[None, :], mask=(i < n_rows)[:, None] & (k < WIDTH)[None, :], other=0.0
    )
    m = tl.full([ROWS], float("-inf"), tl.float32)
    sums = tl.zeros([ROWS], tl.float32)
    sums2 = tl.zeros([ROWS], tl.float32)
    mean = tl.zeros([ROWS, PADDED], tl.float32)
    start = part * chunk
    end = tl.minimum(start + chunk, n_items)
    for at in range(start, end, ITEMS):
        j = at + tl.arange(0, ITEMS)
        there = j < n_items
        v = tl.load(
            items + j.to(tl.int64)[:, None] * WIDTH + k[None, :], mask=there[:, None] & (k < WIDTH)[None, :], other=0.0
        )
        v = round_tile(v, c, PRECISION)
        z = tl.dot(c, tl.trans(v), input_precision=DOT)
        if BIAS:
            z += tl.load(bias + j, mask=there, other=float("-inf"))[None, :]
        else:
            z = tl.where(there[None, :], z, float("-inf"))
        highest = tl.maximum(m, tl.max(z, 1))
        fade = tl.exp2(m - highest)
        p = tl.exp2(z - highest[:, None])
        sums = sums * fade + tl.sum(p, 1)
        sums2 = sums2 * fade * fade + tl.sum(p * p, 1)
        if MEAN:
            mean = mean * fade[:, None] + tl.dot(p.to(c.dtype), v, input_precision=DOT)
        m = highest
    at = part * n_rows + i
    tl.store(top + at, m, mask=i < n_rows)
    tl.store(total + at, sums, mask=i < n_rows)
    tl.store(squares + at, sums2, mask=i < n_rows)
    if MEAN:
        where = means + at.to(tl.int64)[:, None] * WIDTH + k[None, :]
        tl.store(where, mean, mask=(i < n_rows)[:, None] & (k < WIDTH)[None, :])


@compiled
def gradient_kernel(
    contexts,
    scaled,
    items,
    bias,
    log_total,
    scale,
    gradient,
    bias_gradient,
    n_rows,
    n_items,
    WIDTH: tl.constexpr,  # noqa: N803
    PADDED: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    ITEMS: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
    DOT: tl.constexpr,  # noqa: N803
    BIAS: tl.constexpr,  # noqa: N803
):
    """Some items and all rows: the logits again, and the gradient of the items' vectors and biases."""
    j = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)
    k = tl.arange(0, PADDED)
    there = j < n_items
    inside = there[:, None] & (k < WIDTH)[None, :]
    place = j.to(tl.int64)[:, None] * WIDTH + k[None, :]
    v = tl.load(items + place, mask=inside, other=0.0)
    v = round_tile(v, v, PRECISION)
    total = tl.zeros([ITEMS, PADDED], tl.float32)
    biases = tl.zeros([ITEMS], tl.float32)
    if BIAS:
        b = tl.load(bias + j, mask=there, other=0.0)
    for at in range(0, n_rows, ROWS):
        i = at + tl.arange(0, ROWS)
        known = (i < n_rows)[:, None] & (k < WIDTH)[None, :]
        c = tl.load(contexts + i[:, None] * WIDTH + k[None, :], mask=known, other=0.0)
        s = tl.load(scaled + i[:, None] * WIDTH + k[None, :], mask=known, other=0.0)
        t = tl.load(log_total + i, mask=i < n_rows, other=float("inf"))
        z = tl.dot(v.to(c.dtype), tl.trans(c), input_precision=DOT)
        if BIAS:
            z += b[:, None]
        p = tl.exp2(z - t[None, :])
        total += tl.dot(p.to(c.dtype), s, input_precision=DOT)
        if BIAS:
            biases -= tl.sum(p * tl.load(scale + i, mask=i < n_rows, other=0.0)[None, :], 1)
    tl.store(gradient + place, total, mask=inside)
    if BIAS:
        tl.store(bias_gradient + j, biases, mask=there)
