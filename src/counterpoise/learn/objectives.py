"""Objectives: what a policy is trained to maximize, and the one registry of them.

Each is a pure function of tensors: `target` is π(a|x) of the logged action and carries the gradient, `propensity` is π₀(a|x), and
the function returns a scalar to *maximize* (negate it for an optimizer that minimizes). The equations are those of Gupta, Jeunen,
Oosterhuis & de Rijke, RecSys 2024.

>>> import torch
>>> reward, propensity = torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5])
>>> target = torch.tensor([0.75, 0.25], requires_grad=True)
>>> ips(target, reward, propensity).item(), snips(target, reward, propensity).item()
(0.75, 0.75)
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from counterpoise.errors import OptionError

REQUIRED = ("reward", "propensity")
LOGGED = (
    "target",
    "score",
)  # the probability and the logit of the logged action: what an objective may be a function of
ON_REQUEST = ("baseline", "banditnet_lambda", "smoothing", "rewards", "probabilities", "model_rewards", "action")
ARGUMENTS = (*LOGGED, *REQUIRED, *ON_REQUEST)
FLOOR = 1e-15  # of a probability whose logarithm is taken: below it the logarithm goes on as a straight line


@dataclass(frozen=True)
class Rewards:
    """What is known about the rewards of all training rows before a run begins.

    >>> Rewards.of([torch.tensor([1.0, 3.0]), torch.tensor([3.0])]).is_binary
    True
    """

    lowest: float
    highest: float
    mean: float
    spread: float
    """Their standard deviation, or 1 if they are all the same."""
    size: float
    """The mean of their absolute values, or 1 if all are 0."""
    is_binary: bool
    """Whether there are exactly two different ones."""

    @classmethod
    def of(cls, parts: Iterable[Tensor]) -> Rewards:
        """From the rewards themselves, some at a time."""
        count, total, size, square, values = 0, 0.0, 0.0, 0.0, torch.empty(0)
        lowest, highest = math.inf, -math.inf
        for reward in parts:
            double = reward.detach().cpu().double()
            if not len(double):
                continue
            lowest, highest = min(lowest, float(double.min())), max(highest, float(double.max()))
            count, total, size = count + len(double), total + float(double.sum()), size + float(double.abs().sum())
            square += float(double.square().sum())
            if len(values) < 3:
                values = torch.unique(torch.cat([values, double]))[:3]
        mean = total / max(count, 1)
        spread = math.sqrt(max(square / max(count, 1) - mean**2, 0.0))
        return cls(lowest, highest, mean, spread or 1.0, size / max(count, 1) or 1.0, len(values) == 2)


# -- Baselines of least gradient variance, each a ratio of two sums over rows, and the rules by which objectives choose one ----


def gradient_sums(squared_norms: Tensor, reward: Tensor, propensity: Tensor) -> Tensor:
    r"""The numerator and the denominator of β*, from :math:`\lVert\nabla\pi(a_i|x_i)\rVert^2` for each row.

    .. math:: \beta^* = \frac{\sum_i \lVert\nabla\pi_i\rVert^2 r_i / \pi_{0,i}^2}{\sum_i \lVert\nabla\pi_i\rVert^2 / \pi_{0,i}^2}

    The two sums are what processes exchange (one all-reduce of two numbers), so β is the same for any number of processes.

    References
    ----------
    Gupta, Jeunen, Oosterhuis & de Rijke, RecSys 2024, Theorem 1; on-policy: section 2.1.
    """
    weight = squared_norms.detach() / propensity / propensity
    return torch.stack([torch.dot(weight, reward), weight.sum()])


def baseline_of(sums: Tensor) -> Tensor:
    """β* from its two sums; 0 if no row has a gradient, because then any baseline will do.

    >>> baseline_of(torch.tensor([3.0, 4.0])).item(), baseline_of(torch.tensor([0.0, 0.0])).item()
    (0.75, 0.0)
    """
    numerator, denominator = sums.unbind(-1)
    return numerator / denominator.clamp(min=torch.finfo(sums.dtype).tiny)


class RunningBaseline:
    """β* from earlier batches only, so that the gradient of the current batch is unbiased.

    The sums fade by `decay` with every batch, because the policy moves on. The first batch has no past and uses `initial`.

    Examples
    --------
    >>> running = RunningBaseline(decay=0.5)
    >>> used = []
    >>> for r in (1.0, 0.0):
    ...     used.append(running.value.item())
    ...     running.update(torch.tensor([r, 1.0]))
    >>> used, round(running.value.item(), 3)
    ([0.0, 1.0], 0.333)
    """

    def __init__(self, *, decay: float = 0.9, initial: float = 0.0) -> None:
        if not 0 <= decay <= 1:
            raise OptionError(f"decay must lie in [0, 1] (0 remembers one batch, 1 all of them); found {decay}.")
        self.decay = decay
        self.initial = initial
        self.sums = torch.zeros(2, dtype=torch.float64)

    @property
    def value(self) -> Tensor:
        """The β to use now."""
        initial = torch.full_like(self.sums[1], self.initial)
        return torch.where(self.sums[1] > 0, baseline_of(self.sums), initial)

    def update(self, sums: Tensor) -> None:
        """Add the sums of a batch, after its step."""
        self.sums = self.decay * self.sums + sums.detach()


BaselineRule = Callable[[RunningBaseline, float], Tensor | float | None]
"""What an objective subtracts from the rewards of a batch, from the batches before it and BanditNet's λ; None is the batch's own β*."""


def of_batch(past: RunningBaseline, banditnet_lambda: float) -> None:
    """β* of the batch itself, which costs a bias of order 1/batch."""


def of_past(past: RunningBaseline, banditnet_lambda: float) -> Tensor:
    """β* of the batches before this one, so that the gradient is unbiased."""
    return past.value


def of_lambda(past: RunningBaseline, banditnet_lambda: float) -> float:
    """BanditNet's λ."""
    return banditnet_lambda


