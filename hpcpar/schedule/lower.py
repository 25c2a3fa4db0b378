"""The one lowering: from a plan to the frozen schedule of an iteration."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from hpcpar.errors import InputError
from hpcpar.network.graph import Network
from hpcpar.network.layers import Conv2d, Input, Layer, SoftmaxCrossEntropy
from hpcpar.plan.config import Digit
from hpcpar.plan.layout import Axis, Layout, needed, owned, parameters
from hpcpar.plan.plan import Plan
from hpcpar.schedule.pattern import Pattern, backward_pattern, forward_pattern
from hpcpar.schedule.steps import Comm, Compute, Group, Kind, Op, Phase, Schedule, Step

#: Gives a communication step its algorithm and segments.
Chooser = Callable[[Comm], tuple[str, int]]

_NOT_YET = -1


@dataclass(frozen=True)
class Edge:
    """The tensor between two neighbouring layers: who owns which box of it and who needs which."""

    producer: Layer
    consumer: Layer
    owned: Layout
    needed: Layout
    forward: Pattern
    backward: Pattern


def edges(network: Network, plan: Plan) -> dict[str, Edge]:
    """The edge into every layer but the input, by the consumer's name."""
    out = {}
    for layer in network.layers:
        if isinstance(layer, Input):
            continue
        producer = network.by_name[layer.inputs[0]]
        have = owned(network, producer, plan.configs[producer.name], plan.batch)
        want = needed(network, layer, plan.configs[layer.name], plan.batch)
        out[layer.name] = Edge(producer, layer, have, want, forward_pattern(have, want), backward_pattern(have, want))
    return out


def gradient_digits(layer: Layer, plan: Plan) -> tuple[Digit, ...]:
    """Digits over which a weight's gradient is a partial sum: every cut of the output but that by channel."""
    digits = plan.configs[layer.name].digits
    return tuple(digits[a] for a in ("n", "h", "w") if digits[a].size > 1)


class _Builder:
    """Steps in order; communication steps learn later which step needs them."""

    def __init__(self, plan: Plan, choose: Chooser) -> None:
        self.plan, self.choose = plan, choose
        self.steps: list[Step] = []

    def compute(self, phase: Phase, layer: Layer, op: Op) -> None:
        self.steps.append(Compute(len(self.steps), phase, layer.name, op))

    def comm(
        self, phase: Phase, layer: str, tensor: str, pattern: Pattern, holder: Layout, wanter: Layout, item_bytes: int | None = None
    ) -> int:
        assert pattern.kind is not None
        size = self.plan.item_bytes if item_bytes is None else item_bytes
        step = Comm(
            len(self.steps), phase, layer, tensor, pattern.kind, holder, wanter, pattern.reduce, pattern.group, "direct", 1, size, _NOT_YET
        )
        if pattern.group is not None:
            algorithm, segments = self.choose(step)
            step = replace(step, algorithm=algorithm, segments=segments)
        self.steps.append(step)
        return step.index

    def needed_by(self, comm: int, step: int) -> None:
        at = self.steps[comm]
        assert isinstance(at, Comm)
        self.steps[comm] = replace(at, needed_by=step)

    def blocking(self, comm: int) -> None:
        self.needed_by(comm, comm + 1)


def loss_layout(plan: Plan, layer: Layer) -> Layout:
    """The two float64 numbers (loss, correct samples) that every rank holds a partial sum of."""
    return Layout(plan.configs[layer.name], (Axis("sums", 2, 2),))


