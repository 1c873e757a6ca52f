"""PyTorch's habits: callbacks, loggers, schedulers and torch.compile."""

import sys
from importlib.util import find_spec

import numpy as np
import pytest
from conftest import absent
from learning import torch
from messages import refuses
from torch.optim import lr_scheduler

from counterpoise.environments import SyntheticBandit
from counterpoise.errors import OptionError, PolicyFileError
from counterpoise.learn import MLP, LogTo, ModulePolicy, PolicyLearner
from counterpoise.learn.rows import Split

LOG = SyntheticBandit(n_actions=8, inverse_temperature=-3, seed=2).draw(1500)
ARRAYS = {"context": LOG.context, "action": LOG.action, "reward": LOG.reward, "propensity": LOG.propensity}


def learner(objective="beta_ips", **options):
    return PolicyLearner(
        objective, **({"epochs": 4, "folds": None, "batch_size": 256, "learning_rate": 0.05} | options)
    )


def same(first, second):
    for name, tensor in first.policy_.state_dict().items():
        assert torch.equal(tensor, second.policy_.state_dict()[name]), name


# -- callbacks ---------------------------------------------------------------------------------------------------------


def test_callbacks_are_told_of_every_epoch():
    told = []
    fitted = learner(callbacks=[told.append]).fit(**ARRAYS)
    assert [end.epoch for end in told] == fitted.history_
    assert [len(end.history) for end in told] == [1, 2, 3, 4]
    assert told[-1].best_epoch == fitted.best_epoch_
    assert {end.learning_rate for end in told} == {0.05}
    assert {end.run for end in told} == {""}
    same(fitted, learner().fit(**ARRAYS))


@pytest.mark.parametrize("answer", [True, np.True_])
def test_a_callback_that_returns_true_stops_training_and_resuming_does_not_go_on(answer, tmp_path):
    checkpoint, calls = tmp_path / "checkpoint", []

    def stop(end):
        calls.append(end.epoch.epoch)
        return answer if end.epoch.epoch == 2 else None

    for _ in range(2):
        stopped = learner(callbacks=[stop, lambda end: None], checkpoint=checkpoint).fit(**ARRAYS)
        assert [epoch.epoch for epoch in stopped.history_] == [1, 2]
    assert calls == [1, 2]
    same(stopped, learner(epochs=2).fit(**ARRAYS))


def test_runs_of_several_lambdas_are_told_apart():
    told = []
    learner("lambda_ips", banditnet_lambda=[0.0, 0.5], epochs=1, callbacks=told.append).fit(**ARRAYS)
    assert [end.run for end in told] == ["lambda-0.0", "lambda-0.5"]


@pytest.mark.filterwarnings("ignore::counterpoise.learn.LearningWarning")
def test_runs_of_folds_are_told_apart():
    told = []
    learner(epochs=1, folds=2, callbacks=told.append).fit(**ARRAYS)
    learner("lambda_ips", epochs=1, folds=2, callbacks=told.append).fit(**ARRAYS)
    assert [end.run for end in told[:3]] == ["fold-1", "fold-2", ""]
    assert len({end.run for end in told[3:]}) == 3 * 8


def test_what_is_not_a_function_is_refused():
    with refuses(OptionError):
        learner(callbacks=[print, 3]).fit(**ARRAYS)


class Written:
    """TensorBoard's protocol."""

    def __init__(self):
        self.numbers, self.lock = {}, sys.stdout  # what cannot be copied

    def add_scalar(self, name, number, step):
        self.numbers[name, step] = number


class Tracked:
    """MLflow's protocol."""

    def __init__(self):
        self.steps = {}

    def log_metrics(self, numbers, step=None):
        self.steps[step] = numbers


def test_trackers_get_every_epochs_numbers():
    written, tracked = Written(), Tracked()
    fitted = learner(epochs=2, callbacks=[LogTo(written, prefix="men/"), LogTo(tracked)]).fit(**ARRAYS)
    assert tracked.steps.keys() == {1, 2}
    for epoch in fitted.history_:
        assert written.numbers["men/value", epoch.epoch] == tracked.steps[epoch.epoch]["value"] == epoch.value
        assert tracked.steps[epoch.epoch]["learning_rate"] == 0.05
    unknown = Tracked()
    learner(epochs=1, holdout=0, callbacks=[LogTo(unknown)]).fit(**ARRAYS)
    assert "value" not in unknown.steps[1]
    assert "gradient_variance" in unknown.steps[1]
    with refuses(OptionError):
        LogTo(3)


def test_a_clone_logs_to_the_same_place():
    base = pytest.importorskip("sklearn.base")
    written = Written()
    twin = base.clone(learner(epochs=1, callbacks=[LogTo(written)]))
    assert twin.callbacks[0].where is written


