"""One law over every weight × every engine: the sums are those of a plain loop over rows, or over lists."""

import math

import numpy as np
import polars as pl
import pytest

import counterpoise as cp
from counterpoise.engines import compiled, memory, registry, streaming
from counterpoise.readers import frames
from counterpoise.weights import WEIGHTS, Balanced, Importance, Odds, Own, Slope, Weight
from counterpoise.weights.lists import EPISODE_WEIGHTS, LIST_WEIGHTS, ListWeight


class Halfway(Weight):
    """A weight of one's own, with nothing but its formula."""

    mean_is_one = True

    def weight(self, target, propensity):
        return (target / propensity + 1) / 2


OF_ROWS = {
    "ratio": Importance(),
    "own": Own(),
    "balanced": Balanced(("a", "b"), ("p", "q"), "who"),
    "odds": Odds(2.0),
    "slope": Slope(WEIGHTS["clip"]),
    "halfway": Halfway(),
    **{name: kind(kind.ladder[-2]) for name, kind in WEIGHTS.items()},
}
WEIGHTS_OF_ALL = OF_ROWS | {name: kind() for name, kind in (LIST_WEIGHTS | EPISODE_WEIGHTS).items()}


def rows():
    """700 rows by two loggers, in lists of one to three positions; a few weights are 0, and rewards are far from 0."""
    random = np.random.default_rng(3)
    lengths = random.integers(1, 4, 350)
    n = int(lengths.sum())
    columns = {
        "query": np.repeat(np.arange(350), lengths),
        "rank": np.concatenate([np.arange(1, k + 1) for k in lengths]),
        "r": 1000.0 + random.normal(size=n),
        "p": random.uniform(0.1, 1.0, n),
        "q": random.uniform(0.1, 1.0, n),
        "t": random.random(n) * (random.random(n) > 0.05),
        "w": random.normal(1.0, 0.5, n),
        "who": random.choice(["a", "b"], n),
    }
    return pl.DataFrame(columns)


def question_of(weight):
    """What to ask for, so that a log is weighed in this way."""
    if isinstance(weight, Own):
        return {"reward": "r", "weight": "w"}
    if isinstance(weight, Balanced):
        return {"reward": "r", "propensity": {"a": "p", "b": "q"}, "logger": "who", "target": "t"}
    question = {"reward": "r", "propensity": "p", "target": "t", "weight": weight}
    if isinstance(weight, ListWeight) and weight.unit == "episode":
        question |= {"episode": "query", "step": "rank"}
    elif isinstance(weight, ListWeight):
        question |= {"slate": "query", "position": "rank", "propensity_of": weight.propensity_of}
    return question


def looped(log, weight):
    """The terms w·r and the excess of every row, or of every list, by a plain loop over floats."""
    if isinstance(weight, ListWeight):
        return looped_lists(log, weight)
    shares = dict(log["who"].value_counts(normalize=True).iter_rows())
    terms, excess = [], []
    for row in log.iter_rows(named=True):
        p = shares["a"] * row["p"] + shares["b"] * row["q"] if isinstance(weight, Balanced) else row["p"]
        w = weight.weight(row["w" if isinstance(weight, Own) else "t"], p)
        terms.append(w * row["r"])
        excess.append(w - 1.0)
    return terms, excess


def looped_lists(log, weight):
    terms, excess = [], []
    for _, part in log.group_by("query", maintain_order=True):
        each = (part["t"] / part["p"]).to_list()
        k, r = len(each), part["r"].to_list()
        running = [math.prod(each[: j + 1]) for j in range(k)]
        if weight.by_position:
            w = running if weight.is_running else each
            # below its end, a running product stays what it is, and another weight is 1
            below = [w[-1] if weight.is_running else 1.0] * (3 - k)
            terms.append(math.fsum(a * b for a, b in zip(w, r, strict=True)))
            excess.append(math.fsum([*w, *below]) / 3 - 1.0)
        else:
            whole = running[-1] if weight.is_running else 1.0 - k + math.fsum(each)
            terms.append(whole * math.fsum(r))
            excess.append(whole - 1.0)
    return terms, excess


def duckdb_of(log, folder):
    duckdb = pytest.importorskip("duckdb")
    log.write_parquet(folder / "log.parquet")
    return duckdb.sql(f"select * from '{folder / 'log.parquet'}'")


def file_of(log, folder):
    log.write_parquet(folder / "log.parquet", row_group_size=200)
    return folder / "log.parquet"


def arrays_of(log, folder):
    return {name: log[name].to_numpy() for name in log.columns}


