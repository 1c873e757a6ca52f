"""Episodes: per-decision importance sampling against a plain loop, wherever the log lives, and what is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest
from command_line import invoke
from conftest import sampled
from doubts import codes
from messages import refuses

import counterpoise as cp
from counterpoise.errors import LogError, OptionError
from counterpoise.weights import Cascade, PerDecision, Trajectory

pytestmark = [
    pytest.mark.once,
    pytest.mark.filterwarnings("ignore:The 'future.infer_string' option"),  # ibis sets it, pandas 3 regrets it
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

PARTS: dict[str, Any] = {"reward": "r", "propensity": "p", "target": "new", "episode": "game", "step": "move"}
STAY, WIN = (0.5, 0.9), (0.3, 0.6)  # by action: the chance to go on, and to be rewarded
MOST = 5


def a_log(episodes: int = 300, seed: int = 0, *, first: int = 1) -> pl.DataFrame:
    """Up to five steps with two actions, of which the second keeps an episode alive; what is chosen depends on the step before."""
    random, rows = np.random.default_rng(seed), []
    for game in range(episodes):
        before = 0
        for move in range(MOST):
            old, new, other = (0.5, 0.4)[before], (0.7, 0.6)[before], (0.55, 0.3)[before]
            action = int(random.random() < old)
            p, t, o = (chance if action else 1 - chance for chance in (old, new, other))
            stays = random.random() < STAY[action]
            reward = float(random.random() < WIN[action])
            rows.append((game, move + first, p, t, o, reward, action, float(not stays or move == MOST - 1)))
            before = action
            if not stays:
                break
    names = ["game", "move", "p", "new", "other", "r", "action", "done"]
    made = pl.DataFrame(rows, schema=names, orient="row")
    return made.with_columns(user=pl.col("game") // 3, country=pl.when(pl.col("game") % 3 > 0).then(pl.lit("a")))


def mixed(log: pl.DataFrame, seed: int = 1) -> pl.DataFrame:
    return log.sample(fraction=1.0, shuffle=True, seed=seed)


def value(target: tuple[float, float] = (0.7, 0.6), gamma: float = 1.0) -> float:
    """What a policy earns, going back from the last step; by the action before."""
    ahead = [0.0, 0.0]
    for _ in range(MOST):
        chance = [[1 - one, one] for one in target]
        ahead = [sum(chance[b][a] * (WIN[a] + gamma * STAY[a] * ahead[a]) for a in (0, 1)) for b in (0, 1)]
    return ahead[0]


def looped(log: pl.DataFrame, gamma: float = 1.0, target: str = "new") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For every episode and step, by a plain loop over floats: the weight less 1, the weighted reward, and the reward."""
    rows: dict[int, list[dict[str, Any]]] = {}
    for row in log.sort("game", "move").iter_rows(named=True):
        rows.setdefault(row["game"], []).append(row)
    depth = max(map(len, rows.values()))
    excess, weighted, rewards = (np.zeros((len(rows), depth)) for _ in range(3))
    for i, steps in enumerate(rows.values()):
        weight = 1.0
        for t in range(depth):
            if t < len(steps):
                weight *= steps[t][target] / steps[t]["p"]
                rewards[i, t] = gamma**t * steps[t]["r"]
                weighted[i, t] = weight * rewards[i, t]
            excess[i, t] = weight - 1.0
    return excess, weighted, rewards


def shared(excess: np.ndarray, response: np.ndarray, shapes: list[np.ndarray]) -> tuple[float, float]:
    """The value and its error with baselines λ·v + μ, by NumPy's least squares over episodes."""
    controls = np.stack([excess @ shape for shape in shapes], axis=1)
    centered = controls - controls.mean(axis=0)
    fitted = np.linalg.lstsq(centered, response - response.mean(), rcond=None)[0]
    terms = response - controls @ fitted
    return float(terms.mean()), float(terms.std() / np.sqrt(len(terms)))


