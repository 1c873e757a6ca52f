"""The laws of every kind of rows: NumPy's answer, whatever the order, the days and the source; segments and clusters."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import plain
import polars as pl
import pytest
from conftest import sampled
from evaluation import test_episodes, test_keep, test_labels, test_lists, test_loggers, test_ratios

import counterpoise as cp
from counterpoise.engines import registry
from counterpoise.errors import MomentsError

pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'future.infer_string' option"),  # ibis sets it, pandas 3 regrets it
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

Pair = tuple[float, float]


@dataclass(frozen=True)
class Kind:
    """A log with users and countries, how it is asked, and what NumPy makes of a target's rows: value and error by estimator."""

    log: pl.DataFrame
    asked: dict[str, Any]
    reference: Callable[[pl.DataFrame, str], dict[str, Pair]]
    target: str
    other: str
    own: str  # the logging policy as a target, in SQL
    not_this: dict[str, Any]  # what makes the question one about rows of another kind
    unit: str = ""  # the column in which rows that belong together agree
    further: tuple[dict[str, Any], ...] = field(default=())  # questions that take another way through the engines

    def units(self, count: int) -> list[pl.DataFrame]:
        """The log in pieces, none of which ends within what belongs together."""
        turn = pl.col(self.unit) % count if self.unit else pl.int_range(pl.len()) * count // pl.len()
        return [self.log.filter(turn == k) for k in range(count)]


def mean(terms: np.ndarray) -> Pair:
    return float(terms.mean()), float(terms.std() / np.sqrt(len(terms)))


def of_plain_rows(w: np.ndarray, r: np.ndarray) -> dict[str, Pair]:
    value = (w * r).mean() / w.mean()
    snips = (value, mean(w * (r - value))[1] / w.mean())
    beta = np.cov(w * r, w)[0, 1] / w.var(ddof=1) if w.var() > 1e-20 else 0.0
    return {"ips": mean(w * r), "snips": snips, "beta_ips": mean(w * r - beta * (w - 1))}


def of_sampled_rows(log: pl.DataFrame, target: str) -> dict[str, Pair]:
    if (log[target] == log["p"]).all():  # no baseline is needed
        h, r = 1 / log["k"].to_numpy(), log["r"].to_numpy()
        value = float((h * r).sum() / h.sum())
        return {"beta_ips": (value, float(np.sqrt(np.square(h * (r - value)).sum()) / h.sum()))}
    value, stderr, _ = plain.sampled_beta_ips(plain.Rows.of(log[target], log["p"], log["r"]), log["k"], None)
    return {"beta_ips": (value, stderr)}


def of_a_ratio(log: pl.DataFrame, target: str) -> dict[str, Pair]:
    w = (log[target] / log["p"]).to_numpy()
    ratio, rows = test_ratios.of(w, log)
    found = {"snips": (ratio, mean(rows)[1])}
    return found | ({"beta_ips": test_ratios.best(ratio * w + rows * w.mean(), w - 1)} if w.var() > 1e-20 else {})


def of_labeled_rows(log: pl.DataFrame, target: str) -> dict[str, Pair]:
    found = test_labels.by_hand(log, target)
    return {name: found[name] for name in ("ips", "snips", "beta_ips")}


def of_lists(log: pl.DataFrame, target: str) -> dict[str, Pair]:
    return {"ips": mean(np.array([term for term, *_ in test_lists.by_list(log, "cascade", target)]))}


def of_episodes(log: pl.DataFrame, target: str) -> dict[str, Pair]:
    excess, weighted, _ = test_episodes.looped(log, 0.9, target)
    found = {"ips": mean(weighted.sum(axis=1))}
    if not excess.any():
        return found
    v = weighted.mean(axis=0) / (1.0 + excess.mean(axis=0))
    return found | {"beta_ips": test_episodes.shared(excess, weighted.sum(axis=1), [v, np.ones(len(v))])}


def of_loggers(log: pl.DataFrame, target: str) -> dict[str, Pair]:
    w = log[target] / (0.25 * log["p_a"] + 0.75 * log["p_b"])
    return of_plain_rows(w.to_numpy(), log["r"].to_numpy())


def with_places(log: pl.DataFrame) -> pl.DataFrame:
    """Its rows with users and countries, in which users are at home."""
    user = pl.int_range(pl.len()) // 3
    return log.with_columns(user=user, country=pl.when(user % 4 > 0).then(pl.lit("a")).otherwise(pl.lit("b")))


