"""The record of a run in HDF5: plan, prediction, and measurements of every rank.

All times are in seconds. The time of a compute step is its duration. The time of a communication
step is its exposed time: posting, waiting, packing and unpacking.

Axes: R ranks, S steps, E epochs, C classes, I iterations, and K iterations with step times. I and K
include all iterations of a short run, and a sample of a long one (`hpcpar.runtime.reservoir`). A
resumed run continues its record: arrays over I and E then include the earlier part of the run, all
others start at the resume. Version 2:

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
``outside_s``               [R, I] float64, optional   time between the end of the schedule and the
                                                       next iteration, in which PyTorch runs its
                                                       loss, optimizer and loader
``kept``                    [K] int64, optional        indices of the K iterations among the I
``seconds``                 [R, K, S] float32          time of every step; [R, I, S] in version 1
``clock``                   [R, 2, 3] float64,         at the start and at the end of the run: time
                            optional                   on the rank's clock, its offset from rank 0's
                                                       clock, round trip of the measurement
``begin_s``                 [R, K] float64, optional   start of the iteration on the rank's clock
``start_s, end_s``          [R, K, S] float32,         start of every step and end of every
                            optional                   communication, after the iteration's start;
                                                       NaN where the rank does not take part
``wait_s``                  [R, K, S] float32,         final wait of a communication, included in
                            optional                   ``seconds``
``sent_bytes, messages``    [R, S] int64               sent in each step of one iteration
``memory_bytes``            [R] int64, optional        size of the executor's arrays, for comparison
                                                       with the prediction's memory
``loss``                    [I] float64
``epochs_done``             [E] int64, optional        number of each epoch in the training
``train_accuracy,``         [E] float64                fraction after every epoch; NaN if not
``test_accuracy``                                      measured
``test_loss``               [E] float64, optional      mean over the held-out samples; NaN if not
                                                       measured
``test_counts,``            [E, 3, C] int64, optional  pixels with each class as their label, as
``train_counts``                                       their prediction, and as both; 0 if not
                                                       counted
attributes                                             hpcpar_record, started (ISO), command,
                                                       warmup, samples, node_ranks, node_cores,
                                                       done, missing (iterations), training
==========================  =========================  ============================================
"""

from __future__ import annotations

import io
import itertools
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import astuple, fields
from typing import Any, TypeVar

import h5py
import msgspec
import numpy as np
from numpy.typing import NDArray

from hpcpar.errors import InputError
from hpcpar.io.files import write_bytes
from hpcpar.io.hdf5 import array, attributes, check, open_hdf5
from hpcpar.io.schema import Count, Extent, convert, decode_json
from hpcpar.runtime.reservoir import max_kept
from hpcpar.train import run_record
from hpcpar.train.run_record import ARRAYS, OPTIONAL, RankInfo, RunRecord, StepInfo, faults

#: Version of the schema, and the versions that `read` accepts.
VERSION, READABLE = 2, (1, 2)

_REMEDY = "write one with: hpcpar run ... --out FILE"
_AGAIN = "run again"
_JSON = ("plan", "prediction", "machine", "versions")
#: Axes of compressed arrays: step times vary little between iterations.
_COMPRESSED = ("RKS", "RTS")
Entry = TypeVar("Entry", StepInfo, RankInfo)


def _table(entries: Iterable[StepInfo] | Iterable[RankInfo],
           row_type: type[StepInfo] | type[RankInfo]) -> NDArray[Any]:
    dtype: list[tuple[str, Any]] = [(f.name, h5py.string_dtype() if f.type == "str" else "i8")
                                    for f in fields(row_type)]
    return np.array([astuple(e) for e in entries], dtype=dtype)


def _entries(f: h5py.File, name: str, row_type: type[Entry], where: str) -> list[Entry]:
    """The rows of a table."""
    rows = array(f, name, "V", where, _AGAIN)
    plain = [[v.decode(errors="replace") if isinstance(v, bytes) else v for v in row]
             for row in rows.tolist()]
    entries = [dict(zip(rows.dtype.names or (), row, strict=True)) for row in plain]
    return convert(entries, list[row_type], f"{where}, {name}",  # type: ignore[valid-type]
                   _AGAIN)


class _Attributes(msgspec.Struct):
    """The attributes of the file."""

    started: str
    command: str
    warmup: Count
    samples: Count
    node_ranks: Count
    node_cores: Count
    done: Count = 0
    missing: Count = 0
    training: str = ""


class _PlanFacts(msgspec.Struct):
    """Fields of the plan that reports use."""

    strategy: str
    ranks: Extent
    batch: Extent


class _Documents(msgspec.Struct):
    """The JSON data sets."""

    plan: dict[str, Any]
    prediction: dict[str, Any]
    machine: dict[str, Any]
    versions: dict[str, str]


