"""Actions that a target takes and the log never took: they are named, and bounds take the place of a point."""

import json
import math

import numpy as np
import polars as pl
import pytest

import counterpoise as cp
from counterpoise.evaluation import wording
from counterpoise.evaluation.plan import plan
from counterpoise.evaluation.reading import read
from counterpoise.evaluation.showing import evaluation
from counterpoise.moments import LogMoments

ACTIONS = np.array(["a", "b", "c", "d"])
RATES = np.array([0.2, 0.3, 0.25, 0.8])
CODES = {"missing-actions", "mean-weight-below-one"}


class Policy:
    """The target as an object: it takes d in Germany, or everywhere a little."""

    classes_ = ACTIONS

    def __init__(self, share, place):
        self.share, self.place = share, place

    def predict_proba(self, contexts):
        return target_of(contexts[:, 0] == "DE", self.share, self.place)


def target_of(is_german, share, place):
    share = np.where(is_german, 1.0, 0.0) if place else np.full(len(is_german), share)
    return np.column_stack([np.outer(1 - share, [0.4, 0.3, 0.3]), share])


def a_log(n=5000, share=0.06, place=False, lacks=True, seed=0):
    """A log that takes d nowhere, or (`place`) everywhere but in Germany; and what the target earns."""
    g = np.random.default_rng(seed)
    country = g.choice(["DE", "FR", "US", "GB"], n)
    logging = np.full((n, 4), 0.25)
    if lacks:
        logging[(country == "DE") | (not place)] = [0.4, 0.3, 0.3, 0.0]
    target = target_of(country == "DE", share, place)

    def pick(table):
        return (g.random(n)[:, None] > table.cumsum(axis=1)).sum(axis=1).clip(max=3)

    action = pick(logging)
    log = pl.DataFrame(
        {
            "r": (g.random(n) < RATES[action]) * 1.0,
            "p": logging[np.arange(n), action],
            "a": ACTIONS[action],
            "chosen": ACTIONS[pick(target)],
            "t": target[np.arange(n), action],
            "number": action,
            "pi": pl.Series(target).cast(pl.List(pl.Float64)),
            "country": country,
            "x": g.normal(size=n),
        }
    )
    share = 0.25 if place else share
    return log, float(share * 0.8 + (1 - share) * (RATES[:3] @ [0.4, 0.3, 0.3]))


PARTS = {"reward": "r", "propensity": "p", "action": "a", "context": "country"}


def targets(share=0.06, place=False):
    """The same target in every way that knows its actions, and the parts it needs."""
    return {
        "Chosen": (cp.Chosen("chosen"), PARTS),
        "Probabilities": (cp.Probabilities("pi"), PARTS | {"action": "number"}),
        "predict_proba": (Policy(share, place), PARTS),
    }


def evaluate(log, kind="Chosen", *, share=0.06, place=False, **options):
    target, parts = targets(share, place)[kind]
    return cp.evaluate(log, target={"new": target}, **parts, **options)


def caveat_of(result, *place):
    (found,) = [one for one in result.verdict("new", *place).caveats if one.code in CODES]
    return found


@pytest.mark.parametrize("kind", targets())
@pytest.mark.parametrize("place", [False, True], ids=["everywhere", "in Germany"])
def test_actions_that_the_log_never_took_leave_bounds_that_hold(kind, place):
    for seed in range(5):
        log, truth = a_log(place=place, seed=seed)
        result = evaluate(log, kind, place=place)
        caveat = caveat_of(result)
        assert (result.verdict().verdict, caveat.code) == ("caution", "missing-actions")
        assert caveat.numbers["share"] == pytest.approx(0.25 if place else 0.06, abs=0.02)
        assert "'d'" in caveat.text or "'3'" in caveat.text
        assert ("DE" in caveat.text) == place
        for name in ("ips", "snips", "beta_ips"):
            estimate = result["new", name]
            assert math.isnan(estimate.value)
            assert truth in estimate.interval
        assert (caveat.numbers["lower"], caveat.numbers["upper"]) == tuple(result["new", "beta_ips"].interval)
        logged = result.diagnostics().mean_reward
        assert truth - logged in result["new", "lift"].interval


