"""Buckets: the gradients of several small layers are summed at once, with one latency."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.axis import Axis
from hpcpar.plan.layout import Layout
from hpcpar.plan.plan import Plan, Synchronisation
from hpcpar.schedule.outline_steps import Move


@dataclass(eq=False)
class Pending:
    """A layer whose gradient each rank has computed, and the movement that sums it, if any."""

    layer: Layer
    move: Move | None = None


class Buckets:
    """Collects layers, in the order in which their gradients are complete, until a bucket is full.

    Parameters
    ----------
    emit : callable
        Appends the movement that sums the gradients of some layers.
    """

    def __init__(self, network: Network, plan: Plan,
                 emit: Callable[[tuple[Layer, ...]], Move | None]) -> None:
        self.network, self.plan, self.emit = network, plan, emit
        self._open: list[Pending] = []
        self._bytes = 0

    def add(self, pending: Pending) -> None:
        """Sum a layer's gradient, now or together with the gradients of later layers."""
        layer, size = pending.layer, self._size_bytes(pending.layer)
        if self._open and not self._fits(layer, size):
            self.flush()
        self._open.append(pending)
        self._bytes += size
        if not self._joins(layer) or self._bytes >= self.plan.bucket_bytes:
            self.flush()

    def _size_bytes(self, layer: Layer) -> int:
        return layer.parameters(self.network.input_shape(layer)) * self.plan.item_bytes

    def _joins(self, layer: Layer) -> bool:
        """True where the layer may share a bucket: every rank has its whole gradient."""
        allreduces = self.plan.synchronisation is Synchronisation.ALLREDUCE
        return (allreduces and self.plan.bucket_bytes > 0
                and not self.plan.configs[layer.name].cuts_channels)

    def _fits(self, layer: Layer, size: int) -> bool:
        """True where a layer may join the open bucket: the same ranks sum it."""
        same = self.plan.configs[layer.name].key == self.plan.configs[self._open[0].layer.name].key
        return same and self._joins(layer) and self._bytes + size <= self.plan.bucket_bytes

    def flush(self) -> None:
        """Sum the gradients of the open bucket."""
        if self._open:
            move = self.emit(tuple(p.layer for p in self._open))
            for p in self._open:
                p.move = move
        self._open, self._bytes = [], 0


def bucket_layout(network: Network, plan: Plan, layers: tuple[Layer, ...]) -> Layout:
    """The gradients of layers side by side: every rank has all of them."""
    total = sum(layer.parameters(network.input_shape(layer)) for layer in layers)
    return Layout(plan.configs[layers[0].name], (Axis("items", total, total),))
