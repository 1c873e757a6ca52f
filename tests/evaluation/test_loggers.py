"""Several loggers: balanced weights against plain loops, on every engine here, with days that add up and loggers that are named."""

import math

import numpy as np
import polars as pl
import pytest
from doubts import codes, numbers
from messages import refuses
from polars.testing import assert_frame_equal

import counterpoise as cp
from counterpoise.evaluation.audit import audit_of

PARTS = {"reward": "r", "propensity": {"a": "p_a", "b": "p_b"}, "logger": "who"}


def logged(n, share, seed, sharp=0.5):
    """Rows of two softmax-like loggers over three actions: b is the sharper, the nearer `sharp` is to 1."""
    random = np.random.default_rng(seed)
    a = random.dirichlet((3.0, 3.0, 3.0), n)
    b = (1 - sharp) * random.dirichlet((1.0, 1.0, 1.0), n) + sharp * np.eye(3)[0]
    t = random.dirichlet((1.0, 2.0, 2.0), n)
    who = np.where(random.random(n) < share, "a", "b")
    acted = np.where((who == "a")[:, None], a, b)
    action = (random.random(n)[:, None] > acted.cumsum(axis=1)).sum(axis=1).clip(0, 2)
    mean = np.array([0.2, 0.5, 0.8])
    at = np.arange(n), action
    columns = {"r": (random.random(n) < mean[action]) * 1.0, "who": who, "p_a": a[at], "p_b": b[at], "new": t[at]}
    return pl.DataFrame(columns), float((t * mean).sum(axis=1).mean())


def weights(log, shares):
    return (log["new"] / (shares["a"] * log["p_a"] + shares["b"] * log["p_b"])).to_numpy()


def test_the_weight_is_the_target_over_the_loggers_together():
    log, truth = logged(5_000, 0.7, 0)
    share = (log["who"] == "a").mean()
    w, r = weights(log, {"a": share, "b": 1 - share}), log["r"].to_numpy()
    found = cp.evaluate(log, **PARTS, target="new")
    assert found["new", "ips"].value == pytest.approx((w * r).mean(), rel=1e-12)
    beta = np.cov(w * r, w)[0, 1] / w.var(ddof=1)
    assert found["new", "beta_ips"].value == pytest.approx((w * r - beta * (w - 1)).mean(), rel=1e-10)
    assert truth in found["new", "beta_ips"].interval
    carried = w[(log["who"] == "a").to_numpy()].sum() / w.sum()
    assert numbers(found.verdict(), "carrying-logger")["weight_share"] == pytest.approx(carried, rel=1e-9)


def test_given_shares_are_used_as_they_are():
    log, _ = logged(500, 0.7, 1)
    found = cp.evaluate(log, **PARTS, shares={"a": 1, "b": 3}, target="new")
    expected = (weights(log, {"a": 0.25, "b": 0.75}) * log["r"].to_numpy()).mean()
    assert found["new", "ips"].value == pytest.approx(expected, rel=1e-12)


def test_names_may_be_odd_and_parts_may_be_arrays():
    log, _ = logged(2_000, 0.4, 2)
    odd = log.rename({"p_a": "P a"}).with_columns(country=pl.Series(["de", "fr"] * 1_000))
    parts = PARTS | {"propensity": {"a": "P a", "b": "p_b"}}
    found = [cp.evaluate(odd, **parts, target="new", segment="country")]
    named = {"a": log["p_a"].to_numpy(), "b": log["p_b"].to_numpy()}
    arrays = {"reward": log["r"].to_numpy(), "logger": log["who"].to_numpy(), "propensity": named}
    found.append(cp.evaluate(**arrays, target={"new": log["new"].to_numpy()}))
    for one in found[1:]:
        for key in one.estimates:
            assert one.estimates[key].value == pytest.approx(found[0].estimates[key].value, rel=1e-9, abs=1e-12)


