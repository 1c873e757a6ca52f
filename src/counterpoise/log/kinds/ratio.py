"""Ratios of two sums: every reward comes with what it is divided by, and the answer is Σwr/Σwd."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from counterpoise.log.kinds.kind import AMOUNT, Conflict, NumberColumn, Places, Row, RowKind, Term
from counterpoise.moments.columns import ROW
from counterpoise.moments.moments import Floats, Moments, ShorterRows

if TYPE_CHECKING:
    from counterpoise.log.question import Lane, Names

PER, WEIGHTED_PER = "d", "ud"  # of moments: what a reward is divided by, and u times it
RIVAL: tuple[str, ...] = (
    "b",
    "bs",
    "bd",
)  # of a difference of two ratios: w − 1 of the other policy, and times s and d
DIVISOR = "per"  # what rewards are divided by; and what each is, on the rows where it is good, by its number


def _alone(do: str) -> Conflict:
    return Conflict(f"`per=` makes the answer a ratio of two sums, of weights and rewards alone: {do}.")


class RatioOfSums(RowKind):
    """Rows with `per=`: moments have d and u·d beside them, and of a difference, the excess of the other policy, too."""

    parts = ("per",)
    mark = PER
    columns = (PER, WEIGHTED_PER, *RIVAL)
    divisor = PER
    numbers = (NumberColumn("per", DIVISOR, AMOUNT),)

    conflicts: ClassVar[Mapping[str, Conflict]] = {
        **dict.fromkeys(("model", "model_value"), _alone("leave out `model=`")),
        "has_estimated_propensities": _alone("its propensities must be logged"),
        **dict.fromkeys(("control", "baseline", "reward_bounds"), _alone("leave out `{part}=`")),
        **dict.fromkeys(
            (
                *("plan", "backtest", "ab_test", "distribution", "sensitivity", "sql"),
                *("learn_policy", "PolicyLearner", "RankingLearner"),
            ),
            Conflict("{who} {does}: leave out `per=`."),
        ),
        "estimator='ips'": Conflict(
            "a ratio of sums is self-normalized, so that its `ips` would be `snips`: use that."
        ),
    }

    # -- what is added up --------------------------------------------------------------------------------------------------

    def lane(self, lane: Lane, names: Names) -> Lane:
        """What the reward is divided by, and the excess times it; of a difference, the same of the other policy."""
        divisor, us = f"{DIVISOR}{lane.reward}", lane.columns["us"]
        columns = lane.columns | {PER: divisor, WEIGHTED_PER: f"{us}d"}
        columns |= {name: f"{us}{name}" for name in RIVAL} if lane.other else {}
        return replace(lane, columns=columns, factors=lane.factors | {WEIGHTED_PER: divisor}, divisor=divisor)

    def terms(self, row: Row[Term]) -> dict[str, Term]:
        """What each reward is divided by, blank where the reward is; and for the difference of two ratios, what the other policy has."""
        shifted = enumerate(row.names.shifted)
        columns = {f"{DIVISOR}{j}": row.made[s] * 0.0 + row.get(DIVISOR) for j, s in shifted}
        for lane in row.lanes:
            if lane.other is not None:
                b = lane.weight.excess(row.get(lane.other), row.propensity)
                s, d = row.made[lane.shifted], columns[lane.divisor]
                parts = zip(RIVAL, (s * 0.0 + b, b * s, b * d), strict=True)
                columns |= {lane.uncounted(name): column for name, column in parts}
        return columns

    # -- what the sums are worth ---------------------------------------------------------------------------------------------

    def moved(self, columns: Sequence[str]) -> Mapping[str, str]:
        """The other policy's excess times the reward moves as the target's does."""
        return {"bs": "b"} if "bs" in columns else {}

    def shorter(self, moments: Moments) -> ShorterRows:
        r"""Rewards r and what they are divided by, d: the answer of a policy is R = Σwr/Σwd.

        .. math:: r' = R + \frac{r - R d}{D}, \qquad D = \frac{\sum_i w_i d_i}{\sum_i w_i}

        is a reward whose self-normalized mean is R itself, and whose other estimates, with their baselines and errors, are those of R to
        first order: what R and D are off by cancels. The logging policy has its own, with w = 1. For the difference of two, a row is
        R₁ − R₂ plus what it adds to either.

        References
        ----------
        The delta method, as for ratio metrics in Deng, Knoblich & Lu, "Applying the delta method in metric analytics", KDD 2018.
        """
        form, center = moments.form, np.asarray(moments.center)[..., None]

        def ratio(*excess: tuple[str, ...]) -> tuple[Floats, Floats, Floats]:
            """Of a policy whose weight is 1 plus the first of these columns (the others are s and d times it): R, and w·(r − R·d)/D,
            of which the constant comes first; nan where it is divided by nothing."""
            weighted = sum((form(us) + center * form(u) for u, us, _ in excess), form("s") + 0.0 * center)
            divided = sum((form(ud) for _, _, ud in excess), form(PER))
            weight = 1.0 + sum((moments.average(u) for u, _, _ in excess), np.zeros(moments.shape))
            total = (moments.mean * divided).sum(axis=-1)
            total = np.where((total > 0) & (weight > 0), total, np.nan)
            value = (center[..., 0] + (moments.mean * weighted).sum(axis=-1)) / total
            average = total / np.where(weight > 0, weight, 1.0)
            return value, center[..., 0] / average, (weighted - value[..., None] * divided) / average[..., None]

        own = ("u", "us", WEIGHTED_PER)
        ran, ran_constant, ran_row = ratio()
        if set(RIVAL) <= set(moments.columns):
            first, constant, row = ratio(own, RIVAL)
            second, other_constant, other_row = ratio(RIVAL)
            constant, row = first - second + constant - other_constant, row - other_row
        else:
            # r' of the target times its weight, less r' of the logging policy, and less the center of the latter, R, times u
            first, constant, row = ratio(own)
            row = row - ran_row + (first - ran)[..., None] * form("u")
            constant = first - ran + constant - ran_constant
        turn = np.stack(np.broadcast_arrays(form("u") + 0.0 * row, ran_row, row), axis=-2)
        constants = np.stack(np.broadcast_arrays(np.zeros(moments.shape), ran_constant, constant), axis=-1)
        return ShorterRows(turn, constants, ran, ROW)

    def uneven(self, places: Places) -> Floats:
        r"""By how much fewer rows carry the variance of a ratio than that of its rewards.

        Were both parts of r − R·d independent, with the shares a and b of its variance, its kurtosis would be about a²κ(r) + b²κ(d).
        """
        per, rewards, whole = places.of_places(places.log.per), places.of_places(places.log.rewards), places.whole
        residual = whole.covariance("s", "s") * np.square(places.per_row)
        ratio = np.asarray(whole.center + whole.average("s"))
        with np.errstate(divide="ignore", invalid="ignore"):
            a = np.minimum(np.nan_to_num(rewards.mean(2, rewards.middle) / residual, posinf=1.0), 1.0)
            b = np.minimum(np.nan_to_num(np.square(ratio) * per.mean(2, per.middle) / residual, posinf=1.0), 1.0)
        return np.asarray(np.maximum(np.square(a) + np.square(b) * per.kurtosis / rewards.kurtosis, 1.0))
