"""Weights that trade bias for variance: each against its published formula in a plain loop, wherever the log lives."""

import json
import math
import uuid

import numpy as np
import polars as pl
import pytest
from doubts import codes
from messages import refuses

import counterpoise as cp
from counterpoise.weights import (
    WEIGHTS,
    Clip,
    ExponentialSmoothing,
    Harmonic,
    ImplicitExploration,
    Importance,
    Own,
    Shrink,
    Slope,
    Switch,
    weight_of,
)

# the papers' formulas, of one row: π, π₀ and the constant
FORMULAS = {
    Clip: (lambda t, p, c: min(t / p, c), (0.7, 3.0, 40.0)),
    Shrink: (lambda t, p, c: c * (t / p) / ((t / p) ** 2 + c), (0.5, 30.0, 1e4)),
    Switch: (lambda t, p, c: t / p * (t / p <= c), (0.5, 3.0, 100.0)),
    Harmonic: (lambda t, p, c: (t / p) / (1 - c + c * (t / p)), (0.0, 0.05, 0.9)),
    ExponentialSmoothing: (lambda t, p, c: t / math.exp(c * math.log(p)), (0.0, 0.35, 1.0)),
    ImplicitExploration: (lambda t, p, c: t / (p + c), (0.0, 0.01, 2.0)),
}
CASES = [(kind, c) for kind, (_, constants) in FORMULAS.items() for c in constants]
PARTS = {"reward": "r", "propensity": "p"}


@pytest.fixture(scope="module")
def log():
    random = np.random.default_rng(12)
    n = 400
    t = random.uniform(0, 1, n)
    t[:40] = 0.0  # actions that the target never takes
    columns = {"r": random.normal(size=n) + 3, "p": random.uniform(0.005, 1.0, n), "t": t, "other": t[::-1].copy()}
    return pl.DataFrame(columns | {"user": np.arange(n) % 37, "country": random.choice(["DE", "FR"], n)})


@pytest.fixture(scope="module")
def parquet(log, tmp_path_factory):
    path = tmp_path_factory.mktemp("logs") / "log.parquet"
    log.write_parquet(path)
    return path


@pytest.fixture(scope="module")
def duckdb(parquet):
    return pytest.importorskip("duckdb").sql(f"select * from read_parquet('{parquet}')")


@pytest.fixture(scope="module")
def in_postgres(log, postgres):
    import psycopg

    name = f"weights_{uuid.uuid4().hex}"
    types = {"country": "text", "user": "bigint"}
    columns = ", ".join(f'"{column}" {types.get(column, "double precision")}' for column in log.columns)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"create table {name} ({columns})")
        with connection.cursor().copy(f"copy {name} from stdin") as copy:
            for row in log.rows():
                copy.write_row(row)
        yield {"log": postgres, "table": name}
        connection.execute(f"drop table {name}")


@pytest.fixture(params=["arrays", "frame", "parquet", "duckdb", "postgres"])
def source(request, log):
    """The same log in five places, as arguments of a verb."""
    if request.param == "arrays":
        return {"log": log.to_dict(as_series=False)}
    if request.param == "frame":
        return {"log": log}
    if request.param == "postgres":
        return request.getfixturevalue("in_postgres")
    return {"log": request.getfixturevalue(request.param)}


def looped(log, kind, c):
    formula, _ = FORMULAS[kind]
    return np.array([formula(t, p, c) for t, p in zip(log["t"].to_list(), log["p"].to_list(), strict=True)])


@pytest.mark.parametrize(("kind", "c"), CASES)
def test_arithmetic_is_the_published_formula(log, kind, c):
    expected, t, p, other = looped(log, kind, c), *(log[name].to_numpy() for name in ("t", "p", "other"))
    one = kind(c)
    second = looped(log.with_columns(t="other"), kind, c)
    assert one.weight(t, p) == pytest.approx(expected, rel=1e-12, abs=1e-13)
    assert one.excess(t, p) == pytest.approx(expected - 1, rel=1e-12, abs=1e-12)
    assert one.difference(t, other, p) == pytest.approx(expected - second, rel=1e-10, abs=1e-11)
    assert (one.mean_is_one, one.may_be_negative, one.needs_propensity) == (False, False, True)


