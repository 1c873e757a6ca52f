"""A proxy for every row, the reward for some: answers against NumPy and from every source, checks of labels, and what is refused."""

import json
import uuid

import numpy as np
import polars as pl
import pytest
from messages import refuses

import counterpoise as cp
from counterpoise.errors import LogError, OptionError
from counterpoise.log.kinds import reduced
from counterpoise.log.kinds.labeled import FEW_LABELS, LABELED
from counterpoise.moments import Moments
from counterpoise.moments.columns import ROW

pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'future.infer_string' option"),  # ibis sets it, pandas 3 regrets it
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

N = 3_000
LABELS = {"proxy": "judge", "observed": "labeled"}
ASK = {"reward": "reward", "propensity": "p", "target": "new"} | LABELS
NAMES = ("ips", "snips", "beta_ips", "lift")


def a_log(seed=0, rate=0.2, n=N):
    """Clicks that a judge sees with an error; every fifth or so is labeled, and elsewhere the reward is anything."""
    random = np.random.default_rng(seed)
    action, x = random.integers(0, 3, n), random.random(n)
    truth = (random.random(n) < 0.1 + 0.2 * action + 0.2 * x).astype(float)
    judge = np.clip(0.2 + 0.5 * truth + random.normal(0.0, 0.2, n) + 0.05 * action, 0.0, 1.0)
    chance = np.full(n, rate) if rate < 0.5 else np.clip(0.1 + 0.8 * judge, 0.0, 1.0)
    labeled = random.random(n) < chance
    return pl.DataFrame(
        {
            "reward": np.where(labeled, truth, random.choice([np.nan, 7.0, -1e6], n)), "judge": judge, "labeled": labeled, "chance": chance,
            "p": np.full(n, 1 / 3), "new": np.array([0.1, 0.3, 0.6])[action], "old": np.array([0.5, 0.3, 0.2])[action],
            "region": random.choice(["north", "south"], n), "user": random.integers(0, 200, n), "x": x,
        }
    ).with_columns(pl.col("reward").fill_nan(None))  # fmt: skip


# -- against NumPy ----------------------------------------------------------------------------------------------------


def least_squares(y, *controls):
    x = np.stack([column - column.mean() for column in controls], axis=1)
    return np.linalg.lstsq(x, y - y.mean(), rcond=None)[0]


def by_hand(log, target="new", chance=None):
    """Value and error of every estimator, from the rows themselves."""
    w, o = (log[target] / log["p"]).to_numpy(), log["labeled"].to_numpy().astype(float)
    r, g = np.where(o == 1, log["reward"].fill_null(0.0).to_numpy(), 0.0), log["judge"].to_numpy()
    o = o if chance is None else o / log[chance].to_numpy()
    u, k, n = w - 1, o / o.mean() - 1, len(w)

    def left(v, y, controls):
        """By fitted coefficients where labels are many, by a slope of 1 or 0 where they are few."""
        if (v * o).sum() ** 2 / ((v * o) ** 2).sum() >= FEW_LABELS:
            return y - least_squares(y, *controls, u)[: len(controls)] @ np.stack(controls)
        own = [[slope, (v * o * (r - slope * g)).sum() / (v * o).sum(), 0.0][: len(controls)] for slope in (1.0, 0.0)]
        return min((y - np.array(fixed) @ np.stack(controls) for fixed in own), key=np.var)

    value = left(w, w * o * r / o.mean(), (w * k * g, w * k, k))
    logged = left(np.ones(n), o * r / o.mean(), (k * g, k))
    change = value - logged
    terms = {
        "ips": value,
        "snips": (value - w * value.mean() / w.mean()) / w.mean() + value.mean() / w.mean(),
        "beta_ips": value - least_squares(value, u) * u,
        "lift": change - least_squares(change, u) * u,
        "logged": logged,
    }
    return {name: (row.mean(), row.std() / np.sqrt(n)) for name, row in terms.items()}


def numbers(result, target="new", segment=None):
    found = {name: (result[target, name, segment].value, result[target, name, segment].stderr) for name in NAMES}
    view = result.moments[target, segment]
    return found | {"logged": (view.center + view.average("s"), np.sqrt(view.covariance("s", "s") / view.n))}


