"""One log with a bad row of every kind: all who look at it find the same bad rows, and use the same good ones."""

import re
from dataclasses import asdict

import narwhals as nw
import planted
import polars as pl
import pytest

import counterpoise as cp
from counterpoise.engines.streaming import prepare
from counterpoise.evaluation.ranking import heaviest
from counterpoise.log.rules import rules_of
from counterpoise.report.page import render
from counterpoise.report.weights import profile

GOOD = planted.every_kind(bad=False)
BAD = planted.every_kind()


@pytest.fixture(params=["frame", "file"])
def log(request, tmp_path):
    BAD.write_parquet(tmp_path / "log.parquet")
    return cp.Log(BAD if request.param == "frame" else tmp_path / "log.parquet", **planted.PARTS)


@pytest.fixture(scope="module")
def good():
    return cp.Log(GOOD, **planted.PARTS)


def test_there_is_a_bad_row_of_every_kind():
    assert len(BAD) - len(GOOD) == len(planted.KINDS) >= 12
    assert GOOD.equals(BAD.filter(~pl.col("row").is_in(list(planted.KINDS))))


def test_every_rule_has_a_row_that_breaks_it_alone():
    question = cp.evaluate(cp.Log(BAD, **planted.PARTS), target="new").question
    rules = rules_of(question)
    broken = [(~rule.holds.fill_null(False)).alias(str(k)) for k, rule in enumerate(rules)]
    rows = nw.from_native(prepare(BAD, question, 0)).select(*broken).rows()
    assert {row.index(True) for row in rows if sum(row) == 1} == set(range(len(rules)))


CONTROLLED = [row for row, (column, _) in planted.KINDS.items() if column in planted.PARTS["control"]]


def uncontrolled(log):
    """The log without further control variates, which these verbs refuse, and without the rows that they alone make bad."""
    return log.but(control=None, where=f"row NOT IN ({', '.join(map(str, CONTROLLED))})")


def same(found, expected, kinds=planted.KINDS):
    assert (found.n, found.dropped_rows) == (len(GOOD), len(kinds))
    for key, estimate in expected.estimates.items():
        assert found.estimates[key].value == pytest.approx(estimate.value, rel=1e-12), key


def test_evaluate(log, good):
    same(cp.evaluate(log, target="new", interval="normal"), cp.evaluate(good, target="new", interval="normal"))


@pytest.mark.parametrize(("row", "column"), [(row, column) for row, (column, _) in planted.KINDS.items()])
def test_each_row_is_bad_by_itself(row, column):
    alone = cp.Log(BAD.filter((pl.col("row") == row) | (pl.col("row") > 3000)), **planted.PARTS)
    part = "new" if planted.KINDS[row] == ("propensity", 1e-300) else column
    with pytest.raises(cp.LogError, match=rf"'{part}' must [^:]*: (1 row does not|in 1 row it is not);"):
        cp.evaluate(alone.but(drop_bad_rows=False), target="new")
    assert cp.evaluate(alone, target="new").dropped_rows == 1


def test_compare(log, good):
    found, expected = (cp.compare(uncontrolled(one), target="new", interval="normal") for one in (log, good))
    same(found, expected, planted.KINDS.keys() - set(CONTROLLED))


def test_plan(log, good):
    found, expected = (cp.plan(uncontrolled(one), target="new", difference=0.1, actions=100) for one in (log, good))
    assert found.n == expected.n == len(GOOD)
    assert found.needs == expected.needs
    assert found.exploration
    assert [one.needs for one in found.exploration] == [one.needs for one in expected.exploration]


def test_doctor(log, good):
    found, expected = (cp.doctor(one, target=["new"]) for one in (log, good))
    assert found.rows == len(BAD)
    (overlap,), (other,) = found.overlap, expected.overlap
    assert overlap.diagnostics.dropped == len(planted.KINDS)
    assert overlap.diagnostics.n == other.diagnostics.n == len(GOOD)
    assert overlap.diagnostics.mean_weight == pytest.approx(other.diagnostics.mean_weight, rel=1e-12)
    of = [column for column, _ in planted.KINDS.values()]
    assert found.propensity.impossible == of.count("propensity") - 1  # 1e-300 is possible, and too small for its target
    assert found.reward.impossible == of.count("reward")
    assert found.reward.highest == BAD.filter(pl.col("reward") < 1e100)["reward"].max()


def test_doctor_looks_at_the_first_of_several_rewards_whatever_their_bounds(good):
    two = cp.Log(GOOD.with_columns(other=pl.col("reward")), **planted.PARTS | {"reward": ["reward", "other"]})
    highest = float(GOOD["reward"].max())
    for bounds in ({"reward": (-9, 9), "other": (-9, 9)}, (-9, highest / 2)):
        (found,) = cp.doctor(two.but(reward_bounds=bounds), target=["new"]).overlap
        (expected,) = cp.doctor(good, target=["new"]).overlap
        assert found.verdict == expected.verdict
        # sums of another order may differ in their last digits
        ours, theirs = ({k: v or 0 for k, v in asdict(one.diagnostics).items()} for one in (found, expected))
        assert ours.pop("unit") == theirs.pop("unit") == "row"
        assert ours == pytest.approx(theirs, rel=1e-9, nan_ok=True)


def test_the_report_and_its_pictures(log):
    result = cp.evaluate(log, target="new", interval="normal")
    rows = profile(result.question, ["new"], rows=result.n, level=0.95)["new"]
    assert int(rows.counts.sum()) + rows.zeros == rows.steps[-1].n == len(GOOD)
    assert rows.steps[-1].value == pytest.approx(result["new", "beta_ips"].value, rel=1e-12)
    asked = cp.compare(uncontrolled(log), target="new", interval="normal").question
    drawn = heaviest(asked, target="new", baseline=0.0, count=len(BAD))
    assert {one.row for one in drawn.rows} == set(GOOD["row"])
    page = re.sub(r"(<[^>]+>|\s+)+", " ", render(result))
    assert f" Dropped rows {len(planted.KINDS)} " in page
