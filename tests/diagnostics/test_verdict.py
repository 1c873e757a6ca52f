"""Verdicts: every caveat has a code that is registered and documented, and a verdict is no better than its caveats."""

import ast
import re
from pathlib import Path

import pytest

from counterpoise.diagnostics import CODES, Caveat, Verdict, verdict

ROOT = Path(__file__).parents[2]


def test_the_table_of_codes_in_the_documentation_is_the_registry():
    text = (ROOT / "docs" / "certainty.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \| (note|caution|not identified|look|fix) \| (.+) \|$", text, re.MULTILINE)
    assert rows == [(code, kind.severity, kind.why) for code, kind in CODES.items()]


def test_every_caveat_in_the_source_has_a_registered_code_and_every_code_a_caveat():
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    constants = dict(re.findall(r'^([A-Z_]+) = "([a-z-]+)"', source, re.MULTILINE))
    written = re.findall(r"(?<!class )(?:Caveat|Finding)\(\s*(?:\"([a-z-]+)\"|([A-Z_]+))", source)
    codes = {text or constants[name] for text, name in written}
    assert codes == set(CODES)


def test_every_caveat_says_what_to_do_or_its_code_does():
    """By the source: calls of a code without a cure have a `do`, the fourth argument."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "src").rglob("*.py")]
    calls = [call for tree in trees for call in ast.walk(tree) if isinstance(call, ast.Call) and call.args]
    for call in calls:
        if ast.unparse(call.func) in ("Caveat", "Finding"):
            name = ast.unparse(call.args[0])
            code = CODES[name.strip("'") if name.startswith("'") else getattr(verdict, name)]
            has_do = len(call.args) > 3 or any(keyword.arg == "do" for keyword in call.keywords)
            assert has_do or code.cure or code.severity == "note", name


@pytest.mark.parametrize(
    ("codes", "word"),
    [
        ((), "ok"),
        (("carrying-logger",), "ok"),
        (("carrying-logger", "few-clusters"), "caution"),
        (("few-clusters", "no-rows", "sensitivity"), "not identified"),
    ],
)
def test_a_verdict_is_as_good_as_the_worst_of_its_caveats_allows(codes, word):
    judged = Verdict(tuple(Caveat(code, f"It is {code}.") for code in codes))
    assert judged.verdict == word
    assert judged.reasons == tuple(f"It is {code}." for code in codes)
    assert Verdict().with_caveats(judged.caveats) == judged


def test_a_reason_is_what_is_wrong_and_what_to_do_with_arguments_as_a_front_end_writes_them():
    caveat = Caveat("few-clusters", "Few <rows>.", do="Pass `groups=100`.")
    assert str(caveat) == caveat.reason == "Few rows. Pass groups=100."
    assert caveat.reason.render(lambda name, value: f"--{name}") == "Few rows. Pass --groups."
    assert str(caveat.of_units("list").of_policy("new")) == "new: Few lists. Pass groups=100."
    assert caveat.document() == {
        "code": "few-clusters",
        "severity": "caution",
        "text": "Few rows.",
        "do": "Pass groups=100.",
        "numbers": {},
    }
