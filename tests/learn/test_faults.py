"""What must not happen in silence: files that change under a run, checkpoints of other runs, ids with gaps, crafted files."""

import json
import os
import struct
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from learning import policies, small_log, torch
from messages import refuses
from torch import nn

import counterpoise as cp
import counterpoise.learn.source as sources
import counterpoise.learn.steps as steps
from counterpoise.environments import SyntheticBandit
from counterpoise.errors import LogError, OptionError, PolicyFileError
from counterpoise.learn import MLP, LinearSoftmax, ModulePolicy, PolicyLearner, TwoTower, load_policy, save_policy
from counterpoise.learn.norms import default_norms
from counterpoise.learn.objectives import baseline_of, gradient_sums
from counterpoise.learn.rows import Batch
from counterpoise.learn.steps import Logged, LoggedActions
from counterpoise.learn.tensor_files import read_tensors, write_tensors
from counterpoise.learn.training import Epochs
from counterpoise.log.log import Log

LOG = SyntheticBandit(n_actions=8, inverse_temperature=-3, seed=2).draw(2000)
FRAME = LOG.frame()
CONTEXT = [f"context_{k}" for k in range(5)]
NAMES = {"context": CONTEXT, "action": "action", "reward": "reward", "propensity": "propensity"}
ARRAYS = {"context": LOG.context, "action": LOG.action, "reward": LOG.reward, "propensity": LOG.propensity}
TURNED = FRAME.with_columns(reward=1 - pl.col("reward"))


def learner(objective="beta_ips", **options):
    return PolicyLearner(
        objective, **({"epochs": 3, "batch_size": 256, "learning_rate": 0.05, "folds": None} | options)
    )


def same(first, second):
    for name, tensor in first.state_dict().items():
        torch.testing.assert_close(tensor, second.state_dict()[name], rtol=0, atol=0)


def after_first_epoch(monkeypatch, what):
    """Do something while a run is under way."""
    plain, calls = steps.held_out_actions, []

    def estimate(*args):
        found = plain(*args)
        if not calls:
            what()
        calls.append(1)
        return found

    monkeypatch.setattr(steps, "held_out_actions", estimate)


# -- files that change ---------------------------------------------------------------------------------------------------


