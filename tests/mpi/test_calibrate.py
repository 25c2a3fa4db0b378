"""Calibration on the ranks of the job: its measurements, and that no value runs away meanwhile."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hpcpar.calibrate import calibrate, conv_probe
from hpcpar.calibrate import compute_probe as probe
from hpcpar.calibrate import link_probe as links
from hpcpar.calibrate.for_auto import calibrate_for_auto
from hpcpar.calibrate.p2p_probe import MESSAGES, P2pProbe
from hpcpar.comm.communicator import Communicator
from hpcpar.comm.device_options import kernels_of_all
from hpcpar.comm.world import World
from hpcpar.cost.network.collective import collective_s
from hpcpar.cost.network.contention import NetworkModel, route
from hpcpar.cost.network.halo import halo
from hpcpar.cost.network.redistribution import redistribution
from hpcpar.errors import InputError
from hpcpar.kernels.conv_choice import AUTO, NUMPY, PASSES, TORCH
from hpcpar.kernels.numpy_backend import NumpyBackend
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.plan.config import Config
from hpcpar.plan.plan import NetworkSpec, make_plan
from hpcpar.prediction.price import price
from hpcpar.runtime.executor import Executor
from hpcpar.schedule.lower import lower
from hpcpar.schedule.runnable import require
from hpcpar.schedule.steps import NOTHING, Comm, Kind, Phase
from hpcpar.search.auto import best
from hpcpar.search.candidates import Candidate
from tests.mpi.comparison import CHOOSERS
from tests.mpi.networks import fixed
from tests.mpi.plans import random_plan, staged_plan

#: network, and what to draw a plan with
CASES = [("lenet5", random_plan, 1), ("lenet5", staged_plan, 2),
         ("alexnet-two-towers", random_plan, 3), ("resnet", random_plan, 4),
         ("resnet", staged_plan, 5)]


@pytest.mark.parametrize(("name", "draw", "seed"), CASES,
                         ids=[f"{n}-{d.__name__}" for n, d, _ in CASES])
def test_values_stay_finite_and_normal_during_calibration(name: str, draw: Any, seed: int,
                                                          ranks: World,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """Over many iterations on shared memory: neither overflow nor NaN nor denormals, nor growth;
    weights stay as they are.
    """
    network, batch = fixed(name)
    rng = np.random.default_rng(seed)
    plan = replace(draw(network, batch, ranks.size, rng), precision="fp32", optimizer="momentum")
    try:
        require(network, plan)
    except InputError as err:
        pytest.skip(str(err))
    made: list[Executor] = []
    monkeypatch.setattr(probe, "Executor", lambda *a: made.append(Executor(*a)) or made[-1])
    schedule = lower(network, plan, CHOOSERS["ring"])
    iterate, _ = probe.silent_iteration(ranks, network, plan, schedule, NumpyBackend())
    weights = {name: p.flat.copy() for name, p in made[0].parameters.items()}
    for _ in range(2):
        iterate()
    first = _extremes(made[0])
    for _ in range(100 if name == "lenet5" else 5):
        iterate()
    assert all((p.flat == weights[name]).all() for name, p in made[0].parameters.items())
    for key, (least, most) in _extremes(made[0]).items():
        assert np.isfinite(most) and most < 1e4, (key, most)
        assert least > 1e-30, (key, least)
        assert most == pytest.approx(first[key][1], rel=1e-3), key


def _extremes(executor: Executor) -> dict[Any, tuple[float, float]]:
    """The smallest nonzero and the largest magnitude in each array of blocks and gradients."""
    out: dict[Any, tuple[float, float]] = {}
    arrays: dict[Any, Any] = {("gradient", name): p.grad for name, p in executor.parameters.items()}
    arrays |= {("state", name, i): s for name, p in executor.parameters.items()
               for i, s in enumerate(p.state)}
    for here in (*executor.passes, *executor.fc_passes):
        for name, b in here.blocks.items():
            arrays |= {(here.part, name, i): a
                       for i, a in enumerate((*b.xs, *b.dxs, b.y, b.dy, b.out, b.dout))
                       if a is not None}
    for key, array in arrays.items():
        size = np.abs(array[array != 0])
        out[key] = (float(size.min()), float(size.max())) if size.size else (1.0, 0.0)
    return out


def test_all_ranks_choose_the_same_kernels(ranks: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank without PyTorch makes all ranks take NumPy's; measured ratios are the same."""
    pytest.importorskip("torch")
    plan = make_plan(NetworkSpec("lenet5", (1, 16, 16), 10), "data", ranks.size, 2 * ranks.size,
                     machine=files.load("local"))
    ratios = ranks.comm.allgather(conv_probe.numpy_over_others(ranks, [plan]))
    assert set(ratios[0]) == {f"window small {name}" for name in PASSES}
    assert min(min(each) for each in ratios[0].values()) > 0
    assert all(each == ratios[0] for each in ratios)
    assert kernels_of_all(ranks, AUTO) == AUTO
    monkeypatch.setattr("hpcpar.comm.device_options.has_torch", lambda: ranks.rank != 0)
    assert kernels_of_all(ranks, AUTO) == NUMPY and kernels_of_all(ranks, TORCH) == TORCH


