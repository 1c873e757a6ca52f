"""Lists in long form: every weight against a plain loop over the lists, wherever the log lives."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest
from conftest import sampled
from doubts import codes
from messages import refuses

import counterpoise as cp
from counterpoise.errors import LogError, OptionError
from counterpoise.evaluation.ranking import drivers
from counterpoise.weights import Cascade, Independent, PseudoInverse, Standard

pytestmark = [
    pytest.mark.once,
    pytest.mark.filterwarnings("ignore:The 'future.infer_string' option"),  # ibis sets it, pandas 3 regrets it
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

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
    # below the end of a list a product stays what it is there
    below = [u[-1] if kind == "cascade" else 0.0 for _, u, _ in each]
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


@pytest.mark.parametrize("kind", sampled(KINDS, "cascade"))
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
    "a position is missing": (lambda log: log.filter((pl.col("query") != 7) | (pl.col("rank") != 1)), "none missing or twice: 1 ranking"),
    "a position is there twice": (
        lambda log: pl.concat([log, log.filter((pl.col("query") == 7) & (pl.col("rank") == 2))]),
        "none missing or twice: 1 ranking",
    ),
    "the top is cut off": (lambda log: log.filter(pl.col("rank") > 1), "from 0 or 1"),
    "half a position": (lambda log: log.with_columns(rank=pl.col("rank") * 1.0 + (pl.col("query") == 7) * 0.5), "whole number"),
    "no position": (lambda log: log.with_columns(rank=pl.when(pl.col("query") != 7).then("rank")), "whole number: 1 ranking"),
    "no list": (lambda log: log.with_columns(query=pl.when(pl.col("query") != 7).then("query")), "slate 'query' must be given"),
    "a list with two users": (
        lambda log: log.with_columns(user=pl.when((pl.col("query") == 7) & (pl.col("rank") == 2)).then(999).otherwise("user")),
        "cluster 'user' must be the same on all rows of a ranking: 1 ranking does not; one is ranking 7",
    ),
    "a propensity of 0": (
        lambda log: log.with_columns(p=pl.when((pl.col("query") == 7) & (pl.col("rank") == 2)).then(0.0).otherwise("p")),
        r"propensity 'p' must lie in \(0, 1\]: 1 ranking does not; one is ranking 7",
    ),
    "a reward per list on every row": (
        lambda log: log.with_columns(click=(pl.col("query") % 5).cast(pl.Float64)), "reward of the whole ranking"
    ),
}  # fmt: skip


@pytest.mark.parametrize("where", sampled(["memory", "memory, in order", "duckdb"], "memory", "memory, in order"))
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
    with refuses(OptionError):
        cp.evaluate(a_log(), target="new", **PARTS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_of_the_other_propensities_is_refused(kind: str) -> None:
    weight, propensity_of = KINDS[kind]
    other = {"item_at_position": "item_given_above", "item_given_above": "item_at_position"}[propensity_of]
    with refuses(OptionError):
        evaluate(a_log(), kind, propensity_of=other)
    with refuses(OptionError):
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
@pytest.mark.parametrize("kind", sampled(KINDS, "cascade"))
def test_lists_in_order_give_the_numbers_of_lists_in_disorder(kind: str, lengths: str, tmp_path: Any) -> None:
    log = a_log(400)
    log = log.filter(pl.len().over("query") == 4) if lengths == "equal" else log
    ordered = log.sort("query", "rank")
    apart = pl.concat([ordered.tail(5), ordered.head(-5)])  # one list in two places
    ordered.write_parquet(tmp_path / "log.parquet", row_group_size=50)
    log.write_parquet(tmp_path / "mixed.parquet")
    for more in ({}, {"cluster": "user", "target": ["new", "other"], "discount": "dcg"}):
        expected = numbers_of(evaluate(log, kind, **more))
        for one in (ordered, apart, str(tmp_path / "log.parquet"), str(tmp_path / "mixed.parquet")):
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
    assert "per ranking" in repr(evaluate(a_log(), "cascade"))


def test_a_report_is_written(tmp_path: Any) -> None:
    page = evaluate(a_log(), "independent", segment="country").report(tmp_path / "report.html")
    assert page is None or (tmp_path / "report.html").stat().st_size > 0


@pytest.mark.parametrize(
    ("verb", "more"), [(cp.distribution, {}), (cp.sensitivity, {}), (cp.sql, {"dialect": "duckdb"})]
)
def test_what_looks_at_single_rows_refuses_lists(verb: Any, more: dict[str, Any]) -> None:
    log = cp.Log(a_log(), **PARTS, propensity_of="item_given_above")
    with refuses(OptionError):
        verb(log, target="new", **more)


def exits(lists: int, seed: int, depth: int = 3) -> pl.DataFrame:
    """Lists filled slot by slot from two items, after the first of which people tend to leave; what each item earns is its number."""
    random = np.random.default_rng(seed)
    p, new = 0.6, 0.3  # the chances of item 0
    item = (random.random((lists, depth)) > p).astype(float)
    stays = random.random((lists, depth)) < np.where(item == 0, 0.4, 0.9)
    there = np.cumprod(np.hstack([np.ones((lists, 1), bool), stays[:, :-1]]), axis=1).astype(bool)
    each = {
        "query": np.repeat(np.arange(lists), depth).reshape(lists, depth), "rank": np.tile(np.arange(1, depth + 1), (lists, 1)),
        "p": np.where(item == 0, p, 1 - p), "new": np.where(item == 0, new, 1 - new), "other": np.full((lists, depth), 0.5),
        "click": 1.0 + item, "q": np.ones((lists, depth)), "v": np.ones((lists, depth)),
    }  # fmt: skip
    return pl.DataFrame({name: one[there] for name, one in each.items()})


REACHED = (0.3 * 0.4 + 0.7 * 0.9) ** np.arange(3)  # by the new policy
WORTH = float(1.7 * REACHED.sum())


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["cascade", "standard"])
def test_a_list_that_ends_because_of_what_it_shows_is_estimated_without_bias(kind: str) -> None:
    runs = [evaluate(exits(500, seed), kind) for seed in range(40)]
    for name in ("ips", "snips", "beta_ips"):
        found = np.array([run["new", name].value for run in runs])
        errors = (found - WORTH) / np.array([run["new", name].stderr for run in runs])
        assert abs(errors.mean()) < 4 / np.sqrt(len(runs)), name
        assert np.mean(np.abs(errors) < 1.96) > 0.95 - 4 * np.sqrt(0.05 * 0.95 / len(runs)), name
    assert np.mean([run.diagnostics("new").mean_weight_p < 0.01 for run in runs]) < 0.2


@pytest.mark.thorough
def test_doubly_robust_estimates_of_lists_that_end_early_are_without_bias() -> None:
    runs = [evaluate(exits(500, seed), "cascade", model_reward="q", model_value="v") for seed in range(20)]
    for name in ("dr", "optimal_dr", "lift"):
        truth = WORTH - (1.4 * (0.6 * 0.4 + 0.4 * 0.9) ** np.arange(3)).sum() if name == "lift" else WORTH
        errors = np.array([(run["new", name].value - truth) / run["new", name].stderr for run in runs])
        assert abs(errors.mean()) < 4 / np.sqrt(len(runs)), name


@pytest.mark.parametrize("kind", ["independent", "pseudo_inverse"])
def test_weights_that_take_lengths_for_given_say_when_they_are_not(kind: str) -> None:
    found = evaluate(exits(2_000, 1), kind)
    assert found.verdict("new").verdict == "caution"
    assert found.diagnostics("new").length_p < 1e-6
    assert found.diagnostics("new").length_shift > 0
    clustered = evaluate(exits(2_000, 1).with_columns(user=pl.col("query") // 2), kind, cluster="user")
    assert clustered.diagnostics("new").length_p < 1e-6
    against = cp.compare(
        exits(2_000, 1), target="new", against="other", weight=KINDS[kind][0], propensity_of="item_at_position", **PARTS
    )
    assert "length-follows-choice" in codes(against.verdict("new"))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["independent", "pseudo_inverse"])
def test_lengths_that_were_fixed_before_the_choice_are_no_reason_for_doubt(kind: str) -> None:
    doubts, runs = 0, 40
    for seed in range(runs):
        log = exits(300, seed).filter(pl.len().over("query") == 3)
        assert evaluate(log, kind).diagnostics("new").length_p == 1.0  # all equal, so there is nothing to test
        cut = log.filter(pl.col("rank") <= 1 + pl.col("query") % 3)
        doubts += evaluate(cut, kind).diagnostics("new").length_p < 0.01
    assert doubts <= 3  # of 40 at 1 %: more in 1 of 1,500 cases


def ended(log: pl.DataFrame, kind: str) -> dict[str, float]:
    """β-IPS by plain arithmetic: every position's weight where it was reached, and that of the end (of the cascade) or 1 below."""
    each = by_list(log, kind)
    y = np.array([term for term, *_ in each])
    end = [u[-1] if kind == "cascade" else 0.0 for _, u, _ in each]
    u = np.array([[*u, *[last] * (3 - len(u))] for (_, u, _), last in zip(each, end, strict=True)])
    if kind in ("standard", "pseudo_inverse"):
        u = u[:, :1]
    beta = np.linalg.lstsq(u - u.mean(axis=0), y - y.mean(), rcond=None)[0]
    length = np.array([len(one) for _, one, _ in each])
    left = length * (u if kind == "pseudo_inverse" else np.array([one.sum() for _, one, _ in each])[:, None])[:, 0]
    shift = left - u @ np.linalg.lstsq(u - u.mean(axis=0), left - left.mean(), rcond=None)[0]
    return {"beta_ips": float((y - u @ beta).mean()), "length": float(shift.mean())}


