"""Do the intervals cover as often as they say? Simulations with a known truth, too slow for the tests.

    make statistics     # about twelve minutes

Prints five tables and fails if a promise is broken: independent rows, clustered rows, clusters of unequal size, logs without a click, and
the hard cells of the paper (inverse temperature −5), where overlap is so thin that no interval is right and the verdict has to say so.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

import counterpoise as cp
from counterpoise.environments import SyntheticBandit
from counterpoise.estimators import ESTIMATORS
from counterpoise.experiments.regressions import fit_target

ACTIONS = 10


def softmax(x: np.ndarray) -> np.ndarray:
    raised = np.exp(x - x.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def choose(random: np.random.Generator, policy: np.ndarray) -> np.ndarray:
    """An action for every row of a table of probabilities."""
    return (random.random((len(policy), 1)) > policy.cumsum(axis=1)).sum(axis=1).clip(max=policy.shape[1] - 1)


def share(hits: int, runs: int) -> str:
    p = hits / runs
    return f"{p:6.1%} ± {1.96 * (p * (1 - p) / runs) ** 0.5:.1%}"


def independent(runs: int, n: int, distance: float) -> bool:
    """Independent rows: on well-overlapping logs, normal and jackknife intervals of every estimator should cover 95 %."""
    random = np.random.default_rng(1)
    theta, change = random.normal(size=(3, ACTIONS)), distance * random.normal(size=(3, ACTIONS))
    rewards = random.normal(size=(3, ACTIONS))

    def world(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return softmax(x @ theta), softmax(x @ (theta + change)), 1 / (1 + np.exp(-x @ rewards))

    many = np.random.default_rng(2).normal(size=(2_000_000, 3))
    _, target, q = world(many)
    old, _, _ = world(many)
    value, lift = float((target * q).sum(axis=1).mean()), float(((target - old) * q).sum(axis=1).mean())
    names = [name for name in ESTIMATORS if name not in ("dm", "constant_dr")]
    hits = {(name, method): 0 for name in names for method in ("normal", "jackknife")}
    for _ in range(runs):
        x = random.normal(size=(n, 3))
        logging, target, q = world(x)
        action, row = choose(random, logging), np.arange(n)
        guess = np.clip(q + 0.1, 0, 1) * 0.8  # a model that is useful and wrong
        log = {
            "reward": (random.random(n) < q[row, action]).astype(float),
            "propensity": logging[row, action],
            "target": target[row, action],
            "model_reward": guess[row, action],
            "model_value": (guess * target).sum(axis=1),
        }
        grouped = cp.evaluate(**log, estimator=names, interval="jackknife")
        plain = cp.evaluate(grouped.moments, estimator=names, interval="normal")
        for name in names:
            truth = lift if name == "lift" else value
            hits[name, "normal"] += truth in plain["target", name].interval
            hits[name, "jackknife"] += truth in grouped["target", name].interval
    overlap = grouped.diagnostics().effective_share
    print(
        f"\nIndependent rows, n = {n:,}, effective sample {overlap:.0%}, {runs:,} logs: share of 95 % intervals that cover"
    )
    print(f"{'estimator':12s} {'normal':>16s} {'jackknife':>16s}")
    for name in names:
        print(f"{name:12s} {share(hits[name, 'normal'], runs):>16s} {share(hits[name, 'jackknife'], runs):>16s}")
    noise = 1.96 * (0.95 * 0.05 / runs) ** 0.5
    return all(0.94 - noise <= count / runs <= 0.96 + noise for count in hits.values())


def clustered(runs: int, users: int = 300, each: int = 20) -> bool:
    """Twenty rows a user, who have moods and favourite actions: the normal interval fails, the jackknife over users does not."""
    random = np.random.default_rng(3)
    bias = random.normal(size=ACTIONS)
    rewards = random.uniform(0.2, 0.8, ACTIONS)
    hits = {
        (name, method): 0 for name in ("ips", "snips", "beta_ips", "cross_fit") for method in ("normal", "jackknife")
    }
    target = softmax(bias)
    truth = float(target @ rewards)
    for _ in range(runs):
        user = np.repeat(np.arange(users), each)
        logging = softmax(bias + random.normal(size=(users, ACTIONS)))[user]  # a policy that differs by user
        action = choose(random, logging)
        mood = random.normal(scale=0.3, size=users)[user]
        log = {
            "reward": rewards[action] + mood + random.normal(scale=0.3, size=len(user)),
            "propensity": logging[np.arange(len(user)), action],
            "target": target[action],
            "cluster": user,
        }
        robust = cp.evaluate(**log)
        naive = cp.evaluate(robust.moments, interval="normal")
        for name, method in hits:
            found = robust if method == "jackknife" else naive
            hits[name, method] += truth in found["target", name].interval
    print(f"\n{each} rows for each of {users} users, {runs:,} logs: share of 95 % intervals that cover the truth")
    print(f"{'estimator':12s} {'normal':>16s} {'jackknife':>16s}")
    for name in dict.fromkeys(name for name, _ in hits):
        print(f"{name:12s} {share(hits[name, 'normal'], runs):>16s} {share(hits[name, 'jackknife'], runs):>16s}")
    noise = 1.96 * (0.95 * 0.05 / runs) ** 0.5
    return all(0.93 - noise <= hits[name, "jackknife"] / runs <= 0.97 + noise for name, _ in hits) and all(
        hits[name, "normal"] / runs < 0.93 for name in ("beta_ips", "snips")
    )


def lognormal(random: np.random.Generator, users: int) -> np.ndarray:
    return np.ceil(random.lognormal(1.0, 1.5, users)).astype(int)


def zipf(random: np.random.Generator, users: int) -> np.ndarray:
    return np.ceil(2 * users / np.arange(1, users + 1)).astype(int)


def equal(random: np.random.Generator, users: int) -> np.ndarray:
    return np.full(users, 10)


def unequal_clusters(runs: int) -> bool:
    """Users with moods, a few of whom write most of the log: 93 % or more, or caution."""
    print(f"\nUsers of unequal activity, {runs:,} logs: 95 % intervals of β-IPS")
    head = f"{'sizes':>10s} {'users':>6s} {'effective':>10s} {'covered':>16s} {'error':>7s} {'true':>7s} {'ok':>6s} {'covered if ok':>16s}"
    print(head)
    sound = True
    for sizes, users in ((equal, 300), (lognormal, 300), (lognormal, 2000), (zipf, 300), (zipf, 2000), (lognormal, 50)):
        random = np.random.default_rng(3)
        bias, rewards = random.normal(size=5), random.uniform(0.2, 0.8, 5)
        target = softmax(bias)
        truth, found = float(target @ rewards), []
        for _ in range(runs):
            user = np.repeat(np.arange(users), sizes(random, users))
            logging = softmax(bias + 0.7 * random.normal(size=(users, 5)))[user]
            action = choose(random, logging)
            mood = random.normal(scale=0.5, size=users)[user]
            result = cp.evaluate(
                reward=rewards[action] + mood + random.normal(scale=0.3, size=len(user)),
                propensity=logging[np.arange(len(user)), action],
                target=target[action],
                cluster=user,
                estimator="beta_ips",
            )
            one, clusters = result["target", "beta_ips"], result.diagnostics().effective_clusters
            found.append((truth in one.interval, result.verdict().verdict == "ok", one.value, one.stderr, clusters))
        covered, ok, values, errors, clusters = (np.array(column) for column in zip(*found, strict=True))
        trusted = share(int((covered & ok).sum()), int(ok.sum())) if ok.any() else "–"
        print(
            f"{sizes.__name__:>10s} {users:6d} {np.median(clusters):10.0f} {share(int(covered.sum()), runs):>16s} "
            f"{np.mean(errors):7.4f} {np.std(values):7.4f} {ok.mean():6.0%} {trusted:>16s}"
        )
        sound &= ok.mean() < 0.2 or covered[ok].mean() >= 0.93 - 1.96 * (0.95 * 0.05 / ok.sum()) ** 0.5
    return bool(sound)


def no_clicks(runs: int, n: int = 1000, rate: float = 0.002) -> bool:
    """Logs of rare clicks: one in seven has none, and must not say [0, 0], ok."""
    random = np.random.default_rng(4)
    none = covered = trusted = 0
    for _ in range(runs):
        action, click = random.random(n) < 0.5, random.random(n) < rate
        target = np.where(action, 0.8, 0.2)
        result = cp.evaluate(reward=click, propensity=np.full(n, 0.5), target=target, estimator=["beta_ips", "lift"])
        if not click.any():
            none += 1
            trusted += result.verdict().verdict == "ok"
            covered += rate in result["target", "beta_ips"].interval and 0.0 in result["target", "lift"].interval
    print(
        f"\nClick rate {rate}, n = {n:,}: {none:,} of {runs:,} logs have no click; covered {covered:,}, ok {trusted:,}"
    )
    return covered >= 0.95 * none and trusted == 0


def hard_cells(runs: int) -> bool:
    """The paper's own hard cells, inverse temperature −5: the logging policy avoids what the target would do."""
    print("\nThe paper's world at inverse temperature −5, its learnt target policy, 95 % intervals of β-IPS")
    print(
        f"{'actions':>8s} {'n':>8s} {'covered':>9s} {'ok':>7s} {'caution':>8s} {'not identified':>15s} {'covered if ok':>14s}"
    )
    sound = True
    for actions in (25, 100):
        for n in (100, 774, 2154, 16681):
            verdicts, covered, good = {"ok": 0, "caution": 0, "not identified": 0}, 0, 0
            for seed in range(runs):
                world = SyntheticBandit(actions, inverse_temperature=-5, seed=seed)
                training, test = world.draw(n), world.draw(n)
                action = fit_target(training)(test.context)
                target = (action == test.action).astype(float)
                result = cp.evaluate(reward=test.reward, propensity=test.propensity, target=target)
                estimate, verdict = result["target", "beta_ips"], result.verdict().verdict
                inside = estimate.identified and test.value(action) in estimate.interval
                verdicts[verdict] += 1
                covered += inside
                good += inside and verdict == "ok"
            trusted = f"{good / verdicts['ok']:.0%}" if verdicts["ok"] else "–"
            counts = [f"{verdicts[word] / runs:.0%}" for word in verdicts]
            print(
                f"{actions:8d} {n:8,d} {covered / runs:9.0%} {counts[0]:>7s} {counts[1]:>8s} {counts[2]:>15s} {trusted:>14s}"
            )
            sound &= verdicts["ok"] <= 0.05 * runs or good >= 0.9 * verdicts["ok"]
    return sound


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    options = parser.parse_args()
    sound = [
        independent(options.runs, 2000, distance=0.4),
        clustered(options.runs),
        unequal_clusters(options.runs // 4),
        no_clicks(options.runs),
        hard_cells(50),
    ]
    independent(
        options.runs, 2000, distance=0.7
    )  # less overlap, shown beside: here the normal interval begins to fall short
    print(
        "\nevery promise kept"
        if all(sound)
        else f"\nBROKEN: independent, clustered, unequal, no clicks, hard cells = {sound}"
    )
    sys.exit(0 if all(sound) else 1)


if __name__ == "__main__":
    main()
