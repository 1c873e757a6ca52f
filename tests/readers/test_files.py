"""Files: what is wrong with one of them is said with its name, and nothing is read that is not needed."""

import gzip
import json
import os
import subprocess
import sys
import time

import planted
import polars as pl
import pytest
from command_line import invoke, shop
from messages import refuses
from polars.testing import assert_frame_equal

import counterpoise as cp
from counterpoise.engines import compiled, registry
from counterpoise.engines import streaming as largest
from counterpoise.engines.registry import columns_of
from counterpoise.errors import ColumnError
from counterpoise.log.log import Log
from counterpoise.moments.spread import KEPT
from counterpoise.readers import files, progress
from counterpoise.readers.files import scan
from counterpoise.readers.progress import progress_bar, progress_line

QUESTION = {"reward": "reward", "propensity": "propensity", "target": "new"}

WRITERS = {
    "parquet": pl.DataFrame.write_parquet,
    "csv": pl.DataFrame.write_csv,
    "arrow": pl.DataFrame.write_ipc,
    "jsonl": pl.DataFrame.write_ndjson,
}


@pytest.fixture
def folder(tmp_path):
    log = planted.a_log(3000, bad=False)
    for day in range(3):
        log[day * 1000 : (day + 1) * 1000].write_parquet(tmp_path / f"day {day}.parquet")
    return tmp_path


@pytest.mark.parametrize("cut", [0, 7, 5000])
def test_a_truncated_file_is_named(folder, cut):
    bad = folder / "day 1.parquet"
    bad.write_bytes(bad.read_bytes()[:cut])
    with refuses(cp.LogError):
        cp.evaluate(f"{folder}/*.parquet", **QUESTION)


def test_a_file_corrupt_in_the_middle_is_named(folder):
    bad = folder / "day 2.parquet"
    content = bytearray(bad.read_bytes())
    content[200:20_000] = os.urandom(19_800)
    bad.write_bytes(content)
    with refuses(cp.LogError):
        cp.evaluate(folder, **QUESTION)


def test_text_that_breaks_off_is_named(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"reward": 1.0, "propensity": 0.5, "new": 0.5}\n{"reward": 1.0, "prop')
    with refuses(cp.LogError):
        cp.evaluate(tmp_path / "log.jsonl", **QUESTION)


def test_files_that_differ_are_named_with_the_column(folder):
    other = pl.read_parquet(folder / "day 1.parquet")
    other.with_columns(pl.col("reward").cast(pl.String)).write_parquet(folder / "day 1.parquet")
    with refuses(cp.LogError):
        cp.evaluate(folder, **QUESTION)
    other.drop("new").write_parquet(folder / "day 1.parquet")
    with refuses(cp.LogError):
        cp.evaluate(folder, **QUESTION)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere.parquet", "no file '.*nowhere.parquet'"),
        ("nowhere/*.parquet", "no file matches"),
        (["day 0.parquet", "day 9.parquet"], "no file '.*day 9.parquet'"),
        ("empty", "no files in it"),
    ],
)
def test_a_missing_file_is_named(folder, path, message):
    (folder / "empty").mkdir()
    paths = [folder / one for one in path] if isinstance(path, list) else folder / path
    with pytest.raises(cp.LogError, match=message):
        cp.evaluate(paths, **QUESTION)


def test_a_file_counts_once(folder):
    one = folder / "day 0.parquet"
    (folder / "link.parquet").symlink_to(one)
    for twice in ([one, one], [folder / "link.parquet", one], [f"{folder}/day*.parquet", one], folder):
        with refuses(cp.OptionError):
            cp.evaluate(twice, **QUESTION)
    (folder / "link.parquet").unlink()
    (folder / "inner").mkdir()
    one.rename(folder / "inner" / "day 0.parquet")
    assert cp.evaluate(f"{folder}/**", **QUESTION).n == 3000


