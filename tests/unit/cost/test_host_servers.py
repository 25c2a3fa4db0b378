"""Parameter servers in the memory of hosts: prices by hand, and the machines that have them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.machine.host import Host
from hpcpar.machine.model import Level, Machine
from hpcpar.plan.config import Config
from hpcpar.plan.plan import NetworkSpec, Plan, make_plan
from hpcpar.plan.strategies import fill
from hpcpar.prediction.prediction import Prediction
from hpcpar.prediction.price import price
from hpcpar.schedule.runnable import not_on_hosts
from hpcpar.schedule.sent_bytes import sent
from hpcpar.schedule.steps import HOST, Comm, Compute, Kind, Op
from hpcpar.simulation.simulate import Simulator

SPEC = NetworkSpec("lenet5", (1, 28, 28), 10)
NETWORK = SPEC.build()
LINK, MEMORY, WIRE = 1 / 12e9, 100e9, 1 / 12.5e9
GPUS = replace(
    files.load("local"), processor="GPU", host=Host(4, 1e-5, LINK, MEMORY, links=2),
    levels=(Level("node", 4, 9e-6, 5e-11, links=3), Level("network", 0, 3e-5, WIRE, links=1)))
CPUS = files.load("local")


def plan_of(ranks: int, machine: Machine = GPUS, strategy: str = "data",
            synchronization: str = "server-host", **options: Any) -> Plan:
    return make_plan(SPEC, strategy, ranks, 48, machine=machine,
                     synchronization=synchronization, **options)


def priced(plan: Plan, machine: Machine = GPUS, **options: Any) -> Prediction:
    return price(NETWORK, plan, machine, **options)


def seconds(found: Prediction, label: str) -> float:
    return next(step.seconds for step in found.steps if step.label == label)


def fc1_bytes() -> int:
    return 4 * NETWORK.by_name["fc1"].parameters(NETWORK.input_shape(NETWORK.by_name["fc1"]))


# -- by hand ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(("ranks", "flows_per_link"), [(2, 1), (3, 1.5), (4, 2)])
def test_devices_of_a_node_share_the_links_to_their_host(ranks: int, flows_per_link: float) -> None:
    """The host reads a gradient of each device and writes their sum; momentum moves five values."""
    n, found = fc1_bytes(), priced(plan_of(ranks))
    way_s = 1e-5 + flows_per_link * LINK * n
    assert seconds(found, "fc1.gradient.reduce") == pytest.approx(way_s + (ranks + 1) * n / MEMORY)
    assert seconds(found, "fc1.host_update") == pytest.approx(5 * n / MEMORY)
    assert seconds(found, "fc1.update.broadcast") == pytest.approx(way_s)


def test_gradients_of_another_node_share_the_network_of_the_server() -> None:
    """Four flows into one adapter are slower than four on two links to a host."""
    n, found = fc1_bytes(), priced(plan_of(8))
    way_s = 1e-5 + 3e-5 + 4 * WIRE * n
    assert seconds(found, "fc1.gradient.reduce") == pytest.approx(way_s + 9 * n / MEMORY)
    assert seconds(found, "fc1.host_update") == pytest.approx(5 * n / MEMORY)
    assert seconds(found, "fc1.update.broadcast") == pytest.approx(way_s)


def test_each_device_may_have_a_link() -> None:
    machine = replace(GPUS, host=Host(4, 1e-5, LINK, MEMORY))
    found = priced(plan_of(4, machine), machine)
    assert seconds(found, "fc1.update.broadcast") == pytest.approx(1e-5 + LINK * fc1_bytes())


def test_a_network_without_shared_links_has_one_for_each_rank() -> None:
    """Eight flows from two other nodes enter a node of four ranks with a link each."""
    levels = tuple(replace(level, links=0.0) for level in GPUS.levels)
    machine = replace(GPUS, levels=levels, host=Host(4, 1e-5, LINK / 100, MEMORY))
    found = priced(plan_of(12, machine), machine)
    assert seconds(found, "fc1.update.broadcast") == pytest.approx(4e-5 + 2 * WIRE * fc1_bytes())


def test_small_messages_and_other_jobs_on_the_network() -> None:
    node, network = GPUS.levels
    network = replace(network, small_alpha_s=1e-6, small_bytes=1000, load=0.5)
    machine = replace(GPUS, levels=(node, network))
    found, n = priced(plan_of(8, machine), machine), 4 * (6 * 25 + 6)
    assert seconds(found, "conv1.update.broadcast") == pytest.approx(
        1e-5 + 1e-6 + 4 * 2 * WIRE * n)
    assert seconds(found, "fc1.update.broadcast") == pytest.approx(
        4e-5 + 4 * 2 * WIRE * fc1_bytes())


def test_nodes_of_several_levels_have_one_host() -> None:
    """Four hosts of four ranks, in groups of two inside a node, and in racks of two nodes."""
    inner, network = GPUS.levels
    machine = replace(GPUS, levels=(
        replace(inner, name="pair", ranks=2), inner,
        replace(network, name="rack", ranks=8), replace(network, beta_s_per_byte=3 * WIRE)))
    assert seconds(priced(plan_of(8, machine), machine), "fc1.update.broadcast") == pytest.approx(
        4e-5 + 4 * WIRE * fc1_bytes())
    assert seconds(priced(plan_of(16, machine), machine), "fc1.update.broadcast") == pytest.approx(
        4e-5 + 8 * 3 * WIRE * fc1_bytes())


def test_one_host_holds_all_parts_of_a_layer() -> None:
    """Two groups of two ranks share each half of the weights: the host sums and updates both."""
    configs = fill(NETWORK, "data", 4) | {"fc1": Config(n=2, c=2)}
    plan = Plan(SPEC, 4, 48, "mixed", configs, machine=GPUS, synchronization="server-host")
    found, n = priced(plan), fc1_bytes() / 2
    assert seconds(found, "fc1.gradient.reduce") == pytest.approx(
        1e-5 + 2 * LINK * n + 3 * 2 * n / MEMORY)
    assert seconds(found, "fc1.host_update") == pytest.approx(5 * 2 * n / MEMORY)


def test_weights_of_one_rank_stay_there() -> None:
    labels = {step.label for step in priced(plan_of(1)).steps}
    assert "fc1.update" in labels and "fc1.host_update" not in labels
    filters = {step.label for step in priced(plan_of(4, strategy="filter")).steps}
    assert "fc1.update" in filters and "fc1.host_update" not in filters


# -- one schedule ----------------------------------------------------------------------------------
def test_only_sums_and_broadcasts_of_weights_go_to_the_host() -> None:
    """One weird trick's scheme b broadcasts activations among ranks."""
    for strategy in ("data", "owt-b", "spatial", "grid-fc:2x4"):
        steps = schedule_for(NETWORK, plan_of(8, strategy=strategy)).steps
        moves = [step for step in steps if isinstance(step, Comm)]
        hosted = [move for move in moves if move.algorithm == HOST]
        assert {move.tensor.role.value for move in hosted} == {"weight"}
        assert all(move.algorithm == HOST for move in moves if move.tensor.role.value == "weight")
        updated = [step.layer for step in steps
                   if isinstance(step, Compute) and step.op is Op.HOST_UPDATE]
        assert updated == [move.layer for move in hosted if move.kind is Kind.BROADCAST]


