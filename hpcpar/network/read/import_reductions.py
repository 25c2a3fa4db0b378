"""Import of reductions along axes, and of operators that are made of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hpcpar.network.layers import AXES, Affine, Pointwise, Reduce
from hpcpar.network.layers.elementwise_table import Term
from hpcpar.network.layers.formula import formula
from hpcpar.network.read.import_formulas import of_one_shape
from hpcpar.network.read.import_windows import pool_all
from hpcpar.network.read.importer import Importer
from hpcpar.network.read.operations import Node
from hpcpar.network.read.tensor_view import Index, TensorView

#: Most parts along an axis that are added.
MOST_PARTS = 16
#: The square root with the derivative 0 at 0, as PyTorch's norm has it.
_ROOT: Term = ("mul", ("sqrt", ("where", ("greater", "x0", 0.0), "x0", 1.0)),
               ("greater", "x0", 0.0))
#: Poolings that are the same over all image axes.
_POOLS = {
    "ReduceMean": lambda imp, node: pool_all(imp, replace(node, op="GlobalAveragePool")),
    "ReduceMax": lambda imp, node: pool_all(imp, replace(node, op="GlobalMaxPool")),
}


class _Axes(NamedTuple):
    """Axes along which a node reduces the values of a layer."""

    layer: str
    letters: str
    #: Position of each result in a sample of the reduced layer, and of each value in one of the
    #: layer; None if they are in order.
    results: Index | None
    values: Index | None


def reduction(imp: Importer, node: Node) -> str | TensorView:
    """ReduceSum, ReduceMean, ReduceMax, ReduceMin, ReduceL2; and PyTorch's ReduceFirst, ReduceVar,
    ReduceStd.
    """
    axes = imp.integers(node, 1, node.integers("axes"))
    stacked = _of_stacked(imp, node, axes)
    if stacked is not None:
        return stacked
    if imp.unread(node) is None and imp.is_image(node) and {imp.axis(node, a) for a in axes} == {
            *range(2, imp.dimensions + 2)} and node.op in _POOLS:
        return _POOLS[node.op](imp, node)
    along = _axes(imp, node, axes)
    if along is None:
        return _sum_of_parts(imp, node, axes)
    layer, op = along.layer, node.op.removeprefix("Reduce").lower()
    if op in ("sum", "mean", "max", "first"):
        made = _reduced(imp, node, along, layer, op)
    elif op == "min":
        negative = imp.add(Affine, node, [layer], ".minus", scale=-1.0, shift=0.0)
        least = _reduced(imp, node, along, negative, "max", ".largest")
        made = imp.add(Affine, node, [least], scale=-1.0, shift=0.0)
    elif op == "l2":
        squares = _formula(imp, node, [layer], ("square", "x0"), ".squares")
        made = _formula(imp, node, [_reduced(imp, node, along, squares, "sum", ".sum")], _ROOT)
    else:
        made = _variance(imp, node, along, root=op == "std")
    return _view(imp, node, made, along.results)


def softmax(imp: Importer, node: Node) -> str | TensorView | None:
    """Softmax, LogSoftmax along whole axes of a layer."""
    along = _axes(imp, node, (node.integer("axis", -1),))
    if along is None:
        return None
    layer = along.layer
    largest = _reduced(imp, node, along, layer, "max", ".largest")
    shifted = _formula(imp, node, [layer, largest], ("sub", "x0", ("detach", "x1")), ".shifted")
    powers = _formula(imp, node, [shifted], ("exp", "x0"), ".exp")
    total = _reduced(imp, node, along, powers, "sum", ".sum")
    if node.op == "Softmax":
        made = _formula(imp, node, [powers, total], ("div", "x0", "x1"))
    else:
        made = _formula(imp, node, [shifted, total], ("sub", "x0", ("log", "x1")))
    return _view(imp, node, made, along.values)


def over_channels(imp: Importer, node: Node) -> bool:
    """Whether a node works along the channels of a layer, or along its features."""
    along = _axes(imp, node, (node.integer("axis", -1),))
    return along is not None and along.letters == "c"


def _of_stacked(imp: Importer, node: Node, axes: Sequence[int]) -> str | None:
    """The sum or mean of stacked tensors; None if the node reduces anything else."""
    view = imp.views.get(node.inputs[0])
    if view is None or node.op not in ("ReduceSum", "ReduceMean"):
        return None
    maker = view.node
    if maker.op != "Stack" or maker.outputs[0] != node.inputs[0] or (
            tuple(axes) != (maker.integer("axis"),)):
        return None
    count = len(maker.inputs)
    total = imp.source(maker) if count == 1 else str(
        imp.operators["Sum"](imp, replace(node, inputs=maker.inputs)))
    if node.op == "ReduceSum" or count == 1:
        return total
    return imp.add(Affine, node, [total], ".mean", scale=1.0 / count, shift=0.0)


def _sum_of_parts(imp: Importer, node: Node, axes: Sequence[int]) -> str | TensorView:
    """The sum of the parts along an axis that is a part of a layer's axis."""
    given = imp.view(node)
    axis = axes[0] % given.index.ndim
    if len(axes) != 1 or node.op != "ReduceSum" or given.index.shape[axis] > MOST_PARTS:
        raise node.error(f"a reduction over axes {list(axes)} is not supported; reduce over whole "
                         "axes of a layer")
    names = [f"{node.outputs[0]}@{i}" for i in range(given.index.shape[axis])]
    for i, name in enumerate(names):
        part = np.take(given.index, [i] if node.integer("keepdims", 1) else i, axis)
        imp.views[name] = TensorView(given.tensor, part, node)
    return imp.operators["Sum"](imp, replace(node, inputs=tuple(names)))


