"""Random plans: a configuration of its own for every layer, on all ranks or some, and everything
else that a plan may choose.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import fields, replace
from typing import Any

import numpy as np

from hpcpar.network.graph import Network
from hpcpar.network.layers import BatchNorm, Layer
from hpcpar.network.layers.base import axes_of
from hpcpar.plan.config import PLACEMENTS, Config
from hpcpar.plan.layout import owned
from hpcpar.plan.plan import NetworkSpec, Overlap, PipelineOrder, Plan, Synchronization
from hpcpar.plan.stages import cuts, stages
from tests.mpi.graphs import LEAST_VALUES

#: Algorithms of collectives that need no machine to choose them by.
ALGORITHMS = ("ring", "tree", "halving", "leaders", "mpi")
#: Adam makes the noise of gradients that are nearly zero as large as everything else: its own test
#: has it.
OPTIMIZERS_DRAWN = ("momentum", "sgd")
#: A part of the image and of the samples: slices of (samples, rows, ...).
Block = tuple[slice, ...]


def _primes(n: int) -> list[int]:
    """Prime factors, each as often as it occurs."""
    p = next((p for p in range(2, n + 1) if n % p == 0), 0)
    return [p, *_primes(n // p)] if p else []


def random_config(network: Network, layer: Layer, ranks: int, rng: np.random.Generator,
                  reductions: bool = True) -> Config:
    """Any configuration that a layer may have.

    Parameters
    ----------
    reductions : bool
        Sums over input channels may be cut (k).
    """
    axes = [*axes_of(network.shapes[layer.name]), "replicas"]
    if not layer.splits_channels:
        axes.remove("c")
    if reductions and layer.is_matmul and getattr(layer, "groups", 1) == 1:
        axes += ["k", "k"]  # few layers have it
    used = ranks if rng.random() < 0.7 else int(rng.integers(1, ranks + 1))
    degrees: dict[str, Any] = dict.fromkeys(axes, 1)
    for prime in _primes(used):
        degrees[str(rng.choice(axes))] *= prime
    return Config(**degrees, scatter=bool(rng.random() < 0.5),
                  first=int(rng.integers(0, ranks - used + 1)),
                  placement=str(rng.choice(list(PLACEMENTS))))


def random_plan(network: Network, batch: int, ranks: int, rng: np.random.Generator) -> Plan:
    """A plan with a random configuration for every layer and random options; weights are allreduced
    where reductions are cut (k).
    """
    reductions = bool(rng.random() < 0.6)
    configs = {layer.name: random_config(network, layer, ranks, rng, reductions)
               for layer in network.layers}
    spec = NetworkSpec(network.name, network.image_shape, network.classes)
    cut = any(c.k > 1 for c in configs.values())
    ways = [Synchronization.ALLREDUCE] if cut else list(Synchronization)
    plan = Plan(spec, ranks, batch, "random", configs, precision="fp64",
                overlap=str(rng.choice(list(Overlap))),
                collectives=str(rng.choice(ALGORITHMS)), synchronization=str(rng.choice(ways)),
                optimizer=str(rng.choice(OPTIMIZERS_DRAWN)),
                bucket_bytes=int(rng.choice([0, 400, 1 << 20])), recompute=again(configs))
    local = replace(plan, batch_norm="local")
    if rng.random() < 0.4 and fewest_values(network, local) >= LEAST_VALUES:
        return local
    parts = replace(plan, microbatches=min(batch, int(rng.integers(1, 5))),
                    order=str(rng.choice(list(PipelineOrder))))
    return parts if fewest_values(network, parts) >= LEAST_VALUES else plan


def again(configs: dict[str, Config]) -> int:
    """Segments that are computed again, in every other plan."""
    return (0, 0, 2, 4)[zlib.crc32(repr(sorted(configs.items())).encode()) % 4]


def staged_plan(network: Network, batch: int, ranks: int, rng: np.random.Generator) -> Plan:
    """A pipeline: stages of equal numbers of ranks, cut anywhere, in each any configuration for
    every layer, and micro-batches.
    """
    count = int(rng.choice([s for s in range(2, ranks + 1) if ranks % s == 0
                            and s < len(cuts(network))] or [1]))
    each = ranks // count
    place = stages(network, count, rng.random(len(network.layers)).tolist())
    configs = {layer.name: replace(random_config(network, layer, each, rng),
                                   first=place[layer.name] * each) for layer in network.layers}
    spec = NetworkSpec(network.name, network.image_shape, network.classes)
    plan = Plan(spec, ranks, batch, "pipeline", configs, precision="fp64",
                overlap=str(rng.choice(list(Overlap))), order=str(rng.choice(list(PipelineOrder))),
                recompute=again(configs))
    parts = replace(plan, microbatches=min(batch, int(rng.integers(2, 6))))
    return parts if fewest_values(network, parts) >= LEAST_VALUES else plan


def statistics_blocks(network: Network, plan: Plan, layer: Layer, samples: int) -> list[Block]:
    """The parts that a batch normalization with local statistics treats on their own in a pass of
    `samples` (`Reference`'s ``blocks``).

    Each once and in order, whichever ranks hold it or a part of its channels; without the empty
    ones.
    """
    config = plan.configs[layer.name]
    boxes = (owned(network, layer, config, samples).box(rank)
             for rank in range(config.first, config.first + config.ranks))
    parts = {(box[0], *box[2:]) for box in boxes}
    return [tuple(slice(*i) for i in part) for part in sorted(parts) if all(a < b for a, b in part)]


def fewest_values(network: Network, plan: Plan) -> int:
    """Values of a channel in the smallest part of a pass that has batch statistics of its own."""
    layers = [layer for layer in network.layers if isinstance(layer, BatchNorm)]
    samples = plan.batch // plan.microbatches
    if plan.batch_norm == "sync":
        return min((samples * math.prod(network.shapes[layer.name][1:]) for layer in layers),
                   default=LEAST_VALUES)
    blocks = [b for layer in layers for b in statistics_blocks(network, plan, layer, samples)]
    return min((int(np.prod([s.stop - s.start for s in b])) for b in blocks), default=LEAST_VALUES)


def describe(plan: Plan) -> str:
    """Options, and a line for every layer, for the message of a failure."""
    plain, names = Config(), [f.name for f in fields(Config)]
    lines = [
        f"{plan.ranks} ranks, batch {plan.batch}, overlap {plan.overlap}, collectives "
        f"{plan.collectives}, "
             f"{plan.synchronization}, {plan.batch_norm} statistics, {plan.microbatches} "
             f"micro-batches ({plan.order}), "
             f"{plan.fc_passes} fc_passes ({plan.switch}), {plan.optimizer}, {plan.recompute} "
             f"segments computed again"]
    for name, config in plan.configs.items():
        options = [f"{key}={value}" for key in names
                   if (value := getattr(config, key)) != getattr(plain, key)]
        lines.append(f"{name}: Config({', '.join(options)})")
    return "\n".join(lines)
