"""Layers with one trained number per channel, or one for all: scales, shifts, slopes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from hpcpar.network.layers.base import Layer, Shape


@dataclass(frozen=True)
class Channelwise(Layer):
    """Base class: a function of each element and a trained number.

    Attributes
    ----------
    shared : bool
        Whether all channels share one number; its gradient sums over all channels, so these are
        not cut.
    """

    shared: bool = False
    kernel_family: ClassVar[str] = "activation"
    elementwise: ClassVar[bool] = True
    has_weights: ClassVar[bool] = True
    output_flops: ClassVar[float] = 2.0
    backward_reads: ClassVar[tuple[str, ...]] = ("input",)
    #: Initial value of the weights.
    initial: ClassVar[float] = 1.0

    @property
    def splits_channels(self) -> bool:  # type: ignore[override]
        return not self.shared

    @property
    def gathers_channels(self) -> bool:  # type: ignore[override]
        return self.shared

    def weight_shape(self, x: Shape) -> Shape:
        return (1 if self.shared else x[0],)

    def initial_row(self, stream: np.random.Generator, shape: Shape, deviation: float
                    ) -> npt.NDArray[np.float64]:
        return np.full(shape, self.initial)


@dataclass(frozen=True)
class PReLU(Channelwise):
    """x where x > 0, else weight * x."""

    kind: ClassVar[str] = "prelu"
    initial: ClassVar[float] = 0.25


@dataclass(frozen=True)
class ChannelScale(Channelwise):
    """weight * x."""

    kind: ClassVar[str] = "scale"


@dataclass(frozen=True)
class ChannelShift(Channelwise):
    """x + weight."""

    kind: ClassVar[str] = "shift"
    initial: ClassVar[float] = 0.0
    backward_reads: ClassVar[tuple[str, ...]] = ()
