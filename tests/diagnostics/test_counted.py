"""Propensities counted from simulated draws are named, with their bias; honest ones are not, however round they are."""

import duckdb
import numpy as np
import polars as pl
import pytest

import counterpoise as cp
from counterpoise.diagnostics.findings import counted_of

CODE = "counted-propensities"
ARMS = 6
RATES = np.linspace(0.3, 0.5, ARMS)
ASKED = {"reward": "r", "target": "t"}


def bandit_log(seed, n=40_000, draws=1000):
    """A log of Thompson sampling in 100 batches, with 6 % of uniform choice: its propensities, also as counts of so many draws."""
    g = np.random.default_rng(seed)
    views = g.integers(20, 60, (100, ARMS))
    clicks = g.binomial(views, RATES)
    sampled = cp.propensities.thompson_beta(1 + clicks, 1 + views - clicks)
    chances = np.repeat(0.94 * sampled + 0.06 / ARMS, n // 100, axis=0)
    action = (chances.cumsum(axis=1) > g.random(n)[:, None]).argmax(axis=1)
    p = chances[np.arange(n), action]
    log = pl.DataFrame(
        {
            "r": (g.random(n) < RATES[action]).astype(float),
            "p": p,
            "counted": g.binomial(draws, p) / draws,
            "t": 0.5 * (action == 1) + 0.5 * p,  # p is what the target keeps of the bandit
            "action": action,
        }
    )
    return log, 0.5 * RATES[1] + 0.5 * float((chances @ RATES).mean())


def about(answer):
    return [caveat for caveat in answer.verdict().caveats if caveat.code == CODE]


@pytest.mark.once
def test_counts_bias_ips_and_are_named_and_the_propensities_themselves_are_not():
    """Over 20 logs, with the same rows: counts add to the estimate what the caveat says, and one more draw takes it away."""
    right, wrong, corrected = "p", "counted", "(counted * 1000 + 1) / 1001"
    values = {right: [], wrong: [], corrected: []}
    truths, biases = [], []
    for seed in range(20):
        log, truth = bandit_log(seed)
        truths.append(truth)
        for propensity, found in values.items():
            rows = log.filter(pl.col("counted") > 0) if propensity == wrong else log  # zeros are refused
            result = cp.evaluate(rows, **ASKED, propensity=propensity)
            found.append(result["t", "ips"].value)
            assert not about(result) or propensity == wrong
            biases += [caveat.numbers["bias"] for caveat in about(result)]
    errors = np.subtract(values[right], truths)
    assert abs(errors.mean()) < 4 * errors.std() / 20**0.5
    assert len(biases) >= 16
    bias, left = (np.subtract(values[name], values[right]) for name in (wrong, corrected))
    assert bias.mean() > 5 * bias.std() / 20**0.5
    assert bias.mean() == pytest.approx(np.mean(biases), rel=0.3)
    assert abs(left.mean()) < 0.25 * bias.mean()


def test_how_much_it_matters_decides():
    log, _ = bandit_log(0)
    few = cp.evaluate(log.filter(pl.col("counted") > 0), **ASKED, propensity="counted")
    (caveat,) = about(few)
    assert (caveat.severity, few.verdict().verdict) == ("caution", "caution")
    assert "multiples of 1/1,000" in caveat.text
    assert "propensity='(counted * 1000 + 1) / 1001'" in str(caveat)
    log, _ = bandit_log(0, n=1_000, draws=100_000)
    many = cp.evaluate(log.filter(pl.col("counted") > 0), **ASKED, propensity="counted")
    assert [caveat.severity for caveat in about(many)] in ([], ["note"])


def test_the_doctor_names_them_once_and_says_what_to_do():
    log, _ = bandit_log(1)
    log = log.filter(pl.col("counted") > 0)
    found = [one.message for one in cp.doctor(log, **ASKED, propensity="counted").findings]
    (message,) = [one for one in found if "simulated draws" in one]
    assert "cp.propensities.thompson_beta" in message
    assert not [one for one in found if one.startswith("'counted' is rounded")]
    assert not [one for one in cp.doctor(log, **ASKED, propensity="p").findings if "simulated" in one.message]


@pytest.mark.parametrize("source", ["arrays", "frame", "parquet", "csv", "duckdb", "float32"])
def test_they_are_named_wherever_the_rows_are(source, tmp_path):
    log = bandit_log(2)[0].filter(pl.col("counted") > 0)
    asked = ASKED | {"propensity": "counted"}
    connection = duckdb.connect()
    if source == "arrays":
        parts = {part: log[name].to_numpy() for part, name in asked.items()}
        assert about(cp.evaluate(**parts))
        return
    if source in ("parquet", "csv"):
        getattr(log, f"write_{source}")(tmp_path / f"log.{source}")
    data = {
        "frame": lambda: log,
        "duckdb": lambda: connection.from_arrow(log.to_arrow()),
        "float32": lambda: log.with_columns(pl.col("counted").cast(pl.Float32)),
    }.get(source, lambda: tmp_path / f"log.{source}")()
    assert about(cp.evaluate(data, **asked))
    assert about(cp.compare(data, **asked))


def test_a_lazy_frame_is_read_again_only_if_its_mean_weight_is_far_from_1():
    log = bandit_log(2)[0].filter(pl.col("counted") > 0).lazy()
    asked = ASKED | {"propensity": "counted"}
    assert not about(cp.evaluate(log, **asked))
    assert about(cp.evaluate(log.with_columns(pl.col("t") / 2), **asked))


HONEST = {
    "one value": np.full(500, 0.1),
    "ε-greedy": np.tile([0.91, 0.01], 250),
    "tenths": np.arange(1, 11) / 10,
    "of lists of 2 to 40": 1 / np.arange(2, 41),
    "ε-greedy on lists of 2 to 12": np.concatenate([0.1 / np.arange(2, 13), 0.9 + 0.1 / np.arange(2, 13)]),
    "softmax": np.random.default_rng(0).dirichlet(np.ones(10), 1000).ravel(),
    "three decimals, none of them small": np.round(np.random.default_rng(1).uniform(0.02, 0.9, 5000), 3),
    "four decimals, none of them small": np.round(np.random.default_rng(1).uniform(0.01, 0.9, 5000), 4),
    "tiny": np.random.default_rng(2).uniform(1e-9, 1e-8, 1000),
}


@pytest.mark.parametrize("case", HONEST)
def test_round_propensities_are_no_counts(case):
    assert counted_of(HONEST[case]) is None


@pytest.mark.parametrize("draws", [50, 100, 256, 999, 1000, 5000, 10_000, 100_000])
def test_the_number_of_draws_is_found(draws):
    g = np.random.default_rng(draws)
    p = g.binomial(draws, g.beta(0.5, 5, 20_000)) / draws
    counted = counted_of(p)
    assert counted.draws == draws
    assert counted_of(p.astype(np.float32).astype(float)).draws == draws


def test_one_more_draw_gives_the_mean_of_the_weights():
    """E[(m + 1)/(C + 1)] = (1 − (1 − p)^(m + 1))/p for C ~ Binomial(m, p), by its sum."""
    from scipy import stats

    for m, p in ((20, 0.3), (1000, 0.01), (50, 0.001)):
        count = np.arange(m + 1)
        mean = (stats.binom.pmf(count, m, p) * (m + 1) / (count + 1)).sum()
        assert mean == pytest.approx((1 - (1 - p) ** (m + 1)) / p, rel=1e-10)
