"""Decides which layers overwrite their input, and in which order gradients are added.

The executor's memory and the memory prediction both follow these rules.
"""

from __future__ import annotations

from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer


def in_place(layer: Layer, producer: Layer) -> bool:
    """True where the layer may overwrite its input: no backward pass reads that input."""
    if "input" in layer.backward_reads or not layer.in_place:
        return False
    return layer.is_view or producer.lends_to(layer)


def begins_sum(network: Network, producer: Layer, consumer: Layer, which: int) -> bool:
    """True if the backward pass computes this input's gradient first among all readers'."""
    return consumer.name == network.consumers[producer.name][-1] and consumer.inputs.index(
        producer.name) == which