def test_days_with_their_own_shares_add_up(tmp_path):
    days = [logged(800, share, seed)[0] for seed, share in ((3, 0.8), (4, 0.3))]
    for k, day in enumerate(days):
        found = cp.evaluate(day, **PARTS, target="new", state=tmp_path / "state", batch=f"{k}")
    parts = []
    for day in days:
        share = (day["who"] == "a").mean()
        parts.append(weights(day, {"a": share, "b": 1 - share}) * day["r"].to_numpy())
    assert found["new", "ips"].value == pytest.approx(np.concatenate(parts).mean(), rel=1e-12)
    again = cp.evaluate(state=tmp_path / "state")
    assert again["new", "ips"].value == found["new", "ips"].value
    assert "carrying-logger" in codes(again.verdict())


def test_segments_stay_those_that_were_asked_for():
    log, _ = logged(1_000, 0.5, 5)
    log = log.with_columns(country=pl.Series(["de", "fr"] * 500))
    found = cp.evaluate(log, **PARTS, target="new", segment="country")
    assert found.moments.segments == (("de",), ("fr",))
    share = (log["who"] == "a").mean()
    w = weights(log, {"a": share, "b": 1 - share})
    here = (log["country"] == "de").to_numpy()
    assert found["new", "ips", "de"].value == pytest.approx((w * log["r"].to_numpy())[here].mean(), rel=1e-12)


def test_the_table_has_naive_pooling_and_the_inverse_variance_mix():
    log, _ = logged(3_000, 0.5, 6)
    table = {row["how"]: row for row in cp.evaluate(log, **PARTS, target="new").loggers().to_dicts()}
    own = np.where(log["who"] == "a", log["p_a"], log["p_b"])
    w, r = log["new"].to_numpy() / own, log["r"].to_numpy()

    def beta_ips(w, r):
        beta = np.cov(w * r, w)[0, 1] / w.var(ddof=1)
        terms = w * r - beta * (w - 1)
        return terms.mean(), terms.std() / np.sqrt(len(w))

    assert table["naive pooling"]["value"] == pytest.approx(beta_ips(w, r)[0], rel=1e-9)
    each = [beta_ips(w[log["who"] == name], r[log["who"] == name]) for name in "ab"]
    mass = sum(error**-2 for _, error in each)
    assert table["inverse variance"]["value"] == pytest.approx(sum(v * e**-2 for v, e in each) / mass, rel=1e-9)
    assert table["a alone"]["weight_share"] + table["b alone"]["weight_share"] == pytest.approx(1.0)


@pytest.mark.thorough
@pytest.mark.once
def test_balanced_weights_never_lose_to_naive_pooling_and_survive_a_nearly_deterministic_logger():
    rmse = []
    for sharp in (0.0, 0.5, 0.99):
        misses = []
        for seed in range(30):
            log, truth = logged(400, 0.6, [seed, int(100 * sharp)], sharp)
            shares = {"a": float((log["who"] == "a").mean())}
            shares["b"] = 1 - shares["a"]
            own = np.where(log["who"] == "a", log["p_a"], log["p_b"])
            naive = (log["new"].to_numpy() / own * log["r"].to_numpy()).mean()
            misses.append((cp.evaluate(log, **PARTS, target="new")["new", "ips"].value - truth, naive - truth))
        rmse.append(np.sqrt(np.square(misses).mean(axis=0)))
    assert all(
        balanced <= 1.1 * naive for balanced, naive in rmse
    )  # 30 runs tell errors apart to a tenth or so, as both see the same rows
    assert rmse[-1][1] > 2 * rmse[-1][0]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"logger": None}, "each row's logger with logger="),
        ({"propensity": {"a": "p_a", "c": "p_b"}}, "written by 'b'"),
        ({"propensity": {"a": "p_a", "b": "p_b", "c": "p_b"}}, "no row was written by 'c'"),
        ({"propensity": {"a": "p_a"}}, "two or more"),
        ({"propensity": "p_a"}, "several loggers"),
        ({"shares": {"a": 0.5}}, "one entry for each"),
        ({"shares": {"a": 0.5, "b": -1}}, "positive"),
        ({"segment": "who"}, "is the logger"),
        ({"weight": cp.weights.Clip(10)}, "balanced weight"),
    ],
)
def test_bad_input_is_refused(change, says):
    log, _ = logged(100, 0.5, 7)
    with pytest.raises(cp.CounterpoiseError, match=says):
        cp.evaluate(log, **(PARTS | change), target="new")


