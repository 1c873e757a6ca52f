"""Logs to report on: an ordinary one, and one whose names try to do harm."""

import numpy as np

import counterpoise as cp
from counterpoise.demo import simulate

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
