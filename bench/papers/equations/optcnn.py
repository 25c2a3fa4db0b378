"""OptCNN (Jia et al., ICML 2018) and DeePa (ICLR 2018 submission): Eq 1 and its cost functions.

Device k computes part k of a layer's output; parts are numbered in row-major order over n, c and
the image axes. The caller measures the compute time tC of a layer. Times are in seconds, volumes in
bytes.

Both papers count a tensor once. The bandwidth accounts for the gradient, which returns the same
number of bytes, and for the parameters that the server returns.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer, axes_of
from hpcpar.network.receptive_field import Interval, Relation

#: Bandwidth in bytes per second: a function of two devices, or one number for all pairs.
Bandwidth = Callable[[int, int], float] | float


@dataclass(frozen=True)
class Configuration:
    """Degrees of parallelism of samples, channels and image axes (OptCNN, Table 1)."""

    n: int = 1
    c: int = 1
    h: int = 1
    w: int = 1
    d: int = 1

    @property
    def devices(self) -> int:
        """Number of devices that the layer uses: the product of all degrees."""
        return self.replicas * self.c

    @property
    def replicas(self) -> int:
        """Number of devices with the same weights: all devices with the same channel part."""
        return self.n * self.h * self.w * self.d


@dataclass(frozen=True)
class TensorEdge:
    """The tensor between a producer and a reader.

    Attributes
    ----------
    axes, extents : tuple
        Names and extents of the tensor's axes, the batch first.
    reader_extents : mapping
        Extents of the reader's output by axis.
    relations : tuple of Relation
        Receptive field of the reader along each axis of the tensor.
    """

    axes: tuple[str, ...]
    extents: tuple[int, ...]
    reader_extents: Mapping[str, int]
    relations: tuple[Relation, ...]
    item_bytes: int = 4

    @property
    def n_bytes(self) -> int:
        """Size of the tensor in bytes."""
        return math.prod(self.extents) * self.item_bytes


def edge(network: Network, reader: Layer, batch: int, item_bytes: int = 4,
         which: int = 0) -> TensorEdge:
    """The tensor that is input number `which` of `reader`."""
    x, y = network.input_shapes(reader)[which], network.shapes[reader.name]
    axes = axes_of(x)
    relations = tuple(reader.relation(axis, x, which) for axis in axes)
    return TensorEdge(axes, (batch, *x), dict(zip(axes_of(y), (batch, *y), strict=True)), relations,
                item_bytes)


Box = tuple[Interval, ...]


def _cut(extent: int, parts: int) -> list[Interval]:
    return [(i * extent // parts, (i + 1) * extent // parts) for i in range(parts)]


def _blocks(extents: Mapping[str, int], config: Configuration) -> list[Box]:
    """The block of a tensor that each device computes."""
    return list(itertools.product(*(_cut(extent, getattr(config, axis))
                                    for axis, extent in extents.items())))


def _owned(e: TensorEdge, producer: Configuration) -> list[Box]:
    """The block of the tensor that each device of the producer owns."""
    return _blocks(dict(zip(e.axes, e.extents, strict=True)), producer)


def _needed(e: TensorEdge, reader: Configuration) -> list[Box]:
    """The region of the tensor that each device of the reader needs."""
    regions = []
    for block in _blocks(e.reader_extents, reader):
        outputs = dict(zip(e.reader_extents, block, strict=True))
        axes = zip(e.axes, e.extents, e.relations, strict=True)
        regions.append(tuple(relation.needed(*outputs.get(axis, (0, 1)), extent)
                             for axis, extent, relation in axes))
    return regions


def flows_bytes(e: TensorEdge, producer: Configuration,
                reader: Configuration) -> dict[tuple[int, int], int]:
    """Bytes that device i of the producer owns and device j of the reader needs, by (i, j).

    Pairs (i, i) are data that the device already has.
    """
    flows, regions = {}, _needed(e, reader)
    for i, block in enumerate(_owned(e, producer)):
        for j, region in enumerate(regions):
            items = math.prod(max(0, min(a[1], b[1]) - max(a[0], b[0]))
                              for a, b in zip(block, region, strict=True))
            if items:
                flows[i, j] = items * e.item_bytes
    return flows


def tx_s(e: TensorEdge, producer: Configuration, reader: Configuration, bandwidth: Bandwidth,
         whole: bool = False) -> float:
    """tX in seconds (OptCNN, section 5.1; xfer in DeePa): serialized transfers of an edge.

    Parameters
    ----------
    whole : bool
        Whether to count as DeePa's tables do: each device's whole input region, including data that
        it already has, but 0 for equal configurations. By default, only missing data count.
    """
    if whole and producer == reader:
        return 0.0
    between = bandwidth if callable(bandwidth) else lambda i, j: bandwidth
    flows = flows_bytes(e, producer, reader)
    return sum(n_bytes / between(i, j) for (i, j), n_bytes in flows.items() if whole or i != j)


def ts_s(weight_bytes: float, config: Configuration, bandwidth_bytes_per_s: float,
         distributed: bool = False) -> float:
    """tS in seconds (OptCNN, section 5.1; update in DeePa): gradients sent to parameter servers.

    The time is 0 with a single replica.

    Parameters
    ----------
    weight_bytes : float
        Weights of the whole layer; each channel part holds and sends its share.
    distributed : bool
        Whether the r replicas share the parameters (DeePa, section 5): each serves 1/r of them in
        parallel and keeps its own share. If not, one server receives r times the weights.
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
    """Eq 1 of both papers, seconds per iteration: sum of tC + tS over layers and of tX over edges.

    Parameters
    ----------
    strategy : mapping
        Configuration of each layer.
    edges : iterable of (layer, reader)
    tc, ts : callable
        Compute and synchronization time of a layer in a configuration.
    tx : callable
        Transfer time of an edge with the configurations of its two ends.
    """
    layers_s = sum(tc(layer, config) + ts(layer, config) for layer, config in strategy.items())
    return layers_s + sum(tx(ends, strategy[ends[0]], strategy[ends[1]]) for ends in edges)
