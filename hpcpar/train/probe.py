"""Measuring a machine from inside a job: links with every rank at work, memory, and the layers' own local shapes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import World
from hpcpar.cost.choose import schedule_for
from hpcpar.cost.work import Workload
from hpcpar.kernels.interface import Backend
from hpcpar.machine.model import Level
from hpcpar.network.relation import Full
from hpcpar.plan.config import Config, Digit
from hpcpar.plan.layout import Axis, Layout
from hpcpar.plan.plan import Plan
from hpcpar.schedule.steps import Comm, Compute, Group, Kind, Op, Phase
from hpcpar.train.executor import Executor

#: Bytes of one ring message, from latency-bound to bandwidth-bound.
PIECES = (64, 512, 4096, 32 * 1024, 256 * 1024, 1024 * 1024)
#: Up to here a message is short: its latency is fitted apart.
SMALL_BYTES = 4096
#: A gradient worth hiding.
LONG_BYTES = 8 << 20
_ITEM = 4


def repeat_s(world: World, action: Callable[[], None], block_s: float = 0.01, rounds: int = 5) -> float:
    """Seconds of an action that every rank does at once: the slowest rank's mean over a block, median over `rounds` blocks.

    The mean within a block, because with more ranks than cores a single short action either owns its core or waits for long.
    """
    action()
    world.barrier()
    t = time.perf_counter()
    action()
    once = world.most(time.perf_counter() - t)
    count = int(min(200, max(2, block_s / max(once, 1e-7))))
    blocks = []
    for _ in range(rounds):
        world.barrier()
        t = time.perf_counter()
        for _ in range(count):
            action()
        blocks.append(world.most((time.perf_counter() - t) / count))
    return statistics.median(blocks)


def _step(kind: Kind, config: Config, axis: str, digit: Digit, items: int, index: int) -> Comm:
    cut = Layout(config, (Axis(axis, items, items),))
    whole = Layout(config, (Axis(axis, items, items, relation=Full()),))
    holder, wanter = (whole, whole) if kind is Kind.ALLREDUCE else (cut, whole)
    group = Group((digit,))
    return Comm(index, Phase.FORWARD, "probe", "probe", kind, holder, wanter, kind is Kind.ALLREDUCE, group, "ring", 1, _ITEM, index + 1)


def ring_s(world: World, communicator: Communicator, kind: Kind, config: Config, axis: str, piece_bytes: int, index: int) -> float:
    """Seconds of a ring collective over one digit of `config`, all groups at work at once, with messages of `piece_bytes`."""
    digit = config.digits[axis]
    items = digit.size * piece_bytes // _ITEM
    step = _step(kind, config, axis, digit, items, index)
    wanted = np.ones(items, np.float32)
    start, stop = step.held(world.rank)[0]
    held = wanted if kind is Kind.ALLREDUCE else wanted[start:stop]
    transfer = communicator.bind(step, held, wanted)

    def action() -> None:
        communicator.start(transfer)
        communicator.wait(transfer)

    return repeat_s(world, action)


def level(world: World, communicator: Communicator, config: Config, axis: str, name: str, ranks: int, index: int) -> Level:
    """Latency and bandwidth of a level, fitted to ring allgathers over one digit.

    Their p - 1 messages each take alpha + beta * bytes: alpha and beta by least squares of relative errors over the long
    messages, the short ones' latency apart.
    """
    p = config.digits[axis].size
    times = [ring_s(world, communicator, Kind.ALLGATHER, config, axis, piece, index + i) / (p - 1) for i, piece in enumerate(PIECES)]
    long = [(b, t) for b, t in zip(PIECES, times, strict=True) if b >= SMALL_BYTES]
    a = np.array([[1.0 / t, b / t] for b, t in long])
    (alpha, beta), *_ = np.linalg.lstsq(a, np.ones(len(long)), rcond=None)
    beta = max(float(beta), (long[-1][1] - long[0][1]) / (long[-1][0] - long[0][0]) * 0.5, 1e-13)
    alpha = max(float(alpha), min(times))
    small = statistics.median(t - b * beta for b, t in zip(PIECES, times, strict=True) if b <= SMALL_BYTES)
    return Level(name, ranks, alpha, beta, max(small, 1e-7), SMALL_BYTES)


def overlap(world: World, communicator: Communicator, backend: Backend, index: int) -> float:
    """Part of a long allreduce that equally long computing hides, 0 to 1.

    With computing alone taking A seconds, the allreduce alone B and both together C, the hidden part is (A + B - C) / min(A, B).
    """
    config = Config(n=world.size)
    items = LONG_BYTES // _ITEM
    step = _step(Kind.ALLREDUCE, config, "n", config.digits["n"], items, index)
    buffer = np.zeros(items, np.float32)
    transfer = communicator.bind(step, buffer, buffer)
    a, b, c = (backend.zeros((256, 256), "float32") for _ in range(3))

    def product() -> None:
        backend.gemm(a, b, c)
        backend.synchronize()
        communicator.progress()

    def alone() -> None:
        communicator.start(transfer)
        communicator.wait(transfer)

    alone_s = repeat_s(world, alone)
    count = max(1, round(alone_s / repeat_s(world, product)))

    def computing() -> None:
        for _ in range(count):
            product()

    def together() -> None:
        communicator.start(transfer)
        computing()
        communicator.wait(transfer)

    compute_s = repeat_s(world, computing)
    return min(1.0, max(0.0, (compute_s + alone_s - repeat_s(world, together)) / min(compute_s, alone_s)))


@dataclass(frozen=True)
class Rates:
    """What one rank's device does while all ranks are at work: a float32 GEMM, a copy, an empty kernel call, adding and packing."""

    flops_per_s: float
    copy_bytes_per_s: float
    launch_s: float
    add_s_per_byte: float
    pack_s_per_byte: float