PLAIN = with_places(
    test_keep.a_log(1500)[1].with_columns(w=0.2 + 0.1 * pl.col("a"))  # the log before it was sampled
)
LABELS = with_places(test_labels.a_log(1, 0.2, 2000))
KINDS = {
    "plain": Kind(
        PLAIN,
        {"reward": "r", "propensity": "p"},
        lambda log, target: of_plain_rows((log[target] / log["p"]).to_numpy(), log["r"].to_numpy()),
        "t", "w", "p", {"reward": "q"}, further=({"model_reward": "q", "model_value": ["v", "v"]}, {"baseline": ["x"]}),
    ),
    "sampled": Kind(
        with_places(test_keep.a_log(2500)[0].with_columns(w=0.2 + 0.1 * pl.col("a"))),
        {"reward": "r", "propensity": "p", "keep": "k"},
        of_sampled_rows, "t", "w", "p", {"keep": None},
        further=({"model_reward": "q", "model_value": ["v", "v"]}, {"weight": cp.weights.Clip(1.5)}),
    ),
    "ratio": Kind(
        with_places(test_ratios.LOG[:1500]), test_ratios.ASKED, of_a_ratio, "new", "old", "p", {"reward": "revenue"},
        further=({"keep": "keep"},),
    ),
    "labeled": Kind(
        LABELS,
        {"reward": "reward", "propensity": "p"} | test_labels.LABELS,
        of_labeled_rows, "new", "old", "p", {"proxy": "x"},
        further=({"label_propensity": "chance"}, {"label_propensity": 0.5, "where": "x > 0.3"}, {"baseline": ["x"]}),
    ),
    "lists": Kind(
        test_lists.a_log(), test_lists.PARTS | {"weight": test_lists.Cascade(), "propensity_of": "item_given_above"},
        of_lists, "new", "other", "p", {"slate": None, "position": None, "weight": None, "propensity_of": None}, "query",
        ({"discount": "dcg"},),
    ),
    "episodes": Kind(
        test_episodes.a_log(), {"reward": "r", "propensity": "p", "episode": "game", "step": "move", "discount_factor": 0.9},
        of_episodes, "new", "other", "p", {"episode": None, "step": None, "discount_factor": None}, "game",
        ({"done": "done"}, {"weight": test_episodes.Trajectory()}),
    ),
    "loggers": Kind(
        with_places(test_loggers.logged(1500, 0.4, 2)[0].with_columns(old=pl.col("p_b"))),
        test_loggers.PARTS | {"shares": {"a": 1, "b": 3}},
        of_loggers, "new", "old", "0.25 * p_a + 0.75 * p_b", {"propensity": "p_a", "logger": None, "shares": None},
    ),
}  # fmt: skip
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
TOGETHER = {"segment": "country", "cluster": "user"}


def pairs(result):
    """Value and error of every estimate."""
    return {key: (one.value, one.stderr) for key, one in result.estimates.items()}


def assert_same(found, wanted, rel=1e-9):
    assert found.keys() == wanted.keys()
    for key, pair in wanted.items():
        assert found[key] == pytest.approx(pair, rel=rel, abs=1e-11, nan_ok=True), key


@every_kind
def test_the_answer_is_that_of_numpy(kind):
    result = cp.evaluate(kind.log, **kind.asked, target=[kind.target, kind.other])
    for target in (kind.target, kind.other):
        for name, pair in kind.reference(kind.log, target).items():
            one = result[target, name]
            assert (one.value, one.stderr) == pytest.approx(pair, rel=1e-9), (target, name)


@every_kind
def test_the_logging_policy_earns_what_was_logged(kind):
    log = kind.log.with_columns(pl.sql_expr(kind.own).alias("own"))
    result = cp.evaluate(log, **kind.asked, target="own")
    (value, stderr), *_ = kind.reference(log, "own").values()
    for name in ("snips", "beta_ips"):
        assert (result["own", name].value, result["own", name].stderr) == pytest.approx((value, stderr), rel=1e-9), name
    assert result["own", "lift"].value == pytest.approx(0.0, abs=1e-12)
    assert result["own", "lift"].stderr == pytest.approx(0.0, abs=1e-7)


@every_kind
def test_merging_equals_concatenating_and_order_does_not_matter(kind):
    question = kind.asked | TOGETHER | {"target": [kind.target, kind.other]}
    whole = pairs(cp.evaluate(kind.log, **question))
    parts = [cp.evaluate(part, **question).moments for part in kind.units(3)]
    assert_same(pairs(cp.evaluate(sum(parts))), whole)
    mixed = kind.log.sample(fraction=1.0, shuffle=True, seed=1)
    assert_same(pairs(cp.evaluate(mixed, **question)), whole)


