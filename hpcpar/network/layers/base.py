"""The base class of all layers: shapes, weights and flops, per sample.

A sample's shape is ``(C,)`` for features, ``(C, H, W)`` for an image or ``(C, D, H, W)`` for a
volume; a signal ``(C, W)`` is an image with one row, ``(C, 1, W)``. The sample axis ``n`` comes
first in every tensor. A multiply-add counts as two flops.
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
from hpcpar.network.layers.formula import Steps
from hpcpar.network.receptive_field import Relation, Same

#: Extents of a sample, or one number for each image axis.
Shape = tuple[Annotated[int, Meta(ge=0, le=10**9)], ...]
Pair = tuple[int, int]

#: The largest float32; it stands for infinity in files.
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
    """The shape with signals (C, W) as images with one row (C, 1, W)."""
    return (shape[0], 1, shape[1]) if len(shape) == 2 else tuple(shape)


def shape_text(shape: Iterable[object]) -> str:
    """Extents joined by x, for example ``3x224x224``."""
    return "x".join(map(str, shape))


@dataclass(frozen=True)
class PassWork:
    """Work of one pass of a layer: flops and memory traffic.

    Attributes
    ----------
    flops : float
        Multiple of `Layer.forward_flops`.
    inputs, outputs, weights : int
        Number of times that each input, output or weight is read or written.
    """

    flops: float = 1.0
    inputs: int = 1
    outputs: int = 1
    weights: int = 1


NO_WORK = PassWork(0.0, 0, 0, 0)


@dataclass(frozen=True)
class Layer:
    """One operation of a network, with everything that planning, pricing and execution need.

    A subclass overrides the defaults that do not fit it; `hpcpar.runtime.ops.registry.operator`
    registers its operator. Parameters named `x` are the sample shape of the first input. Only
    layers with `merges` read several inputs.

    Attributes
    ----------
    inputs : tuple of str
        Names of the layers whose outputs this layer reads.
    weights : str
        Training of the weights: "trained", "frozen", or "otherwise" if they are partly frozen or
        computed from other parameters. The last kind can be planned, but not run.
    weights_of : str
        Name of the earlier layer whose weights this layer shares (tied weights), if any.
    """

    name: str
    inputs: tuple[str, ...] = ()
    weights: Literal["trained", "frozen", "otherwise"] = field(default="trained", kw_only=True)
    weights_of: str = field(default="", kw_only=True)
    #: Name in tables, messages and measured times.
    kind: ClassVar[str] = ""
    #: True if each output element depends only on the input elements at the same place.
    elementwise: ClassVar[bool] = False
    #: True for products of weights and inputs, convolutions and linear layers: layers i = 1..L in
    #: the papers.
    is_matmul: ClassVar[bool] = False
    #: True if the layer may read several inputs.
    merges: ClassVar[bool] = False
    #: Smallest number of inputs of a layer that merges.
    least_inputs: ClassVar[int] = 2
    #: True for the last layer of a network, which training minimizes.
    is_loss: ClassVar[bool] = False
    #: Tensors that the backward pass reads again: "input", "output".
    backward_reads: ClassVar[tuple[str, ...]] = ("input", "output")
    #: True if a layer that works in place may overwrite the output: the backward pass of this layer
    #: does not read it.
    lends_output: ClassVar[bool] = False
    #: True if the operator can compute the interior outputs while halos are in flight.
    has_interior: ClassVar[bool] = False
    #: Pairs of sums (for a mean and variance) that ranks reduce: over the "batch", one pair per
    #: "sample", or none.
    statistics: ClassVar[str] = ""
    #: Bytes kept per sum: forward, backward, mean, deviation.
    sums_bytes: ClassVar[int] = 24
    #: Family of kernels with similar speed, for layers without matrix products: "activation",
    #: "normalization", "pooling", "lrn" or "other".
    kernel_family: ClassVar[str] = "other"
    #: True if the result depends on random numbers, which the sample's place in the batch selects.
    random: ClassVar[bool] = False
    #: True if the output may overwrite the input, and the input's gradient the output's.
    in_place: ClassVar[bool] = False
    #: True if the output holds the input's values unchanged, reshaped or at `inset`.
    is_view: ClassVar[bool] = False
    #: True if the layer has weights.
    has_weights: ClassVar[bool] = False
    #: True if the output's channels may be cut.
    splits_channels: ClassVar[bool] = True
    #: True if strategies that cut channels leave this layer's channels together.
    gathers_channels: ClassVar[bool] = False
    #: True if a rank with a part of the output's image computes whole samples.
    whole_samples: ClassVar[bool] = False
    #: Flops of the forward pass per output; `forward_flops` may count otherwise.
    output_flops: ClassVar[float] = 1.0
    #: Share of the outputs that training keeps; it zeroes the others.
    kept_share: ClassVar[float] = 1.0

    def statistics_groups(self, channels: int) -> int:
        """Number of channel groups; each has a pair of sums per sample."""
        return 1

    def inset(self, x: Shape) -> Shape:
        """Offset of the unchanged input inside a sample's output; () if it is not there."""
        return ()

    def lends_to(self, reader: Layer) -> bool:
        """True if `reader`, working in place, may overwrite this layer's output."""
        return self.lends_output

    @property
    def formula(self) -> Steps:
        """The layer as a formula (`hpcpar.network.layers.formula`), with which a reader may join
        it; () if it is not one.
        """
        return ()

    @property
    def learns(self) -> bool:
        """True if the layer has weights that are trained."""
        return self.has_weights and self.weights != "frozen"

    @property
    def owns_weights(self) -> bool:
        """True if the layer has its own weights."""
        return self.has_weights and not self.weights_of

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        """Shape of an output sample, from the sample shapes of all inputs."""
        return x

    def relation(self, axis: str, x: Shape, which: int = 0) -> Relation:
        """Receptive field along `axis` in input number `which`, which has sample shape `x`."""
        return Same()

    def weight_shape(self, x: Shape) -> Shape:
        """Shape ``[out, in, ...]`` of the weight, or () without weights.

        Row i of the weight produces output channel i.
        """
        return ()

    def exchanged(self, weight: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Swaps a weight's axes between PyTorch's order and this package's; its own inverse."""
        return weight

    def bias_shape(self, x: Shape) -> Shape:
        """Shape of the bias, or () without a bias."""
        return ()

    def granule(self, x: Shape) -> int:
        """Number of consecutive output features that must stay on one rank.

        For example, Flatten keeps the pixels of a channel together.
        """
        return 1

    def weight_items(self, x: Shape) -> int:
        """Number of weights and biases that the layer uses, its own or shared ones."""
        shapes = (self.weight_shape(x), self.bias_shape(x))
        return sum(math.prod(shape) for shape in shapes if shape)

    def parameters(self, x: Shape) -> int:
        """Number of the layer's own weights and biases."""
        return 0 if self.weights_of else self.weight_items(x)

    def buffers(self, x: Shape) -> int:
        """Number of running statistics, which persist between iterations but are not trained."""
        return 0

    # -- initial weights ---------------------------------------------------------------------------
    def fan(self, x: Shape) -> int:
        """Number of products summed into an output (fan-in), which scales initial weights."""
        return math.prod(self.weight_shape(x)[1:])

    def initial_row(self, stream: np.random.Generator, shape: Shape, deviation: float
                    ) -> npt.NDArray[np.float64]:
        """Initial weights of one output channel; biases start at zero.

        Parameters
        ----------
        stream : numpy.random.Generator
            The channel's own generator, so that every plan starts from the same weights.
        shape : tuple of int
            ``weight_shape(x)[1:]``.
        deviation : float
            He's standard deviation for ReLU networks at this place in the network.
        """
        return stream.standard_normal(shape) * deviation

    # -- work --------------------------------------------------------------------------------------
    def forward_flops(self, x: Shape) -> float:
        """Flops of the forward pass for one sample."""
        return self.output_flops * math.prod(self.output_shape(x))

    def work(self, op: str) -> PassWork:
        """The work of one pass.

        Parameters
        ----------
        op : str
            ``forward``, ``backward`` (gradient of the inputs), ``backward_weight`` or
            ``statistics``.
        """
        if op == "backward" and not self.is_matmul:
            # it moves gradients in addition to the tensors that the forward pass kept
            return PassWork(inputs=1 if self.elementwise else 2, outputs=2)
        return PassWork()

    def variant(self, channels: int, whole: int) -> str:
        """Text of the options that affect an operation's time.

        Parameters
        ----------
        channels, whole : int
            Input channels on the rank and in the whole layer.
        """
        return ""

    def kept_bytes(self, item_bytes: int) -> int:
        """Bytes per output that the operator keeps for the backward pass."""
        return 0


@dataclass(frozen=True)
class Input(Layer):
    """The samples of the data file, or of a caller.

    Attributes
    ----------
    learns : bool
        Whether a caller gets the gradient of its samples, because it trains layers before them.
    """

    shape: Shape = ()
    learns: bool = False
    kind: ClassVar[str] = "input"
    output_flops: ClassVar[float] = 0.0
    backward_reads: ClassVar[tuple[str, ...]] = ()
    gathers_channels: ClassVar[bool] = True

    def work(self, op: str) -> PassWork:  # the caller gets a copy of the gradient
        return PassWork(0.0, inputs=0, weights=0)

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        shape = image_of(self.shape)
        if len(shape) + 1 not in AXES or not shape or min(shape) < 1:
            raise InputError(f"input '{self.name}' has shape {self.shape}; give positive numbers "
                             "as (C,), (C, W), (C, H, W) or (C, D, H, W)")
        return shape


def need_image(layer: Layer, x: Shape, dimensions: int | None = None) -> None:
    """Raise an InputError unless `x` is an image, with `dimensions` image axes if given."""
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
