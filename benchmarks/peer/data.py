"""Logs with a known truth, drawn alike by every library's Python: NumPy alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

Floats = np.ndarray
GROUPS = 40
DIMENSIONS = 5


@dataclass
class Log:
    """Decisions in forty kinds of context: policies, models and truth are tables of forty rows, and a log is drawn from them."""

    features: Floats
    """40 × 5: what is known of a context."""
    logging: Floats
    """40 × actions: what was logged."""
    policies: tuple[Floats, ...]
    """40 × actions each: the targets."""
    predictions: Floats
    """40 × actions: an imperfect reward model."""
    group: Floats
    action: Floats
    reward: Floats
    truths: tuple[float, ...] = ()
    """What each target earns."""
    user: Floats | None = None
    position: Floats | None = None
    changes: dict[str, Floats] = field(default_factory=dict)
    """Columns that a mistake has put in the place of the right ones, by name."""

    @property
    def rows(self) -> int:
        return len(self.reward)

    @property
    def actions(self) -> int:
        return self.logging.shape[1]

    @cached_property
    def context(self) -> Floats:
        """Rows × 5."""
        return self.features[self.group]

    @cached_property
    def propensity(self) -> Floats:
        return self.changes.get("propensity", self.logging[self.group, self.action])

    def target(self, k: int = 0) -> Floats:
        """The target's probability of what was logged: one number a row."""
        return self.changes.get("target", self.policies[k][self.group, self.action])

    def table(self, k: int = 0) -> Floats:
        """The target's probability of every action: rows × actions."""
        return self.changes.get("table", self.policies[k][self.group])

    @cached_property
    def model_reward(self) -> Floats:
        """The model's prediction for what was logged."""
        return self.predictions[self.group, self.action]

    def model_value(self, k: int = 0) -> Floats:
        """The model's prediction for what the target would do."""
        return (self.policies[k] * self.predictions).sum(axis=1)[self.group]

    @cached_property
    def model_table(self) -> Floats:
        """The model's prediction for every action: rows × actions."""
        return self.predictions[self.group]


def softmax(scores: Floats) -> Floats:
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def draw_actions(random: np.random.Generator, policy: Floats, group: Floats) -> Floats:
    """An action for every row; kind by kind of context, since a table of all rows may not fit into memory."""
    action, u = np.empty(len(group), dtype=np.int64), random.random(len(group))
    order = np.argsort(group, kind="stable")
    ends = np.searchsorted(group[order], np.arange(len(policy) + 1))
    for k, row in enumerate(policy):
        rows = order[ends[k] : ends[k + 1]]
        action[rows] = np.minimum(np.searchsorted(row.cumsum(), u[rows], side="right"), policy.shape[1] - 1)
    return action


def worth(random: np.random.Generator, actions: int) -> tuple[Floats, Floats]:
    """What is known of forty kinds of context, and the effect of every action there, which follows from it, nearly."""
    features = random.normal(size=(GROUPS, DIMENSIONS))
    slopes = random.normal(size=(DIMENSIONS, actions)) / math.sqrt(DIMENSIONS)
    return features, features @ slopes + 0.5 * random.normal(size=(GROUPS, actions))


def clicks(effect: Floats, rate: float = 0.1) -> Floats:
    """The chance of a click, whose logit moves by half the effect."""
    return 1 / (1 + np.exp(-math.log(rate / (1 - rate)) - 0.5 * effect))


def draw_log(rows: int, actions: int, targets: int = 1, seed: int = 0) -> Log:
    """The log of the timed tasks: clicks, near one in ten, and targets that overlap well with what was logged."""
    world = np.random.default_rng(2611)
    features, effect = worth(world, actions)
    logging = softmax(0.5 * effect)
    policies = tuple(
        softmax((1 + 0.1 * k) * effect + 0.1 * k * world.normal(size=effect.shape)) for k in range(targets)
    )
    chance = clicks(effect)
    predictions = np.clip(chance + 0.02 * world.normal(size=effect.shape), 0.001, 0.999)
    random = np.random.default_rng(seed)
    group = random.integers(0, GROUPS, rows)
    action = draw_actions(random, logging, group)
    reward = (random.random(rows) < chance[group, action]).astype(np.float64)
    truths = tuple(float((policy * chance).sum(axis=1).mean()) for policy in policies)
    return Log(features, logging, policies, predictions, group, action, reward, truths)


