"""Intervals cover as they promise, and say so when they cannot."""

import math

import narwhals as nw
import numpy as np
import plain
import polars as pl
import pytest
from doubts import codes, numbers
from messages import refuses
from scipy import stats

import counterpoise as cp
from counterpoise.estimators import ESTIMATORS, ips
from counterpoise.evaluation.evaluate import rank
from counterpoise.evaluation.plan import plan
from counterpoise.intervals import Bernstein
from counterpoise.intervals.anytime import anytime, anytime_score
from counterpoise.intervals.bernstein import bernstein
from counterpoise.intervals.jackknife import effective_clusters, jackknife, jackknife_error
from counterpoise.intervals.method import normal, wilson
from counterpoise.log.groups import with_groups
from counterpoise.moments import Moments


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95, 0.999])
def test_quantiles_are_scipys(level):
    assert normal(1.0, 2.0, level).upper == pytest.approx(1 + 2 * stats.norm.ppf((1 + level) / 2), rel=1e-12)
    # Student's quantiles of SciPy 1.13 are off by 2e-11
    assert jackknife(1.0, 2.0, 30, level).lower == pytest.approx(1 - 2 * stats.t(29).ppf((1 + level) / 2), rel=1e-10)


def test_jackknife_by_hand():
    """Unequal groups, each deleted in a plain loop."""
    log = plain.random_log(0, n=300)
    user = log["group"]
    result = cp.evaluate(
        reward=log["r"], propensity=log["p"], target=log["t"], cluster=user, groups=5, estimator="snips"
    )
    stack = result.moments.moments["target", ""][0]
    w, r = log["t"] / log["p"], log["r"]
    groups = with_groups(nw.from_native(pl.DataFrame({"g": user})), 5)["g"].to_numpy()
    sizes = np.array([(groups == g).sum() for g in range(5)])
    assert stack.n.tolist() == sizes.tolist()
    present = [g for g in range(5) if sizes[g]]
    without = [(w * r)[groups != g].sum() / w[groups != g].sum() for g in present]
    variance = (len(present) - 1) * np.var(without)
    assert result["target", "snips"].stderr == pytest.approx(math.sqrt(variance), rel=1e-9)


USERS = {
    "equal": lambda g: np.full(300, 8),
    "lognormal": lambda g: np.ceil(g.lognormal(1.0, 1.5, 300)).astype(int),
    "zipf": lambda g: np.ceil(600 / np.arange(1, 301)).astype(int),
}


@pytest.mark.thorough
@pytest.mark.once
@pytest.mark.parametrize("kind", USERS)
def test_cluster_errors_hold_whatever_the_sizes_of_clusters(kind):
    """300 users with moods: a few of them write most of the log. Errors and coverage are those of repeated logs."""
    g, runs = np.random.default_rng(3), 150
    hits, values, errors = 0, [], []
    for _ in range(runs):
        user = np.repeat(np.arange(300), USERS[kind](g))
        p = g.uniform(0.3, 0.7, 300)[user]
        action = g.random(len(user)) < p
        reward = 0.5 + 0.3 * action + g.normal(scale=0.5, size=300)[user] + g.normal(scale=0.3, size=len(user))
        question = {"propensity": np.where(action, p, 1 - p), "target": np.full(len(user), 0.5), "cluster": user}
        found = cp.evaluate(reward=reward, **question, estimator="beta_ips")["target", "beta_ips"]
        hits += 0.65 in found.interval
        values.append(found.value)
        errors.append(found.stderr)
    assert hits / runs > 0.95 - 4 * math.sqrt(0.95 * 0.05 / runs)
    # the spread of 150 values is known to 1/√300 = 6 %
    assert math.sqrt(np.mean(np.square(errors))) == pytest.approx(np.std(values), rel=0.25)


