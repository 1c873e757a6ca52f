"""Which estimators answer: those asked for, or all that the log and the interval allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from counterpoise.errors import Argument, OptionError
from counterpoise.estimators import DIFFERENCES, ESTIMATORS, Estimator
from counterpoise.intervals import Method
from counterpoise.moments import MODEL, ROW

# the estimator that answers, if it is there: the README's advice; then one's own, then a model alone, then differences
PREFERRED = ("optimal_dr", "beta_ips", "cross_fit", "snips", "sndr", "dr", "constant_dr", "ips")


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


def choose(asked: tuple[str, ...], columns: tuple[str, ...], groups: int, method: Method) -> dict[str, Estimator]:
    """The estimators asked for, or all that the columns, the groups and the method allow."""
    has_model = set(MODEL) <= set(columns)
    missing = {"model": not has_model, "groups": groups < 2, "": False}
    for name in asked:
        _check(name, missing, method)
    if asked or method.estimators:
        return {name: ESTIMATORS[name] for name in asked or method.estimators}
    has_controls = has_model or set(columns) > set(ROW)
    redundant = {"constant_dr"} if has_controls else {"constant_dr", "optimal_dr"}  # without controls both are beta_ips
    return {name: entry for name, entry in ESTIMATORS.items() if name not in redundant and not missing[entry.needs]}


def differences_of(columns: tuple[str, ...]) -> dict[str, Estimator]:
    """The estimators of differences that the columns allow."""
    has_model = set(MODEL) <= set(columns)
    return {name: one for name, one in DIFFERENCES.items() if has_model or one.needs != "model"}


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
        model = [
            Argument("model", "auto"),
            ", or a model's columns in ",
            Argument("model_reward"),
            " and ",
            Argument("model_value"),
        ]
        raise OptionError([f"{name} needs ", *(model if needs == "model" else [Argument("groups", 100)]), "."])
