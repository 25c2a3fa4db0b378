"""Outputs of a PyTorch module: the layers that compute them, and the order of their values.

A module may return samples of any shape, such as H x W x C, or anchors x H x W x values. The
network ends in a layer with these values. Where each image axis of that layer is an axis of the
output, ranks keep their pixels; otherwise they get whole samples, as features.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from hpcpar.network.layers import Flatten
from hpcpar.network.layers.base import Shape, image_of
from hpcpar.network.read.importer import Importer
from hpcpar.network.read.operations import Node
from hpcpar.network.read.tensor_view import Index


@dataclass(frozen=True)
class Output:
    """How an output of a module has the values of a layer.

    Attributes
    ----------
    shape : tuple of int
        Shape of a sample.
    axes : tuple
        The axis of a sample for each image axis of the layer; None for an axis of one pixel that
        the output does not have.
    index : ndarray of int, or None
        Row-major position of each value in a sample of the layer; None if they are in order.
    of : int
        Number of the layer among those in which the network ends.
    """

    shape: Shape
    axes: tuple[int | None, ...] = ()
    index: Index | None = None
    of: int = 0

    @property
    def image_axes(self) -> tuple[int, ...]:
        """The axes of a sample that are image axes of the layer, in the order of the sample."""
        return tuple(sorted(axis for axis in self.axes if axis is not None))


def endings(imp: Importer, names: Iterable[str]) -> tuple[list[str], list[Output]]:
    """The layers with the values of some tensors, and how these have them.

    Raises
    ------
    NodeError
        No layer has the values.
    """
    found = [_ending(imp, name) for name in names]
    if any(len(imp.graph.shapes[layer]) == 1 for layer, _ in found):  # all are features, or none
        found = [(_flat(imp, layer), replace(output, axes=())) for layer, output in found]
    layers = [*dict.fromkeys(layer for layer, _ in found)]
    return layers, [replace(output, of=layers.index(layer)) for layer, output in found]


def _ending(imp: Importer, name: str) -> tuple[str, Output]:
    """The layer with a tensor's values, and how it has them."""
    shape, view = imp.operations.shapes[name], imp.views.get(name)
    regular = len(shape) in (1, imp.dimensions + 1)
    if view is None or len(view.index) > 1 or (regular and imp.made(name)):
        layer = imp.layer(name)
        own = imp.graph.shapes[layer]
        whole = any(one.name == layer and one.whole_samples for one in imp.graph.layers)
        if whole and len(own) > 1:  # PyTorch may have any axis as channels
            return _flat(imp, layer), Output(shape)
        if own == shape:
            return layer, Output(shape, tuple(range(1, len(shape))))
        return layer, Output(shape, (None, 1) if own == image_of(shape) else ())
    layer, index = imp.layer(view.tensor), view.index[0]
    axes = _axes(index, imp.graph.shapes[layer])
    if axes is None:
        layer, axes = _flat(imp, layer), ()
    in_order = np.array_equal(index.ravel(), np.arange(math.prod(imp.graph.shapes[layer])))
    return layer, Output(shape, axes, None if in_order else index)


def _flat(imp: Importer, layer: str) -> str:
    """The values of a layer as features, in their order."""
    if len(imp.graph.shapes[layer]) == 1:
        return layer
    before = (one.name for one in imp.graph.layers
              if isinstance(one, Flatten) and one.inputs == (layer,))
    node = Node("Flatten", layer, (layer,), (f"{layer}@",), {})
    return next(before, None) or imp.add(Flatten, node, [layer], ".samples")


def _axes(index: Index, shape: Shape) -> tuple[int | None, ...] | None:
    """The axis of a view for each image axis of a layer, or None if there is one without."""
    axes: list[int | None] = []
    for extent, along in zip(shape[1:], np.unravel_index(index, shape)[1:], strict=True):
        lines = [np.arange(n).reshape(-1, *(1,) * (index.ndim - 1 - axis))
                 for axis, n in enumerate(index.shape)]
        fits = [axis for axis, line in enumerate(lines)
                if line.size == extent and (along == line).all()]
        axes.append(fits[0] if fits and extent > 1 else None)
        if extent > 1 and not fits:
            return None
    return tuple(axes) if any(axis is not None for axis in axes) else None
