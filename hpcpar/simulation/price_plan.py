"""The price of a single plan, step by step, in seconds, bytes and memory."""

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
from hpcpar.cost.timeline.timeline import Span, StageTime, Timeline
from hpcpar.cost.trust import Trust, trust
from hpcpar.machine.model import Machine
from hpcpar.network.data_sets import data_set_of
from hpcpar.network.graph import Network
from hpcpar.plan.limits import PassedLimit, passed_limits
from hpcpar.plan.plan import Overlap, Plan
from hpcpar.schedule.steps import Comm, Phase
from hpcpar.schema import Bytes, Count, Seconds
from hpcpar.simulation.simulate import Simulator

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: Up to this size a plan's price comes from a simulation of all ranks.
EXACT_RANKS = 48


@dataclass(frozen=True)
class StepCost:
    """The price of one step of the schedule.

    Attributes
    ----------
    seconds : float
        Duration on the slowest rank.
    exposed_s : float
        Exposed time of a communication; the whole time of a compute step.
    messages, sent_bytes : int
        Messages and bytes of the busiest sender; 0 for compute steps.
    part : int
        The micro-batch, or the pass through the layers after a switch.
    stage : int
        The pipeline stage that computes or sends.
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
    first_rank, ranks : int
        First rank of the layer (above 0 in later stages of a pipeline), and number of its ranks.
    memory_bytes : int
        Weights and kept data, and blocks and messages that are alive at the peak. All layers add up
        to the prediction's memory.
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

    `hpcpar.cost.price_family.Sums` explains the sums, `iteration_s` to `communication_bytes`.

    Attributes
    ----------
    epoch_s : float or None
        Time of `samples` / `batch` iterations; None without samples.
    io_s : float
        Time in which a rank reads its samples of an iteration.
    memory : Memory
        Arrays of the rank that needs the most.
    process : ProcessMemory
        Memory of its process besides the arrays.
    samples : int or None
        Samples of an epoch.
    data_set : str
        Name of the data set of the network's inputs and outputs, if it has this size.
    batch_norm : str
        Statistics of batch normalization, one of `BATCH_NORMS`; empty without such layers.
    processor : str
        A rank's processor in words (`Machine.processor`).
    training : bool
        False for inference: only the forward pass.
    trust : Trust
        90% interval of `iteration_s`, and its source.
    limits : tuple of PassedLimit
        Layers that are cut into more parts than they have.
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
    data_set: str = ""
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
        """The pipeline stage that computes longest; 0 without a pipeline."""
        compute_s = [0.0] * len(self.timeline.stages)
        for step in self.steps:
            compute_s[step.stage] += 0.0 if step.is_comm else step.seconds
        return compute_s.index(max(compute_s))

    def of_stage(self, stage: int) -> tuple[StepCost, ...]:
        """The steps of a stage, including messages from other stages, with their exposed times."""
        waits = self.timeline.stages[stage].exposed_s
        return tuple(replace(s, exposed_s=waits.get(s.index, 0.0)) if s.is_comm else s
                     for s in self.steps if s.stage == stage or s.index in waits)

    @property
    def phases(self) -> dict[str, dict[str, float]]:
        """For each phase, sums of computation, communication and exposed communication (s)."""
        out = {p.value: {"compute_s": 0.0, "communication_s": 0.0, "exposed_communication_s": 0.0}
               for p in Phase}
        for step in self.steps:
            row = out[step.phase]
            row["communication_s" if step.is_comm else "compute_s"] += step.seconds
            if step.is_comm:
                row["exposed_communication_s"] += step.exposed_s
        return out

    def to_json(self, steps: bool = False) -> dict[str, object]:
        """The prediction as ``--json`` writes it."""
        names = ("network", "machine", "strategy", "ranks", "batch", "overlap", "accounting",
                 "iteration_s", "epoch_s", "compute_s", "communication_s",
                 "exposed_communication_s", "bubble_s", "measured_compute", "communication_bytes",
                 "io_s", "memory_bytes", "fits", "samples", "data_set", "batch_norm", "precision",
                 "processor", "training")
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
        Prices the steps. If the plan carries a machine of its own, that one chooses the algorithms.
    samples : int, optional
        Samples of an epoch, for `epoch_s`.
    options
        See `hpcpar.cost.price_family.price_steps`.
    """
    costs = plan_costs(network, plan, machine, **options)
    return detailed(network, plan, machine, costs, samples=samples, **options)


def plan_costs(network: Network, plan: Plan, machine: Machine,
               **options: Unpack[PriceOptions]) -> Costs:
    """The costs of a single plan, from a simulation of all ranks.

    Plans on more than `EXACT_RANKS` ranks, and the paper's accounting, use closed forms.
    """
    if plan.ranks > EXACT_RANKS or options.get("accounting") == "paper":
        return price_family(network, plan, machine, **options)
    priced = price_steps(network, plan, machine, **options)
    contention = options.get("contention")
    if contention is not None:
        machine = _contended(machine, contention)
    return Simulator(network, plan, machine, priced).exact_costs()


def _contended(machine: Machine, contention: float) -> Machine:
    """The machine with a fixed number of flows on each link beyond the innermost level."""
    levels = [replace(level, links=0.0, oversubscription=1.0,
                      beta_s_per_byte=level.beta_s_per_byte * (contention if number else 1.0))
              for number, level in enumerate(machine.levels)]
    return replace(machine, levels=tuple(levels))


