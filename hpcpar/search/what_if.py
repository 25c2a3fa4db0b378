"""Decides which change would help a plan: another strategy, other options, a better machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hpcpar.errors import InputError
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan.plan import Overlap, Synchronization
from hpcpar.prediction.price import price
from hpcpar.schedule.runnable import require
from hpcpar.search import auto
from hpcpar.search.candidates import Candidate
from hpcpar.search.memory_advice import options_of


@dataclass(frozen=True)
class WhatIf:
    """A change that makes an iteration shorter; `what` describes it, and `gain` is the speedup."""

    what: str
    iteration_s: float
    gain: float
    fits: bool


#: Options that may help: description, option of `Plan`, value.
_OPTIONS = (
    ("overlap communication with computation (--overlap full)", "overlap", Overlap.FULL),
    ("compute convolutions whole, without hiding halos (--overlap gradient)", "overlap",
     Overlap.GRADIENT),
    ("let the cost model choose collectives (--collectives auto)", "collectives", "auto"),
    ("shard the weight update (--synchronization sharded)", "synchronization",
     Synchronization.SHARDED),
    ("local statistics in batch normalization (--batch-norm local; results differ)", "batch_norm",
     "local"),
)


def what_ifs(network: Network, chosen: Candidate) -> list[WhatIf]:
    """Price changes one at a time; changes that fit come first, then the fastest.

    Changes that gain less than 0.1% are left out.
    """
    task, plan, before = chosen.task, chosen.plan, chosen.iteration_s
    changes: list[WhatIf] = []

    def add(what: str, seconds: float, fits: bool) -> None:
        if seconds < before * 0.999:
            changes.append(WhatIf(what, seconds, before / seconds, fits))

    other = auto.best(network, task.spec, task.ranks, task.batch, task.machine, gather=task.gather,
                      **task.options)[0]
    if other.strategy != chosen.strategy:
        add(options_of(other, chosen).removeprefix("--"), other.iteration_s, other.fits)
    for what, option, value in _OPTIONS:
        if getattr(plan, option) == value:
            continue
        options: dict[str, Any] = {option: value}
        changed = replace(plan, **options)
        try:
            require(network, changed)
            p = price(network, changed, task.machine, **task.price_options)
        except InputError:
            continue
        add(what, p.iteration_s, p.fits)
    for what, machine in _better_machines(task.machine):
        moved = replace(plan, machine=machine)
        p = price(network, moved, machine, **task.price_options)
        add(what, p.iteration_s, p.fits)
    return sorted(changes, key=lambda change: (not change.fits, change.iteration_s))


def _better_machines(machine: Machine) -> list[tuple[str, Machine]]:
    """Variants of the machine, each with one property improved by a factor of two."""
    wide, quick = [], []
    for level in machine.levels:
        small_s = level.small_alpha_s
        wide.append(replace(level, beta_s_per_byte=level.beta_s_per_byte / 2))
        quick.append(replace(level, alpha_s=level.alpha_s / 2,
                             small_alpha_s=None if small_s is None else small_s / 2))
    device = machine.device
    fast = replace(device, flops_per_s=2 * device.flops_per_s,
                   bandwidth_bytes_per_s=2 * device.bandwidth_bytes_per_s,
                   launch_s=device.launch_s / 2)
    table = {key: seconds / 2 for key, seconds in machine.compute.items()}
    return [
        ("a network with twice the bandwidth", replace(machine, levels=tuple(wide))),
        ("a network with half the latency", replace(machine, levels=tuple(quick))),
        ("devices twice as fast", replace(machine, device=fast, compute=table)),
    ]
