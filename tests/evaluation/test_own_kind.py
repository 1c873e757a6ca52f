"""A kind of rows of one's own, as docs/extending.md builds it: whatever a log can be asked works with it, and nothing else knows of it."""

import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import counterpoise as cp
from counterpoise.log.kinds import KINDS
from counterpoise.log.kinds.kind import Code, Finding

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
ASKED = {"reward": "click", "propensity": "p", "survival": "weight", "target": ["pi_new", "other"]}
KEYS = [("pi_new", "beta_ips"), ("pi_new", "snips"), ("other", "ips")]


@pytest.fixture(scope="module")
def log():
    """The page's log of rows some of whose rewards have not come yet, with segments and users; its kind is gone afterwards."""
    kinds, names = list(KINDS), {}
    blocks = re.findall(r"^```python[^\n]*\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.S | re.M)
    for block in (blocks[0], *(block for block in blocks if "(RowKind)" in block)):
        exec(block, names)
    n = names["young"].height
    random = np.random.default_rng(1)
    yield names["young"].with_columns(
        other=random.uniform(0.2, 0.8, n), place=random.integers(0, 3, n), user=np.arange(n) // 4
    )
    KINDS[:] = kinds


def numbers(result, *, segments=(None,)):
    keys = [key if segment is None else (*key, segment) for key in KEYS for segment in segments]
    return [
        value for key in keys for value in (result[key].value, result[key].stderr, *tuple(result[key].interval)[:2])
    ]


def test_its_ips_is_the_weighted_mean_of_what_has_come(log):
    w, h, r = (log["pi_new"] / log["p"]).to_numpy(), log["weight"].to_numpy(), log["click"].to_numpy()
    assert cp.evaluate(log, **ASKED)["pi_new", "ips"].value == pytest.approx((w * h * r).sum() / h.sum(), rel=1e-12)


def test_weights_of_1_change_nothing(log):
    ones = log.with_columns(weight=pl.lit(1.0))
    plain = cp.evaluate(ones, **{part: name for part, name in ASKED.items() if part != "survival"})
    assert numbers(cp.evaluate(ones, **ASKED))[:2] == pytest.approx(numbers(plain)[:2], rel=1e-9)


def test_a_constant_added_to_every_reward_is_added_to_the_value(log):
    first, second = (cp.evaluate(log, **{**ASKED, "reward": reward}) for reward in ("click", "click + 1000"))
    for key in KEYS[:2]:
        assert second[key].value - first[key].value == pytest.approx(1000, abs=1e-6)
        assert second[key].stderr == pytest.approx(first[key].stderr, rel=1e-6)


def test_the_error_is_that_of_leaving_rows_out(log):
    result = cp.evaluate(log, **ASKED, interval="jackknife", groups=500)
    assert result["pi_new", "snips"].stderr == pytest.approx(
        cp.evaluate(log, **ASKED)["pi_new", "snips"].stderr, rel=0.15
    )


@pytest.mark.parametrize("more", [{}, {"segment": "place"}, {"segment": "place", "cluster": "user"}], ids=str)
def test_every_engine_says_the_same(log, more, tmp_path):
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "log.parquet"
    log.write_parquet(path)
    segments = (None, 0, 2) if more else (None,)
    known = numbers(cp.evaluate(log, **ASKED, **more), segments=segments)
    with duckdb.connect() as connection:
        relation = connection.sql(f"from '{path}'")
        for source in (log.lazy(), log.to_pandas(), path, relation):
            assert numbers(cp.evaluate(source, **ASKED, **more), segments=segments) == pytest.approx(known, rel=1e-8)


def test_arrays_do_as_well(log):
    arrays = {name: log[column].to_numpy() for name, column in (("reward", "click"), ("propensity", "p"))}
    result = cp.evaluate(**arrays, survival=log["weight"].to_numpy(), target=log["pi_new"].to_numpy())
    known = cp.evaluate(log, **ASKED)
    assert result["target", "beta_ips"].value == pytest.approx(known["pi_new", "beta_ips"].value, rel=1e-12)


def test_policies_are_compared_by_it(log):
    both = cp.compare(log, **ASKED, against="other")
    single = cp.evaluate(log, **ASKED)
    difference = single["pi_new", "ips"].value - single["other", "ips"].value
    assert both["pi_new", "ips"].value == pytest.approx(difference, rel=1e-9)


def test_days_add_up_in_a_state(log, tmp_path):
    state = tmp_path / "clicks.state"
    for k, day in enumerate((log[:700], log[700:])):
        result = cp.evaluate(day, **ASKED, segment="place", cluster="user", state=state, batch=f"day {k}")
    whole = cp.evaluate(log, **ASKED, segment="place", cluster="user")
    for place in (None, 1):
        for key in (key if place is None else (*key, place) for key in KEYS):  # intervals count the looks
            assert result[key].value == pytest.approx(whole[key].value, rel=1e-9)
            assert result[key].stderr == pytest.approx(whole[key].stderr, rel=1e-8)
    again = cp.evaluate(state=state)
    assert numbers(again) == pytest.approx(numbers(result), rel=1e-12)
    plain = {part: name for part, name in ASKED.items() if part != "survival"}
    with pytest.raises(cp.CounterpoiseError, match="survival"):
        cp.evaluate(log, **plain, segment="place", cluster="user", state=state, batch="plain")


def test_its_numbers_are_checked_and_its_conflicts_refused(log):
    with pytest.raises(cp.LogError, match="survival"):
        cp.evaluate(log.with_columns(weight=pl.lit(-1.0)), **ASKED)
    with pytest.raises(cp.OptionError, match="survival"):
        cp.evaluate(log, **ASKED, keep=0.5)
    with pytest.raises(TypeError, match="survival"):
        cp.evaluate(log, **{**ASKED, "survivol": "weight"})


def test_what_it_finds_in_the_sums_is_a_caveat(log, monkeypatch):
    kind = type(KINDS[-1])
    monkeypatch.setattr(kind, "codes", {"all-young": Code("caution", "Nothing has come yet.", cure="Wait.")})
    monkeypatch.setattr(kind, "findings", lambda self, places: iter([Finding("all-young", "No <rows>.", {"n": 1.0})]))
    verdict = cp.evaluate(log, **ASKED).verdict("pi_new")
    assert verdict.verdict == "caution"
    assert [(caveat.reason, caveat.cure) for caveat in verdict.caveats if caveat.code == "all-young"] == [
        ("No rows.", "Wait.")
    ]
