"""The space of the layer-wise search: which configurations a layer may have.

A configuration cuts a layer's output in samples, channels and image axes, or a product's input
channels (k), over P ranks or fewer: any number that divides P and does not straddle the units of
the machine's levels. Ranks that share no part may compute the same (replicas). Where a
configuration uses all ranks of several nodes, model and image parts lie inside a node, or samples
do (placement); inside one node there is one placement. So every named strategy is a point of the
space, behind ``/outer`` those on several nodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer, Loss, SoftmaxCrossEntropy
from hpcpar.plan.config import Config

#: Degrees of a configuration, in the order of `Config`'s first fields.
FIELDS = ("n", "c", "h", "w", "replicas", "d", "k")
Degrees = tuple[int, ...]
#: On more ranks than this, images are cut in rows or in the squarest way only, instead of in all
#: ways; and layers that do not use all ranks use at most so many, and no cuts of images.
ALL_SHAPES = 32


@dataclass(frozen=True)
class Space:
    """Configurations that layers of one shape may have.

    Attributes
    ----------
    degrees : ndarray
        [configurations, 7] in the order of `FIELDS`.
    outer : ndarray of bool
        [configurations]: those whose samples lie inside of nodes, and model and image parts across
        them.
    """

    degrees: Any
    outer: Any

    def __len__(self) -> int:
        return len(self.degrees)

    def config(self, chosen: Any = slice(None), behind: bool = False) -> Config:
        """Some of the configurations as one family.

        Parameters
        ----------
        behind : bool
            For an elementwise layer behind this one: where a reduction is cut (k), its scattered
            sums are cut in channels.
        """
        found: dict[str, Any] = dict(zip(FIELDS, np.ascontiguousarray(self.degrees[chosen].T),
                                         strict=True))
        if behind:
            found["c"], found["k"] = found["c"] * found["k"], np.ones_like(found["k"])
        outer = self.outer[chosen]
        return Config(**found, placement=np.where(outer, "outer", "inner") if outer.any()
                      else "inner")

    def one(self, index: int, behind: bool = False) -> Config:
        """A single configuration, or that of an elementwise layer behind this one: always the same
        object.
        """
        if (index, behind) not in self._ones:
            found: dict[str, Any] = dict(zip(FIELDS, self.degrees[index].tolist(), strict=True))
            if behind:
                found["c"], found["k"] = found["c"] * found["k"], 1
            self._ones[index, behind] = Config(**found, placement="outer" if self.outer[index]
                                               else "inner")
        return self._ones[index, behind]

    @cached_property
    def _ones(self) -> dict[tuple[int, bool], Config]:
        return {}

    def find(self, config: Config) -> int | None:
        """The place of a configuration; None where it is not in the space."""
        found = np.flatnonzero((self.degrees
                                == [getattr(config, name) for name in FIELDS]).all(axis=1))
        found = found[self.outer[found] == config.outer]
        return int(found[0]) if len(found) else None


def divisors(n: int) -> list[int]:
    return [i for i in range(1, n + 1) if n % i == 0]


def totals(ranks: int, machine: Machine) -> list[int]:
    """Numbers of ranks that a layer may use: divisors of P that fit into a unit of each level or
    fill whole ones.
    """
    units = [level.ranks for level in machine.levels if 1 < level.ranks < ranks
             and ranks % level.ranks == 0]
    return [r for r in divisors(ranks) if all(unit % r == 0 or r % unit == 0 for unit in units)]


def factors(total: int, limits: tuple[int, ...]) -> list[Degrees]:
    """All ways to write `total` as a product of one degree for each limit, none beyond its limit.
    """
    if len(limits) == 1:
        return [(total,)] if total <= limits[0] else []
    return [(d, *rest) for d in divisors(total) if d <= limits[0]
            for rest in factors(total // d, limits[1:])]


def _image_cuts(extents: tuple[int, ...], ranks: int) -> dict[int, list[Degrees]]:
    """Ways to cut the image axes, by the number of parts."""
    out: dict[int, list[Degrees]] = {}
    for parts in divisors(ranks):
        none: list[Degrees] = [()] if parts == 1 else []
        ways = factors(parts, extents) if extents else none
        if ranks > ALL_SHAPES and len(ways) > 2:
            rows = max(ways)
            ways = sorted({rows, min(ways, key=lambda way: (max(way), way[::-1]))})
        if ways:
            out[parts] = ways
    return out


class Spaces:
    """The spaces of a network's layers; layers of equal shapes share one.

    Parameters
    ----------
    reductions : bool
        Sums over input channels may be cut (k): their weights can only be kept alike by allreduces.
    """

    def __init__(self, network: Network, ranks: int, batch: int, machine: Machine,
                 reductions: bool = True) -> None:
        self.network, self.ranks, self.batch, self.reductions = network, ranks, batch, reductions
        self.totals = totals(ranks, machine)
        # between ranks that are all alike, a placement decides only what neighbouring layers have
        # in common
        self.placements = not machine.all_alike(ranks)

    def of(self, layer: Layer) -> Space:
        """The space of a layer."""
        shape = self.network.shapes[layer.name]
        channels = 1 if isinstance(layer,
                                   SoftmaxCrossEntropy) or not layer.inputs else shape[
            0] // self.network.granules[layer.name]
        k = 1
        if self.reductions and layer.is_matmul and getattr(layer, "groups",
                                                          1) == 1 and self._first is not layer:
            k = min(channels,
                    self.network.input_shape(layer)[0] // self.network.granules[layer.inputs[0]])
        extents = () if isinstance(layer, Loss) else tuple(shape[1:])
        # a degree is at most the number of ranks: layers that are large enough have one space
        limits = (min(channels, self.ranks), tuple(min(e, self.ranks) for e in extents),
                  min(k, self.ranks))
        return _space(self.ranks, min(self.batch, self.ranks), tuple(self.totals), self.placements,
                      *limits)

    @property
    def _first(self) -> Layer:
        return self.network.matmul_layers[0]


@lru_cache(maxsize=64)
def _space(
    ranks: int, batch: int, totals: tuple[int, ...], placements: bool, channels: int, extents: tuple[int, ...], k: int
) -> Space:
    cuts = _image_cuts(extents, ranks)
    found: dict[Degrees, None] = {}
    for total in totals:
        few = ranks > ALL_SHAPES and total < ranks
        if few and total > ALL_SHAPES:
            continue
        for n, c, parts in factors(total, (batch, channels, 1 if few else ranks)):
            for way in cuts.get(parts, []):
                d, h, w = (1, *way) if len(way) == 2 else way if len(way) == 3 else (1, 1, 1)
                found[(n, c, h, w, 1, d, 1)] = None
        for n, parts in factors(total, (batch, k)):
            found[(n, 1, 1, 1, 1, 1, parts)] = None
    for n, copies in factors(ranks, (batch, ranks)):
        found[(n, 1, 1, 1, copies, 1, 1)] = None
    both = [way for way in found if placements and 1 < way[0] < ranks == math.prod(way)]
    return Space(np.array([*found, *both], np.int64),
                 np.arange(len(found) + len(both)) >= len(found))