def test_the_bounds_are_the_estimate_with_the_missing_part_at_either_end_of_the_rewards():
    log, _ = a_log(n=40_000)
    result = evaluate(log)
    seen = (log["a"] == log["chosen"]) / log["p"].to_numpy()
    m = (log["chosen"] == "d").mean()
    for rewards in ((0.0, 1.0), (-1.0, 3.0)):
        given = {} if rewards == (0.0, 1.0) else {"reward_bounds": rewards}
        lower, upper = evaluate(log, **given)["new", "ips"].interval
        known = (seen * log["r"]).mean()
        error = result["new", "ips"].stderr
        assert lower == pytest.approx(known + m * rewards[0], abs=2.2 * error + 0.01)
        assert upper == pytest.approx(known + m * rewards[1], abs=2.2 * error + 0.02)
        assert lower < known + m * rewards[0]
        assert upper > known + m * rewards[1]
    assert "reward_bounds=" in caveat_of(result).do
    assert "by reward_bounds=" in caveat_of(evaluate(log, reward_bounds=(0, 1))).text


@pytest.mark.once
@pytest.mark.parametrize("kind", targets())
def test_a_log_that_takes_every_action_is_not_doubted(kind):
    for seed in range(20):
        log, truth = a_log(lacks=False, seed=seed, n=2000)
        result = evaluate(log, kind)
        assert not result.verdict().caveats
        assert result["new", "beta_ips"].identified
        assert abs(result["new", "beta_ips"].value - truth) < 6 * result["new", "beta_ips"].stderr


@pytest.mark.once
def test_rare_actions_that_have_not_come_up_are_not_missing():
    """Three hundred actions, most of them logged a few times in a hundred thousand: whether they come up is luck."""
    g = np.random.default_rng(0)
    shares = 1.0 / np.arange(1, 301) ** 1.3
    shares /= shares.sum()
    for _ in range(20):
        action, chosen = g.choice(300, 3000, p=shares), g.choice(300, 3000, p=shares)
        log = {"r": g.random(3000), "p": shares[action], "a": action, "chosen": chosen}
        result = cp.evaluate(log, reward="r", propensity="p", action="a", target=cp.Chosen("chosen"))
        assert "missing-actions" not in {one.code for one in result.verdict().caveats}


def test_segments_have_bounds_of_their_own():
    log, _ = a_log(place=True)
    result = evaluate(log, segment="country")
    assert result.verdict("new", "FR").verdict == "ok"
    assert result["new", "beta_ips", "FR"].identified
    assert result.verdict("new", "DE").verdict == "not identified"
    assert caveat_of(result, "DE").numbers["share"] == 1.0
    assert evaluate(a_log()[0], segment="country").verdict("new", "FR").verdict == "caution"


def test_a_column_of_probabilities_shows_it_by_its_mean_weight_and_has_both_readings():
    log, truth = a_log(share=0.3)
    result = cp.evaluate(log, reward="r", propensity="p", target={"new": "t"})
    caveat = caveat_of(result)
    assert caveat.code == "mean-weight-below-one"
    assert "propensities too large" in caveat.text
    assert "lacks actions" in caveat.text
    assert caveat.numbers["share_upper"] > 0.3 > caveat.numbers["share"] - 0.03
    for estimate in (result["new", name] for name in ("ips", "snips", "beta_ips")):
        assert estimate.identified
        assert truth in estimate.interval
        assert estimate.value in estimate.interval


def test_differences_have_bounds_too():
    log, truth = a_log(share=0.2)
    named = {"target": {"new": cp.Chosen("chosen")}, **PARTS}
    result = cp.compare(log, **named)
    assert truth - float(log["r"].mean()) in result.interval
    assert math.isnan(result.value)
    (ranked,) = cp.rank(result)
    assert (ranked.decision, ranked.p) == ("undecided", 1.0)
    assert tuple(ranked.interval) == pytest.approx(tuple(result.interval))
    same = cp.compare(log, target={"new": cp.Chosen("chosen")}, against="t", **PARTS)
    assert same.interval.lower < 0 < same.interval.upper
    other = cp.compare(log, target={"old": "p"}, against=cp.Chosen("chosen"), **PARTS)
    assert float(log["r"].mean()) - truth in other.interval


def test_what_is_shown_says_bounds_and_never_a_point(tmp_path):
    log, _ = a_log(share=0.2)
    result = evaluate(log)
    shown = str(result)
    assert "between" in shown.splitlines()[2]  # the sentence, below what was asked
    assert "not in this log" in shown.splitlines()[2]
    assert "nan" not in shown
    document = json.loads(json.dumps(evaluation(result)))
    assert {one["value"] for one in document["estimates"]} == {None}
    assert all(one["lower"] < one["upper"] for one in document["estimates"])
    assert result.table()["value"].null_count() == result.table().height
    page = result.report(tmp_path / "report.html").read_text()
    assert "between" in page
    assert "nan" not in result._repr_html_()
    both = cp.evaluate(log, target={"new": cp.Chosen("chosen"), "old": "p"}, **PARTS)
    assert "nan" not in str(both)
    assert "nan" not in str(cp.compare(log, target={"new": cp.Chosen("chosen")}, **PARTS))
    assert plan(log, target=cp.Chosen("chosen"), difference=0.01, **PARTS).verdict.verdict == "caution"


