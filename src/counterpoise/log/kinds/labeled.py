"""Labeled rows: the reward is known for some of them only, and all have a proxy, a number near it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from counterpoise.errors import OptionError
from counterpoise.log.kinds.kind import (
    CHANCE,
    NUMBER,
    OR_DROP,
    TRUTH,
    Conflict,
    NumberColumn,
    Row,
    RowKind,
    Term,
)
from counterpoise.moments.columns import ROW
from counterpoise.moments.moments import Floats, Moments, ShorterRows, least_squares

if TYPE_CHECKING:
    import narwhals as nw
    from narwhals.typing import FrameT

    from counterpoise.log.log import Log
    from counterpoise.log.question import Lane, Names, Question

LABEL, PROXY = "label", "proxy"  # of moments: O (or O/e, where labels have probabilities), and the proxy


def _of_labels(excess: str) -> tuple[str, ...]:
    """The columns of moments besides u, s and us; the excess is u, or d where two policies are compared."""
    return LABEL, f"{excess}×label", PROXY, f"{excess}×proxy", "label×proxy", f"{excess}×label×proxy"


LABELED, COMPARED = _of_labels("u"), _of_labels("d")

OBSERVED, LABEL_PROPENSITY = "observed", "label_propensity"  # who was labeled, and with which probability
LABELS, LABELED_PROXY = "label", "label_proxy"  # what is made of them: O or O/e, and that times the proxy

UNKNOWN = (
    "If rows are unlabeled by design, keep them: `evaluate`, `compare` and `rank` take `proxy=`, a number near the reward in every row, "
    "and `observed=`, the column of who was labeled."
)
_LABELED = f"Where `observed=` is 0, it may be anything; these rows are marked as labeled: fix the labels{OR_DROP}"
_LABEL_PROPENSITY = (
    "It is the probability that the row is labeled, and rows that never are cannot be evaluated: fix it, or drop such rows with "
    f"`where=`{OR_DROP}"
)


class Labeled(RowKind):
    """Rows with `proxy=` and `observed=`: s and u·s are 0 where the reward is not known, and moments have who is labeled and the proxy."""

    parts = ("proxy", "observed", "label_propensity")
    mark = "label×proxy"
    columns = (*LABELED, *COMPARED[1::2])
    numbers = (
        NumberColumn("proxy", PROXY, NUMBER),
        NumberColumn("observed", OBSERVED, TRUTH),
        NumberColumn("label_propensity", LABEL_PROPENSITY, CHANCE, _LABEL_PROPENSITY),
    )
    known = OBSERVED
    width = 3

    def only_known(self, frame: FrameT, question: Question) -> FrameT:
        """The rows, without the rewards of those that are not labeled."""
        import narwhals as nw  # the command line imports kinds for their names alone

        rewards = question.names.rewards
        return frame.with_columns(*(nw.when(nw.col(OBSERVED) == 1).then(nw.col(name)).alias(name) for name in rewards))

    def of_reward(self, holds: nw.Expr, advice: str) -> tuple[nw.Expr, str]:
        """The reward of a row that is not labeled may be anything."""
        import narwhals as nw

        return holds | ~(nw.col(OBSERVED) == 1).fill_null(False), _LABELED

    conflicts: ClassVar[Mapping[str, Conflict]] = {
        **dict.fromkeys(
            (
                *("per", "keep", "rows_before"),
                *("slate", "position", "propensity_of", "discount"),
                *("episode", "step", "discount_factor", "done"),
                *("model", "items", "value_samples", "model_reward", "model_value"),
            ),
            Conflict("`{part}=` does not work with `proxy=` yet: leave one of them out."),
        ),
        "has_estimated_propensities": Conflict(
            "`proxy=` takes propensities as logged, and here a model estimates them.", "Leave it out."
        ),
        **dict.fromkeys(
            (
                *("plan", "backtest", "doctor", "ab_test", "distribution", "sensitivity", "sql"),
                *("learn_policy", "PolicyLearner", "RankingLearner"),
            ),
            Conflict(
                "{who} needs the reward of every row, and with `proxy=` some are unknown.",
                "Evaluate the labeled rows alone: leave it out, and pass `where=` with the column of who was labeled.",
            ),
        ),
        "a check of coverage": Conflict("{who} needs the reward of every row: it does not work with `proxy=` yet."),
        "known propensities": Conflict(
            "{who} bounds weights times rewards, and with `proxy=` an answer is made of more than those.",
            "Pass `interval='student'`.",
        ),
    }

    def check(self, log: Log) -> None:
        """Check that a proxy comes with who was labeled, and is of one reward."""
        needed = {
            "proxy": "the column with a number near the reward, in every row",
            "observed": "the column of who was labeled",
        }
        named = [part for part in self.parts if getattr(log, part) is not None]
        for part, what in needed.items():
            if named and part not in named:
                alone = " Without a proxy, evaluate the labeled rows with `where=`." if part == "proxy" else ""
                raise OptionError(f"`{named[0]}=` goes with `{part}=`.", do=f"Pass `{part}=`, {what}.{alone}")
        if named and len(log.reward) > 1:
            rewards = ", ".join(map(repr, log.reward))
            raise OptionError(f"`proxy=` is of one reward, and this log has {rewards}: evaluate one at a time.")

    # -- what is added up --------------------------------------------------------------------------------------------------

    def lane(self, lane: Lane, names: Names) -> Lane:
        """The rewards of labeled rows times O/e, and the proxy; and the excess times each."""
        u, shifted = lane.excess, lane.columns["s"]
        labeled, s = COMPARED if lane.other else LABELED, f"{shifted}_labeled"
        made = (LABELS, f"{u}_{LABELS}", PROXY, f"{u}_{PROXY}", LABELED_PROXY, f"{u}_{LABELED_PROXY}")
        columns = lane.columns | {"s": s} | dict(zip(labeled, made, strict=True))
        factors = lane.factors | {"us": s} | dict(zip(labeled[1::2], made[::2], strict=True))
        return replace(lane, columns=columns, factors=factors, counted={s: shifted})

    def terms(self, row: Row[Term]) -> dict[str, Term]:
        """What takes the place of rewards that are known for some rows only: 0 for the others, and O/e times what it is elsewhere."""
        observed = labels = row.get(OBSERVED)
        if row.names.question.log.label_propensity is not None:
            labels = observed / row.get(LABEL_PROPENSITY)
        columns = {LABELS: labels, LABELED_PROXY: labels * row.get(PROXY)}
        for s in row.names.shifted:
            columns[s] = _where(observed, row.made[s])
            columns[f"{s}_labeled"] = columns[s] * labels
        return columns

    # -- what the sums are worth ---------------------------------------------------------------------------------------------

    def moved(self, columns: Sequence[str]) -> Mapping[str, str]:
        """Only the rewards of labeled rows move."""
        return {"s": LABEL, "us": columns[columns.index(LABEL) + 1]}

    def shorter(self, moments: Moments) -> ShorterRows:
        r"""Rows whose reward r is known with probability e, where O = 1, and which all have a proxy g.

        .. math:: \hat V = \frac1n \sum_i \left[ \frac{O_i}{\bar o} w_i r_i - \gamma w_i K_i g_i - \kappa w_i K_i - \lambda K_i \right],
            \qquad K_i = \frac{O_i}{\bar o} - 1

        with ō the mean of O (of O/e, where e is known row by row). wKg, wK and K have mean 0 whatever the proxy is worth, so any γ
        is right; the one that leaves the least variance comes from the scatter, by least squares with the baseline's u beside it.
        The mean reward of the log has w = 1 and its own coefficients, and a difference of two policies has the difference of their
        weights for w.

        That ō is estimated, too, costs nothing to first order: it moves the other terms by −E[w(r − γg − κ)]·mean(K), and least
        squares finds just that as λ, since Cov(wO(r − γg − κ)/e, K) = E[w(r − γg − κ)]·Var(K). The mean of K is 0, so λ leaves the
        value as it is.

        With few effective labels, (Σwo)²/Σ(wo)², γ is 1 and κ the weighted mean of r − g among them: the proxy's value, and its
        mean error. A proxy that makes even that worse, as one on another scale does, is left out: γ is 0.

        References
        ----------
        Cassel, Särndal & Wretman, Biometrika 63 (1976); Angelopoulos et al., "Prediction-powered inference", Science 382 (2023), and with a
        fitted γ, Angelopoulos, Duchi & Zrnic, "PPI++" (2023).
        """
        is_compared = COMPARED[1] in moments.columns
        names = (*ROW, *(COMPARED if is_compared else LABELED))
        per = _per_label(moments)[..., None]
        u, s, us, o, uo, g, ug, og, uog = (moments.form(name) for name in names)
        s, us, k, kg = per * s, per * us, per * o, per * og - g  # K has also a constant, −1
        uk, ukg = per * uo - u, per * uog - ug
        labels, weighted = effective_labels(moments)
        none = np.zeros(moments.shape)

        def error(gamma: float) -> Floats:
            """The mean of O(r − γg)/ō, seen from the center of the rewards."""
            return _mean(moments, s - gamma * (kg + g))

        def of_value(gamma: float) -> tuple[Floats, ...]:
            total = _mean(moments, k + uk + u)
            both = error(gamma) + _mean(moments, us - gamma * (ukg + ug))
            return np.full(moments.shape, gamma), np.divide(both, total, out=none.copy(), where=total > 0), none

        def of_difference(gamma: float) -> tuple[Floats, ...]:
            off = _mean(moments, us - gamma * (ukg + ug)) - error(gamma) * _mean(moments, uk + u)
            return np.full(moments.shape, gamma), error(gamma), off

        logged = _left(moments, s, (kg, k), lambda gamma: (np.full(moments.shape, gamma), error(gamma)), labels)
        if is_compared:
            rest = _left(moments, us, (ukg, uk, k), of_difference, weighted)
        else:
            rest = _left(moments, s + us, (kg + ukg, k + uk, k), of_value, weighted) - logged
        more = [moments.form(name) for name in moments.columns if name not in names]
        rows = np.stack([np.broadcast_to(row, s.shape) for row in (u, logged, rest, *more)], axis=-2)
        # K is made of O, and has a constant besides
        constant = np.zeros(rows.shape[:-1])
        constant[..., 1:3] = -rows[..., 1:3, moments.columns.index(LABEL)] / per
        constant[..., 1] = np.where(labels > 0, constant[..., 1], np.nan)
        constant[..., 2] = np.where(weighted > 0, constant[..., 2], np.nan)
        columns = (*ROW, *(name for name in moments.columns if name not in names))
        return ShorterRows(rows, constant, np.asarray(moments.center), columns)

    def share_known(self, moments: Moments) -> Floats:
        """The share of the rows that would do, labeled, as much as those that are."""
        return np.asarray(effective_labels(moments)[0] / np.maximum(moments.n, 1))

    def with_rewards(self, moments: Moments) -> Moments:
        """The labeled rows, whose weights are wO/ō, without what the proxy says."""
        place, per = moments.columns.index(LABEL), _per_label(moments)[..., None]
        _, s, us = (moments.form(name) for name in ROW)
        weight = per * (moments.form(LABEL) + moments.form(moments.columns[place + 1]))
        rows = np.stack([weight, per * s, per * us], axis=-2)
        mean = _mean(moments, rows)
        mean[..., 0] -= 1.0
        return Moments(moments.n, mean, rows @ moments.scatter @ np.swapaxes(rows, -1, -2), moments.center, ROW)


def _where(observed: Term, values: Term) -> Term:
    """The values of labeled rows, and 0 for the others, whose own are blank: a blank times 0 is blank."""
    import narwhals as nw

    if isinstance(values, nw.Expr):
        return nw.when(observed == 1).then(values).otherwise(nw.lit(0.0))
    return np.where(observed == 1, values, 0.0)


FEW_LABELS = 50  # effective, below which the coefficient of the proxy is not fitted


def effective_labels(moments: Moments) -> tuple[Floats, Floats]:
    """How many labels of equal weight the labels are worth: as they are, and with the weights of a target."""
    o = moments.form(LABEL)
    forms = np.stack([o, o + moments.form(moments.columns[moments.columns.index(LABEL) + 1])])
    mean = np.einsum("ki,...i->k...", forms, moments.mean)
    square = np.einsum("ki,...ij,kj->k...", forms, moments.scatter, forms) / np.maximum(moments.n, 1) + np.square(mean)
    first, second = moments.n * np.divide(np.square(mean), square, out=np.zeros(mean.shape), where=square > 0)
    return first, second


def label_gap(moments: Moments, column: str) -> tuple[Floats, Floats, Floats]:
    """The mean of the proxy or the excess u among labeled rows (counted by 1/e) and among all, and the error of their difference."""
    product = "label×proxy" if column == PROXY else moments.columns[moments.columns.index(LABEL) + 1]
    per = _per_label(moments)
    labeled = moments.average(product) * per
    form = per[..., None] * (moments.form(product) - labeled[..., None] * moments.form(LABEL)) - moments.form(column)
    square = np.einsum("...i,...ij,...j->...", form, moments.scatter, form)
    return labeled, moments.average(column), np.sqrt(np.maximum(square, 0.0)) / np.maximum(moments.n, 1)


def is_at_one_rate(moments: Moments) -> NDArray[np.bool_]:
    """Whether every label counts alike: no probability of being labeled was named, or it is 1."""
    mean = moments.average(LABEL)
    return np.asarray(np.abs(moments.covariance(LABEL, LABEL) + np.square(mean) - mean) <= 1e-9 * mean)


def _per_label(moments: Moments) -> Floats:
    """How many rows there are for each that is labeled."""
    label = moments.average(LABEL)
    return 1.0 / np.where(label > 0, label, 1.0)


def _mean(moments: Moments, form: Floats) -> Floats:
    """The mean of a form of the columns, or of several."""
    return np.asarray((form * (moments.mean if form.ndim == moments.mean.ndim else moments.mean[..., None, :])).sum(-1))


def _left(
    moments: Moments,
    response: Floats,
    controls: tuple[Floats, ...],
    fixed: Callable[[float], tuple[Floats, ...]],
    labels: Floats,
) -> Floats:
    """What controls leave of a response: with fitted coefficients, or with those for γ = 1 or 0, as labels are many or few."""
    every = np.stack([*controls, np.broadcast_to(moments.form("u"), response.shape)], axis=-2)
    fitted = least_squares(moments, every, response[..., None, :])[..., :-1, 0]
    choices = [fitted, *(np.stack(fixed(gamma), axis=-1) for gamma in (1.0, 0.0))]
    many, trusting, alone = (response - np.einsum("...k,...ki->...i", c, every[..., :-1, :]) for c in choices)
    scatter = [np.einsum("...i,...ij,...j->...", form, moments.scatter, form) for form in (trusting, alone)]
    few = np.where((scatter[0] <= scatter[1])[..., None], trusting, alone)
    return np.asarray(np.where((labels >= FEW_LABELS)[..., None], many, few))
