"""How a command runs and ends: errors in one line, Ctrl-C at once, files written whole or not at all."""

from __future__ import annotations

import errno
import os
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial, wraps
from inspect import signature
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar

import typer

from counterpoise.cli.wording import options_are, written
from counterpoise.errors import (
    CounterpoiseError,
    OldNameWarning,
    OptionError,
    RecordWarning,
    StateWarning,
    first_line,
    masked,
    render,
)
from counterpoise.readers.progress import told_in_lines
from counterpoise.whole_files import unfinished, whole_file

P = ParamSpec("P")
T = TypeVar("T")

INTERRUPTED = 130  # as shells count it: 128 + SIGINT
CRASHED = 70  # EX_SOFTWARE of sysexits.h: not the user's mistake but ours
TRACEBACK = "COUNTERPOISE_TRACEBACK"
MESSAGE = "Interrupted; nothing was left half-written."
STOPPING = "\nStopping with what there is so far; press Ctrl-C again to end at once.\n"
SAID = (StateWarning, RecordWarning, OldNameWarning)  # warnings that are printed as sentences
PATIENCE = 0.5  # seconds that native code has to notice Ctrl-C


def without_traceback(command: Callable[P, T]) -> Callable[P, T]:
    """Print a refusal, of ours or of a disk, in one line and exit 2 (4 if a state has the rows already); 130 on Ctrl-C, 70 for a crash."""

    options = signature(command).parameters

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with options_are(options), told_in_lines():
            return told(*args, **kwargs)

    def told(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            with warnings.catch_warnings():
                for ours in SAID:
                    warnings.simplefilter("always", ours)
                warnings.showwarning = partial(_show_warning, warnings.showwarning)
                result = command(*args, **{name: _as_text(name, value) for name, value in kwargs.items()})
            sys.stdout.flush()  # here, while a full disk can still be reported
            return result
        except CounterpoiseError as error:
            print(f"{type(error).__name__}: {written(error)}", file=sys.stderr)
            raise typer.Exit(error.exit_code) from None
        except BrokenPipeError:
            raise  # the reader of our pipe has seen enough
        except OSError as error:
            what = "the output" if error.filename is None else masked(repr(error.filename))
            print(f"{type(error).__name__}: cannot read or write {what}: {error.strerror or error}.", file=sys.stderr)
            _forget_output()
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            print(MESSAGE, file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None
        except ModuleNotFoundError as error:
            if str(error.name).startswith("counterpoise"):
                raise typer.Exit(_report_crash(error)) from None
            print(f"OptionError: this needs the package {error.name!r}: pip install it.", file=sys.stderr)
            raise typer.Exit(2) from None
        except (typer.Exit, typer.Abort, typer.BadParameter, SystemExit):
            raise
        except BaseException as error:  # polars' panics are not ordinary exceptions
            raise typer.Exit(_report_crash(error)) from None

    return run


def _show_warning(usual: Callable[..., None], message: Warning | str, category: type[Warning], *where: Any) -> None:
    """A warning of ours as a sentence, without the line of code that raised it."""
    if issubclass(category, SAID):
        print(f"Warning: {message}", file=sys.stderr)
    else:
        usual(message, category, *where)


def _as_text(name: str, value: Any) -> Any:
    """An argument as it was typed, in UTF-8, where the locale knows no more than ASCII; the names of files stay as Python has them."""
    if isinstance(value, str) and name != "log" and any("\udc80" <= sign <= "\udcff" for sign in value):
        return os.fsencode(value).decode("utf-8", "surrogateescape")
    return [_as_text(name, item) for item in value] if isinstance(value, list) else value


def _report_crash(error: BaseException) -> int:
    """Say that this is our bug, not the user's mistake, and how to see more."""
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error, file=sys.stderr)
    advice = "" if os.environ.get(TRACEBACK) else f" with the traceback, which {TRACEBACK}=1 shows"
    print(
        f"counterpoise crashed ({type(error).__name__}: {render(first_line(error))}). This is a bug in counterpoise: please report "
        f"it{advice}.",
        file=sys.stderr,
    )
    return CRASHED


def open_streams() -> None:
    """Give the standard streams that are closed a place that takes everything, before a file of ours takes their number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 – as long as the process lives


def _forget_output() -> None:
    """Throw away what standard output would not take: the interpreter would try again at its end, and fail again."""
    with suppress(OSError, ValueError):  # a stream without a descriptor has nothing to throw away
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def ends_at_once(command: Callable[P, T], *, on_second: bool = False) -> Callable[P, T]:
    """`without_traceback`, and Ctrl-C or a scheduler's SIGTERM ends the command within a second whatever it is doing.

    With `on_second`, only a second Ctrl-C does: the first is for the command, which may have something to hand out.
    """

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            with _impatient(on_second):
                return command(*args, **kwargs)
        except KeyboardInterrupt:
            _leave()  # not by way of the interpreter's own end, which waits for queries that are still running

    return without_traceback(run)


_leaving = threading.Lock()


def _leave(sign: int = signal.SIGINT) -> NoReturn:
    """Remove what is half-written, say so once, and end the process; the main thread and the one that watches may both come here."""
    if not _leaving.acquire(timeout=1.0):  # the other is about to end the process, or this is its own second signal
        os._exit(128 + sign)
    for part in tuple(unfinished):
        with suppress(OSError):
            part.unlink(missing_ok=True)
    if os.isatty(2):
        os.write(2, b"\r\x1b[2K\x1b[?25h")  # a progress bar that cannot be stopped any more: wipe it, show the cursor
    os.write(2, MESSAGE.encode() + b"\n")
    os._exit(128 + sign)


def check_free(path: Path, *, such_as: str, force: bool = True, flag: str = "--force") -> None:
    """Make sure, before work that may take hours, that a file can be written; an existing one only with `force`."""
    problem = "cannot write " + repr(str(path))
    if path.is_dir():
        raise OptionError(f"{problem}: it is a folder.", do=f"Name a file, such as {str(path / such_as)!r}.")
    if not path.parent.is_dir():
        missing = f"there is no folder {str(path.parent)!r}"
        raise OptionError(f"{problem}: {missing}.", do="Create it, or name a file in a folder that exists.")
    if (path.exists() or path.is_symlink()) and not force:
        raise OptionError(f"{problem}: it already exists.", do=f"Name another file, or pass {flag} to replace it.")
    if path.exists() and not path.is_file():
        raise OptionError(f"{problem}: it is not a regular file.", do="Name another one.")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()  # the surest way to know whether we can write there
    except OSError as error:
        advice = "Name a file in a folder that you may write to."
        raise OptionError(f"{problem}: {error.strerror or error}.", do=advice) from error


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """`whole_file`, with an error that says what to do."""
    try:
        with whole_file(path) as part:
            yield part
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        advice = "Make room, or name a file elsewhere" if is_full else "Name a file in a folder that you may write to"
        raise OptionError(f"cannot write {str(path)!r}: {error.strerror or error}. {advice}.") from error


@contextmanager
def _impatient(on_second: bool) -> Iterator[None]:
    """End the process soon after Ctrl-C or SIGTERM even where native code is too busy to notice it.

    Python sees a signal only between its own instructions, and one query over a large log is a single instruction. A thread is
    told at once through the wake-up descriptor; if the main thread has not ended by itself by then, it removes what is
    half-written and ends the process.
    """
    if threading.current_thread() is not threading.main_thread() or os.name != "posix":
        yield
        return
    listen, tell = os.pipe()
    os.set_blocking(tell, False)
    ended = threading.Event()

    def watch() -> None:
        excused = on_second
        while True:
            sent = os.read(listen, 64)
            if ended.is_set() or not sent:
                return
            for sign in {signal.SIGINT, signal.SIGTERM} & set(sent):
                if sign == signal.SIGINT and excused:
                    excused = False
                    os.write(2, STOPPING.encode())
                elif not ended.wait(PATIENCE):
                    _leave(sign)

    before = signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    is_ours = (
        signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )  # if it is ignored, as nohup ignores SIGHUP, there is a reason
    if is_ours:
        signal.signal(signal.SIGTERM, lambda sign, _: _leave(sign))
    try:
        yield
    finally:
        if is_ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ended.set()
        signal.set_wakeup_fd(before)
        os.write(tell, b"\0")
        thread.join()
        os.close(listen)
        os.close(tell)
