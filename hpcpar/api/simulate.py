"""A plan played on all of its ranks, message by message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from hpcpar.api.checks import (
    argument,
    factors,
    loads,
    number,
    optional,
    positive,
)
from hpcpar.api.checks import (
    seed as any_seed,
)
from hpcpar.api.plan import PlanResult
from hpcpar.api.results import Record, TableResult
from hpcpar.api.sources import MachineLike, machine_of, machine_of_plan
from hpcpar.cost.price_plan import memory_of_ranks
from hpcpar.errors import InputError
from hpcpar.plan import plan as plans
from hpcpar.plan.plan import Plan
from hpcpar.report import perfetto_simulated, simulation_plot
from hpcpar.report.simulated import Simulated, told
from hpcpar.simulation.noise import Noise, slow_ranks
from hpcpar.simulation.simulate import Simulator

#: Largest job that is played: every array has an entry for each rank.
MOST_RANKS = 1 << 17
#: Iterations that are played where they differ.
REPEATS = 20
#: Standard deviation of a step's time over its mean.
jitters = partial(number, 0.0, 1.0, "a number from 0 to 1, as in 0.05")


@dataclass(frozen=True, repr=False)
class SimulateResult(TableResult):
    """Iterations of a plan, played on all ranks."""

    columns: ClassVar[tuple[str, ...]] = ("rank", "compute_s", "exposed_s", "waiting_s", "last")
    simulated: Simulated

    @property
    def answer(self) -> str:
        """Simulated and predicted time in one sentence."""
        return told(self.simulated)

    def to_json(self) -> dict[str, Any]:
        """The document of ``hpcpar simulate --json``."""
        return self.simulated.to_json()

    def rows(self) -> list[Record]:
        """What every rank does in an iteration, as ``hpcpar simulate --csv``."""
        return list(self.simulated.ranks_rows())

    def plot(self, path: str | None = None) -> Any:
        """Draws iterations and ranks, into the file `path` if given; returns the figure."""
        return simulation_plot.plot(self.simulated, path)

    def save_trace(self, path: str, ranks: int = perfetto_simulated.RANKS) -> None:
        """Writes the first iteration of the first ranks for ui.perfetto.dev or chrome://tracing."""
        perfetto_simulated.save(self.simulated, path, ranks)


def simulate(plan: str | Plan | PlanResult, machine: MachineLike | None = None, *,
             jitter: float = 0.0, slow: str | Mapping[str, float] | None = None,
             load: str | Mapping[str, float] | None = None, repeat: int | None = None,
             seed: int = 0, progress: Callable[[int, int], None] | None = None) -> SimulateResult:
    """Plays iterations of a plan on all of its ranks.

    Arguments are the options of ``hpcpar simulate``, by the same names and with the same defaults.

    Parameters
    ----------
    plan : str, Plan or PlanResult
        A plan file, or a plan.
    machine : str or Machine, optional
        Instead of the plan's own.
    jitter : float
        Standard deviation of each compute step's time over its mean.
    slow : str or mapping, optional
        How many times slower units compute, as in ``node3=1.3,rank5=2``.
    load : str or mapping, optional
        Share of a level's bandwidth that other jobs take, as in ``system=0.2``.
    repeat : int, optional
        Iterations: by default one, with jitter 20.
    progress : callable, optional
        Told how many iterations are done, and of how many.

    Raises
    ------
    InputError
        An argument is not possible.
    """
    jitter = argument("jitter", jitters, jitter)
    units = optional("slow", factors, slow) or {}
    shares = optional("load", loads, load) or {}
    repeats = optional("repeat", positive, repeat) or (REPEATS if jitter else 1)
    where = f"plan file {plan}" if isinstance(plan, str) else "the plan"
    given = plan.plan if isinstance(plan, PlanResult) else plan
    chosen = plans.load(given) if isinstance(given, str) else given
    on = machine_of_plan(chosen, where) if machine is None else machine_of(machine)
    on, ranks, network = on.loaded(shares), int(chosen.ranks), chosen.network.build()
    if ranks > MOST_RANKS:
        raise InputError(f"{where} has {ranks:,} ranks; at most {MOST_RANKS:,} are played one by "
                         "one: use hpcpar predict")
    noise = Noise(jitter, slow_ranks(on, ranks, units), argument("seed", any_seed, seed))
    simulator = Simulator(network, chosen, on)
    quiet = slowed = played = simulator.play()
    if units:
        slowed = played = simulator.play(Noise(slow=noise.slow))
    if jitter:
        played = simulator.play(noise, repeats, lambda done: progress and progress(done, repeats))
    messages, sent_bytes = simulator.traffic()
    memory = max(int(m.total_bytes) for m in memory_of_ranks(network, chosen, simulator.costs))
    return SimulateResult(Simulated(chosen, on, simulator.costs, quiet, slowed, played, messages,
                                    sent_bytes, memory))
