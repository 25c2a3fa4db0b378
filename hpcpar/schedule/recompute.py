"""Decides which outputs are dropped and recomputed in the backward pass (checkpointing).

A stage's layers form segments (Chen et al., Training Deep Nets with Sublinear Memory Cost). Tensors
that cross from one segment into another are kept. The other tensors that the backward pass reads
are recomputed, segment by segment, just before it reads them. The last segment is not recomputed if
its backward pass follows its forward pass immediately.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.plan import Plan
from hpcpar.schedule.aliasing import in_place
from hpcpar.schedule.one_weird_trick import switch
from hpcpar.schedule.pipeline_order import firsts, in_flight

#: Segment of the images, which are always kept.
_IMAGES = -1


@dataclass(frozen=True)
class Recompute:
    """Each layer's segment number, in network order, and the layers that are recomputed."""

    segment: dict[str, int]
    layers: frozenset[str]

    def segment_of(self, layer: str) -> int:
        """A layer's segment number."""
        return self.segment.get(layer, _IMAGES)

    def needs(self, layer: Layer) -> bool:
        """True where the backward pass, or recomputing, reads the layer's inputs."""
        return layer.name in self.layers or "input" in layer.backward_reads


NOTHING = Recompute({}, frozenset())


def recompute(network: Network, plan: Plan) -> Recompute:
    """The layers that a plan recomputes."""
    if not plan.recompute:
        return NOTHING
    segment: dict[str, int] = {}
    in_memory: set[int] = set()
    starts = firsts(network, plan)
    last = switch(network) if plan.fc_passes > 1 else len(network.layers) - 1
    for s, first in enumerate(starts):
        # each FC pass runs its own backward pass, so FC layers are not recomputed
        layers = [layer for layer in network.layers[1:last] if len(starts) == 1
                  or plan.configs[layer.name].first == first]
        number = len(set(segment.values()))
        for members in _cut(network, layers, plan.recompute):
            segment |= {layer.name: number for layer in members}
            number += 1
        # the backward pass begins with the last segment, whose outputs are still in memory unless
        # other micro-batches pass in between
        if in_flight(plan.order, len(starts), s, plan.microbatches) == 1 and number:
            in_memory.add(number - 1)
    segment |= {layer.name: len(set(segment.values())) for layer in network.layers[last:]}
    recomputed: set[str] = set()
    for layer in reversed(network.layers[1:last]):
        if segment[layer.name] in in_memory or _kept(network, segment, layer):
            continue
        if _read_again(network, recomputed, layer):
            recomputed.add(layer.name)
    return Recompute(segment, frozenset(recomputed))


def _cut(network: Network, layers: list[Layer], count: int) -> list[list[Layer]]:
    """Cut layers into `count` segments of about equal output size, where little data crosses."""
    sizes = [0 if _overwrites(network, layer) else math.prod(network.shapes[layer.name])
             for layer in layers]
    place = {layer.name: i for i, layer in enumerate(layers)}
    ends = [max((place.get(name, i) for name in network.consumers[layer.name]), default=i)
            for i, layer in enumerate(layers)]
    before = [sum(sizes[:i + 1]) for i in range(len(layers))]
    crossing = [sum(math.prod(network.shapes[layers[j].name]) for j in range(i + 1) if ends[j] > i)
                for i in range(len(layers))]
    out: list[list[Layer]] = []
    start = 0
    for k in range(1, min(count, len(layers))):
        target = before[-1] * k / count
        choices = range(start, len(layers) - 1)
        if not choices:
            break
        at = min(choices, key=lambda i: (abs(before[i] - target) + crossing[i], i))
        out.append(layers[start:at + 1])
        start = at + 1
    return [*out, layers[start:]] if layers[start:] else out


def _overwrites(network: Network, layer: Layer) -> bool:
    """True where the layer's output overwrites its input."""
    producer = network.by_name[layer.inputs[0]]
    only_reader = len(layer.inputs) == 1 and len(network.consumers[producer.name]) == 1
    return only_reader and in_place(layer, producer)


def _kept(network: Network, segment: dict[str, int], layer: Layer) -> bool:
    """True where the output's memory also holds a tensor that another segment reads.

    Recomputing the layer would overwrite that tensor.
    """
    block = [layer]
    while _overwrites(network, block[0]) and network.by_name[block[0].inputs[0]].inputs:
        block.insert(0, network.by_name[block[0].inputs[0]])
    while len(network.consumers[block[-1].name]) == 1:
        reader = network.by_name[network.consumers[block[-1].name][0]]
        if not _overwrites(network, reader):
            break
        block.append(reader)
    return any(segment[name] != segment[member.name] for member in block
               for name in network.consumers[member.name])


def _read_again(network: Network, recomputed: set[str], layer: Layer) -> bool:
    """True where the backward pass, or a recomputed layer, reads the layer's output."""
    readers = [network.by_name[name] for name in network.consumers[layer.name]]
    read = any("input" in reader.backward_reads or reader.name in recomputed for reader in readers)
    return read or "output" in layer.backward_reads