def test_the_effective_number_of_clusters_is_read_off_the_hashed_groups():
    g, draws = np.random.default_rng(4), 3000
    m = np.ceil(g.lognormal(1.0, 1.5, 300))
    sizes = np.zeros((draws, 100))
    np.add.at(sizes, (np.arange(draws)[:, None], g.integers(0, 100, (draws, 300))), np.broadcast_to(m, (draws, 300)))
    squares = m.sum() ** 2 / effective_clusters(sizes)
    assert squares.mean() == pytest.approx((m**2).sum(), abs=4 * squares.std() / math.sqrt(draws))
    user = np.repeat(np.arange(300), m.astype(int))
    p = np.full(len(user), 0.5)
    question = {"reward": g.random(len(user)), "propensity": p, "target": g.uniform(0.2, 0.8, len(user))}
    found = cp.evaluate(**question, cluster=user)
    # the largest users are few, so that chance lets some meet: to within a factor of 2
    assert found.diagnostics().effective_clusters == pytest.approx(m.sum() ** 2 / (m**2).sum(), rel=0.5)
    assert cp.evaluate(**question, cluster=np.arange(len(user))).diagnostics().effective_clusters <= len(user)
    assert cp.evaluate(**question).diagnostics().effective_clusters is None


def test_degrees_of_freedom_are_those_of_the_effective_clusters():
    for clusters, freedom in ((math.inf, 99), (12.5, 11.5), (1.2, 1)):
        expected = stats.t(freedom).ppf(0.975)
        assert jackknife(0.0, 1.0, 100, clusters=clusters).upper == pytest.approx(expected, rel=1e-9)
    sizes = np.r_[np.full(5, 400), np.ones(200, dtype=int)]  # five users write most of the log
    user = np.repeat(np.arange(205), sizes)
    g = np.random.default_rng(5)
    t = g.uniform(0.2, 0.8, len(user))
    arrays = {"reward": g.random(len(user)), "propensity": np.full(len(user), 0.5), "target": t, "cluster": user}
    result = cp.evaluate(**arrays, interval="jackknife")
    found = result["target", "snips"]
    freedom = result.diagnostics().effective_clusters - 1
    half = stats.t(freedom).ppf(0.975) * found.stderr
    assert (found.interval.upper - found.value) == pytest.approx(half, rel=1e-9)
    assert "few-clusters" in codes(result.verdict())


@pytest.mark.parametrize("name", [name for name, entry in ESTIMATORS.items() if not entry.needs])
def test_jackknife_and_delta_method_agree_on_independent_rows(name):
    g = np.random.default_rng(3)
    arrays = {"reward": g.normal(size=20_000), "propensity": np.full(20_000, 0.5), "target": g.uniform(0, 1, 20_000)}
    by_delta = cp.evaluate(**arrays, estimator=name)["target", name].stderr
    by_groups = cp.evaluate(**arrays, estimator=name, interval="jackknife")["target", name].stderr
    # a jackknife of 100 groups knows its error to 1/√(2·99) = 7 %
    assert by_groups == pytest.approx(by_delta, rel=0.3)


def test_clustered_rows_have_larger_errors_and_only_the_jackknife_sees_it():
    g = np.random.default_rng(0)
    users, each = 400, 20
    user = np.repeat(np.arange(users), each)
    mood = g.normal(size=users)[user]
    taste = g.integers(0, 2, users)[user]  # the logging policy decides once for each user
    p = np.full(users * each, 0.5)
    t = np.where(taste, 0.8, 0.2)
    arrays = {"reward": mood + taste + g.normal(size=len(p)), "propensity": p, "target": t}
    robust = cp.evaluate(**arrays, cluster=user)["target", "beta_ips"]
    naive = cp.evaluate(**arrays)["target", "beta_ips"]
    assert robust.value == pytest.approx(naive.value, rel=1e-12)
    # per user: the error of a mean over 400 instead of 8,000 independent values of the users' part
    assert robust.stderr > 2.5 * naive.stderr