def detailed(network: Network, plan: Plan, machine: Machine, costs: Costs, *,
             samples: int | None = None, **options: Unpack[PriceOptions]) -> Prediction:
    """The prediction of a plan from its costs; see `price` for the other parameters."""
    batch, iteration_s = plan.batch, float(costs.iteration_s)
    traffic = _traffic(costs, plan.ranks)
    steps = tuple(_step(costs, traffic, index) for index in range(len(costs.prices)))
    largest = max(_ranks(network, plan, costs, options), key=lambda rank: rank.total.total_bytes)
    gamma = options.get("gamma", 1.0)
    layer_memory = {name: memory.scaled(gamma) for name, memory in largest.layers.items()}
    known = data_set_of(network)
    normalized = any(layer.statistics == "batch" for layer in network.layers)
    return Prediction(
        network=plan.network.name, machine=machine.name, strategy=plan.strategy, ranks=plan.ranks,
        batch=batch, overlap=plan.overlap, accounting=options.get("accounting", "schedule"),
        iteration_s=iteration_s,
        epoch_s=None if samples is None else samples / batch * iteration_s,
        compute_s=float(costs.compute_s), communication_s=float(costs.communication_s),
        exposed_communication_s=float(costs.exposed_communication_s),
        bubble_s=float(costs.bubble_s), measured_compute=float(costs.measured_compute),
        communication_bytes=traffic.n_bytes, io_s=float(costs.io_s),
        memory=largest.total.scaled(gamma), memory_limit_bytes=machine.device.memory_bytes,
        process=process_memory(network, plan),
        layers=_layers(network, plan, costs, traffic, steps, layer_memory), steps=steps,
        timeline=_timeline(machine, costs, steps), samples=samples,
        data_set=known.name if known and known.samples == samples else "",
        batch_norm=plan.batch_norm if normalized else "", precision=plan.precision,
        processor=machine.processor,
        training=options.get("training", True), trust=trust(network, plan, machine, costs),
        limits=passed_limits(network, plan),
    )


def _timeline(machine: Machine, costs: Costs, steps: Sequence[StepCost]) -> Timeline[float]:
    """The timeline in plain numbers; the stream of a movement is the level that it crosses."""
    line = costs.timeline
    spans = []
    for step, span, cost in zip(steps, line.spans, costs.prices, strict=True):
        stream = machine.levels[int(cost.level)].name if step.is_comm else span.stream
        spans.append(Span(float(span.start_s), float(span.end_s), stream))
    waits = tuple(step.exposed_s if step.is_comm else 0.0 for step in steps)
    stages = tuple(StageTime({i: float(seconds) for i, seconds in stage.exposed_s.items()},
                             float(stage.bubble_s)) for stage in line.stages)
    return Timeline(tuple(spans), waits, float(line.total_s), stages)


def memory_of_ranks(network: Network, plan: Plan, costs: Costs,
                    **options: Unpack[PriceOptions]) -> Iterator[Memory]:
    """The memory of the candidates for the largest rank."""
    for rank in _ranks(network, plan, costs, options):
        yield rank.total.scaled(options.get("gamma", 1.0))


def _ranks(network: Network, plan: Plan, costs: Costs,
           options: PriceOptions) -> Iterator[RankMemory]:
    return rank_memories(network, plan, costs.out, costs.schedule, costs.moved_bytes,
                         training=options.get("training", True))


def _traffic(costs: Costs, ranks: int) -> RankTraffic:
    """The busiest rank's traffic: exact, or estimated step by step in a large job."""
    if ranks <= MOST_RANKS:
        return rank_traffic(costs.schedule)
    of_layer: dict[str, int] = defaultdict(int)
    for step, cost in costs.pairs:
        if isinstance(step, Comm):
            of_layer[step.layer] += int(cost.sent_bytes)
    of_step = [(int(cost.messages), int(cost.sent_bytes)) for cost in costs.prices]
    return RankTraffic(int(costs.communication_bytes), of_layer, of_step)


def _step(costs: Costs, traffic: RankTraffic, index: int) -> StepCost:
    step, seconds = costs.schedule.steps[index], float(costs.prices[index].seconds)
    is_comm = isinstance(step, Comm)
    messages, sent_bytes = traffic.of_step[index]
    return StepCost(index=index, label=step.label, layer=step.layer, phase=step.phase.value,
                    is_comm=is_comm, seconds=seconds,
                    exposed_s=float(costs.timeline.waits_s[index]) if is_comm else seconds,
                    messages=messages, sent_bytes=sent_bytes, part=step.part, stage=step.stage)


def _layers(network: Network, plan: Plan, costs: Costs, traffic: RankTraffic,
            steps: tuple[StepCost, ...], memory: dict[str, Memory]) -> tuple[LayerCost, ...]:
    comm_s = {layer.name: 0.0 for layer in network.layers[1:]}
    for s in steps:
        if s.is_comm:
            comm_s[s.layer] += s.seconds
    out, compute_s = [], costs.seconds_of_layers()
    for name, communication_s in comm_s.items():
        config = plan.configs[name]
        out.append(LayerCost(
            name=name, config={a: int(getattr(config, a)) for a in ("n", "c", "h", "w", "d", "k")},
            placement="outer" if config.outer else "inner", first_rank=int(config.first),
            ranks=int(config.ranks), compute_s=float(compute_s[name]),
            communication_s=communication_s, communication_bytes=traffic.of_layer.get(name, 0),
            memory_bytes=int(memory[name].total_bytes),
        ))
    return tuple(out)
