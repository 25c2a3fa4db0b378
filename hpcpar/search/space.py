"""Decides which configurations a layer may have in the layer-wise search.

A configuration cuts a layer's output in samples, channels and image axes, or a matmul layer's input
channels (k), over P ranks or fewer. The number of ranks divides P and does not straddle the units
of the machine's levels. Ranks with the same part may compute it redundantly (replicas). On several
nodes, a configuration on all ranks has two placements: channel and image parts inside a node, or
samples inside a node (``/outer``). Every named strategy is therefore a point of the space.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.config import Config

#: Degrees of a configuration, in the order of `Config`'s first fields.
FIELDS = ("n", "c", "h", "w", "replicas", "d", "k")
Degrees = tuple[int, ...]
#: On more ranks the space is thinned out. Images are cut only in rows or into the squarest parts.
#: Layers that leave ranks idle use at most this many ranks, and do not cut images. Cuts in both
#: channels and images use the prime factors in a single order (`chain`).
ALL_SHAPES = 32


class Space:
    """The configurations of layers with the same shape.

    Attributes
    ----------
    degrees : ndarray
        [configurations, 7] in the order of `FIELDS`.
    outer : ndarray of bool
        [configurations] True where samples lie inside nodes, and channel and image parts across.
    """

    def __init__(self, degrees: NDArray[np.int64], outer: NDArray[np.bool_]) -> None:
        self.degrees, self.outer = degrees, outer
        self._ones: dict[tuple[int, bool], Config] = {}

    def __len__(self) -> int:
        return len(self.degrees)

    def config(self, rows: NDArray[np.int64] | slice = slice(None), behind: bool = False) -> Config:
        """Some of the configurations as a family.

        With `behind`, they are the configurations of an elementwise layer after this one: if the
        reduction is cut (k), the scattered sums are cut in channels.
        """
        n, c, h, w, replicas, d, k = np.ascontiguousarray(self.degrees[rows].T)
        if behind:
            c, k = c * k, np.ones_like(k)
        outer = self.outer[rows]
        placement = np.where(outer, "outer", "inner") if outer.any() else "inner"
        return Config(n, c, h, w, replicas, d, k, placement=placement)

    def one(self, row: int, behind: bool = False) -> Config:
        """A single configuration, always the same object; `behind` as in `config`."""
        if (row, behind) not in self._ones:
            n, c, h, w, replicas, d, k = self.degrees[row].tolist()
            if behind:
                c, k = c * k, 1
            placement = "outer" if self.outer[row] else "inner"
            self._ones[row, behind] = Config(n, c, h, w, replicas, d, k, placement=placement)
        return self._ones[row, behind]

    def find(self, config: Config) -> int | None:
        """The row of a configuration; None if it is not in the space."""
        degrees = [getattr(config, name) for name in FIELDS]
        same = (self.degrees == degrees).all(axis=1) & (self.outer == config.outer)
        rows = np.flatnonzero(same)
        return int(rows[0]) if len(rows) else None


def divisors(n: int) -> list[int]:
    small = [i for i in range(1, math.isqrt(n) + 1) if n % i == 0]
    return small + [n // i for i in reversed(small) if i * i != n]


def chain(n: int) -> list[int]:
    """Products of the first prime factors of `n`, the smallest first: 1, 2, 4, 12 for 12."""
    products = [1]
    while products[-1] < n:
        left = n // products[-1]
        products.append(products[-1] * min(d for d in divisors(left) if d > 1))
    return products


def totals(ranks: int, machine: Machine) -> list[int]:
    """Numbers of ranks that a layer may use.

    They divide P. At each level of the machine, they fit into one unit or fill whole units.
    """
    units = [level.ranks for level in machine.levels
             if 1 < level.ranks < ranks and ranks % level.ranks == 0]
    return [r for r in divisors(ranks) if all(unit % r == 0 or r % unit == 0 for unit in units)]


def factors(total: int, limits: tuple[int, ...]) -> list[Degrees]:
    """All ways to write `total` as a product of one degree per limit, each at most its limit."""
    first, *rest = limits
    if not rest:
        return [(total,)] if total <= first else []
    return [(d, *others) for d in divisors(total) if d <= first
            for others in factors(total // d, tuple(rest))]


def _image_cuts(extents: tuple[int, ...], ranks: int) -> dict[int, list[Degrees]]:
    """Number of parts -> ways to cut the image axes."""
    if not extents:
        return {1: [()]}
    cuts: dict[int, list[Degrees]] = {}
    for parts in divisors(ranks):
        ways = factors(parts, extents)
        if ranks > ALL_SHAPES and len(ways) > 2:
            rows = max(ways)
            squarest = min(ways, key=lambda way: (max(way), way[::-1]))
            ways = sorted({rows, squarest})
        if ways:
            cuts[parts] = ways
    return cuts


class Spaces:
    """The spaces of a network's layers; layers of equal shapes share one.

    Parameters
    ----------
    most_parts : int
        Most parts into which a layer may cut the mini-batch.
    reductions : bool
        Allow cuts of the sums over input channels (k). They require that an allreduce synchronizes
        the weights.
    """

    def __init__(self, network: Network, ranks: int, most_parts: int, machine: Machine,
                 reductions: bool = True) -> None:
        self.network, self.ranks, self.reductions = network, ranks, reductions
        self.most_parts = min(most_parts, ranks)
        self.totals = totals(ranks, machine)
        # on identical links, placements only affect movements between layers
        self.placements = not machine.all_alike(ranks)
        self._known: dict[tuple[int, tuple[int, ...], int], Space] = {}

    def of(self, layer: Layer) -> Space:
        """The space of a layer."""
        shape, granules = self.network.shapes[layer.name], self.network.granules
        whole = not layer.splits_channels or not layer.inputs
        channels = 1 if whole else shape[0] // granules[layer.name]
        k = 1
        if self._may_cut_reduction(layer):
            k = min(channels, self.network.input_shape(layer)[0] // granules[layer.inputs[0]])
        extents = tuple(shape[1:])
        # no degree exceeds the number of ranks, so all large layers share a space
        limits = (min(channels, self.ranks), tuple(min(e, self.ranks) for e in extents),
                  min(k, self.ranks))
        if limits not in self._known:
            self._known[limits] = self._space(*limits)
        return self._known[limits]

    def _may_cut_reduction(self, layer: Layer) -> bool:
        return (self.reductions and bool(layer.is_matmul) and getattr(layer, "groups", 1) == 1
                and layer is not self.network.matmul_layers[0])

    def _space(self, channels: int, extents: tuple[int, ...], k: int) -> Space:
        """The space under limits of the parts in channels, image axes and reduction."""
        ranks, most = self.ranks, self.most_parts
        cuts = _image_cuts(extents, ranks)
        degrees: dict[Degrees, None] = {}
        inner = set(chain(ranks))
        for total in self.totals:
            thinned = ranks > ALL_SHAPES and total < ranks
            if thinned and total > ALL_SHAPES:
                continue
            for n, c, parts in factors(total, (most, channels, 1 if thinned else ranks)):
                cuts_both = c > 1 and parts > 1
                if ranks > ALL_SHAPES and cuts_both and not {c, c * parts} <= inner:
                    continue
                for way in cuts.get(parts, []):
                    d, h, w = _depth_height_width(way)
                    degrees[n, c, h, w, 1, d, 1] = None
            for n, parts in factors(total, (most, k)):
                degrees[n, 1, 1, 1, 1, 1, parts] = None
        for n, copies in factors(ranks, (most, ranks)):
            degrees[n, 1, 1, 1, copies, 1, 1] = None
        mixed = [way for way in degrees if self.placements and 1 < way[0] < ranks == math.prod(way)]
        return Space(np.array([*degrees, *mixed], np.int64),
                     np.arange(len(degrees) + len(mixed)) >= len(degrees))


def _depth_height_width(way: Degrees) -> Degrees:
    """Degrees in depth, height and width; 1 for axes that the image does not have."""
    return (1,) * (3 - len(way)) + way
