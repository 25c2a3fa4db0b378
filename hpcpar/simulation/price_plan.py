"""The price of one plan: its schedule, step by step, in seconds, bytes and memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from hpcpar.cost.interval import Interval90
from hpcpar.cost.memory.memory import Memory
from hpcpar.cost.memory.prediction import RankMemory, rank_memories
from hpcpar.cost.memory.process import ProcessMemory, process_memory
from hpcpar.cost.price_family import Costs, PriceOptions, price_family, price_steps
from hpcpar.cost.rank_traffic import MOST_RANKS, RankTraffic, rank_traffic
from hpcpar.cost.timeline.overlap import Span, StageTime, Timeline
from hpcpar.cost.trust import Trust, trust
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan.limits import PassedLimit, passed_limits
from hpcpar.plan.plan import Overlap, Plan
from hpcpar.schedule.outline_steps import Move
from hpcpar.schedule.steps import Phase
from hpcpar.schema import Bytes, Count, Seconds
from hpcpar.simulation.simulate import Simulator

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: Up to so many ranks the messages between all of them are priced.
EXACT_RANKS = 48


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
        Of the rank that sends most; 0 for compute steps.
    part : int
        The micro-batch, or the pass through the layers after a switch.
    stage : int
        The stage of a pipeline that does it, or sends.
    """

    index: Count
    label: str
    layer: str
    phase: str
    is_comm: bool
    seconds: Seconds
    exposed_s: Seconds
    messages: Count
    sent_bytes: Bytes
    part: Count = 0
    stage: Count = 0


@dataclass(frozen=True)
class LayerCost:
    """A layer's share of an iteration, and of the memory of the largest rank.

    Attributes
    ----------
    memory_bytes : int
        Its weights and what it keeps, and what is alive of its blocks and messages at the moment of
        the peak: all layers add up to the prediction's memory.
    first_rank, ranks : int
        It lives on so many ranks from the first on: not 0 in later stages of a pipeline.
    """

    name: str
    config: dict[str, int]
    placement: str
    first_rank: int
    ranks: int
    compute_s: float
    communication_s: float
    communication_bytes: int
    memory_bytes: int


@dataclass(frozen=True)
class Prediction:
    """The price of a plan on a machine.

    Attributes
    ----------
    iteration_s : float
        One iteration, on the slowest rank, with what the plan overlaps.
    epoch_s : float or None
        `samples` / batch iterations; None without samples.
    compute_s, communication_s : float
        Plain sums over the steps; of a pipeline, those of the stage that computes longest.
    exposed_communication_s : float
        Communication that no computing hides, of the same stage.
    bubble_s : float
        Idle time of that stage, in which it waits for others.
    measured_compute : float
        Part of `compute_s`, 0 to 1, from the machine's calibrated table; the rest is a roofline's.
    communication_bytes : int
        Sent in an iteration by the rank that sends most.
    io_s : float
        Seconds in which a rank reads its samples of an iteration.
    memory : Memory
        Arrays of the rank that needs most.
    process : ProcessMemory
        What its process holds beside them.
    samples : int or None
        Samples of an epoch.
    batch_norm : str
        Statistics of batch normalisation, one of `BATCH_NORMS`; empty where the network has none.
    precision : str
        The plan's number format (`Plan.precision`).
    processor : str
        A rank's, in words (`Machine.processor`).
    training : bool
        False for the forward pass alone.
    trust : Trust
        90% interval of `iteration_s`, and where it comes from.
    limits : tuple of PassedLimit
        Layers that are cut into more parts than they have.
    fits : bool
        The largest rank's memory is at most the device's.
    """

    network: str
    machine: str
    strategy: str
    ranks: int
    batch: int
    overlap: Overlap
    accounting: str
    iteration_s: float
    epoch_s: float | None
    compute_s: float
    communication_s: float
    exposed_communication_s: float
    bubble_s: float
    measured_compute: float
    communication_bytes: int
    io_s: float
    memory: Memory
    memory_limit_bytes: int
    process: ProcessMemory
    layers: tuple[LayerCost, ...]
    steps: tuple[StepCost, ...]
    timeline: Timeline[float]
    trust: Trust
    samples: int | None = None
    batch_norm: str = ""
    precision: str = "fp32"
    processor: str = "rank"
    training: bool = True
    limits: tuple[PassedLimit, ...] = ()

    @property
    def interval_s(self) -> Interval90:
        """90% interval of `iteration_s`."""
        return self.trust.interval_s(self.iteration_s)

    @property
    def memory_bytes(self) -> int:
        return int(self.memory.total_bytes)

    @property
    def fits(self) -> bool:
        return self.memory_bytes <= self.memory_limit_bytes

    @property
    def longest_stage(self) -> int:
        """The stage that computes longest; 0 without stages."""
        compute_s = [0.0] * len(self.timeline.stages)
        for step in self.steps:
            compute_s[step.stage] += 0.0 if step.is_comm else step.seconds
        return compute_s.index(max(compute_s))

    def of_stage(self, stage: int) -> tuple[StepCost, ...]:
        """The steps of a stage, messages from others too, with what is exposed there."""
        waits = self.timeline.stages[stage].exposed_s
        return tuple(replace(s, exposed_s=waits.get(s.index, 0.0)) if s.is_comm else s
                     for s in self.steps if s.stage == stage or s.index in waits)

    @property
    def phases(self) -> dict[str, dict[str, float]]:
        """Sums by phase over all steps: computing, communication, and what of it is exposed (s)."""
        out = {p.value: {"compute_s": 0.0, "communication_s": 0.0, "exposed_communication_s": 0.0}
               for p in Phase}
        for step in self.steps:
            row = out[step.phase]
            row["communication_s" if step.is_comm else "compute_s"] += step.seconds
            if step.is_comm:
                row["exposed_communication_s"] += step.exposed_s
        return out

    def to_json(self, steps: bool = False) -> dict[str, object]:
        """Plain data, the contract of ``--json``."""
        names = ("network", "machine", "strategy", "ranks", "batch", "overlap", "accounting",
                 "iteration_s", "epoch_s", "compute_s", "communication_s",
                 "exposed_communication_s", "bubble_s", "measured_compute", "communication_bytes",
                 "io_s", "memory_bytes", "fits", "samples", "batch_norm", "precision", "processor",
                 "training")
        out: dict[str, object] = {name: getattr(self, name) for name in names}
        out |= self.trust.to_json(self.iteration_s)
        out["memory"] = asdict(self.memory)
        out["process_bytes"] = self.process.total_bytes
        out["process"] = asdict(self.process)
        out["phases"] = self.phases
        out["layers"] = [asdict(layer) for layer in self.layers]
        out["limits"] = [asdict(limit) for limit in self.limits]
        if steps:
            out["steps"] = [asdict(step) | asdict(span)
                            for step, span in zip(self.steps, self.timeline.spans, strict=True)]
        return out


