"""Learns a policy from a log, with PyTorch."""

import warnings as _warnings

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("counterpoise.learn needs PyTorch: pip install 'counterpoise[learn]'") from error

from counterpoise.learn import norms, objectives
from counterpoise.learn.actions import item_features
from counterpoise.learn.checkpoints import EpochEnd, LogTo
from counterpoise.learn.contenders import Direct, Reduction, portfolio
from counterpoise.learn.files import export_onnx, load_policy
from counterpoise.learn.forest import Forest
from counterpoise.learn.hand_out import LearningWarning, evaluate_folds
from counterpoise.learn.learner import PolicyLearner
from counterpoise.learn.objectives import OBJECTIVES, Objective, RunningBaseline
from counterpoise.learn.options import Hardware, Optimization, Schedule, Terms
from counterpoise.learn.plackett_luce import PlackettLuce, Shown
from counterpoise.learn.policies import MLP, Average, LinearSoftmax, ModulePolicy, TwoTower
from counterpoise.learn.policy import Policy, save_policy
from counterpoise.learn.race import Found
from counterpoise.learn.ranking import RankingLearner
from counterpoise.learn.search import learn_policy

__all__ = [
    "MLP",
    "OBJECTIVES",
    "Average",
    "Direct",
    "EpochEnd",
    "Forest",
    "Found",
    "Hardware",
    "LearningWarning",
    "LinearSoftmax",
    "LogTo",
    "ModulePolicy",
    "Objective",
    "Optimization",
    "PlackettLuce",
    "Policy",
    "PolicyLearner",
    "RankingLearner",
    "Reduction",
    "RunningBaseline",
    "Schedule",
    "Shown",
    "Terms",
    "TwoTower",
    "evaluate_folds",
    "export_onnx",
    "item_features",
    "learn_policy",
    "load_policy",
    "norms",
    "objectives",
    "portfolio",
    "save_policy",
]


def __getattr__(name: str) -> object:
    renamed = {"judge": ("evaluate_folds", evaluate_folds), "baselines": ("objectives", objectives)}
    if name not in renamed:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    now, value = renamed[name]
    text = f"counterpoise.learn.{name} is now called {now}; the old name works until version 0.5."
    _warnings.warn(text, FutureWarning, stacklevel=2)
    return value
