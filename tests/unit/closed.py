"""The price of a plan by the closed forms alone, whatever its ranks."""

from __future__ import annotations

from typing import Any

from hpcpar.cost.price_family import price_family
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan.plan import Plan
from hpcpar.prediction.prediction import Prediction
from hpcpar.prediction.price import detailed


def price(network: Network, plan: Plan, machine: Machine, samples: int | None = None,
          **options: Any) -> Prediction:
    """As `hpcpar.prediction.price.price` on many ranks."""
    costs = price_family(network, plan, machine, **options)
    return detailed(network, plan, machine, costs, samples=samples, **options)
