"""The program of one rank in an iteration: its compute steps and messages, with dependencies.

`hpcpar.report.traces.exports` writes it for other simulators.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np

from hpcpar.cost.network.links import FloatArray
from hpcpar.errors import InputError
from hpcpar.schedule.algorithms.registry import ALGORITHMS
from hpcpar.schedule.exchange import Exchange
from hpcpar.schedule.messages import make_exchange
from hpcpar.schedule.steps import Comm, Compute
from hpcpar.simulation.simulate import Simulator


class Computation(NamedTuple):
    """A compute step of a rank.

    Attributes
    ----------
    number : int
        Position in the rank's program.
    after : tuple of int
        Numbers of the parts that must finish first; all are smaller.
    """

    number: int
    after: tuple[int, ...]
    label: str
    seconds: float
    flops: float
    n_bytes: float


class Transmission(NamedTuple):
    """A rank's end of a message; `number` and `after` as in `Computation`.

    Attributes
    ----------
    tag : int
        Position among the messages from this sender to this receiver; equal at both ends.
    """

    number: int
    after: tuple[int, ...]
    label: str
    sends: bool
    peer: int
    n_bytes: int
    tag: int


ProgramPart: TypeAlias = Computation | Transmission


class Programs:
    """The programs of all ranks of a plan.

    Parameters
    ----------
    progress : callable
        Receives each rank when its program starts.

    Raises
    ------
    InputError
        The plan leaves a collective to the MPI library, whose messages are unknown.
    """

    def __init__(self, simulator: Simulator,
                 progress: Callable[[int], None] = lambda rank: None) -> None:
        self.ranks, self._steps, self._progress = simulator.ranks, simulator.steps, progress
        if any(ALGORITHMS[step.algorithm].library for step in self._steps
               if isinstance(step, Comm)):
            raise InputError("the plan leaves collectives to the MPI library, whose messages are "
                             "unknown; plan with --collectives auto, ring, tree or halving")
        if any(ALGORITHMS[step.algorithm].priced_only for step in self._steps
               if isinstance(step, Comm)):
            raise InputError("the plan's parameter servers are on hosts, which are not ranks; "
                             "plan with --synchronization server")
        self._amounts = {step.key: _amounts(simulator, step) for step in self._steps
                         if isinstance(step, Compute)}

    def of(self, rank: int) -> Iterator[ProgramPart]:
        """The program of a rank, in an order in which it can run.

        Rounds of a communication that depend on other rounds come where its result is needed.
        """
        self._progress(rank)
        exchanges: dict[Hashable, Exchange] = {}
        numbers, tags = itertools.count(), Counter[tuple[bool, int]]()
        ready: tuple[int, ...] = ()
        flights: list[_Flight] = []
        for i, step in enumerate((*self._steps, None)):
            for flight in sorted(flights, key=lambda flight: flight.until):
                if flight.until <= i:
                    flights.remove(flight)
                    yield from flight.post(numbers, whole=True)
                    ready += flight.last
            if isinstance(step, Compute):
                seconds, flops, n_bytes = self._amounts[step.key][:, rank].tolist()
                if seconds > 0:
                    part = Computation(next(numbers), ready, step.label,
                                       seconds, flops, n_bytes)
                    ready = (part.number,)
                    yield part
            elif isinstance(step, Comm):
                if step.key not in exchanges:
                    exchanges[step.key] = make_exchange(step, rank)
                if not exchanges[step.key].rounds:
                    continue
                # a sender waits for messages to another stage at the end of the iteration
                leaves = step.between and not step.destination.holds(rank)
                until = len(self._steps) if leaves else step.needed_by
                flights.append(_Flight(step, exchanges[step.key], until, ready, tags))
                yield from flights[-1].post(numbers, whole=False)


class _Flight:
    """A rank's communication step in flight.

    Parameters
    ----------
    until : int
        The step that needs its result.
    ready : tuple of int
        Numbers of the parts that must finish before it starts.
    tags : Counter
        (whether this rank sends, peer) -> number of messages so far, with all rounds of this step.
    """

    def __init__(self, comm: Comm, exchange: Exchange, until: int, ready: tuple[int, ...],
                 tags: Counter[tuple[bool, int]]) -> None:
        self.until, self._ready, self._label = until, ready, comm.label
        self._after = [i - exchange.in_flight for i in range(len(exchange.rounds))]
        self._done: list[tuple[int, ...]] = []
        self._rounds: list[list[tuple[bool, int, int, int]]] = []
        for r in exchange.rounds:
            self._rounds.append([])
            for sends, message in (*((False, m) for m in r.recvs), *((True, m) for m in r.sends)):
                peer = exchange.peers[message.peer]
                n_bytes = (message.stop - message.start) * comm.item_bytes
                self._rounds[-1].append((sends, peer, n_bytes, tags[sends, peer]))
                tags[sends, peer] += 1

    def post(self, numbers: Iterator[int], whole: bool) -> Iterator[Transmission]:
        """The messages of rounds that depend on no other round, or (`whole`) of all that remain."""
        for i, before in enumerate(self._after[len(self._done):], len(self._done)):
            if before >= 0 and not whole:
                return
            after = self._ready if before < 0 else self._done[before]
            posted = [Transmission(next(numbers), after, f"{self._label}.{i}", *message)
                      for message in self._rounds[i]]
            self._done.append(tuple(message.number for message in posted) or after)
            yield from posted

    @property
    def last(self) -> tuple[int, ...]:
        """Numbers of the messages that no other round depends on."""
        ends = sorted(set(range(len(self._done))).difference(self._after))
        return tuple(dict.fromkeys(number for i in ends for number in self._done[i]))


def _amounts(simulator: Simulator, step: Compute) -> FloatArray:
    """Seconds, flops and bytes of a compute step on every rank: [3, ranks]."""
    work = simulator.work(step)
    amounts = (simulator.compute_s(step), work.fraction * work.flops, work.fraction * work.bytes)
    return np.stack([np.broadcast_to(amount, simulator.ranks) for amount in amounts])
