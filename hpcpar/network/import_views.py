"""Import of operators that move values: reshapes, transposed axes, slices, copies.

They are followed, not converted: a view says which value of a layer stands at each place of a
tensor of the source. A layer is added where an operator reads the view: `Flatten`, `Select`,
`Spread`, or none where the values stand as the layer has them. Features count as images of one
pixel wherever the source has them so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from hpcpar.network.base import Shape, image_of, shape_text
from hpcpar.network.layers import (
    Add,
    Affine,
    Concat,
    Flatten,
    Select,
    Sigmoid,
    Spread,
    Unflatten,
)
from hpcpar.network.operations import Node

if TYPE_CHECKING:
    from hpcpar.network.importer import Importer

#: An axis whose parts are added has at most so many.
MOST_PARTS = 16
Index = npt.NDArray[np.int32]
#: From an operator to a layer, or to a view.
Conversion: TypeAlias = "Callable[[Importer, Node], str | View]"
#: Operators of each value alone: what they do to a view they do to its layer.
OF_VALUES = frozenset((
    "Add", "Clip", "Div", "Dropout", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish",
    "Mul", "Neg", "Relu", "Sigmoid", "Silu", "Sub", "Sum", "Tanh"))


@dataclass(frozen=True)
class View:
    """A tensor of the source that has the values of a layer in another order.

    Attributes
    ----------
    tensor : str
        The tensor that the layer computes.
    index : ndarray of int
        [1, sample]: place of each value in a sample of the layer, in row-major order.
    node : Node
        What made the view.
    """

    tensor: str
    index: Index
    node: Node

    def last_axis(self, shape: Shape) -> bool:
        """Whether the view has all pixels in order, and the channels behind them."""
        pixels = math.prod(shape[1:])
        return (self.index.size == math.prod(shape) and self.index.shape[-1] == shape[0]
                and bool(np.array_equal(self.index.reshape(pixels, shape[0]),
                                        channels_last(shape).reshape(pixels, shape[0]))))

    def has_all(self, shape: Shape) -> bool:
        """Whether the view has every value of a sample of this shape once."""
        places = np.sort(self.index, axis=None)
        return bool(np.array_equal(places, np.arange(math.prod(shape))))


def channels_last(shape: Shape) -> Index:
    """The view of an image [1, ..., C]."""
    places = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    return np.moveaxis(places, 0, -1)[None]


def view(imp: Importer, node: Node, which: int = 0) -> View:
    """An input of a node as a view, of itself if nothing moved its values."""
    name = node.inputs[which]
    if name in imp.views:
        if imp.views[name].index.shape[0] != 1:
            raise node.error("reads tensors that were stacked along the samples' axis; stack them "
                             "along another")
        return imp.views[name]
    shape = imp.sample_shape(node, which)
    dims = imp.operations.shapes.get(name) or (shape if len(shape) == 1 else (
        shape[0], *shape[-imp.dimensions:]))
    places = np.arange(math.prod(shape), dtype=np.int32)
    return View(name, places.reshape(1, *dims), node)


def _moved(move: Callable[[Importer, Node, Index], Index]) -> Callable[[Importer, Node], View]:
    """Import of an operator that does to the places what NumPy's does to an array."""
    def convert(imp: Importer, node: Node) -> View:
        given = view(imp, node)
        return View(given.tensor, move(imp, node, given.index), node)
    return convert


def _unchanged_features(imp: Importer, node: Node) -> bool:
    """Whether an operator reads features whose number of axes the source does not tell."""
    known = node.inputs[0] in imp.views or imp.operations.shapes.get(node.inputs[0])
    return not known and len(imp.sample_shape(node)) == 1


def _reshape(imp: Importer, node: Node, index: Index) -> Index:
    value = imp.value(node, 1)
    given = [] if value is None else [int(v) for v in value.ravel()]
    same, size = index.shape[1:], index.size
    target = [same[i] if t == 0 and i < len(same) else t for i, t in enumerate(given[1:])]
    if -1 in target and given[0] != -1:
        target[target.index(-1)] = size // max(1, math.prod(t for t in target if t != -1))
    if math.prod(target) != size or not target or min(target) < 0:
        from hpcpar.network.importer import BATCH

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
    value = imp.value(node, 1)
    axes = node.integers("axes") if value is None else value.ravel().tolist()
    axes = [a % index.ndim for a in axes] or range(1, index.ndim)
    gone = [a for a in axes if a and index.shape[a] == 1]
    if value is not None and len(gone) < len(list(axes)):
        raise node.error(f"samples {shape_text(index.shape[1:])} have axes of more than one value "
                         "there")
    return np.squeeze(index, tuple(gone))