def zero(past: RunningBaseline, banditnet_lambda: float) -> float:
    """No baseline at all."""
    return 0.0


# -- Objectives -----------------------------------------------------------------------------------------------------------


def ips(target: Tensor, reward: Tensor, propensity: Tensor) -> Tensor:
    r"""Inverse propensity scoring.

    .. math:: \hat V = \frac1n \sum_i \frac{\pi(a_i|x_i)}{\pi_0(a_i|x_i)} r_i

    Unbiased, and a sum over rows, so mini-batches are fine; but its gradient has the most variance of all objectives here.
    """
    return (target / propensity * reward).mean()


def lambda_ips(target: Tensor, reward: Tensor, propensity: Tensor, *, banditnet_lambda: float | Tensor) -> Tensor:
    r"""BanditNet: IPS on rewards shifted by λ, the Lagrange multiplier of a constraint on the mean weight.

    .. math:: \hat V_\lambda = \frac1n \sum_i w_i (r_i - \lambda)

    λ is a hyperparameter, tuned by SNIPS. The gradient is that of `beta_ips` at β = λ (eq. `banditnet_grad`).
    """
    return (target / propensity * (reward - banditnet_lambda)).mean()


def beta_ips(target: Tensor, reward: Tensor, propensity: Tensor, *, baseline: float | Tensor) -> Tensor:
    r"""Baseline-corrected IPS: subtract β from every reward, add it back once.

    .. math:: \hat V_\beta = \beta + \frac1n \sum_i w_i (r_i - \beta)

    Unbiased for any β that does not depend on these rows. `baselines` has the β of least gradient variance, which depends on
    them a little if it comes from the same batch. If a `baseline` carries a gradient, it is differentiated through; see
    `value_beta_ips`.

    Examples
    --------
    If the reward is constant and β equals it, the gradient vanishes, because there is nothing to learn:

    >>> target = torch.tensor([0.2, 0.9], requires_grad=True)
    >>> beta_ips(target, torch.tensor([3.0, 3.0]), torch.tensor([0.5, 0.5]), baseline=3.0).backward()
    >>> target.grad.tolist()
    [0.0, 0.0]
    """
    return baseline + (target / propensity * (reward - baseline)).mean()


def value_beta_ips(target: Tensor, reward: Tensor, propensity: Tensor) -> Tensor:
    """`beta_ips` with the β of least *value* variance, differentiated through that β; for full batches."""
    return beta_ips(target, reward, propensity, baseline=value_baseline(target, reward, propensity))


