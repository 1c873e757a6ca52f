r"""A full-batch epoch of many runs: one step along the gradient of an objective of the whole log.

An objective O of the weights w has the gradient :math:`\sum_i (\partial O/\partial w_i) \nabla\pi_i / \pi_{0,i}`, so objectives
differ only in the derivatives ∂O/∂w. Those of SNIPS, and of β-IPS differentiated through the β of least value variance, are
written out below.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from counterpoise.experiments.many import LoggedRows, Parameters, Run, chunks, squared_gradients

FLOOR = 1e-11  # of the published baseline's denominator


def epochs(rows: LoggedRows, runs: Sequence[Run], parameters: Parameters) -> Iterator[Tensor]:
    """Take one step each time, and yield the gradient variance of every run before it."""
    chosen = nn.functional.one_hot(rows.action, parameters.weights.shape[2]).to(rows.context)
    step = 0
    while True:
        target, squares = _pass(rows, parameters.weights)
        derivative, centered = _derivatives(rows, runs, target)
        # the objective's own gradient, and the one whose variance is measured
        gradient, measured = _gradients(rows, parameters.weights, chosen, target, torch.stack([derivative, centered]))
        second_moment = (squares * centered.square()).mean(1)
        parameters.ascend(gradient, parameters.table(step, 1)[0])
        step += 1
        yield (second_moment - measured.square().sum((1, 2))) / len(rows) ** 2


def _pass(rows: LoggedRows, weights: Tensor) -> tuple[Tensor, Tensor]:
    """π(a|x) and ‖∇π(a|x)‖²/π₀² for every run and row."""
    shape = (len(weights), len(rows))
    target, squares = weights.new_empty(shape), weights.new_empty(shape)
    for part in chunks(len(rows), weights[:, 0].numel(), weights.device):
        probabilities = torch.softmax(torch.matmul(rows.context[part], weights), -1)
        logged = probabilities.gather(-1, rows.action[part, None].expand(len(weights), -1, 1))[..., 0]
        target[:, part] = logged
        squares[:, part] = squared_gradients(logged, probabilities, rows.factor[part])
    return target, squares


def _gradients(rows: LoggedRows, weights: Tensor, chosen: Tensor, target: Tensor, derivative: Tensor) -> Tensor:
    """The mean over rows of (n ∂O/∂w) ∇π/π₀ = Σᵢ cᵢ xᵢ (eₐ − π)ᵀ, for each of the stacked derivatives."""
    kinds, dimension = len(derivative), weights.shape[1]
    total = weights.new_zeros(len(weights), kinds * dimension, weights.shape[2])
    for part in chunks(len(rows), weights[:, 0].numel(), weights.device):
        probabilities = torch.softmax(torch.matmul(rows.context[part], weights), -1)
        coefficient = derivative[:, :, part] * (target[:, part] * rows.inverse[part])
        scaled = coefficient.transpose(0, 1)[:, :, None] * rows.context[part].T  # runs, kinds, context, rows
        scaled = scaled.flatten(1, 2)
        total += torch.matmul(scaled, chosen[part]) - torch.bmm(scaled, probabilities)
    return total.reshape(len(weights), kinds, dimension, -1).transpose(0, 1) / len(rows)


def _derivatives(rows: LoggedRows, runs: Sequence[Run], target: Tensor) -> tuple[Tensor, Tensor]:
    """n ∂O/∂w for every run and row, and r − β, from which the gradient variance is measured."""
    r = rows.reward
    derivative, centered = torch.empty_like(target), torch.empty_like(target)
    for objective in {run.objective for run in runs}:
        of = [k for k, run in enumerate(runs) if run.objective == objective]
        w = target[of] * rows.inverse
        mean = w.mean(1, keepdim=True)
        if objective == "snips":
            # published so: the variance of SNIPS' gradient was measured without a baseline
            derivative[of] = (r - (w * r).mean(1, keepdim=True) / mean) / mean
            centered[of] = r.expand_as(w)
        elif objective == "published_value_beta_ips":
            extra = w * w - w
            spread = extra.mean(1, keepdim=True).clamp(min=FLOOR)
            from_baseline = r - (r * extra).mean(1, keepdim=True) / spread
            centered[of] = from_baseline
            # O = β + mean(w(r − β)), and n ∂β/∂w = (r − β)(2w − 1)/mean(w² − w)
            derivative[of] = from_baseline * (1 + (1 - mean) * (2 * w - 1) / spread)
        else:
            centered[of] = r - r.new_tensor([[runs[k].banditnet_lambda] for k in of])
            derivative[of] = centered[of]
    return derivative, centered
