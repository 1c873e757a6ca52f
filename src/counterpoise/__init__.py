"""Off-policy evaluation and learning that you can act on.

>>> import counterpoise as cp
>>> result = cp.evaluate(reward=[1, 0, 1, 1], propensity=[0.5, 0.5, 0.25, 0.5], target=[0.5, 0.25, 0.5, 0.25])
>>> result["target", "snips"].value < 1
True
"""

from counterpoise import intervals
from counterpoise.errors import ColumnError, CounterpoiseError, LogError, MomentsError, OptionError
from counterpoise.estimators import ESTIMATORS, Estimate
from counterpoise.evaluation.evaluate import compare, evaluate
from counterpoise.evaluation.result import Comparison, Result
from counterpoise.evaluation.sql import from_sums, sql
from counterpoise.intervals import Interval
from counterpoise.log.log import Log
from counterpoise.log.targets import Chosen
from counterpoise.moments import LogMoments, Moments

__version__ = "0.1.0"

__all__ = [
    "ESTIMATORS",
    "Chosen",
    "ColumnError",
    "Comparison",
    "CounterpoiseError",
    "Estimate",
    "Interval",
    "Log",
    "LogError",
    "LogMoments",
    "Moments",
    "MomentsError",
    "OptionError",
    "Result",
    "compare",
    "evaluate",
    "from_sums",
    "intervals",
    "sql",
]
