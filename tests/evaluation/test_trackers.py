"""What notebooks and trackers take from a result: one value, a dictionary, and a run of MLflow."""

import json
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from messages import refuses

import counterpoise as cp


@pytest.fixture(scope="module")
def log():
    random = np.random.default_rng(0)
    n = 2000
    item = random.choice(["jam", "tea"], n)
    click = (random.random(n) < np.where(item == "tea", 0.5, 0.2)).astype(float)
    new = np.where(item == "tea", 0.9, 0.1)
    return {"click": click, "spend": click * 3, "p": np.full(n, 0.5), "new": new, "old": 1 - new, "item": item}


PARTS = {"reward": "click", "propensity": "p"}


def test_a_single_target_has_one_value(log):
    result = cp.evaluate(log, **PARTS, target="new")
    best = result["new", result.best]
    assert (result.value, result.stderr, result.interval) == (best.value, best.stderr, best.interval)
    assert 0.47 in result.interval  # the truth
    assert cp.evaluate(log, **PARTS | {"reward": ["click", "spend"]}, target="new").of("spend").value == pytest.approx(
        3 * best.value
    )
    difference = cp.compare(log, **PARTS, target="new", against="old")
    assert difference.value == difference.difference.value
    never = cp.evaluate(log, **PARTS, action="item", target=cp.Always("oil"))
    assert math.isnan(never.value)
    assert never.stderr == math.inf


@pytest.mark.parametrize("what", ["value", "stderr", "interval"])
def test_several_targets_have_none(log, what):
    result = cp.evaluate(log, **PARTS, target=["new", "old"])
    with refuses(cp.OptionError):
        getattr(result, what)


def test_every_answer_is_a_dictionary(log):
    for answer in (
        cp.evaluate(log, **PARTS, target="new"),
        cp.compare(log, **PARTS, target="new"),
        cp.rank(log, **PARTS, target=["new", "old"]),
        cp.plan(log, **PARTS, target="new", difference=0.1),
        cp.doctor(log, reward="click", propensity="p"),
    ):
        assert answer.to_dict() == answer.document()
        json.dumps(answer.to_dict(), allow_nan=False, default=str)


def check_run(log, run):
    """What a run has of an answer with odd names and two rewards."""
    targets = {"new": "new", "a/b": "old", "a.b": "p", "..": "new / 2"}
    result = cp.evaluate(log, **PARTS | {"reward": ["click", "spend"]}, target=targets)
    result.log_to_mlflow(step=3)
    metrics, tags, document = run()
    assert metrics["rows"] == 2000
    for reward in ("click", "spend"):
        answer = result.of(reward)
        for target, name in {"new": "new", "a/b": "a_b", "a.b": "a_b 2", "..": "__"}.items():
            estimate, lift = answer[target, answer.best], answer[target, "lift"]
            assert metrics[f"{reward}/{name}/value"] == pytest.approx(estimate.value)
            assert metrics[f"{reward}/{name}/lower"] == pytest.approx(estimate.interval.lower)
            assert metrics[f"{reward}/{name}/upper"] == pytest.approx(estimate.interval.upper)
            assert metrics[f"{reward}/{name}/lift value"] == pytest.approx(lift.value)
            assert tags[f"verdict {reward}/{name}"] == answer.verdict(target).verdict
    assert tags["counterpoise.reward"] == "click, spend"
    assert document == json.loads(json.dumps(result.to_dict()))
    # the next day goes into the same run; what the log does not tell is left out
    cp.evaluate(log, **PARTS, action="item", target=cp.Always("oil")).log_to_mlflow(step=4)
    metrics, tags, _ = run()
    assert tags["verdict oil"] == "not identified"
    assert not [name for name in metrics if name.startswith("oil/")]
    assert all(math.isfinite(value) for value in metrics.values())
    cp.compare(log, **PARTS, target="new", against="old").log_to_mlflow()
    assert run()[0]["new/value"] == pytest.approx(cp.compare(log, **PARTS, target="new", against="old").value)


@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_mlflow_has_the_answer(log, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("GIT_PYTHON_REFRESH", "quiet")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())

    def run():
        data = mlflow.get_run(active.info.run_id).data
        (artifact,) = tmp_path.rglob("counterpoise.json")
        return data.metrics, data.tags, json.loads(artifact.read_text())

    with mlflow.start_run() as active:
        check_run(log, run)


def test_what_mlflow_is_given(log, monkeypatch):
    """The same where MLflow is not installed, with a stand-in that keeps what it is given."""
    metrics, tags, documents = {}, {}, {}
    fake = SimpleNamespace(
        log_metrics=lambda given, step: metrics.update(given),
        set_tags=tags.update,
        log_dict=lambda document, file: documents.update({file: json.loads(json.dumps(document))}),
    )
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    check_run(log, lambda: (metrics, tags, documents["counterpoise.json"]))


def test_without_mlflow_it_says_what_to_install(log, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with refuses(cp.OptionError):
        cp.evaluate(log, **PARTS, target="new").log_to_mlflow()
