"""Predicted and measured iterations of every strategy, at full image size.

All strategies of AlexNet and VGG-16; some of ResNet-50, Inception-v3 and CosmoFlow. Run:
``python bench/strategies.py`` (half an hour and more on two cores; ``--quick`` for small images, a
few minutes). It starts one MPI job per network and number of ranks. A job measures its links and
rates. For each plan it then measures the compute steps (as ``hpcpar calibrate`` does), prices the
plan on the calibrated machine, and runs it. Nothing is fitted to the time of an iteration. The
slowest rank counts; the median of a few iterations is reported. Plans that do not fit the free
memory, or cannot run at this batch, get a note instead.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from hpcpar.cli.launch import limit_threads  # noqa: E402

limit_threads()

from hpcpar.report.tables import amount, seconds, show  # noqa: E402
from tests.strategies import named  # noqa: E402

if TYPE_CHECKING:
    from hpcpar.comm.world import World
    from hpcpar.kernels.interface import Backend
    from hpcpar.machine.model import Machine
    from hpcpar.network.graph import Network
    from hpcpar.plan.plan import NetworkSpec, Plan

#: Fraction of the free memory that a plan may use on all ranks together.
MEMORY_SHARE = 0.7
RATE, MOMENTUM, DECAY = 1e-4, 0.9, 5e-4


@dataclass(frozen=True)
class Case:
    """A network, its image shape (a small one for ``--quick``), and the batch.

    Without `strategies`, every named one is run.
    """

    network: str
    image: tuple[int, ...]
    small: tuple[int, ...]
    batch: int
    strategies: tuple[str, ...] = ()

    def plans(self, ranks: int) -> list[str]:
        """Strategies with their grids; ``P`` stands for the number of ranks."""
        return [s.replace("P", str(ranks)) for s in self.strategies] or named(ranks)


CASES = {
    case.network: case
    for case in (
        Case("alexnet", (3, 227, 227), (3, 99, 99), 16),
        Case("vgg16", (3, 224, 224), (3, 64, 64), 4),
        Case("resnet50", (3, 224, 224), (3, 64, 64), 4, ("data", "pipeline:Px1")),
        Case("inception_v3", (3, 299, 299), (3, 107, 107), 4, ("data", "filter")),
        Case("cosmoflow", (4, 128, 128, 128), (4, 32, 32, 32), 4, ("data", "spatial")),
    )
}


@dataclass
class Row:
    """The result of a plan; `note` says why it has no time."""

    network: str
    image: tuple[int, ...]
    ranks: int
    batch: int
    strategy: str
    predicted_s: float | None = None
    measured_s: float | None = None
    memory_bytes: int = 0
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Measured over predicted."""
        return self.measured_s / self.predicted_s if self.measured_s and self.predicted_s else None


