"""Files are written whole or not at all, and only over regular files."""

import os
import stat
from pathlib import Path

import pytest

import counterpoise as cp
from counterpoise.errors import CounterpoiseError
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


WRITERS = pytest.mark.parametrize("write", [report, policy, text])


@WRITERS
def test_a_link_stays_a_link_and_its_file_is_written(write, tmp_path):
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to(file)
    write(link)
    assert link.is_symlink()
    assert file.read_bytes() != b"old"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert sorted(tmp_path.iterdir()) == [file, link]


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
