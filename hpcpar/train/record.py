"""The record of a run in HDF5: plan, prediction, and measurements on every rank in every iteration.

Times are in seconds. The time of a compute step is its duration. The time of a communication step
is its exposed time: posting, waiting, packing and unpacking. R ranks, S steps, E epochs,
I iterations: all of a run, some spread over a very long one. K of these: those whose steps' times
are kept; all of a short run (`hpcpar.runtime.reservoir`). A run that resumes continues its record:
what is of I or E then goes back to the beginning, all else is of the time since. Version 2:

==========================  =========================  ============================================
``plan, prediction,``       JSON strings               content of the plan file; prediction of
``machine, versions``                                  `hpcpar.cost` (or {}); content of the machine
                                                       file; software versions by name
``ranks``                   [R] table                  hostname, pid, threads (BLAS), device,
                                                       peak_memory_bytes
``steps``                   [S] table                  index, kind, phase, layer, label, op,
                                                       algorithm; with micro-batches or several fc
                                                       passes, a step occurs once for each of them;
                                                       for inference, the forward pass alone
``iterations_done``         [I] int64, optional        number of each iteration in the training
``iteration_s``             [R, I] float64             wall time of every iteration
``kept``                    [K] int64, optional        places of the K iterations among the I
``seconds``                 [R, K, S] float32          time of every step; of version 1 [R, I, S]
``clock``                   [R, 2, 3] float64,         at the beginning and the end of the run: time
                            optional                   on the rank's clock, its offset from rank 0's
                                                       clock, round trip of that measurement
``begin_s``                 [R, K] float64, optional   beginning of the iteration on the rank's
                                                       clock
``start_s, end_s``          [R, K, S] float32,         beginning of every step after the
                            optional                   iteration's; end of a communication; NaN
                                                       where the rank takes no part
``wait_s``                  [R, K, S] float32,         final wait of a communication, a part of
                            optional                   ``seconds``
``sent_bytes, messages``    [R, S] int64               sent in each step of one iteration
``memory_bytes``            [R] int64, optional        size of the executor's arrays, which the
                                                       prediction's memory estimates
``loss``                    [I] float64
``epochs_done``             [E] int64, optional        number of each epoch in the training
``train_accuracy,``         [E] float64                fraction after every epoch; NaN where it was
``test_accuracy``                                      not measured
``test_loss``               [E] float64, optional      likewise, mean over the held-out samples
attributes                                             hpcpar_record, started (ISO), command,
                                                       warmup, samples, node_ranks, node_cores
==========================  =========================  ============================================
"""

from __future__ import annotations

import io
import itertools
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass, field, fields, replace
from typing import Any, TypeVar

import h5py
import msgspec
import numpy as np
from numpy.typing import NDArray

from hpcpar.errors import InputError
from hpcpar.files import write_bytes
from hpcpar.hdf5 import array, attributes, check, open_hdf5
from hpcpar.runtime.reservoir import TOGETHER, stride
from hpcpar.schedule.steps import Comm, Schedule
from hpcpar.schema import Bytes, Count, Extent, convert, decode_json

#: Version of the schema, and those that are read.
VERSION, READABLE = 2, (1, 2)

_REMEDY = "write one with: hpcpar run ... --out FILE"
_AGAIN = "run again"
_JSON = ("plan", "prediction", "machine", "versions")
#: Type and axes of every array, by the letters of the table above.
_ARRAYS = {"seconds": ("f4", "RTS"), "iteration_s": ("f8", "RI"), "sent_bytes": ("i8", "RS"),
           "messages": ("i8", "RS"), "loss": ("f8", "I"), "train_accuracy": ("f8", "E"),
           "test_accuracy": ("f8", "E")}
#: Arrays that a record may lack.
_OPTIONAL = {"test_loss": ("f8", "E"), "epochs_done": ("i8", "E"), "iterations_done": ("i8", "I"),
             "memory_bytes": ("i8", "R"), "kept": ("i8", "K"), "clock": ("f8", "R23"),
             "begin_s": ("f8", "RK"), "start_s": ("f4", "RKS"), "end_s": ("f4", "RKS"),
             "wait_s": ("f4", "RKS")}


