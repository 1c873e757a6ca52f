"""Files are written whole or not at all, and only over regular files."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import invoke
from messages import refuses

import counterpoise as cp
from counterpoise import whole_files
from counterpoise.errors import CounterpoiseError, LogError, MomentsError
from counterpoise.report import write_report
from counterpoise.whole_files import whole_file


def report(path: Path) -> None:
    write_report(cp.evaluate(reward=[1, 0, 1], propensity=[0.5] * 3, target=[0.5, 0.4, 0.6]), path)


def policy(path: Path) -> None:
    pytest.importorskip("torch")
    from counterpoise import learn

    learn.save_policy(learn.LinearSoftmax(2, 3), path)


def text(path: Path) -> None:
    with whole_file(path) as part:
        part.write_text("new")


def onnx(path: Path) -> None:
    pytest.importorskip("onnx")
    from counterpoise import learn

    learn.export_onnx(learn.LinearSoftmax(2, 3), path)


def figure(path: Path) -> None:
    from paper.result_file import write_atomically

    write_atomically(path, "new")


def simulated(path: Path) -> None:
    assert invoke("simulate", path, "--rows", 10, "--force").exit_code == 0


WRITERS = pytest.mark.parametrize("write", [report, policy, text])


@pytest.mark.parametrize("write", [report, policy, text, onnx, simulated, figure])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_is_replaced_and_what_it_leads_to_is_left_alone(write, is_there, tmp_path):
    file, link = tmp_path / "file", tmp_path / "link.csv"
    if is_there:
        file.write_text("old")
        file.chmod(0o600)
    link.symlink_to(file)
    write(link)
    assert link.is_file()
    assert not link.is_symlink()
    assert (file.read_text() if file.exists() else None) == ("old" if is_there else None)
    assert {path for path in tmp_path.iterdir() if path != file} == {link}


def test_a_file_keeps_its_permissions(tmp_path):
    file = tmp_path / "file"
    file.write_text("old")
    file.chmod(0o640)
    text(file)
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("new", 0o640)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_state_is_not_written_through_a_link(is_there, tmp_path):
    """Nor put in the place of the link, which would make two states of one."""
    file, link = tmp_path / "file.json", tmp_path / "state.json"
    log = {"reward": [1, 0, 1], "propensity": [0.5] * 3, "target": [0.5, 0.4, 0.6]}
    if is_there:
        cp.evaluate(**log, state=file, batch="one")
    before = file.read_bytes() if is_there else None
    link.symlink_to(file)
    with refuses(MomentsError):
        cp.evaluate(**log, state=link, batch="two")
    assert link.is_symlink()
    assert (file.read_bytes() if file.exists() else None) == before
    if is_there:  # reading harms nobody
        assert cp.evaluate(state=link).n == 3


@pytest.mark.parametrize("is_there", [True, False])
def test_a_recording_is_not_written_through_a_link(is_there, tmp_path):
    file, link = tmp_path / "file.jsonl", tmp_path / "log.jsonl"
    if is_there:
        file.write_text("")
    link.symlink_to(file)
    with refuses(LogError):
        cp.record(link, action="red", policy="new", propensity=0.5)
    assert file.exists() == is_there
    assert not is_there or file.read_text() == ""


@WRITERS
def test_a_pipe_is_not_replaced(write, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises((CounterpoiseError, OSError), match="not a regular file"):
        write(pipe)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


@WRITERS
def test_a_device_is_not_replaced(write, tmp_path):
    device = tmp_path / "null"
    device.symlink_to(os.devnull)
    with pytest.raises((CounterpoiseError, OSError), match="not a regular file"):
        write(device)
    assert device.is_symlink()
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    file = tmp_path / "file"
    file.write_text("old")

    def fail() -> None:
        with whole_file(file) as part:
            part.write_text("half of the n")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


WAITING = """
import sys, time
from counterpoise.whole_files import whole_file
with whole_file(sys.argv[1]) as part:
    print(part, flush=True)
    time.sleep(60)
"""


def writer(file: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that is writing a file, and its part of it."""
    process = subprocess.Popen([sys.executable, "-c", WAITING, str(file)], stdout=subprocess.PIPE, text=True)
    return process, Path(process.stdout.readline().strip())


def test_what_a_killed_writer_left_is_removed_by_the_next_one_and_never_what_is_being_written(tmp_path):
    file, other = tmp_path / "state.json", tmp_path / "another.json"
    (dead, left), (alive, live), (elsewhere, others) = writer(file), writer(file), writer(other)
    try:
        for process in (dead, elsewhere):
            process.send_signal(signal.SIGKILL)
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        text(file)  # a killed process whose parent has not looked is dead as well
        assert sorted(tmp_path.iterdir()) == sorted([file, live, others])
        dead.wait()
        text(file)
        assert sorted(tmp_path.iterdir()) == sorted([file, live, others])
    finally:
        for process in (dead, alive, elsewhere):
            process.kill()
            process.communicate()
    text(file)
    assert sorted(tmp_path.iterdir()) == sorted([file, others])
    assert left != live


def test_what_another_machine_is_writing_stays_for_a_week(tmp_path, monkeypatch):
    file = tmp_path / "state.json"
    process, part = writer(file)
    process.kill()
    process.communicate()
    monkeypatch.setattr(whole_files, "_machine", lambda: "0123abcd")
    own = tmp_path / ".state.mine.json"  # somebody's own file
    own.touch()
    text(file)
    assert part.exists()
    os.utime(part, (time.time() - 8 * 24 * 3600,) * 2)
    text(file)
    assert sorted(tmp_path.iterdir()) == sorted([file, own])


def test_a_number_that_another_process_has_by_now_is_not_that_of_the_writer(tmp_path):
    file = tmp_path / "state.json"
    with whole_files.whole_file(file) as part:
        machine, process, begun, _ = part.name.removeprefix(".state.").split("-")
    mine, old = (tmp_path / f".state.{machine}-{process}-{when}-0123456789ab.json" for when in (begun, "1"))
    mine.touch()
    old.touch()
    text(file)
    assert sorted(tmp_path.iterdir()) == sorted([file, mine])
