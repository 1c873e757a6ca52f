"""A policy that was fitted elsewhere on this very log is noticed, and one that was fitted on other rows is not doubted."""

import numpy as np
import polars as pl
import pytest

import counterpoise as cp

pytest.importorskip("sklearn")
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestClassifier, RandomForestRegressor  # noqa: E402
from sklearn.neighbors import KNeighborsRegressor  # noqa: E402

CODE = "own-training-rows"
ACTIONS = np.array(["tea", "jam", "milk"])
PARTS = {"context": ["x", "y", "kind"], "action": "action", "reward": "reward", "propensity": "propensity"}


def world(n, seed, *, strength=0.0):
    """Logged at random; clicks are coin flips, unless the contexts matter with some strength."""
    random = np.random.default_rng(seed)
    x, y, kind = random.normal(size=n), random.normal(size=n), random.integers(0, 3, n)
    action = random.integers(0, 3, n)
    rate = 0.4 + strength * (np.tanh(x) * (action - 1) + (kind == action) - 1 / 3) / 2
    return pl.DataFrame(
        {
            "id": np.arange(n) + 1_000_000 * seed,
            "x": x,
            "y": y,
            "kind": pl.Series(np.array(["a", "b", "c"])[kind]),
            "action": pl.Series(ACTIONS[action]),
            "reward": (random.random(n) < rate).astype(float),
            "propensity": np.full(n, 1 / 3),
        }
    )


def numbers(context):
    """A context as the policies below see it."""
    if isinstance(context, np.ndarray):
        context = pl.DataFrame(
            {"x": context[:, 0].astype(float), "y": context[:, 1].astype(float), "kind": context[:, 2]}
        )
    kinds = [(context["kind"] == kind).cast(pl.Float64).alias(kind) for kind in "abc"]
    return np.column_stack([context["x"].to_numpy(), context["y"].to_numpy(), *(kind.to_numpy() for kind in kinds)])


class Greedy:
    """The action with the largest predicted reward, as a data scientist writes it."""

    classes_ = ACTIONS

    def __init__(self, model, log):
        taken = (log["action"].to_numpy()[:, None] == ACTIONS).astype(float)
        self.model = model.fit(np.hstack([numbers(log), taken]), log["reward"].to_numpy())

    def predict_proba(self, context):
        x = numbers(context)
        rows = [np.hstack([x, np.tile(one, (len(x), 1))]) for one in np.eye(3)]
        return np.eye(3)[np.stack([self.model.predict(each) for each in rows], axis=1).argmax(axis=1)]


class Classifier:
    """A soft policy: a classifier of actions, with rewards as weights."""

    def __init__(self, model, log):
        rewarded = log.filter(pl.col("reward") > 0)
        self.model = model.fit(numbers(rewarded), rewarded["action"].to_numpy())
        self.classes_ = self.model.classes_

    def predict_proba(self, context):
        return self.model.predict_proba(numbers(context))


def as_function(policy):
    """The same policy as a function of record batches with the context and the logged action."""

    def probability(batch):
        frame = pl.from_arrow(batch)
        table = policy.predict_proba(frame.select("x", "y", "kind"))
        return table[np.arange(frame.height), np.searchsorted(np.sort(ACTIONS), frame["action"].to_numpy())]

    policy.predict_proba(world(2, 0).select("x", "y", "kind"))
    order = np.argsort(policy.classes_)
    inner = policy.predict_proba
    policy.predict_proba = lambda context: inner(context)[:, order]
    return probability


FITS = {
    "boosted": lambda log: Greedy(HistGradientBoostingRegressor(random_state=0), log),
    "forest": lambda log: Greedy(RandomForestRegressor(20, random_state=0), log),
    "neighbors": lambda log: Greedy(KNeighborsRegressor(3), log),
    "soft": lambda log: Classifier(RandomForestClassifier(20, random_state=0), log),
}


def caveats(result, target="new"):
    return [caveat for caveat in result.verdict(target).caveats if caveat.code == CODE]


@pytest.mark.parametrize("name", FITS)
@pytest.mark.parametrize("strength", [0.0, 0.3])
def test_a_policy_that_was_fitted_on_these_rows_is_doubted_and_one_of_other_rows_is_not(name, strength):
    log = world(2500, 1, strength=strength)
    own, honest = FITS[name](log), FITS[name](world(2500, 2, strength=strength))
    result = cp.evaluate(log, **PARTS, target={"own": own, "honest": honest})
    (caveat,) = caveats(result, "own")
    assert result.verdict("own").verdict == "caution"
    assert caveat.numbers["flattery"] > 2 * caveat.numbers["error"]
    assert not caveats(result, "honest")


def test_flattery_is_measured():
    """With coin flips, all that the policy seems to gain is flattery."""
    log = world(2500, 3)
    result = cp.evaluate(log, **PARTS, target={"new": FITS["forest"](log)})
    (caveat,) = caveats(result)
    gained = result["new", "beta_ips"].value - log["reward"].mean()
    assert caveat.numbers["flattery"] == pytest.approx(gained, rel=0.25)
    assert gained > 10 * result["new", "beta_ips"].stderr


def test_functions_are_asked_about_every_action():
    log = world(3000, 4)
    target = {"new": as_function(FITS["forest"](log)), "other": as_function(FITS["forest"](world(3000, 5)))}
    result = cp.evaluate(log, **PARTS, target=target)
    assert caveats(result, "new")
    assert not caveats(result, "other")


def test_where_contexts_repeat_no_policy_knows_a_single_row():
    log = world(3000, 6).with_columns(pl.col("x", "y").sign())
    assert not caveats(cp.evaluate(log, **PARTS, target={"new": FITS["forest"](log)}))
