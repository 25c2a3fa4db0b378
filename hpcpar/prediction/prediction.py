"""A plan's price step by step, layer by layer and in sum, in seconds and bytes.

`Prediction` is its form in memory, and `PredictionFile` its form in files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec import Struct, structs

from hpcpar.cost.memory.memory import Memory
from hpcpar.cost.memory.process import ProcessMemory
from hpcpar.cost.timeline.timeline import StageTime
from hpcpar.cost.trust import Interval90, Trust
from hpcpar.errors import InputError
from hpcpar.io.schema import Bytes, Count, Extent, NotNegative, Positive, Seconds, plain
from hpcpar.plan.limits import PassedLimit
from hpcpar.plan.plan import Overlap
from hpcpar.schedule.steps import Phase


class StepCost(Struct, frozen=True, kw_only=True):
    """The price of one step of the schedule, and its place in the timeline.

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
    stream : str
        ``compute``, or the level of the machine that a message crosses.
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
    start_s: Seconds
    end_s: Seconds
    stream: str = "compute"


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

    `hpcpar.cost.price_family.Costs` explains the sums, `iteration_s` to `communication_bytes`.

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
    stages : tuple of StageTime
        Times in which the stages of a pipeline (or all ranks) do not compute.
    total_s : float
        End of the last step; reading may make the iteration longer.
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
    stages: tuple[StageTime[float], ...]
    total_s: float
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
        compute_s = [0.0] * len(self.stages)
        for step in self.steps:
            compute_s[step.stage] += 0.0 if step.is_comm else step.seconds
        return compute_s.index(max(compute_s))

    def of_stage(self, stage: int) -> tuple[StepCost, ...]:
        """The steps of a stage, including messages from other stages, with their exposed times."""
        waits = self.stages[stage].exposed_s
        return tuple(structs.replace(s, exposed_s=waits.get(s.index, 0.0)) if s.is_comm else s
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

    @property
    def gradient_s(self) -> float:
        """Exposed communication of gradients, at most all exposed communication."""
        return min(self.exposed_communication_s,  # the phases of a pipeline sum over all stages
                   self.phases[Phase.GRADIENT.value]["exposed_communication_s"])

    def to_json(self, steps: bool = False) -> dict[str, Any]:
        """The content of a file, with or without its steps."""
        others = self.trust.to_json(self.iteration_s) | {
            "process_bytes": self.process.total_bytes}
        content: dict[str, Any] = plain({
            name: others[name] if name in others else getattr(self, name)
            for name in PredictionFile.__struct_fields__ if steps or name != "steps"})
        return content


class PhaseTimes(Struct):
    """Times of a phase of an iteration."""

    exposed_communication_s: Seconds
    compute_s: Seconds = 0.0
    communication_s: Seconds = 0.0


class PredictionFile(Struct, kw_only=True):
    """A prediction in a file: a run's record, a sweep's folder, or the document of ``--json``.

    Its fields are the names that `Prediction.to_json` writes, in this order. Files of earlier
    versions lack some of those that have a default.
    """

    network: str
    machine: str
    strategy: str
    ranks: Extent = 1
    batch: Extent = 1
    overlap: str = ""
    accounting: str = ""
    iteration_s: Seconds
    epoch_s: Seconds | None = None
    compute_s: Seconds
    communication_s: Seconds = 0.0
    exposed_communication_s: Seconds
    bubble_s: Seconds = 0.0
    measured_compute: NotNegative = 0.0
    communication_bytes: Bytes = 0
    io_s: Seconds = 0.0
    memory_bytes: Bytes = 0
    fits: bool = True
    samples: Count | None = None
    data_set: str = ""
    batch_norm: str = ""
    precision: str = ""
    processor: str = ""
    training: bool = True
    iteration_low_s: Seconds | None = None
    iteration_high_s: Seconds | None = None
    interval_basis: str = ""
    interval_source: str = ""
    compute_factor: Positive = 1.0
    memory: dict[str, Bytes] = {}
    process_bytes: Bytes = 0
    process: dict[str, Bytes] = {}
    phases: dict[str, PhaseTimes]
    layers: list[dict[str, object]] = []
    limits: list[dict[str, object]] = []
    #: Only the prediction of a single plan has steps.
    steps: list[StepCost] = []

    def __post_init__(self) -> None:
        if Phase.GRADIENT.value not in self.phases:
            raise InputError(f"'phases' lacks '{Phase.GRADIENT.value}'; write the file again")

    @property
    def total_s(self) -> float:
        """As in `Prediction`; files do not tell the time of reading apart."""
        return self.iteration_s

    @property
    def interval_s(self) -> Interval90 | None:
        """90% interval of `iteration_s`; None in files of earlier versions."""
        low_s, high_s = self.iteration_low_s, self.iteration_high_s
        return None if low_s is None or high_s is None else (low_s, high_s)

    @property
    def trust(self) -> Trust | None:
        """The interval and its source; None in files of earlier versions."""
        if self.interval_s is None or not self.iteration_s:
            return None
        low_s, high_s = self.interval_s
        return Trust(self.interval_basis, self.interval_source,
                     (low_s / self.iteration_s, high_s / self.iteration_s),
                     factor=self.compute_factor)

    @property
    def gradient_s(self) -> float:
        """As in `Prediction`."""
        return min(self.exposed_communication_s,
                   self.phases[Phase.GRADIENT.value].exposed_communication_s)