def replace(path, frame):
    frame.write_parquet(path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


def rewrite_with_its_old_time(path, frame):
    before = path.stat()
    with path.open("r+b") as file:
        file.truncate(0)
        frame.write_parquet(file)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES = {
    "replaced": lambda path: replace(path, TURNED),
    "rewritten in place": lambda path: rewrite_with_its_old_time(path, TURNED),
    "longer": lambda path: replace(path, pl.concat([FRAME, FRAME])),
    "shorter": lambda path: replace(path, FRAME.head(900)),
    "without a column": lambda path: replace(path, FRAME.drop("reward")),
    "deleted": lambda path: path.unlink(),
    "broken": lambda path: path.write_bytes(b"PAR1"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("folder", [False, True])
def test_files_that_change_between_epochs_are_not_trained_on(change, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "CHUNK", 700)
    (tmp_path / "log").mkdir()
    for part in ("a", "b"):
        FRAME.write_parquet(tmp_path / "log" / f"{part}.parquet")
    path = tmp_path / "log" / "b.parquet"
    after_first_epoch(monkeypatch, lambda: CHANGES[change](path))
    with refuses(LogError):
        learner().fit(path.parent if folder else path, **NAMES)


def test_files_that_change_while_they_are_first_looked_at_are_refused(tmp_path, monkeypatch):
    FRAME.write_parquet(tmp_path / "log.parquet")
    tensors = sources.Source._tensors

    def once(*args):
        monkeypatch.setattr(sources.Source, "_tensors", tensors)
        replace(tmp_path / "log.parquet", TURNED)
        return tensors(*args)

    monkeypatch.setattr(sources.Source, "_tensors", once)
    with refuses(LogError):
        learner().fit(tmp_path / "log.parquet", **NAMES)


def test_the_same_rows_in_a_new_file_are_the_same_log(tmp_path, monkeypatch):
    path = tmp_path / "log.parquet"
    FRAME.write_parquet(path)
    expected = learner().fit(path, **NAMES)

    def compact():
        FRAME.write_parquet(path.with_suffix(".new"), compression="lz4", row_group_size=100)
        os.replace(path.with_suffix(".new"), path)
        FRAME.write_parquet(tmp_path / "another.parquet")  # and a file that came later is no part of the run

    after_first_epoch(monkeypatch, compact)
    same(learner().fit(tmp_path, **NAMES).policy_, expected.policy_)


def test_a_log_is_the_same_in_memory_and_in_files_however_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "CHUNK", 700)
    FRAME.write_parquet(tmp_path / "log.parquet")
    logs = [sources.Source(Log(log, **NAMES)) for log in (FRAME, tmp_path / "log.parquet")]
    for log in logs:
        for start in log.starts:
            log.look(start)
    assert logs[0].digest() == logs[1].digest()


# -- checkpoints of other runs -------------------------------------------------------------------------------------------


def sgd(**options):
    return lambda parameters: torch.optim.SGD(parameters, **({"lr": 0.1} | options))


def mlp(activation=nn.ReLU, width=8):
    torch.manual_seed(0)
    return ModulePolicy(nn.Sequential(nn.Linear(5, width), activation(), nn.Linear(width, 8)), 8)


def towers(scale):
    torch.manual_seed(0)
    return TwoTower(5, 8, item_features=scale * torch.eye(8))


def grouped(factor):
    def make(parameters):
        first, *others = parameters
        return torch.optim.SGD([{"params": [first], "lr": 0.1 * factor}, {"params": others}], lr=0.1)

    return make


DIFFERENT = [
    ({}, {"optimizer": sgd()}, "its optimizer is 'Adam', now it is 'SGD'"),
    ({"optimizer": sgd()}, {"optimizer": sgd(lr=0.2)}, "its optimizer's lr is 0.1, now it is 0.2"),
    ({"optimizer": sgd()}, {"optimizer": sgd(momentum=0.9)}, "its optimizer's momentum is 0, now it is 0.9"),
    ({"optimizer": sgd()}, {"optimizer": sgd(weight_decay=0.1)}, "its optimizer's weight_decay is 0, now"),
    ({"optimizer": grouped(1)}, {"optimizer": grouped(2)}, "its optimizer's lr is 0.1, now it is 0.2"),
    ({"optimizer": sgd()}, {"optimizer": grouped(1)}, "groups of parameters"),
    ({}, {"learning_rate": 0.1}, "its learning_rate is 0.05, now it is 0.1"),
    ({}, {"batch_size": 300}, "its batch_size is 256, now it is 300"),
    ({}, {"objective": "ips"}, "its objective is 'beta_ips', now it is 'ips'"),
    ({}, {"seed": 1}, "its seed is 0, now it is 1"),
    ({}, {"holdout": 0.2}, "its holdout is 0.1, now it is 0.2"),
    ({}, {"patience": 1}, "its patience is None, now it is 1"),
    ({}, {"level": 0.9}, "its level is 0.95, now it is 0.9"),
    ({}, {"norms": "all"}, "its norms is 'last_layer', now it is 'all'"),
    ({}, {"n_actions": 9}, "its n_actions is 8, now it is 9"),
    ({"policy": mlp()}, {"policy": mlp(nn.Tanh)}, r"its layer 'scores\.1' is 'ReLU\(\)', now it is 'Tanh\(\)'"),
    ({"policy": mlp()}, {"policy": mlp(width=9)}, r"its layer 'scores\.0' is 'Linear\(in_features=5, out_features=8"),
    ({"policy": mlp()}, {"policy": mlp().double()}, "float32.*float64"),
    ({"policy": towers(1)}, {"policy": towers(2)}, "its digest of what the policy does not learn is"),
    ({"policy": MLP(5, 8)}, {"policy": MLP(5, 8, normalize=True)}, "layer 'body.1'"),
    ({"epochs": 3}, {"epochs": 2}, "3 epochs done, more than the 2 you asked for"),
]


@pytest.mark.parametrize(("first", "second", "says"), DIFFERENT)
def test_a_checkpoint_resumes_under_the_same_options_only(first, second, says, tmp_path):
    path = tmp_path / "checkpoint"
    learner(**{"epochs": 2, **first}, checkpoint=path).fit(**ARRAYS)
    before = path.read_bytes()
    with pytest.raises(PolicyFileError, match=says):
        learner(**{"epochs": 3, **second}, checkpoint=path).fit(**ARRAYS)
    assert path.read_bytes() == before


@pytest.mark.parametrize("options", [{}, {"optimizer": sgd(momentum=0.9)}, {"optimizer": grouped(2)}])
def test_a_checkpoint_resumes_for_more_epochs_to_the_same_result(options, tmp_path):
    learner(**options, epochs=1, checkpoint=tmp_path / "checkpoint").fit(**ARRAYS)
    resumed = learner(**options, epochs=3, norms="last_layer", checkpoint=tmp_path / "checkpoint").fit(**ARRAYS)
    whole = learner(**options, epochs=3).fit(**ARRAYS)
    same(resumed.policy_, whole.policy_)
    assert resumed.history_ == whole.history_


def test_every_difference_is_named_at_once(tmp_path):
    learner(epochs=1, checkpoint=tmp_path / "checkpoint").fit(**ARRAYS)
    with refuses(PolicyFileError):
        learner(batch_size=300, seed=4, checkpoint=tmp_path / "checkpoint").fit(**ARRAYS)


# -- tuned λ -------------------------------------------------------------------------------------------------------------


class StoppedError(Exception):
    """As a kill would."""


def test_tuning_goes_on_from_its_checkpoints_to_the_same_result(tmp_path, monkeypatch):
    options = {"banditnet_lambda": [0.0, 0.3, 0.6], "epochs": 2}
    torch.manual_seed(0)
    start = MLP(5, 8).state_dict()

    def policy(saved):
        made = MLP(5, 8)
        if saved:
            made.load_state_dict(start)
        return made

    whole = learner("lambda_ips", **options, policy=policy(True)).fit(**ARRAYS)
    plain, epochs = Epochs.end_epoch, []

    def epoch(self, *args):
        if len(epochs) == 3:  # within the second λ
            raise StoppedError
        epochs.append(1)
        plain(self, *args)

    monkeypatch.setattr(Epochs, "end_epoch", epoch)
    with pytest.raises(StoppedError):
        learner("lambda_ips", **options, policy=policy(True), checkpoint=tmp_path / "run.safetensors").fit(**ARRAYS)

    def count(self, *args):
        epochs.append(1)
        plain(self, *args)

    monkeypatch.setattr(Epochs, "end_epoch", count)
    # another start, as a new process has that does not seed: the checkpoint knows the first one
    resumed = learner("lambda_ips", **options, policy=policy(False), checkpoint=tmp_path / "run.safetensors")
    resumed.fit(**ARRAYS)
    assert len(epochs) == 6  # no epoch twice
    assert resumed.tuning_ == whole.tuning_
    assert (resumed.banditnet_lambda_, resumed.history_) == (whole.banditnet_lambda_, whole.history_)
    same(resumed.policy_, whole.policy_)
    assert resumed.checkpoint == tmp_path / "run.safetensors"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "run.lambda-0.0.safetensors",
        "run.lambda-0.3.safetensors",
        "run.lambda-0.6.safetensors",
        "run.safetensors",
    ]


def test_a_tuning_of_other_options_is_refused(tmp_path):
    path = tmp_path / "run"
    learner("lambda_ips", banditnet_lambda=[0.0, 0.3], epochs=1, checkpoint=path).fit(**ARRAYS)
    with refuses(PolicyFileError):
        learner("lambda_ips", banditnet_lambda=[0.0, 0.5], epochs=1, checkpoint=path).fit(**ARRAYS)
    with refuses(PolicyFileError):
        learner("lambda_ips", banditnet_lambda=0.3, epochs=1, checkpoint=path).fit(**ARRAYS)


# -- norms of the last layer ---------------------------------------------------------------------------------------------


class Own(nn.Module):
    """Layers made in another order than they are used in."""

    def __init__(self, after=None):
        super().__init__()
        self.out = nn.Linear(4, 6)
        self.within = nn.Linear(3, 4)
        self.after = after or nn.Identity()

    def forward(self, context):
        return self.after(self.out(torch.tanh(self.within(context))))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(6, 6)

    def forward(self, context):
        return self.one(torch.tanh(self.one(torch.cat([context, context], 1))))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.within, self.out = nn.Linear(3, 6, bias=False), nn.Linear(6, 6, bias=False)
        self.before = nn.Linear(6, 6, bias=False)
        self.before.weight = self.out.weight

    def forward(self, context):
        return self.out(torch.tanh(self.before(self.within(context))))


class Doubled(LinearSoftmax):
    """A policy of one's own with a forward of its own."""

    def forward(self, context):
        return 2 * super().forward(context)


def last_layer_by_vmap(policy, prefix, context, action):
    """‖∇π(a|x)‖² with respect to some parameters, row by row."""
    values = {name: p.detach() for name, p in policy.named_parameters()}
    chosen = {name: p for name, p in values.items() if name.startswith(prefix)}

    def probability(mine, x, a):
        logits = torch.func.functional_call(policy, values | mine, (x[None],))
        return torch.softmax(logits[0], -1).gather(-1, a[None])[0]

    gradients = torch.func.vmap(torch.func.grad(probability), in_dims=(None, 0, 0))(chosen, context, action)
    return sum(g.flatten(1).square().sum(1) for g in gradients.values())


def modules():
    torch.manual_seed(0)
    return {
        "sequence": (nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 6)), "scores.2"),
        "without bias": (nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 6, bias=False)), "scores.2"),
        "nested": (nn.Sequential(nn.Linear(3, 5), nn.Sequential(nn.Tanh(), nn.Linear(5, 6))), "scores.1.1"),
        "own order": (Own(), "scores.out"),
        "linear": (nn.Linear(3, 6), "scores"),
    }


