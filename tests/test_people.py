"""Six people, each from the files they have to the answer they act on, with the truth beside it.

The worlds are simulated, so that the truth is known. Every seed is 24, the first that was tried. About ten intervals have to hold the
truth, so each is asked to hold it in all but one of 200 logs: all of them do in 19 of 20. (At 95 % each, the data scientist's change
misses it by 2.03 errors; over 120 seeds, 97 % of such intervals hold it.)
"""

import json
import re
from html import unescape

import numpy as np
import polars as pl
import pytest
from command_line import invoke

import counterpoise as cp
from counterpoise.environments import SyntheticRanking
from counterpoise.evaluation.reading import read

SEED, LEVEL = 24, 0.995


def words(page):
    """What a page says."""
    body = re.sub(r"</?(bdi|b|i|small|span)\b[^>]*>", "", page.read_text(encoding="utf-8").partition("</style>")[2])
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).replace("\N{NO-BREAK SPACE}", " ").split())


def done(*typed, code=0):
    """What a command prints, once it has done what it should."""
    found = invoke(*typed)
    assert found.exit_code == code, found.stderr
    return found.stdout


# -- An analyst: a CSV file, the command line, a page for the manager ----------------------------------------------------------

BANNERS, SHOWN, RATES = np.array(["red", "green", "blue"]), np.array([0.5, 0.3, 0.2]), np.array([0.04, 0.06, 0.12])
NEW = np.array([0.1, 0.3, 0.6])


def test_an_analyst_reads_a_csv_and_sends_a_page(tmp_path):
    random = np.random.default_rng(SEED)
    banner = random.choice(3, 12_000, p=SHOWN)
    log = pl.DataFrame(
        {
            "day": [f"2026-03-{1 + k * 14 // 12_000:02}" for k in range(12_000)],
            "country": random.choice(["DE", "FR", "SE"], 12_000),
            "banner": BANNERS[banner],
            "click": (random.random(12_000) < RATES[banner]).astype(int),
            "propensity": SHOWN[banner],
            "pi_new": NEW[banner],
        }
    )
    log.write_csv(tmp_path / "clicks.csv")
    truth = NEW @ RATES / (SHOWN @ RATES) - 1

    page = tmp_path / "report.html"
    typed = ["evaluate", tmp_path / "clicks.csv", "--target", "pi_new", "--segment", "country", "--unit", "visit"]
    typed += ["--level", LEVEL]
    printed = done(*typed, "--html", page)
    assert len(printed.splitlines()) <= 40
    answer = json.loads(done(*typed, "--json"))
    change = answer["changes"][0]
    assert change["relative"]["lower"] < truth < change["relative"]["upper"]
    assert (change["decision"], change["verdict"], answer["unit"]) == ("better", "ok", "visit")
    assert answer["answer"] in printed
    assert "Better than the logging policy. Verdict: ok." in answer["answer"]
    assert re.search(
        r"Next: Test it live, and log its propensities: an A/B test of about [\d,]+ visits, split evenly", printed
    )
    assert answer["answer"] in words(page)
    assert "Better than the logging policy." in words(page)
    for where in (each for each in answer["changes"] if each["segment"]):  # all of them at once
        assert where["relative"]["lower"] < truth < where["relative"]["upper"]


# -- A data scientist: pandas, and a model from scikit-learn -------------------------------------------------------------------