@pytest.mark.parametrize("kind", FORMULAS)
@pytest.mark.parametrize("segment", [pytest.param(None, marks=pytest.mark.once), "country"])
def test_wherever_the_log_lives_the_estimate_is_a_plain_loop(source, log, kind, segment):
    c, r = FORMULAS[kind][1][1], log["r"].to_numpy()
    expected = looped(log, kind, c)
    found = cp.evaluate(**source, **PARTS, target="t", weight=kind(c), segment=segment)
    assert found["t", "ips"].value == pytest.approx(math.fsum(expected * r) / len(r), rel=1e-10)
    assert found["t", "snips"].value == pytest.approx(math.fsum(expected * r) / math.fsum(expected), rel=1e-10)
    assert found["t", "ips"].stderr == pytest.approx((expected * r).std() / math.sqrt(len(r)), rel=1e-10)
    assert found.diagnostics().mean_weight == pytest.approx(expected.mean(), rel=1e-10)
    assert found.diagnostics().max_weight == pytest.approx(expected.max(), rel=1e-10)
    assert found.verdict().verdict == "caution"
    assert "biased-weights" in codes(found.verdict())
    if segment:
        german = (log["country"] == "DE").to_numpy()
        assert found["t", "ips", "DE"].value == pytest.approx((expected * r)[german].mean(), rel=1e-10)


@pytest.mark.parametrize("kind", FORMULAS)
def test_the_constant_that_changes_nothing_is_the_importance_weight(log, kind):
    at = {Clip: 1e9, Shrink: 1e18, Switch: 1e9}.get(kind, kind.unbiased_at)
    plain, same = (cp.evaluate(log, **PARTS, target="t", weight=one) for one in (Importance(), kind(at)))
    values = {key: one.value for key, one in plain.estimates.items()}
    # the mean weight of this log is far from 1, and then a lift has the baseline of the value
    values["t", "lift", None] = values["t", "beta_ips", None] - log["r"].mean()
    for key, value in values.items():
        assert same.estimates[key].value == pytest.approx(value, rel=1e-10)


@pytest.mark.once
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"segment": "country"},
        {"cluster": "user"},
        {"segment": "country", "cluster": "user", "estimator": "ips"},
    ],
)
def test_each_rung_of_a_ladder_is_the_answer_of_its_weight_alone(source, log, asked):
    ladder = cp.evaluate(**source, **PARTS, target={"new": "t", "old": "other"}, weight=Slope(Harmonic), **asked)
    first = "ips" if "estimator" in asked else "beta_ips"
    for target, column in (("new", "t"), ("old", "other")):
        alone = [cp.evaluate(log, **PARTS, target=column, weight=one, **asked) for one in Slope(Harmonic).rungs]
        found = ladder.ladders[target]
        for rung, one in zip(found.rungs, alone, strict=True):
            expected = one[column, first]
            numbers = (rung.estimate.value, rung.estimate.stderr)
            assert numbers == pytest.approx((expected.value, expected.stderr), rel=1e-9)
        chosen = alone[found.chosen]
        for (_, name, segment), expected in chosen.estimates.items():
            one = ladder.estimates[target, name, segment]
            assert (one.value, one.stderr) == pytest.approx((expected.value, expected.stderr), rel=1e-9)
            if segment is None:
                assert tuple(one.interval) == pytest.approx(tuple(expected.interval), rel=1e-6)
        seen, same = ladder.diagnostics(target), chosen.diagnostics()
        assert (seen.mean_weight, seen.max_weight) == pytest.approx((same.mean_weight, same.max_weight), rel=1e-9)


def test_differences_choose_by_their_own_ladder(source, log):
    asked = PARTS | {"target": "t", "against": "other"}
    found = cp.compare(**source, **asked, weight=Slope(Clip, [1, 5, 25]))
    for rung, one in zip(found.ladders["t"].rungs, Slope(Clip, [1, 5, 25]).rungs, strict=True):
        alone = cp.compare(log, **asked, weight=one)
        assert (rung.estimate.value, rung.estimate.stderr) == pytest.approx((alone.value, alone.stderr), rel=1e-9)
    assert found.value == found.ladders["t"].choice.estimate.value
    assert found.verdict().verdict == "caution"
    assert cp.rank(found)[0].decision == "undecided"