@dataclass(frozen=True)
class StepInfo:
    """A step of the schedule in the record.

    Attributes
    ----------
    kind : str
        ``compute`` or ``comm``.
    op : str
        The operator, or the communication pattern.
    """

    index: Count
    kind: str
    phase: str
    layer: str
    label: str
    op: str
    algorithm: str = ""


@dataclass(frozen=True)
class RankInfo:
    """Host and process of a rank; `threads` of its BLAS, peak memory of its process or device."""

    hostname: str
    pid: Count
    threads: Count
    device: str
    peak_memory_bytes: Bytes


def _empty() -> NDArray[Any]:
    return np.zeros(0)


@dataclass
class RunRecord:
    """A run; the table of this module has shapes and units.

    Attributes
    ----------
    warmup : int
        Number of first iterations that comparisons leave out.
    samples : int
        Training samples of the data file; 0 where unknown.
    node_ranks, node_cores : int
        Ranks and cores of the node with most ranks per core; 0 where unknown.
    path : str
        File that the record was read from.
    """

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
    memory_bytes: NDArray[Any] | None = None
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
    warmup: int = 0
    samples: int = 0
    node_ranks: int = 0
    node_cores: int = 0
    path: str = ""

    @property
    def iterations(self) -> int:
        return int(self.iteration_s.shape[1])

    @property
    def measured(self) -> slice:
        """The iterations after the warm-up, which comparisons use; all where none are left."""
        return slice(self.warmup if self.warmup < self.iterations else 0, None)

    @property
    def timed(self) -> NDArray[np.int64]:
        """Places, among the iterations, of those whose steps' times are known."""
        everything = np.arange(self.iterations)
        is_all = self.kept is None or self.seconds.shape[1] == self.iterations
        return everything if is_all else np.asarray(self.kept)

    @property
    def compared(self) -> NDArray[np.int64]:
        """Places of the timed iterations after the warm-up; of all where none are left."""
        after = self.timed >= (self.measured.start or 0)
        return self.timed[after] if after.any() else self.timed

    @property
    def compared_seconds(self) -> NDArray[np.float32]:
        """[ranks, compared, steps] seconds of the steps of the `compared` iterations."""
        return np.asarray(self.seconds[:, np.isin(self.timed, self.compared)])

    @property
    def slowest(self) -> int:
        """The rank with the largest median time of an iteration."""
        return int(np.median(self.iteration_s[:, self.measured], axis=1).argmax())

    @property
    def slowest_s(self) -> NDArray[np.float64]:
        """[compared iterations] seconds of the rank with the largest median.

        The maximum over ranks of every iteration would add up to more than the epoch: a rank that
        ends one iteration late begins the next one late, and measures a shorter time for it.
        """
        return np.asarray(self.iteration_s[self.slowest, self.measured], np.float64)


def steps_of(schedule: Schedule) -> list[StepInfo]:
    """The table of a schedule's steps."""
    out = []
    for s in schedule.steps:
        if isinstance(s, Comm):
            out.append(StepInfo(s.index, "comm", s.phase.value, s.layer, s.label, s.kind.value,
                                s.algorithm))
        else:
            out.append(StepInfo(s.index, "compute", s.phase.value, s.layer, s.label, s.op.value))
    return out


def _faults(record: RunRecord) -> list[str]:
    """Descriptions of arrays whose shapes contradict each other."""
    iterations = np.atleast_1d(record.iteration_s).shape[-1]
    sizes = {"R": len(record.ranks), "I": iterations, "S": len(record.steps),
             "K": iterations if record.kept is None else record.kept.size, "2": 2, "3": 3}
    timed = np.shape(record.seconds)[1:2]
    sizes["T"] = sizes["K"] if timed == (sizes["K"],) else iterations
    faults = []
    for name, (_, axes) in (_ARRAYS | _OPTIONAL).items():
        array = getattr(record, name)
        if array is None or axes == "E":  # the epochs are known from these arrays alone
            continue
        shape = tuple(sizes[axis] for axis in axes)
        if array.shape != shape:
            faults.append(f"{name} {array.shape} instead of {shape}")
    for name in ("seconds", "iteration_s", "sent_bytes", "messages", "memory_bytes"):
        array = getattr(record, name)
        if array is not None and not (np.isfinite(array) & (np.asarray(array) >= 0)).all():
            faults.append(f"{name} with negative or infinite numbers")
    for name, size in (("kept", iterations), ("iterations_done", None), ("epochs_done", None)):
        array = getattr(record, name)
        if array is not None and array.size and (
                array.ndim != 1 or array[0] < 0 or (np.diff(array) <= 0).any()
                or (size and array[-1] >= size)):
            faults.append(f"{name} out of order")
    return faults or _stamp_faults(record)


