"""The largest rank's arrays while an iteration passes: what is alive at the same time counts together.

The executor lays out a rank's blocks by what the steps of its schedule touch; here the same is told from the outline, for every case.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcpar.cost.sizes import PASSES_ON, Ends, gradients, values
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer, Loss
from hpcpar.plan.layout import owned, partial
from hpcpar.plan.plan import Plan
from hpcpar.schedule.edges import Edge
from hpcpar.schedule.parts import Move, Outline
from hpcpar.schedule.sharing import in_place, passes_gradient, reads_input, reads_output
from hpcpar.schedule.steps import PASSES, Op, Phase

#: What arrays are for.
VALUE, GRADIENT, WIRE = range(3)


@dataclass(frozen=True)
class Peak:
    """Bytes of blocks that are alive at the moment of the most, of messages likewise, and of outputs at the end of the forward pass."""

    values_bytes: Any
    gradients_bytes: Any
    wire_bytes: Any
    forward_values_bytes: Any


@dataclass(frozen=True)
class Case:
    """One of a family's cases, by its place; of a single plan, the only one.

    Lives depend on what moves at all and how, sizes on the rest: cases that agree in that are looked at together.
    """

    at: int = 0

    def of(self, value: Any) -> Any:
        """The entry of an array over cases."""
        return np.ravel(value)[self.at] if np.ndim(value) else value


def kinds_of_cases(out: Outline) -> list[tuple[Case, Any]]:
    """A case of each kind, and which cases (flags) are of its kind: those with the same steps and movements."""
    rows = [step.pattern.code if isinstance(step, Move) else step.present for step in out.steps]
    rows += [np.greater(config.k, 1) for config in {id(c): c for c in out.plan.configs.values()}.values()]
    several = {np.asarray(row, np.int64).tobytes(): np.asarray(row, np.int64) for row in rows if np.size(row) > 1}
    if not several:
        return [(Case(), True)]
    _, first, kind = np.unique(np.array(list(several.values())), axis=1, return_index=True, return_inverse=True)
    return [(Case(int(at)), np.ravel(kind) == i) for i, at in enumerate(first)]


class Clock:
    """First and last step of what happens to layers and tensors in an outline, in one case."""

    def __init__(self, out: Outline, case: Case) -> None:
        self.forward: dict[str, tuple[int, int]] = {}
        self.backward: dict[str, tuple[int, int]] = {}
        self.again: dict[str, tuple[int, int]] = {}
        self.sums: dict[str, int] = {}
        self.moves: dict[str, tuple[int, int]] = {}
        self.moves_again: dict[str, tuple[int, int]] = {}
        self.turn = len(out.steps)
        for i, step in enumerate(out.steps):
            if not case.of(step.present):
                continue
            if isinstance(step, Move):
                moves = self.moves_again if step.phase is Phase.RECOMPUTE else self.moves
                begin = moves.get(step.tensor, (i, i))[0]
                moves[step.tensor] = (begin, max(step.needed_by - 1, i))
            elif step.op is Op.ACCUMULATE:
                self.sums[step.tensor] = i
            elif step.phase in PASSES:
                known = {Phase.FORWARD: self.forward, Phase.RECOMPUTE: self.again}.get(step.phase, self.backward)
                known[step.layer.name] = (known.get(step.layer.name, (i, i))[0], i)
                if step.phase is not Phase.FORWARD:
                    self.turn = min(self.turn, i)


@dataclass
class Ledger:
    """Adds up what is alive: bytes by what they are for, from one step to another."""

    born: dict[int, list[tuple[int, Any]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, what: int, size_bytes: Any, first: int, last: int) -> None:
        if np.any(size_bytes):
            self.born[first].append((what, size_bytes))
            self.born[max(first, last) + 1].append((what, -size_bytes))

    def peak(self, turn: int) -> Peak:
        """The most of the sum; `turn` is the step at which the backward pass begins."""
        now: list[Any] = [0, 0, 0]
        most: list[Any] = [0, 0, 0]
        before: Any = 0
        for at in sorted(self.born):
            for what, size in self.born[at]:
                now[what] = now[what] + size
            if at <= turn:
                before = now[VALUE]
            more = now[VALUE] + now[GRADIENT] > most[VALUE] + most[GRADIENT]
            most[:WIRE] = [np.where(more, new, old) for new, old in zip(now[:WIRE], most[:WIRE], strict=True)]
            most[WIRE] = np.maximum(most[WIRE], now[WIRE])
        return Peak(most[VALUE], most[GRADIENT], most[WIRE], before)


class Alive:
    """Lives of the arrays of some layers.

    Parameters
    ----------
    names : set of str
        The layers; edges from and to others have one end here.
    wire_bytes : callable
        Buffer of a movement.
    case : Case
        What is true of it is taken for all.
    """

    def __init__(
        self, network: Network, plan: Plan, out: Outline, names: set[str], training: bool, wire_bytes: Callable[[Move], Any], case: Case
    ) -> None:
        self.network, self.plan, self.out, self.names, self.training, self.case = network, plan, out, names, training, case
        self.clock, self.ledger, self.wire_bytes = Clock(out, case), Ledger(), wire_bytes
        self._end = len(out.steps)

    def peak(self) -> Peak:
        """Bytes at the moment of the most."""
        for layer in self.network.layers:
            if layer.name in self.names:
                self._layer(layer)
        for i, step in enumerate(self.out.steps):
            if isinstance(step, Move) and self.case.of(step.present):
                self.ledger.add(WIRE, self.wire_bytes(step), i, max(step.needed_by - 1, i))
        return self.ledger.peak(self.clock.turn)

    # -- lives -----------------------------------------------------------------------------------------------------
    def _made(self, layer: Layer, again: bool = False) -> int:
        """When the block that a layer's output lies in is written first: by the first of the layers that work in place in it."""
        while layer.inputs and self._works_in_place(layer):
            layer = self.network.by_name[layer.inputs[0]]
        first = (self.clock.again if again else self.clock.forward).get(layer.name, (0, 0))[0]
        return self._sent(f"{layer.name}.output", first, again)[0] if self._in_parts(layer) else first

    def _in_parts(self, layer: Layer) -> bool:
        """True where the output is added from partial sums (k)."""
        return bool(self.case.of(self.plan.configs[layer.name].k) > 1)

    def _works_in_place(self, layer: Layer) -> bool:
        """True where the layer overwrites its input, which nobody else reads."""
        producer = self.network.by_name[layer.inputs[0]]
        alone = len(layer.inputs) == 1 and len(self.network.consumers[producer.name]) == 1
        return alone and in_place(layer, producer) and producer.name in self.names

    def _looked_at(self, layer: Layer, forward: bool = False) -> int:
        """When the block of a layer's output is last read as an output, in the forward pass or in all."""
        last = self.clock.forward.get(layer.name, (0, 0))[1]
        if self.training and not forward:
            back = self.clock.backward.get(layer.name, (0, 0))[1] if reads_output(layer) else 0
            last = max(last, back, self.clock.again.get(layer.name, (0, 0))[1])
        if layer.inputs and self._works_in_place(layer):
            last = max(last, self._looked_at(self.network.by_name[layer.inputs[0]], forward))
        return last

    def _read(self, e: Edge, forward: bool = False) -> int:
        """When the consumer last reads its input, in the forward pass or in all."""
        last = self.clock.forward.get(e.consumer.name, (self._end, self._end))[1]
        if self.training and not forward:
            back = self.clock.backward.get(e.consumer.name, (0, 0))[1] if reads_input(e.consumer) else 0
            last = max(last, back, self.clock.again.get(e.consumer.name, (0, 0))[1])
        return last

    def _returned(self, layer: Layer) -> int:
        """When the gradient of a layer's output is last read."""
        last = self.clock.backward.get(layer.name, (0, 0))[1]
        if self._in_parts(layer) and self.plan.configs[layer.name].scatter:
            return self._sent(f"{layer.name}.output.gradient", last)[1]
        if passes_gradient(layer):
            producer = self.network.by_name[layer.inputs[0]]
            (e,) = self._into(layer)
            if producer.name in self.network.trained and len(self.network.consumers[producer.name]) == 1:
                last = max(last, self._sent(f"{e.tensor}.gradient", last)[1])
                if producer.name in self.names and self.case.of(e.backward.code) in PASSES_ON:
                    last = max(last, self._returned(producer))
        return last

    def _sent(self, tensor: str, otherwise: int, again: bool = False) -> tuple[int, int]:
        """When a movement begins and ends."""
        return (self.clock.moves_again if again else self.clock.moves).get(tensor, (otherwise, otherwise))

    def _into(self, layer: Layer) -> tuple[Edge, ...]:
        return self.out.edges.into(layer, self.plan.samples_of_a_pass)

    # -- arrays ----------------------------------------------------------------------------------------------------
    def _add(self, what: int, items: Any, first: int, last: int) -> None:
        self.ledger.add(what, items * self.plan.item_bytes, first, last)

    def _layer(self, layer: Layer) -> None:
        network, plan = self.network, self.plan
        config, samples = plan.configs[layer.name], plan.samples_of_a_pass
        readers = network.consumers[layer.name]
        if len(readers) > 1:
            self._many(layer, readers)
        if self._in_parts(layer):
            parts = partial(network, layer, config, samples).largest_items
            for again in (False, True)[:1 + (layer.name in self.clock.again)]:
                first, last = (self.clock.again if again else self.clock.forward)[layer.name]
                self._add(VALUE, parts, first, self._sent(f"{layer.name}.output", last, again)[1])
            if self.training and config.scatter and layer.name in network.trained:
                last = self.clock.backward[layer.name][1]
                self._add(GRADIENT, parts, self._sent(f"{layer.name}.output.gradient", last)[0], last)
        for e in self._into(layer) if layer.inputs else ():
            if e.producer.name in self.names:
                self._edge(e)
            else:
                first, last = self._sent(e.tensor, self.clock.forward[layer.name][0])
                self._add(VALUE, e.needed.largest_items, first, max(self._read(e), last))
                if self.training and e.producer.name in network.trained:
                    first = self._gradient_made(layer)
                    self._add(GRADIENT, e.needed.largest_items, first, self._sent(f"{e.tensor}.gradient", first)[1])
        for name in readers:
            if name not in self.names and len(readers) == 1:
                (e,) = (e for e in self._into(network.by_name[name]) if e.producer is layer)
                self._add(VALUE, e.owned.largest_items, self._made(layer), max(self._looked_at(layer), self._sent(e.tensor, self._end)[1]))
                if self.training and layer.name in network.trained:
                    self._add(GRADIENT, e.owned.largest_items, self._sent(f"{e.tensor}.gradient", 0)[0], self._returned(layer))

    def _gradient_made(self, layer: Layer) -> int:
        """When a layer makes the gradient of its input: the loss does with its value."""
        if isinstance(layer, Loss):
            return self.clock.forward[layer.name][0]
        return self.clock.backward[layer.name][0]

    def _many(self, layer: Layer, readers: tuple[str, ...]) -> None:
        """An output that several layers read, and its gradient, which is a sum."""
        edges = [e for name in dict.fromkeys(readers) for e in self._into(self.network.by_name[name]) if e.producer is layer]
        size = owned(self.network, layer, self.plan.configs[layer.name], self.plan.samples_of_a_pass).largest_items

        def last(forward: bool, again: bool) -> int:
            out = self._looked_at(layer, forward)
            for e in edges:
                moved = bool(self.case.of(e.forward.code))
                out = max(out, self._sent(e.tensor, 0, again)[1] if moved else self._read(e, forward))
            return out

        twice = layer.name in self.clock.again
        self._add(VALUE, size, self._made(layer), last(twice, False))
        if twice:
            self._add(VALUE, size, self._made(layer, True), last(False, True))
        if self.training and layer.name in self.network.trained:
            first = min(self.clock.backward.get(e.consumer.name, (self._end, 0))[0] for e in edges)
            self._add(GRADIENT, size, first, self._returned(layer))

    def _edge(self, e: Edge) -> None:
        network = self.network
        made = owned(network, e.consumer, self.plan.configs[e.consumer.name], self.plan.samples_of_a_pass)
        ends, shared = Ends.of(e, made), len(network.consumers[e.producer.name]) > 1
        x = values(ends, e, shared)
        twice = e.producer.name in self.clock.again
        for again in (False, True)[:1 + twice]:
            forward = twice and not again
            read, looked = self._read(e, forward), self._looked_at(e.producer, forward)
            begin, end = self._sent(e.tensor, read, again)
            self._add(VALUE, x.both, self._made(e.producer, again), max(read, looked))
            if not again or e.tensor in self.clock.moves_again:
                self._add(VALUE, x.reader, begin, read)
            self._add(VALUE, x.owner, self._made(e.producer, again), max(end, looked))
        if not self.training or e.producer.name not in network.trained:
            return
        dx = gradients(network, ends, e)
        first, tensor = self._gradient_made(e.consumer), f"{e.tensor}.gradient"
        begin, end = self._sent(tensor, self.clock.backward[e.consumer.name][1])
        if shared:
            last = max(end, self.clock.sums.get(e.tensor, end))
            self._add(GRADIENT, dx.reader, first, last)
            self._add(GRADIENT, dx.owner, begin, last)
            return
        self._add(GRADIENT, dx.both, first, self._returned(e.producer))
        self._add(GRADIENT, dx.reader, first, end)
        self._add(GRADIENT, dx.owner, begin, self._returned(e.producer))
