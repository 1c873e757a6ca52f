"""Targets by groups of actions: the weight of the paper, unbiased where groups say it all, and seen through where they do not."""

import math

import numpy as np
import polars as pl
import pytest
from doubts import codes
from messages import refuses

import counterpoise as cp

GROUP = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2, 2])
ACTIONS = len(GROUP)
BY_GROUP = cp.ActionGroup("new_group", "p_group")
ASKED = {"reward": "r", "propensity": "p"}


def policies(seed=0):
    g = np.random.default_rng(seed)
    old, new = g.dirichlet(np.full(ACTIONS, 0.7)), g.dirichlet(np.full(ACTIONS, 0.7))
    return 0.9 * old + 0.1 / ACTIONS, new


def a_log(n=2000, seed=0, *, direct=0.0):
    """Two kinds of users, two policies; rewards depend on the group and the user, and by `direct` on the action itself."""
    g = np.random.default_rng(seed)
    kinds = [policies(k) for k in range(2)]
    kind = g.integers(0, 2, n)
    old, new = (np.array([one[which] for one in kinds])[kind] for which in (0, 1))
    action = (g.random((n, 1)) > old.cumsum(axis=1)).sum(axis=1).clip(max=ACTIONS - 1)
    rate = rates(direct)[kind, action]
    row = np.arange(n)
    same = GROUP[action][:, None] == GROUP
    return pl.DataFrame(
        {
            "r": (g.random(n) < rate).astype(float),
            "a": action,
            "kind": kind,
            "p": old[row, action],
            "new": new[row, action],
            "p_group": (old * same).sum(axis=1),
            "new_group": (new * same).sum(axis=1),
            "p_all": old,
            "new_all": new,
        }
    )


def rates(direct):
    of_group = np.array([[0.2, 0.5, 0.7], [0.6, 0.3, 0.4]])[:, GROUP]
    return of_group + direct * np.where(np.arange(ACTIONS) % 2, 0.2, -0.2)


def truth(direct):
    return np.mean([policies(k)[1] @ rates(direct)[k] for k in range(2)])


def truth_of_groups(direct):
    """The value of taking a group as the target does, and an action in it as the logging policy does."""
    found = []
    for k in range(2):
        old, new = policies(k)
        mixed = [new[GROUP[a] == GROUP].sum() * old[a] / old[GROUP[a] == GROUP].sum() for a in range(ACTIONS)]
        found.append(np.array(mixed) @ rates(direct)[k])
    return np.mean(found)


def test_the_weight_is_that_of_the_paper():
    """Saito & Joachims (2022), eq. 5 and 6, by a plain loop: w(x, e) = Σ_a p(e|a)π(a|x) / Σ_a p(e|a)π₀(a|x), and p(e|a) = 1{e = g(a)}."""
    log = a_log(500)
    terms = []
    for row in log.iter_rows(named=True):
        above = sum(row["new_all"][a] for a in range(ACTIONS) if GROUP[a] == GROUP[row["a"]])
        below = sum(row["p_all"][a] for a in range(ACTIONS) if GROUP[a] == GROUP[row["a"]])
        terms.append(above / below * row["r"])
    for one in (BY_GROUP, cp.ActionGroup("new_all", "p_all", groups=GROUP.tolist())):
        found = cp.evaluate(log, **ASKED, action="a", target={"by group": one})["by group", "ips"]
        assert found.value == pytest.approx(np.mean(terms), abs=1e-12)
        assert found.stderr == pytest.approx(np.std(terms) / math.sqrt(500), abs=1e-12)


@pytest.mark.thorough
@pytest.mark.once
@pytest.mark.parametrize("direct", [0.0, 1.0])
def test_it_is_unbiased_for_the_groups_and_for_the_target_if_actions_of_a_group_are_alike(direct):
    runs, n = 150, 1500
    found = {"ips": [], "beta_ips": []}
    for seed in range(runs):
        result = cp.evaluate(a_log(n, seed, direct=direct), **ASKED, target=["new", BY_GROUP], estimator=list(found))
        for name, values in found.items():
            values.append([result["new", name].value, result["new_group", name].value])
    assert (truth(direct) == pytest.approx(truth_of_groups(direct), abs=1e-12)) == (direct == 0.0)
    for values in found.values():
        mean, spread = np.mean(values, axis=0), np.std(values, axis=0)
        error = 4 * spread / math.sqrt(runs)
        assert abs(mean[0] - truth(direct)) < error[0]
        assert abs(mean[1] - truth_of_groups(direct)) < error[1]
        assert spread[1] < 0.8 * spread[0]


