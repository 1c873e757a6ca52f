"""The Open Bandit Pipeline's learners on one log. `learning_quality.py` runs this with a Python that has the Pipeline.

    /path/to/obp/bin/python benchmarks/learning_peers.py log.npz greedy.npz logistic forest

It reads contexts, actions, rewards and propensities of a log and the contexts of its test set, and writes the action that each learner
would take on them, and the seconds of its fit. The truth stays with the caller. Settings are those of the Pipeline's own quickstart on
learning; the networks have its defaults.
"""

import sys
import time
import warnings

import numpy as np
from obp.policy import IPWLearner, NNPolicyLearner
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression


def learner(name, n_actions, dimension, seed):
    if name == "network":
        return NNPolicyLearner(n_actions, dim_context=dimension, off_policy_objective="ipw", random_state=seed)
    classifiers = {
        "logistic": LogisticRegression(C=100, random_state=seed),
        "forest": RandomForestClassifier(n_estimators=30, min_samples_leaf=10, random_state=seed),
    }
    return IPWLearner(n_actions, base_classifier=classifiers[name])


def main(source, destination, *names):
    warnings.filterwarnings("ignore")  # that logistic regression did not converge in the 100 steps of its default
    with np.load(source) as file:
        log = {key: file[key] for key in file.files}
    n_actions, seed = int(log["n_actions"]), int(log["seed"])
    context, test_context = log["context"].astype(float), log["test_context"].astype(float)
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