@pytest.mark.parametrize(("strategy", "precision"), [
    ("spatial", "fp32"), ("pipeline", "fp32"), ("spatial", "amp")])
def test_table_prices_every_compute_step(strategy: str, precision: str, ranks: World) -> None:
    machine = files.load("local")
    machine = replace(machine, device=replace(machine.device, rates={"bfloat16": 1e10}))
    spec = NetworkSpec("lenet5", (1, 16, 16), 10)
    if strategy == "spatial" and ranks.size > 4:
        pytest.skip("images are too small")
    plan = make_plan(spec, strategy, ranks.size, 4 * ranks.size, machine=machine,
                     precision=precision)
    samples = ranks.bcast(probe.compute_samples(ranks, plan, NumpyBackend(), {}))
    assert samples is not None and len(samples.seconds) >= probe.FEWEST
    table = samples.table()
    found = price(plan.network.build(), plan, replace(machine, compute=table))
    assert found.measured_compute == 1.0
    assert found.compute_s > 0 and all(s >= 0 for s in table.values())
    assert probe.compute_samples(ranks, plan, NumpyBackend(), table) is None


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rounds, and few short messages."""
    monkeypatch.setattr(calibrate, "ROUNDS", 2)
    monkeypatch.setattr(probe, "VISIT_S", 0.01)
    for name, sizes in (("PIECES", (512, 4096, 65536)), ("BUFFERS", (4096, 65536)),
                        ("LONG_BYTES", (1 << 18, 1 << 18))):
        monkeypatch.setattr(links, name, sizes)
    monkeypatch.setattr(calibrate, "SHARED_S", 0.005)


def test_alternating_search_and_measurement_agree_on_every_rank(ranks: World, brief: None) -> None:
    if ranks.size > 4:
        pytest.skip("many ranks share few cores")
    spec = NetworkSpec("mlp", (1, 8, 8), 10)

    def search(machine: Machine) -> list[Candidate]:
        assert ranks.rank == 0, "the others wait"
        return best(spec.build(), spec, ranks.size, 4 * ranks.size, machine)

    calibration = calibrate.Calibration(ranks, NumpyBackend(), "m", lambda _: None)
    machine, choice = calibrate_for_auto(calibration, search, 1e4)
    assert choice.stands and choice.measured == len(machine.compute) > 0
    assert len({str(each) for each in ranks.comm.allgather((files.to_dict(machine), choice))}) == 1


@pytest.mark.parametrize("nodes", [1, 2])
def test_every_rank_gets_the_same_calibration(nodes: int, ranks: World,
                                              monkeypatch: pytest.MonkeyPatch, brief: None) -> None:
    """On one node, and on two by the hosts' names: every rank has the same levels, with the same
    figures, and the same plan.
    """
    if ranks.size % nodes or ranks.size > 6:
        pytest.skip("unequal nodes" if ranks.size % nodes else "many ranks share few cores")
    local = ranks.size // nodes
    monkeypatch.setattr(World, "hostname", property(lambda w: f"node{w.rank // local}"))
    plan = make_plan(NetworkSpec("mlp", (1, 8, 8), 10), "data", ranks.size, 2 * ranks.size,
                     machine=files.load("local"))
    said: list[str] = []
    machine = calibrate.Calibration(ranks, NumpyBackend(), "m", said.append).measure([plan])
    assert any("about" in line for line in said) and sum("round" in line for line in said) >= 3
    names = [(name, holds) for name, holds, size in (("node", local if nodes > 1 else 0, local),
                                                     ("network", 0, nodes)) if size > 1]
    if names:
        assert [(level.name, level.ranks) for level in machine.levels] == names
        assert [q["level"] for q in machine.quality["links"]] == [name for name, _ in names]
    for level, sure in zip(machine.levels, machine.quality["links"], strict=False):
        assert level.alpha_s > 0 and level.beta_s_per_byte > 0
        assert sure["beta_s_per_byte"][0] <= sure["beta_s_per_byte"][1] and sure["samples"] > 0
        assert 0 <= level.links <= local
    # whatever the hosts' names: all ranks are on the cores of this machine
    shared = ranks.size > len(os.sched_getaffinity(0))
    assert ("share" in machine.caution(ranks.size)) == shared
    assert {c.level for c in machine.collectives} == {name for name, _ in names}
    assert price(plan.network.build(), plan, machine).measured_compute == 1.0
    assert machine.quality["origin"]["nodes"] == "node#" and files.from_dict(
        files.to_dict(machine)) == machine
    assert len({str(each) for each in ranks.comm.allgather(files.to_dict(machine))}) == 1


class FixedTimer:
    """A timer that always returns the given time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = self.once_s = seconds
        self.samples: list[float] = []


