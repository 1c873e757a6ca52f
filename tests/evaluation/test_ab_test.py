"""A/B tests: each method against an independent computation, their coverage on simulated tests, and what a mismatch says."""

import numpy as np
import polars as pl
import pytest

import counterpoise as cp
from counterpoise.evaluation.ab_test import ADJUSTED, MEANS, POOLED

pytestmark = pytest.mark.once

SHARES = {"new": 0.4, "old": 0.6}


def simulated(n, seed, *, agree=0.9, effect=0.3):
    """A test of two deterministic policies over four actions, whose rewards depend on a context and the action."""
    random = np.random.default_rng(seed)
    x = random.normal(size=n)
    arm = np.where(random.random(n) < SHARES["new"], "new", "old")
    old = random.integers(3, size=n)
    new = np.where(random.random(n) < agree, old, 3)
    action = np.where(arm == "new", new, old)
    r = x + effect * (action == 3) + random.normal(size=n)
    columns = {"arm": arm, "r": r, "x": x, "p_new": (action == new) * 1.0, "p_old": (action == old) * 1.0}
    return pl.DataFrame(columns), effect * (1 - agree)


PARTS = {"arm": "arm", "against": "old", "reward": "r"}
POLICIES = {"new": "p_new", "old": "p_old"}


def test_the_difference_in_means_is_that_of_two_means():
    log, _ = simulated(3_000, 0)
    a, b = (log.filter(pl.col("arm") == name)["r"].to_numpy() for name in ("new", "old"))
    found = cp.ab_test(log, **PARTS)["new", MEANS]
    assert found.value == pytest.approx(a.mean() - b.mean(), rel=1e-12)
    assert found.stderr == pytest.approx(np.sqrt(a.var() / len(a) + b.var() / len(b)), rel=1e-9)
    assert found.verdict.verdict == "ok"


@pytest.mark.parametrize("share", [0.1, 0.4, 0.5])
def test_difference_in_means_is_ips_with_the_optimal_baseline(share):
    """The law, with planned shares as propensities, which need not be those of the rows."""
    log, _ = simulated(500, 1)
    log = log.with_columns(
        p=pl.when(pl.col("arm") == "new").then(share).otherwise(1 - share),
        A=(pl.col("arm") == "new").cast(pl.Float64),
        B=(pl.col("arm") == "old").cast(pl.Float64),
    )
    by_ips = cp.compare(log, reward="r", propensity="p", target="A", against="B")
    assert by_ips.value == pytest.approx(cp.ab_test(log, **PARTS)["new"].value, rel=1e-10)


def test_the_regression_is_least_squares_with_every_rows_weight_squared():
    """Weighted least squares on the arms and the context, whose weights are 1/share² (Lin's adjustment in large logs)."""
    log, _ = simulated(4_000, 2)
    r, x = log["r"].to_numpy(), log["x"].to_numpy()
    is_new = (log["arm"] == "new").to_numpy()
    share = np.where(is_new, is_new.mean(), 1 - is_new.mean())
    design = np.column_stack([is_new, ~is_new, x]) / share[:, None]
    fitted = np.linalg.lstsq(design, r / share, rcond=None)[0]
    centered = np.column_stack([np.ones(len(x)), is_new, x - x.mean(), is_new * (x - x.mean())])
    lin = np.linalg.lstsq(centered, r, rcond=None)[0][1]
    found = cp.ab_test(log, **PARTS, baseline=["x"])["new", ADJUSTED]
    assert found.value == pytest.approx(fitted[0] - fitted[1], abs=0.01 * found.stderr)
    assert found.value == pytest.approx(lin, abs=0.05 * found.stderr)
    residual = r - design @ fitted * share
    assert found.stderr == pytest.approx(np.sqrt(np.square(residual / share).mean() / len(r)), rel=0.01)
    assert found.worth == pytest.approx(
        1.0, abs=0.2
    )  # half of the variance is explained, so that it is worth twice the rows


def test_the_pooled_difference_is_that_of_all_rows():
    log, _ = simulated(3_000, 3)
    share = (log["arm"] == "new").mean()
    a, b, r = (log[name].to_numpy() for name in ("p_new", "p_old", "r"))
    u = (a - b) / (share * a + (1 - share) * b)
    beta = np.cov(u * r, u)[0, 1] / u.var(ddof=1)
    terms = u * r - beta * u
    found = cp.ab_test(log, **PARTS, propensity=POLICIES)["new", POOLED]
    assert found.value == pytest.approx(terms.mean(), rel=1e-9)
    assert found.stderr == pytest.approx(terms.std() / np.sqrt(len(r)), rel=1e-9)


