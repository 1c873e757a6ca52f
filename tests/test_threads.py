"""Work gets as many threads as it keeps busy, and never more than there are; afterward, all is as before."""

import os
import sys

import numpy as np
import polars as pl
import pytest
from sklearn.linear_model import Ridge
from threadpoolctl import threadpool_info, threadpool_limits

import counterpoise as cp
from counterpoise import threads
from counterpoise.threads import ENOUGH, processors, threads_for

RANDOM = np.random.default_rng(0)


def pools():
    """The threads of every pool there is: BLAS, OpenMP, and PyTorch's own number."""
    found = {one["filepath"]: one["num_threads"] for one in threadpool_info()}
    torch = sys.modules.get("torch")
    return found | ({} if torch is None else {"torch": torch.get_num_threads()})


@pytest.fixture
def four(monkeypatch):
    """A machine with four processors, all of which every pool would take."""
    monkeypatch.setattr(threads, "processors", lambda: 4)
    torch = sys.modules.get("torch")
    before = None if torch is None else torch.get_num_threads()
    with threadpool_limits(4):
        if torch is not None:
            torch.set_num_threads(4)
        yield
    if torch is not None:
        torch.set_num_threads(before)


def test_small_work_gets_one_thread_and_large_work_all_there_are(four):
    assert [threads_for(work) for work in (0, ENOUGH, 3 * ENOUGH, 1e15)] == [1, 1, 3, 4]
    for work, expected in ((10, 1), (2 * ENOUGH, 2), (1e15, 4)):
        with threads.threads(work) as count:
            assert count == expected
            assert set(pools().values()) == {expected}
        assert set(pools().values()) == {4}


def test_all_is_as_before_when_the_work_fails(four):
    with pytest.raises(ValueError, match="broken"), threads.threads(10):
        raise ValueError("broken")
    assert set(pools().values()) == {4}


def test_nobody_gets_more_threads_than_the_user_allows(four):
    with threadpool_limits(2), threads.threads(3 * ENOUGH):
        assert max(one["num_threads"] for one in threadpool_info()) == 2


def test_there_are_no_more_processors_than_the_process_may_use(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "_quota", lambda: None)
    if hasattr(os, "sched_getaffinity"):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
        assert processors() == 6
        monkeypatch.setattr(threads, "_quota", lambda: 3)
        assert processors() == 3
    for text, most in (("2", 2), ("1,4", 1), ("nonsense", 64), ("0", 64)):
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        assert 1 <= processors() <= most


class Watches(Ridge):
    """A model that notes how many threads it is fitted and asked with."""

    seen = []  # noqa: RUF012

    def fit(self, table, rewards, sample_weight=None):
        self.seen.append(max(pools().values()))
        return super().fit(table, rewards, sample_weight)

    def predict(self, table):
        self.seen.append(max(pools().values()))
        return super().predict(table)


def small(n=300):
    return pl.DataFrame(
        {
            "x": RANDOM.normal(size=n),
            "a": RANDOM.integers(0, 3, n),
            "r": RANDOM.normal(size=n),
            "p": np.full(n, 1 / 3),
            "b": 1,
        }
    )


@pytest.mark.parametrize("per_action", [False, True])
def test_a_small_fit_of_a_reward_model_takes_one_thread(four, per_action):
    Watches.seen.clear()
    model = cp.models.Reward(Watches(), per_action=per_action)
    parts = {"reward": "r", "propensity": "p", "action": "a", "context": "x"}
    cp.evaluate(small(), **parts, target=cp.Chosen("b"), model=model)
    assert set(Watches.seen) == {1}
    assert set(pools().values()) == {4}


@pytest.mark.parametrize("kind", ["rows", "lists"])
def test_a_small_policy_is_trained_by_one_thread(kind, request):
    torch = pytest.importorskip("torch")
    request.getfixturevalue("four")
    from counterpoise.learn import LearningWarning, PolicyLearner, RankingLearner

    seen = []

    def watch(end):
        seen.append(torch.get_num_threads())

    if kind == "rows":
        parts = {"context": "x", "action": "a", "reward": "r", "propensity": "p"}
        PolicyLearner(epochs=2, folds=None, callbacks=[watch]).fit(small(), **parts)
    else:
        n = 90
        log = small(3 * n).with_columns(
            a=pl.Series(np.tile([0, 1, 2], n)), list=pl.Series(np.arange(3 * n) // 3), at=pl.Series(np.arange(3 * n) % 3),
            x=pl.Series(np.repeat(RANDOM.normal(size=n), 3)), p=0.5,
        )  # fmt: skip
        parts = {
            "slate": "list",
            "position": "at",
            "propensity_of": "item_given_above",
            "reward": "r",
            "propensity": "p",
        }
        with pytest.warns(LearningWarning):  # noise is not reliably better than the logging policy
            RankingLearner(epochs=2, callbacks=[watch]).fit(log, context="x", action="a", **parts)
    assert seen
    assert set(seen) == {1}
    assert torch.get_num_threads() == 4
