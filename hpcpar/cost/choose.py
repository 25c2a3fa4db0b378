"""Choosing a collective's algorithm and segments by cost, and the schedule that follows."""

from __future__ import annotations

from functools import lru_cache

from hpcpar.cost.collectives import collective_s
from hpcpar.errors import unknown
from hpcpar.machine import files
from hpcpar.machine.model import Level, Machine
from hpcpar.network.graph import Network
from hpcpar.plan.plan import COLLECTIVES, Plan
from hpcpar.schedule.lower import Chooser, lower
from hpcpar.schedule.rounds import ALGORITHMS
from hpcpar.schedule.steps import Comm, Kind, Schedule

#: Pieces of a ring's message are at least this large (below, latency costs more than pipelining gains), and at most so many
#: (``bench/collectives.py``: one or two are nearly always fastest, eight slower).
LEAST_PIECE_BYTES = 512 * 1024
MOST_SEGMENTS = 4

#: The algorithms of few rounds.
TREE = {Kind.ALLREDUCE: "doubling", Kind.ALLGATHER: "bruck", Kind.REDUCE_SCATTER: "bruck"}


def collective_bytes(step: Comm) -> int:
    """Bytes of the collective's whole tensor on the largest group: what the formulas call n."""
    layout = step.wanter if step.kind is Kind.ALLGATHER else step.holder
    return layout.largest_items * step.item_bytes


def group_level(machine: Machine, step: Comm, ranks: int) -> Level:
    """The links that the step's groups need."""
    assert step.group is not None
    return machine.level_for(((d.stride, d.size) for d in step.group.digits), ranks)


def segment_choices(p: int, n_bytes: int) -> list[int]:
    """1, 2 and 4 segments, as far as pieces stay large enough."""
    return [s for s in (1, 2, MOST_SEGMENTS) if s == 1 or n_bytes / p / s >= LEAST_PIECE_BYTES]


@lru_cache(maxsize=10_000)
def cheapest(kind: Kind, p: int, n_bytes: int, level: Level, add_s_per_byte: float, allowed: tuple[str, ...]) -> tuple[str, int]:
    """The cheapest of the `allowed` algorithms with its best number of segments."""
    choices = [(name, s) for name in allowed for s in (segment_choices(p, n_bytes) if name == "ring" else [1])]
    return min(choices, key=lambda c: collective_s(kind, c[0], p, n_bytes, c[1], level, add_s_per_byte))


def chooser(machine: Machine, collectives: str = "auto") -> Chooser:
    """A function that gives a collective step its algorithm and segments.

    Parameters
    ----------
    collectives : str
        ``auto`` (cheapest), ``ring``, ``tree`` (recursive doubling and Bruck) or ``mpi`` (the library's own).
    """
    if collectives not in COLLECTIVES:
        raise unknown("collectives", collectives, COLLECTIVES)

    def choose(step: Comm) -> tuple[str, int]:
        assert step.group is not None
        if collectives == "mpi":
            return "mpi", 1
        allowed = {"auto": ALGORITHMS[step.kind], "ring": ("ring",), "tree": (TREE[step.kind],)}[collectives]
        level = group_level(machine, step, step.holder.config.ranks)
        return cheapest(step.kind, step.group.size, collective_bytes(step), level, machine.add_s_per_byte, allowed)

    return choose


def schedule_for(network: Network, plan: Plan, training: bool = True) -> Schedule:
    """The schedule of a plan, with the algorithms that its own machine makes cheapest.

    Raises
    ------
    InputError
        If the plan carries no valid machine.
    """
    machine = files.from_dict(plan.machine, "the plan's machine")
    return lower(network, plan, chooser(machine, plan.collectives), training=training)
