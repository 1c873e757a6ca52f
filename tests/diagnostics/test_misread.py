"""The doctor reads a column of percentages, logarithms, complements, odds or inverses as what it is, and right ones as right."""

import re

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


# -- ε in place of ε/K: where ε·K is about 1, 1 − p looks right, too --------------------------------------------------------


def explored(epsilon, actions, of_best=0.0, n=6000, seed=0):
    """A log whose policy takes its favorite, and with probability ε any action, for which it writes ε; targets are uniform and better."""
    g = np.random.default_rng(seed)
    rate = g.beta(2, 5, (actions, actions))
    at = np.arange(actions)
    policy = np.full((actions, actions), epsilon / actions)
    policy[at, rate.argmax(axis=1)] += 1 - epsilon
    x = g.integers(actions, size=n)
    a = (g.random(n)[:, None] > policy.cumsum(axis=1)[x]).sum(axis=1).clip(max=actions - 1)
    best = rate.argmax(axis=1)[x] == a
    better = np.exp(4 * rate) / np.exp(4 * rate).sum(axis=1, keepdims=True)
    log = pl.DataFrame(
        {
            "x": x.astype(str),
            "action": a,
            "p": np.where(best, 1 - epsilon + of_best * epsilon / actions, epsilon),
            "uniform": np.full(n, 1 / actions),
            "better": better[x, a],
            "r": (g.random(n) < rate[x, a]) * 1.0,
        }
    )
    return log, {"uniform": rate.mean(), "better": (better * rate).sum() / actions}


SETTINGS = [(0.1, 10), (0.2, 5), (0.05, 20), (0.3, 3), (0.02, 50), (0.12, 9)]


@pytest.mark.parametrize(("epsilon", "actions"), SETTINGS)
@pytest.mark.parametrize("known", [(), ("action",), ("x",), ("action", "x")])
@pytest.mark.parametrize("target", ["uniform", "better"])
@pytest.mark.parametrize("of_best", [0.0, 1.0])
def test_epsilon_in_place_of_its_share_never_becomes_ok_with_a_wrong_answer(epsilon, actions, known, target, of_best):
    log, truth = explored(epsilon, actions, of_best)
    asked = {"reward": "r", "target": target} | ({"segment": "x"} if "x" in known else {})
    seen = log.select("r", "p", target, *known)
    said = " ".join(cp.evaluate(seen, **asked, propensity="p").verdict().reasons)
    said += " ".join(finding.message for finding in cp.doctor(seen, **asked, propensity="p").findings)
    for advice in {*re.findall(r"propensity='([^']*)'", said), "1 - p"}:
        result = cp.evaluate(seen, **asked, propensity=advice)
        lower, upper = result[target, "beta_ips"].interval
        width = upper - lower
        assert result.verdict().verdict != "ok" or lower - width < truth[target] < upper + width
        assert advice.startswith("CASE") or result.verdict().verdict == "caution"


@pytest.mark.parametrize(("of_best", "end"), [(0.0, "p + (1 - p) / 10 END"), (1.0, "p END")])
def test_where_actions_tell_epsilon_is_named_and_read_as_its_share(of_best, end):
    log, truth = explored(0.1, 10, of_best)
    asked = {"reward": "r", "target": "better", "action": "action"}
    (one,) = [x for x in cp.evaluate(log, **asked, propensity="p").verdict().caveats if "propensity=" in x.do]
    expression = f"CASE WHEN p < 0.5 THEN p / 10 ELSE {end}"
    assert repr(expression) in one.do
    mended = cp.evaluate(log, **asked, propensity=expression)
    assert mended.verdict().verdict == "ok"
    assert mended.value == pytest.approx(truth["better"], abs=4 * mended["better", "beta_ips"].stderr)


@pytest.mark.parametrize("source", [cp.Chosen("chosen"), cp.Always(1), "policy"])
def test_targets_of_every_kind_can_tell(source):
    class Policy:
        classes_ = np.arange(4)

        def predict_proba(self, contexts):
            return np.full((len(contexts), 4), 0.25)

    log = a_log(WRITTEN["1 - p"]).with_columns(chosen=pl.lit(1))
    asked = {"reward": "reward", "action": "action", "target": Policy() if source == "policy" else source}
    result = cp.evaluate(log, **asked, propensity="p", context="noise")
    assert any("propensity='1 - p'" in caveat.do for caveat in result.verdict().caveats)


def test_another_column_that_holds_the_propensities_is_named():
    g = np.random.default_rng(3)
    log = a_log().with_columns(of_best=pl.Series(g.choice([0.3, 0.45], 5000)))
    asked = {"reward": "reward", "target": "pi_new", "action": "action"}
    (one,) = [x for x in cp.evaluate(log, **asked, propensity="of_best").verdict().caveats if "propensity=" in x.do]
    assert "propensity='p'" in one.do
    assert "propensity='p'" in cp.doctor(log, **asked, propensity="of_best").findings[0].message


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
