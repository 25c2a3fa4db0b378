"""Refining a machine by what runs have recorded: seconds of their compute steps go into its table,
and levels are scaled.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hpcpar.calibrate import provenance
from hpcpar.calibrate.provenance import Origin
from hpcpar.calibrate.refine_links import Scaled, scaled
from hpcpar.calibrate.samples import Samples, of_all_ranks
from hpcpar.calibrate.work_index import WorkIndex
from hpcpar.cost.compute.step_time import kinds
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.cost.price_plan import price
from hpcpar.errors import InputError
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan import plan as plans
from hpcpar.plan.plan import Plan
from hpcpar.schedule.steps import Schedule
from hpcpar.train.record import RunRecord, steps_of


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


@dataclass(frozen=True)
class _Run:
    """A record, and its plan lowered again."""

    record: RunRecord
    network: Network
    plan: Plan
    training: bool
    schedule: Schedule
    work: WorkIndex

    def seconds(self, machine: Machine) -> dict[str, float]:
        """Seconds of every piece of work, counted as a calibration counts them."""
        recorded = self.record.seconds[:, self.record.measured].astype(np.float64)
        each = np.array([self.work.seconds(s, rank) for rank, s in enumerate(recorded)])
        shared = machine.node_cores(int(self.plan.ranks)).shared
        return Samples(list(self.work.works.values()), of_all_ranks(each, shared)).table()

    @property
    def origin(self) -> Origin:
        ranks = self.record.ranks
        return Origin.of((r.hostname for r in ranks), ranks[0].threads, ranks[0].device)


def _run(record: RunRecord) -> _Run:
    plan = plans.from_json(record.plan, record.path)
    network = plan.network.build()
    for training in (True, False):
        schedule = schedule_for(network, plan, training)
        if steps_of(schedule) == record.steps:
            return _Run(record, network, plan, training, schedule,
                        WorkIndex(network, plan, schedule))
    raise InputError(f"{record.path}: its steps are not those that this hpcpar makes of its plan; "
                     "run the plan again")


def _check(run: _Run, machine: Machine, where: str, origin: Origin) -> None:
    """Refuse records of another setting."""
    record = run.record
    for r in record.ranks:
        if (r.threads, r.device) != (record.ranks[0].threads, record.ranks[0].device):
            raise InputError(f"{record.path}: its ranks ran with different threads or devices, "
                             "which no table can tell apart")
    origin.require(run.origin, record.path, where)
    types = {key.rpartition(" ")[2] for key in machine.compute}
    if types and run.plan.dtype not in types:
        raise InputError(f"{record.path} is of {run.plan.dtype}, but the table of {where} is of "
                         f"{', '.join(sorted(types))}; refine with "
                         "records of that, or calibrate a machine file with --dtype "
                         f"{run.plan.dtype}")


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
        A record of another machine, dtype or number of threads, or of another version's steps.
    """
    runs = [_run(record) for record in records]
    if "outdated" in machine.quality:
        raise InputError(f"{where} was {machine.quality['outdated']}")
    origin = provenance.origin(machine.quality, where) or runs[0].origin
    found: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        _check(run, machine, where, origin)
        for key, seconds in run.seconds(machine).items():
            found[key].append(seconds)
    table = {key: statistics.median(values) for key, values in found.items()}
    ratios = [seconds / machine.compute[key] for key, seconds in table.items()
              if machine.compute.get(key)]
    sources = [
        {"record": Path(run.record.path).name, "started": run.record.started,
         "plan": f"{run.plan.network.name} {run.plan.strategy}",
         "ranks": int(run.plan.ranks), "batch": int(run.plan.batch),
         "iterations": run.record.iterations, "steps": len(run.work.keys)}
        for run in runs
    ]
    # levels are scaled once by a record: what it said is in them
    fresh = [run for run, source in zip(runs, sources, strict=True)
             if not provenance.has(machine.quality, source)]
    linked, links = scaled(machine,
                           [(r.record, r.network, r.plan, r.training, r.schedule) for r in fresh])
    sorts = kinds(machine.device, (work for run in runs for work in run.work.works.values()), table)
    better = replace(
        linked, compute={**machine.compute, **table}, kinds={**machine.kinds, **sorts},
        quality=provenance.with_sources(machine.quality, origin, sources),
    )
    known = sum(key in machine.compute for key in table)
    ratio = statistics.median(ratios) if ratios else 1.0
    return Refined(better, len(table) - known, known, ratio,
                   [_change(run, machine, better) for run in runs], links)


def _change(run: _Run, before: Machine, after: Machine) -> Change:
    then, now = (float(price(run.network, run.plan, m, training=run.training).iteration_s)
                 for m in (before, after))
    return Change(run.record.path, f"{run.plan.network.name} {run.plan.strategy}",
                  int(run.plan.ranks), len(run.work.keys), then, now,
                  float(np.median(run.record.slowest_s)))
