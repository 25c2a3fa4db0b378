"""What a compute step amounts to on the largest rank: local shapes, flops, memory traffic, and the
key of its measurement.

Shapes, flops and bytes are numbers, or arrays with an entry for each case of a family of plans.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from hpcpar.network.graph import Network
from hpcpar.network.layers import LRN, Add, BatchNorm, Concat, Conv, Flatten, Layer, Loss, Pool
from hpcpar.plan.axis import Axis, tabulate
from hpcpar.plan.config import Ints
from hpcpar.plan.layout import owned, parameters, partial, shards
from hpcpar.plan.plan import Plan
from hpcpar.schedule.edges import Edge, Edges
from hpcpar.schedule.interior import inner
from hpcpar.schedule.steps import Compute, Op

#: Values moved per weight by an update (weight, gradient and state read, weight and state written),
#: and flops.
UPDATE = {"sgd": (3, 3), "momentum": (5, 5), "adam": (7, 12)}
#: Values moved per element of the input or of the output, and flops per element, of batch
#: normalisation's parts.
NORM = {Op.STATISTICS: (1, 3), Op.FORWARD: (2, 2), Op.BACKWARD_WEIGHT: (2, 3), Op.BACKWARD: (3, 5)}


@dataclass(frozen=True)
class Work:
    """A compute step of the rank with the largest boxes.

    Attributes
    ----------
    kind, op : str
        Kind of layer, and ``forward``, ``backward`` (gradient of the input), ``backward_weight``,
        ``update``, ...
    x, y : tuple of int
        Local shape of what is needed of the (first) input and of what is computed of the output,
        sample axis first; an update has the local weights and biases as a flat `x` and `y`.
    flops, bytes : float
        Floating-point operations, and bytes read and written, of the whole operation.
    options, dtype : str
        What else decides the time.
    fraction : float
        Part of the operation that the step does (below 1 for a convolution's interior and
        boundary).
    ranks : int
        That do it at the same time.
    """

    kind: str
    op: str
    x: tuple[Any, ...]
    y: tuple[Any, ...]
    flops: Any
    bytes: Any
    options: Any
    dtype: str
    fraction: Any = 1.0
    ranks: Any = 1

    @property
    def key(self) -> str:
        """Names the operation with its local shapes and options: two steps of one key take the same
        time (of a single plan).
        """
        y = "" if self.kind == "update" else f" y={_shape(self.y)}"
        return f"{self.kind}.{self.op} x={_shape(self.x)}{y}{self.options} {self.dtype}"

    @property
    def sort(self) -> str:
        """What kind of work it is, whatever its shapes."""
        return f"{self.kind}.{self.op} {self.dtype}"

    def case(self, i: int) -> Work:
        """One case of a family."""

        def pick(value: Any) -> Any:
            return value[i] if np.ndim(value) else value

        return replace(
            self, x=tuple(map(pick, self.x)), y=tuple(map(pick, self.y)), flops=pick(self.flops), bytes=pick(self.bytes),
            options=pick(self.options), fraction=pick(self.fraction), ranks=pick(self.ranks),
        )


def _shape(s: tuple[Any, ...]) -> str:
    return "x".join(str(int(v)) for v in s)


def _options(network: Network, layer: Layer, x: tuple[Any, ...]) -> Any:
    """Window, groups (of the local block), channels that are normalised together."""
    if isinstance(layer, Conv):
        whole = network.input_shape(layer)[0]
        text = f" k={_shape(layer.kernel)} s={_shape(layer.stride)} d={_shape(layer.dilation)} g="
        if layer.groups == 1:
            return f"{text}1"
        groups = np.maximum(1, x[1] * layer.groups // whole)
        return np.array([f"{text}{g}"
                         for g in groups.ravel()]).reshape(
            groups.shape) if groups.ndim else f"{text}{int(groups)}"
    if isinstance(layer, Pool):
        return f" k={_shape(layer.kernel)} s={_shape(layer.stride)}"
    return f" size={layer.size}" if isinstance(layer, LRN) else ""


@dataclass(frozen=True)
class _Local:
    """A layer's largest boxes: shapes of what is needed of the first input and of what is computed,
    and items.

    Attributes
    ----------
    n_x, n_first, n_y : int
        Items of all inputs, of the first, of the output.
    flops : float
        Of the forward pass, of the backward pass in the data, and of that in the weights.
    moved : int
        Values that each of them moves at least: inputs, output, and weights.
    """

    x: tuple[Any, ...]
    y: tuple[Any, ...]
    n_x: Any
    n_y: Any
    n_first: Any
    flops: Any
    moved: Any
    options: Any


class Workload:
    """The work of the compute steps of a plan, or of a family of plans."""

    def __init__(self, network: Network, plan: Plan, edges: Edges | None = None) -> None:
        self.network, self.plan = network, plan
        self.edges = Edges(network, plan) if edges is None else edges
        self._known: dict[Any, _Local] = {}

    def of(self, step: Compute) -> Work:
        """The work of a frozen step."""
        return self.work(self.network.by_name[step.layer], step.op, self.plan.samples_of_a_pass)

    def work(self, layer: Layer, op: Op, batch: Ints) -> Work:
        """The work of one operation of a layer on `batch` samples."""
        plan, network = self.plan, self.network
        config, size = plan.configs[layer.name], plan.item_bytes
        if op is Op.UPDATE:
            sharded = plan.synchronisation == "sharded"
            count = shards(network, layer,
                           config).largest_items if sharded else self._weights(layer)
            traffic, flops = UPDATE[plan.optimizer]
            options = "" if plan.optimizer == "momentum" else f" {plan.optimizer}"
            return Work("update", op.value, (count,), (count,), flops * count, traffic * count * size, options, plan.dtype,
                        ranks=config.ranks)
        name = Op.FORWARD.value if op in (Op.INTERIOR, Op.BOUNDARY) else op.value
        if op is Op.ACCUMULATE:
            whole = owned(network, layer, config, batch).largest
            n_y = math.prod(whole)
            return Work(layer.kind, name, whole, whole, n_y, 3 * n_y * size, "", plan.dtype,
                        ranks=config.ranks)
        local = self._local(layer, batch)
        flops, moved = self._amount(layer, op, local)
        fraction: Any = 1.0
        if op in (Op.INTERIOR, Op.BOUNDARY):
            inside = self._interior(self.edges.into(layer, batch)[0], layer, batch)
            fraction = inside if op is Op.INTERIOR else 1.0 - inside
        return Work(layer.kind, name, local.x, local.y, flops, moved * size, local.options,
                    plan.dtype, fraction, config.ranks)

    def _local(self, layer: Layer, batch: Ints) -> _Local:
        """What all operations of a layer have in common; layers that work alike share it."""
        key = (self.edges.key(layer, batch),
               *(self.network.granules[name] for name in layer.inputs))
        if key not in self._known:
            network, config = self.network, self.plan.configs[layer.name]
            needs, made = self.edges.needs(layer, batch), partial(network, layer, config, batch)
            n_x, n_y = sum(need.largest_items for need in needs), made.largest_items
            x = needs[0].largest if needs else ()
            self._known[key] = _Local(
                x, made.largest, n_x, n_y, needs[0].largest_items if needs else 1,
                layer.forward_flops(network.input_shape(layer)) / math.prod(network.shapes[layer.name]) * n_y / config.k,
                n_x + n_y + (self._weights(layer) if layer.has_weights else 0), _options(network, layer, x),
            )
        return self._known[key]

    def _weights(self, layer: Layer) -> Any:
        return parameters(self.network, layer, self.plan.configs[layer.name]).largest_items

    def _amount(self, layer: Layer, op: Op, local: _Local) -> tuple[Any, Any]:
        """Flops, and values moved. Backward in the data and in the weights cost as many flops as
        forward each.
        """
        back, n_x, n_y = op is Op.BACKWARD, local.n_x, local.n_y
        if isinstance(layer, Flatten) or (isinstance(layer, Add) and back):
            return 0.0 * n_y, 0 * n_y
        if isinstance(layer, BatchNorm):
            values, flops = NORM[op]
            return float(flops) * local.n_first, values * local.n_first
        if isinstance(layer, Concat):
            return 0.0 * n_y, 2 * n_y
        if back and not layer.is_matmul:
            # gradients, beside what was kept of the forward pass
            return local.flops, local.moved + (n_y if layer.elementwise or isinstance(layer, Loss)
                                               else n_x + n_y)
        return local.flops, local.moved

    def _interior(self, e: Edge, layer: Layer, batch: Ints) -> Any:
        """Part of the outputs of a middle rank that need no halo."""
        out = partial(self.network, layer, self.plan.configs[layer.name], batch)
        fraction: Any = 1.0
        for own, need, made in zip(e.owned.axes, e.needed.axes, out.axes, strict=True):
            if made.name in "dhw" and np.any(np.greater(out.degree(made), 1)):
                fraction = fraction * tabulate(interior_fraction, (own, need, made),
                                               out.degree(made))
        return fraction


@lru_cache(maxsize=50_000)
def interior_fraction(own: Axis, need: Axis, out: Axis, parts: int) -> float:
    """Part of the middle part's outputs along an axis that reads only what the part owns."""
    middle = parts // 2
    (lo, hi), mine = out.interval(parts, middle), own.interval(parts, middle)
    if hi <= lo:
        return 1.0
    start, stop = inner(need, (lo, hi), mine) if parts > 1 else (lo, hi)
    return (stop - start) / (hi - lo)

