"""The memory that a rank's executor allocates, by use, for tests: nothing is computed or sent."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpcpar.kernels.numpy_backend import NumpyBackend
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.plan import Plan
from hpcpar.runtime import parameters
from hpcpar.runtime.executor import Executor
from hpcpar.schedule.messages import exchange
from hpcpar.schedule.steps import Comm, Schedule
from hpcpar.schedule.wire import landing_slots, wire


class Recorder(NumpyBackend):
    """NumPy's kernels, and a note of every array that is still there."""

    def __init__(self) -> None:
        super().__init__()
        self._made: list[weakref.ref[Any]] = []

    def _note(self, array: Any) -> Any:
        self._made.append(weakref.ref(array))
        return array

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self._note(super().empty(shape, dtype))

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Nothing is computed: contents do not matter, and writing zeros would take a third of the
        time.
        """
        return self.empty(shape, dtype)

    def to_device(self, host: np.ndarray, array: Any) -> None:
        """Contents do not matter."""

    @property
    def alive_bytes(self) -> int:
        """Bytes of the distinct arrays that something still refers to."""
        return sum(array.nbytes for ref in self._made if (array := ref()) is not None)


@pytest.fixture
def no_initial_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are not drawn."""
    skip_initial_weights(monkeypatch)


def skip_initial_weights(patch: pytest.MonkeyPatch) -> None:
    """Do not draw weights, which would take most of the time."""

    def nothing(network: Network, layer: Layer, seed: int, start: int, stop: int,
                dtype: str) -> np.ndarray:
        row = layer.weight_shape(network.input_shape(layer))[1:]
        return np.broadcast_to(np.zeros((), dtype), (stop - start, *row))

    patch.setattr(parameters, "initial_rows", nothing)


class Silent:
    """A communicator that asks for the memory of messages where no view of a tensor serves, and
    sends none.
    """

    def __init__(self, rank: int, backend: NumpyBackend) -> None:
        self.world, self.backend = SimpleNamespace(rank=rank), backend

    def progress(self) -> None:
        """Nothing is in flight."""

    def agree(self, schedule: Schedule) -> None:
        """There is nobody else."""

    def prepare(self, step: Comm, held: Any, wanted: Any) -> Any:
        rank = self.world.rank
        assert held.size == np.prod([b - a for a, b in step.source_box(rank)]), step.label
        ex = exchange(step, rank)
        return SimpleNamespace(
            step=step, wire_items=wire(step, ex, rank, held, wanted, on_host=True).items,
            landing_items=sum(landing_slots(step, ex).values()),
            dtype=np.dtype(f"V{step.item_bytes}"),
            on_device=False, place=lambda flat: None,
        )

    def connect(self, buffers: Any, tags: int) -> None:
        """There is nobody to send to."""


def allocated(plan: Plan, schedule: Schedule, rank: int, network: Network) -> dict[str, int]:
    """Bytes of one rank's executor by use; labels and losses, which no plan changes much, aside."""
    backend = Recorder()
    communicator = Silent(rank, backend)
    made = Executor(network, plan, schedule, communicator, backend, 1)  # type: ignore[arg-type]
    weights = sum(array.nbytes for p in made.parameters.values()
                  for array in (p.flat, p.copy, p.grad, p.buffers) if array is not None)
    aside = {id(op.parameters.grad): op.parameters.grad for p in made.passes
             for op in p.ops.values() if op.ctx.parameters is not None}
    weights += sum(g.nbytes for g in aside.values()
                   if all(g is not p.grad for p in made.parameters.values()))
    state = sum(array.nbytes for p in made.parameters.values() for array in p.state)
    labels = sum(p.labels.nbytes for p in made.fc_passes or made.passes)
    losses = made._sums.nbytes + sum(p.sums.nbytes for p in made._passes.all)
    m = made.memory
    unused = m.blocks_bytes - m.alive_bytes
    return {"weights": weights, "state": state, "blocks": backend.alive_bytes - weights - state
            - labels - losses - unused, "wire": m.flying_bytes,
            "unused": unused + m.messages_bytes - m.flying_bytes}