@pytest.fixture
def sqlite(tmp_path: Any) -> Any:
    import sqlite3

    def stored(log: pl.DataFrame) -> str:
        with closing(sqlite3.connect(tmp_path / "log.sqlite")) as connection, connection:
            connection.execute(f"CREATE TABLE log ({', '.join(f'{name} REAL' for name in log.columns)})")
            connection.executemany(f"INSERT INTO log VALUES ({', '.join('?' * log.width)})", log.rows())
        return f"sqlite://{tmp_path / 'log.sqlite'}"

    return stored


@pytest.mark.parametrize("kind", sampled(KINDS, "cascade"))
def test_every_engine_carries_weights_past_the_end_of_a_list(kind: str, tmp_path: Any, sqlite: Any) -> None:
    log = exits(300, 3)
    mixed = log.sample(fraction=1.0, shuffle=True, seed=1)
    for name, one in {"in order": log, "mixed": mixed}.items():
        one.write_parquet(tmp_path / f"{name}.parquet", row_group_size=70)
    connection = duckdb.connect()
    connection.register("log", mixed.to_arrow())
    arrays = {name: mixed[name].to_numpy() for name in mixed.columns}
    table = {"table": "log"}
    sources = [
        (log, {}), (mixed, {}), (mixed.lazy(), {}), (mixed.to_pandas(), {}), (mixed.to_arrow(), {}), (arrays, {}),
        (str(tmp_path / "in order.parquet"), {}), (str(tmp_path / "mixed.parquet"), {}), (connection, table), (sqlite(mixed), table),
    ]  # fmt: skip
    expected = ended(log, kind)
    for source, more in sources:
        found = evaluate(source, kind, **more)
        assert found["new", "beta_ips"].value == pytest.approx(expected["beta_ips"], rel=1e-9), type(source)
        if kind in ("independent", "pseudo_inverse"):
            assert found.diagnostics("new").length_shift == pytest.approx(expected["length"], rel=1e-8), type(source)
    connection.close()