@pytest.mark.parametrize("offset", [1e4, 1e8])
@pytest.mark.parametrize("name", [name for name, one in ESTIMATORS.items() if name != "ips" and one.needs != "context"])
def test_the_jackknife_keeps_its_digits_far_from_zero(offset, name):
    g = np.random.default_rng(0)
    n = 20_000
    noise = np.round(g.normal(size=n), 3)
    arrays = {"propensity": np.full(n, 0.5), "target": g.uniform(0, 1, n), "cluster": g.integers(0, 2000, n)}
    model = {"model_reward": 0.5 * noise, "model_value": 0.1 * noise}
    near = cp.evaluate(reward=noise, **model, **arrays, estimator=name)["target", name]
    far = cp.evaluate(reward=noise + offset, **{k: v + offset for k, v in model.items()}, **arrays, estimator=name)[
        "target", name
    ]
    # rewards near 10⁸ are themselves known to 10⁻⁸ only
    assert far.stderr**2 == pytest.approx(near.stderr**2, rel=1e-8 if offset < 1e5 else 1e-6)


def test_an_estimate_that_rests_on_one_group_has_no_known_error():
    user = np.repeat(np.arange(50), 10)
    t = np.where(user == 7, 0.5, 0.0)
    result = cp.evaluate(reward=np.zeros(500), propensity=np.full(500, 0.5), target=t, cluster=user)
    for name in ("ips", "snips", "beta_ips"):
        assert result["target", name].stderr == np.inf


def test_anytime_and_compare_allow_for_clusters():
    g = np.random.default_rng(0)
    user = np.repeat(np.arange(200), 20)
    t = np.repeat(g.choice([0.2, 0.8], 200), 20)
    arrays = {"reward": np.repeat(g.normal(size=200), 20), "propensity": np.full(4000, 0.5), "target": t}
    anytime_ = [cp.evaluate(**arrays, cluster=c, interval="anytime")["target", "snips"].stderr for c in (user, None)]
    assert anytime_[0] > 3 * anytime_[1]
    change = [cp.compare(**arrays, cluster=c) for c in (user, None)]
    assert change[0].stderr > 3 * change[1].stderr
    assert change[0].interval.width > 3 * change[1].interval.width
    assert cp.compare(change[0].moments).stderr == change[0].stderr


def test_bernstein_of_impossible_weights():
    arrays = {"reward": np.ones(1000), "propensity": np.full(1000, 0.1), "target": np.full(1000, 0.9)}
    interval = cp.evaluate(**arrays, interval=Bernstein((0, 1), max_weight=10))["target", "ips"].interval
    assert tuple(interval) == (0.0, 1.0)
    assert "weights are wrong" in interval.note
    thirds = {"reward": np.ones(1000), "propensity": np.full(1000, 1 / 3), "target": np.ones(1000)}
    cp.evaluate(**thirds, interval=Bernstein((0, 1), max_weight=3))  # 1/(1/3) may round up


def test_fits_with_no_rows_to_spare_have_no_known_error():
    log = {k: v[:3] for k, v in plain.random_log(1).items()}
    arrays = {
        "reward": log["r"],
        "propensity": log["p"],
        "target": log["t"],
        "model_reward": log["q"],
        "model_value": log["v"],
    }
    two = {k: v[:2] for k, v in arrays.items()}
    assert cp.evaluate(**arrays)["target", "optimal_dr"].stderr == np.inf
    assert cp.evaluate(**two)["target", "beta_ips"].stderr == np.inf
    assert cp.evaluate(**two)["target", "lift"].stderr == np.inf
    assert np.isfinite(cp.evaluate(**two)["target", "snips"].stderr)


def test_one_group_says_nothing():
    error, groups = jackknife_error(np.array([1.0, 1.0]), np.array([5, 0]))
    assert (float(error), int(groups)) == (np.inf, 1)
    assert tuple(jackknife(1.0, np.inf, 1)) == (-np.inf, np.inf)


