"""Reward models, fitted on other rows than they predict, as a step that adds their columns to every batch of a log."""

from counterpoise.models.quality import Quality
from counterpoise.models.reward import Reward

__all__ = ["Quality", "Reward"]