@pytest.mark.thorough
def test_a_discount_that_depends_on_the_item_leaves_the_baselines_without_bias() -> None:
    runs = []
    for seed in range(30):
        log = exits(500, seed).filter(pl.col("rank") <= 1).with_columns(share=pl.col("click"))
        log = log.with_columns(click=pl.col("click") + pl.col("query") % 5 - 2.0)
        below = {"rank": pl.lit(2, pl.Int64), "share": 1.0, "click": 0.0, "p": 0.5, "new": 0.5}
        both = pl.concat([log, log.with_columns(**{k: v if k == "rank" else pl.lit(v) for k, v in below.items()})])
        runs.append(evaluate(both, "independent", discount="share")["new", "beta_ips"])
    truth = 0.3 * 1 * 1 + 0.7 * 2 * 2
    errors = np.array([(run.value - truth) / run.stderr for run in runs])
    assert abs(errors.mean()) < 4 / np.sqrt(len(runs))


def as_of_old(moments: Any) -> str:
    """What 0.2 stored: no word of what sums of lists mean, and no column of their lengths."""
    import json

    raw = json.loads(moments.to_json())
    del raw["lists"]
    for contrast in raw["contrasts"]:
        stack = contrast["moments"]
        if (place := next((k for k, name in enumerate(stack["columns"]) if name == "u×length"), None)) is not None:
            kept = [k for k in range(len(stack["columns"])) if k != place]
            stack["columns"] = [stack["columns"][k] for k in kept]
            stack["mean"] = np.array(stack["mean"])[..., kept].tolist()
            stack["scatter"] = np.array(stack["scatter"])[..., kept, :][..., kept].tolist()
    return json.dumps(raw)


