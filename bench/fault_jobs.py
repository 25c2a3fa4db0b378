"""Jobs for ``bench/faults.py``: started as users start them, watched from outside."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import h5py

ROOT = Path(__file__).resolve().parents[1]
#: Runs hpcpar, and lets rank 0 leave word of every iteration that all ranks have done. So do the
#: jobs that ``--elastic`` starts.
WRAPPER = """
import os, sys, time
from hpcpar.cli.main import main
from hpcpar.train import job
time_of = job.Job.time
def told(self, program, begin, loss, step):
    time_of(self, program, begin, loss, step)
    if self.world.rank == 0:
        os.write(log, f"{time.time()} {step} {loss!r}\\n".encode())
job.Job.time = told
if "--elastic" in sys.argv:
    sys.executable = sys.argv[1]
log = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
sys.exit(main(sys.argv[5:]))
"""


def environment(**extra: str) -> dict[str, str]:
    """The environment of jobs: one thread per rank, the processor's own BLAS kernels."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    path = os.pathsep.join(p for p in (str(ROOT), env.get("PYTHONPATH", "")) if p)
    return env | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": path} | extra


def hpcpar(*words: object) -> None:
    """A command that has to succeed."""
    subprocess.run([sys.executable, "-m", "hpcpar", *map(str, words)], check=True, cwd=ROOT,
                   env=environment(), capture_output=True)


@dataclass
class Fate:
    """The result of a job."""

    status: int
    #: Its standard error.
    text: str
    #: Seconds from its start to its first iteration (0: there was none), and from `struck` to its
    #: end.
    start_s: float = 0.0
    end_s: float = 0.0


@dataclass
class Training:
    """A training run in a folder, in as many jobs as it takes.

    Attributes
    ----------
    losses : dict
        Loss of every iteration, from the last job that did it.
    """

    folder: Path
    data: Path
    options: tuple[object, ...]
    losses: dict[int, float] = field(default_factory=dict)

    @property
    def checkpoint(self) -> Path:
        return self.folder / "c.h5"

    # beside the folder, which may be on a disk that fills up

    @property
    def _log(self) -> Path:
        return self.folder.with_suffix(".log")

    @property
    def _errors(self) -> Path:
        return self.folder.with_suffix(".errors")

    @property
    def told(self) -> str:
        """Standard error of the job so far."""
        return self._errors.read_text("utf-8")

    @property
    def iterations(self) -> int:
        """Iterations that have left word."""
        return self._log.read_text().count("\n") if self._log.exists() else 0

    def _python(self) -> Path:
        """A program that does for ``python -m hpcpar ...`` what `WRAPPER` says."""
        path = self.folder.with_suffix(".python")
        words = map(shlex.quote, (sys.executable, "-c", WRAPPER, str(path), str(self._log)))
        path.write_text(f'#!/bin/sh\nexec {" ".join(words)} "$@"\n')
        path.chmod(0o755)
        return path

    def start(self, plan: Path, ranks: int, *more: object, **env: str) -> subprocess.Popen[bytes]:
        """A job that goes on from the checkpoint, if there is one."""
        self._log.unlink(missing_ok=True)
        resume = ("--resume", self.checkpoint) if self.checkpoint.exists() else ()
        words = ["run", "--plan", plan, "--data", self.data, "--checkpoint", self.checkpoint,
                 *self.options, *resume, *more]
        launch = ["mpiexec", "-n", str(ranks)] if ranks else []
        command = [*launch, str(self._python()), "-m", "hpcpar", *map(str, words)]
        self.begun = time.time()
        with open(self._errors, "w", encoding="utf-8") as errors:
            return subprocess.Popen(command, cwd=ROOT, env=environment(**env),
                                    stdout=subprocess.DEVNULL, stderr=errors)

    def wait(self) -> None:
        """Waits for the first iteration of the job.

        Raises
        ------
        TimeoutError
            There is none within a minute: what the job has said.
        """
        deadline = time.monotonic() + 60
        while not self.iterations:
            if time.monotonic() > deadline:
                raise TimeoutError(self.told)
            time.sleep(0.02)

    def finish(self, job: subprocess.Popen[bytes], struck: float = 0.0,
               limit_s: float = 120.0) -> Fate:
        """Waits for the end of a job, and reads what it has done."""
        job.wait(limit_s)
        fate = Fate(job.returncode, self.told, end_s=time.time() - struck)
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        told = [line.split() for line in lines if len(line.split()) == 3]
        if told:
            fate.start_s = float(told[0][0]) - self.begun
        self.last = int(told[-1][1]) + 1 if told else -1
        self.losses |= {int(step): float(loss) for _, step, loss in told}
        return fate

    def processes(self) -> list[int]:
        """Processes of the job but its launcher's, watchers before their ranks."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if str(self.checkpoint).encode() in b"\0".join(words) and WRAPPER.encode() in words \
                    and b"-n" not in words:
                found.append(int(entry.name))
        return sorted(found)

    def left(self) -> list[int]:
        """Processes of the job that are still there 2 s after its end."""
        deadline = time.monotonic() + 2
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.processes()

    def ranks(self) -> list[int]:
        """The processes that train: those whose parent is one of the job's as well."""
        everyone = self.processes()
        return [pid for pid in everyone if _parent(pid) in everyone]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def kill(pids: list[int], number: int = signal.SIGKILL) -> None:
    """Sends a signal to processes, some of which may be gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def torn(path: Path) -> bool:
    """True where there is a checkpoint that cannot be read: every chunk of it has a checksum."""
    if not path.exists():
        return False
    try:
        with h5py.File(path) as f:
            f.visititems(lambda name, item: item[...].sum() * 0 if hasattr(item, "shape") else None)
            return "step" not in f["state"].attrs
    except (OSError, KeyError, RuntimeError):
        return True


def step_of(path: Path) -> int:
    """Iterations in a checkpoint; 0 where there is none."""
    if not path.exists():
        return 0
    with h5py.File(path) as f:
        return int(f["state"].attrs["step"])
