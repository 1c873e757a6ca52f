r"""Lists as a run sees them: how a log of them is read, one training step with a baseline for every position, and held-out lists.

A list adds :math:`\sum_k w_k (r_k - \beta_k) + \beta_k` to the value, and to its gradient :math:`g = \sum_k (r_k - \beta_k) \nabla w_k`. As
every :math:`\nabla w_k` has mean 0, the mean of g is the same for any β, and the β of least gradient variance solves

.. math:: \sum_k \mathbb E \langle \nabla w_j, \nabla w_k \rangle \beta_k = \sum_k \mathbb E \langle \nabla w_j, \nabla w_k \rangle r_k

jointly for all positions j; with one weight per list, that is the β* of single rows. Where lists end early, a running product and
its gradient keep their last value below the end; otherwise their means would depend on who leaves. All slots of a list share the
input h of a linear last layer z = W h, so that inner products with respect to W are those with respect to z, times ‖h‖² (plus 1
if it has a bias).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import narwhals as nw
import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from counterpoise.diagnostics.diagnose import WeightedRows, diagnose
from counterpoise.diagnostics.verdict import FEW_CARRYING
from counterpoise.engines.first_look import lists_of
from counterpoise.engines.lists import collapse
from counterpoise.errors import ColumnError, LogError, OptionError
from counterpoise.estimators.weighted import beta_ips
from counterpoise.intervals import Evidence, Interval
from counterpoise.intervals.student import Student, student
from counterpoise.learn.baselines import RunningBaseline
from counterpoise.learn.callbacks import Epoch
from counterpoise.learn.criterion import HeldOut, held_out
from counterpoise.learn.norms import last_layer, last_layer_norms
from counterpoise.learn.objectives import Objective
from counterpoise.learn.plackett_luce import ABSENT, PlackettLuce, at_slots, pools, prefix_products
from counterpoise.learn.policy import serving
from counterpoise.learn.rows import Batch, Rows, Split
from counterpoise.learn.source import Good, Inspection, Source
from counterpoise.learn.steps import BETA_IPS, UNKNOWN, LoggedActions, Step, has_bias
from counterpoise.log.kinds import check_kinds, kinds_of
from counterpoise.log.kinds.lists import (
    DISCOUNT,
    LIST,
    POSITION,
    Lists,
    check_same_context,
    excess_at,
    reward_at,
    rows_by_list,
)
from counterpoise.log.log import Log
from counterpoise.log.parts import MODELS
from counterpoise.log.question import Learning, Question
from counterpoise.log.rules import Problem, all_bad, find_problems, is_good, refuse
from counterpoise.moments import Floats, Moments, Powers
from counterpoise.moments.columns import ROW
from counterpoise.moments.spread import EMPTY, KEPT, NOTHING, Tail
from counterpoise.weights.lists import ListWeight, PseudoInverse

# -- Logs of lists as training reads them ------------------------------------------------------------------------------

Integers = NDArray[np.int64]
ONE_SLOT = np.ones(1)  # the shares of lists of one


class ListSource(Source):
    """The lists of a log, all in memory. Those that `judges` holds out are not among them: `judged` has their rows.

    Their `Rows` have a context for every list, and items, rewards and propensities lists × slots; below the end of a list, −1, 0 and 1.
    Rewards are as they count, discounted; `shares` is how much each slot counts in a list's mean weight.
    """

    lists: Lists
    shares: Floats

    def __init__(self, log: Log, weight: ListWeight, judges: Split) -> None:
        log.need("slate", "position")
        if log.has_estimated_propensities:
            check_kinds(kinds_of(log), "a propensity model")
        if isinstance(weight, PseudoInverse):
            raise OptionError(
                "a policy cannot be learned with the pseudo-inverse weight, which needs a logging policy that fills slots independently.",
                do="Pass another `weight=`.",
            )
        self.weight, self.judges = weight, judges
        self.judged = pl.DataFrame()
        super().__init__(log, fills_gaps=False, in_memory=True)
        if self.reading.encoding is not None or self.reading.names is not None or log.candidates is not None:
            raise ColumnError(
                "a ranking policy learns from contexts and items that are numbers, and some columns have others.",
                do="Number the items from 0, and name expressions that make numbers of the context.",
            )

    def _asked(self) -> Question:
        """The question that learning asks about lists, which are judged as a whole."""
        log = self.log.without("key", "baseline", *MODELS)
        self.lists = lists_of(self.log)
        groups = 1 if self.log.cluster is None else 2  # which makes the rules look at clusters
        return Question(log, (), self.weight, groups=groups, lists=self.lists, learning=Learning())

    def look(self, start: int) -> tuple[Rows, list[Problem]]:
        """All lists to train on; bad ones are left out and counted if bad rows may be dropped, and refused otherwise."""
        frame = self._part(start)
        rows, judged = self._tensors(frame, self._digits)
        lists = nw.from_native(collapse(nw.from_native(judged.lazy()), self.question).to_native().sort(LIST).collect())
        held = lists.select(LIST, good=is_good(self.question).fill_null(False)).to_native()
        self.total, self.dropped = held.height, int((~held.get_column("good")).sum())
        problems = find_problems(lists, self.question, None) if self.dropped else []
        if self.dropped and not self.log.drop_bad_rows:
            refuse(problems, self.total)
        if self.dropped == self.total:
            raise all_bad(problems, self.total)
        of_rows = judged.select(LIST).join(held, on=LIST, how="left", nulls_equal=True, maintain_order="left")
        good = of_rows.get_column("good").to_numpy()
        self._check_single(rows, frame, good)
        index = self._rows_of_lists(judged, good)
        check_same_context(rows.context.numpy(), index)
        apart = self._judging(frame, index)
        self.judged = frame[_rows(index[apart])]
        self._remember(frame[_rows(index[~apart])])
        trained = self._lists(rows, judged, index[~apart])
        self.memory, self.rows, self._before = trained, len(trained), {0: 0}
        return trained, []

    def _rows_of_lists(self, judged: pl.DataFrame, good: Good) -> Integers:
        """Which rows each good list has, lists × slots, in the order of the lists' ids."""
        kept = np.flatnonzero(good)
        ids, position = judged.get_column(LIST).to_numpy()[kept], judged.get_column(POSITION).to_numpy()[kept]
        number = np.unique(ids, return_inverse=True)[1].astype(np.int64)
        placed = rows_by_list(number, (position - self.lists.first).astype(np.int64))
        return np.where(placed >= 0, kept[placed], ABSENT)

    def _judging(self, frame: pl.DataFrame, index: Integers) -> Good:
        """Which lists are kept apart: by the hash of their cluster, or of their number."""
        if self.log.cluster is None:
            return self.judges.held_out(0, len(index))
        cluster = frame.get_column(self.log.cluster)
        distinct = cluster.drop_nulls().unique().sort().to_numpy()
        number = np.searchsorted(distinct, cluster.to_numpy()[index[:, 0]])
        return self.judges.held_out(0, len(distinct))[number]

    def _lists(self, rows: Rows, judged: pl.DataFrame, index: Integers) -> Rows:
        there = index >= 0
        reward, propensity = (
            torch.as_tensor(np.where(there, part.numpy()[index], other).astype(np.float32))
            for part, other in ((rows.reward, 0.0), (rows.propensity, 1.0))
        )
        lists = replace(self.lists, last=self.lists.first + index.shape[1] - 1)
        counts = np.array([lists.counts(k) for k in range(1, lists.depth + 1)])
        if lists.discount_column is not None:
            counts = judged.get_column(DISCOUNT).to_numpy()[index]
        self.shares = np.array(list(lists.shares.values()))
        return Rows(
            rows.context[index[:, 0]],
            torch.as_tensor(np.where(there, rows.action.numpy()[index], ABSENT)),
            reward * torch.as_tensor(np.where(there, counts, 0.0).astype(np.float32)),
            propensity,
        )


