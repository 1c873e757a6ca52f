"""One log with planted bad rows, nulls, NaNs, segments and clusters, and the questions that every source is asked about it."""

import numpy as np
import polars as pl
from sklearn.linear_model import LogisticRegression

import counterpoise as cp

BAD = [
    ("propensity", 0.0),
    ("propensity", None),
    ("propensity", float("nan")),
    ("propensity", 1.5),
    ("new", -0.1),
    ("new", float("nan")),
    ("old", 1.0001),
    ("reward", None),
    ("reward", float("nan")),
    ("reward", float("inf")),
    ("reward", 1e200),
    ("user", None),
    ("value", None),
]


def a_log(n=4000, seed=7, *, bad=True):
    g = np.random.default_rng(seed)
    p = g.uniform(0.05, 0.9, n)
    columns = {
        "id": np.where(np.arange(n) < 10, 5, np.arange(n)),
        "reward": g.normal(100.0, 1.0, n).round(6),
        "propensity": p.round(6),
        "new": np.clip(p * g.exponential(1.0, n), 0, 1).round(6) * (g.random(n) > 0.05),
        "old": np.clip(p * g.uniform(0.5, 1.5, n), 0, 1).round(6),
        "model": g.normal(100.0, 0.5, n).round(6),
        "value": g.normal(100.0, 0.2, n).round(6),
        "country": g.choice(["DE", "FR", "日本", "O'Brien; --"], n),
        "device": g.integers(0, 2, n),
        "user": g.integers(-50, 400, n),
        "action": g.integers(0, 3, n),
        "chosen": g.integers(0, 3, n),
        "x0": g.normal(size=n).round(6),
        "x1": g.normal(size=n).round(6),
    }
    columns["keep"] = np.where(columns["reward"] > 100.5, 1.0, 0.1 + 0.3 * columns["device"])
    log = pl.DataFrame(columns).with_columns(
        country=pl.when(pl.int_range(n) % 11 == 0).then(None).otherwise(pl.col("country"))
    )
    for row, (column, value) in enumerate(BAD if bad else []):
        at = pl.int_range(n) == 37 * row + 20
        log = log.with_columns(pl.when(at).then(pl.lit(value)).otherwise(pl.col(column)).alias(column))
    return log.with_columns(pl.col("user").cast(pl.Int64))


# by row: every kind of value that makes a row bad, the twelve of tests/log/test_bad_input.py first
KINDS = {
    37 * k + 20: one
    for k, one in enumerate(
        [
            *(("propensity", value) for value in (0.0, -0.1, 1.5, float("nan"), None)),
            *(("new", value) for value in (-0.1, 1.1, None)),
            *(("reward", value) for value in (float("nan"), float("inf"), None, 1e200)),
            ("propensity", 1e-300),
            ("new", float("nan")),
            *((column, value) for column in ("model", "value", "x0") for value in (None, float("nan"), 1e200)),
            ("user", None),
        ]
    )
}
TARGETS = ("new", "value")  # what is of a target, which learning has none of
PARTS = {
    "reward": "reward",
    "propensity": "propensity",
    "cluster": "user",
    "model_reward": "model",
    "model_value": "value",
    "control": {"x0": 0.0},
    "context": ["x1"],
    "action": "action",
    "drop_bad_rows": True,
}


def every_kind(*, bad=True):
    """The log with a bad row of every kind, or without those rows."""
    log = a_log(bad=False).with_row_index("row")
    log = log.with_columns(new=pl.col("new").clip(0.01, 1.0))
    if not bad:
        return log.filter(~pl.col("row").is_in(list(KINDS)))
    for row, (column, value) in KINDS.items():
        log = log.with_columns(pl.when(row=row).then(pl.lit(value)).otherwise(pl.col(column)).alias(column))
    return log.with_columns(pl.col("user").cast(pl.Int64))


BASE = {"reward": "reward", "propensity": "propensity", "drop_bad_rows": True}

QUESTIONS = {
    "labels": BASE | {"target": ["new", "old"], "proxy": "model", "observed": "id % 3 = 0", "segment": "device"},
    "everything": BASE
    | {
        "target": ["new", "old"],
        "segment": ["country", "device"],
        "cluster": "user",
        "key": "id",
        "model_reward": "model",
        "model_value": ["value", "value"],
        "control": {"x0": 0.0},
    },
    "whole": BASE | {"target": ["new", "old"]},
    "expression": BASE
    | {"target": "0.7*new + 0.3*old", "where": "device = 1 and country <> 'FR'", "segment": "country"},
    "worlds apart": BASE | {"reward": "reward + 100000000.0 * device", "target": "new", "segment": "device"},
    "action": BASE | {"target": cp.Chosen("chosen"), "action": "action", "segment": "device"},
    "ratio": BASE | {"target": "new", "per": "device + 0.5", "segment": "country", "keep": "0.5 + 0.25 * device"},
    "always": BASE | {"target": {"two": cp.Always(2), "text": cp.Always("1")}, "action": "action", "segment": "device"},
    "kept": BASE
    | {"target": ["new", "old"], "segment": "device", "cluster": "user", "keep": "keep", "control": {"x0": 0.0}},
    "kept with a model": BASE
    | {"target": "new", "keep": "0.5 * keep", "rows_before": 25_000, "model_reward": "model", "model_value": "value"},
    "kept with a number": BASE | {"target": "new", "keep": 0.25},
    "episodes": BASE
    | {
        "target": "new",
        "episode": "id - id % 3",
        "step": "id % 3",
        "discount_factor": 0.9,
        "done": "case when id % 3 = 2 then 1 else 0 end",
    },
    "many": BASE | {"target": {f"blend {k}": f"(new * {k} + old * {12 - k}) / 12.0" for k in range(12)}},
}


