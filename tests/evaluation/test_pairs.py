"""Every kind of log with every weight and every verb: whatever can be asked of the answer is answered, or refused in words.

The gate walks through a part of the table in which each kind of log meets each verb, and each weight some of both; COUNTERPOISE_PAIRS=all
walks through the whole of it, which takes a quarter of an hour.
"""

import contextlib
import json
import os
import pickle
import re
import warnings

import numpy as np
import polars as pl
import pytest
from conftest import sampled

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
            "country": random.choice(["DE", "FR"], n), "own": random.uniform(0.5, 1.5, n), "allowed": [[0, 1, 2]] * n,
            "cost": random.random(n),
            "last": (np.arange(n) % 3 == 2) * 1.0, "day": [f"2026-03-{1 + k // 30:02d}" for k in range(n)],
        }
    )  # fmt: skip


class Even:
    """A policy that takes every action as often."""

    classes_ = np.arange(3)

    def predict_proba(self, context):
        return np.full((len(context), 3), 1 / 3)


LOG = a_log()
CHOICE = {"action": "a", "context": ["x"]}
PLAIN = {"reward": "r", "propensity": "p", "target": ["t", "old"], "cluster": False}
KINDS = {
    "plain": {},
    "one target": {"target": "t"},
    "two rewards": {"reward": ["r", "s"]},
    "segments": {"segment": "country"},
    "clusters": {"cluster": "visitor", "groups": 20},
    "chosen actions": {"target": {"two": cp.Always(2)}, **CHOICE},
    "a policy": {"target": {"even": Even()}, **CHOICE},
    "candidates": {"target": {"even": Even()}, **CHOICE, "candidates": "allowed"},
    "action groups": {"target": {"odd": cp.ActionGroup("t", "p2")}, **CHOICE},
    "a fitted model": {"target": {"two": cp.Always(2)}, "model": "ridge", **CHOICE},
    "estimated propensities": {"propensity": "model", **CHOICE},
    "some rows": {"where": "x > -1"},
    "model columns": {"model_reward": "q", "model_value": ["v", "v"]},
    "control": {"control": {"x": 0.0}},
    "context baseline": {"baseline": ["x"]},
    "sampled": {"keep": "p2"},
    "sampled of so many": {"keep": "p2", "rows_before": 2000},
    "ratio": {"per": "s + 0.5"},
    "labels": {"proxy": "q", "observed": "seen"},
    "labels of known chance": {"proxy": "q", "observed": "seen", "label_propensity": 0.5},
    "loggers": {"propensity": {"A": "p", "B": "p2"}, "logger": "who"},
    "lists": {"slate": "list", "position": "place", "propensity_of": "item_given_above"},
    "lists by position": {"slate": "list", "position": "place", "propensity_of": "item_at_position", "discount": "dcg"},
    "episodes": {"episode": "list", "step": "place"},
    "episodes cut off": {"episode": "list", "step": "place", "done": "last", "discount_factor": 0.9},
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
    "odds": weights.Odds(1.2),
    "slope of clips": weights.Slope(weights.Clip),
    "slope of powers": weights.Slope(weights.ExponentialSmoothing),
    "own": "own",
    "independent": weights.Independent(),
    "cascade": weights.Cascade(),
    "standard": weights.Standard(),
    "pseudo-inverse": weights.PseudoInverse(),
    "per decision": weights.PerDecision(),
    "trajectory": weights.Trajectory(),
}


def an_ab_test(log, target=None, propensity=None, **parts):
    return cp.ab_test(log, arm="who", **({"propensity": propensity} if isinstance(propensity, dict) else {}), **parts)


def about_one(verb, **more):
    """A verb that is about one target, asked about the first."""
    return lambda log, target=None, **parts: verb(
        log,
        **({} if target is None else {"target": target[0] if isinstance(target, list) else target}),
        **more,
        **parts,
    )


