"""Contention: how many of the job's own flows share a link (ParaDL's phi), as it follows from where
the groups lie.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcpar.cli.main import main
from hpcpar.cost.network.contention import NetworkModel, route
from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.plan.config import Config, MeshAxis
from hpcpar.plan.plan import NetworkSpec, make_plan
from hpcpar.prediction.prediction import Prediction
from hpcpar.prediction.price import price
from hpcpar.schedule.steps import Group
from hpcpar.search import auto

#: Nodes of 4 with 2 links each, racks of 17 nodes whose 34 links are oversubscribed 3 times.
ABCI = files.load("abci-v100")
NODE, RACK, SYSTEM = ABCI.levels
LENET = NetworkSpec("lenet5", (1, 64, 64), 10)
NETWORK = LENET.build()


def phi_of_rings(digits: list[MeshAxis], ranks: int) -> tuple[str, float]:
    """The level that a ring over the group pays for, and by how much it is slower than alone."""
    way = route(NetworkModel(ABCI), digits, ranks)
    level = ABCI.levels[int(way.level)]
    return level.name, float(way.far.beta_s_per_byte / level.beta_s_per_byte)


def leaving(digits: list[MeshAxis], ranks: int, unit: int) -> int:
    """Most messages that leave a unit when every rank sends to the next of its ring, by walking all
    ranks.
    """
    group = Group(tuple(digits))
    count = np.zeros(-(-ranks // unit), int)
    for rank in range(ranks):
        members = group.members(rank)
        other = members[(members.index(rank) + 1) % len(members)]
        count[rank // unit] += other // unit != rank // unit
    return int(count.max())


# -- rings -----------------------------------------------------------------------------------------
def test_one_ring_over_all_ranks_has_its_links_to_itself() -> None:
    assert phi_of_rings([MeshAxis(1, 8)], 8) == ("rack", 1.0)
    assert phi_of_rings([MeshAxis(1, 4)], 4) == ("node", 1.0) == phi_of_rings([MeshAxis(1, 4)], 64)


def test_rings_of_model_groups_share_the_nodes_links() -> None:
    """Model groups fill the nodes: the 4 ranks of a node each sum gradients with their own ring,
    over 2 links.
    """
    assert phi_of_rings([MeshAxis(4, 2)], 8) == ("rack", 2.0) == phi_of_rings([MeshAxis(4, 17)], 68)
    # of model groups of 2, two rings leave a node: a link for each
    assert phi_of_rings([MeshAxis(2, 4)], 8) == ("rack", 1.0)


def test_racks_are_oversubscribed() -> None:
    """All 68 ranks of a rack send to the other one over a third of its 34 links."""
    assert phi_of_rings([MeshAxis(68, 2)], 136) == ("system", pytest.approx(6.0))
    assert phi_of_rings([MeshAxis(34, 4)], 136) == ("system", pytest.approx(3.0))
    assert phi_of_rings([MeshAxis(1, 136)], 136) == ("system", 1.0)


@pytest.mark.parametrize(("stride", "size", "ranks"), [
    (1, 8, 8), (1, 16, 64), (2, 4, 8), (2, 2, 16), (4, 2, 8), (4, 8, 32), (8, 4, 32), (2, 34, 68),
    (34, 4, 136), (68, 2, 136), (68, 4, 272),
])
def test_flows_are_those_of_walked_rings(stride: int, size: int, ranks: int) -> None:
    name, phi = phi_of_rings([MeshAxis(stride, size)], ranks)
    unit = {"node": 1, "rack": 4, "system": 68}[name]
    links = {"node": NODE, "rack": RACK, "system": SYSTEM}[name].shared_links
    assert phi == pytest.approx(max(1.0, leaving([MeshAxis(stride, size)], ranks, unit) / links))


@pytest.mark.parametrize(("stride", "size", "ranks"),
                         [(3, 4, 12), (1, 6, 12), (6, 2, 12), (3, 2, 6), (5, 4, 20)])
def test_groups_across_node_boundaries_are_not_faster(stride: int, size: int, ranks: int) -> None:
    """Where groups and nodes do not fit into each other, at least as many flows are counted as
    leave some node.
    """
    name, phi = phi_of_rings([MeshAxis(stride, size)], ranks)
    assert name == "rack" and phi >= leaving([MeshAxis(stride, size)], ranks, 4) / RACK.shared_links


def test_a_second_rack_does_not_relieve_the_nodes() -> None:
    """Four rings of 34 nodes leave every node over its 2 links, whether or not some of their
    messages go on to the other rack.
    """
    network_model = NetworkModel(ABCI)
    one, two = route(network_model, [MeshAxis(4, 17)],
                     68).far, route(network_model, [MeshAxis(4, 34)], 136).far
    assert leaving([MeshAxis(4, 34)], 136, 4) == leaving([MeshAxis(4, 17)], 68, 4) == 4
    assert two.beta_s_per_byte >= one.beta_s_per_byte


def test_a_familys_routes_equal_its_cases() -> None:
    stride, size = np.array([1, 4, 4, 68]), np.array([4, 2, 17, 2])
    ranks = np.array([16, 8, 68, 136])
    together = route(NetworkModel(ABCI), [MeshAxis(stride, size)], ranks)
    for i in range(len(ranks)):
        alone = route(NetworkModel(ABCI), [MeshAxis(int(stride[i]), int(size[i]))], int(ranks[i]))
        assert together.level[i] == alone.level and together.far.beta_s_per_byte[
            i] == alone.far.beta_s_per_byte


# -- prices ----------------------------------------------------------------------------------------
def cost(strategy: str, ranks: int, machine: files.Machine = ABCI, **options: Any) -> Prediction:
    plan = make_plan(LENET, strategy, ranks, 64, network=NETWORK, machine=machine,
                     overlap="none", collectives="ring")
    return price(NETWORK, plan, machine, **options)


def communication(p: Prediction, phase: str) -> float:
    return p.phases[phase]["communication_s"]


def streams(p: Prediction, phase: str) -> set[str]:
    """Levels of the machine that a phase's communication crosses."""
    return {step.stream for step in p.steps if step.is_comm and step.phase == phase}


