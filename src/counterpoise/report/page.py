"""`write_report`: puts the sections together into one HTML file, written completely or not at all."""

from __future__ import annotations

import base64
import hashlib
import os
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from string import Template

from counterpoise import __version__
from counterpoise.errors import OptionError
from counterpoise.evaluation.reading import TARGETS_DRAWN, Reading, read
from counterpoise.evaluation.result import Result
from counterpoise.report import sections, weights
from counterpoise.report.markup import Safe, el, join, text
from counterpoise.report.profile import profile
from counterpoise.whole_files import whole_file


def write_report(
    result: Result,
    path: str | os.PathLike[str],
    *,
    command: str | None = None,
    title: str | None = None,
    rows: bool = True,
) -> Path:
    """Write a result as one HTML file that opens anywhere, even without a network, and return its path.

    Parameters
    ----------
    result
        What `evaluate` or `compare` returned.
    path
        Where to write it. The file appears once it is complete; a failure leaves what was there before.
    command
        How the result was made, shown to readers who want to make it again.
    title
        The heading.
    rows
        Whether to read the log once more, for a histogram of the weights and the estimate as rows come in. A result that comes from
        stored moments has no log to read.

    Examples
    --------
    >>> import counterpoise as cp, tempfile
    >>> result = cp.evaluate(reward=[1, 0, 1, 1], propensity=[0.5, 0.5, 0.25, 0.5], target=[0.5, 0.25, 0.5, 0.25])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report(result, folder + "/report.html").name
    'report.html'
    """
    return _write(Path(path), render(result, command=command, title=title, rows=rows))


def render(result: Result, *, command: str | None = None, title: str | None = None, rows: bool = True) -> str:
    """The report as text; the arguments are those of `write_report`."""
    if not isinstance(result, Result):
        raise OptionError(f"a report needs a result of evaluate or compare; found {type(result).__name__}.")
    reading = read(result)
    profiles = {}
    if rows and result.question is not None and result.question.weight.needs_propensity:
        drawn = reading.foremost(TARGETS_DRAWN, result.moments.targets)
        profiles = profile(result.question, drawn, rows=result.n, level=result.level)
    shown = [
        ("estimates", "Difference" if reading.is_difference else "Estimates", sections.estimates(reading)),
        ("lift", "Lift over what ran", sections.lift(reading)),
        ("segments", "Segments", sections.segments(reading)),
        ("weights", "Weights, and where the estimate comes from", weights.weights(reading, profiles)),
        ("convergence", "As rows come in", weights.convergence(reading, profiles)),
        ("glossary", "What the numbers mean", sections.words(reading)),
        ("reproduce", "How to reproduce this", sections.reproduce(reading, command, __version__)),
    ]
    return _assemble(reading, [part for part in shown if part[2]], title or "Off-policy evaluation", __version__)


def _assemble(reading: Reading, parts: list[tuple[str, str, Safe]], title: str, version: str) -> str:
    folder = files("counterpoise.report")
    style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    now = datetime.now(UTC)
    return Template(folder.joinpath("page.html").read_text(encoding="utf-8")).substitute(
        title=text(title),
        version=text(version),
        date=el("time", f"{now:%Y-%m-%d %H:%M} UTC", datetime=f"{now:%Y-%m-%dT%H:%MZ}"),
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        answer=sections.head(reading),
        contents=join(el("li", el("a", words, href=f"#{key}")) for key, words, _ in parts),
        sections=join(
            el("section", el("h2", words, id=f"{key}-title"), body, id=key, aria_labelledby=f"{key}-title")
            for key, words, body in parts
        ),
    )


def _hash(code: str) -> str:
    """For the page's own security policy: no other script or style runs, whatever a log contains."""
    return "sha256-" + base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()


def _write(path: Path, page: str) -> Path:
    where = path.resolve()
    if where.is_dir() or not where.parent.is_dir():
        what = "is a folder" if where.is_dir() else "is in a folder that does not exist"
        raise OptionError(
            f"{str(path)!r} {what}.", do="Give the name of a file in an existing folder, such as report.html."
        )
    try:
        with whole_file(where) as part:
            part.write_text(page, encoding="utf-8", newline="\n")
    except OSError as error:
        what = f"cannot write {str(path)!r}: {error.strerror or error}."
        raise OptionError(what, do="Name a file in a folder that you can write to.") from error
    return path
