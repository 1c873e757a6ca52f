"""SLOPE's choice, in worlds with heavy weights and a known truth."""

import numpy as np
import pytest

import counterpoise as cp
from counterpoise.weights import Clip, ExponentialSmoothing, Harmonic, ImplicitExploration, Shrink, Slope

pytestmark = pytest.mark.once

RUNS = 200
ACTIONS = 30


def lognormal(random, n=1_500):
    """Lognormal weights (σ = 2), the large ones where the probability of a reward is large; the truth is E[w q]."""
    z = random.normal(size=n)
    w = np.exp(2 * z - 2)
    propensity = 0.5 * np.minimum(1, 1 / w)
    return (random.random(n) < rate(z)).astype(float), propensity, w * propensity


def rate(z):
    return 1 / (1 + np.exp(1 - 0.8 * z))


def lognormal_truth():
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    return float((weights * rate(nodes + 2)).sum() / weights.sum())  # weighting by w moves the normal by σ


SCORES = np.random.default_rng(5).normal(size=(ACTIONS, 4))
HABITS = np.random.default_rng(6).normal(size=ACTIONS)


def softmax(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def policies(random, n):
    scores = random.normal(size=(n, 4)) @ SCORES.T / 2
    return softmax(1.5 * (HABITS - scores / 2)), softmax(1.5 * scores), 1 / (1 + np.exp(1 - scores))


def habits(random, n=1_000):
    """Thirty actions, logged by habit and against what the target goes by."""
    p, t, q = policies(random, n)
    action = (random.random((n, 1)) > p.cumsum(axis=1)).sum(axis=1).clip(max=ACTIONS - 1)[:, None]
    p, t, q = (np.take_along_axis(x, action, axis=1)[:, 0] for x in (p, t, q))
    return (random.random(n) < q).astype(float), p, t


def habits_truth():
    _, t, q = policies(np.random.default_rng(7), 400_000)
    return float((t * q).sum(axis=1).mean())


WORLDS = {"lognormal": (lognormal, lognormal_truth, "beta_ips"), "habits": (habits, habits_truth, "ips")}
# with its optimal baseline, β-IPS hides the bias of exponential smoothing: it shrinks all weights alike, and the value toward β
CASES = [("lognormal", kind) for kind in (Clip, Shrink, Harmonic, ImplicitExploration)]
CASES += [("habits", kind) for kind in (Clip, Shrink, Harmonic, ExponentialSmoothing, ImplicitExploration)]


@pytest.mark.thorough
@pytest.mark.parametrize(("world", "kind"), CASES)
def test_the_choice_is_no_worse_than_either_end_of_the_ladder(world, kind):
    draw, known, estimator = WORLDS[world]
    truth, squares, places = known(), [], []
    for run in range(RUNS):
        reward, propensity, target = draw(np.random.default_rng([12, run]))
        asked = {"reward": reward, "propensity": propensity, "target": target, "estimator": estimator}
        ladder = cp.evaluate(**asked, weight=Slope(kind)).ladders["target"]
        values = np.array([rung.estimate.value for rung in ladder.rungs])
        squares.append(np.square(values[[ladder.chosen, 0, -1]] - truth))
        places.append(ladder.chosen)
    chosen, plain, most_biased = np.array(squares).T
    for end in (plain, most_biased):
        excess = chosen - end
        assert excess.mean() <= 3 * excess.std() / np.sqrt(RUNS), np.sqrt(np.mean(squares, axis=0))
    assert 0 < np.mean(places) < len(ladder.rungs) - 1


def test_the_least_error_among_those_that_still_agree():
    from counterpoise.estimators import Estimate
    from counterpoise.evaluation.ladder import slope

    def chosen(*pairs):
        return slope([Estimate("ips", value, error, 100, 0.0) for value, error in pairs])

    assert chosen((1.0, 1.0), (1.2, 0.5), (1.0, 0.2), (5.0, 0.1)) == 2
    assert chosen((1.0, 0.1), (2.0, 0.05), (1.0, 0.01)) == 0  # nothing after the first that disagrees
    assert chosen((1.0, 1.0), (1.2, 0.3), (1.1, 0.4)) == 1  # the least error, not the last
    assert chosen((1.0, 1.0), (1.5, 0.2), (0.95, 0.7)) == 1
    assert chosen((float("nan"), float("inf")), (0.0, 0.1)) == 0
    assert chosen((1.0, float("inf")), (0.0, 0.1)) == 1
