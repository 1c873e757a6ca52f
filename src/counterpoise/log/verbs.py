"""The verbs: which parts of a log each takes, and which it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from inspect import Parameter, signature
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from counterpoise.errors import OptionError
from counterpoise.log.kinds import KINDS, check_rows, known_parts, refused_parts
from counterpoise.log.parts import FITTING, MODELS, PARTS, TRAINED, by_name, with_parts

if TYPE_CHECKING:
    from counterpoise.log.log import Log


@dataclass(frozen=True)
class Limits:
    """The parts that a verb has no use for, and therefore refuses; `what` begins the sentence that says so."""

    what: str
    parts: tuple[str, ...] = ()
    does: str = "is estimated from weights and rewards alone"
    one_reward: bool = True
    instead: str = ""  # a part that does what the refused ones would
    has_segments: bool = False

    @property
    def taken(self) -> list[str]:
        """The parts that the verb uses, or could use."""
        return [part for part in PARTS if part not in self.parts and (self.has_segments or part != "max_segments")]


_CONTROLLED = ("control",), "takes no further control variates"
_LEARNS = "learns from contexts, actions and rewards"
_UNLEARNED = ("value_samples", "model_value", "baseline")

# What a verb refuses, besides rows of the kinds that do not go with it: those say so themselves, in log/kinds/. Every part of a log is used
# by a verb, refused by it, or unable to change its answer: `action`, `context` and `candidates` where no policy or model looks at them,
# `key` where repeated rows are not counted, and for the doctor whatever says how to estimate. A test walks through all of them.
_LIMITS = {
    "evaluate": Limits("evaluate", one_reward=False, has_segments=True),
    "compare": Limits("compare", *_CONTROLLED, one_reward=False, instead="baseline", has_segments=True),
    "rank": Limits("rank", *_CONTROLLED, instead="baseline"),
    "plan": Limits("plan", ("control",), "takes neither ratios nor further control variates", instead="baseline"),
    "backtest": Limits(
        "backtest", ("control", "cross_fit"), "takes neither ratios nor further control variates", instead="baseline"
    ),
    "doctor": Limits("doctor", TRAINED, "is about the log alone", one_reward=False),
    "ab_test": Limits(
        "ab_test",
        (*MODELS, *TRAINED, "control"),
        "compares the mean rewards of arms, row by row",
        instead="baseline",
    ),
    "distribution": Limits(
        "a distribution", (*MODELS, *TRAINED, "control", "baseline", "minimize")
    ),
    "sensitivity": Limits(
        "sensitivity", (*MODELS, *TRAINED, "control", "baseline"), "is about weights and rewards alone"
    ),
    "sql": Limits(
        "sql",
        (
            *(*FITTING, *TRAINED, "baseline", "key", "query", "external_access", "timeout", "format"),
            *("reward_bounds", "minimize"),
        ),
        "writes one statement about a table, and looks at no row",
    ),
    # learning says in its own words that it is about one reward
    "learn_policy": Limits("learn_policy", (*TRAINED, *_UNLEARNED), _LEARNS, one_reward=False),
    "PolicyLearner": Limits("PolicyLearner", (*TRAINED, *_UNLEARNED), _LEARNS, one_reward=False),
    "RankingLearner": Limits(
        "RankingLearner",
        (*TRAINED, "candidates", *MODELS, "baseline"),
        "learns from rankings and their rewards alone",
        one_reward=False,
    ),
}  # fmt: skip
LIMITS = {verb: replace(limits, parts=(*limits.parts, *refused_parts(verb))) for verb, limits in _LIMITS.items()}


def need_only(log: Log, verb: str) -> None:
    """Raise an error for the first part that a verb would have to ignore."""
    limits = LIMITS[verb]
    if limits.one_reward and len(log.reward) > 1:
        raise OptionError(
            f"{limits.what} is about one reward, and this log has {', '.join(map(repr, log.reward))}: evaluate one at a time."
        )
    check_rows(log, verb, who=limits.what, does=limits.does)
    for part in filter(log.has, limits.parts):
        if part == "minimize" and verb == "distribution":
            raise OptionError(
                "the CVaR of a distribution is the mean of the lowest rewards, which are the best where less is better.",
                do=f"Leave out `minimize=`, and pass `reward={f'-({log.reward[0]})'!r}`, whose lowest values are the worst."
                if log.reward and not log.is_arrays
                else "Leave out `minimize=`, and pass the rewards with the other sign.",
            )
        instead = f"Name what rewards depend on with `{limits.instead}=`." if limits.instead else ""
        raise OptionError(f"{limits.what} {limits.does}: leave out `{part}=`.", do=instead)
    if log.max_segments is not None and not limits.has_segments:
        raise OptionError(f"{limits.what} makes no segments: leave out `max_segments=`.")
    for kind in KINDS:
        kind.check_verb(log, verb)


P = ParamSpec("P")
R = TypeVar("R")


def takes_parts(verb: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Add the parts of a log that a verb takes to a function's signature and help, and suggest a name for misspelled arguments."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        plain = signature(function)
        own = {name: option for name, option in plain.parameters.items() if option.kind is not Parameter.VAR_KEYWORD}
        parts = [part for part in LIMITS[verb].taken if part not in own]
        known, taken = dict.fromkeys([*own, *PARTS]), [*own, *LIMITS[verb].taken]

        @wraps(function)
        def run(*values: P.args, **arguments: P.kwargs) -> R:
            if not arguments.keys() <= known.keys():
                own_kinds = known_parts().keys() - PARTS.keys()
                named = by_name(function.__name__, arguments, {*known, *own_kinds}, [*taken, *own_kinds])
                arguments.clear()
                arguments.update(named)
            return function(*values, **arguments)

        further = [Parameter(part, Parameter.KEYWORD_ONLY, default=None) for part in parts]
        run.__dict__["__signature__"] = plain.replace(parameters=[*own.values(), *further])
        run.__doc__ = with_parts(function.__doc__, parts)
        return run

    return decorate
