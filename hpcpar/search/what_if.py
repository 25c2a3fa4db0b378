"""What could be changed about a plan, priced: another strategy, its options, and the machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hpcpar.cost.price_plan import price
from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.search import auto
from hpcpar.search.candidates import Candidate


@dataclass(frozen=True)
class Change:
    """Something that could be changed, and the iteration after it.

    Attributes
    ----------
    gain : float
        Time before over time after.
    """

    what: str
    iteration_s: float
    gain: float
    fits: bool


def changes(network: Network, chosen: Candidate) -> list[Change]:
    """What could be changed, priced, from what helps most: another strategy, options, and the
    machine.
    """
    task, plan, before = chosen.task, chosen.plan, chosen.iteration_s
    out: list[Change] = []

    def add(what: str, seconds: float, fits: bool) -> None:
        if seconds < before * 0.999:
            out.append(Change(what, seconds, before / seconds, fits))

    others = auto.best(network, task.spec, task.ranks, task.batch, task.machine, gather=task.gather,
                       **task.options)
    for c in others[:1]:
        if c.strategy != chosen.strategy:
            add(f"strategy {c.strategy}", c.iteration_s, c.fits)
    options: tuple[tuple[str, str, Any], ...] = (
        ("overlap communication with computing (--overlap full)", "overlap", "full"),
        ("let the cost model choose collectives (--collectives auto)", "collectives", "auto"),
        ("shard the weight update (--synchronisation sharded)", "synchronisation", "sharded"),
        ("batch normalisation by local statistics (--batch-norm local: other results)", "batch_norm", "local"),
    )
    for what, option, value in options:
        if getattr(plan, option) != value:
            try:
                p = price(network, replace(plan, **{option: value}), task.machine,
                          **task.price_options)
            except InputError:
                continue
            add(what, p.iteration_s, p.fits)
    for what, machine in _machines(task.machine):
        moved = replace(plan, machine=files.to_dict(machine))
        p = price(network, moved, machine, **task.price_options)
        add(what, p.iteration_s, p.fits)
    return sorted(out, key=lambda c: (not c.fits, c.iteration_s))


def _machines(machine: Machine) -> list[tuple[str, Machine]]:
    """The same machine with one thing improved."""
    half = tuple(replace(level, beta_s_per_byte=level.beta_s_per_byte / 2)
                 for level in machine.levels)
    quick = tuple(
        replace(level, alpha_s=level.alpha_s / 2, small_alpha_s=None if level.small_alpha_s is None else level.small_alpha_s / 2)
        for level in machine.levels
    )
    device = machine.device
    fast = replace(device, flops_per_s=2 * device.flops_per_s, bandwidth_bytes_per_s=2 * device.bandwidth_bytes_per_s,
                   launch_s=device.launch_s / 2)
    table = {key: seconds / 2 for key, seconds in machine.compute.items()}
    return [
        ("a network of twice the bandwidth", replace(machine, levels=half)),
        ("a network of half the latency", replace(machine, levels=quick)),
        ("devices twice as fast", replace(machine, device=fast, compute=table)),
    ]
