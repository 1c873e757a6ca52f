"""Whatever a message tells you to do is done: it cures what the message was about, and never makes a wrong answer `ok`."""

import ast
import contextlib
import datetime as dt
import math
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import numpy as np
import polars as pl
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

import counterpoise as cp
from counterpoise.errors import CounterpoiseError
from counterpoise.evaluation import wording
from counterpoise.evaluation.reading import read

SOURCE = Path(cp.__file__).parent
OLD, NEW, RATE = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5]), np.array([0.2, 0.4, 0.6])
TRUTH = float(NEW @ RATE)


# -- the worlds -----------------------------------------------------------------------------------------------------------


def shop(n=3000, seed=0, **more):
    """A log of three actions whose target, `t`, is worth `TRUTH`; every other column plays some part in a row of the table."""
    g = np.random.default_rng(seed)
    a = g.choice(3, n, p=OLD)
    first, day = np.arange(n) < n // 2, np.arange(n) * 10 // n
    return pl.DataFrame(
        {
            "r": (g.random(n) < RATE[a]) * 1.0,
            "p": OLD[a],
            "t": NEW[a],
            "u": 1 / 3,
            "a": a,
            "best": g.integers(0, 3, n),
            "x": g.normal(size=n),
            "s": g.choice(["DE", "FR"], n),
            "group": g.integers(0, 300, n),
            "row": np.arange(n),
            "day": [dt.date(2026, 1, 1) + dt.timedelta(int(k)) for k in day],
            "who": np.where(first, "one", "two"),
            "half": 0.5,
            "amount": g.integers(1, 9, n) * 1.0,
            "labeled": g.random(n) < 0.5,
            "list": np.arange(n) // 3,
            "place": np.arange(n) % 3 + 1,
            "q": RATE[a],
            "v": TRUTH,
        }
    ).with_columns(**more)


def written(how: Callable[[np.ndarray], np.ndarray], **more):
    """The same log, whose logger wrote something else for the propensity."""
    log = shop(6000)
    return log.with_columns(p=pl.Series(how(log["p"].to_numpy())), **more)


def explored(epsilon=0.2, actions=5, n=6000):
    """A policy that explores with probability ε, and writes ε where it did; the truth of its target, `t`, is in the column `v`."""
    g = np.random.default_rng(1)
    rate = g.beta(2, 5, (actions, actions))
    x, favorite = g.integers(actions, size=n), rate.argmax(axis=1)
    a = np.where(g.random(n) < epsilon, g.integers(actions, size=n), favorite[x])
    p = np.where(a == favorite[x], 1 - epsilon, epsilon)
    log = {"r": (g.random(n) < rate[x, a]) * 1.0, "p": p, "t": 1 / actions, "a": a, "v": rate.mean()}
    return pl.DataFrame(log)


def counted(n=6000, draws=40):
    """Propensities that are shares of a few draws."""
    g = np.random.default_rng(2)
    p = g.beta(1, 1, n) * 0.9 + 0.05
    a = g.random(n) < p
    count = g.binomial(draws, p)
    share = np.where(a, count, draws - count) / draws
    log = pl.DataFrame({"r": (g.random(n) < 0.5) * 1.0, "p": share, "t": 0.5})
    return log.filter(pl.col("p") > 0)


def users(n=4000):
    """Clicks of users who come again, and whose clicks are alike."""
    g = np.random.default_rng(3)
    user, a = g.integers(0, 400, n), g.integers(0, 2, n)
    rate = 1 / (1 + np.exp(1 - 1.5 * g.normal(size=400)[user]))
    return pl.DataFrame({"user_id": user, "p": 0.5, "t": np.where(a, 0.8, 0.2), "r": (g.random(n) < rate) * 1.0})


def twice():
    """Rows that are there twice."""
    log = shop(1000).select("r", "p", "t", "x")
    return pl.concat([log, log]).with_columns(copy=pl.int_range(2000) % 1000)


def lists(n=2000):
    """Lists of three items out of six, with the probability of each given those above."""
    g = np.random.default_rng(4)
    chances = np.exp(np.linspace(1, -1, 6)) / np.exp(np.linspace(1, -1, 6)).sum()
    items = np.array([g.choice(6, 3, replace=False, p=chances) for _ in range(n)])
    log = {"list": np.repeat(np.arange(n), 3), "place": np.tile([1, 2, 3], n), "item_id": items.ravel()}
    left = 1 - np.c_[np.zeros(n), np.cumsum(chances[items], axis=1)[:, :-1]]
    p = (chances[items] / left).ravel()
    return pl.DataFrame(log | {"p": p, "t": p, "r": (g.random(3 * n) < 0.3) * 1.0})


def heavy(n=4000):
    """Rewards without a variance."""
    return shop(n, r=pl.Series(np.random.default_rng(5).pareto(1.2, n)))


def lacking():
    """A log whose policy never takes the last action in one country."""
    log, g = shop(6000), np.random.default_rng(6)
    there = (log["s"] == "DE").to_numpy()
    a = np.where(there, g.choice(2, 6000, p=OLD[:2] / 0.8), log["a"])
    return log.with_columns(
        a=pl.Series(a),
        p=pl.Series(np.where(there, OLD[a] / 0.8, OLD[a])),
        r=pl.Series((g.random(6000) < RATE[a]) * 1.0),
    )


def prices(n=4000):
    """Prices, logged with their densities, as those of its target, which charges more; and groups of prices with their probability."""
    g = np.random.default_rng(9)
    x = g.normal(size=n)
    price = g.normal(1 + 0.3 * x, 0.2)
    density = lambda mean: np.exp(-0.5 * ((price - mean) / 0.2) ** 2) / (0.2 * np.sqrt(2 * np.pi))  # noqa: E731
    sold = lambda price: 1 / (1 + np.exp(2 * (price - 1)))  # noqa: E731
    below = np.array([0.5 * (1 + math.erf((0.9 - 1 - 0.3 * each) / 0.2 / math.sqrt(2))) for each in x])
    log = {
        "x": x,
        "price": price,
        "r": (g.random(n) < sold(price)) * 1.0,
        "v": sold(g.normal(1.1 + 0.3 * x, 0.2)).mean(),
    }
    log |= {"p": density(1 + 0.3 * x), "t": density(1.1 + 0.3 * x), "group": (price >= 0.9) * 1}
    return pl.DataFrame(log | {"chance": np.where(price < 0.9, below, 1 - below)})


