"""Boxes and rows of the executor on a module's tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcpar.errors import InputError
from hpcpar.network.layers.base import Shape, image_of, shape_text
from hpcpar.network.read.torch_module import TracedModule
from hpcpar.plan.boxes import Box, shape, whole_box
from hpcpar.torch import samples
from hpcpar.torch.autocast import require_as_planned
from hpcpar.torch.engine import Engine


class OwnBoxes:
    """Cuts images and labels to a rank's boxes, and shapes the outputs in them."""

    def __init__(self, engine: Engine, traced: TracedModule) -> None:
        self.engine, self._traced, self._image = engine, traced, traced.input
        self._batch = engine.plan.batch

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
        extents, pixels = self._traced.outputs[output][1:], self.pixels(output)[1:]
        box, axes = self._samples(labels, rows).to(self.engine.tensors.device), len(extents)
        if not extents or labels.dim() <= axes:
            return box
        given = tuple(labels.shape[-axes:])
        if given != extents:
            self._require_other(given, output)
            return box
        place: tuple[Any, ...] = (..., *(slice(*i) for i in pixels))
        return box[place]

    def _require_other(self, given: Shape, output: int) -> None:
        """Refuse labels whose last axes are the extents of another image than the output."""
        images = {self._image[1:], *(shape[1:] for shape in self._traced.outputs)}
        boxes = (self.engine.pixels(output, rank) for rank in range(self.engine.world.size))
        images |= {shape(in_module(box, self._traced.outputs[output])[1:]) for box in boxes}
        if given in images:
            extents = shape_text(self._traced.outputs[output][1:])
            raise InputError(f"labels of {shape_text(given)} pixels for output {output}, which has "
                             f"{extents}: pass labels of {extents}, for example reduced by "
                             "labels[..., ::2, ::2], or name their output with model.local(labels, "
                             "of=NUMBER)")

    def pixels(self, output: int) -> Box:
        """This rank's box of a sample of an output, with the module's axes."""
        return in_module(self.engine.pixels(output), self._traced.outputs[output])

    def taken(self, images: Tensor, training: bool) -> Tensor:
        """This rank's box of the images, in the executor's shape."""
        require_as_planned(self.engine.tensors.device, self.engine.plan)
        if images.requires_grad and torch.is_grad_enabled():
            raise InputError("the images require a gradient, which a parallel model does not "
                             "compute: put the layers before the model into its module, or pass "
                             "images.detach()")
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

    def shaped(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs with the module's axes."""
        shaped = []
        for i, out in enumerate(outputs):
            axes = len(self._traced.outputs[i])
            box = shape(self.pixels(i)) if axes != out.dim() - 1 else out.shape[1:]
            shaped.append(out.reshape(len(out), *box))
        return shaped

    def joined(self, gradients: Sequence[Tensor], rows: int) -> list[Tensor]:
        """Gradients of the outputs in the executor's shapes."""
        shapes = (shape(self.engine.pixels(i)) for i in range(len(gradients)))
        return [g.detach().contiguous().reshape(rows, *box)
                for g, box in zip(gradients, shapes, strict=True)]


def in_module(box: Box, module_shape: Shape) -> Box:
    """The box of a sample with the module's axes.

    The executor treats a signal as an image with one row, and features as an image of one pixel.
    """
    if len(box) == len(module_shape):
        return box
    if len(module_shape) == 2:
        return box[0], box[2] if box[1][1] > box[1][0] else (0, 0)
    return (box[0], *((0, 1) for _ in module_shape[1:]))


def rows_index(rows: NDArray[np.int64]) -> slice | Tensor:
    """Rows, as a slice if they are consecutive, to avoid a copy."""
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return torch.from_numpy(rows)
