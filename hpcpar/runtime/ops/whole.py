"""Parts of a PyTorch module on a rank's samples."""

from __future__ import annotations

import importlib
import math
from typing import Any

from hpcpar.errors import InputError, one_line
from hpcpar.kernels.interface import Array
from hpcpar.network.layers import Whole
from hpcpar.plan.boxes import Box
from hpcpar.runtime.ops.base import Context, Operator
from hpcpar.runtime.ops.pointwise import mask_key
from hpcpar.runtime.ops.registry import operator

#: Spreads the seeds of samples.
SEED_STEP = 0x9E3779B97F4A7C15


@operator(Whole)
class WholeOp(Operator):
    """Runs a program of PyTorch's operators; autograd computes its gradients."""

    replays = False

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        assert isinstance(ctx.layer, Whole)
        self.layer = ctx.layer
        try:
            self._torch: Any = importlib.import_module("torch")
        except ImportError as err:
            raise InputError(f"layer '{ctx.layer.name}' (whole) needs PyTorch: pip install "
                             "hpcpar[torch]") from err
        aten = importlib.import_module("hpcpar.network.aten")
        try:
            self._program = aten.AtenProgram(ctx.layer.program)
        except (LookupError, TypeError, ValueError) as err:  # a damaged file
            raise InputError(f"layer '{ctx.layer.name}' (whole): its program is damaged "
                             f"({one_line(err)}); read the network again from its module") from err
        #: This rank's part of whole output samples.
        self._own = (slice(None), *(slice(*interval) for interval in ctx.own[1:]))
        #: Inputs, weights and output of the last forward pass, for the backward pass.
        self._graph: tuple[list[Any], list[Any], Any] | None = None
        self._gradients: tuple[Any, ...] = ()

    def _forward(self) -> None:
        torch, training = self._torch, self.ctx.training
        self._gradients = ()
        with torch.set_grad_enabled(training):
            xs = [self._tensor(x).requires_grad_(training) for x in self.blocks.xs]
            ws = [w.requires_grad_(training) for w in self._weights()]
            y = self._program(xs, ws, self._drop if training else None, self._noise,
                              changes=training and not self.ctx.recomputes)
            y = y.reshape(-1, *self.layer.output)[self._own]
        self._graph = (xs, ws, y) if training else None
        self.y[...] = self._array(y)

    def _backward(self) -> None:
        for dx, gradient in zip(self.blocks.dxs, self._found(), strict=False):
            if dx is not None:
                dx[...] = gradient

    def _backward_weight(self) -> None:
        gradients = self._found()[len(self.blocks.xs):]
        flat, first = self.parameters.dweight.reshape(-1), 0
        for gradient in gradients:
            flat[first:first + gradient.size] = gradient.reshape(-1)
            first += gradient.size

    def _found(self) -> list[Array]:
        """Gradients of the inputs and the weights; the first backward step computes both."""
        if self._graph is not None:
            xs, ws, y = self._graph
            if y.requires_grad:
                self._gradients = self._torch.autograd.grad(
                    y, [*xs, *ws], self._tensor(self.dy), materialize_grads=True)
            else:  # noise alone
                self._gradients = tuple(map(self._torch.zeros_like, (*xs, *ws)))
            self._graph = None
        return [self._array(gradient) for gradient in self._gradients]

    def _weights(self) -> list[Any]:
        """The tensors of the weights, with the memory of the parameters."""
        if not self.layer.tensors:
            return []
        flat = self._tensor(self.parameters.weight).reshape(-1)
        sizes = [math.prod(shape) for shape, _, _ in self.layer.tensors]
        return [part.reshape(shape).detach() for part, (shape, _, _) in zip(
            flat.split(sizes), self.layer.tensors, strict=True)]

    def _tensor(self, array: Array) -> Any:
        """A tensor with an array's memory; on a GPU, PyTorch waits for the work so far."""
        on_host = not self.backend.works_later
        return (self._torch.from_numpy if on_host else self._torch.from_dlpack)(array)

    def _array(self, tensor: Any) -> Array:
        """An array with a tensor's memory; on a GPU, the backend waits for PyTorch."""
        tensor = tensor.detach().contiguous()
        on_host = not self.backend.works_later
        return tensor.numpy() if on_host else self.backend.xp.from_dlpack(tensor)

    def _drop(self, x: Any, axis: int, rate: float, number: int) -> Any:
        """A dropout's factors; as in `Dropout`, they depend on the sample's place in the batch."""
        ctx, (count, largest), samples = self.ctx, self._program.drops, self._samples
        n = samples[1] - samples[0]
        shape = (n, 1, x.numel() // n)
        mask = self.backend.empty(shape, self.y.dtype)
        self.backend.dropout_mask(self._key, (samples[0], number, 0), shape,
                                  (ctx.batch, count, largest), rate, mask)
        return _from_samples(self._tensor(mask), x, axis)

    def _noise(self, x: Any, axis: int, draw: Any, number: int) -> Any:
        """Random numbers like `x`; each sample has a generator of its own."""
        torch, (count, _), (start, stop) = self._torch, self._program.drops, self._samples
        seeds = [(self._key + (1 + sample * count + number) * SEED_STEP) % 2**64
                 for sample in range(start, stop)]
        rows = [draw(x.numel() // len(seeds), dtype=x.dtype,
                     generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        return _from_samples(torch.stack(rows), x, axis).to(x.device)

    @property
    def _key(self) -> int:
        ctx = self.ctx
        return ctx.key(lambda step: mask_key(ctx.seed, step, ctx.position))

    @property
    def _samples(self) -> tuple[int, int]:
        box: Box = self.ctx.own
        return box[0]


def _from_samples(values: Any, like: Any, axis: int) -> Any:
    """Values [samples, ...] in a shape with the samples at `axis`."""
    front = (like.shape[axis], *like.shape[:axis], *like.shape[axis + 1:])
    return values.reshape(front).movedim(0, axis)