def test_every_source_finds_the_same_actions(tmp_path):
    log, _ = a_log()
    flat = log.drop("pi")
    flat.write_parquet(tmp_path / "log.parquet")
    flat.write_csv(tmp_path / "log.csv")
    flat.write_ndjson(tmp_path / "log.jsonl")
    arrays = {name: log[name].to_numpy() for name in ("r", "p", "a", "chosen", "country")}
    sources = [flat.lazy(), flat.to_pandas(), flat.to_arrow(), arrays]
    sources += [tmp_path / f"log.{kind}" for kind in ("parquet", "csv", "jsonl")]
    expected = caveat_of(evaluate(flat)).numbers
    for data in sources:
        assert caveat_of(evaluate(data)).numbers == pytest.approx(expected)
        assert caveat_of(evaluate(data, "predict_proba")).code == "missing-actions"
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(str(tmp_path / "log.duckdb")) as connection:
        connection.execute(f"CREATE TABLE log AS SELECT * FROM '{tmp_path / 'log.parquet'}'")
    for kind in ("Chosen", "predict_proba"):
        found = caveat_of(evaluate(tmp_path / "log.duckdb", kind, segment="country", table="log"))
        assert found.code == "missing-actions"


def test_a_long_log_is_looked_at_by_a_sample_from_all_over_it():
    log, _ = a_log(n=100_000)
    late = pl.concat([log.filter(pl.col("chosen") != "d"), log.filter(pl.col("chosen") == "d")])
    for data in (late, late.lazy()):
        assert caveat_of(evaluate(data)).numbers["share"] == pytest.approx(0.06, abs=0.01)


def test_where_nothing_can_be_told_nothing_is_said():
    log, _ = a_log()
    for options in ({"weight": cp.weights.Clip(2)}, {"weight": cp.weights.Slope(cp.weights.Clip)}):
        assert "missing-actions" not in {one.code for one in evaluate(log, **options).verdict().caveats}
    stored = LogMoments.from_json(evaluate(log).moments.to_json())
    assert cp.evaluate(stored)["new", "ips"].identified
    odd = log.with_columns(chosen=pl.lit(None, pl.String))
    with pytest.raises(cp.CounterpoiseError):
        evaluate(odd)


def test_verbs_without_bounds_are_never_ok_about_missing_actions():
    log, _ = a_log()
    asked = {"target": {"new": cp.Chosen("chosen")}, **PARTS}
    assert cp.distribution(log, **asked).quantile(0.5).verdict.verdict == "caution"
    assert cp.sensitivity(log, **asked).verdict().verdict == "caution"
    right, _ = a_log(lacks=False)
    assert cp.distribution(right, **asked).quantile(0.5).verdict.verdict == "ok"
    assert cp.sensitivity(right, **asked).verdict().verdict == "ok"


def test_segments_that_were_not_known_before_the_choice_do_not_make_actions_missing():
    log, _ = a_log(lacks=False)
    for kind in ("Chosen", "predict_proba"):
        result = evaluate(log, kind, segment="number")
        assert not result.verdict().caveats
        assert result["new", "beta_ips"].identified


# -- what is known all the same, and what it takes to know the rest ------------------------------------------------------------


def best_of(result):
    return read(result).best