def test_a_ladder_is_read_in_one_pass_over_a_file(parquet, monkeypatch):
    from counterpoise.engines import registry
    from counterpoise.engines.streaming import Streaming

    monkeypatch.setattr(registry, "SHORT", 0)  # so that it is not read at once
    passes = []
    aggregate = Streaming.aggregate
    monkeypatch.setattr(Streaming, "aggregate", lambda self, query: passes.append(1) or aggregate(self, query))
    cp.evaluate(parquet, **PARTS, target="t", weight=Slope(Clip))
    assert len(passes) == 1


def test_each_reward_has_a_ladder_of_its_own(log):
    both = log.with_columns(money=pl.when(pl.col("user") > 3).then(pl.col("r") * pl.col("t") * 100))
    asked = {"propensity": "p", "target": "t", "weight": Slope(Clip), "drop_bad_rows": True}
    found = cp.evaluate(both, reward=["r", "money"], **asked)
    for reward in ("r", "money"):
        alone = cp.evaluate(both, reward=reward, **asked).ladder()
        same = found.of(reward).ladder()
        assert same["value"].to_list() == pytest.approx(alone["value"].to_list(), rel=1e-9)
        assert same["chosen"].to_list() == alone["chosen"].to_list()


@pytest.mark.once
def test_days_add_up_and_choose_anew(log, tmp_path):
    asked = PARTS | {"target": "t", "segment": "country", "weight": Slope(Shrink)}
    whole = cp.evaluate(log, **asked)
    halves = [cp.evaluate(log[k::2], **asked) for k in range(2)]
    for k in range(2):
        cp.evaluate(log[k::2], **asked, state=tmp_path / "state.json", batch=f"{k}")
    for one in (
        cp.evaluate(halves[0].moments + halves[1].moments),
        cp.evaluate(sum(cp.LogMoments.from_json(half.moments.to_json()) for half in halves)),
        cp.evaluate(state=tmp_path / "state.json"),
    ):
        assert one.ladders["t"].chosen == whole.ladders["t"].chosen
        assert one.ladder()["constant"].to_list() == whole.ladder()["constant"].to_list()
        for key, expected in whole.estimates.items():
            assert one.estimates[key].value == pytest.approx(expected.value, rel=1e-9)
        assert [v.verdict for v in one.verdicts.values()] == [v.verdict for v in whole.verdicts.values()]
    both = halves[0].moments + halves[1].moments
    assert both["t"].average("u") == pytest.approx(both.ladder[0]["t"].average("u"), rel=1e-12)
    other = cp.evaluate(log, **asked | {"weight": Slope(Shrink, [1, 10])}).moments
    with refuses(cp.MomentsError):
        whole.moments + other
    damaged = json.loads(whole.moments.to_json())
    del damaged["ladder"][1]["contrasts"][0]["moments"]
    with pytest.raises(cp.MomentsError):
        cp.LogMoments.from_json(json.dumps(damaged))


def test_sums_from_a_database_out_of_reach_have_the_ladder_too(log, duckdb):
    asked = PARTS | {"target": "t", "weight": Slope(ImplicitExploration)}
    text = cp.sql(table="log", dialect="duckdb", **asked)
    connection = pytest.importorskip("duckdb").connect()
    connection.register("log", log.to_arrow())
    rows = connection.sql(text).pl()
    found = cp.evaluate(cp.from_sums(rows, **asked))
    expected = cp.evaluate(log, **asked)
    assert found.ladder()["value"].to_list() == pytest.approx(expected.ladder()["value"].to_list(), rel=1e-9)


def test_what_looks_at_rows_again_sees_the_same_weights(log):
    from counterpoise.evaluation.ranking import heaviest
    from counterpoise.report.weights import profile

    found = cp.evaluate(log, **PARTS, target="t", weight=Clip(2))
    steps = profile(found.asked(), ["t"], rows=log.height, level=0.95)["t"].steps
    assert steps[-1].value == pytest.approx(found["t", "beta_ips"].value, rel=1e-9)
    compared = cp.compare(log, **PARTS, target="t", against="other", weight=Slope(Clip, [2]))
    rows = heaviest(compared.asked("t"), target="t", against="other", baseline=0.0, count=log.height).rows
    assert sum(row.part for row in rows) == pytest.approx(compared["t", "ips"].value, rel=1e-9)
    assert compared.ladders["t"].chosen in (0, 1)


