"""Every kind of layer, cut along every axis that it has: gradients of weights against differences
of the loss.

Nothing but the executor is asked: no reference, and no mathematics of a layer. A layer stands
behind layers with weights, so that the gradient of its input is seen in theirs.
"""

from __future__ import annotations

import math
import zlib

import numpy as np
import pytest

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import world
from hpcpar.kernels import backend
from hpcpar.network.graph import Network
from hpcpar.network.layers import Loss
from hpcpar.network.layers.base import axes_of
from hpcpar.plan.boxes import items, local, whole_box
from hpcpar.plan.config import Config
from hpcpar.plan.layout import computed, owned
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.plan.strategy import Configs
from hpcpar.runtime.executor import Executor
from hpcpar.schedule.lower import lower
from tests.layer_cases import TESTED, LayerCase, cases
from tests.mpi.comparison import CHOOSERS
from tests.mpi.networks import sample
from tests.mpi.plans import random_config
from tests.mpi.sharing import allgather

P = world().size
CASES = cases(P)
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


def ways(case: LayerCase) -> list[str]:
    """The axes that the layer can be cut along; a sum over input channels is either scattered or
    summed for all.
    """
    network = case.network()
    layer, shape = network.by_name[TESTED], network.shapes[TESTED]
    # signals are images of one row
    axes = [axis for axis, extent in zip(axes_of(shape), (P, *shape), strict=True)
            if (extent > 1 or P == 1) and (axis != "c" or layer.splits_channels)]
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
    """The error of the gradient's component along the first direction without a kink; empty if it
    is right.
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
def test_gradients_equal_differences_of_the_loss(name: str, communicator: Communicator) -> None:
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
        # the gradient belongs to the last loss: of the weights as they are, not as they were moved
        faults = [fault(slopes, slopes.loss(), directions(network, dense, rng)) for dense in KINDS]
        assert not any(
            faults), f"{name} cut along {axis}: {'; '.join(filter(None, faults))}\n{plan.configs}"
