"""Chooses the cheapest algorithm and number of segments for each collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hpcpar.cost.network.collective import Cases, collective_s
from hpcpar.cost.network.contention import NetworkModel, Route, route
from hpcpar.errors import InputError
from hpcpar.network.graph import Network
from hpcpar.plan.config import Flags, Floats, Ints, Names, Numbers
from hpcpar.plan.plan import COLLECTIVES, Plan, Synchronization
from hpcpar.schedule.algorithms.base import ROOTED
from hpcpar.schedule.algorithms.registry import ALGORITHMS, algorithms_of
from hpcpar.schedule.lower import lower
from hpcpar.schedule.steps import (
    CHEAPEST,
    CODES,
    DIRECT,
    HOST,
    Choice,
    Chooser,
    Comm,
    Kind,
    Quote,
    Role,
    Schedule,
)

#: Smallest segment of a message. In smaller ones latency costs more than pipelining gains
#: (``bench/collectives.py``).
LEAST_PIECE_BYTES = 512 * 1024
#: Largest group in which algorithms that give one member's rounds at a time are considered.
MEMBER_BY_MEMBER = 64


def collective_bytes(step: Comm) -> Ints:
    """Bytes of the collective's whole buffer in the largest group: n in the formulas."""
    gathers = np.equal(step.pattern.code, CODES[Kind.ALLGATHER])
    return np.where(gathers, step.destination.largest_items,
                    step.source.largest_items) * step.item_bytes


def allowed(kind: Kind, collectives: str, p: Ints) -> Sequence[str]:
    """The algorithms that a plan's option `collectives` allows for this kind of collective."""
    for name in COLLECTIVES[collectives]:
        if kind in ALGORITHMS[name].kinds:
            return (name,)
    small = np.max(p) <= MEMBER_BY_MEMBER
    return [name for name in algorithms_of(kind) if not ALGORITHMS[name].on_request
            and (small or ALGORITHMS[name].together)]


def offers(kind: Kind, cases: Cases, root: int, names: Sequence[str]
           ) -> tuple[list[tuple[str, int]], NDArray[np.float64]]:
    """All choices (algorithm, number of segments), and their times (s): [choices, cases].

    The time is infinite where segments are too small. Choices that are too small for every case are
    left out.
    """
    choices: list[tuple[str, int]] = []
    seconds: list[NDArray[np.float64]] = []
    for name in names:
        for segments in (1, *ALGORITHMS[name].pieces(kind)):
            too_small = cases.pieces_bytes(kind, segments) < LEAST_PIECE_BYTES * (segments > 1)
            if not np.all(too_small):
                cost = cases.seconds(kind, name, segments, root)
                choices.append((name, segments))
                seconds.append(np.where(too_small, np.inf, cost))
    return choices, np.stack(seconds)


def cheapest(kind: Kind, n_bytes: Numbers, way: Route, names: Sequence[str]
             ) -> tuple[NDArray[np.str_], NDArray[np.int64], NDArray[np.float64]]:
    """The cheapest algorithm of `names`, its number of segments, and its time (s)."""
    cases = Cases(way, n_bytes)
    choices, seconds = offers(kind, cases, way.root, names)
    # of equally fast ones the first, whatever the rounding
    best = np.argmax(seconds <= seconds.min(axis=0) * (1 + 1e-12), axis=0)
    return (cases.spread(np.array([name for name, _ in choices])[best]),
            cases.spread(np.array([count for _, count in choices])[best]),
            cases.spread(seconds.min(axis=0)))


def chooser(model: NetworkModel, plan: Plan) -> Chooser:
    """A function that chooses the algorithm and the number of segments of a plan's collectives."""
    def choose(step: Comm) -> Choice:
        name: Names = "direct"
        segments: Ints = 1
        quoted: dict[Kind, Floats] = {}
        way = route(model, step.pattern.mesh_axes, step.source.config.ranks, step.root)
        for kind in step.pattern.kinds:
            if CODES[kind] in DIRECT:
                continue
            names, counts, quoted[kind] = cheapest(kind, collective_bytes(step), way,
                                                   allowed(kind, plan.collectives, way.p))
            is_kind = np.equal(step.pattern.code, CODES[kind])
            name, segments = np.where(is_kind, names, name), np.where(is_kind, counts, segments)
        return Choice(name, segments, way.inner, Quote(way, quoted))

    return with_hosts(choose, plan, model)


def cheapest_price(network_model: NetworkModel, chosen_on: NetworkModel,
                   collectives: str) -> Chooser:
    """A chooser for steps that are priced but never run: it quotes a time without an algorithm.

    `chosen_on` decides which algorithm is cheapest, and `network_model` prices it.
    """
    def cheapest_s(kind: Kind, way: Route, n_bytes: Numbers, where: Flags) -> Floats:
        cases, names = Cases(way, n_bytes, where), allowed(kind, collectives, way.p)
        offered = offers(kind, cases, way.root, names)[1]
        if network_model is chosen_on:
            return cases.spread(offered.min(axis=0))
        plain = Cases(replace(way, network_model=chosen_on), n_bytes, where)
        estimates = offers(kind, plain, way.root, names)[1]
        return cases.spread(np.choose(np.argmin(estimates, axis=0), offered))

    def choose(step: Comm) -> Choice:
        way = route(network_model, step.pattern.mesh_axes, step.source.config.ranks, step.root)
        return Choice(CHEAPEST, quote=Quote(way, {
            kind: cheapest_s(kind, way, collective_bytes(step),
                             np.equal(step.pattern.code, CODES[kind]))
            for kind in step.pattern.kinds if CODES[kind] not in DIRECT}))

    return choose


def with_hosts(choose: Chooser, plan: Plan, model: NetworkModel) -> Chooser:
    """A chooser that leaves sums and broadcasts of weights to hosts, where they are the plan's
    parameter servers on the model's machine, which quotes their prices.
    """
    if plan.synchronization is not Synchronization.SERVER_HOST or model.machine.host is None:
        return choose

    def choose_host(step: Comm) -> Choice | tuple[Names, Ints]:
        kinds = step.pattern.kinds
        if step.tensor.role is not Role.WEIGHT or not set(kinds) & set(ROOTED):
            return choose(step)
        way = route(model, step.pattern.mesh_axes, step.source.config.ranks, step.root)
        return Choice(HOST, quote=Quote(way, {
            kind: collective_s(kind, HOST, collective_bytes(step), 1, way) for kind in kinds}))

    return choose_host


def schedule_for(network: Network, plan: Plan, training: bool = True) -> Schedule:
    """The schedule of a plan, with the cheapest algorithms on the plan's machine.

    Raises
    ------
    InputError
        If the plan carries no machine.
    """
    if plan.machine is None:
        raise InputError("the plan names no machine; write it again with: hpcpar plan --machine")
    model = NetworkModel(plan.machine)
    return lower(network, plan, chooser(model, plan), training=training)
