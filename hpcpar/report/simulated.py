"""The simulation of a plan: where its time comes from, in words, tables and plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hpcpar.cost.price_family import Costs
from hpcpar.machine.model import Machine
from hpcpar.plan.axis import IntArray
from hpcpar.plan.plan import Plan
from hpcpar.report.answer import plural
from hpcpar.report.tables import amount, seconds, show, show_line
from hpcpar.schedule.lower import Entry
from hpcpar.schedule.outline_steps import Task
from hpcpar.simulation.simulate import Simulation

#: Steps that the table of communication shows.
STEPS = 6


@dataclass(frozen=True)
class Simulated:
    """Iterations of a plan, played on all ranks.

    Attributes
    ----------
    quiet, slowed, played : Simulation
        Without noise; with slow ranks; with jitter, too.
    messages, sent_bytes : ndarray
        [steps, ranks]
    memory_bytes : int
        Of the rank that needs most.
    """

    plan: Plan
    machine: Machine
    costs: Costs
    quiet: Simulation
    slowed: Simulation
    played: Simulation
    messages: IntArray
    sent_bytes: IntArray
    memory_bytes: int

    @property
    def predicted_s(self) -> float:
        """An iteration as `hpcpar predict` has it."""
        return float(self.costs.timeline.total_s)

    @property
    def percentiles_s(self) -> tuple[float, float]:
        """The 5th and the 95th percentile of the iterations."""
        low, high = np.percentile(self.played.iteration_s, (5, 95))
        return float(low), float(high)

    @property
    def causes(self) -> dict[str, float]:
        """What an iteration takes longer than predicted (s), by cause."""
        return {
            "boxes, messages and links of each rank": self.quiet.mean_s - self.predicted_s,
            "slow ranks": self.slowed.mean_s - self.quiet.mean_s,
            "jitter": self.played.mean_s - self.slowed.mean_s,
        }

    def label(self, index: int) -> str:
        """A step's name, as in a schedule."""
        return label(self.costs.entries[index])

    def ranks_rows(self) -> Iterator[dict[str, object]]:
        """What every rank does in an iteration."""
        each = self.played
        n_bytes = self.sent_bytes.sum(axis=0)
        for rank in range(len(each.last)):
            yield {"rank": rank, "compute_s": float(each.compute_s[rank]),
                   "exposed_s": float(each.exposed_s[rank]),
                   "waiting_s": float(each.waiting_s[rank]), "last": float(each.last[rank]),
                   "sent_bytes": int(n_bytes[rank])}

    def to_json(self) -> dict[str, object]:
        """Plain data, the contract of ``--json``."""
        low_s, high_s = self.percentiles_s
        steps = [{"index": i, "label": self.label(i), "exposed_s": float(wait_s),
                  "messages": int(self.messages[i].sum()),
                  "sent_bytes": int(self.sent_bytes[i].sum())}
                 for i, wait_s in enumerate(self.played.waits_s)]
        return {
            "network": self.plan.network.name, "machine": self.machine.name,
            "strategy": self.plan.strategy, "ranks": int(self.plan.ranks),
            "batch": int(self.plan.batch), "predicted_s": self.predicted_s,
            "iteration_s": self.played.mean_s, "low_s": low_s, "high_s": high_s,
            "iterations_s": self.played.iteration_s.tolist(), "causes": self.causes,
            "memory_bytes": self.memory_bytes, "each_rank": list(self.ranks_rows()), "steps": steps,
        }


def label(entry: Entry) -> str:
    """The name of a step, as in a schedule."""
    step = entry.step
    if isinstance(step, Task):
        return f"{step.layer.name}.{step.op.value}"
    kind = step.pattern.kind
    assert kind is not None
    return f"{step.layer}.{step.phase.value}.{kind.value}"


def told(of: Simulated) -> str:
    """Simulated and predicted time in one sentence."""
    off = of.played.mean_s / of.predicted_s - 1
    spread = ""
    if len(of.played.iteration_s) > 1:
        low_s, high_s = of.percentiles_s
        spread = (f" in the mean of {len(of.played.iteration_s)}, 90% between {seconds(low_s)} and "
                  f"{seconds(high_s)}")
    against = "as predicted" if abs(off) < 5e-5 else (
        f"{abs(off):.2%} {'more' if off > 0 else 'less'} than predicted "
        f"({seconds(of.predicted_s)})")
    return (f"{plural(int(of.plan.ranks), of.machine.processor)} of {of.machine.name}, "
            f"{of.plan.strategy}: {seconds(of.played.mean_s)} an iteration{spread}, {against}")


def show_simulated(of: Simulated, wide: bool = False) -> None:
    """The sentence, and tables of causes, ranks and communication."""
    show_line(told(of))
    total_s = of.played.mean_s
    rows = [("predicted", seconds(of.predicted_s), f"{of.predicted_s / total_s:.2%}")]
    rows += [(cause, seconds(more_s) if more_s else "0", f"{more_s / total_s:+.2%}")
             for cause, more_s in of.causes.items()]
    show("where the time of an iteration comes from",
         ("cause", "time", "of the iteration"),
         [*rows, ("simulated", seconds(total_s), "100.00%")], wide=wide)
    show("what ranks do in an iteration",
         ("rank", "compute", "communication", "waiting", "sent"), _rank_rows(of), wide=wide)
    show_line("communication: standing still for messages that computing does not hide, and for "
              "ranks that are late to them; waiting: for other stages, or for the last rank")
    waits = of.played.waits_s
    longest = [int(i) for i in np.argsort(-waits)[:STEPS] if waits[i] > 0]
    if longest:
        show("communication that ranks stand still for longest, mean of all ranks",
             ("step", "stand still", "all messages", "all bytes"),
             [(of.label(i), seconds(float(waits[i])), f"{of.messages[i].sum():,}",
               amount(float(of.sent_bytes[i].sum()))) for i in longest], wide=wide)
    show_line(f"memory of the largest rank: {amount(of.memory_bytes)}")


def _rank_rows(of: Simulated) -> Iterator[tuple[str, ...]]:
    """The mean of all ranks, and the ranks that stand out."""
    each, n_bytes = of.played, of.sent_bytes.sum(axis=0)
    columns = (each.compute_s, each.exposed_s, each.waiting_s)
    yield ("mean", *(seconds(float(c.mean())) for c in columns), amount(float(n_bytes.mean())))
    for what, values in (("computes most", each.compute_s), ("computes least", -each.compute_s),
                         ("last most often", each.last)):
        rank = int(np.argmax(values))
        yield (f"{rank} ({what})", *(seconds(float(c[rank])) for c in columns),
               amount(float(n_bytes[rank])))
