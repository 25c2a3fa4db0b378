"""Decides which steps, in which order, make an iteration of a plan or of a family of plans.

An outline lists the steps of one pass, with every step that occurs in some plan of the family. A
plan with micro-batches has several passes per stage, and its list has every step of every pass. The
cost model prices this list, and the executor runs it: each stage does its own steps, in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hpcpar.errors import InputError
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.boxes import block
from hpcpar.plan.plan import Overlap, Plan
from hpcpar.schedule.buckets import Pending
from hpcpar.schedule.builder import Builder
from hpcpar.schedule.one_weird_trick import switch
from hpcpar.schedule.overlap import Listed, Outline, awaited
from hpcpar.schedule.pattern_family import collective
from hpcpar.schedule.pipeline_order import cells, firsts
from hpcpar.schedule.steps import (
    PASSES,
    Chooser,
    Comm,
    Compute,
    Kind,
    Op,
    Phase,
    Schedule,
    Step,
)
from hpcpar.schedule.weights import gradient, update


def lower(network: Network, plan: Plan, choose: Chooser, *, training: bool = True) -> Schedule:
    """The steps of an iteration in execution order; see `outline` for the parameters."""
    return in_order(plan, outlines(network, plan, choose, training=training), training)


def outlines(network: Network, plan: Plan, choose: Chooser, *,
             training: bool = True) -> list[Outline]:
    """One outline per micro-batch; micro-batches of one size share it. The last is the largest."""
    known: dict[int, Outline] = {}
    for part in reversed(range(plan.microbatches)):
        samples = samples_of(plan, part)
        if samples not in known:
            known[samples] = outline(network, plan, choose, training=training, samples=samples)
    return [known[samples_of(plan, part)] for part in range(plan.microbatches)]


def samples_of(plan: Plan, part: int) -> int:
    """Samples of a micro-batch."""
    start, stop = block(plan.batch, plan.microbatches, part)
    return stop - start


# -- one pass --------------------------------------------------------------------------------------
def outline(network: Network, plan: Plan, choose: Chooser, *, training: bool = True,
            samples: int | None = None) -> Outline:
    """Turn a plan, or a family of plans, into steps.

    In the forward pass, each layer's needed boxes come from the boxes that its producers own. In
    the backward pass, the adjoint movements sum gradients of needed boxes onto owned boxes. Ranks
    sum a weight gradient as soon as it is complete. `hpcpar.schedule.overlap` decides
    which movements overlap with which steps.

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
    b = Builder(network, plan, choose, training, firsts(network, plan))
    samples = plan.samples_of_a_pass if samples is None else samples
    if plan.fc_passes == 1:
        b.forward(network.layers[1:], samples)
        sums = b.loss()
        if training:
            update(b, b.backward(network.layers, samples))
        b.wait(sums)
    else:
        at = switch(network)
        b.forward(network.layers[1:at], samples)
        _fc_passes(b, network.layers[at:], training)
        if training:
            update(b, b.backward(network.layers[:at], samples))
    return b.outline()


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

    def fetch(number: int) -> Comm | None:
        now, b.part = b.part, number
        move = b.move(Phase.FORWARD, first.name, edge.tensor, forward, layout, edge.needed,
                      (edge.key, plan.switch), root=root(number))
        b.part = now
        return move

    def root(number: int) -> int:
        return number if plan.switch == "one" else 0

    arriving = fetch(0)
    returned: list[Comm | None] = []
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
        b.wait(sums)
        if number + 1 < plan.fc_passes and not overlaps:
            arriving = fetch(number + 1)
    b.part = 0
    if overlaps:
        for move in returned:
            b.wait(move)


# -- all passes ------------------------------------------------------------------------------------
def in_order(plan: Plan, outlines: Sequence[Outline], training: bool = True) -> Schedule:
    """The steps of an iteration in execution order, from one outline per micro-batch."""
    if plan.microbatches == 1:
        places = [Listed(0, 0, step) for step in outlines[0].steps]
    else:
        places = _by_pass(plan, outlines, training)
    steps: list[Step] = []
    for at, ((part, _, step), needed_by) in enumerate(zip(places, awaited(places), strict=True)):
        if len(outlines) == 1:
            part = step.part
        elif step.phase not in PASSES:
            part = 0
        if isinstance(step, Comm):
            step = replace(step, index=at, part=part, needed_by=needed_by)
        elif (step.index, step.part) != (at, part):
            step = replace(step, index=at, part=part)
        steps.append(step)
    return Schedule(plan.ranks, tuple(steps))


#: When a stage does a step: in its forward or backward passes, in its last backward pass
#: (gradients), or at the end of the iteration (updates).
_WHEN = {Phase.FORWARD: Phase.FORWARD, Phase.RECOMPUTE: Phase.BACKWARD,
         Phase.BACKWARD: Phase.BACKWARD, Phase.GRADIENT: Phase.GRADIENT, Phase.LOSS: Phase.UPDATE,
         Phase.UPDATE: Phase.UPDATE}


class _Steps:
    """An outline's steps by (stage, when): `inside` a stage, or `leaving` it for other stages."""

    def __init__(self, outline: Outline) -> None:
        self.inside: dict[tuple[int, Phase], list[Step]] = defaultdict(list)
        self.leaving: dict[tuple[int, Phase], list[Step]] = defaultdict(list)
        for step in outline.steps:
            inside = isinstance(step, Compute) or step.stage in step.receivers
            chosen = self.inside if inside else self.leaving
            chosen[step.stage, _WHEN[step.phase]].append(step)


def _by_pass(plan: Plan, outlines: Sequence[Outline], training: bool) -> list[Listed]:
    """Pass by pass: the steps inside its stage, then the messages to other stages. Each stage sums
    its weight gradients in its last backward pass.
    """
    steps = {outline: _Steps(outline) for outline in dict.fromkeys(outlines)}
    last, stages = plan.microbatches - 1, len(outlines[0].starts)
    order = cells(plan.order, stages, plan.microbatches, training)
    places: list[Listed] = []
    for number, cell in enumerate(order):
        of_part, key = steps[outlines[cell.part]], (cell.stage, cell.phase)
        inside = of_part.inside[key]
        if cell.phase is Phase.BACKWARD and cell.part == last:
            gradients = of_part.inside[cell.stage, Phase.GRADIENT]
            inside = sorted(inside + gradients, key=lambda step: step.index)
        places += [Listed(cell.part, number, step) for step in (*inside, *of_part.leaving[key])]
    ending = [step for stage in range(stages)
              for step in steps[outlines[last]].inside[stage, Phase.UPDATE]]
    ending.sort(key=lambda step: step.index)
    return places + [Listed(last, len(order), step) for step in ending]
