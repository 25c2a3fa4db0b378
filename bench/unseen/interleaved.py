"""A calibration and the cases' iterations interleaved in one job.

Run: ``mpiexec -n P python bench/unseen/interleaved.py JOB.json``.

Whenever the calibration has measured compute steps of one of a case's plans the case trains for
some iterations, as ``hpcpar run`` does. A machine whose speed changes from second to second changes
for both. The calibration hears nothing of the iterations.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime, timezone
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hpcpar.cli.launch import limit_threads

limit_threads()

from bench.unseen.jobs import Case, Job  # noqa: E402
from hpcpar.calibrate.calibrate import Calibration  # noqa: E402
from hpcpar.comm.cores import fullest_node  # noqa: E402
from hpcpar.comm.world import World, world  # noqa: E402
from hpcpar.kernels.numpy_backend import NumpyBackend  # noqa: E402
from hpcpar.machine import files  # noqa: E402
from hpcpar.machine.model import Machine  # noqa: E402
from hpcpar.plan import plan as plans  # noqa: E402
from hpcpar.prediction.price import price  # noqa: E402
from hpcpar.runtime.reservoir import Reservoir  # noqa: E402
from hpcpar.train import record_file  # noqa: E402
from hpcpar.train.collect import Recorder  # noqa: E402
from hpcpar.train.job_options import JobOptions  # noqa: E402
from hpcpar.train.loop import Training  # noqa: E402

#: The rate hardly matters, but that weights stay ordinary.
SMALL = 1e-4
#: Bytes that a host has sent.
COUNTER = Path("/sys/class/net/eth0/statistics/tx_bytes")


def _sent_bytes(w: World) -> int:
    """By all hosts so far."""
    w.barrier()
    return sum(w.comm.allgather(int(COUNTER.read_text())))


def _write(w: World, case: Case, training: Training, machine: Machine, started: str) -> None:
    prediction = price(training.network, training.plan, machine, samples=training.measured.samples)
    # every visit begins with the first epoch
    training.measured.epochs = Reservoir(1)
    run = Recorder(w, training, "cpu", fullest_node(w, "cpu"), {
        "prediction": prediction.to_json(steps=True), "machine": files.to_dict(machine),
        "started": started, "command": " ".join(sys.argv)}).collect()
    if run is not None:
        record_file.write(case.record, run)


def main() -> int:
    job, w, backend = Job.load(Path(sys.argv[1])), world(), NumpyBackend()
    with w.guard():
        started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        own = [plans.load(case.plan) for case in job.cases]
        trainings = [
            Training(w, plan.network.build(), plan, backend,
                     JobOptions(data=job.data, steps=case.steps, rate=SMALL))
            for case, plan in zip(job.cases, own, strict=True)
        ]
        wire: dict[str, list[float]] = {case.plan: [] for case in job.cases}
        calibration = Calibration(w, backend, Path(job.machine).stem, lambda _: None)
        every = [(path, case, training) for case, training in zip(job.cases, trainings, strict=True)
                 for path in (*case.seen, case.plan)]
        for number in calibration.visits([plans.load(path) for path, *_ in every]):
            _, case, training = every[number]
            before = _sent_bytes(w) if job.counts else 0
            training.run(lambda _: None)
            if job.counts:
                wire[case.plan].append((_sent_bytes(w) - before) / case.steps)
        machine = calibration.machine()
        for case, training in zip(job.cases, trainings, strict=True):
            training.close()
            _write(w, case, training, machine, started)
        if w.rank == 0:
            Path(job.wire).write_text(json.dumps(wire) + "\n")
            # last: where it is, the job is whole
            files.save(machine, job.machine)
    return 0


if __name__ == "__main__":
    sys.exit(main())
