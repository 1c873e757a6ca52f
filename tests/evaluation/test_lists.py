"""Lists in long form: every weight against a plain loop over the lists, wherever the log lives."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest

import counterpoise as cp
from counterpoise.errors import LogError, OptionError
from counterpoise.weights import Cascade, Independent, PseudoInverse, Standard

pytestmark = pytest.mark.once

PARTS = {"reward": "click", "propensity": "p", "slate": "query", "position": "rank"}
KINDS: dict[str, tuple[Any, str]] = {
    "independent": (Independent(), "item_at_position"),
    "pseudo_inverse": (PseudoInverse(), "item_at_position"),
    "cascade": (Cascade(), "item_given_above"),
    "standard": (Standard(), "item_given_above"),
}


def a_log(lists: int = 300, depth: int = 4, seed: int = 0) -> pl.DataFrame:
    """Lists of two to four positions, some weights 0, in no order at all."""
    random = np.random.default_rng(seed)
    rows = []
    for query in range(lists):
        for rank in range(1, int(random.integers(2, depth + 1)) + 1):
            p = random.uniform(0.2, 0.9)
            new, other = (min(p * random.uniform(0.3, 1.7), 1.0) for _ in range(2))
            new = 0.0 if random.random() < 0.05 else new
            q, v = random.random(2)
            click = float(random.random() < 0.3)
            rows.append((query, rank, p, new, other, click, 2.5 * click + random.random(), q, v, 0.5 + random.random()))
    names = ["query", "rank", "p", "new", "other", "click", "sale", "q", "v", "share"]
    frame = pl.DataFrame(rows, schema=names, orient="row")
    frame = frame.with_columns(user=pl.col("query") // 3, country=pl.when(pl.col("query") % 3 > 0).then(pl.lit("a")))
    return frame.sample(fraction=1.0, shuffle=True, seed=seed)


def weights_of(one: pl.DataFrame, kind: str, target: str) -> np.ndarray:
    w = (one[target] / one["p"]).to_numpy()
    if kind == "cascade":
        return np.cumprod(w)
    if kind == "standard":
        return np.full(len(w), np.prod(w))
    return w if kind == "independent" else np.full(len(w), 1.0 - len(w) + w.sum())


def by_list(
    log: pl.DataFrame, kind: str, target: str = "new", reward: str = "click", discount: Any = None
) -> list[Any]:
    """(Σ d·w·r, the excess at every position) of every list, by a plain loop."""
    found = []
    for _, one in log.sort("query", "rank").group_by("query", maintain_order=True):
        w, r = weights_of(one, kind, target), one[reward].to_numpy()
        d = {None: np.ones(len(w)), "dcg": 1 / np.log2(1 + one["rank"].to_numpy())}.get(discount)
        d = one[discount].to_numpy() if d is None else d
        found.append((float((d * w * r).sum()), w - 1.0, d))
    return found


def evaluate(log: Any, kind: str, **more: Any) -> Any:
    weight, propensity_of = KINDS[kind]
    return cp.evaluate(log, **(PARTS | {"target": "new", "weight": weight, "propensity_of": propensity_of} | more))


@pytest.mark.parametrize("discount", [None, "dcg", "share"])
@pytest.mark.parametrize("kind", KINDS)
def test_ips_is_the_mean_over_lists(kind: str, discount: str | None) -> None:
    log = a_log()
    terms = np.array([term for term, *_ in by_list(log, kind, discount=discount)])
    found = evaluate(log, kind, discount=discount)["new", "ips"]
    assert found.n == len(terms)
    assert found.value == pytest.approx(terms.mean(), rel=1e-12)
    assert found.stderr == pytest.approx(terms.std() / np.sqrt(len(terms)), rel=1e-12)


@pytest.mark.parametrize("kind", ["independent", "cascade"])
def test_joint_baselines_are_a_regression_over_lists(kind: str) -> None:
    log = a_log()
    each = by_list(log, kind)
    y = np.array([term for term, *_ in each])
    below = [u[-1] if kind == "cascade" else 0.0 for _, u, _ in each]  # the end of a list: a product stays what it is there
    controls = np.array([[*u, *[end] * (4 - len(u))] for (_, u, _), end in zip(each, below, strict=True)])
    centered = controls - controls.mean(axis=0)
    beta = np.linalg.lstsq(centered, y - y.mean(), rcond=None)[0]
    left = y - controls @ beta
    found = evaluate(log, kind)["new", "beta_ips"]
    assert found.value == pytest.approx(left.mean(), rel=1e-10)
    assert found.stderr == pytest.approx(left.std() / np.sqrt(len(y)), rel=1e-10)


@pytest.mark.parametrize("kind", ["independent", "cascade"])
def test_self_normalization_is_at_each_position(kind: str) -> None:
    log = a_log()
    value = 0.0
    for rank in range(1, 5):
        w, wr = [], []
        for _, one in log.sort("query", "rank").group_by("query", maintain_order=True):
            weights, r = weights_of(one, kind, "new"), one["click"].to_numpy()
            w.append(weights[rank - 1] if rank <= len(r) else weights[-1] if kind == "cascade" else 1.0)
            wr.append(weights[rank - 1] * r[rank - 1] if rank <= len(r) else 0.0)
        value += sum(wr) / sum(w)
    assert evaluate(log, kind)["new", "snips"].value == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("kind", ["standard", "pseudo_inverse"])
def test_a_weight_of_the_whole_list_is_a_weight_like_any_other(kind: str) -> None:
    log = a_log()
    whole = log.sort("query", "rank").group_by("query", maintain_order=True)
    w = [weights_of(one, kind, "new")[0] for _, one in whole]
    rewards = log.sort("query").group_by("query", maintain_order=True).agg(pl.col("click").sum())["click"]
    plain = cp.evaluate({"r": rewards.to_numpy(), "w": np.array(w)}, reward="r", weight="w")
    found = evaluate(log, kind)
    for name in ("ips", "snips", "beta_ips"):
        assert found["new", name].value == pytest.approx(plain["w", name].value, rel=1e-12)
        assert found["new", name].stderr == pytest.approx(plain["w", name].stderr, rel=1e-10)


def test_cascade_doubly_robust_is_the_published_recursion() -> None:
    log, terms = a_log(), []
    for _, one in log.sort("query", "rank").group_by("query", maintain_order=True):
        w, before, total = 1.0, 1.0, 0.0
        for row in one.iter_rows(named=True):
            w = before * row["new"] / row["p"]
            total += w * (row["click"] - row["q"]) + before * row["v"]
            before = w
        terms.append(total)
    found = evaluate(log, "cascade", model_reward="q", model_value="v")
    assert found["new", "dr"].value == pytest.approx(np.mean(terms), rel=1e-12)
    assert found["new", "dr"].stderr == pytest.approx(np.std(terms) / np.sqrt(len(terms)), rel=1e-12)
    assert found["new", "dm"].value == pytest.approx(log.filter(pl.col("rank") == 1)["v"].mean(), rel=1e-12)
    assert found["new", "optimal_dr"].stderr <= found["new", "dr"].stderr


def test_independent_doubly_robust_adds_up_positions() -> None:
    log = a_log()
    w = log["new"] / log["p"]
    terms = log.with_columns(term=w * (log["click"] - log["q"]) + log["v"]).group_by("query").agg(pl.col("term").sum())
    found = evaluate(log, "independent", model_reward="q", model_value="v")["new", "dr"]
    assert found.value == pytest.approx(terms["term"].mean(), rel=1e-12)


def numbers_of(result: Any) -> dict[Any, tuple[float, float]]:
    return {key: (one.value, one.stderr) for key, one in result.estimates.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_files_and_duckdb_give_the_numbers_of_memory(kind: str, tmp_path: Any) -> None:
    log = a_log()
    log.write_parquet(tmp_path / "log.parquet", row_group_size=100)
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE log AS SELECT * FROM '{tmp_path / 'log.parquet'}'")
        for more in (
            {},
            {"segment": "country", "cluster": "user", "target": ["new", "other"]},
            {"reward": ["click", "sale"]},
        ):
            here = evaluate(log, kind, **more)
            for there in (str(tmp_path / "log.parquet"), connection):
                if there is connection:
                    more = more | {"table": "log"}
                found = evaluate(there, kind, **more)
                if isinstance(more.get("reward"), list):
                    assert found.of("sale")["new", "ips"].value == pytest.approx(
                        here.of("sale")["new", "ips"].value, rel=1e-9
                    )
                    continue
                for key, pair in numbers_of(here).items():
                    assert numbers_of(found)[key] == pytest.approx(pair, rel=1e-9), (there, key)
                assert found.diagnostics("new").max_weight == pytest.approx(
                    here.diagnostics("new").max_weight, rel=1e-9
                )


@pytest.mark.parametrize("kind", KINDS)
def test_two_targets_differ_by_the_difference_of_their_values(kind: str) -> None:
    log = a_log()
    weight, propensity_of = KINDS[kind]
    found = cp.compare(log, target="new", against="other", weight=weight, propensity_of=propensity_of, **PARTS)
    both = [np.array([term for term, *_ in by_list(log, kind, target)]) for target in ("new", "other")]
    assert found["new", "ips"].value == pytest.approx((both[0] - both[1]).mean(), rel=1e-10)


def test_days_of_a_state_add_up_to_the_whole(tmp_path: Any) -> None:
    log = a_log()
    for day in range(2):
        part = log.filter(pl.col("query") % 2 == day)
        found = evaluate(part, "cascade", state=tmp_path / "state.json", batch=str(day))
    whole = evaluate(log, "cascade")
    for name in ("ips", "snips", "beta_ips", "lift"):
        assert found["new", name].value == pytest.approx(whole["new", name].value, rel=1e-10)


def test_positions_may_count_from_0() -> None:
    log = a_log()
    zero = evaluate(log.with_columns(rank=pl.col("rank") - 1), "cascade", discount="dcg")
    one = evaluate(log, "cascade", discount="dcg")
    assert zero["new", "ips"].value == pytest.approx(one["new", "ips"].value, rel=1e-12)


def test_weights_near_1_keep_their_digits() -> None:
    random = np.random.default_rng(3)
    lists, depth = 200, 3
    p = np.full(lists * depth, 0.5)
    u = 1e-9 * random.normal(size=lists * depth)
    log = {
        "query": np.repeat(np.arange(lists), depth), "rank": np.tile(np.arange(depth), lists), "p": p, "new": p * (1 + u),
        "click": random.normal(size=lists * depth),
    }  # fmt: skip
    found = evaluate(log, "standard")["new", "lift"].value
    exact = (log["new"] - p) / p
    s = log["click"].reshape(lists, depth).sum(axis=1)
    w = exact.reshape(lists, depth).sum(axis=1)  # products of excesses are 1e-18
    beta = np.cov(w * (s - s.mean()), w)[0, 1] / np.cov(w, w)[0, 1]
    assert found == pytest.approx((w * (s - s.mean() - beta)).mean(), rel=1e-6)


BAD: dict[str, tuple[Any, str]] = {
    "a position is missing": (lambda log: log.filter((pl.col("query") != 7) | (pl.col("rank") != 1)), "none missing or twice: 1 list"),
    "a position is there twice": (
        lambda log: pl.concat([log, log.filter((pl.col("query") == 7) & (pl.col("rank") == 2))]),
        "none missing or twice: 1 list",
    ),
    "the top is cut off": (lambda log: log.filter(pl.col("rank") > 1), "from 0 or 1"),
    "half a position": (lambda log: log.with_columns(rank=pl.col("rank") * 1.0 + (pl.col("query") == 7) * 0.5), "whole number"),
    "no position": (lambda log: log.with_columns(rank=pl.when(pl.col("query") != 7).then("rank")), "whole number: 1 list"),
    "no list": (lambda log: log.with_columns(query=pl.when(pl.col("query") != 7).then("query")), "slate 'query' must be given"),
    "a list with two users": (
        lambda log: log.with_columns(user=pl.when((pl.col("query") == 7) & (pl.col("rank") == 2)).then(999).otherwise("user")),
        "cluster 'user' must be the same on all rows of a list: 1 list does not; one is list 7",
    ),
    "a propensity of 0": (
        lambda log: log.with_columns(p=pl.when((pl.col("query") == 7) & (pl.col("rank") == 2)).then(0.0).otherwise("p")),
        r"propensity 'p' must lie in \(0, 1\]: 1 list does not; one is list 7",
    ),
    "a reward per list on every row": (
        lambda log: log.with_columns(click=(pl.col("query") % 5).cast(pl.Float64)), "reward of the whole list"
    ),
}  # fmt: skip


@pytest.mark.parametrize("where", ["memory", "memory, in order", "duckdb"])
@pytest.mark.parametrize("fault", BAD)
def test_a_bad_list_is_a_clear_error(fault: str, where: str) -> None:
    broken, said = BAD[fault]
    log = broken(a_log().sort("query", "rank"))
    log = log.sort("query", "rank") if where == "memory, in order" else log.sample(fraction=1.0, shuffle=True, seed=1)
    more: dict[str, Any] = {"cluster": "user"}
    with duckdb.connect() as connection:
        if where == "duckdb":
            connection.register("log", log.to_arrow())
            more["table"] = "log"
        with pytest.raises(LogError, match=said):
            evaluate(connection if where == "duckdb" else log, "cascade", **more)


def test_bad_lists_are_dropped_as_a_whole() -> None:
    log = a_log()
    broken = log.with_columns(
        p=pl.when((pl.col("query") == 7) & (pl.col("rank") == 2)).then(float("nan")).otherwise("p")
    )
    found = evaluate(broken, "cascade", drop_bad_rows=True)
    whole = evaluate(log.filter(pl.col("query") != 7), "cascade")
    for key, pair in numbers_of(whole).items():
        assert numbers_of(found)[key] == pytest.approx(pair, rel=1e-10)
    assert found.diagnostics("new").dropped == 1


def test_the_meaning_of_propensities_must_be_said() -> None:
    with pytest.raises(OptionError, match="say what a row's propensity is the probability of"):
        cp.evaluate(a_log(), target="new", **PARTS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_of_the_other_propensities_is_refused(kind: str) -> None:
    weight, propensity_of = KINDS[kind]
    other = {"item_at_position": "item_given_above", "item_given_above": "item_at_position"}[propensity_of]
    with pytest.raises(OptionError, match="does not go with these propensities"):
        evaluate(a_log(), kind, propensity_of=other)
    with pytest.raises(OptionError, match="nothing says which rows are one"):
        cp.evaluate(a_log(), reward="click", propensity="p", target="new", weight=weight)


def test_the_usual_weight_follows_from_the_propensities() -> None:
    log = a_log()
    for kind in ("independent", "cascade"):
        usual = cp.evaluate(log, target="new", propensity_of=KINDS[kind][1], **PARTS)
        assert usual["new", "beta_ips"].value == pytest.approx(evaluate(log, kind)["new", "beta_ips"].value, rel=1e-12)


def test_lists_cut_off_below_have_the_value_of_their_top() -> None:
    log = a_log()
    found = evaluate(log, "cascade", where="rank <= 2")["new", "ips"]
    assert found.value == pytest.approx(evaluate(log.filter(pl.col("rank") <= 2), "cascade")["new", "ips"].value)


@pytest.mark.parametrize("lengths", ["equal", "ragged"])
@pytest.mark.parametrize("kind", KINDS)
def test_lists_in_order_give_the_numbers_of_lists_in_disorder(kind: str, lengths: str, tmp_path: Any) -> None:
    log = a_log(400)
    log = log.filter(pl.len().over("query") == 4) if lengths == "equal" else log
    ordered = log.sort("query", "rank")
    apart = pl.concat([ordered.tail(5), ordered.head(-5)])  # one list in two places
    ordered.write_parquet(tmp_path / "log.parquet", row_group_size=50)
    for more in ({}, {"cluster": "user", "target": ["new", "other"], "discount": "dcg"}):
        expected = numbers_of(evaluate(log, kind, **more))
        for one in (ordered, apart, str(tmp_path / "log.parquet")):
            found = numbers_of(evaluate(one, kind, **more))
            for key, pair in expected.items():
                assert found[key] == pytest.approx(pair, rel=1e-9), key


def test_batches_may_end_within_a_list(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    log = a_log().sort("query", "rank")
    log.write_parquet(tmp_path / "log.parquet", row_group_size=20)
    expected = numbers_of(evaluate(log, "cascade"))
    monkeypatch.setattr("counterpoise.engines.registry.LISTED", 7)
    found = numbers_of(evaluate(str(tmp_path / "log.parquet"), "cascade"))
    for key, pair in expected.items():
        assert found[key] == pytest.approx(pair, rel=1e-9), key


def test_postgresql_agrees(postgres: str) -> None:
    import ibis

    log, connection = a_log(100), ibis.connect(postgres)
    connection.create_table("lists", log.to_arrow(), overwrite=True)
    try:
        for kind, more in (
            ("cascade", {"segment": "country", "cluster": "user"}),
            ("independent", {}),
            ("pseudo_inverse", {}),
        ):
            found = numbers_of(evaluate(postgres, kind, table="lists", **more))
            for key, pair in numbers_of(evaluate(log, kind, **more)).items():
                assert found[key] == pytest.approx(pair, rel=1e-9), (kind, key)
    finally:
        connection.drop_table("lists")
        connection.disconnect()


def test_the_command_line_evaluates_lists(tmp_path: Any) -> None:
    import json

    from command_line import invoke

    log = a_log()
    log.write_parquet(tmp_path / "log.parquet")
    options = "--reward click --propensity p --slate query --position rank --propensity-of item-given-above --target new --json"
    for weight in ([], ["--weight", "cascade"]):
        answer = json.loads(invoke("evaluate", str(tmp_path / "log.parquet"), *options.split(), *weight).stdout)
        values = {one["estimator"]: one["value"] for one in answer["estimates"]}
        assert values["beta_ips"] == pytest.approx(evaluate(log, "cascade")["new", "beta_ips"].value, rel=1e-9)


def test_days_whose_lists_are_of_other_lengths_add_up() -> None:
    log = a_log().with_columns(long=pl.len().over("query") == 4)
    parts = [evaluate(log.filter(pl.col("long") == long), "cascade").moments for long in (True, False)]
    whole = evaluate(log, "cascade")
    for together in (parts[0] + parts[1], parts[1] + parts[0]):
        found = cp.evaluate(together)
        for name in ("ips", "snips", "beta_ips", "lift"):
            assert found["new", name].value == pytest.approx(whole["new", name].value, rel=1e-10)


def test_answers_are_per_list() -> None:
    assert "per list" in repr(evaluate(a_log(), "cascade"))


def test_a_report_is_written(tmp_path: Any) -> None:
    page = evaluate(a_log(), "independent", segment="country").report(tmp_path / "report.html")
    assert page is None or (tmp_path / "report.html").stat().st_size > 0


@pytest.mark.parametrize(
    ("verb", "more"), [(cp.distribution, {}), (cp.sensitivity, {}), (cp.sql, {"dialect": "duckdb"})]
)
def test_what_looks_at_single_rows_refuses_lists(verb: Any, more: dict[str, Any]) -> None:
    log = cp.Log(a_log(), **PARTS, propensity_of="item_given_above")
    with pytest.raises(OptionError, match="does not work with lists yet"):
        verb(log, target="new", **more)
