"""Off-policy evaluation and learning you can act on.

>>> import counterpoise as cp
>>> result = cp.evaluate(reward=[1, 0, 1, 1], propensity=[0.5, 0.5, 0.25, 0.5], target=[0.5, 0.25, 0.5, 0.25])
>>> result["target", "snips"].value < 1
True
"""

from importlib import import_module
from typing import TYPE_CHECKING

from counterpoise import threads as threads  # at once: it must know of every fork

if TYPE_CHECKING:
    from counterpoise import intervals, models, weights
    from counterpoise.errors import (
        AlreadyAddedError,
        ColumnError,
        CounterpoiseError,
        LogError,
        MomentsError,
        OptionError,
    )
    from counterpoise.estimators import ESTIMATORS, Estimate
    from counterpoise.evaluation.ab_test import ab_test
    from counterpoise.evaluation.backtest import backtest
    from counterpoise.evaluation.distribution import distribution
    from counterpoise.evaluation.doctor import doctor
    from counterpoise.evaluation.evaluate import compare, evaluate, rank, sensitivity
    from counterpoise.evaluation.plan import plan
    from counterpoise.evaluation.result import Comparison, Result
    from counterpoise.evaluation.scoring import logged, value_scorer
    from counterpoise.evaluation.sql import from_sums, sql
    from counterpoise.evaluation.watch import watch
    from counterpoise.intervals import Interval
    from counterpoise.learn.search import learn_policy
    from counterpoise.log.log import Log
    from counterpoise.log.parts import Ratio
    from counterpoise.log.record import check_decision, record
    from counterpoise.log.targets import ActionGroup, Always, Chosen, Probabilities
    from counterpoise.models import propensities
    from counterpoise.moments import LogMoments, Moments
    from counterpoise.readers import read

__version__ = "0.4.0.dev0"

__all__ = [
    "ESTIMATORS",
    "ActionGroup",
    "AlreadyAddedError",
    "Always",
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
    "Ratio",
    "Result",
    "ab_test",
    "backtest",
    "check_decision",
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
    "propensities",
    "rank",
    "read",
    "record",
    "sensitivity",
    "sql",
    "value_scorer",
    "watch",
    "weights",
]

# where each name comes from: it is imported when it is first asked for, so that `import counterpoise` costs next to nothing
_HOMES = {
    "errors": ("AlreadyAddedError", "ColumnError", "CounterpoiseError", "LogError", "MomentsError", "OptionError"),
    "estimators": ("ESTIMATORS", "Estimate"),
    "evaluation.ab_test": ("ab_test",),
    "evaluation.backtest": ("backtest",),
    "evaluation.distribution": ("distribution",),
    "evaluation.doctor": ("doctor",),
    "evaluation.evaluate": ("compare", "evaluate", "rank", "sensitivity"),
    "evaluation.plan": ("plan",),
    "evaluation.result": ("Comparison", "Result"),
    "evaluation.scoring": ("logged", "value_scorer"),
    "evaluation.sql": ("from_sums", "sql"),
    "evaluation.watch": ("watch",),
    "intervals": ("Interval",),
    "learn.search": ("learn_policy",),
    "log.log": ("Log",),
    "log.parts": ("Ratio",),
    "log.record": ("check_decision", "record"),
    "log.targets": ("ActionGroup", "Always", "Chosen", "Probabilities"),
    "models": ("propensities",),
    "moments": ("LogMoments", "Moments"),
    "readers": ("read",),  # a module of its room
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


if not TYPE_CHECKING:  # type checkers see the imports above, and no name that is not there

    def __getattr__(name):
        if name in _HOME:
            home = import_module(f"counterpoise.{_HOME[name]}")
            value = getattr(home, name) if hasattr(home, name) else import_module(f"{home.__name__}.{name}")
        elif name in __all__:
            value = import_module(f"counterpoise.{name}")  # one of the rooms
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value