# -- worlds of the task on truth --------------------------------------------------------------------------------------------


AMOUNT = math.exp(1.5**2 / 2)  # the mean of a lognormal amount
RATES = {"clicks 0.02": 0.02, "clicks 0.5": 0.5, "clicks 0.9": 0.9, "revenue": 0.03}
WORLDS = (*(f"{reward}, {overlap} overlap" for reward in RATES for overlap in ("good", "thin")), "users", "lists")


def draw_world(name: str, seed: int, rows: int = 0, actions: int = 10) -> Log:
    """A log of a world by name: `clicks 0.02, thin overlap`, `users`; its tables are the same for every seed."""
    rows = rows or (10_000 if name.startswith("revenue") else 2_000)
    world = np.random.default_rng([2612, WORLDS.index(name)])
    random = np.random.default_rng([seed, WORLDS.index(name)])
    features, effect = worth(world, actions)
    is_thin = name.endswith("thin overlap")
    # thin: what the target takes was logged rarely, in some contexts once in thousands of rows
    logging = softmax(-effect) if is_thin else softmax(0.5 * effect)
    policy = softmax(1.5 * effect) if is_thin else softmax(1.2 * effect)
    kind = name.split(",")[0]
    chance = clicks(effect, RATES.get(kind, 0.2))
    amount = AMOUNT if kind == "revenue" else 1.0
    predictions = amount * np.clip(chance * np.exp(0.2 * world.normal(size=effect.shape)), 0.0005, 0.999)
    group = random.integers(0, GROUPS, rows)
    user, taste = None, 0.0
    if kind == "users":  # a few come often, and like what they see more or less
        activity = random.pareto(1.2, 300) + 0.2
        user = random.choice(300, rows, p=activity / activity.sum())
        usual = random.integers(0, GROUPS, 300)
        group = np.where(random.random(rows) < 0.5, usual[user], group)
        taste = random.normal(size=300)[user]
    action = draw_actions(random, logging, group)
    if kind == "users":
        chances = clicks(2 * effect[group, action] + 2 * taste, 0.3)
        # the truth: over users' tastes and kinds of context, both drawn independently of the action
        nodes, weights = np.polynomial.hermite_e.hermegauss(60)
        mean = (clicks(2 * effect[:, :, None] + 2 * nodes, 0.3) * weights).sum(axis=2) / weights.sum()
    else:
        chances, mean = chance[group, action], amount * chance
    reward = (random.random(rows) < chances).astype(np.float64)
    if kind == "revenue":
        reward *= np.exp(1.5 * random.normal(size=rows))
    truth = float((policy * mean).sum(axis=1).mean())
    return Log(features, logging, (policy,), predictions, group, action, reward, (truth,), user)


# -- lists ------------------------------------------------------------------------------------------------------------------


@dataclass
class Lists:
    """Lists of items: position by position, chosen independently, each with a reward of its own."""

    slate: Floats
    """Which list a row belongs to."""
    position: Floats
    action: Floats
    reward: Floats
    propensity: Floats
    """Of the item at its position."""
    target: Floats
    """The target's probability of the item at its position."""
    length: int
    policies: tuple[Floats, Floats]
    """Positions × items: what was logged, and the target."""
    truth: float = math.nan
    """The expected sum of a list's rewards."""

    @property
    def count(self) -> int:
        return len(self.slate) // self.length

    def matrix(self, name: str) -> Floats:
        """A column as lists × positions."""
        return getattr(self, name).reshape(self.count, self.length)


def draw_lists(rows: int, length: int = 10, items: int = 10, seed: int = 0) -> Lists:
    """Lists whose rewards depend on the item at the position and, a little, on the one above."""
    world = np.random.default_rng(2613)
    effect = world.normal(size=(length, items))
    logging, target = softmax(0.3 * effect), softmax(0.6 * effect)
    random = np.random.default_rng(seed)
    count = rows // length
    action = np.stack([random.choice(items, count, p=logging[k]) for k in range(length)], axis=1)
    places = np.arange(length)
    chance = clicks(effect[places, action], 0.1)
    reward = (random.random(action.shape) < chance).astype(np.float64)
    truth = float((target * clicks(effect, 0.1)).sum())
    return Lists(
        np.repeat(np.arange(count), length), np.tile(places, count), action.ravel(), reward.ravel(),
        logging[places, action].ravel(), target[places, action].ravel(), length, (logging, target), truth,
    )  # fmt: skip


