"""Rows that were sampled: the answer is that of a plain loop, adds up, and says what it is about."""

import math

import numpy as np
import plain
import polars as pl
import pytest
from messages import refuses

import counterpoise as cp
from counterpoise.errors import ColumnError, LogError, MomentsError, OptionError
from counterpoise.evaluation import wording
from counterpoise.evaluation.ranking import drivers, heaviest
from counterpoise.evaluation.reading import read

ASKED = {"reward": "r", "propensity": "p", "target": "t", "keep": "k"}


def a_log(n=6000, seed=0, *, low=0.1):
    """Every click, and some of the rest: fewer where action 1 was taken."""
    random = np.random.default_rng(seed)
    action, x = random.integers(0, 3, n), random.normal(size=n)
    reward = (random.random(n) < np.array([0.3, 0.1, 0.2])[action] + 0.1 * (x > 0)).astype(float)
    whole = pl.DataFrame(
        {
            "a": action, "x": x, "p": np.full(n, 1 / 3), "t": np.array([0.7, 0.2, 0.1])[action], "r": reward,
            "k": np.where(reward > 0, 1.0, np.array([1.0, 0.5, 0.75])[action] * 4 * low), "user": np.arange(n) // 3,
            "part": random.integers(0, 3, n), "q": 0.2 + 0.1 * (x > 0), "v": 0.25 + 0.1 * (x > 0),
        }
    )  # fmt: skip
    return whole.filter(pl.Series(random.random(n) < whole["k"].to_numpy())), whole


def beta_ips(log, **parts):
    return cp.evaluate(log, **ASKED | parts)["t", "beta_ips"]


@pytest.mark.parametrize("before", [None, 6000])
def test_values_errors_and_baselines_are_those_of_a_plain_loop(before):
    log, _ = a_log()
    value, stderr, beta = plain.sampled_beta_ips(plain.Rows.of(log["t"], log["p"], log["r"]), log["k"], before)
    found = beta_ips(log, rows_before=before)
    assert (found.value, found.stderr, found.baseline) == pytest.approx((value, stderr, beta), rel=1e-9)


def test_rows_that_were_all_kept_count_as_they_do_without_sampling():
    _, whole = a_log()
    plainly = cp.evaluate(whole, reward="r", propensity="p", target="t", segment="part")
    kept = cp.evaluate(whole, **ASKED | {"keep": 1, "segment": "part"})
    for key, one in plainly.estimates.items():
        other = kept.estimates[key]
        found = (other.value, other.stderr, *other.interval)
        assert found == pytest.approx((one.value, one.stderr, *one.interval), rel=1e-12)
    assert kept.verdict().verdict == plainly.verdict().verdict
    assert kept.diagnostics().carrying_rows == pytest.approx(plainly.diagnostics().carrying_rows, rel=1e-9)


def test_a_constant_probability_changes_nothing_but_the_number_of_rows_there_were():
    log, _ = a_log()
    plainly, kept = (cp.evaluate(log, **ASKED | {"keep": keep}) for keep in (None, 0.01))
    for key, one in plainly.estimates.items():
        other = kept.estimates[key]
        found = (other.value, other.stderr, *other.interval)
        assert found == pytest.approx((one.value, one.stderr, *one.interval), rel=1e-9)
    assert kept.rows_before == 100 * log.height
    assert plainly.rows_before is None


def test_the_truth_is_covered_where_ignoring_the_sampling_is_far_off():
    log, whole = a_log(200_000, 3)
    truth = float((whole["t"] / whole["p"] * whole["r"]).mean())
    assert truth in beta_ips(log).interval
    assert truth not in beta_ips(log, keep=None).interval
    assert truth not in beta_ips(log, keep=None, propensity="p * k").interval


@pytest.mark.thorough
def test_the_error_is_that_of_many_logs_and_knowing_the_rows_makes_it_smaller():
    """The Monte Carlo error of a standard deviation from m logs is 1/√(2m) of it."""
    runs, random = 400, np.random.default_rng(5)
    found = {None: [], 2000: []}
    errors = {None: [], 2000: []}
    for _ in range(runs):
        log, _ = a_log(2000, random.integers(2**32))
        for before in found:
            one = beta_ips(log, rows_before=before)
            found[before].append(one.value)
            errors[before].append(one.stderr)
    for before, values in found.items():
        ratio = np.sqrt(np.mean(np.square(errors[before]))) / np.std(values)
        assert abs(ratio - 1) < 4 / math.sqrt(2 * runs), before
    assert np.std(found[2000]) < 0.97 * np.std(found[None])