def assert_same(found, expected, rel=1e-9):
    assert found.keys() == expected.keys()
    for name, pair in expected.items():
        assert found[name] == pytest.approx(pair, rel=rel, abs=1e-11), name


@pytest.mark.parametrize(
    "rate", [0.5, 0.2, 0.03, 0.006]
)  # by the judge, many, some, and few: the slope is fitted, or 1
def test_the_answer_is_that_of_numpy(rate):
    log = a_log(1, rate)
    chance = "chance" if rate == 0.5 else None
    result = cp.evaluate(log, **ASK, label_propensity=chance)
    assert_same(numbers(result), by_hand(log, chance=chance))
    assert result.moments.labels == log["labeled"].sum()


def test_with_few_labels_a_judge_on_another_scale_is_left_out():
    log = a_log(1, 0.006)
    far = log.with_columns(pl.col("judge") * 100)
    found = cp.evaluate(far, **ASK)
    assert_same(numbers(found), by_hand(far))
    # as good as the labels alone
    alone = cp.evaluate(log.filter("labeled"), reward="reward", propensity="p", target="new")
    assert found["new", "snips"].value == pytest.approx(alone["new", "snips"].value, abs=0.1)
    assert found["new", "snips"].stderr == pytest.approx(alone["new", "snips"].stderr, rel=0.3)


def test_a_difference_of_two_policies_is_that_of_numpy():
    log = a_log(2)
    found = cp.compare(log, **(ASK | {"target": ["new", "old"], "against": "old"}))
    o, k = log["labeled"].to_numpy().astype(float), log["labeled"].to_numpy() / log["labeled"].mean() - 1
    r, g = np.where(o == 1, log["reward"].fill_null(0.0).to_numpy(), 0.0), log["judge"].to_numpy()
    u = ((log["new"] - log["old"]) / log["p"]).to_numpy()
    y, controls = u * o * r / o.mean(), np.stack([u * k * g, u * k, k, u])
    row = y - least_squares(y, *controls) @ controls
    assert (found["new", "beta_ips"].value, found["new", "beta_ips"].stderr) == pytest.approx(
        (row.mean(), row.std() / np.sqrt(N)), rel=1e-9
    )


def test_the_difference_from_what_ran_is_the_lift():
    log = a_log(2)
    one, other = cp.compare(log, **ASK)["new", "beta_ips"], cp.evaluate(log, **ASK)["new", "lift"]
    assert (one.value, one.stderr) == pytest.approx((other.value, other.stderr), rel=1e-9)


def test_where_all_rows_are_labeled_the_judge_does_not_matter():
    log = a_log().with_columns(labeled=True, reward=pl.col("x"))
    plain = cp.evaluate(log, reward="reward", propensity="p", target="new")
    for judge in ("judge", "p", "reward"):
        found = cp.evaluate(log, **(ASK | {"proxy": judge}))
        for name in NAMES:
            a, b = found["new", name], plain["new", name]
            assert (a.value, a.stderr, *a.interval) == pytest.approx((b.value, b.stderr, *b.interval), rel=1e-9), (
                judge,
                name,
            )


def test_a_constant_moves_the_value_and_not_the_error():
    log = a_log()
    far = log.with_columns(pl.col("reward") + 1000.0, pl.col("judge") * 3 - 40)
    near, moved = (numbers(cp.evaluate(one, **ASK)) for one in (log, far))
    for name in (
        "snips",
        "beta_ips",
        "lift",
        "logged",
    ):  # whereas ips has the noise of the mean weight, times the constant
        value, error = near[name]
        assert moved[name] == pytest.approx((value + (name != "lift") * 1000.0, error), rel=1e-7), name


# -- from every source ------------------------------------------------------------------------------------------------

ASKED = (
    {"label_propensity": "chance"},
    {"segment": "region", "where": "x > 0.3"},
    {"cluster": "user", "segment": "region", "label_propensity": 0.5},
    {"baseline": ["x"]},
)


def answers(log, more=ASKED, **where):
    found = []
    for parts in more:
        for ask in (cp.evaluate, cp.compare):
            result = ask(log, **ASK, **parts, **where, progress=False)
            for (_, name, segment), one in sorted(result.estimates.items(), key=str):
                found += [
                    (name, str(segment), one.value),
                    (name, str(segment), one.stderr),
                    *((name, "", end) for end in one.interval),
                ]
            found += [(str(caveat.code), "", 0.0) for verdict in result.verdicts.values() for caveat in verdict.caveats]
            found.append(("labels", "", float(result.moments.labels)))
    return found


