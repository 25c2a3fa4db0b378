"""Constant folding in ONNX graphs: exporters compute the target of a reshape from shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hpcpar.network.onnx_file import Array, Constant, Node

#: Placeholder for the number of samples in shapes, whatever the file was exported with.
BATCH = -(1 << 40)

#: Values of a node's inputs, None for an input that is left out.
Values = Sequence[Array | None]


def literal(node: Node) -> Constant:
    """The value of a Constant node."""
    for key in ("value_int", "value_ints", "value_float", "value_floats"):
        if key in node.attributes:
            return Constant.of(np.asarray(node.attributes[key]))
    value = node.attributes.get("value")
    if not isinstance(value, Constant):
        raise node.error("only numbers are read")
    return value


def fold(node: Node, inputs: list[Constant | None]) -> Constant:
    """The output of a node whose inputs are all constants (None for an input that is left out).

    Raises
    ------
    InputError
        The operator is not supported on constants, or the values do not fit it.
    """
    if node.op == "Transpose" and inputs[0] is not None:
        dims, source = inputs[0].dims, inputs[0].read
        order = node.integers("perm", range(len(dims))[::-1])
        return Constant(tuple(dims[i] for i in order), lambda: np.transpose(source(), order))
    if node.op == "Identity" and inputs[0] is not None:
        return inputs[0]
    try:
        if node.op not in FOLDS:
            raise ValueError("this operator is not supported on constants")
        return Constant.of(FOLDS[node.op](node, [None if c is None else c.read() for c in inputs]))
    except (ValueError, IndexError, TypeError) as err:
        raise node.error(f"cannot be computed from constants ({err})") from err


def _array(values: Values, which: int) -> Array:
    """A required input."""
    array = values[which]
    if array is None:
        raise ValueError(f"input {which} is missing")
    return array


def _integers(values: Values, which: int) -> list[int] | None:
    """An optional input of integers."""
    array = values[which] if which < len(values) else None
    return None if array is None else array.tolist()


def _gather(node: Node, values: Values) -> Array:
    indices = _array(values, 1).astype(np.int64)
    return np.asarray(np.take(_array(values, 0), indices, axis=node.integer("axis", 0)))


def _concat(node: Node, values: Values) -> Array:
    return np.concatenate([_array(values, i) for i in range(len(values))], node.integer("axis"))


def _axes(node: Node, values: Values) -> tuple[int, ...] | None:
    """Axes of Squeeze and Unsqueeze: an attribute, or an input since operator set 13."""
    axes = node.integers("axes") if "axes" in node.attributes else _integers(values, 1)
    return None if axes is None else tuple(axes)


def _slice(node: Node, values: Values) -> Array:
    """Slice with the bounds as inputs, as since operator set 10."""
    array, starts, stops = _array(values, 0), _integers(values, 1), _integers(values, 2)
    if starts is None or stops is None:
        raise ValueError("starts or ends are missing")
    axes, steps = _integers(values, 3), _integers(values, 4)
    if axes is None:
        axes = list(range(len(starts)))
    if steps is None:
        steps = [1] * len(axes)
    index = [slice(None)] * array.ndim
    for axis, start, stop, step in zip(axes, starts, stops, steps, strict=True):
        index[axis] = slice(start, stop, step)
    return np.asarray(array[tuple(index)])


FOLDS: dict[str, Callable[[Node, Values], Array]] = {
    "Cast": lambda node, values: _array(values, 0),
    "Concat": _concat,
    "Gather": _gather,
    "Mul": lambda node, values: np.asarray(np.multiply(_array(values, 0), _array(values, 1))),
    "Slice": _slice,
    "Squeeze": lambda node, values: np.squeeze(_array(values, 0), _axes(node, values)),
    "Unsqueeze": lambda node, values: np.expand_dims(_array(values, 0), _axes(node, values) or ()),
}