@pytest.mark.parametrize("gamma", [1.0, 0.8])
def test_ips_is_a_loop_over_decisions(gamma: float) -> None:
    log = a_log()
    _, weighted, rewards = looped(log, gamma)
    for one in (log, mixed(log), a_log(first=0)):
        found = cp.evaluate(one, **PARTS, discount_factor=gamma)
        assert found.n == 300
        assert found["new", "ips"].value == pytest.approx(weighted.sum(axis=1).mean(), rel=1e-12)
        assert found["new", "ips"].stderr == pytest.approx(weighted.sum(axis=1).std() / np.sqrt(300), rel=1e-12)
        assert found.diagnostics("new").mean_reward == pytest.approx(rewards.sum(axis=1).mean(), rel=1e-12)


@pytest.mark.parametrize("gamma", [1.0, 0.8])
def test_baselines_mix_ips_and_snips_for_the_least_variance(gamma: float) -> None:
    excess, weighted, rewards = looped(a_log(), gamma)
    v = weighted.mean(axis=0) / (1.0 + excess.mean(axis=0))
    found = cp.evaluate(a_log(), **PARTS, discount_factor=gamma)
    assert found["new", "snips"].value == pytest.approx(v.sum(), rel=1e-12)
    total, flat = weighted.sum(axis=1), np.ones(MOST)
    expected = shared(excess, total, [v, flat])
    assert (found["new", "beta_ips"].value, found["new", "beta_ips"].stderr) == pytest.approx(expected, rel=1e-9)
    lift = shared(excess, total - rewards.sum(axis=1), [v, flat])
    assert (found["new", "lift"].value, found["new", "lift"].stderr) == pytest.approx(lift, rel=1e-9)


def test_the_difference_of_two_policies_has_one_baseline() -> None:
    log = a_log()
    new, weighted, _ = looped(log)
    other, theirs, _ = looped(log, target="other")
    found = cp.compare(log, **(PARTS | {"target": ["new", "other"]}), against="other")["new", "beta_ips"]
    expected = shared(new - other, (weighted - theirs).sum(axis=1), [np.ones(MOST)])
    assert (found.value, found.stderr) == pytest.approx(expected, rel=1e-9)


def test_a_control_is_the_increment_of_the_weights_at_the_steps_that_were_reached() -> None:
    excess, _, _ = looped(a_log())
    log = a_log().sort("game", "move")
    lengths = log.group_by("game", maintain_order=True).len()["len"].to_numpy()
    increments = np.diff(excess, axis=1, prepend=0.0)
    assert (increments[np.arange(MOST) >= lengths[:, None]] == 0.0).all()


def test_cross_fit_takes_the_baselines_of_a_group_from_the_others() -> None:
    found = cp.evaluate(a_log(2000), **PARTS, groups=50)
    assert found["new", "cross_fit"].value == pytest.approx(found["new", "beta_ips"].value, abs=0.01)
    assert found["new", "cross_fit"].stderr == pytest.approx(found["new", "beta_ips"].stderr, rel=0.1)


@pytest.mark.thorough
def test_episodes_that_end_because_of_what_was_chosen_are_estimated_without_bias() -> None:
    errors: dict[str, list[float]] = {}
    for seed in range(40):
        log = a_log(400, seed + 100)
        for weight in (PerDecision(), Trajectory()):
            found = cp.evaluate(log, **PARTS, weight=weight, progress=False)
            for name in ("ips", "beta_ips", "snips"):
                errors.setdefault(f"{type(weight).__name__} {name}", []).append(found["new", name].value - value())
    for name, off in errors.items():
        assert abs(np.mean(off)) < 4 * np.std(off) / np.sqrt(len(off)), name
    spread = {name: np.std(off) for name, off in errors.items()}
    assert spread["PerDecision beta_ips"] < 0.8 * spread["PerDecision ips"] < 0.8 * spread["Trajectory ips"]


