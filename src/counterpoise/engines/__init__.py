"""Weighted rows in, moments out, wherever the log lives."""

from counterpoise.engines.registry import ENGINES, LogEngine

__all__ = ["ENGINES", "LogEngine"]
