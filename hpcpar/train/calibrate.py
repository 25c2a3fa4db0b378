"""Calibration: from measurements inside a job to a machine description."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import World
from hpcpar.errors import InputError, on_all_ranks
from hpcpar.kernels.interface import Backend
from hpcpar.machine import files
from hpcpar.machine.model import Device, Level, Machine
from hpcpar.plan.config import Config
from hpcpar.plan.plan import Plan
from hpcpar.train import probe


def ranks_per_node(world: World) -> int:
    """Ranks on each node, which must be equal and consecutive for levels to make sense.

    Raises
    ------
    InputError
        On every rank, if ranks are placed otherwise.
    """
    hosts = world.comm.allgather(world.hostname)
    first = sum(1 for h in hosts if h == hosts[0])
    blocks = [hosts[i:i + first] for i in range(0, len(hosts), first)]
    if any(len(set(b)) != 1 or len(b) != first for b in blocks) or len({b[0] for b in blocks}) != len(blocks):
        raise on_all_ranks(InputError(
            f"ranks are not placed in equal blocks of {first} per node; start the job with as many ranks on every node, in block order"
        ))
    return first


def calibrate(world: World, backend: Backend, plans: Sequence[Plan], name: str, tell: Callable[[str], None]) -> Machine:
    """Measure this job's ranks: levels, device rates, and the compute steps of `plans`. All ranks get the same machine.

    Parameters
    ----------
    tell : callable
        Hears what is being done.
    """
    local = ranks_per_node(world)
    nodes = world.size // local
    communicator = Communicator(world, backend)
    config = Config(n=nodes, c=local)
    tell("computing rates")
    rates = probe.rates(world, backend)
    levels: list[Level] = []
    for axis, size, title, holds in (("c", local, "node", local), ("n", nodes, "network", 0)):
        if size > 1:
            tell(f"links between {size} {'ranks of a node' if axis == 'c' else 'nodes'}")
            levels.append(probe.level(world, communicator, config, axis, title, holds, 64 * len(levels)))
    if nodes == 1:
        levels = [replace(level, ranks=0) for level in levels]
    if not levels:
        tell("one rank has no links to measure: taking those of the preset 'local'")
        levels = list(files.load("local").levels)
    hidden = 1.0
    if world.size > 1:
        tell("what computing hides")
        hidden = probe.overlap(world, communicator, backend, 64 * len(levels))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // local
    device = Device(memory, rates.flops_per_s, rates.copy_bytes_per_s, rates.launch_s)
    threads = os.environ.get("OPENBLAS_NUM_THREADS", "?")
    notes = f"measured with {world.size} ranks on {nodes} node(s), {world.library}, {threads} BLAS thread(s) a rank"
    if world.size == 1:
        notes += "; links not measured, they are the preset 'local'"
    machine = Machine(name, device, tuple(levels), rates.add_s_per_byte, rates.pack_s_per_byte, hidden, {}, notes)
    table: dict[str, float] = {}
    for i, plan in enumerate(plans, 1):
        tell(f"compute steps of {plan.network.name} under {plan.strategy} ({i} of {len(plans)})")
        table.update(probe.compute_table(world, plan, backend, table))
    # the slowest rank's times are already common to all; what each fitted itself is not
    return world.bcast(replace(machine, compute=table))
