"""SimGrid replays the messages of plans, a referee of `hpcpar simulate`.

Run: ``python bench/simgrid_replay.py`` (2 minutes). Every rank is an actor with the executor's
rounds: it sleeps while it computes, copies and adds; a message starts when both ends have come to
its round. SimGrid's flow model (CM02, without TCP's corrections) shares links. Nothing overlaps.

A rank sends the messages of a round at once, or in turn. `hpcpar simulate` lies between: none of
them waits for the receiver of the one before. It shares a link among all flows of a wave, SimGrid
among those on it at the moment. So limits are for the nearer replay: 5%, with contention 10%.
"""

from __future__ import annotations

import importlib.util
import itertools
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from hpcpar.api.plan import plan
from hpcpar.cost.price_family import price_family
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.plan.boxes import items
from hpcpar.report.tables import say, show, show_line
from hpcpar.schedule.algorithms.base import Message, Round
from hpcpar.schedule.exchange import NOTHING, Exchange
from hpcpar.schedule.messages import make_exchange
from hpcpar.schedule.steps import Comm, Kind
from hpcpar.simulation.simulate import Simulator

#: Largest difference from SimGrid, without and with contention; of a message alone.
LIMITS, LONE_LIMIT = (0.05, 0.10), 1e-6
OPTIONS = ("network/model:CM02", "network/crosstraffic:0", "network/TCP-gamma:0",
           "network/bandwidth-factor:1", "network/latency-factor:1", "network/weight-S:0")
INSTALL = ("cannot import simgrid: pip install simgrid where it can be built; or install Debian's "
           "python3-simgrid and set PYTHONPATH=/usr/lib/python3/dist-packages")
#: Strategy, network, machine, ranks, batch.
CASES = (
    ("data", "alexnet", "k80x16", 4, 64), ("data", "vgg16", "p100x4x4", 16, 256),
    ("data", "resnet50", "abci-v100", 64, 512), ("data", "alexnet", "abci-v100", 136, 1088),
    ("filter", "alexnet", "k80x16", 16, 128), ("filter", "vgg16", "p100x4x4", 16, 64),
    ("channel", "alexnet", "abci-v100", 64, 256), ("grid:4x4", "vgg16", "p100x4x4", 16, 128),
    ("grid:8x17", "alexnet", "abci-v100", 136, 1088), ("spatial", "vgg16", "p100x4x4", 16, 16),
    ("grid-fc:8x8/outer", "alexnet", "abci-v100", 64, 256), ("spatial", "vgg16", "k80x16", 4, 16),
    ("df:4x4", "alexnet", "p100x4x4", 16, 128), ("ds:1x3", "mobilenet_v2", "k20x8", 3, 48),
    ("domain:4x16", "alexnet", "abci-v100", 64, 256))


class Leg(NamedTuple):
    """A rank's part in a step: it computes or packs, exchanges messages, and unpacks."""

    before_s: float
    exchange: Exchange = NOTHING
    item_bytes: int = 1
    add_s_per_byte: float = 0.0
    after_s: float = 0.0


def leg(machine: Machine, step: Comm, rank: int) -> Leg:
    """A communication step of a rank."""
    exchange, handling = make_exchange(step, rank), machine.copy_s_per_byte
    held = wanted = 0
    if step.group is None:
        held = sum(m.stop - m.start for r in exchange.rounds for m in r.sends)
        wanted = sum(m.stop - m.start for r in exchange.rounds for m in r.recvs)
        handling = machine.add_s_per_byte if step.reduce else handling
    elif step.kind in (Kind.ALLGATHER, Kind.REDUCE_SCATTER):
        held, wanted = items(step.source_box(rank)), items(step.destination_box(rank))
    return Leg(held * step.item_bytes * machine.copy_s_per_byte, exchange, step.item_bytes,
               machine.add_s_per_byte, wanted * step.item_bytes * handling)


def route(machine: Machine, a: int, b: int) -> Iterator[tuple[str, float, float]]:
    """The links from rank `a` to rank `b`: name, bytes/s, latency (s); nobody shares the first."""
    at = machine.levels.index(machine.level_between(a, b))
    crossed = range(1, at + 1) if at else range(1)
    rate = min(1 / machine.levels[i].loaded_beta_s_per_byte for i in crossed)
    yield f"level {at}", rate, machine.levels[at].alpha_s
    yield f"out of {a} to level {at}", rate, 0.0
    yield f"into {b} from level {at}", rate, 0.0
    for i in crossed:
        level, unit = machine.levels[i], machine.inner_ranks(i)
        if level.links:
            capacity = level.shared_links / level.loaded_beta_s_per_byte
            yield f"up to {i} from {a // unit}", capacity, 0.0
            yield f"down from {i} to {b // unit}", capacity, 0.0


