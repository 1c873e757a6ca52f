"""Off-policy evaluation and learning you can act on.

>>> import counterpoise as cp
>>> result = cp.evaluate(reward=[1, 0, 1, 1], propensity=[0.5, 0.5, 0.25, 0.5], target=[0.5, 0.25, 0.5, 0.25])
>>> result["target", "snips"].value < 1
True
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from counterpoise import intervals, weights
from counterpoise import threads as threads  # before anything forks
from counterpoise.errors import ColumnError, CounterpoiseError, LogError, MomentsError, OptionError
from counterpoise.estimators import ESTIMATORS, Estimate
from counterpoise.evaluation.evaluate import compare, evaluate
from counterpoise.evaluation.result import Comparison, Result
from counterpoise.evaluation.scoring import logged, value_scorer
from counterpoise.intervals import Interval
from counterpoise.log.log import Log
from counterpoise.log.targets import ActionGroup, Chosen, Probabilities
from counterpoise.moments import LogMoments, Moments

if TYPE_CHECKING:
    from counterpoise import models
    from counterpoise.evaluation.ab_test import ab_test
    from counterpoise.evaluation.backtest import backtest
    from counterpoise.evaluation.distribution import distribution
    from counterpoise.evaluation.doctor import doctor
    from counterpoise.evaluation.plan import plan
    from counterpoise.evaluation.ranking import rank
    from counterpoise.evaluation.sensitivity import sensitivity
    from counterpoise.evaluation.sql import from_sums, sql
    from counterpoise.learn.search import learn_policy

__version__ = "0.3.0.dev0"

__all__ = [
    "ESTIMATORS",
    "ActionGroup",
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
    "Probabilities",
    "Result",
    "ab_test",
    "backtest",
    "compare",
    "distribution",
    "doctor",
    "evaluate",
    "from_sums",
    "intervals",
    "learn_policy",
    "logged",
    "models",
    "plan",
    "rank",
    "sensitivity",
    "sql",
    "value_scorer",
    "weights",
]


# late, as these verbs look at rows with polars, which takes its time to import
LATE = {
    "ab_test": "evaluation.ab_test",
    "backtest": "evaluation.backtest",
    "distribution": "evaluation.distribution",
    "doctor": "evaluation.doctor",
    "from_sums": "evaluation.sql",
    "learn_policy": "learn.search",
    "plan": "evaluation.plan",
    "rank": "evaluation.ranking",
    "sensitivity": "evaluation.sensitivity",
    "sql": "evaluation.sql",
}


def __getattr__(name: str) -> Any:
    if name == "models":
        return import_module("counterpoise.models")
    if name in LATE:
        return getattr(import_module(f"counterpoise.{LATE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
