"""`counterpoise.toml`: written by `init`, read by every command, and never in the way of what is typed."""

import json
import re
import tomllib
from pathlib import Path

import polars as pl
import pytest
import typer
from command_line import invoke, shop
from conftest import sampled
from polars.testing import assert_frame_equal

from counterpoise.cli.app import app
from counterpoise.cli.options import PYTHON_ONLY, SHARED
from counterpoise.cli.settings import TYPED_ONLY, _commands, _is_typed, _texts, _toml
from counterpoise.errors import OptionError

COMMANDS = typer.main.get_command(app).commands


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a log, in which commands run."""
    monkeypatch.chdir(tmp_path)
    shop(2000).write_parquet("log.parquet")
    return tmp_path


def settings(text):
    with open("counterpoise.toml", "w", encoding="utf-8") as file:
        file.write(text)


def answer(*words):
    found = invoke("evaluate", *words, "--json")
    assert found.exit_code == 0, found.stderr
    return json.loads(found.stdout), found.stderr


ASKED = 'log = "log.parquet"\nreward = "click"\npropensity = "p"\ntarget = ["pi_new"]\n'


# -- Writing -----------------------------------------------------------------------------------------------------------


def test_init_writes_what_the_doctor_guesses_and_a_job_needs_no_flags(folder):
    found = invoke("init", "log.parquet", "--segment", "country")
    assert found.exit_code == 0, found.stderr
    written = tomllib.loads((folder / "counterpoise.toml").read_text())
    assert written == {
        "log": "log.parquet",
        "reward": "click",
        "propensity": "p",
        "action": "action",
        "cluster": "user_id",
        "target": ["pi_new", "pi_old"],
        "segment": ["country"],
    }
    mine, said = answer()
    assert said.startswith(f"Settings: {folder / 'counterpoise.toml'} (log, reward, propensity, action, cluster,")
    typed = ("--reward", "click", "--propensity", "p", "--target", "pi_new", "--target", "pi_old")
    (folder / "counterpoise.toml").unlink()
    theirs, _ = answer("log.parquet", *typed, "--cluster", "user_id", "--segment", "country")
    mine, theirs = (pl.DataFrame(each["estimates"]) for each in (mine, theirs))
    assert_frame_equal(mine, theirs, rel_tol=1e-9)  # threads add up in any order


def test_every_line_of_the_template_is_a_setting_that_is_read(folder):
    assert invoke("init").exit_code == 0
    text = (folder / "counterpoise.toml").read_text()
    assert tomllib.loads(text) == {}
    keys = [line.removeprefix("# ") for line in text.splitlines() if " = " in line.partition("  #")[0]]
    assert len(keys) > 12
    for key in keys[:-1]:  # the last is of evaluate alone
        settings(key)
        assert "not a setting" not in invoke("evaluate", "log.parquet", "--target", "pi_new").stderr, key


def test_init_overwrites_only_if_told_to_and_leaves_nothing_behind(folder):
    settings("level = 0.9\n")
    refused = invoke("init", "log.parquet")
    assert (refused.exit_code, "--overwrite" in refused.stderr) == (2, True)
    assert (folder / "counterpoise.toml").read_text() == "level = 0.9\n"
    assert invoke("init", "log.parquet", "--overwrite").exit_code == 0
    assert "reward" in tomllib.loads((folder / "counterpoise.toml").read_text())
    assert sorted(path.name for path in folder.iterdir()) == ["counterpoise.toml", "log.parquet"]


def test_init_writes_odd_names_as_they_are(folder):
    odd = 'a "b"\\ü\x7f'
    shop(300).rename({"click": odd}).write_parquet("odd.parquet")
    assert invoke("init", "odd.parquet", "--reward", odd).exit_code == 0
    assert tomllib.loads((folder / "counterpoise.toml").read_text(encoding="utf-8"))["reward"] == odd


def test_init_of_a_database_writes_its_table(folder):
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect("shop.duckdb") as connection:
        connection.execute("CREATE TABLE logs AS SELECT * FROM 'log.parquet'")
    assert invoke("init", "shop.duckdb", "--table", "logs").exit_code == 0
    assert tomllib.loads((folder / "counterpoise.toml").read_text())["table"] == "logs"
    assert answer()[0]["n"] == 2000


# -- Reading -----------------------------------------------------------------------------------------------------------


def test_what_is_typed_wins(folder):
    settings(ASKED + 'level = 0.5\ncluster = "user_id"\nsegment = ["country"]\n')
    mine, said = answer("--level", "0.9", "--no-cluster", "--target-action", "now=action", "--action", "action")
    assert {one["target"] for one in mine["estimates"]} == {"now"}
    assert {one["level"] for one in mine["estimates"]} == {0.9}
    assert "segment" in said
    assert "cluster" not in said
    assert "level" not in said
    again, _ = answer("--target", "pi_old", "--segment", "action")  # what may be repeated is replaced, not added to
    assert {one["target"] for one in again["estimates"]} == {"pi_old"}
    assert "DE" not in {one["segment"] for one in again["estimates"]}


def test_a_typed_log_leaves_out_the_table_of_the_file(folder):
    settings('log = "shop.duckdb"\ntable = "logs"\nreward = "click"\n')
    found = invoke("evaluate", "log.parquet", "--target", "pi_new")
    assert found.exit_code == 0, found.stderr


def test_another_file_is_read_from_its_own_folder(folder, tmp_path, monkeypatch):
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    (folder / "log.parquet").rename(jobs / "log.parquet")
    (jobs / "daily.toml").write_text(ASKED)
    settings('reward = "nothing of the kind"')
    assert answer("--config", jobs / "daily.toml")[0]["n"] == 2000


TAKEN = {
    "evaluate": ("--json",),
    "compare": ("--json",),
    "distribution": ("--json",),
    "doctor": ("--json",),
    "plan": ("--difference", "5%", "--json"),
    "sensitivity": ("--json",),
    "ab-test": ("--arm", "action", "--json"),
}


@pytest.mark.parametrize("command", TAKEN)
def test_every_command_takes_from_the_file_what_it_has_a_use_for(folder, command):
    """`control` is refused by compare, `baseline` by the distribution; from the file they are passed over."""
    pl.read_parquet("log.parquet").with_columns(noise=pl.Series([-1.0, 1.0] * 1000)).write_parquet("log.parquet")
    settings(ASKED + 'control = ["noise=0"]\nbaseline = ["country"]\naction = "action"\nkey = ["user_id", "click"]\n')
    found = invoke(command, *TAKEN[command])
    assert found.exit_code == 0, found.stderr
    assert found.stderr.count("Settings: ") == 1
    used = found.stderr.partition("(")[2].partition(")")[0].split(", ")
    offered = {option.opts[0].lstrip("-") for option in COMMANDS[command].params}
    assert set(used) <= offered
    assert ("control" in used) == ("control" in offered)
    assert ("propensity" in used) == (command != "ab-test")  # where it is one for each arm
    refused = invoke(command, *TAKEN[command], "--control", "noise=0")
    assert (refused.exit_code == 2) == ("control" not in offered)


def test_sql_and_state_read_it_too(folder):
    pytest.importorskip("ibis")
    settings('table = "shop.logs"\nreward = "click"\npropensity = "p"\ntarget = ["pi_new"]\nlevel = 0.8\n')
    found = invoke("sql", "--dialect", "duckdb")
    assert found.exit_code == 0, found.stderr
    assert "shop" in found.stdout
    settings(ASKED + "level = 0.8\n[evaluate]\nstate = 'state.json'\n")
    assert invoke("evaluate").exit_code == 0
    shown = invoke("state", "show", "state.json", "--json")
    assert json.loads(shown.stdout)["answer"]["estimates"][0]["level"] == 0.8


def test_a_table_speaks_to_one_command(folder):
    settings(ASKED + "level = 0.9\n[evaluate]\nlevel = 0.5\nhtml = 'page.html'\n")
    assert answer()[0]["estimates"][0]["level"] == 0.5
    assert (folder / "page.html").exists()
    assert '"level": 0.9' in invoke("compare", "--json").stdout


def test_the_report_names_the_whole_command(folder, monkeypatch):
    settings(ASKED + "[evaluate]\nhtml = 'page.html'\n")
    monkeypatch.setattr("sys.argv", ["counterpoise", "evaluate"])
    assert invoke("evaluate").exit_code == 0
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert "counterpoise evaluate --reward click --propensity p --target pi_new" in page


def test_several_rewards_are_for_those_who_take_several(folder):
    settings('log = "log.parquet"\nreward = ["click", "p"]\npropensity = "p"\ntarget = ["pi_new"]\n')
    assert invoke("evaluate").exit_code == 0
    found = invoke("plan", "--difference", "0.1")
    assert found.exit_code == 2
    assert "'reward' in 'counterpoise.toml' has 2 values, and this command takes one." in found.stderr
    assert invoke("plan", "--difference", "0.1", "--reward", "click").exit_code == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rewrd = 'click'", "'rewrd' in 'counterpoise.toml' is not a setting. Did you mean 'reward'?"),
        ("outcome = 'click'", "is not a setting. Did you mean 'reward'?"),
        ("targt-action = ['a']", "Did you mean 'target-action'?"),
        ("[evaluat]\nlevel = 0.9", "[evaluat] in 'counterpoise.toml' is not a setting. Did you mean 'evaluate'?"),
        ("[evaluate]\nlevl = 0.9", "'levl' of [evaluate] in 'counterpoise.toml' is not a setting."),
        (
            "html = 'page.html'",
            "'html' in 'counterpoise.toml' is not for all commands. Put it below a line [evaluate].",
        ),
        ("password = 'hunter2'", "holds a password in 'password', and others read this file."),
        ("log = 'postgresql://me:hunter2@db/shop'", "holds a password in 'log', and others read this file."),
        ("[evaluate]\ndb_token = 'hunter2'", "holds a password in 'db_token'"),
        ("import = ['my_estimators']", "has 'import', which no file may decide. Leave it out, and type --import"),
        ("external-access = true", "which no file may decide. Leave it out, and type --external-access"),
        ("[learn]\nforce = true", "has 'force', which no file may decide."),
        (
            "[evaluate]\nhtml = '../page.html'",
            "is outside of its folder, where a file that is only found may not write.",
        ),
        ("level 0.9", "is not TOML: "),
        ("level = 2026-01-01", "must be text, a number or a list of them"),
        ("strict = 'yes'", "'strict' in 'counterpoise.toml' must be true or false, found 'yes'."),
        ("reward-bounds = [0]", "must be a list of 2"),
    ],
)
def test_what_does_not_belong_in_the_file_is_refused_in_one_line(folder, text, said):
    settings(text)
    found = invoke("evaluate", "log.parquet")
    assert (found.exit_code, found.stderr.count("\n")) == (2, 1)
    assert said in found.stderr
    assert "hunter2" not in found.stderr


def test_help_and_other_folders_read_nothing(folder):
    settings("this is not TOML")
    assert invoke("evaluate", "--help").exit_code == 0
    assert invoke("evaluate", "log.parquet", "--target", "pi_new", "--config", "/dev/null").exit_code == 0


def test_a_key_of_the_file_is_every_option_that_commands_share():
    shared = set(SHARED) - set(PYTHON_ONLY)
    offered = {option.name for command in COMMANDS.values() for option in getattr(command, "params", ())}
    assert shared <= offered


def test_the_settings_of_the_page_are_read(folder):
    page = (Path(__file__).parents[2] / "docs" / "command_line.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```\n(log = .*?)^```", page, flags=re.M | re.S)
    settings(block)
    asked = ("--reward", "click", "--propensity", "p", "--target", "pi_new", "--json")
    found = invoke("evaluate", *asked)
    assert found.exit_code == 0, found.stderr
    assert "(html, log, action, segment)" in found.stderr or "(log, action, segment, html)" in found.stderr
    assert (folder / "report.html").exists()


def test_watch_takes_the_question_of_the_file_for_logs_and_not_for_states(folder):
    (folder / "days").mkdir()
    for day in range(1, 16):
        shop(200, seed=day).write_parquet(folder / "days" / f"2026-03-{day:02d}.parquet")
    settings(ASKED.replace("log.parquet", "days") + "level = 0.9\n")
    first = invoke("watch", "--state", "state.json", "--json")
    assert first.exit_code == 0, first.stderr
    again = invoke("watch", "state.json", "--json")
    assert again.exit_code == 0, again.stderr
    refused = invoke("watch", "state.json", "--reward", "click")
    assert (refused.exit_code, "a state has its question already, and --reward" in refused.stderr) == (2, True)


# -- Values are only values --------------------------------------------------------------------------------------------

ROOT = typer.main.get_command(app)
READERS = {name: command for name, command in _commands(ROOT) if any(p.name == "config" for p in command.params)}
TYPED = {
    "log": ["log.parquet"],
    "tests": ["log.parquet"],
    "out": ["--out", "new.safetensors"],
    "file": ["state.json"],
    "table": ["logs"],
    "difference": ["--difference", "5%"],
    "context": ["--context", "age"],
    "dialect": ["--dialect", "duckdb"],
    "reward": ["--reward", "click"],
    "propensity": ["--propensity", "p"],
}  # what commands require, unless the file says it


def smuggled(option):
    """Texts that might be taken for an option: those that begin with a dash, and those that begin otherwise."""
    (word,) = [text for text in option.opts if text.startswith("--")][:1] or [f"--{option.name}"]
    dashed = [word, f"{word}=x", f"{word} x", f"{word}\nx"]
    return dashed, [f" {word}=x", f"x\n{word}=x", f"x {word}", f"={word}", f"\N{EN DASH}{word.lstrip('-')}=x"]


@pytest.mark.parametrize("name", sampled(READERS, "plan", "learn", "state show"))
def test_no_value_of_the_file_is_taken_for_an_option(name):
    """Every value of every key, for every option of every command: refused, or a value as it stands."""
    command = READERS[name]
    context = command.make_context(name, [], resilient_parsing=True)
    parser = command.make_parser(context)
    tried = 0
    for key in command.params:
        if key.name in TYPED_ONLY or getattr(key, "is_flag", False):
            continue
        how = {"param": key, "is_own": True, "is_found": False}
        for option in command.params:
            dashed, plain = smuggled(option)
            for text in dashed:
                for value in (text, ["x", text]):
                    with pytest.raises(OptionError, match="looks like an option"):
                        _texts(Path("counterpoise.toml"), key.name, value, **how)
                    tried += 1
            for text in plain:
                value = [text] * key.nargs if key.nargs > 1 else text
                words = _texts(Path("counterpoise.toml"), key.name, value, **how)
                opts, others, _ = parser.parse_args(["--", *words] if key.param_type_name == "argument" else words)
                found = {opt: said for opt, said in opts.items() if _is_typed(said)}
                assert (set(found), others) == ({key.name}, [])
                assert text in str(found[key.name]) or text in found[key.name]
                tried += 1
    assert tried > 10 * len(command.params)


@pytest.mark.parametrize("name", sampled(READERS, "plan", "learn", "state show"))
def test_a_command_sees_no_option_that_the_file_smuggles(folder, name, capsys):
    """The same from the file to what the command is called with, every key with a few of the options."""
    command, group = READERS[name], ROOT
    required = [option.name for option in command.params if option.required]
    codes = set()
    for k, key in enumerate(command.params):
        if key.name in TYPED_ONLY or getattr(key, "is_flag", False):
            continue
        words = TYPED | ({"out": ["new.csv"]} if name == "simulate" else {})
        typed = [word for part in required if part != key.name for word in words[part]]
        for j, option in enumerate(command.params[k % 7 :: 7]):
            dashed, plain = smuggled(option)
            text = (dashed + plain)[(j + k) % 9]
            value = [text] * 2 if key.nargs == 2 else ["x", text] if key.nargs == -1 or key.multiple else text
            settings(f'["{name}"]\n{key.name} = {_toml(value)}\n')
            parent = group.make_context("counterpoise", name.split(), resilient_parsing=True)
            if " " in name:
                parent = group.commands["state"].make_context("state", ["show"], parent=parent, resilient_parsing=True)
            try:
                made = command.make_context(name.split()[-1], list(typed), parent=parent)
            except (typer.Exit, typer.BadParameter) as ended:  # a number, say, cannot be that text
                codes.add(ended.exit_code)
                continue
            needed = [*typed, *(words[key.name] if key.required else []), "--config", "/dev/null"]
            default = command.make_context(name.split()[-1], needed, parent=parent)
            changed = {n for n, v in made.params.items() if v != default.params[n]} - {"config"}
            assert changed <= {key.name}, (key.name, text)
            assert key.name not in changed or not text.startswith("-"), (key.name, text)
    capsys.readouterr()
    assert codes == {2}


@pytest.mark.parametrize(
    "log",
    [
        ["log.parquet", "--html=victim/notes.txt"],
        ["log.parquet", "--replace", "--state=victim/state.json"],
        ["log.parquet", "-h"],
        "--html=victim/notes.txt",
        ["log.parquet", -1],
        [["log.parquet", "--html=x"]],
        ["log.parquet", {"html": "x"}],
        ["log.parquet\0--html=x"],
    ],
)
def test_a_log_of_the_file_holds_paths_and_nothing_else(folder, log):
    victim = folder / "victim"
    victim.mkdir()
    (victim / "notes.txt").write_text("mine")
    text = "[" + ", ".join(_toml(part) if not isinstance(part, dict) else "{html = 'x'}" for part in log) + "]"
    settings(ASKED.replace('"log.parquet"', _toml(log) if isinstance(log, str) else text))
    found = invoke("evaluate")
    assert (found.exit_code, found.stderr.count("\n")) == (2, 1)
    assert "'log' in 'counterpoise.toml'" in found.stderr
    assert [path.name for path in victim.iterdir()] == ["notes.txt"]
    assert (victim / "notes.txt").read_text() == "mine"


def test_a_log_of_the_file_stays_a_log_behind_a_typed_end_of_options(folder):
    settings(ASKED)
    assert answer()[0]["n"] == 2000
    found = invoke("evaluate", "--json", "--")
    assert (found.exit_code, json.loads(found.stdout)["n"]) == (0, 2000)


@pytest.mark.parametrize("scheme", ["duckdb", "DuckDB", "DUCKDB"])
def test_no_spelling_of_an_address_opens_other_files(folder, scheme):
    """ibis takes DuckDB:// for DuckDB, too, and would open it for writing and with access to every file."""
    duckdb = pytest.importorskip("duckdb")
    pl.read_parquet("log.parquet").write_csv("secret.csv")
    with duckdb.connect("db.duckdb") as connection:
        connection.execute("CREATE VIEW logs AS SELECT * FROM 'secret.csv'")
    settings(ASKED.replace("log.parquet", f"{scheme}://db.duckdb") + 'table = "logs"\n')
    found = invoke("evaluate")
    assert (found.exit_code, "--external-access" in found.stderr) == (2, True)