def test_ranks_send_gradients_and_receive_weights() -> None:
    moves = [step for step in schedule_for(NETWORK, plan_of(4)).steps
             if isinstance(step, Comm) and step.layer == "fc1"]
    counts = {move.kind: sent(move, 4) for move in moves}
    assert counts[Kind.REDUCE].n_bytes.tolist() == [fc1_bytes()] * 4
    assert counts[Kind.REDUCE].messages.tolist() == [1] * 4
    assert not counts[Kind.BROADCAST].messages.any() and not counts[Kind.BROADCAST].n_bytes.any()
    found = priced(plan_of(4))
    reduction, = (s for s in found.steps if s.label == "fc1.gradient.reduce")
    assert (reduction.messages, reduction.sent_bytes) == (1, fc1_bytes())


def test_ranks_have_no_state_of_the_optimizer() -> None:
    memory = priced(plan_of(4)).memory
    assert memory.optimizer_bytes == 0 < priced(plan_of(1)).memory.optimizer_bytes
    on_device = priced(plan_of(4, synchronization="server")).memory
    assert on_device.weights_bytes == memory.weights_bytes and on_device.optimizer_bytes > 0


@pytest.mark.parametrize("ranks", [2, 3, 6, 8])
@pytest.mark.parametrize("strategy", ["data", "spatial", "owt", "owt-b"])
def test_the_simulation_equals_the_prediction(strategy: str, ranks: int) -> None:
    plan = plan_of(ranks, strategy=strategy)
    found = priced(plan)
    assert found.iteration_s == pytest.approx(
        Simulator(NETWORK, plan, GPUS).play().mean_s, rel=1e-9)


def test_gradients_and_weights_leave_their_nodes() -> None:
    """Node 1 sends four gradients over the network, and node 0 sends the weights of four ranks."""
    left = Simulator(NETWORK, plan_of(8), GPUS).left_bytes()
    loss = 3 * 8
    assert left[1] == pytest.approx([4 * 4 * NETWORK.parameters] * 2, abs=4 * loss)
    assert left[0].max() <= 4 * loss
    alone = Simulator(NETWORK, plan_of(4), GPUS).left_bytes()
    assert max(level.max() for level in alone) <= 4 * loss


