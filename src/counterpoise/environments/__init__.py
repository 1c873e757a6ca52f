"""Worlds with a known truth, and real logs to try estimators on; all you need to import them is NumPy."""

from counterpoise.environments.classification import ClassificationBandit
from counterpoise.environments.feedback import Feedback
from counterpoise.environments.open_bandit import (
    OpenBanditLog,
    SlateProbabilities,
    from_priors_file,
    thompson_probabilities,
)
from counterpoise.environments.ranking import SyntheticRanking
from counterpoise.environments.synthetic import SyntheticBandit

__all__ = [
    "ClassificationBandit",
    "Feedback",
    "OpenBanditLog",
    "SlateProbabilities",
    "SyntheticBandit",
    "SyntheticRanking",
    "from_priors_file",
    "thompson_probabilities",
]
