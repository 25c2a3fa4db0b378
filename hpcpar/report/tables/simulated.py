"""A simulated plan: the causes of its time, in words, tables and plain data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hpcpar.cost.network.links import FloatArray
from hpcpar.cost.price_family import Costs
from hpcpar.cost.trust import Trust, trust
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan.axis import IntArray
from hpcpar.plan.plan import Plan
from hpcpar.report.critical_path import PathPiece, critical_path
from hpcpar.report.tables import amount, seconds, show, show_line, span
from hpcpar.report.tables.answer import plural
from hpcpar.schedule.steps import Schedule
from hpcpar.simulation.simulate import Simulation

#: Steps shown in the communication table.
STEPS = 6


class BusiestLinks(NamedTuple):
    """The unit of a level (a rank, node or rack) that most bytes leave in an iteration, and the
    time that its links take for them.
    """

    level: str
    unit: str
    left_bytes: int
    busy_s: float


@dataclass(frozen=True)
class SimulationReport:
    """Iterations of a plan, played on all ranks.

    Attributes
    ----------
    quiet, slowed, played : Simulation
        Without noise; with slow ranks; with slow ranks and jitter.
    messages, sent_bytes : ndarray
        [steps, ranks]
    left_bytes, busy_s : list of ndarray
        One array per level: [units] bytes that leave a rank, a node, a rack in an iteration, and
        the time that its links take for them.
    memory_bytes : int
        Memory of the largest rank.
    """

    network: Network
    plan: Plan
    machine: Machine
    costs: Costs
    quiet: Simulation
    slowed: Simulation
    played: Simulation
    messages: IntArray
    sent_bytes: IntArray
    left_bytes: list[IntArray]
    busy_s: list[FloatArray]
    memory_bytes: int

    @property
    def schedule(self) -> Schedule:
        """The steps that `hpcpar run` executes."""
        return self.costs.schedule

    @cached_property
    def critical_path(self) -> list[PathPiece]:
        """The critical path of the first iteration."""
        return critical_path(self.schedule, self.played.start_s, self.played.end_s)

    @property
    def predicted_s(self) -> float:
        """An iteration as `hpcpar predict` prices it."""
        return float(self.costs.timeline.total_s)

    @cached_property
    def trust(self) -> Trust:
        """The basis of the step times, with its interval."""
        return trust(self.network, self.plan, self.machine, self.costs)

    @property
    def percentiles_s(self) -> tuple[float, float]:
        """The 5th and the 95th percentile of the iterations."""
        low, high = np.percentile(self.played.iteration_s, (5, 95))
        return float(low), float(high)

    @property
    def causes(self) -> dict[str, float]:
        """Seconds by which an iteration exceeds its prediction, by cause."""
        return {
            "boxes, messages and links of each rank": self.quiet.mean_s - self.predicted_s,
            "slow ranks": self.slowed.mean_s - self.quiet.mean_s,
            "jitter": self.played.mean_s - self.slowed.mean_s,
        }

    def label(self, index: int) -> str:
        """A step's label in the schedule."""
        return self.schedule.steps[index].label

    def ranks_rows(self) -> Iterator[dict[str, object]]:
        """Computing, communication and waiting of every rank in an iteration."""
        each = self.played
        n_bytes = self.sent_bytes.sum(axis=0)
        for rank in range(len(each.last)):
            yield {"rank": rank, "compute_s": float(each.compute_s[rank]),
                   "exposed_s": float(each.exposed_s[rank]),
                   "waiting_s": float(each.waiting_s[rank]), "last": float(each.last[rank]),
                   "sent_bytes": int(n_bytes[rank])}

    @property
    def busiest_links(self) -> Iterator[BusiestLinks]:
        """For every level, the unit that most bytes leave."""
        names = ["rank", *(level.name for level in self.machine.levels)]
        for i, (n_bytes, busy_s) in enumerate(zip(self.left_bytes, self.busy_s, strict=True)):
            unit = int(np.argmax(n_bytes))
            yield BusiestLinks(names[i + 1], f"{names[i]}{unit}", int(n_bytes[unit]),
                               float(busy_s[unit]))

    def to_json(self) -> dict[str, object]:
        """Plain data, the contract of ``--json``."""
        low_s, high_s = self.percentiles_s
        steps = [{"index": i, "label": self.label(i), "exposed_s": float(wait_s),
                  "messages": int(self.messages[i].sum()),
                  "sent_bytes": int(self.sent_bytes[i].sum())}
                 for i, wait_s in enumerate(self.played.waits_s)]
        return {
            "network": self.plan.network.name, "machine": self.machine.name,
            "strategy": self.plan.strategy, "ranks": self.plan.ranks,
            "batch": self.plan.batch, "predicted_s": self.predicted_s,
            "iteration_s": self.played.mean_s, "low_s": low_s, "high_s": high_s,
            **self.trust.to_json(self.played.mean_s),
            "iterations_s": self.played.iteration_s.tolist(), "causes": self.causes,
            "memory_bytes": self.memory_bytes,
            "links": [each._asdict() for each in self.busiest_links],
            "critical_path": [piece._asdict() | {"label": self.label(piece.step)}
                              for piece in self.critical_path],
            "each_rank": list(self.ranks_rows()), "steps": steps,
        }


