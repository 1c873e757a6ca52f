"""The propensities of Thompson sampling, against closed forms, another quadrature and draws; softmax and ε-greedy."""

from itertools import combinations

import numpy as np
import pytest
from conftest import sampled
from scipy import special

import counterpoise as cp
from counterpoise.errors import OptionError
from counterpoise.models import propensities

BETA, NORMAL = cp.propensities.thompson_beta, cp.propensities.thompson_normal
PROMISE = 1e-6


def by_trapezoids(log_density, below, span, arm, arms, top):
    """The chance of one arm by the trapezoid rule on 20,000 points where its integrand counts, from scipy's distribution functions."""

    def integrand(y):
        f = [below(k, y) for k in range(arms) if k != arm]
        chance = np.zeros_like(y)
        for count in range(top):  # of the arms above y, in every way
            for above in combinations(range(arms - 1), count):
                chance += np.prod([1 - f[k] if k in above else f[k] for k in range(arms - 1)], axis=0)
        with np.errstate(under="ignore"):
            return np.exp(log_density(arm, y)) * chance

    low, high = span
    for _ in range(8):  # closer and closer to where it counts
        y = np.linspace(low, high, 4_001)
        g = integrand(y)
        if g.max() == 0:
            return 0.0
        counts = np.flatnonzero(g > 1e-17 * g.max())
        low, high = y[max(counts[0] - 1, 0)], y[min(counts[-1] + 1, 4_000)]
    return np.trapezoid(integrand(np.linspace(low, high, 20_001)), dx=(high - low) / 20_000)


def plain_beta(alpha, beta, arm, top):
    """In logits, so that densities that are infinite at 0 and 1 are smooth."""

    def log_density(k, y):
        return alpha[k] * special.log_expit(y) + beta[k] * special.log_expit(-y) - special.betaln(alpha[k], beta[k])

    def below(k, y):
        upper = special.betaincc(beta[k], alpha[k], special.expit(-y))
        return np.where(y < 0, special.betainc(alpha[k], beta[k], special.expit(y)), upper)

    spans = [40 * max(1 / min(a, b), (1 / a + 1 / b) ** 0.5, 1e-3) for a, b in zip(alpha, beta, strict=True)]
    modes = np.log(alpha) - np.log(beta)
    return by_trapezoids(log_density, below, (min(modes - spans), max(modes + spans)), arm, len(alpha), top)


def plain_normal(mean, sd, arm, top):
    def log_density(k, y):
        return -0.5 * ((y - mean[k]) / sd[k]) ** 2 - np.log(sd[k] * np.sqrt(2 * np.pi))

    def below(k, y):
        return special.ndtr((y - mean[k]) / sd[k])

    span = min(mean - 40 * sd), max(mean + 40 * sd)
    return by_trapezoids(log_density, below, span, arm, len(mean), top)


HARD_BETAS = {
    "a usual bandit": ([21, 41, 3, 12, 8], [981, 1461, 60, 400, 100]),
    "one click each": ([1, 2, 2], [2, 1, 2]),
    "U-shaped": ([0.5, 0.5, 0.2], [0.5, 0.3, 0.6]),
    "next to certain of 0 or 1": ([0.05, 0.1, 1.0], [0.1, 0.05, 1.0]),
    "a million rows": ([500_000, 500_400, 499_000], [500_000, 499_600, 501_000]),
    "a million rows and none": ([1, 500_000, 200_000], [1, 500_000, 250_000]),
    "rare clicks": ([2, 5, 30], [1e5, 2e5, 9e5]),
    "a hopeless arm": ([40, 300], [300, 400]),
    "one that cannot win": ([20, 2_000], [1_000, 3_000]),
}  # fmt: skip