def test_what_plain_weights_cannot_identify_biased_ones_cannot_either():
    n = 2_000
    p, t = np.full(n, 0.5), np.full(n, 0.6)
    t[: n * 9 // 10] = 0.01  # the log took what the target rarely does
    r = np.arange(n) % 2.0
    plain, found = (cp.evaluate(reward=r, propensity=p, target=t, weight=one) for one in (None, Slope(Clip, [1.1])))
    assert found.ladders["target"].chosen == 1
    assert plain.verdict().verdict == found.verdict().verdict == "not identified"


@pytest.mark.parametrize(
    ("kind", "constants"),
    [
        (Clip, (0, -1, math.nan, math.inf, "3", True)),
        (Shrink, (0, -1, math.nan, math.inf, "3", True)),
        (Harmonic, (-0.1, 1, 1.5, math.nan, "3", True)),
        (ExponentialSmoothing, (-0.1, 1.1, math.nan, "3", True)),
        (ImplicitExploration, (-0.1, math.inf, math.nan, "3", True)),
    ],
)
def test_a_constant_in_its_range(kind, constants):
    for one in constants:
        with refuses(cp.OptionError):
            kind(one)


def test_a_ladder_of_nothing_or_of_no_kind_is_refused():
    for kind, constants in (
        (Clip, []),
        (Clip, [1, 1]),
        (Clip, "10"),
        (Clip, [0]),
        (Own, None),
        (Clip(3), None),
        ("clip", None),
    ):
        with pytest.raises(cp.OptionError):
            Slope(kind, constants)
    with refuses(cp.OptionError):
        cp.evaluate(reward=[1, 0], propensity=[0.5, 0.5], target=[0.5, 0.5]).ladder()


def test_ladders_begin_with_the_least_biased():
    assert Slope(Clip, [1, 100, 10]).constants == (100, 10, 1)
    assert Slope(ImplicitExploration, [0.1, 0.001]).constants == (0.001, 0.1)
    assert Slope(ExponentialSmoothing, [0.5, 0.9]).constants == (0.9, 0.5)
    for kind in WEIGHTS.values():
        assert Slope(kind).constants == kind.ladder
        assert Slope(kind).rungs[0] == Importance()


def test_weights_by_their_names():
    assert weight_of("clip:10") == Clip(10)
    assert weight_of("implicit-exploration:0.01") == ImplicitExploration(0.01)
    assert weight_of("shrink:slope") == Slope(Shrink)
    assert weight_of("Harmonic:0.1,0.01") == Slope(Harmonic, [0.01, 0.1])
    with refuses(cp.OptionError):
        weight_of("shrnk:3")
    for text in ("clip", "clip:", "clip:ten", "clip:1,,2"):
        with refuses(cp.OptionError):
            weight_of(text)


@pytest.mark.parametrize("weight", [cp.weights.Clip(3), cp.weights.Shrink(20), cp.weights.Harmonic(0.2)])
def test_the_lift_is_the_value_less_what_was_logged(weight):
    """With plain weights the lift has a baseline of its own; where the mean is not 1, that would fill in something else."""
    g = np.random.default_rng(0)
    rare, age = g.random(2000) < 0.1, g.normal(size=2000)
    log = {
        "reward": 3.0 + (g.random(2000) < np.where(rare, 0.6, 0.3)) + age,
        "propensity": np.where(rare, 0.1, 0.9),
        "target": np.where(rare, 0.7, 0.3),
    }
    frame = pl.DataFrame(log | {"age": age, "country": g.choice(["DE", "FR"], 2000)})
    for best, more in (("beta_ips", {}), ("context_ips", {"baseline": "age"})):
        asked = {name: name for name in log} | more | {"weight": weight}
        result = cp.evaluate(frame, **asked, segment="country")
        for place, logged in ((None, frame), ("DE", frame.filter(pl.col("country") == "DE"))):
            key = ("target",) if place is None else ("target", place)
            lift, value = (result[(key[0], name, *key[1:])] for name in ("lift", best))
            assert lift.value == pytest.approx(value.value - logged["reward"].mean(), abs=1e-9)
        assert cp.compare(frame, **asked).value == pytest.approx(result["target", "lift"].value, abs=1e-9)
