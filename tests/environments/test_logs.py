"""Classification data as a bandit, the Open Bandit Dataset and its Thompson sampling policy."""

import shutil

import numpy as np
import polars as pl
import pytest
from messages import refuses
from paper_files import shared

from counterpoise.environments import (
    ClassificationBandit,
    OpenBanditLog,
    SlateProbabilities,
    from_priors_file,
    thompson_probabilities,
)
from counterpoise.errors import ColumnError, LogError, OptionError


def test_the_value_of_a_classifier_is_its_accuracy():
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression

    x, y = load_iris(return_X_y=True)
    classifier = LogisticRegression(max_iter=1000).fit(x[::2], y[::2])
    world = ClassificationBandit(x, y, seed=0)
    log = world.draw(logging=world.policy_of(classifier, exploration=0.3))
    assert log.value(world.policy_of(classifier)) == pytest.approx(classifier.score(x, y))
    assert set(np.round(log.propensity, 12)) <= {0.1, 0.8}
    assert np.array_equal(log.reward, (log.action == y).astype(float))


def test_weighted_rewards_of_classification_data_average_to_the_true_value():
    world = ClassificationBandit(np.arange(12.0).reshape(6, 2), ["x", "y", "y", "z", "x", "z"], seed=3)
    log = world.draw(30_000)
    policy = np.tile([0.7, 0.2, 0.1], (30_000, 1))
    terms = log.target(policy) / log.propensity * log.reward
    assert abs(terms.mean() - log.value(policy)) < 4 * terms.std() / np.sqrt(terms.size)


def test_bad_classification_data_are_refused():
    with refuses(OptionError):
        ClassificationBandit([[1.0], [2.0]], ["a"])
    with refuses(OptionError):
        ClassificationBandit([[1.0], [2.0]], ["a", "a"])
    world = ClassificationBandit([[1.0], [2.0]], ["a", "b"])

    class Wrong:
        def predict(self, context):
            return np.array(["c"] * len(context))

    with refuses(OptionError):
        world.draw().value(world.policy_of(Wrong()))
    with refuses(OptionError):
        world.policy_of(Wrong(), exploration=2)


def test_thompson_probabilities_agree_with_the_integral():
    # P(θ₀ > θ₁) for Beta(3, 2) against Beta(2, 2) is 0.6285…: ∫ f₀(t) F₁(t) dt
    t = (np.arange(200_000) + 0.5) / 200_000
    exact = np.mean(12 * t**2 * (1 - t) * (3 * t**2 - 2 * t**3))
    found = thompson_probabilities([3, 2], [2, 2], positions=2, draws=50_000, seed=1)
    assert abs(found.probability[0, 0] - exact) < 4 * found.stderr[0, 0]
    np.testing.assert_allclose(found.probability.sum(axis=0), 1.0)
    np.testing.assert_allclose(found.probability.sum(axis=1), 1.0)  # two actions, two positions: each is somewhere
    again = thompson_probabilities([3, 2], [2, 2], positions=2, draws=50_000, seed=1)
    assert np.array_equal(found.probability, again.probability)


@pytest.mark.parametrize(("campaign", "items"), [("men", 34), ("women", 46), ("all", 80)])
def test_every_log_of_the_sample_can_be_read(campaign, items):
    folder = shared("obd")
    alpha, beta = from_priors_file(folder / "thompson_priors.yaml", campaign)
    assert len(alpha) == len(beta) == items
    for policy in ("random", "bts"):
        log = OpenBanditLog(folder, policy=policy, campaign=campaign)
        frame = log.read()
        assert (log.n_actions, frame.height, log.items().height) == (items, 10_000, items)
        assert set(frame["position"]) == {1, 2, 3}
        assert log.features(frame).shape[0] == 10_000
        assert isinstance(log.scan(), pl.LazyFrame)
    random = OpenBanditLog(folder, policy="random", campaign=campaign)
    np.testing.assert_allclose(random.read("propensity").to_numpy(), 1 / items)


def test_weights_of_the_thompson_policy_average_to_one():
    folder = shared("obd")
    log = OpenBanditLog(folder, policy="random", campaign="men")
    slate = thompson_probabilities(*from_priors_file(folder / "thompson_priors.yaml", "men"), draws=200_000)
    frame = log.read("action", "position", "propensity")
    weight = log.target(slate, frame) / frame["propensity"].to_numpy()
    assert abs(weight.mean() - 1) < 4 * weight.std() / np.sqrt(weight.size)