def rates(world: World, backend: Backend) -> Rates:
    """Measure a device."""
    n = 768
    rng = np.random.default_rng(0)
    a, b, c = (backend.empty((n, n), "float32") for _ in range(3))
    backend.to_device(rng.standard_normal((n, n)).astype("float32"), a)
    backend.to_device(rng.standard_normal((n, n)).astype("float32"), b)

    def sync(action: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            action()
            backend.synchronize()

        return run

    flops = 2.0 * n**3 / repeat_s(world, sync(lambda: backend.gemm(a, b, c)))
    big = 8 * 1024 * 1024 // 4
    x, y = backend.zeros((big,), "float32"), backend.zeros((big,), "float32")
    copy = 8.0 * big / repeat_s(world, sync(lambda: backend.unpack(x, y)))
    small = backend.zeros((8,), "float32")
    launch = repeat_s(world, sync(lambda: backend.relu_forward(small, small)))
    image = backend.zeros((16, 32, 32, 32), "float32")
    half = image[:, :16]
    flat = backend.zeros((half.size,), "float32")
    pack = repeat_s(world, sync(lambda: backend.pack(half, flat))) / (half.size * 4)
    piece = backend.zeros((PIECES[-1] // _ITEM,), "float32")
    add = repeat_s(world, sync(lambda: backend.unpack_add(piece, x[: piece.size]))) / (piece.size * _ITEM)
    return Rates(flops, copy, launch, add, pack)


def compute_table(world: World, plan: Plan, backend: Backend, known: dict[str, float]) -> dict[str, float]:
    """Seconds of every compute step of a plan on this job's ranks, by the key of its work; those in `known` are not measured again."""
    network = plan.network.build()
    schedule = schedule_for(network, plan)
    communicator = Communicator(world, backend)
    executor = Executor(network, plan, schedule, communicator, backend, 0)
    rng = np.random.default_rng(world.rank)
    passes = (*executor.passes, *executor.turns)
    for here in passes:
        for blocks in here.blocks.values():
            for array in (*blocks.xs, *blocks.dxs, blocks.y, blocks.dy):
                if array is not None and array.size:
                    backend.to_device(rng.standard_normal(array.shape).astype(array.dtype), array)
    load = Workload(network, plan)
    actions: dict[str, Callable[[], None] | None] = {}
    assert executor.training is not None
    for step in schedule.steps:
        if not isinstance(step, Compute):
            continue
        here = executor.part(step.layer, step.part)
        if here.samples < max(other.samples for other in passes if step.layer in other.blocks):
            continue  # of micro-batches that differ by a sample, the largest is priced
        # interior and boundary are priced as parts of the whole
        whole = step.op in (Op.INTERIOR, Op.BOUNDARY) and executor.lives(step.layer)
        mine = here.ops[step.layer].forward if whole else executor.training.actions.get(step.index)
        actions.setdefault(load.work(network.by_name[step.layer], step.op, here.samples).key, mine)
    if all(key in known for key in actions):
        return {}
    seconds = _in_turn(world, list(actions.values()), backend)
    return {key: s for key, s in zip(actions, seconds, strict=True) if key not in known}


def _in_turn(
    world: World, actions: list[Callable[[], None] | None], backend: Backend, budget_s: float = 0.4, blocks: int = 5
) -> list[float]:
    """Seconds of each of some actions when they follow each other as in an iteration, so that caches are as cold as there.

    A rank that an action is not for (None: another stage's) does one of its own meanwhile, as it would in a pipeline.

    The mean over a block of rounds (with more ranks than cores an action that is interrupted counts), the slowest rank's, and
    the median over blocks.
    """
    clock = time.perf_counter
    own = [action for action in actions if action is not None]

    def one_round() -> np.ndarray:
        out = np.zeros(len(actions))
        for i, action in enumerate(actions):
            t = clock()
            (action or own[i % len(own)])()
            backend.synchronize()
            if action is not None:
                out[i] = clock() - t
        return out

    one_round()
    world.barrier()
    once = world.most(float(one_round().sum()))
    count = int(min(100, max(2, budget_s / blocks / max(once, 1e-6))))
    means = []
    for _ in range(blocks):
        world.barrier()
        means.append(np.mean([one_round() for _ in range(count)], axis=0))
    slowest = np.empty((blocks, len(actions)))
    world.comm.Allreduce(np.array(means), slowest, op=world.mpi.MAX)
    return [float(s) for s in np.median(slowest, axis=0)]
