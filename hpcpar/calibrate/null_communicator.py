"""A communicator that sends nothing, to measure compute with the memory use of a run."""

from __future__ import annotations

import numpy as np

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.transfer import Transfer
from hpcpar.comm.world import World
from hpcpar.kernels.interface import Array, Backend
from hpcpar.schedule.steps import PASSES, Kind


class NullCommunicator(Communicator):
    """Packs outgoing messages, and replaces incoming ones by normally distributed numbers.

    Layers share memory. Without the random numbers, a layer would read values of other layers, and
    these would grow or decay over the iterations until they overflow or become denormal, which
    changes compute times. Allreduces of gradients and moments keep the rank's own summand, because
    random weights or variances are not valid.
    """

    def __init__(self, world: World, backend: Backend) -> None:
        super().__init__(world, backend)
        self._rng = np.random.default_rng(world.rank)
        self._pool: Array = backend.zeros((0,), np.float32)

    def start(self, transfer: Transfer) -> None:
        transfer.buffers.pack()

    def wait(self, transfer: Transfer) -> None:
        step, buffers = transfer.step, transfer.buffers
        if step.kind is Kind.ALLREDUCE:
            buffers.unpack()
        elif step.phase in PASSES and buffers.wanted.size:
            self.backend.copy(self._random(buffers.wanted.shape, buffers.dtype), buffers.wanted)

    def _random(self, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        """Normally distributed numbers on the device, the same in every iteration."""
        size = int(np.prod(shape))
        if self._pool.size < size or self._pool.dtype != dtype:
            self._pool = self.backend.upload(self._rng.standard_normal(size).astype(dtype))
        return self._pool[:size].reshape(shape)
