"""The audit of propensities: its numbers are those of plain NumPy, it finds what the overall mean hides, and it seldom cries wolf."""

import json
import math

import numpy as np
import polars as pl
import pytest
from command_line import invoke
from messages import refuses

import counterpoise as cp
from counterpoise.diagnostics.diagnose import MeanWeight, holm
from counterpoise.evaluation.audit import Parts, about_audit, audit, calibration_of, check
from counterpoise.moments import Powers

pytestmark = pytest.mark.once

LOGS = 300


def softmax(scores):
    mass = np.exp(scores - scores.max(axis=1, keepdims=True))
    return mass / mass.sum(axis=1, keepdims=True)


def draw(random, mass):
    return (random.random((len(mass), 1)) > mass.cumsum(axis=1)).sum(axis=1).clip(max=mass.shape[1] - 1)


def shelf(random, n=20_000, actions=10, off=1.0, popular=2.0):
    """Actions from popular to rare whose scores vary with the context; the logged propensities are at a temperature off by a factor.

    The target prefers actions at random, popular ones no more than rare ones, so that errors cancel in its mean weight.
    """
    scores = np.linspace(-popular / 2, popular / 2, actions) + 0.4 * random.normal(size=(n, actions))
    mass, logged = softmax(scores), softmax(scores / off)
    action, row = draw(random, mass), np.arange(n)
    target = softmax(scores * 0.9 + 0.4 * random.normal(size=(n, actions)))
    return pl.DataFrame(
        {
            "click": random.integers(0, 2, n),
            "p": logged[row, action],
            "pi_new": target[row, action],
            "action": action,
            "country": random.choice(["NO", "SE", "DK"], n, p=[0.6, 0.3, 0.1]),
            "day": pl.Series(random.integers(0, 7, n)).cast(pl.Int32).cast(pl.Date),
            "user": random.integers(0, n // 5, n),
            "q": logged,
        }
    )


def catalog(random, n=4_000, actions=60):
    """Many actions, most of them rare, and a target that likes the rare ones: long tails."""
    mass = 1 / np.arange(1, actions + 1) ** 1.2
    mass /= mass.sum()
    action, target = random.choice(actions, n, p=mass), np.full(actions, 1 / actions)
    return pl.DataFrame(
        {
            "click": random.integers(0, 2, n),
            "p": mass[action],
            "pi_new": (0.5 * mass + 0.5 * target)[action],
            "action": action,
            "country": random.choice([f"c{k}" for k in range(20)], n),
            "day": pl.Series(random.integers(0, 30, n)).cast(pl.Int32).cast(pl.Date),
            "q": np.broadcast_to(mass, (n, actions)),
        }
    )


def users(random, n_users=1_500, actions=5):
    """Users who meet the same action in all of their rows, of which some have many."""
    size = random.geometric(0.2, n_users)
    mass = softmax(random.normal(size=(n_users, actions)))
    action, target = draw(random, mass), softmax(random.normal(size=(n_users, actions)))
    row, user = np.arange(n_users), np.repeat(np.arange(n_users), size)
    columns = {"p": mass[row, action], "pi_new": target[row, action], "action": action}
    return pl.DataFrame({name: values[user] for name, values in columns.items()}).with_columns(
        user=user, country=pl.Series(random.choice(["NO", "SE"], n_users)[user]), click=1.0, q=pl.Series(mass[user])
    )


def uneven(random, n=3_000, actions=5):
    """Propensities whose inverse has so long a tail that few actions can be tested at all."""
    mass = softmax(1.5 * random.normal(size=(n, actions)))
    action = draw(random, mass)
    country = random.choice(["NO", "SE", "DK"], n)
    return pl.DataFrame({"p": mass[np.arange(n), action], "pi_new": 1 / actions, "action": action, "country": country})


def audited(log, **parts):
    return audit(log.lazy(), log.schema, Parts("p", ["pi_new"], "action", **parts))


def plain(by, part, target, rows, excess):
    """A check from the excess of every unit."""
    made = check(by, part, target, rows, Powers.of(excess))
    error = excess.std(ddof=1) / math.sqrt(len(excess))
    assert made.mean == pytest.approx(1 + excess.sum() / rows, rel=1e-10)
    if not math.isnan(made.p):
        assert made.p == pytest.approx(MeanWeight(Powers.of(excess), error).p_value, rel=1e-8, abs=1e-12)
    return made


@pytest.mark.parametrize("cluster", [None, "user"])
def test_every_check_is_that_of_numpy(cluster):
    log = shelf(np.random.default_rng(1), 3_000, off=1.1)
    found = audited(log, segment=["country"], cluster=cluster)
    p, w, user = log["p"].to_numpy(), (log["pi_new"] / log["p"]).to_numpy(), log["user"].to_numpy()

    def units(excess, where):
        if cluster is None:
            return excess[where]
        return np.array([excess[where & (user == one)].sum() for one in np.unique(user[where])])

    whole = np.ones(len(p), dtype=bool)
    expected = {}
    for name in ("country", "day"):
        values = log[name].cast(pl.String).to_numpy()
        for value in np.unique(values):
            inside = values == value
            expected[name, value] = plain(name, value, "pi_new", inside.sum(), units(w - 1, inside))
    for a in range(10):
        excess = (log["action"].to_numpy() == a) / p - 1
        expected["action", str(a)] = plain("action", str(a), None, len(p), units(excess, whole))
    assert found.looks == len(found.checks) == len(expected)
    for one in found.checks:
        other = expected[one.by, one.part]
        assert (one.target, one.rows) == (other.target, other.rows)
        numbers = [(x.mean, x.lower, x.upper, x.p) for x in (one, other)]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-10, nan_ok=True)