def continued(path: str, plan: Mapping[str, object], steps: list[StepInfo], training: str,
              step: int, epoch: int) -> RunRecord | None:
    """The record at `path` if a resumed training can continue it; otherwise None, and the file
    moves to a numbered name. From a record of the same training under another plan, iterations that
    the resumed run does again are removed.

    Parameters
    ----------
    plan : mapping
        Content of the plan file.
    training : str
        Identifies the training in its checkpoint; empty if unknown.
    step, epoch : int
        First iteration and epoch of the resumed run.
    """
    if not os.path.lexists(path):
        return None
    with suppress(InputError):
        record = read(path)
        is_ours = record.training == training and record.epochs_done is not None
        if is_ours and record.plan == json.loads(json.dumps(plan)) and record.steps == steps:
            return record
        if is_ours and training and record.first < step < record.done:
            write(path, run_record.cut(record, step, epoch))
    stem, suffix = os.path.splitext(path)
    free = next(name for n in itertools.count(1)
                if not os.path.lexists(name := f"{stem}.{n}{suffix}"))
    os.rename(path, free)
    return None


def write(path: str, record: RunRecord) -> None:
    """Writes a record atomically.

    Raises
    ------
    InputError
        The file cannot be written.
    """
    errors = faults(record)
    if errors:
        raise ValueError(f"run record with {'; '.join(errors)}")
    out = io.BytesIO()
    with h5py.File(out, "w") as f:
        f.attrs["hpcpar_record"] = VERSION
        for name in _Attributes.__struct_fields__:
            f.attrs[name] = getattr(record, name)
        for name in _JSON:  # data sets, because an attribute holds at most 64 KB
            f.create_dataset(name, data=json.dumps(getattr(record, name)),
                             dtype=h5py.string_dtype())
        f.create_dataset("ranks", data=_table(record.ranks, RankInfo))
        f.create_dataset("steps", data=_table(record.steps, StepInfo))
        for name, (kind, axes) in (ARRAYS | OPTIONAL).items():
            if getattr(record, name) is not None:
                filters = {"compression": "gzip", "compression_opts": 1,
                           "shuffle": True} if axes in _COMPRESSED else {}
                f.create_dataset(name, data=np.asarray(getattr(record, name), kind), **filters)
    write_bytes(path, out.getbuffer(), "run record")


def read(path: str) -> RunRecord:
    """Reads a record.

    Raises
    ------
    InputError
        The file is missing, truncated or damaged, is not a record, or has another version.
    """
    where = f"run record {path}"
    with open_hdf5(path, "run record", _REMEDY) as f:
        stored = attributes(f, where, _AGAIN)
        version = stored.get("hpcpar_record")
        if version is None:
            raise InputError(f"{path} is an HDF5 file but not the record of a run; {_REMEDY}")
        if version not in READABLE:
            raise InputError(f"{where} has version {version}, but this hpcpar reads versions up to "
                             f"{VERSION}; {_AGAIN} with this hpcpar")
        known = convert(stored, _Attributes, where, _AGAIN)
        documents = {name: decode_json(bytes(array(f, name, "O", where, _AGAIN)[()]), object,
                                       f"{name} in {where}", _AGAIN) for name in _JSON}
        values = msgspec.structs.asdict(known) | msgspec.structs.asdict(
            convert(documents, _Documents, where, _AGAIN))
        convert(values["plan"], _PlanFacts, f"plan in {where}", _AGAIN)
        steps, ranks = _entries(f, "steps", StepInfo, where), _entries(f, "ranks", RankInfo, where)
        times = max_kept(len(steps), len(ranks)) * len(steps) * len(ranks)
        values |= {name: array(f, name, kind[0] if kind[0] == "f" else "iu", where, _AGAIN,
                               int(kind[1]) * times if axes in _COMPRESSED else 0)
                   for name, (kind, axes) in (ARRAYS | OPTIONAL).items()
                   if name in ARRAYS or name in f}
        record = RunRecord(steps=steps, ranks=ranks, path=path, **values)
    errors = faults(record)
    if errors or record.iterations == 0:
        raise InputError(f"{where} is damaged or has no iterations "
                         f"({'; '.join(errors) or 'empty'}); {_AGAIN}")
    return record


def load(*paths: str, allow_external: bool = False) -> list[RunRecord]:
    """Reads records from untrusted sources, after a check by `hpcpar.io.hdf5.check`.

    Raises
    ------
    InputError
        As `read` and `hpcpar.io.hdf5.check`.
    """
    check(paths, "run record", _REMEDY, allow_external)
    return [read(path) for path in paths]


def load_record(path: str, allow_external: bool = False) -> RunRecord:
    """Reads one record; see `load`."""
    return load(path, allow_external=allow_external)[0]
