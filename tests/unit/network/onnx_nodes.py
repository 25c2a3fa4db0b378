"""ONNX files for tests: written node by node, or exported by PyTorch."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

Spec = list[tuple[Any, ...]]
#: Flatten and a linear layer after the tensor h.
HEAD: Spec = [("Flatten", "h", "f"), ("Gemm", ("f", "w"), "y")]


def write(path: Path, nodes: Spec, dims: Any = ("n", 3, 8, 8),
          weights: dict[str, Any] | None = None, outputs: Any = ("y",), producer: str = "",
          opset: int | None = None, kind: int = onnx.TensorProto.FLOAT) -> str:
    """An ONNX file of nodes (operator, inputs, outputs, attributes) and weights.

    A weight is given by its shape or its values; attributes may hold the ``name`` and the ``note``
    of the node's metadata. `kind` is the type of the input's numbers.
    """
    made = []
    for name, value in (weights or {}).items():
        array = np.zeros(value, np.float32) if isinstance(value, tuple) else np.asarray(value)
        made.append(onnx.numpy_helper.from_array(array, name))
    graph = helper.make_graph(
        [_node(*each) for each in nodes], "graph",
        [helper.make_tensor_value_info("x", kind, dims)],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs],
        made,
    )
    opsets = None if opset is None else [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(graph, producer_name=producer, opset_imports=opsets), path)
    return str(path)


def _node(op: str, inputs: Any, outputs: Any, attributes: Any = None) -> Any:
    given = {"name": f"the_{op}", **(attributes or {})}
    note = given.pop("note", "")
    names = [[tensors] if isinstance(tensors, str) else list(tensors)
             for tensors in (inputs, outputs)]
    node = helper.make_node(op, *names, **given)
    if note:
        node.metadata_props.add(key="pkg.onnxscript.rewriter.rule_name", value=note)
    return node


def export(path: Path, model: Any, shape: tuple[int, ...], *, train: bool = True,
           dynamic: bool = False) -> str:
    """ONNX file of a model, exported by PyTorch."""
    import torch

    mode = torch.onnx.TrainingMode.TRAINING if train else torch.onnx.TrainingMode.EVAL
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (torch.zeros(2, *shape),), str(path), dynamo=False, training=mode,
                          input_names=["x"], dynamic_axes={"x": {0: "n"}} if dynamic else None)
    return str(path)
