"""The base class of operators, and the context that an operator works in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from hpcpar.kernels.interface import Array, Backend, Bound, address
from hpcpar.kernels.numbers import Numbers
from hpcpar.network.layers import Layer, Shape
from hpcpar.plan.boxes import Box, items
from hpcpar.runtime.parameters import Parameters
from hpcpar.schedule.memory_plan.blocks import Blocks
from hpcpar.schedule.steps import Compute


class Caller(Protocol):
    """The code that computes the loss if no layer does; see `Outputs`."""

    def take(self, part: int, outputs: Sequence[Array]) -> None:
        """Receive a micro-batch's outputs on this rank; the arrays change after the call."""

    def gradients(self, part: int) -> Sequence[Array]:
        """The gradients of a micro-batch's outputs."""

    def take_gradient(self, part: int, gradient: Array) -> None:
        """Receive the gradient of a micro-batch's images on this rank (`Input.learns`); the array
        changes after the call.
        """


@dataclass
class Context:
    """Everything that an operator works with.

    Attributes
    ----------
    input_shapes : tuple of tuple of int
        The global shape of one sample of each input.
    batch : int
        Samples of the pass over all ranks (the mini-batch, or a micro-batch of it).
    needs : tuple of Box
        The rank's box of each input, in global indices.
    own : Box
        The rank's box of the output that it computes; partial sums where k cuts the reduction.
    moments : Box
        The rank's box of the moments (`hpcpar.schedule.moments`); empty for layers without any.
    local_statistics : bool
        Batch normalization uses the statistics of this rank's block alone.
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
    #: Position of the layer in the network; dropout's random key depends on it.
    position: int
    moments: Box = ()
    local_statistics: bool = False
    numbers: Numbers | None = None
    #: Passes of an iteration, of those that are counted alike.
    parts: int = 1
    #: Number of the micro-batch or FC pass.
    part: int = 0
    _step: int = 0
    #: False in evaluations, and in the layers that compute as there while others train.
    training: bool = True
    #: Momentum of running statistics in place of the layer's own.
    momentum: float | None = None
    #: True in a recomputed forward pass, which leaves statistics and running statistics unchanged.
    recomputes: bool = False
    #: Factor of the loss and its gradient: 1 / the number of samples in the mean.
    scale: float = 0.0
    #: Factor of the gradient alone: the loss scale.
    gradient_scale: float = 1.0
    #: Fraction of the samples, or of their pixels, that counts in the loss.
    share: float = 1.0
    labels: Array = None
    caller: Caller | None = None
    sums: Array = None
    #: [3, classes] pixel counts by class; see `Actions.counts`.
    counts: Array = None

    @property
    def step(self) -> int:
        """Number of the pass since the start of training, set before each pass."""
        if self.numbers is not None:
            self.numbers.require_value("the number of the pass")
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        self._step = step

    def key(self, of_step: Callable[[int], int]) -> int:
        """A kernel's 64-bit key, a function of the number of the pass."""
        numbers, parts, part = self.numbers, self.parts, self.part
        if numbers is None:
            return of_step(self.step)
        return numbers.key((self.position, part), lambda: of_step(numbers.iteration * parts + part))

    @property
    def need(self) -> Box:
        """The box of the first input."""
        return self.needs[0]

    @property
    def input_shape(self) -> Shape:
        return self.input_shapes[0]


class Operator:
    """Computes a layer on one rank's block; each subclass implements a layer.

    Attributes
    ----------
    empty : bool
        True where this rank computes no output (more parts than indices, or the layer is on other
        ranks).
    moments, moments_gradient : array or None
        [own channels, 2] or [own samples, groups, 2] float64 sums of a normalization. Ranks add
        them between the steps that compute and use them.
    """

    moments: Array = None
    moments_gradient: Array = None
    #: In mixed precision, blocks have 16 bits. False: the operator gets float32 copies of them in
    #: every step, which it must not keep.
    takes_bfloat16: ClassVar[bool] = False
    #: A GPU may launch the operator's kernels again without calling it. An operator from outside of
    #: this package says so where it keeps no state but arrays.
    replays: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "replays" not in vars(cls):
            cls.replays = cls.__module__.startswith("hpcpar.")

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.backend = ctx.backend
        self.blocks = ctx.blocks
        self.empty = items(ctx.own) == 0

    @property
    def kept_bytes(self) -> int:
        """Bytes of the operator's own arrays: positions of maxima, scales, masks, statistics."""
        return sum(int(a.nbytes) for a in vars(self).values() if hasattr(a, "nbytes"))

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
        """Compute `moments` of this rank's block (normalizations)."""
        raise NotImplementedError

    def forward(self) -> None:
        """Compute y from the inputs."""
        if not self.empty:
            self._forward()

    def interior(self, box: Box) -> None:
        """Compute y on `box` only (convolutions, while a halo travels)."""
        raise NotImplementedError

    def backward(self) -> None:
        """Compute input gradients from dy: overwrite each `blocks.dxs` array that is not None."""
        if not self.empty:
            self._backward()
            return
        for dx in self.blocks.dxs:
            if dx is not None:
                dx[...] = 0

    def backward_weight(self) -> None:
        """Overwrite the weight gradient, computed from inputs and dy; normalizations also compute
        `moments_gradient`.

        Synchronized batch normalization computes only `moments_gradient`; see `finish_weight`.
        """
        if self.empty:
            self.parameters.grad[...] = 0
        else:
            self._backward_weight()

    def finish_weight(self) -> None:
        """Write the parts of the weight gradient that need sums over ranks. It may be called more
        than once before the update.

        Only synchronized batch normalization needs it: once ranks have added `moments_gradient`, it
        is the gradient of weight and bias on every rank, so they must not add it again. `backward`
        cannot do this, because a layer without trained layers before it has no backward step.
        """

    def calls(self, step: Compute) -> Sequence[Bound]:
        """The kernels that do a step of a training iteration on a nonempty block, in order, for
        `Backend.fuse`; none where there is more to do than to call them.
        """
        return ()

    # -- on nonempty blocks ------------------------------------------------------------------------
    def _forward(self) -> None:
        raise NotImplementedError

    def _backward(self) -> None:
        raise NotImplementedError

    def _backward_weight(self) -> None:
        raise NotImplementedError

    def _clear_unread(self, inner: tuple[slice, ...]) -> None:
        """Clear dx if this rank's windows read only the part `inner` of the input."""
        if self.dx[inner].shape != self.dx.shape:
            self.dx[...] = 0

    def _move(self, x: Array, out: Array) -> None:
        """Copy, unless both are the same block: blocks with equal addresses are equal."""
        if address(x) != address(out):
            self.backend.copy(x, out)
