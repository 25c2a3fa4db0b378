"""A family of plans priced at once costs in each case what the plan costs alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pytest

from hpcpar.cost.compute.work import Workload
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.cost.price_family import Costs, price_family
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.plan.strategies import fill, together
from hpcpar.plan.strategy import STRATEGIES
from hpcpar.prediction.prediction import Prediction
from hpcpar.schedule.steps import Compute
from hpcpar.search.searches import SEARCHES
from tests.mpi.zoo import globe
from tests.unit.closed import price

ALEXNET = NetworkSpec("alexnet", (3, 99, 99), 1000)
RESNET = NetworkSpec("resnet50", (3, 64, 64), 1000)
LENET = NetworkSpec("lenet5", (1, 28, 28), 10)
NETWORKS: dict[str, Network] = {spec.name: spec.build() for spec in (ALEXNET, RESNET, LENET)}
NETWORKS["globe"] = globe()
GLOBE = NetworkSpec("globe", NETWORKS["globe"].image_shape, 5)
#: Strategies whose schedule has the same layers and fc_passes for any number of ranks.
NAMES = [name for name, entry in STRATEGIES.items()
         if not (entry.apart or name in SEARCHES)]
#: Channel, image or sample parts by sample or channel parts; uneven, on one node and on several, on
#: several racks.
Grids = list[tuple[int, int]]
GRIDS: list[Grids] = [[(1, 1)], [(3, 2), (1, 6), (6, 1)], [(4, 4), (8, 2)], [(17, 8), (4, 34)]]
FEW: list[Grids] = [[(3, 2), (2, 3)], [(17, 8), (4, 34)]]
MIDDLE: list[Grids] = [[(4, 4), (8, 2)]]


@dataclass(frozen=True)
class Setting:
    """The machine and the options of a price."""

    machine: Machine
    placement: str = "inner"
    gather: str = "lazy"
    accounting: str = "schedule"
    overlap: str = "full"
    collectives: str = "auto"


SETTINGS = [
    Setting(files.load("abci-v100")),
    Setting(files.load("p100x4x4"), "outer", "eager", overlap="gradient"),
    Setting(files.load("cori-knl"), gather="eager", accounting="paper", overlap="none"),
    Setting(files.load("abci-v100"), "outer", accounting="paper", overlap="none",
            collectives="tree"),
    Setting(files.load("h100x8"), collectives="ring"),
]
IDS = ["abci", "p100", "cori", "abci-tree", "h100-ring"]


def alone(spec: NetworkSpec, name: str, grid: tuple[int, int], setting: Setting,
          **options: Any) -> Plan:
    """The plan of one case, with a mini-batch that does not divide evenly."""
    ranks = grid[0] * grid[1]
    configs = fill(NETWORKS[spec.name], name, ranks, grid, setting.gather, setting.placement)
    return Plan(spec, ranks, 4 * ranks + ranks % 5, name, configs, overlap=setting.overlap,
                collectives=setting.collectives, machine=setting.machine, **options)


def same(costs: Costs, i: int, count: int, p: Prediction) -> None:
    """Case `i` of a family's costs equals a plan's own price."""

    def pick(value: Any) -> float:
        return float(np.broadcast_to(value, count)[i])

    for field in ("iteration_s", "compute_s", "communication_s", "exposed_communication_s",
                  "measured_compute", "io_s"):
        assert pick(getattr(costs, field)) == pytest.approx(getattr(p, field), rel=1e-12,
                                                            abs=1e-300), (field, i)
    bound = {field: pick(value) for field, value in asdict(costs.memory).items()}
    assert all(bound[field] >= value for field, value in asdict(p.memory).items()), i


def check(spec: NetworkSpec, name: str, families: list[Grids], setting: Setting,
          price_options: dict[str, Any] | None = None,
          **options: Any) -> None:
    for grids in families:
        check_grids(spec, name, grids, setting, price_options, **options)


def check_grids(spec: NetworkSpec, name: str, grids: Grids, setting: Setting,
                price_options: dict[str, Any] | None = None, **options: Any) -> None:
    """All grids at once cost what each costs alone."""
    network = NETWORKS[spec.name]
    how = {"accounting": setting.accounting} | (price_options or {})
    plans = [alone(spec, name, grid, setting, **options) for grid in grids]
    family = replace(plans[0], configs=together([plan.configs for plan in plans]))
    costs = price_family(network, family, setting.machine, **how)
    for i, plan in enumerate(plans):
        same(costs, i, len(grids), price(network, plan, setting.machine, **how))
        bound = asdict(price_family(network, plan, setting.machine, **how).memory)
        for field, value in asdict(costs.memory).items():
            assert np.broadcast_to(value, len(grids))[i] == bound[field], (field, i)


@pytest.mark.parametrize("name", NAMES)
def test_every_strategy(name: str) -> None:
    check(ALEXNET, name, GRIDS, SETTINGS[0])


@pytest.mark.parametrize("setting", SETTINGS[1:], ids=IDS[1:])
@pytest.mark.parametrize("name", ["channel", "domain", "ds", "grid-fc"])
def test_every_setting(name: str, setting: Setting) -> None:
    check(ALEXNET, name, FEW, setting)


@pytest.mark.parametrize("name", ["grid", "domain", "ds", "filter"])
def test_communication_that_is_hidden_in_part(name: str) -> None:
    machine = replace(SETTINGS[0].machine, overlap=0.3, progress=0.5)
    check(ALEXNET, name, FEW, replace(SETTINGS[0], machine=machine))


@pytest.mark.parametrize("name", ["grid", "domain"])
def test_micro_batches_of_two_sizes(name: str) -> None:
    check(ALEXNET, name, FEW, SETTINGS[0], microbatches=3)


@pytest.mark.parametrize(("name", "setting"),
                         [(name, SETTINGS[i % 3]) for i, name in enumerate(NAMES)], ids=NAMES)
def test_resnet50(name: str, setting: Setting) -> None:
    """A graph with sums of several layers, and batch normalization."""
    check(RESNET, name, MIDDLE, setting)


@pytest.mark.parametrize("name", ["spatial", "ds", "domain", "grid"])
def test_periodic_padding(name: str) -> None:
    check(GLOBE, name, FEW, SETTINGS[1])


@pytest.mark.parametrize("options", [
    {"synchronization": "sharded"}, {"synchronization": "server"},
    {"synchronization": "server-host"}, {"batch_norm": "local"},
    {"precision": "fp64"},
], ids=str)
def test_options_of_plans(options: dict[str, Any]) -> None:
    for name in ("grid", "ds"):
        check(RESNET if "batch_norm" in options else LENET, name, MIDDLE, SETTINGS[1], **options)


@pytest.mark.parametrize("options", [
    {"contention": 2.5}, {"gamma": 0.4}, {"training": False},
    {"io_bytes_per_s": 1e7, "io_item_bytes": 2.0},
], ids=str)
def test_options_of_prices(options: dict[str, Any]) -> None:
    for name in ("grid", "domain"):
        check(LENET, name, GRIDS, SETTINGS[0], options)


def test_every_case_finds_its_measured_times() -> None:
    """A calibrated table that holds the work of one case: only that case is measured."""
    setting, (a, b) = SETTINGS[0], (3, 2)
    network, plan = NETWORKS["lenet5"], alone(LENET, "grid", (a, b), SETTINGS[0])
    load = Workload(network, plan)
    table = {load.of(s).key: 1e-3 for s in schedule_for(network, plan).steps
             if isinstance(s, Compute)}
    known = replace(setting, machine=replace(setting.machine, compute=table))
    check_grids(LENET, "grid", [(a, b), (1, 6), (2, 3)], known)
    both = together([plan.configs, alone(LENET, "grid", (1, 6), known).configs])
    costs = price_family(network, replace(plan, configs=both), known.machine)
    assert costs.measured_compute[0] == 1.0 > costs.measured_compute[1]


def test_large_buffers_do_not_overflow() -> None:
    """Bytes beyond 32 bits: VGG-16's first fully connected layer on a thousand ranks, plain numbers
    and arrays alike.
    """
    spec = NetworkSpec("vgg16", (3, 224, 224), 1000)
    network, machine = spec.build(), files.load("abci-v100")
    seconds = {}
    for ranks in (64, 1024, 65536):
        plain = Plan(spec, ranks, 2 * ranks, "data", fill(network, "data", ranks),
                     collectives="tree", machine=machine)
        array = replace(plain, configs=together([plain.configs]))
        p, costs = price(network, plain, machine), price_family(network, array, machine)
        same(costs, 0, 1, p)
        seconds[ranks] = p.communication_s
        assert p.communication_bytes > 4 * network.parameters
    assert 0 < seconds[64] < seconds[1024] < seconds[65536]


def test_accumulated_gradients() -> None:
    """Micro-batches without stages: every case has the same number of them."""
    check(LENET, "grid", FEW, SETTINGS[0], microbatches=2)
