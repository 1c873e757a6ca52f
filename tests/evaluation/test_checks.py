"""What evaluate, compare, ab_test and the doctor say of single rows: ids that move together, lists as rows, odd propensities."""

import duckdb
import numpy as np
import polars as pl
import pytest
from messages import refuses

import counterpoise as cp
from counterpoise.cli.options import cluster_of
from counterpoise.cli.wording import as_option, options_are, written
from counterpoise.diagnostics import CODES
from counterpoise.diagnostics.together import moving_together
from counterpoise.engines.registry import Files, LogEngine, columns_of, rows
from counterpoise.engines.sampling import First, Ids, Spread
from counterpoise.errors import LogError, OptionError
from counterpoise.evaluation.asking import question_of
from counterpoise.log.log import Log
from counterpoise.log.parts import ids_among

ASKED = {"reward": "r", "propensity": "p", "target": "t"}
TOGETHER, LISTS, MEANING, MISREAD = (
    "rows-move-together",
    "lists-as-rows",
    "propensity-meaning",
    "propensities-not-probabilities",
)


def a_log(n=4000, users=400, taste=1.5, seed=0, text=False):
    """Clicks of users who come again; `taste` is what a user's rows share."""
    g = np.random.default_rng(seed)
    user, action = g.integers(0, users, n), g.integers(0, 2, n)
    mood = taste * g.normal(size=users)[user]
    return pl.DataFrame(
        {
            "user_id": [f"u{k}" for k in user] if text else user,
            "action": action,
            "p": np.full(n, 0.5),
            "t": np.where(action == 1, 0.8, 0.2),
            "r": (g.random(n) < 1 / (1 + np.exp(1 - mood))).astype(float),
            "x": g.normal(size=n),
        }
    )


def caveats(result, code):
    return [one for one in result.verdict().caveats if one.code == code]