# -- in the MPI job --------------------------------------------------------------------------------
class StrategyRunner:
    """One rank of a network's job: predicts and runs strategies."""

    def __init__(self, w: World, case: Case, quick: bool, iterations: int) -> None:
        from hpcpar.calibrate.calibrate import Calibration
        from hpcpar.kernels import backend
        from hpcpar.network.builtin import network
        from hpcpar.plan.plan import NetworkSpec

        self.world, self.case, self.iterations = w, case, iterations
        self.image = case.small if quick else case.image
        self.kernels: Backend = backend("cpu")
        self.network: Network = network(case.network, self.image)
        self.spec: NetworkSpec = NetworkSpec(case.network, self.image, self.network.classes)
        self.machine: Machine = Calibration(w, self.kernels, "bench",
                                            lambda _: None).measure([])

    def row(self, strategy: str) -> Row:
        """Predicts and runs a strategy."""
        from hpcpar.calibrate import compute_probe as probe
        from hpcpar.errors import InputError
        from hpcpar.plan.plan import make_plan
        from hpcpar.prediction.price import price
        from hpcpar.schedule.runnable import require

        out = Row(self.case.network, self.image, self.world.size, self.case.batch, strategy)
        try:
            plan = make_plan(self.spec, strategy, out.ranks, out.batch, network=self.network,
                             machine=self.machine)
            require(self.network, plan)
        except InputError as err:
            out.note = str(err)
            return out
        out.memory_bytes = price(self.network, plan, self.machine).memory_bytes
        free = self.world.bcast(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"))
        if out.memory_bytes * self.world.size > MEMORY_SHARE * free:
            out.note = f"needs {amount(out.memory_bytes)} on each rank, {amount(free)} are free"
            return out
        found = self.world.bcast(
            probe.compute_samples(self.world, plan, self.kernels, self.machine.compute)
        )
        gc.collect()  # the probe's blocks
        if found is not None:
            table = {**self.machine.compute, **found.table()}
            self.machine = replace(self.machine, compute=table)
        plan = replace(plan, machine=self.machine)
        out.predicted_s = float(price(self.network, plan, self.machine).iteration_s)
        out.measured_s = self.measured(plan)
        gc.collect()
        return out

    def measured(self, plan: Plan) -> float:
        """Median seconds of an iteration, after one warm-up iteration."""
        import numpy as np

        from hpcpar.comm.communicator import Communicator
        from hpcpar.cost.network.algorithm_choice import schedule_for
        from hpcpar.network.layers import MeanSquaredError
        from hpcpar.plan.boxes import shape
        from hpcpar.runtime.executor import Executor

        executor = Executor(self.network, plan, schedule_for(self.network, plan),
                            Communicator(self.world, self.kernels), self.kernels, 0)
        rng = np.random.default_rng(self.world.rank)
        images = rng.standard_normal((len(executor.image_rows), *shape(executor.image_box)),
                                     np.float32)
        alike = np.random.default_rng(0)
        batch, classes = self.case.batch, self.network.classes
        truth: np.ndarray
        if isinstance(self.network.layers[-1], MeanSquaredError):
            truth = alike.standard_normal((batch, classes), np.float32)
        else:
            truth = alike.integers(0, classes, batch)
        times = []
        for step in range(self.iterations + 1):
            self.world.barrier()
            begin = time.perf_counter()
            executor.iterate(images, truth, step, RATE, MOMENTUM, DECAY)
            times.append(self.world.max(time.perf_counter() - begin))
        return statistics.median(times[1:])


def work(name: str, strategies: list[str], quick: bool, iterations: int) -> None:
    """The program of a rank; rank 0 prints one JSON row per strategy."""
    from hpcpar.comm.world import world

    w = world()
    with w.guard():
        runner = StrategyRunner(w, CASES[name], quick, iterations)
        for strategy in strategies:
            row = runner.row(strategy)
            if w.rank == 0:
                print(json.dumps(asdict(row)), flush=True)


# -- outside ---------------------------------------------------------------------------------------
def run(case: Case, ranks: int, options: argparse.Namespace) -> list[Row]:
    """Runs one job; strategies that it did not reach get a note."""
    wanted = options.strategies.split(",") if options.strategies else case.plans(ranks)
    launcher = Path(sys.executable).parent / "mpiexec"
    command = [str(launcher) if launcher.exists() else "mpiexec", "-n", str(ranks), sys.executable,
               str(Path(__file__).resolve()), "--work", case.network, "--strategies",
               ",".join(wanted), "--iterations", str(options.iterations)]
    threads = str(max(1, len(os.sched_getaffinity(0)) // ranks))
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads,
                   "MKL_NUM_THREADS": threads}
    rows: list[Row] = []
    with subprocess.Popen(command + ["--quick"] * options.quick, stdout=subprocess.PIPE, text=True,
                          cwd=ROOT, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            rows.append(Row(**json.loads(line)))
            rows[-1].image = tuple(rows[-1].image)
            _tell(rows[-1])
        status = process.wait()
    for strategy in wanted[len(rows):]:
        rows.append(
            Row(case.network, case.small if options.quick else case.image, ranks, case.batch,
                strategy, note=f"the job ended with status {status}")
        )
        _tell(rows[-1])
    return rows


def _tell(row: Row) -> None:
    what = row.note or f"predicted {seconds(row.predicted_s)}, measured {seconds(row.measured_s)}"
    print(f"{row.network}, {row.ranks} ranks, {row.strategy}: {what}", file=sys.stderr, flush=True)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small images")
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks (default 2,4)")
    parser.add_argument("--networks", default=",".join(CASES),
                        help=f"some of {', '.join(CASES)} (default: all)")
    parser.add_argument("--strategies", default="",
                        help="only these, instead of each network's own")
    parser.add_argument("--iterations", type=int, default=5,
                        help="iterations behind each median (default 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results here")
    parser.add_argument("--work", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    unknown = set(options.networks.split(",")) - set(CASES)
    if unknown:
        parser.error(f"--networks: {', '.join(sorted(unknown))} is none of {', '.join(CASES)}")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.work:
        work(options.work, options.strategies.split(","), options.quick, options.iterations)
        return 0
    date, cores = (datetime.now().astimezone().isoformat(timespec="seconds"),
                   len(os.sched_getaffinity(0)))
    jobs = [(int(ranks), CASES[name]) for ranks in options.ranks.split(",")
            for name in options.networks.split(",")]
    rows = [row for ranks, case in jobs for row in run(case, ranks, options)]
    show(
        f"{date}, {cores} cores: seconds of an iteration, median of {options.iterations}",
        ("network", "strategy", "ranks", "batch", "predicted", "measured", "measured/predicted",
         "memory/rank"),
        [
            (r.network, r.strategy, r.ranks, r.batch, seconds(r.predicted_s), seconds(r.measured_s),
             f"{r.ratio:.2f}" if r.ratio else "-", amount(r.memory_bytes))
            for r in rows
        ],
        left=2,
    )
    for r in rows:
        if r.note:
            print(f"{r.network}, {r.ranks} ranks, {r.strategy}: {r.note}", file=sys.stderr)
    if options.json:
        made = [{**asdict(r), "ratio": r.ratio} for r in rows]
        options.json.write_text(json.dumps({"date": date, "cores": cores,
                                            "iterations": options.iterations, "rows": made},
                                           indent=1) + "\n")
    return 0 if not any("status" in r.note for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
