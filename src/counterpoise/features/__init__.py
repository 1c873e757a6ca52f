"""Columns as numbers, for models and policies alike: scaling, categories, missing values, points in time and lists."""

from counterpoise.features.columns import Scaling
from counterpoise.features.encoder import Encoder

__all__ = ["Encoder", "Scaling"]
