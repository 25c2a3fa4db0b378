"""Decides what limits a plan: ParaDL's limitations and bottlenecks (Table 6), in seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hpcpar.io.schema import plain
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan.layout import owned, parameters
from hpcpar.plan.limits import limit, limits_in_words
from hpcpar.plan.plan import Plan
from hpcpar.prediction.prediction import Prediction
from hpcpar.prediction.price import price
from hpcpar.schedule.steps import PASSES, Phase
from hpcpar.search.candidates import Candidate
from hpcpar.search.limitation import Limitation
from hpcpar.search.memory_advice import MemoryAdvice, memory_advice
from hpcpar.search.outside_model import outside_model
from hpcpar.search.scaling_losses import input_of_a_node, losses
from hpcpar.search.what_if import WhatIf, what_ifs

#: Endings of the labels of point-to-point steps.
POINT_TO_POINT = (".halo", ".redistribute")


@dataclass(frozen=True)
class Explanation:
    """The limitations of a plan, and the changes that would help.

    Attributes
    ----------
    bottleneck : str
        The term with the most exposed time; ``computing`` if that is below a tenth of the
        iteration.
    not_in_prediction : tuple of str
        Effects that the prediction does not contain.
    changes : tuple of WhatIf
        Changes that help, the most helpful first.
    """

    memory: MemoryAdvice | None
    bottleneck: str
    terms: tuple[Limitation, ...]
    not_in_prediction: tuple[str, ...]
    changes: tuple[WhatIf, ...]

    def to_json(self) -> dict[str, Any]:
        """The explanation as JSON data."""
        document: dict[str, Any] = plain(vars(self) | {"memory": self.memory and
                                                       self.memory.to_json()})
        return document


def explain(network: Network, chosen: Candidate) -> Explanation:
    """Explain a priced strategy."""
    p, plan, machine = chosen.prediction, chosen.plan, chosen.task.machine
    options = chosen.task.price_options
    terms = [
        input_of_a_node(chosen),
        _communication(p, "gradient exchange", (Phase.GRADIENT, Phase.UPDATE, Phase.LOSS)),
        _communication(p, "layer-wise communication", PASSES, direct=False),
        _communication(p, "p2p communication", PASSES, direct=True),
        _contention(network, plan, machine, p, options),
        _memory(network, plan, p),
        _capacity(p),
        _update(p),
        *_balance(network, plan, p),
        *losses(chosen, options),
        _limit(network, plan, p),
    ]
    worst = max((t for t in terms if t.exposed_s is not None and t.name != "network congestion"),
                key=lambda t: t.exposed_s or 0.0)
    busy = (worst.exposed_s or 0.0) > 0.1 * p.iteration_s
    return Explanation(memory_advice(chosen), worst.name if busy else "computing", tuple(terms),
                       outside_model(chosen), tuple(what_ifs(network, chosen)))


def _communication(p: Prediction, name: str, phases: tuple[Phase, ...],
                   direct: bool | None = None) -> Limitation:
    """Communication in some phases: point to point (`direct`), the rest (False), or both (None)."""
    names = [phase.value for phase in phases]
    stage = p.longest_stage
    steps = [s for s in p.of_stage(stage) if s.is_comm and s.phase in names]
    if direct is not None:
        steps = [s for s in steps if s.label.endswith(POINT_TO_POINT) == direct]
    seconds, exposed = sum(s.seconds for s in steps), sum(s.exposed_s for s in steps)
    sent = sum(s.sent_bytes for s in steps if s.stage == stage)
    return Limitation("communication", name, seconds, exposed,
                      f"{len(steps)} steps, at most {sent / 1e6:.4g} MB sent by a rank")


def _contention(network: Network, plan: Plan, machine: Machine, p: Prediction,
                options: dict[str, Any]) -> Limitation:
    alone = price(network, plan, machine, **(options | {"contention": 1.0}))
    return Limitation("communication", "network congestion",
                      p.communication_s - alone.communication_s, p.iteration_s - alone.iteration_s,
                      "this job's own flows share links: communication takes "
                      f"{p.communication_s / max(alone.communication_s, 1e-30):.3g} times as long")


def _memory(network: Network, plan: Plan, p: Prediction) -> Limitation:
    """Weights and activations that several ranks hold redundantly."""
    held = whole = 0.0
    for layer in network.layers:
        config = plan.configs[layer.name]
        ranks = float(config.ranks)
        y = owned(network, layer, config, plan.samples_of_a_pass)
        held += ranks * float(y.largest_items)
        whole += float(plan.samples_of_a_pass) * math.prod(network.shapes[layer.name])
        if layer.has_weights:
            held += 3 * ranks * float(parameters(network, layer, config).largest_items)
            whole += 3 * layer.parameters(network.input_shape(layer))
    return Limitation("memory", "memory redundancy", None, None,
                      f"all ranks together hold {held / whole:.3g} times the size of one copy; "
                      f"{p.memory_bytes / 1e9:.4g} GB per rank")


def _capacity(p: Prediction) -> Limitation:
    used = p.memory_bytes / p.memory_limit_bytes
    state = "fits"
    if used > 0.9:
        state = "does not fit" if used > 1 else "little room: allocations may stall"
    return Limitation("memory", "memory stalling", None, None,
                      f"{used:.0%} of a rank's memory: {state}")


def _update(p: Prediction) -> Limitation:
    seconds = sum(s.seconds for s in p.of_stage(p.longest_stage)
                  if s.phase == Phase.UPDATE.value and not s.is_comm)
    return Limitation("computation", "weight update", seconds, seconds,
                      f"{seconds / max(p.compute_s, 1e-30):.1%} of computation")


def _balance(network: Network, plan: Plan, p: Prediction) -> list[Limitation]:
    """Time lost to uneven parts, redundant computation, and the pipeline bubble."""
    uneven = redundant = 0.0
    for s in p.of_stage(p.longest_stage):
        if s.is_comm:
            continue
        layer = network.by_name[s.layer]
        config = plan.configs[layer.name]
        y = owned(network, layer, config, plan.samples_of_a_pass)
        parts = float(config.ranks) / float(y.replicas)
        mean = float(plan.samples_of_a_pass) * math.prod(network.shapes[layer.name]) / parts
        if s.phase != Phase.UPDATE.value:
            uneven += s.seconds * max(0.0, 1 - mean / max(1.0, float(y.largest_items)))
            redundant += s.seconds * (1 - 1 / float(config.replicas))
    terms = [
        Limitation("computation", "workload balancing", uneven, uneven,
                   "largest part minus mean part"),
        Limitation("computation", "computation redundancy", redundant, redundant,
                   "several ranks do the same work"),
    ]
    if len(p.stages) > 1:
        remark = "the busiest stage waits for others: filling, draining, uneven stages"
        terms.append(Limitation("computation", "pipeline bubble", p.bubble_s, p.bubble_s, remark))
    return terms


def _limit(network: Network, plan: Plan, p: Prediction) -> Limitation:
    """Number of ranks that the strategy can use (the last column of ParaDL's Table 3)."""
    most = limit(network, plan.strategy, plan.batch)
    remark = (f"beyond its limit: {limits_in_words(p.limits)}" if p.limits else
              f"'{plan.strategy}' can use up to {most} ranks here")
    return Limitation("scaling", "number of PEs", None, None, remark)
