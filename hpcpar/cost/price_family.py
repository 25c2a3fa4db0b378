"""Pricing: every step of an outline in seconds, bytes and memory, for every case of a family of
plans at once.

Nothing walks ranks, and layers of equal shapes under equal configurations are priced once, so that
a prediction takes as long for a million ranks as for sixteen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from hpcpar.cost.compute.priced_formats import require_priced
from hpcpar.cost.memory.bound import memory_upper_bound
from hpcpar.cost.memory.memory import Memory, MovedBytes
from hpcpar.cost.network.algorithm_choice import chooser
from hpcpar.cost.network.contention import NetworkModel
from hpcpar.cost.step_prices import StepPrice, StepPricer
from hpcpar.cost.timeline.overlap import Item, Timeline, timeline
from hpcpar.errors import InputError, unknown
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan.config import Floats, Ints
from hpcpar.plan.layout import owned
from hpcpar.plan.limits import require_batch
from hpcpar.plan.plan import Plan
from hpcpar.schedule.freeze import Entry, listed
from hpcpar.schedule.lower import outlines
from hpcpar.schedule.outline_steps import Chooser, Move, Outline, Task
from hpcpar.schedule.steps import PASSES, Phase

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

#: ``schedule``: what is executed; ``paper``: the integrated paper's formulas (Eq 3 to 9) for the
#: same steps.
ACCOUNTINGS = ("schedule", "paper")


@dataclass(frozen=True, kw_only=True)
class Sums:
    """Sums over the steps of an iteration; of a pipeline, over those of the stage that computes
    longest.

    Attributes
    ----------
    iteration_s : float
        One iteration, on the slowest rank, with what the plan overlaps.
    compute_s, communication_s : float
        Plain sums over the steps.
    exposed_communication_s : float
        Communication that no computing hides.
    bubble_s : float
        Idle time in which other stages of a pipeline are waited for.
    measured_compute : float
        Part of `compute_s`, 0 to 1, from the machine's calibrated table; the rest is a roofline's.
    communication_bytes : int
        Sent in an iteration by the rank that sends most.
    """

    iteration_s: Floats
    compute_s: Floats
    communication_s: Floats
    exposed_communication_s: Floats
    bubble_s: Floats
    measured_compute: Floats
    communication_bytes: Ints

    @classmethod
    def summed(cls, known: PricedSteps, line: Timeline[Floats]) -> Self:
        """The sums over steps with their prices and their timeline."""
        stages = [_StageSums() for _ in line.stages]
        for entry, price in zip(known.entries, known.steps, strict=True):
            stages[entry.stage].add(entry.step, price)
            if isinstance(entry.step, Move) and entry.stage not in entry.receivers:
                stages[entry.receivers[0]].communication_s += price.seconds
        longest = 0
        if len(stages) > 1:
            longest = int(np.argmax([float(stage.compute_s) for stage in stages]))
        stage, waited = stages[longest], line.stages[longest]
        sent: Ints = stages[0].sent_bytes
        for other in stages[1:]:
            sent = np.maximum(sent, other.sent_bytes)
        return cls(iteration_s=np.maximum(line.total_s, known.io_s), compute_s=stage.compute_s,
                   communication_s=stage.communication_s,
                   exposed_communication_s=sum(waited.exposed_s.values()),
                   bubble_s=waited.bubble_s, measured_compute=stage.measured,
                   communication_bytes=sent)


@dataclass(frozen=True, kw_only=True)
class PricedSteps:
    """The steps of the cases of a family of plans, priced one by one.

    Attributes
    ----------
    io_s : float
        Seconds in which a rank reads its images.
    memory : Memory
        Upper bound of what the largest rank needs (see `memory_upper_bound`).
    moved_bytes : dict
        By the key of each of the outline's movements: bytes that go through the buffers of one rank
        at most.
    entries : tuple of Entry
        The steps of an iteration, those of every micro-batch.
    steps : tuple of StepPrice
        One per entry.
    out : Outline
        The outline of the largest micro-batch.
    """

    io_s: Floats
    memory: Memory
    moved_bytes: MovedBytes
    entries: tuple[Entry, ...]
    steps: tuple[StepPrice, ...]
    out: Outline

    def seconds_of_layers(self) -> dict[str, Floats]:
        """Seconds that each layer computes in an iteration, the plain sum over its steps."""
        found: dict[str, Floats] = {layer.name: 0.0 for layer in self.out.edges.network.layers}
        for entry, price in zip(self.entries, self.steps, strict=True):
            if isinstance(entry.step, Task):
                found[entry.step.layer.name] += price.seconds
        return found


@dataclass(frozen=True, kw_only=True)
class Costs(Sums, PricedSteps):
    """Costs of the cases of a family of plans on a machine; arrays with an entry for each case."""

    timeline: Timeline[Floats]

    @classmethod
    def of(cls, known: PricedSteps, line: Timeline[Floats]) -> Self:
        """The costs of steps that lie so in time."""
        steps = {field.name: getattr(known, field.name) for field in fields(PricedSteps)}
        return cls(**vars(Sums.summed(known, line)), **steps, timeline=line)


class PriceOptions(TypedDict, total=False):
    """Options of `price_steps`."""

    accounting: str
    contention: float | None
    gamma: float
    training: bool
    io_bytes_per_s: float | None
    io_item_bytes: float


def price_family(network: Network, plan: Plan, machine: Machine,
                 **options: Unpack[PriceOptions]) -> Costs:
    """Price a plan, or every case of a family, in closed form; the options are those of
    `price_steps`.
    """
    known = price_steps(network, plan, machine, **options)
    items = list(items_of(machine, known))
    line = timeline(items, machine.overlap, len(machine.levels), machine.progress)
    return Costs.of(known, line)


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
) -> PricedSteps:
    """Price the steps of a plan, or of every case of a family.

    Parameters
    ----------
    machine : Machine
        Prices the steps. The algorithms in them come from the plan's own machine, where it carries
        one.
    accounting : str
        One of `ACCOUNTINGS`.
    contention : float, optional
        ParaDL's phi, instead of what follows from the placement.
    gamma : float
        ParaDL's memory reuse factor: part of the activations' memory that is really needed.
    training : bool
        False for inference: the forward pass alone.
    io_bytes_per_s, io_item_bytes : float
        Rate at which a rank reads its part of the images, and bytes of a stored value (1: uint8).
        They are read while the iteration before is computed, so only what exceeds it counts. None:
        reading is not counted.
    """
    if accounting not in ACCOUNTINGS:
        raise unknown("accounting", accounting, ACCOUNTINGS)
    if contention is not None and not 1 <= contention < math.inf:
        raise InputError(
            f"contention {contention}: phi is the number of flows that share a link, at least 1")
    require_batch(network, plan.batch)
    require_priced(machine, plan.precision)
    network_model = NetworkModel(machine, contention)
    choose = chooser_of(plan, network_model)
    each = outlines(network, plan, choose, training=training)
    out = each[-1]
    paper = accounting == "paper"
    priced: dict[Task | Move, StepPrice] = {}
    for one in dict.fromkeys(each):
        pricer = StepPricer(network, plan, machine, network_model, one.edges, paper)
        priced |= {step: pricer.price(step) for step in one.steps}
    io_s: Floats = 0.0
    if io_bytes_per_s is not None:
        images = network.layers[0]
        io_s = owned(network, images, plan.configs[images.name],
                     plan.batch).largest_items * io_item_bytes / io_bytes_per_s
    moved = {step.key: priced[step].through_bytes for step in out.steps if isinstance(step, Move)}
    held = memory_upper_bound(network, plan, out, moved, training=training).scaled(gamma)
    entries = listed(plan, each, training)
    return PricedSteps(io_s=io_s, memory=held, moved_bytes=moved, entries=tuple(entries),
                       steps=tuple(priced[entry.step] for entry in entries), out=out)


def chooser_of(plan: Plan, network_model: NetworkModel) -> Chooser:
    """Chooses algorithms on the plan's own machine, where it carries one."""
    own = network_model.machine if plan.machine is None else plan.machine
    same = network_model.contention is None and own == network_model.machine
    return chooser(own, plan.collectives, network_model if same else None)


