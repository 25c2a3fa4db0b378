"""The memory that one rank needs for its schedules: buffers, their lifetimes and their addresses.

The executor allocates by this plan, and the cost model predicts memory from it. It needs no MPI, no
backend and no arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcpar.network.graph import Network
from hpcpar.plan.boxes import Interval
from hpcpar.plan.plan import Plan
from hpcpar.schedule.edges import Edges
from hpcpar.schedule.memory_plan.liveness import add_lives
from hpcpar.schedule.memory_plan.packing import ALIGNMENT_BYTES, pack, peak
from hpcpar.schedule.memory_plan.passes import PassPlans
from hpcpar.schedule.memory_plan.rank_steps import RankSteps, rank_steps
from hpcpar.schedule.memory_plan.tensors import StepTensors
from hpcpar.schedule.memory_plan.views import Buffer, Life, PlannedBuffers
from hpcpar.schedule.steps import Comm, Schedule


@dataclass(frozen=True)
class Places:
    """The first item of each buffer in one array, and the array's size."""

    first: dict[Buffer, int]
    items: int
    #: Buffers that must be zero but share memory with others, so each life begins with a clear.
    shared: frozenset[Buffer]


@dataclass(frozen=True)
class MemoryPlan:
    """The memory of one rank.

    Attributes
    ----------
    passes : PassPlans
        The blocks of every layer in every pass.
    tensors : StepTensors
        The views that steps read and write.
    programs : tuple of RankSteps
        The rank's part of each schedule.
    """

    plan: Plan
    rank: int
    training: bool
    passes: PassPlans
    tensors: StepTensors
    programs: tuple[RankSteps, ...]
    buffers: tuple[Buffer, ...]

    def peak(self) -> tuple[Buffer, ...]:
        """The buffers that are alive at the moment of peak memory."""
        alive = self.moments([b.lives for b in self.buffers])
        _, moment = peak([b.items for b in self.buffers], alive)
        return tuple(b for b, bits in zip(self.buffers, alive, strict=True) if bits >> moment & 1)

    def place(self) -> Places:
        """Pack the buffers; buffers that are never alive together may share memory."""
        unit = ALIGNMENT_BYTES // self.plan.item_bytes
        sizes = [-(-b.items // unit) * unit for b in self.buffers]
        places, total = pack(sizes, self.moments([b.lives for b in self.buffers]))
        total = max(total, *sizes, 0)  # buffers that no step touches lie anywhere
        spans = [(at, at + size) for at, size in zip(places, sizes, strict=True)]
        shared = frozenset(b for b, span in zip(self.buffers, spans, strict=True)
                           if b.zero and _overlaps(span, spans) > 1)
        return Places(dict(zip(self.buffers, places, strict=True)), total, shared)

    def in_flight(self, program: int, step: int) -> Life:
        """The steps during which the messages of a communication step are in flight."""
        return Life(program, step, self.programs[program].until[step] - 1)

    def moments(self, lives: Sequence[Sequence[Life]]) -> list[int]:
        """Bit masks, one per sequence of lives, with a bit for every step of every program."""
        starts = [0]
        for steps in self.programs:
            starts.append(starts[-1] + len(steps.schedule.steps) + 1)
        out = []
        for of_buffer in lives:
            bits = 0
            for life in of_buffer:
                length = life.last - life.first + 1
                bits |= ((1 << length) - 1) << (starts[life.program] + life.first)
            out.append(bits)
        return out


def _overlaps(span: Interval, others: list[Interval]) -> int:
    """The number of `others` that overlap `span`."""
    return sum(1 for start, stop in others if max(start, span[0]) < min(stop, span[1]))


def plan_memory(network: Network, plan: Plan, rank: int, schedules: Sequence[Schedule], *,
                training: bool, edges: Edges | None = None) -> MemoryPlan:
    """Plan the memory of a rank.

    Parameters
    ----------
    schedules : sequence of Schedule
        The schedules that the rank runs, one after the other, in the same memory.
    training : bool
        False leaves out gradients.
    """
    buffers = PlannedBuffers()
    edges = Edges(network, plan) if edges is None else edges
    passes = PassPlans(network, plan, rank, edges, buffers, training)

    def overwrites(sent: Comm, part: int) -> bool:
        """True where micro-batch `part` uses the same slot for the output that `sent` moves."""
        producer = tensors.producer(sent)
        slots = [passes.find(producer, p).slots.of_layer(producer) for p in (part, sent.part)]
        return slots[0] == slots[1]

    tensors = StepTensors(network, plan, rank, passes)
    programs = tuple(rank_steps(network, plan, s, rank, overwrites) for s in schedules)
    images = network.layers[0].name
    for number, steps in enumerate(programs):
        loaded = {part: passes.all[part].blocks[images].out for part in steps.loads.values()}
        add_lives(number, steps, plan, tensors,
                  {part: None if view is None else view.owner for part, view in loaded.items()})
    return MemoryPlan(plan, rank, training, passes, tensors, programs, buffers.all)
