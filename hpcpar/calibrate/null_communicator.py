"""A communicator that sends nothing, to measure computing with memory as full as in a run."""

from __future__ import annotations

import numpy as np

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.transfer import Transfer
from hpcpar.comm.world import World
from hpcpar.kernels.interface import Backend
from hpcpar.schedule.steps import PASSES, Kind


class NullCommunicator(Communicator):
    """Packs what a step sends, and puts random numbers of ordinary size where its result is wanted.

    Blocks share memory, so what nobody has sent would be left over from other layers, and grow or
    fade from iteration to iteration until it overflows or is denormal, which takes other times.
    Sums of gradients and of moments stay the rank's own part of them: random weights or variances
    would not do.
    """

    def __init__(self, world: World, backend: Backend) -> None:
        super().__init__(world, backend)
        self._rng = np.random.default_rng(world.rank)
        self._pool = np.zeros(0, np.float32)

    def start(self, transfer: Transfer) -> None:
        transfer.buffers.pack()

    def wait(self, transfer: Transfer) -> None:
        step, buffers = transfer.step, transfer.buffers
        if step.kind is Kind.ALLREDUCE:
            buffers.unpack()
        elif step.phase in PASSES and buffers.wanted.size:
            self.backend.to_device(self._random(buffers.wanted.shape, buffers.dtype),
                                   buffers.wanted)

    def _random(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Normal numbers; the same in every iteration."""
        size = int(np.prod(shape))
        if self._pool.size < size or self._pool.dtype != dtype:
            self._pool = self._rng.standard_normal(size).astype(dtype)
        return self._pool[:size].reshape(shape)