@pytest.mark.parametrize("cluster", [None, "user"])
def test_the_calibration_is_that_of_numpy(cluster):
    log = shelf(np.random.default_rng(2), 4_000, off=1.1)
    found = calibration_of(log.lazy(), log.schema, "action", "q", cluster)
    q, action, user = log["q"].to_numpy(), log["action"].to_numpy(), log["user"].to_numpy()
    residual, variance = [], np.zeros((len(found.bins),) * 2)
    inside = [(q > one.low) & (q <= one.high) for one in found.bins]
    mass = np.stack([(q * where).sum(axis=1) for where in inside], axis=1)
    taken = np.stack([where[np.arange(len(q)), action] for where in inside], axis=1)
    residual = taken - mass
    if cluster is None:
        variance = np.diag(mass.sum(axis=0)) - mass.T @ mass
    else:
        totals = np.stack([residual[user == one].sum(axis=0) for one in np.unique(user)])
        variance = totals.T @ totals
    whole = residual.sum(axis=0)
    assert found.freedom == len(found.bins) - 1 > 3
    drop = slice(0, -1)  # residuals sum to 0, so that any one bin can be left out
    assert found.chi_square == pytest.approx(whole[drop] @ np.linalg.solve(variance[drop, drop], whole[drop]), rel=1e-8)
    assert [one.z for one in found.bins] == pytest.approx(whole / np.sqrt(np.diag(variance)), rel=1e-10)
    assert [one.observed for one in found.bins] == pytest.approx(
        [taken[:, k].sum() / inside[k].sum() for k in range(len(inside))]
    )
    assert [one.predicted for one in found.bins] == pytest.approx([q[where].mean() for where in inside], rel=1e-10)


def test_a_distribution_in_columns_or_by_action_is_one_in_a_list():
    log = shelf(np.random.default_rng(3), 2_000)
    names = [f"q{k}" for k in range(10)]
    wide = log.with_columns(log["q"].arr.get(k).alias(name) for k, name in enumerate(names)).drop("q")
    asked = cp.doctor(log).audit.calibration
    listed = cp.doctor(wide, probabilities=names).audit.calibration
    word = wide.with_columns(action=pl.lit("item ") + pl.col("action").cast(pl.String))
    by_action = cp.doctor(word, probabilities={f"item {k}": name for k, name in enumerate(names)}).audit.calibration
    assert asked.column == "q"
    assert cp.doctor(wide).audit.calibration is None
    assert listed.chi_square == by_action.chi_square == pytest.approx(asked.chi_square, rel=1e-12)
    with refuses(cp.CounterpoiseError):
        cp.doctor(word, probabilities=names)
    broken = log.with_columns(pl.when(pl.int_range(pl.len()) < 7).then(None).otherwise("q").alias("q"))
    assert any(
        "in 7 rows the probabilities of all actions" in one.message
        for one in cp.doctor(broken, probabilities="q").findings
    )