@pytest.mark.thorough
def test_pooled_intervals_are_half_as_wide_at_the_same_coverage_and_methods_agree():
    covered, ratios, apart = {MEANS: 0, ADJUSTED: 0, POOLED: 0}, [], 0
    runs = 80
    for seed in range(runs):
        log, truth = simulated(1_000, [4, seed])
        test = cp.ab_test(log, **PARTS, propensity=POLICIES, shares=SHARES)
        adjusted = cp.ab_test(log, **PARTS, baseline=["x"])["new", ADJUSTED]
        for one in (*test.effects, adjusted):
            covered[one.method] += truth in one.interval
        ratios.append(test["new", POOLED].interval.width / test["new", MEANS].interval.width)
        apart += bool(test.disagreements)
    assert max(ratios) <= 0.5
    error = np.sqrt(0.95 * 0.05 / runs)
    for method, count in covered.items():
        assert count / runs >= 0.95 - 3 * error, method
    assert apart == 0


def test_wrong_probabilities_disagree_with_the_difference_in_means():
    log, _ = simulated(20_000, 5, agree=0.5, effect=1.0)
    swapped = cp.ab_test(log.with_columns(r=pl.col("r") + (pl.col("arm") == "new")), **PARTS, propensity=POLICIES)
    assert swapped.disagreements  # an effect of the arm itself, which no decision explains
    assert "Go by the difference in means" in repr(swapped)


def test_clusters_are_the_unit():
    random = np.random.default_rng(6)
    users = 400
    arm, level = random.random(users) < 0.5, random.normal(size=users)
    user = np.repeat(np.arange(users), 20)
    log = pl.DataFrame({"arm": arm[user], "user": user, "r": level[user] + random.normal(size=len(user))})
    means = log.group_by("user", maintain_order=True).agg(pl.col("r").mean(), pl.col("arm").first())
    a, b = (means.filter(pl.col("arm") == one)["r"].to_numpy() for one in (True, False))
    found = cp.ab_test(log, arm="arm", reward="r", cluster="user", shares={True: 0.5, False: 0.5})
    assert found["True"].stderr == pytest.approx(np.sqrt(a.var() / len(a) + b.var() / len(b)), rel=0.2)
    assert found["True"].stderr > 2 * cp.ab_test(log, arm="arm", reward="r")["True"].stderr
    assert found.sample_ratio.p > 0.01
    by_row = cp.ab_test(log, arm="arm", reward="r", shares={True: 0.5, False: 0.5})
    assert by_row.sample_ratio.p < found.sample_ratio.p


@pytest.mark.parametrize("clustered", [False, True])
def test_false_alarms_of_the_sample_ratio_are_as_rare_as_said(clustered):
    from counterpoise.evaluation.ab_test import sample_ratio

    random, runs = np.random.default_rng(7), 2_000
    sizes = random.poisson(10, size=(runs, 100)) if clustered else np.full((runs, 1), 2_000)
    p = []
    for own in sizes:
        rows = np.stack([own * (random.random(own.shape) < 0.3), own]) if clustered else None
        one = rows[0] if clustered else random.binomial(own, 0.3)
        both = {"a": one.astype(float), "b": (own - one).astype(float)}
        p.append(sample_ratio(both, {"a": 0.3, "b": 0.7}, is_clustered=clustered).p)
    error = np.sqrt(0.05 * 0.95 / runs)
    assert (
        0.05 - 6 * error <= np.mean(np.array(p) < 0.05) <= 0.05 + 4 * error
    )  # the exact test is a little conservative


def test_a_mismatch_is_said():
    log, _ = simulated(5_000, 8)
    found = cp.ab_test(log, **PARTS, shares={"new": 0.5, "old": 0.5})
    assert found.sample_ratio.is_mismatch
    assert "SAMPLE RATIO MISMATCH" in repr(found)
    assert "carry over" in repr(found)


def test_doubts_are_printed_once():
    user = np.repeat(np.arange(300), 10)
    log = {"arm": user % 2, "r": np.random.default_rng(0).normal(size=300)[user], "x": user / 300, "user_id": user}
    found = cp.ab_test(log, arm="arm", reward="r", baseline="x")
    (caveat,) = found["1"].verdict.caveats
    assert (caveat.code, len(found.effects)) == ("rows-move-together", 2)
    assert repr(found).count(str(found["1"].verdict)) == 1