@pytest.mark.parametrize("copies", [2, 3, 10])
def test_rows_that_are_there_several_times_are_named_unless_a_key_or_cluster_tells(copies):
    log = a_log(taste=0.0).drop("user_id").head(4000 // copies)
    twice = pl.concat([log] * copies)
    (one,) = caveats(cp.evaluate(twice, **ASKED), "repeated-rows")
    assert one.numbers["repeated"] == twice.height - log.height
    assert not caveats(cp.evaluate(log, **ASKED), "repeated-rows")
    numbered = twice.with_columns(row=pl.int_range(pl.len()) % log.height)
    assert not caveats(cp.evaluate(numbered, **ASKED, cluster="row"), "repeated-rows")
    assert not caveats(cp.evaluate(twice, **ASKED, cluster=False), "repeated-rows")


def test_rows_that_another_column_tells_apart_are_no_repeats():
    """Every user comes twice, with the same propensities, and the time is different."""
    g = np.random.default_rng(0)
    p = np.repeat(g.random(1000) * 0.5 + 0.25, 2)
    log = pl.DataFrame({"p": p, "t": p, "r": np.zeros(2000), "time": np.arange(2000)})
    assert not caveats(cp.evaluate(log, **ASKED), "repeated-rows")
    assert not caveats(cp.evaluate(log.drop("time"), **ASKED), "repeated-rows")  # nothing is left that could tell
    assert caveats(cp.evaluate(log.with_columns(time=pl.col("time") // 2), **ASKED), "repeated-rows")


@pytest.mark.parametrize("kind", ["clipped reward", "clipped column", "usual price", "price of the action"])
def test_rows_that_share_a_usual_value_are_no_repeats_unless_they_were_sent_again(kind):
    g = np.random.default_rng(0)
    log = a_log(taste=0.0).drop("user_id", "x").with_columns(country=g.integers(0, 5, 4000))
    score, action = g.normal(0.5, 0.5, 4000), log["action"].to_numpy()
    column = {
        "clipped reward": lambda: {"r": score.clip(0, 1)},
        "clipped column": lambda: {"score": score.clip(0, 1)},
        "usual price": lambda: {"price": np.where(g.random(4000) < 0.3, 9.99, np.exp(score))},
        "price of the action": lambda: {"price": np.where(g.random(4000) < 0.3, 5.0 + action, np.exp(score))},
    }[kind]()
    once = log.with_columns(**{name: pl.Series(values) for name, values in column.items()})
    again = pl.concat([once, once.head(400)])
    for kept, are_odd in ((once, False), (again, True), (pl.concat([once, once]), True)):
        assert bool(caveats(cp.evaluate(kept, **ASKED), "repeated-rows")) == are_odd
        assert bool([one for one in cp.doctor(kept, **ASKED).findings if one.about == "rows"]) == are_odd


def test_rows_of_few_coarse_columns_repeat_by_chance():
    log = a_log(taste=0.0).select("action", "p", "t", "r")  # eight different rows
    assert cp.evaluate(log, **ASKED).verdict().verdict == "ok"


def test_rows_of_one_user_that_move_together_are_named_with_how_much_wider_the_interval_is():
    log = a_log()
    result = cp.evaluate(log, **ASKED)
    (one,) = caveats(result, TOGETHER)
    assert result.verdict().verdict == "caution"
    assert "cluster='user_id'" in one.do
    right = cp.evaluate(log, **ASKED, cluster="user_id")
    wider = right["t", "beta_ips"].stderr / result["t", "beta_ips"].stderr
    assert one.numbers["factor"] == pytest.approx(wider, rel=0.15)
    assert (one.numbers["ids"], one.numbers["rows"]) == (400, 4000)
    assert right.verdict().verdict == "ok"
    assert not right.verdict().caveats


def test_clusters_that_are_refused_are_not_looked_for():
    assert cp.evaluate(a_log(), **ASKED, cluster=False).verdict().verdict == "ok"
    log = Log(a_log(), reward="r", propensity="p", cluster=False)
    assert log.but(where="x > 0").rows_are_independent
    assert "cluster=False" in repr(log)
    assert not caveats(cp.evaluate(log, target="t"), TOGETHER)
    assert cp.evaluate(log.but(cluster="user_id"), target="t").moments.cluster == "user_id"


@pytest.mark.once
def test_independent_rows_of_users_who_come_again_are_not_doubted():
    doubted = sum(bool(caveats(cp.evaluate(a_log(1000, 150, 0.0, seed), **ASKED), TOGETHER)) for seed in range(60))
    assert doubted <= 2  # 0.5 % of logs are, at most: three would come in one of 300 cases


@pytest.mark.parametrize("source", ["pandas", "arrow", "lazy", "mapping", "parquet", "csv", "ndjson", "duckdb", "text"])
def test_whole_ids_are_looked_at_wherever_the_rows_are(source, tmp_path):
    log = a_log(12_000, 1500, text=source == "text")
    connection = duckdb.connect()
    path = tmp_path / f"log.{source}"
    if source in ("parquet", "csv", "ndjson"):
        getattr(log, f"write_{source}")(path)
    data = {
        "pandas": log.to_pandas,
        "arrow": log.to_arrow,
        "lazy": log.lazy,
        "mapping": lambda: {name: log[name].to_numpy() for name in log.columns},
        "duckdb": lambda: connection.from_arrow(log.to_arrow()),
        "text": lambda: log,
    }.get(source, lambda: path)()
    (one,) = caveats(cp.evaluate(data, **ASKED), TOGETHER)
    assert 2000 < one.numbers["rows"] < 8000  # a sample
    assert one.numbers["rows"] / one.numbers["ids"] == pytest.approx(8, rel=0.15)  # of whole ids
    assert one.numbers["factor"] == pytest.approx(1.6, rel=0.15)


def test_of_nested_ids_the_one_that_widens_the_interval_most_is_named():
    log = a_log().with_columns(session_id=pl.col("user_id") * 10 + pl.int_range(pl.len()) % 3)
    (one,) = caveats(cp.evaluate(log, **ASKED), TOGETHER)
    assert "cluster='user_id'" in one.do


def test_a_difference_is_judged_by_its_own_terms():
    # the users' tastes cancel in what the target earns more, because every choice is drawn on its own
    assert not caveats(cp.compare(a_log(), **ASKED), TOGETHER)
    g = np.random.default_rng(1)
    choice = g.integers(0, 2, 400)  # one for each user
    action = choice[a_log()["user_id"].to_numpy()]
    log = a_log().with_columns(action=pl.Series(action), t=pl.Series(np.where(action == 1, 0.8, 0.2)))
    assert caveats(cp.compare(log, **ASKED), TOGETHER)
    (ranked,) = cp.rank(log, **ASKED)
    assert ranked.decision == "undecided"


def test_every_reward_is_judged_by_itself():
    log = a_log().with_columns(y=pl.col("x"))
    result = cp.evaluate(log, **ASKED | {"reward": ["y", "r"]})
    assert not caveats(result, TOGETHER)
    assert caveats(result.by_reward["r"], TOGETHER)


def of_shops(name="shop_id", taste=1.0, seed=0, per=20, per_shop=False, text=True, n=4000):
    """Clicks in shops of about so many rows each; `per_shop` makes one choice for all rows of a shop."""
    g = np.random.default_rng(seed)
    shops = n // per
    shop = g.integers(0, shops, n)
    action = g.integers(0, 2, shops)[shop] if per_shop else g.integers(0, 2, n)
    mood, codes = taste * g.normal(size=shops)[shop], g.permutation(10 * shops)[shop]
    return pl.DataFrame(
        {
            name: [f"{k}@example.org" for k in codes] if text else codes, "p": np.full(n, 0.5), "t": np.where(action == 1, 0.8, 0.2),
            "r": (g.random(n) < 1 / (1 + np.exp(1 - mood))).astype(float), "flag": g.integers(0, 2, n), "x": g.normal(size=n),
        }
    )  # fmt: skip


@pytest.mark.parametrize("per_shop", [False, True])
@pytest.mark.parametrize(
    ("name", "text"), [("shop_id", False), ("store", True), ("sid", False), ("email", True), ("whoever", True)]
)
def test_rows_that_move_together_are_noticed_under_any_name(name, text, per_shop):
    log = of_shops(name, per_shop=per_shop, text=text)
    (one,) = caveats(cp.evaluate(log, **ASKED), TOGETHER)
    assert f"cluster={name!r}" in one.do
    assert one.numbers["factor"] == pytest.approx(2.2 if per_shop else 1.8, rel=0.2)
    assert not caveats(cp.evaluate(log, **ASKED, cluster=name), TOGETHER)
    assert not caveats(cp.evaluate(log, **ASKED, cluster=False), TOGETHER)
    for part in ("baseline", "context"):  # known before the choice, and not the unit
        assert not caveats(cp.evaluate(log, **ASKED, **{part: [name]}), TOGETHER)


@pytest.mark.parametrize("source", ["pandas", "lazy", "mapping", "parquet", "csv", "duckdb"])
@pytest.mark.parametrize("n", [4_000, 30_000])
def test_clusters_nobody_named_are_noticed_wherever_the_rows_are(source, n, tmp_path):
    log, path = of_shops(n=n), tmp_path / f"log.{source}"
    connection = duckdb.connect()  # which relations of older versions do not keep open
    if source in ("parquet", "csv"):
        getattr(log, f"write_{source}")(path)
    data = {
        "pandas": log.to_pandas, "lazy": log.lazy, "mapping": lambda: {name: log[name].to_numpy() for name in log.columns},
        "duckdb": lambda: connection.from_arrow(log.to_arrow()),
    }.get(source, lambda: path)()  # fmt: skip
    (one,) = caveats(cp.evaluate(data, **ASKED), TOGETHER)
    assert "cluster='shop_id'" in one.do


def test_tests_and_the_doctor_notice_clusters_that_nobody_named():
    log = of_shops(per_shop=True).with_columns(arm=pl.when(pl.col("t") > 0.5).then(pl.lit("B")).otherwise(pl.lit("A")))
    (one,) = cp.ab_test(log.drop("p", "t"), arm="arm", reward="r")["B"].verdict.caveats
    assert (one.code, "cluster='shop_id'" in one.do) == (TOGETHER, True)
    assert [said for said in cp.doctor(log, **ASKED).findings if "cluster='shop_id'" in said.message]


@pytest.mark.parametrize("feature", ["visits", "mins", "country", "context", "campaign", "widget"])
def test_what_describes_a_decision_is_no_cluster(feature):
    """Rewards depend on a number, smoothly, on a category with a common value, on one by its name, or on what was chosen."""
    g, n, doubted = np.random.default_rng([1, 2]), 4000, 0
    for seed in range(10):
        log = of_shops(taste=0.0, seed=seed)
        x = {
            "visits": lambda: g.poisson(40, n), "mins": lambda: g.integers(0, 48, n),
            "country": lambda: np.minimum(g.zipf(1.5, n), 60), "widget": lambda: g.integers(0, 40, n),
        }.get(feature, lambda: g.integers(0, 40, n))()  # fmt: skip
        effect = {"visits": (x - 40) / 6, "mins": np.sin(x / 48 * 2 * np.pi)}.get(
            feature, g.normal(size=x.max() + 1)[x]
        )
        log = log.with_columns(r=(g.random(n) < 1 / (1 + np.exp(1 - effect))).astype(float)).with_columns(
            **{feature: pl.Series(x)}
        )
        if feature == "widget":
            log = log.with_columns(p=pl.lit(1 / 40), t=pl.lit(1 / 40))
        doubted += bool(caveats(cp.evaluate(log, **ASKED), TOGETHER))
    assert doubted == 0


@pytest.mark.thorough
@pytest.mark.once
def test_independent_rows_of_columns_that_repeat_are_not_doubted():
    doubted = 0
    for seed in range(60):
        log = of_shops("store", 0.0, seed, text=bool(seed % 2), n=2000).with_columns(
            sid=pl.Series(np.random.default_rng(seed).integers(0, 150, 2000)), whoever=pl.int_range(2000) // 9
        )
        doubted += bool(caveats(cp.evaluate(log, **ASKED), TOGETHER))
    assert doubted <= 2


def test_a_test_whose_arms_are_constant_for_each_user_is_doubted():
    log = a_log()
    by_user = log.with_columns(arm=pl.when(pl.col("user_id") % 2 == 0).then(pl.lit("A")).otherwise(pl.lit("B")))
    (one,) = cp.ab_test(by_user, arm="arm", reward="r")["B"].verdict.caveats
    assert one.code == TOGETHER
    assert one.numbers["factor"] > 1.4
    assert cp.ab_test(by_user, arm="arm", reward="r").document()["effects"][0]["caveats"][0]["code"] == TOGETHER
    assert cp.ab_test(by_user, arm="arm", reward="r", cluster=False)["B"].verdict.verdict == "ok"
    by_row = log.with_columns(arm=pl.col("action").cast(pl.String))
    assert cp.ab_test(by_row, arm="arm", reward="r")["1"].verdict.verdict == "ok"


def test_the_doctor_says_that_rows_move_together():
    log = a_log().rename({"t": "pi_new"})
    assert [one for one in cp.doctor(log, reward="r").findings if "cluster='user_id'" in one.message]
    assert not [one for one in cp.doctor(log, reward="r", cluster=False).findings if "move together" in one.message]


@pytest.mark.parametrize(
    "column", [np.arange(4000), np.arange(4000) % 7, np.random.default_rng(0).random(4000)], ids=["key", "few", "float"]
)
def test_keys_segments_and_measurements_are_no_ids(column):
    log = a_log().with_columns(user_id=pl.Series(column), r=pl.Series(column % 2 > 0.5).cast(pl.Float64))
    assert not caveats(cp.evaluate(log, **ASKED), TOGETHER)


def test_what_was_chosen_is_no_id_of_whoever_came():
    names = ["user_id", "userId", "visitor", "session", "device_id", "uid", "item_id", "product_id", "n_sessions"]
    names += ["is_new_user", "session_number", "category_id", "panel_id", "action_id", "r"]
    assert list(ids_among(names)) == ["user_id", "userId", "visitor", "session", "device_id", "uid", "panel_id"]
    g = np.random.default_rng(0)
    share = g.dirichlet(np.ones(40))
    chosen = g.choice(40, 4000, p=share)
    t = g.dirichlet(np.ones(40))
    rows = {"widget_id": chosen, "p": share[chosen], "t": t[chosen], "r": (g.random(4000) < g.random(40)[chosen])}
    assert not caveats(cp.evaluate(pl.DataFrame(rows), **ASKED), TOGETHER)


def test_what_python_computes_is_looked_at_too():
    class Policy:
        classes_ = np.array([0, 1])

        def predict_proba(self, context):
            return np.tile([0.3, 0.7], (len(context), 1))

    asked = {"reward": "r", "propensity": "p", "action": "action", "context": "x"}
    assert caveats(cp.evaluate(a_log(), target=Policy(), **asked), TOGETHER)


@pytest.mark.thorough
@pytest.mark.once
def test_the_test_of_ids_holds_its_level_where_terms_are_skewed_or_users_are_unequal():
    g, found = np.random.default_rng(0), 0
    share = 1 / np.arange(1, 301)
    for _ in range(150):
        ids = np.unique(g.choice(300, 1500, p=share / share.sum()), return_inverse=True)[1]
        spread = np.exp(g.normal(size=300))[ids]
        found += moving_together("user", ids, spread * g.standard_t(4, 1500)) is not None
        found += moving_together("user", np.repeat(np.arange(150), 10), g.pareto(1.8, 1500)) is not None
    assert found <= 5  # of 300, and 0.75 are to be expected


def test_columns_of_a_frame_are_named_without_reading_it():
    for data in (a_log(), a_log().to_pandas(), a_log().to_arrow(), dict(a_log().to_dict())):
        assert columns_of(Log(data))[:2] == ["user_id", "action"]


def lists(seed=0, count=800, written="item_given_above", places=3, items=6):
    """Lists of a Plackett-Luce policy, and the probabilities of another, in one of two meanings."""
    g = np.random.default_rng(seed)
    weight, other = np.exp(np.linspace(1, -1, items)), np.exp(np.linspace(-0.6, 0.8, items))
    shown = np.array([g.choice(items, places, replace=False, p=weight / weight.sum()) for _ in range(count)])
    if written == "item_given_above":
        p, t = (
            w[shown] / (w.sum() - np.c_[np.zeros(count), np.cumsum(w[shown], axis=1)[:, :-1]]) for w in (weight, other)
        )
    else:  # as often as the items really are there
        p = np.stack([np.bincount(shown[:, k], minlength=items)[shown[:, k]] / count for k in range(places)], axis=1)
        t = np.full_like(p, 1 / items)
    return pl.DataFrame(
        {
            "request_id": np.repeat(g.permutation(count), places),
            "slot": np.tile(np.arange(places), count),
            "item_id": shown.ravel(),
            "p": p.ravel(),
            "t": t.ravel(),
            "r": (g.random(count * places) < 0.1 + 0.05 * shown.ravel()).astype(float),
        }
    ).sample(fraction=1.0, shuffle=True, seed=seed)


def test_lists_that_are_read_as_rows_are_never_ok():
    for result in (cp.evaluate(lists(), **ASKED), cp.compare(lists(), **ASKED), cp.evaluate(lists().lazy(), **ASKED)):
        (one,) = caveats(result, LISTS)
        assert result.verdict().verdict == "caution"
        assert one.numbers["lists"] == 800
    as_lists = {"slate": "request_id", "position": "slot", "propensity_of": "item_given_above"}
    right = cp.evaluate(lists(), **ASKED, **as_lists).verdict()
    assert not any(CODES[one.code].takes_rows for one in right.caveats)


def test_rows_stand_alone_where_propensities_are_those_of_the_position():
    assert not caveats(cp.evaluate(lists(written="item_at_position"), **ASKED), LISTS)
    # and where a position is one of many columns, without lists
    log = lists().with_columns(request_id=pl.int_range(pl.len()))
    assert not caveats(cp.evaluate(log, **ASKED), LISTS)


@pytest.mark.parametrize("written", ["item_given_above", "item_at_position"])
def test_what_propensities_of_lists_are_of_is_tested(written):
    log, as_lists = lists(count=1500, written=written), {"slate": "request_id", "position": "slot"}
    (wrong,) = {"item_given_above", "item_at_position"} - {written}
    assert not caveats(cp.evaluate(log, **ASKED, **as_lists, propensity_of=written), MEANING)
    result = cp.evaluate(log, **ASKED, **as_lists, propensity_of=wrong)
    (one,) = caveats(result, MEANING)
    assert result.verdict().verdict != "ok"
    assert f"propensity_of={written!r}" in one.do


def test_items_that_may_be_shown_twice_say_nothing_of_what_propensities_are_of():
    g = np.random.default_rng(0)
    log = lists(count=1500).with_columns(p=pl.lit(1 / 6), item_id=pl.Series(g.integers(0, 6, 4500)))
    log = log.with_columns(p=pl.Series(np.array([0.3, 0.2, 0.2, 0.1, 0.1, 0.1])[log["item_id"].to_numpy()]))
    result = cp.evaluate(log, **ASKED, slate="request_id", position="slot", propensity_of="item_given_above")
    assert not caveats(result, MEANING)


@pytest.mark.parametrize("verb", [cp.evaluate, cp.compare, cp.rank])
def test_percentages_are_recognized_and_not_dropped(verb):
    log = a_log().with_columns(pl.col("p") * 100)
    with refuses(LogError) as error:
        verb(log, **ASKED)
    assert "propensity='p / 100'" in str(error.value)
    assert "drop" not in str(error.value)
    verb(log, **ASKED | {"propensity": "p / 100"}, cluster=False)


def test_propensities_that_are_something_else_are_named_where_they_are_possible():
    g = np.random.default_rng(0)
    share = np.array([0.7, 0.2, 0.1])
    action = g.choice(3, 4000, p=share)
    log = pl.DataFrame({"p": 1 - share[action], "t": np.full(4000, 1 / 3), "r": g.random(4000), "action": action})
    (one,) = caveats(cp.evaluate(log, **ASKED), MISREAD)
    assert "propensity='1 - p'" in one.do
    mended = ASKED | {"propensity": "1 - p"}
    assert cp.evaluate(log, **mended).verdict().verdict == "ok"
    # a single mean weight may be a coincidence: it is no reason to name a reading, nor to believe one
    (one,) = caveats(cp.evaluate(log.drop("action"), **ASKED), MISREAD)
    assert "propensity=" not in one.reason
    (one,) = cp.evaluate(log.drop("action"), **mended).verdict().caveats
    assert one.code == "propensities-reread"
    assert "action=" in one.do


def test_other_bad_rows_are_told_of_as_before():
    log = a_log().with_columns(p=pl.when(pl.int_range(pl.len()) == 5).then(0.0).otherwise("p"))
    with refuses(LogError):
        cp.evaluate(log, **ASKED)


def test_a_few_bad_rows_do_not_make_good_ones_something_else():
    log = a_log().with_columns(p=pl.when(pl.int_range(pl.len()) % 50 == 0).then(0.0).otherwise("p"))
    assert not caveats(cp.evaluate(log, **ASKED, drop_bad_rows=True), MISREAD)


def test_probabilities_that_add_up_to_two_are_refused():
    class Policy:
        classes_ = np.array([0, 1])

        def __init__(self, total):
            self.total = total

        def predict_proba(self, context):
            return np.tile([0.3, 0.7], (len(context), 1)) * self.total

    asked = {"reward": "r", "propensity": "p", "action": "action", "context": "x", "cluster": False}
    cp.evaluate(a_log(), target=Policy(1.0), **asked)
    cp.evaluate(a_log(), target=Policy(1.03), **asked)  # rounded
    with refuses(LogError):
        cp.evaluate(a_log(), target=Policy(1.2), **asked)
    log = a_log().with_columns(pi=pl.concat_list(pl.lit(0.5), 2 * pl.col("t")))
    with refuses(LogError):
        cp.evaluate(log, **asked | {"context": None}, target=cp.Probabilities("pi"))


def test_a_cluster_is_a_column_or_refused():
    with pytest.raises(OptionError):
        cp.evaluate(a_log(), **ASKED, cluster=True)


def test_the_command_line_has_an_option_to_refuse_clusters():
    with options_are({"cluster", "no_cluster"}):
        assert as_option("cluster", "False") == "--no-cluster"
        (one,) = caveats(cp.evaluate(a_log(), **ASKED), TOGETHER)
        assert "--cluster user_id" in written(one.do)
    with refuses(OptionError):
        cluster_of("user_id", True)


@pytest.mark.parametrize("kind", ["frame", "parquet", "csv"])
def test_learned_policies_are_judged_by_whole_users(kind, tmp_path):
    pytest.importorskip("torch")
    learn = pytest.importorskip("counterpoise.learn")
    path, log = tmp_path / f"log.{kind}", a_log()
    if kind != "frame":
        getattr(log, f"write_{kind}")(path)
    asked = Log(log if kind == "frame" else path, reward="r", propensity="p", context="x", action="action")
    policies = [learn.LinearSoftmax(1, 2), learn.LinearSoftmax(1, 2)]
    assert [one.code for one in learn.evaluate_folds(asked, policies).verdict().caveats] == [TOGETHER]
    assert not learn.evaluate_folds(asked.but(cluster=False), policies).verdict().caveats


# -- what a target's column holds, and whose mean weight tells -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["action", "best_action", "arm"])
def test_a_column_of_actions_that_is_read_as_probabilities_is_asked_about(name):
    log = a_log().rename({"t": "pi"}).with_columns(pl.col("action").alias(name))
    asked = {"reward": "r", "propensity": "p", "cluster": "user_id"}
    (caveat,) = caveats(cp.evaluate(log, **asked, target=name), "actions-as-probabilities")
    assert f"pass target=Chosen(column={name!r})" in caveat.do
    with options_are({"target", "target_action", "action"}):
        assert f"pass --target-action {name} and --action" in written(caveat.do)
    assert not caveats(cp.evaluate(log, **asked, target="pi"), "actions-as-probabilities")
    half = log.with_columns((0.5 * pl.col(name)).alias(name))
    assert not caveats(cp.evaluate(half, **asked, target=name), "actions-as-probabilities")
    same = log.with_columns(pi_same=pl.col("action").cast(pl.Float64))  # a deterministic policy's probabilities
    assert not caveats(cp.evaluate(same, **asked, target="pi_same"), "actions-as-probabilities")


def test_actions_that_are_missing_do_not_make_propensities_odds():
    g = np.random.default_rng(0)
    action, chosen = g.integers(0, 3, 5000), g.choice(4, 5000, p=[0.25, 0.25, 0.2, 0.3])
    log = pl.DataFrame({"r": g.random(5000), "p": 1 / 3, "a": action, "chosen": chosen, "pi": 1 / 3})
    asked = {"reward": "r", "action": "a", "target": {"new": cp.Chosen("chosen")}}
    result = cp.evaluate(log, **asked, propensity="p")
    assert {caveat.code for caveat in result.verdict().caveats} == {"missing-actions"}
    odds = log.with_columns(p=pl.lit(0.5), chosen=pl.lit(1))  # of 1 to 2; this target tells, and by its own name
    (caveat,) = caveats(cp.evaluate(odds, **asked, propensity="p"), MISREAD)
    assert "the mean weight of new is" in caveat.text


# -- what the checks of one evaluation share ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["frame", "parquet"])
def test_all_checks_look_at_one_sample_of_first_rows(source, monkeypatch, tmp_path):
    g = np.random.default_rng(0)
    log = a_log(taste=0.0).with_columns(p=pl.Series(g.integers(1, 99, 4000) / 500.0), pdrop=pl.lit(0.5))
    log.write_parquet(tmp_path / "log.parquet")
    takes, take = [], Files.take if source == "parquet" else LogEngine.take

    def counted(engine, question, some):
        takes.append(type(some))
        return take(engine, question, some)

    monkeypatch.setattr(Files if source == "parquet" else LogEngine, "take", counted)
    result = cp.evaluate(log if source == "frame" else tmp_path / "log.parquet", **ASKED)
    codes = {caveat.code for caveat in result.verdict().caveats}
    assert {"counted-propensities", "sampling-not-named"} <= codes
    assert takes.count(First) == 1


def test_the_doctor_and_evaluate_say_the_same_of_the_same_log():
    g = np.random.default_rng(0)
    log = a_log(taste=0.0).with_columns(p=pl.Series(g.integers(1, 99, 4000) / 500.0), pdrop=pl.lit(0.5))
    log = pl.concat([log, log.head(400)])
    found = {caveat.code: caveat for caveat in cp.doctor(log, **ASKED).findings}
    (evaluated,) = caveats(cp.evaluate(log, **ASKED), "sampling-not-named")
    assert found["sampling-not-named"].reason == evaluated.reason
    (evaluated,) = caveats(cp.evaluate(log, **ASKED), "counted-propensities")
    assert evaluated.text.startswith(found["counted-propensities"].text.partition("Weights from counts")[0])
    assert found["counted-propensities"].do == evaluated.do
    (evaluated,) = caveats(cp.evaluate(log, **ASKED), "repeated-rows")
    assert found["repeated-rows"].reason == evaluated.reason


def test_a_slim_question_reads_weights_and_rewards_alone_and_what_is_kept():
    log = a_log().with_columns(id=pl.int_range(pl.len()), country=pl.lit("DE"))
    more = {"key": "id", "segment": "country", "cluster": "user_id", "control": {"x": 0.0}}
    question = cp.evaluate(log, **ASKED, **more).question

    def read(*kept):
        return {column for _, column in question.slim(*kept).columns}

    assert read() == {"r", "p", "t"}
    for keep, column in (("key", "id"), ("segment", "country"), ("cluster", "user_id"), ("controls", "x")):
        assert read(keep) == {"r", "p", "t", column}
    assert question.slim().groups == 1


@pytest.mark.parametrize("source", ["frame", "lazy", "pandas", "mapping", "parquet", "duckdb"])
def test_rows_are_taken_in_one_way_wherever_they_are(source, tmp_path):
    log, connection = a_log(1000, 100).with_columns(row=pl.int_range(pl.len())), duckdb.connect()
    log.write_parquet(tmp_path / "log.parquet")
    data = {
        "frame": lambda: log,
        "lazy": log.lazy,
        "pandas": log.to_pandas,
        "mapping": lambda: {name: log[name].to_numpy() for name in log.columns},
        "parquet": lambda: tmp_path / "log.parquet",
        "duckdb": lambda: connection.from_arrow(log.to_arrow()),
    }[source]()
    question = cp.evaluate(data, **ASKED, cluster="user_id", where="x > -9").question
    first = rows(question, First(30), ["row"])
    assert first["row"].to_list() == list(range(30))
    assert {"r", "p", "t"} <= set(first.columns)
    assert "user_id" not in first.columns
    spread = rows(question, Spread(100, 1000), ["row"])
    assert 60 < spread.height < 140
    assert source == "duckdb" or spread["row"].max() > 900
    some = rows(question, Ids("user_id", 4), ["user_id", "row"])
    whole = log.filter(pl.col("user_id").is_in(some["user_id"].implode()))
    assert sorted(some["row"]) == sorted(whole["row"])  # all rows of some ids
    assert 0 < some.height < 600


@pytest.mark.parametrize(
    "where", ["hour < 2", "hour < 2 and (hour in (0, 1) or reward = 1)", "hour < avg(hour) + 1", "id >= 59900"]
)
def test_the_first_rows_that_meet_a_condition_are_those_of_the_whole_log(tmp_path, where):
    """A condition on single rows is looked at in a slice; one that needs other rows, or few rows meet, in all of them."""
    n, random = 60_000, np.random.default_rng(0)
    columns = {name: random.random(n) * 0.9 + 0.1 for name in ("p", "new")} | {"id": np.arange(n)}
    log = pl.DataFrame(columns | {"reward": random.integers(0, 2, n), "hour": random.integers(0, 4, n)})
    log.write_parquet(tmp_path / "log.parquet", row_group_size=1000)
    whole = Log(str(tmp_path / "log.parquet"), reward="reward", propensity="p", where=where)
    question = question_of(whole, "new")
    few = rows(question, First(200), ["id"])
    met = (
        log.sql(f"SELECT * FROM self WHERE {where}")
        if "avg" not in where
        else log.filter(pl.col("hour") < pl.col("hour").mean() + 1)
    )
    assert few.get_column("id").to_list() == met.get_column("id").head(200).to_list()