def judged_log(source: ListSource) -> Log:
    """The lists that judge, as a log of their own: computed columns are there under the text of their expressions."""
    log = source.log
    return Log(
        source.judged,
        reward=log.reward,
        minimize=source.minimize,
        propensity=log.propensity,
        action=log.action,
        context=log.context,
        cluster=log.cluster,
        slate=log.slate,
        position=log.position,
        propensity_of=log.propensity_of,
        discount=log.discount,
        groups=log.groups,
        reward_bounds=log.reward_bounds,
    )


def refuse_depth(depth: int, items: int) -> None:
    """Refuse lists that are longer than there are items."""
    if depth > items:
        raise LogError(
            f"lists have up to {depth} positions, and there are only {items:,} items, so some are shown twice in a list, which a "
            "ranking policy never does.",
            do="Look at the top of the lists, such as `where='position <= 3'`.",
        )


def _rows(index: Integers) -> Integers:
    """The rows of lists, in their order."""
    return index[index >= 0]


# -- One training step on lists: the gradient of an objective, with a baseline for every position that has a weight of its own ---


@dataclass(frozen=True)
class WeighedLists:
    """The weights of lists, lists × terms, differentiable, and the inner products of their gradients, lists × terms × terms.

    There is a term for each position, or one for the whole list; `products` are those with respect to the logits.
    """

    weight: Tensor
    products: Tensor