def test_what_groups_hide_shows_in_the_difference():
    alike = cp.compare(a_log(20_000), **ASKED, target=BY_GROUP, against="new")
    assert 0.0 in alike.interval
    apart = cp.compare(a_log(20_000, direct=1.0), **ASKED, target=BY_GROUP, against="new")
    assert 0.0 not in apart.interval
    assert truth_of_groups(1.0) - truth(1.0) in apart.interval
    log = a_log(20_000, direct=1.0)
    paired = (log["new_group"] / log["p_group"] - log["new"] / log["p"]) * log["r"]
    plain = apart.estimates["new_group", "ips", None]
    assert plain.value == pytest.approx(paired.mean(), abs=1e-12)
    assert plain.stderr == pytest.approx(paired.std(ddof=0) / math.sqrt(20_000), rel=1e-9)


def test_the_verdict_says_what_it_rests_on():
    log = a_log(5000)
    result = cp.evaluate(log, **ASKED, target=["new", BY_GROUP])
    assert result.verdict("new").verdict == "ok"
    assert result.verdict("new_group").verdict == "caution"
    assert codes(result.verdict("new_group")) == {"action-groups"}
    assert result.diagnostics("new_group").mean_weight == pytest.approx(1.0, abs=0.1)
    assert result.diagnostics("new_group").mean_weight_p > 0.001


class Softmax:
    """A policy by the kind of user."""

    classes_ = np.arange(ACTIONS)

    def predict_proba(self, context):
        return np.array([policies(int(k))[1] for k in context[:, 0]])


def test_every_way_to_name_the_probabilities_is_the_same(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    log = a_log(1000)
    log = log.with_columns(name=pl.Series([f"item {a}" for a in log["a"]]))
    path = tmp_path / "log.parquet"
    log.write_parquet(path)
    connection = duckdb.connect()
    connection.sql(f"CREATE TABLE log AS SELECT * FROM '{path}'")
    named = {f"item {a}": f"group {g}" for a, g in enumerate(GROUP)}
    expected = cp.evaluate(log, **ASKED, target={"x": BY_GROUP})["x", "beta_ips"]
    numbered = GROUP.tolist()
    for data, extra in ((log, {}), (log.lazy(), {}), (str(path), {}), (connection, {"table": "log"})):
        for one, more in (
            (BY_GROUP, {}),
            (cp.ActionGroup("new_all", "p_all", groups=numbered), {"action": "a"}),
            (cp.ActionGroup("new_all", "p_all", groups=named), {"action": "name"}),
            (cp.ActionGroup(Softmax(), "p_all", groups=numbered), {"action": "a", "context": ["kind"]}),
        ):
            found = cp.evaluate(data, **ASKED, **extra, **more, target={"x": one})["x", "beta_ips"]
            assert (found.value, found.stderr) == pytest.approx((expected.value, expected.stderr), rel=1e-9)


def test_one_group_of_all_actions_is_the_logging_policy():
    log = a_log(1000)
    result = cp.evaluate(
        log, **ASKED, action="a", target={"x": cp.ActionGroup("new_all", "p_all", groups=[0] * ACTIONS)}
    )
    assert result["x", "ips"].value == pytest.approx(log["r"].mean(), abs=1e-12)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: cp.ActionGroup("new_group", None), "names the column of the logging policy's"),
        (lambda: cp.ActionGroup(Softmax(), "p_all"), "map every action to its group with groups="),
        (lambda: cp.ActionGroup(3, "p_all", groups=[0]), "a column or a policy"),
        (lambda: cp.ActionGroup("new_all", "p_all", groups="a"), "pass a mapping"),
        (lambda: cp.ActionGroup("new_all", "p_all", groups=[]), "pass a mapping"),
    ],
)
def test_groups_that_make_no_sense_are_refused(make, said):
    with pytest.raises(cp.OptionError, match=said):
        make()


def test_lists_and_logs_that_do_not_fit_are_refused():
    log = a_log(100)
    listed = cp.ActionGroup("new_all", "p_all", groups=GROUP.tolist())
    with refuses(cp.OptionError):
        cp.evaluate(log, **ASKED, target=listed)
    with refuses(cp.OptionError):
        cp.evaluate(
            log, **ASKED, action="a", target=cp.ActionGroup("new_all", "p_all", groups=dict.fromkeys(range(9), 0))
        )
    with refuses(cp.ColumnError):
        cp.evaluate(log, **ASKED, action="a", target=cp.ActionGroup("new", "p_all", groups=GROUP.tolist()))
    with refuses(cp.LogError):
        cp.evaluate(log, **ASKED, action="a", target=cp.ActionGroup("new_all", "p_all", groups=[*GROUP.tolist(), 2]))
    with refuses(cp.OptionError):
        cp.evaluate(reward=[1, 0], propensity=[0.5, 0.5], target=BY_GROUP)
    with refuses(cp.OptionError):
        cp.evaluate(log, **ASKED, action="a", target=cp.ActionGroup(Softmax(), "p_all", groups=GROUP.tolist()))
