"""Policies from disk, of every kind, and as ONNX; a policy writes itself."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from counterpoise.errors import OptionError, PolicyFileError, verbatim
from counterpoise.features import Encoder
from counterpoise.features.encoder import EncodedColumn, Numeric, Vector
from counterpoise.learn.actions import ActionNames
from counterpoise.learn.forest import Forest
from counterpoise.learn.plackett_luce import PlackettLuce
from counterpoise.learn.policies import MLP, Average, LinearSoftmax, ModulePolicy, TwoTower
from counterpoise.learn.policy import FORMAT, IDS, NAMES, WIDER, Policy, check_ours, cooled
from counterpoise.learn.tensor_files import TensorFile, check_finite, check_tensors, opened
from counterpoise.log.sketches import Lesson
from counterpoise.whole_files import whole_file

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, ValueInfoProto

KINDS: dict[str, type[Policy]] = {
    kind.__name__: kind for kind in (LinearSoftmax, MLP, TwoTower, PlackettLuce, Forest, Average)
}
OWN = (IDS, NAMES)  # tensors that are not the module's
UNFIT = (TypeError, ValueError, AttributeError, IndexError, OverflowError, RuntimeError, MemoryError, OptionError)


def names_of(stored: Tensor) -> ActionNames:
    """The names in a tensor of bytes; a ValueError if it holds something else."""
    names = json.loads(stored.numpy().tobytes())
    if not isinstance(names, list):
        raise ValueError("the names of its actions are not a list")
    return np.array(names, dtype=object)


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
    ...     LinearSoftmax(2, 3).save(f"{folder}/policy.safetensors")
    ...     policy = load_policy(f"{folder}/policy.safetensors")
    >>> policy.n_actions
    3
    """
    with opened(path) as file:
        form, config = file.description.get("format"), file.description.get("config")
        if form not in (FORMAT, WIDER):
            raise PolicyFileError(
                f"{str(path)!r} is {str(form)[:50]!r}, not a policy of this version ({FORMAT!r}).",
                do="Name another file, or save the policy again.",
            )
        parts: dict[str, type] = {"kind": str, "arguments": dict, "context": list}
        if not isinstance(config, dict) or not all(isinstance(config.get(name), kind) for name, kind in parts.items()):
            raise file.damaged("the kind of policy is missing")
        if not all(isinstance(name, str) for name in config["context"]):
            raise file.damaged("the names of its columns are not text")
        build = builder_of(file, config["kind"], make, module)
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
            if config.get("encoding") is not None:
                policy.encoding_ = Encoder.of_description(config["encoding"])
                if list(policy.encoding_.names) != config["context"]:
                    raise ValueError("its encoding is of other columns than its context")
            if config.get("lesson") is not None:
                policy.lesson_ = Lesson.from_plain(config["lesson"])
            for part in ("candidates", "action"):
                if not isinstance(config.get(part), str | None):
                    raise ValueError(f"the name of its {part} is not text")
            policy.candidates_ = config.get("candidates")
            if "action" in config:  # else nothing is set, so that a state knows the policy of an older file again
                policy.action_ = config["action"]
            policy.check_context(config["context"])
            for forest in policy.modules():
                if isinstance(forest, Forest):
                    forest.scores.check(forest.context_dimension or 0)
        except (OptionError, ValueError) as error:
            raise file.damaged(str(error).rstrip(".")) from error
    policy.context_, policy.temperature = tuple(config["context"]), _temperature(file, config.get("temperature", 1.0))
    return policy.eval()


def builder_of(
    file: TensorFile, kind: str, make: Callable[..., Policy] | None, module: nn.Module | None
) -> Callable[..., Policy]:
    """What builds the policy of a file from its arguments: its class, the user's function, or one around the user's module."""
    is_module = kind == ModulePolicy.__name__
    if module is None and is_module and make is None:
        raise PolicyFileError(
            f"{str(file.path)!r} has the weights of a module of your own, without the module.",
            do="Pass `module=`, one with the same layers.",
        )
    if module is not None and make is not None:
        raise OptionError("you passed both `make=` and `module=`.", do="Pass one.")
    if module is not None and not is_module:
        raise OptionError(f"{str(file.path)!r} contains a {kind}, which needs no module.", do="Leave out `module=`.")
    if module is not None and not isinstance(module, nn.Module):
        raise OptionError(f"`module=` must be a torch.nn.Module; found {type(module).__name__}.")
    build = make or KINDS.get(kind)
    if module is not None:
        build = partial(ModulePolicy, module)
    if build is None:
        raise PolicyFileError(
            f"{str(file.path)!r} contains a {kind}, which counterpoise does not know.",
            do="Pass `make=`, a function that builds it.",
        )
    return build


