"""The headline as HTML, and the signs that go with verdicts."""

from __future__ import annotations

from counterpoise.evaluation.headline import Name, headline
from counterpoise.evaluation.reading import Reading
from counterpoise.report.markup import Safe, join, name_of

SIGNS = {"ok": "✓", "caution": "▲", "not identified": "✕", "model only": "◇"}


def answer(reading: Reading) -> Safe:
    """The answer in one sentence, with names set apart."""
    return join(name_of(part.text) if isinstance(part, Name) else part for part in headline(reading))
