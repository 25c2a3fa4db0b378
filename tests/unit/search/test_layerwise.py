"""The layer-wise search: the optimum of its space, memory limits, comparison with named strategies.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcpar.cli.main import main
from hpcpar.cost.compute.step_time import roofline_s
from hpcpar.cost.compute.work import Workload
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.network import builtin
from hpcpar.network.builder import Chain, Graph
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    Add,
    Conv2d,
    Flatten,
    GlobalAvgPool,
    Linear,
    ReLU,
    SoftmaxCrossEntropy,
)
from hpcpar.plan.config import Config
from hpcpar.plan.plan import NetworkSpec, load
from hpcpar.plan.strategies import entry_of, parse
from hpcpar.prediction.price import price
from hpcpar.schedule.steps import Compute
from hpcpar.search import auto, table_search
from hpcpar.search.candidates import priced
from hpcpar.search.layerwise import plan_layerwise
from hpcpar.search.table_search import Search
from tests.strategies import named


def chain() -> Network:
    """A convolution and two linear layers: images worth cutting, and weights not worth summing."""
    net = Chain("chain", (3, 16, 16))
    net.add(Conv2d, "conv1", out_channels=8, kernel=(3, 3), padding=(1, 1)).add(ReLU, "relu1").add(
        Flatten, "flatten"
    )
    return (net.add(Linear, "fc1", out_features=256)
            .add(Linear, "fc2", out_features=10)
            .add(SoftmaxCrossEntropy, "loss")
            .build())


def residual() -> Network:
    """One block around which an edge leads."""
    net = Graph("block", (3, 8, 8))
    x = net.add(Conv2d, "stem", out_channels=16, kernel=(3, 3), padding=(1, 1))
    y = net.add(Conv2d, "conv", out_channels=16, kernel=(3, 3), padding=(1, 1))
    net.add(Add, "sum", after=(x, y))
    net.add(GlobalAvgPool, "pool")
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()


@cache
def network(name: str) -> Network:
    return {"chain": chain, "block": residual}.get(name, lambda: builtin.network(name))()


def spec(net: Network) -> NetworkSpec:
    return NetworkSpec(net.name, net.image_shape, net.classes)


def load_machine(name: str) -> Machine:
    """A preset, or one with two ranks per node, where few ranks have two placements."""
    if name != "nodes of two":
        return files.load(name)
    machine = files.load("p100x4x4")
    node, network = machine.levels
    return replace(machine, levels=(replace(node, ranks=2), network))


def search(name: str, ranks: int, batch: int, machine: str, few: int = 10**9,
           **options: Any) -> Search:
    """A search that prunes spaces of more than `few` configurations."""
    net = network(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_search, "FULL_TABLES_UP_TO", few)
        patch.setattr(table_search, "NEARLY_ALL", 1.0)  # also where it leaves out a few only
        return Search(net, spec(net), ranks, batch, load_machine(machine), **options)


def names(ranks: int, machine: Machine) -> list[str]:
    """The named strategies of the space, in all placements."""
    plain = [s for s in named(ranks) if not entry_of(s).apart]
    mixed = [s for s in plain if (grid := parse(s)[1]) is not None and 1 not in grid]
    return plain + [f"{s}/outer" for s in mixed if len(machine.levels) > 1]


def everything(found: Search) -> tuple[Any, Any]:
    """Seconds and bytes of every plan of the space, with one axis per unit."""
    size = len(found.units)
    out = []
    for field in ("seconds", "bytes"):
        total: Any = 0.0
        for i, t in enumerate(found.tables.nodes):
            total = total + getattr(t, field).reshape([-1 if j == i else 1 for j in range(size)])
        for (a, b), t in found.tables.edges.items():
            values = getattr(t, field)
            total = total + values.reshape(
                [values.shape[0] if j == a else values.shape[1] if j == b else 1
                 for j in range(size)]
            )
        out.append(total)
    return out[0], out[1]


SMALL = [("chain", 2, 8, "local"), ("chain", 4, 64, "p100x4x4"), ("chain", 4, 64, "nodes of two"),
         ("block", 2, 4, "k80x16"), ("block", 4, 2, "abci-v100"), ("block", 4, 4, "nodes of two")]


# -- the optimum -----------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "ranks", "batch", "machine"), SMALL)
def test_the_optimum_of_every_combination(name: str, ranks: int, batch: int, machine: str) -> None:
    found = search(name, ranks, batch, machine)
    seconds, held = everything(found)
    assert seconds.size == np.prod([float(len(u.space)) for u in found.units]) > 1000
    best = found.best()
    assert best.exact and (best.objective_s,
                           best.bound_s) == (pytest.approx(seconds.min(), rel=1e-12),) * 2
    p = price(network(name), best.plan, load_machine(machine))
    assert (p.compute_s + p.communication_s == pytest.approx(best.objective_s, rel=1e-9)
            and p.memory_bytes <= best.bytes)
    assert best.configurations == best.kept == sum(len(u.space) for u in found.units)
    least = found.smallest()
    assert least.bytes == held.min()


def test_an_exact_plan_is_the_fastest_of_its_space_only() -> None:
    """Layers use all ranks, or a number that divides them; two of three ranks may be faster."""
    net = Chain("wide", (1, 256, 256)).add(Flatten, "flatten").add(Linear, "fc", out_features=2)
    wide, machine = net.add(SoftmaxCrossEntropy, "loss").build(), load_machine("local")
    found = Search(wide, NetworkSpec("wide", (1, 256, 256), 2), 3, 2, machine)
    best = found.best()
    two = Config(n=2)
    assert all(unit.space.find(two) is None for unit in found.units)

    def sum_s(configs: Iterable[Config]) -> float:
        names = [layer.name for layer in wide.layers]
        plan = replace(best.plan, configs=dict(zip(names, configs, strict=True)))
        p = price(wide, plan, machine)
        return p.compute_s + p.communication_s

    allowed = [Config(**{axis: 3}) for axis in ("h", "w", "k")] + [Config()]
    sums = []
    for configs in itertools.product(allowed, repeat=len(wide.layers)):
        with suppress(InputError):
            sums.append(sum_s(configs))
    assert best.exact and best.objective_s == pytest.approx(min(sums), rel=1e-9)
    assert sum_s((two, two, Config(c=2), two)) < 0.95 * best.objective_s


@pytest.mark.parametrize(("name", "ranks", "batch", "machine"), SMALL)
def test_the_optimum_within_a_memory_limit(name: str, ranks: int, batch: int, machine: str) -> None:
    """Exact where it says so; else it fits and lies between the bound and twice the true optimum's
    distance from it.
    """
    found = search(name, ranks, batch, machine)
    seconds, held = everything(found)
    fastest = found.best(1e30)
    low, high = float(held.min()), fastest.bytes
    exact = 0
    for part in (0.0, 0.1, 0.3, 0.5, 0.9, 1.0):
        limit = low + part * (high - low)
        best = found.best(limit)
        optimum = float(seconds[held <= limit].min())
        assert best.bytes <= limit
        assert best.bound_s <= optimum * (1 + 1e-9) and optimum <= best.objective_s * (1 + 1e-9)
        assert not best.exact or best.objective_s == pytest.approx(optimum, rel=1e-8)
        exact += best.exact
    assert exact >= 5
    assert found.best(high).exact and found.best(high).objective_s == fastest.objective_s


def test_the_smallest_plan_is_returned_if_nothing_fits() -> None:
    found = search("chain", 4, 64, "p100x4x4")
    held = everything(found)[1]
    best = found.best(float(held.min()) - 1)
    assert best.bytes == held.min() and not best.exact and best.bound_s == 0.0


def test_the_memory_limit_defaults_to_the_device() -> None:
    found = search("chain", 2, 8, "local")
    assert found.best().plan.configs == found.best(found.machine.device.memory_bytes).plan.configs


@pytest.mark.parametrize(
    ("name", "ranks", "batch", "machine"),
    [("chain", 4, 64, "p100x4x4"), ("block", 4, 2, "abci-v100"), ("lenet5", 8, 32, "p100x4x4"),
     ("lenet5", 6, 6, "k80x16"), ("alexnet", 4, 128, "p100x4x4"), ("alexnet", 8, 256, "k80x16")],
)
def test_pruning_keeps_the_optimum(name: str, ranks: int, batch: int, machine: str) -> None:
    whole, pruned = (search(name, ranks, batch, machine).best(1e30),
                     search(name, ranks, batch, machine, few=0).best(1e30))
    assert pruned.objective_s == pytest.approx(whole.objective_s, rel=1e-12)
    assert pruned.kept < whole.kept == whole.configurations == pruned.configurations


def test_pruning_keeps_plans_that_fit() -> None:
    """A limit between the least memory of the whole space and the fastest plan's memory."""
    whole, pruned = search("lenet5", 8, 16, "p100x4x4"), search("lenet5", 8, 16, "p100x4x4", few=32)
    for part in (0.0, 0.1, 0.3):
        low = whole.smallest().bytes
        limit = low + part * (whole.best(1e30).bytes - low)
        a, b = whole.best(limit), pruned.best(limit)
        assert a.bytes <= limit and b.bytes <= limit
        assert b.bound_s <= a.objective_s * (1 + 1e-9)


