"""An estimator of one's own is one function and one line, and everybody knows it."""

import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from command_line import invoke, shop

import counterpoise as cp
from counterpoise.estimators import ESTIMATORS, Estimator, dm, ips, lift, linear
from counterpoise.evaluation.reading import read
from counterpoise.evaluation.showing import evaluation, finite, schema
from counterpoise.moments import Moments
from counterpoise.report.page import render

QUESTION = {"reward": "click", "propensity": "p", "target": "pi_new"}


def halfway(moments):
    """β-IPS around one half, whatever the log says.

    Not what one should use.
    """
    return linear(
        "halfway",
        moments,
        moments.center,
        {"s": 1.0, "us": 1.0, "u": moments.center - 0.5},
        baseline=np.full(moments.shape, 0.5),
    )


@pytest.mark.parametrize("copies", [0, 2])
def test_coefficients_in_the_columns_order_are_those_by_column(copies):
    single = Moments.of(weight=[0.5, 2.0, 0.5], reward=[3, 1, 2])
    moments = Moments.stack([single] * copies) if copies else single
    by_column = halfway(moments)
    form = np.array([{"s": 1.0, "us": 1.0, "u": float(single.center) - 0.5}.get(name, 0.0) for name in single.columns])
    in_order = linear("halfway", moments, moments.center, form, baseline=by_column.baseline, widening=1.5)
    np.testing.assert_array_equal(in_order.value, by_column.value)
    np.testing.assert_array_equal(in_order.stderr, 1.5 * np.asarray(by_column.stderr))
    assert type(in_order.stderr) is type(by_column.stderr)


@pytest.mark.parametrize("copies", [0, 2])
def test_an_estimator_of_groups_does_without_each_of_them_in_turn(copies):
    groups = Moments.stack([Moments.of(weight=[0.5, 2.0, w], reward=[3, 1, 2]) for w in (0.25, 1.0, 4.0)])
    groups = Moments.stack([groups] * copies) if copies else groups
    of_groups = Estimator(lambda stack: ips(stack.merge(axis=len(stack.shape) - 1)), needs="groups")
    np.testing.assert_allclose(of_groups.without_each(groups), Estimator(ips).without_each(groups), rtol=1e-12)


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setitem(ESTIMATORS, "halfway", Estimator(halfway, follows_rewards=False))


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("interval", ["normal", "jackknife", "anytime"])
@pytest.mark.parametrize("cluster", [None, "user_id"])
def test_evaluate_and_every_interval_know_an_estimator_of_ones_own(interval, cluster):
    log = shop()
    result = cp.evaluate(log, **QUESTION, segment="country", interval=interval, cluster=cluster)
    w = (log["pi_new"] / log["p"]).to_numpy()
    rows = 0.5 + w * (log["click"].to_numpy() - 0.5)
    found = result["pi_new", "halfway"]
    assert found.value == pytest.approx(rows.mean(), rel=1e-12)
    assert found.stderr == pytest.approx(rows.std() / np.sqrt(len(rows)), rel=1e-9 if interval == "normal" else 0.3)
    assert found.value in found.interval
    assert found.interval.method == interval
    assert result["pi_new", "halfway", "DE"].n < found.n
    assert "halfway" in result.table()["estimator"].to_list()


@pytest.mark.usefixtures("registered")
def test_the_report_and_the_command_line_know_it_too(tmp_path):
    log = tmp_path / "log.parquet"
    shop().write_parquet(log)
    page = render(cp.evaluate(log, **QUESTION))
    assert 'id="about-estimator-halfway"' in page
    assert "β-IPS around one half, whatever the log says." in page
    alone = render(cp.evaluate(log, **QUESTION, estimator="halfway"))
    assert "would have earned" in alone
    found = invoke("evaluate", log, "--target", "pi_new", "--estimator", "halfway", "--estimator", "ips", "--all")
    assert found.exit_code == 0
    assert "halfway" in found.stdout


MINE = """
from counterpoise.estimators import ESTIMATORS, Estimator, snips
ESTIMATORS["mine"] = Estimator(snips)
"""


