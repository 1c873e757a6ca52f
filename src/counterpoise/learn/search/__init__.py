"""Finds a policy: several ways to learn one are tried on a log, and the best that is safe is kept."""

from counterpoise.learn.search.contenders import Contender, Rest, portfolio
from counterpoise.learn.search.direct import Direct
from counterpoise.learn.search.forests import ForestLearner
from counterpoise.learn.search.found import Found, Standing
from counterpoise.learn.search.networks import Network
from counterpoise.learn.search.reduction import Reduction
from counterpoise.learn.search.searching import learn_policy

__all__ = [
    "Contender",
    "Direct",
    "ForestLearner",
    "Found",
    "Network",
    "Reduction",
    "Rest",
    "Standing",
    "learn_policy",
    "portfolio",
]