def test_a_data_scientist_judges_a_model_on_a_pandas_frame():
    pandas, linear = pytest.importorskip("pandas"), pytest.importorskip("sklearn.linear_model")
    random = np.random.default_rng(SEED)

    def week(rows):
        context = random.normal(size=(rows, 2))
        rate = 1 / (1 + np.exp(2 - np.column_stack([0.3 * context[:, 0], -1.2 * context[:, 0], 1.2 * context[:, 1]])))
        frame = pandas.DataFrame(
            {"age": context[:, 0], "visits": context[:, 1], "banner": random.integers(3, size=rows)}
        )
        frame["click"] = (random.random(rows) < rate[np.arange(rows), frame["banner"]]).astype(int)
        return frame.assign(p=1 / 3), rate

    last, _ = week(5000)
    clicked = last[last["click"] == 1]
    model = linear.LogisticRegression().fit(clicked[["age", "visits"]], clicked["banner"])
    log, rate = week(10_000)
    truth = (model.predict_proba(log[["age", "visits"]]) * rate).sum(axis=1).mean()

    parts = {"reward": "click", "propensity": "p", "action": "banner", "context": ["age", "visits"]}
    result = cp.evaluate(log, **parts, target={"model": model}, level=LEVEL)
    assert truth in result.interval
    assert truth / rate.mean() - 1 in read(result).best.relative.interval
    assert str(result).splitlines()[2].endswith("Better than the logging policy. Verdict: ok.")
    assert "Next: Test it live" in str(result)
    assert "Better than the logging policy" in result._repr_html_()


# -- A ranking engineer: a log of lists -----------------------------------------------------------------------------------------


def test_a_ranking_engineer_learns_what_a_new_order_earns_per_list(tmp_path):
    world = SyntheticRanking(positions=4, clicks="cascade", seed=SEED)
    pl.DataFrame(world.draw(6000)).write_parquet(tmp_path / "lists.parquet")
    truth, _ = world.value()
    typed = ["evaluate", tmp_path / "lists.parquet", "--slate", "list", "--position", "position", "--reward", "click"]
    typed += ["--propensity", "p_given", "--propensity-of", "item-given-above", "--target", "new_given"]
    typed += ["--level", LEVEL]
    answer, printed = json.loads(done(*typed, "--json")), done(*typed)
    (value,) = [each for each in answer["estimates"] if each["estimator"] == "beta_ips"]
    assert value["lower"] < truth < value["upper"]
    assert (answer["unit"], answer["n"]) == ("ranking", 6000)
    assert "6,000 rankings" in printed
    assert " per ranking" in printed
    assert answer["changes"][0]["verdict"] == "ok"
    assert "Next: " in printed


# -- An A/B tester --------------------------------------------------------------------------------------------------------------


def test_an_ab_tester_reads_which_arm_to_keep(tmp_path):
    random = np.random.default_rng(SEED)
    arm, visits = random.choice(["A", "B"], 16_000), random.poisson(2, 16_000)
    rate = np.where(arm == "B", 0.12, 0.10) + 0.02 * np.minimum(visits, 5)
    log = {"arm": arm, "click": (random.random(16_000) < rate).astype(int), "visits": visits}
    pl.DataFrame(log).write_csv(tmp_path / "test.csv")
    page = tmp_path / "test.html"
    typed = ["ab-test", tmp_path / "test.csv", "--reward", "click", "--baseline", "visits", "--shares", "A=0.5"]
    typed += ["--shares", "B=0.5", "--unit", "visitor", "--level", LEVEL]
    printed = done(*typed, "--html", page)
    answer = json.loads(done(*typed, "--json"))
    for effect in answer["effects"]:  # in means, and adjusted for earlier visits
        assert effect["lower"] < 0.02 < effect["upper"]
        assert effect["verdict"] == "ok"
    assert not answer["sample_ratio"]["is_mismatch"]
    assert "16,000 visitors" in printed
    assert "Better than A." in words(page)
    assert "Roll out B, to a few first." in words(page)


# -- A data engineer: a folder of Parquet files, a database, and a job that runs every day --------------------------------------


