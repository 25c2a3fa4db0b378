"""Batch scripts of a sweep: the templates of ``jobs/`` with their marked parts replaced."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import hpcpar
from hpcpar import child
from hpcpar.errors import InputError
from hpcpar.sweep import folder
from hpcpar.sweep.slurm import Slurm, usual_mpi
from hpcpar.sweep.study import Case, Study

#: Time limit of a job: so many times the predicted time, and minutes of every case beside it.
MARGIN, MARGIN_UNCALIBRATED, START_MINUTES = 3, 10, 5

#: A marked part of a template: its name, and the text between its marks.
_PART = re.compile(r"^# >>> (?P<name>\w+)\n(?P<text>.*?)^# <<< (?P=name)\n",
                   re.MULTILINE | re.DOTALL)

#: The line that starts ranks; the group holds the options behind --mpi.
_LAUNCH = re.compile(r"^launch=\(srun --mpi=[^\s)]+(.*?)\).*$", re.MULTILINE)

#: Runs one case and writes its exit status; a requeued job does not run it again.
_RUN = """\
run() { # run CASE OPTIONS...: a failed case does not stop the next one
  local case=$1 status=0
  shift
  [ ! -e "$case/@EXIT@" ] || return 0
  "${launch[@]}" "$@" @PROGRAM@ run --plan "$case/@PLAN@" --out "$case/@RECORD@" @OPTIONS@ \\
    >"$case/@LOG@" 2>&1 || status=$?
  printf '%s\\n' "$status" >"$case/@EXIT@.tmp"
  mv "$case/@EXIT@.tmp" "$case/@EXIT@"
}"""


@dataclass(frozen=True)
class BatchJob:
    """A batch job: the name of its script, and the cases that it runs one after the other."""

    name: str
    cases: tuple[Case, ...]

    @property
    def ranks(self) -> int:
        """Ranks of the largest case."""
        return max(case.ranks for case in self.cases)


def jobs(cases: Sequence[Case], one_allocation: bool) -> list[BatchJob]:
    """One job per number of ranks, or one for all cases."""
    if not cases:
        return []
    if one_allocation:
        return [BatchJob("all", tuple(cases))]
    sizes = dict.fromkeys(case.ranks for case in cases)
    return [BatchJob(f"p{ranks}", tuple(c for c in cases if c.ranks == ranks)) for ranks in sizes]


def run_options(study: Study) -> list[str]:
    """The options of ``hpcpar run`` that all cases share."""
    length = ["--steps", str(study.steps)] if study.steps else ["--epochs", str(study.epochs)]
    return ["--data", study.data, *length, *device_options(study), *layers_options(study)]


def layers_options(study: Study) -> list[str]:
    """The options that import modules of the user's own."""
    return [word for name in study.layers for word in ("--layers", name)]


def device_options(study: Study) -> list[str]:
    """The options that say what ranks compute on."""
    gpu = ["--transport", study.transport, "--math", study.math] if study.device == "gpu" else []
    cpu = ["--kernels", study.kernels] if study.device == "cpu" else []
    return ["--device", study.device, *gpu, *cpu]


def quoted(words: Sequence[str]) -> str:
    """Words of a batch script, which no shell takes for anything else.

    Raises
    ------
    InputError
        One of them has a line break, which would begin another line of the script.
    """
    for word in words:
        if re.search(r"[\n\r\0]", word):
            raise InputError(f"{word!r} cannot stand in a batch script: it has a line break; "
                             "choose another name")
    return shlex.join(words)


def fill(template: str, parts: Mapping[str, Sequence[str]], launch: Sequence[str]) -> str:
    """Replaces the marked parts of a template, and the options of its launch line.

    Parameters
    ----------
    parts : mapping
        Lines by the name of the part; other parts stay.
    launch : sequence of str
        The --mpi option, then options that are added to srun's.
    """
    found = {m["name"] for m in _PART.finditer(template)}
    if not set(parts) <= found:
        raise ValueError(f"template without {set(parts) - found}")

    def filled(part: re.Match[str]) -> str:
        lines = parts.get(part["name"], [part["text"].rstrip("\n")])
        return "".join(f"{line}\n" for line in lines)

    mpi, *more = launch

    def launched(line: re.Match[str]) -> str:
        own = " ".join(line[1].split())
        return f"launch=({' '.join(filter(None, (quoted(['srun', mpi]), own, quoted(more))))})"

    text, count = _LAUNCH.subn(launched, _PART.sub(filled, template))
    if count != 1:
        raise ValueError("template without a launch by srun")
    shebang, _, rest = text.partition("\n")
    rest = re.sub(r"\n{3,}", "\n\n", rest)
    rest = re.sub(r"\A(?:# .*\n)+", "", rest)  # these comments tell how to edit a template
    return f"{shebang}\n# Written by hpcpar sweep.\n{rest}"


def template(mpi: str, device: str) -> str:
    """The template in ``jobs/`` for this kind of MPI and device."""
    if device == "gpu":
        name = "slurm-gpu.sbatch"
    else:
        name = "slurm-pmix.sbatch" if mpi.startswith("pmix") else "slurm.sbatch"
    with open(os.path.join(os.path.dirname(hpcpar.__file__), "jobs", name), encoding="utf-8") as f:
        return f.read()


def _limit(study: Study, job: BatchJob) -> str:
    """The predicted time of a job with a margin, as Slurm writes it; empty without predictions."""
    minutes = 0.0
    for case in job.cases:
        prediction = folder.read_prediction(study.folder(case))
        if prediction is None:
            return ""
        steps = study.steps or study.epochs * (study.samples // case.batch)
        margin = MARGIN if study.machine.compute else MARGIN_UNCALIBRATED
        minutes += START_MINUTES + margin * steps * prediction.iteration_s / 60
    hours, rest = divmod(math.ceil(minutes), 60)
    return f"{hours:02}:{rest:02}:00"


def script(study: Study, slurm: Slurm, job: BatchJob, directory: str) -> str:
    """The batch script of a job.

    Parameters
    ----------
    directory : str
        Working directory of the job.
    """
    mpi = slurm.mpi or usual_mpi()
    given = {"--job-name": f"hpcpar-{job.name}", "--chdir": directory,
             "--output": study.job_log("%j"), "--open-mode": "append", "--account": slurm.account,
             "--partition": slurm.partition, "--time": slurm.time or _limit(study, job),
             "--constraint": slurm.constraint}
    gpus = slurm.gpus_per_rank or (1 if study.device == "gpu" else 0)
    options = [f"{name}={value}" for name, value in given.items() if value]
    options += slurm.placement(job.ranks)
    if slurm.cpus_per_rank:
        options.append(f"--cpus-per-task={slurm.cpus_per_rank}")
    if gpus:
        options.append(f"--gpus-per-task={gpus}")
    options += slurm.sbatch
    words = {"EXIT": folder.EXIT, "PLAN": folder.PLAN, "RECORD": folder.RECORD, "LOG": folder.LOG,
             "PROGRAM": quoted(child.command()), "OPTIONS": quoted(run_options(study))}
    run = re.sub("@([A-Z]+)@", lambda m: words[m[1]], _RUN)
    lines = [quoted(["run", study.folder(case), *slurm.placement(case.ranks)])
             for case in job.cases]
    modules = [quoted(["module", "load", module]) for module in slurm.modules]
    parts = {
        "job": [f"#SBATCH {quoted([option])}" for option in options],
        "environment": [*modules, *slurm.setup],
        "work": [run, "", *lines],
    }
    return fill(template(mpi, study.device), parts, [f"--mpi={mpi}", *slurm.srun])
