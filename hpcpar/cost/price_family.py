"""Pricing: every step of an outline in seconds, bytes and memory, for every case of a family of
plans at once.

Nothing walks ranks, and layers of equal shapes under equal configurations are priced once, so that
a prediction takes as long for a million ranks as for sixteen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hpcpar.cost.memory.memory import Memory, memory
from hpcpar.cost.network.algorithm_choice import chooser
from hpcpar.cost.network.contention import Wires
from hpcpar.cost.step_prices import StepPrice, StepPricer
from hpcpar.cost.timeline.cores import Cores
from hpcpar.cost.timeline.lateness import partners
from hpcpar.cost.timeline.overlap import Item, Timeline, timeline
from hpcpar.cost.timeline.pipeline import Works, pipeline
from hpcpar.errors import InputError, unknown
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan.layout import owned
from hpcpar.plan.plan import Plan
from hpcpar.schedule.outline import outline
from hpcpar.schedule.outline_steps import Move, Outline
from hpcpar.schedule.pipeline_order import Cell, firsts
from hpcpar.schedule.stages import stages_of
from hpcpar.schedule.steps import PASSES, Phase

#: ``schedule``: what is executed; ``paper``: the integrated paper's formulas (Eq 3 to 9) for the
#: same steps.
ACCOUNTINGS = ("schedule", "paper")


@dataclass(frozen=True)
class Costs:
    """What the cases of a family of plans cost on a machine; arrays with an entry for each case.

    Attributes
    ----------
    iteration_s : float
        One iteration, on the slowest rank, with what the plan overlaps.
    compute_s, communication_s : float
        Plain sums over the steps, times the micro-batches.
    exposed_communication_s : float
        Communication that no computing hides.
    measured_compute : float
        Part of `compute_s`, 0 to 1, from the machine's calibrated table; the rest is a roofline's.
    communication_bytes : int
        Sent in an iteration by the rank that sends most.
    io_s : float
        Seconds in which a rank reads its images.
    out : Outline
        What was priced: its steps are those of `steps` and `repeats`.
    """

    iteration_s: Any
    compute_s: Any
    communication_s: Any
    exposed_communication_s: Any
    measured_compute: Any
    communication_bytes: Any
    io_s: Any
    memory: Memory
    steps: tuple[StepPrice, ...]
    timeline: Timeline
    repeats: tuple[int, ...]
    out: Outline

    @property
    def compute_of(self) -> dict[str, Any]:
        """Seconds that each layer computes in an iteration, the plain sum over its steps."""
        found: dict[str,
                    Any] = dict.fromkeys((layer.name for layer in self.out.edges.network.layers),
                                         0.0)
        for step, price, times in zip(self.out.steps, self.steps, self.repeats, strict=True):
            if not isinstance(step, Move):
                found[step.layer.name] = found[step.layer.name] + times * price.seconds
        return found


def price_family(
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
    out: Outline | None = None,
) -> Costs:
    """Price a plan, or every case of a family.

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
    out : Outline, optional
        The plan's outline, where it is at hand.
    """
    if accounting not in ACCOUNTINGS:
        raise unknown("accounting", accounting, ACCOUNTINGS)
    if contention is not None and not 1 <= contention < math.inf:
        raise InputError(
            f"contention {contention}: phi is the number of flows that share a link, at least 1")
    wires = Wires(machine, contention)
    if out is None:
        choose = chooser(machine, plan.collectives, wires) if not plan.machine and contention is None else chooser(
            files.from_dict(plan.machine, "the plan's machine") if plan.machine else machine, plan.collectives)
        out = outline(network, plan, choose, training=training)
    pricer = StepPricer(network, plan, machine, wires, out.edges, accounting == "paper")
    prices = [pricer.price(step) for step in out.steps]
    io_s: Any = 0.0
    if io_bytes_per_s is not None:
        images = network.layers[0]
        io_s = owned(network, images, plan.configs[images.name],
                     plan.batch).largest_items * io_item_bytes / io_bytes_per_s
    moved = {s.key: (p.sent_bytes, p.through_bytes) for s, p in zip(out.steps, prices, strict=True)
             if isinstance(s, Move)}
    return _total(network, plan, machine, out, prices,
                  memory(network, plan, out, moved, training=training).scaled(gamma), io_s)


def _total(network: Network, plan: Plan, machine: Machine, out: Outline, prices: list[StepPrice],
           held: Memory, io_s: Any) -> Costs:
    late_s = machine.late_s if machine.late else None
    items = [
        Item(p.seconds, s.needed_by, p.level, partners(s, plan.ranks) if late_s else 1.0) if isinstance(s, Move) else Item(p.seconds)
        for s, p in zip(out.steps, prices, strict=True)
    ]
    times = tuple(repeats(plan, s.phase) for s in out.steps)
    staged = plan.microbatches > 1 or any(np.any(np.not_equal(c.first, 0))
                                          for c in plan.configs.values())
    if not staged:
        line = timeline(items, machine.overlap, len(machine.levels), machine.progress, late_s)
        compute, measured, comm, sent = _sums(out, prices, times, range(len(items)))
        exposed = line.exposed_s
    else:
        each = [_sums(out, prices, times, s.all) for s in stages_of(plan, out)]
        # of a family without stages there is one; of a pipeline's stages, the one that computes
        # longest
        compute, measured, comm, sent = each[0] if len(each) == 1 else max(each, key=lambda sums: float(sums[0]))
        ranks: list[range] = []  # of each stage, where they share cores
        if len(each) > 1 and machine.device.at_once:
            ranks = [range(first, first + max(int(c.ranks) for c in plan.configs.values() if c.first == first))
                     for first in firsts(out.edges.network, plan)]
        line = pipeline(
            plan, out, items, machine.overlap, len(machine.levels), machine.progress,
            late_s=late_s, soonest_s=partial(_in_turns_s, machine, plan, ranks) if ranks else None,
            hop_s=partial(_hop_s, machine, plan, ranks) if ranks and machine.relay else None,
        )
        exposed = line.total_s - compute  # the bubble included
    share = np.where(np.greater(compute, 0),
                     measured / np.where(np.greater(compute, 0), compute, 1.0), 0.0)
    total = np.maximum(line.total_s, io_s)
    return Costs(total, compute, comm, exposed, share, sent, io_s, held, tuple(prices), line, times,
                 out)


def _in_turns_s(machine: Machine, plan: Plan, ranks: list[range], passes: Sequence[Cell],
                works: Works) -> float:
    """What all stages take at least where their ranks share cores (s).

    Parameters
    ----------
    ranks : list of range
        Of each stage.
    works : Works
        Of each stage with all of its ranks at once. Messages were calibrated with all ranks of the
        job at work.
    """
    alone, together = [machine.crowding(len(some)) for some in ranks], machine.crowding(plan.ranks)
    of_pass = ((Phase.FORWARD, works.forward, works.messages_forward),
               (Phase.BACKWARD, works.backward, works.messages_backward))
    work_s = {(s, phase): float(compute[s] / alone[s] + messages[s] / together)
              for phase, compute, messages in of_pass for s in range(len(ranks))}
    last_s = [float(a / b) for a, b in zip(works.last, alone, strict=True)]
    return Cores.shared(machine, plan.ranks, ranks).soonest_s(passes, work_s, last_s)


def _hop_s(machine: Machine, plan: Plan, ranks: list[range], stage: int, computed_s: Any) -> Any:
    """What the cores need for a message of a stage beyond its computing (s), as was calibrated
    where half of all ranks sent one; less the latency that `_in_turns_s` counts.
    """
    n, together = len(ranks[stage]), machine.crowding(plan.ranks)
    each_s = computed_s / machine.crowding(n)
    latency_s = (1.0 - machine.overlap) * machine.levels[0].latency_s(0.0)
    return n / plan.ranks * np.maximum(2 * machine.relay_s(each_s * together / 2) - latency_s, 0.0)


def _sums(out: Outline, prices: list[StepPrice], often: tuple[int, ...],
          chosen: Iterable[int]) -> tuple[Any, Any, Any, Any]:
    """(compute_s, what of it is measured, communication_s, sent_bytes) of some of the steps."""
    compute: Any = 0.0
    measured: Any = 0.0
    comm: Any = 0.0
    sent: Any = 0
    for i in chosen:
        price, times = prices[i], often[i]
        if isinstance(out.steps[i], Move):
            comm = comm + times * price.seconds
            sent = sent + times * price.sent_bytes
        else:
            compute = compute + times * price.seconds
            measured = measured + np.where(price.measured, times * price.seconds, 0.0)
    return compute, measured, comm, sent


def repeats(plan: Plan, phase: Phase) -> int:
    """How often a step is done in an iteration."""
    return plan.microbatches if phase in PASSES else 1
