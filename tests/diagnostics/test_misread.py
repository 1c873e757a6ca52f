"""The doctor reads a column of percentages, logarithms, complements, odds or inverses as what it is, and right ones as right."""

import numpy as np
import polars as pl
import pytest

import counterpoise as cp

OLD, NEW = np.array([0.45, 0.3, 0.2, 0.05]), np.array([0.1, 0.2, 0.3, 0.4])
WRITTEN = {
    "p / 100": lambda p: 100 * p,
    "exp(p)": np.log,
    "1 - p": lambda p: 1 - p,
    "p / (1 + p)": lambda p: p / (1 - p),
    "1 / p": lambda p: 1 / p,
}


def a_log(written=lambda p: p, n=5000, seed=0, **more):
    g = np.random.default_rng(seed)
    action = g.choice(4, n, p=OLD)
    return pl.DataFrame(
        {
            "reward": g.integers(0, 2, n),
            "p": written(OLD[action]),
            "pi_new": NEW[action],
            "action": action,
            "noise": g.random(n),
        }
    ).with_columns(**more)


def findings(log, **options):
    found = cp.doctor(log, **options).findings
    return [one for one in found if "seems to hold" in one.message or "their range" in one.message]


@pytest.mark.parametrize("expression", WRITTEN)
def test_the_doctor_says_the_expression_that_mends_them(expression):
    log = a_log(WRITTEN[expression])
    (one,) = findings(log)
    assert cp.doctor(log).findings[0] == one
    assert one.severity == "fix"
    assert f"propensity={expression!r}" in one.message
    action = log["action"].to_numpy()
    assert f"with {expression}, the mean weight of pi_new is {(NEW / OLD)[action].mean():.3f} ±" in one.message
    mended = cp.evaluate(log, reward="reward", propensity=expression, target="pi_new")
    right = cp.evaluate(a_log(), reward="reward", propensity="p", target="pi_new")
    assert mended["pi_new", "ips"].value == pytest.approx(right["pi_new", "ips"].value, rel=1e-12)


@pytest.mark.parametrize("expression", ["p / 100", "exp(p)", "1 / p", "p / (1 + p)"])
def test_without_a_target_the_number_of_actions_tells(expression):
    (one,) = findings(a_log(WRITTEN[expression]).drop("pi_new"))
    assert f"propensity={expression!r}" in one.message
    assert "number of actions" in one.message


def test_without_anything_to_go_by_the_range_tells():
    (one,) = findings(a_log(np.log).drop("pi_new", "action"))
    assert "propensity='exp(p)'" in one.message
    (one,) = findings(a_log(lambda p: 1 / p).drop("pi_new", "action"))  # all at least 1
    assert all(f"propensity={made!r}" in one.message for made in ("p / 100", "p / (1 + p)", "1 / p"))


@pytest.mark.once
@pytest.mark.parametrize("seed", range(5))
def test_right_propensities_are_left_alone(seed):
    assert not findings(a_log(seed=seed))
    assert not findings(a_log(seed=seed, n=50))
    assert not findings(a_log(seed=seed).drop("pi_new"))


def test_what_no_reading_mends_is_left_alone():
    g = np.random.default_rng(1)
    assert not findings(a_log(lambda p: g.random(len(p))))
    few = a_log().with_columns(p=pl.when(pl.int_range(pl.len()) < 60).then(0.0).otherwise("p"))
    assert not findings(few)  # zeros for “unknown”, and the rest is right
    assert not findings(few.drop("pi_new", "action"))


def test_names_that_need_quotes_have_them():
    log = a_log(WRITTEN["p / 100"]).rename({"p": "chance of it"})
    (one,) = findings(log, propensity="chance of it")
    assert "propensity='\"chance of it\" / 100'" in one.message
    mended = cp.evaluate(log, reward="reward", propensity='"chance of it" / 100', target="pi_new")
    assert mended.n == 5000


def test_a_propensity_that_was_never_logged_can_be_estimated():
    said = [one.message for one in cp.doctor(a_log().drop("p")).findings if one.about == "propensity"]
    assert "cp.models.Propensity(" in said[0]


# -- continuous actions, whose densities may be above 1 ----------------------------------------------------------------