def _unsqueeze(imp: Importer, node: Node, index: Index) -> Index:
    value = imp.value(node, 1)
    axes = node.integers("axes") if value is None else value.ravel().tolist()
    rank = index.ndim + len(axes)
    if any(a % rank == 0 for a in axes):
        raise node.error(f"axes {list(axes)} are not supported, only axes after the samples")
    return np.expand_dims(index, tuple(a % rank for a in axes))


def _transpose(imp: Importer, node: Node, index: Index) -> Index:
    order = node.integers("perm", range(index.ndim)[::-1])
    if not order or order[0] != 0 or sorted(order) != list(range(index.ndim)):
        raise node.error(f"the order {list(order)} of axes is not supported; keep samples first")
    return index.transpose(order)


def _slice(imp: Importer, node: Node, index: Index) -> Index:
    values = [imp.value(node, i) for i in (1, 2, 3, 4)]
    starts, stops, axes, steps = ([] if v is None else [int(x) for x in v.ravel()] for v in values)
    starts, stops = starts or list(node.integers("starts")), stops or list(node.integers("ends"))
    axes = axes or list(node.integers("axes", range(len(starts))))
    for start, stop, axis, step in zip(starts, stops, axes, steps or [1] * len(starts),
                                       strict=True):
        if axis % index.ndim == 0:
            if start or stop < 1 << 30:
                raise node.error("some of the samples alone are not supported; take all")
            continue
        index = index[(slice(None),) * (axis % index.ndim) + (slice(start, stop, step),)]
    return index


def _gather(imp: Importer, node: Node, index: Index) -> Index:
    which, axis = imp.value(node, 1), node.integer("axis", 0) % index.ndim
    if which is None or axis == 0:
        raise node.error("some of the samples alone are not supported; take all")
    return np.take(index, which.astype(np.int64), axis)


