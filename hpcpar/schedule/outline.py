"""The one lowering: from a plan, or a family of plans, to the steps of an iteration.

An outline lists every step that occurs in some case of the family, with its values in each case. A
single plan is a family of one. `hpcpar.schedule.freeze` freezes its outline to the schedule that
the executor runs; the cost model prices outlines.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcpar.errors import InputError
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.plan import Overlap, Plan
from hpcpar.schedule.buckets import Pending
from hpcpar.schedule.builder import Builder
from hpcpar.schedule.one_weird_trick import switch
from hpcpar.schedule.outline_steps import Chooser, Move, Outline
from hpcpar.schedule.pattern_family import collective
from hpcpar.schedule.steps import Kind, Op, Phase
from hpcpar.schedule.weights import gradient, update


def outline(network: Network, plan: Plan, choose: Chooser, *, training: bool = True,
            samples: int | None = None) -> Outline:
    """Turn a plan, or a family of plans, into steps.

    In the forward pass, each layer's needed boxes come from the boxes that its producers own. In
    the backward pass, the adjoint movements sum gradients of needed boxes onto owned boxes. Ranks
    sum a weight gradient as soon as it is complete. Under `Overlap.FULL` a halo travels while its
    convolution computes the interior, and an input gradient travels while its layer computes the
    weight gradient. Under ``"gradient"`` or ``"full"`` weight gradients travel until their update.

    Parameters
    ----------
    choose : callable
        Picks algorithm and segments of every collective (from the cost model, or fixed).
    training : bool
        False for the forward pass and the loss only.
    samples : int, optional
        Samples of the pass; by default the largest pass's.
    """
    for layer in network.layers:
        if not layer.splits_channels and np.any(np.greater(plan.configs[layer.name].c, 1)):
            raise InputError(f"layer '{layer.name}' ({layer.kind}) cannot be split by channels; "
                             "give it c=1 (or, for a classification loss, use logistic outputs)")
    b = Builder(network, plan, choose, training)
    samples = plan.samples_of_a_pass if samples is None else samples
    if plan.fc_passes == 1:
        b.forward(network.layers[1:], samples)
        sums = b.loss()
        if training:
            update(b, b.backward(network.layers[1:], samples))
        b.finish(sums)
    else:
        at = switch(network)
        b.forward(network.layers[1:at], samples)
        _fc_passes(b, network.layers[at:], training)
        if training:
            update(b, b.backward(network.layers[1:at], samples))
    return b.out


def _fc_passes(b: Builder, layers: Sequence[Layer], training: bool) -> None:
    """Run the layers after the switch in passes, each on a part of the batch, while the next pass's
    activations travel (OWT's schemes b and c).

    Their weights are updated after every pass (variable batch size).
    """
    plan, first = b.plan, layers[0]
    samples = -(-plan.batch // plan.fc_passes)
    (edge,) = b.edges.into(first, samples)
    forward, adjoint = edge.forward, edge.backward
    if plan.switch == "one":  # a single rank's samples at a time
        mesh_axes = (plan.configs[edge.producer.name].mesh_axes["n"],)
        forward, adjoint = collective(Kind.BROADCAST, mesh_axes), collective(Kind.REDUCE, mesh_axes)
    layout = edge.needed if plan.switch == "one" else edge.owned
    overlaps = plan.overlap is Overlap.FULL

    def fetch(number: int) -> Move | None:
        now, b.part = b.part, number
        move = b.move(Phase.FORWARD, first.name, edge.tensor, forward, layout, edge.needed,
                      (edge.key, plan.switch), root=root(number))
        b.part = now
        return move

    def root(number: int) -> int:
        return number if plan.switch == "one" else 0

    arriving = fetch(0)
    returned: list[Move | None] = []
    for number in range(plan.fc_passes):
        b.part = number
        b.wait(arriving)
        if number + 1 < plan.fc_passes and overlaps:
            arriving = fetch(number + 1)
        b.layer_forward(first, samples, [(edge, None)])
        b.forward(layers[1:], samples)
        sums = b.loss()
        if training:
            pending = b.backward(layers[1:], samples)
            if b.needs_input_gradient(first):
                b.compute(Phase.BACKWARD, first, Op.BACKWARD, samples)
                key = (edge.key, plan.switch)
                returned.append(b.move(Phase.BACKWARD, first.name, edge.gradient, adjoint,
                                       edge.needed, layout, key, root=root(number)))
                if not overlaps:
                    b.wait(returned[-1])
            if first.learns:
                b.compute(Phase.BACKWARD, first, Op.BACKWARD_WEIGHT, samples)
                pending.append(Pending(first, gradient(b, (first,))))
            update(b, pending)
        b.finish(sums)
        if number + 1 < plan.fc_passes and not overlaps:
            arriving = fetch(number + 1)
    b.part = 0
    if overlaps:
        for move in returned:
            b.wait(move)
