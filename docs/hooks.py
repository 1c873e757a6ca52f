"""What the pages show and no page holds: formulas as MathML, which browsers draw by themselves, a log's parts, and the commands."""

import ast
import html
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import typer
from latex2mathml.converter import convert
from mkdocs.structure.pages import Page

from counterpoise.cli.app import app
from counterpoise.cli.settings import Command

FENCE = re.compile(r"^```.*?^```", flags=re.S | re.M)
DISPLAY = re.compile(r"\$\$(.+?)\$\$", flags=re.S)
INLINE = re.compile(r"(?<![\\$\w`])\$([^$`\n]+?(?:\n[^$`\n]+?)?)\$(?![\w`])")
DOCSTRING = re.compile(r"<p>\.\. math:: (.+?)</p>", flags=re.S)

PARTS = Path(__file__).parents[1] / "src" / "counterpoise" / "log" / "parts.py"

FEW = 3  # options that are shown even where they matter to few

formulas: list[str] = []


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Put formulas aside before Markdown sees them, and name files that the site lacks; code stays as it is."""
    code: list[str] = []

    def keep(match: re.Match[str]) -> str:
        code.append(match[0])
        return f"\x02code{len(code) - 1}\x03"

    for mark, made in (("{{ parts }}", parts), ("{{ commands }}", commands)):
        if mark in markdown:
            markdown = markdown.replace(mark, made())
    text = outside(page).sub(r"`\1` in the repository", FENCE.sub(keep, markdown))
    text = DISPLAY.sub(lambda match: f'<div class="formula" tabindex="0">{aside(match[1], "block")}</div>', text)
    text = INLINE.sub(lambda match: aside(match[1], "inline"), text)
    return re.sub("\x02code(\\d+)\x03", lambda match: code[int(match[1])], text)


def on_page_content(content: str, **_: object) -> str:
    """Put them back as MathML, and those of docstrings too."""
    content = re.sub(r"formula(\d+)x", lambda match: formulas[int(match[1])], content)
    return DOCSTRING.sub(
        lambda match: f'<div class="formula" tabindex="0">{mathml(html.unescape(match[1]), "block")}</div>', content
    )


def on_post_page(output: str, **_: object) -> str:
    """Names for the theme's own controls that have none."""
    for control, name in (
        ('role="dialog"', "Search"),
        ('data-md-toggle="search"', "Search"),
        ('data-md-toggle="drawer"', "Menu"),
    ):
        output = output.replace(control, f'{control} aria-label="{name}"')
    return output


def outside(page: Page) -> re.Pattern[str]:
    """Links from a page to files of the repository, which the site does not hold."""
    up = "../" * (page.file.src_uri.count("/") + 1)
    return re.compile(rf"\[([^\]]+)\]\({re.escape(up)}[^)\s]+\)")