@pytest.fixture
def tiny(tmp_path):
    """A log of the official layout with two rows."""
    folder = tmp_path / "random" / "men"
    folder.mkdir(parents=True)
    users = ",".join(f"user_feature_{j}" for j in range(4))
    header = f",timestamp,item_id,position,click,propensity_score,{users},user-item_affinity_0"
    rows = ["0,t,3,1,0,0.5,a,b,c,d,0.0", "1,t,4,2,1,0.25,a,b,c,e,1.0"]
    (folder / "men.csv").write_text("\n".join([header, *rows]) + "\n")
    (folder / "item_context.csv").write_text("item_id,item_feature_0\n" + "".join(f"{i},{i}.5\n" for i in range(34)))
    return tmp_path, folder / "men.csv"


def test_a_tiny_log_is_read_under_our_names(tiny):
    log = OpenBanditLog(tiny[0], policy="random", campaign="men")
    assert log.read("action", "reward").rows() == [(3, 0.0), (4, 1.0)]
    assert log.features().tolist() == [[0.0], [1.0]]


def test_a_slate_policy_is_looked_up_by_item_and_position(tiny):
    table = np.arange(34 * 3).reshape(34, 3) / 1000
    log = OpenBanditLog(tiny[0], policy="random", campaign="men")
    assert log.target(SlateProbabilities(table, table, 1)).tolist() == [table[3, 0], table[4, 1]]


@pytest.mark.parametrize(
    ("old", "new", "error", "words"),
    [
        (
            "0.25",
            "1.25",
            LogError,
            "propensity_score must be above 0 and at most 1, and in 1 of 2 rows it is not; the first is row 1",
        ),
        ("0.25", "", LogError, "propensity_score"),
        (",4,2,", ",99,2,", LogError, "item_id must be a number from 0 to 33"),
        (",4,2,", ",4,9,", LogError, "position"),
        (",2,1,", ",2,7,", LogError, "click must be 0 or 1"),
        (",4,2,", ",four,2,", LogError, "men.csv is not the CSV file it should be"),
        (",click,", ",clicked,", ColumnError, "no column 'click'.*Did you mean 'clicked'"),
    ],
)
def test_damaged_logs_are_refused(tiny, old, new, error, words):
    folder, path = tiny
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(error, match=words):
        OpenBanditLog(folder, policy="random", campaign="men").read()


def test_missing_or_empty_logs_are_refused(tiny):
    folder, path = tiny
    with refuses(OptionError):
        OpenBanditLog(folder, policy="random", campaign="man")
    with refuses(OptionError):
        OpenBanditLog(folder, policy="egreedy", campaign="men")
    with refuses(OptionError):
        OpenBanditLog(folder, policy="bts", campaign="men")
    path.write_text(path.read_text().splitlines()[0] + "\n")
    with refuses(LogError):
        OpenBanditLog(folder, policy="random", campaign="men").read()
    path.write_bytes(b"")
    with refuses(LogError):
        OpenBanditLog(folder, policy="random", campaign="men").read()
    path.write_bytes(bytes(range(256)) * 40)
    with pytest.raises((LogError, ColumnError)):
        OpenBanditLog(folder, policy="random", campaign="men").read()
    shutil.rmtree(folder / "random" / "men")


def test_a_column_that_is_not_there_is_named(tiny):
    with refuses(ColumnError):
        OpenBanditLog(tiny[0], policy="random", campaign="men").read("rewards")


def test_bad_priors_are_refused(tmp_path):
    path = tmp_path / "priors.yaml"
    with refuses(OptionError):
        from_priors_file(path, "men")
    path.write_text("men:\n  alpha:\n    - 1.0\n  beta:\n    - 2.0\n    - 3.0\n")
    with refuses(ColumnError):
        from_priors_file(path, "men")
    with refuses(OptionError):
        from_priors_file(path, "women")
    path.write_text("men:\n  alpha:\n    - one\n")
    with refuses(ColumnError):
        from_priors_file(path, "men")
    with refuses(OptionError):
        thompson_probabilities([1.0, 0.0], [1.0, 1.0])
    with refuses(OptionError):
        thompson_probabilities([1.0, 1.0], [1.0, 1.0])
