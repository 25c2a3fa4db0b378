"""Serial reference: training of the same networks in PyTorch, float64, in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    BatchNorm,
    Dropout,
    Input,
    Layer,
    MeanSquaredError,
    Normalization,
)
from hpcpar.plan.boxes import block
from hpcpar.plan.optimizers import OPTIMIZERS
from hpcpar.runtime import parameters
from hpcpar.runtime.ops.pointwise import mask_key
from hpcpar.schedule.one_weird_trick import switch

#: Maps (layer, samples of the pass) to blocks with separate normalization statistics (see
#: `reference_layers.Block`).
Blocks = Callable[[Layer, int], list[tuple[slice, ...]]]


def torch_optimizer(name: str, *numbers: float) -> tuple[Any, Mapping[str, Any]]:
    """PyTorch's class for an optimizer, and its options for a rate, momentum and decay."""
    import torch

    equivalent = OPTIMIZERS[name].torch
    assert equivalent is not None
    class_name, options = equivalent(*numbers)
    return getattr(torch.optim, class_name), options


class Reference:
    """Serial training of a network in PyTorch.

    Parameters
    ----------
    seed : int
        Seed of initial weights and dropout.
    optimizer : str
        A name in `hpcpar.plan.optimizers.OPTIMIZERS`.
    microbatches : int
        Number of parts that the batch is divided into; each part has its own statistics.
    fc_passes : sequence of arrays of int, optional
        Samples of each pass through the layers from `hpcpar.schedule.pipeline_order.switch` on (One
        Weird Trick with a variable batch size). These layers minimize the mean over a pass's
        samples and are updated after it. The layers before get the gradient of the mean over all.
    blocks : callable, optional
        Blocks of the pass to normalize separately; by default, the whole pass is one block.

    Attributes
    ----------
    outputs, gradients : dict of ndarray
        Outputs of all layers but the loss in the last iteration, and their gradients, for the whole
        batch [N, ...] in the order of its samples.
    weight_gradients : dict of list of ndarray
        Gradients of weight and bias by layer; from the last pass in layers with fc_passes.
    running : dict of ndarray
        [blocks, 2, C] running mean and variance by batch normalization.
    """

    def __init__(self, network: Network, seed: int, *, optimizer: str = "momentum",
                 microbatches: int = 1, fc_passes: Sequence[np.ndarray] | None = None,
                 blocks: Blocks | None = None) -> None:
        import torch  # not at the top, because all ranks import this file and loading takes long

        from tests import reference_layers

        self.torch, self.compute, self.network, self.seed = torch, reference_layers, network, seed
        self.optimizer, self.microbatches, self.fc_passes, self.blocks = (
            optimizer, microbatches, fc_passes, blocks)
        self.weights: dict[str, list[Any]] = {}
        self.running: dict[str, np.ndarray] = {}
        for layer in network.weighted:
            self.weights[layer.name] = [t.requires_grad_() for t in self._initial(layer)]
        #: PyTorch's optimizer for each layer, except SGD.
        self._torch: dict[str, Any] = {}
        self._velocity = {k: [torch.zeros_like(t) for t in v] for k, v in self.weights.items()}
        self.outputs: dict[str, np.ndarray] = {}
        self.gradients: dict[str, np.ndarray] = {}
        self.weight_gradients: dict[str, list[np.ndarray]] = {}

    def _initial(self, layer: Layer) -> list[Any]:
        """Initial weight and bias; independent of the plan."""
        torch, shape = self.torch, layer.weight_shape(self.network.input_shape(layer))
        if isinstance(layer, Normalization):
            scale = parameters.initial_scale(self.network, layer)
            return [torch.full(shape, scale, dtype=torch.float64),
                    torch.zeros(shape, dtype=torch.float64)]
        rows = parameters.initial_rows(self.network, layer, self.seed, 0, shape[0], "float64")
        out = [torch.from_numpy(rows)]
        if layer.bias_shape(self.network.input_shape(layer)):
            out.append(torch.zeros(shape[0], dtype=torch.float64))
        return out

    # -- passes ------------------------------------------------------------------------------------
    def mask(self, layer: Dropout, shape: tuple[int, ...], number: int) -> np.ndarray:
        """Dropout mask of a layer in pass `number` = iteration * passes + pass."""
        axes = {"sample": 1, "channel": 2, "value": len(shape)}[layer.unit]
        key = mask_key(self.seed, number, self.network.layers.index(layer))
        mask = self.compute.dropout_mask(key, shape[:axes], layer.rate)
        return mask.reshape(shape[:axes] + (1,) * (len(shape) - axes))

    def _forward(self, layers: Iterable[Layer], have: dict[str, Any], number: int) -> None:
        """Compute the outputs of `layers` from the outputs of earlier layers in `have`.

        `number` is the number of the pass, or -1 for evaluation.
        """
        for layer in layers:
            if layer is self.network.layers[-1] or isinstance(layer, Input):
                continue
            xs, weights = [have[name] for name in layer.inputs], self.weights.get(layer.name, [])
            if isinstance(layer, BatchNorm) and number < 0:
                (mean, variance), = self.torch.from_numpy(self._running(layer, 1))
                y = self.compute.scaled(xs[0], mean, variance, *(weights or (1, 0)), layer.eps)
            elif isinstance(layer, BatchNorm):
                blocks = (
                    self.blocks(layer, len(xs[0]))
                    if self.blocks
                    else [(slice(None),) * (xs[0].ndim - 1)]
                )
                y, statistics = self.compute.normalize(xs[0], *(weights or (1, 0)), layer.eps,
                                                       blocks)
                for running, new in zip(self._running(layer, len(blocks)), statistics, strict=True):
                    if new is not None:
                        running += layer.momentum * (new.numpy() - running)
            elif isinstance(layer, Dropout):
                y = (
                    xs[0]
                    if number < 0
                    else xs[0] * self.torch.from_numpy(self.mask(layer, tuple(xs[0].shape), number))
                )
            else:
                y = self.compute.forward(layer, xs, weights)
            if number >= 0:
                y.retain_grad()
            have[layer.name] = y

    def _running(self, layer: Layer, blocks: int) -> np.ndarray:
        initial = np.zeros((blocks, 2, self.network.shapes[layer.name][0]))
        initial[:, 1] = 1
        return self.running.setdefault(layer.name, initial)

    def _loss(self, have: dict[str, Any], targets: np.ndarray, samples: int) -> Any:
        last = self.network.layers[-1]
        kind = np.float64 if isinstance(last, MeanSquaredError) else np.int64
        return self.compute.loss(last, have[last.inputs[0]], targets.astype(kind), samples)

    def _keep(self, have: dict[str, Any], samples: Any, batch: int) -> None:
        """Copy the outputs and gradients of a pass to their positions in the whole batch."""
        for name, tensor in have.items():
            for kept, piece in ((self.outputs, tensor.detach()), (self.gradients, tensor.grad)):
                kept.setdefault(name, np.zeros((batch, *tensor.shape[1:])))[samples] = piece.numpy()

    # -- training ----------------------------------------------------------------------------------
    def iterate(self, images: np.ndarray, targets: np.ndarray, step: int, rate: float,
                momentum: float, decay: float) -> float:
        """Train one iteration.

        Parameters
        ----------
        images : ndarray
            [N, C, ...].
        targets : ndarray
            [N] labels, or [N, outputs] for a mean squared error.
        step : int
            Number of the iteration.

        Returns
        -------
        float
            Mean loss of the batch before the update (with fc_passes: before each pass's update).
        """
        self.outputs, self.gradients = {}, {}
        if self.fc_passes is None:
            value = self._microbatches(images, targets, step)
            self._update(self.network.layers, rate, momentum, decay)
            return value
        return self._in_fc_passes(images, targets, step, self.fc_passes,
                              lambda layers: self._update(layers, rate, momentum, decay))

    def _microbatches(self, images: np.ndarray, targets: np.ndarray, step: int) -> float:
        """Forward and backward pass of all micro-batches, with accumulated weight gradients."""
        value, count = 0.0, len(images)
        for m in range(self.microbatches):
            part = slice(*block(count, self.microbatches, m))
            if part.start == part.stop:
                continue
            have = self._input(images[part])
            self._forward(self.network.layers, have, step * self.microbatches + m)
            loss = self._loss(have, targets[part], count)
            loss.backward()
            value += loss.item()
            self._keep(have, part, count)
        return value

    def _in_fc_passes(self, images: np.ndarray, targets: np.ndarray, step: int,
                      fc_passes: Sequence[np.ndarray],
                      update: Callable[[Sequence[Layer]], None]) -> float:
        """An iteration in which the layers from the switch on take one FC pass at a time."""
        at, count, value = switch(self.network), len(images), 0.0
        before, after = self.network.layers[:at], self.network.layers[at:]
        have = self._input(images)
        self._forward(before, have, step)
        crossing = sorted({name for layer in after for name in layer.inputs} & set(have))
        gradients = {name: self.torch.zeros_like(have[name]) for name in crossing}
        for i, samples in enumerate(fc_passes):
            inputs = {name: have[name][samples].detach().requires_grad_() for name in crossing}
            in_pass = dict(inputs)
            self._forward(after, in_pass, step * len(fc_passes) + i)
            loss = self._loss(in_pass, targets[samples], len(samples))
            loss.backward()
            share = len(samples) / count
            value += loss.item() * share
            for name, x in inputs.items():
                gradients[name][samples] = x.grad * share
                del in_pass[name]
            self._keep(in_pass, samples, count)
            update(after)
        self.torch.autograd.backward([have[name] for name in crossing],
                                     [gradients[name] for name in crossing])
        self._keep(have, slice(None), count)
        update(before)
        return value

    def _input(self, images: np.ndarray) -> dict[str, Any]:
        return {self.network.layers[0].name: self.torch.from_numpy(
            images.astype(np.float64)).requires_grad_()}

    def _update(self, layers: Sequence[Layer], rate: float, momentum: float, decay: float) -> None:
        """Update the weights of `layers` from their gradients."""
        for layer in layers:
            if not layer.has_weights:
                continue
            tensors = self.weights[layer.name]
            self.weight_gradients[layer.name] = [t.grad.numpy().copy() for t in tensors]
            if self.optimizer in ("momentum", "sgd") and layer.learns:
                with self.torch.no_grad():
                    for t, v in zip(tensors, self._velocity[layer.name], strict=True):
                        v.mul_(momentum if self.optimizer == "momentum"
                               else 0.0).sub_(rate * (t.grad + decay * t))
                        t.add_(v)
            elif layer.learns:
                self._step(layer.name, tensors, rate, momentum, decay)
            for t in tensors:
                t.grad = None

    def _step(self, name: str, tensors: list[Any], *numbers: float) -> None:
        """Update by PyTorch's optimizer."""
        optimizer, options = torch_optimizer(self.optimizer, *numbers)
        if name not in self._torch:
            self._torch[name] = optimizer(tensors, **options)
        self._torch[name].param_groups[0].update(options)
        self._torch[name].step()

    def evaluate(self, images: np.ndarray, targets: np.ndarray) -> float:
        """Loss without dropout, with synchronized running statistics. Also sets `outputs`."""
        with self.torch.no_grad():
            have = self._input(images)
            self._forward(self.network.layers, have, -1)
            self.outputs, self.gradients = {name: t.detach().numpy().copy()
                                            for name, t in have.items()}, {}
            return float(self._loss(have, targets, len(images)))
