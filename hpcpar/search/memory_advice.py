"""Decides what to advise where a plan does not fit in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpcpar.errors import InputError
from hpcpar.search import auto
from hpcpar.search.candidates import Candidate
from hpcpar.search.fit import made_to_fit
from hpcpar.search.layerwise import least_memory


@dataclass(frozen=True)
class MemoryAdvice:
    """A chosen plan that does not fit, and the cheapest remedy.

    Attributes
    ----------
    remedy : Candidate or None
        The same strategy with micro-batches or recomputation, or another strategy; None if no plan
        fits.
    least_bytes, ranks : int or None
        Without a remedy, the least memory of any plan, and a number of ranks on which one fits
        (see `least_memory`).
    """

    chosen: Candidate
    remedy: Candidate | None
    least_bytes: int | None = None
    ranks: int | None = None

    @property
    def options(self) -> str:
        """The command-line options that give the remedy."""
        return "" if self.remedy is None else options_of(self.remedy, self.chosen)

    def to_json(self) -> dict[str, Any]:
        """The advice as JSON data."""
        remedy = self.remedy and {"options": self.options, "memory_bytes": self.remedy.memory_bytes,
                                  "iteration_s": self.remedy.iteration_s}
        return {"memory_bytes": self.chosen.memory_bytes, "remedy": remedy,
                "memory_limit_bytes": self.chosen.task.machine.device.memory_bytes,
                "least_bytes": self.least_bytes, "ranks": self.ranks}


def options_of(remedy: Candidate, chosen: Candidate) -> str:
    """The command-line options in which `remedy` differs from `chosen`."""
    changed = []
    for name in ("strategy", "microbatches", "order", "recompute"):
        value = getattr(remedy.plan, name)
        if value != getattr(chosen.plan, name):
            changed.append(f"--{name} {value}")
    return " ".join(changed)


def memory_advice(chosen: Candidate) -> MemoryAdvice | None:
    """The cheapest way to make a plan fit; None if it fits."""
    if chosen.fits:
        return None
    remedy = made_to_fit(chosen) or _another(chosen)
    return MemoryAdvice(chosen, remedy, *((None, None) if remedy else least_memory(chosen.task)))


def advice_on(candidates: list[Candidate]) -> MemoryAdvice | None:
    """The advice on the choice of `auto.best`, which may already be a remedy."""
    best = candidates[0]
    if not best.fits:
        return memory_advice(best)
    plain = next((c for c in candidates if c.strategy == best.strategy and not c.fits), None)
    return None if plain is None else MemoryAdvice(plain, best)


def _another(chosen: Candidate) -> Candidate | None:
    """The fastest plan of any strategy that fits."""
    t = chosen.task
    try:
        best = auto.best(t.network, t.spec, t.ranks, t.batch, t.machine, gather=t.gather,
                         samples=t.samples, **t.options)[0]
    except InputError:
        return None
    return best if best.fits else None
