"""Base class of the layers on a block, and what they work with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hpcpar.kernels.interface import Array, Backend, address
from hpcpar.network.layers import Layer, Shape
from hpcpar.plan.boxes import Box, items
from hpcpar.runtime.parameters import Parameters
from hpcpar.schedule.memory_plan.blocks import Blocks


class Caller(Protocol):
    """Who computes the loss, where that is not a layer's: see `Outputs`."""

    def take(self, part: int, outputs: Sequence[Array]) -> None:
        """Hears of the outputs of a micro-batch on this rank; they change after the call."""

    def gradients(self, part: int) -> Sequence[Array]:
        """The gradients of a micro-batch's outputs."""


@dataclass
class Context:
    """Everything that a layer on a block works with.

    Attributes
    ----------
    input_shapes : tuple of tuple of int
        A sample of each of the layer's (global) inputs.
    batch : int
        Samples of a pass through the network, over all ranks (the mini-batch, or a micro-batch of
        it).
    needs : tuple of Box
        The rank's box of each input, in global indices.
    own : Box
        The rank's box of what it computes of the output (of partial sums, where the configuration
        cuts the reduction, k).
    moments : Box
        The part of the sums behind means and variances that this rank holds; empty in layers
        without.
    local_statistics : bool
        Batch normalisation by the statistics of this rank's block alone.
    tick : callable
        Lets communication progress during long kernels.
    """

    backend: Backend
    layer: Layer
    input_shapes: tuple[Shape, ...]
    batch: int
    needs: tuple[Box, ...]
    own: Box
    blocks: Blocks[Array]
    parameters: Parameters | None
    tick: Callable[[], None]
    seed: int
    #: Position of the layer in the network: a part of the random key of dropout.
    position: int
    moments: Box = ()
    local_statistics: bool = False
    #: The iteration, set before each one.
    step: int = 0
    #: Number of the micro-batch or FC pass.
    part: int = 0
    training: bool = True
    #: True in a recomputed forward pass: statistics and running statistics stay as they were.
    again: bool = False
    #: Factor of the loss's gradient (1 / samples whose mean is minimised).
    scale: float = 0.0
    #: Part of the samples, or of their pixels, that counts in the loss.
    share: float = 1.0
    labels: Array = None
    caller: Caller | None = None
    sums: Array = None
    #: [3, classes] to count pixels by class in.
    counts: Array = None

    @property
    def need(self) -> Box:
        """The box of the first input."""
        return self.needs[0]

    @property
    def input_shape(self) -> Shape:
        return self.input_shapes[0]


class Operator:
    """A layer on one rank's block. Subclasses fill in what their layer computes.

    Attributes
    ----------
    empty : bool
        True where this rank computes no output (more parts than indices, or the layer lives on
        other ranks).
    moments, moments_gradient : array or None
        [own channels, 2] or [own samples, groups, 2] float64 sums of a normalisation, added over
        ranks between the steps that make and use them.
    """

    moments: Array = None
    moments_gradient: Array = None

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.backend = ctx.backend
        self.blocks = ctx.blocks
        self.empty = items(ctx.own) == 0

    @property
    def kept_bytes(self) -> int:
        """Bytes of the layer's own arrays: places of maxima, scales, masks, statistics."""
        own = (a for a in vars(self).values() if hasattr(a, "nbytes"))
        return sum(int(a.nbytes) for a in own)

    @property
    def parameters(self) -> Parameters:
        """The layer's weights and their gradients."""
        assert self.ctx.parameters is not None
        return self.ctx.parameters

    @property
    def x(self) -> Array:
        """The first input."""
        return self.blocks.x

    @property
    def dx(self) -> Array:
        """The gradient of the first input."""
        return self.blocks.dx

    @property
    def y(self) -> Array:
        """The output."""
        return self.blocks.y

    @property
    def dy(self) -> Array:
        """The gradient of the output."""
        return self.blocks.dy

    # -- steps -------------------------------------------------------------------------------------
    def statistics(self) -> None:
        """`moments` of this rank's block (normalisations)."""
        raise NotImplementedError

    def forward(self) -> None:
        """y from the inputs."""
        if not self.empty:
            self._forward()

    def interior(self, box: Box) -> None:
        """y on `box` only (convolutions, while a halo travels)."""
        raise NotImplementedError

    def backward(self) -> None:
        """The gradients of the inputs from dy: every array of `blocks.dxs` that is not None is
        overwritten.
        """
        if not self.empty:
            self._backward()
            return
        for dx in self.blocks.dxs:
            if dx is not None:
                dx[...] = 0

    def backward_weight(self) -> None:
        """The gradient of the weights from inputs and dy (and `moments_gradient`, normalisations);
        overwritten, not added.

        Batch normalisation by the whole batch makes only `moments_gradient` here: see
        `finish_weight`.
        """
        if self.empty:
            self.parameters.grad[...] = 0
        else:
            self._backward_weight()

    def finish_weight(self) -> None:
        """Write what must wait for sums over ranks into the gradient of the weights; called before
        the update, also more than once.

        Batch normalisation by the whole batch: `moments_gradient`, once added over ranks, is the
        gradient of weight and bias on each of them, and may not be added again. This is not part of
        `backward`: a layer before which nothing is trained has no backward step, yet gradients of
        its weights. Every other layer has nothing to finish.
        """

    # -- on blocks that are not empty --------------------------------------------------------------
    def _forward(self) -> None:
        raise NotImplementedError

    def _backward(self) -> None:
        raise NotImplementedError

    def _backward_weight(self) -> None:
        raise NotImplementedError

    def _clear_unread(self, inner: tuple[slice, ...]) -> None:
        """Zero dx where the windows of this rank read only a part of the input, `inner`."""
        if self.dx[inner].shape != self.dx.shape:
            self.dx[...] = 0

    def _move(self, x: Array, out: Array) -> None:
        """Copy, unless both are the same memory: blocks that begin at one place never differ
        elsewhere.
        """
        if address(x) != address(out):
            self.backend.copy(x, out)
