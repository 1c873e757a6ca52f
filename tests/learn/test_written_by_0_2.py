"""What version 0.2 wrote is read: its policies give the same probabilities, and its checkpoints go on as if nothing had happened."""

import json
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
from learning import torch
from messages import refuses

from counterpoise.errors import PolicyFileError
from counterpoise.learn import load_policy

FOLDER = Path(__file__).parent / "written_by_0_2"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
MADE = runpy.run_path(str(FOLDER / "make.py"))
RUNS = MADE["runs"]()


@pytest.mark.parametrize("name", [name for name in EXPECTED if name not in RUNS])
def test_policies_give_the_same_probabilities(name):
    policy = load_policy(FOLDER / f"{name}.safetensors", **({"module": MADE["module"]()} if name == "module" else {}))
    context = MADE["log"]()[:9] if name == "columns" else MADE["CONTEXT"]
    given = {"candidates": context["pool"]} if name == "columns" else {}
    np.testing.assert_allclose(policy.predict_proba(context, **given), EXPECTED[name], rtol=1e-6)


def test_policies_keep_their_names_ids_and_temperatures():
    linear, mlp, ranker = (load_policy(FOLDER / f"{name}.safetensors") for name in ("linear", "mlp", "ranker"))
    assert (linear.classes_.tolist(), linear.temperature) == ([3, 10, 77], 0.5)
    assert (mlp.classes_.tolist(), mlp.context_, mlp.precision) == (["jam", "oil", "tea"], ("x", "y"), torch.float64)
    assert (ranker.classes_.tolist(), ranker.slots) == ([3, 10, 77], 2)
    columns = load_policy(FOLDER / "columns.safetensors")
    assert (columns.context_, columns.candidates_) == (("age", "country", "taste"), "pool")


@pytest.mark.filterwarnings("ignore::counterpoise.learn.LearningWarning")
@pytest.mark.parametrize("name", [name for name in RUNS if name != "run_lists"])
def test_runs_go_on_where_they_were(name, tmp_path):
    for file in FOLDER.glob(f"{name}.*"):
        shutil.copy(file, tmp_path)
    make, log, parts = RUNS[name]
    learner = make(checkpoint=tmp_path / f"{name}.safetensors").fit(log, **parts)
    assert [epoch.epoch for epoch in learner.history_] == [1, 2]
    # a value near 0 is what is left of larger numbers, in single precision, whose last digit depends on the processor
    np.testing.assert_allclose(
        [epoch.value for epoch in learner.history_], EXPECTED[name]["values"], rtol=1e-6, atol=1e-7
    )
    for part, tensor in learner.policy_.state_dict().items():
        torch.testing.assert_close(tensor, torch.tensor(EXPECTED[name]["weights"][part]), rtol=1e-5, atol=1e-6)
    with refuses(PolicyFileError):
        make(checkpoint=tmp_path / f"{name}.safetensors", learning_rate=0.1).fit(log, **parts)


def test_runs_on_lists_are_refused_with_what_to_do(tmp_path):
    """Lists are now digested with the shares of their positions."""
    shutil.copy(FOLDER / "run_lists.safetensors", tmp_path)
    make, log, parts = RUNS["run_lists"]
    with refuses(PolicyFileError):
        make(checkpoint=tmp_path / "run_lists.safetensors").fit(log, **parts)
