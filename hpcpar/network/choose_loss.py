"""Replacing a network's loss by name, and notes on losses that do not suit the network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hpcpar.network.graph import Network
from hpcpar.network.layers import LogisticCrossEntropy, Sigmoid, SoftmaxCrossEntropy
from hpcpar.network.layers.loss import LOSSES


def with_loss(network: Network, kind: str | None = None,
              label_smoothing: float | None = None) -> Network:
    """The network with another loss (one of `LOSSES`) or another label smoothing.

    Raises
    ------
    InputError
        The loss does not fit the network, or has no label smoothing.
    """
    loss = network.loss
    if kind not in (None, loss.kind):
        loss = LOSSES[kind](loss.name, loss.inputs)
    if label_smoothing is not None:
        loss = loss.smoothed(label_smoothing)
    if loss == network.loss:
        return network
    return replace(network, layers=(*network.layers[:-1], loss))


def loss_notes(network: Network) -> Iterator[str]:
    """Notes on a loss over classes that follows a single output or a sigmoid."""
    if not isinstance(network.loss, SoftmaxCrossEntropy | LogisticCrossEntropy):
        return
    if network.classes == 1:
        yield (f"it has one output, from which {network.loss.kind} learns nothing: give it an "
               "output for each class, or use --loss mean_squared_error with targets")
    if isinstance(network.by_name[network.loss.inputs[0]], Sigmoid):
        yield (f"it ends in a sigmoid, but {network.loss.kind} expects logits: leave the sigmoid "
               "out, or use --loss mean_squared_error with targets")