def _stamp_faults(record: RunRecord) -> list[str]:
    """Stamps that are no times, where the rank takes part in the step."""
    once = {"clock": record.clock, "begin_s": record.begin_s}
    faults = [f"{name} with infinite numbers" for name, array in once.items()
              if array is not None and not np.isfinite(array).all()]
    start_s, end_s, wait_s = record.start_s, record.end_s, record.wait_s
    if start_s is not None and end_s is not None and wait_s is not None:
        comm = np.array([step.kind == "comm" for step in record.steps])
        ends = np.isfinite(end_s) & np.isfinite(wait_s)
        if np.isinf(start_s).any() or (comm & np.isfinite(start_s) & ~ends).any():
            faults.append("stamps with infinite numbers")
    return faults


Entry = TypeVar("Entry", StepInfo, RankInfo)


def _table(entries: Iterable[StepInfo] | Iterable[RankInfo],
           of: type[StepInfo] | type[RankInfo]) -> NDArray[Any]:
    kinds: list[tuple[str, Any]] = [(f.name, h5py.string_dtype() if f.type == "str" else "i8")
                                    for f in fields(of)]
    return np.array([astuple(e) for e in entries], dtype=kinds)


def _entries(f: h5py.File, name: str, of: type[Entry], where: str) -> list[Entry]:
    """The rows of a table."""
    rows = array(f, name, "V", where, _AGAIN)
    plain = [[v.decode(errors="replace") if isinstance(v, bytes) else v for v in row]
             for row in rows.tolist()]
    entries = [dict(zip(rows.dtype.names or (), row, strict=True)) for row in plain]
    return convert(entries, list[of], f"{where}, {name}", _AGAIN)  # type: ignore[valid-type]


class _Attributes(msgspec.Struct):
    """The attributes of the file."""

    started: str
    command: str
    warmup: Count
    samples: Count
    node_ranks: Count
    node_cores: Count


class _PlanFacts(msgspec.Struct):
    """What reports read of the plan."""

    strategy: str
    ranks: Extent
    batch: Extent


class _Documents(msgspec.Struct):
    """The JSON data sets."""

    plan: dict[str, Any]
    prediction: dict[str, Any]
    machine: dict[str, Any]
    versions: dict[str, str]


def join(before: RunRecord, now: RunRecord, step: int, epoch: int, most: int) -> RunRecord:
    """The record of a training that was resumed: iterations and epochs of both parts, all else of
    `now`. What was done twice counts once.

    Parameters
    ----------
    step, epoch : int
        The first of `now`.
    most : int
        Largest number of iterations of `before`.
    """
    numbers, epochs = before.iterations_done, before.epochs_done
    if numbers is None or epochs is None or now.iterations_done is None or now.kept is None:
        return now
    earlier = numbers < step
    earlier &= numbers // TOGETHER % stride(numbers[earlier].tolist(), most) == 0
    whole = epochs < epoch
    by_iteration: dict[str, Any] = {
        name: np.concatenate([getattr(before, name)[..., earlier], getattr(now, name)], axis=-1)
        for name in ("iterations_done", "iteration_s", "loss")}
    by_epoch: dict[str, Any] = {
        name: np.concatenate([getattr(before, name)[whole], getattr(now, name)])
        for name in ("epochs_done", "train_accuracy", "test_accuracy", "test_loss")}
    return replace(now, **by_iteration, **by_epoch, kept=now.kept + int(earlier.sum()),
                   warmup=before.warmup or now.warmup, started=before.started)