@pytest.mark.thorough
@pytest.mark.parametrize(("effect", "adjusted"), [(0.5, False), (-0.7, False), (0.5, True), (-0.7, True)])
def test_shares_of_the_other_arm_are_covered(effect, adjusted):
    """The mean reward is 1 without the treatment, so that the effect is its own share."""
    level, runs, covered = 0.9, 300, 0
    for seed in range(runs):
        random = np.random.default_rng(seed)
        arm, x = random.integers(2, size=400), random.normal(size=400)
        log = pl.DataFrame({"arm": arm.astype(str), "r": 1 + effect * arm + x + random.normal(size=400), "x": x})
        test = cp.ab_test(log, arm="arm", reward="r", level=level, **({"baseline": ["x"]} if adjusted else {}))
        covered += effect in test.relative("1").interval
        assert test.relative("1").value == pytest.approx(test["1"].value / test.arm("0").mean)
    error = np.sqrt(level * (1 - level) / runs)
    assert level - 3 * error < covered / runs
    assert covered / runs < level + 3 * error or adjusted  # which is careful


def test_a_share_of_next_to_nothing_is_not_given():
    random = np.random.default_rng(0)
    log = {"arm": ["a", "b"] * 200, "r": random.normal(size=400)}
    assert cp.ab_test(log, arm="arm", reward="r").relative("b") is None


@pytest.mark.thorough
def test_decisions_allow_for_all_arms_and_say_nothing_of_a_mismatch():
    """Five arms like the control, at level 0.8: any of them is decided in at most a fifth of the tests."""
    level, runs, decided = 0.8, 150, 0
    for seed in range(runs):
        random = np.random.default_rng(seed)
        log = {"arm": random.integers(6, size=900).astype(str), "r": random.normal(size=900)}
        test = cp.ab_test(log, arm="arm", reward="r", level=level)
        decided += any(test.decision(arm) != "not decided" for arm in test.treatments)
        assert all(test.together(arm).interval.width > test[arm].interval.width for arm in test.treatments)
    assert decided / runs < 1 - level + 3 * np.sqrt(level * (1 - level) / runs)
    log = {"arm": ["a"] * 900 + ["b"] * 1100, "r": np.r_[np.zeros(900), np.ones(1100)]}
    for shares, decision in ((None, "better"), ({"a": 0.5, "b": 0.5}, "cannot say")):
        assert cp.ab_test(log, arm="arm", reward="r", shares=shares).decision("b") == decision


def test_several_arms_are_compared_two_by_two(tmp_path):
    log, _ = simulated(900, 9)
    third = log.with_columns(arm=pl.lit("third"), r=pl.col("r") + 1.0)[:300]
    whole = pl.concat([log, third])
    whole.write_parquet(tmp_path / "log.parquet")
    found = cp.ab_test(str(tmp_path / "log.parquet"), **PARTS)
    assert found.treatments == ("new", "third")
    assert found["new"].value == pytest.approx(cp.ab_test(log, **PARTS)["new"].value, rel=1e-12)
    assert found["new"].stderr == pytest.approx(cp.ab_test(log, **PARTS)["new"].stderr, rel=1e-9)
    assert found.table().height == 2


def test_arrays_and_databases_give_the_same():
    duckdb = pytest.importorskip("duckdb")
    log, _ = simulated(600, 10)
    expected = cp.ab_test(log, **PARTS, baseline=["x"], propensity=POLICIES)
    policies = {name: log[column].to_numpy() for name, column in POLICIES.items()}
    arrays = {name: log[name].to_numpy() for name in ("arm", "r", "x")}
    found = [
        cp.ab_test(
            arm=arrays["arm"], against="old", reward=arrays["r"], baseline={"x": arrays["x"]}, propensity=policies
        )
    ]
    with duckdb.connect() as connection:
        connection.register("tests", log.to_arrow())
        data = connection.sql("SELECT * FROM tests")
        found.append(cp.ab_test(data, **PARTS, baseline=["x"], propensity=POLICIES))
    for test in found:
        for one, other in zip(test.effects, expected.effects, strict=True):
            assert one.value == pytest.approx(other.value, rel=1e-9)
            assert one.stderr == pytest.approx(other.stderr, rel=1e-9)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"against": "older"}, "is not one of the arms"),
        ({"shares": {"new": 0.5}}, "one entry for each"),
        ({"propensity": {"new": "p_new", "other": "p_old"}}, "every arm"),
        ({"propensity": "p_new"}, "maps every arm"),
        ({"arm": "x"}, "2 to 20 arms"),
        ({"arm": "nothing"}, "no column"),
        ({"reward": ["r", "x"]}, "one reward"),
        ({"logger": "arm", "propensity": POLICIES}, "leave out logger="),
    ],
)
def test_bad_input_is_refused(change, says):
    log, _ = simulated(100, 11)
    with pytest.raises(cp.CounterpoiseError, match=says):
        cp.ab_test(log, **(PARTS | change))