VERBS = {
    "evaluate": cp.evaluate,
    "compare": cp.compare,
    "rank": cp.rank,
    "plan": about_one(cp.plan, difference=0.1),
    "sensitivity": cp.sensitivity,
    "distribution": about_one(cp.distribution),
    "doctor": cp.doctor,
    "watch": about_one(cp.watch, day="day"),
    "ab_test": an_ab_test,
    "backtest": about_one(lambda log, **parts: cp.backtest({"spring": log}, {"spring": (0.2, 0.1)}, **parts)),
    "sql": about_one(lambda log, **parts: cp.sql(table="log", dialect="duckdb", **parts)),
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
    "summary": lambda answer, _: str(answer.summary()),
    "conf_int": lambda answer, _: answer.conf_int(),
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
    "p_value": lambda answer, _: answer.p_value(answer.targets[0]),
    "with_unit": lambda answer, _: str(answer.with_unit("visit")),
    "moments": lambda answer, _: str(cp.evaluate(answer.moments)),
}


# what a refusal that says what to do has in it
DOES = re.compile(r"\b(pass|leave|choose|ask|name|evaluate|drop|write|let|give|log the|one of)\b", re.IGNORECASE)


def asked(verb, **parts):
    """The answer of a verb, or the words in which it refuses a part."""
    if parts.get("weight") == "own":
        parts = {name: part for name, part in parts.items() if name not in ("target", "propensity")}
    try:
        with warnings.catch_warnings(action="ignore"):
            return verb(LOG, **parts)
    except CounterpoiseError as error:
        return error
    except TypeError as error:  # of an argument that this verb does not have
        if "has no argument" not in str(error):
            raise
        return error


def failures_of(answer, folder):
    """What cannot be had from an answer, with the error."""
    for name, get in (ALWAYS | SOMETIMES).items():
        if name in ("table", "summary", "conf_int", "report", *SOMETIMES) and not hasattr(answer, name):
            continue
        try:
            with warnings.catch_warnings(action="ignore"):
                get(answer, folder)
        except CounterpoiseError as error:
            if name in ALWAYS:
                yield f"{name}: {error}"
        except Exception as error:
            yield f"{name}: {error!r}"


def weights_of(kind, verb, turns):
    """The weights with which a kind of log meets a verb: none of its own, or those whose turn it is."""
    if turns == "plain":
        return ["plain"]
    if os.environ.get("COUNTERPOISE_PAIRS") == "all":
        return [name for name in WEIGHTS if name != "plain"]
    turn = list(KINDS).index(kind) + list(VERBS).index(verb)
    several = 2 if verb in ("evaluate", "compare") else 1
    names = [name for name in WEIGHTS if name != "plain"]
    return [names[(turn + 5 * k) % len(names)] for k in range(several)]


OWN = ("sampled", "ratio", "labels", "loggers", "lists", "episodes")  # kinds that have rows of their own


@pytest.mark.parametrize("turns", ["plain", pytest.param("weights", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("kind", sampled(KINDS, "plain", "segments", *OWN))
def test_all_that_can_be_asked_of_an_answer_is_answered_or_refused_in_words(kind, turns, tmp_path):
    failures = []
    for verb, ask in VERBS.items():
        for name in weights_of(kind, verb, turns):
            weight = {} if WEIGHTS[name] is None else {"weight": WEIGHTS[name]}
            try:
                answer = asked(ask, **(PLAIN | KINDS[kind] | weight))
            except Exception as error:
                failures.append((verb, name, repr(error)))
                continue
            if isinstance(answer, CounterpoiseError) and not DOES.search(str(answer)):
                failures.append((verb, name, f"does not say what to do: {answer}"))
            elif not isinstance(answer, Exception | str):
                failures += [(verb, name, said) for said in failures_of(answer, tmp_path)]
    assert not failures


def test_every_verb_answers_a_plain_log():
    answers = {verb: asked(ask, **(PLAIN | {"target": "t"})) for verb, ask in VERBS.items()}
    assert not [verb for verb, answer in answers.items() if isinstance(answer, Exception)]


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