@pytest.mark.parametrize("kind", targets())
def test_what_it_earns_elsewhere_is_what_the_rest_of_the_log_says(kind):
    log, _ = a_log(place=True)
    for cluster in (None, "user"):
        users = log.with_columns(user=pl.int_range(pl.len()) // 5)
        options = {} if cluster is None else {"cluster": cluster}
        known = best_of(evaluate(users, kind, place=True, **options)).elsewhere
        assert known.where == "country <> 'DE'"
        alone = best_of(evaluate(users, kind, place=True, where=known.where, **options))
        assert known.rows == alone.rows
        for mine, theirs in ((known.lift, alone.lift), (known.relative, alone.relative)):
            assert (mine.value, *mine.interval) == pytest.approx((theirs.value, *theirs.interval), rel=1e-9)


@pytest.mark.parametrize(
    "kind",
    [{"keep": "share"}, {"per": "size"}, {"proxy": "near", "observed": "labeled", "label_propensity": "share"}],
    ids=lambda kind: next(iter(kind)),
)
def test_rows_of_other_kinds_earn_elsewhere_what_the_rest_of_their_log_says(kind):
    g = np.random.default_rng(3)
    log, _ = a_log(place=True)
    share = g.uniform(0.3, 0.9, log.height)
    log = log.with_columns(share=share, size=g.uniform(1, 2, log.height), near=log["r"] + g.normal(0, 0.3, log.height))
    log = log.with_columns(labeled=(g.random(log.height) < share) * 1.0)
    if "proxy" in kind:  # a reward that nobody knows may be anything
        log = log.with_columns(r=pl.when(pl.col("labeled") == 1).then(pl.col("r")).otherwise(7.0))
    known = best_of(evaluate(log, "Chosen", place=True, **kind)).elsewhere
    alone = best_of(evaluate(log, "Chosen", place=True, where=known.where, **kind))
    assert known.rows == alone.rows
    for mine, theirs in ((known.lift, alone.lift), (known.relative, alone.relative)):
        assert (mine.value, *mine.interval) == pytest.approx((theirs.value, *theirs.interval), rel=1e-9)


def test_where_nothing_is_missing_may_be_scattered_or_nowhere():
    """A target that takes d here and there: the rows in which it does not are known, and their truth is in the interval."""
    inside = 0
    for seed in range(30):
        log, _ = a_log(share=0.3, seed=seed, n=3000)
        known = best_of(evaluate(log, share=0.3)).elsewhere
        assert known.where == ""
        assert known.rows == (log["chosen"] != "d").sum()
        inside += 0.0 in known.lift.interval  # where the target does as the logging policy
    assert inside >= 30 * 0.95 - 3 * math.sqrt(30 * 0.95 * 0.05)
    said = str(wording.known_part(read(evaluate(log, share=0.3))))
    assert said.startswith("Where all of its choices are in the log (")
    assert best_of(evaluate(log, "predict_proba", share=0.3)).elsewhere is None  # it takes a little of d in every row
    assert wording.known_part(read(evaluate(a_log(lacks=False)[0]))) is None


def test_of_a_long_log_a_sample_tells_and_several_rewards_have_their_own():
    log, _ = a_log(n=60_000, place=True)
    both = PARTS | {"reward": ["r", "money"]}
    result = cp.evaluate(log.with_columns(money=10 * pl.col("r")), target={"new": cp.Chosen("chosen")}, **both)
    shares = [best_of(answer).elsewhere for answer in result.by_reward.values()]
    assert shares[1].lift.value == pytest.approx(10 * shares[0].lift.value)
    assert shares[0].rows < 20_000
    assert "by a sample of" in str(wording.known_part(read(result)))


def test_the_rest_is_named_so_that_it_can_be_asked_about():
    log, _ = a_log(place=True, n=8000)
    odd = log.with_columns(
        pl.when(pl.col("country") == "DE").then(pl.lit("it's")).otherwise("country").alias("my country")
    )
    for data, column in ((log, "country"), (odd, "my country")):
        result = cp.evaluate(data, target={"new": cp.Chosen("chosen")}, **PARTS | {"context": column})
        caveat = caveat_of(result)
        again = cp.evaluate(data, target={"new": cp.Chosen("chosen")}, where=caveat.rest, **PARTS | {"context": column})
        assert again.n == (log["country"] != "DE").sum()
        assert again.verdict().verdict == "ok"
        (step,) = wording.next_steps(read(result))
        assert step.startswith("Have the logging policy explore 'd' where ")
        assert f"where={caveat.rest!r}" in step
    age = log.with_columns(age=pl.when(pl.col("country") == "DE").then(70).otherwise(20) + pl.col("x"))
    result = cp.evaluate(age, target={"new": cp.Chosen("chosen")}, **PARTS | {"context": "age"})
    rest = caveat_of(result).rest
    assert rest == "" or cp.evaluate(age, target=cp.Chosen("chosen"), where=rest, **PARTS | {"context": "age"}).n


def test_so_many_rows_of_exploration_make_the_missing_part_as_certain_as_the_rest():
    """With N rows of the missing action, the error of the missing part is that of what is known, whatever N is rounded to."""
    log, _ = a_log(n=20_000, place=True)
    reading = read(evaluate(log, place=True))
    rows, error = reading.next_steps[0].rows, reading.best.value.stderr
    assert f"(about {rows:,} rows are enough)" in wording.next_steps(reading)[0]
    share = caveat_of(reading.result).numbers["share"]
    deviation, random, runs = float(log["r"].std()), np.random.default_rng(1), 2000
    rate = 0.5 - math.sqrt(0.25 - deviation**2)  # of rewards that vary as those of the log
    means = (random.random((runs, rows)) < rate).mean(axis=1)
    # two digits round N by up to 10 %, and 2,000 runs know an error to 1.6 %
    assert share * means.std() == pytest.approx(error, rel=0.05 + 3 / math.sqrt(2 * runs))
    assert share * means.std() <= error * (1 + 3 / math.sqrt(2 * runs))