# -- mistakes ---------------------------------------------------------------------------------------------------------------


MISTAKES = {
    "NaN reward": r"nan|finite|missing|null|not a number|invalid",
    "propensity 0": r"propensit|pscore|zero|positive|\(0, ?1|p_log|prob",
    "propensity above 1": r"propensit|pscore|above|exceed|at most 1|\b1\b|prob",
    "propensities in percent": r"percent|propensit|pscore|\b1\b|\b100\b|prob",
    "propensities of other rows": r"propensit|pscore|shuffled|weights? (average|mean|do)|mean weight|other rows|average",
    "target rows that sum to 2": r"sum|action_dist|distribution|above|probabilit|average",
    "a never-logged action": r"never|lack|support|overlap|missing|unseen|coverage|identif",
    "no overlap": r"overlap|support|identif|effective|ess|weight",
    "all rewards equal": r"equal|constant|same|vary|varian|one class|single|only one|classes",
    "duplicated rows": r"duplicat|repeat|same row|twice|cop(y|ies)",
    "repeated users": r"cluster|user|repeat|move together|depend|unit",
    "lists read as rows": r"list|slate|position|cluster|depend|together",
}
"""What was handed over by mistake, and words that show that a message is about it."""


def draw_mistake(name: str, rows: int = 4000, seed: int = 0) -> Log:
    """A log in which something is wrong; `truths` holds what the target really earns."""
    log = draw_log(rows, 10, seed=seed)
    random = np.random.default_rng(seed + 1)
    n, p = log.rows, log.logging[log.group, log.action]
    if name == "NaN reward":
        log.reward[n // 3] = np.nan
    elif name == "propensity 0":
        log.changes["propensity"] = np.where(np.arange(n) == n // 3, 0.0, p)
    elif name == "propensity above 1":
        log.changes["propensity"] = np.where(np.arange(n) % 10 == 0, 1.5, p)
    elif name == "propensities in percent":
        log.changes["propensity"] = 100 * p
    elif name == "propensities of other rows":
        log.changes["propensity"] = random.permutation(p)
    elif name == "target rows that sum to 2":
        log.changes["table"] = 2 * log.table()
        log.changes["target"] = 2 * log.target()
    elif name == "a never-logged action":  # the target takes an action half of the time that was never taken
        world = np.eye(10)[0]
        logging = log.logging * (1 - world)
        logging /= logging.sum(axis=1, keepdims=True)
        return _redrawn(log, logging, 0.5 * world + 0.5 * logging, random)
    elif name == "no overlap":
        logging = np.tile(np.repeat([0.2, 0.0], 5), (GROUPS, 1))
        return _redrawn(log, logging, np.tile(np.repeat([0.0, 0.2], 5), (GROUPS, 1)), random)
    elif name == "all rewards equal":
        log.reward[:] = 1.0
        return replace(log, truths=(1.0,))
    elif name == "duplicated rows":  # each of the rows stands there ten times
        few = np.repeat(np.arange(n // 10), 10)
        return replace(log, group=log.group[few], action=log.action[few], reward=log.reward[few])
    elif name == "repeated users":  # ten rows of a user, who clicks on everything or on nothing
        user = np.repeat(np.arange(n // 10), 10)
        clicks_always = random.random(n // 10) < 0.1
        return replace(log, reward=clicks_always[user].astype(float), truths=(0.1,), user=user)
    elif name == "lists read as rows":  # the reward of a list stands in each of its ten rows
        lists = np.repeat(np.arange(n // 10), 10)
        reward = (random.random(n // 10) < 0.1)[lists].astype(float)
        return replace(log, reward=reward, truths=(0.1,), user=lists, position=np.tile(np.arange(10), n // 10))
    return log


def _redrawn(log: Log, logging: Floats, policy: Floats, random: np.random.Generator) -> Log:
    """The same world under another logging policy and another target."""
    chance = clicks(worth(np.random.default_rng(2611), log.actions)[1])
    action = draw_actions(random, logging, log.group)
    reward = (random.random(log.rows) < chance[log.group, action]).astype(float)
    truth = float((policy * chance).sum(axis=1).mean())
    return replace(log, logging=logging, policies=(policy,), action=action, reward=reward, truths=(truth,))


# -- files and lessons ------------------------------------------------------------------------------------------------------


@dataclass
class File:
    """A Parquet file with the columns group, action, reward, propensity, target, model_reward and model_value."""

    path: str
    log: Log
    """Its first rows, for the tables of the policies."""


@dataclass
class Lesson:
    """A log to learn from, and contexts to act in. The truth stays with the caller."""

    context: Floats
    action: Floats
    reward: Floats
    propensity: Floats
    actions: int
    test_context: Floats
    seconds: float = 0.0
    """How long may be spent on tuning; 0 asks for defaults."""
    seed: int = 0
    learner: str = ""
    """One of several that the library has."""


# -- features ---------------------------------------------------------------------------------------------------------------


FEATURES = {
    "self-normalized IPS": r"self.?normal|snips",
    "the best baseline (β-IPS)": r"beta_?ips|optimal_?baseline|baseline_correct",
    "doubly robust": r"doubly|\bdr\b|robust",
    "confidence intervals": r"interval|confidence|conf_int",
    "dependent rows: clusters": r"cluster",
    "the difference of two policies, with an interval": r"difference|compare|contrast|against",
    "the best of many policies, adjusted for having chosen": r"simultaneous|multiple_?test|bonferroni|\brank|p_adjust",
    "values by segment": r"segment|subgroup|gate\b|stratif",
    "says when the log cannot answer": r"verdict|identif|trust|support_?health|recommendation",
    "checks a log and says what to fix": r"doctor|diagnos|lint|validate_log|overlap",
    "how many rows a test would need": r"sample_?size|power|\bplan",
    "how wrong propensities must be to change the answer": r"sensitiv|rosenbaum|confound",
    "propensities estimated from the log": r"propensity_?(model|learner|estim)|fit_?propensity|estimate_?p",
    "several logging policies": r"stratum|multi_?logg|loggers|balanced|multiple_logg",
    "clipped and shrunk weights": r"clip|shrink|switch|lambda_|trunc",
    "weights by the features of actions (MIPS)": r"marginal|mips|embedding",
    "continuous actions": r"continuous|kernel|dose",
    "lists and rankings": r"slate|ranking|cascade",
    "episodes of many steps": r"episode|trajector|per_?decision|sequential",
    "states' own models (fitted Q, DICE)": r"fqe|fitted_?q|dice|state_?marginal",
    "ratios of sums": r"ratio_?metric|ratio_of|\bper\b",
    "quantiles and tails of rewards": r"quantile|cvar|cdf|distribution",
    "logs that kept only a sample of the rows": r"keep|sampling_?rate|inclusion",
    "a judge of everything and a few labels": r"proxy|ppi|prediction_?powered|surrogate",
    "A/B tests with less variance": r"ab_?test|cuped|experiment_analysis",
    "Parquet files larger than memory": r"parquet|stream",
    "SQL databases": r"sql|duckdb|postgres",
    "Spark": r"spark",
    "stored sums to which days are added": r"merge|to_json|moments|add_example",
    "alarms over days": r"watch|alarm|drift|monitor",
    "learning a policy from a log": r"learn|fit",
    "learning rankings from a log": r"rank.*learn|learn.*rank|listwise",
    "learning over a million items": r"million|items|two_?tower",
    "policies one can read: trees": r"policy_?tree|tree",
    "acting and learning online": r"partial_fit|online|update|predict_action",
    "instruments for what was not logged": r"instrument|\biv\b|iivm",
    "a page to share": r"html|report|card",
    "a command line": r"cli|main|console",
    "logs of Vowpal Wabbit": r"dsjson|vowpal|vw",
    "a policy as ONNX": r"onnx",
}
"""What a library may be able to do, and how a name that speaks of it would read."""
