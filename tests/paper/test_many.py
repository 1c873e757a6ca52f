"""Many runs as one program do what single plain loops do."""

import pytest
from learning import torch
from messages import refuses

from counterpoise.environments import SyntheticBandit
from counterpoise.errors import LogError, OptionError
from counterpoise.learn import LinearSoftmax, objectives
from counterpoise.learn.norms import reference_norms
from counterpoise.learn.objectives import RunningBaseline, baseline_of, gradient_sums
from paper.many import GreedyValue, LoggedRows, Run, train_many

BANDIT = SyntheticBandit(n_actions=7, inverse_temperature=-3, seed=4)
LOG = BANDIT.draw(350)
TEST = BANDIT.draw(300)
ROWS = LoggedRows(LOG.context, LOG.action, LOG.reward, LOG.propensity)
VALUE = GreedyValue(TEST.context, TEST.expected(slice(0, 300)))


def plain(run, epochs, batch_size):
    """One run with a module, autograd, torch.optim and per-sample gradients."""
    torch.manual_seed(run.seed)
    policy = LinearSoftmax(5, 7)
    optimizer = torch.optim.Adam(policy.parameters(), lr=run.learning_rate)
    shuffling = torch.Generator().manual_seed(run.seed)
    running = RunningBaseline()
    x, a, r = ROWS.context, ROWS.action, ROWS.reward
    p = torch.as_tensor(LOG.propensity, dtype=torch.float32)
    values, variances = [], []
    for _ in range(epochs):
        full = torch.arange(len(r))[None]
        batches = full if batch_size is None else torch.randperm(len(r), generator=shuffling).split(batch_size)
        total = 0.0
        for rows in batches:
            target = policy.target(x[rows], a[rows])
            norms = reference_norms(policy, x[rows], a[rows])
            sums = gradient_sums(norms, r[rows], p[rows])
            if run.objective == "snips":
                objective, beta = objectives.snips(target, r[rows], p[rows]), torch.tensor(0.0)
            elif run.objective == "published_value_beta_ips":
                # the β of least value variance as the paper's experiments compute it, using E[w] = 1 (eq. `optimal_offpolicy_beta`)
                extra = (target / p[rows]).square() - target / p[rows]
                beta = (r[rows] * extra).mean() / extra.mean().clamp(min=1e-11)
                objective = objectives.beta_ips(target, r[rows], p[rows], baseline=beta)
            else:
                beta = {
                    "ips": torch.tensor(0.0),
                    "lambda_ips": torch.tensor(run.banditnet_lambda),
                    "beta_ips": baseline_of(sums),
                    "running_beta_ips": running.value,
                }[run.objective]
                objective = objectives.beta_ips(target, r[rows], p[rows], baseline=beta)
                running.update(sums)
            c = ((r[rows] - beta) / p[rows]).detach()
            optimizer.zero_grad()
            (c * policy.target(x[rows], a[rows])).mean().backward()
            square = policy.scores.weight.grad.square().sum()
            total += ((norms * c.square()).mean() - square).item() / len(rows)
            optimizer.zero_grad()
            (-objective).backward()
            optimizer.step()
        values.append(TEST.value(policy.greedy(TEST_CONTEXT).numpy()))
        variances.append(total / len(r))
    return policy.scores.weight.detach().T, values, variances


TEST_CONTEXT = torch.as_tensor(TEST.context, dtype=torch.float32)

MINI = [Run("ips", 0.1, 0), Run("lambda_ips", 0.02, 1, 0.6), Run("beta_ips", 0.1, 2), Run("running_beta_ips", 0.1, 3)]
FULL = [
    Run("ips", 0.1, 0),
    Run("snips", 0.02, 1),
    Run("published_value_beta_ips", 0.1, 2),
    Run("lambda_ips", 0.1, 3, 0.6),
]


@pytest.mark.parametrize(("runs", "batch_size"), [(MINI, 100), (FULL, None)], ids=["mini-batch", "full batch"])
def test_runs_trained_together_are_those_trained_alone(runs, batch_size):
    curves = train_many(ROWS, 7, runs, epochs=3, batch_size=batch_size, value=VALUE)
    for k, run in enumerate(runs):
        weights, values, variances = plain(run, 3, batch_size)
        torch.testing.assert_close(curves.weights[k], weights, rtol=1e-4, atol=1e-5)
        assert curves.value[k].tolist() == pytest.approx(values, abs=1e-4)
        assert curves.gradient_variance[k].tolist() == pytest.approx(variances, rel=1e-3)


def test_a_run_does_not_depend_on_its_company():
    together = train_many(ROWS, 7, MINI, epochs=2, batch_size=100)
    alone = train_many(ROWS, 7, MINI[2:3], epochs=2, batch_size=100)
    torch.testing.assert_close(together.weights[2:3], alone.weights, rtol=1e-5, atol=1e-6)


def test_nonsense_is_refused():
    with refuses(OptionError):
        train_many(ROWS, 7, [Run("snips", 0.1, 0)], epochs=1, batch_size=100)
    with refuses(OptionError):
        train_many(ROWS, 7, MINI, epochs=1)
    with refuses(LogError):
        train_many(ROWS, 4, MINI, epochs=1, batch_size=100)
    with refuses(LogError):
        LoggedRows([[float("nan")]], [0], [1.0], [0.5])
    if not torch.cuda.is_available():
        with refuses(OptionError):
            LoggedRows([[0.0]], [0], [1.0], [0.5], device="cuda")
