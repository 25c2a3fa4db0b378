"""Every kind of layer, cut along every axis that it has: gradients of weights against differences
of the loss.

Nothing but the executor is asked: no reference, and no mathematics of a layer. A layer stands
behind layers with weights, so that the gradient of its input is seen in theirs.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import world
from hpcpar.kernels import backend
from hpcpar.network.builder import Graph
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    GELU,
    LRN,
    Add,
    Affine,
    AvgPool2d,
    AvgPool3d,
    BatchNorm,
    Clip,
    Concat,
    Conv2d,
    Conv3d,
    ConvTranspose2d,
    ConvTranspose3d,
    DiceCrossEntropy,
    Dropout,
    Flatten,
    GlobalAvgPool,
    GlobalMaxPool,
    GroupNorm,
    Layer,
    LayerNorm,
    LeakyReLU,
    Linear,
    LogisticCrossEntropy,
    Loss,
    MaxPool2d,
    MaxPool3d,
    MeanSquaredError,
    Multiply,
    Pad,
    ReLU,
    Sigmoid,
    SiLU,
    SoftmaxCrossEntropy,
    Tanh,
    Upsample,
)
from hpcpar.network.layers.base import axes_of
from hpcpar.plan.boxes import items, local, whole_box
from hpcpar.plan.config import Config
from hpcpar.plan.layout import computed, owned
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.plan.strategy_request import Configs
from hpcpar.runtime.executor import Executor
from hpcpar.schedule.lower import lower
from tests.mpi.comparison import CHOOSERS
from tests.mpi.networks import sample
from tests.mpi.plans import random_config
from tests.mpi.sharing import allgather

P = world().size
#: Enough channels, samples, rows, ... for every rank to have some.
WIDTH = max(4, P)
#: Step of the differences, and how far they may be from the gradient's component, in parts of its
#: length.
STEP, TOLERANCE = 1e-6, 1e-6
#: From here on the slopes on both sides tell of a kink between them (a ReLU's, a maximum's), in
#: parts of the gradient's length.
KINK = 1e-3
#: A direction with a kink is drawn again, so often at most.
DRAWS = 4
#: All weights at once, and a single one; many ranks share few cores, and all weights tell more.
KINDS = (True, False) if P <= 4 else (True,)
#: Convolutions with every option.
ANY_2D = {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 1), "dilation": (1, 2)}
ANY_3D = {"kernel": (2, 3, 2), "stride": (1, 2, 1), "padding": (1, 1, 0), "dilation": (2, 1, 1)}

TESTED = "tested"


@dataclass(frozen=True)
class Case:
    """A layer with its options, and the number of image axes of what it reads (0: features)."""

    layer: type[Layer]
    options: dict[str, Any]
    dimensions: int = 2
    #: How many tensors it reads.
    inputs: int = 1
    #: It also reads features of the image's channels.
    gated: bool = False

    def network(self) -> Network:
        """The layer behind weighted ones, and before another."""
        volume = self.dimensions == 3
        conv: type[Layer] = Conv3d if volume else Conv2d
        net = Graph("small", (2, *((P + 2, 2 * P + 3, P + 4) if volume else (2 * P + 3, P + 4))))
        if self.dimensions:
            # biases that a normalisation takes away again have no gradient
            plain = self.layer is not BatchNorm and self.options.get("groups") != WIDTH
            read = [net.add(conv, f"before{i}", after=("input",), out_channels=WIDTH,
                            kernel=1 + i % 2 * 2, padding=i % 2, bias=plain)
                    for i in range(self.inputs)]
            if self.gated:
                net.add(GlobalAvgPool, "mean")
                read.append(net.add(Linear, "gate", out_features=WIDTH))
        else:
            net.add(Flatten, "features")
            read = [net.add(Linear, "before0", out_features=WIDTH + 1)]
        net.add(self.layer, TESTED, after=read, **self.options)
        if not isinstance(net.layers[-1], Loss):
            if len(net.shapes[TESTED]) > 1:
                net.add(Flatten, "flat")
            net.add(Linear, "after", out_features=3)
            net.add(MeanSquaredError, "loss")
        return net.build()


def window(dimensions: int, **options: Any) -> dict[str, Any]:
    """Overlapping windows at unequal strides."""
    kernel, stride, padding = ((3, 2), (2, 1),
                               (1, 0)) if dimensions == 2 else ((2, 3, 2), (1, 2, 1), (1, 1, 0))
    return {"kernel": kernel, "stride": stride, "padding": padding, **options}


CASES: dict[str, Case] = {
    "conv2d": Case(Conv2d, {"out_channels": WIDTH + 1, **ANY_2D}),
    "conv2d in groups": Case(Conv2d,
                             {"out_channels": 2 * WIDTH, **ANY_2D, "groups": 2 if WIDTH % 2 == 0
                              else WIDTH}),
    "conv3d": Case(Conv3d, {"out_channels": WIDTH + 1, **ANY_3D}, 3),
    "conv3d in groups": Case(Conv3d,
                             {"out_channels": WIDTH, **ANY_3D, "groups": WIDTH, "bias": False}, 3),
    "linear": Case(Linear, {"out_features": WIDTH + 2}, 0),
    "max pooling": Case(MaxPool2d, window(2, ceil_mode=True)),
    "max pooling of volumes": Case(MaxPool3d, window(3), 3),
    "average pooling": Case(AvgPool2d, window(2, count_include_pad=False)),
    "average pooling with padding": Case(AvgPool2d, window(2, ceil_mode=True)),
    "average pooling of volumes": Case(AvgPool3d, window(3), 3),
    "global average": Case(GlobalAvgPool, {}),
    "global average of volumes": Case(GlobalAvgPool, {}, 3),
    "global maximum": Case(GlobalMaxPool, {}),
    "global maximum of volumes": Case(GlobalMaxPool, {}, 3),
    "relu": Case(ReLU, {}),
    "leaky relu": Case(LeakyReLU, {"slope": 0.2}),
    "clip": Case(Clip, {"low": -1.0, "high": 0.5}),
    "sigmoid": Case(Sigmoid, {}),
    "tanh of features": Case(Tanh, {}, 0),
    "silu": Case(SiLU, {}),
    "gelu of volumes": Case(GELU, {}, 3),
    "gelu by tanh": Case(GELU, {"tanh": True}),
    "affine": Case(Affine, {"scale": -2.0, "shift": 0.5}),
    "dropout": Case(Dropout, {"rate": 0.4}),
    "dropout of features": Case(Dropout, {"rate": 0.4}, 0),
    "lrn": Case(LRN, {"size": 3, "alpha": 0.5}),
    "batch norm": Case(BatchNorm, {}),
    "batch norm of volumes": Case(BatchNorm, {}, 3),
    "batch norm of features": Case(BatchNorm, {}, 0),
    "batch norm without weights": Case(BatchNorm, {"affine": False}),
    "group norm": Case(GroupNorm, {"groups": 2 if WIDTH % 2 == 0 else 1}),
    "instance norm": Case(GroupNorm, {"groups": WIDTH, "affine": False}),
    "layer norm": Case(LayerNorm, {}),
    "layer norm of volumes": Case(LayerNorm, {}, 3),
    "layer norm of features": Case(LayerNorm, {}, 0),
    "add": Case(Add, {}, inputs=3),
    "add volumes": Case(Add, {}, 3, inputs=2),
    "multiply": Case(Multiply, {}, inputs=2),
    "gate": Case(Multiply, {}, gated=True),
    "gate of volumes": Case(Multiply, {}, 3, gated=True),
    "concat": Case(Concat, {}, inputs=2),
    "flatten": Case(Flatten, {}),
    "flatten of volumes": Case(Flatten, {}, 3),
    "transposed": Case(ConvTranspose2d, {"out_channels": WIDTH + 1, **ANY_2D,
                                         "output_padding": (1, 0)}),
    "transposed in groups": Case(ConvTranspose2d, {
        "out_channels": 2 * WIDTH, **ANY_2D, "groups": 2 if WIDTH % 2 == 0 else WIDTH}),
    "transposed volumes": Case(ConvTranspose3d, {"out_channels": WIDTH, **ANY_3D}, 3),
    "nearest": Case(Upsample, {"scale": (2, 3)}),
    "bilinear": Case(Upsample, {"scale": (3, 2), "mode": "linear"}),
    "trilinear": Case(Upsample, {"scale": (2, 1, 2), "mode": "linear", "align_corners": True}, 3),
    "zeros around": Case(Pad, {"begin": (2, 0), "end": (1, 3)}),
    "periodic": Case(Pad, {"begin": (2, 1), "end": (1, 3), "mode": "periodic"}),
    "softmax of pixels": Case(SoftmaxCrossEntropy, {}),
    "smoothed softmax of pixels": Case(SoftmaxCrossEntropy, {"label_smoothing": 0.1}),
    "dice": Case(DiceCrossEntropy, {}),
    "smoothed dice of voxels": Case(DiceCrossEntropy, {"label_smoothing": 0.2}, 3),
    "smoothed softmax": Case(SoftmaxCrossEntropy, {"label_smoothing": 0.3}, 0),
    "mean squared error of voxels": Case(MeanSquaredError, {}, 3),
    "softmax": Case(SoftmaxCrossEntropy, {}, 0),
    "logistic": Case(LogisticCrossEntropy, {}, 0),
    "mean squared error": Case(MeanSquaredError, {}, 0),
}


def ways(case: Case) -> list[str]:
    """The axes that the layer can be cut along; a sum over input channels is either scattered or
    summed for all.
    """
    network = case.network()
    layer = network.by_name[TESTED]
    axes = list(axes_of(network.shapes[TESTED]))
    if isinstance(layer, SoftmaxCrossEntropy):
        axes.remove("c")
    return axes + ["k", "k for all"] * (layer.is_matmul and case.options.get("groups", 1) == 1)


def cut(axis: str) -> Config:
    """All ranks along one axis."""
    return Config(**{axis[0]: P}, scatter=axis != "k for all")


def configs(network: Network, axis: str, rng: np.random.Generator) -> Configs:
    """The tested layer cut along an axis, the others anyhow."""
    out = {layer.name: random_config(network, layer, P, rng) for layer in network.layers}
    return {**out, TESTED: cut(axis)}


#: A move of every layer's weights and biases.
Direction = dict[str, tuple[np.ndarray, np.ndarray | None]]


class Slopes:
    """The loss of an executor as a function of weights, and its gradient."""

    def __init__(self, executor: Executor, images: np.ndarray, targets: np.ndarray) -> None:
        self.executor, self.images, self.targets = executor, images, targets
        self.parameters = {layer.name: executor.parameters[layer.name]
                           for layer in executor.network.weighted}

    def loss(self) -> float:
        """At the weights as they are: with a rate of zero they stay."""
        return self.executor.iterate(self.images, self.targets, 3, 0.0, 0.0, 0.0)[0]

    def moved(self, direction: Direction, by: float) -> float:
        """The loss with the weights moved along a direction."""
        kept = {name: p.flat.copy() for name, p in self.parameters.items()}
        for name, p in self.parameters.items():
            for array, part in zip(p.split(p.flat), self._mine(name, direction), strict=True):
                if array is not None:
                    array += by * part
        out = self.loss()
        for name, p in self.parameters.items():
            p.flat[...] = kept[name]
        return out

    def _mine(self, name: str, direction: Direction) -> tuple[np.ndarray, np.ndarray | None]:
        """This rank's part of a direction."""
        p, (weight, bias) = self.parameters[name], direction[name]
        rows = weight[p.start:p.stop]
        return rows if weight.ndim < 2 else rows[:,
                                                 slice(*p.columns)], None if bias is None else bias[
            p.start:p.stop]

    def along(self, tried: list[Direction]) -> tuple[list[float], float]:
        """The gradient's components along some directions, and its length: every part of it is
        counted once.
        """
        mine = []
        for name, p in self.parameters.items():
            for which, gradient in enumerate((p.dweight, p.dbias)):
                if gradient is not None and gradient.size:
                    where = (name, which, p.start, p.stop, *(p.columns if which == 0 else ()))
                    parts = [self._mine(name, direction)[which] for direction in tried]
                    mine.append((where, [float((gradient * part).sum()) for part in parts],
                                 float((gradient**2).sum())))
        once = {where: values for found in allgather(world(), mine) for where, *values in found}
        components = [sum(column) for column in zip(*(values for values, _ in once.values()),
                                                    strict=True)]
        return components, math.sqrt(sum(square for _, square in once.values()))