@pytest.mark.thorough
def test_a_wrong_temperature_shows_by_action_where_the_mean_weight_of_a_target_hides_it():
    """At level 0.05, 200 logs had 98 % found by action, all by the table and 7 % by the overall mean weight.

    Of 60 logs, fewer than 51, or more than 15 by the overall mean, would be more than five errors from that.
    """
    random = np.random.default_rng(4)
    by_action, by_table, overall = 0, 0, 0
    for _ in range(60):
        log = shelf(random, off=1.1)
        found = audited(log)
        by_action += any(one.corrected_p <= 0.05 for one in found.checks if one.target is None)
        by_table += found.calibration.corrected_p <= 0.05
        excess = (log["pi_new"] / log["p"] - 1).to_numpy()
        overall += check("", "", "pi_new", log.height, Powers.of(excess)).p <= 0.05
    print(f"by action {by_action}, by table {by_table}, overall {overall} of 60")
    assert by_action >= 51
    assert by_table >= 51
    assert overall <= 15


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("world", "size", "parts"),
    [(shelf, {"n": 5_000}, {}), (catalog, {}, {}), (uneven, {}, {}), (users, {}, {"cluster": "user"})],
    ids=["shelf", "catalog", "uneven", "users"],
)
def test_right_propensities_are_seldom_doubted(world, size, parts):
    """At most twice the level of 0.05 over 300 logs; at the level itself, more than that would have a chance of 2e-4."""
    random = np.random.default_rng(5)
    doubted = 0
    for _ in range(LOGS):
        log = world(random, **size)
        found = audited(log, segment=["country"], **parts)
        p = [one.corrected_p for one in found.checks] + ([found.calibration.corrected_p] if found.calibration else [])
        doubted += any(one <= 0.05 for one in p)
    print(f"{doubted} of {LOGS} doubted")
    assert doubted <= 2 * 0.05 * LOGS


def test_holm_counts_the_looks_that_told_nothing():
    assert holm([0.01, math.nan, 0.04], 10) == pytest.approx([0.1, math.nan, 0.36], nan_ok=True)
    assert holm([0.2, 0.001, 0.3]) == pytest.approx([0.4, 0.003, 0.4])
    assert holm([]) == []


def test_few_rows_raise_no_alarm():
    """29 rows of a segment whose weights are all 5 or 6: wrong beyond doubt, and yet too few for a test to say so."""
    log = shelf(np.random.default_rng(6), 3_000)
    small = log.head(29).with_columns(country=pl.lit("IS"), pi_new=0.5 + 0.1 * (pl.int_range(pl.len()) % 2), p=0.1)
    found = audited(pl.concat([log, small.select(log.columns)]), segment=["country"])
    (one,) = (one for one in found.checks if one.part == "IS")
    assert (one.status, one.rows, one.mean > 5) == ("cannot tell", 29, True)
    assert math.isnan(one.p)


def test_an_action_that_was_seldom_eligible_raises_no_alarm_and_one_too_often_taken_does():
    random, n = np.random.default_rng(7), 10_000
    eligible = random.random(n) < 0.3
    mass = np.where(eligible[:, None], [0.4, 0.3, 0.3], [0.6, 0.4, 0.0])
    action = draw(random, mass)
    log = pl.DataFrame({"click": 1.0, "p": mass[np.arange(n), action], "pi_new": 0.5, "action": action})
    status = {one.part: one.status for one in audited(log).checks if one.target is None}
    assert status == {"0": "fine", "1": "fine", "2": "not always eligible"}
    assert not list(about_audit(audited(log), "p"))
    wrong = log.with_columns(p=pl.when(pl.col("action") == 1).then(pl.col("p") * 0.8).otherwise("p"))
    (said,) = about_audit(audited(wrong), "p")
    assert said.severity == "look"
    assert "too large for 1 action: for 1 it is 1.2" in said.message
    assert "propensities are too small" in said.message


