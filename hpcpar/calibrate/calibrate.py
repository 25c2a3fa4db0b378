"""Calibration: measures the ranks of a job and makes a machine description."""

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
from hpcpar.calibrate.samples import Samples, concatenated
from hpcpar.calibrate.timer import Timer, outliers
from hpcpar.comm.communicator import Communicator
from hpcpar.comm.cores import fullest_node
from hpcpar.comm.transport import Transport
from hpcpar.comm.world import World
from hpcpar.cost.compute.step_time import kinds
from hpcpar.errors import InputError, on_all_ranks
from hpcpar.kernels.interface import Backend, MathMode
from hpcpar.machine import files
from hpcpar.machine.measured import Factors
from hpcpar.machine.model import Device, Machine, NodeCores
from hpcpar.plan.config import Config
from hpcpar.plan.plan import Plan
from hpcpar.prediction.price import price
from hpcpar.process.launchers import whole_number

#: Number of rounds; each takes a sample with every timer and visits every plan.
ROUNDS = 7
#: Estimated time to initialize the weights of a plan (s per byte).
_WEIGHTS_S_PER_BYTE = 1e-8
#: Length of a sample of messages if ranks share cores (s): several time slices of the scheduler.
SHARED_S = 0.05


def ranks_per_node(world: World) -> int:
    """Number of ranks on each node.

    Raises
    ------
    InputError
        Nodes have different numbers of ranks, or their ranks are not consecutive. Every rank
        raises it.
    """
    hosts = world.comm.allgather(world.hostname)
    first = hosts.count(hosts[0])
    if hosts != [host for host in dict.fromkeys(hosts) for _ in range(first)]:
        raise on_all_ranks(InputError(
            f"ranks are not placed in equal blocks of {first} per node; start the job with the "
            "same number of ranks on every node, in block order"
        ))
    return first


