"""Every kind of log with every weight and every verb: whatever can be asked of the answer is answered, or refused in words."""

import contextlib
import json
import pickle
import warnings
from itertools import product

import numpy as np
import polars as pl
import pytest

import counterpoise as cp
from counterpoise import weights
from counterpoise.display import as_text
from counterpoise.errors import CounterpoiseError

pytestmark = pytest.mark.once


def a_log(n=600, seed=5):
    """Rows that can be read as rows, lists, episodes or the rows of two loggers; every part has a column."""
    random = np.random.default_rng(seed)
    action, x = random.integers(0, 3, n), random.normal(size=n)
    return pl.DataFrame(
        {
            "r": (random.random(n) < 0.3 + 0.1 * action).astype(float), "s": random.random(n), "p": np.full(n, 1 / 3),
            "p2": random.uniform(0.2, 0.5, n), "t": np.where(action == 2, 0.5, 0.25), "old": np.where(action == 0, 0.5, 0.25),
            "a": action, "x": x, "q": random.random(n), "v": random.random(n), "seen": random.integers(0, 2, n),
            "who": random.choice(["A", "B"], n), "visitor": np.arange(n) // 4, "list": np.arange(n) // 3, "place": np.arange(n) % 3 + 1,
            "country": random.choice(["DE", "FR"], n), "own": random.uniform(0.5, 1.5, n), "day": [f"2026-03-{1 + k * 30 // n:02d}" for k in range(n)],
            "cost": random.random(n),
        }
    )  # fmt: skip


LOG = a_log()
PLAIN = {"reward": "r", "propensity": "p", "target": ["t", "old"], "cluster": False}
KINDS = {
    "plain": {},
    "one target": {"target": "t"},
    "two rewards": {"reward": ["r", "s"]},
    "segments": {"segment": "country"},
    "clusters": {"cluster": "visitor", "groups": 20},
    "chosen actions": {"target": {"two": cp.Always(2)}, "action": "a", "context": ["x"]},
    "model columns": {"model_reward": "q", "model_value": ["v", "v"]},
    "control": {"control": {"x": 0.0}},
    "context baseline": {"baseline": ["x"]},
    "sampled": {"keep": "p2"},
    "ratio": {"per": "s + 0.5"},
    "labels": {"proxy": "q", "observed": "seen"},
    "loggers": {"propensity": {"A": "p", "B": "p2"}, "logger": "who"},
    "lists": {"slate": "list", "position": "place", "propensity_of": "item_given_above"},
    "episodes": {"episode": "list", "step": "place"},
    "bounds": {"reward_bounds": (0, 1)},
    "costs": {"reward": "cost", "minimize": "cost"},
    "perhaps costs": {"reward": "cost"},
    "ratio of costs": {"reward": cp.Ratio("cost", "s + 0.5"), "minimize": True},
    "costs of episodes": {"reward": "cost", "minimize": True, "episode": "list", "step": "place"},
    "costs in segments": {"reward": ["r", "cost"], "minimize": ["cost"], "segment": "country", "target": "t"},
    "key": {"key": "visitor"},
    "two targets apart": {"target": "t", "against": "old"},
    "ratio of two targets": {"target": "t", "against": "old", "per": "s + 0.5"},
    "ratio by cluster and segment": {"per": "s + 0.5", "cluster": "visitor", "groups": 20, "segment": "country"},
    "sampled ratio": {"per": "s + 0.5", "keep": "p2"},
}
WEIGHTS = {
    "plain": None,
    "clip": weights.Clip(3.0),
    "shrink": weights.Shrink(5.0),
    "switch": weights.Switch(3.0),
    "harmonic": weights.Harmonic(0.1),
    "smoothing": weights.ExponentialSmoothing(0.8),
    "exploration": weights.ImplicitExploration(0.05),
    "slope": weights.Slope(weights.Clip),
    "own": "own",
}
ALL, SOME = list(WEIGHTS), ["plain", "clip", "slope", "own"]


def an_ab_test(log, target, propensity, **parts):
    return cp.ab_test(log, arm="who", **({"propensity": propensity} if isinstance(propensity, dict) else {}), **parts)


