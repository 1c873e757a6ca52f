"""The Open Bandit Pipeline's learners on one log. `learning_quality.py` runs this with a Python that has the Pipeline.

    /path/to/obp/bin/python benchmarks/learning_peers.py log.npz greedy.npz logistic forest

It reads contexts, actions, rewards and propensities of a log and the contexts of its test set, and writes the action that each learner
would take on them, and the seconds of its fit. The truth stays with the caller. Contexts are standardized for all of them, which helps the
logistic regression and the network. `small_forest` has the settings of the Pipeline's quickstart, and the others are defaults, with enough
steps for the logistic regression to converge.
"""

import sys
import time

import numpy as np
from obp.policy import IPWLearner, NNPolicyLearner
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression


def learner(name, n_actions, dimension, seed):
    if name == "network":
        return NNPolicyLearner(n_actions, dim_context=dimension, off_policy_objective="ipw", random_state=seed)
    classifiers = {
        "logistic": LogisticRegression(max_iter=1000, random_state=seed),
        "forest": RandomForestClassifier(random_state=seed),
        "small_forest": RandomForestClassifier(n_estimators=30, min_samples_leaf=10, random_state=seed),
    }
    return IPWLearner(n_actions, base_classifier=classifiers[name])


def main(source, destination, *names):
    with np.load(source) as file:
        log = {key: file[key] for key in file.files}
    n_actions, seed = int(log["n_actions"]), int(log["seed"])
    mean, scale = log["context"].mean(axis=0, dtype=float), log["context"].std(axis=0, dtype=float)
    scale[scale == 0] = 1.0
    context, test_context = ((log[key] - mean) / scale for key in ("context", "test_context"))
    found = {}
    for name in names:
        one = learner(name, n_actions, context.shape[1], seed)
        started = time.perf_counter()
        one.fit(context=context, action=log["action"], reward=log["reward"], pscore=log["propensity"])
        found[f"{name}_seconds"] = time.perf_counter() - started
        chosen = one.predict_proba(test_context) if name == "network" else one.predict(test_context)
        found[name] = chosen[:, :, 0].argmax(axis=1)
    np.savez(destination, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
