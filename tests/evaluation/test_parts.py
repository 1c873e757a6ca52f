"""Every part of a log and every verb: the part is used, or refused by name; what no answer depends on is written down here."""

import ast
import re
import warnings
from importlib import import_module
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from conftest import sampled
from messages import refuses
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsRegressor

import counterpoise as cp
from counterpoise.display import as_text
from counterpoise.errors import CounterpoiseError, OptionError
from counterpoise.log.parts import LogFields
from counterpoise.log.verbs import LIMITS

pytestmark = pytest.mark.once

RANDOM = np.random.default_rng(0)
N = 600


class Softmax:
    """A policy over three actions, among the candidates if there are any."""

    classes_, candidates_ = np.arange(3), None

    def predict_proba(self, table, candidates=None):
        scores = np.exp(np.asarray(table, dtype=float)[:, :1] * self.classes_ / 2)
        if candidates is not None:
            scores = scores * np.array([[one in pool for one in self.classes_] for pool in candidates.to_list()])
        return scores / scores.sum(axis=1, keepdims=True)


def frame(seed):
    random = np.random.default_rng(seed)
    action, x = random.integers(0, 3, N), random.normal(size=N)
    made = pl.DataFrame(
        {
            "a": action, "b": (action + random.integers(0, 2, N)) % 3, "x": x, "y": random.normal(size=N),
            "r": (random.random(N) < 0.1 + 0.15 * action + 0.4 * (x > 0)).astype(float), "s": random.random(N), "p": np.full(N, 1 / 3),
            "p2": random.uniform(0.2, 0.5, N), "q": random.random(N), "v": random.random(N),
            "who": random.choice(["A", "B"], N), "whose": random.choice(["A", "B"], N), "user": np.arange(N) // 6,
            "session": np.arange(N) // 7, "id": np.arange(N), "c": random.normal(size=N), "few": [[one, (one + 1) % 3] for one in action],
            "o": random.integers(0, 2, N), "o2": random.integers(0, 2, N),
            "list": np.arange(N) // 3, "query": np.arange(N) // 3 % 50, "place": np.arange(N) % 3 + 1, "rank": np.arange(N) % 3,
            "over": (np.arange(N) % 3 == 2) * (np.arange(N) > 20) * 1.0,
        }
    )  # fmt: skip
    chosen = np.exp(np.outer(made["y"], np.arange(3)) / 2)
    made = made.with_columns(t=(chosen / chosen.sum(axis=1, keepdims=True))[np.arange(N), action], leak=pl.col("r") * 2)
    return made.with_columns(
        seen=pl.col("x").gather(pl.arange(0, N) // 3 * 3),
        shown=pl.col("y").gather(pl.arange(0, N) // 3 * 3),
        item=pl.Series(np.tile(np.arange(3), N // 3)),
        cost=pl.col("a") * pl.col("y"),
    )


FRAME = frame(0)
BAD = FRAME.with_columns(r=pl.when(pl.col("id") == 3).then(None).otherwise("r"))
ROWS = FRAME.drop(
    "list", "query", "place", "rank", "over", "seen", "shown", "item"
)  # which nobody takes for positions of lists
ITEMS = pl.DataFrame({"a": [0, 1, 2], "price": [1.0, 5.0, 2.0]})
PLAIN = {"reward": "r", "propensity": "p", "target": "t"}
POLICY = PLAIN | {"action": "a", "context": ["x"], "target": {"new": Softmax()}}
LISTS = PLAIN | {"slate": "list", "position": "place", "propensity_of": "item_given_above"}
EPISODES = PLAIN | {"episode": "list", "step": "place"}
LOGGERS = PLAIN | {"propensity": {"A": "p", "B": "p2"}, "logger": "who"}
MODELED = POLICY | {"model": Ridge()}

# part: what goes with it, and two values of it, which a verb that uses it must tell apart
CELLS = {
    "reward": (PLAIN, "r", "s"),
    "propensity": (PLAIN, "p", "p2"),
    "logger": (LOGGERS, "who", "whose"),
    "shares": (LOGGERS, None, {"A": 5, "B": 1}),
    "action": (POLICY, "a", "b"),
    "context": (POLICY, ["x"], ["leak"]),
    "candidates": (POLICY, None, "few"),
    "cluster": (PLAIN, None, "user"),
    "key": (PLAIN, None, "user"),
    "keep": (PLAIN, None, "p2"),
    "rows_before": (PLAIN | {"keep": "p2"}, None, 2000),
    "proxy": (PLAIN | {"observed": "o"}, "q", "v"),
    "observed": (PLAIN | {"proxy": "q"}, "o", "o2"),
    "label_propensity": (PLAIN | {"proxy": "q", "observed": "o"}, None, "p2"),
    "model_reward": (PLAIN | {"model_value": "v"}, "q", "s"),
    "model_value": (PLAIN | {"model_reward": "q"}, "v", "s"),
    "model": (POLICY, None, Ridge(50.0)),
    "items": (MODELED, None, ITEMS),
    "value_samples": (MODELED, None, 1),
    "control": (PLAIN, None, {"c": 0.0}),
    "baseline": (PLAIN, None, ["x"]),
    "slate": (LISTS, "list", "query"),
    "position": (LISTS, "place", "4 - place"),
    "propensity_of": (LISTS, "item_given_above", "item_at_position"),
    "discount": (LISTS, None, "dcg"),
    "per": (PLAIN, None, "s + 0.5"),
    "minimize": (PLAIN | {"reward": "cost"}, None, "cost"),
    "episode": (EPISODES, "list", "query"),
    "step": (EPISODES, "place", "4 - place"),
    "discount_factor": (EPISODES, None, 0.5),
    "done": (EPISODES, None, "over"),
    "where": (PLAIN, None, "x > 0"),
    "table": (PLAIN, "one", "two"),
    "query": (PLAIN, "SELECT * FROM one", "SELECT * FROM two"),
    "external_access": (PLAIN, None, True),
    "timeout": (PLAIN, None, 9.0),
    "format": (PLAIN, None, "router"),
    "groups": (PLAIN | {"cluster": "user"}, 10, 20),
    "reward_bounds": (PLAIN, None, (-2.0, -1.0)),
    "drop_bad_rows": (PLAIN, None, True),
    "max_segments": (PLAIN, None, 5),
    "trained_on": (POLICY, False, FRAME),
    "cross_fit": (POLICY | {"target": {"new": Ridge()}}, None, True),
}


def document(result):
    return as_text(result.document())


def of_evaluate(log, **parts):
    return document(cp.evaluate(log, **parts))


def of_compare(log, **parts):
    found = cp.compare(log, **parts)
    return repr(
        [(one.reward, one.estimates, one.verdicts, one.diagnostics().document()) for one in found.by_reward.values()]
    )


def of_rank(log, **parts):
    return repr(list(cp.rank(log, **parts)))


def of_plan(log, **parts):
    return repr(cp.plan(log, difference=0.1, **parts).document())


def of_doctor(log, target, **parts):
    return repr(cp.doctor(log, target="t", **parts).document())


def of_ab_test(log, target, propensity, **parts):
    given = {"propensity": {"A": propensity, "B": "p2"}} if parts.get("logger") is None and propensity else {}
    return as_text(cp.ab_test(log, arm="who", **given, **parts).document())


def of_backtest(log, **parts):
    return repr(cp.backtest({"spring": log}, {"spring": (0.2, 0.1)}, **parts).tests)


def of_distribution(log, **parts):
    found = cp.distribution(log, **parts)
    return repr([found.statistics(), found.cdf().to_dicts()])


def of_sensitivity(log, **parts):
    found = cp.sensitivity(log, **parts)
    return repr((found.table(), found.document()))


def of_sql(log, target, **parts):
    text = cp.sql(target="t", dialect="duckdb", **({"table": "one"} | parts))
    if isinstance(parts.get("propensity"), dict) and parts.get("shares") is None:
        return text
    import duckdb

    with duckdb.connect() as connection:
        for name, rows in TABLES.items():
            connection.register(name, (BAD if parts.get("drop_bad_rows") else rows).to_arrow())
        if parts.get("drop_bad_rows") is None and log is BAD:
            connection.register("one", BAD.to_arrow())
        rows = connection.sql(text).pl()
    return text + document(cp.evaluate(cp.from_sums(rows, target="t", **parts)))


def learned(learner):
    return repr(
        (
            learner.predict_proba([[0.5], [-1.0]]).tolist(),
            learner.result_["fold policies", "lift"],
            learner.dropped_rows_,
        )
    )


def of_policy_learner(log, target, **parts):
    from counterpoise.learn import PolicyLearner

    objective = "dr" if parts.get("model") is not None else "beta_ips"
    learner = PolicyLearner(objective, epochs=1, folds=3, fallback="warn", batch_size=200, learning_rate=0.1)
    return learned(learner.fit(log, **({"action": "a", "context": ["x"]} | parts)))


def of_learn_policy(log, target, **parts):
    from counterpoise.learn.contenders import Direct

    chosen = (
        {"objective": "direct"} if parts.get("model") is not None else {"contenders": [Direct(KNeighborsRegressor(20))]}
    )
    found = cp.learn_policy(log, minutes=None, fallback="warn", **chosen, **({"action": "a", "context": ["x"]} | parts))
    return repr((found.predict_proba([[0.5], [-1.0]]).tolist(), found.result.estimates, found.dropped_rows))


def of_ranking_learner(log, target, **parts):
    from counterpoise.learn import RankingLearner

    learner = RankingLearner(epochs=2, batch_size=32, learning_rate=0.1, holdout=0.3)
    given = LISTS | {"action": "item"} | parts | {"context": ["shown" if parts.get("context") == ["leak"] else "seen"]}
    given.pop("target")
    learner.fit(log, **given)
    return repr((learner.predict([[0.5]]).tolist(), learner.history_, learner.result_.estimates))


VERBS = {
    "evaluate": of_evaluate, "compare": of_compare, "rank": of_rank, "plan": of_plan, "doctor": of_doctor, "ab_test": of_ab_test,
    "backtest": of_backtest, "distribution": of_distribution, "sensitivity": of_sensitivity, "sql": of_sql,
    "PolicyLearner": of_policy_learner, "learn_policy": of_learn_policy, "RankingLearner": of_ranking_learner,
}  # fmt: skip
TABLES = {"one": FRAME, "two": frame(1)}


def outcome(verb, log, parts):
    """What a verb answers, or the error it raises."""
    try:
        with warnings.catch_warnings(action="ignore"):
            found = VERBS[verb](log, **{name: value for name, value in parts.items() if value is not None})
            # sums over threads may differ in their last digits
            return re.sub(r"\d+\.\d+(e-?\d+)?", lambda digits: f"{float(digits[0]):.8g}", found)
    except CounterpoiseError as error:
        return error


# what no answer of a verb depends on, and why
FOR_POLICIES = dict.fromkeys(
    ("action", "context", "candidates"), "only a policy or a model looks at it, and there is none"
)
NOT_COUNTED = {"key": "repeated rows are counted in the diagnostics of evaluate, which this verb does not show"}
HOW = "it says how to estimate, and the doctor looks at the log"
GOOD = {"control": "decides only which rows are good, as in evaluate"}
INDEPENDENT = {
    "sensitivity": NOT_COUNTED,
    "doctor": {
        "candidates": "no policy is asked",
        **dict.fromkeys(("per", "model", "items", "value_samples", "model_reward", "model_value", "control", "baseline"), HOW),
        "reward_bounds": HOW, "drop_bad_rows": "bad rows are what it looks for",
    },
    "ab_test": FOR_POLICIES,
    "backtest": {"minimize": "whether signs agree does not depend on which is better"},
    "sql": FOR_POLICIES,
    "PolicyLearner": NOT_COUNTED | GOOD,
    "learn_policy": NOT_COUNTED | GOOD,
}  # fmt: skip


@pytest.mark.parametrize("verb", sampled(VERBS, "evaluate", "compare", "PolicyLearner"))
def test_every_part_is_used_or_refused_by_name(verb):
    if "earn" in verb:
        pytest.importorskip("torch")
    pytest.importorskip("ibis") if verb == "sql" else None
    duckdb = pytest.importorskip("duckdb")
    ignored, nameless = [], []
    with duckdb.connect() as connection:
        for name, rows in TABLES.items():
            connection.register(name, rows.to_arrow())
        for part, (base, first, second) in CELLS.items():
            rows = FRAME if base in (LISTS, EPISODES) or verb == "RankingLearner" else ROWS
            log = BAD if part == "drop_bad_rows" else connection if part in ("table", "query") else rows
            one, two = (outcome(verb, log, base | {part: value}) for value in (first, second))
            goes_with = {part, *(name for name in base if base[name] is not PLAIN.get(name))}
            if isinstance(two, OptionError) and not any(name in str(two) for name in goes_with):
                nameless.append((part, str(two)))
            if isinstance(one, str) and one == two:
                ignored.append(part)
    assert ignored == [part for part in CELLS if part in INDEPENDENT.get(verb, {})]
    assert not nameless


@pytest.mark.parametrize("verb", list(VERBS))
def test_two_rewards_are_answered_for_both_or_refused(verb):
    if "earn" in verb:
        pytest.importorskip("torch")
    found = outcome(verb, FRAME, (LISTS if verb == "RankingLearner" else POLICY) | {"reward": ["r", "s"]})
    if verb == "doctor":
        assert "one of 2 rewards" in str(found)
    elif verb in ("evaluate", "compare"):
        assert "s" in {
            one.reward for one in getattr(cp, verb)(FRAME, **(PLAIN | {"reward": ["r", "s"]})).by_reward.values()
        }
    else:
        assert isinstance(found, OptionError)
        assert "reward" in str(found)


def test_no_part_and_no_verb_is_left_out():
    assert set(CELLS) == set(LogFields.__annotations__)
    assert set(VERBS) == set(LIMITS)
    source = Path(cp.__file__).parent
    takes = set()
    for file in source.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            kwarg = (
                node.args.kwarg if isinstance(node, ast.FunctionDef) and node.name not in ("__init__", "but") else None
            )
            if kwarg is not None and kwarg.annotation is not None and "LogFields" in ast.unparse(kwarg.annotation):
                takes.add((file.relative_to(source).as_posix(), node.name))
    named = {name for _, name in takes}
    assert named == (set(VERBS) - {"PolicyLearner", "RankingLearner"}) | {
        "from_sums",
        "fit",
        "watch",
    } | set(cp.read.__all__) - {"to_obp"}  # which evaluate, or make logs
    assert {file for file, name in takes if name == "fit"} == {"learn/learner.py", "learn/ranking.py"}


def test_a_propensity_that_a_model_is_to_estimate_is_no_column():
    log = FRAME.with_columns(propensity="p", model="p2")
    found = cp.doctor(log, reward="r", action="a", context=["x"], propensity="model", target="t")
    assert found.propensity is None
    assert not any(one.about == "propensity" for one in found.findings)


def test_loggers_that_nobody_asks_for_are_refused():
    for extra in ({"logger": "who"}, {"shares": {"A": 1, "B": 1}}):
        with pytest.raises(OptionError, match=next(iter(extra))):
            cp.evaluate(FRAME, reward="r", weight="t", **extra)


def test_parts_given_beside_the_logs_of_a_backtest_are_used_or_refused():
    outcomes = {"spring": (0.2, 0.1)}
    whole = cp.Log(FRAME, reward="r", propensity="p")
    some = cp.backtest({"spring": whole}, outcomes, target="t", where="x > 0")
    assert some["spring"].predicted != cp.backtest({"spring": whole}, outcomes, target="t")["spring"].predicted
    made = cp.compare(whole, target="t")
    with refuses(OptionError):
        cp.backtest({"spring": made}, outcomes, where="x > 0")


def test_every_option_of_a_command_is_used_by_it():
    folder = Path(import_module("counterpoise.cli").__file__).parent
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and any(
                "ends_at_once" in ast.unparse(one) for one in node.decorator_list
            ):
                offered = {one.arg for one in (*node.args.args, *node.args.kwonlyargs)}
                used = {one.id for part in node.body for one in ast.walk(part) if isinstance(one, ast.Name)}
                assert not offered - used, (file.name, offered - used)
