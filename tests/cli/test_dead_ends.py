"""Where people stopped: every dead end has a sentence that points on."""

import json

import polars as pl
import pytest
from command_line import invoke, shop
from messages import refuses

import counterpoise as cp


@pytest.fixture
def log(tmp_path):
    named = shop(2000).with_columns(
        best=pl.Series(["a", "b"] * 1000), number=pl.Series([3, 7] * 1000), shown=pl.Series(["a", "a", "b", "b"] * 500)
    )
    path = tmp_path / "log.parquet"
    named.write_parquet(path)
    return path


@pytest.fixture
def database(tmp_path, log):
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(str(tmp_path / "store.duckdb")) as connection:
        connection.execute(f"CREATE TABLE logs AS SELECT * FROM '{log}'")
        connection.execute("CREATE SCHEMA shop")
        connection.execute("CREATE VIEW shop.days AS SELECT * FROM logs")
    return tmp_path / "store.duckdb"


def refusal(*words):
    found = invoke(*words)
    assert found.exit_code == 2, found.stdout
    assert len(found.stderr.splitlines()) == 1
    return found.stderr


@pytest.mark.parametrize("command", [("evaluate",), ("compare",), ("plan", "--difference", "0.1"), ("sensitivity",)])
def test_a_target_of_actions_names_target_action(log, command):
    pointed = "If 'best' holds the action that the policy takes, pass --target-action best, with --action"
    assert pointed in refusal(*command, log, "--target", "best", "--action", "shown")
    assert pointed.replace("best", "number") in refusal(*command, log, "--target", "new=number", "--action", "action")
    with refuses(cp.ColumnError):
        cp.evaluate(log, reward="click", propensity="p", target="best")


def test_a_target_that_is_only_too_large_is_not_taken_for_an_action(log):
    frame = pl.read_parquet(log).with_columns(pi_new=pl.col("pi_new") * 1.5)
    frame.write_parquet(log)
    said = refusal("evaluate", log, "--target", "pi_new")
    assert "must lie in [0, 1]" in said
    assert "--target-action" not in said


def test_a_target_of_actions_in_a_database_names_target_action(database):
    for target in ("best", "number"):
        said = refusal("evaluate", database, "--table", "logs", "--target", target)
        assert f"pass --target-action {target}, with --action" in said


@pytest.mark.parametrize("command", [("evaluate",), ("compare",), ("plan", "--difference", "0.1")])
def test_a_log_without_propensities_names_the_model(log, command):
    pl.read_parquet(log).drop("p").write_parquet(log)
    said = refusal(*command, log, "--target", "pi_new")
    assert (
        "Pass --propensity COLUMN; if propensities were not logged, estimate them: --propensity-model logistic" in said
    )


def test_a_log_without_targets_names_target_action(log):
    pl.read_parquet(log).drop("pi_new", "pi_old").write_parquet(log)
    assert "if a column holds the action that a policy takes, --target-action COLUMN, with --action." in refusal(
        "evaluate", log
    )


@pytest.mark.parametrize("command", ["evaluate", "doctor", "ab-test"])
def test_a_database_lists_its_tables(database, command):
    assert "name the log's table with --table, or select it with --query. It has --table logs, --table shop.days." in (
        refusal(command, database)
    )


def test_a_table_that_is_not_there_lists_those_that_are(database):
    said = refusal("evaluate", database, "--table", "loggs")
    assert "no table loggs in this database. It has --table logs, --table shop.days." in said
    with refuses(cp.LogError):
        cp.evaluate(database, table="loggs", reward="click", propensity="p", target="pi_new")