def price(network: Network, plan: Plan, machine: Machine, *, samples: int | None = None,
          **options: Unpack[PriceOptions]) -> Prediction:
    """Price a plan.

    Parameters
    ----------
    machine : Machine
        Prices the steps. The algorithms in them come from the plan's own machine.
    samples : int, optional
        Samples of an epoch, for `epoch_s`.
    options
        Those of `price_family`.
    """
    costs = price_alone(network, plan, machine, **options)
    return detailed(network, plan, machine, costs, samples=samples, **options)


def price_alone(network: Network, plan: Plan, machine: Machine,
                **options: Unpack[PriceOptions]) -> Costs:
    """The costs of one plan: of few ranks from the messages between all of them, of more than
    `EXACT_RANKS` (and by the paper's formulas) in closed form.
    """
    if plan.ranks > EXACT_RANKS or options.get("accounting") == "paper":
        return price_family(network, plan, machine, **options)
    known = price_steps(network, plan, machine, **options)
    contention = options.get("contention")
    if contention is not None:
        machine = _contended(machine, contention)
    return Simulator(network, plan, machine, known).exact_costs()


def _contended(machine: Machine, contention: float) -> Machine:
    """The machine with so many flows on each link beyond the innermost level, whatever runs."""
    levels = [replace(level, links=0.0, oversubscription=1.0,
                      beta_s_per_byte=level.beta_s_per_byte * (contention if number else 1.0))
              for number, level in enumerate(machine.levels)]
    return replace(machine, levels=tuple(levels))


def detailed(network: Network, plan: Plan, machine: Machine, costs: Costs, *,
             samples: int | None = None, **options: Unpack[PriceOptions]) -> Prediction:
    """The prediction of a plan from its `costs`; the other parameters are those of `price`."""
    batch, iteration_s = plan.batch, float(costs.iteration_s)
    traffic = _traffic(costs, plan.ranks)
    steps = tuple(_step(costs, traffic, index) for index in range(len(costs.steps)))
    held = max(_ranks(network, plan, costs, options), key=lambda rank: rank.total.total_bytes)
    gamma = options.get("gamma", 1.0)
    held_by_layer = {name: part.scaled(gamma) for name, part in held.layers.items()}
    normalised = any(layer.statistics == "batch" for layer in network.layers)
    return Prediction(
        network=plan.network.name, machine=machine.name, strategy=plan.strategy, ranks=plan.ranks,
        batch=batch, overlap=plan.overlap, accounting=options.get("accounting", "schedule"),
        iteration_s=iteration_s,
        epoch_s=None if samples is None else samples / batch * iteration_s,
        compute_s=float(costs.compute_s), communication_s=float(costs.communication_s),
        exposed_communication_s=float(costs.exposed_communication_s),
        bubble_s=float(costs.bubble_s), measured_compute=float(costs.measured_compute),
        communication_bytes=traffic.n_bytes, io_s=float(costs.io_s),
        memory=held.total.scaled(gamma), memory_limit_bytes=machine.device.memory_bytes,
        process=process_memory(network, plan),
        layers=_layers(network, plan, costs, traffic, steps, held_by_layer), steps=steps,
        timeline=_timeline(machine, costs, steps), samples=samples,
        batch_norm=plan.batch_norm if normalised else "", precision=plan.precision,
        processor=machine.processor,
        training=options.get("training", True), trust=trust(network, plan, machine, costs),
        limits=passed_limits(network, plan),
    )