def test_a_day_and_a_segment_with_wrong_propensities_are_named():
    log = shelf(np.random.default_rng(8), 10_000)
    time = pl.col("day").cast(pl.Datetime) + pl.duration(hours=pl.int_range(pl.len()) % 24)
    halved = pl.when(pl.col("day") == pl.date(1970, 1, 3)).then(pl.col("p") * 1.4).otherwise("p").clip(upper_bound=1.0)
    wrong = log.with_columns(p=halved).with_columns(day=time)
    found = cp.doctor(wrong, segment="country")
    assert {(one.by, one.part) for one in found.audit.alarms if one.by == "day"} == {("day", "1970-01-03")}
    assert any("where day is 1970-01-03, it is 0.7" in one.message for one in found.findings)
    again = cp.doctor(wrong.with_columns(other=pl.col("day")), day="day").audit  # of two dates, one must be named
    assert [one for one in again.checks if one.by == "day"]
    assert not [one for one in cp.doctor(wrong.with_columns(other=pl.col("day"))).audit.checks if one.by == "day"]


def test_bad_rows_and_missing_values_are_left_out():
    log = shelf(np.random.default_rng(9), 3_000)
    bad = pl.int_range(pl.len()) % 100
    dirty = log.with_columns(
        p=pl.when(bad == 0).then(0.0).when(bad == 1).then(None).otherwise("p"),
        pi_new=pl.when(bad == 2).then(1.5).when(bad == 3).then(math.nan).otherwise("pi_new"),
    )
    clean = {(one.by, one.part): one for one in audited(log.filter(bad > 3)).checks if one.target}
    for one in audited(dirty).checks:
        if one.target:
            other = clean[one.by, one.part]
            assert (one.rows, one.mean, one.p) == pytest.approx((other.rows, other.mean, other.p), nan_ok=True)
        else:
            assert one.rows == log.filter(bad > 1).height


def test_a_column_that_is_not_there_is_an_error():
    log = shelf(np.random.default_rng(10), 100)
    for asked in ({"segment": "land"}, {"day": "land"}, {"probabilities": "land"}, {"probabilities": {0: "land"}}):
        with refuses(cp.CounterpoiseError):
            cp.doctor(log, **asked)
    with refuses(cp.CounterpoiseError):
        cp.doctor(log, probabilities="country")


def test_the_command_line_prints_the_audit(tmp_path):
    log = shelf(np.random.default_rng(11), 20_000, off=1.2)
    log.write_parquet(tmp_path / "log.parquet")
    asked = ["doctor", str(tmp_path / "log.parquet"), "--segment", "country", "--day", "day", "--cluster", "user"]
    text = invoke(*asked).stdout
    assert "Mean weights of 20 parts of the log, the most significant first" in text
    assert "too large" in text
    assert "How often actions were taken, by their probability in q" in text
    found = json.loads(invoke(*asked, "--json").stdout)["audit"]
    assert found["looks"] == len(found["checks"]) == 20
    assert found["calibration"]["corrected_p"] < 0.001
    pl.read_parquet(tmp_path / "log.parquet").with_columns(
        pl.col("q").arr.get(k).alias(f"q{k}") for k in range(10)
    ).drop("q").write_parquet(tmp_path / "wide.parquet")
    wide = [word for k in range(10) for word in ("--probabilities", f"{k}=q{k}")]
    again = json.loads(invoke("doctor", str(tmp_path / "wide.parquet"), *wide, "--cluster", "user", "--json").stdout)[
        "audit"
    ]
    assert again["calibration"]["chi_square"] == pytest.approx(found["calibration"]["chi_square"], rel=1e-9)


def test_the_picture_has_a_line_for_every_part_and_alarms_on_top():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    found = cp.doctor(shelf(np.random.default_rng(12), 20_000, off=1.2), segment="country")
    axes = found.plot_propensities()
    labels = [one.get_text() for one in axes.get_yticklabels()]
    assert len(labels) == 20
    alarms = [" (too " in one for one in labels]
    assert alarms == sorted(alarms, reverse=True)
    assert sum(alarms) == len(found.audit.alarms) > 0
    pyplot.close(axes.figure)
    with refuses(cp.CounterpoiseError):
        cp.doctor(pl.DataFrame({"click": [1, 0], "p": [0.5, 0.5]})).plot_propensities()
