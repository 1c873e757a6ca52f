"""`counterpoise doctor`: every planted fault is found, and a good log has none."""

import json
import re

import numpy as np
import polars as pl
import pytest
from command_line import invoke, shop
from messages import refuses

import counterpoise as cp
from counterpoise.evaluation.doctor import doctor as examine


def noisy(n=3000, seed=0):
    """A log whose propensities take many values: softmax over five actions."""
    random = np.random.default_rng(seed)
    mass = np.exp(random.normal(size=(n, 5)) * 1.5)
    mass /= mass.sum(axis=1, keepdims=True)
    action = (random.random((n, 1)) > mass.cumsum(axis=1)).sum(axis=1).clip(max=4)
    return pl.DataFrame(
        {
            "click": random.integers(0, 2, n),
            "p": mass[np.arange(n), action],
            "pi_new": np.full(n, 0.2),
            "action": action,
        }
    )


def messages(frame, **options):
    return [(one.severity, one.message) for one in examine(frame, **options).findings]


def test_a_good_log_has_nothing_to_fix():
    assert messages(shop(8000)) == []
    assert messages(noisy(30_000)) == []


FAULTS = {
    "propensity of 0": (pl.when(pl.int_range(pl.len()) < 7).then(0.0).otherwise("p").alias("p"), "fix", "(0, 1]: 7 rows"),
    "percentages": ((100 * pl.col("p")).alias("p"), "fix", "propensity 'p' must lie in (0, 1]"),
    "always 1": (pl.lit(1.0).alias("p"), "fix", "'p' is always 1"),
    "rounded": (pl.col("p").round(2).clip(lower_bound=0.01).alias("p"), "look", "'p' is rounded to 2 decimals"),
    "a default": (
        pl.when(pl.int_range(pl.len()) % 10 < 7).then(0.2).otherwise("p").alias("p"), "look", "of 'p' is 0.2, and the rest varies",
    ),
    "too small": ((pl.col("p") / 2).alias("p"), "look", "the mean of 1/p is"),
    "mean weight": ((pl.col("p") / 2).alias("p"), "look", "should be 1 (p = 6.2e-08): the propensities or target probabilities are wrong"),
    "no reward yet": (
        pl.when(pl.int_range(pl.len()) < 5).then(None).otherwise("click").alias("click"), "fix", "'click' must be a finite number: in 5",
    ),
    "constant reward": (pl.lit(1.0).alias("click"), "look", "'click' is 1 in every row"),
    "text": (pl.col("p").cast(pl.String).alias("p"), "fix", "'p' holds String, not numbers"),
    "log-probabilities": (pl.col("pi_new").log().alias("pi_new"), "fix", "target 'pi_new' must lie in [0, 1]: 3,000 rows do not"),
    "no overlap": (pl.lit(0.0).alias("pi_new"), "fix", "pi_new: No row has a positive weight"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_every_planted_fault_is_found(name):
    change, severity, words = FAULTS[name]
    found = messages(noisy().with_columns(change))
    assert any(severity == one and words in message for one, message in found), found


def rare(n=10_000, seed=0):
    """A log of 1,000 actions, most of them rare: many have not come up."""
    random, mass = np.random.default_rng(seed), 1 / np.arange(1, 1001)
    mass /= mass.sum()
    action = random.choice(1000, n, p=mass)
    columns = {"click": random.integers(0, 2, n), "p": mass[action], "pi_new": mass[action], "action": action}
    return pl.DataFrame(columns)


@pytest.mark.thorough
@pytest.mark.once
def test_actions_that_have_not_come_up_yet_are_no_fault_of_the_propensities():
    """The doctor doubts at 3.3 errors: of 30 correct logs hardly one (30 × 0.001) is to be doubted."""
    doubted = 0
    for seed in range(30):
        log = rare(3000, seed)
        assert log["action"].n_unique() < 900
        doubted += bool(messages(log))
    assert doubted <= 1
    for wrong in (0.3, 1e-5):  # too small by so much; the rarer the action, the less it would come up
        found = messages(rare().with_columns(p=pl.col("p") * wrong))
        assert any("propensities are too small" in message for _, message in found), found
    found = messages(rare().with_columns(p=(pl.col("p") * 3).clip(upper_bound=1.0)))
    assert any("propensities are too large" in message for _, message in found), found


def test_a_log_of_bad_rows_alone_is_explained_once():
    found = messages(noisy().with_columns(p=100 * pl.col("p") + 1, pi_old=0.2, pi_third=0.3))
    assert found[0][1].startswith("propensity 'p' must lie in (0, 1]: 3,000 rows do not")
    assert found[1][1].startswith("every row is invalid, so there are no diagnostics of pi_new, pi_old")
    assert len(found) == 2


def test_what_must_be_fixed_comes_first():
    frame = noisy().with_columns(click=pl.lit(1.0), p=pl.when(pl.int_range(pl.len()) < 7).then(0.0).otherwise("p"))
    severities = [severity for severity, _ in messages(frame)]
    assert severities[0] == "fix"
    assert severities == sorted(severities)


def test_repeated_rows_are_odd_only_where_rows_can_be_told_apart():
    frame = shop(1000).with_row_index("request")
    twice = pl.concat([frame, frame[:50]])
    assert any("50 of 1,050 rows repeat another row" in message for _, message in messages(twice))
    assert any("repeat the key request" in message for _, message in messages(twice, key=["request"]))
    assert examine(shop(1000).drop("user_id")).duplicates > 900  # a few coarse columns repeat by chance
    assert messages(shop(1000).drop("user_id")) == []


def test_checks_of_propensities_are_those_of_numpy():
    frame = noisy()
    p, seen = frame["p"].to_numpy(), examine(frame).propensity
    assert (seen.lowest, seen.median, seen.highest) == pytest.approx((p.min(), np.median(p), p.max()))
    assert seen.mean_inverse == pytest.approx((1 / p).mean())
    assert seen.mean_inverse_stderr == pytest.approx((1 / p).std(ddof=1) / np.sqrt(len(p)))
    assert (seen.distinct, seen.repeated_share) == (3000, 0.0)
    half = examine(shop(100)).propensity
    assert (half.distinct, half.decimals, half.commonest, half.commonest_share) == (1, 1, 0.5, 1.0)


def test_the_command_shows_columns_checks_and_what_to_do(tmp_path):
    path = tmp_path / "log.csv"
    noisy().with_columns(p=pl.when(pl.int_range(pl.len()) < 7).then(0.0).otherwise("p")).write_csv(path)
    found = invoke("doctor", path)
    assert found.exit_code == 0
    for words in (
        "3,000 rows, 4 columns",
        "click",
        "propensity: rounding",
        "mean weight",
        "1. fix: propensity 'p' must lie in (0, 1]: 7 rows do not",
    ):
        assert words in found.stdout
    document = json.loads(invoke("doctor", path, "--json").stdout, parse_constant=pytest.fail)
    assert document["rows"] == 3000
    assert document["findings"][0]["severity"] == "fix"
    assert [one["part"] for one in document["columns"]] == ["reward", "propensity", "target", "action"]


def ranked(lists=400, slots=3, seed=0):
    """The slots of lists, every item with its chance given what stands above it."""
    random = np.random.default_rng(seed)
    rows = []
    for number in range(lists):
        items = random.permutation(6)[:slots]
        for k, item in enumerate(items):
            rows.append((number, k + 1, int(item), int(random.random() < 0.3), 1 / (6 - k), 1 / (6 - k)))
    names = ["request_id", "position", "item_id", "click", "p", "pi_new"]
    return pl.DataFrame(rows, schema=names, orient="row").sample(fraction=1.0, shuffle=True, seed=seed)


LISTS = {
    "both names": {},
    "another case": {"request_id": "SearchId", "position": "slotIndex"},
    "only the position": {"request_id": "x"},
    "only the list": {"position": "y"},
    "neither": {"request_id": "x", "position": "y"},
}


@pytest.mark.parametrize("name", LISTS)
def test_a_log_of_lists_is_noticed(name):
    log = ranked().rename(LISTS[name])
    found = [message for severity, message in messages(log) if severity == "look"]
    position, of = LISTS[name].get("position", "position"), LISTS[name].get("request_id", "request_id")
    assert any(
        f"'{position}' numbers the rows of each '{of}'" in one and "positions of 400 rankings" in one for one in found
    )
    from_zero = log.with_columns(pl.col(position) - 1, pl.col(of).cast(pl.String))
    assert any("positions of 400 rankings" in message for _, message in messages(from_zero))


def test_lists_of_several_lengths_are_noticed_by_a_name():
    log = ranked().filter((pl.col("position") == 1) | (pl.col("request_id") % 3 > 0))
    for names in ({}, {"request_id": "x"}, {"position": "y"}):
        assert any("look like the positions of" in message for _, message in messages(log.rename(names))), names
    cut = log.filter(pl.int_range(pl.len()) % 4 > 0)  # rows missing here and there: both names are needed
    assert any("look like the positions of" in message for _, message in messages(cut))


def test_rows_that_only_look_like_lists_are_no_lists():
    random, n = np.random.default_rng(1), 3000
    visits = noisy(n).with_columns(user=pl.Series(random.integers(0, 500, n)))
    visits = visits.with_columns(visit=pl.int_range(1, pl.len() + 1).over("user"))  # of users who come again
    coarse = noisy(n).with_columns(user=pl.Series(np.arange(n) // 2), device=pl.Series(random.integers(0, 2, n)))
    one_slot = ranked().filter(pl.col("position") == 1)
    for log in (visits, coarse, one_slot.drop("position"), shop(4000)):
        assert not any("list" in message for _, message in messages(log))


def test_positions_without_lists_are_worth_a_note():
    log = ranked().drop("request_id")
    assert [severity for severity, message in messages(log) if "looks like a position" in message] == ["note"]


def test_no_p_value_is_said_to_be_0(tmp_path):
    path = tmp_path / "log.csv"
    shop(2000).with_columns(pi_old=pl.lit(0.4)).write_csv(path)
    found = invoke("doctor", path, "--target", "pi_old").stdout
    assert re.search(r"^pi_old +2,000 .* 0\.800 +< 1e-12 ", found, flags=re.M)


def test_a_target_is_one_column_a_list_or_a_mapping():
    log = pl.DataFrame({"r": [1.0, 0.0] * 50, "p": [0.5] * 100, "i": [0.4, 0.6] * 50, "pi": [0.6, 0.4] * 50})
    parts = {"reward": "r", "propensity": "p"}
    expected = cp.doctor(log, **parts, target=["pi"])
    assert [one.target for one in expected.overlap] == ["pi"]
    assert cp.doctor(log, **parts, target="pi") == expected
    assert cp.doctor(log, **parts, target={"i": "pi"}) == expected
    for other in ([cp.Probabilities("i")], {"new": len}, np.ones(100)):
        with refuses(cp.OptionError):
            cp.doctor(log, **parts, target=other)


def test_a_target_that_takes_one_action_is_examined_as_evaluate_would(tmp_path):
    random = np.random.default_rng(0)
    shown, wanted = random.choice(["a", "b"], 2000), random.choice(["a", "b", "c"], 2000, p=[0.5, 0.3, 0.2])
    log = pl.DataFrame({"click": (random.random(2000) < 0.3) * 1.0, "p": 0.5, "shown": shown, "wanted": wanted})
    parts = {"reward": "click", "propensity": "p", "action": "shown"}
    for target, name in (
        (cp.Chosen("wanted"), "wanted"),
        ([cp.Chosen("wanted")], "wanted"),
        ({"greedy": cp.Chosen("wanted")}, "greedy"),
        (cp.Always("a"), "a"),
    ):
        (overlap,) = cp.doctor(log, **parts, target=target).overlap
        expected = cp.evaluate(log, **parts, target=target, estimator="beta_ips")
        assert overlap.target == name
        assert overlap.diagnostics == expected.diagnostics()
        assert overlap.verdict.verdict == expected.verdict().verdict
    examined = cp.doctor(log, **parts, target={"greedy": cp.Chosen("wanted")})
    assert any(finding.about == "greedy" and "never takes 'c'" in finding.message for finding in examined.findings)
    assert not any(finding.about == "target" for finding in examined.findings)
    bare = log.rename({"shown": "s"})
    with refuses(cp.OptionError):
        cp.doctor(bare, reward="click", propensity="p", target=cp.Chosen("wanted"))
    with refuses(cp.ColumnError):
        cp.doctor(log, **parts, target=cp.Chosen("wnated"))
    log.write_parquet(tmp_path / "log.parquet")
    typed = [
        "doctor",
        tmp_path / "log.parquet",
        "--action",
        "shown",
        "--target-action",
        "greedy=wanted",
        "--always",
        "a",
    ]
    assert [each["target"] for each in json.loads(invoke(*typed, "--json").stdout)["overlap"]] == ["greedy", "a"]


def test_unknown_columns_and_empty_logs_are_refused(tmp_path):
    path = tmp_path / "log.csv"
    shop(10).write_csv(path)
    found = invoke("doctor", path, "--reward", "clik")
    assert (found.exit_code, found.stderr.startswith("ColumnError: no column 'clik'; the log has 'click'")) == (2, True)
    assert "Did you mean 'click'?" in found.stderr
    shop(0).write_csv(path)
    assert invoke("doctor", path).exit_code == 2


def test_a_log_without_usual_names_is_told_what_is_missing(tmp_path):
    path = tmp_path / "log.csv"
    pl.DataFrame({"x": [1, 2], "y": [0.5, 0.5]}).write_csv(path)
    found = invoke("doctor", path)
    assert found.exit_code == 0
    assert "no column looks like the reward. Name it with --reward COLUMN." in found.stdout


@pytest.mark.parametrize(("kind", "meaning"), [("given", "item_given_above"), ("at", "item_at_position")])
def test_sums_tell_what_propensities_of_lists_are_of(kind, meaning):
    from counterpoise.environments import SyntheticRanking

    log = SyntheticRanking(6, items=8, seed=2).draw(5_000)
    log = log.select("list", "position", "click", propensity=f"p_{kind}", pi_new=f"new_{kind}")
    assert any(f"propensity_of is {meaning}" in one.message for one in examine(log).findings)


def test_lists_with_missing_and_repeated_positions_are_counted():
    from counterpoise.environments import SyntheticRanking

    log = SyntheticRanking(4).draw(400).select("list", "position", "click", propensity="p_given", pi_new="new_given")
    here = (pl.col("list") < 3) & (pl.col("position") == 2)
    broken = pl.concat([log.filter(~here), log.filter((pl.col("list") == 9) & (pl.col("position") == 1))])
    found = [one.message for one in examine(broken).findings]
    assert any(one.startswith("3 of the rankings") and "lack a position" in one for one in found)
    assert any(one.startswith("1 of the rankings") and "more than once" in one for one in found)
