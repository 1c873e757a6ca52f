"""Columns as numbers, for models and policies alike: scaling, categories, missing values, points in time and lists."""

from counterpoise.features.encoder import Encoder, Scaling

__all__ = ["Encoder", "Scaling"]
