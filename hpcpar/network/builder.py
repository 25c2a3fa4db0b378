"""Writing a chain of layers one after the other."""

from __future__ import annotations

from typing import Any

from hpcpar.network.graph import Network
from hpcpar.network.layers import Input, Layer, Shape


class Chain:
    """Collects layers, each reading the one before it.

    Examples
    --------
    >>> from hpcpar.network.layers import Linear, SoftmaxCrossEntropy
    >>> net = Chain("tiny", (4,)).add(Linear, "fc", out_features=3).add(SoftmaxCrossEntropy, "loss").build()
    >>> net.parameters
    15
    """

    def __init__(self, name: str, shape: Shape) -> None:
        self.name = name
        self.layers: list[Layer] = [Input("input", (), shape)]

    def add(self, layer: type[Layer], name: str, **options: Any) -> Chain:
        """Append ``layer(name, ...)``; returns self for chaining."""
        self.layers.append(layer(name, (self.layers[-1].name,), **options))
        return self

    def build(self) -> Network:
        return Network(self.name, tuple(self.layers))