@pytest.mark.parametrize("kind", modules())
def test_norms_of_the_last_layer_are_those_of_the_module_s_last_layer(kind):
    module, prefix = modules()[kind]
    policy = ModulePolicy(module, 6).double()
    context, action, reward, propensity = small_log()
    expected = last_layer_by_vmap(policy, prefix, context, action)
    torch.testing.assert_close(Logged(policy)(context, action)[1], expected)
    step = LoggedActions(policy, norms="last_layer").backward(Batch(context, action, reward, propensity, 40), None)
    torch.testing.assert_close(step.baseline, baseline_of(gradient_sums(expected, reward, propensity)))
    # the variance is that of the same layer's gradients
    weight = (reward - step.baseline) / propensity
    layer = [p for name, p in policy.named_parameters() if name.startswith(prefix)]
    rows = []
    for i in range(40):
        one = policy.target(context[i : i + 1], action[i : i + 1])[0] * weight[i]
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(one, layer)]))
    torch.testing.assert_close(step.variance, torch.stack(rows).var(0, correction=0).sum() / 40)


def frozen():
    module = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 6))
    module[1].requires_grad_(False)
    return module


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(3, 6), nn.Tanh()),
        Own(after=nn.LayerNorm(6)),
        Twice(),
        Tied(),
        frozen(),
        nn.Sequential(nn.Linear(3, 5), nn.utils.parametrizations.weight_norm(nn.Linear(5, 6))),
    ],
)
def test_modules_without_a_linear_last_layer_are_refused_norms_of_it(module):
    context, action, reward, propensity = (part.float() if part.is_floating_point() else part for part in small_log())
    policy = ModulePolicy(module, 6)
    batch = Batch(context, action, reward, propensity, 40)
    with refuses(OptionError):
        LoggedActions(policy, norms="last_layer").backward(batch, None)
    assert default_norms(policy) == "all"
    assert torch.isfinite(LoggedActions(policy, norms="all").backward(batch, None).baseline)


