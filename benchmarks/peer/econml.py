"""EconML: effects and policies that it learns; it has no estimate of what a given policy earns."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from econml.dml import KernelDML, LinearDML
from econml.dr import LinearDRLearner
from econml.federated_learning import FederatedEstimator
from econml.iv.dr import LinearIntentToTreatDRIV
from econml.panel.dml import DynamicDML
from econml.policy import DRPolicyForest, DRPolicyTree
from econml.validate import DRTester
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression

from peer import data
from peer.data import Floats, Lesson

VERSION = ("econml", "econml")


# -- learning ---------------------------------------------------------------------------------------------------------------


class Linear:
    """The action whose effect is highest, by a linear model of effects."""

    def __init__(self, random_state: int) -> None:
        self.learner = LinearDRLearner(random_state=random_state)

    def fit(self, reward: Floats, action: Floats, X: Floats) -> Linear:  # noqa: N803
        self.learner.fit(reward, action, X=X, inference=None)
        return self

    def predict(self, context: Floats) -> Floats:
        effects = self.learner.const_marginal_effect(context).reshape(len(context), -1)
        return np.column_stack([np.zeros(len(context)), effects]).argmax(axis=1)


LEARNERS: dict[str, Callable[..., Any]] = {
    "": DRPolicyForest,
    "forest": DRPolicyForest,
    "tree": DRPolicyTree,
    "linear": Linear,
}
GRID = tuple(itertools.product((None, 5, 3, 8), (5, 50, 200)))
"""Depths and rows of a leaf, the defaults first."""


def tune(lesson: Lesson, kind: Callable[..., Any]) -> dict[str, Any]:
    """The options whose policy is best on a quarter that was kept back, by the doubly robust outcomes of `DRTester`."""
    began = time.perf_counter()
    kept = np.random.default_rng(lesson.seed).random(len(lesson.reward)) < 0.25
    fitted = [column[~kept] for column in (lesson.context, lesson.action, lesson.reward)]
    held = [column[kept] for column in (lesson.context, lesson.action, lesson.reward)]
    forest = RandomForestRegressor(min_samples_leaf=20, random_state=lesson.seed)
    tester = DRTester(model_regression=forest, model_propensity=LogisticRegression(max_iter=1000), cate=None)
    tester.fit_nuisance(*held, *fitted)
    outcomes = np.column_stack([np.zeros(len(held[0])), tester.dr_val_])  # over the first action
    best, options = -np.inf, {}
    for depth, leaf in GRID:
        if time.perf_counter() - began > lesson.seconds:
            break
        tried = {"max_depth": depth, "min_samples_leaf": leaf, "min_samples_split": 2 * leaf}
        policy = kind(**tried, random_state=lesson.seed).fit(fitted[2], fitted[1], X=fitted[0])
        value = outcomes[np.arange(len(outcomes)), policy.predict(held[0])].mean()
        if value > best:
            best, options = value, tried
    return options


def learn(lesson: Lesson) -> Callable[[], Floats]:
    kind = LEARNERS[lesson.learner]
    logged = np.unique(lesson.action)  # the others cannot be learned about

    def call() -> Floats:
        options = tune(lesson, kind) if lesson.seconds and kind is not Linear else {}
        policy = kind(**options, random_state=lesson.seed).fit(lesson.reward, lesson.action, X=lesson.context)
        return logged[policy.predict(lesson.test_context)]

    return call


# -- features ---------------------------------------------------------------------------------------------------------------


def binary(rows: int = 600, seed: int = 0) -> tuple[Floats, Floats, Floats, Floats]:
    """Context, an instrument, which of two arms, and the outcome."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 3))
    z = random.integers(0, 2, rows)
    t = np.where(random.random(rows) < 0.8, z, 1 - z)
    return x, z, t, x[:, 0] + t * (1 + x[:, 1]) + 0.5 * random.normal(size=rows)


def doubly_robust(**options: Any) -> LinearDRLearner:
    x, _, t, y = binary()
    models = {"model_regression": LinearRegression(), "model_propensity": LogisticRegression()}
    return LinearDRLearner(**models, random_state=0, **options).fit(y, t, X=x)


def try_doubly_robust() -> None:
    assert abs(doubly_robust().ate(binary()[0]) - 1) < 0.3


def try_intervals() -> None:
    x, fit = binary()[0], doubly_robust()
    lower, upper = fit.ate_interval(x, alpha=0.05)
    assert lower < fit.ate(x) < upper


def try_difference() -> None:
    """Of always one action and always another."""
    lower, upper = doubly_robust().ate_interval(binary()[0], T0=0, T1=1)
    assert lower < upper


