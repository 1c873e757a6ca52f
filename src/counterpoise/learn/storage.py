"""This file holds saving and loading: tensors as safetensors with a JSON description inside, never a pickle; and ONNX."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from counterpoise.errors import OptionError, PolicyFileError
from counterpoise.learn.policies import MLP, LinearSoftmax, Policy, TwoTower
from counterpoise.whole_files import whole_file

FORMAT = "counterpoise policy 1"
KINDS: dict[str, type[Policy]] = {kind.__name__: kind for kind in (LinearSoftmax, MLP, TwoTower)}


def save_policy(policy: Policy, path: str | PathLike[str], *, context: tuple[str, ...] = ()) -> None:
    """Write a policy whole or not at all; `context` names the columns it looks at, by default those it was learned from.

    `load_policy` gives them back as `context_`, and `evaluate` refuses others, or another order.

    A policy of a class of yours needs a `config` method that gives its arguments, and `load_policy(path, make=…)`.
    """
    config = {"kind": type(policy).__name__, "arguments": policy.config(), "context": list(context or policy.context_)}
    write_tensors(path, policy.state_dict(), {"format": FORMAT, "config": config})


def load_policy(path: str | PathLike[str], *, make: Callable[..., Policy] | None = None) -> Policy:
    """A policy as it was saved, on the CPU; `make` builds one of a class of yours from its arguments.

    What does not fit is refused: another format, missing or further tensors, other shapes.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_policy(LinearSoftmax(2, 3), f"{folder}/policy.safetensors")
    ...     policy = load_policy(f"{folder}/policy.safetensors")
    >>> policy.n_actions
    3
    """
    tensors, description = read_tensors(path)
    if description.get("format") != FORMAT:
        raise PolicyFileError(f"{str(path)!r} holds {description.get('format')!r}, not a policy: name another file.")
    config = description["config"]
    build = make or KINDS.get(config["kind"])
    if build is None:
        raise PolicyFileError(
            f"{str(path)!r} holds a {config['kind']}, which counterpoise does not know: pass make=, a function that builds it."
        )
    arguments = dict(config["arguments"])
    if build is TwoTower and arguments.pop("item_dimension", None) is not None:
        arguments["item_features"] = tensors.get("scores.features")
    try:
        policy = build(**arguments)
    except (TypeError, OptionError) as error:
        raise PolicyFileError(f"{str(path)!r} does not describe a policy: {error}. Save it again.") from error
    fit_tensors(policy, tensors, path)
    policy.context_ = tuple(config["context"])
    return policy.eval()


def fit_tensors(policy: Policy, tensors: Mapping[str, Tensor], path: str | PathLike[str]) -> None:
    """Put tensors into a policy that has exactly those."""
    own = policy.state_dict()
    for name in sorted(own.keys() ^ tensors.keys()):
        which = "lacks" if name in own else "has"
        raise PolicyFileError(f"{str(path)!r} {which} the tensor {name!r}: it is of another model. Name another file.")
    for name, tensor in own.items():
        if tensor.shape != tensors[name].shape:
            raise PolicyFileError(
                f"{str(path)!r} is of another model: {name!r} has shape {tuple(tensors[name].shape)}, this one needs "
                f"{tuple(tensor.shape)}. Name another file."
            )
    policy.load_state_dict(dict(tensors))


def write_tensors(path: str | PathLike[str], tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
    """One safetensors file with a JSON description, in place of the old one only when it is complete on disk."""
    save = _safetensors("save")
    data = save(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
        metadata={"counterpoise": json.dumps(description)},
    )
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as part:
            part.write_bytes(data)
    except OSError as error:
        raise PolicyFileError(f"{str(path)!r} cannot be written: {error.strerror}. Name another file.") from error


def read_tensors(path: str | PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file and its description."""
    open_file = _safetensors("safe_open")
    from safetensors import SafetensorError

    try:
        with open_file(str(path), framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
        description = json.loads(metadata["counterpoise"])
    except FileNotFoundError as error:
        raise PolicyFileError(f"no file {str(path)!r}.") from error
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise PolicyFileError(f"{str(path)!r} is damaged, or was not written by counterpoise: {error}.") from error
    if not isinstance(description, dict):
        raise PolicyFileError(f"{str(path)!r} is damaged: its description is {type(description).__name__}.")
    return tensors, description


def _safetensors(name: str) -> Any:
    try:
        import safetensors
        import safetensors.torch
    except ImportError as error:
        raise OptionError("saving needs safetensors: pip install 'counterpoise[learn]'.") from error
    return getattr(safetensors.torch, name, None) or getattr(safetensors, name)


def export_onnx(policy: Policy, path: str | PathLike[str], *, context_dimension: int | None = None) -> None:
    """Write context → probabilities of all actions as an ONNX model, for any number of rows.

    `context_dimension`, how many numbers a context has, is needed for a `ModulePolicy` only: other policies know it.
    """
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        raise OptionError("ONNX export needs onnx: pip install 'counterpoise[onnx]'.") from error

    width = policy.context_dimension if context_dimension is None else context_dimension
    if width is None:
        raise OptionError("this policy does not know how many numbers a context has: pass context_dimension.")
    policy.check_width(width)
    # a copy, because the policy itself is to stay on its device, and in training if it is
    probabilities = torch.nn.Sequential(deepcopy(policy), torch.nn.Softmax(-1)).cpu().eval()
    example = torch.zeros(2, width, dtype=next(policy.parameters()).dtype)
    try:
        probabilities(example)
    except RuntimeError as error:
        raise OptionError(f"the policy takes no contexts of {width} numbers: {error}. Pass another one.") from error
    try:
        with whole_file(path) as part:
            _export(probabilities, example, part)
    except OSError as error:
        raise PolicyFileError(f"{str(path)!r} cannot be written: {error.strerror}. Name another file.") from error


def _export(module: torch.nn.Module, example: Tensor, path: str | PathLike[str]) -> None:
    with warnings.catch_warnings():
        # the exporter that follows it needs onnxscript as well, for a model of this size without a gain
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            module,
            (example,),
            str(path),
            input_names=["context"],
            output_names=["probabilities"],
            dynamic_axes={"context": {0: "rows"}, "probabilities": {0: "rows"}},
            dynamo=False,
        )
