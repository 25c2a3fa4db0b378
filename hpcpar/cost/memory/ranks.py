"""Ranks among which the one of most memory is: ranks with the same boxes count once."""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.axis import intervals
from hpcpar.plan.config import Config
from hpcpar.plan.layout import Layout, parameters, shards
from hpcpar.plan.plan import Plan, Synchronisation
from hpcpar.schedule.edges import Edge, Edges
from hpcpar.schedule.memory_plan.passes import micro_batches_in_flight

Integers = NDArray[np.int64]
#: Up to so many ranks, all are looked at; beyond, the first, middle and last parts of each axis.
_ALL = 4096
#: On more ranks the largest is not looked for rank by rank.
EXACT_RANKS = 256
#: Ranks with different boxes are looked at until their layers, all together, reach this number, but
#: at least `_FEWEST` of them. Where there are more, those with boxes of equal sizes count as one.
_LAYERS, _FEWEST = 1500, 3


def large_ranks(network: Network, plan: Plan, edges: Edges) -> list[int]:
    """Ranks whose boxes are largest in sum, the largest first; of ranks with equal boxes, one.

    The last part along an axis is one of the largest, but parts at a border have smaller halos, and
    uneven parts of different layers are largest on different ranks.
    """
    ranks = _considered(plan)
    flying = micro_batches_in_flight(network, plan)
    sizes: list[Integers] = []
    offsets: list[Integers] = []
    items = np.zeros(len(ranks), np.int64)
    alike: dict[tuple[object, int], list[Edge]] = defaultdict(list)
    for layer in network.layers:
        for e in edges.into(layer, plan.samples_of_a_pass):
            alike[e.key, flying[layer.name]].append(e)
    for (_, copies), some in alike.items():
        need, own = _Boxes(some[0].needed, ranks), _Boxes(some[0].owned, ranks)
        sizes += [*need.extents, *own.extents]
        offsets += [a - b for a, b in zip(need.starts, own.starts, strict=True)]
        items += len(some) * (copies + 1) * (need.items + own.items)
    for layer in network.weighted:
        for layout in _weights(network, plan, layer):
            mine = _Boxes(layout, ranks).items
            sizes.append(mine)
            items += 2 * mine
    most = max(_FEWEST, _LAYERS // len(network.layers))
    first = _first_of_each([*sizes, *offsets])
    if len(first) > most:
        first = _first_of_each([*sizes, *(np.sign(n) for n in offsets)])
    largest = sorted(first, key=lambda i: (-items[i], i))
    return [int(ranks[i]) for i in largest[:most]]


def _first_of_each(numbers: list[Integers]) -> list[int]:
    """The first of the ranks that have the same numbers."""
    distinct = list({row.tobytes(): row for row in numbers}.values())  # of many layers, few differ
    found: list[int] = np.unique(np.array(distinct), axis=1, return_index=True)[1].tolist()
    return found


def _weights(network: Network, plan: Plan, layer: Layer) -> list[Layout]:
    """Layouts of the weights of a layer that ranks hold, and that they update."""
    config = plan.configs[layer.name]
    layouts = [parameters(network, layer, config)]
    if plan.synchronisation is Synchronisation.SHARDED:
        layouts.append(shards(network, layer, config))
    return layouts


def _considered(plan: Plan) -> Integers:
    """All ranks; if they are many, those with the first, middle or last part along each axis."""
    if int(plan.ranks) <= _ALL:
        return np.arange(int(plan.ranks))
    found = {0}
    for config in {c.key: c for c in plan.configs.values()}.values():
        found.update(_corners(config))
    return np.array(sorted(found))


def _corners(config: Config) -> list[int]:
    places = []
    for mesh_axis in config.mesh_axes.values():
        size, stride = int(mesh_axis.size), int(mesh_axis.stride)
        some = {0, 1, size // 2, size - 2, size - 1}
        places.append([i * stride for i in some if 0 <= i < size])
    return [int(config.first) + sum(at) for at in itertools.product(*places)]


class _Boxes:
    """The boxes of a layout on some ranks: starts and extents of each axis; empty elsewhere."""

    def __init__(self, layout: Layout, ranks: Integers) -> None:
        first = int(layout.config.first)
        lives = (ranks >= first) & (ranks < first + int(layout.config.ranks))
        at = np.where(lives, ranks - first, 0)
        self.starts: list[Integers] = []
        self.extents: list[Integers] = []
        self.items = np.asarray(lives, np.int64)
        for axis in layout.axes:
            mesh_axis = layout.mesh_axes.get(axis.name)
            part = np.zeros_like(at) if mesh_axis is None else np.asarray(mesh_axis.of(at))
            start, stop = intervals(axis, 1 if mesh_axis is None else int(mesh_axis.size), part)
            self.starts.append(np.where(lives, start, 0))
            self.extents.append(np.where(lives, stop - start, 0))
            self.items = self.items * self.extents[-1]
