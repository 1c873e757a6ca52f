"""The learning experiments: published curves, the order of gradient variances, and the bare machine."""

import subprocess
import sys
from pathlib import Path

import pytest
from learning import small_log, torch
from messages import refuses
from paper_files import shared
from typer.testing import CliRunner

from counterpoise.environments import SyntheticBandit
from counterpoise.errors import OptionError
from counterpoise.learn import LinearSoftmax
from counterpoise.learn.norms import reference_norms
from counterpoise.learn.objectives import baseline_of, gradient_sums
from paper import learning
from paper.__main__ import app
from paper.learning_figures import Agreement, compare, order
from paper.many import GreedyValue, Run, reinforce_gradient, train_on_policy

CURVES = "paper/fig1_fig2_fig3_opl_curves.csv"
COMMITTED = Path(__file__).resolve().parents[2] / "docs" / "figures" / "learning_curves.csv"


def test_curves_on_the_cpu_are_the_published_ones(tmp_path):
    """Two runs instead of 32 at the paper's size: the same tolerances, whose Monte Carlo part is then wider."""
    published = learning.read_curves(shared(CURVES))
    path = tmp_path / "curves.csv"
    methods = ["beta-IPS", "BanditNet", "IPS"]
    learning.run_mode("mini_batch", path, scale="paper", methods=methods, learning_rates=[0.01], runs=2, epochs=2)
    found = learning.read_curves(path)
    agreement = compare(found, published)
    assert agreement.compared == 12
    assert agreement.off == ()
    assert order(found) == (2, [])


def test_an_interrupted_experiment_continues(tmp_path, capsys):
    path = tmp_path / "curves.csv"
    for methods in (["IPS"], ["IPS", "beta-IPS"]):
        learning.run_mode("full_batch", path, methods=methods, learning_rates=[0.1], epochs=1)
    assert capsys.readouterr().out.count("IPS 0.1") == 2
    assert path.read_text().splitlines()[0] == shared(CURVES).read_text().splitlines()[0]


def test_comparison_sees_what_is_off():
    key = ("mini_batch", "policy_value", 0.1, "IPS", 9)
    variance = ("mini_batch", "gradient_variance", 0.1, "IPS", 9)
    published = {key: (0.5, 0.01, 32), variance: (1.0, 0.1, 32)}
    assert compare({key: (0.509, 0.01, 32), variance: (2.4, 0.1, 32)}, published) == Agreement(2, (), ())
    assert compare({key: (0.509, 0.1, 2), variance: (0.41, 0.1, 2)}, published) == Agreement(2, (), ())
    found = compare({key: (0.52, 0.001, 32), variance: (2.6, 0.1, 32)}, published)
    assert (len(found.off), found.noisy) == (2, ())
    found = compare({variance: (2.6, 9.0, 32)}, published)
    assert (found.off, len(found.noisy)) == ((), 1)
    variances = {
        ("mini_batch", "gradient_variance", 0.1, method, 0): (value, 0.0, 1)
        for method, value in (("beta-IPS", 2.0), ("BanditNet", 1.0), ("IPS", 3.0))
    }
    assert order(variances)[1] == ["learning rate 0.1, epoch 1: beta-IPS 2, BanditNet 1, IPS 3"]


def test_commands_draw_and_refuse(tmp_path):
    out = str(tmp_path)
    run = CliRunner().invoke(app, ["figure1", "--out", out])
    assert run.exit_code == 0, run.output
    assert (tmp_path / "figure1_smoke.svg").read_text().count("learning rate") == 3
    curve = ["opl", "--method", "beta_ips", "--learning-rate", "0.1", "--out", f"{out}/x.csv"]
    for wrong, says in (
        (["--mode", "sideways"], "no mode 'sideways'"),
        (["--mode", "on_policy"], "no method 'beta-IPS' in mode 'on_policy'"),
    ):
        refused = CliRunner().invoke(app, [*curve, *wrong, "--runs", "1", "--epochs", "1"])
        assert refused.exit_code == 2
        assert says in refused.output
    with refuses(OptionError):
        learning.read_curves(tmp_path / "absent.csv")


def test_runs_where_only_the_core_and_torch_are_installed():
    """A GPU machine is often bare."""
    code = """
import sys
for name in ("matplotlib", "pandas", "pyarrow", "sklearn", "numba", "safetensors", "onnx", "onnxruntime", "duckdb"):
    sys.modules[name] = None
import counterpoise, counterpoise.environments, counterpoise.learn
import paper.learning
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("baseline", ["none", "mean", "optimal"])
def test_written_out_reinforce_is_that_of_autograd(baseline):
    torch.manual_seed(0)
    policy = LinearSoftmax(3, 6).double()
    context, action, reward, _ = small_log()
    target = policy.target(context, action)
    norms = reference_norms(policy, context, action) / target.detach().square()
    beta = {
        "none": 0.0,
        "mean": reward.mean(),
        "optimal": baseline_of(gradient_sums(norms, reward, torch.ones_like(reward))),
    }[baseline]
    ((reward - beta) * policy.log_target(context, action)).mean().backward()
    probabilities = torch.softmax(policy(context), -1).detach()[None]
    flags = [torch.tensor([[baseline == name]]) for name in ("mean", "optimal")]
    gradient, variance = reinforce_gradient(context[None], probabilities, action[None], reward[None], *flags)
    torch.testing.assert_close(gradient[0].T, policy.scores.weight.grad)
    square = policy.scores.weight.grad.square().sum()
    expected = ((norms * (reward - beta).square()).mean() - square) / len(reward)
    torch.testing.assert_close(variance[0], expected)


def test_on_policy_baselines_lower_the_gradient_variance():
    world = SyntheticBandit(10, seed=3).draw(2000)
    truth = GreedyValue(world.context, world.expected(slice(0, 2000)))
    runs = [Run(name, 0.05, seed) for name in ("none", "mean", "optimal") for seed in range(4)]
    curves = train_on_policy(truth, runs, epochs=4, batch_size=200)
    none, mean, optimal = curves.gradient_variance[:, 0].reshape(3, 4).mean(1)
    assert optimal < none
    assert mean < none
    assert (curves.value[:, -1] > curves.value[:, 0] - 0.02).all()


def test_committed_curves_are_the_published_ones():
    """Paper scale, on a GPU: all 32 runs, all learning rates, both modes."""
    published = learning.read_curves(shared(CURVES))
    found = learning.read_curves(COMMITTED)
    agreement = compare(found, published)
    assert agreement.compared == 2 * 3 * 3 * (7 + 9)
    assert agreement.off == ()
    # the published mean of β-IPS at 0.1, epoch 100, is 2.5e-7 with an sd of 8.8e-7: one run of 32 makes it
    assert [line.split(":")[0] for line in agreement.noisy] == [
        "mini_batch gradient_variance of beta-IPS at 0.1, epoch 100"
    ]
    assert order(found) == (300, [])
