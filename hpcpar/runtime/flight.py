"""Iterations in flight: their host memory, and their results, which may be read later.

The device reads and writes the host memory of an iteration in flight. Two iterations may be in
flight, so an executor has two `Berth`s and uses them in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcpar.comm.communicator import Communicator
from hpcpar.kernels.interface import Array
from hpcpar.kernels.numbers import Numbers
from hpcpar.kernels.streams import Mark
from hpcpar.runtime.program import Notes, Program, StepTimes

#: Takes the host's copy of a device array at the end of an iteration.
Receiver = Callable[[NDArray[np.generic]], None]


class FlightResult(NamedTuple):
    """The result of an iteration.

    Attributes
    ----------
    loss, correct : float
        Mean loss and number of correct samples of the batch, over all ranks.
    asked : int
        The sum of all ranks' requests (`Ask`).
    ended_s : float
        When the device ended it, on the clock of `time.perf_counter`.
    """

    loss: float
    correct: float
    asked: int
    ended_s: float


class Berth:
    """Host memory of one iteration in flight.

    Parameters
    ----------
    sums : array
        The device's loss sums, [FC passes, LOSS_SUMS].
    labels : sequence of array
        The labels of each pass on the device.
    numbers : Numbers
        Numbers that change with every iteration.
    """

    def __init__(self, communicator: Communicator, sums: Array, labels: Sequence[Array],
                 numbers: Numbers) -> None:
        self._communicator, self._backend = communicator, communicator.backend
        self._sums = sums
        self._first_sums = self._host(sums)
        self._numbers, self._host_numbers = numbers, self._host(numbers.words)
        self._labels = [(array, self._host(array)) for array in labels]
        self._returned: list[tuple[Array, NDArray[np.generic], Receiver]] = []
        self._loss_sums = np.zeros(sums.shape)
        self.give_back(sums, lambda host: np.copyto(self._loss_sums, host))
        self._mark: Mark = None
        self._flight: Flight | None = None

    def _host(self, array: Array) -> NDArray[np.generic]:
        return self._backend.host_buffer(array.size, array.dtype).reshape(array.shape)

    def give_back(self, array: Array, receive: Receiver) -> None:
        """Copy a contiguous device array to the host at the end of every iteration; `receive` takes
        it when the result is read.
        """
        self._returned.append((array, self._host(array), receive))

    def board(self, ask: int, labels: Sequence[NDArray[np.generic]]) -> None:
        """Send an iteration's labels, its numbers and this rank's requests to the device."""
        if self._flight is not None:
            self._flight.result()  # the device still uses this memory
        self._first_sums[...] = 0
        self._first_sums[:, -1] = ask
        self._backend.enqueue_to_device(self._first_sums, self._sums)
        self._numbers.write(self._host_numbers)
        self._backend.enqueue_to_device(self._host_numbers, self._numbers.words)
        for (device, host), given in zip(self._labels, labels, strict=True):
            host[...] = given
            self._backend.enqueue_to_device(host, device)

    def depart(self, program: Program, images: Array, place: str) -> Flight:
        """Return the flight of an iteration that is submitted completely."""
        self._numbers.forget()
        for device, host, _ in self._returned:
            self._backend.enqueue_to_host(device, host)
        self._mark = self._backend.mark(self._mark)
        self._flight = Flight(self, program, program.notes, images, place)
        return self._flight

    def land(self, place: str) -> FlightResult:
        """Wait until the flight's work is done, and read its result."""
        self._communicator.world.lookout.place = place
        self._communicator.complete(self._mark)
        for _, host, receive in self._returned:
            receive(host)
        losses, correct, asked = self._loss_sums.T
        ended_s = float(self._backend.times_s([self._mark])[0])
        self._flight = None
        return FlightResult(float(losses.mean()), float(correct.sum()), int(asked[0]), ended_s)


@dataclass(eq=False)
class Flight:
    """An iteration that is submitted, and that the device may not have finished.

    Attributes
    ----------
    images : array or None
        The batch, kept until the device has read it.
    place : str
        The part of the program, for ranks that wait long.
    """

    _berth: Berth
    _program: Program
    _notes: Notes
    images: Array
    place: str
    _result: FlightResult | None = None

    def result(self) -> FlightResult:
        """The result; waits for the device."""
        if self._result is None:
            self._result = self._berth.land(self.place)
            self.images = None
        return self._result

    def times(self) -> StepTimes:
        """The step times; until two more iterations are submitted."""
        return self._program.times(self._notes)
