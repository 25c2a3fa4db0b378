"""The base class of all layers: shapes, weights and flops, per sample.

A sample's shape is ``(C,)`` for features, ``(C, H, W)`` for an image or ``(C, D, H, W)`` for a
volume; a signal ``(C, W)`` is an image with one row, ``(C, 1, W)``. The sample axis ``n`` comes
first in every tensor. Flops count a multiply and an add as two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from hpcpar.errors import InputError
from hpcpar.network.receptive_field import Relation, Same

#: Extents of a sample, or one number for each image axis.
Shape = tuple[Annotated[int, Meta(ge=0, le=10**9)], ...]
Pair = tuple[int, int]

#: The largest float32, which stands for infinity in files.
LARGEST_FLOAT = 3.4028234663852886e38
#: Axis names of a tensor by its number of dimensions, the sample axis included.
AXES: dict[int, tuple[str, ...]] = {
    1: ("n",),
    2: ("n", "c"),
    4: ("n", "c", "h", "w"),
    5: ("n", "c", "d", "h", "w"),
}


def axes_of(sample: Shape) -> tuple[str, ...]:
    """Axis names of the batch tensor whose samples have this shape."""
    return AXES[len(sample) + 1]


def image_of(shape: Shape) -> Shape:
    """The shape itself; of a signal (C, W) that of an image with one row."""
    return (shape[0], 1, shape[1]) if len(shape) == 2 else tuple(shape)


def shape_text(shape: Iterable[object]) -> str:
    """Extents joined by x, for example ``3x224x224``."""
    return "x".join(map(str, shape))


@dataclass(frozen=True)
class PassWork:
    """Work of one pass of a layer: flops, and values read or written.

    Attributes
    ----------
    flops : float
        As a multiple of `Layer.forward_flops`.
    inputs, outputs, weights : int
        How often each of their values is read or written.
    """

    flops: float = 1.0
    inputs: int = 1
    outputs: int = 1
    weights: int = 1


NO_WORK = PassWork(0.0, 0, 0, 0)


@dataclass(frozen=True)
class Layer:
    """One operation of a network, and everything that planning, pricing and execution ask of it.

    A subclass states what differs from the defaults here; `hpcpar.runtime.ops.registry.operator`
    registers what computes it. Parameters named `x` are the sample shape of the first input. Only
    layers with `merges` read further inputs.

    Attributes
    ----------
    inputs : tuple of str
        Names of the layers whose outputs this layer reads.
    weights : str
        How they are trained: "trained", "frozen", or "otherwise", where they are computed from
        other parameters or frozen in part. Networks with the last can be planned, but not run.
    weights_of : str
        Name of the earlier layer whose weights this layer shares (tied weights); empty: it has its
        own.
    """

    name: str
    inputs: tuple[str, ...] = ()
    weights: Literal["trained", "frozen", "otherwise"] = field(default="trained", kw_only=True)
    weights_of: str = field(default="", kw_only=True)
    #: A word for tables, messages and measured times.
    kind: ClassVar[str] = ""
    #: True if an output element depends on the element of each input at the same place only.
    elementwise: ClassVar[bool] = False
    #: True for matrix products of weights and inputs: convolutions and linear layers, the layers
    #: i = 1..L of the papers.
    is_matmul: ClassVar[bool] = False
    #: True if the layer reads two or more inputs.
    merges: ClassVar[bool] = False
    #: The fewest inputs of such a layer.
    least_inputs: ClassVar[int] = 2
    #: True for the last layer of a network, which training minimises.
    is_loss: ClassVar[bool] = False
    #: Tensors that the backward pass reads again: "input", "output".
    backward_reads: ClassVar[tuple[str, ...]] = ("input", "output")
    #: True if the layer that reads the output may write over it: no backward pass reads it here.
    lends_output: ClassVar[bool] = False
    #: True if the operator can compute a part of the outputs alone, while a halo travels.
    has_interior: ClassVar[bool] = False
    #: Pairs of sums that ranks add up, as behind means and variances: over the "batch", of each
    #: "sample", or none.
    statistics: ClassVar[str] = ""
    #: Bytes kept for each of these sums: forward, backward, mean, deviation.
    sums_bytes: ClassVar[int] = 24
    #: Kernels that the layer's resemble where it multiplies no matrices: "activation",
    #: "normalisation", "pooling", "lrn" or "other".
    kernel_family: ClassVar[str] = "other"
    #: True if the result depends on a random number of the sample's place in the batch.
    random: ClassVar[bool] = False

    def statistics_groups(self, channels: int) -> int:
        """Groups of the channels that have a pair of sums each, of each sample."""
        return 1

    @property
    def in_place(self) -> bool:
        """True if the output may be written over the input, and the input's gradient over the
        output's.
        """
        return False

    @property
    def is_view(self) -> bool:
        """True if the output has the input's values: in another shape, or at `inset`."""
        return False

    def inset(self, x: Shape) -> Shape:
        """Offset of the input in the output, along the axes of a sample, where the output contains
        the input unchanged; else ().
        """
        return ()

    def lends_to(self, reader: Layer) -> bool:
        """True where `reader`, if it works in place, may write over this layer's output."""
        return self.lends_output

    @property
    def has_weights(self) -> bool:
        """True if the layer has weights."""
        return False

    @property
    def learns(self) -> bool:
        """True if the layer has weights that are trained."""
        return self.has_weights and self.weights != "frozen"

    @property
    def owns_weights(self) -> bool:
        """True if the layer has weights of its own."""
        return self.has_weights and not self.weights_of

    @property
    def splits_channels(self) -> bool:
        """True if the output's channels may be cut."""
        return True

    @property
    def gathers_channels(self) -> bool:
        """True if strategies that cut channels keep those of this layer's output together."""
        return False

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        """Shape of an output sample, from the sample shapes of all inputs."""
        return x

    def relation(self, axis: str, x: Shape, which: int = 0) -> Relation:
        """Receptive field along `axis` in input number `which`, whose sample shape is `x`."""
        return Same()

    def weight_shape(self, x: Shape) -> Shape:
        """Shape ``[out, in, ...]`` of the weight, or () without weights.

        Row i of the weight produces output channel i.
        """
        return ()

    def exchanged(self, weight: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """A weight of PyTorch with this project's order of axes, or the reverse."""
        return weight

    def bias_shape(self, x: Shape) -> Shape:
        """Shape of the bias, or () without a bias."""
        return ()

    def granule(self, x: Shape) -> int:
        """Number of consecutive output features that must stay on one rank.

        Flatten keeps the pixels of a channel together.
        """
        return 1

    def weight_items(self, x: Shape) -> int:
        """Number of weights and biases that it uses, its own or another layer's."""
        shapes = (self.weight_shape(x), self.bias_shape(x))
        return sum(math.prod(shape) for shape in shapes if shape)

    def parameters(self, x: Shape) -> int:
        """Number of weights and biases of its own."""
        return 0 if self.weights_of else self.weight_items(x)

    def buffers(self, x: Shape) -> int:
        """Number of values that persist between iterations without training: running statistics."""
        return 0

    # -- initial weights ---------------------------------------------------------------------------
    def fan(self, x: Shape) -> int:
        """Products in the sum behind an output, by which initial weights are scaled."""
        return math.prod(self.weight_shape(x)[1:])

    @property
    def kept_share(self) -> float:
        """Share of the outputs that training keeps; the others are zero."""
        return 1.0

    def initial_row(self, stream: np.random.Generator, shape: Shape, deviation: float
                    ) -> npt.NDArray[np.float64]:
        """Initial weights of one output channel; biases begin at zero.

        Parameters
        ----------
        stream : numpy.random.Generator
            The channel's own, so that every plan starts alike.
        shape : tuple of int
            ``weight_shape(x)[1:]``.
        deviation : float
            He's for ReLU networks, of the place in the network.
        """
        return stream.standard_normal(shape) * deviation

    # -- work --------------------------------------------------------------------------------------
    def forward_flops(self, x: Shape) -> float:
        """Flops of the forward pass for one sample."""
        return float(math.prod(self.output_shape(x)))

    def work(self, op: str) -> PassWork:
        """The work of one pass.

        Parameters
        ----------
        op : str
            ``forward``, ``backward`` (gradient of the inputs), ``backward_weight`` or
            ``statistics``.
        """
        if op == "backward" and not self.is_matmul:
            # the gradients come on top of what the forward pass kept
            return PassWork(inputs=1 if self.elementwise else 2, outputs=2)
        return PassWork()

    def variant(self, channels: int, whole: int) -> str:
        """Options on which the time of an operation depends, as text.

        Parameters
        ----------
        channels, whole : int
            Input channels of the rank, and of the layer.
        """
        return ""

    def kept_bytes(self, item_bytes: int) -> int:
        """Bytes that the operator keeps for the backward pass, for each output."""
        return 0


@dataclass(frozen=True)
class Input(Layer):
    """The samples of the data file."""

    shape: Shape = ()
    kind: ClassVar[str] = "input"
    backward_reads: ClassVar[tuple[str, ...]] = ()
    gathers_channels: ClassVar[bool] = True

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        shape = image_of(self.shape)
        if len(shape) + 1 not in AXES or not shape or min(shape) < 1:
            raise InputError(f"input '{self.name}' has shape {self.shape}; give positive numbers "
                             "as (C,), (C, W), (C, H, W) or (C, D, H, W)")
        return shape

    def forward_flops(self, x: Shape) -> float:
        return 0.0


def need_image(layer: Layer, x: Shape, dimensions: int | None = None) -> None:
    """Raise an InputError unless `x` is an image, with this number of image axes if given."""
    fits = len(x) - 1 == dimensions if dimensions else len(x) >= 3
    if not fits:
        kinds = {2: "an image C x H x W", 3: "a volume C x D x H x W", None: "an image"}
        raise InputError(f"layer '{layer.name}' ({layer.kind}) needs {kinds[dimensions]}, "
                         f"but its input has shape {x}")


def need_features(layer: Layer, x: Shape) -> None:
    """Raise an InputError unless `x` is a vector."""
    if len(x) != 1:
        raise InputError(f"layer '{layer.name}' ({layer.kind}) needs features, but its input has "
                         f"shape {x}; put a flatten before it")