@every_kind
def test_days_of_a_state_add_up_to_the_whole_and_another_question_is_refused(kind, tmp_path):
    question, state = kind.asked | TOGETHER | {"target": kind.target}, tmp_path / "state.json"
    days = kind.units(2)
    for k, day in enumerate(days):
        found = cp.evaluate(day, **question, state=state, batch=str(k))
    assert_same(pairs(found), pairs(cp.evaluate(kind.log, **question)))
    assert_same(pairs(cp.evaluate(state=state)), pairs(found), rel=1e-12)
    another = {name: part for name, part in (question | kind.not_this).items() if part is not None}
    with pytest.raises(MomentsError):
        cp.evaluate(days[0], **another, state=state, batch="another")
    assert_same(pairs(cp.evaluate(state=state)), pairs(found), rel=1e-12)


@every_kind
def test_a_segment_has_the_answer_of_its_own_rows(kind):
    result = cp.evaluate(kind.log, **kind.asked, target=kind.target, segment="country")
    for (country,) in result.moments.segments:
        rows = kind.log.filter(pl.col("country").eq_missing(pl.lit(country)))
        for name, pair in kind.reference(rows, kind.target).items():
            one = result[kind.target, name, (country,)]
            assert (one.value, one.stderr) == pytest.approx(pair, rel=1e-9), (country, name)


@every_kind
def test_rows_that_are_repeated_within_clusters_say_no_more(kind):
    """Three times the rows, and clusters that know: errors stay, where without clusters they fall by √3."""
    asked = kind.asked | {"target": kind.target, "segment": "country"}
    log = kind.log.with_columns(cluster=pl.col(kind.unit) if kind.unit else pl.int_range(pl.len()))
    again = pl.concat([log.with_columns(pl.col(kind.unit) * 3 + k) if kind.unit else log for k in range(3)])
    single, tripled = (pairs(cp.evaluate(rows, **asked, cluster="cluster")) for rows in (log, again))
    assert_same(tripled, single)
    for key, (value, stderr) in pairs(cp.evaluate(again, **asked, cluster=False)).items():
        if key[1] == "beta_ips":
            one = cp.evaluate(log, **asked, cluster=False).estimates[key]
            assert (value, stderr * np.sqrt(3)) == pytest.approx((one.value, one.stderr), rel=1e-6)


def duckdb_of(log, _):
    duckdb = pytest.importorskip("duckdb")
    return duckdb.sql("select * from log")


SOURCES = {
    "arrays": lambda log, _: {name: log[name].to_numpy() for name in log.columns},
    "pandas": lambda log, _: log.to_pandas(),
    "lazy": lambda log, _: log.lazy(),
    "arrow": lambda log, _: log.to_arrow(),
    "parquet": lambda log, folder: (log.write_parquet(folder / "log.parquet", row_group_size=170), folder / "log.parquet")[1],
    "csv": lambda log, folder: (log.write_csv(folder / "log.csv"), folder / "log.csv")[1],
    "duckdb": duckdb_of,
}  # fmt: skip


def answer(kind, verb, number, log):
    """Every estimate with its interval, and the codes of every caveat: what a verb says to one of a kind's questions."""
    more = (TOGETHER, *kind.further)[number]
    targets = {
        "evaluate": {"target": [kind.target, kind.other]},
        "compare": {"target": kind.target, "against": kind.other},
    }
    result = getattr(cp, verb)(log, **kind.asked | more | targets[verb], progress=False)
    found = {key: (one.value, one.stderr, *one.interval) for key, one in result.estimates.items()}
    return found, [sorted(one.code for one in verdict.caveats) for verdict in result.verdicts.values()]


@pytest.fixture(scope="module")
def expected():
    """What memory said, by kind and question."""
    return {}


@pytest.mark.parametrize(
    "source", sampled([*SOURCES, "lazy in pieces", "parquet in pieces"], "lazy", "parquet in pieces", "duckdb")
)
@every_kind
def test_every_source_gives_the_numbers_of_memory(kind, source, expected, tmp_path, monkeypatch):
    name, in_pieces, _ = source.partition(" in pieces")
    if in_pieces:
        monkeypatch.setattr(registry, "SHORT", 0)
    questions = [(verb, number) for number in range(1 + len(kind.further)) for verb in ("evaluate", "compare")]
    if source == "duckdb" and kind.unit:  # whose statements take long to plan
        questions = questions[:1]
    log = SOURCES[name](kind.log, tmp_path)
    for question in questions:
        if (id(kind), *question) not in expected:
            expected[id(kind), *question] = answer(kind, *question, kind.log)
        (found, codes), (numbers, wanted) = answer(kind, *question, log), expected[id(kind), *question]
        assert_same(found, numbers)
        assert codes == wanted, question
