"""What runs in a peer's Python: it waits for tasks on standard input, does them, and answers in lines of JSON.

    python -m peer.worker obp

`peers.py` starts it. Whatever a library prints goes to standard error, so that only answers are on standard output.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import json
import os
import pkgutil
import re
import resource
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from peer import data

Answer = dict[str, Any]


def main(name: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    library = importlib.import_module(f"peer.{name}")
    work: Any = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if asked["do"] == "prepare":
                work = None
                gc.collect()
                work, answer = prepare(library, asked), {}
            else:
                answer, work = measure(work), None  # what one library holds would be missing to the next
        except MemoryError:
            work, answer = None, {"error": "out of memory"}
        except Exception as error:  # whatever a peer raises is its result
            answer = {"error": in_one_line(error), "raised": type(error).__name__}
            traceback.print_exc()
        answers.write(json.dumps(answer, default=as_number) + "\n")
        answers.flush()


def as_number(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else float(value)


def in_one_line(said: object) -> str:
    text = " ".join(str(said).split())[:300]
    return f"{type(said).__name__}: {text}"


def prepare(library: Any, asked: dict[str, Any]) -> Callable[[], Any]:
    """The call of a task on its data; with `warm`, the library has done the same on a small log before."""
    task, spec = asked["task"], asked["spec"]
    if task in ALONE:
        return partial(ALONE[task], library, **spec)
    work = getattr(library, task)
    if asked.get("warm"):
        try:
            work(data_of(task, spec | asked["warm"]))()
        except Exception:
            traceback.print_exc()
    return work(data_of(task, spec))


def data_of(task: str, spec: dict[str, Any]) -> Any:
    if task == "lists":
        return data.draw_lists(**spec)
    if task == "cell":
        return spec["rows"]
    if task == "files":
        return data.File(spec["path"], data.draw_log(100, spec["actions"]))
    if task == "learn":
        with np.load(spec["path"]) as file:
            columns = {key: file[key] for key in file.files}
        return data.Lesson(**columns | {"actions": int(columns["actions"])}, **spec["options"])
    return data.draw_log(**spec)


def tell_truth(library: Any, world: str, first: int, logs: int, limit: float) -> list[Answer]:
    """What a library says of many logs of a world, as far as it comes in so many processor seconds."""
    answers: list[Answer] = []
    began = processor_seconds()
    for seed in range(first, first + logs):
        if processor_seconds() - began > limit:
            break
        if world == "lists":
            lists = data.draw_lists(5000, 5, seed=seed)
            call, truth = partial(library.lists, lists), lists.truth
        else:
            log = data.draw_world(world, seed)
            call, truth = partial(library.evaluate, log), log.truths[0]
        answers.append({"truth": truth} | attempt(call))
    return answers


def try_mistake(library: Any, case: str) -> Answer:
    log = data.draw_mistake(case)
    work = getattr(library, "mistakes", None) or library.evaluate
    return {"truth": log.truths[0]} | attempt(lambda: work(log))


def attempt(task: Callable[[], Callable[[], Any]]) -> Answer:
    """The answer, or the error; and every warning."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            found: Answer = {"answer": task()()}
        except Exception as error:
            found = {"error": in_one_line(error), "raised": type(error).__name__}
    # what NumPy and pandas say to developers is no word to a user
    told = [each.message for each in said if not issubclass(each.category, DeprecationWarning | FutureWarning)]
    return found | {"warnings": list(dict.fromkeys(map(in_one_line, told)))[:5]}


def try_feature(library: Any, feature: str, words: str) -> Answer:
    """Call what the library has for it; where it has nothing, look for a public name or parameter that speaks of it."""
    known: dict[str, Callable[[], Any]] = getattr(library, "FEATURES", {})
    if feature in known:
        return {"has": True, "by": "a call"} | attempt(lambda: known[feature])
    names = public_names(library.VERSION[1] if isinstance(library.VERSION, tuple) else library.VERSION)
    found = sorted(name for name in names if re.search(words, name, re.IGNORECASE))
    return {"has": False, "searched": len(names), "found": found[:5]}


def public_names(package: str) -> set[str]:
    """Every public function and class of a package, and their parameters."""
    names: set[str] = set()
    root = importlib.import_module(package)
    modules = [root]
    for found in pkgutil.walk_packages(getattr(root, "__path__", []), f"{package}."):
        with contextlib.suppress(BaseException):  # what cannot be imported cannot be used
            modules.append(importlib.import_module(found.name))
    for module in modules:
        for name, value in vars(module).items():
            with contextlib.suppress(Exception):  # a stand-in for what is not installed may raise, whatever it is asked
                if not name.startswith("_") and str(value.__module__).startswith(package):
                    names.add(name)
                    members = [value, *(vars(value).values() if isinstance(value, type) else ())]
                    names.update(each for member in members for each in parameters_of(member))
    return names


def parameters_of(member: Any) -> list[str]:
    try:
        return list(inspect.signature(member).parameters)
    except (TypeError, ValueError):
        return []


ALONE: dict[str, Callable[..., Any]] = {"truth": tell_truth, "mistakes": try_mistake, "features": try_feature}
"""Tasks that are asked of a library's other functions."""


def measure(call: Any) -> Answer:
    """Do it once: seconds, processor seconds, and the most memory that the process held."""
    gc.collect()
    forget_peak()
    began, used = time.perf_counter(), processor_seconds()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        answer = call()
    seconds, used = time.perf_counter() - began, processor_seconds() - used
    return {"seconds": seconds, "cpu": used, "peak_mb": resident("VmHWM"), "answer": answer,
            "warnings": [in_one_line(each.message) for each in said][:5]}  # fmt: skip


def processor_seconds() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in both)


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the highest resident size since now


def resident(what: str) -> float:
    """Resident memory in MB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1000


if __name__ == "__main__":
    main(sys.argv[1])