def coins():
    """Rewards that are coin flips."""
    return shop(r=pl.Series((np.random.default_rng(10).random(3000) < 0.4) * 1.0))


def fitted_on(log):
    """A policy that takes what was rewarded nearby."""
    rewarded = log.filter(pl.col("r") > 0)
    return KNeighborsClassifier(1).fit(rewarded.select("x").to_numpy(), rewarded["a"].to_numpy())


def linked(log, state=None, **options):
    """A state that is a link, unless another is named."""
    if state is None:
        state = Path("link.json")
        state.unlink(missing_ok=True)
        state.symlink_to("state.json")
    return cp.evaluate(log, state=state, **options)


def on_disk(log, ask, path: object = "a.parquet", **options):
    """A verb that reads the log from a file."""
    with TemporaryDirectory() as folder, contextlib.chdir(folder):
        for place in path if isinstance(path, list) else [path, "a.parquet"]:
            getattr(log, f"write_{Path(place).suffix[1:]}")(place)
        return ask(path, **options)


def added(log, first, path="", **options):
    """What a state says of a second addition, or of the first one."""

    def add(data, **chosen):
        if first is not None:
            start = BASE | {name: value for name, value in first.items() if name != "path"}
            cp.evaluate(first.get("path", data), state="state.json", **start)
        return cp.evaluate(data, state="state.json", **chosen)

    if path:
        return on_disk(log, add, path, **options)
    with TemporaryDirectory() as folder, contextlib.chdir(folder):
        return add(log, **options)


def database(schema="main"):
    """The log as a table of DuckDB."""
    connection = duckdb.connect()
    connection.register("given", shop().to_arrow())
    connection.execute(
        f"CREATE SCHEMA IF NOT EXISTS {schema}; CREATE TABLE {schema}.logs AS SELECT * FROM given; CREATE TABLE other AS SELECT 1 AS r"
    )
    return connection


def seen_through_a_view(log, **options):
    """A file of DuckDB with a view that reads another file."""
    with TemporaryDirectory() as folder:
        log.write_parquet(f"{folder}/log.parquet")
        with duckdb.connect(f"{folder}/log.duckdb") as connection:
            connection.execute(f"CREATE VIEW seen AS SELECT * FROM '{folder}/log.parquet'")
        return cp.evaluate(f"{folder}/log.duckdb", **options)


def learned(log, policy=None, *, verb="learner", model=None, reward, propensity, target, **options):
    """A policy that is learned from the log; without torch there is none."""
    learn = pytest.importorskip("counterpoise.learn", reason="needs PyTorch", exc_type=ImportError)
    if verb == "learn_policy":
        return cp.learn_policy(
            log, reward=reward, propensity=propensity, action="a", context="x", model=model, **options
        )
    if verb == "smooth":
        parts = {"reward": reward, "propensity": propensity, "action": "a", "context": "x"}
        return learn.PolicyLearner("log_smoothing", epochs=1, fallback="imitate").fit(log, **parts, **options)
    models = {} if model is None else {"model": model}
    made = {} if policy is None else {"policy": getattr(learn, policy)(1, 3)}
    learner = learn.PolicyLearner(epochs=1, **made, **options)
    return learner.fit(log.select("x").to_numpy(), cp.logged(log["a"], log[reward], log[propensity]), **models)


# -- the table ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Advice:
    """What is asked, and what of the message is followed, as a pattern; `own` are values that the message leaves to its reader.

    Where the message is about an argument to replace, `leave_out` says which goes. `truth` is for logs that are wrong: an `ok` must
    hold it.
    """

    said: str
    options: Mapping[str, object] = field(default_factory=dict)
    own: Mapping[str, object] = field(default_factory=dict)
    log: Callable[[], object] = shop
    ask: Callable[..., object] = cp.evaluate
    leave_out: tuple[str, ...] = ()
    truth: float | str | None = None


def arrays(p):
    """The log as arrays, with other propensities."""
    log = shop()
    return {"reward": log["r"].to_numpy(), "propensity": p.to_numpy(), "target": log["t"].to_numpy()}


BASE = {"reward": "r", "propensity": "p", "target": "t"}
MODEL = {"propensity": "model", "context": "x", "action": "a"}
CONTEXT = {"action": "a", "context": "x"}
LISTS = {"slate": "list", "position": "place", "propensity_of": "item_given_above"}
LOGGERS = {"propensity": {"one": "p", "two": "half"}, "logger": "who"}


def pick(log, then, **options):
    """A verb that needs a result first."""
    return then(cp.evaluate(log, **options))


class Greedy:
    """A policy with `predict_proba`."""

    classes_ = np.array([0, 1, 2])

    def predict_proba(self, contexts):
        return np.tile(NEW, (len(contexts), 1))


class Locked(Greedy):
    """One that cannot be told from another."""

    def __init__(self):
        self.lock = threading.Lock()


