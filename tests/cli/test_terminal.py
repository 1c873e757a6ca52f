"""The command line in a real terminal: widths, colours, pipes, Ctrl-C, start-up, help."""

import fcntl
import json
import os
import pty
import re
import resource
import signal
import struct
import subprocess
import sys
import termios
import time
import tomllib
from pathlib import Path

import polars as pl
import pytest
from command_line import COMMAND, invoke, shop
from conftest import sampled
from rich.cells import cell_len

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
NAMES = ["evaluate", "compare", "doctor", "plan", "simulate", "sql"]


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A log with names that do not fit and text that steers terminals."""
    path = tmp_path_factory.mktemp("logs") / "log.parquet"
    labels = {0: "DE", 1: "a very long name of a segment " * 10, 2: "\x1b[31mred\x07 🙂 שלום [bold]"}
    country = pl.Series([labels[k % 3] for k in range(1500)])
    shop(1500).with_columns(country=country, pi_bad=0.0).write_parquet(path)
    return path


def in_terminal(*arguments, columns, **environment):
    """What a command writes to a terminal so many columns wide."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CI")}
    running = subprocess.Popen(
        [*COMMAND, *map(str, arguments)], stdin=slave, stdout=slave, stderr=slave, close_fds=True,
        env=kept | {"TERM": "xterm-256color", "PYTHONUTF8": "1"} | environment,
    )  # fmt: skip
    os.close(slave)
    shown = b""
    while True:
        try:
            more = os.read(master, 65536)
        except OSError:  # what Linux says when the other end is closed
            break
        if not more:
            break
        shown += more
    os.close(master)
    assert running.wait() == 0, shown
    return shown.decode().replace("\r\n", "\n")


def lines_of(shown):
    """What is left on the screen, without escapes and without a bar that was wiped."""
    return [ESCAPE.sub("", line.rpartition("\r")[2]) for line in shown.split("\n")]


COMMANDS = {
    "evaluate": ["evaluate", "LOG", "--segment", "country"],
    "evaluate --all": ["evaluate", "LOG", "--segment", "country", "--all"],
    "compare": ["compare", "LOG", "--segment", "country"],
    "compare --all": ["compare", "LOG", "--segment", "country", "--all"],
    "doctor": ["doctor", "LOG"],
    "plan": ["plan", "LOG", "--target", "pi_new", "--difference", "0.01", "--actions", "2"],
}


def arguments_of(name, log):
    return [log if one == "LOG" else one for one in COMMANDS[name]]


@pytest.mark.once
@pytest.mark.parametrize("name", sampled(COMMANDS, "evaluate --all", "compare", "doctor", "plan"))
@pytest.mark.parametrize("columns", sampled([80, 200], 80))
def test_output_fits_the_terminal(log, name, columns):
    shown = in_terminal(*arguments_of(name, log), columns=columns)
    assert max(map(cell_len, lines_of(shown))) <= columns
    assert "\x07" not in shown
    assert "\x1b[31mred" not in shown
    if name == "evaluate --all":
        numbers = [line for line in lines_of(shown) if " beta_ips  " in line]
        assert len(numbers) == 12  # three targets, the whole log and three segments, and no number cut off
        assert all(len(re.findall(r"[–∞]|\d", line)) >= 4 for line in numbers)
        assert not any("…" in line for line in lines_of(shown))


@pytest.mark.once
def test_bars_need_room_and_a_terminal(log):
    assert "●" in in_terminal("evaluate", log, columns=200)
    assert "●" not in in_terminal("evaluate", log, columns=80)
    assert "●" not in invoke("evaluate", log).stdout


def test_colours_are_for_terminals_that_want_them(log):
    bare = ["evaluate", log, "--target", "pi_new"]
    assert COLOUR.search(in_terminal(*bare, columns=80))
    for refuse in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert not COLOUR.search(in_terminal(*bare, columns=80, **refuse))


