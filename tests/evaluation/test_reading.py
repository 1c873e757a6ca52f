"""What every front end reads and says: the lift over the logging policy, the decision, the verdict and the next step."""

import math
import pickle
import re

import numpy as np
import polars as pl
import pytest

import counterpoise as cp
from counterpoise.diagnostics import CODES, Caveat
from counterpoise.display import as_written, number
from counterpoise.evaluation import wording
from counterpoise.evaluation.reading import read

N = 4000


def shop(seed=0, n=N, rate=0.3, days=False):
    """A log of clicks: `good` shows the banner that visitors like, `bad` the other one, `same` the logging policy."""
    random = np.random.default_rng(seed)
    taste, shown = random.integers(0, 2, n), random.integers(0, 2, n)
    like = shown == taste
    log = {
        "click": (random.random(n) < np.where(like, rate, rate / 3)).astype(float),
        "p": np.full(n, 0.5),
        "good": np.where(like, 0.9, 0.1),
        "bad": np.where(like, 0.1, 0.9),
        "same": np.full(n, 0.5),
        "user": random.integers(0, 200, n),
        "shown": np.array(["red", "blue"])[shown],
        "country": random.choice(["DE", "FR", "SE"], n),
    }
    if days:
        log["day"] = np.array(["2026-03-03", "2026-03-01", "2026-03-02"])[random.integers(0, 3, n)]
    return pl.DataFrame(log)


PARTS = {"reward": "click", "propensity": "p"}


def plain(phrase):
    return str(phrase).replace("\N{NO-BREAK SPACE}", " ")


def test_a_share_of_what_ran_has_the_error_of_both():
    log = shop()
    change = read(cp.evaluate(log, **PARTS, target="good")).best
    r, u = log["click"].to_numpy(), log["good"].to_numpy() / 0.5 - 1
    beta = np.cov(u * r, u, bias=True)[0, 1] / np.var(u)
    lift, ran = np.mean(u * (r - beta)), r.mean()
    rows = (u * (r - beta) - lift / ran * r) / ran
    assert change.lift.value == pytest.approx(lift, rel=1e-9)
    assert change.relative.value == pytest.approx(lift / ran, rel=1e-9)
    assert change.relative.stderr == pytest.approx(rows.std() / np.sqrt(len(r)), rel=2e-3)
    assert change.ran == pytest.approx(ran)
    assert change.decision == "better"


@pytest.mark.thorough
def test_shares_cover():
    """The share of the logging policy that the target gains, over many logs: within Monte Carlo error of its level."""
    runs, truth = 300, (0.9 * 0.3 + 0.1 * 0.1) / (0.5 * 0.3 + 0.5 * 0.1) - 1
    held = [
        truth in read(cp.evaluate(shop(seed, 1000), **PARTS, target="good", cluster=False)).best.relative.interval
        for seed in range(runs)
    ]
    assert np.mean(held) > 0.95 - 3 * np.sqrt(0.95 * 0.05 / runs)


def test_clusters_have_a_wider_share():
    log = shop().with_columns(pl.col("click") * (pl.col("user") % 4 == 0))  # users who click, and users who never do
    rows, users = (
        read(cp.evaluate(log, **PARTS, target="good", cluster=cluster)).best.relative.stderr
        for cluster in (False, "user")
    )
    assert users > rows


def test_targets_come_best_first_and_each_has_its_decision():
    reading = read(cp.evaluate(shop(), **PARTS, target=["bad", "same", "good"]))
    assert [(change.target, change.decision) for change in reading.changes] == [
        ("good", "better"),
        ("same", "not decided"),
        ("bad", "worse"),
    ]
    said = plain(wording.sentence(reading))
    assert said.startswith("good, the best of 3: +")
    assert "Better than the logging policy. Verdict: ok." in said


def test_a_policy_that_loses_is_worse_however_much_it_can_be_trusted():
    reading = read(cp.evaluate(shop(), **PARTS, target="bad"))
    assert (reading.best.decision, reading.best.verdict.verdict) == ("worse", "ok")
    assert "Worse than the logging policy. Verdict: ok." in plain(wording.sentence(reading))
    assert wording.next_steps(reading) == ["Keep the logging policy."]


def test_segments_are_against_what_ran_there():
    log = shop(days=True)
    reading = read(cp.evaluate(log, **PARTS, target="good", segment="country"))
    changes = reading.segments()
    assert [change.relative.value for change in changes] == sorted(change.relative.value for change in changes)
    for change in changes:
        rows = log.filter(pl.col("country") == change.where)
        assert change.ran == pytest.approx(rows["click"].mean())
        alone = read(cp.evaluate(rows, **PARTS, target="good")).best
        assert change.relative.value == pytest.approx(alone.relative.value, rel=1e-9)
        assert change.relative.interval.width > alone.relative.interval.width  # for all three at once
        assert change.rows == rows.height
    days = read(cp.evaluate(log, **PARTS, target="good", segment="day")).segments()
    assert [change.where for change in days] == ["2026-03-01", "2026-03-02", "2026-03-03"]