def test_the_whole_product_weighs_the_whole_return() -> None:
    excess, _, rewards = looped(a_log(), 0.8)
    found = cp.evaluate(mixed(a_log()), **PARTS, discount_factor=0.8, weight=Trajectory())
    whole = (1.0 + excess[:, -1]) * rewards.sum(axis=1)
    assert found["new", "ips"].value == pytest.approx(whole.mean(), rel=1e-12)
    assert found["new", "snips"].value == pytest.approx(whole.mean() / (1.0 + excess[:, -1]).mean(), rel=1e-12)


def numbers_of(result: Any) -> dict[Any, tuple[float, float]]:
    return {key: (one.value, one.stderr) for key, one in result.estimates.items()}


def test_postgresql_agrees(postgres: str) -> None:
    import ibis

    log, connection = a_log(100), ibis.connect(postgres)
    connection.create_table("episodes", log.to_arrow(), overwrite=True)
    try:
        for more in (
            {"segment": "country", "cluster": "user"},
            {"discount_factor": 0.9, "done": "done"},
            {"weight": Trajectory()},
        ):
            found = numbers_of(cp.evaluate(postgres, **PARTS, table="episodes", **more))
            for key, pair in numbers_of(cp.evaluate(log, **PARTS, **more)).items():
                assert found[key] == pytest.approx(pair, rel=1e-9), key
    finally:
        connection.drop_table("episodes")
        connection.disconnect()


def test_parts_may_be_arrays() -> None:
    log = a_log()
    arrays = {part: log[column].to_numpy() for part, column in PARTS.items()}
    found = cp.evaluate(**arrays, done=log["done"].to_numpy(), discount_factor=0.8)["target", "beta_ips"]
    assert found.value == pytest.approx(
        cp.evaluate(log, **PARTS, discount_factor=0.8)["new", "beta_ips"].value, rel=1e-12
    )


def test_days_whose_episodes_are_of_other_lengths_add_up(tmp_path: Any) -> None:
    log = a_log().with_columns(long=pl.len().over("game") > 2)
    whole = cp.evaluate(log, **PARTS, done="done")
    for order in ((True, False), (False, True)):
        state = tmp_path / f"{order[0]}.json"
        for day, long in enumerate(order):
            found = cp.evaluate(log.filter(pl.col("long") == long), **PARTS, done="done", state=state, batch=str(day))
        for name in ("ips", "snips", "beta_ips", "lift"):
            pair = whole["new", name].value, whole["new", name].stderr
            assert (found["new", name].value, found["new", name].stderr) == pytest.approx(pair, rel=1e-9), name


def test_clusters_are_of_episodes() -> None:
    log = a_log()
    found = cp.evaluate(log, **PARTS, cluster="user")
    assert found.n == 300
    assert found["new", "beta_ips"].value == pytest.approx(
        cp.evaluate(log, **PARTS)["new", "beta_ips"].value, rel=1e-12
    )
    torn = log.with_columns(user=pl.col("user") + pl.col("move"))
    with refuses(LogError):
        cp.evaluate(torn, **PARTS, cluster="user")


def test_a_policy_looks_at_every_step() -> None:
    log = a_log().with_columns(before=pl.col("action").shift(1, fill_value=0).over("game") * 1.0)

    class Player:
        classes_ = np.arange(2)

        def predict_proba(self, table: Any) -> np.ndarray:
            chance = np.where(np.asarray(table)[:, 0] > 0, 0.6, 0.7)
            return np.stack([1 - chance, chance], axis=1)

    wanted = cp.evaluate(log, **PARTS)["new", "beta_ips"].value
    asked = {**PARTS, "target": {"new": Player()}, "action": "action", "context": ["before"]}
    assert cp.evaluate(log, **asked)["new", "beta_ips"].value == pytest.approx(wanted, rel=1e-9)
    always = {**PARTS, "target": cp.Always(1), "action": "action"}
    assert cp.evaluate(log, **always).n == 300