def test_a_forward_of_ones_own_is_what_is_trained():
    torch.manual_seed(0)
    policy = Doubled(3, 6).double()
    context, action, reward, propensity = small_log()
    assert default_norms(policy) == "all"
    step = LoggedActions(policy, norms=default_norms(policy)).backward(
        Batch(context, action, reward, propensity, 40), None
    )
    weight = (reward - step.baseline) / propensity
    expected = torch.autograd.grad(-(weight * policy.target(context, action)).mean(), [policy.scores.weight])[0]
    torch.testing.assert_close(policy.scores.weight.grad, expected)


# -- ids with gaps -------------------------------------------------------------------------------------------------------

IDS = np.array([1_000, 1_001, 5_000, 77_777, 2**53 + 1, 2**53 + 2, 2**62, 2**63 - 1])
GAPS = FRAME.with_columns(item=pl.Series(IDS[LOG.action], dtype=pl.Int64))
ITEMS = NAMES | {"action": "item"}


@pytest.mark.parametrize("source", ["frame", "arrays", "file", "pandas", "uint64"])
def test_ids_with_gaps_become_as_many_actions_as_there_are_ids(source, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "CHUNK", 700)
    plain = learner(holdout=0.2)
    if source == "file":
        FRAME.write_parquet(tmp_path / "dense.parquet")
        GAPS.write_parquet(tmp_path / "log.parquet")
        found = learner(holdout=0.2).fit(tmp_path / "log.parquet", **ITEMS)
        expected = plain.fit(tmp_path / "dense.parquet", **NAMES)
    else:
        logs = {"frame": GAPS, "pandas": GAPS.to_pandas(), "uint64": GAPS.with_columns(pl.col("item").cast(pl.UInt64))}
        found = learner(holdout=0.2)
        found = (
            found.fit(**ARRAYS | {"action": IDS[LOG.action]})
            if source == "arrays"
            else found.fit(logs[source], **ITEMS)
        )
        expected = plain.fit(**ARRAYS)
    assert found.policy_.n_actions == 8
    np.testing.assert_array_equal(found.classes_, IDS)
    same(found.policy_, expected.policy_)
    assert found.history_ == expected.history_
    np.testing.assert_array_equal(found.predict(LOG.context), IDS[expected.predict(LOG.context)])


