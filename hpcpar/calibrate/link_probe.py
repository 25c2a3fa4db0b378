"""Times of a level's messages and collectives, and the communication that compute hides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.calibrate import alpha_beta_fit, held_out
from hpcpar.calibrate.timer import Timer, bootstrap, long_enough, outliers
from hpcpar.comm.communicator import Communicator
from hpcpar.comm.transfer import Transfer
from hpcpar.cost.network.collective import collective_s
from hpcpar.cost.network.contention import NetworkModel, route
from hpcpar.kernels.interface import Backend
from hpcpar.machine.measured import Factors
from hpcpar.machine.model import Level, Machine
from hpcpar.network.receptive_field import Full
from hpcpar.plan.axis import Axis
from hpcpar.plan.boxes import shape
from hpcpar.plan.config import Config
from hpcpar.plan.layout import Layout
from hpcpar.schedule.algorithms.registry import algorithms_of
from hpcpar.schedule.steps import Comm, Group, Kind, Pattern, Phase, Role, TensorRef

#: Bytes of one ring message, from latency-bound to bandwidth-bound.
PIECES = (64, 512, 4096, 32 * 1024, 256 * 1024, 1024 * 1024)
#: Largest buffer of a ring, which holds one message per member. With very many members, the largest
#: messages are left out.
MAX_RING_BYTES = 256 << 20
#: Bytes of the buffers of collectives.
BUFFERS = (4096, 32 * 1024, 128 * 1024, 1 << 20, 4 << 20)
#: Bytes of long buffers, and the time limit (s) of each. A buffer is measured if the estimate from
#: the longest ring messages is below the limit; only GPUs are fast enough for the longest.
LONG_BUFFERS_S = {16 << 20: 0.1, 64 << 20: 0.01, 256 << 20: 0.01}
#: Range of bytes of a gradient to hide. They double until its allreduce takes this time (s).
LONG_BYTES, LONG_S = (8 << 20, 256 << 20), 1e-3
#: Range of edges of the square matrices that are multiplied meanwhile. The edge doubles until a
#: product takes this time (s). Shorter products do not fill a GPU.
EDGES, PRODUCT_S = (256, 2048), 30e-6
#: Compute time during a message, as a multiple of the message's time: long enough to hide the
#: message completely, and short enough for the message to hide it.
LONG_COMPUTE, SHORT_COMPUTE = 1.5, 0.25
#: Lower bound of the progress of messages during compute.
SLOWEST = 0.01
#: Bytes of an element.
ITEM = 4
#: The tensor of a probe's steps in error messages.
PROBED = TensorRef("probe", Role.OUTPUT)
MakeTimer = Callable[[Callable[[], None]], Timer]
#: Approximate size of a core's private caches.
CACHE_BYTES = 1 << 20


class Steps:
    """Makes collectives over one mesh axis of a configuration, on buffers of zeros.

    Repeated sums stay zero. As in a run, the buffers are in device memory, so that the time of a
    message includes staging.
    """

    def __init__(self, communicator: Communicator) -> None:
        self.communicator, self.rank = communicator, communicator.world.rank
        self._count = 0

    def action(self, kind: Kind, algorithm: str, config: Config, axis: str, n_bytes: int,
               only: int | None = None) -> Callable[[], None]:
        """A collective in all groups at the same time, or only in the group of rank `only`."""
        transfer = self.bind(kind, algorithm, config, axis, n_bytes)
        if only is not None and self.rank not in Group((config.mesh_axes[axis],)).members(only):
            return lambda: None
        return self.blocking(transfer)

    def blocking(self, transfer: Transfer) -> Callable[[], None]:
        """An action that starts a transfer and waits for it."""
        def run() -> None:
            self.communicator.start(transfer)
            self.communicator.wait(transfer)

        return run

    def bind(self, kind: Kind, algorithm: str, config: Config, axis: str,
             n_bytes: int) -> Transfer:
        """A collective on a new buffer of `n_bytes`, rounded down to equal blocks."""
        mesh_axis = config.mesh_axes[axis]
        items = max(1, n_bytes // ITEM // int(mesh_axis.size)) * int(mesh_axis.size)
        cut = Layout(config, (Axis(axis, items, items),))
        whole = Layout(config, (Axis(axis, items, items, relation=Full()),))
        source = cut if kind is Kind.ALLGATHER else whole
        destination = cut if kind is Kind.REDUCE_SCATTER else whole
        zeros = self.communicator.backend.zeros
        buffer = zeros((items,), "float32")
        before, after = (buffer[slice(*layout.box(self.rank)[0])]
                         for layout in (source, destination))
        if kind is Kind.REDUCE_SCATTER:
            after = zeros(after.shape, "float32")
        step = self._step(kind, source, destination, Group((mesh_axis,)), algorithm)
        return self.communicator.bind(step, before, after)

    def direct(self, kind: Kind, source: Layout, destination: Layout) -> Transfer:
        """Direct messages from rank to rank, between new buffers."""
        before, after = (self.communicator.backend.zeros(shape(layout.box(self.rank)), "float32")
                         for layout in (source, destination))
        step = self._step(kind, source, destination, None, "direct")
        return self.communicator.bind(step, before, after)

    def _step(self, kind: Kind, source: Layout, destination: Layout, group: Group | None,
              algorithm: str) -> Comm:
        i, self._count = self._count, self._count + 1
        pattern = Pattern(kind, False, () if group is None else group.mesh_axes)
        return Comm(Phase.FORWARD, "probe", PROBED, pattern, source, destination, ITEM,
                    algorithm=algorithm, index=i, needed_by=i + 1)


def computing(backend: Backend) -> Callable[[], None]:
    """Compute before a message, as in an iteration: it evicts the message from the caches."""
    a, b, c = (backend.zeros((256, 256), "float32") for _ in range(3))
    x, y = (backend.zeros((CACHE_BYTES // ITEM,), "float32") for _ in range(2))

    def compute() -> None:
        backend.gemm(a, b, c)
        backend.unpack(x, y)

    return compute


@dataclass(frozen=True)
class MeasuredLevel:
    """A level, and the confidence in its numbers."""

    level: Level
    quality: dict[str, Any]


class LevelProbe:
    """The timers of a level.

    Parameters
    ----------
    axis : str
        The mesh axis of `config` along which the level's neighbors differ.
    ranks : int
        Ranks in a unit of this level (`Level.ranks`).
    inside : int
        Ranks in a unit of the next inner level. All of them send at the same time; if there are
        several, one also sends alone.
    """

    def __init__(
        self, steps: Steps, config: Config, axis: str, name: str, ranks: int, inside: int,
        timer: MakeTimer,
    ) -> None:
        self.mesh_axis = config.mesh_axes[axis]
        self.name, self.ranks, self.inside = name, ranks, inside
        self.p = int(self.mesh_axis.size)
        self.pieces = [piece for piece in PIECES if piece * self.p <= MAX_RING_BYTES]

        def ring(piece: int, only: int | None = None) -> Timer:
            return timer(steps.action(Kind.ALLGATHER, "ring", config, axis,
                                      self.p * piece, only))

        self.messages = [ring(piece) for piece in self.pieces]
        self.single = [ring(piece, 0) for piece in self.pieces] if inside > 1 else []
        s_per_byte = self.messages[-1].once_s / (self.p * self.pieces[-1])
        long = [n for n, limit_s in LONG_BUFFERS_S.items() if n * s_per_byte <= limit_s]
        self.buffers = (*BUFFERS, *long)
        library = ["mpi"] if steps.communicator.library_collectives else []
        self.collectives = {
            (kind, algorithm): [
                timer(steps.action(kind, algorithm, config, axis, n)) for n in self.buffers
            ]
            for kind in (Kind.ALLREDUCE, Kind.ALLGATHER, Kind.REDUCE_SCATTER)
            for algorithm in (*algorithms_of(kind), *library)
        }

    @property
    def timers(self) -> list[Timer]:
        return [*self.messages, *self.single,
                *(timer for timers in self.collectives.values() for timer in timers)]

    def fit(self) -> MeasuredLevel:
        """The level that fits the samples."""
        rounds = self._messages_s(self.messages)
        fitted = alpha_beta_fit.hockney(self.pieces, np.median(rounds, axis=0))
        alpha, beta, small = fitted
        low, high = bootstrap(rounds, lambda t: alpha_beta_fit.hockney(self.pieces, t)).tolist()
        links, flow = 0.0, beta
        if self.single:
            single_s = np.median(self._messages_s(self.single), axis=0)
            flow = alpha_beta_fit.hockney(self.pieces, single_s)[1]
            links = alpha_beta_fit.links(self.inside, flow, beta)
        quality = {
            "level": self.name, "ranks": self.p,
            "alpha_s": [low[0], high[0]], "small_alpha_s": [low[2], high[2]],
            "beta_s_per_byte": [low[1], high[1]], "alone_beta_s_per_byte": flow,
            "residual": alpha_beta_fit.residual(self.pieces, np.median(rounds, axis=0), fitted),
            "outliers": sum(outliers(timer.samples) for timer in self.timers),
            "samples": sum(len(timer.samples) for timer in self.timers),
        }
        level = Level(self.name, self.ranks, alpha, flow if links else beta, small,
                      alpha_beta_fit.SMALL_BYTES, links,
                      ratios=held_out.of_timers(timer.samples for timer in self.timers))
        return MeasuredLevel(level, quality)

    def _messages_s(self, timers: list[Timer]) -> NDArray[np.float64]:
        """[rounds, sizes] seconds per ring message."""
        return np.array([timer.samples or [timer.once_s] for timer in timers]).T / (self.p - 1)

    def factors(self, machine: Machine, ranks: int) -> list[Factors]:
        """Measured times of collectives, as multiples of the alpha-beta model's times."""
        path = route(NetworkModel(machine), [self.mesh_axis], ranks)
        sizes = tuple(max(1, n // ITEM // self.p) * self.p * ITEM for n in self.buffers)
        factors = []
        for (kind, algorithm), timers in self.collectives.items():
            model_s = np.asarray(collective_s(kind, algorithm, np.array(sizes), 1, path)).tolist()
            times = tuple(timer.seconds / s for timer, s in zip(timers, model_s, strict=True))
            factors.append(Factors(self.name, kind.value, algorithm, sizes, times))
        return factors


def _product(backend: Backend, communicator: Communicator, edge: int) -> Callable[[], None]:
    """A product of square matrices, then a call for communication progress, as in a kernel."""
    a, b, c = (backend.zeros((edge, edge), "float32") for _ in range(3))

    def product() -> None:
        backend.gemm(a, b, c)
        communicator.progress()

    return product


class Hiding:
    """The part of a long allreduce that compute hides.

    If compute takes A seconds alone, the allreduce B seconds alone, and both together C seconds,
    A + B - C seconds are hidden: part of the allreduce if A > B, part of the compute if A < B.
    """

    def __init__(self, steps: Steps, backend: Backend, timer: MakeTimer) -> None:
        communicator = steps.communicator
        world = communicator.world
        transfers: dict[int, Transfer] = {}

        def allreduce(n_bytes: int) -> Timer:
            transfers[n_bytes] = steps.bind(Kind.ALLREDUCE, "ring", Config(n=world.size),
                                            "n", n_bytes)
            return timer(steps.blocking(transfers[n_bytes]))

        long_bytes, self._comm = long_enough(LONG_BYTES, LONG_S, allreduce)
        self._comm.take()
        transfer = transfers[long_bytes]
        _, one = long_enough(EDGES, PRODUCT_S, lambda edge: Timer(
            world, backend, _product(backend, communicator, edge)))
        one.take()
        product = one.action

        def pair(ratio: float) -> tuple[Timer, Timer]:
            """Timers of compute that takes `ratio` allreduces: alone, and with the allreduce."""
            count = max(1, round(ratio * self._comm.seconds / one.seconds))

            def compute() -> None:
                for _ in range(count):
                    product()

            def both() -> None:
                communicator.start(transfer)
                compute()
                communicator.wait(transfer)

            return Timer(world, backend, compute), Timer(world, backend, both)

        self._long_compute, self._short_compute = pair(LONG_COMPUTE), pair(SHORT_COMPUTE)

    @property
    def timers(self) -> list[Timer]:
        return [self._comm, *self._long_compute, *self._short_compute]

    @property
    def part(self) -> float:
        """Value of `hpcpar.machine.model.Machine.overlap`."""
        return min(1.0, max(0.0, self._hidden_s(self._long_compute) / self._comm.seconds))

    @property
    def progress(self) -> float:
        """Value of `hpcpar.machine.model.Machine.progress`."""
        hidden = self._hidden_s(self._short_compute) / self._short_compute[0].seconds
        return min(1.0, max(SLOWEST, hidden))

    def _hidden_s(self, timers: tuple[Timer, Timer]) -> float:
        compute, both = timers
        return compute.seconds + self._comm.seconds - both.seconds