def assert_alike(found, expected):
    assert [one[:2] for one in found] == [one[:2] for one in expected]
    assert [one[2] for one in found] == pytest.approx([one[2] for one in expected], rel=1e-9, abs=1e-11)


@pytest.fixture(scope="module")
def expected():
    return answers(a_log(3, 0.5))


SOURCES = {
    "arrays": lambda log, folder: {name: log[name].to_numpy() for name in log.columns},
    "pandas": lambda log, folder: log.to_pandas(),
    "lazy": lambda log, folder: log.lazy(),
    "arrow": lambda log, folder: log.to_arrow(),
    "parquet": lambda log, folder: (log.write_parquet(folder / "log.parquet"), folder / "log.parquet")[1],
    "csv": lambda log, folder: (log.write_csv(folder / "log.csv"), folder / "log.csv")[1],
}


def test_sqlite_agrees(tmp_path):
    ibis = pytest.importorskip("ibis")
    connection = ibis.sqlite.connect(tmp_path / "log.sqlite")
    connection.create_table("log", a_log(3, 0.5).to_arrow())
    assert_alike(answers(connection.table("log"), ASKED[:1]), answers(a_log(3, 0.5), ASKED[:1]))
    connection.disconnect()


def test_postgresql_agrees(postgres, expected):
    import psycopg

    table = f"labels_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(
            f"create table {table} (reward float8, judge float8, labeled boolean, chance float8, p float8, new float8, old float8, "
            'region text, "user" bigint, x float8)'
        )
        with connection.cursor().copy(f"copy {table} from stdin") as copy:
            for row in a_log(3, 0.5).rows():
                copy.write_row(row)
        try:
            assert_alike(answers(postgres, table=table), expected)
        finally:
            connection.execute(f"drop table {table}")


