"""Candidates: a policy chooses among those of a row, in training, in use, and where it is evaluated."""

import numpy as np
import polars as pl
import pytest
from learning import policies, small_log, torch
from messages import refuses

import counterpoise as cp
import counterpoise.learn.source as sources
from counterpoise.errors import ColumnError, LogError, OptionError
from counterpoise.estimators.weighted import ips
from counterpoise.learn import LinearSoftmax, PolicyLearner, export_onnx, load_policy
from counterpoise.learn.criterion import moments_of
from counterpoise.learn.norms import SampleGradients, default_norms
from counterpoise.learn.objectives import OBJECTIVES
from counterpoise.learn.rows import Batch
from counterpoise.learn.steps import LoggedActions

ITEMS = np.array(["bread", "jam", "milk", "soap", "tea"])


def drawn(rows=1500, seed=0):
    """A log whose policy chooses evenly among three candidates; what is best depends on the country."""
    random = np.random.default_rng(seed)
    country = random.choice(["DE", "FR"], rows)
    pools = [sorted(random.choice(5, 3, replace=False)) for _ in range(rows)]
    place = np.array([random.choice(pool) for pool in pools])
    good = np.where(country == "DE", 4, 1) == place
    return pl.DataFrame(
        {
            "country": country,
            "age": random.integers(18, 80, rows),
            "item": ITEMS[place],
            "reward": (random.random(rows) < np.where(good, 0.8, 0.2)).astype(float),
            "propensity": np.full(rows, 1 / 3),
            "pool": [ITEMS[pool].tolist() for pool in pools],
        }
    )


LOG = drawn()
NAMES = {
    "context": ["country", "age"],
    "action": "item",
    "reward": "reward",
    "propensity": "propensity",
    "candidates": "pool",
}
MASK = np.array([[one in pool for one in ITEMS] for pool in LOG["pool"].to_list()])
NUMBERED = LOG.with_columns(
    item=pl.col("item").replace_strict(ITEMS, [3, 10, 20, 30, 77]),
    pool=pl.col("pool").list.eval(pl.element().replace_strict(ITEMS, [3, 10, 20, 30, 77])),
    country=(pl.col("country") == "DE").cast(pl.Int64),
)


def learner(**options):
    return PolicyLearner(**{"epochs": 2, "folds": None, "batch_size": 256, "learning_rate": 0.05} | options)


def same(first, second):
    for name, tensor in first.policy_.state_dict().items():
        torch.testing.assert_close(tensor, second.policy_.state_dict()[name], rtol=0, atol=0)
    assert first.history_ == second.history_


def some_candidates(action):
    """Two others besides each action, in rows of different lengths."""
    others = torch.stack([(action + 1) % 6, (action + 3) % 6], 1)
    others[::3, 1] = -1
    return torch.cat([action[:, None], others], 1)


def by_hand(policy, context, action, candidates):
    """π(a|x) row by row, by a softmax over the candidates and nothing else."""
    found = []
    for x, a, row in zip(context, action, candidates, strict=True):
        places = [int(one) for one in row if one >= 0]
        found.append(torch.softmax(policy(x[None])[0, places], -1)[places.index(int(a))])
    return torch.stack(found)


