"""Constants computed inside an ONNX graph: exporters write the target of a reshape as a little
program on shapes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcpar.network.onnx_file import Array, Constant, Node

#: Stands for the number of samples in shapes, whatever the file was exported with.
BATCH = -(1 << 40)


def literal(node: Node) -> Constant:
    """The value of a Constant node."""
    for key in ("value_int", "value_ints", "value_float", "value_floats"):
        if key in node.attributes:
            return Constant.of(np.asarray(node.attributes[key]))
    if "value" not in node.attributes:
        raise node.error("only numbers are read")
    value: Constant = node.attributes["value"]
    return value


def fold(node: Node, inputs: list[Constant | None]) -> Constant:
    """The node's output, all of whose inputs are constants (None where one is left out)."""
    if node.op == "Transpose" and inputs[0] is not None:
        dims = inputs[0].dims
        order = node.attributes.get("perm", range(len(dims))[::-1])
        source = inputs[0].read
        return Constant(tuple(dims[i] for i in order), lambda: np.transpose(source(), order))
    if node.op == "Identity" and inputs[0] is not None:
        return inputs[0]
    try:
        return Constant.of(_value(node, [None if c is None else c.read() for c in inputs]))
    except (ValueError, IndexError, TypeError) as err:
        raise node.error(f"cannot be computed from constants ({err})") from err


def _value(node: Node, given: list[Array | None]) -> Array:
    at = node.attributes
    values: list[Any] = given
    if node.op == "Gather":
        return np.asarray(np.take(values[0], values[1].astype(np.int64), axis=at.get("axis", 0)))
    if node.op == "Concat":
        return np.concatenate(values, axis=at["axis"])
    if node.op == "Mul":
        return np.asarray(values[0] * values[1])
    if node.op == "Cast":
        return np.asarray(values[0])
    if node.op in ("Unsqueeze", "Squeeze"):
        axes = at["axes"] if "axes" in at else values[1].tolist() if len(values) > 1 and values[
            1] is not None else None
        if node.op == "Unsqueeze":
            return np.expand_dims(values[0], tuple(axes or ()))
        return np.squeeze(values[0], None if axes is None else tuple(axes))
    if node.op == "Slice" and len(values) > 2:
        axes = values[3].tolist() if len(values) > 3 and values[3] is not None else list(
            range(len(values[1])))
        steps = values[4].tolist() if len(values) > 4 and values[4] is not None else [1] * len(axes)
        cut = [slice(None)] * values[0].ndim
        for axis, start, stop, step in zip(axes, values[1].tolist(), values[2].tolist(), steps,
                                           strict=True):
            cut[axis] = slice(start, stop, step)
        return np.asarray(values[0][tuple(cut)])
    raise ValueError("this operator is not supported on constants")
