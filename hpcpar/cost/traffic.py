"""Communication steps in seconds and in bytes: from a step and a machine to what the largest rank does."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpcpar.cost.choose import collective_bytes, group_level
from hpcpar.cost.collectives import collective_s, paper_s, sent
from hpcpar.cost.flows import flows
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.network.layers import Conv2d
from hpcpar.plan.boxes import block
from hpcpar.plan.layout import Layout
from hpcpar.plan.plan import Plan
from hpcpar.schedule.exchange import counts
from hpcpar.schedule.pattern import cut
from hpcpar.schedule.steps import Comm, Kind, Phase

#: Up to so many ranks every rank is walked; beyond, as many representative ones.
WALKED = 64


@dataclass(frozen=True)
class Sent:
    """What one rank sends in a step."""

    messages: int
    bytes: int


def representatives(plan: Plan) -> list[int]:
    """Ranks to walk: all of few; of many, the corners and middles of every configuration's grid and evenly spread ones."""
    if plan.ranks <= WALKED:
        return list(range(plan.ranks))
    chosen: list[int] = []
    for config in dict.fromkeys(plan.configs.values()):
        places = [0]
        for axis in ("h", "w", "n", "c", "replicas"):
            d = config.digits[axis]
            marks = sorted({0, d.size // 2, d.size - 1}) if axis in "hw" else sorted({0, d.size - 1})
            places = [at + i * d.stride for at in places for i in marks]
        chosen += places
    spread = [i * (plan.ranks - 1) // 15 for i in range(16)]
    return sorted(list(dict.fromkeys(spread + chosen))[:WALKED])


def sent_by(step: Comm, ranks: list[int]) -> list[Sent]:
    """What each of `ranks` sends; on more than `WALKED` ranks a collective's blocks are taken as even."""
    if step.group is None:
        return [Sent(len(f.sends), sum(n for _, n in f.sends) * step.item_bytes) for f in flows(step, ranks)]
    if step.algorithm == "mpi":
        return [Sent(c.messages, c.sent_bytes) for c in (counts(step, rank) for rank in ranks)]
    p = step.group.size
    if step.holder.config.ranks > WALKED:
        n = collective_bytes(step) // step.item_bytes
        sizes = (n,) * p if step.kind is Kind.ALLREDUCE else tuple(b - a for a, b in (block(n, p, i) for i in range(p)))
        messages, count = sent(step.kind, step.algorithm, sizes, 0, step.segments)
        return [Sent(messages, count * step.item_bytes)] * len(ranks)
    out = []
    layout = step.wanter if step.kind is Kind.REDUCE_SCATTER else step.holder
    known = {rank: layout.items(rank) for rank in range(layout.config.ranks)}
    for rank in ranks:
        members = step.group.members(rank)
        messages, count = sent(step.kind, step.algorithm, tuple(known[m] for m in members), members.index(rank), step.segments)
        out.append(Sent(messages, count * step.item_bytes))
    return out


def direct_s(step: Comm, machine: Machine, ranks: list[int]) -> float:
    """Point-to-point messages: the largest over ranks of sending or receiving (both at once), then summing and copying (s)."""
    worst, size = 0.0, step.item_bytes
    for rank, flow in zip(ranks, flows(step, ranks), strict=True):
        out = sum(machine.level_between(rank, peer).message_s(n * size) for peer, n in flow.sends)
        into = sum(machine.level_between(rank, peer).message_s(n * size) for peer, n in flow.recvs)
        received = sum(n for _, n in flow.recvs) * size
        handled = received * (machine.add_s_per_byte if step.reduce else machine.copy_s_per_byte)
        packed = sum(n for _, n in flow.sends) * size * machine.copy_s_per_byte
        worst = max(worst, max(out, into) + handled + packed)
    return worst


def comm_s(step: Comm, machine: Machine, ranks: list[int]) -> float:
    """Seconds of a communication step as it is executed.

    Parameters
    ----------
    ranks : list of int
        Ranks to walk for point-to-point messages (see `representatives`).
    """
    if step.group is None:
        return direct_s(step, machine, ranks)
    n = collective_bytes(step)
    level = group_level(machine, step, step.holder.config.ranks)
    seconds = collective_s(step.kind, step.algorithm, step.group.size, n, step.segments, level, machine.add_s_per_byte)
    if step.kind is Kind.ALLREDUCE:
        return seconds  # in place
    # the whole box is copied between tensor and wire, and the own block once more
    return seconds + machine.copy_s_per_byte * (n + n / step.group.size)


def _even_items(layout: Layout) -> float:
    """Items of a box when every cut is even to fractions of an item."""
    return math.prod(a.extent / cut(layout, a).parts for a in layout.axes)


def paper_comm_s(step: Comm, machine: Machine, network: Network, plan: Plan, ranks: list[int]) -> float:
    """Seconds of a step in the integrated paper's accounting.

    Collectives cost log-latency terms of unrounded volumes. A convolution's halo costs one alpha and floor(k / 2) rows: forward
    B/Pc X_W X_C floor(k_h / 2), backward B/Pc Y_W Y_C floor(k_w / 2) items (Eq 7, 9), none for 1 x 1. The halos of pooling and
    normalisation, and the sum of the loss, are not counted. A redistribution, which the paper has none of, costs as executed.
    """
    if step.phase is Phase.LOSS:
        return 0.0
    if step.group is not None:
        layout = step.wanter if step.kind is Kind.ALLGATHER else step.holder
        return paper_s(step.kind, step.group.size, _even_items(layout) * step.item_bytes, group_level(machine, step, plan.ranks))
    if step.kind is not Kind.HALO:
        return direct_s(step, machine, ranks)
    layer = network.by_name[step.layer]
    if not isinstance(layer, Conv2d):
        return 0.0
    config = plan.configs[layer.name]
    if step.phase is Phase.FORWARD:
        channels, _, width = network.input_shape(layer)
        rows = layer.kernel[0] // 2
    else:
        channels, _, width = network.shapes[layer.name]
        rows = layer.kernel[1] // 2
    if rows == 0:
        return 0.0
    digits = [config.digits[a] for a in "hw"]
    level = machine.level_for(((d.stride, d.size) for d in digits), plan.ranks)
    return level.alpha_s + level.beta_s_per_byte * plan.item_bytes * plan.batch / config.n * width * channels * rows
