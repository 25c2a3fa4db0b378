"""Lower bounds: no pipeline or plan is faster, and none that would be chosen is excluded."""

from __future__ import annotations

import numpy as np
import pytest

from hpcpar.api.options import PlanningOptions
from hpcpar.machine import files
from hpcpar.network.builtin import NETWORKS
from hpcpar.plan.plan import NetworkSpec
from hpcpar.plan.strategies import entry_of
from hpcpar.search import auto
from hpcpar.search.candidates import microbatches_tried, priced
from hpcpar.search.layerwise import plan_layerwise
from hpcpar.search.pipelines import maybe_faster
from hpcpar.search.task import PlanningTask
from tests.unit.search import test_tables


def task(name: str, ranks: int, batch: int, machine: str, **options: object) -> PlanningTask:
    if name == "residual":
        net = test_tables.residual()
        spec = NetworkSpec("tests.unit.search.test_tables:residual", net.image_shape, net.classes)
    else:
        spec = NetworkSpec(name, *NETWORKS[name][1:])
        net = spec.build()
    return auto.task(net, spec, ranks, batch, files.load(machine),
                     **PlanningOptions(**options).planning(net))


@pytest.mark.parametrize("name", ["lenet5", "residual", "alexnet"])
@pytest.mark.parametrize(("ranks", "batch", "machine", "options"), [
    (4, 64, "local", {}), (6, 100, "abci-v100", {"order": "1f1b"}),
    (8, 256, "k80x16", {"overlap": "none"}), (12, 96, "cori-knl", {"recompute": 2}),
    (8, 30, "h100x8", {"microbatches": 3}), (4, 5, "p100x4x4", {}),
])
def test_no_pipeline_is_faster_than_its_bound(name: str, ranks: int, batch: int, machine: str,
                                              options: dict[str, object]) -> None:
    wanted = task(name, ranks, batch, machine, **options)
    names = [s for s in auto.strategies_to_try(wanted.network, ranks, wanted.machine)
             if s.startswith("pipeline")]
    assert names
    for found in priced(wanted, names):
        assert maybe_faster(wanted, [found.strategy], found.iteration_s) == [found.strategy]
        assert found.plan.microbatches in microbatches_tried(wanted, found.strategy)


def test_the_bound_is_at_least_half_the_time_of_a_compute_bound_pipeline() -> None:
    wanted = task("alexnet", 4, 4096, "h100x8")
    (found,) = priced(wanted, ["pipeline:2x2"])
    assert maybe_faster(wanted, ["pipeline:2x2"], 0.5 * found.iteration_s) == []


def test_auto_skips_pipelines_that_cannot_win(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = task("alexnet", 5, 128, "p100x4x4")
    arguments = (wanted.network, wanted.spec, 5, 128, wanted.machine)
    found = auto.best(*arguments, gather=wanted.gather, **wanted.options)
    monkeypatch.setattr(auto, "maybe_faster", lambda task, strategies, fastest_s: strategies)
    every = auto.best(*arguments, gather=wanted.gather, **wanted.options)
    assert len(found) < len(every)
    assert (found[0].strategy, found[0].iteration_s) == (every[0].strategy, every[0].iteration_s)
    left_out = [c for c in every if c.strategy not in {kept.strategy for kept in found}]
    assert all(c.strategy.startswith("pipeline") for c in left_out)
    assert np.all([c.iteration_s > found[0].iteration_s for c in left_out])


@pytest.mark.parametrize("name", ["lenet5", "residual", "alexnet"])
@pytest.mark.parametrize(("ranks", "batch", "machine"), [
    (4, 64, "local"), (8, 256, "k80x16"), (6, 96, "abci-v100"),
])
@pytest.mark.parametrize("overlap", ["none", "gradient", "full"])
def test_no_plan_of_the_layer_wise_space_is_faster_than_its_bound(
        name: str, ranks: int, batch: int, machine: str, overlap: str) -> None:
    wanted = task(name, ranks, batch, machine, overlap=overlap)
    best, found, _ = plan_layerwise(wanted)
    others = priced(wanted, [s for s in auto.strategies_to_try(wanted.network, ranks,
                                                               wanted.machine)
                             if not entry_of(s).apart])
    fastest_s = min(c.iteration_s for c in [best, *others])
    assert 0.2 * fastest_s < found.overlap_bound_s <= fastest_s
