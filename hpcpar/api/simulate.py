"""A plan played on all of its ranks, message by message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from hpcpar.api import checks
from hpcpar.api.checks import argument, optional
from hpcpar.api.plan import PlanResult
from hpcpar.api.results import Record, TableResult
from hpcpar.api.sources import MachineLike, machine_of, machine_of_plan
from hpcpar.errors import InputError
from hpcpar.plan import plan as plans
from hpcpar.plan.plan import Plan
from hpcpar.report import simulation_plot
from hpcpar.report.simulated import SimulationReport, told
from hpcpar.simulation.noise import Noise, jitter_on, slow_ranks
from hpcpar.simulation.price_plan import memory_of_ranks, price_alone
from hpcpar.simulation.simulate import Simulator

#: Iterations that are played where they differ.
REPEATS = 20


@dataclass(frozen=True, repr=False)
class SimulateResult(TableResult):
    """Iterations of a plan, played on all ranks."""

    columns: ClassVar[tuple[str, ...]] = ("rank", "compute_s", "exposed_s", "waiting_s", "last")
    simulated: SimulationReport

    @property
    def answer(self) -> str:
        """Simulated and predicted time in one sentence."""
        return told(self.simulated)

    def to_json(self) -> dict[str, Any]:
        """The document of ``hpcpar simulate --json``."""
        return self.simulated.to_json()

    def rows(self) -> list[Record]:
        """A row for every rank, as ``hpcpar simulate --csv``."""
        return list(self.simulated.ranks_rows())

    def plot(self, path: str | None = None) -> Any:
        """Draws iterations and ranks, into the file `path` if given; returns the figure."""
        return simulation_plot.plot(self.simulated, path)

    def save(self, path: str) -> None:
        """Writes the record, which `compare` and ``hpcpar trace`` read as a measured one."""
        from hpcpar.report.simulated_record import record_of  # the rest needs no HDF5
        from hpcpar.train.record import write

        write(path, record_of(self.simulated))


def simulate(plan: str | Plan | PlanResult, machine: MachineLike | None = None, *,
             jitter: float | str = 0.0, slow: str | Mapping[str, float] | None = None,
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
    jitter : float or str
        Standard deviation of each compute step's time over its mean; ``measured``: the machine
        file's, from its calibration.
    slow : str or mapping, optional
        How many times slower units compute, as in ``node3=1.3,rank5=2``.
    load : str or mapping, optional
        Share of a level's bandwidth that other jobs take, as in ``system=0.2``.
    repeat : int, optional
        Iterations, with jitter (20 by default).
    progress : callable, optional
        Told how many iterations are done, and of how many.

    Raises
    ------
    InputError
        An argument is not possible.
    """
    units = optional("slow", checks.factors, slow) or {}
    shares = optional("load", checks.loads, load) or {}
    where = f"plan file {plan}" if isinstance(plan, str) else "the plan"
    given = plan.plan if isinstance(plan, PlanResult) else plan
    chosen = plans.load(given) if isinstance(given, str) else given
    on = machine_of_plan(chosen, where) if machine is None else machine_of(machine)
    on, ranks, network = on.loaded(shares), int(chosen.ranks), chosen.network.build()
    spread = jitter_on(on, argument("jitter", checks.jitters, jitter))
    repeats = optional("repeat", checks.positive, repeat) or (REPEATS if spread else 1)
    if repeats > 1 and not spread:
        raise InputError("without jitter all iterations are alike: --repeat goes with --jitter")
    noise = Noise(spread, slow_ranks(on, ranks, units), argument("seed", checks.seed, seed))
    simulator = Simulator(network, chosen, on)
    quiet = slowed = played = simulator.play()
    if units:
        slowed = played = simulator.play(Noise(slow=noise.slow))
    if spread:
        played = simulator.play(noise, repeats, lambda done: progress and progress(done, repeats))
    messages, sent_bytes = simulator.traffic()
    left_bytes = simulator.left_bytes()
    costs = price_alone(network, chosen, on)
    memory = max(int(m.total_bytes) for m in memory_of_ranks(network, chosen, costs))
    return SimulateResult(SimulationReport(
        network, chosen, on, costs, quiet, slowed, played, messages, sent_bytes,
        left_bytes, simulator.links.busy_s(left_bytes), memory))
