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
from hpcpar.cost.network.redistribution import Direct, redistribution
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.network.layers import Conv
from hpcpar.plan.layout import Layout
from hpcpar.plan.plan import Plan
from hpcpar.schedule.outline_steps import Move
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


def _direct(kind: Kind, step: Move, wires: Wires, ranks: Any) -> Direct:
    return (halo if kind is Kind.HALO else redistribution)(step, wires, ranks)


def traffic(step: Move, machine: Machine, wires: Wires, ranks: Any) -> Traffic:
    """Seconds, messages and bytes of a step as it is executed, on `ranks` ranks in all."""
    seconds: Any = 0.0
    messages: Any = 0
    count: Any = 0
    through: Any = 0
    way = route(wires, step.pattern.digits, step.holder.config.ranks)
    level: Any = np.asarray(way.level)
    for kind in kinds_of(step):
        here = np.equal(step.pattern.code, CODES[kind])
        if kind in (Kind.HALO, Kind.REDISTRIBUTE):
            found = _direct(kind, step, wires, ranks)
            values = (found.seconds, found.messages, found.items)
            level = np.where(here, found.level, level)
            through = np.where(here, found.through, through)
        else:
            values = _collective(kind, step, machine, wires, way)
        seconds, messages, count = (np.where(here, new, old)
                                    for new, old in zip(values, (seconds, messages, count),
                                                        strict=True))
    return Traffic(seconds, messages, count * step.item_bytes, through * step.item_bytes, level)


def _collective(kind: Kind, step: Move, machine: Machine, wires: Wires, way: Route) -> tuple[Any, Any, Any]:
    n = collective_bytes(step)
    items = n // step.item_bytes
    parts, whole = (step.holder, step.wanter) if kind is Kind.ALLGATHER else (step.wanter, step.holder)
    least = _least_items(parts, whole)
    seconds: Any = 0.0
    messages: Any = 0
    count: Any = 0
    quoted = step.quote.seconds.get(
        kind) if step.quote is not None and step.quote.wires is wires else None
    names = np.unique(step.algorithm) if np.ndim(step.algorithm) else [step.algorithm]
    for name in names:
        if str(name) == "direct" and kind not in (Kind.REDUCE, Kind.BROADCAST):
            continue  # other cases' halos and redistributions
        here = np.equal(step.algorithm, name)
        cost = collective_s(kind, str(name), way.p, n, step.segments, way,
                            machine.add_s_per_byte) if quoted is None else quoted
        messages_, items_ = sent(kind, str(name), way.p, items, least, step.segments)
        if str(name) == "mpi" and kind is Kind.ALLGATHER:
            items_ = np.where(np.equal(way.p, 1), 0, parts.largest_items)
        values = (cost, messages_, items_)
        seconds, messages, count = (np.where(here, new, old)
                                    for new, old in zip(values, (seconds, messages, count),
                                                        strict=True))
    return copied(kind, seconds, n, machine, way), messages, count


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
            cost = _direct(kind, step, wires, plan.ranks).seconds
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