@pytest.mark.parametrize(
    ("typed", "quoted"),
    [
        ("country = DE", "country = 'DE'"),
        ('country = "DE"', "country = 'DE'"),
        ("country in (DE, FR)", "country in ('DE', 'FR')"),
        ("click > 0 and country <> DE", "click > 0 and country <> 'DE'"),
        ("country = 'DE' or country = FR", "country = 'DE' or country = 'FR'"),
    ],
)
def test_a_word_without_quotes_asks_for_them(log, database, typed, quoted):
    said = refusal("doctor", log, "--where", typed)
    assert f'Text needs single quotes: --where "{quoted}".' in said
    asked = ("evaluate", database, "--table", "logs", "--target", "pi_new", "--propensity", "p", "--reward", "click")
    assert f'Text needs single quotes: "{quoted}".' in refusal(*asked, "--where", typed)


@pytest.mark.parametrize("typed", ["nope > 3", "lower(nope) = 'x'", "nope"])
def test_a_column_that_is_not_there_asks_for_no_quotes(log, typed):
    said = refusal("doctor", log, "--where", typed)
    assert "no column 'nope'" in said
    assert "quotes" not in said


def test_a_difference_may_be_a_share_of_what_ran(log):
    mean = float(pl.read_parquet(log)["click"].mean())
    asked = ("plan", log, "--target", "pi_new", "--json")
    share = json.loads(invoke(*asked, "--difference", "5%").stdout)
    amount = json.loads(invoke(*asked, "--difference", str(0.05 * mean)).stdout)
    assert share["needs"] == amount["needs"]
    assert share["difference"] == pytest.approx(0.05 * mean, rel=1e-9)
    assert (share["difference_share"], amount["difference_share"]) == (0.05, None)
    assert (
        f"5 % of what the logging policy earned is {0.05 * mean:.4g} per row."
        in invoke(*asked[:-1], "--difference", "5%").stdout
    )


@pytest.mark.parametrize("typed", ["5 percent", "%", "-5%", "0%", "nan%", "inf%", "five"])
def test_a_difference_that_is_neither_is_refused(log, typed):
    assert "such as" in refusal("plan", log, "--target", "pi_new", "--difference", typed).replace("'5%'", "")


def test_a_share_of_a_loss_says_nothing(log):
    said = invoke("plan", log, "--target", "pi_new", "--reward", "0 - click", "--difference", "5%").stderr
    assert "is a share of what the logging policy earned, which was -0.2" in said
    assert "Name the difference in units of the reward: --difference 0.01." in said


@pytest.mark.thorough
def test_learn_guesses_columns_as_evaluate_does(tmp_path):
    pytest.importorskip("torch")
    shop(400).rename({"click": "Clicked"}).write_parquet(tmp_path / "log.parquet")
    words = ("--context", "user_id", "--out", tmp_path / "policy.safetensors", "--minutes", "0.02", "--json")
    found = invoke("learn", tmp_path / "log.parquet", *words)
    assert found.exit_code == 0, found.stderr
    assert "Guessed from the names: action 'action', reward 'Clicked', propensity 'p'." in found.stderr
    shop(400).drop("p").write_parquet(tmp_path / "log.parquet")
    assert "which column is the propensity?" in refusal("learn", tmp_path / "log.parquet", *words, "--force")


# -- What a log has that nobody asked about ----------------------------------------------------------------------------

ARMS = "The log has a column of arms, 'arm': is this an A/B test? See counterpoise ab-test."
DAYS = "The log has a column of days, 'day': --segment day shows each."


@pytest.mark.parametrize("command", ["evaluate", "compare"])
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_arms_and_days_are_mentioned_once(log, command, more):
    frame = pl.read_parquet(log).with_columns(
        arm=pl.Series(["A", "B"] * 1000), day=pl.Series(["2026-03-01", "2026-03-02"] * 1000)
    )
    frame.write_parquet(log)
    asked = (command, log, "--target", "pi_new", *more)
    said = invoke(*asked).stderr
    assert (said.count(ARMS), said.count(DAYS)) == (1, 1)
    used = invoke(*asked, "--segment", "day", "--where", "arm = 'A'").stderr
    assert (used.count(ARMS), used.count(DAYS)) == (0, 0)
    frame.drop("arm", "day").write_parquet(log)
    assert "The log has a column of" not in invoke(*asked).stderr