def test_a_saved_policy_keeps_its_ids_and_is_evaluated_by_them(tmp_path):
    fitted = learner().fit(GAPS, **ITEMS)
    expected = learner().fit(FRAME, **NAMES)
    fitted.save(tmp_path / "policy")
    loaded = load_policy(tmp_path / "policy")
    save_policy(loaded, tmp_path / "again")
    question = {"reward": "reward", "propensity": "propensity", "context": CONTEXT}
    value = cp.evaluate(FRAME, **question, action="action", target={"x": expected})["x", "beta_ips"].value
    for policy in (fitted, fitted.policy_, loaded, load_policy(tmp_path / "again")):
        np.testing.assert_array_equal(policy.classes_, IDS)
        found = cp.evaluate(GAPS, **question, action="item", target={"x": policy})["x", "beta_ips"].value
        assert found == pytest.approx(value, rel=1e-12)
    assert load_policy(tmp_path / "policy").classes_.dtype == np.int64
    context = torch.as_tensor(LOG.context[:50], dtype=torch.float32)
    np.testing.assert_array_equal(loaded.greedy(context), IDS[expected.policy_.greedy(context)])
    drawn, propensity = loaded.sample(context)
    assert set(drawn.tolist()) <= set(IDS.tolist())
    torch.testing.assert_close(loaded.target(context, drawn), propensity)
    torch.testing.assert_close(loaded.log_target(context, drawn).exp(), propensity)
    with refuses(OptionError):
        loaded.target(context, torch.full((50,), 1_002))


def test_a_policy_with_ids_is_trained_further_by_them(tmp_path):
    fitted = learner(epochs=1).fit(GAPS, **ITEMS)
    again = learner(policy=fitted.policy_).fit(GAPS.filter(pl.col("item") != 5_000), **ITEMS)
    np.testing.assert_array_equal(again.classes_, IDS)
    with refuses(LogError):
        learner(policy=fitted.policy_).fit(
            GAPS.with_columns(item=pl.when(pl.int_range(pl.len()) == 7).then(7).otherwise(pl.col("item"))), **ITEMS
        )


def test_actions_without_gaps_and_given_numbers_of_actions_stay_as_they_are():
    assert learner(epochs=1).fit(**ARRAYS).policy_.actions_ is None
    fewer = {name: column[LOG.action != 3] for name, column in ARRAYS.items()}
    assert learner(epochs=1, n_actions=8).fit(**fewer).policy_.n_actions == 8
    model = np.zeros((len(fewer["action"]), 8))
    assert learner("dr", epochs=1).fit(**fewer, model_rewards=model).policy_.n_actions == 8
    seven = learner("dr", epochs=1).fit(**fewer, model_rewards=model[:, :7])
    np.testing.assert_array_equal(seven.classes_, [0, 1, 2, 4, 5, 6, 7])


def test_memory_is_bounded_by_the_ids_and_too_many_are_refused(monkeypatch):
    import counterpoise.learn.actions as actions

    monkeypatch.setattr(actions, "MOST", 5)
    with refuses(LogError):
        learner().fit(GAPS, **ITEMS)


def test_numbers_that_are_no_ids_are_refused():
    for odd in (-5.0, 0.5, np.nan, 2.0**53 + 2, 1e300):
        action = LOG.action.astype(float)
        action[11] = odd
        with refuses(LogError):
            learner().fit(**ARRAYS | {"action": action})
    with refuses(LogError):
        learner().fit(**ARRAYS | {"action": np.where(np.arange(2000) == 11, 2**64 - 1, LOG.action.astype(np.uint64))})


