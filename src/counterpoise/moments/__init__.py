"""Mergeable moments: everything that one pass over a log needs to keep."""

from counterpoise.moments.columns import MODEL, ROW
from counterpoise.moments.log_moments import LogMoments
from counterpoise.moments.moments import Floats, Moments, ShorterRows
from counterpoise.moments.spread import Powers, Tail

__all__ = ["MODEL", "ROW", "Floats", "LogMoments", "Moments", "Powers", "ShorterRows", "Tail"]
