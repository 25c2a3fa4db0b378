"""What a compute step amounts to on the largest rank: local shapes, flops, memory traffic, and the key of its measurement."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpcpar.network.graph import Network
from hpcpar.network.layers import LRN, Conv2d, Flatten, Layer, Linear, Loss, Pool2d, Shape
from hpcpar.plan.boxes import items
from hpcpar.plan.layout import Layout, needed, owned, parameters
from hpcpar.plan.plan import Plan
from hpcpar.schedule.interior import interior
from hpcpar.schedule.lower import lower
from hpcpar.schedule.steps import Compute, Op

#: Values moved per weight by an update: read weight, velocity and gradient, write weight and velocity.
UPDATE_TRAFFIC = 5
UPDATE_FLOPS = 5


@dataclass(frozen=True)
class Work:
    """A compute step of the rank with the largest boxes.

    Attributes
    ----------
    kind, op : str
        Kind of layer, and ``forward``, ``backward`` (gradient of the input), ``backward_weight`` or ``update``.
    x, y : tuple of int
        Local shape of what is needed of the input and of what is made of the output, sample axis first; an update
        has the local weights and biases as a flat `x` and `y`.
    flops, bytes : float
        Floating-point operations, and bytes read and written, of the whole operation that `key` names.
    key : str
        Names the operation with its local shapes and options: two steps of one key take the same time.
    fraction : float
        Part of the operation that the step does (below 1 for a convolution's interior and boundary).
    """

    kind: str
    op: str
    x: Shape
    y: Shape
    flops: float
    bytes: float
    key: str
    fraction: float = 1.0


def _shape(s: Shape) -> str:
    return "x".join(map(str, s))


def _options(network: Network, layer: Layer, x: Shape) -> str:
    """What else decides the time: window, groups (of the local block), channels that are normalised together."""
    if isinstance(layer, Conv2d):
        whole = network.input_shape(layer)[0]
        groups = max(1, x[1] * layer.groups // whole)
        return f" k={_shape(layer.kernel)} s={_shape(layer.stride)} d={_shape(layer.dilation)} g={groups}"
    if isinstance(layer, Pool2d):
        return f" k={_shape(layer.kernel)} s={_shape(layer.stride)}"
    return f" size={layer.size}" if isinstance(layer, LRN) else ""


def _flops(network: Network, layer: Layer, y: Shape) -> float:
    """The layer's flops scaled to the local block of outputs; backward in the data and in the weights cost as much as forward each."""
    x = network.input_shape(layer)
    whole = layer.forward_flops(x) / math.prod(network.shapes[layer.name])
    return whole * math.prod(y)


def make_work(network: Network, layer: Layer, op: Op, x: Layout, y: Layout, weights: Layout | None, dtype: str, item_bytes: int) -> Work:
    """The work of one operation of a layer.

    Parameters
    ----------
    x, y : Layout
        What ranks need of the input and own of the output.
    weights : Layout or None
        What ranks own of the weights.
    """
    count = weights.largest_items if weights is not None else 0
    if op is Op.UPDATE:
        key = f"update.update x={count} {dtype}"
        return Work("update", op.value, (count,), (count,), float(UPDATE_FLOPS * count), float(UPDATE_TRAFFIC * count * item_bytes), key)
    name = Op.FORWARD.value if op in (Op.INTERIOR, Op.BOUNDARY) else op.value
    local_x, local_y = x.largest, y.largest
    key = f"{layer.kind}.{name} x={_shape(local_x)} y={_shape(local_y)}{_options(network, layer, local_x)} {dtype}"
    if isinstance(layer, Flatten):
        return Work(layer.kind, name, local_x, local_y, 0.0, 0.0, key)
    n_x, n_y = math.prod(local_x), math.prod(local_y)
    moved = n_x + n_y + count
    if name == Op.BACKWARD.value and not isinstance(layer, (Conv2d, Linear)):
        # gradients, beside what was kept of the forward pass
        moved += n_y if layer.elementwise or isinstance(layer, Loss) else n_x + n_y
    return Work(layer.kind, name, local_x, local_y, _flops(network, layer, local_y), float(moved * item_bytes), key)


class Workload:
    """The work of every compute step of a plan."""

    def __init__(self, network: Network, plan: Plan) -> None:
        self.network, self.plan = network, plan
        self._fractions: dict[str, float] = {}

    def of(self, step: Compute) -> Work:
        """The work of one step."""
        layer = self.network.by_name[step.layer]
        config = self.plan.configs[layer.name]
        x = needed(self.network, layer, config, self.plan.batch)
        y = owned(self.network, layer, config, self.plan.batch)
        weights = parameters(self.network, layer, config) if layer.has_weights else None
        out = make_work(self.network, layer, step.op, x, y, weights, self.plan.dtype, self.plan.item_bytes)
        if step.op in (Op.INTERIOR, Op.BOUNDARY):
            inside = self._interior(layer, x, y)
            out = Work(out.kind, out.op, out.x, out.y, out.flops, out.bytes, out.key, inside if step.op is Op.INTERIOR else 1.0 - inside)
        return out

    def _interior(self, layer: Layer, want: Layout, y: Layout) -> float:
        """Part of the outputs of a middle rank that need no halo."""
        if layer.name not in self._fractions:
            producer = self.network.by_name[layer.inputs[0]]
            have = owned(self.network, producer, self.plan.configs[producer.name], self.plan.batch)
            digits = self.plan.configs[layer.name].digits
            middle = sum(digits[a].stride * (digits[a].size // 2) for a in digits)
            out = y.box(middle)
            whole = items(out)
            self._fractions[layer.name] = items(interior(have, want, out, middle)) / whole if whole else 1.0
        return self._fractions[layer.name]


def works(network: Network, plan: Plan) -> list[Work]:
    """Every distinct piece of work that the plan's largest rank does, in order of first use: what a calibration has to measure."""
    load = Workload(network, plan)
    schedule = lower(network, plan, lambda step: ("ring", 1))
    out: dict[str, Work] = {}
    for step in schedule.steps:
        if isinstance(step, Compute):
            work = load.of(step)
            out.setdefault(work.key, Work(work.kind, work.op, work.x, work.y, work.flops, work.bytes, work.key))
    return list(out.values())
