"""The weights of lists, one for each idea of what the reward at a position depends on: the usual click models under their usual names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from counterpoise.errors import OptionError
from counterpoise.log.good import Values
from counterpoise.log.kinds import EPISODES, IN_ORDER, LISTS
from counterpoise.log.log import Log
from counterpoise.log.parts import CONDITIONAL, MARGINAL
from counterpoise.weights.weight import Weight


class ListWeight(Weight):
    """A weight of lists: engines make one row of every list, with the weight less 1 as its column, so that no digits are lost near 1."""

    mean_is_one = True
    needs_propensity = False
    part = "weight"
    propensity_of: ClassVar[str]  # what propensities it is made of
    unit = LISTS.unit

    def weight(self, target: Values, propensity: Values) -> Values:
        """The weight of the list as a whole; of weights by position, their mean in the list, each counted as its reward is."""
        return target + 1.0

    def excess(self, target: Values, propensity: Values) -> Values:
        """The column itself."""
        return target

    def difference(self, target: Values, other: Values, propensity: Values) -> Values:
        """The difference of the columns."""
        return target - other

    def is_zero(self, target: Values) -> Values:
        """Where the weight is 0."""
        return target == -1.0


@dataclass(frozen=True)
class Independent(ListWeight):
    r"""The item-position model: the reward at a position depends on the item there, and on nothing else in the list.

    .. math:: \hat V = \frac1n \sum_i \sum_k d_k \left[ w_{ik} (r_{ik} - \beta_k) + \beta_k \right], \qquad
        w_k = \frac{\pi(a_k \text{ at } k \mid x)}{\pi_0(a_k \text{ at } k \mid x)}

    Every position has its own weight and its own baseline; the baselines are solved jointly, for the value of the list. Lists may differ in
    length if that was fixed before the choice; if people leave because of what they see, use `Cascade`.

    >>> Independent().propensity_of
    'item_at_position'

    References
    ----------
    Li, Abbasi-Yadkori, Kveton, Muthukrishnan, Vinay & Wen, "Offline evaluation of ranking policies with click models", KDD 2018.
    """

    propensity_of = MARGINAL
    by_position = True


@dataclass(frozen=True)
class Cascade(ListWeight):
    r"""The cascade model (reward interaction): the reward at a position depends on the item there and on those above it.

    .. math:: w_{1:k} = \prod_{j \le k} \frac{\pi(a_j \mid x, a_1, \dots, a_{j-1})}{\pi_0(a_j \mid x, a_1, \dots, a_{j-1})}

    People may leave because of what they see: below the end of a list, the weight keeps its last value, so that its mean is 1.

    >>> Cascade().propensity_of
    'item_given_above'

    References
    ----------
    McInerney, Brost, Chandar, Mehrotra & Carterette, "Counterfactual evaluation of slate recommendations with sequential reward
    interactions", KDD 2020; with a model, Kiyohara, Saito, Matsuhiro, Narita, Shimizu & Yamamoto, "Doubly robust off-policy evaluation
    for ranking policies under the cascade behavior model", WSDM 2022.
    """

    propensity_of = CONDITIONAL
    by_position = True
    is_running = True


@dataclass(frozen=True)
class Standard(ListWeight):
    r"""The product over the whole list: rewards may depend on everything in it, at the price of large weights.

    .. math:: w = \prod_k \frac{\pi(a_k \mid x, a_1, \dots, a_{k-1})}{\pi_0(a_k \mid x, a_1, \dots, a_{k-1})}

    >>> Standard().by_position
    False
    """

    propensity_of = CONDITIONAL
    is_running = True


@dataclass(frozen=True)
class PerDecision(Cascade):
    r"""Per-decision importance sampling of episodes: a step's reward is weighed by the choices up to that step.

    .. math:: \hat V = \frac1n \sum_i \sum_t \gamma^{t-1} W_{i,1:t} \, r_{it}, \qquad
        W_{1:t} = \prod_{j \le t} \frac{\pi(a_j \mid h_j)}{\pi_0(a_j \mid h_j)}

    Here h is all that happened before a choice, so that nothing need be Markov. An episode may end because of what was chosen: from then
    on its weight stays what it is, so that the mean of every weight is 1 and Σ bₜ (W₁:ₜ − W₁:ₜ₋₁), over the steps that were reached,
    has mean 0 for any b.

    >>> PerDecision().unit
    'episode'

    References
    ----------
    Precup, Sutton & Singh, "Eligibility traces for off-policy policy evaluation", ICML 2000.
    """

    unit = EPISODES.unit


@dataclass(frozen=True)
class Trajectory(Standard):
    r"""Importance sampling of whole episodes: every reward is weighed by all choices, at the price of larger weights.

    .. math:: \hat V = \frac1n \sum_i W_{i,1:T_i} \sum_t \gamma^{t-1} r_{it}

    >>> Trajectory().by_position
    False
    """

    unit = EPISODES.unit


@dataclass(frozen=True)
class PseudoInverse(ListWeight):
    r"""One reward per list, a sum of what the items at their positions add to it, for a logging policy that fills slots independently.

    .. math:: w = 1 - K + \sum_k \frac{\pi(a_k \text{ at } k \mid x)}{\pi_0(a_k \text{ at } k \mid x)}

    It may be negative. K is the length of the list, which must be fixed before the choice.

    >>> PseudoInverse().may_be_negative
    True

    References
    ----------
    Swaminathan, Krishnamurthy, Agarwal, Dudík, Langford, Jose & Zitouni, "Off-policy evaluation for slate recommendation", NeurIPS 2017.
    """

    propensity_of = MARGINAL
    may_be_negative = True


LIST_WEIGHTS: dict[str, type[ListWeight]] = {
    "independent": Independent, "cascade": Cascade, "standard": Standard, "pseudo_inverse": PseudoInverse
}  # fmt: skip
EPISODE_WEIGHTS: dict[str, type[ListWeight]] = {"per_decision": PerDecision, "trajectory": Trajectory}
USUAL: dict[str, type[ListWeight]] = {MARGINAL: Independent, CONDITIONAL: Cascade}


def _called(weight: object) -> str:
    return type(weight).__name__ if isinstance(weight, Weight) else repr(weight)


def list_weight(weight: object, log: Log) -> Any:
    """The weight of a log's lists or episodes, if it has any: the one that goes with its propensities, or the one asked for.

    >>> list_weight(None, Log({}, slate="query", position="rank", propensity_of="item_given_above"))
    Cascade()
    """
    propensity_of = log.propensity_of
    if log.episode is not None:
        if weight is None:
            return PerDecision()
        if not isinstance(weight, PerDecision | Trajectory):
            raise OptionError(
                f"episodes take the weight {' or '.join(EPISODE_WEIGHTS)}, found {_called(weight)}.",
                do="Pass `weight=PerDecision()` or `weight=Trajectory()`, or leave it out.",
            )
        return weight
    if propensity_of is None or (isinstance(weight, ListWeight) and weight.unit == EPISODES.unit):
        if isinstance(weight, ListWeight):
            raise OptionError(
                f"{type(weight).__name__} is a weight of {weight.unit}s, and this log has none.",
                do=next(kind.told_by for kind in IN_ORDER if kind.unit == weight.unit),
            )
        return weight
    if weight is None:
        return USUAL[propensity_of]()
    allowed = [name for name, kind in LIST_WEIGHTS.items() if kind.propensity_of == propensity_of]
    if isinstance(weight, ListWeight) and weight.propensity_of == propensity_of:
        return weight
    if not isinstance(weight, ListWeight):
        kinds = " or ".join(f"`weight={LIST_WEIGHTS[name].__name__}()`" for name in allowed)
        raise OptionError(
            f"a log of rankings takes a weight of rankings ({' or '.join(allowed)}), found {_called(weight)}.",
            do=f"Pass {kinds}, or leave it out.",
        )
    why = (
        "the probability of an item given those above it is not that of its position on its own: only products of them are"
        if propensity_of == CONDITIONAL
        else "probabilities of an item at a position, whatever stands elsewhere, do not multiply to that of a ranking"
    )
    raise OptionError(
        f"{type(weight).__name__} does not go with these propensities: {why}.",
        do=f"Choose {' or '.join(allowed)}, or log the other kind of propensity and pass "
        f"`propensity_of={weight.propensity_of!r}`.",
    )
