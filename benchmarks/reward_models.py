"""Reward models at size: fit, predict and estimate a log of a million rows with 100 actions, beside the Open Bandit Pipeline.

    python benchmarks/reward_models.py                                # ours: logistic and boosted, 100 actions; 1,000 by sampling
    python benchmarks/reward_models.py --rows 100000                  # smaller
    python benchmarks/reward_models.py --peer /path/to/obp/bin/python # and the Open Bandit Pipeline's, run by that Python

Every case runs in a process of its own, which reports its seconds, those of the processor, and the most memory it held. On a machine
that others use, set OMP_NUM_THREADS=1 and compare the processor's. The log is made in that process, and
its own memory and time are not counted.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np

FEATURES = 10


def softmax(scores):
    scores = scores - scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    return scores


def world(rows, actions, seed=0):
    """Contexts, logged actions, propensities and clicks; and the weights of a new softmax policy."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, FEATURES)).astype(np.float32)
    old, new = (random.normal(size=(FEATURES, actions)).astype(np.float32) * scale for scale in (0.2, 0.3))
    action, propensity = np.empty(rows, dtype=np.int64), np.empty(rows)
    for start in range(0, rows, 50_000):
        part = slice(start, start + 50_000)
        p = softmax(x[part] @ old)
        action[part] = np.minimum((p.cumsum(axis=1) < random.random(len(p))[:, None]).sum(axis=1), actions - 1)
        propensity[part] = p[np.arange(len(p)), action[part]]
    scores = -2 + 0.5 * x[:, 0] + np.sin(action) * (1 + 0.5 * x[:, 1])
    reward = (random.random(rows) < 1 / (1 + np.exp(-scores))).astype(np.int64)
    return x, action, propensity, reward, new


class Policy:
    """The new policy."""

    def __init__(self, weights):
        self.weights, self.classes_ = weights, np.arange(weights.shape[1])

    def predict_proba(self, table):
        return softmax(np.asarray(table, dtype=np.float32) @ self.weights)


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def estimator(name):
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    return HistGradientBoostingClassifier(random_state=0) if name == "boosted" else LogisticRegression(max_iter=1000)


def ours(name, rows, actions, samples):
    import counterpoise as cp

    x, action, propensity, reward, new = world(rows, actions)
    log = {f"x{k}": x[:, k] for k in range(FEATURES)} | {"a": action, "p": propensity, "r": reward}
    before, start, cpu = peak(), time.perf_counter(), time.process_time()
    result = cp.evaluate(
        log, reward="r", propensity="p", action="a", context=[f"x{k}" for k in range(FEATURES)],
        target={"new": Policy(new)}, model=estimator(name), value_samples=samples,
    )  # fmt: skip
    found = {name: result["new", name].value for name in ("ips", "dm", "dr", "optimal_dr")}
    return {
        "seconds": time.perf_counter() - start,
        "cpu": time.process_time() - cpu,
        "peak_gb": peak(),
        "log_gb": before,
        **found,
        "r2": result.model.r2,
    }


def theirs(name, rows, actions, samples):
    """The Open Bandit Pipeline's own way: fit, predict for all actions, estimate; the policy's table is made in the time, too."""
    from obp.ope import DoublyRobust, RegressionModel

    x, action, propensity, reward, new = world(rows, actions)
    before, start, cpu = peak(), time.perf_counter(), time.process_time()
    dist = Policy(new).predict_proba(x)[:, :, None].astype(np.float64)
    model = RegressionModel(n_actions=actions, base_model=estimator(name))
    # as our default: fitted on a sample of 200,000 rows
    few = np.random.default_rng(0).permutation(rows)[:200_000]
    model.fit(context=x[few], action=action[few], reward=reward[few])
    fitted = time.perf_counter() - start
    predicted = model.predict(context=x)
    value = DoublyRobust().estimate_policy_value(
        reward=reward, action=action, pscore=propensity, action_dist=dist, estimated_rewards_by_reg_model=predicted
    )
    return {
        "seconds": time.perf_counter() - start,
        "cpu": time.process_time() - cpu,
        "fit": fitted,
        "peak_gb": peak(),
        "log_gb": before,
        "dr": value,
    }


def run(python, who, *case):
    asked = [python, __file__, "--one", who, *map(str, case)]
    done = subprocess.run(asked, capture_output=True, text=True)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--peer", help="a Python with the Open Bandit Pipeline")
    parser.add_argument("--models", nargs="+", default=["logistic", "boosted"])
    parser.add_argument("--peer-models", nargs="+", default=["logistic"])
    parser.add_argument(
        "--one", nargs=5, metavar=("WHO", "MODEL", "ROWS", "ACTIONS", "SAMPLES"), help=argparse.SUPPRESS
    )
    given = parser.parse_args()
    if given.one:
        who, name, rows, actions, samples = given.one
        found = {"ours": ours, "theirs": theirs}[who](name, int(rows), int(actions), int(samples) or None)
        print(json.dumps(found))
        return
    for name in given.models:
        cases = [("ours", 100, 0), ("ours", 100, 10), ("ours", 1_000, 10)]
        if given.peer and name in given.peer_models:
            cases.append(("theirs", 100, 0))
        for who, actions, samples in cases:
            python = given.peer if who == "theirs" else sys.executable
            found = run(python, who, name, given.rows, actions, samples)
            said = ", ".join(
                f"{key} {one:.4g}" if isinstance(one, float) else f"{key} {one}" for key, one in found.items()
            )
            print(
                f"{who}, {name}, {given.rows:,} rows, {actions:,} actions, {samples or 'no'} samples: {said}",
                flush=True,
            )


if __name__ == "__main__":
    main()
