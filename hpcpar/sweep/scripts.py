"""Batch scripts of a sweep: the scripts of ``jobs/`` with their marked parts filled in."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import hpcpar
from hpcpar.sweep import folder
from hpcpar.sweep.slurm import Slurm, usual_mpi
from hpcpar.sweep.study import Case, Study

#: A part of a template: its name, and what is between its marks.
_PART = re.compile(r"^# >>> (?P<name>\w+)\n(?P<text>.*?)^# <<< (?P=name)\n",
                   re.MULTILINE | re.DOTALL)

#: How ranks are started: the options behind --mpi.
_LAUNCH = re.compile(r"^launch=\(srun --mpi=[^\s)]+(.*?)\).*$", re.MULTILINE)

#: One case, and how it ended; it is not run again when Slurm starts the job a second time.
_RUN = """\
run() { # run CASE OPTIONS...: the next case goes on whatever happens to this one
  local case=$1 status=0
  shift
  [ ! -e "$case/@EXIT@" ] || return 0
  "${launch[@]}" "$@" @PROGRAM@ run --plan "$case/@PLAN@" --out "$case/@RECORD@" @OPTIONS@ >"$case/@LOG@" 2>&1 || status=$?
  printf '%s\\n' "$status" >"$case/@EXIT@.tmp"
  mv "$case/@EXIT@.tmp" "$case/@EXIT@"
}"""


@dataclass(frozen=True)
class Job:
    """A batch job: its name (that of its script), and the cases that it runs one after the other.
    """

    name: str
    cases: tuple[Case, ...]

    @property
    def ranks(self) -> int:
        """Of its largest case."""
        return max(case.ranks for case in self.cases)


def jobs(cases: Sequence[Case], one_allocation: bool) -> list[Job]:
    """A job for each number of ranks, or one for all."""
    if not cases:
        return []
    if one_allocation:
        return [Job("all", tuple(cases))]
    sizes = dict.fromkeys(case.ranks for case in cases)
    return [Job(f"p{ranks}", tuple(c for c in cases if c.ranks == ranks)) for ranks in sizes]


def program() -> list[str]:
    """The words that start hpcpar on every rank."""
    return [sys.executable, "-m", "hpcpar"]


def run_options(study: Study) -> list[str]:
    """The options of ``hpcpar run`` that all cases share."""
    length = ["--steps", str(study.steps)] if study.steps else ["--epochs", str(study.epochs)]
    return ["--data", study.data, *length, "--device", study.device,
            *(["--direct"] if study.direct else [])]


def fill(template: str, parts: Mapping[str, Sequence[str]], launch: Sequence[str]) -> str:
    """A template with other lines in its marked parts, and `launch` (the first word: the --mpi) in
    how ranks are started.
    """
    found = {m["name"] for m in _PART.finditer(template)}
    if not set(parts) <= found:
        raise ValueError(f"template without {set(parts) - found}")
    text = _PART.sub(lambda m: "".join(f"{line}\n"
                                       for line in parts.get(m["name"], [m["text"].rstrip("\n")])),
                     template)
    mpi, *more = launch
    text, count = _LAUNCH.subn(lambda m: f"launch=(srun {' '.join((mpi, *m[1].split(), *more))})",
                               text)
    if count != 1:
        raise ValueError("template without a launch by srun")
    # its first lines tell how to edit it, which nobody should
    head, _, rest = text.partition("\n")
    return f"{head}\n# Written by hpcpar sweep.\n" + re.sub(r"\A(?:# .*\n)+", "",
                                                            re.sub(r"\n{3,}", "\n\n", rest))


def template(mpi: str, device: str) -> str:
    """The script of ``jobs/`` for this kind of MPI and device."""
    name = "slurm-gpu.sbatch" if device == "gpu" else "slurm-pmix.sbatch" if mpi.startswith(
        "pmix") else "slurm.sbatch"
    with open(os.path.join(os.path.dirname(hpcpar.__file__), "jobs", name), encoding="utf-8") as f:
        return f.read()


def script(study: Study, slurm: Slurm, job: Job, directory: str) -> str:
    """The batch script of a job.

    Parameters
    ----------
    directory : str
        Where the job runs: networks that are modules or files are found from there.
    """
    mpi = slurm.mpi or usual_mpi()
    given = {
        "--job-name": f"hpcpar-{job.name}", "--chdir": directory, "--output": study.job_log("%j"),
        "--open-mode": "append", "--account": slurm.account, "--partition": slurm.partition, "--time": slurm.time,
        "--constraint": slurm.constraint,
    }
    gpus = slurm.gpus_per_rank or (1 if study.device == "gpu" else 0)
    options = [f"{name}={value}" for name, value in given.items()
               if value] + slurm.placement(job.ranks)
    options += [f"--cpus-per-task={slurm.cpus_per_rank}"] if slurm.cpus_per_rank else []
    options += [f"--gpus-per-task={gpus}"] if gpus else []
    words = {"EXIT": folder.EXIT, "PLAN": folder.PLAN, "RECORD": folder.RECORD, "LOG": folder.LOG,
             "PROGRAM": shlex.join(program()), "OPTIONS": shlex.join(run_options(study))}
    run = re.sub("@([A-Z]+)@", lambda m: words[m[1]], _RUN)
    lines = [shlex.join(["run", study.folder(case), *slurm.placement(case.ranks)])
             for case in job.cases]
    return fill(
        template(mpi, study.device),
        {
            "job": [f"#SBATCH {shlex.quote(option) if ' ' in option else option}" for option in [*options, *slurm.sbatch]],
            "environment": [*(f"module load {shlex.quote(m)}" for m in slurm.modules), *slurm.setup],
            "work": [run, "", *lines],
        },
        [f"--mpi={mpi}", *slurm.srun],
    )
