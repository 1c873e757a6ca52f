"""`Axis`: where a number lies on a scale, and which numbers to write along it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from counterpoise.estimators import Estimate


@dataclass(frozen=True)
class Axis:
    """A linear or logarithmic scale from low to high."""

    low: float
    high: float
    logarithmic: bool = False

    @classmethod
    def around(cls, values: Iterable[float], *, logarithmic: bool = False, margin: float = 0.05) -> Axis:
        """An axis that fits all finite values (the positive ones, if it is logarithmic), with a margin.

        >>> Axis.around([1.0, 3.0, float("inf")], margin=0.5)
        Axis(low=0.0, high=4.0, logarithmic=False)
        """
        kept = [x for x in values if math.isfinite(x) and (x > 0 or not logarithmic)]
        if not kept:
            return cls(1.0, 10.0, True) if logarithmic else cls(0.0, 1.0)
        low, high = min(kept), max(kept)
        if logarithmic:
            wide = max(math.log10(high / low), 0.5) * margin
            return cls(low / 10**wide, high * 10**wide, True)
        spread = (high - low) or abs(high) * 0.1 or 1.0
        return cls(low - margin * spread, high + margin * spread)

    def share(self, value: float) -> float:
        """Where a value lies: 0 at the low end, 1 at the high end, outside [0, 1] for values off the scale.

        >>> Axis(1.0, 100.0, True).share(10.0)
        0.5
        """
        if self.logarithmic:
            if value <= 0:
                return -1.0
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, wanted: int = 5) -> list[float]:
        """Round numbers along the axis.

        >>> Axis(0.0, 1.1).ticks(), Axis(0.5, 200.0, True).ticks()
        ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [1.0, 10.0, 100.0])
        """
        if self.logarithmic:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            if last - first >= 1:
                return [10.0**k for k in range(first, last + 1, max(1, math.ceil((last - first) / wanted)))]
            steps = [m * 10.0**k for k in range(first - 1, last + 2) for m in (1, 2, 5)]
            return [x for x in steps if self.low <= x <= self.high] or [self.low]
        step = _round_step((self.high - self.low) / wanted)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        digits = max(0, -math.floor(math.log10(step)))
        return [round(k * step, digits + 1) for k in range(first, last + 1)]


def forest_axis(estimates: Sequence[Estimate], matters: Sequence[bool], reference: float) -> Axis:
    """An axis with room for the estimates that matter, and up to twice as much again on each side for wider ones."""
    spans = [[x for x in (estimate.value, *estimate.interval) if math.isfinite(x)] for estimate in estimates]
    everything = [x for span in spans for x in span]
    core = [x for span, is_core in zip(spans, matters, strict=True) if is_core for x in span]
    core += [reference] if math.isfinite(reference) else []
    if not core:
        return Axis.around(everything)
    spread = (max(core) - min(core)) or abs(max(core)) * 0.1 or 1.0
    low, high = min(core) - 2 * spread, max(core) + 2 * spread
    return Axis.around([*core, *(min(max(x, low), high) for x in everything)], margin=0.02)


def _round_step(step: float) -> float:
    """The next of 1, 2, 5, 10, …, or the one just below."""
    size = 10.0 ** math.floor(math.log10(step))
    return next((m * size for m in (1.0, 2.0, 5.0) if m * size >= 0.75 * step), 10 * size)


def tick_text(value: float) -> str:
    """A tick's number, short.

    >>> tick_text(0.25), tick_text(20000.0), tick_text(2e6), tick_text(1e-5)
    ('0.25', '20k', '2M', '1e-05')
    """
    size = abs(value)
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if unit <= size < 1e12 and (name != "k" or size >= 1e4):
            return f"{value / unit:.4g}{name}".replace("-", "−")
    return f"{value:.6g}".replace("-", "−") if size >= 1e-4 or size == 0 else f"{value:.3g}"
