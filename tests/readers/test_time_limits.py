"""Questions that never end: `timeout=` stops them on every database, whatever the verb, and Ctrl-C does, too."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest
from command_line import COMMAND, invoke, shop
from messages import refuses

import counterpoise as cp
from counterpoise.errors import OptionError

duckdb = pytest.importorskip("duckdb")
ibis = pytest.importorskip("ibis")

pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'future.infer_string' option"),  # ibis sets it, pandas 3 regrets it
    pytest.mark.filterwarnings("ignore:fetch_arrow_table"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

QUESTION = {"reward": "click", "propensity": "p", "target": "pi_new"}
ENDLESS = (
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT (n + 1) % 1000000 + 1 FROM t WHERE n > 0) "
    "SELECT logs.* FROM logs, (SELECT max(n) AS n FROM t) u WHERE u.n > 0"
)
# minutes for a batch of rows, in which DuckDB does not look whether it should stop
STUBBORN = "levenshtein(repeat('a', 60000 + action), repeat('b', 60000)) > 0"
STOPPED = r"did not respond within 0\.5 seconds.*timeout=0\.5"
SOON = 30.0  # seconds, on a machine that is busy


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The log in a DuckDB file, with a view that never ends, and in a SQLite file."""
    place = tmp_path_factory.mktemp("endless")
    rows = shop(600).with_columns(day=pl.Series(["2026-03-01", "2026-03-02"] * 300))
    with duckdb.connect(place / "log.duckdb") as made:
        made.register("rows", rows.to_arrow())
        made.execute("CREATE TABLE logs AS SELECT * FROM rows")
        made.execute(f"CREATE VIEW endless AS {ENDLESS}")
    lite = ibis.sqlite.connect(place / "log.sqlite")
    lite.create_table("logs", rows.to_arrow())
    lite.disconnect()
    return place


def copied(folder):
    """Another file, since one that is open can only be opened in the same way."""
    return shutil.copy(folder / "log.duckdb", Path(tempfile.mkdtemp(dir=folder)) / "own.duckdb")