def directions(network: Network, dense: bool, rng: np.random.Generator) -> list[Direction]:
    """Random directions: of a unit vector in every layer's weights, or of a single weight."""
    sizes = {layer.name: (layer.weight_shape(x), layer.bias_shape(x)) for layer in network.weighted
             for x in [network.input_shape(layer)]}
    out = []
    for _ in range(DRAWS):
        alone, made = str(rng.choice(list(sizes))), {}
        for name, (weight, bias) in sizes.items():
            count = math.prod(weight)
            flat = np.zeros(count + (math.prod(bias) if bias else 0))
            if dense:
                flat[:] = rng.standard_normal(len(flat))
                flat /= np.linalg.norm(flat)
            elif name == alone:
                flat[rng.integers(len(flat))] = 1
            made[name] = (flat[:count].reshape(weight),
                          flat[count:].reshape(bias) if bias else None)
        out.append(made)
    return out


def fault(slopes: Slopes, here: float, tried: list[Direction]) -> str:
    """What is wrong with the gradient's component along the first of some directions that has no
    kink; empty where nothing is.
    """
    components, length = slopes.along(tried)
    for component, direction in zip(components, tried, strict=True):
        ahead, behind = (slopes.moved(direction, by) for by in (STEP, -STEP))
        if abs(ahead - 2 * here + behind) / STEP > KINK * length:
            continue
        slope = (ahead - behind) / (2 * STEP)
        if length > 0 and abs(slope - component) <= TOLERANCE * length:
            return ""
        return (f"the loss's slope is {slope:.12g}, the gradient's component {component:.12g}, "
                f"its length {length:.3g}")
    return f"a kink along each of {DRAWS} directions"


