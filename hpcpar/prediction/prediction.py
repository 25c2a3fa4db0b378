"""A plan's price step by step, layer by layer and in sum, in seconds and bytes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from hpcpar.cost.interval import Interval90
from hpcpar.cost.memory.memory import Memory
from hpcpar.cost.memory.process import ProcessMemory
from hpcpar.cost.timeline.timeline import Timeline
from hpcpar.cost.trust import Trust
from hpcpar.io.schema import Bytes, Count, Seconds
from hpcpar.plan.limits import PassedLimit
from hpcpar.plan.plan import Overlap
from hpcpar.schedule.steps import Phase


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
