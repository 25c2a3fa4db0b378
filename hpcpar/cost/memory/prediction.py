"""The memory of the largest rank, as the executor will allocate it: the same plan of memory, made
without arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace

from hpcpar.cost.memory.memory import (
    NOTHING,
    Memory,
    MovedBytes,
    OfRank,
    kept_bytes,
    message_bytes,
    weights_memory,
)
from hpcpar.cost.memory.ranks import large_ranks
from hpcpar.network.graph import Network
from hpcpar.plan.plan import PipelineOrder, Plan
from hpcpar.schedule.edges import Edges
from hpcpar.schedule.lower import freeze, lower
from hpcpar.schedule.memory_plan.packing import peak
from hpcpar.schedule.memory_plan.plan import MemoryPlan, plan_memory
from hpcpar.schedule.memory_plan.weights import weight_roles
from hpcpar.schedule.outline_steps import Move, Outline
from hpcpar.schedule.pipeline_order import firsts
from hpcpar.schedule.steps import Algorithm, Comm, Phase, Schedule, TensorRef

#: Bytes of the messages of a movement, by its phase, layer and tensor.
MessageBytes = Mapping[tuple[Phase, str, TensorRef], int]


@dataclass(frozen=True)
class RankMemory:
    """The memory of one rank, and the part of every layer.

    Attributes
    ----------
    layers : dict
        By the layer's name; they add up to `total`.
    """

    rank: int
    layers: dict[str, Memory]

    @property
    def total(self) -> Memory:
        return sum(self.layers.values(), NOTHING)

    def grown(self, before: RankMemory, times: int) -> RankMemory:
        """Further by `times` the difference from another."""
        layers = {}
        for name, held in self.layers.items():
            old = asdict(before.layers[name])
            grown = {k: v + times * (v - old[k]) for k, v in asdict(held).items()}
            layers[name] = Memory(**grown)
        return replace(self, layers=layers)


def rank_memories(network: Network, plan: Plan, out: Outline, moved_bytes: MovedBytes, *,
                  training: bool = True) -> Iterator[RankMemory]:
    """The memory of ranks among which is the one that needs most; it is most likely the first.

    Parameters
    ----------
    out : Outline
        The plan's; the movements in it are those of `moved_bytes`.
    """
    sizes = {(s.phase, s.layer, s.tensor): int(message_bytes(s, moved_bytes))
             for s in out.steps if isinstance(s, Move) and s.present}
    ranks = large_ranks(network, plan, out.edges)
    passes = [_Passes(network, each, out, sizes, training) for each in _shortened(network, plan)]
    further = plan.microbatches - passes[-1].plan.microbatches
    for rank in ranks:
        *before, last = (p.of(rank) for p in passes)
        yield last.grown(before[0], further) if before else last


def _shortened(network: Network, plan: Plan) -> list[Plan]:
    """The plan; one of many micro-batches is planned with few, which take as much memory (1F1B), or
    with two numbers of them, as it grows by the same with each (GPipe).
    """
    stages = len(firsts(network, plan))
    counts = [2, 3] if plan.order is PipelineOrder.GPIPE else [stages + 1]
    if plan.microbatches <= counts[-1]:
        return [plan]
    samples = int(plan.samples_of_a_pass)
    return [replace(plan, microbatches=n, batch=n * samples) for n in counts]


class _Passes:
    """The schedule of a plan, for the memory of any rank."""

    def __init__(self, network: Network, plan: Plan, out: Outline, sizes: MessageBytes,
                 training: bool) -> None:
        self.network, self.plan, self.sizes, self.training = network, plan, sizes, training
        self.edges = out.edges if plan is out.plan else Edges(network, plan)
        self.schedule: Schedule = freeze(plan, [out],
                                         training) if plan.microbatches == 1 else lower(
            network, plan, lambda move: (Algorithm.RING, 1), training=training)

    def of(self, rank: int) -> RankMemory:
        """The memory of a rank, layer by layer."""
        planned = plan_memory(self.network, self.plan, rank, [self.schedule],
                              training=self.training, edges=self.edges)
        layers = self._constants(planned)
        item_bytes = self.plan.item_bytes
        for buffer in planned.peak():
            size = buffer.items * item_bytes
            held = Memory(0, 0, 0, size, 0, 0) if buffer.gradient else Memory(0, 0, size, 0, 0, 0)
            layers[buffer.layer] = layers[buffer.layer] + held
        for step, size in self._messages(planned):
            layers[step.layer] = layers[step.layer] + Memory(0, 0, 0, 0, 0, size)
        return RankMemory(rank, self._without_images(layers))

    def _constants(self, planned: MemoryPlan) -> dict[str, Memory]:
        """The memory that is there all the time."""
        network, plan, boxes = self.network, self.plan, OfRank(planned.rank)
        roles = weight_roles(network, plan, self.schedule if self.training else None, planned.rank)
        layers = {layer.name: NOTHING for layer in network.layers}
        for layer in network.stateful:
            updates = roles[layer.name].updates
            layers[layer.name] += weights_memory(network, plan, layer, boxes, self.training,
                                                 updates)
        seen: set[tuple[str, int, int]] = set()
        for each in planned.passes.all:
            for name in each.blocks:
                key = (name, each.slots.of_layer(name), each.samples.count)
                if key not in seen:
                    seen.add(key)
                    kept = kept_bytes(network, plan, network.by_name[name], each.samples.count,
                                      boxes, self.training)
                    layers[name] += Memory(0, 0, 0, 0, kept, 0)
        return layers

    def _messages(self, planned: MemoryPlan) -> list[tuple[Comm, int]]:
        """The messages in flight at the moment of the most, with their bytes."""
        (steps,) = planned.programs
        flights = []
        for i in steps.until:
            step = steps.schedule.steps[i]
            assert isinstance(step, Comm)
            flights.append((step, self.sizes[step.phase, step.layer, step.tensor]))
        alive = planned.moments([[planned.in_flight(0, i)] for i in steps.until])
        _, moment = peak([size for _, size in flights], alive)
        return [flight for flight, bits in zip(flights, alive, strict=True) if bits >> moment & 1]

    def _without_images(self, layers: dict[str, Memory]) -> dict[str, Memory]:
        """Images count for the first layer that reads them."""
        images = self.network.layers[0].name
        reader = self.network.consumers[images][0]
        layers[reader] += layers.pop(images)
        return layers
