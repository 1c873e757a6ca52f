"""Fitting a policy: from every source, repeatably, after a kill, in several processes, and never silently wrong."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from learning import torch
from messages import refuses
from training_script import RUNS, search, train

import counterpoise as cp
import counterpoise.learn.source as sources
from counterpoise.environments import SyntheticBandit
from counterpoise.errors import ColumnError, LogError, OptionError, PolicyFileError, TrainingError
from counterpoise.learn import MLP, ModulePolicy, PolicyLearner, TwoTower, contenders, load_policy
from counterpoise.learn.options import options_of
from counterpoise.learn.policy import save_policy
from counterpoise.learn.rows import Split, batches
from counterpoise.learn.steps import ALONE
from counterpoise.log.log import Log

BANDIT = SyntheticBandit(n_actions=8, inverse_temperature=-3, seed=2)
LOG = BANDIT.draw(3000)
FRAME = LOG.frame()
CONTEXT = [f"context_{k}" for k in range(5)]
NAMES = {"context": CONTEXT, "action": "action", "reward": "reward", "propensity": "propensity"}
ARRAYS = {"context": LOG.context, "action": LOG.action, "reward": LOG.reward, "propensity": LOG.propensity}


def learner(objective="beta_ips", **options):
    return PolicyLearner(
        objective, **({"epochs": 4, "batch_size": 256, "learning_rate": 0.05, "folds": None} | options)
    )


def same(first, second, tolerance=0.0):
    for name, tensor in first.state_dict().items():
        torch.testing.assert_close(tensor, second.state_dict()[name], rtol=0, atol=tolerance)


def test_frames_mappings_and_files_give_what_arrays_give(tmp_path):
    FRAME.write_parquet(tmp_path / "log.parquet")
    expected = learner().fit(**ARRAYS)
    assert LOG.value(expected.predict_proba) > LOG.reward.mean() + 0.03
    logs = [FRAME, FRAME.lazy(), FRAME.to_pandas(), FRAME.to_arrow(), FRAME.to_dict(), tmp_path / "log.parquet"]
    for log in logs:
        found = learner().fit(log, **NAMES)
        same(found.policy_, expected.policy_)
        assert found.history_ == expected.history_


def test_files_are_read_in_chunks_and_every_row_once_an_epoch(tmp_path, monkeypatch):
    FRAME.write_parquet(tmp_path / "log.parquet", row_group_size=400)
    monkeypatch.setattr(sources, "CHUNK", 700)
    log = sources.Source(Log(str(tmp_path / "log.parquet"), **NAMES))
    assert len(log.starts) == 5
    for start in log.starts:
        log.look(start)
    split = Split(holdout=0.1, seed=0)
    options = (256, split, ALONE)
    seen = [batch.context[:, 0] for batch in batches(log, 0, *options)]
    held = [rows.context[:, 0] for rows in split.held_out_rows(log)]
    assert all(len(part) == 256 for part in seen[:-1])
    everything = np.sort(torch.cat(seen + held).numpy())
    np.testing.assert_array_equal(everything, np.sort(LOG.context[:, 0].astype(np.float32)))
    again = [batch.context[:, 0] for batch in batches(log, 0, *options)]
    other = [batch.context[:, 0] for batch in batches(log, 1, *options)]
    assert torch.equal(seen[0], again[0])
    assert not torch.equal(seen[0], other[0])
    fitted = learner().fit(str(tmp_path / "log.parquet"), **NAMES)
    assert LOG.value(fitted.predict_proba) > LOG.reward.mean() + 0.03
    with refuses(OptionError):
        learner(batch_size=None).fit(str(tmp_path / "log.parquet"), **NAMES)


@pytest.mark.parametrize(
    ("objective", "options"),
    [
        ("ips", {}),
        ("running_beta_ips", {}),
        ("lambda_ips", {"banditnet_lambda": 0.6}),
        ("beta_ips", {"norms": "all"}),
        ("beta_ips", {"batch_size": None, "epochs": 20}),
        ("snips", {"batch_size": None, "epochs": 20}),
        ("value_beta_ips", {"batch_size": None, "epochs": 20}),
    ],
)
def test_every_objective_learns(objective, options):
    fitted = learner(objective, **options).fit(**ARRAYS)
    assert LOG.value(fitted.predict_proba) > LOG.reward.mean()
    assert all(np.isfinite(epoch.gradient_variance) and epoch.gradient_variance > 0 for epoch in fitted.history_)


def test_dr_learns_with_a_reward_model():
    expected = LOG.expected(slice(0, len(LOG)))
    good = learner("dr", norms="last_layer").fit(**ARRAYS, model_rewards=expected)
    plain = learner("ips").fit(**ARRAYS)
    assert good.history_[0].gradient_variance < plain.history_[0].gradient_variance
    assert LOG.value(good.predict_proba) > LOG.value(plain.predict_proba)
    with refuses(OptionError):
        learner("dr").fit(**ARRAYS)


@pytest.mark.parametrize("norms", ["last_layer", "all"])
@pytest.mark.parametrize(
    "make", [lambda: MLP(5, 8, hidden=(16,), normalize=True), lambda: TwoTower(5, 8, item_features=torch.eye(8))]
)
def test_deep_policies_learn(make, norms):
    torch.manual_seed(0)
    fitted = learner(policy=make(), norms=norms, learning_rate=0.01).fit(**ARRAYS)
    assert LOG.value(fitted.predict_proba) > LOG.reward.mean()


def test_a_module_of_ones_own_learns():
    torch.manual_seed(0)
    policy = ModulePolicy(torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.PReLU(), torch.nn.Linear(8, 8)), 8)
    fitted = learner(policy=policy, learning_rate=0.02).fit(**ARRAYS)
    assert LOG.value(fitted.predict_proba) > LOG.reward.mean()


def test_lambda_is_tuned_by_snips_on_the_training_rows():
    fitted = learner("lambda_ips", banditnet_lambda=[0.0, 0.5], epochs=2).fit(**ARRAYS)
    assert set(fitted.tuning_) == {0.0, 0.5}
    assert fitted.banditnet_lambda_ == max(fitted.tuning_, key=fitted.tuning_.get)
    same(
        fitted.policy_, learner("lambda_ips", banditnet_lambda=fitted.banditnet_lambda_, epochs=2).fit(**ARRAYS).policy_
    )


def test_the_epoch_kept_is_the_best_on_held_out_rows():
    fitted = learner(epochs=8, learning_rate=0.5, patience=2).fit(**ARRAYS)
    scores = [epoch.score for epoch in fitted.history_]
    assert fitted.best_epoch_ == 1 + int(np.argmax(scores))
    assert len(scores) == min(8, fitted.best_epoch_ + 2)
    same(fitted.policy_, learner(epochs=fitted.best_epoch_, learning_rate=0.5).fit(**ARRAYS).policy_)
    assert all(epoch.lower < epoch.value < epoch.upper for epoch in fitted.history_)


def test_a_seed_repeats_a_run_and_leaves_other_random_numbers_alone():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = learner(seed=3).fit(**ARRAYS)
    assert torch.equal(state, torch.get_rng_state())
    same(first.policy_, learner(seed=3).fit(**ARRAYS).policy_)
    assert not torch.equal(first.policy_.scores.weight, learner(seed=4).fit(**ARRAYS).policy_.scores.weight)


def run_script(what, out, processes=1):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    script = [str(Path(__file__).parent.with_name("training_script.py")), what, str(out)]
    command = [sys.executable, *(launcher if processes > 1 else []), *script]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=1800)


@pytest.mark.thorough
def test_a_killed_run_resumes_to_the_same_result(tmp_path):
    assert run_script("kill", tmp_path).returncode == -signal.SIGKILL
    resumed = train("running_beta_ips", checkpoint=tmp_path / "checkpoint")
    whole = train("running_beta_ips")
    same(resumed.policy_, whole.policy_)
    assert resumed.history_ == whole.history_


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::counterpoise.learn.LearningWarning")
def test_two_processes_reach_what_one_reaches(tmp_path, monkeypatch):
    done = run_script("two", tmp_path, processes=2)
    assert done.returncode == 0, done.stderr
    for kind, options in RUNS.items():
        alone = train(**options)
        same(load_policy(tmp_path / kind), alone.policy_, tolerance=1e-5)
        lift = float((tmp_path / f"{kind} lift").read_text(encoding="utf-8"))
        assert lift == pytest.approx(alone.result_["fold policies", "lift"].value, abs=1e-5)
    # a search runs the same race in every process, and they share the last fit
    monkeypatch.setattr(contenders, "LEAST", contenders.LEAST)  # which the search changes
    alone = search().policy
    for process in range(2):
        same(load_policy(tmp_path / f"search {process}"), alone, tolerance=1e-4)
    same(*(load_policy(tmp_path / f"short search {process}") for process in range(2)), tolerance=1e-6)


@pytest.mark.filterwarnings("ignore::counterpoise.learn.LearningWarning")
def test_a_log_with_fewer_rows_than_a_batch_is_one_batch():
    few = {name: column[:100] for name, column in ARRAYS.items()}
    found = learner(batch_size=1024).fit(**few)
    same(found.policy_, learner(batch_size=100).fit(**few).policy_)
    assert PolicyLearner(folds=3, patience=5).fit(**few).result_.n == 100


def broken(part, row, value):
    arrays = {name: np.array(column, dtype=float) for name, column in ARRAYS.items()}
    arrays[part][row] = value
    return arrays


@pytest.mark.parametrize(
    ("arrays", "error", "says"),
    [
        (
            broken("action", 7, 8),
            LogError,
            r"one of the integers 0 … 7: in 1 row it is not; the first is row 7 with 8",
        ),
        (
            broken("action", 7, 0.5),
            LogError,
            r"a whole number from 0 on: in 1 row it is not; the first is row 7 with 0.5",
        ),
        (
            broken("propensity", [3, 9], 0),
            LogError,
            r"must lie in \(0, 1\]: 2 rows do not; the first is row 3 with 0.0",
        ),
        (
            broken("context", (4, 2), np.inf),
            LogError,
            r"context 'context_2' must be a finite number.*row 4 with",
        ),
        (broken("reward", slice(None), 0), LogError, r"all 3,000 rewards are 0"),
        (broken("reward", 5, np.inf), LogError, r"reward 'reward' must be a finite number"),
        (ARRAYS | {"reward": LOG.reward[:10]}, LogError, r"the same length"),
        (
            ARRAYS | {"action": np.array(["a"] * 3000)},
            OptionError,
            r"n_actions is 8, but 1 names of actions were found",
        ),
        ({name: column[:0] for name, column in ARRAYS.items()}, LogError, r"no rows"),
        (ARRAYS | {"propensity": None}, OptionError, r"propensity is missing"),
    ],
)
def test_bad_logs_are_refused(arrays, error, says):
    with pytest.raises(error, match=says):
        learner(n_actions=8).fit(**arrays)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"objective": "sips"}, "no objective 'sips'"),
        ({"objective": "snips"}, "Pass batch_size=None"),
        ({"learning_rate": 0}, "learning_rate must be above 0"),
        ({"holdout": 1.0}, r"holdout must lie in \[0, 1\)"),
        ({"norms": "some"}, "norms must be"),
        ({"policy": MLP(5, 8), "n_actions": 9}, "the policy has 8 actions"),
        ({"policy": torch.nn.Linear(5, 8)}, r"policy must be a Policy; found Linear. .* ModulePolicy"),
        ({"n_actions": 2.5}, "n_actions must be a whole number of at least 1; found 2.5"),
        ({"batch_size": 1.5}, "batch_size must be a whole number of at least 1; found 1.5"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1; found 0"),
        ({"epochs": 1.5}, "epochs must be a whole number of at least 1; found 1.5"),
        ({"epochs": True}, "epochs must be a whole number"),
        ({"patience": "2"}, "patience must be a whole number of at least 0; found '2'"),
        ({"seed": -1}, "seed must be a whole number of at least 0; found -1"),
        ({"learning_rate": "fast"}, "learning_rate must be above 0; found 'fast'"),
        ({"learning_rate": np.nan}, "learning_rate must be above 0; found nan"),
        ({"holdout": "0.1"}, r"holdout must lie in \[0, 1\)"),
        ({"decay": 2}, r"decay must lie in \[0, 1\]; found 2"),
        (
            {"banditnet_lambda": "0.6"},
            "banditnet_lambda must be a number, several to choose from, or None .*; found '0.6'",
        ),
        ({"banditnet_lambda": []}, "banditnet_lambda must be a number, .*; found an empty list"),
        ({"banditnet_lambda": [0.6, "0.7"]}, "banditnet_lambda must be a number, .*; found '0.7'"),
        ({"banditnet_lambda": np.nan}, "banditnet_lambda must be a number, .*; found nan"),
        ({"device": "tpu"}, "device must be 'cpu' or 'cuda' .*; found 'tpu'"),
        ({"device": "mps"}, "device must be 'cpu' or 'cuda' .*; found 'mps'"),
    ],
)
def test_bad_options_are_refused(options, says):
    with pytest.raises(OptionError, match=says):
        PolicyLearner(**options).fit(**ARRAYS)


def test_numbers_of_numpy_are_numbers(tmp_path):
    plain = {"epochs": 2, "batch_size": 256, "seed": 3, "learning_rate": 0.5, "holdout": 0.125, "banditnet_lambda": 0.5}
    numpy = {name: (np.int64 if isinstance(value, int) else np.float32)(value) for name, value in plain.items()}
    expected = learner("lambda_ips", **plain).fit(**ARRAYS)
    found = learner("lambda_ips", **numpy, n_actions=np.int64(8), checkpoint=tmp_path / "checkpoint").fit(**ARRAYS)
    same(found.policy_, expected.policy_)
    several = learner("lambda_ips", **plain | {"banditnet_lambda": np.array([0.5])}).fit(**ARRAYS)
    same(several.policy_, expected.policy_)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (np.zeros((3000, 7)), r"a column for each of the 8 actions; found 7. .* pass n_actions"),
        (np.zeros((2999, 8)), r"a row for each of the 3,000 rows and a column per action; found shape \(2999, 8\)"),
        (np.zeros(3000), r"found shape \(3000,\)"),
        ([["high"] * 8] * 3000, "model_rewards must be numbers"),
    ],
)
def test_model_rewards_have_a_row_per_row_and_a_column_per_action(model, says):
    with pytest.raises(OptionError, match=says):
        learner("dr").fit(**ARRAYS, model_rewards=model)


def test_model_rewards_go_with_logs_in_memory(tmp_path):
    with refuses(OptionError):
        learner("dr").fit(tmp_path / "log.parquet", **NAMES, model_rewards=np.zeros((3000, 8)))


def test_contexts_that_a_policy_does_not_take_are_refused():
    question = {"reward": "reward", "propensity": "propensity", "action": "action"}
    with refuses(OptionError):
        learner(policy=MLP(4, 8)).fit(**ARRAYS)
    for policy in (learner(epochs=1).fit(**ARRAYS), MLP(5, 8), TwoTower(5, 8)):
        with refuses(OptionError):
            policy.predict_proba(LOG.context[:, :3])
        with refuses(OptionError):
            policy.predict_proba(LOG.context[:, :, None])
        with refuses(OptionError):
            policy.predict_proba([["young"] * 5])
        with refuses(OptionError):
            cp.evaluate(FRAME, **question, context=CONTEXT[:2], target=policy)


def test_other_mistakes_are_refused(tmp_path):
    with refuses(ColumnError):
        learner().fit(FRAME, **(NAMES | {"reward": "rewards"}))
    with refuses(LogError):
        learner().fit(str(tmp_path / "absent.parquet"), **NAMES)
    (tmp_path / "text.parquet").write_text("reward,action")
    with refuses(LogError):
        learner().fit(tmp_path / "text.parquet", **NAMES)
    with refuses(OptionError):
        learner().predict(LOG.context)
    if not torch.cuda.is_available():
        with refuses(OptionError):
            learner(device="cuda").fit(**ARRAYS)


def test_a_loss_that_turns_nan_stops_with_the_last_good_policy(tmp_path):
    """The step that spoils the weights comes in the second epoch."""

    class Spoiled(torch.optim.SGD):
        steps = 0

        def step(self, closure=None):
            super().step(closure)
            Spoiled.steps += 1
            if Spoiled.steps == 13:
                self.param_groups[0]["params"][0].data.fill_(torch.nan)

    path = tmp_path / "checkpoint"
    fitting = learner(epochs=3, checkpoint=path, optimizer=lambda parameters: Spoiled(parameters, lr=0.1))
    with refuses(TrainingError):
        fitting.fit(**ARRAYS)
    assert torch.isfinite(fitting.policy_.scores.weight).all()
    same(fitting.policy_, learner(epochs=1, optimizer=lambda p: torch.optim.SGD(p, lr=0.1)).fit(**ARRAYS).policy_)
    assert path.exists()


def test_a_run_depends_on_the_options_that_0_2_wrote_into_checkpoints():
    options = options_of(learner(patience=3, precision="float32").get_params())
    names = "objective batch_size learning_rate decay holdout patience folds fold imitation smoothing clip level negatives seed"
    assert options.settings.keys() == {*names.split(), "precision of training"}
    assert (options.settings["folds"], options.settings["patience"]) == (0, 3)  # folds only matter to the runs in them
    in_fold = replace(options, fold=1, folds=4, epochs=None, patience=None).settings
    assert (in_fold["folds"], in_fold["fold"], in_fold["patience"]) == (4, 1, "by steps")


def test_checkpoints_of_other_runs_and_damaged_ones_are_refused(tmp_path):
    path = tmp_path / "checkpoint"
    learner(epochs=1, checkpoint=path).fit(**ARRAYS)
    with refuses(PolicyFileError):
        learner(learning_rate=0.1, checkpoint=path).fit(**ARRAYS)
    with refuses(PolicyFileError):
        learner(policy=MLP(5, 8), checkpoint=path).fit(**ARRAYS)
    with refuses(PolicyFileError):
        load_policy(path)
    path.write_bytes(path.read_bytes()[:200])
    with refuses(PolicyFileError):
        learner(checkpoint=path).fit(**ARRAYS)
    save_policy(MLP(5, 8), path)
    with refuses(PolicyFileError):
        learner(checkpoint=path).fit(**ARRAYS)


def test_a_policy_keeps_the_names_of_its_columns(tmp_path):
    fitted = learner(epochs=1).fit(FRAME, **NAMES)
    fitted.save(tmp_path / "policy")
    loaded = load_policy(tmp_path / "policy")
    question = {"reward": "reward", "propensity": "propensity", "action": "action"}
    for policy in (fitted, fitted.policy_, loaded):
        assert policy.context_ == tuple(CONTEXT)
        cp.evaluate(FRAME, **question, context=CONTEXT, target=policy)
        with refuses(OptionError):
            cp.evaluate(FRAME, **question, context=CONTEXT[::-1], target=policy)
    save_policy(loaded, tmp_path / "again")
    assert load_policy(tmp_path / "again").context_ == tuple(CONTEXT)
    kinds = [
        lambda frame: frame,
        lambda frame: frame.lazy(),
        lambda frame: frame.to_pandas(),
        lambda frame: frame.to_arrow(),
        lambda frame: frame.rechunk().to_arrow().to_batches()[0],
    ]
    for made in kinds:
        expected = loaded.predict_proba(LOG.context)
        np.testing.assert_allclose(loaded.predict_proba(made(FRAME[CONTEXT])), expected, rtol=1e-5)  # float32
        turned = loaded.predict_proba(made(FRAME[[*CONTEXT[::-1], "reward"]]))  # by their names
        np.testing.assert_allclose(turned, expected, rtol=1e-5)
        with refuses(ColumnError):
            loaded.predict_proba(made(FRAME[CONTEXT].drop("context_1")))
    uneven = {name: FRAME[name].to_numpy()[: k + 1] for k, name in enumerate(CONTEXT)}
    with refuses(ColumnError):
        loaded.predict_proba(uneven)
    # arrays have no names, so that any context of that many columns will do
    nameless = learner(epochs=1, policy=loaded).fit(**ARRAYS)
    assert nameless.policy_.context_ == ()
    cp.evaluate(FRAME, **question, context=CONTEXT, target=nameless)


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("context", lambda x: x + (np.arange(len(x)) == 17)[:, None]),
        ("action", lambda a: (a + (np.arange(len(a)) == 17)) % 8),
        ("reward", lambda r: 1 - r),
        ("propensity", lambda p: p / (1 + (np.arange(len(p)) == 17))),
    ],
)
def test_a_checkpoint_of_another_log_is_refused(part, change, tmp_path):
    """Of as many rows, with the same options: another row, or another order of them."""
    path = tmp_path / "checkpoint"
    fitted = learner(epochs=1, checkpoint=path).fit(**ARRAYS)
    others = ARRAYS | {part: change(ARRAYS[part])}
    turned = {name: column[::-1] for name, column in ARRAYS.items()}
    for log in (others, turned):
        with refuses(PolicyFileError):
            learner(epochs=1, checkpoint=path).fit(**log)
    FRAME.write_parquet(tmp_path / "log.parquet")
    again = learner(epochs=1, checkpoint=path).fit(tmp_path / "log.parquet", **NAMES)  # the same log from elsewhere
    same(again.policy_, fitted.policy_)


def test_progress_is_quiet_unless_watched(capfd):
    learner(epochs=1).fit(**ARRAYS)
    assert capfd.readouterr() == ("", "")
    learner(epochs=1, progress=True).fit(**ARRAYS)
    assert "gradient variance" in capfd.readouterr().err
