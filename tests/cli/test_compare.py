"""`counterpoise compare`: corrected for many candidates, and what drives a difference."""

import json
import math
import re

import numpy as np
import polars as pl
import pytest
from command_line import invoke, shop

import counterpoise as cp
from counterpoise.diagnostics.diagnose import holm
from counterpoise.display import percent, signed
from counterpoise.evaluation.evaluate import rank
from counterpoise.evaluation.ranking import drivers


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.parquet"
    shop().with_columns(pi_bad=1 - pl.col("pi_new")).write_parquet(path)
    return path


def compare(log, **options):
    return cp.compare(log, reward="click", propensity="p", **options)


def test_candidates_are_ranked_with_their_decisions(log):
    found = json.loads(invoke("compare", log, "--against", "pi_old", "--json").stdout)
    assert [(one["target"], one["decision"]) for one in found["differences"]] == [
        ("pi_new", "better"),
        ("pi_bad", "worse"),
    ]
    for one in found["differences"]:
        assert one["corrected_lower"] < one["lower"] < one["difference"] < one["upper"] < one["corrected_upper"]


def test_one_candidate_needs_no_correction(log):
    (one,) = rank(compare(shop(), target="pi_new"))
    plain = compare(shop(), target="pi_new").interval
    assert (one.interval.lower, one.interval.upper) == pytest.approx((plain.lower, plain.upper), rel=1e-12)
    assert "all at once" not in invoke("compare", log, "--target", "pi_new").stdout


def test_text_says_the_difference_the_parts_and_the_verdict(log):
    typed = ("compare", log, "--target", "pi_new", "--against", "pi_old", "--segment", "country")
    change = compare(pl.read_parquet(log), target="pi_new", against="pi_old")
    size = signed(change.value, change.stderr)
    for found in (invoke(*typed), invoke(*typed, "--all")):
        assert found.exit_code == 0
        assert f"pi_new: {size} click per row (" in found.stdout
        assert "Better than pi_old. Verdict: ok." in found.stdout
        assert "(missing)" in found.stdout
    assert "What drives the difference of pi_new" in found.stdout


def test_the_headline_is_about_the_best_target_that_the_log_can_judge(log, tmp_path):
    path = tmp_path / "log.parquet"
    pl.read_parquet(log).with_columns(pi_blind=pl.col("pi_bad") / 10).write_parquet(path)
    asked = ["compare", path, "--target", "pi_blind", "--target", "pi_bad", "--rows", "1"]
    bad, blind = json.loads(invoke(*asked, "--json").stdout)["differences"]
    assert (bad["target"], blind["target"], blind["difference"]) == ("pi_bad", "pi_blind", None)
    found = invoke(*asked).stdout
    assert "\npi_bad, the only one of 2 that this log can evaluate: −" in found
    assert "what moves the difference of pi_bad" in found


def test_a_misspelt_rival_is_named_as_such(log):
    found = invoke("compare", log, "--target", "pi_new", "--against", "pi_odl")
    assert found.exit_code == 2
    assert "no column 'pi_odl' for against" in found.stderr
    assert found.stderr.endswith("Did you mean 'pi_old'? Pass --against pi_old.\n")
    assert invoke("compare", log, "--target", "pi_new", "--against", "0.5 * pi_old").exit_code == 0


def test_a_negative_difference_is_said_to_be_less(log):
    found = invoke("compare", log, "--target", "pi_bad").stdout
    change = compare(pl.read_parquet(log), target="pi_bad")
    assert re.search(rf"^pi_bad +{signed(change.value, change.stderr)}  ± ", found, flags=re.MULTILINE)
    assert "Worse than the logging policy" in found
    assert "etter" not in found


@pytest.mark.parametrize("cluster", [None, "user_id"])
def test_the_parts_add_up_to_the_difference(cluster):
    change = compare(shop(), target="pi_new", against="pi_old", segment="country", cluster=cluster)
    parts = drivers(change)
    assert sum(part.contribution for part in parts) == pytest.approx(change.value, rel=1e-10)
    assert sum(part.rows for part in parts) == change.n
    assert all(0 < part.stderr < 1 for part in parts)


@pytest.mark.parametrize("cluster", [None, "user_id"])
def test_a_parts_error_is_that_of_a_mean_over_all_rows(cluster):
    frame = shop(4000)
    change = compare(frame, target="pi_new", segment="country", cluster=cluster)
    part = next(part for part in drivers(change) if part.segment == ("DE",))
    u = (frame["pi_new"] / frame["p"] - 1).to_numpy()
    rows = u * (frame["click"].to_numpy() - change.baseline) * (frame["country"] == "DE").fill_null(False).to_numpy()
    assert part.contribution == pytest.approx(rows.mean(), rel=1e-9)
    tolerance = 1e-9 if cluster is None else 0.35  # groups of rows that are alike: an error with 99 degrees of freedom
    assert part.stderr == pytest.approx(rows.std() / math.sqrt(len(rows)), rel=tolerance)