def test_comparisons_are_with_the_other_policy():
    log = shop()
    reading = read(cp.compare(log, **PARTS, target="good", against="bad"))
    assert reading.best.relative is None
    assert reading.best.decision == "better"
    assert "Better than bad" in plain(wording.sentence(reading))
    over = read(cp.compare(log, **PARTS, target="good", against="logging")).best
    alone = read(cp.evaluate(log, **PARTS, target="good")).best
    assert over.relative.value == pytest.approx(alone.relative.value, rel=1e-9)


def test_missing_actions_lead():
    log = shop().with_columns(best=pl.lit("green"))
    mixed = log.with_columns(best=pl.when(pl.col("country") == "DE").then(pl.lit("green")).otherwise(pl.lit("red")))
    found = cp.evaluate(mixed, **PARTS, action="shown", target={"best": cp.Chosen("best")})
    reading = read(found)
    assert reading.best.is_bounds
    said = plain(wording.sentence(reading))
    assert said.startswith("best: between ")
    assert "of its choices are not in this log" in said
    nothing = read(cp.evaluate(log, **PARTS, action="shown", target={"best": cp.Chosen("best")}))
    assert "cannot tell" in plain(wording.sentence(nothing)) or nothing.best.is_bounds


def test_what_ran_may_be_nothing():
    log = shop().with_columns(click=pl.lit(0.0))
    reading = read(cp.evaluate(log, **PARTS, target="good"))
    assert reading.best.relative is None
    plain(wording.sentence(reading))
    signed = shop().with_columns(click=pl.col("click") - pl.col("click").mean())
    assert read(cp.evaluate(signed, **PARTS, target="good")).best.relative is None


def test_the_log_and_the_unit_are_named(tmp_path):
    shop().write_parquet(tmp_path / "clicks.parquet")
    reading = read(cp.evaluate(tmp_path / "clicks.parquet", **PARTS, target="good").with_unit("visit"))
    assert (
        plain(wording.asked(reading))
        == "Estimated click per visit: good against the logging policy · clicks.parquet · 4,000 visits"
    )
    assert "per 100 visits" in plain(wording.sentence(reading))
    money = shop().with_columns(click=pl.col("click") * 20)
    assert "per 100" not in plain(wording.sentence(read(cp.evaluate(money, **PARTS, target="good"))))


def test_next_steps_name_how_much_is_needed():
    reading = read(cp.evaluate(shop(), **PARTS, target="good"))
    assert any("confirm a lift of this size" in step for step in wording.next_steps(reading))
    near = shop(n=300).with_columns(near=pl.col("same") + 0.02 * (pl.col("good") - 0.5))
    undecided = read(cp.evaluate(near, **PARTS, target="near"))
    if undecided.best.decision == "not decided":
        assert wording.next_steps(undecided)


def treated(n, rate, probability=0.02, seed=1):
    """A treatment that the log rarely gives, and that the target gives half of the time."""
    g = np.random.default_rng(seed)
    a = g.random(n) < probability
    p = np.where(a, probability, 1 - probability)
    return pl.DataFrame(
        {"r": (g.random(n) < rate * (1 + 0.5 * a)) * 1.0, "p": p, "t": 0.5, "a": a * 1, "x": g.normal(size=n)}
    )


@pytest.mark.parametrize(("n", "rate"), [(400, 0.3), (4000, 0.01), (1000, 0.05)])
def test_so_many_rows_as_a_next_step_names_are_enough_for_ok(n, rate):
    asked = {"reward": "r", "propensity": "p", "target": "t"}
    log = treated(n, rate)
    reading = read(cp.evaluate(log, **asked))
    assert {caveat.code for caveat in reading.best.verdict.caveats} == {"few-carrying-rows"}
    (step,) = wording.next_steps(reading)
    rows = int(re.search(r"[\d,]+", step)[0].replace(",", ""))
    assert rows >= cp.plan(log, **asked, difference=0.01).ok_rows
    assert cp.evaluate(treated(3 * rows, rate, seed=2), **asked).verdict().verdict == "ok"


def test_what_rows_do_not_cure_is_not_answered_with_more_rows():
    asked = {"reward": "r", "target": "t", "action": "a"}
    log = treated(5000, 0.3, probability=0.3)
    for more in ({"propensity": "model", "context": "x"}, {"propensity": "p", "weight": cp.weights.Clip(1.5)}):
        result = cp.evaluate(log, **asked, **more)
        (caveat,) = result.verdict().caveats
        assert wording.next_steps(read(result)) == [caveat.cure]
        assert "rows" not in caveat.cure.replace("number of rows", "")
    wrong = cp.evaluate(log.with_columns(p=1 - pl.col("p")), **asked, propensity="p")
    assert "propensity='1 - p'" in wording.next_steps(read(wrong))[0]
    assert not any("Collect" in step for step in wording.next_steps(read(wrong)))