def value_baseline(target: Tensor, reward: Tensor, propensity: Tensor) -> Tensor:
    r"""The β of least value variance, Cov(wr, w) / Var(w), differentiable; for full batches.

    It is 0 if the weights do not vary, because then any β will do. It is a ratio of means, so mini-batches would bias its
    gradient.
    """
    w = target / propensity
    u = w - w.mean()
    spread = (u * u).mean()
    beta = (w * reward * u).mean() / torch.where(spread > 0, spread, torch.ones_like(spread))
    return torch.where(spread > 0, beta, torch.zeros_like(beta))


def snips(target: Tensor, reward: Tensor, propensity: Tensor) -> Tensor:
    r"""Self-normalized IPS, for full batches: Σ w r / Σ w.

    Its gradient compares pairs of rows, :math:`\sum_{ij} w_i \nabla w_j (r_j - r_i) / (\sum w)^2`, and does not split into a sum
    over rows: mini-batches bias it (eq. `SNIPS_gradient`).
    """
    w = target / propensity
    return (w * reward).sum() / w.sum()


def dr(
    target: Tensor, reward: Tensor, propensity: Tensor, *, probabilities: Tensor, model_rewards: Tensor, action: Tensor
) -> Tensor:
    r"""Doubly robust: IPS on what a reward model leaves over, plus the model's value of the policy.

    .. math:: \hat V = \frac1n \sum_i w_i (r_i - \hat r(a_i, x_i)) + \sum_a \pi(a|x_i)\, \hat r(a, x_i)

    `probabilities` and `model_rewards` have one row per context and one column per action (eq. `DR`).
    """
    model_reward = model_rewards.gather(1, action[:, None])[:, 0]
    return (target / propensity * (reward - model_reward) + (probabilities * model_rewards).sum(1)).mean()


def log_smoothing(target: Tensor, reward: Tensor, propensity: Tensor, *, smoothing: float) -> Tensor:
    r"""IPS with every term smoothed by a logarithm, for rewards of 0 and more: a lower estimate, most of all where weights are large.

    .. math:: \hat V_\lambda = \frac1n \sum_i \frac{\log(1 + \lambda w_i r_i)}{\lambda}

    It is IPS as λ goes to 0. If λ is large, a policy gains little from weights that few rows have.

    References
    ----------
    Sakhi, Aouali, Alquier & Chopin, "Logarithmic smoothing for pessimistic off-policy evaluation, selection and learning", NeurIPS 2024.
    """
    return (torch.log1p(smoothing * target / propensity * reward) / smoothing).mean()


def imitation(target: Tensor, reward: Tensor, propensity: Tensor) -> Tensor:
    r"""The mean of log π(a|x) of the logged actions, whatever they earned: its maximum imitates the logging policy."""
    return logarithm(target).mean()


def predicted_reward(score: Tensor, reward: Tensor, propensity: Tensor, *, rewards: Rewards) -> Tensor:
    r"""How well the logits predict the rewards: as log-odds if rewards have two values, and else in standard units.

    .. math:: -\frac1n \sum_i p_i^{-1/2} \ell(z(a_i, x_i), r_i)

    with the cross-entropy or the squared error ℓ. Its maximum is a reward model with an output per action, and the policy takes what it
    promises most. Rows are weighed by p to the power −½: between the rows as they are, from which the model learns most, and those that a
    uniform policy would have logged, where it must be right.
    """
    standard = _standard(reward, rewards)
    loss = nn.functional.binary_cross_entropy_with_logits if rewards.is_binary else nn.functional.mse_loss
    return -(loss(score, standard, reduction="none") * propensity**-0.5).mean()


def predicted_reward_slope(
    score: Tensor, reward: Tensor, propensity: Tensor, baseline: float | Tensor, *, rewards: Rewards
) -> Tensor:
    """n ∂/∂z of `predicted_reward`."""
    error = _standard(reward, rewards) - (torch.sigmoid(score) if rewards.is_binary else score)
    return error * propensity**-0.5 * (1.0 if rewards.is_binary else 2.0)


def _standard(reward: Tensor, rewards: Rewards) -> Tensor:
    """Rewards as 0 and 1 if there are two of them, and else with mean 0 and variance 1."""
    if rewards.is_binary:
        return (reward - rewards.lowest) / (rewards.highest - rewards.lowest)
    return (reward - rewards.mean) / rewards.spread


