"""ParaDL (Kahira et al., HPDC 2021): layers, training runs and rows of Table 3.

Times are in seconds, memory in bytes; activations and weights are counted in items.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer, Shape, Windowed


@dataclass(frozen=True)
class Table3Layer:
    """A layer's quantities in Table 3.

    Attributes
    ----------
    x, y : float
        Items per sample of input and output.
    w, bias : float
        Numbers of weights and biases.
    channels, filters : int
        C and F: input and output channels.
    extents : tuple of int
        Image extents of the input, (H, W) or (D, H, W); empty for layers without spatial
        parallelism (fully connected layers).
    halo_x, halo_dy : tuple of float
        Items per sample of x and of dL/dy that cross a cut of each image axis in one direction,
        over the whole face and all channels.
    gathers : bool
        Whether filter and channel parallelism communicate the layer's activations.
    fw_s, bw_s : float
        Forward and backward time in seconds per sample.
    wu_s : float
        Weight update time in seconds per iteration.
    """

    name: str
    x: float = 0.0
    y: float = 0.0
    w: float = 0.0
    bias: float = 0.0
    channels: int = 1
    filters: int = 1
    extents: tuple[int, ...] = ()
    halo_x: tuple[float, ...] = ()
    halo_dy: tuple[float, ...] = ()
    gathers: bool = True
    fw_s: float = 0.0
    bw_s: float = 0.0
    wu_s: float = 0.0


@dataclass(frozen=True)
class TrainingRun:
    """Parameters of a training run (Table 2).

    Attributes
    ----------
    samples : int
        D, samples per epoch.
    batch : int
        B, samples per iteration over all PEs.
    item_bytes : float
        delta, bytes per item in memory.
    reuse : float
        gamma, the memory reuse factor, which scales the naive memory estimate.
    """

    samples: int
    batch: int
    item_bytes: float = 4.0
    reuse: float = 1.0

    @property
    def iterations(self) -> float:
        """D / B, iterations per epoch."""
        return self.samples / self.batch


@dataclass(frozen=True)
class Table3Row:
    """A row of Table 3: terms in seconds per epoch, and memory in bytes.

    Attributes
    ----------
    compute_s, update_s : float
        FW + BW, and WU.
    gradient_s, halo_s, layerwise_s, p2p_s : float
        Gradient exchange, halo exchange, collectives of layers, messages between pipeline stages.
    memory_bytes : float
        Maximum over PEs.
    parts, limits : tuple of int
        Number of parts along each split axis, and its limit.
    """

    compute_s: float
    update_s: float
    memory_bytes: float
    parts: tuple[int, ...]
    limits: tuple[int, ...]
    gradient_s: float = 0.0
    halo_s: float = 0.0
    layerwise_s: float = 0.0
    p2p_s: float = 0.0

    @property
    def pes(self) -> int:
        """p, the number of PEs."""
        return math.prod(self.parts)

    @property
    def limit(self) -> int:
        """Largest number of PEs (Table 3, last column)."""
        return math.prod(self.limits)

    @property
    def within_limits(self) -> bool:
        return all(part <= limit for part, limit in zip(self.parts, self.limits, strict=True))

    @property
    def communication_s(self) -> float:
        return self.gradient_s + self.halo_s + self.layerwise_s + self.p2p_s

    @property
    def epoch_s(self) -> float:
        return self.compute_s + self.update_s + self.communication_s

    def fits(self, memory_bytes: float) -> bool:
        """Whether the parts are within their limits and fit in a PE's memory."""
        return self.within_limits and self.memory_bytes <= memory_bytes


def layer_values(network: Network, layers: Iterable[Layer] | None = None,
                 seconds: Mapping[str, tuple[float, float, float]] | None = None
                 ) -> list[Table3Layer]:
    """Table 3's quantities for the layers of a network.

    Parameters
    ----------
    layers : iterable of Layer, optional
        l = 1..G; by default all layers except the input and the loss.
    seconds : mapping, optional
        (FW, BW, WU) by layer name; 0 for missing layers.
    """
    if layers is None:
        layers = [layer for layer in network.layers if layer.inputs and not layer.is_loss]
    seconds = seconds or {}
    return [_layer_values(network, layer, *seconds.get(layer.name, (0.0, 0.0, 0.0)))
            for layer in layers]


def _layer_values(network: Network, layer: Layer, fw_s: float, bw_s: float,
                  wu_s: float) -> Table3Layer:
    x, y = network.input_shape(layer), network.shapes[layer.name]
    is_spatial = len(x) > 1 and len(y) > 1
    halo_x, halo_dy = _faces(layer, x, y) if is_spatial else ((), ())
    w, bias = layer.weight_shape(x), layer.bias_shape(x)
    return Table3Layer(
        layer.name,
        x=float(sum(map(math.prod, network.input_shapes(layer)))),
        y=float(math.prod(y)),
        w=float(math.prod(w)) if w else 0.0,
        bias=float(math.prod(bias)) if bias else 0.0,
        channels=x[0],
        filters=y[0],
        extents=x[1:] if is_spatial else (),
        halo_x=halo_x,
        halo_dy=halo_dy,
        gathers=layer.is_matmul,
        fw_s=fw_s,
        bw_s=bw_s,
        wu_s=wu_s,
    )


def _faces(layer: Layer, x: Shape, y: Shape) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """halo(x) and halo(dL/dy) of a cut across each image axis.

    The halo has floor(K / 2) rows of x and the rows of y that read them. Windows that do not
    overlap have no halo.
    """
    if not isinstance(layer, Windowed):
        return (0.0,) * (len(x) - 1), (0.0,) * (len(x) - 1)
    windows = layer.windows()
    rows = [max(0, min(win.span // 2, win.span - win.stride)) for win in windows]
    y_rows = [-(-row // win.stride) for row, win in zip(rows, windows, strict=True)]
    return (
        tuple(row * math.prod(x) / extent for row, extent in zip(rows, x[1:], strict=True)),
        tuple(row * math.prod(y) / extent for row, extent in zip(y_rows, y[1:], strict=True)),
    )