def test_given_contention_replaces_the_placements() -> None:
    """phi counts on every level but the innermost, and scales bandwidth, not latency."""
    free = replace(ABCI, levels=tuple(replace(level, alpha_s=0.0) for level in ABCI.levels),
                   add_s_per_byte=0.0, copy_s_per_byte=0.0)
    own, one, two, four = (cost("df:2x4", 8, free, **({} if phi is None else {"contention": phi}))
                           for phi in (None, 1.0, 2.0, 4.0))
    assert communication(own, "gradient") == pytest.approx(communication(two, "gradient"),
                                                           rel=1e-12)
    assert communication(four, "gradient") == pytest.approx(4 * communication(one, "gradient"),
                                                            rel=1e-12)
    assert communication(four, "forward") == communication(one,
                                                           "forward") == communication(own,
                                                                                       "forward")
    with pytest.raises(InputError, match="at least 1"):
        cost("data", 8, contention=0.5)


def test_data_parallel_gradients_have_the_links_to_themselves() -> None:
    own, alone = cost("data", 8), cost("data", 8, contention=1.0)
    assert communication(own, "gradient") == pytest.approx(communication(alone, "gradient"),
                                                           rel=1e-12)


def test_placement_decides_what_leaves_the_node() -> None:
    """``inner`` puts model groups into nodes, ``outer`` the sample groups."""
    inner, outer = cost("grid:4x4", 16), cost("grid:4x4/outer", 16)
    assert streams(inner, "forward") == streams(inner,
                                                "backward") == {"node"} and streams(
                                                    inner, "gradient") == {"rack"}
    assert streams(outer, "forward") == streams(outer,
                                                "backward") == {"rack"} and streams(
                                                    outer, "gradient") == {"node"}
    assert communication(inner, "forward") < communication(outer, "forward")
    assert communication(inner, "gradient") > communication(outer, "gradient")
    assert inner.communication_bytes == outer.communication_bytes


@pytest.mark.parametrize("placement", ["inner", "outer"])
def test_routes_of_both_placements(placement: str) -> None:
    """Groups of 4 within aligned blocks of 4 stay in a node; groups of stride 4 leave it with 4
    flows.
    """
    config = Config(n=4, c=4, placement=placement)
    ways = {axis: route(NetworkModel(ABCI), [config.mesh_axes[axis]], 16) for axis in "nc"}
    near, far = ("c", "n") if placement == "inner" else ("n", "c")
    assert (ways[near].level, ways[far].level) == (0, 1)
    assert ways[near].far.beta_s_per_byte == NODE.beta_s_per_byte
    assert ways[far].far.beta_s_per_byte == 2 * RACK.beta_s_per_byte


def test_halos_between_nodes_cross_their_links() -> None:
    """One image over two nodes: one message leaves each, over 2 links. Four images side by side:
    four do.
    """
    one, four = cost("spatial", 8), cost("ds:4x2/outer", 8)
    assert streams(one, "forward") == {"rack"}
    alone, shared = (next(s for s in p.steps if s.label == "conv2.forward.halo")
                     for p in (one, four))
    rows = 4 * 2 * 32 * 6 * 64  # bytes: 2 rows of 32, 6 channels, 64 samples
    # the part at a node's end has a neighbor in the node and one outside; rows are packed and
    # unpacked
    assert alone.seconds == pytest.approx(NODE.message_s(rows) + RACK.message_s(rows) + 4 * rows
                                          * ABCI.copy_s_per_byte, rel=1e-12)
    # both parts of an image lie in different nodes
    wire = RACK.alpha_s + 2 * RACK.beta_s_per_byte * rows / 4
    assert shared.seconds == pytest.approx(wire + 2 * rows / 4 * ABCI.copy_s_per_byte, rel=1e-12)


