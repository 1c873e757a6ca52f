"""Weights, each of which turns a row's columns into w and knows what the mean of w should be."""

from counterpoise.weights.biased import (
    Clip,
    ExponentialSmoothing,
    Harmonic,
    ImplicitExploration,
    Odds,
    Shrink,
    Slope,
    Switch,
)
from counterpoise.weights.lists import (
    Cascade,
    Independent,
    ListWeight,
    PerDecision,
    PseudoInverse,
    Standard,
    Trajectory,
    list_weight,
)
from counterpoise.weights.names import WEIGHTS
from counterpoise.weights.weight import Balanced, Own, Ratio, Weight, as_weight

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
    "PerDecision",
    "PseudoInverse",
    "Ratio",
    "Shrink",
    "Slope",
    "Standard",
    "Switch",
    "Trajectory",
    "Weight",
    "as_weight",
    "list_weight",
]
