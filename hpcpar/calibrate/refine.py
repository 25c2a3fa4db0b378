"""Refines a machine by records of runs: compute times update its table, messages its levels."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hpcpar.calibrate import provenance
from hpcpar.calibrate.provenance import Origin
from hpcpar.calibrate.refine_links import Scaled, scaled
from hpcpar.calibrate.samples import Samples, of_all_ranks
from hpcpar.calibrate.work_index import WorkIndex
from hpcpar.cost.compute.step_time import kinds
from hpcpar.errors import InputError
from hpcpar.machine.model import Machine
from hpcpar.plan.plan import Plan
from hpcpar.prediction.price import price
from hpcpar.train.record_with_schedule import RecordWithSchedule, with_schedule
from hpcpar.train.run_record import RunRecord


@dataclass(frozen=True)
class Change:
    """Predicted iteration times of a record's plan, before and after the refinement."""

    path: str
    strategy: str
    ranks: int
    #: Number of pieces of work in the plan.
    steps: int
    before_s: float
    after_s: float
    #: Median of the record's iterations.
    measured_s: float


@dataclass(frozen=True)
class Refined:
    """A refined machine."""

    machine: Machine
    #: Pieces of work from the records that are new to the table, and that it had before.
    new: int
    known: int
    #: Median ratio of new to old times in the table; 1 if none was known.
    ratio: float
    changes: list[Change]
    #: Changed levels.
    links: list[Scaled]


class _Measured(NamedTuple):
    """A run, and the pieces of work that its steps measure."""

    run: RecordWithSchedule
    work: WorkIndex

    def seconds(self, machine: Machine) -> dict[str, float]:
        """Time (s) of every piece of work, with the statistics of a calibration."""
        steps_s = self.run.record.compared_seconds.astype(np.float64)
        by_rank = np.array([self.work.seconds(s, rank) for rank, s in enumerate(steps_s)])
        shared = machine.node_cores(self.run.plan.ranks).shared
        return Samples(list(self.work.works.values()), of_all_ranks(by_rank, shared)).table()


def _origin(record: RunRecord) -> Origin:
    ranks = record.ranks
    return Origin.of((r.hostname for r in ranks), ranks[0].threads, ranks[0].device,
                     record.versions)


def _check(record: RunRecord, plan: Plan, machine: Machine, where: str, origin: Origin) -> None:
    """Refuses records whose setting differs from the machine's."""
    for r in record.ranks:
        if (r.threads, r.device) != (record.ranks[0].threads, record.ranks[0].device):
            raise InputError(f"{record.path}: its ranks used different numbers of threads or "
                             "devices, but a machine file describes one kind of rank; use a record "
                             "with equal ranks")
    origin.require(_origin(record), record.path, where)
    types = {key.rpartition(" ")[2] for key in machine.compute}
    if types and plan.formats.work not in types:
        names = ", ".join(sorted(types))
        raise InputError(f"{record.path} computes in {plan.formats.work}, but {where} has times in "
                         f"{names}; refine with records in {names}, or calibrate a machine file "
                         f"with --precision {plan.precision}")


def refine(machine: Machine, where: str, records: Sequence[RunRecord]) -> Refined:
    """Updates a machine's table with compute times from records, and scales its levels.

    If several records measure a piece of work, their median counts.

    Parameters
    ----------
    where : str
        Name of the machine file in messages.

    Raises
    ------
    InputError
        A record has another machine, precision, number of threads, or schedule.
    """
    runs = [with_schedule(record) for record in records]
    if "outdated" in machine.quality:
        raise InputError(f"{where} was {machine.quality['outdated']}")
    origin = provenance.origin(machine.quality, where) or _origin(records[0])
    measured = [_Measured(run, WorkIndex(run.network, run.plan, run.schedule)) for run in runs]
    by_key: dict[str, list[float]] = defaultdict(list)
    for m in measured:
        _check(m.run.record, m.run.plan, machine, where, origin)
        for key, seconds in m.seconds(machine).items():
            by_key[key].append(seconds)
    table = {key: statistics.median(values) for key, values in by_key.items()}
    ratios = [seconds / machine.compute[key] for key, seconds in table.items()
              if machine.compute.get(key)]
    sources = [
        {"record": Path(run.record.path).name, "started": run.record.started,
         "plan": f"{run.plan.network.name} {run.plan.strategy}",
         "ranks": run.plan.ranks, "batch": run.plan.batch,
         "iterations": run.record.iterations, "steps": len(work.keys)}
        for run, work in measured
    ]
    # A record scales the levels only once: its effect is already in the machine.
    fresh = [run for run, source in zip(runs, sources, strict=True)
             if not provenance.has(machine.quality, source)]
    scaled_machine, links = scaled(machine, fresh)
    works = (work for m in measured for work in m.work.works.values())
    refined = replace(
        scaled_machine, compute={**machine.compute, **table},
        kinds={**machine.kinds, **kinds(machine.device, works, table)},
        quality=provenance.with_sources(machine.quality, origin, sources),
    )
    known = sum(key in machine.compute for key in table)
    ratio = statistics.median(ratios) if ratios else 1.0
    return Refined(refined, len(table) - known, known, ratio,
                   [_change(m, machine, refined) for m in measured], links)


def _change(measured: _Measured, before: Machine, after: Machine) -> Change:
    run, work = measured
    before_s, after_s = (
        float(price(run.network, run.plan, machine, training=run.training).iteration_s)
        for machine in (before, after))
    return Change(run.record.path, f"{run.plan.network.name} {run.plan.strategy}",
                  run.plan.ranks, len(work.keys), before_s, after_s,
                  float(np.median(run.record.slowest_s)))
