"""What every layer on a block has in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hpcpar.kernels.interface import Array, Backend
from hpcpar.network.layers import Layer, Shape
from hpcpar.plan.boxes import Box, items
from hpcpar.train.parameters import Parameters
from hpcpar.train.storage import Blocks


@dataclass
class Context:
    """What a layer on a block works with.

    Attributes
    ----------
    input_shape : tuple of int
        A sample of the layer's (global) input.
    need, own : Box
        The rank's boxes of the layer's input and output, in global indices.
    tick : callable
        Lets communication progress during long kernels.
    """

    backend: Backend
    layer: Layer
    input_shape: Shape
    batch: int
    need: Box
    own: Box
    blocks: Blocks
    parameters: Parameters | None
    tick: Callable[[], None]
    seed: int
    #: Position of the layer in the network: a part of the random key of dropout.
    position: int
    #: The iteration, set before each one.
    step: int = 0
    training: bool = True
    labels: Array = None
    sums: Array = field(default=None)


class Op:
    """A layer on one rank's block. Subclasses fill in what their layer computes."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.backend = ctx.backend
        self.blocks = ctx.blocks

    @property
    def empty(self) -> bool:
        """True where this rank owns no output (more parts than indices)."""
        return items(self.ctx.own) == 0

    def forward(self) -> None:
        """y from x."""

    def interior(self, box: Box) -> None:
        """y on `box` only (convolutions, while a halo travels)."""
        raise NotImplementedError

    def backward(self) -> None:
        """dx from dy."""

    def backward_weight(self) -> None:
        """The gradient of the weights from x and dy."""