def test_pruning_keeps_the_optimum_with_hidden_sums() -> None:
    whole, pruned = search("lenet5", 16, 64, "k80x16"), search("lenet5", 16, 64, "k80x16", few=32)
    assert pruned.best(1e30, hidden=1.0).bound_s == pytest.approx(
        whole.best(1e30, hidden=1.0).bound_s, rel=1e-12
    )


def test_the_papers_objective_is_never_worse_than_a_named_strategys() -> None:
    """Without overlap, every named strategy is a point of the space."""
    machine = files.load("p100x4x4")
    for name, ranks in (("lenet5", 4), ("lenet5", 8), ("alexnet", 2)):
        net = network(name)
        best = search(name, ranks, 32 * ranks, "p100x4x4").best(1e30)
        wanted = auto.task(net, spec(net), ranks, 32 * ranks, machine, overlap="none")
        others = priced(wanted, names(ranks, machine))
        assert all(best.objective_s <= c.iteration_s * (1 + 1e-12) for c in others)
        assert any(best.objective_s < c.iteration_s for c in others)


# -- plans -----------------------------------------------------------------------------------------
def test_sharded_weights_exclude_cut_reductions() -> None:
    found = search("lenet5", 4, 32, "local", synchronization="sharded")
    assert all((unit.space.config().k == 1).all() for unit in found.units)
    assert any(np.max(unit.space.config().k) > 1 for unit in search("lenet5", 4, 32, "local").units)