def summary(report: SimulationReport) -> str:
    """Simulated and predicted time in one sentence."""
    played, plan = report.played, report.plan
    off = played.mean_s / report.predicted_s - 1
    spread = ""
    if len(played.iteration_s) > 1:
        low_s, high_s = report.percentiles_s
        spread = (f" (mean of {len(played.iteration_s)}, 90% between {seconds(low_s)} and "
                  f"{seconds(high_s)})")
    against = "as predicted" if abs(off) < 5e-5 else (
        f"{abs(off):.2%} {'more' if off > 0 else 'less'} than predicted "
        f"({seconds(report.predicted_s)})")
    return (f"{plural(plan.ranks, report.machine.processor)} of {report.machine.name}, "
            f"{plan.strategy}: {seconds(played.mean_s)} per iteration{spread}, {against}; "
            f"90% interval {span(played.mean_s, report.trust)}")


def show_simulated(report: SimulationReport, wide: bool = False) -> None:
    """Prints the summary, and tables of causes, ranks and communication."""
    show_line(summary(report))
    total_s = report.played.mean_s
    rows = [("predicted", seconds(report.predicted_s), f"{report.predicted_s / total_s:.2%}")]
    rows += [(cause, seconds(more_s) if more_s else "0", f"{more_s / total_s:+.2%}")
             for cause, more_s in report.causes.items()]
    show("where an iteration's time comes from",
         ("cause", "time", "of the iteration"),
         [*rows, ("simulated", seconds(total_s), "100.00%")], wide=wide)
    show("what ranks do in an iteration",
         ("rank", "compute", "communication", "waiting", "sent"), _rank_rows(report), wide=wide)
    show_line("communication: idle for exposed messages, and for ranks that are late to them; "
              "waiting: idle for other stages, or for the last rank")
    waits = report.played.waits_s
    longest = [int(i) for i in np.argsort(-waits)[:STEPS] if waits[i] > 0]
    if longest:
        show("communication that ranks wait for longest, mean over ranks",
             ("step", "wait", "messages, all ranks", "bytes, all ranks"),
             [(report.label(i), seconds(float(waits[i])), f"{report.messages[i].sum():,}",
               amount(float(report.sent_bytes[i].sum()))) for i in longest], wide=wide)
    _show_path(report, wide)
    show("busiest links of an iteration", ("level", "from", "bytes", "busy", "share"),
         [(each.level, each.unit, amount(each.left_bytes), seconds(each.busy_s),
           f"{each.busy_s / total_s:.0%}") for each in report.busiest_links], wide=wide)
    show_line(f"memory of the largest rank: {amount(report.memory_bytes)}")


def _rank_rows(report: SimulationReport) -> Iterator[tuple[str, ...]]:
    """The mean over ranks, and the extreme ranks."""
    each, n_bytes = report.played, report.sent_bytes.sum(axis=0)
    columns = (each.compute_s, each.exposed_s, each.waiting_s)
    yield ("mean", *(seconds(float(c.mean())) for c in columns), amount(float(n_bytes.mean())))
    for what, values in (("computes most", each.compute_s), ("computes least", -each.compute_s),
                         ("last most often", each.last)):
        rank = int(np.argmax(values))
        yield (f"{rank} ({what})", *(seconds(float(c[rank])) for c in columns),
               amount(float(n_bytes[rank])))


def _show_path(report: SimulationReport, wide: bool) -> None:
    """Prints the longest steps on the critical path, and the number of ranks that it visits."""
    by_step: dict[str, float] = defaultdict(float)
    by_rank: dict[int, float] = defaultdict(float)
    for piece in report.critical_path:
        by_step[report.label(piece.step)] += piece.seconds
        by_rank[piece.rank] += piece.seconds
    rank, total_s = max(by_rank, key=by_rank.__getitem__), sum(by_rank.values())
    longest = sorted(by_step, key=by_step.__getitem__, reverse=True)[:STEPS]
    show(f"critical path over {plural(len(by_rank), 'rank')}, {by_rank[rank] / total_s:.0%} of it "
         f"on rank {rank}", ("step", "time", "of the path"),
         [(name, seconds(by_step[name]), f"{by_step[name] / total_s:.1%}") for name in longest],
         wide=wide)
