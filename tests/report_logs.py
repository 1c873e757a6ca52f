"""Logs to report on: an ordinary one, and one whose names try to do harm."""

import numpy as np
import polars as pl

import counterpoise as cp
from counterpoise.demo import simulate
from counterpoise.environments import SyntheticRanking

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</td></table><h1>out</h1>",
    "'; alert(1); //",
    "&lt;already escaped&gt;",
    "x" * 300,
    "🦊🎉👩‍👩‍👧",
    "שלום עולם",
    "\u202eevil reversed",
    "nul\x00 bell\x07 line\nbreak",
    "\ud800 half a pair",
    "${title} $style",
    "javascript:alert(1)",
]


def ordinary(rows=4000):
    """The demonstration's log with segments and a second target."""
    log, _, _ = simulate(rows)
    log["bold"] = np.clip(0.5 * log["new"] + 0.05, 0, 1)
    log["country"] = np.array(["DE", "FR", "JP", "US"])[np.arange(rows) % 4]
    result = cp.evaluate(log, reward="click", propensity="propensity", target=["new", "bold"], segment="country")
    return result, log


def crowded(targets=12, segments=40, rows=2000):
    """More targets than are drawn, under names that look like HTML and are not their columns'; the last one is the best."""
    log, _, _ = simulate(rows)
    log["who"] = np.arange(rows) % segments
    share = np.linspace(0.2, 0.9, targets)
    log |= {f"pi_{k}": share[k] * log["new"] + (1 - share[k]) * log["propensity"] for k in range(targets)}
    named = {f"<b>{k}</b>": f"pi_{k}" for k in range(targets)}
    result = cp.evaluate(log, reward="click", propensity="propensity", target=named, segment="who", where="who < 30")
    return result, log


def hostile(rows=2600):
    """Every name and every segment is hostile."""
    source, _, _ = simulate(rows)
    names = dict(zip(("click", "propensity", "new"), (HOSTILE[0], HOSTILE[1], HOSTILE[2]), strict=True))
    log = {names[key]: column for key, column in source.items()}
    log[HOSTILE[5]] = np.ones(rows) * 0.1  # a target with a name of 300 characters
    segments = [text for text in HOSTILE if "\ud800" not in text]  # no frame takes half a pair
    log[HOSTILE[3]] = np.array(segments, dtype=object)[np.arange(rows) % len(segments)]
    result = cp.evaluate(
        log, reward=HOSTILE[0], propensity=HOSTILE[1], target=[HOSTILE[2], HOSTILE[5]], segment=HOSTILE[3]
    )
    return result, log


# -- The seven reports whose first screens are looked at ----------------------------------------------------------------


def visits(path, rows=20_000):
    """A shop's log of two weeks in a file, with a policy that earns more than the logging policy, and one that earns much less."""
    random = np.random.default_rng(3)
    logging, rates = np.array([0.45, 0.35, 0.2]), np.array([0.02, 0.06, 0.16])
    banner = random.choice(3, rows, p=logging)
    log = {
        "click": (random.random(rows) < rates[banner]) * 1.0,
        "propensity": logging[banner],
        "new": np.array([0.1, 0.3, 0.6])[banner],
        "bad": np.array([0.95, 0.03, 0.02])[banner],
        "day": np.datetime64("2026-03-01") + (np.arange(rows) * 14 // rows).astype("timedelta64[D]"),
        "country": np.array(["DE", "FR", "JP", "US"])[np.arange(rows) % 4],
    }
    pl.DataFrame(log).write_parquet(path)
    return path


def seven(folder):
    """What each of the seven is, made in a folder: (what `report` is called on, how)."""
    asked = {"reward": "click", "propensity": "propensity"}
    path = visits(folder / "visits.parquet")
    made = {
        "one target": (cp.evaluate(path, **asked, target="new", segment="country"), {"unit": "visit"}),
        "a policy that loses": (cp.evaluate(path, **asked, target="bad"), {"unit": "visit"}),
        "twelve targets": (crowded(12, 20, 20_000)[0], {}),
        "not identified": (cp.evaluate(path, **asked, target={"never": "0 * new"}), {}),
        "partial overlap": (partial(folder / "partial.parquet"), {"unit": "visit"}),
        "a ranking": (ranking(), {}),
        "an A/B test": (
            ab_test(folder / "test.parquet"),
            {"unit": "visit", "command": "counterpoise ab-test test.parquet"},
        ),
    }
    return {name: made[name][0].report(folder / f"{name.replace('/', '')}.html", **made[name][1]) for name in made}


def partial(path, rows=20_000):
    """A target that takes a train in Germany, where the log never does."""
    random = np.random.default_rng(0)
    country = random.choice(["DE", "FR", "US", "GB"], rows)
    actions, rates = np.array(["bus", "car", "train"]), np.array([0.10, 0.05, 0.25])
    logging = np.where((country == "DE")[:, None], [0.5, 0.5, 0.0], [0.4, 0.3, 0.3])
    taken = (random.random(rows)[:, None] > logging.cumsum(axis=1)).sum(axis=1).clip(max=2)
    log = {
        "sale": (random.random(rows) < rates[taken]) * 1.0,
        "p": logging[np.arange(rows), taken],
        "action": actions[taken],
        "wanted": np.where(random.random(rows) < 0.8, "train", "bus"),
        "country": country,
    }
    pl.DataFrame(log).write_parquet(path)
    asked = {"reward": "sale", "propensity": "p", "action": "action", "context": "country"}
    return cp.evaluate(path, **asked, target={"trains": cp.Chosen("wanted")})


def ranking(lists=5000):
    log = SyntheticRanking(positions=4, clicks="cascade").draw(lists)
    asked = {"slate": "list", "position": "position", "reward": "click", "propensity": "p_given"}
    return cp.evaluate(log, **asked, target="new_given", propensity_of="item_given_above")


def ab_test(path, rows=20_000):
    random = np.random.default_rng(1)
    arm = random.choice(["A", "B"], rows)
    click = (random.random(rows) < np.where(arm == "B", 0.073, 0.064)) * 1.0
    pl.DataFrame({"arm": arm, "click": click}).write_parquet(path)
    return cp.ab_test(path, arm="arm", reward="click", shares={"A": 0.5, "B": 0.5})
