"""The cost model of layer-wise parallelism: OptCNN (Jia et al., ICML 2018), Eq 1, and DeePa (ICLR
2018 submission), Tables 2 and 3.

Part k of a layer's output is computed by device k, parts numbered row by row over the output's axes
(n, c, and those of the image). The time tC of a layer is measured, never derived: callers give it.
Both papers count a tensor once: the gradient's way back, as large as the input's way there, and the
parameters' way back from the server are taken to be in the bandwidth.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer, axes_of
from hpcpar.network.receptive_field import Interval, Relation

#: Bytes per second from one device to another, or between any two.
Bandwidth = Callable[[int, int], float] | float


@dataclass(frozen=True)
class Configuration:
    """Degrees of parallelism of a layer's output: samples, channels, and the axes of the image
    (OptCNN, Table 1).
    """

    n: int = 1
    c: int = 1
    h: int = 1
    w: int = 1
    d: int = 1

    @property
    def devices(self) -> int:
        """The product of all degrees: the devices that the layer uses."""
        return self.replicas * self.c

    @property
    def replicas(self) -> int:
        """Devices that hold the same weights: parts of samples and of the image; channel parts hold
        different ones.
        """
        return self.n * self.h * self.w * self.d


@dataclass(frozen=True)
class Edge:
    """The tensor between a layer and one that reads it.

    Attributes
    ----------
    axes, extents : tuple
        Letters and extents of the tensor's axes, the batch first.
    reader_extents : mapping
        Extent of each axis of the reader's output.
    relations : tuple of Relation
        For every axis of the tensor, what an interval of the reader's output needs of it.
    """

    axes: tuple[str, ...]
    extents: tuple[int, ...]
    reader_extents: Mapping[str, int]
    relations: tuple[Relation, ...]
    item_bytes: int = 4

    @property
    def n_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.extents) * self.item_bytes


def edge(network: Network, reader: Layer, batch: int, item_bytes: int = 4, which: int = 0) -> Edge:
    """The tensor that `reader` reads as its input number `which`."""
    x, y = network.input_shapes(reader)[which], network.shapes[reader.name]
    axes = axes_of(x)
    relations = tuple(reader.relation(axis, x, which) for axis in axes)
    return Edge(axes, (batch, *x), dict(zip(axes_of(y), (batch, *y), strict=True)), relations,
                item_bytes)


Box = tuple[Interval, ...]


def _cut(extent: int, parts: int) -> list[Interval]:
    return [(i * extent // parts, (i + 1) * extent // parts) for i in range(parts)]


def _owned(e: Edge, producer: Configuration) -> list[Box]:
    """The part of the tensor that each device of the producer has computed."""
    return list(itertools.product(*(_cut(extent, getattr(producer, axis))
                                    for axis, extent in zip(e.axes, e.extents, strict=True))))


def _needed(e: Edge, reader: Configuration) -> list[Box]:
    """The region of the tensor that each device of the reader needs."""
    parts = itertools.product(*(_cut(extent, getattr(reader, axis))
                                for axis, extent in e.reader_extents.items()))
    out = []
    for part in parts:
        of = dict(zip(e.reader_extents, part, strict=True))
        out.append(
            tuple(r.needed(*of.get(axis, (0, 1)), extent) for axis, extent, r in zip(e.axes, e.extents, e.relations, strict=True))
        )
    return out


def flows_bytes(e: Edge, producer: Configuration,
                reader: Configuration) -> dict[tuple[int, int], int]:
    """Bytes that device j of the reader needs of what device i of the producer has, by (i, j); i =
    j: what is there already.
    """
    out = {}
    for (i, own), (j, region) in itertools.product(enumerate(_owned(e, producer)),
                                                   enumerate(_needed(e, reader))):
        size = math.prod(max(0, min(a[1], b[1]) - max(a[0], b[0]))
                         for a, b in zip(own, region, strict=True))
        if size:
            out[i, j] = size * e.item_bytes
    return out


def tx_s(e: Edge, producer: Configuration, reader: Configuration, bandwidth: Bandwidth,
         whole: bool = False) -> float:
    """tX (OptCNN, section 5.1; DeePa's xfer): bytes of every input region that its device lacks,
    over the bandwidth, one after the other.

    Parameters
    ----------
    whole : bool
        As DeePa's tables count: the whole of every region, also what the device has already; 0 for
        equal configurations.
    """
    if whole and producer == reader:
        return 0.0
    between = bandwidth if callable(bandwidth) else lambda i, j: bandwidth
    return sum(n_bytes / between(i, j) for (i, j), n_bytes in flows_bytes(e, producer, reader).items() if whole or i != j)


def ts_s(weight_bytes: float, config: Configuration, bandwidth_bytes_per_s: float,
         distributed: bool = False) -> float:
    """tS (OptCNN, section 5.1; DeePa's update): gradients of all replicas into their parameter
    server; 0 where there is one replica.

    Parameters
    ----------
    weight_bytes : float
        Of the whole layer; channel parts hold, and send, their share.
    distributed : bool
        Spread the parameters over the devices that hold them (DeePa, section 5): each of r replicas
        serves 1/r of them, side by side, and does not send its own. Otherwise r x the weights
        arrive at one server.
    """
    r = config.replicas
    if r == 1:
        return 0.0
    busiest_bytes = (r - 1) / r * weight_bytes / config.c if distributed else r * weight_bytes
    return busiest_bytes / bandwidth_bytes_per_s


def eq1_step_s(
    strategy: Mapping[str, Configuration],
    edges: Iterable[tuple[str, str]],
    tc: Callable[[str, Configuration], float],
    ts: Callable[[str, Configuration], float],
    tx: Callable[[tuple[str, str], Configuration, Configuration], float],
) -> float:
    """Eq 1 of both papers: sum over layers of tC + tS, and over edges of tX, for one iteration.

    Parameters
    ----------
    strategy : mapping
        Layer -> its configuration.
    edges : iterable of (layer, reader)
    tc, ts, tx : callable
        The three cost functions: of a layer and its configuration, and of an edge and those of its
        two ends.
    """
    layers_s = sum(tc(layer, config) + ts(layer, config) for layer, config in strategy.items())
    return layers_s + sum(tx(ends, strategy[ends[0]], strategy[ends[1]]) for ends in edges)
