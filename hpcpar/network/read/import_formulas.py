"""Import of elementwise operators as formulas (`Pointwise`)."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np

from hpcpar.network.layers import Expand, Pointwise, Select, Upsample
from hpcpar.network.layers.base import LARGEST_FLOAT, Shape, image_of, shape_text
from hpcpar.network.layers.elementwise_table import TABLE, Term
from hpcpar.network.layers.formula import formula
from hpcpar.network.read.import_views import Conversion, identity
from hpcpar.network.read.importer import Importer
from hpcpar.network.read.operations import Node, decimal
from hpcpar.network.read.tensor_view import TensorView

#: Numbers of ONNX's types: floating-point numbers, and 0 or 1.
FLOATS, BOOL = (1, 10, 11, 16), 9
#: ONNX operators that the table has under another name.
SAME: dict[str, str] = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh",
    "Atan": "atan", "Atanh": "atanh", "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh",
    "Detach": "detach", "Equal": "equal", "Erf": "erf", "Exp": "exp", "Expm1": "expm1",
    "Floor": "floor", "Greater": "greater", "GreaterOrEqual": "greater_equal", "Less": "less",
    "LessOrEqual": "less_equal", "Log": "log", "Log10": "log10", "Log1p": "log1p", "Log2": "log2",
    "LogAddExp": "logaddexp", "NotEqual": "not_equal", "Atan2": "atan2",
    "Reciprocal": "reciprocal", "Round": "round", "Rsqrt": "rsqrt", "Sign": "sign", "Sin": "sin",
    "Sinh": "sinh", "Sqrt": "sqrt", "Square": "square", "Tan": "tan", "Trunc": "trunc",
    "Where": "where",
}


def _clamped(term: Term, low: Term, high: Term) -> Term:
    return ("clamp_max", ("clamp_min", term, low), high)


def _choice(condition: Term, then: Term, other: Term) -> Term:
    return ("where", condition, then, other)


#: Formulas of other operators of ONNX and PyTorch; "$alpha" is an attribute.
FORMULAS: dict[str, Term] = {
    "Addcdiv": ("add", "x0", ("mul", ("div", "x1", "x2"), "$value")),
    "Addcmul": ("add", "x0", ("mul", ("mul", "x1", "x2"), "$value")),
    "And": ("mul", "x0", "x1"),
    "Celu": ("add", ("relu", "x0"), (
        "mul", "$alpha", ("expm1", ("div", ("clamp_max", "x0", 0.0), "$alpha")))),
    "HardSigmoid": _clamped(("add", ("mul", "x0", "$alpha"), "$beta"), 0.0, 1.0),
    "HardSwish": ("mul", "x0", _clamped(("add", ("mul", "x0", 1 / 6), 0.5), 0.0, 1.0)),
    "Lerp": ("add", "x0", ("mul", "x2", ("sub", "x1", "x0"))),
    "LogSigmoid": ("neg", ("softplus", ("neg", "x0"))),
    "MaskedFill": _choice("x1", "x2", "x0"),
    "Not": ("equal", "x0", 0.0),
    "Or": ("maximum", "x0", "x1"),
    "Shrink": _choice(("greater", "x0", "$lambd"), ("sub", "x0", "$bias"), _choice(
        ("less", "x0", ("neg", "$lambd")), ("add", "x0", "$bias"), ("mul", "x0", 0.0))),
    "Softplus": ("div", ("softplus", ("mul", "x0", "$beta")), "$beta"),
    "Softsign": ("div", "x0", ("add", ("abs", "x0"), 1.0)),
    "Threshold": _choice(("greater", "x0", "$threshold"), "x0", "$value"),
    "ThresholdedRelu": ("mul", "x0", ("greater", "x0", "$alpha")),
    "Xor": ("not_equal", "x0", "x1"),
    **{name: (op, "x0", "x1", "x2")[:1 + len(TABLE[op].slopes)] for name, op in SAME.items()},
}
#: Formulas of operators on parameters. On images, some of them have their own layers.
TERMS: dict[str, Term] = FORMULAS | {
    "Add": ("add", "x0", "x1"), "Div": ("div", "x0", "x1"), "Max": ("maximum", "x0", "x1"),
    "Min": ("minimum", "x0", "x1"), "Mul": ("mul", "x0", "x1"), "Neg": ("neg", "x0"),
    "Pow": ("pow", "x0", "x1"), "Relu": ("relu", "x0"), "Sigmoid": ("sigmoid", "x0"),
    "Sub": ("sub", "x0", "x1"), "Tanh": ("tanh", "x0"),
}
#: Defaults of attributes, by operator and name.
DEFAULTS: dict[tuple[str, str], float] = {
    ("HardSigmoid", "alpha"): 0.2, ("HardSigmoid", "beta"): 0.5, ("Shrink", "lambd"): 0.5,
    ("Shrink", "bias"): 0.0, ("Threshold", "value"): 0.0, ("Threshold", "threshold"): 0.0,
}


def by_table(imp: Importer, node: Node) -> str:
    """An operator of `FORMULAS`."""
    return pointwise(imp, node, _filled(FORMULAS[node.op], node))


def _filled(term: Term, node: Node) -> Term:
    """A term with the values of the node's attributes."""
    if isinstance(term, tuple):
        return tuple(_filled(part, node) for part in term)
    if isinstance(term, str) and term.startswith("$"):
        return node.number(term[1:], DEFAULTS.get((node.op, term[1:]), 1.0))
    return term


