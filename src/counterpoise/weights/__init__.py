"""Weights, each of which turns a row's columns into w and knows what the mean of w should be."""

from counterpoise.weights.clipped import Clip
from counterpoise.weights.given import as_weight
from counterpoise.weights.own import Own
from counterpoise.weights.ratio import Ratio
from counterpoise.weights.weight import Weight

__all__ = ["Clip", "Own", "Ratio", "Weight", "as_weight"]