SOURCES = {
    "file": lambda folder: (str(folder / "log.duckdb"), {"query": ENDLESS}),
    "connection": lambda folder: (duckdb.connect(copied(folder)), {"query": ENDLESS}),
    "relation": lambda folder: (duckdb.connect(copied(folder)).sql(ENDLESS), {}),
    "ibis": lambda folder: (ibis.duckdb.connect(copied(folder)).table("endless"), {}),
    "sqlite": lambda folder: (f"sqlite://{folder / 'log.sqlite'}", {"query": ENDLESS}),
    "own sqlite": lambda folder: (ibis.sqlite.connect(folder / "log.sqlite"), {"query": ENDLESS}),
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_query_that_never_ends_is_stopped(folder, source):
    if source == "relation" and int(duckdb.__version__.partition(".")[0]) < 2:
        pytest.skip("a relation of this DuckDB does not tell its connection")
    log, place = SOURCES[source](folder)
    began = time.monotonic()
    with pytest.raises(OptionError, match=STOPPED):
        cp.evaluate(log, **place, **QUESTION, timeout=0.5)
    assert time.monotonic() - began < SOON
    if place:  # the same connection, or a new one, answers again
        assert cp.evaluate(log, table="logs", **QUESTION, timeout=300).n == 600
    if source == "own sqlite":
        log.disconnect()


def test_a_server_is_stopped_too(postgres):
    server = ibis.connect(postgres)
    server.create_table("logs_of_time", shop(600).to_arrow(), overwrite=True)
    try:
        for log in (postgres, server):
            with pytest.raises(OptionError, match=STOPPED):
                cp.evaluate(log, query=ENDLESS.replace("logs", "logs_of_time"), **QUESTION, timeout=0.5)
            assert cp.evaluate(log, table="logs_of_time", **QUESTION, timeout=300).n == 600
    finally:
        server.drop_table("logs_of_time")
        server.disconnect()


LEARNED = {"reward": "click", "propensity": "p", "action": "action", "context": ["user_id"]}


def learned(log, **how):
    learn = pytest.importorskip("counterpoise.learn", reason="needs PyTorch", exc_type=ImportError)
    return learn.PolicyLearner(epochs=1, folds=None).fit(log, **LEARNED, **how)


VERBS = {
    "evaluate": lambda log, **how: cp.evaluate(log, **QUESTION, **how),
    "evaluate, a policy": lambda log, **how: cp.evaluate(
        log, **(QUESTION | {"target": cp.Always(1)}), action="action", context=["user_id"], **how
    ),
    "evaluate, a model": lambda log, **how: cp.evaluate(
        log,
        **(QUESTION | {"target": cp.Always(1)}),
        action="action",
        context=["user_id"],
        model="ridge",
        cluster="user_id",
        **how,
    ),
    "evaluate, slope": lambda log, **how: cp.evaluate(log, **QUESTION, weight=cp.weights.Slope(cp.weights.Clip), **how),
    "compare": lambda log, **how: cp.compare(log, **QUESTION, **how),
    "rank": lambda log, **how: cp.rank(log, **(QUESTION | {"target": ["pi_new", "pi_old"]}), **how),
    "plan": lambda log, **how: cp.plan(log, **QUESTION, difference=0.1, **how),
    "backtest": lambda log, **how: cp.backtest({"one": log}, {"one": (0.2, 0.1)}, **QUESTION, **how),
    "watch": lambda log, **how: cp.watch(log, **QUESTION, day="day", reference=1, **how),
    "doctor": lambda log, **how: cp.doctor(log, **QUESTION, **how),
    "ab_test": lambda log, **how: cp.ab_test(log, reward="click", arm="action", **how),
    "distribution": lambda log, **how: cp.distribution(log, **QUESTION, **how),
    "sensitivity": lambda log, **how: cp.sensitivity(log, **QUESTION, **how),
    "learning": learned,
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_that_asks_a_database_is_stopped(folder, verb):
    began = time.monotonic()
    with pytest.raises(OptionError, match=STOPPED):
        VERBS[verb](str(folder / "log.duckdb"), table="endless", timeout=0.5)
    assert time.monotonic() - began < SOON


def test_a_condition_that_does_not_even_stop_is_left_behind(folder):
    """In a process of its own, which ends although the database is still at it."""
    code = (
        "import counterpoise as cp\n"
        f"try: cp.evaluate('log.duckdb', table='logs', **{QUESTION!r}, where={STUBBORN!r}, timeout=0.5)\n"
        "except cp.OptionError as error: print(error)"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60)
    assert "timeout=0.5" in found.stdout
    assert "when this process ends" in found.stdout


def test_what_happens_here_is_not_the_databases_time(folder):
    pauses = [1.5]  # seconds: once is too late already, if this were the database's time

    class Slow:
        def predict_proba(self, context):
            time.sleep(pauses.pop() if pauses else 0.0)
            return [[0.5, 0.5]] * len(context)

    parts = QUESTION | {"target": {"slow": Slow()}, "action": "action", "context": ["user_id"]}
    assert cp.evaluate(str(folder / "log.duckdb"), table="logs", **parts, timeout=1.4).n == 600


def test_a_question_that_was_stopped_adds_nothing_to_its_state(folder, tmp_path):
    state = tmp_path / "state.json"
    with refuses(OptionError):
        cp.evaluate(str(folder / "log.duckdb"), table="endless", **QUESTION, timeout=0.5, state=state, batch="mon")
    assert not state.exists()


@pytest.mark.parametrize("source", ["arrays", "frame", "lazy", "file"])
def test_what_cannot_be_told_to_stop_is_refused(source, tmp_path):
    rows = shop(100)
    rows.write_csv(tmp_path / "log.csv")
    log = {"arrays": rows.to_dict(), "frame": rows, "lazy": rows.lazy(), "file": tmp_path / "log.csv"}[source]
    for verb in (cp.evaluate, cp.doctor, cp.distribution):
        with refuses(OptionError):
            verb(log, **QUESTION, timeout=5)


def test_databases_without_a_way_to_stop_them_are_refused(folder):
    table = ibis.polars.connect({"logs": shop(100)}).table("logs")
    with refuses(OptionError):
        cp.evaluate(table, **QUESTION, timeout=5)


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), "5", True])
def test_a_time_that_is_none_is_refused(folder, seconds):
    with refuses(OptionError):
        cp.evaluate(str(folder / "log.duckdb"), table="logs", **QUESTION, timeout=seconds)