@pytest.mark.parametrize("kind", KINDS)
def test_moments_of_an_older_version_agree_for_equal_lists_or_are_refused(kind: str) -> None:
    equal = a_log().filter(pl.len().over("query") == 4)
    new = evaluate(equal, kind, target=["new", "other"])
    if kind == "pseudo_inverse":  # which does not say how long its lists were
        with refuses(cp.MomentsError):
            cp.LogMoments.from_json(as_of_old(new.moments))
        return
    old = cp.LogMoments.from_json(as_of_old(new.moments))
    both = cp.evaluate(old + new.moments)
    for name in ("ips", "snips", "beta_ips", "lift"):
        assert both["new", name].value == pytest.approx(new["new", name].value, rel=1e-9)
    assert both.diagnostics("new").length_p == 1.0
    if kind == "cascade":  # in which weights below the end of a list were 1
        import json

        other = evaluate(equal.filter((pl.col("query") % 2 == 0) | (pl.col("rank") < 3)), kind).moments
        raw = json.loads(as_of_old(other))
        scatter = np.array(raw["contrasts"][0]["moments"]["scatter"])
        scatter[..., 0, 0] *= 1.1  # u is not the same mean of its positions in every list
        raw["contrasts"][0]["moments"]["scatter"] = scatter.tolist()
        with refuses(cp.MomentsError):
            cp.LogMoments.from_json(json.dumps(raw))


def test_a_list_id_that_is_nan_is_missing_everywhere(tmp_path: Any, sqlite: Any) -> None:
    id_ = pl.when(pl.col("query") == 7).then(float("nan")).otherwise(pl.col("query").cast(pl.Float64))
    log = a_log(60).drop("country").with_columns(query=id_)
    log.write_parquet(tmp_path / "log.parquet")
    log.write_csv(tmp_path / "log.csv")
    log.write_ndjson(tmp_path / "log.jsonl")
    connection = duckdb.connect()
    connection.register("log", log.to_arrow())
    arrays, table = {name: log[name].to_numpy() for name in log.columns}, {"table": "log"}
    sources = [
        (log, {}), (log.sort("query", "rank"), {}), (log.lazy(), {}), (log.to_pandas(), {}), (log.to_arrow(), {}), (arrays, {}),
        *((str(tmp_path / f"log.{end}"), {}) for end in ("parquet", "csv", "jsonl")), (connection, table), (sqlite(log), table),
    ]  # fmt: skip
    expected = evaluate(a_log(60).filter(pl.col("query") != 7), "pseudo_inverse")["new", "beta_ips"].value
    with refuses(LogError):
        evaluate(log, "pseudo_inverse")
    for source, more in sources:
        found = evaluate(source, "pseudo_inverse", drop_bad_rows=True, **more)
        assert (found.n, found.dropped_rows) == (59, 1), type(source)
        assert found["new", "beta_ips"].value == pytest.approx(expected, rel=1e-9), type(source)
    connection.close()


