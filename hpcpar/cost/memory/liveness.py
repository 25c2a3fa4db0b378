"""The largest rank's arrays while an iteration passes: what is alive at the same time counts
together.

The executor lays out a rank's blocks by what the steps of its schedule touch; here the same is told
from the outline, for every case.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcpar.cost.memory.sizes import PASSES_ON, Sizes
from hpcpar.network.layers import Layer, Loss
from hpcpar.schedule.aliasing import in_place, passes_gradient, reads_input, reads_output
from hpcpar.schedule.edges import Edge
from hpcpar.schedule.outline_steps import Move, Outline
from hpcpar.schedule.steps import PASSES, Op, Phase

#: What arrays are for.
VALUE, GRADIENT, WIRE = range(3)


@dataclass(frozen=True)
class Peak:
    """Bytes of blocks that are alive at the moment of the most, of messages likewise, and of
    outputs at the end of the forward pass.
    """

    values_bytes: Any
    gradients_bytes: Any
    wire_bytes: Any
    forward_values_bytes: Any


@dataclass(frozen=True)
class Case:
    """One of a family's cases, by its place; of a single plan, the only one.

    Lives depend on what moves at all and how, sizes on the rest: cases that agree in that are
    looked at together.
    """

    at: int = 0

    def of(self, value: Any) -> Any:
        """The entry of an array over cases."""
        return value.flat[self.at] if isinstance(value, np.ndarray) and value.ndim else value


def kinds_of_cases(out: Outline) -> list[tuple[Case, Any]]:
    """A case of each kind, and which cases (flags) are of its kind: those with the same steps and
    movements.
    """
    rows = [step.pattern.code if isinstance(step, Move) else step.present for step in out.steps]
    rows += [np.greater(config.k, 1)
             for config in {id(c): c for c in out.plan.configs.values()}.values()]
    several = {np.asarray(row, np.int64).tobytes(): np.asarray(row, np.int64) for row in rows
               if np.size(row) > 1}
    if not several:
        return [(Case(), True)]
    _, first, kind = np.unique(np.array(list(several.values())), axis=1, return_index=True,
                               return_inverse=True)
    return [(Case(int(at)), np.ravel(kind) == i) for i, at in enumerate(first)]


class Clock:
    """First and last step of what happens to layers and tensors in an outline, in one case."""

    def __init__(self, out: Outline, case: Case) -> None:
        self.case = case
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
    gone: dict[int, list[tuple[int, Any]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, what: int, size_bytes: Any, first: int, last: int) -> None:
        if isinstance(size_bytes, int) and not size_bytes:
            return
        self.born[first].append((what, size_bytes))
        self.gone[max(first, last) + 1].append((what, size_bytes))

    def peak(self, turn: int) -> Peak:
        """The most of the sum; `turn` is the step at which the backward pass begins."""
        now: list[Any] = [0, 0, 0]
        most: list[Any] = [0, 0, 0]
        before: Any = 0
        for at in sorted({*self.born, *self.gone}):
            for what, size in self.gone.get(at, ()):
                now[what] = now[what] - size
            for what, size in self.born.get(at, ()):
                now[what] = now[what] + size
            if at <= turn:
                before = now[VALUE]
            if at in self.born:
                more = now[VALUE] + now[GRADIENT] > most[VALUE] + most[GRADIENT]
                most[:WIRE] = [_chosen(more, new, old) for new, old in zip(now[:WIRE], most[:WIRE], strict=True)]
                most[WIRE] = _chosen(now[WIRE] > most[WIRE], now[WIRE], most[WIRE])
        return Peak(most[VALUE], most[GRADIENT], most[WIRE], before)


def _chosen(flag: Any, this: Any, other: Any) -> Any:
    """`this` where `flag` holds, in every case or in some."""
    if isinstance(flag, bool):
        return this if flag else other
    return np.where(flag, this, other)


class Alive:
    """Lives of the arrays of some layers.

    Parameters
    ----------
    sizes : Sizes
        Of the plan's arrays, for any case and any layers.
    names : set of str
        The layers; edges from and to others have one end here.
    wire_bytes : callable
        Buffer of a movement.
    clock : Clock
        Of a case: what is true of it is taken for all.
    """

    def __init__(
        self, sizes: Sizes, out: Outline, names: set[str], training: bool, wire_bytes: Callable[[Move], Any], clock: Clock
    ) -> None:
        self.network, self.plan, self.sizes = sizes.network, sizes.plan, sizes
        self.out, self.names, self.training, self.case = out, names, training, clock.case
        self.clock, self.ledger, self.wire_bytes = clock, Ledger(), wire_bytes
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

    # -- lives -------------------------------------------------------------------------------------
    def _made(self, layer: Layer, again: bool = False) -> int:
        """When the block that a layer's output lies in is written first: by the first of the layers
        that work in place in it.
        """
        while layer.inputs and self._works_in_place(layer):
            layer = self.network.by_name[layer.inputs[0]]
        first = (self.clock.again if again else self.clock.forward).get(layer.name, (0, 0))[0]
        return self._sent(f"{layer.name}.output", first,
                          again)[0] if self._in_parts(layer) else first

    def _in_parts(self, layer: Layer) -> bool:
        """True where the output is added from partial sums (k)."""
        return bool(self.case.of(self.plan.configs[layer.name].k) > 1)

    def _works_in_place(self, layer: Layer) -> bool:
        """True where the layer overwrites its input, which nobody else reads."""
        producer = self.network.by_name[layer.inputs[0]]
        alone = len(layer.inputs) == 1 and len(self.network.consumers[producer.name]) == 1
        return alone and in_place(layer, producer) and producer.name in self.names

    def _looked_at(self, layer: Layer, forward: bool = False) -> int:
        """When the block of a layer's output is last read as an output, in the forward pass or in
        all.
        """
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
            back = self.clock.backward.get(e.consumer.name,
                                           (0, 0))[1] if reads_input(e.consumer) else 0
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
            if producer.name in self.network.trained and len(
                self.network.consumers[producer.name]) == 1:
                last = max(last, self._sent(f"{e.tensor}.gradient", last)[1])
                if producer.name in self.names and self.case.of(e.backward.code) in PASSES_ON:
                    last = max(last, self._returned(producer))
        return last

    def _sent(self, tensor: str, otherwise: int, again: bool = False) -> tuple[int, int]:
        """When a movement begins and ends."""
        return (self.clock.moves_again if again else self.clock.moves).get(tensor, (otherwise, otherwise))

    def _into(self, layer: Layer) -> tuple[Edge, ...]:
        return self.out.edges.into(layer, self.plan.samples_of_a_pass)

    # -- arrays ------------------------------------------------------------------------------------
    def _layer(self, layer: Layer) -> None:
        network, plan = self.network, self.plan
        config = plan.configs[layer.name]
        readers = network.consumers[layer.name]
        if len(readers) > 1:
            self._many(layer, readers)
        if self._in_parts(layer):
            parts = self.sizes.partial(layer)
            for again in (False, True)[:1 + (layer.name in self.clock.again)]:
                first, last = (self.clock.again if again else self.clock.forward)[layer.name]
                self.ledger.add(VALUE, parts, first,
                                self._sent(f"{layer.name}.output", last, again)[1])
            if self.training and config.scatter and layer.name in network.trained:
                last = self.clock.backward[layer.name][1]
                self.ledger.add(GRADIENT, parts,
                                self._sent(f"{layer.name}.output.gradient", last)[0], last)
        for e in self._into(layer) if layer.inputs else ():
            if e.producer.name in self.names:
                self._edge(e)
            else:
                first, last = self._sent(e.tensor, self.clock.forward[layer.name][0])
                needed_bytes = self.sizes.needed(e)
                self.ledger.add(VALUE, needed_bytes, first, max(self._read(e), last))
                if self.training and e.producer.name in network.trained:
                    first = self._gradient_made(layer)
                    self.ledger.add(GRADIENT, needed_bytes, first,
                                    self._sent(f"{e.tensor}.gradient", first)[1])
        for name in readers:
            if name not in self.names and len(readers) == 1:
                (e,) = (e for e in self._into(network.by_name[name]) if e.producer is layer)
                owned_bytes = self.sizes.held(e)
                self.ledger.add(VALUE, owned_bytes, self._made(layer),
                                max(self._looked_at(layer), self._sent(e.tensor, self._end)[1]))
                if self.training and layer.name in network.trained:
                    self.ledger.add(GRADIENT, owned_bytes, self._sent(f"{e.tensor}.gradient", 0)[0],
                                    self._returned(layer))

    def _gradient_made(self, layer: Layer) -> int:
        """When a layer makes the gradient of its input: the loss does with its value."""
        if isinstance(layer, Loss):
            return self.clock.forward[layer.name][0]
        return self.clock.backward[layer.name][0]

    def _many(self, layer: Layer, readers: tuple[str, ...]) -> None:
        """An output that several layers read, and its gradient, which is a sum."""
        edges = [e for name in dict.fromkeys(readers)
                 for e in self._into(self.network.by_name[name]) if e.producer is layer]
        size = self.sizes.owned(layer)

        def last(forward: bool, again: bool) -> int:
            out = self._looked_at(layer, forward)
            for e in edges:
                moved = bool(self.case.of(e.forward.code))
                out = max(out, self._sent(e.tensor, 0, again)[1] if moved
                          else self._read(e, forward))
            return out

        twice = layer.name in self.clock.again
        self.ledger.add(VALUE, size, self._made(layer), last(twice, False))
        if twice:
            self.ledger.add(VALUE, size, self._made(layer, True), last(False, True))
        if self.training and layer.name in self.network.trained:
            first = min(self.clock.backward.get(e.consumer.name, (self._end, 0))[0] for e in edges)
            self.ledger.add(GRADIENT, size, first, self._returned(layer))

    def _edge(self, e: Edge) -> None:
        network = self.network
        shared = len(network.consumers[e.producer.name]) > 1
        x = self.sizes.values(e, shared)
        twice = e.producer.name in self.clock.again
        for again in (False, True)[:1 + twice]:
            forward = twice and not again
            read, looked = self._read(e, forward), self._looked_at(e.producer, forward)
            begin, end = self._sent(e.tensor, read, again)
            self.ledger.add(VALUE, x.both, self._made(e.producer, again), max(read, looked))
            if not again or e.tensor in self.clock.moves_again:
                self.ledger.add(VALUE, x.reader, begin, read)
            self.ledger.add(VALUE, x.owner, self._made(e.producer, again), max(end, looked))
        if not self.training or e.producer.name not in network.trained:
            return
        dx = self.sizes.gradients(e, shared)
        first, tensor = self._gradient_made(e.consumer), f"{e.tensor}.gradient"
        begin, end = self._sent(tensor, self.clock.backward[e.consumer.name][1])
        if shared:
            last = max(end, self.clock.sums.get(e.tensor, end))
            self.ledger.add(GRADIENT, dx.reader, first, last)
            self.ledger.add(GRADIENT, dx.owner, begin, last)
            return
        self.ledger.add(GRADIENT, dx.both, first, self._returned(e.producer))
        self.ledger.add(GRADIENT, dx.reader, first, end)
        self.ledger.add(GRADIENT, dx.owner, begin, self._returned(e.producer))