def test_impossible_probabilities_of_any_logger_are_bad_rows():
    log, _ = logged(200, 0.5, 8)
    bad = pl.concat([log, log[:1].with_columns(p_b=1.5), log[:1].with_columns(p_a=0.0, p_b=0.0)])
    with refuses(cp.LogError):
        cp.evaluate(bad, **PARTS, target="new")
    found = cp.evaluate(bad, **PARTS, target="new", drop_bad_rows=True)
    assert found.dropped_rows == 2
    assert found["new", "ips"].value == pytest.approx(cp.evaluate(log, **PARTS, target="new")["new", "ips"].value)


def test_other_verbs_take_such_a_log_or_say_why_not():
    log, _ = logged(400, 0.5, 9)
    alone = cp.evaluate(log, **PARTS, target="new")
    assert cp.sensitivity(log, **PARTS, target="new").bounds(1.0).value[0] == pytest.approx(alone["new", "snips"].value)
    assert cp.compare(log, **PARTS, target="new").value == pytest.approx(alone["new", "lift"].value)
    with refuses(cp.OptionError):
        cp.doctor(log, **PARTS)
    with refuses(cp.OptionError):
        cp.sql(table="logs", **PARTS, target="new", dialect="duckdb")


def test_a_statement_for_a_database_that_only_its_owner_reaches():
    duckdb = pytest.importorskip("duckdb")
    pytest.importorskip("ibis")
    log, _ = logged(300, 0.5, 10)
    shares = {"a": 0.5, "b": 0.5}
    statement = cp.sql(table="logs", **PARTS, shares=shares, target="new", dialect="duckdb")
    with duckdb.connect() as connection:
        connection.register("logs", log.to_arrow())
        sums = connection.sql(str(statement)).pl()
    found = cp.evaluate(cp.from_sums(sums, **PARTS, shares=shares, target="new"))
    assert found["new", "ips"].value == pytest.approx((weights(log, shares) * log["r"].to_numpy()).mean(), rel=1e-9)


@pytest.mark.parametrize(
    "propensity",
    [
        {"a": "p_a", "b": "model"},
        {"a": "p_a", "b": cp.models.Propensity()},
        cp.models.Propensity(column={"a": "p_a", "b": "p_b"}),
    ],
)
def test_propensities_of_several_loggers_are_not_estimated(propensity):
    log, _ = logged(100, 0.5, 7)
    with refuses(cp.OptionError):
        cp.evaluate(log, **(PARTS | {"propensity": propensity}), target="new")


def test_loggers_of_different_days_pass_the_audit_and_have_a_report(tmp_path):
    log, _ = logged(2_000, 0.5, 11, sharp=0.8)
    days = log.sort("who").with_columns(day=pl.col("who"))
    found = cp.evaluate(days, **PARTS, target="new", segment="day")
    w = (log["new"] / pl.Series(np.where(log["who"] == "a", log["p_a"], log["p_b"]))).to_numpy()
    checks = {one.part: one for one in audit_of(found.asked()).checks}
    for who in "ab":
        assert checks[who].mean == pytest.approx(w[(log["who"] == who).to_numpy()].mean())
    assert "If the propensities were wrong" in found.report(tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_reward_model_answers_for_several_loggers():
    log, _ = logged(600, 0.5, 12)
    rows = log.with_columns(item=pl.Series(["x", "y", "y"] * 200), best=pl.lit("y"), kind=pl.Series(["u", "v"] * 300))
    parts = PARTS | {"action": "item", "context": ["kind"], "target": {"new": cp.Chosen("best")}}
    found, plain = cp.evaluate(rows, **parts, model="ridge"), cp.evaluate(rows, **parts)
    assert found["new", "beta_ips"].value == pytest.approx(plain["new", "beta_ips"].value)
    assert math.isfinite(found["new", "dr"].value)
    assert_frame_equal(found.loggers(), plain.loggers(), rel_tol=1e-9)