def test_options_reach_the_plan() -> None:
    found = search("lenet5", 2, 8, "local", precision="fp64", synchronization="sharded").best()
    assert (found.plan.dtype, found.plan.synchronization, found.plan.strategy) == (
        "float64", "sharded", "layerwise",
    )
    assert set(found.plan.configs) == {layer.name for layer in network("lenet5").layers}


def test_hidden_sums_of_gradients_are_not_counted() -> None:
    """With all sums hidden, the optimum is the one of the tables without sums."""
    found = search("chain", 4, 64, "p100x4x4")
    seconds, _ = everything(found)
    free = sum(
        np.asarray(t.hideable).reshape([-1 if j == i else 1 for j in range(len(found.units))])
        for i, t in enumerate(found.tables.nodes)
    )
    for share in (0.5, 1.0):
        hidden = found.best(1e30, hidden=share)
        assert hidden.bound_s == pytest.approx((seconds - share * free).min(), rel=1e-12)
        assert hidden.objective_s >= found.best(1e30).objective_s * (1 - 1e-12)


# -- against named strategies ----------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "ranks", "machine", "options"),
    [("lenet5", 2, "abci-v100", {}), ("lenet5", 4, "k80x16", {"overlap": "gradient"}),
     ("lenet5", 8, "p100x4x4", {}), ("lenet5", 16, "local", {"overlap": "none"}),
     ("alexnet", 2, "local", {}), ("alexnet", 8, "k80x16", {"overlap": "none"}),
     ("vgg16", 2, "p100x4x4", {}), ("alexnet", 16, "p100x4x4", {})],
)
def test_never_worse_than_a_named_strategy(name: str, ranks: int, machine: str,
                                           options: dict[str, Any]) -> None:
    net, batch = network(name), 16 * ranks
    chosen, found = auto.named_or_layerwise(net, spec(net), ranks, batch, files.load(machine),
                                            **options)
    others = [c for c in priced(chosen.task, names(ranks, files.load(machine))) if c.parts <= batch]
    assert others and all(
        (not chosen.fits, chosen.iteration_s) <= (not c.fits, c.iteration_s * (1 + 1e-12))
        for c in others
    )
    assert chosen.strategy == "layerwise" and chosen.plan.strategy == "layerwise"
    assert chosen.iteration_s == pytest.approx(
        price(net, chosen.plan, files.load(machine)).iteration_s, rel=1e-12
    )
    assert found.eliminations.kept == 2