@pytest.mark.parametrize("beside", ["_temporary/0", ".ipynb_checkpoints", "_delta_log", "_x=1/_temporary"])
def test_what_lies_hidden_beside_a_log_is_no_part_of_it(tmp_path, beside):
    log = planted.a_log(600, bad=False)
    for place, rows in ((beside, log[:100]), ("_x=1", log[:200])):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        rows.write_parquet(tmp_path / place / "part.parquet")
    (tmp_path / "_x=1" / "_SUCCESS").touch()
    for log in (tmp_path, f"{tmp_path}/**", f"{tmp_path}/**/*.parquet"):
        assert cp.evaluate(log, **QUESTION, segment="_x")["new", "ips", 1].n == 200


@pytest.mark.parametrize(("ending", "write"), WRITERS.items(), ids=list(WRITERS))
def test_signs_of_globs_in_a_name_are_its_own(tmp_path, ending, write):
    log = planted.a_log(600, bad=False)
    for rows, name in ((100, "day1"), (200, "day*"), (300, "day[1]"), (400, "day?")):
        write(log[:rows], tmp_path / f"{name}.{ending}")
    for rows, name in ((200, "day*"), (300, "day[1]"), (400, "day?")):
        assert cp.evaluate(tmp_path / f"{name}.{ending}", **QUESTION).n == rows


def test_unknown_and_mixed_formats_are_refused(folder):
    (folder / "log.xlsx").write_text("")
    with refuses(cp.OptionError):
        cp.evaluate(folder / "log.xlsx", **QUESTION)
    (folder / "log.csv").write_text("reward,propensity,new\n1,0.5,0.5\n")
    with refuses(cp.OptionError):
        cp.evaluate([folder / "log.csv", folder / "day 0.parquet"], **QUESTION)


def test_files_in_the_cloud_are_left_to_polars():
    with refuses(cp.OptionError):
        cp.evaluate("s3://bucket/logs/*.parquet", **QUESTION)


def test_a_file_that_may_not_be_read_is_named(folder):
    (folder / "day 1.parquet").chmod(0)
    if os.access(folder / "day 1.parquet", os.R_OK):
        pytest.skip("this user reads whatever the permissions say; the next test stands in")
    with refuses(cp.LogError):
        cp.evaluate(folder, **QUESTION)


def test_a_refusal_to_open_is_an_error_with_the_name(folder, monkeypatch):
    opened = type(folder).open

    def refuse(path, *arguments, **options):
        if path.name == "day 1.parquet":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(type(folder), "open", refuse)
    with refuses(cp.LogError):
        cp.evaluate(folder, **QUESTION)


def test_bad_rows_of_files_are_named_by_row(tmp_path):
    planted.a_log().write_parquet(tmp_path / "log.parquet")
    with refuses(cp.LogError):
        cp.evaluate(tmp_path / "log.parquet", **QUESTION)