def test_a_state_adds_days_up_and_refuses_one_that_says_nothing_of_sampling(tmp_path):
    log, _ = a_log()
    state = tmp_path / "state.json"
    for day in (log[:1500], log[1500:]):
        found = cp.evaluate(day, **ASKED, rows_before=3000, state=state, batch=f"day {day.height}")
    whole = beta_ips(log, rows_before=6000)
    assert found.moments.rows_before == 6000
    assert found["t", "beta_ips"].value == pytest.approx(whole.value, rel=1e-9)
    again = cp.evaluate(state=state)
    assert again["t", "beta_ips"].stderr == pytest.approx(whole.stderr, rel=1e-9)
    with refuses(MomentsError):
        cp.evaluate(log, **ASKED | {"keep": None}, state=state, batch="another")
    more = cp.evaluate(log, **ASKED, state=state, batch="unknown")
    assert more.moments.rows_before is None


def test_another_day_may_have_another_share(tmp_path):
    log, _ = a_log()
    state = tmp_path / "state.json"
    for day, keep in ((log[:1500], 0.5), (log[1500:], 0.125)):
        found = cp.evaluate(day, **ASKED | {"keep": keep}, state=state, batch=str(keep))
    share = pl.when(pl.int_range(pl.len()) < 1500).then(0.5).otherwise(0.125)
    whole = beta_ips(log.with_columns(k=share))
    assert (found.value, found.stderr) == pytest.approx((whole.value, whole.stderr), rel=1e-9)


def test_moments_with_and_without_sampling_are_not_added():
    log, _ = a_log()
    with refuses(MomentsError):
        cp.evaluate(log, **ASKED).moments + cp.evaluate(log, **ASKED | {"keep": None}).moments


def test_parts_of_a_difference_add_up_and_have_the_errors_of_many_logs():
    log, _ = a_log()
    comparison = cp.compare(log, **ASKED, segment="part")
    parts = drivers(comparison)
    assert sum(part.contribution for part in parts) == pytest.approx(comparison.difference.value, rel=1e-9)
    assert sum(part.share_of_rows for part in parts) == pytest.approx(1.0)
    h, w, r = (1 / log["k"]).to_numpy(), (log["t"] / log["p"]).to_numpy(), log["r"].to_numpy()
    earned = (w - 1) * (r - comparison.difference.baseline)
    for part in parts:
        own = np.where(log["part"].to_numpy() == part.segment[0], earned, 0.0)
        mean = (h * own).sum() / h.sum()
        error = math.sqrt((np.square(h * (own - mean))).sum()) / h.sum()
        assert (part.contribution, part.stderr) == pytest.approx((mean, error), rel=1e-9)
    heavy = heaviest(comparison.asked(), target="t", baseline=comparison.difference.baseline, count=3)
    largest = np.sort(np.abs(h * earned / h.sum()))[::-1][:3]
    assert [abs(row.part) for row in heavy.rows] == pytest.approx(largest, rel=1e-9)


def test_effective_rows_are_those_of_the_weights_that_rows_have_after_sampling():
    log, _ = a_log()
    w = (log["t"] / log["p"] / log["k"]).to_numpy()
    found = cp.evaluate(log, **ASKED).diagnostics()
    assert found.effective_sample_size == pytest.approx(w.sum() ** 2 / (w @ w), rel=1e-9)
    assert found.effective_share == pytest.approx(found.effective_sample_size / log.height)