def logarithm(target: Tensor) -> Tensor:
    """log π, and below `FLOOR` its tangent there, so that no gradient is infinite."""
    return torch.where(target > FLOOR, target.clamp(min=FLOOR).log(), math.log(FLOOR) + target / FLOOR - 1)


def imitation_slope(target: Tensor, reward: Tensor, propensity: Tensor, baseline: float | Tensor) -> Tensor:
    """n ∂/∂π of `imitation`."""
    return 1 / target.clamp(min=FLOOR)


def log_smoothing_slope(
    target: Tensor, reward: Tensor, propensity: Tensor, baseline: float | Tensor, *, smoothing: float
) -> Tensor:
    """n ∂/∂π of `log_smoothing`."""
    gain = reward / propensity
    return gain / (1 + smoothing * gain * target)


def beta_ips_slope(target: Tensor, reward: Tensor, propensity: Tensor, baseline: float | Tensor) -> Tensor:
    """n ∂/∂π of every objective of the form mean(w (r − β)), without autograd."""
    return (reward - baseline) / propensity


@dataclass(frozen=True)
class Objective:
    """An entry in the registry: what is maximized, and what training has to know about it.

    `value(target, reward, propensity)` is the scalar to maximize. Instead of `target`, π(a|x) of the logged action, or beside it, it may
    name `score`, the logit of the logged action. It also gets whatever else it names as an argument: `baseline` (the β that the rule
    `baseline` chooses), `banditnet_lambda` (given by the user, or tuned), `rewards` (the `Rewards` of all rows), or a reward
    model's `model_rewards` together with `probabilities` and `action`. `full_batch` says that it is not a mean over rows, so
    mini-batches would bias it. `slope`, if it is known, saves us autograd: it is n ∂value/∂π (or ∂z, for a function of `score`) for
    every row.

    `imitation` adds κ times the mean of log π(a|x) to the value. `clip` is the largest weight that a row with a reward above the baseline
    counts with: taking an action that did well more often gains nothing then, while taking a bad one less often always does.

    Examples
    --------
    >>> def clipped(target, reward, propensity):
    ...     return ((target / propensity).clamp(max=10) * reward).mean()
    >>> Objective(clipped).needs_model_rewards, Objective(dr).needs_model_rewards
    (False, True)
    """

    value: Callable[..., Tensor]
    baseline: BaselineRule = of_batch
    slope: Callable[..., Tensor] | None = None
    full_batch: bool = False
    imitation: float = 0.0
    clip: float | None = None

    def __post_init__(self) -> None:
        names = self._arguments
        if not (set(REQUIRED) <= set(names) <= set(ARGUMENTS) and set(LOGGED) & set(names)):
            raise OptionError(
                f"an objective takes target, reward, propensity and, if it needs them, {', '.join(('score', *ON_REQUEST))}; "
                f"found {', '.join(names) or 'no arguments'}."
            )

    @cached_property
    def _arguments(self) -> tuple[str, ...]:
        """The arguments to fill in: those that `value` names, except for others that have a default."""
        parameters = inspect.signature(self.value).parameters.values()
        return tuple(each.name for each in parameters if each.default is each.empty or each.name in ARGUMENTS)

    @property
    def needs_lambda(self) -> bool:
        """Whether it takes BanditNet's λ."""
        return "banditnet_lambda" in self._arguments

    @property
    def needs_model_rewards(self) -> bool:
        """Whether it takes a reward model's predictions, and the probabilities of all actions along with them."""
        return bool({"model_rewards", "probabilities"} & set(self._arguments))

    @property
    def needs_score(self) -> bool:
        """Whether it takes the logit of the logged action."""
        return "score" in self._arguments

    @property
    def is_of_score(self) -> bool:
        """Whether it depends on that logit alone, and not on those of other actions."""
        return self.needs_score and not ({"target", "probabilities"} & set(self._arguments) or self.imitation)

    @property
    def needs_rewards(self) -> bool:
        """Whether it must know the rewards of all rows before it starts."""
        return "rewards" in self._arguments

    @property
    def learns_baseline(self) -> bool:
        """Whether its baseline comes from the rows, this batch's or those before, and not from an option."""
        return self.baseline not in (zero, of_lambda)

    @property
    def splits(self) -> bool:
        """Whether several processes may train it, each on its share of a batch."""
        return not self.full_batch

    @property
    def needs_smoothing(self) -> bool:
        """Whether it takes the λ of logarithmic smoothing."""
        return "smoothing" in self._arguments

    def at(self, banditnet_lambda: float, smoothing: float = 1.0, rewards: Rewards | None = None) -> Objective:
        """The same objective with λ filled in, BanditNet's or that of smoothing, and with the rewards of all rows."""
        known: dict[str, object] = {"banditnet_lambda": banditnet_lambda, "smoothing": smoothing}
        known |= {} if rewards is None else {"rewards": rewards}
        own = {name: known[name] for name in self._arguments if name in known}
        if not own:
            return self
        slope = self.slope
        if slope is not None:
            slope = partial(slope, **{name: own[name] for name in inspect.signature(slope).parameters if name in own})
        return replace(self, value=partial(self.value, **own), slope=slope)

    def __call__(self, target: Tensor, reward: Tensor, propensity: Tensor, **known: Tensor) -> Tensor:
        """The scalar to maximize, given everything that is known; what the function does not ask for is left out."""
        counted = target
        if self.clip is not None:
            free = self._is_free(target, reward, propensity, known["baseline"])
            counted = torch.where(free, target, self.clip * propensity)
        known = {"target": counted, "reward": reward, "propensity": propensity} | known
        value = self.value(**{name: known[name] for name in self._arguments if name in known})
        return value + self.imitation * logarithm(target).mean() if self.imitation else value

    def slopes(self, logged: Tensor, reward: Tensor, propensity: Tensor, baseline: Tensor) -> Tensor:
        """n ∂/∂π of the scalar to maximize (∂/∂z, if it is a function of the score), for every row: in closed form if `slope` is known."""
        if self.slope is None:
            with torch.enable_grad():
                free = logged.detach().requires_grad_()
                known = {"score": free} if self.is_of_score else {}
                (slope,) = torch.autograd.grad(self(free, reward, propensity, baseline=baseline, **known), free)
            return slope * len(logged)
        slope = self.slope(logged, reward, propensity, baseline)
        if self.is_of_score:
            return slope
        if self.clip is not None:
            slope = slope * self._is_free(logged, reward, propensity, baseline)
        return (
            slope + self.imitation * imitation_slope(logged, reward, propensity, baseline) if self.imitation else slope
        )

    def _is_free(self, target: Tensor, reward: Tensor, propensity: Tensor, baseline: Tensor | float) -> Tensor:
        """Which rows count with their own weight, and not with the largest."""
        assert self.clip is not None
        return (target <= self.clip * propensity) | (reward <= baseline)