def test_numbers_that_look_whole_at_first_are_read_as_numbers(tmp_path):
    rows = "\n".join(["1,0.5,1"] * 20_000 + ["0.25,0.5,0.5"])
    (tmp_path / "log.csv").write_text("reward,propensity,new\n" + rows)
    assert cp.evaluate(tmp_path / "log.csv", **QUESTION).n == 20_001


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
@pytest.mark.parametrize(
    ("late", "question"),
    [
        ({"reward": 0.5}, {"reward": "reward * 2"}),
        ({"age": 0.5}, {"where": "age > 0"}),
        ({"age": 0.5}, {"where": "cast(age as varchar) <> '1'"}),
        ({"user": "anonymous"}, {"cluster": "user"}),
        ({"user": "anonymous"}, {"segment": "user"}),
    ],
)
def test_late_rows_may_be_of_another_kind(tmp_path, ending, late, question):
    rows = [{"reward": 1, "propensity": 0.5, "new": 0.5, "age": 1, "user": k % 7} for k in range(12_000)]
    rows += [rows[0] | late | {"new": 0.25}] * 40
    log = pl.DataFrame(rows, infer_schema_length=None, strict=False)
    if "user" in late:
        log = log.with_columns(user=pl.Series([str(row["user"]) for row in rows]))
    if ending == "csv":
        (tmp_path / "log.csv").write_text(
            "\n".join(",".join(map(str, row)) for row in ([*rows[0]], *map(dict.values, rows)))
        )
    else:
        (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = planted.numbers("", cp.evaluate(tmp_path / f"log.{ending}", **QUESTION | question))
    expected = planted.numbers("", cp.evaluate(log, **QUESTION | question))
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert found[key] == pytest.approx(values, rel=1e-9, abs=1e-12, nan_ok=True), key


@pytest.mark.parametrize(
    ("ending", "bad"), [("csv", "n/a,0.5,0.5"), ("jsonl", '{"reward": "n/a", "propensity": 0.5, "new": 0.5}')]
)
def test_late_text_among_numbers_is_shown_with_its_column(tmp_path, ending, bad):
    good = {"csv": "1,0.5,0.5", "jsonl": '{"reward": 1, "propensity": 0.5, "new": 0.5}'}[ending]
    header = ["reward,propensity,new"] if ending == "csv" else []
    (tmp_path / f"log.{ending}").write_text("\n".join([*header, *[good] * 12_000, bad]))
    with refuses(cp.ColumnError):
        cp.evaluate(tmp_path / f"log.{ending}", **QUESTION)


def test_rows_without_clusters_are_grouped_by_their_place(folder):
    question = QUESTION | {"interval": "jackknife"}
    frame = pl.read_parquet(f"{folder}/*.parquet")
    assert cp.evaluate(folder, **question)["new", "snips"].stderr == pytest.approx(
        cp.evaluate(frame, **question)["new", "snips"].stderr, rel=1e-12
    )


def test_clusters_of_text_in_files(folder):
    log = pl.read_parquet(f"{folder}/*.parquet").with_columns(name=pl.format("user {}", "user"))
    log.write_parquet(folder / "named.parquet")
    expected = cp.evaluate(log, **QUESTION, cluster="name")["new", "snips"].stderr
    found = cp.evaluate(folder / "named.parquet", **QUESTION, cluster="name")["new", "snips"].stderr
    assert found == pytest.approx(expected, rel=1e-12)


def test_folders_named_after_days_are_columns(tmp_path):
    log = planted.a_log(1000, bad=False)
    for k, day in enumerate(["2025-12-31", "2026-01-01", "2026-01-02"]):
        (tmp_path / f"day={day}").mkdir()
        log[k * 300 : (k + 1) * 300].write_parquet(tmp_path / f"day={day}" / "part.parquet")
    result = cp.evaluate(tmp_path, **QUESTION, where="day >= '2026-01-01'", segment="day")
    assert result.n == 600
    assert result["new", "ips", "2026-01-02"].n == 300


@pytest.mark.parametrize(("ending", "write"), WRITERS.items(), ids=list(WRITERS))
@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["2026-01-01", "2026-01-02"], ["2026-01-01", "2026-01-02"]),
        (["1", "02"], [1, 2]),
        (["1", "2.5"], [1.0, 2.5]),
        (["1", "x"], ["1", "x"]),
        (["1", "__HIVE_DEFAULT_PARTITION__"], [1, None]),
        (["true", "false"], [True, False]),
        (["a%20b", "c"], ["a b", "c"]),
    ],
)
def test_folders_name_columns_in_every_format(tmp_path, ending, write, names, labels):
    log = planted.a_log(600, bad=False)
    for k, name in enumerate(names):
        (tmp_path / f"part={name}").mkdir()
        write(log[k * 200 : (k + 1) * 200 + 100 * k], tmp_path / f"part={name}" / f"log.{ending}")
    result = cp.evaluate(tmp_path, **QUESTION, segment="part", where="part is not null or new >= 0")
    assert set(result.moments.segments) == {(label,) for label in labels}
    assert [result["new", "ips", (label,)].n for label in labels] == [200, 300]


