"""Counts of sent messages, step by step; they must equal the schedule's counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from hpcpar.errors import RunError
from hpcpar.schedule.messages import Counts, counts
from hpcpar.schedule.steps import Schedule


@dataclass
class Trace:
    """Messages and bytes that this rank handed to MPI or NCCL, by step, since the last `clear`."""

    messages: dict[int, int] = field(default_factory=dict)
    sent_bytes: dict[int, int] = field(default_factory=dict)

    def add(self, step: int, messages: int, sent_bytes: int) -> None:
        """Add messages of a step."""
        self.messages[step] = self.messages.get(step, 0) + messages
        self.sent_bytes[step] = self.sent_bytes.get(step, 0) + sent_bytes

    def clear(self) -> None:
        self.messages.clear()
        self.sent_bytes.clear()

    def of(self, step: int) -> Counts | None:
        """A step's counts; None if this rank has not done the step."""
        return Counts(self.messages[step], self.sent_bytes[step]) if step in self.messages else None


def check(trace: Trace, schedule: Schedule, rank: int) -> None:
    """Compare the trace of one iteration with the schedule.

    Raises
    ------
    RunError
        Names the rank, the step and both counts.
    """
    for step in schedule.comms:
        planned, sent = counts(step, rank) if step.concerns(rank) else None, trace.of(step.index)
        if sent != planned:
            raise RunError(f"rank {rank}, step {step.index} ({step.label} of {step.tensor}): "
                           f"planned {planned}, but sent {sent}")
    extra = set(trace.messages) - {s.index for s in schedule.comms}
    if extra:
        raise RunError(
            f"rank {rank} sent messages in steps {sorted(extra)}, which are not in the schedule")
