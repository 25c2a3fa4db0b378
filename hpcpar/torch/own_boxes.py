"""Boxes and rows of the executor on a module's tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcpar.errors import InputError
from hpcpar.network.layers.base import Shape, image_of, shape_text
from hpcpar.network.read.endings import Output
from hpcpar.network.read.torch_module import TracedModule
from hpcpar.plan.boxes import Box, items, shape, whole_box
from hpcpar.torch import samples
from hpcpar.torch.autocast import require_as_planned
from hpcpar.torch.engine import Engine


class OwnBoxes:
    """Cuts images and labels to a rank's boxes, and shapes the outputs in them."""

    def __init__(self, engine: Engine, traced: TracedModule) -> None:
        self.engine, self._image = engine, traced.input
        self._batch = engine.plan.batch
        self._outputs = traced.outputs
        self._places = [_places(output, layer, engine.pixels(output.of)) for output, layer in zip(
            self._outputs, (engine.layer_shape(o.of) for o in self._outputs), strict=True)]

    def of_images(self, images: Tensor) -> Tensor:
        """This rank's box of a whole batch of images."""
        executor = self.engine.executor
        box = in_module(executor.image_box, self._image)
        return self._samples(images, executor.image_rows)[
            tuple(slice(*i) for i in ((0, None), *box))]

    def _samples(self, batch: Tensor, rows: NDArray[np.int64]) -> Tensor:
        """Samples from a whole batch, or from this rank's samples of it (`BatchSampler`)."""
        if len(batch) not in (self._batch, len(self.engine.samples)):
            raise InputError(f"{len(batch)} samples: pass the whole batch of {self._batch}, or "
                             f"the {len(self.engine.samples)} from BatchSampler on this rank")
        if len(batch) != self._batch:
            rows = np.searchsorted(self.engine.samples, rows)
        return batch[rows_index(rows)]

    def cut(self, labels: Tensor, rows: NDArray[np.int64], output: int) -> Tensor:
        """This rank's box of the labels of some samples of the mini-batch."""
        own, pixels = self._outputs[output], self.pixels(output)
        extents, axes = _extents(own), len(own.image_axes)
        box = self._samples(labels, rows).to(self.engine.tensors.device)
        if tuple(labels.shape[1:]) == own.shape:
            everywhere: tuple[Any, ...] = (slice(None), *(slice(*i) for i in pixels))
            return box[everywhere]
        if not extents or labels.dim() <= axes:
            return box
        given = tuple(labels.shape[-axes:])
        if given != extents:
            self._require_other(given, output)
            return box
        place: tuple[Any, ...] = (..., *(slice(*pixels[axis]) for axis in own.image_axes))
        return box[place]

    def _require_other(self, given: Shape, output: int) -> None:
        """Refuse labels whose last axes are the extents of another image than the output."""
        own = self._outputs[output]
        images = {self._image[1:], *map(_extents, self._outputs)}
        boxes = (self.pixels(output, rank) for rank in range(self.engine.world.size))
        images |= {shape(tuple(box[axis] for axis in own.image_axes)) for box in boxes}
        if given in images:
            extents = shape_text(_extents(own))
            raise InputError(f"labels of {shape_text(given)} pixels for output {output}, which has "
                             f"{extents}: pass labels of {extents}, for example reduced by "
                             "labels[..., ::2, ::2], or name their output with model.local(labels, "
                             "of=NUMBER)")

    def pixels(self, output: int, rank: int | None = None) -> Box:
        """A rank's box (by default this rank's) of a sample of an output, with the module's axes.
        """
        own = self._outputs[output]
        return _box(own, self.engine.pixels(own.of, rank))

    def taken(self, images: Tensor, training: bool, returns: bool = False) -> Tensor:
        """This rank's box of the images, in the executor's shape.

        `returns`: a backward pass returns their gradient, if they require it.
        """
        require_as_planned(self.engine.tensors.device, self.engine.plan)
        if images.requires_grad and torch.is_grad_enabled():
            self._require_gradient(images, returns)
        executor = self.engine.executor
        local = (len(executor.image_rows), *shape(executor.image_box))
        given, rows, box = tuple(images.shape), executor.image_rows, executor.image_box
        own = images
        if given[1:] == self._image and (given[0], *image_of(given[1:])) != local:
            own = self.of_images(images)
            rows, box = self.engine.samples, whole_box(image_of(self._image))
        elif (given[0], *image_of(given[1:])) != local:
            raise InputError(f"images of shape {shape_text(given)}: pass the whole batch, "
                             f"{shape_text((self._batch, *self._image))}, or this rank's box "
                             f"of it, {shape_text(local)} (model.local_images)")
        if training and samples.are_compared(self.engine.iterations):
            self.engine.world.lookout.place = f"the start of iteration {self.engine.iterations + 1}"
            samples.require_equal(self.engine, "images", samples.digests(
                self.engine, images, rows, box))
        own = own.detach().reshape(local)
        return own.float() if own.dtype is torch.bfloat16 else own

    def _require_gradient(self, images: Tensor, returns: bool) -> None:
        """Check that the plan has the gradient of the images."""
        whole = (self._batch, *self._image)
        if not self.engine.network.layers[0].learns:
            raise InputError("the images require a gradient, which the plan leaves out: make the "
                             "model with hpcpar.torch.parallelize(..., input_gradients=True), or "
                             "pass images.detach()")
        if not returns:
            raise InputError("the images require a gradient, which model(images) in training mode "
                             "computes: call that, or pass images.detach()")
        if tuple(images.shape) != whole:
            raise InputError(f"images of shape {shape_text(images.shape)} require a gradient: pass "
                             f"the whole batch, {shape_text(whole)}, on every rank")

    def shaped(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs with the module's axes, from the outputs with the executor's."""
        shaped = []
        for i, places in enumerate(self._places):
            values = outputs[self._outputs[i].of]
            if places is not None:
                values = values.reshape(len(values), math.prod(values.shape[1:]))
                values = values.index_select(1, places.to(values.device))
            shaped.append(values.reshape(len(values), *shape(self.pixels(i))))
        return shaped

    def joined(self, gradients: Sequence[Tensor], rows: int) -> list[Tensor]:
        """Gradients with the executor's axes, from the gradients with the module's."""
        joined: dict[int, Tensor] = {}
        for output, places, gradient in zip(self._outputs, self._places, gradients, strict=True):
            box = shape(self.engine.pixels(output.of))
            own = gradient.detach()
            if places is not None:
                own = own.new_zeros(rows, math.prod(box)).index_add_(
                    1, places.to(own.device), own.reshape(rows, len(places)))
            own = own.contiguous().reshape(rows, *box)
            joined[output.of] = joined[output.of] + own if output.of in joined else own
        return [joined[of] for of in range(len(joined))]


def in_module(box: Box, module_shape: Shape) -> Box:
    """The box of an image with the module's axes.

    The executor treats a signal as an image with one row.
    """
    if len(box) == len(module_shape):
        return box
    return box[0], box[2] if box[1][1] > box[1][0] else (0, 0)


def _box(output: Output, own: Box) -> Box:
    """The box of a sample of an output where a rank has this box of the layer's."""
    box = [(0, extent) for extent in output.shape]
    for axis, interval in zip(output.axes, own[1:], strict=False):
        if axis is not None:
            box[axis] = interval if items(own) else (0, 0)
    return tuple(box)


def _extents(output: Output) -> Shape:
    """Extents of an output's image axes."""
    return tuple(output.shape[axis] for axis in output.image_axes)


def _places(output: Output, layer: Shape, own: Box) -> Tensor | None:
    """Row-major position in a box of the layer of each value in that box of an output; None if they
    are in order.
    """
    if output.index is None:
        return None
    inside = np.full(layer, -1)
    inside[tuple(slice(*i) for i in own)] = np.arange(items(own)).reshape(shape(own))
    index = output.index[tuple(slice(*i) for i in _box(output, own))]
    return torch.from_numpy(inside.reshape(-1)[index.ravel()])


def rows_index(rows: NDArray[np.int64]) -> slice | Tensor:
    """Rows, as a slice if they are consecutive, to avoid a copy."""
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return torch.from_numpy(rows)
