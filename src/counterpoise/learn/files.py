"""Policies on disk: safetensors with a JSON description and a checksum, never a pickle."""

from __future__ import annotations

import hashlib
import json
import math
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from counterpoise.errors import OptionError, PolicyFileError, verbatim
from counterpoise.features import Encoder
from counterpoise.learn.actions import Names
from counterpoise.learn.forest import Forest, Trees
from counterpoise.learn.onnx_files import ServedProbabilities, write_onnx
from counterpoise.learn.plackett_luce import PlackettLuce
from counterpoise.learn.policies import MLP, Average, LinearSoftmax, ModelPolicy, ModulePolicy, TwoTower
from counterpoise.learn.policy import Policy
from counterpoise.log.sketches import Lesson
from counterpoise.whole_files import whole_file

# -- Files of tensors --------------------------------------------------------------------------------------------------

CHECKSUM = "checksum"  # of the whole file, with zeros in its own place; files of version 0.2 have none
ZEROS = "0" * 32
PIECE = 2**22  # bytes of a file in memory at a time
LONGEST = 2**24  # characters of a description: 16 MB are enough for the history of 50,000 epochs
TYPES = {
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
}


class TensorFile:
    """A file of which only the header has been read: its description, and its tensors on torch's `meta` device."""

    def __init__(self, path: str | PathLike[str], file: Any) -> None:
        self.path = path
        self._file = file
        self.tensors = {name: _outline(name, file.get_slice(name)) for name in list(file.keys())}
        self.description = _described(file.metadata() or {})

    def read(self) -> dict[str, Tensor]:
        """All tensors, in memory."""
        with _readable(self.path):
            # copies, because a process that reads mapped memory dies if the file is cut short
            return {name: self._file.get_tensor(name).clone() for name in self.tensors}

    def damaged(self, why: str) -> PolicyFileError:
        """The error for a file that contradicts itself."""
        return PolicyFileError(f"{str(self.path)!r} is damaged, or was not written by counterpoise: {why}.")


def _outline(name: str, part: Any) -> Tensor:
    """The shape and type of a tensor in a file, without its data."""
    kind = str(part.get_dtype())
    if kind not in TYPES:
        raise ValueError(f"{name!r} is {kind}, which no policy has")
    return torch.empty(part.get_shape(), dtype=TYPES[kind], device="meta")


@contextmanager
def opened(path: str | PathLike[str]) -> Iterator[TensorFile]:
    """A file of tensors, with only its header read."""
    open_file = _safetensors("safe_open")
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        raise PolicyFileError(f"there is no file {str(path)!r}: {error.strerror}.", do="Name another one.") from error
    if not stat.S_ISREG(mode):
        raise PolicyFileError(f"{str(path)!r} is not a regular file.", do="Name another one.")
    with _readable(path):
        file = open_file(str(path), framework="pt").__enter__()
    try:
        with _readable(path):
            tensors = TensorFile(path, file)
            _check_sum(tensors, file.metadata().get(CHECKSUM))
        yield tensors
    finally:
        file.__exit__(None, None, None)


def _check_sum(file: TensorFile, stored: str | None) -> None:
    """Check that no byte of a file has changed since it was written."""
    if stored is None:
        return
    with Path(file.path).open("rb") as stream:
        length = stream.read(8)
        header = stream.read(int.from_bytes(length, "little"))
        blank = header.replace(_sum_in_header(stored), _sum_in_header(ZEROS), 1)
        checksum = _digest(chain([length, blank], iter(lambda: stream.read(PIECE), b"")))
    if checksum != stored:
        raise PolicyFileError(
            f"{str(file.path)!r} is damaged: its checksum is {checksum[:8]}…, and the file says {stored[:8]}….",
            do="Copy it again from where it was made, or save it again.",
        )


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=len(ZEROS) // 2)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _sum_in_header(checksum: str) -> bytes:
    """A checksum as the header has it; within a description the quotes would have backslashes."""
    return f'"{CHECKSUM}":"{checksum}"'.encode()