@pytest.mark.parametrize(("strategy", "each"),
                         [("pipeline:8x1", 1), ("pipeline:4x2", 2), ("pipeline:2x4", 4)])
def test_hops_between_stages_cross_the_links_between_them(strategy: str, each: int) -> None:
    """From the ranks of one stage to the ranks of the next, which is the next node where the stage
    begins with one.
    """
    plan = make_plan(LENET, strategy, 8, 64, network=NETWORK, machine=ABCI,
                     overlap="none")
    p = price(NETWORK, plan, ABCI)
    hops = [s for s in p.steps if s.label.endswith("forward.redistribute")]
    assert len(hops) == (8 // each - 1) * plan.microbatches
    for step in hops:
        outside = plan.configs[step.layer].first % 4 == 0
        phi = max(1.0, each / RACK.shared_links)
        level = RACK if outside else NODE
        assert step.stream == level.name, step.label
        wire = level.alpha_s + (phi if outside else 1.0) * level.beta_s_per_byte * step.sent_bytes
        assert step.seconds == pytest.approx(wire + 2 * step.sent_bytes * ABCI.copy_s_per_byte,
                                             rel=1e-9), step.label


# -- load of other jobs ----------------------------------------------------------------------------
def test_load_takes_its_share_of_a_levels_bandwidth() -> None:
    loaded = ABCI.loaded({"rack": 0.75})
    assert loaded.levels[1].loaded_beta_s_per_byte == pytest.approx(4 * RACK.beta_s_per_byte)
    assert [level.load for level in loaded.levels] == [0, 0.75, 0]
    links = route(NetworkModel(loaded), [MeshAxis(1, 8)], 8).far
    assert links.alpha_s == RACK.alpha_s
    assert links.beta_s_per_byte == pytest.approx(4 * RACK.beta_s_per_byte)
    inside = route(NetworkModel(loaded), [MeshAxis(1, 4)], 8).far
    assert inside.beta_s_per_byte == pytest.approx(NODE.beta_s_per_byte)


@pytest.mark.parametrize("strategy", ["data", "spatial", "filter", "channel", "ds:2x4", "layerwise",
                                      "pipeline:2x4", "integrated"])
def test_load_on_all_levels_equals_lower_bandwidth(strategy: str) -> None:
    """One place applies it: a machine with half of every bandwidth is priced alike."""
    shares = {level.name: 0.5 for level in ABCI.levels}
    slow = replace(ABCI, levels=tuple(
        replace(level, beta_s_per_byte=2 * level.beta_s_per_byte) for level in ABCI.levels))
    found = [auto.price_named(NETWORK, LENET, strategy, 8, 64, machine).iteration_s
             for machine in (ABCI.loaded(shares), slow, ABCI)]
    assert found[0] == pytest.approx(found[1], rel=1e-12) and found[0] > found[2]


def test_a_load_in_a_machine_file() -> None:
    data = files.to_dict(ABCI.loaded({"system": 0.2}))
    assert files.from_dict(data).levels[2].load == 0.2
    assert "load" not in str(files.to_dict(ABCI))  # plans of idle machines stay as they were
    for share in (1.0, -0.1, "much"):
        data["levels"][2]["load"] = share  # type: ignore[index]
        with pytest.raises(InputError, match="load"):
            files.from_dict(data)
    with pytest.raises(InputError, match="unknown level 'rak'; did you mean 'rack'"):
        ABCI.loaded({"rak": 0.2})


def test_the_option_load_slows_messages(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    case = ["--network", "lenet5", "--machine", "abci-v100", "--ranks", "8", "--batch", "64"]

    def seconds(*argv: str) -> float:
        assert main([*argv, "--json"]) == 0
        return float(json.loads(capsys.readouterr().out)["iteration_s"])

    free, loaded = (seconds("predict", *case, *more)
                    for more in ((), ("--load", "rack=0.9, node=0.5")))
    assert loaded > free
    plan = str(tmp_path / "plan.json")
    found = seconds("plan", *case, "--strategy", "data", "--load", "rack=0.9,node=0.5", "-o", plan)
    assert found == loaded == seconds("predict", "--plan", plan)
    assert seconds("predict", "--plan", plan, "--load", "rack=0,node=0") <= found
    for wrong in ("rack=1", "rack", "=0.2", "rak=0.2", "rack=0.2,"):
        try:
            status = main(["predict", *case, "--load", wrong])
        except SystemExit as end:
            status = int(end.code or 0)
        assert status == 2 and capsys.readouterr().err.count("\n") <= 3, wrong
