"""Size bounds of folded constants, known before they are computed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hpcpar.network.read.operations import Constant, Node

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
