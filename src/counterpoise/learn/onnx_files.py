"""Policies as ONNX models that take the columns of a log as they are, with metadata that describes inputs and outputs."""

from __future__ import annotations

import json
import warnings
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from counterpoise.errors import OptionError
from counterpoise.features import Encoder
from counterpoise.features.encoder import EncodedColumn, Numeric, Vector
from counterpoise.learn.policy import Policy, cooled

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, ValueInfoProto

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


def write_onnx(policy: Policy, module: nn.Module, example: Tensor, path: str | PathLike[str]) -> None:
    """Write a model of the policy's probabilities, with its columns and actions in the metadata."""
    import onnx

    encoding = policy.encoding_
    _check_names(encoding)
    inputs, names = [example], [CONTEXT if encoding is None else ENCODED]
    if policy.candidates_ is not None:
        inputs.append(torch.ones(len(example), policy.n_actions, dtype=torch.bool))
        names.append(CANDIDATES)
    with warnings.catch_warnings():
        # its successor also needs onnxscript, and gains nothing for models of this size
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            module,
            tuple(inputs),
            str(path),
            input_names=names,
            output_names=[PROBABILITIES],
            dynamic_axes={name: {0: "rows"} for name in [*names, PROBABILITIES]},
            dynamo=False,
        )
    model = onnx.load(str(path))
    if encoding is not None:
        _encode(model, encoding)
    onnx.helper.set_model_props(model, metadata_of(policy))
    onnx.save(model, str(path))


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


def _check_names(encoding: Encoder | None) -> None:
    taken = [] if encoding is None else [name for name in encoding.names if name in TAKEN]
    if taken:
        raise OptionError(
            f"an ONNX model has an input for every column, and {taken[0]!r} is a name that it needs itself.",
            do="Rename the column of the context.",
        )


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
