"""Which estimators answer: those asked for, or all that the log and the interval allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from counterpoise.errors import Argument, OptionError
from counterpoise.estimators import DIFFERENCES, ESTIMATORS, Estimator
from counterpoise.intervals import Method
from counterpoise.moments import MODEL, ROW
from counterpoise.moments.moments import CONTEXT, EXCESS, LENGTH, REWARD, SQUARE

# the estimator that answers, if it is there: the README's advice; then one's own, then a model alone, then differences
PREFERRED = ("optimal_dr", "context_ips", "beta_ips", "cross_fit", "snips", "sndr", "dr", "constant_dr", "ips")
FILLED_IN = "dr"  # the one that answers where weights leave something out and a model fills it in


def foremost(estimators: Mapping[str, Estimator]) -> str:
    """The estimator that answers, of several."""

    def order(name: str) -> tuple[bool, bool, int]:
        place = PREFERRED.index(name) if name in PREFERRED else len(PREFERRED)
        return estimators[name].is_difference, not estimators[name].uses_rewards, place

    return min(estimators, key=order)


def names_of(estimator: str | Sequence[str] | None) -> tuple[str, ...]:
    """The names that `estimator` asks for; None asks for all of them."""
    if estimator is None:
        return ()
    if not isinstance(estimator, str | list | tuple):
        raise OptionError([Argument("estimator", estimator), " must be a name or a list of names."])
    return (estimator,) if isinstance(estimator, str) else tuple(estimator)


def choose(
    asked: tuple[str, ...], columns: tuple[str, ...], groups: int, method: Method, *, mean_is_one: bool = True
) -> dict[str, Estimator]:
    """The estimators asked for, or all that the columns, the groups and the method allow.

    Where weights have another mean than 1, a reward model fills in what they leave out, in `dr` and `sndr`; a control variate that takes
    their mean for 1 would undo that.
    """
    has_model = set(MODEL) <= set(columns)
    missing = {"model": not has_model, "groups": groups < 2, "context": not has_context(columns), "": False}
    for name in asked:
        _check(name, missing, method)
    if asked or method.estimators:
        return {name: ESTIMATORS[name] for name in asked or method.estimators}
    has_controls = any(
        name not in (*ROW, SQUARE, LENGTH) and not name.startswith((CONTEXT, EXCESS, REWARD)) for name in columns
    )
    # without controls they are beta_ips and context_ips
    redundant = {"constant_dr"} if has_controls else {"constant_dr", "optimal_dr"}
    if has_model and not mean_is_one:
        redundant |= {"optimal_dr", "auto", "lift"}
    return {name: entry for name, entry in ESTIMATORS.items() if name not in redundant and not missing[entry.needs]}


def has_context(columns: Sequence[str]) -> bool:
    """Whether there are columns of a context baseline."""
    return any(name.startswith(CONTEXT) for name in columns)


def differences_of(columns: Sequence[str]) -> dict[str, Estimator]:
    """The estimators of a difference that the columns allow."""
    missing = {"model": not set(MODEL) <= set(columns), "context": not has_context(columns)}
    return {name: one for name, one in DIFFERENCES.items() if not missing.get(one.needs, False)}


def check_differences(method: Method) -> None:
    """Raise an error if a method is for values only."""
    if not method.allows_differences:
        raise OptionError(
            f"the {method.name} interval works for values, not for differences: use normal, jackknife or anytime."
        )


def _check(name: str, missing: dict[str, bool], method: Method) -> None:
    if not isinstance(name, str) or name not in ESTIMATORS:
        raise OptionError(f"no estimator {name!r}; choose from {', '.join(ESTIMATORS)}.")
    if method.estimators and name not in method.estimators:
        raise OptionError(
            f"the {method.name} interval only works for {' and '.join(method.estimators)}: leave out {name}, or choose another interval."
        )
    needs = ESTIMATORS[name].needs
    if missing[needs]:
        model = [Argument("model", "auto"), ", or a model's columns in ", Argument("model_reward"), " and "]
        arguments: dict[str, list[Any]] = {
            "model": [*model, Argument("model_value")],
            "groups": [Argument("groups", 100)],
            "context": [Argument("baseline"), ", the columns that rewards may depend on"],
        }
        raise OptionError([f"{name} needs ", *arguments[needs], "."])