@pytest.mark.parametrize("kind", list(policies()))
@pytest.mark.parametrize(("norms", "few"), [("last_layer", 100), ("last_layer", 1), ("all", 100)])
def test_steps_are_those_of_a_softmax_over_the_candidates(kind, norms, few, monkeypatch):
    monkeypatch.setattr("counterpoise.learn.actions.FEW", few)
    policy = policies()[kind]
    if norms == "last_layer" and default_norms(policy) == "all":
        norms = "all"
    context, action, reward, propensity = small_log()
    candidates = some_candidates(action)
    target = by_hand(policy, context, action, candidates)
    batch = Batch(context, action, reward, propensity, len(action), candidates=candidates)
    step = LoggedActions(policy, norms=norms).backward(batch, 0.7)
    if norms == "last_layer":
        layer = list(policy.scores.parameters())
        squares = [sum(g.square().sum() for g in torch.autograd.grad(one, layer, retain_graph=True)) for one in target]
        if kind != "two towers with item features":
            expected = (
                torch.dot(torch.stack(squares) / propensity**2, reward),
                (torch.stack(squares) / propensity**2).sum(),
            )
            torch.testing.assert_close(step.sums, torch.stack(expected))
    found = {name: p.grad.clone() for name, p in policy.named_parameters()}
    policy.zero_grad()
    (-(target / propensity * (reward - 0.7)).mean()).backward()
    for name, parameter in policy.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad)
    if norms == "all":
        seen = SampleGradients(policy, context, action, candidates=candidates)
        torch.testing.assert_close(seen.target, target.detach())
        for k in (0, 7):
            policy.zero_grad()
            by_hand(policy, context, action, candidates)[k].backward()
            size = sum(p.grad.square().sum() for p in policy.parameters())
            torch.testing.assert_close(seen.squared_norms[k], size)
    assert bool(torch.isfinite(step.variance))


def test_a_doubly_robust_step_takes_the_model_at_candidates_only():
    policy = policies()["mlp"]
    context, action, reward, propensity = small_log()
    candidates, model = some_candidates(action), torch.rand(40, 6, dtype=torch.float64)
    batch = Batch(context, action, reward, propensity, 40, model, candidates)
    LoggedActions(policy).backward(batch, None, objective=OBJECTIVES["dr"])
    found = {name: p.grad.clone() for name, p in policy.named_parameters()}
    policy.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    for i in range(40):
        places = [int(one) for one in candidates[i] if one >= 0]
        probabilities = torch.softmax(policy(context[i : i + 1])[0, places], -1)
        left = (reward[i] - model[i, action[i]]) / propensity[i]
        total = total + probabilities[0] * left + (probabilities * model[i, places]).sum()
    (-total / 40).backward()
    for name, parameter in policy.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad)


def test_candidates_are_a_list_a_text_or_a_table(tmp_path, monkeypatch):
    expected = learner().fit(LOG, **NAMES)
    text = LOG.with_columns(pool=pl.col("pool").list.join("|"))
    as_json = LOG.with_columns(pool=pl.format('["{}"]', pl.col("pool").list.join('", "')))
    text.write_csv(tmp_path / "log.csv")
    as_json.write_csv(tmp_path / "json.csv")
    LOG.write_parquet(tmp_path / "log.parquet")
    columns = {name: LOG[name].to_list() for name in LOG.columns}
    for data in (text, LOG.to_pandas(), columns, columns | {"pool": MASK}):
        same(learner().fit(data, **NAMES), expected)
    for name in ("log.csv", "json.csv", "log.parquet"):
        same(learner().fit(tmp_path / name, **NAMES), expected)
    masked = LOG.with_columns(pool=pl.Series(MASK.tolist()))
    same(learner().fit(masked, **NAMES), expected)
    monkeypatch.setattr(sources, "CHUNK", 400)
    assert learner().fit(tmp_path / "log.parquet", **NAMES).classes_.tolist() == ITEMS.tolist()


def test_arrays_have_a_table_of_truth_values():
    action = np.searchsorted(ITEMS, LOG["item"].to_numpy())
    arrays = {
        "context": NUMBERED.select("country", "age").to_numpy(),
        "action": action,
        "reward": LOG["reward"].to_numpy(),
        "propensity": LOG["propensity"].to_numpy(),
    }
    found = learner().fit(**arrays, candidates=MASK)
    same(found, learner().fit(NUMBERED, **NAMES))
    everything = np.ones_like(MASK)
    same(learner().fit(**arrays, candidates=everything), learner(n_actions=5).fit(**arrays))
    with refuses(OptionError):
        learner(n_actions=7).fit(**arrays, candidates=MASK)
    with refuses(LogError):
        learner().fit(**arrays, candidates=MASK[:3])


