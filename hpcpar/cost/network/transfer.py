"""Decides the seconds, messages and bytes of a communication step on its busiest rank."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import numpy as np

from hpcpar.cost.network.algorithm_choice import collective_bytes
from hpcpar.cost.network.collective import collective_s
from hpcpar.cost.network.contention import Links, NetworkModel, Route, route
from hpcpar.cost.network.halo import halo
from hpcpar.cost.network.redistribution import PointToPoint, redistribution
from hpcpar.network.graph import Network
from hpcpar.network.layers import Conv
from hpcpar.plan.config import ONE, Floats, Ints, Numbers
from hpcpar.plan.layout import Layout
from hpcpar.plan.plan import Plan
from hpcpar.schedule.algorithms.powers import log2_ceil
from hpcpar.schedule.algorithms.registry import ALGORITHMS
from hpcpar.schedule.pattern import cut
from hpcpar.schedule.pattern_family import cut_parts
from hpcpar.schedule.steps import CHEAPEST, CODES, Comm, Kind, Phase
from hpcpar.schedule.waves import most


@dataclass(frozen=True)
class Traffic:
    """A communication step on its busiest rank.

    Attributes
    ----------
    through_bytes : int
        Upper bound of the bytes that a rank sends and receives point to point; 0 for collectives.
    level : int
        Index of the machine's level that the messages cross.
    """

    seconds: Floats
    messages: Ints
    sent_bytes: Ints
    through_bytes: Ints
    level: Ints


def traffic(step: Comm, network_model: NetworkModel, ranks: int) -> Traffic:
    """The price of a movement as it runs, in a job of `ranks` ranks."""
    seconds: Floats = 0.0
    messages: Ints = 0
    items: Ints = 0
    through_items: Ints = 0
    way = None if step.quote is None else cast("Route", step.quote.way)
    if way is None or way.network_model is not network_model:
        way = route(network_model, step.pattern.mesh_axes, step.source.config.ranks, step.root)
    level: Ints = np.asarray(way.level)
    for kind in step.pattern.kinds:
        is_kind = np.equal(step.pattern.code, CODES[kind])
        price: PointToPoint | CollectivePrice
        if kind in (Kind.HALO, Kind.REDISTRIBUTE):
            price_of = halo if kind is Kind.HALO else redistribution
            price = price_of(step, network_model, ranks)
            level = np.where(is_kind, price.level, level)
            through_items = np.where(is_kind, price.through_items, through_items)
        else:
            price = _collective(kind, step, way)
        seconds = np.where(is_kind, price.seconds, seconds)
        messages = np.where(is_kind, price.messages, messages)
        items = np.where(is_kind, price.items, items)
    size = step.item_bytes
    return Traffic(seconds, messages, items * size, through_items * size, level)


@dataclass(frozen=True)
class CollectivePrice:
    """Seconds of a collective, and the messages and items that its busiest member sends."""

    seconds: Floats
    messages: Ints = 0
    items: Ints = 0


def _collective(kind: Kind, step: Comm, way: Route) -> CollectivePrice:
    """The price of a collective, with the algorithm chosen for each plan of the family."""
    n = collective_bytes(step)
    quote = step.quote
    if quote is not None and quote.way is not way:
        quote = None
    if step.algorithm is CHEAPEST:
        assert quote is not None
        return CollectivePrice(copied(kind, quote.seconds[kind], n, way))
    out = CollectivePrice(0.0)
    for algorithm in np.unique(step.algorithm).tolist():
        if kind not in ALGORITHMS[algorithm].kinds:
            continue  # chosen for another kind, in other plans of the family
        chosen = np.equal(step.algorithm, algorithm)
        if quote is not None:
            cost = quote.seconds[kind]
        else:
            cost = collective_s(kind, algorithm, n, step.segments, way)
        messages, items = _sent(kind, algorithm, step, way.p)
        out = CollectivePrice(np.where(chosen, cost, out.seconds),
                              np.where(chosen, messages, out.messages),
                              np.where(chosen, items, out.items))
    return CollectivePrice(copied(kind, out.seconds, n, way), out.messages, out.items)


def _sent(kind: Kind, algorithm: str, step: Comm, p: Ints) -> tuple[Ints, Ints]:
    """Messages and items that the busiest member of a single plan's collective sends."""
    if any(map(np.ndim, (p, step.segments, step.inner, step.source.largest_items))) or p == 1:
        return 0, 0
    members, gathers = int(p), kind is Kind.ALLGATHER
    parts, whole = (step.source, step.destination) if gathers else (step.destination, step.source)
    sends = most(algorithm, kind, members, int(step.segments), int(step.inner))
    n = int(collective_bytes(step)) // step.item_bytes
    return sends.messages, sends.items(kind, members, n, _least_items(parts, whole),
                                       int(parts.largest_items))