@pytest.mark.parametrize(("ending", "write"), WRITERS.items(), ids=list(WRITERS))
def test_a_folder_may_not_contradict_a_column(tmp_path, ending, write):
    log = planted.a_log(600, bad=False)
    for value in ("0.25", "0.5"):
        (tmp_path / f"propensity={value}").mkdir()
        write(log.with_columns(propensity=float(value)), tmp_path / f"propensity={value}" / f"log.{ending}")
    assert cp.evaluate(tmp_path, **QUESTION).n == 1200
    write(log, tmp_path / "propensity=0.5" / f"log.{ending}")
    with refuses(cp.LogError):
        cp.evaluate(tmp_path, **QUESTION)


@pytest.mark.parametrize("first", ["0.csv", "z.csv"])
@pytest.mark.parametrize("rows", ["", ",,,,\n,,,,\n"])
def test_files_without_values_say_nothing_of_types(tmp_path, first, rows):
    log = planted.a_log(600, bad=False).select("reward", "propensity", "new", "user", "device")
    question = QUESTION | {"segment": "device", "cluster": "user", "drop_bad_rows": True}
    log.write_csv(tmp_path / "log.csv")
    (tmp_path / first).write_text(",".join(log.columns) + "\n" + rows)
    found, expected = cp.evaluate(tmp_path, **question), cp.evaluate(log, **question)
    assert found.moments.segments == expected.moments.segments
    assert found["new", "snips"].stderr == pytest.approx(expected["new", "snips"].stderr, rel=1e-12)


@pytest.mark.parametrize(("ending", "write"), WRITERS.items(), ids=list(WRITERS))
def test_the_order_of_columns_does_not_matter(tmp_path, ending, write):
    log = planted.a_log(600, bad=False)
    question = QUESTION | {"interval": "jackknife"}
    for k in range(3):
        write(log[k * 200 : (k + 1) * 200].select(log.columns[:: -1 if k == 1 else 1]), tmp_path / f"{k}.{ending}")
    found, expected = cp.evaluate(tmp_path, **question)["new", "snips"], cp.evaluate(log, **question)["new", "snips"]
    assert (found.value, found.stderr) == pytest.approx((expected.value, expected.stderr), rel=1e-12)


def test_text_files_share_their_types(tmp_path):
    log = planted.a_log(600, bad=False).select("reward", "propensity", "new", id=pl.int_range(pl.len()))
    log.write_csv(tmp_path / "0.csv")
    log.with_columns(id=pl.format("user {}", "id")).write_csv(tmp_path / "1.csv")
    assert cp.evaluate(tmp_path, **QUESTION, cluster="id").n == 1200
    log.with_columns(id=pl.col("id") / 2, reward=pl.lit("n/a")).write_csv(tmp_path / "1.csv")
    assert cp.evaluate(tmp_path, **QUESTION | {"reward": "new"}, segment="id").moments.segments[1] == (0.5,)
    with refuses(cp.LogError):
        cp.evaluate(tmp_path, **QUESTION)


def test_expressions_that_are_none_are_refused(folder):
    for question, message in (
        ({"target": "0.5 * neww"}, "no column 'neww' in target='0.5 \\* neww'.*Did you mean 'new'"),
        ({"target": "new +"}, "no column 'new \\+' for target"),
        ({"target": "sum(new)"}, "one value per row"),
        ({"where": "country ="}, "not an SQL condition"),
        ({"where": "nothing = 1"}, "no column 'nothing' in where"),
        ({"where": "country"}, "does not fit the types|cannot compute"),
        ({"target": "new; drop table log"}, "no column"),
    ):
        with pytest.raises(cp.ColumnError, match=message):
            cp.evaluate(folder, **QUESTION | question)


@pytest.mark.parametrize("name", ['a"b', "a;b", "a b", "日本", "a.b", "select", "a`b", "a'b"])
def test_odd_names_of_columns_are_columns(tmp_path, name):
    log = planted.a_log(500, bad=False)
    expected = cp.evaluate(log, **QUESTION)["new", "snips"].value
    log.rename({"new": name, "reward": name + "2"}).write_parquet(tmp_path / "log.parquet")
    question = QUESTION | {"target": name, "reward": name + "2", "where": "device >= 0"}
    assert cp.evaluate(tmp_path / "log.parquet", **question)[name, "snips"].value == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("keys", [[], ["device"]])
