"""How numbers, and names from a log, are written for people."""

from __future__ import annotations

import math


def number(value: float, error: float | None = None) -> str:
    """A value to two digits of its error, or to four of its own.

    >>> number(0.281734, 0.0031), number(-12345.6), number(float("nan")), number(1.9e9, 2.3e7)
    ('0.2817', '−12,346', '–', '1,900,000,000')
    """
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    scale = error if error is not None and math.isfinite(error) and error > 0 else abs(value) / 50
    digits = 1 - math.floor(math.log10(scale)) if scale > 0 else 0
    if digits > 9 or abs(value) >= 1e12:
        return f"{value:.4g}".replace("-", "−")
    written = f"{value:,.{max(digits, 0)}f}"
    return (written.lstrip("-") if float(written.replace(",", "")) == 0 else written).replace("-", "−")


def signed(value: float, error: float | None = None) -> str:
    """A difference, with its sign.

    >>> signed(0.05, 0.01), signed(-0.05, 0.01)
    ('+0.050', '−0.050')
    """
    written = number(value, error)
    return f"+{written}" if value > 0 and math.isfinite(value) else written


def percent(share: float) -> str:
    """A share, to about two digits, with a space that does not break.

    >>> [percent(share).replace("\N{NO-BREAK SPACE}", " ") for share in (0.123456, 0.00012, 1.0)]
    ['12 %', '0.012 %', '100 %']
    """
    if not math.isfinite(share):
        return "–"
    digits = 0 if share == 0 or abs(share) >= 0.0995 else 1 - math.floor(math.log10(abs(100 * share)))
    return f"{100 * share:.{min(digits, 8)}f}\u00a0%".replace("-", "−")


def level_of(level: float) -> str:
    """A confidence level: 0.95 is 95 %."""
    return f"{100 * level:.6g}\u00a0%"


def visible(text: str) -> str:
    r"""Text from a log, without the characters that control a terminal.

    >>> visible("a\x1b[31mb\n")
    'a\\x1b[31mb\\n'
    """
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def shortened(name: object, limit: int = 60) -> str:
    """A name from a log on one line, cut if it is very long.

    >>> shortened("pi_new"), shortened("a\\nb" * 9, limit=8)
    ('pi_new', 'a\\\\nba\\\\n…')
    """
    shown = visible(str(name)[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"