def test_collectives_are_priced_as_measured(ranks: World) -> None:
    if ranks.size == 1:
        pytest.skip("one rank has no links")
    rng = np.random.default_rng(ranks.size)
    config = Config(n=ranks.size)
    steps = links.Steps(Communicator(ranks, NumpyBackend()))
    level = links.LevelProbe(steps, config, "n", "node", 0, 1,
                             lambda action: FixedTimer(float(rng.uniform(1e-6, 1e-3))))
    plain = replace(files.load("local"), levels=(level.fit().level,))
    way = route(NetworkModel(replace(plain, collectives=tuple(level.factors(plain, ranks.size)))),
                [config.mesh_axes["n"]], ranks.size)
    for (kind, algorithm), timers in level.collectives.items():
        for n_bytes, timer in zip(level.buffers, timers, strict=True):
            whole = n_bytes // (4 * ranks.size) * 4 * ranks.size  # blocks of one size
            assert collective_s(kind, algorithm, whole, 1, way) == pytest.approx(timer.seconds)


def test_direct_movements_are_priced_as_measured(ranks: World) -> None:
    """Among the ranks of one node, and between two nodes."""
    if ranks.size == 1:
        pytest.skip("one rank has no links")
    rng = np.random.default_rng(ranks.size)
    steps = links.Steps(Communicator(ranks, NumpyBackend()))
    plain = files.load("local") if ranks.size % 2 else files.load("p100x4x4")
    plain = replace(plain,
                    levels=(replace(plain.levels[0], name="node", ranks=2),
                            replace(plain.levels[-1], name="network", ranks=0)))
    places = [("c", "node", 1, ranks.size)] if ranks.size % 2 else [
        ("c", "node", ranks.size // 2, 2), ("n", "network", ranks.size // 2, 2)]
    for axis, name, nodes, local in places:
        if (local if axis == "c" else nodes) == 1:
            continue
        machine = plain if ranks.size % 2 == 0 else replace(plain,
                                                            levels=(replace(plain.levels[0],
                                                                            ranks=0),))
        told = P2pProbe(steps, axis, name, nodes, local,
                         lambda action: FixedTimer(float(rng.uniform(1e-6, 1e-3))))
        network_model = NetworkModel(replace(machine, collectives=tuple(told.factors(machine))))
        for kind, moved in told.moved.items():
            assert len(moved) == len(MESSAGES)
            for source, destination, timer in moved:
                step = Comm(Phase.FORWARD, "probe", links.PROBED, replace(NOTHING, kind=kind),
                            source, destination, 4)
                found = (halo if kind is Kind.HALO
                         else redistribution)(step, network_model, ranks.size)
                assert float(found.seconds) == pytest.approx(timer.seconds), (kind, axis)
                assert network_model.machine.levels[int(found.level)].name == name
                # the stated bytes are the bytes on the wire
                action = steps.blocking(steps.direct(kind, source, destination))
                steps.communicator.trace.clear()
                action()
                assert ranks.max(sum(steps.communicator.trace.sent_bytes.values())) == int(
                    found.items) * 4
