"""A tensor of the source that has the values of a layer in another order, and the layers that
give it: `Flatten`, `Select`, `Expand`, or none where the values stand as the layer has them.

Features count as images of one pixel wherever the source has them so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hpcpar.network.builder import Graph, Option
from hpcpar.network.layers import Concat, Expand, Flatten, Select, Unflatten
from hpcpar.network.layers.base import Layer, Shape, image_of
from hpcpar.network.read.operations import Node

#: An axis whose parts are joined or added has at most so many.
MOST_PARTS = 16
Index = npt.NDArray[np.int32]


@dataclass(frozen=True)
class TensorView:
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


class LayerMaker(Protocol):
    """The importer, which adds layers."""

    graph: Graph

    def layer(self, name: str) -> str:
        """The layer that gives a tensor."""

    def add(self, layer: type[Layer], node: Node, sources: Sequence[str] = (), suffix: str = "",
            **options: Option) -> str:
        """Add a layer."""


def layer_of(imp: LayerMaker, given: TensorView) -> str | None:
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


def _selected(imp: LayerMaker, node: Node, base: str, index: Index, wanted: Shape) -> str | None:
    """Chosen channels of a layer, of all or a box of its pixels, or features spread over an image.
    """
    shape = imp.graph.shapes[base]
    pixels = math.prod(shape[1:])
    lines = index.reshape(wanted[0], -1)
    if lines.shape[1] > 1 and len(wanted) in (3, 4) and not (lines != lines[:, :1]).any():
        features = base if len(shape) == 1 else imp.add(Flatten, node, [base])
        return imp.add(Expand, node, [_picked(imp, node, features, lines[:, 0])], size=wanted[1:])
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


def _joined(imp: LayerMaker, node: Node, base: str, index: Index, places: Index,
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
    return _picked(imp, node, joined, np.argsort(np.concatenate(parts)).astype(np.int32))


def _picked(imp: LayerMaker, node: Node, base: str, channels: Index,
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
