"""A training run on lists: that of single rows, with the weights of lists and a baseline for each of their positions."""

from __future__ import annotations

from typing import Any

from counterpoise.errors import Argument, OptionError
from counterpoise.learn.logs.inspection import Inspection
from counterpoise.learn.ranking.plackett_luce import PlackettLuce
from counterpoise.learn.ranking.sources import ListSource
from counterpoise.learn.ranking.steps import LoggedLists, RunningBaselines
from counterpoise.learn.runs.checkpoints import State, copy_of, restore_checkpoint
from counterpoise.learn.runs.options import Options
from counterpoise.learn.runs.training import IMITATION, Training, settings_of, start_of


class ListTraining(Training):
    """One run with some options on a log of lists."""

    def __init__(
        self, options: Options, source: ListSource, found: Inspection, policy: PlackettLuce, banditnet_lambda: float
    ) -> None:
        check_options(options)
        super().__init__(options, source, found, policy, banditnet_lambda)
        if self.processes > 1:
            raise OptionError("a ranking policy trains in one process only.", do="Start it without torchrun.")
        assert source.memory is not None
        terms = source.memory.reward.shape[1] if source.weight.by_position else 1
        self._settings = {
            "weight": type(source.weight).__name__,
            "propensity_of": source.log.propensity_of,
            "slots": policy.slots,
        }
        self._running = RunningBaselines(terms, decay=options.decay)
        self._logged = LoggedLists(policy, source.weight)

    def _restored(self) -> tuple[State, dict[str, Any]]:
        state = start_of(self.options, self.policy)
        state.sums = self._running.sums
        settings = settings_of(self.options, self.policy, state, self.banditnet_lambda, self.found) | self._settings
        if self._checkpoint is not None:
            restore_checkpoint(self._checkpoint, state, settings, self._epochs)
        return state, settings

    def _select(self, state: State) -> None:
        """As in `Training`; where the lists say nothing of any epoch yet, the value decides."""
        history, best = state.progress["history"], state.progress["best"]
        score = [(one["score"], one["value"]) for one in history]
        if not self.options.holdout or not best or score[-1] > score[best - 1]:
            state.best, state.progress["best"] = copy_of(state.policy), len(history)
        elif self._patience is not None and len(history) - best >= self._patience:
            state.progress["stopped"] = True


def check_options(options: Options) -> None:
    """Check that the options are for lists."""
    for name in ("precision", "negatives", "compile"):
        if getattr(options, name) is not None:
            raise OptionError([Argument(name), " is not there for lists."], do=["Leave out ", Argument(name), "."])
    for name, usual in (("imitation", 0.0), ("smoothing", None), ("clip", None), ("temperature", 1.0)):
        if getattr(options, name) != usual:
            raise OptionError([Argument(name), " is not there for lists."], do=["Leave out ", Argument(name), "."])
    if options.fallback == "imitate":
        raise OptionError([Argument("fallback", "imitate"), " is not there for lists."], do="Choose 'warn' or 'raise'.")
    if options.norms == "all":
        raise OptionError(
            [
                Argument("norms", "all"),
                " is not there for lists: their baselines look at the last layer, or at the logits.",
            ],
            do=["Leave out ", Argument("norms"), "."],
        )
    if options.trained.needs_model_rewards:
        raise OptionError(
            f"objective {options.objective!r} needs a reward model, which learning from lists has none of.",
            do="Choose beta_ips, running_beta_ips, ips, lambda_ips, or (with batch_size=None) snips or value_beta_ips.",
        )
    if options.trained.needs_smoothing or options.objective == IMITATION:
        raise OptionError(f"objective {options.objective!r} is not there for lists.", do="Choose beta_ips.")
    if options.trained.needs_lambda and not isinstance(options.banditnet_lambda, float):
        raise OptionError(
            ["with lists, λ is not tuned: pass one number as ", Argument("banditnet_lambda"), "."],
            do="It is subtracted from the reward at every position.",
        )