def _space_to_depth(imp: Importer, node: Node, index: Index) -> Index:
    size, (n, c, h, w) = node.integer("blocksize"), index.shape
    blocks = index.reshape(n, c, h // size, size, w // size, size)
    # PyTorch has the channels before the places in a block
    order = (0, 1, 3, 5, 2, 4) if node.integer("last", 0) else (0, 3, 5, 1, 2, 4)
    return blocks.transpose(order).reshape(n, -1, h // size, w // size)


def _expand(imp: Importer, node: Node, index: Index) -> Index:
    value = imp.value(node, 1)
    sizes = [1] if value is None else [int(v) for v in value.ravel()]
    return np.broadcast_to(index, np.broadcast_shapes(index.shape, (1, *sizes[1:])))


def _tile(imp: Importer, node: Node, index: Index) -> Index:
    value = imp.value(node, 1)
    repeats = [1] if value is None else [int(v) for v in value.ravel()]
    if repeats[0] != 1:
        raise node.error("repeated samples are not supported")
    return np.tile(index, repeats)


def split(imp: Importer, node: Node) -> View:
    """Split: every output is a view."""
    given, axis = view(imp, node), node.integer("axis", 0)
    value = imp.value(node, 1)
    sizes = node.integers("split") if value is None else tuple(int(v) for v in value.ravel())
    extent, count = given.index.shape[axis], len(node.outputs)
    sizes = sizes or tuple(min(-(-extent // count), extent - i * -(-extent // count))
                           for i in range(count))
    parts = np.split(given.index, np.cumsum(sizes)[:-1].tolist(), axis)
    for output, part in zip(node.outputs, parts, strict=True):
        imp.views[output] = View(given.tensor, part, node)
    return imp.views[node.outputs[0]]


def stack(imp: Importer, node: Node) -> View:
    """Tensors of one shape along a new axis: a concatenation, of which each is a part."""
    parts = [view(imp, node, i) for i in range(len(node.inputs))]
    axis = node.integer("axis")
    name = f"{node.outputs[0]}@"
    size, dims = parts[0].index.size, parts[0].index.shape
    places = [np.arange(i * size, (i + 1) * size, dtype=np.int32).reshape(dims)
              for i in range(len(parts))]
    imp.later[name] = replace(node, op="Concat", attributes={"axis": 1}, outputs=(name,))
    return View(name, np.stack(places, axis), node)


def flat_features(convert: Callable[[Importer, Node], View]) -> Conversion:
    """Features whose axes the source does not tell stay features."""
    def other(imp: Importer, node: Node) -> str | View:
        if _unchanged_features(imp, node) and _keeps_features(imp, node):
            return imp.source(node)
        return convert(imp, node)
    return other


def _keeps_features(imp: Importer, node: Node) -> bool:
    """Whether a reshape, squeeze or unsqueeze gives features, or images of one pixel."""
    value = imp.value(node, 1) if node.op in ("Reshape", "Unsqueeze") else None
    if node.op == "Unsqueeze":
        axes = node.integers("axes") if value is None else value.ravel().tolist()
        return not any(axis in (0, 1) or axis < -2 for axis in axes)
    if node.op != "Reshape" or value is None:
        return True
    size = math.prod(imp.sample_shape(node))
    target = [int(v) for v in value.ravel()[1:]]
    return target[:1] in ([size], [-1], [0]) and all(t in (0, 1, -1) for t in target[1:])


def reduce_sum(imp: Importer, node: Node) -> str | View:
    """The sum over an axis, as of tensors that were stacked: of the parts along it."""
    value = imp.value(node, 1)
    axes = node.integers("axes") if value is None else tuple(int(v) for v in value.ravel())
    given = imp.views.get(node.inputs[0]) or view(imp, node)
    maker = given.node
    if maker.op == "Stack" and maker.outputs[0] == node.inputs[0] and axes == (
            maker.integer("axis"),):
        return imp.operators["Sum"](imp, replace(node, inputs=maker.inputs))
    if len(axes) != 1 or axes[0] % given.index.ndim == 0 or given.index.shape[axes[0]] > MOST_PARTS:
        raise node.error(f"the sum over axes {list(axes)} is not supported; use it of tensors that "
                         "were stacked")
    axis = axes[0] % given.index.ndim
    names = [f"{node.outputs[0]}@{i}" for i in range(given.index.shape[axis])]
    for i, name in enumerate(names):
        part = np.take(given.index, [i] if node.integer("keepdims", 1) else i, axis)
        imp.views[name] = View(given.tensor, part, node)
    return imp.operators["Sum"](imp, replace(node, inputs=tuple(names)))


def softmax_of_two(imp: Importer, node: Node) -> View | None:
    """A softmax over an axis of two, as of two branches: the logistic function of differences."""
    given, axis = view(imp, node), node.integer("axis", -1)
    if given.index.shape[axis] != 2:
        return None
    base = imp.layer(given.tensor)
    places = np.empty(given.index.size, np.int32)
    places[given.index.ravel()] = np.flip(given.index, axis).ravel()
    other, name = f"{node.outputs[0]}@other", f"{node.outputs[0]}@"
    imp.views[other] = View(given.tensor, places.reshape(1, *imp.graph.shapes[base]), node)
    minus = imp.add(Affine, node, [imp.layer(other)], ".minus", scale=-1.0, shift=0.0)
    imp.layer_names[name] = imp.add(Sigmoid, node, [
        imp.add(Add, node, [base, minus], ".difference")])
    return View(name, given.index, node)


def identity(imp: Importer, node: Node) -> str | View:
    """The same values."""
    return imp.views.get(node.inputs[0]) or imp.source(node)


reshape, squeeze, unsqueeze, flatten = (flat_features(_moved(move)) for move in (
    _reshape, _squeeze, _unsqueeze, _flatten))
transpose, slices, gather, expand, tile, space_to_depth = (_moved(move) for move in (
    _transpose, _slice, _gather, _expand, _tile, _space_to_depth))


# -- layers ----------------------------------------------------------------------------------------
def layer_of(imp: Importer, given: View) -> str | None:
    """The layer whose output is a view's tensor, added if needed; None where none is."""
    base = imp.layer(given.tensor)
    shape, wanted = imp.graph.shapes[base], given.index.shape[1:]
    flat = given.index.ravel()
    if math.prod(wanted[1:]) == 1:
        wanted = wanted[:1]
    image = image_of(wanted)  # two axes are those of a signal
    node = replace(given.node, inputs=(given.tensor,))
    if flat.size == math.prod(shape) and np.array_equal(flat, np.arange(flat.size)):
        if image == shape:
            return base
        if len(wanted) == 1:
            return imp.add(Flatten, node, [base])
        if len(shape) == 1 and len(image) in (3, 4) and (
                len(wanted) == 2 or wanted[-1] != flat.size):
            return imp.add(Unflatten, node, [base], shape=image)
    return _selected(imp, node, base, given.index.reshape(image) if len(wanted) > 1
                     else flat, image)


def _selected(imp: Importer, node: Node, base: str, index: Index, wanted: Shape) -> str | None:
    """Chosen channels of a layer, of all or a box of its pixels, or features spread over an image.
    """
    shape = imp.graph.shapes[base]
    pixels = math.prod(shape[1:])
    if len(shape) == 1 < len(wanted):  # features at every pixel
        lines = index.reshape(wanted[0], -1)
        if (lines != lines[:, :1]).any() or len(wanted) not in (3, 4):
            return None
        source = _picked(imp, node, base, lines[:, 0])
        return imp.add(Spread, node, [source], size=wanted[1:])
    if len(shape) != len(wanted):
        return None
    channels, places = np.divmod(index.reshape(wanted[0], -1), pixels)
    if (channels != channels[:, :1]).any():
        return None
    if len(shape) == 1:
        return _picked(imp, node, base, channels[:, 0])
    if (places != places[:1]).any():
        return _joined(imp, node, base, index.reshape(wanted[0], -1), places, wanted)
    box = _box(np.unravel_index(places[0].reshape(wanted[1:]), shape[1:]))
    if box is None:
        return None
    begin, step = box
    whole = wanted[1:] == shape[1:]
    options = {} if whole else {"begin": begin, "step": step, "size": wanted[1:]}
    return _picked(imp, node, base, channels[:, 0], options)


def _joined(imp: Importer, node: Node, base: str, index: Index, places: Index,
            wanted: Shape) -> str | None:
    """Channels of different pixels, as where pixels become channels: parts of one kind each,
    joined, and put in order.
    """
    kinds = np.unique(places, axis=0, return_inverse=True)[1].ravel()
    parts = [np.flatnonzero(kinds == kind) for kind in range(int(kinds.max()) + 1)]
    if len(parts) > MOST_PARTS:
        return None
    chosen = [_selected(imp, node, base, index[part].reshape(-1, *wanted[1:]),
                        (len(part), *wanted[1:])) for part in parts]
    if None in chosen:
        return None
    joined = imp.add(Concat, node, [str(name) for name in chosen])
    return _picked(imp, node, joined, np.argsort(np.concatenate(parts)))


def _picked(imp: Importer, node: Node, base: str, channels: Index,
            options: Mapping[str, Shape] | None = None) -> str:
    """The layer itself where all channels stay."""
    count = imp.graph.shapes[base][0]
    every = len(channels) == count and np.array_equal(channels, np.arange(count))
    if every and not options:
        return base
    picked = () if every else tuple(int(c) for c in channels)
    return imp.add(Select, node, [base], "", channels=picked, **(options or {}))


def _box(places: tuple[Index, ...]) -> tuple[Shape, Shape] | None:
    """First index and step along each axis, if indices are those of a box."""
    begin, step = [], []
    for axis, along in enumerate(places):
        line = np.moveaxis(along, axis, 0).reshape(along.shape[axis], -1)
        if (line != line[:, :1]).any():
            return None
        distances = np.unique(np.diff(line[:, 0]))
        if len(distances) > 1 or (len(distances) and distances[0] < 1):
            return None
        begin.append(int(line[0, 0]))
        step.append(int(distances[0]) if len(distances) else 1)
    return tuple(begin), tuple(step)


def concat(imp: Importer, node: Node) -> str:
    """Concat of channels; of one tensor the tensor."""
    axis = node.integer("axis")
    if len(node.inputs) == 1:
        return imp.source(node)
    if imp.axis(node, axis) != 1:
        raise node.error(f"axis {axis} is not supported, only channels (1)")
    sources = [imp.source(node, i) for i in range(len(node.inputs))]
    if len(set(sources)) == len(sources):
        return imp.add(Concat, node, sources)
    # each input may be read once: the copies are chosen from the parts
    parts = list(dict.fromkeys(sources))
    joined = parts[0] if len(parts) == 1 else imp.add(Concat, node, parts, ".parts")
    begin = dict(zip(parts, np.cumsum([0, *(imp.graph.shapes[p][0] for p in parts)]).tolist(),
                     strict=False))
    channels = [begin[s] + c for s in sources for c in range(imp.graph.shapes[s][0])]
    return imp.add(Select, node, [joined], channels=tuple(channels))