def test_commands_are_stopped(folder):
    asked = [folder / "log.duckdb", "--table", "endless", "--reward", "click", "--propensity", "p", "--timeout", "0.5"]
    for command in ("evaluate", "compare", "doctor", "distribution", "sensitivity"):
        found = invoke(command, *asked, *(() if command == "doctor" else ("--target", "pi_new")))
        assert (found.exit_code, found.stderr.count("--timeout 0.5")) == (2, 1), (command, found.stderr)
    lite = [f"sqlite://{folder / 'log.sqlite'}", "--query", ENDLESS, "--target", "pi_new", "--timeout", "0.5"]
    assert "--timeout 0.5" in invoke("evaluate", *lite).stderr  # where the names of the columns take as long
    found = invoke("sql", "logs", "--dialect", "duckdb", "--reward", "click", "--propensity", "p", "--timeout", "5")
    assert found.exit_code == 2


# -- Ctrl-C ------------------------------------------------------------------------------------------------------------

PYTHON = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import duckdb, ibis
import counterpoise as cp
log = {log}
print("ready", flush=True)
try:
    cp.evaluate(log, {place}, reward="click", propensity="p", target="pi_new")
except KeyboardInterrupt:
    print("stopped by Ctrl-C", flush=True)
"""


@pytest.mark.parametrize(
    ("log", "place"),
    [
        ('"log.duckdb"', f"query={ENDLESS!r}"),
        *(
            pytest.param(*asked, marks=pytest.mark.thorough)
            for asked in (
                ('"log.duckdb"', f"table='logs', where={STUBBORN!r}"),
                ('duckdb.connect("log.duckdb", read_only=True)', f"query={ENDLESS!r}"),
                ('"sqlite://log.sqlite"', f"query={ENDLESS!r}"),
            )
        ),
    ],
)
def test_ctrl_c_ends_a_call(folder, log, place):
    code = PYTHON.format(log=log, place=place)
    assert "stopped by Ctrl-C" in interrupted([sys.executable, "-c", code], folder)  # among what DuckDB prints


def test_ctrl_c_ends_a_command(folder):
    words = ["evaluate", "log.duckdb", "--table", "endless", "--reward", "click", "--propensity", "p"]
    assert "Interrupted" in interrupted([*COMMAND, *words, "--target", "pi_new"], folder, 130)


def has_open(process: int, name: str) -> bool:
    """Whether a process has opened a file; where the system does not say, it had time enough."""
    files = Path(f"/proc/{process}/fd")
    if not files.exists():
        time.sleep(8.0)
        return True
    for file in files.iterdir():
        with suppress(OSError):  # it was closed meanwhile
            if file.readlink().name == name:
                return True
    return False


def is_at_work(process: int) -> None:
    """Wait until a process has worked for a second since; where the system does not say, for three seconds."""
    until, began = time.monotonic() + 3.0, None
    while time.monotonic() < until:
        with suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            worked = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            began = worked if began is None else began
            if worked > began + 1.0:
                return
        time.sleep(0.05)


def interrupted(command: list[str], folder: Path, code: int | None = None) -> str:
    """What a process said that was interrupted while its database was at work."""
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        if code is None:
            assert process.stdout.readline() == "ready\n"
        while code is not None and process.poll() is None and not has_open(process.pid, "log.duckdb"):
            time.sleep(0.1)
        is_at_work(process.pid)
        assert process.poll() is None, "it was over before it could be interrupted"
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=SOON)
    finally:
        process.kill()
    assert code is None or process.returncode == code
    return said
