"""Networks whose residual branches cross the cuts of a pipeline, in every order of readers."""

from __future__ import annotations

from collections.abc import Sequence

from hpcpar.network.builder import Graph
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    Add,
    BatchNorm,
    Conv2d,
    GlobalAvgPool,
    Linear,
    ReLU,
    SoftmaxCrossEntropy,
)
from hpcpar.plan.config import Config
from hpcpar.plan.plan import NetworkSpec, Overlap, PipelineOrder, Plan


def _begun(name: str) -> Graph:
    """The first stage: `x` is read across the cut."""
    net = Graph(name, (2, 7, 6))
    net.add(Conv2d, "stem", out_channels=4, kernel=3, padding=1, bias=False)
    net.add(BatchNorm, "x")
    net.add(Conv2d, "conv", out_channels=4, kernel=3, padding=1)
    return net


def _ended(net: Graph) -> Network:
    net.add(ReLU, "relu")
    net.add(GlobalAvgPool, "pool")
    net.add(Linear, "fc", out_features=3)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()


def skip(first: bool) -> Network:
    """A sum reads `x` as its first input, or as its second."""
    net = _begun("skip-first" if first else "skip-second")
    net.add(Add, "sum", after=("x", "conv") if first else ("conv", "x"))
    return _ended(net)


def two_skips() -> Network:
    """Two sums read `x`."""
    net = _begun("two-skips")
    net.add(Add, "sum", after=("conv", "x"))
    net.add(Conv2d, "conv2", out_channels=4, kernel=3, padding=1)
    net.add(Add, "sum2", after=("conv2", "x"))
    return _ended(net)


#: Networks of tests/mpi/zoo.py, each with the layers at which its further stages begin.
CUTS = [("skip first", ("conv",)), ("skip second", ("conv",)), ("two skips", ("conv",)),
        ("two skips", ("conv", "sum2"))]


def skip_plan(network: Network, batch: int, ranks: int, cuts: Sequence[str], overlap: Overlap,
              order: PipelineOrder) -> Plan:
    """Stages of one rank, and a last one of all others, which cuts samples and rows in turn."""
    configs: dict[str, Config] = {}
    first = 0
    for i, layer in enumerate(network.layers):
        first += layer.name in cuts
        each = ranks - first if first == len(cuts) else 1
        rows = i % 2 and len(network.shapes[layer.name]) > 1
        configs[layer.name] = Config(h=each, first=first) if rows else Config(n=each, first=first)
    spec = NetworkSpec(network.name, network.image_shape, network.classes)
    return Plan(spec, ranks, batch, "pipeline", configs, precision="fp64", overlap=overlap,
                order=order, microbatches=3)
