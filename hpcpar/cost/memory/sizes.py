"""Sizes of the arrays that the two ends of an edge need, on the largest rank, for every case of a
family.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer, Loss
from hpcpar.plan.axis import entry
from hpcpar.plan.layout import Layout, owned, partial
from hpcpar.plan.plan import Plan
from hpcpar.schedule.aliasing import begins_sum, in_place, passes_gradient
from hpcpar.schedule.edges import Edge, Edges
from hpcpar.schedule.steps import CODES, Kind

#: Codes of movements after which the gradient of a tensor is a part of that of its reader's input,
#: or holds it.
PASSES_ON = (0, CODES[Kind.HALO], CODES[Kind.ALLREDUCE])


@dataclass(frozen=True)
class Ends:
    """What decides the memory of an edge: largest boxes, and codes of movements.

    Attributes
    ----------
    need, own, made : int
        Items of what the consumer needs, of what the producer owns, of the consumer's output.
    forward, backward : int
        How the tensor and its gradient move.
    """

    need: Any
    own: Any
    made: Any
    forward: Any
    backward: Any

    @classmethod
    def of(cls, e: Edge, made: Layout) -> Ends:
        """Those of an edge, and of what ranks own of the consumer's output."""
        codes = (np.asarray(pattern.code) for pattern in (e.forward, e.backward))
        return cls(e.needed.largest_items, e.owned.largest_items, made.largest_items, *codes)

    def at(self, place: tuple[int, ...]) -> Ends:
        """Those of a case of a family."""
        return Ends(*(entry(value, place) for value in (self.need, self.own, self.made,
                                                        self.forward, self.backward)))


@dataclass(frozen=True)
class Arrays:
    """Items of the arrays of an edge.

    Attributes
    ----------
    both : int
        Of one array for the consumer's end and the producer's.
    reader, owner : int
        Of arrays of their own.
    """

    both: Any
    reader: Any
    owner: Any

    @property
    def items(self) -> Any:
        return self.both + self.reader + self.owner


def where(flag: Any, yes: Any, no: Any) -> Any:
    """As NumPy's; of a single case without making an array."""
    return np.where(flag, yes, no) if isinstance(flag,
                                                 np.ndarray) and flag.ndim else yes if flag else no


def values(ends: Ends, e: Edge, shared: bool) -> Arrays:
    """The consumer's input and the producer's output; the latter is elsewhere where several layers
    read it (`shared`).
    """
    need, own, code, layer = ends.need, ends.own, ends.forward, e.consumer
    still = code == 0
    if shared:
        return Arrays(0, where(still, 0, need), 0)
    reuse = np.equal(need, ends.made) & (not isinstance(layer, Loss) and in_place(layer, e.producer)
                                         and len(layer.inputs) == 1)
    halo = code == CODES[Kind.HALO]
    inside = halo | ((code != CODES[Kind.REDISTRIBUTE]) & (need >= own))
    moved = where(halo, np.maximum(need, own), where(reuse, 0, need))
    both = where(still, where(reuse & np.equal(need, own), 0, own), where(inside, moved, 0))
    apart = ~still & ~inside
    return Arrays(both, where(apart, moved, 0), where(apart, own, 0))


def gradients(network: Network, ends: Ends, e: Edge) -> Arrays:
    """The gradients of the consumer's input and of the producer's output."""
    need, own, code = ends.need, ends.own, ends.backward
    if len(network.consumers[e.producer.name]) > 1:
        return _one_of_many(network, ends, e)
    again = np.equal(need, ends.made) & passes_gradient(e.consumer)
    whole = where(again, 0, need)
    part = ((code == 0) | (code == CODES[Kind.ALLGATHER])) & (need < own)
    halo = code == CODES[Kind.HALO]
    view = (code == CODES[Kind.ALLREDUCE]) | ((code == 0) & (need >= own))
    both = where(part, own, where(halo, np.maximum(need, own), where(view, whole, 0)))
    apart = ~(part | halo | view)
    return Arrays(both, where(apart, whole, 0), where(apart, own, 0))


def _one_of_many(network: Network, ends: Ends, e: Edge) -> Arrays:
    """The gradient that one of several readers gives: the first goes where the sum is made, which
    is elsewhere.
    """
    need, own, code = ends.need, ends.own, ends.backward
    still = (code == 0) | (code == CODES[Kind.ALLREDUCE])
    if begins_sum(network, e.producer, e.consumer, e.which):
        return Arrays(0, where(still & np.equal(need, own), 0, need), 0)
    return Arrays(0, need, where(still, 0, own))


class Sizes:
    """Bytes of a plan's arrays on the largest rank; those of layers and of edges that are alike are
    worked out once.

    An array that no case has is 0, and one number stands for cases that are all alike.
    """

    def __init__(self, network: Network, plan: Plan, edges: Edges) -> None:
        self.network, self.plan, self.edges = network, plan, edges
        self._known: dict[Any, Any] = {}

    def once(self, key: Any, find: Callable[[], Any]) -> Any:
        """What was found for the key before, or is found now."""
        if key not in self._known:
            self._known[key] = find()
        return self._known[key]

    def owned(self, layer: Layer) -> Any:
        """The layer's output."""
        return self._output("owned", owned, layer)

    def partial(self, layer: Layer) -> Any:
        """The layer's output before partial sums are added."""
        return self._output("partial", partial, layer)

    def _output(self, what: str, layout: Callable[..., Layout], layer: Layer) -> Any:
        config, samples = self.plan.configs[layer.name], self.plan.samples_of_a_pass
        key = (what, self.edges.key(layer, samples))
        return self.once(key,
                         lambda: self._bytes(layout(self.network, layer, config,
                                                    samples).largest_items))

    def needed(self, e: Edge) -> Any:
        """What the consumer needs of an edge's tensor."""
        return self._bytes(self._ends(e).need)

    def held(self, e: Edge) -> Any:
        """What the producer owns of it."""
        return self._bytes(self._ends(e).own)

    def values(self, e: Edge, shared: bool) -> Arrays:
        """See `values`."""
        key = ("values", e.key, shared, in_place(e.consumer, e.producer))
        return self.once(key, lambda: self._of_arrays(values(self._ends(e), e, shared)))

    def gradients(self, e: Edge, shared: bool) -> Arrays:
        """See `gradients`."""
        key = ("gradients", e.key, shared,
               begins_sum(self.network, e.producer, e.consumer, e.which))
        return self.once(key, lambda: self._of_arrays(gradients(self.network, self._ends(e), e)))

    def _ends(self, e: Edge) -> Ends:
        samples = self.plan.samples_of_a_pass
        return self.once(("ends", e.key),
                         lambda: Ends.of(e,
                                         owned(self.network, e.consumer,
                                               self.plan.configs[e.consumer.name], samples)))

    def _of_arrays(self, found: Arrays) -> Arrays:
        return Arrays(self._bytes(found.both), self._bytes(found.reader), self._bytes(found.owner))

    def _bytes(self, items: Any) -> Any:
        return plain(items * self.plan.item_bytes)


def plain(size: Any) -> Any:
    """A size for every case as one number where it is a single one, or none in any case."""
    if not np.ndim(size) or not np.any(size):
        return int(np.max(size))
    return size
