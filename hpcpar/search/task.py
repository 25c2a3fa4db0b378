"""The planning problem that searches solve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hpcpar.cost.network.contention import NetworkModels
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan.plan import NetworkSpec

#: Options of a plan; all other options go to pricing.
PLAN_OPTIONS = ("overlap", "collectives", "precision", "synchronization", "batch_norm",
                "microbatches", "optimizer", "order", "bucket_bytes", "recompute", "framework")
#: Option that limits batch parallelism: least samples of a mini-batch on each rank.
LEAST_BATCH = "min_batch_per_rank"


@dataclass(frozen=True)
class PlanningTask:
    """A planning problem: a network, a number of ranks and a mini-batch on a machine.

    Attributes
    ----------
    machine : Machine
        With the factors of its anchors for this problem.
    gather : str
        One of `hpcpar.plan.strategies.GATHERS`.
    samples : int or None
        Samples of an epoch.
    options : dict
        Options of `Plan` (see `PLAN_OPTIONS`), of `price`, and ``min_batch_per_rank``.
        ``bucket_bytes=None`` chooses the fastest size of buckets for every plan.
    tell : callable
        Receives a description of the search's next step.
    networks : NetworkModels
        The prices of collectives that the search knows.
    """

    network: Network
    spec: NetworkSpec
    ranks: int
    batch: int
    machine: Machine
    gather: str
    samples: int | None
    options: dict[str, Any]
    tell: Callable[[str], None] = field(default=lambda _: None, repr=False, compare=False)
    networks: NetworkModels = field(default_factory=NetworkModels, repr=False, compare=False)

    @property
    def plan_options(self) -> dict[str, Any]:
        return {k: v for k, v in self.options.items() if k in PLAN_OPTIONS and v is not None}

    @property
    def training(self) -> bool:
        """False for inference."""
        return bool(self.options.get("training", True))

    @property
    def opens_buckets(self) -> bool:
        """True if the search chooses the size of buckets."""
        return self.options.get("bucket_bytes", 0) is None

    @property
    def price_options(self) -> dict[str, Any]:
        options = {k: v for k, v in self.options.items() if k not in (*PLAN_OPTIONS, LEAST_BATCH)}
        return options | {"networks": self.networks}

    @property
    def most_parts(self) -> int:
        """Most parts into which layers may cut the mini-batch."""
        return self.batch // (self.options.get(LEAST_BATCH) or 1)