def _temperature(file: TensorFile, temperature: object) -> float:
    if isinstance(temperature, bool) or not isinstance(temperature, int | float) or not 0 <= temperature < math.inf:
        raise file.damaged("its temperature is not a number of 0 or more")
    return temperature


def _check_sizes(
    file: TensorFile, build: Callable[..., Policy], arguments: Mapping[str, object], weights: Mapping[str, Tensor]
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


def _longest(arguments: object) -> int:
    """The length of the longest list among arguments, and among those of the policies that are arguments."""
    if not isinstance(arguments, dict | list):
        return 0
    values = list(arguments.values()) if isinstance(arguments, dict) else arguments
    return max([len(arguments) if isinstance(arguments, list) else 0, *map(_longest, values)])


def _built(
    file: TensorFile, build: Callable[..., Policy], arguments: Mapping[str, object], device: str, under: str = ""
) -> Policy:
    """A policy with these arguments, whose tensors have names that begin with `under`."""
    own = dict(arguments)
    if build is PlackettLuce:
        own["scores"] = _part(file, own, device, f"{under}scores.")
        del own["kind"], own["arguments"]
    if build is Average:
        parts = own.get("policies")
        if not isinstance(parts, list):
            raise file.damaged("the policies it averages are missing")
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


def _part(file: TensorFile, part: object, device: str, under: str) -> Policy:
    """A policy that is part of another one."""
    match part:
        case {"kind": str(kind), "arguments": dict(arguments), **others}:
            pass
        case _:
            raise file.damaged("the policies it is made of are missing")
    if kind not in KINDS:
        raise PolicyFileError(
            f"part of {str(file.path)!r} is a {kind}, which counterpoise does not know.",
            do="Pass `make=`, a function that builds the whole policy.",
        )
    policy = _built(file, KINDS[kind], arguments, device, under)
    policy.temperature = _temperature(file, others.get("temperature", 1.0))
    return policy


# -- Policies as ONNX models, which take the columns of a log as they are --------------------------------------------------

CONTEXT, CANDIDATES, PROBABILITIES = "context", "candidates", "probabilities"
ENCODED = "counterpoise encoded"  # the inputs of the policy, where the model makes them of columns
TAKEN = (CANDIDATES, PROBABILITIES, ENCODED)  # names that no column may have


class ServedProbabilities(nn.Module):
    """The function from contexts, and candidates as a boolean table, to the probabilities of all actions."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, context: Tensor, candidates: Tensor | None = None) -> Tensor:
        """One row per context, one column per action."""
        logits = self.policy.logits_among(context, candidates)
        return torch.softmax(cooled(logits, self.policy.temperature), -1).to(context.dtype)


def export_onnx(policy: Policy, path: str | PathLike[str], *, context_dimension: int | None = None) -> None:
    """Write the function from contexts to probabilities of all actions, in the order of `classes_`, as an ONNX model.

    If the policy encodes its contexts, the model does so, too: it has one input per column of the log, with the same name (text
    as strings, empty if missing; numbers and booleans as floats; lists as a row of floats each). Otherwise, its one input is
    ``context``, a row of numbers each. A policy that chooses among candidates has an input ``candidates``, booleans with a column
    per action. The metadata has the columns with their encoding (``counterpoise.context``), the actions in the order of the
    probabilities (``counterpoise.classes``) and the column of the candidates (``counterpoise.candidates``), as JSON.

    Only a `ModulePolicy` needs `context_dimension`, how many numbers a context has; other policies know it.
    """
    check_ours(policy, "exported")
    try:
        import onnx
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
    encoding = policy.encoding_
    taken = [] if encoding is None else [name for name in encoding.names if name in TAKEN]
    if taken:
        raise OptionError(
            f"an ONNX model has an input for every column, and {taken[0]!r} is a name that it needs itself.",
            do="Rename the column of the context.",
        )
    inputs, names = [example], [CONTEXT if encoding is None else ENCODED]
    if policy.candidates_ is not None:
        inputs.append(torch.ones(len(example), policy.n_actions, dtype=torch.bool))
        names.append(CANDIDATES)
    try:
        with whole_file(path) as part:
            with warnings.catch_warnings():
                # its successor also needs onnxscript, and gains nothing for models of this size
                warnings.simplefilter("ignore", DeprecationWarning)
                torch.onnx.export(
                    probabilities,
                    tuple(inputs),
                    str(part),
                    input_names=names,
                    output_names=[PROBABILITIES],
                    dynamic_axes={name: {0: "rows"} for name in [*names, PROBABILITIES]},
                    dynamo=False,
                )
            model = onnx.load(str(part))
            if encoding is not None:
                _encode(model, encoding)
            onnx.helper.set_model_props(model, metadata_of(policy))
            onnx.save(model, str(part))
    except OSError as error:
        raise PolicyFileError(f"cannot write {str(path)!r}: {error.strerror}.", do="Name another file.") from error


def metadata_of(policy: Policy) -> dict[str, str]:
    """The columns of the context with their encoding, the actions in the order of the probabilities, and the candidates, as JSON."""
    columns = [{"name": name, "kind": "number"} for name in policy.context_]
    metadata = {
        "counterpoise.context": columns if policy.encoding_ is None else policy.encoding_.described(),
        "counterpoise.classes": policy.classes_.tolist(),
    }
    if policy.candidates_ is not None:
        metadata["counterpoise.candidates"] = policy.candidates_
    return {name: json.dumps(value) for name, value in metadata.items()}


def _encode(model: ModelProto, encoding: Encoder) -> None:
    """Put the encoding in front of a model: an input for every column, side by side as the policy takes them."""
    from onnx import helper

    graph = model.graph
    kind = next(value for value in graph.input if value.name == ENCODED).type.tensor_type.elem_type
    parts = [f"{ENCODED} {k}" for k in range(len(encoding.columns))]
    columns = [_column(column, part, kind) for column, part in zip(encoding.columns, parts, strict=True)]
    inputs = [column for _, column in columns] + [value for value in graph.input if value.name != ENCODED]
    nodes = [node for nodes, _ in columns for node in nodes]
    nodes += [helper.make_node("Concat", parts, [ENCODED], axis=1), *graph.node]
    del graph.input[:], graph.node[:]
    graph.input.extend(inputs)
    graph.node.extend(nodes)
    if not any(opset.domain == "ai.onnx.ml" for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))


def _column(column: EncodedColumn, out: str, kind: int) -> tuple[list[NodeProto], ValueInfoProto]:
    """The nodes that make the policy's inputs of one column, and the input that the column is."""
    from onnx import TensorProto, helper

    name = column.name
    if isinstance(column, Vector):
        nodes = [helper.make_node("Identity", [name], [out])]
        return nodes, helper.make_tensor_value_info(name, kind, ["rows", column.width])
    if isinstance(column, Numeric):
        numbers = f"{out} numbers" if column.has_gaps else out
        nodes = [
            _constant(f"{out} shape", np.array([-1, 1], dtype=np.int64)),
            helper.make_node("Reshape", [name, f"{out} shape"], [numbers]),
        ]
        if column.has_gaps:
            nodes += [
                _constant(f"{out} mean", np.array(column.mean, dtype=helper.tensor_dtype_to_np_dtype(kind))),
                helper.make_node("IsNaN", [numbers], [f"{out} gaps"]),
                helper.make_node("Where", [f"{out} gaps", f"{out} mean", numbers], [f"{out} filled"]),
                helper.make_node("Cast", [f"{out} gaps"], [f"{out} marks"], to=kind),
                helper.make_node("Concat", [f"{out} filled", f"{out} marks"], [out], axis=1),
            ]
        return nodes, helper.make_tensor_value_info(name, kind, ["rows"])
    # ONNX has no missing text: it is empty
    keys = [*column.levels, *([""] if column.has_gaps and "" not in column.levels else [])]
    width = len(column.features)
    codes = helper.make_node(
        "LabelEncoder",
        [name],
        [f"{out} codes"],
        domain="ai.onnx.ml",
        keys_strings=keys,
        values_int64s=list(range(len(keys))),
        default_int64=width,  # beyond all levels, where OneHot is 0 everywhere
    )
    depth = _constant(f"{out} depth", np.array(width, dtype=np.int64))
    # in single precision, because onnxruntime has no other OneHot
    values = _constant(f"{out} values", np.array([0, 1], dtype=np.float32))
    hot = helper.make_node("OneHot", [f"{out} codes", f"{out} depth", f"{out} values"], [f"{out} hot"], axis=1)
    cast = helper.make_node("Cast", [f"{out} hot"], [out], to=kind)
    return [codes, depth, values, hot, cast], helper.make_tensor_value_info(name, TensorProto.STRING, ["rows"])


def _constant(name: str, value: NDArray[np.generic]) -> NodeProto:
    from onnx import helper, numpy_helper

    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value, name))
