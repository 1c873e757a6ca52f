"""A training run that tests start in processes of their own: to kill one, and to have two."""

import os
import signal
import sys
from pathlib import Path

import torch

import counterpoise.learn.training as training
from counterpoise.environments import SyntheticBandit
from counterpoise.learn import MLP, PolicyLearner, contenders, learn_policy


def stop_after_four(end):
    """A callback, which only the first of several processes calls."""
    return end.epoch.epoch == 4


def train(objective="beta_ips", norms="last_layer", checkpoint=None, folds=None, **parts):
    """A small deep policy; the same however it is started."""
    log = SyntheticBandit(n_actions=8, inverse_temperature=-3, seed=2).draw(3000)
    torch.manual_seed(7)
    learner = PolicyLearner(
        objective,
        policy=MLP(5, 8, hidden=(16,)),
        epochs=9,
        callbacks=[stop_after_four],
        batch_size=250,
        learning_rate=0.05,
        norms=norms,
        folds=folds,
        checkpoint=checkpoint,
    )
    return learner.fit(context=log.context, action=log.action, reward=log.reward, propensity=log.propensity, **parts)


def search(minutes=None):
    """A search among two networks, with few steps."""
    log = SyntheticBandit(n_actions=4, inverse_temperature=-2, seed=1).draw(1500)
    contenders.LEAST = 60
    networks = [contenders.Network(name, name, hidden=(8,), epochs=1) for name in ("beta_ips", "predicted_reward")]
    parts = {"context": log.context, "action": log.action, "reward": log.reward, "propensity": log.propensity}
    return learn_policy(**parts, contenders=networks, minutes=minutes, progress=False)


RUNS = {
    "last_layer": {"folds": 2},
    "all": {"norms": "all", "folds": 2},
    "score": {"objective": "predicted_reward", "folds": 2},
    "reward model": {"objective": "dr", "folds": 3, "model": "logistic"},
}


def die_after(saves):
    """Kill this process, as the operating system would, right after so many checkpoints."""
    save, count = training.save_checkpoint, 0

    def save_then_die(*args):
        nonlocal count
        save(*args)
        count += 1
        if count == saves:
            os.kill(os.getpid(), signal.SIGKILL)

    training.save_checkpoint = save_then_die


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, out = sys.argv[1], Path(sys.argv[2])
    if what == "kill":
        die_after(2)
        train("running_beta_ips", checkpoint=out / "checkpoint")
    else:
        for kind, options in RUNS.items():
            found = train(**options)
            if torch.distributed.get_rank() == 0:
                found.save(out / kind)
                (out / f"{kind} lift").write_text(str(found.result_["fold policies", "lift"].value), encoding="utf-8")
        search().save(out / f"search {torch.distributed.get_rank()}")
        search(minutes=0.02).save(out / f"short search {torch.distributed.get_rank()}")
        torch.distributed.destroy_process_group()
