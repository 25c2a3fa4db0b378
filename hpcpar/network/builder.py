"""Writing networks: a graph whose layers name what they read, and a chain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcpar.errors import InputError
from hpcpar.network.graph import Network, check_inputs
from hpcpar.network.layers import Concat, Input, Layer, Shape


class Graph:
    """Collects layers; each reads the one added before it unless ``after`` names others.

    Attributes
    ----------
    shapes : dict
        Shape of one output sample of every layer so far.

    Examples
    --------
    A residual block:

    >>> from hpcpar.network.layers import Add, Conv2d, GlobalAvgPool, Linear, ReLU,
    SoftmaxCrossEntropy >>> net = Graph("tiny", (3, 8, 8)) >>> x = net.add(Conv2d, "stem",
    out_channels=4, kernel=(3, 3), padding=(1, 1)) >>> net.add(ReLU, "relu") 'relu' >>> y =
    net.add(Conv2d, "conv", out_channels=4, kernel=(3, 3), padding=(1, 1)) >>> net.add(Add, "sum",
    after=(x, y)) 'sum' >>> for layer, name in (GlobalAvgPool, "pool"), (Linear, "fc"),
    (SoftmaxCrossEntropy, "loss"): ...     _ = net.add(layer, name) >>> net.build().is_chain False
    """

    def __init__(self, name: str, shape: Shape) -> None:
        self.name = name
        first = Input("input", (), tuple(shape))
        self.layers: list[Layer] = [first]
        self.shapes: dict[str, Shape] = {first.name: first.output_shape(())}

    @property
    def last(self) -> str:
        """Name of the layer added last."""
        return self.layers[-1].name

    def add(self, layer: type[Layer], name: str, *, after: str | Sequence[str] | None = None,
            **options: Any) -> str:
        """Append ``layer(name, ...)``.

        Parameters
        ----------
        layer : type
            Class of the layer.
        name : str
            A new name.
        after : str or sequence of str, optional
            The layers that it reads; the one added last by default.
        **options
            The layer's own fields.

        Returns
        -------
        str
            The name, for layers that read it later.

        Raises
        ------
        InputError
            The name is taken, what it reads is not there, an option is unknown, or shapes do not
            fit.
        """
        inputs = (self.last,) if after is None else (after,) if isinstance(after, str) else tuple(after)
        if name in self.shapes:
            raise InputError(
                f"network '{self.name}' has two layers named '{name}'; names must differ")
        if layer is Concat:
            options.setdefault("channels",
                               tuple(self.shapes[i][0] for i in inputs if i in self.shapes))
        try:
            new = layer(name, inputs, **options)
        except TypeError as err:
            raise InputError(f"network '{self.name}', layer '{name}' ({layer.kind}): {err}; see the fields of {layer.__name__}") from err
        check_inputs(new, self.shapes)
        self.shapes[name] = new.output_shape(*(self.shapes[i] for i in inputs))
        self.layers.append(new)
        return name

    def build(self) -> Network:
        """The network, checked."""
        return Network(self.name, tuple(self.layers))


class Chain:
    """Collects layers, each reading the one before it.

    Examples
    --------
    >>> from hpcpar.network.layers import Linear, SoftmaxCrossEntropy
    >>> net = Chain("tiny", (4,)).add(Linear, "fc", out_features=3).add(SoftmaxCrossEntropy,
    "loss").build() >>> net.parameters 15
    """

    def __init__(self, name: str, shape: Shape) -> None:
        self.name = name
        self.graph = Graph(name, shape)

    @property
    def layers(self) -> list[Layer]:
        return self.graph.layers

    def add(self, layer: type[Layer], name: str, **options: Any) -> Chain:
        """Append ``layer(name, ...)``; returns self for chaining."""
        self.graph.add(layer, name, **options)
        return self

    def build(self) -> Network:
        return self.graph.build()
