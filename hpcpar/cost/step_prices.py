"""Decides the price of a step: seconds, messages and bytes, for all plans of a family at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

import numpy as np

from hpcpar.cost.compute.step_time import timed
from hpcpar.cost.compute.work import Workload
from hpcpar.cost.network.contention import NetworkModel
from hpcpar.cost.network.transfer import paper_comm_s, traffic
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan.config import Flags, Floats, Ints
from hpcpar.plan.plan import Plan
from hpcpar.schedule.edges import Edges
from hpcpar.schedule.steps import HOST, Comm, Compute, Step


class StepPrice(NamedTuple):
    """The price of a step; numbers may be arrays with one entry per plan of a family.

    Attributes
    ----------
    seconds : float
        Duration on the slowest rank; 0 for plans of a family without this step. In a simulation,
        the duration on every rank.
    messages, sent_bytes : int
        Messages and bytes of the busiest sender; 0 for compute steps.
    through_bytes : int
        Upper bound of the bytes that a rank sends and receives point to point.
    measured : bool
        The time comes from the machine's calibrated table.
    level : int
        Index of the machine's level that a communication crosses.
    latency_s : float
        Time at the end of a message between stages in which the next one may use the links.
    end_s : callable, optional
        In a simulation, maps the start times of a communication on all ranks to its end times,
        where ranks wait for each other. `seconds` is its duration if all start at once.
    """

    seconds: Floats
    messages: Ints = 0
    sent_bytes: Ints = 0
    through_bytes: Ints = 0
    measured: Flags = False
    level: Ints = 0
    latency_s: float = 0.0
    end_s: Callable[[Floats], Floats] | None = None


def latency_s(machine: Machine, step: Comm, price: StepPrice) -> float:
    """`StepPrice.latency_s` of a priced movement; 0 within a stage."""
    if step.stage in step.receivers:
        return 0.0
    # only single plans have stages
    message_bytes = float(price.sent_bytes) / max(1, int(price.messages))
    return min(float(price.seconds), machine.levels[int(price.level)].latency_s(message_bytes))


def _plain(value: Floats) -> Floats:
    """The number of a single plan, as a plain float."""
    return value if np.ndim(value) else float(value)


class StepPricer:
    """Prices the steps of a plan, or of a family of plans, on a machine.

    Steps with equal layers, shapes and configurations are priced once. With `paper`, communication
    is priced by the formulas of Gholami et al. instead of as it runs.
    """

    def __init__(self, network: Network, plan: Plan, machine: Machine, network_model: NetworkModel,
                 edges: Edges, paper: bool = False) -> None:
        self.network, self.plan, self.machine = network, plan, machine
        self.network_model = network_model
        self.edges, self.paper = edges, paper
        self._workload = Workload(network, plan, edges)
        self._known: dict[Hashable, StepPrice] = {}

    def price(self, step: Step) -> StepPrice:
        """The price of a step."""
        return self._movement(step) if isinstance(step, Comm) else self._computation(step)

    def _movement(self, step: Comm) -> StepPrice:
        key = (step.key, step.layer if self.paper else "")
        if key not in self._known:
            sent = traffic(step, self.network_model, self.plan.ranks)
            seconds = sent.seconds
            if self.paper and not np.any(np.equal(step.algorithm, HOST)):
                seconds = paper_comm_s(step, self.network_model, self.network, self.plan)
            level = sent.level if np.ndim(sent.level) else int(sent.level)
            price = StepPrice(_plain(seconds), sent.messages, sent.sent_bytes, sent.through_bytes,
                              level=level)
            self._known[key] = price._replace(latency_s=latency_s(self.machine, step, price))
        return self._known[key]

    def _computation(self, step: Compute) -> StepPrice:
        if step.key not in self._known:
            seconds, measured = timed(self.machine, self._workload.of(step), self.plan.ranks)
            self._known[step.key] = StepPrice(_plain(seconds), measured=measured)
        price = self._known[step.key]
        if step.present is True:
            return price
        return StepPrice(_plain(np.where(step.present, price.seconds, 0.0)),
                         measured=price.measured)