def folded(op: str) -> Conversion:
    """Converter of an operator of any number of inputs: Max, Min."""
    def convert(imp: Importer, node: Node) -> str:
        names: list[Term] = [f"x{i}" for i in range(len(node.inputs))]
        if len(names) == 1:
            return imp.source(node)
        return pointwise(imp, node, functools.reduce(lambda a, b: (op, a, b), names))
    return convert


def clamp(imp: Importer, node: Node) -> str:
    """Clip by tensors; either bound may be missing."""
    term: Term = "x0"
    for which, op in ((1, "clamp_min"), (2, "clamp_max")):
        if which < len(node.inputs) and node.inputs[which]:
            term = (op, term, f"x{which}")
    return pointwise(imp, node, term)


def cast(imp: Importer, node: Node) -> str | TensorView:
    """Cast to a floating-point type, or to 0 and 1."""
    if node.integer("to") == BOOL:
        return pointwise(imp, node, ("not_equal", "x0", 0.0))
    if node.integer("to") not in FLOATS:
        raise node.error("converts values to whole numbers, which have no gradient; leave it out")
    return identity(imp, node)


def glu(imp: Importer, node: Node) -> str:
    """Glu: the first half along an axis times the sigmoid of the second."""
    given, names = imp.view(node), (f"{node.outputs[0]}@0", f"{node.outputs[0]}@1")
    for name, part in zip(names, np.split(given.index, 2, node.integer("axis")), strict=True):
        imp.views[name] = TensorView(given.tensor, part, node)
    return pointwise(imp, replace(node, inputs=names), ("mul", "x0", ("sigmoid", "x1")))


def pointwise(imp: Importer, node: Node, term: Term, initial: float = 1.0) -> str:
    """A formula of the node's inputs "x0", "x1", ...; a constant is a number or the parameter,
    whose initial value is `initial`.
    """
    places = [i for i, name in enumerate(node.inputs) if name]
    tensors = [i for i in places if node.inputs[i] not in imp.constants]
    sources = of_one_shape(imp, node, [imp.source(node, i) for i in tensors])
    unique = list(dict.fromkeys(sources))
    stored: list[str] = []
    names: dict[str, Term] = {
        f"x{i}": f"x{unique.index(s)}" for i, s in zip(tensors, sources, strict=True)}
    parameter: Shape = ()
    for i in (i for i in places if i not in tensors):
        names[f"x{i}"] = _constant_term(imp, node, node.inputs[i], stored)
        if len(stored) > 1 or (stored and parameter):
            raise node.error("reads two parameters; give it one, or apply them one by one")
        if stored:
            parameter = _parameter(imp, node, i, stored[0], imp.graph.shapes[unique[0]])
    return imp.add(Pointwise, node, unique, "", steps=formula(_renamed(term, names)),
                   parameter=parameter, initial=initial if parameter else 1.0)


