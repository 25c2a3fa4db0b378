"""Batch scripts of a sweep: the templates of ``jobs/`` with their marked parts replaced.

``job`` holds the directives, ``environment`` the modules and shell lines before the runs, ``work``
the runs.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import hpcpar
from hpcpar import child
from hpcpar.launchers import usual_library
from hpcpar.sweep import folder
from hpcpar.sweep.job_options import JobOptions, seconds
from hpcpar.sweep.schedulers import Scheduler
from hpcpar.sweep.schedulers.base import quoted
from hpcpar.sweep.study import Case, Study

#: Time limit of a job: so many times the predicted time, and minutes of every case beside it.
MARGIN, MARGIN_UNCALIBRATED, START_MINUTES = 3, 10, 5

#: A marked part of a template: its name, and the text between its marks.
_PART = re.compile(r"^# >>> (?P<name>\w+)\n(?P<text>.*?)^# <<< (?P=name)\n",
                   re.MULTILINE | re.DOTALL)

#: Runs one case and writes its exit status; a requeued job does not run it again.
_RUN = """\
run() { # run CASE LAUNCHER...: a failed case does not stop the next one
  local case=$1 status=0
  shift
  [ ! -e "$case/@EXIT@" ] || return 0
  "$@" @PROGRAM@ run --plan "$case/@PLAN@" --out "$case/@RECORD@" @OPTIONS@ \\
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


def fill(template: str, parts: Mapping[str, Sequence[str]]) -> str:
    """Replaces the marked parts of a template, all of them, by lines."""
    text, count = _PART.subn(lambda m: "".join(f"{line}\n" for line in parts[m["name"]]), template)
    if count != len(parts):
        raise ValueError(f"a template needs the parts {', '.join(parts)}")
    shebang, _, rest = text.partition("\n")
    rest = re.sub(r"\n{3,}", "\n\n", rest)
    rest = re.sub(r"\A(?:# .*\n)+", "", rest)  # these comments tell how to edit a template
    return f"{shebang}\n# Written by hpcpar sweep.\n{rest}"


def template(system: Scheduler) -> str:
    """The text of a batch system's template."""
    jobs = os.path.join(os.path.dirname(hpcpar.__file__), "jobs")
    with open(os.path.join(jobs, system.template), encoding="utf-8") as f:
        return f.read()


def _limit_s(study: Study, job: BatchJob) -> int:
    """The predicted time of a job with a margin, in whole minutes; 0 without predictions."""
    minutes = 0.0
    for case in job.cases:
        prediction = folder.read_prediction(study.folder(case))
        if prediction is None:
            return 0
        steps = study.steps or study.epochs * (study.samples // case.batch)
        margin = MARGIN if study.machine.compute else MARGIN_UNCALIBRATED
        minutes += START_MINUTES + margin * steps * prediction.iteration_s / 60
    return 60 * math.ceil(minutes)


def script(study: Study, system: Scheduler, asked: JobOptions, job: BatchJob,
           directory: str) -> str:
    """The batch script of a job.

    Parameters
    ----------
    directory : str
        Working directory of the job.
    """
    mpich, open_mpi = system.mpi
    usual = open_mpi if usual_library() == "Open MPI" else mpich
    asked = replace(asked, mpi=asked.mpi or usual,
                    gpus_per_rank=asked.gpus_per_rank or int(study.device == "gpu"))
    limit_s = seconds(asked.time) if asked.time else _limit_s(study, job)
    minutes = math.ceil(limit_s / 60)
    time = f"{limit_s // 3600:02}:{limit_s // 60 % 60:02}:{limit_s % 60:02}" if limit_s else ""
    values = asked.values(job.ranks) | {
        "name": f"hpcpar-{job.name}", "log": study.job_log(job.name), "time": time,
        "minutes": minutes, "seconds": limit_s}
    words = {"EXIT": folder.EXIT, "PLAN": folder.PLAN, "RECORD": folder.RECORD, "LOG": folder.LOG,
             "PROGRAM": quoted(child.command()), "OPTIONS": quoted(run_options(study))}
    run = re.sub("@([A-Z]+)@", lambda m: words[m[1]], _RUN)
    lines = [" ".join((quoted(["run", study.folder(case)]),
                       system.launched(asked.values(case.ranks)), quoted(asked.launch))).rstrip()
             for case in job.cases]
    here = os.path.dirname(child.command()[0])
    modules = [quoted(["module", "load", module]) for module in asked.modules]
    return fill(template(system), {
        "job": [*system.directives(values),
                *(f"{system.directive} {line}" for line in asked.directives)],
        # PBS and Grid Engine do not pass the environment on
        "environment": [quoted(["cd", directory]), f"export PATH={quoted([here])}:$PATH", *modules,
                        *asked.setup],
        "work": [run, "", *lines],
    })
