r"""The softmax over a sample of the items, for catalogs too large for an exact one.

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

import torch
from torch import Tensor
from torch.nn.functional import embedding

from counterpoise.learn.items.logits import Logits


def log_probability(
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
    found = torch.log_softmax(torch.cat([z_logged[:, None], z], 1), 1)
    with torch.no_grad():
        p, others = found[:, :1].exp(), found[:, 1:].exp()
        squares = p[:, 0].square() + share * others.square().sum(1)
        mean = p * logged + others @ vectors
    return found[:, 0], squares, mean
