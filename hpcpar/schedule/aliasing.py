"""Which tensors layers overwrite, and which they read again in the backward pass.

The executor's memory and the predicted memory both follow these rules.
"""

from __future__ import annotations

from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    LRN,
    Add,
    Conv,
    Dropout,
    Flatten,
    Layer,
    Linear,
    Normalisation,
    ReLU,
)


def in_place(layer: Layer, producer: Layer) -> bool:
    """True where the layer may overwrite its input: nobody's backward pass reads what it
    overwrites.
    """
    if isinstance(layer, ReLU):
        return isinstance(producer, Conv | Linear | Normalisation | Add)
    # a dropped element is zero in the output of the ReLU before it, but its gradient is zero as
    # well
    return isinstance(layer, Flatten) or (isinstance(layer, Dropout) and isinstance(producer, ReLU))


def passes_gradient(layer: Layer) -> bool:
    """True where the gradient of the input may overwrite that of the output."""
    return isinstance(layer, ReLU | Dropout | Flatten)


def reads_input(layer: Layer) -> bool:
    """True where the backward pass reads the layer's input; poolings keep places, dropout its mask.
    """
    return isinstance(layer, Conv | Linear | Normalisation | LRN)


def reads_output(layer: Layer) -> bool:
    """True where the backward pass reads the layer's output."""
    return isinstance(layer, ReLU | LRN)


def begins_sum(network: Network, producer: Layer, consumer: Layer, which: int) -> bool:
    """True where, of the gradients of a tensor that several layers read, that of input `which` of
    `consumer` is the first to be made.
    """
    return consumer.name == network.consumers[producer.name][-1] and consumer.inputs.index(
        producer.name) == which
