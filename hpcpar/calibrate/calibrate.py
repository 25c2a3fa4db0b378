"""Calibration: from measurements inside a job to a machine description."""

from __future__ import annotations

import gc
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from hpcpar.calibrate import compute_probe, held_out
from hpcpar.calibrate.device_probe import DeviceProbe
from hpcpar.calibrate.link_probe import Hiding, LevelProbe, Steps, computing
from hpcpar.calibrate.p2p_probe import P2pProbe
from hpcpar.calibrate.provenance import Origin
from hpcpar.calibrate.samples import Samples, together
from hpcpar.calibrate.timer import Timer, outliers
from hpcpar.comm.communicator import Communicator
from hpcpar.comm.cores import fullest_node
from hpcpar.comm.transport import Transport
from hpcpar.comm.world import World
from hpcpar.cost.compute.step_time import kinds
from hpcpar.errors import InputError, on_all_ranks
from hpcpar.kernels.interface import Backend
from hpcpar.machine import files
from hpcpar.machine.cores import NodeCores
from hpcpar.machine.model import Device, Factors, Machine
from hpcpar.plan.config import Config
from hpcpar.plan.plan import Plan
from hpcpar.simulation.price_plan import price
from hpcpar.variables import whole_number

#: Rounds, spread over the calibration's time; each samples everything and visits every plan.
ROUNDS = 7
#: Time (s) to make the weights of a plan anew, for each byte of them; an estimate.
_WEIGHTS_S_PER_BYTE = 1e-8
#: Length of a sample of messages where ranks share cores (s): some of a scheduler's time slices.
SHARED_S = 0.05


def ranks_per_node(world: World) -> int:
    """Ranks on each node, which must be equal and consecutive for levels to make sense.

    Raises
    ------
    InputError
        On every rank, if ranks are placed otherwise.
    """
    hosts = world.comm.allgather(world.hostname)
    first = hosts.count(hosts[0])
    if hosts != [host for host in dict.fromkeys(hosts) for _ in range(first)]:
        raise on_all_ranks(InputError(
            f"ranks are not placed in equal blocks of {first} per node; start the job with as "
            "many ranks on every node, in block order"
        ))
    return first