@contextmanager
def _readable(path: str | PathLike[str]) -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except RecursionError as error:
        raise PolicyFileError(f"{str(path)!r} is damaged: its description is nested too deeply.") from error
    except (OSError, SafetensorError, ValueError, TypeError, RuntimeError, MemoryError) as error:
        raise PolicyFileError(
            f"{str(path)!r} is damaged, or was not written by counterpoise: {verbatim(error)}."
        ) from error


def _described(metadata: Mapping[str, str]) -> dict[str, Any]:
    text = metadata.get("counterpoise")
    if text is None:
        raise ValueError("it has no description")
    if len(text) > LONGEST:
        raise ValueError(f"its description has {len(text):,} characters")
    description = json.loads(text)
    if not isinstance(description, dict):
        raise ValueError(f"its description is a {type(description).__name__}, not an object")
    return description


def read_tensors(path: str | PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file and its description."""
    with opened(path) as file:
        return file.read(), file.description


def write_tensors(path: str | PathLike[str], tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
    """Write one safetensors file with a JSON description; it replaces an old one only once it is complete on disk."""
    save = _safetensors("save")
    data = save(_apart(tensors), metadata={"counterpoise": json.dumps(description), CHECKSUM: ZEROS})
    data = data.replace(_sum_in_header(ZEROS), _sum_in_header(_digest([data])), 1)
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as part:
            part.write_bytes(data)
    except OSError as error:
        raise PolicyFileError(f"cannot write {str(path)!r}: {error.strerror}.", do="Name another file.") from error


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors on the CPU, each in memory of its own, because safetensors refuses those of layers that share their weights."""
    apart: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        copy = tensor.detach().cpu().contiguous()
        apart[name] = copy.clone() if copy.untyped_storage().data_ptr() in taken else copy
        taken.add(copy.untyped_storage().data_ptr())
    return apart


def check_tensors(
    file: TensorFile, own: Mapping[str, Tensor], stored: Mapping[str, Tensor], *, exactly: bool = False
) -> None:
    """Check that a file has exactly the tensors of a model, by name, shape and kind of number; with `exactly`, also by precision."""
    path = str(file.path)
    for name in sorted(own.keys() ^ stored.keys()):
        which = "lacks" if name in own else "has"
        raise PolicyFileError(
            f"{path!r} belongs to another model: it {which} the tensor {name!r}.", do="Name another file."
        )
    for name, tensor in own.items():
        kept = stored[name]
        if tensor.shape != kept.shape:
            raise PolicyFileError(
                f"{path!r} belongs to another model: {name!r} has shape {tuple(kept.shape)}, this one needs {tuple(tensor.shape)}.",
                do="Name another file.",
            )
        alike = kept.is_floating_point() and tensor.is_floating_point() and not exactly
        if kept.dtype != tensor.dtype and not alike:
            raise file.damaged(f"{name!r} must be {tensor.dtype}, and is {kept.dtype}")


def check_finite(file: TensorFile, tensors: Mapping[str, Tensor]) -> None:
    """Check that there are no NaNs or infinities, which training never leaves behind."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise file.damaged(f"{name!r} contains numbers that are not finite")


def _safetensors(name: str) -> Any:
    try:
        import safetensors
        import safetensors.torch
    except ImportError as error:
        raise OptionError("saving needs safetensors.", do="Run pip install 'counterpoise[learn]'.") from error
    return getattr(safetensors.torch, name, None) or getattr(safetensors, name)


# -- Policies on disk --------------------------------------------------------------------------------------------------


__all__ = ["export_onnx", "load_policy", "read_tensors", "save_policy", "write_tensors"]

FORMAT = "counterpoise policy 2"
WIDER = "counterpoise policy 3"  # has an encoding of contexts, names of actions or candidates, which older versions would overlook
KINDS: dict[str, type[Policy]] = {
    kind.__name__: kind for kind in (LinearSoftmax, MLP, TwoTower, PlackettLuce, Forest, Average)
}
IDS = "action ids"  # the tensor of the actions' ids, where these are not 0, 1, 2, …
NAMES = "action names"  # the tensor of their names as JSON, in bytes of UTF-8: a description has no room for a catalog
OWN = (IDS, NAMES)  # tensors that are not the module's
UNFIT = (TypeError, ValueError, AttributeError, IndexError, OverflowError, RuntimeError, MemoryError, OptionError)


def save_policy(policy: Policy, path: str | PathLike[str], *, context: tuple[str, ...] = ()) -> None:
    """Write a policy, completely or not at all; `context` names the columns it looks at, by default those it was learned from.

    `load_policy` returns them as `context_`, and `evaluate` refuses others, or another order. For a `ModulePolicy`, only the
    weights are saved; bring the module yourself when you load it: `load_policy(path, module=…)`. If you wrote the policy's class
    yourself, it needs a `config` method that returns its arguments, and you load it with `load_policy(path, make=…)`.
    """
    _check_ours(policy, "saved")
    names = list(context or policy.context_)
    policy.check_context(names)
    config = policy.description() | {"context": names}
    tensors = dict(policy.state_dict())
    if policy.encoding_ is not None:
        config["encoding"] = policy.encoding_.described()
    if policy.candidates_ is not None:
        config["candidates"] = policy.candidates_
    if policy.lesson_ is not None:
        config["lesson"] = policy.lesson_.to_plain()  # which older versions may overlook
    if policy.actions_ is not None and policy.actions_.dtype == object:
        tensors[NAMES] = bytes_of(list(policy.actions_))
    elif policy.actions_ is not None:
        tensors[IDS] = torch.as_tensor(policy.actions_)
    is_wider = NAMES in tensors or config.keys() & {"encoding", "candidates"}
    write_tensors(path, tensors, {"format": WIDER if is_wider else FORMAT, "config": config})


def bytes_of(names: list[str]) -> Tensor:
    """Names as a tensor of bytes.

    >>> names_of(bytes_of(["jam", "tea"])).tolist()
    ['jam', 'tea']
    """
    return torch.as_tensor(np.frombuffer(json.dumps(names).encode(), dtype=np.uint8).copy())


def names_of(stored: Tensor) -> Names:
    """The names in a tensor of bytes; a ValueError if it holds something else."""
    names = json.loads(stored.numpy().tobytes())
    if not isinstance(names, list):
        raise ValueError("the names of its actions are not a list")
    return np.array(names, dtype=object)


def _check_ours(policy: Any, done: str) -> None:
    """Check that this is a policy all of whose tensors we can write."""
    if isinstance(getattr(policy, "policy_", None), Policy):
        raise OptionError(f"this is a {type(policy).__name__}, which has a policy.", do="Pass its policy_.")
    is_ours = isinstance(policy, Policy)
    if any(isinstance(part, ModelPolicy) for part in policy.modules()) if is_ours else hasattr(policy, "predict_proba"):
        raise OptionError(
            f"a policy around a model of another library cannot be {done} here.",
            do="Save it the way that library does, or learn a network or a forest, which can be saved.",
        )
    if not is_ours:
        raise OptionError(f"only a Policy can be {done} here; found {type(policy).__name__}.")


def load_policy(
    path: str | PathLike[str], *, make: Callable[..., Policy] | None = None, module: nn.Module | None = None
) -> Policy:
    """A policy as it was saved, on the CPU; `make` builds a policy of your own class from its arguments.

    For a `ModulePolicy`, pass a `module` with the same layers: it gets the weights, stays on its device, and is part of the
    policy from then on. A file that does not fit (another format, missing or extra tensors, other shapes) is refused before
    anything large is allocated or any weight of the module changes.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_policy(LinearSoftmax(2, 3), f"{folder}/policy.safetensors")
    ...     policy = load_policy(f"{folder}/policy.safetensors")
    >>> policy.n_actions
    3
    """
    with opened(path) as file:
        config = _config(file)
        build = _into(file, config["kind"], make, module) or make or KINDS.get(config["kind"])
        if build is None:
            raise PolicyFileError(
                f"{str(path)!r} contains a {config['kind']}, which counterpoise does not know.",
                do="Pass `make=`, a function that builds it.",
            )
        weights = {name: stored for name, stored in file.tensors.items() if name not in OWN}
        _check_sizes(file, build, config["arguments"], weights)
        with torch.random.fork_rng(devices=[]):
            policy = _built(file, build, config["arguments"], "cpu")
        check_tensors(file, policy.state_dict(), weights)
        tensors = file.read()
        check_finite(file, tensors)
        ids, named = tensors.pop(IDS, None), tensors.pop(NAMES, None)
        precisions = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
        policy = policy.to(precisions.pop()) if len(precisions) == 1 else policy
        policy.load_state_dict(tensors)
        try:
            policy.actions_ = names_of(named) if named is not None else None if ids is None else ids.numpy()
            _restore_columns(policy, config)
            policy.check_context(config["context"])
            _check_trees(policy)
        except (OptionError, ValueError) as error:
            raise file.damaged(str(error).rstrip(".")) from error
    policy.context_, policy.temperature = tuple(config["context"]), _temperature(file, config)
    return policy.eval()


def _restore_columns(policy: Policy, config: Mapping[str, Any]) -> None:
    """Give a policy what its file says about its columns; a ValueError if that makes no sense."""
    if config.get("encoding") is not None:
        policy.encoding_ = Encoder.of_description(config["encoding"])
        if list(policy.encoding_.names) != config["context"]:
            raise ValueError("its encoding is of other columns than its context")
    if config.get("lesson") is not None:
        policy.lesson_ = Lesson.from_plain(config["lesson"])
    candidates = config.get("candidates")
    if candidates is not None and not isinstance(candidates, str):
        raise ValueError("the name of its candidates is not text")
    policy.candidates_ = candidates


def _check_trees(policy: Policy) -> None:
    """Check the trees of a forest, even inside another policy."""
    for part in policy.modules():
        if isinstance(part, Forest) and isinstance(part.scores, Trees):
            part.scores.check(part.context_dimension or 0)


def _into(
    file: TensorFile, kind: str, make: Callable[..., Policy] | None, module: nn.Module | None
) -> Callable[..., Policy] | None:
    """A function that turns the user's module into a policy, if the file has the weights of one."""
    if module is None:
        if kind == ModulePolicy.__name__ and make is None:
            raise PolicyFileError(
                f"{str(file.path)!r} has the weights of a module of your own, without the module.",
                do="Pass `module=`, one with the same layers.",
            )
        return None
    if make is not None:
        raise OptionError("you passed both `make=` and `module=`.", do="Pass one.")
    if kind != ModulePolicy.__name__:
        raise OptionError(f"{str(file.path)!r} contains a {kind}, which needs no module.", do="Leave out `module=`.")
    if not isinstance(module, nn.Module):
        raise OptionError(f"`module=` must be a torch.nn.Module; found {type(module).__name__}.")
    own = module
    return lambda n_actions: ModulePolicy(own, n_actions)


def _config(file: TensorFile) -> dict[str, Any]:
    """What the file says about its policy, with each part checked for its type."""
    form = file.description.get("format")
    if form not in (FORMAT, WIDER):
        raise PolicyFileError(
            f"{str(file.path)!r} is {str(form)[:50]!r}, not a policy of this version ({FORMAT!r}).",
            do="Name another file, or save the policy again.",
        )
    config = file.description.get("config")
    parts: dict[str, type] = {"kind": str, "arguments": dict, "context": list}
    if not isinstance(config, dict) or not all(isinstance(config.get(name), kind) for name, kind in parts.items()):
        raise file.damaged("it does not say which policy it contains")
    if not all(isinstance(name, str) for name in config["context"]):
        raise file.damaged("the names of its columns are not text")
    return config


def _temperature(file: TensorFile, config: Mapping[str, Any]) -> float:
    temperature = config.get("temperature", 1.0)
    if isinstance(temperature, bool) or not isinstance(temperature, int | float) or not 0 <= temperature < math.inf:
        raise file.damaged("its temperature is not a number of 0 or more")
    return temperature


def _check_sizes(
    file: TensorFile, build: Callable[..., Policy], arguments: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> None:
    """Make sure, on torch's `meta` device, that the policy would be as large as the file before building it."""
    if build in KINDS.values() and _longest(arguments) > len(file.tensors):
        raise file.damaged("it describes more layers than it has tensors")
    if not isinstance(build, type):
        return  # a function may do anything, so call it once
    try:
        with torch.device("meta"):
            expected = _built(file, build, arguments, "meta").state_dict()
    except PolicyFileError:
        if build in KINDS.values():
            raise
        return  # a class of your own may need real tensors
    check_tensors(file, expected, weights)


def _longest(arguments: Any) -> int:
    """The length of the longest list among arguments, and among those of the policies that are arguments."""
    if not isinstance(arguments, dict | list):
        return 0
    values = list(arguments.values()) if isinstance(arguments, dict) else arguments
    return max([len(arguments) if isinstance(arguments, list) else 0, *map(_longest, values)])


def _built(
    file: TensorFile, build: Callable[..., Policy], arguments: Mapping[str, Any], device: str, under: str = ""
) -> Policy:
    """A policy with these arguments, whose tensors have names that begin with `under`."""
    own = dict(arguments)
    if build is PlackettLuce:
        own["scores"] = _part(file, own, device, f"{under}scores.")
        del own["kind"], own["arguments"]
    if build is Average:
        parts = own.get("policies")
        if not isinstance(parts, list):
            raise file.damaged("it does not say which policies it is the average of")
        own["policies"] = [_part(file, part, device, f"{under}policies.{k}.") for k, part in enumerate(parts)]
    if isinstance(build, type) and issubclass(build, TwoTower) and own.pop("item_dimension", None) is not None:
        features = file.tensors.get(f"{under}scores.features")
        if features is None:
            raise file.damaged("the features of its items are missing")
        own["item_features"] = torch.empty_like(features, device=device)
    try:
        return build(**own)
    except UNFIT as error:
        raise PolicyFileError(
            f"{str(file.path)!r} does not describe a policy: {verbatim(error)}.", do="Save it again."
        ) from error


def _part(file: TensorFile, part: Any, device: str, under: str) -> Policy:
    """A policy that is part of another one."""
    match part:
        case {"kind": str(kind), "arguments": dict(arguments)}:
            pass
        case _:
            raise file.damaged("it does not say which policies it is made of")
    if kind not in KINDS:
        raise PolicyFileError(
            f"part of {str(file.path)!r} is a {kind}, which counterpoise does not know.",
            do="Pass `make=`, a function that builds the whole policy.",
        )
    policy = _built(file, KINDS[kind], arguments, device, under)
    policy.temperature = _temperature(file, part)
    return policy


def export_onnx(policy: Policy, path: str | PathLike[str], *, context_dimension: int | None = None) -> None:
    """Write the function from contexts to probabilities of all actions, in the order of `classes_`, as an ONNX model.

    If the policy encodes its contexts, the model does so, too: it has one input per column of the log, with the same name (text
    as strings, empty if missing; numbers and booleans as floats; lists as a row of floats each). Otherwise, its one input is
    ``context``, a row of numbers each. A policy that chooses among candidates has an input ``candidates``, booleans with a column
    per action. The metadata has the columns with their encoding (``counterpoise.context``), the actions in the order of the
    probabilities (``counterpoise.classes``) and the column of the candidates (``counterpoise.candidates``), as JSON.

    Only a `ModulePolicy` needs `context_dimension`, how many numbers a context has; other policies know it.
    """
    _check_ours(policy, "exported")
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        raise OptionError("ONNX export needs onnx.", do="Run pip install 'counterpoise[onnx]'.") from error

    known = policy.context_dimension if policy.encoding_ is None else policy.encoding_.width
    width = known if context_dimension is None else context_dimension
    if width is None:
        raise OptionError("this policy does not know how many numbers a context has.", do="Pass `context_dimension=`.")
    policy.check_width(width)
    # a copy, because the policy itself stays on its device, and in training if it is
    probabilities = ServedProbabilities(deepcopy(policy)).cpu().eval()
    example = torch.zeros(2, width, dtype=policy.precision)
    try:
        probabilities(example)
    except RuntimeError as error:
        raise OptionError(f"the policy does not take contexts of {width} numbers: {verbatim(error)}.") from error
    try:
        with whole_file(path) as part:
            write_onnx(policy, probabilities, example, part)
    except OSError as error:
        raise PolicyFileError(f"cannot write {str(path)!r}: {error.strerror}.", do="Name another file.") from error
