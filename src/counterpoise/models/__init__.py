"""Models of rewards and propensities, never fitted on the rows they predict, as a step that adds their columns to every batch of a log."""

from counterpoise.models.cross_fitting import PropensityQuality, Quality
from counterpoise.models.propensity import Propensity
from counterpoise.models.reward import Reward

__all__ = ["Propensity", "PropensityQuality", "Quality", "Reward"]
