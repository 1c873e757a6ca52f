"""Weights, each of which turns a row's columns into w and knows what the mean of w should be."""

from counterpoise.weights.balanced import Balanced
from counterpoise.weights.clipped import Clip
from counterpoise.weights.given import as_weight
from counterpoise.weights.harmonic import Harmonic
from counterpoise.weights.lists import Cascade, Independent, ListWeight, PseudoInverse, Standard, list_weight
from counterpoise.weights.names import WEIGHTS
from counterpoise.weights.odds import Odds
from counterpoise.weights.own import Own
from counterpoise.weights.ratio import Ratio
from counterpoise.weights.shrunk import Shrink
from counterpoise.weights.slope import Slope
from counterpoise.weights.smoothed import ExponentialSmoothing, ImplicitExploration
from counterpoise.weights.switched import Switch
from counterpoise.weights.weight import Weight

__all__ = [
    "WEIGHTS",
    "Balanced",
    "Cascade",
    "Clip",
    "ExponentialSmoothing",
    "Harmonic",
    "ImplicitExploration",
    "Independent",
    "ListWeight",
    "Odds",
    "Own",
    "PseudoInverse",
    "Ratio",
    "Shrink",
    "Slope",
    "Standard",
    "Switch",
    "Weight",
    "as_weight",
    "list_weight",
]
