"""Lowering: from a network and a plan to the one list of steps that is priced and executed."""

from __future__ import annotations

from hpcpar.network.graph import Network
from hpcpar.plan.plan import Plan
from hpcpar.schedule.freeze import freeze, samples_of
from hpcpar.schedule.outline import outline
from hpcpar.schedule.outline_steps import Chooser, Outline
from hpcpar.schedule.steps import Schedule


def lower(network: Network, plan: Plan, choose: Chooser, *, training: bool = True) -> Schedule:
    """The frozen schedule of a plan; see `outline`."""
    return freeze(plan, outlines(network, plan, choose, training=training), training)


def outlines(network: Network, plan: Plan, choose: Chooser, *,
             training: bool = True) -> list[Outline]:
    """One outline per micro-batch; micro-batches of one size share it. The last is the largest."""
    largest = outline(network, plan, choose, training=training)
    known = {plan.samples_of_a_pass: largest}
    out = []
    for part in range(plan.microbatches):
        samples = samples_of(plan, part)
        if samples not in known:
            known[samples] = outline(network, plan, choose, training=training, samples=samples)
        out.append(known[samples])
    return out
