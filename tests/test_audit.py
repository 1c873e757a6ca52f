"""The audit counts what it tries, and sees a loss when there is one."""

import importlib.util
import random
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "audit.py"
pytestmark = [pytest.mark.once, pytest.mark.skipif(sys.platform != "linux", reason="forks and signals are Linux's")]


@pytest.fixture(scope="module")
def audit():
    spec = importlib.util.spec_from_file_location("audit", SCRIPT)
    sys.modules["audit"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["audit"]


def test_it_ends_in_a_table():
    """Two jobs at once on one state: real commands, few of them."""
    found = subprocess.run(
        [sys.executable, str(SCRIPT), "--trials", "4", "--only", "at-once"],
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    table = found.stdout.split()
    assert table[:3] == ["tried", "survived", "lost"]
    assert table[table.index("all") + 1 : table.index("all") + 4] == ["4", "4", "0"]


def test_a_half_written_file_is_a_loss(audit, tmp_path):
    writer = audit.Writer("simulate", ".csv", None, lambda data: data.count(b"\n") == 3, None)
    out, stopped = tmp_path / "log.csv", audit.Ended(143, "", "Interrupted", 0.1)
    assert audit.judge_file(writer, out, None, stopped) == ""
    out.write_text("a\n1\n2\n")
    assert audit.judge_file(writer, out, None, audit.Ended(0, "", "", 0.1)) == ""
    assert audit.judge_file(writer, out, b"a\n1\n2\n", stopped) == ""
    out.write_text("a\n1\n")
    assert "neither the old file nor a whole new one" in audit.judge_file(writer, out, b"old", stopped)
    out.unlink()
    (tmp_path / ".log.3f.csv").write_text("a\n")
    assert "left behind .log.3f.csv" in audit.judge_file(writer, out, None, stopped)


@pytest.mark.parametrize(
    ("code", "said", "is_fine"),
    [(0, "", True), (2, "LogError: no file", True), (2, "", False), (1, "Traceback", False), (70, "crashed", False),
     (2, "Traceback\nLogError", False), (-11, "", False), (None, "", False)],
)  # fmt: skip
def test_only_answers_and_refusals_in_words_survive(audit, code, said, is_fine):
    ended = audit.Ended(code, "", said, 0.1)
    assert (ended.is_answer or ended.is_refusal) == is_fine


def test_a_loss_is_counted_and_its_file_kept(audit, tmp_path):
    found = audit.Audit(tmp_path, 10, 0, tmp_path / "kept")
    (tmp_path / "state.json").write_text("{")
    found.count("damaged state, a new day", "")
    found.count("damaged state, a new day", "another answer", tmp_path / "state.json")
    assert found.table().split()[-3:] == ["2", "1", "1"]
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["damaged-state-a-new-day-2.json"]


def test_the_same_dice_do_the_same_damage(audit):
    data = bytes(range(256)) * 8
    once, again = ([audit.damaged(data, random.Random(k)) for k in range(40)] for _ in range(2))
    assert once == again
    assert {accident for accident, _ in once} == {"one bit", "some bits", "cut", "scrambled"}
