"""Which estimators answer: those asked for, or all that the log and the interval allow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from counterpoise.errors import OptionError
from counterpoise.estimators import DIFFERENCES, ESTIMATORS, Estimator, above_logging
from counterpoise.evaluation.view import View
from counterpoise.intervals import Method
from counterpoise.log.kinds import check_kinds, kinds_in
from counterpoise.log.kinds.kind import RowKind
from counterpoise.moments.columns import CONTEXT, EXCESS, MODEL, OF_WHOLE_LISTS, REWARD, ROW, SQUARE
from counterpoise.moments.log_moments import LogMoments

PREFERRED = ("optimal_dr", "context_ips", "beta_ips", "cross_fit", "snips", "sndr", "dr", "constant_dr", "ips")
FILLED_IN = "dr"  # the one that answers if a model fills in what weights leave out
AS_THEY_ARE = ("ips", "snips")  # those that answer if a weight is what it is, and nothing is left out
LUCK = 3.0  # errors of the mean weight
OWN_LUCK = 2.0  # of weights of one's own: to take those with mean 1 as they are costs width, and not to take others so is a bias


def foremost(names: Iterable[str], registry: Mapping[str, Estimator], *, first: Sequence[str] = ()) -> str:
    """The estimator that answers, of several; one that is not registered (any more) counts as one of values.

    Those that come `first` do so because of what is known of the weights: see `right_for`.
    """
    preferred = (*first, *PREFERRED)

    def order(name: str) -> tuple[bool, bool, int]:
        place = preferred.index(name) if name in preferred else len(preferred)
        known = registry.get(name)
        return (False, False, place) if known is None else (known.is_difference, not known.uses_rewards, place)

    return min(names, key=order)


def right_for(log: LogMoments) -> tuple[str, ...]:
    """The estimators that come first because the weights of a log need not average 1.

    What a clipped weight leaves out is filled in: by a reward model if there is one, or else by the baseline. A column of weights leaves
    nothing out: where its mean is not 1, by more than luck, a baseline would be added or taken off that often.
    """
    if log.weight.mean_is_one:
        return ()
    return (FILLED_IN, *AS_THEY_ARE) if log.weight.is_own and do_not_average_1(log) else (FILLED_IN,)


def do_not_average_1(log: LogMoments) -> bool:
    """Whether weights whose mean need not be 1 have another, for any target."""
    if log.weight.mean_is_one:
        return False
    return any(is_off(View(replace(log, segment_columns=()), contrast)) for contrast in log.moments)


def is_off(view: View) -> bool:
    """Whether the mean excess is not 0, by more than luck: a limit that cuts next to nothing changes next to nothing."""
    mean, spread = float(view.whole.average("u")[0]), float(view.whole.covariance("u", "u")[0])
    luck = OWN_LUCK if view.log.weight.is_own else LUCK
    return mean**2 > luck**2 * spread / max(int(view.whole.n[0]), 1)


def lift_of(name: str, log: LogMoments) -> Estimator:
    """The estimator of the lift that belongs to one of values.

    That of the one with the same control variates is `lift`, whose baseline is the best for a difference; that of any other, and of all
    where weights do not average 1, is its value less the mean reward.
    """
    columns = next(iter(log.moments.values())).columns
    if set(MODEL) <= set(columns):
        own: tuple[str, ...] = ("optimal_dr",)
    else:
        own = ("optimal_dr", "context_ips") if has_context(columns) else ("optimal_dr", "beta_ips", "constant_dr")
    is_lift = name not in ESTIMATORS or (name in own and not do_not_average_1(log))
    return ESTIMATORS["lift"] if is_lift else above_logging(ESTIMATORS[name])


def names_of(estimator: str | Sequence[str] | None) -> tuple[str, ...]:
    """The names that `estimator` asks for; None asks for all of them."""
    if estimator is None:
        return ()
    if not isinstance(estimator, str | list | tuple):
        raise OptionError(f"`estimator={estimator!r}` must be a name or a list of names.")
    return (estimator,) if isinstance(estimator, str) else tuple(estimator)


def choose(
    names: tuple[str, ...], columns: tuple[str, ...], groups: int, method: Method, *, mean_is_one: bool = True
) -> dict[str, Estimator]:
    """The estimators asked for, or all that the columns, the groups and the method allow.

    If weights have a mean other than 1, a reward model fills in what they leave out, in `dr` and `sndr`; a control variate that
    assumes a mean of 1 would undo that.
    """
    has_model = set(MODEL) <= set(columns)
    kinds = kinds_in(columns)
    if method.needs_known_propensities:
        check_kinds(kinds, "known propensities", who=f"the {method.name} interval")
    for name in names or method.estimators:
        check_kinds(kinds, f"estimator={name!r}")
    unfit = groups < 2 or bool(kinds)  # cross_fit would have to count groups as their rows do
    missing = {"model": not has_model, "groups": unfit, "context": not has_context(columns), "": False}
    for name in names:
        _check(name, missing, method)
    if names or method.estimators:
        return {name: ESTIMATORS[name] for name in names or method.estimators}
    own = {*ROW, SQUARE, *OF_WHOLE_LISTS, *(column for kind in kinds for column in kind.columns)}
    has_controls = any(name not in own and not name.startswith((CONTEXT, EXCESS, REWARD)) for name in columns)
    # without controls they are beta_ips and context_ips
    redundant = {"constant_dr"} if has_controls else {"constant_dr", "optimal_dr"}
    redundant |= _refused(kinds)
    if has_model and not mean_is_one:
        redundant |= {"optimal_dr", "auto", "lift"}
    return {name: entry for name, entry in ESTIMATORS.items() if name not in redundant and not missing[entry.needs]}


def has_context(columns: Sequence[str]) -> bool:
    """Whether there are columns of a context baseline."""
    return any(name.startswith(CONTEXT) for name in columns)


def differences_of(columns: Sequence[str]) -> dict[str, Estimator]:
    """The estimators of a difference that the columns allow."""
    missing = {"model": not set(MODEL) <= set(columns), "context": not has_context(columns)}
    redundant = _refused(kinds_in(columns))
    return {
        name: estimator
        for name, estimator in DIFFERENCES.items()
        if name not in redundant and not missing.get(estimator.needs, False)
    }


def _refused(kinds: Sequence[RowKind]) -> set[str]:
    """The estimators that rows of these kinds do not go with."""
    return {name for kind in kinds for name in ESTIMATORS if f"estimator={name!r}" in kind.conflicts}


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
        arguments = {
            "model": "`model='auto'`, or a model's columns in `model_reward=` and `model_value=`",
            "groups": "`groups=100`",
            "context": "`baseline=`, the columns that rewards may depend on",
        }
        raise OptionError(f"{name} needs {arguments[needs]}.")