def lower(network: Network, plan: Plan, choose: Chooser, *, training: bool = True) -> Schedule:
    """Turn a plan into steps.

    Forward, every layer's needed boxes are made from the owned ones of the layer before; backward, the adjoint movement sums
    gradients of needed boxes onto owned ones; each layer's weight gradient is summed as soon as it is complete. Under
    ``overlap="full"`` a halo travels while the interior of its convolution is computed, and the gradient of a layer's input
    while that of its weights is; under ``"gradient"`` or ``"full"`` the weights' gradients travel until their update.

    Parameters
    ----------
    choose : callable
        Picks algorithm and segments of every collective (from the cost model, or fixed).
    training : bool
        False for the forward pass and the loss only.
    """
    last = network.layers[-1]
    if isinstance(last, SoftmaxCrossEntropy) and plan.configs[last.name].c > 1:
        raise InputError(f"layer '{last.name}': a softmax cannot be split by class; give it c=1 (or use logistic outputs)")
    b = _Builder(plan, choose)
    edge = edges(network, plan)
    full = plan.overlap == "full"
    for layer in network.layers[1:]:
        _forward(b, edge[layer.name], full)
    digits = plan.configs[last.name].digits
    split = tuple(digits[a] for a in ("n", "c") if digits[a].size > 1)
    sums = None
    if split:
        layout = loss_layout(plan, last)
        sums = b.comm(Phase.LOSS, last.name, "loss", Pattern(Kind.ALLREDUCE, True, Group(split)), layout, layout, item_bytes=8)
    if training:
        pending = _backward(b, network, plan, edge, full)
        for name, comm in pending:
            if comm is not None:
                b.needed_by(comm, len(b.steps)) if plan.overlap != "none" else b.blocking(comm)
            b.compute(Phase.UPDATE, network.by_name[name], Op.UPDATE)
    if sums is not None:
        b.needed_by(sums, len(b.steps)) if plan.overlap != "none" else b.blocking(sums)
    assert all(s.needed_by > s.index for s in b.steps if isinstance(s, Comm))
    return Schedule(plan.ranks, tuple(b.steps))


def _forward(b: _Builder, e: Edge, full: bool) -> None:
    layer, comm = e.consumer, None
    if e.forward.kind is not None:
        comm = b.comm(Phase.FORWARD, layer.name, f"{layer.name}.input", e.forward, e.owned, e.needed)
    if comm is not None and full and e.forward.kind is Kind.HALO and isinstance(layer, Conv2d):
        b.compute(Phase.FORWARD, layer, Op.INTERIOR)
        b.needed_by(comm, len(b.steps))
        b.compute(Phase.FORWARD, layer, Op.BOUNDARY)
        return
    if comm is not None:
        b.blocking(comm)
    b.compute(Phase.FORWARD, layer, Op.FORWARD)


def _backward(b: _Builder, network: Network, plan: Plan, edge: dict[str, Edge], full: bool) -> list[tuple[str, int | None]]:
    """Backward steps; returns weighted layers with the step that sums their gradient (None where nothing is summed)."""
    first = network.layers.index(network.weighted[0]) if network.weighted else len(network.layers)
    pending: list[tuple[str, int | None]] = []
    for i in range(len(network.layers) - 1, first - 1, -1):
        layer = network.layers[i]
        e = edge[layer.name]
        comm = None
        if i > first:
            b.compute(Phase.BACKWARD, layer, Op.BACKWARD)
            if e.backward.kind is not None:
                comm = b.comm(Phase.BACKWARD, layer.name, f"{layer.name}.input.gradient", e.backward, e.needed, e.owned)
        if comm is not None and not (full and layer.has_weights):
            b.blocking(comm)
        if not layer.has_weights:
            continue
        b.compute(Phase.BACKWARD, layer, Op.BACKWARD_WEIGHT)
        if comm is not None and full:
            b.needed_by(comm, len(b.steps))
        digits = gradient_digits(layer, plan)
        total = None
        if math.prod(d.size for d in digits) > 1:
            layout = parameters(network, layer, plan.configs[layer.name])
            total = b.comm(
                Phase.GRADIENT, layer.name, f"{layer.name}.weight.gradient", Pattern(Kind.ALLREDUCE, True, Group(digits)), layout, layout
            )
            if plan.overlap == "none":
                b.blocking(total)
        pending.append((layer.name, total))
    return pending
