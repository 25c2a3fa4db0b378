"""Decides which ranks may need the most memory; ranks with equal boxes count once."""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.config import Config
from hpcpar.plan.layout import Layout, box_items, boxes, parameters, shards
from hpcpar.plan.plan import Plan, Synchronization
from hpcpar.schedule.edges import Edge, Edges
from hpcpar.schedule.memory_plan.passes import micro_batches_in_flight

Integers = NDArray[np.int64]
#: Up to this size all ranks are candidates; beyond, the first, middle and last parts of each axis.
_ALL = 4096
#: On more ranks the messages of each rank are not counted; see `prediction.rank_memories`.
EXACT_RANKS = 256
#: Limit of the layers of all candidates and FC passes together, and fewest candidates. If this
#: excludes ranks, those with boxes of equal sizes count as one.
_LAYERS, _FEWEST = 1500, 3


def large_ranks(network: Network, plan: Plan, edges: Edges) -> list[int]:
    """Ranks with the largest boxes in total, the largest first; one rank for equal boxes.

    The last part along an axis is among the largest, but parts at a border have smaller halos, and
    different ranks have the largest parts of different layers.
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
    for (_, copies), equal in alike.items():
        need, own = boxes(equal[0].needed, ranks), boxes(equal[0].owned, ranks)
        for each in (need, own):
            extents = [stop - start for start, stop in each]
            sizes += extents
            items += len(equal) * (copies + 1) * np.prod(extents, axis=0)
        offsets += [a - b for (a, _), (b, _) in zip(need, own, strict=True)]
    for layer in network.weighted:
        for layout in _weights(network, plan, layer):
            weights = box_items(layout, ranks)
            sizes.append(weights)
            items += 2 * weights
    most = max(_FEWEST, _LAYERS // (len(network.layers) * plan.fc_passes))
    first = _first_of_each([*sizes, *offsets])
    if len(first) > most:
        first = _first_of_each([*sizes, *(np.sign(n) for n in offsets)])
    largest = sorted(first, key=lambda i: (-items[i], i))
    return [int(ranks[i]) for i in largest[:most]]


def _first_of_each(numbers: list[Integers]) -> list[int]:
    """Index of the first rank of each group of ranks with the same numbers."""
    distinct = list({row.tobytes(): row for row in numbers}.values())  # many layers are alike
    first: list[int] = np.unique(np.array(distinct), axis=1, return_index=True)[1].tolist()
    return first


def _weights(network: Network, plan: Plan, layer: Layer) -> list[Layout]:
    """Layouts of the weights that ranks hold, and of the shards that they update."""
    config = plan.configs[layer.name]
    layouts = [parameters(network, layer, config)]
    if plan.synchronization is Synchronization.SHARDED:
        layouts.append(shards(network, layer, config))
    return layouts


def _considered(plan: Plan) -> Integers:
    """All ranks; in a large job, those with the first, middle or last part along each axis."""
    if int(plan.ranks) <= _ALL:
        return np.arange(int(plan.ranks))
    ranks = {0}
    for config in {c.key: c for c in plan.configs.values()}.values():
        ranks.update(_corners(config))
    return np.array(sorted(ranks))


def _corners(config: Config) -> list[int]:
    offsets = []
    for mesh_axis in config.mesh_axes.values():
        size, stride = int(mesh_axis.size), int(mesh_axis.stride)
        parts = {0, 1, size // 2, size - 2, size - 1}
        offsets.append([i * stride for i in parts if 0 <= i < size])
    return [int(config.first) + sum(corner) for corner in itertools.product(*offsets)]
