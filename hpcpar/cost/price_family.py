"""Prices every step of an outline in seconds, bytes and memory, for all plans of a family at once.

No loop runs over ranks, and equal layers under equal configurations are priced once. A prediction
for a million ranks therefore takes little longer than one for sixteen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from hpcpar.cost.compute.priced_formats import require_priced
from hpcpar.cost.memory.bound import memory_upper_bound
from hpcpar.cost.memory.memory import Memory, MovedBytes
from hpcpar.cost.network.algorithm_choice import chooser
from hpcpar.cost.network.contention import NetworkModel, NetworkModels, contended
from hpcpar.cost.step_prices import StepPrice, StepPricer
from hpcpar.cost.timeline.timeline import Timeline, timeline
from hpcpar.errors import InputError, unknown
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan.config import Floats, Ints
from hpcpar.plan.layout import owned
from hpcpar.plan.limits import require_batch
from hpcpar.plan.plan import Plan
from hpcpar.schedule.lower import in_order, outlines
from hpcpar.schedule.overlap import Outline
from hpcpar.schedule.steps import Comm, Compute, Schedule, Step

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: ``schedule`` prices the steps as a run executes them; ``paper`` prices the same steps by the
#: formulas of Gholami et al. (Eq 3 to 9).
ACCOUNTINGS = ("schedule", "paper")


@dataclass(frozen=True, kw_only=True)
class PricedSteps:
    """The priced steps of a family of plans.

    Attributes
    ----------
    io_s : float
        Seconds that a rank spends reading its images.
    memory : Memory
        Upper bound of the largest rank's memory (see `memory_upper_bound`).
    moved_bytes : dict
        Key of a movement in `out` -> upper bound of the bytes in one rank's message buffers.
    schedule : Schedule
        The steps of an iteration, over all micro-batches.
    prices : tuple of StepPrice
        One price per step.
    out : Outline
        The outline of the largest micro-batch.
    network_model : NetworkModel
        Prices the movements.
    networks : NetworkModels
        The known models, also of the machine that chose the algorithms.
    """

    io_s: Floats
    memory: Memory
    moved_bytes: MovedBytes
    schedule: Schedule
    prices: tuple[StepPrice, ...]
    out: Outline
    network_model: NetworkModel
    networks: NetworkModels

    @property
    def pairs(self) -> Iterator[tuple[Step, StepPrice]]:
        """Each step with its price."""
        return zip(self.schedule.steps, self.prices, strict=True)

    def seconds_of_layers(self) -> dict[str, Floats]:
        """Compute time of each layer in an iteration (s): the plain sum over its steps."""
        seconds: dict[str, Floats] = {layer.name: 0.0 for layer in self.out.edges.network.layers}
        for step, price in self.pairs:
            if isinstance(step, Compute):
                seconds[step.layer] += price.seconds
        return seconds


@dataclass(frozen=True, kw_only=True)
class Costs(PricedSteps):
    """Costs of a family of plans on a machine, as arrays with one entry per plan.

    In a pipeline, the sums over steps cover the stage that computes longest.

    Attributes
    ----------
    iteration_s : float
        Time of an iteration on the slowest rank, overlap included.
    compute_s, communication_s : float
        Plain sums over the steps, without overlap.
    exposed_communication_s : float
        Communication that no computation hides.
    bubble_s : float
        Time in which the stage waits for other stages of the pipeline.
    measured_compute : float
        Fraction of `compute_s`, 0 to 1, that comes from the machine's calibrated table. A roofline
        gives the rest.
    communication_bytes : int
        Bytes that the busiest sender sends in an iteration.
    """

    timeline: Timeline[Floats]
    iteration_s: Floats
    compute_s: Floats
    communication_s: Floats
    exposed_communication_s: Floats
    bubble_s: Floats
    measured_compute: Floats
    communication_bytes: Ints

    @classmethod
    def of(cls, priced: PricedSteps, line: Timeline[Floats]) -> Costs:
        """The costs of priced steps with this timeline."""
        stages = [_StageSums() for _ in line.stages]
        for step, price in priced.pairs:
            stages[step.stage].add(step, price)
            if isinstance(step, Comm) and step.stage not in step.receivers:
                stages[step.receivers[0]].communication_s += price.seconds
        longest = 0
        if len(stages) > 1:
            longest = int(np.argmax([float(stage.compute_s) for stage in stages]))
        stage, idle = stages[longest], line.stages[longest]
        sent: Ints = stages[0].sent_bytes
        for other in stages[1:]:
            sent = np.maximum(sent, other.sent_bytes)
        return cls(**vars(priced), timeline=line, iteration_s=np.maximum(line.total_s, priced.io_s),
                   compute_s=stage.compute_s, communication_s=stage.communication_s,
                   exposed_communication_s=sum(idle.exposed_s.values()), bubble_s=idle.bubble_s,
                   measured_compute=stage.measured, communication_bytes=sent)


class PriceOptions(TypedDict, total=False):
    """Options of `price_steps`."""

    accounting: str
    contention: float | None
    gamma: float
    training: bool
    io_bytes_per_s: float | None
    io_item_bytes: float
    networks: NetworkModels | None
    node_samples_per_s: float | None


def price_family(network: Network, plan: Plan, machine: Machine,
                 **options: Unpack[PriceOptions]) -> Costs:
    """Price a plan, or a family of plans, on one rank that stands for all; see `price_steps`."""
    priced = price_steps(network, plan, machine, **options)
    return Costs.of(priced, laid_out(machine, plan, priced.schedule.steps, priced.prices))


def laid_out(machine: Machine, plan: Plan, steps: Sequence[Step], prices: Sequence[StepPrice]
             ) -> Timeline[Floats]:
    """The timeline of a plan's priced steps on a machine.

    Where a framework starts sums over samples in cycles, each waits for half a cycle on average.
    """
    return timeline(steps, prices, machine.overlap, len(machine.levels), machine.progress,
                    machine.factors.loss * plan.rules.cycle_s / 2, machine.device.submit_s)


def price_steps(
    network: Network,
    plan: Plan,
    machine: Machine,
    *,
    accounting: str = "schedule",
    contention: float | None = None,
    gamma: float = 1.0,
    training: bool = True,
    io_bytes_per_s: float | None = None,
    io_item_bytes: float = 1.0,
    networks: NetworkModels | None = None,
    node_samples_per_s: float | None = None,
) -> PricedSteps:
    """Price the steps of a plan, or of a family of plans.

    Parameters
    ----------
    machine : Machine
        Prices the steps. If the plan carries a machine of its own, that one chooses the algorithms.
    accounting : str
        One of `ACCOUNTINGS`.
    contention : float, optional
        ParaDL's phi; by default it follows from the placement of ranks.
    gamma : float
        ParaDL's memory reuse factor: the fraction of the activations' memory that is needed.
    training : bool
        False for inference: only the forward pass.
    io_bytes_per_s, io_item_bytes : float
        Rate at which a rank reads its images, and bytes of a stored value (1: uint8). Reading
        overlaps with the previous iteration; only the excess counts. None: reading is free.
    networks : NetworkModels, optional
        Known network models, for prices that several calls share.
    node_samples_per_s : float, optional
        Samples that a node reads and decodes per second; its ranks share them.
    """
    if accounting not in ACCOUNTINGS:
        raise unknown("accounting", accounting, ACCOUNTINGS)
    if contention is not None and not 1 <= contention < math.inf:
        raise InputError(
            f"contention {contention}: phi is the number of flows that share a link, at least 1")
    require_batch(network, plan.batch)
    require_priced(machine, plan.precision, plan.synchronization, plan.machine)
    networks = NetworkModels() if networks is None else networks
    network_model = networks[contended(machine, contention)]
    choose = chooser(networks[plan.machine or machine], plan)
    by_microbatch = outlines(network, plan, choose, training=training)
    out = by_microbatch[-1]
    paper = accounting == "paper"
    pricer = StepPricer(network, plan, machine, network_model, out.edges, paper)
    images = network.layers[0]
    read = owned(network, images, plan.configs[images.name], plan.batch).largest_items
    io_s: Floats = 0.0 if io_bytes_per_s is None else read * io_item_bytes / io_bytes_per_s
    if node_samples_per_s is not None:  # ranks that share a sample read a part of it each
        samples = (min(machine.ranks_of_node or plan.ranks, plan.ranks)
                   * read / math.prod(network.image_shape))
        io_s = np.maximum(io_s, samples / node_samples_per_s)
    moved = {step.key: pricer.price(step).through_bytes for step in out.steps
             if isinstance(step, Comm)}
    memory = memory_upper_bound(network, plan, out, moved, training=training).scaled(gamma)
    schedule = in_order(plan, by_microbatch, training)
    return PricedSteps(io_s=io_s, memory=memory, moved_bytes=moved, schedule=schedule,
                       prices=tuple(map(pricer.price, schedule.steps)), out=out,
                       network_model=network_model, networks=networks)


@dataclass
class _StageSums:
    """Sums over the steps of a stage."""

    compute_s: Floats = 0.0
    measured_s: Floats = 0.0
    communication_s: Floats = 0.0
    sent_bytes: Ints = 0

    def add(self, step: Step, price: StepPrice) -> None:
        """Count a step that the stage computes or sends."""
        if isinstance(step, Compute):
            self.compute_s = self.compute_s + price.seconds
            if np.ndim(price.measured) or price.measured:
                self.measured_s = self.measured_s + np.where(price.measured, price.seconds, 0.0)
        else:
            self.communication_s = self.communication_s + price.seconds
            self.sent_bytes = self.sent_bytes + price.sent_bytes

    @property
    def measured(self) -> Floats:
        """Measured fraction of the compute time."""
        computes = np.greater(self.compute_s, 0)
        return np.where(computes, self.measured_s / np.where(computes, self.compute_s, 1.0), 0.0)
