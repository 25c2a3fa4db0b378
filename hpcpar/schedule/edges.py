"""The tensor between two layers: who owns which box of it, who needs which, and how it moves,
forward and backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcpar.network.graph import Network
from hpcpar.network.layers import Input, Layer
from hpcpar.plan.config import Ints
from hpcpar.plan.layout import Layout, needed, owned
from hpcpar.plan.plan import Plan
from hpcpar.schedule.paired import patterns_of
from hpcpar.schedule.pattern import Pattern


@dataclass(frozen=True)
class Edge:
    """The tensor between a producer and one of its consumers.

    Attributes
    ----------
    which : int
        Place of the tensor among the consumer's inputs.
    key : tuple
        Equal for edges that move alike: layers of equal shapes and options under the same
        configurations share it.
    """

    producer: Layer
    consumer: Layer
    which: int
    owned: Layout
    needed: Layout
    forward: Pattern
    backward: Pattern
    key: Any

    @property
    def tensor(self) -> str:
        """The name of the consumer's input."""
        return f"{self.consumer.name}.input{self.which if self.which else ''}"


class Edges:
    """All edges of a plan, or of a family of plans, for any number of samples; equal ones are
    worked out once.
    """

    def __init__(self, network: Network, plan: Plan) -> None:
        self.network, self.plan = network, plan
        self._known: dict[Any, tuple[Layout, Layout, Pattern, Pattern]] = {}
        self._needs: dict[Any, Layout] = {}

    def key(self, layer: Layer, batch: Ints) -> Any:
        """Equal for layers that work alike."""
        return (self.network.signatures[layer.name], self.plan.configs[layer.name].key,
                batch_key(batch))

    def needs(self, layer: Layer, batch: Ints) -> tuple[Layout, ...]:
        """What ranks need of each input of `layer` for `batch` samples, whoever holds it."""
        out = []
        for which in range(len(layer.inputs)):
            key = (self.key(layer, batch), which)
            if key not in self._needs:
                self._needs[key] = needed(self.network, layer, self.plan.configs[layer.name], batch,
                                          which)
            out.append(self._needs[key])
        return tuple(out)

    def into(self, layer: Layer, batch: Ints) -> tuple[Edge, ...]:
        """The edges into `layer` for `batch` samples, one for each input."""
        return tuple(self.edge(layer, which, batch) for which in range(len(layer.inputs)))

    def edge(self, layer: Layer, which: int, batch: Ints) -> Edge:
        """The edge into input `which` of `layer`; the first that is asked for is worked out with
        all others.
        """
        producer = self.network.by_name[layer.inputs[which]]
        key = self._key(producer, layer, which, batch)
        if key not in self._known:
            self._work_out([layer] if self._known else self.network.layers, batch)
        return Edge(producer, layer, which, *self._known[key], key)

    def _key(self, producer: Layer, layer: Layer, which: int, batch: Ints) -> Any:
        return (self.key(layer, batch), which, self.plan.configs[producer.name].key)

    def _work_out(self, layers: Sequence[Layer], batch: Ints) -> None:
        """The edges into some layers."""
        network, new = self.network, dict[Any, tuple[Layout, Layout]]()
        for layer in layers:
            for which, name in enumerate(layer.inputs):
                producer = network.by_name[name]
                key = self._key(producer, layer, which, batch)
                if key not in self._known and key not in new:
                    new[key] = (owned(network, producer, self.plan.configs[name], batch),
                                self.needs(layer, batch)[which])
        for (key, pair), found in zip(new.items(), patterns_of(list(new.values())), strict=True):
            self._known[key] = (*pair, *found)


def batch_key(batch: Ints) -> Any:
    """A number of samples as a key; arrays count as equal where they are the same object."""
    return ("array", id(batch)) if isinstance(batch, np.ndarray) else batch


def edges(network: Network, plan: Plan) -> dict[str, tuple[Edge, ...]]:
    """The edges into every layer but the input, by the consumer's name."""
    found = Edges(network, plan)
    return {layer.name: found.into(layer, plan.batch) for layer in network.layers
            if not isinstance(layer, Input)}