# -- what rows may be -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("reward", None, "labeled"), ("judge", None, "proxy 'judge' must be a finite number"),
        ("labeled", None, "observed 'labeled' must be 1 or 0"), ("chance", 0.0, r"label_propensity 'chance' must lie in \(0, 1\]"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("rows", [N, 3 * 10_000])
def test_bad_rows_are_refused_in_words_or_dropped(column, value, words, rows):
    log = a_log(5, 0.5, rows).with_row_index()
    first = log.filter(pl.col("labeled"))["index"][7]
    bad = log.with_columns(
        pl.when(pl.col("index") == first).then(pl.lit(value)).otherwise(pl.col(column)).alias(column)
    )
    with pytest.raises(LogError, match=words) as refused:
        cp.evaluate(bad, **ASK, label_propensity="chance")
    assert f"row {first:,}" in str(refused.value)
    assert "Also" not in str(refused.value)
    found = cp.evaluate(bad, **ASK, label_propensity="chance", drop_bad_rows=True)
    left = cp.evaluate(log.filter(pl.col("index") != first), **ASK, label_propensity="chance")
    assert found.dropped_rows == 1
    assert numbers(found)["beta_ips"] == pytest.approx(numbers(left)["beta_ips"], rel=1e-9)


def test_who_was_labeled_says_yes_or_no():
    log = a_log().with_columns(labeled=pl.col("labeled") * 0.5)
    with refuses(LogError):
        cp.evaluate(log, **ASK)


def test_a_segment_without_labels_is_not_identified():
    log = a_log().with_columns(labeled=pl.col("labeled") & (pl.col("region") == "north"))
    result = cp.evaluate(log, **ASK, segment="region")
    assert np.isnan(result["new", "beta_ips", "south"].value)
    assert result.verdict("new", "south").verdict == "not identified"
    assert [caveat.code for caveat in result.verdict("new", "south").caveats][-1] == "no-labels"
    assert result.verdict("new", "north").verdict == "ok"


def test_a_log_without_labels_says_so_and_can_still_be_added_to_a_state(tmp_path):
    log, state = a_log(), tmp_path / "state.json"
    today = cp.evaluate(log.with_columns(labeled=pl.lit(False)), **ASK, state=state, batch="today")
    assert today.verdict().verdict == "not identified"
    assert "cannot say" in str(today)
    later = cp.evaluate(log, **ASK, state=state, batch="later")
    assert later.moments.labels == log["labeled"].sum()
    assert np.isfinite(later["new", "beta_ips"].value)


# -- what labels are checked for --------------------------------------------------------------------------------------


def codes(result):
    return [caveat.code for caveat in result.verdict().caveats]


def test_few_labels_are_a_caution():
    few, many = (cp.evaluate(a_log(6, rate), **ASK) for rate in (0.01, 0.2))
    assert "few-labels" in codes(few)
    assert codes(many) == []


def test_rows_that_are_labeled_by_their_proxy_are_found_and_explained():
    log = a_log(7, 0.5)
    # the judge prefers some actions, so that those have more labels
    assert codes(cp.evaluate(log, **ASK)) == ["labels-not-at-random", BY_ACTION]
    assert codes(cp.evaluate(log, **ASK, label_propensity="chance")) == []
    wrong = cp.evaluate(log, **ASK, label_propensity="1 - chance / 2")
    assert "check them" in str(wrong.verdict())
    assert "labels-not-at-random" in codes(cp.evaluate(log, **ASK, cluster="user"))


BY_ACTION = "labels-depend-on-action"


def a_router(seed=0, wants="large", n=8_000, depends=True):
    """Answers of two models, of which the large one's are rated four times as often; a target that `wants` it, or what the prompt needs."""
    random = np.random.default_rng(seed)
    prompt, large = random.integers(0, 2, n), random.integers(0, 2, n)
    good = random.random(n) < np.array([[0.3, 0.75], [0.5, 0.6]])[prompt, large]
    chance = np.where(large == 1, 0.16, 0.04) if depends else np.full(n, 0.1)
    rated = random.random(n) < chance
    is_wanted = large == (1 if wants == "large" else (prompt == 0))
    return pl.DataFrame(
        {
            "reward": np.where(rated, good, np.nan), "judge": random.random(n), "labeled": rated, "chance": chance, "p": np.full(n, 0.5),
            "new": np.where(is_wanted, 0.9, 0.1), "old": np.where(is_wanted, 0.1, 0.9), "model": np.array(["small", "large"])[large],
            "prompt": prompt, "user": random.integers(0, 900, n),
        }
    )  # fmt: skip


ROUTER_TRUTH = {
    "large": 0.9 * 0.675 + 0.1 * 0.4,
    "prompt": 0.5 * (0.9 * 0.75 + 0.1 * 0.3) + 0.5 * (0.9 * 0.5 + 0.1 * 0.6),
}


@pytest.mark.parametrize("wants", ROUTER_TRUTH)
@pytest.mark.parametrize("parts", [{}, {"action": "model"}, {"cluster": "user"}, {"segment": "prompt"}])
def test_labels_that_depend_on_the_action_are_found_and_their_probabilities_cure(wants, parts):
    log = a_router(1, wants)
    assert BY_ACTION in codes(cp.evaluate(log, **ASK, **parts))
    assert BY_ACTION in codes(cp.compare(log, **ASK | {"against": "old"}, **parts))
    for wrong in (0.1, 0.05, "0.2 * chance + 0.1"):
        found = cp.evaluate(log, **ASK, **parts, label_propensity=wrong)
        assert BY_ACTION in codes(found)
        assert "check them" in str(found.verdict())
    right = cp.evaluate(log, **ASK, **parts, label_propensity="chance")
    assert codes(right) == []
    assert (
        right["new", "beta_ips"].interval.lower - 0.03
        < ROUTER_TRUTH[wants]
        < right["new", "beta_ips"].interval.upper + 0.03
    )


def test_the_rows_with_more_labels_are_named():
    log = a_router(1)
    for parts in ({"action": "model"}, {"segment": "model"}, {}):
        (caveat,) = (one for one in cp.evaluate(log, **ASK, **parts).verdict().caveats if one.code == BY_ACTION)
        if "segment" not in parts:  # where weights tell, too
            assert sorted([caveat.numbers["share"], caveat.numbers["share_of_others"]]) == pytest.approx(
                [0.04, 0.16], abs=0.02
            )
        assert "label_propensity=" in caveat.do
    arrays = {name: log[name].to_numpy() for name in ("reward", "p", "judge", "labeled")}
    found = cp.evaluate(
        reward=arrays["reward"],
        propensity=arrays["p"],
        target=log["new"].to_numpy(),
        proxy=arrays["judge"],
        observed=arrays["labeled"],
    )
    (caveat,) = (one for one in found.verdict().caveats if one.code == BY_ACTION)
    assert caveat.numbers["weight"] == pytest.approx(0.8 * 1.8 + 0.2 * 0.2, abs=0.1)


def test_a_segment_with_more_labels_is_found_although_its_own_answer_is_right():
    random, log = np.random.default_rng(2), a_router(2, depends=False)
    labeled = log["labeled"] | pl.Series(random.random(log.height) < 0.1 * (log["prompt"] == 1).to_numpy())
    log = log.with_columns(labeled=labeled, reward=pl.when(labeled).then(pl.col("reward").fill_nan(0.5)))
    for parts in ({}, {"cluster": "user"}):
        result = cp.evaluate(log, **ASK, segment="prompt", **parts)
        assert codes(result) == [BY_ACTION]
        assert result.verdict("new", 0).verdict == result.verdict("new", 1).verdict == "ok"


@pytest.mark.thorough
@pytest.mark.once
def test_labels_at_random_are_not_doubted():
    doubted = 0
    for seed in range(40):
        log = a_router(seed, ["large", "prompt"][seed % 2], n=3_000, depends=False)
        for parts in ({}, {"action": "model", "segment": "prompt"}, {"cluster": "user", "label_propensity": "chance"}):
            doubted += BY_ACTION in codes(cp.evaluate(log, **ASK, **parts))
    assert doubted <= 2  # of 120, at p = 0.001 for each of three looks


@pytest.mark.parametrize("source", [*SOURCES, "duckdb"])
def test_labels_by_action_are_found_wherever_the_rows_are(source, tmp_path):
    log = a_router(1, "prompt")
    data = (
        pytest.importorskip("duckdb").sql("select * from log") if source == "duckdb" else SOURCES[source](log, tmp_path)
    )
    for parts in ({"action": "model"}, {}):
        assert BY_ACTION in codes(cp.evaluate(data, **ASK, **parts))
    assert BY_ACTION not in codes(cp.evaluate(data, **ASK, action="model", label_propensity="chance"))


def test_a_state_knows_of_labels_by_weight(tmp_path):
    log, state = a_router(1), tmp_path / "state.json"
    for k in range(2):
        cp.evaluate(log[k * 4_000 : (k + 1) * 4_000], **ASK, state=state, batch=str(k))
    assert BY_ACTION in codes(cp.evaluate(state=state))


def moments_of(w, r, g, o):
    z = np.stack([w - 1, o * r, (w - 1) * o * r, o, (w - 1) * o, g, (w - 1) * g, o * g, (w - 1) * o * g])
    z, mean = z - z.mean(axis=1, keepdims=True), z.mean(axis=1)
    return Moments(len(w), mean, z @ z.T, 0.0, (*ROW, *LABELED))


@pytest.mark.thorough
def test_errors_are_right_and_a_useless_judge_costs_next_to_nothing():
    """The sd of many answers is the error that each has; beside labels alone, a judge that knows nothing costs about 1/labels."""
    from counterpoise.estimators import beta_ips

    random, runs, n, rate = np.random.default_rng(0), 800, 1_500, 0.15
    found = []
    for _ in range(runs):
        a = random.random(n) < 0.5
        w, r = np.where(a, 1.6, 0.4), (random.random(n) < 0.2 + 0.4 * a).astype(float)
        o, noise = (random.random(n) < rate).astype(float), random.normal(size=n)
        made = [beta_ips(reduced(moments_of(w, r, g, o))) for g in (np.zeros(n), noise, 0.3 * r + 0.05 * noise)]
        found.append([(one.value, one.stderr) for one in made])
    values, errors = np.moveaxis(np.array(found), -1, 0)
    sd, noise_of_sd = values.std(axis=0), 1 / np.sqrt(2 * runs)
    assert errors.mean(axis=0) / sd == pytest.approx(1.0, abs=4 * noise_of_sd + 0.02)
    assert np.abs(values.mean(axis=0) - 0.52) == pytest.approx(0.0, abs=4 * sd.max() / np.sqrt(runs))
    # of the same logs, so that the two variances move together
    assert (sd[1] / sd[0]) ** 2 < 1 + 4 / (rate * n)
    assert sd[2] < 0.6 * sd[0]


# -- words, and what is refused ---------------------------------------------------------------------------------------


def test_words_and_json_say_how_many_are_labeled(tmp_path):
    from command_line import invoke

    log = a_log()
    labels = log["labeled"].sum()
    result = cp.evaluate(log, **ASK)
    assert f"{N:,} rows, {labels:,} of them labeled" in str(result)
    assert f"{labels:,} of them labeled" in result.report(tmp_path / "page.html").read_text(encoding="utf-8").replace(
        "\u00a0", " "
    )
    log.write_parquet(tmp_path / "log.parquet")
    typed = [
        "--reward",
        "reward",
        "--propensity",
        "p",
        "--target",
        "new",
        "--proxy",
        "judge",
        "--observed",
        "labeled",
        "--json",
    ]
    printed = json.loads(invoke("evaluate", tmp_path / "log.parquet", *typed).stdout)
    assert printed["labels"] == labels


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"observed": None}, "observed"), ({"proxy": None}, "proxy"), ({"keep": 0.5}, "keep"), ({"reward": ["reward", "x"]}, "one reward"),
        ({"model": "auto", "action": "p", "context": ["x"]}, "model"), ({"propensity": "model"}, "proxy"),
        ({"slate": "user", "position": "x", "propensity_of": "item_at_position"}, "slate"), ({"label_propensity": 1.5}, "label_propensity"),
        ({"interval": "bernstein", "reward_bounds": (0, 1)}, "bernstein"),
    ],
)  # fmt: skip
def test_what_does_not_go_with_a_proxy_is_refused_in_words(parts, words):
    with pytest.raises(OptionError, match=words):
        cp.evaluate(a_log(), **{name: value for name, value in (ASK | parts).items() if value is not None})