@pytest.mark.once
def test_anytime_covers_at_all_times_at_once():
    """Means of a stream, looked at after every one of 2,000 rows from the 50th on; the normal interval fails, this one does not."""
    g = np.random.default_rng(1)
    runs, n = 1000, 2000
    x = g.exponential(size=(runs, n))
    count = np.arange(1, n + 1)
    mean = x.cumsum(axis=1) / count
    sd = np.sqrt((x**2).cumsum(axis=1) / count - mean**2)
    look = slice(50, None)
    factor = np.array([anytime(0.0, 1.0, int(k), tuned_for=500).upper for k in count])
    missed = (np.abs(mean - 1) > factor * sd / np.sqrt(count))[:, look].any(axis=1).mean()
    missed_by_normal = (np.abs(mean - 1) > 1.96 * sd / np.sqrt(count))[:, look].any(axis=1).mean()
    assert missed < 0.05 + 4 * math.sqrt(0.05 * 0.95 / runs)
    assert missed_by_normal > 0.2


def test_anytime_formula():
    n, t, alpha = 5000, 10_000, 0.05
    rho2 = (-2 * math.log(alpha) + math.log(-2 * math.log(alpha)) + 1) / t
    half = 3.0 * math.sqrt(2 * (n * rho2 + 1) / (n * n * rho2) * math.log(math.sqrt(n * rho2 + 1) / alpha))
    assert anytime(0.0, 3.0 / math.sqrt(n), n).upper == pytest.approx(half, rel=1e-12)


@pytest.mark.once
def test_bernstein_formula_and_coverage():
    g = np.random.default_rng(2)
    n = 500
    covered = 0
    for _ in range(200):
        w, r = g.choice([0.0, 4.0], n, p=[0.75, 0.25]), (g.random(n) < 0.3).astype(float)
        one = ips(Moments.of(w, r))
        interval = bernstein(one.value, one.stderr, one.n, 0.95, reward_bounds=(0.0, 1.0), max_weight=4.0)
        log_term = math.log(4 / 0.05)
        half = math.sqrt(2 * np.var(w * r, ddof=1) * log_term / n) + 7 * 4.0 * log_term / (3 * (n - 1))
        assert interval.upper == pytest.approx(min((w * r).mean() + half, 1.0), rel=1e-12)
        covered += 0.3 in interval
    assert covered == 200  # it promises 95 % at every n and is far wider than that needs
    assert "times as wide as the normal interval" in interval.note


def test_bernstein_from_the_front_door():
    log = plain.random_log(1, n=2000, binary=True)
    arrays = {"reward": log["r"], "propensity": log["p"], "target": log["t"]}
    bounds = {"interval": Bernstein((0, 1), max_weight=10.0)}
    result = cp.evaluate(**arrays, **bounds)
    assert {name for _, name, _ in result.estimates} == {"ips"}
    interval = result["target", "ips"].interval
    assert interval.width > cp.evaluate(**arrays)["target", "ips"].interval.width
    with refuses(cp.LogError):
        cp.evaluate(**arrays, interval=Bernstein((0, 1), max_weight=2.0))
    with refuses(cp.LogError):
        cp.evaluate(**(arrays | {"reward": log["r"] * 3}), **bounds)
    with refuses(cp.OptionError):
        cp.evaluate(**arrays, **bounds, cluster=log["group"])


def test_levels_nest():
    log = plain.random_log(1, n=500)
    arrays = {"reward": log["r"], "propensity": log["p"], "target": log["t"], "cluster": log["group"] + np.arange(500)}
    for interval in ("normal", "jackknife", "anytime"):
        widths = [
            cp.evaluate(**arrays, level=level, interval=interval)["target", "snips"].interval.width
            for level in (0.5, 0.9, 0.99)
        ]
        assert widths == sorted(widths)
        assert widths[0] > 0


# -- rewards that never vary ---------------------------------------------------------------------------------------------


def unvaried(reward, n=1000, seed=0, **options):
    g = np.random.default_rng(seed)
    return cp.evaluate(
        reward=np.full(n, float(reward)), propensity=np.full(n, 0.5), target=g.uniform(0, 1, n), **options
    )


