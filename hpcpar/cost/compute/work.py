"""Decides the work of a compute step on the rank with the largest boxes: shapes, flops and bytes.

Each is a number for one plan, or an array with one entry per plan of a family.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter
from typing import TypeAlias, TypeVar

import numpy as np

from hpcpar.cost.published_runs import kind_of
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.network.layers.base import shape_text
from hpcpar.plan.axis import Axis, tabulate
from hpcpar.plan.config import Floats, Ints, Names, Numbers
from hpcpar.plan.layout import Layout, computed, owned, parameters, shards
from hpcpar.plan.optimizers import OPTIMIZERS
from hpcpar.plan.plan import Plan, Synchronization
from hpcpar.schedule.edges import Edge, Edges
from hpcpar.schedule.interior import inner
from hpcpar.schedule.steps import Compute, Op

Shape: TypeAlias = tuple[Ints, ...]
T = TypeVar("T")


@dataclass(frozen=True)
class Work:
    """A compute step of the rank with the largest boxes.

    Attributes
    ----------
    kind, op : str
        Kind of layer, and ``forward``, ``backward`` (gradient of the input), ``backward_weight``,
        ``update``, ...
    x, y : tuple of int
        Local shapes of the (first) input and of the output, sample axis first. For an update, the
        number of local weights and biases.
    flops, bytes : float
        Floating-point operations, and bytes read and written, of the whole operation.
    options, dtype : str
        The layer's options that change the time, and the number format (`Precision.work`).
    fraction : float
        Fraction of the operation that this step computes; below 1 for a convolution's interior and
        boundary.
    ranks : int
        Ranks that compute it at the same time.
    family : str
        Family of kernels: ``matmul``, ``update``, ``host``, or the layer's `kernel_family`.
    network_kind : str
        Kind of the network (`hpcpar.cost.published_runs.kind_of`).
    fused : float
        Share of the time that is left where a framework fuses kernels.
    """

    kind: str
    op: str
    x: Shape
    y: Shape
    flops: Numbers
    bytes: Ints
    options: Names
    dtype: str
    fraction: Floats = 1.0
    ranks: Ints = 1
    family: str = "other"
    layer: Layer | None = None
    network_kind: str = "images"
    fused: float = 1.0

    @property
    def key(self) -> str:
        """The operation, its local shapes and its options, for a single plan.

        Steps with equal keys take the same time.
        """
        y = "" if self.kind == "update" else f" y={_shape(self.y)}"
        return f"{self.kind}.{self.op} x={_shape(self.x)}{y}{self.options} {self.dtype}"

    @property
    def sort(self) -> str:
        """The operation without its shapes."""
        return f"{self.kind}.{self.op} {self.dtype}"

    def case(self, i: int) -> Work:
        """The work of plan `i` of a family."""

        def pick(value: T) -> T:
            return value[i] if isinstance(value, np.ndarray) and value.ndim else value

        return replace(
            self, x=tuple(map(pick, self.x)), y=tuple(map(pick, self.y)),
            flops=pick(self.flops), bytes=pick(self.bytes), options=pick(self.options),
            fraction=pick(self.fraction), ranks=pick(self.ranks),
        )


def _shape(s: Shape) -> str:
    return shape_text(map(int, s))


def _variant(network: Network, layer: Layer, x: Shape) -> Names:
    """The layer's options that change the time, for every plan."""
    if not layer.inputs:
        return ""
    whole = network.input_shape(layer)[0]
    channels, places = np.unique(x[1], return_inverse=True)
    texts = [layer.variant(count, whole) for count in channels.tolist()]
    return texts[0] if len(set(texts)) == 1 else np.array(texts)[places].reshape(np.shape(x[1]))


@dataclass(frozen=True)
class _Local:
    """Sizes of a layer's largest boxes: of all inputs (x), the output (y) and the weights.

    `x` is the shape of the first input alone; `flops` counts the forward pass.
    """

    x: Shape
    y: Shape
    n_x: Ints
    n_y: Ints
    n_weights: Ints
    flops: Floats
    options: Names