def test_tensorboard_itself(tmp_path):
    if find_spec("tensorboard") is None:
        absent("TensorBoard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path) as writer:
        learner(epochs=1, callbacks=[LogTo(writer)]).fit(**ARRAYS)
    assert any(file.stat().st_size > 0 for file in tmp_path.iterdir())


# -- schedulers --------------------------------------------------------------------------------------------------------

SCHEDULERS = {
    "step": lambda optimizer: lr_scheduler.StepLR(optimizer, 1, gamma=0.5),
    "milestones": lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [1, 3], gamma=0.1),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 4),
    "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch)),
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=5),
    "plateau": lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, "max", factor=0.5, patience=0, threshold=1),
    "chained": lambda optimizer: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(optimizer, 0.1, 2), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    ),
}


def test_a_scheduler_sets_the_rate_of_every_epoch():
    rates = []
    fitted = learner(
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        scheduler=SCHEDULERS["step"],
        callbacks=[lambda end: rates.append(end.learning_rate)],
    ).fit(**ARRAYS)
    assert rates == [1.0, 0.5, 0.25, 0.125]

    class ByHand(torch.optim.SGD):
        """The same rates, by counting batches."""

        steps = 0

        def step(self, closure=None):
            self.param_groups[0]["lr"] = 0.5 ** (self.steps // batches)
            self.steps += 1
            super().step(closure)

    batches = -(-int((~Split(0.1, 0).held_out(0, 1500)).sum()) // 256)
    same(fitted, learner(optimizer=lambda parameters: ByHand(parameters, lr=1.0)).fit(**ARRAYS))


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_a_run_with_a_scheduler_resumes_to_the_same_result(kind, tmp_path):
    rates = []
    options = {"scheduler": SCHEDULERS[kind], "policy": MLP(5, 8, hidden=(4,))}
    whole = learner(**options, callbacks=[lambda end: rates.append(end.learning_rate)]).fit(**ARRAYS)
    assert len(set(rates)) > 1
    learner(**options, epochs=2, checkpoint=tmp_path / "checkpoint").fit(**ARRAYS)
    resumed_rates = []
    resumed = learner(
        **options, checkpoint=tmp_path / "checkpoint", callbacks=[lambda end: resumed_rates.append(end.learning_rate)]
    ).fit(**ARRAYS)
    assert resumed_rates == rates[2:]
    assert resumed.history_ == whole.history_
    same(resumed, whole)


def test_a_checkpoint_with_another_scheduler_is_refused(tmp_path):
    options = {"epochs": 1, "checkpoint": tmp_path / "checkpoint"}
    learner(**options, scheduler=SCHEDULERS["milestones"]).fit(**ARRAYS)
    for other, says in (
        (None, "its scheduler is 'MultiStepLR', now it is None"),
        (SCHEDULERS["step"], "its scheduler is 'MultiStepLR', now it is 'StepLR'"),
        (
            lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [1, 2], gamma=0.1),
            r"its scheduler's milestones is .*'3'.*, now it is .*'2'",
        ),
    ):
        with pytest.raises(PolicyFileError, match=says):
            learner(**options, scheduler=other).fit(**ARRAYS)


def test_a_scheduler_that_comes_to_other_rates_is_refused(tmp_path):
    options = {"checkpoint": tmp_path / "checkpoint"}
    learner(**options, epochs=2, scheduler=lambda one: lr_scheduler.LambdaLR(one, lambda k: 1.0)).fit(**ARRAYS)
    with refuses(PolicyFileError):
        learner(**options, scheduler=lambda one: lr_scheduler.LambdaLR(one, lambda k: max(1.0, k))).fit(**ARRAYS)


@pytest.mark.parametrize(
    ("scheduler", "options", "says"),
    [
        (3, {}, "scheduler must be a function of the optimizer .*; found int"),
        (lambda optimizer: optimizer.param_groups, {}, "it gave list"),
        (lr_scheduler.ReduceLROnPlateau, {}, "larger ones are better. Pass it mode='max'"),
        (SCHEDULERS["plateau"], {"holdout": 0}, "no rows are held out"),
    ],
)
def test_schedulers_that_cannot_work_are_refused(scheduler, options, says):
    with pytest.raises(OptionError, match=says):
        learner(scheduler=scheduler, **options).fit(**ARRAYS)


# -- torch.compile -----------------------------------------------------------------------------------------------------


def test_compiling_the_body_changes_nothing_but_the_speed():
    graphs = []

    def backend(graph, example):
        graphs.append(graph)
        return graph.forward

    torch.manual_seed(0)
    policy = MLP(5, 8, hidden=(4,))
    plain = learner(policy=policy, epochs=2).fit(**ARRAYS)
    assert not graphs
    found = learner(policy=policy, epochs=2, compile={"backend": backend}).fit(**ARRAYS)
    assert graphs
    same(found, plain)
    assert "forward" not in vars(found.policy_.body)  # what comes out is a plain policy again
    assert list(found.policy_.state_dict()) == list(policy.state_dict())


def test_what_cannot_be_compiled_is_refused():
    module = ModulePolicy(torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8)), 8)
    for policy, norms in ((module, None), (MLP(5, 8), "all")):
        with refuses(OptionError):
            learner(policy=policy, norms=norms, compile=True).fit(**ARRAYS)
    with refuses(OptionError):
        learner(compile={"speed": "high"}).fit(**ARRAYS)