def test_a_data_engineer_runs_a_daily_job_that_alarms_and_asks_a_database(tmp_path, monkeypatch):
    duckdb = pytest.importorskip("duckdb")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    (tmp_path / "counterpoise.toml").write_text(
        'log = ["logs"]\nreward = "click"\npropensity = "p"\ntarget = ["pi_new"]\nstate = "state.json"\nunit = "visit"\n'
    )

    def write(days, more=0.0):
        for day in days:
            random = np.random.default_rng([SEED, day])
            taste, shown = random.integers(0, 2, (2, 500))
            rate = np.where(shown == taste, 0.3, 0.1) + more
            log = {"click": (random.random(500) < rate) * 1.0, "p": 0.5, "pi_new": np.where(shown == taste, 0.9, 0.1)}
            pl.DataFrame(log).write_parquet(tmp_path / "logs" / f"2026-11-{day:02}.parquet")

    truth = (0.9 * 0.3 + 0.1 * 0.1) / 0.2 - 1
    write(range(1, 21))
    printed = done("evaluate", "--only-new")
    assert "10,000 visits" in printed
    assert "Better than the logging policy. Verdict: ok." in printed
    answer = json.loads(done("state", "show", "state.json", "--json", "--level", LEVEL))["answer"]
    (change,) = [each for each in answer["changes"] if each["segment"] is None]
    assert change["relative"]["lower"] < truth < change["relative"]["upper"]
    asked = ("--as-of", "2026-11-21", "--alert", "changed")
    done("watch", "state.json", *asked, "--alert", "lift < 0")  # a quiet month

    write(range(21, 25), more=0.3)  # something else changed on the site
    assert "12,000 visits" in done("evaluate", "--only-new")
    alarm = done("watch", "state.json", *asked, "--html", "watch.html", code=3)
    assert "mean reward of the logging policy rose" in alarm
    assert "2026-11-21" in alarm
    assert "2 alarms in the 10 days after the reference" in words(tmp_path / "watch.html")

    with duckdb.connect("shop.duckdb") as connection:
        connection.execute("CREATE TABLE log AS SELECT * FROM 'logs/*.parquet'")
    there = json.loads(
        done("evaluate", "shop.duckdb", "--table", "log", "--state", "other.json", "--batch", "all", "--json")
    )
    ours = json.loads(done("state", "show", "state.json", "--json"))["answer"]
    assert there["estimates"][0]["value"] == pytest.approx(ours["estimates"][0]["value"])


# -- A machine-learning engineer: learn, judge on other rows, save, serve --------------------------------------------------------


def test_a_machine_learning_engineer_learns_judges_saves_and_serves(tmp_path):
    pytest.importorskip("torch")
    from counterpoise.learn import load_policy

    random = np.random.default_rng(SEED)
    favorite = {"DE": "tea", "FR": "jam", "IT": "milk"}

    def day(rows, path):
        country, item = random.choice(list(favorite), rows), random.choice(["jam", "milk", "tea"], rows)
        likes = item == np.array([favorite[name] for name in country])
        click = (random.random(rows) < np.where(likes, 0.6, 0.1)).astype(int)
        pl.DataFrame({"country": country, "item": item, "click": click, "p": 1 / 3}).write_parquet(path)
        return country

    day(2000, tmp_path / "monday.parquet")
    country = day(4000, tmp_path / "tuesday.parquet")
    policy = tmp_path / "policy.safetensors"
    typed = ["--context", "country", "--action", "item", "--reward", "click", "--propensity", "p"]
    steps = ["--objective", "beta_ips", "--epochs", 3, "--batch-size", 128, "--learning-rate", 0.1]
    done("learn", tmp_path / "monday.parquet", *typed, "--out", policy, "--seed", SEED, *steps)

    served = load_policy(policy)
    shown = served.predict_proba(pl.DataFrame({"country": country}))
    rate = np.where(np.array([favorite[name] for name in country])[:, None] == np.array(served.classes_), 0.6, 0.1)
    truth = float((shown * rate).sum(axis=1).mean())
    judged = ["--target", policy, *typed[4:], "--json", "--level", LEVEL]  # the policy remembers its context and action
    answer = json.loads(done("evaluate", tmp_path / "tuesday.parquet", *judged))
    (value,) = [each for each in answer["estimates"] if each["estimator"] == "beta_ips"]
    assert value["lower"] < truth < value["upper"]
    assert answer["changes"][0]["decision"] == "better"
    assert answer["changes"][0]["verdict"] == "ok"
    flattered = json.loads(done("evaluate", tmp_path / "monday.parquet", *judged))
    assert "own-training-rows" in {caveat["code"] for caveat in flattered["verdicts"][0]["caveats"]}
