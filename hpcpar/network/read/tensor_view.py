"""Source tensors with a layer's values in another order, and the layers that produce them:
`Flatten`, `Unflatten`, `Select`, `Expand`, `Upsample`, `PixelShuffle`, `PixelUnshuffle`, or none if
the order is the layer's.

Features may be images with one pixel in the source.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hpcpar.network.builder import Graph, Option
from hpcpar.network.layers import (
    Expand,
    Flatten,
    PixelShuffle,
    PixelUnshuffle,
    Select,
    Unflatten,
    Upsample,
)
from hpcpar.network.layers.base import Layer, Shape, image_of
from hpcpar.network.read.operations import Node

Index = npt.NDArray[np.int32]


@dataclass(frozen=True)
class TensorView:
    """A source tensor with a layer's values in another order.

    Attributes
    ----------
    tensor : str
        The tensor that the layer computes.
    index : ndarray of int
        [1, ...]: row-major position of each value in a sample of the layer.
    node : Node
        The node that made the view.
    """

    tensor: str
    index: Index
    node: Node

    def last_axis(self, shape: Shape) -> bool:
        """Whether the view has all pixels in order, with the channels last."""
        pixels = math.prod(shape[1:])
        return (self.index.size == math.prod(shape) and self.index.shape[-1] == shape[0]
                and bool(np.array_equal(self.index.reshape(pixels, shape[0]),
                                        channels_last(shape).reshape(pixels, shape[0]))))

    def has_all(self, shape: Shape) -> bool:
        """Whether the view has every value of a sample of this shape exactly once."""
        places = np.sort(self.index, axis=None)
        return bool(np.array_equal(places, np.arange(math.prod(shape))))


def channels_last(shape: Shape) -> Index:
    """Index of a view [1, ..., C] of an image with this sample shape."""
    places = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    return np.moveaxis(places, 0, -1)[None]


class LayerMaker(Protocol):
    """The part of the importer that adds layers."""

    graph: Graph

    def layer(self, name: str) -> str:
        """The layer that produces a tensor."""

    def add(self, layer: type[Layer], node: Node, sources: Sequence[str] = (), suffix: str = "",
            **options: Option) -> str:
        """Add a layer."""


def layer_of(imp: LayerMaker, given: TensorView) -> str | None:
    """The layer that produces a view, added if needed; None if no layer can."""
    base = imp.layer(given.tensor)
    shape, target = imp.graph.shapes[base], given.index.shape[1:]
    flat = given.index.ravel()
    if math.prod(target[1:]) == 1:
        target = target[:1]
    image = image_of(target)
    node = replace(given.node, inputs=(given.tensor,))
    if flat.size == math.prod(shape) and np.array_equal(flat, np.arange(flat.size)):
        if image == shape:
            return base
        if len(target) == 1:
            return imp.add(Flatten, node, [base])
        if len(shape) == 1 and len(image) in (3, 4) and (
                len(target) == 2 or target[-1] != flat.size):
            return imp.add(Unflatten, node, [base], shape=image)
    return _selected(imp, node, base, given.index.reshape(image) if len(target) > 1
                     else flat, image)


def _selected(imp: LayerMaker, node: Node, base: str, index: Index, target: Shape) -> str | None:
    """Selected channels of a layer, at all pixels or in a box, or features spread over an image."""
    shape = imp.graph.shapes[base]
    pixels = math.prod(shape[1:])
    lines = index.reshape(target[0], -1)
    if lines.shape[1] > 1 and len(target) in (3, 4) and not (lines != lines[:, :1]).any():
        features = base if len(shape) == 1 else imp.add(Flatten, node, [base])
        return imp.add(Expand, node, [_picked(imp, node, features, lines[:, 0])], size=target[1:])
    if len(shape) > len(target) == 1:
        return _picked(imp, node, imp.add(Flatten, node, [base], ".flat"), index)
    if len(shape) != len(target):
        return None
    if math.prod(target[1:]) > pixels:
        return _as_pixels(imp, node, base, index, target)
    channels, places = np.divmod(index.reshape(target[0], -1), pixels)
    if (channels != channels[:, :1]).any():
        return None
    if len(shape) == 1:
        return _picked(imp, node, base, channels[:, 0])
    if (places != places[:1]).any():
        return _as_channels(imp, node, base, index, target)
    box = _box(np.unravel_index(places[0].reshape(target[1:]), shape[1:]))
    if box is None:
        return None
    begin, step = box
    whole = target[1:] == shape[1:]
    options = {} if whole else {"begin": begin, "step": step, "size": target[1:]}
    return _picked(imp, node, base, channels[:, 0], options)


def _as_pixels(imp: LayerMaker, node: Node, base: str, index: Index, target: Shape) -> str | None:
    """Blocks of pixels from channels in any order, or from one channel each."""
    shape = imp.graph.shapes[base]
    block = tuple(n // m for n, m in zip(target[1:], shape[1:], strict=True))
    if target[1:] != tuple(n * b for n, b in zip(shape[1:], block, strict=True)):
        return None
    pixels = math.prod(shape[1:])
    channels, places = np.divmod(_in_blocks(index.reshape(target), block), pixels)
    if (channels != channels[:, :1]).any() or (places != np.arange(pixels)).any():
        return None
    by_block = channels[:, 0].reshape(target[0], -1)
    if (by_block == by_block[:, :1]).all():
        source = _picked(imp, node, base, by_block[:, 0])
        return imp.add(Upsample, node, [source], scale=block)
    source = _picked(imp, node, base, channels[:, 0])
    return imp.add(PixelShuffle, node, [source], block=block)


def _as_channels(imp: LayerMaker, node: Node, base: str, index: Index,
                 target: Shape) -> str | None:
    """Channels from the pixels of blocks, in any order, in a box of the image."""
    shape = imp.graph.shapes[base]
    coordinates = np.unravel_index(index.reshape(target), shape)
    first = [along.reshape(target[0], -1)[:, 0] for along in coordinates]
    steps = [np.diff(along, axis=axis) if target[axis] > 1 else np.ptp(along, keepdims=True) + 1
             for axis, along in enumerate(coordinates)][1:]
    block = tuple(int(step.flat[0]) for step in steps)
    size = tuple(n * b for n, b in zip(target[1:], block, strict=True))
    begin = tuple(min(int(along.min()), n - s)
                  for along, n, s in zip(first[1:], shape[1:], size, strict=True))
    inside = [along - b for along, b in zip(first[1:], begin, strict=True)]
    if min(*block, *begin) < 0 or any((i >= b).any() for i, b in zip(inside, block, strict=True)):
        return None
    channels = np.ravel_multi_index((first[0], *inside), (shape[0], *block)).astype(np.int32)
    box = (slice(None), *(slice(b, b + s) for b, s in zip(begin, size, strict=True)))
    places = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)[box]
    if (_in_blocks(places, block)[channels] != index.reshape(target[0], -1)).any():
        return None
    options = {"begin": begin, "step": (1,) * len(size), "size": size}
    source = _picked(imp, node, base, np.arange(shape[0], dtype=np.int32),
                     {} if size == shape[1:] else options)
    return _picked(imp, node, imp.add(PixelUnshuffle, node, [source], block=block), channels)


def _in_blocks(image: Index, block: Shape) -> Index:
    """The pixels of an image [C, ...] by channel and place in a block: [C * places, blocks]."""
    extents = [e for n, b in zip(image.shape[1:], block, strict=True) for e in (n // b, b)]
    axes = range(1, len(extents) + 1)
    apart = image.reshape(-1, *extents).transpose(0, *axes[1::2], *axes[::2])
    return apart.reshape(len(image) * math.prod(block), -1)


def _picked(imp: LayerMaker, node: Node, base: str, channels: Index,
            options: Mapping[str, Shape] | None = None) -> str:
    """A selection of channels and pixels; the layer itself if it keeps everything."""
    count = imp.graph.shapes[base][0]
    all_channels = len(channels) == count and np.array_equal(channels, np.arange(count))
    if all_channels and not options:
        return base
    picked = () if all_channels else tuple(int(c) for c in channels)
    return imp.add(Select, node, [base], "", channels=picked, **(options or {}))


def _box(places: tuple[Index, ...]) -> tuple[Shape, Shape] | None:
    """First index and step along each axis if the indices form a box, else None."""
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
