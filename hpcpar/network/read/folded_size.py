"""Folded constants, whose size is known before they are computed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hpcpar.io.read_limit import require_memory
from hpcpar.network.read.operations import Array, Constant, Node

#: Size limit of computed constants that are larger than their inputs.
_MOST_VALUES = 1 << 20

#: Operators whose result is at most as large as their inputs together.
_SHRINKING = frozenset((
    "Abs", "Cast", "Ceil", "Concat", "Constant", "Exp", "Flatten", "Floor", "Log", "Neg", "Not",
    "Reciprocal", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
    "Reshape", "Round", "Sign", "Slice", "Sqrt", "Squeeze", "Shape", "Size", "Unsqueeze"))
#: Operators that broadcast their inputs.
_BROADCAST = frozenset((
    "Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min",
    "Mod", "Mul", "Or", "Pow", "Sub", "Where"))
#: NumPy's arrays have at most this many axes.
_MOST_AXES = 64


def computed(node: Node, constants: Sequence[Constant | None], before_bytes: int) -> Array:
    """The output of a node whose inputs are constants or omitted, beside `before_bytes` of others.

    Raises
    ------
    ValueError
        It has too many values.
    InputError
        All of them do not fit the memory.
    """
    assert node.compute is not None
    given = [c for c in constants if c is not None]
    values = most_values(node, given)
    if values > max(_MOST_VALUES, *(math.prod(c.dims) for c in given), 0):
        raise ValueError(f"it has {values} values")
    value = node.compute([None if c is None else c.read() for c in constants])
    own_bytes = 0 if node.op == "Constant" else value.nbytes  # which the file holds
    # twice, because computing one takes memory beside those that are kept
    require_memory(2 * (before_bytes + own_bytes), "the constants that the file computes",
                   "export it with constants folded")
    return value


def most_values(node: Node, constants: Sequence[Constant]) -> int:
    """Upper bound on the number of values that a node computes from constants."""
    sizes = [math.prod(c.dims) for c in constants]
    if node.op in _SHRINKING:
        return sum(sizes)
    if node.op in _BROADCAST:
        return math.prod(np.broadcast_shapes(*(c.dims for c in constants)))
    if node.op in ("ConstantOfShape", "Expand"):
        factor = sizes[0] if node.op == "Expand" else 1
        if sizes[-1] > _MOST_AXES:
            raise ValueError(f"its shape has {sizes[-1]} axes")
        return factor * abs(math.prod(constants[-1].read().ravel().tolist()))
    if node.op == "Gather":
        return math.prod(sizes)
    raise ValueError(f"operator {node.op} is not computed here; export shapes as plain numbers")


def folded(node: Node, constants: Sequence[Constant | None], before_bytes: int
           ) -> tuple[Constant, int]:
    """The output of a node whose inputs are all constants or omitted, and the memory (bytes) that
    its values take.

    Exporters compute the targets of reshapes from shapes. Weights stay unread, because they may be
    in an external file.

    Raises
    ------
    NodeError
        The operator does not accept the constants.
    """
    given = [constant for constant in constants if constant is not None]
    if node.op == "Identity" and given:
        return given[0], 0
    if node.op == "Transpose" and given:
        return given[0].transposed(node.integers("perm", range(len(given[0].dims))[::-1])), 0
    try:
        value = computed(node, constants, before_bytes)
    except Exception as err:  # whatever the operator raises on a file's constants
        why = " ".join(str(err).split())
        raise node.error(f"cannot be computed from constants ({why})") from err
    origins = frozenset[str]().union(*(constant.origins for constant in given))
    # a file holds the value of a Constant
    return Constant.of(value, origins), value.nbytes if node.op != "Constant" else 0
