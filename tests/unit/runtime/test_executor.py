"""The executor before its first message."""

from __future__ import annotations

import pytest

from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.errors import RunError
from hpcpar.kernels.interface import Array
from hpcpar.kernels.numpy_backend import NumpyBackend
from hpcpar.machine import files
from hpcpar.plan.plan import NetworkSpec, make_plan
from hpcpar.runtime.executor import Executor
from tests.unit.cost.allocation import Silent


class Full(NumpyBackend):
    """A device without memory."""

    def zeros(self, shape: tuple[int, ...], dtype: object) -> Array:
        """Nothing."""
        raise MemoryError(f"unable to allocate {shape}")


def test_a_rank_that_runs_out_of_memory_says_so() -> None:
    plan = make_plan(NetworkSpec("lenet5", (1, 16, 16), 12), "data", 2, 4,
                     machine=files.load("local"))
    network = plan.network.build()
    silent = Silent(1, Full())
    with pytest.raises(RunError, match=r"^not enough memory for rank 1's part .*unable.*; "
                                       r"plan for more"):
        Executor(network, plan, schedule_for(network, plan), silent,  # type: ignore[arg-type]
                 Full(), 1)