def command(tmp_path, *arguments, **more):
    """The command as it is installed, in a folder with a log and with a module of one's own in a folder beside it."""
    shop().write_parquet(tmp_path / "log.parquet")
    (tmp_path / "mine").mkdir(exist_ok=True)
    (tmp_path / "mine" / "my_estimators.py").write_text(MINE)
    (tmp_path / "here_only.py").write_text(MINE)
    run = [sys.executable, "-P", "-c", "from counterpoise.cli import app; app(prog_name='counterpoise')"]
    path = os.pathsep.join([str(tmp_path / "mine"), str(Path(cp.__file__).parent.parent)])
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run(
        [*run, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
    )


ASK = ["evaluate", "log.parquet", "--target", "pi_new", "--estimator", "mine"]


def test_the_command_line_imports_what_it_is_told_to(tmp_path):
    found = command(tmp_path, "--import", "my_estimators", *ASK, "--html", "report.html")
    assert found.returncode == 0, found.stderr
    assert "by mine" in found.stdout
    assert 'id="about-estimator-mine"' in (tmp_path / "report.html").read_text(encoding="utf-8")
    unknown = command(tmp_path, *ASK)
    assert (unknown.returncode, "no estimator 'mine'" in unknown.stderr) == (2, True)


@pytest.mark.once
@pytest.mark.parametrize("name", ["here_only", "not_there", "my_estimators.part", "not_there.part"])
def test_a_module_that_cannot_be_imported_is_told_in_one_line(tmp_path, name):
    """The folder that one happens to be in, whose files may be anybody's, is not searched."""
    found = command(tmp_path, "--import", name, *ASK)
    assert found.returncode == 2
    assert found.stderr.startswith(f"OptionError: there is no module {name!r} to import. Install its package")
    assert found.stderr.count("\n") == 1


@pytest.mark.once
@pytest.mark.parametrize("text", ["1 / 0", "raise SystemExit(0)", "x = = 1", "raise RuntimeError"])
def test_a_module_that_raises_is_told_in_one_line(tmp_path, text):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "broken.py").write_text(text)
    found = command(tmp_path, "--import", "broken", *ASK)
    assert found.returncode == 2
    assert found.stderr.startswith("OptionError: the module 'broken' cannot be imported: ")
    assert found.stderr.count("\n") == 1


@pytest.mark.once
def test_a_script_of_ones_own_gives_the_command_line_an_estimator(tmp_path):
    shop().write_parquet(tmp_path / "log.parquet")
    script = tmp_path / "mine.py"
    script.write_text(
        "from counterpoise.cli import app\n"
        "from counterpoise.estimators import ESTIMATORS, Estimator, snips\n"
        "ESTIMATORS['mine'] = Estimator(snips)\n"
        "app()\n"
    )
    command = [
        sys.executable,
        script,
        "evaluate",
        tmp_path / "log.parquet",
        "--target",
        "pi_new",
        "--estimator",
        "mine",
    ]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "by mine" in found.stdout


def test_a_difference_of_ones_own_reads_as_one(monkeypatch, tmp_path):
    monkeypatch.setitem(ESTIMATORS, "gain", Estimator(lift, estimand="lift"))
    log = tmp_path / "log.parquet"
    shop().write_parquet(log)
    alone, named = (cp.evaluate(log, **QUESTION, estimator=name) for name in ("gain", "lift"))
    assert repr(alone).replace("gain", "lift") == repr(named).replace("gain", "lift")
    assert "Better than the logging policy" in repr(alone)
    assert read(alone).mark == 0.0
    assert "Lift over the logging policy" not in render(alone)
    both = cp.evaluate(log, **QUESTION, estimator=["gain", "snips"])
    assert read(both).primary == "snips"
    assert read(both).estimators == ("snips",)
    table = next(line for line in str(both.summary()).splitlines() if " gain " in line)
    assert " +0." in table
    found = invoke("evaluate", log, "--target", "pi_new", "--estimator", "gain").stdout
    expected = invoke("evaluate", log, "--target", "pi_new", "--estimator", "lift").stdout
    assert found.replace("lift", "gain").split() == expected.replace("lift", "gain").split()


def test_a_model_of_ones_own_is_not_judged_by_the_weights(monkeypatch):
    monkeypatch.setitem(ESTIMATORS, "mine", Estimator(dm, needs="model", uses_rewards=False))
    log = {name: shop()[name].to_numpy() for name in ("click", "p", "country")}
    nowhere = {"never": np.zeros(2000), "q": np.full(2000, 0.2), "v": np.full(2000, 0.3)}
    asked = QUESTION | {"target": "never", "model_reward": "q", "model_value": "v", "segment": "country"}
    result = cp.evaluate(log | nowhere, **asked, estimator=["mine"])
    assert set(result.table()["verdict"]) == {"model only"}
    assert result.verdict().verdict == "not identified"
    assert "\nnever: 0.3 click per row (" in repr(result)
    assert "this rests on the model alone" in repr(result)
    page = render(result)
    assert 'data-verdict="model only"' in page
    assert '<option value="model only">' in page
    assert read(cp.evaluate(log | nowhere, **asked, estimator=["mine", "ips"])).primary == "ips"
    jsonschema.validate(finite(evaluation(result)), schema())


def test_a_result_outlives_the_registration_of_its_estimator(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(ESTIMATORS, "halfway", Estimator(halfway))
        result = cp.evaluate(shop(), **QUESTION, estimator="halfway")
    assert "halfway" in repr(result)
    assert read(result).estimators == ("halfway",)
    assert "would have earned" in render(result)