def weighed(logits: Tensor, items: Tensor, propensity: Tensor, weight: ListWeight) -> WeighedLists:
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
    """Logged lists as a run sees them, with the weight that says what the reward at a position depends on.

    There is a baseline for each of `terms`, the positions; or one, for the list as a whole. `shares` is how much each position counts in
    the mean weight of a list.
    """

    splits = False
    policy: PlackettLuce

    def __init__(
        self,
        policy: PlackettLuce,
        weight: ListWeight,
        shares: Floats = ONE_SLOT,
        settings: dict[str, object] | None = None,
    ) -> None:
        self.policy, self.weight, self.shares, self.settings = policy, weight, shares, settings or {}
        self.terms = len(shares) if weight.by_position else 1

    def rewards(self, reward: Tensor) -> Tensor:
        """What each term earned: a position, or the whole list."""
        return reward if self.weight.by_position else reward.sum(1, keepdim=True)

    def weighed(self, context: Tensor, items: Tensor, propensity: Tensor) -> tuple[WeighedLists, nn.Module | None]:
        """The weights, with the inner products of the last layer's gradients, and that layer; of the logits' if it is not linear."""
        logits, layer, h = last_layer(self.policy.scores, context)
        lists = weighed(logits, items, propensity.to(logits.dtype), self.weight)
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
        lists, layer = self.weighed(batch.context, batch.action, batch.propensity)
        w, reward = lists.weight, self.rewards(batch.reward).to(lists.weight.dtype)
        sums = list_sums(lists.products, reward)
        chosen = list_baselines(sums) if baseline is None else baseline
        beta = torch.as_tensor(chosen, dtype=w.dtype, device=w.device).expand(w.shape[1])
        slope = _slopes(w.detach(), reward, beta, objective)
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
        return held_out_lists(self, parts, level)

    def order(self, epoch: Epoch) -> tuple[float, ...]:
        """The number that decides between two epochs; while the lists can't measure either, the value decides."""
        return epoch.score, epoch.value


def _slopes(w: Tensor, reward: Tensor, beta: Tensor, objective: Objective) -> Tensor:
    """n ∂value/∂w for every list and term."""
    ones = torch.ones_like(w)
    if objective.slope is not None:
        return objective.slope(w, reward, ones, beta)
    with torch.enable_grad():
        free = w.clone().requires_grad_()
        terms = [objective(*(x[:, k] for x in (free, reward, ones)), baseline=beta[k]) for k in range(w.shape[1])]
        (slope,) = torch.autograd.grad(torch.stack(terms).sum(), free)
    return slope * len(w)