def test_ids_may_have_gaps_and_an_action_may_only_ever_have_been_a_candidate():
    found = learner().fit(NUMBERED.filter(pl.col("item") != 77), **NAMES)
    assert found.classes_.tolist() == [3, 10, 20, 30, 77]
    text = NUMBERED.with_columns(pool=pl.col("pool").cast(pl.List(pl.String)).list.join("|"))
    same(learner().fit(text.filter(pl.col("item") != 77), **NAMES), found)
    table = found.predict_proba(NUMBERED[:, :2].to_numpy(), NUMBERED["pool"])
    np.testing.assert_array_equal(table > 0, MASK)
    np.testing.assert_allclose(table.sum(1), 1)
    policy = LinearSoftmax(2, 5)
    policy.actions_ = [3, 10, 20, 30, 77]
    assert learner(policy=policy).fit(NUMBERED, **NAMES).candidates_ == "pool"
    policy = LinearSoftmax(2, 4)
    policy.actions_ = [3, 10, 20, 30]
    with refuses(LogError):
        learner(policy=policy).fit(NUMBERED.filter(pl.col("item") != 77), **NAMES)


def test_rows_whose_action_was_no_candidate_are_bad():
    bad = LOG.with_columns(
        pool=pl.when(pl.int_range(1500) == 8).then(pl.lit(["tea"])).when(pl.int_range(1500) == 9).then(pl.lit([], dtype=pl.List(pl.String)))
        .when(pl.int_range(1500) == 10).then(None).otherwise("pool"),
        item=pl.when(pl.int_range(1500) == 8).then(pl.lit("jam")).otherwise("item"),
    )  # fmt: skip
    with pytest.raises(LogError) as refused:
        learner().fit(bad, **NAMES)
    message = str(refused.value)
    assert "action 'item' must be among the candidates 'pool': in 1 row it is not; the first is row 8" in message
    assert "candidates 'pool' must have at least one action: 2 rows do not; the first is row 9" in message
    found = learner().fit(bad, **NAMES, drop_bad_rows=True)
    assert found.dropped_rows_ == 3
    rest = pl.concat([LOG[:8], LOG[11:]])
    same(found, learner().fit(rest, **NAMES))


def test_it_learns_to_choose_among_them_and_evaluation_does_too(tmp_path):
    log, later = drawn(6000), drawn(3000, seed=1)
    found = learner(epochs=10).fit(log, **NAMES)
    found.save(tmp_path / "policy.safetensors")
    later.with_columns(pool=pl.col("pool").list.join("|")).write_csv(tmp_path / "later.csv")
    table = found.predict_proba(later, later["pool"])
    chosen = table[np.arange(3000), np.searchsorted(ITEMS, later["item"].to_numpy())]
    expected = np.mean(chosen * 3 * later["reward"].to_numpy())
    for data in (later, tmp_path / "later.csv"):
        for target in (found, found.policy_, str(tmp_path / "policy.safetensors")):
            result = cp.evaluate(data, **NAMES, target={"new": target})
            assert result["new", "ips"].value == pytest.approx(expected, rel=1e-6)
    # three of five candidates: the best is among them in 60 % of the rows
    assert (
        result["new", "beta_ips"].interval.lower
        < 0.6 * 0.8 + 0.4 * 0.2
        < result["new", "beta_ips"].interval.upper + 0.03
    )
    assert result["new", "beta_ips"].interval.lower > later["reward"].mean()
    whole = NAMES | {"candidates": None}
    with refuses(OptionError):
        cp.evaluate(later, **whole, target=found)


def test_what_training_says_of_a_policy_is_about_its_choice_among_candidates():
    found = learner().fit(LOG, **NAMES)
    source = sources.Source(cp.Log(LOG, **NAMES))
    rows, _ = source.look(0)
    chosen = found.predict_proba(LOG, MASK)[np.arange(1500), np.searchsorted(ITEMS, LOG["item"].to_numpy())]
    expected = np.mean(chosen * 3 * LOG["reward"].to_numpy())
    assert ips(moments_of(found.policy_, [rows])).value == pytest.approx(expected, rel=1e-5)


def test_few_candidates_of_many_actions_need_no_table_of_all(monkeypatch):
    shown = []
    monkeypatch.setattr("counterpoise.learn.actions.mask_of_places", lambda *given: shown.append(given))
    policy = LinearSoftmax(3, 100_000, bias=True)
    context, action, reward, propensity = (one.float() if one.is_floating_point() else one for one in small_log())
    batch = Batch(context, action, reward, propensity, 40, candidates=some_candidates(action))
    step = LoggedActions(policy).backward(batch, None)
    assert bool(torch.isfinite(step.variance))
    assert shown == []


