"""Recurrent modules, and others that `torch.func` cannot batch as they are, train like any module."""

import pytest
from learning import small_log, torch
from torch import nn

from counterpoise.environments import SyntheticBandit
from counterpoise.learn import ModulePolicy, PolicyLearner, norms
from counterpoise.learn.norms import SampleGradients

KINDS = {
    "rnn": (nn.RNN, {}),
    "gru": (nn.GRU, {}),
    "lstm": (nn.LSTM, {}),
    "two-layer rnn": (nn.RNN, {"num_layers": 2, "nonlinearity": "relu"}),
    "gru both ways": (nn.GRU, {"bidirectional": True}),
    "projected lstm": (nn.LSTM, {"proj_size": 2}),
}


class Recurrent(nn.Module):
    """Reads a context number by number, and scores the last state."""

    def __init__(self, kind, options, actions=6):
        super().__init__()
        self.cells = kind(1, 4, batch_first=True, **options)
        width = options.get("proj_size", 4) * (2 if options.get("bidirectional") else 1)
        self.out = nn.Linear(width, actions)

    def forward(self, context):
        return self.out(self.cells(context[..., None])[0][:, -1])


class Cell(nn.Module):
    """A cell that is called by hand, as often as there are numbers."""

    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.GRUCell(1, 4), nn.Linear(4, 6)

    def forward(self, context):
        state = None
        for k in range(context.shape[1]):
            state = self.cell(context[:, k : k + 1], state)
        return self.out(state)


class Branching(nn.Module):
    """Looks at the numbers while it runs, which nothing that batches can do."""

    def __init__(self):
        super().__init__()
        self.out, self.unused = nn.Linear(3, 6), nn.PReLU()

    def forward(self, context):
        return self.out(context) * (2 if float(context.detach().abs().max()) > 0 else 1)


def policies():
    torch.manual_seed(3)
    made = {name: Recurrent(*kind) for name, kind in KINDS.items()} | {"cell": Cell(), "branching": Branching()}
    return {name: ModulePolicy(module, 6).double() for name, module in made.items()}


def row_by_row(policy, context, action):
    """The gradients of every row, one backward pass each."""
    parameters = list(policy.parameters())
    found = []
    for x, a in zip(context, action, strict=True):
        target = torch.softmax(policy(x[None]), -1)[0, a]
        found.append(torch.autograd.grad(target, parameters, materialize_grads=True))
    return found


@pytest.mark.parametrize("kind", policies())
def test_gradients_are_those_of_a_loop_over_rows(kind, monkeypatch):
    if kind != "branching":  # all others in one go
        monkeypatch.delattr(norms, "_row_norm")
    policy = policies()[kind]
    context, action, reward, _ = small_log(12)
    found = SampleGradients(policy, context, action)
    loop = row_by_row(policy, context, action)
    expected = torch.stack([sum(part.square().sum() for part in row) for row in loop])
    torch.testing.assert_close(found.squared_norms, expected)
    total = found.weighted_sum(reward)
    for k, parameter in enumerate(policy.parameters()):
        expected = sum(weight * row[k] for weight, row in zip(reward, loop, strict=True))
        torch.testing.assert_close(total[parameter], expected)


@pytest.mark.parametrize("measured", [None, "last_layer"])
@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
def test_recurrent_policies_learn(kind, measured):
    torch.manual_seed(0)
    log = SyntheticBandit(n_actions=8, inverse_temperature=-3, seed=2).draw(2000)
    policy = ModulePolicy(Recurrent(*KINDS[kind], actions=8), 8)
    learner = PolicyLearner(policy=policy, epochs=3, folds=None, batch_size=256, learning_rate=0.05, norms=measured)
    learner.fit(context=log.context, action=log.action, reward=log.reward, propensity=log.propensity)
    assert log.value(learner.predict_proba) > log.reward.mean()


def test_dropout_trains_where_a_layer_has_no_rule():
    torch.manual_seed(0)
    log = SyntheticBandit(n_actions=8, inverse_temperature=-3, seed=2).draw(2000)
    module = nn.Sequential(nn.Linear(5, 16), nn.PReLU(), nn.Dropout(0.1), nn.Linear(16, 8))
    learner = PolicyLearner(policy=ModulePolicy(module, 8), folds=None, epochs=2, batch_size=256, learning_rate=0.05)
    learner.fit(context=log.context, action=log.action, reward=log.reward, propensity=log.propensity)
    assert log.value(learner.predict_proba) > log.reward.mean()