VERBS = {
    "rank": cp.rank,
    "plan": lambda log, target, **parts: cp.plan(log, target="t", difference=0.1, **parts),
    "sensitivity": cp.sensitivity,
    "distribution": lambda log, target, **parts: cp.distribution(log, target="t", **parts),
    "doctor": cp.doctor,
    "watch": lambda log, target, **parts: cp.watch(log, target="t", day="day", **parts),
    "ab_test": an_ab_test,
    "backtest": lambda log, **parts: cp.backtest({"spring": log}, {"spring": (0.2, 0.1)}, **parts),
}


def plots_of(answer, _):
    plt = pytest.importorskip("matplotlib.pyplot")
    for name in ("plot", "plot_weights", "plot_segments", "plot_over_time"):
        if hasattr(answer, name):
            with contextlib.suppress(CounterpoiseError):
                getattr(answer, name)()
            plt.close("all")


# what every answer must give, if it has a method for it
ALWAYS = {
    "print": lambda answer, _: str(answer),
    "notebook": lambda answer, _: answer._repr_html_(),
    "JSON": lambda answer, _: json.loads(as_text(answer.document())),
    "dictionary": lambda answer, _: answer.to_dict(),
    "pickle": lambda answer, _: str(pickle.loads(pickle.dumps(answer))),
    "table": lambda answer, _: answer.table(),
    "report": lambda answer, folder: answer.report(folder / "page.html"),
    "plots": plots_of,
}
# what may be refused in words
SOMETIMES = {
    "check_coverage": lambda answer, _: str(answer.check_coverage(100)),
    "sensitivity": lambda answer, _: str(answer.sensitivity()),
    "with_tipping_points": lambda answer, _: str(answer.with_tipping_points()),
    "loggers": lambda answer, _: answer.loggers(),
    "ladder": lambda answer, _: answer.ladder(),
    "worth": lambda answer, _: answer.worth(),
    "per": lambda answer, _: str(answer.per("visit")),
}


def asked(verb, **parts):
    """The answer of a verb, or None if it refuses a part in words."""
    if parts.get("weight") == "own":
        parts = {name: part for name, part in parts.items() if name not in ("target", "propensity")}
    try:
        with warnings.catch_warnings(action="ignore"):
            return verb(LOG, **parts)
    except CounterpoiseError:
        return None
    except TypeError as error:  # of an argument that this verb does not have
        assert "has no argument" in str(error)
        return None


def failures_of(answer, folder):
    """What cannot be had from an answer, with the error."""
    for name, get in (ALWAYS | SOMETIMES).items():
        if name in ("table", "report", *SOMETIMES) and not hasattr(answer, name):
            continue
        try:
            with warnings.catch_warnings(action="ignore"):
                get(answer, folder)
        except CounterpoiseError as error:
            if name in ALWAYS:
                yield f"{name}: {error}"
        except Exception as error:
            yield f"{name}: {error!r}"


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_can_be_asked_of_an_answer_is_answered_or_refused_in_words(kind, tmp_path):
    failures = []
    for verb, name in product((cp.evaluate, cp.compare), ALL if kind in ("plain", "clusters") else SOME):
        weight = {} if WEIGHTS[name] is None else {"weight": WEIGHTS[name]}
        answer = asked(verb, **(PLAIN | KINDS[kind] | weight))
        failures += [] if answer is None else [(verb.__name__, name, said) for said in failures_of(answer, tmp_path)]
    assert not failures


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_answers_every_kind_of_log_or_refuses_it_in_words(verb, tmp_path):
    answers = {kind: asked(VERBS[verb], **(PLAIN | parts)) for kind, parts in KINDS.items()}
    assert answers["one target"] is not None
    failures = [
        (kind, said) for kind, answer in answers.items() if answer is not None for said in failures_of(answer, tmp_path)
    ]
    assert not failures


def test_the_coverage_of_a_weight_that_the_log_chose_is_that_of_this_weight():
    answer = cp.evaluate(LOG, **(PLAIN | {"weight": weights.Slope(weights.Clip, [1.2, 100.0])}))
    checks = answer.check_coverage(100)
    for target, ladder in answer.ladders.items():
        constant = ladder.choice.constant
        fixed = cp.evaluate(
            LOG, **(PLAIN | {"target": target} | ({} if constant is None else {"weight": weights.Clip(constant)}))
        )
        assert checks[target].truth == pytest.approx(fixed.check_coverage(100)[target].truth)
        assert ladder.choice.weight in str(checks[target])
