"""Benchmarks: every experiment can be called and has its section, what pages name exists, and broken promises are seen."""

import ast
import importlib
import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks"
RESULTS, PEERS = FOLDER / "RESULTS.md", FOLDER / "PEERS.md"
pytestmark = pytest.mark.once


def loaded(name):
    """A script as a module, with those beside it."""
    sys.path.insert(0, str(FOLDER))
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", FOLDER / f"{name}.py")
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.remove(str(FOLDER))
    return module


def experiments():
    """(script, name, what makes it quick, its options) of every experiment, read off the source: importing all takes long."""
    for path in sorted(FOLDER.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for call in getattr(node, "decorator_list", []):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "SUITE.experiment":
                    quick = {keyword.arg for keyword in call.keywords} - {"is_hidden"}
                    yield path.stem, call.args[0].value, quick, {argument.arg for argument in node.args.kwonlyargs}


ALL = list(experiments())
SHOWN = [each for each in ALL if not each[1].startswith("_")]


@pytest.mark.parametrize(("script", "name", "quick", "options"), ALL, ids=[f"{each[0]} {each[1]}" for each in ALL])
def test_what_makes_an_experiment_quick_are_options_of_it(script, name, quick, options):
    assert quick <= options
    assert name.startswith("_") or quick, "it has no way to be quick"


def test_every_experiment_has_its_section_and_every_section_its_experiment():
    text = "\n".join(page.read_text(encoding="utf-8") for page in (RESULTS, PEERS))
    begun, ended = re.findall(r"<!-- ([a-z]+ [\w-]+) -->", text), re.findall(r"<!-- /([a-z]+ [\w-]+) -->", text)
    assert begun == ended
    assert len(set(begun)) == len(begun)
    known = {f"{script} {name}" for script, name, _, _ in SHOWN} | {"audit table", "house figures"}
    assert set(begun) <= known
    assert all(f"benchmarks/{script}.py {name}" in text or name in text for script, name, _, _ in SHOWN)


def test_whatever_a_page_or_a_comment_names_exists():
    pages = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md"), RESULTS, PEERS, ROOT / "Makefile", ROOT / ".ci" / "run"]
    pages += [*ROOT.glob("src/**/*.py"), *FOLDER.glob("*.py")]
    names = {(script, name) for script, name, _, _ in SHOWN}
    scripts = {script for script, _ in names}
    wrong = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        if page.name == "CHANGELOG.md":  # released versions speak of the scripts that they had
            text = "## ".join(text.split("\n## ")[:2])
        for script, word in re.findall(r"benchmarks/(\w+)\.py(?: +([a-z][\w-]*))?", text):
            is_there = (FOLDER / f"{script}.py").exists()
            is_word = script in scripts and word and (script, word) not in names
            is_prose = page.suffix != ".py" and not re.search(rf"`[^`]*benchmarks/{script}\.py {word}", text)
            if not is_there or (is_word and not is_prose):
                wrong.append(f"{page.name}: benchmarks/{script}.py {word}")
    assert wrong == []


def test_whatever_a_benchmark_imports_of_ours_exists():
    pytest.importorskip("torch")
    missing = []
    for path in sorted(FOLDER.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("counterpoise"):
                module = importlib.import_module(node.module)
                for alias in node.names:
                    is_module = (
                        importlib.util.find_spec(f"{node.module}.{alias.name}") if hasattr(module, "__path__") else None
                    )
                    if not hasattr(module, alias.name) and is_module is None:
                        missing.append(f"{path.name}: {node.module}.{alias.name}")
    assert missing == []


@pytest.fixture(scope="module")
def bench():
    return loaded("bench")


def test_a_section_is_replaced_and_the_rest_stays(bench, tmp_path):
    path = tmp_path / "RESULTS.md"
    path.write_text(
        "# All\n\nWhy.\n\n<!-- speed files -->\nold\n<!-- /speed files -->\n\nHow to read it.\n", encoding="utf-8"
    )
    bench.write("speed files", "python benchmarks/speed.py files", "| a |\n|---|\n| 1 |\n", 2.0, path)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# All\n\nWhy.\n\n<!-- speed files -->\n`python benchmarks/speed.py files`, version ")
    assert text.endswith("| 1 |\n<!-- /speed files -->\n\nHow to read it.\n")
    assert "old" not in text
    bench.write("speed start", "python benchmarks/speed.py start", "0.1 s\n", 2.0, path)
    assert path.read_text(encoding="utf-8").endswith("```text\n0.1 s\n```\n<!-- /speed start -->\n")


def test_a_suite_runs_what_is_asked_for_and_says_what_is_broken(bench, capsys):
    suite = bench.Suite("benchmarks/some.py", "Some.")

    @suite.experiment("first", runs=2)
    def first(*, runs: int = 1000, only: list[str] = ("a", "b"), is_fast: bool = False) -> bool:
        """Count 5 % of them."""
        print(runs, *only, is_fast)
        return runs < 100

    @suite.experiment("_inner", is_hidden=True)
    def inner(*, path: Path | None = None) -> None:
        print("inside", path)

    assert suite.main(["first", "--runs", "1e2"]) == 1
    assert suite.main(["first", "--runs", "1e2", "--quick"]) == 0  # few runs break promises by luck
    assert suite.main(["first", "--quick"]) == 0
    assert suite.main(["--quick"]) == 0
    assert suite.main(["first", "--quick", "--only", "c", "--is-fast", "--runs", "3"]) == 0
    assert suite.main(["_inner", "--path", "x"]) == 0
    shown = [line for line in capsys.readouterr().out.splitlines() if line and not line.startswith("#")]
    assert shown == ["100 a b False", "100 a b False", "2 a b False", "2 a b False", "3 c True", "inside x"]
    assert "_inner" not in suite.parser().format_help()


# -- the quality of what is learned -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quality():
    pytest.importorskip("torch")
    return loaded("learning")


def beside(log, ours, logistic, forest, fit=1.0):
    """Two seeds of a log; the logistic regression takes 2 s and the forest 3 s."""
    return [
        {"log": log, "seed": seed, "actions": 10, "rows": 100, "logging": 0.5, "greedy": ours + 0.1 * seed,
         "chosen": "mlp", "fit_seconds": fit, "seconds": 30.0, "logistic": logistic + 0.1 * seed,
         "logistic_seconds": 2.0, "forest": forest + 0.1 * seed, "forest_seconds": 3.0}
        for seed in range(2)
    ]  # fmt: skip


def test_the_difference_is_paired_and_from_the_best_peer(quality):
    found = quality.Beside(beside("digits", 0.80, 0.70, 0.82))
    assert found.best == "forest"
    assert found.gap == pytest.approx(-0.02)
    assert found.error == pytest.approx(0, abs=1e-12)  # seeds differ, but all learners by the same
    assert found.fastest == "forest"  # the logistic regression is faster, and not as good


def test_a_log_far_behind_or_slower_than_an_equal_breaks_a_promise(quality, capsys):
    logs = [beside("digits", 0.80, 0.795, 0.70), beside("letter", 0.90, 0.80, 0.80), beside("cp20", 0.70, 0.60, 0.60)]
    assert quality.report_quality(logs) == []
    assert "within 0.01 of the best peer on 3 of 3, ahead on 3 of 3" in capsys.readouterr().out
    logs[0] = beside("digits", 0.80, 0.795, 0.70, fit=2.5)
    assert quality.report_quality(logs) == ["digits: the fit takes 2.50 s, IPW-logistic 2.00"]
    logs[1] = beside("letter", 0.78, 0.80, 0.70, fit=0.1)
    logs[2] = beside("cp20", 0.595, 0.60, 0.60)
    assert quality.report_quality(logs[1:]) == ["within 0.01 of the best peer on 1 of 2 only", "ahead on 0 of 2 only"]


def test_a_log_without_peers_does_not_count_as_shown(quality):
    without = [
        {key: row[key] for key in row if "logistic" not in key and "forest" not in key}
        for row in beside("letter", 0.9, 0, 0)
    ]
    found = quality.report_quality([beside("digits", 0.80, 0.70, 0.70), without])
    assert found == ["letter: no peer was measured on all of its seeds"]


def hard(log, handed_out, folds, verdict="ok", logging=0.8):
    return {
        "log": log, "seed": 0, "logging": logging, "greedy": handed_out, "handed_out": handed_out, "chosen": "mlp",
        "kind": "learned", "seconds": 30.0, "reported": 0.85, "lower": 0.82, "upper": 0.88, "folds": folds,
        "verdict": verdict,
    }  # fmt: skip


def test_a_policy_below_logging_breaks_a_promise_and_amounts_have_their_own_scale(quality):
    assert quality.report_hard([[hard("base", 0.791, 0.85)], [hard("revenue", 11.9, 0.85, logging=12.0)]]) == []
    broken = quality.report_hard([[hard("base", 0.789, 0.85)], [hard("revenue", 11.8, 0.85, logging=12.0)]])
    assert broken == [
        "base seed 0: 0.789 where logging earned 0.800", "revenue seed 0: 11.800 where logging earned 12.000",
    ]  # fmt: skip


def test_a_missed_truth_counts_unless_the_verdict_says_no(quality):
    assert quality.report_hard([[hard("base", 0.85, 0.7)]]) == ["0 of 1 reported intervals cover"]
    assert quality.report_hard([[hard("base", 0.85, 0.7, verdict="not identified")]]) == []