@pytest.mark.parametrize("reward", [0, 1])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_clicks_that_are_all_alike_leave_wilsons_interval_at_the_effective_sample(reward, level):
    result = unvaried(reward, level=level)
    n = result.diagnostics().effective_sample_size
    low, high = stats.binomtest(0, round(n)).proportion_ci(level, method="wilson")
    for name in ("snips", "beta_ips"):
        found = result["target", name]
        assert (found.value, found.stderr) == pytest.approx((reward, 0.0), abs=1e-12)
        ends = (low, high) if reward == 0 else (1 - high, 1 - low)
        assert tuple(found.interval) == pytest.approx(ends, rel=2e-3, abs=1e-9)
        assert "Wilson" in found.interval.note
    assert result.verdict().verdict == "caution"
    assert numbers(result.verdict(), "equal-rewards") == {"reward": reward}


@pytest.mark.parametrize(("share", "n"), [(0.0, 50), (1.0, 50), (0.5, 80), (0.125, 1000)])
def test_wilson_is_scipys(share, n):
    expected = stats.binomtest(int(share * n), n).proportion_ci(0.9, method="wilson")
    assert wilson(share, n, 0.9) == pytest.approx(tuple(expected), rel=1e-12, abs=1e-15)


def test_other_rewards_that_never_vary_have_no_interval_unless_bounds_are_known():
    result = unvaried(3.7)
    for name in ("ips", "snips", "beta_ips", "lift"):
        assert tuple(result["target", name].interval) == (-np.inf, np.inf)
    assert result["target", "snips"].value == pytest.approx(3.7, rel=1e-13)
    assert result.verdict().verdict == "caution"
    bounded = unvaried(3.7, reward_bounds=(0, 5))
    n = bounded.diagnostics().effective_sample_size
    expected = [5 * end for end in wilson(3.7 / 5, n)]
    assert tuple(bounded["target", "snips"].interval) == pytest.approx(expected, rel=1e-12)
    with refuses(cp.LogError):
        unvaried(3.7, reward_bounds=(0, 3))
    with refuses(cp.OptionError):
        unvaried(3.7, reward_bounds=(5, 0))


def test_clicks_that_only_other_actions_earn_leave_wilsons_interval_too():
    """Every click is on a row that the target would never produce."""
    g, n = np.random.default_rng(1), 1000
    taken = np.arange(n) % 2
    result = cp.evaluate(reward=(1 - taken) * (g.random(n) < 0.3), propensity=np.full(n, 0.5), target=1.0 * taken)
    assert tuple(result["target", "snips"].interval) == pytest.approx(wilson(0.0, n / 2), abs=1e-7)
    lift, change = result["target", "lift"], wilson(0.0, n / 2)[1]
    assert lift.interval.upper == pytest.approx(normal(lift.value, lift.stderr).upper + change, rel=1e-9)
    assert lift.interval.lower == pytest.approx(normal(lift.value, lift.stderr).lower, rel=1e-9)


def test_differences_of_rewards_that_never_vary_are_open_on_both_sides():
    g, n = np.random.default_rng(2), 1000
    p, first, second = np.full(n, 0.5), g.uniform(0, 1, n), g.uniform(0, 1, n)
    result = cp.compare(reward=np.zeros(n), propensity=p, target=first, against=second)
    ess = [result.diagnostics(name).effective_sample_size for name in ("target", "against")]
    up, down = (wilson(0.0, size)[1] for size in ess)
    assert result.value == 0.0
    assert tuple(result.interval) == pytest.approx((-down, up), rel=1e-9)
    assert result.verdict().verdict == "caution"
    assert rank(result)[0].interval == result.interval
    assert rank(result)[0].decision == "undecided"
    other = {"reward": np.full(n, 3.7), "propensity": p, "target": first, "against": second}
    assert tuple(cp.compare(**other).interval) == (-np.inf, np.inf)
    bounded = cp.compare(**other, reward_bounds=(0, 5))
    assert np.isfinite(bounded.interval.width)
    assert rank(bounded)[0].interval == bounded.interval


