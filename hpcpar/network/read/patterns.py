"""Groups of operators to which exporters expand LRN, GELU, SiLU and group normalization."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np

from hpcpar.network.read.operations import Node, Operations

#: A tensor ("x"), a constant ("$a"), a number, or an operator (alternatives separated by |) and its
#: inputs: ("Mul|Pow", "x", 2.0).
Template = str | float | tuple["Template", ...]
#: Tensors by their names in a template, and nodes by their operators.
Match = dict[str, str | Node]

_WINDOW: Template = ("AveragePool", ("Pad", ("Reshape|Unsqueeze", ("Mul", "x", "x")), "pads"))
_ERF: Template = ("Add", ("Erf", ("Div", "x", math.sqrt(2))), 1.0)
_ERF2: Template = ("Add", ("Erf", ("Mul", "x", math.sqrt(0.5))), 1.0)
_GROUPS: Template = ("Reshape", ("InstanceNormalization", ("Reshape", "x", "groups"), 1.0, 0.0))
_SCALED: Template = ("Add", ("Mul", _GROUPS, "$weight"), "$bias")


def _lrn(window: Template) -> Template:
    return ("Div", "x", ("Pow", ("Add", ("Mul", window, "$alpha"), "$k"), "$beta"))


_LRN_INPUTS = ("x", "pads", "$alpha", "$beta", "$k")
#: Operator, its template, and the names of its inputs.
PATTERNS: tuple[tuple[str, Template, tuple[str, ...]], ...] = (
    ("LRN", _lrn(("Reshape", ("Reshape|Squeeze", _WINDOW))), _LRN_INPUTS),
    ("LRN", _lrn(("Reshape|Squeeze", _WINDOW)), _LRN_INPUTS),
    ("Gelu", ("Mul", ("Mul", "x", _ERF), 0.5), ("x",)),
    ("Gelu", ("Mul", "x", ("Mul", _ERF2, 0.5)), ("x",)),
    ("Gelu", ("Mul", ("Mul", "x", 0.5), _ERF2), ("x",)),
    ("Silu", ("Mul", "x", ("Sigmoid", "x")), ("x",)),
    ("GroupNormalization", _SCALED, ("x", "$weight", "$bias", "groups")),
    ("GroupNormalization", _GROUPS, ("x", "", "", "groups")),
)
#: Operators whose attributes the merged operator takes over.
_ATTRIBUTES = ("AveragePool", "InstanceNormalization")


class _Matcher:
    """Finds patterns among a network's operators."""

    def __init__(self, operations: Operations) -> None:
        self.constants = operations.constants
        self.makers = {node.outputs[0]: node for node in operations.nodes}
        #: Results of `_ends_of`; many nodes may read one large tensor.
        self._ends: dict[str, tuple[float, float] | None] = {}
        #: Tensors that depend neither on the input nor on its shape.
        self.fixed = set(operations.constants)
        for node in operations.nodes:
            if node.op != "Shape" and self.fixed.issuperset(node.inputs):
                self.fixed.update(node.outputs)

    def match(self, tensor: str, template: Template, found: Match) -> Match | None:
        """`found` extended by the match of `tensor`; None if it does not match the template."""
        if isinstance(template, tuple):
            return self._match_node(self.makers.get(tensor), template, found)
        if isinstance(template, float):
            return found if self._is_number(tensor, template) else None
        if template.startswith("$") and tensor not in self.fixed:
            return None
        return found | {template: tensor} if found.get(template, tensor) == tensor else None

    def _match_node(self, node: Node | None, template: tuple[Template, ...],
                    found: Match) -> Match | None:
        ops, *inputs = template
        if node is None or node.op not in str(ops).split("|") or len(node.inputs) < len(inputs):
            return None
        commutes = node.op in ("Add", "Mul") and len(node.inputs) == 2
        orders = itertools.permutations(node.inputs) if commutes else [node.inputs]
        for order in orders:
            now: Match | None = found | {node.op: node}
            for tensor, part in zip(order, inputs, strict=False):
                now = None if now is None else self.match(tensor, part, now)
            if now is not None:
                return now
        return None

    def _is_number(self, tensor: str, number: float) -> bool:
        """Whether every value of a tensor equals this number."""
        if tensor not in self._ends:
            self._ends[tensor] = self._ends_of(tensor)
        ends = self._ends[tensor]
        return ends is not None and bool(np.allclose(ends, number, rtol=1e-6, atol=0))

    def _ends_of(self, tensor: str) -> tuple[float, float] | None:
        """The least and the largest value of a constant; None of any other tensor."""
        constant, maker = self.constants.get(tensor), self.makers.get(tensor)
        try:
            if constant is not None:
                value = constant.read()
            elif maker is not None and maker.op == "Constant" and maker.compute is not None:
                value = maker.compute([])
            else:
                return None
            return float(value.min()), float(value.max())
        except Exception:  # it may be in an external file
            return None


def merged(operations: Operations) -> Operations:
    """The operators, with one in place of each pattern."""
    matcher = _Matcher(operations)
    nodes = tuple(_merge(matcher, node) for node in operations.nodes)
    done = replace(operations, nodes=nodes)
    return replace(done, nodes=done.live())


def _merge(matcher: _Matcher, node: Node) -> Node:
    """The operator whose pattern ends in this node, or the node itself."""
    for op, template, inputs in PATTERNS:
        found = matcher.match(node.outputs[0], template, {})
        if found is not None:
            attributes = {key: value for name in _ATTRIBUTES if isinstance(
                part := found.get(name), Node) for key, value in part.attributes.items()}
            return replace(node, op=op, inputs=tuple(str(found.get(i, "")) for i in inputs),
                           attributes=attributes)
    return node