@pytest.mark.parametrize("name", CASES if P <= 4 else list(CASES)[P % 4 // 2 :: 2])
def test_gradients(name: str, communicator: Communicator) -> None:
    case = CASES[name]
    network = case.network()
    spec = NetworkSpec(network.name, network.image_shape, network.classes)
    for axis in ways(case):
        rng = np.random.default_rng(zlib.crc32(f"{name} {axis} {P}".encode()))
        batch = P + 1
        plan = Plan(spec, P, batch, "cut", configs(network, axis, rng),
                    overlap=str(rng.choice(["none", "full"])), precision="fp64")
        tested = network.by_name[TESTED]
        if not isinstance(tested, Loss):
            part = (computed if axis[0] == "k" else owned)(network, tested, plan.configs[TESTED],
                                                          batch)
            boxes = {part.box(rank) for rank in range(P)}
            apart = len(boxes) == P and all(items(box) for box in boxes)
            assert axis[0] == "k" or apart, f"{name} is not really cut along {axis}"
        executor = Executor(network, plan, lower(network, plan, CHOOSERS["ring"]), communicator,
                            backend("cpu"), 5)
        images, targets = sample(network, batch, rng)
        pixels = local(executor.image_box, tuple((0, n) for n in network.image_shape))
        truth = local(executor.truth_box, whole_box(network.truth_shape))
        slopes = Slopes(executor, images[(executor.image_rows, *pixels)],
                        targets[(slice(None), *truth)])
        # the gradient is that of the last loss: of the weights as they are, not as they were moved
        faults = [fault(slopes, slopes.loss(), directions(network, dense, rng)) for dense in KINDS]
        assert not any(
            faults), f"{name} cut along {axis}: {'; '.join(filter(None, faults))}\n{plan.configs}"
