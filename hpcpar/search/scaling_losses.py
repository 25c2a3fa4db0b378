"""Losses of several ranks against one rank, part by part, and the input of a node."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hpcpar.cost.compute.step_time import slowest
from hpcpar.plan.frameworks import OWN
from hpcpar.plan.plan import Overlap
from hpcpar.prediction.price import price
from hpcpar.search.candidates import Candidate
from hpcpar.search.limitation import Limitation

#: The loss to the slowest of equal devices.
SLOWEST = "slowest rank"


def losses(chosen: Candidate, options: dict[str, Any]) -> Iterator[Limitation]:
    """The losses of a priced plan; `options` are the options of its price.

    The slowest rank, computing that messages slow down, and a framework's rules.
    """
    p, machine, plan = chosen.prediction, chosen.task.machine, chosen.plan
    if p.ranks == 1:
        return
    by = machine.factors
    factor = slowest(machine.device, p.ranks, by.loss / by.computing)
    if factor > 1:
        seconds = p.compute_s * (1 - 1 / factor)
        yield Limitation("scaling", SLOWEST, seconds, seconds,
                         f"of {p.ranks} equal devices: {factor - 1:.1%} above the median")
    if machine.overlap < 1 and plan.overlap is not Overlap.NONE:
        seconds = (1 - machine.overlap) * p.communication_s
        yield Limitation("scaling", "interference", seconds, seconds,
                         f"computing waits for {1 - machine.overlap:.0%} of the communication "
                         "beside it")
    if plan.framework != OWN:
        own = price(chosen.task.network, replace(plan, framework=OWN), machine, **options)
        seconds = p.iteration_s - own.iteration_s
        yield Limitation("scaling", f"rules of {plan.framework}", seconds, seconds,
                         "updates wait for the last gradient" * plan.rules.updates_at_end
                         + f", sums for cycles of {1e3 * plan.rules.cycle_s:g} ms"
                         * (plan.rules.cycle_s > 0))


def input_of_a_node(chosen: Candidate) -> Limitation:
    """Reading the images of the next iteration: what exceeds this one is exposed."""
    p, task = chosen.prediction, chosen.task
    share = min(task.machine.ranks_of_node or p.ranks, p.ranks) / p.ranks
    samples = p.batch * share / p.iteration_s
    values = math.prod(task.network.image_shape) * float(task.options.get("io_item_bytes", 1.0))
    waiting = max(0.0, p.iteration_s - p.total_s) if p.io_s else None
    return Limitation("input", "reading images", p.io_s or None, waiting,
                      f"a node needs {samples:,.0f} samples/s, {samples * values / 1e6:,.1f} MB/s")