def test_the_largest_weights_of_a_stream_are_exact(monkeypatch, keys):
    """A watcher drops what cannot be among the largest; what it keeps must be exact."""
    monkeypatch.setattr(largest, "PENDING", 1500)
    log = planted.a_log(60_000, bad=False)
    watcher = largest.Watcher("w", keys)
    weighted = log.with_columns(w=pl.col("new") / pl.col("propensity"))
    for piece in weighted.iter_slices(777):
        watcher.see(piece)
    largest_of = watcher.largest()
    parts = weighted.partition_by(keys, as_dict=True) if keys else {(): weighted}
    assert largest_of.keys() == parts.keys()
    for label, part in parts.items():
        assert largest_of[label].tolist() == part["w"].top_k(KEPT).sort(descending=True).to_list()
    tails = cp.evaluate(log, **QUESTION, segment=keys).moments
    for label, tail in zip(tails.segments, tails.tails["new", ""], strict=True):
        assert tail.weights == pytest.approx(largest_of[label], rel=1e-15)


def test_progress_is_shown_when_asked_for_and_silent_otherwise(folder, capsys):
    cp.evaluate(folder, **QUESTION)
    assert capsys.readouterr() == ("", "")
    cp.evaluate(folder, **QUESTION, progress=True)
    with progress_bar(True) as report:
        report(1234)
        sys.stderr.flush()
    assert "1,234 rows" in capsys.readouterr().err
    with progress_bar(None) as report:
        assert report is None
    with progress_bar(False) as report:
        assert report is None


def test_a_command_in_a_pipe_says_every_ten_seconds_what_it_does(monkeypatch, capsys):
    assert progress.EVERY == 10.0
    with progress.lines_of_progress(), progress_bar(None, "fitting", "models", 5) as report:
        report(1)
    assert capsys.readouterr() == ("", "")  # nothing in less than that
    monkeypatch.setattr(progress, "EVERY", 0.05)
    with progress.lines_of_progress():
        with progress_bar(None, "fitting", "models", 5) as report:
            report(2)
            with progress_line(None, "reading") as tell:
                time.sleep(0.2)
                tell("reading on")
                time.sleep(0.2)
            time.sleep(0.2)
        with progress_bar(False) as silent:
            assert silent is None
        time.sleep(0.2)
    lines = [line.rpartition(" (")[0] for line in capsys.readouterr().err.splitlines()]
    assert list(dict.fromkeys(lines)) == ["reading", "reading on", "fitting: 2 of 5 models", "working"]
    with progress_bar(None) as report:
        assert report is None


@pytest.mark.once
@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize(("wide", "pieces"), [(1000, 1), (2, 2)])
def test_long_files_take_the_compiled_loop_and_agree(tmp_path, monkeypatch, bad, wide, pieces):
    """Twelve targets are one pass, or two where they are many columns; a bad row for one of them is left out for all."""
    pytest.importorskip("numba")
    monkeypatch.setattr(registry, "SHORT", 0)
    monkeypatch.setattr(registry, "LONG", 0)
    monkeypatch.setattr(registry, "STARTED", 0)
    monkeypatch.setattr(compiled, "WIDE", wide)
    monkeypatch.setattr(compiled, "LANES", 10)
    taken = []
    answer = compiled.Running.answer
    monkeypatch.setattr(compiled.Running, "answer", lambda self: taken.append(found := answer(self)) or found)
    log = planted.a_log(bad=bad)
    log.write_parquet(tmp_path / "log.parquet")
    question = planted.QUESTIONS["many"]
    expected = planted.numbers("", cp.evaluate(log, **question))
    found = planted.numbers("", cp.evaluate(tmp_path / "log.parquet", **question))
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert found[key] == pytest.approx(values, rel=1e-9, abs=1e-12, nan_ok=True), key
    assert [sums is None for sums in taken] == ([True] if bad else [False] * pieces)