@pytest.mark.once
@pytest.mark.parametrize("columns", [{}, {"COLUMNS": "40"}])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_pipe_gets_plain_whole_lines(log, name, columns, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    for variable, value in columns.items():
        monkeypatch.setenv(variable, value)
    found = invoke(*arguments_of(name, log))
    assert found.exit_code == 0, found.output
    assert "\x1b" not in found.stdout
    assert found.stderr == ""
    lines = found.stdout.splitlines()
    assert not any(line != line.rstrip() for line in lines)
    long = [line for line in lines if "a very long name of a segment" in line]
    assert all(line.count("a very long name of a segment") == 10 for line in long)
    if name == "evaluate --all":
        assert sum(bool(re.match(r"pi_new +a very .* beta_ips +\d", line)) for line in lines) == 1
    if name == "plan":
        assert sum(line.startswith("its difference from the logging policy to ± 0.01 (95 %)  ") for line in lines) == 1


@pytest.mark.once
def test_an_ascii_stream_is_no_reason_to_fail(log):
    for arguments in (["evaluate", str(log)], ["doctor", str(log)]):
        subprocess.run(
            [*COMMAND, *arguments], capture_output=True, check=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}
        )


@pytest.mark.once
@pytest.mark.parametrize("arguments", [["evaluate", "LOG"], ["evaluate", "LOG", "--json"], ["doctor", "LOG"], ["sql"]])
def test_a_full_disk_is_said_in_one_line(log, arguments):
    statement = ["sql", "logs", "--dialect", "duckdb", "--reward", "r", "--propensity", "p", "--target", "t"]
    asked = statement if arguments == ["sql"] else [str(log) if one == "LOG" else one for one in arguments]
    with open("/dev/full", "w") as full:
        found = subprocess.run([*COMMAND, *asked], stdout=full, stderr=subprocess.PIPE, text=True)
    said = [line for line in found.stderr.splitlines() if not line.startswith("Guessed")]
    assert (found.returncode, said) == (2, ["OSError: cannot read or write the output: No space left on device."])