def sample(log, **options):
    """The numbers of a few questions, where an engine that was asked all of them is reached by another door."""
    names = ("expression", "labels", "kept", "episodes")
    return {
        key: one for name in names for key, one in numbers(name, cp.evaluate(log, **QUESTIONS[name], **options)).items()
    }


def answers(log, **options):
    """All numbers of all questions, as nested lists under readable names."""
    found = {}
    for name, question in QUESTIONS.items():
        found |= numbers(name, cp.evaluate(log, **question, **options))
    question = BASE | {"target": "new", "against": "old", "segment": "country", "cluster": "user"}
    found |= numbers("compare", cp.compare(log, **question, **options))
    found |= numbers("compare kept", cp.compare(log, **question, keep="keep", **options))
    question |= {"per": "device + 0.5", "keep": "0.5 + 0.25 * device", "cluster": None}
    return found | numbers("compare ratio", cp.compare(log, **question, **options)) | distributions(log, **options)


# numbers, an expression, text by levels and by its hash, and whole numbers by levels
BASELINE = {"x0": None, "x0 * x1": None, "country": ["DE", "日本"], "device": [0, 1], "name": 4}


def with_context(log, *, bad=True):
    """The log with rewards that depend on the context, a text to hash, and bad features among the invalid rows."""
    named = log.with_columns(
        name=pl.when(pl.col("action") == 2).then(None).otherwise(pl.format("usér {}", pl.col("user") % 7)),
        reward=pl.col("reward") + pl.col("x0") + 0.5 * pl.col("x0") * pl.col("x1") + pl.col("device"),
    )
    for row, value in ((1000, None), (1001, float("nan")), (1002, 1e200)) if bad else ():
        named = named.with_columns(x0=pl.when(pl.int_range(pl.len()) == row).then(value).otherwise("x0"))
    return named


def contexts(log, **options):
    """All numbers of questions with a context baseline, coefficients included."""
    found = context_parts(log, **options)
    for name, question in {
        "whole": {"target": ["new", "old"]},
        "more": {"target": "new", "model_reward": "model", "model_value": "value", "control": {"x1": 0.0}},
    }.items():
        result = cp.evaluate(log, **BASE | question, baseline=BASELINE, **options)
        found |= numbers(f"context {name}", result) | coefficients(name, result)
    result = cp.compare(log, **BASE, target="new", against="old", baseline=["x0", "device"], **options)
    return found | numbers("context compare", result) | coefficients("compare", result)


def context_parts(log, **options):
    """The one of them that Spark is asked, which plans for a minute."""
    question = BASE | {"target": "new", "segment": "device", "cluster": "user", "baseline": BASELINE}
    result = cp.evaluate(log, **question, **options)
    return numbers("context parts", result) | coefficients("parts", result)


def coefficients(name, result):
    kept = {key: one.baseline for key, one in result.estimates.items() if isinstance(one.baseline, tuple)}
    return {f"coefficients {name} {key}": list(one) for key, one in kept.items()}


def distributions(log, **options):
    """Quantiles and CVaRs, with thresholds from a first look and with given ones."""
    whole = cp.distribution(log, **BASE, target=["new", "old"], **options)
    given = {
        "reward": "reward - 99",
        "thresholds": [-1.0, 0.0, 0.25, 0.5, 2.5],
        "cluster": "user",
        "where": "device = 1",
    }
    clustered = cp.distribution(log, **BASE | given, target="new", **options)
    ones = cp.distribution(log, **BASE | {"reward": "device"}, target="new", **options)
    found = {"distribution rows": [whole.n, whole.dropped_rows, *whole.thresholds]}
    for name, one in (("whole", whole), ("clustered", clustered), ("ones", ones)):
        for part in one.statistics([0.1, 0.5, 0.99], [0.1, 1.0]):
            key = f"distribution {name} {part.target} {part.name} {part.q}"
            found[key] = [part.value, part.stderr, *part.interval, float(part.verdict.verdict == "ok")]
    return found


def numbers(name, result):
    found = {f"{name} rows": [result.n, result.dropped_rows]}
    for key, one in result.estimates.items():
        found[f"{name} {key}"] = [one.value, one.stderr, *one.interval, one.n]
    for key, one in result.all_diagnostics.items():
        values = (x for x in vars(one).values() if not isinstance(x, str))
        found[f"{name} diagnostics {key} by {one.unit}"] = [-1.0 if x is None else float(x) for x in values]
    return found


def a_policy(log):
    """A classifier of the logged action, as a policy."""
    good = log.drop_nulls()
    return LogisticRegression().fit(good.select("x0", "x1").to_numpy(), good["action"].to_numpy())


def a_learned_policy():
    """A policy of our own kind; in double precision, so that batches of any size give the same numbers."""
    import torch

    from counterpoise.learn import LinearSoftmax

    policy = LinearSoftmax(2, 3).double()
    with torch.no_grad():
        next(policy.parameters()).copy_(torch.tensor([[0.5, -0.5], [0.0, 1.0], [-1.0, 0.25]]))
    return policy


POLICY = BASE | {"segment": "country", "cluster": "user", "key": "id", "context": ["x0", "x1"], "action": "action"}