def items_of(machine: Machine, known: PricedSteps) -> Iterator[Item]:
    """The steps in time. Micro-batches share theirs."""
    found: dict[Task | Move, Item] = {}
    for entry, price in zip(known.entries, known.steps, strict=True):
        if entry.step not in found:
            found[entry.step] = item_of(machine, entry, price)
        item = found[entry.step]
        yield item if item.needed_by is None else item._replace(needed_by=entry.needed_by)


def item_of(machine: Machine, entry: Entry, price: StepPrice) -> Item:
    """A step in time; plain numbers where there is a single plan."""
    seconds = price.seconds if np.ndim(price.seconds) else float(price.seconds)
    if isinstance(entry.step, Task):
        return Item(seconds, stage=entry.stage)
    level = price.level if np.ndim(price.level) else int(price.level)
    if entry.stage in entry.receivers:
        return Item(seconds, entry.needed_by, level, entry.stage, entry.receivers)
    # between stages there is a single plan
    each_bytes = float(price.sent_bytes) / max(1, int(price.messages))
    latency_s = min(float(seconds), machine.levels[int(level)].latency_s(each_bytes))
    return Item(seconds, entry.needed_by, level, entry.stage, entry.receivers, latency_s)


@dataclass
class _StageSums:
    """Sums over the steps of a stage."""

    compute_s: Floats = 0.0
    measured_s: Floats = 0.0
    communication_s: Floats = 0.0
    sent_bytes: Ints = 0

    def add(self, step: Task | Move, price: StepPrice) -> None:
        """Count a step that the stage does, or sends."""
        if isinstance(step, Task):
            self.compute_s = self.compute_s + price.seconds
            if np.ndim(price.measured) or price.measured:
                self.measured_s = self.measured_s + np.where(price.measured, price.seconds, 0.0)
        else:
            self.communication_s = self.communication_s + price.seconds
            self.sent_bytes = self.sent_bytes + price.sent_bytes

    @property
    def measured(self) -> Floats:
        """Part of the computing that was measured."""
        some = np.greater(self.compute_s, 0)
        return np.where(some, self.measured_s / np.where(some, self.compute_s, 1.0), 0.0)


def repeats(plan: Plan, phase: Phase) -> int:
    """How often a step is done in an iteration."""
    return plan.microbatches if phase in PASSES else 1