def test_policies_that_hardly_differ_hardly_differ_in_value_whatever_is_unseen():
    n, z = 1000, stats.norm.ppf(0.975)
    p = np.full(n, 0.5)
    nearly = np.where(np.arange(n) % 100 == 0, 0.6, 0.5)
    u = nearly / p - 1
    result = cp.compare(reward=np.zeros(n), propensity=p, target=nearly)
    # the largest over all masses τ of Wilson's bound at the effective sample of the part in which they differ
    mass = np.linspace(1e-6, 0.1, 200_001)
    worst = (mass * z**2 / (n * mass**2 / np.mean(u**2) + z**2)).max()
    assert tuple(result.interval) == pytest.approx((-worst, worst), rel=1e-6)
    same = cp.compare(reward=np.full(n, 3.7), propensity=p, target=nearly, against=nearly.copy())
    assert tuple(same.interval) == (0.0, 0.0)  # two policies that never differ, whatever rewards are


@pytest.mark.thorough
@pytest.mark.once
def test_logs_without_a_click_cover_the_rate_and_are_never_ok():
    """Clicks on one action at 0.003, so that one log in five has none: each of those used to say [0, 0], ok."""
    g, logs, n, empty = np.random.default_rng(6), 200, 1000, 0
    for _ in range(logs):
        action = g.random(n) < 0.5
        click = action & (g.random(n) < 0.003)
        if click.any():
            continue
        empty += 1
        t = np.where(action, 0.8, 0.2)
        for cluster in (None, np.arange(n) // 4):
            question = {"reward": click, "propensity": np.full(n, 0.5), "target": t, "cluster": cluster}
            result = cp.evaluate(**question, estimator=["beta_ips", "lift"])
            assert result.verdict().verdict == "caution"
            assert 0.8 * 0.003 in result["target", "beta_ips"].interval
            assert 0.3 * 0.003 in result["target", "lift"].interval
    assert empty > 20  # of 45 expected


def test_clusters_without_a_click_are_worth_no_more_than_their_number():
    """Whether a user ever clicks may be decided once: 50 users say what 50 rows say."""
    user = np.repeat(np.arange(50), 100)
    t = np.where(np.arange(5000) % 2 == 0, 0.6, 0.4)
    question = {"reward": np.zeros(5000), "propensity": np.full(5000, 0.5), "target": t}
    upper = cp.evaluate(**question, cluster=user)["target", "snips"].interval.upper
    assert wilson(0.0, 100)[1] < upper < wilson(0.0, 25)[1]
    assert cp.evaluate(**question)["target", "snips"].interval.upper < wilson(0.0, 4000)[1]


@pytest.mark.once
def test_the_anytime_score_holds_at_all_times_at_once():
    """Without a click it refutes a rate p first at some n, which such a log reaches with a chance of at most 5 %."""
    for p in (0.2, 0.01, 0.001):
        n = next(n for n in range(1, 100_000) if anytime_score(0.0, n)[1] < p)
        assert (1 - p) ** n <= 0.05
        assert anytime_score(0.0, n)[1] == pytest.approx(1 - (0.05 / (n + 1)) ** (1 / n), rel=1e-9)
    low, high = anytime_score(0.3, 1000)
    inner = wilson(0.3, 1000)
    assert low < inner[0] < inner[1] < high
    mirrored = anytime_score(0.7, 1000)
    assert (low, high) == pytest.approx((1 - mirrored[1], 1 - mirrored[0]), rel=1e-9)
    assert (
        unvaried(0, interval="anytime")["target", "snips"].interval.upper
        > unvaried(0)["target", "snips"].interval.upper
    )


def test_rewards_that_never_vary_say_nothing_about_how_many_rows_are_needed():
    n = 1000
    t = np.where(np.arange(n) % 2 == 0, 0.9, 0.1)
    log = pl.DataFrame({"r": np.zeros(n), "p": np.full(n, 0.5), "t": t})
    found = plan(log, reward="r", propensity="p", target="t", difference=0.01, actions=2)
    assert found.needs.value_rows == found.needs.difference_rows == math.inf
    assert found.exploration == ()