def _timeline(machine: Machine, costs: Costs, steps: Sequence[StepCost]) -> Timeline[float]:
    """The timeline of a single plan in plain numbers; a movement's stream is the level it crosses.
    """
    line = costs.timeline
    spans = []
    for step, span, cost in zip(steps, line.spans, costs.steps, strict=True):
        stream = machine.levels[int(cost.level)].name if step.is_comm else span.stream
        spans.append(Span(float(span.start_s), float(span.end_s), stream))
    waits = tuple(step.exposed_s if step.is_comm else 0.0 for step in steps)
    stages = tuple(StageTime({i: float(seconds) for i, seconds in stage.exposed_s.items()},
                             float(stage.bubble_s)) for stage in line.stages)
    return Timeline(tuple(spans), waits, float(line.total_s), stages)


def memory_of_ranks(network: Network, plan: Plan, costs: Costs,
                    **options: Unpack[PriceOptions]) -> Iterator[Memory]:
    """The memory of ranks among which is the largest; the options are those of `price_family`."""
    for rank in _ranks(network, plan, costs, options):
        yield rank.total.scaled(options.get("gamma", 1.0))


def _ranks(network: Network, plan: Plan, costs: Costs,
           options: PriceOptions) -> Iterator[RankMemory]:
    return rank_memories(network, plan, costs.out, costs.entries, costs.moved_bytes,
                         training=options.get("training", True))


def _traffic(costs: Costs, ranks: int) -> RankTraffic:
    """The busiest rank's traffic: exact, or estimated step by step where there are many ranks."""
    if ranks <= MOST_RANKS:
        return rank_traffic(costs.entries, ranks)
    of_layer: dict[str, int] = defaultdict(int)
    for entry, cost in zip(costs.entries, costs.steps, strict=True):
        if isinstance(entry.step, Move):
            of_layer[entry.step.layer] += int(cost.sent_bytes)
    each = [(int(cost.messages), int(cost.sent_bytes)) for cost in costs.steps]
    return RankTraffic(int(costs.communication_bytes), of_layer, each)


def _step(costs: Costs, traffic: RankTraffic, index: int) -> StepCost:
    entry, cost = costs.entries[index], costs.steps[index]
    step, seconds = entry.step, float(cost.seconds)
    if isinstance(step, Move):
        (kind,) = step.pattern.kinds
        layer, does = step.layer, f"{step.phase.value}.{kind.value}"
        exposed_s = float(costs.timeline.waits_s[index])
    else:
        layer, does, exposed_s = step.layer.name, step.op.value, seconds
    messages, sent_bytes = traffic.of_step[index]
    return StepCost(index=index, label=f"{layer}.{does}", layer=layer, phase=step.phase.value,
                    is_comm=isinstance(step, Move), seconds=seconds, exposed_s=exposed_s,
                    messages=messages, sent_bytes=sent_bytes, part=entry.part, stage=entry.stage)


def _layers(network: Network, plan: Plan, costs: Costs, traffic: RankTraffic,
            steps: tuple[StepCost, ...], held: dict[str, Memory]) -> tuple[LayerCost, ...]:
    comm_s = {layer.name: 0.0 for layer in network.layers[1:]}
    for s in steps:
        if s.is_comm:
            comm_s[s.layer] += s.seconds
    found, compute = [], costs.seconds_of_layers()
    for name, comm in comm_s.items():
        config = plan.configs[name]
        found.append(LayerCost(
            name=name, config={a: int(getattr(config, a)) for a in ("n", "c", "h", "w", "d", "k")},
            placement="outer" if config.outer else "inner", first_rank=int(config.first),
            ranks=int(config.ranks), compute_s=float(compute[name]), communication_s=comm,
            communication_bytes=traffic.of_layer.get(name, 0),
            memory_bytes=int(held[name].total_bytes),
        ))
    return tuple(found)