@pytest.mark.thorough
def test_the_compiled_loop_is_kept_for_the_next_process(tmp_path):
    """Compiling takes five seconds, finding what another process compiled a third of one."""
    pytest.importorskip("numba")
    program = (
        "import numpy as np; from counterpoise.engines.loop import loop; x = np.ones(9); loop(x, x, x, x, None, 0.5, 0.0); "
        "print(sum(loop.stats.cache_hits.values()))"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", program]
    hits = [subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout for _ in "12"]
    assert list(map(int, hits)) == [0, 1]


def test_looking_for_a_key_that_is_there_twice_takes_a_time_that_grows_as_the_keys():
    def seconds(keys):
        line = json.dumps({f"column {k}": k for k in range(keys)})
        began = time.process_time()
        assert files._repeated_key(line) is None
        return time.process_time() - began

    few, many = (min(seconds(keys) for _ in range(3)) for keys in (1000, 30_000))
    assert many < 30 * 6 * few + 0.05  # 900 times as long, if it grew with the square
    assert files._repeated_key('{"a": 1, "b": {"b": 2}, "a": 3}') == "a"


# -- CSV with semicolons, as spreadsheets write it in much of Europe ---------------------------------------------------

SHEET = pl.DataFrame(
    {
        "r": [0.5, 1.0, 0.0, 1.25] * 5,
        "p": [0.5, 0.25, 0.5, 0.75] * 5,
        "new": [0.9, 0.1, 0.5, 0.2] * 5,
        "who": ["a;b", "c,d", 'e"f', "g"] * 5,
    }
)


def european(frame, separator=";"):
    texts = frame.with_columns(pl.col(pl.Float64).cast(pl.String).str.replace(r"\.", ","))
    return texts.write_csv(separator=separator)


@pytest.mark.parametrize("start", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_semicolons_and_decimal_commas_are_read(tmp_path, start, end):
    text = (start + european(SHEET)).replace("\n", end)
    (tmp_path / "log.csv").write_bytes(text.encode())
    assert_frame_equal(scan(tmp_path / "log.csv").collect(), SHEET)
    (tmp_path / "log.csv.gz").write_bytes(gzip.compress(text.encode()))
    assert_frame_equal(scan(tmp_path / "log.csv.gz").collect(), SHEET)
    expected = cp.evaluate(SHEET, reward="r", propensity="p", target="new")["new", "beta_ips"].value
    found = cp.evaluate(tmp_path / "log.csv", reward="r", propensity="p", target="new")["new", "beta_ips"].value
    assert found == pytest.approx(expected, rel=1e-12)


def test_semicolons_with_decimal_points_are_read(tmp_path):
    SHEET.write_csv(tmp_path / "log.csv", separator=";")
    assert_frame_equal(scan(tmp_path / "log.csv").collect(), SHEET)


def test_files_with_other_signs_are_one_log(tmp_path):
    (tmp_path / "1.csv").write_text(european(SHEET))
    SHEET.write_csv(tmp_path / "2.csv")
    SHEET.with_columns(pl.col("r", "p", "new").ceil().cast(pl.Int64)).write_csv(tmp_path / "3.csv", separator=";")
    whole = scan(tmp_path, numbers=("r", "p", "new")).collect()
    assert_frame_equal(whole, pl.concat([SHEET, SHEET, SHEET.with_columns(pl.col("r", "p", "new").ceil())]))


def test_a_decimal_comma_may_come_late(tmp_path):
    late = pl.DataFrame({"r": [1.0] * 5000 + [0.5], "p": [1.0] * 5001})
    (tmp_path / "log.csv").write_text(european(late).replace(",0", ""))
    assert scan(tmp_path / "log.csv", numbers=("r", "p")).collect()["r"].to_list() == late["r"].to_list()


@pytest.mark.parametrize(
    "text",
    [
        "r,p,who\n1,0.5,a;b\n0,0.5,c;d\n",  # semicolons in cells
        'r,p,"a;b;c"\n1,0.5,x\n0,0.5,y\n',  # and in a name
        "r,p;q\n1,2\n3,4\n",
        '"a;b"\n"1;2"\n"3;4"\n',  # one column
        "a;b\n1,2\n3,4\n",  # a header that says otherwise than the rows
        "a\n1\n2\n",
        "r,p\n1,0.5\n",
    ],
)
def test_a_csv_with_commas_is_read_as_ever(tmp_path, text):
    (tmp_path / "log.csv").write_text(text)
    try:
        expected = pl.read_csv(tmp_path / "log.csv")
    except pl.exceptions.ComputeError:
        with pytest.raises(pl.exceptions.ComputeError):
            scan(tmp_path / "log.csv").collect()
        return
    assert_frame_equal(scan(tmp_path / "log.csv").collect(), expected)


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["0,5", "0.5"], pl.String),  # both signs
        (["1.234,56", "2.345,67"], pl.String),  # thousands
        (["1,2,3", "4"], pl.String),  # a list of candidates
        (["a,5", "b"], pl.String),
        (["0,5", ""], pl.Float64),
        (["-,5e3", "+2,5"], None),
    ],
)
def test_a_comma_is_decimal_only_where_nothing_speaks_against_it(tmp_path, cells, kind):
    (tmp_path / "log.csv").write_text("x;n\n" + "".join(f"{cell};1\n" for cell in cells * 3))
    assert scan(tmp_path / "log.csv").collect().schema["x"] == (kind or pl.Float64)