@pytest.mark.parametrize("top", [1, 2])
@pytest.mark.parametrize("case", sampled(HARD_BETAS, "one click each", "next to certain of 0 or 1", "rare clicks"))
def test_beta_agrees_with_another_quadrature(case, top):
    alpha, beta = (np.array(x, dtype=float) for x in HARD_BETAS[case])
    if top == len(alpha):
        pytest.skip("both arms are shown")
    chances = BETA(alpha, beta, top)
    for arm, chance in enumerate(chances):
        assert chance == pytest.approx(plain_beta(alpha, beta, arm, top), rel=PROMISE / 10, abs=1e-290)
    assert chances.sum() == pytest.approx(top, rel=1e-8)


def test_the_hard_cases_have_tiny_propensities_and_large_ones():
    smallest = [BETA(*map(np.array, case)).min() for case in HARD_BETAS.values()]
    assert min(smallest) < 1e-100
    assert max(smallest) > 0.1


@pytest.mark.parametrize("top", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_normal_agrees_with_another_quadrature(seed, top):
    random = np.random.default_rng(seed)
    mean, sd = random.normal(size=4), 10.0 ** random.uniform(-2, 1, 4)
    for arm, chance in enumerate(NORMAL(mean, sd, top)):
        assert chance == pytest.approx(plain_normal(mean, sd, arm, top), rel=PROMISE / 10, abs=1e-290)


@pytest.mark.parametrize("distance", [0.0, 0.1, 1.0, 7.0, 10.0, 30.0, 50.0])
@pytest.mark.parametrize("sd", [(1.0, 1.0), (0.6, 0.8), (1e-6, 1.0), (1e5, 1e-3)])
def test_two_normal_arms_have_a_closed_form(distance, sd):
    scale = np.hypot(*sd)
    chances = NORMAL([0.0, distance * scale], sd)
    right = special.ndtr(np.array([-distance, distance]))
    assert chances == pytest.approx(right, rel=PROMISE / 10)


def test_against_a_uniform_draw_the_chance_is_the_mean():
    random = np.random.default_rng(0)
    alpha, beta = (10.0 ** random.uniform(-1, 5, 200) for _ in range(2))
    ones = np.ones(200)
    chances = BETA(np.stack([alpha, ones], axis=1), np.stack([beta, ones], axis=1))
    assert chances[:, 0] == pytest.approx(alpha / (alpha + beta), rel=PROMISE / 10)


@pytest.mark.parametrize("arms", [2, 10, 50])
@pytest.mark.parametrize("parameters", [(0.5, 0.5), (3.0, 7.0), (1e6, 1e6)])
def test_equal_arms_share(arms, parameters):
    for top in {1, arms // 2, arms - 1}:
        same = [np.full((1, arms), x) for x in parameters]
        assert BETA(*same, top) == pytest.approx(np.full((1, arms), top / arms), rel=PROMISE / 10)
        assert NORMAL(*same, top) == pytest.approx(np.full((1, arms), top / arms), rel=PROMISE / 10)


@pytest.mark.parametrize("kind", [BETA, NORMAL])
@pytest.mark.parametrize("arms", [2, 5, 20])
def test_chances_of_very_unequal_arms_add_up(kind, arms):
    random = np.random.default_rng(arms)
    first, second = (10.0 ** random.uniform(-2, 6, (6, arms)) for _ in range(2))
    for top in {1, min(3, arms - 1)}:
        chances = kind(first, second, top)
        assert chances.sum(axis=1) == pytest.approx(np.full(6, top), rel=PROMISE / 10)
        assert chances.min() >= 0


@pytest.mark.parametrize("top", [1, 3])
def test_draws_come_out_as_often(top):
    random = np.random.default_rng(1)
    alpha, beta = random.uniform(0.3, 20, 6), random.uniform(0.3, 20, 6)
    draws = random.beta(alpha, beta, size=(200_000, 6))
    shares = (np.argsort(-draws, axis=1)[:, :top, None] == np.arange(6)).any(axis=1).mean(axis=0)
    chances = BETA(alpha, beta, top)
    assert (np.abs(shares - chances) < 4.5 * np.sqrt(chances * (1 - chances) / 200_000)).all()


def test_inclusion_is_not_a_position():
    random = np.random.default_rng(2)
    mean, sd = np.array([0.0, 0.5, 1.0]), np.ones(3)
    second = np.argsort(-random.normal(mean, sd, size=(100_000, 3)), axis=1)[:, 1]
    at_second = np.bincount(second) / 100_000
    assert NORMAL(mean, sd, top=2) - NORMAL(mean, sd) == pytest.approx(at_second, abs=4.5 * 0.5 / 100_000**0.5)


def test_only_differences_count():
    random = np.random.default_rng(3)
    mean, sd = random.normal(size=(5, 4)), random.uniform(0.1, 2, (5, 4))
    order = random.permutation(4)
    chances = NORMAL(mean, sd)
    assert NORMAL(1e6 + 1e3 * mean, 1e3 * sd) == pytest.approx(chances, rel=1e-8)
    assert NORMAL(mean[:, order], sd[:, order]) == pytest.approx(chances[:, order], rel=1e-8)
    assert NORMAL(mean[2], sd[2]) == pytest.approx(chances[2], rel=1e-12)


def test_equal_rows_are_computed_once(monkeypatch):
    swept = []
    sweep = propensities._sweep
    monkeypatch.setattr(propensities, "_sweep", lambda arms, top: swept.append(arms.mode.shape) or sweep(arms, top))
    alpha = np.tile([[1.0, 2.0], [3.0, 1.0]], (500, 1))
    chances = BETA(alpha, alpha[::-1])
    assert swept == [(2, 2)]
    assert chances[::2] == pytest.approx(np.tile(BETA(alpha[0], alpha[-1]), (500, 1)), rel=1e-12)


def test_no_rows_have_no_propensities():
    assert BETA(np.ones((0, 3)), np.ones((0, 3))).shape == (0, 3)


def test_softmax_and_epsilon_greedy():
    scores = np.random.default_rng(4).normal(size=(6, 5)) * 300
    assert cp.propensities.softmax(scores, temperature=50) == pytest.approx(special.softmax(scores / 50, axis=1))
    greedy = cp.propensities.epsilon_greedy([[1, 3, 3], [2, 1, 0]], 0.3)
    assert greedy == pytest.approx(np.array([[0.1, 0.45, 0.45], [0.8, 0.1, 0.1]]))
    assert cp.propensities.epsilon_greedy([1, 2], 0.0).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: BETA([[1, -2]], [[1, 1]]), "alpha= must be a finite number above 0 .* 1 of 2 are not; .* arm 1 of row 0 with -2"),
        (lambda: BETA([[1, 2]], [[1, np.nan]]), "arm 1 of row 0 with nan"),
        (lambda: NORMAL([[1, 2]], [[1, 0]]), "sd= must be a finite number above 0"),
        (lambda: NORMAL([[1, np.inf]], [[1, 1]]), "mean= must be a finite number for"),
        (lambda: BETA([[1, 2]], [1, 1]), r"shapes differ: alpha \(1, 2\) and beta \(2,\)"),
        (lambda: BETA([[1], [2]], [[1], [2]]), r"at least 2 arms, found the shape \(2, 1\)"),
        (lambda: BETA(1.0, 2.0), "found the shape"),
        (lambda: BETA([["a", "b"]], [[1, 1]]), "alpha= must hold numbers"),
        (lambda: BETA([[1, 2]], [[1, 1]], top=2), "top= must be a whole number from 1 to 1, .* found 2. If every arm is shown"),
        (lambda: BETA([[1, 2]], [[1, 1]], top=0.5), "found 0.5"),
        (lambda: cp.propensities.softmax([1, 2], temperature=0), "temperature= must be above 0"),
        (lambda: cp.propensities.epsilon_greedy([1, 2], 1.5), "epsilon= must lie between 0 and 1"),
        (lambda: cp.propensities.epsilon_greedy([1, np.nan], 0.5), "scores= must be a finite number"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_words(call, words):
    with pytest.raises(OptionError, match=words):
        call()