def test_episodes_that_were_cut_off_are_counted(tmp_path: Any) -> None:
    log = a_log()
    assert "cut-off-episodes" not in codes(cp.evaluate(log, **PARTS, done="done").verdict())
    cut = log.with_columns(done=pl.when(pl.col("game") < 30).then(0.0).otherwise("done"))
    mixed(cut).write_parquet(tmp_path / "mixed.parquet", row_group_size=70)
    sources = (cut, cut.lazy(), tmp_path / "mixed.parquet", duckdb.from_arrow(mixed(cut).to_arrow()))
    results = [cp.evaluate(source, **PARTS, done="done") for source in sources]
    assert [result.diagnostics("new").cut_off for result in results] == [30] * 4
    for result in (*results, cp.compare(mixed(cut), **PARTS, done="done")):
        (caveat,) = (one for one in result.verdict().caveats if one.code == "cut-off-episodes")
        assert caveat.numbers == {"episodes": 30, "share": 0.1}
        assert "30 of 300 episodes (10 %) were cut off" in str(caveat)
    assert codes(cp.evaluate(cut, **PARTS).verdict()) == codes(cp.evaluate(log, **PARTS).verdict())  # taken as whole


REFUSED = {
    "no episode": ({"episode": None}, OptionError, "`?step=`? is about episodes"),
    "no step": ({"step": None}, OptionError, "and their order is missing"),
    "a discount factor": ({"discount_factor": 1.5}, OptionError, "discount_factor=1.5 must be a number above 0 and at most 1"),
    "lists, too": ({"slate": "user"}, OptionError, "slate= is about rankings"),
    "a discount": ({"discount": "dcg"}, OptionError, "Of episodes, it is discount_factor="),
    "a weight of rankings": ({"weight": Cascade()}, OptionError, "episodes take the weight per_decision or trajectory"),
    "a baseline": ({"baseline": ["action"]}, OptionError, "does not work with episodes yet"),
    "a model": ({"model": "auto", "action": "action", "context": ["user"]}, OptionError, "does not work with episodes yet"),
    "loggers": ({"propensity": {"A": "p", "B": "other"}, "logger": "country"}, OptionError, "does not work with episodes yet"),
    "words as steps": ({"step": "country"}, cp.errors.ColumnError, "step 'country' must count from 0 or 1.*holds String. Number the steps"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_go_together_is_refused(case: str) -> None:
    change, error, said = REFUSED[case]
    with pytest.raises(error, match=said):
        cp.evaluate(a_log(50), **(PARTS | change))


def test_a_weight_of_episodes_needs_episodes() -> None:
    with refuses(OptionError):
        cp.evaluate(a_log(50), **{**PARTS, "episode": None, "step": None}, weight=PerDecision())


BAD = {
    "a gap": (lambda log: log.filter((pl.col("game") != 7) | (pl.col("move") != 1)), "step 'move' must run 1, 2, … in every episode"),
    "a step twice": (lambda log: pl.concat([log, log.filter(pl.col("game") == 7)]), "with none missing or twice"),
    "an early end": (lambda log: log.with_columns(done=1.0), "done 'done' must be 1 at the last step of an episode alone"),
    "half an end": (lambda log: log.with_columns(done=pl.col("done") / 2), "done 'done' must be 0 or 1"),
}  # fmt: skip


@pytest.mark.parametrize("where", sampled(["memory", "mixed", "duckdb"], "memory", "mixed"))
@pytest.mark.parametrize("fault", BAD)
def test_a_bad_episode_is_a_clear_error(fault: str, where: str) -> None:
    change, said = BAD[fault]
    log = change(pl.concat([a_log(60).filter(pl.col("game") != 7), longest(7)]))
    source: Any = {"memory": log, "mixed": mixed(log)}.get(where, log)
    connection = duckdb.connect()
    if where == "duckdb":
        connection.register("log", log.to_arrow())
        source = connection.table("log")
    with pytest.raises(LogError, match=re.escape(said)) as error:
        cp.evaluate(source, **PARTS, done="done")
    assert "episode" in str(error.value)
    assert "list" not in str(error.value)
    connection.close()


def longest(game: int) -> pl.DataFrame:
    """An episode of all steps."""
    log = a_log(200).with_columns(n=pl.len().over("game")).filter(pl.col("n") == MOST)
    return (
        log.filter(pl.col("game") == log["game"][0])
        .drop("n")
        .with_columns(game=pl.lit(game, pl.Int64), user=pl.lit(game // 3, pl.Int64))
    )


def test_steps_must_start_at_the_beginning_and_be_few() -> None:
    log = a_log(50)
    with refuses(LogError):
        cp.evaluate(log.with_columns(pl.col("move") * 1000), **PARTS)
    long = pl.DataFrame({"game": [0] * 60, "move": range(60), "p": 0.5, "new": 0.5, "r": [0.0, 1.0] * 30})
    with refuses(OptionError):
        cp.evaluate(long, **PARTS)


def test_a_reward_of_one_for_every_step_is_how_long_an_episode_lasts() -> None:
    log = a_log(200).with_columns(r=pl.lit(1.0))
    assert cp.evaluate(log, **PARTS)["new", "ips"].value > 1
    total = a_log(200).with_columns(r=pl.col("r").sum().over("game") + pl.col("game") % 7 + 1)
    with refuses(LogError):
        cp.evaluate(total, **PARTS)


@pytest.mark.parametrize(
    ("verb", "more"), [(cp.distribution, {}), (cp.sensitivity, {}), (cp.sql, {"dialect": "duckdb"})]
)
def test_what_looks_at_single_rows_refuses_episodes(verb: Any, more: dict[str, Any]) -> None:
    parts = {part: column for part, column in PARTS.items() if part != "target"}
    with refuses(OptionError):
        verb(cp.Log(a_log(50), **parts), target="new", **more)


def test_learning_refuses_episodes() -> None:
    pytest.importorskip("torch")
    from counterpoise.learn import PolicyLearner, RankingLearner

    parts = {part: column for part, column in PARTS.items() if part != "target"}
    parts |= {"action": "action", "context": ["user"]}
    for learn in (PolicyLearner().fit, RankingLearner().fit, cp.learn_policy):
        with refuses(OptionError):
            learn(a_log(50), **parts)


def test_whatever_is_said_of_episodes_counts_episodes(tmp_path: Any) -> None:
    result = cp.evaluate(a_log(), **PARTS, segment="country")
    shown = repr(result)
    assert "per episode" in shown
    assert "300 episodes" in shown
    result.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "per episode" in page
    assert "per row" not in page
    assert "a episode" not in page


def test_the_command_line_evaluates_episodes(tmp_path: Any) -> None:
    log, path = a_log(), str(tmp_path / "log.parquet")
    log.write_parquet(path)
    options = (
        "--reward r --propensity p --episode game --step move --discount-factor 0.8 --done done --target new --json"
    )
    for weight, kind in (
        ([], PerDecision()),
        (["--weight", "per-decision"], PerDecision()),
        (["--weight", "trajectory"], Trajectory()),
    ):
        answer = json.loads(invoke("evaluate", path, *options.split(), *weight).stdout)
        values = {one["estimator"]: one["value"] for one in answer["estimates"]}
        wanted = cp.evaluate(log, **PARTS, discount_factor=0.8, weight=kind)["new", "beta_ips"].value
        assert values["beta_ips"] == pytest.approx(wanted, rel=1e-9)


def test_the_doctor_takes_a_log_of_episodes_for_one() -> None:
    log = mixed(a_log()).rename({"game": "session_id", "move": "step"})
    asked = {"reward": "r", "propensity": "p", "target": "new"}
    (hint,) = (one for one in cp.doctor(log, **asked).findings if "episodes" in one.message)
    assert "episode" in hint.message
    assert "step" in hint.message
    told = cp.doctor(log, **asked, episode="session_id", step="step")
    assert not any("slots of" in one.message or "look like" in one.message for one in told.findings)
    assert "lists-as-rows" in codes(cp.evaluate(log, **asked).verdict())