QUOTED = {"click": 'cl"ick', "p": '"p"', "pi_new": 'pi ""new""', "country": "coun\"try, o'clock", "user_id": '"'}


@pytest.mark.parametrize("ending", ["csv", "tsv", "csv.gz", "parquet"])
def test_quotes_in_names_are_read_as_they_were_written(ending, tmp_path):
    log = shop(400).rename(QUOTED)
    name = tmp_path / f"log.{ending}"
    if ending == "parquet":
        log.write_parquet(name)
    else:
        text = log.write_csv(separator="\t" if ending == "tsv" else ",")
        name.write_bytes(gzip.compress(text.encode()) if ending == "csv.gz" else text.encode())
    assert columns_of(Log(name)) == log.columns
    quoted = '"' + QUOTED["country"].replace('"', '""') + '"'
    parts = {
        "reward": QUOTED["click"],
        "propensity": QUOTED["p"],
        "target": QUOTED["pi_new"],
        "cluster": QUOTED["user_id"],
    }
    asked = {**parts, "segment": QUOTED["country"], "where": f"{quoted} = 'DE' OR {quoted} IS NULL"}
    mine, theirs = (cp.evaluate(data, **asked).to_dict()["estimates"] for data in (name, log))
    for one, other in zip(mine, theirs, strict=True):
        for part, expected in other.items():
            assert one[part] == (pytest.approx(expected, rel=1e-12) if isinstance(expected, float) else expected)
    found = invoke("evaluate", name, "--json", *(word for part, text in parts.items() for word in (f"--{part}", text)))
    assert found.exit_code == 0, found.stderr
    assert json.loads(found.stdout)["n"] == 400


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ('"x""y",p', ['x"y', "p"]),
        ('x""y,p', ['x""y', "p"]),  # without quotes around it, a quote is only a quote
        ('"""x""",p', ['"x"', "p"]),
        ('\ufeff"x""y";"p;"', ['x"y', "p;"]),
        ('"x""\ny",p', ['x"\ny', "p"]),
        ('"x""y",', ['x"y', ""]),
    ],
)
def test_a_header_is_read_as_any_row_is(header, names, tmp_path):
    file = tmp_path / "log.csv"
    file.write_text(f"{header}\n" + ("1;2\n" if ";" in header else "1,2\n"), encoding="utf-8")
    assert columns_of(Log(file)) == names


def test_names_that_only_quotes_tell_apart_are_two_names(tmp_path):
    file = tmp_path / "log.csv"
    file.write_text('"x""y",x""y,p\n1,2,0.5\n')
    assert columns_of(Log(file)) == ['x"y', 'x""y', "p"]
    file.write_text('"x""y","x""y",p\n1,2,0.5\n')
    with refuses(ColumnError):
        columns_of(Log(file))
