"""Random networks and plans of the MPI tests are equal on all ranks and cover every kind."""

from __future__ import annotations

import importlib.util
from collections import Counter

import numpy as np
import pytest

from hpcpar.network import layers
from hpcpar.network.graph import Network
from hpcpar.network.layers import BatchNorm, SoftmaxCrossEntropy
from hpcpar.plan.layout import owned
from hpcpar.plan.plan import BATCH_NORMS, Overlap, Synchronization
from tests.mpi.networks import (
    FIXED,
    MORE,
    NOISY,
    by_name,
    graph_seeds,
    random_graph,
    random_unet,
    rate,
    sample,
)
from tests.mpi.plans import describe, fewest_values, random_plan, statistics_blocks
from tests.reference import Reference

STEPS = 3


def test_random_graphs_use_every_piece() -> None:
    """Every kind of layer, several readers, both dimensions, every loss; equal for equal seeds."""
    found, seen = Counter[str](), set()
    for seed in range(100):
        network, batch = random_graph(seed)
        assert (network, batch) == random_graph(seed)
        found.update({layer.kind for layer in network.layers})
        found["several readers"] += any(len(readers) > 1 for readers in network.consumers.values())
        seen.add(batch)
    for seed in range(20):
        found.update({layer.kind for layer in random_unet(seed)[0].layers})
    for name in MORE:
        found.update({layer.kind for layer in by_name(name)[0].layers})
    kinds = {cls.kind for cls in vars(layers).values() if isinstance(cls, type)
             and getattr(cls, "kind", "") and not getattr(cls, "outside", False)}
    missing = kinds - set(found)
    assert not missing, f"add {missing} to a network of tests/mpi/zoo.py or to tests/mpi/graphs.py"
    assert found["several readers"] > 50 and seen == set(range(1, 10))
    assert graph_seeds(200, 3) == [200, 202, 203] and not NOISY & set(graph_seeds(0, 900))


def test_networks_by_name() -> None:
    for name in (*FIXED, *MORE, "random-3", "graph-3"):
        network, batch = by_name(name)
        images, targets = sample(network, batch, np.random.default_rng(0))
        assert images.shape == (batch, *network.image_shape) and len(targets) == batch
        assert network.parameters < 200_000
    assert any(isinstance(layer, BatchNorm) for layer in by_name("resnet")[0].layers)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6])
def test_random_plans_use_every_option(ranks: int) -> None:
    """Every option occurs, the parts of each layer make up its output, and plans are valid."""
    rng = np.random.default_rng(ranks)
    found: Counter[str] = Counter()
    for seed in range(60):
        network, batch = random_graph(seed)
        plan = random_plan(network, batch, ranks, rng)
        found.update((plan.overlap, plan.synchronization, plan.batch_norm))
        for layer in network.layers:
            config = plan.configs[layer.name]
            found.update(axis for axis in ("n", "c", "d", "h", "w", "k", "replicas")
                         if getattr(config, axis) > 1)
            found["elsewhere"] += config.first > 0
            assert config.first + config.ranks <= ranks
            assert not (isinstance(layer, SoftmaxCrossEntropy) and config.c > 1)
            held = np.zeros((batch, *network.shapes[layer.name]), int)
            layout = owned(network, layer, config, batch)
            for rank in range(config.first, config.first + config.ranks):
                held[tuple(slice(*i) for i in layout.box(rank))] += 1
            assert held.min() == held.max() == layout.replicas
        assert plan.synchronization == "allreduce" or all(c.k == 1 for c in plan.configs.values())
        assert plan.batch_norm == "sync" or fewest_values(network, plan) >= 4
        assert all(name in describe(plan) for name in plan.configs)
    assert set(Overlap) | set(Synchronization) | set(BATCH_NORMS) <= set(found)
    if ranks > 1:
        assert {"n", "c", "d", "h", "w", "k", "replicas", "elsewhere"} <= set(found)


def test_statistics_blocks_make_the_batch() -> None:
    rng = np.random.default_rng(0)
    for seed in range(30):
        network, batch = random_graph(seed)
        plan = random_plan(network, batch, 6, rng)
        for layer in network.layers:
            if isinstance(layer, BatchNorm):
                held = np.zeros((batch, *network.shapes[layer.name][1:]), int)
                for block in statistics_blocks(network, plan, layer, batch):
                    held[block] += 1
                assert np.all(held == 1)


def trained(network: Network, images: np.ndarray, targets: np.ndarray,
            optimizer: str) -> dict[str, np.ndarray]:
    """Results of a short training run."""
    reference = Reference(network, 7, optimizer=optimizer)
    for i in range(STEPS):
        reference.iterate(images[i], targets[i], i, rate(network), 0.9, 0.01)
    found = dict(reference.outputs)
    for name, array in reference.gradients.items():
        found[f"gradient of {name}"] = array
    for name, arrays in reference.weight_gradients.items():
        found |= {f"{i} of {name}": a for i, a in enumerate(arrays)}
    return found


@pytest.mark.skipif(importlib.util.find_spec("torch") is None,
                    reason="PyTorch is the reference of these tests")
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_graphs_can_be_compared(optimizer: str) -> None:
    """Rounding of the data changes results by a few digits: no gradient is noise."""
    names = [*(f"graph-{seed}" for seed in graph_seeds(0, 40)), *(f"unet-{n}" for n in range(9))]
    for graph in names:
        network, batch = by_name(graph)
        rng = np.random.default_rng(int(graph.split("-")[1]))
        images, targets = (a.reshape(STEPS, batch, *a.shape[1:])
                           for a in sample(network, STEPS * batch, rng))
        first = trained(network, images, targets, optimizer)
        second = trained(network, images * (1 + 1e-15 * rng.standard_normal(images.shape)), targets,
                         optimizer)
        for name, array in first.items():
            assert abs(array).max() < 1e6 and abs(array
                                                  - second[name]).max() <= 1e-10 * abs(
                array).max(), f"{graph}, {name}"