def test_a_checkpoint_of_other_ids_is_refused(tmp_path):
    learner(epochs=1, checkpoint=tmp_path / "checkpoint").fit(**ARRAYS)
    with refuses(PolicyFileError):
        learner(epochs=1, checkpoint=tmp_path / "checkpoint").fit(**ARRAYS | {"action": 2 * LOG.action})


def test_the_command_line_says_which_ids_became_actions(tmp_path):
    from command_line import invoke

    GAPS.write_parquet(tmp_path / "log.parquet")
    columns = [part for column in CONTEXT for part in ("--context", column)]
    command = ["learn", tmp_path / "log.parquet", *columns, "--action", "item", "--objective", "beta_ips"]
    command += ["--epochs", 1, "--batch-size", 256]
    found = invoke(*command, "--out", tmp_path / "policy")
    assert found.exit_code == 0, found.stderr
    assert "8 actions, the distinct values of 'item'." in found.stdout
    assert json.loads(invoke(*command, "--out", tmp_path / "json", "--json").stdout)["n_actions"] == 8


# -- crafted files -------------------------------------------------------------------------------------------------------


def raw(header, body=b"", length=None):
    """A safetensors file from its header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def described(description, **tensors):
    text = description if isinstance(description, str) else json.dumps(description)
    return {"__metadata__": {"counterpoise": text}} | tensors


def config(**changes):
    arguments = {"context_dimension": 3, "n_actions": 6, "bias": False, "standardize": False}
    return {
        "format": "counterpoise policy 2",
        "config": {"kind": "LinearSoftmax", "arguments": arguments, "context": []},
    } | changes


WEIGHT = {"scores.weight": {"dtype": "F32", "shape": [6, 3], "data_offsets": [0, 72]}}
NOTHING = b"\0" * 72


def weight(**changes):
    return {"scores.weight": WEIGHT["scores.weight"] | changes}


def kind(name, **arguments):
    return config(config={"kind": name, "arguments": arguments, "context": []})


def linear(**changes):
    return kind(
        "LinearSoftmax", **{"context_dimension": 3, "n_actions": 6, "bias": False, "standardize": False} | changes
    )


CRAFTED = {
    "header length huge": raw(b"{}", length=2**62),
    "header length beyond the file": raw(b"{}", length=1000),
    "header not JSON": raw(b"{" * 50),
    "header deeply nested": raw(b'{"a":' * 20_000 + b"1" + b"}" * 20_000),
    "no description": raw(WEIGHT, NOTHING),
    "description not JSON": raw(described("{", **WEIGHT), NOTHING),
    "description deeply nested": raw(described("[" * 200_000 + "]" * 200_000, **WEIGHT), NOTHING),
    "description a number with many digits": raw(described("1" * 10_000, **WEIGHT), NOTHING),
    "description huge": raw(described('"' + "x" * 20_000_000 + '"', **WEIGHT), NOTHING),
    "description a list": raw(described([1], **WEIGHT), NOTHING),
    "format a list": raw(described(config(format=[]), **WEIGHT), NOTHING),
    "no config": raw(described({"format": "counterpoise policy 2"}, **WEIGHT), NOTHING),
    "config a number": raw(described(config(config=7), **WEIGHT), NOTHING),
    "kind a list": raw(described(kind([]), **WEIGHT), NOTHING),
    "kind unknown": raw(described(kind("Mystery"), **WEIGHT), NOTHING),
    "arguments a list": raw(described(config(config=config()["config"] | {"arguments": [1]}), **WEIGHT), NOTHING),
    "context a number": raw(described(config(config=config()["config"] | {"context": 3}), **WEIGHT), NOTHING),
    "context of numbers": raw(described(config(config=config()["config"] | {"context": [1, 2, 3]}), **WEIGHT), NOTHING),
    "context of another width": raw(
        described(config(config=config()["config"] | {"context": ["a"]}), **WEIGHT), NOTHING
    ),
    "petabytes of actions": raw(described(linear(n_actions=10**15), **WEIGHT), NOTHING),
    "more actions than a number holds": raw(described(linear(n_actions=10**30), **WEIGHT), NOTHING),
    "gigabytes of contexts": raw(described(linear(context_dimension=3 * 10**9), **WEIGHT), NOTHING),
    "actions no whole number": raw(described(linear(n_actions=6.0), **WEIGHT), NOTHING),
    "actions true": raw(described(linear(n_actions=True), **WEIGHT), NOTHING),
    "bias a text": raw(described(linear(bias="yes"), **WEIGHT), NOTHING),
    "unknown argument": raw(described(linear(color=1), **WEIGHT), NOTHING),
    "hidden layers by the million": raw(
        described(kind("MLP", context_dimension=3, n_actions=6, hidden=[1] * 1_000_000), **WEIGHT), NOTHING
    ),
    "hidden layer huge": raw(
        described(kind("MLP", context_dimension=3, n_actions=6, hidden=[10**13]), **WEIGHT), NOTHING
    ),
    "hidden layer empty": raw(described(kind("MLP", context_dimension=3, n_actions=6, hidden=[0]), **WEIGHT), NOTHING),
    "hidden a text": raw(described(kind("MLP", context_dimension=3, n_actions=6, hidden="64"), **WEIGHT), NOTHING),
    "hidden a number": raw(described(kind("MLP", context_dimension=3, n_actions=6, hidden=64), **WEIGHT), NOTHING),
    "towers without their features": raw(
        described(kind("TwoTower", context_dimension=3, n_actions=6, item_dimension=4), **WEIGHT), NOTHING
    ),
    "towers with other features": raw(
        described(
            kind("TwoTower", context_dimension=3, n_actions=10**9, hidden=[], item_dimension=10**9),
            **{"scores.features": WEIGHT["scores.weight"]},
        ),
        NOTHING,
    ),
    "item features a tensor": raw(
        described(kind("TwoTower", context_dimension=3, n_actions=6, item_features=[[1]]), **WEIGHT), NOTHING
    ),
    "a shape of petabytes": raw(described(config(), **weight(shape=[10**15, 3])), NOTHING),
    "a shape that overflows": raw(described(config(), **weight(shape=[2**62, 2**62])), NOTHING),
    "a shape with nothing in it": raw(described(config(), **weight(shape=[0, 10**15], data_offsets=[0, 0]))),
    "offsets beyond the file": raw(described(config(), **weight(data_offsets=[0, 2**50])), NOTHING),
    "offsets reversed": raw(described(config(), **weight(data_offsets=[72, 0])), NOTHING),
    "bytes after the end": raw(described(config(), **WEIGHT), NOTHING + b"more"),
    "truncated": raw(described(config(), **WEIGHT), NOTHING[:40]),
    "integers for weights": raw(described(config(), **weight(dtype="I32")), NOTHING),
    "truth values for weights": raw(described(config(), **weight(dtype="BOOL", data_offsets=[0, 18])), NOTHING[:18]),
    "bytes for weights": raw(described(config(), **weight(dtype="F8_E4M3", data_offsets=[0, 18])), NOTHING[:18]),
    "complex numbers for weights": raw(described(config(), **weight(dtype="C64", data_offsets=[0, 144])), NOTHING * 2),
    "an unknown dtype": raw(described(config(), **weight(dtype="F128")), NOTHING),
    "nan": raw(described(config(), **WEIGHT), NOTHING[:68] + struct.pack("<f", np.nan)),
    "infinity": raw(described(config(), **WEIGHT), NOTHING[:68] + struct.pack("<f", np.inf)),
    "another model's tensors": raw(described(kind("MLP", context_dimension=3, n_actions=6), **WEIGHT), NOTHING),
    "ids too few": raw(
        described(config(), **WEIGHT, **{"action ids": {"dtype": "I64", "shape": [1], "data_offsets": [72, 80]}}),
        NOTHING + b"\0" * 8,
    ),
    "ids twice": raw(
        described(config(), **WEIGHT, **{"action ids": {"dtype": "I64", "shape": [6], "data_offsets": [72, 120]}}),
        NOTHING + b"\0" * 48,
    ),
    "ids no integers": raw(
        described(config(), **WEIGHT, **{"action ids": {"dtype": "F64", "shape": [6], "data_offsets": [72, 120]}}),
        NOTHING + np.arange(6.0).tobytes(),
    ),
    "empty": b"",
    "a pickle": b"\x80\x04\x95" + b"\0" * 100,
}


@pytest.fixture
def little_memory():
    """Anything large that is allocated fails the test."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("name", CRAFTED)