def _axes(imp: Importer, node: Node, axes: Sequence[int]) -> _Axes | None:
    """The axes of the layer behind a node's input; None if they are parts of a layer's axes."""
    whole = _whole_axes(imp, node, axes)
    if whole is not None:
        return whole
    given = imp.view(node)
    layer = imp.layer(given.tensor)
    shape, reduced = imp.graph.shapes[layer], _counted(node, axes, given.index.ndim)
    lines = np.moveaxis(given.index, reduced, range(len(reduced)))
    lines = lines.reshape(math.prod(lines.shape[:len(reduced)]), -1)
    places = np.unravel_index(lines, shape)
    varying = [bool((place != place[:1]).any()) for place in places]
    extents = [n for n, varies in zip(shape, varying, strict=True) if varies]
    inner = [place for place, varies in zip(places, varying, strict=True) if varies]
    if math.prod(extents) != len(lines):
        return None
    if inner:  # each line has every place along the reduced axes once
        order = np.sort(np.ravel_multi_index(inner, extents), axis=0)
        if (order != np.arange(len(lines))[:, None]).any():
            return None
    letters = "".join(letter for letter, varies in zip(
        AXES[len(shape) + 1][1:], varying, strict=True) if varies)
    if not letters:  # along axes of the extent 1
        if 1 not in shape:
            return None
        letters = AXES[len(shape) + 1][1 + shape.index(1)]
    kept = tuple(1 if varies else n for n, varies in zip(shape, varying, strict=True))
    first = [np.zeros_like(place[0]) if varies else place[0]
             for place, varies in zip(places, varying, strict=True)]
    dims = [1 if i in reduced else n for i, n in enumerate(given.index.shape)]
    results = np.ravel_multi_index(first, kept).astype(np.int32).reshape(dims)
    if not node.integer("keepdims", 1):
        results = np.squeeze(results, tuple(reduced))
    return _Axes(layer, letters, results, given.index)


def _whole_axes(imp: Importer, node: Node, axes: Sequence[int]) -> _Axes | None:
    """The axes if the node reads a layer's values in order, else None; without a list of places,
    which takes long for large images.
    """
    name = node.inputs[0]
    if name in imp.views:
        return None
    shape = imp.sample_shape(node)
    dims = shape[:1] + imp.pixels_of(shape)
    if imp.operations.shapes.get(name, dims) != dims:
        return None
    reduced = _counted(node, axes, len(dims) + 1)
    names = AXES[len(shape) + 1][1:]
    of_source = (names[0], *names[len(names) - len(dims) + 1:])
    letters = "".join(of_source[axis - 1] for axis in reduced)
    if node.integer("keepdims", 1):
        return _Axes(imp.source(node), letters, None, None)
    kept = [n for axis, n in enumerate(dims, 1) if axis not in reduced]
    places = np.arange(math.prod(kept), dtype=np.int32).reshape(1, *kept)
    return _Axes(imp.source(node), letters, places, None)


def _counted(node: Node, axes: Sequence[int], rank: int) -> list[int]:
    """Axes in order, counted from 0."""
    reduced = sorted({axis % rank for axis in axes})
    if not reduced or 0 in reduced:
        raise node.error("reduces over samples; keep them apart")
    return reduced


def _reduced(imp: Importer, node: Node, along: _Axes, layer: str, how: str,
             suffix: str = "") -> str:
    return imp.add(Reduce, node, [layer], suffix, axes=along.letters, how=how)


def _formula(imp: Importer, node: Node, layers: Sequence[str], term: Term,
             suffix: str = "") -> str:
    """A formula of layers; reduced ones are repeated."""
    prefixed = replace(node, name=f"{node.name}{suffix}") if suffix else node
    same = of_one_shape(imp, prefixed, layers)
    return imp.add(Pointwise, node, same, suffix, steps=formula(term))


def _variance(imp: Importer, node: Node, along: _Axes, root: bool) -> str:
    """The variance along axes, or the standard deviation."""
    mean = _reduced(imp, node, along, along.layer, "mean", ".mean")
    squares = _formula(imp, node, [along.layer, mean], ("square", ("sub", "x0", "x1")), ".squares")
    total = _reduced(imp, node, along, squares, "sum", ".sum")
    shape = imp.graph.shapes
    count = math.prod(shape[along.layer]) // math.prod(shape[total])
    divisor = max(0.0, count - node.number("correction", 1.0))
    if not divisor:
        raise node.error("the variance of one value is not a number; leave it out")
    scaled: Term = ("mul", "x0", 1 / divisor)
    return _formula(imp, node, [total], ("sqrt", scaled) if root else scaled)


def _view(imp: Importer, node: Node, layer: str, index: Index | None) -> str | TensorView:
    """A view of a layer of this node; the layer if its values are in order."""
    if index is None:
        return layer
    name = f"{node.outputs[0]}@"
    imp.layer_names[name] = layer
    return TensorView(name, index, node)
