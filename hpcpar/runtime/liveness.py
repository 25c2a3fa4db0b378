"""When every array of a rank is alive: from what the steps of its schedules touch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hpcpar.kernels.interface import Array
from hpcpar.network.layers import Layer
from hpcpar.runtime.arena import Arena
from hpcpar.runtime.passes import Pass
from hpcpar.runtime.program import Program
from hpcpar.runtime.tensors import which_input
from hpcpar.schedule.aliasing import reads_input, reads_output
from hpcpar.schedule.steps import PASSES, Comm, Compute, Op, Phase


@dataclass(frozen=True)
class Touch:
    """An array is read or written at a step, and with `anew` computed once more."""

    at: int
    anew: bool


class Lifetimes:
    """Collects what programs touch; every program has moments of its own.

    Parameters
    ----------
    part : callable
        The pass of a layer in a micro-batch or turn.
    arrays : callable
        The arrays before and after a communication step.
    layers : dict
        By name.
    apart : bool
        Every micro-batch makes all arrays anew; turns read what was made before them.
    """

    def __init__(
        self, arena: Arena, part: Callable[[str, int], Pass], arrays: Callable[[Comm], tuple[Array, Array]], layers: dict[str, Layer],
        apart: bool,
    ) -> None:
        self.arena, self.part, self.arrays, self.layers, self.apart = arena, part, arrays, layers, apart
        self.alive: dict[Any, int] = defaultdict(int)
        self._moments = 0
        #: By program, the first step of every life of an array.
        self.begins: list[dict[Any, list[int]]] = []

    def add(self, program: Program, filled: Sequence[tuple[Array, int, int]]) -> None:
        """The touches of a program's steps, and arrays that are filled for a part just before a
        step.
        """
        found: dict[tuple[Any, int], list[Touch]] = defaultdict(list)
        for array, part, at in filled:
            found[self.arena.owner(array), part].append(Touch(at, False))
        for i in program.mine:
            step = program.schedule.steps[i]
            for array, anew in _touched(step, self.part, self.arrays, self.layers):
                key = (self.arena.owner(array), step.part if self.apart else 0)
                found[key].append(Touch(i, anew and step.phase is Phase.RECOMPUTE))
                # it is over before the step that waits for it does anything
                if isinstance(step, Comm):
                    found[key].append(Touch(program.until[i] - 1, False))
        begins: dict[Any, list[int]] = defaultdict(list)
        for (key, _), touches in found.items():
            if key is None:
                continue
            for first, last in _lives(touches):
                self.alive[key] |= ((1 << (last - first + 1)) - 1) << (self._moments + first)
                begins[key].append(first)
        self.begins.append(begins)
        self._moments += len(program.schedule.steps) + 1

    def outputs(self, passes: Sequence[Pass]) -> dict[tuple[str, int], int]:
        """When a layer's output in a pass is alive, by name and number of the pass."""
        return {(name, p.part): self.alive[self.arena.owner(b.out)] for p in passes
                for name, b in p.blocks.items() if b.out is not None}


def _lives(touches: list[Touch]) -> list[tuple[int, int]]:
    """First and last step of an array's life; of two lives, where it is computed anew."""
    touches = sorted(touches, key=lambda t: t.at)
    again = next((i for i, t in enumerate(touches) if t.anew), 0)
    parts = (touches[:again], touches[again:]) if again else (touches,)
    return [(p[0].at, p[-1].at) for p in parts]


def _touched(
    step: Comm | Compute, part: Callable[[str, int], Pass], arrays: Callable[[Comm], tuple[Array, Array]], layers: dict[str, Layer]
) -> Iterator[tuple[Array, bool]]:
    """Arrays that a step reads or writes, and whether it makes them."""
    if isinstance(step, Comm):
        if step.phase in PASSES and not _of_moments(step):
            held, wanted = arrays(step)
            yield held, False
            yield wanted, True
        return
    if step.op is Op.UPDATE:
        return
    if step.op is Op.ACCUMULATE:
        consumer, which = step.tensor.rsplit(".", 1)[0], which_input(step.tensor)
        blocks = part(consumer, step.part).blocks[consumer]
        yield part(step.layer, step.part).blocks[step.layer].dout, False
        yield blocks.arriving.get(which), False
        yield blocks.dxs[which], False
        return
    layer, blocks = layers[step.layer], part(step.layer, step.part).blocks[step.layer]
    last = blocks.y is None
    if step.phase is not Phase.BACKWARD:
        for x in blocks.xs:
            yield x, False
        yield blocks.y, True
        if last:  # its gradient is made with the loss
            for dx in blocks.dxs:
                yield dx, False
        return
    yield blocks.dy, False
    if reads_input(layer):
        for x in blocks.xs:
            yield x, False
    if reads_output(layer):
        yield blocks.y, False
    if step.op is Op.BACKWARD:
        for dx in (*blocks.dxs, *blocks.begins.values(), *blocks.clears):
            yield dx, False


def _of_moments(step: Comm) -> bool:
    return step.tensor.removesuffix(".gradient").endswith(".moments")