def test_other_verbs_say_to_ask_about_labeled_rows():
    for verb in (cp.doctor, cp.sensitivity, cp.distribution):
        with refuses(OptionError):
            verb(a_log(), **ASK)
    with refuses(OptionError):
        cp.evaluate(a_log(), **ASK).check_coverage(runs=10)


def test_ranking_and_weights_that_trade_bias_take_a_proxy():
    log = a_log()
    ranked = cp.rank(log, **(ASK | {"target": ["new", "old"]}))
    assert [one.target for one in ranked] == ["new", "old"]
    clipped = cp.evaluate(log, **ASK, weight=cp.weights.Clip(1.2))
    assert clipped["new", "snips"].value < cp.evaluate(log, **ASK)["new", "snips"].value


# -- rewards that are missing, where nobody has said that some rows are unlabeled --------------------------------------


@pytest.mark.parametrize("missing", [None, np.nan])
@pytest.mark.parametrize("source", ["frame", "arrays", "file", "duckdb"])
def test_a_missing_reward_names_the_proxy_that_cures_it(source, missing, tmp_path):
    log = a_log().with_columns(pl.when("labeled").then("reward").otherwise(pl.lit(missing, pl.Float64)).alias("reward"))
    ask, more = {name: part for name, part in ASK.items() if name not in LABELS}, {}
    data = log
    if source == "arrays":
        data = {name: log[name].to_numpy() for name in log.columns}
    elif source == "file":
        data = tmp_path / "log.parquet"
        log.write_parquet(data)
    elif source == "duckdb":
        duckdb = pytest.importorskip("duckdb")
        data, more = tmp_path / "log.duckdb", {"table": "log"}
        with duckdb.connect(str(data)) as connection:
            rows = log.to_arrow()  # noqa: F841
            connection.execute("CREATE TABLE log AS SELECT * FROM rows")
    with pytest.raises(LogError) as error:
        cp.evaluate(data, **ask, **more)
    said = str(error.value)
    assert all(f"{part}=" in said for part in (*LABELS, "drop_bad_rows"))
    cured = cp.evaluate(data, **ask, **more, **LABELS)
    assert cured["new", "beta_ips"].value == pytest.approx(
        cp.evaluate(a_log(), **ASK)["new", "beta_ips"].value, rel=1e-9
    )
    assert cp.evaluate(data, **ask, **more, drop_bad_rows=True).verdict().verdict != "ok"
