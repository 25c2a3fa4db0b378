"""A plan simulated on all of its ranks, message by message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

from hpcpar.api.keywords import by_keyword
from hpcpar.api.options import LoadOptions, PrecisionOptions, about_machine
from hpcpar.api.plan import PlanResult
from hpcpar.api.results import Record, TableResult
from hpcpar.api.sources import MachineLike, plan_and_machine
from hpcpar.cost.anchors import in_case
from hpcpar.errors import InputError
from hpcpar.options import checks
from hpcpar.options.checks import factors, jitters, path, positive
from hpcpar.options.fields import about, option
from hpcpar.plan.plan import Plan
from hpcpar.prediction.price import memory_of_ranks, plan_costs
from hpcpar.report.pictures import simulation_plot
from hpcpar.report.tables.simulated import SimulationReport, summary
from hpcpar.simulation.noise import Noise, jitter_on, slow_ranks
from hpcpar.simulation.simulate import Simulator

#: Default iterations with jitter.
REPEATS = 20


@dataclass(frozen=True, repr=False)
class SimulateResult(TableResult):
    """Simulated iterations of a plan on all ranks."""

    columns: ClassVar[tuple[str, ...]] = ("rank", "compute_s", "exposed_s", "waiting_s", "last")
    simulated: SimulationReport

    @property
    def answer(self) -> str:
        """Simulated and predicted time in one sentence."""
        return summary(self.simulated)

    def to_json(self) -> dict[str, Any]:
        """The document of ``hpcpar simulate --json``."""
        return self.simulated.to_json()

    def rows(self) -> list[Record]:
        """One row per rank, as ``hpcpar simulate --csv``."""
        return list(self.simulated.ranks_rows())

    def plot(self, path: str | None = None) -> Any:
        """Draws iterations and ranks, into the file `path` if given; returns the figure."""
        return simulation_plot.plot(self.simulated, path)

    def save(self, path: str) -> None:
        """Writes a record, which `compare` and ``hpcpar trace`` read like a measured one."""
        from hpcpar.report.simulated_record import record_of  # only saving needs HDF5
        from hpcpar.train.record_file import write

        write(path, record_of(self.simulated))


@dataclass(frozen=True)
class SimulateArguments(LoadOptions, PrecisionOptions):
    """The options of ``hpcpar simulate`` that determine the simulation.

    Attributes
    ----------
    progress : callable, optional
        Called with the number of finished iterations and the total.
    """

    plan: str | Plan | PlanResult = field(
        metadata=about(path, "plan to simulate", "plan.json", section="plan"))
    machine: MachineLike | None = field(
        default=None, metadata=about_machine("the plan file's"))
    _: KW_ONLY
    jitter: float | str = option(
        0.0, jitters, "standard deviation of each compute step's time over its mean, as in 0.05; "
        "drawn for every step, rank and iteration (default 0); measured: from the machine's "
        "calibration", "SHARE|measured")
    slow: str | Mapping[str, float] | None = option(
        None, factors, "slow ranks, or units of a level: rank5=2, node3=1.3", "UNIT=FACTOR,...")
    repeat: int | None = option(
        None, positive, f"with --jitter: number of iterations (default {REPEATS})", "N")
    seed: int = option(0, checks.seed, "seed of the jitter", "N")
    progress: Callable[[int, int], None] | None = None


def simulate_plan(asked: SimulateArguments) -> SimulateResult:
    """Simulates iterations of a plan on all of its ranks."""
    given = asked.plan.plan if isinstance(asked.plan, PlanResult) else asked.plan
    chosen, on = plan_and_machine(given, asked.machine)
    chosen = asked.in_precision(chosen)
    ranks, network = int(chosen.ranks), chosen.network.build()
    on = in_case(asked.loaded(on), ranks, chosen.batch, chosen.precision)
    units, progress = factors(asked.slow or {}), asked.progress
    spread = jitter_on(on, asked.jitter)
    repeats = asked.repeat or (REPEATS if spread else 1)
    if repeats > 1 and not spread:
        raise InputError("--repeat needs --jitter, since all iterations are equal without it: add "
                         "--jitter SHARE")
    noise = Noise(spread, slow_ranks(on, ranks, units), asked.seed)
    simulator = Simulator(network, chosen, on)
    quiet = slowed = played = simulator.play()
    if units:
        slowed = played = simulator.play(Noise(slow=noise.slow))
    if spread:
        played = simulator.play(noise, repeats, lambda done: progress and progress(done, repeats))
    messages, sent_bytes = simulator.traffic()
    left_bytes = simulator.left_bytes()
    costs = plan_costs(network, chosen, on)
    memory = max(int(m.total_bytes) for m in memory_of_ranks(network, chosen, costs))
    return SimulateResult(SimulationReport(
        network, chosen, on, costs, quiet, slowed, played, messages, sent_bytes,
        left_bytes, simulator.links.busy_s(left_bytes), memory))


simulate = by_keyword(SimulateArguments, simulate_plan)
