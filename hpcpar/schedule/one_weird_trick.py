"""Decides where one weird trick switches from splitting samples to splitting channels."""

from __future__ import annotations

from hpcpar.errors import InputError
from hpcpar.network.graph import Network


def switch(network: Network) -> int:
    """Index of the first layer that reads features, where one weird trick switches from splitting
    samples to splitting channels.

    Raises
    ------
    InputError
        No layer reads features.
    """
    at = next((i for i, layer in enumerate(network.layers)
               if len(network.shapes[layer.name]) == 1), None)
    if at is None:
        raise InputError(f"network '{network.name}' has layers on images alone, so one weird trick "
                         "has no fully connected layer to switch at; use the strategy data")
    return min(at + 1, len(network.layers) - 1)