def test_crafted_policies_are_refused_before_anything_large_is_made(name, tmp_path, little_memory):
    path = tmp_path / "policy"
    path.write_bytes(CRAFTED[name])
    makes = (None,) if "kind" in name or "another" in name else (None, LinearSoftmax)
    for make in makes:
        with pytest.raises(PolicyFileError, match="policy"):
            load_policy(path, make=make)


def test_an_honest_file_made_by_hand_is_read(tmp_path):
    (tmp_path / "policy").write_bytes(raw(described(config(), **WEIGHT), NOTHING))
    assert load_policy(tmp_path / "policy").n_actions == 6


def test_policies_are_read_from_regular_files_only(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", "/dev/zero"):
        with refuses(PolicyFileError):
            load_policy(path)
        with refuses(PolicyFileError):
            learner(checkpoint=path).fit(**ARRAYS)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_a_policy_keeps_its_precision(dtype, tmp_path):
    policy = policies()["mlp"].to(dtype)
    save_policy(policy, tmp_path / "policy")
    same(load_policy(tmp_path / "policy"), policy)


def put(**changes):
    def spoil(tensors, description):
        for path, value in changes.items():
            place, names = description, path.split("__")
            for name in names[:-1]:
                place = place[int(name) if isinstance(place, list) else name]
            place[names[-1]] = value

    return spoil


def change(name, tensor):
    return lambda tensors, _: tensors.update({name: tensor})


def drop(name):
    return lambda tensors, description: (tensors if name in tensors else description).pop(name)


SPOILED = {
    "settings missing": drop("settings"),
    "settings a list": put(settings=[]),
    "progress missing": drop("progress"),
    "progress a number": put(progress=3),
    "epochs done a text": put(progress__done="1"),
    "epochs done negative": put(progress__done=-1),
    "more epochs done than reported": put(progress__done=2),
    "best beyond the history": put(progress__best=7),
    "stopped a number": put(progress__stopped=1),
    "history a text": put(progress__history="x"),
    "history of numbers": put(progress__history=[1]),
    "history without values": put(progress__history=[{"epoch": 1}]),
    "history of texts": put(progress__history__0__value="much"),
    "groups missing": drop("groups"),
    "groups a number": put(groups=1),
    "groups none": put(groups=[]),
    "groups of other parameters": put(groups__0__params=[0, 1, 2, 3, 4]),
    "learning rate a text": put(groups__0__lr="fast"),
    "learning rate nan": put(groups__0__lr=float("nan")),
    "betas too many": put(groups__0__betas=[1, 2, 3]),
    "plain a list": put(plain=[1]),
    "plain of no parameter": put(plain__x={}),
    "policy tensor missing": drop("policy.scores.weight"),
    "best tensor missing": drop("best.scores.weight"),
    "best of another shape": change("best.scores.weight", torch.zeros(3, 5)),
    "best of integers": change("best.scores.weight", torch.zeros(8, 5, dtype=torch.int32)),
    "policy of nan": change("policy.scores.weight", torch.full((8, 5), torch.nan)),
    "policy in double precision": change("policy.scores.weight", torch.zeros(8, 5, dtype=torch.float64)),
    "sums missing": drop("sums"),
    "sums of another shape": change("sums", torch.zeros(3, dtype=torch.float64)),
    "sums nan": change("sums", torch.full((2,), torch.nan, dtype=torch.float64)),
    "random missing": drop("random"),
    "random of another size": change("random", torch.zeros(7, dtype=torch.uint8)),
    "random of another type": change("random", torch.zeros(5056)),
    "random nonsense": change("random", torch.full_like(torch.get_rng_state(), 255)),
    "optimizer of another shape": change("optimizer.0.exp_avg", torch.zeros(3, 3)),
    "optimizer of no parameter": change("optimizer.77.exp_avg", torch.zeros(1)),
    "optimizer of a text": change("optimizer.one.exp_avg", torch.zeros(1)),
    "optimizer lacking": drop("optimizer.0.exp_avg_sq"),
    "another tensor": change("surprise", torch.zeros(1)),
    "another format": put(format="counterpoise policy 2"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_crafted_checkpoints_are_refused_and_change_nothing(name, tmp_path):
    path = tmp_path / "checkpoint"
    learner(epochs=1, checkpoint=path).fit(**ARRAYS)
    tensors, description = read_tensors(path)
    SPOILED[name](tensors, description)
    write_tensors(path, tensors, description)
    before = path.read_bytes()
    with refuses(PolicyFileError):
        learner(epochs=2, checkpoint=path).fit(**ARRAYS)
    assert path.read_bytes() == before


def test_checkpoints_of_any_bytes_are_refused(tmp_path):
    path = tmp_path / "checkpoint"
    for content in CRAFTED.values():
        path.write_bytes(content)
        with pytest.raises(PolicyFileError, match="checkpoint"):
            learner(epochs=1, checkpoint=path).fit(**ARRAYS)
