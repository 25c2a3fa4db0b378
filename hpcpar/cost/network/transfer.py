"""Communication steps in seconds and in bytes: from a step and a machine to what the busiest rank
does, for every case of a family.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcpar.cost.network.algorithm_choice import collective_bytes, kinds_of
from hpcpar.cost.network.collectives import collective_s, paper_s, sent
from hpcpar.cost.network.contention import Route, Wires, route
from hpcpar.cost.network.halo import halo
from hpcpar.cost.network.redistribution import PointToPoint, redistribution
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.network.layers import Conv
from hpcpar.plan.layout import Layout
from hpcpar.plan.plan import Plan
from hpcpar.schedule.outline_steps import CHEAPEST, Move
from hpcpar.schedule.pattern import cut
from hpcpar.schedule.steps import CODES, Kind, Phase


@dataclass(frozen=True)
class Traffic:
    """A communication step on its busiest rank.

    Attributes
    ----------
    through_bytes : int
        Sent and received from rank to rank, of the rank with most of it; 0 for collectives.
    level : int
        Index of the machine's level that it crosses.
    """

    seconds: Any
    messages: Any
    sent_bytes: Any
    through_bytes: Any
    level: Any


def traffic(step: Move, machine: Machine, wires: Wires, ranks: Any) -> Traffic:
    """The price of a movement as it is executed, on `ranks` ranks in all."""
    seconds: Any = 0.0
    messages: Any = 0
    items: Any = 0
    through_items: Any = 0
    way = route(wires, step.pattern.digits, step.holder.config.ranks)
    level: Any = np.asarray(way.level)
    for kind in kinds_of(step):
        here = np.equal(step.pattern.code, CODES[kind])
        found: PointToPoint | CollectivePrice
        if kind in (Kind.HALO, Kind.REDISTRIBUTE):
            found = (halo if kind is Kind.HALO else redistribution)(step, wires, ranks)
            level = np.where(here, found.level, level)
            through_items = np.where(here, found.through_items, through_items)
        else:
            found = _collective(kind, step, machine, wires, way)
        seconds = np.where(here, found.seconds, seconds)
        messages = np.where(here, found.messages, messages)
        items = np.where(here, found.items, items)
    size = step.item_bytes
    return Traffic(seconds, messages, items * size, through_items * size, level)


@dataclass(frozen=True)
class CollectivePrice:
    """Seconds of a collective, and messages and items sent by its busiest member."""

    seconds: Any
    messages: Any = 0
    items: Any = 0


def _collective(kind: Kind, step: Move, machine: Machine, wires: Wires,
                way: Route) -> CollectivePrice:
    """The price of a collective in all cases, with the algorithms that were chosen for them."""
    n = collective_bytes(step)
    if step.algorithm is CHEAPEST:
        return CollectivePrice(copied(kind, step.quote.seconds[kind], n, machine, way))
    out = CollectivePrice(0.0)
    quoted = step.quote is not None and step.quote.wires is wires
    for name in np.unique(step.algorithm).tolist():
        if name == "direct" and kind not in (Kind.REDUCE, Kind.BROADCAST):
            continue  # other cases' halos and redistributions
        here = np.equal(step.algorithm, name)
        cost = step.quote.seconds[kind] if quoted else collective_s(
            kind, name, way.p, n, step.segments, way, machine.add_s_per_byte)
        messages, items = _sent(kind, name, step, way.p)
        out = CollectivePrice(np.where(here, cost, out.seconds),
                              np.where(here, messages, out.messages),
                              np.where(here, items, out.items))
    return CollectivePrice(copied(kind, out.seconds, n, machine, way), out.messages, out.items)


def _sent(kind: Kind, algorithm: str, step: Move, p: Any) -> tuple[Any, Any]:
    """Messages and items that the busiest member of a collective sends."""
    gathers = kind is Kind.ALLGATHER
    parts, whole = (step.holder, step.wanter) if gathers else (step.wanter, step.holder)
    items = collective_bytes(step) // step.item_bytes
    messages, sent_items = sent(kind, algorithm, p, items, _least_items(parts, whole),
                                step.segments)
    if algorithm == "mpi" and gathers:
        sent_items = np.where(np.equal(p, 1), 0, parts.largest_items)
    return messages, sent_items


def _least_items(parts: Layout, whole: Layout) -> Any:
    """Items of the smallest block of a group whose blocks make up the largest box: blocks nest, so
    it is cut like any axis.
    """
    least: Any = 1
    for a, b, extent in zip(parts.axes, whole.axes, whole.largest, strict=True):
        pieces = np.maximum(1, cut(parts, a).parts // cut(whole, b).parts)
        granule = max(cut(parts, a).granule, cut(whole, b).granule)
        least = least * (extent // granule // pieces * granule)
    return least


def copied(kind: Kind, seconds: Any, n: Any, machine: Machine, way: Route) -> Any:
    """With the copies of a gather or scatter: the whole box between tensor and wire, and the own
    block once more.
    """
    return seconds + machine.copy_s_per_byte * (n + n / way.p) if kind in (Kind.ALLGATHER, Kind.REDUCE_SCATTER) else seconds


def _even_items(layout: Layout) -> Any:
    """Items of a box when every cut is even to fractions of an item."""
    return math.prod(a.extent / cut(layout, a).parts for a in layout.axes)


def paper_comm_s(step: Move, machine: Machine, wires: Wires, network: Network, plan: Plan) -> Any:
    """Seconds of a step in the integrated paper's accounting.

    Collectives cost log-latency terms of unrounded volumes. A convolution's halo costs one alpha
    and floor(k / 2) rows: forward B/Pc X_W X_C floor(k_h / 2), backward B/Pc Y_W Y_C floor(k_w / 2)
    items (Eq 7, 9), none for 1 x 1. The halos of pooling and normalisation, and the sum of the
    loss, are not counted. A redistribution, which the paper has none of, costs as executed.
    """
    seconds: Any = 0.0
    if step.phase is Phase.LOSS:
        return seconds
    way = route(wires, step.pattern.digits, plan.ranks)
    for kind in kinds_of(step):
        cost: Any
        if kind is Kind.REDISTRIBUTE:
            cost = redistribution(step, wires, plan.ranks).seconds
        elif kind is Kind.HALO:
            cost = _paper_halo_s(step, wires, network, plan)
        else:
            layout = step.wanter if kind is Kind.ALLGATHER else step.holder
            cost = paper_s(kind, way.p, _even_items(layout) * step.item_bytes, way.far)
        seconds = np.where(np.equal(step.pattern.code, CODES[kind]), cost, seconds)
    return seconds


def _paper_halo_s(step: Move, wires: Wires, network: Network, plan: Plan) -> Any:
    layer = network.by_name[step.layer]
    if not isinstance(layer, Conv):
        return 0.0
    config = plan.configs[layer.name]
    forward = step.phase is not Phase.BACKWARD
    channels, _, *across = network.input_shape(layer) if forward else network.shapes[layer.name]
    rows = layer.kernel[0 if forward else 1] // 2
    if rows == 0:
        return 0.0
    links = route(wires, [config.digits[a] for a in ("d", "h", "w")], plan.ranks).far
    items = plan.samples_of_a_pass / config.n * math.prod(across) * channels * rows
    return links.alpha_s + links.beta_s_per_byte * plan.item_bytes * items
