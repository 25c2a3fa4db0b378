"""Any network under any plan equals the serial run: outputs, gradients, weights, running
statistics, and trace equals schedule.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import World, world
from hpcpar.kernels import backend
from hpcpar.machine.files import load
from hpcpar.network.layers.base import axes_of
from hpcpar.plan.boxes import local
from hpcpar.plan.channel_cuts import integrated
from hpcpar.plan.config import Config
from hpcpar.plan.plan import NetworkSpec, Overlap, PipelineOrder, Plan
from hpcpar.plan.strategies import GATHERS, configurations, plan_options
from hpcpar.plan.strategy import StrategyRequest, grid_sizes
from hpcpar.runtime.executor import Executor
from hpcpar.schedule.lower import lower
from hpcpar.search.auto import price_named
from hpcpar.search.first_layers import switches
from hpcpar.train import global_tensors
from tests.mpi.comparison import CHOOSERS, check, facts
from tests.mpi.networks import FIXED, MORE, graph_seeds
from tests.mpi.plans import random_plan, staged_plan
from tests.mpi.skips import CUTS, skip_plan

P = world().size
#: Random (network, plan) pairs on this number of ranks: on all together more than 200, some of them
#: of one network.
COUNT = {1: 26, 2: 38, 3: 34, 4: 24, 6: 10, 8: 6}.get(P, 6)
NAMES = [f"graph-{seed}" for seed in graph_seeds(100 * P, COUNT)]
#: As many ranks share few cores, not every built-in network on each number of ranks.
BUILT_IN = MORE if P <= 4 else MORE[1 - P % 4 // 2 :: 2]
CHAINS = [f"random-{seed}" for seed in range(5000 + 100 * P, 5000 + 100 * P + COUNT // 2)]
UNETS = [f"unet-{seed}" for seed in range(100 * P, 100 * P + COUNT // 2)]


def algorithms(number: int) -> str:
    return list(CHOOSERS)[number % len(CHOOSERS)]


@pytest.mark.parametrize("name", [*NAMES, *CHAINS])
def test_random_plans_train_as_one_rank(name: str, communicator: Communicator) -> None:
    number = int(name.split("-")[1])
    given = facts(name)
    plan = random_plan(given.network, given.batch, P, np.random.default_rng([number, P]))
    check(name, plan, algorithms(number), communicator, "random plan", 2)


@pytest.mark.parametrize("name", UNETS)
def test_random_unets_train_as_one_rank(name: str, communicator: Communicator) -> None:
    """Transposed convolutions, interpolation, padding of all kinds and a loss over pixels."""
    number = int(name.split("-")[1])
    given = facts(name)
    rng = np.random.default_rng([number, P, 25])
    check(name, random_plan(given.network, given.batch, P, rng), algorithms(number), communicator,
          "random plan", 2)


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_networks_train_as_one_rank(name: str, communicator: Communicator) -> None:
    given = facts(name)
    for k in range(2 if P <= 3 else 1):
        plan = random_plan(given.network, given.batch, P, np.random.default_rng([k, P, len(name)]))
        check(name, plan, algorithms(k), communicator, f"random plan {k}", 2)


@pytest.mark.parametrize("options", [{}, {"overlap": "full", "recompute": 2},
                                     {"microbatches": 2, "overlap": "gradient"}], ids=str)
@pytest.mark.parametrize(("name", "axis"), [*(("globe", a) for a in "hw"),
                                            *(("cosmos", a) for a in "dhw"), ("signals", "w")])
def test_cut_periodic_images_train_as_one_rank(name: str, axis: str, options: dict[str, Any],
                                               communicator: Communicator) -> None:
    """More ranks than some images have rows, too."""
    network, batch = facts(name).network, facts(name).batch
    spec = NetworkSpec(network.name, network.image_shape, network.classes)
    cut = {name: axis if axis in axes_of(shape) else "n" for name, shape in network.shapes.items()}
    configs = {name: Config(**{along: P}) for name, along in cut.items()}
    plan = Plan(spec, P, batch, "random", configs, precision="fp64", **options)
    check(name, plan, "ring", communicator, f"{axis} cut", 2)


@pytest.mark.parametrize("overlap", Overlap)
@pytest.mark.parametrize("gather", GATHERS)
def test_grouped_convolutions_train_as_one_rank(gather: str, overlap: Overlap,
                                                communicator: Communicator) -> None:
    """Several ranks share a group, or a rank has parts of both groups."""
    given = facts("groups")
    spec = NetworkSpec(given.network.name, given.network.image_shape, given.network.classes)
    for k, (rows, columns) in enumerate(grid_sizes(P)):
        strategy = f"grid:{rows}x{columns}" + "/outer" * (k % 2)
        plan = Plan(spec, P, given.batch, strategy,
                    configurations(given.network, strategy, P, gather), precision="fp64",
                    overlap=overlap, recompute=k % 3)
        check("groups", plan, algorithms(k), communicator, f"{strategy}, gather {gather}", 2)


@pytest.mark.skipif(P == 1, reason="a pipeline has several ranks")
@pytest.mark.parametrize("name", [*NAMES[: COUNT // 3], *UNETS[: COUNT // 6], "lenet5", *BUILT_IN])
def test_pipelines_train_as_one_rank(name: str, communicator: Communicator) -> None:
    given = facts(name)
    plan = staged_plan(given.network, given.batch, P, np.random.default_rng([len(name), P, 3]))
    check(name, plan, "ring", communicator, "pipeline", 2)


@pytest.mark.skipif(P < 3, reason="movements within a stage and between stages")
@pytest.mark.parametrize("order", PipelineOrder)
@pytest.mark.parametrize("overlap", [Overlap.NONE, Overlap.FULL])
@pytest.mark.parametrize(("name", "cuts"), CUTS)
def test_residual_branches_cross_cuts_between_stages(name: str, cuts: tuple[str, ...],
                                                     overlap: Overlap, order: PipelineOrder,
                                                     communicator: Communicator) -> None:
    """Movements within a stage end in time, whatever else crosses the cut."""
    given = facts(name)
    plan = skip_plan(given.network, given.batch, P, cuts, overlap, order)
    check(name, plan, "ring", communicator, "pipeline", 1)


@pytest.mark.skipif(P == 1, reason="one rank has no fc_passes to take")
@pytest.mark.parametrize("strategy", ["owt-b", "owt-c"])
def test_variable_batch_sizes_train_as_one_rank(strategy: str, communicator: Communicator) -> None:
    """One weird trick: the fully connected layers take the batch in fc_passes, with an update after
    each.
    """
    for name in ("mlp", FIXED[0], FIXED[1], CHAINS[0])[: 4 if P <= 4 else 2]:
        name, batch = f"{name}@{P * P}", P * P
        network = facts(name).network
        options = plan_options(strategy, P, batch)
        spec = NetworkSpec(network.name, network.image_shape, network.classes)
        for overlap in ("none", "full"):
            plan = Plan(spec, P, batch, strategy, configurations(network, strategy, P),
                        precision="fp64", overlap=overlap, **options)
            check(name, plan, "ring", communicator, strategy, 2)


@pytest.mark.skipif(P == 1, reason="one rank cuts no image")
@pytest.mark.parametrize("name", ["lenet5", "alexnet-two-towers", "resnet", "cosmoflow"])
def test_only_the_first_layers_may_cut_images(name: str, communicator: Communicator) -> None:
    """ParaDL, section 4.5.1: ds:AxB+L."""
    given = facts(name)
    spec = NetworkSpec(given.network.name, given.network.image_shape, given.network.classes)
    counts = switches(given.network)
    for k, (a, b) in enumerate(grid_sizes(P)[:-1]):
        strategy = f"ds:{a}x{b}+{counts[k % len(counts)]}" + "/outer" * (k % 2)
        plan = Plan(spec, P, given.batch, strategy, configurations(given.network, strategy, P),
                    precision="fp64", overlap=list(Overlap)[k % 3])
        check(name, plan, algorithms(k), communicator, strategy, 2)


@pytest.mark.skipif(P == 1, reason="one rank has one grid")
@pytest.mark.parametrize("name", [*FIXED[: 3 if P <= 4 else 1], CHAINS[0]])
def test_fully_connected_layers_may_have_another_grid(name: str,
                                                      communicator: Communicator) -> None:
    """Fig 10 of Gholami et al.: domain:AxB+CxD."""
    given, grids = facts(name), grid_sizes(P)
    spec = NetworkSpec(given.network.name, given.network.image_shape, given.network.classes)
    for k, ((a, b), (c, d)) in enumerate(zip(grids, reversed(grids), strict=True)):
        strategy = f"domain:{a}x{b}+{c}x{d}" + "/outer" * (k % 2)
        plan = Plan(spec, P, given.batch, strategy, configurations(given.network, strategy, P),
                    precision="fp64", overlap=list(Overlap)[k % 3])
        check(name, plan, algorithms(k), communicator, strategy, 2)


@pytest.mark.skipif(P == 1, reason="one rank has one configuration")
@pytest.mark.parametrize("name", [FIXED[1], "resnet", "inception"])
def test_integrated_parallelism_trains_as_one_rank(name: str, communicator: Communicator) -> None:
    """Model or domain parallelism by layer: as Eq 9 chooses on a machine, and at random."""
    given, rng = facts(name), np.random.default_rng(P)
    spec = NetworkSpec(given.network.name, given.network.image_shape, given.network.classes)
    chosen = price_named(given.network, spec, "integrated", P, given.batch, load("cori-knl"),
                         precision="fp64").plan
    check(name, replace(chosen, bucket_bytes=0), "ring", communicator, "integrated", 2)
    products = [x.name for x in given.network.matmul_layers
                if len(given.network.shapes[x.name]) > 1]
    for k, grid in enumerate(grid_sizes(P)[1:]):
        some = {layer for layer in products if rng.random() < 0.5}
        request = StrategyRequest(given.network, P, grid, GATHERS[k % 2], "inner")
        plan = replace(chosen, configs=integrated(request, some), overlap=list(Overlap)[k % 3])
        check(name, plan, algorithms(k), communicator, f"domain for {some}", 2)


@pytest.mark.skipif(P == 1, reason="one rank has no fc_passes to take")
def test_layers_with_passes_have_their_own_rate(communicator: Communicator, ranks: World) -> None:
    """`run --base-batch`: an update by a pass counts the samples of the pass."""
    given = facts(f"{FIXED[0]}@{P * P}")
    spec = NetworkSpec(given.network.name, given.network.image_shape, given.network.classes)
    plan = Plan(spec, P, P * P, "owt-b", configurations(given.network, "owt-b", P),
                precision="fp64", **plan_options("owt-b", P, P * P))
    executor = Executor(given.network, plan, lower(given.network, plan, CHOOSERS["ring"]),
                        communicator, backend("cpu"), 1)
    executor.rule.of_a_pass = 0.0, 1.0
    before = {name: w.copy() for name, w in global_tensors.weights(executor, ranks)}
    pixels = local(executor.image_box, tuple((0, n) for n in given.network.image_shape))
    executor.iterate(given.images[0][(executor.image_rows, *pixels)], given.targets[0], 0, 0.1,
                     0.0, 0.0)
    after = dict(global_tensors.weights(executor, ranks))
    for name, weights in before.items():
        assert (weights == after[name]).all() == name.partition("/")[0].startswith("fc"), name


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
@pytest.mark.parametrize("name", [FIXED[0], "resnet"])
def test_adam_trains_as_one_rank(name: str, optimizer: str, communicator: Communicator) -> None:
    """In all ways of keeping weights alike: every rank the whole state, a shard of it, or the
    server alone, which is a rank on CPUs.
    """
    given = facts(name)
    spec = NetworkSpec(given.network.name, given.network.image_shape, given.network.classes)
    ways = ("allreduce", "sharded", "server", "server-host")
    for synchronization in ways[: 1 if P > 4 else None]:
        plan = Plan(spec, P, given.batch, "data", configurations(given.network, "data", P),
                    precision="fp64", optimizer=optimizer,
                    synchronization=synchronization)
        check(name, replace(plan, microbatches=2 if name == "lenet5" else 1), "ring", communicator,
              f"{optimizer}, {synchronization}", 3)
