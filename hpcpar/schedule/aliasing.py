"""Which layers overwrite their input, and in which order gradients are added.

The executor's memory and the predicted memory both follow these rules.
"""

from __future__ import annotations

from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer


def in_place(layer: Layer, producer: Layer) -> bool:
    """True where the layer may overwrite its input: nobody's backward pass reads what it
    overwrites.
    """
    if "input" in layer.backward_reads or not layer.in_place:
        return False
    return layer.is_view or producer.lends_to(layer)


def begins_sum(network: Network, producer: Layer, consumer: Layer, which: int) -> bool:
    """True where, of the gradients of a tensor that several layers read, that of input `which` of
    `consumer` is the first to be made.
    """
    return consumer.name == network.consumers[producer.name][-1] and consumer.inputs.index(
        producer.name) == which
