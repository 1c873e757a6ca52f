r"""One rule per layer type: the squared norm of each row's parameter gradient, and the weighted sum of these gradients.

Both come from a layer's inputs and the gradients of its outputs, row by row; we never compute any row's parameter gradient.

The parameter gradient of a linear layer on row i is :math:`\delta_i h_i^\top`, whose squared norm is
:math:`\lVert\delta_i\rVert^2 \lVert h_i\rVert^2` (Goodfellow 2015, "Efficient per-example gradient computations"). With
T positions in a row (a sequence, or several embeddings) it is :math:`\sum_{st} (h_s \cdot h_t)(\delta_s \cdot \delta_t)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from counterpoise.learn.items.scores import ItemScores

Gradients = dict[Tensor, Tensor]  # by parameter


@dataclass(frozen=True)
class Rule:
    """`norms(layer, inputs, delta)` is per row; `weighted(layer, inputs, delta)` is summed over rows, with delta already weighted."""

    norms: Callable[[Any, Tensor, Tensor], Tensor]
    weighted: Callable[[Any, Tensor, Tensor], Gradients]


def _positions(x: Tensor) -> Tensor:
    """(rows, …, width) → (rows, T, width)."""
    return x.reshape(len(x), -1, x.shape[-1])


def _linear_norms(layer: Any, h: Tensor, delta: Tensor) -> Tensor:
    if h.ndim == 2:
        return delta.square().sum(1) * (h.square().sum(1) + float(layer.bias is not None))
    h, delta = _positions(h), _positions(delta)
    alike = h @ h.mT + float(layer.bias is not None)
    return (alike * (delta @ delta.mT)).sum((1, 2))


def _linear_weighted(layer: Any, h: Tensor, delta: Tensor) -> Gradients:
    flat = delta.reshape(-1, delta.shape[-1])
    found: Gradients = {layer.weight: flat.T @ h.reshape(-1, h.shape[-1])}
    if layer.bias is not None:
        found[layer.bias] = flat.sum(0)
    return found


def _normalized(layer: nn.LayerNorm, h: Tensor) -> Tensor:
    return nn.functional.layer_norm(h, layer.normalized_shape, eps=layer.eps)


def _layer_norm_norms(layer: Any, h: Tensor, delta: Tensor) -> Tensor:
    found = delta.new_zeros(len(delta))
    shape = (len(delta), -1, *layer.normalized_shape)
    for parameter, factor in ((layer.weight, _normalized(layer, h)), (layer.bias, torch.ones_like(h))):
        if parameter is not None:
            found = found + (factor * delta).reshape(shape).sum(1).flatten(1).square().sum(1)
    return found


def _layer_norm_weighted(layer: Any, h: Tensor, delta: Tensor) -> Gradients:
    rows = tuple(range(delta.ndim - len(layer.normalized_shape)))
    found: Gradients = {}
    if layer.weight is not None:
        found[layer.weight] = (_normalized(layer, h) * delta).sum(rows)
    if layer.bias is not None:
        found[layer.bias] = delta.sum(rows)
    return found


def _embedding_norms(layer: Any, index: Tensor, delta: Tensor) -> Tensor:
    index, delta = index.reshape(len(index), -1), _positions(delta)
    if layer.padding_idx is not None:
        delta = delta * (index != layer.padding_idx)[..., None]
    same = (index[:, :, None] == index[:, None, :]).to(delta)
    return (same * (delta @ delta.mT)).sum((1, 2))


def _embedding_weighted(layer: Any, index: Tensor, delta: Tensor) -> Gradients:
    flat = delta.reshape(-1, delta.shape[-1])
    if layer.padding_idx is not None:
        flat = flat * (index.reshape(-1, 1) != layer.padding_idx)
    return {layer.weight: torch.zeros_like(layer.weight).index_add_(0, index.reshape(-1), flat)}


def _item_norms(layer: Any, u: Tensor, delta: Tensor) -> Tensor:
    """The gradient of M on a row is u (Fᵀδ)ᵀ."""
    features: Tensor = layer.features
    return u.square().sum(1) * (delta @ features).square().sum(1)


def _item_weighted(layer: Any, u: Tensor, delta: Tensor) -> Gradients:
    return {layer.map: u.T @ (delta @ layer.features)}


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: Rule(_linear_norms, _linear_weighted),
    nn.LayerNorm: Rule(_layer_norm_norms, _layer_norm_weighted),
    nn.Embedding: Rule(_embedding_norms, _embedding_weighted),
    ItemScores: Rule(_item_norms, _item_weighted),
}