def replay(machine: Machine, ranks: int, program: Callable[[int], Iterator[Leg]],
           in_turn: bool) -> float:
    """Seconds that SimGrid needs for the programs of all ranks; once in a process."""
    s4u: Any = importlib.import_module("simgrid")
    engine = s4u.Engine(["replay", *(f"--cfg={x}" for x in OPTIONS), "--log=root.thres:error"])
    zone, share = s4u.NetZone.create_full_zone("machine"), s4u.Link.SharingPolicy
    hosts = [zone.create_host(str(rank), 1.0) for rank in range(ranks)]
    sleep, mailbox = s4u.this_actor.sleep_for, s4u.Mailbox.by_name

    @lru_cache(None)
    def link(name: str, rate: float, latency_s: float) -> Any:
        made = zone.create_link(name, rate).set_latency(latency_s)
        policy = share.FATPIPE if name.startswith("level") else share.SHARED
        return s4u.LinkInRoute(made.set_sharing_policy(policy, None).seal())

    def run(rank: int) -> None:
        for before_s, exchange, item_bytes, add_s_per_byte, after_s in program(rank):
            sleep(before_s)
            peers, rounds, done = exchange.peers, list[tuple[list[Any], float]](), 0
            # the last one waits for all others
            waited = [i - exchange.in_flight + 1 for i in range(len(exchange.rounds))]
            for r, before in zip((*exchange.rounds, Round((), ())),
                                 (*waited, len(exchange.rounds)), strict=True):
                for messages, add_s in rounds[done:max(before, 0)]:
                    for message, _ in messages:
                        message.wait()
                    sleep(add_s)
                done = max(done, before)
                posted = [mailbox(f"{peers[m.peer]} {rank}").get_async() for m in r.recvs]
                for m in r.sends:
                    box = mailbox(f"{rank} {peers[m.peer]}")
                    posted.append((box.put_async(0, (m.stop - m.start) * item_bytes), 0))
                    if in_turn and m is not r.sends[-1]:
                        posted[-1][0].wait()
                added = sum(m.stop - m.start for m in r.recvs) * r.reduce
                rounds.append((posted, added * item_bytes * add_s_per_byte))
            sleep(after_s)

    for a, b in itertools.permutations(range(ranks), 2):
        links = [link(*each) for each in route(machine, a, b)]
        zone.add_route(hosts[a].netpoint, hosts[b].netpoint, None, None, links, False)
    zone.seal()
    for rank in range(ranks):
        s4u.Actor.create(f"rank {rank}", hosts[rank], run, rank)
    engine.run()
    return float(engine.clock)


def lone_message(to: int) -> float:
    """Seconds of 1 MiB from rank 0 over latency and bytes / bandwidth, less 1."""
    machine, none, n = files.load("abci-v100"), Round((), ()), 1 << 20
    rounds = {0: replace(none, sends=(Message(to, 0, n),)),
              to: replace(none, recvs=(Message(0, 0, n),))}

    def program(rank: int) -> Iterator[Leg]:
        yield Leg(0.0, Exchange(0, (), tuple(range(to + 1)), (rounds.get(rank, none),), ()))

    return replay(machine, to + 1, program, False) / machine.level_between(0, to).message_s(n) - 1


def iteration(strategy: str, network: str, machine_name: str, ranks: int, batch: int,
              in_turn: bool) -> tuple[float, float, float, bool]:
    """Seconds of an iteration simulated, predicted and replayed; whether flows share links."""
    machine = files.load(machine_name)
    made = plan(network, ranks, batch, machine, strategy, overlap="none").plan
    simulator = Simulator(made.network.build(), made, machine)
    simulation = simulator.play()
    levels = tuple(replace(level, links=0.0, oversubscription=1.0) for level in machine.levels)
    alone = Simulator(made.network.build(), made, replace(machine, levels=levels)).play()
    lasts_s = np.nan_to_num(simulation.end_s - simulation.start_s)

    def program(rank: int) -> Iterator[Leg]:
        for step, step_s in zip(simulator.steps, lasts_s[:, rank].tolist(), strict=True):
            yield leg(machine, step, rank) if isinstance(step, Comm) else Leg(step_s)

    predicted = price_family(made.network.build(), made, machine)
    return (simulation.mean_s, float(predicted.iteration_s),
            replay(machine, ranks, program, in_turn), simulation.mean_s > 1.001 * alone.mean_s)


def main() -> int:
    if importlib.util.find_spec("simgrid") is None:
        say(INSTALL)
        return 2
    rows, broken = [], 0
    # an engine lives as long as its process
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        lone = max(map(abs, pool.map(lone_message, (1, 4, 68), 1)))  # in a node, a rack, beyond
        show_line(f"a message alone is off latency and bandwidth by {lone:.1e} at most")
        for case in CASES:
            once, turn = pool.starmap(iteration, [(*case, False), (*case, True)], 1)
            times_s, contended = (*once[:3], turn[2]), once[3]
            ratio = min((times_s[0] / s for s in times_s[2:]), key=lambda x: abs(x - 1))
            over = abs(ratio - 1) > LIMITS[contended]
            broken += over
            rows.append((*case, "yes" if contended else "no", *(f"{s * 1e3:.3f}" for s in times_s),
                         f"{ratio:.4f}{' over' if over else ''}"))
    show("milliseconds of an iteration; simulate over the nearer replay",
         ("strategy", "network", "machine", "ranks", "batch", "contention", "simulate", "predict",
          "at once", "in turn", "ratio"), rows, left=3, wide=True)
    show_line(f"{broken} of {len(rows)} plans are over the limits {LIMITS}")
    return int(broken > 0 or lone > LONE_LIMIT)


if __name__ == "__main__":
    sys.exit(main())
