"""Gradient checkpointing: which layers' outputs are thrown away after the forward pass and computed
again in the backward pass.

The layers of a stage fall into segments. What crosses from one into another is kept; of a segment,
everything that the backward pass reads is computed again just before (Chen et al., Training Deep
Nets with Sublinear Memory Cost), but of the last one where nothing has happened since its forward
pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.plan import Plan
from hpcpar.schedule.aliasing import in_place, reads_input, reads_output
from hpcpar.schedule.pipeline_order import firsts, in_flight, switch

#: Of the images, which are always kept.
_IMAGES = -1


@dataclass(frozen=True)
class Recompute:
    """What is computed again.

    Attributes
    ----------
    segment : dict
        Number of every layer's segment, in the network's order.
    again : frozenset of str
        Layers that are computed again.
    """

    segment: dict[str, int]
    again: frozenset[str]

    def of(self, layer: str) -> int:
        return self.segment.get(layer, _IMAGES)

    def needs(self, layer: Layer) -> bool:
        """True where a layer's input must be there again."""
        return layer.name in self.again or reads_input(layer)


NOTHING = Recompute({}, frozenset())


def recompute(network: Network, plan: Plan) -> Recompute:
    """What a plan computes again."""
    if not plan.recompute:
        return NOTHING
    segment: dict[str, int] = {}
    waiting: set[int] = set()
    starts = firsts(network, plan)
    last = switch(network) if plan.turns > 1 else len(network.layers) - 1
    for s, first in enumerate(starts):
        # what takes turns is used up in each of them
        layers = [layer for layer in network.layers[1:last] if len(starts) == 1
                  or plan.configs[layer.name].first == first]
        number = len(set(segment.values()))
        for layers_of_one in _cut(network, layers, plan.recompute):
            segment |= {layer.name: number for layer in layers_of_one}
            number += 1
        # the backward pass begins with the last segment: its outputs are there, unless other
        # micro-batches pass in between
        if in_flight(plan.order, len(starts), s, plan.microbatches) == 1 and number:
            waiting.add(number - 1)
    segment |= {layer.name: len(set(segment.values())) for layer in network.layers[last:]}
    again: set[str] = set()
    for layer in reversed(network.layers[1:last]):
        if segment[layer.name] not in waiting and not _kept(network, segment, layer) and _read_again(network, segment, again, layer):
            again.add(layer.name)
    return Recompute(segment, frozenset(again))


def _cut(network: Network, layers: list[Layer], count: int) -> list[list[Layer]]:
    """Layers in `count` segments of about equal outputs, cut where little crosses."""
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
    """True where the layer's output lies in its input's place."""
    producer = network.by_name[layer.inputs[0]]
    return len(layer.inputs) == 1 and len(network.consumers[producer.name]) == 1 and in_place(layer, producer)


def _kept(network: Network, segment: dict[str, int], layer: Layer) -> bool:
    """True where the block of the layer's output holds something that crosses into another segment:
    it must not be written again.
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


def _read_again(network: Network, segment: dict[str, int], again: set[str], layer: Layer) -> bool:
    """True where the backward pass, or a layer that is computed again, reads the layer's output."""
    readers = [network.by_name[name] for name in network.consumers[layer.name]]
    return reads_output(layer) or any(reads_input(reader) or reader.name in again
                                      for reader in readers)
