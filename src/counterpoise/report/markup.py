"""Makes HTML in which every string is escaped unless it was made here, and whole pages of it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from counterpoise import __version__
from counterpoise.display import Name, Phrase
from counterpoise.errors import OptionError
from counterpoise.whole_files import whole_file

VOID = {"meta", "input", "br", "path", "line", "rect", "circle"}  # SVG's are closed too, which HTML allows there
# Control characters are not allowed in HTML; Unicode has a picture of each.
PICTURES = {code: 0x2400 + code for code in range(32)} | {127: 0x2421} | dict.fromkeys(range(128, 160), 0xFFFD)


class Safe(str):
    """HTML that needs no further escaping."""

    __slots__ = ()


def text(value: object) -> Safe:
    """Anything as HTML text, which is safe in an attribute, too.

    >>> text('<b title="x">')
    '&lt;b title=&quot;x&quot;&gt;'
    """
    if isinstance(value, Safe):
        return value
    clean = str(value).translate(PICTURES).encode("utf-8", "replace").decode("utf-8")
    return Safe(escape(clean, quote=True))


def join(parts: Iterable[object]) -> Safe:
    """The parts one after another, escaped where they need it."""
    return Safe("".join(text(part) for part in parts))


def el(tag: str, *children: object, **attributes: Any) -> Safe:
    """An element; `class_` means class and `data_value` means data-value, None drops an attribute, and True writes just its name.

    >>> el("td", "a < b", class_="number", data_value=2)
    '<td class="number" data-value="2">a &lt; b</td>'
    """
    written = ""
    for name, value in attributes.items():
        if value is not None and value is not False:
            said = text(f"{value:.6g}" if isinstance(value, float) else value)
            written += f" {name.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{said}"')
    if tag in VOID:
        return Safe(f"<{tag}{written}/>")
    return Safe(f"<{tag}{written}>{join(children)}</{tag}>")


def name_of(value: object, limit: int = 120) -> Safe:
    """A name from the log, isolated from the text direction around it, and shortened if it is very long."""
    whole = str(value)
    if len(whole) <= limit:
        return el("bdi", whole)
    return el("bdi", whole[: limit - 1] + "…", title=whole[:500])


NAMES = 60  # characters of a name in a sentence


def phrase(*parts: object) -> Safe:
    """A sentence or its parts, with names set apart, and cut as they are in print."""
    flat = (piece for part in parts for piece in (part.parts if isinstance(part, Phrase) else [part]))
    return join(name_of(part.value, NAMES) if isinstance(part, Name) else part for part in flat)


def left_out(count: int, shown: int, what: str, which: str, how: str = "shown") -> Safe:
    """A note that the result has more than is shown here, or nothing if it hasn't.

    >>> left_out(20, 8, "targets", "highest estimates")
    '<p class="note">Of 20 targets, only the 8 with the highest estimates are shown here; the result itself has them all.</p>'
    """
    if count <= shown:
        return Safe("")
    said = f"Of {count:,} {what}, only the {shown:,} with the {which} are {how} here; the result itself has them all."
    return el("p", said, class_="note")


# -- A page of them --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Section:
    """A folded section of the page: its address, its heading, its answer in a few words, and its content."""

    key: str
    words: str | Safe
    body: Safe
    answer: str | Safe = ""


def folds(parts: Sequence[Section], heading: str = "h2") -> Safe:
    """Sections that open when their headings are clicked; those without content are left out."""
    return join(
        el(
            "details",
            el("summary", el(heading, part.words), " ", el("span", part.answer, class_="gist") if part.answer else ""),
            el("div", part.body, class_="inside"),
            id=part.key,
            class_="fold",
        )
        for part in parts
        if part.body
    )


def assemble(first: Safe, parts: Sequence[Section], title: str, summary: str, *, is_shown: bool = False) -> str:
    """One page: its first screen, and what is folded below it; a title that is shown stands above both.

    The summary, a sentence, is what others show of a link to the page.
    """
    folder = files("counterpoise.report")
    style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    now = datetime.now(UTC)
    return Template(folder.joinpath("page.html").read_text(encoding="utf-8")).substitute(
        title=text(title),
        summary=text(summary),
        heading=el("p", el("bdi", title), class_="title") if is_shown else "",
        version=text(__version__),
        date=el("time", f"{now:%Y-%m-%d %H:%M} UTC", datetime=f"{now:%Y-%m-%dT%H:%MZ}"),
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        first=first,
        sections=folds(parts),
    )


def _hash(code: str) -> str:
    """For the page's own security policy: no other script or style runs, whatever a log contains."""
    return "sha256-" + base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()


def write(path: Path, page: str) -> Path:
    """Write a page, completely or not at all."""
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else "is in a folder that does not exist"
        raise OptionError(
            f"{str(path)!r} {what}.", do="Give the name of a file in an existing folder, such as report.html."
        )
    try:
        with whole_file(path) as part:
            part.write_text(page, encoding="utf-8", newline="\n")
    except OSError as error:
        what = f"cannot write {str(path)!r}: {error.strerror or error}."
        raise OptionError(what, do="Name a file in a folder that you can write to.") from error
    return path