@pytest.mark.parametrize(("key", "name"), [("html", "page.html"), ("state", "state.json")])
@pytest.mark.parametrize("way", ["link", "dangling", "folder"])
def test_a_file_that_is_found_writes_nothing_through_a_link(folder, key, name, way, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    victim = outside / name
    if way != "dangling":
        victim.write_text("mine")
    if way == "folder":
        Path("pages").symlink_to(outside)
        name = f"pages/{name}"
    else:
        Path(name).symlink_to(victim)
    settings(ASKED + f"[evaluate]\n{key} = '{name}'\n")
    found = invoke("evaluate")
    assert (found.exit_code, "is outside of its folder" in found.stderr) == (2, True)
    assert [path.read_text() for path in outside.iterdir()] == ([] if way == "dangling" else ["mine"])


def test_a_file_that_is_found_replaces_nothing_but_reports(folder):
    Path("README.md").write_text("mine")
    settings(ASKED + "[evaluate]\nhtml = 'README.md'\n")
    found = invoke("evaluate")
    assert (found.exit_code, "must end in .html" in found.stderr) == (2, True)
    assert Path("README.md").read_text() == "mine"
    assert invoke("evaluate", "--html", "README.md").exit_code == 0


STEPS = pl.DataFrame(
    {"r": [1.0, 0.0] * 300, "p": [0.5] * 600, "t": [0.6, 0.4] * 300, "q": [0.5] * 600, "a": [0, 1] * 300}
    | {"game": [k // 2 for k in range(600)], "move": [0, 1] * 300}
)
EPISODES = 'log = "steps.parquet"\nreward = "r"\npropensity = "p"\ntarget = ["t"]\nepisode = "game"\nstep = "move"\n'
WARNING = "is now called {}; the old name works until version 0.5."


@pytest.mark.parametrize("typed", [("--gamma", "0.5"), ("--gamma=0.5",)])
def test_an_old_option_means_the_new_one_and_warns_once(folder, typed):
    STEPS.write_parquet("steps.parquet")
    settings(EPISODES)
    new, _ = answer("--discount-factor", "0.5")
    old, said = answer(*typed)
    assert old["estimates"] == new["estimates"] != answer()[0]["estimates"]
    assert said.count(WARNING.format("--discount-factor")) == 1
    assert "Warning: --gamma is" in said


@pytest.mark.parametrize("where", ["", "[evaluate]\n"])
def test_an_old_key_of_the_file_means_the_new_one_and_warns_once(folder, where):
    STEPS.write_parquet("steps.parquet")
    settings(f"{EPISODES}{where}discount-factor = 0.5\n")
    new, quiet = answer()
    settings(f"{EPISODES}{where}gamma = 0.5\n")
    old, said = answer()
    assert old["estimates"] == new["estimates"]
    assert "Warning" not in quiet
    assert said.count(WARNING.format("'discount_factor'")) == 1


def test_an_old_word_is_only_an_option_where_options_are_and_gamma_keeps_its_meaning_in_sensitivity(folder):
    STEPS.write_parquet("steps.parquet")
    parts = ("--reward", "r", "--propensity", "p", "--target", "t")
    found = invoke("sensitivity", "steps.parquet", *parts, "--gamma", "1.5", "--json")
    assert [bounds["gamma"] for bounds in json.loads(found.stdout)["bounds"]] == [1.5]
    assert "Warning" not in found.stderr
    missing = invoke("evaluate", *parts, "--", "--gamma")
    assert missing.exit_code == 2
    assert "now called" not in missing.stderr
    old, new = (
        invoke("doctor", "steps.parquet", option, "q", "--action", "a")
        for option in ("--distribution", "--probabilities")
    )
    assert old.stdout == new.stdout
    assert WARNING.format("--probabilities") in old.stderr
    assert WARNING.format("--probabilities") not in new.stderr
