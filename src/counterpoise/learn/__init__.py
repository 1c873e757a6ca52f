"""Learns a policy from a log; all you need to import this is NumPy and PyTorch."""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("counterpoise.learn needs PyTorch: pip install 'counterpoise[learn]'") from error

from counterpoise.learn.gradients import baselines, norms, objectives
from counterpoise.learn.gradients.baselines import RunningBaseline
from counterpoise.learn.gradients.objectives import OBJECTIVES, Objective
from counterpoise.learn.guardrails import LearningWarning
from counterpoise.learn.judging import judge
from counterpoise.learn.learner import PolicyLearner
from counterpoise.learn.logs.items_frame import item_features
from counterpoise.learn.policies.forest import Forest
from counterpoise.learn.policies.kinds import MLP, LinearSoftmax, ModulePolicy, TwoTower
from counterpoise.learn.policies.policy import Policy
from counterpoise.learn.policies.storage import export_onnx, load_policy, save_policy
from counterpoise.learn.ranking.learner import RankingLearner
from counterpoise.learn.ranking.plackett_luce import PlackettLuce, Shown
from counterpoise.learn.runs.callbacks import EpochEnd, LogTo
from counterpoise.learn.search import Direct, Found, Reduction, learn_policy, portfolio

__all__ = [
    "MLP",
    "OBJECTIVES",
    "Direct",
    "EpochEnd",
    "Forest",
    "Found",
    "LearningWarning",
    "LinearSoftmax",
    "LogTo",
    "ModulePolicy",
    "Objective",
    "PlackettLuce",
    "Policy",
    "PolicyLearner",
    "RankingLearner",
    "Reduction",
    "RunningBaseline",
    "Shown",
    "TwoTower",
    "baselines",
    "export_onnx",
    "item_features",
    "judge",
    "learn_policy",
    "load_policy",
    "norms",
    "objectives",
    "portfolio",
    "save_policy",
]