def test_a_number_of_rows_that_does_not_fit_is_a_caveat_and_no_control_variate():
    log, whole = a_log()
    fits, wrong = (cp.evaluate(log, **ASKED, rows_before=rows) for rows in (whole.height, 2 * whole.height))
    assert fits.verdict().verdict == "ok"
    assert [caveat.code for caveat in wrong.verdict().caveats] == ["rows-before-sampling"]
    assert wrong["t", "beta_ips"].value == beta_ips(log).value
    clustered = cp.evaluate(log, **ASKED, cluster="user", rows_before=whole.height)
    assert "rows-before-sampling" not in [caveat.code for caveat in clustered.verdict().caveats]
    dropped = log.with_columns(k=pl.when(pl.int_range(pl.len()) < 5).then(None).otherwise("k"))
    assert cp.evaluate(dropped, **ASKED, rows_before=9, drop_bad_rows=True).moments.rows_before is None


@pytest.mark.parametrize(
    ("column", "keep"),
    [("sample_rate", "k"), ("pdrop", "1 - k"), ("sample_weight", "1 / k"), ("sampling_probability", "k")],
)
def test_a_column_that_says_how_rows_were_sampled_is_asked_about(column, keep):
    log = a_log()[0].with_columns(pl.sql_expr(keep).alias(column)).drop("k", "user")
    plainly = ASKED | {"keep": None}
    caveats = {caveat.code: caveat for caveat in cp.evaluate(log, **plainly).verdict().caveats}
    assert column in caveats["sampling-not-named"].text
    proposed = str(caveats["sampling-not-named"].do).partition("keep='")[2].partition("'")[0]
    assert beta_ips(log, keep=proposed).value == pytest.approx(beta_ips(a_log()[0]).value, rel=1e-9)
    assert any(f"keep={proposed!r}" in str(finding.message) for finding in cp.doctor(log, **plainly).findings)
    for keep in (proposed, 1):
        assert "sampling-not-named" not in {
            one.code for one in cp.evaluate(log, **plainly | {"keep": keep}).verdict().caveats
        }


def test_other_columns_are_not_taken_for_sampling():
    _, log = a_log()
    odd = log.with_columns(weight=70.0 + 10 * pl.col("x"), keep=pl.lit("yes"), pdrop=0.0, sample_rate=1.0).drop(
        "k", "user"
    )
    assert cp.evaluate(odd, **ASKED | {"keep": None}).verdict().verdict == "ok"
    weighed = log.with_columns(weight=1.0 + pl.col("x").abs()).drop("k", "user")
    verdict = cp.evaluate(weighed, **ASKED | {"keep": None}).verdict()
    assert verdict.verdict == "ok"  # a weight may be anything: a note
    assert [caveat.code for caveat in verdict.caveats] == ["sampling-not-named"]
    assert not cp.evaluate(weighed, **ASKED | {"keep": None, "context": ["weight"]}).verdict().caveats


def test_what_is_said_of_the_log_says_of_how_many_rows_it_is_a_sample(tmp_path):
    log, _ = a_log()
    result = cp.evaluate(log, **ASKED)
    about = f"{log.height:,} visits, sampled from about {float(f'{result.rows_before:.3g}'):,.0f}"
    assert about in str(wording.asked(read(result.with_unit("visit"))))
    page = result.report(tmp_path / "report.html", unit="visit").read_text()
    assert about in page
    assert result.document()["rows_before"] == result.rows_before == round((1 / log["k"]).sum())
    assert "rows_before" not in cp.evaluate(log, **ASKED | {"keep": None}).document()
    assert f"sampled from about {float(f'{result.rows_before:.3g}'):,.0f}" in str(
        cp.plan(log, difference=0.01, **ASKED)
    )


def test_the_doctor_looks_at_sampled_rows_as_often_as_they_count():
    log, _ = a_log(20_000)
    found = cp.doctor(log, **ASKED, action="a")
    assert found.reward.mean == pytest.approx(float((log["r"] / log["k"]).sum() / (1 / log["k"]).sum()))
    assert abs(found.overlap[0].diagnostics.mean_weight - 1) < 0.05
    assert found.audit is None
    assert [finding.severity for finding in found.findings] == ["note"]
    plainly = cp.doctor(log, **ASKED | {"keep": None}, action="a")
    assert any("weight" in finding.message for finding in plainly.findings if finding.severity != "note")
    assert cp.doctor(log, **ASKED | {"keep": "1.0 * k"}, action="a").reward == found.reward