@pytest.mark.parametrize("end", ["parquet", "csv", "jsonl"])
def test_an_error_about_a_bad_list_in_a_file_names_a_bad_list(end: str, tmp_path: Any) -> None:
    bad = {11: ("p", 0.0), 123: ("click", float("inf")), 250: ("new", 2.0)}
    log = a_log()
    for query, (name, value) in bad.items():
        is_it = (pl.col("query") == query) & (pl.col("rank") == 2)
        log = log.with_columns(pl.when(is_it).then(value).otherwise(name).alias(name))
    write = {"parquet": log.write_parquet, "csv": log.write_csv, "jsonl": log.write_ndjson}[end]
    write(tmp_path / f"log.{end}")
    with pytest.raises(LogError) as error:
        evaluate(str(tmp_path / f"log.{end}"), "cascade")
    for query in bad:
        assert f"one is ranking {query}." in str(error.value)


def test_plan_of_lists_refuses_to_guess_what_exploring_would_save() -> None:
    parts = PARTS | {"target": "new", "propensity_of": "item_given_above", "difference": 0.05}
    assert cp.plan(a_log(), **parts).needs.value_rows > 0
    with refuses(OptionError):
        cp.plan(a_log(), **parts, actions=5)


@pytest.mark.parametrize("cluster", [None, "user"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_drives_a_difference_of_lists_adds_up_to_it(kind: str, cluster: str | None) -> None:
    weight, propensity_of = KINDS[kind]
    found = cp.compare(
        a_log(), target="new", against="other", weight=weight, propensity_of=propensity_of, segment="country", cluster=cluster, **PARTS
    )  # fmt: skip
    parts = drivers(found)
    assert {one.segment for one in parts} == {("a",), (None,)}
    assert sum(one.contribution for one in parts) == pytest.approx(found["new", "beta_ips"].value, rel=1e-9)


def test_whatever_is_said_of_lists_counts_lists(tmp_path: Any) -> None:
    import re

    from command_line import invoke

    from counterpoise.diagnostics.verdict import CODES

    log = a_log(20)  # too few, so that there are doubts to put in words
    bad = log.with_columns(p=pl.when((pl.col("query") % 5 == 1) & (pl.col("rank") == 1)).then(0.0).otherwise("p"))
    nothing = log.with_columns(new=pl.lit(0.0))
    weight, of = KINDS["cascade"]
    texts = []
    for one in (log, bad, nothing, log.with_columns(click=pl.lit(0.0))):
        result = evaluate(one, "cascade", target=["new", "other"], segment="country", drop_bad_rows=True)
        versus = cp.compare(
            one, target="new", against="other", weight=weight, propensity_of=of, drop_bad_rows=True, **PARTS
        )
        texts += [
            repr(result),
            result._repr_html_(),
            repr(versus),
            *result.verdict("new").reasons,
            *versus.verdict("new").reasons,
        ]
        for page in (result, versus):
            page.report(tmp_path / "report.html")
            texts.append((tmp_path / "report.html").read_text())
        assert f"{result.n} rankings" in repr(result)
    log.write_parquet(tmp_path / "log.parquet")
    parts = {"reward": "click", "propensity": "p", "slate": "query", "position": "rank", "target": "new"}
    options = [word for name, column in parts.items() for word in (f"--{name}", column)]
    options += ["--propensity-of", "item-given-above"]
    for verb, more in (("evaluate", []), ("compare", ["--against", "other", "--segment", "country"])):
        answer = invoke(verb, str(tmp_path / "log.parquet"), *options, *more)
        assert answer.exit_code == 0
        texts.append(answer.output)
    for text in texts:
        words = re.sub(rf"\b({'|'.join(CODES)})\b", " ", text)  # codes are the same whatever is counted
        words = re.sub(r"<(script|style)\b.*?</\1>|<[^>]*>", " ", words, flags=re.DOTALL)
        words = re.sub(r"\d more rows?; see|\d rows, largest first", " ", words)  # which are those of tables
        assert not re.search(r".{0,80}\b[Rr]ows?\b.{0,40}", words), re.search(r".{0,80}\b[Rr]ows?\b.{0,40}", words)
