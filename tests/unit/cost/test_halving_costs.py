"""Halving on a machine of several levels: which members share a node, what leaves it, the price."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.cost.network.collective import Cases, collective_s
from hpcpar.cost.network.contention import NetworkModel, route
from hpcpar.machine import files
from hpcpar.machine.measured import Factors
from hpcpar.machine.model import Machine
from hpcpar.plan.config import MeshAxis
from hpcpar.plan.plan import NetworkSpec, make_plan
from hpcpar.schedule.steps import Kind

#: Nodes of 4 with 2 links each, racks of 17 nodes whose 34 links are oversubscribed 3 times.
ABCI = replace(files.load("abci-v100"), add_s_per_byte=0.0)
NODE, RACK, SYSTEM = ABCI.levels
N = 1 << 22


def price(machine: Machine, kind: Kind, mesh_axes: list[MeshAxis], ranks: int) -> float:
    way = route(NetworkModel(machine), mesh_axes, ranks)
    return float(collective_s(kind, "halving", N, 1, way))


@pytest.mark.parametrize(("mesh_axes", "ranks", "inner", "between"), [
    ([MeshAxis(1, 16)], 16, 4, 4),
    ([MeshAxis(2, 8)], 16, 2, 4),
    ([MeshAxis(1, 2), MeshAxis(8, 2)], 16, 2, 4),
    ([MeshAxis(8, 2), MeshAxis(1, 2)], 16, 2, 4),
    ([MeshAxis(4, 34)], 136, 17, 68),  # runs of racks, as nodes have one member each
    ([MeshAxis(1, 12)], 12, 4, 4),
    # one node, one member a node, and runs of 4 and of 2 members
    ([MeshAxis(1, 4)], 16, 1, None), ([MeshAxis(4, 4)], 16, 1, None),
    ([MeshAxis(1, 6)], 12, 1, None),
])
def test_placements_split_at_nodes(mesh_axes: list[MeshAxis], ranks: int, inner: int,
                               between: int | None) -> None:
    way = route(NetworkModel(ABCI), mesh_axes, ranks)
    assert int(way.inner) == inner
    if between is not None:
        (place, _), = Cases(way, N).of_placement
        inside, outside = place.placement.split()
        assert (inside.p, outside.p) == (inner, int(way.p) // inner)
        assert min(stride for stride, _ in outside.axes) >= between
        assert inside.block <= int(way.node) < outside.block == place.placement.block


def test_halving_between_nodes_has_three_steps() -> None:
    """A reduce-scatter in the node, an allreduce of a quarter with all four ranks of a node on its
    two links, an allgather.
    """
    inside = 2 * NODE.alpha_s + 3 / 4 * N * NODE.beta_s_per_byte
    between = 2 * RACK.alpha_s + 3 / 4 * N / 4 * 2 * RACK.beta_s_per_byte
    axes = [MeshAxis(1, 16)]
    assert price(ABCI, Kind.ALLREDUCE, axes, 16) == pytest.approx(2 * (inside + between))
    for kind in (Kind.REDUCE_SCATTER, Kind.ALLGATHER):
        assert price(ABCI, kind, axes, 16) == pytest.approx(inside + between)


def test_each_part_takes_the_measured_time_of_its_level() -> None:
    def measured(*known: tuple[str, str, float]) -> float:
        factors = tuple(Factors(level, kind, "halving", (1.0,), (by,)) for level, kind, by in known)
        return price(replace(ABCI, collectives=factors), Kind.ALLREDUCE, [MeshAxis(1, 16)], 16)

    inside = 2 * NODE.alpha_s + 3 / 4 * N * NODE.beta_s_per_byte
    plain = price(ABCI, Kind.ALLREDUCE, [MeshAxis(1, 16)], 16)
    assert measured(("node", "reduce_scatter", 3.0)) == pytest.approx(plain + 2 * inside)
    assert measured(("rack", "allreduce", 3.0)) == pytest.approx(3 * plain - 4 * inside)
    assert measured(("rack", "allgather", 3.0), ("node", "allreduce", 3.0)) == pytest.approx(plain)


def test_a_family_is_priced_as_its_cases() -> None:
    """Groups of several nodes, of one, and of no equal runs side by side."""
    stride, size = np.array([1, 1, 4, 2, 1]), np.array([16, 4, 4, 8, 6])
    ranks = np.array([16, 16, 16, 16, 12])
    way = route(NetworkModel(ABCI), [MeshAxis(stride, size)], ranks)
    for kind in (Kind.ALLREDUCE, Kind.ALLGATHER, Kind.REDUCE_SCATTER):
        together = collective_s(kind, "halving", N, 1, way)
        for i in range(len(size)):
            axes = [MeshAxis(int(stride[i]), int(size[i]))]
            alone = route(NetworkModel(ABCI), axes, int(ranks[i]))
            assert together[i] == pytest.approx(float(
                collective_s(kind, "halving", N, 1, alone))), (kind, i)


def test_a_schedule_follows_the_nodes_of_its_machine() -> None:
    spec = NetworkSpec("lenet5", (1, 28, 28), 10)
    six = replace(ABCI, host=None, levels=(replace(NODE, ranks=6),
                                           replace(RACK, ranks=0, oversubscription=1)))
    plan = make_plan(spec, "data", 12, 24, machine=six, collectives="halving")
    assert {s.inner for s in schedule_for(plan.network.build(), plan).comms} == {6}


def test_older_machine_files_name_bruck() -> None:
    entry = {"level": "node", "kind": "allgather", "algorithm": "bruck", "bytes": [1.0],
             "factors": [2.0]}
    machine = files.from_dict({**files.to_dict(ABCI), "collectives": [entry]})
    assert machine.collectives[0].algorithm == "halving"
