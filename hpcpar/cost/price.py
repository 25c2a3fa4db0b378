"""The price of a plan: its schedule, step by step, in seconds, bytes and memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hpcpar.cost.choose import schedule_for
from hpcpar.cost.compute import compute_s
from hpcpar.cost.memory import Memory, memory
from hpcpar.cost.timeline import Timeline, timeline
from hpcpar.cost.traffic import Sent, comm_s, paper_comm_s, representatives, sent_by
from hpcpar.cost.work import Workload
from hpcpar.errors import unknown
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan.plan import Plan
from hpcpar.schedule.steps import Compute, Phase, Schedule

#: ``schedule``: what is executed; ``paper``: the integrated paper's formulas (Eq 3 to 9) for the same steps.
ACCOUNTINGS = ("schedule", "paper")


@dataclass(frozen=True)
class StepCost:
    """One step of the schedule, priced.

    Attributes
    ----------
    seconds : float
        Duration on the slowest rank.
    exposed_s : float
        Part of a communication that nothing hides; all of a compute step.
    messages, sent_bytes : int
        Largest over (walked) ranks; 0 for compute steps.
    """

    index: int
    label: str
    layer: str
    phase: str
    is_comm: bool
    seconds: float
    exposed_s: float
    messages: int
    sent_bytes: int


@dataclass(frozen=True)
class LayerCost:
    """A layer's share of an iteration."""

    name: str
    config: dict[str, int]
    ranks: int
    compute_s: float
    communication_s: float
    communication_bytes: int


@dataclass(frozen=True)
class Prediction:
    """What a plan costs on a machine.

    Attributes
    ----------
    iteration_s : float
        One iteration, on the slowest rank, with what the plan overlaps.
    epoch_s : float or None
        `samples` / batch iterations; None without samples.
    compute_s, communication_s : float
        Plain sums over the steps.
    exposed_communication_s : float
        Communication that no computing hides.
    measured_compute : float
        Part of `compute_s`, 0 to 1, from the machine's calibrated table; the rest is a roofline's.
    communication_bytes : int
        Sent in an iteration by the rank that sends most.
    memory : Memory
    fits : bool
        The largest rank's memory is at most the device's.
    """

    network: str
    machine: str
    strategy: str
    ranks: int
    batch: int
    overlap: str
    accounting: str
    iteration_s: float
    epoch_s: float | None
    compute_s: float
    communication_s: float
    exposed_communication_s: float
    measured_compute: float
    communication_bytes: int
    memory: Memory
    memory_limit_bytes: int
    layers: tuple[LayerCost, ...]
    steps: tuple[StepCost, ...]
    timeline: Timeline

    @property
    def memory_bytes(self) -> int:
        return self.memory.total_bytes

    @property
    def fits(self) -> bool:
        return self.memory_bytes <= self.memory_limit_bytes

    @property
    def phases(self) -> dict[str, dict[str, float]]:
        """Sums by phase: computing, communication, and what of it is exposed (s)."""
        out = {p.value: {"compute_s": 0.0, "communication_s": 0.0, "exposed_communication_s": 0.0} for p in Phase}
        for step in self.steps:
            row = out[step.phase]
            row["communication_s" if step.is_comm else "compute_s"] += step.seconds
            if step.is_comm:
                row["exposed_communication_s"] += step.exposed_s
        return out

    def to_json(self, steps: bool = False) -> dict[str, Any]:
        """Plain data, the contract of ``--json``."""
        names = ("network", "machine", "strategy", "ranks", "batch", "overlap", "accounting", "iteration_s", "epoch_s", "compute_s",
                 "communication_s", "exposed_communication_s", "measured_compute", "communication_bytes", "memory_bytes", "fits")
        out: dict[str, Any] = {name: getattr(self, name) for name in names}
        out["memory"] = asdict(self.memory)
        out["phases"] = self.phases
        out["layers"] = [asdict(layer) for layer in self.layers]
        if steps:
            out["steps"] = [{"index": s.index, "label": s.label, "seconds": s.seconds, "exposed_s": s.exposed_s} for s in self.steps]
        return out


def price(
    network: Network,
    plan: Plan,
    machine: Machine,
    *,
    samples: int | None = None,
    accounting: str = "schedule",
    schedule: Schedule | None = None,
) -> Prediction:
    """Price a plan.

    Parameters
    ----------
    machine : Machine
        Prices the steps. The algorithms in them come from the plan's own machine.
    samples : int, optional
        Samples of an epoch, for `epoch_s`.
    accounting : str
        One of `ACCOUNTINGS`.
    schedule : Schedule, optional
        The plan's schedule, where it is at hand.
    """
    if accounting not in ACCOUNTINGS:
        raise unknown("accounting", accounting, ACCOUNTINGS)
    schedule = schedule_for(network, plan) if schedule is None else schedule
    walked = representatives(plan)
    load = Workload(network, plan)
    seconds: list[float] = []
    measured_s = 0.0
    sends: list[list[Sent]] = []
    for step in schedule.steps:
        if isinstance(step, Compute):
            work = load.of(step)
            seconds.append(compute_s(machine, work))
            measured_s += seconds[-1] if work.key in machine.compute else 0.0
            sends.append([])
        else:
            paper = accounting == "paper"
            seconds.append(paper_comm_s(step, machine, network, plan, walked) if paper else comm_s(step, machine, walked))
            sends.append(sent_by(step, walked))
    line = timeline(schedule.steps, seconds, machine.overlap)
    steps = tuple(
        StepCost(
            s.index, s.label, s.layer, s.phase.value, not isinstance(s, Compute), cost,
            cost if isinstance(s, Compute) else wait, max((n.messages for n in out), default=0), max((n.bytes for n in out), default=0),
        )
        for s, cost, wait, out in zip(schedule.steps, seconds, line.waits_s, sends, strict=True)
    )
    compute = sum(s.seconds for s in steps if not s.is_comm)
    return Prediction(
        plan.network.name, machine.name, plan.strategy, plan.ranks, plan.batch, plan.overlap, accounting,
        line.total_s, None if samples is None else samples / plan.batch * line.total_s,
        compute, sum(s.seconds for s in steps if s.is_comm), line.exposed_s, measured_s / compute if compute else 0.0,
        max(sum(out[i].bytes for out in sends if out) for i in range(len(walked))),
        memory(network, plan, schedule), machine.device.memory_bytes, _layers(network, plan, steps), steps, line,
    )


def _layers(network: Network, plan: Plan, steps: tuple[StepCost, ...]) -> tuple[LayerCost, ...]:
    rows: dict[str, list[float]] = {layer.name: [0.0, 0.0, 0] for layer in network.layers[1:]}
    for s in steps:
        row = rows[s.layer]
        row[1 if s.is_comm else 0] += s.seconds
        row[2] += s.sent_bytes
    out = []
    for name, (compute, comm, sent) in rows.items():
        config = plan.configs[name]
        # a later version also cuts depth (d) and reductions (k)
        degrees = {a: getattr(config, a) for a in ("n", "c", "h", "w")} | {"d": 1, "k": 1}
        out.append(LayerCost(name, degrees, config.ranks, compute, comm, int(sent)))
    return tuple(out)