def test_holm_rejects_as_the_stepwise_test_does():
    random = np.random.default_rng(0)
    for _ in range(200):
        p = random.random(6) ** 3
        rejected = set()
        for step, k in enumerate(np.argsort(p)):
            if p[k] > 0.05 / (6 - step):
                break
            rejected.add(int(k))
        assert {k for k, one in enumerate(holm(list(p))) if one <= 0.05} == rejected


@pytest.mark.thorough
@pytest.mark.once
def test_intervals_hold_together_and_few_logs_see_a_difference_that_is_none():
    """Four candidates as good as the logging policy: at level 0.8, every interval holds in 4 logs of 5 at least."""
    random, logs, n, level = np.random.default_rng(1), 300, 400, 0.8
    held = false = separate = 0
    for _ in range(logs):
        reward, log = random.normal(size=n), {"p": np.full(n, 0.5)}
        log |= {f"pi_{k}": random.choice([0.1, 0.9], n) for k in range(4)}
        change = cp.compare(
            {"r": reward, **log}, reward="r", propensity="p", target=[f"pi_{k}" for k in range(4)], level=level
        )
        ranked = rank(change)
        held += all(0.0 in one.interval for one in ranked)
        false += any(one.decision != "undecided" for one in ranked)
        separate += all(0.0 in change[one.target, "beta_ips"].interval for one in ranked)
    error = math.sqrt(level * (1 - level) / logs)
    assert held / logs > level - 3 * error
    assert false / logs < 1 - level + 3 * error
    assert separate / logs < 0.8**4 + 0.15  # uncorrected, they hold together in about 0.41 of the logs


def test_methods_other_than_normal_are_corrected_their_own_way():
    for method in ("jackknife", "anytime"):
        change = compare(shop(), target=["pi_new", "pi_old"], interval=method)
        wider = cp.compare(change.moments, interval=method, level=0.975)
        for one in rank(change):
            assert tuple(one.interval) == pytest.approx(tuple(wider[one.target, "beta_ips"].interval), abs=1e-12)


def test_what_the_log_does_not_tell_is_undecided_and_last(tmp_path):
    path = tmp_path / "log.parquet"
    shop(300).with_columns(pi_old=0.0).write_parquet(path)
    found = invoke("compare", path, "--json")
    assert [one["target"] for one in json.loads(found.stdout)["differences"]] == ["pi_new", "pi_old"]
    last = json.loads(found.stdout)["differences"][-1]
    assert (last["difference"], last["decision"], last["corrected_p"]) == (None, "undecided", 1.0)
    assert invoke("compare", path, "--strict").exit_code == 1


def test_many_segments_are_summed_up(tmp_path):
    path = tmp_path / "log.parquet"
    shop(1000).write_parquet(path)
    found = invoke("compare", path, "--target", "pi_new", "--segment", "user_id")
    assert "… and 246 more segments: " in found.stdout
    assert "240 others" in invoke("compare", path, "--target", "pi_new", "--segment", "user_id", "--all").stdout


def test_comparing_a_policy_with_itself_is_refused(log):
    found = invoke("compare", log, "--target", "pi_new", "--against", "pi_new")
    assert found.exit_code == 2
    assert "both 'pi_new'" in found.stderr


def test_the_heaviest_rows_are_those_of_a_plain_sort(tmp_path):
    frame = shop(1000).with_columns(p=pl.Series(np.random.default_rng(3).uniform(0.05, 1.0, 1000)))
    path = tmp_path / "log.parquet"
    frame.write_parquet(path)
    options = ["--target", "pi_new", "--against", "pi_old", "--where", "country = 'DE'", "--rows", "3"]
    document = json.loads(invoke("compare", path, *options, "--json").stdout)
    beta = compare(frame.filter(pl.col("country") == "DE"), target="pi_new", against="pi_old").baseline
    part = (pl.col("pi_new") - pl.col("pi_old")) / pl.col("p") * (pl.col("click") - beta)
    kept = frame.with_row_index().filter(pl.col("country") == "DE").with_columns(part=part / pl.len())
    expected = kept.sort(pl.col("part").abs(), descending=True)
    assert [one["row"] for one in document["heaviest"]["rows"]] == expected["index"][:3].to_list()
    assert [one["part"] for one in document["heaviest"]["rows"]] == pytest.approx(expected["part"][:3].to_list())
    first = len(kept) // 100
    share = expected["part"].abs()[:first].sum() / expected["part"].abs().sum()
    assert document["heaviest"]["top_share"] == pytest.approx(share)
    shown = invoke("compare", path, *options).stdout
    assert f"The {first} heaviest of {len(kept)} rows carry {percent(share)}" in shown.replace(" %", "\u00a0%")
