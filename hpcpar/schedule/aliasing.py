"""Which tensors layers overwrite, and which they read again in the backward pass.

The executor's memory and the predicted memory both follow these rules.
"""

from __future__ import annotations

from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    LRN,
    Activation,
    Add,
    Conv,
    Dropout,
    Flatten,
    Layer,
    Linear,
    Multiply,
    Normalisation,
    ReLU,
)


def in_place(layer: Layer, producer: Layer) -> bool:
    """True where the layer may overwrite its input: nobody's backward pass reads what it
    overwrites.
    """
    if isinstance(layer, Activation):
        rewrites = isinstance(producer, Conv | Linear | Normalisation | Add | Multiply)
        return rewrites and not reads_input(layer)
    # a dropped element is zero in the output of the ReLU before it, but its gradient is zero as
    # well
    return isinstance(layer, Flatten) or (isinstance(layer, Dropout) and isinstance(producer, ReLU))


def passes_gradient(layer: Layer) -> bool:
    """True where the gradient of the input may overwrite that of the output."""
    return isinstance(layer, Activation | Dropout | Flatten)


def reads_input(layer: Layer) -> bool:
    """True where the backward pass reads the inputs; poolings keep places, dropout its mask."""
    if isinstance(layer, Activation):
        return layer.keeps == "input"
    return isinstance(layer, Conv | Linear | Normalisation | LRN | Multiply)


def reads_output(layer: Layer) -> bool:
    """True where the backward pass reads the layer's output."""
    if isinstance(layer, Activation):
        return layer.keeps == "output"
    return isinstance(layer, LRN)


def begins_sum(network: Network, producer: Layer, consumer: Layer, which: int) -> bool:
    """True where, of the gradients of a tensor that several layers read, that of input `which` of
    `consumer` is the first to be made.
    """
    return consumer.name == network.consumers[producer.name][-1] and consumer.inputs.index(
        producer.name) == which