def try_segments() -> None:
    x, fit = binary()[0], doubly_robust()
    high, low = (fit.ate_inference(x[rows]).conf_int_mean() for rows in (x[:, 1] > 0, x[:, 1] <= 0))
    assert high[0] > low[1]


def try_sensitivity() -> None:
    assert 0 < doubly_robust().robustness_value(T=1) < 1


def try_propensities() -> None:
    assert doubly_robust().models_propensity[0][0].classes_.tolist() == [0, 1]


def try_clipping() -> None:
    assert np.isfinite(doubly_robust(min_propensity=0.3).ate(binary()[0]))


def try_continuous() -> None:
    x, _, _, y = binary()
    dose = x[:, 0] + np.random.default_rng(1).normal(size=len(y))
    models = {"model_y": LinearRegression(), "model_t": LinearRegression()}
    fit = LinearDML(**models, random_state=0).fit(2 * dose + x[:, 0], dose, X=x)
    assert abs(fit.ate(x) - 2) < 0.1
    assert KernelDML(**models, random_state=0).fit(y, dose, X=x).effect(x[:2]).shape == (2,)


def try_episodes() -> None:
    """The effects of what is done in each of three periods on the outcome of the last."""
    random = np.random.default_rng(0)
    units, periods = 100, 3
    t = random.normal(size=units * periods)
    y = t + 0.1 * random.normal(size=units * periods)
    models = {"model_y": LinearRegression(), "model_t": LinearRegression()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = DynamicDML(**models, random_state=0).fit(
            y, t, X=None, W=random.normal(size=(units * periods, 2)), groups=np.repeat(np.arange(units), periods)
        )
    assert abs(np.ravel(fit.intercept_)[-1] - 1) < 0.2


def try_merge() -> None:
    """Fits of two days, without their rows, make one."""
    days = []
    for seed in (0, 1):
        x, _, t, y = binary(seed=seed)
        models = {"model_y": LinearRegression(), "model_t": LogisticRegression()}
        day = LinearDML(**models, discrete_treatment=True, enable_federation=True, random_state=0)
        days.append(day.fit(y, t, X=x))
    lower, upper = FederatedEstimator(days).ate_interval(x)
    assert lower < upper


def try_experiment() -> None:
    """Covariates make the interval of an A/B test shorter than that of the difference in means."""
    random = np.random.default_rng(1)
    x, t = random.normal(size=(600, 3)), random.integers(0, 2, 600)
    y = 3 * x[:, 0] + t + random.normal(size=600)
    models = {"model_regression": LinearRegression(), "model_propensity": LogisticRegression()}
    fit = LinearDRLearner(**models, random_state=0).fit(y, t, X=None, W=x)
    spread = np.hypot(*(y[t == arm].std() / np.sqrt((t == arm).sum()) for arm in (0, 1)))
    assert fit.ate_inference().stderr_mean < spread


def try_instrument() -> None:
    x, z, t, y = binary()
    models = {"model_y_xw": LinearRegression(), "model_t_xwz": LogisticRegression()}
    fit = LinearIntentToTreatDRIV(**models, random_state=0).fit(y, t, Z=z, X=x)
    assert abs(fit.ate(x) - 1) < 0.5


def try_tree() -> None:
    x, _, t, y = binary()
    models = {"model_regression": LinearRegression(), "model_propensity": LogisticRegression()}
    tree = DRPolicyTree(**models, max_depth=2, random_state=0).fit(y, t, X=x)
    actions = tree.predict(x)
    assert actions[x[:, 1] > 0].mean() > actions[x[:, 1] < -1].mean()
    assert "digraph" in tree.export_graphviz()


def try_learning() -> None:
    log = data.draw_log(500, 3)
    assert (
        learn(Lesson(log.context, log.action, log.reward, log.propensity, 3, log.features, learner="tree"))().max() < 3
    )


FEATURES = {
    "doubly robust": try_doubly_robust,
    "confidence intervals": try_intervals,
    "the difference of two policies, with an interval": try_difference,
    "values by segment": try_segments,
    "how wrong propensities must be to change the answer": try_sensitivity,
    "propensities estimated from the log": try_propensities,
    "clipped and shrunk weights": try_clipping,
    "continuous actions": try_continuous,
    "episodes of many steps": try_episodes,
    "A/B tests with less variance": try_experiment,
    "stored sums to which days are added": try_merge,
    "learning a policy from a log": try_learning,
    "policies one can read: trees": try_tree,
    "instruments for what was not logged": try_instrument,
}