def cores_per_unit(node: NodeCores, local: int, size: int) -> int:
    """Cores of one unit of the innermost level; 0 where they are unknown.

    Parameters
    ----------
    node : NodeCores
        Ranks and cores of a machine, which has several nodes where these are containers.
    local, size : int
        Ranks of a node and of the job. With one rank a node the only unit is the whole job.
    """
    unit = local if local > 1 else size
    if unit > node.ranks:
        return 0
    return max(1, node.cores * unit // node.ranks)


class Calibration:
    """The measurements of a job; every rank makes it at the same time.

    Parameters
    ----------
    tell : callable
        Called with the progress in words.
    transport : Transport
        The way of messages between GPUs.
    """

    def __init__(self, world: World, backend: Backend, name: str, tell: Callable[[str], None],
                 transport: Transport = Transport.STAGED) -> None:
        self.world, self.backend, self.name, self._tell = world, backend, name, tell
        self.begin = time.perf_counter()
        local = self.local = ranks_per_node(world)
        nodes = self.nodes = world.size // local
        steps, config = Steps(Communicator(world, backend, transport)), Config(n=nodes, c=local)
        tell("setting up: rates of a device")
        self._rates = DeviceProbe(world, backend, world.rank % local == 0)
        self._node = fullest_node(world, backend.name)
        before = computing(backend)

        def timer(action: Callable[[], None]) -> Timer:
            """A message comes after computing, as in an iteration. Where ranks share cores, it
            would wait for what the others compute, which counts as computing already.
            """
            if self._node.shared:
                return Timer(world, backend, action, lasts_s=SHARED_S)
            return Timer(world, backend, action, before)

        self._levels: list[LevelProbe] = []
        self._exchanges: list[P2pProbe] = []
        if local > 1:
            tell(f"setting up: links between {local} ranks of a node")
            holds = 0 if nodes == 1 else local
            self._levels.append(LevelProbe(steps, config, "c", "node", holds, 1, timer))
            self._exchanges.append(P2pProbe(steps, "c", "node", nodes, local, timer))
        if nodes > 1:
            tell(f"setting up: links between {nodes} nodes")
            self._levels.append(LevelProbe(steps, config, "n", "network", 0, local, timer))
            self._exchanges.append(P2pProbe(steps, "n", "network", nodes, local, timer))
        self._hiding = [Hiding(steps, backend, timer)] if world.size > 1 else []
        probes: list[DeviceProbe | LevelProbe | P2pProbe | Hiding]
        probes = [self._rates, *self._levels, *self._exchanges, *self._hiding]
        self._timers = [timer for probe in probes for timer in probe.timers]
        #: The plan that measures a piece of work, by the work's key.
        self._owner: dict[str, int] = {}
        #: Samples of the visits of a plan, by its place among all that were visited.
        self._samples: dict[int, list[Samples]] = defaultdict(list)
        self._plans = 0

    @property
    def elapsed_s(self) -> float:
        """The longest of all ranks."""
        return self.world.max(time.perf_counter() - self.begin)

    def visits(self, plans: Sequence[Plan], links: bool = True) -> Iterator[int]:
        """Measures; yields the number of every visited plan after its visit.

        Parameters
        ----------
        links : bool
            Also sample links and rates.
        """
        timers = self._timers if links else []
        first, self._plans = self._plans, self._plans + len(plans)
        links_s = ROUNDS * sum(timer.sample_s for timer in timers)
        machine = self._machine()
        expected_s = self.world.max(links_s + sum(self.expected_s(p, machine) for p in plans))
        self._tell(f"{ROUNDS} rounds of {len(timers)} measurements, {len(plans)} plans: "
                   f"about {expected_s:.0f} s ({links_s:.0f} s for the links and rates)")
        for i in range(ROUNDS):
            self._tell(f"round {i + 1} of {ROUNDS}, {time.perf_counter() - self.begin:.0f} s")
            for timer in timers:
                timer.take()
            for number, plan in enumerate(plans):
                self._visit(first + number, plan)
                yield number

    def _visit(self, number: int, plan: Plan) -> None:
        gc.collect()  # the arrays of the plan before, which know each other
        others = {key for key, owner in self._owner.items() if owner != number}
        found = compute_probe.compute_samples(self.world, plan, self.backend, others)
        if found is not None:
            self._owner |= {work.key: number for work in found.works}
            self._samples[number].append(found)

    def expected_s(self, plan: Plan, machine: Machine) -> float:
        """Duration of all visits of a plan (s), from what `machine` says."""
        found = price(plan.network.build(), plan, machine)
        visit_s = max(compute_probe.VISIT_S, compute_probe.FEWEST * found.compute_s)
        weights_s = int(found.memory.weights_bytes) * _WEIGHTS_S_PER_BYTE
        return ROUNDS * (2 * found.compute_s + visit_s + weights_s)

    def _machine(self) -> Machine:
        """Links and rates as measured so far, with their quality."""
        world, rates = self.world, self._rates
        found = [level.found() for level in self._levels]
        levels = tuple(f.level for f in found) or files.load("local").levels
        host_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        memory = self.backend.memory_bytes or host_bytes // self.local
        device = Device(memory, rates.flops_per_s, rates.copy_bytes_per_s, rates.launch_s)
        threads = os.environ.get("OPENBLAS_NUM_THREADS", "?")
        notes = (f"measured with {world.size} ranks on {self.nodes} node(s), {world.library}, "
                 f"{threads} BLAS thread(s) a rank")
        notes += "".join(f", {name} {value}" for name, value in self.backend.versions.items())
        if world.size == 1:
            notes += "; links not measured, they are the preset 'local'"
        quality = {
            "links": [f.quality for f in found],
            "memory": {"alone_bytes_per_s": rates.alone_bytes_per_s,
                       "together_bytes_per_s": rates.copy_bytes_per_s},
        }
        processor = "GPU" if self.backend.name == "gpu" else "core" if threads == "1" else "rank"
        hidden, progress = next(((h.part, h.progress) for h in self._hiding), (1.0, 1.0))
        return Machine(
            self.name, device, levels, rates.add_s_per_byte, rates.pack_s_per_byte, hidden,
            notes=notes, quality=quality, progress=progress,
            cores_per_node=cores_per_unit(self._node, self.local, world.size),
            processor=processor,
        )

    def of(self, plans: Sequence[Plan]) -> Machine:
        """The machine, with the compute steps of `plans`."""
        for _ in self.visits(plans):
            pass
        return self.found()

    def found(self) -> Machine:
        """The machine after the last round, the same on all ranks.

        The slowest rank's times are common to all already; each rank's own fits are not.
        """
        machine, world = self._machine(), self.world
        collectives: list[Factors] = []
        for level, exchanges in zip(self._levels, self._exchanges, strict=True):
            collectives += [*level.factors(machine, world.size), *exchanges.factors(machine)]
        samples = [together(visits) for visits in self._samples.values()]
        hosts = world.comm.allgather(world.hostname)
        origin = Origin.of(hosts, whole_number("OPENBLAS_NUM_THREADS") or 0, self.backend.name,
                           self.backend.versions)
        quality: dict[str, Any] = {
            "rounds": ROUNDS, "seconds": round(time.perf_counter() - self.begin, 1),
            "origin": asdict(origin), **machine.quality,
        }
        if samples:
            quality["compute"] = _compute_quality(samples)
        table = {key: seconds for each in samples for key, seconds in each.table().items()}
        works = [work for each in samples for work in each.works]
        return world.bcast(replace(
            machine, compute=table, kinds=kinds(machine.device, works, table),
            collectives=tuple(collectives), quality=quality,
            compute_ratios=held_out.of_compute(self._samples.values()),
            estimate_ratios=held_out.of_estimates(machine.device, works, table)))


def _compute_quality(samples: list[Samples]) -> dict[str, Any]:
    """Spread of the iterations, quartile range over median: of the middle step and of the worst."""
    each = {work.key: seconds for found in samples
            for work, seconds in zip(found.works, found.seconds.T, strict=True)}
    low, middle, high = np.array([np.percentile(seconds, (25, 50, 75))
                                  for seconds in each.values()]).T
    spread = (high - low) / np.maximum(middle, 1e-9)
    # steps of no weight differ most
    counts = middle >= np.median(middle)
    worst = int(np.argmax(np.where(counts, spread, -1.0)))
    return {
        "steps": len(each), "spread": float(np.median(spread)),
        "worst_spread": float(spread[worst]), "worst": list(each)[worst],
        "outliers": sum(outliers(seconds) for seconds in each.values()),
        "samples": sum(len(seconds) for seconds in each.values()),
    }


def calibrate(
    world: World, backend: Backend, plans: Sequence[Plan], name: str,
    tell: Callable[[str], None], transport: Transport = Transport.STAGED,
) -> Machine:
    """Measures this job's ranks: levels, device rates, and the compute steps of `plans`.

    All ranks get the same machine.
    """
    return Calibration(world, backend, name, tell, transport).of(plans)
