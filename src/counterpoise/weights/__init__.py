"""Weights, each of which turns a row's columns into w and knows what the mean of w should be."""

from typing import TYPE_CHECKING

from counterpoise.errors import warn_of_old_name
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
from counterpoise.weights.weight import Balanced, Importance, Own, Weight, as_weight

__all__ = [
    "WEIGHTS",
    "Balanced",
    "Cascade",
    "Clip",
    "ExponentialSmoothing",
    "Harmonic",
    "ImplicitExploration",
    "Importance",
    "Independent",
    "ListWeight",
    "Odds",
    "Own",
    "PerDecision",
    "PseudoInverse",
    "Shrink",
    "Slope",
    "Standard",
    "Switch",
    "Trajectory",
    "Weight",
    "as_weight",
    "list_weight",
]


if not TYPE_CHECKING:

    def __getattr__(name):
        if name != "Ratio":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        warn_of_old_name("weights.Ratio", "weights.Importance")
        return Importance