def cores_per_unit(node: NodeCores, local: int, size: int) -> int:
    """Cores of one unit of the innermost level; 0 if unknown.

    Parameters
    ----------
    node : NodeCores
        Ranks and cores of a physical machine, which may run several nodes as containers.
    local, size : int
        Ranks per node and in the job. With one rank per node, the unit is the whole job.
    """
    unit = local if local > 1 else size
    if unit > node.ranks:
        return 0
    return max(1, node.cores * unit // node.ranks)


class Calibration:
    """The measurements of a job. All methods are collective.

    Parameters
    ----------
    report : callable
        Called with a line of progress.
    transport : Transport
        How messages travel between GPUs.
    graphs : bool
        Runs replay their iterations, so the host submits no steps.
    """

    def __init__(self, world: World, backend: Backend, name: str, report: Callable[[str], None],
                 transport: Transport = Transport.STAGED, graphs: bool = False) -> None:
        self._graphs = graphs
        self.world, self.backend, self.name, self._report = world, backend, name, report
        self.begin = time.perf_counter()
        local = self.local = ranks_per_node(world)
        nodes = self.nodes = world.size // local
        steps, config = Steps(Communicator(world, backend, transport)), Config(n=nodes, c=local)
        report("setting up: rates of a device")
        self._rates = DeviceProbe(world, backend, world.rank % local == 0)
        self._node = fullest_node(world, backend.name)
        before = computing(backend)

        def timer(action: Callable[[], None]) -> Timer:
            """A timer of messages that follow compute, as in an iteration. If ranks share cores,
            a message would wait for other ranks' compute, so it is timed alone.
            """
            if self._node.shared:
                return Timer(world, backend, action, sample_s=SHARED_S)
            return Timer(world, backend, action, before)

        self._levels: list[LevelProbe] = []
        self._exchanges: list[P2pProbe] = []
        if local > 1:
            report(f"setting up: links between {local} ranks of a node")
            ranks = 0 if nodes == 1 else local
            self._levels.append(LevelProbe(steps, config, "c", "node", ranks, 1, timer))
            self._exchanges.append(P2pProbe(steps, "c", "node", nodes, local, timer))
        if nodes > 1:
            report(f"setting up: links between {nodes} nodes")
            self._levels.append(LevelProbe(steps, config, "n", "network", 0, local, timer))
            self._exchanges.append(P2pProbe(steps, "n", "network", nodes, local, timer))
        self._hiding = [Hiding(steps, backend, timer)] if world.size > 1 else []
        probes: list[DeviceProbe | LevelProbe | P2pProbe | Hiding]
        probes = [self._rates, *self._levels, *self._exchanges, *self._hiding]
        self._timers = [timer for probe in probes for timer in probe.timers]
        #: The number of the plan that measures each piece of work, by the work's key.
        self._owner: dict[str, int] = {}
        #: Samples from each visit, by number of the plan.
        self._samples: dict[int, list[Samples]] = defaultdict(list)
        self._plans = 0

    @property
    def elapsed_s(self) -> float:
        """Time since the start of the calibration, the maximum over ranks."""
        return self.world.max(time.perf_counter() - self.begin)

    def visits(self, plans: Sequence[Plan], links: bool = True) -> Iterator[int]:
        """Measures the plans in rounds; yields the index of each plan after each visit.

        Parameters
        ----------
        links : bool
            Also measure links and rates.
        """
        timers = self._timers if links else []
        first, self._plans = self._plans, self._plans + len(plans)
        links_s = ROUNDS * sum(timer.sample_s for timer in timers)
        machine = self._links_and_rates()
        expected_s = self.world.max(links_s + sum(self.expected_s(p, machine) for p in plans))
        self._report(f"{ROUNDS} rounds of {len(timers)} measurements, {len(plans)} plans: "
                     f"about {expected_s:.0f} s ({links_s:.0f} s for the links and rates)")
        for i in range(ROUNDS):
            self._report(f"round {i + 1} of {ROUNDS}, {time.perf_counter() - self.begin:.0f} s")
            for timer in timers:
                timer.take()
            for number, plan in enumerate(plans):
                self._visit(first + number, plan)
                yield number

    def _visit(self, number: int, plan: Plan) -> None:
        gc.collect()  # frees the previous plan's arrays, which are in reference cycles
        others = {key for key, owner in self._owner.items() if owner != number}
        samples = compute_probe.compute_samples(self.world, plan, self.backend, others)
        if samples is not None:
            self._owner |= {work.key: number for work in samples.works}
            self._samples[number].append(samples)

    def expected_s(self, plan: Plan, machine: Machine) -> float:
        """Expected duration of all visits of a plan (s) on `machine`."""
        priced = price(plan.network.build(), plan, machine)
        visit_s = max(compute_probe.VISIT_S, compute_probe.FEWEST * priced.compute_s)
        weights_s = int(priced.memory.weights_bytes) * _WEIGHTS_S_PER_BYTE
        return ROUNDS * (2 * priced.compute_s + visit_s + weights_s)

    def _links_and_rates(self) -> Machine:
        """The machine without compute steps, from the samples so far."""
        world, rates = self.world, self._rates
        fits = [level.fit() for level in self._levels]
        levels = tuple(fit.level for fit in fits) or files.load("local").levels
        host_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        memory = self.backend.memory_bytes or host_bytes // self.local
        # On float32 copies, CPUs compute in float32, and GPUs may in TF32, which is as accurate.
        full = self.backend.name == "gpu" and self.backend.versions["math"] == MathMode.FP32
        half_flops_per_s = rates.bfloat16_flops_per_s or (0.0 if full else rates.flops_per_s)
        halves = {"bfloat16": half_flops_per_s} if half_flops_per_s else {}
        device = Device(memory, rates.flops_per_s, rates.copy_bytes_per_s, rates.launch_s,
                        rates=halves)
        threads = os.environ.get("OPENBLAS_NUM_THREADS", "?")
        notes = (f"measured with {world.size} ranks on {self.nodes} node(s), {world.library}, "
                 f"{threads} BLAS thread(s) per rank")
        notes += "".join(f", {name} {value}" for name, value in self.backend.versions.items())
        if world.size == 1:
            notes += "; links are not measured but come from the preset 'local'"
        quality = {
            "links": [fit.quality for fit in fits],
            "memory": {"alone_bytes_per_s": rates.alone_bytes_per_s,
                       "together_bytes_per_s": rates.copy_bytes_per_s},
        }
        processor = "GPU" if self.backend.name == "gpu" else "core" if threads == "1" else "rank"
        hidden, progress = next(((h.part, h.progress) for h in self._hiding), (1.0, 1.0))
        return Machine(
            self.name, device, levels, rates.add_s_per_byte, rates.pack_s_per_byte, hidden,
            notes=notes, quality=quality, progress=progress,
            cores_per_node=cores_per_unit(self._node, self.local, world.size),
            processor=processor, convolutions=self.backend.conv_choice,
        )

    def measure(self, plans: Sequence[Plan]) -> Machine:
        """Measures links, rates and the compute steps of `plans`; returns the machine."""
        for _ in self.visits(plans):
            pass
        return self.machine()

    def machine(self) -> Machine:
        """The machine from all samples so far, the same on all ranks."""
        machine, world = self._links_and_rates(), self.world
        collectives: list[Factors] = []
        for level, exchanges in zip(self._levels, self._exchanges, strict=True):
            collectives += [*level.factors(machine, world.size), *exchanges.factors(machine)]
        samples = [concatenated(visits) for visits in self._samples.values()]
        hosts = world.comm.allgather(world.hostname)
        origin = Origin.of(hosts, whole_number("OPENBLAS_NUM_THREADS") or 0, self.backend.name,
                           self.backend.versions)
        quality: dict[str, Any] = {
            "rounds": ROUNDS, "seconds": round(time.perf_counter() - self.begin, 1),
            "origin": asdict(origin), **machine.quality,
        }
        if samples:
            quality["compute"] = _compute_quality(samples)
        table = {key: seconds for s in samples for key, seconds in s.table().items()}
        works = [work for s in samples for work in s.works]
        submit_s = 0.0 if self._graphs else max((s.submit_s for s in samples), default=0.0)
        return world.bcast(replace(
            machine, device=replace(machine.device, submit_s=submit_s),
            compute=table, kinds=kinds(machine.device, works, table),
            collectives=tuple(collectives), quality=quality,
            compute_ratios=held_out.of_compute(self._samples.values()),
            estimate_ratios=held_out.of_estimates(machine.device, works, table)))


def _compute_quality(samples: list[Samples]) -> dict[str, Any]:
    """Median and worst spread (interquartile range over median) of the compute steps' times."""
    by_key = {work.key: seconds for s in samples
              for work, seconds in zip(s.works, s.seconds.T, strict=True)}
    low, median, high = np.array([np.percentile(seconds, (25, 50, 75))
                                  for seconds in by_key.values()]).T
    spread = (high - low) / np.maximum(median, 1e-9)
    # Short steps have the largest spread, but it does not matter.
    long = median >= np.median(median)
    worst = int(np.argmax(np.where(long, spread, -1.0)))
    return {
        "steps": len(by_key), "spread": float(np.median(spread)),
        "worst_spread": float(spread[worst]), "worst": list(by_key)[worst],
        "outliers": sum(outliers(seconds) for seconds in by_key.values()),
        "samples": sum(len(seconds) for seconds in by_key.values()),
    }