class Workload:
    """The work of the compute steps of a plan, or of a family of plans.

    Parameters
    ----------
    shape_of : callable
        Maps a layout to the shape of the box to work on: the largest one, or arrays with one entry
        per rank.
    """

    def __init__(self, network: Network, plan: Plan, edges: Edges | None = None,
                 shape_of: Callable[[Layout], Shape] = attrgetter("largest")) -> None:
        self.network, self.plan, self.shape_of = network, plan, shape_of
        self.edges = Edges(network, plan) if edges is None else edges
        self.network_kind = kind_of(network)
        self._known: dict[Hashable, _Local] = {}

    def of(self, step: Compute) -> Work:
        """The work of a step."""
        return self.work(self.network.by_name[step.layer], step.op, step.samples)

    def work(self, layer: Layer, op: Op, batch: int) -> Work:
        """The work of an operation of a layer on `batch` samples."""
        if op in (Op.UNSCALE, Op.UPDATE, Op.HOST_UPDATE):
            return self._update(layer, op)
        if op is Op.ACCUMULATE:
            return self._accumulation(layer, batch)
        plan, local = self.plan, self._local(layer, batch)
        family = "matmul" if layer.is_matmul else layer.kernel_family
        name, fraction = op.value, self._fraction(layer, op, batch)
        if op in (Op.INTERIOR, Op.BOUNDARY):
            name = Op.FORWARD.value
        work = layer.work(name)
        formats = plan.formats
        weight_bytes = formats.copy_bytes or formats.weight_bytes
        moved_bytes = (formats.item_bytes * (work.inputs * local.n_x + work.outputs * local.n_y)
                       + weight_bytes * work.weights * local.n_weights)
        return Work(layer.kind, name, local.x, local.y, work.flops * local.flops,
                    moved_bytes, local.options, formats.work, fraction,
                    plan.configs[layer.name].ranks, family, layer, self.network_kind,
                    plan.rules.left(formats, family))

    def _update(self, layer: Layer, op: Op) -> Work:
        """The optimizer's update of a layer's weights; a host has all of them. Or its preparation:
        an unscaled gradient.
        """
        plan, config = self.plan, self.plan.configs[layer.name]
        count: Ints
        if op is Op.HOST_UPDATE:
            count = layer.parameters(self.network.input_shape(layer))
        elif plan.synchronization is Synchronization.SHARDED:
            count = self._items(shards(self.network, layer, config))
        else:
            count = self._weights(layer)
        optimizer = OPTIMIZERS[plan.optimizer]
        options = "" if plan.optimizer == Plan.optimizer else f" {plan.optimizer}"
        formats = plan.formats
        flops, moved_bytes = 1, 2 * formats.weight_bytes
        if op is not Op.UNSCALE:
            flops = optimizer.flops
            moved_bytes = optimizer.values * formats.weight_bytes + formats.update_bytes
        return Work("update", op.value, (count,), (count,), flops * count,
                    moved_bytes * count, options, formats.work, ranks=config.ranks,
                    family="host" if op is Op.HOST_UPDATE else "update",
                    network_kind=self.network_kind)

    def _accumulation(self, layer: Layer, batch: int) -> Work:
        """The sum of two gradients of a layer's output: two values read, one written."""
        plan, config = self.plan, self.plan.configs[layer.name]
        layout = owned(self.network, layer, config, batch)
        n_y, shape = self._items(layout), self.shape_of(layout)
        return Work(layer.kind, Op.ACCUMULATE.value, shape, shape, n_y,
                    3 * n_y * plan.item_bytes, "", plan.formats.work, ranks=config.ranks,
                    network_kind=self.network_kind,
                    fused=plan.rules.left(plan.formats, "other"))

    def _fraction(self, layer: Layer, op: Op, batch: int) -> Floats:
        """Fraction of the operation that a step computes."""
        if op not in (Op.INTERIOR, Op.BOUNDARY):
            return 1.0
        interior = self._interior(self.edges.into(layer, batch)[0], layer, batch)
        return interior if op is Op.INTERIOR else 1.0 - interior

    def _local(self, layer: Layer, batch: int) -> _Local:
        """Sizes that all operations of a layer share, computed once for equal layers."""
        granules = (self.network.granules[name] for name in layer.inputs)
        key = (self.edges.key(layer, batch), *granules)
        if key not in self._known:
            self._known[key] = self._measure(layer, batch)
        return self._known[key]

    def _measure(self, layer: Layer, batch: int) -> _Local:
        network, config = self.network, self.plan.configs[layer.name]
        needs, output = self.edges.needs(layer, batch), computed(network, layer, config, batch)
        n_x: Ints = 0
        for need in needs:
            n_x = n_x + self._items(need)
        n_y = self._items(output)
        x = self.shape_of(needs[0]) if needs else ()
        all_flops = layer.forward_flops(network.input_shape(layer))
        outputs = (self.shape_of(output)[0] if layer.whole_samples
                   else n_y / math.prod(network.shapes[layer.name]))
        flops = all_flops * outputs / config.k
        weights = self._weights(layer) if layer.has_weights else 0
        return _Local(x, self.shape_of(output), n_x, n_y, weights, flops,
                      _variant(network, layer, x))

    def _weights(self, layer: Layer) -> Ints:
        return self._items(parameters(self.network, layer, self.plan.configs[layer.name]))

    def _items(self, layout: Layout) -> Ints:
        return math.prod(self.shape_of(layout))

    def _interior(self, e: Edge, layer: Layer, batch: int) -> Floats:
        """Fraction of a middle rank's outputs that do not depend on the halo."""
        out = computed(self.network, layer, self.plan.configs[layer.name], batch)
        fraction: Floats = 1.0
        for own, need, made in zip(e.owned.axes, e.needed.axes, out.axes, strict=True):
            if made.name in "dhw" and np.any(np.greater(out.degree(made), 1)):
                along = functools.partial(interior_fraction, own, need, made)
                fraction = fraction * tabulate(along, out.degree(made), np.float64)
        return fraction


@lru_cache(maxsize=50_000)
def interior_fraction(own: Axis, need: Axis, out: Axis, parts: int) -> float:
    """Fraction of the middle part's outputs along an axis that read only inputs it owns."""
    middle = parts // 2
    (lo, hi), owned_input = out.interval(parts, middle), own.interval(parts, middle)
    if hi <= lo:
        return 1.0
    start, stop = inner(need, (lo, hi), owned_input) if parts > 1 else (lo, hi)
    return (stop - start) / (hi - lo)