def test_missing_actions_are_counted_as_rows_count():
    """Action 2 was left out of the log, and rows of the others were sampled by what they are."""
    random = np.random.default_rng(0)
    n = 40_000
    x = random.integers(0, 2, n)
    action = np.where(x == 0, random.integers(0, 2, n), 0)
    whole = pl.DataFrame(
        {
            "x": x,
            "a": action,
            "p": np.where(x == 0, 0.5, 1.0),
            "r": random.random(n) < 0.3,
            "k": np.where(x == 0, 0.1, 1.0),
        }
    )
    log = whole.filter(pl.Series(random.random(n) < whole["k"].to_numpy()))
    result = cp.evaluate(
        log, reward="r", propensity="p", action="a", context=["x"], target={"other": cp.Always(1)}, keep="k"
    )
    share = {caveat.code: caveat.numbers.get("share") for caveat in result.verdict().caveats}["missing-actions"]
    assert share == pytest.approx(float((x == 1).mean()), abs=0.02)  # of sampled rows, 91 %


def test_ids_are_looked_at_as_rows_count():
    """The rows of users who were all kept are alike; those of others, of whom each row stands for ten, are not, and they decide."""
    random = np.random.default_rng(1)
    user = np.repeat(np.arange(8000), 4)
    is_alike = user < 1000
    reward = np.where(is_alike, random.random(8000)[user] < 0.3, random.random(len(user)) < 0.3).astype(float)
    keep, target = np.where(is_alike, 1.0, 0.1), np.where(random.random(len(user)) < 0.5, 0.7, 0.3)
    whole = pl.DataFrame({"user_id": user, "r": reward, "p": np.full(len(user), 0.5), "t": target, "k": keep})
    log = whole.filter(pl.Series(random.random(len(user)) < keep))
    codes = [[one.code for one in cp.evaluate(log, **ASKED | {"keep": k}).verdict().caveats] for k in ("k", None)]
    assert "rows-move-together" not in codes[0]
    assert "rows-move-together" in codes[1]
    ratio = beta_ips(log, cluster="user_id").stderr / beta_ips(log).stderr
    assert ratio < 1.1


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"keep": 0}, "not a probability"),
        ({"keep": 1.5}, "not a probability"),
        ({"keep": True}, "must name a column"),
        ({"keep": None, "rows_before": 9}, "Pass keep="),
        ({"rows_before": 0.5}, "whole number"),
        ({"rows_before": 9, "where": "x > 0"}, "Leave out rows_before="),
        ({"interval": "log_smoothing"}, "student"),
        ({"interval": cp.intervals.Bernstein((0, 1), 10)}, "student"),
        ({"estimator": "cross_fit", "groups": 10}, "beta_ips"),
        ({"propensity": "model", "action": "a", "context": ["x"]}, "propensity model"),
        ({"propensity": {"A": "p", "B": "p"}, "logger": "part"}, "several policies"),
        ({"slate": "user", "position": "part", "propensity_of": "item_given_above"}, "log of rankings"),
    ],
)
def test_what_does_not_go_with_sampled_rows_is_refused_in_words(more, says):
    with pytest.raises(OptionError, match=says):
        cp.evaluate(a_log()[0], **ASKED | more)


def test_results_refuse_what_draws_or_bins_sampled_rows():
    result = cp.evaluate(a_log()[0], **ASKED)
    for ask in (result.check_coverage, result.sensitivity, result.with_tipping_points):
        with refuses(OptionError):
            ask()
    with refuses(OptionError):
        cp.plan(a_log()[0], difference=0.01, actions=3, **ASKED)


def test_probabilities_that_are_none_are_bad_rows():
    log, _ = a_log()
    for value in (0.0, 1.5, None, float("nan"), -0.1):
        bad = log.with_columns(k=pl.when(pl.int_range(pl.len()) == 7).then(value).otherwise("k"))
        with refuses(LogError):
            cp.evaluate(bad, **ASKED)
        dropped = cp.evaluate(bad, **ASKED, drop_bad_rows=True)
        without = beta_ips(log.filter(pl.int_range(pl.len()) != 7))
        assert dropped["t", "beta_ips"].value == pytest.approx(without.value, rel=1e-12)
    with refuses(ColumnError):
        cp.evaluate(log, **ASKED | {"keep": "kk"})


