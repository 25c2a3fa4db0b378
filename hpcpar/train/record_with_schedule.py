"""A run's record together with the network, plan and schedule of its steps."""

from __future__ import annotations

from dataclasses import dataclass

from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.errors import InputError
from hpcpar.network.graph import Network
from hpcpar.plan import plan as plans
from hpcpar.plan.plan import Plan
from hpcpar.schedule.steps import Schedule
from hpcpar.train.run_record import RunRecord, steps_of


@dataclass(frozen=True)
class RecordWithSchedule:
    """A record, and the network, plan and schedule of its steps."""

    record: RunRecord
    network: Network
    plan: Plan
    #: False for inference.
    training: bool
    schedule: Schedule


def with_schedule(record: RunRecord) -> RecordWithSchedule:
    """Lowers a record's plan again.

    Raises
    ------
    InputError
        The network cannot be built, or the steps differ from the record's.
    """
    plan = plans.from_json(record.plan, record.path)
    network = plan.network.build()
    for training in (True, False):
        schedule = schedule_for(network, plan, training)
        if steps_of(schedule) == record.steps:
            return RecordWithSchedule(record, network, plan, training, schedule)
    raise InputError(f"{record.path}: this hpcpar makes other steps from its plan; run the plan "
                     "again")