PROPENSITIES = {
    "percentages": Advice("Pass propensity='p / 100'", log=lambda: written(lambda p: 100 * p), truth=TRUTH),
    "logarithms": Advice(r"Pass propensity='exp\(p\)'", log=lambda: written(np.log), truth=TRUTH),
    "inverses": Advice("Pass propensity='1 / p'", log=lambda: written(lambda p: 1 / p), truth=TRUTH),
    "odds": Advice(
        r"Pass propensity='[^']*'", {"action": "a"}, log=lambda: written(lambda p: p / (1 - p) * 0.999), truth=TRUTH
    ),
    "complements": Advice(
        "Pass propensity='1 - p'", {"action": "a"}, log=lambda: written(lambda p: 1 - p), truth=TRUTH
    ),
    "ε": Advice("Pass propensity='CASE[^']*'", {"action": "a"}, log=explored, truth="v"),
    "another column": Advice(
        "Pass propensity='right'",
        {"action": "a"},
        log=lambda: written(lambda p: p[::-1], right=shop(6000)["p"]),
        truth=TRUTH,
    ),
    "percentages of arrays": Advice(
        r"Pass an array of propensity / 100 as propensity",
        arrays(100 * shop()["p"]),
        arrays(shop()["p"]),
        log=lambda: None,
        ask=lambda _, **options: cp.evaluate(**options),
    ),
    "counts of arrays": Advice(
        r"pass an array of \(propensity \* 40 \+ 1\) / 41 as propensity",
        {
            "reward": counted()["r"].to_numpy(),
            "propensity": counted()["p"].to_numpy(),
            "target": counted()["t"].to_numpy(),
        },
        {"propensity": (counted()["p"].to_numpy() * 40 + 1) / 41},
        log=lambda: None,
        ask=lambda _, **options: cp.evaluate(**options),
    ),
    "one coincidence": Advice(
        r"To let more checks tell, name [^.]*action=[^.]*\.",
        {"propensity": "1 - p"},
        {"action": "took", "segment": "s"},
        log=lambda: written(lambda p: 1 - p).select("r", "p", "t", "s", took="a"),
        truth=TRUTH,
    ),
    "the range": Advice(
        "Pass propensity='p / 100'",
        log=lambda: written(lambda p: 100 * p).select("r", "p"),
        ask=lambda log, target=None, **options: cp.doctor(log, **options),
    ),
    "counts": Advice("pass propensity='.*?'", log=counted, truth=0.5),
    "meaning": Advice(
        "Pass propensity_of='item_given_above'", LISTS | {"propensity_of": "item_at_position"}, log=lists
    ),
}
ROWS = {
    "clusters": Advice("Pass cluster='user_id'", log=users),
    "no clusters": Advice("pass cluster=False", log=users),
    "copies": Advice("pass cluster=;", own={"cluster": "copy"}, log=twice),
    "no copies": Advice("pass cluster=False", log=lambda: twice().drop("copy")),
    "kept": Advice("pass keep='keep_rate'", log=lambda: shop(keep_rate=pl.Series(np.tile([0.5, 0.9], 1500)))),
    "all kept": Advice("pass keep=1", log=lambda: shop(keep_rate=pl.Series(np.tile([0.5, 0.9], 1500)))),
    "kept, says the doctor": Advice(
        "pass keep='keep_rate'", log=lambda: shop(keep_rate=pl.Series(np.tile([0.5, 0.9], 1500))), ask=cp.doctor
    ),
    "rows before": Advice("Pass keep=, too", {"rows_before": 6000}, {"keep": 0.5}),
    "rows before of a part": Advice("Leave out rows_before=", {"rows_before": 6000, "keep": 0.5, "where": "x > 0"}),
    "bad rows": Advice(
        r"with drop_bad_rows=True", log=lambda: shop(p=pl.when(pl.col("row") == 7).then(0.0).otherwise("p"))
    ),
    "segments": Advice(r"Pass max_segments=\d+", {"segment": "row"}),
    "fewer segments": Advice("name a column with fewer values as segment=", {"segment": "row"}, {"segment": "s"}),
    "segments of time": Advice(
        r'segment="strftime.*?"',
        {"segment": "time"},
        log=lambda: shop(time=pl.datetime(2026, 1, 1) + pl.duration(hours="row")),
    ),
    "no segments": Advice("pass segment=", {"max_segments": 5}, {"segment": "s"}),
}
TARGETS = {
    "actions": Advice(r"pass target=Chosen\(column='best'\), with action=", {"target": "best"}, {"action": "a"}),
    "actions as probabilities": Advice(
        r"pass target=Chosen\(column='action_new'\) and action=",
        {"target": "action_new"},
        {"action": "two"},
        log=lambda: shop(two=pl.col("a") % 2, action_new=pl.col("best") % 2, p=0.5),
    ),
    "no target": Advice(
        "name its column with target=", {"target": None}, {"target": "t"}, log=lambda: shop().to_dict(as_series=False)
    ),
    "two of a name": Advice(
        r"Name them yourself: target=\{.*?\}",
        {"target": [Greedy(), Greedy()], **CONTEXT},
        {"target": {"a": Greedy(), "b": Greedy()}},
    ),
    "one of a plan": Advice("Choose one with target='t'", {"target": ["t", "u"], "difference": 0.1}, ask=cp.plan),
    "a list": Advice("with target=", {"target": cp.Always(1), "action": "a", **LISTS}, {"target": "t"}),
    "candidates": Advice(
        "leave out candidates=",
        {"target": Greedy(), "candidates": "allowed", **CONTEXT},
        log=lambda: shop(allowed=[[0, 1, 2]] * 3000),
    ),
    "a weight of your own": Advice(
        "Pass weight= or target=, not both",
        {"weight": "w"},
        {"weight": "w", "target": None},
        log=lambda: shop(w=pl.col("t") / pl.col("p")),
    ),
}
ESTIMATES = {
    "one value": Advice(
        "if they can be more, pass reward_bounds=", own={"reward_bounds": (0, 5)}, log=lambda: shop(r=1.0)
    ),
    "one odd value": Advice("unless you pass reward_bounds=", own={"reward_bounds": (0, 5)}, log=lambda: shop(r=3.0)),
    "clipped": Advice("name a target= and leave out weight=", {"weight": cp.weights.Clip(1.2)}, {"target": "t"}),
    "chosen": Advice(
        "pass that one as weight=", {"weight": cp.weights.Slope(cp.weights.Clip)}, {"weight": cp.weights.Clip(2.0)}
    ),
    "a ladder": Advice(
        r"Pass weight=cp\.weights\.Slope\(cp\.weights\.Clip\)", {"then": lambda result: result.ladder()}, ask=pick
    ),
    "no model": Advice(
        "in model_reward= and model_value=", {"estimator": "dr"}, {"model_reward": "q", "model_value": "v"}
    ),
    "no baseline": Advice("needs baseline=", {"estimator": "context_ips"}, {"baseline": ["x"]}),
    "no model of items": Advice("Pass model='auto', too", {"target": Greedy(), **CONTEXT, "value_samples": 5}),
    "a baseline and a model": Advice(
        "Pass model='auto' instead", {**MODEL, "baseline": ["x"], "target": Greedy()}, leave_out=("baseline",)
    ),
    "a model of columns": Advice(
        "Pass a policy.* or Probabilities", {"model": "ridge", **CONTEXT}, {"target": Greedy()}
    ),
    "columns of a model": Advice(
        "model_reward= and model_value=",
        {"model": "ridge", **CONTEXT},
        {"model_reward": "q", "model_value": "v"},
        leave_out=("model",),
    ),
    "a baseline for a model": Advice(
        "for what needs no model of actions, baseline=",
        {"model": "ridge", **CONTEXT},
        {"baseline": ["x"]},
        leave_out=("model",),
    ),
    "two rewards of many": Advice(
        "Pass model='ridge'", {"model": "logistic", "reward": "amount", "target": Greedy(), **CONTEXT}
    ),
    "one reward": Advice("Leave out model=", {"model": "auto", "target": Greedy(), **CONTEXT}, log=lambda: shop(r=1.0)),
    "worth": Advice(
        "Pass model='auto'", {"then": lambda result: result.worth(), "target": Greedy(), **CONTEXT}, ask=pick
    ),
    "a sure interval of a model": Advice(
        "Pass interval='student'", {**MODEL, "interval": cp.intervals.Bernstein((0, 1), 20)}
    ),
    "a sure interval of samples": Advice(
        "Pass interval='student'", {"keep": 0.5, "interval": cp.intervals.Bernstein((0, 1), 20)}
    ),
    "a sure interval of labels": Advice(
        "Pass interval='student'", {"proxy": "q", "observed": "labeled", "interval": cp.intervals.Bernstein((0, 1), 20)}
    ),
    "a class": Advice(
        r"Pass an object, interval=Student", {"interval": cp.intervals.Student}, {"interval": cp.intervals.Student()}
    ),
    "no interval": Advice(
        r"pass an object such as cp\.intervals\.Anytime\(tuned_for=1e6\)",
        {"interval": 3},
        {"interval": cp.intervals.Anytime(tuned_for=1e6)},
        leave_out=("tuned_for",),
    ),
    "bounds of Bernstein": Advice(
        r"interval=cp\.intervals\.Bernstein\(reward_bounds=\(0, 1\), max_weight=10\)", {"interval": "bernstein"}
    ),
    "level": Advice(r"pass level=0\.95", {"level": 95}),
    "no propensity is null": Advice("Pass propensity='p'", {"propensity": cp.models.Propensity(column="p"), **CONTEXT}),
    "candidates of a model": Advice(
        "leave out candidates=", {**MODEL, "candidates": "allowed"}, log=lambda: shop(allowed=[[0, 1, 2]] * 3000)
    ),
    "a ladder with a model": Advice(
        r"weight=Clip\(10\)",
        {**MODEL, "weight": cp.weights.Slope(cp.weights.Clip)},
        {"weight": cp.weights.Clip(10)},
    ),
    "heavy tails": Advice(
        "or pass reward_bounds=",
        own={"reward_bounds": (0, 1e6)},
        log=heavy,
        ask=lambda log, **options: cp.distribution(log, **options).cvar(1.0).verdict,
    ),
    "a distribution with a model": Advice(
        "Name the column with propensity=", MODEL, {"propensity": "p"}, ask=cp.distribution
    ),
    "a ratio": Advice("leave out per=", {"reward": cp.Ratio("r", "amount"), "per": "amount"}),
    "a plan of samples": Advice("Leave out actions=", {"difference": 0.1, "actions": 3, "keep": 0.5}, ask=cp.plan),
    "a share of nothing": Advice(
        r"difference=0\.01",
        {"difference": "5%"},
        ask=cp.plan,
        log=lambda: shop(r=pl.Series(np.tile([-1.0, 0.5], 1500))),
    ),
}
KINDS = {
    "lists without an order": Advice("Pass position=", LISTS | {"position": None}, {"position": "place"}, log=lists),
    "lists without ids": Advice("Pass slate=", LISTS | {"slate": None}, {"slate": "list"}, log=lists),
    "lists of what": Advice("propensity_of='item_given_above'", LISTS | {"propensity_of": None}, log=lists),
    "a weight of rankings": Advice(
        "Choose .*?, or log", LISTS | {"weight": cp.weights.Independent()}, {"weight": cp.weights.Standard()}, log=lists
    ),
    "episodes without ids": Advice("Pass episode=", {"step": "place"}, {"episode": "list"}, log=lists),
    "episodes without an order": Advice("Pass step=", {"episode": "list"}, {"step": "place"}, log=lists),
    "a ratio with a model": Advice("leave out model=", {"per": "amount", "model": "ridge", **CONTEXT}),
    "a distribution of ratios": Advice("leave out per=", {"per": "amount"}, ask=cp.distribution),
    "loggers": Advice("with logger=", LOGGERS | {"logger": None}, {"logger": "who"}),
    "loggers that were not named": Advice(
        "with where=",
        LOGGERS,
        {"where": "who <> 'three'"},
        log=lambda: shop(who=pl.when(pl.col("row") < 9).then(pl.lit("three")).otherwise("who")),
    ),
    "loggers without rows": Advice(
        "give shares=",
        {"propensity": {"one": "p", "two": "half", "three": "u"}, "logger": "who"},
        {"shares": {"one": 0.4, "two": 0.4, "three": 0.2}},
    ),
    "who logged": Advice(
        r"pass propensity=\{.*?\} and logger=", {"then": lambda result: result.loggers()}, {**LOGGERS}, ask=pick
    ),
    "a doctor of loggers": Advice(
        "as propensity=, and its rows with where=",
        LOGGERS,
        {"propensity": "p", "where": "who = 'one'"},
        ask=cp.doctor,
        leave_out=("logger",),
    ),
    "arms and loggers": Advice(
        "leave out logger=",
        {"logger": "who", "arm": "who"},
        ask=lambda log, arm, reward, logger=None, **_: cp.ab_test(
            log, arm=arm, reward=reward, **({} if logger is None else {"logger": logger})
        ),
    ),
    "rows without an arm": Advice(
        "Drop them with where=",
        {"arm": "who"},
        {"where": "who is not null"},
        log=lambda: shop(who=pl.when(pl.col("row") != 7).then("who")),
        ask=lambda log, arm, reward, where=None, **_: cp.ab_test(log, arm=arm, reward=reward, where=where),
    ),
    "labels": Advice("Pass observed=", {"proxy": "q"}, {"observed": "labeled"}),
    "the doctor's probabilities": Advice(
        "with action=COLUMN",
        {"probabilities": ["half", "half", "half"]},
        {"action": "took"},
        ask=cp.doctor,
        log=lambda: shop(took="a").select("r", "p", "t", "half", "took"),
    ),
    "days": Advice("day=, the column with the day", own={"day": "day"}, ask=cp.watch),
    "no watch": Advice(
        "and day=", {"log": None}, {"log": shop(), "day": "day"}, ask=lambda _, log, **options: cp.watch(log, **options)
    ),
    "what watch refers to": Advice(
        "Pass reference=14",
        {"reference": "spring", "day": "day"},
        ask=cp.watch,
        log=lambda: shop(day=pl.date(2026, 1, 1) + pl.duration(days=pl.col("row") // 100)),
    ),
    "groups of a statement": Advice(
        "Pass cluster=, too",
        {"groups": 30, "dialect": "duckdb", "table": "logs"},
        {"cluster": "group"},
        ask=lambda log, **options: cp.sql(**options),
    ),
    "a segment's sensitivity": Advice(
        "pass where=",
        {
            "segment": "s",
            "then": lambda result: result.verdict(segment="DE" if result.segment_rows else None, sensitivity=True),
        },
        {"where": "s = 'DE'"},
        ask=pick,
        leave_out=("segment",),
    ),
    "a key of a part": Advice("Pass state=, too", {"batch": "monday"}, {"state": "state.json"}),
}
STATES = {
    "a file twice": Advice(
        "give them a key of their own with batch=",
        {"path": "a.parquet"},
        {"batch": "tuesday"},
        ask=lambda log, **options: added(log, {}, **options),
    ),
    "a batch twice": Advice(
        r"or pass replace=True",
        {"batch": "monday"},
        ask=lambda log, **options: added(log, {"batch": "monday"}, **options),
    ),
    "a batch of files": Advice(
        r"with batch='monday' and replace=True",
        {"path": "a.parquet", "replace": True},
        ask=lambda log, **options: added(log, {"batch": "monday"}, **options),
    ),
    "files that are the same": Advice(
        "give all of them a key with batch=",
        {"path": ["a.parquet", "b.parquet"]},
        {"batch": "tuesday"},
        ask=lambda log, **options: added(log, None, **options),
    ),
    "a copy": Advice(
        "give them a key with batch=",
        {"path": "a.csv"},
        {"batch": "tuesday"},
        ask=lambda log, **options: added(log, {"path": "a.parquet"}, **options),
    ),
    "a lock in a policy": Advice(
        r"Pass version=\{.*?\}",
        {"target": Locked(), "batch": "first", **CONTEXT},
        ask=lambda log, **options: added(log, None, **options),
    ),
    "new with every library": Advice(
        r"with version=\{.*?\}",
        {"target": Locked(), "version": {"Locked": "2"}, **CONTEXT},
        {"version": {"Locked": "1"}},
        ask=lambda log, **options: added(
            log,
            {"target": Locked(), "version": {"Locked": "1"}, **CONTEXT, "batch": "first"},
            **options | {"batch": "second"},
        ),
    ),
}
DATABASES = {
    "one of two": Advice(
        "pass table= or query=",
        {"table": "logs", "query": "SELECT * FROM logs"},
        {"query": None, "table": "logs"},
        log=lambda: database(),
        leave_out=("query",),
    ),
    "no table": Advice("name the log's table with table=", {}, {"table": "logs"}, log=lambda: database()),
    "a table elsewhere": Advice(
        r"logs in the schema shop is table=\['shop', 'logs'\]", {"table": "shop.logs"}, log=lambda: database("shop")
    ),
    "files of a database": Advice(
        "pass external_access=True", {"table": "seen"}, ask=lambda log, **options: seen_through_a_view(log, **options)
    ),
    "rows without an order": Advice(
        "Name what identifies a row with key=",
        {"model": "ridge", "target": Greedy(), **CONTEXT, "table": "logs"},
        {"key": "row"},
        log=lambda: database(),
    ),
    "rows without groups": Advice(
        "Pass cluster=", {"table": "logs", "estimator": "cross_fit"}, {"cluster": "group"}, log=lambda: database()
    ),
}
MORE = {
    "loggers without propensities": Advice(
        "pass propensity='model' alone, with the logger among the columns of context=",
        LOGGERS | {"propensity": {"one": "model", "two": "half"}},
        {"context": ["x", "who"], "action": "a"},
        leave_out=("logger",),
    ),
    "no segments there": Advice("leave out max_segments=", {"max_segments": 5}, ask=cp.distribution),
    "labels without a proxy": Advice(
        "evaluate the labeled rows with where=", {"observed": "labeled"}, {"where": "labeled"}, leave_out=("observed",)
    ),
    "labels of a plan": Advice(
        "leave it out, and pass where=",
        {"observed": "labeled", "proxy": "q", "difference": 0.1},
        {"where": "labeled"},
        ask=cp.plan,
        leave_out=("observed", "proxy"),
    ),
    "labels by the proxy": Advice(
        "Pass label_propensity=",
        {"observed": "labeled", "proxy": "q"},
        {"label_propensity": "rate"},
        log=lambda: (
            shop(6000)
            .with_columns(rate=pl.col("q"))
            .with_columns(labeled=pl.Series(np.random.default_rng(8).random(6000)) < pl.col("rate"))
        ),
        truth=TRUTH,
    ),
    "a decision": Advice(
        "Pass probabilities=",
        {},
        {"probabilities": {1: 0.4, 2: 0.6}},
        ask=lambda _, probabilities=None, **options: cp.check_decision(1, probabilities),
    ),
    "groups of a policy": Advice(
        "with groups=",
        {},
        {"groups": {0: "x", 1: "x", 2: "y"}},
        ask=lambda _, groups=None, **options: cp.ActionGroup(Greedy(), "p", groups),
    ),
    "shares of a statement": Advice(
        "Pass shares=",
        LOGGERS | {"dialect": "duckdb", "table": "logs"},
        {"shares": {"one": 0.5, "two": 0.5}},
        ask=lambda log, **options: cp.sql(**options),
    ),
    "one file": Advice(
        "or pass day=", {}, {"day": "day"}, ask=lambda log, **options: on_disk(log, cp.watch, **options)
    ),
    "the rest": Advice(
        r"evaluate the rest with where=\"s <> 'DE'\"",
        {"target": Greedy(), "action": "a", "context": "s"},
        log=lambda: lacking(),
    ),
    "moments without a model": Advice("needs model='auto'", {"estimator": "dr", "target": Greedy(), **CONTEXT}),
}
COSTS = {
    "a cost": Advice("If so, pass minimize='cost'", {"reward": "cost"}, log=lambda: shop(cost="r"), truth=TRUTH),
    "no cost": Advice("if more is better, minimize=False", {"reward": "cost"}, log=lambda: shop(cost="r"), truth=TRUTH),
    "a cost of candidates": Advice("pass minimize=True", {"reward": "cost"}, log=lambda: shop(cost="r"), ask=cp.rank),
    "no cost of candidates": Advice("else minimize=False", {"reward": "cost"}, log=lambda: shop(cost="r"), ask=cp.rank),
    "a cost that is no reward": Advice("Pass minimize='r'", {"minimize": "amount"}, truth=TRUTH),
    "the worst costs": Advice(
        r"Leave out minimize=, and pass reward='-\(r\)'", {"minimize": True}, ask=cp.distribution
    ),
    "the worst costs of arrays": Advice(
        "Leave out minimize=, and pass the rewards with the other sign",
        arrays(shop()["p"]) | {"minimize": True},
        {"reward": -shop()["r"].to_numpy()},
        log=lambda: None,
        ask=lambda _, **options: cp.distribution(**options),
    ),
}
OWN = {
    "own rows": Advice(
        "pass those that it was fitted on as trained_on=",
        {"target": fitted_on(coins()), **CONTEXT},
        {"trained_on": coins()},
        log=coins,
        truth=0.4,
    ),
    "own rows by key": Advice("Pass key=", {"trained_on": shop().head(9)}, {"key": "row"}),
    "own rows by what is in them": Advice("or context= and action=", {"trained_on": shop().head(9)}, CONTEXT),
    "a model that is not fitted": Advice(
        "an unfitted model of the reward with cross_fit=True", {"target": LinearRegression(), **CONTEXT}
    ),
}
DENSITIES = {
    "densities": Advice(r"pass propensity='p / 100' and target=\{.*?\}", {"action": "price"}, log=prices, truth="v"),
    "single prices": Advice(
        "pass the group as action=, .* as propensity=",
        {"action": "price", "target": cp.Always(1.0)},
        {"action": "group", "propensity": "chance", "target": cp.Always(1)},
        log=prices,
    ),
}
DAILY = {
    "looks": Advice(
        "Leave out interval=",
        {"batch": "tuesday", "interval": "student"},
        ask=lambda log, **options: added(log, {"batch": "monday"}, **options),
    ),
    "where of a day": Advice(
        "pass where=",
        {"where": "day >= '2026-01-05'", "batch": "tuesday"},
        {"where": "day = '2026-01-05'"},
        ask=lambda log, where, **options: added(
            log, {"where": where.replace("05", "04"), "batch": "monday"}, where=where, **options
        ),
    ),
    "a link": Advice("Name the file itself: state='[^']*'", {"batch": "monday"}, ask=linked),
    "as of": Advice("Pass as_of='2026-11-14'", {"as_of": "yesterday", "day": "day"}, ask=cp.watch),
    "a time limit": Advice("leave it out", {"timeout": 5}, leave_out=("timeout",)),
}
OTHERS = {
    "unlabeled rows": Advice(
        "take proxy=.*?observed=",
        own={"proxy": "q", "observed": "labeled"},
        log=lambda: shop(r=pl.when(pl.col("labeled")).then("r")),
        truth=TRUTH,
    ),
    "an action of the doctor": Advice(
        r"Name its column with action=",
        {"target": cp.Chosen("best")},
        {"action": "took"},
        log=lambda: shop(took="a").select("r", "p", "best", "took"),
        ask=cp.doctor,
    ),
    "a logger of one": Advice("or leave out logger=", {"logger": "who"}),
    "a mapping of loggers": Advice(
        "Pass propensity= as a mapping", {"logger": "who"}, {"propensity": {"one": "p", "two": "half"}}
    ),
    "a weight of loggers": Advice("leave out weight=", LOGGERS | {"weight": cp.weights.Clip(10)}),
    "a weight of episodes": Advice(
        r"Pass weight=PerDecision\(\)",
        {"episode": "list", "step": "place", "weight": cp.weights.Clip(10)},
        {"weight": cp.weights.PerDecision()},
    ),
    "a weight of episodes for rows": Advice(
        "Pass episode= and step=",
        {"weight": cp.weights.PerDecision()},
        {"episode": "list", "step": "place"},
    ),
    "a weight of lists for rows": Advice(
        "Pass slate=, position= and propensity_of=",
        LISTS | dict.fromkeys(("slate", "position", "propensity_of")) | {"weight": cp.weights.Cascade()},
        {name: LISTS[name] for name in ("slate", "position", "propensity_of")},
        log=lists,
    ),
    "what was logged": Advice(
        r"Pass y=",
        {"y": {"action": shop()["a"], "reward": shop()["r"]}},
        {"y": cp.logged(shop()["a"], shop()["r"], shop()["p"])},
        ask=lambda log, y, **_: cp.value_scorer(Greedy(), log.select("x").to_numpy(), y),
    ),
    "what was logged without propensities": Advice(
        r"pass a log instead, with propensity='model'",
        {"y": {"action": shop()["a"], "reward": shop()["r"]}},
        {"target": Greedy(), **CONTEXT},
        ask=lambda log, y=None, **options: (
            cp.evaluate(log, **options) if y is None else cp.value_scorer(Greedy(), log.select("x").to_numpy(), y)
        ),
        leave_out=("y",),
        truth=TRUTH,
    ),
    "a policy of a statement": Advice(
        "pass that as target=",
        {"target": Greedy(), **CONTEXT, "dialect": "duckdb", "table": "logs"},
        {"target": "t"},
        ask=lambda log, **options: cp.sql(**options),
    ),
}
LEARNING = {
    "a cost in an objective": Advice(
        "leave out minimize=, .*? as reward=",
        {"verb": "smooth", "minimize": True},
        {"reward": "1 - r"},
        ask=learned,
    ),
    "mini-batches": Advice(
        "Pass batch_size=None", {"objective": "snips", "batch_size": 100}, {"batch_size": None}, ask=learned
    ),
    "fallback without folds": Advice("Pass folds=3", {"fallback": "imitate", "folds": None}, ask=learned),
    "a temperature without rows": Advice(
        "Pass a holdout=", {"temperature": "auto", "holdout": 0}, {"holdout": 0.2}, ask=learned
    ),
    "two numbers of actions": Advice("Leave out n_actions=", {"policy": "LinearSoftmax", "n_actions": 4}, ask=learned),
    "nothing held out": Advice("pass holdout=0", {"holdout": 1e-9}, ask=learned),
    "precision without a GPU": Advice("Leave out precision=", {"precision": "tf32", "device": "cpu"}, ask=learned),
    "a reduction": Advice(
        "Pass one as model=",
        {"verb": "learn_policy", "objective": "reduction"},
        {"model": LogisticRegression()},
        ask=learned,
    ),
    "two folds of a model": Advice("Pass folds=3", {"objective": "dr", "model": "ridge", "folds": 2}, ask=learned),
    "a model that a search lacks": Advice(
        "Use PolicyLearner, with model=",
        {"verb": "learn_policy", "contenders": ["dr"]},
        {"verb": "learner", "objective": "dr", "model": "ridge"},
        ask=learned,
        leave_out=("contenders",),
    ),
}
TABLE = (
    PROPENSITIES
    | ROWS
    | TARGETS
    | ESTIMATES
    | KINDS
    | STATES
    | DATABASES
    | MORE
    | COSTS
    | OWN
    | DENSITIES
    | DAILY
    | OTHERS
    | LEARNING
)


# -- following ------------------------------------------------------------------------------------------------------------

ARGUMENT = re.compile(
    r"\b([a-z_]+)=(\"[^\"]*\"|\[.*?\]|'(?:[^'\\]|\\.)*'|\{.*?\}|\w[\w.]*\((?:\([^)]*\)|[^()])*\)|\d[\w.]*|True|False)?"
)


def answer(advice: Advice, options: Mapping[str, object]) -> tuple[object, str]:
    """The answer and all that it says, or the error's words."""
    try:
        found = advice.ask(advice.log(), **options)
    except CounterpoiseError as error:
        return None, str(error)
    if isinstance(found, cp.Result):
        steps = [str(step) for step in wording.next_steps(read(found))]
        return found, " ".join([*found.verdict().reasons, *steps])
    if hasattr(found, "findings"):
        return found, " ".join(finding.message for finding in found.findings)
    return found, str(found)


@cache
def message(name: str) -> str:
    """What is said before anything is followed."""
    return answer(TABLE[name], BASE | TABLE[name].options)[1]


class Names(dict):
    """The names of the library, each imported only if it is needed: some take torch."""

    def __missing__(self, name):
        if name in cp.__all__:
            return getattr(cp, name)
        raise KeyError(name)


def followed(advice: Advice, text: str) -> dict[str, object]:
    """The options after doing what the text says."""
    options = dict(BASE | advice.options)
    clause = re.search(advice.said, text)[0]
    for name, value in ARGUMENT.findall(clause):
        if re.search(rf"[Ll]eave out {name}=", clause):
            options.pop(name)
        elif name not in advice.own:
            options[name] = eval(value, {"cp": cp}, Names())
    return {name: value for name, value in (options | dict(advice.own)).items() if name not in advice.leave_out}


@pytest.mark.filterwarnings("ignore::counterpoise.errors.StateWarning")
@pytest.mark.parametrize("name", TABLE)
def test_advice_that_is_followed_cures_and_never_makes_a_wrong_answer_ok(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    advice, before = TABLE[name], message(name)
    assert re.search(advice.said, before), before
    found, after = answer(advice, followed(advice, before))
    assert found is not None, after
    assert not re.search(advice.said, after), after
    if isinstance(found, cp.Result) and advice.truth is not None:
        truth = advice.log()[advice.truth][0] if isinstance(advice.truth, str) else advice.truth
        estimate = found[found.targets[0], "beta_ips"]
        assert found.verdict().verdict != "ok" or abs(estimate.value - truth) < 4 * estimate.stderr


# -- every suggestion of the source ---------------------------------------------------------------------------------------

ADVISES = re.compile(
    r"(?i)\b(pass|name|leave out|give|use|choose|raise|add|try|let|say|lower|set|drop|take|ask|load|change|map|evaluate|declare)\b"
    r"[^.]*?(`\w+=|\bpip install)"
)


def suggestions() -> dict[str, str]:
    """Every text of the source that suggests an argument, as a pattern of what is printed, and where it is."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        for text in texts(ast.parse(path.read_text(encoding="utf-8"))):
            text = re.sub(r"<([\w ]+)>", r"\1", text)  # what a reader counts, which are rows here
            if ADVISES.search(text):
                found[text] = path.relative_to(SOURCE).parts[0]
    return found


def texts(tree: ast.AST):
    """The texts of a module but docstrings, with … for what is filled in."""
    nodes = list(ast.walk(tree))
    docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    inner = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs | inner:
            yield re.sub(r"\{\w+\}", "…", node.value)  # a kind of rows leaves to others what is filled in


def is_said(text: str, said: str) -> bool:
    """Whether a message has a text of the source in it."""
    return (
        re.search(".+?".join(map(re.escape, text.replace("`", "").strip().split("…"))), said.replace("`", ""))
        is not None
    )


# What nobody follows here, and why. A new text belongs into the table instead; one that is followed does not belong here anymore.
ABSENT = {
    "a database elsewhere, or another tool's files": (
        "Name theirs with `candidates=`.",
        "Pass `batch=`, a key of this part of the log.",
        "Pass `keep='keep'`.",
        "Pass the folder of one campaign, such as 'random/all', or leave out `format=`.",
        "Pass `slate='slate'`, `position='position'` and `propensity_of='item_given_above'`, or read it with `cp.read`.",
        "Write an address as postgresql://user:…@host/database, and name the log with `table=` or `query=`.",
        "these files are read as they are: leave out `format=`.",
    ),
    "rows to be dropped, which other tests do": (
        "Drop such rows with `where=`, or put rare actions together as one.",
        "Fix the logger, or drop such lines with `drop_bad_rows=True`.",
        "Fix the logger, or drop them with `drop_bad_rows=True`.",
        "It is the probability that the row is labeled, and rows that never are cannot be evaluated: fix it, or drop such rows with "
        "`where=`…",
    ),
    "only on the command line": (
        "Give one of them another name: `target=NAME=EXPRESSION`.",
        "Pass `objective='beta_ips'`, or leave out `…=`.",
    ),
    "moments, states and statements that other calls made, and very large logs": (
        "Add a first batch with `evaluate` and `state=`.",
        "Check the path, or evaluate a first log with `state=…`.",
        "Drop, with `where=`, episodes that began too late to end in this log; or evaluate the first steps alone, as many as no episode "
        "was cut off before, without `done=`.",
        "Evaluate all logs at once, without `state=`.",
        "Evaluate the log itself with `interval=…`.",
        "Evaluate the log with `groups=100` or `cluster=`.",
        "Evaluate the log with `segment=COLUMN`.",
        "Evaluate the log with `segment=` and a column of days.",
        "Evaluate the rows of each with `where=`.",
        "Name a column with fewer values as `segment=`.",
        "Name the logged action with `action=COLUMN`, or a segment and a target.",
        "Pass `baseline=`, the columns that rewards may depend on.",
        "Pass `groups=…`, or name a column with fewer values as `segment=`.",
        "Pass `model_reward=` (its reward of the logged action) and `model_value=` (its value of the target policy).",
        "Pass the same `groups=` as to `sql`.",
        "the comparison of … is at another level: pass `level=…`.",
        "… were added as one batch, which counts as one day. Add them one by one with `only_new=True`.",
    ),
    "worlds that are made, not logged": (
        "Lower `degree=` or `context_dimension=`.",
        "Pass `positions=…` or less.",
    ),
    "learning, which takes torch and minutes": (
        "Add a network, such as 'beta_ips', or leave out `items=`.",
        "Add them to `items=` or the policy, or drop those rows.",
        "For a catalog as large as that, pass `n_actions=` or a policy.",
        "Give the module one output per action, or change `n_actions=`.",
        "If some actions are never logged, pass `n_actions=`.",
        "Leave it out, or name an SQL expression that makes fewer levels of it in `context=`, or bring an embedding as a column of lists.",
        "Leave out `module=`.",
        "Look at the top of the rankings, such as `where='position <= …'`, or pass the policy more `slots=`.",
        "Leave out `n_actions=`; for a policy of your own, pass a function that makes it.",
        "Drop those rankings, or change `n_actions=` or the policy.",
        "Drop those rows, or change `n_actions=` or the policy.",
        "Pass `candidates=`, or a table of True for all actions.",
        "Pass `context_dimension=`.",
        "Pass `epochs=…` or more, or name another checkpoint.",
        "Pass `folds=None`, or a log with more clusters.",
        "Pass `make=`, a function that builds it.",
        "Pass `make=`, a function that builds the whole policy.",
        "Pass `module=`, one with the same layers.",
        "Pass `norms='all'`.",
        "Pass `norms='last_layer'`.",
        "Pass `policy=PlackettLuce(…, slots=…)`.",
        "Pass `policy=TwoTower` or a function that takes item_features, or leave out `items=`.",
        "Pass a `batch_size=`, or load the log into memory first.",
        "Pass another `weight=`.",
        "Pass fewer `folds=`, or a log with more rows or clusters.",
        "Pass it `mode='max'`.",
        "Pass one such as `compile={'mode': 'max-autotune'}`.",
        "Raise `holdout=`, or choose another scheduler.",
        "Use TwoTower, MLP or LinearSoftmax, and leave out `norms=`.",
        "Use `device='cpu'`.",
        "…, or pass `fallback='imitate'` for a policy that imitates the logging policy.",
        "On held-out rows, the learned policy would have earned …: pass `fallback='warn'` to get it, and run an A/B test before you rely "
        "on it.",
        "with rankings, λ is not tuned: pass one number as `banditnet_lambda=`.",
    ),
}


def test_every_suggestion_of_the_source_is_followed_or_known_to_need_what_is_absent(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = [message(name) for name in TABLE]
    absent = {text for texts in ABSENT.values() for text in texts}
    new = {text for text in suggestions() if not any(is_said(text, each) for each in said)}
    assert sorted(new - absent) == [], "write a row of the table that follows it"
    assert sorted(absent - new) == [], "it is followed now, or gone"
    assert len(suggestions()) - len(absent) >= 119
