"""Import of operators that move values: reshapes, transposes, slices, copies.

These operators become views, not layers: a view maps each place in a source tensor to a value of a
layer. A layer is added when an operator reads the view.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from hpcpar.network.layers import (
    Add,
    Affine,
    Concat,
    PixelShuffle,
    PixelUnshuffle,
    Select,
    Sigmoid,
)
from hpcpar.network.layers.base import shape_text
from hpcpar.network.read.importer import Importer
from hpcpar.network.read.operations import BATCH, Node
from hpcpar.network.read.tensor_view import Index, TensorView, channels_last

#: Converts an operator to a view.
ViewConversion: TypeAlias = "Callable[[Importer, Node], TensorView]"
#: Converts an operator to a layer or a view.
Conversion: TypeAlias = Callable[[Importer, Node], "str | TensorView"]
#: Elementwise operators: applying them to a view or to its layer gives the same values.
ELEMENTWISE = frozenset((
    "Add", "Clip", "Div", "Dropout", "Elu", "Gelu", "LeakyRelu", "Max", "Min", "Mish", "Mul",
    "Neg", "Pow", "Relu", "Sigmoid", "Selu", "Silu", "Sub", "Sum", "Tanh"))


def _moved(move: Callable[[Importer, Node, Index], Index]) -> ViewConversion:
    """Converter of an operator that `move` applies to the index array of a view."""
    def convert(imp: Importer, node: Node) -> TensorView:
        given = imp.view(node)
        index = move(imp, node, given.index)
        if index.ndim == 2 < given.index.ndim and imp.made(node.inputs[0]):
            # flattens the output of a layer: features in the order of its channels
            places = np.arange(given.index.size, dtype=np.int32).reshape(given.index.shape)
            return TensorView(node.inputs[0], move(imp, node, places), node)
        return TensorView(given.tensor, index, node)
    return convert


def _unchanged_features(imp: Importer, node: Node) -> bool:
    """Whether an operator reads features whose shape the source does not state."""
    known = node.inputs[0] in imp.views or imp.operations.shapes.get(node.inputs[0])
    return not known and len(imp.sample_shape(node)) == 1


def _reshape(imp: Importer, node: Node, index: Index) -> Index:
    given = imp.integers(node, 1)
    same, size = index.shape[1:], index.size
    target = [same[i] if t == 0 and i < len(same) else t for i, t in enumerate(given[1:])]
    if -1 in target and given[0] != -1:
        target[target.index(-1)] = size // max(1, math.prod(t for t in target if t != -1))
    if math.prod(target) != size or not target or min(target) < 0:
        shown = shape_text(tuple("N" if t == BATCH else t for t in given))
        raise node.error(f"a reshape of samples {shape_text(same)} to {shown} is not supported; "
                         "keep the values of each sample together")
    return index.reshape(1, *target)


def _flatten(imp: Importer, node: Node, index: Index) -> Index:
    axis = node.integer("axis", 1) % index.ndim
    if axis != 1:
        raise node.error(f"axis {axis} is not supported, only 1")
    return index.reshape(1, -1)


def _squeeze(imp: Importer, node: Node, index: Index) -> Index:
    given = imp.integers(node, 1, node.integers("axes"))
    axes = [a % index.ndim for a in given] or range(1, index.ndim)
    gone = [a for a in axes if a and index.shape[a] == 1]
    if imp.constant(node, 1) is not None and len(gone) < len(axes):
        raise node.error(f"samples {shape_text(index.shape[1:])} have more than one value along "
                         "such an axis")
    return np.squeeze(index, tuple(gone))


def _unsqueeze(imp: Importer, node: Node, index: Index) -> Index:
    axes = imp.integers(node, 1, node.integers("axes"))
    rank = index.ndim + len(axes)
    if any(a % rank == 0 for a in axes):
        raise node.error(f"axes {list(axes)} are not supported, only axes after the sample axis")
    return np.expand_dims(index, tuple(a % rank for a in axes))


def _transpose(imp: Importer, node: Node, index: Index) -> Index:
    order = node.integers("perm", range(index.ndim)[::-1])
    if index.ndim == 2 < len(order) == imp.dimensions + 2:  # images of one pixel in the source
        index = index.reshape(*index.shape, *(1,) * imp.dimensions)
    if not order or order[0] != 0 or sorted(order) != list(range(index.ndim)):
        raise node.error(f"the order {list(order)} of axes is not supported; keep samples first")
    return index.transpose(order)


def _slice(imp: Importer, node: Node, index: Index) -> Index:
    starts = imp.integers(node, 1) or node.integers("starts")
    stops = imp.integers(node, 2) or node.integers("ends")
    axes = imp.integers(node, 3) or node.integers("axes", range(len(starts)))
    steps = imp.integers(node, 4) or (1,) * len(starts)
    for start, stop, axis, step in zip(starts, stops, axes, steps, strict=True):
        if axis % index.ndim == 0:
            if start or stop < 1 << 30:
                raise node.error("selecting samples is not supported; take all of them")
            continue
        index = index[(slice(None),) * (axis % index.ndim) + (slice(start, stop, step),)]
    return index


def _gather(imp: Importer, node: Node, index: Index) -> Index:
    which, axis = imp.value(node, 1), node.integer("axis", 0) % index.ndim
    if which is None or axis == 0:
        raise node.error("selecting samples is not supported; take all of them")
    return np.take(index, which.astype(np.int64), axis)


def depth_to_space(imp: Importer, node: Node) -> str:
    """DepthToSpace: the channels of a block become its pixels."""
    size, source = node.integer("blocksize"), imp.source(node)
    if _places_first(node):
        source = _columns(imp, node, source, imp.graph.shapes[source][0] // size**2)
    return imp.add(PixelShuffle, node, [source], block=(size, size))


def space_to_depth(imp: Importer, node: Node) -> str:
    """SpaceToDepth: the pixels of a block become channels."""
    size = node.integer("blocksize")
    made = imp.add(PixelUnshuffle, node, [imp.source(node)], block=(size, size))
    return _columns(imp, node, made, size**2) if _places_first(node) else made


def _places_first(node: Node) -> bool:
    """Whether a block's places come before its channels, as in ONNX; not so in PyTorch."""
    mode = node.text("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        raise node.error(f"mode '{mode}' is not supported; use DCR or CRD")
    return mode == "DCR"


def _columns(imp: Importer, node: Node, layer: str, columns: int) -> str:
    """A layer's channels, in rows of this number, column by column."""
    order = np.arange(imp.graph.shapes[layer][0]).reshape(-1, columns).T.ravel().tolist()
    return imp.add(Select, node, [layer], ".order", channels=tuple(order))


def _expand(imp: Importer, node: Node, index: Index) -> Index:
    sizes = imp.integers(node, 1)
    return np.broadcast_to(index, np.broadcast_shapes(index.shape, (1, *sizes[1:])))


def _tile(imp: Importer, node: Node, index: Index) -> Index:
    repeats = imp.integers(node, 1, (1,))
    if repeats[0] != 1:
        raise node.error("repeated samples are not supported")
    return np.tile(index, repeats)


def _repeat(imp: Importer, node: Node, index: Index) -> Index:
    axis = node.integer("axis") % index.ndim
    if axis == 0:
        raise node.error("repeated samples are not supported")
    return np.repeat(index, node.integer("repeats"), axis)


def split(imp: Importer, node: Node) -> TensorView:
    """Split: every output is a view."""
    given, axis = imp.view(node), node.integer("axis", 0)
    sizes = imp.integers(node, 1, node.integers("split"))
    extent, count = given.index.shape[axis], len(node.outputs)
    sizes = sizes or tuple(min(-(-extent // count), extent - i * -(-extent // count))
                           for i in range(count))
    parts = np.split(given.index, np.cumsum(sizes)[:-1].tolist(), axis)
    for output, part in zip(node.outputs, parts, strict=True):
        imp.views[output] = TensorView(given.tensor, part, node)
    return imp.views[node.outputs[0]]


def stack(imp: Importer, node: Node) -> TensorView:
    """Stack: a view into a concatenation, which is added only if a layer needs it."""
    parts = [imp.view(node, i) for i in range(len(node.inputs))]
    axis = node.integer("axis")
    name = f"{node.outputs[0]}@"
    size, dims = parts[0].index.size, parts[0].index.shape
    places = [np.arange(i * size, (i + 1) * size, dtype=np.int32).reshape(dims)
              for i in range(len(parts))]
    imp.later[name] = replace(node, op="Concat", attributes={"axis": 1}, outputs=(name,))
    return TensorView(name, np.stack(places, axis), node)


def flat_features(convert: ViewConversion) -> Conversion:
    """Converter that leaves features alone if the source does not state their axes."""
    def convert_images(imp: Importer, node: Node) -> str | TensorView:
        if _unchanged_features(imp, node) and _keeps_features(imp, node):
            return imp.source(node)
        return convert(imp, node)
    return convert_images


def _keeps_features(imp: Importer, node: Node) -> bool:
    """Whether a reshape, squeeze or unsqueeze gives features, or images of one pixel."""
    if node.op == "Unsqueeze":
        axes = imp.integers(node, 1, node.integers("axes"))
        return not any(axis in (0, 1) or axis < -2 for axis in axes)
    if node.op != "Reshape" or imp.constant(node, 1) is None:
        return True
    size, target = math.prod(imp.sample_shape(node)), imp.integers(node, 1)[1:]
    return target[:1] in ((size,), (-1,), (0,)) and all(t in (0, 1, -1) for t in target[1:])


def softmax_of_two(imp: Importer, node: Node) -> TensorView | None:
    """Softmax over an axis of two branches: the logistic function of their difference."""
    given, axis = imp.view(node), node.integer("axis", -1)
    if given.index.shape[axis] != 2:
        return None
    base = imp.layer(given.tensor)
    places = np.empty(given.index.size, np.int32)
    places[given.index.ravel()] = np.flip(given.index, axis).ravel()
    other, name = f"{node.outputs[0]}@other", f"{node.outputs[0]}@"
    imp.views[other] = TensorView(given.tensor, places.reshape(1, *imp.graph.shapes[base]), node)
    minus = imp.add(Affine, node, [imp.layer(other)], ".minus", scale=-1.0, shift=0.0)
    imp.layer_names[name] = imp.add(Sigmoid, node, [
        imp.add(Add, node, [base, minus], ".difference")])
    return TensorView(name, given.index, node)


def channels_behind(imp: Importer, node: Node, which: int = 0) -> TensorView | None:
    """An input that has its channels last in the source, in an order that no layer has."""
    apart = imp.unread(node, which)
    last = apart and apart.last_axis(imp.graph.shapes[imp.layer(apart.tensor)])
    return apart if last else None


def channels_first(convert: Conversion) -> Conversion:
    """Converter of an operator along axes that may read tensors with their channels last.

    It converts the operator on layers with their channels first, with an attribute that has the
    layer's axis of each of the source's axes, and returns a view of the result.
    """
    def convert_behind(imp: Importer, node: Node) -> str | TensorView:
        rank, made = imp.dimensions + 2, f"{node.outputs[0]}@"
        names = list(node.inputs)
        for i, name in enumerate(node.inputs):
            if name and name not in imp.constants:
                apart, names[i] = imp.unread(node, i), f"{made}{i}"
                if apart is None or apart.index.ndim != rank:
                    return convert(imp, node)
                imp.views[names[i]] = replace(apart, index=np.moveaxis(apart.index, -1, 1))
                if imp.made(names[i]) is None:
                    return convert(imp, node)
        inside = replace(node, inputs=tuple(names), outputs=(made,), attributes={
            **node.attributes, _AXES: (0, *range(2, rank), 1)})
        given = convert(imp, inside)
        if isinstance(given, TensorView):
            return TensorView(given.tensor, np.moveaxis(given.index, 1, -1), node)
        imp.layer_names[made], shape = given, imp.graph.shapes[given]
        return TensorView(made, channels_last((shape[0], *imp.pixels_of(shape))), node)
    return convert_behind


#: Attribute of a node behind views: the layer's axis of each of the source's axes.
_AXES = "axes of the layer"


def end(imp: Importer, output: str) -> str:
    """The tensor whose layer ends a network: the output, or the images behind it if its channels
    are last and hpcpar computes the loss.
    """
    behind = None
    if output in imp.views and not imp.loss.outside:
        behind = channels_behind(imp, replace(imp.views[output].node, inputs=(output,)))
    if behind is None:
        return output
    imp.remark(behind.node, "the output has its channels last in the source, and first here")
    return behind.tensor


def axis_in_layer(imp: Importer, node: Node, axis: int) -> int:
    """An axis of a node, as an axis of the layer that it reads."""
    axes = node.integers(_AXES)
    return axes[axis] if axes else imp.axis(node, axis)


def in_layer(node: Node, values: list[float]) -> list[float]:
    """Values of a node's axes, in the order of the axes of the layer that it reads."""
    order = node.integers(_AXES, range(len(values)))
    return [values[order.index(axis)] for axis in range(len(values))]


def identity(imp: Importer, node: Node) -> str | TensorView:
    """Identity."""
    return imp.views.get(node.inputs[0]) or imp.source(node)


reshape, squeeze, unsqueeze, flatten = (flat_features(_moved(move)) for move in (
    _reshape, _squeeze, _unsqueeze, _flatten))
transpose, slices, gather, expand, tile, repeat = (_moved(move) for move in (
    _transpose, _slice, _gather, _expand, _tile, _repeat))


# -- elementwise operators -------------------------------------------------------------------------
def elementwise(convert: Conversion) -> Conversion:
    """Converter of an elementwise operator that may read a view without a layer.

    It converts the operator on the layer behind the view, with the other inputs in that layer's
    order, and returns the same view of the result.
    """
    def convert_behind_view(imp: Importer, node: Node) -> str | TensorView:
        views = [v for i in range(len(node.inputs)) if (v := imp.unread(node, i))]
        if not views:
            return convert(imp, node)
        first = max(views, key=lambda v: v.index.size)
        whole = imp.graph.shapes[imp.layer(first.tensor)]
        last = first.last_axis(whole)
        if not (last or first.has_all(whole)):
            raise node.error("reads values in an order that no layer has, with repetitions or "
                             "omissions; give it all of a tensor")
        names = tuple(_in_order_of(first, imp, node, i, last) for i in range(len(node.inputs)))
        made = f"{node.outputs[0]}@"
        imp.layer_names[made] = str(convert(imp, replace(node, inputs=names, outputs=(made,))))
        return TensorView(made, first.index, node)
    return convert_behind_view


def _in_order_of(first: TensorView, imp: Importer, node: Node, which: int, last: bool) -> str:
    """Input number `which` in the order of the layer behind the view `first`.

    Parameters
    ----------
    last : bool
        Whether the view, and thus a constant, has its channels last.
    """
    name, inside = node.inputs[which], f"{node.outputs[0]}@{which}"
    shape, constant = imp.graph.shapes[imp.layer(first.tensor)], imp.constants.get(name)
    if not name or (constant and (not last or constant.dims[-1:] != shape[:1])):
        return name
    if constant:
        dims, read = (shape[0], *(1,) * imp.dimensions), constant.read
        imp.constants[inside] = replace(constant, dims=dims, read=lambda: read().reshape(dims))
        return inside
    places = np.empty(first.index.size, np.int32)
    given = imp.view(node, which)
    places[first.index.ravel()] = np.broadcast_to(given.index, first.index.shape).ravel()
    imp.views[inside] = TensorView(given.tensor, places.reshape(1, *shape), node)
    return inside


def concat(imp: Importer, node: Node) -> str:
    """Concat of channels; repeated inputs are selected from one concatenation."""
    axis = node.integer("axis")
    if len(node.inputs) == 1:
        return imp.source(node)
    if axis_in_layer(imp, node, axis) != 1:
        raise node.error(f"axis {axis} is not supported, only channels (1)")
    sources = [imp.source(node, i) for i in range(len(node.inputs))]
    if len(set(sources)) == len(sources):
        return imp.add(Concat, node, sources)
    # a layer reads each input once, so that Select makes the copies
    parts = list(dict.fromkeys(sources))
    joined = parts[0] if len(parts) == 1 else imp.add(Concat, node, parts, ".parts")
    begin = dict(zip(parts, np.cumsum([0, *(imp.graph.shapes[p][0] for p in parts)]).tolist(),
                     strict=False))
    channels = [begin[s] + c for s in sources for c in range(imp.graph.shapes[s][0])]
    return imp.add(Select, node, [joined], channels=tuple(channels))