def test_the_formulas_of_the_integrated_paper_have_no_host() -> None:
    """A host is priced as it runs there."""
    plan = plan_of(8)
    for label in ("fc1.gradient.reduce", "fc1.host_update", "fc1.update.broadcast"):
        assert seconds(priced(plan, accounting="paper"), label) == seconds(priced(plan), label)


def test_mixed_precision_moves_its_format() -> None:
    rates = replace(GPUS.device, multiprocessors=80, lanes=64)
    machine = replace(GPUS, device=rates)
    half, full = (priced(plan_of(4, machine, precision=p), machine) for p in ("amp", "fp32"))
    assert seconds(half, "fc1.gradient.reduce") == seconds(full, "fc1.gradient.reduce")
    assert seconds(half, "fc1.host_update") > seconds(full, "fc1.host_update")


# -- machines --------------------------------------------------------------------------------------
@pytest.mark.parametrize("strategy", ["data", "spatial", "owt", "grid-fc:2x4", "owt-b"])
def test_on_cpus_it_is_the_server(strategy: str) -> None:
    host, rank = (plan_of(8, CPUS, strategy, s) for s in ("server-host", "server"))
    a, b = schedule_for(NETWORK, host).steps, schedule_for(NETWORK, rank).steps
    assert a == b
    one, other = priced(host, CPUS), priced(rank, CPUS)
    assert (one.iteration_s, one.memory) == (other.iteration_s, other.memory)
    assert not_on_hosts(host) == ""


def test_machines_without_the_link_are_refused() -> None:
    """On devices of their own, or of an unknown kind."""
    for processor, kind in (("GPU", "gpu"), ("rank", ""), ("GPU", "")):
        machine = replace(CPUS, processor=processor, quality={"device": kind})
        with pytest.raises(InputError, match=r"machine local has no \[host\]") as caught:
            priced(plan_of(4, machine), machine)
        assert "\n" not in str(caught.value)
    cpu = replace(CPUS, processor="rank", quality={"device": "cpu"})
    assert priced(plan_of(4, cpu), cpu).iteration_s > 0


def test_servers_on_hosts_are_not_priced_on_a_machine_without_hosts() -> None:
    with pytest.raises(InputError, match=r"machine local has no \[host\]"):
        priced(plan_of(4), CPUS)
    found = priced(plan_of(4, CPUS), GPUS)  # the plan of a CPU has its server on a rank
    assert {step.label for step in found.steps} >= {"fc1.update"}


def test_plans_with_servers_on_hosts_do_not_run_on_gpus() -> None:
    for plan, device in ((plan_of(4), "gpu"), (plan_of(4), "cpu"), (plan_of(4, CPUS), "gpu")):
        assert "plan with --synchronization server to run it" in not_on_hosts(plan, device)
    assert not_on_hosts(plan_of(4, synchronization="server"), "gpu") == ""


@pytest.mark.parametrize(("ranks", "fits"), [(0, True), (1, True), (2, True), (4, True), (8, True),
                                             (3, False), (6, False)])
def test_hosts_fit_the_levels(ranks: int, fits: bool) -> None:
    host = Host(ranks, 1e-5, LINK, MEMORY)
    if fits:
        assert replace(GPUS, host=host).host == host
    else:
        with pytest.raises(InputError, match=rf"a \[host\] of {ranks} ranks does not fit"):
            replace(GPUS, host=host)


def test_the_template_has_an_example(tmp_path: Any) -> None:
    path = tmp_path / "my.toml"
    files.new(str(path))
    before, block, after = re.split(r"(# \[host\].*?\n)(?=\n)", path.read_text(), flags=re.DOTALL)
    assert files.load(str(path)).host is None
    path.write_text(before + re.sub("^# ", "", block, flags=re.MULTILINE) + after)
    host = files.load(str(path)).host
    assert host is not None and (host.ranks, host.links) == (8, 4)


def test_machine_files_have_a_host(tmp_path: Any) -> None:
    path = str(tmp_path / "gpus.toml")
    files.save(GPUS, path)
    assert files.load(path) == GPUS
    text = files.to_dict(GPUS) | {"host": {
        "ranks": 4, "latency": "10 us", "bandwidth": "12 GB/s", "memory_bandwidth": "100 GB/s",
        "links": 2}}
    host = files.from_dict(text).host
    assert host is not None and np.allclose(
        [host.alpha_s, host.beta_s_per_byte, host.memory_bytes_per_s], [1e-5, LINK, MEMORY])
    assert "host" not in files.to_dict(CPUS)
    with pytest.raises(InputError, match=r"'host'.*memory_bytes_per_s"):
        files.from_dict(text | {"host": {"ranks": 4, "latency": "1 us", "bandwidth": "1 GB/s"}})