def continued(path: str, plan: Mapping[str, object], steps: list[StepInfo]) -> RunRecord | None:
    """The record at `path` if a training under this plan can continue it. Any other file there is
    moved aside, to a numbered name.

    Parameters
    ----------
    plan : mapping
        Content of the plan file.
    """
    if not os.path.exists(path):
        return None
    with suppress(InputError):
        found = read(path)
        same = found.plan == json.loads(json.dumps(plan)) and found.steps == steps
        if same and found.iterations_done is not None and found.epochs_done is not None:
            return found
    stem, suffix = os.path.splitext(path)
    free = next(name for n in itertools.count(1)
                if not os.path.exists(name := f"{stem}.{n}{suffix}"))
    os.rename(path, free)
    return None


def write(path: str, record: RunRecord) -> None:
    """Writes a record atomically.

    Raises
    ------
    InputError
        The file cannot be written.
    """
    faults = _faults(record)
    if faults:
        raise ValueError(f"run record with {'; '.join(faults)}")
    out = io.BytesIO()
    with h5py.File(out, "w") as f:
        f.attrs["hpcpar_record"] = VERSION
        for name in _Attributes.__struct_fields__:
            f.attrs[name] = getattr(record, name)
        for name in _JSON:  # as data sets: an attribute holds at most 64 KB
            f.create_dataset(name, data=json.dumps(getattr(record, name)),
                             dtype=h5py.string_dtype())
        f.create_dataset("ranks", data=_table(record.ranks, RankInfo))
        f.create_dataset("steps", data=_table(record.steps, StepInfo))
        for name, (kind, axes) in (_ARRAYS | _OPTIONAL).items():
            if getattr(record, name) is not None:
                # step times differ little from iteration to iteration
                packed = {"compression": "gzip", "compression_opts": 1,
                          "shuffle": True} if axes in ("RKS", "RTS") else {}
                f.create_dataset(name, data=np.asarray(getattr(record, name), kind), **packed)
    write_bytes(path, out.getbuffer(), "run record")


def read(path: str) -> RunRecord:
    """Reads a record.

    Raises
    ------
    InputError
        Missing, truncated, not a record, of another version, or damaged.
    """
    where = f"run record {path}"
    with open_hdf5(path, "run record", _REMEDY) as f:
        found = attributes(f, where, _AGAIN)
        version = found.get("hpcpar_record")
        if version is None:
            raise InputError(f"{path} is an HDF5 file but not the record of a run; {_REMEDY}")
        if version not in READABLE:
            raise InputError(f"{where} is of version {version}, this hpcpar reads versions up to "
                             f"{VERSION}; {_AGAIN} with this hpcpar")
        known = convert(found, _Attributes, where, _AGAIN)
        documents = {name: decode_json(bytes(array(f, name, "O", where, _AGAIN)[()]), object,
                                       f"{name} in {where}", _AGAIN) for name in _JSON}
        plan = documents["plan"]
        if isinstance(plan, dict):
            facts = {name: plan[name] for name in _PlanFacts.__struct_fields__ if name in plan}
            convert(facts, _PlanFacts, f"plan in {where}", _AGAIN)
        values = msgspec.structs.asdict(known) | msgspec.structs.asdict(
            convert(documents, _Documents, where, _AGAIN))
        values |= {name: array(f, name, kind[0] if kind[0] == "f" else "iu", where, _AGAIN)
                   for name, (kind, _) in (_ARRAYS | _OPTIONAL).items()
                   if name in _ARRAYS or name in f}
        record = RunRecord(steps=_entries(f, "steps", StepInfo, where),
                           ranks=_entries(f, "ranks", RankInfo, where), path=path, **values)
    faults = _faults(record)
    if faults or record.iterations == 0:
        raise InputError(f"{where} is damaged or has no iterations "
                         f"({'; '.join(faults) or 'empty'}); {_AGAIN}")
    return record


def load(*paths: str, allow_external: bool = False) -> list[RunRecord]:
    """Reads records that somebody else may have made: they are checked first.

    Raises
    ------
    InputError
        As `read` and `hpcpar.hdf5.check`.
    """
    check(paths, "run record", _REMEDY, allow_external)
    return [read(path) for path in paths]


def load_record(path: str, allow_external: bool = False) -> RunRecord:
    """Reads one record; see `load`."""
    return load(path, allow_external=allow_external)[0]
