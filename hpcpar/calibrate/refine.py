"""Refining a machine by what runs have recorded: seconds of their compute steps go into its table,
and levels are scaled.
"""

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
from hpcpar.simulation.price_plan import price
from hpcpar.train.record_with_schedule import RecordWithSchedule, with_schedule
from hpcpar.train.run_record import RunRecord


@dataclass(frozen=True)
class Change:
    """The prediction of a record's iteration before and after the refinement."""

    path: str
    strategy: str
    ranks: int
    #: Compute steps of its plan.
    steps: int
    before_s: float
    after_s: float
    #: Median.
    measured_s: float


@dataclass(frozen=True)
class Refined:
    """The machine with the records' times."""

    machine: Machine
    #: Pieces of work that the table did not have, and that it had.
    new: int
    known: int
    #: Median of new time over old of the known ones; 1 without any.
    ratio: float
    changes: list[Change]
    #: Levels with enough communication steps.
    links: list[Scaled]


class _Measured(NamedTuple):
    """A recorded run, and the pieces of work that its steps measure."""

    run: RecordWithSchedule
    work: WorkIndex

    def seconds(self, machine: Machine) -> dict[str, float]:
        """Seconds of every piece of work, counted as a calibration counts them."""
        record = self.run.record
        recorded = record.compared_seconds.astype(np.float64)
        each = np.array([self.work.seconds(s, rank) for rank, s in enumerate(recorded)])
        shared = machine.node_cores(self.run.plan.ranks).shared
        return Samples(list(self.work.works.values()), of_all_ranks(each, shared)).table()


def _origin(record: RunRecord) -> Origin:
    ranks = record.ranks
    return Origin.of((r.hostname for r in ranks), ranks[0].threads, ranks[0].device,
                     record.versions)


def _check(record: RunRecord, plan: Plan, machine: Machine, where: str, origin: Origin) -> None:
    """Refuses records of another setting."""
    for r in record.ranks:
        if (r.threads, r.device) != (record.ranks[0].threads, record.ranks[0].device):
            raise InputError(f"{record.path}: its ranks ran with different threads or devices, "
                             "which no table can tell apart")
    origin.require(_origin(record), record.path, where)
    types = {key.rpartition(" ")[2] for key in machine.compute}
    if types and plan.formats.work not in types:
        raise InputError(f"{record.path} computes in {plan.formats.work}, but {where} has rates of "
                         f"{', '.join(sorted(types))}; refine with records of that, or calibrate a "
                         f"machine file with --precision {plan.precision}")


def refine(machine: Machine, where: str, records: Sequence[RunRecord]) -> Refined:
    """Takes the times of compute steps from records into a machine's table, and scales its levels.

    The median counts where several records have a step.

    Parameters
    ----------
    where : str
        Name of the machine file in messages.

    Raises
    ------
    InputError
        A record of another machine, precision or number of threads, or of another version's steps.
    """
    runs = [with_schedule(record) for record in records]
    if "outdated" in machine.quality:
        raise InputError(f"{where} was {machine.quality['outdated']}")
    origin = provenance.origin(machine.quality, where) or _origin(records[0])
    measured = [_Measured(run, WorkIndex(run.network, run.plan, run.schedule)) for run in runs]
    found: dict[str, list[float]] = defaultdict(list)
    for each in measured:
        _check(each.run.record, each.run.plan, machine, where, origin)
        for key, seconds in each.seconds(machine).items():
            found[key].append(seconds)
    table = {key: statistics.median(values) for key, values in found.items()}
    ratios = [seconds / machine.compute[key] for key, seconds in table.items()
              if machine.compute.get(key)]
    sources = [
        {"record": Path(run.record.path).name, "started": run.record.started,
         "plan": f"{run.plan.network.name} {run.plan.strategy}",
         "ranks": run.plan.ranks, "batch": run.plan.batch,
         "iterations": run.record.iterations, "steps": len(work.keys)}
        for run, work in measured
    ]
    # levels are scaled once by a record: what it said is in them
    fresh = [run for run, source in zip(runs, sources, strict=True)
             if not provenance.has(machine.quality, source)]
    linked, links = scaled(machine, fresh)
    works = (work for each in measured for work in each.work.works.values())
    better = replace(
        linked, compute={**machine.compute, **table},
        kinds={**machine.kinds, **kinds(machine.device, works, table)},
        quality=provenance.with_sources(machine.quality, origin, sources),
    )
    known = sum(key in machine.compute for key in table)
    ratio = statistics.median(ratios) if ratios else 1.0
    return Refined(better, len(table) - known, known, ratio,
                   [_change(each, machine, better) for each in measured], links)


def _change(measured: _Measured, before: Machine, after: Machine) -> Change:
    run, work = measured
    then, now = (float(price(run.network, run.plan, m, training=run.training).iteration_s)
                 for m in (before, after))
    return Change(run.record.path, f"{run.plan.network.name} {run.plan.strategy}",
                  run.plan.ranks, len(work.keys), then, now,
                  float(np.median(run.record.slowest_s)))