OBJECTIVES: dict[str, Objective] = {
    "beta_ips": Objective(beta_ips, slope=beta_ips_slope),
    "running_beta_ips": Objective(beta_ips, of_past, beta_ips_slope),
    "ips": Objective(ips, zero, beta_ips_slope),
    "lambda_ips": Objective(lambda_ips, of_lambda, beta_ips_slope),
    "dr": Objective(dr, zero),
    "log_smoothing": Objective(log_smoothing, zero, log_smoothing_slope),
    "imitation": Objective(imitation, zero, imitation_slope),
    "predicted_reward": Objective(predicted_reward, zero, predicted_reward_slope),
    "snips": Objective(snips, full_batch=True),
    "value_beta_ips": Objective(value_beta_ips, full_batch=True),
}


def register(name: str, objective: Objective) -> None:
    """Make your own objective known to every learner, under a name that is still free.

    `PolicyLearner` and `RankingLearner` train it as ``objective=name``; for `learn_policy` it is a contender of that name.
    """
    if name in OBJECTIVES:
        raise OptionError(f"there is already an objective {name!r}.", do="Register yours under another name.")
    OBJECTIVES[name] = objective


def objective_of(name: str, *others: str) -> Objective:
    """The objective with this name, or one of the caller's own."""
    if not isinstance(name, str) or name not in OBJECTIVES:
        known = ", ".join((*others, *OBJECTIVES))
        raise OptionError(
            f"there is no objective {name!r}; choose from {known}.", do="Add one of your own with objectives.register."
        )
    return OBJECTIVES[name]
