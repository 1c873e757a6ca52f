"""Logged actions, and lists of them, as a run sees them: a step's gradient, baseline and variance, and what held-out rows say."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from counterpoise.errors import OptionError
from counterpoise.learn.actions import among, are_few, logits_at
from counterpoise.learn.blocks import ItemScores
from counterpoise.learn.criterion import HeldOut, held_out_actions, held_out_lists
from counterpoise.learn.norms import (
    RULES,
    ItemSampleGradients,
    LoggedItems,
    Norms,
    SampleGradients,
    default_norms,
    features_of,
    has_rules,
    is_split,
    last_layer,
    last_layer_norms,
    logged_probability,
    logit_norms,
    needed,
    squared_sum,
)
from counterpoise.learn.objectives import OBJECTIVES, Objective, RunningBaseline, baseline_of, gradient_sums
from counterpoise.learn.plackett_luce import ABSENT, PlackettLuce, at_slots, pools, prefix_products
from counterpoise.learn.policy import Policy, serving
from counterpoise.learn.rows import Batch, Rows
from counterpoise.learn.softmax import USUAL, Arithmetic
from counterpoise.log.sequences import excess_at, reward_at
from counterpoise.log.targets import is_ranker
from counterpoise.moments import Floats, Moments
from counterpoise.moments.columns import ROW
from counterpoise.weights import Weight

if TYPE_CHECKING:
    from counterpoise.learn.source import Inspection

BETA_IPS = OBJECTIVES["beta_ips"]
UNKNOWN = torch.tensor(torch.nan)
ONE_SLOT = np.ones(1)  # the shares of lists of one
CELLS = 2**22  # logits of lists computed at a time
T = TypeVar("T")


# -- Where a run computes ----------------------------------------------------------------------------------------------


class Machine(NamedTuple):
    """Where a run computes: its device, and which of how many processes this is."""

    rank: int = 0
    processes: int = 1
    device: torch.device = torch.device("cpu")

    @classmethod
    def join(cls, device: str) -> Machine:
        """Join the group of processes that torchrun announces, if any."""
        announced = int(os.environ.get("WORLD_SIZE", "1"))
        if announced > 1 and not torch.distributed.is_initialized():
            torch.distributed.init_process_group("nccl" if device.startswith("cuda") else "gloo")
        if not torch.distributed.is_available() or not torch.distributed.is_initialized():
            return cls(device=torch.device(device))
        rank, processes = torch.distributed.get_rank(), torch.distributed.get_world_size()
        if device != "cuda":
            return cls(rank, processes, torch.device(device))
        local, gpus = int(os.environ.get("LOCAL_RANK", rank)), torch.cuda.device_count()
        if local >= gpus:
            raise OptionError(f"process {local} has no GPU to itself.", do=f"Start {gpus} processes.")
        torch.cuda.set_device(local)
        return cls(rank, processes, torch.device("cuda", local))

    def agree(self, value: T) -> T:
        """The first process's value, in all of them."""
        values = [value]
        if self.processes > 1:
            torch.distributed.broadcast_object_list(values, src=0)
        return values[0]

    def wait(self) -> None:
        """Wait for all processes, so that all of them see a file that one has written."""
        if self.processes > 1:
            torch.distributed.barrier()

    def total(self, x: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.processes > 1:
            torch.distributed.all_reduce(x)
        return x

    def share(self, module: nn.Module) -> nn.Module:
        """A module whose gradients are averaged over the processes."""
        if self.processes == 1:
            return module
        ids = [self.device.index] if self.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(module, device_ids=ids)


ALONE = Machine()


# -- One training step -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """What a step did: its β, the two sums that β* comes from, and its gradient's variance."""

    baseline: Tensor
    sums: Tensor
    variance: Tensor


class Logged(nn.Module):
    """A policy as a function of logged rows; it is a module so that DistributedDataParallel can wrap it."""

    def __init__(self, policy: Policy, arithmetic: Arithmetic = USUAL) -> None:
        super().__init__()
        self.policy, self.arithmetic = policy, arithmetic
        self.last: tuple[
            nn.Module, ...
        ] = ()  # of the last call; a tuple, so that torch does not register it as a submodule

    def forward(self, context: Tensor, action: Tensor, candidates: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """π(a|x), and the squared norms of its gradient with respect to the last layer."""
        policy = self.policy
        if candidates is None and self.arithmetic.by_items(len(context), policy.n_actions) and is_split(policy):
            items = LoggedItems(policy, context, action, self.arithmetic)
            self.last = (items.layer,)
            return items.target, items.squared_norms
        if candidates is not None and _takes_few(policy, candidates):
            layer, h = policy.scores, features_of(policy, context, self.arithmetic)
            assert isinstance(layer, nn.Linear)
            # without the logits of actions that are not candidates
            logits, action = logits_at(layer, h, candidates), (candidates == action[:, None]).int().argmax(1)
        else:
            logits, last, h = last_layer(policy, context, self.arithmetic)
            logits, layer = among(logits, candidates), needed(last, policy)
        self.last = (layer,)
        target, squares = logged_probability(logits, action)
        if isinstance(layer, ItemScores):
            return target, map_norms(layer, logits, action, h)
        return target, last_layer_norms(logit_norms(target, squares), h, bias=has_bias(layer))


def _takes_few(policy: Policy, candidates: Tensor | None) -> bool:
    return are_few(candidates, policy.n_actions) and type(policy.scores) is nn.Linear and is_split(policy)


def map_norms(layer: ItemScores, logits: Tensor, action: Tensor, h: Tensor) -> Tensor:
    """‖∇π_a‖² with respect to the map of item features."""
    probabilities = torch.softmax(logits.detach(), -1)
    target = probabilities.gather(1, action[:, None])
    delta = (probabilities * -target).scatter_add_(1, action[:, None], target)
    return RULES[ItemScores].norms(layer, h.detach(), delta)


def has_bias(layer: nn.Module | None) -> bool:
    """Whether a last layer adds a number of its own to every logit."""
    return isinstance(layer, nn.Linear) and layer.bias is not None


class LoggedActions:
    """What was logged, as a run sees it: an action in each row, with its steps, its baseline, and what held-out rows say of the policy.

    With `norms="all"`, the β* of a step minimizes the variance of the gradient of all parameters; with ``"last_layer"``, that of
    the last layer (for item features, of their map M). `arithmetic` says in which precision to compute; the logits of very many
    actions are never all in memory. `settings`, like the options, must be the same for a checkpoint to be resumed. `LoggedLists`
    are the other kind.
    """

    splits = True  # several processes may share a batch
    ties_go_by_value = False  # between epochs with the same score

    def __init__(
        self, policy: Policy, machine: Machine = ALONE, norms: Norms | None = None, arithmetic: Arithmetic = USUAL
    ) -> None:
        if is_ranker(policy):
            raise OptionError(
                "this policy shows rankings, which are not learned from single rows.", do="Use RankingLearner."
            )
        self.policy, self.machine, self.arithmetic = policy, machine, arithmetic
        self.norms = norms or default_norms(policy)
        self.settings: dict[str, object] = {}
        self._logged = Logged(policy, arithmetic)
        self._shared = machine.share(self._logged)

    def baselines(self, decay: float) -> RunningBaseline:
        """The baseline of the batches before."""
        return RunningBaseline(decay=decay)

    def held_out(self, parts: Iterable[Rows], log: Inspection, level: float) -> HeldOut:
        """What rows that the policy was not trained on say about it."""
        return held_out_actions(self.policy, parts, log, level)

    def backward(
        self, batch: Batch, baseline: Tensor | float | None, objective: Objective = BETA_IPS, measure: bool = True
    ) -> Step:
        """Put the gradient of the objective's negative on a batch into the parameters' `.grad`, which must be empty.

        `baseline` is what the objective subtracts from the rewards; None means β* of this very batch. The variance is that of the same
        parameters as in β*, over the rows of all processes. Without `measure` it is nan, and the step is a little cheaper.
        """
        if objective.is_of_score:
            return self._of_score(batch, objective, measure)
        if objective.needs_model_rewards or objective.needs_score:
            return self._of_logits(batch, baseline, objective, measure)
        if self.norms == "all":
            return self._of_all_layers(batch, baseline, objective, measure)
        policy, processes = self.policy, self.machine.processes
        fits = processes == 1 and not self._has_many(batch) and not _takes_few(policy, batch.candidates)
        if fits and type(policy.scores) is nn.Linear and is_split(policy):
            return self._of_linear(policy.scores, batch, baseline, objective, measure)
        target, squared_norms = self._shared(batch.context, batch.action, batch.candidates)
        weight, beta, sums = self._weights(target, squared_norms, batch, baseline, objective)
        # DistributedDataParallel takes the mean over processes, and their parts of the batch may differ by a row
        torch.autograd.backward(target, weight * (-processes / batch.total))
        if not measure:
            return Step(beta, sums, UNKNOWN)
        return Step(beta, sums, self._variance(squared_norms, weight, batch, self._logged.last[0].parameters()))

    def _of_linear(
        self, scores: nn.Linear, batch: Batch, baseline: Tensor | float | None, objective: Objective, measure: bool
    ) -> Step:
        """The last layer's gradient is written out, Σ c π_a (e_a − π) hᵀ, which is cheaper than autograd; autograd does the rest."""
        h = features_of(self.policy, batch.context, self.arithmetic)
        with torch.no_grad():
            features, action = h.detach(), batch.action[:, None]
            probabilities = torch.softmax(among(scores(features), batch.candidates), -1)
            target = probabilities.gather(1, action)[:, 0]
            if measure or objective.learns_baseline:
                logits = logit_norms(target, squared_sum(probabilities))
                squared_norms = last_layer_norms(logits, features, bias=scores.bias is not None)
            else:
                squared_norms = torch.zeros_like(target)  # not used
            weight, beta, sums = self._weights(target, squared_norms, batch, baseline, objective)
            coefficient = (target * weight).mul_(1 / batch.total)[:, None]
            outer = probabilities.mul_(coefficient).scatter_add_(1, action, -coefficient)
            # in this order, because BLAS is slow at the other where there are few features
            scores.weight.grad = (features.T @ outer).T.contiguous()
            if scores.bias is not None:
                scores.bias.grad = outer.sum(0)
        if h.requires_grad:
            torch.autograd.backward(h, outer @ scores.weight.detach())
        return Step(
            beta, sums, self._variance(squared_norms, weight, batch, scores.parameters()) if measure else UNKNOWN
        )

    def _of_logits(self, batch: Batch, baseline: Tensor | float | None, objective: Objective, measure: bool) -> Step:
        """For objectives of the probabilities of all actions; the variance is the last layer's, or the logits' if that is not linear."""
        logits, layer, h = last_layer(self.policy, batch.context, self.arithmetic)
        possible = among(logits, batch.candidates)
        target, squares = logged_probability(possible, batch.action)
        beta, sums = self._baseline(logit_norms(target, squares), batch, baseline)
        known = {} if batch.model_rewards is None else {"model_rewards": batch.model_rewards}
        value = objective(
            target,
            batch.reward,
            batch.propensity,
            baseline=beta,
            probabilities=torch.softmax(possible, -1),
            action=batch.action,
            score=possible.gather(1, batch.action[:, None])[:, 0],
            **known,
        )
        gradients: list[Tensor] = []
        logits.register_hook(gradients.append)  # type: ignore[no-untyped-call]
        # a mean over the rows that this process has, of which the last batch may leave it none
        share = value * (len(batch.action) / batch.total) if len(batch.action) else logits.sum()
        (-share).backward()  # type: ignore[no-untyped-call]
        self._add_up_gradients()
        if not measure:
            return Step(beta, sums, UNKNOWN)
        delta = gradients[0] * batch.total
        norms = delta.square().sum(1) if layer is None else RULES[type(layer)].norms(layer, h.detach(), delta)
        return Step(beta, sums, self._variance(norms, torch.ones_like(norms), batch, _parameters(layer)))

    def _of_score(self, batch: Batch, objective: Objective, measure: bool) -> Step:
        """For objectives of the logged action's logit alone: no other logit is computed where the last layer is linear."""
        policy, scores, action = self.policy, self.policy.scores, batch.action
        zero = batch.reward.new_zeros(())
        layer: nn.Module | None = None
        if type(scores) is nn.Linear and is_split(policy):
            h = features_of(policy, batch.context, self.arithmetic)
            with torch.no_grad():
                features, weights = h.detach(), scores.weight[action]
                score = (features * weights).sum(1)
                if scores.bias is not None:
                    score += scores.bias[action]
                slope = objective.slopes(score, batch.reward, batch.propensity, zero)
                each = (slope * (-1 / batch.total))[:, None]
                scores.weight.grad = torch.zeros_like(scores.weight).index_add_(0, action, features * each)
                if scores.bias is not None:
                    scores.bias.grad = torch.zeros_like(scores.bias).index_add_(0, action, each[:, 0])
            if h.requires_grad:
                torch.autograd.backward(h, weights * each)
            layer, norms = scores, last_layer_norms(torch.ones_like(score), features, bias=scores.bias is not None)
        else:
            if isinstance(scores, ItemScores) and is_split(policy):
                h = features_of(policy, batch.context, self.arithmetic)
                score = (h * (scores.features[action] @ scores.map.T)).sum(1)
            else:
                score = policy(batch.context).gather(1, action[:, None])[:, 0]
            slope = objective.slopes(score.detach(), batch.reward, batch.propensity, zero)
            torch.autograd.backward(score, slope * (-1 / batch.total))
            norms = torch.ones_like(slope)
        self._add_up_gradients()
        variance = self._variance(norms, slope, batch, _parameters(layer)) if measure else UNKNOWN
        return Step(zero, batch.reward.new_zeros(2), variance)

    def _of_all_layers(
        self, batch: Batch, baseline: Tensor | float | None, objective: Objective, measure: bool
    ) -> Step:
        """With the gradient norms of all layers, row by row."""
        policy, arithmetic = self.policy, self.arithmetic
        rows: SampleGradients | ItemSampleGradients
        if self._has_many(batch) and is_split(policy) and has_rules(policy):
            rows = ItemSampleGradients(policy, batch.context, batch.action, arithmetic)
        else:
            rows = SampleGradients(policy, batch.context, batch.action, arithmetic, batch.candidates)
        weight, beta, sums = self._weights(rows.target, rows.squared_norms, batch, baseline, objective)
        gradients = rows.weighted_sum(weight / -batch.total)
        for parameter, gradient in gradients.items():
            parameter.grad = self.machine.total(gradient)
        variance = self._variance(rows.squared_norms, weight, batch, gradients) if measure else UNKNOWN
        return Step(beta, sums, variance)

    def _has_many(self, batch: Batch) -> bool:
        """Whether there are too many actions to hold all their logits."""
        return batch.candidates is None and self.arithmetic.by_items(len(batch.action), self.policy.n_actions)

    def _weights(
        self, target: Tensor, squared_norms: Tensor, batch: Batch, baseline: Tensor | float | None, objective: Objective
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The c of each row in the gradient Σ c ∇π; β; and the two sums that β* comes from."""
        beta, sums = self._baseline(squared_norms, batch, baseline)
        return objective.slopes(target.detach(), batch.reward, batch.propensity, beta), beta, sums

    def _baseline(self, squared_norms: Tensor, batch: Batch, baseline: Tensor | float | None) -> tuple[Tensor, Tensor]:
        """β, and the two sums that β* comes from."""
        sums = self.machine.total(gradient_sums(squared_norms, batch.reward, batch.propensity))
        beta = baseline_of(sums) if baseline is None else baseline
        return torch.as_tensor(beta, dtype=batch.reward.dtype, device=batch.reward.device), sums

    def _add_up_gradients(self) -> None:
        """Add up every parameter's gradient over the processes."""
        if self.machine.processes > 1:
            for parameter in self.policy.parameters():
                if parameter.requires_grad:
                    own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                    parameter.grad = self.machine.total(own)

    def _variance(self, norms: Tensor, weight: Tensor, batch: Batch, parameters: Iterable[Tensor]) -> Tensor:
        """(mean(‖∇π‖²c²) − ‖mean(c∇π)‖²)/B; if no parameter's gradient is at hand, the second, smaller term is left out."""
        second_moment = self.machine.total((norms * weight.square()).sum()) / batch.total
        for parameter in parameters:
            if (gradient := parameter.grad) is not None:  # ‖g‖², without a tensor of squares as large as the gradient
                numbers = gradient.coalesce().values() if gradient.is_sparse else gradient
                second_moment = second_moment - torch.linalg.vector_norm(numbers).square()
        return second_moment / batch.total


def _parameters(layer: nn.Module | None) -> Iterable[Tensor]:
    return () if layer is None else layer.parameters()


# -- The same for lists: the gradient of an objective, with a baseline for every position that has a weight of its own -----


@dataclass(frozen=True)
class WeighedLists:
    """The weights of lists, lists × terms, differentiable, and the inner products of their gradients, lists × terms × terms.

    There is a term for each position, or one for the whole list; `products` are those with respect to the logits.
    """

    weight: Tensor
    products: Tensor


def list_weights(logits: Tensor, items: Tensor, propensity: Tensor, weight: Weight) -> WeighedLists:
    """The weights of lists of places in `logits`, whose propensities (1 below the end of a list) mean what the weight needs."""
    if not weight.is_running:
        target, slope = at_slots(logits, items)
        slope = slope / propensity[:, :, None]
        return WeighedLists(torch.where(items != ABSENT, target / propensity, 1.0), slope @ slope.transpose(1, 2))
    left = pools(logits, items, squares=True)
    # as logarithms, because probabilities of long lists leave the range of single precision
    running = (left.log_given - propensity.log()).cumsum(1).exp()
    products = prefix_products(left)
    size = running.detach()
    if not weight.by_position:
        return WeighedLists(running[:, -1:], products[:, -1:, -1:] * size[:, -1:, None].square())
    # below the end of a list, the product and its gradient keep their last value, so that their means do not depend on where lists end
    return WeighedLists(running, products * size[:, :, None] * size[:, None, :])


def list_sums(products: Tensor, reward: Tensor) -> Tensor:
    """Both sides of the equations of the baselines, terms × (terms + 1), in double precision."""
    double = products.double()
    right = (double @ reward.double()[:, :, None]).sum(0)
    return torch.cat([double.sum(0), right], 1)


def list_baselines(sums: Tensor) -> Tensor:
    """The baselines from their equations; 0 in directions in which no list has a gradient, where any baseline will do.

    >>> list_baselines(torch.tensor([[4.0, 0.0, 6.0], [0.0, 0.0, 0.0]], dtype=torch.float64)).tolist()
    [1.5, 0.0]
    """
    left, right = sums[:, :-1], sums[:, -1]
    # positions far down may have weights larger by orders of magnitude: bring all to one scale first
    size = left.diagonal().sqrt()
    size = torch.where(size > 0, size, 1.0)
    inverse: Tensor = torch.linalg.pinv(left / size[:, None] / size, hermitian=True, rtol=1e-9)
    return (inverse @ (right / size)) / size


class RunningBaselines(RunningBaseline):
    """The baselines from earlier batches only, so that the gradient of the current batch is unbiased."""

    def __init__(self, terms: int, *, decay: float) -> None:
        super().__init__(decay=decay)
        self.sums = torch.zeros(terms, terms + 1, dtype=torch.float64)

    @property
    def value(self) -> Tensor:
        """The baselines to use now; 0 before the first batch."""
        return list_baselines(self.sums)


class LoggedLists(LoggedActions):
    r"""Logged lists as a run sees them, with the weight that says what the reward at a position depends on.

    A list adds :math:`\sum_k w_k (r_k - \beta_k) + \beta_k` to the value, and to its gradient
    :math:`g = \sum_k (r_k - \beta_k) \nabla w_k`. As every :math:`\nabla w_k` has mean 0, the mean of g is the same for any β, and the β
    of least gradient variance solves

    .. math:: \sum_k \mathbb E \langle \nabla w_j, \nabla w_k \rangle \beta_k = \sum_k \mathbb E \langle \nabla w_j, \nabla w_k \rangle r_k

    jointly for all positions j; with one weight per list, that is the β* of single rows. Where lists end early, a running product and
    its gradient keep their last value below the end; otherwise their means would depend on who leaves. All slots of a list share the
    input h of a linear last layer z = W h, so that inner products with respect to W are those with respect to z, times ‖h‖² (plus 1
    if it has a bias).

    There is a baseline for each of `terms`, the positions; or one, for the list as a whole. `shares` is how much each position counts in
    the mean weight of a list.
    """

    splits = False
    ties_go_by_value = True  # while the lists can't measure either of two epochs
    policy: PlackettLuce

    def __init__(
        self,
        policy: PlackettLuce,
        weight: Weight,
        shares: Floats = ONE_SLOT,
        settings: dict[str, object] | None = None,
    ) -> None:
        self.policy, self.weight, self.shares, self.settings = policy, weight, shares, settings or {}
        self.terms = len(shares) if weight.by_position else 1

    def rewards(self, reward: Tensor) -> Tensor:
        """What each term earned: a position, or the whole list."""
        return reward if self.weight.by_position else reward.sum(1, keepdim=True)

    def weights(self, context: Tensor, items: Tensor, propensity: Tensor) -> tuple[WeighedLists, nn.Module | None]:
        """The weights, with the inner products of the last layer's gradients, and that layer; of the logits' if it is not linear."""
        logits, layer, h = last_layer(self.policy.scores, context)
        lists = list_weights(logits, items, propensity.to(logits.dtype), self.weight)
        if layer is None:
            return lists, None
        size = last_layer_norms(torch.ones_like(logits[:, 0]), h, bias=has_bias(layer))
        return WeighedLists(lists.weight, lists.products * size[:, None, None]), layer

    def baselines(self, decay: float) -> RunningBaselines:
        """A baseline for every position, or for the whole list, from the batches before."""
        return RunningBaselines(self.terms, decay=decay)

    def backward(
        self, batch: Batch, baseline: Tensor | float | None, objective: Objective = BETA_IPS, measure: bool = True
    ) -> Step:
        """Put the gradient of the objective's negative into the parameters; the step's β is that of the list as a whole.

        An objective is computed position by position and added up. It gets the weight as `target`, and 1 as `propensity`.
        """
        lists, layer = self.weights(batch.context, batch.action, batch.propensity)
        w, reward = lists.weight, self.rewards(batch.reward).to(lists.weight.dtype)
        sums = list_sums(lists.products, reward)
        chosen = list_baselines(sums) if baseline is None else baseline
        beta = torch.as_tensor(chosen, dtype=w.dtype, device=w.device).expand(w.shape[1])
        ones = torch.ones_like(w)
        if objective.slope is not None:
            slope = objective.slope(w.detach(), reward, ones, beta)
        else:
            with torch.enable_grad():
                free = w.detach().clone().requires_grad_()
                each = [
                    objective(*(x[:, k] for x in (free, reward, ones)), baseline=beta[k]) for k in range(w.shape[1])
                ]
                slope = torch.autograd.grad(torch.stack(each).sum(), free)[0] * len(w)
        torch.autograd.backward(w, slope * (-1 / batch.total))
        if not measure:
            return Step(beta.sum(), sums, UNKNOWN)
        second = torch.einsum("ij,ijk,ik->", slope, lists.products, slope) / batch.total
        for parameter in layer.parameters() if isinstance(layer, nn.Linear) else ():
            if parameter.grad is not None:
                second = second - parameter.grad.square().sum()
        return Step(beta.sum(), sums, second / batch.total)

    def held_out(self, parts: Iterable[Rows], log: Inspection, level: float) -> HeldOut:
        """What held-out lists say; the lower end of the interval decides, because the values of sharp rankers are mostly noise."""
        return held_out_lists(self.moments(parts), level)

    def moments(self, parts: Iterable[Rows]) -> Iterator[tuple[Moments, Floats, Floats]]:
        """The moments of some lists at a time, with the weight less 1 and the reward of every list as a whole."""
        device, size = self.policy.device, max(1, CELLS // self.policy.n_actions)
        for lists in parts:
            for at in range(0, len(lists), size):
                part = lists.take(slice(at, at + size)).to(device)
                with serving(self.policy):
                    logits = self.policy(part.context).double()
                    known = list_weights(logits, part.action, part.propensity.double(), self.weight).weight
                w, reward = (numbers.double().cpu().numpy() for numbers in (known, self.rewards(part.reward)))
                whole, excess = reward.sum(axis=1), w - 1.0
                if w.shape[1] == 1:
                    yield Moments.of(weight=w[:, 0], reward=reward[:, 0]), excess[:, 0], whole
                    continue
                center, u = float(whole.mean()) if len(whole) else 0.0, excess @ self.shares
                own = (excess * reward).sum(axis=1) - center * u
                ranks = range(1, w.shape[1] + 1)
                columns = (*ROW, *map(excess_at, ranks), *map(reward_at, ranks))
                z = np.stack([u, whole - center, own, *excess.T, *(w * reward).T])
                mean = z.mean(axis=1) if len(whole) else np.zeros(len(columns))
                z = z - mean[:, None]
                yield Moments(len(whole), mean, z @ z.T, center, columns), u, whole