def _least_items(parts: Layout, whole: Layout) -> int:
    """Items of the smallest block in the group whose blocks form the largest box.

    Blocks nest, so the block rule cuts the box like a whole axis.
    """
    least = 1
    for a, b, extent in zip(parts.axes, whole.axes, whole.largest, strict=True):
        pieces = max(1, int(cut_parts(parts, a)) // int(cut_parts(whole, b)))
        granule = max(cut(a, ONE).granule, cut(b, ONE).granule)
        least *= int(extent) // granule // pieces * granule
    return least


def copied(kind: Kind, seconds: Floats, n: Numbers, way: Route) -> Floats:
    """Seconds of a collective, including the copies of an allgather or reduce-scatter.

    They copy the whole box between tensor and message buffer, and the rank's own block once more.
    """
    if kind not in (Kind.ALLGATHER, Kind.REDUCE_SCATTER):
        return seconds
    return seconds + way.network_model.machine.copy_s_per_byte * (n + n / way.p)


def _even_items(layout: Layout) -> Floats:
    """Items of a box if every axis were cut into exactly equal parts."""
    return math.prod(a.extent / cut_parts(layout, a) for a in layout.axes)


def paper_s(kind: Kind, p: Ints, n_bytes: Numbers, links: Links) -> Floats:
    """Gholami et al. (Eq 3 to 9): ceil(log2 p) alpha + (p - 1) / p n beta; an allreduce twice."""
    once = links.alpha_s * log2_ceil(p) + links.beta_s_per_byte * (p - 1) / p * n_bytes
    return 2 * once if kind is Kind.ALLREDUCE else once


def paper_comm_s(step: Comm, network_model: NetworkModel, network: Network, plan: Plan) -> Floats:
    """Seconds of a step in the accounting of Gholami et al.

    A collective costs `paper_s` of its unrounded volume. A convolution's halo costs one alpha and
    floor(k / 2) rows: B/Pc X_W X_C floor(k_h / 2) items forward and B/Pc Y_W Y_C floor(k_w / 2)
    backward (Eq 7, 9); 1 x 1 kernels have none. The halos of pooling and normalization, and the sum
    of the loss, are free. The paper has no redistributions; they cost as they run.
    """
    seconds: Floats = 0.0
    if step.phase is Phase.LOSS:
        return seconds
    way = route(network_model, step.pattern.mesh_axes, plan.ranks)
    for kind in step.pattern.kinds:
        cost: Floats
        if kind is Kind.REDISTRIBUTE:
            cost = redistribution(step, network_model, plan.ranks).seconds
        elif kind is Kind.HALO:
            cost = _paper_halo_s(step, network_model, network, plan)
        else:
            layout = step.destination if kind is Kind.ALLGATHER else step.source
            cost = paper_s(kind, way.p, _even_items(layout) * step.item_bytes, way.far)
        seconds = np.where(np.equal(step.pattern.code, CODES[kind]), cost, seconds)
    return seconds


def _paper_halo_s(step: Comm, network_model: NetworkModel, network: Network, plan: Plan) -> Floats:
    layer = network.by_name[step.layer]
    if not isinstance(layer, Conv):
        return 0.0
    config = plan.configs[layer.name]
    forward = step.phase is not Phase.BACKWARD
    channels, _, *across = network.input_shape(layer) if forward else network.shapes[layer.name]
    rows = layer.kernel[0 if forward else 1] // 2
    if rows == 0:
        return 0.0
    links = route(network_model, [config.mesh_axes[a] for a in ("d", "h", "w")], plan.ranks).far
    items = plan.samples_of_a_pass / config.n * math.prod(across) * channels * rows
    return links.alpha_s + links.beta_s_per_byte * plan.item_bytes * items