# -- How good a ranking policy is while it trains: the moments of the weights of held-out lists ------------------------


CELLS = 2**22  # logits computed at a time
MOST = 0.6  # share of its own fit that we attribute to a heavy list


def held_out_lists(logged: LoggedLists, parts: Iterable[Rows], level: float) -> HeldOut:
    """β-IPS of lists, with an interval that allows for how few lists carry the answer, and is endless if there are too few.

    It is nan without lists.
    """
    seen = seen_lists(logged, parts)
    estimate, n = beta_ips(seen.moments), seen.moments.n
    carrying = diagnose(seen).carrying_rows
    interval = Interval(-math.inf, math.inf, level, Student.name)
    if n and carrying >= FEW_CARRYING:
        leverage = min(seen.excess.kurtosis / n, MOST)
        evidence = Evidence(estimate.value, estimate.stderr, n, seen.moments, carrying=carrying, leverage=leverage)
        interval = student(evidence, level)
    return held_out(estimate, interval, seen, interval.lower)


def seen_lists(logged: LoggedLists, parts: Iterable[Rows]) -> WeightedRows:
    """What diagnostics need to know of the weights of lists."""
    moments, tail, excess, rewards = Moments.empty(), EMPTY, NOTHING, NOTHING
    low, high = math.inf, -math.inf
    for some, u, reward in weighed_lists(logged, parts):
        moments, tail = moments + some, tail + Tail(1.0 + np.sort(u)[::-1][:KEPT], int((u == -1.0).sum()))
        excess, rewards = excess + Powers.of(u), rewards + Powers.of(reward)
        low, high = min(low, float(reward.min())), max(high, float(reward.max()))
    return WeightedRows(moments, tail, excess, rewards, (low, high), unit="list")


def weighed_lists(logged: LoggedLists, parts: Iterable[Rows]) -> Iterator[tuple[Moments, Floats, Floats]]:
    """The moments of some lists at a time, with the excess of the weight and the reward of every list as a whole."""
    policy = logged.policy
    device, size = policy.device, max(1, CELLS // policy.n_actions)
    for lists in parts:
        for at in range(0, len(lists), size):
            part = lists.take(slice(at, at + size)).to(device)
            with serving(policy):
                logits = policy(part.context).double()
                weight = weighed(logits, part.action, part.propensity.double(), logged.weight).weight
            w, reward = (numbers.double().cpu().numpy() for numbers in (weight, logged.rewards(part.reward)))
            yield *of_positions(w, reward, logged.shares), reward.sum(axis=1)


def of_positions(weight: Floats, reward: Floats, shares: Floats) -> tuple[Moments, Floats]:
    """The moments of lists from the weight and the reward at every position, or of the whole; and the excess of every list as a whole.

    `shares` is how much each position counts in that.

    >>> lists, _ = of_positions(np.array([[1.0, 2.0]]), np.array([[3.0, 5.0]]), np.array([0.5, 0.5]))
    >>> lists.ranks, float(lists.average("y@2"))
    (('u@1', 'u@2'), 10.0)
    """
    if weight.shape[1] == 1:
        return Moments.of(weight=weight[:, 0], reward=reward[:, 0]), weight[:, 0] - 1.0
    whole = reward.sum(axis=1)
    center = float(whole.mean()) if len(whole) else 0.0
    excess = weight - 1.0
    u = excess @ shares
    rows = [u, whole - center, (excess * reward).sum(axis=1) - center * u, *excess.T, *(weight * reward).T]
    ranks = range(1, weight.shape[1] + 1)
    columns = (*ROW, *map(excess_at, ranks), *map(reward_at, ranks))
    z = np.stack(rows)
    mean = z.mean(axis=1) if len(whole) else np.zeros(len(columns))
    z = z - mean[:, None]
    return Moments(len(whole), mean, z @ z.T, center, columns), u
