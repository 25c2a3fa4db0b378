"""Builders of networks: a graph, whose layers name their inputs, a chain of layers, and a network
with another loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from hpcpar.errors import InputError
from hpcpar.network.graph import Network, check_inputs
from hpcpar.network.layers import (
    Concat,
    Input,
    Layer,
    LogisticCrossEntropy,
    Shape,
    Sigmoid,
    SoftmaxCrossEntropy,
)
from hpcpar.network.layers.loss import LOSSES

#: Value of a layer's field.
Option = float | str | Sequence[int] | Sequence[tuple[str | float, ...]]


class Graph:
    """Builder of any acyclic network.

    By default, each layer reads the layer added before it.

    Attributes
    ----------
    shapes : dict
        Shape of one output sample of each layer added so far.

    Examples
    --------
    A residual block:

    >>> from hpcpar.network.layers import Add, Conv2d, GlobalAvgPool, Linear, SoftmaxCrossEntropy
    >>> net = Graph("tiny", (3, 8, 8))
    >>> x = net.add(Conv2d, "stem", out_channels=4, kernel=3, padding=1)
    >>> y = net.add(Conv2d, "conv", out_channels=4, kernel=3, padding=1)
    >>> net.add(Add, "sum", after=(x, y))
    'sum'
    >>> for layer, name in (GlobalAvgPool, "pool"), (Linear, "fc"), (SoftmaxCrossEntropy, "loss"):
    ...     _ = net.add(layer, name)
    >>> net.build().is_chain
    False
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
            **options: Option) -> str:
        """Append ``layer(name, ...)``.

        Parameters
        ----------
        after : str or sequence of str, optional
            Names of the layers to read; the layer added last by default.
        **options
            Fields of the layer.

        Returns
        -------
        str
            `name`, for layers that read this one.

        Raises
        ------
        InputError
            The name is taken, an input or an option is unknown, or shapes do not fit.
        """
        if after is None:
            after = self.last
        inputs = (after,) if isinstance(after, str) else tuple(after)
        if layer is Concat:
            options.setdefault("channels",
                               tuple(self.shapes[i][0] for i in inputs if i in self.shapes))
        try:
            new = layer(name, inputs, **options)  # type: ignore[arg-type]
        except TypeError as err:
            raise InputError(f"network '{self.name}', layer '{name}' ({layer.kind}): {err}; see "
                             f"the fields of {layer.__name__}") from err
        check_inputs(self.name, new, self.shapes)
        self.shapes[name] = new.output_shape(*(self.shapes[i] for i in inputs))
        self.layers.append(new)
        return name

    def keep(self, ends: Iterable[str]) -> None:
        """Drop layers on which the outputs of `ends` do not depend."""
        needed = {self.layers[0].name, *ends}
        for layer in reversed(self.layers):
            if layer.name in needed:
                needed.update(layer.inputs)
        self.layers = [layer for layer in self.layers if layer.name in needed]

    def build(self) -> Network:
        """The checked network."""
        return Network(self.name, tuple(self.layers))


class Chain:
    """Builder of a network in which each layer reads the layer before it.

    Examples
    --------
    >>> from hpcpar.network.layers import Linear, SoftmaxCrossEntropy
    >>> net = Chain("tiny", (4,)).add(Linear, "fc", out_features=3)
    >>> net.add(SoftmaxCrossEntropy, "loss").build().parameters
    15
    """

    def __init__(self, name: str, shape: Shape) -> None:
        self.name = name
        self.graph = Graph(name, shape)

    @property
    def layers(self) -> list[Layer]:
        """The layers added so far, the input first."""
        return self.graph.layers

    def add(self, layer: type[Layer], name: str, **options: Option) -> Chain:
        """Append ``layer(name, ...)``; returns self for chaining."""
        self.graph.add(layer, name, after=None, **options)
        return self

    def build(self) -> Network:
        """The checked network."""
        return self.graph.build()


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