def test_the_best_of_all_includes_the_layer_wise_plan() -> None:
    net, machine = network("lenet5"), files.load("p100x4x4")
    found = auto.best(net, spec(net), 2, 128, machine)
    assert sum(c.strategy == "layerwise" for c in found) == 1
    assert "layerwise" not in {
        c.strategy for c in auto.best(net, spec(net), 2, 128, machine, layers=False)
    }
    assert [c.iteration_s for c in found if c.fits] == sorted(
        c.iteration_s for c in found if c.fits
    )


# -- the command -----------------------------------------------------------------------------------
def test_the_command_prints_json_and_writes_the_plan(capsys: pytest.CaptureFixture[str],
                                                     tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    args = ["plan", "--network", "lenet5", "--ranks", "4", "--batch", "64", "--strategy",
            "layerwise", "-o", str(path)]
    assert main([*args, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["search"]) == {"objective_s", "bound_s", "overlap_bound_s", "exact",
                                    "configurations", "kept_configurations", "node_eliminations",
                                    "edge_eliminations", "K", "table_s", "search_s"}
    assert (found["search"]["exact"]
            and found["search"]["K"] == 2
            and found["search"]["edge_eliminations"] == 0)
    assert found["search"]["objective_s"] >= found["search"]["bound_s"] > 0
    assert found["strategy"] == "layerwise" and found["alternatives"]
    plain, ratio = {"strategy", "iteration_s", "fits"}, {"ratio", "ratio_low", "ratio_high"}
    assert all(set(a) in (plain, plain | ratio) for a in found["alternatives"])
    assert {"data", "filter", "owt"} <= {a["strategy"] for a in found["alternatives"]}
    assert found["iteration_s"] > 0
    plan = load(str(path))
    assert plan.strategy == "layerwise"
    assert main(["predict", "--plan", str(path), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["iteration_s"], again["layers"]) == (found["iteration_s"], found["layers"])
    assert main(args) == 0
    shown = "".join(capsys.readouterr())
    assert ("layer-wise search: " in shown
            and "eliminations leave K = 2" in shown
            and f"wrote {path}" in shown)


def test_a_residual_network_is_searched(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["plan", "--network", "tests.unit.search.test_tables:residual", "--machine", "p100x4x4",
            "--ranks", "4", "--batch", "4"]
    assert main([*args, "--overlap", "none", "--strategy", "layerwise", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["search"]["K"], found["search"]["edge_eliminations"]) == (2, 2)
    assert found["search"]["objective_s"] == pytest.approx(found["search"]["bound_s"], rel=1e-12)


def test_a_calibrated_machine_offers_measured_configurations() -> None:
    """Measured times ten times a roofline's: configurations that were not measured look fast, and
    are left alone.
    """
    machine, net = files.load("local"), network("lenet5")
    wanted = auto.task(net, spec(net), 4, 16, machine, overlap="none")
    table = {}
    for candidate in priced(wanted, named(4)):
        load = Workload(net, candidate.plan)
        for step in schedule_for(net, candidate.plan).steps:
            if isinstance(step, Compute):
                work = load.of(step)
                table[work.key] = 10 * float(roofline_s(machine, replace(work, fraction=1.0)))
    calibrated = replace(machine, compute=table)
    problem = auto.task(net, spec(net), 4, 16, calibrated, overlap="none")
    best = plan_layerwise(problem).candidate
    assert best.prediction.measured_compute == pytest.approx(1.0)
    others = priced(problem, names(4, calibrated))
    assert best.iteration_s <= min(c.iteration_s for c in others) * (1 + 1e-12)