@pytest.mark.once
def test_a_reader_that_has_seen_enough_is_no_error(log):
    with subprocess.Popen(
        [*COMMAND, "evaluate", str(log)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        running.stdout.close()
        said = running.stderr.read()
    assert "Traceback" not in said
    assert "cannot" not in said


@pytest.mark.once
def test_json_stays_json_in_a_terminal(log):
    shown = in_terminal(
        "evaluate", log, "--target", "pi_new", "--reward", "click", "--propensity", "p", "--json", columns=80
    )
    text = "\n".join(lines_of(shown))
    assert json.loads(text[text.index("{") :])["n"] == 1500


# -- Ctrl-C ----------------------------------------------------------------------------------------------------------------


def _ctrl_c():
    signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupted(command, ready, folder, sign=signal.SIGINT):
    """Start a command, press Ctrl-C (or send another signal) once it is ready: its exit code, its words, how long it then went on.

    In seconds of the processor: a busy machine takes any time by the clock.
    """
    before = processor_time(resource.RUSAGE_CHILDREN)
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=_ctrl_c, cwd=folder,
    )  # fmt: skip
    deadline = time.monotonic() + 600
    while running.poll() is None and not ready(running) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert running.poll() is None, "it was over before it could be interrupted"
    pressed = processor_time_of(running)
    os.killpg(running.pid, sign)
    out, said = running.communicate(timeout=3600)
    return running.returncode, out + said, processor_time(resource.RUSAGE_CHILDREN) - before - pressed


def processor_time(who):
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def processor_time_of(running):
    times = Path(f"/proc/{running.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.once
def test_ctrl_c_while_a_large_log_is_read_leaves_nothing_behind(tmp_path):
    logs, work = tmp_path / "logs", tmp_path / "work"
    logs.mkdir(), work.mkdir()
    shop(100_000).write_parquet(tmp_path / "one.parquet")
    for k in range(1000):
        (logs / f"{k}.parquet").hardlink_to(tmp_path / "one.parquet")
    reading = re.compile(rb"\0evaluate\0")

    def is_reading(running):  # long after its start, when it has used a second of processor time
        assert reading.search(Path(f"/proc/{running.pid}/cmdline").read_bytes())
        return processor_time_of(running) > 2.5

    state = ["--state", "state.json", "--batch", "today"]  # the files are alike, so that their own keys would be, too
    code, said, seconds = interrupted([*COMMAND, "evaluate", str(logs), *state], is_reading, work)
    assert (code, said.count("Traceback")) == (130, 0)
    assert seconds < 60
    assert list(work.iterdir()) == []


@pytest.mark.once
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_native_code_that_does_not_listen(tmp_path, sign):
    """A file is half-written, and the main thread is deep in a library that never looks at signals."""
    code = """
        import hashlib
        from pathlib import Path
        from counterpoise.cli.running import ends_at_once, writing

        @ends_at_once
        def command():
            with writing(Path("out.csv")) as part:
                part.write_text("half")
                hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000_000)

        command()
    """
    program = [sys.executable, "-c", "\n".join(line[8:] for line in code.splitlines())]

    def is_writing(running):
        return any(file.read_text() == "half" for file in tmp_path.iterdir())

    code, said, seconds = interrupted(program, is_writing, tmp_path, sign)
    assert (code, said.strip()) == (128 + sign, "Interrupted; nothing was left half-written.")
    assert seconds < 120  # left alone, it would go on for longer
    assert list(tmp_path.iterdir()) == []


@pytest.mark.once
def test_a_scheduler_that_ends_a_command_finds_nothing_half_written(tmp_path):
    """SIGTERM is what systemd, Kubernetes and Airflow send."""
    command = [*COMMAND, "simulate", "log.csv", "--rows", "1000000"]
    code, said, _ = interrupted(command, lambda _: any(tmp_path.iterdir()), tmp_path, signal.SIGTERM)
    assert (code, said.strip()) == (143, "Interrupted; nothing was left half-written.")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_fails_half_way_is_not_there(tmp_path):
    from counterpoise.cli.running import writing

    target = tmp_path / "report.html"
    target.write_text("before")
    with pytest.raises(TypeError), writing(target) as part:
        part.write_text("half") + None
    assert target.read_text() == "before"
    with writing(target) as part:
        part.write_text("after")
    assert target.read_text() == "after"
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


# -- Start-up and help -----------------------------------------------------------------------------------------------------


def test_help_imports_nothing_heavy():
    """`counterpoise --help` takes its time from imports; a clock would test the machine."""
    code = (
        "import sys, typer; its_own = set(sys.modules); from counterpoise.cli import app; "
        "heavy = {'polars', 'narwhals', 'scipy', 'numba', 'pyarrow', 'pandas', 'matplotlib', 'rich.table', 'duckdb', 'ibis'}; "
        "print(sorted(heavy & set(sys.modules) - its_own))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("name", NAMES)
def test_every_command_is_listed_and_explained(name):
    assert re.search(rf"^  {name} ", invoke("--help").stdout, flags=re.M)
    shown = invoke(name, "--help")
    assert shown.exit_code == 0
    assert re.search(rf"^      ?counterpoise {name} |^    counterpoise {name} ", shown.stdout, flags=re.M)


def test_the_examples_of_the_help_name_only_options_that_are_there():
    for name in NAMES:
        shown = invoke(name, "--help").stdout
        examples, _, options = shown.partition("Arguments:")
        assert set(re.findall(r"--[a-z-]+", examples)) <= set(re.findall(r"--[a-z-]+", options)) | {"--strict"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_are_given_completions(shell):
    environment = {**os.environ, "_COUNTERPOISE_COMPLETE": f"source_{shell}"}
    found = subprocess.run(
        [Path(sys.executable).parent / "counterpoise"], capture_output=True, text=True, env=environment
    )
    assert found.returncode == 0
    assert "_COUNTERPOISE_COMPLETE" in found.stdout


def test_a_shell_completes_the_names_of_commands():
    environment = {
        **os.environ,
        "_COUNTERPOISE_COMPLETE": "complete_bash",
        "COMP_WORDS": "counterpoise d",
        "COMP_CWORD": "1",
    }
    found = subprocess.run(
        [Path(sys.executable).parent / "counterpoise"], capture_output=True, text=True, env=environment
    )
    assert found.stdout.split() == ["distribution", "doctor"]


def test_the_schema_is_shipped():
    settings = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert "exclude" not in settings["tool"]["hatch"]["build"].get("targets", {}).get("wheel", {})
    from counterpoise.evaluation.showing import schema

    assert schema()["title"] == "counterpoise evaluate --json"


def test_the_version_is_said():
    import counterpoise

    assert invoke("--version").stdout == f"counterpoise {counterpoise.__version__}\n"