def _constant_term(imp: Importer, node: Node, name: str, stored: list[str]) -> Term:
    """A constant as a number, the parameter "w", or a term of it; adds the name of the stored
    tensor behind "w" to `stored`.
    """
    maker = imp.constants[name].node
    if maker is None:
        value = number(imp, node, name)
        if value is not None:
            return min(max(value, -LARGEST_FLOAT), LARGEST_FLOAT)
        if name not in stored:
            stored.append(name)
        return "w"
    if maker.op not in TERMS:
        raise node.error(f"reads a parameter behind '{maker.name}' ({maker.op}), which is not "
                         "supported there; apply it to the image")
    return _renamed(_filled(TERMS[maker.op], maker), {
        f"x{i}": _constant_term(imp, node, each, stored) for i, each in enumerate(maker.inputs)})


def _renamed(term: Term, names: Mapping[str, Term]) -> Term:
    if isinstance(term, tuple):
        return (term[0], *(_renamed(part, names) for part in term[1:]))
    return names[term] if isinstance(term, str) else term


def number(imp: Importer, node: Node, name: str) -> float | None:
    """The value of a constant that is one untrained number, or many equal ones."""
    constant = imp.constants[name]
    single = math.prod(constant.dims) == 1 and not imp.operations.exact_sharing
    if constant.node is not None or (constant.trained and not single):
        return None
    value = imp.value(replace(node, inputs=(name,)), 0)
    if value is None or np.ptp(value):
        return None
    return decimal(value.ravel()[:1])


def _parameter(imp: Importer, node: Node, which: int, stored: str, x: Shape) -> Shape:
    """The shape of a formula's parameter for samples of shape `x`, from a constant input, which is
    computed from the tensor `stored`.
    """
    given = imp.constants[node.inputs[which]].dims
    # features may be images of one pixel in the source
    pixels = len(x) > 1 or (len(given) > 1 and given[-1] == 1)
    rank = imp.dimensions + 2 if pixels else 2
    dims = (1,) * (rank - len(given)) + given
    shape = image_of(dims[1:]) if pixels else dims[1:]
    repeated = math.prod(given) != math.prod(imp.constants[stored].dims)
    if repeated or len(dims) != rank or dims[0] != 1 or any(
            n not in (1, extent) for n, extent in zip_longest(shape, x, fillvalue=1)):
        raise node.error(f"input '{node.inputs[which]}' is a constant of shape "
                         f"{shape_text(given)} for samples {shape_text(x)}; give each of its axes "
                         "the sample's extent or 1")
    imp.weights(replace(node, inputs=(stored,)), 0)
    return shape[:1] if math.prod(shape[1:]) == 1 else shape


def of_one_shape(imp: Importer, node: Node, sources: Sequence[str],
                 gate: bool = False) -> list[str]:
    """Broadcasts the sources: repeats single channels and single pixels to the common shape.

    Parameters
    ----------
    gate : bool
        Whether the second source may stay features, one per channel of the first.
    """
    shapes = [imp.graph.shapes[name] for name in sources]
    rank = max(map(len, shapes))
    common = tuple(max(s[axis] for s in shapes if len(s) > axis) for axis in range(rank))
    out = []
    for number, (name, shape) in enumerate(zip(sources, shapes, strict=True)):
        suffix = f".part{number}"
        if shape[0] == 1 < common[0]:
            name = imp.add(Select, node, [name], suffix, channels=(0,) * common[0])
        if len(shape) == 1 < rank and not (gate and number == 1):
            name = imp.add(Expand, node, [name], f"{suffix}.image", size=common[1:])
        elif len(shape) == rank > 1 and shape[1:] != common[1:]:
            if any(n not in (1, c) for n, c in zip(shape[1:], common[1:], strict=True)):
                raise node.error(f"images {' and '.join(map(shape_text, shapes))} do not fit")
            name = imp.add(Upsample, node, [name], f"{suffix}.image", size=common[1:])
        out.append(name)
    return out