def test_stored_moments_still_tell_it():
    found = cp.evaluate(shop(), **PARTS, target="good")
    again = cp.evaluate(cp.LogMoments.from_json(found.moments.to_json()))
    first, second = read(found), read(again)
    assert second.best.relative.value == pytest.approx(first.best.relative.value)
    assert second.reward == "reward"
    assert wording.log_name(second) == ""


def test_lists_and_several_rewards_and_models_tell_it():
    random = np.random.default_rng(1)
    lists = pl.DataFrame(
        {
            "list": np.repeat(np.arange(500), 3),
            "position": np.tile([1, 2, 3], 500),
            "click": (random.random(1500) < 0.3).astype(float),
            "p": np.full(1500, 0.5),
            "new": random.uniform(0.3, 0.7, 1500),
        }
    )
    parts = {"slate": "list", "position": "position", "propensity_of": "item_at_position"}
    reading = read(cp.evaluate(lists, **PARTS, target="new", **parts))
    assert reading.unit == "ranking"
    assert "ranking" in plain(wording.asked(reading))
    both = cp.evaluate(
        shop().with_columns(money=pl.col("click") * 3.0), reward=["click", "money"], propensity="p", target="good"
    )
    assert [read(result).reward for result in both.by_reward.values()] == ["click", "money"]
    model = shop().with_columns(q=pl.lit(0.2), v=pl.lit(0.25))
    alone = cp.evaluate(model, **PARTS, target="good", model_reward="q", model_value="v", estimator="dm")
    assert "rests on the model alone" in plain(wording.sentence(read(alone)))


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.3])
def test_from_what_to_what_never_contradicts_the_change(factor):
    """Wrong propensities pull the change and the value apart; then only the change is said."""
    reading = read(cp.evaluate(shop().with_columns(p=pl.col("p") * factor), **PARTS, target="good"))
    said = plain(wording.sentence(reading))
    if factor != 1.0:
        assert "from " not in said
        return
    size, ran, value = (float(x) for x in re.search(r"\+(\d+) %.*from ([\d.]+) to ([\d.]+)", said).groups())
    # two estimates, within an error of each other
    assert 100 * (value / ran - 1) == pytest.approx(size, abs=100 * reading.best.relative.stderr + 0.5)


UNUSUAL = {
    "few": lambda log: log.head(40),
    "twice": lambda log: pl.concat([log, log.head(3000)]),
    "lost": lambda log: log.with_columns(click=pl.when(pl.int_range(pl.len()) % 7 > 0).then("click")),
    "wrong": lambda log: log.with_columns(p=0.6 * pl.col("p")),
}


@pytest.mark.parametrize("unusual", UNUSUAL)
def test_what_is_counted_has_the_name_that_its_readers_give_it(unusual, tmp_path):
    """No sentence says row where each is a visit: not the answer, a caveat, a next step, a heading nor the glossary."""
    log = UNUSUAL[unusual](pl.DataFrame(shop()))
    result = cp.evaluate(log, **PARTS, target=["good", "bad"], key="user", drop_bad_rows=True).with_unit("visit")
    assert result.verdict("good").caveats
    page = result.report(tmp_path / "report.html", rows=False).read_text()
    page = re.sub(r"<(script|style)\b.*?</\1>|<[^>]*>", " ", page, flags=re.DOTALL)
    for text in (repr(result), page):
        assert "visits" in text
        words = re.sub("|".join(CODES), "", text)  # codes are the same whatever is counted
        assert re.findall(r".{0,40}\b[Rr]ows?\b.{0,20}", words) == []


def test_a_sentence_is_about_another_unit_without_being_rewritten():
    caveat = Caveat("few-clusters", "<A row> of 'my row' and <rows>.", do="Pass `groups=100` for <a row>.")
    about = caveat.of_policy("<rows>").of_units("episode").of_units("visit")
    assert about.reason == "<rows>: A visit of 'my row' and visits. Pass groups=100 for a visit."
    assert pickle.loads(pickle.dumps(about.reason)).render(lambda *_: "--groups").endswith("Pass --groups for a visit.")
    assert caveat.reason == "A row of 'my row' and rows. Pass groups=100 for a row."


def test_a_number_as_it_is_written_is_written_the_same():
    random = np.random.default_rng(0)
    values, errors = np.exp(random.normal(0, 8, 2000)) * random.choice([-1, 1], 2000), np.exp(random.normal(0, 5, 2000))
    for value, error in [*zip(values, errors, strict=True), (0.125, 0.01), (0.0, 0.0), (2e13, 1.0), (math.inf, 1.0)]:
        assert number(as_written(value, error), error) == number(value, error)
