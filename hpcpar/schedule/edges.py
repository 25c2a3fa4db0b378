"""Decides how the tensor between two layers moves from its owned to its needed boxes."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.layout import Layout, needed, owned
from hpcpar.plan.plan import Plan
from hpcpar.schedule.pattern_family import patterns
from hpcpar.schedule.steps import AnyPattern, Kind, Pattern, Role, TensorRef


@dataclass(frozen=True)
class Edge:
    """The tensor between a producer and one of its consumers.

    Attributes
    ----------
    which : int
        Index of the tensor among the consumer's inputs.
    backward, total : Pattern
        How gradients of needed boxes reach the owners, and the sum in place that comes before.
    key : tuple
        Equal for edges with equal movements: layers of equal shapes and options under the same
        configurations share it.
    """

    producer: Layer
    consumer: Layer
    which: int
    owned: Layout
    needed: Layout
    forward: AnyPattern
    backward: AnyPattern
    total: AnyPattern
    key: Hashable

    @property
    def kind(self) -> Kind | None:
        """How the tensor moves in a single plan; None where it stays in place."""
        assert isinstance(self.forward, Pattern)
        return self.forward.kind

    @property
    def adjoint_kind(self) -> Kind | None:
        """How its gradient moves in a single plan."""
        assert isinstance(self.backward, Pattern)
        return self.backward.kind

    @property
    def tensor(self) -> TensorRef:
        """The consumer's input."""
        return TensorRef(self.consumer.name, Role.INPUT, self.which)

    @property
    def gradient(self) -> TensorRef:
        """The gradient of the consumer's input."""
        return TensorRef(self.consumer.name, Role.INPUT, self.which, True)


class Edges:
    """All edges of a plan, or of a family of plans, for any number of samples.

    Edges with the same key share layouts and patterns, which are computed once.
    """

    def __init__(self, network: Network, plan: Plan) -> None:
        self.network, self.plan = network, plan
        self._known: dict[Hashable, tuple[Layout, Layout, AnyPattern, AnyPattern,
                                          AnyPattern]] = {}
        self._needs: dict[Hashable, Layout] = {}

    def key(self, layer: Layer, batch: int) -> Hashable:
        """Equal for layers that do the same work."""
        config = self.plan.configs[layer.name]
        return (self.network.signatures[layer.name], config.key, batch)

    def needs(self, layer: Layer, batch: int) -> tuple[Layout, ...]:
        """The boxes that ranks need of each input of `layer`, for `batch` samples."""
        out = []
        for which in range(len(layer.inputs)):
            key = (self.key(layer, batch), which)
            if key not in self._needs:
                config = self.plan.configs[layer.name]
                self._needs[key] = needed(self.network, layer, config, batch, which)
            out.append(self._needs[key])
        return tuple(out)

    def into(self, layer: Layer, batch: int) -> tuple[Edge, ...]:
        """The edges into `layer` for `batch` samples, one for each input."""
        return tuple(self.edge(layer, which, batch) for which in range(len(layer.inputs)))

    def edge(self, layer: Layer, which: int, batch: int) -> Edge:
        """The edge into input `which` of `layer`."""
        producer = self.network.by_name[layer.inputs[which]]
        config = self.plan.configs[producer.name]
        key = (self.key(layer, batch), which, config.key)
        if key not in self._known:
            source = owned(self.network, producer, config, batch)
            target = self.needs(layer, batch)[which]
            self._known[key] = (source, target, *patterns(source, target))
        return Edge(producer, layer, which, *self._known[key], key)


def edges(network: Network, plan: Plan) -> dict[str, tuple[Edge, ...]]:
    """The edges into every layer but the input, by the consumer's name."""
    all_edges = Edges(network, plan)
    return {layer.name: all_edges.into(layer, plan.batch) for layer in network.layers
            if layer.inputs}
