"""The record of a run: plan, prediction and measurements. `hpcpar.train.record_file` reads and
writes it, and lists the shapes and units of all arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.io.schema import Bytes, Count
from hpcpar.runtime.reservoir import GROUP, stride
from hpcpar.schedule.steps import Comm, Schedule

#: Type and axes of every array; `hpcpar.train.record_file` explains the letters.
ARRAYS = {"seconds": ("f4", "RTS"), "iteration_s": ("f8", "RI"), "sent_bytes": ("i8", "RS"),
          "messages": ("i8", "RS"), "loss": ("f8", "I"), "train_accuracy": ("f8", "E"),
          "test_accuracy": ("f8", "E")}
#: Arrays that a record may lack.
OPTIONAL = {"test_loss": ("f8", "E"), "test_counts": ("i8", "E3C"),
            "train_counts": ("i8", "E3C"),
            "epochs_done": ("i8", "E"), "iterations_done": ("i8", "I"),
            "memory_bytes": ("i8", "R"), "outside_s": ("f8", "RI"), "kept": ("i8", "K"),
            "clock": ("f8", "R23"), "begin_s": ("f8", "RK"), "start_s": ("f4", "RKS"),
            "end_s": ("f4", "RKS"), "wait_s": ("f4", "RKS")}

#: Device of the ranks in the record of a simulation.
SIMULATED = "simulated"


@dataclass(frozen=True)
class StepInfo:
    """A step of the schedule."""

    index: Count
    #: ``compute`` or ``comm``.
    kind: str
    phase: str
    layer: str
    label: str
    #: The operation, or the kind of communication.
    op: str
    algorithm: str = ""


@dataclass(frozen=True)
class RankInfo:
    """Host and process of a rank, BLAS threads, and peak memory of its process or device."""

    hostname: str
    pid: Count
    threads: Count
    device: str
    peak_memory_bytes: Bytes


def _empty() -> NDArray[Any]:
    return np.zeros(0)


@dataclass
class RunRecord:
    """The record of a run; `hpcpar.train.record_file` lists shapes and units."""

    plan: dict[str, Any]
    steps: list[StepInfo]
    ranks: list[RankInfo]
    seconds: NDArray[Any]
    iteration_s: NDArray[Any]
    sent_bytes: NDArray[Any]
    messages: NDArray[Any]
    loss: NDArray[Any]
    train_accuracy: NDArray[Any] = field(default_factory=_empty)
    test_accuracy: NDArray[Any] = field(default_factory=_empty)
    test_loss: NDArray[Any] | None = None
    test_counts: NDArray[Any] | None = None
    train_counts: NDArray[Any] | None = None
    memory_bytes: NDArray[Any] | None = None
    outside_s: NDArray[Any] | None = None
    iterations_done: NDArray[Any] | None = None
    epochs_done: NDArray[Any] | None = None
    kept: NDArray[Any] | None = None
    clock: NDArray[Any] | None = None
    begin_s: NDArray[Any] | None = None
    start_s: NDArray[Any] | None = None
    end_s: NDArray[Any] | None = None
    wait_s: NDArray[Any] | None = None
    prediction: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    started: str = ""
    command: str = ""
    #: Number of first iterations that comparisons leave out.
    warmup: int = 0
    #: Training samples in the data file; 0 if unknown.
    samples: int = 0
    #: Ranks and cores of the node with the most ranks per core; 0 if unknown.
    node_ranks: int = 0
    node_cores: int = 0
    #: Iterations that the training has done; 0 if unknown.
    done: int = 0
    #: Iterations without a record: a run did them between its last record and the checkpoint from
    #: which it resumed.
    missing: int = 0
    #: Identifies the training, as in its checkpoints; empty if unknown.
    training: str = ""
    #: File that the record was read from.
    path: str = ""

    @property
    def iterations(self) -> int:
        return int(self.iteration_s.shape[1])

    @property
    def first(self) -> int:
        """Iterations of the training before the first recorded one."""
        numbers = self.iterations_done
        return 0 if numbers is None or not numbers.size else int(numbers[0])

    @property
    def measured(self) -> slice:
        """The iterations after the warm-up, which comparisons use; all if none are left."""
        return slice(self.warmup if self.warmup < self.iterations else 0, None)

    @property
    def timed(self) -> NDArray[np.int64]:
        """Indices of the iterations with step times."""
        everything = np.arange(self.iterations)
        is_all = self.kept is None or self.seconds.shape[1] == self.iterations
        return everything if is_all else np.asarray(self.kept)

    @property
    def compared(self) -> NDArray[np.int64]:
        """Indices of the timed iterations after the warm-up; all timed ones if none are left."""
        after = self.timed >= (self.measured.start or 0)
        return self.timed[after] if after.any() else self.timed

    @property
    def compared_seconds(self) -> NDArray[np.float32]:
        """[ranks, compared, steps] step times (s) in the `compared` iterations."""
        return np.asarray(self.seconds[:, np.isin(self.timed, self.compared)])

    @property
    def slowest(self) -> int:
        """The rank with the largest median iteration time."""
        return int(np.median(self.iteration_s[:, self.measured], axis=1).argmax())

    @property
    def slowest_s(self) -> NDArray[np.float64]:
        """[measured iterations] iteration times (s) of the slowest rank.

        The sum of each iteration's maximum over ranks would exceed the time of the epoch: a rank
        that finishes an iteration late starts the next one late, and measures a shorter time.
        """
        return np.asarray(self.iteration_s[self.slowest, self.measured], np.float64)


def steps_of(schedule: Schedule) -> list[StepInfo]:
    """The steps of a schedule, for a record."""
    return [StepInfo(s.index, "comm", s.phase.value, s.layer, s.label, s.kind.value, s.algorithm)
            if isinstance(s, Comm) else
            StepInfo(s.index, "compute", s.phase.value, s.layer, s.label, s.op.value)
            for s in schedule.steps]


def faults(record: RunRecord) -> list[str]:
    """Arrays with inconsistent shapes or impossible values, as phrases for an error message."""
    iterations = np.atleast_1d(record.iteration_s).shape[-1]
    counts = record.train_counts if record.test_counts is None else record.test_counts
    sizes = {"R": len(record.ranks), "I": iterations, "S": len(record.steps),
             "K": iterations if record.kept is None else record.kept.size, "2": 2, "3": 3,
             "E": record.train_accuracy.size, "C": 0 if counts is None else counts.shape[-1]}
    timed = np.shape(record.seconds)[1:2]
    sizes["T"] = sizes["K"] if timed == (sizes["K"],) else iterations
    errors: list[str] = []
    for name, (_, axes) in (ARRAYS | OPTIONAL).items():
        array = getattr(record, name)
        if array is None:
            continue
        shape = tuple(sizes[axis] for axis in axes)
        if array.shape != shape:
            errors.append(f"{name} {array.shape} instead of {shape}")
    for name in ("seconds", "iteration_s", "sent_bytes", "messages", "memory_bytes",
                 "test_counts", "train_counts"):
        array = getattr(record, name)
        if array is not None and not (np.isfinite(array) & (np.asarray(array) >= 0)).all():
            errors.append(f"{name} with negative or infinite numbers")
    for name, size in (("kept", iterations), ("iterations_done", None), ("epochs_done", None)):
        array = getattr(record, name)
        if array is not None and array.size and (
                array.ndim != 1 or array[0] < 0 or (np.diff(array) <= 0).any()
                or (size and array[-1] >= size)):
            errors.append(f"{name} out of order")
    return errors or _stamp_faults(record)


def _stamp_faults(record: RunRecord) -> list[str]:
    """Time stamps that are not finite, for steps in which the rank takes part."""
    per_iteration = {"clock": record.clock, "begin_s": record.begin_s}
    errors = [f"{name} with infinite numbers" for name, array in per_iteration.items()
              if array is not None and not np.isfinite(array).all()]
    start_s, end_s, wait_s = record.start_s, record.end_s, record.wait_s
    if start_s is not None and end_s is not None and wait_s is not None:
        comm = np.array([step.kind == "comm" for step in record.steps])
        ends = np.isfinite(end_s) & np.isfinite(wait_s)
        if np.isinf(start_s).any() or (comm & np.isfinite(start_s) & ~ends).any():
            errors.append("stamps with infinite numbers")
    return errors


def cut(record: RunRecord, step: int, epoch: int) -> RunRecord:
    """The part of a record before iteration `step`, which belongs to `epoch`."""
    numbers, epochs = record.iterations_done, record.epochs_done
    if numbers is None or epochs is None:
        return record
    kept = np.arange(numbers.size) if record.kept is None else record.kept
    ends = {"I": int(np.searchsorted(numbers, step)), "E": int(np.searchsorted(epochs, epoch))}
    ends["K"] = int(np.searchsorted(kept, ends["I"]))
    ends["T"] = ends["I" if record.seconds.shape[1] == numbers.size else "K"]
    parts: dict[str, Any] = {
        name: array[tuple(slice(ends.get(axis)) for axis in axes)]
        for name, (_, axes) in (ARRAYS | OPTIONAL).items()
        if (array := getattr(record, name)) is not None}
    return replace(record, done=min(record.done, step), **parts)


def join(before: RunRecord, now: RunRecord, step: int, epoch: int,
         max_iterations: int) -> RunRecord:
    """The record of a resumed training run: iterations and epochs of both parts, else `now`'s.

    An iteration that both parts did appears once.

    Parameters
    ----------
    step, epoch : int
        First iteration and epoch of `now`.
    max_iterations : int
        Limit of the number of iterations from `before`.
    """
    before = cut(before, step, epoch)
    numbers, epochs = before.iterations_done, before.epochs_done
    if numbers is None or epochs is None or now.iterations_done is None or now.kept is None:
        return now
    if before.test_loss is None:
        before = replace(before, test_loss=np.full(epochs.shape, np.nan))
    earlier = numbers // GROUP % stride(numbers.tolist(), max_iterations) == 0
    by_iteration: dict[str, Any] = {
        name: np.concatenate([getattr(before, name)[..., earlier], getattr(now, name)], axis=-1)
        for name in ("iterations_done", "iteration_s", "loss")}
    by_epoch: dict[str, Any] = {
        name: np.concatenate([getattr(before, name), getattr(now, name)])
        for name in ("epochs_done", "train_accuracy", "test_accuracy", "test_loss")}
    missing = max(0, step - before.done) if before.done else 0
    for name in ("test_counts", "train_counts"):
        counts, earlier_counts = getattr(now, name), getattr(before, name)
        if counts is None:
            continue
        if earlier_counts is None:  # an older hpcpar wrote the record
            earlier_counts = np.zeros((len(epochs), *counts.shape[1:]), np.int64)
        by_epoch[name] = np.concatenate([earlier_counts, counts])
    return replace(now, **by_iteration, **by_epoch, kept=now.kept + int(earlier.sum()),
                   warmup=before.warmup or now.warmup, started=before.started,
                   missing=before.missing + missing)
