"""What the pages show and no page holds: formulas as MathML, which browsers draw by themselves, and the parts of a log with their types."""

import ast
import html
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.structure.pages import Page

FENCE = re.compile(r"^```.*?^```", flags=re.S | re.M)
DISPLAY = re.compile(r"\$\$(.+?)\$\$", flags=re.S)
INLINE = re.compile(r"(?<![\\$\w`])\$([^$`\n]+?(?:\n[^$`\n]+?)?)\$(?![\w`])")
DOCSTRING = re.compile(r"<p>\.\. math:: (.+?)</p>", flags=re.S)

PARTS = Path(__file__).parents[1] / "src" / "counterpoise" / "log" / "parts.py"

formulas: list[str] = []


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Put formulas aside before Markdown sees them, and name files that the site lacks; code stays as it is."""
    code: list[str] = []

    def keep(match: re.Match[str]) -> str:
        code.append(match[0])
        return f"\x02code{len(code) - 1}\x03"

    if "{{ parts }}" in markdown:
        markdown = markdown.replace("{{ parts }}", parts())
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
    for field in next(node for node in classes if node.name == "LogFields").body:
        match field:
            case ast.AnnAssign(ast.Name(name), ast.Subscript(slice=ast.Tuple([kind, ast.Call(args=[sentence, *_])]))):
                rows.append(f"| `{name}` | `{ast.unparse(kind)}` | {ast.literal_eval(sentence)} |")
    return "\n".join(rows)


def aside(latex: str, display: str) -> str:
    """A word that stands for a formula."""
    formulas.append(mathml(latex, display))
    return f"formula{len(formulas) - 1}x"


def mathml(latex: str, display: str) -> str:
    """LaTeX as MathML."""
    return convert(" ".join(latex.split()), display=display)