# engine → where the log is, and the limits that send it there
ENGINES = {
    "numpy": (arrays_of, {}),
    "polars": (arrays_of, {(memory, "LONGEST"): 0, (memory, "LISTS"): 0}),
    "compiled": (arrays_of, {(memory, "LONGEST"): 0, (compiled, "SHORTEST"): 0}),
    "batches": (lambda log, folder: log.lazy(), {(frames, "BATCH"): 200}),
    "short file": (file_of, {}),
    "scan": (file_of, {(registry, "SHORT"): 0}),
    "compiled scan": (file_of, {(registry, "SHORT"): 0, (registry, "LONG"): 0, (registry, "STARTED"): 0}),
    "duckdb": (duckdb_of, {}),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", WEIGHTS_OF_ALL)
def test_sums_are_those_of_a_plain_loop(name, engine, monkeypatch, tmp_path):
    weight, log = WEIGHTS_OF_ALL[name], rows()
    place, limits = ENGINES[engine]
    for (module, limit), value in limits.items():
        monkeypatch.setattr(module, limit, value)
    moments = cp.evaluate(place(log, tmp_path), **question_of(weight)).moments
    rungs = [*zip(moments.ladder, weight.rungs, strict=True)] if moments.ladder else [(moments, weight)]
    for made, own in rungs:
        (target,) = made.targets
        terms, excess = map(np.array, looped(log, own))
        whole = made[target].recenter(0.0)  # u, s and us are then w − 1, r and w·r − r
        assert whole.n == len(terms)
        wr = whole.average("s") + whole.average("us")
        spread = whole.covariance("s", "s") + 2 * whole.covariance("s", "us") + whole.covariance("us", "us")
        assert wr == pytest.approx(terms.mean(), rel=1e-11)
        assert spread == pytest.approx(terms.var(), rel=1e-9)
        assert whole.average("u") == pytest.approx(excess.mean(), rel=1e-10, abs=1e-12)
        assert whole.covariance("u", "u") == pytest.approx(excess.var(), rel=1e-10, abs=1e-12)
        (tail,) = made.tails[target, ""]
        # of a rung above the first, the largest weight alone is kept
        kept = np.sort(1.0 + excess)[::-1][: len(excess) if own is rungs[0][1] else 1]
        assert tail.weights[: len(kept)] == pytest.approx(kept, rel=1e-10, abs=1e-12)
        if not isinstance(own, ListWeight):  # whose products may round to next to 0
            assert tail.zeros == sum(map(own.is_zero, log["w" if isinstance(own, Own) else "t"].to_list()))
        powers = made.excess[target, ""][0]
        assert powers.mean(4, 0.0) == pytest.approx((excess**4).mean(), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["ratio", "own", "clip", "slope"])
def test_sums_of_sampled_rows_are_those_of_a_plain_loop(name, engine, monkeypatch, tmp_path):
    weight, log = WEIGHTS_OF_ALL[name], rows().with_columns(k=pl.when(pl.col("r") > 1000).then(1.0).otherwise("q"))
    place, limits = ENGINES[engine]
    for (module, limit), value in limits.items():
        monkeypatch.setattr(module, limit, value)
    moments = cp.evaluate(place(log, tmp_path), **question_of(weight), keep="k").moments
    counts = 1.0 / log["k"].to_numpy()
    rungs = [*zip(moments.ladder, weight.rungs, strict=True)] if moments.ladder else [(moments, weight)]
    for made, own in rungs:
        (target,) = made.targets
        terms, excess = map(np.array, looped(log, own))
        whole = made[target].recenter(0.0)
        wr = whole.average("s") + whole.average("us")
        spread = whole.covariance("s", "s") + 2 * whole.covariance("s", "us") + whole.covariance("us", "us")
        mean, total = (counts * terms).sum() / counts.sum(), counts.sum()
        assert wr == pytest.approx(mean, rel=1e-11)
        assert spread / len(terms) == pytest.approx((np.square(counts * (terms - mean))).sum() / total**2, rel=1e-9)
        assert whole.average("u") == pytest.approx((counts * excess).sum() / total, rel=1e-9, abs=1e-12)
        (tail,) = made.tails[target, ""]
        kept = np.sort(counts * (1.0 + excess))[::-1][: len(excess) if own is rungs[0][1] else 1]
        assert tail.weights[: len(kept)] == pytest.approx(kept, rel=1e-10, abs=1e-12)
        assert made.excess[target, ""][0].mean(4, 0.0) == pytest.approx(((counts * excess) ** 4).mean(), rel=1e-9)


def test_every_engine_is_taken(monkeypatch, tmp_path):
    """The limits of `ENGINES` send a plain log where its name says."""
    taken = []
    for made, called in ((memory.Short, "numpy"), (streaming.Streaming, "polars"), (compiled.Running, "compiled")):
        first = "answer" if called == "compiled" else "aggregate"
        original = getattr(made, first)

        def noted(self, *arguments, called=called, original=original):
            taken.append(called)
            return original(self, *arguments)

        monkeypatch.setattr(made, first, noted)
    expected = {"numpy": ["numpy"], "polars": ["polars"], "compiled": ["compiled"], "short file": ["numpy"]}
    for engine, names in (expected | {"scan": ["polars"], "compiled scan": ["compiled"], "duckdb": []}).items():
        taken.clear()
        place, limits = ENGINES[engine]
        with monkeypatch.context() as patched:
            for (module, limit), value in limits.items():
                patched.setattr(module, limit, value)
            cp.evaluate(place(rows(), tmp_path), **question_of(Importance()))
        assert taken == names, engine