def prices(n=4000, seed=0, spread=0.2):
    """A price drawn around a mean that depends on the context; the target charges 0.1 more. Sales fall with the price."""
    g = np.random.default_rng(seed)
    x = g.normal(size=n)
    price = g.normal(1 + 0.3 * x, spread)

    def density(mean):
        return np.exp(-0.5 * ((price - mean) / spread) ** 2) / (spread * np.sqrt(2 * np.pi))

    bought = (g.random(n) < 1 / (1 + np.exp(2 * (price - 1)))).astype(float)
    return pl.DataFrame(
        {"x": x, "price": price, "bought": bought, "p": density(1 + 0.3 * x), "t": density(1.1 + 0.3 * x)}
    )


ASK = {"reward": "bought", "propensity": "p", "target": "t", "action": "price"}


def density_error(log, **parts):
    with pytest.raises(cp.CounterpoiseError) as error:
        cp.evaluate(log, **(ASK | parts))
    return str(error.value)


def test_densities_are_told_from_probabilities_by_actions_that_are_continuous():
    said = density_error(prices())
    assert "continuous" in said
    assert "propensity='p / 100'" in said
    assert "target={'t': 't / 100'}" in said
    (finding,) = [one for one in cp.doctor(prices(), **ASK).findings if "continuous" in one.message]
    assert finding.severity == "fix"
    assert not [
        one for one in cp.doctor(prices(), **ASK).findings if "seems to hold" in one.message or "range" in one.message
    ]


def test_densities_in_other_units_are_propensities():
    """What the error says to do, done: the ratio of two densities is the weight, whatever their unit."""
    biases = []
    for seed in range(40):
        log = prices(seed=seed)
        cured = cp.evaluate(log, reward="bought", action="price", propensity="p / 100", target={"t": "t / 100"})
        g = np.random.default_rng(1000)
        x = g.normal(size=200_000)
        truth = (1 / (1 + np.exp(2 * (g.normal(1.1 + 0.3 * x, 0.2) - 1)))).mean()
        estimate = cured["t", "beta_ips"]
        biases.append((estimate.value - truth) / estimate.stderr)
        weights = (log["t"] / log["p"]).to_numpy()
        assert cured["t", "ips"].value == pytest.approx((weights * log["bought"].to_numpy()).mean(), rel=1e-9)
    assert abs(np.mean(biases)) < 4 / np.sqrt(40)
    assert np.std(biases) < 1 + 4 / np.sqrt(2 * 40)
    # and where the densities are wrong, the mean weight still says so
    wrong = cp.evaluate(prices(), reward="bought", action="price", propensity="p / 100", target={"t": "t / 200"})
    assert wrong.verdict().verdict != "ok"


def test_policies_of_single_values_are_told_to_choose_among_groups():
    said = density_error(prices(), target={"one": cp.Always(1.0)})
    assert "continuous" in said
    assert "groups" in said
    # the cure: a few groups, and the logging policy's probability of the logged one
    from scipy import stats

    log = prices()
    cuts = np.array([-np.inf, 0.9, 1.1, np.inf])
    group = np.digitize(log["price"].to_numpy(), cuts[1:-1])
    upper, lower = (stats.norm.cdf(cuts[group + k], 1 + 0.3 * log["x"].to_numpy(), 0.2) for k in (1, 0))
    log = log.with_columns(group=pl.Series(group), chance=pl.Series(upper - lower))
    cured = cp.evaluate(log, reward="bought", propensity="chance", action="group", target={"low": cp.Always(0)})
    assert cured["low", "ips"].value == pytest.approx(
        ((group == 0) / (upper - lower) * log["bought"].to_numpy()).mean(), rel=1e-9
    )


@pytest.mark.parametrize("expression", ["p / 100", "1 / p"])
def test_other_readings_of_few_actions_are_not_called_densities(expression):
    for action in ("action", "score"):
        log = a_log(WRITTEN[expression]).with_columns(score=pl.col("action") / 7 + 0.1)
        with pytest.raises(cp.CounterpoiseError) as error:
            cp.evaluate(log, reward="reward", propensity="p", target="pi_new", action=action)
        assert "continuous" not in str(error.value)
        assert f"propensity={expression!r}" in str(error.value)