@pytest.mark.parametrize(
    "more",
    [
        {"weight": cp.weights.Clip(2)}, {"baseline": ["x"]}, {"model_reward": "q", "model_value": "v"}, {"control": {"x": 0.0}},
        {"interval": "anytime"}, {"interval": "jackknife"}, {"cluster": "user"}, {"reward": ["r", "x"]}, {"key": "user"},
        {"reward_bounds": (0, 1)}, {"segment": "part"},
    ],
)  # fmt: skip
def test_parts_that_go_with_sampled_rows_say_the_same_if_all_were_kept_alike(more):
    log, _ = a_log()
    plainly, kept = (cp.evaluate(log, **ASKED | more | {"keep": keep}) for keep in (None, 0.2))
    for key, one in plainly.estimates.items():
        if key[1] != "cross_fit":
            other = kept.estimates[key]
            expected = (one.value, one.stderr, *one.interval)
            assert (other.value, other.stderr, *other.interval) == pytest.approx(expected, rel=1e-6, abs=1e-9), key
    codes = [[caveat.code for caveat in result.verdict().caveats] for result in (plainly, kept)]
    assert codes[0] == codes[1]


@pytest.mark.parametrize("against", [None, "other"])
@pytest.mark.parametrize("more", [{"model_reward": "q", "model_value": ["v", "w"]}, {"baseline": ["x"]}])
def test_differences_of_sampled_rows_are_those_without_sampling_if_all_were_kept_alike(more, against):
    log = a_log()[0].with_columns(other=1.0 - pl.col("t"), w=pl.col("v") + 0.1)
    asked = ASKED | more | {"target": ["t", "other"]}
    plainly, kept = (cp.compare(log, **asked | {"keep": keep}, against=against) for keep in (None, 0.2))
    assert plainly.estimates.keys() == kept.estimates.keys()
    for key, one in plainly.estimates.items():
        found = (kept.estimates[key].value, kept.estimates[key].stderr)
        assert found == pytest.approx((one.value, one.stderr), rel=1e-6, abs=1e-9), key


def test_several_rewards_with_rows_of_their_own():
    log, _ = a_log()
    holes = log.with_columns(s=pl.when(pl.int_range(pl.len()) % 7 == 3).then(None).otherwise(pl.col("r") + pl.col("x")))
    both = cp.evaluate(holes, **ASKED | {"reward": ["r", "s"]}, drop_bad_rows=True)
    for reward in ("r", "s"):
        alone = beta_ips(holes, reward=reward, drop_bad_rows=True)
        found = both.of(reward)["t", "beta_ips"]
        assert (found.value, found.stderr) == pytest.approx((alone.value, alone.stderr), rel=1e-9)


def test_targets_that_python_computes():
    log, _ = a_log()
    always = cp.evaluate(log, **ASKED | {"target": cp.Always(0), "action": "a"})
    column = cp.evaluate(log.with_columns(t=(pl.col("a") == 0).cast(float)), **ASKED)
    one, other = next(iter(always.estimates.values())), next(iter(column.estimates.values()))
    assert (one.value, one.stderr) == pytest.approx((other.value, other.stderr), rel=1e-9)


def test_arrays_have_probabilities_of_their_own():
    log, _ = a_log()
    arrays = {part: log[column].to_numpy() for part, column in {**ASKED}.items()}
    found = cp.evaluate(**arrays)
    assert found.estimates["target", "beta_ips", None].value == pytest.approx(beta_ips(log).value, rel=1e-12)
    named = cp.evaluate(**arrays | {"keep": 0.5})
    assert named.rows_before == 2 * log.height


def test_sql_and_its_sums_are_the_same():
    duckdb = pytest.importorskip("duckdb")
    pytest.importorskip("ibis")
    log, _ = a_log()
    statement = cp.sql(table="log", dialect="duckdb", **ASKED)
    with duckdb.connect() as connection:
        connection.register("log", log.to_arrow())
        sums = connection.sql(statement).pl()
    for before in (None, 6000):
        found = cp.evaluate(cp.from_sums(sums, table="log", rows_before=before, **ASKED))["t", "beta_ips"]
        own = beta_ips(log, rows_before=before)
        assert (found.value, found.stderr) == pytest.approx((own.value, own.stderr), rel=1e-9)