def parts() -> str:
    """The parts of a log as a table, read off the class that every signature is made from."""
    classes = [node for node in ast.parse(PARTS.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]
    rows = ["| part | type | what it is |", "|---|---|---|"]
    for field in (field for node in classes if node.name.endswith("LogFields") for field in node.body):
        match field:
            case ast.AnnAssign(ast.Name(name), ast.Subscript(slice=ast.Tuple([kind, ast.Call(args=[sentence, *_])]))):
                rows.append(f"| `{name}` | `{ast.unparse(kind)}` | {ast.literal_eval(sentence)} |")
    return "\n".join(rows)


def commands() -> str:
    """Every command in the words of its own help: a sentence, examples, and its options in the same groups."""
    root = typer.main.get_command(app)
    context = root.make_context("counterpoise", ["simulate"], resilient_parsing=True)
    shared = tables({"Before a command": options(root, context)["Options"]})
    return "\n".join([*unfolded(overview(root)), *unfolded(shared), *sections(root, context)])


def overview(group: Any, above: str = "") -> Iterator[str]:
    """The commands of a group, each with its sentence and a link to the rest."""
    yield from ("| command | what it does |", "|---|---|")
    for name, command in visible(group):
        yield f"| [`{above}{name}`](#{anchor(above + name)}) | {prose(said(command)[0])} |"
    yield ""


def sections(group: Any, context: Any, above: str = "") -> Iterator[str]:
    """A section for every command of a group; one that is a group itself is followed by its own."""
    for name, command in visible(group):
        full, inner = above + name, type(context)(command, info_name=name, parent=context)
        yield from (f"{'####' if above else '###'} {full} {{ #{anchor(full)} }}", "")
        if hasattr(command, "commands"):
            yield from (
                prose(said(command)[0]),
                "",
                *unfolded(overview(command, f"{full} ")),
                *sections(command, inner, f"{full} "),
            )
        else:
            yield from section(command, inner, full)


def section(command: Any, context: Any, name: str) -> Iterator[str]:
    """What help prints about a command, for a page: what few need is folded."""
    usage = " ".join(command.collect_usage_pieces(context)).replace("{", "").replace("}", "")
    yield from (f"`counterpoise {name} {usage}`", "")
    for paragraph in said(command):
        if paragraph.startswith("\b\n"):
            lines = re.sub(r"Examples?:\n", "", paragraph.removeprefix("\b\n"))
            yield from ("```sh", dedent(lines).strip("\n"), "```", "")
        else:
            yield from (prose(paragraph), "")
    groups = options(command, context)
    folded = {title: groups.pop(title) for title in list(groups) if title.startswith(("State", "Advanced", "Settings"))}
    count = sum(map(len, folded.values()))
    if count <= FEW:
        yield from unfolded(tables(groups | folded))
        return
    yield from unfolded(tables(groups))
    yield from ('<details class="options" markdown="1">', f"<summary>{count} more options</summary>", "")
    yield from (*tables(folded), "</details>", "")


def unfolded(lines: Iterable[str]) -> Iterator[str]:
    """Tables of options, which the style sheet gives columns of equal width."""
    yield from ('<div class="options" markdown="1">', "", *lines, "</div>", "")


def visible(group: Any) -> Iterator[tuple[str, Any]]:
    """The commands that a group's help lists, by their names."""
    return ((name, command) for name, command in group.commands.items() if not command.hidden)


def anchor(name: str) -> str:
    """Where a command's section is on the page."""
    return name.replace(" ", "-")


def said(command: Any) -> list[str]:
    """The paragraphs of a command's help; those that begin with a backspace are to stay as they are."""
    return dedent(command.help).strip().split("\n\n")


def options(command: Any, context: Any) -> dict[str, list[tuple[str, str]]]:
    """What a command takes, in the groups that its help has: as it is typed, and what that means."""
    if isinstance(command, Command):
        return command.panels(context)
    groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for param in command.get_params(context):
        record = param.get_help_record(context)
        if record is not None:
            option, sentence = record
            title = "Arguments" if param.param_type_name == "argument" else "Options"
            groups[title].append((option.split(" <")[0], sentence))  # without the type of Python's that Typer may add
    return {title: group for title, group in groups.items() if group}


def tables(groups: dict[str, list[tuple[str, str]]]) -> Iterator[str]:
    """A table for every group."""
    for title, records in groups.items():
        yield from (f"| {title} | what it does |", "|---|---|")
        yield from (f"| `{option}` | {prose(sentence)} |" for option, sentence in records)
        yield ""


def prose(text: str) -> str:
    """Plain text as Markdown, in one line, with options as code."""
    signs = {"&": "&amp;", "<": "&lt;", **{sign: f"\\{sign}" for sign in "\\*_[]|$"}}
    code = re.compile(r"`[^`]+`|(?<![\w-])--[a-z][a-z-]*[a-z]|.")
    words = (
        word if word[0] == "`" else f"`{word}`" if word[:2] == "--" else signs.get(word, word)
        for word in code.findall(" ".join(text.split()))
    )
    return "".join(words)


def aside(latex: str, display: str) -> str:
    """A word that stands for a formula."""
    formulas.append(mathml(latex, display))
    return f"formula{len(formulas) - 1}x"


def mathml(latex: str, display: str) -> str:
    """LaTeX as MathML."""
    return convert(" ".join(latex.split()), display=display)