def test_a_candidate_that_is_named_twice_counts_once():
    twice = LOG.with_columns(pool=pl.concat_list("pool", "item"))
    same(learner().fit(twice, **NAMES), learner().fit(LOG, **NAMES))


def test_a_policy_in_use_takes_candidates(tmp_path):
    policy = learner().fit(LOG, **NAMES).policy_
    table = policy.predict_proba(LOG, MASK)
    np.testing.assert_array_equal(table, policy.predict_proba(LOG, LOG["pool"]))
    np.testing.assert_array_equal(table > 0, MASK)
    every = policy.predict_proba(LOG, np.ones(5, dtype=bool))
    np.testing.assert_allclose(table, every * MASK / (every * MASK).sum(1, keepdims=True), rtol=1e-6)
    torch.manual_seed(0)
    action, propensity = policy.sample(LOG, mask=torch.as_tensor(MASK))
    places = np.searchsorted(ITEMS, action.astype(str))
    assert MASK[np.arange(1500), places].all()
    np.testing.assert_allclose(propensity, table[np.arange(1500), places], rtol=1e-5)
    assert policy.greedy(LOG, candidates=LOG["pool"]).tolist() == ITEMS[table.argmax(1)].tolist()
    for choose in (policy.sample, policy.greedy):
        with refuses(OptionError):
            choose(LOG)
    few = LOG[:2]
    new = policy.predict_proba(few, [["tea", "brand new"], ["jam"]])
    np.testing.assert_array_equal(new > 0, [[False] * 4 + [True], [False, True, False, False, False]])
    for candidates, error, says in (
        (None, OptionError, r"learned to choose among candidates \(those in 'pool'\)"),
        (
            [["tea"], ["brand new"]],
            LogError,
            r"at least one candidate that the policy knows: 1 of 2 rows have none; the first is row 1",
        ),
        (MASK, OptionError, r"1,500 × 5"),
        (np.zeros((2, 5), dtype=bool), LogError, r"2 of 2 rows have none"),
        ([1.5, 2.5], ColumnError, r"must be a list of actions in every row"),
        (["[tea", "jam"], ColumnError, r"which is not a JSON list"),
        (7, OptionError, r"candidates must be a list of actions per row; found int"),
    ):
        with pytest.raises(error, match=says):
            policy.predict_proba(few, candidates)


def test_onnx_takes_candidates_too(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    for log, classes in ((LOG, ITEMS.tolist()), (NUMBERED, [3, 10, 20, 30, 77])):
        learner().fit(log, **NAMES).save(tmp_path / "policy.safetensors")
        policy = load_policy(tmp_path / "policy.safetensors")
        export_onnx(policy, tmp_path / "policy.onnx")
        session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"))
        told = session.get_modelmeta().custom_metadata_map
        assert told["counterpoise.candidates"] == '"pool"'
        assert told["counterpoise.classes"].startswith(f"[{classes[0]!r}".replace("'", '"'))
        if log is LOG:
            columns = {"country": LOG["country"].to_numpy(), "age": LOG["age"].to_numpy().astype(np.float32)}
        else:
            columns = {"context": log[:, :2].to_numpy().astype(np.float32)}
        found = session.run(["probabilities"], columns | {"candidates": MASK})[0]
        np.testing.assert_allclose(found, policy.predict_proba(log.select("country", "age"), MASK), atol=1e-6)


def test_truth_values_may_be_plain_lists():
    policy = LinearSoftmax(2, 3)
    expected = policy.predict_proba([[0.0, 1.0]], np.array([[True, False, True]]))
    for table in (
        [True, False, True],
        [[True, False, True]],
        torch.tensor([True, False, True]),
        [[0, 2]],
        torch.tensor([[0, 2]]),
    ):
        np.testing.assert_array_equal(policy.predict_proba([[0.0, 1.0]], table), expected)
